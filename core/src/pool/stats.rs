//! Figures of a pool and of its entries, added up from what each stream counted.

use super::block::block;
use super::page::{REGION, apart, page};
use super::slow::Slow;
use super::state::{Counts, Kind, Pool, Tally};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// How often a block could be used, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reuse {
    /// Freed on the same stream.
    pub same_stream: u64,
    /// The host had observed the free.
    pub observed: u64,
    /// Policy 1: the free preceded by dependency.
    pub event: u64,
    /// Policy 2: the free had executed.
    pub opportunistic: u64,
    /// Policy 3: the stream was made to wait.
    pub internal: u64,
    /// Never used before.
    pub fresh: u64,
}

/// Figures of a pool, or of one entry. Bytes, counts; `*_high` are high-water marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes asked for by live blocks.
    pub requested: u64,
    /// Bytes no one else can have because of live blocks.
    pub used: u64,
    /// High-water mark of `used`.
    pub used_high: u64,
    /// Bytes of pages held.
    pub reserved: u64,
    /// High-water mark of `reserved`.
    pub reserved_high: u64,
    /// `used` − `requested`.
    pub padding: u64,
    /// Live blocks.
    pub live: u64,
    /// Free blocks with a free point the host has not observed.
    pub pending: u64,
    /// Their bytes.
    pub pending_bytes: u64,
    /// Successful allocations.
    pub allocs: u64,
    /// Successful frees.
    pub frees: u64,
    /// Failed allocations (pool only).
    pub failures: u64,
    /// Pages held.
    pub pages: u64,
    /// High-water mark of `pages`.
    pub pages_high: u64,
    /// Pages granted.
    pub page_allocs: u64,
    /// Pages taken back.
    pub page_frees: u64,
    /// Pages the device refused.
    pub page_refusals: u64,
    /// Pages the device refused to take back.
    pub release_failures: u64,
    /// Calls to the device: pages asked for and given back (refusals included; chunks that were asked for together once),
    /// chunks moved, ranges reserved, progress questions, host synchronises.
    pub device_calls: u64,
    /// Frees on a stream not ordered after the allocation.
    pub unordered_frees: u64,
    /// Frees that did not follow an access that was noted (pool only).
    pub racing_frees: u64,
    /// Questions to the device how far a stream has run (pool only).
    pub progress_queries: u64,
    /// Waits inserted by policy 3.
    pub internal_waits: u64,
    /// Device synchronises made because memory was out (pool only).
    pub host_syncs: u64,
    /// Chunks of Mapped entries that were mapped elsewhere instead of asking the device for more. None of them waits for
    /// anything: each is a call to map and, later, one to unmap.
    pub chunk_moves: u64,
    /// Ranges of addresses that Mapped entries have reserved.
    pub ranges: u64,
    /// Blocks cut in two.
    pub splits: u64,
    /// Neighbours merged.
    pub merges: u64,
    /// Reasons of reuse.
    pub reuse: Reuse,
    /// Largest free block, whatever its free points.
    pub largest_free: u64,
    /// Bytes of this library's own records for the pool's blocks and look-up index.
    pub metadata_bytes: u64,
}

fn fill(stats: &mut Stats, counts: &Counts, tally: &Tally, used: u64) {
    stats.requested = counts.requested.max(0) as u64;
    stats.allocs = counts.allocs();
    stats.live = stats.allocs.saturating_sub(counts.frees);
    stats.frees = counts.frees;
    stats.splits = counts.splits;
    stats.merges = counts.merges;
    stats.unordered_frees = counts.unordered_frees;
    stats.internal_waits = counts.internal_waits;
    let [same_stream, observed, event, opportunistic, internal, fresh] = counts.reuse;
    stats.reuse = Reuse { same_stream, observed, event, opportunistic, internal, fresh };
    stats.used = used;
    stats.used_high = tally.used_high.load(Relaxed);
    stats.reserved = tally.reserved.load(Relaxed);
    stats.reserved_high = tally.reserved_high.load(Relaxed);
    stats.padding = stats.used.saturating_sub(stats.requested);
    stats.pages = tally.pages.load(Relaxed);
    stats.pages_high = tally.pages_high.load(Relaxed);
    stats.page_allocs = tally.page_allocs.load(Relaxed);
    stats.page_frees = tally.page_frees.load(Relaxed);
    stats.page_refusals = tally.page_refusals.load(Relaxed);
    stats.release_failures = tally.release_failures.load(Relaxed);
    stats.failures = tally.failures.load(Relaxed);
    stats.progress_queries = tally.progress_queries.load(Relaxed);
    stats.host_syncs = tally.host_syncs.load(Relaxed);
    stats.chunk_moves = tally.chunk_moves.load(Relaxed);
    stats.ranges = tally.ranges.load(Relaxed);
    stats.device_calls = stats.page_allocs - tally.batched.load(Relaxed)
        + stats.chunk_moves
        + stats.ranges
        + stats.page_frees
        + stats.page_refusals
        + stats.release_failures
        + stats.progress_queries
        + stats.host_syncs;
}

/// One entry's figures, its counts, and its number of block records.
fn of_entry_locked(slow: &mut Slow<'_>, pool: &Arc<Pool>, e: usize) -> (Stats, Counts) {
    let mut counts = Counts::default();
    let (mut pending, mut pending_bytes, mut largest, mut free) = (0, 0, 0, 0);
    let attached = pool.attached.lock().clone();
    for slot in attached {
        let state = slow.state(slot);
        let Some(Some(cache)) = state.attach.pools.get_mut(pool.slot as usize) else { continue };
        if cache.id != pool.id {
            continue;
        }
        cache.retire_fronts();
        counts.add(&cache.counts(e));
        let cache = &cache.entries[e];
        if let Some(recents) = &cache.recents {
            recents.each(|b| {
                pending += 1;
                pending_bytes += b.size();
                free += 1;
                largest = largest.max(b.size());
            });
        }
        if let Some(bins) = &cache.bins {
            pending += bins.count;
            pending_bytes += bins.bytes;
            free += bins.count;
            largest = bins.largest().max(largest);
        }
    }
    let mut shared = pool.shared.lock();
    let used = slow.used(&mut shared, pool, e);
    let own = &shared.entries[e];
    counts.add(&own.counts);
    pending += own.multi.count;
    pending_bytes += own.multi.bytes;
    free += own.multi.count + own.observed.count + own.unused.count;
    largest = largest.max(own.observed.largest()).max(own.unused.largest()).max(own.multi.largest());
    let mut points = 0;
    own.multi.each(|index| points += shared.points[&index].len() as u64);
    let mut stats = Stats::default();
    fill(&mut stats, &counts, &pool.entry_tally[e], used);
    stats.pending = pending;
    stats.pending_bytes = pending_bytes;
    stats.largest_free = largest;
    stats.metadata_bytes = (stats.live + free) * std::mem::size_of::<super::block::Block>() as u64
        + own.mapped.metadata_bytes()
        + own.pages.iter().map(|&slot| page(slot).metadata_bytes()).sum::<u64>()
        + points * std::mem::size_of::<crate::order::At>() as u64;
    (stats, counts)
}

pub(crate) fn of_entry(pool: &Arc<Pool>, e: usize) -> Stats {
    of_entry_locked(&mut Slow::lock(&pool.device), pool, e).0
}

pub(crate) fn of_pool(pool: &Arc<Pool>) -> Stats {
    let mut slow = Slow::lock(&pool.device);
    let mut counts = Counts::default();
    let mut sum = Stats::default();
    for e in 0..pool.entries.len() {
        let (stats, own) = of_entry_locked(&mut slow, pool, e);
        counts.add(&own);
        sum.pending += stats.pending;
        sum.pending_bytes += stats.pending_bytes;
        sum.largest_free = sum.largest_free.max(stats.largest_free);
        sum.metadata_bytes += stats.metadata_bytes;
    }
    let used = slow.used(&mut pool.shared.lock(), pool, pool.entries.len());
    fill(&mut sum, &counts, &pool.tally, used);
    sum.racing_frees = pool.accesses.racing_frees();
    sum.metadata_bytes += pool.accesses.bytes();
    sum
}

/// Takes the pool apart and compares every structure with its rules.
pub(crate) fn check(pool: &Arc<Pool>) -> Result<(), String> {
    use super::block::{FREE, HOST, LIVE, MULTI, NIL, OBSERVED, RECENT, UNUSED, VACANT};
    let mut slow = Slow::lock(&pool.device);
    let streams: Vec<_> = pool.device.order.streams.lock().iter().copied().collect();
    for stream in streams {
        slow.state(stream.slot());
    }
    for e in 0..pool.entries.len() {
        let (stats, _) = of_entry_locked(&mut slow, pool, e);
        let holders = slow.published(pool, e);
        for &holder in holders.iter() {
            let cache = slow.cache(holder.slot(), pool);
            let listed = cache.entries.first.room.listed && cache.room.listed;
            if cache.ready > 0 && !(listed && pool.is_open()) {
                return Err(format!("{} bytes of ready room of stream {holder:?} are not found", cache.ready));
            }
        }
        let shared = pool.shared.lock();
        let own = &shared.entries[e];
        own.observed.check()?;
        own.unused.check()?;
        let (mut live, mut used, mut requested, mut free, mut recent) = (0, 0, 0, 0u64, 0);
        for &slot in &own.pages {
            let record = page(slot);
            let (mut at, mut prev) = (record.first.load(Relaxed), NIL);
            let mut addr = record.base.load(Relaxed);
            let mut live_here = 0;
            while at != NIL {
                let b = block(at);
                if b.addr() != addr || b.prev() != prev || b.page() != slot || b.size() == 0 {
                    return Err(format!("entry {e}: block {at} at {:#x} does not follow its neighbour", b.addr()));
                }
                if record.block_at(slot, addr) != Some(at) || record.block_at(slot, b.end() - 1) != Some(at) {
                    return Err(format!("entry {e}: block {at} is not found by its address"));
                }
                if (prev == NIL || apart(block(prev).addr(), addr)) && record.first_of(slot, addr) != Some(at) {
                    return Err(format!("entry {e}: block {at} is not known to be the first of its region"));
                }
                // (Of large blocks not every region in which nothing starts.)
                let beyond = (addr..b.end()).step_by(REGION).skip(1).take(4).chain([b.end() - 1]);
                for inside in beyond.filter(|&inside| apart(addr, inside)) {
                    let starts = b.next() != NIL && !apart(b.end(), inside);
                    if record.first_of(slot, inside) != starts.then_some(b.next()) {
                        return Err(format!("entry {e}: what starts first in the region of {inside:#x} is not known"));
                    }
                }
                if b.has(VACANT) {
                    addr = b.end();
                    prev = at;
                    at = b.next();
                    continue;
                }
                if b.has(LIVE) == b.has(FREE) {
                    return Err(format!("entry {e}: block {at} is neither live nor free"));
                }
                if b.has(LIVE) {
                    live_here += 1;
                    used += b.size();
                    requested += b.requested();
                } else {
                    free += 1;
                    recent += u64::from(b.has(RECENT));
                    let mergeable = b.stream() != MULTI && pool.entries[e].carves() && b.merges();
                    if prev != NIL && block(prev).merges() && block(prev).stream() == b.stream() && mergeable {
                        return Err(format!("entry {e}: blocks {prev} and {at} should have merged"));
                    }
                    if b.has(UNUSED) && b.stream() != OBSERVED {
                        return Err(format!("entry {e}: block {at} is never-used but not observed"));
                    }
                }
                if b.stream() == HOST && !b.has(LIVE) {
                    return Err(format!("entry {e}: block {at} is free in host order"));
                }
                addr = b.end();
                prev = at;
                at = b.next();
            }
            if pool.entries[e].kind != Kind::Direct && addr != record.base.load(Relaxed) + record.bytes.load(Relaxed) {
                return Err(format!("entry {e}: page {slot} is not covered by its blocks"));
            }
            let listed = pool.empties[e].lock().contains(&slot);
            let lists = pool.entries[e].kind != Kind::Mapped;
            if lists && (listed != record.rest.listed.load(Relaxed) || (live_here == 0 && !listed)) {
                return Err(format!(
                    "entry {e}: page {slot} with {live_here} live blocks: on the list of empty ones: {listed}"
                ));
            }
            live += live_here;
        }
        let mut held = own.observed.count + own.unused.count + own.multi.count + recent;
        let mut reserved: u64 = own.pages.iter().map(|&slot| page(slot).bytes.load(Relaxed)).sum();
        if pool.entries[e].kind == Kind::Mapped {
            reserved = own.mapped.chunks() * pool.entries[e].page_size;
            super::mapped::check(&shared, pool, e)?;
        }
        own.multi.check()?;
        let mut wrong = None;
        own.multi.each(|index| {
            if block(index).stream() != MULTI || shared.points.get(&index).is_none_or(|points| points.len() < 2) {
                wrong = Some(index);
            }
        });
        if let Some(index) = wrong {
            return Err(format!("entry {e}: multi block {index} has fewer than two points"));
        }
        if pool.entries[e].carves() {
            super::seams::check(&mut slow, &shared, pool, e, &holders)?;
        }
        drop(shared);
        let mut chained = 0;
        for &holder in holders.iter() {
            let observed = super::caches::STREAMS.at(holder.slot()).observed();
            let bins = slow.bins(holder, pool, e);
            bins.check()?;
            held += bins.count;
            let mut wrong = None;
            bins.each(|index| {
                if block(index).stream() != holder || block(index).seq() <= observed {
                    wrong = Some(index);
                }
            });
            if let Some(recents) = &slow.cache(holder.slot(), pool).entries[e].recents {
                recents.check(holder, observed).map_err(|what| format!("entry {e}: {what}"))?;
                chained += u64::from(recents.count);
            }
            if let Some(index) = wrong {
                return Err(format!("entry {e}: block {index} is in the wrong cache"));
            }
        }
        if recent != chained {
            return Err(format!("entry {e}: {recent} recent blocks in pages, {chained} in chains"));
        }
        if held != free {
            return Err(format!("entry {e}: {free} free blocks in pages, {held} in structures"));
        }
        let want = (live, used, requested, reserved);
        let have = (stats.live, stats.used, stats.requested, stats.reserved);
        if want != have {
            return Err(format!("entry {e}: (live, used, requested, reserved) are {want:?}, counted {have:?}"));
        }
        if !(stats.requested <= stats.used && stats.used <= stats.reserved) {
            return Err(format!("entry {e}: requested <= used <= reserved does not hold: {have:?}"));
        }
    }
    Ok(())
}
