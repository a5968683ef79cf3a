//! Small programs over a block or two, right and wrong, with the verdict on every access and free written by hand.
//!
//! A line is `STREAM VERB ...`: streams 1, 2, 3 are blocking, `n` (number 4) is non-blocking, `L` (number 0) is the legacy
//! default stream, `host` is the host. What is expected stands after `->`; nothing expected means that all is well.
//! `after S:N` names the point the verdict must name: the N-th operation of stream S, counted by hand (an allocation, a
//! free, an event record, a wait, an access and a piece of work are one operation each, on their own stream).
//!
//! Every program runs on eager and on lazy streams and in every kind of entry: no verdict may depend on what has run or on
//! how memory is carved.

use smp_core::device::{self, ModelOptions};
use smp_core::pool::access::{self, AccessKind, Outcome, Verdict};
use smp_core::stream::{self, StreamFlags};
use smp_core::{
    AllocationId, DeviceId, EventId, MemoryPoolConfig, Point, PoolConfig, PoolId, Preset, StreamId, StreamOrderId,
    event, pool,
};
use std::collections::{BTreeSet, HashMap};

struct Program {
    name: &'static str,
    text: &'static str,
}

macro_rules! programs {
    ($($name:ident: $text:literal)*) => {
        const PROGRAMS: &[Program] = &[$(Program { name: stringify!($name), text: $text }),*];
        $(#[test]
        fn $name() {
            run(stringify!($name));
        })*
    };
}

programs! {
    // ---- right ------------------------------------------------------------------------------------------------------

    one_stream_may_do_anything_in_its_own_order: "
        1 alloc A
        1 write A
        1 read A
        1 update A
        1 free A"

    another_stream_may_use_a_block_after_an_event_recorded_after_the_allocation: "
        1 alloc A
        1 record e
        2 wait e
        2 write A
        2 free A"

    a_reader_may_read_after_waiting_for_the_writer: "
        1 alloc A
        1 write A
        1 record e
        2 wait e
        2 read A
        2 free A"

    readers_need_no_order_among_them: "
        1 alloc A
        1 write A
        1 record e
        2 wait e
        3 wait e
        2 read A
        3 read A
        1 read A"

    a_writer_may_write_after_waiting_for_all_readers: "
        1 alloc A
        1 write A
        1 record e
        2 wait e
        3 wait e
        2 read A
        3 read A
        2 record f
        3 record g
        1 wait f
        1 wait g
        1 write A
        1 free A"

    order_is_transitive_through_a_third_stream: "
        1 alloc A
        1 write A
        1 record e
        2 wait e
        2 record f
        3 wait f
        3 update A
        3 free A"

    order_is_transitive_through_a_stream_that_never_touched_the_block_but_worked_in_between: "
        1 alloc A
        1 write A
        1 record e
        2 wait e
        2 work
        2 work
        2 record f
        n wait f
        n read A"

    a_stream_synchronise_orders_everybody_after_it: "
        1 alloc A
        1 write A
        host sync 1
        2 write A
        host sync 2
        n read A"

    an_event_synchronise_orders_everybody_after_the_event: "
        1 alloc A
        1 write A
        1 record e
        1 read A
        host sync e
        2 read A"

    a_device_synchronise_orders_everybody_after_everything: "
        1 alloc A
        1 record e
        2 wait e
        2 write A 0..2048
        1 write A 2048..4096
        host sync all
        3 update A
        3 free A"

    a_synchronise_also_observes_what_the_stream_had_waited_for: "
        1 alloc A
        1 write A
        1 record e
        2 wait e
        host sync 2
        3 write A"

    writers_of_adjacent_ranges_do_not_race: "
        1 alloc A
        1 record e
        2 wait e
        1 write A 0..2048
        2 write A 2048..4096
        1 write A 2047..2048
        2 write A 2048..2049"

    a_reader_of_two_ranges_may_read_after_waiting_for_both_writers: "
        1 alloc A
        1 record e
        2 wait e
        1 write A 0..2048
        2 write A 2048..4096
        1 record f
        2 record g
        3 wait f
        3 wait g
        3 read A"

    work_on_the_legacy_stream_orders_blocking_streams: "
        1 alloc A
        1 write A
        L work
        2 write A
        2 free A"

    an_access_on_the_legacy_stream_is_a_barrier_itself: "
        1 alloc A
        1 write A
        L update A
        2 read A
        3 read A
        L free A"

    an_event_recorded_on_the_legacy_stream_carries_the_blocking_streams_to_a_non_blocking_one: "
        1 alloc A
        1 write A
        L record e
        n wait e
        n write A"

    a_non_blocking_stream_is_ordered_by_events: "
        n alloc A
        n write A
        n record e
        1 wait e
        1 write A
        1 record f
        n wait f
        n free A"

    a_host_ordered_allocation_is_usable_by_every_stream: "
        host alloc A
        n read A
        3 read A
        L read A"

    memory_used_again_on_the_same_stream_has_a_new_history: "
        1 alloc A
        1 record e
        2 wait e
        2 read A
        2 record f
        1 wait f
        1 free A
        1 alloc B = A
        1 write B"

    a_wait_takes_the_last_record_of_the_event: "
        1 alloc A
        1 record e
        1 write A
        1 record e
        2 wait e
        2 read A"

    a_wait_keeps_its_point_when_the_event_is_recorded_again: "
        1 alloc A
        1 write A
        1 record e
        2 wait e
        3 record e
        2 write A"

    a_wait_keeps_its_point_when_the_event_is_destroyed: "
        1 alloc A
        1 write A
        1 record e
        2 wait e
        host destroy e
        2 write A"

    following_the_last_of_a_streams_readers_follows_the_earlier_ones: "
        1 alloc A
        1 record e
        2 wait e
        2 read A
        2 read A 0..100
        2 read A 50..60
        2 record f
        1 wait f
        1 write A"

    a_free_may_be_on_the_stream_of_the_last_user: "
        1 alloc A
        1 write A
        1 record e
        2 wait e
        2 read A
        2 free A"

    a_free_of_an_added_user_follows_that_users_accesses: "
        1 alloc A
        1 record e
        2 wait e
        host user A 2
        2 read A
        1 free A"

    a_free_of_an_added_user_follows_what_that_user_follows: "
        1 alloc A
        1 record e
        3 wait e
        3 read A
        3 record f
        2 wait f
        host user A 2
        1 free A"

    a_host_ordered_free_follows_everything_submitted: "
        1 alloc A
        1 record e
        2 wait e
        n wait e
        2 read A
        n read A
        host free A"

    a_free_after_a_device_synchronise_follows_everything: "
        1 alloc A
        1 record e
        2 wait e
        n wait e
        2 read A
        n read A
        host sync all
        1 free A"

    points_of_a_released_and_observed_stream_precede_everything: "
        1 alloc A
        1 write A
        host sync 1
        host release 1
        2 write A
        n wait e
        2 free A"

    work_on_the_legacy_stream_carries_its_earlier_allocation_to_blocking_streams: "
        L alloc A
        L work
        2 write A"

    a_stream_created_after_a_barrier_is_ordered_after_it: "
        1 alloc A
        1 write A
        L work
        late write A
        late free A"

    // ---- wrong ------------------------------------------------------------------------------------------------------

    another_stream_without_any_order_is_not_ordered_after_the_allocation: "
        1 alloc A
        2 read A -> not-ordered after 1:1"

    an_event_recorded_before_the_allocation_orders_nothing: "
        1 record e
        1 alloc A
        2 wait e
        2 write A -> not-ordered after 1:2"

    a_wait_on_a_never_recorded_event_orders_nothing: "
        1 alloc A
        2 wait e
        1 record e
        2 write A -> not-ordered after 1:1"

    waiting_in_the_wrong_direction_orders_nothing: "
        1 alloc A
        2 record e
        1 wait e
        2 write A -> not-ordered after 1:1"

    non_blocking_streams_are_exempt_from_the_legacy_stream: "
        1 alloc A
        L work
        n read A -> not-ordered after 1:1"

    work_on_the_legacy_stream_does_not_order_a_non_blocking_one: "
        n alloc A
        L work
        1 write A -> not-ordered after 4:1
        L write A -> not-ordered after 4:1"

    an_allocation_on_the_legacy_stream_is_no_barrier: "
        L alloc A
        2 write A -> not-ordered after 0:1"

    an_allocation_on_the_legacy_stream_brings_in_no_blocking_stream: "
        1 alloc A
        1 write A
        L alloc B
        2 read A -> not-ordered + race-rw after 1:1"

    what_comes_after_a_barrier_is_not_ordered_by_it: "
        1 alloc A
        L work
        1 write A
        2 read A -> race-rw after 1:2"

    use_after_free_on_the_same_stream: "
        1 alloc A
        1 write A
        1 free A
        1 read A -> use-after-free after 1:3"

    use_after_free_even_if_ordered_after_the_allocation_and_the_free_has_not_run: "
        1 alloc A
        1 record e
        2 wait e
        1 free A
        2 read A -> use-after-free after 1:3"

    use_after_free_by_the_stream_the_free_must_still_wait_for: "
        1 alloc A
        1 record e
        2 wait e
        2 free A
        2 write A -> use-after-free after 2:2
        1 write A -> use-after-free after 2:2"

    use_after_a_free_the_host_has_observed: "
        1 alloc A
        host sync 1
        host free A
        2 read A -> use-after-free"

    use_after_the_free_of_a_block_with_an_added_user: "
        1 alloc A
        2 work
        host user A 2
        1 free A
        1 read A -> use-after-free after 2:1"

    use_after_free_of_memory_that_serves_another_allocation_is_judged_against_that_one: "
        1 alloc A
        1 record e
        2 wait e
        1 free A
        1 alloc B = A
        2 read A -> not-ordered after 1:4"

    two_writers_without_order_race: "
        1 alloc A
        1 record e
        2 wait e
        1 write A
        2 write A -> race-ww after 1:3"

    a_reader_races_a_writer_it_does_not_follow: "
        1 alloc A
        1 record e
        2 wait e
        1 write A
        2 read A -> race-rw after 1:3"

    a_writer_races_a_reader_it_does_not_follow: "
        1 alloc A
        1 record e
        2 wait e
        1 read A
        2 write A -> race-rw after 1:3"

    an_update_races_a_reader_as_a_writer_does: "
        1 alloc A
        1 record e
        2 wait e
        1 read A
        2 update A -> race-rw after 1:3"

    two_updates_race_as_writers_do: "
        1 alloc A
        1 record e
        2 wait e
        1 update A
        2 update A -> race-ww after 1:3"

    a_writer_must_follow_every_reader: "
        1 alloc A
        1 write A
        1 record e
        2 wait e
        3 wait e
        2 read A
        3 read A
        2 record f
        1 wait f
        1 write A -> race-rw after 3:2"

    a_reader_must_follow_every_writer: "
        1 alloc A
        1 record e
        2 wait e
        1 write A
        2 write A -> race-ww after 1:3
        2 record f
        3 wait f
        3 read A -> race-rw after 1:3"

    an_event_recorded_before_the_write_does_not_carry_it: "
        1 alloc A
        1 record e
        1 write A
        2 wait e
        2 read A -> race-rw after 1:3"

    an_event_passed_on_before_the_wait_does_not_carry_what_the_wait_brings: "
        1 alloc A
        1 record e
        2 wait e
        1 write A
        1 record f
        2 record g
        2 wait f
        3 wait g
        3 read A -> race-rw after 1:3
        2 read A"

    an_event_recorded_again_after_the_wait_does_not_move_the_wait: "
        1 alloc A
        1 record e
        2 wait e
        1 write A
        1 record e
        2 read A -> race-rw after 1:3"

    order_points_one_way: "
        1 alloc A
        1 record e
        2 wait e
        2 write A
        1 write A -> race-ww after 2:2"

    having_run_is_no_order: "
        1 alloc A
        1 record e
        2 wait e
        1 write A
        host advance 1
        host query 1
        2 read A -> race-rw after 1:3"

    one_byte_in_common_is_enough: "
        1 alloc A
        1 record e
        2 wait e
        1 write A 0..2049
        2 write A 2049..2059
        2 read A 2048..2049 -> race-rw after 1:3
        2 write A 2047..2048 -> race-ww after 1:3"

    a_race_before_the_allocation_is_both: "
        1 alloc A
        1 write A
        2 write A -> not-ordered + race-ww after 1:1"

    a_writer_hidden_by_a_later_reader_of_its_stream_still_races: "
        1 alloc A
        1 record e
        2 wait e
        1 write A
        1 read A
        2 read A -> race-rw after 1:3"

    a_synchronise_of_another_stream_observes_nothing_of_this_one: "
        1 alloc A
        host sync 2
        2 read A -> not-ordered after 1:1"

    a_synchronise_observes_only_what_came_before_it: "
        1 alloc A
        host sync 1
        1 write A
        2 read A -> race-rw after 1:2"

    an_event_synchronise_observes_only_what_came_before_the_event: "
        1 alloc A
        1 record e
        1 write A
        host sync e
        2 read A -> race-rw after 1:3"

    a_race_in_a_part_of_the_range_is_a_race: "
        1 alloc A
        1 record e
        2 wait e
        1 write A 0..100
        1 record f
        2 wait f
        1 write A 300..400
        2 read A 0..300
        2 read A 0..301 -> race-rw after 1:5"

    a_range_past_the_bytes_asked_for_is_out_of_bounds: "
        1 alloc A 1000
        1 write A 0..1000
        1 write A 0..1001 -> out-of-bounds
        1 read A 1000..1001 -> out-of-bounds"

    a_range_out_of_bounds_still_races_inside: "
        1 alloc A 1000
        1 record e
        2 wait e
        1 write A 990..1000
        2 write A 999..1001 -> out-of-bounds + race-ww after 1:3"

    a_zero_sized_allocation_holds_no_byte: "
        1 alloc A 0
        1 read A 0..0
        1 read A 0..1 -> out-of-bounds"

    an_access_of_no_bytes_races_nothing_but_must_follow_the_allocation: "
        1 alloc A
        1 record e
        2 wait e
        1 write A
        2 write A 10..10
        3 write A 10..10 -> not-ordered after 1:1"

    // ---- frees --------------------------------------------------------------------------------------------------------

    a_free_that_does_not_follow_a_use_is_counted: "
        1 alloc A
        1 record e
        2 wait e
        2 read A
        1 free A -> unfollowed"

    a_free_that_follows_the_writer_but_not_the_reader_is_counted: "
        1 alloc A
        1 write A
        1 record e
        2 wait e
        3 wait e
        2 read A
        3 free A -> unfollowed"

    a_free_on_a_stream_without_order_is_unordered_and_follows_no_use: "
        1 alloc A
        1 write A
        2 free A -> unordered + unfollowed"

    a_free_with_an_added_user_does_not_follow_another_streams_use: "
        1 alloc A
        1 record e
        2 wait e
        3 wait e
        2 read A
        host user A 3
        1 free A -> unfollowed"

    a_free_on_the_legacy_stream_follows_blocking_streams_but_not_others: "
        1 alloc A
        1 alloc B
        1 record e
        2 wait e
        n wait e
        2 read A
        n read B
        L free A
        L free B -> unfollowed"

    a_free_with_the_legacy_stream_as_added_user_follows_only_its_last_operation: "
        1 alloc A
        1 record e
        2 wait e
        host user A L
        2 read A
        1 free A -> unfollowed"

    a_free_on_the_legacy_stream_follows_what_blocking_streams_waited_for: "
        1 alloc A
        1 record e
        n wait e
        n read A
        n record f
        2 wait f
        L free A"

    a_free_does_not_follow_a_use_that_only_has_run: "
        1 alloc A
        1 record e
        2 wait e
        2 read A
        host advance 1
        host advance 2
        1 free A -> unfollowed"
}

#[derive(Clone, Copy, Debug)]
enum Entry {
    Sliced,
    Exclusive,
    Direct,
    Cuda,
}

/// The state of one running program.
struct Machine {
    device: DeviceId,
    pool: PoolId,
    streams: HashMap<&'static str, StreamId>,
    events: HashMap<&'static str, EventId>,
    /// Address and handle by name; the name keeps its address when the block is freed.
    blocks: HashMap<&'static str, (u64, AllocationId)>,
    live: HashMap<u64, AllocationId>,
}

fn run(name: &str) {
    let program = PROGRAMS.iter().find(|program| program.name == name).unwrap();
    for entry in [Entry::Sliced, Entry::Exclusive, Entry::Direct, Entry::Cuda] {
        for lazy in [false, true] {
            let mut machine = Machine::new(entry, lazy);
            for line in program.text.lines().map(str::trim).filter(|line| !line.is_empty()) {
                machine.step(line, &format!("{name} ({entry:?}, lazy {lazy}): {line}"));
            }
            pool::check_invariants(machine.pool).unwrap();
            device::synchronize(machine.device).unwrap();
            pool::check_invariants(machine.pool).unwrap();
        }
    }
}

impl Machine {
    fn new(entry: Entry, lazy: bool) -> Machine {
        let device = device::open_model(&ModelOptions { lazy, ..Default::default() }).unwrap();
        let config = match entry {
            Entry::Sliced => PoolConfig::with_entries(vec![MemoryPoolConfig::Sliced {
                page_size: 2 << 20,
                max_slice_size: None,
                max_pool_size: None,
                dealloc_period: None,
            }]),
            Entry::Exclusive => PoolConfig::with_entries(vec![MemoryPoolConfig::Exclusive {
                max_alloc_size: 1 << 20,
                dealloc_period: None,
            }]),
            Entry::Direct => PoolConfig::with_entries(vec![MemoryPoolConfig::Direct { reclaim_at: None }]),
            Entry::Cuda => PoolConfig::preset(Preset::Cuda),
        };
        let pool = pool::create(device, &config).unwrap();
        let mut streams = HashMap::from([("L", StreamId(0))]);
        for name in ["1", "2", "3", "n"] {
            let flags = StreamFlags { non_blocking: name == "n", lazy: None };
            streams.insert(name, stream::create(device, flags).unwrap());
        }
        Machine { device, pool, streams, events: HashMap::new(), blocks: HashMap::new(), live: HashMap::new() }
    }

    fn stream(&mut self, name: &'static str) -> StreamId {
        let device = self.device;
        *self.streams.entry(name).or_insert_with(|| {
            assert_eq!(name, "late", "no such stream");
            stream::create(device, StreamFlags::default()).unwrap()
        })
    }

    fn event(&mut self, name: &'static str) -> EventId {
        let device = self.device;
        *self.events.entry(name).or_insert_with(|| event::create(device).unwrap())
    }

    fn step(&mut self, line: &'static str, context: &str) {
        let (action, expected) = line.split_once("->").unwrap_or((line, ""));
        let words: Vec<&'static str> = action.split_whitespace().collect();
        let expected = expected.trim();
        let mut found = String::new();
        match words[..] {
            ["host", "alloc", block] => self.alloc(block, 4096, None, None, context),
            ["host", "free", block] => found = self.free(block, None),
            ["host", "user", block, user] => {
                let user = self.stream(user);
                pool::add_user(self.blocks[block].1, user).unwrap()
            }
            ["host", "sync", "all"] => device::synchronize(self.device).unwrap(),
            ["host", "sync", what] => match self.events.get(what) {
                Some(&event) => event::synchronize(event).unwrap(),
                None => stream::synchronize(self.device, self.streams[what]).unwrap(),
            },
            ["host", "destroy", event] => event::destroy(self.events[event]).unwrap(),
            ["host", "release", name] => stream::destroy(self.streams[name]).unwrap(),
            ["host", "advance", name] => {
                stream::advance(self.device, self.streams[name], u64::MAX).unwrap();
            }
            ["host", "query", name] => assert!(stream::query(self.device, self.streams[name]).unwrap(), "{context}"),
            [on, "alloc", block] => self.alloc(block, 4096, Some(on), None, context),
            [on, "alloc", block, "=", same] => self.alloc(block, 4096, Some(on), Some(same), context),
            [on, "alloc", block, size] => self.alloc(block, size.parse().unwrap(), Some(on), None, context),
            [on, "free", block] => found = self.free(block, Some(on)),
            [on, "work"] => {
                let on = self.stream(on);
                stream::submit(self.device, on, 1).unwrap();
            }
            [on, "record", event] => {
                let (on, event) = (self.stream(on), self.event(event));
                event::record(self.device, event, on).unwrap();
            }
            [on, "wait", event] => {
                let (on, event) = (self.stream(on), self.event(event));
                stream::wait_event(self.device, on, event).unwrap();
            }
            [on, kind @ ("read" | "write" | "update"), block] => found = self.access(on, kind, block, 0..4096, context),
            [on, kind @ ("read" | "write" | "update"), block, range] => {
                let (start, end) = range.split_once("..").unwrap();
                found = self.access(on, kind, block, start.parse().unwrap()..end.parse().unwrap(), context);
            }
            _ => panic!("what is meant by {context}?"),
        }
        assert_eq!(found, expected, "{context}");
    }

    fn alloc(
        &mut self,
        block: &'static str,
        size: u64,
        on: Option<&'static str>,
        same: Option<&'static str>,
        context: &str,
    ) {
        let id = match on {
            Some(on) => {
                let on = self.stream(on);
                pool::alloc_async(self.pool, size, on).unwrap()
            }
            None => pool::alloc(self.pool, size, &Default::default()).unwrap(),
        };
        let address = pool::info(id).unwrap().address;
        if let Some(same) = same {
            assert_eq!(address, self.blocks[same].0, "{context}: the memory serves again");
        }
        self.blocks.insert(block, (address, id));
        self.live.insert(address, id);
    }

    /// What the pool counted about the free.
    fn free(&mut self, block: &'static str, on: Option<&'static str>) -> String {
        let before = pool::stats(self.pool).unwrap();
        let (address, id) = self.blocks[block];
        match on {
            Some(on) => {
                let on = self.stream(on);
                pool::free_async(id, on).unwrap()
            }
            None => pool::free(id).unwrap(),
        }
        self.live.remove(&address);
        let after = pool::stats(self.pool).unwrap();
        let mut found = Vec::new();
        if after.unordered_frees == before.unordered_frees + 1 {
            found.push("unordered");
        }
        if after.racing_frees == before.racing_frees + 1 {
            found.push("unfollowed");
            let message = access::last_racing_free(self.pool).unwrap().unwrap();
            assert!(message.contains(&format!("{id:?}")), "{message}");
        }
        found.join(" + ")
    }

    fn access(
        &mut self,
        on: &'static str,
        kind: &str,
        block: &'static str,
        range: std::ops::Range<u64>,
        context: &str,
    ) -> String {
        let kind = match kind {
            "read" => AccessKind::Read,
            "write" => AccessKind::Write,
            _ => AccessKind::ReadWrite,
        };
        let address = self.blocks[block].0;
        let on = self.stream(on);
        let verdict = access::note(self.device, address + range.start, range.end - range.start, on, kind).unwrap();
        let info = stream::info(self.device, on).unwrap();
        assert_eq!(verdict.at, Point { stream: info.id, seq: info.submitted }, "{context}: it is the last operation");
        match self.live.get(&address) {
            Some(&live) => assert_eq!((verdict.allocation, verdict.offset), (live, range.start), "{context}"),
            None => assert_eq!(verdict.allocation, AllocationId(0), "{context}"),
        }
        describe(&verdict, context)
    }
}

/// The verdict in the words of the programs, checked to agree with itself.
fn describe(verdict: &Verdict, context: &str) -> String {
    assert!(!verdict.faults.contains(&Outcome::Unproven), "{context}: the model device always knows");
    assert_eq!(verdict.outcome, verdict.faults.first().copied().unwrap_or(Outcome::Ordered), "{context}");
    assert_eq!(verdict.message.is_empty(), verdict.faults.is_empty(), "{context}: {}", verdict.message);
    assert!(verdict.message.len() < 256, "{context}: {}", verdict.message);
    let words: Vec<&str> = verdict
        .faults
        .iter()
        .map(|fault| match fault {
            Outcome::NotOrderedAfterAllocation => "not-ordered",
            Outcome::UseAfterFree => "use-after-free",
            Outcome::RaceWriteWrite => "race-ww",
            Outcome::RaceReadWrite => "race-rw",
            Outcome::OutOfBounds => "out-of-bounds",
            Outcome::UnknownPointer => "unknown",
            Outcome::Ordered | Outcome::Unproven => "?",
        })
        .collect();
    let after = verdict
        .other
        .map_or(String::new(), |Point { stream: StreamOrderId(stream), seq }| format!(" after {stream}:{seq}"));
    words.join(" + ") + &after
}

#[test]
fn there_are_thirty_programs_and_more_each_with_another_name_and_both_kinds_of_verdict() {
    let names: BTreeSet<_> = PROGRAMS.iter().map(|program| program.name).collect();
    assert_eq!(names.len(), PROGRAMS.len());
    let wrong = PROGRAMS.iter().filter(|program| program.text.contains("->")).count();
    assert!(wrong >= 15 && PROGRAMS.len() - wrong >= 15, "{wrong} of {} are wrong", PROGRAMS.len());
}
