//! The short way to what all may use: an allocation that its stream's own blocks do not serve, and, in a Mapped entry, none of
//! those that precede it (`docs/placement.md` §6, step 2).
//!
//! It needs the slow lock, but little of what the slow path does: nobody's blocks are looked at but the stream's own and the
//! observed ones. It waits for no lock, as it holds the stream's: where one is taken, or more is to be looked at, the slow path
//! begins anew.

use super::Reason;
use super::alloc::round_up;
use super::bins::Upto;
use super::block::{GENERATION_LIMIT, NIL, UNUSED, live_flags, pass};
use super::classes::class_of;
use super::state::{Caches, EntryCache, Kind, Pool, PoolCache, STREAMS, cut_lifted, widen_both};
use crate::handle::{self, AllocationId, PoolId};
use crate::order::{Clock, Stream};
use crate::rules;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

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
    if cache.id != pool || !cache.pool.is_open() || cache.pool.shadow.is_some() {
        return None;
    }
    let e = cache.entries.accepting(size)?;
    let need = round_up(size, cache.unit);
    if !cache.entries[e].carves {
        return None;
    }
    let after = match cache.pool.entries[e].kind == Kind::Mapped && cache.pool.follows() {
        true => ordered_after(&state.clock, &cache.pool, e),
        false => After::Observed,
    };
    if after == After::Holders || has_own(cache, e, need) {
        return None;
    }
    let pool: Arc<Pool> = cache.pool.clone();
    let _slow = pool.device.slow.try_lock()?;
    let mut shared = pool.shared.try_lock()?;
    let shared = &mut *shared;
    let own = &mut shared.entries[e];
    if after == After::Others && own.multi.count > 0 {
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
    let cached = &mut cache.entries[e];
    cached.room.bytes -= need;
    cached.requested += size as i64;
    cached.counts.reuse[reason as usize] += 1;
    let place = cached.passes(need).then_some(cached.place);
    cache.room.bytes -= need;
    cache.make_ready();
    let allocs = &cache.share.allocs;
    allocs.store(allocs.load(Relaxed) + 1, Relaxed);
    let generation = b.generation() + 1;
    let allocation = handle::encode(handle::Kind::Allocation, generation, index);
    b.set_generation(generation);
    b.set_requested(size);
    b.set_pass(place.map_or(0, |place| pass(allocation, place)));
    b.set_flags(live_flags(reason as u64, 0));
    b.set_stream(me);
    b.set_seq(state.push_next(record));
    Some(AllocationId(allocation))
}

/// Whether the stream has a block of its own that may serve, or is to merge first.
fn has_own(cache: &PoolCache, e: usize, need: u64) -> bool {
    let own = &cache.entries[e];
    let fits = || own.bins.as_ref().is_some_and(|bins| bins.best(need, Upto::Any) != NIL);
    !cache.has_no_front() || own.recents() > 0 || fits()
}

/// What a stream is ordered after.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    /// Of other streams nothing that the host has not observed.
    Observed,
    /// More, but of none that holds free blocks of the entry.
    Others,
    /// Of one that may hold some as well.
    Holders,
}

/// What comes after `clock`. (Blocks that are freed meanwhile need not be seen.)
fn ordered_after(clock: &Clock, pool: &Pool, e: usize) -> After {
    let mut after = After::Observed;
    for &(stream, seq) in clock.entries() {
        let other = STREAMS.at(stream.slot());
        if other.observed() >= seq {
            continue;
        }
        // (With a barrier comes what any stream had submitted. Who is not on the list need not be locked.)
        if stream.ordinal() == 0 || pool.published[e].lock().contains(&stream) && may_hold(other, pool, e) {
            return After::Holders;
        }
        after = After::Others;
    }
    after
}

/// Whether a stream has free blocks of the entry, as far as can be seen now.
fn may_hold(stream: &Stream<Caches>, pool: &Pool, e: usize) -> bool {
    let Some(mut state) = stream.state.try_lock() else { return true };
    let Some(Some(cache)) = state.attach.pools.get_mut(pool.slot as usize) else { return false };
    let own = &cache.entries[e];
    cache.id == pool.id
        && (!cache.has_no_front() || own.recents() > 0 || own.bins.as_ref().is_some_and(|bins| bins.count > 0))
}
