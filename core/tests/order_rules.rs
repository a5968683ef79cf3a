//! The rules of order, one test a rule: sequence numbers, execution, precedence, the legacy default stream, observation,
//! and what many streams cost. Each name states its rule (`docs/placement.md` §1–§3).
//!
//! Precedence is asked through markers: an allocation is a point, and `is_ready_on` tells whether that point precedes
//! work submitted now. Streams are lazy unless the test says otherwise, so that nothing is ordered by having run.

mod spent;

use smp_core::device::{self, ModelOptions};
use smp_core::pool::{self, AllocOptions, Order, Reason};
use smp_core::stream::{self, StreamFlags, StreamInfo};
use smp_core::{
    AllocationId, DeviceId, EventId, MemoryPoolConfig, PoolConfig, PoolId, Status, StreamId, StreamOrderId, event,
};
use spent::Spent;
use std::time::Duration;

const LEGACY: StreamId = StreamId(0);

struct World {
    device: DeviceId,
    pool: PoolId,
}

fn world(lazy: bool) -> World {
    let device = device::open_model(&ModelOptions { lazy, ..Default::default() }).unwrap();
    let entries = vec![MemoryPoolConfig::Sliced {
        page_size: 64 << 20,
        max_slice_size: None,
        max_pool_size: None,
        dealloc_period: None,
    }];
    World { device, pool: pool::create(device, &PoolConfig::with_entries(entries)).unwrap() }
}

impl World {
    fn stream(&self) -> StreamId {
        stream::create(self.device, StreamFlags::default()).unwrap()
    }
    fn non_blocking(&self) -> StreamId {
        stream::create(self.device, StreamFlags { non_blocking: true, lazy: None }).unwrap()
    }
    fn work(&self, on: StreamId) {
        stream::submit(self.device, on, 1).unwrap();
    }
    fn record(&self, on: StreamId) -> EventId {
        let event = event::create(self.device).unwrap();
        event::record(self.device, event, on).unwrap();
        event
    }
    fn wait(&self, on: StreamId, event: EventId) {
        stream::wait_event(self.device, on, event).unwrap();
    }
    /// What `before` holds so far precedes what `after` gets from now on.
    fn order(&self, before: StreamId, after: StreamId) {
        self.wait(after, self.record(before));
    }
    fn mark(&self, on: StreamId) -> AllocationId {
        pool::alloc_async(self.pool, 512, on).unwrap()
    }
    fn info(&self, on: StreamId) -> StreamInfo {
        stream::info(self.device, on).unwrap()
    }
    /// (submitted, executed, observed)
    fn numbers(&self, on: StreamId) -> (u64, u64, u64) {
        let info = self.info(on);
        (info.submitted, info.executed, info.observed)
    }
    fn sync(&self, on: StreamId) {
        stream::synchronize(self.device, on).unwrap();
    }
    fn advance(&self, on: StreamId, count: u64) -> u64 {
        stream::advance(self.device, on, count).unwrap()
    }
}

fn precedes(mark: AllocationId, on: StreamId) -> bool {
    match pool::is_ready_on(mark, on).unwrap() {
        Order::Proved => true,
        Order::Refuted => false,
        Order::Unproven => panic!("the model device always knows"),
    }
}

// ---- operations and sequence numbers ----------------------------------------------------------------------------------

#[test]
fn every_submitting_call_takes_the_next_number_and_the_first_is_1() {
    let w = world(true);
    let s = w.stream();
    let block = w.mark(s);
    assert_eq!(pool::info(block).unwrap().ready_seq, 1);
    assert_eq!(stream::submit(w.device, s, 5).unwrap(), 6);
    let e = event::create(w.device).unwrap();
    assert_eq!(event::record(w.device, e, s).unwrap().seq, 7);
    w.wait(s, e);
    assert_eq!(w.info(s).submitted, 8);
    pool::free_async(block, s).unwrap();
    assert_eq!(w.info(s).submitted, 9);
}

#[test]
fn a_wait_on_a_never_recorded_event_takes_a_number_and_waits_for_nothing() {
    let w = world(true);
    let s = w.stream();
    w.wait(s, event::create(w.device).unwrap());
    assert_eq!(w.numbers(s), (1, 0, 0));
    assert_eq!(w.advance(s, 9), 1);
}

#[test]
fn a_call_that_fails_takes_no_number() {
    let w = world(true);
    let (s, elsewhere) = (w.stream(), world(true));
    let foreign = event::create(elsewhere.device).unwrap();
    assert_eq!(stream::submit(w.device, s, 0).unwrap_err().status, Status::InvalidValue);
    assert_eq!(stream::wait_event(w.device, s, foreign).unwrap_err().status, Status::WrongDevice);
    assert_eq!(stream::wait_event(w.device, s, EventId(7)).unwrap_err().status, Status::InvalidHandle);
    assert_eq!(event::record(w.device, foreign, s).unwrap_err().status, Status::WrongDevice);
    assert!(pool::alloc_async(w.pool, 1 << 40, s).is_err());
    assert!(pool::free_async(AllocationId(0), s).is_err());
    assert_eq!(w.numbers(s), (0, 0, 0));
}

#[test]
fn host_ordered_calls_take_no_number() {
    let w = world(true);
    let s = w.stream();
    let block = pool::alloc(w.pool, 512, &AllocOptions::default()).unwrap();
    pool::free(block).unwrap();
    assert_eq!(w.numbers(s), (0, 0, 0));
    assert_eq!(w.numbers(LEGACY), (0, 0, 0));
}

#[test]
fn streams_are_numbered_as_they_are_created_and_no_number_serves_twice() {
    let w = world(true);
    let (s, t) = (w.stream(), w.non_blocking());
    assert_eq!((w.info(s).id, w.info(t).id, w.info(LEGACY).id), (StreamOrderId(1), StreamOrderId(2), StreamOrderId(0)));
    stream::destroy(t).unwrap();
    let u = w.stream();
    assert_eq!(w.info(u).id, StreamOrderId(3));
    assert_eq!(stream::info(w.device, t).unwrap_err().status, Status::Destroyed);
}

// ---- execution --------------------------------------------------------------------------------------------------------

#[test]
fn an_eager_stream_runs_at_submission_and_a_lazy_one_does_not() {
    let w = world(true);
    let lazy = w.stream();
    let eager = stream::create(w.device, StreamFlags { non_blocking: false, lazy: Some(false) }).unwrap();
    w.work(lazy);
    w.work(eager);
    assert_eq!((w.numbers(lazy), w.numbers(eager)), ((1, 0, 0), (1, 1, 0)));
}

#[test]
fn advance_stops_at_an_unmet_wait_and_tells_how_many_ran() {
    let w = world(true);
    let (s, t) = (w.stream(), w.stream());
    stream::submit(w.device, t, 2).unwrap();
    w.order(s, t);
    stream::submit(w.device, t, 3).unwrap();
    assert_eq!(w.advance(t, 1), 1);
    assert_eq!(w.advance(t, 9), 1, "the third is the wait");
    assert_eq!(w.advance(t, 9), 0);
    assert_eq!(w.advance(s, 9), 1);
    assert_eq!(w.advance(t, 2), 2);
    assert_eq!(w.advance(t, u64::MAX), 2);
    assert_eq!(w.numbers(t), (6, 6, 0));
}

#[test]
fn an_eager_stream_that_was_held_up_runs_on_when_what_it_waits_for_has_run() {
    let w = world(false);
    let lazy = stream::create(w.device, StreamFlags { non_blocking: false, lazy: Some(true) }).unwrap();
    let (eager, next) = (w.stream(), w.stream());
    w.work(lazy);
    w.order(lazy, eager);
    w.work(eager);
    w.order(eager, next);
    w.work(next);
    assert_eq!((w.info(eager).executed, w.info(next).executed), (0, 0));
    assert_eq!(w.advance(lazy, 1), 1);
    assert_eq!(w.info(eager).executed, 0, "the event is the lazy stream's second operation");
    w.advance(lazy, 1);
    assert_eq!((w.numbers(eager), w.numbers(next)), ((3, 3, 0), (2, 2, 0)));
}

#[test]
fn a_synchronise_runs_what_the_stream_depends_on_and_no_further() {
    let w = world(true);
    let (s, t, u, other) = (w.stream(), w.stream(), w.stream(), w.stream());
    w.work(s);
    w.order(s, t);
    w.work(s);
    w.order(t, u);
    w.work(t);
    w.work(other);
    w.sync(u);
    assert_eq!(w.numbers(u), (1, 1, 1));
    assert_eq!(w.numbers(t), (3, 2, 2), "up to the record");
    assert_eq!(w.numbers(s), (3, 2, 2), "up to the record");
    assert_eq!(w.numbers(other), (1, 0, 0));
}

#[test]
fn a_query_changes_nothing_and_observes_nothing() {
    let w = world(true);
    let (s, t) = (w.stream(), w.stream());
    let mark = w.mark(s);
    let e = w.record(s);
    assert!(!stream::query(w.device, s).unwrap() && !event::query(e).unwrap());
    w.advance(s, 9);
    assert!(stream::query(w.device, s).unwrap() && event::query(e).unwrap());
    assert_eq!(w.numbers(s), (2, 2, 0));
    assert!(pool::is_ready(mark).unwrap());
    assert!(!precedes(mark, t));
}

#[test]
fn is_ready_tells_whether_the_allocations_own_stream_has_executed_it() {
    let w = world(true);
    let s = w.stream();
    w.work(s);
    let mark = w.mark(s);
    w.advance(s, 1);
    assert!(!pool::is_ready(mark).unwrap());
    w.advance(s, 1);
    assert!(pool::is_ready(mark).unwrap());
    assert!(pool::is_ready(pool::alloc(w.pool, 1, &AllocOptions::default()).unwrap()).unwrap(), "host order");
}

#[test]
fn a_wait_for_an_event_of_ones_own_stream_waits_for_nothing_more() {
    let w = world(true);
    let s = w.stream();
    w.work(s);
    w.order(s, s);
    w.work(s);
    assert_eq!(w.advance(s, 9), 4);
}

// ---- precedence -------------------------------------------------------------------------------------------------------

#[test]
fn every_submitted_point_of_a_stream_precedes_now_on_it() {
    let w = world(true);
    let s = w.stream();
    assert!(precedes(w.mark(s), s));
}

#[test]
fn a_point_precedes_another_stream_only_through_an_event_recorded_after_it() {
    let w = world(true);
    let (s, t) = (w.stream(), w.stream());
    let before = w.mark(s);
    let e = w.record(s);
    let after = w.mark(s);
    assert!(!precedes(before, t));
    w.wait(t, e);
    assert!(precedes(before, t) && !precedes(after, t));
}

#[test]
fn precedence_is_transitive_at_the_time_of_the_record_not_of_the_wait() {
    let w = world(true);
    let (s, t, u) = (w.stream(), w.stream(), w.stream());
    let mark = w.mark(s);
    let early = w.record(t);
    w.order(s, t);
    let late = w.record(t);
    w.wait(u, early);
    assert!(!precedes(mark, u));
    w.wait(u, late);
    assert!(precedes(mark, u));
}

#[test]
fn an_event_recorded_again_stands_for_the_new_point_and_waits_made_before_keep_theirs() {
    let w = world(true);
    let (s, t, u) = (w.stream(), w.stream(), w.stream());
    let first = w.mark(s);
    let e = w.record(s);
    w.wait(t, e);
    let second = w.mark(s);
    event::record(w.device, e, s).unwrap();
    w.wait(u, e);
    assert!(precedes(first, t) && !precedes(second, t));
    assert!(precedes(first, u) && precedes(second, u));
    // Recorded on another stream it no longer stands for s at all.
    let v = w.stream();
    event::record(w.device, e, v).unwrap();
    let x = w.stream();
    w.wait(x, e);
    assert!(!precedes(first, x));
}

#[test]
fn a_wait_keeps_its_point_when_the_event_is_destroyed() {
    let w = world(true);
    let (s, t) = (w.stream(), w.stream());
    let mark = w.mark(s);
    let e = w.record(s);
    w.wait(t, e);
    event::destroy(e).unwrap();
    assert!(precedes(mark, t));
    assert_eq!(w.advance(t, 9), 0);
    assert_eq!(stream::wait_event(w.device, t, e).unwrap_err().status, Status::Destroyed);
}

// ---- the legacy default stream ----------------------------------------------------------------------------------------

#[test]
fn work_on_the_legacy_stream_waits_for_every_blocking_stream() {
    let w = world(true);
    let (s, t, n) = (w.stream(), w.stream(), w.non_blocking());
    w.work(s);
    w.work(t);
    w.work(n);
    w.work(LEGACY);
    w.advance(s, 9);
    assert_eq!(w.advance(LEGACY, 9), 0, "t has not run");
    w.advance(t, 9);
    assert_eq!(w.advance(LEGACY, 9), 1, "non-blocking streams do not matter");
    assert_eq!(w.info(n).executed, 0);
}

#[test]
fn later_operations_of_blocking_streams_wait_for_the_last_barrier_allocations_and_frees_included() {
    let w = world(true);
    let (s, t, n) = (w.stream(), w.stream(), w.non_blocking());
    let block = pool::alloc(w.pool, 512, &AllocOptions::default()).unwrap();
    w.work(LEGACY);
    w.mark(s);
    pool::free_async(block, t).unwrap();
    w.work(n);
    assert_eq!((w.advance(s, 9), w.advance(t, 9), w.advance(n, 9)), (0, 0, 1));
    assert_eq!(w.advance(LEGACY, 9), 1);
    assert_eq!((w.advance(s, 9), w.advance(t, 9)), (1, 1));
}

#[test]
fn allocations_and_frees_on_the_legacy_stream_are_no_barriers() {
    let w = world(true);
    let (s, t) = (w.stream(), w.stream());
    let mark = w.mark(s);
    let block = w.mark(LEGACY);
    pool::free_async(block, LEGACY).unwrap();
    assert_eq!(w.advance(LEGACY, 9), 2, "they waited for nothing");
    assert!(!precedes(mark, t));
    w.work(t);
    assert_eq!(w.advance(t, 9), 1, "and nothing waits for them");
}

#[test]
fn event_records_and_waits_on_the_legacy_stream_are_barriers() {
    let w = world(true);
    let (s, t, u) = (w.stream(), w.stream(), w.stream());
    let mark = w.mark(s);
    w.record(LEGACY);
    assert!(precedes(mark, t));
    let later = w.mark(s);
    assert!(!precedes(later, u));
    w.wait(LEGACY, event::create(w.device).unwrap());
    assert!(precedes(later, u));
}

#[test]
fn now_on_a_blocking_stream_includes_the_barrier_its_next_operation_would_depend_on() {
    let w = world(true);
    let (s, t, n) = (w.stream(), w.stream(), w.non_blocking());
    let (mark, exempt) = (w.mark(s), w.mark(n));
    w.work(LEGACY);
    assert_eq!(w.info(t).submitted, 0);
    assert!(precedes(mark, t));
    assert!(!precedes(mark, n) && !precedes(exempt, t));
    let later = w.mark(s);
    assert!(!precedes(later, t), "submitted after the barrier");
}

#[test]
fn a_stream_created_after_a_barrier_is_ordered_after_it() {
    let w = world(true);
    let s = w.stream();
    let mark = w.mark(s);
    w.work(LEGACY);
    let (late, exempt) = (w.stream(), w.non_blocking());
    assert!(precedes(mark, late) && !precedes(mark, exempt));
    w.work(late);
    assert_eq!(w.advance(late, 9), 0);
}

#[test]
fn a_barrier_carries_what_the_blocking_streams_were_ordered_after() {
    let w = world(true);
    let (n, s, t) = (w.non_blocking(), w.stream(), w.stream());
    let mark = w.mark(n);
    w.order(n, s);
    w.work(LEGACY);
    assert!(precedes(mark, t));
    // And what the legacy stream itself waited for.
    let second = w.mark(n);
    w.order(n, LEGACY);
    assert!(precedes(second, t));
}

#[test]
fn work_asked_about_on_the_legacy_stream_follows_all_blocking_streams_and_what_those_follow() {
    let w = world(true);
    let (s, n) = (w.stream(), w.non_blocking());
    let (mark, exempt) = (w.mark(s), w.mark(n));
    assert!(precedes(mark, LEGACY) && !precedes(exempt, LEGACY));
    w.order(n, s);
    assert!(precedes(exempt, LEGACY));
}

#[test]
fn an_allocation_on_the_legacy_stream_does_not_follow_the_blocking_streams() {
    let w = world(true);
    // A page for each block, so that nothing but the freed one could serve; and policy 1 alone.
    let mut config = PoolConfig::with_entries(vec![MemoryPoolConfig::Direct { reclaim_at: None }]);
    (config.allow_opportunistic, config.allow_internal_dependencies) = (false, false);
    let direct = pool::create(w.device, &config).unwrap();
    let s = w.stream();
    let block = pool::alloc_async(direct, 512, s).unwrap();
    let address = pool::pointer(block);
    pool::free_async(block, s).unwrap();
    let other = pool::info(pool::alloc_async(direct, 512, LEGACY).unwrap()).unwrap();
    assert_eq!(other.reason, Reason::Fresh);
    // After a barrier it does: the legacy stream's own earlier work followed s.
    w.work(LEGACY);
    let same = pool::info(pool::alloc_async(direct, 512, LEGACY).unwrap()).unwrap();
    assert_eq!((same.address, same.reason), (address, Reason::Event));
}

#[test]
fn a_free_on_the_legacy_stream_follows_blocking_allocations_and_what_blocking_streams_follow() {
    let w = world(true);
    let (s, n) = (w.stream(), w.non_blocking());
    let (first, second, third) = (w.mark(s), w.mark(n), w.mark(n));
    let unordered = || pool::stats(w.pool).unwrap().unordered_frees;
    pool::free_async(first, LEGACY).unwrap();
    assert_eq!(unordered(), 0);
    pool::free_async(second, LEGACY).unwrap();
    assert_eq!(unordered(), 1, "n is exempt");
    w.order(n, s);
    assert!(precedes(third, LEGACY));
    pool::free_async(third, LEGACY).unwrap();
    assert_eq!(unordered(), 1, "work on the legacy stream would follow s, and s follows n");
}

#[test]
fn per_thread_default_streams_are_blocking_and_each_threads_own() {
    let w = world(true);
    let mine = StreamId(2);
    let mark = w.mark(mine);
    assert!(precedes(mark, mine) && !precedes(mark, w.stream()));
    let theirs = std::thread::scope(|scope| {
        scope.spawn(|| (w.info(StreamId(2)).id, precedes(mark, StreamId(2)))).join().unwrap()
    });
    assert_ne!(theirs.0, w.info(mine).id);
    assert!(!theirs.1);
    w.work(LEGACY);
    assert!(precedes(mark, w.stream()));
}

// ---- observation ------------------------------------------------------------------------------------------------------

#[test]
fn a_stream_synchronise_observes_the_stream_and_everything_a_chain_leads_from() {
    let w = world(true);
    let (s, t, u, v) = (w.stream(), w.stream(), w.stream(), w.stream());
    let mark = w.mark(s);
    w.order(s, t);
    w.order(t, u);
    let later = w.mark(s);
    w.sync(u);
    assert_eq!((w.info(s).observed, w.info(t).observed, w.info(u).observed), (2, 2, 1));
    assert!(precedes(mark, v) && !precedes(later, v));
}

#[test]
fn an_event_synchronise_observes_the_point_of_the_event_and_what_that_follows() {
    let w = world(true);
    let (s, t, v) = (w.stream(), w.stream(), w.stream());
    let mark = w.mark(s);
    w.order(s, t);
    let e = w.record(t);
    let later = w.mark(t);
    event::synchronize(e).unwrap();
    assert_eq!((w.numbers(s), w.numbers(t)), ((2, 2, 2), (3, 2, 2)));
    assert!(precedes(mark, v) && !precedes(later, v));
}

#[test]
fn a_synchronise_of_a_never_recorded_event_does_nothing() {
    let w = world(true);
    let s = w.stream();
    w.work(s);
    event::synchronize(event::create(w.device).unwrap()).unwrap();
    assert_eq!(w.numbers(s), (1, 0, 0));
}

#[test]
fn a_device_synchronise_observes_every_stream() {
    let w = world(true);
    let (s, n) = (w.stream(), w.non_blocking());
    w.work(s);
    w.work(n);
    w.work(LEGACY);
    device::synchronize(w.device).unwrap();
    for stream in [s, n, LEGACY] {
        assert_eq!(w.numbers(stream), (1, 1, 1));
    }
}

#[test]
fn a_barrier_that_no_operation_of_the_stream_depends_on_yet_is_no_part_of_its_synchronise() {
    let w = world(true);
    let (s, t) = (w.stream(), w.stream());
    w.work(s);
    w.work(t);
    w.work(LEGACY);
    w.sync(t);
    assert_eq!((w.numbers(t), w.numbers(s), w.numbers(LEGACY)), ((1, 1, 1), (1, 0, 0), (1, 0, 0)));
    w.work(t);
    w.sync(t);
    assert_eq!((w.numbers(t), w.numbers(s), w.numbers(LEGACY)), ((2, 2, 2), (1, 1, 1), (1, 1, 1)));
}

#[test]
fn a_synchronise_of_the_legacy_stream_observes_the_blocking_streams_up_to_the_barrier() {
    let w = world(true);
    let (s, t, n) = (w.stream(), w.stream(), w.non_blocking());
    for stream in [s, t, n, LEGACY, s] {
        w.work(stream);
    }
    w.sync(LEGACY);
    assert_eq!((w.info(s).observed, w.info(t).observed, w.info(n).observed), (1, 1, 0));
}

// ---- release ----------------------------------------------------------------------------------------------------------

fn live_streams(w: &World) -> u64 {
    device::info(w.device).unwrap().live_streams
}

#[test]
fn a_released_stream_is_forgotten_once_all_it_submitted_is_observed() {
    let w = world(true);
    assert_eq!(live_streams(&w), 1, "the legacy default stream");
    let (idle, busy, other) = (w.stream(), w.stream(), w.stream());
    let mark = w.mark(busy);
    assert_eq!(live_streams(&w), 4);
    stream::destroy(idle).unwrap();
    assert_eq!(live_streams(&w), 3, "it had submitted nothing");
    stream::release(w.device, busy).unwrap();
    assert_eq!(live_streams(&w), 3, "its work completes first");
    assert!(!precedes(mark, other));
    device::synchronize(w.device).unwrap();
    assert_eq!(live_streams(&w), 2);
    assert!(precedes(mark, other), "a forgotten stream's points count as observed");
    assert!(pool::is_ready(mark).unwrap());
    pool::free_async(mark, other).unwrap();
    assert_eq!(pool::stats(w.pool).unwrap().unordered_frees, 0);
}

#[test]
fn a_released_stream_can_be_waited_for_through_its_events_and_is_forgotten_then() {
    let w = world(true);
    let (gone, s) = (w.stream(), w.stream());
    let mark = w.mark(gone);
    let e = w.record(gone);
    stream::destroy(gone).unwrap();
    w.wait(s, e);
    assert!(precedes(mark, s));
    w.sync(s);
    assert_eq!(live_streams(&w), 2);
    let late = w.stream();
    w.wait(late, e);
    assert_eq!(w.advance(late, 9), 1, "an event of a forgotten stream is complete");
}

/// A stream that waited for another's mark, freed a page and recorded an event, ran and was destroyed; then an allocation asked
/// about it. The mark, and the event.
fn ended(w: &World, outside: StreamId, taker: StreamId) -> (AllocationId, EventId) {
    let between = w.stream();
    let page = |on| pool::alloc_async(w.pool, 64 << 20, on).unwrap();
    let block = page(between);
    let mark = w.mark(outside);
    w.order(outside, between);
    pool::free_async(block, between).unwrap();
    let event = w.record(between);
    w.advance(outside, 9);
    w.advance(between, 9);
    let before = live_streams(w);
    stream::destroy(between).unwrap();
    assert_eq!(live_streams(w), before, "nothing of it is observed");
    let taken = page(taker);
    assert_eq!(pool::info(taken).unwrap().reason, Reason::Opportunistic);
    assert_eq!(live_streams(w), before - 1);
    (mark, event)
}

#[test]
fn a_released_stream_is_forgotten_once_an_allocation_is_answered_that_all_of_it_has_executed() {
    let w = world(true);
    let (outside, taker, s) = (w.stream(), w.stream(), w.stream());
    let (mark, event) = ended(&w, outside, taker);
    assert_eq!(w.info(outside).observed, 0, "what it was ordered after is not observed");
    assert!(!precedes(mark, s));
    // Its events still stand for what it was ordered after.
    w.wait(s, event);
    assert!(precedes(mark, s));
    event::synchronize(event).unwrap();
    assert_eq!(w.info(outside).observed, 2, "the mark and the record that was waited for");
}

#[test]
fn a_created_stream_lets_the_four_be_forgotten_that_were_destroyed_longest_ago_if_they_have_executed() {
    let w = world(true);
    let streams: Vec<StreamId> = (0..7).map(|_| w.stream()).collect();
    for (at, &s) in streams.iter().enumerate() {
        w.work(s);
        // The second and the third do not run.
        if at != 1 && at != 2 {
            w.advance(s, 1);
        }
    }
    let others = live_streams(&w) - 7;
    streams.iter().for_each(|&s| stream::destroy(s).unwrap());
    assert_eq!(live_streams(&w), others + 7);
    w.stream();
    assert_eq!(live_streams(&w), others + 1 + 5, "of the first four two had run");
    w.stream();
    assert_eq!(live_streams(&w), others + 2 + 2, "the other three had, and come before those two");
    w.stream();
    assert_eq!(live_streams(&w), others + 3 + 2);
    device::synchronize(w.device).unwrap();
    assert_eq!(live_streams(&w), others + 3);
}

#[test]
fn a_forgotten_stream_is_no_part_of_later_barriers() {
    let w = world(true);
    let (outside, taker, s) = (w.non_blocking(), w.stream(), w.stream());
    let (mark, event) = ended(&w, outside, taker);
    w.work(LEGACY);
    assert!(!precedes(mark, s));
    w.wait(LEGACY, event);
    assert!(precedes(mark, s));
}

#[test]
fn a_destroyed_stream_takes_no_call_and_default_streams_cannot_be_destroyed() {
    let w = world(true);
    let s = w.stream();
    let e = event::create(w.device).unwrap();
    stream::destroy(s).unwrap();
    let statuses = [
        stream::destroy(s).unwrap_err().status,
        stream::submit(w.device, s, 1).unwrap_err().status,
        stream::wait_event(w.device, s, e).unwrap_err().status,
        stream::synchronize(w.device, s).unwrap_err().status,
        stream::query(w.device, s).unwrap_err().status,
        event::record(w.device, e, s).unwrap_err().status,
        pool::alloc_async(w.pool, 1, s).unwrap_err().status,
    ];
    assert_eq!(statuses, [Status::Destroyed; 7]);
    for default in 0..3 {
        assert_eq!(stream::destroy(StreamId(default)).unwrap_err().status, Status::InvalidValue);
    }
}

// ---- cost -------------------------------------------------------------------------------------------------------------

/// Generous for a slow machine and a build with checks; what is quadratic takes minutes.
const SOON: Duration = Duration::from_secs(10);

#[test]
fn ten_thousand_streams_meet_legacy_barriers_without_quadratic_cost() {
    let w = world(true);
    let streams: Vec<StreamId> = (0..10_000).map(|_| w.stream()).collect();
    let begin = Spent::now();
    let mut marks = Vec::new();
    for &stream in &streams {
        marks.push(w.mark(stream));
    }
    w.work(LEGACY);
    for &stream in &streams {
        w.work(stream);
    }
    // Barriers that find nothing new cost nothing per stream.
    for _ in 0..10_000 {
        w.work(LEGACY);
    }
    for (mark, stream) in marks.iter().zip(streams.iter().rev()) {
        assert!(precedes(*mark, *stream));
    }
    w.sync(streams[0]);
    device::synchronize(w.device).unwrap();
    assert_eq!(w.info(LEGACY).observed, 10_001);
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
}

#[test]
fn one_busy_stream_meets_barriers_at_a_cost_that_ignores_ten_thousand_idle_ones() {
    let w = world(false);
    let idle: Vec<StreamId> = (0..10_000).map(|_| w.stream()).collect();
    for &stream in &idle {
        w.work(stream);
    }
    let s = w.stream();
    let begin = Spent::now();
    for _ in 0..100_000 {
        w.work(LEGACY);
        w.work(s);
    }
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
}

#[test]
fn a_chain_through_ten_thousand_streams_is_followed_without_deep_recursion() {
    let w = world(true);
    let streams: Vec<StreamId> = (0..10_000).map(|_| w.stream()).collect();
    // Waits from the last to the first, so that each stream is ordered after its one neighbour only.
    let mark = w.mark(streams[0]);
    let begin = Spent::now();
    let events: Vec<EventId> = streams.iter().map(|&stream| w.record(stream)).collect();
    for k in (1..streams.len()).rev() {
        w.wait(streams[k], events[k - 1]);
    }
    let last = *streams.last().unwrap();
    assert!(!precedes(mark, last), "each record came before its stream's wait");
    w.sync(last);
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
}

#[test]
fn a_chain_of_waits_observed_on_the_way_keeps_its_cost() {
    let w = world(false);
    let begin = Spent::now();
    let mut previous = w.stream();
    let first = w.mark(previous);
    for k in 0..10_000 {
        let next = w.stream();
        w.order(previous, next);
        if k % 100 == 0 {
            w.sync(next);
        }
        stream::destroy(previous).unwrap();
        previous = next;
    }
    assert!(precedes(first, previous));
    device::synchronize(w.device).unwrap();
    assert_eq!(live_streams(&w), 2, "the legacy stream and the last");
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
}

#[test]
fn a_stream_that_waited_for_a_thousand_others_is_ordered_after_each() {
    let w = world(true);
    let (all, next) = (w.stream(), w.stream());
    let streams: Vec<StreamId> = (0..1000).map(|_| w.stream()).collect();
    let marks: Vec<AllocationId> = streams.iter().map(|&stream| w.mark(stream)).collect();
    for &stream in &streams {
        w.order(stream, all);
    }
    w.order(all, next);
    assert!(marks.iter().all(|&mark| precedes(mark, next)));
    w.sync(next);
    assert!(streams.iter().all(|&stream| w.numbers(stream) == (2, 2, 2)));
}
