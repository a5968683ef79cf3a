//! CUDA's reuse and order statements on the stand-in, by hand-written expectations (numbers as in CUDA-SEMANTICS).

use simcuda::config::{Config, Mode};
use simcuda::machine::Machine;
use simcuda::memory::Place;
use simcuda::order::{Action, Shape, StreamId};

const MIB: u64 = 1 << 20;

struct Bench {
    machine: &'static Machine,
    context: u64,
    pool: u64,
}

impl Bench {
    /// One device of `memory` bytes; the pool has only the policies named (1 to 3).
    fn new(mode: Mode, seed: u64, memory: u64, policies: &[usize]) -> Bench {
        let machine = Machine::new(Config { mode, seed, memory, ..Config::default() });
        let mut state = machine.lock();
        let context = state.new_context(0, 0);
        let pool = state.devices[0].pool;
        let on = [1, 2, 3].map(|policy| policies.contains(&policy));
        state.pools.get_mut(&pool).unwrap().policies = on;
        drop(state);
        Bench { machine, context, pool }
    }

    fn stream(&self, flags: u32) -> StreamId {
        let mut state = self.machine.lock();
        let handle = state.new_stream(self.context, flags, 0);
        state.handles[&handle]
    }

    fn legacy(&self) -> StreamId {
        self.machine.lock().contexts[&self.context].legacy
    }

    fn alloc(&self, bytes: u64, stream: StreamId) -> Result<u64, simcuda::code::Code> {
        let mut state = self.machine.lock();
        let address = state.alloc_async(self.pool, bytes, stream);
        state.stir(self.machine);
        address
    }

    fn free(&self, address: u64, stream: StreamId) {
        let mut state = self.machine.lock();
        state.free_async(address, stream).unwrap();
        state.stir(self.machine);
    }

    fn work(&self, stream: StreamId) {
        let mut state = self.machine.lock();
        state.submit(stream, Action::Nothing, true).unwrap();
        state.stir(self.machine);
    }

    /// Records on `from` and makes `to` wait.
    fn link(&self, from: StreamId, to: StreamId) {
        let mut state = self.machine.lock();
        let event = state.new_event(self.context, 0);
        state.record(event, from).unwrap();
        state.wait(to, event).unwrap();
        state.stir(self.machine);
    }
}

/// Frees 4 KiB on a held blocking stream; gives the freed address and the stream.
fn pending(bench: &Bench) -> (u64, StreamId) {
    let s1 = bench.stream(0);
    bench.machine.gate(s1, true);
    bench.work(s1);
    let address = bench.alloc(4096, s1).unwrap();
    bench.free(address, s1);
    (address, s1)
}

#[test]
fn s16_a_free_serves_the_same_stream_with_all_policies_off() {
    let bench = Bench::new(Mode::Eager, 1, 256 * MIB, &[]);
    let (address, s1) = pending(&bench);
    assert_eq!(bench.alloc(4096, s1), Ok(address));
}

#[test]
fn s17_a_synchronised_free_serves_any_stream_with_all_policies_off() {
    let bench = Bench::new(Mode::Lazy, 1, 256 * MIB, &[]);
    bench.machine.lock().pools.get_mut(&bench.pool).unwrap().threshold = u64::MAX;
    let s1 = bench.stream(0);
    let address = bench.alloc(4096, s1).unwrap();
    bench.free(address, s1);
    bench.machine.finish_stream(s1);
    let s2 = bench.stream(0);
    assert_eq!(bench.alloc(4096, s2), Ok(address));
}

#[test]
fn s18_an_event_after_the_free_makes_it_serve_while_work_is_pending() {
    let bench = Bench::new(Mode::Eager, 1, 256 * MIB, &[1]);
    let (address, s1) = pending(&bench);
    let s2 = bench.stream(0);
    bench.link(s1, s2);
    assert_eq!(bench.alloc(4096, s2), Ok(address));
}

#[test]
fn s19_without_policy_1_an_event_does_not_help() {
    let bench = Bench::new(Mode::Eager, 1, 256 * MIB, &[]);
    let (address, s1) = pending(&bench);
    let s2 = bench.stream(0);
    bench.link(s1, s2);
    assert_ne!(bench.alloc(4096, s2).unwrap(), address);
}

#[test]
fn s20_an_event_before_the_free_is_no_dependency() {
    let bench = Bench::new(Mode::Eager, 1, 256 * MIB, &[1, 2]);
    let (s1, s2) = (bench.stream(0), bench.stream(0));
    bench.machine.gate(s1, true);
    let address = bench.alloc(4096, s1).unwrap();
    bench.link(s1, s2);
    bench.free(address, s1);
    assert_ne!(bench.alloc(4096, s2).unwrap(), address);
}

#[test]
fn s21_a_dependency_through_a_third_stream_counts() {
    let bench = Bench::new(Mode::Eager, 1, 256 * MIB, &[1]);
    let (address, s1) = pending(&bench);
    let (s2, s3) = (bench.stream(0), bench.stream(0));
    bench.link(s1, s2);
    bench.link(s2, s3);
    assert_eq!(bench.alloc(4096, s3), Ok(address));
}

#[test]
fn s22_and_s23_finished_but_not_synchronised_serves_only_with_policy_2() {
    for (policies, same) in [(&[2][..], true), (&[][..], false)] {
        let bench = Bench::new(Mode::Eager, 1, 256 * MIB, policies);
        let (s1, s2) = (bench.stream(0), bench.stream(0));
        let address = bench.alloc(4096, s1).unwrap();
        bench.free(address, s1);
        assert_eq!(bench.alloc(4096, s2).unwrap() == address, same);
    }
}

#[test]
fn s24_a_pending_free_without_dependency_does_not_serve_while_there_is_room() {
    let bench = Bench::new(Mode::Eager, 1, 256 * MIB, &[1, 2, 3]);
    let (address, _) = pending(&bench);
    let s2 = bench.stream(0);
    assert_ne!(bench.alloc(4096, s2).unwrap(), address);
}

#[test]
fn s25_and_s26_a_full_pool_makes_the_stream_wait_with_policy_3_and_fails_without() {
    for policy_3 in [true, false] {
        let bench = Bench::new(Mode::Eager, 1, 32 * MIB, if policy_3 { &[3] } else { &[] });
        let (s1, s2) = (bench.stream(0), bench.stream(0));
        bench.machine.gate(s1, true);
        let address = bench.alloc(32 * MIB, s1).unwrap();
        bench.free(address, s1);
        let again = bench.alloc(32 * MIB, s2);
        if !policy_3 {
            assert_eq!(again, Err(simcuda::code::OUT_OF_MEMORY));
            continue;
        }
        assert_eq!(again, Ok(address));
        bench.work(s2);
        let executed = |id: StreamId| bench.machine.lock().streams[id].executed;
        assert_eq!(executed(s2), 0, "later work of s2 follows the free");
        bench.machine.gate(s1, false);
        assert_eq!(executed(s2), 2);
    }
}

#[test]
fn s27_and_s28_the_legacy_stream_orders_blocking_streams_only() {
    for (flags, same) in [(0, true), (1, false)] {
        let bench = Bench::new(Mode::Eager, 1, 256 * MIB, &[1]);
        let (address, _) = pending(&bench);
        bench.work(bench.legacy());
        let s2 = bench.stream(flags);
        assert_eq!(bench.alloc(4096, s2).unwrap() == address, same);
    }
}

/// A fill on s1, then a read on s2 with or without an event between them.
fn value_read(seed: u64, linked: bool) -> u8 {
    let bench = Bench::new(Mode::Adversarial, seed, 64 * MIB, &[1]);
    let (s1, s2) = (bench.stream(0), bench.stream(1));
    let (from, to) = (bench.alloc(512, s1).unwrap(), bench.alloc(512, s2).unwrap());
    bench.machine.finish_context(bench.context, true);
    let mut state = bench.machine.lock();
    state.submit(s1, Action::Fill { to: from, pattern: [7; 4], size: 1, shape: Shape::line(512) }, true).unwrap();
    drop(state);
    if linked {
        bench.link(s1, s2);
    }
    let mut state = bench.machine.lock();
    let (to_place, from_place) = (Place::Device(to), Place::Device(from));
    let copy = Action::Copy { to: to_place, from: from_place, shape: Shape::line(512) };
    state.submit(s2, copy, true).unwrap();
    state.stir(bench.machine);
    drop(state);
    bench.machine.finish_stream(s2);
    let state = bench.machine.lock();
    state.memory.read(to_place, 1).unwrap()[0]
}

#[test]
fn a_missing_dependency_shows_as_wrong_data_under_some_seed_and_an_event_never_does() {
    assert!((0..100).all(|seed| value_read(seed, true) == 7));
    assert!((0..100).any(|seed| value_read(seed, false) != 7));
}
