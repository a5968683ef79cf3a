//! The functions that PyTorch's `CUDAPluggableAllocator` takes from a library: one pool a device, opened at its first
//! allocation. PyTorch's `ssize_t` and `size_t` are 64 bits wherever CUDA is.

use crate::handle::smp_stream;
use smp_core::pool;
use smp_core::{AllocationId, DeviceId, PoolConfig, PoolId, Preset, StreamId};
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, OnceLock};

/// One CUDA device's pool, with the share of memory that it may reserve.
#[derive(Clone, Copy)]
struct Home {
    ordinal: c_int,
    device: DeviceId,
    pool: PoolId,
}

struct State {
    homes: Vec<Home>,
    /// (device, share of its memory), as set before its first allocation or later.
    fractions: Vec<(c_int, f64)>,
}

static STATE: Mutex<State> = Mutex::new(State { homes: Vec::new(), fractions: Vec::new() });

fn state() -> std::sync::MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// What the environment asks for.
struct Settings {
    /// `SMP_LIMIT`, `u64::MAX` if not set.
    limit: u64,
    /// `SMP_POOLS`, else the preset *sub-slices*.
    pools: PoolConfig,
}

/// The settings, read once. What cannot be read is said once, and then there is no memory: a program must not run without
/// the limit that was asked for.
fn settings() -> Option<&'static Settings> {
    static SETTINGS: OnceLock<Option<Settings>> = OnceLock::new();
    let get = |name: &str| std::env::var_os(name).filter(|text| !text.is_empty());
    let read = || -> Result<Settings, String> {
        let limit = match get("SMP_LIMIT") {
            Some(text) => text.to_str().and_then(bytes).ok_or_else(|| {
                format!("SMP_LIMIT: {text:?} is not a size above 0: bytes, or a number with KiB, MiB, GiB or TiB")
            })?,
            None => u64::MAX,
        };
        let pools = match get("SMP_POOLS") {
            Some(text) => pool::spec::parse(&text.to_string_lossy()).map_err(|why| format!("SMP_POOLS: {why}"))?,
            None => PoolConfig::preset(Preset::SubSlices),
        };
        Ok(Settings { limit, pools })
    };
    SETTINGS.get_or_init(|| read().inspect_err(|why| eprintln!("smp: {why}; nothing is allocated")).ok()).as_ref()
}

/// Bytes above 0 from a text such as 8GiB.
fn bytes(text: &str) -> Option<u64> {
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let shift = match unit.trim_start() {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift).filter(|bytes| *bytes > 0)
}

fn home(ordinal: c_int) -> Option<Home> {
    let mut state = state();
    if let Some(home) = state.homes.iter().find(|home| home.ordinal == ordinal) {
        return Some(*home);
    }
    let opened = u32::try_from(ordinal).ok().and_then(|number| {
        let options = smp_core::device::CudaOptions { ordinal: number, ..Default::default() };
        let pools = &settings()?.pools;
        let device = smp_core::device::open_cuda(&options).inspect_err(|why| eprintln!("smp: {why}")).ok()?;
        match pool::create(device, pools) {
            Ok(pool) => Some(Home { ordinal, device, pool }),
            Err(why) => {
                eprintln!("smp: {why}");
                // Asked again, it is opened again.
                let _ = smp_core::device::close(device);
                None
            }
        }
    })?;
    state.homes.push(opened);
    Some(opened)
}

/// What live blocks of a device may use: `SMP_LIMIT`, or the fraction that was set of the device's memory, whichever is
/// less. `u64::MAX`: all there is.
fn cap(home: &Home) -> u64 {
    let limit = settings().map_or(0, |settings| settings.limit);
    let fraction =
        state().fractions.iter().rev().find(|(ordinal, _)| *ordinal == home.ordinal).map(|(_, share)| *share);
    let share = fraction.map_or(u64::MAX, |share| {
        let total = smp_core::device::info(home.device).map_or(u64::MAX, |info| info.capacity);
        if share >= 1.0 { u64::MAX } else { (total as f64 * share) as u64 }
    });
    limit.min(share)
}

/// Allocates for PyTorch: stream-ordered, on `stream` of device number `device`.
///
/// `size`: bytes; 0 gives null. Returns null if there is no memory, or no CUDA device of that number; PyTorch reports it.
/// The first call for a device opens its primary context and a pool of SMP_POOLS (else the sub-slices preset); live blocks
/// stay within SMP_LIMIT. If one of the two cannot be read there is no memory, and standard error says why. Any thread may
/// call it.
#[unsafe(no_mangle)]
pub extern "C" fn smp_torch_alloc(size: i64, device: c_int, stream: smp_stream) -> *mut c_void {
    guarded(|| {
        let size = u64::try_from(size).ok().filter(|size| *size > 0)?;
        let home = home(device)?;
        let stream = StreamId(stream.addr() as u64);
        let cap = cap(&home);
        if cap == u64::MAX {
            return Some(pool::pointer(pool::alloc_async(home.pool, size, stream).ok()?));
        }
        // The cap is on what is used; pages beyond it go back where they can.
        let used = || pool::get_attribute(home.pool, 7).unwrap_or(u64::MAX);
        // One at a time, so that two that only fit alone do not both come.
        static CAPPED: Mutex<()> = Mutex::new(());
        let _one = CAPPED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if used().saturating_add(size) > cap {
            return None;
        }
        if pool::get_attribute(home.pool, 5).unwrap_or(0).saturating_add(size) > cap {
            let _ = pool::trim_to(home.pool, 0);
        }
        let block = pool::alloc_async(home.pool, size, stream).ok()?;
        if used() > cap {
            // What the block was rounded up to does not fit.
            let _ = pool::free_async(block, stream);
            return None;
        }
        Some(pool::pointer(block))
    })
    .map_or(std::ptr::null_mut(), |at| at as *mut c_void)
}

/// Frees what smp_torch_alloc gave, in the order of `stream`.
///
/// `ptr`: null is allowed. `size` is not read. A pointer that smp_torch_alloc did not give is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn smp_torch_free(ptr: *mut c_void, size: i64, device: c_int, stream: smp_stream) {
    let _ = size;
    let _ = guarded(|| {
        let (block, _) = find(ptr, device)?;
        pool::free_async(block, StreamId(stream.addr() as u64)).ok()
    });
}

/// Tells how many devices there are (set_init_fn): nothing needs to be done before the first allocation.
#[unsafe(no_mangle)]
pub extern "C" fn smp_torch_init(_device_count: c_int) {}

/// Gives back what is free on every device (set_reset_fn, which PyTorch calls to empty its cache).
#[unsafe(no_mangle)]
pub extern "C" fn smp_torch_reset() {
    let _ = guarded(|| {
        let homes = state().homes.clone();
        for home in homes {
            let _ = pool::trim_to(home.pool, 0);
        }
        Some(())
    });
}

/// Sets the share of a device's memory that may be used (set_memory_fraction_fn): from 0 to 1.
#[unsafe(no_mangle)]
pub extern "C" fn smp_torch_memory_fraction(fraction: f64, device: c_int) {
    if (0.0..=1.0).contains(&fraction) {
        state().fractions.push((device, fraction));
    }
}

/// The start and size of the block that holds `ptr` (set_base_alloc_fn).
///
/// `size`: null, or takes the bytes asked for. Returns null, and leaves `size` alone, for a pointer that is in no live block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_torch_base_alloc(ptr: *mut c_void, size: *mut u64) -> *mut c_void {
    let found = guarded(|| {
        let homes = state().homes.clone();
        homes.iter().find_map(|home| {
            let (block, offset) = pool::find(home.device, ptr.addr() as u64).ok()?;
            let info = pool::info(block).ok()?;
            Some((ptr.addr() as u64 - offset, info.requested))
        })
    });
    match found {
        Some((base, bytes)) => {
            if !size.is_null() {
                // SAFETY: not null, so the caller's to write.
                unsafe { size.write(bytes) };
            }
            base as *mut c_void
        }
        None => std::ptr::null_mut(),
    }
}

/// The block is used on another stream too (set_record_stream_fn): it is not reused before that stream's work so far.
#[unsafe(no_mangle)]
pub extern "C" fn smp_torch_record_stream(ptr: *mut c_void, stream: smp_stream) {
    let _ = guarded(|| {
        let homes = state().homes.clone();
        let (block, _) = homes.iter().find_map(|home| pool::find(home.device, ptr.addr() as u64).ok())?;
        pool::add_user(block, StreamId(stream.addr() as u64)).ok()
    });
}

fn find(ptr: *mut c_void, ordinal: c_int) -> Option<(AllocationId, u64)> {
    let home = state().homes.iter().find(|home| home.ordinal == ordinal).copied()?;
    pool::find(home.device, ptr.addr() as u64).ok().filter(|(_, offset)| *offset == 0)
}

/// No panic crosses to the caller: it becomes "nothing". No cancellation takes effect.
fn guarded<T>(work: impl FnOnce() -> Option<T>) -> Option<T> {
    let _held = smp_core::cancel::hold();
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).ok().flatten()
}
