//! A trace that begins on a device with a past: pools that have served, and hold nothing any more. It replays from its start, so
//! nothing that they have kept from before may matter, but for what the trace notes.

mod trace_common;

use smp_core::device::{self, ModelOptions};
use smp_core::pool::{self, spec};
use smp_core::stream::{self, StreamFlags};
use smp_core::trace::{self, ReplayOptions, ReplayReport};
use smp_core::{AllocationId, DeviceId, PoolId, StreamId, event};
use trace_common::{Folder, Random};

const CHUNK: u64 = 4096;

struct Bench {
    device: DeviceId,
    pool: PoolId,
    streams: Vec<StreamId>,
    folder: Folder,
}

impl Bench {
    fn new(name: &str, spec: &str, streams: usize, lazy: bool) -> Bench {
        let device =
            device::open_model(&ModelOptions { lazy, page_granularity: CHUNK, ..ModelOptions::default() }).unwrap();
        let pool = pool::create(device, &spec::parse(spec).unwrap()).unwrap();
        let create = |_| stream::create(device, StreamFlags { non_blocking: true, lazy: None }).unwrap();
        Bench { device, pool, streams: (0..streams).map(create).collect(), folder: Folder::new(name) }
    }

    fn alloc(&self, size: u64, stream: usize) -> AllocationId {
        pool::alloc_async(self.pool, size, self.streams[stream]).unwrap()
    }

    fn free(&self, block: AllocationId, stream: usize) {
        pool::free_async(block, self.streams[stream]).unwrap();
    }

    /// Nothing is held, and nothing runs.
    fn come_to_rest(&self) {
        device::synchronize(self.device).unwrap();
        pool::trim_to(self.pool, 0).unwrap();
        assert_eq!(pool::stats(self.pool).unwrap().reserved, 0);
    }

    /// Rounds of allocations and frees, each of which ends with nothing live: what an entry learns from.
    fn rounds(&self, seed: u64, rounds: u64, largest: u64) {
        let mut random = Random(seed);
        let streams = self.streams.len() as u64;
        for _ in 0..rounds {
            let mut live: Vec<(AllocationId, usize)> = Vec::new();
            for _ in 0..60 {
                let stream = random.below(streams) as usize;
                if live.is_empty() || random.below(5) < 3 {
                    live.push((self.alloc(1 + random.below(largest), stream), stream));
                } else {
                    let (block, home) = live.swap_remove(random.below(live.len() as u64) as usize);
                    self.free(block, if random.below(3) == 0 { stream } else { home });
                }
                match random.below(40) {
                    0 => stream::synchronize(self.device, self.streams[stream]).unwrap(),
                    1 => {
                        let happened = event::create(self.device).unwrap();
                        event::record(self.device, happened, self.streams[stream]).unwrap();
                        let other = self.streams[random.below(streams) as usize];
                        stream::wait_event(self.device, other, happened).unwrap();
                        event::destroy(happened).unwrap();
                    }
                    _ => {}
                }
            }
            for (block, home) in live {
                self.free(block, home);
            }
        }
        pool::check_invariants(self.pool).unwrap();
    }

    /// Records what `program` does, and replays it.
    fn recorded(&self, program: impl FnOnce()) -> (ReplayReport, String) {
        let path = self.folder.file("trace");
        trace::start(self.device, &path, 0).unwrap();
        program();
        trace::stop(self.device).unwrap();
        let report = trace::replay(&path, ReplayOptions::default()).unwrap_or_else(|error| panic!("{error}"));
        pool::check_invariants(self.pool).unwrap();
        (report, std::fs::read_to_string(&path).unwrap())
    }
}

#[test]
fn a_mapped_entry_reserves_its_addresses_anew_in_the_trace() {
    let b = Bench::new("anew", "mapped(range_size=1MiB, chunk_size=4KiB)", 1, false);
    b.free(b.alloc(100, 0), 0);
    b.come_to_rest();
    let before = pool::stats(b.pool).unwrap();
    let (report, text) = b.recorded(|| b.free(b.alloc(100, 0), 0));
    assert_eq!((report.allocs, report.frees), (1, 1));
    // 512 bytes were in use at one time; the 1 MiB of addresses are not given out a second time.
    assert!(text.contains("\nnote-used 1 0 512\n"), "{text}");
    assert!(text.contains(" base=0x53f0000000100000 "), "{text}");
    assert!(text.contains("\ngot 1 0x53f0000000100000 512 0 fresh "), "{text}");
    let after = pool::stats(b.pool).unwrap();
    assert_eq!((before.ranges, after.ranges), (1, 2));
    assert_eq!((after.allocs, after.frees, after.used, after.used_high), (2, 2, 0, 512));
}

#[test]
fn how_much_was_used_before_is_noted_for_an_entry_grows_by_it() {
    let b = Bench::new("grows", "mapped(range_size=64MiB, chunk_size=4KiB)", 1, true);
    let large = b.alloc(4 << 20, 0);
    b.free(large, 0);
    b.come_to_rest();
    let (report, _) = b.recorded(|| {
        let blocks: Vec<_> = (0..200).map(|at| b.alloc(1 + at * 700 % 40_000, 0)).collect();
        blocks.into_iter().for_each(|block| b.free(block, 0));
    });
    assert_eq!((report.allocs, report.frees), (200, 200));
}

#[test]
fn nothing_that_an_entry_has_learnt_before_matters_in_the_trace() {
    for (number, (spec, streams, lazy)) in [
        ("mapped(range_size=4MiB, chunk_size=4KiB)", 1, true),
        ("mapped(range_size=4MiB, chunk_size=4KiB)", 1, false),
        ("mapped(range_size=1MiB, chunk_size=4KiB)", 4, true),
        ("mapped(range_size=4MiB, chunk_size=4KiB, dealloc_period=20)", 3, true),
        ("mapped(range_size=4MiB, chunk_size=4KiB); policies(internal_dependencies=off)", 3, true),
        ("sliced(page_size=64KiB, max_slice_size=8KiB); mapped(range_size=4MiB, chunk_size=8KiB)", 3, true),
        ("cuda()", 3, true),
        ("sliced(page_size=1MiB); exclusive(max_alloc_size=1MiB)", 4, true),
    ]
    .into_iter()
    .enumerate()
    {
        for seed in 0..6 {
            let b = Bench::new(&format!("learnt-{number}-{seed}"), spec, streams, lazy);
            for (rounds, largest) in [(1, 2000), (40, 40_000), (1, 90_000)] {
                b.rounds(seed, rounds, largest);
                b.come_to_rest();
                // The same again, and then something else.
                let (report, _) = b.recorded(|| {
                    b.rounds(seed, rounds.min(10), largest);
                    b.rounds(seed + 1000, 5, 2 * largest);
                });
                assert!(report.allocs > 150, "{}", report.allocs);
                b.rounds(seed, 2, largest);
                b.come_to_rest();
            }
        }
    }
}

/// Every second of 128 chunks is idle; sixteen allocations move one each, and the seventeenth asks for more where the entry has
/// become tight by them. Then nothing is live, and a large block shows whether it merges when it is freed.
fn lack_a_chunk(b: &Bench) {
    let mut live = vec![b.alloc(1000 * CHUNK, 0)];
    let singles: Vec<AllocationId> = (0..128).map(|_| b.alloc(CHUNK, 0)).collect();
    for (i, &single) in singles.iter().enumerate() {
        match i % 2 {
            0 => b.free(single, 0),
            _ => live.push(single),
        }
    }
    live.extend([21, 3].map(|chunks| b.alloc(chunks * CHUNK, 0)));
    for time in 0..17 {
        b.free(b.alloc((2 + time) * CHUNK, 0), 0);
    }
    live.drain(..).for_each(|block| b.free(block, 0));
    for bytes in [512, 17 * CHUNK, 18 * CHUNK, 900 * CHUNK, 30 * CHUNK] {
        b.free(b.alloc(bytes, 0), 0);
    }
}

#[test]
fn an_entry_that_was_tight_is_not_and_earlier_allocations_do_not_count_towards_it() {
    let b = Bench::new("tight", "mapped(range_size=64MiB, chunk_size=4KiB)", 1, true);
    // So many that none of what follows would be often, had they to do with it.
    (0..4000).for_each(|_| b.free(b.alloc(512, 0), 0));
    for _ in 0..2 {
        b.come_to_rest();
        let before = pool::stats(b.pool).unwrap().chunk_moves;
        b.recorded(|| lack_a_chunk(&b));
        assert!(pool::stats(b.pool).unwrap().chunk_moves >= before + 16);
    }
}

#[test]
fn a_trace_may_begin_with_streams_and_pools_that_another_left() {
    let b = Bench::new("left", "mapped(range_size=1MiB, chunk_size=4KiB)", 3, true);
    b.rounds(1, 5, 30_000);
    b.come_to_rest();
    stream::destroy(b.streams[1]).unwrap();
    let again = stream::create(b.device, StreamFlags::default()).unwrap();
    let other = pool::create(b.device, &spec::parse("mapped(range_size=1MiB, chunk_size=4KiB)").unwrap()).unwrap();
    let block = pool::alloc_async(other, 50_000, again).unwrap();
    pool::free_async(block, again).unwrap();
    device::synchronize(b.device).unwrap();
    pool::trim_to(other, 0).unwrap();
    let streams = vec![again, b.streams[2], b.streams[0]];
    let second = Bench { device: b.device, pool: other, streams, folder: Folder::new("left-2") };
    for seed in 2..5 {
        let (report, _) = second.recorded(|| second.rounds(seed, 5, 30_000));
        assert!(report.allocs > 100);
        second.come_to_rest();
    }
}

#[test]
fn a_trace_may_begin_whatever_streams_came_and_went_before() {
    for (number, spec) in
        ["mapped(range_size=1MiB, chunk_size=4KiB)", "cuda()", "sliced(page_size=64KiB)"].into_iter().enumerate()
    {
        for seed in 0..30 {
            let mut b = Bench::new(&format!("churn-{number}-{seed}"), spec, 4, true);
            let mut random = Random(seed + 77);
            for round in 0..6 {
                b.rounds(seed * 100 + round, 2, 30_000);
                b.come_to_rest();
                for at in 0..4 {
                    if random.below(2) == 0 {
                        stream::destroy(b.streams[at]).unwrap();
                        b.streams[at] =
                            stream::create(b.device, StreamFlags { non_blocking: random.below(2) == 0, lazy: None })
                                .unwrap();
                    }
                }
                let (report, _) = b.recorded(|| b.rounds(seed * 100 + round + 50, 3, 40_000));
                assert!(report.allocs > 60, "{}", report.allocs);
                b.come_to_rest();
            }
        }
    }
}
