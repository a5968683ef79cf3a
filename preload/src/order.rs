//! The replaced calls that order work: synchronises, by which limbo empties; captures, during which the driver serves; and,
//! where the core keeps stream-ordered blocks, records, tests or checks accesses, all that it must know about streams.

use crate::context;
use crate::driver::{self, Code, Handle, SUCCESS};
use crate::entry;
use crate::hook::real;
use crate::pool::{self, Place};
use crate::switch::broken;
use smp_core::{Act, EventId, StreamId};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Captures begun and not ended: the stream that each began on, and its context.
static CAPTURES: Mutex<Vec<(Handle, Handle)>> = Mutex::new(Vec::new());
/// How many those are.
static CAPTURING: AtomicUsize = AtomicUsize::new(0);

/// Whether some stream is being captured: then much is illegal that otherwise is not.
pub fn capturing() -> bool {
    CAPTURING.load(Relaxed) > 0 && !broken("capture")
}

fn captures() -> MutexGuard<'static, Vec<(Handle, Handle)>> {
    CAPTURES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One capture that began on this stream has ended, if one had begun. The threads' own streams go by one name: of those it is the
/// context's.
fn capture_over(stream: Handle, context: Handle) {
    let mut captures = captures();
    let own = captures.iter().position(|&capture| capture == (stream, context));
    if let Some(at) = own.or_else(|| captures.iter().position(|&(origin, _)| origin == stream)) {
        captures.swap_remove(at);
        CAPTURING.store(captures.len(), Relaxed);
    }
}

/// Strikes out what is being captured in a context, which ends with it: the streams.
pub fn strike_out(context: Handle) -> Vec<Handle> {
    if CAPTURING.load(Relaxed) == 0 {
        return Vec::new();
    }
    let mut captures = captures();
    let within = captures.iter().filter(|&&(_, within)| within == context).map(|&(stream, _)| stream).collect();
    captures.retain(|&(_, within)| within != context);
    CAPTURING.store(captures.len(), Relaxed);
    within
}

/// The context has not ended.
pub fn put_back(context: Handle, streams: Vec<Handle>) {
    if !streams.is_empty() {
        let mut captures = captures();
        captures.extend(streams.into_iter().map(|stream| (stream, context)));
        CAPTURING.store(captures.len(), Relaxed);
    }
}

/// How captures stand to a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Captured {
    /// Not at all.
    No,
    /// It is being captured.
    Itself,
    /// Those of others keep it from being used: the legacy stream would have to wait for them.
    Others,
}

/// How captures stand to this stream; asked of the driver only while some stream is captured.
pub fn captured(stream: Handle) -> Captured {
    let mut status = 0;
    // SAFETY: the stream is the program's, the target ours.
    match capturing().then(|| unsafe { driver::cuStreamIsCapturing(stream, &mut status) }) {
        Some(SUCCESS) if status != 0 => Captured::Itself,
        Some(code) if code != SUCCESS && !broken("barred") => Captured::Others,
        _ => Captured::No,
    }
}

/// Runs calls of our own so that they neither enter nor break a capture of the program's.
pub fn relaxed<T>(run: impl FnOnce() -> T) -> T {
    if !capturing() {
        return run();
    }
    const RELAXED: u32 = 2;
    let mut mode = RELAXED;
    // SAFETY: the target is ours; what was exchanged is exchanged back.
    unsafe {
        let exchanged = driver::cuThreadExchangeStreamCaptureMode(&mut mode) == SUCCESS;
        let answer = run();
        if exchanged {
            driver::cuThreadExchangeStreamCaptureMode(&mut mode);
        }
        answer
    }
}

/// The beginning of a capture, in any of its forms.
///
/// # Safety
/// As the driver's function, whose arguments these are; those it does not take are not read.
pub unsafe fn capture_begins(
    real: unsafe fn(usize, usize, usize, usize, usize, usize) -> Code,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> Code {
    // Of the default streams only a thread's own can be captured.
    let stream = named(a, true);
    let context = context::of_stream(stream).map_or(0, |home| home.context);
    {
        // Noted first: a call on another thread must not slip in between.
        let mut captures = captures();
        captures.push((stream, context));
        CAPTURING.store(captures.len(), Relaxed);
    }
    // SAFETY: the caller's promise.
    let code = unsafe { real(a, b, c, d, e, f) };
    if code != SUCCESS {
        capture_over(stream, context);
    }
    code
}

/// `cuStreamEndCapture` and its twin. A capture that was invalidated ends with an error, but it ends; one that may not be
/// ended here, because it began on another stream or thread, goes on.
///
/// # Safety
/// As the driver's.
pub unsafe fn capture_ends<const TWIN: bool>(
    real: unsafe fn(Handle, usize) -> Code,
    stream: Handle,
    graph: usize,
) -> Code {
    let on = named(stream, TWIN);
    let captured = || {
        let mut status = 0;
        // SAFETY: the stream is the program's, the target ours.
        unsafe { driver::cuStreamIsCapturing(on, &mut status) == SUCCESS && status != 0 }
    };
    let was = captured();
    // SAFETY: the program's arguments.
    let code = unsafe { real(stream, graph) };
    if was && (code == SUCCESS || !captured()) {
        capture_over(on, context::of_stream(on).map_or(0, |home| home.context));
    }
    code
}

/// `cuCtxSynchronize`.
///
/// # Safety
/// As the driver's.
pub unsafe fn context_synchronize(real: unsafe fn() -> Code) -> Code {
    // SAFETY: takes no argument.
    let driver = || unsafe { real() };
    let Some(_inside) = entry::enter() else { return driver() };
    match context::current().and_then(|home| pool::of(home.context)) {
        Some(place) => place.synchronised(driver),
        None => driver(),
    }
}

/// `cuCtxSynchronize_v2`, which names the context.
///
/// # Safety
/// As the driver's.
pub unsafe fn given_context_synchronize(real: unsafe fn(Handle) -> Code, context: Handle) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(context) };
    let Some(_inside) = entry::enter() else { return driver() };
    match pool::of(context) {
        Some(place) => place.synchronised(driver),
        None => driver(),
    }
}

/// Has the driver do a call, at the moment at which the core wants it done. `told` hands the call on to the core; where
/// the core does not come to it, because it knows nothing of the objects, the driver does it all the same.
fn told(driver: impl FnOnce() -> Code, told: impl FnOnce(Act<'_>) -> smp_core::Result<()>) -> Code {
    let mut code = driver::UNKNOWN;
    let mut driver = Some(driver);
    let mut act = || {
        code = driver.take().map_or(driver::UNKNOWN, |driver| driver());
        code == SUCCESS
    };
    // An error is the driver's, which is in `code`, or says that the core knows nothing of the objects.
    let _ = told(Act::With(&mut act));
    match driver {
        Some(driver) => driver(),
        None => code,
    }
}

/// The place whose streams the core must know about, and the stream's own name: in a twin, the default stream is the
/// thread's.
fn seen(stream: Handle, twin: bool) -> Option<(&'static Place, StreamId)> {
    let place = context::of_stream(stream).and_then(|home| pool::of(home.context))?;
    Some((place, StreamId(named(stream, twin) as u64)))
}

/// A stream's own name: in a twin, the default stream is the thread's.
pub fn named(stream: Handle, twin: bool) -> Handle {
    const PER_THREAD: Handle = 2;
    if stream == 0 && twin && !broken("twin-stream") { PER_THREAD } else { stream }
}

/// `cuEventRecord`, `cuEventRecordWithFlags`, and their twins.
///
/// # Safety
/// As the driver's; `flags` is not read where it has none.
pub unsafe fn event_record<const TWIN: bool>(
    real: unsafe fn(Handle, Handle, usize) -> Code,
    event: Handle,
    stream: Handle,
    flags: usize,
) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(event, stream, flags) };
    let Some(_inside) = entry::enter() else { return driver() };
    match seen(stream, TWIN) {
        Some((place, on)) => {
            told(driver, |act| smp_core::event::record_by(place.device(), EventId(event as u64), on, act).map(drop))
        }
        None => driver(),
    }
}

/// `cuStreamWaitEvent` and its twin.
///
/// # Safety
/// As the driver's.
pub unsafe fn stream_wait<const TWIN: bool>(
    real: unsafe fn(Handle, Handle, usize) -> Code,
    stream: Handle,
    event: Handle,
    flags: usize,
) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(stream, event, flags) };
    let Some(_inside) = entry::enter() else { return driver() };
    match seen(stream, TWIN) {
        Some((place, on)) => {
            told(driver, |act| smp_core::stream::wait_event_by(place.device(), on, EventId(event as u64), act))
        }
        None => driver(),
    }
}

/// `cuStreamSynchronize` and its twin.
///
/// # Safety
/// As the driver's.
pub unsafe fn stream_synchronize<const TWIN: bool>(real: unsafe fn(Handle) -> Code, stream: Handle) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(stream) };
    let Some(_inside) = entry::enter() else { return driver() };
    match seen(stream, TWIN) {
        Some((place, on)) => told(driver, |act| smp_core::stream::synchronize_by(place.device(), on, act)),
        None => driver(),
    }
}

/// `cuEventSynchronize`.
///
/// # Safety
/// As the driver's.
pub unsafe fn event_synchronize(real: unsafe fn(Handle) -> Code, event: Handle) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(event) };
    let Some(_inside) = entry::enter() else { return driver() };
    told(driver, |act| smp_core::event::synchronize_by(EventId(event as u64), act))
}

/// `cuEventDestroy_v2`.
///
/// # Safety
/// As the driver's.
pub unsafe fn event_destroy(real: unsafe fn(Handle) -> Code, event: Handle) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(event) };
    let Some(_inside) = entry::enter() else { return driver() };
    told(driver, |act| smp_core::event::destroy_by(EventId(event as u64), act))
}

/// `cuStreamDestroy_v2`: forgotten first, since another stream may get its handle. A capture that began on the stream can be
/// ended by nobody any more: it is over.
///
/// # Safety
/// As the driver's.
pub unsafe fn stream_destroy(real: unsafe fn(Handle) -> Code, stream: Handle) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(stream) };
    let Some(_inside) = entry::enter() else { return driver() };
    if stream <= 2 {
        return driver();
    }
    if pool::watched()
        && let Some((place, on)) = seen(stream, false)
    {
        // One that the core has not seen has nothing to forget.
        let _ = smp_core::stream::release(place.device(), on);
    }
    let context = (CAPTURING.load(Relaxed) > 0).then(|| context::of_stream(stream).map_or(0, |home| home.context));
    let code = driver();
    if let Some(context) = context.filter(|_| code == SUCCESS && !broken("capture-of-a-destroyed-stream")) {
        capture_over(stream, context);
    }
    code
}

/// Waits for a stream with the driver's own call.
pub fn wait_for_stream(stream: Handle) -> Code {
    // SAFETY: the program's stream.
    unsafe { real::cuStreamSynchronize(stream) }
}

/// Waits for a context with the driver's own call.
pub fn wait_for(context: Handle) -> Option<Code> {
    // SAFETY: takes no argument.
    context::with(context, || unsafe { real::cuCtxSynchronize() })
}
