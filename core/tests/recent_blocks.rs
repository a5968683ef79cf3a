//! A stream's recent block where not every way may take it: blocks that need a closer look at their free.

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
