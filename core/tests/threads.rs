//! Threads that do everything at once: on shared pools and streams, of every kind of entry. What each call promises by itself
//! it keeps whatever the others do meanwhile.
//!
//! Random rounds for `SMP_THREADS_SECONDS` from `SMP_THREADS_SEED`. The order in which threads run is not part of a seed, so a
//! failure names the round and what it was about, and may need many tries to come again.

mod stand_in;

use smp_core::device::{self, CudaOptions, ModelOptions};
use smp_core::pool::{self, AllocOptions, MemoryPoolConfig, PoolConfig, access, observer};
use smp_core::stream::StreamFlags;
use smp_core::{AllocationId, DeviceId, EventId, PoolId, Status, StreamId, checks, event, stream};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The handles of the default streams.
const LEGACY: StreamId = StreamId(1);
const PER_THREAD: StreamId = StreamId(2);

struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
    /// True once in so many times.
    fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
    fn take<T>(&mut self, from: &mut Vec<T>) -> Option<T> {
        (!from.is_empty()).then(|| from.swap_remove(self.below(from.len() as u64) as usize))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What another thread's failed assertion leaves is good enough for the one that is printed.
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn of_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn entry(random: &mut Random) -> MemoryPoolConfig {
    let period = random.once_in(3).then(|| 1 + random.below(200));
    let cap = random.one_of(&[None, None, Some(4 * MIB), Some(64 * MIB)]);
    match random.below(10) {
        0 => MemoryPoolConfig::Exclusive { max_alloc_size: 4 * MIB, dealloc_period: period },
        1 => MemoryPoolConfig::Direct { reclaim_at: random.once_in(2).then_some(32 * MIB) },
        2 => MemoryPoolConfig::Cuda { max_pool_size: cap },
        3..=5 => MemoryPoolConfig::Sliced {
            page_size: random.one_of(&[2 * MIB, 4 * MIB]),
            max_slice_size: random.once_in(3).then_some(64 * KIB),
            max_pool_size: cap,
            dealloc_period: period,
        },
        _ => MemoryPoolConfig::Mapped {
            range_size: random.one_of(&[64 * MIB, 1 << 31]),
            chunk_size: 2 * MIB,
            max_pool_size: cap,
            dealloc_period: period,
        },
    }
}

/// What a round is about: how often out of a thousand steps each thing is done.
#[derive(Clone, Copy, Debug)]
struct Mix {
    alloc: u64,
    free: u64,
    hand_over: u64,
    take_over: u64,
    add_user: u64,
    submit: u64,
    synchronize: u64,
    /// Streams and events that come and go.
    come_and_go: u64,
    /// Trims, attributes, figures.
    manage: u64,
    /// Handles of blocks that were freed.
    stale: u64,
    host: u64,
    /// Doublings of the sizes, from one unit.
    doublings: u64,
    /// A thread uses another's stream once in so many calls.
    shares: u64,
    /// A thread lets others run once in so many calls.
    yields: u64,
    /// Accesses are noted, observers come and go.
    watched: bool,
}

fn mix(random: &mut Random) -> Mix {
    let all = Mix {
        alloc: 340,
        free: 230,
        hand_over: 60,
        take_over: 100,
        add_user: 30,
        submit: 30,
        synchronize: 12,
        come_and_go: 6,
        manage: 4,
        stale: 12,
        host: 10,
        doublings: 12,
        shares: 8,
        yields: 64,
        watched: false,
    };
    match random.below(6) {
        // Blocks of several points, which a synchronise leaves with one while their streams merge.
        0 => Mix { add_user: 200, synchronize: 120, submit: 100, come_and_go: 0, doublings: 6, shares: 4, ..all },
        // Merging and cutting beside other streams' blocks.
        1 => Mix { hand_over: 150, take_over: 200, doublings: 4, shares: 3, ..all },
        // Memory that goes back and comes again.
        2 => Mix { manage: 40, synchronize: 40, host: 40, doublings: 14, ..all },
        // Streams that are forgotten, and whose slots are others' then.
        3 => Mix { come_and_go: 80, synchronize: 60, shares: 3, ..all },
        4 => Mix { watched: true, ..all },
        _ => all,
    }
}

/// A pool of a round.
struct Target {
    pool: PoolId,
    device: usize,
    destroyed: AtomicBool,
}

/// A block on its way from one thread to another, after an event of its stream.
struct Handed {
    block: Block,
    event: EventId,
}

/// A live block.
#[derive(Clone, Copy)]
struct Block {
    allocation: AllocationId,
    device: usize,
    /// Where it lies; not known of all.
    address: Option<u64>,
}

/// What the threads of a round share.
struct Round {
    mix: Mix,
    /// On the CUDA device, whose streams run as they do, and are not used once they are destroyed.
    cuda: bool,
    devices: Vec<DeviceId>,
    targets: Vec<Target>,
    handed: Mutex<Vec<Handed>>,
    /// Of each thread on each device: its stream now.
    streams: Vec<Vec<AtomicU64>>,
    /// By device: where live blocks lie. Kept in some rounds only, since the lock keeps threads apart.
    places: Option<Vec<Mutex<BTreeMap<u64, u64>>>>,
    stale: Mutex<Vec<AllocationId>>,
    failed: AtomicBool,
}

impl Round {
    /// A block of this device has come to live.
    fn begins(&self, allocation: AllocationId, device: usize) -> Block {
        let mut block = Block { allocation, device, address: None };
        if let Some(places) = &self.places {
            let info = pool::info(allocation).expect("live");
            let (start, end) = (info.block_address, info.block_address + info.block_size);
            assert!(start <= info.address && info.address + info.requested <= end);
            let mut live = lock(&places[device]);
            if let Some((&other, &its_end)) = live.range(..end).next_back() {
                assert!(its_end <= start, "{start:#x}..{end:#x} was given out, and {other:#x}..{its_end:#x} is live");
            }
            live.insert(start, end);
            block.address = Some(start);
        }
        block
    }

    /// It is about to be freed.
    fn ends(&self, block: &Block) {
        if let (Some(places), Some(address)) = (&self.places, block.address) {
            lock(&places[block.device]).remove(&address).expect("a live block has a place");
        }
    }

    /// It was freed.
    fn ended(&self, block: Block) {
        let mut stale = lock(&self.stale);
        if stale.len() < 256 {
            stale.push(block.allocation);
        } else {
            let at = block.allocation.0 as usize % 256;
            stale[at] = block.allocation;
        }
    }
}

/// A call that another thread's may have come before: what it named may be gone.
fn unless_gone<T>(answer: smp_core::Result<T>) -> Option<T> {
    match answer {
        Ok(value) => Some(value),
        Err(error) => {
            let gone = matches!(error.status, Status::Destroyed | Status::InvalidHandle | Status::NotPermitted);
            assert!(gone, "{error:?}");
            None
        }
    }
}

struct Nobody;

impl observer::Observer for Nobody {
    fn event(&self, _: &observer::Event<'_>) {}
}

/// One thread's part.
struct Thread<'a> {
    round: &'a Round,
    number: usize,
    random: Random,
    own: Vec<Block>,
    /// One on each device.
    streams: Vec<StreamId>,
    events: Vec<EventId>,
}

impl<'a> Thread<'a> {
    fn new(round: &'a Round, number: usize, seed: u64) -> Thread<'a> {
        let streams = round.devices.iter().map(|&device| stream::create(device, StreamFlags::default()).unwrap());
        let streams: Vec<_> = streams.collect();
        for (place, stream) in round.streams[number].iter().zip(&streams) {
            place.store(stream.0, SeqCst);
        }
        let events = round.devices.iter().map(|&device| event::create(device).unwrap()).collect();
        Thread { round, number, random: Random::new(seed), own: Vec::new(), streams, events }
    }

    /// A stream of the device: mostly the thread's own, else one that may be gone when it is used.
    fn stream(&mut self, device: usize) -> StreamId {
        if !self.random.once_in(self.round.mix.shares) {
            return self.streams[device];
        }
        match self.random.below(16) {
            0 => LEGACY,
            1 => PER_THREAD,
            _ => {
                let other = self.random.below(self.round.streams.len() as u64) as usize;
                match self.round.streams[other][device].load(SeqCst) {
                    0 => self.streams[device],
                    bits => StreamId(bits),
                }
            }
        }
    }

    fn size(&mut self) -> u64 {
        match self.random.below(16) {
            0 => self.random.below(2),
            1..=3 => 512 * (1 + self.random.below(4)),
            _ => {
                let low = 512 << self.random.below(self.round.mix.doublings);
                (low + self.random.below(low)).min(4 * MIB)
            }
        }
    }

    fn alloc(&mut self) {
        let target = &self.round.targets[self.random.below(self.round.targets.len() as u64) as usize];
        let (pool, size) = (target.pool, self.size());
        let stream = self.stream(target.device);
        let named = self.random.once_in(40);
        let options = AllocOptions {
            alignment: if self.random.once_in(16) { 512 << self.random.below(4) } else { 0 },
            name: named.then_some("a name"),
        };
        let done = if self.random.below(1000) < self.round.mix.host {
            pool::alloc(pool, size, &options)
        } else if named || options.alignment > 0 {
            pool::alloc_async_with(pool, size, stream, &options)
        } else {
            pool::alloc_async(pool, size, stream)
        };
        match done {
            Ok(allocation) => {
                let block = self.round.begins(allocation, target.device);
                self.look_up(allocation, target.device);
                self.own.push(block);
            }
            Err(error) => match error.status {
                // Of another thread's stream, or of the pool.
                Status::Destroyed | Status::InvalidHandle => {}
                Status::OutOfMemory | Status::CapacityExceeded | Status::SizeNotAccepted | Status::InvalidValue => {
                    for _ in 0..4 {
                        self.free_one();
                    }
                }
                _ => panic!("{error:?}"),
            },
        }
    }

    /// A live block is found by its pointers, whatever happens beside it.
    fn look_up(&mut self, allocation: AllocationId, device: usize) {
        if !self.random.once_in(8) {
            return;
        }
        let pointer = pool::pointer(allocation);
        assert_ne!(pointer, 0);
        let info = pool::info(allocation).unwrap();
        let offset = self.random.below(info.requested.max(1));
        let found = pool::find(self.round.devices[device], info.address + offset);
        assert_eq!(found.ok(), Some((allocation, offset)));
    }

    fn free_one(&mut self) {
        if let Some(block) = self.random.take(&mut self.own) {
            self.free(block);
        }
    }

    fn free(&mut self, block: Block) {
        self.round.ends(&block);
        let stream = self.stream(block.device);
        if self.random.below(1000) < self.round.mix.host {
            if self.random.once_in(2) {
                pool::free(block.allocation).unwrap();
            } else {
                device::synchronize(self.round.devices[block.device]).unwrap();
                pool::free_observed(block.allocation).unwrap();
            }
        } else if unless_gone(pool::free_async(block.allocation, stream)).is_none() {
            // (A call that fails has changed nothing.)
            pool::free_async(block.allocation, self.streams[block.device]).unwrap();
        }
        self.round.ended(block);
    }

    /// Events of other threads may be destroyed before they are waited for; then the block is used without.
    fn wait(&mut self, handed: &Handed) {
        if !self.random.once_in(4) {
            let (device, stream) = (self.round.devices[handed.block.device], self.stream(handed.block.device));
            unless_gone(stream::wait_event(device, stream, handed.event));
        }
        unless_gone(event::destroy(handed.event));
    }

    fn hand_over(&mut self) {
        let Some(block) = self.random.take(&mut self.own) else { return };
        let device = self.round.devices[block.device];
        let event = event::create(device).unwrap();
        let stream = self.stream(block.device);
        unless_gone(event::record(device, event, stream));
        lock(&self.round.handed).push(Handed { block, event });
    }

    fn take_over(&mut self) {
        let handed = self.random.take(&mut lock(&self.round.handed));
        if let Some(handed) = handed {
            self.wait(&handed);
            match self.random.below(3) {
                0 => self.own.push(handed.block),
                _ => self.free(handed.block),
            }
        }
    }

    fn add_user(&mut self) {
        if self.own.is_empty() {
            return;
        }
        let block = self.random.one_of(&self.own);
        let device = self.round.devices[block.device];
        let new = self.random.once_in(4) && !self.round.cuda;
        let user = match self.random.below(3) {
            _ if new => stream::create(device, StreamFlags::default()).unwrap(),
            0 => self.streams[block.device],
            _ => {
                let other = self.random.below(self.round.streams.len() as u64) as usize;
                StreamId(self.round.streams[other][block.device].load(SeqCst).max(1))
            }
        };
        if !self.round.cuda {
            unless_gone(stream::submit(device, user, 1));
        }
        unless_gone(pool::add_user(block.allocation, user));
        if new {
            stream::destroy(user).unwrap();
        }
    }

    fn submit(&mut self, device: usize) {
        let (id, stream) = (self.round.devices[device], self.stream(device));
        if !self.round.cuda {
            unless_gone(stream::submit(id, stream, 1 + self.random.below(3)));
        }
        match self.random.below(4) {
            0 => drop(unless_gone(event::record(id, self.events[device], stream))),
            1 => drop(unless_gone(stream::wait_event(id, stream, self.events[device]))),
            2 if !self.round.cuda => drop(unless_gone(stream::advance(id, stream, 1 + self.random.below(4)))),
            _ => drop(unless_gone(stream::query(id, stream))),
        }
    }

    fn synchronize(&mut self, device: usize) {
        let (id, stream) = (self.round.devices[device], self.stream(device));
        match self.random.below(8) {
            0 => device::synchronize(id).unwrap(),
            1 | 2 => event::synchronize(self.events[device]).unwrap(),
            3 => drop(event::query(self.events[device]).unwrap()),
            _ => drop(unless_gone(stream::synchronize(id, stream))),
        }
    }

    fn come_and_go(&mut self, device: usize) {
        let id = self.round.devices[device];
        if self.random.once_in(3) || self.round.cuda {
            let old = std::mem::replace(&mut self.events[device], event::create(id).unwrap());
            event::destroy(old).unwrap();
            return;
        }
        let flags =
            StreamFlags { non_blocking: self.random.once_in(4), lazy: self.random.one_of(&[None, Some(false)]) };
        let (old, new) = (self.streams[device], stream::create(id, flags).unwrap());
        if self.random.once_in(2) {
            event::record(id, self.events[device], old).unwrap();
            stream::wait_event(id, new, self.events[device]).unwrap();
        }
        self.streams[device] = new;
        self.round.streams[self.number][device].store(new.0, SeqCst);
        stream::destroy(old).unwrap();
        if self.random.once_in(2) {
            device::synchronize(id).unwrap();
        }
    }

    fn manage(&mut self) {
        let number = self.random.below(self.round.targets.len() as u64) as usize;
        let target = &self.round.targets[number];
        let (pool, id) = (target.pool, self.round.devices[target.device]);
        match self.random.below(12) {
            0..=3 => drop(unless_gone(pool::trim_to(pool, self.random.below(8) * MIB))),
            4 => drop(unless_gone(pool::stats(pool))),
            5 => drop(unless_gone(pool::entry_stats(pool, 0))),
            6 => drop(unless_gone(pool::set_attribute(pool, 8, 0))),
            // The last pool stays.
            7 if number + 1 < self.round.targets.len() && self.random.once_in(4) => {
                target.destroyed.store(true, SeqCst);
                unless_gone(pool::destroy(pool));
            }
            8 => drop(unless_gone(pool::set_attribute(pool, 4, self.random.one_of(&[0, 8 * MIB, u64::MAX])))),
            9 => drop(unless_gone(pool::set_attribute(pool, 1 + self.random.below(3) as u32, self.random.below(2)))),
            10 if !self.round.cuda => device::refuse_pages(id, self.random.below(3), 1).unwrap(),
            11 if self.round.mix.watched => {
                unless_gone(device::install_observer(id, Arc::new(Nobody)));
                thread::yield_now();
                unless_gone(device::remove_observer(id));
            }
            _ => drop(pool::find(id, 0x53F0_0000_0000_0000 + self.random.below(64 * MIB))),
        }
    }

    /// Handles of blocks that were freed are told so, whatever has become of their records.
    fn stale(&mut self) {
        let stale = {
            let stale = lock(&self.round.stale);
            if stale.is_empty() {
                return;
            }
            self.random.one_of(&stale)
        };
        let stream = self.streams[0];
        let refused = match self.random.below(5) {
            0 | 1 => pool::free_async(stale, stream).map(drop),
            2 => pool::free(stale).map(drop),
            3 => pool::add_user(stale, stream).map(drop),
            _ => pool::info(stale).map(drop),
        };
        assert_eq!(refused.expect_err("it was freed").status, Status::Freed);
    }

    fn note_access(&mut self) {
        if self.own.is_empty() {
            return;
        }
        let block = self.random.one_of(&self.own);
        let stream = self.stream(block.device);
        let pointer = pool::pointer(block.allocation);
        let kind = self.random.one_of(&[access::AccessKind::Read, access::AccessKind::Write]);
        unless_gone(access::note(self.round.devices[block.device], pointer, 1, stream, kind));
    }

    fn step(&mut self) {
        let mix = self.round.mix;
        let device = self.random.below(self.round.devices.len() as u64) as usize;
        let mut left = self.random.below(1000);
        let mut is = |share: u64| {
            let is = left < share;
            left = left.saturating_sub(share);
            is
        };
        // (What no share names frees or allocates, by what there is.)
        if is(mix.stale) {
            self.stale();
        } else if is(mix.hand_over) {
            self.hand_over();
        } else if is(mix.take_over) {
            self.take_over();
        } else if is(mix.add_user) {
            self.add_user();
        } else if is(mix.submit) {
            self.submit(device);
        } else if is(mix.synchronize) {
            self.synchronize(device);
        } else if is(mix.come_and_go) {
            self.come_and_go(device);
        } else if is(mix.manage) {
            self.manage();
        } else if mix.watched && is(20) {
            self.note_access();
        } else if is(mix.alloc) && self.own.len() < 400 {
            self.alloc();
        } else if is(mix.free) {
            self.free_one();
        } else if self.own.len() < 60 {
            self.alloc();
        } else {
            self.free_one();
        }
        if self.random.once_in(mix.yields) {
            thread::yield_now();
        }
    }

    fn run(mut self, steps: u64) -> Vec<Block> {
        for _ in 0..steps {
            if self.round.failed.load(Relaxed) {
                break;
            }
            self.step();
        }
        self.own
    }
}

/// Before an allocation fails, something is freed or given back, by whoever makes the call.
fn make_room(round: &Round, pool: PoolId, random: &Mutex<Random>) -> bool {
    let (what, again) = {
        let mut random = lock(random);
        (random.below(3), random.once_in(2))
    };
    match what {
        0 => {
            let handed = lock(&round.handed).pop();
            if let Some(Handed { block, event }) = handed {
                round.ends(&block);
                pool::free(block.allocation).unwrap();
                round.ended(block);
                unless_gone(event::destroy(event));
            }
        }
        1 => drop(unless_gone(pool::trim_to(pool, 0))),
        _ => round.devices.iter().for_each(|&device| device::synchronize(device).unwrap()),
    }
    again
}

/// One round; how often a stream was made to wait for a block.
fn run_round(seed: u64, cuda: bool, what: &mut String) -> u64 {
    let mut random = Random::new(seed);
    let mix = mix(&mut random);
    let count = if random.once_in(3) && !cuda { 2 } else { 1 };
    let options = ModelOptions {
        lazy: random.once_in(2),
        capacity: random.one_of(&[u64::MAX, u64::MAX, 96 * MIB]),
        ..ModelOptions::default()
    };
    let open = || match cuda {
        true => device::open_cuda(&CudaOptions::default()),
        false => device::open_model(&options),
    };
    let devices: Vec<_> = (0..count).map(|_| open().unwrap()).collect();
    let mut targets = Vec::new();
    let mut configs = Vec::new();
    for (device, &id) in devices.iter().enumerate() {
        for _ in 0..1 + random.below(2) {
            let several = if random.once_in(4) { random.below(3) } else { 0 };
            let entries = (0..=several).map(|_| entry(&mut random)).collect();
            let config = PoolConfig {
                sync_on_oom: random.once_in(3),
                allow_internal_dependencies: random.once_in(2),
                release_threshold: random.one_of(&[u64::MAX, u64::MAX, 0]),
                ..PoolConfig::with_entries(entries)
            };
            let Ok(pool) = pool::create(id, &config) else { continue };
            targets.push(Target { pool, device, destroyed: false.into() });
            configs.push(config);
        }
    }
    let threads = 2 + random.below(3) as usize;
    *what = format!("{mix:?} {options:?} {threads} threads {configs:?}");
    if targets.is_empty() {
        return 0;
    }
    let watches = random.once_in(2);
    let round = Arc::new(Round {
        mix,
        cuda,
        targets,
        handed: Mutex::default(),
        streams: (0..threads).map(|_| devices.iter().map(|_| AtomicU64::new(0)).collect()).collect(),
        places: watches.then(|| devices.iter().map(|_| Mutex::default()).collect()),
        stale: Mutex::default(),
        failed: AtomicBool::new(false),
        devices,
    });
    for target in &round.targets {
        if random.once_in(2) {
            let (weak, pool, random) = (Arc::downgrade(&round), target.pool, Mutex::new(Random::new(random.next())));
            let callback = move |_: &pool::OutOfMemory| weak.upgrade().is_some_and(|it| make_room(&it, pool, &random));
            pool::set_out_of_memory_callback(pool, Some(Arc::new(callback))).unwrap();
        }
    }
    let steps = if cuda { 100 + random.below(300) } else { 500 + random.below(1500) };
    checks::interrupt_once_in(random.one_of(&[0, 8, 64, 512]));
    let seeds: Vec<_> = (0..threads).map(|_| random.next()).collect();
    let left: Vec<Block> = thread::scope(|scope| {
        let running: Vec<_> = seeds
            .into_iter()
            .enumerate()
            .map(|(number, seed)| {
                let round = &*round;
                scope.spawn(move || {
                    let run = || Thread::new(round, number, seed).run(steps);
                    catch_unwind(AssertUnwindSafe(run)).inspect_err(|_| round.failed.store(true, SeqCst))
                })
            })
            .collect();
        let done: Vec<_> = running.into_iter().map(|thread| thread.join().unwrap()).collect();
        done.into_iter().flat_map(|left| left.unwrap_or_else(|failure| std::panic::resume_unwind(failure))).collect()
    });
    let check = |when: &str| {
        for target in round.targets.iter().filter(|target| !target.destroyed.load(SeqCst)) {
            pool::check_invariants(target.pool).unwrap_or_else(|wrong| panic!("{when}: {wrong}"));
        }
    };
    check("after the calls");
    let handed = std::mem::take(&mut *lock(&round.handed));
    for block in left.into_iter().chain(handed.into_iter().map(|handed| handed.block)) {
        round.ends(&block);
        pool::free(block.allocation).unwrap();
    }
    check("all freed");
    if let Some(places) = &round.places {
        assert!(places.iter().all(|live| lock(live).is_empty()));
    }
    for &device in &round.devices {
        device::synchronize(device).unwrap();
    }
    check("all observed");
    let mut waits = 0;
    for target in &round.targets {
        if !target.destroyed.load(SeqCst) {
            pool::trim_to(target.pool, 0).unwrap();
            let stats = pool::stats(target.pool).unwrap();
            waits += stats.internal_waits;
            assert_eq!((stats.live, stats.used, stats.requested, stats.reserved), (0, 0, 0, 0), "all trimmed");
            pool::destroy(target.pool).unwrap();
        }
    }
    for &device in &round.devices {
        let info = device::info(device).unwrap();
        assert_eq!((info.reserved, info.pools, info.page_allocs), (0, 0, info.page_frees), "all destroyed");
        device::close(device).unwrap();
    }
    waits
}

fn run_rounds(cuda: bool) {
    let seconds = of_environment("SMP_THREADS_SECONDS").unwrap_or(4);
    let seed = of_environment("SMP_THREADS_SEED").unwrap_or(1);
    let begin = Instant::now();
    let (mut rounds, mut waits) = (0, 0);
    while begin.elapsed() < Duration::from_secs(seconds) {
        let mut what = String::new();
        let of_round = seed.wrapping_mul(1_000_003).wrapping_add(rounds);
        waits += catch_unwind(AssertUnwindSafe(|| run_round(of_round, cuda, &mut what))).unwrap_or_else(|failure| {
            eprintln!("round {rounds} of SMP_THREADS_SEED={seed}: {what}");
            std::panic::resume_unwind(failure)
        });
        rounds += 1;
    }
    println!("seeds from {seed}: {rounds} rounds, {waits} waits");
}

#[test]
fn whatever_threads_do_at_once_no_live_blocks_overlap_and_all_memory_goes_back() {
    run_rounds(false);
}

/// The same over the stand-in driver, in a process of its own.
#[test]
fn the_same_holds_on_the_cuda_device() {
    if std::env::var_os("SMP_THREADS_CHILD").is_some() {
        return run_rounds(true);
    }
    let mode = ["eager", "lazy", "adversarial"][of_environment("SMP_THREADS_SEED").unwrap_or(2) as usize % 3];
    let child = Command::new(std::env::current_exe().expect("this test has a path"))
        .args(["--exact", "the_same_holds_on_the_cuda_device", "--nocapture"])
        .env("SMP_THREADS_CHILD", "1")
        .env("SMP_CUDA_LIBRARY", stand_in::driver())
        .env("SIMCUDA_MODE", mode)
        .output()
        .expect("the child runs");
    let said = String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && said.contains("1 passed"), "{mode}: {said}");
    println!("{mode}: {}", said.lines().find(|line| line.starts_with("seeds")).unwrap_or_default());
}
