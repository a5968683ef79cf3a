//! What a thread knows of itself, and which have ended. A thread makes calls to its last moment, from destructors of its own that run in an order nobody
//! chooses, so nothing that runs in it can tell that it makes no more. The system can: each thread keeps a robust mutex locked,
//! and whoever finds its owner dead comes after everything the thread did.

use crate::leaf::{Leaf, RawLeaf};
use std::cell::{Cell, UnsafeCell};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// This thread's number. No other has it, at any time.
#[inline(always)]
pub(crate) fn number() -> u64 {
    thread_local! {
        // Without a destructor: usable to the last moment of a thread.
        static ME: Cell<u64> = const { Cell::new(0) };
    }
    ME.with(|cell| {
        if cell.get() == 0 {
            cell.set(begin());
        }
        cell.get()
    })
}

thread_local! {
    // Without a destructor, as above.
    static OWN: Cell<(u32, u64)> = const { Cell::new((0, 0)) };
}

/// The handle of this thread's default stream on the model device whose legacy stream is in slot `legacy`, as it was when a call last
/// found it: it may be good no more. `None`: it was another device's.
#[inline(always)]
pub(crate) fn own_stream(legacy: u32) -> Option<u64> {
    let (device, handle) = OWN.get();
    (device == legacy && handle != 0).then_some(handle)
}

pub(crate) fn remember_own_stream(legacy: u32, handle: u64) {
    OWN.set((legacy, handle));
}

/// Those that have a number and are not known to have ended. `None`: of this one it will not be known.
static THREADS: Leaf<Threads> = Leaf::new(Threads { running: BTreeMap::new(), look_at: 64 });

/// Its leaf.
pub(super) fn leaf() -> &'static RawLeaf {
    crate::leaf::raw(&THREADS)
}

struct Threads {
    running: BTreeMap<u64, Option<Box<Life>>>,
    /// With so many, those that have ended are struck out.
    look_at: usize,
}

impl Threads {
    fn has_ended(&mut self, thread: u64) -> bool {
        let ended = self.running.get(&thread).is_none_or(|life| life.as_ref().is_some_and(|life| life.is_over()));
        if ended {
            self.running.remove(&thread);
        }
        ended
    }
}

#[cold]
fn begin() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let number = NEXT.fetch_add(1, Relaxed);
    let life = Life::begin();
    let mut threads = THREADS.lock();
    if threads.running.len() >= threads.look_at {
        threads.running.retain(|_, life| !life.as_ref().is_some_and(|life| life.is_over()));
        threads.look_at = threads.running.len().saturating_mul(2).max(64);
    }
    threads.running.insert(number, life);
    number
}

/// Those of `known` whose thread has ended, but for `me`, the calling one.
pub(crate) fn ended<T>(known: Vec<(u64, T)>, me: u64) -> Vec<(u64, T)> {
    let mut threads = THREADS.lock();
    known.into_iter().filter(|(thread, _)| *thread != me && threads.has_ended(*thread)).collect()
}

/// A mutex that its thread keeps locked.
struct Life(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: a mutex of the system's, which any thread may try to lock.
unsafe impl Send for Life {}
// SAFETY: as above.
unsafe impl Sync for Life {}

impl Life {
    /// Of the calling thread. `None`: the system has no such mutex left.
    fn begin() -> Option<Box<Life>> {
        let life = Box::new(Life(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER)));
        let mutex = life.0.get();
        // SAFETY: the attributes are made before they are used; the mutex stays where it is, and is dropped only by who has found
        // its owner dead (or here, never locked).
        unsafe {
            let mut attributes = std::mem::MaybeUninit::uninit();
            if libc::pthread_mutexattr_init(attributes.as_mut_ptr()) != 0 {
                return None;
            }
            let made = libc::pthread_mutexattr_setrobust(attributes.as_mut_ptr(), libc::PTHREAD_MUTEX_ROBUST) == 0
                && libc::pthread_mutex_init(mutex, attributes.as_ptr()) == 0
                && libc::pthread_mutex_lock(mutex) == 0;
            libc::pthread_mutexattr_destroy(attributes.as_mut_ptr());
            made.then_some(life)
        }
    }

    /// The thread has ended. Once this has been found, the mutex is good for nothing more.
    fn is_over(&self) -> bool {
        let mutex = self.0.get();
        // SAFETY: a mutex made by `begin`; locked by a thread that is dead, it is this one's, made consistent and let go.
        unsafe {
            if libc::pthread_mutex_trylock(mutex) != libc::EOWNERDEAD {
                return false;
            }
            libc::pthread_mutex_consistent(mutex);
            libc::pthread_mutex_unlock(mutex);
            libc::pthread_mutex_destroy(mutex);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{THREADS, begin, ended, number};

    #[test]
    fn a_thread_has_ended_once_it_is_joined_and_not_before() {
        let (say, told) = std::sync::mpsc::channel();
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            say.send(number()).unwrap();
            wait.recv().unwrap();
            number()
        });
        let its = told.recv().unwrap();
        assert_eq!(ended(vec![(its, ())], number()), []);
        end.send(()).unwrap();
        assert_eq!(other.join().unwrap(), its);
        assert_eq!(ended(vec![(its, ()), (number(), ())], number()), [(its, ())]);
        // For every device that asks.
        assert_eq!(ended(vec![(its, ())], number()), [(its, ())]);
    }

    #[test]
    fn threads_nobody_asks_about_are_struck_out() {
        for _ in 0..500 {
            std::thread::spawn(begin).join().unwrap();
        }
        assert!(THREADS.lock().running.len() < 200);
    }
}
