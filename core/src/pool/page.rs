//! Pages: what a device granted, who it belongs to, and which block starts where in it.
//!
//! The start index of a carved page serves pointer look-ups: per alignment unit the block that was last allocated from
//! there, in chunks. A chunk with one block that starts in it is that block's number alone; its list is made when a second
//! one comes. Only an allocation writes the index, so what has merged since is still named: entries are checked when read,
//! never trusted. An inner pointer looks back for the last start that still is one; a
//! free block that never was an allocation is found from the block before it.

use super::block::{Block, INDEXED, LIVE, NIL, block};
use crate::slab::Slab;
use once_cell::race::OnceBox;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::mem::size_of;
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// Every page of the process.
pub(crate) static PAGES: Slab<Page, { 1 << 18 }> = Slab::new();

/// Page slots given back, by shape, so that an index is only reused for a page of the same shape.
static SPARE: Mutex<Option<Spare>> = Mutex::new(None);

/// Shape → page slots.
type Spare = HashMap<u64, Vec<u32>>;

/// Units a chunk covers: 32 KiB of a page at 512-byte alignment, for 12 bytes of index, and 256 more where it has a list.
const CHUNK: usize = 64;

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
    /// By chunk: the one block that starts in it, or the first of several. Stays while that block starts there.
    lone: Box<[AtomicU32]>,
    /// A bit per chunk that ever had a start, so that looking back over a large block is quick.
    made: Box<[AtomicU64]>,
}

impl Chunked {
    fn new(units: u64) -> Chunked {
        let chunks = units.div_ceil(CHUNK as u64);
        Chunked {
            chunks: (0..chunks).map(|_| OnceBox::new()).collect(),
            lone: (0..chunks).map(|_| AtomicU32::new(NIL)).collect(),
            made: (0..chunks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
        }
    }
    #[inline(always)]
    fn mark(&self, at: usize) {
        let (word, bit) = (&self.made[at / 64], 1 << (at % 64));
        if word.load(Relaxed) & bit == 0 {
            word.fetch_or(bit, Relaxed);
        }
    }
    /// `start_of` tells where a block starts, if it does in this list.
    #[inline(always)]
    fn set(&self, unit: usize, index: u32, start_of: impl Fn(u32) -> Option<usize>) {
        let at = unit / CHUNK;
        let Some(place) = self.chunks.get(at) else { return };
        let chunk = match place.get() {
            Some(chunk) => chunk,
            None => {
                let Some(lone) = self.lone.get(at) else { return };
                let now = lone.load(Acquire);
                let gone = now == NIL || start_of(now).is_none_or(|start| start / CHUNK != at || start == unit);
                if gone && lone.compare_exchange(now, index, Release, Relaxed).is_ok() {
                    self.mark(at);
                    return;
                }
                Chunked::make(place)
            }
        };
        chunk.0[unit % CHUNK].store(index, Relaxed);
        self.mark(at);
    }
    #[cold]
    #[inline(never)]
    fn make(place: &OnceBox<Chunk>) -> &Chunk {
        place.get_or_init(Box::default)
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
    /// The last block that starts at or before `unit`, of those that still start where they did.
    fn last_start(&self, unit: usize, start_of: impl Fn(u32) -> Option<usize>) -> Option<u32> {
        let mut at = unit / CHUNK;
        let mut within = unit % CHUNK;
        loop {
            let made = self.last_made(at)?;
            if made != at {
                (at, within) = (made, CHUNK - 1);
            }
            let good = |index: u32, from: usize| {
                index != NIL && start_of(index).is_some_and(|start| (from..=at * CHUNK + within).contains(&start))
            };
            let lone = Some(self.lone[at].load(Acquire)).filter(|&lone| good(lone, at * CHUNK));
            let lone_start = lone.and_then(&start_of).unwrap_or(at * CHUNK);
            if let Some(chunk) = self.chunks[at].get() {
                // What starts after the lone one.
                let after = lone_start - at * CHUNK;
                for (place, start) in chunk.0.iter().enumerate().take(within + 1).skip(after).rev() {
                    let start = start.load(Relaxed);
                    if start != NIL && start_of(start) == Some(at * CHUNK + place) {
                        return Some(start);
                    }
                }
            }
            if lone.is_some() {
                return lone;
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

/// Where a block starts in one list of a [`Wide`] index.
#[inline(always)]
fn within_list(number: usize, start_of: impl Fn(u32) -> Option<usize>) -> impl Fn(u32) -> Option<usize> {
    move |index| start_of(index)?.checked_sub(number * LIST_UNITS).filter(|&start| start < LIST_UNITS)
}

impl Wide {
    fn new(units: u64) -> Wide {
        Wide((0..units.div_ceil(LIST_UNITS as u64)).map(|_| OnceBox::new()).collect())
    }
    #[inline(always)]
    fn set(&self, unit: usize, index: u32, start_of: impl Fn(u32) -> Option<usize>) {
        let number = unit / LIST_UNITS;
        if let Some(place) = self.0.get(number) {
            let list = place.get().unwrap_or_else(|| Wide::make(place));
            list.set(unit % LIST_UNITS, index, within_list(number, start_of));
        }
    }
    #[cold]
    #[inline(never)]
    fn make(place: &OnceBox<Chunked>) -> &Chunked {
        place.get_or_init(|| Box::new(Chunked::new(LIST_UNITS as u64)))
    }
    fn last_start(&self, unit: usize, start_of: impl Fn(u32) -> Option<usize>) -> Option<u32> {
        let lists = self.0.get(..=unit / LIST_UNITS)?;
        let mut within = unit % LIST_UNITS;
        for (number, list) in lists.iter().enumerate().rev() {
            let start_of = within_list(number, &start_of);
            if let Some(start) = list.get().and_then(|list| list.last_start(within, start_of)) {
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
        for lone in &self.lone {
            lone.store(NIL, Relaxed);
        }
        self.each_made(|chunk| {
            for start in &chunk.0 {
                start.store(NIL, Relaxed);
            }
        });
    }
    fn bytes(&self) -> usize {
        let mut made = 0;
        self.each_made(|_| made += 1);
        self.chunks.len() * (size_of::<OnceBox<Chunk>>() + size_of::<u32>()) + made * size_of::<Chunk>()
    }
}

impl PageIndex {
    #[inline(always)]
    fn unit(&self, addr: u64) -> u64 {
        // Wraps for a reader that races with the page's reuse; what it finds is checked.
        addr.wrapping_sub(self.base.load(Relaxed)) >> self.unit_log2.load(Relaxed)
    }
    /// Where a block starts in the page whose slot is `slot` and whose index this is, if it is one of its blocks.
    #[inline(always)]
    fn start_of(&self, slot: u32) -> impl Fn(u32) -> Option<usize> {
        let (base, unit_log2) = (self.base.load(Relaxed), self.unit_log2.load(Relaxed));
        move |index| {
            let b = block(index);
            // A record that is part of another block now has no size.
            (b.page() == slot && b.size() != 0).then(|| (b.addr().wrapping_sub(base) >> unit_log2) as usize)
        }
    }
    /// A block of the page that is being allocated starts at `addr`.
    #[inline(never)]
    fn set(&self, slot: u32, addr: u64, index: u32) {
        let unit = self.unit(addr);
        match self.kind.get() {
            Some(Kind::Chunked(chunked)) => chunked.set(unit as usize, index, self.start_of(slot)),
            Some(Kind::Wide(wide)) => wide.set(unit as usize, index, self.start_of(slot)),
            Some(Kind::Sorted(map)) => {
                map.lock().insert(unit, index);
            }
            None => {}
        }
    }
    /// The block that starts at or last before `addr`, as far as known, of those that still start where they did.
    fn last_start(&self, slot: u32, addr: u64) -> Option<u32> {
        let start_of = self.start_of(slot);
        let unit = self.unit(addr);
        match self.kind.get()? {
            Kind::Chunked(chunked) => chunked.last_start(unit as usize, start_of),
            Kind::Wide(wide) => wide.last_start(unit as usize, start_of),
            Kind::Sorted(map) => map
                .lock()
                .range(..=unit)
                .rev()
                .find(|&(&unit, &index)| start_of(index) == Some(unit as usize))
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
        page(b.page()).index.set(b.page(), b.addr(), index);
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
