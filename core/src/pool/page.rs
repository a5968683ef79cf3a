//! Pages: what a device granted, who it belongs to, and which block starts where in it.
//!
//! The start index of a carved page serves pointer look-ups: per alignment unit the block that starts there, in chunks
//! made when first touched, with a bitmap for inner pointers. Entries are checked when read, never trusted.

use super::block::{NIL, block};
use crate::slab::Slab;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Every page of the process.
pub(crate) static PAGES: Slab<Page, { 1 << 18 }> = Slab::new();

/// Page slots given back, by shape, so that an index is only reused for a page of the same shape.
static SPARE: Mutex<Option<Spare>> = Mutex::new(None);

/// (units, log2 of the unit) → page slots.
type Spare = HashMap<(u64, u32), Vec<u32>>;

/// Units a chunk covers: 128 KiB of a page at 512-byte alignment, for 1 KiB of index.
const CHUNK: usize = 256;

struct Chunk {
    starts: [AtomicU32; CHUNK],
    bits: [AtomicU64; CHUNK / 64],
}

impl Default for Chunk {
    fn default() -> Self {
        Chunk { starts: [const { AtomicU32::new(NIL) }; CHUNK], bits: [const { AtomicU64::new(0) }; CHUNK / 64] }
    }
}

/// Which block starts where in one page.
#[derive(Default)]
pub(crate) struct PageIndex {
    base: AtomicU64,
    unit_log2: AtomicU32,
    chunks: OnceLock<Box<[OnceLock<Box<Chunk>>]>>,
    /// A bit per chunk that was ever made, so that looking back over a large block is quick.
    made: OnceLock<Box<[AtomicU64]>>,
}

impl PageIndex {
    #[inline(always)]
    fn unit(&self, addr: u64) -> usize {
        ((addr - self.base.load(Relaxed)) >> self.unit_log2.load(Relaxed)) as usize
    }
    /// A block starts at `addr`.
    #[inline(always)]
    pub(crate) fn set(&self, addr: u64, index: u32) {
        let unit = self.unit(addr);
        if let Some(chunk) = self.chunks.get().and_then(|chunks| chunks.get(unit / CHUNK)) {
            let chunk = match chunk.get() {
                Some(chunk) => chunk,
                None => self.make(chunk, unit / CHUNK),
            };
            chunk.starts[unit % CHUNK].store(index, Relaxed);
            chunk.bits[unit % CHUNK / 64].fetch_or(1 << (unit % 64), Relaxed);
        }
    }
    #[cold]
    fn make<'a>(&self, place: &'a OnceLock<Box<Chunk>>, at: usize) -> &'a Chunk {
        let chunk = place.get_or_init(Box::default);
        if let Some(made) = self.made.get() {
            made[at / 64].fetch_or(1 << (at % 64), Relaxed);
        }
        chunk
    }
    /// The last chunk at or before `at` that was ever made.
    fn last_made(&self, at: usize) -> Option<usize> {
        let made = self.made.get()?;
        let mut word = at / 64;
        let mut bits = made.get(word)?.load(Relaxed) & (u64::MAX >> (63 - at % 64));
        while bits == 0 {
            word = word.checked_sub(1)?;
            bits = made[word].load(Relaxed);
        }
        Some(word * 64 + 63 - bits.leading_zeros() as usize)
    }
    /// None does any more.
    #[inline(always)]
    pub(crate) fn clear(&self, addr: u64) {
        let unit = self.unit(addr);
        if let Some(chunk) = self.chunks.get().and_then(|chunks| chunks.get(unit / CHUNK)).and_then(|chunk| chunk.get())
        {
            chunk.bits[unit % CHUNK / 64].fetch_and(!(1 << (unit % 64)), Relaxed);
        }
    }
    /// The block that starts at or last before `addr`, as far as known; to be checked by the caller.
    fn last_start(&self, addr: u64) -> Option<u32> {
        let chunks = self.chunks.get()?;
        let unit = self.unit(addr);
        let mut at = unit / CHUNK;
        let mut within = unit % CHUNK;
        loop {
            let chunk = self.last_made(at)?;
            if chunk != at {
                (at, within) = (chunk, CHUNK - 1);
            }
            let bits = &chunks.get(at)?.get()?.bits;
            let mut word = within / 64;
            let mut found = bits[word].load(Relaxed) & (u64::MAX >> (63 - within % 64));
            while found == 0 && word > 0 {
                word -= 1;
                found = bits[word].load(Relaxed);
            }
            if found != 0 {
                let start = word * 64 + 63 - found.leading_zeros() as usize;
                return Some(chunks[at].get()?.starts[start].load(Relaxed));
            }
            at = at.checked_sub(1)?;
            within = CHUNK - 1;
        }
    }
    fn reset(&self) {
        for chunk in self.chunks.get().into_iter().flatten().filter_map(|chunk| chunk.get()) {
            for bits in &chunk.bits {
                bits.store(0, Relaxed);
            }
        }
    }
    /// Bytes the index takes.
    pub(crate) fn bytes(&self) -> u64 {
        self.chunks.get().map_or(0, |chunks| {
            let made = chunks.iter().filter(|chunk| chunk.get().is_some()).count();
            (chunks.len() * std::mem::size_of::<OnceLock<Box<Chunk>>>() + made * std::mem::size_of::<Chunk>()) as u64
        })
    }
}

#[derive(Default)]
pub(crate) struct Page {
    pub(crate) base: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// What the host or a kernel uses; 0 if the page cannot be accessed.
    pub(crate) pointer: AtomicU64,
    pub(crate) pool: AtomicU32,
    pub(crate) entry: AtomicU32,
    pub(crate) device_uid: AtomicU32,
    pub(crate) device_slot: AtomicU32,
    /// Slot of the device's legacy stream.
    pub(crate) legacy: AtomicU32,
    /// The block at the page's base.
    pub(crate) first: AtomicU32,
    pub(crate) live: AtomicU64,
    /// The pool's allocations when the last live block was freed.
    pub(crate) free_since: AtomicU64,
    /// The entry's list of empty pages names this page.
    pub(crate) listed: AtomicBool,
    pub(crate) index: PageIndex,
}

#[inline(always)]
pub(crate) fn page(slot: u32) -> &'static Page {
    PAGES.at(slot)
}

/// A slot for a page of `bytes`; `unit` is the device's alignment for a carved page, 0 for a page of one block.
pub(crate) fn open(base: u64, bytes: u64, unit: u64) -> Option<u32> {
    let units = bytes.checked_div(unit).unwrap_or(0);
    let shape = (units, if unit == 0 { 0 } else { unit.trailing_zeros() });
    let spare = SPARE.lock().get_or_insert_with(HashMap::new).get_mut(&shape).and_then(Vec::pop);
    let slot = match spare {
        Some(slot) => slot,
        None => PAGES.take_one()?,
    };
    let record = page(slot);
    if units > 0 {
        let chunks = units.div_ceil(CHUNK as u64);
        record.index.chunks.get_or_init(|| (0..chunks).map(|_| OnceLock::new()).collect());
        record.index.made.get_or_init(|| (0..chunks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect());
        record.index.unit_log2.store(unit.trailing_zeros(), Relaxed);
    }
    record.index.base.store(base, Relaxed);
    record.index.reset();
    record.base.store(base, Relaxed);
    record.bytes.store(bytes, Relaxed);
    record.live.store(0, Relaxed);
    record.listed.store(false, Relaxed);
    Some(slot)
}

/// Gives a page's slot back.
pub(crate) fn close(slot: u32, unit: u64) {
    let record = page(slot);
    let bytes = record.bytes.load(Relaxed);
    let units = if record.index.chunks.get().is_some() { bytes / unit } else { 0 };
    let shape = (units, if units == 0 { 0 } else { unit.trailing_zeros() });
    record.device_uid.store(0, Relaxed);
    SPARE.lock().get_or_insert_with(HashMap::new).entry(shape).or_default().push(slot);
}

impl Page {
    /// The block of this page that holds `addr`, as far as can be seen without locks.
    pub(crate) fn block_at(&self, addr: u64) -> Option<u32> {
        let index = match self.index.chunks.get() {
            None => self.first.load(Relaxed),
            Some(_) => self.index.last_start(addr)?,
        };
        if index == NIL {
            return None;
        }
        let b = block(index);
        (b.addr() <= addr && addr < b.end()).then_some(index)
    }
}
