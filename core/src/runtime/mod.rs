//! One device as a whole: its streams, its page source and its pools, behind handles.
//!
//! The public modules [`crate::device`], [`crate::stream`] and [`crate::event`] are made of what is here.

pub mod device;
pub mod event;
pub mod stream;

use crate::error::{Error, Result, Status};
use crate::handle::{self, DeviceId, StreamId};
use crate::order::{At, Clock, StreamRef};
use crate::pool::release;
use crate::pool::state::{Device, STREAMS, Slow};
use crate::rules;
use crate::slab::Slab;
use parking_lot::Mutex;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Every device of the process.
pub(crate) static DEVICES: Slab<DeviceSlot, { 1 << 12 }> = Slab::new();

#[derive(Default)]
pub(crate) struct DeviceSlot(Mutex<DevicePlace>);

#[derive(Default)]
struct DevicePlace {
    generation: u32,
    device: Option<Arc<Device>>,
}

/// The open device a handle names.
pub(crate) fn resolve_device(id: DeviceId) -> Result<Arc<Device>> {
    let kind = handle::Kind::Device;
    let (slot, generation) = handle::decode(kind, id.0).ok_or_else(|| handle::invalid(kind, id.0))?;
    let place = DEVICES.get(slot).ok_or_else(|| handle::invalid(kind, id.0))?.0.lock();
    handle::judge(kind, id.0, generation, place.generation, place.device.is_some())?;
    place.device.clone().ok_or_else(|| handle::gone(kind, id.0))
}

/// A stream handle's stream, which must be one of `device`. 0 and 1 are the legacy default stream, 2 the calling thread's
/// default stream.
pub(crate) fn resolve_stream(device: &Arc<Device>, id: StreamId) -> Result<StreamRef> {
    match id.0 {
        0 | 1 => return Ok(device.order.legacy),
        2 => return per_thread(device),
        _ => {}
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
    let (slot, generation) = handle::decode(kind, id.0).ok_or_else(|| handle::invalid(kind, id.0))?;
    let state = STREAMS.get(slot).ok_or_else(|| handle::invalid(kind, id.0))?.state.lock();
    handle::judge(kind, id.0, generation, state.generation, state.live)?;
    Ok((state.me, state.device_uid))
}

/// The device and stream of a call that names both; the device may be null if the stream is a created one.
pub(crate) fn resolve_both(device: DeviceId, id: StreamId) -> Result<(Arc<Device>, StreamRef)> {
    if device.0 == 0 && id.0 > 2 {
        let (stream, uid) = resolve_created(id)?;
        let device = device_of(stream, uid).ok_or_else(|| handle::gone(handle::Kind::Stream, id.0))?;
        return Ok((device, stream));
    }
    let device = resolve_device(device)?;
    let stream = resolve_stream(&device, id)?;
    Ok((device, stream))
}

/// The device a stream was created on: found among the open ones, or through a pool that outlived its device's handle.
fn device_of(stream: StreamRef, uid: u32) -> Option<Arc<Device>> {
    let (slot, attached) = {
        let state = STREAMS.at(stream.slot()).state.lock();
        let attached = state.attach.pools.iter().flatten().next().map(|cache| cache.pool.device.clone());
        (state.device_slot, attached)
    };
    let open = DEVICES.get(slot)?.0.lock().device.clone();
    open.filter(|device| device.uid == uid).or(attached)
}

/// The handle of a stream, 0 if it has been destroyed (or is the legacy default stream, whose handle that is).
pub(crate) fn handle_of(device: &Device, stream: StreamRef) -> StreamId {
    if stream == device.order.legacy {
        return StreamId(0);
    }
    let record = STREAMS.at(stream.slot());
    let state = record.state.lock();
    if !record.is(device.uid, stream) || !state.live {
        return StreamId(0);
    }
    StreamId(handle::encode(handle::Kind::Stream, state.generation, stream.slot()))
}

fn per_thread(device: &Arc<Device>) -> Result<StreamRef> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static ME: Cell<u64> = const { Cell::new(0) };
    }
    let me = ME.with(|cell| {
        if cell.get() == 0 {
            cell.set(NEXT.fetch_add(1, Relaxed));
        }
        cell.get()
    });
    let _serial = device.enter();
    if let Some(&stream) = device.per_thread.lock().get(&me) {
        return Ok(stream);
    }
    let (stream, _) = stream::create_on(device, stream::StreamFlags::default())?;
    device.per_thread.lock().insert(me, stream);
    Ok(stream)
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
    deps: Vec<At>,
    after: Option<&Clock>,
) -> Result<u64> {
    let order = &device.order;
    let first = if stream == order.legacy && !rules::off(rules::LEGACY) {
        order.submit_barrier(&STREAMS, count, deps, after)
    } else {
        let record = STREAMS.at(stream.slot());
        let mut state = record.state.lock();
        if state.released || !record.is(device.uid, stream) {
            return Err(Error::new(Status::Destroyed, "the stream was destroyed during the call"));
        }
        order.submit(&STREAMS, &mut state, count, deps, after)
    };
    order.settle(&STREAMS, stream);
    Ok(first)
}

/// Runs and observes up to `at`, whose clock is `clock`, and everything that depends on.
pub(crate) fn synchronize_point(device: &Device, at: At, clock: &Clock) {
    device.order.run_to(&STREAMS, at);
    let seen = if rules::off(rules::SYNC_OBSERVES) { vec![at] } else { device.order.closure(&STREAMS, at, clock) };
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
        device.tell(&crate::pool::observer::Event::SynchronizeDevice);
        synchronize_device(device);
    }
}

/// Runs and observes everything submitted to the device so far.
pub(crate) fn synchronize_device(device: &Device) {
    let streams: Vec<StreamRef> = device.order.streams.lock().iter().copied().collect();
    let mut seen = Vec::with_capacity(streams.len());
    for stream in streams {
        let record = STREAMS.at(stream.slot());
        let submitted = record.state.lock().submitted;
        let at = At { stream, seq: submitted };
        device.order.run_to(&STREAMS, at);
        seen.push(at);
    }
    release::observe(&mut Slow::lock(device), &seen);
}
