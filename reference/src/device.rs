//! The device: supply of pages, streams, events, pools, and every call but the allocation itself.

use crate::alloc::OutOfMemory;
use crate::order::{Graph, LEGACY, Now, Point, Sort};
use crate::pool::{Config, Entry, Failure, Figures, MOST_RECENT, Pool, Reason, Shelf, State};
use std::rc::Rc;

/// How a device is to behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Options {
    pub alignment: u64,
    pub granularity: u64,
    /// `u64::MAX`: unlimited.
    pub capacity: u64,
    pub lazy: bool,
    /// How many bytes of addresses there are for pages and ranges.
    pub addresses: u64,
}

/// A stream's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct StreamFigures {
    pub submitted: u64,
    pub executed: u64,
    pub observed: u64,
}

/// What is known of an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Allocation {
    pub pool: usize,
    pub entry: usize,
    pub address: u64,
    pub block_address: u64,
    pub block_size: u64,
    pub requested: u64,
    /// None: host order.
    pub stream: Option<usize>,
    pub ready_seq: u64,
    pub reason: Reason,
    pub freed: bool,
    pub users: Vec<usize>,
}

pub(crate) struct Event {
    destroyed: bool,
    point: Option<Point>,
}

/// A whole device.
pub struct Device {
    pub(crate) options: Options,
    pub(crate) graph: Graph,
    /// Destroyed streams, in the order in which they are looked at.
    ended: Vec<usize>,
    events: Vec<Event>,
    pub(crate) pools: Vec<Pool>,
    pub(crate) allocations: Vec<Allocation>,
    /// Page requests to let pass, and then to refuse.
    pub(crate) skip: u64,
    pub(crate) refuse: u64,
    pub(crate) refuse_releases: u64,
    /// The capacity at the beginning.
    opened_with: u64,
    /// The first address that was never given out.
    next_address: u64,
    /// Those that were and are free again: begin and end, in no order.
    released: Vec<(u64, u64)>,
    /// Pages granted and taken back so far.
    pub(crate) page_allocs: u64,
    pub(crate) page_frees: u64,
    pub(crate) spans: [u64; 6],
    pub(crate) ninth_questions: u64,
    /// Cases that were met, of Mapped entries and of recent blocks.
    pub(crate) met: Vec<&'static str>,
}

type Answer<T> = Result<T, Failure>;

/// How many destroyed streams are looked at when one is created.
const LOOKED_AT_ENDED: usize = 4;

const FIRST_ADDRESS: u64 = 0x53F0_0000_0000_0000;

impl Device {
    /// A device with the legacy default stream and nothing else.
    pub fn new(options: Options) -> Self {
        Device {
            options,
            graph: Graph::new(options.lazy),
            ended: Vec::new(),
            events: Vec::new(),
            pools: Vec::new(),
            allocations: Vec::new(),
            skip: 0,
            refuse: 0,
            refuse_releases: 0,
            opened_with: options.capacity,
            next_address: FIRST_ADDRESS,
            released: Vec::new(),
            page_allocs: 0,
            page_frees: 0,
            spans: [0; 6],
            ninth_questions: 0,
            met: Vec::new(),
        }
    }

    /// §7: where a page or range of `bytes` would lie.
    pub(crate) fn find_address(&self, bytes: u64) -> Option<u64> {
        let room = bytes.next_multiple_of(self.options.granularity);
        if self.next_address + room <= FIRST_ADDRESS + self.options.addresses {
            return Some(self.next_address);
        }
        self.released.iter().filter(|(begin, end)| end - begin >= room).map(|&(begin, _)| begin).min()
    }
    /// One lies at `address`, found like that.
    pub(crate) fn take_address(&mut self, address: u64, bytes: u64, range: bool) {
        let after = address + bytes.next_multiple_of(self.options.granularity);
        if address == self.next_address {
            self.next_address = after;
            return;
        }
        self.met.push(if range { "a range at released addresses" } else { "a page at released addresses" });
        if let Some(span) = self.released.iter_mut().find(|(begin, _)| *begin == address) {
            span.0 = after;
            self.released.retain(|(begin, end)| begin < end);
        }
    }
    /// One is gone.
    pub(crate) fn release_address(&mut self, address: u64, bytes: u64) {
        self.released.push((address, address + bytes.next_multiple_of(self.options.granularity)));
        self.released.sort_unstable();
        self.released.dedup_by(|right, left| {
            let touch = left.1 == right.0;
            if touch {
                left.1 = right.1;
            }
            touch
        });
    }

    /// Bytes of pages granted.
    pub fn reserved(&self) -> u64 {
        self.pools.iter().map(Pool::reserved).sum()
    }
    /// Pages granted and pages taken back so far.
    pub fn page_calls(&self) -> (u64, u64) {
        (self.page_allocs, self.page_frees)
    }
    /// Allocations served by several blocks, by reason.
    pub fn spans(&self) -> [u64; 6] {
        self.spans
    }
    /// What Mapped entries came to, a name each time.
    pub fn cases(&self) -> &[&'static str] {
        &self.met
    }
    /// How often policy 2 would have needed a ninth question.
    pub fn ninth_questions(&self) -> u64 {
        self.ninth_questions
    }
    /// Pools not destroyed, or with pages left.
    pub fn pools_left(&self) -> usize {
        self.pools.iter().filter(|pool| !pool.destroyed || pool.page_count() > 0).count()
    }
    /// How many bytes of pages can be granted; pages granted already stay.
    pub fn set_capacity(&mut self, bytes: u64) {
        self.options.capacity = bytes;
    }
    /// After `skip` further page requests, refuses `count`.
    pub fn refuse_pages(&mut self, skip: u64, count: u64) {
        (self.skip, self.refuse) = (skip, count);
    }
    /// Refuses the next `count` pages given back.
    pub fn refuse_releases(&mut self, count: u64) {
        self.refuse_releases = count;
    }

    // --- streams

    /// A new stream; `lazy` none: as the device.
    pub fn create_stream(&mut self, non_blocking: bool, lazy: Option<bool>) -> usize {
        let stream = self.graph.create(!non_blocking, lazy.unwrap_or(self.options.lazy));
        self.look_at_ended();
        stream
    }
    /// §2: four of the destroyed streams that are not forgotten.
    fn look_at_ended(&mut self) {
        let streams = &self.graph.streams;
        self.ended.retain(|&stream| !streams[stream].is_forgotten());
        let looked_at: Vec<usize> = self.ended.drain(..self.ended.len().min(LOOKED_AT_ENDED)).collect();
        let (done, not): (Vec<usize>, Vec<usize>) =
            looked_at.into_iter().partition(|&stream| streams[stream].executed == streams[stream].submitted());
        self.ended.extend(not);
        if !done.is_empty() {
            self.met.push("a destroyed stream forgotten when another was created");
            self.forget(&done);
        }
    }
    pub(crate) fn stream(&self, stream: usize) -> Answer<()> {
        if self.graph.streams[stream].destroyed { Err(Failure::Destroyed) } else { Ok(()) }
    }
    /// The handle is good no more; the work stays.
    pub fn destroy_stream(&mut self, stream: usize) -> Answer<()> {
        if stream == LEGACY {
            return Err(Failure::InvalidValue);
        }
        self.stream(stream)?;
        self.graph.streams[stream].destroyed = true;
        self.ended.push(stream);
        Ok(())
    }
    /// The stream's numbers.
    pub fn stream_figures(&self, stream: usize) -> Answer<StreamFigures> {
        self.stream(stream)?;
        let s = &self.graph.streams[stream];
        Ok(StreamFigures { submitted: s.submitted(), executed: s.executed, observed: s.observed })
    }
    /// Work. The last sequence number.
    pub fn submit(&mut self, stream: usize, count: u64) -> Answer<u64> {
        if count == 0 {
            return Err(Failure::InvalidValue);
        }
        self.stream(stream)?;
        Ok((0..count).map(|_| self.graph.submit(stream, Sort::Work, Vec::new())).max().unwrap_or(0))
    }
    /// Runs up to `count` operations. How many ran.
    pub fn advance(&mut self, stream: usize, count: u64) -> Answer<u64> {
        self.stream(stream)?;
        Ok(self.graph.advance(stream, count))
    }
    /// Everything submitted has executed.
    pub fn query_stream(&self, stream: usize) -> Answer<bool> {
        self.stream(stream)?;
        let s = &self.graph.streams[stream];
        Ok(s.executed == s.submitted())
    }
    /// Runs and observes what the stream was given.
    pub fn synchronise_stream(&mut self, stream: usize) -> Answer<()> {
        self.stream(stream)?;
        self.synchronise(&self.graph.ends(Some(stream)));
        Ok(())
    }
    /// Runs and observes everything.
    pub fn synchronise_device(&mut self) {
        self.synchronise(&self.graph.ends(None));
    }
    pub(crate) fn synchronise(&mut self, points: &[Point]) {
        self.graph.synchronise(points);
        self.prune();
        self.release_after_synchronise();
    }

    /// §2: these destroyed streams are forgotten; no synchronise.
    pub(crate) fn forget(&mut self, streams: &[usize]) {
        for &stream in streams {
            self.graph.streams[stream].observed = self.graph.streams[stream].submitted();
        }
        self.prune();
    }

    /// §5: what is observed leaves the free sets, then neighbours merge.
    fn prune(&mut self) {
        let streams = &self.graph.streams;
        for shelf in self.pools.iter_mut().flat_map(|pool| &mut pool.shelves) {
            for page in &mut shelf.pages {
                for block in &mut page.blocks {
                    if let State::Free { points, recent, whole, .. } = &mut block.state {
                        if *whole && points.iter().all(|point| point.seq <= streams[point.stream].observed) {
                            self.met.push("whole until it is observed");
                        }
                        points.retain(|point| point.seq > streams[point.stream].observed);
                        *recent &= !points.is_empty();
                        *whole &= !points.is_empty();
                    }
                }
                if shelf.kind.carves() {
                    shelf.counted.merges += page.merge();
                }
            }
        }
    }

    // --- events

    /// A new event, never recorded.
    pub fn create_event(&mut self) -> usize {
        self.events.push(Event { destroyed: false, point: None });
        self.events.len() - 1
    }
    fn event(&self, event: usize) -> Answer<Option<Point>> {
        if self.events[event].destroyed { Err(Failure::Destroyed) } else { Ok(self.events[event].point) }
    }
    /// Waits made before keep their point.
    pub fn destroy_event(&mut self, event: usize) -> Answer<()> {
        self.event(event)?;
        self.events[event].destroyed = true;
        Ok(())
    }
    /// Replaces the event's point.
    pub fn record(&mut self, event: usize, stream: usize) -> Answer<Point> {
        self.event(event)?;
        self.stream(stream)?;
        let point = Point { stream, seq: self.graph.submit(stream, Sort::Work, Vec::new()) };
        self.events[event].point = Some(point);
        Ok(point)
    }
    /// What comes later on the stream comes after the event's point.
    pub fn wait(&mut self, stream: usize, event: usize) -> Answer<()> {
        self.stream(stream)?;
        let point = self.event(event)?;
        self.graph.submit(stream, Sort::Work, point.into_iter().collect());
        Ok(())
    }
    /// The event's point has executed, or there is none.
    pub fn query_event(&self, event: usize) -> Answer<bool> {
        Ok(self.event(event)?.is_none_or(|point| self.graph.has_executed(point)))
    }
    /// Runs and observes up to the event's point. Without one it observes nothing, but is a synchronise all the same.
    pub fn synchronise_event(&mut self, event: usize) -> Answer<()> {
        let points: Vec<Point> = self.event(event)?.into_iter().collect();
        self.synchronise(&points);
        Ok(())
    }

    // --- pools

    /// A new pool.
    pub fn create_pool(&mut self, config: &Config) -> Answer<usize> {
        let Options { alignment, granularity, .. } = self.options;
        let config = config.checked(alignment, granularity, self.opened_with).ok_or(Failure::InvalidConfig)?;
        let shelf = |kind: &Entry| Shelf {
            kind: kind.clone(),
            pages: Vec::new(),
            counted: Figures::default(),
            chunks: Vec::new(),
            batched: 0,
            orders: Vec::new(),
            had_users: false,
            pauses: 0,
            refused: false,
            tight: false,
            lacking: 0,
            paused_at: 0,
            paused: None,
            largest_recent: u64::MAX,
            passed_over: 0,
        };
        self.pools.push(Pool {
            shelves: config.entries.iter().map(shelf).collect(),
            config,
            destroyed: false,
            allocations: 0,
            counted: Figures::default(),
            callback: None,
            in_callback: 0,
        });
        Ok(self.pools.len() - 1)
    }
    pub(crate) fn pool(&self, pool: usize) -> Answer<()> {
        if self.pools[pool].destroyed { Err(Failure::Destroyed) } else { Ok(()) }
    }
    /// Live blocks stay usable; pages go back as soon as they can.
    pub fn destroy_pool(&mut self, pool: usize) -> Answer<()> {
        self.pool(pool)?;
        self.pools[pool].destroyed = true;
        self.pools[pool].callback = None;
        self.bury(pool);
        Ok(())
    }
    /// Called before an allocation fails.
    pub fn set_callback(
        &mut self,
        pool: usize,
        callback: impl Fn(&mut Device, &OutOfMemory) -> bool + 'static,
    ) -> Answer<()> {
        self.pool(pool)?;
        self.pools[pool].callback = Some(Rc::new(callback));
        Ok(())
    }
    /// Attributes 1–8 by CUDA's numbers.
    pub fn attribute(&self, pool: usize, attribute: u32) -> Answer<u64> {
        self.pool(pool)?;
        let p = &self.pools[pool];
        match attribute {
            1 => Ok(p.config.policy_1.into()),
            2 => Ok(p.config.policy_2.into()),
            3 => Ok(p.config.policy_3.into()),
            4 => Ok(p.config.release_threshold),
            5 => Ok(p.reserved()),
            6 => Ok(p.counted.reserved_high),
            7 => Ok(p.used()),
            8 => Ok(p.counted.used_high),
            _ => Err(Failure::InvalidValue),
        }
    }
    /// 1–3 to 0 or 1, 4 to anything, 6 and 8 to 0.
    pub fn set_attribute(&mut self, pool: usize, attribute: u32, value: u64) -> Answer<()> {
        self.pool(pool)?;
        let p = &mut self.pools[pool];
        match (attribute, value) {
            (1, 0 | 1) => p.config.policy_1 = value == 1,
            (2, 0 | 1) => p.config.policy_2 = value == 1,
            (3, 0 | 1) => p.config.policy_3 = value == 1,
            (4, _) => p.config.release_threshold = value,
            (6, 0) => p.counted.reserved_high = p.reserved(),
            (8, 0) => p.counted.used_high = p.used(),
            _ => return Err(Failure::InvalidValue),
        }
        Ok(())
    }

    // --- blocks

    /// What is known of an allocation.
    pub fn allocation(&self, allocation: usize) -> Answer<&Allocation> {
        let a = &self.allocations[allocation];
        if a.freed { Err(Failure::Freed) } else { Ok(a) }
    }
    /// A further user: the block is reusable only after what `stream` has submitted by the free.
    pub fn add_user(&mut self, allocation: usize, stream: usize) -> Answer<()> {
        self.allocation(allocation)?;
        self.stream(stream)?;
        self.allocations[allocation].users.push(stream);
        Ok(())
    }
    /// The allocation has executed on its own stream.
    pub fn is_ready(&self, allocation: usize) -> Answer<bool> {
        let a = self.allocation(allocation)?;
        Ok(a.stream.is_none_or(|stream| self.graph.has_executed(Point { stream, seq: a.ready_seq })))
    }
    /// Work submitted to `stream` now is ordered after the allocation.
    pub fn is_ready_on(&self, allocation: usize, stream: usize) -> Answer<bool> {
        let a = self.allocation(allocation)?;
        self.stream(stream)?;
        Ok(a.stream.is_none_or(|own| self.graph.precedes_now(stream, Now::Work)[own] >= a.ready_seq))
    }
    /// An access by work on `stream`: its number, and whether it follows the allocation.
    pub fn access(&mut self, allocation: usize, stream: usize) -> Answer<(u64, bool)> {
        let follows = self.is_ready_on(allocation, stream)?;
        Ok((self.graph.submit(stream, Sort::Work, Vec::new()), follows))
    }
    /// The live allocation of whose bytes asked for `pointer` is one (of no bytes: whose address it is), and its offset from
    /// the address that was given out.
    pub fn find(&self, pointer: u64) -> Answer<(usize, u64)> {
        self.allocations
            .iter()
            .position(|a| !a.freed && a.address <= pointer && pointer - a.address < a.requested.max(1))
            .map(|found| (found, pointer - self.allocations[found].address))
            .ok_or(Failure::InvalidValue)
    }

    /// §5: a free on `stream`, or in host order.
    pub fn free(&mut self, allocation: usize, stream: Option<usize>) -> Answer<()> {
        let Allocation { pool, entry, block_address, stream: own, ready_seq, .. } = *self.allocation(allocation)?;
        if let Some(stream) = stream {
            self.stream(stream)?;
        }
        let mut unordered = false;
        let mut points = Vec::new();
        match stream {
            Some(stream) => {
                if let Some(own) = own {
                    unordered = self.graph.precedes_now(stream, Now::Work)[own] < ready_seq;
                }
                for &user in &self.allocations[allocation].users {
                    points.push(Point { stream: user, seq: self.graph.streams[user].submitted() });
                }
                points.push(Point { stream, seq: self.graph.submit(stream, Sort::Memory, Vec::new()) });
            }
            None => points = self.graph.ends(None),
        }
        points.retain(|point| point.seq > self.graph.streams[point.stream].observed);
        points.sort();
        let mut largest: Vec<Point> = Vec::new();
        for point in points {
            largest.retain(|other| other.stream != point.stream);
            largest.push(point);
        }
        self.allocations[allocation].freed = true;
        let allocations = self.pools[pool].allocations;
        let shelf = &mut self.pools[pool].shelves[entry];
        shelf.counted.frees += 1;
        shelf.counted.unordered_frees += u64::from(unordered);
        shelf.note_order(stream);
        shelf.had_users |= !self.allocations[allocation].users.is_empty();
        let own = shelf.kind.keeps_recent() && matches!(*largest, [point] if Some(point.stream) == stream);
        let bytes = shelf.blocks().find(|block| block.address == block_address).map_or(0, |block| block.bytes);
        let recent = own && bytes <= shelf.largest_recent;
        if own && !recent {
            self.met.push("too large to become recent");
            shelf.passed_over += 1;
        }
        if let (true, Some(stream)) = (recent, stream)
            && shelf.recent(stream).len() == MOST_RECENT
        {
            self.met.push("recent: as many as there may be");
            shelf.settle(Some(stream), 0);
        }
        let from = self.allocations[allocation].stream;
        let handed_over = stream.is_some() && from.is_some() && from != stream;
        for page in &mut shelf.pages {
            let Some(block) = page.blocks.iter_mut().find(|block| block.address == block_address) else { continue };
            let whole =
                handed_over && largest.len() == 1 && shelf.kind.chunk().is_some_and(|chunk| block.bytes >= chunk);
            if whole {
                self.met.push("stays whole");
            }
            block.state = State::Free { points: largest, never_used: false, recent, whole };
            if let Some(chunk) = shelf.kind.chunk() {
                let (low, high) = (block.address, block.address + block.bytes);
                let touched = shelf.chunks.iter_mut().filter(|c| c.at < high && c.at + chunk > low);
                touched.filter(|c| page.is_idle(c.at, chunk)).for_each(|c| c.idle_since = allocations);
            }
            if page.is_free() {
                page.free_since = allocations;
            }
            if shelf.kind.carves() {
                shelf.counted.merges += page.merge();
            }
            break;
        }
        self.pause(pool, entry, stream);
        if self.pools[pool].destroyed {
            self.bury(pool);
        }
        Ok(())
    }

    // --- figures

    fn shelf_figures(&self, shelf: &Shelf) -> Figures {
        let mut figures = shelf.counted.clone();
        figures.used = shelf.used();
        figures.reserved = shelf.reserved();
        figures.pages = shelf.page_count();
        for block in shelf.blocks() {
            match &block.state {
                State::Live(allocation) => {
                    figures.live += 1;
                    figures.requested += self.allocations[*allocation].requested;
                }
                State::Free { points, .. } => {
                    figures.largest_free = figures.largest_free.max(block.bytes);
                    if !points.is_empty() {
                        figures.pending += 1;
                        figures.pending_bytes += block.bytes;
                    }
                }
                State::Vacant => {}
            }
        }
        figures.padding = figures.used - figures.requested;
        figures.device_calls =
            figures.page_allocs + figures.page_frees + figures.page_refusals + figures.release_failures;
        figures.device_calls += figures.chunk_moves + figures.ranges;
        figures.device_calls -= shelf.batched;
        figures
    }

    /// The figures of a pool and of its entries.
    pub fn figures(&self, pool: usize) -> Answer<(Figures, Vec<Figures>)> {
        self.pool(pool)?;
        Ok(self.all_figures(pool))
    }

    pub(crate) fn all_figures(&self, pool: usize) -> (Figures, Vec<Figures>) {
        let p = &self.pools[pool];
        let entries: Vec<Figures> = p.shelves.iter().map(|shelf| self.shelf_figures(shelf)).collect();
        let mut sum = p.counted.clone();
        for entry in &entries {
            sum.requested += entry.requested;
            sum.used += entry.used;
            sum.reserved += entry.reserved;
            sum.padding += entry.padding;
            sum.live += entry.live;
            sum.pending += entry.pending;
            sum.pending_bytes += entry.pending_bytes;
            sum.allocs += entry.allocs;
            sum.frees += entry.frees;
            sum.pages += entry.pages;
            sum.page_allocs += entry.page_allocs;
            sum.page_frees += entry.page_frees;
            sum.page_refusals += entry.page_refusals;
            sum.release_failures += entry.release_failures;
            sum.device_calls += entry.device_calls;
            sum.unordered_frees += entry.unordered_frees;
            sum.internal_waits += entry.internal_waits;
            sum.chunk_moves += entry.chunk_moves;
            sum.ranges += entry.ranges;
            sum.splits += entry.splits;
            sum.merges += entry.merges;
            for (sum, count) in sum.reuse.iter_mut().zip(entry.reuse) {
                *sum += count;
            }
            sum.largest_free = sum.largest_free.max(entry.largest_free);
        }
        sum.device_calls += sum.progress_queries + sum.host_syncs;
        (sum, entries)
    }
}

impl Device {
    /// The address an allocation was given, freed or not.
    pub fn address_given(&self, allocation: usize) -> u64 {
        self.allocations[allocation].address
    }
}
