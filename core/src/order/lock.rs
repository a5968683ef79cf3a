//! The lock of a stream: one atomic exchange to take it, one plain store to give it back.
//!
//! The hot path takes and gives back this lock in every call, mostly without a rival; a lock that can wake sleepers pays
//! a second atomic exchange for that. So a rival waits by itself: it looks a while, then lets other threads run, then
//! sleeps in short steps, which also lets a holder of lower priority finish. It pauses between two looks for as long as some calls
//! take, so that threads on one stream make several calls each in turn: what they share changes caches less often.

use spin::mutex::{SpinMutex, SpinMutexGuard};
use spin::relax::RelaxStrategy;
use std::cell::Cell;
use std::time::Duration;

/// A lock without a queue; see the module.
#[cfg(not(debug_assertions))]
pub(crate) type StreamMutex<T> = SpinMutex<T, Patience>;
/// Its guard.
#[cfg(not(debug_assertions))]
pub(crate) type StreamMutexGuard<'a, T> = SpinMutexGuard<'a, T>;

#[cfg(debug_assertions)]
pub(crate) use known::{StreamMutex, StreamMutexGuard};

/// The same lock, of which each thread knows whether it holds it.
#[cfg(debug_assertions)]
mod known {
    use super::{Patience, SpinMutex, SpinMutexGuard};
    use crate::checks::{Held, holds, interrupt};
    use std::ops::{Deref, DerefMut};

    #[derive(Default)]
    pub(crate) struct StreamMutex<T>(SpinMutex<T, Patience>);

    pub(crate) struct StreamMutexGuard<'a, T> {
        guard: SpinMutexGuard<'a, T>,
        // (Dropped after the guard: this thread alone asks.)
        _held: Held,
    }

    impl<T> StreamMutex<T> {
        fn address(&self) -> usize {
            std::ptr::from_ref(self).addr()
        }
        pub(crate) fn lock(&self) -> StreamMutexGuard<'_, T> {
            interrupt();
            StreamMutexGuard { guard: self.0.lock(), _held: Held::new(self.address()) }
        }
        pub(crate) fn try_lock(&self) -> Option<StreamMutexGuard<'_, T>> {
            interrupt();
            Some(StreamMutexGuard { guard: self.0.try_lock()?, _held: Held::new(self.address()) })
        }
        /// This thread holds it.
        pub(crate) fn is_held(&self) -> bool {
            holds(self.address())
        }
    }

    impl<T> Deref for StreamMutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            &self.guard
        }
    }

    impl<T> DerefMut for StreamMutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.guard
        }
    }
}

/// How a rival waits.
pub(crate) struct Patience;

/// Steps of the pause between two looks.
const PAUSE: u32 = 128;
/// Looks between two yields, and yields between two sleeps.
const LOOKS: u32 = 4;
const YIELDS: u32 = 256;
const SLEEP: Duration = Duration::from_micros(50);

impl RelaxStrategy for Patience {
    #[inline]
    fn relax() {
        thread_local! {
            /// Looks of this thread at locks that were taken. Waits share the count: it only spaces the steps.
            static WAITED: Cell<u32> = const { Cell::new(0) };
        }
        let waited = WAITED.get().wrapping_add(1);
        WAITED.set(waited);
        if !waited.is_multiple_of(LOOKS) {
            for _ in 0..PAUSE {
                std::hint::spin_loop();
            }
        } else if !waited.is_multiple_of(LOOKS * YIELDS) {
            std::thread::yield_now();
        } else {
            std::thread::sleep(SLEEP);
        }
    }
}
