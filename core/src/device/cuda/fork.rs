//! Noticing a fork: the driver cannot be used in the child of a process that initialised it, and another thread of the
//! parent may have held any lock. The child's calls are refused before they take one.

use crate::handle;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// What is true of the process as a whole: bits, so that the hot path reads one word.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// The lowest bits of a stream that a call may take for a handle of this library without looking further: below all streams'
/// handles are the default streams' names (what lies at such a number in the table of streams is someone else's, whose lock is not to be
/// touched), and where a CUDA device was opened, more must be looked at whatever the stream.
static HANDLES_FROM: AtomicU64 = AtomicU64::new(handle::encode(handle::Kind::Stream, 0, 0));
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

/// Whether these bits of a stream are at most a handle of this library.
#[inline(always)]
pub(crate) fn is_plain(stream: u64) -> bool {
    stream >= HANDLES_FROM.load(Relaxed)
}

pub(crate) fn mark(bits: u32) {
    PROCESS.fetch_or(bits, Relaxed);
    HANDLES_FROM.store(u64::MAX, Relaxed);
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
