//! A block's record: 64 bytes, one cache line, all fields atomics so that any thread may look at any time.
//!
//! Who may change a record: the holder of its *domain*'s lock. The domain of a live block, and of a free block with one
//! free point, is the stream in `stream` (that stream's lock). All other blocks (observed, multi, host-ordered) belong to
//! the device's slow lock. `stream` itself changes only under both the old domain's and the new one's lock.
//!
//! Neighbours: `next` is written by the block's own domain; `prev` by the domain of the block to the left. A reader
//! that finds a neighbour of its own domain checks that the two really touch; a neighbour of another domain is left
//! alone. So a stale link can be read, but never acted on.

#[cfg(debug_assertions)]
use crate::checks;
use crate::error::Result;
use crate::handle::{self, AllocationId};
use crate::order::StreamRef;
use crate::slab::Slab;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};

/// No block.
pub(crate) const NIL: u32 = u32::MAX;
/// Domain of free blocks whose free points the host has observed, and of never-used ones.
pub(crate) const OBSERVED: StreamRef = StreamRef(u64::MAX);
/// Domain of free blocks with several free points.
pub(crate) const MULTI: StreamRef = StreamRef(u64::MAX - 1);
/// Domain of live host-ordered blocks.
pub(crate) const HOST: StreamRef = StreamRef(u64::MAX - 2);

/// Every block of the process.
pub(crate) static BLOCKS: Slab<Block, { 1 << 20 }> = Slab::new();

/// No part of it was ever handed out.
pub(crate) const UNUSED: u64 = 1 << 50;
pub(crate) const NAMED: u64 = 1 << 51;
/// Free, a stream's own: not to be merged with before it is observed.
pub(crate) const WHOLE: u64 = 1 << 49;
pub(crate) const USERS: u64 = 1 << 52;
/// Neither live nor free: addresses of a Mapped entry where no chunk serves. Its domain is [`HOST`].
pub(crate) const VACANT: u64 = 1 << 62;
/// In place of a pass: an added user, in the bits below. (No pass begins so.)
const A_USER: u64 = 1 << 62;
const USER_MASK: u64 = A_USER - 1;
const REASON_SHIFT: u32 = 53;
const REASON_MASK: u64 = 7 << REASON_SHIFT;
const ALIGN_SHIFT: u32 = 56;
const ALIGN_MASK: u64 = 63 << ALIGN_SHIFT;
/// Sizes are multiples of 16, the smallest alignment.
const SIZE_MASK: u64 = ((1 << 48) - 1) & !15;
/// Free, one of its stream's recent blocks: not to be merged with.
pub(crate) const RECENT: u64 = 8;
/// A recent block, in its chain still, that has taken in all that it merges with: see [`super::merge::settle_one`].
pub(crate) const GATHERED: u64 = 1;
/// All flags of a recent block.
pub(crate) const RESTING: u64 = FREE | RECENT;
pub(crate) const LIVE: u64 = 2;
pub(crate) const FREE: u64 = 4;

#[derive(Default)]
#[repr(align(64))]
pub(crate) struct Block {
    addr: AtomicU64,
    /// Size in the low 48 bits, of which the lowest 4 are flags too; flags above.
    size_flags: AtomicU64,
    /// Live: requested bytes. Free: tree links, left in the low half; or the next recent block.
    links: AtomicU64,
    prev: AtomicU32,
    next: AtomicU32,
    page: AtomicU32,
    generation: AtomicU32,
    stream: AtomicU64,
    /// Live: ready_seq. Free with one point: its sequence number.
    seq: AtomicU64,
    /// Free, in a tree: none of the subtree has a smaller `seq`. Live: see [`Block::pass`]. Else 0 or of no meaning.
    min_seq: AtomicU64,
}

const _: () = assert!(std::mem::size_of::<Block>() == 64);

macro_rules! field {
    ($get:ident, $set:ident, $field:ident, $ty:ty) => {
        #[inline(always)]
        pub(crate) fn $get(&self) -> $ty {
            self.$field.load(Relaxed)
        }
        #[inline(always)]
        pub(crate) fn $set(&self, value: $ty) {
            self.$field.store(value, Relaxed);
            self.changed();
        }
    };
}

impl Block {
    /// The record is about to be changed, or has just been: by who holds the lock of its domain, if it is a block.
    #[cfg(not(debug_assertions))]
    #[inline(always)]
    fn changed(&self) {}
    #[cfg(debug_assertions)]
    fn changed(&self) {
        checks::interrupt();
        let domain = self.stream();
        let held = || match domain {
            OBSERVED | MULTI | HOST => checks::holds_slow(),
            stream => super::caches::STREAMS.get(stream.slot()).is_some_and(|record| {
                // (The blocks of a stream that is forgotten stay live.)
                let uid = || super::page::page(self.page()).device_uid.load(Relaxed);
                record.state.is_held() || checks::holds_slow() && !record.is(uid(), stream)
            }),
        };
        // (Without a size it is no block.)
        let size_flags = self.size_flags();
        debug_assert!(size_flags == 0 || held(), "{domain:?} is not locked: {:#x} {size_flags:#x}", self.addr());
    }

    field!(addr, set_addr, addr, u64);
    field!(page, set_page, page, u32);
    field!(generation, set_generation, generation, u32);
    field!(seq, set_seq, seq, u64);
    field!(min_seq, set_min_seq, min_seq, u64);

    #[inline(always)]
    pub(crate) fn prev(&self) -> u32 {
        self.prev.load(Relaxed)
    }
    #[inline(always)]
    pub(crate) fn set_prev(&self, prev: u32) {
        self.prev.store(prev, Relaxed);
        #[cfg(debug_assertions)]
        checks::interrupt();
    }
    #[inline(always)]
    pub(crate) fn next(&self) -> u32 {
        self.next.load(Relaxed)
    }
    /// The link, read by who holds no lock: leads to a block that is complete.
    #[inline(always)]
    pub(crate) fn next_acquire(&self) -> u32 {
        self.next.load(Acquire)
    }
    #[inline(always)]
    pub(crate) fn set_next(&self, next: u32) {
        self.next.store(next, Release);
        self.changed();
    }

    /// Live: what its free on its own stream needs, in one word: the upper bits of its handle, and in place of the slot what
    /// [`place`] says of its entry. 0 where more must be looked at: a name, added users, noted accesses, a larger alignment, a
    /// block that would merge with others when it is freed, or a record whose generations are used up. (What else this word holds, a
    /// sequence number or [`A_USER`], has the uppermost bit clear, which each handle has set: a stream has at most 2^61 operations and a few.)
    #[inline(always)]
    pub(crate) fn pass(&self) -> u64 {
        self.min_seq.load(Relaxed)
    }
    #[inline(always)]
    pub(crate) fn set_pass(&self, pass: u64) {
        self.min_seq.store(pass, Relaxed);
        self.changed();
    }
    /// The block's place, if the pass is that of the block that `allocation` names: the pool's slot, if it is for the quick way.
    #[inline(always)]
    pub(crate) fn passes(&self, allocation: u64) -> Option<u32> {
        let pass = self.pass();
        // (A caller may name anything: a null handle is none without a pass.)
        (handle::may_be_one(allocation) && (pass ^ allocation) & !handle::SLOT_MASK == 0).then_some(handle::slot(pass))
    }

    /// A live block with [`USERS`]: its only added user, which it keeps in place of the pass. `None`: the pool's table has them.
    #[inline(always)]
    pub(crate) fn sole_user(&self) -> Option<StreamRef> {
        let kept = self.pass();
        (kept & !USER_MASK == A_USER).then_some(StreamRef(kept & USER_MASK))
    }
    /// Keeps the only added user. `false`: it cannot be kept here.
    pub(crate) fn set_sole_user(&self, user: StreamRef) -> bool {
        let fits = user.0 & !USER_MASK == 0;
        if fits {
            self.set_pass(A_USER | user.0);
        }
        fits
    }

    #[inline(always)]
    pub(crate) fn requested(&self) -> u64 {
        self.links.load(Relaxed)
    }
    #[inline(always)]
    pub(crate) fn set_requested(&self, bytes: u64) {
        self.links.store(bytes, Relaxed);
        self.changed();
    }
    #[inline(always)]
    pub(crate) fn children(&self) -> (u32, u32) {
        let links = self.links.load(Relaxed);
        (links as u32, (links >> 32) as u32)
    }
    #[inline(always)]
    pub(crate) fn set_children(&self, left: u32, right: u32) {
        self.links.store(u64::from(left) | (u64::from(right) << 32), Relaxed);
        self.changed();
    }
    /// Makes it a tree of its own.
    #[inline(always)]
    pub(crate) fn be_leaf(&self) {
        self.links.store(u64::MAX, Relaxed);
        self.min_seq.store(self.seq.load(Relaxed), Relaxed);
        self.changed();
    }
    /// The next of a chain of recent blocks.
    #[inline(always)]
    pub(crate) fn link(&self) -> u32 {
        self.links.load(Relaxed) as u32
    }
    #[inline(always)]
    pub(crate) fn set_link(&self, next: u32) {
        self.links.store(u64::from(next), Relaxed);
        self.changed();
    }
    /// In its tree, it has no children.
    #[inline(always)]
    pub(crate) fn is_leaf(&self) -> bool {
        self.links.load(Relaxed) == u64::MAX
    }
    #[inline(always)]
    pub(crate) fn stream(&self) -> StreamRef {
        StreamRef(self.stream.load(Relaxed))
    }
    #[inline(always)]
    pub(crate) fn set_stream(&self, stream: StreamRef) {
        self.changed();
        self.stream.store(stream.0, Relaxed);
        self.changed();
    }
    #[inline(always)]
    pub(crate) fn size(&self) -> u64 {
        self.size_flags.load(Relaxed) & SIZE_MASK
    }
    #[inline(always)]
    pub(crate) fn end(&self) -> u64 {
        self.addr() + self.size()
    }
    #[inline(always)]
    pub(crate) fn has(&self, flag: u64) -> bool {
        self.size_flags.load(Relaxed) & flag != 0
    }
    /// The size in a word that [`Block::size_flags`] gave.
    #[inline(always)]
    pub(crate) fn size_in(size_flags: u64) -> u64 {
        size_flags & SIZE_MASK
    }
    /// Size and all flags at once.
    #[inline(always)]
    pub(crate) fn set_size_flags(&self, size: u64, flags: u64) {
        debug_assert!(size & !SIZE_MASK == 0 && flags & SIZE_MASK == 0);
        self.changed();
        self.size_flags.store(size | flags, Relaxed);
        self.changed();
    }
    /// The same, as the last of what makes a record that was given out a block, or a block an allocation: who reads it sees the
    /// rest too.
    #[inline(always)]
    pub(crate) fn set_size_flags_last(&self, size: u64, flags: u64) {
        debug_assert!(size & !SIZE_MASK == 0 && flags & SIZE_MASK == 0);
        self.size_flags.store(size | flags, Release);
        self.changed();
    }
    /// The size, read before all else of the record.
    #[inline(always)]
    pub(crate) fn size_acquire(&self) -> u64 {
        self.size_flags.load(Acquire) & SIZE_MASK
    }
    /// Size and flags in one word.
    #[inline(always)]
    pub(crate) fn size_flags(&self) -> u64 {
        self.size_flags.load(Relaxed)
    }
    #[inline(always)]
    pub(crate) fn size_flags_acquire(&self) -> u64 {
        self.size_flags.load(Acquire)
    }
    /// All flags at once, after all else that was changed.
    #[inline(always)]
    pub(crate) fn set_flags(&self, flags: u64) {
        self.changed();
        self.size_flags.store(self.size_flags.load(Relaxed) & SIZE_MASK | flags, Release);
        self.changed();
    }
    #[inline(always)]
    pub(crate) fn flags(&self) -> u64 {
        self.size_flags.load(Relaxed) & !SIZE_MASK
    }
    #[inline(always)]
    pub(crate) fn add_flag(&self, flag: u64) {
        self.changed();
        self.size_flags.store(self.size_flags.load(Relaxed) | flag, Relaxed);
        self.changed();
    }
    #[inline(always)]
    pub(crate) fn drop_flag(&self, flag: u64) {
        self.changed();
        self.size_flags.store(self.size_flags.load(Relaxed) & !flag, Relaxed);
        self.changed();
    }
    /// Free, and not recent.
    #[inline(always)]
    pub(crate) fn is_settled(&self) -> bool {
        self.size_flags.load(Relaxed) & (FREE | RECENT) == FREE
    }
    /// Free, and to be merged with.
    #[inline(always)]
    pub(crate) fn merges(&self) -> bool {
        self.size_flags.load(Relaxed) & (FREE | RECENT | WHOLE) == FREE
    }
    /// A free block of the entry with that [`place`], in no structure, becomes the allocation of that handle, for
    /// [`super::Reason::SameStream`], which is 0.
    #[inline(always)]
    pub(crate) fn serve(&self, allocation: u64, size: u64, requested: u64, place: u32) {
        debug_assert!(self.size() == size && self.has(FREE));
        self.set_generation(handle::generation(allocation));
        self.set_requested(requested);
        self.set_size_flags_last(size, LIVE);
        self.set_pass(allocation & !handle::SLOT_MASK | u64::from(place));
    }
    /// The allocation of that way is free again, and recent: its bytes.
    #[inline(always)]
    pub(crate) fn rest(&self) -> u64 {
        let size = self.size();
        self.set_size_flags(size, RESTING);
        self.set_pass(0);
        size
    }
    pub(crate) fn reason(&self) -> u64 {
        (self.size_flags.load(Relaxed) & REASON_MASK) >> REASON_SHIFT
    }
    /// Exponent of the alignment asked for beyond the device's, 0 if none.
    pub(crate) fn align_log2(&self) -> u32 {
        ((self.size_flags.load(Relaxed) & ALIGN_MASK) >> ALIGN_SHIFT) as u32
    }
    /// The address given out: the block's, rounded up to a larger alignment if one was asked for.
    #[inline(always)]
    pub(crate) fn address(&self) -> u64 {
        let mask = (1u64 << self.align_log2()) - 1;
        (self.addr() + mask) & !mask
    }
}

/// The pass (see [`Block::pass`]) of the live block that `allocation` names, of the entry with that place, if nothing else
/// speaks against it.
#[inline(always)]
pub(crate) fn pass(allocation: u64, place: u32) -> u64 {
    match handle::generation(allocation) < GENERATION_LIMIT {
        true => allocation & !handle::SLOT_MASK | u64::from(place),
        false => 0,
    }
}

/// Slots of pools have so many bits; the other eight of a slot are left for an entry, of which a pool has 32 at most, and a bit.
pub(super) const PLACE_SHIFT: u32 = 20;
/// A place in an entry whose blocks are whole pages.
const PAGE: u32 = 1 << 27;
const _: () = assert!(super::config::MAX_ENTRIES <= (PAGE >> PLACE_SHIFT) as usize);

/// Where a block belongs, in its pass: for the quick way, that is in a pool's first entry if its blocks are `carved`, the pool's
/// slot; else the number of the entry and, where they are not carved, a bit stand above it, so that the quick way takes it for a
/// slot that no pool has.
pub(crate) fn place(pool_slot: u32, entry: usize, carved: bool) -> u32 {
    debug_assert!(pool_slot >> PLACE_SHIFT == 0 && entry < super::config::MAX_ENTRIES);
    (entry as u32) << PLACE_SHIFT | pool_slot | if carved { 0 } else { PAGE }
}

/// The pool's slot and the entry in a place.
#[inline(always)]
pub(crate) fn placed(place: u32) -> (usize, usize) {
    let (pool_slot, entry) = (place & ((1 << PLACE_SHIFT) - 1), (place & !PAGE) >> PLACE_SHIFT);
    (pool_slot as usize, entry as usize)
}

/// Whether a place is for the quick way.
#[inline(always)]
pub(crate) fn is_quick(place: u32) -> bool {
    place >> PLACE_SHIFT == 0
}

/// Whether a place is in an entry whose blocks are whole pages.
#[inline(always)]
pub(crate) fn is_page(place: u32) -> bool {
    place & PAGE != 0
}

pub(crate) fn live_flags(reason: u64, align_log2: u32) -> u64 {
    LIVE | (reason << REASON_SHIFT) | (u64::from(align_log2) << ALIGN_SHIFT)
}

#[inline(always)]
pub(crate) fn block(index: u32) -> &'static Block {
    BLOCKS.at(index)
}

/// What an allocation handle names, live or not.
pub(crate) struct Named {
    allocation: AllocationId,
    generation: u32,
    pub(crate) index: u32,
    pub(crate) record: &'static Block,
}

/// The record an allocation handle names.
///
/// # Errors
/// An invalid handle, if none of that slot was ever given out.
pub(crate) fn named(allocation: AllocationId) -> Result<Named> {
    let kind = handle::Kind::Allocation;
    handle::decode(kind, allocation.0)
        .and_then(|(index, generation)| BLOCKS.get(index).map(|record| Named { allocation, generation, index, record }))
        .ok_or_else(|| handle::invalid(kind, allocation.0))
}

impl Named {
    /// `Ok` if the handle's allocation is the one that is live now. Holds for as long as the domain's lock is held.
    pub(crate) fn judge_live(&self) -> Result<()> {
        let b = self.record;
        // In this order, who holds no lock does not take a later allocation's life for that of this one.
        let live = b.has(LIVE);
        fence(Acquire);
        handle::judge(handle::Kind::Allocation, self.allocation.0, self.generation, b.generation(), live)
    }
}

/// A small stock of free record slots, so that splitting on the hot path takes no shared lock.
#[derive(Default)]
pub(crate) struct Stock(Vec<u32>);

const STOCK_BATCH: usize = 64;
/// With so many some go back, so that a program that goes up and down by some hundred blocks takes none each time.
const STOCK_MOST: usize = 8 * STOCK_BATCH;

impl Stock {
    /// A fresh record, or `None` when the process has run out of slots (2^28 blocks) or of memory for them.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<u32> {
        if self.0.is_empty() {
            self.refill();
        }
        // That its size became 0 is seen by whoever sees what becomes of it now (look-ups hold no lock).
        fence(Release);
        self.0.pop()
    }
    /// Has `count` records for [`Stock::take`]; `false` when the process has run out of slots, or of memory for them.
    pub(crate) fn ensure(&mut self, count: usize) -> bool {
        while self.0.len() < count {
            let had = self.0.len();
            self.refill();
            if self.0.len() == had {
                return false;
            }
        }
        true
    }
    #[cold]
    fn refill(&mut self) {
        if self.0.try_reserve(STOCK_MOST + STOCK_BATCH).is_ok() {
            BLOCKS.take(STOCK_BATCH, &mut self.0);
        }
    }
    #[inline(always)]
    pub(crate) fn give(&mut self, index: u32) {
        self.give_record(index, block(index));
    }
    /// The same, for a caller that has the record at hand.
    #[inline(always)]
    pub(crate) fn give_record(&mut self, index: u32, record: &Block) {
        record.set_size_flags(0, 0);
        self.give_sizeless(index, record);
    }
    /// The same, of a record that has lost its size already.
    #[inline(always)]
    pub(crate) fn give_sizeless(&mut self, index: u32, record: &Block) {
        debug_assert!(record.size_flags() == 0);
        if record.generation() >= GENERATION_LIMIT {
            return; // used up: the slot is retired
        }
        self.0.push(index);
        if self.0.len() >= STOCK_MOST {
            self.spill();
        }
    }
    #[cold]
    fn spill(&mut self) {
        let keep = self.0.len() / 2;
        BLOCKS.give_back(self.0.drain(keep..));
    }
    pub(crate) fn give_back(&mut self) {
        BLOCKS.give_back(self.0.drain(..));
    }
}

impl Drop for Stock {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Generations of one slot. Small in test builds of this crate, so that retiring is exercised.
pub(crate) const GENERATION_LIMIT: u32 = if cfg!(test) { 40 } else { u32::MAX - 1 };

#[cfg(test)]
mod tests {
    use super::GENERATION_LIMIT;
    use crate::device::{self, ModelOptions};
    use crate::handle::{self, Kind};
    use crate::pool::{self, MemoryPoolConfig, PoolConfig};
    use crate::{Status, stream};
    use std::collections::HashSet;

    /// A block between two live ones of other streams, so that the new record has to be linked on both sides.
    #[test]
    fn a_slot_whose_generations_are_used_up_is_retired_and_no_handle_is_given_out_twice() {
        for config in [
            MemoryPoolConfig::Sliced {
                page_size: 1 << 16,
                max_slice_size: None,
                max_pool_size: None,
                dealloc_period: None,
            },
            MemoryPoolConfig::Direct { reclaim_at: None },
            MemoryPoolConfig::Exclusive { max_alloc_size: 1 << 20, dealloc_period: None },
            MemoryPoolConfig::Mapped {
                range_size: 1 << 30,
                chunk_size: 1 << 21,
                max_pool_size: None,
                dealloc_period: None,
            },
        ] {
            let device = device::open_model(&ModelOptions::default()).unwrap();
            let pool = pool::create(device, &PoolConfig::with_entries(vec![config])).unwrap();
            let [left, middle, right] = [(); 3].map(|()| stream::create(device, Default::default()).unwrap());
            let before = pool::alloc_async(pool, 512, left).unwrap();
            let mut block = pool::alloc_async(pool, 512, middle).unwrap();
            let after = pool::alloc_async(pool, 512, right).unwrap();
            let address = pool::info(block).unwrap().address;
            let mut seen = HashSet::from([block]);
            let mut slots = HashSet::new();
            for _ in 0..4 * GENERATION_LIMIT {
                pool::free_async(block, middle).unwrap();
                assert_eq!(pool::free_async(block, middle).unwrap_err().status, Status::Freed);
                block = pool::alloc_async(pool, 512, middle).unwrap();
                pool::check_invariants(pool).unwrap();
                assert_eq!(pool::info(block).unwrap().address, address);
                assert!(seen.insert(block), "a handle was given out twice");
                slots.insert(handle::decode(Kind::Allocation, block.0).unwrap().0);
            }
            assert!(slots.len() >= 4, "slots are retired: {}", slots.len());
            for old in seen.into_iter().filter(|&old| old != block) {
                assert_eq!(pool::info(old).unwrap_err().status, Status::Freed);
            }
            for live in [before, block, after] {
                pool::free(live).unwrap();
            }
            device::synchronize(device).unwrap();
            pool::check_invariants(pool).unwrap();
            pool::trim_to(pool, 0).unwrap();
            assert_eq!(pool::stats(pool).unwrap().reserved, 0);
        }
    }
}
