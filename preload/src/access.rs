//! The replaced copies and sets, where accesses are checked: the core judges whether each is ordered after the allocation
//! of the memory that it touches, and races none. What kernels and copies of rows touch is not seen.

use crate::context;
use crate::driver::{Code, Handle, Pointer, SUCCESS};
use crate::entry;
use crate::order;
use crate::pool;
use smp_core::StreamId;
use smp_core::pool::access::{self, AccessKind};
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

/// A call that the driver does first; an access that it refused has not happened.
fn done(driver: impl FnOnce() -> Code, accesses: impl FnOnce()) -> Code {
    let Some(_inside) = entry::enter() else { return driver() };
    let code = driver();
    if code == SUCCESS {
        accesses();
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
    // SAFETY: the program's arguments.
    done(
        || unsafe { real(to, from, bytes, stream) },
        || {
            let stream = order::named(stream, TWIN);
            note(from, bytes as u64, stream, AccessKind::Read);
            note(to, bytes as u64, stream, AccessKind::Write);
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
    done(
        || unsafe { real(to, from, bytes) },
        || {
            let stream = order::named(0, TWIN);
            note(from, bytes as u64, stream, AccessKind::Read);
            note(to, bytes as u64, stream, AccessKind::Write);
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
    // SAFETY: the program's arguments.
    done(
        || unsafe { real(to, value, count, stream) },
        || {
            note(to, (count as u64).saturating_mul(UNIT), order::named(stream, TWIN), AccessKind::Write);
        },
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
    // SAFETY: the program's arguments.
    done(
        || unsafe { real(to, value, count) },
        || {
            note(to, (count as u64).saturating_mul(UNIT), order::named(0, TWIN), AccessKind::Write);
        },
    )
}
