//! The access checker at its edges: pointers of every kind, sizes that overflow, bad handles, what an observer sees, what
//! is kept and for how long, and many threads at once. The verdicts on whole programs are in `access_programs.rs`.

mod spent;

use smp_core::device::{self, ModelOptions};
use smp_core::pool::access::{self, AccessKind, Outcome, Verdict};
use smp_core::pool::observer::{Event, Observer};
use smp_core::pool::{self, AllocOptions};
use smp_core::stream::{self, StreamFlags};
use smp_core::{
    AllocationId, DeviceId, MemoryPoolConfig, PoolConfig, PoolId, Preset, Status, StreamId, StreamOrderId, event,
};
use spent::Spent;
use std::sync::{Arc, Mutex};

/// First model address.
const BASE: u64 = 0x53F0_0000_0000_0000;
const MIB: u64 = 1 << 20;

fn lazy() -> DeviceId {
    device::open_model(&ModelOptions { lazy: true, ..Default::default() }).unwrap()
}

fn sliced(device: DeviceId) -> PoolId {
    let entries = vec![MemoryPoolConfig::Sliced {
        page_size: 2 * MIB,
        max_slice_size: None,
        max_pool_size: None,
        dealloc_period: None,
    }];
    pool::create(device, &PoolConfig::with_entries(entries)).unwrap()
}

fn stream(device: DeviceId) -> StreamId {
    stream::create(device, StreamFlags::default()).unwrap()
}

fn write(device: DeviceId, ptr: u64, size: u64, stream: StreamId) -> Verdict {
    access::note(device, ptr, size, stream, AccessKind::Write).unwrap()
}

#[test]
fn a_pointer_into_no_page_is_unknown() {
    let device = lazy();
    let stream = stream(device);
    for ptr in [0, 1, 4096, BASE - 1, BASE, BASE + (1 << 40), u64::MAX, 1 << 47] {
        let verdict = write(device, ptr, 1, stream);
        assert_eq!((verdict.outcome, verdict.allocation), (Outcome::UnknownPointer, AllocationId(0)), "{ptr:#x}");
        assert_eq!((verdict.offset, verdict.other), (0, None));
    }
}

#[test]
fn the_never_used_rest_of_a_page_is_unknown() {
    let device = lazy();
    let (pool, stream) = (sliced(device), stream(device));
    pool::alloc_async(pool, 512, stream).unwrap();
    assert_eq!(write(device, BASE + 511, 1, stream).outcome, Outcome::Ordered);
    assert_eq!(write(device, BASE + 512, 1, stream).outcome, Outcome::UnknownPointer);
    assert_eq!(write(device, BASE + 2 * MIB - 1, 1, stream).outcome, Outcome::UnknownPointer);
    assert_eq!(write(device, BASE + 2 * MIB, 1, stream).outcome, Outcome::UnknownPointer);
}

#[test]
fn memory_of_a_page_that_went_back_is_unknown() {
    let device = lazy();
    let pool = pool::create(device, &PoolConfig::preset(Preset::Cuda)).unwrap();
    let stream = stream(device);
    let block = pool::alloc_async(pool, 4096, stream).unwrap();
    pool::free_async(block, stream).unwrap();
    assert_eq!(write(device, BASE, 1, stream).outcome, Outcome::UseAfterFree);
    stream::synchronize(device, stream).unwrap();
    assert_eq!(pool::stats(pool).unwrap().reserved, 0, "release threshold 0");
    assert_eq!(write(device, BASE, 1, stream).outcome, Outcome::UnknownPointer);
}

#[test]
fn a_size_that_runs_past_the_address_space_is_out_of_bounds() {
    let device = lazy();
    let (pool, stream) = (sliced(device), stream(device));
    pool::alloc_async(pool, 4096, stream).unwrap();
    for (offset, size) in [(0, u64::MAX), (1, u64::MAX), (4095, u64::MAX - BASE), (0, 4097), (4095, 2)] {
        let verdict = write(device, BASE + offset, size, stream);
        assert_eq!((verdict.outcome, verdict.offset), (Outcome::OutOfBounds, offset));
    }
    assert_eq!(write(device, BASE, 4096, stream).outcome, Outcome::Ordered);
}

#[test]
fn the_padding_before_an_aligned_allocation_is_out_of_bounds() {
    let device = lazy();
    let (pool, stream) = (sliced(device), stream(device));
    pool::alloc_async(pool, 512, stream).unwrap();
    let options = AllocOptions { alignment: 4096, name: None };
    let block = pool::alloc_async_with(pool, 100, stream, &options).unwrap();
    let info = pool::info(block).unwrap();
    assert_eq!((info.address, info.block_address), (BASE + 4096, BASE + 512));
    let verdict = write(device, BASE + 4095, 2, stream);
    assert_eq!((verdict.outcome, verdict.allocation), (Outcome::OutOfBounds, block));
    assert_eq!(write(device, BASE + 4096, 100, stream).outcome, Outcome::Ordered);
}

#[test]
fn host_pointers_and_model_addresses_name_the_same_bytes() {
    let device = device::open_model(&ModelOptions { host_backing: true, lazy: true, ..Default::default() }).unwrap();
    let (pool, s, t) = (sliced(device), stream(device), stream(device));
    let block = pool::alloc(pool, 4096, &AllocOptions::default()).unwrap();
    let info = pool::info(block).unwrap();
    assert_ne!(info.pointer, info.address, "host memory backs the block");
    let first = write(device, info.pointer + 8, 8, s);
    assert_eq!((first.outcome, first.allocation, first.offset), (Outcome::Ordered, block, 8));
    let second = write(device, info.address + 15, 1, t);
    assert_eq!((second.outcome, second.other), (Outcome::RaceWriteWrite, Some(first.at)));
    assert_eq!(write(device, info.pointer + 16, 8, t).outcome, Outcome::Ordered);
}

#[test]
fn an_access_takes_a_sequence_number_whatever_the_verdict_and_a_failed_call_takes_none() {
    let device = lazy();
    let (pool, s) = (sliced(device), stream(device));
    let submitted = || stream::info(device, s).unwrap().submitted;
    let block = pool::alloc_async(pool, 512, s).unwrap();
    assert_eq!(write(device, BASE, 1, s).at.seq, 2);
    assert_eq!(write(device, 0, 1, s).at.seq, 3);
    assert_eq!(write(device, BASE, 513, s).at.seq, 4);
    pool::free_async(block, s).unwrap();
    let after_free = write(device, BASE, 1, s);
    assert_eq!((after_free.at.seq, after_free.other.map(|at| at.seq)), (6, Some(5)));
    assert_eq!(submitted(), 6);

    let note = |device, stream| access::note(device, BASE, 1, stream, AccessKind::Read).unwrap_err().status;
    let elsewhere = lazy();
    assert_eq!(note(elsewhere, s), Status::WrongDevice);
    assert_eq!(note(DeviceId(0), StreamId(0)), Status::InvalidHandle);
    assert_eq!(note(device, StreamId(block.0)), Status::InvalidHandle);
    assert_eq!(note(DeviceId(s.0), s), Status::InvalidHandle);
    let gone = stream(device);
    stream::destroy(gone).unwrap();
    assert_eq!(note(device, gone), Status::Destroyed);
    assert_eq!(submitted(), 6);
    assert_eq!(stream::info(elsewhere, StreamId(0)).unwrap().submitted, 0);
}

#[test]
fn a_created_stream_needs_no_device_beside_it() {
    let device = lazy();
    let (pool, s) = (sliced(device), stream(device));
    pool::alloc_async(pool, 512, s).unwrap();
    assert_eq!(access::note(DeviceId(0), BASE, 1, s, AccessKind::Read).unwrap().outcome, Outcome::Ordered);
}

#[test]
fn a_block_of_a_destroyed_pool_is_judged_until_it_is_freed() {
    let device = lazy();
    let (pool, s, t) = (sliced(device), stream(device), stream(device));
    let block = pool::alloc_async(pool, 512, s).unwrap();
    pool::destroy(pool).unwrap();
    assert_eq!(write(device, BASE, 1, s).outcome, Outcome::Ordered);
    assert_eq!(write(device, BASE, 1, t).outcome, Outcome::NotOrderedAfterAllocation);
    pool::free_async(block, s).unwrap();
    assert_ne!(write(device, BASE, 1, s).outcome, Outcome::Ordered);
}

#[test]
fn what_was_noted_is_forgotten_at_the_free_and_costs_no_memory_after_it() {
    let device = lazy();
    let (pool, s, t) = (sliced(device), stream(device), stream(device));
    let block = pool::alloc_async(pool, MIB, s).unwrap();
    let other = pool::alloc_async(pool, 512, s).unwrap();
    let before = pool::stats(pool).unwrap().metadata_bytes;
    for k in 0..1000 {
        write(device, BASE + 2 * k, 1, s);
    }
    let noted = pool::stats(pool).unwrap().metadata_bytes;
    assert!(noted >= before + 1000 * 16, "a thousand ranges are kept: {before} -> {noted}");
    pool::free_async(block, s).unwrap();
    pool::free_async(other, s).unwrap();
    let after = pool::stats(pool).unwrap().metadata_bytes;
    assert!(after < before + 1000, "{before} -> {after}");
    // The memory serves again, and the old accesses on s are no business of the new block's.
    let again = pool::alloc_async(pool, MIB, s).unwrap();
    assert_eq!(pool::pointer(again), BASE);
    let e = event::create(device).unwrap();
    event::record(device, e, s).unwrap();
    stream::wait_event(device, t, e).unwrap();
    assert_eq!(write(device, BASE, MIB, t).outcome, Outcome::Ordered);
}

#[test]
fn ten_thousand_ranges_of_one_block_are_noted_without_quadratic_cost() {
    let device = lazy();
    let (pool, s, t) = (sliced(device), stream(device), stream(device));
    pool::alloc_async(pool, MIB, s).unwrap();
    let begin = Spent::now();
    for k in 0..50_000 {
        assert_eq!(write(device, BASE + 16 * k, 8, s).outcome, Outcome::Ordered);
    }
    let e = event::create(device).unwrap();
    event::record(device, e, s).unwrap();
    stream::wait_event(device, t, e).unwrap();
    for k in 0..50_000 {
        assert_eq!(write(device, BASE + 16 * k + 7, 2, t).outcome, Outcome::Ordered);
    }
    assert!(begin.elapsed().as_secs() < 20, "{:?}", begin.elapsed());
}

#[test]
fn a_racing_free_is_told_with_the_access_it_misses() {
    let device = lazy();
    let (pool, s, t) = (sliced(device), stream(device), stream(device));
    assert_eq!(access::last_racing_free(pool).unwrap(), None);
    let block = pool::alloc(pool, 512, &AllocOptions::default()).unwrap();
    write(device, BASE, 1, t);
    pool::free_async(block, s).unwrap();
    let message = access::last_racing_free(pool).unwrap().unwrap();
    assert!(message.contains("write on stream 2 (operation 1)"), "{message}");
    assert_eq!(pool::stats(pool).unwrap().racing_frees, 1);
    assert_eq!(access::last_racing_free(PoolId(0)).unwrap_err().status, Status::InvalidHandle);
}

#[derive(Default)]
struct Seen(Mutex<Vec<(u64, u64, StreamOrderId, u32)>>);

impl Observer for Seen {
    fn event(&self, event: &Event<'_>) {
        if let Event::Access { address, size, stream, kind } = *event {
            self.0.lock().unwrap().push((address, size, stream, kind));
        }
    }
}

#[test]
fn an_observer_sees_every_access_by_its_model_address() {
    let device = device::open_model(&ModelOptions { host_backing: true, ..Default::default() }).unwrap();
    let (pool, s) = (sliced(device), stream(device));
    let block = pool::alloc_async(pool, 4096, s).unwrap();
    let seen = Arc::new(Seen::default());
    device::install_observer(device, seen.clone()).unwrap();
    let info = pool::info(block).unwrap();
    access::note(device, info.pointer + 3, 5, s, AccessKind::Read).unwrap();
    access::note(device, info.address, 4096, StreamId(0), AccessKind::ReadWrite).unwrap();
    access::note(device, 7, 1, s, AccessKind::Write).unwrap();
    access::note(device, 7, 1, StreamId(99), AccessKind::Write).unwrap_err();
    device::remove_observer(device).unwrap();
    access::note(device, 7, 1, s, AccessKind::Write).unwrap();
    assert_eq!(
        *seen.0.lock().unwrap(),
        [(BASE + 3, 5, StreamOrderId(1), 1), (BASE, 4096, StreamOrderId(0), 3), (7, 1, StreamOrderId(1), 2)]
    );
}

#[test]
fn threads_that_share_nothing_never_race_and_all_is_forgotten_in_the_end() {
    let device = device::open_model(&ModelOptions::default()).unwrap();
    let pool = sliced(device);
    let clean = pool::stats(pool).unwrap().racing_frees;
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            scope.spawn(move || {
                let (mine, other) = (stream(device), stream(device));
                let e = event::create(device).unwrap();
                for round in 0..400 {
                    let block = pool::alloc_async(pool, 512 + 512 * (round % 5), mine).unwrap();
                    let address = pool::pointer(block);
                    let note = |stream, kind| access::note(device, address, 512, stream, kind).unwrap();
                    assert_eq!(note(mine, AccessKind::Write).outcome, Outcome::Ordered);
                    event::record(device, e, mine).unwrap();
                    stream::wait_event(device, other, e).unwrap();
                    assert_eq!(note(other, AccessKind::Read).outcome, Outcome::Ordered);
                    event::record(device, e, other).unwrap();
                    stream::wait_event(device, mine, e).unwrap();
                    if round % 7 == thread {
                        device::synchronize(device).unwrap();
                    }
                    if round % 3 == 0 {
                        pool::free(block).unwrap();
                    } else {
                        pool::free_async(block, if round % 2 == 0 { mine } else { other }).unwrap();
                    }
                }
            });
        }
    });
    let stats = pool::stats(pool).unwrap();
    assert_eq!((stats.live, stats.racing_frees, clean), (0, 0, 0));
    pool::check_invariants(pool).unwrap();
}

#[test]
fn threads_that_note_anything_anywhere_while_blocks_come_and_go_disturb_no_figure() {
    let device = device::open_model(&ModelOptions::default()).unwrap();
    let pool = sliced(device);
    let streams: Vec<StreamId> = (0..4).map(|_| stream(device)).collect();
    let published: Vec<std::sync::atomic::AtomicU64> = (0..8).map(|_| 0.into()).collect();
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let (streams, published) = (&streams, &published);
            scope.spawn(move || {
                let mut random = thread as u64 + 1;
                let mut next = |limit: u64| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (random >> 33) % limit
                };
                for _ in 0..1500 {
                    let mine = streams[thread];
                    let block = pool::alloc_async(pool, 1 + next(3000), mine).unwrap();
                    published[next(8) as usize].store(pool::pointer(block), relaxed);
                    for _ in 0..3 {
                        let ptr = published[next(8) as usize].load(relaxed) + next(600);
                        let kind = AccessKind::from_number(1 + next(3) as u32).unwrap();
                        let on = streams[next(4) as usize];
                        access::note(device, ptr, next(600), on, kind).unwrap();
                    }
                    match next(40) {
                        0 => stream::synchronize(device, mine).unwrap(),
                        1 => pool::trim_to(pool, 0).unwrap(),
                        2 => {
                            access::note(device, published[0].load(relaxed), 1, StreamId(0), AccessKind::Write)
                                .unwrap();
                        }
                        _ => {}
                    }
                    match next(3) {
                        0 => pool::free(block).unwrap(),
                        on => pool::free_async(block, streams[on as usize]).unwrap(),
                    }
                }
            });
        }
    });
    let stats = pool::stats(pool).unwrap();
    assert_eq!((stats.live, stats.used, stats.requested, stats.allocs, stats.frees), (0, 0, 0, 6000, 6000));
    assert!(stats.racing_frees > 0 && stats.racing_frees <= stats.frees, "{}", stats.racing_frees);
    pool::check_invariants(pool).unwrap();
    // Nothing noted is left: a free that follows nothing is no racing free any more.
    let (one, other) = (stream(device), stream(device));
    let before = stats.racing_frees;
    for _ in 0..100 {
        let block = pool::alloc_async(pool, 512, one).unwrap();
        pool::free_async(block, other).unwrap();
    }
    assert_eq!(pool::stats(pool).unwrap().racing_frees, before);
}
