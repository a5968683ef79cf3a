//! The judge judged: what `docs/placement.md` says, worked out by hand, checked on the reference model.

use smp_reference::{Config, Device, Entry, Failure, Options, OutOfMemory, Point, Reason};
use std::cell::RefCell;
use std::rc::Rc;

const BASE: u64 = 0x53F0_0000_0000_0000;
const MIB: u64 = 1 << 20;

fn device(lazy: bool) -> Device {
    Device::new(Options { alignment: 512, granularity: 4096, capacity: u64::MAX, lazy, addresses: 1 << 52 })
}

fn of(entries: Vec<Entry>) -> Config {
    Config { entries, policy_1: true, policy_2: true, policy_3: true, release_threshold: u64::MAX, sync_on_oom: false }
}

fn sliced(page_size: u64, max_pool_size: Option<u64>) -> Entry {
    Entry::Sliced { page_size, max_slice_size: None, max_pool_size, dealloc_period: None }
}

fn exclusive(max_alloc_size: u64) -> Entry {
    Entry::Exclusive { max_alloc_size, dealloc_period: None }
}

/// A lazy device with one pool and two blocking streams, 1 and 2.
fn one(entries: Vec<Entry>) -> (Device, usize) {
    let mut d = device(true);
    let pool = d.create_pool(&of(entries)).unwrap();
    d.create_stream(false, None);
    d.create_stream(false, None);
    (d, pool)
}

/// An allocation: its position, its address above the first one, its reason.
fn alloc(d: &mut Device, pool: usize, size: u64, stream: usize) -> (usize, u64, Reason) {
    let a = d.alloc(pool, size, Some(stream), 0).unwrap();
    let info = d.allocation(a).unwrap();
    (a, info.block_address - BASE, info.reason)
}

fn only(d: &mut Device, pool: usize, policy: u32) {
    for attribute in 1..=3 {
        d.set_attribute(pool, attribute, u64::from(attribute == policy)).unwrap();
    }
}

// --- §1, §2, §3: operations and order

#[test]
fn every_submitting_call_takes_one_number_and_a_failing_one_none() {
    let (mut d, pool) = one(vec![sliced(4096, Some(4096))]);
    let event = d.create_event();
    assert_eq!(d.submit(1, 3).unwrap(), 3);
    let (a, ..) = alloc(&mut d, pool, 4096, 1);
    assert_eq!(d.allocation(a).unwrap().ready_seq, 4);
    assert_eq!(d.alloc(pool, 1, Some(1), 0), Err(Failure::CapacityExceeded));
    d.wait(1, event).unwrap();
    assert_eq!(d.record(event, 1).unwrap(), Point { stream: 1, seq: 6 });
    d.free(a, Some(1)).unwrap();
    assert_eq!(d.free(a, Some(1)), Err(Failure::Freed));
    assert_eq!(d.stream_figures(1).unwrap().submitted, 7);
}

#[test]
fn a_host_ordered_pair_takes_no_number() {
    let (mut d, pool) = one(vec![sliced(4096, None)]);
    let a = d.alloc(pool, 1, None, 0).unwrap();
    d.free(a, None).unwrap();
    assert_eq!((0..3).map(|s| d.stream_figures(s).unwrap().submitted).sum::<u64>(), 0);
}

#[test]
fn a_wait_orders_what_comes_after_it_behind_the_event() {
    let (mut d, pool) = one(vec![sliced(4096, None)]);
    let event = d.create_event();
    let (a, ..) = alloc(&mut d, pool, 1, 1);
    assert!(!d.is_ready_on(a, 2).unwrap());
    d.record(event, 1).unwrap();
    assert!(!d.is_ready_on(a, 2).unwrap());
    d.wait(2, event).unwrap();
    assert!(d.is_ready_on(a, 2).unwrap());
    // The operation is ordered, but has not run.
    assert!(!d.is_ready(a).unwrap());
    assert_eq!(d.advance(2, 9).unwrap(), 0);
    assert_eq!(d.advance(1, 9).unwrap(), 2);
    assert_eq!(d.advance(2, 9).unwrap(), 1);
}

#[test]
fn an_event_recorded_before_the_allocation_orders_nothing() {
    let (mut d, pool) = one(vec![sliced(4096, None)]);
    let event = d.create_event();
    d.record(event, 1).unwrap();
    let (a, ..) = alloc(&mut d, pool, 1, 1);
    d.wait(2, event).unwrap();
    assert!(!d.is_ready_on(a, 2).unwrap());
}

#[test]
fn recording_again_leaves_waits_made_before_alone() {
    let (mut d, _) = one(vec![sliced(4096, None)]);
    let event = d.create_event();
    d.record(event, 1).unwrap();
    d.wait(2, event).unwrap();
    d.record(event, 1).unwrap();
    assert_eq!(d.advance(1, 1).unwrap(), 1);
    assert_eq!(d.advance(2, 1).unwrap(), 1);
    assert!(!d.query_event(event).unwrap());
}

#[test]
fn a_barrier_waits_for_the_blocking_streams_and_holds_them_back() {
    let mut d = device(true);
    let (blocking, free) = (d.create_stream(false, None), d.create_stream(true, None));
    d.submit(blocking, 1).unwrap();
    d.submit(free, 1).unwrap();
    d.submit(0, 1).unwrap();
    d.submit(blocking, 1).unwrap();
    d.submit(free, 1).unwrap();
    assert_eq!(d.advance(0, 1).unwrap(), 0);
    assert_eq!(d.advance(blocking, 9).unwrap(), 1);
    assert_eq!(d.advance(free, 9).unwrap(), 2);
    assert_eq!(d.advance(0, 1).unwrap(), 1);
    assert_eq!(d.advance(blocking, 9).unwrap(), 1);
}

#[test]
fn an_allocation_on_the_legacy_stream_is_no_barrier_but_work_there_would_be_one() {
    let (mut d, pool) = one(vec![sliced(8192, None)]);
    let (a, ..) = alloc(&mut d, pool, 1, 1);
    let (b, ..) = alloc(&mut d, pool, 1, 0);
    assert!(!d.is_ready_on(b, 1).unwrap());
    // Work submitted now on the legacy stream follows every blocking stream.
    assert!(d.is_ready_on(a, 0).unwrap());
    assert!(!d.is_ready_on(a, 2).unwrap());
    d.submit(0, 1).unwrap();
    assert!(d.is_ready_on(a, 2).unwrap());
    assert!(d.is_ready_on(b, 1).unwrap());
}

#[test]
fn a_synchronise_runs_and_observes_what_the_stream_depends_on_and_no_more() {
    let (mut d, _) = one(vec![sliced(4096, None)]);
    let event = d.create_event();
    d.submit(1, 1).unwrap();
    d.record(event, 1).unwrap();
    d.submit(1, 5).unwrap();
    d.wait(2, event).unwrap();
    d.synchronise_stream(2).unwrap();
    let one = d.stream_figures(1).unwrap();
    assert_eq!((one.submitted, one.executed, one.observed), (7, 2, 2));
    assert_eq!(d.stream_figures(2).unwrap().observed, 1);
}

#[test]
fn a_barrier_that_nothing_on_the_stream_depends_on_yet_is_not_synchronised_with_it() {
    let mut d = device(true);
    let s = d.create_stream(false, None);
    d.submit(s, 1).unwrap();
    d.submit(0, 1).unwrap();
    d.synchronise_stream(s).unwrap();
    assert_eq!(d.stream_figures(0).unwrap().executed, 0);
}

#[test]
fn a_query_makes_nothing_observed() {
    let mut d = device(false);
    let s = d.create_stream(false, None);
    d.submit(s, 2).unwrap();
    assert!(d.query_stream(s).unwrap());
    let figures = d.stream_figures(s).unwrap();
    assert_eq!((figures.executed, figures.observed), (2, 0));
}

#[test]
fn an_eager_stream_goes_on_when_what_it_waits_for_runs() {
    let mut d = device(true);
    let (lazy, eager) = (d.create_stream(true, None), d.create_stream(true, Some(false)));
    let event = d.create_event();
    d.record(event, lazy).unwrap();
    d.wait(eager, event).unwrap();
    d.submit(eager, 1).unwrap();
    assert_eq!(d.stream_figures(eager).unwrap().executed, 0);
    d.advance(lazy, 1).unwrap();
    assert_eq!(d.stream_figures(eager).unwrap().executed, 2);
}

// --- §4: sizes

#[test]
fn sizes_are_rounded_up_and_zero_takes_one_unit() {
    let (mut d, pool) = one(vec![sliced(4096, None)]);
    for (size, block) in [(0, 512), (1, 512), (512, 512), (513, 1024)] {
        let (a, ..) = alloc(&mut d, pool, size, 1);
        assert_eq!(d.allocation(a).unwrap().block_size, block);
        assert_eq!(d.allocation(a).unwrap().requested, size);
    }
    let (figures, _) = d.figures(pool).unwrap();
    assert_eq!((figures.used, figures.requested, figures.padding, figures.reserved), (2560, 1026, 1534, 4096));
}

#[test]
fn acceptance_is_judged_on_the_requested_size() {
    let (mut d, pool) = one(vec![
        exclusive(0),
        Entry::Sliced { page_size: 4096, max_slice_size: Some(1000), max_pool_size: None, dealloc_period: None },
        exclusive(5000),
    ]);
    // 1000 is rounded to 1024 at creation, 5000 to 5120; 0 stays 0.
    for (size, entry) in [(0, 0), (1, 1), (1024, 1), (1025, 2), (5120, 2)] {
        let (a, ..) = alloc(&mut d, pool, size, 1);
        assert_eq!(d.allocation(a).unwrap().entry, entry, "{size} bytes");
    }
    assert_eq!(d.alloc(pool, 5121, Some(1), 0), Err(Failure::SizeNotAccepted));
}

#[test]
fn a_need_above_2_to_47_is_out_of_memory_where_an_entry_accepts_it() {
    let (mut d, pool) = one(vec![Entry::Direct { reclaim_at: None }]);
    for size in [(1 << 47) + 1, u64::MAX - 511, u64::MAX] {
        assert_eq!(d.alloc(pool, size, Some(1), 0), Err(Failure::OutOfMemory));
    }
    let (mut d, pool) = one(vec![sliced(4096, None)]);
    assert_eq!(d.alloc(pool, u64::MAX, Some(1), 0), Err(Failure::SizeNotAccepted));
}

#[test]
fn a_larger_alignment_grows_the_need_and_rounds_the_address_up() {
    let (mut d, pool) = one(vec![sliced(8192, None)]);
    alloc(&mut d, pool, 512, 1);
    let a = d.alloc(pool, 512, Some(1), 2048).unwrap();
    let info = d.allocation(a).unwrap();
    // 512 + (2048 - 512) = 2048 bytes from 512 on; the first multiple of 2048 is 2048.
    assert_eq!((info.block_address - BASE, info.block_size, info.address - BASE), (512, 2048, 2048));
    assert_eq!(d.alloc(pool, 1, Some(1), 8192), Err(Failure::InvalidValue));
    assert_eq!(d.alloc(pool, 1, Some(1), 3), Err(Failure::InvalidValue));
}

#[test]
fn pages_follow_one_another_at_multiples_of_the_granularity() {
    let (mut d, pool) = one(vec![Entry::Direct { reclaim_at: None }]);
    let at: Vec<u64> = [512, 5000, 1].iter().map(|&size| alloc(&mut d, pool, size, 1).1).collect();
    assert_eq!(at, [0, 4096, 12288]);
    let (figures, _) = d.figures(pool).unwrap();
    assert_eq!((figures.used, figures.reserved), (512 + 5120 + 512, 16384));
}

#[test]
fn addresses_of_what_is_gone_are_given_out_when_there_are_no_others_the_lowest_with_room() {
    let options = Options { alignment: 512, granularity: 4096, capacity: u64::MAX, lazy: true, addresses: 16 * 4096 };
    let mut d = Device::new(options);
    let pool = d.create_pool(&of(vec![Entry::Direct { reclaim_at: None }])).unwrap();
    d.create_stream(false, None);
    let pages = |units: u64| units * 4096;
    let blocks: Vec<_> = [3, 1, 4, 1, 5].iter().map(|&units| alloc(&mut d, pool, pages(units), 1)).collect();
    assert_eq!(blocks.iter().map(|&(_, at, _)| at / 4096).collect::<Vec<_>>(), [0, 3, 4, 8, 9]);
    // Gone: the second and the last page. Two new ones are left.
    [1, 4].iter().for_each(|&gone: &usize| d.free(blocks[gone].0, Some(1)).unwrap());
    d.synchronise_stream(1).unwrap();
    d.trim_to(pool, 0).unwrap();
    let at = |d: &mut Device, units: u64| alloc(d, pool, pages(units), 1).1 / 4096;
    assert_eq!([1, 2, 1, 1].map(|units| at(&mut d, units)), [14, 9, 15, 3]);
    let refusals = d.figures(pool).unwrap().0.page_refusals;
    assert_eq!(d.alloc(pool, pages(4), Some(1), 0).unwrap_err(), Failure::OutOfMemory);
    assert_eq!(d.figures(pool).unwrap().0.page_refusals, refusals);
    assert_eq!(at(&mut d, 3), 11);
}

// --- §5, §6: reuse

#[test]
fn the_streams_own_free_comes_before_an_observed_one() {
    let (mut d, pool) = one(vec![sliced(4096, None)]);
    let (a, ..) = alloc(&mut d, pool, 1024, 1);
    let (b, ..) = alloc(&mut d, pool, 1024, 1);
    let (c, ..) = alloc(&mut d, pool, 512, 1);
    let _ = alloc(&mut d, pool, 1536, 1);
    d.free(a, Some(2)).unwrap();
    d.synchronise_stream(2).unwrap();
    d.free(c, Some(2)).unwrap();
    d.free(b, Some(1)).unwrap();
    assert_eq!(alloc(&mut d, pool, 512, 1).1, 1024);
    // The rest of it is still the stream's own; then the observed one.
    let (_, at, reason) = alloc(&mut d, pool, 512, 1);
    assert_eq!((at, reason), (1536, Reason::SameStream));
    let (_, at, reason) = alloc(&mut d, pool, 512, 1);
    assert_eq!((at, reason), (0, Reason::Observed));
}

#[test]
fn the_smallest_block_that_fits_then_the_lowest_address() {
    let (mut d, pool) = one(vec![sliced(8192, None)]);
    let sizes = [2048, 512, 1024, 512, 1024, 512];
    let blocks: Vec<usize> = sizes.iter().map(|&size| alloc(&mut d, pool, size, 1).0).collect();
    for at in [4, 2, 0] {
        d.free(blocks[at], Some(1)).unwrap();
    }
    assert_eq!(alloc(&mut d, pool, 600, 1).1, 2560);
    assert_eq!(alloc(&mut d, pool, 600, 1).1, 4096);
    assert_eq!(alloc(&mut d, pool, 600, 1).1, 0);
}

#[test]
fn a_stream_takes_back_the_block_it_freed_last_where_the_size_is_the_same() {
    let (mut d, pool) = one(vec![sliced(8192, None)]);
    let blocks: Vec<usize> = [1024; 3].iter().map(|&size| alloc(&mut d, pool, size, 1).0).collect();
    d.free(blocks[0], Some(1)).unwrap();
    d.free(blocks[2], Some(1)).unwrap();
    // Block 0 lies lower, and another stream frees in between.
    let (other, ..) = alloc(&mut d, pool, 1024, 2);
    d.free(other, Some(2)).unwrap();
    let (_, at, reason) = alloc(&mut d, pool, 600, 1);
    assert_eq!((at, reason), (2048, Reason::SameStream));
    assert_eq!(alloc(&mut d, pool, 600, 1).1, 0);
}

#[test]
fn what_a_stream_freed_merges_before_it_takes_more_than_each_of_them() {
    let (mut d, pool) = one(vec![sliced(8192, None)]);
    let (a, ..) = alloc(&mut d, pool, 1024, 1);
    let (b, ..) = alloc(&mut d, pool, 1024, 1);
    let _ = alloc(&mut d, pool, 512, 1);
    d.free(a, Some(1)).unwrap();
    d.free(b, Some(1)).unwrap();
    assert_eq!(d.figures(pool).unwrap().0.merges, 0);
    assert_eq!(alloc(&mut d, pool, 2048, 1).1, 0);
    assert_eq!(d.figures(pool).unwrap().0.merges, 1);
}

fn merges(d: &Device, pool: usize) -> u64 {
    d.figures(pool).unwrap().0.merges
}

#[test]
fn every_recent_block_serves_its_size_the_last_freed_first() {
    let (mut d, pool) = one(vec![sliced(8192, None)]);
    let blocks = [1024, 2048, 1024, 512].map(|size| alloc(&mut d, pool, size, 1).0);
    for block in &blocks[..3] {
        d.free(*block, Some(1)).unwrap();
    }
    let taken = [2048, 1024, 1024].map(|size| alloc(&mut d, pool, size, 1).1);
    assert_eq!(taken, [1024, 3072, 0]);
    assert_eq!(merges(&d, pool), 0);
}

#[test]
fn one_of_exactly_the_size_that_is_not_recent_lets_larger_recent_ones_be() {
    let (mut d, pool) = one(vec![sliced(8192, None)]);
    let [a, _, b, c, _] = [1024, 512, 2048, 1024, 512].map(|size| alloc(&mut d, pool, size, 1).0);
    d.free(a, Some(1)).unwrap();
    // It gives way and is cut; its rest is not recent.
    assert_eq!(alloc(&mut d, pool, 512, 1).1, 0);
    d.free(b, Some(1)).unwrap();
    d.free(c, Some(1)).unwrap();
    assert_eq!((alloc(&mut d, pool, 512, 1).1, merges(&d, pool)), (512, 0));
    assert_eq!((alloc(&mut d, pool, 3072, 1).1, merges(&d, pool)), (1536, 1));
}

#[test]
fn smaller_recent_blocks_stay_until_no_other_serves() {
    let (mut d, pool) = one(vec![sliced(8192, Some(8192))]);
    let [a, b, _, c, _] = [1024, 512, 512, 4096, 2048].map(|size| alloc(&mut d, pool, size, 1).0);
    for block in [a, b, c] {
        d.free(block, Some(1)).unwrap();
    }
    assert_eq!((alloc(&mut d, pool, 2048, 1).1, merges(&d, pool)), (2048, 0));
    assert_eq!((alloc(&mut d, pool, 2048, 1).1, merges(&d, pool)), (4096, 0));
    assert_eq!((alloc(&mut d, pool, 1536, 1).1, merges(&d, pool)), (0, 1));
}

#[test]
fn smaller_recent_blocks_that_are_alike_give_way_with_the_larger() {
    let (mut d, pool) = one(vec![sliced(1 << 18, None)]);
    let [a, b, _, c] = [1 << 15, 1 << 15, 512, 1 << 16].map(|size| alloc(&mut d, pool, size, 1).0);
    for block in [a, b, c] {
        d.free(block, Some(1)).unwrap();
    }
    // 64 and 65 times 512 have the same six binary digits before a seventh. a and b merge and lie lower than c.
    assert_eq!((alloc(&mut d, pool, 65 * 512, 1).1, merges(&d, pool)), (0, 1));
}

#[test]
fn a_stream_has_at_most_4096_recent_blocks_an_entry() {
    let (mut d, pool) = one(vec![sliced(4 << 20, None)]);
    let blocks: Vec<usize> = (0..4098).map(|_| alloc(&mut d, pool, 512, 1).0).collect();
    for &block in &blocks[..4096] {
        d.free(block, Some(1)).unwrap();
    }
    let (figures, _) = d.figures(pool).unwrap();
    assert_eq!((figures.merges, figures.pending, figures.largest_free), (0, 4096, 4094 * 512));
    d.free(blocks[4096], Some(1)).unwrap();
    let (figures, _) = d.figures(pool).unwrap();
    assert_eq!((figures.merges, figures.pending, figures.pending_bytes), (4095, 2, 4097 * 512));
}

#[test]
fn of_recent_blocks_that_are_alike_the_last_64_are_looked_at() {
    for others in [63, 64] {
        let (mut d, pool) = one(vec![sliced(16 << 20, None)]);
        let mut blocks = vec![alloc(&mut d, pool, 256 * 512, 1).0];
        blocks.extend((0..others).map(|_| alloc(&mut d, pool, 257 * 512, 1).0));
        let _ = alloc(&mut d, pool, 512, 1);
        for block in blocks {
            d.free(block, Some(1)).unwrap();
        }
        let expected = if others == 63 { 0 } else { 64 };
        assert_eq!((alloc(&mut d, pool, 256 * 512, 1).1, merges(&d, pool)), (0, expected));
    }
}

#[test]
fn an_event_gives_the_block_by_policy_1_and_only_by_it() {
    for policy in [1, 2] {
        let (mut d, pool) = one(vec![sliced(4096, None)]);
        only(&mut d, pool, policy);
        let event = d.create_event();
        let (a, ..) = alloc(&mut d, pool, 4096, 1);
        d.free(a, Some(1)).unwrap();
        d.record(event, 1).unwrap();
        d.wait(2, event).unwrap();
        let (_, at, reason) = alloc(&mut d, pool, 1, 2);
        let expected = if policy == 1 { (0, Reason::Event) } else { (4096, Reason::Fresh) };
        assert_eq!((at, reason), expected);
    }
}

#[test]
fn what_has_executed_is_given_by_policy_2_and_only_by_it() {
    for policy in [1, 2] {
        let (mut d, pool) = one(vec![sliced(4096, None)]);
        only(&mut d, pool, policy);
        let (a, ..) = alloc(&mut d, pool, 4096, 1);
        d.free(a, Some(1)).unwrap();
        d.advance(1, 9).unwrap();
        let (_, at, reason) = alloc(&mut d, pool, 1, 2);
        let expected = if policy == 2 { (0, Reason::Opportunistic) } else { (4096, Reason::Fresh) };
        assert_eq!((at, reason), expected);
        assert_eq!(d.figures(pool).unwrap().0.progress_queries, u64::from(policy == 2));
        assert_eq!(d.stream_figures(1).unwrap().observed, 0);
    }
}

#[test]
fn a_mapped_entry_that_may_grow_does_so_before_policy_2() {
    // 12 chunks were used at most, so 20 may be held.
    for (threshold, refusals, expected) in [
        (u64::MAX, 0, [(12, Reason::Fresh), (16, Reason::Fresh), (0, Reason::Opportunistic)]),
        (17, 0, [(12, Reason::Fresh), (0, Reason::Opportunistic), (4, Reason::Opportunistic)]),
        (16, 0, [(0, Reason::Opportunistic), (4, Reason::Opportunistic), (8, Reason::Opportunistic)]),
        (u64::MAX, 2, [(0, Reason::Opportunistic), (4, Reason::Opportunistic), (8, Reason::Opportunistic)]),
    ] {
        let mut d = device(true);
        let mut config = of(vec![mapped(64, None)]);
        config.release_threshold = threshold.saturating_mul(CHUNK);
        let pool = d.create_pool(&config).unwrap();
        for stream in 1..=2 {
            assert_eq!(d.create_stream(true, None), stream);
        }
        for (block, ..) in [4, 8].map(|count| alloc(&mut d, pool, count * CHUNK, 1)) {
            d.free(block, Some(1)).unwrap();
        }
        d.advance(1, 9).unwrap();
        d.refuse_pages(0, refusals);
        let got = [(); 3].map(|()| {
            let (_, at, reason) = alloc(&mut d, pool, 4 * CHUNK, 2);
            (at / CHUNK, reason)
        });
        assert_eq!(got, expected, "threshold {threshold}, {refusals} refusals");
        assert_eq!(d.figures(pool).unwrap().0.page_refusals, refusals);
    }
}

#[test]
fn policy_2_asks_about_at_most_eight_streams() {
    for streams in [8, 9] {
        let mut d = device(true);
        let pool = d.create_pool(&of(vec![sliced(512, None)])).unwrap();
        only(&mut d, pool, 2);
        let taker = d.create_stream(true, None);
        let blocks: Vec<(usize, usize)> = (0..streams)
            .map(|_| {
                let stream = d.create_stream(true, None);
                (alloc(&mut d, pool, 512, stream).0, stream)
            })
            .collect();
        for &(block, stream) in &blocks {
            d.free(block, Some(stream)).unwrap();
        }
        // Only the highest one has executed, and it is asked about last.
        d.advance(blocks[streams - 1].1, 9).unwrap();
        let (_, _, reason) = alloc(&mut d, pool, 512, taker);
        assert_eq!(reason, if streams == 8 { Reason::Opportunistic } else { Reason::Fresh });
        assert_eq!(d.figures(pool).unwrap().0.progress_queries, 8);
    }
}

#[test]
fn a_destroyed_stream_is_forgotten_when_an_allocation_is_told_that_all_of_it_has_executed() {
    for (destroyed, unfinished) in [(true, 0), (false, 0), (true, 1)] {
        let (mut d, pool) = one(vec![sliced(4096, Some(4096))]);
        only(&mut d, pool, 2);
        let (a, ..) = alloc(&mut d, pool, 4096, 1);
        d.free(a, Some(1)).unwrap();
        d.advance(1, 2).unwrap();
        if unfinished > 0 {
            d.submit(1, unfinished).unwrap();
        }
        if destroyed {
            d.destroy_stream(1).unwrap();
        }
        let pending = |d: &Device| d.figures(pool).unwrap().0.pending;
        assert_eq!(pending(&d), 1);
        assert_eq!(alloc(&mut d, pool, 512, 2), (1, 0, Reason::Opportunistic));
        let forgotten = destroyed && unfinished == 0;
        assert_eq!(pending(&d), u64::from(!forgotten));
        let reason = if forgotten { Reason::Observed } else { Reason::Opportunistic };
        assert_eq!(alloc(&mut d, pool, 512, 2), (2, 512, reason));
    }
}

#[test]
fn an_allocation_that_fails_forgets_no_stream() {
    let (mut d, pool) = one(vec![sliced(4096, Some(4096))]);
    only(&mut d, pool, 2);
    d.create_stream(false, None);
    let (a, ..) = alloc(&mut d, pool, 2048, 1);
    let (b, ..) = alloc(&mut d, pool, 2048, 3);
    d.free(a, Some(1)).unwrap();
    d.free(b, Some(3)).unwrap();
    d.advance(1, 2).unwrap();
    d.destroy_stream(1).unwrap();
    // Both are asked about, and the second has not executed.
    assert_eq!(d.alloc(pool, 4096, Some(2), 0), Err(Failure::CapacityExceeded));
    let figures = d.figures(pool).unwrap().0;
    assert_eq!((figures.progress_queries, figures.pending), (2, 2));
}

#[test]
fn a_forgotten_stream_is_no_part_of_later_barriers() {
    for destroyed in [true, false] {
        let (mut d, pool) = one(vec![sliced(4096, None)]);
        let outside = d.create_stream(true, None);
        let between = d.create_stream(false, None);
        let (a, ..) = alloc(&mut d, pool, 4096, between);
        let (b, ..) = alloc(&mut d, pool, 4096, outside);
        d.free(b, Some(outside)).unwrap();
        let event = d.create_event();
        d.record(event, outside).unwrap();
        d.wait(between, event).unwrap();
        d.free(a, Some(between)).unwrap();
        d.advance(outside, 9).unwrap();
        d.advance(between, 9).unwrap();
        if destroyed {
            d.destroy_stream(between).unwrap();
        }
        // The lowest is asked about first.
        assert_eq!(alloc(&mut d, pool, 4096, 1), (2, 0, Reason::Opportunistic));
        d.submit(0, 1).unwrap();
        only(&mut d, pool, 1);
        let expected = if destroyed { Reason::Fresh } else { Reason::Event };
        assert_eq!(alloc(&mut d, pool, 4096, 2).2, expected);
    }
}

#[test]
fn policy_3_waits_at_the_cap_and_not_before() {
    let (mut d, pool) = one(vec![sliced(4096, Some(8192))]);
    let (a, ..) = alloc(&mut d, pool, 4096, 1);
    d.free(a, Some(1)).unwrap();
    assert_eq!(alloc(&mut d, pool, 4096, 2).2, Reason::Fresh);
    let (b, at, reason) = alloc(&mut d, pool, 4096, 2);
    assert_eq!((at, reason), (0, Reason::Internal));
    // Fresh took number 1, the wait 2, the allocation 3.
    assert_eq!(d.allocation(b).unwrap().ready_seq, 3);
    assert_eq!(d.advance(2, 9).unwrap(), 1);
    assert_eq!(d.alloc(pool, 4096, Some(2), 0), Err(Failure::CapacityExceeded));
    let (figures, _) = d.figures(pool).unwrap();
    assert_eq!((figures.internal_waits, figures.failures), (1, 1));
}

#[test]
fn policy_3_prefers_fewer_waits_then_smaller_then_older() {
    let mut d = device(true);
    let pool = d.create_pool(&of(vec![sliced(4096, Some(4096))])).unwrap();
    only(&mut d, pool, 3);
    let (s, t, u) = (d.create_stream(true, None), d.create_stream(true, None), d.create_stream(true, None));
    let small = alloc(&mut d, pool, 512, s).0;
    let _ = alloc(&mut d, pool, 512, s);
    let large = alloc(&mut d, pool, 1024, s).0;
    let _ = alloc(&mut d, pool, 512, s);
    let old = alloc(&mut d, pool, 1024, s).0;
    let _ = alloc(&mut d, pool, 512, s);
    d.submit(t, 1).unwrap();
    d.add_user(small, t).unwrap();
    d.free(small, Some(s)).unwrap();
    d.free(old, Some(t)).unwrap();
    d.free(large, Some(s)).unwrap();
    // Two waits for the small one; of the two large, t's free has the smaller number (2 against 8).
    assert_eq!(alloc(&mut d, pool, 512, u).1, 2560);
    assert_eq!(d.figures(pool).unwrap().0.reuse, [0, 0, 0, 0, 1, 6]);
}

#[test]
fn neighbours_merge_when_both_are_one_streams_and_then_have_the_later_point() {
    let (mut d, pool) = one(vec![sliced(4096, Some(4096))]);
    let (a, ..) = alloc(&mut d, pool, 2048, 1);
    let (b, ..) = alloc(&mut d, pool, 2048, 1);
    d.free(a, Some(1)).unwrap();
    d.free(b, Some(1)).unwrap();
    let (figures, _) = d.figures(pool).unwrap();
    // The one that was freed last does not merge before someone looks for a block.
    assert_eq!((figures.merges, figures.pending, figures.pending_bytes, figures.largest_free), (0, 2, 4096, 2048));
    only(&mut d, pool, 2);
    // The first half's free has executed, the whole's has not.
    assert_eq!(d.advance(1, 3).unwrap(), 3);
    assert_eq!(d.alloc(pool, 512, Some(2), 0), Err(Failure::CapacityExceeded));
    let (figures, _) = d.figures(pool).unwrap();
    assert_eq!((figures.merges, figures.pending, figures.pending_bytes, figures.largest_free), (1, 1, 4096, 4096));
    assert_eq!(d.advance(1, 1).unwrap(), 1);
    assert_eq!(alloc(&mut d, pool, 512, 2).2, Reason::Opportunistic);
}

#[test]
fn neighbours_of_different_streams_serve_one_span_when_all_their_points_allow_it() {
    let (mut d, pool) = one(vec![sliced(4096, Some(4096))]);
    d.set_attribute(pool, 3, 0).unwrap();
    let (a, ..) = alloc(&mut d, pool, 2048, 1);
    let (b, ..) = alloc(&mut d, pool, 2048, 2);
    d.free(a, Some(1)).unwrap();
    d.free(b, Some(2)).unwrap();
    assert_eq!(d.alloc(pool, 3072, Some(1), 0), Err(Failure::CapacityExceeded));
    d.advance(2, 9).unwrap();
    // Own and executed: the weaker reason is counted. The cut's rest is stream 2's still.
    let (_, at, reason) = alloc(&mut d, pool, 3072, 1);
    assert_eq!((at, reason), (0, Reason::Opportunistic));
    let (_, at, reason) = alloc(&mut d, pool, 1024, 2);
    assert_eq!((at, reason), (3072, Reason::SameStream));
}

#[test]
fn an_observed_block_merges_with_the_never_used_rest_into_an_observed_one() {
    let (mut d, pool) = one(vec![sliced(4096, None)]);
    let (a, ..) = alloc(&mut d, pool, 1024, 1);
    d.free(a, Some(1)).unwrap();
    d.synchronise_stream(1).unwrap();
    assert_eq!(d.figures(pool).unwrap().0.largest_free, 4096);
    assert_eq!(alloc(&mut d, pool, 4096, 2).2, Reason::Observed);
}

#[test]
fn an_added_user_holds_the_block_back_by_what_it_has_submitted_at_the_free() {
    let (mut d, pool) = one(vec![sliced(4096, None)]);
    let (a, ..) = alloc(&mut d, pool, 4096, 1);
    d.add_user(a, 2).unwrap();
    d.submit(2, 1).unwrap();
    d.free(a, Some(1)).unwrap();
    d.submit(2, 1).unwrap();
    assert_eq!(alloc(&mut d, pool, 4096, 1).2, Reason::Fresh);
    assert_eq!(d.advance(2, 1).unwrap(), 1);
    let (_, at, reason) = alloc(&mut d, pool, 4096, 1);
    assert_eq!((at, reason), (0, Reason::Opportunistic));
}

#[test]
fn a_host_ordered_free_follows_all_streams_and_a_host_ordered_allocation_takes_observed_frees_only() {
    let (mut d, pool) = one(vec![sliced(4096, None)]);
    let (a, ..) = alloc(&mut d, pool, 4096, 1);
    d.submit(2, 1).unwrap();
    d.free(a, None).unwrap();
    d.advance(1, 9).unwrap();
    d.advance(2, 9).unwrap();
    let b = d.alloc(pool, 4096, None, 0).unwrap();
    assert_eq!(d.allocation(b).unwrap().reason, Reason::Fresh);
    d.synchronise_stream(1).unwrap();
    assert_eq!(d.figures(pool).unwrap().0.pending, 1);
    d.synchronise_stream(2).unwrap();
    let c = d.alloc(pool, 4096, None, 0).unwrap();
    assert_eq!(d.allocation(c).unwrap().reason, Reason::Observed);
    assert!(d.is_ready_on(c, 1).unwrap());
}

#[test]
fn in_a_cuda_entry_the_never_used_rest_comes_after_policy_2() {
    let (mut d, pool) = one(vec![Entry::Cuda { max_pool_size: None }]);
    let (a, ..) = alloc(&mut d, pool, 12, 1);
    assert_eq!(d.figures(pool).unwrap().0.reserved, 32 * MIB);
    d.free(a, Some(1)).unwrap();
    assert_eq!(alloc(&mut d, pool, 12, 2).2, Reason::Fresh);
    d.advance(1, 9).unwrap();
    assert_eq!(alloc(&mut d, pool, 12, 2).2, Reason::Opportunistic);
    assert_eq!(d.alloc(pool, 0, None, 0), Err(Failure::InvalidValue));
}

#[test]
fn exclusive_pages_serve_smaller_requests_and_direct_ones_the_exact_size() {
    let (mut d, pool) = one(vec![exclusive(8192)]);
    let (a, ..) = alloc(&mut d, pool, 8192, 1);
    d.free(a, Some(1)).unwrap();
    let (b, at, reason) = alloc(&mut d, pool, 1, 1);
    assert_eq!((at, reason, d.allocation(b).unwrap().block_size), (0, Reason::SameStream, 8192));
    let (mut d, pool) = one(vec![Entry::Direct { reclaim_at: None }]);
    let (a, ..) = alloc(&mut d, pool, 1024, 1);
    d.free(a, Some(1)).unwrap();
    assert_eq!(alloc(&mut d, pool, 512, 1).2, Reason::Fresh);
    assert_eq!(alloc(&mut d, pool, 1000, 1).2, Reason::SameStream);
}

// --- §7, §8: pages and their lack

#[test]
fn a_cap_counts_whole_pages_and_can_be_reached() {
    let (mut d, pool) = one(vec![sliced(4096, Some(8192 + 4095))]);
    alloc(&mut d, pool, 4096, 1);
    alloc(&mut d, pool, 4096, 1);
    assert_eq!(d.alloc(pool, 1, Some(1), 0), Err(Failure::CapacityExceeded));
    assert_eq!(d.figures(pool).unwrap().0.page_refusals, 0);
}

#[test]
fn a_full_entry_spills_into_the_next() {
    let (mut d, pool) = one(vec![sliced(4096, Some(4096)), exclusive(u64::MAX)]);
    alloc(&mut d, pool, 4096, 1);
    let (a, ..) = alloc(&mut d, pool, 512, 1);
    assert_eq!(d.allocation(a).unwrap().entry, 1);
}

#[test]
fn a_direct_entry_gives_back_above_its_watermark_just_enough() {
    let (mut d, pool) = one(vec![Entry::Direct { reclaim_at: Some(8192) }]);
    let blocks: Vec<usize> = [512, 1024, 1536].iter().map(|&size| alloc(&mut d, pool, size, 1).0).collect();
    // A watermark, not a budget.
    assert_eq!(d.reserved(), 12288);
    for block in blocks {
        d.free(block, Some(1)).unwrap();
    }
    d.synchronise_stream(1).unwrap();
    assert_eq!(d.reserved(), 12288);
    alloc(&mut d, pool, 2048, 1);
    assert_eq!(d.reserved(), 8192);
}

#[test]
fn a_refused_page_makes_free_pages_go_back_from_other_pools_too() {
    let (mut d, pool) = one(vec![sliced(4096, None)]);
    let other = d.create_pool(&of(vec![sliced(4096, None)])).unwrap();
    let (a, ..) = alloc(&mut d, other, 1, 1);
    d.free(a, Some(1)).unwrap();
    d.set_capacity(4096);
    d.set_attribute(pool, 2, 0).unwrap();
    assert_eq!(d.alloc(pool, 1, Some(2), 0), Err(Failure::OutOfMemory));
    d.advance(1, 9).unwrap();
    assert_eq!(alloc(&mut d, pool, 1, 2).1, 4096);
    assert_eq!(d.figures(other).unwrap().0.page_frees, 1);
    assert_eq!(d.figures(pool).unwrap().0.page_refusals, 2);
}

#[test]
fn scripted_refusals_skip_and_then_refuse() {
    let (mut d, pool) = one(vec![exclusive(u64::MAX)]);
    d.refuse_pages(1, 1);
    alloc(&mut d, pool, 1, 1);
    assert_eq!(d.alloc(pool, 1, Some(1), 0), Err(Failure::OutOfMemory));
    alloc(&mut d, pool, 1, 1);
}

#[test]
fn a_pool_that_opted_in_synchronises_before_it_fails() {
    let mut d = device(true);
    let config = Config { sync_on_oom: true, policy_3: false, ..of(vec![sliced(4096, Some(4096))]) };
    let pool = d.create_pool(&config).unwrap();
    let (s, t) = (d.create_stream(false, None), d.create_stream(false, None));
    let (a, ..) = alloc(&mut d, pool, 4096, s);
    d.free(a, Some(s)).unwrap();
    assert_eq!(alloc(&mut d, pool, 4096, t).2, Reason::Observed);
    assert_eq!(d.alloc(pool, 1, Some(t), 0), Err(Failure::CapacityExceeded));
    assert_eq!(d.figures(pool).unwrap().0.host_syncs, 2);
}

#[test]
fn the_callback_is_told_the_figures_and_asked_at_most_16_times() {
    let (mut d, pool) = one(vec![sliced(4096, Some(4096))]);
    let (a, ..) = alloc(&mut d, pool, 4096, 1);
    let told: Rc<RefCell<Vec<OutOfMemory>>> = Rc::default();
    let (list, freed) = (told.clone(), a);
    d.set_callback(pool, move |d, what| {
        list.borrow_mut().push(*what);
        assert_eq!(d.alloc(pool, 1, Some(1), 0), Err(Failure::NotPermitted));
        if list.borrow().len() == 3 {
            d.free(freed, Some(1)).unwrap();
        }
        true
    })
    .unwrap();
    assert_eq!(alloc(&mut d, pool, 100, 1).2, Reason::SameStream);
    assert_eq!(told.borrow().len(), 3);
    let first = told.borrow()[0];
    assert_eq!((first.asked, first.used, first.reserved, first.pending_bytes), (100, 4096, 4096, 0));
    assert_eq!((first.largest_free, first.device_free, first.device_total), (0, u64::MAX, u64::MAX));
    assert_eq!(d.alloc(pool, 4096, Some(1), 0), Err(Failure::CapacityExceeded));
    assert_eq!(told.borrow().len(), 19);
}

// --- §9: release

#[test]
fn a_trim_takes_what_has_executed_and_in_a_cuda_entry_what_is_observed() {
    let (mut d, pool) = one(vec![sliced(4096, None)]);
    let cuda = d.create_pool(&of(vec![Entry::Cuda { max_pool_size: None }])).unwrap();
    for pool in [pool, cuda] {
        let (a, ..) = alloc(&mut d, pool, 1, 1);
        d.free(a, Some(1)).unwrap();
    }
    let trimmed = |d: &mut Device| {
        d.trim_to(pool, 0).unwrap();
        d.trim_to(cuda, 0).unwrap();
        (d.figures(pool).unwrap().0.pages, d.figures(cuda).unwrap().0.pages)
    };
    assert_eq!(trimmed(&mut d), (1, 1));
    d.advance(1, 9).unwrap();
    assert_eq!(trimmed(&mut d), (0, 1));
    d.synchronise_stream(1).unwrap();
    assert_eq!(trimmed(&mut d), (0, 0));
}

#[test]
fn pages_go_back_last_entry_first_then_longest_unused_then_highest() {
    let (mut d, pool) = one(vec![exclusive(4096), exclusive(8192)]);
    let big = alloc(&mut d, pool, 8192, 1).0;
    let blocks: Vec<usize> = (0..3).map(|_| alloc(&mut d, pool, 4096, 1).0).collect();
    d.free(blocks[1], Some(1)).unwrap();
    alloc(&mut d, pool, 8192, 2);
    for block in [blocks[0], blocks[2], big] {
        d.free(block, Some(1)).unwrap();
    }
    d.advance(1, 99).unwrap();
    // 8192 twice and three of 4096. Down to 20480: the free one of 8192 goes first.
    d.trim_to(pool, 20480).unwrap();
    assert_eq!(d.figures(pool).unwrap().1[1].pages, 1);
    // Then the one that is unused for longest (the second, at 12288), then the highest (at 16384).
    d.trim_to(pool, 16384).unwrap();
    let place = |d: &Device, at: usize| d.allocation(at).unwrap().block_address - BASE;
    let a = d.alloc(pool, 4096, Some(1), 0).unwrap();
    let b = d.alloc(pool, 4096, Some(1), 0).unwrap();
    assert_eq!((place(&d, a), place(&d, b)), (8192, 16384));
}

#[test]
fn a_synchronise_gives_back_down_to_the_threshold() {
    let (mut d, pool) = one(vec![exclusive(u64::MAX)]);
    d.set_attribute(pool, 4, 8192).unwrap();
    let blocks: Vec<usize> = (0..4).map(|_| alloc(&mut d, pool, 1, 1).0).collect();
    for block in blocks {
        d.free(block, Some(1)).unwrap();
    }
    assert_eq!(d.reserved(), 16384);
    d.synchronise_stream(1).unwrap();
    assert_eq!(d.reserved(), 8192);
}

#[test]
fn the_synchronise_of_a_never_recorded_event_observes_nothing_and_gives_back_all_the_same() {
    let (mut d, pool) = one(vec![exclusive(u64::MAX)]);
    d.set_attribute(pool, 4, 0).unwrap();
    let event = d.create_event();
    let (a, ..) = alloc(&mut d, pool, 1, 1);
    d.free(a, Some(1)).unwrap();
    d.synchronise_event(event).unwrap();
    assert_eq!(d.reserved(), 4096);
    d.advance(1, 9).unwrap();
    d.synchronise_event(event).unwrap();
    assert_eq!((d.reserved(), d.stream_figures(1).unwrap().observed), (0, 0));
}

#[test]
fn a_page_unused_for_a_whole_period_goes_back_at_the_next_page_request() {
    let entry = Entry::Exclusive { max_alloc_size: 4096, dealloc_period: Some(2) };
    let (mut d, pool) = one(vec![entry, exclusive(u64::MAX)]);
    let (a, ..) = alloc(&mut d, pool, 4096, 1);
    d.free(a, Some(1)).unwrap();
    d.synchronise_stream(1).unwrap();
    alloc(&mut d, pool, 8192, 1);
    assert_eq!(d.figures(pool).unwrap().1[0].pages, 1);
    alloc(&mut d, pool, 8192, 1);
    assert_eq!(d.figures(pool).unwrap().1[0].pages, 1);
    // Two allocations have been made since it became free.
    alloc(&mut d, pool, 8192, 1);
    assert_eq!(d.figures(pool).unwrap().1[0].pages, 0);
}

#[test]
fn a_page_the_device_will_not_take_back_stays_and_is_counted() {
    let (mut d, pool) = one(vec![sliced(4096, None)]);
    let (a, ..) = alloc(&mut d, pool, 1, 1);
    d.free(a, Some(1)).unwrap();
    d.synchronise_stream(1).unwrap();
    d.refuse_releases(1);
    d.trim_to(pool, 0).unwrap();
    let (figures, _) = d.figures(pool).unwrap();
    assert_eq!((figures.pages, figures.release_failures, figures.page_frees), (1, 1, 0));
    d.trim_to(pool, 0).unwrap();
    assert_eq!(d.figures(pool).unwrap().0.pages, 0);
}

#[test]
fn a_destroyed_pool_keeps_its_live_blocks_and_goes_with_the_last() {
    let mut d = device(false);
    let pool = d.create_pool(&of(vec![exclusive(u64::MAX)])).unwrap();
    let s = d.create_stream(false, None);
    let (a, ..) = alloc(&mut d, pool, 1, s);
    let (b, ..) = alloc(&mut d, pool, 1, s);
    d.free(b, Some(s)).unwrap();
    d.destroy_pool(pool).unwrap();
    assert_eq!(d.destroy_pool(pool), Err(Failure::Destroyed));
    assert_eq!(d.alloc(pool, 1, Some(s), 0), Err(Failure::Destroyed));
    assert_eq!((d.reserved(), d.is_ready(a), d.pools_left()), (4096, Ok(true), 1));
    d.free(a, Some(s)).unwrap();
    assert_eq!((d.reserved(), d.pools_left()), (0, 0));
}

// --- Mapped entries

/// A chunk of the tests.
const CHUNK: u64 = 4096;

fn mapped(places: u64, most: Option<u64>) -> Entry {
    let (range_size, max_pool_size) = (places * CHUNK, most.map(|chunks| chunks * CHUNK));
    Entry::Mapped { range_size, chunk_size: CHUNK, max_pool_size, dealloc_period: None }
}

/// An allocation of so many chunks on stream 1: its position, and its first place.
fn chunks(d: &mut Device, pool: usize, count: u64) -> (usize, u64) {
    let (block, at, _) = alloc(d, pool, count * CHUNK, 1);
    assert_eq!(at % CHUNK, 0);
    d.check();
    (block, at / CHUNK)
}

/// Four blocks of two chunks, which are all that there may be, at the places 0 to 7; the first and the third go, and one of
/// four comes, at the places 8 to 11. It, the second and the fourth are live.
fn moved(places: u64) -> (Device, usize, [usize; 3]) {
    let (mut d, pool) = one(vec![mapped(places, Some(8))]);
    let blocks = four_of_which_two_go(&mut d, pool);
    (d, pool, blocks)
}

fn four_of_which_two_go(d: &mut Device, pool: usize) -> [usize; 3] {
    let blocks = [0, 2, 4, 6].map(|place| {
        let (block, at) = chunks(d, pool, 2);
        assert_eq!(at, place);
        block
    });
    d.free(blocks[0], Some(1)).unwrap();
    d.free(blocks[2], Some(1)).unwrap();
    let (large, at) = chunks(d, pool, 4);
    assert_eq!(at, 8);
    [blocks[1], blocks[3], large]
}

fn largest(d: &Device, pool: usize) -> u64 {
    d.check();
    d.figures(pool).unwrap().0.largest_free / CHUNK
}

#[test]
fn at_a_pause_chunks_go_home_and_their_ghosts_take_them_back_without_a_call() {
    let (mut d, pool, blocks) = moved(64);
    let calls = |d: &Device| {
        let figures = d.figures(pool).unwrap().0;
        (figures.chunk_moves, figures.device_calls, figures.merges)
    };
    // One question for eight chunks, one range, four moves.
    assert_eq!(calls(&d), (4, 6, 0));
    for block in blocks {
        assert_eq!(calls(&d), (4, 6, 0));
        d.free(block, Some(1)).unwrap();
    }
    // The second and the third of what was live merge, and then, at home, four single chunks and two of two.
    assert_eq!((calls(&d), largest(&d, pool)), ((4, 6, 1 + 5), 8));
    let (all, at) = chunks(&mut d, pool, 8);
    assert_eq!(at, 0);
    d.free(all, Some(1)).unwrap();
    four_of_which_two_go(&mut d, pool);
    assert_eq!(calls(&d), (4, 6, 6));
}

#[test]
fn an_entry_that_two_streams_use_does_not_pause_and_its_chunks_go_home_at_a_synchronise() {
    for other in [Some(2), None] {
        let (mut d, pool, [a, b, c]) = moved(64);
        d.free(a, Some(1)).unwrap();
        d.free(b, other).unwrap();
        d.free(c, Some(1)).unwrap();
        assert_eq!((largest(&d, pool), merges(&d, pool)), (4, 0));
        d.synchronise_device();
        assert_eq!((largest(&d, pool), merges(&d, pool)), (8, 6));
    }
}

#[test]
fn a_chunk_goes_home_from_one_free_block_that_is_observed() {
    let (mut d, pool, [a, b, c]) = moved(64);
    d.free(a, Some(1)).unwrap();
    d.free(b, Some(1)).unwrap();
    d.synchronise_device();
    assert_eq!((largest(&d, pool), merges(&d, pool)), (2, 0));
    d.free(c, Some(2)).unwrap();
    d.synchronise_stream(1).unwrap();
    assert_eq!((largest(&d, pool), merges(&d, pool)), (4, 0));
    // Nothing is observed by this, nor by the next, at which all that is observed goes home.
    let event = d.create_event();
    d.synchronise_event(event).unwrap();
    assert_eq!(largest(&d, pool), 4);
    d.synchronise_stream(2).unwrap();
    assert_eq!((largest(&d, pool), merges(&d, pool)), (8, 6));
}

#[test]
fn a_chunk_with_many_ghosts_drops_those_that_have_executed_before_it_moves() {
    for (lazy, places, at, questions) in [(false, 2, 5, 1), (true, 2, 0, 1), (false, 4, 0, 0)] {
        let mut d = device(lazy);
        d.create_stream(false, None);
        let pool = d.create_pool(&of(vec![mapped(places, Some(8))])).unwrap();
        let [a, b, large] = four_of_which_two_go(&mut d, pool);
        d.free(a, Some(1)).unwrap();
        d.free(large, Some(1)).unwrap();
        // Two chunks without ghosts move, and three with one each, at their homes.
        let (larger, _) = chunks(&mut d, pool, 5);
        let figures = d.figures(pool).unwrap().0;
        assert_eq!((figures.chunk_moves, figures.progress_queries), (9, questions), "ranges of {places} places");
        d.free(b, Some(1)).unwrap();
        d.free(larger, Some(1)).unwrap();
        d.synchronise_device();
        // Where one chunk is alone, if the others of its block have another home.
        assert_eq!(chunks(&mut d, pool, 1).1, at, "ranges of {places} places");
    }
}

#[test]
fn a_block_lies_further_up_where_it_would_take_a_chunk_twice() {
    for (need, place, moves) in [(26, 1, 6), (27, 12, 11)] {
        let (mut d, pool) = one(vec![mapped(64, Some(28))]);
        let blocks: Vec<usize> = (0..20).map(|_| chunks(&mut d, pool, 1).0).collect();
        for at in (1..20).step_by(2) {
            d.free(blocks[at], Some(1)).unwrap();
        }
        // The chunks of the places 1, 3, 5, 7, 9, 11 serve at 27 to 32.
        let (large, at) = chunks(&mut d, pool, 15);
        assert_eq!((at, d.figures(pool).unwrap().0.chunk_moves), (19, 6));
        for &block in blocks[2..].iter().step_by(2).chain([&large]) {
            d.free(block, Some(1)).unwrap();
        }
        // At 1, 2, 3 … a block of 27 would touch 1 and 27, 3 and 28, 3 and 28 …, until at 11 it would touch 11 and 32.
        assert_eq!(chunks(&mut d, pool, need).1, place);
        assert_eq!(d.figures(pool).unwrap().0.chunk_moves, moves);
    }
}

#[test]
fn a_chunk_that_is_given_back_takes_its_ghosts_along() {
    let (mut d, pool, blocks) = moved(64);
    for block in blocks {
        d.free(block, Some(1)).unwrap();
    }
    d.synchronise_device();
    // Two chunks are left, which have ghosts at 8 and 9; those at 10 and 11 are gone.
    d.trim_to(pool, 2 * CHUNK).unwrap();
    assert_eq!(chunks(&mut d, pool, 2).1, 0);
    assert_eq!(chunks(&mut d, pool, 6).1, 2);
    assert_eq!(d.figures(pool).unwrap().0.page_allocs, 14);
}

#[test]
fn a_vacant_place_is_open_while_the_chunk_that_is_mapped_there_is_idle() {
    let (mut d, pool, blocks) = moved(12);
    for block in blocks {
        d.free(block, Some(1)).unwrap();
    }
    // All are at home again. The chunks at 0, 1, 4 and 5 have ghosts at 8 to 11.
    let low = chunks(&mut d, pool, 2).0;
    let high = d.alloc(pool, 6 * CHUNK, Some(1), 0).unwrap();
    d.free(low, Some(1)).unwrap();
    // Only the ghosts at 8 and 9 are: the one at the high end is not.
    assert_eq!(d.alloc(pool, 3 * CHUNK, Some(1), 0), Err(Failure::CapacityExceeded));
    d.free(high, Some(1)).unwrap();
    d.check();
}

#[test]
fn an_entry_pauses_64_times_before_a_miss() {
    let (mut d, pool) = one(vec![mapped(64, None)]);
    let round = |d: &mut Device| {
        let blocks = [0, 1].map(|_| chunks(d, pool, 1).0);
        let before = merges(d, pool);
        for block in blocks {
            d.free(block, Some(1)).unwrap();
        }
        merges(d, pool) - before
    };
    // The two merge, and with what was never used.
    for _ in 0..64 {
        assert_eq!(round(&mut d), 2);
    }
    assert_eq!(round(&mut d), 0);
    let (large, _) = chunks(&mut d, pool, 40);
    d.free(large, Some(1)).unwrap();
    // They, the rest of the 40, and what came with these.
    assert_eq!(round(&mut d), 3);
}

#[test]
fn a_pause_makes_all_that_is_observed_the_streams_own() {
    let (mut d, pool) = one(vec![mapped(64, None)]);
    let blocks = [0, 1].map(|_| chunks(&mut d, pool, 1).0);
    d.free(blocks[0], Some(1)).unwrap();
    d.synchronise_stream(1).unwrap();
    let again = chunks(&mut d, pool, 2).0;
    d.free(again, Some(1)).unwrap();
    let figures = d.figures(pool).unwrap().0;
    assert_eq!((figures.pending, figures.largest_free), (1, 5 * CHUNK));
    d.free(blocks[1], Some(1)).unwrap();
    let figures = d.figures(pool).unwrap().0;
    assert_eq!((figures.pending, figures.pending_bytes, figures.largest_free), (1, 9 * CHUNK, 9 * CHUNK));
    assert_eq!(alloc(&mut d, pool, 9 * CHUNK, 1).2, Reason::SameStream);
}

#[test]
fn an_entry_with_a_block_that_had_users_does_not_pause() {
    for user in [1, 2] {
        let (mut d, pool) = one(vec![mapped(64, None)]);
        let first = chunks(&mut d, pool, 1).0;
        d.add_user(first, user).unwrap();
        d.free(first, Some(1)).unwrap();
        d.synchronise_device();
        let before = merges(&d, pool);
        let blocks = [0, 1].map(|_| chunks(&mut d, pool, 1).0);
        for block in blocks {
            d.free(block, Some(1)).unwrap();
        }
        assert_eq!(merges(&d, pool), before);
    }
}

// --- §10 and configuration

#[test]
fn a_free_that_does_not_follow_its_allocation_is_counted() {
    let (mut d, pool) = one(vec![sliced(4096, None)]);
    let event = d.create_event();
    let (a, ..) = alloc(&mut d, pool, 1, 1);
    let (b, ..) = alloc(&mut d, pool, 1, 1);
    let (c, ..) = alloc(&mut d, pool, 1, 1);
    d.free(a, Some(2)).unwrap();
    assert_eq!(d.figures(pool).unwrap().0.unordered_frees, 1);
    // On the legacy stream it would be behind a barrier.
    d.free(b, Some(0)).unwrap();
    d.record(event, 1).unwrap();
    d.wait(2, event).unwrap();
    d.free(c, Some(2)).unwrap();
    assert_eq!(d.figures(pool).unwrap().0.unordered_frees, 1);
}

#[test]
fn marks_stay_up_until_they_are_set_to_the_current_value() {
    let (mut d, pool) = one(vec![sliced(4096, None)]);
    let (a, ..) = alloc(&mut d, pool, 2048, 1);
    d.free(a, Some(1)).unwrap();
    alloc(&mut d, pool, 512, 1);
    assert_eq!((d.attribute(pool, 7), d.attribute(pool, 8)), (Ok(512), Ok(2048)));
    assert_eq!(d.set_attribute(pool, 8, 1), Err(Failure::InvalidValue));
    d.set_attribute(pool, 8, 0).unwrap();
    assert_eq!(d.attribute(pool, 8), Ok(512));
}

#[test]
fn broken_configurations_are_refused() {
    let mut d = device(true);
    let sliced = |page_size, max_slice_size, max_pool_size| Entry::Sliced {
        page_size,
        max_slice_size,
        max_pool_size,
        dealloc_period: None,
    };
    let broken = [
        vec![],
        vec![sliced(0, None, None)],
        vec![sliced(4096, Some(0), None)],
        vec![sliced(4096, None, Some(0))],
        vec![sliced(4096, Some(4097), None)],
        vec![sliced(4096, None, Some(4095))],
        vec![sliced(u64::MAX, None, None)],
        vec![sliced(4096, None, None), exclusive(u64::MAX - 1)],
    ];
    for entries in broken {
        assert_eq!(d.create_pool(&of(entries.clone())), Err(Failure::InvalidConfig), "{entries:?}");
    }
}

#[test]
fn a_pointer_finds_the_live_allocation_that_asked_for_its_byte() {
    let (mut d, pool) = one(vec![sliced(4096, None)]);
    let (a, ..) = alloc(&mut d, pool, 100, 1);
    let (b, ..) = alloc(&mut d, pool, 1000, 1);
    assert_eq!(d.find(BASE), Ok((a, 0)));
    assert_eq!(d.find(BASE + 99), Ok((a, 99)));
    assert_eq!(d.find(BASE + 100), Err(Failure::InvalidValue));
    assert_eq!(d.find(BASE + 512 + 999), Ok((b, 999)));
    assert_eq!(d.find(BASE + 512 + 1000), Err(Failure::InvalidValue));
    d.free(a, Some(1)).unwrap();
    assert_eq!(d.find(BASE), Err(Failure::InvalidValue));
}
