//! Faults that other allocators had in the field, each as a test that would show it here. The names of the projects and
//! their reports stand beside the tests.

use smp_core::device::{self, ModelOptions};
use smp_core::pool::{self, AllocOptions, MemoryPoolConfig, PoolConfig, Reason, Stats};
use smp_core::stream::{self, StreamFlags};
use smp_core::{AllocationId, DeviceId, PoolId, Preset, Status, StreamId, event};
use std::collections::HashSet;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

struct Bench {
    device: DeviceId,
    pool: PoolId,
}

impl Bench {
    /// A lazy device of 4 KiB granularity, and a pool with all policies on.
    fn new(entries: Vec<MemoryPoolConfig>) -> Bench {
        Bench::of(&PoolConfig::with_entries(entries))
    }
    fn of(config: &PoolConfig) -> Bench {
        let options = ModelOptions { lazy: true, page_granularity: 4 * KIB, ..Default::default() };
        let device = device::open_model(&options).unwrap();
        Bench { device, pool: pool::create(device, config).unwrap() }
    }
    /// A stream that the legacy stream does not order.
    fn stream(&self) -> StreamId {
        stream::create(self.device, StreamFlags { non_blocking: true, lazy: None }).unwrap()
    }
    fn policies(&self, one: u64, two: u64, three: u64) {
        for (attribute, value) in [(1, one), (2, two), (3, three)] {
            pool::set_attribute(self.pool, attribute, value).unwrap();
        }
    }
    fn try_alloc(&self, size: u64, stream: StreamId) -> Result<(AllocationId, u64, Reason), Status> {
        let answer = pool::alloc_async(self.pool, size, stream).map_err(|error| error.status);
        self.check();
        let id = answer?;
        let info = pool::info(id).unwrap();
        Ok((id, info.address, info.reason))
    }
    fn alloc(&self, size: u64, stream: StreamId) -> (AllocationId, u64, Reason) {
        self.try_alloc(size, stream).unwrap()
    }
    fn free(&self, allocation: AllocationId, stream: StreamId) {
        pool::free_async(allocation, stream).unwrap();
        self.check();
    }
    fn stats(&self) -> Stats {
        pool::stats(self.pool).unwrap()
    }
    fn check(&self) {
        pool::check_invariants(self.pool).unwrap();
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = device::close(self.device);
    }
}

fn sliced(page_size: u64, max_pool_size: Option<u64>) -> MemoryPoolConfig {
    MemoryPoolConfig::Sliced { page_size, max_slice_size: None, max_pool_size, dealloc_period: None }
}

fn exclusive() -> MemoryPoolConfig {
    MemoryPoolConfig::Exclusive { max_alloc_size: u64::MAX, dealloc_period: None }
}

// --- rmm#2489: merging free lists lost the point of one half; the whole was handed out before that half was free

#[test]
fn neighbours_freed_on_different_streams_are_not_reused_before_both_frees_rmm_2489() {
    // Which of the two streams has run, and whether the whole may be had without a wait.
    for (first_ran, second_ran) in [(false, false), (true, false), (false, true), (true, true)] {
        let b = Bench::new(vec![sliced(4 * KIB, Some(4 * KIB))]);
        b.policies(1, 1, 0);
        let (s, t, u) = (b.stream(), b.stream(), b.stream());
        let (left, at, _) = b.alloc(2 * KIB, s);
        let (right, ..) = b.alloc(2 * KIB, t);
        b.free(left, s);
        b.free(right, t);
        for (stream, ran) in [(s, first_ran), (t, second_ran)] {
            if ran {
                assert_eq!(stream::advance(b.device, stream, 9).unwrap(), 2);
            }
        }
        let answer = b.try_alloc(4 * KIB, u).map(|(_, at, reason)| (at, reason));
        let expected =
            if first_ran && second_ran { Ok((at, Reason::Opportunistic)) } else { Err(Status::CapacityExceeded) };
        assert_eq!(answer, expected, "first ran: {first_ran}, second ran: {second_ran}");
    }
}

#[test]
fn an_observed_half_and_a_pending_half_are_reused_together_only_behind_the_pending_one_rmm_2489() {
    let b = Bench::new(vec![sliced(4 * KIB, Some(4 * KIB))]);
    b.policies(1, 1, 0);
    let (s, t, u) = (b.stream(), b.stream(), b.stream());
    let (left, at, _) = b.alloc(2 * KIB, s);
    let (right, ..) = b.alloc(2 * KIB, t);
    b.free(left, s);
    b.free(right, t);
    stream::synchronize(b.device, s).unwrap();
    b.check();
    assert_eq!(b.try_alloc(4 * KIB, u).unwrap_err(), Status::CapacityExceeded);
    let e = event::create(b.device).unwrap();
    event::record(b.device, e, t).unwrap();
    stream::wait_event(b.device, u, e).unwrap();
    let (_, again, reason) = b.alloc(4 * KIB, u);
    assert_eq!((again, reason), (at, Reason::Event));
}

#[test]
fn a_wait_for_a_merged_span_waits_for_both_frees_rmm_2489() {
    let b = Bench::new(vec![sliced(4 * KIB, Some(4 * KIB))]);
    let (s, t, u) = (b.stream(), b.stream(), b.stream());
    let (left, ..) = b.alloc(2 * KIB, s);
    let (right, ..) = b.alloc(2 * KIB, t);
    b.free(left, s);
    b.free(right, t);
    let (whole, _, reason) = b.alloc(4 * KIB, u);
    assert_eq!(reason, Reason::Internal);
    for (stream, ran_before) in [(s, false), (t, true)] {
        assert_eq!(stream::advance(b.device, u, 9).unwrap(), 0);
        assert_eq!(stream::query(b.device, s).unwrap(), ran_before);
        assert_eq!(stream::advance(b.device, stream, 9).unwrap(), 2);
    }
    assert_eq!(stream::advance(b.device, u, 9).unwrap(), 2);
    assert!(pool::is_ready(whole).unwrap());
}

#[test]
fn merging_one_streams_frees_keeps_the_later_point_rmm_2489() {
    let b = Bench::new(vec![sliced(4 * KIB, Some(4 * KIB))]);
    b.policies(1, 1, 0);
    let (s, u) = (b.stream(), b.stream());
    let (left, ..) = b.alloc(2 * KIB, s);
    let (right, ..) = b.alloc(2 * KIB, s);
    // The later free is the left one once, the right one once.
    b.free(right, s);
    stream::submit(b.device, s, 1).unwrap();
    b.free(left, s);
    assert_eq!(stream::advance(b.device, s, 4).unwrap(), 4);
    assert_eq!(b.try_alloc(512, u).unwrap_err(), Status::CapacityExceeded);
    assert_eq!(stream::advance(b.device, s, 1).unwrap(), 1);
    assert_eq!(b.alloc(512, u).2, Reason::Opportunistic);
}

// --- cub#329: a block freed twice was in the free list twice and went to two owners

#[test]
fn a_double_free_is_refused_and_the_block_goes_to_one_owner_cub_329() {
    for entry in [sliced(64 * KIB, None), exclusive(), MemoryPoolConfig::Direct { reclaim_at: None }] {
        let b = Bench::new(vec![entry]);
        let (s, t) = (b.stream(), b.stream());
        let (a, at, _) = b.alloc(KIB, s);
        b.free(a, s);
        let before = b.stats();
        assert_eq!(pool::free_async(a, s).unwrap_err().status, Status::Freed);
        assert_eq!(pool::free_async(a, t).unwrap_err().status, Status::Freed);
        assert_eq!(pool::free(a).unwrap_err().status, Status::Freed);
        assert_eq!(b.stats(), before);
        assert_eq!(stream::info(b.device, s).unwrap().submitted, 2);
        let owners: Vec<u64> = (0..8).map(|_| b.alloc(KIB, s).1).collect();
        assert_eq!(owners[0], at);
        assert_eq!(owners.iter().collect::<HashSet<_>>().len(), owners.len(), "two owners of one block: {owners:x?}");
    }
}

#[test]
fn a_stale_handle_does_not_free_the_blocks_next_owner_cub_329() {
    let b = Bench::new(vec![sliced(4 * KIB, None)]);
    let s = b.stream();
    let (first, at, _) = b.alloc(KIB, s);
    b.free(first, s);
    let (second, again, _) = b.alloc(KIB, s);
    assert_eq!(at, again);
    assert_eq!(pool::free_async(first, s).unwrap_err().status, Status::Freed);
    assert_eq!(pool::free(first).unwrap_err().status, Status::Freed);
    assert_eq!(pool::add_user(first, s).unwrap_err().status, Status::Freed);
    assert!(!pool::is_ready(second).unwrap());
    assert_eq!(b.stats().live, 1);
    assert_ne!(b.alloc(KIB, s).1, again);
}

// --- rmm#1957: a pool with a maximum failed before it held that maximum

#[test]
fn a_capped_pool_reaches_its_cap_rmm_1957() {
    for (pages, extra) in [(1, 0), (3, 0), (3, 4 * KIB - 1), (7, 1)] {
        let cap = pages * 4 * KIB + extra;
        let b = Bench::new(vec![sliced(4 * KIB, Some(cap))]);
        let s = b.stream();
        for _ in 0..pages * 8 {
            b.alloc(512, s);
        }
        let stats = b.stats();
        assert_eq!((stats.used, stats.reserved), (pages * 4 * KIB, pages * 4 * KIB), "cap {cap}");
        assert_eq!(b.try_alloc(1, s).unwrap_err(), Status::CapacityExceeded);
        // What failed was not asked of the device.
        assert_eq!(b.stats().device_calls, pages);
    }
}

#[test]
fn a_page_that_went_back_gives_its_quota_back_rmm_1957() {
    let b = Bench::new(vec![sliced(4 * KIB, Some(8 * KIB))]);
    let s = b.stream();
    for _ in 0..5 {
        let blocks = [b.alloc(4 * KIB, s).0, b.alloc(4 * KIB, s).0];
        assert_eq!(b.try_alloc(1, s).unwrap_err(), Status::CapacityExceeded);
        blocks.into_iter().for_each(|block| b.free(block, s));
        stream::synchronize(b.device, s).unwrap();
        pool::trim_to(b.pool, 0).unwrap();
        assert_eq!(b.stats().reserved, 0);
    }
}

#[test]
fn a_refused_page_does_not_use_up_the_cap_rmm_1957() {
    let b = Bench::new(vec![sliced(4 * KIB, Some(4 * KIB))]);
    let s = b.stream();
    for _ in 0..3 {
        device::refuse_pages(b.device, 0, 1).unwrap();
        assert_eq!(b.try_alloc(1, s).unwrap_err(), Status::OutOfMemory);
    }
    assert_eq!(b.alloc(4 * KIB, s).2, Reason::Fresh);
}

// --- a tiny request that takes a whole big free block

#[test]
fn a_tiny_request_never_occupies_a_whole_big_block_of_a_sliced_entry() {
    let b = Bench::new(vec![sliced(64 * KIB, Some(64 * KIB))]);
    let (s, t) = (b.stream(), b.stream());
    let e = event::create(b.device).unwrap();
    // By every reason: own, by event, executed, observed, by waiting.
    for reason in [Reason::SameStream, Reason::Event, Reason::Opportunistic, Reason::Observed, Reason::Internal] {
        let (big, at, _) = b.alloc(64 * KIB, s);
        b.free(big, s);
        let taker = if reason == Reason::SameStream { s } else { t };
        match reason {
            Reason::Event => {
                event::record(b.device, e, s).unwrap();
                stream::wait_event(b.device, t, e).unwrap();
            }
            Reason::Opportunistic => assert!(stream::advance(b.device, s, 99).unwrap() > 0),
            Reason::Observed => stream::synchronize(b.device, s).unwrap(),
            _ => {}
        }
        let (tiny, again, why) = b.alloc(1, taker);
        assert_eq!((again, why, pool::info(tiny).unwrap().block_size), (at, reason, 512));
        let stats = b.stats();
        assert_eq!((stats.used, stats.reserved, stats.largest_free), (512, 64 * KIB, 64 * KIB - 512));
        b.free(tiny, taker);
        device::synchronize(b.device).unwrap();
    }
}

#[test]
fn the_rest_of_a_cut_block_serves_at_once() {
    let b = Bench::new(vec![sliced(64 * KIB, Some(64 * KIB))]);
    let s = b.stream();
    let (big, at, _) = b.alloc(64 * KIB, s);
    b.free(big, s);
    b.alloc(1, s);
    let (_, rest, reason) = b.alloc(64 * KIB - 512, s);
    assert_eq!((rest, reason), (at + 512, Reason::SameStream));
}

// --- pytorch#189504: whether a request fits depended on the order in which its memory had been freed

/// Every order of four things.
fn orders() -> Vec<[usize; 4]> {
    let mut all = Vec::new();
    for code in 0..256 {
        let order = [code & 3, code >> 2 & 3, code >> 4 & 3, code >> 6 & 3];
        if order.iter().collect::<HashSet<_>>().len() == 4 {
            all.push(order);
        }
    }
    all
}

#[test]
fn a_request_that_fits_is_served_whatever_the_order_of_the_frees_pytorch_189504() {
    assert_eq!(orders().len(), 24);
    for order in orders() {
        // The frees go to streams in turn; what allows the reuse differs.
        for allowed_by in [Reason::Observed, Reason::Event, Reason::Opportunistic, Reason::Internal] {
            let b = Bench::new(vec![sliced(4 * KIB, Some(4 * KIB))]);
            let (streams, u) = ([b.stream(), b.stream(), b.stream()], b.stream());
            let blocks: Vec<_> = (0..4).map(|_| b.alloc(KIB, streams[0]).0).collect();
            for (turn, &which) in order.iter().enumerate() {
                b.free(blocks[which], streams[turn % 3]);
            }
            for stream in streams {
                match allowed_by {
                    Reason::Observed => stream::synchronize(b.device, stream).unwrap(),
                    Reason::Event => {
                        let e = event::create(b.device).unwrap();
                        event::record(b.device, e, stream).unwrap();
                        stream::wait_event(b.device, u, e).unwrap();
                    }
                    Reason::Opportunistic => assert!(stream::advance(b.device, stream, 99).unwrap() > 0),
                    _ => {}
                }
            }
            b.check();
            let answer = b.try_alloc(4 * KIB, u).map(|(.., reason)| reason);
            assert_eq!(answer, Ok(allowed_by), "frees in the order {order:?}");
        }
    }
}

#[test]
fn memory_freed_in_any_order_comes_together_again_once_it_is_observed_pytorch_189504() {
    for order in orders() {
        let b = Bench::new(vec![sliced(4 * KIB, None)]);
        let (s, t) = (b.stream(), b.stream());
        let blocks: Vec<_> = (0..4).map(|_| b.alloc(KIB, s).0).collect();
        for (turn, &which) in order.iter().enumerate() {
            b.free(blocks[which], if turn % 2 == 0 { s } else { t });
            stream::synchronize(b.device, if turn % 2 == 0 { s } else { t }).unwrap();
            b.check();
        }
        let stats = b.stats();
        assert_eq!((stats.largest_free, stats.pending), (4 * KIB, 0), "frees in the order {order:?}");
        pool::trim_to(b.pool, 0).unwrap();
        assert_eq!(b.stats().reserved, 0);
    }
}

#[test]
fn no_block_that_fits_is_passed_over_because_of_its_size_class() {
    // A hole of each size, a request of exactly that size: the hole serves it.
    for units in 1..=40 {
        let b = Bench::new(vec![sliced(64 * KIB, Some(64 * KIB))]);
        let s = b.stream();
        let (hole, at, _) = b.alloc(units * 512, s);
        b.alloc(64 * KIB - units * 512, s);
        b.free(hole, s);
        let (_, again, reason) = b.alloc(units * 512, s);
        assert_eq!((again, reason), (at, Reason::SameStream), "{units} units");
    }
}

// --- rmm#2404: a statistic went below zero and became a huge number

#[test]
fn figures_never_underflow_rmm_2404() {
    for config in [
        PoolConfig::with_entries(vec![sliced(16 * KIB, None), exclusive()]),
        PoolConfig::with_entries(vec![MemoryPoolConfig::Direct { reclaim_at: Some(8 * KIB) }]),
        PoolConfig::preset(Preset::Cuda),
    ] {
        let b = Bench::of(&config);
        let (s, t) = (b.stream(), b.stream());
        let sane = || {
            let all =
                [vec![b.stats()], (0..config.entries.len()).map(|e| pool::entry_stats(b.pool, e).unwrap()).collect()];
            for stats in all.into_iter().flatten() {
                assert!(stats.requested <= stats.used && stats.used <= stats.reserved, "{stats:?}");
                assert_eq!(stats.padding, stats.used - stats.requested);
                assert_eq!(stats.live, stats.allocs - stats.frees);
                assert_eq!(stats.pages, stats.page_allocs - stats.page_frees);
                assert!(stats.used <= stats.used_high && stats.reserved <= stats.reserved_high, "{stats:?}");
                assert!(stats.pending_bytes <= stats.reserved - stats.used, "{stats:?}");
                assert!(stats.reserved_high < 1 << 40, "{stats:?}");
            }
        };
        // Frees on another stream than the allocation's, in host order, after a mark was reset, after a trim.
        for round in 0..8 {
            let blocks: Vec<_> = (0..6).map(|n| b.alloc(n * 700, s).0).collect();
            sane();
            pool::set_attribute(b.pool, if round % 2 == 0 { 6 } else { 8 }, 0).unwrap();
            for (n, block) in blocks.into_iter().enumerate() {
                match n % 3 {
                    0 => b.free(block, s),
                    1 => b.free(block, t),
                    _ => pool::free(block).unwrap(),
                }
                sane();
            }
            pool::set_attribute(b.pool, 8, 0).unwrap();
            device::synchronize(b.device).unwrap();
            sane();
            pool::trim_to(b.pool, 0).unwrap();
            sane();
        }
        let stats = b.stats();
        assert_eq!((stats.used, stats.requested, stats.live, stats.reserved, stats.pending_bytes), (0, 0, 0, 0, 0));
    }
}

// --- sizes that overflow when they are rounded (a wrapped size gives a tiny block to a huge request)

#[test]
fn sizes_that_overflow_when_rounded_fail_and_change_nothing() {
    for (entry, status) in [
        (exclusive(), Status::OutOfMemory),
        (MemoryPoolConfig::Direct { reclaim_at: None }, Status::OutOfMemory),
        (MemoryPoolConfig::Cuda { max_pool_size: None }, Status::OutOfMemory),
        (sliced(4 * KIB, None), Status::SizeNotAccepted),
    ] {
        let b = Bench::new(vec![entry]);
        let s = b.stream();
        b.alloc(1, s);
        let before = b.stats();
        let sizes = [u64::MAX, u64::MAX - 510, u64::MAX - 511, u64::MAX - 512, 1 << 63, 1 << 48, (1 << 47) + 1];
        for (failures, size) in sizes.into_iter().enumerate() {
            assert_eq!(b.try_alloc(size, s).unwrap_err(), status, "{size} bytes");
            let aligned = AllocOptions { alignment: 4 * KIB, name: None };
            assert_eq!(pool::alloc(b.pool, size, &aligned).unwrap_err().status, status, "{size} bytes");
            let failures = failures as u64 * 2 + 2;
            assert_eq!(b.stats(), Stats { failures, ..before });
        }
        assert_eq!(stream::info(b.device, s).unwrap().submitted, 1);
    }
}

#[test]
fn an_alignment_that_makes_the_size_overflow_fails() {
    let b = Bench::new(vec![exclusive()]);
    let s = b.stream();
    let aligned = AllocOptions { alignment: 4 * KIB, name: None };
    // 2^47 by itself is the most there is; with the padding for the alignment it is too much.
    let error = pool::alloc_async_with(b.pool, 1 << 47, s, &aligned).unwrap_err();
    assert_eq!(error.status, Status::OutOfMemory);
    assert_eq!(b.stats().page_refusals, 0);
}

#[test]
fn a_page_size_that_overflows_is_refused_at_creation() {
    let b = Bench::new(vec![exclusive()]);
    for entry in [
        sliced(u64::MAX, None),
        sliced(u64::MAX - 511, None),
        MemoryPoolConfig::Exclusive { max_alloc_size: u64::MAX - 1, dealloc_period: None },
        MemoryPoolConfig::Cuda { max_pool_size: Some(u64::MAX) },
    ] {
        let error = pool::create(b.device, &PoolConfig::with_entries(vec![entry.clone()])).unwrap_err();
        assert_eq!(error.status, Status::InvalidConfig, "{entry:?}");
        assert!(error.message.starts_with("entries[0]."), "{}", error.message);
    }
}

// --- cupy#5177, rmm#1245, executorch#22312: memory to spare that nobody gets

#[test]
fn fragments_of_many_streams_serve_a_large_request_after_one_synchronise_rmm_1245() {
    let b = Bench::new(vec![sliced(64 * KIB, Some(64 * KIB))]);
    let streams: Vec<_> = (0..16).map(|_| b.stream()).collect();
    let blocks: Vec<_> = (0..128).map(|n| (b.alloc(512, streams[n % 16]).0, streams[n % 16])).collect();
    blocks.iter().for_each(|&(block, stream)| b.free(block, stream));
    b.policies(0, 0, 0);
    assert_eq!(b.try_alloc(64 * KIB, streams[0]).unwrap_err(), Status::CapacityExceeded);
    device::synchronize(b.device).unwrap();
    assert_eq!(b.alloc(64 * KIB, streams[0]).2, Reason::Observed);
}

#[test]
fn a_pending_free_goes_back_after_one_synchronise_and_not_before_executorch_22312() {
    let b = Bench::of(&PoolConfig::preset(Preset::Cuda));
    pool::set_attribute(b.pool, 4, u64::MAX).unwrap();
    let s = b.stream();
    let (a, ..) = b.alloc(256 * MIB, s);
    b.free(a, s);
    pool::trim_to(b.pool, 0).unwrap();
    assert_eq!(b.stats().reserved, 256 * MIB);
    stream::synchronize(b.device, s).unwrap();
    pool::trim_to(b.pool, 0).unwrap();
    assert_eq!(b.stats().reserved, 0);
}

// --- rmm#993: reuse of a block whose free had been submitted, but had not run

#[test]
fn a_free_that_has_not_run_is_not_reused_on_another_stream_without_an_order_rmm_993() {
    let b = Bench::new(vec![sliced(4 * KIB, None)]);
    let (s, t) = (b.stream(), b.stream());
    let (a, at, _) = b.alloc(4 * KIB, s);
    stream::submit(b.device, s, 5).unwrap();
    b.free(a, s);
    // Everything before the free has run, the free itself has not.
    assert_eq!(stream::advance(b.device, s, 6).unwrap(), 6);
    let (_, other, reason) = b.alloc(4 * KIB, t);
    assert_ne!(other, at);
    assert_eq!(reason, Reason::Fresh);
    assert_eq!(stream::advance(b.device, s, 1).unwrap(), 1);
    let (_, again, reason) = b.alloc(4 * KIB, t);
    assert_eq!((again, reason), (at, Reason::Opportunistic));
}

// --- a destroyed stream's number reused: its order must not pass to the new stream

#[test]
fn a_new_stream_does_not_inherit_a_destroyed_streams_order() {
    let b = Bench::new(vec![sliced(4 * KIB, None)]);
    b.policies(1, 0, 0);
    let s = b.stream();
    let (a, at, _) = b.alloc(4 * KIB, s);
    b.free(a, s);
    stream::destroy(s).unwrap();
    let t = b.stream();
    let (_, other, reason) = b.alloc(4 * KIB, t);
    assert_ne!(other, at);
    assert_eq!(reason, Reason::Fresh);
    assert_eq!(stream::submit(b.device, s, 1).unwrap_err().status, Status::Destroyed);
}
