//! First contact: each path of allocation once, with expectations from `docs/placement.md`.

use smp_core::device::{self, ModelOptions};
use smp_core::pool::{self, Reason};
use smp_core::stream::{self, StreamFlags};
use smp_core::{DeviceId, MemoryPoolConfig, PoolConfig, PoolId, Preset, Status, StreamId, event};

const KIB: u64 = 1024;
const BASE: u64 = 0x53F0_0000_0000_0000;

fn lazy() -> DeviceId {
    device::open_model(&ModelOptions { lazy: true, page_granularity: 4096, ..Default::default() }).unwrap()
}

fn sliced(page_size: u64, cap: Option<u64>) -> PoolConfig {
    PoolConfig::with_entries(vec![MemoryPoolConfig::Sliced {
        page_size,
        max_slice_size: None,
        max_pool_size: cap,
        dealloc_period: None,
    }])
}

fn stream(device: DeviceId) -> StreamId {
    stream::create(device, StreamFlags::default()).unwrap()
}

fn alloc(pool: PoolId, size: u64, stream: StreamId) -> (smp_core::AllocationId, u64, Reason) {
    let id = pool::alloc_async(pool, size, stream).unwrap();
    pool::check_invariants(pool).unwrap();
    let info = pool::info(id).unwrap();
    (id, info.address, info.reason)
}

#[test]
fn the_first_block_starts_at_the_first_model_address_and_the_next_follows_it() {
    let d = lazy();
    let p = pool::create(d, &sliced(64 * KIB, None)).unwrap();
    let s = stream(d);
    let (a, at, reason) = alloc(p, 12, s);
    assert_eq!((at, reason), (BASE, Reason::Fresh));
    let (_, at, reason) = alloc(p, 513, s);
    assert_eq!((at, reason), (BASE + 512, Reason::Fresh));
    pool::free_async(a, s).unwrap();
    pool::check_invariants(p).unwrap();
    assert_eq!(pool::free_async(a, s).unwrap_err().status, Status::Freed);
    let (_, at, reason) = alloc(p, 1, s);
    assert_eq!((at, reason), (BASE, Reason::SameStream));
    let stats = pool::stats(p).unwrap();
    assert_eq!((stats.used, stats.requested, stats.reserved, stats.live), (1536, 514, 64 * KIB, 2));
}

#[test]
fn an_event_after_the_free_makes_the_block_usable_by_policy_1() {
    let d = lazy();
    let p = pool::create(d, &sliced(4 * KIB, None)).unwrap();
    let (s, t) = (stream(d), stream(d));
    let (a, at, _) = alloc(p, 4 * KIB, s);
    stream::submit(d, s, 1).unwrap();
    pool::free_async(a, s).unwrap();
    let e = event::create(d).unwrap();
    event::record(d, e, s).unwrap();
    stream::wait_event(d, t, e).unwrap();
    assert_eq!(alloc(p, 1, t).1, at);
    assert_eq!(pool::stats(p).unwrap().reuse.event, 1);
}

#[test]
fn a_full_pool_makes_the_stream_wait_by_policy_3() {
    let d = lazy();
    let p = pool::create(d, &sliced(4 * KIB, Some(4 * KIB))).unwrap();
    let (s, t) = (stream(d), stream(d));
    let (a, at, _) = alloc(p, 4 * KIB, s);
    pool::free_async(a, s).unwrap();
    let (b, again, reason) = alloc(p, 4 * KIB, t);
    assert_eq!((again, reason), (at, Reason::Internal));
    assert!(!pool::is_ready(b).unwrap());
    assert_eq!(stream::advance(d, t, 9).unwrap(), 0);
    stream::synchronize(d, t).unwrap();
    assert!(pool::is_ready(b).unwrap());
    assert_eq!(stream::info(d, s).unwrap().observed, 2);
    let full = pool::alloc_async(p, 1, s).unwrap_err();
    assert_eq!(full.status, Status::CapacityExceeded);
}

#[test]
fn a_synchronise_gives_the_whole_page_back_in_the_cuda_preset() {
    let d = lazy();
    let p = pool::create(d, &PoolConfig::preset(Preset::Cuda)).unwrap();
    let s = stream(d);
    let (a, ..) = alloc(p, 12, s);
    let (b, ..) = alloc(p, 4096, s);
    pool::free_async(a, s).unwrap();
    pool::free_async(b, s).unwrap();
    assert_eq!(pool::stats(p).unwrap().reserved, 32 << 20);
    stream::synchronize(d, s).unwrap();
    let stats = pool::stats(p).unwrap();
    assert_eq!((stats.reserved, stats.used, stats.pages), (0, 0, 0));
    pool::check_invariants(p).unwrap();
}

#[test]
fn neighbours_freed_on_different_streams_serve_one_span() {
    let d = lazy();
    let p = pool::create(d, &sliced(4 * KIB, Some(4 * KIB))).unwrap();
    let (s, t) = (stream(d), stream(d));
    let (a, at, _) = alloc(p, 2 * KIB, s);
    let (b, ..) = alloc(p, 2 * KIB, t);
    pool::free_async(a, s).unwrap();
    pool::free_async(b, t).unwrap();
    pool::set_attribute(p, 3, 0).unwrap();
    assert_eq!(pool::alloc_async(p, 3 * KIB, s).unwrap_err().status, Status::CapacityExceeded);
    pool::set_attribute(p, 3, 1).unwrap();
    let (c, again, reason) = alloc(p, 3 * KIB, s);
    assert_eq!((again, reason), (at, Reason::Internal));
    assert_eq!(pool::find(d, at + 1000).unwrap(), (c, 1000));
}

#[test]
fn a_destroyed_pool_keeps_its_live_blocks_until_they_are_freed() {
    let d = device::open_model(&ModelOptions::default()).unwrap();
    let p = pool::create(d, &PoolConfig::default()).unwrap();
    let s = stream(d);
    let (a, ..) = alloc(p, 100, s);
    pool::destroy(p).unwrap();
    assert_eq!(pool::alloc_async(p, 1, s).unwrap_err().status, Status::Destroyed);
    assert!(pool::is_ready(a).unwrap());
    pool::free_async(a, s).unwrap();
    assert_eq!(device::info(d).unwrap().reserved, 0);
    assert_eq!(device::info(d).unwrap().pools, 0);
}

#[test]
fn added_users_and_host_ordered_frees_hold_a_block_back() {
    let d = lazy();
    let p = pool::create(d, &sliced(4 * KIB, None)).unwrap();
    let (s, t) = (stream(d), stream(d));
    let (a, at, _) = alloc(p, 4 * KIB, s);
    stream::submit(d, t, 1).unwrap();
    pool::add_user(a, t).unwrap();
    pool::free_async(a, s).unwrap();
    let (b, other, reason) = alloc(p, 4 * KIB, s);
    assert_ne!(other, at);
    assert_eq!(reason, Reason::Fresh);
    stream::synchronize(d, t).unwrap();
    let (_, again, reason) = alloc(p, 4 * KIB, s);
    assert_eq!((again, reason), (at, Reason::SameStream));
    pool::free(b).unwrap();
    pool::check_invariants(p).unwrap();
    device::synchronize(d).unwrap();
    let h = pool::alloc(p, 4 * KIB, &Default::default()).unwrap();
    assert_eq!(pool::info(h).unwrap().address, other);
    assert_eq!(pool::info(h).unwrap().reason, Reason::Observed);
}

#[test]
fn a_destroyed_pool_on_a_closed_device_goes_with_its_last_block_though_no_one_observed_the_free() {
    for order in 0..3 {
        let d = lazy();
        let p = pool::create(d, &PoolConfig::preset(Preset::Cuda)).unwrap();
        let s = stream(d);
        let (a, ..) = alloc(p, 12, s);
        stream::submit(d, s, 1).unwrap();
        match order {
            0 => {
                pool::destroy(p).unwrap();
                device::close(d).unwrap();
                pool::free_async(a, s).unwrap();
            }
            1 => {
                device::close(d).unwrap();
                pool::free_async(a, s).unwrap();
                pool::destroy(p).unwrap();
            }
            _ => {
                pool::free_async(a, s).unwrap();
                pool::destroy(p).unwrap();
                device::close(d).unwrap();
            }
        }
        // With the last page the pool went, with the pool the device, and with the device its streams.
        assert_eq!(stream::query(DeviceId(0), s).unwrap_err().status, Status::Destroyed, "order {order}");
    }
}
