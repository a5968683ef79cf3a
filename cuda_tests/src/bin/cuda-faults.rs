//! One failing driver call: a fixed program uses every entry point of the driver that the library uses, one of which
//! answers an error at one of its uses; what must hold then is checked at the call where it happens.
//!
//! cuda-faults --count              each entry point and how often the program uses it
//! cuda-faults SYMBOL USE ERROR     fails that use (1 is the first) of that entry point
//!
//! A call that fails has the status that follows from the driver's answer, the driver's code and name in its error, and
//! has changed no block and no figure but those that count failures. No lock is left held: another thread's calls work. The
//! same call made again works; after a sticky error (700) it and every other answers DEVICE_POISONED, and a device opened
//! after the context was reset works. Where a call works in spite of the failure (a page that the driver does not take back,
//! an event that would only have helped), the entry point must be one of [`ABSORBED`]. Ends with `injected 1 fired 1`.

use smp_core::device::{self, CudaOptions, PageSupply};
use smp_core::pool::{self, AllocOptions, PoolConfig, Preset, spec};
use smp_core::stream::{self, StreamFlags};
use smp_core::{DeviceId, Error, PoolId, Result, Status, StreamId, event};
use smp_cuda_tests::driver::{self, LAZY, ok};
use std::sync::mpsc;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const STICKY: i32 = 700;

/// Entry points whose failure a call may survive, and how.
const ABSORBED: &[(&str, &str)] = &[
    ("cuDeviceGetAttribute", "the device is taken to lack the feature"),
    ("cuMemGetAllocationGranularity", "chunks are not mapped"),
    ("cuThreadExchangeStreamCaptureMode", "the mode stays the caller's"),
    ("cuCtxGetCurrent", "a question whose answer would only have helped was not asked"),
    ("cuCtxPushCurrent_v2", "a question whose answer would only have helped was not asked"),
    ("cuCtxPopCurrent_v2", "nothing can be done about it"),
    ("cuMemGetInfo_v2", "a message says that nothing is free"),
    ("cuStreamGetId", "a new stream is believed to be new"),
    ("cuStreamIsCapturing", "the record or wait that follows is judged by the driver"),
    ("cuEventCreate", "a free is not covered by an event"),
    ("cuEventRecord", "a free is not covered by an event"),
    ("cuCtxRecordEvent", "a free is not covered by an event"),
    ("cuEventQuery", "the event is taken for not passed"),
    ("cuEventDestroy_v2", "an idle event is lost"),
    ("cuStreamDestroy_v2", "the library's own stream is lost"),
    ("cuStreamSynchronize", "a page was not to be had this way, and another was"),
    ("cuMemAlloc_v2", "pages were given back, and the next try worked"),
    ("cuMemAllocFromPoolAsync", "pages were given back, and the next try worked"),
    ("cuMemAddressReserve", "a smaller range was reserved, or the next try worked"),
    ("cuMemCreate", "pages were given back, and the next try worked"),
    ("cuMemMap", "another chunk or place served"),
    ("cuMemSetAccess", "another chunk or place served"),
    ("cuMemFree_v2", "the page stays reserved"),
    ("cuMemFreeAsync", "the page stays reserved"),
    ("cuMemUnmap", "the page or chunk stays reserved"),
    ("cuMemRelease", "the chunk stays reserved, or leaks"),
    ("cuMemAddressFree", "addresses leak"),
    ("cuMemPoolDestroy", "the driver's pool is lost"),
    ("cuDevicePrimaryCtxRelease_v2", "the context stays"),
    ("cuGetErrorName", "the message has the number only"),
    ("cuGetErrorString", "the message has the name only"),
];

/// Figures that a failed call leaves as they were.
type Figures = Vec<(u64, u64, u64, u64, u64)>;

struct Fault {
    symbol: String,
    error: i32,
}

struct Scene {
    fault: Option<Fault>,
    pools: Vec<PoolId>,
    device: Option<DeviceId>,
    /// The fault has happened at a call, which is named.
    happened: Option<String>,
}

/// What ends a scene early: the device is poisoned.
struct Poisoned;

impl Scene {
    fn fired(&self) -> u64 {
        self.fault.as_ref().map_or(0, |fault| driver::fired(&fault.symbol))
    }

    fn figures(&self) -> Figures {
        let figures = |&pool: &PoolId| {
            let stats = pool::stats(pool).expect("figures");
            (stats.used, stats.requested, stats.live, stats.allocs, stats.frees)
        };
        self.pools.iter().map(figures).collect()
    }

    /// Another thread's calls return: no lock is left held.
    fn nothing_is_locked(&self, what: &str) {
        let (pools, device) = (self.pools.clone(), self.device);
        let (done, wait) = mpsc::channel();
        std::thread::spawn(move || {
            for pool in pools {
                let _ = pool::stats(pool);
                let _ = pool::check_invariants(pool);
                let _ = pool::trim_to(pool, u64::MAX);
            }
            if let Some(device) = device {
                let _ = device::info(device);
                let _ = stream::info(device, StreamId(0));
                let _ = event::create(device).and_then(event::destroy);
            }
            let _ = done.send(());
        });
        wait.recv_timeout(Duration::from_secs(200)).unwrap_or_else(|_| panic!("{what}: another thread's call hangs"));
    }

    fn sound(&self, what: &str) {
        for &pool in &self.pools {
            pool::check_invariants(pool).unwrap_or_else(|why| panic!("{what}: {why}"));
        }
    }

    /// The error is the one that follows from the driver's answer.
    fn judge(&self, what: &str, error: &Error, opening: bool) {
        let fault = self.fault.as_ref().expect("a fault is planned");
        let name = match fault.error {
            2 => "CUDA_ERROR_OUT_OF_MEMORY",
            STICKY => "CUDA_ERROR_ILLEGAL_ADDRESS",
            _ => "CUDA_ERROR_UNKNOWN",
        };
        let loading = matches!(fault.symbol.as_str(), "cuInit" | "cuDriverGetVersion");
        let (status, code) = match fault.error {
            _ if loading => (Status::NotSupported, 0),
            2 => (Status::OutOfMemory, 2),
            STICKY if !opening => (Status::DevicePoisoned, STICKY),
            code => (Status::Driver, code),
        };
        // What the device or driver is taken to lack is said in these words.
        let lacking =
            opening && error.status == Status::NotSupported && matches!(fault.symbol.as_str(), "cuDeviceGetAttribute");
        // The cap is in the way of itself; how much the device has free is not known then.
        let capped = error.status == Status::CapacityExceeded && fault.symbol == "cuMemGetInfo_v2";
        if lacking || capped {
            return;
        }
        assert_eq!(error.status, status, "{what}: {error}");
        assert!(
            error.message.contains(name) || (code == 2 && error.message.contains("out of memory")),
            "{what}: {error}"
        );
        if !loading && !error.message.starts_with("out of memory") {
            assert_eq!(error.driver_code, code, "{what}: {error}");
        }
    }

    /// Makes a call, and checks what must hold if the fault happens in it. `again`: it can be made again if it failed.
    fn call<T>(
        &mut self,
        what: &str,
        again: bool,
        call: impl Fn() -> Result<T>,
    ) -> std::result::Result<Option<T>, Poisoned> {
        let (before, fired) = (self.figures(), self.fired());
        let result = call();
        let hit = self.fired() > fired;
        let sticky = self.fault.as_ref().is_some_and(|fault| fault.error == STICKY);
        let opening = self.device.is_none();
        match result {
            Ok(value) => {
                if hit {
                    let fault = self.fault.as_ref().expect("a fault is planned");
                    let why = ABSORBED.iter().find(|known| known.0 == fault.symbol);
                    let why = why.unwrap_or_else(|| panic!("{what} works although {} failed", fault.symbol));
                    self.happened = Some(format!("{what} works: {}", why.1));
                    self.nothing_is_locked(what);
                }
                if hit && sticky {
                    self.sound(what);
                    // The context is lost only if the failed function was one of it.
                    let lost = self.device.map(device::synchronize).is_none_or(|answer| answer.is_err());
                    return if lost { Err(Poisoned) } else { Ok(Some(value)) };
                }
                Ok(Some(value))
            }
            // The cap is in the way, which has nothing to do with the fault.
            Err(error) if !hit && error.status == Status::CapacityExceeded => Ok(None),
            Err(error) => {
                assert!(hit, "{what} failed of itself: {error}");
                self.judge(what, &error, opening);
                self.happened = Some(format!("{what}: {:?}: {error}", error.status));
                assert_eq!(before, self.figures(), "{what}: a failed call changed a figure");
                self.sound(what);
                self.nothing_is_locked(what);
                if sticky && !opening && error.status == Status::DevicePoisoned {
                    match call() {
                        // What was held can always be let go, and what the failed call had taken apart is gone.
                        Ok(_) => assert!(what.starts_with("free"), "{what} works on a poisoned device"),
                        Err(still) if again => {
                            assert_eq!(still.status, Status::DevicePoisoned, "{what}, again: {still}")
                        }
                        Err(_) => {}
                    }
                    return Err(Poisoned);
                }
                if sticky {
                    return Err(Poisoned);
                }
                if !again {
                    return Ok(None);
                }
                match call() {
                    Ok(value) => Ok(Some(value)),
                    Err(error) if error.status == Status::CapacityExceeded => Ok(None),
                    Err(error) => panic!("{what}, made again: {error}"),
                }
            }
        }
    }
}

/// Uses everything on one device.
fn act(scene: &mut Scene, supply: PageSupply, foreign: &[u64]) -> std::result::Result<(), Poisoned> {
    let checked = supply == PageSupply::VirtualMemory;
    let opened =
        scene.call("open", true, || device::open_cuda(&CudaOptions { supply, checked, ..CudaOptions::default() }))?;
    let Some(device) = opened else { return Ok(()) };
    scene.device = Some(device);
    let specs =
        ["sliced(page_size=2MiB, max_pool_size=4MiB)", "mapped(range_size=64MiB, max_pool_size=8MiB)", "direct()"];
    for text in specs {
        let config = spec::parse(text).expect("a specification");
        let pool = scene.call("create a pool", true, || pool::create(device, &config))?.expect("a pool");
        scene.pools.push(pool);
    }
    let preset = PoolConfig::preset(Preset::Driver);
    // Without what the driver's pools need there is no such pool.
    let driver_pool = match scene.happened.is_some() && pool::create(device, &preset).is_err() {
        true => None,
        false => {
            let pool = scene.call("create a driver pool", true, || pool::create(device, &preset))?.expect("a pool");
            scene.pools.push(pool);
            Some(pool)
        }
    };
    let mut streams: Vec<StreamId> = foreign.iter().map(|&raw| StreamId(raw)).collect();
    for non_blocking in [false, true] {
        let flags = StreamFlags { non_blocking, lazy: None };
        streams.push(scene.call("create a stream", true, || stream::create(device, flags))?.expect("a stream"));
    }
    let mut events = Vec::new();
    for _ in 0..2 {
        events.push(scene.call("create an event", true, || event::create(device))?.expect("an event"));
    }
    let pools = scene.pools.clone();
    for round in 0..2 {
        for &pool in &pools {
            for (index, &on) in streams.iter().enumerate() {
                let next = streams[(index + 1) % streams.len()];
                let mut blocks = Vec::new();
                for _ in 0..2 {
                    let block = scene.call("allocate", true, || pool::alloc_async(pool, MIB, on))?;
                    blocks.extend(block);
                }
                ok(driver::submit(on.0, 3));
                let seen = events[index % 2];
                scene.call("record", true, || event::record(device, seen, on))?;
                for block in blocks {
                    scene.call("free", true, || pool::free_async(block, on))?;
                }
                // Another stream wants it before it has run.
                let block = scene.call("allocate elsewhere", true, || pool::alloc_async(pool, MIB / 2, next))?;
                if let Some(block) = block {
                    scene.call("free elsewhere", true, || pool::free_async(block, next))?;
                }
                if index == round {
                    scene.call("wait", true, || stream::wait_event(device, next, seen))?;
                    scene.call("query the event", true, || event::query(seen))?;
                    scene.call("query the stream", true, || stream::query(device, on))?;
                    scene.call("synchronise the event", true, || event::synchronize(seen))?;
                }
            }
            let options = AllocOptions::default();
            let block = scene.call("allocate in host order", true, || pool::alloc(pool, MIB / 4, &options))?;
            if let Some(block) = block {
                scene.call("free in host order", true, || pool::free(block))?;
            }
            scene.call("synchronise the stream", true, || stream::synchronize(device, streams[round]))?;
            // A handle the driver does not know.
            let (before, fired) = (scene.figures(), scene.fired());
            let error = pool::alloc_async(pool, MIB, StreamId(0x7777_7000)).expect_err("no such stream");
            if scene.fired() == fired {
                assert!(matches!(error.status, Status::InvalidHandle | Status::DevicePoisoned), "{error}");
            } else {
                scene.happened = Some(format!("a stream that is none: {:?}: {error}", error.status));
                if error.status == Status::DevicePoisoned {
                    return Err(Poisoned);
                }
            }
            assert_eq!(before, scene.figures(), "a stream that is none changed a figure");
        }
        if let Some(pool) = driver_pool {
            scene.call("compare with the driver", true, || pool::compare_with_driver(pool))?;
            scene.call("set an attribute", true, || pool::set_attribute(pool, 4, MIB))?;
        }
        scene.call("synchronise the device", true, || device::synchronize(device))?;
        for &pool in &pools {
            scene.call("trim", true, || pool::trim_to(pool, 0))?;
            let stats = pool::stats(pool).expect("figures");
            // What one try could not give back, the next does.
            scene.call("trim again", true, || pool::trim_to(pool, 0))?;
            let left = pool::stats(pool).expect("figures").reserved;
            assert!(left == 0 || scene.happened.is_some(), "{left} bytes stay reserved: {stats:?}");
        }
        scene.call("tell of the device", true, || device::info(device))?;
    }
    for event in events {
        scene.call("destroy an event", false, || event::destroy(event))?;
    }
    for &stream in &streams[foreign.len()..] {
        scene.call("destroy a stream", false, || stream::destroy(stream))?;
    }
    for &stream in &streams[..foreign.len()] {
        scene.call("release a stream", true, || stream::release(device, stream))?;
    }
    scene.pools.clear();
    for pool in pools {
        scene.call("destroy a pool", false, || pool::destroy(pool))?;
    }
    scene.call("close", false, || device::close(device))?;
    scene.device = None;
    Ok(())
}

/// After a sticky error: everything that asks the driver says so, figures can be read, and once the context has been reset
/// another device works.
fn after_poison(scene: &mut Scene) {
    // It may be the close in which it happened.
    if let Some(device) = scene.device.filter(|&device| device::info(device).is_ok()) {
        // An answer that nobody looked at has told nothing yet; the next that is looked at does.
        let error = device::synchronize(device).expect_err("a synchronise of a lost context");
        assert_eq!(error.status, Status::DevicePoisoned, "{error}");
        for &pool in &scene.pools {
            let error = pool::alloc_async(pool, MIB, StreamId(0)).expect_err("an allocation on a poisoned device");
            assert_eq!(error.status, Status::DevicePoisoned, "{error}");
            let before = pool::stats(pool).expect("figures");
            pool::trim_to(pool, 0).ok();
            let after = pool::stats(pool).expect("figures");
            assert_eq!(after.reserved, before.reserved, "a page went back on the word of a lost context");
        }
        scene.sound("poisoned");
        scene.nothing_is_locked("poisoned");
        for pool in scene.pools.drain(..) {
            pool::destroy(pool).ok();
        }
        device::close(device).ok();
        scene.device = None;
    }
    driver::clear_failures();
    // The library could not pop a context that was lost.
    ok(driver::context_set(0));
    ok(driver::primary_reset(0));
    // The closed device may let go of the context later, which it had retained before the reset.
    let mut context = 0;
    ok(driver::primary_retain(&mut context, 0));
    let device = device::open_cuda(&CudaOptions::default()).expect("a device of the reset context opens");
    let pool = pool::create(device, &PoolConfig::default()).expect("a pool");
    let block = pool::alloc_async(pool, MIB, StreamId(0)).expect("a block");
    pool::free_async(block, StreamId(0)).expect("a free");
    device::close(device).expect("a close");
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    driver::use_primary(0);
    ok(driver::set_mode(LAZY, 0));
    let mut foreign = Vec::new();
    for flags in [0, 1] {
        let mut raw = 0;
        ok(driver::stream_create(&mut raw, flags));
        foreign.push(raw);
    }
    // The library has to make the context current itself.
    ok(driver::context_set(0));
    driver::reset_counts();
    let fault = match arguments.as_slice() {
        [count] if count == "--count" => None,
        [symbol, from, error] => {
            let (from, error) = (from.parse().expect("a use"), error.parse().expect("an error"));
            // Uses that come only once a process are made to come again by failing each.
            let only_once = matches!(symbol.as_str(), "cuInit" | "cuDriverGetVersion");
            for each in if only_once { 1..from + 1 } else { from..from + 1 } {
                driver::fail(symbol, each, error, false);
            }
            if only_once {
                for _ in 1..from {
                    device::open_cuda(&CudaOptions::default()).expect_err("the driver does not start");
                }
            }
            Some(Fault { symbol: symbol.clone(), error })
        }
        _ => panic!("cuda-faults --count | cuda-faults SYMBOL USE ERROR"),
    };
    let mut scene = Scene { fault, pools: Vec::new(), device: None, happened: None };
    for supply in [PageSupply::Plain, PageSupply::DriverPool, PageSupply::VirtualMemory] {
        if act(&mut scene, supply, &foreign).is_err() {
            after_poison(&mut scene);
            break;
        }
    }
    match scene.fault {
        None => {
            for (symbol, _) in smp_core::device::cuda::entry_points() {
                println!("{symbol} {}", driver::calls(symbol));
            }
        }
        Some(fault) => {
            let fired = u64::from(scene.happened.is_some());
            println!("{} injected 1 fired {fired} {}", fault.symbol, scene.happened.unwrap_or_default());
        }
    }
}
