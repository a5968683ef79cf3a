//! Random programs on a CUDA device, correct in themselves: every use of a block is ordered after the one before it, by
//! stream order, an event or a synchronise, some of which the library does, some of which it is told of, and some of which
//! it never learns. Each block is filled with a pattern of its own in stream order, copied out in stream order before it is
//! freed, and the copies are compared at the end. A block that was given out too early shows as a wrong byte.

use crate::driver::{self, ok};
use crate::random::Random;
use smp_core::device::{self, CudaOptions, PageSupply};
use smp_core::pool::{self, AllocOptions, PoolConfig, Preset, Reuse, spec};
use smp_core::stream::{self, StreamFlags};
use smp_core::trace::{self, ReplayOptions};
use smp_core::{Act, AllocationId, DeviceId, EventId, PoolId, Status, StreamId, event};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A device and its pools, as the programs use them.
pub struct Setup {
    /// What it is called in reports.
    pub name: &'static str,
    /// Where pages come from.
    pub supply: PageSupply,
    /// Granularity of pages, bytes.
    pub granularity: u64,
    /// Pool specifications; `driver` is the preset of that name.
    pub pools: &'static [&'static str],
    /// Requests are up to so many bytes.
    pub largest: u64,
    /// Bytes the device has free for the program; 0: all it has.
    pub memory: u64,
    /// Streams are verified with the driver at every call.
    pub checked: bool,
}

/// What pools and page supplies the programs run on.
pub const SETUPS: &[Setup] = &[
    Setup {
        name: "capped slices",
        supply: PageSupply::Plain,
        granularity: 64 * KIB,
        pools: &["sliced(page_size=64KiB, max_pool_size=192KiB)"],
        largest: 16 * KIB,
        memory: 0,
        checked: false,
    },
    Setup {
        name: "ladder, little memory",
        supply: PageSupply::Plain,
        granularity: 64 * KIB,
        pools: &[
            "sliced(page_size=64KiB, max_slice_size=4KiB); sliced(page_size=256KiB, max_slice_size=64KiB); exclusive()",
        ],
        largest: 80 * KIB,
        memory: 768 * KIB,
        checked: false,
    },
    Setup {
        name: "direct and exclusive",
        supply: PageSupply::DriverPool,
        granularity: 64 * KIB,
        pools: &["direct(reclaim_at=512KiB)", "exclusive(max_alloc_size=16KiB, dealloc_period=20); exclusive()"],
        largest: 24 * KIB,
        memory: 0,
        checked: false,
    },
    Setup {
        name: "cuda",
        supply: PageSupply::Plain,
        granularity: 2 * MIB,
        pools: &["preset(cuda, max_pool_size=32MiB)"],
        largest: 64 * KIB,
        memory: 0,
        checked: false,
    },
    Setup {
        name: "cuda, two pools",
        supply: PageSupply::VirtualMemory,
        granularity: 2 * MIB,
        pools: &["like(cuda); sliced(page_size=2MiB, max_pool_size=2MiB)", "preset(sub-slices)"],
        largest: 160 * KIB,
        memory: 0,
        checked: true,
    },
    Setup {
        name: "mapped",
        supply: PageSupply::Plain,
        granularity: 2 * MIB,
        pools: &["mapped(range_size=64MiB, max_pool_size=4MiB)"],
        largest: 700 * KIB,
        memory: 0,
        checked: false,
    },
    // Blocks of a chunk and more, which stay whole and come back when they are handed over.
    Setup {
        name: "mapped, large blocks",
        supply: PageSupply::Plain,
        granularity: 2 * MIB,
        pools: &["mapped(range_size=64MiB, max_pool_size=24MiB)"],
        largest: 8 * MIB,
        memory: 0,
        checked: false,
    },
    Setup {
        name: "driver",
        supply: PageSupply::Plain,
        granularity: 2 * MIB,
        pools: &["driver"],
        largest: 64 * KIB,
        memory: 0,
        checked: false,
    },
];

/// One run of a program.
pub struct Run<'a> {
    /// The device and pools.
    pub setup: &'a Setup,
    /// The stand-in's order of execution.
    pub mode: i32,
    /// Of the program and of the order.
    pub seed: u64,
    /// Calls made.
    pub steps: u32,
    /// Record the device to this file, and replay it verified.
    pub trace: Option<&'a Path>,
}

/// What a run came to.
#[derive(Default)]
pub struct Outcome {
    /// Bytes compared, and how many of them were wrong.
    pub bytes: u64,
    /// Wrong ones.
    pub wrong: u64,
    /// The first wrong block, in words.
    pub first: Option<String>,
    /// Reasons of reuse, over all pools.
    pub reuse: Reuse,
    /// Allocations refused for want of memory.
    pub refused: u64,
    /// Trace events compared in the replay.
    pub replayed: u64,
}

impl Outcome {
    /// Adds another run's figures.
    pub fn add(&mut self, other: &Outcome) {
        self.bytes += other.bytes;
        self.wrong += other.wrong;
        self.first = self.first.take().or_else(|| other.first.clone());
        self.refused += other.refused;
        self.replayed += other.replayed;
        let (mine, theirs) = (&mut self.reuse, &other.reuse);
        mine.same_stream += theirs.same_stream;
        mine.observed += theirs.observed;
        mine.event += theirs.event;
        mine.opportunistic += theirs.opportunistic;
        mine.internal += theirs.internal;
        mine.fresh += theirs.fresh;
    }
}

/// Pinned memory that blocks are copied to.
pub struct Landing {
    base: usize,
    bytes: usize,
}

impl Landing {
    /// Takes pinned memory in the current context.
    pub fn new(bytes: usize) -> Landing {
        let mut base = 0;
        ok(driver::pinned(&mut base, bytes));
        Landing { base, bytes }
    }
}

#[derive(Clone, Copy)]
struct Stream {
    id: StreamId,
    /// Made by the program itself, not through the library.
    own: bool,
}

impl Stream {
    /// As the driver is told.
    fn raw(self) -> u64 {
        self.id.0.max(1)
    }
}

struct Block {
    id: AllocationId,
    pointer: u64,
    size: u64,
    tag: u32,
    /// Work submitted to this stream follows all that was done with the block.
    home: StreamId,
    /// It has users beside its home, so that it is no longer written.
    shared: bool,
}

struct Copy {
    at: usize,
    size: u64,
    tag: u32,
}

struct Program<'a> {
    device: DeviceId,
    pools: Vec<PoolId>,
    streams: Vec<Stream>,
    /// Two of the library's, two of the program's own.
    events: Vec<(EventId, bool)>,
    blocks: Vec<Block>,
    copies: Vec<Copy>,
    filled: usize,
    tag: u32,
    random: Random,
    run: &'a Run<'a>,
    landing: &'a Landing,
    outcome: Outcome,
}

/// Runs a program and compares every byte. The primary context of device 0 is current in this thread.
///
/// # Panics
/// If a call fails that must not, a figure does not add up, or the replay disagrees.
pub fn run(run: &Run<'_>, landing: &Landing) -> Outcome {
    let setup = run.setup;
    ok(driver::set_mode(run.mode, run.seed));
    if setup.memory != 0 {
        ok(driver::set_free_memory(0, setup.memory));
    }
    let device = device::open_cuda(&CudaOptions {
        supply: setup.supply,
        page_granularity: setup.granularity,
        checked: setup.checked,
        ..CudaOptions::default()
    })
    .expect("the device opens");
    if let Some(path) = run.trace {
        trace::start(device, path, 0).expect("recording starts");
    }
    let pools = setup.pools.iter().map(|text| pool::create(device, &config(text)).expect("the pool opens")).collect();
    let mut program = Program {
        device,
        pools,
        streams: vec![Stream { id: StreamId(0), own: false }, Stream { id: StreamId(2), own: false }],
        events: Vec::new(),
        blocks: Vec::new(),
        copies: Vec::new(),
        filled: 0,
        tag: 0,
        random: Random(run.seed),
        run,
        landing,
        outcome: Outcome::default(),
    };
    for &pool in &program.pools {
        // Makes room every other time.
        let asked = AtomicU64::new(0);
        let answer = move |_: &pool::OutOfMemory| match asked.fetch_add(1, Relaxed) % 4 {
            0 => device::synchronize(device).is_ok(),
            1 => pool::trim_to(pool, 0).is_ok(),
            _ => false,
        };
        pool::set_out_of_memory_callback(pool, Some(Arc::new(answer))).expect("a callback");
    }
    for own in [false, false, true, true, false] {
        program.add_stream(own);
    }
    for own in [false, false, true, true] {
        let id = if own { program.own_event() } else { event::create(device).expect("an event") };
        program.events.push((id, own));
    }
    for _ in 0..run.steps {
        program.step();
    }
    program.end();
    if setup.memory != 0 {
        ok(driver::set_free_memory(0, u64::MAX));
    }
    program.outcome
}

fn config(text: &str) -> PoolConfig {
    match text {
        "driver" => PoolConfig::preset(Preset::Driver),
        text => spec::parse(text).expect("a specification"),
    }
}

impl Program<'_> {
    fn add_stream(&mut self, own: bool) {
        let non_blocking = self.random.one_in(2);
        let id = if own {
            let mut raw = 0;
            ok(driver::stream_create(&mut raw, non_blocking.into()));
            StreamId(raw)
        } else {
            stream::create(self.device, StreamFlags { non_blocking, lazy: None }).expect("a stream")
        };
        self.streams.push(Stream { id, own });
    }

    fn own_event(&self) -> EventId {
        let mut raw = 0;
        ok(driver::event_create(&mut raw, 2));
        EventId(raw)
    }

    fn any_stream(&mut self) -> Stream {
        let streams: &[Stream] = &self.streams;
        self.random.pick(streams)
    }

    fn any_block(&mut self) -> Option<usize> {
        (!self.blocks.is_empty()).then(|| self.random.below(self.blocks.len() as u64) as usize)
    }

    /// Work submitted to `to` from now on follows what `from` was given so far, in one of many ways.
    fn order(&mut self, from: StreamId, to: StreamId) {
        if from == to {
            return;
        }
        let (device, raw_from, raw_to) = (self.device, from.0.max(1), to.0.max(1));
        match self.random.below(12) {
            // By the library.
            0..5 => {
                let event = self.events[self.random.below(2) as usize].0;
                event::record(device, event, from).expect("a record");
                stream::wait_event(device, to, event).expect("a wait");
            }
            // By the program, and told.
            5..7 => {
                let event = self.events[2].0;
                ok(driver::event_record(event.0, raw_from));
                event::record_by(device, event, from, Act::Noted).expect("a noted record");
                ok(driver::stream_wait(raw_to, event.0, 0));
                stream::wait_event_by(device, to, event, Act::Noted).expect("a noted wait");
            }
            // By the program inside the library's call.
            7..9 => {
                let event = self.events[3].0;
                let mut record = || driver::event_record(event.0, raw_from) == 0;
                event::record_by(device, event, from, Act::With(&mut record)).expect("a record");
                let mut wait = || driver::stream_wait(raw_to, event.0, 0) == 0;
                stream::wait_event_by(device, to, event, Act::With(&mut wait)).expect("a wait");
            }
            // By the program, with an event the library never hears of.
            9 => {
                let event = self.own_event();
                ok(driver::event_record(event.0, raw_from));
                ok(driver::stream_wait(raw_to, event.0, 0));
                ok(driver::event_destroy(event.0));
            }
            // By the host.
            10 => stream::synchronize(device, from).expect("a synchronise"),
            _ => {
                ok(driver::stream_synchronize(raw_from));
                if self.random.one_in(2) {
                    stream::synchronize_by(device, from, Act::Noted).expect("a noted synchronise");
                }
            }
        }
    }

    fn fill(&mut self, index: usize) {
        self.tag += 1;
        let block = &mut self.blocks[index];
        // Every byte of it tells.
        block.tag = self.tag.wrapping_mul(0x9e37_79b1) | 0x0101_0101;
        let (words, tail) = (block.size / 4, block.size % 4);
        let stream = block.home.0.max(1);
        if words > 0 {
            ok(driver::set_words(block.pointer, block.tag, words as usize, stream));
        }
        if tail > 0 {
            ok(driver::set_bytes(block.pointer + words * 4, block.tag as u8, tail as usize, stream));
        }
    }

    /// Copies the block out on a stream that follows its filling.
    fn look(&mut self, index: usize, on: StreamId) {
        let (pointer, size, tag) = {
            let block = &self.blocks[index];
            (block.pointer, block.size, block.tag)
        };
        if size == 0 {
            return;
        }
        if self.filled + size as usize > self.landing.bytes {
            // The library does not learn of this either.
            ok(driver::context_synchronize());
            self.compare();
        }
        let at = self.landing.base + self.filled;
        ok(driver::copy_out(at, pointer, size as usize, on.0.max(1)));
        self.copies.push(Copy { at, size, tag });
        self.filled += (size as usize).next_multiple_of(64);
    }

    /// Compares what has been copied out; the device has been synchronised.
    fn compare(&mut self) {
        for Copy { at, size, tag } in std::mem::take(&mut self.copies) {
            // SAFETY: inside the pinned memory; the copies into it have run.
            let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, size as usize) };
            let pattern = tag.to_le_bytes();
            let mut expected = pattern.repeat(size as usize / 4);
            expected.resize(size as usize, pattern[0]);
            let differ = |(found, due): &(&u8, &u8)| found != due;
            let count = match bytes == expected.as_slice() {
                true => 0,
                false => bytes.iter().zip(&expected).filter(differ).count() as u64,
            };
            self.outcome.bytes += size;
            self.outcome.wrong += count;
            if count > 0 && self.outcome.first.is_none() {
                self.outcome.first = Some(format!(
                    "{}, seed {}: {count} of {size} bytes of the block of pattern {tag:#x} are wrong",
                    self.run.setup.name, self.run.seed
                ));
            }
        }
        self.filled = 0;
    }

    fn allocate(&mut self) {
        let pool = {
            let pools: &[PoolId] = &self.pools;
            self.random.pick(pools)
        };
        let size = match self.random.below(8) {
            0 => self.random.below(self.run.setup.largest) + 1,
            1 => self.run.setup.largest / 4,
            2 => self.random.below(100) + 1,
            _ => (self.random.below(self.run.setup.largest / 2 / 512) + 1) * 512,
        };
        let stream = self.any_stream().id;
        let options = AllocOptions { alignment: if self.random.one_in(12) { 4096 } else { 0 }, name: None };
        let driver = pool::config(pool).expect("a pool").preset == Some(Preset::Driver);
        let result = match self.random.below(12) {
            0 => pool::alloc(pool, size, &AllocOptions::default()),
            1 if !driver => pool::alloc_async_with(pool, size, stream, &options),
            _ => pool::alloc_async(pool, size, stream),
        };
        match result {
            Ok(id) => {
                let pointer = pool::pointer(id);
                self.blocks.push(Block { id, pointer, size, tag: 0, home: stream, shared: false });
                self.fill(self.blocks.len() - 1);
            }
            Err(error) => {
                assert!(
                    matches!(error.status, Status::OutOfMemory | Status::CapacityExceeded),
                    "an allocation failed: {error}"
                );
                self.outcome.refused += 1;
                // Makes room, so that the program goes on.
                for _ in 0..3 {
                    self.free();
                }
            }
        }
    }

    fn free(&mut self) {
        let Some(index) = self.any_block() else { return };
        let mut home = self.blocks[index].home;
        self.look(index, home);
        if self.random.one_in(8) {
            let other = self.any_stream().id;
            self.order(home, other);
            home = other;
        }
        let block = self.blocks.swap_remove(index);
        if self.random.one_in(10) {
            pool::free(block.id).expect("a free in host order");
        } else {
            pool::free_async(block.id, home).expect("a free");
        }
    }

    fn step(&mut self) {
        let device = self.device;
        match self.random.below(100) {
            0..34 if self.blocks.len() < 40 => self.allocate(),
            0..62 => self.free(),
            // Used on, there or elsewhere.
            62..70 => {
                let Some(index) = self.any_block() else { return };
                let home = self.blocks[index].home;
                self.look(index, home);
                let to = self.any_stream().id;
                self.order(home, to);
                self.blocks[index].home = to;
                if !self.blocks[index].shared {
                    self.look(index, to);
                    self.fill(index);
                }
            }
            // Read by another stream, which its free need not follow.
            70..78 => {
                let Some(index) = self.any_block() else { return };
                let user = self.any_stream().id;
                self.order(self.blocks[index].home, user);
                if self.run.setup.pools == ["driver"] {
                    // The driver would not wait for it: its users are the program's to join.
                    let refused = pool::add_user(self.blocks[index].id, user).expect_err("no users here");
                    assert_eq!(refused.status, Status::NotSupported);
                    self.look(index, user);
                    self.order(user, self.blocks[index].home);
                    return;
                }
                pool::add_user(self.blocks[index].id, user).expect("a user");
                self.blocks[index].shared = true;
                self.look(index, user);
                if self.random.one_in(2) {
                    ok(driver::submit(user.0.max(1), 1 + self.random.below(3)));
                    self.look(index, user);
                }
            }
            78..83 => {
                let stream = self.any_stream();
                ok(driver::submit(stream.raw(), 1 + self.random.below(5)));
            }
            // Order that nothing needs.
            83..88 => {
                let (from, to) = (self.any_stream().id, self.any_stream().id);
                self.order(from, to);
            }
            88..90 => {
                let (stream, event) = (self.any_stream().id, self.events[self.random.below(2) as usize].0);
                match self.random.below(5) {
                    0 => drop(event::record(device, event, stream).expect("a record")),
                    1 => stream::wait_event(device, stream, event).expect("a wait"),
                    2 => drop(event::query(event).expect("a query")),
                    3 => event::synchronize(event).expect("a synchronise"),
                    _ => drop(stream::query(device, stream).expect("a query")),
                }
            }
            90 => stream::synchronize(device, self.any_stream().id).expect("a synchronise"),
            91 if self.random.one_in(4) => device::synchronize(device).expect("a synchronise"),
            92 if self.random.one_in(2) => {
                let pool = {
                    let pools: &[PoolId] = &self.pools;
                    self.random.pick(pools)
                };
                pool::trim_to(pool, self.random.below(256) * KIB).expect("a trim");
            }
            93 => self.replace_stream(),
            94 => {
                let pool = {
                    let pools: &[PoolId] = &self.pools;
                    self.random.pick(pools)
                };
                // Policies 1 to 3 go off for a while.
                let attribute = 1 + self.random.below(3) as u32;
                pool::set_attribute(pool, attribute, u64::from(!self.random.one_in(3))).expect("an attribute");
            }
            95 if self.random.one_in(2) => {
                let pool = {
                    let pools: &[PoolId] = &self.pools;
                    self.random.pick(pools)
                };
                let threshold = if self.random.one_in(2) { 0 } else { u64::MAX };
                pool::set_attribute(pool, 4, threshold).expect("a threshold");
            }
            _ => {
                for &pool in &self.pools {
                    pool::check_invariants(pool).expect("the pool's structures agree");
                }
            }
        }
    }

    /// A created stream goes, and another comes, which may get its handle.
    fn replace_stream(&mut self) {
        let index = 2 + self.random.below(self.streams.len() as u64 - 2) as usize;
        let gone = self.streams.swap_remove(index);
        let to = self.any_stream().id;
        if self.blocks.iter().any(|block| block.home == gone.id) {
            self.order(gone.id, to);
            for block in self.blocks.iter_mut().filter(|block| block.home == gone.id) {
                block.home = to;
            }
        }
        if gone.own {
            stream::release(self.device, gone.id).expect("a release");
            ok(driver::stream_destroy(gone.id.0));
        } else {
            stream::destroy(gone.id).expect("a destroy");
        }
        self.add_stream(gone.own);
    }

    fn end(&mut self) {
        while !self.blocks.is_empty() {
            self.free();
        }
        ok(driver::context_synchronize());
        self.compare();
        for &pool in &self.pools {
            pool::check_invariants(pool).expect("the pool's structures agree");
            let stats = pool::stats(pool).expect("figures");
            assert_eq!((stats.live, stats.used, stats.requested), (0, 0, 0), "nothing is live at the end");
            assert_eq!(stats.allocs, stats.frees, "as many frees as allocations at the end");
            let reuse = Outcome { reuse: stats.reuse, ..Outcome::default() };
            self.outcome.add(&reuse);
        }
        device::synchronize(self.device).expect("a synchronise");
        for &pool in &self.pools {
            pool::trim_to(pool, 0).expect("a trim");
            assert_eq!(pool::stats(pool).expect("figures").reserved, 0, "everything free and observed goes back");
        }
        if let Some(path) = self.run.trace {
            trace::stop(self.device).expect("the trace is complete");
            let report = trace::replay(path, ReplayOptions::default())
                .unwrap_or_else(|error| panic!("{}, seed {}: {error}", self.run.setup.name, self.run.seed));
            assert!(report.verified, "the replay compared nothing");
            self.outcome.replayed += report.events;
        }
        for &pool in &self.pools {
            pool::destroy(pool).expect("a destroy");
        }
        for &(id, own) in &self.events {
            event::destroy_by(id, if own { Act::Noted } else { Act::Do }).ok();
            if own {
                ok(driver::event_destroy(id.0));
            }
        }
        for stream in self.streams.split_off(2) {
            if stream.own {
                stream::release(self.device, stream.id).expect("a release");
                ok(driver::stream_destroy(stream.id.0));
            } else {
                stream::destroy(stream.id).expect("a destroy");
            }
        }
        device::close(self.device).expect("a close");
    }
}
