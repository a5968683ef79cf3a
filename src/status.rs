//! Statuses, their names, and the last error of the calling thread.

use crate::boundary;
use smp_core::{Error, Status};
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char};

/// How a call ended. The numbers are given once and never reused.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum smp_status {
    /** Done. */
    SMP_SUCCESS = 0,
    /** An argument is out of its range: a null pointer, a bad alignment, an unknown or read-only attribute. */
    SMP_ERROR_INVALID_VALUE = 1,
    /** The handle is null, of another kind, or was never given out. */
    SMP_ERROR_INVALID_HANDLE = 2,
    /** The handle was good once; its object has been destroyed, closed or released. */
    SMP_ERROR_DESTROYED = 3,
    /** The allocation has been freed. */
    SMP_ERROR_FREED = 4,
    /** The device refused a page and nothing free could serve; or, in a pool as CUDA's own, the cap was in the way. */
    SMP_ERROR_OUT_OF_MEMORY = 5,
    /** Only the caps of the pool's entries were in the way. */
    SMP_ERROR_CAPACITY_EXCEEDED = 6,
    /** No entry of the pool accepts this size. */
    SMP_ERROR_SIZE_NOT_ACCEPTED = 7,
    /** Not a failure: the work has not executed yet, or the order asked for does not hold. */
    SMP_NOT_READY = 8,
    /** Not a failure: the library cannot see whether the order holds. */
    SMP_UNPROVEN = 9,
    /** This build, device or driver cannot do it. */
    SMP_ERROR_NOT_SUPPORTED = 10,
    /** A pool's configuration is refused; the text names the field. */
    SMP_ERROR_INVALID_CONFIG = 11,
    /** A pool specification does not parse; the text names the column. */
    SMP_ERROR_SPEC_SYNTAX = 12,
    /** The handle belongs to another device than the call's. */
    SMP_ERROR_WRONG_DEVICE = 13,
    /** The stream is capturing. */
    SMP_ERROR_CAPTURING = 14,
    /** A sticky device error: nothing is released or reused on the device's word any more. */
    SMP_ERROR_DEVICE_POISONED = 15,
    /// This process was forked from one that had opened a CUDA device: no call is served in it, on no device. After a fork
    /// without one no call answers this. Devices opened in the child then work, wherever in a call other threads were, but a trace
    /// started there may hang if another thread was starting or stopping one; so may a call on a model device of the parent's if another
    /// thread was in a call at the fork.
    SMP_ERROR_FORKED = 16,
    /** The call is not allowed here, such as an allocation inside the pool's out-of-memory callback. */
    SMP_ERROR_NOT_PERMITTED = 17,
    /** Reading or writing a file failed. */
    SMP_ERROR_IO = 18,
    /** A trace is malformed; the text names file and line. */
    SMP_ERROR_TRACE_SYNTAX = 19,
    /** A driver call failed; smp_error holds the driver's own code. */
    SMP_ERROR_DRIVER = 20,
    /** A fault inside the library. */
    SMP_ERROR_INTERNAL = 21,
    /** A replayed trace and the model disagree; the text names the line. */
    SMP_ERROR_REPLAY_MISMATCH = 22,
}

use smp_status::*;

/// Every status, in order of its number.
pub const STATUSES: [smp_status; 23] = [
    SMP_SUCCESS,
    SMP_ERROR_INVALID_VALUE,
    SMP_ERROR_INVALID_HANDLE,
    SMP_ERROR_DESTROYED,
    SMP_ERROR_FREED,
    SMP_ERROR_OUT_OF_MEMORY,
    SMP_ERROR_CAPACITY_EXCEEDED,
    SMP_ERROR_SIZE_NOT_ACCEPTED,
    SMP_NOT_READY,
    SMP_UNPROVEN,
    SMP_ERROR_NOT_SUPPORTED,
    SMP_ERROR_INVALID_CONFIG,
    SMP_ERROR_SPEC_SYNTAX,
    SMP_ERROR_WRONG_DEVICE,
    SMP_ERROR_CAPTURING,
    SMP_ERROR_DEVICE_POISONED,
    SMP_ERROR_FORKED,
    SMP_ERROR_NOT_PERMITTED,
    SMP_ERROR_IO,
    SMP_ERROR_TRACE_SYNTAX,
    SMP_ERROR_DRIVER,
    SMP_ERROR_INTERNAL,
    SMP_ERROR_REPLAY_MISMATCH,
];

impl From<Status> for smp_status {
    #[inline]
    fn from(status: Status) -> Self {
        match status {
            Status::Success => SMP_SUCCESS,
            Status::InvalidValue => SMP_ERROR_INVALID_VALUE,
            Status::InvalidHandle => SMP_ERROR_INVALID_HANDLE,
            Status::Destroyed => SMP_ERROR_DESTROYED,
            Status::Freed => SMP_ERROR_FREED,
            Status::OutOfMemory => SMP_ERROR_OUT_OF_MEMORY,
            Status::CapacityExceeded => SMP_ERROR_CAPACITY_EXCEEDED,
            Status::SizeNotAccepted => SMP_ERROR_SIZE_NOT_ACCEPTED,
            Status::NotReady => SMP_NOT_READY,
            Status::Unproven => SMP_UNPROVEN,
            Status::NotSupported => SMP_ERROR_NOT_SUPPORTED,
            Status::InvalidConfig => SMP_ERROR_INVALID_CONFIG,
            Status::SpecSyntax => SMP_ERROR_SPEC_SYNTAX,
            Status::WrongDevice => SMP_ERROR_WRONG_DEVICE,
            Status::Capturing => SMP_ERROR_CAPTURING,
            Status::DevicePoisoned => SMP_ERROR_DEVICE_POISONED,
            Status::Forked => SMP_ERROR_FORKED,
            Status::NotPermitted => SMP_ERROR_NOT_PERMITTED,
            Status::Io => SMP_ERROR_IO,
            Status::TraceSyntax => SMP_ERROR_TRACE_SYNTAX,
            Status::Driver => SMP_ERROR_DRIVER,
            Status::Internal => SMP_ERROR_INTERNAL,
            Status::ReplayMismatch => SMP_ERROR_REPLAY_MISMATCH,
        }
    }
}

// The C numbers are the core's; a number changed on one side only stops the build.
const _: () = {
    assert!(SMP_SUCCESS as u32 == Status::Success as u32);
    assert!(SMP_ERROR_INVALID_VALUE as u32 == Status::InvalidValue as u32);
    assert!(SMP_ERROR_INVALID_HANDLE as u32 == Status::InvalidHandle as u32);
    assert!(SMP_ERROR_DESTROYED as u32 == Status::Destroyed as u32);
    assert!(SMP_ERROR_FREED as u32 == Status::Freed as u32);
    assert!(SMP_ERROR_OUT_OF_MEMORY as u32 == Status::OutOfMemory as u32);
    assert!(SMP_ERROR_CAPACITY_EXCEEDED as u32 == Status::CapacityExceeded as u32);
    assert!(SMP_ERROR_SIZE_NOT_ACCEPTED as u32 == Status::SizeNotAccepted as u32);
    assert!(SMP_NOT_READY as u32 == Status::NotReady as u32);
    assert!(SMP_UNPROVEN as u32 == Status::Unproven as u32);
    assert!(SMP_ERROR_NOT_SUPPORTED as u32 == Status::NotSupported as u32);
    assert!(SMP_ERROR_INVALID_CONFIG as u32 == Status::InvalidConfig as u32);
    assert!(SMP_ERROR_SPEC_SYNTAX as u32 == Status::SpecSyntax as u32);
    assert!(SMP_ERROR_WRONG_DEVICE as u32 == Status::WrongDevice as u32);
    assert!(SMP_ERROR_CAPTURING as u32 == Status::Capturing as u32);
    assert!(SMP_ERROR_DEVICE_POISONED as u32 == Status::DevicePoisoned as u32);
    assert!(SMP_ERROR_FORKED as u32 == Status::Forked as u32);
    assert!(SMP_ERROR_NOT_PERMITTED as u32 == Status::NotPermitted as u32);
    assert!(SMP_ERROR_IO as u32 == Status::Io as u32);
    assert!(SMP_ERROR_TRACE_SYNTAX as u32 == Status::TraceSyntax as u32);
    assert!(SMP_ERROR_DRIVER as u32 == Status::Driver as u32);
    assert!(SMP_ERROR_INTERNAL as u32 == Status::Internal as u32);
    assert!(SMP_ERROR_REPLAY_MISMATCH as u32 == Status::ReplayMismatch as u32);
};

/// What the last failed call of a thread said.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct smp_error {
    /// Set by SMP_ERROR_INIT.
    pub struct_size: u32,
    /// The status it returned, an smp_status.
    pub status: u32,
    /// The driver's own code, 0 if none.
    pub driver_code: i32,
    /// Zero.
    pub reserved: u32,
    /// What was wrong, with names and numbers; UTF-8, ends with a NUL, cut if longer.
    pub text: [c_char; 496],
}

boundary::sized!(smp_error, "smp_error", 512);

thread_local! {
    // Const-initialised and without a destructor: usable in any phase of a thread's life, also from a library that is
    // loaded under a program it does not know.
    static LAST: UnsafeCell<smp_error> = const {
        UnsafeCell::new(smp_error { struct_size: 0, status: 0, driver_code: 0, reserved: 0, text: [0; 496] })
    };
}

/// Keeps `error` for this thread's smp_last_error and gives its status.
#[cold]
pub(crate) fn remember(error: &Error) -> smp_status {
    if matches!(error.status, Status::Success | Status::NotReady | Status::Unproven) {
        return error.status.into();
    }
    LAST.with(|last| {
        // SAFETY: the cell is this thread's own, and nothing called below can come back here.
        let last = unsafe { &mut *last.get() };
        last.status = error.status as u32;
        last.driver_code = error.driver_code;
        boundary::copy_text(&mut last.text, &error.message);
    });
    error.status.into()
}

/// What the last failed call of this thread said. Calls that succeed, or answer SMP_NOT_READY or SMP_UNPROVEN, leave it.
///
/// `out`: not null; struct_size set. Before the first failure status is SMP_SUCCESS and the text empty.
/// Errors: SMP_ERROR_INVALID_VALUE if `out` is null or its struct_size is none this library knows; the last error stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_last_error(out: *mut smp_error) -> smp_status {
    // Not through `boundary::call`: reporting must not replace what is reported.
    // SAFETY: the caller passes null or a struct whose size it states.
    let Ok(out) = (unsafe { boundary::Out::new(out, "out") }) else { return SMP_ERROR_INVALID_VALUE };
    // SAFETY: the cell is this thread's own; the copy ends before anything else runs.
    out.write(LAST.with(|last| unsafe { *last.get() }));
    SMP_SUCCESS
}

/// The name of a status as in this header, such as "SMP_ERROR_FREED"; "SMP_UNKNOWN_STATUS" for a number not known.
///
/// `status`: an smp_status. The text is static; never null. Cannot fail.
#[unsafe(no_mangle)]
pub extern "C" fn smp_status_name(status: u32) -> *const c_char {
    describe(status).0.as_ptr()
}

/// One sentence about a status, for people.
///
/// `status`: an smp_status. The text is static; never null. Cannot fail.
#[unsafe(no_mangle)]
pub extern "C" fn smp_status_description(status: u32) -> *const c_char {
    describe(status).1.as_ptr()
}

fn describe(status: u32) -> (&'static CStr, &'static CStr) {
    let Some(status) = STATUSES.get(status as usize) else {
        return (c"SMP_UNKNOWN_STATUS", c"not a status of this library");
    };
    match status {
        SMP_SUCCESS => (c"SMP_SUCCESS", c"done"),
        SMP_ERROR_INVALID_VALUE => (c"SMP_ERROR_INVALID_VALUE", c"an argument is out of its range"),
        SMP_ERROR_INVALID_HANDLE => {
            (c"SMP_ERROR_INVALID_HANDLE", c"the handle is null, of another kind, or was never given out")
        }
        SMP_ERROR_DESTROYED => (c"SMP_ERROR_DESTROYED", c"the object has been destroyed, closed or released"),
        SMP_ERROR_FREED => (c"SMP_ERROR_FREED", c"the allocation has been freed"),
        SMP_ERROR_OUT_OF_MEMORY => {
            (c"SMP_ERROR_OUT_OF_MEMORY", c"the device refused a page and nothing free could serve")
        }
        SMP_ERROR_CAPACITY_EXCEEDED => {
            (c"SMP_ERROR_CAPACITY_EXCEEDED", c"only the caps of the pool's entries were in the way")
        }
        SMP_ERROR_SIZE_NOT_ACCEPTED => (c"SMP_ERROR_SIZE_NOT_ACCEPTED", c"no entry of the pool accepts this size"),
        SMP_NOT_READY => (c"SMP_NOT_READY", c"the work has not executed yet, or the order asked for does not hold"),
        SMP_UNPROVEN => (c"SMP_UNPROVEN", c"the library cannot see whether the order holds"),
        SMP_ERROR_NOT_SUPPORTED => (c"SMP_ERROR_NOT_SUPPORTED", c"this build, device or driver cannot do it"),
        SMP_ERROR_INVALID_CONFIG => (c"SMP_ERROR_INVALID_CONFIG", c"the pool's configuration is refused"),
        SMP_ERROR_SPEC_SYNTAX => (c"SMP_ERROR_SPEC_SYNTAX", c"the pool specification does not parse"),
        SMP_ERROR_WRONG_DEVICE => (c"SMP_ERROR_WRONG_DEVICE", c"the handle belongs to another device"),
        SMP_ERROR_CAPTURING => (c"SMP_ERROR_CAPTURING", c"the stream is capturing"),
        SMP_ERROR_DEVICE_POISONED => (c"SMP_ERROR_DEVICE_POISONED", c"the device has a sticky error"),
        SMP_ERROR_FORKED => (c"SMP_ERROR_FORKED", c"the process was forked after a CUDA device had been opened"),
        SMP_ERROR_NOT_PERMITTED => (c"SMP_ERROR_NOT_PERMITTED", c"the call is not allowed here"),
        SMP_ERROR_IO => (c"SMP_ERROR_IO", c"reading or writing a file failed"),
        SMP_ERROR_TRACE_SYNTAX => (c"SMP_ERROR_TRACE_SYNTAX", c"the trace is malformed"),
        SMP_ERROR_DRIVER => (c"SMP_ERROR_DRIVER", c"a driver call failed"),
        SMP_ERROR_INTERNAL => (c"SMP_ERROR_INTERNAL", c"a fault inside the library"),
        SMP_ERROR_REPLAY_MISMATCH => (c"SMP_ERROR_REPLAY_MISMATCH", c"a replayed trace and the model disagree"),
    }
}
