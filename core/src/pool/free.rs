//! Free: the hot path on the allocation's own stream, and everything else (`docs/placement.md` §5).

use super::alloc::{Locked, Missed, Record, admit, detach_any, settle_after};
use super::block::{
    BLOCKS, Block, FREE, GENERATION_LIMIT, HOST, LIVE, MULTI, NAMED, OBSERVED, RECENT, USERS, WHOLE, block, is_page,
    named, placed,
};
use super::caches::{Caches, PoolCache, Quick, STREAMS, StreamGuard, StreamState, list_room};
use super::merge::{beside_own_live, insert_merged};
use super::observer::Event;
use super::page::page;
use super::registry::POOLS;
use super::slow::Slow;
use super::state::{Kind, Pool, PoolShared, Sole};
use crate::error::{Error, Result, Status};
use crate::few::Few;
use crate::handle::{self, AllocationId, StreamId};
use crate::order::{At, Clock, Points, Stream, StreamRef};
use crate::rules;
use crate::runtime::{Act, native};
use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Frees a block in stream order (`cuMemFreeAsync`). Ordered after all work submitted to `stream` so far; `stream` may
/// be another than the allocation's, and must then be ordered after its uses by the caller.
///
/// # Errors
/// [`Status::Freed`] for a block freed before; bad handles; [`Status::WrongDevice`]. Nothing has changed then.
#[inline(always)]
pub fn free_async(allocation: AllocationId, stream: StreamId) -> Result<()> {
    free_quick(allocation, stream).or_else(|left| rest(left, allocation, stream))
}

/// The rest of [`free_async`], after [`free_quick`].
#[inline(always)]
fn rest(left: LeftFree, allocation: AllocationId, stream: StreamId) -> Result<()> {
    match left {
        LeftFree::Shared => free_shared(allocation, stream),
        LeftFree::Recent(record, locked, live) => recent_rest(record, locked, live, allocation),
        LeftFree::Page(record, locked, live) => page_rest(record, locked, live, allocation),
        LeftFree::Missed(missed) => free_rest(missed, allocation, stream),
    }
}

/// [`free_async`], after [`LeftFree::Shared`].
#[inline(never)]
fn free_shared(allocation: AllocationId, stream: StreamId) -> Result<()> {
    free_quick_shared(allocation, stream).or_else(|left| rest(left, allocation, stream))
}

/// [`free_missed`], once for all who call it seldom.
#[inline(never)]
fn free_rest(missed: Missed, allocation: AllocationId, stream: StreamId) -> Result<()> {
    free_missed(missed, allocation, stream)
}

/// [`free_recent`], the same.
#[inline(never)]
fn recent_rest(record: Record, locked: Locked, live: Live, allocation: AllocationId) -> Result<()> {
    free_recent(record, locked, live, allocation).or_else(|left| match left {
        LeftRecent::Emptied(locked, live) => {
            free_emptied(locked, live);
            Ok(())
        }
        LeftRecent::Missed(missed, stream) => free_missed(missed, allocation, stream),
    })
}

/// [`free_page`], the same.
#[inline(never)]
fn page_rest(record: Record, locked: Locked, live: Live, allocation: AllocationId) -> Result<()> {
    free_page(record, locked, live, allocation).or_else(|(missed, stream)| free_missed(missed, allocation, stream))
}

/// The record of the block that a call names.
pub struct Live(&'static Block);

/// How [`free_quick`] left a call that it did not serve.
pub enum LeftFree {
    /// The stream's lock is not biased to this thread, or it is taken. [`free_quick_shared`] goes on.
    Shared,
    /// All was ready, only that the block is not of the first entry. [`free_recent`] goes on.
    Recent(Record, Locked, Live),
    /// All was ready, only that the block is a whole page. [`free_page`] goes on.
    Page(Record, Locked, Live),
    /// [`free_missed`] goes on.
    Missed(Missed),
}

/// What most calls of [`free_async`] are: the block was allocated on the stream, and becomes a recent one of it in
/// the pool's first entry. Else the call goes on as [`LeftFree`] says.
#[inline(always)]
pub fn free_quick(allocation: AllocationId, stream: StreamId) -> std::result::Result<(), LeftFree> {
    quick_by(allocation, stream, |record| record.state.lock_biased())
}

/// The same after [`LeftFree::Shared`], which does not come again.
#[inline(always)]
pub fn free_quick_shared(allocation: AllocationId, stream: StreamId) -> std::result::Result<(), LeftFree> {
    quick_by(allocation, stream, |record| Some(record.state.lock_unbiased()))
}

/// Both, by how they `lock` the stream.
#[inline(always)]
fn quick_by(
    allocation: AllocationId,
    stream: StreamId,
    lock: impl FnOnce(&'static Stream<Caches>) -> Option<StreamGuard>,
) -> std::result::Result<(), LeftFree> {
    let Some(b) = BLOCKS.get(handle::slot(allocation.0)) else { return Err(LeftFree::Missed(Missed::UNLOCKED)) };
    match STREAMS.get_wrapped(handle::slot(stream.0)) {
        Some(record) if native::is_plain(stream) => match lock(record) {
            Some(guard) => quick(Quick::Yes, allocation, b, record, stream.0, guard),
            None => Err(LeftFree::Shared),
        },
        _ => Err(LeftFree::Missed(Missed::UNLOCKED)),
    }
}

/// How [`free_recent`] left a call.
pub enum LeftRecent {
    /// All is done, but that the block's page may be an empty one. [`free_emptied`] goes on.
    Emptied(Locked, Live),
    /// [`free_missed`] goes on.
    Missed(Missed, StreamId),
}

/// The rest of [`free_async`] where [`free_quick`] found the stream ready, and the block its own and of another entry than the
/// first: it becomes a recent one there. Else the call goes on as [`LeftRecent`] says.
#[inline(always)]
pub fn free_recent(
    record: Record,
    mut locked: Locked,
    Live(b): Live,
    allocation: AllocationId,
) -> std::result::Result<(), LeftRecent> {
    let state = &mut *locked.0;
    let me = state.me;
    let seq = state.submitted + 1;
    // (The lock has not been given up since it passed.)
    let (pool_slot, e) = placed(handle::slot(b.pass()));
    if let Some(Some(cache)) = state.attach.pools.get_mut(pool_slot)
        && cache.pool.is_open_to_ready()
        && let Some(may_be_empty) = cache.rest_recent(me, (allocation.0, b), e, seq)
    {
        state.push_next(record.0);
        return if may_be_empty { Err(LeftRecent::Emptied(locked, Live(b))) } else { Ok(()) };
    }
    let stream = StreamId(state.ready_key());
    Err(LeftRecent::Missed(Missed::at(locked.0), stream))
}

/// The end of [`free_recent`] where the block's page may be an empty one.
pub fn free_emptied(locked: Locked, Live(b): Live) {
    let home = page(b.page());
    let (pool_slot, e) = (home.pool.load(Relaxed), home.entry.load(Relaxed) as usize);
    if let Some(Some(cache)) = locked.0.attach.pools.get(pool_slot as usize) {
        super::release::emptied(&cache.pool, e, b, home);
    }
}

/// The rest of [`free_async`] where [`free_quick`] found the stream ready, and the block its own and a whole page. Without, the call
/// goes on with [`free_missed`].
#[inline(always)]
pub fn free_page(
    record: Record,
    mut locked: Locked,
    Live(b): Live,
    allocation: AllocationId,
) -> std::result::Result<(), (Missed, StreamId)> {
    let state = &mut *locked.0;
    let seq = state.submitted + 1;
    let (pool_slot, e) = placed(handle::slot(b.pass()));
    if let Some(Some(cache)) = state.attach.pools.get_mut(pool_slot)
        && cache.pool.is_open_to_ready()
        && cache.rest_page((allocation.0, b), e, seq)
    {
        state.push_next(record.0);
        return Ok(());
    }
    let stream = StreamId(state.ready_key());
    Err((Missed::at(locked.0), stream))
}

/// The rest of [`free_async`], after [`free_quick`].
///
/// # Errors
/// Those of [`free_async`].
#[inline(always)]
pub fn free_missed(missed: Missed, allocation: AllocationId, stream: StreamId) -> Result<()> {
    if !native::is_plain(stream) {
        drop(missed);
        return free_other(allocation, stream);
    }
    match (BLOCKS.get(handle::slot(allocation.0)), STREAMS.get(handle::slot(stream.0))) {
        (Some(b), Some(record)) if b.has(USERS) => {
            drop(missed);
            if free_used(allocation, b, record, stream.0).is_some() {
                return Ok(());
            }
        }
        (Some(b), Some(record)) => {
            if listed_or_fast(allocation, b, record, stream.0, missed.lock(record)).is_some()
                || across(allocation, b, record, stream.0).is_some()
            {
                return Ok(());
            }
        }
        _ => drop(missed),
    }
    free_slow(allocation, Some(stream), false)
}

/// Whether what `state`'s stream does now is seen at a glance to be ordered after an operation of `owner`, whose record is `other`.
#[inline(always)]
fn follows(state: &StreamState, owner: StreamRef, other: &Stream<Caches>, seq: u64) -> bool {
    state.clock.get(owner) >= seq || other.observed() >= seq
}

/// A free on another stream than the allocation's, which is ordered after it by what it has waited for: the block becomes a
/// recent one of that stream as by the quick way, only that it changes hands, for which the slow lock and both streams' are
/// needed. `None`: nothing was done.
#[inline(never)]
fn across(allocation: AllocationId, b: &'static Block, record: &'static Stream<Caches>, key: u64) -> Option<()> {
    // (Let go last: with the last of its references goes what locks streams.)
    let pool: Arc<Pool>;
    let mut guard = record.state.lock();
    pool = {
        let state = &*guard;
        let owner = b.stream();
        if !state.is_ready_for(key) || owner == state.me || matches!(owner, OBSERVED | MULTI | HOST) {
            return None;
        }
        let cache = state.attach.pools.get(b.passes(allocation.0)? as usize)?.as_ref()?;
        let order = &cache.pool.device.order;
        if order.opaque && order.may_follow_by_legacy(state, Some(owner)) {
            return None;
        }
        if !cache.rests_on_free() || b.size() > cache.entries.first.largest_recent {
            return None;
        }
        cache.pool.clone()
    };
    // (Who holds the slow lock may wait for the stream's.)
    let _slow = match pool.device.slow.try_lock() {
        Some(slow) => slow,
        None => {
            drop(guard);
            let slow = pool.device.slow.lock();
            guard = record.state.lock();
            slow
        }
    };
    // A large block that is handed over stays whole.
    let whole = pool.entries[0].stays_whole(b.size());
    {
        let own = &mut pool.shared.lock().entries[0];
        // Which streams have used the entry is known already.
        if !own.sole.is_several() {
            return None;
        }
        own.whole |= whole;
    }
    let state = &mut *guard;
    let owner = b.stream();
    if owner == state.me || matches!(owner, OBSERVED | MULTI | HOST) {
        return None;
    }
    let other = STREAMS.at(owner.slot());
    // (The slot of a stream that is forgotten may be another device's by now, whose lock is not ours to take.)
    if !other.is(pool.device.uid, owner) {
        return None;
    }
    let mut others = other.state.lock();
    // All of it once more, now that nothing changes.
    let ready = state.is_ready_for(key);
    let follows = follows(state, owner, other, b.seq());
    let Caches { pools, stock, .. } = &mut state.attach;
    let cache = &mut **pools.get_mut(pool.slot as usize)?.as_mut()?;
    if !ready
        || b.stream() != owner
        || b.passes(allocation.0) != Some(pool.slot)
        || cache.id != pool.id
        || !cache.rests_on_free()
        || b.size() > cache.entries.first.largest_recent
        || !follows
    {
        return None;
    }
    // The allocation took its bytes out of its own stream's room, which will take them again.
    let Some(Some(home)) =
        others.attach.pools.get_mut(pool.slot as usize).filter(|home| matches!(home, Some(home) if home.id == pool.id))
    else {
        return None;
    };
    let bytes = b.size();
    b.set_stream(state.me);
    cache.rest_across(state.me, (handle::slot(allocation.0), b), if whole { WHOLE } else { 0 }, stock);
    b.set_seq(state.push_next(record));
    if home.quick == Quick::Yes {
        home.ready += bytes;
    } else {
        home.give_room(&pool, 0, owner, bytes);
        home.make_ready();
    }
    Some(())
}

/// A free of a block with one added user, on whatever stream that is ordered after the allocation: of the first entry, where it
/// has as many points as are not observed. `None`: nothing was done.
#[inline(never)]
fn free_used(allocation: AllocationId, b: &'static Block, record: &'static Stream<Caches>, key: u64) -> Option<()> {
    let (index, generation) = handle::decode(handle::Kind::Allocation, allocation.0)?;
    let pool = {
        let state = record.state.lock();
        let home = page(b.page());
        if !state.is_ready_for(key) || home.device_uid.load(Relaxed) != state.device_uid {
            return None;
        }
        let cache = state.attach.pools.get(home.pool.load(Relaxed) as usize)?.as_ref()?;
        if !cache.rests_on_free() {
            return None;
        }
        cache.pool.clone()
    };
    let device = &*pool.device;
    let _slow = device.slow.lock();
    let mut shared = pool.shared.lock();
    let mut guard = record.state.lock();
    let state = &mut *guard;
    let (owner, user) = (b.stream(), b.sole_user()?);
    if matches!(owner, OBSERVED | MULTI | HOST) || device.order.opaque || rules::off(rules::USERS) {
        return None;
    }
    // (The slot of a stream that is forgotten may be another device's by now, whose lock is not ours to take.)
    let (other, used_by) = (STREAMS.at(owner.slot()), STREAMS.at(user.slot()));
    if !other.is(device.uid, owner) || !used_by.is(device.uid, user) {
        return None;
    }
    let mut others = (owner != state.me).then(|| other.state.lock());
    let used_upto = match &others {
        _ if user == state.me => 0,
        Some(others) if user == owner => others.submitted,
        _ => used_by.state.lock().submitted,
    };
    // All of it once more, now that nothing changes.
    let home = page(b.page());
    let bytes = b.size();
    if !state.is_ready_for(key)
        || b.stream() != owner
        || b.generation() != generation
        || b.flags() & (LIVE | USERS | NAMED) != LIVE | USERS
        || b.sole_user() != Some(user)
        || home.pool.load(Relaxed) != pool.slot
        || home.entry.load(Relaxed) != 0
        || !(owner == state.me || follows(state, owner, other, b.seq()))
        || pool.accesses.any()
    {
        return None;
    }
    let me = state.me;
    let Caches { pools, stock, .. } = &mut state.attach;
    let cache = &mut **pools.get_mut(pool.slot as usize)?.as_mut()?;
    if cache.id != pool.id || !cache.rests_on_free() || bytes > cache.entries.first.largest_recent {
        return None;
    }
    // The allocation took its bytes out of its own stream's room, which will take them again.
    let give_back = |home: &mut PoolCache| {
        if home.quick == Quick::Yes {
            home.ready += bytes;
        } else {
            home.give_room(&pool, 0, owner, bytes);
            home.make_ready();
        }
    };
    match &mut others {
        None => give_back(cache),
        Some(others) => match others.attach.pools.get_mut(pool.slot as usize) {
            Some(Some(home)) if home.id == pool.id => give_back(home),
            _ => return None,
        },
    }
    let own = &mut shared.entries[0];
    own.note_order(&pool, 0, None);
    let seq = state.submitted + 1;
    if used_upto <= used_by.observed() {
        // What it is by `across`.
        let whole = owner != me && pool.entries[0].stays_whole(bytes);
        own.whole |= whole;
        b.set_stream(me);
        cache.rest_across(me, (index, b), if whole { WHOLE } else { 0 }, stock);
        b.set_seq(seq);
    } else {
        let first = &mut cache.entries.first;
        first.requested -= b.requested() as i64;
        first.counts.frees += 1;
        b.set_flags(FREE);
        b.set_stream(MULTI);
        let mut points = [At { stream: user, seq: used_upto }, At { stream: me, seq }];
        if me < user {
            points.swap(0, 1);
        }
        shared.insert_multi(0, index, &points);
    }
    state.push_next(record);
    Some(())
}

/// The quick way in an entry that has a list of empty pages, then the whole hot path.
#[inline(always)]
fn listed_or_fast(
    allocation: AllocationId,
    b: &'static Block,
    record: &'static Stream<Caches>,
    key: u64,
    guard: StreamGuard,
) -> Option<()> {
    match quick(Quick::Lists, allocation, b, record, key, guard) {
        Ok(()) => Some(()),
        Err(LeftFree::Recent(_, Locked(guard), _) | LeftFree::Page(_, Locked(guard), _)) => {
            fast(allocation, b, record, key, guard)
        }
        Err(LeftFree::Missed(missed)) => fast(allocation, b, record, key, missed.lock(record)),
        Err(LeftFree::Shared) => None,
    }
}

/// Frees a block in host order (`cuMemFree`, without its synchronising): ordered after everything submitted to the
/// device so far. Errors as [`free_async`].
pub fn free(allocation: AllocationId) -> Result<()> {
    free_slow(allocation, None, false)
}

/// Frees a block whose every use is over, as the caller knows because it has synchronised with them: it is observed, and
/// reusable by anyone at once. Errors as [`free_async`].
pub fn free_observed(allocation: AllocationId) -> Result<()> {
    free_slow(allocation, None, true)
}

/// [`free_quick`] where it is this kind of quick. `key`: what the record says of itself while it is the stream the call named.
#[inline(always)]
fn quick(
    kind: Quick,
    allocation: AllocationId,
    b: &'static Block,
    record: &'static Stream<Caches>,
    key: u64,
    mut guard: StreamGuard,
) -> std::result::Result<(), LeftFree> {
    let state = &mut *guard;
    // With the stream equal to the locked one, the record cannot change under us. A stream has caches of its own device's
    // pools only, so one of the same name on another device finds none.
    if state.is_ready_for(key)
        && b.stream() == state.me
        && let Some(place) = b.passes(allocation.0)
    {
        match state.attach.pools.get_mut(place as usize) {
            Some(Some(cache)) => {
                let cache = &mut **cache;
                if cache.quick == kind
                    && let requested = b.requested() as i64
                    && !cache.may_pause_without(requested)
                    && cache.clear_front()
                {
                    cache.rest(b, allocation.0, requested);
                    if kind == Quick::Lists {
                        look_whether_empty(cache, b, state.me);
                    }
                    b.set_seq(state.push_next(record));
                    return Ok(());
                }
            }
            Some(None) => {}
            None => {
                let left = (Record(record), Locked(guard), Live(b));
                return Err(match is_page(place) {
                    true => LeftFree::Page(left.0, left.1, left.2),
                    false => LeftFree::Recent(left.0, left.1, left.2),
                });
            }
        }
    }
    Err(LeftFree::Missed(Missed::at(guard)))
}

/// A block of the first entry was freed: its page may be an empty one.
#[inline(never)]
fn look_whether_empty(cache: &PoolCache, b: &'static Block, me: StreamRef) {
    if !beside_own_live(b, me) {
        super::release::emptied(&cache.pool, 0, b, page(b.page()));
    }
}

/// Both ways on a stream's record.
#[inline(always)]
fn hot(allocation: AllocationId, b: &'static Block, record: &'static Stream<Caches>, key: u64) -> Option<()> {
    match quick(Quick::Yes, allocation, b, record, key, record.state.lock()) {
        Ok(()) => Some(()),
        Err(LeftFree::Shared) => None,
        Err(LeftFree::Recent(_, locked, live)) => match free_recent(Record(record), locked, live, allocation) {
            Ok(()) => Some(()),
            Err(LeftRecent::Emptied(locked, live)) => {
                free_emptied(locked, live);
                Some(())
            }
            Err(LeftRecent::Missed(missed, _)) => fast(allocation, b, record, key, missed.lock(record)),
        },
        Err(LeftFree::Page(_, locked, live)) => match free_page(Record(record), locked, live, allocation) {
            Ok(()) => Some(()),
            Err((missed, _)) => fast(allocation, b, record, key, missed.lock(record)),
        },
        Err(LeftFree::Missed(missed)) => listed_or_fast(allocation, b, record, key, missed.lock(record)),
    }
}

/// The hot path on a default stream, and where a CUDA device has been opened in the process: there as for an allocation, and
/// an event is recorded if the stream is wanted.
#[inline(never)]
fn free_other(allocation: AllocationId, stream: StreamId) -> Result<()> {
    native::refuse_forked()?;
    let known = handle::decode(handle::Kind::Allocation, allocation.0).and_then(|(index, generation)| {
        let b = BLOCKS.get(index)?;
        if !b.has(LIVE) || b.generation() != generation {
            return None;
        }
        let home = page(b.page());
        let pool_slot = home.pool.load(Relaxed);
        Some((b, home.legacy.load(Relaxed), pool_slot, POOLS.native(pool_slot)))
    });
    let Some((b, legacy, pool_slot, facts)) = known else { return free_slow(allocation, Some(stream), false) };
    let Some(facts) = facts else {
        return match native::of_model(stream, legacy).and_then(|(record, key)| hot(allocation, b, record, key)) {
            Some(()) => Ok(()),
            None => free_slow(allocation, Some(stream), false),
        };
    };
    if let Some((record, key)) = facts.stream(pool_slot, stream)?
        && hot(allocation, b, record, key).is_some()
    {
        if record.watch.load(Relaxed) != 0 {
            facts.after_call(pool_slot, stream, true);
        }
        return Ok(());
    }
    free_slow(allocation, Some(stream), false)
}

/// The whole hot path on a stream's record, which is locked.
#[inline(always)]
fn fast(
    allocation: AllocationId,
    b: &'static Block,
    record: &'static Stream<Caches>,
    key: u64,
    mut guard: StreamGuard,
) -> Option<()> {
    let (index, generation) = handle::decode(handle::Kind::Allocation, allocation.0)?;
    let state = &mut *guard;
    if state.handle != key {
        return None;
    }
    let me = state.me;
    // With the stream equal to the locked one, the record cannot change under us.
    let size_flags = b.size_flags();
    if b.stream() != me || b.generation() != generation || size_flags & (LIVE | USERS | NAMED) != LIVE {
        return None;
    }
    let home = page(b.page());
    if home.device_uid.load(Relaxed) != state.device_uid {
        return None;
    }
    let pool_slot = home.pool.load(Relaxed);
    let e = home.entry.load(Relaxed) as usize;
    let cache = state.attach.pools.get_mut(pool_slot as usize)?.as_mut()?;
    let pool = &*cache.pool;
    if !pool.is_open()
        || pool.accesses.any()
        || cache.entries.get_mut(e)?.slow_free
        || generation >= GENERATION_LIMIT
        || rules::off(rules::MERGE)
        || !(state.is_ready_for(key) || admit(state, pool_slot))
    {
        return None;
    }
    let Caches { pools, stock, .. } = &mut state.attach;
    let cache = &mut **pools.get_mut(pool_slot as usize)?.as_mut()?;
    let bytes = b.size();
    cache.retire_fronts();
    let PoolCache { pool, room, entries, .. } = &mut *cache;
    let cached = entries.get_mut(e)?;
    cached.requested -= b.requested() as i64;
    cached.counts.frees += 1;
    b.set_seq(state.submitted + 1);
    b.set_pass(0);
    if bytes <= cached.largest_recent {
        cached.keep_recent(pool, e, me, (index, b), 0, stock);
    } else if cached.largest_recent > 0 {
        cached.pass_over(pool, e, me, (index, b), stock);
    } else {
        b.set_flags(FREE);
        cached.bins_to_fill(pool, e, me).insert_out_of_line(index, b);
    }
    if cached.lists_empty && !(cached.largest_recent > 0 && beside_own_live(b, me)) {
        super::release::emptied(pool, e, b, home);
    }
    cached.room.bytes += bytes;
    room.bytes += bytes;
    if !(cached.room.listed & room.listed) {
        list_room(pool, e, &mut cached.room, me.slot());
        list_room(pool, pool.entries.len(), room, me.slot());
    }
    let pausing = cached.requested == 0;
    cache.mind_most();
    cache.make_ready();
    let pausing = (pausing && cache.may_pause(e)).then(|| cache.pool.clone());
    state.push_one(record);
    match state.waiters.is_empty() {
        true => drop(guard),
        false => settle_after(guard, pool_slot),
    }
    if let Some(pool) = pausing {
        pause(&mut Slow::lock(&pool.device), &pool, e, me);
    }
    Some(())
}

/// A free on `stream` has left nothing live in a Mapped entry, perhaps: then all that is free merges, and the chunks go home
/// (`docs/placement.md` §5).
fn pause(slow: &mut Slow<'_>, pool: &Arc<Pool>, e: usize, stream: StreamRef) {
    let left = &pool.entry_tally[e].pauses;
    // Between the free and the slow lock the pool and the stream may have gone, and others be in their slots.
    if pool.destroyed.load(Relaxed) || left.load(Relaxed) == 0 || !STREAMS.at(stream.slot()).is(pool.device.uid, stream)
    {
        return;
    }
    let mut shared = pool.shared.lock();
    if shared.entries[e].sole != Sole::One(stream)
        || !slow.cache(stream.slot(), pool).may_pause(e)
        || slow.used(&mut shared, pool, e) > 0
    {
        return;
    }
    // Between the two a synchronise may have observed the free: then the chunks have gone home, and no point is left to be given.
    let at = At { stream, seq: slow.state(stream.slot()).submitted };
    if pool.device.order.observed(&STREAMS, stream) >= at.seq {
        return;
    }
    left.fetch_sub(1, Relaxed);
    slow.settle(stream, pool, e);
    slow.cache(stream.slot(), pool).entries[e].passed_over = 0;
    super::mapped::note_pause(slow, &mut shared, pool, e);
    let mut observed = Vec::new();
    shared.entries[e].observed.each(|index| observed.push(index));
    for &index in &observed {
        detach_any(slow, &mut shared, pool, e, index);
        block(index).set_flags(0);
    }
    for &index in &observed {
        block(index).set_flags(FREE);
        place(slow, &mut shared, pool, e, index, &[at]);
    }
    super::mapped::go_home(slow, &mut shared, pool, e, Some(stream));
}

/// The live block a handle names, with its domain locked.
pub(crate) fn lock_live(slow: &mut Slow<'_>, allocation: AllocationId) -> Result<u32> {
    let named = named(allocation)?;
    let b = named.record;
    loop {
        let owner = b.stream();
        // (The slot of a stream that is forgotten may be another device's by now, whose lock is not ours to take.)
        let is_stream = !matches!(owner, OBSERVED | MULTI | HOST);
        if is_stream && STREAMS.at(owner.slot()).is(slow.device.uid, owner) {
            slow.state(owner.slot());
        }
        named.judge_live()?;
        if b.stream() == owner {
            return Ok(named.index);
        }
    }
}

/// The pool of a live allocation, without locks; to be checked again under them.
pub(crate) fn pool_of(allocation: AllocationId) -> Result<Arc<Pool>> {
    native::refuse_forked()?;
    let named = named(allocation)?;
    named.judge_live()?;
    let pool = POOLS.by_slot(page(named.record.page()).pool.load(Relaxed));
    named.judge_live()?;
    pool.ok_or_else(|| handle::gone(handle::Kind::Allocation, allocation.0))
}

fn free_slow(allocation: AllocationId, stream: Option<StreamId>, observed: bool) -> Result<()> {
    let pool = pool_of(allocation)?;
    let device = &*pool.device;
    let stream = match stream {
        Some(stream) => Some(crate::runtime::resolve_stream(&pool.device, stream)?),
        None => None,
    };
    if let (Some(cuda), Some(stream)) = (device.cuda(), stream)
        && cuda.poison().is_none()
        && device.capture_check
        && !pool.config.waive_capture_check
    {
        native::refuse_capturing(cuda, native::raw(device, stream)?)?;
    }
    if pool.shadow.is_some() {
        return super::driver::free(&pool, allocation, stream, || free_placed(&pool, allocation, stream, observed));
    }
    free_placed(&pool, allocation, stream, observed)
}

fn free_placed(pool: &Arc<Pool>, allocation: AllocationId, stream: Option<StreamRef>, observed: bool) -> Result<()> {
    let device = &*pool.device;
    let opaque = device.order.opaque;
    let _serial = device.enter();
    // Where others' work is not seen, a host-ordered free is an operation of the device's timeline, after which one event
    // says that all of it has run. Where no event can say that, the device is synchronised.
    let timeline = match stream {
        None if observed => None,
        None if opaque && device.options.context_events => Some(native::timeline(&pool.device)?),
        None if opaque => {
            if device.cuda().is_some_and(|cuda| cuda.poison().is_none()) {
                crate::runtime::synchronize_device(device, &mut Act::Do, true)?;
            }
            None
        }
        _ => None,
    };
    let racing = {
        let mut slow = Slow::lock(device);
        let index = lock_live(&mut slow, allocation)?;
        let b = block(index);
        if let Some(stream) = stream {
            slow.live(stream)?;
        }
        // A trace that another thread starts begins another one.
        if timeline.is_some_and(|timeline| slow.live(timeline).is_err()) {
            drop(slow);
            return free_placed(pool, allocation, stream, observed);
        }
        device.tell(&Event::Free { allocation, address: b.address(), stream: stream.map(StreamRef::id), observed });
        let home = page(b.page());
        let e = home.entry.load(Relaxed) as usize;
        let mut shared = pool.shared.lock();
        let mut users: Few<StreamRef, 2> = Few::default();
        if b.has(USERS) {
            match b.sole_user() {
                Some(user) => users.push(user),
                None => users = pool.users.lock().remove(&index).unwrap_or_default(),
            }
            if observed {
                users.clear();
            }
            users.retain(|user| !rules::off(rules::USERS) && STREAMS.at(user.slot()).is(device.uid, user));
        }
        // Whether the free follows its allocation, and the accesses that were noted.
        let ready = At { stream: b.stream(), seq: b.seq() };
        let mut unordered = false;
        let mut unfollowed: Vec<At> = Vec::new();
        // Where others' work is not seen, an order that is not known may hold all the same: nothing is reported.
        let plainly = ready.stream == HOST
            || Some(ready.stream) == stream
            || stream.is_some_and(|stream| slow.state(stream.slot()).clock.get(ready.stream) >= ready.seq)
            || device.order.observed(&STREAMS, ready.stream) >= ready.seq;
        if let Some(stream) = stream
            && !opaque
            && (!plainly || pool.accesses.any())
        {
            let clock = device.order.now(&STREAMS, slow.state(stream.slot())).clock;
            let follows = |slow: &mut Slow<'_>, point: StreamRef, clock: &Clock, at: At| {
                at.stream == point
                    || device.order.observed(&STREAMS, at.stream) >= at.seq
                    || !STREAMS.at(at.stream.slot()).is(device.uid, at.stream)
                    || slow.state(at.stream.slot()).covered_by(clock) >= at.seq
            };
            // Work submitted now to the legacy stream would be a barrier: it follows all blocking streams and what they do.
            let barrier_follows = |slow: &mut Slow<'_>, at: At| {
                stream == device.order.legacy && {
                    let members: Vec<StreamRef> = device.order.streams.lock().iter().copied().collect();
                    !slow.state(at.stream.slot()).non_blocking
                        || members.into_iter().any(|member| {
                            let state = slow.state(member.slot());
                            !state.non_blocking && state.clock.get(at.stream) >= at.seq
                        })
                }
            };
            let freed_after =
                |slow: &mut Slow<'_>, at: At| follows(slow, stream, &clock, at) || barrier_follows(slow, at);
            unordered = ready.stream != HOST && !freed_after(&mut slow, ready);
            if pool.accesses.any() {
                unfollowed = pool.accesses.points(index);
                unfollowed.retain(|&at| !freed_after(&mut slow, at));
                // The memory is not used again before any user's point, so what one of them follows is followed.
                for &user in users.iter() {
                    let state = slow.state(user.slot());
                    let clock = match state.is_legacy() {
                        true => state.clock.join(&Clock::default(), &[(user, state.submitted)], |_| 0),
                        false => state.clock.clone(),
                    };
                    unfollowed.retain(|&at| !follows(&mut slow, user, &clock, at));
                }
            }
        }
        let mut points: Few<At, 4> = Few::default();
        for &user in users.iter() {
            let state = slow.state(user.slot());
            // Where others' work is not seen, what the user has been given since its last call here must be covered too:
            // its point is an operation of its own, which only what its next call records comes after.
            // A stream that is gone ended with one.
            let seq = match opaque && stream != Some(user) && !state.released {
                true => device.order.mark(&STREAMS, state),
                false => state.submitted,
            };
            if opaque {
                native::want(user);
            }
            points.push(At { stream: user, seq });
        }
        if b.has(NAMED) {
            pool.names.lock().remove(&index);
        }
        match stream {
            Some(stream) => {
                let state = slow.state(stream.slot());
                let (seq, unseen) = device.order.submit_unseen(&STREAMS, state);
                // The block may have been used on others that this one follows only once it is given something.
                let of = (ready.stream != HOST).then_some(ready.stream);
                let by_legacy = opaque && of != Some(stream) && device.order.may_follow_by_legacy(state, of);
                if unseen || by_legacy {
                    native::note_unbacked(stream);
                }
                points.push(At { stream, seq });
            }
            None if observed => {}
            None if opaque => {
                if let Some(timeline) = timeline {
                    let state = slow.state(timeline.slot());
                    let seq = device.order.submit(&STREAMS, state, 1, Points::default(), None);
                    points.push(At { stream: timeline, seq });
                }
            }
            None => {
                let streams: Few<StreamRef, 8> = device.order.streams.lock().iter().copied().collect();
                for &stream in streams.iter() {
                    points.push(At { stream, seq: slow.state(stream.slot()).submitted });
                }
            }
        }
        points.retain(|at| device.order.observed(&STREAMS, at.stream) < at.seq);
        if points.len() > 1 {
            points.sort_unstable_by_key(|at| (at.stream, Reverse(at.seq)));
            points.dedup_by_key(|at| at.stream);
        }
        let (bytes, requested) = (b.size(), b.requested());
        // A block that was handed over stays whole: what its stream is given later must not delay whoever waits for it.
        let stays_whole = pool.entries[e].stays_whole(bytes)
            && matches!(*points, [_])
            && stream.is_some_and(|stream| b.stream() != HOST && b.stream() != stream);
        let whole = if stays_whole { WHOLE } else { 0 };
        let sole = if b.has(USERS) { None } else { stream };
        shared.entries[e].note_order(pool, e, sole);
        // The allocation took its bytes out of its own stream's room, which will take them again.
        let owner = Some(b.stream()).filter(|owner| *owner != HOST && STREAMS.at(owner.slot()).is(device.uid, *owner));
        let counts = match stream {
            Some(stream) => {
                let owner = owner.unwrap_or(stream);
                slow.cache(owner.slot(), pool).give_room(pool, e, owner, bytes);
                let cache = slow.cache(stream.slot(), pool);
                cache.entries[e].requested -= requested as i64;
                &mut cache.entries[e].counts
            }
            None => {
                shared.give_room(pool, e, bytes);
                shared.entries[e].counts.requested -= requested as i64;
                &mut shared.entries[e].counts
            }
        };
        counts.frees += 1;
        counts.unordered_frees += u64::from(unordered);
        let own =
            stream.filter(|&stream| pool.entries[e].keeps_recent() && matches!(*points, [at] if at.stream == stream));
        let recent = own.filter(|_| bytes <= pool.entry_tally[e].largest_recent.load(Relaxed));
        if let (Some(stream), None) = (own, recent) {
            let passed_over = &mut slow.cache(stream.slot(), pool).entries[e].passed_over;
            *passed_over = passed_over.saturating_add(1);
        }
        // Not to be merged with when others make way.
        b.set_flags(whole | if recent.is_some() { FREE | RECENT } else { FREE });
        shared.entries[e].whole |= stays_whole;
        b.set_pass(0);
        super::release::emptied(pool, e, b, home);
        let (low, high, slot) = (b.addr(), b.end(), b.page());
        match (recent, &*points) {
            (Some(stream), &[at]) => {
                b.set_stream(stream);
                b.set_seq(at.seq);
                let (cache, stock) = slow.cache_and_stock(stream.slot(), pool);
                cache.entries[e].keep_recent(pool, e, stream, (index, b), whole, stock);
            }
            _ => place(&mut slow, &mut shared, pool, e, index, &points),
        }
        if pool.entries[e].slow_free {
            super::mapped::note_idle(&mut shared, pool, e, slot, low, high);
        }
        let racing = pool.accesses.forget(index, &unfollowed);
        drop(shared);
        if let Some(stream) = stream {
            // What the stream does next may go the quick way again.
            slow.cache(stream.slot(), pool).make_ready();
            pause(&mut slow, pool, e, stream);
        }
        if pool.destroyed.load(Relaxed) {
            super::release::bury(&mut slow, pool);
        }
        if unordered {
            crate::log::emit(crate::log::Level::Warning, || {
                format!("free of {allocation:?} on a stream that is not ordered after its allocation")
            });
        }
        racing
    };
    if let Some(message) = racing {
        crate::log::emit(crate::log::Level::Warning, || message);
    }
    if let Some(stream) = stream {
        device.order.settle(&STREAMS, stream);
        native::after_call(&pool.device, stream, true);
    }
    if let Some(timeline) = timeline {
        native::record(device, timeline, true);
    }
    if pool.destroyed.load(Relaxed) {
        crate::runtime::drain_if_orphaned(device);
    }
    Ok(())
}

/// Puts a free block (flags set, in no structure) where its points say, merging as the rules allow.
pub(crate) fn place(
    slow: &mut Slow<'_>,
    shared: &mut PoolShared,
    pool: &Arc<Pool>,
    e: usize,
    index: u32,
    points: &[At],
) {
    let carves = pool.entries[e].carves() && !rules::off(rules::MERGE);
    let b = block(index);
    match points {
        [] => {
            b.drop_flag(WHOLE);
            b.set_stream(OBSERVED);
            b.set_seq(0);
            let PoolShared { entries, stock, .. } = shared;
            let own = &mut entries[e];
            if carves {
                let unused = (pool.entries[e].kind == Kind::Cuda).then_some(&mut own.unused);
                own.counts.merges += insert_merged(index, b, OBSERVED, &mut own.observed, unused, stock);
            } else {
                own.observed.insert_noted(index);
            }
        }
        &[At { stream, seq }] => {
            // Locked before the block is its own: it merges with what is its own without a look into its bins.
            let cache = &mut slow.cache(stream.slot(), pool).entries[e];
            b.set_stream(stream);
            b.set_seq(seq);
            cache.whole |= b.has(WHOLE);
            let bins = cache.bins_to_fill(pool, e, stream);
            if carves && !b.has(WHOLE) {
                cache.counts.merges += insert_merged(index, b, stream, bins, None, &mut shared.stock);
            } else {
                bins.insert_noted(index);
            }
        }
        _ => {
            b.set_stream(MULTI);
            b.set_seq(0);
            shared.insert_multi(e, index, points);
        }
    }
}

/// Names a further user of the block (`cudaMemPool` has no such call; PyTorch's `record_stream` is the model): the block
/// is reusable only after what `stream` has submitted by the time of the free.
pub fn add_user(allocation: AllocationId, stream: StreamId) -> Result<()> {
    match add_first_user(allocation, stream) {
        Some(()) => Ok(()),
        None => add_any_user(allocation, stream),
    }
}

/// The same for a block that has no other user, where nobody looks on. `None`: nothing was done.
#[inline(always)]
fn add_first_user(allocation: AllocationId, stream: StreamId) -> Option<()> {
    if !native::is_plain(stream) {
        return None;
    }
    let (index, generation) = handle::decode(handle::Kind::Allocation, allocation.0)?;
    let b = BLOCKS.get(index)?;
    let (user, uid) = {
        let state = STREAMS.get_wrapped(handle::slot(stream.0))?.state.lock();
        (state.is_ready_for(stream.0) && !state.opaque).then_some((state.me, state.device_uid))?
    };
    let owner = b.stream();
    if matches!(owner, OBSERVED | MULTI | HOST) {
        return None;
    }
    // The lock of the block's domain; it has no other while it says so.
    let state = STREAMS.at(owner.slot()).state.lock();
    let domain = state.me == owner
        && state.device_uid == uid
        && state.ready_key() != 0
        && b.stream() == owner
        // (A stream of another device may have the same name, in a slot that was given up there.)
        && page(b.page()).device_uid.load(Relaxed) == uid;
    if !domain || b.generation() != generation || b.flags() & (LIVE | USERS) != LIVE || !b.set_sole_user(user) {
        return None;
    }
    b.add_flag(USERS);
    Some(())
}

#[inline(never)]
fn add_any_user(allocation: AllocationId, stream: StreamId) -> Result<()> {
    let pool = pool_of(allocation)?;
    if pool.shadow.is_some() {
        return Err(Error::new(
            Status::NotSupported,
            "a block of a driver pool has no added users: the driver reuses it after its free, whatever else uses it",
        ));
    }
    let stream = crate::runtime::resolve_stream(&pool.device, stream)?;
    let _serial = pool.device.enter();
    let mut slow = Slow::lock(&pool.device);
    let index = lock_live(&mut slow, allocation)?;
    let b = block(index);
    pool.device.tell(&Event::AddUser { allocation, address: b.address(), stream: stream.id() });
    if b.sole_user() == Some(stream) {
        return Ok(());
    }
    let mut users = pool.users.lock();
    let list = users.entry(index).or_default();
    // What has more than one is in the table.
    list.extend(b.sole_user());
    if !list.contains(&stream) {
        list.push(stream);
    }
    b.add_flag(USERS);
    b.set_pass(0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::registry::POOLS;
    use super::super::release;
    use super::{MULTI, STREAMS, Slow, named};
    use crate::device::{self, ModelOptions};
    use crate::order::At;
    use crate::pool::{self, MemoryPoolConfig, PoolConfig};
    use crate::{StreamId, handle, order, stream};
    use std::thread;
    use std::time::{Duration, Instant};

    /// It would merge with a block that is its own and in none of its bins yet.
    #[test]
    fn a_block_becomes_a_streams_own_only_while_the_stream_is_locked() {
        for config in [
            MemoryPoolConfig::Sliced {
                page_size: 1 << 21,
                max_slice_size: None,
                max_pool_size: None,
                dealloc_period: None,
            },
            MemoryPoolConfig::Mapped {
                range_size: 1 << 30,
                chunk_size: 1 << 21,
                max_pool_size: None,
                dealloc_period: None,
            },
        ] {
            let device = device::open_model(&ModelOptions { lazy: true, ..Default::default() }).unwrap();
            let pool = pool::create(device, &PoolConfig::with_entries(vec![config])).unwrap();
            let [first, second] = [(); 2].map(|()| stream::create(device, Default::default()).unwrap());
            stream::submit(device, second, 1).unwrap();
            let block = pool::alloc_async(pool, 4096, first).unwrap();
            pool::add_user(block, second).unwrap();
            pool::free_async(block, first).unwrap();
            let b = named(block).unwrap().record;
            assert_eq!(b.stream(), MULTI);
            // The first stream's point goes, so that the block becomes the second's: who synchronises waits for its lock.
            let kept = STREAMS.at(handle::slot(second.0)).state.lock();
            let synchronizing = thread::spawn(move || stream::synchronize(device, first).unwrap());
            let until = Instant::now() + Duration::from_millis(100);
            while Instant::now() < until {
                assert_eq!(b.stream(), MULTI);
                thread::yield_now();
            }
            let me = kept.me;
            drop(kept);
            synchronizing.join().unwrap();
            assert_eq!(b.stream(), me);
            pool::check_invariants(pool).unwrap();
        }
    }

    /// What waits for a free on the legacy stream that came after the barrier's number is not what the barrier waits for.
    #[test]
    fn a_barrier_does_not_wait_for_what_waits_for_it() {
        const PAGE: u64 = 1 << 21;
        let device = device::open_model(&ModelOptions { lazy: true, ..Default::default() }).unwrap();
        let config = MemoryPoolConfig::Sliced {
            page_size: PAGE,
            max_slice_size: None,
            max_pool_size: Some(PAGE),
            dealloc_period: None,
        };
        let pool = pool::create(device, &PoolConfig::with_entries(vec![config])).unwrap();
        let legacy = StreamId(order::LEGACY);
        let [first, second] = [(); 2].map(|()| stream::create(device, Default::default()).unwrap());
        let block = pool::alloc_async(pool, PAGE, legacy).unwrap();
        for own in [first, second] {
            stream::submit(device, own, 1).unwrap();
        }
        // The barrier has its number, and is held up before it comes to the second stream.
        let kept = STREAMS.at(handle::slot(first.0)).state.lock();
        let before = stream::info(device, legacy).unwrap().submitted;
        let submitting = thread::spawn(move || stream::submit(device, legacy, 1).unwrap());
        while stream::info(device, legacy).unwrap().submitted == before {
            thread::yield_now();
        }
        pool::free_async(block, legacy).unwrap();
        let waiting = pool::alloc_async(pool, PAGE, second).unwrap();
        assert_eq!(pool::info(waiting).unwrap().reason, pool::Reason::Internal);
        drop(kept);
        submitting.join().unwrap();
        for own in [first, second, legacy, second] {
            stream::advance(device, own, 100).unwrap();
        }
        let info = stream::info(device, second).unwrap();
        assert_eq!(info.executed, info.submitted);
        // The next barrier comes after it.
        stream::submit(device, legacy, 1).unwrap();
        device::synchronize(device).unwrap();
        pool::check_invariants(pool).unwrap();
    }

    #[test]
    fn what_another_thread_synchronised_with_meanwhile_does_not_pause() {
        const CHUNK: u64 = 1 << 21;
        let device = device::open_model(&ModelOptions::default()).unwrap();
        let config = MemoryPoolConfig::Mapped {
            range_size: 1 << 30,
            chunk_size: CHUNK,
            max_pool_size: None,
            dealloc_period: None,
        };
        let pool = pool::create(device, &PoolConfig::with_entries(vec![config])).unwrap();
        let one = stream::create(device, Default::default()).unwrap();
        let both = || [(); 2].map(|()| pool::alloc_async(pool, 2 * CHUNK, one).unwrap());
        both().into_iter().for_each(|block| pool::free_async(block, one).unwrap());
        // As in a tight entry: neither is to become recent.
        let resolved = POOLS.resolve(pool).unwrap();
        Slow::lock(&resolved.device).set_largest_recent(&resolved, 0, CHUNK);
        let blocks = both();
        let record = STREAMS.at(handle::slot(one.0));
        let (me, submitted) = {
            let state = record.state.lock();
            (state.me, state.submitted)
        };
        // The last free has done all but its pause when another thread is through with a synchronise.
        let mut slow = Slow::lock(&resolved.device);
        let freeing = thread::spawn(move || blocks.into_iter().for_each(|block| pool::free_async(block, one).unwrap()));
        while record.state.lock().submitted < submitted + 2 {
            thread::yield_now();
        }
        release::observe(&mut slow, &[At { stream: me, seq: submitted + 2 }]);
        drop(slow);
        freeing.join().unwrap();
        pool::check_invariants(pool).unwrap();
        stream::destroy(one).unwrap();
        pool::trim_to(pool, 0).unwrap();
        assert_eq!(pool::stats(pool).unwrap().reserved, 0);
    }
}
