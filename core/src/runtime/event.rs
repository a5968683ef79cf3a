//! Creating, recording, waiting for and destroying events.

use super::{DEVICES, resolve_device, resolve_stream, submit_work, synchronize_point};
use crate::error::{Error, Result, Status};
use crate::handle::{self, DeviceId, EventId, StreamId};
use crate::order::{At, Event, Point, Recorded};
use crate::pool::observer::Event as Seen;
use crate::pool::release;
use crate::pool::state::{Device, STREAMS, Slow};
use crate::slab::Slab;
use parking_lot::MutexGuard;
use std::sync::Arc;

static EVENTS: Slab<Event, { 1 << 16 }> = Slab::new();

const KIND: handle::Kind = handle::Kind::Event;

/// The device of an event stays known by slot and number; an event does not keep its device open.
fn lock(id: EventId) -> Result<(u32, MutexGuard<'static, crate::order::EventState>)> {
    let (slot, generation) = handle::decode(KIND, id.0).ok_or_else(|| handle::invalid(KIND, id.0))?;
    let state = EVENTS.get(slot).ok_or_else(|| handle::invalid(KIND, id.0))?.state.lock();
    handle::judge(KIND, id.0, generation, state.generation, state.live)?;
    Ok((slot, state))
}

fn device_of(id: EventId) -> Result<Arc<Device>> {
    let (_, state) = lock(id)?;
    let (slot, uid) = (state.device as u32, (state.device >> 32) as u32);
    drop(state);
    DEVICES
        .get(slot)
        .and_then(|place| place.0.lock().device.clone())
        .filter(|device| device.uid == uid)
        .ok_or_else(|| Error::new(Status::Destroyed, "the event's device has been closed"))
}

/// What the event's last record stored.
pub(crate) fn recorded(id: EventId, on: Option<&Device>) -> Result<Option<Recorded>> {
    let (_, state) = lock(id)?;
    if on.is_some_and(|device| (state.device >> 32) as u32 != device.uid) {
        return Err(Error::new(Status::WrongDevice, format_args!("event {:#x} belongs to another device", id.0)));
    }
    Ok(state.recorded.clone())
}

/// Creates an event, not yet recorded.
pub fn create(device: DeviceId) -> Result<EventId> {
    let device = resolve_device(device)?;
    let _serial = device.enter();
    let slot =
        EVENTS.take_one().ok_or_else(|| Error::new(Status::OutOfMemory, "no event slot left in this process"))?;
    let mut state = EVENTS.at(slot).state.lock();
    state.generation += 1;
    state.live = true;
    state.device = (u64::from(device.uid) << 32) | u64::from(device.slot);
    state.recorded = None;
    let id = EventId(handle::encode(KIND, state.generation, slot));
    drop(state);
    device.tell(&Seen::EventCreate { event: id });
    Ok(id)
}

/// Destroys an event. Waits made before keep their point.
pub fn destroy(event: EventId) -> Result<()> {
    let device = device_of(event).ok();
    let _serial = device.as_ref().map(|device| device.enter());
    let (slot, mut state) = lock(event)?;
    state.live = false;
    state.recorded = None;
    let used_up = handle::used_up(state.generation);
    drop(state);
    if !used_up {
        EVENTS.give_back([slot]);
    }
    if let Some(device) = &device {
        device.tell(&Seen::EventDestroy { event });
    }
    Ok(())
}

/// Records the event on a stream (`cuEventRecord`): it stands for everything submitted there so far. Recording again
/// replaces the point. `device` says whose default stream is meant and may be null beside a created stream.
pub fn record(device: DeviceId, event: EventId, stream: StreamId) -> Result<Point> {
    let own = device_of(event)?;
    let default_stream = stream.0 <= 2;
    if (device.0 != 0 || default_stream) && resolve_device(device)?.uid != own.uid {
        return Err(Error::new(Status::WrongDevice, format_args!("event {:#x} belongs to another device", event.0)));
    }
    let stream = resolve_stream(&own, stream)?;
    let _serial = own.enter();
    let seq = submit_work(&own, stream, 1, Vec::new(), None)?;
    let clock = STREAMS.at(stream.slot()).state.lock().clock_at(seq);
    let at = At { stream, seq };
    lock(event)?.1.recorded = Some(Recorded { at, clock });
    own.tell(&Seen::EventRecord { event, stream: stream.id(), seq });
    Ok(at.point())
}

/// Waits on the host for the event's last record, and observes it (`cuEventSynchronize`).
pub fn synchronize(event: EventId) -> Result<()> {
    let device = device_of(event)?;
    let _serial = device.enter();
    device.tell(&Seen::SynchronizeEvent { event });
    match recorded(event, None)? {
        Some(recorded) => synchronize_point(&device, recorded.at, &recorded.clock),
        // Nothing new is observed, but pages above a threshold go back as at any synchronise.
        None => release::observe(&mut Slow::lock(&device), &[]),
    }
    Ok(())
}

/// Whether the event's last record has executed (`cuEventQuery`). Makes nothing observed.
pub fn query(event: EventId) -> Result<bool> {
    let device = device_of(event)?;
    let _serial = device.enter();
    Ok(recorded(event, None)?.is_none_or(|recorded| device.order.done(&STREAMS, recorded.at)))
}
