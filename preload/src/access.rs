//! The replaced copies and sets, where accesses are checked: the core judges whether each is ordered after the allocation
//! of the memory that it touches, and races none. What kernels and copies of rows touch is not seen.

use crate::context;
use crate::driver::{Code, Handle, Pointer, SUCCESS};
use crate::entry;
use crate::hook::real;
use crate::order::{self, Captured};
use crate::pool;
use crate::switch::broken;
use smp_core::pool::access::{self, AccessKind};
use smp_core::{Act, EventId, StreamId};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static CHECKED: AtomicU64 = AtomicU64::new(0);
static FAULTY: AtomicU64 = AtomicU64::new(0);
static TEXTS: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// Verdicts that the report tells in words.
const KEPT: usize = 100;

/// For the report: accesses checked, those found faulty, and the first of them in words.
pub fn verdicts() -> (u64, u64, Vec<String>) {
    let texts = TEXTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
    (CHECKED.load(Relaxed), FAULTY.load(Relaxed), texts)
}

fn note(at: Pointer, bytes: u64, stream: Handle, kind: AccessKind) {
    let Some(context) = pool::context_of(at) else { return };
    // What orders the streams of two contexts is not seen: an access from another one is not judged.
    let of_it = context::of_stream(stream).filter(|home| home.context == context);
    let Some(place) = of_it.and_then(|home| pool::of(home.context)) else { return };
    CHECKED.fetch_add(1, Relaxed);
    // The message goes through the core's log as well, to standard error.
    if let Ok(verdict) = access::note(place.device(), at, bytes, StreamId(stream as u64), kind)
        && !verdict.faults.is_empty()
    {
        FAULTY.fetch_add(1, Relaxed);
        let mut texts = TEXTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if texts.len() < KEPT {
            texts.push(verdict.message);
        }
    }
}

/// When a call is over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// In its stream's order.
    InOrder,
    /// Before it returns.
    AtReturn,
}

/// A call that the driver does first; an access that it refused has not happened.
fn done(stream: Handle, end: End, driver: impl FnOnce() -> Code, accesses: impl FnOnce()) -> Code {
    const LEGACY: Handle = 1;
    let Some(_inside) = entry::enter() else { return driver() };
    let orders = stream <= LEGACY || end == End::AtReturn;
    // (Where a capture is in the call's way, an event of ours would be in the capture's.)
    let free = || order::captured(stream) == Captured::No;
    let seen = context::current().filter(|_| orders && free() && !broken("legacy-order"));
    let mark = seen.and_then(|home| Some((pool::of(home.context)?, order::relaxed(pool::new_event)?)));
    let Some((place, event)) = mark else {
        let code = driver();
        if code == SUCCESS {
            accesses();
        }
        return code;
    };
    // The core believes an order only where the driver holds it and it has been told so. What the legacy stream is given
    // follows all that blocking streams were given before, and they follow it: an event on either side says so.
    let id = EventId(event as u64);
    let marked = || {
        // SAFETY: an event of ours, a stream of its context.
        let mut record = || unsafe { real::cuEventRecord(event, stream, 0) } == SUCCESS;
        // Without it there is less order to be seen.
        order::relaxed(|| {
            let _ = smp_core::event::record_by(place.device(), id, StreamId(stream as u64), Act::With(&mut record));
        });
    };
    if stream <= LEGACY {
        marked();
    }
    let code = driver();
    if code == SUCCESS {
        accesses();
        marked();
        if end == End::AtReturn {
            // SAFETY: an event of ours.
            let mut wait = || unsafe { real::cuEventSynchronize(event) } == SUCCESS;
            order::relaxed(|| {
                let _ = smp_core::event::synchronize_by(id, Act::With(&mut wait));
            });
        }
    }
    // SAFETY: an event of ours, which nothing waits for.
    let mut destroy = || unsafe { real::cuEventDestroy_v2(event) } == SUCCESS;
    if smp_core::event::destroy_by(id, Act::With(&mut destroy)).is_err() {
        destroy();
    }
    code
}

/// Copies of bytes, by whichever call: an address of the host is no block's. `stream` is not read by the driver where the
/// call has none.
///
/// # Safety
/// As the driver's.
pub unsafe fn copy<const TWIN: bool>(
    real: unsafe fn(Pointer, Pointer, usize, Handle) -> Code,
    to: Pointer,
    from: Pointer,
    bytes: usize,
    stream: Handle,
) -> Code {
    let on = order::named(stream, TWIN);
    done(
        on,
        End::InOrder,
        // SAFETY: the program's arguments.
        || unsafe { real(to, from, bytes, stream) },
        || {
            note(from, bytes as u64, on, AccessKind::Read);
            note(to, bytes as u64, on, AccessKind::Write);
        },
    )
}

/// As [`copy`], on the default stream.
///
/// # Safety
/// As the driver's.
pub unsafe fn copy_now<const TWIN: bool>(
    real: unsafe fn(Pointer, Pointer, usize) -> Code,
    to: Pointer,
    from: Pointer,
    bytes: usize,
) -> Code {
    // SAFETY: the program's arguments.
    unsafe { now(real, to, from, bytes, order::named(0, TWIN), End::InOrder) }
}

/// As [`copy_now`], to the host: it returns when the copy is over.
///
/// # Safety
/// As the driver's.
pub unsafe fn copy_to_host<const TWIN: bool>(
    real: unsafe fn(Pointer, Pointer, usize) -> Code,
    to: Pointer,
    from: Pointer,
    bytes: usize,
) -> Code {
    // SAFETY: the program's arguments.
    unsafe { now(real, to, from, bytes, order::named(0, TWIN), End::AtReturn) }
}

unsafe fn now(
    real: unsafe fn(Pointer, Pointer, usize) -> Code,
    to: Pointer,
    from: Pointer,
    bytes: usize,
    on: Handle,
    end: End,
) -> Code {
    done(
        on,
        end,
        // SAFETY: the program's arguments.
        || unsafe { real(to, from, bytes) },
        || {
            note(from, bytes as u64, on, AccessKind::Read);
            note(to, bytes as u64, on, AccessKind::Write);
        },
    )
}

/// Sets of `count` units of `UNIT` bytes.
///
/// # Safety
/// As the driver's.
pub unsafe fn set<const TWIN: bool, const UNIT: u64>(
    real: unsafe fn(Pointer, usize, usize, Handle) -> Code,
    to: Pointer,
    value: usize,
    count: usize,
    stream: Handle,
) -> Code {
    let on = order::named(stream, TWIN);
    done(
        on,
        End::InOrder,
        // SAFETY: the program's arguments.
        || unsafe { real(to, value, count, stream) },
        || note(to, (count as u64).saturating_mul(UNIT), on, AccessKind::Write),
    )
}

/// As [`set`], on the default stream.
///
/// # Safety
/// As the driver's.
pub unsafe fn set_now<const TWIN: bool, const UNIT: u64>(
    real: unsafe fn(Pointer, usize, usize) -> Code,
    to: Pointer,
    value: usize,
    count: usize,
) -> Code {
    let on = order::named(0, TWIN);
    done(
        on,
        End::InOrder,
        // SAFETY: the program's arguments.
        || unsafe { real(to, value, count) },
        || note(to, (count as u64).saturating_mul(UNIT), on, AccessKind::Write),
    )
}
