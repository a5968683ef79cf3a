//! Allocation: the hot path on a stream's own frees, and everything else in the order of `docs/placement.md` §6–§8.

use super::bins::{Bins, Upto};
use super::block::{
    Block, GENERATION_LIMIT, HOST, MULTI, NAMED, NIL, OBSERVED, RECENT, Stock, UNUSED, WHOLE, block, live_flags, pass,
    place,
};
use super::caches::{Caches, EntryCache, PoolCache, Room, STREAMS, StreamGuard, StreamState, widen_both};
use super::classes::class_of;
use super::config::MAX_PAGE;
use super::front::Front;
use super::merge::cut;
use super::observed::{self, is_observed};
use super::observer::{AllocDone, Event};
use super::page::{self, page};
use super::registry::POOLS;
use super::slow::Slow;
use super::state::{Kind, Pool, PoolShared};
use super::{AllocOptions, OutOfMemory, Reason};
use crate::device_source::PageSource;
use crate::device_source::cuda::Code;
use crate::error::{Error, Result, Status};
use crate::few::Few;
use crate::handle::{self, AllocationId, PoolId, StreamId};
use crate::order::{At, Clock, Progress, Stream, StreamRef};
use crate::rules;
use crate::runtime::{Act, native};
use crate::slab::SlotMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// How many streams one allocation asks the device about.
pub(super) const MAX_QUESTIONS: usize = 8;
/// How often an allocation lets threads run that keep streams locked, before it waits for them with its own locks held.
const MAX_YIELDS: u32 = 8;
/// How often the out-of-memory callback may ask for another try.
const MAX_CALLBACKS: u32 = 16;
/// Whole blocks come back from streams with at most so many own blocks in the entry, as all of these are looked at for them.
const MOST_LOOKED_AT: u64 = 256;

/// Allocates `size` bytes in stream order (`cuMemAllocFromPoolAsync`).
///
/// The block is usable by work submitted to `stream` from now on. Any `size` from 0 up; 0 gives a distinct block of one
/// alignment unit.
///
/// # Errors
/// Bad handles; [`Status::WrongDevice`]; [`Status::SizeNotAccepted`]; [`Status::OutOfMemory`];
/// [`Status::CapacityExceeded`]. No block has changed then, and the stream has no new operation.
#[inline(always)]
pub fn alloc_async(pool: PoolId, size: u64, stream: StreamId) -> Result<AllocationId> {
    alloc_quick(pool, size, stream).or_else(|left| rest(left, pool, size, stream))
}

/// The rest of [`alloc_async`], after [`alloc_quick`].
#[inline(always)]
fn rest(left: Left, pool: PoolId, size: u64, stream: StreamId) -> Result<AllocationId> {
    match left {
        Left::Shared => alloc_shared(pool, size, stream),
        Left::ToCarve(record, locked) => carve_rest(record, locked, pool, size),
        Left::Elsewhere(record, locked) => elsewhere_rest(record, locked, pool, size),
        Left::Missed(missed) => alloc_rest(missed, pool, size, stream),
    }
}

/// [`alloc_async`], after [`Left::Shared`].
#[inline(never)]
fn alloc_shared(pool: PoolId, size: u64, stream: StreamId) -> Result<AllocationId> {
    alloc_quick_shared(pool, size, stream).or_else(|left| rest(left, pool, size, stream))
}

/// [`alloc_missed`], once for all who call it seldom.
#[inline(never)]
fn alloc_rest(missed: Missed, pool: PoolId, size: u64, stream: StreamId) -> Result<AllocationId> {
    alloc_missed(missed, pool, size, stream)
}

/// [`carve`], the same.
#[inline(never)]
fn carve_rest(record: Record, locked: Locked, pool: PoolId, size: u64) -> Result<AllocationId> {
    carve(record, locked, pool, size).or_else(|(missed, stream)| alloc_missed(missed, pool, size, stream))
}

/// [`alloc_recent`], the same.
#[inline(never)]
fn elsewhere_rest(record: Record, locked: Locked, pool: PoolId, size: u64) -> Result<AllocationId> {
    alloc_recent(record, locked, pool, size)
        .or_else(|(record, locked)| alloc_elsewhere(record, locked, pool, size))
        .or_else(|(missed, stream)| alloc_missed(missed, pool, size, stream))
}

/// The stream as a call that did not go the quick way left it: locked or not. Nothing has changed.
pub struct Missed(Option<StreamGuard>);

impl Missed {
    /// The stream's lock.
    #[inline(always)]
    pub(super) fn lock(self, record: &'static Stream<Caches>) -> StreamGuard {
        self.0.unwrap_or_else(|| record.state.lock())
    }
    #[inline(always)]
    pub(super) fn at(guard: StreamGuard) -> Missed {
        Missed(Some(guard))
    }
    pub(super) const UNLOCKED: Missed = Missed(None);
}

/// How [`alloc_quick`] left a call that it did not serve.
pub enum Left {
    /// The stream's lock is not biased to this thread, or it is taken. [`alloc_quick_shared`] goes on.
    Shared,
    /// All was ready but perhaps the room, only that no recent block is just so large. [`carve`] goes on.
    ToCarve(Record, Locked),
    /// All was ready, only that the size is not for the first entry, or that it has no recent blocks. [`alloc_recent`] goes on.
    Elsewhere(Record, Locked),
    /// [`alloc_missed`] goes on.
    Missed(Missed),
}

/// The stream's record.
pub struct Record(pub(super) &'static Stream<Caches>);
/// The stream's lock.
pub struct Locked(pub(super) StreamGuard);

/// What most calls of [`alloc_async`] are: a recent block of the stream in the first entry serves, with *ready* room. Else the
/// call goes on as [`Left`] says.
#[inline(always)]
pub fn alloc_quick(pool: PoolId, size: u64, stream: StreamId) -> std::result::Result<AllocationId, Left> {
    quick_by(pool, size, stream, |record| record.state.lock_biased())
}

/// The same after [`Left::Shared`], which does not come again.
#[inline(always)]
pub fn alloc_quick_shared(pool: PoolId, size: u64, stream: StreamId) -> std::result::Result<AllocationId, Left> {
    quick_by(pool, size, stream, |record| Some(record.state.lock_unbiased()))
}

/// Both, by how they `lock` the stream.
#[inline(always)]
fn quick_by(
    pool: PoolId,
    size: u64,
    stream: StreamId,
    lock: impl FnOnce(&'static Stream<Caches>) -> Option<StreamGuard>,
) -> std::result::Result<AllocationId, Left> {
    match STREAMS.get_wrapped(handle::slot(stream.0)) {
        Some(record) if native::is_plain(stream) => match lock(record) {
            Some(guard) => quick(pool, size, record, stream.0, guard),
            None => Err(Left::Shared),
        },
        _ => Err(Left::Missed(Missed::UNLOCKED)),
    }
}

/// `key`: what the record says of itself while it is the stream the call named.
#[inline(always)]
fn quick(
    pool: PoolId,
    size: u64,
    record: &'static Stream<Caches>,
    key: u64,
    mut guard: StreamGuard,
) -> std::result::Result<AllocationId, Left> {
    let state = &mut *guard;
    let pool_slot = handle::slot(pool.0);
    if state.is_ready_for(key)
        && !rules::off(rules::SAME_STREAM)
        && let Some(Some(cache)) = state.attach.pools.get_mut(pool_slot as usize)
        && let cache = &mut **cache
        && cache.id == pool
    {
        if let Some((b, bytes, allocation)) = cache.front.exact(size, cache.unit) {
            if Front::is_beyond(allocation) {
                return Err(Left::Missed(Missed::at(guard)));
            }
            cache.front.clear();
            cache.serve(b, allocation, bytes, size, pool_slot);
            b.set_seq(state.push_next(record));
            return Ok(AllocationId(allocation));
        }
        let first = &mut cache.entries.first;
        let mask = cache.unit - 1;
        if size <= first.bound
        // 0 stays 0: no block has that size.
            && let need = (size + mask) & !mask
            && let Some(recents) = &mut first.recents
        {
            if need <= cache.ready
                && let Some((index, b, generation)) = recents.take_first(need)
            {
                let allocation = handle::encode(handle::Kind::Allocation, generation + 1, index);
                cache.ready -= need;
                cache.serve(b, allocation, need, size, pool_slot);
                b.set_seq(state.push_next(record));
                return Ok(AllocationId(allocation));
            }
            if need > 0 {
                return Err(Left::ToCarve(Record(record), Locked(guard)));
            }
        }
        return Err(Left::Elsewhere(Record(record), Locked(guard)));
    }
    Err(Left::Missed(Missed::at(guard)))
}

/// The rest of [`alloc_async`] where [`alloc_quick`] found all ready: another of the stream's own blocks in the first entry, cut
/// if it is larger. Without, the call goes on with [`alloc_missed`].
#[inline(always)]
pub fn carve(
    record: Record,
    mut locked: Locked,
    pool: PoolId,
    size: u64,
) -> std::result::Result<AllocationId, (Missed, StreamId)> {
    let state = &mut *locked.0;
    let pool_slot = handle::slot(pool.0);
    let me = state.me;
    let Caches { pools, stock, .. } = &mut state.attach;
    if let Some(Some(cache)) = pools.get_mut(pool_slot as usize)
        && let cache = &mut **cache
        && let need = round_up(size, cache.unit)
        && cache.has_ready(need)
        && let Some((index, b, generation)) = cache.carve_ready(need, me, stock)
    {
        let allocation = handle::encode(handle::Kind::Allocation, generation, index);
        cache.ready -= need;
        cache.serve_carved(b, allocation, need, size, pool_slot);
        b.set_seq(state.push_next(record.0));
        return Ok(AllocationId(allocation));
    }
    let stream = StreamId(state.ready_key());
    Err((Missed::at(locked.0), stream))
}

/// The rest of [`alloc_async`] where [`alloc_quick`] found the stream ready and another entry than the first is to serve, or one whose
/// blocks are whole pages (elsewhere.rs): the block that was freed last there, or last of its class. Without, the call goes
/// on with [`alloc_elsewhere`].
#[inline(always)]
pub fn alloc_recent(
    record: Record,
    mut locked: Locked,
    pool: PoolId,
    size: u64,
) -> std::result::Result<AllocationId, (Record, Locked)> {
    let state = &mut *locked.0;
    if let Some(Some(cache)) = state.attach.pools.get_mut(handle::slot(pool.0) as usize)
        && cache.pool.is_open_to_ready()
        && let Some((allocation, b)) = cache.serve_recent(size)
    {
        b.set_seq(state.push_next(record.0));
        return Ok(AllocationId(allocation));
    }
    Err((record, locked))
}

/// The same with any of the stream's own blocks there, with room that the stream has. Without, the call goes on with
/// [`alloc_missed`].
#[inline(always)]
pub fn alloc_elsewhere(
    record: Record,
    mut locked: Locked,
    pool: PoolId,
    size: u64,
) -> std::result::Result<AllocationId, (Missed, StreamId)> {
    let state = &mut *locked.0;
    let me = state.me;
    let Caches { pools, stock, .. } = &mut state.attach;
    if let Some(Some(cache)) = pools.get_mut(handle::slot(pool.0) as usize)
        && cache.pool.is_open_to_ready()
        && let Some((allocation, b)) = cache.serve_elsewhere(size, me, stock)
    {
        b.set_seq(state.push_next(record.0));
        return Ok(AllocationId(allocation));
    }
    let stream = StreamId(state.ready_key());
    Err((Missed::at(locked.0), stream))
}

/// The rest of [`alloc_async`], after [`alloc_quick`]: the stream's other frees, then everything else.
///
/// # Errors
/// Those of [`alloc_async`].
#[inline(always)]
pub fn alloc_missed(missed: Missed, pool: PoolId, size: u64, stream: StreamId) -> Result<AllocationId> {
    if !native::is_plain(stream) {
        drop(missed);
        return alloc_other(pool, size, stream);
    }
    match STREAMS.get(handle::slot(stream.0)) {
        Some(record) => {
            let done = fast(pool, size, record, stream.0, missed.lock(record));
            if let Some(done) = done.or_else(|| observed::serve(pool, size, record, stream.0)) {
                return Ok(done);
            }
        }
        None => drop(missed),
    }
    alloc_slow(pool, size, stream, &AllocOptions::default())
}

/// Both ways on a stream's record.
#[inline(always)]
fn hot(pool: PoolId, size: u64, record: &'static Stream<Caches>, key: u64) -> Option<AllocationId> {
    match quick(pool, size, record, key, record.state.lock()) {
        Ok(done) => Some(done),
        Err(Left::Shared) => None,
        Err(Left::ToCarve(_, Locked(guard))) => fast(pool, size, record, key, guard),
        Err(Left::Elsewhere(record, locked)) => hot_elsewhere(pool, size, record, key, locked),
        Err(Left::Missed(missed)) => fast(pool, size, record, key, missed.lock(record)),
    }
}

/// The same where the quick way's next goes on.
#[inline(never)]
fn hot_elsewhere(pool: PoolId, size: u64, record: Record, key: u64, locked: Locked) -> Option<AllocationId> {
    let stream = record.0;
    alloc_recent(record, locked, pool, size)
        .or_else(|(record, locked)| alloc_elsewhere(record, locked, pool, size))
        .map_or_else(|(missed, _)| fast(pool, size, stream, key, missed.lock(stream)), Some)
}

/// Where a CUDA device has been opened in the process, and on a default stream.
#[inline(never)]
fn alloc_other(pool: PoolId, size: u64, stream: StreamId) -> Result<AllocationId> {
    match hot_other(pool, size, stream)? {
        Some(done) => Ok(done),
        None => alloc_slow(pool, size, stream, &AllocOptions::default()),
    }
}

/// The hot path there. On a CUDA device the driver is asked whether the stream is capturing, and an event recorded if one is owed;
/// nothing else is.
#[inline(never)]
fn hot_other(pool: PoolId, size: u64, stream: StreamId) -> Result<Option<AllocationId>> {
    native::refuse_forked()?;
    let facts = handle::decode(handle::Kind::Pool, pool.0).and_then(|(slot, _)| Some((slot, POOLS.native(slot)?)));
    let Some((pool_slot, facts)) = facts else {
        let named = POOLS.legacy(pool).and_then(|legacy| native::of_model(stream, legacy));
        return Ok(named.and_then(|(record, key)| hot(pool, size, record, key)));
    };
    if let Some((record, key)) = facts.stream(pool_slot, stream)?
        && let Some(done) = hot(pool, size, record, key).or_else(|| observed::serve(pool, size, record, key))
    {
        if record.watch.load(Relaxed) & native::OWES != 0 {
            facts.after_call(pool_slot, stream, false);
        }
        return Ok(Some(done));
    }
    Ok(None)
}

/// The whole hot path on a stream's record, which is locked: its own free blocks, one operation. `None`: the slow path
/// decides, errors included.
#[inline(always)]
fn fast(
    pool: PoolId,
    size: u64,
    record: &'static Stream<Caches>,
    key: u64,
    mut guard: StreamGuard,
) -> Option<AllocationId> {
    let state = &mut *guard;
    let pool_slot = handle::slot(pool.0);
    let me = state.me;
    // What most come here for: the first entry, with room that is *ready*.
    if state.is_ready_for(key)
        && !rules::off(rules::SAME_STREAM)
        && let Caches { pools, stock, .. } = &mut state.attach
        && let Some(Some(cache)) = pools.get_mut(pool_slot as usize)
        && let cache = &mut **cache
        && cache.id == pool
        && size <= cache.entries.first.bound
    {
        cache.retire_front();
        let need = round_up(size, cache.unit);
        if need <= cache.ready {
            let (index, b, generation) = cache.carve_ready_rest(need, me, stock)?;
            let allocation = handle::encode(handle::Kind::Allocation, generation, index);
            cache.ready -= need;
            cache.serve_carved(b, allocation, need, size, pool_slot);
            b.set_seq(state.push_next(record));
            return Some(AllocationId(allocation));
        }
    }
    fast_in_any(pool, size, record, key, guard)
}

/// `size` bytes, at least one, in whole units; not above what an entry may serve.
#[inline(always)]
pub(super) fn round_up(size: u64, unit: u64) -> u64 {
    let mask = unit - 1;
    (size.max(1) + mask) & !mask
}

/// [`admit`], with the stream being the one that the call names with `key`, and the pool one that it has used.
#[cold]
#[inline(never)]
fn admit_key(state: &mut StreamState, pool: PoolId, key: u64) -> bool {
    let pool_slot = handle::slot(pool.0);
    let used = matches!(state.attach.pools.get(pool_slot as usize), Some(Some(cache)) if cache.id == pool);
    state.handle == key && used && admit(state, pool_slot)
}

/// The hot path where more is to be looked at: another entry, the stream's order, room that is not ready.
#[inline(never)]
fn fast_in_any(
    pool: PoolId,
    size: u64,
    record: &'static Stream<Caches>,
    key: u64,
    mut guard: StreamGuard,
) -> Option<AllocationId> {
    let state = &mut *guard;
    let pool_slot = handle::slot(pool.0);
    if !state.is_ready_for(key) && !admit_key(state, pool, key) {
        return None;
    }
    let me = state.me;
    let Caches { pools, stock, .. } = &mut state.attach;
    let cache = &mut **pools.get_mut(pool_slot as usize)?.as_mut()?;
    if cache.id != pool || rules::off(rules::SAME_STREAM) || !cache.pool.is_open() {
        return None;
    }
    let e = cache.entries.accepting(size)?;
    let (index, b, bytes) = own_block(cache, e, round_up(size, cache.unit), me, stock)?;
    let allocation = cache.serve_found(e, (index, b), bytes, size, Reason::SameStream);
    let seq = state.push_one(record);
    b.set_seq(seq);
    if !state.waiters.is_empty() {
        settle_after(guard, pool_slot);
    }
    Some(AllocationId(allocation))
}

/// Whether the stream may submit an operation that depends on nothing, as far as its order goes.
#[cold]
#[inline(never)]
pub(super) fn admit(state: &mut StreamState, pool_slot: u32) -> bool {
    match state.attach.pools.get(pool_slot as usize) {
        Some(Some(cache)) => {
            let pool = cache.pool.clone();
            pool.device.order.admit(&STREAMS, state)
        }
        _ => false,
    }
}

/// Takes the stream's own block for `need` bytes out of its structure, cuts it, and makes room for its bytes: (index,
/// record, bytes).
#[inline(always)]
fn own_block(
    cache: &mut PoolCache,
    e: usize,
    need: u64,
    me: StreamRef,
    stock: &mut Stock,
) -> Option<(u32, &'static Block, u64)> {
    // So that the room is what it says.
    cache.count_ready();
    cache.retire_kept();
    let PoolCache { pool, room, entries, .. } = cache;
    let cached = entries.get_mut(e)?;
    // The record can have another handle, and there is room for the block's bytes.
    let mut ready = |own_room: &mut Room, b: &Block, bytes: u64| {
        b.generation() < GENERATION_LIMIT
            && (own_room.bytes >= bytes && room.bytes >= bytes || widen_both(pool, e, own_room, room, me.slot(), bytes))
    };
    if cached.carves {
        let (index, b) = cached.carve_own(need, me, stock, |own_room, b| ready(own_room, b, need))?;
        return Some((index, b, need));
    }
    let bins = cached.bins.as_mut()?;
    let c = class_of(need);
    let (index, b) = if cached.exact { bins.take_exact(c, need) } else { bins.take_best(c, need) }?;
    let bytes = b.size();
    if !ready(&mut cached.room, b, bytes) {
        bins.insert_record(index, b);
        return None;
    }
    Some((index, b, bytes))
}

/// Runs on what waited for this stream, with the stream unlocked.
#[cold]
#[inline(never)]
pub(super) fn settle_after(guard: StreamGuard, pool_slot: u32) {
    let device = guard.attach.pools.get(pool_slot as usize).and_then(|c| c.as_ref()).map(|c| c.pool.device.clone());
    let me = guard.me;
    drop(guard);
    if let Some(device) = device {
        device.order.settle(&STREAMS, me);
    }
}

/// As [`alloc_async`], with a larger alignment or a name.
///
/// # Errors
/// As [`alloc_async`]; [`Status::InvalidValue`] for a bad alignment.
pub fn alloc_async_with(pool: PoolId, size: u64, stream: StreamId, options: &AllocOptions<'_>) -> Result<AllocationId> {
    // What the options ask for, every block has.
    if options.name.is_none() && (options.alignment == 0 || POOLS.aligns(pool, options.alignment)) {
        let done = match native::is_plain(stream) {
            true => STREAMS.get(handle::slot(stream.0)).and_then(|record| hot(pool, size, record, stream.0)),
            false => hot_other(pool, size, stream)?,
        };
        if let Some(done) = done {
            return Ok(done);
        }
    }
    alloc_slow(pool, size, stream, options)
}

/// What no quick way served.
#[inline(never)]
fn alloc_slow(pool: PoolId, size: u64, stream: StreamId, options: &AllocOptions<'_>) -> Result<AllocationId> {
    let pool = POOLS.resolve(pool)?;
    let device = &pool.device;
    let me = crate::runtime::resolve_stream(device, stream)?;
    if let Some(cuda) = device.sound_cuda()?
        && device.capture_check
        && !pool.config.waive_capture_check
    {
        native::refuse_capturing(cuda, native::raw(device, me)?)?;
    }
    let done = super::driver::allocate(&pool, size, Some(me), options, || allocate(&pool, size, Some(me), options));
    native::after_call(device, me, false);
    done
}

/// Allocates in host order (`cuMemAlloc`): the block is usable at once from any stream, so it only reuses what the host
/// has observed to be free.
///
/// # Errors
/// As [`alloc_async`]; a *cuda* pool refuses size 0 with [`Status::InvalidValue`], as `cuMemAlloc` does.
pub fn alloc(pool: PoolId, size: u64, options: &AllocOptions<'_>) -> Result<AllocationId> {
    let pool = POOLS.resolve(pool)?;
    if size == 0 && pool.is_cuda() {
        return Err(Error::new(Status::InvalidValue, "size: a cuda pool gives no zero-sized block in host order"));
    }
    pool.device.sound_cuda()?;
    super::driver::allocate(&pool, size, None, options, || allocate(&pool, size, None, options))
}

/// What a device lacks that has memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lack {
    /// Model addresses.
    Addresses,
    /// Addresses of the driver's.
    DriverAddresses,
    /// Nothing: the request is too large for a Mapped entry.
    Chunks,
}

impl Lack {
    fn help(self) -> &'static str {
        match self {
            Lack::Addresses => {
                "too few of the device's 2^52 bytes of addresses are left: each mapped entry holds ranges (range_size, 64 GiB if not \
                 said). Destroy pools, or make them with a smaller range_size"
            }
            Lack::DriverAddresses => {
                "the device refused addresses: each mapped entry holds ranges (range_size, 64 GiB if not said). Destroy pools, or \
                 make them with a smaller range_size"
            }
            Lack::Chunks => {
                "a mapped entry serves 2^20 chunks and 2^47 bytes at once: another entry, or a larger chunk_size, may serve it"
            }
        }
    }
}

/// One allocation's state across its attempts.
pub(super) struct Request<'a> {
    pub(super) pool: &'a Arc<Pool>,
    pub(super) size: u64,
    pub(super) need: u64,
    pub(super) align_log2: u32,
    pub(super) stream: Option<StreamRef>,
    pub(super) name: Option<&'a str>,
    /// What the device has answered about a stream, at most [`MAX_QUESTIONS`] times.
    pub(super) answers: Few<(StreamRef, u64), MAX_QUESTIONS>,
    pub(super) asked: usize,
    /// Streams that had been destroyed when they were asked about, with the answers.
    ended: Few<At, MAX_QUESTIONS>,
    pub(super) refused: bool,
    /// The driver's code, if a refusal was not for want of memory.
    pub(super) refusal: u32,
    /// What the device lacked at the last refusal, if it was not memory.
    pub(super) lack: Option<Lack>,
    /// A question that only the driver can answer, with no lock held; the search begins again with the answer.
    pub(super) must_ask: Option<StreamRef>,
    /// How often the thread let others run, since they kept streams locked and the other streams had nothing.
    pub(super) yields: u32,
    /// The entry that was to grow before policy 2, and did not.
    pub(super) grown: Option<usize>,
    /// The entry that was searched last, and how many pages it had been granted.
    pub(super) searched: (usize, u64),
    /// Policy 3: how far each stream could be waited for, as answered in this call.
    pub(super) waitable: SlotMap<StreamRef, u64>,
}

/// How policy 3 prefers: fewest waits, smallest, oldest free, lowest address.
pub(super) type Rank = (usize, u64, u64, u64);

/// A block that was found, taken out of its structure, and cut to size.
pub(super) struct Found {
    pub(super) index: u32,
    pub(super) entry: usize,
    pub(super) reason: Reason,
}

fn allocate(
    pool: &Arc<Pool>,
    size: u64,
    stream: Option<StreamRef>,
    options: &AllocOptions<'_>,
) -> Result<AllocationId> {
    let device = &pool.device;
    // (While a callback runs, its pool stands aside.)
    if pool.aside.load(Relaxed) != 0 && device.in_callback.lock().contains(&(std::thread::current().id(), pool.id)) {
        return Err(Error::new(
            Status::NotPermitted,
            "an out-of-memory callback may free, trim or synchronise its pool, but not allocate from it",
        ));
    }
    let unit = device.options.alignment;
    let alignment = if options.alignment == 0 { unit } else { options.alignment };
    if !alignment.is_power_of_two() {
        return Err(Error::new(Status::InvalidValue, format_args!("alignment: {alignment} is not a power of two")));
    }
    if alignment > device.options.page_granularity {
        return Err(Error::new(
            Status::InvalidValue,
            format_args!(
                "alignment: {alignment} is above the device's page granularity ({})",
                device.options.page_granularity
            ),
        ));
    }
    let _serial = device.enter();
    device.tell(&Event::AllocBegin {
        pool: pool.id,
        size,
        alignment: options.alignment,
        stream: stream.map(StreamRef::id),
        name: options.name,
    });
    let result = allocate_checked(pool, size, alignment.max(unit), stream, options.name);
    if result.is_err() {
        pool.tally.failures.fetch_add(1, Relaxed);
    }
    device.tell(&Event::AllocEnd {
        pool: pool.id,
        result: match &result {
            Ok(done) => Ok(*done),
            Err(error) => Err(error.status),
        },
    });
    if let Some(stream) = stream {
        device.order.settle(&STREAMS, stream);
    }
    result.map(|done| done.allocation)
}

fn allocate_checked(
    pool: &Arc<Pool>,
    size: u64,
    alignment: u64,
    stream: Option<StreamRef>,
    name: Option<&str>,
) -> Result<AllocDone> {
    let unit = pool.device.options.alignment;
    let need = size
        .max(1)
        .checked_next_multiple_of(unit)
        .and_then(|need| need.checked_add(alignment - unit))
        .filter(|&need| need <= MAX_PAGE);
    if !pool.entries.iter().any(|entry| entry.accepts(size, need.unwrap_or(0))) {
        if pool.is_cuda() {
            return Err(Error::new(Status::OutOfMemory, format_args!("{size} bytes are more than the pool can hold")));
        }
        let most = pool.entries.iter().map(|entry| entry.accept).max().unwrap_or(0);
        let why = match need {
            Some(need) if size <= most => format!("aligned to {alignment} it may take {need}"),
            _ => format!("the largest has {most}"),
        };
        return Err(Error::new(
            Status::SizeNotAccepted,
            format_args!("no entry of the pool accepts a request of {size} bytes: {why}"),
        ));
    }
    let Some(need) = need else {
        return Err(Error::new(
            Status::OutOfMemory,
            format_args!("{size} bytes are more than any device can hold (2^47)"),
        ));
    };
    let mut request = Request {
        pool,
        size,
        need,
        align_log2: if alignment > unit { alignment.trailing_zeros() } else { 0 },
        stream,
        name,
        answers: Few::default(),
        asked: 0,
        ended: Few::default(),
        refused: false,
        refusal: 0,
        lack: None,
        must_ask: None,
        yields: 0,
        grown: None,
        searched: (usize::MAX, 0),
        waitable: SlotMap::default(),
    };
    let done = request.run()?;
    if !request.ended.is_empty() {
        super::release::forget_executed(&mut Slow::lock(&pool.device), &request.ended);
    }
    Ok(done)
}

impl Request<'_> {
    fn run(&mut self) -> Result<AllocDone> {
        let device = &*self.pool.device;
        let mut synced = false;
        let mut callbacks = 0;
        'again: loop {
            self.answers.clear();
            self.waitable.clear();
            self.asked = 0;
            self.grown = None;
            self.lack = None;
            let (pool, size, need) = (self.pool, self.size, self.need);
            let accepting = || (0..pool.entries.len()).filter(|&e| pool.entries[e].accepts(size, need));
            for entry in accepting() {
                if let Some(done) = self.reuse(entry)? {
                    return Ok(done);
                }
                if let Some(done) = self.fresh_page(entry)? {
                    return Ok(done);
                }
            }
            if self.refused && !rules::off(rules::OOM_RELEASE) {
                let mut gave_back = false;
                native::poll_all(device);
                {
                    let mut slow = Slow::lock(device);
                    let others: Vec<Arc<Pool>> =
                        device.pools.lock().iter().filter(|other| other.id != self.pool.id).cloned().collect();
                    for pool in std::iter::once(self.pool).chain(&others) {
                        gave_back |= super::release::release_all(&mut slow, pool) > 0;
                        if pool.destroyed.load(Relaxed) {
                            super::release::forget_if_empty(&mut slow, pool);
                        }
                    }
                }
                if gave_back {
                    for entry in accepting() {
                        if let Some(done) = self.fresh_page(entry)? {
                            return Ok(done);
                        }
                    }
                }
            }
            if self.stream.is_some() && self.pool.internal.load(Relaxed) && !rules::off(rules::POLICY3) {
                for entry in accepting() {
                    if let Some(done) = self.internal(entry)? {
                        return Ok(done);
                    }
                }
            }
            if self.pool.config.sync_on_oom && !synced {
                synced = true;
                self.pool.tally.host_syncs.fetch_add(1, Relaxed);
                // A driver that refuses has changed nothing, and the next try says so.
                let _ = crate::runtime::synchronize_device(device, &mut Act::Do, false);
                continue 'again;
            }
            let callback = self.pool.callback.lock().clone();
            if let Some(callback) = callback
                && callbacks < MAX_CALLBACKS
            {
                callbacks += 1;
                device.tell(&Event::CallbackBegin { pool: self.pool.id });
                let me = (std::thread::current().id(), self.pool.id);
                device.in_callback.lock().push(me);
                self.pool.step_aside(&mut Slow::lock(device));
                let retry = callback(&self.describe());
                self.pool.step_back();
                device.in_callback.lock().retain(|other| *other != me);
                device.tell(&Event::CallbackEnd { pool: self.pool.id, retry });
                if retry {
                    continue 'again;
                }
            }
            let what = self.describe();
            let what = what.sentence(self.lack.map(Lack::help), device.options.page_granularity);
            if let Some(cuda) = device.cuda()
                && self.refusal != 0
            {
                let mut error = cuda.error("asking the driver for a page", Code(self.refusal));
                error.message = format!("{}; {what}", error.message);
                return Err(error);
            }
            let (status, headline) = if self.refused || self.pool.is_cuda() {
                (Status::OutOfMemory, "out of memory")
            } else {
                (Status::CapacityExceeded, "capacity exceeded: only the caps of the pool's entries are in the way")
            };
            return Err(Error::new(status, format_args!("{headline}: {what}")));
        }
    }

    fn describe(&self) -> OutOfMemory {
        let stats = super::stats::of_pool(self.pool);
        let (device_free, device_total) = self.pool.device.source.memory();
        OutOfMemory {
            pool: self.pool.id,
            asked: self.size,
            used: stats.used,
            reserved: stats.reserved,
            pending_bytes: stats.pending_bytes,
            largest_free: stats.largest_free,
            device_free,
            device_total,
        }
    }

    /// The stream's state and clock, with stream and pool still good: a callback or another thread may have destroyed
    /// either.
    pub(super) fn now(&self, slow: &mut Slow<'_>) -> Result<Clock> {
        if self.pool.destroyed.load(Relaxed) {
            return Err(handle::gone(handle::Kind::Pool, self.pool.id.0));
        }
        let Some(stream) = self.stream else { return Ok(Clock::default()) };
        let order = &slow.device.order;
        Ok(order.now(&STREAMS, slow.live(stream)?).clock)
    }

    /// Steps 1 to 6 for one entry.
    pub(super) fn reuse(&mut self, e: usize) -> Result<Option<AllocDone>> {
        let pool = self.pool;
        let device = &*pool.device;
        let entry = &pool.entries[e];
        let exact = entry.kind == Kind::Direct;
        let need = self.need;
        let fit = |bins: &Bins, upto: Upto| if exact { bins.exact(need, upto) } else { bins.best(need, upto) };
        let mut slow = Slow::lock(device);
        self.searched = (e, pool.entry_tally[e].page_allocs.load(Relaxed));
        let clock = self.now(&mut slow)?;
        if let Some(stream) = self.stream
            && self.yields < MAX_YIELDS
            && !slow.gather_room(pool, e, stream, need)
        {
            return self.let_others_run(slow, e);
        }
        let mut shared = pool.shared.lock();
        // 1. The stream's own frees.
        if let Some(stream) = self.stream
            && !rules::off(rules::SAME_STREAM)
        {
            let (cache, stock) = slow.cache_and_stock(stream.slot(), pool);
            let index = cache.entries[e].take_own(need, stream, stock);
            if index != NIL {
                return self.commit(&mut slow, &mut shared, Found { index, entry: e, reason: Reason::SameStream });
            }
        }
        // 2. Observed frees; of a Mapped entry after step 3, where that may find something.
        let mapped = entry.kind == Kind::Mapped;
        let others_first = mapped
            && pool.follows()
            && self
                .stream
                .is_some_and(|me| slow.state(me.slot()).is_legacy() || !is_observed(&device.order, &clock, me));
        if !others_first && let Some(found) = take_observed(&mut shared, e, &fit) {
            return self.commit(&mut slow, &mut shared, found);
        }
        // Streams that another thread keeps locked are waited for only if the others have nothing; always where an observer is
        // to see what calls in its order do, and where all calls on the device were one thread's: what others have locked is a
        // record that was, or is named as, a stream of theirs.
        let wait = self.yields >= MAX_YIELDS || device.serial.load(Relaxed) || slow.is_alone();
        // (When blocks come back, only the list of streams changes: the others have less then, and all together as much.)
        let mut held = slow.holders_of(pool, e, need, wait);
        let holders = &mut held.streams;
        let kept = held.kept;
        let free_bytes = shared.entries[e].free_bytes() + held.bytes;
        let broken = |rule: &str| rules::off(rule) && device.cuda().is_some();
        if broken(rules::CUDA_SAME_STREAM) {
            for &holder in holders.iter() {
                let bins = slow.bins(holder, pool, e);
                let index = fit(bins, Upto::Any);
                if index != NIL {
                    bins.remove(index);
                    return self.commit(&mut slow, &mut shared, Found { index, entry: e, reason: Reason::SameStream });
                }
            }
        }
        let follow = pool.follows();
        if let Some(me) = self.stream {
            // 3. Policy 1. A clock without entries covers nothing of another stream.
            if follow && !clock.entries().is_empty() {
                if mapped
                    && let Some(emptied) = self.come_back(&mut slow, &mut shared, e, me, (&held.whole, kept), &clock)
                {
                    let (cache, stock) = slow.cache_and_stock(me.slot(), pool);
                    let index = cache.entries[e].take_own(need, me, stock);
                    if index != NIL {
                        let found = Found { index, entry: e, reason: Reason::Event };
                        return self.commit(&mut slow, &mut shared, found);
                    }
                    // The stream has some now.
                    if !emptied.is_empty() {
                        holders.retain(|holder| !emptied.contains(&holder));
                    }
                    if let Err(at) = holders.binary_search(&me) {
                        holders.insert(at, me);
                    }
                }
                let mut best: Option<(u64, u64, u32, Option<StreamRef>)> = None;
                for &holder in held.fitting.iter().filter(|&&holder| holder != me) {
                    let state = slow.state(holder.slot());
                    let Some(bins) = state.attach.bins(pool, e) else { continue };
                    let upto = match state.covered_by(&clock) {
                        0 => continue,
                        _ if broken(rules::CUDA_EVENT) => u64::MAX,
                        upto => upto,
                    };
                    consider(&mut best, fit(bins, Upto::Seq(upto)), Some(holder));
                }
                for index in multis(&shared, e, need, exact) {
                    let served = shared.points[&index]
                        .iter()
                        .all(|&at| at.stream == me || slow.state(at.stream.slot()).covered_by(&clock) >= at.seq);
                    if served {
                        consider(&mut best, index, None);
                        break;
                    }
                }
                if let Some((.., index, holder)) = best {
                    self.detach(&mut slow, &mut shared, e, index, holder);
                    return self.commit(&mut slow, &mut shared, Found { index, entry: e, reason: Reason::Event });
                }
            }
        }
        if others_first && let Some(found) = take_observed(&mut shared, e, &fit) {
            return self.commit(&mut slow, &mut shared, found);
        }
        if let Some(me) = self.stream {
            // 4. Policy 2, if the entry does not grow first.
            if pool.opportunistic.load(Relaxed) && !rules::off(rules::POLICY2) {
                let others = kept || holders.iter().any(|&holder| holder != me) || shared.entries[e].multi.count > 0;
                if others && self.grown != Some(e) && self.grows_first(&shared, e) {
                    drop(shared);
                    if kept {
                        return self.let_others_run(slow, e);
                    }
                    drop(slow);
                    self.grown = Some(e);
                    return match self.fresh_page(e)? {
                        None => self.reuse(e),
                        done => Ok(done),
                    };
                }
                let found = self.opportunistic(&mut slow, &shared, e, me, &held.fitting, &clock, follow, &fit);
                if let Some(question) = self.must_ask.take() {
                    drop(shared);
                    drop(slow);
                    self.put(question);
                    return self.reuse(e);
                }
                if let Some((index, holder)) = found {
                    self.detach(&mut slow, &mut shared, e, index, holder);
                    return self.commit(
                        &mut slow,
                        &mut shared,
                        Found { index, entry: e, reason: Reason::Opportunistic },
                    );
                }
            }
        }
        if kept {
            drop(shared);
            return self.let_others_run(slow, e);
        }
        // 5. A Cuda entry's never-used memory.
        if entry.kind == Kind::Cuda {
            let index = shared.entries[e].unused.best(need, Upto::Any);
            if index != NIL {
                shared.entries[e].unused.remove(index);
                return self.commit(&mut slow, &mut shared, Found { index, entry: e, reason: Reason::Fresh });
            }
        }
        // 6. Spans.
        if entry.carves() && free_bytes >= need {
            let found = self.span(&mut slow, &mut shared, e, holders, &clock)?;
            if let Some(question) = self.must_ask.take() {
                drop(shared);
                drop(slow);
                self.put(question);
                return self.reuse(e);
            }
            if let Some(found) = found {
                return self.commit(&mut slow, &mut shared, found);
            }
        }
        Ok(None)
    }

    /// Blocks that were handed over come back to a stream that is ordered after their frees: whole and multi ones of which each
    /// point precedes its last operation become its own. `whole`: the streams at hand that may hold whole ones; `kept`: there are
    /// others. The streams that have no block left; `None`: none came back.
    fn come_back(
        &self,
        slow: &mut Slow<'_>,
        shared: &mut PoolShared,
        e: usize,
        me: StreamRef,
        (whole, kept): (&[StreamRef], bool),
        now: &Clock,
    ) -> Option<Few<StreamRef, 8>> {
        let pool = self.pool;
        let order = &pool.device.order;
        let state = slow.state(me.slot());
        // A barrier that none of its operations is ordered after yet does not count: the blocks get the last one's point.
        let clock = if state.is_legacy() { now.clone() } else { state.clock.clone() };
        let at = At { stream: me, seq: state.submitted };
        let changes = shared.entries[e].multi_changes;
        // In no structure any more.
        let mut coming: Few<u32, 16> = Few::default();
        let mut emptied = Few::default();
        let had = slow.cache(me.slot(), pool).entries[e].came_back.as_ref();
        let (same, seen) = had.map_or((false, None), |(had, seen)| (had.is_same(&clock), Some(*seen)));
        let mut all = !kept;
        if !same {
            for &holder in whole.iter().filter(|&&holder| holder != me) {
                let state = slow.state(holder.slot());
                let upto = state.covered_by(&clock);
                let Some(own) = state.attach.entry(pool, e).filter(|_| upto > 0) else { continue };
                let EntryCache { bins: Some(bins), whole, .. } = own else { continue };
                if bins.count > MOST_LOOKED_AT {
                    all = false;
                    continue;
                }
                let first = coming.len();
                *whole = false;
                bins.each(|index| {
                    let b = block(index);
                    if b.has(WHOLE) {
                        match b.seq() <= upto {
                            true => coming.push(index),
                            false => *whole = true,
                        }
                    }
                });
                coming[first..].iter().for_each(|&index| bins.remove(index));
                if bins.count == 0 {
                    emptied.push(holder);
                }
            }
        }
        if !same || seen != Some(changes) {
            let first = coming.len();
            let points = &shared.points;
            shared.entries[e].multi.each(|index| {
                let precedes = |at: &At| at.stream == me || slow.state(at.stream.slot()).covered_by(&clock) >= at.seq;
                if points[&index].iter().all(precedes) {
                    coming.push(index);
                }
            });
            for &index in &coming[first..] {
                remove_multi(shared, e, index);
                shared.points.discard(&index);
            }
        }
        if all {
            let came_back = &mut slow.cache(me.slot(), pool).entries[e].came_back;
            match came_back {
                Some((_, seen)) if same => *seen = changes,
                _ => *came_back = Some((clock, changes)),
            }
        }
        if coming.is_empty() {
            return None;
        }
        if order.observed(&STREAMS, me) < at.seq && !rules::off(rules::MERGE) {
            slow.cache(me.slot(), pool).entries[e].take_back(pool, e, at, &coming, &mut shared.stock);
        } else {
            let points = if order.observed(&STREAMS, me) < at.seq { &[at][..] } else { &[] };
            for &index in coming.iter() {
                block(index).drop_flag(WHOLE);
                super::free::place(slow, shared, pool, e, index, points);
            }
        }
        Some(emptied)
    }

    /// Begins again once threads have run that keep streams locked.
    #[cold]
    fn let_others_run(&mut self, slow: Slow<'_>, e: usize) -> Result<Option<AllocDone>> {
        drop(slow);
        self.yields += 1;
        std::thread::yield_now();
        self.reuse(e)
    }

    #[allow(clippy::too_many_arguments)]
    fn opportunistic(
        &mut self,
        slow: &mut Slow<'_>,
        shared: &PoolShared,
        e: usize,
        me: StreamRef,
        holders: &[StreamRef],
        clock: &Clock,
        follow: bool,
        fit: &impl Fn(&Bins, Upto) -> u32,
    ) -> Option<(u32, Option<StreamRef>)> {
        #[derive(PartialEq, Eq, PartialOrd, Ord)]
        enum Head {
            Unasked(StreamRef),
            Served(StreamRef, u32),
            Multi(u32),
        }
        let exact = self.pool.entries[e].kind == Kind::Direct;
        let mut heads = BinaryHeap::new();
        let key = |index: u32| (block(index).size(), block(index).addr());
        for &holder in holders.iter().filter(|&&holder| holder != me) {
            let known = self.answer(holder);
            let Some(bins) = slow.held_bins(holder, self.pool, e) else { continue };
            match known {
                None => {
                    let index = fit(bins, Upto::Any);
                    if index != NIL {
                        heads.push(Reverse((key(index), Head::Unasked(holder))));
                    }
                }
                Some(upto) => {
                    let index = fit(bins, Upto::Seq(upto));
                    if index != NIL {
                        heads.push(Reverse((key(index), Head::Served(holder, index))));
                    }
                }
            }
        }
        let mut multi = multis(shared, e, self.need, exact).peekable();
        loop {
            if let Some(&index) = multi.peek() {
                let smaller = heads.peek().is_none_or(|Reverse((head, _))| key(index) < *head);
                if smaller {
                    multi.next();
                    heads.push(Reverse((key(index), Head::Multi(index))));
                }
            }
            match heads.pop()?.0.1 {
                Head::Served(holder, index) => return Some((index, Some(holder))),
                Head::Unasked(holder) => {
                    let answer = self.ask(holder);
                    if self.must_ask.is_some() {
                        return None;
                    }
                    if let Some(upto) = answer {
                        let index = fit(slow.bins(holder, self.pool, e), Upto::Seq(upto));
                        if index != NIL {
                            heads.push(Reverse((key(index), Head::Served(holder, index))));
                        }
                    }
                }
                Head::Multi(index) => {
                    let served = shared.points[&index].iter().all(|&at| {
                        at.stream == me
                            || (follow && slow.state(at.stream.slot()).covered_by(clock) >= at.seq)
                            || self.ask(at.stream).is_some_and(|upto| at.seq <= upto)
                    });
                    if self.must_ask.is_some() {
                        return None;
                    }
                    if served {
                        return Some((index, None));
                    }
                }
            }
        }
    }

    fn answer(&self, stream: StreamRef) -> Option<u64> {
        self.answers.iter().find(|answer| answer.0 == stream).map(|answer| answer.1)
    }

    /// How far a stream has executed, asked once; `None` when the questions are used up.
    pub(super) fn ask(&mut self, stream: StreamRef) -> Option<u64> {
        if let Some(answer) = self.answer(stream) {
            return Some(answer);
        }
        if self.asked >= MAX_QUESTIONS || self.must_ask.is_some() {
            return None;
        }
        if self.pool.device.cuda().is_some() {
            self.must_ask = Some(stream);
            return None;
        }
        Some(self.note_answer(stream))
    }

    /// Puts a question to the driver. No lock held.
    #[cold]
    fn put(&mut self, stream: StreamRef) {
        native::poll(&self.pool.device, stream);
        let answer = self.note_answer(stream);
        let submitted = STREAMS.at(stream.slot()).state.lock().submitted;
        if answer < submitted {
            native::want(stream);
        }
    }

    fn note_answer(&mut self, stream: StreamRef) -> u64 {
        self.asked += 1;
        let mut executed = self.pool.device.executed(stream);
        if rules::off(rules::CUDA_EXECUTED) && self.pool.device.cuda().is_some() {
            executed = u64::MAX;
        }
        self.pool.tally.progress_queries.fetch_add(1, Relaxed);
        self.pool.device.tell(&Event::ProgressAnswer { stream: stream.id(), executed });
        self.answers.push((stream, executed));
        if STREAMS.at(stream.slot()).watch.load(Relaxed) & native::ENDED != 0 {
            self.ended.push(At { stream, seq: executed });
        }
        executed
    }

    /// Takes a free block out of wherever it is.
    pub(super) fn detach(
        &self,
        slow: &mut Slow<'_>,
        shared: &mut PoolShared,
        e: usize,
        index: u32,
        holder: Option<StreamRef>,
    ) {
        match holder {
            Some(holder) => {
                if let Some(bins) = slow.held_bins(holder, self.pool, e) {
                    bins.remove(index);
                }
            }
            None => {
                remove_multi(shared, e, index);
            }
        }
    }

    pub(super) fn commit(
        &mut self,
        slow: &mut Slow<'_>,
        shared: &mut PoolShared,
        found: Found,
    ) -> Result<Option<AllocDone>> {
        self.commit_waiting(slow, shared, found, Vec::new())
    }

    /// The found block (in no structure any more) becomes the allocation: cut, counted, numbered.
    pub(super) fn commit_waiting(
        &mut self,
        slow: &mut Slow<'_>,
        shared: &mut PoolShared,
        found: Found,
        waits: Vec<At>,
    ) -> Result<Option<AllocDone>> {
        let pool = self.pool;
        let device = &*pool.device;
        let e = found.entry;
        let mut index = found.index;
        let mut b = block(index);
        let domain = b.stream();
        if b.generation() >= GENERATION_LIMIT {
            match renew(slow, shared, index) {
                Some(fresh) => (index, b) = (fresh, block(fresh)),
                None => {
                    attach_any(slow, shared, pool, e, index, domain, shared.points.get(&index).cloned().as_deref());
                    return Err(out_of_records());
                }
            }
        }
        let mut splits = 0;
        if pool.entries[e].carves() && b.size() > self.need {
            let points = if domain == MULTI { shared.points.remove(&index) } else { None };
            match cut(index, b, self.need, &mut shared.stock) {
                Ok(rest) => {
                    if let Some((rest, r)) = rest {
                        splits = 1;
                        attach_rest(slow, shared, pool, e, (rest, r), domain, points.as_deref());
                    }
                }
                Err(()) => {
                    attach_any(slow, shared, pool, e, index, domain, points.as_deref());
                    return Err(out_of_records());
                }
            }
        }
        if domain == MULTI {
            shared.points.remove(&index);
        }
        let bytes = b.size();
        let generation = b.generation() + 1;
        let mut flags = live_flags(found.reason as u64, self.align_log2);
        if let Some(name) = self.name {
            pool.names.lock().insert(index, name.to_owned());
            flags |= NAMED;
        }
        b.set_generation(generation);
        b.set_requested(self.size);
        let allocation = handle::encode(handle::Kind::Allocation, generation, index);
        let plain = flags & NAMED == 0
            && self.align_log2 == 0
            && self.stream.is_some()
            && (bytes <= pool.entry_tally[e].largest_recent.load(Relaxed) || !pool.entries[e].carves());
        b.set_pass(if plain { pass(allocation, place(pool.slot, e, pool.entries[e].carves())) } else { 0 });
        b.set_flags(flags);
        shared.entries[e].note_order(pool, e, self.stream);
        let counts = match self.stream {
            Some(stream) => {
                let cache = slow.take_stream_room(shared, pool, e, stream, bytes);
                let allocs = &cache.share.allocs;
                allocs.store(allocs.load(Relaxed) + 1, Relaxed);
                cache.entries[e].requested += self.size as i64;
                // What the stream does next may go the quick way again.
                cache.make_ready();
                &mut cache.entries[e].counts
            }
            None => {
                slow.take_room(shared, pool, e, None, bytes);
                pool.other_allocations.fetch_add(1, Relaxed);
                shared.entries[e].counts.requested += self.size as i64;
                &mut shared.entries[e].counts
            }
        };
        counts.reuse[found.reason as usize] += 1;
        counts.splits += splits;
        counts.internal_waits += u64::from(!waits.is_empty());
        let ready_seq = match self.stream {
            None => {
                b.set_stream(HOST);
                b.set_seq(0);
                0
            }
            Some(stream) => {
                let order = &device.order;
                if !waits.is_empty() {
                    let mut after = Clock::default();
                    for at in &waits {
                        let clock = slow.state(at.stream.slot()).clock_at(at.seq);
                        after = after.join(&clock, &[], |_| 0);
                    }
                    let state = slow.state(stream.slot());
                    // (The driver was made to wait before.)
                    if order.opaque && order.follows_barrier_after(state, 0) {
                        native::note_unbacked(stream);
                    }
                    order.submit(&STREAMS, state, 1, waits.into_iter().collect(), Some(&after));
                }
                let state = slow.state(stream.slot());
                let seq = match state.push_ready(STREAMS.at(stream.slot()), 1) {
                    Some(seq) => seq,
                    None => {
                        let (seq, unseen) = order.submit_unseen(&STREAMS, state);
                        if unseen {
                            native::note_unbacked(stream);
                        }
                        seq
                    }
                };
                b.set_stream(stream);
                b.set_seq(seq);
                seq
            }
        };
        Ok(Some(AllocDone {
            allocation: AllocationId(allocation),
            address: b.address(),
            block_size: bytes,
            entry: e as u32,
            reason: found.reason,
            ready_seq,
        }))
    }
}

/// Waits for what another thread asks of the device. No lock is held.
pub(super) fn wait_a_little(waited: &mut u32) {
    *waited = waited.saturating_add(1);
    match *waited {
        0..64 => std::thread::yield_now(),
        _ => crate::cancel::sleep(Duration::from_micros(50)),
    }
}

pub(super) fn out_of_records() -> Error {
    Error::new(
        Status::OutOfMemory,
        "out of memory: the process has no block record left (2^28 blocks, or as many as it has memory for)",
    )
}

/// Step 2: the best of the observed blocks, taken out of its structure.
fn take_observed(shared: &mut PoolShared, e: usize, fit: &impl Fn(&Bins, Upto) -> u32) -> Option<Found> {
    if rules::off(rules::OBSERVED) {
        return None;
    }
    let bins = &mut shared.entries[e].observed;
    let index = fit(bins, Upto::Any);
    if index == NIL {
        return None;
    }
    bins.remove(index);
    let reason = if block(index).has(UNUSED) { Reason::Fresh } else { Reason::Observed };
    Some(Found { index, entry: e, reason })
}

fn consider(best: &mut Option<(u64, u64, u32, Option<StreamRef>)>, index: u32, holder: Option<StreamRef>) {
    if index == NIL {
        return;
    }
    let (size, addr) = (block(index).size(), block(index).addr());
    if best.as_ref().is_none_or(|&(s, a, ..)| (size, addr) < (s, a)) {
        *best = Some((size, addr, index, holder));
    }
}

/// Multi blocks that fit, best first.
pub(super) fn multis(shared: &PoolShared, e: usize, need: u64, exact: bool) -> impl Iterator<Item = u32> + '_ {
    shared.entries[e].multi.iter_from(need).take_while(move |&index| !exact || block(index).size() == need)
}

/// Takes a multi block out; its points stay in the table (a cut keeps them for the remainder).
fn remove_multi(shared: &mut PoolShared, e: usize, index: u32) {
    shared.entries[e].multi.remove(index);
}

/// The streams that are a point of some free block of the entry, lowest first.
pub(super) fn point_streams(holders: &[StreamRef], shared: &PoolShared, e: usize) -> Vec<StreamRef> {
    let mut streams = holders.to_vec();
    shared.entries[e].multi.each(|index| streams.extend(shared.points[&index].iter().map(|at| at.stream)));
    streams.sort_unstable();
    streams.dedup();
    streams
}

pub(crate) fn largest_per_stream(mut points: Vec<At>) -> Vec<At> {
    points.sort_unstable_by_key(|at| (at.stream, Reverse(at.seq)));
    points.dedup_by_key(|at| at.stream);
    points
}

/// Takes a free block out of its structure, whichever that is.
pub(crate) fn detach_any(slow: &mut Slow<'_>, shared: &mut PoolShared, pool: &Arc<Pool>, e: usize, index: u32) {
    match block(index).stream() {
        OBSERVED => {
            let own = &mut shared.entries[e];
            if pool.entries[e].kind == Kind::Cuda && block(index).has(UNUSED) {
                own.unused.remove(index);
            } else {
                own.observed.remove(index);
            }
        }
        MULTI => {
            remove_multi(shared, e, index);
            shared.points.remove(&index);
        }
        stream => {
            let own = &mut slow.cache(stream.slot(), pool).entries[e];
            match &mut own.recents {
                Some(recents) if block(index).has(RECENT) => recents.remove(index),
                _ => own.made_bins().remove(index),
            }
        }
    }
}

/// Puts what a cut left of a free block of `domain` where that was. (The block to its left is live, and the seam to its right is
/// noted already.)
#[inline(always)]
fn attach_rest(
    slow: &mut Slow<'_>,
    shared: &mut PoolShared,
    pool: &Arc<Pool>,
    e: usize,
    (rest, r): (u32, &Block),
    domain: StreamRef,
    points: Option<&[At]>,
) {
    match domain {
        OBSERVED if !(pool.entries[e].kind == Kind::Cuda && r.has(UNUSED)) => {
            shared.entries[e].observed.insert_out_of_line(rest, r);
        }
        OBSERVED | MULTI => attach_any(slow, shared, pool, e, rest, domain, points),
        stream => {
            let own = &mut slow.cache(stream.slot(), pool).entries[e];
            own.whole |= r.has(WHOLE);
            own.bins_to_fill(pool, e, stream).insert_out_of_line(rest, r);
        }
    }
}

/// Puts a free block into the structure of `domain`, without merging.
pub(super) fn attach_any(
    slow: &mut Slow<'_>,
    shared: &mut PoolShared,
    pool: &Arc<Pool>,
    e: usize,
    index: u32,
    domain: StreamRef,
    points: Option<&[At]>,
) {
    let b = block(index);
    match domain {
        OBSERVED => {
            b.set_stream(OBSERVED);
            let own = &mut shared.entries[e];
            if pool.entries[e].kind == Kind::Cuda && b.has(UNUSED) {
                own.unused.insert(index);
            } else {
                own.observed.insert(index);
            }
            own.observed.note_beside(index, b);
        }
        MULTI => {
            b.set_stream(MULTI);
            shared.insert_multi(e, index, points.expect("a multi block has points"));
        }
        stream => {
            // (Locked before the block is its own: see `place`.)
            let own = &mut slow.cache(stream.slot(), pool).entries[e];
            b.set_stream(stream);
            own.whole |= b.has(WHOLE);
            own.bins_to_fill(pool, e, stream).insert_noted(index);
        }
    }
}

/// A free block (in no structure) whose record's generations are used up gets a new record; the old slot is retired.
fn renew(slow: &mut Slow<'_>, shared: &mut PoolShared, old: u32) -> Option<u32> {
    let fresh = shared.stock.take()?;
    let (o, n) = (block(old), block(fresh));
    n.set_addr(o.addr());
    n.set_stream(o.stream());
    n.set_seq(o.seq());
    n.set_page(o.page());
    n.set_next(o.next());
    n.set_size_flags_last(o.size(), o.flags());
    if o.next() != NIL {
        block(o.next()).set_prev(fresh);
    }
    let home = page(o.page());
    loop {
        let left = o.prev();
        n.set_prev(left);
        if left == NIL {
            home.set_first(o.addr(), fresh);
            break;
        }
        let owner = block(left).stream();
        // (A link that is old may name what is another device's by now, whose lock is not ours to take.)
        if !matches!(owner, OBSERVED | MULTI | HOST) && STREAMS.at(owner.slot()).is(slow.device.uid, owner) {
            slow.state(owner.slot());
        }
        let l = block(left);
        if l.stream() == owner && l.page() == o.page() && l.end() == o.addr() && l.next() == old {
            l.set_next(fresh);
            if page::apart(l.addr(), o.addr()) {
                home.set_first(o.addr(), fresh);
            }
            break;
        }
        std::thread::yield_now();
    }
    if let Some(points) = shared.points.remove(&old) {
        shared.points.insert(fresh, &points);
    }
    shared.stock.give(old);
    Some(fresh)
}
