//! What a device and its pools keep, and under which lock.
//!
//! Locks, outermost first: the device's serialising lock (only while an observer is installed), the device's *slow*
//! lock, stream locks (any number, only under the slow lock; without it, one), then leaves. The hot path takes one
//! stream's lock and nothing else. Caches of free blocks hang on the stream, under the stream's own lock; whatever
//! several streams may use hangs on the pool, under the slow lock.

use super::Reason;
use super::addresses::Addresses;
use super::bins::{Bins, Lifted, Taken};
use super::block::{
    BLOCKS, Block, FREE, GATHERED, GENERATION_LIMIT, LIVE, NIL, RECENT, Stock, UNUSED, WHOLE, block, live_flags, pass,
    place,
};
use super::classes::{class_of, least_alike};
use super::config::{MAX_PAGE, MemoryPoolConfig, PoolConfig};
use super::elsewhere::Kept;
use super::front::Front;
use super::mapped::Mapping;
use super::observer::{Event, Observer};
use super::page::{self, Page, page};
use super::points::PointSets;
use super::recents::{MOST, Recents};
use super::seams::Seams;
use crate::checks::{SlowGuard, SlowMutex};
use crate::device_source::cuda::CudaDevice;
use crate::device_source::{DeviceKind, Grant, ModelOptions, PageSource, Source};
use crate::error::Result;
use crate::few::Few;
use crate::handle::{self, DeviceId, PoolId};
use crate::lock::StreamMutexGuard;
use crate::order::{self, At, Clock, Order, State, StreamRef};
use crate::rules;
use crate::runtime::native::{self, NativeStream};
use crate::slab::{Slab, SlotMap};
use parking_lot::{Mutex, MutexGuard, ReentrantMutex, ReentrantMutexGuard, RwLock};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{Index, IndexMut};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
    fence,
};

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
    /// What the stream was ordered after when blocks last came back to it, and the entry's [`EntryShared::multi_changes`] then.
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
    fn total(&self) -> u64 {
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
    fn take(&mut self, bytes: u64) {
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
    fn take_room(&mut self, entry: usize, bytes: u64) -> bool {
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
    fn room_bytes(&self, pool: &Pool, mark: usize) -> u64 {
        match self.pools.get(pool.slot as usize) {
            Some(Some(cache)) if cache.id == pool.id => cache.room_bytes(mark),
            _ => 0,
        }
    }

    /// Hands over room towards an entry's mark and the pool's, as far as others lack some: how much, and whether there is some left
    /// towards the entry's, on whose list the stream is then only. (It stays on the pool's, with room or without.)
    #[inline(always)]
    fn part_with_both(&mut self, pool: &Pool, entry: usize, missing: [u64; 2]) -> ([u64; 2], bool) {
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
    fn room(&mut self, pool: &Pool, mark: usize) -> Option<&mut Room> {
        let cache = self.pools.get_mut(pool.slot as usize)?.as_mut()?;
        (cache.id == pool.id).then(|| cache.room(mark))
    }
}

/// In lists of streams with room: what belongs to none, under the slow lock.
const NO_STREAM: u32 = u32::MAX;

/// Counts kept per stream and added up when asked for. Differences may go below zero on one stream.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) requested: i64,
    pub(crate) frees: u64,
    /// By reason. Together: the allocations.
    pub(crate) reuse: [u64; 6],
    pub(crate) splits: u64,
    pub(crate) merges: u64,
    pub(crate) unordered_frees: u64,
    pub(crate) internal_waits: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Counts) {
        self.requested += other.requested;
        self.frees += other.frees;
        for (mine, theirs) in self.reuse.iter_mut().zip(other.reuse) {
            *mine += theirs;
        }
        self.splits += other.splits;
        self.merges += other.merges;
        self.unordered_frees += other.unordered_frees;
        self.internal_waits += other.internal_waits;
    }
    pub(crate) fn allocs(&self) -> u64 {
        self.reuse.iter().sum()
    }
}

/// Which kind an entry is, for the code that only needs to know that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Exclusive,
    Direct,
    Sliced,
    Cuda,
    Mapped,
}

/// An entry's configuration, worked out once.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    /// Largest request accepted, and largest need (page bytes of a sliced entry).
    pub(crate) accept: u64,
    pub(crate) accept_need: u64,
    /// Bytes of a page (Sliced) or of a chunk (Mapped).
    pub(crate) page_size: u64,
    /// Addresses a Mapped entry reserves at a time.
    pub(crate) range_size: u64,
    /// Frees have to note when they leave a chunk idle, which the hot path does not do.
    pub(crate) slow_free: bool,
    /// Cap in pages (Sliced), chunks (Mapped) or bytes (Cuda).
    pub(crate) cap: u64,
    pub(crate) reclaim_at: u64,
    pub(crate) period: Option<u64>,
}

impl Entry {
    pub(crate) fn new(config: &MemoryPoolConfig) -> Entry {
        let base = Entry {
            kind: Kind::Direct,
            accept: u64::MAX,
            accept_need: u64::MAX,
            page_size: 0,
            range_size: 0,
            slow_free: false,
            cap: u64::MAX,
            reclaim_at: u64::MAX,
            period: None,
        };
        match *config {
            MemoryPoolConfig::Exclusive { max_alloc_size, dealloc_period } => {
                Entry { kind: Kind::Exclusive, accept: max_alloc_size, period: dealloc_period, ..base }
            }
            MemoryPoolConfig::Direct { reclaim_at } => Entry { reclaim_at: reclaim_at.unwrap_or(u64::MAX), ..base },
            MemoryPoolConfig::Sliced { page_size, max_slice_size, max_pool_size, dealloc_period } => Entry {
                kind: Kind::Sliced,
                accept: max_slice_size.unwrap_or(page_size),
                accept_need: page_size,
                page_size,
                cap: max_pool_size.map_or(u64::MAX, |cap| cap / page_size),
                period: dealloc_period,
                ..base
            },
            MemoryPoolConfig::Cuda { max_pool_size } => {
                Entry { kind: Kind::Cuda, cap: max_pool_size.unwrap_or(u64::MAX), ..base }
            }
            MemoryPoolConfig::Mapped { range_size, chunk_size, max_pool_size, dealloc_period } => Entry {
                kind: Kind::Mapped,
                page_size: chunk_size,
                range_size,
                cap: max_pool_size.map_or(u64::MAX, |cap| cap / chunk_size),
                period: dealloc_period,
                slow_free: dealloc_period.is_some(),
                ..base
            },
        }
    }
    #[inline(always)]
    pub(crate) fn accepts(&self, requested: u64, need: u64) -> bool {
        requested <= self.accept && need <= self.accept_need
    }
    /// Blocks are carved from pages, split and merged.
    #[inline(always)]
    pub(crate) fn carves(&self) -> bool {
        matches!(self.kind, Kind::Sliced | Kind::Cuda | Kind::Mapped)
    }
    /// A block of so many bytes stays whole when it is freed on another stream than it was allocated on.
    pub(crate) fn stays_whole(&self, bytes: u64) -> bool {
        self.kind == Kind::Mapped && bytes >= self.page_size && !rules::off(rules::WHOLE_BLOCKS)
    }
    /// A stream's last frees stay unmerged for a while.
    pub(crate) fn keeps_recent(&self) -> bool {
        self.carves() && !self.slow_free && !rules::off(rules::MERGE)
    }
    pub(crate) fn page_bytes(&self, need: u64, granularity: u64) -> Option<u64> {
        match self.kind {
            Kind::Sliced => Some(self.page_size),
            Kind::Exclusive | Kind::Direct => need.checked_next_multiple_of(granularity),
            Kind::Cuda => need.checked_next_multiple_of(super::config::CUDA_PAGE),
            Kind::Mapped => None,
        }
    }
}

/// Figures of a pool or an entry that change only under the slow lock, and the mark of used bytes (see [`Room`]).
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) used_high: AtomicU64,
    pub(crate) reserved: AtomicU64,
    pub(crate) reserved_high: AtomicU64,
    pub(crate) pages: AtomicU64,
    pub(crate) pages_high: AtomicU64,
    pub(crate) page_allocs: AtomicU64,
    pub(crate) page_frees: AtomicU64,
    pub(crate) page_refusals: AtomicU64,
    pub(crate) release_failures: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) progress_queries: AtomicU64,
    pub(crate) host_syncs: AtomicU64,
    /// Chunks that came with another in one call to the device.
    pub(crate) batched: AtomicU64,
    /// Chunks that were mapped elsewhere.
    pub(crate) chunk_moves: AtomicU64,
    /// Ranges of addresses reserved.
    pub(crate) ranges: AtomicU64,
    /// How often a Mapped entry may pause still; changed under the slow lock.
    pub(crate) pauses: AtomicU32,
    /// The largest block that its free leaves recent, 0 if none is; changed only while nothing is live in the entry.
    pub(crate) largest_recent: AtomicU64,
    /// Streams note seams ([`super::seams`]); changed under the slow lock.
    pub(crate) notes_seams: AtomicBool,
}

impl Tally {
    pub(crate) fn of(entry: &Entry) -> Tally {
        let largest_recent = if entry.keeps_recent() { u64::MAX } else { 0 };
        Tally { largest_recent: largest_recent.into(), ..Default::default() }
    }

    /// A page is being asked for: its quota is taken.
    pub(crate) fn ask(&self, bytes: u64) {
        self.reserved.fetch_add(bytes, Relaxed);
        self.pages.fetch_add(1, Relaxed);
    }
    /// The device granted it.
    pub(crate) fn granted(&self) {
        self.reserved_high.fetch_max(self.reserved.load(Relaxed), Relaxed);
        self.pages_high.fetch_max(self.pages.load(Relaxed), Relaxed);
        self.page_allocs.fetch_add(1, Relaxed);
    }
    /// The device refused it.
    pub(crate) fn refused(&self, bytes: u64) {
        self.reserved.fetch_sub(bytes, Relaxed);
        self.pages.fetch_sub(1, Relaxed);
        self.page_refusals.fetch_add(1, Relaxed);
    }
    /// `count` chunks of `bytes` each are being asked for: their quota is taken.
    pub(crate) fn ask_chunks(&self, count: u64, bytes: u64) {
        self.reserved.fetch_add(count * bytes, Relaxed);
        self.pages.fetch_add(count, Relaxed);
    }
    /// The device granted them in one call.
    pub(crate) fn granted_chunks(&self, count: u64) {
        self.granted();
        self.page_allocs.fetch_add(count - 1, Relaxed);
        self.batched.fetch_add(count - 1, Relaxed);
    }
    /// The device refused them in one call.
    pub(crate) fn refused_chunks(&self, count: u64, bytes: u64) {
        self.reserved.fetch_sub(count * bytes, Relaxed);
        self.pages.fetch_sub(count, Relaxed);
        self.page_refusals.fetch_add(1, Relaxed);
    }
    pub(crate) fn shrink(&self, bytes: u64) {
        self.reserved.fetch_sub(bytes, Relaxed);
        self.pages.fetch_sub(1, Relaxed);
        self.page_frees.fetch_add(1, Relaxed);
    }
}

/// Called before an allocation fails; `true`: something was given back, try again.
pub type OutOfMemoryCallback = Arc<dyn Fn(&super::OutOfMemory) -> bool + Send + Sync>;

pub(crate) struct Pool {
    pub(crate) id: PoolId,
    pub(crate) slot: u32,
    pub(crate) device: Arc<Device>,
    pub(crate) config: PoolConfig,
    pub(crate) entries: Box<[Entry]>,
    pub(crate) follow: AtomicBool,
    pub(crate) opportunistic: AtomicBool,
    pub(crate) internal: AtomicBool,
    pub(crate) threshold: AtomicU64,
    /// Mapped entries became ladders, since the device cannot map.
    pub(crate) fell_back: bool,
    pub(crate) destroyed: AtomicBool,
    /// Not 0: the hot path stands aside (destroyed, or out-of-memory callbacks are running).
    pub(crate) aside: AtomicU32,
    /// Successful allocations that belong to no stream that has a share.
    pub(crate) other_allocations: AtomicU64,
    /// What each stream with a cache of this pool counted. A leaf.
    pub(crate) shares: Mutex<Vec<Arc<Share>>>,
    /// How many of these there are.
    pub(crate) sharing: AtomicUsize,
    /// Per entry, then for the pool: streams that may have room. A leaf.
    pub(crate) roomy: Box<[Mutex<Vec<u32>>]>,
    pub(crate) tally: Tally,
    pub(crate) entry_tally: Box<[Tally]>,
    /// Per entry: streams that may hold free blocks of it. A leaf.
    pub(crate) published: Box<[Mutex<Vec<StreamRef>>]>,
    /// Per entry: pages that had no live block at some time. A leaf.
    pub(crate) empties: Box<[Mutex<Vec<u32>>]>,
    /// Streams that have a cache of this pool. A leaf.
    pub(crate) attached: Mutex<Vec<u32>>,
    pub(crate) names: Mutex<SlotMap<u32, String>>,
    pub(crate) users: Mutex<SlotMap<u32, Few<StreamRef, 2>>>,
    pub(crate) callback: Mutex<Option<OutOfMemoryCallback>>,
    /// Under the device's slow lock; a mutex of its own only so that the compiler can see it.
    pub(crate) shared: Mutex<PoolShared>,
    pub(crate) accesses: super::access::Table,
    /// A *driver* pool: the driver's own pool, and its blocks' pointers.
    pub(crate) shadow: Option<super::driver::DriverPool>,
}

impl Pool {
    /// An entry's mark of used bytes, or with the number of entries the pool's.
    pub(crate) fn mark(&self, mark: usize) -> &AtomicU64 {
        match self.entry_tally.get(mark) {
            Some(tally) => &tally.used_high,
            None => &self.tally.used_high,
        }
    }

    /// Successful allocations so far.
    pub(crate) fn allocations(&self) -> u64 {
        let shares = self.shares.lock();
        shares.iter().fold(self.other_allocations.load(Relaxed), |sum, share| sum + share.total())
    }

    /// The same, for the holder of a stream's lock, whose share this is: it needs no other lock while there is no other share.
    #[inline(always)]
    pub(crate) fn allocations_seen_by(&self, share: &Share) -> u64 {
        match self.sharing.load(Relaxed) {
            1 => self.other_allocations.load(Relaxed) + share.total(),
            _ => self.allocations(),
        }
    }

    /// A stream that comes to the pool counts its own.
    fn add_share(&self) -> Arc<Share> {
        let share: Arc<Share> = Arc::default();
        let mut shares = self.shares.lock();
        shares.push(share.clone());
        self.sharing.store(shares.len(), Relaxed);
        share
    }

    /// A stream's share is counted with what belongs to no stream from now on.
    pub(crate) fn drop_share(&self, share: &Arc<Share>) {
        let mut shares = self.shares.lock();
        shares.retain(|other| !Arc::ptr_eq(other, share));
        self.other_allocations.fetch_add(share.total(), Relaxed);
        self.sharing.store(shares.len(), Relaxed);
    }

    /// The hot path may be taken.
    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        self.aside.load(Relaxed) == 0 && !self.device.serial.load(Relaxed)
    }
    /// The same, on a stream that is ready: none is while an observer is installed.
    #[inline(always)]
    pub(crate) fn is_open_to_ready(&self) -> bool {
        self.aside.load(Relaxed) == 0
    }
    /// The hot path is not taken any more, until as many [`Pool::step_back`].
    pub(crate) fn step_aside(&self, slow: &mut Slow<'_>) {
        self.aside.fetch_add(1, Relaxed);
        for slot in slow.lock_attached(self) {
            if let Some(Some(cache)) = slow.state(slot).attach.pools.get_mut(self.slot as usize)
                && cache.id == self.id
            {
                cache.stand_aside();
            }
        }
    }
    pub(crate) fn step_back(&self) {
        self.aside.fetch_sub(1, Relaxed);
    }
}

#[derive(Default)]
pub(crate) struct PoolShared {
    /// Of host-ordered frees and of streams that are gone, towards the pool's mark.
    pub(crate) room: Room,
    pub(crate) entries: Vec<EntryShared>,
    /// Free points of multi blocks.
    pub(crate) points: PointSets,
    pub(crate) stock: Stock,
    /// Memory for a list of blocks.
    pub(crate) listed: Vec<u32>,
}

/// The streams on which an entry's blocks have been allocated and freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sole {
    None,
    One(StreamRef),
    /// Several, or the host.
    Many,
}

impl Sole {
    pub(crate) fn is_several(self) -> bool {
        self == Sole::Many
    }
}

pub(crate) struct EntryShared {
    /// As the pool's.
    pub(crate) room: Room,
    /// Observed free blocks, and never-used ones unless the entry is Cuda.
    pub(crate) observed: Bins,
    /// Never-used blocks of a Cuda entry.
    pub(crate) unused: Bins,
    /// Free blocks of several points, which `PoolShared::points` has.
    pub(crate) multi: Bins,
    /// Counts what came to `multi`, and what has fewer points there than it had.
    pub(crate) multi_changes: u64,
    pub(crate) pages: BTreeSet<u32>,
    /// Where free blocks touch.
    pub(crate) seams: Seams,
    /// What a Mapped entry has reserved and mapped.
    pub(crate) mapped: Mapping,
    /// On which streams its blocks are allocated and freed.
    pub(crate) sole: Sole,
    /// A free block has been whole.
    pub(crate) whole: bool,
    /// What host-ordered calls and streams that are gone counted.
    pub(crate) counts: Counts,
}

impl EntryShared {
    pub(crate) fn new() -> EntryShared {
        EntryShared {
            room: Room::default(),
            observed: Bins::new(),
            unused: Bins::new(),
            multi: Bins::new(),
            multi_changes: 0,
            pages: BTreeSet::new(),
            seams: Seams::default(),
            mapped: Mapping::default(),
            sole: Sole::None,
            whole: false,
            counts: Counts::default(),
        }
    }
    /// A block was allocated or freed: on this stream, or not in the order of one only. (A stream does neither by the hot path
    /// before it has done so here.)
    pub(crate) fn note_order(&mut self, pool: &Pool, entry: usize, stream: Option<StreamRef>) {
        self.sole = match (self.sole, stream) {
            (Sole::None, Some(stream)) => Sole::One(stream),
            (Sole::One(sole), Some(stream)) if sole == stream => return,
            (Sole::Many, _) => return,
            _ => Sole::Many,
        };
        if self.sole == Sole::Many {
            pool.entry_tally[entry].pauses.store(0, Relaxed);
        }
    }
    /// Bytes of free blocks that belong to no single stream.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.observed.bytes + self.unused.bytes + self.multi.bytes
    }
}

impl PoolShared {
    /// As [`PoolCache::room`].
    pub(crate) fn room(&mut self, mark: usize) -> &mut Room {
        match self.entries.get_mut(mark) {
            Some(entry) => &mut entry.room,
            None => &mut self.room,
        }
    }

    /// Puts a free block of these points, in no structure, among the multi blocks.
    pub(crate) fn insert_multi(&mut self, entry: usize, index: u32, points: &[At]) {
        self.points.insert(index, points);
        let own = &mut self.entries[entry];
        own.multi.insert(index);
        own.observed.note_beside(index, block(index));
        own.multi_changes += 1;
    }

    /// Gives `bytes` of an entry back as room that belongs to no stream.
    pub(crate) fn give_room(&mut self, pool: &Pool, entry: usize, bytes: u64) {
        for mark in [entry, pool.entries.len()] {
            self.add_room(pool, mark, bytes);
        }
    }

    /// The room of a stream that is gone belongs to none.
    pub(crate) fn take_over_room(&mut self, pool: &Pool, cache: &PoolCache) {
        for mark in 0..=pool.entries.len() {
            self.add_room(pool, mark, cache.room_bytes(mark));
        }
    }

    /// Gives `bytes` back as room that belongs to no stream, towards one mark only.
    pub(crate) fn add_room(&mut self, pool: &Pool, mark: usize, bytes: u64) {
        let room = self.room(mark);
        room.bytes += bytes;
        if bytes > 0 {
            list_room(pool, mark, room, NO_STREAM);
        }
    }
}

/// The device's pages and what model addresses they get; under the slow lock.
pub(crate) struct Granted {
    pub(crate) grants: SlotMap<u32, Grant>,
    pub(crate) addresses: Addresses,
}

pub(crate) struct Device {
    pub(crate) id: DeviceId,
    pub(crate) slot: u32,
    pub(crate) uid: u32,
    pub(crate) kind: DeviceKind,
    pub(crate) options: ModelOptions,
    pub(crate) source: Source,
    pub(crate) order: Order,
    pub(crate) slow: SlowMutex,
    pub(crate) granted: Mutex<Granted>,
    /// Pools with anything left, in order of creation. A leaf.
    pub(crate) pools: Mutex<Vec<Arc<Pool>>>,
    pub(crate) serial: AtomicBool,
    serial_lock: ReentrantMutex<()>,
    observer: RwLock<Option<Arc<dyn Observer>>>,
    /// Pages by model address and, where there is backing, by pointer.
    pub(crate) by_address: RwLock<BTreeMap<u64, u32>>,
    pub(crate) by_pointer: RwLock<BTreeMap<u64, u32>>,
    /// Its handle is closed: no one is left to synchronise it as a whole.
    pub(crate) closed: AtomicBool,
    pub(crate) per_thread: Mutex<SlotMap<u64, StreamRef>>,
    /// CUDA: streams by the driver's handle. A leaf.
    pub(crate) adopted: RwLock<SlotMap<u64, StreamRef>>,
    /// Destroyed streams that may not be forgotten yet, in the order in which they are looked at. A leaf.
    pub(crate) ended: Mutex<VecDeque<StreamRef>>,
    /// Opaque model device: the answers that a trace recorded inside the call being replayed. A leaf.
    pub(crate) script: Mutex<Script>,
    /// Opaque: the stream of no one whose operations are the host-ordered frees. A leaf.
    pub(crate) timeline: Mutex<Option<StreamRef>>,
    /// CUDA: a stream's identity is verified with the driver on every call.
    pub(crate) checked: bool,
    /// CUDA: the driver is asked on every call whether the stream is capturing, unless the pool waives it.
    pub(crate) capture_check: bool,
    /// Why this device was picked.
    pub(crate) why: String,
    pub(crate) in_callback: Mutex<Vec<(std::thread::ThreadId, PoolId)>>,
    pub(crate) page_allocs: AtomicU64,
    pub(crate) page_frees: AtomicU64,
    pub(crate) reserved: AtomicU64,
}

impl Device {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(
        id: DeviceId,
        slot: u32,
        uid: u32,
        source: Source,
        options: ModelOptions,
        order: Order,
        checked: bool,
        capture_check: bool,
        why: String,
    ) -> Device {
        Device {
            id,
            slot,
            uid,
            kind: if source.cuda().is_some() { DeviceKind::Cuda } else { DeviceKind::Model },
            source,
            options,
            order,
            slow: SlowMutex::new(()),
            granted: Mutex::new(Granted {
                grants: SlotMap::default(),
                addresses: Addresses::new(options.addresses, options.page_granularity),
            }),
            pools: Mutex::new(Vec::new()),
            serial: AtomicBool::new(false),
            serial_lock: ReentrantMutex::new(()),
            observer: RwLock::new(None),
            by_address: RwLock::new(BTreeMap::new()),
            by_pointer: RwLock::new(BTreeMap::new()),
            closed: AtomicBool::new(false),
            per_thread: Mutex::default(),
            adopted: RwLock::default(),
            ended: Mutex::default(),
            script: Mutex::new(Script::default()),
            timeline: Mutex::new(None),
            checked,
            capture_check,
            why,
            in_callback: Mutex::new(Vec::new()),
            page_allocs: AtomicU64::new(0),
            page_frees: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
        }
    }

    /// The CUDA device beneath, if it is one.
    #[inline(always)]
    pub(crate) fn cuda(&self) -> Option<&Arc<CudaDevice>> {
        self.source.cuda()
    }

    /// The CUDA device beneath, if it is one, usable.
    ///
    /// # Errors
    /// DEVICE_POISONED after a sticky error.
    pub(crate) fn sound_cuda(&self) -> Result<Option<&Arc<CudaDevice>>> {
        let cuda = self.source.cuda();
        match cuda.and_then(|cuda| cuda.poison().map(|code| cuda.poisoned_error(code))) {
            Some(error) => Err(error),
            None => Ok(cuda),
        }
    }

    /// Holds the serialising lock while an observer is installed.
    #[inline(always)]
    pub(crate) fn enter(&self) -> Option<ReentrantMutexGuard<'_, ()>> {
        if self.serial.load(Relaxed) { Some(self.serial_lock.lock()) } else { None }
    }

    /// Holds the serialising lock, observer or not: what installs or removes one is not interrupted.
    pub(crate) fn serialise(&self) -> ReentrantMutexGuard<'_, ()> {
        self.serial_lock.lock()
    }

    /// Tells the observer, if there is one.
    #[inline(always)]
    pub(crate) fn tell(&self, event: &Event<'_>) {
        if self.serial.load(Relaxed) {
            self.tell_now(event);
        }
    }
    #[cold]
    fn tell_now(&self, event: &Event<'_>) {
        let observer = self.observer.read().clone();
        if let Some(observer) = observer {
            observer.event(event);
        }
    }

    /// Installs or removes the observer. Calls already under way finish first.
    pub(crate) fn observe(&self, observer: Option<Arc<dyn Observer>>) -> bool {
        let _serial = self.serial_lock.lock();
        let mut place = self.observer.write();
        if observer.is_some() && place.as_ref().is_some_and(|other| other.here()) {
            return false;
        }
        self.serial.store(observer.is_some(), SeqCst);
        self.order.watched.store(observer.is_some(), SeqCst);
        *place = observer;
        drop(place);
        // Whoever holds a lock now did not see the flag; wait for them.
        drop(self.slow.lock());
        let streams: Vec<StreamRef> = self.order.streams.lock().iter().copied().collect();
        for stream in streams {
            let mut state = STREAMS.at(stream.slot()).state.lock();
            state.look_again();
            state.attach.pools.iter_mut().flatten().for_each(|cache| cache.stand_aside());
        }
        true
    }
    pub(crate) fn has_observer(&self) -> bool {
        self.observer.read().as_ref().is_some_and(|observer| observer.here())
    }
}

impl Drop for Device {
    /// The last pool and the handle are gone: the streams' slots go back.
    fn drop(&mut self) {
        for stream in std::mem::take(&mut *self.order.streams.lock()) {
            let record = STREAMS.at(stream.slot());
            let mut state = record.state.lock();
            if record.is(self.uid, stream) {
                record.forget();
                state.close();
                state.attach.pools = Vec::new();
                state.attach.stock.give_back();
                state.attach.native = NativeStream::default();
                let used_up = handle::used_up(state.generation);
                drop(state);
                if !used_up {
                    STREAMS.give_back([stream.slot()]);
                }
            }
        }
    }
}

/// Recorded answers, in the order in which they are asked for again.
#[derive(Default)]
pub(crate) struct Script {
    /// How far a stream had executed.
    pub(crate) progress: VecDeque<(StreamRef, u64)>,
    /// How far others could be made to wait for it.
    pub(crate) waitable: VecDeque<(StreamRef, u64)>,
}

impl Script {
    /// The next answer, if it is about that stream.
    fn next(answers: &mut VecDeque<(StreamRef, u64)>, stream: StreamRef) -> Option<u64> {
        let answer = answers.front().filter(|answer| answer.0 == stream).map(|answer| answer.1);
        if answer.is_some() {
            answers.pop_front();
        }
        answer
    }
}

impl Device {
    /// Whether a trace recorded that a stream was found executed to its end by the call that is replayed.
    pub(crate) fn recorded_end(&self, stream: StreamRef) -> Option<u64> {
        Script::next(&mut self.script.lock().progress, stream)
    }

    /// How far others could be made to wait for a stream, whose state is `native`.
    pub(crate) fn waitable(&self, stream: StreamRef, native: &NativeStream) -> u64 {
        match self.cuda() {
            Some(_) => native.waitable(),
            None => Script::next(&mut self.script.lock().waitable, stream).unwrap_or(0),
        }
    }
}

impl order::Progress for Device {
    fn executed(&self, stream: StreamRef) -> u64 {
        let record = STREAMS.at(stream.slot());
        if self.order.opaque
            && self.cuda().is_none()
            && let Some(answer) = Script::next(&mut self.script.lock().progress, stream)
            && record.is(self.uid, stream)
        {
            record.execute(answer);
        }
        let executed = record.executed();
        if record.is(self.uid, stream) { executed } else { u64::MAX }
    }
}

/// The slow path's locks: the device's slow lock and any number of streams.
pub(crate) struct Slow<'a> {
    pub(crate) device: &'a Device,
    slow: Option<SlowGuard<'a>>,
    /// The first streams that were locked, and their slots.
    first: [Option<StreamGuard>; FEW],
    slots: [u32; FEW],
    /// How many of these are taken.
    few: usize,
    /// Where among these a slot may be, by the lowest four bits of the slot.
    near: [u8; 16],
    /// The others.
    others: Option<Box<Others>>,
    /// What is to be done when the locks are free; mostly nothing.
    after: Option<Box<After>>,
}

#[derive(Default)]
struct After {
    /// Pages on their way back to the device, which is asked then.
    leaving: Vec<Leaving>,
    /// What forgotten streams had recorded: let go then, since a driver may be told of it.
    forgotten: Vec<NativeStream>,
}

/// Many locked streams, and where among them a slot is.
#[derive(Default)]
struct Others {
    guards: Vec<StreamGuard>,
    places: SlotMap<u32, usize>,
}

impl Others {
    fn keep(&mut self, slot: u32, guard: StreamGuard) -> usize {
        self.guards.push(guard);
        self.places.insert(slot, self.guards.len() - 1);
        self.guards.len() - 1
    }
}

/// A page taken out of every structure, to be given back to the device.
pub(crate) struct Leaving {
    pub(crate) pool: Arc<Pool>,
    pub(crate) entry: usize,
    pub(crate) slot: u32,
    pub(crate) bytes: u64,
    pub(crate) grant: Grant,
    /// Its blocks, in order, with the points they were free at.
    pub(crate) blocks: Vec<(u32, Vec<At>)>,
}

impl Drop for Slow<'_> {
    /// No lock is held while a driver is asked to take pages back. `Pool::shared` is not held by whoever drops this with
    /// pages leaving.
    #[inline(always)]
    fn drop(&mut self) {
        if self.has_leaving() {
            self.let_go();
        }
    }
}

impl Slow<'_> {
    /// Some pages are on their way back.
    #[inline(always)]
    pub(crate) fn has_leaving(&self) -> bool {
        self.after.as_ref().is_some_and(|after| !after.leaving.is_empty())
    }

    /// A page leaves when the locks are free.
    pub(crate) fn leave(&mut self, page: Leaving) {
        self.after.get_or_insert_default().leaving.push(page);
    }

    /// What a forgotten stream had recorded is let go when the locks are free.
    pub(crate) fn forget(&mut self, native: NativeStream) {
        self.after.get_or_insert_default().forgotten.push(native);
    }

    #[cold]
    #[inline(never)]
    fn let_go(&mut self) {
        let leaving = self.after.as_mut().map(|after| std::mem::take(&mut after.leaving)).unwrap_or_default();
        self.first = Default::default();
        (self.slots, self.few) = ([NO_STREAM; FEW], 0);
        self.others = None;
        self.slow = None;
        let device = self.device;
        let answers: Vec<(Leaving, Option<Grant>)> = leaving
            .into_iter()
            .map(|mut page| {
                let refused = device.source.release(std::mem::take(&mut page.grant), page.bytes).err();
                (page, refused)
            })
            .collect();
        let mut slow = Slow::lock(device);
        for (page, refused) in answers {
            super::release::settle_leaving(&mut slow, page, refused);
        }
    }
}

/// The streams that hold free blocks of an entry, all locked.
#[derive(Default)]
pub(crate) struct Held {
    /// Lowest id first.
    pub(crate) streams: Few<StreamRef, FEW>,
    /// Those that may have a block of the bytes that are wanted; the others are sure to have none.
    pub(crate) fitting: Few<StreamRef, FEW>,
    /// Those that may have whole ones.
    pub(crate) whole: Few<StreamRef, FEW>,
    /// Bytes of their free blocks that are not recent.
    pub(crate) bytes: u64,
    /// There are others that may hold some, which another thread keeps locked.
    pub(crate) kept: bool,
}

/// A list that was taken out to be gone through, with what came to it meanwhile. (The memory is kept.)
fn give_list_back<T>(place: &Mutex<Vec<T>>, mut list: Vec<T>) {
    let mut now = place.lock();
    list.append(&mut now);
    *now = list;
}

/// Takes a lock that is seldom kept for longer than a call: threads that are not running, of which one may have it, are let run
/// some times before this one sleeps, and is woken by two calls to the system.
fn lock_patiently<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    patiently(|| mutex.try_lock()).unwrap_or_else(|| mutex.lock())
}

/// The same for a device's slow lock.
fn lock_slow(mutex: &SlowMutex) -> SlowGuard<'_> {
    patiently(|| mutex.try_lock()).unwrap_or_else(|| mutex.lock())
}

fn patiently<G>(mut try_lock: impl FnMut() -> Option<G>) -> Option<G> {
    for _ in 0..YIELDS {
        if let Some(guard) = try_lock() {
            return Some(guard);
        }
        std::thread::yield_now();
    }
    None
}

/// How often.
const YIELDS: usize = 64;

/// How many locked streams are looked through one by one.
const FEW: usize = 8;

/// How often a stream's lock is looked at before it counts as kept by another thread.
const LOOKS: usize = 64;

impl<'a> Slow<'a> {
    pub(crate) fn lock(device: &'a Device) -> Self {
        Slow {
            device,
            slow: Some(lock_slow(&device.slow)),
            first: Default::default(),
            slots: [NO_STREAM; FEW],
            few: 0,
            near: [0; 16],
            others: None,
            after: None,
        }
    }

    /// Bytes of the pool's (the entry's) pages that are on their way back.
    pub(crate) fn leaving_bytes(&self, pool: &Pool, entry: Option<usize>) -> u64 {
        let ours = |page: &&Leaving| page.pool.id == pool.id && entry.is_none_or(|entry| entry == page.entry);
        self.after.iter().flat_map(|after| &after.leaving).filter(ours).map(|page| page.bytes).sum()
    }

    /// Locks a stream's slot (once) and gives its state.
    #[inline(always)]
    pub(crate) fn state(&mut self, slot: u32) -> &mut StreamState {
        let at = self.near(slot);
        if self.slots[at] != slot {
            return self.find(slot);
        }
        self.first[at].as_mut().expect("a slot that is named is locked")
    }

    /// Where a slot is mostly, if it is one of the first.
    #[inline(always)]
    fn near(&self, slot: u32) -> usize {
        usize::from(self.near[slot as usize % 16]) % FEW
    }

    /// Where the slot is among the first, if it is.
    #[inline(never)]
    fn position(&mut self, slot: u32) -> Option<usize> {
        let at = self.slots[..self.few].iter().position(|&held| held == slot)?;
        self.note_near(slot, at);
        Some(at)
    }

    #[inline(always)]
    fn note_near(&mut self, slot: u32, at: usize) {
        self.near[slot as usize % 16] = at as u8;
    }

    #[inline(never)]
    fn find(&mut self, slot: u32) -> &mut StreamState {
        let at = match self.position(slot) {
            Some(at) => at,
            None if self.few == FEW => return self.other(slot),
            None => self.keep(slot, STREAMS.at(slot).state.lock()),
        };
        self.first[at].as_mut().expect("a slot that is named is locked")
    }

    /// Keeps one more stream locked, of the first: where.
    #[inline(always)]
    fn keep(&mut self, slot: u32, guard: StreamGuard) -> usize {
        let at = self.few;
        self.note_near(slot, at);
        self.slots[at] = slot;
        self.first[at] = Some(guard);
        self.few += 1;
        at
    }

    #[inline(never)]
    fn other(&mut self, slot: u32) -> &mut StreamState {
        let others = self.others.get_or_insert_default();
        let at = match others.places.get(&slot) {
            Some(&at) => at,
            None => others.keep(slot, STREAMS.at(slot).state.lock()),
        };
        &mut others.guards[at]
    }

    /// The cache of `pool` on a stream, made if there is none.
    #[inline(always)]
    pub(crate) fn cache(&mut self, slot: u32, pool: &Arc<Pool>) -> &mut PoolCache {
        self.cache_and_stock(slot, pool).0
    }

    /// The same, and the stream's stock of records.
    #[inline(always)]
    pub(crate) fn cache_and_stock(&mut self, slot: u32, pool: &Arc<Pool>) -> (&mut PoolCache, &mut Stock) {
        let index = pool.slot as usize;
        let Caches { pools: caches, stock, .. } = &mut self.state(slot).attach;
        if !matches!(caches.get(index), Some(Some(cache)) if cache.id == pool.id && cache.has_no_front()) {
            prepare_cache(caches, slot, pool);
        }
        (caches[index].as_mut().expect("just made"), stock)
    }

    /// A stream's part of an entry, if it has one; for holders, which have nothing in front.
    #[inline(always)]
    pub(crate) fn entry(&mut self, stream: StreamRef, pool: &Pool, entry: usize) -> Option<&mut EntryCache> {
        self.state(stream.slot()).attach.entry(pool, entry)
    }

    /// As [`Slow::state`], unless another thread keeps the stream locked for longer than a call mostly takes.
    #[inline(always)]
    fn at_hand(&mut self, slot: u32, record: &'static order::Stream<Caches>) -> Option<&mut StreamState> {
        let near = self.near(slot);
        let at = if self.slots[near] == slot {
            near
        } else if self.few < FEW
            && let Some(guard) = record.state.try_lock()
        {
            self.keep(slot, guard)
        } else {
            self.lock_now(slot, record)?
        };
        match at {
            FEW.. => Some(self.state(slot)),
            _ => self.first[at].as_deref_mut(),
        }
    }

    /// Where among the first the stream is, [`FEW`] if it is none of them.
    #[inline(never)]
    fn lock_now(&mut self, slot: u32, record: &'static order::Stream<Caches>) -> Option<usize> {
        for look in 0..LOOKS {
            if let Some(guard) = record.state.try_lock() {
                if self.few < FEW {
                    return Some(self.keep(slot, guard));
                }
                self.others.get_or_insert_default().keep(slot, guard);
                return Some(FEW);
            }
            // (Perhaps it is kept locked here.)
            if look == 0 {
                if let Some(at) = self.position(slot) {
                    return Some(at);
                }
                if self.others.as_ref().is_some_and(|others| others.places.contains_key(&slot)) {
                    return Some(FEW);
                }
            }
            std::hint::spin_loop();
        }
        None
    }

    /// The streams that hold free blocks of an entry, all locked, lowest id first, with their recent blocks merged.
    pub(crate) fn holders(&mut self, pool: &Arc<Pool>, entry: usize) -> Few<StreamRef, FEW> {
        let mut held = Held::default();
        self.list_published(pool, entry, (true, true, u64::MAX), &mut held);
        held.streams
    }

    /// The same, and what is to be known of them where `need` bytes are wanted. Without `wait`, those are left out that another thread
    /// keeps locked, as one does that is not running just now. (There are none if calls do not overlap.)
    #[inline(always)]
    pub(crate) fn holders_of(&mut self, pool: &Arc<Pool>, entry: usize, need: u64, wait: bool) -> Held {
        let mut held = Held::default();
        self.list_published(pool, entry, (wait, true, need), &mut held);
        held
    }

    /// The same as [`Slow::holders`], with recent blocks left as they are.
    pub(crate) fn published(&mut self, pool: &Arc<Pool>, entry: usize) -> Few<StreamRef, FEW> {
        let mut held = Held::default();
        self.list_published(pool, entry, (true, false, u64::MAX), &mut held);
        held.streams
    }

    /// Streams found to hold none leave the entry's list.
    #[inline(never)]
    fn list_published(
        &mut self,
        pool: &Arc<Pool>,
        entry: usize,
        (wait, settle, need): (bool, bool, u64),
        held: &mut Held,
    ) {
        let mut list = std::mem::take(&mut *pool.published[entry].lock());
        if !list.is_sorted() {
            list.sort_unstable();
        }
        let c = class_of(need);
        let mut left = 0;
        for at in 0..list.len() {
            let stream = list[at];
            if self.list_holder(stream, pool, entry, (wait, settle, c), held) {
                list[left] = stream;
                left += 1;
            }
        }
        list.truncate(left);
        give_list_back(&pool.published[entry], list);
    }

    /// Adds a stream of the entry's list to the holders, with blocks of class `c` wanted. `false`: it leaves the list.
    #[inline(always)]
    fn list_holder(
        &mut self,
        stream: StreamRef,
        pool: &Pool,
        entry: usize,
        (wait, settle, c): (bool, bool, usize),
        held: &mut Held,
    ) -> bool {
        let record = STREAMS.at(stream.slot());
        if !record.is(self.device.uid, stream) {
            return false;
        }
        let state = match wait {
            true => Some(self.state(stream.slot())),
            false => self.at_hand(stream.slot(), record),
        };
        let Some(state) = state else {
            held.kept = true;
            return true;
        };
        let Caches { pools, stock, .. } = &mut state.attach;
        let Some(Some(cache)) = pools.get_mut(pool.slot as usize) else { return false };
        if cache.id != pool.id {
            return false;
        }
        cache.retire_fronts();
        let own = &mut cache.entries[entry];
        if own.recents() > 0 {
            held.streams.push(stream);
            if !settle {
                return true;
            }
            own.settle(stream, stock);
        } else if own.bins.as_ref().is_some_and(|bins| bins.count > 0) {
            held.streams.push(stream);
        } else {
            (own.published, cache.quick) = (false, Quick::No);
            return false;
        }
        if let Some(bins) = &own.bins {
            held.bytes += bins.bytes;
            if own.whole {
                held.whole.push(stream);
            }
            if bins.may_have_from(c) {
                held.fitting.push(stream);
            }
        }
        true
    }

    /// A stream's bins, if it has any; for one of the holders.
    #[inline(always)]
    pub(crate) fn held_bins(&mut self, holder: StreamRef, pool: &Pool, entry: usize) -> Option<&mut Bins> {
        self.entry(holder, pool, entry)?.bins.as_deref_mut()
    }

    pub(crate) fn bins(&mut self, stream: StreamRef, pool: &Arc<Pool>, entry: usize) -> &mut Bins {
        self.cache(stream.slot(), pool).entries[entry].made_bins()
    }

    /// As [`Slow::take_room`] for a stream, whose cache it answers.
    #[inline(always)]
    pub(crate) fn take_stream_room(
        &mut self,
        shared: &mut PoolShared,
        pool: &Arc<Pool>,
        entry: usize,
        stream: StreamRef,
        bytes: u64,
    ) -> &mut PoolCache {
        if !self.cache(stream.slot(), pool).take_room(entry, bytes) {
            self.take_room(shared, pool, entry, Some(stream), bytes);
        }
        let caches = &mut self.state(stream.slot()).attach.pools;
        caches[pool.slot as usize].as_mut().expect("made above")
    }

    /// Takes `bytes` of an entry out of a stream's room (`None`: out of what belongs to no stream), after the others' and
    /// the marks have given what is missing. Exact for calls one after the other; room that changes hands meanwhile may be missed,
    /// and the mark then be higher than it had to be.
    pub(crate) fn take_room(
        &mut self,
        shared: &mut PoolShared,
        pool: &Arc<Pool>,
        entry: usize,
        stream: Option<StreamRef>,
        bytes: u64,
    ) {
        for mark in [entry, pool.entries.len()] {
            let have = match stream {
                Some(stream) => self.cache(stream.slot(), pool).room(mark).bytes,
                None => shared.room(mark).bytes,
            };
            let mut missing = bytes.saturating_sub(have);
            let mut got = 0;
            // Those that another thread keeps locked are waited for only if the others have not enough.
            for wait in [false, true] {
                if missing > 0 {
                    let (more, kept) = self.collect_room(Some(&mut *shared), pool, mark, stream, missing, wait);
                    got += more;
                    missing = missing.saturating_sub(more);
                    if !kept {
                        break;
                    }
                }
            }
            pool.mark(mark).fetch_add(missing, Relaxed);
            got += missing;
            let room = match stream {
                Some(stream) => self.cache(stream.slot(), pool).room(mark),
                None => shared.room(mark),
            };
            if got > 0 {
                room.take(got);
            }
            room.bytes -= bytes;
            if room.bytes > 0 {
                list_room(pool, mark, room, stream.map_or(NO_STREAM, StreamRef::slot));
            }
        }
    }

    /// Moves room to a stream until it has `bytes` towards both marks. `false`: others may have what is missing, whom another
    /// thread keeps locked.
    pub(crate) fn gather_room(&mut self, pool: &Arc<Pool>, entry: usize, stream: StreamRef, bytes: u64) -> bool {
        let marks = [entry, pool.entries.len()];
        let cache = self.cache(stream.slot(), pool);
        let mut missing = marks.map(|mark| bytes.saturating_sub(cache.room_bytes(mark)));
        if missing == [0, 0] {
            return true;
        }
        // Who has room towards the entry's mark mostly has some towards the pool's.
        let (mut got, kept) = self.collect_both(pool, entry, stream, missing);
        let kept = [
            kept,
            missing[1] > got[1] && {
                let (more, kept) = self.collect_room(None, pool, marks[1], Some(stream), missing[1] - got[1], false);
                got[1] += more;
                kept
            },
        ];
        let cache = self.cache(stream.slot(), pool);
        cache.stand_aside();
        for (at, room) in [&mut cache.entries[entry].room, &mut cache.room].into_iter().enumerate() {
            if got[at] > 0 {
                room.take(got[at]);
            }
            if room.bytes > 0 {
                list_room(pool, marks[at], room, stream.slot());
            }
            missing[at] = missing[at].saturating_sub(got[at]);
        }
        !(kept[0] && missing[0] > 0 || kept[1] && missing[1] > 0)
    }

    /// Takes room towards an entry's mark and the pool's from streams on the entry's list, but `own`, until it is at least `missing` of
    /// each; not of those that another thread keeps locked. How much, and whether there are such.
    fn collect_both(&mut self, pool: &Pool, entry: usize, own: StreamRef, missing: [u64; 2]) -> ([u64; 2], bool) {
        let (mut got, mut kept) = ([0, 0], false);
        let mut list = lock_patiently(&pool.roomy[entry]);
        let mut at = 0;
        while let Some(&other) = list.get(at) {
            let missing = [missing[0].saturating_sub(got[0]), missing[1].saturating_sub(got[1])];
            if missing == [0, 0] {
                break;
            }
            at += 1;
            if other == own.slot() || other == NO_STREAM {
                continue;
            }
            let Some(state) = self.at_hand(other, STREAMS.at(other)) else {
                kept = true;
                continue;
            };
            let (parts, listed) = state.attach.part_with_both(pool, entry, missing);
            got = [got[0] + parts[0], got[1] + parts[1]];
            if !listed {
                at -= 1;
                list.remove(at);
            }
        }
        (got, kept)
    }

    /// Takes room towards a mark from all but `own`, until it is at least `missing`; of streams that another thread keeps
    /// locked only if it is to `wait` for them. How much, and whether such a stream was passed over.
    fn collect_room(
        &mut self,
        mut shared: Option<&mut PoolShared>,
        pool: &Arc<Pool>,
        mark: usize,
        own: Option<StreamRef>,
        mut missing: u64,
        wait: bool,
    ) -> (u64, bool) {
        let own = own.map_or(NO_STREAM, StreamRef::slot);
        let (mut got, mut kept) = (0, false);
        if wait {
            // Before the list is locked, which whoever has a stream locked may want.
            let others = lock_patiently(&pool.roomy[mark]).clone();
            others.into_iter().filter(|&other| other != NO_STREAM).for_each(|other| {
                self.state(other);
            });
        }
        lock_patiently(&pool.roomy[mark]).retain(|&other| {
            if missing == 0 || other == own {
                return true;
            }
            let room = match (other, &mut shared) {
                (NO_STREAM, None) => return true,
                (NO_STREAM, Some(shared)) => Some(shared.room(mark)),
                _ => match self.at_hand(other, STREAMS.at(other)) {
                    Some(state) => state.attach.room(pool, mark),
                    None => {
                        kept = true;
                        return true;
                    }
                },
            };
            let Some(room) = room else { return false };
            let part = room.part_with(missing);
            got += part;
            missing = missing.saturating_sub(part);
            room.listed = room.bytes > 0;
            room.listed
        });
        (got, kept)
    }

    /// From now on no free of a larger block of the entry, in which nothing is live, leaves it recent.
    pub(crate) fn set_largest_recent(&mut self, pool: &Arc<Pool>, entry: usize, bytes: u64) {
        pool.entry_tally[entry].largest_recent.store(bytes, Relaxed);
        for slot in self.lock_attached(pool) {
            self.cache(slot, pool).entries[entry].largest_recent = bytes;
        }
    }

    /// Merges a stream's recent blocks.
    pub(crate) fn settle(&mut self, stream: StreamRef, pool: &Arc<Pool>, e: usize) {
        let (cache, stock) = self.cache_and_stock(stream.slot(), pool);
        cache.entries[e].settle(stream, stock);
    }

    /// Locks every stream that has a cache of the pool: what they own, and who has how much room, stays as it is. Their slots.
    pub(crate) fn lock_attached(&mut self, pool: &Pool) -> Vec<u32> {
        let attached = pool.attached.lock().clone();
        for &slot in &attached {
            self.state(slot);
        }
        attached
    }

    /// Used bytes towards a mark: the mark less all room.
    pub(crate) fn used(&mut self, shared: &mut PoolShared, pool: &Arc<Pool>, mark: usize) -> u64 {
        // All first: room moves between streams.
        let attached = self.lock_attached(pool);
        let mut room = shared.room(mark).bytes;
        for slot in attached {
            room += self.state(slot).attach.room_bytes(pool, mark);
        }
        pool.mark(mark).load(Relaxed) - room
    }

    /// The mark becomes what is used now.
    pub(crate) fn lower_mark(&mut self, shared: &mut PoolShared, pool: &Arc<Pool>, mark: usize) {
        let used = self.used(shared, pool, mark);
        for slot in self.lock_attached(pool) {
            if let Some(room) = self.state(slot).attach.room(pool, mark) {
                room.bytes = 0;
            }
        }
        shared.room(mark).bytes = 0;
        pool.mark(mark).store(used, Relaxed);
    }
}

/// Makes the cache of `pool` on the stream in `slot`, whose caches these are, if there is none. It has nothing in front then.
#[inline(never)]
fn prepare_cache(caches: &mut Vec<Option<Box<PoolCache>>>, slot: u32, pool: &Arc<Pool>) {
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

/// A block beside another: its index and its record.
type Neighbour = (u32, &'static Block);

/// The neighbours of a free block that it merges with: right, left.
#[inline(always)]
fn mergeable(b: &Block, domain: StreamRef) -> (Option<Neighbour>, Option<Neighbour>) {
    debug_assert!(b.stream() == domain && b.merges());
    // The link to the right is the domain's own. The one to the left belongs to the left block's domain and may be old.
    let (mut right, mut left) = (None, None);
    let next = b.next();
    if next != NIL {
        let n = block(next);
        if n.stream() == domain && n.merges() {
            debug_assert!(n.addr() == b.end() && n.page() == b.page());
            right = Some((next, n));
        }
    }
    let prev = b.prev();
    if prev != NIL {
        let p = block(prev);
        // (Its size first: what it names may have been given out anew, and says then whose it is.)
        let bytes = p.size_acquire();
        if p.stream() == domain && p.merges() && p.addr() + bytes == b.addr() && p.page() == b.page() {
            left = Some((prev, p));
        }
    }
    (right, left)
}

/// A recent block that is out of its chain, and whose size and flags are `own`, settles: it merges with what lies to both sides, as
/// far as that is the domain's own and either settled or recent and of at least `least` bytes, for then it settles as well, and goes
/// into `bins`. (How often it merged: as many blocks as there are fewer.)
///
/// All of such a run becomes one block at once, that at its low end. If this is a recent one, it goes into the bins only when it is
/// met in its chain; who is met there and has become part of another has no size, and only then is its record free.
#[inline(always)]
pub(crate) fn settle_one(
    index: u32,
    b: &'static Block,
    own: u64,
    me: StreamRef,
    least: u64,
    bins: &mut Bins,
    stock: &mut Stock,
) {
    debug_assert!(own & UNUSED == 0, "what a stream has freed was in use");
    if own & (RECENT | WHOLE | GATHERED) != RECENT {
        if own == 0 {
            return stock.give_sizeless(index, b);
        }
        let size = Block::size_in(own);
        b.set_size_flags(size, FREE | own & WHOLE);
        bins.insert_sized(index, b, size);
        return bins.note_beside(index, b);
    }
    // Links and neighbours: see `mergeable`. The link past a block first, and only then does it lose its size: a look-up goes from
    // link to link.
    let mut bytes = Block::size_in(own);
    let start = b.addr();
    // Where the last of the run starts, and what comes after it.
    let (mut last, mut next) = (start, b.next());
    while let Some(n) = BLOCKS.get(next) {
        let other = n.size_flags();
        if unlike(other, n.stream(), me, least) != 0 {
            break;
        }
        last = start + bytes;
        debug_assert!(n.addr() == last && n.page() == b.page());
        let after = n.next();
        b.set_next(after);
        b.set_seq(b.seq().max(n.seq()));
        bytes += Block::size_in(other);
        take_in(next, n, other, bins, stock);
        next = after;
    }
    let (mut low, mut l, mut kept) = (index, b, own);
    loop {
        let prev = l.prev();
        let Some(p) = BLOCKS.get(prev) else { break };
        // (First, for what is to be read then: see `mergeable`.)
        let other = p.size_flags_acquire();
        let apart = p.addr().wrapping_add(Block::size_in(other)) ^ l.addr() | u64::from(p.page() ^ l.page());
        if unlike(other, p.stream(), me, least) | apart != 0 {
            break;
        }
        p.set_next(next);
        p.set_seq(p.seq().max(l.seq()));
        bytes += Block::size_in(other);
        take_in(low, l, kept, bins, stock);
        (low, l, kept) = (prev, p, other);
    }
    if let Some(n) = BLOCKS.get(next).filter(|_| bytes != Block::size_in(own)) {
        n.set_prev(low);
        note_first(l.page(), l.addr(), last, l.addr() + bytes, next);
    }
    if low == index {
        b.set_size_flags(bytes, FREE);
        bins.insert_sized(index, b, bytes);
    } else {
        stock.give_sizeless(index, b);
        if kept & RECENT != 0 {
            l.set_size_flags(bytes, FREE | RECENT | GATHERED);
            return;
        }
        let had = Block::size_in(kept);
        let hole = bins.lift(low, l, had);
        l.set_size_flags(bytes, FREE);
        bins.bytes += bytes - had;
        bins.put(hole, low, l, bytes);
    }
    bins.note_beside(low, l);
}

/// A block has become part of its neighbour: if it is a recent one, its record is free when it is met in its chain.
#[inline(always)]
fn take_in(index: u32, b: &Block, own: u64, bins: &mut Bins, stock: &mut Stock) {
    if own & RECENT == 0 {
        bins.remove_sized(index, b, Block::size_in(own));
        stock.give_record(index, b);
    } else {
        b.set_size_flags(0, 0);
    }
}

/// 0 if a block of `stream`, with that size and those flags, settles together with a neighbour of `me`, which does.
/// (One word of all conditions: which way a branch for each would go, nothing foretells.)
#[inline(always)]
fn unlike(own: u64, stream: StreamRef, me: StreamRef, least: u64) -> u64 {
    // (A recent block has no flag above its size but WHOLE.)
    let smaller = (own.wrapping_sub(least) as i64 >> 63) as u64;
    own & (FREE | WHOLE) ^ FREE | stream.0 ^ me.0 | own & RECENT & smaller
}

/// Free blocks that are in no structure are of the domain in `at`, free at its number, and go into its bins: how many merges that
/// makes. (As recent ones that give way: all are the domain's first, so that those that touch become one before it is put among the
/// others.)
#[inline(always)]
pub(crate) fn settle_all(blocks: &[u32], at: At, bins: &mut Bins, stock: &mut Stock) -> u64 {
    for &index in blocks {
        let b = block(index);
        b.set_flags(FREE | RECENT);
        b.set_seq(at.seq);
        b.set_stream(at.stream);
    }
    let before = bins.count + blocks.len() as u64;
    for &index in blocks {
        let b = block(index);
        settle_one(index, b, b.size_flags(), at.stream, 0, bins, stock);
    }
    // Where two merge there is one fewer.
    before - bins.count
}

/// In the page `home`, one free block goes from `start` to `end` now. Of what became part of it the last started at `last`, and `next`
/// comes after it. (Where nothing starts any more, the index may name what started there.)
#[inline(always)]
fn note_first(home: u32, start: u64, last: u64, end: u64, next: u32) {
    if page::apart(start, last) & !page::apart(last, end) {
        page(home).set_first(last, next);
    }
}

/// Puts a free block of `domain` into `bins`, merged with its neighbours of the same domain. `unused` are the bins of a
/// Cuda entry's never-used blocks (only with the observed domain). The block's flags say FREE and whether it is UNUSED.
/// Recent neighbours stay as they are. All under the domain's lock. Returns how often it merged.
#[inline(always)]
pub(crate) fn insert_merged(
    mut index: u32,
    mut b: &'static Block,
    domain: StreamRef,
    bins: &mut Bins,
    mut unused: Option<&mut Bins>,
    stock: &mut Stock,
) -> u64 {
    let (right, left) = mergeable(b, domain);
    let mut merges = 0;
    if let Some((next, n)) = right {
        take_out(next, n, bins, unused.as_deref_mut());
        absorb(index, b, next, n, stock);
        merges += 1;
    }
    if let Some((prev, p)) = left {
        take_out(prev, p, bins, unused.as_deref_mut());
        absorb(prev, p, index, b, stock);
        (index, b) = (prev, p);
        merges += 1;
    }
    match unused {
        Some(unused) if b.has(UNUSED) => unused.insert_record(index, b),
        _ => bins.insert_record(index, b),
    }
    bins.note_beside(index, b);
    merges
}

/// Whether a live block of the same page and domain, whose lock is held, is seen beside this one.
#[inline(always)]
pub(crate) fn beside_own_live(b: &Block, me: StreamRef) -> bool {
    // The link to the left may be old; a live block of the same page says as much, wherever it lies.
    let prev = b.prev();
    if prev != NIL {
        let p = block(prev);
        if p.stream() == me && p.has(LIVE) && p.page() == b.page() {
            return true;
        }
    }
    let next = b.next();
    if next == NIL {
        return false;
    }
    let n = block(next);
    n.stream() == me && n.has(LIVE)
}

#[inline(always)]
fn take_out(index: u32, b: &Block, bins: &mut Bins, unused: Option<&mut Bins>) {
    match unused {
        Some(unused) if b.has(UNUSED) => unused.remove_record(index, b),
        _ => bins.remove_record(index, b),
    }
}

/// `right` becomes part of `left`; neither is in a structure, but that the left one may be in a chain of recent blocks.
#[inline(always)]
pub(crate) fn absorb(left: u32, l: &Block, right: u32, r: &Block, stock: &mut Stock) {
    let (own, other, next) = (l.size_flags(), r.size_flags(), r.next());
    let bytes = Block::size_in(own) + Block::size_in(other);
    if next != NIL {
        note_first(l.page(), l.addr(), r.addr(), l.addr() + bytes, next);
    }
    l.set_seq(l.seq().max(r.seq()));
    // To follow: the link past the right one, and only then does it lose its size, for a look-up goes from link to link.
    l.set_size_flags(bytes, FREE | own & other & UNUSED | own & RECENT);
    l.set_next(next);
    if next != NIL {
        block(next).set_prev(left);
    }
    stock.give_record(right, r);
}

/// Cuts `need` bytes off the low end of a free block that is in no structure; returns the remainder, if any, in the
/// same domain with the same point and flags. `None` in the error case: no record left.
#[inline(always)]
pub(crate) fn cut(
    index: u32,
    b: &Block,
    need: u64,
    stock: &mut Stock,
) -> std::result::Result<Option<(u32, &'static Block)>, ()> {
    cut_sized(index, b, b.size_flags(), need, stock)
}

/// The same, for a caller that has its size and flags, `own`, at hand.
#[inline(always)]
fn cut_sized(
    index: u32,
    b: &Block,
    own: u64,
    need: u64,
    stock: &mut Stock,
) -> std::result::Result<Option<(u32, &'static Block)>, ()> {
    let size = Block::size_in(own);
    let flags = own - size;
    if size == need {
        return Ok(None);
    }
    let rest = stock.take().ok_or(())?;
    let r = block(rest);
    let next = b.next();
    let start = b.addr() + need;
    r.set_addr(start);
    r.set_stream(b.stream());
    r.set_seq(b.seq());
    r.set_page(b.page());
    r.set_prev(index);
    r.set_next(next);
    r.set_size_flags_last(size - need, flags);
    if next != NIL {
        block(next).set_prev(rest);
    }
    b.set_next(rest);
    b.set_size_flags(need, flags);
    if page::apart(b.addr(), start) {
        page(b.page()).set_first(start, rest);
    }
    Ok(Some((rest, r)))
}

/// How far around a freed block a live one is looked for.
const LOOK: usize = 16;

/// Whether all blocks of a page may be free, seen from one that just became so: `false` only if a live one was seen.
/// What cannot be told is answered with `true`, for whoever gives pages back checks again.
#[inline(never)]
pub(crate) fn may_be_empty(b: &'static Block, home: &Page) -> bool {
    if b.size() == home.bytes.load(Relaxed) {
        return true;
    }
    // Of threads that free the last blocks of a page at the same time, the last to come here sees what the others did.
    fence(SeqCst);
    let slot = b.page();
    for step in [Block::next as fn(&Block) -> u32, Block::prev] {
        let mut from = b;
        for _ in 0..LOOK {
            let at = step(from);
            if at == NIL {
                break;
            }
            from = block(at);
            if from.page() != slot {
                break;
            }
            if from.has(LIVE) {
                return false;
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::STREAMS;
    use crate::device::{self, ModelOptions};
    use crate::pool::{self, MemoryPoolConfig, PoolConfig, Reason};
    use crate::{handle, stream};
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    /// One that was put in place of its thread in the midst of a call, say.
    #[test]
    fn a_stream_that_is_kept_locked_is_waited_for_only_if_the_others_have_nothing() {
        const PAGE: u64 = 1 << 16;
        let device = device::open_model(&ModelOptions::default()).unwrap();
        let config = MemoryPoolConfig::Sliced {
            page_size: PAGE,
            max_slice_size: None,
            max_pool_size: Some(2 * PAGE),
            dealloc_period: None,
        };
        let pool = pool::create(device, &PoolConfig::with_entries(vec![config])).unwrap();
        let [one, first, second] = [(); 3].map(|()| stream::create(device, Default::default()).unwrap());
        let addresses = [first, second].map(|owner| {
            let block = pool::alloc_async(pool, PAGE, owner).unwrap();
            (block, owner, pool::info(block).unwrap().address)
        });
        for (block, owner, _) in addresses {
            pool::free_async(block, owner).unwrap();
        }
        let kept = STREAMS.at(handle::slot(first.0)).state.lock();
        let (tell, told) = mpsc::channel();
        let asking = thread::spawn(move || {
            for _ in 0..2 {
                let block = pool::alloc_async(pool, PAGE, one).unwrap();
                let info = pool::info(block).unwrap();
                tell.send((info.address, info.reason)).unwrap();
            }
        });
        // The first stream's would be the one at the lower address.
        assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok((addresses[1].2, Reason::Opportunistic)));
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err(), "only the locked stream has one more");
        drop(kept);
        assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok((addresses[0].2, Reason::Opportunistic)));
        asking.join().unwrap();
        let stats = pool::stats(pool).unwrap();
        assert_eq!((stats.used, stats.used_high, stats.reserved), (2 * PAGE, 2 * PAGE, 2 * PAGE));
        pool::check_invariants(pool).unwrap();
    }
}
