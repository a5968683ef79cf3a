//! The C side of every entry point: pointers that may be null, planned failures, counts, the call log, the current
//! context.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char};
use std::fmt::Debug;
use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::api;
use crate::code::{self, Code, Result};
use crate::config::{Config, Fault};
use crate::machine::{Machine, State};
use crate::order::StreamId;

/// Names that work before `cuInit`.
const ALWAYS: &[&str] =
    &["cuInit", "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString", "cuGetProcAddress", "cuGetProcAddress_v2"];

/// A pointer the caller passed to be written through.
#[repr(transparent)]
#[derive(Debug)]
pub struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Out<T> {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// Writes `value`; null is INVALID_VALUE.
    pub fn set(self, value: T) -> Result<()> {
        if self.0.is_null() {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller of the C function promises that it points to room for a `T`; unaligned
        // writes are allowed because C callers hand out parts of byte buffers.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes `value` unless null.
    pub fn set_if_wanted(self, value: T) {
        // Null means that the caller does not want it.
        let _ = self.set(value);
    }

    /// INVALID_VALUE when null.
    pub fn check(self) -> Result<Out<T>> {
        if self.0.is_null() { Err(code::INVALID_VALUE) } else { Ok(self) }
    }

    /// Whether it is null.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The same address, read as an array's `index`-th element.
    pub fn at(self, index: usize) -> Out<T> {
        Out(self.0.wrapping_add(index))
    }

    /// Seen as another type.
    pub fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

impl<T: Copy> Out<T> {
    /// Reads what is there, for arguments that go both ways.
    pub fn get(self) -> Result<T> {
        In(self.0.cast_const()).get()
    }
}

/// A pointer the caller passed to be read.
#[repr(transparent)]
#[derive(Debug)]
pub struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> In<T> {
        *self
    }
}

impl<T> Copy for In<T> {}

impl<T: Copy> In<T> {
    /// Reads the value; null is INVALID_VALUE.
    pub fn get(self) -> Result<T> {
        if self.0.is_null() {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller of the C function promises that it points to a `T`, aligned or not.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// The same address, read as an array's `index`-th element.
    pub fn at(self, index: usize) -> In<T> {
        In(self.0.wrapping_add(index))
    }

    /// Whether it is null.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Seen as another type.
    pub fn cast<U>(self) -> In<U> {
        In(self.0.cast())
    }
}

impl In<c_char> {
    /// Reads a terminated string.
    pub fn text(self) -> Result<String> {
        if self.0.is_null() {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller of the C function promises a terminated string.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

/// What is known of one exported function: how often it was called, and whether a failure is planned for it.
pub struct Symbol {
    /// Its exported name.
    pub name: &'static str,
    /// Reads default stream handles as the per-thread default stream.
    pub twin: bool,
    /// Works before `cuInit`, in a forked child and after the driver's end.
    always: AtomicBool,
    /// Its place in [`api::symbols`].
    pub index: AtomicUsize,
    /// Calls since the last reset.
    pub calls: AtomicU64,
    /// Planned failures that came since the last reset.
    pub fired: AtomicU64,
    planned: AtomicBool,
}

impl Symbol {
    /// A function not called yet.
    pub const fn new(name: &'static str, twin: bool) -> Symbol {
        Symbol {
            name,
            twin,
            always: AtomicBool::new(false),
            index: AtomicUsize::new(usize::MAX),
            calls: AtomicU64::new(0),
            fired: AtomicU64::new(0),
            planned: AtomicBool::new(false),
        }
    }

    /// Whether `name` means this function: its exported name, that without the per-thread suffix, or what the header
    /// calls it.
    pub fn is(&self, name: &str, header: &str) -> bool {
        let base = self.name.trim_end_matches("_ptsz").trim_end_matches("_ptds");
        self.name == name || base == name || header == name
    }
}

struct Planned {
    fault: Fault,
    uses: u64,
}

struct Process {
    machine: &'static Machine,
    config: Config,
    log: Option<Mutex<File>>,
    planned: Mutex<Vec<Planned>>,
    missing: Mutex<Vec<String>>,
    threads: Mutex<Vec<&'static Thread>>,
    ready: AtomicBool,
    ended: AtomicBool,
}

static FORKED: AtomicBool = AtomicBool::new(false);

extern "C" fn note_fork() {
    FORKED.store(true, Ordering::Relaxed);
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn process() -> &'static Process {
    static PROCESS: OnceLock<Process> = OnceLock::new();
    PROCESS.get_or_init(|| {
        let config = Config::read(|name| std::env::var(name).ok()).unwrap_or_else(|why| {
            eprintln!("simcuda: {why}");
            std::process::exit(2)
        });
        let log = config.log.as_ref().map(|path| {
            Mutex::new(File::create(path).unwrap_or_else(|why| {
                eprintln!("simcuda: SIMCUDA_LOG: {why}");
                std::process::exit(2)
            }))
        });
        for (index, (_, symbol)) in api::symbols().iter().enumerate() {
            symbol.index.store(index, Ordering::Relaxed);
            symbol.always.store(ALWAYS.contains(&symbol.name), Ordering::Relaxed);
        }
        // SAFETY: the handler only sets a flag; the library is never unloaded (`-z nodelete`).
        unsafe { libc::pthread_atfork(None, None, Some(note_fork)) };
        let faults = config.faults.clone();
        let process = Process {
            machine: Machine::new(config.clone()),
            missing: Mutex::new(config.missing.clone()),
            config,
            log,
            planned: Mutex::default(),
            threads: Mutex::default(),
            ready: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        };
        for fault in faults {
            if plan(&process, fault) == 0 {
                eprintln!("simcuda: SIMCUDA_FAIL names a function that is not here");
                std::process::exit(2)
            }
        }
        process
    })
}

/// What a thread has of its own. Kept for the process's life, so that calls from a thread's own destructors work.
pub struct Thread {
    /// Its number, from 1.
    pub id: u64,
    stack: RefCell<Vec<u64>>,
    in_host_call: Cell<bool>,
    /// How it treats calls that could disturb a capture: 0 global, 1 thread-local, 2 relaxed.
    pub capture_mode: Cell<u32>,
    calls: Vec<AtomicU64>,
}

// SAFETY: the cells are only touched by the thread that the record belongs to; others read `calls` alone.
unsafe impl Sync for Thread {}

thread_local! {
    static THREAD: Cell<Option<&'static Thread>> = const { Cell::new(None) };
}

/// This thread's record.
pub fn thread() -> &'static Thread {
    THREAD.get().unwrap_or_else(|| {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let thread: &'static Thread = Box::leak(Box::new(Thread {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            stack: RefCell::default(),
            in_host_call: Cell::new(false),
            capture_mode: Cell::new(0),
            calls: api::symbols().iter().map(|_| AtomicU64::new(0)).collect(),
        }));
        hold(&process().threads).push(thread);
        THREAD.set(Some(thread));
        thread
    })
}

/// What an entry point works with.
pub struct Call {
    /// The driver.
    pub machine: &'static Machine,
    /// The calling thread.
    pub thread: &'static Thread,
    per_thread: bool,
}

impl Call {
    /// Settings.
    pub fn config(&self) -> &'static Config {
        &process().config
    }

    /// The state, alone.
    pub fn lock(&self) -> MutexGuard<'static, State> {
        self.machine.lock()
    }

    /// Runs `f` on this thread's stack of contexts.
    pub fn stack<T>(&self, f: impl FnOnce(&mut Vec<u64>) -> T) -> T {
        f(&mut self.thread.stack.borrow_mut())
    }

    /// The current context, alive and not lost.
    pub fn context(&self) -> Result<u64> {
        let context = self.stack(|stack| stack.last().copied()).filter(|&at| at != 0).ok_or(code::INVALID_CONTEXT)?;
        self.lock().check(context)?;
        Ok(context)
    }

    /// The stream that `handle` means to this call.
    pub fn stream(&self, handle: u64) -> Result<StreamId> {
        let context = if handle <= 2 { self.context()? } else { 0 };
        let mut state = self.lock();
        let id = state.stream(handle, context, self.per_thread, self.thread.id)?;
        state.check(state.streams[id].context)?;
        Ok(id)
    }

    /// Refuses a call that could disturb a capture, as this thread's capture mode has it.
    pub fn outside_capture(&self) -> Result<()> {
        self.lock().unsafe_call(self.thread.id, self.thread.capture_mode.get())
    }

    /// Says that `cuInit` succeeded.
    pub fn initialised(&self) {
        process().ready.store(true, Ordering::Release);
    }

    /// Names that `cuGetProcAddress` is not to find.
    pub fn missing(&self) -> MutexGuard<'static, Vec<String>> {
        hold(&process().missing)
    }
}

/// Marks this thread as running a host function, which may not call the driver.
pub fn host_call(f: impl FnOnce()) {
    let thread = thread();
    thread.in_host_call.set(true);
    f();
    thread.in_host_call.set(false);
}

/// Plans a failure; tells how many functions it can happen to.
fn plan(process: &Process, fault: Fault) -> usize {
    let mut planned = hold(&process.planned);
    let all = api::symbols();
    let meant = all.iter().filter(|(header, symbol)| symbol.is(&fault.name, header));
    let count = meant.inspect(|(_, symbol)| symbol.planned.store(true, Ordering::Relaxed)).count();
    if count > 0 {
        planned.push(Planned { fault, uses: 0 });
    }
    count
}

/// Plans a failure from now on; tells how many functions it can happen to.
pub fn plan_failure(fault: Fault) -> usize {
    plan(process(), fault)
}

/// Forgets every planned failure.
pub fn clear_failures() {
    hold(&process().planned).clear();
    api::symbols().iter().for_each(|(_, symbol)| symbol.planned.store(false, Ordering::Relaxed));
}

/// Calls and planned failures of the functions that `name` means; all functions when it is empty.
pub fn counts(name: &str) -> (u64, u64) {
    api::symbols().iter().filter(|(header, symbol)| name.is_empty() || symbol.is(name, header)).fold(
        (0, 0),
        |(calls, fired), (_, symbol)| {
            (calls + symbol.calls.load(Ordering::Relaxed), fired + symbol.fired.load(Ordering::Relaxed))
        },
    )
}

/// This thread's calls of the functions that `name` means; all functions when it is empty.
pub fn counts_of_thread(name: &str) -> u64 {
    let thread = thread();
    let all = api::symbols().iter().zip(&thread.calls);
    let meant = all.filter(|((header, symbol), _)| name.is_empty() || symbol.is(name, header));
    meant.map(|(_, calls)| calls.load(Ordering::Relaxed)).sum()
}

/// Starts all counts again.
pub fn reset_counts() {
    for (_, symbol) in api::symbols() {
        symbol.calls.store(0, Ordering::Relaxed);
        symbol.fired.store(0, Ordering::Relaxed);
    }
    let threads = hold(&process().threads);
    threads.iter().flat_map(|thread| &thread.calls).for_each(|calls| calls.store(0, Ordering::Relaxed));
}

/// Name and counts of the `index`-th function; `None` beyond the last.
pub fn symbol_at(index: u64) -> Option<(&'static CStr, (u64, u64))> {
    static NAMES: OnceLock<Vec<CString>> = OnceLock::new();
    let names = NAMES.get_or_init(|| api::symbols().iter().filter_map(|row| CString::new(row.1.name).ok()).collect());
    let at = usize::try_from(index).ok()?;
    let (_, symbol) = api::symbols().get(at)?;
    Some((names.get(at)?, (symbol.calls.load(Ordering::Relaxed), symbol.fired.load(Ordering::Relaxed))))
}

/// Writes a line of the caller's into the call log.
pub fn note(text: &str) {
    if let Some(log) = &process().log {
        let _ = writeln!(hold(log), "# {text}");
    }
}

/// From now on every call answers DEINITIALIZED, as after the driver's own exit handler.
pub fn end() {
    process().ended.store(true, Ordering::Release);
}

/// The driver, for the control calls, which are counted and logged nowhere and never fail by plan.
pub fn control<T>(body: impl FnOnce(&Call) -> Result<T>) -> Result<T> {
    let process = process();
    let run = || body(&Call { machine: process.machine, thread: thread(), per_thread: false });
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_or(Err(code::UNKNOWN))
}

fn planned(process: &Process, symbol: &Symbol) -> Option<Code> {
    if !symbol.planned.load(Ordering::Relaxed) {
        return None;
    }
    let header = api::symbols()[symbol.index.load(Ordering::Relaxed)].0;
    let mut answer = None;
    for planned in hold(&process.planned).iter_mut().filter(|planned| symbol.is(&planned.fault.name, header)) {
        planned.uses += 1;
        let fault = &planned.fault;
        if planned.uses == fault.from || fault.onwards && planned.uses > fault.from {
            answer = Some(fault.code);
        }
    }
    if answer.is_some() {
        symbol.fired.fetch_add(1, Ordering::Relaxed);
    }
    answer
}

/// Runs an entry point: counts, planned failure, initialisation, the body, the log. A panic becomes UNKNOWN.
pub fn enter(symbol: &'static Symbol, args: &[&dyn Debug], body: &dyn Fn(&Call) -> Result<()>) -> u32 {
    if FORKED.load(Ordering::Relaxed) {
        // The locks may have been held by threads that this process does not have.
        return code::NOT_INITIALIZED.0;
    }
    let run = std::panic::AssertUnwindSafe(|| {
        let process = process();
        let thread = thread();
        symbol.calls.fetch_add(1, Ordering::Relaxed);
        if let Some(calls) = thread.calls.get(symbol.index.load(Ordering::Relaxed)) {
            calls.fetch_add(1, Ordering::Relaxed);
        }
        let call = Call { machine: process.machine, thread, per_thread: symbol.twin };
        let always = symbol.always.load(Ordering::Relaxed);
        let answer = if thread.in_host_call.get() && !always {
            Err(code::NOT_PERMITTED)
        } else if let Some(code) = planned(process, symbol) {
            if code.is_sticky()
                && let Ok(context) = call.context()
            {
                call.lock().lose(context, code);
            }
            Err(code)
        } else if !always && process.ended.load(Ordering::Acquire) {
            Err(code::DEINITIALIZED)
        } else if !always && !process.ready.load(Ordering::Acquire) {
            Err(code::NOT_INITIALIZED)
        } else {
            body(&call)
        };
        let number = answer.map_or_else(|code| code.0, |()| 0);
        if let Some(log) = &process.log {
            // A log that cannot be written must not change what the program sees.
            let _ = writeln!(hold(log), "{}{args:?} -> {number}", symbol.name);
        }
        number
    });
    std::panic::catch_unwind(run).unwrap_or(code::UNKNOWN.0)
}
