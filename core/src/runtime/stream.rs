//! Creating, submitting to, waiting for and destroying streams.

use super::{resolve_both, resolve_device, submit_work, synchronize_point};
use crate::error::{Error, Result, Status};
use crate::handle::{self, DeviceId, EventId, StreamId};
use crate::order::{At, StreamOrderId, StreamRef};
use crate::pool::observer::Event;
use crate::pool::release;
use crate::pool::state::{Device, STREAMS, Slow};
use crate::rules;
use std::sync::Arc;

/// How a stream is to behave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamFlags {
    /// Not ordered with the legacy default stream (`CU_STREAM_NON_BLOCKING`).
    pub non_blocking: bool,
    /// Runs only when advanced or synchronised; `None`: as the device.
    pub lazy: Option<bool>,
}

/// A stream's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamInfo {
    /// The stream's number on its device.
    pub id: StreamOrderId,
    /// Operations submitted.
    pub submitted: u64,
    /// All up to this one have run.
    pub executed: u64,
    /// All up to this one the host knows to have run.
    pub observed: u64,
    /// Not ordered with the legacy default stream.
    pub non_blocking: bool,
    /// Runs only when advanced or synchronised.
    pub lazy: bool,
}

/// Creates a stream.
pub fn create(device: DeviceId, flags: StreamFlags) -> Result<StreamId> {
    let device = resolve_device(device)?;
    let _serial = device.enter();
    create_on(&device, flags).map(|(_, id)| id)
}

pub(crate) fn create_on(device: &Arc<Device>, flags: StreamFlags) -> Result<(StreamRef, StreamId)> {
    let lazy = flags.lazy.unwrap_or(device.options.lazy);
    let (stream, generation) = device
        .order
        .create(&STREAMS, device.slot, flags.non_blocking, lazy)
        .ok_or_else(|| Error::new(Status::OutOfMemory, "no stream slot left in this process"))?;
    device.tell(&Event::StreamCreate { id: stream.id(), non_blocking: flags.non_blocking, lazy });
    Ok((stream, StreamId(handle::encode(handle::Kind::Stream, generation, stream.slot()))))
}

/// Destroys a created stream (`cuStreamDestroy`): returns at once, its work completes. It is forgotten once all it
/// submitted is observed.
///
/// # Errors
/// [`Status::InvalidValue`] for a default stream.
pub fn destroy(stream: StreamId) -> Result<()> {
    release(DeviceId(0), stream)
}

/// The same as [`destroy`] on the model device; on CUDA, what must come before the caller's own destroy.
pub fn release(device: DeviceId, id: StreamId) -> Result<()> {
    let refused = || Err(Error::new(Status::InvalidValue, "stream: a default stream cannot be destroyed"));
    if id.0 <= 2 {
        return refused();
    }
    let (device, stream) = resolve_both(device, id)?;
    // A default stream has a handle value too, which `pool::info` tells of a per-thread one and anyone can guess.
    if stream == device.order.legacy || device.per_thread.lock().values().any(|&own| own == stream) {
        return refused();
    }
    let _serial = device.enter();
    let mut slow = Slow::lock(&device);
    let uid = device.uid;
    let state = slow.state(stream.slot());
    if !state.live || !STREAMS.at(stream.slot()).is(uid, stream) {
        return Err(handle::gone(handle::Kind::Stream, id.0));
    }
    device.tell(&Event::StreamRelease { id: stream.id() });
    state.close();
    state.released = true;
    release::forget_if_done(&mut slow, stream);
    Ok(())
}

/// Runs a stream to its end, with what it depends on, and observes it (`cuStreamSynchronize`).
pub fn synchronize(device: DeviceId, stream: StreamId) -> Result<()> {
    let (device, stream) = resolve_both(device, stream)?;
    let _serial = device.enter();
    device.tell(&Event::SynchronizeStream { stream: stream.id() });
    let (at, clock) = {
        let state = STREAMS.at(stream.slot()).state.lock();
        (At { stream, seq: state.submitted }, state.clock.clone())
    };
    synchronize_point(&device, at, &clock);
    Ok(())
}

/// Whether everything submitted to the stream has run (`cuStreamQuery`). Changes nothing.
pub fn query(device: DeviceId, stream: StreamId) -> Result<bool> {
    let (device, stream) = resolve_both(device, stream)?;
    let _serial = device.enter();
    let record = STREAMS.at(stream.slot());
    let state = record.state.lock();
    Ok(record.executed() >= state.submitted)
}

/// Submits `count` operations of work to a stream of the model device. Returns the last one's number.
///
/// # Errors
/// [`Status::InvalidValue`] if `count` is 0 or above 2^32.
pub fn submit(device: DeviceId, stream: StreamId, count: u64) -> Result<u64> {
    if count == 0 || count > 1 << 32 {
        return Err(Error::new(Status::InvalidValue, format_args!("count: {count} is not from 1 to 2^32")));
    }
    let (device, stream) = resolve_both(device, stream)?;
    let _serial = device.enter();
    device.tell(&Event::Submit { stream: stream.id(), count });
    Ok(submit_work(&device, stream, count, Vec::new(), None)? + count - 1)
}

/// Runs up to `count` further operations of a stream of the model device; stops at an unmet wait. Returns how many ran.
pub fn advance(device: DeviceId, stream: StreamId, count: u64) -> Result<u64> {
    let (device, stream) = resolve_both(device, stream)?;
    let _serial = device.enter();
    let ran = device.order.advance(&STREAMS, stream, count);
    device.tell(&Event::Advance { stream: stream.id(), count, ran });
    Ok(ran)
}

/// Makes what is submitted to `stream` from now on wait for the event's last record (`cuStreamWaitEvent`). A
/// never-recorded event counts as complete.
pub fn wait_event(device: DeviceId, stream: StreamId, event: EventId) -> Result<()> {
    let (device, stream) = resolve_both(device, stream)?;
    let _serial = device.enter();
    let recorded = super::event::recorded(event, Some(&device))?;
    let (deps, clock) = match recorded {
        Some(recorded) if STREAMS.at(recorded.at.stream.slot()).is(device.uid, recorded.at.stream) => {
            let clock = if rules::off(rules::TRANSITIVE) { None } else { Some(recorded.clock) };
            (vec![recorded.at], clock)
        }
        Some(recorded) => (Vec::new(), Some(recorded.clock)),
        None => (Vec::new(), None),
    };
    let seq = submit_work(&device, stream, 1, deps, clock.as_ref())?;
    device.tell(&Event::WaitEvent { event, stream: stream.id(), seq });
    Ok(())
}

/// The stream's numbers.
pub fn info(device: DeviceId, stream: StreamId) -> Result<StreamInfo> {
    let (device, stream) = resolve_both(device, stream)?;
    let _serial = device.enter();
    let record = STREAMS.at(stream.slot());
    let state = record.state.lock();
    Ok(StreamInfo {
        id: stream.id(),
        submitted: state.submitted,
        executed: record.executed(),
        observed: record.observed(),
        non_blocking: state.non_blocking,
        lazy: state.lazy,
    })
}
