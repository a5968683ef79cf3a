//! Streams as the driver names them: finding them, and the events the library records on them for itself.
//!
//! A stream starts quiet: nothing is recorded on it. When another stream first wants memory it has freed it is *wanted*,
//! and from its own next call on an event is recorded at each of its frees; where a point others want has no event after
//! it, the stream *owes* one, which its next own call of any kind records. Only the stream passed to a call is ever
//! touched. What an event says of progress is asked with no lock held, and raises *executed*, never *observed*.

use super::stream::StreamFlags;
use super::{DEVICES, shares_context, stream, thread};
use crate::device_source::cuda::{Code, CudaDevice, Fence, fork};
use crate::error::{Error, Result, Status};
use crate::handle::{self, StreamId};
use crate::leaf::{Leaf, RawLeaf};
use crate::order::{self, Stream, StreamRef};
use crate::pool::caches::{Caches, STREAMS, StreamGuard, StreamState};
use crate::pool::observer::Event;
use crate::pool::state::Device;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// Bit of `watch`: the next own call, of any kind, records an event.
pub(crate) const OWES: u32 = 1;
/// Bit of `watch`: every free records an event.
pub(crate) const WANTED: u32 = 2;
/// Bit of `watch`: the stream has been destroyed, and is not forgotten yet.
pub(crate) const ENDED: u32 = 4;
/// Bit of `watch`: the last operations are ordered after work of others by what blocking streams and the legacy stream owe each
/// other, and the driver has none of them: until it has an event after them, who waits for the stream has not waited for that work.
pub(crate) const UNBACKED: u32 = 8;

/// The driver's value for the legacy default stream, and for the calling thread's.
pub(crate) const LEGACY: u64 = 1;
pub(crate) const PER_THREAD: u64 = 2;
/// Keys of per-thread streams: this and the thread's number. No pointer and no handle of ours begins so.
const THREAD_KEY: u64 = 0xe << 60;

/// How many events of a stream are kept before they are thinned; a later one covers what an earlier one did.
const FENCES: usize = 256;

/// What the driver knows a stream by, and the events recorded on it, oldest first.
#[derive(Default)]
pub(crate) struct NativeStream {
    /// What the driver is told: a `CUstream`, or [`LEGACY`] or [`PER_THREAD`]; 0 for the device's timeline.
    pub(crate) raw: u64,
    /// The driver's number for it, 0 if not asked.
    pub(crate) identity: u64,
    pub(crate) fences: VecDeque<FenceAt>,
}

pub(crate) struct FenceAt {
    /// Comes after everything submitted up to here.
    pub(crate) seq: u64,
    pub(crate) fence: Arc<Fence>,
    /// Recorded inside a free: others may be made to wait for it.
    pub(crate) in_free: bool,
}

impl NativeStream {
    /// How far others could be made to wait for the stream.
    pub(crate) fn waitable(&self) -> u64 {
        self.fences.iter().rev().find(|at| at.in_free).map_or(0, |at| at.seq)
    }
    /// The first event to wait for that comes after `seq`.
    pub(crate) fn fence_after(&self, seq: u64) -> Option<Arc<Fence>> {
        self.fences.iter().find(|at| at.in_free && at.seq >= seq).map(|at| at.fence.clone())
    }
    fn add(&mut self, seq: u64, fence: Arc<Fence>, in_free: bool) {
        let place = self.fences.iter().rposition(|at| at.seq <= seq).map_or(0, |at| at + 1);
        self.fences.insert(place, FenceAt { seq, fence, in_free });
    }
    /// Keeps every other event, and the newest.
    fn thin(&mut self) {
        let newest = self.fences.len() - 1;
        let mut index = 0;
        self.fences.retain(|_| {
            index += 1;
            (index - 1) % 2 == 1 || index - 1 == newest
        });
    }
}

/// Devices with anything left, to find a stream's or event's device when a call does not name it.
static OPEN: Leaf<Vec<Weak<Device>>> = Leaf::new(Vec::new());

/// Its leaf.
pub(super) fn leaf() -> &'static RawLeaf {
    crate::leaf::raw(&OPEN)
}

pub(crate) fn enlist(device: &Arc<Device>) {
    let mut open = OPEN.lock();
    open.retain(|known| known.strong_count() > 0);
    open.push(Arc::downgrade(device));
}

/// Those devices, in the order they were opened.
fn devices() -> Vec<Arc<Device>> {
    OPEN.lock().iter().filter_map(Weak::upgrade).collect()
}

fn cuda_devices() -> impl Iterator<Item = Arc<Device>> {
    devices().into_iter().filter(|device| device.cuda().is_some())
}

/// A device by its number, whether its handle is open or not.
pub(crate) fn by_number(uid: u32) -> Option<Arc<Device>> {
    devices().into_iter().find(|device| device.uid == uid)
}

/// Whether some CUDA device has been opened in this process, which no child of it can use.
#[inline(always)]
pub(crate) fn any() -> bool {
    fork::process() != 0
}

/// Whether `stream` needs nothing that this module knows.
#[inline(always)]
pub(crate) fn is_plain(stream: StreamId) -> bool {
    fork::is_plain(stream.0)
}

/// # Errors
/// FORKED in the child of a process that had opened a CUDA device.
#[inline(always)]
pub(crate) fn refuse_forked() -> Result<()> {
    if fork::process() & fork::FORKED == 0 { Ok(()) } else { Err(forked()) }
}

#[cold]
fn forked() -> Error {
    Error::new(
        Status::Forked,
        "this process was forked after a CUDA device had been opened; no call can be served in it",
    )
}

#[inline(always)]
pub(crate) fn any_poisoned() -> bool {
    fork::process() & fork::POISONED != 0
}

/// Forgets the default streams of threads that have ended, but for `me`: no call can name them. What they have freed is
/// there for others once it is observed. An event cannot be recorded on them: this thread's own stream has their name.
pub(crate) fn forget_ended_threads(device: &Arc<Device>, me: u64) {
    let known: Vec<(u64, StreamRef)> =
        device.per_thread.lock().iter().map(|(&thread, &stream)| (thread, stream)).collect();
    for (thread, stream) in thread::ended(known, me) {
        if device.per_thread.lock().remove(&thread).is_some() {
            stream::mark_end(device, stream);
            // A call that had the stream's own handle may have been faster.
            let _ = stream::release_ref(device, stream);
        }
    }
}

/// A stream as a call names it, made unique.
#[inline(always)]
pub(crate) fn key(stream: StreamId) -> u64 {
    match stream.0 {
        0 => LEGACY,
        PER_THREAD => THREAD_KEY | thread::number(),
        other => other,
    }
}

/// Places to look at for one key, side by side.
const WAYS: usize = 4;
const HINTS: usize = 1024 * WAYS;
/// Half of a key's hash | stream slot + 1: where to look first. What is found there says itself which stream it is.
static HINT: [AtomicU64; HINTS] = [const { AtomicU64::new(0) }; HINTS];

/// The first place of a key, and what marks it there.
#[inline(always)]
fn place(key: u64, device_slot: u32) -> (usize, u64) {
    let mixed = (key ^ u64::from(device_slot).rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let first = (mixed >> (64 - (HINTS / WAYS).trailing_zeros())) as usize * WAYS;
    (first, mixed << 32)
}

/// The slot where a stream of this key was last found.
#[inline(always)]
pub(crate) fn hint(key: u64, device_slot: u32) -> Option<u32> {
    let (first, mark) = place(key, device_slot);
    HINT[first..first + WAYS].iter().find_map(|hint| {
        let hint = hint.load(Relaxed);
        (hint & !0xffff_ffff == mark).then(|| (hint as u32).checked_sub(1)).flatten()
    })
}

pub(crate) fn remember(key: u64, device_slot: u32, stream: StreamRef) {
    let (first, mark) = place(key, device_slot);
    let ways = &HINT[first..first + WAYS];
    let own = |hint: &&AtomicU64| hint.load(Relaxed) & !0xffff_ffff == mark;
    let empty = |hint: &&AtomicU64| hint.load(Relaxed) == 0;
    let way = ways.iter().find(own).or_else(|| ways.iter().find(empty)).unwrap_or(&ways[stream.slot() as usize % WAYS]);
    way.store(mark | u64::from(stream.slot() + 1), Relaxed);
}

/// Gives a stream its driver's name.
pub(crate) fn name(device: &Device, stream: StreamRef, key: u64, raw: u64, identity: u64) {
    let mut state = STREAMS.at(stream.slot()).state.lock();
    state.attach.native = NativeStream { raw, identity, ..NativeStream::default() };
    state.set_handle(key);
    drop(state);
    remember(key, device.slot, stream);
}

/// The record of a call's stream on the model device whose legacy stream is in slot `legacy`, and what it says of itself while it is that
/// stream. `None`: the slow path looks closer.
#[inline(always)]
pub(crate) fn of_model(stream: StreamId, legacy: u32) -> Option<(&'static Stream<Caches>, u64)> {
    let (slot, key) = match stream.0 {
        0 | LEGACY => (legacy, order::LEGACY),
        PER_THREAD => thread::own_stream(legacy).map(|own| (handle::slot(own), own))?,
        bits => handle::decode(handle::Kind::Stream, bits).map(|(slot, _)| (slot, bits))?,
    };
    Some((STREAMS.get(slot)?, key))
}

/// What the driver knows the stream by.
///
/// # Errors
/// As [`live`].
pub(crate) fn raw(device: &Device, stream: StreamRef) -> Result<u64> {
    live(device, stream).map(|state| state.attach.native.raw)
}

/// The state of a stream that a call has found a moment ago.
///
/// # Errors
/// DESTROYED: another thread has destroyed it since. What stands for its name is no stream's then, or another's.
pub(crate) fn live(device: &Device, stream: StreamRef) -> Result<StreamGuard> {
    let state = STREAMS.at(stream.slot()).state.lock();
    match is_live(device, stream, &state) {
        true => Ok(state),
        false => Err(destroyed()),
    }
}

/// Whether this is still the state of that stream, and nobody has destroyed it.
pub(crate) fn is_live(device: &Device, stream: StreamRef, state: &StreamState) -> bool {
    state.live && STREAMS.at(stream.slot()).is(device.uid, stream)
}

#[cold]
pub(crate) fn destroyed() -> Error {
    Error::new(Status::Destroyed, "the stream was destroyed during the call")
}

/// The stream a `CUstream` names on a CUDA device; adopted if it is new.
pub(crate) fn resolve(device: &Arc<Device>, cuda: &Arc<CudaDevice>, id: StreamId) -> Result<StreamRef> {
    let known = device.adopted.read().get(&id.0).copied();
    if let Some(stream) = known {
        if device.checked && !is_the_same(cuda, stream, id.0)? {
            crate::log::emit(crate::log::Level::Warning, || {
                format!(
                    "stream {:#x} is another than before: it was destroyed without smp_stream_release, and the handle \
                     given out again",
                    id.0
                )
            });
            stream::mark_end(device, stream);
            stream::release_ref(device, stream)?;
        } else {
            remember(id.0, device.slot, stream);
            return Ok(stream);
        }
    }
    let (non_blocking, ours) = cuda.stream_facts(id.0).map_err(|code| unknown(cuda, id, code))?;
    if !ours {
        return Err(of_another_device(id));
    }
    let identity =
        if device.checked { cuda.stream_identity(id.0).map_err(|code| unknown(cuda, id, code))? } else { 0 };
    adopt(device, id.0, non_blocking, identity)
}

#[cold]
fn unknown(cuda: &CudaDevice, id: StreamId, code: Code) -> Error {
    let mut error = cuda.error(&format!("looking at stream {:#x}", id.0), code);
    // CUDA_ERROR_INVALID_VALUE, INVALID_CONTEXT, CONTEXT_IS_DESTROYED's neighbours and INVALID_HANDLE speak of the handle.
    if matches!(code.0, 1 | 201 | 400) {
        error.status = Status::InvalidHandle;
    }
    error
}

fn is_the_same(cuda: &CudaDevice, stream: StreamRef, raw: u64) -> Result<bool> {
    let before = STREAMS.at(stream.slot()).state.lock().attach.native.identity;
    match cuda.stream_identity(raw) {
        Ok(now) => Ok(before == 0 || now == before),
        Err(code) => Err(unknown(cuda, StreamId(raw), code)),
    }
}

/// Makes a stream of the driver's one of the device's.
pub(crate) fn adopt(device: &Arc<Device>, raw: u64, non_blocking: bool, identity: u64) -> Result<StreamRef> {
    let _serial = device.enter();
    let mut adopted = device.adopted.write();
    if let Some(&stream) = adopted.get(&raw) {
        return Ok(stream);
    }
    let (stream, _) = stream::create_on(device, StreamFlags { non_blocking, lazy: None })?;
    name(device, stream, raw, raw, identity);
    adopted.insert(raw, stream);
    drop(adopted);
    stream::forget_ended(device);
    Ok(stream)
}

/// The device and stream a `CUstream` belongs to, if the library has seen it.
pub(crate) fn find(raw: u64) -> Option<(Arc<Device>, StreamRef)> {
    if !any() {
        return None;
    }
    cuda_devices().find_map(|device| seen_by(device, raw))
}

/// The same for every device that has seen it: two of the library's devices may share a context.
pub(crate) fn find_all(raw: u64) -> Vec<(Arc<Device>, StreamRef)> {
    cuda_devices().filter_map(|device| seen_by(device, raw)).collect()
}

/// A stream that this device has not seen, and others have, is theirs, unless they share its context, or the driver has given the
/// handle out anew in it.
///
/// # Errors
/// WRONG_DEVICE; what the driver answers.
pub(crate) fn refuse_others(device: &Arc<Device>, cuda: &CudaDevice, id: StreamId) -> Result<()> {
    let others = find_all(id.0);
    if others.is_empty() || others.iter().any(|(other, _)| shares_context(device, other)) {
        return Ok(());
    }
    match cuda.stream_facts(id.0) {
        Ok((_, true)) => Ok(()),
        Ok((_, false)) => Err(of_another_device(id)),
        Err(code) => Err(unknown(cuda, id, code)),
    }
}

#[cold]
fn of_another_device(id: StreamId) -> Error {
    Error::new(Status::WrongDevice, format_args!("stream {:#x} belongs to another device or context", id.0))
}

fn seen_by(device: Arc<Device>, raw: u64) -> Option<(Arc<Device>, StreamRef)> {
    // In a statement of its own: the lock is not held while the stream is used.
    let stream = device.adopted.read().get(&raw).copied()?;
    Some((device, stream))
}

/// The driver has given this handle to a new stream: whatever had it before is gone.
pub(crate) fn forget_everywhere(raw: u64) {
    for (device, stale) in find_all(raw) {
        stream::mark_end(&device, stale);
        // Another thread may have been faster.
        let _ = stream::release_ref(&device, stale);
    }
}

/// Refuses a capturing stream (`cuStreamIsCapturing`). The legacy default stream cannot be captured.
///
/// # Errors
/// CAPTURING; what the driver answers.
#[inline]
pub(crate) fn refuse_capturing(cuda: &CudaDevice, raw: u64) -> Result<()> {
    if raw <= LEGACY || !cuda.tells_capturing() {
        return Ok(());
    }
    match cuda.stream_is_capturing(raw) {
        Ok(false) => Ok(()),
        Ok(true) => Err(capturing(raw)),
        Err(code) => Err(cuda.error("cuStreamIsCapturing", code)),
    }
}

/// As [`refuse_capturing`] for a created stream, of whatever device.
#[inline(always)]
pub(crate) fn refuse_capturing_now(raw: u64) -> Result<()> {
    match CudaDevice::any_stream_is_capturing(raw) {
        Ok(false) => Ok(()),
        answer => Err(capturing_or_worse(raw, answer.err())),
    }
}

#[cold]
fn capturing_or_worse(raw: u64, code: Option<Code>) -> Error {
    match (find(raw), code) {
        (None, _) => handle::gone(handle::Kind::Stream, raw),
        (Some(_), None) => capturing(raw),
        (Some((device, _)), Some(code)) => match device.cuda() {
            Some(cuda) => cuda.error("cuStreamIsCapturing", cuda.noted(code)),
            None => handle::gone(handle::Kind::Stream, raw),
        },
    }
}

#[cold]
fn capturing(raw: u64) -> Error {
    Error::new(
        Status::Capturing,
        format_args!("stream {raw:#x} is capturing: allocations and frees cannot be captured"),
    )
}

/// Whether the stream is capturing; an error answers no, and shows at the call that follows.
pub(crate) fn is_capturing(cuda: &CudaDevice, raw: u64) -> bool {
    raw > LEGACY && cuda.tells_capturing() && cuda.stream_is_capturing(raw).unwrap_or(false)
}

/// Records an event on a stream as part of its own call, if others want one. No lock held.
#[inline]
pub(crate) fn after_call(device: &Arc<Device>, stream: StreamRef, in_free: bool) {
    let watch = STREAMS.at(stream.slot()).watch.load(Relaxed);
    if watch & OWES != 0 || (in_free && watch & WANTED != 0) {
        record(device, stream, in_free);
    }
}

/// An operation of the stream that the driver does not have is ordered after others' by what the legacy stream and blocking ones owe
/// each other: the event that its call records makes that true in the driver. Under the stream's lock.
#[cold]
pub(crate) fn note_unbacked(stream: StreamRef) {
    STREAMS.at(stream.slot()).watch.fetch_or(OWES | UNBACKED, Relaxed);
}

/// Whether the driver has an event after all that the stream's operations are ordered after; it is given one if need be. Before it is
/// asked about the stream; no lock held.
pub(crate) fn is_backed(device: &Device, stream: StreamRef) -> bool {
    if !was_backed(stream) && !may_be_captured(device, stream) {
        record(device, stream, false);
    }
    was_backed(stream)
}

/// The same, where it is not given one.
pub(crate) fn was_backed(stream: StreamRef) -> bool {
    STREAMS.at(stream.slot()).watch.load(Relaxed) & UNBACKED == 0
}

/// An event recorded on the stream now would be a capture's, which nothing can be asked of or wait for outside it.
fn may_be_captured(device: &Device, stream: StreamRef) -> bool {
    device.cuda().is_some_and(|cuda| raw(device, stream).map_or(true, |raw| is_capturing(cuda, raw)))
}

/// Records an event on a stream. A failure leaves its frees to be found by a later one, or by a synchronise.
#[cold]
pub(crate) fn record(device: &Device, stream: StreamRef, in_free: bool) {
    let Some(cuda) = device.cuda() else { return };
    if cuda.poison().is_some() {
        return;
    }
    let record = STREAMS.at(stream.slot());
    // The number first, then the driver, then the world.
    let (seq, raw, crowded) = {
        let state = record.state.lock();
        if !record.is(device.uid, stream) {
            return;
        }
        let native = &state.attach.native;
        if native.fences.back().is_some_and(|last| last.seq >= state.submitted && (last.in_free || !in_free)) {
            record.watch.fetch_and(!(OWES | UNBACKED), Relaxed);
            return;
        }
        (state.submitted, native.raw, native.fences.len() >= FENCES)
    };
    if crowded {
        poll(device, stream);
    }
    match cuda.fence((raw != 0).then_some(raw)) {
        Ok(fence) => {
            let mut state = record.state.lock();
            if record.is(device.uid, stream) {
                let native = &mut state.attach.native;
                if native.fences.len() >= FENCES {
                    native.thin();
                }
                native.add(seq, fence, in_free);
                // (What was submitted meanwhile may need an event after it.)
                let backed = if state.submitted == seq { UNBACKED } else { 0 };
                record.watch.fetch_and(!(OWES | backed), Relaxed);
            }
        }
        // A context that has ended took the memory with it: nothing is left to be told.
        Err(Code::INVALID_CONTEXT) => {}
        Err(code) => {
            let error = cuda.error("recording an event at a free", code);
            crate::log::emit(crate::log::Level::Warning, || {
                format!(
                    "{}; its memory is reusable on its own stream, and elsewhere after a synchronise",
                    error.message
                )
            });
        }
    }
}

/// The stream is about to be destroyed: an event covers what it leaves behind, which others may wait for, since nothing
/// can come after it.
pub(crate) fn record_last(device: &Device, stream: StreamRef) {
    let unobserved = {
        let record = STREAMS.at(stream.slot());
        let state = record.state.lock();
        record.is(device.uid, stream) && record.observed() < state.submitted
    };
    if unobserved && !may_be_captured(device, stream) {
        record(device, stream, true);
    }
}

/// Asks the driver how far a stream's events have been passed, and raises *executed* to that. No lock held.
pub(crate) fn poll(device: &Device, stream: StreamRef) {
    let Some(cuda) = device.cuda() else { return };
    if cuda.poison().is_some() {
        return;
    }
    let record = STREAMS.at(stream.slot());
    let fences: Vec<(u64, Arc<Fence>)> = {
        let state = record.state.lock();
        if !record.is(device.uid, stream) {
            return;
        }
        let executed = record.executed();
        state.attach.native.fences.iter().filter(|at| at.seq > executed).map(|at| (at.seq, at.fence.clone())).collect()
    };
    // Events of one stream are passed in their order: the newest first, which is often enough, then by halves.
    let Some((newest, earlier)) = fences.split_last() else { return };
    let passed = if newest.1.passed() {
        newest.0
    } else {
        match earlier.partition_point(|(_, fence)| fence.passed()) {
            0 => return,
            count => earlier[count - 1].0,
        }
    };
    publish_executed(device, stream, passed);
}

/// All of the stream up to `seq` has run, the driver says.
pub(crate) fn publish_executed(device: &Device, stream: StreamRef, seq: u64) {
    let record = STREAMS.at(stream.slot());
    let gone: Vec<FenceAt> = {
        let mut state = record.state.lock();
        if !record.is(device.uid, stream) {
            return;
        }
        record.execute(seq);
        let count = state.attach.native.fences.iter().take_while(|at| at.seq <= seq).count();
        // The last that others could wait for is kept: what it covers may still be given away by a wait.
        let fences = &mut state.attach.native.fences;
        let last = fences.iter().take(count).rposition(|at| at.in_free).unwrap_or(count);
        fences.drain(..last).collect()
    };
    drop(gone);
}

/// Before a synchronise, where pages may go back by what has executed. No lock held.
pub(crate) fn poll_before_release(device: &Device) {
    if device.cuda().is_none() {
        return;
    }
    let pools = device.pools.lock();
    let may = pools.iter().any(|pool| pool.gives_back_at_synchronise());
    drop(pools);
    if may {
        poll_all(device);
    }
}

/// Before pages may go back: how far every stream with recorded events has run. No lock held.
pub(crate) fn poll_all(device: &Device) {
    if device.cuda().is_none() {
        return;
    }
    let streams: Vec<StreamRef> = device.order.streams.lock().iter().copied().collect();
    for stream in streams {
        poll(device, stream);
    }
}

/// Another stream wants what this one has freed and the driver has not passed.
pub(crate) fn want(stream: StreamRef) {
    STREAMS.at(stream.slot()).watch.fetch_or(WANTED | OWES, Relaxed);
}

/// The device's timeline: the stream of no one that host-ordered frees are operations of.
pub(crate) fn timeline(device: &Arc<Device>) -> Result<StreamRef> {
    let mut place = device.timeline.lock();
    if let Some(stream) = *place {
        return Ok(stream);
    }
    let stream = stream::create_unnamed(device)?;
    *place = Some(stream);
    device.tell(&Event::TimelineCreate { id: stream.id() });
    Ok(stream)
}

/// Lets the timeline go; the next host-ordered free begins another.
pub(crate) fn retire_timeline(device: &Arc<Device>) -> Result<()> {
    let timeline = device.timeline.lock().take();
    timeline.map_or(Ok(()), |stream| stream::release_ref(device, stream))
}

/// A device found by its slot and number, if it is open.
pub(crate) fn device_by(slot: u32, uid: u32) -> Option<Arc<Device>> {
    DEVICES.get(slot)?.place.lock().device.clone().filter(|device| device.uid == uid)
}

/// The handle by which calls name the stream.
pub(crate) fn handle_of(device: &Device, raw: u64) -> Option<StreamId> {
    device.cuda().is_some().then_some(StreamId(if raw == LEGACY { 0 } else { raw }))
}

/// Whether `id` could be a `CUstream` or `CUevent`: no default stream, no handle of ours of any kind. The driver's are
/// pointers, whose four highest bits are zero in every user space, as no handle's are.
#[inline(always)]
pub(crate) fn is_foreign(id: u64) -> bool {
    id > 2 && id >> 60 == 0
}
