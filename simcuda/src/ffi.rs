//! The C side of every entry point: pointers that may be null, planned failures, the call log, the current context.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{CStr, c_char};
use std::fmt::Debug;
use std::fs::File;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use crate::code::{self, Code, Result};
use crate::config::Config;
use crate::machine::{Machine, State};
use crate::order::StreamId;

/// A pointer the caller passed to be written through.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes `value`; null is INVALID_VALUE.
    pub fn set(self, value: T) -> Result<()> {
        if self.0.is_null() {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller of the C function promises that it points to room for a `T`.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// INVALID_VALUE when null.
    pub fn check(self) -> Result<Out<T>> {
        if self.0.is_null() { Err(code::INVALID_VALUE) } else { Ok(self) }
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

/// A pointer the caller passed to be read.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// Reads the value; null is INVALID_VALUE.
    pub fn get(self) -> Result<T> {
        if self.0.is_null() {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller of the C function promises that it points to a `T`.
        Ok(unsafe { self.0.read() })
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

struct Process {
    machine: &'static Machine,
    config: Config,
    log: Option<Mutex<File>>,
    uses: Mutex<HashMap<usize, u64>>,
    calls: AtomicU64,
    ready: AtomicBool,
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
        Process {
            machine: Machine::new(config.clone()),
            config,
            log,
            uses: Mutex::default(),
            calls: AtomicU64::new(0),
            ready: AtomicBool::new(false),
        }
    })
}

thread_local! {
    // Never dropped: calls come until the very end of a thread, from its destructors too.
    static STACK: ManuallyDrop<RefCell<Vec<u64>>> = const { ManuallyDrop::new(RefCell::new(Vec::new())) };
    static THREAD: Cell<u64> = const { Cell::new(0) };
    static IN_HOST_CALL: Cell<bool> = const { Cell::new(false) };
}

/// What an entry point works with.
pub struct Call {
    /// The driver.
    pub machine: &'static Machine,
    per_thread: bool,
}

impl Call {
    /// Settings.
    pub fn config(&self) -> &'static Config {
        &process().config
    }

    /// The state, alone.
    pub fn lock(&self) -> std::sync::MutexGuard<'static, State> {
        self.machine.lock()
    }

    /// Runs `f` on this thread's stack of contexts.
    pub fn stack<T>(&self, f: impl FnOnce(&mut Vec<u64>) -> T) -> T {
        STACK.with(|stack| f(&mut stack.borrow_mut()))
    }

    /// The current context, alive and not lost.
    pub fn context(&self) -> Result<u64> {
        let context = self.stack(|stack| stack.last().copied()).filter(|&at| at != 0).ok_or(code::INVALID_CONTEXT)?;
        let state = self.lock();
        state.contexts.get(&context).ok_or(code::INVALID_CONTEXT)?;
        state.check(context)?;
        Ok(context)
    }

    /// The stream that `handle` means to this call.
    pub fn stream(&self, handle: u64) -> Result<StreamId> {
        let context = if handle <= 2 { self.context()? } else { 0 };
        let thread = THREAD.with(|id| {
            static NEXT: AtomicU64 = AtomicU64::new(1);
            if id.get() == 0 {
                id.set(NEXT.fetch_add(1, Ordering::Relaxed));
            }
            id.get()
        });
        let mut state = self.lock();
        let id = state.stream(handle, context, self.per_thread, thread)?;
        state.check(state.streams[id].context)?;
        Ok(id)
    }

    /// Says that `cuInit` succeeded.
    pub fn initialised(&self) {
        process().ready.store(true, Ordering::Release);
    }
}

/// Marks this thread as running a host function, which may not call the driver.
pub fn host_call(f: impl FnOnce()) {
    IN_HOST_CALL.with(|flag| flag.set(true));
    f();
    IN_HOST_CALL.with(|flag| flag.set(false));
}

fn planned(process: &Process, symbol: &str) -> Option<Code> {
    let base = symbol.trim_end_matches("_ptsz").trim_end_matches("_ptds");
    let mut uses = process.uses.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut answer = None;
    for (index, fault) in process.config.faults.iter().enumerate() {
        if fault.name == symbol || fault.name == base {
            let use_ = uses.entry(index).or_insert(0);
            *use_ += 1;
            if *use_ == fault.from || fault.onwards && *use_ > fault.from {
                answer = Some(fault.code);
            }
        }
    }
    answer
}

/// Names that work before `cuInit`.
const ALWAYS: &[&str] =
    &["cuInit", "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString", "cuGetProcAddress", "cuGetProcAddress_v2"];

/// Runs an entry point: planned failure, initialisation, the body, the log. A panic becomes UNKNOWN.
pub fn enter(symbol: &str, twin: bool, args: &[&dyn Debug], body: impl FnOnce(&Call) -> Result<()>) -> u32 {
    let run = std::panic::AssertUnwindSafe(|| {
        let process = process();
        process.calls.fetch_add(1, Ordering::Relaxed);
        let call = Call { machine: process.machine, per_thread: twin };
        let answer = if IN_HOST_CALL.with(Cell::get) {
            Err(code::NOT_PERMITTED)
        } else if let Some(code) = planned(process, symbol) {
            if code.is_sticky()
                && let Ok(context) = call.context()
            {
                call.lock().contexts.entry(context).and_modify(|context| context.sticky = Some(code));
            }
            Err(code)
        } else if !ALWAYS.contains(&symbol) && !process.ready.load(Ordering::Acquire) {
            Err(code::NOT_INITIALIZED)
        } else {
            body(&call)
        };
        let number = answer.map_or_else(|code| code.0, |()| 0);
        if let Some(log) = &process.log {
            let mut file = log.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            // A log that cannot be written must not change what the program sees.
            let _ = writeln!(file, "{symbol}{args:?} -> {number}");
        }
        number
    });
    std::panic::catch_unwind(run).unwrap_or(code::UNKNOWN.0)
}
