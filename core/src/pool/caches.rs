//! What a stream keeps for the pools, under its own lock: each pool's free blocks that are the stream's own, the room that was put
//! aside for it, and its counts. The hot path needs nothing else.

use super::Reason;
use super::bins::{Bins, Lifted, Taken};
use super::block::{BLOCKS, Block, FREE, GENERATION_LIMIT, NIL, RECENT, Stock, WHOLE, live_flags, pass, place};
use super::classes::{class_of, least_alike};
use super::config::MAX_PAGE;
use super::elsewhere::Kept;
use super::front::Front;
use super::merge::{cut_sized, insert_merged, settle_all, settle_one};
use super::recents::{MOST, Recents};
use super::slow::lock_patiently;
use super::state::{Counts, Entry, Kind, Pool};
use crate::handle::{self, PoolId};
use crate::lock::StreamMutexGuard;
use crate::order::{self, At, Clock, State, StreamRef};
use crate::runtime::native::{self, NativeStream};
use crate::slab::Slab;
use std::ops::{Index, IndexMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Every stream of the process.
pub(crate) static STREAMS: order::Table<Caches> = Slab::new();

pub(crate) type StreamState = State<Caches>;
pub(crate) type StreamGuard = StreamMutexGuard<'static, StreamState>;

/// What a stream keeps for the pools: its own frees, and a stock of block records.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Caches {
    /// By pool slot.
    pub(crate) pools: Vec<Option<Box<PoolCache>>>,
    pub(crate) stock: Stock,
    /// What the driver knows the stream by, and the events recorded on it.
    pub(crate) native: NativeStream,
}

/// One pool's part of a stream. The first fields are what most calls look at.
#[repr(C, align(64))]
pub(crate) struct PoolCache {
    pub(crate) id: PoolId,
    /// The device's alignment.
    pub(crate) unit: u64,
    pub(crate) share: Arc<Share>,
    pub(crate) quick: Quick,
    /// Bytes of room towards both the first entry's mark and the pool's, which the stream's own blocks take and give back
    /// without more. Not 0 only while the hot path is open; whoever else looks at the room counts them there first.
    pub(crate) ready: u64,
    /// The recent block of the first entry that was freed last.
    pub(crate) front: Front,
    pub(crate) entries: Entries,
    pub(crate) pool: Arc<Pool>,
    /// Towards the pool's mark of used bytes.
    pub(crate) room: Room,
    /// The block that was freed last elsewhere.
    pub(crate) kept: Kept,
}

/// Whether a free in the first entry need do little more than keep the block and make its bytes *ready*.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quick {
    /// More is to be done, as far as was looked.
    No,
    /// The hot path is open, the entry keeps recent blocks and has place for one, and all its lists name this stream.
    Yes,
    /// The same, and the entry has a list of empty pages to look after.
    Lists,
}

/// The entries' parts of a stream; the first, which serves most, without a step more.
#[repr(C)]
pub(crate) struct Entries {
    pub(crate) first: EntryCache,
    rest: Box<[EntryCache]>,
}

impl Entries {
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, entry: usize) -> Option<&mut EntryCache> {
        match entry {
            0 => Some(&mut self.first),
            _ => self.rest.get_mut(entry - 1),
        }
    }
    #[inline(always)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &EntryCache> {
        std::iter::once(&self.first).chain(&self.rest)
    }
    /// The first entry that accepts a request.
    #[inline(always)]
    pub(crate) fn accepting(&mut self, size: u64) -> Option<usize> {
        if size <= self.first.bound {
            return Some(0);
        }
        self.rest.iter().position(|entry| size <= entry.bound).map(|e| e + 1)
    }
    /// Without the first.
    #[inline(always)]
    pub(super) fn in_rest(&mut self, entry: usize) -> Option<&mut EntryCache> {
        self.rest.get_mut(entry.wrapping_sub(1))
    }
    /// The first of these that accepts a request.
    #[inline(always)]
    pub(super) fn accepting_in_rest(&mut self, size: u64) -> Option<&mut EntryCache> {
        self.rest.iter_mut().find(|entry| size <= entry.bound)
    }
    /// The same: its part.
    #[inline(always)]
    pub(super) fn accepting_mut(&mut self, size: u64) -> Option<&mut EntryCache> {
        if size <= self.first.bound {
            return Some(&mut self.first);
        }
        self.rest.iter_mut().find(|entry| size <= entry.bound)
    }
}

impl Index<usize> for Entries {
    type Output = EntryCache;
    #[inline(always)]
    fn index(&self, entry: usize) -> &EntryCache {
        match entry {
            0 => &self.first,
            _ => &self.rest[entry - 1],
        }
    }
}

impl IndexMut<usize> for Entries {
    #[inline(always)]
    fn index_mut(&mut self, entry: usize) -> &mut EntryCache {
        match entry {
            0 => &mut self.first,
            _ => &mut self.rest[entry - 1],
        }
    }
}

/// One entry's part of a stream: the stream's own free blocks, and counts of what was done on it.
#[repr(C)]
pub(crate) struct EntryCache {
    /// What this stream freed last: its own, but not merged yet.
    pub(crate) recents: Option<Box<Recents>>,
    /// Blocks that would be recent but for their size, freed since the entry paused last.
    pub(crate) passed_over: u32,
    /// The difference of what live blocks asked for.
    pub(crate) requested: i64,
    /// The largest request the entry may serve.
    pub(crate) bound: u64,
    /// The largest request that an entry before it may serve.
    pub(crate) below: u64,
    /// What its blocks have in their passes.
    pub(crate) place: u32,
    /// Blocks match by their exact size.
    pub(crate) exact: bool,
    /// Blocks are carved from pages.
    pub(crate) carves: bool,
    /// The largest block that its free leaves recent; 0: none is.
    pub(crate) largest_recent: u64,
    /// Frees are not for the hot path.
    pub(crate) slow_free: bool,
    /// The entry has a list of empty pages.
    pub(crate) lists_empty: bool,
    /// Towards the entry's mark of used bytes.
    pub(crate) room: Room,
    pub(crate) bins: Option<Box<Bins>>,
    /// The entry's list of streams with free blocks names this stream.
    pub(crate) published: bool,
    /// Some of the free blocks may be whole.
    pub(crate) whole: bool,
    /// What the stream was ordered after when blocks last came back to it, and the entry's [`super::state::EntryShared::multi_changes`] then.
    pub(crate) came_back: Option<(Clock, u64)>,
    pub(crate) counts: Counts,
}

/// What one stream counted of a pool and others read without its lock. Alone on its cache lines.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Share {
    /// Those that the stream's own blocks of the first entry served with ready room. Nothing else counts them.
    pub(crate) quick: AtomicU64,
    /// The other successful allocations.
    pub(crate) allocs: AtomicU64,
}

impl Share {
    #[inline(always)]
    pub(super) fn total(&self) -> u64 {
        self.allocs.load(Relaxed) + self.quick.load(Relaxed)
    }
}

/// By how much one stream may raise the used bytes before it must look at the other streams.
///
/// A mark (the most bytes ever used) is always the bytes used now and everybody's room together. An allocation takes its
/// bytes out of its stream's room, a free puts them back, so neither touches what streams share; only a stream whose room
/// is too small takes from the others', and when all of it together is too small the mark rises. So the mark is exact,
/// and used bytes are the mark less all room. ([`PoolCache::ready`] bytes are room too, and not counted here.)
#[derive(Default)]
pub(crate) struct Room {
    pub(crate) bytes: u64,
    /// The pool's list of who has room names this stream.
    pub(crate) listed: bool,
    /// It has handed some over since it lacked any itself.
    lent: bool,
}

impl Room {
    /// Hands over what another lacks, and half of what is left beyond, so that the two do not take turns; all of it if that was done
    /// before and not made good since, so that who lacks more and more does not come each time.
    pub(crate) fn part_with(&mut self, missing: u64) -> u64 {
        let beyond = self.bytes.saturating_sub(missing);
        let kept = if std::mem::replace(&mut self.lent, true) { 0 } else { beyond / 2 };
        let part = self.bytes - kept;
        self.bytes = kept;
        part
    }

    /// Takes what others have handed over.
    pub(super) fn take(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.lent = false;
    }
}

impl PoolCache {
    fn new(pool: &Arc<Pool>) -> PoolCache {
        let share = pool.add_share();
        let bound = |entry: &Entry| entry.accept.min(entry.accept_need).min(MAX_PAGE);
        let mut entries =
            pool.entries.iter().zip(&pool.entry_tally).enumerate().map(|(e, (entry, tally))| EntryCache {
                bound: bound(entry),
                below: pool.entries[..e].iter().map(bound).max().unwrap_or(0),
                place: place(pool.slot, e, entry.carves()),
                recents: None,
                passed_over: 0,
                requested: 0,
                exact: entry.kind == Kind::Direct,
                carves: entry.carves(),
                largest_recent: tally.largest_recent.load(Relaxed),
                slow_free: entry.slow_free,
                lists_empty: entry.kind != Kind::Mapped,
                room: Room::default(),
                bins: tally.notes_seams.load(Relaxed).then(new_noting_bins),
                published: false,
                whole: false,
                came_back: None,
                counts: Counts::default(),
            });
        PoolCache {
            id: pool.id,
            pool: pool.clone(),
            share,
            unit: pool.device.options.alignment,
            quick: Quick::No,
            ready: 0,
            front: Front::default(),
            room: Room::default(),
            kept: Kept::default(),
            entries: Entries { first: entries.next().expect("a pool has an entry"), rest: entries.collect() },
        }
    }

    /// Towards an entry's mark, or with the number of entries towards the pool's; to be changed by others than the stream's
    /// own frees and allocations.
    pub(crate) fn room(&mut self, mark: usize) -> &mut Room {
        self.stand_aside();
        match self.entries.get_mut(mark) {
            Some(entry) => &mut entry.room,
            None => &mut self.room,
        }
    }

    /// Takes `bytes` of an entry out of the room towards both marks, if there is more than that.
    pub(super) fn take_room(&mut self, entry: usize, bytes: u64) -> bool {
        self.stand_aside();
        let (own, all) = (&mut self.entries[entry].room, &mut self.room);
        let enough = own.listed && all.listed && own.bytes > bytes && all.bytes > bytes;
        if enough {
            own.bytes -= bytes;
            all.bytes -= bytes;
        }
        enough
    }

    /// Gives `bytes` of an entry back as room. `me`: the stream whose cache it is.
    pub(crate) fn give_room(&mut self, pool: &Pool, entry: usize, me: StreamRef, bytes: u64) {
        self.stand_aside();
        let own = &mut self.entries[entry].room;
        own.bytes += bytes;
        self.room.bytes += bytes;
        if !(own.listed & self.room.listed) {
            list_room(pool, entry, own, me.slot());
            list_room(pool, pool.entries.len(), &mut self.room, me.slot());
        }
    }

    /// Bytes of room towards a mark.
    pub(crate) fn room_bytes(&self, mark: usize) -> u64 {
        match mark {
            0 => self.entries.first.room.bytes + self.ready + self.front.bytes(),
            _ if mark == self.pool.entries.len() => self.room.bytes + self.ready + self.front.bytes(),
            _ => self.entries[mark].room.bytes,
        }
    }

    /// A Mapped entry may pause, and the stream has recent blocks that would merge; if it is the only stream there, and nothing is
    /// live in it. (That is asked with all streams locked: one that was refused may have kept room.)
    pub(crate) fn may_pause(&self, entry: usize) -> bool {
        let front = u32::from(entry == 0 && !self.front.is_none());
        let own = &self.entries[entry];
        self.pool.entry_tally[entry].pauses.load(Relaxed) > 0
            && own.recents().saturating_add(own.passed_over).saturating_add(front) >= 2
    }

    /// The first entry may pause, for all this stream knows, when a block for which `requested` bytes were asked is freed: that
    /// is not for the quick way.
    #[inline(always)]
    pub(crate) fn may_pause_without(&self, requested: i64) -> bool {
        self.entries.first.requested == requested
            && self.pool.entry_tally.first().is_some_and(|tally| tally.pauses.load(Relaxed) > 0)
            && (self.entries.first.recents() > 0 || self.entries.first.passed_over > 0 || !self.front.is_none())
    }

    /// No room is ready any more, nor made so.
    pub(crate) fn stand_aside(&mut self) {
        self.count_ready();
        self.quick = Quick::No;
    }

    /// A block of the first entry, taken out of its structure, becomes an allocation of `size` bytes with *ready* room, in the
    /// pool in `pool_slot`.
    #[inline(always)]
    pub(crate) fn serve(&mut self, b: &Block, allocation: u64, bytes: u64, size: u64, pool_slot: u32) {
        self.entries.first.requested += size as i64;
        let counted = &self.share.quick;
        counted.store(counted.load(Relaxed) + 1, Relaxed);
        b.serve(allocation, bytes, size, pool_slot);
    }

    /// The same with one that was not recent, and may be too large to become so.
    #[inline(always)]
    pub(crate) fn serve_carved(&mut self, b: &Block, allocation: u64, bytes: u64, size: u64, pool_slot: u32) {
        self.serve(b, allocation, bytes, size, pool_slot);
        if bytes > self.entries.first.largest_recent {
            b.set_pass(0);
        }
    }

    /// A block of whatever entry, `e`, that was found for `reason` and is in no structure any more: the room is there. The handle.
    #[inline(always)]
    pub(crate) fn serve_found(
        &mut self,
        e: usize,
        (index, b): (u32, &Block),
        bytes: u64,
        size: u64,
        reason: Reason,
    ) -> u64 {
        let cached = &mut self.entries[e];
        let place = cached.passes(bytes).then_some(cached.place);
        cached.room.bytes -= bytes;
        cached.requested += size as i64;
        cached.counts.reuse[reason as usize] += 1;
        self.room.bytes -= bytes;
        self.make_ready();
        let allocs = &self.share.allocs;
        allocs.store(allocs.load(Relaxed) + 1, Relaxed);
        let generation = b.generation() + 1;
        let allocation = handle::encode(handle::Kind::Allocation, generation, index);
        b.set_generation(generation);
        b.set_requested(size);
        b.set_flags(live_flags(reason as u64, 0));
        b.set_pass(place.map_or(0, |place| pass(allocation, place)));
        allocation
    }

    /// The other way round: the allocation, for which `requested` bytes were asked, is free again, and in front, which is empty.
    #[inline(always)]
    pub(crate) fn rest(&mut self, b: &'static Block, allocation: u64, requested: i64) {
        let first = &mut self.entries.first;
        first.requested -= requested;
        first.counts.frees += 1;
        self.front.set(b, allocation, b.rest());
    }

    /// Whether a free in the first entry leaves a recent block and needs nothing else but room for its bytes.
    pub(crate) fn rests_on_free(&self) -> bool {
        let first = &self.entries.first;
        self.quick == Quick::Yes
            || first.largest_recent > 0 && !first.slow_free && !first.lists_empty && self.pool.is_open()
    }

    /// An allocation of another stream, in the first entry, is free and this stream's, `me`: the last of the recent blocks. Of its
    /// bytes nothing is said. `whole`: [`WHOLE`], or 0.
    pub(crate) fn rest_across(
        &mut self,
        me: StreamRef,
        (index, b): (u32, &'static Block),
        whole: u64,
        stock: &mut Stock,
    ) {
        self.retire_front();
        let PoolCache { pool, entries, .. } = self;
        let first = &mut entries.first;
        first.requested -= b.requested() as i64;
        first.counts.frees += 1;
        b.set_pass(0);
        first.keep_recent(pool, 0, me, (index, b), whole, stock);
        self.mind_most();
    }

    /// The block in front is put among the recent ones.
    #[inline(always)]
    pub(crate) fn retire_front(&mut self) {
        if let Some((index, b, bytes)) = self.front.take()
            && let Some(recents) = &mut self.entries.first.recents
        {
            recents.push(index, b, bytes);
            self.ready += bytes;
            self.mind_most();
        }
    }

    /// Whether there are so many ready bytes, with those of the block in front, which is then put among the recent ones.
    #[inline(always)]
    pub(crate) fn has_ready(&mut self, bytes: u64) -> bool {
        if bytes > self.ready {
            self.retire_front();
        }
        bytes <= self.ready
    }

    /// As many recent blocks as may be, and none in front: the next free is not for the quick way.
    #[inline(always)]
    pub(crate) fn mind_most(&mut self) {
        if self.entries.first.recents() == MOST {
            self.quick = Quick::No;
        }
    }

    /// Makes place in front, on the quick way. `false`: the recent blocks have to make way first.
    #[inline(always)]
    pub(crate) fn clear_front(&mut self) -> bool {
        if self.front.is_none() {
            return true;
        }
        match &mut self.entries.first.recents {
            Some(recents) if recents.count < MOST - 1 => {
                if let Some((index, b, bytes)) = self.front.take() {
                    recents.push(index, b, bytes);
                    self.ready += bytes;
                }
                true
            }
            _ => false,
        }
    }

    /// The ready bytes are counted as room.
    #[inline(always)]
    pub(crate) fn count_ready(&mut self) {
        self.retire_front();
        self.entries.first.room.bytes += self.ready;
        self.room.bytes += self.ready;
        self.ready = 0;
    }

    /// Makes the room ready that there is towards both marks, if that may be.
    #[inline(always)]
    pub(crate) fn make_ready(&mut self) {
        if self.quick != Quick::No || self.look_whether_quick() {
            let bytes = self.entries.first.room.bytes.min(self.room.bytes);
            self.entries.first.room.bytes -= bytes;
            self.room.bytes -= bytes;
            self.ready += bytes;
        }
    }

    #[inline(never)]
    fn look_whether_quick(&mut self) -> bool {
        let first = &self.entries.first;
        let open = first.largest_recent > 0
            && first.published
            && first.recents.as_ref().is_some_and(|recents| recents.count < MOST)
            && first.room.listed
            && self.room.listed
            && self.pool.is_open();
        self.quick = match (open, first.lists_empty) {
            (false, _) => Quick::No,
            (true, false) => Quick::Yes,
            (true, true) => Quick::Lists,
        };
        self.quick != Quick::No
    }

    /// Takes the stream's own block for `need` bytes of ready room out of its structure in the first entry, and cuts it: with the
    /// generation that it will have. Its record can have two more handles; if that of the block found can not, there is none.
    ///
    /// Here where one that has settled serves; else [`PoolCache::carve_ready_rest`] does it.
    #[inline(always)]
    pub(crate) fn carve_ready(
        &mut self,
        need: u64,
        me: StreamRef,
        stock: &mut Stock,
    ) -> Option<(u32, &'static Block, u32)> {
        let c = class_of(need);
        let mut recents = self.entries.first.recents.as_mut()?;
        if recents.has(c) {
            if let Some(found) = self.take_alike(c, need)? {
                return Some(found);
            }
            recents = self.entries.first.recents.as_mut()?;
        }
        let ahead = !self.front.is_none() && class_of(self.front.bytes()) >= c;
        if (ahead || recents.count > 0 && recents.has_from(c))
            && let Some((index, b)) = self.make_way_for(need, ahead, me, stock)
        {
            let generation = b.generation() + 1;
            return if generation < GENERATION_LIMIT { Some((index, b, generation)) } else { self.put_back(index, b) };
        }
        let EntryCache { bins: Some(bins), counts, .. } = &mut self.entries.first else {
            return self.carve_ready_rest(need, me, stock);
        };
        let bins = &mut **bins;
        let Some(lifted) = bins.lift_best(c, need) else { return self.carve_ready_rest(need, me, stock) };
        if lifted.1 & WHOLE != 0 {
            // Others may come before it.
            bins.put_down(lifted.0);
            return self.carve_ready_rest(need, me, stock);
        }
        let generation = lifted.0.1.generation() + 1;
        let (index, b) = cut_lifted(bins, counts, lifted, need, stock, |_| generation < GENERATION_LIMIT)?;
        Some((index, b, generation))
    }

    /// Takes out the recent block of exactly `need` bytes that was freed last, of those of its class `c` that are looked at, that in
    /// front included: with the generation that it will have. Without: its record cannot have it.
    #[inline(never)]
    #[allow(clippy::type_complexity)]
    fn take_alike(&mut self, c: usize, need: u64) -> Option<Option<(u32, &'static Block, u32)>> {
        self.retire_front();
        let found = self.entries.first.recents.as_mut()?.take(c, need, |b| b.generation() + 1 < GENERATION_LIMIT);
        found.ok().map(|found| found.map(|(index, b)| (index, b, b.generation() + 1)))
    }

    /// Takes out a block that has settled and is exactly `need` bytes large. If there is none, the recent blocks alike with `need` or
    /// larger give way, that in front if it is one of them (`ahead`).
    #[inline(never)]
    fn make_way_for(&mut self, need: u64, ahead: bool, me: StreamRef, stock: &mut Stock) -> Option<Taken> {
        let PoolCache { ready, front, entries: Entries { first, .. }, .. } = self;
        let EntryCache { recents: Some(recents), bins, counts, .. } = first else { return None };
        let bins = &mut **bins.get_or_insert_with(new_bins);
        let exact = bins.take_exact(class_of(need), need);
        if exact.is_none() {
            let first = if ahead { chain_front(&mut Some((front, ready)), recents) } else { NIL };
            counts.merges += give_way(recents, first, need, bins, me, stock);
        }
        exact
    }

    /// A block that was taken out, and whose record cannot have another handle, goes back.
    #[cold]
    #[inline(never)]
    fn put_back(&mut self, index: u32, b: &Block) -> Option<(u32, &'static Block, u32)> {
        self.entries.first.made_bins().insert_record(index, b);
        None
    }

    /// The same in all cases, once for all who call it seldom.
    #[inline(never)]
    pub(crate) fn carve_ready_rest(
        &mut self,
        need: u64,
        me: StreamRef,
        stock: &mut Stock,
    ) -> Option<(u32, &'static Block, u32)> {
        let c = class_of(need);
        if self.entries.first.recents.as_ref()?.has(c)
            && let Some(found) = self.take_alike(c, need)?
        {
            return Some(found);
        }
        let PoolCache { ready, front, entries: Entries { first, .. }, .. } = self;
        let EntryCache { recents: Some(recents), bins, counts, .. } = first else { return None };
        let mut generation = 0;
        let permit = |b: &Block| {
            generation = b.generation() + 1;
            generation < GENERATION_LIMIT
        };
        let bins = &mut **bins.get_or_insert_with(new_bins);
        let lifted = lift_settled(Some(recents), Some((front, ready)), bins, counts, c, need, me, stock)?;
        let (index, b) = cut_lifted(bins, counts, lifted, need, stock, permit)?;
        Some((index, b, generation))
    }

    /// Counts of an entry, what is not counted yet included.
    pub(crate) fn counts(&self, entry: usize) -> Counts {
        let own = &self.entries[entry];
        let mut counts = own.counts;
        counts.requested += own.requested;
        if entry == 0 {
            counts.reuse[Reason::SameStream as usize] += self.share.quick.load(Relaxed);
        }
        counts
    }
}

/// Makes `room` towards a mark `bytes` large, on the stream in `slot`, which is locked. `false`: the others that are not
/// locked have not enough, and the slow path must do it.
#[cold]
#[inline(never)]
fn widen(pool: &Pool, mark: usize, room: &mut Room, slot: u32, bytes: u64) -> bool {
    let mut missing = bytes.saturating_sub(room.bytes);
    let mut list = lock_patiently(&pool.roomy[mark]);
    let mut at = 0;
    // Others may have more than those in whose way another thread is; a mark rises only if nobody has.
    let mut passed_over = false;
    while let Some(&other) = list.get(at).filter(|_| missing > 0) {
        if other == slot {
            at += 1;
            continue;
        }
        let guard = if other == NO_STREAM { None } else { STREAMS.at(other).state.try_lock() };
        let Some(mut guard) = guard else {
            passed_over = true;
            at += 1;
            continue;
        };
        let Some(theirs) = guard.attach.room(pool, mark) else {
            list.swap_remove(at);
            continue;
        };
        let part = theirs.part_with(missing);
        theirs.listed = theirs.bytes > 0;
        if theirs.listed {
            at += 1;
        } else {
            list.swap_remove(at);
        }
        room.take(part);
        missing = missing.saturating_sub(part);
    }
    let enough = missing == 0 || !passed_over;
    if enough {
        pool.mark(mark).fetch_add(missing, Relaxed);
        room.bytes += missing;
    }
    // It may have more than it asked for, or some of it.
    if room.bytes > 0 && !std::mem::replace(&mut room.listed, true) {
        list.push(slot);
    }
    enough
}

/// As [`widen`], towards an entry's mark and the pool's.
#[cold]
#[inline(never)]
pub(crate) fn widen_both(pool: &Pool, entry: usize, own: &mut Room, all: &mut Room, slot: u32, bytes: u64) -> bool {
    // Who has room towards the entry's mark mostly has some towards the pool's.
    if own.bytes < bytes && all.bytes < bytes {
        let mut list = lock_patiently(&pool.roomy[entry]);
        let mut at = 0;
        while let Some(&other) = list.get(at).filter(|_| own.bytes < bytes) {
            at += 1;
            if other == slot || other == NO_STREAM {
                continue;
            }
            let Some(mut guard) = STREAMS.at(other).state.try_lock() else { continue };
            let missing = [bytes - own.bytes, bytes.saturating_sub(all.bytes)];
            let (parts, listed) = guard.attach.part_with_both(pool, entry, missing);
            own.take(parts[0]);
            all.take(parts[1]);
            if !listed {
                at -= 1;
                list.swap_remove(at);
            }
        }
        if own.bytes > 0 && !std::mem::replace(&mut own.listed, true) {
            list.push(slot);
        }
        drop(list);
        if all.bytes > 0 {
            list_room(pool, pool.entries.len(), all, slot);
        }
    }
    (own.bytes >= bytes || widen(pool, entry, own, slot, bytes))
        && (all.bytes >= bytes || widen(pool, pool.entries.len(), all, slot, bytes))
}

/// Puts a stream with room on the list for a mark.
#[inline(always)]
pub(crate) fn list_room(pool: &Pool, mark: usize, room: &mut Room, slot: u32) {
    if !room.listed {
        list_room_now(pool, mark, room, slot);
    }
}

#[cold]
#[inline(never)]
fn list_room_now(pool: &Pool, mark: usize, room: &mut Room, slot: u32) {
    room.listed = true;
    lock_patiently(&pool.roomy[mark]).push(slot);
}

impl Caches {
    /// The stream's free blocks of an entry that are not recent, if there are any.
    #[inline(always)]
    pub(crate) fn bins(&self, pool: &Pool, entry: usize) -> Option<&Bins> {
        match self.pools.get(pool.slot as usize) {
            Some(Some(cache)) if cache.id == pool.id => cache.entries[entry].bins.as_deref(),
            _ => None,
        }
    }

    /// The stream's part of an entry, if it has used the pool.
    #[inline(always)]
    pub(crate) fn entry(&mut self, pool: &Pool, entry: usize) -> Option<&mut EntryCache> {
        match self.pools.get_mut(pool.slot as usize) {
            Some(Some(cache)) if cache.id == pool.id => cache.entries.get_mut(entry),
            _ => None,
        }
    }

    /// Bytes of that room.
    pub(super) fn room_bytes(&self, pool: &Pool, mark: usize) -> u64 {
        match self.pools.get(pool.slot as usize) {
            Some(Some(cache)) if cache.id == pool.id => cache.room_bytes(mark),
            _ => 0,
        }
    }

    /// Hands over room towards an entry's mark and the pool's, as far as others lack some: how much, and whether there is some left
    /// towards the entry's, on whose list the stream is then only. (It stays on the pool's, with room or without.)
    #[inline(always)]
    pub(super) fn part_with_both(&mut self, pool: &Pool, entry: usize, missing: [u64; 2]) -> ([u64; 2], bool) {
        match self.pools.get_mut(pool.slot as usize) {
            Some(Some(cache)) if cache.id == pool.id => {
                cache.stand_aside();
                let (own, all) = (&mut cache.entries[entry].room, &mut cache.room);
                let part = |room: &mut Room, missing| if missing > 0 { room.part_with(missing) } else { 0 };
                let parts = [part(own, missing[0]), part(all, missing[1])];
                let listed = own.bytes > 0;
                own.listed = listed;
                // What is left serves it the quick way still.
                cache.make_ready();
                (parts, listed)
            }
            _ => ([0, 0], false),
        }
    }

    /// The room this stream has in a pool, if it has used it.
    pub(super) fn room(&mut self, pool: &Pool, mark: usize) -> Option<&mut Room> {
        let cache = self.pools.get_mut(pool.slot as usize)?.as_mut()?;
        (cache.id == pool.id).then(|| cache.room(mark))
    }
}

/// In lists of streams with room: what belongs to none, under the slow lock.
pub(super) const NO_STREAM: u32 = u32::MAX;

/// Makes the cache of `pool` on the stream in `slot`, whose caches these are, if there is none. It has nothing in front then.
#[inline(never)]
pub(super) fn prepare_cache(caches: &mut Vec<Option<Box<PoolCache>>>, slot: u32, pool: &Arc<Pool>) {
    let index = pool.slot as usize;
    if caches.len() <= index {
        caches.resize_with(index + 1, || None);
    }
    let stale = caches[index].as_ref().is_none_or(|cache| cache.id != pool.id);
    if stale {
        pool.attached.lock().push(slot);
        if pool.is_cuda() && pool.device.cuda().is_some() {
            STREAMS.at(slot).watch.fetch_or(native::WANTED, Relaxed);
        }
        debug_assert!(caches[index].as_ref().is_none_or(|old| old.pool.destroyed.load(Relaxed)), "a pool is replaced");
        caches[index] = Some(Box::new(PoolCache::new(pool)));
    }
    caches[index].as_mut().expect("just made").retire_fronts();
}

impl EntryCache {
    /// Whether a block of so many bytes gets a pass.
    #[inline(always)]
    pub(crate) fn passes(&self, bytes: u64) -> bool {
        bytes <= self.largest_recent || !self.carves
    }

    /// The bins to put a free block into; makes the stream known to the entry.
    #[inline(always)]
    pub(crate) fn bins_to_fill(&mut self, pool: &Pool, entry: usize, me: StreamRef) -> &mut Bins {
        self.publish(pool, entry, me);
        self.made_bins()
    }

    /// The bins, made if there are none.
    #[inline(always)]
    pub(crate) fn made_bins(&mut self) -> &mut Bins {
        self.bins.get_or_insert_with(new_bins)
    }

    /// Makes the stream known to the entry.
    #[inline(always)]
    pub(crate) fn publish(&mut self, pool: &Pool, entry: usize, me: StreamRef) {
        if !self.published {
            self.publish_now(pool, entry, me);
        }
    }

    #[cold]
    #[inline(never)]
    fn publish_now(&mut self, pool: &Pool, entry: usize, me: StreamRef) {
        self.published = true;
        pool.published[entry].lock().push(me);
    }

    /// A block that the stream has just freed becomes a recent one. `whole`: [`WHOLE`], or 0.
    #[inline(always)]
    pub(crate) fn keep_recent(
        &mut self,
        pool: &Pool,
        entry: usize,
        me: StreamRef,
        (index, b): (u32, &'static Block),
        whole: u64,
        stock: &mut Stock,
    ) {
        if self.recents.as_ref().is_none_or(|recents| recents.count == MOST) {
            // Not to be merged with: it is none of those that make way.
            b.set_flags(RECENT);
            self.make_way(me, stock);
        }
        b.set_flags(FREE | RECENT | whole);
        self.whole |= whole != 0;
        if let Some(recents) = &mut self.recents {
            recents.push(index, b, b.size());
        }
        self.publish(pool, entry, me);
    }

    /// Free blocks that are in no structure are the stream's own, free at `at`, and merge.
    #[inline(never)]
    pub(crate) fn take_back(&mut self, pool: &Pool, entry: usize, at: At, blocks: &[u32], stock: &mut Stock) {
        self.publish(pool, entry, at.stream);
        let bins = &mut **self.bins.get_or_insert_with(new_bins);
        self.counts.merges += settle_all(blocks, at, bins, stock);
    }

    /// A block that the stream has just freed is too large to become a recent one: it merges.
    #[inline(never)]
    pub(crate) fn pass_over(
        &mut self,
        pool: &Pool,
        entry: usize,
        me: StreamRef,
        (index, b): (u32, &'static Block),
        stock: &mut Stock,
    ) {
        b.set_flags(FREE);
        self.passed_over = self.passed_over.saturating_add(1);
        self.publish(pool, entry, me);
        let bins = self.bins.get_or_insert_with(new_bins);
        self.counts.merges += insert_merged(index, b, me, bins, None, stock);
    }

    #[cold]
    #[inline(never)]
    fn make_way(&mut self, me: StreamRef, stock: &mut Stock) {
        self.settle(me, stock);
        self.recents.get_or_insert_with(|| Box::new(Recents::new()));
    }

    /// How many recent blocks there are.
    #[inline(always)]
    pub(crate) fn recents(&self) -> u32 {
        self.recents.as_ref().map_or(0, |recents| recents.count)
    }

    /// Merges all recent blocks: they are the stream's own like any other.
    pub(crate) fn settle(&mut self, me: StreamRef, stock: &mut Stock) {
        if let EntryCache { recents: Some(recents), bins, counts, .. } = self
            && recents.count > 0
        {
            counts.merges += give_way_rest(recents, NIL, 0, bins.get_or_insert_with(new_bins), me, stock);
        }
    }

    /// Takes the stream's own block for `need` out of its structure, if there is one.
    pub(crate) fn take_own(&mut self, need: u64, me: StreamRef, stock: &mut Stock) -> u32 {
        if let Some(recents) = &mut self.recents
            && let Ok(Some((index, b))) = recents.take(class_of(need), need, |_| true)
        {
            b.drop_flag(RECENT);
            return index;
        }
        let EntryCache { recents, bins, counts, .. } = self;
        let bins = bins.get_or_insert_with(new_bins);
        let found = match self.exact {
            true => bins.take_exact(class_of(need), need),
            false => lift_settled(recents.as_deref_mut(), None, bins, counts, class_of(need), need, me, stock)
                .map(|lifted| bins.take_lifted(lifted)),
        };
        found.map_or(NIL, |(index, _)| index)
    }

    /// Takes the stream's own block for `need` bytes out of its structure, in an entry whose blocks are carved, and cuts it.
    /// `permit`: whether the block found may serve; without, it goes back, and there is none.
    pub(crate) fn carve_own(
        &mut self,
        need: u64,
        me: StreamRef,
        stock: &mut Stock,
        mut permit: impl FnMut(&mut Room, &'static Block) -> bool,
    ) -> Option<Taken> {
        let EntryCache { recents, bins, room, counts, .. } = self;
        let c = class_of(need);
        if let Some(recents) = recents
            && let Some(found) = recents.take(c, need, |b| permit(room, b)).ok()?
        {
            return Some(found);
        }
        let bins = &mut **bins.get_or_insert_with(new_bins);
        let lifted = lift_settled(recents.as_deref_mut(), None, bins, counts, c, need, me, stock)?;
        cut_lifted(bins, counts, lifted, need, stock, |b| permit(room, b))
    }
}

/// Cuts `need` bytes off a block that was lifted out of `bins`; what is left takes its place there. If `permit` does not let it, or
/// there is no record left, it goes back.
#[inline(always)]
pub(super) fn cut_lifted(
    bins: &mut Bins,
    counts: &mut Counts,
    ((index, b), own, hole): Lifted,
    need: u64,
    stock: &mut Stock,
    permit: impl FnOnce(&'static Block) -> bool,
) -> Option<Taken> {
    let bytes = Block::size_in(own);
    let cut = if permit(b) { cut_sized(index, b, own, need, stock) } else { Err(()) };
    match cut {
        Ok(None) => {
            bins.close(hole);
            bins.count -= 1;
        }
        Ok(Some((rest, r))) => {
            bins.put(hole, rest, r, bytes - need);
            counts.splits += 1;
        }
        Err(()) => {
            bins.put(hole, index, b, bytes);
            return None;
        }
    }
    bins.bytes -= need;
    Some((index, b))
}

/// Lifts the best for `need`, of class `c`, of a stream's own blocks that are not recent out of `bins`; recent ones give way as
/// far as it takes. `front`: the block in front, if one may be there, which is of another size, and where its bytes go when they are
/// ready.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn lift_settled(
    recents: Option<&mut Recents>,
    mut front: Option<(&mut Front, &mut u64)>,
    bins: &mut Bins,
    counts: &mut Counts,
    c: usize,
    need: u64,
    me: StreamRef,
    stock: &mut Stock,
) -> Option<Lifted> {
    let best = |bins: &mut Bins| {
        let lifted = bins.lift_best(c, need)?;
        Some(if lifted.1 & WHOLE == 0 { lifted } else { bins.lift_rather(lifted.0, need) })
    };
    let Some(recents) = recents else { return best(bins) };
    let ahead = front.as_ref().is_some_and(|(front, _)| !front.is_none() && class_of(front.bytes()) >= c);
    // (Where none gives way, the best is of exactly that size if one is.)
    if ahead || recents.count > 0 && recents.has_from(c) {
        if let Some(exact) = bins.lift_exact(c, need) {
            return Some(exact);
        }
        let first = if ahead { chain_front(&mut front, recents) } else { NIL };
        counts.merges += give_way_rest(recents, first, need, bins, me, stock);
    }
    if let Some(lifted) = best(bins) {
        return Some(lifted);
    }
    let first = chain_front(&mut front, recents);
    if recents.count == 0 {
        return None;
    }
    counts.merges += give_way_rest(recents, first, 0, bins, me, stock);
    best(bins)
}

/// The block in front becomes a chain of its own, and its bytes are ready. Without one: [`NIL`].
#[inline(always)]
fn chain_front(front: &mut Option<(&mut Front, &mut u64)>, recents: &mut Recents) -> u32 {
    match front.as_mut().and_then(|(front, ready)| Some((front.take()?, ready))) {
        None => NIL,
        Some(((index, b, bytes), ready)) => {
            **ready += bytes;
            recents.count += 1;
            b.set_link(NIL);
            index
        }
    }
}

/// Merges the recent blocks alike with `from` or larger (0: all): they are the stream's own like any other. `at`: a chain of some
/// that come first. Returns how often they merged.
#[inline(always)]
fn give_way(recents: &mut Recents, mut at: u32, from: u64, bins: &mut Bins, me: StreamRef, stock: &mut Stock) -> u64 {
    let least = least_alike(from);
    let blocks = bins.count + u64::from(recents.count);
    let mut classes = recents.take_classes(class_of(from));
    loop {
        while let Some(b) = BLOCKS.get(at) {
            let next = b.link();
            recents.count -= 1;
            settle_one(at, b, b.size_flags(), me, least, bins, stock);
            at = next;
        }
        match recents.next_of(&mut classes) {
            Some(c) if recents.count > 0 => at = recents.take_chain(c),
            _ => break,
        }
    }
    recents.put_classes_back(classes);
    // Where two merge there is one fewer.
    blocks - bins.count - u64::from(recents.count)
}

/// The same, once for all who call it seldom.
#[inline(never)]
fn give_way_rest(recents: &mut Recents, at: u32, from: u64, bins: &mut Bins, me: StreamRef, stock: &mut Stock) -> u64 {
    give_way(recents, at, from, bins, me, stock)
}

#[cold]
#[inline(never)]
fn new_bins() -> Box<Bins> {
    Box::new(Bins::new())
}

/// In an entry whose streams note seams.
#[cold]
fn new_noting_bins() -> Box<Bins> {
    let mut bins = new_bins();
    bins.seams.start_empty();
    bins
}
