//! Cancellation of threads (`pthread_cancel`). A thread with a cancellation pending is unwound where it next sleeps, writes or opens
//! a file. It must not be in the midst of a call: what it holds would stay half done, and the unwinding may not pass through Rust
//! code anyway, so the process would end. So cancellation is put off where such a place may be reached: for the whole of calls that are
//! rare, and else where the library sleeps, writes, asks the driver or calls the program back. Calls are no cancellation points then;
//! the program's next own one is.

use std::marker::PhantomData;
use std::time::Duration;

/// While it lives, the thread is not cancelled; then all is as before.
pub struct Held {
    before: i32,
    /// Stays in its thread.
    _here: PhantomData<*mut ()>,
}

/// Puts off what is pending or comes.
pub fn hold() -> Held {
    Held { before: set(DISABLE), _here: PhantomData }
}

impl Drop for Held {
    fn drop(&mut self) {
        set(self.before);
    }
}

/// Sleeps, and is no cancellation point.
pub(crate) fn sleep(duration: Duration) {
    let _held = hold();
    std::thread::sleep(duration);
}

const DISABLE: i32 = 1;

/// Sets whether the thread may be cancelled, and gives what was set before.
#[cfg(target_os = "linux")]
fn set(state: i32) -> i32 {
    unsafe extern "C" {
        fn pthread_setcancelstate(state: libc::c_int, before: *mut libc::c_int) -> libc::c_int;
    }
    let mut before = 0;
    // SAFETY: POSIX; the state is the constant of Linux' C libraries, or what this function gave. A refusal changes nothing.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}

#[cfg(not(target_os = "linux"))]
fn set(_state: i32) -> i32 {
    0
}
