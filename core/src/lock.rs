//! The lock of a stream. A stream is mostly used by one thread, and the hot path takes and gives back its lock in every call, so the
//! lock is *biased*: it is given to the thread that keeps coming, which then takes it with plain stores and loads instead of an
//! atomic exchange (a third of what a call costs).
//!
//! Anyone else takes the lock the ordinary way, by an exchange of `taken`, and takes the bias back: writes `owner`, has the kernel
//! make every running thread of the process pass a memory barrier (`membarrier`, a few microseconds), and waits while `door` says
//! that the owner is inside. The owner writes `door` first and reads `owner` after; so either it sees that the bias is gone, or the
//! other sees that it is inside. Where the kernel has no such barrier, or the processor is one we know no thread pointer of, nothing is
//! ever biased.
//!
//! - A thread that was put to sleep between its look at `door` and its write there may write at any time later, when the bias is long
//!   gone. So `door` stays its own, and nobody else gets the bias, until it comes by itself: takes the lock the ordinary way, or
//!   renounces it. (One that ended writes no more: who gets its thread pointer takes its place.)
//! - Each bias that was taken back makes the next one come later, so that a lock which several threads use is an ordinary one.
//! - A lock that can wake sleepers pays a second exchange when it is given back. So a rival waits by itself: it looks a while, then
//!   lets other threads run, then sleeps in short steps, which also lets a holder of lower priority finish. It pauses between
//!   two looks for as long as some calls take, so that threads on one stream make several calls each in turn: what they share changes
//!   caches less often.

use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, compiler_fence};
use std::time::Duration;

/// The lock of a stream.
#[cfg(not(debug_assertions))]
pub(crate) type StreamMutex<T> = BiasedMutex<T>;
/// Its guard.
#[cfg(not(debug_assertions))]
pub(crate) type StreamMutexGuard<'a, T> = BiasedGuard<'a, T>;

#[cfg(debug_assertions)]
pub(crate) use known::{StreamMutex, StreamMutexGuard};

/// Mark of `owner`: the thread was the last to come, and has no bias yet.
const COMING: usize = 1;
/// How many times in a row a thread takes the lock before it is biased to it; twice as many each time the bias was taken back.
const IN_A_ROW: u32 = 64;
const MOST_DOUBLINGS: u8 = 20;

/// `door`: no thread's.
const NOBODY: usize = 1;
/// `door`: the thread whose it is holds the lock, or tries to.
const INSIDE: usize = 0;

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Biased,
    Ordinary,
}

/// The lock; see the module.
#[repr(C)]
pub(crate) struct BiasedMutex<T> {
    /// The thread pointer of the thread that it is biased to; with [`COMING`], of the last that came; 0: neither.
    /// Written by whoever has `taken` only.
    owner: AtomicUsize,
    /// [`NOBODY`], [`INSIDE`], or the thread pointer of the thread that it is biased to, or was last. Written by that thread alone,
    /// and from [`NOBODY`] by whoever has `taken`.
    door: AtomicUsize,
    /// Someone holds it the ordinary way, or is about to.
    taken: AtomicBool,
    /// How often the bias was taken back.
    doublings: AtomicU8,
    /// How many more times in a row.
    left: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the lock lets one thread at a time have the value, and what one did is seen by the next.
unsafe impl<T: Send> Sync for BiasedMutex<T> {}

/// Its guard.
pub(crate) struct BiasedGuard<'a, T> {
    lock: &'a BiasedMutex<T>,
    way: Way,
    /// Stays in its thread: only the owner may write `door`.
    _here: PhantomData<*mut T>,
}

impl<T: Default> Default for BiasedMutex<T> {
    fn default() -> Self {
        BiasedMutex {
            owner: AtomicUsize::new(0),
            door: AtomicUsize::new(NOBODY),
            taken: AtomicBool::new(false),
            doublings: AtomicU8::new(0),
            left: AtomicU32::new(0),
            value: UnsafeCell::default(),
        }
    }
}

impl<T> BiasedMutex<T> {
    /// Takes it if it is biased to this thread, and free. Else `None`: the caller goes on with another of these.
    #[inline(always)]
    pub(crate) fn lock_biased(&self) -> Option<BiasedGuard<'_, T>> {
        self.take_as_owner().then(|| self.guard(Way::Biased))
    }

    /// Waits for it.
    #[inline(always)]
    pub(crate) fn lock(&self) -> BiasedGuard<'_, T> {
        match self.take_as_owner() {
            true => self.guard(Way::Biased),
            false => self.lock_unbiased(),
        }
    }

    /// Waits for it, where [`BiasedMutex::lock_biased`] has just said that it is not biased to this thread.
    #[inline(always)]
    pub(crate) fn lock_unbiased(&self) -> BiasedGuard<'_, T> {
        // (It comes with one the first time, as it waits.)
        loop {
            if let Some(guard) = self.lock_ordinary(true) {
                return guard;
            }
        }
    }

    /// `None`: another thread holds it, or tries to, or this one holds it.
    #[inline(always)]
    pub(crate) fn try_lock(&self) -> Option<BiasedGuard<'_, T>> {
        if self.take_as_owner() {
            return Some(self.guard(Way::Biased));
        }
        self.lock_ordinary(false)
    }

    #[inline(always)]
    fn guard(&self, way: Way) -> BiasedGuard<'_, T> {
        BiasedGuard { lock: self, way, _here: PhantomData }
    }

    /// This thread, which does not hold the lock, gives up the bias, if it has it or is the last that had it: others may get it.
    pub(crate) fn renounce(&self) {
        if self.door.load(Relaxed) == thread_pointer() {
            drop(self.lock_ordinary(true));
        }
    }

    /// The biased way.
    #[inline(always)]
    fn take_as_owner(&self) -> bool {
        let me = thread_pointer();
        // (It may be inside already; then nobody takes it.)
        if self.door.load(Relaxed) != me {
            return false;
        }
        pause_in_tests();
        self.door.store(INSIDE, Relaxed);
        // The barrier of `take_bias_back` stands for the processor's part of this one.
        compiler_fence(SeqCst);
        pause_in_tests();
        if self.owner.load(Relaxed) == me {
            // What others did before the bias came is seen, for the thread took the lock itself when it came; and since then
            // it alone had it.
            return true;
        }
        self.door.store(me, Release);
        false
    }

    /// The ordinary way.
    #[inline(never)]
    fn lock_ordinary(&self, wait: bool) -> Option<BiasedGuard<'_, T>> {
        while self.taken.compare_exchange(false, true, Acquire, Relaxed).is_err() {
            if !wait {
                return None;
            }
            while self.taken.load(Relaxed) {
                relax();
            }
        }
        // (Dropped, and so given back, where nothing is returned.)
        let guard = self.guard(Way::Ordinary);
        let (me, owner) = (thread_pointer(), self.owner.load(Relaxed));
        if owner == me {
            // It is this thread that holds it.
            if !wait {
                return None;
            }
        } else if owner & COMING == 0 && owner != 0 {
            self.take_bias_back();
        }
        // The owner may hold it still, or try to: after a bias was taken back by one who did not wait, too.
        let door = loop {
            match self.door.load(Acquire) {
                INSIDE => {}
                door => break door,
            }
            if !wait {
                return None;
            }
            relax();
        };
        if door == me {
            self.door.store(NOBODY, Relaxed);
        }
        if owner != me | COMING {
            self.owner.store(me | COMING, Relaxed);
            self.left.store(IN_A_ROW << self.doublings.load(Relaxed), Relaxed);
            return Some(guard);
        }
        let left = self.left.load(Relaxed).saturating_sub(1);
        self.left.store(left, Relaxed);
        if left == 0 && self.give_bias(me) {
            return Some(self.guard(Way::Biased));
        }
        Some(guard)
    }

    /// The caller, which has `taken`, holds the lock the biased way from now on, and takes it so. `false`: not so.
    #[cold]
    #[inline(never)]
    fn give_bias(&self, me: usize) -> bool {
        if self.door.load(Relaxed) != NOBODY || !barrier::is_there() {
            self.left.store(IN_A_ROW, Relaxed);
            return false;
        }
        self.owner.store(me, Relaxed);
        self.door.store(INSIDE, Relaxed);
        true
    }

    /// The caller has `taken`. After this the owner does not take the lock; it may hold it still.
    #[cold]
    #[inline(never)]
    fn take_bias_back(&self) {
        self.owner.store(0, Relaxed);
        self.doublings.store((self.doublings.load(Relaxed) + 1).min(MOST_DOUBLINGS), Relaxed);
        barrier::pass_all();
    }
}

impl<T> Deref for BiasedGuard<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this guard has the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for BiasedGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard has the lock.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for BiasedGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        match self.way {
            Way::Biased => self.lock.door.store(thread_pointer(), Release),
            Way::Ordinary => self.lock.taken.store(false, Release),
        }
    }
}

/// Lets others run in between, where a test asks for it.
#[inline(always)]
fn pause_in_tests() {
    #[cfg(debug_assertions)]
    crate::checks::interrupt();
    #[cfg(test)]
    tests::halt();
}

/// What tells this thread from all that are alive: even, and not 0.
#[inline(always)]
fn thread_pointer() -> usize {
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    {
        let pointer: usize;
        // SAFETY: reads the first word of the thread's control block, which points to itself (System V ABI for x86-64, TLS).
        unsafe {
            std::arch::asm!("mov {}, fs:0", out(reg) pointer, options(pure, readonly, nostack, preserves_flags));
        }
        pointer
    }
    #[cfg(all(target_os = "linux", target_arch = "aarch64"))]
    {
        let pointer: usize;
        // SAFETY: reads the register that points to the thread's control block.
        unsafe {
            std::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(pure, readonly, nostack, preserves_flags));
        }
        pointer
    }
    #[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
    {
        // (All alike; `barrier` is not there.)
        2
    }
}

/// Who has come so far: one thread, or several. (One whose thread pointer is given out again is never there at the same time.)
#[derive(Default)]
pub(crate) struct Comers(AtomicUsize);

/// Mark of [`Comers`]: no thread's pointer.
const SEVERAL: usize = 1;

impl Comers {
    /// This thread comes, under a lock that all take. Whether it is the only one so far; `false` also where threads cannot be told apart.
    #[inline(always)]
    pub(crate) fn come(&self) -> bool {
        let told_apart = cfg!(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")));
        let (me, first) = (thread_pointer(), self.0.load(Relaxed));
        if first == 0 {
            self.0.store(me, Relaxed);
        } else if first != me {
            self.0.store(SEVERAL, Relaxed);
            return false;
        }
        told_apart
    }
}

/// Has the kernel ready what takes a bias back; without, there is none. Called where a device is opened, and not later: the kernel
/// may take some milliseconds in a process with threads.
pub(crate) fn prepare() {
    barrier::prepare();
}

/// A memory barrier in all threads of the process that are running: `membarrier(2)`, private and expedited. (One that is not running
/// passes one when it is put in place.)
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod barrier {
    use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
    use std::time::Duration;

    const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
    const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

    const UNKNOWN: u8 = 0;
    const THERE: u8 = 1;
    const MISSING: u8 = 2;
    static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

    fn membarrier(command: libc::c_int) -> bool {
        // SAFETY: takes numbers only.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }

    pub(super) fn prepare() {
        if STATE.load(Relaxed) == UNKNOWN {
            let state = if membarrier(REGISTER_PRIVATE_EXPEDITED) { THERE } else { MISSING };
            // (Of threads that come here together each may ask.)
            STATE.store(state, Relaxed);
        }
    }

    pub(super) fn is_there() -> bool {
        STATE.load(Relaxed) == THERE
    }

    pub(super) fn pass_all() {
        if membarrier(PRIVATE_EXPEDITED) {
            return;
        }
        // A child after a fork may have to register again.
        if membarrier(REGISTER_PRIVATE_EXPEDITED) && membarrier(PRIVATE_EXPEDITED) {
            return;
        }
        // The process has come to forbid the call, or the kernel lacks memory. Nothing is biased from now on; and what was: no processor keeps a write
        // back, nor a read open, for so long.
        STATE.store(MISSING, Relaxed);
        crate::cancel::sleep(Duration::from_millis(10));
    }
}

/// Where there is none.
#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod barrier {
    pub(super) fn prepare() {}

    pub(super) fn is_there() -> bool {
        false
    }

    pub(super) fn pass_all() {
        unreachable!("nothing was biased");
    }
}

/// Steps of the pause between two looks.
const PAUSE: u32 = 128;
/// Looks between two yields, and yields between two sleeps.
const LOOKS: u32 = 4;
const YIELDS: u32 = 256;
const SLEEP: Duration = Duration::from_micros(50);

/// How a rival waits.
#[cold]
pub(crate) fn relax() {
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
        crate::cancel::sleep(SLEEP);
    }
}

/// The same lock, of which each thread knows whether it holds it.
#[cfg(debug_assertions)]
mod known {
    use super::{BiasedGuard, BiasedMutex};
    use crate::checks::{Held, holds, interrupt};
    use std::ops::{Deref, DerefMut};

    #[derive(Default)]
    pub(crate) struct StreamMutex<T>(BiasedMutex<T>);

    pub(crate) struct StreamMutexGuard<'a, T> {
        guard: BiasedGuard<'a, T>,
        // (Dropped after the guard: this thread alone asks.)
        _held: Held,
    }

    impl<T> StreamMutex<T> {
        fn address(&self) -> usize {
            std::ptr::from_ref(self).addr()
        }
        fn known<'a>(&self, guard: BiasedGuard<'a, T>) -> StreamMutexGuard<'a, T> {
            assert!(holds(self.address()) != Some(true), "a thread got a lock that it holds");
            StreamMutexGuard { guard, _held: Held::new(self.address()) }
        }
        pub(crate) fn lock_biased(&self) -> Option<StreamMutexGuard<'_, T>> {
            interrupt();
            self.0.lock_biased().map(|guard| self.known(guard))
        }
        pub(crate) fn lock_unbiased(&self) -> StreamMutexGuard<'_, T> {
            interrupt();
            self.known(self.0.lock_unbiased())
        }
        pub(crate) fn lock(&self) -> StreamMutexGuard<'_, T> {
            interrupt();
            self.known(self.0.lock())
        }
        pub(crate) fn try_lock(&self) -> Option<StreamMutexGuard<'_, T>> {
            interrupt();
            self.0.try_lock().map(|guard| self.known(guard))
        }
        pub(crate) fn renounce(&self) {
            self.0.renounce();
        }
        /// This thread holds it. (One that is ending is not asked.)
        pub(crate) fn is_held(&self) -> bool {
            holds(self.address()) != Some(false)
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

#[cfg(test)]
mod tests {
    use super::{BiasedMutex, Duration, IN_A_ROW, Relaxed, Way, barrier, prepare, thread_pointer};
    use std::cell::RefCell;
    use std::sync::atomic::{AtomicBool, AtomicU64};
    use std::sync::mpsc;
    use std::thread;

    type Lock = BiasedMutex<(u64, u64)>;

    thread_local! {
        /// Where this thread halts next, once: says so, and goes on when told.
        static HALT: RefCell<Option<(mpsc::Sender<()>, mpsc::Receiver<()>)>> = const { RefCell::new(None) };
    }

    pub(super) fn halt() {
        if let Some((say, hear)) = HALT.take() {
            say.send(()).unwrap();
            hear.recv().unwrap();
        }
    }

    /// Taken and given back by this thread.
    fn times(lock: &Lock, count: u32) {
        for _ in 0..count {
            drop(lock.lock());
        }
    }

    fn biased_here() -> Lock {
        prepare();
        let lock = Lock::default();
        times(&lock, IN_A_ROW + 1);
        lock
    }

    #[test]
    fn a_thread_that_comes_often_enough_in_a_row_takes_it_the_biased_way() {
        prepare();
        let lock = Lock::default();
        assert!(lock.lock_biased().is_none(), "biased from the start");
        times(&lock, IN_A_ROW);
        assert!(lock.lock_biased().is_none(), "the first time and as many in a row are needed");
        times(&lock, 1);
        assert_eq!(lock.lock_biased().is_some(), barrier::is_there());
        assert_eq!(lock.lock().way, if barrier::is_there() { Way::Biased } else { Way::Ordinary });
    }

    #[test]
    fn threads_that_take_turns_never_get_it_biased() {
        prepare();
        let lock = Lock::default();
        for _ in 0..4 {
            times(&lock, IN_A_ROW);
            thread::scope(|scope| drop(scope.spawn(|| times(&lock, IN_A_ROW)).join()));
        }
        assert!(lock.lock_biased().is_none());
    }

    #[test]
    fn a_thread_that_holds_it_does_not_get_it_once_more_in_either_way() {
        let lock = Lock::default();
        prepare();
        // The last of these is the one that gives it the bias.
        for _ in 0..=IN_A_ROW + 1 {
            let guard = lock.lock();
            assert!(lock.try_lock().is_none());
            assert!(lock.lock_biased().is_none());
            drop(guard);
        }
        for _ in 0..2 {
            let guard = lock.lock();
            assert!(lock.try_lock().is_none());
            assert!(lock.lock_biased().is_none());
            drop(guard);
            assert!(lock.try_lock().is_some(), "what was tried in vain is given back");
            // And now the ordinary way.
            thread::scope(|scope| drop(scope.spawn(|| times(&lock, 1)).join()));
        }
    }

    #[test]
    fn another_thread_takes_the_bias_back_and_waits_for_the_holder() {
        let lock = biased_here();
        let told = AtomicBool::new(false);
        let (say, hear) = mpsc::channel();
        thread::scope(|scope| {
            let mut guard = lock.lock();
            let (lock, told) = (&lock, &told);
            scope.spawn(move || {
                assert!(lock.try_lock().is_none(), "it is held");
                say.send(()).unwrap();
                let guard = lock.lock();
                assert!(told.load(Relaxed));
                assert_eq!(*guard, (1, 1));
            });
            hear.recv().unwrap();
            // The bias is gone, and the lock is held as it was.
            assert!(lock.try_lock().is_none());
            guard.0 = 1;
            thread::yield_now();
            guard.1 = 1;
            told.store(true, Relaxed);
            drop(guard);
        });
        assert!(lock.lock_biased().is_none(), "the bias was taken back");
    }

    #[test]
    fn a_bias_that_was_taken_back_comes_back_after_twice_as_many() {
        let lock = biased_here();
        if !barrier::is_there() {
            return;
        }
        for doublings in 1..4 {
            thread::scope(|scope| drop(scope.spawn(|| times(&lock, 1)).join()));
            times(&lock, IN_A_ROW << doublings);
            assert!(lock.lock_biased().is_none());
            times(&lock, 1);
            assert!(lock.lock_biased().is_some());
        }
    }

    /// Whether another thread gets it biased, once it has come often enough.
    fn another_gets_it(lock: &Lock) -> bool {
        thread::scope(|scope| {
            let other = scope.spawn(|| {
                times(lock, 4 * IN_A_ROW);
                let biased = lock.lock_biased().is_some();
                lock.renounce();
                assert!(lock.lock_biased().is_none(), "it was renounced");
                (biased, thread_pointer())
            });
            let (biased, other) = other.join().unwrap();
            assert_ne!(other, thread_pointer());
            biased
        })
    }

    #[test]
    fn another_thread_gets_it_biased_only_once_the_last_owner_has_come_again_or_renounced_it() {
        let lock = biased_here();
        assert!(!another_gets_it(&lock), "this thread may have a write under way");
        times(&lock, 1);
        assert_eq!(another_gets_it(&lock), barrier::is_there());
        let lock = biased_here();
        lock.renounce();
        assert!(lock.lock_biased().is_none());
        assert_eq!(another_gets_it(&lock), barrier::is_there());
    }

    #[test]
    fn an_owner_put_to_sleep_before_it_says_that_it_holds_it_takes_nothing_from_later_holders() {
        prepare();
        if !barrier::is_there() {
            return;
        }
        let lock = &Lock::default();
        let ((say, halted), (go, hear)) = (mpsc::channel(), mpsc::channel());
        thread::scope(|scope| {
            let owner = scope.spawn(move || {
                times(lock, IN_A_ROW + 1);
                HALT.set(Some((say, hear)));
                let guard = lock.lock();
                *guard
            });
            halted.recv().unwrap();
            // It has seen that it is the owner, and that nobody holds the lock.
            times(lock, 4 * IN_A_ROW);
            let mut guard = lock.lock();
            go.send(()).unwrap();
            // (Time enough for it to write, see that it is no longer the owner, and take back what it wrote.)
            thread::sleep(Duration::from_millis(20));
            let seen = thread::scope(|scope| scope.spawn(|| lock.try_lock().is_some()).join().unwrap());
            assert!(!seen, "two hold it");
            *guard = (1, 1);
            drop(guard);
            assert_eq!(owner.join().unwrap(), (1, 1));
        });
    }

    #[test]
    fn one_thread_at_a_time_has_the_value_and_sees_what_the_last_one_wrote() {
        const THREADS: u64 = 4;
        const LOCKS: usize = 3;
        crate::checks::interrupt_once_in(50);
        prepare();
        for round in 0..20_u64 {
            let locks: [Lock; LOCKS] = Default::default();
            let done = [const { AtomicU64::new(0) }; LOCKS];
            thread::scope(|scope| {
                for me in 0..THREADS {
                    let (locks, done) = (&locks, &done);
                    scope.spawn(move || {
                        let mut random = round * THREADS + me + 1;
                        for _ in 0..20_000 {
                            random ^= random << 13;
                            random ^= random >> 7;
                            random ^= random << 17;
                            // Mostly one's own; the last lock is nobody's.
                            let strange = random.is_multiple_of(if me == 0 { 3000 } else { 300 });
                            let at = if strange { random as usize >> 20 } else { me as usize } % LOCKS;
                            let guard = match random >> 40 & 3 {
                                0 => locks[at].try_lock(),
                                1 => locks[at].lock_biased(),
                                _ => Some(locks[at].lock()),
                            };
                            let Some(mut guard) = guard else { continue };
                            let (a, b) = *guard;
                            assert_eq!(a, b, "someone is at it");
                            guard.0 = a + 1;
                            if random >> 50 & 63 == 0 {
                                thread::yield_now();
                            }
                            guard.1 = b + 1;
                            drop(guard);
                            if random >> 56 == 0 {
                                locks[at].renounce();
                            }
                            done[at].fetch_add(1, Relaxed);
                        }
                    });
                }
            });
            for (lock, done) in locks.iter().zip(&done) {
                assert_eq!(lock.lock().0, done.load(Relaxed));
            }
        }
        crate::checks::interrupt_once_in(0);
    }
}
