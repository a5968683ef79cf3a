//! Mapped entries: blocks in one contiguous range of addresses, under which chunks of memory are mapped where they are
//! needed (`docs/placement.md` §5, §7.1 and §9).
//!
//! A range's blocks are live, free, or *vacant*: no chunk serves there. A free block always has its chunks, so the hot path,
//! which knows free blocks only, need not know of chunks at all. Vacant blocks belong to the slow lock. A chunk stays mapped
//! where it has served (a *ghost*), so that it can come back without a call to the device; once nothing is live it goes back
//! to where it served first (its *home*), so that what is done again and again finds the same places. A chunk has a few dozen
//! ghosts at most, or as many as work that has not run may still use.

mod check;
mod give_back;
mod grow;
mod home;
mod plan;

pub(super) use check::check;
pub(super) use give_back::{drop_ranges, note_idle, release_chunks};
pub(super) use home::{go_home, note_pause, observed, unstick};

use super::Reason;
use super::alloc::{attach_any, detach_any};
use super::block::{Block, HOST, MULTI, NIL, OBSERVED, VACANT, block};
use super::merge::{absorb, cut};
use super::page::page;
use super::slow::Slow;
use super::span::touches;
use super::state::{Pool, PoolShared};
use crate::device_source::{Chunk, PageSource};
use crate::few::Few;
use crate::order::At;
use crate::rules;
use std::cell::Cell;
use std::sync::Arc;

/// A request for more chunks than this (2 TiB of 2 MiB) is refused as the device would, before lists as long are made.
const MOST_CHUNKS: u64 = 1 << 20;

/// How many chunks of this size an entry may hold, with its high-water mark of `used` bytes, before it moves chunks instead of
/// asking for more: each move costs calls to the device, and a little room saves most of them. What is asked for goes up to
/// there at once. (Where several streams use the entry there is a 16th more: such programs do not come back to the same places.)
fn budget(used: u64, size: u64, several: bool, tight: bool) -> u64 {
    let least = large(size);
    let share = if tight && !several { 32 } else { 64 };
    let slack = (used / share).max((used.saturating_mul(3) / 32).clamp(least, 3 * least));
    let more = if several { used / 16 } else { 0 };
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
