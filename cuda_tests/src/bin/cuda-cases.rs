//! One case a process: what must hold on the CUDA device in a certain situation, by the stand-in's counts and answers.
//!
//! `cuda-cases CASE [ARGUMENT]` prints `ok`, or fails. `tests/cases.rs` says which and with what environment.

use smp_core::device::{self, CudaOptions, DeviceKind, ModelOptions, PageSupply, cuda};
use smp_core::pool::{self, AllocOptions, PoolConfig, Preset, Reason};
use smp_core::stream::{self, StreamFlags};
use smp_core::trace::{self, ReplayOptions};
use smp_core::{Act, AllocationId, DeviceId, EventId, PoolId, Status, StreamId, event, log};
use smp_cuda_tests::driver::{self, LAZY, ok};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const MIB: u64 = 1 << 20;

fn open() -> DeviceId {
    device::open_cuda(&CudaOptions::default()).expect("a device")
}

fn pool(device: DeviceId, preset: Preset) -> PoolId {
    pool::create(device, &PoolConfig::preset(preset)).expect("a pool")
}

fn block(pool: PoolId, stream: StreamId) -> AllocationId {
    pool::alloc_async(pool, MIB, stream).expect("a block")
}

fn reason(block: AllocationId) -> Reason {
    pool::info(block).expect("a live block").reason
}

/// Allocations and frees on one stream, after the first: which driver calls do they make?
fn steady_state() {
    driver::use_primary(0);
    let mut created = 0;
    ok(driver::stream_create(&mut created, 1));
    // Not the preset cuda, where every stream's frees record events from the first on.
    for preset in [Preset::Mapped, Preset::SubSlices, Preset::ExclusivePages] {
        for (waived, on) in [false, true].into_iter().flat_map(|waived| [created, 0, 1, 2].map(|on| (waived, on))) {
            let device = open();
            let config = PoolConfig { waive_capture_check: waived, ..PoolConfig::preset(preset) };
            let pool = pool::create(device, &config).expect("a pool");
            let stream = StreamId(on);
            let go = |rounds: u64| {
                for round in 0..rounds {
                    let sizes = [512, 4096 + 512 * (round % 7), 100_000];
                    for block in sizes.map(|size| pool::alloc_async(pool, size, stream).expect("a block")) {
                        pool::free_async(block, stream).expect("a free");
                    }
                }
            };
            go(20);
            driver::reset_counts();
            go(100);
            let calls = driver::called();
            let due: &[&str] = match (waived, on) {
                // The legacy default stream cannot be captured.
                (true, _) | (false, 0 | 1) => &[],
                // A thread's default stream is one of the context that is current, here the device's.
                (false, 2) => &["cuCtxGetCurrent", "cuStreamIsCapturing"],
                (false, _) => &["cuStreamIsCapturing"],
            };
            let due: Vec<_> = due.iter().map(|&call| (call.to_owned(), 600)).collect();
            assert_eq!(calls, due, "{preset:?}, waived {waived}, stream {on:#x}");
            pool::destroy(pool).expect("a destroy");
            device::close(device).expect("a close");
        }
    }
}

/// No driver, or one that cannot be used: says `words`, and the model device works.
fn refused(words: &str) {
    let error = device::open_cuda(&CudaOptions::default()).expect_err("no such driver can be used");
    assert_eq!(error.status, Status::NotSupported, "{error}");
    assert!(error.message.contains(words), "'{words}' is not in: {error}");
    let model = device::open_model(&ModelOptions::default()).expect("the model device needs no driver");
    assert_eq!(device::info(model).expect("info").kind, DeviceKind::Model);
    let pool = pool(model, Preset::Mapped);
    pool::free_async(block(pool, StreamId(0)), StreamId(0)).expect("a free");
}

/// `libsmp.so` itself, where no driver is: the device that is picked is the model's.
fn library_without_driver() {
    let path = std::env::var("SMP_LIBRARY").expect("SMP_LIBRARY names libsmp.so");
    let path = std::ffi::CString::new(path).expect("no NUL");
    // SAFETY: a NUL-terminated path; the functions have the types that smp.h gives them.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        assert!(!library.is_null(), "libsmp.so does not load");
        let find = |name: &std::ffi::CStr| {
            let found = libc::dlsym(library, name.as_ptr());
            assert!(!found.is_null(), "{name:?} is not exported");
            found
        };
        type Open = unsafe extern "C" fn(*const libc::c_void, *mut u64) -> u32;
        type Create = unsafe extern "C" fn(u64, *const libc::c_void, *mut u64) -> u32;
        type Alloc = unsafe extern "C" fn(u64, u64, *const libc::c_void, *mut u64) -> u32;
        let open: Open = std::mem::transmute(find(c"smp_device_open"));
        let create: Create = std::mem::transmute(find(c"smp_pool_create"));
        let alloc: Alloc = std::mem::transmute(find(c"smp_alloc_async"));
        let (mut device, mut pool, mut allocation) = (0, 0, 0);
        assert_eq!(open(std::ptr::null(), &mut device), 0, "a device is picked");
        assert_eq!(create(device, std::ptr::null(), &mut pool), 0);
        assert_eq!(alloc(pool, MIB, std::ptr::null(), &mut allocation), 0);
        assert_ne!(allocation, 0);
    }
}

/// A function the driver does not have: a required one is named; without another one, only what needs it goes.
fn missing(symbol: &str) {
    // As cuda.h calls it: no version of it is found.
    driver::hide(symbol.trim_end_matches("_v2"), true);
    let required = cuda::entry_points().into_iter().find(|point| point.0 == symbol).expect("an entry point").1;
    if required {
        return refused(symbol);
    }
    driver::use_primary(0);
    let device = open();
    for preset in [Preset::Mapped, Preset::SubSlices, Preset::Cuda] {
        let pool = pool(device, preset);
        let on = stream::create(device, StreamFlags::default()).expect("a stream");
        pool::free_async(block(pool, on), on).expect("a free");
        let host = pool::alloc(pool, MIB, &Default::default()).expect("a block in host order");
        pool::free(host).expect("a free in host order");
        device::synchronize(device).expect("a synchronise");
        pool::trim_to(pool, 0).expect("a trim");
        assert_eq!(pool::stats(pool).expect("figures").reserved, 0, "all of it goes back without {symbol}");
    }
    let supplies = |supply| device::open_cuda(&CudaOptions { supply, ..CudaOptions::default() }).map(drop);
    let pools = symbol.starts_with("cuMemPool") || matches!(symbol, "cuMemAllocFromPoolAsync" | "cuMemFreeAsync");
    let attributes = symbol == "cuDeviceGetAttribute";
    for (what, needed) in [
        (PageSupply::DriverPool, pools || attributes),
        (PageSupply::VirtualMemory, attributes || symbol.starts_with("cuMem") && !pools),
    ] {
        match supplies(what) {
            Ok(()) => assert!(!needed, "{what:?} without {symbol}"),
            Err(error) => assert!(needed && error.status == Status::NotSupported, "{what:?} without {symbol}: {error}"),
        }
    }
    let checked = device::open_cuda(&CudaOptions { checked: true, ..CudaOptions::default() });
    match symbol {
        "cuStreamGetId" => assert_eq!(checked.expect_err("nothing tells streams apart").status, Status::NotSupported),
        _ => drop(checked.expect("checked mode")),
    }
}

/// Whatever context is current stays current, and memory is the pool's device's.
fn another_context() {
    let other = driver::use_primary(1);
    let current = || {
        let mut context = 0;
        ok(driver::context_get(&mut context));
        context
    };
    let device = open();
    let mut of_other = 0;
    ok(driver::stream_create(&mut of_other, 0));
    let pool = pool(device, Preset::SubSlices);
    assert_eq!(current(), other, "after opening a device and a pool");
    let free = |device| {
        let (mut free, mut total) = (0, 0);
        let before = current();
        driver::use_primary(device);
        ok(driver::memory_info(&mut free, &mut total));
        ok(driver::context_set(before));
        free as u64
    };
    let (first, second) = (free(0), free(1));
    let on = stream::create(device, StreamFlags::default()).expect("a stream");
    let held = block(pool, on);
    assert_eq!(current(), other, "after an allocation that needed a page");
    assert_eq!(
        (first - free(0), second - free(1)),
        (32 * MIB, 0),
        "a page of the pool's device, though another is current"
    );
    pool::free_async(held, on).expect("a free");
    stream::synchronize(device, on).expect("a synchronise");
    pool::trim_to(pool, 0).expect("a trim");
    assert_eq!(current(), other, "after a trim");
    assert_eq!(free(0), first, "the page is back");
    let error = pool::alloc_async(pool, MIB, StreamId(of_other)).expect_err("a stream of another device");
    assert_eq!(error.status, Status::WrongDevice, "{error}");
    assert_eq!(current(), other, "after a refusal");
    stream::destroy(on).expect("a destroy");
    device::close(device).expect("a close");
    assert_eq!(current(), other, "after a close");
}

/// Of threads that give pages back and get others, each finds its own blocks, wherever the driver puts them.
fn pages_of_threads() {
    driver::use_primary(0);
    let device = open();
    let config = pool::spec::parse("direct()").expect("a specification");
    let pool = pool::create(device, &config).expect("a pool");
    let work = |thread: u64| {
        driver::use_primary(0);
        for step in 0..4000 {
            let held = pool::alloc(pool, (1 + (step + thread) % 3) * MIB, &AllocOptions::default()).expect("a block");
            let pointer = pool::pointer(held);
            // (Not at its start: there the thread remembers what it saw.)
            for offset in [1, MIB / 2, MIB - 1] {
                let found = pool::find(device, pointer + offset);
                assert_eq!(found.ok(), Some((held, offset)), "thread {thread}, step {step}");
            }
            pool::free(held).expect("a free");
            pool::trim_to(pool, 0).expect("a trim");
        }
    };
    std::thread::scope(|threads| (0..4).for_each(|thread| drop(threads.spawn(move || work(thread)))));
}

/// A context that ends without the library's knowing takes its memory with it: of a stream that ends then nothing is told.
fn context_gone() {
    static TOLD: AtomicUsize = AtomicUsize::new(0);
    log::set_sink(log::Level::Info, Some(|_, _| _ = TOLD.fetch_add(1, Relaxed)));
    driver::use_primary(0);
    let mut own = 0;
    ok(driver::context_create(&mut own, 0, 0));
    let device = device::open_cuda(&CudaOptions { context: own as u64, ..CudaOptions::default() }).expect("a device");
    let pool = pool(device, Preset::SubSlices);
    let mut on = 0;
    ok(driver::stream_create(&mut on, 0));
    pool::free_async(block(pool, StreamId(on)), StreamId(on)).expect("a free");
    ok(driver::context_destroy(own));
    driver::use_primary(0);
    stream::release(device, StreamId(on)).expect("a release");
    assert_eq!(TOLD.load(Relaxed), 0);
}

/// What names a device names that of the stream or event; two devices of the library in one context are one in this.
fn wrong_device() {
    driver::use_primary(0);
    let second = || device::open_cuda(&CudaOptions { ordinal: 1, ..CudaOptions::default() }).expect("device 1");
    let (here, twin, there) = (open(), open(), second());
    let refused = |answer: smp_core::Result<()>| {
        let error = answer.expect_err("another device's");
        assert_eq!(error.status, Status::WrongDevice, "{error}");
    };
    let held = pool(here, Preset::SubSlices);
    let stream = stream::create(here, StreamFlags::default()).expect("a stream");
    let before = block(held, stream);
    refused(stream::release(there, stream));
    assert_eq!(stream::info(here, stream).expect("it is known").submitted, 1);
    let event = event::create(here).expect("an event");
    event::record(here, event, stream).expect("a record");
    refused(event::note_synchronized(there, event));
    refused(event::note_destroyed(there, event));
    assert_eq!(stream::info(here, stream).expect("it is known").observed, 0);
    stream::synchronize(here, stream).expect("a synchronise");
    event::note_synchronized(twin, event).expect("the twin's too");
    pool::free_async(before, stream).expect("a free");
    // The twin has not seen the stream, and it is one of its own.
    stream::release(twin, stream).expect("the twin's too");
    assert_eq!(stream::info(here, stream).expect("the driver has it").submitted, 0, "begins anew");
    stream::destroy(stream).expect("a destroy");
    // One that was never seen has nothing to forget, whoever is told.
    let mut unseen = 0;
    ok(driver::stream_create(&mut unseen, 0));
    stream::release(here, StreamId(unseen)).expect("nothing to forget");
    event::note_destroyed(twin, event).expect("the twin's too");
    let mut unseen = 0;
    ok(driver::event_create(&mut unseen, 0));
    event::note_destroyed(here, EventId(unseen)).expect("nothing to forget");
    for wrong in [0, 1, 2, 0xe << 60 | 5] {
        let error = event::note_destroyed(here, EventId(wrong)).expect_err("no event of a driver's");
        assert_eq!(error.status, Status::InvalidHandle, "{error}");
    }
}

/// A capturing stream is refused; a capture elsewhere is not disturbed by what the library does for itself.
fn capturing() {
    driver::use_primary(0);
    let device = open();
    let pool = pool(device, Preset::SubSlices);
    let (mut captured, mut free) = (0, 0);
    ok(driver::stream_create(&mut captured, 1));
    ok(driver::stream_create(&mut free, 1));
    let before = block(pool, StreamId(captured));
    // Global mode: the strictest.
    ok(driver::capture_begin(captured, 0));
    let figures = pool::stats(pool).expect("figures");
    let refused = pool::alloc_async(pool, MIB, StreamId(captured)).expect_err("a capturing stream");
    assert_eq!(refused.status, Status::Capturing, "{refused}");
    let refused = pool::free_async(before, StreamId(captured)).expect_err("a capturing stream");
    assert_eq!(refused.status, Status::Capturing, "{refused}");
    let now = pool::stats(pool).expect("figures");
    assert_eq!((now.used, now.live, now.reserved), (figures.used, figures.live, figures.reserved));
    // A page by cuMemAlloc, which a capture of this mode forbids to its own thread.
    let other = pool::alloc_async(pool, 64 * MIB, StreamId(free)).expect("another stream is not refused");
    pool::free_async(other, StreamId(free)).expect("a free");
    let mut graph = 0;
    assert_eq!(driver::capture_end(captured, &mut graph), 0, "the capture was not broken");
    ok(driver::graph_destroy(graph));
    pool::free_async(before, StreamId(captured)).expect("the capture is over");
    assert_eq!(stream::info(device, StreamId(captured)).expect("a stream").lazy, None, "the driver's pace is its own");
    ok(driver::capture_begin(captured, 0));
    let refused = stream::query(device, StreamId(captured)).expect_err("a capturing stream");
    assert_eq!((refused.status, refused.driver_code), (Status::Capturing, 900), "{refused}");
    driver::capture_end(captured, &mut graph);
}

/// The child of a process that opened a device: every call says so, at once.
fn forked() {
    driver::use_primary(0);
    let device = open();
    let pool = pool(device, Preset::Mapped);
    let held = block(pool, StreamId(0));
    // Of the model too: another thread of the parent may have held any lock.
    let model = device::open_model(&ModelOptions::default()).expect("a model device");
    let event = event::create(model).expect("an event");
    // SAFETY: the child only makes calls that must refuse it, and ends by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let forked = [
            pool::alloc_async(pool, MIB, StreamId(0)).map(drop),
            pool::alloc(pool, MIB, &Default::default()).map(drop),
            pool::free_async(held, StreamId(0)),
            stream::create(device, StreamFlags::default()).map(drop),
            device::synchronize(device),
            device::open_cuda(&CudaOptions::default()).map(drop),
            pool::info(held).map(drop),
            pool::is_ready(held).map(drop),
            pool::add_user(held, StreamId(1)),
            pool::free(held),
            event::query(event).map(drop),
            event::synchronize(event),
            event::destroy(event),
        ]
        .iter()
        .all(|answer| answer.as_ref().is_err_and(|error| error.status == Status::Forked));
        // SAFETY: ends the child without running the parent's handlers.
        unsafe { libc::_exit(if forked { 17 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child just made.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 17, "the child's calls were not refused");
    pool::free_async(held, StreamId(0)).expect("the parent goes on");
}

/// A stream destroyed without a word, whose handle another stream gets: in checked mode it is another stream.
fn recycled(checked: bool) {
    driver::use_primary(0);
    ok(driver::set_mode(LAZY, 0));
    let device = device::open_cuda(&CudaOptions { checked, ..CudaOptions::default() }).expect("a device");
    let pool = pool(device, Preset::SubSlices);
    let mut first = 0;
    ok(driver::stream_create(&mut first, 1));
    let old = block(pool, StreamId(first));
    let pointer = pool::pointer(old);
    ok(driver::submit(first, 1));
    pool::free_async(old, StreamId(first)).expect("a free");
    ok(driver::stream_destroy(first));
    let mut second = 0;
    ok(driver::stream_create(&mut second, 1));
    assert_eq!(first, second, "the stand-in gives the handle out again");
    let new = block(pool, StreamId(second));
    if checked {
        assert_ne!(
            pool::pointer(new),
            pointer,
            "the old stream's free has not run, and the new one is not ordered after it"
        );
    } else {
        assert_eq!(reason(new), Reason::SameStream, "without checked mode the handle is believed");
    }
}

/// An event that the library has seen recorded is recorded again past it. Told, what was seen is forgotten; not told, a wait is
/// taken for one for the record that was seen.
fn recorded_again(how: &str) {
    driver::use_primary(0);
    ok(driver::set_mode(LAZY, 0));
    let device = open();
    let pool = pool(device, Preset::Cuda);
    let [first, second, third] = [(); 3].map(|()| {
        let mut stream = 0;
        ok(driver::stream_create(&mut stream, 1));
        stream
    });
    let old = block(pool, StreamId(first));
    let pointer = pool::pointer(old);
    ok(driver::submit(first, 1));
    pool::free_async(old, StreamId(first)).expect("a free");
    let mut event = 0;
    ok(driver::event_create(&mut event, 2));
    event::record(device, EventId(event), StreamId(first)).expect("a record");
    match how {
        "untold" => ok(driver::event_record(event, third)),
        "told" => {
            ok(driver::event_record(event, third));
            event::record_by(device, EventId(event), StreamId(third), Act::Noted).expect("a note");
        }
        _ => {}
    }
    stream::wait_event(device, StreamId(second), EventId(event)).expect("a wait");
    let new = block(pool, StreamId(second));
    match how {
        "once" | "untold" => assert_eq!((reason(new), pool::pointer(new)), (Reason::Event, pointer)),
        _ => assert_ne!(pool::pointer(new), pointer, "the free has not run, and the stream is not ordered after it"),
    }
}

/// As [`recycled`], where it is the library that makes the new stream: it knows that it is new.
fn recycled_by_the_library() {
    driver::use_primary(0);
    ok(driver::set_mode(LAZY, 0));
    let device = open();
    let beside = open();
    let (pool, other) = (pool(device, Preset::SubSlices), pool(beside, Preset::SubSlices));
    let mut first = 0;
    ok(driver::stream_create(&mut first, 1));
    let turn = |pool, on| {
        let held = block(pool, StreamId(on));
        let (why, at) = (reason(held), pool::pointer(held));
        pool::free_async(held, StreamId(on)).expect("a free");
        (why, at)
    };
    // Seen by two devices of the library over one context.
    let old = (turn(pool, first), turn(other, first));
    ok(driver::submit(first, 1));
    ok(driver::stream_destroy(first));
    let second = stream::create(device, StreamFlags { non_blocking: true, lazy: None }).expect("a stream");
    assert_eq!(first, second.0, "the stand-in gives the handle out again");
    let new = (turn(pool, first), turn(other, first));
    assert_ne!(old.0.1, new.0.1, "the new stream is not ordered after the old one's free");
    assert_ne!(old.1.1, new.1.1, "on the device beside neither");

    // Destroyed by the library, it is gone for both.
    stream::destroy(second).expect("a destroy");
    ok(driver::stream_create(&mut first, 1));
    assert_eq!(first, second.0, "the stand-in gives the handle out again");
    assert_ne!(turn(pool, first).0, Reason::SameStream);
    assert_ne!(turn(other, first).0, Reason::SameStream, "on the device beside neither");

    // So is one of the caller's, released to one device before it is destroyed.
    stream::release(device, StreamId(first)).expect("a release");
    ok(driver::stream_destroy(first));
    let second = first;
    ok(driver::stream_create(&mut first, 1));
    assert_eq!(first, second, "the stand-in gives the handle out again");
    assert_ne!(turn(pool, first).0, Reason::SameStream);
    assert_ne!(turn(other, first).0, Reason::SameStream, "on the device beside neither");
}

/// 0 and 1 are one stream; each thread's default stream is its own.
fn default_streams() {
    driver::use_primary(0);
    ok(driver::set_mode(LAZY, 0));
    let device = open();
    let pool = pool(device, Preset::SubSlices);
    let turn = |on: u64, pointer: &mut u64| {
        let held = block(pool, StreamId(on));
        let answer = (reason(held), pool::pointer(held) == *pointer);
        *pointer = pool::pointer(held);
        ok(driver::submit(on.max(1), 1));
        pool::free_async(held, StreamId(on)).expect("a free");
        answer
    };
    let mut last = 0;
    assert_eq!(turn(0, &mut last).0, Reason::Fresh);
    assert_eq!(turn(1, &mut last), (Reason::SameStream, true), "0 and 1 name the legacy default stream");
    let mut own = 0;
    assert_eq!(turn(2, &mut own).0, Reason::Fresh, "the thread's default stream is another");
    assert_eq!(turn(2, &mut own), (Reason::SameStream, true));
    let other = std::thread::scope(|scope| {
        let turn = || {
            driver::use_primary(0);
            turn(2, &mut own)
        };
        scope.spawn(turn).join().expect("the thread ends well")
    });
    assert_eq!(other, (Reason::Fresh, false), "another thread's default stream is another");
}

/// A call of the library's that gives its stream nothing to do is no work that waits for what the legacy stream and blocking ones owe
/// each other: who synchronises the stream has seen nothing of that, unless the driver was given something to wait with.
fn nothing_to_wait_for(what: &str) {
    driver::use_primary(0);
    ok(driver::set_mode(LAZY, 0));
    let device = open();
    let pool = pool(device, Preset::SubSlices);
    let create = |non_blocking| {
        let flags = StreamFlags { non_blocking, lazy: None };
        stream::create(device, flags).expect("a stream")
    };
    let (legacy, blocking, other) = (StreamId(0), create(false), create(true));
    let (used, shared) = (block(pool, blocking), block(pool, other));
    pool::add_user(shared, blocking).expect("a user");
    // What is to be over before the block serves the other stream.
    let work = if what == "crossed to the legacy stream" { blocking } else { legacy };
    let held = block(pool, work);
    let place = pool::pointer(held);
    ok(driver::submit(work.0.max(1), 1));
    let mut event = 0;
    ok(driver::event_create(&mut event, 2));
    ok(driver::event_record(event, work.0.max(1)));
    if !what.starts_with("crossed") {
        pool::free_async(held, work).expect("a free");
        event::record(device, event::create(device).expect("an event"), legacy).expect("a record");
    }
    let mut synchronised = blocking;
    match what {
        "user" => pool::free_async(shared, other).expect("a free"),
        "free" => pool::free_async(used, blocking).expect("a free"),
        "allocation" => drop(block(pool, blocking)),
        // Each comes after the other.
        "crossed" => pool::free_async(held, blocking).expect("a free"),
        "crossed to the legacy stream" => {
            pool::free_async(held, legacy).expect("a free");
            synchronised = legacy;
        }
        other => panic!("no such call: {other}"),
    }
    stream::synchronize(device, synchronised).expect("a synchronise");
    let has_run = driver::event_query(event) == 0;
    let taken = [(); 3].map(|()| pool::pointer(block(pool, other)));
    assert!(has_run || !taken.contains(&place), "what is not finished with was taken");
}

/// What was asked of the driver and refused, is not asked yet, or came before, is no order of its: who waits then has not waited for it.
fn not_the_drivers_order(what: &str) {
    driver::use_primary(0);
    ok(driver::set_mode(LAZY, 0));
    let device = open();
    let trace = std::env::temp_dir().join(format!("smp-cuda-cases-{}.trace", std::process::id()));
    // (What is done inside another call is told in another order.)
    let recorded = what.starts_with("refused");
    if recorded {
        trace::start(device, &trace, 0).expect("recording starts");
    }
    let pool = pool(device, Preset::SubSlices);
    let create = |non_blocking| {
        let flags = StreamFlags { non_blocking, lazy: None };
        stream::create(device, flags).expect("a stream")
    };
    let (legacy, worker, other) = (StreamId(0), create(false), create(true));
    let held = block(pool, worker);
    let place = pool::pointer(held);
    ok(driver::submit(worker.0, 1));
    let mut done = 0;
    ok(driver::event_create(&mut done, 2));
    ok(driver::event_record(done, worker.0));
    pool::free_async(held, worker).expect("a free");
    let event = event::create(device).expect("an event");
    match what {
        "refused record" => {
            driver::fail("cuEventRecord", 1, 2, false);
            event::record(device, event, legacy).expect_err("the driver refuses");
            stream::synchronize(device, legacy).expect("a synchronise");
        }
        "refused wait" => {
            event::record(device, event, other).expect("a record");
            driver::fail("cuStreamWaitEvent", 1, 2, false);
            stream::wait_event(device, legacy, event).expect_err("the driver refuses");
            stream::synchronize(device, legacy).expect("a synchronise");
        }
        "refused record after the legacy stream's" => {
            let follows = create(false);
            event::record(device, event, legacy).expect("a record");
            driver::fail("cuEventRecord", 1, 2, true);
            event::record(device, event, follows).expect_err("the driver refuses");
            stream::synchronize(device, follows).expect("a synchronise");
            driver::clear_failures();
        }
        "not asked yet" => {
            let mut call = || {
                stream::synchronize(device, legacy).expect("a synchronise");
                driver::event_record(event.0, 1) == 0
            };
            event::record_by(device, event, legacy, Act::With(&mut call)).expect("a record");
        }
        // The wait comes before the legacy stream's work, which the library sees before it sees the wait.
        "before" => {
            let (waits, first) = (create(false), event::create(device).expect("an event"));
            event::record(device, first, other).expect("a record");
            let mut call = || {
                let waits = driver::stream_wait(waits.0, first.0, 0) == 0;
                event::record(device, event, legacy).expect("a record");
                waits
            };
            stream::wait_event_by(device, waits, first, Act::With(&mut call)).expect("a wait");
            stream::synchronize(device, waits).expect("a synchronise");
        }
        // The driver has the event's other record last.
        "recorded by two" => {
            let idle = create(true);
            let mut call = || {
                event::record(device, event, worker).expect("a record");
                driver::event_record(event.0, idle.0) == 0
            };
            event::record_by(device, event, idle, Act::With(&mut call)).expect("a record");
            stream::wait_event(device, other, event).expect("a wait");
        }
        _ => panic!("no such case: {what}"),
    }
    let has_run = driver::event_query(done) == 0;
    // (More than a page has.)
    let taken = [(); 40].map(|()| pool::pointer(block(pool, other)));
    assert!(has_run || !taken.contains(&place), "what is not finished with was taken");
    if recorded {
        trace::stop(device).expect("the trace is complete");
        let report = trace::replay(&trace, ReplayOptions::default()).expect("it comes to the same again");
        assert!(report.verified);
        let _ = std::fs::remove_file(&trace);
    }
}

/// Streams that calls name as the driver does, or not at all, have no handle of the library's besides, whatever is guessed.
fn own_names() {
    driver::use_primary(0);
    let device = open();
    let pool = pool(device, Preset::SubSlices);
    let created = stream::create(device, StreamFlags::default()).expect("a stream");
    let mut callers = 0;
    ok(driver::stream_create(&mut callers, 1));
    let names = [1, 2, created.0, callers].map(StreamId);
    for on in names {
        pool::free_async(block(pool, on), on).expect("a free");
    }
    // Its free is an operation of the device's own timeline.
    let held = pool::alloc(pool, MIB, &AllocOptions::default()).expect("a block");
    pool::free(held).expect("a free");
    let before = pool::stats(pool).expect("figures");
    // A device of the model has handles of the library's for its streams: this one tells what they look like.
    let model = device::open_model(&ModelOptions::default()).expect("a device");
    let example = stream::create(model, StreamFlags::default()).expect("a stream").0;
    assert!(example & 0xfff_ffff < 64, "slots are given out from the lowest on");
    for slot in 0..64 {
        for of in 0..8 {
            let guess = StreamId(example >> 60 << 60 | of << 28 | slot);
            if guess.0 == example {
                continue;
            }
            let refused = |status| matches!(status, Status::InvalidHandle | Status::Destroyed);
            for error in [
                pool::alloc_async(pool, 512, guess).unwrap_err(),
                stream::info(device, guess).unwrap_err(),
                stream::query(device, guess).unwrap_err(),
                stream::synchronize(device, guess).unwrap_err(),
                stream::info(DeviceId(0), guess).unwrap_err(),
                stream::release(device, guess).unwrap_err(),
                stream::destroy(guess).unwrap_err(),
            ] {
                assert!(refused(error.status), "{:#x}: {error}", guess.0);
            }
        }
    }
    assert_eq!(pool::stats(pool).expect("figures"), before);
    for on in names {
        let info = stream::info(device, on).expect("the stream is as it was");
        assert_eq!((info.submitted, reason(block(pool, on))), (2, Reason::SameStream));
    }
    stream::destroy(created).expect("a destroy");
    ok(driver::stream_destroy(callers));
}

/// The *driver* preset: the model's figures are the driver's.
fn driver_figures() {
    driver::use_primary(0);
    let device = open();
    let pool = pool(device, Preset::Driver);
    let on = stream::create(device, StreamFlags::default()).expect("a stream");
    let agree = |when: &str| {
        for one in pool::compare_with_driver(pool).expect("both sides' figures") {
            assert_eq!(one.model, one.driver, "attribute {} {when}", one.attribute);
        }
    };
    agree("of a new pool");
    let mut blocks = Vec::new();
    for size in [1, 511, 512, 513, MIB, 20 * MIB, 31 * MIB, 40 * MIB] {
        blocks.push(pool::alloc_async(pool, size, on).expect("a block"));
        agree(&format!("after {size} bytes"));
    }
    for block in blocks.drain(1..4) {
        pool::free_async(block, on).expect("a free");
    }
    agree("after frees");
    blocks.push(pool::alloc_async(pool, 1000, on).expect("a block"));
    agree("after a reuse");
    pool::set_attribute(pool, 4, 64 * MIB).expect("a threshold");
    agree("after an attribute was set");
    for block in blocks {
        pool::free_async(block, on).expect("a free");
    }
    stream::synchronize(device, on).expect("a synchronise");
    agree("after a synchronise");
    pool::trim_to(pool, 0).expect("a trim");
    agree("after a trim");
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = arguments.get(1).map_or("", String::as_str);
    match arguments.first().map_or("", String::as_str) {
        "steady-state" => steady_state(),
        "refused" => refused(argument),
        "library-without-driver" => library_without_driver(),
        "missing" => missing(argument),
        "entry-points" => cuda::entry_points().iter().for_each(|point| println!("{}", point.0)),
        "wrong-device" => wrong_device(),
        "another-context" => another_context(),
        "context-gone" => context_gone(),
        "pages-of-threads" => pages_of_threads(),
        "capturing" => capturing(),
        "forked" => forked(),
        "recycled" => recycled(argument == "checked"),
        "recorded-again" => recorded_again(argument),
        "recycled-by-the-library" => recycled_by_the_library(),
        "default-streams" => default_streams(),
        "nothing-to-wait-for" => nothing_to_wait_for(argument),
        "not-the-drivers-order" => not_the_drivers_order(argument),
        "own-names" => own_names(),
        "driver-figures" => driver_figures(),
        other => panic!("no case '{other}'"),
    }
    println!("ok");
}
