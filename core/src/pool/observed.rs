//! The short way to what all may use, where what other streams have free in the entry, if anything, is not to be looked at before: an
//! allocation that its stream's own blocks do not serve takes an observed one (`docs/placement.md` §6, step 2).
//!
//! It needs the slow lock, but little of what the slow path does, as there is nobody's to be looked at but the stream's own and the
//! observed ones. It waits for no lock, as it holds the stream's: where one is taken, or more is to be looked at, the slow path
//! begins anew.

use super::Reason;
use super::alloc::round_up;
use super::bins::Upto;
use super::block::{GENERATION_LIMIT, NIL, UNUSED};
use super::caches::{Caches, EntryCache, PoolCache, STREAMS, cut_lifted, widen_both};
use super::classes::class_of;
use super::state::{Kind, Pool};
use crate::handle::{self, AllocationId, PoolId};
use crate::order::{Clock, Order, Stream, StreamRef};
use crate::rules;
use std::sync::Arc;

/// `key`: what the stream's record says of itself while it is the stream that the call named. `None`: nothing was done.
#[inline(never)]
pub(super) fn serve(pool: PoolId, size: u64, record: &'static Stream<Caches>, key: u64) -> Option<AllocationId> {
    let mut guard = record.state.try_lock()?;
    let state = &mut *guard;
    let slot = handle::slot(pool.0);
    let broken = [rules::OBSERVED, rules::SAME_STREAM, rules::CUDA_SAME_STREAM, rules::CUDA_EVENT].map(rules::off);
    if !state.is_ready_for(key) || state.is_legacy() || broken != [false; 4] {
        return None;
    }
    let me = state.me;
    let cache = &mut **state.attach.pools.get_mut(slot as usize)?.as_mut()?;
    if cache.id != pool {
        return None;
    }
    let e = cache.entries.accepting(size)?;
    // Where nothing of other streams precedes, step 3 of a Mapped entry has nothing to find.
    let nothing_else = is_observed(&cache.pool.device.order, &state.clock, me);
    let first = nothing_else && cache.pool.entries[e].kind == Kind::Mapped;
    if !first && are_others(&cache.pool, e, me) {
        return None;
    }
    let need = round_up(size, cache.unit);
    if !cache.pool.is_open() || cache.pool.shadow.is_some() || !cache.entries[e].carves || has_own(cache, e, need) {
        return None;
    }
    let pool: Arc<Pool> = cache.pool.clone();
    let _slow = pool.device.slow.try_lock()?;
    let mut shared = pool.shared.try_lock()?;
    let shared = &mut *shared;
    // (Who held the slow lock may have had the list.)
    if !first && are_others(&pool, e, me) {
        return None;
    }
    let own = &mut shared.entries[e];
    // (Each multi block has a point of another stream that is not observed.)
    if !nothing_else && own.multi.count > 0 {
        return None;
    }
    let cache = &mut **state.attach.pools.get_mut(slot as usize)?.as_mut()?;
    cache.count_ready();
    let PoolCache { room, entries, .. } = &mut *cache;
    let EntryCache { room: own_room, counts, .. } = &mut entries[e];
    let lifted = own.observed.lift_best(class_of(need), need)?;
    // The record can have another handle, and there is room for the block's bytes.
    let (index, b) = cut_lifted(&mut own.observed, counts, lifted, need, &mut shared.stock, |b| {
        b.generation() < GENERATION_LIMIT
            && (own_room.bytes >= need && room.bytes >= need || widen_both(&pool, e, own_room, room, me.slot(), need))
    })?;
    own.note_order(&pool, e, Some(me));
    let reason = if b.has(UNUSED) { Reason::Fresh } else { Reason::Observed };
    let allocation = cache.serve_found(e, (index, b), need, size, reason);
    b.set_stream(me);
    b.set_seq(state.push_next(record));
    Some(AllocationId(allocation))
}

/// Whether streams but `me` may have free blocks of the entry.
fn are_others(pool: &Pool, e: usize, me: StreamRef) -> bool {
    pool.published[e].lock().iter().any(|&stream| stream != me)
}

/// Whether the stream has a block of its own that may serve, or is to merge first.
fn has_own(cache: &PoolCache, e: usize, need: u64) -> bool {
    let own = &cache.entries[e];
    let fits = || own.bins.as_ref().is_some_and(|bins| bins.best(need, Upto::Any) != NIL);
    !cache.has_no_front() || own.recents() > 0 || fits()
}

/// Whether nothing of other streams that the host has not observed precedes what comes on `me` after `clock`. `me` is not the legacy
/// stream, whose own operations stand for others'. (What destroyed streams did that are forgotten is observed.)
pub(super) fn is_observed(order: &Order, clock: &Clock, me: StreamRef) -> bool {
    clock.entries().iter().all(|&(stream, seq)| stream == me || order.observed(&STREAMS, stream) >= seq)
}
