//! A stream's recent blocks where not every way may take them: blocks that need a closer look at their free, and pools that
//! are looked at between the calls or not.

use smp_core::device::{self, ModelOptions};
use smp_core::pool::{self, AllocOptions, PoolConfig};
use smp_core::{AllocationId, PoolId, StreamId, stream};

struct Case {
    pool: PoolId,
    stream: StreamId,
}

impl Case {
    fn new() -> Case {
        let device = device::open_model(&ModelOptions::default()).unwrap();
        let pool = pool::create(device, &PoolConfig::default()).unwrap();
        Case { pool, stream: stream::create(device, Default::default()).unwrap() }
    }
    fn alloc(&self, size: u64) -> AllocationId {
        let done = pool::alloc_async(self.pool, size, self.stream).unwrap();
        self.check();
        done
    }
    fn aligned(&self, size: u64) -> AllocationId {
        let options = AllocOptions { alignment: 4096, ..Default::default() };
        let done = pool::alloc_async_with(self.pool, size, self.stream, &options).unwrap();
        self.check();
        done
    }
    fn free(&self, block: AllocationId) {
        pool::free_async(block, self.stream).unwrap();
        self.check();
    }
    fn check(&self) {
        pool::check_invariants(self.pool).unwrap();
    }
}

#[test]
fn a_block_of_a_larger_alignment_becomes_the_recent_one_and_the_next_free_merges_it() {
    let case = Case::new();
    let (a, b, c) = (case.alloc(512), case.aligned(512), case.alloc(512));
    let (d, e) = (case.alloc(1024), case.alloc(512));
    case.free(a);
    let a = case.alloc(512);
    case.free(b);
    case.free(d);
    case.free(c);
    case.free(a);
    let stats = pool::stats(case.pool).unwrap();
    assert_eq!((stats.live, stats.frees, stats.allocs), (1, 5, 6));
    assert_eq!(stats.used, 512);
    case.free(e);
    assert_eq!(pool::stats(case.pool).unwrap().used, 0);
}

#[test]
fn figures_count_what_goes_the_short_way() {
    let case = Case::new();
    let keep = case.alloc(4096);
    let mut block = case.alloc(512);
    for round in 1..100u64 {
        case.free(block);
        let stats = pool::stats(case.pool).unwrap();
        assert_eq!((stats.live, stats.frees, stats.allocs), (1, round, round + 1));
        assert_eq!((stats.used, stats.requested, stats.used_high), (4096, 4096, 4608));
        block = case.alloc(500);
        let stats = pool::stats(case.pool).unwrap();
        assert_eq!((stats.live, stats.reuse.same_stream), (2, round));
        assert_eq!((stats.used, stats.requested, stats.used_high), (4608, 4596, 4608));
    }
    case.free(keep);
}

#[test]
fn marks_are_exact_where_one_streams_recent_block_is_room_for_anothers_allocation() {
    let case = Case::new();
    let other = Case { pool: case.pool, stream: stream::create(device_of(&case), Default::default()).unwrap() };
    let first = case.alloc(1 << 20);
    case.free(first);
    let first = case.alloc(1 << 20);
    case.free(first);
    let second = other.alloc(1 << 19);
    assert_eq!(pool::stats(case.pool).unwrap().used_high, 1 << 20);
    let first = case.alloc(1 << 20);
    assert_eq!(pool::stats(case.pool).unwrap().used_high, (1 << 20) + (1 << 19));
    case.free(first);
    other.free(second);
    assert_eq!(pool::stats(case.pool).unwrap().used, 0);
}

fn device_of(case: &Case) -> smp_core::DeviceId {
    let block = case.alloc(512);
    let device = pool::info(block).unwrap().device;
    case.free(block);
    device
}

/// The same program on two pools, of which one is looked at after every call: nobody may see a difference.
#[test]
fn looking_at_a_pool_changes_nothing() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    let sides = [(); 2].map(|()| {
        let case = Case::new();
        let device = device_of(&case);
        let more = [(); 2].map(|()| stream::create(device, Default::default()).unwrap());
        (device, case.pool, [case.stream, more[0], more[1]])
    });
    let mut live: Vec<[AllocationId; 2]> = Vec::new();
    for step in 0..200_000 {
        let on = draw(8).min(2) as usize;
        let call = if live.len() > 40 { 9 } else { draw(16) };
        match call {
            0..9 => {
                let size = [512, 1024, 700, 8192, 100_000, 0][draw(6) as usize];
                live.push([0, 1].map(|side: usize| pool::alloc_async(sides[side].1, size, sides[side].2[on]).unwrap()));
                let [one, other] = live[live.len() - 1].map(|block| pool::info(block).unwrap());
                assert_eq!((one.address, one.reason, one.ready_seq), (other.address, other.reason, other.ready_seq));
            }
            9..15 if !live.is_empty() => {
                let blocks = live.swap_remove(draw(live.len() as u64) as usize);
                for side in 0..2 {
                    pool::free_async(blocks[side], sides[side].2[on]).unwrap();
                }
            }
            _ if draw(8) == 0 => {
                for side in &sides {
                    stream::synchronize(side.0, side.2[on]).unwrap();
                }
            }
            _ => {}
        }
        let seen = pool::stats(sides[0].1).unwrap();
        if step % 97 == 0 {
            pool::check_invariants(sides[0].1).unwrap();
            assert_eq!(seen, pool::stats(sides[1].1).unwrap(), "after step {step}");
            pool::check_invariants(sides[1].1).unwrap();
        }
    }
}
