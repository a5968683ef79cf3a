//! Which block serves an allocation (§4, §6–§8).

use crate::device::{Allocation, Device};
use crate::mapped::large;
use crate::order::{LEGACY, Now, Point, Sort};
use crate::pool::{Block, Entry, Failure, LOOKED_AT, Page, Reason, State, free, least_alike};
use std::cmp::Reverse;

/// What is told to an out-of-memory callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct OutOfMemory {
    pub asked: u64,
    pub used: u64,
    pub reserved: u64,
    pub pending_bytes: u64,
    pub largest_free: u64,
    /// `u64::MAX`: unlimited.
    pub device_free: u64,
    pub device_total: u64,
}

/// The most streams policy 2 asks about in one allocation.
const MOST_QUESTIONS: usize = 8;
/// The most times the callback is called in one allocation.
const MOST_CALLBACKS: u64 = 16;
/// Of so many of a stream's own blocks, the best, a large whole one gives way to another.
const BEST: usize = 16;
/// Whole blocks come back from streams with at most so many own blocks in the entry.
const MOST_LOOKED_AT: usize = 256;

/// One allocation under way.
pub(crate) struct Request {
    pub(crate) pool: usize,
    size: u64,
    pub(crate) need: u64,
    alignment: u64,
    pub(crate) stream: Option<usize>,
    accepting: Vec<usize>,
    /// For each stream, what precedes now-on-s.
    now: Vec<u64>,
    /// Streams asked by policy 2 since the search began, with what they had executed.
    pub(crate) answers: Vec<(usize, u64)>,
    /// Destroyed streams of which an answer of this allocation said that they have executed to their end.
    ended: Vec<usize>,
    /// The device refused a page in this allocation.
    pub(crate) refused: bool,
}

/// Where the block comes from: from the blocks of a page, `first` on, as many as it takes.
pub(crate) struct Found {
    pub(crate) entry: usize,
    pub(crate) base: u64,
    pub(crate) first: usize,
    pub(crate) reason: Reason,
    pub(crate) waits: Vec<Point>,
}

/// A free block, or a run of them: position, bytes, address.
#[derive(Clone)]
struct Spot {
    base: u64,
    first: usize,
    bytes: u64,
    address: u64,
    /// The blocks that would be consumed.
    consumed: Vec<Block>,
}

impl Spot {
    fn points(&self) -> impl Iterator<Item = Point> {
        self.consumed.iter().flat_map(|block| block.points().unwrap_or(&[])).copied()
    }
}

/// The first blocks of `blocks` that together have `need` bytes, or all.
fn consumed(blocks: &[Block], need: u64) -> Vec<Block> {
    let mut left = need;
    let mut taken = Vec::new();
    for block in blocks {
        if left == 0 {
            break;
        }
        left = left.saturating_sub(block.bytes);
        taken.push(block.clone());
    }
    taken
}

/// Maximal runs of at least two adjacent usable blocks that have `need` bytes.
fn runs(page: &Page, need: u64, usable: impl Fn(&Block) -> bool) -> Vec<Spot> {
    let mut found = Vec::new();
    let mut first = 0;
    while first < page.blocks.len() {
        let length = page.blocks[first..].iter().take_while(|block| usable(block)).count();
        let run = &page.blocks[first..first + length];
        let bytes = run.iter().map(|block| block.bytes).sum();
        if length >= 2 && bytes >= need {
            let address = run[0].address;
            found.push(Spot { base: page.base, first, bytes, address, consumed: consumed(run, need) });
        }
        first += length.max(1);
    }
    found
}

impl Device {
    /// An allocation on `stream`, or in host order; `alignment` 0: the device's. The allocation's position.
    pub fn alloc(&mut self, pool: usize, size: u64, stream: Option<usize>, alignment: u64) -> Result<usize, Failure> {
        self.pool(pool)?;
        if let Some(stream) = stream {
            self.stream(stream)?;
        }
        if self.pools[pool].in_callback > 0 {
            return Err(Failure::NotPermitted);
        }
        let unit = self.options.alignment;
        let alignment = if alignment == 0 { unit } else { alignment };
        if !alignment.is_power_of_two() || alignment > self.options.granularity {
            return Err(Failure::InvalidValue);
        }
        if stream.is_none() && size == 0 && self.pools[pool].config.is_cuda() {
            return Err(Failure::InvalidValue);
        }
        let answer = self.alloc_checked(pool, size, stream, alignment.max(unit));
        if answer.is_err() {
            self.pools[pool].counted.failures += 1;
        }
        answer
    }

    fn alloc_checked(
        &mut self,
        pool: usize,
        size: u64,
        stream: Option<usize>,
        alignment: u64,
    ) -> Result<usize, Failure> {
        let unit = self.options.alignment;
        // §4: in more bits than a size has, so that nothing overflows.
        let need = u128::from(size.max(1)).next_multiple_of(u128::from(unit)) + u128::from(alignment - unit);
        let need = if need <= 1 << 47 { Some(need as u64) } else { None };
        let shelves = &self.pools[pool].shelves;
        let accepting: Vec<usize> =
            (0..shelves.len()).filter(|&entry| shelves[entry].kind.accepts(size, need)).collect();
        if accepting.is_empty() {
            return Err(Failure::SizeNotAccepted);
        }
        let Some(need) = need else { return Err(Failure::OutOfMemory) };
        let mut request = Request {
            pool,
            size,
            need,
            alignment,
            stream,
            accepting,
            now: Vec::new(),
            answers: Vec::new(),
            ended: Vec::new(),
            refused: false,
        };
        let taken = self.attempts(&mut request)?;
        // §2: what an answer said of them is believed for good.
        if !request.ended.is_empty() {
            self.met.push("a destroyed stream forgotten that has executed");
            self.forget(&request.ended);
        }
        Ok(taken)
    }

    /// Tries until something serves, or nothing is left to try. The allocation's position.
    fn attempts(&mut self, request: &mut Request) -> Result<usize, Failure> {
        let (pool, size, stream) = (request.pool, request.size, request.stream);
        let mut synchronised = false;
        let mut callbacks = 0;
        loop {
            // A callback may have destroyed either.
            self.pool(pool)?;
            stream.map_or(Ok(()), |stream| self.stream(stream))?;
            request.answers.clear();
            request.now = stream.map_or(Vec::new(), |stream| self.graph.precedes_now(stream, Now::Allocation));
            if let Some(found) = self.search(request) {
                return Ok(self.take(request, found));
            }
            if request.refused
                && self.release_everything(pool)
                && let Some(found) = self.first_entry(request, Self::fresh_page)
            {
                return Ok(self.take(request, found));
            }
            if let Some(found) = self.first_entry(request, Self::internal) {
                return Ok(self.take(request, found));
            }
            if self.pools[pool].config.sync_on_oom && !synchronised {
                synchronised = true;
                self.pools[pool].counted.host_syncs += 1;
                self.synchronise_device();
                continue;
            }
            if callbacks < MOST_CALLBACKS && self.call_back(pool, size) {
                callbacks += 1;
                continue;
            }
            let out_of_memory = request.refused || self.pools[pool].config.is_cuda();
            return Err(if out_of_memory { Failure::OutOfMemory } else { Failure::CapacityExceeded });
        }
    }

    fn call_back(&mut self, pool: usize, asked: u64) -> bool {
        let Some(callback) = self.pools[pool].callback.clone() else { return false };
        let (figures, _) = self.all_figures(pool);
        let total = self.options.capacity;
        let free = if total == u64::MAX { u64::MAX } else { total.saturating_sub(self.reserved()) };
        let told = OutOfMemory {
            asked,
            used: figures.used,
            reserved: figures.reserved,
            pending_bytes: figures.pending_bytes,
            largest_free: figures.largest_free,
            device_free: free,
            device_total: total,
        };
        self.pools[pool].in_callback += 1;
        let again = callback(self, &told);
        self.pools[pool].in_callback -= 1;
        again
    }

    /// §8.1: of this pool, then of the others.
    fn release_everything(&mut self, pool: usize) -> bool {
        let mut went = self.release_all(pool);
        for other in 0..self.pools.len() {
            if other != pool {
                went |= self.release_all(other);
            }
        }
        went
    }

    fn first_entry(
        &mut self,
        request: &mut Request,
        step: fn(&mut Self, &mut Request, usize) -> Option<Found>,
    ) -> Option<Found> {
        request.accepting.clone().into_iter().find_map(|entry| step(self, request, entry))
    }

    /// §6 steps 1–7, entry after entry.
    fn search(&mut self, request: &mut Request) -> Option<Found> {
        self.first_entry(request, |device, request, entry| {
            let mapped = device.pools[request.pool].shelves[entry].kind.chunk().is_some();
            device
                .own(request, entry)
                .or_else(
                    || {
                        if mapped && device.follows_others(request) { None } else { device.observed(request, entry) }
                    },
                )
                .or_else(|| {
                    device.pools[request.pool].shelves[entry].settle(None, 0);
                    device.preceding(request, entry)
                })
                .or_else(|| if mapped { device.observed(request, entry) } else { None })
                .or_else(|| device.grow_first(request, entry))
                .or_else(|| device.opportunistic(request, entry))
                .or_else(|| device.cuda_fresh(request, entry))
                .or_else(|| device.span(request, entry))
                .or_else(|| device.fresh_page(request, entry))
        })
    }

    /// The single free blocks that fit and are `wanted`, best first.
    fn fitting(&self, request: &Request, entry: usize, wanted: impl Fn(&Block) -> bool) -> Vec<Spot> {
        let shelf = &self.pools[request.pool].shelves[entry];
        let mut spots = Vec::new();
        for page in &shelf.pages {
            for (first, block) in page.blocks.iter().enumerate() {
                if block.points().is_some() && shelf.kind.fits(block.bytes, request.need) && wanted(block) {
                    let (bytes, address) = (block.bytes, block.address);
                    spots.push(Spot { base: page.base, first, bytes, address, consumed: vec![block.clone()] });
                }
            }
        }
        spots.sort_by_key(|spot| (spot.bytes, spot.address));
        spots
    }

    fn found(entry: usize, spot: Option<Spot>, reason: Reason) -> Option<Found> {
        spot.map(|spot| Found { entry, base: spot.base, first: spot.first, reason, waits: Vec::new() })
    }

    /// Step 1.
    fn own(&mut self, request: &Request, entry: usize) -> Option<Found> {
        let stream = request.stream?;
        let least = least_alike(request.need);
        let mut alike = self.pools[request.pool].shelves[entry].recent(stream);
        alike.retain(|&(bytes, _)| least_alike(bytes) == least);
        alike.sort_by_key(|&(_, seq)| Reverse(seq));
        if alike.iter().skip(LOOKED_AT).any(|&(bytes, _)| bytes == request.need) {
            self.met.push("recent: exactly as large, and perhaps not looked at");
        }
        alike.truncate(LOOKED_AT);
        if let Some(&(_, last)) = alike.iter().find(|&&(bytes, _)| bytes == request.need) {
            self.met.push("recent: exactly as large");
            let wanted = |block: &Block| block.is_recent() && block.points() == Some(&[Point { stream, seq: last }]);
            return Self::found(entry, self.fitting(request, entry, wanted).into_iter().next(), Reason::SameStream);
        }
        let own = |block: &Block| is_own(block, stream) && !block.is_recent();
        let exact = |block: &Block| own(block) && block.bytes == request.need;
        let mut spots = self.fitting(request, entry, exact);
        let had = self.pools[request.pool].shelves[entry].recent(stream).len();
        if !spots.is_empty() && had > 0 {
            self.met.push("recent: none, but a merged one exactly as large");
        }
        for (bytes, case) in
            [(least, "recent: one served that stopped being recent"), (0, "recent: one served when no other was left")]
        {
            if spots.is_empty() {
                let shelf = &mut self.pools[request.pool].shelves[entry];
                let before = shelf.recent(stream).len();
                shelf.settle(Some(stream), bytes);
                let left = shelf.recent(stream).len();
                spots = self.fitting(request, entry, own);
                self.keep_large_for_last(request, entry, &mut spots);
                if !spots.is_empty() && left < before {
                    self.met.push(case);
                }
                if !spots.is_empty() && left > 0 {
                    self.met.push("recent: a smaller one stayed");
                }
            }
        }
        Self::found(entry, spots.into_iter().next(), Reason::SameStream)
    }

    /// Step 1: among the first of s's own blocks, `spots`, best first, the whole ones that are large and would be cut come after others.
    fn keep_large_for_last(&mut self, request: &Request, entry: usize, spots: &mut [Spot]) {
        let Some(chunk) = self.pools[request.pool].shelves[entry].kind.chunk() else { return };
        let comes_last = |spot: &Spot| {
            matches!(spot.consumed[..], [Block { state: State::Free { whole: true, .. }, .. }])
                && spot.bytes >= large(chunk)
                && spot.bytes != request.need
        };
        match spots.iter().take(BEST).position(|spot| !comes_last(spot)) {
            Some(0) => {}
            Some(at) => {
                self.met.push("a large whole block passed over");
                spots.swap(0, at);
            }
            None if spots.is_empty() => {}
            None => self.met.push("a large whole block for want of another"),
        }
    }

    /// Step 2.
    fn observed(&self, request: &Request, entry: usize) -> Option<Found> {
        let cuda = self.pools[request.pool].shelves[entry].kind.is_cuda();
        let observed = |block: &Block| block.points() == Some(&[]) && !(cuda && block.never_used());
        let spot = self.fitting(request, entry, observed).into_iter().next()?;
        let reason = if spot.consumed[0].never_used() { Reason::Fresh } else { Reason::Observed };
        Self::found(entry, Some(spot), reason)
    }

    /// A point precedes now-on-s by the stream itself, by observation, or, with policy 1, by dependency.
    pub(crate) fn precedes(&self, request: &Request, point: Point) -> bool {
        let Some(stream) = request.stream else { return false };
        point.stream == stream
            || point.seq <= self.graph.streams[point.stream].observed
            || (self.pools[request.pool].config.policy_1 && point.seq <= request.now[point.stream])
    }

    /// With policy 1, something that the host has not observed precedes now-on-s on another stream; or s is the legacy stream.
    fn follows_others(&self, request: &Request) -> bool {
        let Some(stream) = request.stream else { return false };
        let mut others = (0..self.graph.streams.len()).filter(|&other| other != stream);
        self.pools[request.pool].config.policy_1
            && (stream == LEGACY || others.any(|other| request.now[other] > self.graph.streams[other].observed))
    }

    /// Step 3.
    fn preceding(&mut self, request: &Request, entry: usize) -> Option<Found> {
        let stream = request.stream?;
        if !self.pools[request.pool].config.policy_1 {
            return None;
        }
        if self.come_back(request.pool, entry, stream) {
            let own = self.fitting(request, entry, |block| is_own(block, stream));
            self.met.push(if own.is_empty() { "came back, and none fits" } else { "came back, and one serves" });
            if !own.is_empty() {
                return Self::found(entry, own.into_iter().next(), Reason::Event);
            }
        }
        let wanted = |block: &Block| {
            is_others(block, stream)
                && block.points().is_some_and(|points| points.iter().all(|&point| self.precedes(request, point)))
        };
        Self::found(entry, self.fitting(request, entry, wanted).into_iter().next(), Reason::Event)
    }

    /// What was handed over comes back to `stream`, if there is anything.
    fn come_back(&mut self, pool: usize, entry: usize, stream: usize) -> bool {
        let shelf = &mut self.pools[pool].shelves[entry];
        if shelf.kind.chunk().is_none() {
            return false;
        }
        let upto = self.graph.precedes_last(stream);
        let seq = self.graph.streams[stream].submitted();
        let observed = seq <= self.graph.streams[stream].observed;
        let own = if observed { Vec::new() } else { vec![Point { stream, seq }] };
        let mut came = false;
        let blocks = || shelf.pages.iter().flat_map(|page| &page.blocks);
        let many: Vec<bool> = (0..self.graph.streams.len())
            .map(|holder| blocks().filter(|block| is_own(block, holder)).count() > MOST_LOOKED_AT)
            .collect();
        for block in shelf.pages.iter_mut().flat_map(|page| &mut page.blocks) {
            if let State::Free { points, whole, .. } = &block.state
                && !points.is_empty()
                && !is_own(block, stream)
                && (points.len() > 1 || *whole && !many[points[0].stream])
                && points.iter().all(|point| point.seq <= upto[point.stream])
            {
                self.met.push(if *whole { "a whole block came back" } else { "a multi block came back" });
                block.state = free(own.clone(), false);
                came = true;
            }
        }
        if came {
            for page in &mut shelf.pages {
                shelf.counted.merges += page.merge();
            }
        }
        came
    }

    /// Asks the device, unless it was asked before. None: that would be a ninth question.
    fn ask(&mut self, request: &mut Request, stream: usize) -> Option<u64> {
        if let Some(&(_, executed)) = request.answers.iter().find(|(asked, _)| *asked == stream) {
            return Some(executed);
        }
        if request.answers.len() == MOST_QUESTIONS {
            self.ninth_questions += 1;
            return None;
        }
        self.pools[request.pool].counted.progress_queries += 1;
        let asked = &self.graph.streams[stream];
        let executed = asked.executed;
        if asked.destroyed && executed == asked.submitted() {
            request.ended.push(stream);
        }
        request.answers.push((stream, executed));
        Some(executed)
    }

    /// Step 4.
    fn opportunistic(&mut self, request: &mut Request, entry: usize) -> Option<Found> {
        let stream = request.stream?;
        if !self.pools[request.pool].config.policy_2 {
            return None;
        }
        for spot in self.fitting(request, entry, |block| is_others(block, stream)) {
            let mut serves = true;
            for point in spot.points() {
                serves = self.precedes(request, point)
                    || self.ask(request, point.stream).is_some_and(|executed| point.seq <= executed);
                if !serves {
                    break;
                }
            }
            if serves {
                return Self::found(entry, Some(spot), Reason::Opportunistic);
            }
        }
        None
    }

    /// Step 5.
    fn cuda_fresh(&self, request: &Request, entry: usize) -> Option<Found> {
        if !self.pools[request.pool].shelves[entry].kind.is_cuda() {
            return None;
        }
        Self::found(entry, self.fitting(request, entry, Block::never_used).into_iter().next(), Reason::Fresh)
    }

    /// Step 6.
    fn span(&mut self, request: &mut Request, entry: usize) -> Option<Found> {
        let stream = request.stream?;
        let shelf = &self.pools[request.pool].shelves[entry];
        if !shelf.kind.carves() || shelf.reserved() - shelf.used() < request.need {
            return None;
        }
        let mut spot = self.best_run(request, entry, false);
        if spot.is_none() && self.pools[request.pool].config.policy_2 {
            let shelf = &self.pools[request.pool].shelves[entry];
            let mut streams: Vec<usize> =
                shelf.blocks().flat_map(|block| block.points().unwrap_or(&[])).map(|point| point.stream).collect();
            streams.sort();
            streams.dedup();
            streams.retain(|&other| other != stream);
            for other in streams {
                self.ask(request, other);
            }
            spot = self.best_run(request, entry, true);
        }
        let spot = spot?;
        let weakest = spot.consumed.iter().map(|block| match block.points() {
            Some([]) => Reason::Observed,
            Some(_) if is_own(block, stream) => Reason::SameStream,
            Some(points) if points.iter().all(|&point| self.precedes(request, point)) => Reason::Event,
            _ => Reason::Opportunistic,
        });
        let reason = weakest.max()?;
        Self::found(entry, Some(spot), reason)
    }

    /// The smallest run of usable blocks; with `executed`, blocks whose points have executed by the answers so far are
    /// usable too.
    fn best_run(&self, request: &Request, entry: usize, executed: bool) -> Option<Spot> {
        let usable = |block: &Block| {
            block.points().is_some_and(|points| {
                points.iter().all(|&point| {
                    self.precedes(request, point)
                        || executed
                            && request.answers.iter().any(|&(asked, upto)| asked == point.stream && point.seq <= upto)
                })
            })
        };
        let pages = &self.pools[request.pool].shelves[entry].pages;
        let found = pages.iter().flat_map(|page| runs(page, request.need, usable));
        found.min_by_key(|spot| (spot.bytes, spot.address))
    }

    /// The device is asked for `bytes`, and says no.
    pub(crate) fn refuses(&mut self, bytes: u64) -> bool {
        if self.skip == 0 && self.refuse > 0 {
            self.refuse -= 1;
            return true;
        }
        self.skip = self.skip.saturating_sub(1);
        self.reserved().saturating_add(bytes) > self.options.capacity
    }

    /// §7.
    pub(crate) fn fresh_page(&mut self, request: &mut Request, entry: usize) -> Option<Found> {
        let pool = request.pool;
        self.sweep(pool);
        let shelf = &self.pools[pool].shelves[entry];
        let kind = shelf.kind.clone();
        if matches!(kind, Entry::Mapped { .. }) {
            return self.map(request, entry);
        }
        let bytes = kind.page_bytes(request.need, self.options.granularity);
        let full = match kind {
            Entry::Sliced { page_size, max_pool_size: Some(cap), .. } => shelf.pages.len() as u64 >= cap / page_size,
            Entry::Cuda { max_pool_size: Some(cap) } => shelf.reserved() + bytes > cap,
            _ => false,
        };
        if full {
            return None;
        }
        if let Entry::Direct { reclaim_at: Some(mark) } = kind {
            self.reclaim(pool, entry, mark, bytes);
        }
        let Some(base) = self.find_address(bytes) else {
            self.met.push("no addresses left for a page");
            request.refused = true;
            return None;
        };
        let refused = self.refuses(bytes);
        let free_since = self.pools[pool].allocations;
        let counted = &mut self.pools[pool].shelves[entry].counted;
        if refused {
            counted.page_refusals += 1;
            request.refused = true;
            return None;
        }
        counted.page_allocs += 1;
        self.page_allocs += 1;
        self.take_address(base, bytes, false);
        let block = Block {
            address: base,
            bytes: if matches!(kind, Entry::Direct { .. }) { request.need } else { bytes },
            state: free(Vec::new(), true),
        };
        let page = Page { base, bytes, free_since, blocks: vec![block] };
        self.pools[pool].shelves[entry].pages.push(page);
        Some(Found { entry, base, first: 0, reason: Reason::Fresh, waits: Vec::new() })
    }

    /// Policy 3.
    pub(crate) fn internal(&mut self, request: &mut Request, entry: usize) -> Option<Found> {
        let stream = request.stream?;
        if !self.pools[request.pool].config.policy_3 {
            return None;
        }
        self.pools[request.pool].shelves[entry].settle(None, 0);
        let shelf = &self.pools[request.pool].shelves[entry];
        let mut spots = self.fitting(request, entry, |block| is_others(block, stream));
        if spots.is_empty() && shelf.kind.carves() {
            let free = |block: &Block| block.points().is_some();
            spots = shelf.pages.iter().flat_map(|page| runs(page, request.need, free)).collect();
        }
        let now = &request.now;
        let waits = |spot: &Spot| {
            let mut waits: Vec<Point> = Vec::new();
            for point in spot.points().filter(|point| point.stream != stream && point.seq > now[point.stream]) {
                match waits.iter_mut().find(|other| other.stream == point.stream) {
                    Some(other) => other.seq = other.seq.max(point.seq),
                    None => waits.push(point),
                }
            }
            waits
        };
        let oldest = |spot: &Spot| spot.points().map(|point| point.seq).max().unwrap_or(0);
        let spot = spots.into_iter().min_by_key(|spot| (waits(spot).len(), spot.bytes, oldest(spot), spot.address))?;
        Some(Found { entry, base: spot.base, first: spot.first, reason: Reason::Internal, waits: waits(&spot) })
    }

    /// Cuts the block and submits the operations.
    fn take(&mut self, request: &Request, found: Found) -> usize {
        let position = self.allocations.len();
        let p = &mut self.pools[request.pool];
        let shelf = &mut p.shelves[found.entry];
        let whole = !shelf.kind.carves();
        let counted = &mut shelf.counted;
        let page = shelf.pages.iter_mut().find(|page| page.base == found.base).expect("a page that was found");
        let taken = consumed(&page.blocks[found.first..], if whole { 1 } else { request.need });
        page.blocks.drain(found.first..found.first + taken.len());
        if taken.len() > 1 {
            self.spans[found.reason as usize] += 1;
        }
        let bytes = taken.iter().map(|block| block.bytes).sum();
        let bytes = if whole { bytes } else { request.need.min(bytes) };
        let address = taken[0].address;
        let last = &taken[taken.len() - 1];
        let rest = last.address + last.bytes - (address + bytes);
        if rest > 0 {
            let state = last.state.clone();
            page.blocks.insert(found.first, Block { address: address + bytes, bytes: rest, state });
            // What a span joins and cuts is counted neither as merge nor as split.
            counted.splits += u64::from(taken.len() == 1);
        }
        page.blocks.insert(found.first, Block { address, bytes, state: State::Live(position) });
        if shelf.kind.chunk().is_some() {
            for page in &mut shelf.pages {
                counted.merges += page.merge();
            }
        }
        counted.allocs += 1;
        counted.reuse[found.reason as usize] += 1;
        shelf.note_order(request.stream);
        p.allocations += 1;
        let mut ready_seq = 0;
        if let Some(stream) = request.stream {
            if !found.waits.is_empty() {
                self.pools[request.pool].shelves[found.entry].counted.internal_waits += 1;
                self.graph.submit(stream, Sort::Memory, found.waits);
            }
            ready_seq = self.graph.submit(stream, Sort::Memory, Vec::new());
        }
        self.allocations.push(Allocation {
            pool: request.pool,
            entry: found.entry,
            address: address.next_multiple_of(request.alignment),
            block_address: address,
            block_size: bytes,
            requested: request.size,
            stream: request.stream,
            ready_seq,
            reason: found.reason,
            freed: false,
            users: Vec::new(),
        });
        self.pools[request.pool].raise_marks();
        position
    }
}

/// Free, with one point, of `stream`.
pub(crate) fn is_own(block: &Block, stream: usize) -> bool {
    matches!(block.points(), Some([point]) if point.stream == stream)
}

/// Free, with points, and not `stream`'s own.
pub(crate) fn is_others(block: &Block, stream: usize) -> bool {
    block.points().is_some_and(|points| !points.is_empty()) && !is_own(block, stream)
}
