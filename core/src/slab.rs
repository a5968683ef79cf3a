//! Records that are addressed by a small number and never move: blocks, pages, streams, events, pools, devices.
//!
//! A slab only grows; a freed slot is given out again. Because a record's memory stays, any number can be looked up at
//! any time, from any thread, and be judged by the generation kept inside the record: this is what makes stale and
//! random handles harmless without `unsafe`.

use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

const FIRST_LEVEL_BITS: u32 = 8;
const LEVELS: usize = 21;

/// The number of slots a slab can hold: 2^28.
pub(crate) const MAX_SLOTS: u32 = 1 << 28;

/// A growing table of `T`, in chunks that double.
pub(crate) struct Slab<T> {
    chunks: [OnceLock<Box<[T]>>; LEVELS],
    used: AtomicU32,
    free: Mutex<Vec<u32>>,
}

impl<T: Default> Slab<T> {
    pub(crate) const fn new() -> Self {
        Slab { chunks: [const { OnceLock::new() }; LEVELS], used: AtomicU32::new(0), free: Mutex::new(Vec::new()) }
    }

    #[inline(always)]
    fn place(slot: u32) -> (usize, usize) {
        let shifted = slot + (1 << FIRST_LEVEL_BITS);
        let level = 31 - shifted.leading_zeros();
        ((level - FIRST_LEVEL_BITS) as usize, (shifted - (1 << level)) as usize)
    }

    /// The record in `slot`, if that slot was ever given out (or shares a chunk with one that was).
    #[inline(always)]
    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        if slot >= MAX_SLOTS {
            return None;
        }
        let (level, index) = Self::place(slot);
        self.chunks.get(level)?.get()?.get(index)
    }

    /// The record in `slot`, which the caller knows to have been given out.
    #[inline(always)]
    pub(crate) fn at(&self, slot: u32) -> &T {
        let (level, index) = Self::place(slot);
        &self.chunks[level].get().expect("a slot that was given out")[index]
    }

    /// Takes up to `count` free slots at once; fewer only when the slab is full.
    pub(crate) fn take(&self, count: usize, out: &mut Vec<u32>) {
        let mut free = self.free.lock();
        for _ in 0..count {
            let slot = match free.pop() {
                Some(slot) => slot,
                None => {
                    let slot = self.used.load(Ordering::Relaxed);
                    if slot >= MAX_SLOTS {
                        return;
                    }
                    let (level, _) = Self::place(slot);
                    self.chunks[level].get_or_init(|| {
                        (0..1usize << (FIRST_LEVEL_BITS + level as u32)).map(|_| T::default()).collect()
                    });
                    self.used.store(slot + 1, Ordering::Relaxed);
                    slot
                }
            };
            out.push(slot);
        }
    }

    /// Takes one slot.
    pub(crate) fn take_one(&self) -> Option<u32> {
        let mut one = Vec::with_capacity(1);
        self.take(1, &mut one);
        one.pop()
    }

    /// Gives slots back.
    pub(crate) fn give_back(&self, slots: impl IntoIterator<Item = u32>) {
        self.free.lock().extend(slots);
    }
}
