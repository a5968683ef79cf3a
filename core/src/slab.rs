//! Records that are addressed by a small number and never move: blocks, pages, streams, events, pools, devices.
//!
//! A slab only grows; a freed slot is given out again. Because a record's memory stays, any number can be looked up at
//! any time, from any thread, and be judged by the generation kept inside the record: this is what makes stale and
//! random handles harmless without `unsafe`.

use crate::leaf::{Leaf, RawLeaf};
use once_cell::race::OnceBox;
use std::sync::atomic::{AtomicU32, Ordering};

const CHUNK_BITS: u32 = 8;
const CHUNK: usize = 1 << CHUNK_BITS;

/// Bytes that the system must have for the process beside new records: lists that grow as these are used and given back need some, and
/// cannot be refused any.
const MARGIN: usize = 1 << 18;

/// The number of slots a handle can name: 2^28. A slab's own limit is `256 * CHUNKS`, at most that.
pub(crate) const MAX_SLOTS: u32 = 1 << 28;

/// A growing table of `T`, in chunks of 256.
pub(crate) struct Slab<T, const CHUNKS: usize> {
    chunks: [OnceBox<[T; CHUNK]>; CHUNKS],
    used: AtomicU32,
    free: Leaf<Vec<u32>>,
}

impl<T: Default, const CHUNKS: usize> Slab<T, CHUNKS> {
    /// How many there can be.
    pub(crate) const SLOTS: u32 = {
        assert!(CHUNKS as u64 * CHUNK as u64 <= MAX_SLOTS as u64);
        (CHUNKS * CHUNK) as u32
    };

    pub(crate) const fn new() -> Self {
        Slab { chunks: [const { OnceBox::new() }; CHUNKS], used: AtomicU32::new(0), free: Leaf::new(Vec::new()) }
    }

    /// The record in `slot`, if that slot was ever given out (or shares a chunk with one that was).
    #[inline(always)]
    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        Some(&self.chunks.get((slot >> CHUNK_BITS) as usize)?.get()?[slot as usize % CHUNK])
    }

    /// As [`Slab::get`], for bits that may be no slot at all: some record or none then, whose own word decides.
    #[inline(always)]
    pub(crate) fn get_wrapped(&self, slot: u32) -> Option<&T> {
        const { assert!(CHUNKS.is_power_of_two()) };
        Some(&self.chunks[(slot >> CHUNK_BITS) as usize % CHUNKS].get()?[slot as usize % CHUNK])
    }

    /// The record in `slot`, which the caller knows to have been given out.
    #[inline(always)]
    pub(crate) fn at(&self, slot: u32) -> &T {
        match self.get_wrapped(slot) {
            Some(record) => record,
            None => never_given_out(slot),
        }
    }

    /// Takes up to `count` free slots at once, for which `out` has room; fewer only when the slab is full or memory is short.
    pub(crate) fn take(&self, count: usize, out: &mut Vec<u32>) {
        let mut free = self.free.lock();
        for _ in 0..count {
            let Some(slot) = self.next(&mut free) else { return };
            out.push(slot);
        }
    }

    /// A free slot, of `free` or a new one.
    fn next(&self, free: &mut Vec<u32>) -> Option<u32> {
        free.pop().or_else(|| {
            let slot = self.used.load(Ordering::Relaxed);
            if slot >= Self::SLOTS {
                return None;
            }
            let chunk = &self.chunks[(slot >> CHUNK_BITS) as usize];
            if chunk.get().is_none() {
                let mut records = Vec::new();
                records.try_reserve_exact(CHUNK).ok()?;
                let mut margin = Vec::<u8>::new();
                margin.try_reserve_exact(MARGIN).ok()?;
                // (A compiler may leave out what nobody looks at.)
                std::hint::black_box(&margin);
                records.extend((0..CHUNK).map(|_| T::default()));
                let made = chunk.set(records.into_boxed_slice().try_into().ok()?);
                debug_assert!(made.is_ok(), "made under the lock");
            }
            self.used.store(slot + 1, Ordering::Relaxed);
            Some(slot)
        })
    }

    /// Its leaf.
    pub(crate) fn leaf(&self) -> &RawLeaf {
        crate::leaf::raw(&self.free)
    }

    /// In a child after a fork: none of the slots that were free is given out. Another thread may have had the lock of one, as who looks at
    /// a record that has just gone does.
    pub(crate) fn forget_free(&self) {
        if let Some(mut free) = self.free.try_lock() {
            free.clear();
        }
    }

    /// Takes one slot.
    pub(crate) fn take_one(&self) -> Option<u32> {
        self.next(&mut self.free.lock())
    }

    /// Gives slots back. Those that there is no memory to note are given out no more.
    pub(crate) fn give_back(&self, slots: impl IntoIterator<Item = u32>) {
        let mut free = self.free.lock();
        for slot in slots {
            if free.try_reserve(1).is_ok() {
                free.push(slot);
            }
        }
    }
}

/// Hashes slots, handles and addresses: numbers that no stranger chooses need no defence and spread well by one multiplication.
#[derive(Clone, Copy, Default)]
pub struct SlotHasher(u64);

impl std::hash::Hasher for SlotHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }
    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }
    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }
    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

/// A map keyed by slots, handles or addresses.
pub type SlotMap<K, V> = std::collections::HashMap<K, V, std::hash::BuildHasherDefault<SlotHasher>>;

#[cold]
#[inline(never)]
fn never_given_out(slot: u32) -> ! {
    panic!("slot {slot} was never given out")
}
