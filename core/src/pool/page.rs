//! Pages: what a device granted, who it belongs to, and which block holds an address of it.
//!
//! A block is found by walking from neighbour to neighbour, from a start that is known and not far before the address. Known
//! is the block that starts first in each *region* of a page: a word a region, however many blocks there are, which a cut or
//! a merge has to keep only where the border of a region lies between the two blocks. In a region where a look-up had far to
//! walk it leaves *waypoints* for the next: for each part of the region a block that starts there. They are hints, checked
//! when they are read, never trusted; who never looks a pointer up has none.
//!
//! Look-ups take no lock. At any moment the links to the right lead from the first block of a region past every block that
//! stays as it is. A record that becomes another block's under a look-up's feet is noticed, and the walk begins again.

use super::block::{BLOCKS, LIVE, NIL, block};
use crate::leaf::{Leaf, RawLeaf};
use crate::slab::{Slab, SlotMap};
use once_cell::race::OnceBox;
use std::mem::size_of;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};

/// Every page of the process.
pub(crate) static PAGES: Slab<Page, { 1 << 18 }> = Slab::new();

/// Page slots given back, by shape, so that an index is only reused for a page of the same shape.
static SPARE: Leaf<Option<Spare>> = Leaf::new(None);

/// The leaf of the spare records.
pub(crate) fn leaf() -> &'static RawLeaf {
    crate::leaf::raw(&SPARE)
}

/// Shape → page slots.
type Spare = SlotMap<u32, Vec<u32>>;

/// A region has 2 MiB of addresses, and begins at a multiple of that.
const REGION_LOG2: u32 = 21;
pub(crate) const REGION: usize = 1 << REGION_LOG2;

/// Regions of one list: 1 GiB.
const LIST: usize = 512;

/// A walk of more steps leaves waypoints, for parts of about so many blocks.
const FAR: u64 = 16;
const BLOCKS_A_PART: u64 = 8;

/// How often a walk begins again because blocks changed under its feet. Each time needs a change in the very step, or one
/// that is not done yet.
const ATTEMPTS: u32 = 1 << 16;

/// Whether the border of a region lies between two starts.
#[inline(always)]
pub(crate) fn apart(low: u64, high: u64) -> bool {
    (low ^ high) >> REGION_LOG2 != 0
}

/// The regions of a page, in lists; made when the second region has a start, or the first look-up had far to walk.
struct Table(Box<[OnceBox<List>]>);

/// Written by the domain of the block that lies over a region's beginning, under its lock.
struct List {
    /// By region: the block that starts first in it; of no meaning where none does. Of a page's first region the page says so
    /// itself.
    firsts: Box<[AtomicU32]>,
    /// By region, where a look-up ever had far to walk.
    waypoints: OnceBox<Box<[OnceBox<Waypoints>]>>,
}

/// By part of a region, all of which are of one size: a block that started there. Written by look-ups.
struct Waypoints {
    starts: Box<[AtomicU32]>,
    /// For smaller parts, where blocks have become so small that a walk within a part is long.
    finer: OnceBox<Waypoints>,
}

fn nothing(count: usize) -> Box<[AtomicU32]> {
    (0..count).map(|_| AtomicU32::new(NIL)).collect()
}

impl Table {
    fn new(regions: usize) -> Table {
        Table((0..regions.div_ceil(LIST)).map(|_| OnceBox::new()).collect())
    }
    fn lists(&self) -> impl Iterator<Item = &List> {
        self.0.iter().filter_map(|list| list.get())
    }
    fn reset(&self) {
        for list in self.lists() {
            let starts = list.ways().flat_map(|ways| &ways.starts);
            list.firsts.iter().chain(starts).for_each(|known| known.store(NIL, Relaxed));
        }
    }
    fn bytes(&self) -> usize {
        let of_list = |list: &List| {
            let ways: usize = list.ways().map(|ways| size_of::<Waypoints>() + size_of_val(&*ways.starts)).sum();
            size_of::<List>()
                + size_of_val(&*list.firsts)
                + list.waypoints.get().map_or(0, |regions| size_of_val(&**regions))
                + ways
        };
        size_of::<Table>() + size_of_val(&*self.0) + self.lists().map(of_list).sum::<usize>()
    }
}

impl List {
    fn new(regions: usize) -> Box<List> {
        Box::new(List { firsts: nothing(regions), waypoints: OnceBox::new() })
    }
    /// Of all regions and all sizes of parts.
    fn ways(&self) -> impl Iterator<Item = &Waypoints> {
        let regions = self.waypoints.get().into_iter().flatten();
        regions.filter_map(|ways| ways.get()).flat_map(Waypoints::levels)
    }
    /// The block that starts first in a region, in which `addr` lies.
    fn first(&self, slot: u32, at: usize, addr: u64) -> Option<Seen> {
        let first = seen(slot, self.firsts[at].load(Acquire))?;
        (!apart(first.start, addr)).then_some(first)
    }
}

impl Waypoints {
    fn new(parts: u64) -> Box<Waypoints> {
        Box::new(Waypoints { starts: nothing(parts.next_power_of_two() as usize), finer: OnceBox::new() })
    }
    fn part_log2(&self) -> u32 {
        REGION_LOG2 - self.starts.len().ilog2()
    }
    /// The coarsest first.
    fn levels(&self) -> impl Iterator<Item = &Waypoints> {
        std::iter::successors(Some(self), |ways| ways.finer.get())
    }
    /// The last that is `good`, in the region that begins at `begin`, of the parts up to that of `addr`.
    fn last(&self, begin: u64, addr: u64, good: &impl Fn(&AtomicU32) -> Option<Seen>) -> Option<Seen> {
        self.finer.get().and_then(|finer| finer.last(begin, addr, good)).or_else(|| {
            let part_log2 = self.part_log2();
            let parts = ((addr - begin) >> part_log2).min(self.starts.len() as u64 - 1) as usize + 1;
            let here = |(part, way)| good(way).filter(|at| at.start >> part_log2 == (begin >> part_log2) + part as u64);
            self.starts.iter().enumerate().take(parts).rev().find_map(here)
        })
    }
}

/// A block as it was seen at one moment.
#[derive(Clone, Copy, PartialEq)]
struct Seen {
    index: u32,
    start: u64,
    end: u64,
}

/// Blocks changed while they were walked along.
struct Changed;

/// The block of the page in `slot` that `index` names, if it is one.
#[inline(always)]
fn seen(slot: u32, index: u32) -> Option<Seen> {
    let b = BLOCKS.get(index)?;
    // The size of a record that is given back becomes 0 before it gets another address, and another size after that. (All may
    // have happened between two of these lines, and the size be the same again: so the rest is looked at twice as well.)
    let size = b.size_acquire();
    let (start, home) = (b.addr(), b.page());
    fence(Acquire);
    let same = b.size() == size && b.addr() == start && b.page() == home;
    (size != 0 && same && home == slot).then(|| Seen { index, start, end: start.wrapping_add(size) })
}

#[derive(Default)]
#[repr(C)]
pub(crate) struct Page {
    pub(crate) base: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// What the host or a kernel uses; 0 if the page cannot be accessed.
    pub(crate) pointer: AtomicU64,
    table: OnceBox<Table>,
    pub(crate) pool: AtomicU32,
    pub(crate) entry: AtomicU32,
    pub(crate) device_uid: AtomicU32,
    pub(crate) device_slot: AtomicU32,
    /// Slot of the device's legacy stream.
    pub(crate) legacy: AtomicU32,
    /// Of a Mapped entry's: whole blocks of so many bytes serve the stream whose own they are after all others.
    pub(crate) large: AtomicU32,
    /// The block at the page's base.
    pub(crate) first: AtomicU32,
    /// See [`shape`].
    shape: AtomicU32,
    /// What changes while blocks come and go, apart from what does not.
    pub(crate) rest: Rest,
}

const _: () = assert!(size_of::<Page>() == 128);

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

/// What a page's index is made for, which a slot keeps: 0 for none, else log2 of the blocks' alignment, and above it log2 of
/// the regions, rounded up (so that pages of all sizes share few shapes, and what is kept for reuse stays within what was in
/// use at once).
fn shape(base: u64, bytes: u64, unit: u64) -> u32 {
    let Some(unit_log2) = unit.checked_ilog2() else { return 0 };
    let regions = ((base + bytes.max(1) - 1) >> REGION_LOG2) - (base >> REGION_LOG2) + 1;
    regions.next_power_of_two().ilog2() << 8 | unit_log2
}

/// A slot for a page of `bytes`; `unit` is the device's alignment for a carved page, 0 for a page of one block.
pub(crate) fn open(base: u64, bytes: u64, unit: u64) -> Option<u32> {
    let shape = shape(base, bytes, unit);
    let spare = SPARE.lock().get_or_insert_with(SlotMap::default).get_mut(&shape).and_then(Vec::pop);
    let slot = match spare {
        Some(slot) => slot,
        None => PAGES.take_one()?,
    };
    let record = page(slot);
    if let Some(table) = record.table.get() {
        table.reset();
    }
    record.shape.store(shape, Relaxed);
    record.base.store(base, Relaxed);
    record.bytes.store(bytes, Relaxed);
    record.rest.listed.store(false, Relaxed);
    Some(slot)
}

/// Gives a page's slot back.
pub(crate) fn close(slot: u32) {
    let record = page(slot);
    record.device_uid.store(0, Relaxed);
    SPARE.lock().get_or_insert_with(SlotMap::default).entry(record.shape.load(Relaxed)).or_default().push(slot);
}

impl Page {
    /// Whether a block of the page (whose slot is `slot`) is live, as far as can be seen without locks.
    pub(crate) fn has_live_block(&self, slot: u32) -> bool {
        let mut at = self.first.load(Acquire);
        while at != NIL {
            let b = block(at);
            // (What a link named a moment ago may be another page's by now; then nothing live was seen.)
            let live = b.has(LIVE);
            fence(Acquire);
            if b.page() != slot {
                return false;
            }
            if live {
                return true;
            }
            at = b.next_acquire();
        }
        false
    }

    /// Bytes that the page's record and its index take.
    pub(crate) fn metadata_bytes(&self) -> u64 {
        (size_of::<Page>() + self.table.get().map_or(0, Table::bytes)) as u64
    }

    /// Which of the page's regions an address lies in. (Of no meaning, and judged by what is found there, for a reader that
    /// races with the page's reuse.)
    #[inline(always)]
    fn region(&self, addr: u64) -> usize {
        (addr >> REGION_LOG2).wrapping_sub(self.base.load(Relaxed) >> REGION_LOG2) as usize
    }

    /// The list of a region, made if there is none.
    #[cold]
    #[inline(never)]
    fn list(&self, region: usize) -> Option<&List> {
        let regions = 1 << (self.shape.load(Relaxed) >> 8);
        let table = self.table.get_or_init(|| Box::new(Table::new(regions)));
        Some(table.0.get(region / LIST)?.get_or_init(|| List::new(regions.min(LIST))))
    }

    /// The block that starts first in the region of `addr` is `index` from now on.
    #[inline(never)]
    pub(crate) fn set_first(&self, addr: u64, index: u32) {
        let region = self.region(addr);
        if region == 0 {
            self.first.store(index, Release);
            return;
        }
        if let Some(list) = self.table.get().and_then(|table| table.0.get(region / LIST)?.get())
            && let Some(first) = list.firsts.get(region % LIST)
        {
            first.store(index, Release);
            return;
        }
        self.set_first_listed(region, index);
    }

    /// The same, with the region's list made.
    #[cold]
    #[inline(never)]
    fn set_first_listed(&self, region: usize, index: u32) {
        if let Some(first) = self.list(region).and_then(|list| list.firsts.get(region % LIST)) {
            first.store(index, Release);
        }
    }

    /// The block of this page (whose slot is `slot`) that starts first in the region of `addr`.
    pub(crate) fn first_of(&self, slot: u32, addr: u64) -> Option<u32> {
        match self.region(addr) {
            0 => seen(slot, self.first.load(Acquire)),
            region => self.table.get()?.0.get(region / LIST)?.get()?.first(slot, region % LIST, addr),
        }
        .map(|first| first.index)
    }

    /// The block of this page (whose slot is `slot`) that holds `addr`, as far as can be seen without locks. A live block
    /// that stays live is always found.
    pub(crate) fn block_at(&self, slot: u32, addr: u64) -> Option<u32> {
        for attempt in 1..=ATTEMPTS {
            match self.walk(slot, addr) {
                Ok(found) => return found,
                Err(Changed) if attempt % 64 == 0 => std::thread::yield_now(),
                Err(Changed) => std::hint::spin_loop(),
            }
        }
        None
    }

    fn walk(&self, slot: u32, addr: u64) -> Result<Option<u32>, Changed> {
        let from = match self.known_before(slot, addr) {
            Some(from) => from,
            None => match self.first.load(Acquire) {
                NIL => return Ok(None),
                first => seen(slot, first).ok_or(Changed)?,
            },
        };
        if from.start > addr {
            return Ok(None);
        }
        let (mut here, mut steps) = (from, 0);
        while here.end <= addr {
            match step(slot, here, addr)? {
                Some(next) => here = next,
                None => return Ok(None),
            }
            steps += 1;
        }
        if steps > FAR {
            self.leave_waypoints(slot, from, here.start, addr, steps);
        }
        Ok(Some(here.index))
    }

    /// The last start at or before `addr` that is known.
    fn known_before(&self, slot: u32, addr: u64) -> Option<Seen> {
        let table = self.table.get()?;
        let origin = self.base.load(Relaxed) >> REGION_LOG2;
        let region = (addr >> REGION_LOG2).wrapping_sub(origin) as usize;
        let mut within = region % LIST;
        for (number, list) in table.0.get(..=region / LIST)?.iter().enumerate().rev() {
            if let Some(list) = list.get() {
                for at in (0..=within.min(list.firsts.len() - 1)).rev() {
                    let known =
                        self.known_in(slot, list, at, (origin + (number * LIST + at) as u64) << REGION_LOG2, addr);
                    if known.is_some() {
                        return known;
                    }
                }
            }
            within = LIST - 1;
        }
        None
    }

    /// The same in one region, the `at`th of its list, which begins at `begin`.
    #[inline(always)]
    fn known_in(&self, slot: u32, list: &List, at: usize, begin: u64, addr: u64) -> Option<Seen> {
        let good = |index: &AtomicU32| match index.load(Acquire) {
            NIL => None,
            known => match seen(slot, known) {
                Some(there) => (there.start <= addr).then_some(there),
                // Where there are fewer blocks than there were, dead hints are not asked again and again.
                None => {
                    let _ = index.compare_exchange(known, NIL, Relaxed, Relaxed);
                    None
                }
            },
        };
        let known = list.waypoints.get().and_then(|regions| regions[at].get()?.last(begin, addr, &good));
        known.or_else(|| list.first(slot, at, begin)).filter(|first| first.start <= addr)
    }

    /// From a start to the block that holds `addr`, which starts at `to` and is as many steps away: in each part the first block
    /// that is met, where none so early is known.
    #[cold]
    #[inline(never)]
    fn leave_waypoints(&self, slot: u32, from: Seen, to: u64, addr: u64, steps: u64) {
        let mut here = from;
        let mut left = u64::MAX;
        loop {
            let region = self.region(here.start);
            let Some(list) = self.list(region) else { return };
            let waypoints =
                list.waypoints.get_or_init(|| Box::new((0..list.firsts.len()).map(|_| OnceBox::new()).collect()));
            let Some(ways) = waypoints.get(region % LIST) else { return };
            let unit_log2 = self.shape.load(Relaxed) & 0xFF;
            let most = 1 << REGION_LOG2 >> (unit_log2 + BLOCKS_A_PART.ilog2()).min(REGION_LOG2);
            let ways = ways.get_or_init(|| {
                // By how dense the blocks are on this way, which may be the only such place in the region.
                let parts = REGION as u64 * steps / (BLOCKS_A_PART * (addr - from.start));
                Waypoints::new(parts.min(4 * steps).clamp(1, most))
            });
            let ways = ways.levels().last().unwrap_or(ways);
            let (log2, parts) = (ways.part_log2(), ways.starts.len() as u64);
            let ways = match from.start >> log2 == to >> log2 && steps > 2 * FAR && parts < most {
                true => ways.finer.get_or_init(|| Waypoints::new((parts * BLOCKS_A_PART).min(most))),
                false => ways,
            };
            let (log2, parts) = (ways.part_log2(), ways.starts.len());
            let part = here.start >> log2;
            let way = &ways.starts[part as usize % parts];
            let later = |there: Seen| there.start >> log2 != part || there.start > here.start;
            if part != left && seen(slot, way.load(Acquire)).is_none_or(later) {
                way.store(here.index, Release);
            }
            left = part;
            match step(slot, here, addr) {
                Ok(Some(next)) if here.end <= addr => here = next,
                _ => return,
            }
        }
    }
}

/// The next block, which starts at `addr` at the latest. `None`: the page has no more.
#[inline(always)]
fn step(slot: u32, here: Seen, addr: u64) -> Result<Option<Seen>, Changed> {
    let next = block(here.index).next_acquire();
    match seen(slot, next) {
        // Whatever it is, it is a block of this page that leads on.
        Some(next) if here.start < next.start && next.start <= addr => Ok(Some(next)),
        None if next == NIL && seen(slot, here.index) == Some(here) => Ok(None),
        _ => Err(Changed),
    }
}
