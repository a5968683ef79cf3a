//! The quick way's next: pairs of free and allocation on one stream in other entries than a pool's first, and in those whose blocks
//! are whole pages.
//!
//! As on the quick way the stream is ready, and a pass says that nothing more is known of a live block; it names the entry
//! ([`super::block::place`]). What is *ready* on the quick way is looked at here: that the pool is open, that the lists name the
//! stream, that there is room. (The first entry's block in front, and its ready room, stay as they are.) Where more is to be done,
//! nothing is, and the call goes on with the hot path.
//!
//! Here too the block freed last stays in front of the others ([`Kept`]), for a pair of one size.

use super::Reason;
use super::alloc::round_up;
use super::block::{Block, FREE, GENERATION_LIMIT, Stock, is_quick};
use super::caches::{EntryCache, PoolCache, Room, Share};
use super::classes::class_of;
use super::front::Front;
use super::merge::beside_own_live;
use super::recents::MOST;
use super::release::emptied_at;
use crate::handle;
use crate::order::StreamRef;
use std::sync::atomic::Ordering::Relaxed;

/// A block that was taken out of its structure: its index, its record, and the generation that it will have, which is not the
/// last.
type Taken = (u32, &'static Block, u32);

/// What a stream freed last in one of those entries, for the next allocation of the bytes that were asked for then, in whole units.
///
/// It is free like any other, its bytes are room, and everybody but who is here puts it where it belongs first
/// ([`PoolCache::retire_kept`]): among the recent blocks, after all of them, or in the bins, which hold none while a page is in front.
#[derive(Default)]
pub(crate) struct Kept {
    front: Front,
    /// Of meaning with a block.
    entry: usize,
}

impl Kept {
    #[inline(always)]
    pub(super) fn is_none(&self) -> bool {
        self.front.is_none()
    }

    /// A block of `entry` that was freed as `allocation`, for one of `bytes`; there is no other.
    #[inline(always)]
    fn set(&mut self, entry: usize, block: &'static Block, allocation: u64, bytes: u64) {
        self.entry = entry;
        self.front.set(block, allocation, bytes);
    }
}

impl PoolCache {
    /// Nothing is in front, here or in the first entry.
    #[inline(always)]
    pub(crate) fn has_no_front(&self) -> bool {
        self.front.is_none() & self.kept.is_none()
    }

    /// Nothing is in front any more.
    #[inline(always)]
    pub(crate) fn retire_fronts(&mut self) {
        if !self.has_no_front() {
            self.retire_front();
            self.retire_kept();
        }
    }

    /// The block kept here goes where it belongs.
    #[inline(always)]
    pub(crate) fn retire_kept(&mut self) {
        if !self.kept.is_none() {
            self.retire_kept_now();
        }
    }

    #[inline(never)]
    fn retire_kept_now(&mut self) {
        let PoolCache { kept, entries, .. } = self;
        if let Some(own) = entries.get_mut(kept.entry)
            && let Some((index, b, _)) = kept.front.take()
        {
            match &mut own.recents {
                Some(recents) if own.carves => recents.push(index, b, b.size()),
                _ => own.made_bins().insert_record(index, b),
            }
        }
    }

    /// The block kept, or a recent block of another entry than the first, serves: the allocation and its record.
    #[inline(always)]
    pub(super) fn serve_recent(&mut self, size: u64) -> Option<(u64, &'static Block)> {
        let PoolCache { unit, share, room, entries, kept, .. } = self;
        if let Some((b, _, allocation)) = kept.front.exact(size, *unit) {
            let own = entries.get_mut(kept.entry)?;
            let bytes = b.size();
            if Front::is_beyond(allocation) || room.bytes < bytes || own.room.bytes < bytes {
                return None;
            }
            kept.front.clear();
            return Some(own.serve(share, room, (allocation, b), bytes, size));
        }
        if size <= entries.first.bound {
            return None;
        }
        let own = entries.accepting_in_rest(size)?;
        let need = round_up(size, *unit);
        if room.bytes < need || own.room.bytes < need {
            return None;
        }
        let (index, b, generation) = own.recents.as_mut()?.take_first(need)?;
        let allocation = handle::encode(handle::Kind::Allocation, generation + 1, index);
        Some(own.serve(share, room, (allocation, b), need, size))
    }

    /// Any of the stream's own blocks serves, but not of an entry that is for the quick way.
    #[inline(always)]
    pub(super) fn serve_elsewhere(
        &mut self,
        size: u64,
        me: StreamRef,
        stock: &mut Stock,
    ) -> Option<(u64, &'static Block)> {
        self.retire_kept();
        let PoolCache { unit, share, room, entries, .. } = self;
        let own = entries.accepting_mut(size)?;
        let need = round_up(size, *unit);
        let most = room.bytes.min(own.room.bytes);
        // (In the first entry room is mostly ready, and the block in front comes first.)
        if most < need || is_quick(own.place) {
            return None;
        }
        let (index, b, generation) = match own.carves {
            true => own.carve_elsewhere(need, me, stock)?,
            false => own.take_page(need, most)?,
        };
        let allocation = handle::encode(handle::Kind::Allocation, generation, index);
        Some(own.serve(share, room, (allocation, b), b.size(), size))
    }

    /// A live block of entry `e`, not the first, is free at `seq`, and a recent one: whether its page may be empty. `None`: nothing
    /// was done.
    #[inline(always)]
    pub(super) fn rest_recent(
        &mut self,
        me: StreamRef,
        (allocation, b): (u64, &'static Block),
        e: usize,
        seq: u64,
    ) -> Option<bool> {
        let PoolCache { room, entries, kept, .. } = self;
        if !kept.is_none() {
            let other = entries.in_rest(kept.entry).filter(|other| other.carves)?;
            let recents = other.recents.as_mut()?;
            let (index, b, _) = kept.front.take()?;
            recents.push(index, b, b.size());
        }
        let own = entries.in_rest(e)?;
        if !(own.published & own.room.listed & room.listed) {
            return None;
        }
        let requested = b.requested() as i64;
        // (A Mapped entry may pause when nothing is live.)
        if !own.lists_empty && own.requested == requested {
            return None;
        }
        // (There is place for the block before it becomes one of these.)
        let recents = own.recents.as_mut().filter(|recents| recents.count < MOST - 1)?;
        own.requested -= requested;
        own.counts.frees += 1;
        b.set_seq(seq);
        let bytes = b.rest();
        // (Where a pause is to be seen, each is among the others; as is what an entry before could serve next time.)
        if own.lists_empty & (requested as u64 > own.below) {
            kept.set(e, b, allocation, bytes);
        } else {
            recents.push(handle::slot(allocation), b, bytes);
        }
        own.room.bytes += bytes;
        room.bytes += bytes;
        Some(own.lists_empty && !beside_own_live(b, me))
    }

    /// A live block of entry `e`, where they are whole pages, is free at `seq`. `false`: nothing was done.
    #[inline(always)]
    pub(super) fn rest_page(&mut self, (allocation, b): (u64, &'static Block), e: usize, seq: u64) -> bool {
        self.retire_kept();
        let PoolCache { unit, pool, share, room, entries, kept, .. } = self;
        let Some(own) = entries.get_mut(e) else { return false };
        if !(own.published & own.room.listed & room.listed) {
            return false;
        }
        let Some(bins) = own.bins.as_mut() else { return false };
        let requested = b.requested();
        own.requested -= requested as i64;
        own.counts.frees += 1;
        b.set_seq(seq);
        let bytes = b.size();
        b.set_size_flags(bytes, FREE);
        // (An entry before could serve next time; or this one nothing but 0 bytes.)
        if bins.count == 0 && requested > own.below {
            b.set_pass(0);
            kept.set(e, b, allocation, round_up(requested, *unit));
        } else {
            bins.insert_sized(handle::slot(allocation), b, bytes);
        }
        own.room.bytes += bytes;
        room.bytes += bytes;
        emptied_at(pool, e, b.page(), pool.allocations_seen_by(share));
        true
    }
}

impl EntryCache {
    /// The block becomes an allocation of `size` bytes, with room that there is.
    #[inline(always)]
    fn serve(
        &mut self,
        share: &Share,
        room: &mut Room,
        (allocation, b): (u64, &'static Block),
        bytes: u64,
        size: u64,
    ) -> (u64, &'static Block) {
        self.room.bytes -= bytes;
        room.bytes -= bytes;
        self.requested += size as i64;
        self.counts.reuse[Reason::SameStream as usize] += 1;
        share.allocs.store(share.allocs.load(Relaxed) + 1, Relaxed);
        b.serve(allocation, bytes, size, self.place);
        (allocation, b)
    }

    /// Takes the stream's own block for `need` bytes, in an entry whose blocks are carved, and cuts it.
    #[inline(never)]
    fn carve_elsewhere(&mut self, need: u64, me: StreamRef, stock: &mut Stock) -> Option<Taken> {
        // (What would not become recent gets no pass.)
        if !self.passes(need) {
            return None;
        }
        let (index, b) = self.carve_own(need, me, stock, |_, b| b.generation() + 1 < GENERATION_LIMIT)?;
        Some((index, b, b.generation() + 1))
    }

    /// The same of at most `most` bytes in an entry whose blocks are whole pages.
    #[inline(always)]
    fn take_page(&mut self, need: u64, most: u64) -> Option<Taken> {
        let bins = self.bins.as_mut()?;
        let c = class_of(need);
        let (index, b) = if self.exact { bins.take_exact(c, need) } else { bins.take_best(c, need) }?;
        let generation = b.generation() + 1;
        if b.size() > most || generation >= GENERATION_LIMIT {
            bins.insert_record(index, b);
            return None;
        }
        Some((index, b, generation))
    }
}

#[cfg(test)]
mod tests {
    use crate::device::{self, ModelOptions};
    use crate::pool::{self, MemoryPoolConfig, PoolConfig, Reason};
    use crate::stream;

    #[test]
    fn what_was_freed_last_in_a_further_entry_does_not_serve_what_an_entry_before_it_can() {
        const PAGE: u64 = 1 << 16;
        let sliced = |page_size, max_pool_size| MemoryPoolConfig::Sliced {
            page_size,
            max_slice_size: None,
            max_pool_size,
            dealloc_period: None,
        };
        let pages = MemoryPoolConfig::Exclusive { max_alloc_size: 1 << 20, dealloc_period: None };
        for further in [sliced(1 << 20, None), pages, MemoryPoolConfig::Direct { reclaim_at: None }] {
            let device = device::open_model(&ModelOptions::default()).unwrap();
            let entries = vec![sliced(PAGE, Some(PAGE)), further];
            let pool = pool::create(device, &PoolConfig::with_entries(entries)).unwrap();
            let one = stream::create(device, Default::default()).unwrap();
            let allocate = |bytes| pool::alloc_async(pool, bytes, one).unwrap();
            let full = allocate(PAGE);
            for _ in 0..3 {
                let block = allocate(1024);
                assert_eq!(pool::info(block).unwrap().entry, 1);
                pool::free_async(block, one).unwrap();
            }
            pool::free_async(full, one).unwrap();
            let info = pool::info(allocate(1024)).unwrap();
            assert_eq!((info.entry, info.reason), (0, Reason::SameStream));
            pool::check_invariants(pool).unwrap();
        }
    }

    #[test]
    fn a_page_for_one_size_serves_another_only_if_it_is_the_best() {
        let pages = MemoryPoolConfig::Exclusive { max_alloc_size: 1 << 30, dealloc_period: None };
        let options = ModelOptions::default();
        let device = device::open_model(&options).unwrap();
        let pool = pool::create(device, &PoolConfig::with_entries(vec![pages])).unwrap();
        let one = stream::create(device, Default::default()).unwrap();
        let allocate = |pages: u64| pool::alloc_async(pool, pages * options.page_granularity, one).unwrap();
        let address = |block| pool::info(block).unwrap().address;
        let [low, small, large] = [2, 1, 2].map(allocate);
        let [at_low, at_small, at_large] = [low, small, large].map(address);
        for block in [low, large] {
            pool::free_async(block, one).unwrap();
        }
        // Not the one freed last, but the lower of two of one size.
        let (low, large) = (allocate(2), allocate(2));
        assert_eq!([address(low), address(large)], [at_low, at_large]);
        for block in [large, small] {
            pool::free_async(block, one).unwrap();
        }
        assert_eq!([address(allocate(2)), address(allocate(1))], [at_large, at_small]);
        pool::check_invariants(pool).unwrap();
    }
}
