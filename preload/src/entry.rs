//! What every replaced call starts with: is the library on, in this process, and not already inside a call of its own?
//! And what happens once: handlers for the process's end, for fork and for the report signal.

use crate::driver::{Code, UNKNOWN};
use crate::pool;
use crate::report;
use crate::setting::{self, Mode};
use crate::switch::broken;
use smp_core::cancel;
use std::cell::Cell;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};

thread_local! {
    // Constant, without a destructor: usable from the first moment of a thread to its last.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// In a child after `fork`, or after a failure of our own: everything goes to the driver.
static OUT_OF_USE: AtomicBool = AtomicBool::new(false);
static REPORT_WANTED: AtomicBool = AtomicBool::new(false);
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// Whether this thread is inside a replaced call: what the driver, or our own use of it, looks up or calls is its own.
pub fn inside() -> bool {
    DEPTH.get() > 0
}

/// A replaced call in progress on this thread.
pub struct Entry(());

impl Entry {
    /// Marks this thread as inside.
    fn begin() -> Entry {
        DEPTH.set(DEPTH.get() + 1);
        Entry(())
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

/// Starts a replaced call; `None`: the call goes to the driver as it is.
pub fn enter() -> Option<Entry> {
    let off = setting::settings().mode == Mode::Off && !broken("kill-switch");
    if inside() || OUT_OF_USE.load(Relaxed) || off {
        return None;
    }
    let entry = Entry::begin();
    static STARTED: Once = Once::new();
    if broken("one-start") {
        start();
    }
    STARTED.call_once(start);
    if REPORT_WANTED.load(Relaxed) && REPORT_WANTED.swap(false, Relaxed) {
        report::write(report::Moment::Asked);
    }
    Some(entry)
}

/// While what this gives lives, the thread is not cancelled (`pthread_cancel`): a cancellation that is asked for stays pending, and is
/// the program's at its own next cancellation point. In our own code it would unwind through what nothing may unwind
/// through, and end the process: a file is written here, which is such a point. So is it where the driver's code is called from ours,
/// which is why that waits too; only what a look-up gave the program as the driver's own function can be cancelled as before.
#[must_use]
pub fn uncancelled() -> Option<cancel::Held> {
    (!broken("cancellation")).then(cancel::hold)
}

/// Runs a replaced call. A panic, which would be an error of ours, ends our part in the process and fails the call.
pub fn contain(call: impl FnOnce() -> Code) -> Code {
    let _whole = uncancelled();
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).unwrap_or_else(|_| {
        give_up();
        UNKNOWN
    })
}

/// From here on everything goes to the driver.
pub fn give_up() {
    OUT_OF_USE.store(true, Relaxed);
}

fn start() {
    // SAFETY: getpid, atexit and pthread_atfork with functions that live as long as the process.
    unsafe {
        PROCESS.store(libc::getpid(), Relaxed);
        libc::atexit(at_exit);
        if !broken("fork") {
            libc::pthread_atfork(None, None, Some(in_child));
        }
    }
    if setting::settings().report_signal {
        watch_signal();
    }
}

/// A child of `fork` has one thread, and locks in the state in which the others left them. It can use neither them nor the
/// driver; its calls get the driver's own answers.
extern "C" fn in_child() {
    give_up();
}

fn own_process() -> bool {
    // A child that was made without the fork handlers (clone) must not write its parent's report.
    // SAFETY: always safe.
    broken("fork") || !OUT_OF_USE.load(Relaxed) && PROCESS.load(Relaxed) == unsafe { libc::getpid() }
}

extern "C" fn at_exit() {
    if own_process() {
        let _whole = uncancelled();
        let _inside = Entry::begin();
        if !broken("report-at-exit") {
            report::write(report::Moment::Exit);
        }
        if broken("late-frees") {
            give_up();
        }
        pool::finish_traces();
    }
}

/// Runs when the loader takes the process down, after all handlers and static destructors: what they freed can be told.
#[used]
#[cfg_attr(not(test), unsafe(link_section = ".fini_array"))]
static AT_UNLOAD: extern "C" fn() = at_unload;

extern "C" fn at_unload() {
    if PROCESS.load(Relaxed) != 0 && own_process() {
        let _whole = uncancelled();
        let _inside = Entry::begin();
        report::write(report::Moment::Unload);
    }
}

extern "C" fn on_signal(_signal: i32) {
    // Nothing else may be done in a handler.
    REPORT_WANTED.store(true, Relaxed);
}

fn watch_signal() {
    // SAFETY: both structs are plain data that the calls read and write; the handler only stores to an atomic.
    let taken = unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGUSR2, std::ptr::null(), &mut old);
        let free = old.sa_sigaction == libc::SIG_DFL;
        if free {
            let mut new: libc::sigaction = std::mem::zeroed();
            new.sa_sigaction = on_signal as *const () as usize;
            new.sa_flags = libc::SA_RESTART;
            libc::sigaction(libc::SIGUSR2, &new, std::ptr::null_mut());
        }
        !free
    };
    if taken {
        setting::warn("SMP_REPORT_SIGNAL: the program handles SIGUSR2 itself; it stays the program's");
    }
}
