//! Pointer look-ups against a sorted map: whatever blocks came and went, however far apart they lie, and while other threads
//! cut and merge beside the block that is looked for.

use smp_core::device::{self, ModelOptions};
use smp_core::pool::{self, MemoryPoolConfig, PoolConfig};
use smp_core::{AllocationId, DeviceId, PoolId, StreamId, stream};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
    /// As many in each doubling.
    fn size(&mut self, least: u64, doublings: u64) -> u64 {
        let low = least << self.below(doublings);
        low + self.below(low)
    }
}

struct Case {
    device: DeviceId,
    pool: PoolId,
    streams: Vec<StreamId>,
    /// Address → bytes asked for, and the handle.
    live: BTreeMap<u64, (u64, AllocationId)>,
}

impl Case {
    fn new(alignment: u64, config: MemoryPoolConfig) -> Case {
        let options = ModelOptions { alignment, capacity: 1 << 46, ..ModelOptions::default() };
        let device = device::open_model(&options).unwrap();
        let pool = pool::create(device, &PoolConfig::with_entries(vec![config])).unwrap();
        let streams = (0..3).map(|_| stream::create(device, Default::default()).unwrap()).collect();
        Case { device, pool, streams, live: BTreeMap::new() }
    }
    fn alloc(&mut self, size: u64, stream: usize) -> u64 {
        let made = pool::alloc_async(self.pool, size, self.streams[stream]).unwrap();
        let address = pool::info(made).unwrap().address;
        self.live.insert(address, (size, made));
        address
    }
    fn free(&mut self, address: u64, stream: usize) {
        let (_, gone) = self.live.remove(&address).unwrap();
        pool::free_async(gone, self.streams[stream]).unwrap();
    }
    fn any(&self, random: &mut Random) -> u64 {
        let (&low, &high) = (self.live.keys().next().unwrap(), self.live.keys().next_back().unwrap());
        *self.live.range(low + random.below(high - low + 1)..).next().unwrap().0
    }
    fn look_up(&self, pointer: u64) {
        let before = self.live.range(..=pointer).next_back();
        let inside = before.filter(|&(&address, &(size, _))| pointer - address < size.max(1));
        let want = inside.map(|(&address, &(_, made))| (made, pointer - address));
        assert_eq!(pool::find(self.device, pointer).ok(), want, "{pointer:#x}");
    }
    /// Looks at a block's first and last bytes, around them, and somewhere in between.
    fn look_around(&self, address: u64, random: &mut Random) {
        let size = self.live[&address].0.max(1);
        for pointer in [address, address + size - 1, address + random.below(size), address + size, address - 1] {
            self.look_up(pointer);
        }
    }
    fn metadata(&self) -> u64 {
        pool::stats(self.pool).unwrap().metadata_bytes
    }
}

fn sliced(page_size: u64) -> MemoryPoolConfig {
    MemoryPoolConfig::Sliced { page_size, max_slice_size: None, max_pool_size: None, dealloc_period: None }
}

fn mapped(range_size: u64, chunk_size: u64) -> MemoryPoolConfig {
    MemoryPoolConfig::Mapped { range_size, chunk_size, max_pool_size: None, dealloc_period: None }
}

#[test]
fn every_pointer_is_found_as_in_a_sorted_map() {
    let shapes: [(u64, MemoryPoolConfig, u64, u64); 8] = [
        (16, sliced(2 * MIB), 1, 10),
        (16, mapped(64 * GIB, 2 * MIB), 1, 18),
        (512, sliced(2 * MIB), 100, 8),
        (512, sliced(64 * KIB), 100, 4),
        (512, sliced(20 * MIB), 100, 14),
        (512, mapped(64 * GIB, 2 * MIB), 100, 17),
        (512, mapped(64 * GIB, 64 * MIB), 64 * KIB, 14),
        (64 * KIB, sliced(1 << 30), KIB, 16),
    ];
    for (number, (alignment, config, least, doublings)) in shapes.into_iter().enumerate() {
        let mut case = Case::new(alignment, config);
        let mut random = Random(0x9E37_79B9_7F4A_7C15 + number as u64);
        for round in 0..6 {
            // Grows, is churned, shrinks; each time with blocks of other sizes.
            let doublings = if round % 2 == 0 { doublings } else { doublings.min(3) };
            for step in 0..1500 {
                let grows = if step < 700 { 90 } else { 30 };
                let stream = random.below(3) as usize;
                if case.live.is_empty() || random.below(100) < grows {
                    let size = random.size(least, doublings);
                    let at = case.alloc(size, stream);
                    if random.below(8) == 0 {
                        case.look_around(at, &mut random);
                    }
                } else {
                    let gone = case.any(&mut random);
                    case.free(gone, stream);
                    if random.below(8) == 0 {
                        case.look_up(gone);
                    }
                }
                if random.below(16) == 0 && !case.live.is_empty() {
                    case.look_around(case.any(&mut random), &mut random);
                }
                match random.below(300) {
                    0 => stream::synchronize(case.device, case.streams[stream]).unwrap(),
                    1 => device::synchronize(case.device).unwrap(),
                    2 => drop(pool::trim_to(case.pool, 0)),
                    3 => pool::check_invariants(case.pool).unwrap(),
                    _ => {}
                }
            }
            for &address in case.live.keys() {
                case.look_around(address, &mut random);
            }
            pool::check_invariants(case.pool).unwrap();
        }
    }
}

#[test]
fn a_pool_of_small_blocks_has_little_beside_their_records() {
    for (alignment, doublings, most, most_looked_up) in [(512, 1, 65, 67), (512, 8, 67, 80), (16, 1, 65, 67)] {
        let mut case = Case::new(alignment, mapped(64 * GIB, 2 * MIB));
        let mut random = Random(7);
        for _ in 0..20_000 {
            let size = if doublings == 1 { alignment } else { random.size(256, doublings) };
            case.alloc(size, 0);
        }
        let bytes = case.metadata() / 20_000;
        assert!(bytes <= most, "alignment {alignment}: {bytes} bytes a block");
        for &address in case.live.keys() {
            case.look_around(address, &mut random);
        }
        let bytes = case.metadata() / 20_000;
        assert!(bytes <= most_looked_up, "alignment {alignment}: {bytes} bytes a block when each was looked up");
    }
}

/// What is looked for first lies behind all others of its region.
#[test]
fn no_look_up_walks_past_all_blocks_of_a_page() {
    let mut case = Case::new(512, mapped(64 * GIB, 2 * MIB));
    let all: Vec<u64> = (0..200_000).map(|_| case.alloc(512, 0)).collect();
    let begun = Instant::now();
    for &address in all.iter().rev().step_by(10) {
        case.look_up(address);
    }
    // 20,000 look-ups: some milliseconds. A walk from the page's base would take 100,000 steps each.
    assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
}

#[test]
fn blocks_far_apart_and_huge_ones_cost_little() {
    let mut case = Case::new(512, mapped(1024 * GIB, 64 * MIB));
    let mut random = Random(11);
    let mut pairs = Vec::new();
    for _ in 0..64 {
        pairs.push((case.alloc(512, 0), case.alloc(8 * GIB - MIB, 0)));
    }
    for &(small, huge) in &pairs {
        case.look_around(small, &mut random);
        case.look_around(huge, &mut random);
    }
    // The places of the chunks count too: 16 bytes or so for each 64 MiB.
    assert!(case.metadata() < MIB, "{} bytes for 128 blocks in half a tebibyte", case.metadata());
    // A small block drifts through all of it.
    for (_, huge) in pairs {
        case.free(huge, 0);
        let address = case.alloc(4096, 0);
        case.look_around(address, &mut random);
    }
    pool::check_invariants(case.pool).unwrap();
    assert!(case.metadata() < 4 * MIB, "{} bytes after that", case.metadata());
}

#[test]
fn a_live_block_is_found_whatever_happens_beside_it() {
    for config in [sliced(2 * MIB), mapped(64 * GIB, 2 * MIB)] {
        let mut case = Case::new(512, config);
        let mut random = Random(5);
        // Every fourth block stays; the others come and go.
        let mut spots = Vec::new();
        for at in 0..8000 {
            let size = random.size(300, 4);
            let address = case.alloc(size, (at % 3) as usize);
            if at % 4 != 0 {
                spots.push((address, at % 3));
            }
        }
        for (address, stream) in spots {
            case.free(address, stream as usize);
        }
        let (done, case) = (AtomicBool::new(false), &case);
        std::thread::scope(|scope| {
            for (number, &stream) in case.streams.iter().enumerate() {
                let done = &done;
                scope.spawn(move || {
                    let mut random = Random(100 + number as u64);
                    let mut own: Vec<AllocationId> = Vec::new();
                    while !done.load(Relaxed) {
                        for _ in 0..64 {
                            own.push(pool::alloc_async(case.pool, random.size(300, 4), stream).unwrap());
                        }
                        while own.len() > 500 {
                            let gone = own.swap_remove(random.below(own.len() as u64) as usize);
                            pool::free_async(gone, stream).unwrap();
                        }
                        if random.below(50) == 0 {
                            stream::synchronize(case.device, stream).unwrap();
                        }
                        if random.below(200) == 0 {
                            pool::trim_to(case.pool, 0).unwrap();
                        }
                    }
                    own.into_iter().for_each(|gone| pool::free_async(gone, stream).unwrap());
                });
            }
            let mut random = Random(77);
            for _ in 0..if cfg!(debug_assertions) { 5 } else { 20 } {
                for (&address, &(size, made)) in &case.live {
                    let offset = random.below(size);
                    assert_eq!(pool::find(case.device, address + offset).ok(), Some((made, offset)));
                }
            }
            done.store(true, Relaxed);
        });
        pool::check_invariants(case.pool).unwrap();
    }
}

/// Where a pointer was asked for, the thread remembers what it was the pointer of.
#[test]
fn a_pointer_that_was_asked_for_is_its_allocations_only_while_that_is_live() {
    for config in [sliced(2 * MIB), mapped(64 * GIB, 2 * MIB)] {
        let (mut case, mut other) = (Case::new(512, config.clone()), Case::new(512, config));
        let mut random = Random(7);
        let mut gone: Vec<u64> = Vec::new();
        for _ in 0..4000 {
            // (Two model devices give the same addresses.)
            let (here, there) = if random.below(2) == 0 { (&mut case, &other) } else { (&mut other, &case) };
            let stream = random.below(3) as usize;
            if here.live.len() < 20 || random.below(2) == 0 {
                let at = here.alloc(random.size(100, 10), stream);
                assert_eq!(pool::pointer(here.live[&at].1), at);
                there.look_up(at);
            } else {
                let at = here.any(&mut random);
                here.free(at, stream);
                there.look_up(at);
                gone.push(at);
            }
            here.look_up(here.any(&mut random));
            // Free now, another block's, or of the same block allocated again.
            if !gone.is_empty() {
                let at = gone[random.below(gone.len() as u64) as usize];
                here.look_up(at);
                there.look_up(at);
            }
        }
    }
}

#[test]
fn a_pointer_that_one_thread_freed_is_not_found_by_another_that_asked_for_it() {
    let mut case = Case::new(512, mapped(64 * GIB, 2 * MIB));
    let at = case.alloc(1000, 0);
    let first = case.live[&at].1;
    assert_eq!(pool::pointer(first), at);
    assert_eq!(pool::find(case.device, at).ok(), Some((first, 0)));
    thread::scope(|scope| scope.spawn(|| pool::free_async(first, case.streams[0]).unwrap()).join()).unwrap();
    assert!(pool::find(case.device, at).is_err());
    let second = thread::scope(|scope| {
        scope.spawn(|| pool::alloc_async(case.pool, 1000, case.streams[0]).unwrap()).join().unwrap()
    });
    assert_eq!(pool::info(second).unwrap().address, at);
    assert_eq!(pool::find(case.device, at).ok(), Some((second, 0)));
}
