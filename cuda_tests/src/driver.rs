//! The stand-in driver as a program sees it: the calls a CUDA program makes itself, and the stand-in's control calls
//! (`simcuda/include/simcuda.h`). The library is the one libsmp is told to load (`SMP_CUDA_LIBRARY`).

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::sync::OnceLock;

/// The stand-in's orders of execution.
pub const EAGER: c_int = 0;
/// Only when a synchronise needs it.
pub const LAZY: c_int = 1;
/// A seeded choice at every call.
pub const ADVERSARIAL: c_int = 2;

macro_rules! calls {
    ($($name:ident = $symbol:literal ( $($arg:ident : $type:ty),* ) $(-> $out:ty)?;)*) => {
        struct Table {
            $($name: usize,)*
        }
        impl Table {
            fn load(find: impl Fn(&str) -> usize) -> Table {
                Table { $($name: find($symbol),)* }
            }
        }
        $(calls!(@one $name $symbol ($($arg: $type),*) $($out)?);)*
    };
    (@one $name:ident $symbol:literal ($($arg:ident : $type:ty),*)) => {
        #[doc = concat!("`", $symbol, "`; its result.")]
        pub fn $name($($arg: $type),*) -> c_int {
            // SAFETY: the library's function of that name, whose type this is; pointers are those of live places of this
            // crate's own callers.
            unsafe {
                std::mem::transmute::<usize, unsafe extern "C" fn($($type),*) -> c_int>(table().$name)($($arg),*)
            }
        }
    };
    (@one $name:ident $symbol:literal ($($arg:ident : $type:ty),*) $out:ty) => {
        #[doc = concat!("`", $symbol, "`.")]
        pub fn $name($($arg: $type),*) -> $out {
            // SAFETY: as above.
            unsafe {
                std::mem::transmute::<usize, unsafe extern "C" fn($($type),*) -> $out>(table().$name)($($arg),*)
            }
        }
    };
}

calls! {
    init = "cuInit" (flags: c_uint);
    device_get_count = "cuDeviceGetCount" (count: &mut c_int);
    primary_retain = "cuDevicePrimaryCtxRetain" (context: &mut usize, device: c_int);
    primary_release = "cuDevicePrimaryCtxRelease_v2" (device: c_int);
    primary_reset = "cuDevicePrimaryCtxReset_v2" (device: c_int);
    primary_state = "cuDevicePrimaryCtxGetState" (device: c_int, flags: &mut c_uint, active: &mut c_int);
    context_create = "cuCtxCreate_v2" (context: &mut usize, flags: c_uint, device: c_int);
    context_destroy = "cuCtxDestroy_v2" (context: usize);
    context_set = "cuCtxSetCurrent" (context: usize);
    context_get = "cuCtxGetCurrent" (context: &mut usize);
    context_synchronize = "cuCtxSynchronize" ();
    pinned = "cuMemAllocHost_v2" (pointer: &mut usize, bytes: usize);
    pinned_free = "cuMemFreeHost" (pointer: usize);
    set_words = "cuMemsetD32Async" (pointer: u64, value: c_uint, count: usize, stream: u64);
    set_bytes = "cuMemsetD8Async" (pointer: u64, value: u8, count: usize, stream: u64);
    copy_out = "cuMemcpyDtoHAsync_v2" (to: usize, from: u64, bytes: usize, stream: u64);
    copy_out_now = "cuMemcpyDtoH_v2" (to: usize, from: u64, bytes: usize);
    stream_create = "cuStreamCreate" (stream: &mut u64, flags: c_uint);
    stream_destroy = "cuStreamDestroy_v2" (stream: u64);
    stream_synchronize = "cuStreamSynchronize" (stream: u64);
    stream_wait = "cuStreamWaitEvent" (stream: u64, event: u64, flags: c_uint);
    event_create = "cuEventCreate" (event: &mut u64, flags: c_uint);
    event_destroy = "cuEventDestroy_v2" (event: u64);
    event_query = "cuEventQuery" (event: u64);
    event_record = "cuEventRecord" (event: u64, stream: u64);
    event_synchronize = "cuEventSynchronize" (event: u64);
    capture_begin = "cuStreamBeginCapture_v2" (stream: u64, mode: c_uint);
    capture_end = "cuStreamEndCapture" (stream: u64, graph: &mut usize);
    graph_destroy = "cuGraphDestroy" (graph: usize);
    memory_info = "cuMemGetInfo_v2" (free: &mut usize, total: &mut usize);
    control_calls = "simcuda_calls" (name: Name<'_>) -> u64;
    control_fired = "simcuda_fired" (name: Name<'_>) -> u64;
    reset_counts = "simcuda_reset_counts" () -> ();
    control_symbol = "simcuda_symbol" (index: u64, calls: &mut u64, fired: &mut u64) -> *const c_char;
    control_fail = "simcuda_fail" (name: Name<'_>, from: u64, error: c_int, onwards: c_int);
    clear_failures = "simcuda_clear_failures" () -> ();
    control_hide = "simcuda_hide" (name: Name<'_>, hidden: c_int);
    set_mode = "simcuda_set_mode" (mode: c_int, seed: u64);
    submit = "simcuda_submit" (stream: u64, units: u64);
    run = "simcuda_run" (stream: u64, count: u64, ran: &mut u64);
    gate_close = "simcuda_gate_close" (stream: u64);
    gate_open = "simcuda_gate_open" (stream: u64);
    set_free_memory = "simcuda_set_free_memory" (device: c_int, bytes: u64);
}

fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| {
        let library = std::env::var("SMP_CUDA_LIBRARY").expect("SMP_CUDA_LIBRARY names the stand-in");
        let name = CString::new(library.as_str()).expect("no NUL in SMP_CUDA_LIBRARY");
        // SAFETY: a NUL-terminated name; the library stays open for the life of the process.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{library} does not load");
        Table::load(|symbol| {
            let name = CString::new(symbol).expect("no NUL in a symbol");
            // SAFETY: an open library and a NUL-terminated name.
            let found: *mut c_void = unsafe { libc::dlsym(handle, name.as_ptr()) };
            assert!(!found.is_null(), "{library} has no {symbol}: it is not the stand-in");
            found as usize
        })
    })
}

/// Fails the program if a call of its own did: everything after would prove nothing.
#[track_caller]
pub fn ok(result: c_int) {
    assert_eq!(result, 0, "a driver call of the program itself failed");
}

/// A function's name as the control calls take it.
#[repr(transparent)]
pub struct Name<'a>(*const c_char, PhantomData<&'a CStr>);

fn name(symbol: &CStr) -> Name<'_> {
    Name(symbol.as_ptr(), PhantomData)
}

fn text(symbol: &str) -> CString {
    CString::new(symbol).expect("no NUL in a symbol")
}

/// Calls of one function since the counts began.
pub fn calls(symbol: &str) -> u64 {
    control_calls(name(&text(symbol)))
}

/// Planned failures of one function that happened since the counts began.
pub fn fired(symbol: &str) -> u64 {
    control_fired(name(&text(symbol)))
}

/// Every function called since the counts began, and how often.
pub fn called() -> Vec<(String, u64)> {
    let mut found = Vec::new();
    for index in 0.. {
        let (mut calls, mut fired) = (0, 0);
        let symbol = control_symbol(index, &mut calls, &mut fired);
        if symbol.is_null() {
            break;
        }
        if calls > 0 {
            // SAFETY: not null: a NUL-terminated text of the library's own.
            found.push((unsafe { CStr::from_ptr(symbol) }.to_string_lossy().into_owned(), calls));
        }
    }
    found
}

/// Plans a failure of the `from`-th use of a function from now, and of every later one if `onwards`.
#[track_caller]
pub fn fail(symbol: &str, from: u64, error: i32, onwards: bool) {
    assert_eq!(control_fail(name(&text(symbol)), from, error, onwards.into()), 0, "{symbol} cannot be made to fail");
}

/// Hides a function from `cuGetProcAddress`, or shows it again.
#[track_caller]
pub fn hide(symbol: &str, hidden: bool) {
    ok(control_hide(name(&text(symbol)), hidden.into()));
}

/// The primary context of a device, made current in this thread; retained once more for the life of the process.
pub fn use_primary(device: i32) -> usize {
    let mut context = 0;
    ok(init(0));
    ok(primary_retain(&mut context, device));
    ok(context_set(context));
    context
}
