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
pub(crate) type StreamMutex<T> = SpinMutex<T, Patience>;
/// Its guard.
pub(crate) type StreamMutexGuard<'a, T> = SpinMutexGuard<'a, T>;

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
