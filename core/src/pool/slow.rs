//! The slow path's locks: the device's slow lock and any number of streams, and what is looked up or gathered under them. They are let
//! go before a driver is asked for anything.

use super::bins::Bins;
use super::block::Stock;
use super::caches::{
    Caches, EntryCache, NO_STREAM, PoolCache, Quick, STREAMS, StreamGuard, StreamState, list_room, prepare_cache,
};
use super::classes::class_of;
use super::state::{Device, Pool, PoolShared};
use crate::checks::{SlowGuard, SlowMutex};
use crate::device_source::{Grant, PageSource};
use crate::error::Result;
use crate::few::Few;
use crate::order::{self, At, StreamRef};
use crate::runtime::native::{self, NativeStream};
use crate::slab::SlotMap;
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The slow path's locks: the device's slow lock and any number of streams.
pub(crate) struct Slow<'a> {
    pub(crate) device: &'a Device,
    slow: Option<SlowGuard<'a>>,
    alone: bool,
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
pub(super) fn lock_patiently<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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
        let slow = lock_slow(&device.slow);
        Slow {
            device,
            slow: Some(slow),
            alone: device.comers.come(),
            first: Default::default(),
            slots: [NO_STREAM; FEW],
            few: 0,
            near: [0; 16],
            others: None,
            after: None,
        }
    }

    /// No other thread has had the lock so far.
    pub(super) fn is_alone(&self) -> bool {
        self.alone
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

    /// The same for a stream that the call has found a moment ago.
    ///
    /// # Errors
    /// As [`native::live`].
    pub(crate) fn live(&mut self, stream: StreamRef) -> Result<&mut StreamState> {
        let device = self.device;
        let state = self.state(stream.slot());
        if native::is_live(device, stream, state) { Ok(state) } else { Err(native::destroyed()) }
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

#[cfg(test)]
mod tests {
    use super::STREAMS;
    use crate::device::{self, ModelOptions};
    use crate::pool::{self, MemoryPoolConfig, PoolConfig, Reason};
    use crate::{handle, stream};
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn where_one_thread_makes_all_calls_none_comes_to_less_since_a_thread_of_another_device_has_a_stream_locked() {
        const SIZE: u64 = 1 << 10;
        let device = device::open_model(&ModelOptions::default()).unwrap();
        let pool = pool::create(device, &PoolConfig::default()).unwrap();
        let [one, other] = [(); 2].map(|()| stream::create(device, Default::default()).unwrap());
        let small: Vec<_> = (0..8).map(|_| pool::alloc_async(pool, SIZE / 4, one).unwrap()).collect();
        let block = pool::alloc_async(pool, SIZE, other).unwrap();
        let address = pool::info(block).unwrap().address;
        pool::free_async(block, other).unwrap();
        let event = crate::event::create(device).unwrap();
        crate::event::record(device, event, other).unwrap();
        stream::wait_event(device, one, event).unwrap();
        // What it needs towards the marks it has, in blocks that are too small and lie apart.
        for block in small.into_iter().step_by(2) {
            pool::free_async(block, one).unwrap();
        }
        // (As one has whose handle names the same record, stale.)
        let (tell, told) = mpsc::channel();
        let foreign = thread::spawn(move || {
            let kept = STREAMS.at(handle::slot(other.0)).state.lock();
            tell.send(()).unwrap();
            thread::sleep(Duration::from_millis(50));
            drop(kept);
        });
        told.recv().unwrap();
        let info = pool::info(pool::alloc_async(pool, SIZE, one).unwrap()).unwrap();
        assert_eq!((info.address, info.reason), (address, Reason::Event));
        foreign.join().unwrap();
        pool::check_invariants(pool).unwrap();
    }

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
