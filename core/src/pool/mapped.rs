//! Mapped entries: blocks in one contiguous range of addresses, under which chunks of memory are mapped where they are
//! needed (`docs/placement.md` §5, §7.1 and §9).
//!
//! A range's blocks are live, free, or *vacant*: no chunk serves there. A free block always has its chunks, so the hot path,
//! which knows free blocks only, need not know of chunks at all. Vacant blocks belong to the slow lock. A chunk stays mapped
//! where it has served (a *ghost*), so that it can come back without a call to the device; once nothing is live it goes back
//! to where it served first (its *home*), so that what is done again and again finds the same places. A chunk has a few dozen
//! ghosts at most, or as many as work that has not run may still use.

use super::Reason;
use super::alloc::{Found, Request, attach_any, detach_any, out_of_records, wait_a_little};
use super::block::{Block, FREE, HOST, MULTI, NIL, OBSERVED, RECENT, UNUSED, VACANT, block};
use super::caches::STREAMS;
use super::config::MAX_PAGE;
use super::fresh::enter_page;
use super::merge::{absorb, cut};
use super::observer::{AllocDone, Event};
use super::page::{self, page};
use super::release;
use super::seams::{Sequences, each_run, look, sequences};
use super::slow::Slow;
use super::span::{Bound, Limits, touches};
use super::state::{Kind, Pool, PoolShared, Sole};
use crate::device_source::{Chunk, PageSource};
use crate::error::Result;
use crate::few::Few;
use crate::handle;
use crate::order::{At, StreamRef};
use crate::rules;
use crate::runtime::native;
use crate::slab::SlotMap;
use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A request for more chunks than this (2 TiB of 2 MiB) is refused as the device would, before lists as long are made.
const MOST_CHUNKS: u64 = 1 << 20;

/// How many chunks of this size an entry may hold, with its high-water mark of `used` bytes, before it moves chunks instead of
/// asking for more: each move costs calls to the device, and a little room saves most of them. What is asked for goes up to
/// there at once. (Where several streams use the entry there is a 32nd more: such programs do not come back to the same places.)
fn budget(used: u64, size: u64, several: bool, tight: bool) -> u64 {
    let least = large(size);
    let share = if tight && !several { 32 } else { 64 };
    let slack = (used / share).max((used.saturating_mul(3) / 32).clamp(least, 3 * least));
    let more = if several { used / 32 } else { 0 };
    used.saturating_add(slack + more) / size
}

/// What is large where chunks have this size.
pub(super) fn large(size: u64) -> u64 {
    size.saturating_mul(8).min(16 << 20)
}

/// How often an entry pauses after chunks were mapped, moved or came back. What is done again and again then needs none of that
/// for so many rounds; and if it needs none anyway, recent blocks are left alone later.
const PAUSES: u32 = 64;

/// An entry is tight once a little was lacking for so many allocations since it paused last, and for one in so many.
const LACKING: u64 = 16;
const LACKING_ONE_IN: u64 = 96;

/// A chunk with so many ghosts drops one before it moves. (Programs that do the same again and again need no more than a few
/// dozen, and each costs a record and, on a device, page tables.)
const MOST_GHOSTS: u64 = 32;

/// A place with nothing mapped.
const NOTHING: u32 = u32::MAX;
/// A place where something is mapped that the device was not willing to unmap: not to be used until it is.
const STUCK: u32 = u32::MAX - 1;
/// Among the ghosts of a place's chunk: none, for it serves there.
const SERVES: u32 = u32::MAX;

/// What a Mapped entry has reserved and mapped; under the slow lock.
#[derive(Default)]
pub(crate) struct Mapping {
    /// By ascending address.
    ranges: Vec<Range>,
    /// Vacant blocks: (address, block), by ascending address. No two of them touch.
    vacant: Vec<(u64, u32)>,
    /// Chunks that serve somewhere, by number. Others have no ghosts.
    chunks: Vec<Serving>,
    /// Numbers that no chunk has.
    free_numbers: Vec<u32>,
    /// Chunks held and mapped nowhere: asked for, and then not needed because another thread was faster.
    spare: Vec<Chunk>,
    /// Chunks that serve.
    mapped: u64,
    /// Places that are ghosts.
    ghosts: u64,
    /// Chunks that do not serve at home.
    away: u64,
    /// How often chunks have gone to other places; those that went together count once.
    turn: u64,
    /// Places that are stuck.
    stuck: Vec<u64>,
    /// The last mark that was set on a chunk.
    mark: Cell<u64>,
    /// With a `dealloc_period`: no chunk can go back by it before the pool has made so many allocations.
    due: u64,
    /// The device's last answer, to a question for chunks or addresses, was no.
    refused: bool,
    /// A little more room would do: see [`Mapping::note_lacking`].
    tight: bool,
    /// For how many allocations a few chunks were moved or came back since the entry paused last.
    lacking: u64,
    /// The pool's allocations when the entry paused last.
    paused_at: u64,
    /// As it was then.
    paused: Enough,
}

/// What was enough until a pause.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Enough {
    /// The high-water mark of used bytes.
    used: u64,
    tight: bool,
    chunks: u64,
}

/// Free points of one block; mostly one at most.
type FreePoints = Few<At, 1>;

/// Where a chunk is mapped. Places are named by their addresses.
struct Serving {
    chunk: Chunk,
    /// Its block uses it from here; 0: it is gone.
    at: u64,
    home: u64,
    /// In no order: a place knows where in here its ghost is.
    ghosts: Vec<Ghost>,
    /// Equal to the mark of the spot that is looked at: its chunk is needed at this place.
    needed: Cell<(u64, u64)>,
}

struct Ghost {
    at: u64,
    /// The turn in which the chunk left.
    left: u64,
    /// What used the chunk from here has run once these have.
    points: Left,
}

/// The points of the free block that a chunk left; mostly one, and many chunks leave at once.
#[derive(Clone)]
enum Left {
    Nothing,
    One(At),
    Several(Arc<[At]>),
}

impl Left {
    fn at(points: &[At]) -> Left {
        match *points {
            [] => Left::Nothing,
            [at] => Left::One(at),
            _ => Left::Several(points.into()),
        }
    }
    fn points(&self) -> &[At] {
        match self {
            Left::Nothing => &[],
            Left::One(at) => std::slice::from_ref(at),
            Left::Several(points) => points,
        }
    }
}

struct Range {
    page: u32,
    base: u64,
    bytes: u64,
    /// Where the range begins for a kernel.
    pointer: u64,
    /// The number of the chunk that is mapped at each place; as long as has been needed.
    places: Vec<u32>,
    /// As long: which of that chunk's ghosts the place is.
    ghosts: Vec<u32>,
    /// A bit for each place: the chunk that serves there is not at home.
    away: Vec<u64>,
    /// The pool's allocations when the place became idle; kept only for `dealloc_period`.
    since: Vec<u64>,
}

/// How well a block can be put somewhere, the least best: missing places, ghosts (if they matter), its address.
type Rank = (u64, u64, u64);

/// [`Range::places`] and [`Range::ghosts`].
type Cells<'a> = (&'a [Cell<u32>], &'a [Cell<u32>]);

/// Those of `count` places from `first` on.
#[inline(always)]
fn some_of(cells: Cells<'_>, first: u64, count: u64) -> impl Iterator<Item = (&Cell<u32>, &Cell<u32>)> {
    let these = first as usize..(first + count) as usize;
    cells.0[these.clone()].iter().zip(&cells.1[these])
}

/// Where a block can be put: `count` places from `first` on.
struct Plan {
    range: usize,
    address: u64,
    first: u64,
    count: u64,
    /// Those with nothing mapped: how many, and the runs of them (the first, how many).
    missing: u64,
    gaps: Vec<(u64, u64)>,
    /// Those that are ghosts: how many, and by ascending place the runs of them whose chunks serve side by side as well.
    back: u64,
    returns: Vec<Return>,
    /// The hole goes on to the end of the range.
    tail: bool,
    /// The hole's blocks, left to right; the first and last may go on beyond the hole.
    hole: Vec<u32>,
}

/// Adjacent chunks that go home together: of which of the sources, from which place on, and where the first is at home.
struct Going {
    source: usize,
    first: u64,
    count: u64,
    home: u64,
}

/// Adjacent chunks that serve at `at` and so on and come back to the places from `place` on.
#[derive(Clone, Copy)]
struct Return {
    at: u64,
    place: u64,
    count: u64,
}

/// Adjacent idle chunks of one free block; or one that lies in several, of which `block` is the first.
struct Source {
    block: u32,
    range: usize,
    first: u64,
    count: u64,
}

/// Where chunks come from: after what they may be used, and why they may be taken.
struct Origin {
    points: FreePoints,
    reason: Reason,
}

/// What comes to adjacent places.
struct Coming {
    place: u64,
    count: u64,
    /// Where these chunks serve, side by side: the range, the first place. None: new chunks.
    from: Option<(usize, u64)>,
    /// Which of the origins is theirs.
    origin: usize,
}

/// A set of chunks, by number.
struct Chunks(Vec<u64>);

impl Chunks {
    fn none_of(count: usize) -> Chunks {
        Chunks(vec![0; count.div_ceil(64)])
    }

    /// Adds one that is below the count that the set was made for.
    #[inline(always)]
    fn add(&mut self, number: u32) {
        self.0[number as usize / 64] |= 1 << (number % 64);
    }

    /// A place with this mapped is open if these chunks are idle.
    #[inline(always)]
    fn opens(&self, number: u32) -> bool {
        match self.0.get(number as usize / 64) {
            Some(word) => word >> (number % 64) & 1 != 0,
            None => number == NOTHING,
        }
    }
}

impl Range {
    /// The number of what is mapped at a place.
    fn number(&self, place: u64) -> u32 {
        self.places.get(place as usize).copied().unwrap_or(NOTHING)
    }
    /// This chunk serves at the place, or its `ghost` is there.
    #[inline(always)]
    fn set(&mut self, place: u64, number: u32, ghost: u32) {
        self.know(place + 1);
        self.places[place as usize] = number;
        self.ghosts[place as usize] = ghost;
    }
    /// There is something to be known of so many places.
    #[inline(always)]
    fn know(&mut self, count: u64) {
        if (self.places.len() as u64) < count {
            self.places.resize(count as usize, NOTHING);
            self.ghosts.resize(count as usize, SERVES);
            self.away.resize(count.div_ceil(64) as usize, 0);
        }
    }
    /// Whether the chunks that serve at `count` known places from `first` on are away from home.
    fn set_away(&mut self, first: u64, count: u64, away: bool) {
        let (mut at, end) = (first, first + count);
        while at < end {
            let upto = end.min((at / 64 + 1) * 64);
            let bits = u64::MAX >> (64 - (upto - at)) << (at % 64);
            let word = &mut self.away[at as usize / 64];
            *word = if away { *word | bits } else { *word & !bits };
            at = upto;
        }
    }
    /// What is known of places, to be changed at several at once.
    fn cells(&mut self) -> Cells<'_> {
        let (places, ghosts) = (Cell::from_mut(&mut self.places[..]), Cell::from_mut(&mut self.ghosts[..]));
        (places.as_slice_of_cells(), ghosts.as_slice_of_cells())
    }
    /// The first place from `from` on where a chunk serves that is not at home.
    #[inline(always)]
    fn next_away(&self, from: u64) -> Option<u64> {
        let mut at = from as usize / 64;
        let mut word = self.away.get(at)? & u64::MAX << (from % 64);
        while word == 0 {
            at += 1;
            word = *self.away.get(at)?;
        }
        Some(at as u64 * 64 + u64::from(word.trailing_zeros()))
    }
    /// The place of an address.
    fn place(&self, address: u64, size: u64) -> u64 {
        (address - self.base) / size
    }
    /// The places that lie wholly in `bytes` at `address`.
    fn places_within(&self, address: u64, bytes: u64, size: u64) -> std::ops::Range<u64> {
        (address - self.base).div_ceil(size)..self.place(address + bytes, size)
    }
    /// A place became idle.
    fn set_since(&mut self, place: u64, since: u64) {
        let place = place as usize;
        if self.since.len() <= place {
            self.since.resize(place + 1, 0);
        }
        self.since[place] = since;
    }
    fn end(&self) -> u64 {
        self.base + self.bytes
    }

    /// What is mapped at the places from `from` up to `to`, as far as is known; nothing is at the others.
    #[inline(always)]
    fn numbers(&self, from: u64, to: u64) -> &[u32] {
        let known = self.places.len().min(to as usize);
        self.places.get(from as usize..known).unwrap_or(&[])
    }

    /// A vacant place is open: nothing is mapped there, or one of the `idle` chunks.
    #[inline(always)]
    fn is_open(&self, place: u64, idle: &Chunks) -> bool {
        idle.opens(self.number(place))
    }

    /// The first of the vacant places from `from` up to `to` that is not open, or `to`.
    fn open_upto(&self, from: u64, to: u64, idle: &Chunks) -> u64 {
        let closed = self.numbers(from, to).iter().position(|&number| !idle.opens(number));
        closed.map_or(to, |at| from + at as u64)
    }

    /// Where among the vacant places from `from` up to `to` the first run of open places begins that is `count` long or goes
    /// on to `to`. What is before `from` does not belong to it. (A place that is not open rules out all runs across it: of
    /// long runs few places are looked at.)
    fn open_run(&self, from: u64, to: u64, count: u64, idle: &Chunks) -> Option<u64> {
        let known = (self.places.len() as u64).min(to);
        // All from `start` up to `open` are open if those from `open` up to `start + count` are.
        let (mut start, mut open) = (from, from);
        loop {
            // (Mostly the last of so many is not open.)
            while start + count <= known && !idle.opens(self.places[(start + count - 1) as usize]) {
                start += count;
                open = start;
            }
            if start >= to {
                return None;
            }
            let end = to.min(start + count);
            match self.numbers(open, end).iter().rposition(|&number| !idle.opens(number)) {
                None => return Some(start),
                Some(closed) => (start, open) = (open + closed as u64 + 1, end),
            }
        }
    }
}

impl Mapping {
    /// Chunks held.
    pub(crate) fn chunks(&self) -> u64 {
        self.mapped + self.spare.len() as u64
    }
    /// Of a new one, in a pool that has made so many allocations.
    pub(super) fn begin_at(&mut self, allocations: u64) {
        self.paused_at = allocations;
    }
    /// Bytes of records beyond those of live and free blocks.
    pub(crate) fn metadata_bytes(&self) -> u64 {
        use std::mem::size_of;
        let places = |range: &Range| {
            2 * range.places.len() * size_of::<u32>() + (range.since.len() + range.away.len()) * size_of::<u64>()
        };
        let bytes = self.vacant.len() * (size_of::<Block>() + size_of::<(u64, u32)>())
            + self.chunks.len() * size_of::<Serving>()
            + self.ghosts as usize * size_of::<Ghost>()
            + self.ranges.iter().map(places).sum::<usize>();
        bytes as u64
    }
    fn range_of(&self, slot: u32) -> usize {
        self.ranges.iter().position(|range| range.page == slot).expect("a block of a Mapped entry is in a range")
    }
    /// The range that an address is in.
    #[inline(always)]
    fn range_at(&self, address: u64) -> usize {
        // (Mostly there is one.)
        if self.ranges.len() == 1 { 0 } else { self.ranges.partition_point(|range| range.base <= address) - 1 }
    }
    /// The range and the number of a place.
    fn place_at(&self, address: u64, size: u64) -> (usize, u64) {
        let range = self.range_at(address);
        (range, self.ranges[range].place(address, size))
    }

    /// Something is mapped at a place still that should not be.
    fn strand(&mut self, address: u64, size: u64) {
        let (range, place) = self.place_at(address, size);
        self.ranges[range].set(place, STUCK, SERVES);
        self.stuck.push(address);
    }

    /// A new chunk serves here, at home.
    fn settle_in(&mut self, chunk: Chunk, address: u64, size: u64) {
        let serving = Serving { chunk, at: address, home: address, ghosts: Vec::new(), needed: Cell::default() };
        let number = match self.free_numbers.pop() {
            Some(number) => {
                self.chunks[number as usize] = serving;
                number
            }
            None => {
                self.chunks.push(serving);
                self.chunks.len() as u32 - 1
            }
        };
        let (range, place) = self.place_at(address, size);
        self.ranges[range].set(place, number, SERVES);
        self.mapped += 1;
    }

    /// `count` chunks that serve side by side serve elsewhere from now on, side by side, and are mapped there: from one place on
    /// (its range, its number) to another. Where they served until now was free at `points`.
    fn serve_at(&mut self, from: (usize, u64), to: (usize, u64), count: u64, points: &Left, size: u64) {
        self.turn += 1;
        let Mapping { ranges, chunks, .. } = self;
        let (mut at, mut address) = (ranges[from.0].base + from.1 * size, ranges[to.0].base + to.1 * size);
        ranges[from.0].set_away(from.1, count, false);
        ranges[to.0].know(to.1 + count);
        ranges[to.0].set_away(to.1, count, true);
        let (old, new) = if from.0 == to.0 {
            let cells = ranges[from.0].cells();
            (cells, cells)
        } else {
            let [old, new] = ranges.get_disjoint_mut([from.0, to.0]).expect("both are ranges");
            (old.cells(), new.cells())
        };
        let (mut left_home, mut came_home, mut more) = (0, 0, 0);
        for ((place, ghost), (to_place, to_ghost)) in some_of(old, from.1, count).zip(some_of(new, to.1, count)) {
            let number = place.get();
            let serving = &mut chunks[number as usize];
            let left = Ghost { at, left: self.turn, points: points.clone() };
            if to_place.get() == number {
                serving.ghosts[to_ghost.get() as usize] = left;
                ghost.set(to_ghost.get());
            } else {
                ghost.set(serving.ghosts.len() as u32);
                serving.ghosts.push(left);
                more += 1;
                to_place.set(number);
            }
            to_ghost.set(SERVES);
            serving.at = address;
            left_home += u64::from(serving.home == at);
            came_home += u64::from(serving.home == address);
            at += size;
            address += size;
        }
        if came_home == count {
            ranges[to.0].set_away(to.1, count, false);
        } else if came_home > 0 {
            for place in to.1..to.1 + count {
                let serving = &chunks[ranges[to.0].places[place as usize] as usize];
                if serving.home == serving.at {
                    ranges[to.0].set_away(place, 1, false);
                }
            }
        }
        self.ghosts += more;
        self.away = self.away + left_home - came_home;
    }

    /// The ghost that a chunk left longest ago, if it has so many.
    fn oldest_ghost(&self, number: u32, many: usize) -> Option<usize> {
        let ghosts = &self.chunks[number as usize].ghosts;
        if ghosts.len() < many {
            return None;
        }
        (0..ghosts.len()).min_by_key(|&ghost| ghosts[ghost].left)
    }

    /// A chunk is not mapped any more at one of its ghosts.
    fn drop_ghost(&mut self, number: u32, ghost: usize, size: u64) {
        let ghosts = &mut self.chunks[number as usize].ghosts;
        ghosts.swap_remove(ghost);
        self.ghosts -= 1;
        if let Some(at) = ghosts.get(ghost).map(|other| other.at) {
            let (range, place) = self.place_at(at, size);
            self.ranges[range].ghosts[place as usize] = ghost as u32;
        }
    }

    /// Which of the vacant blocks begins at `address`, or is the first beyond it.
    #[inline(always)]
    fn vacant_from(&self, address: u64) -> usize {
        self.vacant.partition_point(|&(begin, _)| begin < address)
    }

    /// The vacant block in which a place is.
    fn vacant_around(&self, address: u64) -> u32 {
        self.vacant[self.vacant.partition_point(|&(begin, _)| begin <= address) - 1].1
    }

    /// Chunks were moved or came back for an allocation, and few. Where that is often so, there is a little less room than the
    /// program's pattern needs, and what little there is must not be cut up.
    fn note_lacking(&mut self, allocations: u64) {
        self.lacking += 1;
        let since = allocations.saturating_sub(self.paused_at);
        let often = self.lacking >= LACKING && self.lacking.saturating_mul(LACKING_ONE_IN) >= since;
        self.tight |= often && !rules::off(rules::TIGHT);
    }

    /// A mark that no chunk has.
    fn new_mark(&self) -> u64 {
        self.mark.set(self.mark.get() + 1);
        self.mark.get()
    }
}

fn free_points(shared: &PoolShared, index: u32) -> FreePoints {
    let b = block(index);
    match b.stream() {
        OBSERVED => FreePoints::default(),
        MULTI => shared.points[&index].iter().copied().collect(),
        stream => [At { stream, seq: b.seq() }].into_iter().collect(),
    }
}

/// Which of adjacent blocks, left to right, holds `address`.
fn holder_of(blocks: &[u32], address: u64) -> u32 {
    blocks[blocks.partition_point(|&index| block(index).addr() <= address) - 1]
}

/// The block that holds `address`, which is in one.
fn block_around(mapping: &Mapping, address: u64) -> u32 {
    let slot = mapping.ranges[mapping.range_at(address)].page;
    page(slot).block_at(slot, address).expect("a range is full of blocks")
}

/// The blocks from `first` on that begin below `to`.
fn between(first: u32, to: u64) -> Vec<u32> {
    let mut blocks = Vec::with_capacity(16);
    let mut at = first;
    while at != NIL && block(at).addr() < to {
        blocks.push(at);
        at = block(at).next();
    }
    blocks
}

/// Takes `[from, to)`, which is part of a free or vacant block, out of its structure: it is a block in none then. What is
/// to the left and to the right of it stays as it is, the left part with the block's record. There are records for it.
fn carve(
    slow: &mut Slow<'_>,
    shared: &mut PoolShared,
    pool: &Arc<Pool>,
    e: usize,
    index: u32,
    (from, to): (u64, u64),
) -> u32 {
    let b = block(index);
    let (low, high) = (b.addr(), b.end());
    let vacant = b.has(VACANT);
    let domain = b.stream();
    let points = if domain == MULTI { shared.points.get(&index).cloned() } else { None };
    if !vacant {
        detach_any(slow, shared, pool, e, index);
    }
    let mut cut_at = |address: u64| {
        let made = cut(index, b, address - low, &mut shared.stock).expect("records were made ready");
        made.expect("the block goes on beyond the address").0
    };
    let right = (to < high).then(|| cut_at(to));
    let middle = if low < from { cut_at(from) } else { index };
    if vacant {
        let own = &mut shared.entries[e].mapped;
        let at = own.vacant_from(low);
        match (low < from, right) {
            (true, Some(right)) => own.vacant.insert(at + 1, (to, right)),
            (true, None) => {}
            (false, Some(right)) => own.vacant[at] = (to, right),
            (false, None) => drop(own.vacant.remove(at)),
        }
        return middle;
    }
    if let Some(right) = right {
        attach_any(slow, shared, pool, e, right, domain, points.as_deref());
    }
    if low < from {
        attach_any(slow, shared, pool, e, index, domain, points.as_deref());
    }
    middle
}

/// Takes the free and vacant blocks of `[from, to)` out of their structures and makes them one, which is neither live nor
/// free, in no structure, and of no stream. `blocks` are adjacent and cover it.
fn take_out(
    slow: &mut Slow<'_>,
    shared: &mut PoolShared,
    pool: &Arc<Pool>,
    e: usize,
    blocks: &[u32],
    from: u64,
    to: u64,
) -> u32 {
    let mut taken = NIL;
    // From the left: a block that is cut keeps its left part.
    let first = blocks.partition_point(|&index| block(index).addr() <= from) - 1;
    for &index in &blocks[first..] {
        let b = block(index);
        if b.addr() >= to {
            break;
        }
        let piece = carve(slow, shared, pool, e, index, (b.addr().max(from), b.end().min(to)));
        if taken == NIL {
            taken = piece;
        } else {
            absorb(taken, block(taken), piece, block(piece), &mut shared.stock);
        }
    }
    let b = block(taken);
    b.set_size_flags(b.size(), 0);
    b.set_stream(HOST);
    b.set_seq(0);
    taken
}

/// No chunk serves at a block of [`take_out`]: it is vacant, together with vacant neighbours.
fn make_vacant(shared: &mut PoolShared, e: usize, mut index: u32) {
    let b = block(index);
    let own = &mut shared.entries[e].mapped;
    let at = own.vacant_from(b.addr());
    let right = own.vacant.get(at).map(|&(_, next)| next).filter(|&next| touches(b, block(next)));
    let left = at.checked_sub(1).map(|at| own.vacant[at].1).filter(|&prev| touches(block(prev), b));
    match (left, right) {
        (Some(_), Some(_)) => drop(own.vacant.remove(at)),
        (Some(_), None) => {}
        (None, Some(_)) => own.vacant[at] = (b.addr(), index),
        (None, None) => own.vacant.insert(at, (b.addr(), index)),
    }
    if let Some(next) = right {
        absorb(index, b, next, block(next), &mut shared.stock);
    }
    if let Some(prev) = left {
        absorb(prev, block(prev), index, b, &mut shared.stock);
        index = prev;
    }
    let b = block(index);
    b.set_size_flags(b.size(), VACANT);
    b.set_stream(HOST);
}

/// The chunks at the places from `low` to `high` of a range, all of which is free, leave. `around` is the block that `low`
/// is in, if it has not been cut since.
fn leave(
    slow: &mut Slow<'_>,
    shared: &mut PoolShared,
    pool: &Arc<Pool>,
    e: usize,
    around: u32,
    range: usize,
    (low, high): (u64, u64),
) {
    let mapping = &shared.entries[e].mapped;
    let b = block(around);
    let still = b.addr() <= low && low < b.end() && b.page() == mapping.ranges[range].page;
    let first = if still { around } else { block_around(mapping, low) };
    let left = if high <= block(first).end() {
        take_out(slow, shared, pool, e, &[first], low, high)
    } else {
        take_out(slow, shared, pool, e, &between(first, high), low, high)
    };
    make_vacant(shared, e, left);
}

/// Unmaps what is mapped at a place, which nothing uses any more.
fn unmap(mapping: &mut Mapping, pool: &Arc<Pool>, e: usize, address: u64) -> bool {
    let size = pool.entries[e].page_size;
    let (range, place) = mapping.place_at(address, size);
    let range = &mut mapping.ranges[range];
    let done = pool.device.source.unmap(range.pointer, address - range.base, 1, size).is_ok();
    if done {
        range.set(place, NOTHING, SERVES);
    } else {
        crate::log::emit(crate::log::Level::Warning, || {
            format!("the device refused to unmap a chunk at {address:#x}; its addresses are not used again yet")
        });
    }
    done
}

/// Chunks go home whose place is in one free block that is observed or `own`.
pub(crate) fn go_home(
    slow: &mut Slow<'_>,
    shared: &mut PoolShared,
    pool: &Arc<Pool>,
    e: usize,
    own: Option<StreamRef>,
) {
    if shared.entries[e].mapped.away == 0 {
        return;
    }
    // With every stream of the pool locked, all blocks stay as they are.
    slow.lock_attached(pool);
    let mapping = &shared.entries[e].mapped;
    let size = pool.entries[e].page_size;
    // Those that can go: adjacent ones of a block, of which those whose homes are side by side as well go together.
    let mut leaving: Vec<Source> = Vec::new();
    let mut going: Vec<Going> = Vec::new();
    for (r, range) in mapping.ranges.iter().enumerate() {
        let mut from = 0;
        while let Some(first) = range.next_away(from) {
            // All places up to `end` begin in the same block as this one, and those up to `within` lie wholly in it.
            let at = range.base + first * size;
            let around = page(range.page).block_at(range.page, at).expect("a range is full of blocks");
            let b = block(around);
            let domain = b.stream();
            let goes = b.has(FREE) && !b.has(RECENT) && (domain == OBSERVED || Some(domain) == own);
            let end = (b.end() - range.base).div_ceil(size);
            let within = if goes { range.place(b.end(), size) } else { 0 };
            from = end.max(first + 1);
            let mut next = Some(first);
            while let Some(place) = next.filter(|&place| place < within) {
                let number = range.places[place as usize];
                let home = mapping.chunks[number as usize].home;
                match leaving.last_mut() {
                    Some(last) if last.block == around && last.first + last.count == place => last.count += 1,
                    _ => leaving.push(Source { block: around, range: r, first: place, count: 1 }),
                }
                match going.last_mut() {
                    Some(last)
                        if last.source == leaving.len() - 1
                            && last.first + last.count == place
                            && last.home + last.count * size == home
                            && mapping.range_at(last.home) == mapping.range_at(home) =>
                    {
                        last.count += 1;
                    }
                    _ => going.push(Going { source: leaving.len() - 1, first: place, count: 1, home }),
                }
                next = range.next_away(place + 1);
            }
        }
    }
    if going.is_empty() || !shared.stock.ensure(2 * (leaving.len() + going.len()) + 4) {
        return;
    }
    // All leave, then all arrive. (From the right, since a block that is cut keeps its left part.)
    let mut origins: Vec<(Left, StreamRef)> = Vec::with_capacity(leaving.len());
    for source in &leaving {
        let b = block(source.block);
        origins.push((Left::at(&free_points(shared, source.block)), b.stream()));
    }
    for source in leaving.iter().rev() {
        let low = shared.entries[e].mapped.ranges[source.range].base + source.first * size;
        leave(slow, shared, pool, e, source.block, source.range, (low, low + source.count * size));
    }
    let mapping = &mut shared.entries[e].mapped;
    for group in &going {
        let (from, to) = ((leaving[group.source].range, group.first), mapping.place_at(group.home, size));
        mapping.serve_at(from, to, group.count, &origins[group.source].0, size);
        if pool.entries[e].slow_free {
            for i in 0..group.count {
                let since = mapping.ranges[from.0].since.get((from.1 + i) as usize).copied().unwrap_or(0);
                mapping.ranges[to.0].set_since(to.1 + i, since);
            }
        }
    }
    going.sort_unstable_by_key(|group| group.home);
    let mut rest = &going[..];
    while let [first, ..] = rest {
        // Those that would merge arrive together.
        let (origin, domain) = &origins[first.source];
        let (mut end, mut count, mut seq, mut groups) = (first.home, 0, 0, 0);
        let range = shared.entries[e].mapped.range_at(first.home);
        for group in rest {
            let (points, other) = &origins[group.source];
            if group.home != end || other != domain || shared.entries[e].mapped.range_at(group.home) != range {
                break;
            }
            end += group.count * size;
            count += group.count;
            groups += 1;
            seq = seq.max(points.points().first().map_or(0, |at| at.seq));
        }
        rest = &rest[groups..];
        let around = shared.entries[e].mapped.vacant_around(first.home);
        let index = take_out(slow, shared, pool, e, &[around], first.home, end);
        block(index).set_size_flags(end - first.home, FREE);
        let points = origin.points().first().map(|at| At { stream: at.stream, seq });
        super::free::place(slow, shared, pool, e, index, points.as_slice());
        let counts = match points {
            Some(at) => &mut slow.cache(at.stream.slot(), pool).entries[e].counts,
            None => &mut shared.entries[e].counts,
        };
        counts.merges += count - 1;
    }
}

/// The entry pauses. In one that is tight, blocks that are large merge as they are freed, from now on.
pub(crate) fn note_pause(slow: &mut Slow<'_>, shared: &mut PoolShared, pool: &Arc<Pool>, e: usize) {
    let mapping = &mut shared.entries[e].mapped;
    mapping.lacking = 0;
    mapping.paused_at = pool.allocations();
    let used = pool.entry_tally[e].used_high.load(Relaxed);
    mapping.paused = Enough { used, tight: mapping.tight, chunks: mapping.mapped };
    if mapping.tight {
        slow.set_largest_recent(pool, e, pool.entry_tally[e].used_high.load(Relaxed).div_ceil(64));
    }
}

/// A chunk with so many ghosts drops some before it moves.
fn most_ghosts(pool: &Pool, e: usize) -> usize {
    (pool.entries[e].range_size / pool.entries[e].page_size / 2).min(MOST_GHOSTS) as usize
}

/// A chunk that is about to move and has many ghosts drops those it left longest ago, once their points have executed: nothing
/// uses it from there any more.
fn drop_ghosts(
    shared: &mut PoolShared,
    pool: &Arc<Pool>,
    e: usize,
    number: u32,
    answers: &mut SlotMap<StreamRef, u64>,
) {
    let mapping = &mut shared.entries[e].mapped;
    let order = &pool.device.order;
    let mut over = |at: &At| {
        order.observed(&STREAMS, at.stream) >= at.seq
            || rules::off(rules::CHUNK_LEAVING)
            || release::executed(pool, answers, *at)
    };
    let size = pool.entries[e].page_size;
    while let Some(ghost) = mapping.oldest_ghost(number, most_ghosts(pool, e))
        && let serving = &mapping.chunks[number as usize]
        && let oldest = &serving.ghosts[ghost]
        && let (at, home) = (oldest.at, serving.home)
        && oldest.points.points().iter().all(&mut over)
        && unmap(mapping, pool, e, at)
    {
        mapping.drop_ghost(number, ghost, size);
        if at == home {
            let serving = &mut mapping.chunks[number as usize];
            serving.home = serving.at;
            let (range, place) = mapping.place_at(mapping.chunks[number as usize].at, size);
            mapping.ranges[range].set_away(place, 1, false);
            mapping.away -= 1;
        }
    }
}

/// What the host has observed makes chunks go home.
pub(crate) fn observed(slow: &mut Slow<'_>, shared: &mut PoolShared, pool: &Arc<Pool>, e: usize) {
    go_home(slow, shared, pool, e, None);
    unstick(&mut shared.entries[e].mapped, pool, e);
}

/// Asks again for what the device was not willing to unmap. `false`: it still is not.
pub(super) fn unstick(mapping: &mut Mapping, pool: &Arc<Pool>, e: usize) -> bool {
    for address in std::mem::take(&mut mapping.stuck) {
        if !unmap(mapping, pool, e, address) {
            mapping.stuck.push(address);
        }
    }
    mapping.stuck.is_empty()
}

impl Request<'_> {
    /// Whether a Mapped entry asks for chunks before a stream takes what others have freed and the host has not observed: while
    /// it holds so little that nothing would be moved for this request (`docs/placement.md` §6, step 4).
    pub(super) fn grows_first(&self, shared: &PoolShared, e: usize) -> bool {
        let (pool, entry, size) = (self.pool, &self.pool.entries[e], self.pool.entries[e].page_size);
        let mapped = &shared.entries[e].mapped;
        if entry.kind != Kind::Mapped || mapped.refused {
            return false;
        }
        let used = pool.entry_tally[e].used_high.load(Relaxed);
        // As many chunks as the block may touch.
        let more = self.need.div_ceil(size) + 1;
        let kept = pool.threshold.load(Relaxed).saturating_sub(pool.tally.reserved.load(Relaxed)) / size;
        mapped.mapped + more <= budget(used, size, shared.entries[e].sole.is_several(), mapped.tight).min(entry.cap)
            && more <= kept
    }

    /// Step 7 for a Mapped entry: chunks are mapped where they are missing.
    pub(super) fn map(&mut self, e: usize) -> Result<Option<AllocDone>> {
        let pool = self.pool;
        let device = &*pool.device;
        let entry = &pool.entries[e];
        let size = entry.page_size;
        let tally = &pool.entry_tally[e];
        let cap = if rules::off(rules::CAPS) { u64::MAX } else { entry.cap };
        if pool.entries.iter().any(|entry| entry.period.is_some()) {
            native::poll_all(device);
        }
        let mut polled = false;
        let mut swept = false;
        let mut least = false;
        let mut refused_at = u64::MAX;
        let mut waited = 0;
        let internal = self.stream.is_some() && pool.internal.load(Relaxed);
        let mut may_wait = internal && !rules::off(rules::POLICY3) && !rules::off(rules::GROWTH_WAITS);
        loop {
            let mut slow = Slow::lock(device);
            let clock = self.now(&mut slow)?;
            if !swept {
                swept = true;
                release::sweep_periods(&mut slow, pool);
                if slow.has_leaving() {
                    // The device is asked to take them back as the locks go.
                    continue;
                }
            }
            if self.need.div_ceil(size) > MOST_CHUNKS {
                self.refused = true;
                return Ok(None);
            }
            let mut shared = pool.shared.lock();
            let holders = slow.holders(pool, e);
            let bound = self.bound(&mut slow, &shared, e, &holders, &clock);
            let candidates = self.candidates(&mut slow, &mut shared, e, &bound, &holders);
            let idle = self.idle_chunks(&shared, e, &candidates);
            let Some(plan) = self.plan(&shared, e, &bound, &idle) else {
                drop(shared);
                drop(slow);
                if self.need.div_ceil(size) > cap {
                    return Ok(None);
                }
                if !self.reserve(e)? {
                    return Ok(None);
                }
                continue;
            };
            // How much to move and how much to ask for.
            let missing = plan.missing;
            let held = shared.entries[e].mapped.mapped;
            // What other threads are asking for is reserved already, and may not come into the cap's way twice.
            let asked = (tally.reserved.load(Relaxed) / size).saturating_sub(shared.entries[e].mapped.chunks());
            let cap = cap.saturating_sub(asked);
            let used = slow.used(&mut shared, pool, e).saturating_add(self.need).max(tally.used_high.load(Relaxed));
            let several = shared.entries[e].sole.is_several();
            // What others have not finished with takes memory as well.
            let busy = if several { held - self.idle(&shared, e, &candidates) } else { 0 };
            let tight = shared.entries[e].mapped.tight;
            let twice = budget(used, size, several, tight) + used / size;
            let used = if several { used.max((busy * size).saturating_add(self.need)) } else { used };
            let budget = budget(used, size, several, tight);
            // What was enough until the last pause is enough again: what is done again comes to the same places sooner.
            let before = shared.entries[e].mapped.paused;
            let alone = self.stream.is_some_and(|stream| shared.entries[e].sole == Sole::One(stream));
            let as_before = alone && (before.used, before.tight) == (used, tight);
            let budget = if as_before { budget.min(before.chunks) } else { budget };
            let over = (held + missing).saturating_sub(budget.min(cap));
            let wanted = if least { missing } else { over.min(missing) };
            let wanted = if rules::off(rules::CHUNK_MOVES) { 0 } else { wanted };
            let sources = self.sources(&shared, e, &candidates, &plan, wanted);
            let moves: u64 = sources.iter().map(|source| source.count).sum();
            if !polled
                && device.cuda().is_some()
                && sources.iter().any(|source| self.has_many_ghosts(&shared, e, source))
            {
                // Some are dropped, if what used them has run: the driver is asked with no lock held.
                polled = true;
                drop(shared);
                drop(slow);
                native::poll_all(device);
                continue;
            }
            let grow = missing - moves;
            if held + grow > cap {
                if asked == 0 {
                    return Ok(None);
                }
                // They may leave something free of what they get, or get nothing.
                drop(shared);
                drop(slow);
                wait_a_little(&mut waited);
                match self.reuse(e)? {
                    Some(done) => return Ok(Some(done)),
                    None => continue,
                }
            }
            let extra = if grow == 0 || least || !plan.tail {
                0
            } else {
                let beyond = unmapped_after(&shared, e, &plan, size);
                // (Where little can be moved, more will be asked for soon.)
                let step = if moves < wanted { 96 } else { 256 };
                let room = budget.saturating_sub(held + grow).max((used / step / size).saturating_sub(grow));
                let spare = shared.entries[e].mapped.spare.len() as u64;
                let others = pool.tally.reserved.load(Relaxed).saturating_sub(spare * size);
                let kept = pool.threshold.load(Relaxed).saturating_sub(others) / size;
                // (Nothing waits for what is only asked for ahead.)
                let most = if several { twice.saturating_sub(held + grow) } else { u64::MAX };
                room.min(kept.saturating_sub(grow)).min(cap - (held + grow)).min(beyond).min(most)
            };
            // What is freed and not finished with would let memory grow as long as the host is ahead.
            if may_wait && several && grow > 0 && !least && held + grow > twice {
                drop(shared);
                drop(slow);
                may_wait = false;
                // (If the driver does not let it wait, the entry can grow all the same.)
                match self.internal(e) {
                    Ok(Some(done)) => return Ok(Some(done)),
                    Ok(None) | Err(_) => continue,
                }
            }
            let lacking = (grow + extra).saturating_sub(shared.entries[e].mapped.spare.len() as u64);
            if lacking == 0 {
                let came = moves + plan.back;
                let Some(found) = self.act(&mut slow, &mut shared, e, &bound, plan, &sources, extra)? else {
                    shared.entries[e].mapped.refused = true;
                    self.refused = true;
                    return Ok(None);
                };
                if !several && came > 0 && came <= used.div_ceil(64 * size) {
                    shared.entries[e].mapped.note_lacking(pool.allocations());
                }
                let done = self.commit(&mut slow, &mut shared, found)?;
                if let Sole::One(_) = shared.entries[e].sole {
                    tally.pauses.store(PAUSES, Relaxed);
                }
                return Ok(done);
            }
            if lacking >= refused_at {
                return Ok(None);
            }
            let base = shared.entries[e].mapped.ranges[plan.range].base;
            let beyond = plan.first + plan.count;
            let gaps = plan.gaps.iter().flat_map(|&(first, count)| first..first + count);
            let places = gaps.skip(moves as usize).chain(beyond..beyond + extra);
            let addresses: Vec<u64> = places.map(|place| base + place * size).collect();
            pool.tally.ask_chunks(lacking, size);
            tally.ask_chunks(lacking, size);
            drop(shared);
            drop(slow);
            // No lock is held while the device is asked.
            let answer = device.source.create_chunks(lacking, size);
            let slow = Slow::lock(device);
            match answer {
                Ok(chunks) if pool.destroyed.load(Relaxed) => {
                    // Destroyed meanwhile, and perhaps gone already: the chunks must not come into it.
                    for chunk in chunks {
                        let _ = device.source.release_chunk(chunk, size);
                    }
                    return Err(handle::gone(handle::Kind::Pool, pool.id.0));
                }
                Ok(chunks) => {
                    pool.tally.granted_chunks(lacking);
                    tally.granted_chunks(lacking);
                    device.page_allocs.fetch_add(lacking, Relaxed);
                    device.reserved.fetch_add(lacking * size, Relaxed);
                    let mut addresses = addresses.into_iter();
                    for _ in &chunks {
                        let address = addresses.next().unwrap_or(base);
                        device.tell(&Event::PageGranted { pool: pool.id, entry: e as u32, bytes: size, address });
                    }
                    let mut shared = pool.shared.lock();
                    let mapped = &mut shared.entries[e].mapped;
                    mapped.spare.extend(chunks);
                    mapped.refused = false;
                }
                Err(refused) => {
                    self.note_refusal(refused);
                    pool.tally.refused_chunks(lacking, size);
                    tally.refused_chunks(lacking, size);
                    pool.shared.lock().entries[e].mapped.refused = true;
                    device.tell(&Event::PageRefused { pool: pool.id, entry: e as u32, bytes: lacking * size });
                    least = true;
                    refused_at = lacking;
                }
            }
            drop(slow);
        }
    }

    /// Reserves a further range; if need be, one that is just large enough. `false`: the device refused.
    fn reserve(&mut self, e: usize) -> Result<bool> {
        let entry = &self.pool.entries[e];
        let least = self.need.div_ceil(entry.page_size).saturating_mul(entry.page_size);
        let wanted = entry.range_size.max(least);
        let refused = self.refused;
        if self.reserve_bytes(e, wanted)? {
            return Ok(true);
        }
        if least < wanted && self.reserve_bytes(e, least)? {
            self.refused = refused;
            return Ok(true);
        }
        Ok(false)
    }

    fn reserve_bytes(&mut self, e: usize, bytes: u64) -> Result<bool> {
        let pool = self.pool;
        let device = &*pool.device;
        if bytes > MAX_PAGE {
            self.refused = true;
            return Ok(false);
        }
        let (taken, index) = {
            let slow = Slow::lock(device);
            let Some(index) = pool.shared.lock().stock.take() else { return Err(out_of_records()) };
            let taken = device.granted.lock().addresses.take(bytes);
            let Some(taken) = taken else {
                pool.shared.lock().stock.give(index);
                self.refused = true;
                return Ok(false);
            };
            drop(slow);
            (taken, index)
        };
        let address = taken.address;
        let answer = device.source.reserve(bytes, address);
        let slow = Slow::lock(device);
        let opened = match answer {
            Ok(grant) if !pool.destroyed.load(Relaxed) => match page::open(address, bytes, device.options.alignment) {
                Some(slot) => Some((slot, grant)),
                None => {
                    device.source.unreserve(grant, bytes);
                    None
                }
            },
            Ok(grant) => {
                device.source.unreserve(grant, bytes);
                device.granted.lock().addresses.put_back(&taken);
                let mut shared = pool.shared.lock();
                shared.stock.give(index);
                shared.stock.give_back();
                return Err(handle::gone(handle::Kind::Pool, pool.id.0));
            }
            Err(refused) => {
                self.note_refusal(refused);
                None
            }
        };
        let Some((slot, grant)) = opened else {
            self.refused = true;
            let mut shared = pool.shared.lock();
            shared.stock.give(index);
            shared.entries[e].mapped.refused = true;
            drop(shared);
            device.granted.lock().addresses.put_back(&taken);
            for tally in [&pool.tally, &pool.entry_tally[e]] {
                tally.page_refusals.fetch_add(1, Relaxed);
            }
            device.tell(&Event::RangeRefused { pool: pool.id, entry: e as u32, bytes });
            return Ok(false);
        };
        for tally in [&pool.tally, &pool.entry_tally[e]] {
            tally.ranges.fetch_add(1, Relaxed);
        }
        let b = block(index);
        b.set_stream(HOST);
        let pointer = grant.pointer;
        let mut shared = pool.shared.lock();
        enter_page(&mut shared, pool, e, slot, index, (bytes, VACANT), address, grant);
        let own = &mut shared.entries[e];
        let vacant = own.mapped.vacant_from(address);
        own.mapped.vacant.insert(vacant, (address, index));
        let range = Range {
            page: slot,
            base: address,
            bytes,
            pointer,
            places: Vec::new(),
            ghosts: Vec::new(),
            away: Vec::new(),
            since: Vec::new(),
        };
        let at = own.mapped.ranges.partition_point(|other| other.base < address);
        own.mapped.ranges.insert(at, range);
        drop(slow);
        Ok(true)
    }

    /// The usable free blocks that hold a whole chunk; where several streams are at work, the runs of adjacent ones that do,
    /// by their first blocks.
    fn candidates(
        &self,
        slow: &mut Slow<'_>,
        shared: &mut PoolShared,
        e: usize,
        bound: &Bound,
        holders: &[StreamRef],
    ) -> Vec<(u64, u64, u32)> {
        let size = self.pool.entries[e].page_size;
        let several = shared.entries[e].sole.is_several();
        let mut sequences = if several { sequences(slow, shared, self.pool, e, holders) } else { Sequences::default() };
        let shared = &*shared;
        let own = &shared.entries[e];
        let limits = Limits::of(bound);
        let run_usable = |index: u32, b: &'static Block| {
            look();
            limits.admit(shared, bound, index, b)
        };
        let usable = |index: u32| run_usable(index, block(index));
        let mut found: Vec<(u64, u64, u32)> = Vec::with_capacity(64);
        each_run(&mut sequences, holders, size, run_usable, |first, bytes| {
            found.push((bytes, block(first).addr(), first))
        });
        // Those that lie alone.
        let in_run = |index: u32| {
            let b = block(index);
            let beside = |near: u32, touch: fn(&Block, &Block) -> bool| {
                near != NIL && block(near).is_settled() && touch(b, block(near)) && usable(near)
            };
            several && (beside(b.prev(), |b, left| touches(left, b)) || beside(b.next(), touches))
        };
        let mut add = |index: u32| {
            if !in_run(index) {
                found.push((block(index).size(), block(index).addr(), index));
            }
        };
        // All that is the stream's own is usable, and all that is observed.
        if let Some(me) = self.stream {
            slow.bins(me, self.pool, e).each_from(size, &mut add);
        }
        if !rules::off(rules::OBSERVED) {
            own.observed.each_from(size, &mut add);
        }
        let mut add = |index: u32| {
            if usable(index) {
                add(index);
            }
        };
        own.multi.each_from(size, &mut add);
        for holder in bound.holders().filter(|&holder| Some(holder) != self.stream) {
            slow.bins(holder, self.pool, e).each_from(size, &mut add);
        }
        found
    }

    /// How many chunks are idle: those in `candidates`.
    fn idle(&self, shared: &PoolShared, e: usize, candidates: &[(u64, u64, u32)]) -> u64 {
        let size = self.pool.entries[e].page_size;
        let mapping = &shared.entries[e].mapped;
        let within = |&(bytes, address, _): &(u64, u64, u32)| {
            let range = &mapping.ranges[mapping.range_at(address)];
            let places = range.places_within(address, bytes, size);
            places.end.saturating_sub(places.start)
        };
        candidates.iter().map(within).sum()
    }

    /// The idle chunks: those at places that lie wholly in one of the `candidates`.
    fn idle_chunks(&self, shared: &PoolShared, e: usize, candidates: &[(u64, u64, u32)]) -> Chunks {
        let size = self.pool.entries[e].page_size;
        let mapping = &shared.entries[e].mapped;
        let mut idle = Chunks::none_of(mapping.chunks.len());
        if mapping.ghosts == 0 {
            return idle;
        }
        for &(bytes, address, _) in candidates {
            let range = &mapping.ranges[mapping.range_at(address)];
            let within = range.places_within(address, bytes, size);
            let numbers = range.places.get(within.start as usize..within.end as usize).unwrap_or(&[]);
            numbers.iter().for_each(|&number| idle.add(number));
        }
        idle
    }

    /// Where in the ranges the block goes: the fewest places with nothing mapped, then the lowest address.
    fn plan(&self, shared: &PoolShared, e: usize, bound: &Bound, idle: &Chunks) -> Option<Plan> {
        let size = self.pool.entries[e].page_size;
        let mapping = &shared.entries[e].mapped;
        // (Programs of several streams do not come back to the same places.)
        let fewest_ghosts = shared.entries[e].sole.is_several();
        // Rank, range, first block of the hole, its end.
        let mut best: Option<(Rank, usize, u32, u64)> = None;
        // All holes that begin below are known.
        let mut passed = 0;
        'search: for &(address, index) in &mapping.vacant {
            let range = mapping.range_at(address);
            let home = &mapping.ranges[range];
            let (start, end) = (home.place(address, size), home.place(block(index).end(), size));
            let mut from = start.max(home.place(passed.max(address), size));
            while from < end {
                // A hole of which these places are a part.
                let (mut low, mut first) = (address, index);
                if from == start && home.is_open(start, idle) {
                    let mut left = block(first).prev();
                    while left != NIL && touches(block(left), block(first)) && bound.usable(shared, left).is_some() {
                        (first, low) = (left, block(left).addr());
                        left = block(left).prev();
                    }
                }
                let mut open = from;
                if low == address {
                    let Some(run) = home.open_run(from, end, self.need.div_ceil(size), idle) else { break };
                    (low, open) = (home.base + run * size, (run + self.need.div_ceil(size)).min(end));
                }
                open = home.open_upto(open, end, idle);
                let (mut high, mut last) = (home.base + open * size, index);
                while high == block(last).end() && block(last).next() != NIL {
                    let next = block(last).next();
                    let n = block(next);
                    if !touches(block(last), n) {
                        break;
                    }
                    if n.has(VACANT) {
                        let (start, end) = (home.place(n.addr(), size), home.place(n.end(), size));
                        let open = home.open_upto(start, end, idle);
                        if open == start {
                            break;
                        }
                        (last, high) = (next, home.base + open * size);
                    } else if bound.usable(shared, next).is_some() {
                        (last, high) = (next, n.end());
                    } else {
                        break;
                    }
                }
                passed = high;
                // (The place after an end within the block is not open.)
                from = open + 1;
                if high - low < self.need {
                    continue;
                }
                // Whether there can be none better: what comes later has higher addresses.
                let mut offer = |(missing, ghosts, address): Rank| {
                    let rank = (missing, if fewest_ghosts { ghosts } else { 0 }, address);
                    if best.as_ref().is_none_or(|(other, ..)| rank < *other) {
                        best = Some((rank, range, first, high));
                    }
                    (rank.0, rank.1) == (0, 0)
                };
                // The low end, or as far up as it takes for no chunk to be needed twice.
                if self.lowest(mapping, home, low, high, size).is_some_and(&mut offer) {
                    break 'search;
                }
                if high != home.end() && self.lowest(mapping, home, high - self.need, high, size).is_some_and(offer) {
                    break 'search;
                }
            }
        }
        let ((count, _, address), range, first, high) = best?;
        let home = &mapping.ranges[range];
        let (from, to) = (home.place(address, size), home.place(address + self.need - 1, size));
        let (mut gaps, mut returns): (Vec<(u64, u64)>, Vec<Return>) = (Vec::new(), Vec::new());
        let (mut missing, mut back) = (0, 0);
        let numbers = home.numbers(from, to + 1);
        let ghosts = &home.ghosts[from.min(home.ghosts.len() as u64) as usize..];
        // Where a chunk serves that goes on with the last run, and where its range ends.
        let (mut next, mut end) = (0, 0);
        for ((place, &number), &ghost) in (from..).zip(numbers).zip(ghosts) {
            if number == NOTHING {
                missing += 1;
                add_gap(&mut gaps, place, 1);
                next = 0;
            } else if ghost == SERVES {
                next = 0;
            } else {
                back += 1;
                let at = mapping.chunks[number as usize].at;
                match returns.last_mut() {
                    Some(last) if at == next && at < end => last.count += 1,
                    _ => {
                        returns.push(Return { at, place, count: 1 });
                        end = mapping.ranges[mapping.range_at(at)].end();
                    }
                }
                next = at + size;
            }
        }
        let known = from + numbers.len() as u64;
        if known <= to {
            missing += to + 1 - known;
            add_gap(&mut gaps, known, to + 1 - known);
        }
        debug_assert_eq!(missing, count);
        let tail = high == home.end();
        let hole = between(first, high);
        Some(Plan { range, address, first: from, count: to - from + 1, missing, gaps, back, returns, tail, hole })
    }

    /// The lowest address from `low` on, itself or where a place begins, at which a block that ends at or below `high` takes no
    /// chunk twice; before it, how many of its places have nothing mapped, and how many are ghosts.
    fn lowest(&self, mapping: &Mapping, range: &Range, low: u64, high: u64, size: u64) -> Option<Rank> {
        let mark = mapping.new_mark();
        let (mut spot, mut first) = (low, range.place(low, size));
        let mut place = first;
        let (mut missing, mut back) = (0, 0);
        loop {
            let last = range.place(spot + self.need - 1, size);
            let known = (range.places.len() as u64).clamp(place, last + 1);
            let numbers = range.places.get(place as usize..known as usize).unwrap_or(&[]);
            let mut twice = None;
            for &number in numbers {
                if number == NOTHING {
                    missing += 1;
                } else {
                    back += u64::from(range.ghosts[place as usize] != SERVES);
                    let (met, before) = mapping.chunks[number as usize].needed.replace((mark, place));
                    if met == mark && before >= first {
                        twice = Some(before);
                    }
                }
                place += 1;
                if twice.is_some() {
                    break;
                }
            }
            let Some(before) = twice else { return Some((missing + last + 1 - known, back, spot)) };
            // Behind the first of the two.
            for place in first as usize..=before as usize {
                let nothing = range.places[place] == NOTHING;
                missing -= u64::from(nothing);
                back -= u64::from(!nothing && range.ghosts[place] != SERVES);
            }
            first = before + 1;
            spot = range.base + first * size;
            if high < spot || high - spot < self.need {
                return None;
            }
        }
    }

    /// Up to `wanted` idle chunks that are not needed for the plan's places: of the smallest usable free block that holds one,
    /// then the lowest, from its low end.
    fn sources(
        &self,
        shared: &PoolShared,
        e: usize,
        candidates: &[(u64, u64, u32)],
        plan: &Plan,
        wanted: u64,
    ) -> Vec<Source> {
        if wanted == 0 {
            return Vec::new();
        }
        let size = self.pool.entries[e].page_size;
        let mapping = &shared.entries[e].mapped;
        let mark = mapping.new_mark();
        for place in plan.first..plan.first + plan.count {
            let number = mapping.ranges[plan.range].number(place);
            if number != NOTHING {
                mapping.chunks[number as usize].needed.set((mark, place));
            }
        }
        let mut found: Vec<Source> = Vec::new();
        let mut left = wanted;
        // Mostly the first few have enough, and mostly one stream's lie in order.
        let sorted = candidates.is_sorted();
        let mut in_order = candidates.iter().copied();
        let mut smallest: BinaryHeap<_> = match sorted {
            true => BinaryHeap::new(),
            false => candidates.iter().copied().map(Reverse).collect(),
        };
        let mut next = || if sorted { in_order.next() } else { smallest.pop().map(|Reverse(least)| least) };
        while let Some((bytes, address, mut index)) = next() {
            let range = mapping.range_at(address);
            for place in mapping.ranges[range].places_within(address, bytes, size) {
                if left == 0 {
                    return found;
                }
                let number = mapping.ranges[range].number(place);
                if mapping.chunks[number as usize].needed.get().0 == mark {
                    continue;
                }
                left -= 1;
                let start = mapping.ranges[range].base + place * size;
                while block(index).end() <= start {
                    index = block(index).next();
                }
                add_source(&mut found, index, range, (place, start + size));
            }
        }
        found
    }

    /// One of the chunks drops ghosts before it moves.
    fn has_many_ghosts(&self, shared: &PoolShared, e: usize, source: &Source) -> bool {
        let mapping = &shared.entries[e].mapped;
        let range = &mapping.ranges[source.range];
        let ghosts = |place| mapping.chunks[range.number(place) as usize].ghosts.len();
        (source.first..source.first + source.count).any(|place| ghosts(place) >= most_ghosts(self.pool, e))
    }

    /// The chunks that come back to the plan's ghosts: where they serve now, adjacent ones of a block together; and in the same
    /// order what comes where, each of the first as its origin.
    fn returning(&self, shared: &PoolShared, e: usize, plan: &Plan) -> (Vec<Source>, Vec<Coming>) {
        let size = self.pool.entries[e].page_size;
        let mapping = &shared.entries[e].mapped;
        let mut returns = plan.returns.clone();
        returns.sort_unstable_by_key(|run| run.at);
        let mut found: Vec<Source> = Vec::with_capacity(returns.len());
        let mut coming: Vec<Coming> = Vec::with_capacity(returns.len() + plan.gaps.len() + 4);
        let (mut around, mut end) = (NIL, 0);
        for Return { at, place: to, count } in returns {
            let (range, first) = mapping.place_at(at, size);
            let mut done = 0;
            while done < count {
                let (address, place) = (at + done * size, first + done);
                if address >= end {
                    around = block_around(mapping, address);
                    end = block(around).end();
                }
                // So many lie in the block, or one lies in several.
                let many = ((end - address) / size).clamp(1, count - done);
                match found.last_mut() {
                    Some(last) if last.block == around && last.first + last.count == place && address + size <= end => {
                        last.count += many;
                    }
                    _ => found.push(Source { block: around, range, first: place, count: many }),
                }
                let from = Some((range, place));
                coming.push(Coming { place: to + done, count: many, from, origin: found.len() - 1 });
                done += many;
            }
        }
        (found, coming)
    }

    /// Carries a plan out. `None`: the device refused to map; nothing has changed then.
    #[allow(clippy::too_many_arguments)]
    fn act(
        &mut self,
        slow: &mut Slow<'_>,
        shared: &mut PoolShared,
        e: usize,
        bound: &Bound,
        plan: Plan,
        sources: &[Source],
        extra: u64,
    ) -> Result<Option<Found>> {
        let pool = self.pool;
        let device = &*pool.device;
        let size = pool.entries[e].page_size;
        let (returning, mut coming) = self.returning(shared, e, &plan);
        if !shared.stock.ensure(2 * (sources.len() + returning.len()) + 8) {
            return Err(out_of_records());
        }
        // What goes where.
        let mapping = &shared.entries[e].mapped;
        let (base, pointer) = (mapping.ranges[plan.range].base, mapping.ranges[plan.range].pointer);
        let mut origins: Vec<Origin> = Vec::with_capacity(sources.len() + returning.len() + 1);
        for source in returning.iter().chain(sources) {
            let end = mapping.ranges[source.range].base + (source.first + source.count) * size;
            origins.push(origin_of(shared, bound, source.block, end));
        }
        let new_origin = origins.len();
        origins.push(Origin { points: FreePoints::default(), reason: Reason::Fresh });
        // The gaps get the moved chunks, then new ones.
        let mut moves = 0;
        let mut chunks: Vec<Chunk> = Vec::with_capacity((plan.missing + extra) as usize);
        let mut places = Gaps { gaps: &plan.gaps, done: 0 };
        for (i, source) in sources.iter().enumerate() {
            let range = &mapping.ranges[source.range];
            let numbers = range.numbers(source.first, source.first + source.count);
            chunks.extend(numbers.iter().map(|&number| mapping.chunks[number as usize].chunk));
            moves += source.count;
            let mut from = source.first;
            while from < source.first + source.count {
                let (place, count) = places.take(source.first + source.count - from).expect("a gap for each");
                coming.push(Coming { place, count, from: Some((source.range, from)), origin: returning.len() + i });
                from += count;
            }
        }
        while let Some((place, count)) = places.take(u64::MAX) {
            coming.push(Coming { place, count, from: None, origin: new_origin });
        }
        coming.sort_unstable_by_key(|coming| coming.place);
        let new = (plan.missing - moves + extra) as usize;
        let mapping = &mut shared.entries[e].mapped;
        chunks.extend(mapping.spare.drain(..new));
        let beyond = plan.first + plan.count;
        let mut gaps = plan.gaps.clone();
        if extra > 0 {
            add_gap(&mut gaps, beyond, extra);
        }
        let mut unmapped = &chunks[..];
        for (i, &(first, count)) in gaps.iter().enumerate() {
            let (these, others) = unmapped.split_at(count as usize);
            unmapped = others;
            if let Err(refused) = device.source.map(pointer, first * size, these, size) {
                self.note_refusal(refused);
                for place in gaps[..i].iter().flat_map(|&(first, count)| first..first + count) {
                    let address = base + place * size;
                    if !unmap(mapping, pool, e, address) {
                        mapping.strand(address, size);
                    }
                }
                mapping.spare.extend_from_slice(&chunks[moves as usize..]);
                return Ok(None);
            }
        }
        // The block, and what its first and last chunk have beyond it.
        let (low, high) = (plan.address, plan.address + self.need);
        let last = plan.first + plan.count - 1;
        let head = coming.first().filter(|coming| coming.place == plan.first).map(|coming| coming.origin);
        let tail = coming.last().filter(|coming| coming.place + coming.count - 1 == last).map(|coming| coming.origin);
        let from = head.map_or(low, |_| base + plan.first * size);
        let to = tail.map_or(high, |_| base + (last + 1) * size);
        let (mut all_fresh, mut weakest) = (true, Reason::SameStream);
        let mut note_reason = |reason: Reason| {
            all_fresh &= reason == Reason::Fresh;
            weakest = weakest.max(if reason == Reason::Fresh { Reason::Observed } else { reason });
        };
        coming.iter().for_each(|coming| note_reason(origins[coming.origin].reason));
        for &index in plan.hole.iter().filter(|&&index| block(index).addr() < to && block(index).end() > from) {
            if let Some(reason) = bound.usable(shared, index) {
                note_reason(if block(index).has(UNUSED) { Reason::Fresh } else { reason });
            }
        }
        let more = (extra > 0).then(|| {
            let low = base + beyond * size;
            take_out(slow, shared, pool, e, &plan.hole, low, low + extra * size)
        });
        let mut index = take_out(slow, shared, pool, e, &plan.hole, from, to);
        // The chunks leave where they were.
        for source in sources.iter().rev().chain(returning.iter().rev()) {
            let low = shared.entries[e].mapped.ranges[source.range].base + source.first * size;
            leave(slow, shared, pool, e, source.block, source.range, (low, low + source.count * size));
        }
        for tally in [&pool.tally, &pool.entry_tally[e]] {
            tally.chunk_moves.fetch_add(moves, Relaxed);
        }
        let mut pieces: Vec<(u32, &Origin)> = Vec::new();
        if let Some(origin) = head
            && from < low
        {
            pieces.push((index, &origins[origin]));
            let rest = cut(index, block(index), low - from, &mut shared.stock).expect("records were made ready");
            index = rest.expect("the block goes on").0;
        }
        if let Some(origin) = tail
            && high < to
        {
            let rest = cut(index, block(index), self.need, &mut shared.stock).expect("records were made ready");
            pieces.push((rest.expect("the block goes on").0, &origins[origin]));
        }
        let mut answers = SlotMap::default();
        for coming in coming.iter().filter(|coming| coming.origin >= returning.len()) {
            let Some((range, first)) = coming.from else { continue };
            for place in first..first + coming.count {
                let number = shared.entries[e].mapped.ranges[range].number(place);
                drop_ghosts(shared, pool, e, number, &mut answers);
            }
        }
        let mapping = &mut shared.entries[e].mapped;
        let mut new_chunks = chunks[moves as usize..].iter();
        for coming in &coming {
            let points = &origins[coming.origin].points;
            if let Some(from) = coming.from {
                mapping.serve_at(from, (plan.range, coming.place), coming.count, &Left::at(points), size);
                continue;
            }
            for place in coming.place..coming.place + coming.count {
                mapping.settle_in(*new_chunks.next().expect("one for each"), base + place * size, size);
            }
        }
        for (place, &chunk) in (beyond..).zip(new_chunks) {
            mapping.settle_in(chunk, base + place * size, size);
        }
        if pool.entries[e].slow_free {
            let now = pool.allocations();
            for place in beyond..beyond + extra {
                mapping.ranges[plan.range].set_since(place, now);
            }
            mapping.due = mapping.due.min(now.saturating_add(pool.entries[e].period.unwrap_or(0)));
        }
        for (piece, origin) in pieces {
            let unused = if origin.reason == Reason::Fresh { UNUSED } else { 0 };
            block(piece).set_size_flags(block(piece).size(), FREE | unused);
            let points = if rules::off(rules::CHUNK_POINTS) { FreePoints::default() } else { origin.points.clone() };
            super::free::place(slow, shared, pool, e, piece, &points);
        }
        if let Some(more) = more {
            block(more).set_size_flags(block(more).size(), FREE | UNUSED);
            super::free::place(slow, shared, pool, e, more, &[]);
        }
        let reason = if all_fresh { Reason::Fresh } else { weakest };
        let b = block(index);
        b.set_stream(OBSERVED);
        b.set_size_flags(b.size(), FREE);
        Ok(Some(Found { index, entry: e, reason }))
    }
}

/// Places with nothing mapped, in their order.
struct Gaps<'a> {
    gaps: &'a [(u64, u64)],
    /// How many of the first gap have been taken.
    done: u64,
}

impl Gaps<'_> {
    /// Up to `most` adjacent ones: the first, how many.
    fn take(&mut self, most: u64) -> Option<(u64, u64)> {
        let (&(first, count), rest) = self.gaps.split_first()?;
        let taken = (first + self.done, (count - self.done).min(most));
        self.done += taken.1;
        if self.done == count {
            (self.gaps, self.done) = (rest, 0);
        }
        Some(taken)
    }
}

/// `count` more places from `place` on have nothing mapped.
fn add_gap(gaps: &mut Vec<(u64, u64)>, place: u64, count: u64) {
    match gaps.last_mut() {
        Some((first, already)) if *first + *already == place => *already += count,
        _ => gaps.push((place, count)),
    }
}

/// One more chunk, whose place ends at `end` and begins in the block `first`; they come by block, and in a block by ascending
/// place.
fn add_source(sources: &mut Vec<Source>, first: u32, range: usize, (place, end): (u64, u64)) {
    match sources.last_mut() {
        Some(last) if last.block == first && last.first + last.count == place && end <= block(first).end() => {
            last.count += 1;
        }
        _ => sources.push(Source { block: first, range, first: place, count: 1 }),
    }
}

/// Of the chunks that lie in the usable free blocks from `first` on up to `end`.
fn origin_of(shared: &PoolShared, bound: &Bound, first: u32, end: u64) -> Origin {
    let mut points = free_points(shared, first);
    let mut unused = block(first).has(UNUSED);
    if block(first).end() < end {
        for &index in &between(first, end)[1..] {
            points.extend(free_points(shared, index).iter().copied());
            unused &= block(index).has(UNUSED);
        }
        points = super::alloc::largest_per_stream(points.to_vec()).into_iter().collect();
    }
    let reason = if unused { Reason::Fresh } else { bound.reason_after(&points).expect("a source is usable") };
    Origin { points, reason }
}

/// How many places right after the plan's have nothing mapped.
fn unmapped_after(shared: &PoolShared, e: usize, plan: &Plan, size: u64) -> u64 {
    let range = &shared.entries[e].mapped.ranges[plan.range];
    let first = plan.first + plan.count;
    let address = range.base + first * size;
    if address >= range.end() {
        return 0;
    }
    let b = block(holder_of(&plan.hole, address));
    if !b.has(VACANT) {
        return 0;
    }
    let last = (b.end() - range.base) / size;
    let known = (range.places.len() as u64).clamp(first, last);
    (first..known).find(|&place| range.number(place) != NOTHING).unwrap_or(last) - first
}

/// All of `[low, high)` is in free blocks.
fn is_free(slot: u32, low: u64, high: u64) -> bool {
    let mut at = page(slot).block_at(slot, low).unwrap_or(NIL);
    while at != NIL && block(at).has(FREE) && block(at).page() == slot {
        if block(at).end() >= high {
            return true;
        }
        at = block(at).next();
    }
    false
}

/// A block of `[low, high)` was freed: its chunks that are idle now became so now.
pub(crate) fn note_idle(shared: &mut PoolShared, pool: &Arc<Pool>, e: usize, slot: u32, low: u64, high: u64) {
    let size = pool.entries[e].page_size;
    let now = pool.allocations();
    let mapping = &mut shared.entries[e].mapped;
    let at = mapping.range_of(slot);
    let range = &mut mapping.ranges[at];
    for place in (low - range.base) / size..=(high - 1 - range.base) / size {
        let start = range.base + place * size;
        let inside = low <= start && start + size <= high;
        if inside || is_free(slot, start, start + size) {
            range.set_since(place, now);
            mapping.due = mapping.due.min(now.saturating_add(pool.entries[e].period.unwrap_or(0)));
        }
    }
}

/// Gives back idle chunks whose points have executed, highest address first: with `period`, those idle for so many
/// allocations; where `want(reserved, bytes of a chunk)` says so. `answers` keeps what the device said. Returns the bytes.
pub(super) fn release_chunks(
    slow: &mut Slow<'_>,
    shared: &mut PoolShared,
    pool: &Arc<Pool>,
    e: usize,
    answers: &mut SlotMap<StreamRef, u64>,
    period: Option<u64>,
    want: &mut impl FnMut(u64, u64) -> bool,
) -> u64 {
    let now = pool.allocations();
    if period.is_some() && now < shared.entries[e].mapped.due {
        return 0;
    }
    let mut due = u64::MAX;
    // With every stream of the pool locked, what is free stays free.
    slow.lock_attached(pool);
    let size = pool.entries[e].page_size;
    let reserved = pool.tally.reserved.load(Relaxed);
    if period.is_none() && reserved >= size && want(reserved, size) {
        // Chunks are looked at by the blocks as they are merged.
        slow.holders(pool, e);
    }
    let mut given = 0;
    let spare = std::mem::take(&mut shared.entries[e].mapped.spare);
    for chunk in spare {
        if period.is_none() && want(pool.tally.reserved.load(Relaxed), size) && give_back(slow, pool, e, chunk, 0) {
            given += size;
        } else {
            shared.entries[e].mapped.spare.push(chunk);
        }
    }
    for r in (0..shared.entries[e].mapped.ranges.len()).rev() {
        let range = &shared.entries[e].mapped.ranges[r];
        let (slot, base) = (range.page, range.base);
        let blocks = between(page(slot).first.load(Relaxed), u64::MAX);
        let mut end = blocks.len();
        while end > 0 {
            let start = end - blocks[..end].iter().rev().take_while(|&&index| block(index).has(FREE)).count();
            if start == end {
                end -= 1;
                continue;
            }
            // A run of free blocks. Segments of chunks that go, from the right: first place, chunks, and the blocks that
            // hold them, which cutting off what is to the right of them leaves as they are.
            let run = &blocks[start..end];
            end = start;
            let mut gone: Vec<(u64, Vec<u32>, usize, usize)> = Vec::new();
            let low = (block(run[0]).addr() - base).div_ceil(size);
            let high = (block(run[run.len() - 1]).end() - base) / size;
            let mut upto = run.len();
            for place in (low..high).rev() {
                let range = &shared.entries[e].mapped.ranges[r];
                let number = range.number(place);
                let chunk = shared.entries[e].mapped.chunks[number as usize].chunk;
                let (from, to) = (base + place * size, base + (place + 1) * size);
                upto = run[..upto].partition_point(|&index| block(index).addr() < to);
                let first = run[..upto].partition_point(|&index| block(index).end() <= from);
                let since = range.since.get(place as usize).copied().unwrap_or(0);
                let ripe = since.saturating_add(period.unwrap_or(0));
                if period.is_some() && now < ripe {
                    due = due.min(ripe);
                    continue;
                }
                if !want(pool.tally.reserved.load(Relaxed), size)
                    || !all_executed(shared, pool, &run[first..upto], answers)
                    || !shared.stock.ensure(2 * gone.len() + 4)
                    || !give_back(slow, pool, e, chunk, from)
                {
                    due = due.min(now);
                    continue;
                }
                given += size;
                match gone.last_mut() {
                    Some((lowest, numbers, from, _)) if *lowest == place + 1 => {
                        (*lowest, *from) = (place, first);
                        numbers.push(number);
                    }
                    _ => gone.push((place, vec![number], first, upto)),
                }
            }
            for (first, numbers, left, right) in gone {
                let (from, to) = (base + first * size, base + (first + numbers.len() as u64) * size);
                let empty = take_out(slow, shared, pool, e, &run[left..right], from, to);
                make_vacant(shared, e, empty);
                for number in numbers {
                    forget(&mut shared.entries[e].mapped, pool, e, number);
                }
            }
        }
    }
    if period.is_some() {
        shared.entries[e].mapped.due = due;
    }
    given
}

/// A chunk that went is unmapped wherever it is mapped. What used it from its ghosts has executed too: a chunk comes to another
/// place by being ordered after what used it before.
fn forget(mapping: &mut Mapping, pool: &Arc<Pool>, e: usize, number: u32) {
    let size = pool.entries[e].page_size;
    let serving = &mut mapping.chunks[number as usize];
    let at = std::mem::take(&mut serving.at);
    let ghosts = std::mem::take(&mut serving.ghosts);
    mapping.away -= u64::from(at != serving.home);
    serving.home = 0;
    let (range, place) = mapping.place_at(at, size);
    mapping.ranges[range].set_away(place, 1, false);
    mapping.mapped -= 1;
    mapping.ghosts -= ghosts.len() as u64;
    for address in ghosts.iter().map(|ghost| ghost.at).chain([at]) {
        if !unmap(mapping, pool, e, address) {
            mapping.strand(address, size);
        }
    }
    mapping.free_numbers.push(number);
}

fn all_executed(shared: &PoolShared, pool: &Arc<Pool>, blocks: &[u32], answers: &mut SlotMap<StreamRef, u64>) -> bool {
    let mut executed = |at: At| release::executed(pool, answers, at);
    blocks.iter().all(|&index| {
        let b = block(index);
        match b.stream() {
            OBSERVED => true,
            _ if rules::off(rules::RELEASE_EXECUTED) => true,
            MULTI => shared.points[&index].iter().all(|&at| executed(at)),
            stream => executed(At { stream, seq: b.seq() }),
        }
    })
}

/// The device takes a chunk back, or does not.
fn give_back(slow: &Slow<'_>, pool: &Arc<Pool>, e: usize, chunk: Chunk, address: u64) -> bool {
    let device = slow.device;
    let bytes = pool.entries[e].page_size;
    let refused = device.source.release_chunk(chunk, bytes).is_err();
    device.tell(&Event::PageReleased { pool: pool.id, entry: e as u32, bytes, address, refused });
    if refused {
        pool.tally.release_failures.fetch_add(1, Relaxed);
        pool.entry_tally[e].release_failures.fetch_add(1, Relaxed);
        crate::log::emit(crate::log::Level::Warning, || {
            format!("the device refused to take back a chunk of {bytes} bytes; it stays reserved")
        });
        return false;
    }
    pool.tally.shrink(bytes);
    pool.entry_tally[e].shrink(bytes);
    device.page_frees.fetch_add(1, Relaxed);
    device.reserved.fetch_sub(bytes, Relaxed);
    true
}

/// An entry's ranges go, once no chunk is held.
pub(super) fn drop_ranges(slow: &Slow<'_>, shared: &mut PoolShared, pool: &Arc<Pool>, e: usize) {
    let device = slow.device;
    if shared.entries[e].mapped.chunks() > 0 {
        return;
    }
    let mut mapping = std::mem::take(&mut shared.entries[e].mapped);
    for address in std::mem::take(&mut mapping.stuck) {
        unmap(&mut mapping, pool, e, address);
    }
    for range in mapping.ranges {
        let record = page(range.page);
        let mut at = record.first.load(Relaxed);
        while at != NIL {
            let next = block(at).next();
            shared.stock.give(at);
            at = next;
        }
        device.by_address.write().remove(&range.base);
        if range.pointer != 0 {
            device.by_pointer.write().remove(&range.pointer);
        }
        record.first.store(NIL, Relaxed);
        shared.entries[e].pages.remove(&range.page);
        pool.empties[e].lock().retain(|&slot| slot != range.page);
        let mut granted = device.granted.lock();
        let grant = granted.grants.remove(&range.page).unwrap_or_default();
        granted.addresses.release(range.base, range.bytes);
        drop(granted);
        page::close(range.page);
        device.source.unreserve(grant, range.bytes);
    }
}

/// Compares the entry's places and vacant blocks with the blocks of its ranges.
pub(crate) fn check(shared: &PoolShared, pool: &Arc<Pool>, e: usize) -> std::result::Result<(), String> {
    let mapping = &shared.entries[e].mapped;
    let size = pool.entries[e].page_size;
    let (mut mapped, mut vacant, mut ghosts, mut stuck) = (0, 0, 0, 0);
    for range in &mapping.ranges {
        for (place, &number) in (0..).zip(&range.places) {
            let address = range.base + place * size;
            match number {
                NOTHING => {}
                STUCK => stuck += 1,
                _ => {
                    let Some(serving) = mapping.chunks.get(number as usize) else {
                        return Err(format!("entry {e}: what is mapped at {address:#x} is no chunk"));
                    };
                    let here = serving.at == address;
                    let ghost = range.ghosts[place as usize];
                    let listed = serving.ghosts.iter().filter(|ghost| ghost.at == address).count();
                    let known = match here {
                        true => ghost == SERVES,
                        false => serving.ghosts.get(ghost as usize).is_some_and(|ghost| ghost.at == address),
                    };
                    let is_away = range.away[place as usize / 64] >> (place % 64) & 1 != 0;
                    if serving.at == 0
                        || listed != usize::from(!here)
                        || !known
                        || is_away != (here && serving.at != serving.home)
                    {
                        return Err(format!("entry {e}: the chunk mapped at {address:#x} does not say so"));
                    }
                    (mapped, ghosts) = (mapped + u64::from(here), ghosts + u64::from(!here));
                }
            }
        }
        let serves = |place: u64| match range.number(place) {
            NOTHING | STUCK => false,
            number => mapping.chunks[number as usize].at == range.base + place * size,
        };
        let mut at = page(range.page).first.load(Relaxed);
        let mut last_vacant = false;
        while at != NIL {
            let b = block(at);
            let kinds = [super::block::LIVE, FREE, VACANT].into_iter().filter(|&flag| b.has(flag)).count();
            if kinds != 1 {
                return Err(format!("entry {e}: block {at} is {kinds} of live, free and vacant"));
            }
            let nothing = b.has(VACANT);
            let (first, last) = ((b.addr() - range.base) / size, (b.end() - 1 - range.base) / size);
            // (Places beyond the list have nothing mapped.)
            let listed = last.min(range.places.len() as u64);
            if (first..=listed).any(|place| serves(place) == nothing) || (!nothing && listed < last) {
                return Err(format!("entry {e}: block {at} and the chunks under it disagree"));
            }
            if nothing && (!(b.addr() - range.base).is_multiple_of(size) || !b.size().is_multiple_of(size)) {
                return Err(format!("entry {e}: block {at} is vacant but not of whole places"));
            }
            if nothing {
                if last_vacant {
                    return Err(format!("entry {e}: vacant block {at} should have merged"));
                }
                if mapping.vacant.get(mapping.vacant_from(b.addr())) != Some(&(b.addr(), at)) {
                    return Err(format!("entry {e}: vacant block {at} is not listed"));
                }
                vacant += 1;
            }
            last_vacant = nothing;
            at = b.next();
        }
    }
    let held = mapping.chunks.iter().filter(|serving| serving.at != 0);
    let away = held.clone().filter(|serving| serving.at != serving.home).count() as u64;
    let listed: usize = held.clone().map(|serving| serving.ghosts.len()).sum();
    if held
        .clone()
        .any(|serving| serving.home != serving.at && !serving.ghosts.iter().any(|ghost| ghost.at == serving.home))
    {
        return Err(format!("entry {e}: a chunk's home is not its own"));
    }
    let have = (mapped, ghosts, listed as u64, away, held.count(), vacant, stuck);
    let want = (
        mapping.mapped,
        mapping.ghosts,
        mapping.ghosts,
        mapping.away,
        mapping.chunks.len() - mapping.free_numbers.len(),
        mapping.vacant.len(),
        mapping.stuck.len(),
    );
    if have != want {
        return Err(format!(
            "entry {e}: (chunks, ghosts, listed ghosts, chunks away, served, vacant blocks, stuck places) are {have:?}, \
             counted {want:?}"
        ));
    }
    Ok(())
}
