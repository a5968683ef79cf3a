//! Mapped entries: which chunks are mapped where (§7), and which go back (§9).
//!
//! A range is a page whose blocks may also be vacant or leaving. What is neither has chunks behind it, so chunks need no
//! names: where they are is all there is to know.

use crate::alloc::{Found, Request, is_own};
use crate::device::Device;
use crate::order::Point;
use crate::pool::{Block, Entry, Page, Reason, State};

const MIB: u64 = 1 << 20;

/// Where a block can be put.
#[derive(Clone)]
struct Place {
    /// Of the range.
    base: u64,
    address: u64,
    /// The places it touches, as (first, one past the last).
    touched: (u64, u64),
    missing: Vec<u64>,
    hole: u64,
    to_the_end: bool,
}

/// A chunk that may be moved: where it is, and the free block it is in.
struct Idle {
    base: u64,
    place: u64,
    block: Block,
}

impl Page {
    fn end(&self) -> u64 {
        self.base + self.bytes
    }

    fn address(&self, place: u64, chunk: u64) -> u64 {
        self.base + place * chunk
    }

    /// The blocks that a chunk's place touches.
    fn at_place(&self, place: u64, chunk: u64) -> impl Iterator<Item = &Block> {
        let (low, high) = (self.address(place, chunk), self.address(place + 1, chunk));
        self.blocks.iter().filter(move |block| block.address < high && block.address + block.bytes > low)
    }

    fn is_backed(&self, place: u64, chunk: u64) -> bool {
        self.at_place(place, chunk).all(Block::backed)
    }

    fn is_idle(&self, place: u64, chunk: u64) -> bool {
        self.at_place(place, chunk).all(|block| block.points().is_some())
    }

    /// A block was freed: its places that are idle now became so now.
    pub(crate) fn note_idle(&mut self, chunk: u64, (low, high): (u64, u64), now: u64) {
        for place in (low - self.base) / chunk..=(high - 1 - self.base) / chunk {
            if self.is_idle(place, chunk) {
                self.became_idle(place, now);
            }
        }
    }

    fn became_idle(&mut self, place: u64, now: u64) {
        self.idle_since.retain(|&(other, _)| other != place);
        self.idle_since.push((place, now));
    }

    /// A block begins at `address`.
    fn cut_at(&mut self, address: u64) {
        let inside = |block: &Block| block.address < address && address < block.address + block.bytes;
        if let Some(index) = self.blocks.iter().position(inside) {
            let mut right = self.blocks[index].clone();
            right.bytes -= address - right.address;
            right.address = address;
            self.blocks[index].bytes -= right.bytes;
            self.blocks.insert(index + 1, right);
        }
    }

    /// From `low` to `high` there is one block, in this state.
    fn become_one(&mut self, low: u64, high: u64, state: State) {
        self.cut_at(low);
        self.cut_at(high);
        self.blocks.retain(|block| block.address < low || block.address >= high);
        let index = self.blocks.iter().filter(|block| block.address < low).count();
        self.blocks.insert(index, Block { address: low, bytes: high - low, state });
    }
}

impl Device {
    /// All points of a free block precede now, by the stream itself, by observation or (policy 1) by dependency, or have
    /// executed by the answers so far: why.
    fn usable(&self, request: &Request, block: &Block) -> Option<Reason> {
        let points = block.points()?;
        if !points.iter().all(|&point| self.precedes(request, point)) {
            let executed =
                |point: &Point| request.answers.iter().any(|&(asked, upto)| asked == point.stream && point.seq <= upto);
            let all = points.iter().all(|&point| self.precedes(request, point) || executed(&point));
            return all.then_some(Reason::Opportunistic);
        }
        match points {
            [] if block.never_used() => Some(Reason::Fresh),
            [] => Some(Reason::Observed),
            _ if request.stream.is_some_and(|stream| is_own(block, stream)) => Some(Reason::SameStream),
            _ => Some(Reason::Event),
        }
    }

    /// §7 for a Mapped entry: where the block could go, best first.
    fn places(&self, request: &Request, entry: usize, chunk: u64) -> Vec<Place> {
        let mut places = Vec::new();
        for page in &self.pools[request.pool].shelves[entry].pages {
            let part = |block: &Block| block.state == State::Vacant || self.usable(request, block).is_some();
            let mut first = 0;
            while first < page.blocks.len() {
                let hole: Vec<&Block> = page.blocks[first..].iter().take_while(|block| part(block)).collect();
                first += hole.len().max(1);
                if !hole.iter().any(|block| block.state == State::Vacant) {
                    continue;
                }
                let bytes: u64 = hole.iter().map(|block| block.bytes).sum();
                if bytes < request.need {
                    continue;
                }
                let low = hole[0].address;
                let high = low + bytes;
                let to_the_end = high == page.end();
                let mut addresses = vec![low];
                if !to_the_end {
                    addresses.push(high - request.need);
                }
                for address in addresses {
                    let from = (address - page.base) / chunk;
                    let to = (address + request.need - page.base).div_ceil(chunk);
                    let missing = (from..to).filter(|&place| !page.is_backed(place, chunk)).collect();
                    let touched = (from, to);
                    places.push(Place { base: page.base, address, touched, missing, hole: bytes, to_the_end });
                }
            }
        }
        places.sort_by_key(|place| (place.missing.len(), place.hole, place.address));
        places
    }

    /// Idle chunks that may be moved, in the order in which they are taken.
    fn idle(&self, request: &Request, entry: usize, chunk: u64, to: &Place) -> Vec<Idle> {
        let mut idle = Vec::new();
        for page in &self.pools[request.pool].shelves[entry].pages {
            for block in page.blocks.iter().filter(|block| self.usable(request, block).is_some()) {
                let first = (block.address - page.base).div_ceil(chunk);
                let last = (block.address + block.bytes - page.base) / chunk;
                for place in first..last {
                    if page.base != to.base || place < to.touched.0 || place >= to.touched.1 {
                        idle.push(Idle { base: page.base, place, block: block.clone() });
                    }
                }
            }
        }
        idle.sort_by_key(|idle| (idle.block.bytes, idle.block.address, idle.place));
        idle
    }

    /// §7 for a Mapped entry.
    pub(crate) fn map(&mut self, request: &mut Request, entry: usize) -> Option<Found> {
        let pool = request.pool;
        let kind = self.pools[pool].shelves[entry].kind.clone();
        let Entry::Mapped { chunk_size: chunk, max_pool_size, .. } = kind else { return None };
        if request.need.div_ceil(chunk) > 1 << 20 {
            request.refused = true;
            return None;
        }
        let cap = max_pool_size.map_or(u64::MAX, |cap| cap / chunk);
        if self.places(request, entry, chunk).is_empty() {
            if request.need.div_ceil(chunk) > cap {
                return None;
            }
            let bytes = kind.page_bytes(request.need, self.options.granularity);
            if bytes > 1 << 47 {
                request.refused = true;
                return None;
            }
            let base = self.next_address;
            self.next_address = (base + bytes).next_multiple_of(self.options.granularity);
            let shelf = &mut self.pools[pool].shelves[entry];
            self.met.push(if shelf.pages.is_empty() { "first range" } else { "further range" });
            shelf.counted.ranges += 1;
            let blocks = vec![Block { address: base, bytes, state: State::Vacant }];
            shelf.pages.push(Page { base, bytes, free_since: 0, blocks, idle_since: Vec::new() });
        }
        let to = self.places(request, entry, chunk).into_iter().next()?;
        let missing = to.missing.len() as u64;
        let shelf = &self.pools[pool].shelves[entry];
        let held = shelf.page_count();
        let used = shelf.counted.used_high.max(shelf.used() + request.need);
        let few = (8 * chunk).min(16 * MIB);
        let slack = (used / 64).max((3 * used / 32).max(few).min(3 * few));
        let budget = (used + slack) / chunk;
        let threshold = self.pools[pool].config.release_threshold;
        let reserved = self.pools[pool].reserved();
        let idle = self.idle(request, entry, chunk, &to);
        let mut least = false;
        let mut refused_at = None;
        let (moved, extra) = loop {
            let over = (held + missing).saturating_sub(budget.min(cap)).min(missing);
            let moved = if least { missing } else { over }.min(idle.len() as u64);
            let grow = missing - moved;
            if held + grow > cap {
                self.met.push("the cap is in the way");
                return None;
            }
            let mut extra = 0;
            if grow > 0 && !least && to.to_the_end {
                let page = self.pools[pool].shelves[entry].pages.iter().find(|page| page.base == to.base)?;
                let vacant = |place: u64| {
                    page.address(place + 1, chunk) <= page.end()
                        && page.at_place(place, chunk).all(|block| block.state == State::Vacant)
                };
                while held + grow + extra < cap
                    && reserved.saturating_add((grow + extra + 1) * chunk) <= threshold
                    && (held + grow + extra < budget || grow + extra < used / 256 / chunk)
                    && vacant(to.touched.1 + extra)
                {
                    extra += 1;
                }
            }
            let ask = grow + extra;
            if refused_at.is_some_and(|refused| ask < refused) {
                self.met.push(if ask == 0 { "refused, and moved instead" } else { "refused, and asked for fewer" });
            }
            if ask == 0 {
                break (moved, extra);
            }
            if refused_at.is_some_and(|refused| ask >= refused) {
                return None;
            }
            let refused = self.refuses(ask * chunk);
            let shelf = &mut self.pools[pool].shelves[entry];
            if !refused {
                shelf.counted.page_allocs += ask;
                shelf.batched += ask - 1;
                self.page_allocs += ask;
                break (moved, extra);
            }
            shelf.counted.page_refusals += 1;
            request.refused = true;
            least = true;
            refused_at = Some(ask);
        };
        let idle = &idle[..moved as usize];
        if extra > 0 {
            self.met.push("asked for more than is missing");
        }
        if to.address % chunk != 0 {
            self.met.push("placed inside a chunk");
        }
        if !to.to_the_end {
            self.met.push("placed in a hole between blocks");
        }
        for idle in idle {
            let points = idle.block.points().unwrap_or(&[]);
            self.met.push(match self.usable(request, &idle.block) {
                Some(Reason::Fresh) => "moved, never used",
                Some(Reason::Observed) => "moved, observed",
                Some(Reason::SameStream) => "moved, own",
                Some(Reason::Opportunistic) => "moved, executed",
                _ if points.len() > 1 => "moved, several points",
                _ => "moved, by dependency",
            });
            let partly = to.touched.1 * chunk > to.address - to.base + request.need;
            if partly && !points.is_empty() {
                self.met.push("what a block leaves of a moved chunk keeps its points");
            }
        }
        let mut reasons: Vec<Reason> = idle.iter().filter_map(|idle| self.usable(request, &idle.block)).collect();
        if missing > moved {
            reasons.push(Reason::Fresh);
        }
        let page = self.pools[pool].shelves[entry].pages.iter().find(|page| page.base == to.base)?;
        let end = to.address + request.need;
        let there = page.blocks.iter().filter(|block| block.address < end && block.address + block.bytes > to.address);
        reasons.extend(there.filter_map(|block| self.usable(request, block)));
        let reason = if reasons.iter().all(|&reason| reason == Reason::Fresh) {
            Reason::Fresh
        } else {
            reasons.into_iter().map(|reason| if reason == Reason::Fresh { Reason::Observed } else { reason }).max()?
        };
        // The chunks leave, and come; so do the new ones.
        let now = self.pools[pool].allocations;
        let shelf = &mut self.pools[pool].shelves[entry];
        shelf.counted.chunk_moves += moved;
        for idle in idle {
            let page = shelf.pages.iter_mut().find(|page| page.base == idle.base)?;
            let points: Vec<Point> = idle.block.points().unwrap_or(&[]).to_vec();
            let state = if points.is_empty() { State::Vacant } else { State::Leaving { points } };
            let low = page.address(idle.place, chunk);
            page.become_one(low, low + chunk, state);
        }
        let page = shelf.pages.iter_mut().find(|page| page.base == to.base)?;
        let fresh = State::Free { points: Vec::new(), never_used: true, recent: false };
        for (index, &place) in to.missing.iter().enumerate() {
            let state = idle.get(index).map_or(fresh.clone(), |idle| idle.block.state.clone());
            let low = page.address(place, chunk);
            page.become_one(low, low + chunk, state);
        }
        for place in to.touched.1..to.touched.1 + extra {
            let low = page.address(place, chunk);
            page.become_one(low, low + chunk, fresh.clone());
            page.became_idle(place, now);
        }
        if reason == Reason::Event {
            self.met.push("reason by dependency");
        }
        if extra > 0 {
            // They come as one block.
            let (low, high) = (page.address(to.touched.1, chunk), page.address(to.touched.1 + extra, chunk));
            page.become_one(low, high, fresh);
        }
        page.cut_at(to.address);
        page.cut_at(to.address + request.need);
        let first = page.blocks.iter().position(|block| block.address == to.address)?;
        Some(Found { entry, base: to.base, first, reason, waits: Vec::new() })
    }

    /// §9: chunks whose places are idle and whose points have executed, highest first; `wanted` is told what is reserved
    /// and the chunk's bytes.
    pub(crate) fn release_chunks(
        &mut self,
        pool: usize,
        entry: usize,
        period: Option<u64>,
        wanted: &impl Fn(u64, u64) -> bool,
        asked: &mut Vec<usize>,
    ) -> bool {
        let Some(chunk) = self.pools[pool].shelves[entry].kind.chunk() else { return false };
        let now = self.pools[pool].allocations;
        let mut went = false;
        let reserved = self.pools[pool].reserved();
        if period.is_none() && reserved >= chunk && wanted(reserved, chunk) {
            self.pools[pool].shelves[entry].settle(None, 0);
        }
        let mut places: Vec<(u64, u64)> = Vec::new();
        for page in &self.pools[pool].shelves[entry].pages {
            places.extend((0..page.bytes / chunk).filter(|&p| page.is_idle(p, chunk)).map(|place| (page.base, place)));
        }
        places.sort();
        for (base, place) in places.into_iter().rev() {
            let Some(at) = self.pools[pool].shelves[entry].pages.iter().position(|page| page.base == base) else {
                continue;
            };
            let page = &self.pools[pool].shelves[entry].pages[at];
            let since = page.idle_since.iter().find(|(other, _)| *other == place).map_or(0, |&(_, since)| since);
            if period.is_some_and(|period| now - since < period) || !wanted(self.pools[pool].reserved(), chunk) {
                continue;
            }
            let points: Vec<Point> =
                page.at_place(place, chunk).flat_map(|block| block.points().unwrap_or(&[])).copied().collect();
            if !self.have_executed(pool, &points, asked) {
                self.met.push("not given back before it has executed");
                continue;
            }
            let shelf = &mut self.pools[pool].shelves[entry];
            if self.refuse_releases > 0 {
                self.refuse_releases -= 1;
                shelf.counted.release_failures += 1;
                continue;
            }
            shelf.counted.page_frees += 1;
            self.page_frees += 1;
            let page = &mut shelf.pages[at];
            let low = page.address(place, chunk);
            page.become_one(low, low + chunk, State::Vacant);
            page.merge();
            self.met.push(if period.is_some() { "given back after a period" } else { "given back" });
            if points.len() > 1 {
                self.met.push("given back from several blocks");
            }
            went = true;
        }
        went
    }
}
