//! How chunks go home, and how places where one stays mapped are dropped (`docs/placement.md` §5, §9).

use super::{Enough, Going, Left, MOST_GHOSTS, Mapping, Source, free_points, leave, take_out, unmap};
use crate::order::{At, StreamRef};
use crate::pool::block::{FREE, OBSERVED, RECENT, block};
use crate::pool::caches::STREAMS;
use crate::pool::page::page;
use crate::pool::release;
use crate::pool::slow::Slow;
use crate::pool::state::{Pool, PoolShared};
use crate::rules;
use crate::slab::SlotMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

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
        crate::pool::free::place(slow, shared, pool, e, index, points.as_slice());
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
pub(super) fn most_ghosts(pool: &Pool, e: usize) -> usize {
    (pool.entries[e].range_size / pool.entries[e].page_size / 2).min(MOST_GHOSTS) as usize
}

/// A chunk that is about to move and has many ghosts drops those it left longest ago, once their points have executed: nothing
/// uses it from there any more.
pub(super) fn drop_ghosts(
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
pub(crate) fn unstick(mapping: &mut Mapping, pool: &Arc<Pool>, e: usize) -> bool {
    for address in std::mem::take(&mut mapping.stuck) {
        if !unmap(mapping, pool, e, address) {
            mapping.stuck.push(address);
        }
    }
    mapping.stuck.is_empty()
}
