//! Seams: places where two settled free blocks touch (settled: not recent). They are of different groups, or whole, or would
//! have merged, so every run of two or more blocks that could serve together goes across seams, and is found by them, however
//! many free blocks lie alone.
//!
//! A seam is named by the block to its right, since what the left one loses it loses at its low end. Whoever settles a block looks
//! to both sides and notes what it finds: a stream with its own free blocks, under its lock, else the holder of the slow lock. A
//! search takes the notes of all in, drops what is no seam any more, and looks around the others. Nothing is noted before the first
//! search with several streams, nor after too many notes without one: then all blocks are gone through. So they are where nearly all
//! of them touch, and nothing is noted there either.

use super::block::{BLOCKS, Block, FREE, NIL, RECENT, block};
use super::page::page;
use super::slow::Slow;
use super::span::{Members, touches};
use super::state::{EntryShared, Pool, PoolShared};
use crate::few::Few;
use crate::order::StreamRef;
use std::sync::Arc;
use std::sync::atomic::{
    Ordering::{Relaxed, SeqCst},
    fence,
};

/// How many notes a stream keeps; what holds the slow lock keeps more. With more it notes nothing until the next search, which goes
/// through all blocks: where searches are few, notes are too.
const MOST: usize = 512;
const MOST_SHARED: usize = 4096;
/// How many of the last notes are looked at for one that is the same.
const LAST: usize = 32;

/// What was noted of one owner's free blocks since a search took the notes in.
pub(crate) struct Notes {
    /// Nothing is missing.
    on: bool,
    most: usize,
    rights: Vec<u32>,
    /// Some of these.
    last: [u32; LAST],
}

impl Notes {
    pub(crate) const OFF: Notes = Notes { on: false, most: 0, rights: Vec::new(), last: [NIL; LAST] };

    #[inline(always)]
    pub(crate) fn is_on(&self) -> bool {
        self.on
    }

    fn start(&mut self, most: usize) {
        (self.on, self.most) = (true, most);
        self.rights.clear();
        self.rights.reserve(MOST);
        self.last = [NIL; LAST];
    }

    /// Nothing is noted until the next start.
    fn stop(&mut self) {
        self.on = false;
        self.rights.clear();
    }

    /// From its first block on.
    pub(crate) fn start_empty(&mut self) {
        self.start(MOST);
    }

    /// A block is settled, and says so: notes the seams on both sides.
    ///
    /// Two threads may settle neighbours at the same time. Each says first that its own block is settled, then looks at the
    /// other's, so one of them sees both. (What has the same owner does not change meanwhile.)
    #[inline(never)]
    pub(crate) fn note_beside(&mut self, index: u32, b: &Block) {
        let owner = b.stream();
        let (next, left) = (b.next(), b.prev());
        // (What is no block has no record.)
        let (n, mut l) = (BLOCKS.get(next), BLOCKS.get(left));
        let is_others = |near: Option<&Block>| near.is_some_and(|near| near.stream() != owner);
        if is_others(n) || is_others(l) {
            fence(SeqCst);
            let now = b.prev();
            if now != left {
                l = BLOCKS.get(now);
            }
        }
        if n.is_some_and(Block::is_settled) {
            self.note(next);
        }
        // (A link that is old hides what is there; then a search looks.)
        if l.is_some_and(|l| l.is_settled() || !touches(l, b)) {
            self.note(index);
        }
    }

    fn note(&mut self, right: u32) {
        // (What is freed and allocated again and again is noted as often.)
        let last = &mut self.last[right as usize % LAST];
        if *last == right {
            return;
        }
        *last = right;
        self.on = self.rights.len() < self.most;
        if self.on {
            self.rights.push(right);
        }
    }

    /// Hands the notes over. `false`: some were lost.
    fn hand_over(&mut self, seams: &mut Seams) -> bool {
        if !self.rights.is_empty() {
            self.rights.drain(..).for_each(|right| seams.add(right));
            self.last = [NIL; LAST];
        }
        self.on
    }
}

/// An entry's seams, as far as notes were taken in; under the slow lock.
#[derive(Default)]
pub(crate) struct Seams {
    /// Each once.
    rights: Vec<u32>,
    /// A bit for each of them.
    listed: Vec<u64>,
    /// How many blocks there were when all were gone through last; 0: they were not.
    blocks: usize,
    /// So many searches more go through whole pages, and nothing is noted until then.
    dense_for: u32,
}

/// Of so many seams, and at least half as many as there are blocks, no list is kept: it takes fewer steps to look at each block
/// once. After so many searches they are counted anew.
const MANY: usize = 256;
const SEARCHES: u32 = 16;

impl Seams {
    fn are_dense(&self) -> bool {
        self.rights.len() >= MANY && self.blocks > 0 && self.rights.len() >= self.blocks / 2
    }

    #[inline(always)]
    fn add(&mut self, right: u32) {
        let (word, bit) = (right as usize / 64, 1 << (right % 64));
        if self.listed.len() <= word {
            self.listed.resize(word + 1, 0);
        }
        if self.listed[word] & bit == 0 {
            self.listed[word] |= bit;
            self.rights.push(right);
        }
    }

    /// Drops those that `keep` does not want.
    #[inline(always)]
    fn retain(&mut self, mut keep: impl FnMut(u32) -> bool) {
        let mut kept = 0;
        for at in 0..self.rights.len() {
            let right = self.rights[at];
            if keep(right) {
                self.rights[kept] = right;
                kept += 1;
            } else {
                self.listed[right as usize / 64] &= !(1 << (right % 64));
            }
        }
        self.rights.truncate(kept);
    }
}

/// Where runs may be.
#[derive(Default)]
pub(super) struct Sequences {
    /// The first blocks of sequences of settled free blocks, or of whole pages.
    firsts: Few<u32, 32>,
    whole_pages: bool,
}

/// The maximal sequences of at least two adjacent settled free blocks of the entry, in no order. `holders`: all streams that hold
/// any, locked.
///
/// A stream that held none a moment ago may free and cut blocks meanwhile, since it is not locked: what it has belongs to no
/// sequence, and where it may be in the way the note stays, for whoever cuts a block notes nothing.
pub(super) fn sequences(
    slow: &mut Slow<'_>,
    shared: &mut PoolShared,
    pool: &Arc<Pool>,
    e: usize,
    holders: &[StreamRef],
) -> Sequences {
    if take_in(slow, shared, pool, e, holders) == Look::WholePages {
        let firsts = shared.entries[e].pages.iter().map(|&slot| page(slot).first.load(Relaxed)).collect();
        return Sequences { firsts, whole_pages: true };
    }
    let members = Members::of(holders);
    let mut firsts = Few::default();
    shared.entries[e].seams.retain(|right| {
        look();
        let b = block(right);
        if !b.is_settled() {
            return false;
        }
        // (A record may have become another entry's.)
        let is_here = |b: &Block| {
            let home = page(b.page());
            home.pool.load(Relaxed) == pool.slot && home.entry.load(Relaxed) as usize == e
        };
        if !members.has(b.stream()) {
            return is_here(b);
        }
        match left_of(b, &members) {
            Left::None => false,
            Left::Unknown => is_here(b),
            Left::Settled(left, l) => {
                if !matches!(left_of(l, &members), Left::Settled(..)) {
                    if !is_here(l) {
                        return false;
                    }
                    firsts.push(left);
                }
                true
            }
        }
    });
    Sequences { firsts, whole_pages: false }
}

/// What is to the left of a settled block.
enum Left {
    /// No settled block.
    None,
    /// A stream that is not locked has it, or has just changed the link.
    Unknown,
    Settled(u32, &'static Block),
}

#[inline(always)]
fn left_of(b: &Block, members: &Members<'_>) -> Left {
    let left = b.prev();
    if left == NIL {
        return Left::None;
    }
    let l = block(left);
    // In one word, so that the flags are those of the time when it had the size.
    let size_flags = l.size_flags();
    if l.page() != b.page() || l.addr() + Block::size_in(size_flags) != b.addr() {
        return Left::Unknown;
    }
    match size_flags & (FREE | RECENT) == FREE {
        true if members.has(l.stream()) => Left::Settled(left, l),
        true => Left::Unknown,
        false => Left::None,
    }
}

/// What a search goes by.
#[derive(PartialEq, Eq)]
enum Look {
    /// The entry's list, where all notes are now.
    List,
    /// All blocks. Every stream of the pool is locked, so they stay as they are.
    WholePages,
}

fn take_in(slow: &mut Slow<'_>, shared: &mut PoolShared, pool: &Arc<Pool>, e: usize, holders: &[StreamRef]) -> Look {
    let own = &mut shared.entries[e];
    if own.seams.dense_for > 0 {
        own.seams.dense_for -= 1;
        if own.seams.dense_for > 0 {
            slow.lock_attached(pool);
            return Look::WholePages;
        }
        go_through(slow, shared, pool, e);
    } else {
        let mut known = own.observed.seams.hand_over(&mut own.seams);
        for &holder in holders {
            known &= slow.held_bins(holder, pool, e).is_some_and(|bins| bins.seams.hand_over(&mut own.seams));
        }
        if !known {
            match own.sole.is_several() {
                true => go_through(slow, shared, pool, e),
                false => look_around(slow, shared, pool, e, holders),
            }
        }
    }
    let own = &mut shared.entries[e];
    if !own.seams.are_dense() {
        return Look::List;
    }
    own.seams.dense_for = SEARCHES;
    own.observed.seams.stop();
    pool.entry_tally[e].notes_seams.store(false, Relaxed);
    for slot in slow.lock_attached(pool) {
        slow.cache(slot, pool).entries[e].made_bins().seams.stop();
    }
    Look::WholePages
}

/// Finds all seams where one stream alone is at work, which searches seldom and would note for nothing: each is between a block of
/// its own and one that is observed or never used. The fewer of the two are looked at.
fn look_around(slow: &mut Slow<'_>, shared: &mut PoolShared, pool: &Arc<Pool>, e: usize, holders: &[StreamRef]) {
    let EntryShared { observed, unused, seams, .. } = &mut shared.entries[e];
    seams.retain(|_| false);
    let mut beside = |index: u32| {
        look();
        let b = block(index);
        let next = b.next();
        if next != NIL && block(next).is_settled() && touches(b, block(next)) {
            seams.add(next);
        }
        let prev = b.prev();
        if prev != NIL && block(prev).is_settled() && touches(block(prev), b) {
            seams.add(index);
        }
    };
    let of_streams: u64 = holders.iter().map(|&holder| slow.bins(holder, pool, e).count).sum();
    if of_streams < observed.count + unused.count {
        holders.iter().for_each(|&holder| slow.bins(holder, pool, e).each(&mut beside));
    } else {
        observed.each(&mut beside);
        unused.each(&mut beside);
    }
}

/// Finds all seams, and begins to note them.
#[cold]
fn go_through(slow: &mut Slow<'_>, shared: &mut PoolShared, pool: &Arc<Pool>, e: usize) {
    // With every stream of the pool locked, all blocks stay as they are.
    let attached = slow.lock_attached(pool);
    pool.entry_tally[e].notes_seams.store(true, Relaxed);
    for slot in attached {
        slow.cache(slot, pool).entries[e].made_bins().seams.start_empty();
    }
    let own = &mut shared.entries[e];
    own.observed.seams.start(MOST_SHARED);
    own.seams.retain(|_| false);
    own.seams.blocks = 0;
    for &slot in &own.pages {
        own.seams.blocks += each_seam(slot, |right| own.seams.add(right));
    }
}

/// Visits the seams of a page; returns how many blocks it has.
fn each_seam(slot: u32, mut visit: impl FnMut(u32)) -> usize {
    let mut at = page(slot).first.load(Relaxed);
    let (mut before, mut blocks) = (false, 0);
    while at != NIL {
        look();
        let b = block(at);
        let settled = b.is_settled();
        if before && settled {
            visit(at);
        }
        before = settled;
        blocks += 1;
        at = b.next();
    }
    blocks
}

/// Visits the maximal runs of at least two adjacent blocks that `usable` accepts, which says no to all but these streams' and those of
/// no single stream, and that are at least `least` bytes: the first, and how many bytes. `found`: what [`sequences`] gave; what is too
/// small as a whole leaves it. `holders`: as there.
pub(super) fn each_run(
    found: &mut Sequences,
    holders: &[StreamRef],
    least: u64,
    mut usable: impl FnMut(u32, &'static Block) -> bool,
    mut visit: impl FnMut(u32, u64),
) {
    if found.whole_pages {
        found.firsts.retain(|first| runs_from::<true>(first, None, least, &mut usable, &mut visit));
    } else {
        let members = Members::of(holders);
        found.firsts.retain(|first| runs_from::<false>(first, Some(&members), least, &mut usable, &mut visit));
    }
}

/// The same from one block on: to the end of its page (`WHOLE`), or of the sequence of settled blocks of the `members`. `false`: what
/// is free there is less than `least` bytes together.
#[inline(always)]
fn runs_from<const WHOLE: bool>(
    first: u32,
    members: Option<&Members<'_>>,
    least: u64,
    usable: &mut impl FnMut(u32, &'static Block) -> bool,
    visit: &mut impl FnMut(u32, u64),
) -> bool {
    let mut at = first;
    let mut b = block(at);
    let (home, mut total) = (b.page(), 0);
    // The usable ones just gone through: the first, how many, bytes.
    let mut run = (first, 0, 0);
    loop {
        look();
        let size_flags = b.size_flags();
        let settled = size_flags & (FREE | RECENT) == FREE;
        if !(WHOLE || settled && members.is_some_and(|members| members.has(b.stream()))) {
            break;
        }
        let bytes = Block::size_in(size_flags);
        if settled {
            total += bytes;
        }
        if settled && usable(at, b) {
            run = if run.1 == 0 { (at, 1, bytes) } else { (run.0, run.1 + 1, run.2 + bytes) };
        } else {
            if run.1 > 1 && run.2 >= least {
                visit(run.0, run.2);
            }
            run.1 = 0;
        }
        let next = b.next();
        if next == NIL {
            break;
        }
        let n = block(next);
        if !WHOLE && (n.page() != home || b.addr() + bytes != n.addr()) {
            break;
        }
        (at, b) = (next, n);
    }
    if run.1 > 1 && run.2 >= least {
        visit(run.0, run.2);
    }
    total >= least
}

/// Every seam of the entry is noted somewhere. All streams are locked; `holders`: those with free blocks.
pub(super) fn check(
    slow: &mut Slow<'_>,
    shared: &PoolShared,
    pool: &Arc<Pool>,
    e: usize,
    holders: &[StreamRef],
) -> Result<(), String> {
    let own = &shared.entries[e];
    let mut noted = own.seams.rights.clone();
    let mut known = true;
    let mut add = |notes: &Notes| {
        known &= notes.on;
        noted.extend_from_slice(&notes.rights);
    };
    add(&own.observed.seams);
    for &holder in holders {
        add(&slow.bins(holder, pool, e).seams);
    }
    if !known {
        return Ok(());
    }
    noted.sort_unstable();
    let mut missing = Ok(());
    for &slot in &own.pages {
        each_seam(slot, |right| {
            if noted.binary_search(&right).is_err() {
                missing = Err(format!("entry {e}: the seam to the left of block {right} is not noted"));
            }
        });
    }
    missing
}

#[cfg(not(test))]
#[inline(always)]
pub(super) fn look() {}

/// A block is looked at.
#[cfg(test)]
pub(super) fn look() {
    tests::LOOKS.with(|looks| looks.set(looks.get() + 1));
}

#[cfg(test)]
mod tests {
    use super::super::block::named;
    use super::super::merge::{absorb, cut};
    use super::super::registry::POOLS;
    use super::{Slow, block, each_run, sequences};
    use crate::device::{self, ModelOptions};
    use crate::pool::{self, MemoryPoolConfig, PoolConfig};
    use crate::{DeviceId, PoolId, StreamId, event, handle, stream};
    use std::cell::Cell;

    thread_local! {
        /// How many blocks this thread has looked at.
        pub(super) static LOOKS: Cell<u64> = const { Cell::new(0) };
    }

    /// One stream hands large blocks to another, which holds so many small free blocks between live ones. How many blocks are
    /// looked at in twelve steps, of which each allocates more than its stream has.
    fn looks(lonely: usize) -> u64 {
        let device = device::open_model(&ModelOptions { lazy: true, ..Default::default() }).unwrap();
        let config = MemoryPoolConfig::Mapped {
            range_size: 1 << 36,
            chunk_size: 1 << 21,
            max_pool_size: None,
            dealloc_period: None,
        };
        let pool = pool::create(device, &PoolConfig::with_entries(vec![config])).unwrap();
        let [producer, consumer] = [(); 2].map(|()| stream::create(device, Default::default()).unwrap());
        let handed_over = event::create(device).unwrap();
        let small: Vec<_> = (0..2 * lonely).map(|_| pool::alloc_async(pool, 512, consumer).unwrap()).collect();
        small.iter().step_by(2).for_each(|&block| pool::free_async(block, consumer).unwrap());
        let step = |i: u64| {
            let block = pool::alloc_async(pool, (64 + i % 3) << 20, producer).unwrap();
            stream::submit(device, producer, 1).unwrap();
            event::record(device, handed_over, producer).unwrap();
            stream::wait_event(device, consumer, handed_over).unwrap();
            let further = pool::alloc_async(pool, 3_000_000 + i * 512, consumer).unwrap();
            pool::free_async(further, consumer).unwrap();
            pool::free_async(block, consumer).unwrap();
            if i % 4 == 3 {
                stream::synchronize(device, producer).unwrap();
            }
        };
        (0..12).for_each(step);
        pool::check_invariants(pool).unwrap();
        LOOKS.set(0);
        (12..24).for_each(step);
        let looks = LOOKS.get();
        pool::check_invariants(pool).unwrap();
        looks
    }

    #[test]
    fn what_a_search_looks_at_does_not_grow_with_the_free_blocks_that_lie_alone() {
        let few = looks(100);
        assert!(few > 0, "the steps search");
        assert_eq!(looks(10_000), few);
    }

    /// Two streams never come to an end; a thousand blocks side by side, freed by the host, wait for both.
    #[test]
    fn a_host_ordered_allocation_looks_at_nothing_that_streams_have_not_finished_with() {
        let sliced = |page_size| MemoryPoolConfig::Sliced {
            page_size,
            max_slice_size: None,
            max_pool_size: None,
            dealloc_period: None,
        };
        let mapped = MemoryPoolConfig::Mapped {
            range_size: 1 << 36,
            chunk_size: 1 << 21,
            max_pool_size: None,
            dealloc_period: None,
        };
        for entry in [sliced(1 << 21), mapped] {
            let device = device::open_model(&ModelOptions { lazy: true, ..Default::default() }).unwrap();
            let pool = pool::create(device, &PoolConfig::with_entries(vec![entry])).unwrap();
            let streams = [(); 2].map(|()| stream::create(device, Default::default()).unwrap());
            let waiting: Vec<_> = (0..1000).map(|i| pool::alloc_async(pool, 4096, streams[i % 2]).unwrap()).collect();
            waiting.into_iter().for_each(|block| pool::free(block).unwrap());
            LOOKS.set(0);
            for _ in 0..32 {
                let block = pool::alloc(pool, 1 << 20, &Default::default()).unwrap();
                pool::free(block).unwrap();
            }
            assert_eq!(LOOKS.get(), 0);
            pool::check_invariants(pool).unwrap();
        }
    }

    /// A lazy device, a pool with pages of 64 KiB, and streams.
    fn one_page() -> (DeviceId, PoolId, [StreamId; 3]) {
        let device = device::open_model(&ModelOptions { lazy: true, ..Default::default() }).unwrap();
        let config = MemoryPoolConfig::Sliced {
            page_size: 1 << 16,
            max_slice_size: None,
            max_pool_size: None,
            dealloc_period: None,
        };
        let pool = pool::create(device, &PoolConfig::with_entries(vec![config])).unwrap();
        (device, pool, [(); 3].map(|()| stream::create(device, Default::default()).unwrap()))
    }

    /// One that held no free block when the others were locked is in the midst of a cut: to the right of it, a block still names
    /// what has become shorter.
    #[test]
    fn a_seam_beside_a_block_that_a_stream_not_locked_is_cutting_stays_noted() {
        let (_, pool, [cutting, second, third]) = one_page();
        let allocated = [cutting, second, third].map(|own| (pool::alloc_async(pool, 4096, own).unwrap(), own));
        let [left, middle, _] = allocated.map(|(block, _)| named(block).unwrap().index);
        pool::alloc_async(pool, (1 << 16) - 3 * 4096, third).unwrap();
        for (block, own) in allocated {
            pool::free_async(block, own).unwrap();
        }
        let pool = POOLS.resolve(pool).unwrap();
        let mut slow = Slow::lock(&pool.device);
        let holders = slow.holders(&pool, 0);
        let [cutting, others @ ..] = &*holders else { panic!("each holds one") };
        assert_eq!(*cutting, slow.state(handle::slot(allocated[0].1.0)).me);
        let mut shared = pool.shared.lock();
        let mut runs = |slow: &mut Slow<'_>, holders: &[_]| {
            let mut found = sequences(slow, &mut shared, &pool, 0, holders);
            let mut runs = Vec::new();
            each_run(&mut found, holders, 0, |_, _| true, |first, bytes| runs.push((first, bytes)));
            runs
        };
        assert_eq!(runs(&mut slow, &holders), [(left, 3 * 4096)]);
        let stock = &mut pool::block::Stock::default();
        let (rest, r) = cut(left, block(left), 1024, stock).unwrap().unwrap();
        block(middle).set_prev(left);
        assert_eq!(runs(&mut slow, others), [(middle, 2 * 4096)]);
        block(middle).set_prev(rest);
        assert_eq!(runs(&mut slow, others), [(middle, 2 * 4096)]);
        absorb(left, block(left), rest, r, stock);
        assert_eq!(runs(&mut slow, &holders), [(left, 3 * 4096)]);
    }

    /// Two streams' free blocks by turns, a page full. Sixteen searches later the seams are counted anew: none is left then.
    #[test]
    fn where_nearly_all_free_blocks_touch_a_search_looks_at_each_block_once() {
        const BLOCKS: u64 = 1024;
        let device = device::open_model(&ModelOptions { lazy: true, ..Default::default() }).unwrap();
        let config = MemoryPoolConfig::Sliced {
            page_size: BLOCKS << 10,
            max_slice_size: None,
            max_pool_size: None,
            dealloc_period: None,
        };
        let id = pool::create(device, &PoolConfig::with_entries(vec![config])).unwrap();
        let streams = [(); 2].map(|()| stream::create(device, Default::default()).unwrap());
        let mut allocated: Vec<_> =
            (0..BLOCKS as usize).map(|i| pool::alloc_async(id, 1 << 10, streams[i % 2]).unwrap()).collect();
        let first = named(allocated[0]).unwrap().index;
        for (i, block) in allocated.drain(..).enumerate() {
            pool::free_async(block, streams[i % 2]).unwrap();
        }
        let search = || {
            let pool = POOLS.resolve(id).unwrap();
            let mut slow = Slow::lock(&pool.device);
            let holders = slow.holders(&pool, 0);
            let mut shared = pool.shared.lock();
            LOOKS.set(0);
            let mut found = sequences(&mut slow, &mut shared, &pool, 0, &holders);
            let mut runs = Vec::new();
            each_run(&mut found, &holders, 2048, |_, _| true, |first, bytes| runs.push((first, bytes)));
            (LOOKS.get(), runs)
        };
        // All are gone through once to find the seams, and once for the search.
        assert_eq!(search(), (2 * BLOCKS, vec![(first, BLOCKS << 10)]));
        for _ in 1..8 {
            assert_eq!(search(), (BLOCKS, vec![(first, BLOCKS << 10)]));
        }
        allocated.extend((0..BLOCKS / 2).map(|_| pool::alloc_async(id, 1 << 10, streams[1]).unwrap()));
        for _ in 8..16 {
            assert_eq!(search(), (BLOCKS, vec![]));
        }
        assert_eq!(search(), (BLOCKS, vec![]));
        assert_eq!(search(), (0, vec![]));
        pool::free_async(allocated[0], streams[1]).unwrap();
        let (looks, runs) = search();
        assert!(looks < 16, "{looks}");
        assert_eq!(runs.iter().map(|run| run.1).sum::<u64>(), 3 << 10);
        pool::check_invariants(id).unwrap();
    }

    /// Others' free blocks fill a page and touch, and nothing has run.
    #[test]
    fn where_less_may_be_used_than_is_wanted_no_block_is_looked_at() {
        let (device, id, [first, second, third]) = one_page();
        let by_turns = [first, second].into_iter().cycle().take(64);
        let allocated: Vec<_> = by_turns.map(|on| (pool::alloc_async(id, 1 << 10, on).unwrap(), on)).collect();
        allocated.iter().for_each(|&(block, on)| pool::free_async(block, on).unwrap());
        LOOKS.set(0);
        pool::alloc_async(id, 2 << 10, third).unwrap();
        assert_eq!(LOOKS.get(), 0);
        for on in [first, second] {
            let event = event::create(device).unwrap();
            event::record(device, event, on).unwrap();
            stream::wait_event(device, third, event).unwrap();
        }
        pool::alloc_async(id, 64 << 10, third).unwrap();
        assert!(LOOKS.get() >= 64, "all of it together serves");
        assert_eq!(pool::stats(id).unwrap().pages, 2);
        pool::check_invariants(id).unwrap();
    }
}
