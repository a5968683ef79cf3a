//! Observed events as lines: gives streams, events, pools and allocations their numbers, and keeps the books.
//!
//! The recorder and the replayer both use this, so a replay agrees with its trace when the two sequences of lines do.

use super::line::{Line, MAX_NAME, Place};
use crate::handle::PoolId;
use crate::pool::addresses::{END_ADDRESS, FIRST_ADDRESS};
use crate::pool::config::{PoolConfig, Preset};
use crate::pool::observer::{AllocDone, Event};
use crate::pool::{Stats, spec};
use crate::slab::SlotMap;
use std::collections::BTreeMap;

/// What is known of a pool.
#[derive(Clone, Debug)]
pub(super) struct PoolBooks {
    pub(super) id: PoolId,
    /// It was there when recording began; these were its figures then.
    pub(super) before: Option<Stats>,
    pub(super) used: u64,
    pub(super) reserved: u64,
}

struct Live {
    number: u64,
    pool: u64,
    address: u64,
    block: u64,
}

/// A name as far as it is kept.
fn kept(name: &str) -> String {
    let end = (0..=name.len().min(MAX_NAME)).rev().find(|&end| name.is_char_boundary(end)).unwrap_or(0);
    name[..end].to_owned()
}

/// Turns events into lines.
pub(super) struct Encoder {
    /// Added to model addresses, so that a replay on a fresh device shows the recorded ones.
    shift: u64,
    streams: SlotMap<u64, u64>,
    events: SlotMap<u64, u64>,
    pools: SlotMap<u64, u64>,
    allocations: SlotMap<u64, Live>,
    by_address: BTreeMap<u64, u64>,
    next_event: u64,
    next_pool: u64,
    next_allocation: u64,
    pub(super) books: BTreeMap<u64, PoolBooks>,
    /// Pools destroyed, with blocks left.
    buried: BTreeMap<u64, PoolBooks>,
    pub(super) used: u64,
    pub(super) used_peak: u64,
    pub(super) reserved: u64,
    pub(super) reserved_peak: u64,
    pub(super) pages: u64,
    pub(super) pages_peak: u64,
    /// An event named something that was never met: a call was under way when recording began.
    pub(super) stranger: bool,
}

/// A pool of preset *driver* as the model sees it, which is what a replay can do.
pub(super) fn replayable(config: &PoolConfig) -> PoolConfig {
    let preset = match config.preset {
        Some(Preset::Driver) => Some(Preset::Cuda),
        other => other,
    };
    PoolConfig { preset, ..config.clone() }
}

impl Encoder {
    pub(super) fn new(shift: u64) -> Self {
        Encoder {
            shift,
            // The legacy default stream is there from the start.
            streams: SlotMap::from_iter([(0, 0)]),
            events: SlotMap::default(),
            pools: SlotMap::default(),
            allocations: SlotMap::default(),
            by_address: BTreeMap::new(),
            next_event: 1,
            next_pool: 1,
            next_allocation: 1,
            books: BTreeMap::new(),
            buried: BTreeMap::new(),
            used: 0,
            used_peak: 0,
            reserved: 0,
            reserved_peak: 0,
            pages: 0,
            pages_peak: 0,
            stranger: false,
        }
    }

    /// Numbers a stream, in the order of their ordinals.
    pub(super) fn add_stream(&mut self, ordinal: u64) -> u64 {
        let next = self.streams.len() as u64;
        *self.streams.entry(ordinal).or_insert(next)
    }

    /// Numbers a pool.
    pub(super) fn add_pool(&mut self, id: PoolId, before: Option<Stats>) -> u64 {
        let number = self.next_pool;
        self.next_pool += 1;
        self.pools.insert(id.0, number);
        self.books.insert(number, PoolBooks { id, before, used: 0, reserved: 0 });
        number
    }

    pub(super) fn stream(&mut self, ordinal: u64) -> u64 {
        match self.streams.get(&ordinal) {
            Some(&number) => number,
            None => {
                self.stranger = true;
                u64::MAX
            }
        }
    }

    fn pool(&mut self, id: PoolId) -> u64 {
        match self.pools.get(&id.0) {
            Some(&number) => number,
            None => {
                self.stranger = true;
                u64::MAX
            }
        }
    }

    /// An event that was there before recording began has only what the host has observed: it is as good as new.
    fn event(&mut self, id: u64, out: &mut impl FnMut(Line)) -> u64 {
        if let Some(&number) = self.events.get(&id) {
            return number;
        }
        let number = self.next_event;
        self.next_event += 1;
        self.events.insert(id, number);
        out(Line::Event { event: number });
        number
    }

    fn shown(&self, address: u64) -> u64 {
        let there = address.wrapping_add(self.shift);
        if (FIRST_ADDRESS..END_ADDRESS).contains(&there) { there } else { address }
    }

    fn books_of(&mut self, pool: u64) -> Option<&mut PoolBooks> {
        match self.books.get_mut(&pool) {
            Some(books) => Some(books),
            None => self.buried.get_mut(&pool),
        }
    }

    fn got(&mut self, pool: u64, done: &AllocDone) -> Line {
        let number = self.next_allocation;
        self.next_allocation += 1;
        let live = Live { number, pool, address: done.address, block: done.block_size };
        self.allocations.insert(done.allocation.0, live);
        self.by_address.insert(done.address, done.allocation.0);
        if let Some(books) = self.books_of(pool) {
            books.used = books.used.saturating_add(done.block_size);
        }
        self.used = self.used.saturating_add(done.block_size);
        self.used_peak = self.used_peak.max(self.used);
        Line::Got {
            allocation: number,
            address: self.shown(done.address),
            block: done.block_size,
            entry: done.entry,
            reason: done.reason,
            seq: done.ready_seq,
        }
    }

    fn freed(&mut self, handle: u64) -> u64 {
        let Some(live) = self.allocations.remove(&handle) else {
            self.stranger = true;
            return u64::MAX;
        };
        self.by_address.remove(&live.address);
        if let Some(books) = self.books_of(live.pool) {
            books.used = books.used.saturating_sub(live.block);
        }
        self.used = self.used.saturating_sub(live.block);
        live.number
    }

    /// A page came (`true`) or went.
    fn page(&mut self, pool: u64, bytes: u64, came: bool) {
        let change = |value: u64, by: u64| if came { value.saturating_add(by) } else { value.saturating_sub(by) };
        if let Some(books) = self.books_of(pool) {
            books.reserved = change(books.reserved, bytes);
        }
        self.reserved = change(self.reserved, bytes);
        self.reserved_peak = self.reserved_peak.max(self.reserved);
        self.pages = change(self.pages, 1);
        self.pages_peak = self.pages_peak.max(self.pages);
    }

    /// The lines of an event, in order; mostly one.
    pub(super) fn encode(&mut self, event: &Event<'_>, out: &mut impl FnMut(Line)) {
        let line = match *event {
            Event::StreamCreate { id, non_blocking, lazy } => {
                Line::Stream { stream: self.add_stream(id.0), non_blocking, lazy }
            }
            Event::TimelineCreate { id } => Line::Timeline { stream: self.add_stream(id.0) },
            Event::StreamRelease { id } => Line::StreamRelease { stream: self.stream(id.0) },
            Event::EventCreate { event } => {
                self.event(event.0, out);
                return;
            }
            Event::EventDestroy { event } => {
                let number = self.event(event.0, out);
                self.events.remove(&event.0);
                Line::EventDestroy { event: number }
            }
            Event::EventRecord { event, stream, seq } => {
                Line::Record { event: self.event(event.0, out), stream: self.stream(stream.0), seq }
            }
            Event::WaitEvent { event, stream, seq } => {
                Line::Wait { event: self.event(event.0, out), stream: self.stream(stream.0), seq }
            }
            Event::Submit { stream, count } => Line::Submit { stream: self.stream(stream.0), count },
            Event::Advance { stream, count, ran } => Line::Advance { stream: self.stream(stream.0), count, ran },
            Event::SynchronizeStream { stream } => Line::Sync { stream: self.stream(stream.0) },
            Event::SynchronizeEvent { event } => Line::SyncEvent { event: self.event(event.0, out) },
            Event::SynchronizeDevice => Line::SyncDevice,
            Event::PoolCreate { pool, config } => {
                Line::Pool { pool: self.add_pool(pool, None), spec: spec::format(&replayable(config)) }
            }
            Event::PoolDestroy { pool } => {
                let number = self.pool(pool);
                if let Some(books) = self.books.remove(&number) {
                    self.buried.insert(number, books);
                }
                Line::PoolDestroy { pool: number }
            }
            Event::TrimTo { pool, keep } => Line::Trim { pool: self.pool(pool), keep },
            Event::SetAttribute { pool, attribute, value } => {
                Line::Attribute { pool: self.pool(pool), attribute, value }
            }
            Event::SetCapacity { bytes } => Line::Capacity { bytes },
            Event::RefusePages { skip, count } => Line::RefusePages { skip, count },
            Event::RefuseReleases { count } => Line::RefuseReleases { count },
            Event::AllocBegin { pool, size, alignment, stream, name } => Line::Alloc {
                pool: self.pool(pool),
                size,
                alignment,
                stream: stream.map(|stream| self.stream(stream.0)),
                name: name.map(kept),
            },
            Event::ProgressAnswer { stream, executed } => Line::Progress { stream: self.stream(stream.0), executed },
            Event::Waitable { stream, upto } => Line::Waitable { stream: self.stream(stream.0), upto },
            Event::PageGranted { pool, entry, bytes, address } => {
                let pool = self.pool(pool);
                self.page(pool, bytes, true);
                Line::Page { pool, entry, bytes, address: self.shown(address) }
            }
            Event::PageRefused { pool, entry, bytes } => Line::PageRefused { pool: self.pool(pool), entry, bytes },
            Event::RangeRefused { pool, entry, bytes } => Line::RangeRefused { pool: self.pool(pool), entry, bytes },
            Event::PageReleased { pool, entry, bytes, address, refused } => {
                let (pool, address) = (self.pool(pool), self.shown(address));
                if refused {
                    Line::PageKept { pool, entry, bytes, address }
                } else {
                    self.page(pool, bytes, false);
                    Line::PageReleased { pool, entry, bytes, address }
                }
            }
            Event::CallbackBegin { pool } => Line::Callback { pool: self.pool(pool) },
            Event::CallbackEnd { pool, retry } => Line::CallbackEnd { pool: self.pool(pool), retry },
            Event::AllocEnd { pool, result } => {
                let pool = self.pool(pool);
                match result {
                    Ok(done) => self.got(pool, &done),
                    Err(status) => Line::Fail { status },
                }
            }
            Event::Free { allocation, stream, observed, .. } => Line::Free {
                allocation: self.freed(allocation.0),
                stream: stream.map(|stream| self.stream(stream.0)),
                observed,
            },
            Event::AddUser { allocation, stream, .. } => {
                let number = self.allocations.get(&allocation.0).map(|live| live.number);
                self.stranger |= number.is_none();
                Line::User { allocation: number.unwrap_or(u64::MAX), stream: self.stream(stream.0) }
            }
            Event::Access { address, size, stream, kind } => {
                let inside = self.by_address.range(..=address).next_back().and_then(|(start, handle)| {
                    let live = self.allocations.get(handle)?;
                    (address - start < live.block)
                        .then_some(Place::Inside { allocation: live.number, offset: address - start })
                });
                let place = inside.unwrap_or(Place::Address(self.shown(address)));
                Line::Access { place, size, stream: self.stream(stream.0), kind }
            }
        };
        out(line);
    }

    /// A pool's closing figures. Of a pool that was there before, what has changed since, and no marks: they may be older.
    pub(super) fn figures(number: u64, books: &PoolBooks, now: &Stats) -> Line {
        let zero = Stats::default();
        let before = books.before.as_ref().unwrap_or(&zero);
        let mut values: Vec<(String, u64)> = Vec::new();
        let mut put = |key: &str, value: u64| values.push((key.to_owned(), value));
        put("requested", now.requested);
        put("used", now.used);
        put("reserved", now.reserved);
        put("live", now.live);
        put("pending", now.pending);
        put("pending_bytes", now.pending_bytes);
        put("pages", now.pages);
        put("largest_free", now.largest_free);
        if books.before.is_none() {
            put("used_high", now.used_high);
            put("reserved_high", now.reserved_high);
            put("pages_high", now.pages_high);
        }
        let mut count = |key: &str, of: fn(&Stats) -> u64| put(key, of(now).saturating_sub(of(before)));
        count("allocs", |s| s.allocs);
        count("frees", |s| s.frees);
        count("failures", |s| s.failures);
        count("page_allocs", |s| s.page_allocs);
        count("page_frees", |s| s.page_frees);
        count("page_refusals", |s| s.page_refusals);
        count("release_failures", |s| s.release_failures);
        count("device_calls", |s| s.device_calls);
        count("unordered_frees", |s| s.unordered_frees);
        count("racing_frees", |s| s.racing_frees);
        count("progress_queries", |s| s.progress_queries);
        count("internal_waits", |s| s.internal_waits);
        count("host_syncs", |s| s.host_syncs);
        count("splits", |s| s.splits);
        count("merges", |s| s.merges);
        count("same_stream", |s| s.reuse.same_stream);
        count("observed", |s| s.reuse.observed);
        count("event", |s| s.reuse.event);
        count("opportunistic", |s| s.reuse.opportunistic);
        count("internal", |s| s.reuse.internal);
        count("fresh", |s| s.reuse.fresh);
        Line::Figures { pool: number, values }
    }
}
