//! One device as a whole: its streams, its page source and its pools, behind handles.
//!
//! The public modules [`crate::device`], [`crate::stream`] and [`crate::event`] are made of what is here.

pub mod device;
pub mod event;
pub(crate) mod native;
pub mod stream;
#[allow(unsafe_code)]
mod thread;

use crate::error::{Error, Result, Status};
use crate::handle::{self, DeviceId, StreamId};
use crate::leaf::RawLeaf;
use crate::order::{At, Clock, Points, Stream, StreamRef};
use crate::pool::block::BLOCKS;
use crate::pool::caches::{Caches, STREAMS, StreamGuard};
use crate::pool::page::{self, PAGES};
use crate::pool::registry::POOLS;
use crate::pool::release;
use crate::pool::slow::Slow;
use crate::pool::state::Device;
use crate::rules;
use crate::slab::Slab;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Who does what a call about order names.
pub enum Act<'a> {
    /// The library does it.
    Do,
    /// The caller has done it already, and nothing on that stream since that this library is told of: a note. On the model
    /// device, whose streams and events no one else can touch, the library does it.
    Noted,
    /// The closure does it, between the moment the point is taken and the moment it is believed; `false`: it failed, and
    /// nothing is believed.
    With(&'a mut dyn FnMut() -> bool),
}

impl Act<'_> {
    /// Has it done; `library` is what the library would do.
    fn run(&mut self, library: impl FnOnce() -> Result<()>) -> Result<()> {
        match self {
            Act::Do => library(),
            Act::Noted => Ok(()),
            Act::With(call) => match call() {
                true => Ok(()),
                false => Err(Error::new(Status::Driver, "the caller's own call failed")),
            },
        }
    }
}

/// Every device of the process.
pub(crate) static DEVICES: Slab<DeviceSlot, { 1 << 12 }> = Slab::new();

/// The locks of what all devices of the process share.
pub(crate) fn leaves() -> [&'static RawLeaf; 9] {
    [
        DEVICES.leaf(),
        STREAMS.leaf(),
        event::EVENTS.leaf(),
        POOLS.leaf(),
        PAGES.leaf(),
        BLOCKS.leaf(),
        page::leaf(),
        native::leaf(),
        thread::leaf(),
    ]
}

/// In a child after a fork, once it has the leaves: records that have locks of their own are not those that were free before.
pub(crate) fn forget_free_records() {
    DEVICES.forget_free();
    STREAMS.forget_free();
    event::EVENTS.forget_free();
    POOLS.forget_free();
}

#[derive(Default)]
pub(crate) struct DeviceSlot {
    /// (the handle's generation << 32) | the device's number while it is open, else 0; for calls that look before they lock.
    open: AtomicU64,
    place: Mutex<DevicePlace>,
}

#[derive(Default)]
struct DevicePlace {
    generation: u32,
    device: Option<Arc<Device>>,
}

/// The open device a handle names.
pub(crate) fn resolve_device(id: DeviceId) -> Result<Arc<Device>> {
    let kind = handle::Kind::Device;
    native::refuse_forked()?;
    let (slot, generation) = handle::decode(kind, id.0).ok_or_else(|| handle::invalid(kind, id.0))?;
    let place = DEVICES.get(slot).ok_or_else(|| handle::invalid(kind, id.0))?.place.lock();
    handle::judge(kind, id.0, generation, place.generation, place.device.is_some())?;
    place.device.clone().ok_or_else(|| handle::gone(kind, id.0))
}

/// Two devices of the library are one to the driver: its streams and events of the one are those of the other.
pub(crate) fn shares_context(one: &Device, other: &Device) -> bool {
    one.cuda().zip(other.cuda()).is_some_and(|(one, other)| one.shares_context(other))
}

/// A stream handle's stream, which must be one of `device`. 0 and 1 are the legacy default stream, 2 the calling thread's
/// default stream.
pub(crate) fn resolve_stream(device: &Arc<Device>, id: StreamId) -> Result<StreamRef> {
    match id.0 {
        0 | 1 => {
            if device.cuda().is_some() {
                native::remember(native::LEGACY, device.slot, device.order.legacy);
            }
            return Ok(device.order.legacy);
        }
        2 => {
            let stream = per_thread(device)?;
            if device.cuda().is_some() {
                native::remember(native::key(id), device.slot, stream);
            }
            return Ok(stream);
        }
        _ => {}
    }
    if let Some(cuda) = device.cuda()
        && native::is_foreign(id.0)
    {
        return native::resolve(device, cuda, id);
    }
    let (stream, uid) = resolve_created(id)?;
    if uid != device.uid {
        return Err(Error::new(Status::WrongDevice, format_args!("stream {:#x} belongs to another device", id.0)));
    }
    Ok(stream)
}

/// A created stream and its device's number.
fn resolve_created(id: StreamId) -> Result<(StreamRef, u32)> {
    let kind = handle::Kind::Stream;
    native::refuse_forked()?;
    let (slot, generation) = handle::decode(kind, id.0).ok_or_else(|| handle::invalid(kind, id.0))?;
    let state = STREAMS.get(slot).ok_or_else(|| handle::invalid(kind, id.0))?.state.lock();
    handle::judge(kind, id.0, generation, state.generation, state.live)?;
    // One that goes by another name (the driver's, a default stream's), or by none, was never given this one.
    if state.handle != id.0 {
        return Err(handle::invalid(kind, id.0));
    }
    Ok((state.me, state.device_uid))
}

/// The device and stream of a call that names both; the device may be null if the stream is a created one.
#[inline(never)]
pub(crate) fn resolve_both(device: DeviceId, id: StreamId) -> Result<(Arc<Device>, StreamRef)> {
    if device.0 == 0 && native::is_foreign(id.0) {
        native::refuse_forked()?;
        if let Some(found) = native::find(id.0) {
            return Ok(found);
        }
    }
    if device.0 == 0 && id.0 > 2 {
        let (stream, uid) = resolve_created(id)?;
        let device = device_of(stream, uid).ok_or_else(|| handle::gone(handle::Kind::Stream, id.0))?;
        return Ok((device, stream));
    }
    let device = resolve_device(device)?;
    let stream = resolve_stream(&device, id)?;
    Ok((device, stream))
}

/// The short way of a call on a created stream of the model device that is ready for an operation that depends on nothing:
/// the stream, locked. `None`: more is to be looked at, as where an observer is installed (then no stream is ready), or another
/// thread has the stream, and the long way waits for it.
#[inline(always)]
pub(crate) fn ready_stream(device: DeviceId, id: StreamId) -> Option<(&'static Stream<Caches>, StreamGuard)> {
    if !native::is_plain(id) {
        return None;
    }
    let (slot, generation) = handle::decode(handle::Kind::Device, device.0)?;
    let open = DEVICES.get(slot)?.open.load(Relaxed);
    let record = STREAMS.get_wrapped(handle::slot(id.0))?;
    let state = record.state.try_lock()?;
    let ready = state.is_ready_for(id.0) && open == (u64::from(generation) << 32) | u64::from(state.device_uid);
    ready.then_some((record, state))
}

/// The device a stream was created on: found among the open ones, or, where a pool has outlived its device's handle, those.
fn device_of(stream: StreamRef, uid: u32) -> Option<Arc<Device>> {
    let slot = STREAMS.at(stream.slot()).state.lock().device_slot;
    native::device_by(slot, uid).or_else(|| native::by_number(uid))
}

/// The handle of a stream, 0 if it has been destroyed (or is the legacy default stream, whose handle that is).
pub(crate) fn handle_of(device: &Device, stream: StreamRef) -> StreamId {
    if stream == device.order.legacy {
        return StreamId(0);
    }
    let Ok(state) = native::live(device, stream) else { return StreamId(0) };
    if let Some(handle) = native::handle_of(device, state.attach.native.raw) {
        return handle;
    }
    StreamId(handle::encode(handle::Kind::Stream, state.generation, stream.slot()))
}

fn per_thread(device: &Arc<Device>) -> Result<StreamRef> {
    let me = thread::number();
    let _serial = device.enter();
    if let Some(&stream) = device.per_thread.lock().get(&me) {
        remember_own(device, stream);
        return Ok(stream);
    }
    native::forget_ended_threads(device, me);
    let (stream, _) = stream::create_on(device, stream::StreamFlags::default())?;
    if device.cuda().is_some() {
        native::name(device, stream, native::key(StreamId(native::PER_THREAD)), native::PER_THREAD, 0);
    }
    device.per_thread.lock().insert(me, stream);
    remember_own(device, stream);
    stream::forget_ended(device);
    Ok(stream)
}

/// So that the thread's next call finds the stream the short way. (On CUDA [`native::remember`] does that.)
fn remember_own(device: &Device, stream: StreamRef) {
    if device.cuda().is_none() {
        let handle = STREAMS.at(stream.slot()).state.lock().handle;
        thread::remember_own_stream(device.order.legacy.slot(), handle);
    }
}

/// # Errors
/// [`Status::NotSupported`] on CUDA, where only the driver runs streams.
pub(crate) fn model_only(device: &Device) -> Result<()> {
    match device.cuda() {
        None => Ok(()),
        Some(_) => {
            Err(Error::new(Status::NotSupported, "only the model device can do this, and this is a CUDA device"))
        }
    }
}

/// Whether work submitted to `stream` now follows `at`. No locks held by the caller.
pub(crate) fn work_follows(device: &Device, at: At, stream: StreamRef) -> bool {
    if at.stream == stream || device.order.observed(&STREAMS, at.stream) >= at.seq {
        return true;
    }
    if stream == device.order.legacy {
        let record = STREAMS.at(at.stream.slot());
        let blocking = !record.state.lock().non_blocking;
        if blocking || !record.is(device.uid, at.stream) {
            return true;
        }
        // A barrier submitted now would also follow what the blocking streams follow.
        let members: Vec<StreamRef> = device.order.streams.lock().iter().copied().collect();
        for member in members {
            let clock = {
                let state = STREAMS.at(member.slot()).state.lock();
                if state.non_blocking { continue } else { state.clock.clone() }
            };
            if device.order.precedes(&STREAMS, at, member, &clock) {
                return true;
            }
        }
        return false;
    }
    let clock = {
        let state = STREAMS.at(stream.slot()).state.lock();
        device.order.now(&STREAMS, &state).clock
    };
    device.order.precedes(&STREAMS, at, stream, &clock)
}

/// Submits `count` operations of work (a barrier on the legacy stream), the first after `deps` and `after`.
pub(crate) fn submit_work(
    device: &Device,
    stream: StreamRef,
    count: u64,
    deps: Points,
    after: Option<&Clock>,
) -> Result<u64> {
    submit_agreed(device, stream, count, deps, after, || Ok(()))
}

/// As [`submit_work`], with the driver asked by `agree`, no lock held, before anything is ordered by it. The number is
/// taken before: it stands for what was submitted before `agree` began. A refusal leaves an operation that orders nothing.
pub(crate) fn submit_agreed(
    device: &Device,
    stream: StreamRef,
    count: u64,
    deps: Points,
    after: Option<&Clock>,
    agree: impl FnOnce() -> Result<()>,
) -> Result<u64> {
    let order = &device.order;
    let first = if stream == order.legacy && !rules::off(rules::LEGACY) {
        let barrier = order.begin_barrier(&STREAMS, count, deps);
        let first = barrier.first;
        agree()?;
        order.publish_barrier(&STREAMS, barrier, count, after);
        first
    } else {
        let mut state = native::live(device, stream)?;
        if deps.is_empty() && after.is_none() {
            let unseen = order.opaque && order.follows_barrier_after(&state, 0);
            let first = order.submit(&STREAMS, &mut state, count, deps, after);
            let settled = state.is_settled();
            drop(state);
            agree().inspect_err(|_| {
                if unseen {
                    native::note_unbacked(stream);
                }
            })?;
            if settled {
                return Ok(first);
            }
            first
        } else {
            // What follows is ordered only once the driver has the order.
            drop(state);
            let barrier = order.last_barrier();
            agree()?;
            let mut state = native::live(device, stream)?;
            // What the legacy stream was given meanwhile may have come after what the driver was asked for.
            let unseen = order.opaque && order.follows_barrier_after(&state, barrier);
            let first = order.submit(&STREAMS, &mut state, count, deps, after);
            if unseen {
                native::note_unbacked(stream);
            }
            if state.is_settled() {
                return Ok(first);
            }
            first
        }
    };
    order.settle(&STREAMS, stream);
    Ok(first)
}

/// Runs and observes up to `at`, whose clock is `clock`, and everything that depends on. `barrier`: the legacy stream's last one that it
/// comes after or is.
pub(crate) fn synchronize_point(device: &Device, at: At, clock: &Clock, barrier: u64) {
    native::poll_before_release(device);
    device.order.run_to(&STREAMS, at);
    let mut seen = match rules::off(rules::SYNC_OBSERVES) {
        true => [at].into_iter().collect(),
        false => device.order.closure(&STREAMS, at, clock, barrier),
    };
    if rules::off(rules::CUDA_OBSERVED) && device.cuda().is_some() {
        let streams: Vec<StreamRef> = device.order.streams.lock().iter().copied().collect();
        seen.extend(
            streams.into_iter().map(|stream| At { stream, seq: STREAMS.at(stream.slot()).state.lock().submitted }),
        );
    }
    release::observe(&mut Slow::lock(device), &seen);
}

/// Lets a destroyed pool go that only unobserved frees hold, on a device whose handle is closed: no one could synchronise
/// that device any more. No locks held by the caller.
pub(crate) fn drain_if_orphaned(device: &Device) {
    if !device.closed.load(Relaxed) {
        return;
    }
    let pools = device.pools.lock().clone();
    if pools.iter().any(|pool| pool.destroyed.load(Relaxed) && !pool.has_live_blocks()) {
        let _serial = device.enter();
        // A driver that refuses leaves the memory where it is.
        let _ = synchronize_device(device, &mut Act::Do, true);
    }
}

/// Runs and observes everything submitted to the device so far. `call`: it is a call of its own, of which the observer is
/// told; else part of one.
pub(crate) fn synchronize_device(device: &Device, act: &mut Act<'_>, call: bool) -> Result<()> {
    // What is taken before the driver is asked has run once it agrees.
    let streams: Vec<StreamRef> = device.order.streams.lock().iter().copied().collect();
    let seen: Vec<At> = streams
        .into_iter()
        .map(|stream| At { stream, seq: STREAMS.at(stream.slot()).state.lock().submitted })
        .collect();
    if let Some(cuda) = device.cuda() {
        act.run(|| cuda.synchronize().map_err(|code| cuda.error("cuCtxSynchronize", code)))?;
    }
    native::poll_before_release(device);
    if call {
        device.tell(&crate::pool::observer::Event::SynchronizeDevice);
    }
    for &at in &seen {
        device.order.run_to(&STREAMS, at);
    }
    release::observe(&mut Slow::lock(device), &seen);
    Ok(())
}
