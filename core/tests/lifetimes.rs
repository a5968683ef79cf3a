//! Streams, and what they belong to, to the end: of the thread whose default stream it is, of the device's handle.

use smp_core::device::{self, ModelOptions};
use smp_core::stream::{self, StreamFlags};
use smp_core::{DeviceId, MemoryPoolConfig, PoolConfig, Status, StreamId, pool};

const PER_THREAD: StreamId = StreamId(2);

fn open() -> DeviceId {
    device::open_model(&ModelOptions::default()).unwrap()
}

#[test]
fn the_default_stream_of_a_thread_that_has_ended_is_forgotten() {
    let device = open();
    let pool = pool::create(device, &PoolConfig::default()).unwrap();
    let kept = pool::alloc_async(pool, 1000, PER_THREAD).unwrap();
    let live: Vec<_> = (0..64)
        .map(|_| {
            std::thread::spawn(move || {
                let block = pool::alloc_async(pool, 4096, PER_THREAD).unwrap();
                pool::free_async(block, PER_THREAD).unwrap();
                pool::alloc_async(pool, 100, PER_THREAD).unwrap()
            })
            .join()
            .unwrap()
        })
        .collect();
    pool::check_invariants(pool).unwrap();
    device::synchronize(device).unwrap();
    // The legacy one, this thread's, and the last thread's, which no other has come after.
    assert!(device::info(device).unwrap().live_streams <= 3, "{:?}", device::info(device).unwrap());
    // What was allocated on such a stream stays, and is freed on any.
    for block in live {
        assert_eq!(pool::info(block).unwrap().requested, 100);
        pool::free_async(block, PER_THREAD).unwrap();
    }
    pool::free_async(kept, PER_THREAD).unwrap();
    device::synchronize(device).unwrap();
    pool::check_invariants(pool).unwrap();
    pool::trim_to(pool, 0).unwrap();
    assert_eq!(pool::stats(pool).unwrap().reserved, 0);
}

#[test]
fn the_default_stream_of_a_thread_that_goes_on_is_kept() {
    let device = open();
    let pool = pool::create(device, &PoolConfig::default()).unwrap();
    let (told, tell) = (std::sync::mpsc::channel::<()>(), std::sync::mpsc::channel::<()>());
    let (go, turn) = told;
    let (done, wait) = tell;
    let other = std::thread::spawn(move || {
        let own = |_: ()| stream::info(device, PER_THREAD).unwrap().id;
        let first = own(());
        done.send(()).unwrap();
        turn.recv().unwrap();
        assert_eq!(own(()), first);
    });
    wait.recv().unwrap();
    for _ in 0..8 {
        std::thread::spawn(move || pool::alloc_async(pool, 1, PER_THREAD).unwrap()).join().unwrap();
    }
    go.send(()).unwrap();
    other.join().unwrap();
}

/// Calls made from a destructor of the thread, after all that the library could have noticed.
struct Last {
    device: DeviceId,
    before: u64,
    at_end: std::sync::mpsc::Sender<()>,
    go: std::sync::mpsc::Receiver<()>,
    after: std::sync::mpsc::Sender<(u64, u64)>,
}

impl Drop for Last {
    fn drop(&mut self) {
        self.at_end.send(()).unwrap();
        self.go.recv().unwrap();
        let own = stream::info(self.device, PER_THREAD).unwrap().id.0;
        self.after.send((self.before, own)).unwrap();
    }
}

#[test]
fn a_thread_keeps_its_default_stream_in_its_own_destructors_and_it_is_forgotten_after_them() {
    thread_local! {
        static LAST: std::cell::RefCell<Option<Last>> = const { std::cell::RefCell::new(None) };
    }
    let device = open();
    let (at_end, ends) = std::sync::mpsc::channel();
    let (go, turn) = std::sync::mpsc::channel();
    let (after, seen) = std::sync::mpsc::channel();
    let other = std::thread::spawn(move || {
        // Its destructor is registered before the library sees the thread, and runs after the library's would.
        LAST.with(|last| {
            *last.borrow_mut() = Some(Last { device, before: 0, at_end, go: turn, after });
            let own = stream::info(device, PER_THREAD).unwrap().id.0;
            last.borrow_mut().as_mut().unwrap().before = own;
        });
    });
    ends.recv().unwrap();
    let begin = || std::thread::spawn(move || stream::info(device, PER_THREAD).unwrap().id.0).join().unwrap();
    begin();
    go.send(()).unwrap();
    let (before, own) = seen.recv().unwrap();
    assert_eq!(before, own);
    other.join().unwrap();
    begin();
    // The legacy one, and the last thread's, which no other has come after.
    assert_eq!(device::info(device).unwrap().live_streams, 2);
}

#[test]
fn a_thread_has_a_default_stream_on_each_device_however_it_goes_from_one_to_another() {
    let pool_of = |device| pool::create(device, &PoolConfig::default()).unwrap();
    let turn = |pool, stream| {
        let block = pool::alloc_async(pool, 4096, stream).unwrap();
        let reason = pool::info(block).unwrap().reason;
        pool::free_async(block, stream).unwrap();
        reason
    };
    let submitted = |device| stream::info(device, PER_THREAD).unwrap().submitted;
    let (stays, mut other) = (open(), open());
    let pool = pool_of(stays);
    for round in 0..40 {
        let second = pool_of(other);
        for (at, turns) in [(pool, 3), (second, 2), (pool, 1)] {
            for turn_number in 0..turns {
                let first =
                    at == second && turn_number == 0 || at == pool && round == 0 && turn_number == 0 && turns == 3;
                assert_eq!(turn(at, PER_THREAD) == pool::Reason::Fresh, first, "round {round}");
            }
        }
        // Another thread's is another, also where it has just used the same devices.
        std::thread::spawn(move || {
            for at in [second, pool, second] {
                turn(at, PER_THREAD);
            }
            assert_eq!((submitted(other), submitted(stays)), (4, 2));
        })
        .join()
        .unwrap();
        assert_eq!((submitted(stays), submitted(other)), (8 * (round + 1), 4));
        pool::check_invariants(pool).unwrap();
        // The next device gets what this one leaves of numbers.
        pool::destroy(second).unwrap();
        device::close(other).unwrap();
        assert_eq!(pool::alloc_async(second, 1, PER_THREAD).unwrap_err().status, Status::Destroyed);
        other = open();
    }
}

#[test]
fn streams_outlive_their_devices_handle_with_any_pool_of_it() {
    let device = open();
    let pool = pool::create(device, &PoolConfig::default()).unwrap();
    let [used, unused] = [(); 2].map(|()| stream::create(device, StreamFlags::default()).unwrap());
    let block = pool::alloc_async(pool, 1000, used).unwrap();
    device::close(device).unwrap();
    for stream in [used, unused] {
        assert_eq!(stream::query(DeviceId(0), stream), Ok(true));
        stream::synchronize(DeviceId(0), stream).unwrap();
    }
    pool::free_async(block, unused).unwrap();
    stream::destroy(unused).unwrap();
    stream::destroy(used).unwrap();
    pool::destroy(pool).unwrap();
    assert_eq!(stream::destroy(used).unwrap_err().status, Status::Destroyed);
}

/// Each has a range of 64 GiB, and there are 2^52 bytes of addresses.
#[test]
fn a_device_has_addresses_for_any_number_of_pools_one_after_the_other() {
    let device = open();
    let own = stream::create(device, StreamFlags::default()).unwrap();
    for round in 0..(1 << 16) + 10 {
        let pool = pool::create(device, &PoolConfig::default()).unwrap();
        let block = pool::alloc_async(pool, 1000, own).unwrap_or_else(|error| panic!("pool {round}: {error}"));
        assert_eq!(pool::find(device, pool::pointer(block)).unwrap(), (block, 0));
        pool::free_async(block, own).unwrap();
        stream::synchronize(device, own).unwrap();
        pool::destroy(pool).unwrap();
        assert_eq!(pool::info(block).unwrap_err().status, Status::Freed);
    }
}

#[test]
fn a_page_that_finds_no_addresses_left_is_out_of_memory_until_one_is_gone() {
    const PAGE: u64 = 2 << 20;
    let device = device::open_model(&ModelOptions { addresses: 4 * PAGE, ..Default::default() }).unwrap();
    let pool =
        pool::create(device, &PoolConfig::with_entries(vec![MemoryPoolConfig::Direct { reclaim_at: None }])).unwrap();
    let blocks = [(); 4].map(|()| pool::alloc(pool, PAGE, &Default::default()).unwrap());
    assert_eq!(pool::alloc(pool, 1, &Default::default()).unwrap_err().status, Status::OutOfMemory);
    pool::check_invariants(pool).unwrap();
    pool::free(blocks[2]).unwrap();
    let again = pool::alloc(pool, PAGE - 512, &Default::default()).unwrap();
    assert_eq!(pool::info(again).unwrap().address, pool::info(blocks[0]).unwrap().address + 2 * PAGE);
    pool::check_invariants(pool).unwrap();
}

#[test]
fn addresses_are_a_multiple_of_the_granularity_up_to_2_to_52() {
    for addresses in [0, 1, (2 << 20) + 4096, 1 << 53, u64::MAX] {
        let opened = device::open_model(&ModelOptions { addresses, ..Default::default() });
        assert_eq!(opened.unwrap_err().status, Status::InvalidValue, "{addresses}");
    }
}
