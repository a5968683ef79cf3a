//! The replaced calls that hand out, take back and tell about memory, as `count` mode has them: the driver does the work,
//! the ledger follows, and the limit may say no first.

use crate::context::{self, Current};
use crate::driver::{self, Code, DEINITIALIZED, Handle, INVALID_VALUE, OUT_OF_MEMORY, Pointer, SUCCESS};
use crate::entry;
use crate::hook::real;
use crate::ledger::{self, Block, Kind, Space};
use crate::order;
use crate::pool;
use crate::report;
use crate::setting::{self, Mode};
use crate::switch::broken;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What is known of a request before the driver is asked.
struct Request {
    kind: Kind,
    bytes: u64,
    home: Current,
    stream: Handle,
    caller: usize,
}

/// Asks the driver for memory within the limit, and books what it gave. `take` calls it and answers the address and the
/// bytes that it really took, which are the request's except for rows that the driver pads.
fn ask(request: Request, take: impl Fn() -> (Code, Pointer, u64)) -> Code {
    let books = ledger::device(request.home.device);
    let on_device = request.kind.on_device();
    let limit = setting::settings().limit.filter(|_| on_device);
    // Charged before the driver is asked: of two requests that would only fit alone, one is refused. Without a limit it is the
    // driver that refuses, and says why.
    let attempt = || {
        if on_device && !books.charge(request.bytes, limit) {
            return Err(&books.refusals);
        }
        let taken = take();
        if taken.0 != SUCCESS && on_device {
            books.discharge(request.bytes);
        }
        Ok(taken)
    };
    let mut answer = attempt();
    // What pools hold and do not use is in nobody's way.
    let out_of_memory =
        |answer: &Result<(Code, Pointer, u64), _>| answer.as_ref().map_or(true, |taken| taken.0 == OUT_OF_MEMORY);
    if on_device && out_of_memory(&answer) && pool::relieve(request.home.device) {
        answer = attempt();
    }
    let (code, at, bytes) = match answer {
        Ok((SUCCESS, at, bytes)) => (SUCCESS, at, bytes),
        Ok((code, ..)) => {
            books.failures.fetch_add(1, Relaxed);
            return code;
        }
        Err(refusals) => {
            refusals.fetch_add(1, Relaxed);
            return OUT_OF_MEMORY;
        }
    };
    if on_device && bytes > request.bytes {
        // The padding of rows is known only now; the block is there, so it counts even past the limit.
        books.charge(bytes - request.bytes, None);
    }
    if on_device && request.kind != Kind::Physical && setting::settings().mode == Mode::Pool {
        pool::given(at, bytes);
    }
    let caller = report::origin(request.caller);
    let Request { kind, home, stream, .. } = request;
    let Current { context, device } = home;
    ledger::write_in(at, Block { bytes, device, context, stream, kind, caller, pooled: 0 });
    code
}

/// Gives memory back, a pool's block through `ours`, the driver's through `give`: struck out first, written in again if the
/// driver refuses; `ours` writes it in again itself where it refuses.
fn give_back(space: Space, at: Pointer, ours: impl FnOnce(Block) -> Code, give: impl Fn(Pointer) -> Code) -> Code {
    let block = ledger::strike_out(space, at);
    if let Some(block) = block.filter(|block| block.pooled != 0) {
        // A thread without a context frees nothing.
        if context::current().is_some() || broken("refusals") {
            return ours(block);
        }
        return match refusal(&give) {
            INVALID_VALUE => ours(block),
            DEINITIALIZED => {
                ledger::settle(&block);
                DEINITIALIZED
            }
            code => {
                ledger::put_back(at, block);
                code
            }
        };
    }
    if block.is_none() && space == Space::Address && pool::owns(at) && !broken("double-free") {
        // Freed before, or never the start of a block; the driver would take the page for the block.
        return refusal(&give);
    }
    let _held = broken("no-lock").then(|| ledger::hold(at));
    let code = give(at);
    match block {
        // While the process ends the driver may be gone already; the memory went with it.
        Some(mut block) if code == SUCCESS || code == DEINITIALIZED => {
            if broken("own-device") {
                block.device = context::current().map_or(block.device, |home| home.device);
            }
            ledger::settle(&block);
        }
        Some(block) => ledger::put_back(at, block),
        None if code == SUCCESS && at != 0 => ledger::foreign_free(),
        None => {}
    }
    code
}

/// What the driver answers to a free, by a call and in a state as this one, of what is none of its memory: there may be more
/// wrong than the address, and more done than said, as to a capture.
fn refusal(give: &impl Fn(Pointer) -> Code) -> Code {
    match broken("refusals") {
        true => INVALID_VALUE,
        false => Some(give(driver::NOWHERE)).filter(|code| *code != SUCCESS).unwrap_or(INVALID_VALUE),
    }
}

/// Reads what a successful call wrote.
///
/// # Safety
/// `to` was written by a driver call that succeeded.
unsafe fn written<T: Copy>(to: *mut T) -> T {
    // SAFETY: the caller's promise.
    unsafe { to.read() }
}

/// Refuses a pool's block to a call that frees memory of another kind: the call that is meant for it will find it.
fn not_its_kind(at: Pointer, block: Block, give: &impl Fn(Pointer) -> Code) -> Code {
    if !broken("refused-free") {
        ledger::put_back(at, block);
    }
    refusal(give)
}

type Alloc = unsafe fn(*mut Pointer, usize) -> Code;

/// `cuMemAlloc_v2`.
///
/// # Safety
/// As the driver's.
pub unsafe fn alloc(real: Alloc, to: *mut Pointer, bytes: usize, caller: usize) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(to, bytes) };
    let Some(_inside) = entry::enter() else { return driver() };
    // What the driver refuses it refuses in its own words.
    if to.is_null() || bytes == 0 && !broken("zero-size") {
        return driver();
    }
    let Some(home) = context::current() else { return driver() };
    if let Some(answer) = pool::alloc(home, bytes as u64, caller) {
        // SAFETY: not null, and the program's to be written.
        return unsafe { deliver(answer, to) };
    }
    let request = Request { kind: Kind::Device, bytes: bytes as u64, home, stream: 0, caller };
    ask(request, || match driver() {
        // SAFETY: written by the driver.
        SUCCESS => (SUCCESS, unsafe { written(to) }, bytes as u64),
        code => (code, 0, 0),
    })
}

/// Hands a pool's answer to the program.
///
/// # Safety
/// `to` is the program's to be written.
unsafe fn deliver(answer: Result<Pointer, Code>, to: *mut Pointer) -> Code {
    match answer {
        Ok(at) => {
            // SAFETY: the caller's promise.
            unsafe { to.write(at) };
            SUCCESS
        }
        Err(code) => code,
    }
}

/// As [`deliver`]; where there is none, the driver leaves null.
///
/// # Safety
/// `to` is the program's to be written.
unsafe fn deliver_ordered(answer: Result<Pointer, Code>, to: *mut Pointer) -> Code {
    // SAFETY: the caller's promise.
    unsafe {
        if answer.is_err() {
            to.write(0);
        }
        deliver(answer, to)
    }
}

/// `cuMemFree_v2`, which takes what any of the device kinds gave.
///
/// # Safety
/// As the driver's.
pub unsafe fn free(real: unsafe fn(Pointer) -> Code, at: Pointer) -> Code {
    // SAFETY: the program's arguments.
    let driver = |at| unsafe { real(at) };
    let Some(_inside) = entry::enter() else { return driver(at) };
    give_back(Space::Address, at, |block| pool::free(at, block), driver)
}

/// `cuMemAllocPitch_v2`.
///
/// # Safety
/// As the driver's.
pub unsafe fn alloc_pitch(
    real: unsafe fn(*mut Pointer, *mut usize, usize, usize, u32) -> Code,
    to: *mut Pointer,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: u32,
    caller: usize,
) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(to, pitch, width, height, element) };
    let Some(_inside) = entry::enter() else { return driver() };
    let (Some(home), Some(bytes)) = (context::current(), width.checked_mul(height)) else { return driver() };
    if to.is_null() || pitch.is_null() || bytes == 0 {
        return driver();
    }
    let request = Request { kind: Kind::Pitch, bytes: bytes as u64, home, stream: 0, caller };
    ask(request, || match driver() {
        // SAFETY: written by the driver.
        SUCCESS => unsafe { (SUCCESS, written(to), (written(pitch) as u64).saturating_mul(height as u64)) },
        code => (code, 0, 0),
    })
}

/// `cuMemAllocManaged`.
///
/// # Safety
/// As the driver's.
pub unsafe fn alloc_managed(
    real: unsafe fn(*mut Pointer, usize, u32) -> Code,
    to: *mut Pointer,
    bytes: usize,
    flags: u32,
    caller: usize,
) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(to, bytes, flags) };
    let Some(_inside) = entry::enter() else { return driver() };
    let Some(home) = context::current().filter(|_| !to.is_null() && bytes > 0) else { return driver() };
    let request = Request { kind: Kind::Managed, bytes: bytes as u64, home, stream: 0, caller };
    ask(request, || match driver() {
        // SAFETY: written by the driver.
        SUCCESS => (SUCCESS, unsafe { written(to) }, bytes as u64),
        code => (code, 0, 0),
    })
}

/// `cuMemAllocAsync` and its twin.
///
/// # Safety
/// As the driver's.
pub unsafe fn alloc_async<const TWIN: bool>(
    real: unsafe fn(*mut Pointer, usize, Handle) -> Code,
    to: *mut Pointer,
    bytes: usize,
    stream: Handle,
    caller: usize,
) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(to, bytes, stream) };
    let Some(_inside) = entry::enter() else { return driver() };
    let Some(home) = context::of_stream(stream).filter(|_| !to.is_null()) else { return driver() };
    let named = order::named(stream, TWIN);
    if let Some(answer) = pool::alloc_ordered(home, bytes as u64, named, None, caller) {
        // SAFETY: not null, and the program's to be written.
        return unsafe { deliver_ordered(answer, to) };
    }
    let stream = named;
    raise_threshold(home.device);
    let request = Request { kind: Kind::Async, bytes: bytes as u64, home, stream, caller };
    let code = ask(request, || match driver() {
        // SAFETY: written by the driver.
        SUCCESS => (SUCCESS, unsafe { written(to) }, bytes as u64),
        code => (code, 0, 0),
    });
    if code == OUT_OF_MEMORY {
        // SAFETY: not null, and the program's to be written; the driver leaves null there.
        unsafe { to.write(0) };
    }
    code
}

/// `cuMemAllocFromPoolAsync` and its twin. From the pool that ours stands in for, ours serves; else the pool's device is
/// the one that pays.
///
/// # Safety
/// As the driver's.
pub unsafe fn alloc_from_pool<const TWIN: bool>(
    real: unsafe fn(*mut Pointer, usize, Handle, Handle) -> Code,
    to: *mut Pointer,
    bytes: usize,
    pool: Handle,
    stream: Handle,
    caller: usize,
) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(to, bytes, pool, stream) };
    let Some(_inside) = entry::enter() else { return driver() };
    let Some(home) = context::of_stream(stream).filter(|_| !to.is_null()) else { return driver() };
    let named = order::named(stream, TWIN);
    if let Some(answer) = pool::alloc_ordered(home, bytes as u64, named, Some(pool), caller) {
        // SAFETY: not null, and the program's to be written.
        return unsafe { deliver_ordered(answer, to) };
    }
    let mut code = driver();
    if code == OUT_OF_MEMORY && pool::relieve(home.device) {
        code = driver();
    }
    if code != SUCCESS {
        ledger::device(home.device).failures.fetch_add(1, Relaxed);
        return code;
    }
    // Which device a pool lies on cannot be asked of every driver; which one its memory lies on can.
    // SAFETY: written by the driver.
    let at = unsafe { written(to) };
    let home = Current { device: device_of_pointer(at).unwrap_or(home.device), ..home };
    let stream = named;
    let request = Request { kind: Kind::FromPool, bytes: bytes as u64, home, stream, caller };
    let code = ask(request, || (SUCCESS, at, bytes as u64));
    if code != SUCCESS {
        // SAFETY: the block came a moment ago on this stream and nobody else knows it; `to` is the program's.
        unsafe {
            real::cuMemFreeAsync(at, stream);
            to.write(0);
        }
    }
    code
}

fn device_of_pointer(at: Pointer) -> Option<i32> {
    let mut device = 0_i32;
    let to = (&raw mut device).cast::<c_void>();
    // SAFETY: this attribute is an int, and the target is one of ours.
    (unsafe { driver::cuPointerGetAttribute(to, driver::POINTER_DEVICE_ORDINAL, at) } == SUCCESS).then_some(device)
}

/// `SMP_RELEASE_THRESHOLD`: at a device's first stream-ordered allocation, what its pool may keep is raised.
fn raise_threshold(device: i32) {
    static RAISED: AtomicU64 = AtomicU64::new(0);
    let Some(threshold) = setting::settings().release_threshold else { return };
    let bit = 1_u64 << (device.clamp(0, 63));
    if RAISED.load(Relaxed) & bit != 0 || RAISED.fetch_or(bit, Relaxed) & bit != 0 {
        return;
    }
    let (mut pool, mut wanted, mut now) = (0, threshold, 0_u64);
    // SAFETY: the targets are ours, and this attribute is a 64-bit number.
    let code = unsafe {
        match driver::cuDeviceGetMemPool(&mut pool, device) {
            SUCCESS => {
                let attribute = driver::POOL_RELEASE_THRESHOLD;
                driver::cuMemPoolGetAttribute(pool, attribute, (&raw mut now).cast());
                // A program that asks for more keeps it.
                if now >= threshold {
                    return;
                }
                driver::cuMemPoolSetAttribute(pool, attribute, (&raw mut wanted).cast())
            }
            code => code,
        }
    };
    if code == SUCCESS {
        setting::info(&format!("device {device}: the driver's pool may keep {threshold} bytes"));
    } else {
        setting::warn(&format!("device {device}: the release threshold could not be set (error {code})"));
    }
}

/// `cuMemFreeAsync` and its twin, which takes what any of the device kinds gave.
///
/// # Safety
/// As the driver's.
pub unsafe fn free_async<const TWIN: bool>(
    real: unsafe fn(Pointer, Handle) -> Code,
    at: Pointer,
    stream: Handle,
) -> Code {
    // SAFETY: the program's arguments.
    let driver = |at| unsafe { real(at, stream) };
    let Some(_inside) = entry::enter() else { return driver(at) };
    let stream = order::named(stream, TWIN);
    let refuse = || refusal(&driver);
    let ours = |block: Block| match block.kind {
        kind if kind.ordered() => pool::free_ordered(at, block, stream, &refuse),
        _ if broken("cross-free") => driver(at),
        _ => pool::free_on(at, block, stream, &refuse),
    };
    give_back(Space::Address, at, ours, driver)
}

/// `cuMemGetInfo_v2`: what pools hold and do not use is free, and the limit is all there is.
///
/// # Safety
/// As the driver's.
pub unsafe fn get_info(real: unsafe fn(*mut usize, *mut usize) -> Code, free: *mut usize, total: *mut usize) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(free, total) };
    let Some(_inside) = entry::enter() else { return driver() };
    let settings = setting::settings();
    let Some(home) = context::current() else { return driver() };
    if settings.limit.is_none() && settings.mode != Mode::Pool {
        return driver();
    }
    if free.is_null() && total.is_null() && !broken("null") {
        return driver();
    }
    let (mut driver_free, mut driver_total) = (0, 0);
    // SAFETY: the targets are ours. The program's may be null, one or both.
    let code = unsafe { real(&mut driver_free, &mut driver_total) };
    if code != SUCCESS {
        return code;
    }
    let idle = pool::idle(home.device);
    let charged = ledger::device(home.device).charged();
    let (free_now, total_now) = within(driver_free as u64, driver_total as u64, charged, idle, settings.limit);
    // SAFETY: not null, so the program's to be written.
    unsafe {
        if !free.is_null() || broken("null") {
            free.write(clamp(free_now));
        }
        if !total.is_null() || broken("null") {
            total.write(clamp(total_now));
        }
    }
    SUCCESS
}

/// (free, total) as the program is to see them. `charged`: bytes that count against the limit; `idle`: those of them that
/// pools hold and do not use. Never below zero, never free beyond total: what is charged may have passed the limit by the
/// padding of rows.
fn within(driver_free: u64, driver_total: u64, charged: u64, idle: u64, limit: Option<u64>) -> (u64, u64) {
    let total = limit.map_or(driver_total, |limit| limit.min(driver_total));
    let free = driver_free.saturating_add(idle);
    let left = match limit {
        None => u64::MAX,
        Some(limit) if broken("clamp") => limit.wrapping_sub(charged).wrapping_add(idle),
        Some(limit) => limit.saturating_sub(charged.saturating_sub(idle)),
    };
    if broken("clamp") { (left, total) } else { (free.min(left).min(total), total) }
}

fn clamp(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// `cuMemAllocHost_v2`.
///
/// # Safety
/// As the driver's.
pub unsafe fn alloc_host(real: Alloc, to: *mut Pointer, bytes: usize, caller: usize) -> Code {
    // SAFETY: the program's arguments.
    unsafe { pinned(to, bytes, caller, || real(to, bytes)) }
}

/// `cuMemHostAlloc`.
///
/// # Safety
/// As the driver's.
pub unsafe fn host_alloc(
    real: unsafe fn(*mut Pointer, usize, u32) -> Code,
    to: *mut Pointer,
    bytes: usize,
    flags: u32,
    caller: usize,
) -> Code {
    // SAFETY: the program's arguments.
    unsafe { pinned(to, bytes, caller, || real(to, bytes, flags)) }
}

unsafe fn pinned(to: *mut Pointer, bytes: usize, caller: usize, driver: impl Fn() -> Code) -> Code {
    let Some(_inside) = entry::enter() else { return driver() };
    let Some(home) = context::current().filter(|_| !to.is_null() && bytes > 0) else { return driver() };
    let request = Request { kind: Kind::Host, bytes: bytes as u64, home, stream: 0, caller };
    ask(request, || match driver() {
        // SAFETY: written by the driver.
        SUCCESS => (SUCCESS, unsafe { written(to) }, bytes as u64),
        code => (code, 0, 0),
    })
}

/// `cuMemFreeHost`.
///
/// # Safety
/// As the driver's.
pub unsafe fn free_host(real: unsafe fn(Pointer) -> Code, at: Pointer) -> Code {
    // SAFETY: the program's arguments.
    let driver = |at| unsafe { real(at) };
    let Some(_inside) = entry::enter() else { return driver(at) };
    give_back(Space::Address, at, |block| not_its_kind(at, block, &driver), driver)
}

/// `CUmemAllocationProp`, as far as it is read here: type, handle types, then where the memory is to lie.
#[repr(C)]
struct AllocationProp {
    kind: u32,
    handle_types: u32,
    location_kind: u32,
    location: i32,
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const ON_DEVICE: u32 = 1;

/// `cuMemCreate`. Memory of the host goes to the driver unbooked.
///
/// # Safety
/// As the driver's.
pub unsafe fn create(
    real: unsafe fn(*mut u64, usize, *const c_void, u64) -> Code,
    to: *mut u64,
    bytes: usize,
    properties: *const c_void,
    flags: u64,
    caller: usize,
) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(to, bytes, properties, flags) };
    let Some(_inside) = entry::enter() else { return driver() };
    if to.is_null() || properties.is_null() {
        return driver();
    }
    // SAFETY: not null, so the program's `CUmemAllocationProp`, which begins with these fields.
    let AllocationProp { location_kind, location, .. } = unsafe { properties.cast::<AllocationProp>().read() };
    if location_kind != ON_DEVICE {
        return driver();
    }
    let bytes = bytes as u64;
    let home = Current { context: 0, device: location };
    let request = Request { kind: Kind::Physical, bytes, home, stream: 0, caller };
    ask(request, || match driver() {
        // SAFETY: written by the driver.
        SUCCESS => (SUCCESS, unsafe { written(to) }, bytes),
        code => (code, 0, 0),
    })
}

/// `cuMemRelease`.
///
/// # Safety
/// As the driver's.
pub unsafe fn release(real: unsafe fn(u64) -> Code, handle: u64) -> Code {
    // SAFETY: the program's arguments.
    let driver = |handle| unsafe { real(handle) };
    let Some(_inside) = entry::enter() else { return driver(handle) };
    give_back(Space::Handle, handle, |block| not_its_kind(handle, block, &driver), driver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_stays_between_nothing_and_the_total() {
        let limit = Some(1000);
        assert_eq!(within(5000, 8000, 0, 0, None), (5000, 8000));
        assert_eq!(within(5000, 8000, 0, 600, None), (5600, 8000));
        assert_eq!(within(7900, 8000, 0, 600, None), (8000, 8000));
        assert_eq!(within(5000, 8000, 300, 0, limit), (700, 1000));
        assert_eq!(within(5000, 8000, 300, 100, limit), (800, 1000));
        assert_eq!(within(50, 8000, 300, 0, limit), (50, 1000));
        assert_eq!(within(5000, 8000, 1001, 0, limit), (0, 1000), "charged past the limit");
        assert_eq!(within(500, 800, 0, 0, limit), (500, 800), "a limit above what there is");
    }
}
