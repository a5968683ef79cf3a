//! Pages going back: trim, thresholds, periods, watermarks, and what a synchronise makes reusable
//! (`docs/placement.md` §5, §9).

use super::alloc::detach_any;
use super::block::{Block, FREE, HOST, MULTI, NIL, OBSERVED, block};
use super::caches::{PoolCache, STREAMS};
use super::mapped::{self, drop_ranges, release_chunks};
use super::merge::{may_be_empty, settle_all};
use super::observer::Event;
use super::page::{self, Page, page};
use super::slow::{Leaving, Slow};
use super::state::{Device, EntryShared, Kind, Pool, PoolShared, Tally};
use crate::device_source::{Grant, PageSource};
use crate::few::Few;
use crate::handle;
use crate::order::{At, Progress, StreamRef};
use crate::rules;
use crate::slab::SlotMap;
use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, SeqCst},
    fence,
};

/// A block was freed, and is not merged yet. If it may have been the last live one of its page, the page is put on the entry's
/// list of empty ones. (A Mapped entry gives back chunks, and has no such list.)
#[inline(never)]
pub(crate) fn emptied(pool: &Pool, e: usize, b: &'static Block, home: &Page) {
    if pool.entries[e].kind != Kind::Mapped && may_be_empty(b, home) {
        emptied_at(pool, e, b.page(), pool.allocations());
    }
}

/// The page may have no live block since the pool had made so many allocations.
#[inline(always)]
pub(crate) fn emptied_at(pool: &Pool, e: usize, slot: u32, allocations: u64) {
    page(slot).rest.free_since.store(allocations, Relaxed);
    list_empty(pool, e, slot);
}

/// Makes a page known as (at this moment) without a live block.
#[inline(always)]
pub(crate) fn list_empty(pool: &Pool, e: usize, slot: u32) {
    let listed = &page(slot).rest.listed;
    // What was freed is seen by whoever takes the page off the list.
    fence(SeqCst);
    if !listed.load(Relaxed) {
        list_now(pool, e, slot, listed);
    }
}

#[cold]
#[inline(never)]
fn list_now(pool: &Pool, e: usize, slot: u32, listed: &AtomicBool) {
    if !listed.swap(true, Relaxed) {
        pool.empties[e].lock().push(slot);
    }
}

/// The entry's pages without a live block: (free_since, highest address first, page).
fn empty_pages(pool: &Pool, e: usize) -> Vec<(u64, Reverse<u64>, u32)> {
    let mut list = std::mem::take(&mut *pool.empties[e].lock());
    list.retain(|&slot| {
        let record = page(slot);
        if record.has_live_block(slot) {
            record.rest.listed.store(false, Relaxed);
            // A free between the two lines above finds the page listed; look again.
            fence(SeqCst);
            return !record.has_live_block(slot) && !record.rest.listed.swap(true, Relaxed);
        }
        true
    });
    pool.empties[e].lock().extend_from_slice(&list);
    let mut pages: Vec<_> = list
        .into_iter()
        .map(|slot| (page(slot).rest.free_since.load(Relaxed), Reverse(page(slot).base.load(Relaxed)), slot))
        .collect();
    pages.sort_unstable();
    pages
}

/// Takes the pages that went back out of the entry's list of empty ones; the caller released some under the same lock.
fn unlist_released(pool: &Pool, e: usize, shared: &PoolShared) {
    pool.empties[e].lock().retain(|slot| shared.entries[e].pages.contains(slot));
}

/// Whether a point has executed, asked of the device once a stream in a walk over the pages.
pub(super) fn executed(pool: &Pool, answers: &mut SlotMap<StreamRef, u64>, at: At) -> bool {
    let device = &*pool.device;
    *answers.entry(at.stream).or_insert_with(|| {
        let executed = device.executed(at.stream);
        pool.tally.progress_queries.fetch_add(1, Relaxed);
        device.tell(&Event::ProgressAnswer { stream: at.stream.id(), executed });
        executed
    }) >= at.seq
}

/// Gives one page back if all its blocks are free and their points have executed (Cuda: are observed). `answers` keeps
/// what the device said. Returns the bytes.
fn release_page(
    slow: &mut Slow<'_>,
    shared: &mut PoolShared,
    pool: &Arc<Pool>,
    e: usize,
    slot: u32,
    answers: &mut SlotMap<StreamRef, u64>,
) -> Option<u64> {
    let record = page(slot);
    let mut blocks = Vec::new();
    let mut at = record.first.load(Relaxed);
    while at != NIL {
        let b = block(at);
        let owner = b.stream();
        if !b.has(FREE) {
            return None;
        }
        // A free block in a cache: its stream's lock keeps it from being handed out meanwhile.
        if owner != OBSERVED && owner != MULTI {
            slow.state(owner.slot());
            if b.stream() != owner || !b.has(FREE) {
                return None;
            }
        }
        blocks.push(at);
        at = b.next();
    }
    let device = slow.device;
    let mut executed = |at: At| executed(pool, answers, at);
    let observed_only = pool.entries[e].kind == Kind::Cuda;
    let free = blocks.iter().all(|&index| {
        let b = block(index);
        match b.stream() {
            OBSERVED => true,
            _ if rules::off(rules::RELEASE_EXECUTED) => true,
            _ if observed_only => false,
            MULTI => shared.points[&index].iter().all(|&at| executed(at)),
            stream => executed(At { stream, seq: b.seq() }),
        }
    });
    if !free {
        return None;
    }
    if device.cuda().is_some_and(|cuda| cuda.poison().is_some()) {
        return None;
    }
    let bytes = record.bytes.load(Relaxed);
    let address = record.base.load(Relaxed);
    let grant = device.granted.lock().grants.remove(&slot).unwrap_or_default();
    if device.order.opaque {
        // A driver may take its time: the page leaves every structure, and the driver is asked without locks. (Once it has the page
        // back, another thread may get one there.)
        forget_pointer(device, slot);
        let mut gone = Vec::with_capacity(blocks.len());
        for index in blocks {
            let b = block(index);
            let points = match b.stream() {
                OBSERVED => Vec::new(),
                MULTI => shared.points[&index].to_vec(),
                stream => vec![At { stream, seq: b.seq() }],
            };
            detach_any(slow, shared, pool, e, index);
            shared.points.remove(&index);
            b.set_size_flags(b.size(), b.flags() & !FREE);
            // No stream's: those that it was of go on, and may be forgotten meanwhile.
            b.set_stream(HOST);
            gone.push((index, points));
        }
        slow.leave(Leaving { pool: pool.clone(), entry: e, slot, bytes, grant, blocks: gone });
        return Some(bytes);
    }
    let answer = device.source.release(grant, bytes);
    let refused = answer.is_err();
    device.tell(&Event::PageReleased { pool: pool.id, entry: e as u32, bytes, address, refused });
    if let Err(grant) = answer {
        device.granted.lock().grants.insert(slot, grant);
        count_release_failure(pool, e, bytes);
        return None;
    }
    for index in blocks {
        detach_any(slow, shared, pool, e, index);
        shared.stock.give(index);
    }
    close_page(device, shared, pool, e, slot, bytes);
    Some(bytes)
}

/// A page is not found by its pointers any more.
fn forget_pointer(device: &Device, slot: u32) {
    let pointer = page(slot).pointer.load(Relaxed);
    if pointer != 0 {
        let mut pages = device.by_pointer.write();
        if pages.get(&pointer) == Some(&slot) {
            pages.remove(&pointer);
        }
    }
}

/// The page is the device's again.
fn close_page(device: &Device, shared: &mut PoolShared, pool: &Pool, e: usize, slot: u32, bytes: u64) {
    let record = page(slot);
    let base = record.base.load(Relaxed);
    device.by_address.write().remove(&base);
    device.granted.lock().addresses.release(base, bytes);
    forget_pointer(device, slot);
    record.first.store(NIL, Relaxed);
    shared.entries[e].pages.remove(&slot);
    page::close(slot);
    pool.tally.shrink(bytes);
    pool.entry_tally[e].shrink(bytes);
    device.page_frees.fetch_add(1, Relaxed);
    device.reserved.fetch_sub(bytes, Relaxed);
}

fn count_release_failure(pool: &Pool, e: usize, bytes: u64) {
    pool.tally.release_failures.fetch_add(1, Relaxed);
    pool.entry_tally[e].release_failures.fetch_add(1, Relaxed);
    crate::log::emit(crate::log::Level::Warning, || {
        format!("the device refused to take back a page of {bytes} bytes; it stays reserved")
    });
}

/// The device has answered for a page that was leaving: it is gone, or its blocks are free again as they were.
pub(crate) fn settle_leaving(slow: &mut Slow<'_>, page: Leaving, refused: Option<Grant>) {
    let Leaving { pool, entry: e, slot, bytes, blocks, .. } = page;
    let device = slow.device;
    let record = super::page::page(slot);
    let address = record.base.load(Relaxed);
    device.tell(&Event::PageReleased { pool: pool.id, entry: e as u32, bytes, address, refused: refused.is_some() });
    let mut shared = pool.shared.lock();
    match refused {
        None => {
            for (index, _) in blocks {
                shared.stock.give(index);
            }
            close_page(device, &mut shared, &pool, e, slot, bytes);
            unlist_released(&pool, e, &shared);
            drop(shared);
            if pool.destroyed.load(Relaxed) {
                forget_if_empty(slow, &pool);
            }
        }
        Some(grant) => {
            if grant.pointer != 0 {
                device.by_pointer.write().insert(grant.pointer, slot);
            }
            device.granted.lock().grants.insert(slot, grant);
            count_release_failure(&pool, e, bytes);
            for (index, mut points) in blocks {
                points.retain(|at| device.order.observed(&STREAMS, at.stream) < at.seq);
                block(index).add_flag(FREE);
                super::free::place(slow, &mut shared, &pool, e, index, &points);
            }
        }
    }
}

/// Releases in the order of §9 while `want(reserved, page bytes)` says so for a page; pages it declines are skipped.
fn release_while(slow: &mut Slow<'_>, pool: &Arc<Pool>, mut want: impl FnMut(u64, u64) -> bool) -> u64 {
    let mut given = 0;
    let mut answers = SlotMap::default();
    let mut shared = pool.shared.lock();
    for e in (0..pool.entries.len()).rev() {
        if pool.entries[e].kind == Kind::Mapped {
            given += release_chunks(slow, &mut shared, pool, e, &mut answers, None, &mut want);
            if pool.destroyed.load(Relaxed) {
                drop_ranges(slow, &mut shared, pool, e);
            }
            continue;
        }
        for (.., slot) in empty_pages(pool, e) {
            let bytes = page(slot).bytes.load(Relaxed);
            if want(pool.tally.reserved.load(Relaxed) - slow.leaving_bytes(pool, None), bytes)
                && let Some(bytes) = release_page(slow, &mut shared, pool, e, slot, &mut answers)
            {
                given += bytes;
            }
        }
        unlist_released(pool, e, &shared);
    }
    given
}

/// Every releasable page of the pool. Returns the bytes.
pub(crate) fn release_all(slow: &mut Slow<'_>, pool: &Arc<Pool>) -> u64 {
    release_while(slow, pool, |_, _| true)
}

/// `trim_to`: §9.
pub(crate) fn trim(slow: &mut Slow<'_>, pool: &Arc<Pool>, keep: u64) {
    sweep_periods(slow, pool);
    release_while(slow, pool, |reserved, bytes| reserved - bytes >= keep);
}

/// The pages that were unused for a whole `dealloc_period`.
pub(crate) fn sweep_periods(slow: &mut Slow<'_>, pool: &Arc<Pool>) {
    if rules::off(rules::PERIOD) || pool.entries.iter().all(|entry| entry.period.is_none()) {
        return;
    }
    let now = pool.allocations();
    let mut answers = SlotMap::default();
    let mut shared = pool.shared.lock();
    for e in (0..pool.entries.len()).rev() {
        let Some(period) = pool.entries[e].period else { continue };
        if pool.entries[e].kind == Kind::Mapped {
            release_chunks(slow, &mut shared, pool, e, &mut answers, Some(period), &mut |_, _| true);
            continue;
        }
        for (since, _, slot) in empty_pages(pool, e) {
            if now.saturating_sub(since) < period {
                break;
            }
            release_page(slow, &mut shared, pool, e, slot, &mut answers);
        }
        unlist_released(pool, e, &shared);
    }
}

/// A direct entry's watermark, before a page of `bytes` is asked for.
pub(crate) fn reclaim(slow: &mut Slow<'_>, pool: &Arc<Pool>, e: usize, bytes: u64) {
    let mark = pool.entries[e].reclaim_at;
    let tally = &pool.entry_tally[e];
    if mark == u64::MAX || tally.reserved.load(Relaxed).saturating_add(bytes) <= mark {
        return;
    }
    let mut answers = SlotMap::default();
    let mut shared = pool.shared.lock();
    for (.., slot) in empty_pages(pool, e) {
        if (tally.reserved.load(Relaxed) - slow.leaving_bytes(pool, Some(e))).saturating_add(bytes) <= mark {
            break;
        }
        release_page(slow, &mut shared, pool, e, slot, &mut answers);
    }
    unlist_released(pool, e, &shared);
}

/// The host has observed `seen`: frees become everybody's, pages go back above the threshold, streams that are gone are
/// forgotten. What `seen` speaks of has executed.
pub(crate) fn observe(slow: &mut Slow<'_>, seen: &[At]) {
    let device = slow.device;
    let mut moved: Few<StreamRef, 8> = Few::default();
    let mut released = false;
    for &at in seen {
        let record = STREAMS.at(at.stream.slot());
        // (What has been observed already, as most of what is seen, is so still: it changes under the slow lock only.)
        if record.observed() < at.seq && record.is(device.uid, at.stream) {
            let state = slow.state(at.stream.slot());
            if record.observe(at.seq) {
                if state.opaque {
                    record.execute(at.seq);
                }
                state.prune(at.seq);
                released |= state.released;
                moved.push(at.stream);
            }
        }
    }
    if !moved.is_empty() {
        each_pool(device, |pool| publish_observed(slow, pool, &moved));
    }
    each_pool(device, |pool| {
        for e in (0..pool.entries.len()).filter(|&e| pool.entries[e].kind == Kind::Mapped) {
            mapped::observed(slow, &mut pool.shared.lock(), pool, e);
        }
        sweep_periods(slow, pool);
        if !rules::off(rules::THRESHOLD) {
            let threshold = pool.threshold.load(Relaxed);
            if pool.tally.reserved.load(Relaxed) > threshold {
                release_while(slow, pool, |reserved, _| reserved > threshold);
            }
        }
        if pool.destroyed.load(Relaxed) {
            bury(slow, pool);
        }
    });
    // (A stream is released under the slow lock.)
    for &stream in moved.iter().filter(|_| released) {
        forget_if_done(slow, stream);
    }
}

/// Destroyed streams are forgotten of which these answers say that they have executed to their end: nobody can give them more, so what
/// was true of an answer stays all there is to know. No synchronise: no chunk goes home, and nothing is given back.
#[cold]
#[inline(never)]
pub(crate) fn forget_executed(slow: &mut Slow<'_>, answers: &[At]) {
    if rules::off(rules::ENDED) {
        return;
    }
    let device = slow.device;
    let mut ended: Few<StreamRef, 8> = Few::default();
    for &at in answers {
        let record = STREAMS.at(at.stream.slot());
        // (Another thread may have been faster.)
        if !record.is(device.uid, at.stream) {
            continue;
        }
        let state = slow.state(at.stream.slot());
        let end = state.submitted;
        if state.released && at.seq >= end && record.executed() >= end && record.observe(end) {
            state.prune(end);
            ended.push(at.stream);
        }
    }
    if ended.is_empty() {
        return;
    }
    each_pool(device, |pool| publish_observed(slow, pool, &ended));
    for &stream in ended.iter() {
        forget_if_done(slow, stream);
    }
}

/// Does something to every pool of the device, in order of creation, of which each may be gone after.
fn each_pool(device: &Device, mut act: impl FnMut(&Arc<Pool>)) {
    let mut at = 0;
    let mut next = device.pools.lock().get(at).cloned();
    while let Some(pool) = next {
        act(&pool);
        let pools = device.pools.lock();
        at += usize::from(pools.get(at).is_some_and(|here| here.id == pool.id));
        next = pools.get(at).cloned();
    }
}

/// Moves what the host has observed out of the streams' caches and the multi blocks, then merges.
fn publish_observed(slow: &mut Slow<'_>, pool: &Arc<Pool>, moved: &[StreamRef]) {
    let device = slow.device;
    let mut shared = pool.shared.lock();
    let mut observed = std::mem::take(&mut shared.listed);
    for e in 0..pool.entries.len() {
        // All sets are pruned first, then placed: the result does not depend on an order.
        // (Those that become observed, and multi blocks with one point left.)
        let mut pruned: Few<(u32, At), 4> = Few::default();
        for &stream in moved {
            let upto = STREAMS.at(stream.slot()).observed();
            let caches = &mut slow.state(stream.slot()).attach.pools;
            let Some(Some(cache)) = caches.get_mut(pool.slot as usize) else { continue };
            if cache.id != pool.id {
                continue;
            }
            cache.retire_fronts();
            let own = &mut cache.entries[e];
            if let Some(recents) = &mut own.recents {
                recents.take_upto(upto, |index| observed.push(index));
            }
            if let Some(bins) = own.bins.as_mut() {
                bins.take_upto(upto, |index| observed.push(index));
            }
        }
        let own_observed = observed.len();
        let PoolShared { entries, points, .. } = &mut *shared;
        let own = &mut entries[e];
        let mut fewer = 0;
        own.multi.each(|index| {
            let set = points.get_mut(&index).expect("a multi block has points");
            let had = set.len();
            set.retain(|at| device.order.observed(&STREAMS, at.stream) < at.seq);
            match set.len() {
                // (Taken out below.)
                0 | 1 => observed.push(index),
                // Fewer streams need be followed for it.
                left => fewer += u64::from(left < had),
            }
        });
        own.multi_changes += fewer;
        let mut kept = own_observed;
        for at in own_observed..observed.len() {
            let index = observed[at];
            own.multi.remove(index);
            match points[&index].first() {
                Some(&at) => pruned.push((index, at)),
                None => {
                    observed[kept] = index;
                    kept += 1;
                }
            }
            points.discard(&index);
        }
        observed.truncate(kept);
        place_observed(slow, &mut shared, pool, e, &observed);
        observed.clear();
        for &(index, at) in pruned.iter() {
            super::free::place(slow, &mut shared, pool, e, index, &[at]);
        }
    }
    shared.listed = observed;
}

/// Blocks that have just been taken out of their structures are observed: those that touch become one before it is put among the
/// others.
fn place_observed(slow: &mut Slow<'_>, shared: &mut PoolShared, pool: &Arc<Pool>, e: usize, blocks: &[u32]) {
    let entry = &pool.entries[e];
    if entry.kind == Kind::Cuda || !entry.carves() || rules::off(rules::MERGE) {
        // Not to be merged with until its turn comes.
        blocks.iter().for_each(|&index| block(index).drop_flag(FREE));
        for &index in blocks {
            block(index).add_flag(FREE);
            super::free::place(slow, shared, pool, e, index, &[]);
        }
        return;
    }
    let PoolShared { entries, stock, .. } = shared;
    let own = &mut entries[e];
    own.counts.merges += settle_all(blocks, At { stream: OBSERVED, seq: 0 }, &mut own.observed, stock);
}

/// A released stream whose work is all observed leaves no trace.
pub(crate) fn forget_if_done(slow: &mut Slow<'_>, stream: StreamRef) {
    let device = slow.device;
    let record = STREAMS.at(stream.slot());
    if !record.is(device.uid, stream) {
        return;
    }
    let state = slow.state(stream.slot());
    if !state.released || record.observed() < state.submitted {
        return;
    }
    let caches = std::mem::take(&mut state.attach.pools);
    let native = std::mem::take(&mut state.attach.native);
    let used_up = handle::used_up(state.generation);
    state.attach.stock.give_back();
    record.forget();
    device.order.streams.lock().remove(&stream);
    slow.forget(native);
    for cache in caches.into_iter().flatten() {
        let pool = cache.pool.clone();
        // Before the slot goes back: it may become another device's stream, whose lock is not ours to take.
        pool.attached.lock().retain(|&slot| slot != stream.slot());
        for list in &pool.roomy {
            list.lock().retain(|&slot| slot != stream.slot());
        }
        for (e, own) in cache.entries.iter().enumerate() {
            if own.published {
                pool.published[e].lock().retain(|&other| other != stream);
            }
        }
        take_over(&mut pool.shared.lock(), &pool, &cache);
    }
    if !used_up {
        STREAMS.give_back([stream.slot()]);
    }
}

/// Whether the device has unmapped all that a pool holding no page needs no more, which it is asked to once again.
pub(crate) fn is_unmapped(_: &Slow<'_>, pool: &Arc<Pool>) -> bool {
    let mut shared = pool.shared.lock();
    (0..pool.entries.len()).all(|e| mapped::unstick(&mut shared.entries[e].mapped, pool, e))
}

/// Makes a pool that holds no page, on a device at rest, as it was when it was new but for its figures and marks, so that it can
/// be built again: its streams begin anew, Mapped entries give their addresses back and forget what they have learnt. `false`: it
/// holds some after all, or asks for some, for another thread is in a call; nothing has changed.
pub(crate) fn renew(slow: &mut Slow<'_>, pool: &Arc<Pool>) -> bool {
    // (What is asked for counts before the device is asked, under the slow lock.)
    if pool.tally.reserved.load(Relaxed) != 0 {
        return false;
    }
    let attached = slow.lock_attached(pool);
    pool.attached.lock().clear();
    for list in &pool.roomy {
        list.lock().retain(|slot| !attached.contains(slot));
    }
    let mut shared = pool.shared.lock();
    for slot in attached {
        let place = slow.state(slot).attach.pools.get_mut(pool.slot as usize);
        let Some(cache) = place.and_then(|place| place.take_if(|cache| cache.id == pool.id)) else { continue };
        take_over(&mut shared, pool, &cache);
    }
    for (e, entry) in pool.entries.iter().enumerate() {
        drop_ranges(slow, &mut shared, pool, e);
        pool.published[e].lock().clear();
        let own = &mut shared.entries[e];
        debug_assert!(own.pages.is_empty());
        *own = EntryShared { room: std::mem::take(&mut own.room), counts: own.counts, ..EntryShared::new() };
        own.mapped.begin_at(pool.allocations());
        let (tally, new) = (&pool.entry_tally[e], Tally::of(entry));
        tally.pauses.store(new.pauses.into_inner(), Relaxed);
        tally.largest_recent.store(new.largest_recent.into_inner(), Relaxed);
        tally.notes_seams.store(new.notes_seams.into_inner(), Relaxed);
    }
    true
}

/// What a stream without free blocks has counted of a pool, and its room, belong to none.
fn take_over(shared: &mut PoolShared, pool: &Pool, cache: &PoolCache) {
    pool.drop_share(&cache.share);
    shared.take_over_room(pool, cache);
    for (e, (own, gone)) in shared.entries.iter_mut().zip(cache.entries.iter()).enumerate() {
        debug_assert!(cache.has_no_front());
        debug_assert!(gone.recents() == 0 && gone.bins.as_ref().is_none_or(|bins| bins.count == 0));
        own.counts.add(&cache.counts(e));
    }
}

/// A destroyed pool gives back what it can; with nothing left it is gone.
pub(crate) fn bury(slow: &mut Slow<'_>, pool: &Arc<Pool>) {
    release_all(slow, pool);
    forget_if_empty(slow, pool);
}

/// A destroyed pool with no page left is gone.
pub(crate) fn forget_if_empty(slow: &mut Slow<'_>, pool: &Arc<Pool>) {
    let live: bool = {
        let shared = pool.shared.lock();
        shared.entries.iter().any(|entry| !entry.pages.is_empty())
    };
    if live {
        return;
    }
    slow.device.pools.lock().retain(|other| !Arc::ptr_eq(other, pool));
    let attached = std::mem::take(&mut *pool.attached.lock());
    for slot in attached {
        let caches = &mut slow.state(slot).attach.pools;
        if let Some(place) = caches.get_mut(pool.slot as usize)
            && place.as_ref().is_some_and(|cache| cache.id == pool.id)
        {
            *place = None;
        }
    }
    pool.shared.lock().stock.give_back();
    super::registry::POOLS.close(pool);
}
