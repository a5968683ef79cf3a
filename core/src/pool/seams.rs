//! Seams: places where two settled free blocks touch (settled: not recent). They are of different groups, or whole, or would
//! have merged, so every run of two or more blocks that could serve together goes across seams, and is found by them, however
//! many free blocks lie alone.
//!
//! A seam is named by the block to its right, since what the left one loses it loses at its low end. Whoever settles a block looks
//! to both sides and notes what it finds: a stream with its own free blocks, under its lock, else the holder of the slow lock. A
//! search takes the notes of all in, drops what is no seam any more, and looks around the others. Nothing is noted before the first
//! search with several streams, nor after too many notes without one: then all blocks are gone through.

use super::block::{Block, FREE, NIL, RECENT, block};
use super::page::page;
use super::span::{Members, touches};
use super::state::{EntryShared, Pool, PoolShared, Slow};
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
        let (next, prev) = (b.next(), b.prev());
        let is_others = |near: u32| near != NIL && block(near).stream() != owner;
        let mut left = prev;
        if is_others(next) || is_others(prev) {
            fence(SeqCst);
            left = b.prev();
        }
        if next != NIL && block(next).is_settled() {
            self.note(next);
        }
        if left != NIL {
            let p = block(left);
            // (A link that is old hides what is there; then a search looks.)
            if p.is_settled() || !touches(p, b) {
                self.note(index);
            }
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
}

impl Seams {
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

/// The first blocks of the maximal sequences of at least two adjacent settled free blocks of the entry, in no order. `holders`: all
/// streams that hold any, locked.
///
/// A stream that held none a moment ago may free and cut blocks meanwhile, since it is not locked: what it has belongs to no
/// sequence, and where it may be in the way the note stays, for whoever cuts a block notes nothing.
pub(super) fn sequences(
    slow: &mut Slow<'_>,
    shared: &mut PoolShared,
    pool: &Arc<Pool>,
    e: usize,
    holders: &[StreamRef],
) -> Few<u32, 32> {
    take_in(slow, shared, pool, e, holders);
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
    firsts
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

/// All notes are in the entry's list.
fn take_in(slow: &mut Slow<'_>, shared: &mut PoolShared, pool: &Arc<Pool>, e: usize, holders: &[StreamRef]) {
    let own = &mut shared.entries[e];
    let mut known = own.observed.seams.hand_over(&mut own.seams);
    for &holder in holders {
        known &= slow.bins(holder, pool, e).seams.hand_over(&mut own.seams);
    }
    if known {
        return;
    }
    match own.sole.is_several() {
        true => go_through(slow, shared, pool, e),
        false => look_around(slow, shared, pool, e, holders),
    }
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
    for &slot in &own.pages {
        each_seam(slot, |right| own.seams.add(right));
    }
}

fn each_seam(slot: u32, mut visit: impl FnMut(u32)) {
    let mut at = page(slot).first.load(Relaxed);
    let mut before = false;
    while at != NIL {
        look();
        let b = block(at);
        let settled = b.is_settled();
        if before && settled {
            visit(at);
        }
        before = settled;
        at = b.next();
    }
}

/// Visits the maximal runs of at least two adjacent blocks that `usable` accepts and that are at least `least` bytes: the first, and
/// how many bytes. `firsts`: what [`sequences`] gave; those stay that are large enough as a whole. `holders`: as there.
pub(super) fn each_run(
    firsts: &mut Few<u32, 32>,
    holders: &[StreamRef],
    least: u64,
    mut usable: impl FnMut(u32, &'static Block) -> bool,
    mut visit: impl FnMut(u32, u64),
) {
    let members = Members::of(holders);
    firsts.retain(|first| {
        let mut at = first;
        let mut b = block(at);
        let (home, mut total) = (b.page(), 0);
        // The usable ones just gone through: the first, how many, bytes.
        let mut run = (first, 0, 0);
        loop {
            look();
            let size_flags = b.size_flags();
            if size_flags & (FREE | RECENT) != FREE || !members.has(b.stream()) {
                break;
            }
            let bytes = Block::size_in(size_flags);
            total += bytes;
            if usable(at, b) {
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
            if n.page() != home || b.addr() + bytes != n.addr() {
                break;
            }
            (at, b) = (next, n);
        }
        if run.1 > 1 && run.2 >= least {
            visit(run.0, run.2);
        }
        total >= least
    });
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
    use super::super::registry::POOLS;
    use super::super::state::{absorb, cut};
    use super::{Slow, block, each_run, sequences};
    use crate::device::{self, ModelOptions};
    use crate::pool::{self, MemoryPoolConfig, PoolConfig};
    use crate::{event, handle, stream};
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

    /// One that held no free block when the others were locked is in the midst of a cut: to the right of it, a block still names
    /// what has become shorter.
    #[test]
    fn a_seam_beside_a_block_that_a_stream_not_locked_is_cutting_stays_noted() {
        let device = device::open_model(&ModelOptions { lazy: true, ..Default::default() }).unwrap();
        let config = MemoryPoolConfig::Sliced {
            page_size: 1 << 16,
            max_slice_size: None,
            max_pool_size: None,
            dealloc_period: None,
        };
        let pool = pool::create(device, &PoolConfig::with_entries(vec![config])).unwrap();
        let [cutting, second, third] = [(); 3].map(|()| stream::create(device, Default::default()).unwrap());
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
            let mut firsts = sequences(slow, &mut shared, &pool, 0, holders);
            let mut runs = Vec::new();
            each_run(&mut firsts, holders, 0, |_, _| true, |first, bytes| runs.push((first, bytes)));
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
}
