//! Mapped entries by hand: where chunks are mapped, when idle ones are moved, what keeps them where they are, and what
//! goes back. Addresses are offsets into the range; chunks are 4096 bytes, units 512.

use smp_core::device::{self, ModelOptions};
use smp_core::pool::{self, MemoryPoolConfig, PoolConfig, Reason, Stats, spec};
use smp_core::stream::{self, StreamFlags};
use smp_core::{AllocationId, DeviceId, PoolId, Status, StreamId, event};

const CHUNK: u64 = 4096;

struct Bench {
    device: DeviceId,
    pool: PoolId,
    s: StreamId,
    t: StreamId,
}

fn bench_on(options: ModelOptions, spec: &str) -> Bench {
    let device = device::open_model(&options).unwrap();
    let pool = pool::create(device, &spec::parse(spec).unwrap()).unwrap();
    let create = || stream::create(device, StreamFlags { non_blocking: true, lazy: None }).unwrap();
    Bench { device, pool, s: create(), t: create() }
}

fn lazy_4k() -> ModelOptions {
    ModelOptions { lazy: true, page_granularity: CHUNK, ..Default::default() }
}

/// Chunks of one granule; policy 3 off, so that an allocation that has to wait shows as memory growing.
fn bench() -> Bench {
    bench_on(lazy_4k(), "mapped(range_size=1MiB, chunk_size=4KiB); policies(internal_dependencies=off)")
}

impl Bench {
    fn alloc(&self, size: u64, stream: StreamId) -> AllocationId {
        let block = pool::alloc_async(self.pool, size, stream).unwrap();
        pool::check_invariants(self.pool).unwrap();
        block
    }
    fn free(&self, block: AllocationId, stream: StreamId) {
        pool::free_async(block, stream).unwrap();
        pool::check_invariants(self.pool).unwrap();
    }
    fn at(&self, block: AllocationId) -> u64 {
        pool::info(block).unwrap().address - 0x53F0_0000_0000_0000
    }
    fn reason(&self, block: AllocationId) -> Reason {
        pool::info(block).unwrap().reason
    }
    fn stats(&self) -> Stats {
        pool::stats(self.pool).unwrap()
    }
    fn chunks(&self) -> u64 {
        self.stats().reserved / CHUNK
    }
    fn sync(&self, stream: StreamId) {
        stream::synchronize(self.device, stream).unwrap();
        pool::check_invariants(self.pool).unwrap();
    }
}

#[test]
fn blocks_lie_one_after_the_other_whatever_their_size_and_share_chunks() {
    let b = bench();
    let [x, y, z] = [512, 10_000, 512].map(|size| b.alloc(size, b.s));
    assert_eq!((b.at(x), b.at(y), b.at(z)), (0, 512, 512 + 10_240));
    // Eight chunks beyond what is used may be held: as many as then fit were asked for with the first, all at once.
    assert_eq!((b.chunks(), b.stats().ranges, b.stats().device_calls), (8, 1, 2));
    assert_eq!(b.stats().used, 11_264);
}

#[test]
fn what_all_may_use_goes_before_others_blocks_are_looked_at_unless_something_of_theirs_precedes() {
    // Two blocks side by side, freed one after the other, are both recent until another stream looks at them.
    for (follows, next) in [(false, 1024), (true, 0)] {
        let b = bench();
        let blocks = [1024, 1024, 512].map(|size| b.alloc(size, b.s));
        if follows {
            let e = event::create(b.device).unwrap();
            event::record(b.device, e, b.s).unwrap();
            stream::wait_event(b.device, b.t, e).unwrap();
        }
        blocks[..2].iter().for_each(|&block| b.free(block, b.s));
        let never_used = b.alloc(1024, b.t);
        assert_eq!((b.at(never_used), b.reason(never_used)), (2560, Reason::Fresh));
        // A recent one: that which was freed last. If they have merged: the low end.
        assert_eq!(b.at(b.alloc(1024, b.s)), next, "follows: {follows}");
    }
}

#[test]
fn what_precedes_on_a_destroyed_stream_is_over_whatever_stream_has_its_place() {
    let b = bench();
    let flags = StreamFlags { non_blocking: true, lazy: None };
    let gone = stream::create(b.device, flags).unwrap();
    (0..4).for_each(|_| b.free(b.alloc(512, gone), gone));
    let e = event::create(b.device).unwrap();
    event::record(b.device, e, gone).unwrap();
    stream::wait_event(b.device, b.t, e).unwrap();
    device::synchronize(b.device).unwrap();
    stream::destroy(gone).unwrap();
    // Of what this one does nothing is observed.
    let new = stream::create(b.device, flags).unwrap();
    let blocks = [1024; 2].map(|size| b.alloc(size, new));
    blocks.iter().for_each(|&block| b.free(block, new));
    b.alloc(1024, b.t);
    // Still a recent one, for t did not have to look at it.
    assert_eq!(b.at(b.alloc(1024, new)), 1024);
}

#[test]
fn a_request_larger_than_a_range_gets_a_range_of_its_own_size() {
    let b = bench_on(lazy_4k(), "mapped(range_size=8KiB, chunk_size=4KiB)");
    let small = b.alloc(4096, b.s);
    let large = b.alloc(3 * CHUNK, b.s);
    assert_eq!((b.at(small), b.at(large)), (0, 8192));
    // The first range's second chunk came with its first; no more follow there, and none after large.
    assert_eq!((b.stats().ranges, b.chunks()), (2, 5));
}

/// Three blocks of so many chunks; the middle one is freed. Eight more chunks are held at the end, or what a cap allows.
fn with_a_hole(b: &Bench, chunks: u64) {
    let blocks = [0; 3].map(|_| b.alloc(chunks * CHUNK, b.s));
    b.free(blocks[1], b.s);
}

#[test]
fn idle_chunks_are_moved_before_the_device_is_asked_for_more() {
    let b = bench();
    with_a_hole(&b, 12);
    assert_eq!((b.chunks(), b.stats().used), (3 * 12 + 8, 2 * 12 * CHUNK));
    let wide = b.alloc(16 * CHUNK, b.s);
    // 40 live chunks are a new high, eight may be held beyond: 48. Of eight missing ones four are moved, four asked for.
    assert_eq!(b.at(wide), 36 * CHUNK);
    assert_eq!((b.stats().chunk_moves, b.chunks()), (4, 48));
    assert_eq!(b.stats().used, 40 * CHUNK);
    // Some of it is new, which counts as observed; some the stream's own.
    assert_eq!(b.reason(wide), Reason::Observed);
    // In all: the range, four times asked, four moves. Nothing was waited for.
    let stats = b.stats();
    assert_eq!((stats.device_calls, stats.host_syncs, stats.internal_waits), (1 + 4 + 4, 0, 0));
}

#[test]
fn the_device_is_asked_while_little_more_than_the_most_ever_used_is_held() {
    let b = bench();
    with_a_hole(&b, 12);
    // 104 + 24 live chunks are the most ever used; three 32nds of that, 12, may be held beyond: 140. 44 are held, eight of
    // them at the end, so all the 96 missing ones may be asked for, and nothing is moved.
    b.alloc(104 * CHUNK, b.s);
    assert_eq!((b.stats().chunk_moves, b.chunks()), (0, 140));
}

#[test]
fn what_may_be_held_beyond_grows_with_what_is_used_from_8_to_24_chunks_and_then_as_a_64th() {
    for (used, held) in [(1, 9), (85, 85 + 8), (96, 96 + 9), (256, 256 + 24), (1024, 1024 + 24), (2048, 2048 + 32)] {
        let b = bench_on(lazy_4k(), "mapped(range_size=64MiB, chunk_size=4KiB)");
        b.alloc(used * CHUNK, b.s);
        assert_eq!((b.chunks(), b.stats().device_calls), (held, 2), "{used} chunks used");
    }
    // Of large chunks less than eight: 16 MiB, and three times that.
    for (mib, held) in [(32, 1), (64, 2), (512, 17), (2048, 65)] {
        let b = bench_on(lazy_4k(), "mapped(range_size=8GiB, chunk_size=32MiB)");
        b.alloc(mib << 20, b.s);
        assert_eq!(b.stats().pages, held, "{mib} MiB used");
    }
}

#[test]
fn beyond_what_may_be_held_a_96th_of_what_is_used_is_asked_for_at_once_if_too_little_can_be_moved() {
    let b = bench_on(lazy_4k(), "mapped(range_size=64MiB, chunk_size=4KiB)");
    let whole = b.alloc(1024 * CHUNK, b.s);
    b.free(whole, b.s);
    let halves: Vec<AllocationId> = (0..2 * 1048).map(|_| b.alloc(CHUNK / 2, b.s)).collect();
    assert_eq!((b.chunks(), b.stats().used), (1048, 1048 * CHUNK));
    // No chunk is idle then, though half of each is free.
    halves.into_iter().step_by(2).for_each(|half| b.free(half, b.s));
    b.alloc(24 * CHUNK, b.s);
    assert_eq!((b.chunks(), b.stats().chunk_moves), (1048 + 24, 0));
    // 1048 are the most used: 1048 / 96 is ten chunks.
    b.alloc(CHUNK, b.s);
    assert_eq!((b.chunks(), b.stats().chunk_moves), (1048 + 24 + 10, 0));
}

#[test]
fn with_several_streams_chunks_that_others_have_not_finished_with_count_as_used() {
    let b = bench_on(lazy_4k(), "mapped(range_size=64MiB, chunk_size=4KiB)");
    let first = b.alloc(1024 * CHUNK, b.s);
    assert_eq!((b.chunks(), b.stats().used), (1024 + 24, 1024 * CHUNK));
    // Of s's, which t is not ordered after. (One stream has used the entry so far.)
    b.free(first, b.s);
    b.alloc(25 * CHUNK, b.t);
    assert_eq!((b.chunks(), b.stats().chunk_moves), (1048 + 10, 0));
    // 1024 of s, 25 and 64 of t: 1113, and beyond them 24 and a 16th, which is 69.
    b.alloc(64 * CHUNK, b.t);
    assert_eq!((b.chunks(), b.stats().chunk_moves), (1113 + 24 + 69, 0));
}

#[test]
fn an_event_lets_a_stream_use_what_another_freed_before_what_all_can_use() {
    let b = bench();
    let [mine, all] = [0; 2].map(|_| b.alloc(CHUNK, b.s));
    let between = b.alloc(CHUNK, b.s);
    b.free(all, b.s);
    b.sync(b.s);
    b.free(mine, b.s);
    let e = event::create(b.device).unwrap();
    event::record(b.device, e, b.s).unwrap();
    stream::wait_event(b.device, b.t, e).unwrap();
    assert_eq!([0; 2].map(|_| b.reason(b.alloc(CHUNK, b.t))), [Reason::Event, Reason::Observed]);
    b.free(between, b.s);
}

#[test]
fn chunks_that_a_synchronise_would_give_back_are_not_asked_for_beyond_the_block() {
    let b = bench_on(lazy_4k(), "mapped(range_size=1MiB, chunk_size=4KiB); release_threshold(20KiB)");
    b.alloc(3 * CHUNK, b.s);
    assert_eq!(b.chunks(), 5);
    b.alloc(4 * CHUNK, b.s);
    assert_eq!(b.chunks(), 7);
}

#[test]
fn a_place_that_a_chunk_left_is_not_used_while_that_chunk_is_in_use_elsewhere() {
    let b = bench();
    with_a_hole(&b, 12);
    // Four chunks leave the hole; the other eight are used again.
    b.alloc(16 * CHUNK, b.s);
    let rest = b.alloc(8 * CHUNK, b.s);
    assert_eq!((b.at(rest), b.chunks(), b.stats().chunk_moves), (16 * CHUNK, 48, 4));
    // At four places the chunks are still mapped that serve elsewhere: the end of the range it is.
    let after = b.alloc(2 * CHUNK, b.s);
    assert_eq!((b.at(after), b.chunks()), (52 * CHUNK, 58));
    b.free(after, b.s);
    // A synchronise changes nothing about that.
    b.sync(b.s);
    let whole = b.alloc(10 * CHUNK, b.s);
    assert_eq!((b.at(whole), b.chunks()), (52 * CHUNK, 58));
    let further = b.alloc(4 * CHUNK, b.s);
    assert_eq!((b.at(further), b.chunks()), (62 * CHUNK, 70));
}

#[test]
fn a_chunk_comes_back_to_a_place_it_has_left_without_a_call_to_the_device() {
    let b = bench();
    with_a_hole(&b, 12);
    let wide = b.alloc(16 * CHUNK, b.s);
    let rest = b.alloc(8 * CHUNK, b.s);
    // Four chunks of the hole serve at places 44 to 47.
    b.free(wide, b.s);
    let half = b.alloc(8 * CHUNK, b.s);
    assert_eq!(b.at(half), 36 * CHUNK);
    b.free(rest, b.s);
    // Eight are free at 16 and eight at 44; places 12 to 15 and the first eight are twelve in a row.
    let before = b.stats();
    let back = b.alloc(12 * CHUNK, b.s);
    assert_eq!((b.at(back), b.reason(back)), (12 * CHUNK, Reason::SameStream));
    let after = b.stats();
    assert_eq!((after.device_calls, after.chunk_moves, after.reserved), (before.device_calls, 4, before.reserved));
    // The other four are where they were.
    let four = b.alloc(4 * CHUNK, b.s);
    assert_eq!(b.at(four), 48 * CHUNK);
}

#[test]
fn of_places_that_lack_nothing_a_block_takes_the_lowest_or_with_several_streams_those_with_the_fewest_ghosts() {
    // 33 chunks in use at most: eight more may be held, and with two streams a 16th.
    for (several, held, moved, expected) in [(false, 41, 4, 1), (true, 43, 2, 2)] {
        let b = bench();
        b.alloc(CHUNK, if several { b.t } else { b.s });
        let [first, _, third, _] = [(); 4].map(|()| b.alloc(8 * CHUNK, b.s));
        b.free(first, b.s);
        b.free(third, b.s);
        // From place 33 on; it lacks what is held too little, which comes from the first of the eight, from place 1 on.
        let wide = b.alloc(12 * CHUNK, b.s);
        assert_eq!((b.at(wide), b.stats().chunk_moves, b.chunks()), (33 * CHUNK, moved, held));
        b.free(wide, b.s);
        for (chunks, at) in [(8, 17), (12 - moved, 33)] {
            let again = b.alloc(chunks * CHUNK, b.s);
            assert_eq!(b.at(again), at * CHUNK);
        }
        // Idle are the moved ones, and those that are left of the first eight. Places 1 to 8 have them all.
        let back = b.alloc(7 * CHUNK, b.s);
        assert_eq!((b.at(back), b.stats().chunk_moves, b.chunks()), (expected * CHUNK, moved, held));
    }
}

/// Makes chunks move (the first time), and frees all: where the blocks were.
fn a_round(b: &Bench, stream: StreamId) -> Vec<u64> {
    let blocks = [0; 3].map(|_| b.alloc(12 * CHUNK, stream));
    b.free(blocks[1], stream);
    let wide = b.alloc(16 * CHUNK, stream);
    let rest = b.alloc(8 * CHUNK, stream);
    let all = [blocks[0], blocks[1], blocks[2], wide, rest];
    let places = all.iter().filter_map(|&block| pool::info(block).ok()).map(|info| info.address).collect();
    for block in [blocks[0], blocks[2], wide, rest] {
        b.free(block, stream);
    }
    places
}

#[test]
fn chunks_go_home_when_nothing_is_live_and_what_is_done_again_makes_no_call_to_the_device() {
    let b = bench();
    a_round(&b, b.s);
    // The four moved ones are at 12 to 15 again, all is one block.
    let all = b.alloc(44 * CHUNK, b.s);
    assert_eq!((b.at(all), b.chunks()), (0, 48));
    b.free(all, b.s);
    let second = a_round(&b, b.s);
    let calls = b.stats().device_calls;
    for _ in 0..3 {
        assert_eq!(a_round(&b, b.s), second);
    }
    assert_eq!(b.stats().device_calls, calls);
}

#[test]
fn what_was_enough_until_a_pause_is_enough_until_more_is_used() {
    // The 20 chunks come with the first. Another eight might be held with 20 in use, but nothing asks for them before the pause.
    // Then with no more in use four chunks of the first eight are moved; with 21 in use the nine missing ones may be held.
    for (wide, moved, held) in [(12, 4, 20), (17, 0, 29)] {
        let b = bench();
        let both = [12, 8].map(|chunks| b.alloc(chunks * CHUNK, b.s));
        assert_eq!(b.chunks(), 20);
        both.into_iter().for_each(|block| b.free(block, b.s));
        let [low, middle, high] = [8, 4, 8].map(|chunks| b.alloc(chunks * CHUNK, b.s));
        b.free(low, b.s);
        b.free(high, b.s);
        let wide = b.alloc(wide * CHUNK, b.s);
        assert_eq!((b.at(middle), b.at(wide)), (8 * CHUNK, 12 * CHUNK));
        assert_eq!((b.stats().chunk_moves, b.chunks()), (moved, held));
    }
}

#[test]
fn chunks_that_two_streams_have_used_go_home_at_a_synchronise_only() {
    for sync in [false, true] {
        let b = bench();
        let other = b.alloc(CHUNK, b.t);
        b.free(other, b.t);
        a_round(&b, b.s);
        if sync {
            device::synchronize(b.device).unwrap();
        }
        let calls = b.stats().device_calls;
        let all = b.alloc(44 * CHUNK, b.s);
        assert_eq!(b.at(all) == 0, sync);
        assert_eq!(b.stats().device_calls == calls, sync);
    }
}

#[test]
fn with_live_blocks_a_synchronise_in_each_round_is_enough_for_no_call_to_the_device() {
    let b = bench();
    let kept = b.alloc(5 * CHUNK, b.s);
    let mut rounds = Vec::new();
    for _ in 0..5 {
        rounds.push((a_round(&b, b.s), b.stats().device_calls));
        b.sync(b.s);
    }
    assert!(rounds[2..].iter().all(|round| *round == rounds[2]), "{rounds:?}");
    b.free(kept, b.s);
}

#[test]
fn after_64_pauses_without_need_recent_blocks_are_left_alone() {
    let b = bench();
    let pair = || {
        let blocks = [b.alloc(512, b.s), b.alloc(1024, b.s)];
        for block in blocks {
            b.free(block, b.s);
        }
        b.stats().merges
    };
    let merges: Vec<u64> = (0..70).map(|_| pair()).collect();
    for round in 1..70 {
        assert_eq!(merges[round] > merges[round - 1], round < 64, "{round}");
    }
    // Whoever needs chunks mapped starts anew.
    let large = b.alloc(100 * CHUNK, b.s);
    b.free(large, b.s);
    let before = b.stats().merges;
    assert!(pair() > before);
}

/// A thousand chunks that stay, and single ones, of which every other is free again. One more is free at the end, and no more
/// may be asked for. What is live.
fn with_single_idle_chunks(b: &Bench) -> Vec<AllocationId> {
    let mut live = vec![b.alloc(1000 * CHUNK, b.s)];
    let singles: Vec<AllocationId> = (0..128).map(|_| b.alloc(CHUNK, b.s)).collect();
    // 1000 and 24 came with the first; one and 24 with every 25th single one.
    assert_eq!(b.chunks(), 1024 + 5 * 25);
    for (i, &single) in singles.iter().enumerate() {
        match i % 2 {
            0 => b.free(single, b.s),
            _ => live.push(single),
        }
    }
    live.push(b.alloc(21 * CHUNK, b.s));
    assert_eq!(b.chunks(), 1149);
    // 1128 are the most used, so 1152 may be held; or four asked for, a 256th.
    live.push(b.alloc(3 * CHUNK, b.s));
    assert_eq!((b.chunks(), b.stats().chunk_moves), (1153, 0));
    live
}

/// One allocation after another that is a chunk larger than there is place for at the end.
fn lack_a_chunk(b: &Bench, times: std::ops::Range<u64>) {
    for time in times {
        let block = b.alloc((2 + time) * CHUNK, b.s);
        b.free(block, b.s);
        assert_eq!((b.chunks(), b.stats().chunk_moves), (1153, time + 1));
    }
}

fn large_bench() -> Bench {
    bench_on(lazy_4k(), "mapped(range_size=64MiB, chunk_size=4KiB)")
}

#[test]
fn an_entry_that_lacks_a_few_chunks_for_16_allocations_and_one_in_96_may_hold_a_32nd_more_than_was_ever_used() {
    let b = large_bench();
    with_single_idle_chunks(&b);
    lack_a_chunk(&b, 0..16);
    // 1128 chunks are the most used; a 32nd of that is 35.
    b.alloc(18 * CHUNK, b.s);
    assert_eq!((b.chunks(), b.stats().chunk_moves), (1128 + 35, 16));
}

#[test]
fn an_entry_that_seldom_lacks_chunks_goes_on_moving_them() {
    let b = large_bench();
    with_single_idle_chunks(&b);
    for _ in 0..2048 {
        let block = b.alloc(512, b.s);
        b.free(block, b.s);
    }
    lack_a_chunk(&b, 0..17);
}

#[test]
fn after_a_pause_of_such_an_entry_blocks_above_a_64th_of_the_most_used_merge_when_they_are_freed() {
    let b = large_bench();
    let mut live = with_single_idle_chunks(&b);
    lack_a_chunk(&b, 0..16);
    let limit = 1128 * CHUNK / 64;
    let merges_of_a_free = |bytes: u64| {
        let block = b.alloc(bytes, b.s);
        let merges = b.stats().merges;
        b.free(block, b.s);
        b.stats().merges - merges
    };
    assert_eq!(merges_of_a_free(limit + 512), 0);
    live.drain(..).for_each(|block| b.free(block, b.s));
    // Now all that is mapped there is free behind the block.
    b.alloc(512, b.s);
    assert_eq!((merges_of_a_free(limit), merges_of_a_free(limit + 512)), (0, 1));
}

#[test]
fn blocks_too_large_to_be_recent_make_an_entry_pause_as_recent_ones_do() {
    let b = large_bench();
    let mut live = with_single_idle_chunks(&b);
    lack_a_chunk(&b, 0..16);
    live.drain(..).for_each(|block| b.free(block, b.s));
    let round = || {
        let blocks = [500, 300, 340].map(|chunks| b.alloc(chunks * CHUNK, b.s));
        b.free(blocks[1], b.s);
        // 23 chunks are free at the end.
        let wide = b.alloc(310 * CHUNK, b.s);
        let places = [blocks[0], blocks[2], wide].map(|block| b.at(block));
        for block in [blocks[0], blocks[2], wide] {
            b.free(block, b.s);
        }
        places
    };
    let first = round();
    let calls = b.stats().device_calls;
    assert_eq!((round(), b.stats().device_calls), (first, calls));
}

/// Blocks of one to four chunks come and go at random where at most twelve chunks may be held, so that chunks move all the
/// time; how many ranges of 4 places that took. From time to time their stream's work runs, or that of the other one.
fn ranges_after_many_moves(theirs: bool) -> u64 {
    let b = bench_on(lazy_4k(), "mapped(range_size=16KiB, chunk_size=4KiB, max_pool_size=48KiB)");
    // Two streams are at work, so chunks do not go home without a synchronise.
    let other = b.alloc(CHUNK, b.t);
    let mut live: Vec<AllocationId> = Vec::new();
    let mut state = 7u64;
    let mut draw = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for step in 0..4000 {
        if draw(2) == 0 && !live.is_empty() {
            let block = live.swap_remove(draw(live.len() as u64) as usize);
            b.free(block, b.s);
        } else if let Ok(block) = pool::alloc_async(b.pool, (1 + draw(4)) * CHUNK, b.s) {
            live.push(block);
        }
        if step % 40 == 0 {
            b.sync(if theirs { b.s } else { b.t });
        }
    }
    assert!(b.stats().chunk_moves > 30 && b.chunks() <= 12);
    b.free(other, b.t);
    b.stats().ranges
}

#[test]
fn a_chunk_with_many_ghosts_drops_those_that_have_executed_before_it_moves() {
    // Two ghosts a chunk: 12 x 3 places, of ranges of 4. (Twice as many ranges, for blocks need adjacent places.)
    let few = ranges_after_many_moves(true);
    // Work that was submitted may still use the chunks from there.
    let many = ranges_after_many_moves(false);
    assert!(few <= 18 && many > 2 * few, "{few} {many}");
}

#[test]
fn chunks_of_another_stream_stay_until_its_frees_precede() {
    let b = bench();
    with_a_hole(&b, 12);
    // t is not ordered after s: nothing of the hole is t's to take.
    let wide = b.alloc(16 * CHUNK, b.t);
    assert_eq!((b.stats().chunk_moves, b.chunks()), (0, 52));
    assert_eq!(b.reason(wide), Reason::Fresh);
    b.free(wide, b.t);
    b.sync(b.t);
    // Ordered by an event: policy 1. 44 chunks are the most used now: beside eight, with two streams a 16th more may be held, 54
    // in all. 52 are, and 16 of 20 places have one.
    let e = event::create(b.device).unwrap();
    event::record(b.device, e, b.s).unwrap();
    stream::wait_event(b.device, b.t, e).unwrap();
    let wider = b.alloc(20 * CHUNK, b.t);
    assert_eq!((b.at(wider), b.stats().chunk_moves, b.chunks()), (36 * CHUNK, 2, 54));
    assert_eq!(b.reason(wider), Reason::Event);
}

/// 12 chunks that s has freed, and that have executed; 12 were used at most, so 20 may be held.
fn with_chunks_of_another_stream(options: ModelOptions, threshold: &str) -> Bench {
    let spec = format!("mapped(range_size=1MiB, chunk_size=4KiB); policies(internal_dependencies=off){threshold}");
    let b = bench_on(options, &spec);
    for block in [4, 8].map(|chunks| b.alloc(chunks * CHUNK, b.s)) {
        b.free(block, b.s);
    }
    stream::advance(b.device, b.s, 9).unwrap();
    assert_eq!(b.chunks(), 12);
    b
}

#[test]
fn while_an_entry_may_grow_streams_do_not_take_what_others_have_freed() {
    let b = with_chunks_of_another_stream(lazy_4k(), "");
    let grown = b.alloc(4 * CHUNK, b.t);
    assert_eq!((b.at(grown), b.reason(grown), b.chunks()), (12 * CHUNK, Reason::Fresh, 20));
    let with_it = b.alloc(4 * CHUNK, b.t);
    assert_eq!((b.at(with_it), b.reason(with_it), b.stats().progress_queries), (16 * CHUNK, Reason::Fresh, 0));
    let taken = b.alloc(4 * CHUNK, b.t);
    assert_eq!((b.at(taken), b.reason(taken), b.chunks()), (0, Reason::Opportunistic, 20));
}

#[test]
fn an_entry_does_not_grow_first_beyond_the_release_threshold() {
    for (threshold, reason) in [(64, Reason::Opportunistic), (68, Reason::Fresh)] {
        let b = with_chunks_of_another_stream(lazy_4k(), &format!("; release_threshold({threshold}KiB)"));
        let block = b.alloc(4 * CHUNK, b.t);
        assert_eq!(b.reason(block), reason, "{threshold} KiB");
    }
}

#[test]
fn an_entry_whose_device_has_refused_does_not_grow_first() {
    let b = with_chunks_of_another_stream(lazy_4k(), "");
    device::refuse_pages(b.device, 0, 2).unwrap();
    // Eight are asked for, then four.
    let refused = b.alloc(4 * CHUNK, b.t);
    assert_eq!((b.at(refused), b.reason(refused), b.stats().page_refusals), (0, Reason::Opportunistic, 2));
    // It is not asked again as long as something serves.
    let taken = b.alloc(4 * CHUNK, b.t);
    assert_eq!((b.at(taken), b.reason(taken), b.chunks()), (4 * CHUNK, Reason::Opportunistic, 12));
    // (Nothing fits, so nothing is known of the rest of s's: 12 and 6 chunks count as used, and eight and a 16th more
    // may be held.)
    let asked = b.alloc(6 * CHUNK, b.t);
    assert_eq!((b.reason(asked), b.stats().page_refusals, b.chunks()), (Reason::Fresh, 2, 27));
}

#[test]
fn what_a_block_leaves_of_a_moved_chunk_keeps_the_free_points_of_that_chunk() {
    let b = bench_on(
        lazy_4k(),
        "mapped(range_size=1MiB, chunk_size=4KiB, max_pool_size=40KiB); \
         policies(internal_dependencies=off, opportunistic=off)",
    );
    // Ten chunks, all that the cap allows; two holes of two.
    let blocks = [0; 5].map(|_| b.alloc(2 * CHUNK, b.s));
    b.free(blocks[1], b.s);
    b.free(blocks[3], b.s);
    let e = event::create(b.device).unwrap();
    event::record(b.device, e, b.s).unwrap();
    stream::wait_event(b.device, b.t, e).unwrap();
    // Of three moved chunks the last is used by half.
    let block = b.alloc(2 * CHUNK + CHUNK / 2, b.t);
    assert_eq!((b.at(block), b.stats().chunk_moves, b.reason(block)), (10 * CHUNK, 3, Reason::Event));
    // The other half is s's still, as is the one chunk that stayed: u may use none of it.
    let u = stream::create(b.device, StreamFlags { non_blocking: true, lazy: None }).unwrap();
    assert_eq!(pool::alloc_async(b.pool, 512, u).unwrap_err().status, Status::CapacityExceeded);
    let half = b.alloc(CHUNK / 2, b.s);
    assert_eq!((b.at(half), b.reason(half)), (12 * CHUNK + CHUNK / 2, Reason::SameStream));
}

#[test]
fn beyond_the_cap_the_allocation_fails_with_no_block_changed() {
    let b = bench_on(lazy_4k(), "mapped(range_size=1MiB, chunk_size=4KiB, max_pool_size=43KiB)");
    with_a_hole(&b, 3);
    // Ten chunks at most: the cap counts whole ones, and can be reached.
    let wide = b.alloc(4 * CHUNK, b.s);
    assert_eq!((b.stats().chunk_moves, b.chunks()), (3, 10));
    let before = b.stats();
    let refused = pool::alloc_async(b.pool, CHUNK, b.s).unwrap_err();
    assert_eq!(refused.status, Status::CapacityExceeded);
    assert_eq!(b.stats(), Stats { failures: 1, ..before });
    b.free(wide, b.s);
    assert_eq!(b.reason(b.alloc(4 * CHUNK, b.s)), Reason::SameStream);
}

#[test]
fn a_device_that_refuses_makes_the_entry_move_what_it_can() {
    let b = bench();
    with_a_hole(&b, 12);
    // Eight places have no chunk. 48 may be held, 44 are: the device is asked for four.
    device::refuse_pages(b.device, 0, 1).unwrap();
    let wide = b.alloc(16 * CHUNK, b.s);
    assert_eq!(b.at(wide), 36 * CHUNK);
    let stats = b.stats();
    assert_eq!((stats.page_refusals, stats.chunk_moves, b.chunks()), (1, 8, 44));
    assert_eq!(b.reason(wide), Reason::Observed);
}

#[test]
fn a_device_that_refuses_is_asked_once_more_for_no_more_than_is_missing() {
    let b = bench_on(ModelOptions { capacity: 4 * CHUNK, ..lazy_4k() }, "mapped(range_size=1MiB, chunk_size=4KiB)");
    let three = b.alloc(3 * CHUNK, b.s);
    let stats = b.stats();
    assert_eq!((b.at(three), stats.page_refusals, b.chunks()), (0, 1, 3));
    // Eight more of four are refused again; one is there.
    let one = b.alloc(CHUNK, b.s);
    assert_eq!((b.at(one), b.stats().page_refusals, b.chunks()), (3 * CHUNK, 2, 4));
}

#[test]
fn a_refusal_with_nothing_to_move_is_out_of_memory() {
    let b = bench_on(ModelOptions { capacity: 4 * CHUNK, ..lazy_4k() }, "mapped(range_size=1MiB, chunk_size=4KiB)");
    let all = b.alloc(4 * CHUNK, b.s);
    assert_eq!(pool::alloc_async(b.pool, 512, b.s).unwrap_err().status, Status::OutOfMemory);
    b.free(all, b.s);
    assert_eq!(b.reason(b.alloc(512, b.s)), Reason::SameStream);
}

#[test]
fn idle_chunks_that_have_executed_go_back_from_the_highest_address() {
    let b = bench();
    let [low, middle, high] = [0; 3].map(|_| b.alloc(3 * CHUNK, b.s));
    assert_eq!(b.chunks(), 11);
    b.free(low, b.s);
    b.free(high, b.s);
    pool::trim_to(b.pool, 0).unwrap();
    // The two beyond were never used.
    assert_eq!(b.chunks(), 9, "lazy: nothing has executed");
    stream::advance(b.device, b.s, 10).unwrap();
    pool::trim_to(b.pool, 5 * CHUNK).unwrap();
    assert_eq!(b.chunks(), 5);
    pool::check_invariants(b.pool).unwrap();
    // high's three went, and low's third.
    let two = b.alloc(2 * CHUNK, b.s);
    assert_eq!((b.at(two), b.chunks(), b.reason(two)), (0, 5, Reason::SameStream));
    b.free(two, b.s);
    b.free(middle, b.s);
    b.sync(b.s);
    pool::trim_to(b.pool, 0).unwrap();
    assert_eq!((b.chunks(), b.stats().pages, b.stats().page_frees), (0, 0, 11));
    pool::check_invariants(b.pool).unwrap();
}

#[test]
fn a_chunk_that_a_live_block_touches_stays() {
    let b = bench();
    let [x, y] = [CHUNK + 512, 512].map(|size| b.alloc(size, b.s));
    b.free(x, b.s);
    b.sync(b.s);
    pool::trim_to(b.pool, 0).unwrap();
    // y lies in the second chunk.
    assert_eq!((b.at(y), b.chunks()), (CHUNK + 512, 1));
}

#[test]
fn a_synchronise_gives_back_above_the_threshold() {
    let b = bench_on(lazy_4k(), "mapped(range_size=1MiB, chunk_size=4KiB); release_threshold(12KiB)");
    let x = b.alloc(8 * CHUNK, b.s);
    b.free(x, b.s);
    b.sync(b.s);
    assert_eq!(b.chunks(), 3);
}

#[test]
fn a_chunk_unused_for_a_whole_period_goes_back_at_the_next_slow_path() {
    let b = bench_on(lazy_4k(), "mapped(range_size=1MiB, chunk_size=4KiB, dealloc_period=2)");
    let x = b.alloc(4 * CHUNK, b.s);
    let y = b.alloc(512, b.s);
    b.free(x, b.s);
    b.sync(b.s);
    // Seven that came with x were not used since. Its own:
    assert_eq!(b.chunks(), 5, "no allocation since");
    // One chunk of x is used again and freed: its age begins anew. The other three were idle for two allocations.
    let one = b.alloc(CHUNK, b.s);
    b.free(one, b.s);
    let one = b.alloc(CHUNK, b.s);
    b.free(one, b.s);
    b.sync(b.s);
    assert_eq!(b.chunks(), 2);
    b.free(y, b.s);
}

#[test]
fn a_refused_release_leaves_the_chunk_reserved_and_counted() {
    let b = bench();
    let x = b.alloc(2 * CHUNK, b.s);
    b.free(x, b.s);
    b.sync(b.s);
    device::refuse_releases(b.device, 1).unwrap();
    pool::trim_to(b.pool, 0).unwrap();
    pool::check_invariants(b.pool).unwrap();
    assert_eq!((b.chunks(), b.stats().release_failures), (1, 1));
}

#[test]
fn a_destroyed_pool_gives_its_chunks_back_with_its_last_block() {
    let b = bench();
    let [x, y] = [0; 2].map(|_| b.alloc(3 * CHUNK, b.s));
    b.free(x, b.s);
    b.sync(b.s);
    pool::destroy(b.pool).unwrap();
    assert_eq!(device::info(b.device).unwrap().reserved, 3 * CHUNK);
    pool::free_async(y, b.s).unwrap();
    device::synchronize(b.device).unwrap();
    let info = device::info(b.device).unwrap();
    assert_eq!((info.reserved, info.pools, info.page_allocs - info.page_frees), (0, 0, 0));
}

#[test]
fn host_ordered_blocks_use_only_chunks_whose_frees_are_observed() {
    let b = bench();
    with_a_hole(&b, 12);
    let host = pool::alloc(b.pool, 16 * CHUNK, &Default::default()).unwrap();
    pool::check_invariants(b.pool).unwrap();
    assert_eq!((b.stats().chunk_moves, b.reason(host)), (0, Reason::Fresh));
    pool::free(host).unwrap();
    b.sync(b.s);
    // 44 used allow 54 held, two more than are: two come from the hole.
    let host = pool::alloc(b.pool, 20 * CHUNK, &Default::default()).unwrap();
    assert_eq!((b.at(host), b.stats().chunk_moves, b.reason(host)), (36 * CHUNK, 2, Reason::Observed));
}

#[test]
fn host_backed_blocks_are_at_their_place_in_the_range() {
    let options = ModelOptions { host_backing: true, capacity: 4 << 20, ..lazy_4k() };
    let b = bench_on(options, "preset(mapped)");
    let [x, y] = [100, 20_000].map(|size| b.alloc(size, b.s));
    let (x, y) = (pool::info(x).unwrap(), pool::info(y).unwrap());
    assert_eq!(y.pointer - x.pointer, y.address - x.address);
    assert_eq!(x.pointer % CHUNK, 0);
    assert_eq!(pool::find(b.device, y.pointer + 7).unwrap().1, 7);
    // At most four times the capacity is reserved.
    let MemoryPoolConfig::Mapped { range_size, .. } = pool::config(b.pool).unwrap().entries[0] else { unreachable!() };
    assert_eq!(range_size, 16 << 20);
}

#[test]
fn a_device_that_cannot_map_gets_the_ladder_or_a_capped_entry_in_the_place_of_each_mapped_one() {
    let device = device::open_model(&ModelOptions { mapping: false, ..Default::default() }).unwrap();
    assert!(!device::info(device).unwrap().mapping);
    let pool = pool::create(device, &spec::parse("mapped(dealloc_period=9); direct()").unwrap()).unwrap();
    assert!(pool::fell_back(pool).unwrap());
    let text = spec::format(&pool::config(pool).unwrap());
    let ladder = "sliced(page_size=2MiB, max_slice_size=64KiB, dealloc_period=9); \
                  sliced(page_size=32MiB, max_slice_size=16MiB, dealloc_period=9); \
                  sliced(page_size=256MiB, max_slice_size=128MiB, dealloc_period=9); \
                  exclusive(dealloc_period=9); direct()";
    assert_eq!(text, ladder);
    let capped = pool::create(device, &spec::parse("mapped(max_pool_size=6MiB)").unwrap()).unwrap();
    let text = spec::format(&pool::config(capped).unwrap());
    assert_eq!(text, "sliced(page_size=6MiB, max_slice_size=6MiB, max_pool_size=6MiB)");
    let plain = pool::create(device, &spec::parse("preset(sub-slices)").unwrap()).unwrap();
    assert!(!pool::fell_back(plain).unwrap());
}

#[test]
fn a_request_for_more_chunks_than_any_device_has_is_out_of_memory_at_once() {
    let b = bench();
    // 2^20 chunks are the most.
    let size = (CHUNK << 20) + 1;
    assert_eq!(pool::alloc_async(b.pool, size, b.s).unwrap_err().status, Status::OutOfMemory);
    let default = pool::create(b.device, &PoolConfig::default()).unwrap();
    assert_eq!(pool::alloc_async(default, 1 << 46, b.s).unwrap_err().status, Status::OutOfMemory);
}

/// Threads on streams of their own, which free each other's blocks after an event, synchronise and trim, on chunks so small
/// that places change hands all the time.
#[test]
fn threads_that_move_chunks_at_once_leave_every_structure_right() {
    for round in 0..6u64 {
        let spec =
            ["mapped(range_size=64KiB, chunk_size=4KiB)", "mapped(range_size=1MiB, chunk_size=4KiB, dealloc_period=5)"]
                [(round % 2) as usize];
        let b = bench_on(ModelOptions { lazy: round % 3 == 0, ..lazy_4k() }, spec);
        let (sender, receiver) = std::sync::mpsc::channel::<(AllocationId, smp_core::EventId)>();
        let receiver = std::sync::Mutex::new(receiver);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (b, sender, receiver) = (&b, sender.clone(), &receiver);
                scope.spawn(move || {
                    let me = stream::create(b.device, StreamFlags { non_blocking: true, lazy: None }).unwrap();
                    let mut dice = 0x9E37_79B9_7F4A_7C15u64.wrapping_mul(round * 4 + thread + 1);
                    let mut roll = |below: u64| {
                        dice ^= dice << 13;
                        dice ^= dice >> 7;
                        dice ^= dice << 17;
                        dice % below
                    };
                    let mut live = Vec::new();
                    for _ in 0..1500 {
                        match roll(100) {
                            0..50 => live.push(pool::alloc_async(b.pool, roll(6 * CHUNK) + 1, me).unwrap()),
                            50..85 if !live.is_empty() => {
                                let block = live.swap_remove(roll(live.len() as u64) as usize);
                                pool::free_async(block, me).unwrap();
                            }
                            85..90 if !live.is_empty() => {
                                let block = live.swap_remove(roll(live.len() as u64) as usize);
                                let after = event::create(b.device).unwrap();
                                event::record(b.device, after, me).unwrap();
                                sender.send((block, after)).unwrap();
                            }
                            90..95 => {
                                let passed = receiver.lock().unwrap().try_recv();
                                if let Ok((block, after)) = passed {
                                    stream::wait_event(b.device, me, after).unwrap();
                                    pool::free_async(block, me).unwrap();
                                    event::destroy(after).unwrap();
                                }
                            }
                            95..98 => stream::synchronize(b.device, me).unwrap(),
                            98 => pool::trim_to(b.pool, roll(40) * CHUNK).unwrap(),
                            _ => drop(pool::stats(b.pool).unwrap()),
                        }
                        if live.len() > 40 {
                            for block in live.drain(..30) {
                                pool::free_async(block, me).unwrap();
                            }
                        }
                    }
                    for block in live {
                        pool::free_async(block, me).unwrap();
                    }
                });
            }
        });
        pool::check_invariants(b.pool).unwrap();
        for (block, _) in receiver.into_inner().unwrap().try_iter() {
            pool::free(block).unwrap();
        }
        device::synchronize(b.device).unwrap();
        pool::check_invariants(b.pool).unwrap();
        let stats = b.stats();
        assert_eq!((stats.live, stats.used, stats.pending), (0, 0, 0));
        pool::trim_to(b.pool, 0).unwrap();
        pool::check_invariants(b.pool).unwrap();
        assert_eq!((b.stats().reserved, b.stats().pages), (0, 0));
        assert_eq!(device::info(b.device).unwrap().reserved, 0);
    }
}

#[test]
fn an_entry_pauses_though_another_streams_request_was_refused() {
    let b = bench_on(
        lazy_4k(),
        "mapped(range_size=1MiB, chunk_size=4KiB, max_pool_size=48KiB); policies(internal_dependencies=off)",
    );
    let [first, second] = [6, 5].map(|chunks| b.alloc(chunks * CHUNK, b.s));
    b.free(first, b.s);
    let refused = pool::alloc_async(b.pool, 6 * CHUNK, b.t).unwrap_err();
    assert_eq!(refused.status, Status::CapacityExceeded);
    let third = b.alloc(3 * CHUNK, b.s);
    b.free(third, b.s);
    // Three chunks, and three that were cut from them, are free beside each other, not merged; then all twelve merge.
    b.free(second, b.s);
    assert_eq!(b.stats().largest_free, 12 * CHUNK);
}

/// A stream copies batches in, another frees each after it has used it, and what it needs meanwhile; the host stays three
/// steps behind. The pool's figures at the end.
fn double_buffering(b: &Bench, steps: usize) -> Stats {
    let done = [0; 3].map(|_| event::create(b.device).unwrap());
    let copied = event::create(b.device).unwrap();
    for step in 0..steps {
        if step >= 3 {
            event::synchronize(done[step % 3]).unwrap();
            pool::check_invariants(b.pool).unwrap();
        }
        let batch = b.alloc(100 * CHUNK, b.s);
        event::record(b.device, copied, b.s).unwrap();
        stream::wait_event(b.device, b.t, copied).unwrap();
        let between = [0; 3].map(|_| b.alloc(40 * CHUNK, b.t));
        between.into_iter().rev().for_each(|block| b.free(block, b.t));
        b.free(batch, b.t);
        event::record(b.device, done[step % 3], b.t).unwrap();
    }
    b.stats()
}

#[test]
fn a_handed_over_block_is_ready_once_its_own_free_is_so_double_buffering_does_not_grow() {
    let b = bench_on(lazy_4k(), "mapped(range_size=64MiB, chunk_size=4KiB); policies(internal_dependencies=off)");
    let chunks = double_buffering(&b, 200).reserved / CHUNK;
    // Three steps at a time, 220 chunks each; beyond them 24 and a 16th.
    assert!(chunks <= 3 * 220 + 24 + 41, "{chunks} chunks");
}

#[test]
fn what_is_left_of_a_handed_over_block_stays_apart_from_what_its_stream_frees_beside_it_until_it_is_observed() {
    let b = bench();
    let [batch, own] = [b.alloc(4 * CHUNK, b.s), b.alloc(CHUNK, b.t)];
    b.free(batch, b.t);
    let start = b.alloc(CHUNK, b.t);
    assert_eq!((b.at(start), b.reason(start)), (0, Reason::SameStream));
    b.free(own, b.t);
    b.free(start, b.t);
    // None fits, so that all that can merge would: three blocks of t's, one never used. Together they serve all the same.
    let all = b.alloc(12 * CHUNK, b.t);
    assert_eq!((b.at(all), b.reason(all), b.stats().merges, b.chunks()), (0, Reason::Observed, 0, 12));
    b.free(all, b.t);
    let [batch, own] = [b.alloc(4 * CHUNK, b.s), b.alloc(CHUNK, b.t)];
    b.free(batch, b.t);
    b.free(own, b.t);
    b.sync(b.t);
    assert_eq!(b.stats().largest_free, b.stats().reserved);
}

/// What is given to `b.s` from now on comes after all that `b.t` was given.
fn follow(b: &Bench) {
    let e = event::create(b.device).unwrap();
    event::record(b.device, e, b.t).unwrap();
    stream::wait_event(b.device, b.s, e).unwrap();
}

#[test]
fn handed_over_blocks_come_back_together_to_a_stream_that_follows_their_frees() {
    let b = bench();
    let [one, wall, two, late] = [2, 1, 3, 1].map(|chunks| b.alloc(chunks * CHUNK, b.s));
    b.free(one, b.t);
    b.free(two, b.t);
    follow(&b);
    b.free(late, b.t);
    // The first miss finds both: the other is s's own then, whatever t is given.
    let [again, other] = [2, 3].map(|chunks| b.alloc(chunks * CHUNK, b.s));
    assert_eq!((b.at(again), b.reason(again)), (0, Reason::Event));
    assert_eq!((b.at(other), b.reason(other)), (3 * CHUNK, Reason::SameStream));
    b.free(other, b.s);
    // What t freed later is t's still, and what is back is not.
    let own = b.alloc(CHUNK, b.t);
    assert_eq!((b.at(own), b.reason(own)), (6 * CHUNK, Reason::SameStream));
    assert_ne!(b.reason(b.alloc(3 * CHUNK, b.t)), Reason::SameStream);
    b.free(wall, b.s);
    b.free(again, b.s);
    // Whole no more, they merge.
    let all = b.alloc(6 * CHUNK, b.s);
    assert_eq!((b.at(all), b.reason(all)), (0, Reason::SameStream));
}

#[test]
fn a_stream_cuts_a_handed_over_block_of_8_chunks_only_if_nothing_else_of_its_own_fits() {
    // (What is freed, at which offset what is then allocated lies.)
    for (handed, expected) in [(7, [0, 1]), (8, [9, 10])] {
        let b = bench();
        let x = b.alloc(handed * CHUNK, b.s);
        let _wall = b.alloc((9 - handed) * CHUNK, b.s);
        let own = b.alloc(9 * CHUNK, b.t);
        let _wall = b.alloc(CHUNK, b.s);
        b.free(own, b.t);
        b.free(x, b.t);
        for at in expected {
            let small = b.alloc(CHUNK, b.t);
            assert_eq!((b.at(small) / CHUNK, b.reason(small)), (at, Reason::SameStream), "{handed} chunks");
        }
        if handed == 8 {
            // One of exactly its size is served by it.
            let same = b.alloc(8 * CHUNK, b.t);
            assert_eq!(b.at(same), 0);
            b.free(same, b.s);
        }
    }
    // Of 16 that are smaller than another the first is cut, of 15 none.
    for (handed, expected) in [(15, 15 * 9), (16, 0)] {
        let b = bench();
        let blocks: Vec<_> = (0..2 * handed).map(|i| b.alloc([8, 1][i % 2] * CHUNK, b.s)).collect();
        let own = b.alloc(9 * CHUNK, b.t);
        b.alloc(CHUNK, b.s);
        b.free(own, b.t);
        blocks.iter().step_by(2).for_each(|&block| b.free(block, b.t));
        let small = b.alloc(CHUNK, b.t);
        assert_eq!((b.at(small) / CHUNK, b.reason(small)), (expected, Reason::SameStream), "{handed} blocks");
    }
    // There is no other: it is cut.
    let b = bench();
    let x = b.alloc(8 * CHUNK, b.s);
    let _wall = b.alloc(CHUNK, b.s);
    b.free(x, b.t);
    let small = b.alloc(CHUNK, b.t);
    assert_eq!((b.at(small), b.reason(small)), (0, Reason::SameStream));
}

#[test]
fn handed_over_blocks_come_back_one_by_one_from_a_stream_with_more_than_256_own_blocks() {
    for (small, then) in [(254, Reason::SameStream), (255, Reason::Event)] {
        let b = bench();
        let [one, _wall, two] = [2, 1, 3].map(|chunks| b.alloc(chunks * CHUNK, b.s));
        let blocks: Vec<_> = (0..2 * small).map(|_| b.alloc(512, b.t)).collect();
        // What lies between them is live, so they do not merge.
        for &block in blocks.iter().step_by(2) {
            b.free(block, b.t);
        }
        b.free(one, b.t);
        b.free(two, b.t);
        follow(&b);
        let [again, other] = [2, 3].map(|chunks| b.alloc(chunks * CHUNK, b.s));
        assert_eq!((b.at(again), b.reason(again)), (0, Reason::Event));
        assert_eq!((b.at(other), b.reason(other)), (3 * CHUNK, then), "with {small} small ones");
    }
}

#[test]
fn a_block_with_users_comes_back_once_the_host_has_observed_the_only_one_that_is_not_followed() {
    let b = bench();
    let u = stream::create(b.device, StreamFlags { non_blocking: true, lazy: None }).unwrap();
    let v = stream::create(b.device, StreamFlags { non_blocking: true, lazy: None }).unwrap();
    let block = b.alloc(1024, b.t);
    let rest = b.alloc(CHUNK - 1024, b.t);
    for user in [u, v] {
        stream::submit(b.device, user, 1).unwrap();
        pool::add_user(block, user).unwrap();
    }
    b.free(block, b.t);
    let done = event::create(b.device).unwrap();
    for followed in [b.t, u] {
        event::record(b.device, done, followed).unwrap();
        stream::wait_event(b.device, b.s, done).unwrap();
    }
    // Not yet, for v is not followed; and what s is ordered after stays the same from here on.
    let fresh = b.alloc(512, b.s);
    assert_eq!(b.reason(fresh), Reason::Fresh);
    b.sync(v);
    // It is s's own as a whole, and so is what is left of it.
    let [first, second] = [(); 2].map(|()| b.alloc(512, b.s));
    assert_eq!((b.at(first), b.reason(first)), (0, Reason::Event));
    assert_eq!((b.at(second), b.reason(second)), (512, Reason::SameStream));
    b.free(rest, b.t);
}

#[test]
fn blocks_with_users_come_back_once_the_users_are_followed_and_small_handed_over_ones_do_not() {
    let b = bench();
    let blocks: Vec<_> = (0..8).map(|_| b.alloc(512, b.s)).collect();
    stream::submit(b.device, b.t, 1).unwrap();
    for &shared in &[blocks[0], blocks[2]] {
        pool::add_user(shared, b.t).unwrap();
        b.free(shared, b.s);
    }
    follow(&b);
    assert_eq!([0; 2].map(|_| b.reason(b.alloc(512, b.s))), [Reason::Event, Reason::SameStream]);
    b.free(blocks[4], b.t);
    b.free(blocks[6], b.t);
    follow(&b);
    assert_eq!([0; 2].map(|_| b.reason(b.alloc(512, b.s))), [Reason::Event; 2]);
}

#[test]
fn frees_that_are_not_finished_with_make_an_entry_hold_twice_what_was_used_before_a_stream_waits() {
    let b = bench_on(lazy_4k(), "mapped(range_size=64MiB, chunk_size=4KiB)");
    let mut waited = 0;
    for _ in 0..50 {
        let block = b.alloc(100 * CHUNK, b.s);
        waited += u32::from(b.reason(block) == Reason::Internal);
        let event = event::create(b.device).unwrap();
        event::record(b.device, event, b.s).unwrap();
        stream::wait_event(b.device, b.t, event).unwrap();
        // (Which runs only when the host waits for it, and it does not.)
        b.free(block, b.t);
    }
    // At most 100 are used at a time. Of 200, half of them not finished with, there is room for 18 and 6 more.
    assert!(b.chunks() <= 200 + 18 + 6 + 1, "{} chunks", b.chunks());
    assert!(waited >= 40, "{waited} waited");
    let off = bench_on(lazy_4k(), "mapped(range_size=64MiB, chunk_size=4KiB); policies(internal_dependencies=off)");
    for _ in 0..50 {
        let block = off.alloc(100 * CHUNK, off.s);
        off.free(block, off.t);
    }
    assert!(off.chunks() >= 50 * 100, "without policy 3 none waits");
}

#[test]
fn with_several_streams_a_chunk_in_several_usable_blocks_is_moved_too() {
    let b = bench_on(lazy_4k(), "mapped(range_size=64KiB, chunk_size=4KiB, max_pool_size=32KiB)");
    // Seven chunks are half s's and half t's, the eighth is s's.
    let halves: Vec<AllocationId> =
        (0..14).map(|half| b.alloc(CHUNK / 2, if half % 2 == 0 { b.s } else { b.t })).collect();
    b.alloc(CHUNK, b.s);
    for half in [2, 3, 4, 5, 8, 9, 10, 11] {
        b.free(halves[half], if half % 2 == 0 { b.s } else { b.t });
    }
    for stream in [b.s, b.t] {
        stream::advance(b.device, stream, u64::MAX).unwrap();
    }
    // Twice two chunks are free, of two streams each, and no more can be had.
    let three = b.alloc(3 * CHUNK, b.t);
    assert_eq!((b.at(three), b.reason(three)), (8 * CHUNK, Reason::Opportunistic));
    assert_eq!((b.stats().chunk_moves, b.chunks()), (3, 8));
}

/// What one thread asks of the device may be more than it takes. (Pages of a sliced entry are asked for in the same way.)
#[test]
fn threads_that_ask_at_the_same_time_fill_an_entry_up_to_its_cap() {
    let b = bench_on(lazy_4k(), "mapped()");
    let streams = [(); 4].map(|()| stream::create(b.device, StreamFlags::default()).unwrap());
    for spec in [
        "mapped(range_size=1MiB, chunk_size=4KiB, max_pool_size=32KiB)",
        "sliced(page_size=16KiB, max_pool_size=32KiB)",
    ] {
        for _ in 0..1000 {
            let pool = pool::create(b.device, &spec::parse(spec).unwrap()).unwrap();
            let together = std::sync::Barrier::new(streams.len());
            std::thread::scope(|scope| {
                for &stream in &streams {
                    let together = &together;
                    scope.spawn(move || {
                        together.wait();
                        for _ in 0..2 {
                            pool::alloc_async(pool, CHUNK, stream).unwrap();
                        }
                    });
                }
            });
            assert_eq!(pool::stats(pool).unwrap().reserved, 8 * CHUNK);
            pool::destroy(pool).unwrap();
        }
    }
}

#[test]
fn threads_that_name_users_and_free_on_each_others_streams_keep_every_block_accounted_for() {
    const THREADS: usize = 4;
    let device = device::open_model(&ModelOptions::default()).unwrap();
    let pool = pool::create(device, &PoolConfig::default()).unwrap();
    let streams: Vec<StreamId> =
        (0..THREADS).map(|_| stream::create(device, StreamFlags { non_blocking: true, lazy: None }).unwrap()).collect();
    std::thread::scope(|scope| {
        for own in 0..THREADS {
            let streams = &streams;
            scope.spawn(move || {
                let (mine, event) = (streams[own], event::create(device).unwrap());
                for round in 0..2000 {
                    let [other, third] = [1, 2].map(|step| streams[(own + round + step) % THREADS]);
                    let block = pool::alloc_async(pool, 256 << (round % 12), mine).unwrap();
                    pool::add_user(block, other).unwrap();
                    if round % 5 == 0 {
                        pool::add_user(block, third).unwrap();
                    }
                    event::record(device, event, mine).unwrap();
                    stream::wait_event(device, other, event).unwrap();
                    pool::free_async(block, if round % 3 == 0 { other } else { mine }).unwrap();
                    assert_eq!(pool::add_user(block, other).unwrap_err().status, Status::Freed);
                    if round % 16 == 0 {
                        stream::synchronize(device, other).unwrap();
                    }
                }
            });
        }
    });
    pool::check_invariants(pool).unwrap();
    device::synchronize(device).unwrap();
    pool::check_invariants(pool).unwrap();
    let stats = pool::stats(pool).unwrap();
    assert_eq!((stats.used, stats.live, stats.pending, stats.unordered_frees), (0, 0, 0, 0));
}
