//! What can go wrong, said once: one status per kind of failure, and a message that names the case.
//!
//! The C boundary translates [`Error::status`] to `smp_status` number by number and keeps the message for
//! `smp_last_error`.

use std::fmt;

/// The kind of a failure. The numbers are those of the C API's `smp_status`: given once, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Status {
    /// No failure. Only used where a status is stored or traced.
    Success = 0,
    /// An argument is out of its range: null out-pointer, bad alignment, unknown attribute, read-only attribute.
    InvalidValue = 1,
    /// The handle is null, or of another kind, or was never given out.
    InvalidHandle = 2,
    /// The handle was good once; its object has been destroyed, closed or released.
    Destroyed = 3,
    /// The allocation has been freed.
    Freed = 4,
    /// The device refused a page and nothing free could serve.
    OutOfMemory = 5,
    /// Only the caps of the pool's entries were in the way.
    CapacityExceeded = 6,
    /// No entry of the pool accepts this size.
    SizeNotAccepted = 7,
    /// Not yet: the work has not executed, or the order asked for is refuted.
    NotReady = 8,
    /// The library cannot see whether the order holds.
    Unproven = 9,
    /// This build, device or driver cannot do it.
    NotSupported = 10,
    /// A pool's configuration is refused; the message names the field.
    InvalidConfig = 11,
    /// A pool specification does not parse; the message names the column.
    SpecSyntax = 12,
    /// The handle belongs to another device than the call's.
    WrongDevice = 13,
    /// The stream is capturing.
    Capturing = 14,
    /// A sticky device error: nothing is released or reused on the device's word any more.
    DevicePoisoned = 15,
    /// The process was forked after a CUDA device had been opened.
    Forked = 16,
    /// The call is not allowed here, e.g. an allocation inside the pool's out-of-memory callback.
    NotPermitted = 17,
    /// Reading or writing a file failed.
    Io = 18,
    /// A trace is malformed; the message names file and line.
    TraceSyntax = 19,
    /// A driver call failed; the native code is kept beside the message.
    Driver = 20,
    /// A fault inside the library.
    Internal = 21,
    /// A replayed trace and the model disagree; the message names the line.
    ReplayMismatch = 22,
}

/// A failure: its kind, and a sentence that says what was wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// The kind.
    pub status: Status,
    /// What was wrong, with names and numbers.
    pub message: String,
    /// The driver's own code, 0 if none.
    pub driver_code: i32,
}

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of kind `status` with the sentence `message`.
    #[cold]
    pub fn new(status: Status, message: impl fmt::Display) -> Self {
        Error { status, message: message.to_string(), driver_code: 0 }
    }
}
