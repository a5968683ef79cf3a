//! The lock of what all devices of a process share: free records, and the lists of devices and threads. Each is a *leaf*: whoever
//! holds one takes no other lock, makes no call to anybody, and gives it back soon.
//!
//! A fork copies the memory as it is, but only one thread. So that no other thread's hold is copied, which nobody would end in the
//! child, whoever forks takes all leaves first, and gives them back on both sides. (What a device has for itself is not for the child:
//! it opens devices of its own.) The child's copies of these locks know of no sleepers, who are not there: a rival waits by itself, as
//! for a stream.

use crate::lock::relax;
use parking_lot::lock_api::{GuardNoSend, Mutex, RawMutex};
use std::cell::Cell;
use std::sync::Once;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

pub(crate) struct RawLeaf(AtomicBool);

/// The lock.
pub(crate) type Leaf<T> = Mutex<RawLeaf, T>;

// SAFETY: one thread at a time turns `false` into `true`, and that one turns it back; what it did before is seen by the next.
unsafe impl RawMutex for RawLeaf {
    #[allow(clippy::declare_interior_mutable_const)] // the trait's
    const INIT: RawLeaf = RawLeaf(AtomicBool::new(false));
    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock(&self) {
        while !self.try_lock() {
            // Another library's handler of the same fork calls this one: then the fork does without.
            if TAKEN.get() != 0 {
                give_back();
                continue;
            }
            while self.0.load(Relaxed) {
                relax();
            }
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.0.compare_exchange(false, true, Acquire, Relaxed).is_ok()
    }

    #[inline]
    unsafe fn unlock(&self) {
        self.0.store(false, Release);
    }
}

/// What a fork takes.
pub(crate) fn raw<T>(leaf: &Leaf<T>) -> &RawLeaf {
    // SAFETY: only `give_back` gives it back past its guard, and only what `before` took.
    unsafe { leaf.raw() }
}

impl RawLeaf {
    /// Takes it for a fork. Not for ever: a signal's handler that forks may have interrupted the thread that holds it.
    fn take_before(&self, end: Instant) -> bool {
        while !self.try_lock() {
            if Instant::now() > end {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }
}

const LONGEST_WAIT: Duration = Duration::from_millis(200);

/// Calls `body` with each leaf and its number.
fn each(mut body: impl FnMut(u32, &RawLeaf)) {
    for (number, leaf) in (0..).zip(crate::runtime::leaves()) {
        body(number, leaf);
    }
}

thread_local! {
    /// Which leaves this thread has for a fork.
    static TAKEN: Cell<u32> = const { Cell::new(0) };
}

extern "C" fn before() {
    let end = Instant::now() + LONGEST_WAIT;
    let mut taken = 0;
    each(|number, leaf| taken |= u32::from(leaf.take_before(end)) << number);
    TAKEN.set(taken);
}

extern "C" fn give_back() {
    let taken = TAKEN.replace(0);
    each(|number, leaf| {
        if taken >> number & 1 != 0 {
            // SAFETY: this thread, or that of which it is the copy, took it in `before`, and no guard of its own is alive.
            unsafe { leaf.unlock() };
        }
    });
}

extern "C" fn in_child() {
    give_back();
    crate::runtime::forget_free_records();
}

/// From here on forks take the leaves.
pub(crate) fn watch_forks() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the functions stay as long as the library, which is never unloaded, and do nothing but store, load and yield. A failure
        // (no memory) leaves forks as they would be without.
        let _ = unsafe { libc::pthread_atfork(Some(before), Some(give_back), Some(in_child)) };
    });
}
