//! Random programs on the stand-in's own pools, in the adversarial order: what keeps CUDA's rules never reads a wrong
//! byte, and what breaks them does.

use simcuda::config::{Config, Mode};
use simcuda::machine::{Machine, State};
use simcuda::memory::Place;
use simcuda::order::{Action, Random, Shape, StreamId};

const STREAMS: usize = 4;
/// Bytes checked of each block.
const PART: u64 = 512;

struct Block {
    address: u64,
    stream: StreamId,
    value: u8,
    /// Where its bytes are copied before it is freed.
    seen: u64,
}

struct Program {
    machine: &'static Machine,
    context: u64,
    streams: Vec<StreamId>,
    random: Random,
    live: Vec<Block>,
    /// (place of the copy, what it must hold) of blocks freed.
    checks: Vec<(u64, u8)>,
    /// Places that copies go to, one a block.
    next_seen: u64,
}

impl Program {
    /// `policies` of the pool; memory is scarce, so that all of them are needed.
    fn new(seed: u64, policies: [bool; 3], steps: u64) -> Program {
        let memory = 96 << 20;
        let machine = Machine::new(Config { mode: Mode::Adversarial, seed, memory, ..Config::default() });
        let mut state = machine.lock();
        let context = state.new_context(0, 0);
        let pool = state.devices[0].pool;
        state.pool(pool).unwrap().policies = policies;
        let streams = (0..STREAMS)
            .map(|number| {
                let handle = state.new_stream(context, number as u32 & 1, 0);
                state.handles[&handle]
            })
            .collect();
        let next_seen = state.alloc_plain(context, steps * PART).unwrap();
        drop(state);
        let random = Random(seed ^ 0x5DEE_CE66);
        Program { machine, context, streams, random, live: Vec::new(), checks: Vec::new(), next_seen }
    }

    fn pick(&mut self) -> StreamId {
        let at = self.random.below(STREAMS as u64) as usize;
        self.streams[at]
    }

    fn on<T>(&self, body: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.machine.lock();
        let result = body(&mut state);
        state.stir(self.machine);
        result
    }

    fn link(&self, from: StreamId, to: StreamId) {
        self.on(|state| {
            let event = state.new_event(self.context, 0);
            state.record(event, from).unwrap();
            state.wait(to, event).unwrap();
        });
    }

    fn fill(&self, block: &Block, stream: StreamId) {
        let (to, pattern) = (block.address, [block.value; 4]);
        self.on(|state| state.submit(stream, Action::Fill { to, pattern, size: 1, shape: Shape::line(PART) }, true))
            .unwrap();
    }

    fn alloc(&mut self) {
        let stream = self.pick();
        // Some as large as a chunk, so that the pool is often full.
        let bytes = if self.random.below(4) == 0 { 20 << 20 } else { 512 << self.random.below(12) };
        let made = self.on(|state| {
            let pool = state.devices[0].pool;
            state.alloc_async(pool, bytes, stream)
        });
        let Ok(address) = made else { return };
        let value = 1 + self.random.below(200) as u8;
        let block = Block { address, stream, value, seen: self.next_seen };
        self.next_seen += PART;
        self.fill(&block, stream);
        self.live.push(block);
    }

    /// Copies the block's bytes away and frees it, on any stream that the allocation is made to precede.
    fn free(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let at = self.random.below(self.live.len() as u64) as usize;
        let block = self.live.swap_remove(at);
        let stream = self.pick();
        if stream != block.stream {
            self.link(block.stream, stream);
        }
        let (to, from) = (Place::Device(block.seen), Place::Device(block.address));
        self.on(|state| {
            state.submit(stream, Action::Copy { to, from, shape: Shape::line(PART) }, true).unwrap();
            state.free_async(block.address, stream).unwrap();
        });
        self.checks.push((block.seen, block.value));
    }

    fn step(&mut self) {
        match self.random.below(10) {
            0..=4 => self.alloc(),
            5..=7 => self.free(),
            8 => {
                let (from, to) = (self.pick(), self.pick());
                self.link(from, to);
            }
            _ if self.random.below(4) == 0 => {
                let stream = self.pick();
                self.machine.finish_stream(stream);
            }
            _ => {}
        }
    }

    /// Number of blocks whose bytes were not what was written; with the reasons for which blocks were given out.
    fn finish(self) -> (usize, [u64; 5]) {
        self.machine.finish_context(self.context, true);
        let state = self.machine.lock();
        assert_eq!(state.check(self.context), Ok(()));
        let right = |&&(at, value): &&(u64, u8)| {
            state.memory.read(Place::Device(at), PART).unwrap().iter().all(|&byte| byte == value)
        };
        (self.checks.len() - self.checks.iter().filter(right).count(), state.reuses)
    }
}

#[test]
fn programs_that_keep_the_rules_never_read_a_wrong_byte_whatever_the_policies() {
    let mut reasons = [0u64; 5];
    for seed in 0..200 {
        let policies = [seed & 1, seed >> 1 & 1, seed >> 2 & 1].map(|on| on == 1);
        let mut program = Program::new(seed, policies, 200);
        (0..200).for_each(|_| program.step());
        while !program.live.is_empty() {
            program.free();
        }
        let (wrong, reuses) = program.finish();
        assert_eq!(wrong, 0, "seed {seed}");
        reasons.iter_mut().zip(reuses).for_each(|(all, part)| *all += part);
    }
    assert!(reasons.iter().all(|&count| count > 20), "each reason was met: {reasons:?}");
}

#[test]
fn a_block_used_by_a_stream_that_does_not_wait_for_its_free_shows_wrong_bytes_under_some_seed() {
    let wrong = |seed: u64, waits: bool| {
        let mut program = Program::new(seed, [false; 3], 20);
        program.alloc();
        let Some(block) = program.live.pop() else { return false };
        let other = *program.streams.iter().find(|&&stream| stream != block.stream).unwrap();
        let (to, from) = (Place::Device(block.seen), Place::Device(block.address));
        program.on(|state| {
            state.submit(block.stream, Action::Copy { to, from, shape: Shape::line(PART) }, true).unwrap();
        });
        if waits {
            program.link(block.stream, other);
        }
        program.fill(&Block { value: block.value ^ 0xFF, ..block }, other);
        program.checks.push((block.seen, block.value));
        program.finish().0 > 0
    };
    assert!((0..100).any(|seed| wrong(seed, false)));
    assert!(!(0..100).any(|seed| wrong(seed, true)));
}
