//! Reports of a pool for people and for tools.

use crate::boundary::{call, invalid};
use crate::handle::{Handle, smp_pool};
use crate::pool::needed;
use crate::status::smp_status;
use smp_core::{Error, Result, Status, report};
use std::ffi::{c_char, c_int, c_void};

/// A table for people.
pub const SMP_REPORT_TEXT: u32 = 0;
/// One JSON object.
pub const SMP_REPORT_JSON: u32 = 1;

/// Receives a piece of text, UTF-8, `length` bytes, not NUL-terminated; lives for the call only. 0 to go on, else the call
/// that writes fails with SMP_ERROR_IO. It runs with no lock held.
pub type smp_write_fn = Option<unsafe extern "C" fn(user: *mut c_void, text: *const c_char, length: u64) -> c_int>;

/// Reports a pool's configuration and figures.
///
/// `format`: SMP_REPORT_TEXT or SMP_REPORT_JSON. `write`: not null; called on this thread before the call returns.
/// Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_INVALID_VALUE; SMP_ERROR_IO if `write` refuses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_pool_report(
    pool: smp_pool,
    format: u32,
    write: smp_write_fn,
    user: *mut c_void,
) -> smp_status {
    call(|| {
        let write = needed(write, "write")?;
        let text = match format {
            SMP_REPORT_TEXT => report::text(pool.id())?,
            SMP_REPORT_JSON => report::json(pool.id())?,
            format => return Err(invalid(format_args!("format is {format}, which is no report format"))),
        };
        // SAFETY: the caller's function and pointer, used during the call only.
        unsafe { emit(write, user, &text) }
    })
}

/// Hands `text` to the caller's function.
///
/// # Safety
/// `write` may be called with `user` now.
pub(crate) unsafe fn emit(
    write: unsafe extern "C" fn(*mut c_void, *const c_char, u64) -> c_int,
    user: *mut c_void,
    text: &str,
) -> Result<()> {
    // SAFETY: as promised; the text outlives the call.
    match unsafe { write(user, text.as_ptr().cast(), text.len() as u64) } {
        0 => Ok(()),
        code => Err(Error::new(Status::Io, format_args!("the write function refused with {code}"))),
    }
}
