//! What debug builds check, at no cost to others: who changes a block's record holds the lock of its domain. And, where a test asks
//! for it, threads are interrupted at such changes, so that others meet what is half done.

/// From now on each thread lets others run once in about so many changes of a record (0: never). Debug builds only; in others
/// nothing happens.
pub fn interrupt_once_in(changes: u32) {
    #[cfg(debug_assertions)]
    debug::INTERRUPTS.store(changes, std::sync::atomic::Ordering::Relaxed);
    #[cfg(not(debug_assertions))]
    let _ = changes;
}

#[cfg(debug_assertions)]
pub(crate) use debug::SlowGuard;
#[cfg(debug_assertions)]
pub(crate) use debug::{Held, SlowMutex, holds, holds_slow, interrupt};

/// A device's slow lock.
#[cfg(not(debug_assertions))]
pub(crate) type SlowMutex = parking_lot::Mutex<()>;
/// Its guard.
#[cfg(not(debug_assertions))]
pub(crate) type SlowGuard<'a> = parking_lot::MutexGuard<'a, ()>;

#[cfg(debug_assertions)]
mod debug {
    use parking_lot::{Mutex, MutexGuard};
    use std::cell::{Cell, RefCell};
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    pub(super) static INTERRUPTS: AtomicU32 = AtomicU32::new(0);

    thread_local! {
        /// The stream locks that this thread holds.
        static HELD: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
        static HELD_SLOW: Cell<u32> = const { Cell::new(0) };
        static RANDOM: Cell<u32> = const { Cell::new(0) };
    }

    /// A stream lock that this thread holds, by its address.
    pub(crate) struct Held(usize);

    impl Held {
        pub(crate) fn new(lock: usize) -> Held {
            let _ = HELD.try_with(|held| held.borrow_mut().push(lock));
            Held(lock)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            let _ = HELD.try_with(|held| {
                let mut held = held.borrow_mut();
                if let Some(at) = held.iter().rposition(|&lock| lock == self.0) {
                    held.swap_remove(at);
                }
            });
        }
    }

    /// Whether this thread holds the stream lock at this address; `None`: it is ending, and cannot tell.
    pub(crate) fn holds(lock: usize) -> Option<bool> {
        HELD.try_with(|held| held.borrow().contains(&lock)).ok()
    }

    /// Whether this thread holds a device's slow lock.
    pub(crate) fn holds_slow() -> bool {
        HELD_SLOW.try_with(|held| held.get() > 0).unwrap_or(true)
    }

    /// Lets others run, where a test asks for it.
    #[inline]
    pub(crate) fn interrupt() {
        let times = INTERRUPTS.load(Relaxed);
        if times > 0 {
            let _ = RANDOM.try_with(|random| {
                let next = random.get().wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                random.set(next);
                if (next >> 8).is_multiple_of(times) {
                    std::thread::yield_now();
                }
            });
        }
    }

    pub(crate) struct SlowMutex(Mutex<()>);

    pub(crate) struct SlowGuard<'a>(#[allow(dead_code)] MutexGuard<'a, ()>);

    impl<'a> SlowGuard<'a> {
        fn of(guard: MutexGuard<'a, ()>) -> SlowGuard<'a> {
            let _ = HELD_SLOW.try_with(|held| held.set(held.get() + 1));
            SlowGuard(guard)
        }
    }

    impl Drop for SlowGuard<'_> {
        fn drop(&mut self) {
            let _ = HELD_SLOW.try_with(|held| held.set(held.get() - 1));
        }
    }

    impl SlowMutex {
        pub(crate) const fn new(_: ()) -> SlowMutex {
            SlowMutex(Mutex::new(()))
        }
        pub(crate) fn lock(&self) -> SlowGuard<'_> {
            SlowGuard::of(self.0.lock())
        }
        pub(crate) fn try_lock(&self) -> Option<SlowGuard<'_>> {
            self.0.try_lock().map(SlowGuard::of)
        }
    }
}
