//! Mapped entries on the CUDA device, over the stand-in driver, which keeps real bytes and real stream order: a chunk that
//! were moved too early, unmapped too early, or given to two blocks at once would show as wrong data or as an error of the
//! driver's. Each case is a process of its own: the driver is opened once a process.

use smp_core::device::{self, CudaOptions};
use smp_core::pool::{self, Stats, spec};
use smp_core::{AllocationId, DeviceId, PoolId, Status, StreamId, event, stream};
use std::ffi::{CString, c_char, c_int, c_void};
use std::process::Command;

mod stand_in;

use stand_in::driver;

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// The driver's calls that the test makes itself.
struct Calls(*mut c_void);

impl Calls {
    fn open() -> Calls {
        let path = CString::new(std::env::var("SMP_CUDA_LIBRARY").expect("set by the parent")).expect("a path");
        // SAFETY: a C string; RTLD_NOW. The core opens the same library, and neither closes it.
        let library = unsafe { dlopen(path.as_ptr(), 2) };
        assert!(!library.is_null(), "the stand-in opens");
        Calls(library)
    }
    fn address(&self, name: &str) -> *mut c_void {
        let name = CString::new(name).expect("a name");
        // SAFETY: an open library and a C string.
        let address = unsafe { dlsym(self.0, name.as_ptr()) };
        assert!(!address.is_null(), "{name:?} is there");
        address
    }
    fn stream(&self) -> u64 {
        type Create = unsafe extern "C" fn(*mut *mut c_void, u32) -> u32;
        // SAFETY: cuStreamCreate has this type.
        let create = unsafe { std::mem::transmute::<*mut c_void, Create>(self.address("cuStreamCreate")) };
        let mut stream = std::ptr::null_mut();
        // SAFETY: a place for the handle; 1 is CU_STREAM_NON_BLOCKING.
        assert_eq!(unsafe { create(&mut stream, 1) }, 0);
        stream as u64
    }
    fn make_current(&self) {
        type Init = unsafe extern "C" fn(u32) -> u32;
        type Retain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> u32;
        type SetCurrent = unsafe extern "C" fn(*mut c_void) -> u32;
        // SAFETY: cuInit, cuDevicePrimaryCtxRetain and cuCtxSetCurrent have these types.
        let (init, retain, set) = unsafe {
            (
                std::mem::transmute::<*mut c_void, Init>(self.address("cuInit")),
                std::mem::transmute::<*mut c_void, Retain>(self.address("cuDevicePrimaryCtxRetain")),
                std::mem::transmute::<*mut c_void, SetCurrent>(self.address("cuCtxSetCurrent")),
            )
        };
        let mut context = std::ptr::null_mut();
        // SAFETY: a place for the handle, and then that handle.
        assert_eq!(unsafe { (init(0), retain(&mut context, 0), set(context)) }, (0, 0, 0));
    }
    fn fill(&self, pointer: u64, value: u8, bytes: u64, stream: u64) {
        type Fill = unsafe extern "C" fn(u64, u8, usize, *mut c_void) -> u32;
        // SAFETY: cuMemsetD8Async has this type.
        let fill = unsafe { std::mem::transmute::<*mut c_void, Fill>(self.address("cuMemsetD8Async")) };
        // SAFETY: a live block of that many bytes on a live stream.
        assert_eq!(unsafe { fill(pointer, value, bytes as usize, stream as *mut c_void) }, 0);
    }
    fn copy_out(&self, to: u64, pointer: u64, bytes: u64, stream: u64) {
        type Copy = unsafe extern "C" fn(*mut c_void, u64, usize, *mut c_void) -> u32;
        // SAFETY: cuMemcpyDtoHAsync_v2 has this type.
        let copy = unsafe { std::mem::transmute::<*mut c_void, Copy>(self.address("cuMemcpyDtoHAsync_v2")) };
        // SAFETY: pinned memory of the test's own, large enough; a live block; a live stream.
        assert_eq!(unsafe { copy(to as *mut c_void, pointer, bytes as usize, stream as *mut c_void) }, 0);
    }
    fn pinned(&self, bytes: usize) -> u64 {
        type Pin = unsafe extern "C" fn(*mut *mut c_void, usize) -> u32;
        // SAFETY: cuMemAllocHost_v2 has this type.
        let pin = unsafe { std::mem::transmute::<*mut c_void, Pin>(self.address("cuMemAllocHost_v2")) };
        let mut memory = std::ptr::null_mut();
        // SAFETY: a place for the pointer.
        assert_eq!(unsafe { pin(&mut memory, bytes) }, 0);
        memory as u64
    }
    fn free_bytes(&self) -> usize {
        type Info = unsafe extern "C" fn(*mut usize, *mut usize) -> u32;
        // SAFETY: cuMemGetInfo_v2 has this type.
        let info = unsafe { std::mem::transmute::<*mut c_void, Info>(self.address("cuMemGetInfo_v2")) };
        let (mut free, mut total) = (0, 0);
        // SAFETY: places for two numbers.
        assert_eq!(unsafe { info(&mut free, &mut total) }, 0);
        free
    }
}

struct Live {
    block: AllocationId,
    pointer: u64,
    bytes: u64,
    stream: u64,
    value: u8,
}

const SAMPLE: u64 = 16 << 10;
const SAMPLES: u64 = 1024;

/// Fills each block when it comes and copies parts of it out before it goes, all in stream order, and compares at the end
/// of the work: with `spec` as the pool, at most so many live, and only if `syncs` with synchronises that the pool sees before the last one. The
/// pool's figures before that.
fn blocks_keep_their_bytes(seed: u64, spec: &str, most_live: usize, syncs: bool) -> Stats {
    let calls = Calls::open();
    calls.make_current();
    let before = calls.free_bytes();
    let device = device::open_cuda(&CudaOptions::default()).unwrap();
    assert!(device::info(device).unwrap().mapping);
    let pool = pool::create(device, &spec::parse(spec).unwrap()).unwrap();
    let streams = [0; 3].map(|_| calls.stream());
    let kept = calls.pinned((SAMPLE * SAMPLES) as usize);
    let mut dice = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut roll = |below: u64| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        dice % below
    };
    let compare = |wanted: &mut Vec<(u64, u8)>| {
        for (at, &(bytes, value)) in wanted.iter().enumerate() {
            // SAFETY: pinned memory of the test's own, which no work writes any more.
            let found = unsafe { std::slice::from_raw_parts((kept + at as u64 * SAMPLE) as *const u8, bytes as usize) };
            assert!(found.iter().all(|&byte| byte == value), "a block of {value}s holds something else");
        }
        wanted.clear();
    };
    let after = event::create(device).unwrap();
    let mut live: Vec<Live> = Vec::new();
    let mut wanted: Vec<(u64, u8)> = Vec::new();
    for turn in 0..700u64 {
        let dare = roll(100);
        if dare < 50 && live.len() < most_live {
            let bytes = if roll(10) < 3 { 1 + roll(1 << 16) } else { 1 + roll(7 << 20) };
            let stream = streams[roll(3) as usize];
            let value = (turn % 255 + 1) as u8;
            match pool::alloc_async(pool, bytes, StreamId(stream)) {
                Ok(block) => {
                    let pointer = pool::pointer(block);
                    calls.fill(pointer, value, bytes, stream);
                    live.push(Live { block, pointer, bytes, stream, value });
                }
                Err(error) => assert_eq!(error.status, Status::CapacityExceeded, "{error}"),
            }
        } else if dare < 95 && !live.is_empty() {
            let gone = live.swap_remove(roll(live.len() as u64) as usize);
            let on = if roll(4) == 0 { streams[roll(3) as usize] } else { gone.stream };
            event::record(device, after, StreamId(gone.stream)).unwrap();
            stream::wait_event(device, StreamId(on), after).unwrap();
            if wanted.len() as u64 + 2 > SAMPLES {
                device::synchronize(device).unwrap();
                compare(&mut wanted);
            }
            let bytes = gone.bytes.min(SAMPLE);
            for from in [0, gone.bytes - bytes] {
                calls.copy_out(kept + wanted.len() as u64 * SAMPLE, gone.pointer + from, bytes, on);
                wanted.push((bytes, gone.value));
            }
            pool::free_async(gone.block, StreamId(on)).unwrap();
        } else if dare < 98 && syncs {
            stream::synchronize(device, StreamId(streams[roll(3) as usize])).unwrap();
        } else if dare == 98 {
            pool::trim_to(pool, roll(40) << 20).unwrap();
        }
        if turn % 16 == 0 {
            pool::check_invariants(pool).unwrap();
        }
    }
    let stats = pool::stats(pool).unwrap();
    for gone in live {
        pool::free_async(gone.block, StreamId(gone.stream)).unwrap();
    }
    device::synchronize(device).unwrap();
    compare(&mut wanted);
    pool::check_invariants(pool).unwrap();
    pool::destroy(pool).unwrap();
    assert_eq!(calls.free_bytes(), before, "all of it went back to the driver");
    stats
}

/// Runs the test of this name again, in a process whose driver is the stand-in in a mode.
fn in_each_mode(name: &str, test: impl FnOnce(u64)) {
    in_modes(&["eager", "lazy", "adversarial", "adversarial"], name, "", test);
}

/// The same in these modes, with calls of the driver's that are to fail.
fn in_modes(modes: &[&str], name: &str, failures: &str, test: impl FnOnce(u64)) {
    if let Ok(seed) = std::env::var("SMP_TEST_CHILD") {
        return test(seed.parse().expect("a seed"));
    }
    let driver = driver();
    for (seed, mode) in modes.iter().enumerate() {
        let child = Command::new(std::env::current_exe().expect("this test has a path"))
            .args(["--exact", name, "--nocapture"])
            .env("SMP_TEST_CHILD", (seed + 1).to_string())
            .env("SMP_CUDA_LIBRARY", &driver)
            .env("SIMCUDA_MODE", mode)
            .env("SIMCUDA_SEED", (seed + 1).to_string())
            .env("SIMCUDA_FAIL", failures)
            .output()
            .expect("the child runs");
        let said = String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success() && said.contains("1 passed"), "{mode}: {said}");
    }
}

/// (A cap makes chunks move that would else be asked for: several streams use the entry.)
#[test]
fn blocks_keep_their_bytes_while_chunks_move_under_them() {
    in_each_mode("blocks_keep_their_bytes_while_chunks_move_under_them", |seed| {
        assert!(blocks_keep_their_bytes(seed, "mapped(max_pool_size=56MiB)", 24, true).chunk_moves > 0);
    });
}

#[test]
fn blocks_keep_their_bytes_when_the_host_observes_nothing() {
    in_each_mode("blocks_keep_their_bytes_when_the_host_observes_nothing", |seed| {
        assert!(
            blocks_keep_their_bytes(seed, "mapped(range_size=64MiB, max_pool_size=72MiB)", 24, false).chunk_moves > 0
        );
    });
}

#[test]
fn blocks_keep_their_bytes_at_a_cap_and_with_a_period() {
    in_each_mode("blocks_keep_their_bytes_at_a_cap_and_with_a_period", |seed| {
        assert!(
            blocks_keep_their_bytes(seed, "mapped(max_pool_size=56MiB, dealloc_period=20)", 24, seed % 2 == 0)
                .chunk_moves
                > 0
        );
    });
}

/// (Two places a range: a chunk with a ghost drops it before it moves.)
#[test]
fn blocks_keep_their_bytes_where_chunks_drop_ghosts() {
    in_each_mode("blocks_keep_their_bytes_where_chunks_drop_ghosts", |seed| {
        let stats = blocks_keep_their_bytes(seed, "mapped(range_size=4MiB, max_pool_size=40MiB)", 24, seed % 2 == 0);
        assert!(stats.chunk_moves > 0 && stats.progress_queries > 0, "{stats:?}");
    });
}

#[test]
fn blocks_keep_their_bytes_where_a_stream_waits_rather_than_the_entry_grow() {
    in_modes(
        &["lazy", "adversarial", "adversarial", "adversarial"],
        "blocks_keep_their_bytes_where_a_stream_waits_rather_than_the_entry_grow",
        "",
        |seed| {
            let stats = blocks_keep_their_bytes(
                seed,
                "mapped(); policies(follow_event_dependencies=off, opportunistic=off)",
                3,
                false,
            );
            assert!(stats.internal_waits > 0, "{stats:?}");
        },
    );
}

/// A pool on the stand-in, a stream, and what the device had free before.
struct Bench {
    device: DeviceId,
    pool: PoolId,
    stream: StreamId,
    before: usize,
}

fn a_pool(spec: &str) -> (Calls, Bench) {
    let calls = Calls::open();
    calls.make_current();
    let before = calls.free_bytes();
    let device = device::open_cuda(&CudaOptions::default()).unwrap();
    let pool = pool::create(device, &spec::parse(spec).unwrap()).unwrap();
    let stream = StreamId(calls.stream());
    (calls, Bench { device, pool, stream, before })
}

#[test]
fn a_range_that_the_driver_refuses_is_asked_for_just_large_enough() {
    let name = "a_range_that_the_driver_refuses_is_asked_for_just_large_enough";
    in_modes(&["eager"], name, "cuMemAddressReserve:1:2", |_| {
        let (_, b) = a_pool("mapped()");
        let first = pool::alloc_async(b.pool, 3 << 20, b.stream).unwrap();
        let stats = pool::stats(b.pool).unwrap();
        assert_eq!((stats.page_refusals, stats.ranges, stats.reserved), (1, 1, 4 << 20));
        // Nothing more fits there; the driver reserves a whole range now.
        let second = pool::alloc_async(b.pool, 3 << 20, b.stream).unwrap();
        assert_eq!(pool::stats(b.pool).unwrap().ranges, 2);
        assert!(pool::pointer(first).abs_diff(pool::pointer(second)) >= 3 << 20);
        pool::check_invariants(b.pool).unwrap();
    });
}

#[test]
fn of_chunks_that_the_driver_creates_in_part_none_is_kept_and_the_allocation_fails_whole() {
    let name = "of_chunks_that_the_driver_creates_in_part_none_is_kept_and_the_allocation_fails_whole";
    in_modes(&["eager"], name, "cuMemCreate:3:2", |_| {
        let (calls, b) = a_pool("mapped(range_size=64MiB, max_pool_size=6MiB)");
        assert_eq!(pool::alloc_async(b.pool, 6 << 20, b.stream).unwrap_err().status, Status::OutOfMemory);
        let stats = pool::stats(b.pool).unwrap();
        assert_eq!((stats.reserved, stats.live, stats.page_refusals), (0, 0, 1));
        assert_eq!(calls.free_bytes(), b.before);
        let block = pool::alloc_async(b.pool, 6 << 20, b.stream).unwrap();
        pool::check_invariants(b.pool).unwrap();
        pool::free_async(block, b.stream).unwrap();
        device::synchronize(b.device).unwrap();
        pool::destroy(b.pool).unwrap();
        assert_eq!(calls.free_bytes(), b.before);
    });
}

#[test]
fn where_the_driver_refuses_chunks_beyond_the_block_the_block_gets_its_own() {
    let name = "where_the_driver_refuses_chunks_beyond_the_block_the_block_gets_its_own";
    in_modes(&["eager"], name, "cuMemCreate:5:2", |_| {
        let (calls, b) = a_pool("mapped()");
        pool::alloc_async(b.pool, 6 << 20, b.stream).unwrap();
        let stats = pool::stats(b.pool).unwrap();
        // Of eleven the fifth is refused, and the four before it go.
        assert_eq!((stats.page_refusals, stats.page_allocs, stats.reserved), (1, 3, 6 << 20));
        assert_eq!(b.before - calls.free_bytes(), 6 << 20);
        pool::check_invariants(b.pool).unwrap();
    });
}

#[test]
fn a_place_that_the_driver_does_not_map_is_tried_again_after_all_that_is_free_went_back() {
    let name = "a_place_that_the_driver_does_not_map_is_tried_again_after_all_that_is_free_went_back";
    in_modes(&["eager"], name, "cuMemMap:2:2", |_| {
        let (calls, b) = a_pool("mapped(max_pool_size=6MiB)");
        let block = pool::alloc_async(b.pool, 6 << 20, b.stream).unwrap();
        pool::check_invariants(b.pool).unwrap();
        // Three chunks came, could not all be mapped, went, and came again.
        let stats = pool::stats(b.pool).unwrap();
        assert_eq!((stats.page_allocs, stats.page_frees, stats.reserved), (6, 3, 6 << 20));
        assert_eq!(b.before - calls.free_bytes(), 6 << 20);
        pool::free_async(block, b.stream).unwrap();
    });
}

#[test]
fn an_entry_grows_where_the_driver_does_not_let_a_stream_wait() {
    let name = "an_entry_grows_where_the_driver_does_not_let_a_stream_wait";
    in_modes(&["lazy"], name, "cuStreamWaitEvent:1+:1", |_| {
        let (calls, b) = a_pool("mapped()");
        let other = StreamId(calls.stream());
        for _ in 0..20 {
            let block = pool::alloc_async(b.pool, 32 << 20, b.stream).unwrap();
            pool::free_async(block, other).unwrap();
        }
        let stats = pool::stats(b.pool).unwrap();
        assert_eq!((stats.failures, stats.internal_waits, stats.used), (0, 0, 0));
        pool::check_invariants(b.pool).unwrap();
    });
}
