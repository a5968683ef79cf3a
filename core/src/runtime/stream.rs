//! Creating, submitting to, waiting for and destroying streams.

use super::{Act, native, ready_stream, resolve_both, resolve_device, submit_agreed, submit_work, synchronize_point};
use crate::error::{Error, Result, Status};
use crate::few::Few;
use crate::handle::{self, DeviceId, EventId, StreamId};
use crate::order::{self, At, Clock, Points, Recorded, StreamOrderId, StreamRef};
use crate::pool::caches::STREAMS;
use crate::pool::observer::Event;
use crate::pool::release;
use crate::pool::slow::Slow;
use crate::pool::state::Device;
use crate::rules;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

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
    /// Runs only when advanced or synchronised. `None` on CUDA, where streams run as they do.
    pub lazy: Option<bool>,
}

/// Creates a stream (`cuStreamCreate`). On CUDA the handle is the `CUstream` itself.
///
/// # Errors
/// [`Status::InvalidValue`] for a pace on CUDA, where streams run as they do; what the driver answers.
pub fn create(device: DeviceId, flags: StreamFlags) -> Result<StreamId> {
    let device = resolve_device(device)?;
    let Some(cuda) = device.sound_cuda()? else {
        let _serial = device.enter();
        let (_, id) = create_on(&device, flags)?;
        forget_ended(&device);
        return Ok(id);
    };
    if flags.lazy.is_some() {
        return Err(Error::new(Status::InvalidValue, "flags: lazy and eager are for streams of the model device"));
    }
    let raw = cuda.stream_create(flags.non_blocking).map_err(|code| cuda.error("cuStreamCreate", code))?;
    let identity = if device.checked { cuda.stream_identity(raw).unwrap_or(0) } else { 0 };
    // A stream the caller destroyed without a word may have had this handle.
    native::forget_everywhere(raw);
    match native::adopt(&device, raw, flags.non_blocking, identity) {
        Ok(_) => Ok(StreamId(raw)),
        Err(error) => {
            let _ = cuda.stream_destroy(raw);
            Err(error)
        }
    }
}

pub(crate) fn create_on(device: &Arc<Device>, flags: StreamFlags) -> Result<(StreamRef, StreamId)> {
    let lazy = flags.lazy.unwrap_or(device.options.lazy);
    let (stream, id) = create_with(device, flags.non_blocking, lazy)?;
    device.tell(&Event::StreamCreate { id: stream.id(), non_blocking: flags.non_blocking, lazy });
    Ok((stream, id))
}

/// A stream no call can name and no trace tells of: it comes to be by the call that needs it.
pub(crate) fn create_unnamed(device: &Arc<Device>) -> Result<StreamRef> {
    let (stream, _) = create_with(device, true, device.options.lazy)?;
    STREAMS.at(stream.slot()).state.lock().set_handle(0);
    Ok(stream)
}

fn create_with(device: &Arc<Device>, non_blocking: bool, lazy: bool) -> Result<(StreamRef, StreamId)> {
    let (stream, generation) = device.order.create(&STREAMS, device.slot, non_blocking, lazy).ok_or_else(|| {
        Error::new(Status::OutOfMemory, "no stream slot left in this process, or no number on this device")
    })?;
    Ok((stream, StreamId(handle::encode(handle::Kind::Stream, generation, stream.slot()))))
}

/// How many destroyed streams are looked at when one is created.
const LOOKED_AT_ENDED: usize = 4;

/// A stream has been created: some of those that are destroyed and not forgotten are looked at, and forgotten if all they were
/// given has executed. So there are not more and more of them where nobody synchronises. No locks held but the serialising one.
pub(super) fn forget_ended(device: &Arc<Device>) {
    let mut looked_at: Few<StreamRef, LOOKED_AT_ENDED> = Few::default();
    {
        let mut ended = device.ended.lock();
        while looked_at.len() < LOOKED_AT_ENDED
            && let Some(stream) = ended.pop_front()
        {
            if STREAMS.at(stream.slot()).is(device.uid, stream) {
                looked_at.push(stream);
            }
        }
    }
    if looked_at.is_empty() {
        return;
    }
    let mut done: Few<At, LOOKED_AT_ENDED> = Few::default();
    for &stream in looked_at.iter() {
        match end_of(device, stream) {
            Some(end) => done.push(At { stream, seq: end }),
            None => device.ended.lock().push_back(stream),
        }
    }
    if !done.is_empty() {
        release::forget_executed(&mut Slow::lock(device), &done);
    }
}

/// The last operation of a destroyed stream, if it has executed. What only a driver knows is told to the observer.
fn end_of(device: &Arc<Device>, stream: StreamRef) -> Option<u64> {
    let record = STREAMS.at(stream.slot());
    let recorded = device.cuda().is_none() && device.order.opaque;
    if recorded {
        record.execute(device.recorded_end(stream)?);
    }
    native::poll(device, stream);
    let end = record.state.lock().submitted;
    if record.executed() < end {
        return None;
    }
    if device.order.opaque {
        device.tell(&Event::ProgressAnswer { stream: stream.id(), executed: end });
    }
    Some(end)
}

/// Destroys a created stream (`cuStreamDestroy`): returns at once, its work completes. It is forgotten once all it
/// submitted is observed. On CUDA also one of the caller's own that the library has seen.
///
/// # Errors
/// [`Status::InvalidValue`] for a default stream.
pub fn destroy(stream: StreamId) -> Result<()> {
    if native::any() && native::is_foreign(stream.0) {
        native::refuse_forked()?;
        if let Some((device, own)) = native::find(stream.0) {
            let Some(cuda) = device.cuda() else { return Err(handle::invalid(handle::Kind::Stream, stream.0)) };
            // Forgotten first, and by every device: once it is destroyed, another may get its handle.
            end(&device, own)?;
            end_elsewhere(&device, stream.0);
            return cuda.stream_destroy(stream.0).map_err(|code| cuda.error("cuStreamDestroy", code));
        }
    }
    release(DeviceId(0), stream)
}

/// The same as [`destroy`] on the model device; on CUDA, what must come before the caller's own destroy.
pub fn release(device: DeviceId, id: StreamId) -> Result<()> {
    let refused = || Err(Error::new(Status::InvalidValue, "stream: a default stream cannot be destroyed"));
    if id.0 <= 2 {
        return refused();
    }
    if native::any() && native::is_foreign(id.0) && device.0 != 0 {
        let device = resolve_device(device)?;
        if let Some(cuda) = device.cuda() {
            let known = device.adopted.read().get(&id.0).copied();
            if known.is_none() {
                native::refuse_others(&device, cuda, id)?;
            }
            end_elsewhere(&device, id.0);
            // One that was never seen has nothing to forget.
            let Some(stream) = known else { return Ok(()) };
            return end(&device, stream);
        }
    }
    let (device, stream) = resolve_both(device, id)?;
    if native::is_foreign(id.0) {
        end_elsewhere(&device, id.0);
    }
    // A default stream has a handle value too, which `pool::info` tells of a per-thread one and anyone can guess.
    if stream == device.order.legacy
        || device.per_thread.lock().values().any(|&own| own == stream)
        || *device.timeline.lock() == Some(stream)
    {
        return refused();
    }
    end(&device, stream)
}

/// A stream of the driver's that ends, ends for every device of the library that has seen it: one handle value, one stream.
fn end_elsewhere(device: &Arc<Device>, raw: u64) {
    for (other, stream) in native::find_all(raw) {
        if other.uid != device.uid {
            // Another thread may have been faster.
            let _ = end(&other, stream);
        }
    }
}

/// The stream ends by a call of its own: what it leaves behind can be told by an event for the last time.
fn end(device: &Arc<Device>, stream: StreamRef) -> Result<()> {
    let _serial = device.enter();
    mark_end(device, stream);
    native::record_last(device, stream);
    release_ref(device, stream)
}

/// Where others' work is not seen, a stream that is a user of a live block ends with an operation of its own: the block's
/// free comes after all that the stream was given, seen or not.
pub(super) fn mark_end(device: &Device, stream: StreamRef) {
    if !device.order.opaque {
        return;
    }
    let pools = device.pools.lock().clone();
    let uses = pools.iter().any(|pool| pool.users.lock().values().any(|users| users.contains(&stream)));
    let mut state = STREAMS.at(stream.slot()).state.lock();
    if uses && native::is_live(device, stream, &state) {
        device.order.mark(&STREAMS, &mut state);
    }
}

/// Forgets a stream's handle; its record goes when all it submitted is observed, or an allocation was answered that it has executed.
pub(crate) fn release_ref(device: &Arc<Device>, stream: StreamRef) -> Result<()> {
    let _serial = device.enter();
    let mut slow = Slow::lock(device);
    let state = slow.state(stream.slot());
    if !native::is_live(device, stream, state) {
        return Err(Error::new(Status::Destroyed, "the stream has been destroyed"));
    }
    device.tell(&Event::StreamRelease { id: stream.id() });
    state.close();
    state.released = true;
    STREAMS.at(stream.slot()).watch.fetch_or(native::ENDED, Relaxed);
    let raw = std::mem::take(&mut state.attach.native.raw);
    if raw > native::PER_THREAD {
        device.adopted.write().remove(&raw);
    }
    release::forget_if_done(&mut slow, stream);
    if STREAMS.at(stream.slot()).is(device.uid, stream) {
        device.ended.lock().push_back(stream);
    }
    drop(slow);
    // (What others do with it from now on needs no barrier.)
    STREAMS.at(stream.slot()).state.renounce();
    Ok(())
}

/// Runs a stream to its end, with what it depends on, and observes it (`cuStreamSynchronize`).
pub fn synchronize(device: DeviceId, stream: StreamId) -> Result<()> {
    synchronize_by(device, stream, Act::Do)
}

/// As [`synchronize`], done by `act`.
pub fn synchronize_by(device: DeviceId, stream: StreamId, mut act: Act<'_>) -> Result<()> {
    let (device, stream) = resolve_both(device, stream)?;
    let _serial = device.enter();
    let (at, clock, raw) = {
        let state = native::live(&device, stream)?;
        (At { stream, seq: state.submitted }, state.clock.clone(), state.attach.native.raw)
    };
    // A barrier that is not published has a number, and the driver need not have it.
    let barrier = if stream == device.order.legacy { device.order.last_barrier() } else { clock.legacy() };
    if let Some(cuda) = device.sound_cuda()? {
        let backed = match act {
            // An event that is recorded now, the caller has not waited for.
            Act::Noted => native::was_backed(stream),
            _ => native::is_backed(&device, stream),
        };
        act.run(|| cuda.stream_synchronize(raw).map_err(|code| cuda.error("cuStreamSynchronize", code)))?;
        if !backed {
            // (Not observed then: a later synchronise sees it.)
            return Ok(());
        }
    }
    device.tell(&Event::SynchronizeStream { stream: stream.id() });
    synchronize_point(&device, at, &clock, barrier);
    Ok(())
}

/// Whether everything submitted to the stream has run (`cuStreamQuery`). Makes nothing observed.
pub fn query(device: DeviceId, stream: StreamId) -> Result<bool> {
    let (device, stream) = resolve_both(device, stream)?;
    let _serial = device.enter();
    let record = STREAMS.at(stream.slot());
    let (submitted, raw) = {
        let state = native::live(&device, stream)?;
        (state.submitted, state.attach.native.raw)
    };
    if let Some(cuda) = device.sound_cuda()? {
        let backed = native::is_backed(&device, stream);
        let done = cuda.stream_query(raw).map_err(|code| cuda.error("cuStreamQuery", code))?;
        if done && backed {
            native::publish_executed(&device, stream, submitted);
        }
        return Ok(done);
    }
    Ok(record.executed() >= submitted)
}

/// Numbers of operations stay below what handles begin with, and below the mark of a block's only added user, with room for what
/// other threads submit at the same time and for calls that take one number each.
const MOST_OPERATIONS: u64 = 1 << 61;

/// Submits `count` operations of work to a stream of the model device. Returns the last one's number.
///
/// # Errors
/// [`Status::InvalidValue`] if `count` is 0 or above 2^32, or the stream has had 2^61 operations.
#[inline(always)]
pub fn submit(device: DeviceId, stream: StreamId, count: u64) -> Result<u64> {
    match submit_ready(device, stream, count) {
        Some(last) => Ok(last),
        None => submit_rest(device, stream, count),
    }
}

/// How much may be submitted by one call.
const MOST_AT_ONCE: u64 = 1 << 32;

/// [`submit`] the short way. `None`: nothing was done.
#[inline(always)]
fn submit_ready(device: DeviceId, stream: StreamId, count: u64) -> Option<u64> {
    if count.wrapping_sub(1) >= MOST_AT_ONCE {
        return None;
    }
    let (record, mut state) = ready_stream(device, stream)?;
    if state.submitted >= MOST_OPERATIONS {
        return None;
    }
    state.push_ready(record, count).map(|first| first + count - 1)
}

/// The rest of [`submit`], after the short way.
#[inline(never)]
fn submit_rest(device: DeviceId, stream: StreamId, count: u64) -> Result<u64> {
    if count == 0 || count > MOST_AT_ONCE {
        return Err(Error::new(Status::InvalidValue, format_args!("count: {count} is not from 1 to 2^32")));
    }
    let (device, stream) = resolve_both(device, stream)?;
    super::model_only(&device)?;
    let _serial = device.enter();
    if STREAMS.at(stream.slot()).state.lock().submitted >= MOST_OPERATIONS {
        return Err(Error::new(Status::InvalidValue, "the stream has had 2^61 operations: no more can be numbered"));
    }
    if device.order.opaque {
        // What a trace tells so of a CUDA device: an operation that the driver has refused, whose number is used up.
        let refused = || Err(Error::new(Status::Driver, "refused when recorded"));
        let answer = submit_agreed(&device, stream, count, Points::default(), None, refused);
        if let Err(error) = answer
            && error.status != Status::Driver
        {
            return Err(error);
        }
        device.tell(&Event::Submit { stream: stream.id(), count });
        return Ok(STREAMS.at(stream.slot()).state.lock().submitted);
    }
    // Told once it is done: the stream may have been destroyed while this waited for its turn.
    let first = submit_work(&device, stream, count, Points::default(), None)?;
    device.tell(&Event::Submit { stream: stream.id(), count });
    Ok(first + count - 1)
}

/// Runs up to `count` further operations of a stream of the model device; stops at an unmet wait. Returns how many ran.
#[inline]
pub fn advance(device: DeviceId, stream: StreamId, count: u64) -> Result<u64> {
    if let Some((record, mut state)) = ready_stream(device, stream) {
        // Nobody waits for it, so nothing else moves with it.
        let (before, uid) = (record.executed(), state.device_uid);
        let limit = before.saturating_add(count);
        state.advance(record, limit, |dep| order::done(&STREAMS, uid, dep));
        return Ok(record.executed() - before);
    }
    advance_rest(device, stream, count)
}

/// The rest of [`advance`], after the short way.
#[inline(never)]
fn advance_rest(device: DeviceId, stream: StreamId, count: u64) -> Result<u64> {
    let (device, stream) = resolve_both(device, stream)?;
    super::model_only(&device)?;
    let _serial = device.enter();
    let ran = device.order.advance(&STREAMS, stream, count);
    device.tell(&Event::Advance { stream: stream.id(), count, ran });
    Ok(ran)
}

/// Makes what is submitted to `stream` from now on wait for the event's last record (`cuStreamWaitEvent`). A
/// never-recorded event counts as complete.
#[inline]
pub fn wait_event(device: DeviceId, stream: StreamId, event: EventId) -> Result<()> {
    if wait_ready(device, stream, event) {
        return Ok(());
    }
    wait_rest(device, stream, event, &mut Act::Do)
}

/// As [`wait_event`], done by `act`. On CUDA an event the library has not seen recorded orders nothing it knows of, and a
/// wait on a capturing stream is the capture's.
pub fn wait_event_by(device: DeviceId, stream: StreamId, event: EventId, mut act: Act<'_>) -> Result<()> {
    if wait_ready(device, stream, event) {
        return Ok(());
    }
    wait_rest(device, stream, event, &mut act)
}

/// The rest of [`wait_event_by`], after the short way.
#[inline(never)]
fn wait_rest(device: DeviceId, stream: StreamId, event: EventId, act: &mut Act<'_>) -> Result<()> {
    let (device, stream) = resolve_both(device, stream)?;
    let _serial = device.enter();
    let cuda = device.sound_cuda()?;
    let seen = match super::event::seen(event, Some(&device)) {
        Ok(seen) => seen,
        // Not one the library knows: only the driver can judge it.
        Err(_) if cuda.is_some() && native::is_foreign(event.0) => super::event::Seen::default(),
        Err(error) => return Err(error),
    };
    let (deps, clock) = after(&device, seen.recorded.clone());
    let Some(cuda) = cuda else {
        let seq = submit_work(&device, stream, 1, deps, clock.as_ref())?;
        device.tell(&Event::WaitEvent { event, stream: stream.id(), seq });
        return Ok(());
    };
    let raw = native::raw(&device, stream)?;
    let mut agree = || act.run(|| cuda.stream_wait(raw, event.0).map_err(|code| cuda.error("cuStreamWaitEvent", code)));
    if native::is_capturing(cuda, raw) || seen.recorded.is_none() {
        return agree();
    }
    // Recorded again meanwhile, the driver may have waited for the other record: then nothing is believed.
    let mut same = true;
    let agree = || {
        agree()?;
        same = super::event::unchanged(event, &seen);
        if same { Ok(()) } else { Err(Error::new(Status::NotReady, "recorded again")) }
    };
    match submit_agreed(&device, stream, 1, deps, clock.as_ref(), agree) {
        Ok(seq) => device.tell(&Event::WaitEvent { event, stream: stream.id(), seq }),
        Err(error) => {
            if stream == device.order.legacy && error.status != Status::Destroyed && !rules::off(rules::LEGACY) {
                // A barrier's number is used up all the same.
                device.tell(&Event::Submit { stream: stream.id(), count: 1 });
            }
            if same {
                return Err(error);
            }
        }
    }
    native::after_call(&device, stream, false);
    Ok(())
}

/// What a wait for a record depends on, and what it is ordered after beside.
fn after(device: &Device, recorded: Option<Recorded>) -> (Points, Option<Clock>) {
    match recorded {
        Some(recorded) if STREAMS.at(recorded.at.stream.slot()).is(device.uid, recorded.at.stream) => {
            let clock = if rules::off(rules::TRANSITIVE) { None } else { Some(recorded.clock) };
            ([recorded.at].into_iter().collect(), clock)
        }
        Some(recorded) => (Points::default(), Some(recorded.clock)),
        None => (Points::default(), None),
    }
}

/// A wait the short way. `false`: nothing was done.
#[inline(always)]
fn wait_ready(device: DeviceId, stream: StreamId, event: EventId) -> bool {
    let Some((record, mut state)) = ready_stream(device, stream) else { return false };
    let Some(known) = super::event::lock_plain(event, state.device_uid) else { return false };
    match &known.recorded {
        Some(Recorded { at, clock }) => {
            !rules::off(rules::TRANSITIVE) && order::submit_wait(&STREAMS, record, &mut state, *at, clock)
        }
        None => {
            state.push_next(record);
            true
        }
    }
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
        lazy: device.cuda().is_none().then_some(state.lazy),
    })
}

#[cfg(test)]
mod tests {
    use super::{MOST_OPERATIONS, STREAMS, StreamFlags, create, submit};
    use crate::device::{self, ModelOptions};
    use crate::{Status, handle};

    #[test]
    fn a_stream_has_so_many_operations_that_no_number_looks_like_a_handle_and_no_more() {
        let device = device::open_model(&ModelOptions::default()).unwrap();
        let stream = create(device, StreamFlags::default()).unwrap();
        submit(device, stream, 1).unwrap();
        STREAMS.at(handle::slot(stream.0)).state.lock().submitted = MOST_OPERATIONS - 1;
        assert_eq!(submit(device, stream, 1 << 32), Ok(MOST_OPERATIONS - 1 + (1 << 32)));
        assert_eq!(submit(device, stream, 1).unwrap_err().status, Status::InvalidValue);
    }
}
