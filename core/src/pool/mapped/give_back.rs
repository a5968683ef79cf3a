//! Chunks and ranges on their way back to the device (`docs/placement.md` §9).

use super::{Mapping, between, make_vacant, take_out, unmap};
use crate::device_source::{Chunk, PageSource};
use crate::order::{At, StreamRef};
use crate::pool::block::{FREE, MULTI, NIL, OBSERVED, block};
use crate::pool::observer::Event;
use crate::pool::page::{self, page};
use crate::pool::release;
use crate::pool::slow::Slow;
use crate::pool::state::{Pool, PoolShared};
use crate::rules;
use crate::slab::SlotMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

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
pub(crate) fn release_chunks(
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
pub(crate) fn drop_ranges(slow: &Slow<'_>, shared: &mut PoolShared, pool: &Arc<Pool>, e: usize) {
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
