//! Creating, recording, waiting for and destroying events.
//!
//! On CUDA an event's handle is the `CUevent` itself, one of the library's making or one of the caller's that it has seen.

use super::{
    Act, native, ready_stream, resolve_both, resolve_device, resolve_stream, shares_context, submit_agreed,
    synchronize_point,
};
use crate::error::{Error, Result, Status};
use crate::handle::{self, DeviceId, EventId, StreamId};
use crate::order::{At, Event, Point, Points, Recorded};
use crate::pool::caches::STREAMS;
use crate::pool::observer::Event as Told;
use crate::pool::release;
use crate::pool::slow::Slow;
use crate::pool::state::Device;
use crate::slab::{Slab, SlotMap};
use parking_lot::{MutexGuard, RwLock};
use std::sync::Arc;

pub(super) static EVENTS: Slab<Event, { 1 << 16 }> = Slab::new();
/// CUDA's events by the driver's handle. A leaf: an event may be locked, never the other way round.
static BY_RAW: RwLock<Option<SlotMap<u64, u32>>> = RwLock::new(None);

const KIND: handle::Kind = handle::Kind::Event;

/// What is known of an event at one moment.
#[derive(Clone, Default)]
pub(crate) struct Seen {
    pub(crate) recorded: Option<Recorded>,
    version: u64,
}

/// The device of an event stays known by slot and number; an event does not keep its device open.
fn lock(id: EventId) -> Result<(u32, MutexGuard<'static, crate::order::EventState>)> {
    native::refuse_forked()?;
    if native::is_foreign(id.0) && native::any() {
        let slot = BY_RAW.read().as_ref().and_then(|known| known.get(&id.0).copied());
        if let Some(slot) = slot {
            let state = EVENTS.at(slot).state.lock();
            if state.live && state.raw == id.0 {
                return Ok((slot, state));
            }
        }
    }
    let (slot, generation) = handle::decode(KIND, id.0).ok_or_else(|| handle::invalid(KIND, id.0))?;
    let state = EVENTS.get(slot).ok_or_else(|| handle::invalid(KIND, id.0))?.state.lock();
    // (One that goes by the driver's name has no other.)
    if state.raw != 0 {
        return Err(handle::invalid(KIND, id.0));
    }
    handle::judge(KIND, id.0, generation, state.generation, state.live)?;
    Ok((slot, state))
}

fn device_of(id: EventId) -> Result<Arc<Device>> {
    device_and_seen(id, |_| ()).map(|(device, ())| device)
}

/// The same, with something of the event as it was when it was looked at.
fn device_and_seen<T>(id: EventId, look: impl FnOnce(&crate::order::EventState) -> T) -> Result<(Arc<Device>, T)> {
    let (_, state) = lock(id)?;
    let (slot, uid) = (state.device as u32, (state.device >> 32) as u32);
    let looked = look(&state);
    drop(state);
    let device = native::device_by(slot, uid)
        .ok_or_else(|| Error::new(Status::Destroyed, "the event's device has been closed"))?;
    Ok((device, looked))
}

#[cold]
fn of_another_device(id: EventId) -> Error {
    Error::new(Status::WrongDevice, format_args!("event {:#x} belongs to another device", id.0))
}

/// What the event's last record stored.
pub(crate) fn seen(id: EventId, on: Option<&Device>) -> Result<Seen> {
    let (_, state) = lock(id)?;
    if on.is_some_and(|device| (state.device >> 32) as u32 != device.uid) {
        return Err(of_another_device(id));
    }
    Ok(Seen { recorded: state.recorded.clone(), version: state.version })
}

/// Whether the event has not been recorded again since.
pub(crate) fn unchanged(id: EventId, seen: &Seen) -> bool {
    lock(id).is_ok_and(|(_, state)| state.version == seen.version)
}

/// Creates an event, not yet recorded (`cuEventCreate`).
pub fn create(device: DeviceId) -> Result<EventId> {
    let device = resolve_device(device)?;
    let Some(cuda) = device.sound_cuda()? else { return enrol(&device, 0) };
    let raw = cuda.event_create().map_err(|code| cuda.error("cuEventCreate", code))?;
    enrol(&device, raw).inspect_err(|_| {
        let _ = cuda.event_destroy(raw);
    })
}

/// Gives an event a record. `raw`: the driver's handle, 0 on the model device.
fn enrol(device: &Arc<Device>, raw: u64) -> Result<EventId> {
    let _serial = device.enter();
    let slot =
        EVENTS.take_one().ok_or_else(|| Error::new(Status::OutOfMemory, "no event slot left in this process"))?;
    let mut state = EVENTS.at(slot).state.lock();
    state.generation += 1;
    state.live = true;
    state.device = (u64::from(device.uid) << 32) | u64::from(device.slot);
    state.recorded = None;
    state.under_way = 0;
    state.version += 1;
    state.raw = raw;
    let id = EventId(if raw == 0 { handle::encode(KIND, state.generation, slot) } else { raw });
    drop(state);
    if raw != 0 {
        // An event the caller destroyed without a word may have had this handle.
        let stale = BY_RAW.write().get_or_insert_default().insert(raw, slot);
        if let Some(stale) = stale {
            retire(stale, raw);
        }
    }
    device.tell(&Told::EventCreate { event: id });
    Ok(id)
}

/// Ends what the slot holds, if it still is that event and no other thread has done so.
fn retire(slot: u32, raw: u64) {
    let state = EVENTS.at(slot).state.lock();
    if state.live && state.raw == raw {
        retire_locked(slot, state);
    }
}

fn retire_locked(slot: u32, mut state: MutexGuard<'static, crate::order::EventState>) {
    state.live = false;
    state.recorded = None;
    state.raw = 0;
    let used_up = handle::used_up(state.generation);
    drop(state);
    if !used_up {
        EVENTS.give_back([slot]);
    }
}

/// Destroys an event (`cuEventDestroy`). Waits made before keep their point.
pub fn destroy(event: EventId) -> Result<()> {
    destroy_by(event, Act::Do)
}

/// As [`destroy`], done by `act`.
pub fn destroy_by(event: EventId, act: Act<'_>) -> Result<()> {
    destroy_of(None, event, act)
}

/// As [`destroy`], done by the caller, who names the event's device.
///
/// # Errors
/// [`Status::WrongDevice`]: it is another device's, and nothing has changed.
pub fn note_destroyed(device: DeviceId, event: EventId) -> Result<()> {
    destroy_of(Some(&*resolve_device(device)?), event, Act::Noted)
}

fn destroy_of(named: Option<&Device>, event: EventId, mut act: Act<'_>) -> Result<()> {
    let device = device_of(event).ok();
    let _serial = device.as_ref().map(|device| device.enter());
    let device = device.as_ref();
    let (slot, state) = match lock(event) {
        // One that was never seen has nothing to forget.
        Err(_) if named.is_some_and(|named| named.cuda().is_some()) && native::is_foreign(event.0) => return Ok(()),
        locked => locked?,
    };
    let raw = state.raw;
    if let Some(named) = named {
        // (Of a context that is not known any more, whose event this is cannot be told.)
        let may = named.uid == (state.device >> 32) as u32
            || device.map_or(raw != 0 && named.cuda().is_some(), |own| shares_context(named, own));
        if !may {
            return Err(of_another_device(event));
        }
    }
    if raw != 0
        && let Some(known) = BY_RAW.write().as_mut()
        && known.get(&raw) == Some(&slot)
    {
        known.remove(&raw);
    }
    // Still locked: of those who find it live, one ends it.
    retire_locked(slot, state);
    let Some(device) = device else { return Ok(()) };
    device.tell(&Told::EventDestroy { event });
    match device.cuda() {
        Some(cuda) if raw != 0 => {
            act.run(|| cuda.event_destroy(raw).map_err(|code| cuda.error("cuEventDestroy", code)))
        }
        _ => Ok(()),
    }
}

/// Records the event on a stream (`cuEventRecord`): it stands for everything submitted there so far. Recording again
/// replaces the point. `device` says whose default stream is meant and may be null beside a created stream.
#[inline]
pub fn record(device: DeviceId, event: EventId, stream: StreamId) -> Result<Point> {
    match record_ready(device, event, stream) {
        Some(at) => Ok(at.point()),
        None => record_rest(device, event, stream, &mut Act::Do),
    }
}

/// As [`record`], done by `act`. On CUDA an event of the caller's becomes known by this; on a capturing stream the record
/// is the capture's and stands for nothing here.
pub fn record_by(device: DeviceId, event: EventId, stream: StreamId, mut act: Act<'_>) -> Result<Point> {
    if let Some(at) = record_ready(device, event, stream) {
        return Ok(at.point());
    }
    record_rest(device, event, stream, &mut act)
}

/// The rest of [`record_by`], after the short way.
#[inline(never)]
fn record_rest(device: DeviceId, event: EventId, stream: StreamId, act: &mut Act<'_>) -> Result<Point> {
    let own = match device_of(event) {
        Ok(own) => own,
        Err(_) if native::any() && native::is_foreign(event.0) => {
            let (on, _) = resolve_both(device, stream)?;
            if on.cuda().is_some() {
                enrol(&on, event.0)?;
            }
            device_of(event)?
        }
        Err(error) => return Err(error),
    };
    let default_stream = stream.0 <= 2;
    if (device.0 != 0 || default_stream) && resolve_device(device)?.uid != own.uid {
        return Err(of_another_device(event));
    }
    let stream = resolve_stream(&own, stream)?;
    let _serial = own.enter();
    let cuda = own.sound_cuda()?;
    let raw = native::raw(&own, stream)?;
    if let Some(cuda) = cuda
        && native::is_capturing(cuda, raw)
    {
        lock(event)?.1.recorded = None;
        act.run(|| cuda.event_record(event.0, raw).map_err(|code| cuda.error("cuEventRecord", code)))?;
        return Ok(At { stream, seq: STREAMS.at(stream.slot()).state.lock().submitted }.point());
    }
    let (slot, generation, version, alone) = {
        let (slot, mut state) = lock(event)?;
        state.version += 1;
        let mut alone = true;
        if cuda.is_some() {
            // Until the driver has recorded it anew it stands for nothing.
            state.recorded = None;
            // Of two records under way only the driver knows which comes last.
            alone = state.under_way == 0;
            state.under_way += 1;
        }
        (slot, state.generation, state.version, alone)
    };
    let over = || {
        let mut state = EVENTS.at(slot).state.lock();
        if cuda.is_some() && state.generation == generation {
            state.under_way -= 1;
        }
    };
    let agree = || match cuda {
        None => Ok(()),
        Some(cuda) => act.run(|| cuda.event_record(event.0, raw).map_err(|code| cuda.error("cuEventRecord", code))),
    };
    let seq = match submit_agreed(&own, stream, 1, Points::default(), None, agree) {
        Ok(seq) => seq,
        Err(error) => {
            over();
            if error.status != Status::Destroyed {
                // The number is used up all the same.
                own.tell(&Told::Submit { stream: stream.id(), count: 1 });
            }
            return Err(error);
        }
    };
    let at = At { stream, seq };
    {
        let state = STREAMS.at(stream.slot()).state.lock();
        let clock = state.clock_at(seq);
        drop(state);
        over();
        let (_, mut state) = lock(event)?;
        if state.version == version && alone {
            state.recorded = Some(Recorded { at, clock });
        }
    }
    own.tell(&Told::EventRecord { event, stream: stream.id(), seq });
    native::after_call(&own, stream, false);
    Ok(at.point())
}

/// A record the short way. `None`: nothing was done.
#[inline(always)]
fn record_ready(device: DeviceId, event: EventId, stream: StreamId) -> Option<At> {
    let (record, mut state) = ready_stream(device, stream)?;
    let mut known = lock_plain(event, state.device_uid)?;
    let at = At { stream: state.me, seq: state.push_next(record) };
    known.version += 1;
    match &mut known.recorded {
        Some(recorded) if recorded.clock.is_same(&state.clock) => recorded.at = at,
        recorded => {
            let old = recorded.take().map(|recorded| recorded.clock);
            *recorded = Some(Recorded { at, clock: state.share_clock(old) });
        }
    }
    Some(at)
}

/// An event of the model device with that number, where no CUDA device has been opened. `None`: more is to be looked at.
#[inline(always)]
pub(super) fn lock_plain(id: EventId, device_uid: u32) -> Option<MutexGuard<'static, crate::order::EventState>> {
    let (slot, generation) = handle::decode(KIND, id.0)?;
    let state = EVENTS.get(slot)?.state.lock();
    (state.live && state.raw == 0 && state.generation == generation && (state.device >> 32) as u32 == device_uid)
        .then_some(state)
}

/// Waits on the host for the event's last record, and observes it (`cuEventSynchronize`).
pub fn synchronize(event: EventId) -> Result<()> {
    synchronize_by(event, Act::Do)
}

/// As [`synchronize`], done by `act`.
pub fn synchronize_by(event: EventId, act: Act<'_>) -> Result<()> {
    synchronize_of(None, event, act)
}

/// As [`synchronize`], done by the caller, who names the event's device.
///
/// # Errors
/// [`Status::WrongDevice`]: it is another device's, and nothing has changed.
pub fn note_synchronized(device: DeviceId, event: EventId) -> Result<()> {
    synchronize_of(Some(&*resolve_device(device)?), event, Act::Noted)
}

fn synchronize_of(named: Option<&Device>, event: EventId, mut act: Act<'_>) -> Result<()> {
    let look = |state: &crate::order::EventState| Seen { recorded: state.recorded.clone(), version: state.version };
    let (device, mut before) = device_and_seen(event, look)?;
    if named.is_some_and(|named| named.uid != device.uid && !shares_context(named, &device)) {
        return Err(of_another_device(event));
    }
    let serial = device.enter();
    if serial.is_some() {
        // It may have waited for its turn.
        before = seen(event, None)?;
    }
    if let Some(cuda) = device.sound_cuda()? {
        act.run(|| cuda.event_synchronize(event.0).map_err(|code| cuda.error("cuEventSynchronize", code)))?;
        if !unchanged(event, &before) {
            before.recorded = None;
        }
    }
    device.tell(&Told::SynchronizeEvent { event });
    match before.recorded {
        Some(Recorded { at, clock }) => {
            let barrier = if at.stream == device.order.legacy { at.seq } else { clock.legacy() };
            synchronize_point(&device, at, &clock, barrier);
        }
        // Nothing new is observed, but pages above a threshold go back as at any synchronise.
        None => {
            native::poll_before_release(&device);
            release::observe(&mut Slow::lock(&device), &[]);
        }
    }
    Ok(())
}

/// Whether the event's last record has executed (`cuEventQuery`). Makes nothing observed.
pub fn query(event: EventId) -> Result<bool> {
    let device = device_of(event)?;
    let _serial = device.enter();
    let before = seen(event, None)?;
    if let Some(cuda) = device.sound_cuda()? {
        let done = cuda.event_query(event.0).map_err(|code| cuda.error("cuEventQuery", code))?;
        if done
            && let Some(recorded) = before.recorded.clone()
            && unchanged(event, &before)
        {
            native::publish_executed(&device, recorded.at.stream, recorded.at.seq);
        }
        return Ok(done);
    }
    Ok(before.recorded.is_none_or(|recorded| device.order.done(&STREAMS, recorded.at)))
}
