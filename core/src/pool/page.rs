//! Pages: what a device granted, who it belongs to, and which block starts where in it.
//!
//! The start index of a carved page serves pointer look-ups: per alignment unit the block that was last allocated from
//! there, in chunks made when first touched. Only an allocation writes it, so what has merged since is still named:
//! entries are checked when read, never trusted. An inner pointer looks back for the last start that still is one; a
//! free block that never was an allocation is found from the block before it.

use super::block::{Block, FREE, INDEXED, LIVE, NIL, block};
use crate::slab::Slab;
use once_cell::race::OnceBox;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::mem::size_of;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Every page of the process.
pub(crate) static PAGES: Slab<Page, { 1 << 18 }> = Slab::new();

/// Page slots given back, by shape, so that an index is only reused for a page of the same shape.
static SPARE: Mutex<Option<Spare>> = Mutex::new(None);

/// Shape → page slots.
type Spare = HashMap<u64, Vec<u32>>;

/// Units a chunk covers: 128 KiB of a page at 512-byte alignment, for 1 KiB of index.
const CHUNK: usize = 256;

/// Up to how many units a page is indexed by one list of chunks (1 GiB at 512-byte alignment); up to how many by lists that
/// are made as needed (16 TiB); beyond, by a sorted map, whose cost follows the blocks and not the page.
const CHUNKED_UNITS: u64 = 1 << 21;
const WIDE_UNITS: u64 = 1 << 35;

/// Units of one list of a [`Wide`] index: 128 MiB at 512-byte alignment.
const LIST_UNITS: usize = 1 << 18;

/// Written by a block's domain without a lock or an atomic exchange: a unit belongs to the block that covers it.
struct Chunk([AtomicU32; CHUNK]);

impl Default for Chunk {
    fn default() -> Self {
        Chunk([const { AtomicU32::new(NIL) }; CHUNK])
    }
}

/// Which block starts where in one page.
#[derive(Default)]
pub(crate) struct PageIndex {
    base: AtomicU64,
    unit_log2: AtomicU32,
    kind: OnceLock<Kind>,
}

enum Kind {
    Chunked(Chunked),
    Wide(Wide),
    Sorted(Mutex<BTreeMap<u64, u32>>),
}

struct Chunked {
    chunks: Box<[OnceBox<Chunk>]>,
    /// A bit per chunk that was ever made, so that looking back over a large block is quick.
    made: Box<[AtomicU64]>,
}

impl Chunked {
    fn new(units: u64) -> Chunked {
        let chunks = units.div_ceil(CHUNK as u64);
        Chunked {
            chunks: (0..chunks).map(|_| OnceBox::new()).collect(),
            made: (0..chunks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
        }
    }
    #[cold]
    fn make(&self, at: usize) -> Option<&Chunk> {
        let chunk = self.chunks.get(at)?.get_or_init(Box::default);
        self.made[at / 64].fetch_or(1 << (at % 64), Relaxed);
        Some(chunk)
    }
    #[inline(always)]
    fn set(&self, unit: usize, index: u32) {
        let chunk = match self.chunks.get(unit / CHUNK).and_then(|chunk| chunk.get()) {
            Some(chunk) => chunk,
            None => match self.make(unit / CHUNK) {
                Some(chunk) => chunk,
                None => return,
            },
        };
        let start = &chunk.0[unit % CHUNK];
        if start.load(Relaxed) != index {
            start.store(index, Relaxed);
        }
    }
    /// The last chunk at or before `at` that was ever made.
    fn last_made(&self, at: usize) -> Option<usize> {
        let mut word = at / 64;
        let mut bits = self.made.get(word)?.load(Relaxed) & (u64::MAX >> (63 - at % 64));
        while bits == 0 {
            word = word.checked_sub(1)?;
            bits = self.made[word].load(Relaxed);
        }
        Some(word * 64 + 63 - bits.leading_zeros() as usize)
    }
    /// The last entry at or before `unit` that `good` accepts.
    fn last_start(&self, unit: usize, good: impl Fn(usize, u32) -> bool) -> Option<u32> {
        let mut at = unit / CHUNK;
        let mut within = unit % CHUNK;
        loop {
            let made = self.last_made(at)?;
            if made != at {
                (at, within) = (made, CHUNK - 1);
            }
            let starts = &self.chunks[at].get()?.0;
            for (place, start) in starts[..=within].iter().enumerate().rev() {
                let start = start.load(Relaxed);
                if start != NIL && good(at * CHUNK + place, start) {
                    return Some(start);
                }
            }
            at = at.checked_sub(1)?;
            within = CHUNK - 1;
        }
    }
    fn each_made(&self, mut visit: impl FnMut(&Chunk)) {
        for (word, bits) in self.made.iter().enumerate() {
            let mut bits = bits.load(Relaxed);
            while bits != 0 {
                if let Some(chunk) = self.chunks[word * 64 + bits.trailing_zeros() as usize].get() {
                    visit(chunk);
                }
                bits &= bits - 1;
            }
        }
    }
}

/// The index of a page so large that most of it may never be touched.
struct Wide(Box<[OnceBox<Chunked>]>);

impl Wide {
    fn new(units: u64) -> Wide {
        Wide((0..units.div_ceil(LIST_UNITS as u64)).map(|_| OnceBox::new()).collect())
    }
    #[inline(always)]
    fn set(&self, unit: usize, index: u32) {
        if let Some(list) = self.0.get(unit / LIST_UNITS) {
            list.get_or_init(|| Box::new(Chunked::new(LIST_UNITS as u64))).set(unit % LIST_UNITS, index);
        }
    }
    fn last_start(&self, unit: usize, good: impl Fn(usize, u32) -> bool) -> Option<u32> {
        let lists = self.0.get(..=unit / LIST_UNITS)?;
        let mut within = unit % LIST_UNITS;
        for (number, list) in lists.iter().enumerate().rev() {
            let good = |unit: usize, index: u32| good(number * LIST_UNITS + unit, index);
            if let Some(start) = list.get().and_then(|list| list.last_start(within, good)) {
                return Some(start);
            }
            within = LIST_UNITS - 1;
        }
        None
    }
    fn each_list(&self) -> impl Iterator<Item = &Chunked> {
        self.0.iter().filter_map(|list| list.get())
    }
}

impl Chunked {
    fn reset(&self) {
        self.each_made(|chunk| {
            for start in &chunk.0 {
                start.store(NIL, Relaxed);
            }
        });
    }
    fn bytes(&self) -> usize {
        let mut made = 0;
        self.each_made(|_| made += 1);
        self.chunks.len() * size_of::<OnceBox<Chunk>>() + made * size_of::<Chunk>()
    }
}

impl PageIndex {
    #[inline(always)]
    fn unit(&self, addr: u64) -> u64 {
        // Wraps for a reader that races with the page's reuse; what it finds is checked.
        addr.wrapping_sub(self.base.load(Relaxed)) >> self.unit_log2.load(Relaxed)
    }
    /// A block that is being allocated starts at `addr`.
    #[inline(always)]
    pub(crate) fn set(&self, addr: u64, index: u32) {
        match self.kind.get() {
            Some(Kind::Chunked(chunked)) => chunked.set(self.unit(addr) as usize, index),
            Some(Kind::Wide(wide)) => wide.set(self.unit(addr) as usize, index),
            Some(Kind::Sorted(map)) => {
                map.lock().insert(self.unit(addr), index);
            }
            None => {}
        }
    }
    /// The block that starts at or last before `addr`, as far as known, of those that still start where they did.
    fn last_start(&self, slot: u32, addr: u64) -> Option<u32> {
        let (base, unit_log2) = (self.base.load(Relaxed), self.unit_log2.load(Relaxed));
        let good = |unit: usize, index: u32| {
            let b = block(index);
            b.page() == slot && b.has(LIVE | FREE) && b.addr().wrapping_sub(base) >> unit_log2 == unit as u64
        };
        match self.kind.get()? {
            Kind::Chunked(chunked) => chunked.last_start(self.unit(addr) as usize, good),
            Kind::Wide(wide) => wide.last_start(self.unit(addr) as usize, good),
            Kind::Sorted(map) => map
                .lock()
                .range(..=self.unit(addr))
                .rev()
                .find(|&(&unit, &index)| good(unit as usize, index))
                .map(|(_, &index)| index),
        }
    }
    fn reset(&self) {
        match self.kind.get() {
            Some(Kind::Chunked(chunked)) => chunked.reset(),
            Some(Kind::Wide(wide)) => wide.each_list().for_each(Chunked::reset),
            Some(Kind::Sorted(map)) => map.lock().clear(),
            None => {}
        }
    }
    /// Bytes the index takes.
    pub(crate) fn bytes(&self) -> u64 {
        match self.kind.get() {
            Some(Kind::Chunked(chunked)) => chunked.bytes() as u64,
            Some(Kind::Wide(wide)) => {
                let lists: usize = wide.each_list().map(Chunked::bytes).sum();
                (wide.0.len() * size_of::<OnceBox<Chunked>>() + lists) as u64
            }
            Some(Kind::Sorted(map)) => (map.lock().len() * size_of::<(u64, u32)>()) as u64,
            None => 0,
        }
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
    pub(crate) index: PageIndex,
    /// What changes while blocks come and go, apart from what does not.
    pub(crate) rest: Rest,
}

/// When a page was last found without a live block.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct Rest {
    /// The pool's allocations when the last live block was freed.
    pub(crate) free_since: AtomicU64,
    /// The entry's list of empty pages names this page.
    pub(crate) listed: AtomicBool,
}

#[inline(always)]
pub(crate) fn page(slot: u32) -> &'static Page {
    PAGES.at(slot)
}

/// What a page's index is made for: 0 for none, else units rounded up to a power of two (so that pages of all sizes share
/// few shapes, and what is kept for reuse stays within what was in use at once), `u64::MAX` for a sorted one.
fn shape(units: u64) -> u64 {
    match units {
        0 => 0,
        1..=WIDE_UNITS => units.next_power_of_two().max(CHUNK as u64),
        _ => u64::MAX,
    }
}

/// A slot for a page of `bytes`; `unit` is the device's alignment for a carved page, 0 for a page of one block.
pub(crate) fn open(base: u64, bytes: u64, unit: u64) -> Option<u32> {
    let units = bytes.checked_div(unit).unwrap_or(0);
    let shape = shape(units);
    let spare = SPARE.lock().get_or_insert_with(HashMap::new).get_mut(&shape).and_then(Vec::pop);
    let slot = match spare {
        Some(slot) => slot,
        None => PAGES.take_one()?,
    };
    let record = page(slot);
    if units > 0 {
        record.index.kind.get_or_init(|| {
            if units <= CHUNKED_UNITS {
                Kind::Chunked(Chunked::new(shape))
            } else if units <= WIDE_UNITS {
                Kind::Wide(Wide::new(shape))
            } else {
                Kind::Sorted(Mutex::default())
            }
        });
        record.index.unit_log2.store(unit.trailing_zeros(), Relaxed);
    }
    record.index.base.store(base, Relaxed);
    record.index.reset();
    record.base.store(base, Relaxed);
    record.bytes.store(bytes, Relaxed);
    record.rest.listed.store(false, Relaxed);
    Some(slot)
}

/// Gives a page's slot back.
pub(crate) fn close(slot: u32, unit: u64) {
    let record = page(slot);
    let bytes = record.bytes.load(Relaxed);
    let units = if record.index.kind.get().is_some() { bytes / unit } else { 0 };
    let shape = shape(units);
    record.device_uid.store(0, Relaxed);
    SPARE.lock().get_or_insert_with(HashMap::new).entry(shape).or_default().push(slot);
}

/// The page's index names a carved block from now on.
#[inline(always)]
pub(crate) fn note_start(index: u32, b: &Block) {
    if b.size_flags() & INDEXED == 0 {
        page(b.page()).index.set(b.addr(), index);
        b.add_flag(INDEXED);
    }
}

impl Page {
    /// Whether a block of the page is live, as far as can be seen without locks.
    pub(crate) fn has_live_block(&self) -> bool {
        let mut at = self.first.load(Relaxed);
        while at != NIL {
            let b = block(at);
            if b.has(LIVE) {
                return true;
            }
            at = b.next();
        }
        false
    }

    /// The block of this page (whose slot is `slot`) that holds `addr`, as far as can be seen without locks. A live block
    /// that stays live is always found.
    pub(crate) fn block_at(&self, slot: u32, addr: u64) -> Option<u32> {
        let mut at = self.index.last_start(slot, addr).unwrap_or_else(|| self.first.load(Relaxed));
        let mut before = None;
        while at != NIL {
            let b = block(at);
            let start = b.addr();
            // Ascending, or someone is changing what is walked over.
            if b.page() != slot || start > addr || before.is_some_and(|before| start <= before) {
                return None;
            }
            if addr < b.end() {
                return Some(at);
            }
            before = Some(start);
            at = b.next();
        }
        None
    }
}
