//! Mapped entries: blocks in one contiguous range of addresses, under which chunks of memory are mapped where they are
//! needed (`docs/placement.md` §5, §7 and §9).
//!
//! A range's blocks are live, free, *vacant* (nothing is mapped) or *leaving* (the chunk serves elsewhere, but work that
//! was submitted may still use it from here). A free block is always wholly mapped, so the hot path, which knows free
//! blocks only, need not know of chunks at all. Vacant and leaving blocks belong to the slow lock.

use super::Reason;
use super::alloc::{Found, Request, attach_any, detach_any, out_of_records};
use super::block::{Block, LEAVING};
use super::block::{FREE, HOST, MULTI, NIL, OBSERVED, UNUSED, VACANT, block};
use super::config::MAX_PAGE;
use super::fresh::enter_page;
use super::observer::{AllocDone, Event};
use super::page::{self, page};
use super::release;
use super::span::{Bound, run_around};
use super::state::{Pool, PoolShared, STREAMS, Slow, absorb, cut};
use crate::device_source::{Chunk, PageSource};
use crate::error::Result;
use crate::handle;
use crate::order::{At, StreamRef};
use crate::rules;
use crate::runtime::native;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A request for more chunks than this (2 TiB of 2 MiB) is refused as the device would, before lists as long are made.
const MOST_CHUNKS: u64 = 1 << 20;

/// Bytes an entry with chunks of this size may hold beyond its high-water mark of `used` before it moves chunks instead of
/// asking for more: each move costs calls to the device, and a little room saves most of them. What is asked for goes up to
/// there at once.
fn slack(used: u64, size: u64) -> u64 {
    let least = size.saturating_mul(8).min(16 << 20);
    (used / 64).max((used.saturating_mul(3) / 32).clamp(least, 3 * least))
}

/// What a Mapped entry has reserved and mapped; under the slow lock.
#[derive(Default)]
pub(crate) struct Mapping {
    /// By ascending address.
    ranges: Vec<Range>,
    /// Vacant blocks: (address, block). No two of them touch.
    vacant: BTreeSet<(u64, u32)>,
    leaving: Vec<Leaving>,
    /// Chunks held and mapped nowhere: asked for, and then not needed because another thread was faster.
    spare: Vec<Chunk>,
    /// Chunks that stand behind a place.
    mapped: u64,
    /// With a `dealloc_period`: no chunk can go back by it before the pool has made so many allocations.
    due: u64,
}

struct Range {
    page: u32,
    base: u64,
    bytes: u64,
    /// Where the range begins for a kernel.
    pointer: u64,
    /// What is mapped at each chunk's place; as long as has been needed.
    places: Vec<Option<Chunk>>,
    /// The pool's allocations when the place became idle; kept only for `dealloc_period`.
    since: Vec<u64>,
}

struct Leaving {
    index: u32,
    /// Until these are observed.
    points: Vec<At>,
    /// What is mapped at each of its places still; `None` where it is not any more.
    chunks: Vec<Option<Chunk>>,
}

/// Where a block can be put: `count` places from `first` on, of which `missing` have nothing mapped.
struct Plan {
    range: usize,
    address: u64,
    first: u64,
    count: u64,
    missing: Vec<u64>,
    /// The hole goes on to the end of the range.
    tail: bool,
    /// The hole's blocks, left to right.
    hole: Vec<u32>,
}

/// Adjacent idle chunks of one free block.
struct Source {
    block: u32,
    range: usize,
    first: u64,
    count: u64,
}

/// A chunk for a place, and after what it may be used there.
struct Given {
    chunk: Chunk,
    points: Vec<At>,
    reason: Reason,
}

impl Range {
    fn chunk(&self, place: u64) -> Option<Chunk> {
        self.places.get(place as usize).copied().flatten()
    }
    fn set(&mut self, place: u64, chunk: Option<Chunk>) {
        let place = place as usize;
        if self.places.len() <= place {
            self.places.resize(place + 1, None);
        }
        self.places[place] = chunk;
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
}

impl Mapping {
    /// Chunks held.
    pub(crate) fn chunks(&self) -> u64 {
        self.mapped + self.spare.len() as u64
    }
    /// Bytes of records beyond those of live and free blocks.
    pub(crate) fn metadata_bytes(&self) -> u64 {
        let records = self.vacant.len() + self.leaving.len();
        let places: usize = self
            .ranges
            .iter()
            .map(|range| {
                range.places.len() * std::mem::size_of::<Option<Chunk>>()
                    + range.since.len() * std::mem::size_of::<u64>()
            })
            .sum();
        (records * std::mem::size_of::<Block>() + places) as u64
    }
    /// No chunk is on its way from one place to another.
    pub(crate) fn is_settled(&self) -> bool {
        self.leaving.is_empty()
    }
    fn range_of(&self, slot: u32) -> usize {
        self.ranges.iter().position(|range| range.page == slot).expect("a block of a Mapped entry is in a range")
    }
}

fn domain_points(shared: &PoolShared, index: u32) -> Vec<At> {
    let b = block(index);
    match b.stream() {
        OBSERVED => Vec::new(),
        MULTI => shared.points[&index].clone(),
        stream => vec![At { stream, seq: b.seq() }],
    }
}

/// Which of adjacent blocks, left to right, holds `address`.
fn holder_of(blocks: &[u32], address: u64) -> u32 {
    blocks[blocks.partition_point(|&index| block(index).addr() <= address) - 1]
}

/// Makes sure that a block begins at `address`, which is in the free or vacant block `index` or at its end. There is a
/// record for it.
fn split_at(slow: &mut Slow<'_>, shared: &mut PoolShared, pool: &Arc<Pool>, e: usize, index: u32, address: u64) {
    let b = block(index);
    if b.addr() == address || b.end() == address {
        return;
    }
    let keep = address - b.addr();
    let rest = |shared: &mut PoolShared| {
        let made = cut(index, b, keep, &mut shared.stock).expect("records were made ready");
        made.expect("the block goes on beyond the address").0
    };
    if b.has(VACANT) {
        let rest = rest(shared);
        shared.entries[e].mapped.vacant.insert((address, rest));
        return;
    }
    let domain = b.stream();
    let points = shared.points.get(&index).cloned();
    detach_any(slow, shared, pool, e, index);
    let rest = rest(shared);
    attach_any(slow, shared, pool, e, index, domain, points.as_deref());
    attach_any(slow, shared, pool, e, rest, domain, points.as_deref());
}

/// The blocks from `first` on that begin below `to`.
fn between(first: u32, to: u64) -> Vec<u32> {
    let mut blocks = Vec::new();
    let mut at = first;
    while at != NIL && block(at).addr() < to {
        blocks.push(at);
        at = block(at).next();
    }
    blocks
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
    // From the right: a block that is cut keeps its left part.
    if to < block(blocks[blocks.len() - 1]).end() {
        split_at(slow, shared, pool, e, holder_of(blocks, to), to);
    }
    let first = holder_of(blocks, from);
    split_at(slow, shared, pool, e, first, from);
    let first = if block(first).addr() == from { first } else { block(first).next() };
    let blocks = between(first, to);
    for &index in &blocks {
        let b = block(index);
        if b.has(VACANT) {
            shared.entries[e].mapped.vacant.remove(&(b.addr(), index));
        } else {
            detach_any(slow, shared, pool, e, index);
        }
    }
    for &index in &blocks[1..] {
        absorb(first, block(first), index, block(index), &mut shared.stock);
    }
    let b = block(first);
    b.set_size_flags(b.size(), 0);
    b.set_stream(HOST);
    b.set_seq(0);
    first
}

/// A block of [`take_out`] has nothing mapped: it is vacant, together with vacant neighbours.
fn make_vacant(shared: &mut PoolShared, e: usize, mut index: u32) {
    let touches = |left: &Block, right: &Block| left.page() == right.page() && left.end() == right.addr();
    let b = block(index);
    let next = b.next();
    if next != NIL && block(next).has(VACANT) && touches(b, block(next)) {
        shared.entries[e].mapped.vacant.remove(&(block(next).addr(), next));
        absorb(index, b, next, block(next), &mut shared.stock);
    }
    let prev = b.prev();
    if prev != NIL && block(prev).has(VACANT) && touches(block(prev), b) {
        shared.entries[e].mapped.vacant.remove(&(block(prev).addr(), prev));
        absorb(prev, block(prev), index, b, &mut shared.stock);
        index = prev;
    }
    let b = block(index);
    b.set_size_flags(b.size(), VACANT);
    b.set_stream(HOST);
    shared.entries[e].mapped.vacant.insert((b.addr(), index));
}

/// Nothing is needed any more at the places of a block of [`take_out`], once `points` are observed.
fn vacate(
    shared: &mut PoolShared,
    pool: &Arc<Pool>,
    e: usize,
    index: u32,
    points: Vec<At>,
    chunks: Vec<Option<Chunk>>,
) {
    if (points.is_empty() || rules::off(rules::CHUNK_LEAVING)) && unmap(shared, pool, e, index, &chunks) {
        make_vacant(shared, e, index);
        return;
    }
    // (With the points observed and the device unwilling, it is tried again at the next synchronise.)
    let b = block(index);
    b.set_size_flags(b.size(), LEAVING);
    shared.entries[e].mapped.leaving.push(Leaving { index, points, chunks });
}

/// Unmaps what is mapped at a block's places still.
fn unmap(shared: &PoolShared, pool: &Arc<Pool>, e: usize, index: u32, chunks: &[Option<Chunk>]) -> bool {
    let mapping = &shared.entries[e].mapped;
    let b = block(index);
    let range = &mapping.ranges[mapping.range_of(b.page())];
    let size = pool.entries[e].page_size;
    let mut place = 0;
    let mut done = true;
    while place < chunks.len() {
        let count = chunks[place..].iter().take_while(|chunk| chunk.is_some()).count();
        if count > 0 {
            let offset = b.addr() - range.base + place as u64 * size;
            done &= pool.device.source.unmap(range.pointer, offset, count as u64, size).is_ok();
        }
        place += count.max(1);
    }
    if !done {
        crate::log::emit(crate::log::Level::Warning, || {
            format!("the device refused to unmap chunks at {:#x}; their addresses are not used again yet", b.addr())
        });
    }
    done
}

impl Request<'_> {
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
        let mut swept = false;
        let mut least = false;
        let mut refused_at = u64::MAX;
        loop {
            let mut slow = Slow::lock(device);
            let clock = self.now(&mut slow)?;
            if !swept {
                swept = true;
                release::sweep_periods(&mut slow, pool);
                if !slow.leaving.is_empty() {
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
            let Some(plan) = self.plan(&shared, e, &bound) else {
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
            let missing = plan.missing.len() as u64;
            let held = shared.entries[e].mapped.mapped;
            let used = slow.used(&mut shared, pool, e).saturating_add(self.need).max(tally.used_high.load(Relaxed));
            let budget = used.saturating_add(slack(used, size)) / size;
            let over = (held + missing).saturating_sub(budget.min(cap));
            let wanted = if least { missing } else { over.min(missing) };
            let wanted = if rules::off(rules::CHUNK_MOVES) { 0 } else { wanted };
            let sources = self.sources(&mut slow, &shared, e, &bound, &plan, wanted);
            let moves: u64 = sources.iter().map(|source| source.count).sum();
            let grow = missing - moves;
            if held + grow > cap {
                return Ok(None);
            }
            let extra = if grow == 0 || least || !plan.tail {
                0
            } else {
                let beyond = vacant_after(&shared, e, &plan, size);
                let room = budget.saturating_sub(held + grow).max((used / 256 / size).saturating_sub(grow));
                let spare = shared.entries[e].mapped.spare.len() as u64;
                let others = pool.tally.reserved.load(Relaxed).saturating_sub(spare * size);
                let kept = pool.threshold.load(Relaxed).saturating_sub(others) / size;
                room.min(kept.saturating_sub(grow)).min(cap - (held + grow)).min(beyond)
            };
            let lacking = (grow + extra).saturating_sub(shared.entries[e].mapped.spare.len() as u64);
            if lacking == 0 {
                return match self.act(&mut slow, &mut shared, e, &bound, plan, &sources, extra)? {
                    Some(found) => self.commit(&mut slow, &mut shared, found),
                    None => {
                        self.refused = true;
                        Ok(None)
                    }
                };
            }
            if lacking >= refused_at {
                return Ok(None);
            }
            let base = shared.entries[e].mapped.ranges[plan.range].base;
            let beyond = plan.first + plan.count;
            let places = plan.missing[moves as usize..].iter().copied().chain(beyond..beyond + extra);
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
                    pool.shared.lock().entries[e].mapped.spare.extend(chunks);
                }
                Err(refused) => {
                    self.note_refusal(refused);
                    pool.tally.refused_chunks(lacking, size);
                    tally.refused_chunks(lacking, size);
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
        Ok(self.reserve_bytes(e, wanted)? || (least < wanted && self.reserve_bytes(e, least)?))
    }

    fn reserve_bytes(&mut self, e: usize, bytes: u64) -> Result<bool> {
        let pool = self.pool;
        let device = &*pool.device;
        let granularity = device.options.page_granularity;
        if bytes > MAX_PAGE {
            self.refused = true;
            return Ok(false);
        }
        let (address, index) = {
            let slow = Slow::lock(device);
            let Some(index) = pool.shared.lock().stock.take() else { return Err(out_of_records()) };
            let address = device.granted.lock().take_address(bytes, granularity);
            let Some(address) = address else {
                pool.shared.lock().stock.give(index);
                self.refused = true;
                return Ok(false);
            };
            drop(slow);
            (address, index)
        };
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
            pool.shared.lock().stock.give(index);
            device.granted.lock().give_address_back(address, bytes, granularity);
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
        b.set_size_flags(bytes, VACANT);
        b.set_stream(HOST);
        let pointer = grant.pointer;
        let mut shared = pool.shared.lock();
        enter_page(&mut shared, pool, e, slot, index, address, grant);
        let own = &mut shared.entries[e];
        own.mapped.vacant.insert((address, index));
        let range = Range { page: slot, base: address, bytes, pointer, places: Vec::new(), since: Vec::new() };
        let at = own.mapped.ranges.partition_point(|other| other.base < address);
        own.mapped.ranges.insert(at, range);
        drop(slow);
        Ok(true)
    }

    /// Where in the ranges the block goes: the fewest places without a chunk, then the smallest hole, then the lowest
    /// address.
    fn plan(&self, shared: &PoolShared, e: usize, bound: &Bound) -> Option<Plan> {
        let size = self.pool.entries[e].page_size;
        let mapping = &shared.entries[e].mapped;
        let member = |index: u32| block(index).has(VACANT) || bound.usable(shared, index).is_some();
        let mut best: Option<((u64, u64, u64), Plan)> = None;
        let mut upto = 0;
        for &(address, index) in &mapping.vacant {
            if address < upto {
                continue;
            }
            let run = run_around(index, member);
            let (low, high) = (block(run[0]).addr(), block(run[run.len() - 1]).end());
            upto = high;
            if high - low < self.need {
                continue;
            }
            let range = mapping.range_of(block(index).page());
            let home = &mapping.ranges[range];
            let tail = high == home.end();
            let spots = if tail { [low, low] } else { [low, high - self.need] };
            for address in spots {
                let first = (address - home.base) / size;
                let last = (address + self.need - 1 - home.base) / size;
                let missing = (first..=last).filter(|&place| home.chunk(place).is_none()).count() as u64;
                let rank = (missing, high - low, address);
                if best.as_ref().is_none_or(|(other, _)| rank < *other) {
                    let count = last - first + 1;
                    best = Some((
                        rank,
                        Plan { range, address, first, count, missing: Vec::new(), tail, hole: run.clone() },
                    ));
                }
            }
        }
        let (_, mut plan) = best?;
        let home = &mapping.ranges[plan.range];
        plan.missing = (plan.first..plan.first + plan.count).filter(|&place| home.chunk(place).is_none()).collect();
        Some(plan)
    }

    /// Up to `wanted` idle chunks outside the plan's places: of the smallest usable free block that holds one, then the
    /// lowest, from its low end.
    fn sources(
        &self,
        slow: &mut Slow<'_>,
        shared: &PoolShared,
        e: usize,
        bound: &Bound,
        plan: &Plan,
        wanted: u64,
    ) -> Vec<Source> {
        if wanted == 0 {
            return Vec::new();
        }
        let size = self.pool.entries[e].page_size;
        let own = &shared.entries[e];
        let mut candidates: Vec<(u64, u64, u32)> = Vec::new();
        let mut add = |index: u32| candidates.push((block(index).size(), block(index).addr(), index));
        own.observed.each_from(size, &mut add);
        for &(.., index) in own.multi.range((size, 0, 0)..) {
            add(index);
        }
        for holder in bound.holders() {
            slow.bins(holder, self.pool, e).each_from(size, &mut add);
        }
        candidates.retain(|&(.., index)| bound.usable(shared, index).is_some());
        candidates.sort_unstable();
        let mut found = Vec::new();
        let mut left = wanted;
        for (.., index) in candidates {
            let b = block(index);
            let range = own.mapped.range_of(b.page());
            let base = own.mapped.ranges[range].base;
            let (from, to) = ((b.addr() - base).div_ceil(size), (b.end() - base) / size);
            let (hole, beyond) =
                if range == plan.range { (plan.first, plan.first + plan.count) } else { (u64::MAX, u64::MAX) };
            for (first, end) in [(from, to.min(hole)), (from.max(beyond), to)] {
                let count = end.saturating_sub(first).min(left);
                if count > 0 {
                    found.push(Source { block: index, range, first, count });
                    left -= count;
                }
            }
            if left == 0 {
                break;
            }
        }
        found
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
        if !shared.stock.ensure(2 * sources.len() + 8) {
            return Err(out_of_records());
        }
        // What goes where.
        let mut given: Vec<Given> = Vec::new();
        for source in sources {
            let range = &shared.entries[e].mapped.ranges[source.range];
            let reason = bound.usable(shared, source.block).expect("a source is usable");
            let reason = if block(source.block).has(UNUSED) { Reason::Fresh } else { reason };
            for place in source.first..source.first + source.count {
                let chunk = range.chunk(place).expect("free blocks are mapped");
                given.push(Given { chunk, points: domain_points(shared, source.block), reason });
            }
        }
        let moves = given.len() as u64;
        let fresh = plan.missing.len() - given.len() + extra as usize;
        let mapping = &mut shared.entries[e].mapped;
        for chunk in mapping.spare.drain(..fresh) {
            given.push(Given { chunk, points: Vec::new(), reason: Reason::Fresh });
        }
        let beyond = plan.first + plan.count;
        let places: Vec<u64> = plan.missing.iter().copied().chain(beyond..beyond + extra).collect();
        let (base, pointer) = {
            let range = &mapping.ranges[plan.range];
            (range.base, range.pointer)
        };
        let mut at = 0;
        while at < places.len() {
            let count = (at..places.len()).take_while(|&i| places[i] - places[at] == (i - at) as u64).count();
            let chunks: Vec<Chunk> = given[at..at + count].iter().map(|given| given.chunk).collect();
            if let Err(refused) = device.source.map(pointer, places[at] * size, &chunks, size) {
                self.note_refusal(refused);
                for &place in &places[..at] {
                    let _ = device.source.unmap(pointer, place * size, 1, size);
                }
                mapping.spare.extend(given[moves as usize..].iter().map(|given| given.chunk));
                return Ok(None);
            }
            at += count;
        }
        // The block, and what its first and last chunk have beyond it.
        let (low, high) = (plan.address, plan.address + self.need);
        let last = plan.first + plan.count - 1;
        let head = plan.missing.first().filter(|&&place| place == plan.first).map(|_| 0);
        let tail = plan.missing.last().filter(|&&place| place == last).map(|_| plan.missing.len() - 1);
        let from = head.map_or(low, |_| base + plan.first * size);
        let to = tail.map_or(high, |_| base + (last + 1) * size);
        let mut reasons: Vec<Reason> = given[..plan.missing.len()].iter().map(|given| given.reason).collect();
        for &index in plan.hole.iter().filter(|&&index| block(index).addr() < to && block(index).end() > from) {
            if let Some(reason) = bound.usable(shared, index) {
                reasons.push(if block(index).has(UNUSED) { Reason::Fresh } else { reason });
            }
        }
        let more = (extra > 0).then(|| {
            let low = base + beyond * size;
            take_out(slow, shared, pool, e, &plan.hole, low, low + extra * size)
        });
        let mut index = take_out(slow, shared, pool, e, &plan.hole, from, to);
        // The chunks leave where they were. From the right, again; what was cut off above is looked up.
        for source in sources.iter().rev() {
            let range = &mut shared.entries[e].mapped.ranges[source.range];
            let low = range.base + source.first * size;
            let high = low + source.count * size;
            let mut chunks = Vec::new();
            for place in source.first..source.first + source.count {
                chunks.push(range.chunk(place));
                range.set(place, None);
            }
            let known = block(source.block);
            let holds = known.has(FREE) && known.addr() <= low && high <= known.end();
            let from = if holds { source.block } else { block(index).next() };
            let blocks = if holds { vec![from] } else { between(from, high) };
            let points = domain_points(shared, holder_of(&blocks, low));
            let gone = take_out(slow, shared, pool, e, &blocks, low, high);
            vacate(shared, pool, e, gone, points, chunks);
        }
        for tally in [&pool.tally, &pool.entry_tally[e]] {
            tally.chunk_moves.fetch_add(moves, Relaxed);
        }
        let mut pieces: Vec<(u32, &Given)> = Vec::new();
        if let Some(first) = head
            && from < low
        {
            pieces.push((index, &given[first]));
            let rest = cut(index, block(index), low - from, &mut shared.stock).expect("records were made ready");
            index = rest.expect("the block goes on").0;
        }
        if let Some(last) = tail
            && high < to
        {
            let rest = cut(index, block(index), self.need, &mut shared.stock).expect("records were made ready");
            pieces.push((rest.expect("the block goes on").0, &given[last]));
        }
        let mapping = &mut shared.entries[e].mapped;
        for (&place, given) in places.iter().zip(&given) {
            mapping.ranges[plan.range].set(place, Some(given.chunk));
        }
        mapping.mapped += fresh as u64;
        if pool.entries[e].slow_free {
            let now = pool.allocations();
            for place in beyond..beyond + extra {
                mapping.ranges[plan.range].set_since(place, now);
            }
            mapping.due = mapping.due.min(now.saturating_add(pool.entries[e].period.unwrap_or(0)));
        }
        for (piece, given) in pieces {
            let unused = if given.reason == Reason::Fresh { UNUSED } else { 0 };
            block(piece).set_size_flags(block(piece).size(), FREE | unused);
            let points = if rules::off(rules::CHUNK_POINTS) { Vec::new() } else { given.points.clone() };
            super::free::place(slow, shared, pool, e, piece, &points);
        }
        if let Some(more) = more {
            block(more).set_size_flags(block(more).size(), FREE | UNUSED);
            super::free::place(slow, shared, pool, e, more, &[]);
        }
        let all_fresh = reasons.iter().all(|&reason| reason == Reason::Fresh);
        let weakest = reasons.into_iter().map(|reason| if reason == Reason::Fresh { Reason::Observed } else { reason });
        let reason = if all_fresh { Reason::Fresh } else { weakest.max().expect("a block has at least one place") };
        let b = block(index);
        b.set_stream(OBSERVED);
        b.set_size_flags(b.size(), FREE);
        Ok(Some(Found { index, entry: e, reason }))
    }
}

/// How many places right after the plan's have nothing mapped.
fn vacant_after(shared: &PoolShared, e: usize, plan: &Plan, size: u64) -> u64 {
    let range = &shared.entries[e].mapped.ranges[plan.range];
    let address = range.base + (plan.first + plan.count) * size;
    if address >= range.end() {
        return 0;
    }
    let b = block(holder_of(&plan.hole, address));
    if b.has(VACANT) { (b.end() - address) / size } else { 0 }
}

/// What the host has observed since leaves the points of leaving blocks; those with none left become vacant.
pub(crate) fn prune(slow: &Slow<'_>, shared: &mut PoolShared, pool: &Arc<Pool>, e: usize) {
    let device = slow.device;
    let leaving = std::mem::take(&mut shared.entries[e].mapped.leaving);
    for mut gone in leaving {
        gone.points.retain(|at| device.order.observed(&STREAMS, at.stream) < at.seq);
        if gone.points.is_empty() {
            vacate(shared, pool, e, gone.index, gone.points, gone.chunks);
        } else {
            shared.entries[e].mapped.leaving.push(gone);
        }
    }
}

/// All of `[low, high)` is in free blocks.
fn is_free(slot: u32, low: u64, high: u64) -> bool {
    let mut at = page(slot).block_at(slot, low).unwrap_or(NIL);
    while at != NIL && block(at).has(FREE) {
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
    answers: &mut HashMap<StreamRef, u64>,
    period: Option<u64>,
    want: &mut impl FnMut(u64, u64) -> bool,
) -> u64 {
    let now = pool.allocations();
    if period.is_some() && now < shared.entries[e].mapped.due {
        return 0;
    }
    let mut due = u64::MAX;
    // With every stream of the pool locked, what is free stays free.
    let attached = pool.attached.lock().clone();
    for slot in attached {
        slow.state(slot);
    }
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
            let mut gone: Vec<(u64, Vec<Chunk>, usize, usize)> = Vec::new();
            let low = (block(run[0]).addr() - base).div_ceil(size);
            let high = (block(run[run.len() - 1]).end() - base) / size;
            let mut upto = run.len();
            for place in (low..high).rev() {
                let range = &shared.entries[e].mapped.ranges[r];
                let chunk = range.chunk(place).expect("free blocks are mapped");
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
                    Some((lowest, chunks, from, _)) if *lowest == place + 1 => {
                        (*lowest, *from) = (place, first);
                        chunks.push(chunk);
                    }
                    _ => gone.push((place, vec![chunk], first, upto)),
                }
            }
            for (first, mut chunks, left, right) in gone {
                chunks.reverse();
                let (from, to) = (base + first * size, base + (first + chunks.len() as u64) * size);
                let empty = take_out(slow, shared, pool, e, &run[left..right], from, to);
                let mapping = &mut shared.entries[e].mapped;
                for place in first..first + chunks.len() as u64 {
                    mapping.ranges[r].set(place, None);
                }
                mapping.mapped -= chunks.len() as u64;
                forget_elsewhere(shared, pool, e, &chunks);
                vacate(shared, pool, e, empty, Vec::new(), chunks.into_iter().map(Some).collect());
            }
        }
    }
    if period.is_some() {
        shared.entries[e].mapped.due = due;
    }
    given
}

/// Chunks that went are unmapped wherever they are still mapped besides. What used them from there has executed too: a
/// chunk comes to a new place by being ordered after the old one's work.
fn forget_elsewhere(shared: &mut PoolShared, pool: &Arc<Pool>, e: usize, chunks: &[Chunk]) {
    let mut elsewhere: Vec<(u32, Vec<Option<Chunk>>)> = Vec::new();
    for leaving in &mut shared.entries[e].mapped.leaving {
        let mut here = vec![None; leaving.chunks.len()];
        for (mapped, here) in leaving.chunks.iter_mut().zip(&mut here) {
            if mapped.is_some_and(|chunk| chunks.contains(&chunk)) {
                *here = mapped.take();
            }
        }
        if here.iter().any(Option::is_some) {
            elsewhere.push((leaving.index, here));
        }
    }
    for (index, here) in elsewhere {
        unmap(shared, pool, e, index, &here);
    }
}

fn all_executed(shared: &PoolShared, pool: &Arc<Pool>, blocks: &[u32], answers: &mut HashMap<StreamRef, u64>) -> bool {
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

/// A destroyed pool's ranges go once no chunk is held.
pub(super) fn drop_ranges(slow: &Slow<'_>, shared: &mut PoolShared, pool: &Arc<Pool>, e: usize) {
    let device = slow.device;
    if shared.entries[e].mapped.chunks() > 0 {
        return;
    }
    let mapping = std::mem::take(&mut shared.entries[e].mapped);
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
        let grant = device.granted.lock().grants.remove(&range.page).unwrap_or_default();
        page::close(range.page, device.options.alignment);
        device.source.unreserve(grant, range.bytes);
    }
}

/// Compares the entry's places and vacant blocks with the blocks of its ranges.
pub(crate) fn check(shared: &PoolShared, pool: &Arc<Pool>, e: usize) -> std::result::Result<(), String> {
    let mapping = &shared.entries[e].mapped;
    let size = pool.entries[e].page_size;
    let (mut mapped, mut vacant, mut leaving) = (0, 0, 0);
    for range in &mapping.ranges {
        mapped += range.places.iter().flatten().count() as u64;
        let mut at = page(range.page).first.load(Relaxed);
        let mut last_vacant = false;
        while at != NIL {
            let b = block(at);
            let kinds = [super::block::LIVE, FREE, VACANT, LEAVING].into_iter().filter(|&flag| b.has(flag)).count();
            if kinds != 1 {
                return Err(format!("entry {e}: block {at} is {kinds} of live, free, vacant and leaving"));
            }
            let nothing = b.has(VACANT) || b.has(LEAVING);
            let (first, last) = ((b.addr() - range.base) / size, (b.end() - 1 - range.base) / size);
            // (Places beyond the list have nothing mapped.)
            let listed = last.min(range.places.len() as u64);
            if (first..=listed).any(|place| range.chunk(place).is_some() == nothing) || (!nothing && listed < last) {
                return Err(format!("entry {e}: block {at} and the chunks under it disagree"));
            }
            if nothing && (!(b.addr() - range.base).is_multiple_of(size) || !b.size().is_multiple_of(size)) {
                return Err(format!("entry {e}: block {at} has nothing mapped but is not of whole places"));
            }
            if b.has(VACANT) {
                if last_vacant {
                    return Err(format!("entry {e}: vacant block {at} should have merged"));
                }
                if !mapping.vacant.contains(&(b.addr(), at)) {
                    return Err(format!("entry {e}: vacant block {at} is not listed"));
                }
                vacant += 1;
            }
            leaving += usize::from(b.has(LEAVING));
            last_vacant = b.has(VACANT);
            at = b.next();
        }
    }
    if (mapped, vacant, leaving) != (mapping.mapped, mapping.vacant.len(), mapping.leaving.len()) {
        return Err(format!(
            "entry {e}: {mapped} chunks, {vacant} vacant and {leaving} leaving blocks; counted {}, {} and {}",
            mapping.mapped,
            mapping.vacant.len(),
            mapping.leaving.len()
        ));
    }
    Ok(())
}
