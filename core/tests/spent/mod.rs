//! What a test has cost: the time its thread was on a processor, which others on the machine do not lengthen.

use std::time::Duration;

/// A moment to count from.
pub struct Spent(Duration);

impl Spent {
    /// From here on.
    pub fn now() -> Spent {
        Spent(on_processor())
    }

    /// What the thread has spent since.
    pub fn elapsed(&self) -> Duration {
        on_processor() - self.0
    }
}

fn on_processor() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a clock that every thread has, and a place to write to.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
