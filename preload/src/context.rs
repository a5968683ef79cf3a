//! Which context is current, without asking the driver where that is certain, and what becomes of memory when a context
//! goes.

use crate::driver::{self, Code, Handle, SUCCESS};
use crate::entry;
use crate::hook::real;
use crate::ledger;
use crate::order;
use crate::pool;
use crate::setting::{self, Mode};
use crate::switch::broken;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// A context and its device's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Current {
    /// The context.
    pub context: Handle,
    /// Its device.
    pub device: i32,
}

/// Counts what may have ended a context: what threads remember is good for one count only.
static ENDED: AtomicU64 = AtomicU64::new(1);

/// The program has the driver's private tables, by which the current context may change unseen.
static PRIVATE: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// What was current when it was last asked, and the count then; zero: not known.
    static LAST: Cell<(u64, Handle, i32)> = const { Cell::new((0, 0, 0)) };
    /// Nothing has changed it on this thread since.
    static SURE: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread's context and its device; `None` where there is none, and the driver will say so itself.
pub fn current() -> Option<Current> {
    let count = ENDED.load(Relaxed);
    let (seen, known, device) = LAST.get();
    if SURE.get() && seen == count && !PRIVATE.load(Relaxed) {
        return Some(Current { context: known, device });
    }
    let mut context: Handle = 0;
    // SAFETY: the target is ours.
    if unsafe { driver::cuCtxGetCurrent(&mut context) } != SUCCESS || context == 0 {
        return None;
    }
    // Only in pool mode the calls that change it are replaced.
    SURE.set(setting::settings().mode == Mode::Pool);
    if seen == count && known == context {
        return Some(Current { context, device });
    }
    let mut device = 0;
    // SAFETY: the target is ours.
    if unsafe { driver::cuCtxGetDevice(&mut device) } != SUCCESS {
        SURE.set(false);
        return None;
    }
    LAST.set((count, context, device));
    Some(Current { context, device })
}

/// Runs with `context` current, and restores what was. `None`: the driver refused.
pub fn with<T>(context: Handle, run: impl FnOnce() -> T) -> Option<T> {
    if current().is_some_and(|now| now.context == context) {
        return Some(run());
    }
    let before = (SURE.replace(false), LAST.get());
    let mut popped: Handle = 0;
    // SAFETY: the driver judges the context; what was pushed is popped.
    let answer = unsafe {
        (driver::cuCtxPushCurrent_v2(context) == SUCCESS).then(|| {
            let answer = run();
            driver::cuCtxPopCurrent_v2(&mut popped);
            answer
        })
    };
    // What `run` has learnt holds for what was pushed.
    LAST.set(before.1);
    SURE.set(before.0);
    answer
}

/// `cuCtxPushCurrent` as the core calls it: until its pop another context is current than the program's.
pub extern "C" fn core_push(context: Handle) -> Code {
    SURE.set(false);
    // SAFETY: the core's argument.
    unsafe { driver::cuCtxPushCurrent_v2(context) }
}

/// `cuCtxPopCurrent` as the core calls it.
pub extern "C" fn core_pop(to: *mut Handle) -> Code {
    SURE.set(false);
    // SAFETY: the core's argument.
    unsafe { driver::cuCtxPopCurrent_v2(to) }
}

/// The context a stream belongs to: its own, else the calling thread's for the default streams.
pub fn of_stream(stream: Handle) -> Option<Current> {
    let here = current();
    if stream <= 2 {
        return here;
    }
    let mut context: Handle = 0;
    // SAFETY: the stream is the program's; the target is ours.
    let told = unsafe { driver::cuStreamGetCtx(stream, &mut context) } == SUCCESS;
    if !told || here.is_some_and(|now| now.context == context) {
        return here;
    }
    let mut device = 0;
    // SAFETY: the target is ours.
    let code = with(context, || unsafe { driver::cuCtxGetDevice(&mut device) });
    if code == Some(SUCCESS) { Some(Current { context, device }) } else { here }
}

/// A call that may change this thread's context: the driver does it, and what was remembered is forgotten.
///
/// # Safety
/// As the driver's function, whose arguments these are; those it does not take are not read.
pub unsafe fn changed(
    real: unsafe fn(usize, usize, usize, usize, usize) -> Code,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
) -> Code {
    SURE.set(false);
    // SAFETY: the caller's promise.
    unsafe { real(a, b, c, d, e) }
}

/// `cuGetExportTable`: from here on the context is asked for at every call.
///
/// # Safety
/// As the driver's.
pub unsafe fn private(real: unsafe fn(usize, usize) -> Code, to: usize, name: usize) -> Code {
    PRIVATE.store(true, Relaxed);
    // SAFETY: the program's arguments.
    unsafe { real(to, name) }
}

/// What is known of a context, struck out: once it has ended, another may get its handle.
struct Struck {
    context: Handle,
    captures: Vec<Handle>,
    pools: pool::Struck,
    blocks: Vec<(driver::Pointer, ledger::Block)>,
}

fn strike_out(context: Handle) -> Struck {
    ENDED.fetch_add(1, Relaxed);
    Struck {
        context,
        captures: order::strike_out(context),
        pools: pool::strike_out(context),
        blocks: ledger::strike_out_of(context),
    }
}

impl Struck {
    /// The context has ended, and what was known of it has gone with it.
    fn gone(self) {
        ENDED.fetch_add(1, Relaxed);
        self.pools.gone();
        self.blocks.iter().for_each(|(_, block)| ledger::settle(block));
    }

    /// The context has not ended.
    fn put_back(self) {
        order::put_back(self.context, self.captures);
        self.pools.put_back();
        self.blocks.into_iter().for_each(|(at, block)| ledger::put_back(at, block));
    }
}

/// When a context is struck out that a call may end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// Before the call, which is meant to end it, so that nobody may be using it.
    Surely,
    /// After the call, if it has: with a primary context others may go on.
    Perhaps,
}

/// A call that ends `context` (0: there is none to end) if the driver agrees and `ended` then says so.
fn end(context: Handle, ends: Ends, driver: impl FnOnce() -> Code, ended: impl FnOnce() -> bool) -> Code {
    let ending = pool::ending(context);
    let known = context != 0 && !broken("context");
    let struck = (known && ends == Ends::Surely && !broken("context-handle")).then(|| strike_out(context));
    let code = driver();
    let over = code == SUCCESS && context != 0 && ended();
    match struck {
        Some(struck) if over => struck.gone(),
        Some(struck) => struck.put_back(),
        None if over && known => strike_out(context).gone(),
        None => {}
    }
    if !over {
        ending.called_off();
    }
    code
}

/// `cuCtxDestroy`, both versions: the context's plain memory goes with it.
///
/// # Safety
/// As the driver's.
pub unsafe fn destroy(real: unsafe fn(Handle) -> Code, context: Handle) -> Code {
    SURE.set(false);
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(context) };
    let Some(_inside) = entry::enter() else { return driver() };
    let mut device = 0;
    // SAFETY: the target is ours.
    let of = with(context, || unsafe { driver::cuCtxGetDevice(&mut device) });
    // (One that the driver will refuse to destroy.)
    let ends = if of == Some(SUCCESS) && primary(device) != context { Ends::Surely } else { Ends::Perhaps };
    end(context, ends, driver, || true)
}

/// `cuCtxDetach`: the context ends with the last share.
///
/// # Safety
/// As the driver's.
pub unsafe fn detach(real: unsafe fn(Handle) -> Code, context: Handle) -> Code {
    SURE.set(false);
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(context) };
    let Some(_inside) = entry::enter() else { return driver() };
    end(context, Ends::Perhaps, driver, || with(context, || ()).is_none())
}

/// Whether a device's primary context exists.
fn primary_active(device: i32) -> bool {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: the targets are ours.
    (unsafe { driver::cuDevicePrimaryCtxGetState(device, &mut flags, &mut active) }) == SUCCESS && active != 0
}

/// A device's primary context, 0 if it does not exist.
fn primary(device: i32) -> Handle {
    let mut context: Handle = 0;
    if primary_active(device) {
        // SAFETY: the target is ours; the share is given back at once, and whoever made the context still holds its own.
        unsafe {
            if driver::cuDevicePrimaryCtxRetain(&mut context, device) == SUCCESS
                && real::cuDevicePrimaryCtxRelease_v2(device) == driver::NOT_FOUND
            {
                real::cuDevicePrimaryCtxRelease(device);
            }
        }
    }
    context
}

/// `cuDevicePrimaryCtxReset`, both versions: the context's plain memory goes.
///
/// # Safety
/// As the driver's.
pub unsafe fn primary_reset(real: unsafe fn(i32) -> Code, device: i32) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(device) };
    let Some(_inside) = entry::enter() else { return driver() };
    let context = primary(device);
    end(context, Ends::Surely, driver, || true)
}

/// `cuDevicePrimaryCtxRelease`, both versions: with the last share the context goes, and its plain memory.
///
/// # Safety
/// As the driver's.
pub unsafe fn primary_release(real: unsafe fn(i32) -> Code, device: i32) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(device) };
    let Some(_inside) = entry::enter() else { return driver() };
    let context = primary(device);
    end(context, Ends::Perhaps, driver, || !primary_active(device))
}
