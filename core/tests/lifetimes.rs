//! Streams, and what they belong to, to the end: of the thread whose default stream it is, of the device's handle.

use smp_core::device::{self, ModelOptions};
use smp_core::stream::{self, StreamFlags};
use smp_core::{DeviceId, PoolConfig, Status, StreamId, pool};

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
