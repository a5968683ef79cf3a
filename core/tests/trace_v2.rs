//! Recorded runs replay exactly: the same addresses, reasons, statuses and figures, with the outside answers as they were.

mod trace_common;

use smp_core::device::{self, ModelOptions};
use smp_core::pool::{self, AllocOptions, spec};
use smp_core::stream::{self, StreamFlags};
use smp_core::trace::{self, ReplayOptions};
use smp_core::{AllocationId, DeviceId, EventId, PoolId, Status, StreamId, event};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use trace_common::{Folder, Random};

const MIB: u64 = 1 << 20;

const POOLS: &[&str] = &[
    "sliced(page_size=64KiB, max_slice_size=8KiB, max_pool_size=512KiB); \
     sliced(page_size=2MiB, max_pool_size=12MiB, dealloc_period=40); direct(reclaim_at=8MiB); exclusive()",
    "preset(cuda)",
    "preset(sub-slices)",
    "exclusive(max_alloc_size=1MiB, dealloc_period=9); direct(); sync_on_oom(on)",
    "sliced(page_size=4MiB, max_pool_size=8MiB); policies(opportunistic=off); release_threshold(4MiB)",
];

struct Live {
    id: AllocationId,
    size: u64,
}

/// A program that makes every kind of call at random, and its own books.
struct Program {
    device: DeviceId,
    pools: Vec<PoolId>,
    streams: Vec<StreamId>,
    events: Vec<EventId>,
    live: Vec<Live>,
    held: u64,
    held_peak: u64,
    allocs: u64,
    frees: u64,
    failures: u64,
    callbacks: Arc<AtomicU64>,
}

fn open(lazy: bool, capacity: u64) -> DeviceId {
    device::open_model(&ModelOptions { lazy, capacity, ..Default::default() }).unwrap()
}

impl Program {
    fn begin(device: DeviceId, specs: &[&str]) -> Program {
        let callbacks = Arc::new(AtomicU64::new(0));
        let pools: Vec<PoolId> =
            specs.iter().map(|text| pool::create(device, &spec::parse(text).unwrap()).unwrap()).collect();
        let mut program = Program {
            device,
            pools,
            streams: vec![StreamId(0)],
            events: (0..3).map(|_| event::create(device).unwrap()).collect(),
            live: Vec::new(),
            held: 0,
            held_peak: 0,
            allocs: 0,
            frees: 0,
            failures: 0,
            callbacks,
        };
        for i in 0..3 {
            program.streams.push(stream::create(device, StreamFlags { non_blocking: i == 2, lazy: None }).unwrap());
        }
        program
    }

    /// The first pool's callback trims the others, allocates from the second, and gives up every other time.
    fn with_callback(&self) {
        let (pools, count, device) = (self.pools.clone(), self.callbacks.clone(), self.device);
        let helper = self.pools.get(1).copied();
        let answer = move |_: &pool::OutOfMemory| {
            let n = count.fetch_add(1, Ordering::Relaxed);
            for &pool in &pools {
                pool::trim_to(pool, 0).unwrap();
            }
            if let Some(helper) = helper
                && n % 3 == 0
            {
                let own = stream::create(device, StreamFlags::default()).unwrap();
                if let Ok(id) = pool::alloc_async(helper, 700, own) {
                    pool::free_async(id, own).unwrap();
                }
                stream::destroy(own).unwrap();
            }
            n % 2 == 0
        };
        pool::set_out_of_memory_callback(self.pools[0], Some(Arc::new(answer))).unwrap();
    }

    fn step(&mut self, random: &mut Random) {
        let device = self.device;
        let stream = self.streams[random.below(self.streams.len() as u64) as usize];
        let event = self.events[random.below(3) as usize];
        let pool = self.pools[random.below(self.pools.len() as u64) as usize];
        match random.below(100) {
            0..38 => {
                let size = match random.below(8) {
                    0 => random.below(3 * MIB),
                    1 => 0,
                    _ => random.below(9000),
                };
                let options = AllocOptions {
                    alignment: if random.below(9) == 0 { 4096 } else { 0 },
                    name: (random.below(9) == 0).then_some("a name with spaces, 100 %"),
                };
                let result = match random.below(12) {
                    0 => pool::alloc(pool, size, &options),
                    1 => pool::alloc_async_with(pool, size, stream, &options),
                    _ => pool::alloc_async(pool, size, stream),
                };
                match result {
                    Ok(id) => {
                        self.allocs += 1;
                        self.held += size;
                        self.held_peak = self.held_peak.max(self.held);
                        self.live.push(Live { id, size });
                    }
                    // Refused before it began: the pool's figures do not count it either.
                    Err(error) if error.status == Status::InvalidValue => {}
                    Err(_) => self.failures += 1,
                }
            }
            38..66 if !self.live.is_empty() => {
                let Live { id, size } = self.live.swap_remove(random.below(self.live.len() as u64) as usize);
                if random.below(8) == 0 {
                    let other = self.streams[random.below(self.streams.len() as u64) as usize];
                    pool::add_user(id, other).unwrap();
                }
                if random.below(6) == 0 {
                    let at = pool::info(id).unwrap().address + random.below(16);
                    let kind = pool::access::AccessKind::from_number(1 + random.below(3) as u32).unwrap();
                    pool::access::note(device, at, 1 + random.below(8), stream, kind).unwrap();
                }
                if random.below(12) == 0 {
                    pool::free(id).unwrap()
                } else {
                    pool::free_async(id, stream).unwrap()
                }
                self.frees += 1;
                self.held -= size;
            }
            66..72 => drop(stream::submit(device, stream, 1 + random.below(3)).unwrap()),
            72..79 => drop(stream::advance(device, stream, random.below(40)).unwrap()),
            79..84 => drop(event::record(device, event, stream).unwrap()),
            84..90 => stream::wait_event(device, stream, event).unwrap(),
            90 => stream::synchronize(device, stream).unwrap(),
            91 => event::synchronize(event).unwrap(),
            92 => pool::trim_to(pool, random.below(4 * MIB)).unwrap(),
            93 => pool::set_attribute(pool, 1 + random.below(3) as u32, random.below(2)).unwrap(),
            94 => pool::set_attribute(pool, 4, if random.below(2) == 0 { 4 * MIB } else { u64::MAX }).unwrap(),
            95 => device::refuse_pages(device, random.below(4), random.below(3)).unwrap(),
            96 => match random.below(4) {
                0 => device::refuse_releases(device, random.below(3)).unwrap(),
                1 => pool::set_attribute(pool, 6 + 2 * random.below(2) as u32, 0).unwrap(),
                2 => device::set_capacity(device, (24 + random.below(200)) * MIB).unwrap(),
                _ => {}
            },
            97 => {
                let passing = pool::create(device, &spec::parse("preset(cuda)").unwrap()).unwrap();
                let id = pool::alloc_async(passing, 5, stream);
                pool::destroy(passing).unwrap();
                match id {
                    Ok(id) => {
                        self.allocs += 1;
                        self.frees += 1;
                        self.held_peak = self.held_peak.max(self.held + 5);
                        pool::free_async(id, stream).unwrap();
                    }
                    Err(_) => self.failures += 1,
                }
            }
            98 => {
                stream::destroy(self.streams[1]).unwrap();
                self.streams[1] = stream::create(device, StreamFlags::default()).unwrap();
                event::destroy(self.events[0]).unwrap();
                self.events[0] = event::create(device).unwrap();
            }
            99 if random.below(3) == 0 => device::synchronize(device).unwrap(),
            _ => {}
        }
    }

    fn end(self) {
        for pool in &self.pools {
            pool::destroy(*pool).unwrap();
        }
        for live in self.live {
            pool::free(live.id).unwrap();
        }
        device::close(self.device).unwrap();
    }
}

/// What must have happened in the runs of one test, or it shows nothing.
#[derive(Default)]
struct Coverage {
    reasons: [u64; 6],
    refusals: u64,
    kept: u64,
    callbacks: u64,
    failures: u64,
}

fn one_run(folder: &Folder, seed: u64, lazy: bool, specs: &[&str], steps: usize, seen: &mut Coverage) {
    let mut random = Random(seed);
    let capacity = if random.below(2) == 0 { 40 * MIB } else { u64::MAX };
    let path = folder.file(&format!("run-{seed}{}", if random.below(2) == 0 { ".gz" } else { "" }));
    let device = open(lazy, capacity);
    trace::start(device, &path, if random.below(2) == 0 { 0 } else { trace::TIME }).unwrap();
    let mut program = Program::begin(device, specs);
    if random.below(2) == 0 {
        program.with_callback();
    }
    for _ in 0..steps {
        program.step(&mut random);
    }
    let stats: Vec<_> = program.pools.iter().map(|&pool| pool::stats(pool).unwrap()).collect();
    trace::stop(device).unwrap();

    let report = trace::replay(&path, ReplayOptions::default()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    assert!(report.verified);
    assert_eq!(report.version, 2);
    // The callback's own allocation of 700 B comes on top of the program's.
    let helped = program.callbacks.load(Ordering::Relaxed) > 0 && specs.len() > 1;
    let slack = if helped { 700 } else { 0 };
    assert!((program.held_peak..=program.held_peak + slack).contains(&report.live_peak), "seed {seed}");
    if !helped {
        assert_eq!((report.allocs, report.frees), (program.allocs, program.frees), "seed {seed}");
        assert_eq!(report.failures, program.failures, "seed {seed}");
    }
    assert!(report.live_plus_pending_peak >= report.live_peak);
    assert!(report.reserved_peak >= report.used_peak && report.used_peak >= report.live_peak);
    let replayed: Vec<_> = report.pools.iter().filter(|pool| pool.pool as usize <= specs.len()).collect();
    assert_eq!(replayed.len(), stats.len());
    for (stats, replayed) in stats.iter().zip(replayed) {
        let same = pool::Stats { metadata_bytes: stats.metadata_bytes, ..replayed.stats };
        assert_eq!(same, *stats, "seed {seed}");
        let reuse = stats.reuse;
        let counts = [reuse.same_stream, reuse.observed, reuse.event, reuse.opportunistic, reuse.internal, reuse.fresh];
        seen.reasons.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        seen.refusals += stats.page_refusals;
        seen.kept += stats.release_failures;
        seen.failures += stats.failures;
    }
    seen.callbacks += program.callbacks.load(Ordering::Relaxed);
    program.end();
}

/// Runs of each kind; `SMP_TRACE_RUNS` asks for more.
fn runs() -> u64 {
    std::env::var("SMP_TRACE_RUNS").ok().and_then(|text| text.parse().ok()).unwrap_or(40).max(40)
}

fn many_runs(lazy: bool) {
    let folder = Folder::new(if lazy { "lazy" } else { "eager" });
    let mut seen = Coverage::default();
    for seed in 1..=runs() {
        let first = POOLS[seed as usize % POOLS.len()];
        let specs = if seed % 3 == 0 { vec![first, POOLS[0]] } else { vec![first] };
        one_run(&folder, seed * 1000 + u64::from(lazy), lazy, &specs, 1500, &mut seen);
    }
    let needed = if lazy { &[0, 1, 2, 3, 4, 5][..] } else { &[0, 1, 5][..] };
    for &reason in needed {
        assert!(seen.reasons[reason] > 0, "reason {reason} never came up");
    }
    assert!(seen.refusals > 0 && seen.kept > 0 && seen.callbacks > 0 && seen.failures > 0);
}

#[test]
fn recorded_runs_on_lazy_devices_replay_exactly() {
    many_runs(true);
}

#[test]
fn recorded_runs_on_eager_devices_replay_exactly() {
    many_runs(false);
}

/// A small trace with most kinds of lines in it.
fn small_trace(folder: &Folder) -> String {
    let path = folder.file("small");
    let device = open(true, 8 * MIB);
    trace::start(device, &path, 0).unwrap();
    let pool = pool::create(device, &spec::parse("sliced(page_size=2MiB)").unwrap()).unwrap();
    let streams: Vec<StreamId> = (0..2).map(|_| stream::create(device, StreamFlags::default()).unwrap()).collect();
    let a = pool::alloc_async(pool, 1000, streams[0]).unwrap();
    let b = pool::alloc_async(pool, 2 * MIB, streams[0]).unwrap();
    pool::free_async(a, streams[0]).unwrap();
    stream::advance(device, streams[0], 10).unwrap();
    let c = pool::alloc_async(pool, 1000, streams[1]).unwrap(); // policy 2 asks, and may
    pool::free_async(b, streams[1]).unwrap();
    stream::synchronize(device, streams[1]).unwrap();
    pool::trim_to(pool, 2 * MIB).unwrap();
    device::refuse_pages(device, 0, 1).unwrap();
    pool::alloc_async(pool, 2 * MIB, streams[1]).unwrap_err(); // nothing free is large enough
    pool::free(c).unwrap();
    trace::stop(device).unwrap();
    pool::destroy(pool).unwrap();
    device::close(device).unwrap();
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn a_trace_has_the_lines_its_format_promises() {
    let folder = Folder::new("lines");
    // Written by hand from the rules of placement: the page is at the first model address, blocks are cut from its low
    // end in units of 512 B, a failed call takes no sequence number.
    let expected = "smp-trace 2\n\
        device kind=model alignment=512 granularity=2097152 capacity=8388608 lazy=yes base=0x53f0000000000000 time=no\n\
        pool 1 sliced(page_size=2MiB, max_slice_size=2MiB)\n\
        stream 1 blocking lazy\n\
        stream 2 blocking lazy\n\
        alloc 1 1000 0 1\n\
        page 1 0 2097152 0x53f0000000000000\n\
        got 1 0x53f0000000000000 1024 0 fresh 1\n\
        alloc 1 2097152 0 1\n\
        page 1 0 2097152 0x53f0000000200000\n\
        got 2 0x53f0000000200000 2097152 0 fresh 2\n\
        free 1 1\n\
        advance 1 10 3\n\
        alloc 1 1000 0 2\n\
        got 3 0x53f0000000000400 1024 0 fresh 1\n\
        free 2 2\n\
        sync 2\n\
        trim 1 2097152\n\
        page-released 1 0 2097152 0x53f0000000200000\n\
        refuse-pages 0 1\n\
        alloc 1 2097152 0 2\n\
        page-refused 1 0 2097152\n\
        fail out-of-memory\n\
        free 3 host\n";
    let text = small_trace(&folder);
    let (body, closing) = text.split_at(text.find("figures ").unwrap());
    assert_eq!(body, expected);
    let mut closing = closing.lines();
    let figures = closing.next().unwrap();
    for part in ["figures 1 requested=0 used=0 reserved=2097152 live=0", " allocs=3", " failures=1", " fresh=3"] {
        assert!(figures.contains(part), "{part} in {figures}");
    }
    assert_eq!(closing.next(), Some("end 23"));
    assert_eq!(closing.next(), None);
}

#[test]
fn recording_the_same_program_twice_writes_the_same_bytes() {
    let folder = Folder::new("twice");
    assert_eq!(small_trace(&folder), small_trace(&folder));
}

/// Replays a text; the error's status and message.
fn refused(folder: &Folder, text: &str) -> (Status, String) {
    let path = folder.file("changed");
    std::fs::write(&path, text).unwrap();
    let error = trace::replay(&path, ReplayOptions::default()).unwrap_err();
    (error.status, error.message)
}

#[test]
fn a_changed_answer_is_a_mismatch_that_names_its_line() {
    let folder = Folder::new("mismatch");
    let text = small_trace(&folder);
    let at = |needle: &str| 1 + text[..text.find(needle).unwrap()].matches('\n').count();
    for (from, to, line) in [
        ("got 1 0x53f0000000000000", "got 1 0x53f0000000000200", at("got 1 ")),
        ("1024 0 fresh 1\n", "1536 0 fresh 1\n", at("got 1 ")),
        ("got 3 0x53f0000000000400 1024 0 fresh", "got 3 0x53f0000000000400 1024 0 observed", at("got 3 ")),
        ("2097152 0 fresh 2", "2097152 0 fresh 3", at("got 2 ")),
        ("advance 1 10 3", "advance 1 10 2", at("advance ")),
        ("fail out-of-memory", "fail capacity-exceeded", at("fail ")),
        (
            "page-released 1 0 2097152 0x53f0000000200000",
            "page-released 1 0 2097152 0x53f0000000000000",
            at("page-rel"),
        ),
        ("page-released 1 0 2097152 0x53f0000000200000\n", "", at("trim ")),
        ("page 1 0 2097152 0x53f0000000200000\n", "page-refused 1 0 2097152\n", at("got 2 ")),
        ("page-refused 1 0 2097152\n", "page 1 0 2097152 0x53f0000000400000\n", at("fail ")),
        (" used=0 ", " used=512 ", at("figures ")),
        (" merges=", " merges=9", at("figures ")),
        ("max_slice_size=2MiB", "max_slice_size=1MiB", at("page 1 0 2097152 0x53f0000000200000")),
    ] {
        assert!(text.contains(from), "{from}");
        let mut changed = text.replacen(from, to, 1);
        if to.is_empty() {
            changed = changed.replace("end 23", "end 22");
        }
        let (status, message) = refused(&folder, &changed);
        assert_eq!(status, Status::ReplayMismatch, "{from}: {message}");
        assert!(message.contains(&format!("changed:{line}:")), "{from} is line {line}: {message}");
    }
}
