//! Noticing a fork: the driver cannot be used in the child of a process that initialised it, and another thread of the
//! parent may have held any lock. The child's calls are refused before they take one.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// What is true of the process as a whole: bits, so that the hot path reads one word.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// A CUDA device has been opened.
pub(crate) const OPENED: u32 = 1;
/// This process is the child of one that had.
pub(crate) const FORKED: u32 = 2;
/// Some device saw a sticky error.
pub(crate) const POISONED: u32 = 4;

/// The bits.
#[inline(always)]
pub(crate) fn process() -> u32 {
    PROCESS.load(Relaxed)
}

pub(crate) fn mark(bits: u32) {
    PROCESS.fetch_or(bits, Relaxed);
}

extern "C" fn in_child() {
    // Only an atomic operation: the child of a threaded program may do little else.
    mark(FORKED);
}

/// From here on forks are noticed.
pub(crate) fn watch() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the handler is async-signal-safe, and stays as long as the library, which is never unloaded once it holds
        // the driver open. A failure (no memory) leaves forks unnoticed, as without a handler.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    mark(OPENED);
}
