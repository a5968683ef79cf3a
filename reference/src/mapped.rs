//! Mapped entries: which chunks serve where and are mapped where else (§5, §7.1), and which go back (§9).

use crate::alloc::{Found, Request, is_others, is_own};
use crate::device::Device;
use crate::order::Point;
use crate::pool::{Block, Chunk, Entry, Ghost, Page, Reason, Shelf, State, free};
use crate::release::Asked;

const MIB: u64 = 1 << 20;
/// How often an entry pauses before §7.1 serves again.
const MOST_PAUSES: u64 = 64;

/// An entry becomes tight when a few chunks were lacking for so many allocations, and for one in so many.
const LACKING: u64 = 16;
const LACKING_ONE_IN: u64 = 96;

/// Before a chunk with so many ghosts moves, it drops some.
const MOST_GHOSTS: u64 = 32;

/// Where a block can be put.
#[derive(Clone)]
struct Spot {
    /// Of the range.
    base: u64,
    address: u64,
    /// The places it touches.
    places: Vec<u64>,
    /// Those of them where nothing is mapped.
    missing: Vec<u64>,
    /// How many of them are ghosts.
    ghosts: usize,
    to_the_end: bool,
    /// Not at an end of its hole.
    further_up: bool,
    /// At the other end it would take a chunk twice.
    shunned: bool,
}

/// A part of a range: a free or a live block, or a place where no chunk serves.
struct Part {
    low: u64,
    high: u64,
    vacant: bool,
    /// A usable free block or an open place.
    open: bool,
}

impl Chunk {
    fn is_mapped_at(&self, place: u64) -> bool {
        self.at == place || self.ghosts.iter().any(|ghost| ghost.at == place)
    }

    /// Serves at `place`. Where it served it leaves a ghost, with the points of the free block there.
    fn go(&mut self, place: u64, points: &[Point]) {
        self.ghosts.retain(|ghost| ghost.at != place);
        self.ghosts.push(Ghost { at: self.at, points: points.to_vec() });
        self.at = place;
    }
}

impl Page {
    fn end(&self) -> u64 {
        self.base + self.bytes
    }

    /// The blocks that a place touches.
    fn at_place(&self, place: u64, chunk: u64) -> impl Iterator<Item = &Block> {
        self.blocks.iter().filter(move |block| block.address < place + chunk && block.address + block.bytes > place)
    }

    /// All that touches the place is free.
    pub(crate) fn is_idle(&self, place: u64, chunk: u64) -> bool {
        self.at_place(place, chunk).all(|block| block.points().is_some())
    }

    /// The places that a block would touch.
    fn touched(&self, address: u64, bytes: u64, chunk: u64) -> Vec<u64> {
        let (first, last) = ((address - self.base) / chunk, (address + bytes - self.base).div_ceil(chunk));
        (first..last).map(|place| self.base + place * chunk).collect()
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

impl Shelf {
    /// The chunk that is mapped at a place, if one is.
    fn mapped_at(&self, place: u64) -> Option<&Chunk> {
        self.chunks.iter().find(|chunk| chunk.is_mapped_at(place))
    }

    /// The block in which a place lies wholly, if it does in one.
    fn around(&self, place: u64, chunk: u64) -> Option<&Block> {
        self.blocks().find(|block| block.address <= place && place + chunk <= block.address + block.bytes)
    }

    /// The place is one block, in this state.
    fn place_becomes(&mut self, place: u64, chunk: u64, state: State) {
        for page in self.pages.iter_mut().filter(|page| page.base <= place && place < page.end()) {
            page.become_one(place, place + chunk, state.clone());
        }
    }

    /// Not all was allocated and freed on one stream, without added users.
    fn is_several(&self) -> bool {
        self.had_users || !matches!(*self.orders, [] | [Some(_)])
    }

    fn places(&self, from: u64, to: u64, chunk: u64) -> Vec<u64> {
        (0..(to - from) / chunk).map(|place| from + place * chunk).collect()
    }

    /// A chunk would be taken twice by a block that touches these places.
    fn takes_twice(&self, places: &[u64]) -> bool {
        self.chunks.iter().any(|chunk| places.iter().filter(|&&place| chunk.is_mapped_at(place)).count() >= 2)
    }
}

impl Device {
    /// What §5 says of chunks holds of every entry.
    ///
    /// # Panics
    ///
    /// If it does not.
    pub fn check(&self) {
        for shelf in self.pools.iter().flat_map(|pool| &pool.shelves) {
            let Some(chunk) = shelf.kind.chunk() else { continue };
            let mut mapped = Vec::new();
            for each in &shelf.chunks {
                assert!(each.is_mapped_at(each.home), "a chunk is mapped at its home");
                mapped.push(each.at);
                mapped.extend(each.ghosts.iter().map(|ghost| ghost.at));
            }
            let count = mapped.len();
            mapped.sort();
            mapped.dedup();
            assert_eq!(mapped.len(), count, "one chunk is mapped at a place");
            for page in &shelf.pages {
                for place in page.touched(page.base, page.bytes, chunk) {
                    let serves = shelf.chunks.iter().any(|each| each.at == place);
                    let vacant = page.at_place(place, chunk).any(|block| block.state == State::Vacant);
                    assert!(serves != vacant, "where no chunk serves it is vacant");
                }
            }
        }
    }

    /// §5: the entry pauses, if it does, after a free on `stream`.
    pub(crate) fn pause(&mut self, pool: usize, entry: usize, stream: Option<usize>) {
        let Some(stream) = stream else { return };
        if self.pools[pool].destroyed {
            return;
        }
        let allocations = self.pools[pool].allocations;
        let shelf = &mut self.pools[pool].shelves[entry];
        if shelf.kind.chunk().is_none()
            || shelf.blocks().any(|block| matches!(block.state, State::Live(_)))
            || shelf.recent(stream).len() + shelf.passed_over < 2
        {
            return;
        }
        if shelf.orders != [Some(stream)] {
            self.met.push("no pause: used by others as well");
            return;
        }
        if shelf.had_users {
            self.met.push("no pause: a block had users");
            return;
        }
        if shelf.pauses == MOST_PAUSES {
            self.met.push("no pause: often enough");
            return;
        }
        self.met.push("paused");
        shelf.pauses += 1;
        shelf.passed_over = 0;
        shelf.lacking = 0;
        shelf.paused_at = allocations;
        shelf.paused = Some((shelf.counted.used_high, shelf.tight, shelf.page_count()));
        if shelf.tight {
            self.met.push("paused, and large blocks do not become recent");
            shelf.largest_recent = shelf.counted.used_high.div_ceil(64);
        }
        let freed = Point { stream, seq: self.graph.streams[stream].submitted() };
        for block in shelf.pages.iter_mut().flat_map(|page| &mut page.blocks) {
            if block.points() == Some(&[]) {
                self.met.push(if block.never_used() {
                    "paused, with a never-used block"
                } else {
                    "paused, with an observed block"
                });
                block.state = free(vec![freed], false);
            }
        }
        // They merge as well.
        shelf.settle(Some(stream), 0);
        self.go_home(pool, entry, Some(stream));
    }

    /// §5: chunks go home; at a pause, from the blocks of `stream` as well.
    pub(crate) fn go_home(&mut self, pool: usize, entry: usize, stream: Option<usize>) {
        let shelf = &mut self.pools[pool].shelves[entry];
        let Some(chunk) = shelf.kind.chunk() else { return };
        let mut going: Vec<(usize, Block)> = Vec::new();
        for (index, away) in shelf.chunks.iter().enumerate().filter(|(_, chunk)| chunk.at != chunk.home) {
            let block = shelf
                .around(away.at, chunk)
                .filter(|block| block.points() == Some(&[]) || stream.is_some_and(|stream| is_own(block, stream)));
            match block {
                Some(block) => going.push((index, block.clone())),
                None => self.met.push("a chunk that cannot go home"),
            }
        }
        for (index, _) in &going {
            let at = shelf.chunks[*index].at;
            shelf.place_becomes(at, chunk, State::Vacant);
        }
        for (index, block) in going {
            let away = &mut shelf.chunks[index];
            let home = away.home;
            away.go(home, block.points().unwrap_or(&[]));
            self.met.push(if stream.is_some() { "home at a pause" } else { "home at a synchronise" });
            shelf.place_becomes(home, chunk, block.state);
        }
        for page in &mut shelf.pages {
            shelf.counted.merges += page.merge();
        }
    }

    /// §9: the chunk that serves at `at` drops ghosts, if it has many.
    fn drop_ghosts(&mut self, pool: usize, entry: usize, at: u64, asked: &mut Asked) {
        let Entry::Mapped { range_size, chunk_size, .. } = self.pools[pool].shelves[entry].kind else { return };
        let most = MOST_GHOSTS.min(range_size / chunk_size / 2);
        loop {
            let shelf = &self.pools[pool].shelves[entry];
            let Some(chunk) = shelf.chunks.iter().find(|chunk| chunk.at == at) else { return };
            let [oldest, ..] = &chunk.ghosts[..] else { return };
            if (chunk.ghosts.len() as u64) < most {
                return;
            }
            let observed = |point: &Point| point.seq <= self.graph.streams[point.stream].observed;
            let unobserved: Vec<Point> = oldest.points.iter().filter(|point| !observed(point)).copied().collect();
            if !self.have_executed(pool, &unobserved, asked) {
                self.met.push("a ghost not dropped before it has executed");
                return;
            }
            self.met.push(if unobserved.is_empty() { "an observed ghost dropped" } else { "a ghost dropped" });
            let shelf = &mut self.pools[pool].shelves[entry];
            for chunk in shelf.chunks.iter_mut().filter(|chunk| chunk.at == at) {
                chunk.ghosts.remove(0);
                if !chunk.is_mapped_at(chunk.home) {
                    self.met.push("a home dropped");
                    chunk.home = chunk.at;
                }
            }
        }
    }

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

    /// What a chunk's place lies in, if it is idle: a usable free block; where several streams are at work, a run of adjacent
    /// ones, with the state of those of them that the place touches, as one.
    fn idle_in(&self, request: &Request, entry: usize, chunk: &Chunk) -> Option<Block> {
        let shelf = &self.pools[request.pool].shelves[entry];
        let size = shelf.kind.chunk()?;
        let usable = |block: &&Block| self.usable(request, block).is_some();
        if !shelf.is_several() {
            return shelf.around(chunk.at, size).filter(usable).cloned();
        }
        let page = shelf.pages.iter().find(|page| page.base <= chunk.at && chunk.at < page.end())?;
        let first = page.blocks.iter().position(|block| block.address + block.bytes > chunk.at)?;
        let before = page.blocks[..first].iter().rev().take_while(usable).map(|block| block.bytes).sum::<u64>();
        let after = page.blocks[first..].iter().take_while(usable).map(|block| block.bytes).sum::<u64>();
        let from = page.blocks[first].address;
        if from + after < chunk.at + size {
            return None;
        }
        let mut points: Vec<Point> = Vec::new();
        let mut never_used = true;
        for block in page.at_place(chunk.at, size) {
            never_used &= block.never_used();
            for &point in block.points()? {
                match points.iter_mut().find(|other| other.stream == point.stream) {
                    Some(other) => other.seq = other.seq.max(point.seq),
                    None => points.push(point),
                }
            }
        }
        points.sort();
        Some(Block { address: from - before, bytes: before + after, state: free(points, never_used) })
    }

    /// §7.1 step 2: what a range is made of, by ascending address.
    fn parts(&self, request: &Request, entry: usize, page: &Page, chunk: u64) -> Vec<Part> {
        let shelf = &self.pools[request.pool].shelves[entry];
        let mut parts = Vec::new();
        for block in &page.blocks {
            let (low, high) = (block.address, block.address + block.bytes);
            if block.state != State::Vacant {
                parts.push(Part { low, high, vacant: false, open: self.usable(request, block).is_some() });
                continue;
            }
            for place in shelf.places(low, high, chunk) {
                let open = shelf.mapped_at(place).is_none_or(|chunk| self.idle_in(request, entry, chunk).is_some());
                parts.push(Part { low: place, high: place + chunk, vacant: true, open });
            }
        }
        parts
    }

    /// §7.1 step 2: where the block could go, best first.
    fn spots(&self, request: &Request, entry: usize, chunk: u64) -> Vec<Spot> {
        let shelf = &self.pools[request.pool].shelves[entry];
        let mut spots = Vec::new();
        for page in &shelf.pages {
            let parts = self.parts(request, entry, page, chunk);
            let mut first = 0;
            while first < parts.len() {
                let hole = &parts[first..first + parts[first..].iter().take_while(|part| part.open).count()];
                first += hole.len().max(1);
                let [Part { low, .. }, ..] = *hole else { continue };
                let [.., Part { high, .. }] = *hole else { continue };
                if !hole.iter().any(|part| part.vacant) || high - low < request.need {
                    continue;
                }
                let once = |address: u64| !shelf.takes_twice(&page.touched(address, request.need, chunk));
                let to_the_end = high == page.end();
                let further = page.touched(low, high - low, chunk).into_iter().filter(|&place| place > low);
                let mut addresses: Vec<u64> = [low]
                    .into_iter()
                    .chain(further)
                    .filter(|&address| address + request.need <= high && once(address))
                    .take(1)
                    .collect();
                let shunned = !to_the_end && !once(high - request.need);
                if !to_the_end && !shunned {
                    addresses.push(high - request.need);
                }
                for address in addresses {
                    let places = page.touched(address, request.need, chunk);
                    let missing = places.iter().copied().filter(|&place| shelf.mapped_at(place).is_none()).collect();
                    let elsewhere = |place: u64| shelf.mapped_at(place).is_some_and(|chunk| chunk.at != place);
                    let ghosts = places.iter().filter(|&&place| elsewhere(place)).count();
                    let further_up = address != low && address != high - request.need;
                    spots.push(Spot {
                        base: page.base,
                        address,
                        places,
                        missing,
                        ghosts,
                        to_the_end,
                        further_up,
                        shunned,
                    });
                }
            }
        }
        let several = shelf.is_several();
        spots.sort_by_key(|spot| (spot.missing.len(), if several { spot.ghosts } else { 0 }, spot.address));
        spots
    }

    /// §7.1 step 4: the chunks that can be moved, by where they are, and the free blocks they are in, in the order in which
    /// they are taken.
    fn movable(&self, request: &Request, entry: usize, to: &Spot) -> Vec<(u64, Block)> {
        let mut movable = Vec::new();
        for chunk in &self.pools[request.pool].shelves[entry].chunks {
            if let Some(block) = self.idle_in(request, entry, chunk)
                && !to.places.iter().any(|&place| chunk.is_mapped_at(place))
            {
                movable.push((chunk.at, block));
            }
        }
        movable.sort_by_key(|(place, block)| (block.bytes, block.address, *place));
        movable
    }

    /// §6, step 4: what comes before policy 2.
    pub(crate) fn grow_first(&mut self, request: &mut Request, entry: usize) -> Option<Found> {
        let stream = request.stream?;
        let pool = &self.pools[request.pool];
        let shelf = &pool.shelves[entry];
        let Entry::Mapped { chunk_size: chunk, max_pool_size, .. } = shelf.kind else { return None };
        if !pool.config.policy_2 || shelf.refused || !shelf.blocks().any(|block| is_others(block, stream)) {
            return None;
        }
        let cap = max_pool_size.map_or(u64::MAX, |cap| cap / chunk);
        let more = request.need.div_ceil(chunk) + 1;
        if shelf.page_count() + more
            > most_held(shelf.counted.used_high, chunk, shelf.is_several(), shelf.tight).min(cap)
        {
            return None;
        }
        if pool.reserved().saturating_add(more.saturating_mul(chunk)) > pool.config.release_threshold {
            self.met.push("not grown before policy 2: the release threshold");
            return None;
        }
        let found = self.fresh_page(request, entry);
        self.met.push(if found.is_some() { "grown before policy 2" } else { "refused to grow before policy 2" });
        found
    }

    /// §7.1.
    pub(crate) fn map(&mut self, request: &mut Request, entry: usize) -> Option<Found> {
        let pool = request.pool;
        let kind = self.pools[pool].shelves[entry].kind.clone();
        let Entry::Mapped { chunk_size: chunk, max_pool_size, .. } = kind else { return None };
        if request.need.div_ceil(chunk) > 1 << 20 {
            request.refused = true;
            return None;
        }
        let cap = max_pool_size.map_or(u64::MAX, |cap| cap / chunk);
        if self.spots(request, entry, chunk).is_empty() {
            if request.need.div_ceil(chunk) > cap {
                return None;
            }
            let mut bytes = kind.page_bytes(request.need, self.options.granularity);
            if bytes > 1 << 47 || self.find_address(bytes).is_none() {
                bytes = request.need.next_multiple_of(chunk);
            }
            let base = self.find_address(bytes).filter(|_| bytes <= 1 << 47);
            let Some(base) = base else {
                self.met.push("no addresses left for a range");
                request.refused = true;
                return None;
            };
            if bytes < kind.page_bytes(request.need, self.options.granularity) {
                self.met.push("addresses for a smaller range only");
            }
            self.take_address(base, bytes, true);
            let shelf = &mut self.pools[pool].shelves[entry];
            self.met.push(if shelf.pages.is_empty() { "first range" } else { "further range" });
            shelf.counted.ranges += 1;
            let blocks = vec![Block { address: base, bytes, state: State::Vacant }];
            shelf.pages.push(Page { base, bytes, free_since: 0, blocks });
        }
        let spots = self.spots(request, entry, chunk);
        let to = spots.first()?.clone();
        let missing = to.missing.len() as u64;
        let shelf = &self.pools[pool].shelves[entry];
        let held = shelf.page_count();
        let several = shelf.is_several();
        let tight = shelf.tight;
        let mut used = shelf.counted.used_high.max(shelf.used() + request.need);
        let twice = most_held(used, chunk, several, tight) + used / chunk;
        if several {
            let idle = shelf.chunks.iter().filter(|each| self.idle_in(request, entry, each).is_some()).count() as u64;
            let bound = (held - idle) * chunk + request.need;
            if bound > used {
                self.met.push("several streams: more chunks in use than bytes");
            }
            used = used.max(bound);
        }
        let mut budget = most_held(used, chunk, several, tight);
        if budget > most_held(used, chunk, several, false) && held + missing > most_held(used, chunk, several, false) {
            self.met.push("a little more room where it is tight");
        }
        if let Some((used_then, tight_then, held_then)) = shelf.paused
            && !several
            && shelf.orders == [request.stream]
            && (used_then, tight_then) == (used, tight)
            && budget > held_then
        {
            if held + missing > held_then {
                self.met.push("no more than before the last pause");
            }
            budget = held_then;
        }
        let threshold = self.pools[pool].config.release_threshold;
        let reserved = self.pools[pool].reserved();
        let movable = self.movable(request, entry, &to);
        let end = to.address + request.need;
        let after = to.places.last()? + chunk;
        let mut least = false;
        let mut refused_at = None;
        let mut may_wait = several;
        let (moved, extra) = loop {
            let over = (held + missing).saturating_sub(budget.min(cap)).min(missing);
            let moved = if least { missing } else { over }.min(movable.len() as u64);
            let step = if moved < over { 96 } else { 256 };
            let grow = missing - moved;
            if held + grow > cap {
                self.met.push("the cap is in the way");
                return None;
            }
            let mut extra = 0;
            if grow > 0 && !least && to.to_the_end {
                let shelf = &self.pools[pool].shelves[entry];
                let page = shelf.pages.iter().find(|page| page.base == to.base)?;
                while held + grow + extra < cap
                    && (!several || held + grow + extra < twice)
                    && reserved.saturating_add((grow + extra + 1) * chunk) <= threshold
                    && (held + grow + extra < budget || grow + extra < used / step / chunk)
                    && after + extra * chunk < page.end()
                {
                    if shelf.mapped_at(after + extra * chunk).is_some() {
                        self.met.push("asked for no more: something is mapped there");
                        break;
                    }
                    extra += 1;
                }
            }
            // §7.1 step 5: rather than that, a stream waits.
            if may_wait && grow > 0 && !least && held + grow > twice {
                may_wait = false;
                if let Some(found) = self.internal(request, entry) {
                    self.met.push("waited rather than hold more");
                    return Some(found);
                }
                self.met.push("nothing to wait for");
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
                shelf.refused = false;
                shelf.counted.page_allocs += ask;
                shelf.batched += ask - 1;
                self.page_allocs += ask;
                break (moved, extra);
            }
            shelf.refused = true;
            shelf.counted.page_refusals += 1;
            request.refused = true;
            least = true;
            refused_at = Some(ask);
        };
        // Where each chunk comes from that is taken from elsewhere, the block it is in, and where it goes.
        let shelf = &self.pools[pool].shelves[entry];
        let mut comes: Vec<(u64, Block, u64)> = Vec::new();
        for &place in &to.places {
            if let Some(chunk) = shelf.mapped_at(place).filter(|chunk| chunk.at != place) {
                comes.push((chunk.at, self.idle_in(request, entry, chunk)?, place));
            }
        }
        let returned = comes.len();
        for ((at, block), &place) in movable.iter().take(moved as usize).zip(&to.missing) {
            comes.push((*at, block.clone(), place));
        }
        let page = shelf.pages.iter().find(|page| page.base == to.base)?;
        let there = page.blocks.iter().filter(|block| block.address < end && block.address + block.bytes > to.address);
        let mut reasons: Vec<Reason> = comes.iter().filter_map(|(_, block, _)| self.usable(request, block)).collect();
        reasons.extend(there.filter_map(|block| self.usable(request, block)));
        if missing > moved {
            reasons.push(Reason::Fresh);
        }
        let reason = if reasons.iter().all(|&reason| reason == Reason::Fresh) {
            Reason::Fresh
        } else {
            reasons.into_iter().map(|reason| if reason == Reason::Fresh { Reason::Observed } else { reason }).max()?
        };
        let met = self.cases_of(request, entry, &spots, &comes, returned, extra);
        self.met.extend(met);
        if reason == Reason::Event {
            self.met.push("reason by dependency");
        }
        let mut asked = Asked::new();
        for (at, ..) in &comes[returned..] {
            self.drop_ghosts(pool, entry, *at, &mut asked);
        }
        // The chunks leave, and come; so do the new ones.
        let now = self.pools[pool].allocations;
        let shelf = &mut self.pools[pool].shelves[entry];
        shelf.pauses = 0;
        shelf.counted.chunk_moves += moved;
        let came = comes.len() as u64;
        if !several && (1..=used.div_ceil(64 * chunk)).contains(&came) {
            shelf.lacking += 1;
            if !shelf.tight && shelf.lacking >= LACKING && shelf.lacking * LACKING_ONE_IN >= now - shelf.paused_at {
                shelf.tight = true;
                self.met.push("becomes tight");
            }
        }
        for (at, ..) in &comes {
            shelf.place_becomes(*at, chunk, State::Vacant);
        }
        for (at, block, place) in comes {
            let coming = shelf.chunks.iter_mut().find(|chunk| chunk.at == at)?;
            coming.go(place, block.points().unwrap_or(&[]));
            shelf.place_becomes(place, chunk, block.state);
        }
        let fresh = free(Vec::new(), true);
        let further: Vec<u64> = (0..extra).map(|place| after + place * chunk).collect();
        for &place in to.missing.iter().skip(moved as usize).chain(&further) {
            shelf.chunks.push(Chunk { at: place, home: place, ghosts: Vec::new(), idle_since: now });
            shelf.place_becomes(place, chunk, fresh.clone());
        }
        let page = shelf.pages.iter_mut().find(|page| page.base == to.base)?;
        if extra > 0 {
            // They come as one block.
            page.become_one(after, after + extra * chunk, fresh);
        }
        page.cut_at(to.address);
        page.cut_at(end);
        let first = page.blocks.iter().position(|block| block.address == to.address)?;
        Some(Found { entry, base: to.base, first, reason, waits: Vec::new() })
    }

    /// What a block's way into a hole comes to.
    fn cases_of(
        &self,
        request: &Request,
        entry: usize,
        spots: &[Spot],
        comes: &[(u64, Block, u64)],
        returned: usize,
        extra: u64,
    ) -> Vec<&'static str> {
        let mut met = Vec::new();
        let shelf = &self.pools[request.pool].shelves[entry];
        let (Some(to), Some(chunk)) = (spots.first(), shelf.kind.chunk()) else { return met };
        let Some(page) = shelf.pages.iter().find(|page| page.base == to.base) else { return met };
        let end = to.address + request.need;
        if extra > 0 {
            met.push("asked for more than is missing");
        }
        if !(to.address - to.base).is_multiple_of(chunk) {
            met.push("placed inside a chunk");
        }
        if !to.to_the_end {
            met.push("placed in a hole between blocks");
        }
        let parts = self.parts(request, entry, page, chunk);
        if parts.iter().any(|part| part.vacant && !part.open) {
            met.push("a ghost that is not open");
        }
        if to.further_up {
            met.push("placed further up, so as to take no chunk twice");
        }
        if spots.iter().any(|spot| spot.shunned) {
            met.push("not at the high end, so as to take no chunk twice");
        }
        if returned > 0 && spots.iter().any(|spot| spot.address < to.address && spot.missing.len() > to.missing.len()) {
            met.push("a ghost preferred to a lower place");
        }
        if spots.iter().any(|spot| spot.address < to.address && spot.missing.len() == to.missing.len()) {
            met.push("fewer ghosts preferred to a lower place");
        }
        for (at, (from, block, place)) in comes.iter().enumerate() {
            let points = block.points().unwrap_or(&[]);
            let usable = self.usable(request, block);
            met.push(match (at < returned, usable) {
                (true, Some(Reason::Fresh)) => "returned, never used",
                (true, Some(Reason::Observed)) => "returned, observed",
                (true, Some(Reason::SameStream)) => "returned, own",
                (true, Some(Reason::Opportunistic)) => "returned, executed",
                (true, _) => "returned, by dependency",
                (false, Some(Reason::Fresh)) => "moved, never used",
                (false, Some(Reason::Observed)) => "moved, observed",
                (false, Some(Reason::SameStream)) => "moved, own",
                (false, Some(Reason::Opportunistic)) => "moved, executed",
                _ if points.len() > 1 => "moved, several points",
                _ => "moved, by dependency",
            });
            if shelf.around(*from, chunk).is_none() {
                met.push("idle in several blocks");
            }
            let partly = *place < to.address || place + chunk > end;
            if partly && !points.is_empty() {
                met.push("what a block leaves of a moved chunk keeps its points");
            }
            if block.address < end && block.address + block.bytes > to.address {
                met.push("a chunk of a block that is partly taken");
            }
        }
        if comes.len() > returned && returned > 0 {
            met.push("some returned and some moved");
        }
        met
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
        let mut places: Vec<(u64, u64)> =
            self.pools[pool].shelves[entry].chunks.iter().map(|chunk| (chunk.at, chunk.idle_since)).collect();
        places.sort();
        for (place, since) in places.into_iter().rev() {
            let shelf = &self.pools[pool].shelves[entry];
            let Some(page) = shelf.pages.iter().find(|page| page.base <= place && place < page.end()) else { continue };
            if !page.is_idle(place, chunk)
                || period.is_some_and(|period| now - since < period)
                || !wanted(self.pools[pool].reserved(), chunk)
            {
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
            if shelf.chunks.iter().any(|chunk| chunk.at == place && !chunk.ghosts.is_empty()) {
                self.met.push("given back with its ghosts");
            }
            shelf.chunks.retain(|chunk| chunk.at != place);
            shelf.place_becomes(place, chunk, State::Vacant);
            // (Vacant neighbours; nothing else has come to be that could merge.)
            for page in &mut shelf.pages {
                page.merge();
            }
            self.met.push(if period.is_some() { "given back after a period" } else { "given back" });
            if points.len() > 1 {
                self.met.push("given back from several blocks");
            }
            went = true;
        }
        went
    }
}

/// §7.1: L.
pub(crate) fn large(chunk: u64) -> u64 {
    (8 * chunk).min(16 * MIB)
}

/// §7.1: B, with U = `used`.
fn most_held(used: u64, chunk: u64, several: bool, tight: bool) -> u64 {
    let few = large(chunk);
    let share = if tight && !several { 32 } else { 64 };
    let slack = (used / share).max((3 * used / 32).max(few).min(3 * few));
    (used + slack + if several { used / 16 } else { 0 }) / chunk
}
