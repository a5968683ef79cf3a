//! The log callback: what the library noticed and no status tells.

use crate::boundary::{call, invalid};
use crate::pool::User;
use crate::status::smp_status;
use smp_core::cancel;
use smp_core::log::{self, Level};
use std::ffi::{CString, c_char, c_void};
use std::sync::RwLock;

/// Nothing is logged.
pub const SMP_LOG_OFF: u32 = 0;
/// Faults: a poisoned device, a fault inside the library.
pub const SMP_LOG_ERROR: u32 = 1;
/// The caller's likely mistakes (a free not ordered after its allocation, a race) and a page release the device refused.
pub const SMP_LOG_WARNING: u32 = 2;
/// What happened: pools made, pages given back.
pub const SMP_LOG_INFO: u32 = 3;

/// Receives one line of the log, without a line end; UTF-8, ends with a NUL, lives for the call only. It runs on whatever
/// thread noticed, perhaps with locks held: it may not call any smp function.
pub type smp_log_fn = Option<unsafe extern "C" fn(user: *mut c_void, level: u32, message: *const c_char)>;

type Sink = (unsafe extern "C" fn(*mut c_void, u32, *const c_char), User);

static SINK: RwLock<Option<Sink>> = RwLock::new(None);

/// Sets what receives the log of the whole process; replaces the one before. Without one nothing is logged.
///
/// `level`: SMP_LOG_...; the most detailed one wanted. `callback`: null turns logging off. `user`: handed to it as it is.
/// When this returns, the callback set before runs no more. Errors: SMP_ERROR_INVALID_VALUE for an unknown level.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_set_log_callback(level: u32, callback: smp_log_fn, user: *mut c_void) -> smp_status {
    call(|| {
        let wanted = match level {
            SMP_LOG_OFF => None,
            SMP_LOG_ERROR => Some(Level::Error),
            SMP_LOG_WARNING => Some(Level::Warning),
            SMP_LOG_INFO => Some(Level::Info),
            level => return Err(invalid(format_args!("level is {level}, which is no log level"))),
        };
        let sink = wanted.and(callback).map(|callback| (callback, User(user)));
        let on = sink.is_some();
        // A panic cannot have left it half-written: it is one assignment.
        *SINK.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = sink;
        log::set_sink(wanted.unwrap_or(Level::Error), if on { Some(forward) } else { None });
        Ok(())
    })
}

fn forward(level: Level, message: &str) {
    let sink = SINK.read().unwrap_or_else(|poisoned| poisoned.into_inner());
    let Some((callback, user)) = *sink else { return };
    let Ok(message) = CString::new(message) else { return };
    let _held = cancel::hold();
    // SAFETY: set together by the caller, who keeps both usable from any thread until replaced; the read lock is held.
    unsafe { callback(user.0, level as u32, message.as_ptr()) };
}
