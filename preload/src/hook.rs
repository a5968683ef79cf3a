//! Which of the driver's functions are replaced, and how a program that looks one up gets ours.
//!
//! A look-up is answered by the driver first. Its answer is replaced only if it is the driver's own function of exactly
//! the replaced name and version; on any doubt the program keeps what the driver said.

use crate::access;
use crate::attribute;
use crate::context;
use crate::driver::{self, Code, Dlsym, Handle, Pointer, SUCCESS};
use crate::entry;
use crate::memory;
use crate::order;
use crate::pool;
use crate::range;
use crate::setting::{self, Mode};
use crate::switch::broken;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// When a function must be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Unless everything is off.
    Always,
    /// In pool mode.
    Pool,
    /// In pool mode, where the core must know the order of streams.
    Order,
    /// In pool mode, where stream-ordered allocations are taken over.
    Async,
    /// In pool mode, where accesses are checked.
    Check,
}

/// One function of the driver that is replaced.
pub struct Hook {
    /// Name of the driver's symbol.
    pub symbol: &'static CStr,
    /// Name by which `cuGetProcAddress` knows it.
    pub base: &'static str,
    /// CUDA version from which that name means this function.
    pub since: i32,
    /// The twin for per-thread default streams.
    pub twin: bool,
    need: Need,
    ours: fn() -> usize,
    real: AtomicUsize,
}

impl Hook {
    /// The driver's own function, 0 if the driver lacks it or is not loaded.
    pub fn real(&self) -> usize {
        let known = self.real.load(Relaxed);
        if known != 0 {
            return known;
        }
        let mut found = driver::symbol(self.symbol);
        if found == 0
            && let Some(dlsym) = driver::real_dlsym()
        {
            // A program linked to a driver under another name: what stands behind ours in the program's scope.
            // SAFETY: a handle every dlsym takes and a terminated string.
            found = unsafe { dlsym(libc::RTLD_NEXT, self.symbol.as_ptr()) } as usize;
        }
        if found != 0 && found != (self.ours)() {
            self.real.store(found, Relaxed);
            return found;
        }
        0
    }

    /// Whether the settings ask for this one.
    fn wanted(&self) -> bool {
        let settings = setting::settings();
        match self.need {
            Need::Always => settings.mode != Mode::Off || broken("kill-switch"),
            Need::Pool => settings.mode == Mode::Pool,
            Need::Async => settings.mode == Mode::Pool && settings.async_pool,
            Need::Check => settings.mode == Mode::Pool && settings.check,
            Need::Order => settings.mode == Mode::Pool && pool::watched(),
        }
    }

    /// Whether a call that has come to ours is ours to answer. A program that is linked to the driver, or asks the default
    /// scope, comes to our export whatever the settings are.
    #[inline]
    fn called(&self) -> bool {
        self.wanted() || broken("unwanted-exports")
    }
}

/// The calls that are replaced. `caller REG` hands the caller's address on as one more argument, in that register.
macro_rules! hooks {
    ($($id:ident $symbol:ident = $base:literal $since:literal $form:ident $need:ident
       ($($arg:ident : $ty:ty),*) $(caller $reg:literal)? => $body:path;)*) => {
        /// Every function that is replaced.
        pub static HOOKS: &[&Hook] = &[$(&$id),*];

        $(
        static $id: Hook = Hook {
            symbol: match CStr::from_bytes_with_nul(concat!(stringify!($symbol), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name with a zero byte"),
            },
            base: $base,
            since: $since,
            twin: hooks!(@form $form),
            need: Need::$need,
            ours: || $symbol as *const () as usize,
            real: AtomicUsize::new(0),
        };
        hooks!(@export $id $symbol $form ($($arg: $ty),*) $(caller $reg)? => $body);
        )*

        /// The driver's own functions, by the names of their symbols.
        pub mod real {
            use super::*;
            $(
            /// The driver's own function of this name; `NOT_FOUND` where the driver lacks it.
            ///
            /// # Safety
            /// As the driver's function.
            pub unsafe fn $symbol($($arg: $ty),*) -> Code {
                let address = super::$id.real();
                if address == 0 {
                    return driver::NOT_FOUND;
                }
                // SAFETY: the driver's function of that name has this signature.
                let function: unsafe extern "C" fn($($ty),*) -> Code = unsafe { std::mem::transmute(address) };
                // SAFETY: the caller's promise.
                unsafe { function($($arg),*) }
            }
            )*
        }
    };
    (@form legacy) => { false };
    (@form twin) => { true };
    (@export $id:ident $symbol:ident $form:ident ($($arg:ident : $ty:ty),*) => $body:path) => {
        #[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C" fn $symbol($($arg: $ty),*) -> Code {
            if !$id.called() {
                // SAFETY: as below.
                return unsafe { real::$symbol($($arg),*) };
            }
            // SAFETY: the arguments are the program's, who calls the driver's function of this name.
            entry::contain(|| unsafe { $body(real::$symbol, $($arg),*) })
        }
    };
    (@export $id:ident $symbol:ident $form:ident ($($arg:ident : $ty:ty),*) caller $reg:literal => $body:path) => {
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        unsafe extern "C" fn $symbol($($arg: $ty),*) -> Code {
            unsafe extern "C" fn with_caller($($arg: $ty,)* caller: usize) -> Code {
                if !$id.called() {
                    // SAFETY: as below.
                    return unsafe { real::$symbol($($arg),*) };
                }
                // SAFETY: the arguments are the program's, who calls the driver's function of this name.
                entry::contain(|| unsafe { $body(real::$symbol, $($arg,)* caller) })
            }
            core::arch::naked_asm!(
                "endbr64",
                concat!("mov ", $reg, ", [rsp]"),
                "jmp {with_caller}",
                with_caller = sym with_caller,
            )
        }
    };
}

hooks! {
    GET_PROC_ADDRESS cuGetProcAddress = "cuGetProcAddress" 11030 legacy Always
        (name: *const c_char, to: *mut usize, version: i32, flags: u64) => get_proc_address;
    GET_PROC_ADDRESS_2 cuGetProcAddress_v2 = "cuGetProcAddress" 12000 legacy Always
        (name: *const c_char, to: *mut usize, version: i32, flags: u64, status: *mut i32) => get_proc_address_2;

    MEM_ALLOC cuMemAlloc_v2 = "cuMemAlloc" 3020 legacy Always
        (to: *mut Pointer, bytes: usize) caller "rdx" => memory::alloc;
    MEM_FREE cuMemFree_v2 = "cuMemFree" 3020 legacy Always (at: Pointer) => memory::free;
    MEM_ALLOC_PITCH cuMemAllocPitch_v2 = "cuMemAllocPitch" 3020 legacy Always
        (to: *mut Pointer, pitch: *mut usize, width: usize, height: usize, element: u32) caller "r9"
        => memory::alloc_pitch;
    MEM_ALLOC_MANAGED cuMemAllocManaged = "cuMemAllocManaged" 6000 legacy Always
        (to: *mut Pointer, bytes: usize, flags: u32) caller "rcx" => memory::alloc_managed;
    MEM_GET_INFO cuMemGetInfo_v2 = "cuMemGetInfo" 3020 legacy Always
        (free: *mut usize, total: *mut usize) => memory::get_info;

    MEM_ALLOC_ASYNC cuMemAllocAsync = "cuMemAllocAsync" 11020 legacy Always
        (to: *mut Pointer, bytes: usize, stream: Handle) caller "rcx" => memory::alloc_async::<false>;
    MEM_ALLOC_ASYNC_TWIN cuMemAllocAsync_ptsz = "cuMemAllocAsync" 11020 twin Always
        (to: *mut Pointer, bytes: usize, stream: Handle) caller "rcx" => memory::alloc_async::<true>;
    MEM_ALLOC_FROM_POOL cuMemAllocFromPoolAsync = "cuMemAllocFromPoolAsync" 11020 legacy Always
        (to: *mut Pointer, bytes: usize, pool: Handle, stream: Handle) caller "r8" => memory::alloc_from_pool::<false>;
    MEM_ALLOC_FROM_POOL_TWIN cuMemAllocFromPoolAsync_ptsz = "cuMemAllocFromPoolAsync" 11020 twin Always
        (to: *mut Pointer, bytes: usize, pool: Handle, stream: Handle) caller "r8" => memory::alloc_from_pool::<true>;
    MEM_FREE_ASYNC cuMemFreeAsync = "cuMemFreeAsync" 11020 legacy Always
        (at: Pointer, stream: Handle) => memory::free_async::<false>;
    MEM_FREE_ASYNC_TWIN cuMemFreeAsync_ptsz = "cuMemFreeAsync" 11020 twin Always
        (at: Pointer, stream: Handle) => memory::free_async::<true>;

    MEM_ALLOC_HOST cuMemAllocHost_v2 = "cuMemAllocHost" 3020 legacy Always
        (to: *mut Pointer, bytes: usize) caller "rdx" => memory::alloc_host;
    MEM_HOST_ALLOC cuMemHostAlloc = "cuMemHostAlloc" 2020 legacy Always
        (to: *mut Pointer, bytes: usize, flags: u32) caller "rcx" => memory::host_alloc;
    MEM_FREE_HOST cuMemFreeHost = "cuMemFreeHost" 2000 legacy Always (at: Pointer) => memory::free_host;
    MEM_CREATE cuMemCreate = "cuMemCreate" 10020 legacy Always
        (to: *mut u64, bytes: usize, properties: *const c_void, flags: u64) caller "r8" => memory::create;
    MEM_RELEASE cuMemRelease = "cuMemRelease" 10020 legacy Always (handle: u64) => memory::release;

    CTX_DESTROY cuCtxDestroy = "cuCtxDestroy" 2000 legacy Always (context: Handle) => context::destroy;
    CTX_DESTROY_2 cuCtxDestroy_v2 = "cuCtxDestroy" 4000 legacy Always (context: Handle) => context::destroy;
    PRIMARY_RESET cuDevicePrimaryCtxReset = "cuDevicePrimaryCtxReset" 7000 legacy Always
        (device: i32) => context::primary_reset;
    PRIMARY_RESET_2 cuDevicePrimaryCtxReset_v2 = "cuDevicePrimaryCtxReset" 11000 legacy Always
        (device: i32) => context::primary_reset;
    PRIMARY_RELEASE cuDevicePrimaryCtxRelease = "cuDevicePrimaryCtxRelease" 7000 legacy Always
        (device: i32) => context::primary_release;
    PRIMARY_RELEASE_2 cuDevicePrimaryCtxRelease_v2 = "cuDevicePrimaryCtxRelease" 11000 legacy Always
        (device: i32) => context::primary_release;

    CTX_SET cuCtxSetCurrent = "cuCtxSetCurrent" 4000 legacy Pool
        (a: usize, b: usize, c: usize, d: usize, e: usize) => context::changed;
    CTX_PUSH cuCtxPushCurrent = "cuCtxPushCurrent" 2000 legacy Pool
        (a: usize, b: usize, c: usize, d: usize, e: usize) => context::changed;
    CTX_PUSH_2 cuCtxPushCurrent_v2 = "cuCtxPushCurrent" 4000 legacy Pool
        (a: usize, b: usize, c: usize, d: usize, e: usize) => context::changed;
    CTX_POP cuCtxPopCurrent = "cuCtxPopCurrent" 2000 legacy Pool
        (a: usize, b: usize, c: usize, d: usize, e: usize) => context::changed;
    CTX_POP_2 cuCtxPopCurrent_v2 = "cuCtxPopCurrent" 4000 legacy Pool
        (a: usize, b: usize, c: usize, d: usize, e: usize) => context::changed;
    CTX_CREATE cuCtxCreate = "cuCtxCreate" 2000 legacy Pool
        (a: usize, b: usize, c: usize, d: usize, e: usize) => context::changed;
    CTX_CREATE_2 cuCtxCreate_v2 = "cuCtxCreate" 3020 legacy Pool
        (a: usize, b: usize, c: usize, d: usize, e: usize) => context::changed;
    CTX_CREATE_3 cuCtxCreate_v3 = "cuCtxCreate" 11040 legacy Pool
        (a: usize, b: usize, c: usize, d: usize, e: usize) => context::changed;
    CTX_CREATE_4 cuCtxCreate_v4 = "cuCtxCreate" 12050 legacy Pool
        (a: usize, b: usize, c: usize, d: usize, e: usize) => context::changed;
    CTX_ATTACH cuCtxAttach = "cuCtxAttach" 2000 legacy Pool
        (a: usize, b: usize, c: usize, d: usize, e: usize) => context::changed;
    CTX_DETACH cuCtxDetach = "cuCtxDetach" 2000 legacy Always (context: Handle) => context::detach;
    EXPORT_TABLE cuGetExportTable = "cuGetExportTable" 3000 legacy Pool
        (to: usize, name: usize) => context::private;

    CTX_SYNCHRONIZE cuCtxSynchronize = "cuCtxSynchronize" 2000 legacy Pool () => order::context_synchronize;
    CTX_SYNCHRONIZE_2 cuCtxSynchronize_v2 = "cuCtxSynchronize" 13000 legacy Pool
        (context: Handle) => order::given_context_synchronize;
    CAPTURE cuStreamBeginCapture = "cuStreamBeginCapture" 10000 legacy Pool
        (a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) => order::capture_begins;
    CAPTURE_TWIN cuStreamBeginCapture_ptsz = "cuStreamBeginCapture" 10000 twin Pool
        (a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) => order::capture_begins;
    CAPTURE_2 cuStreamBeginCapture_v2 = "cuStreamBeginCapture" 10010 legacy Pool
        (a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) => order::capture_begins;
    CAPTURE_2_TWIN cuStreamBeginCapture_v2_ptsz = "cuStreamBeginCapture" 10010 twin Pool
        (a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) => order::capture_begins;
    CAPTURE_GRAPH cuStreamBeginCaptureToGraph = "cuStreamBeginCaptureToGraph" 12030 legacy Pool
        (a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) => order::capture_begins;
    CAPTURE_GRAPH_TWIN cuStreamBeginCaptureToGraph_ptsz = "cuStreamBeginCaptureToGraph" 12030 twin Pool
        (a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) => order::capture_begins;
    CAPTURE_END cuStreamEndCapture = "cuStreamEndCapture" 10000 legacy Pool
        (stream: Handle, graph: usize) => order::capture_ends::<false>;
    CAPTURE_END_TWIN cuStreamEndCapture_ptsz = "cuStreamEndCapture" 10000 twin Pool
        (stream: Handle, graph: usize) => order::capture_ends::<true>;
    STREAM_DESTROY cuStreamDestroy_v2 = "cuStreamDestroy" 4000 legacy Pool (stream: Handle) => order::stream_destroy;

    ADDRESS_RANGE cuMemGetAddressRange_v2 = "cuMemGetAddressRange" 3020 legacy Pool
        (base: *mut Pointer, size: *mut usize, at: Pointer) => range::address_range;
    ATTRIBUTE cuPointerGetAttribute = "cuPointerGetAttribute" 4000 legacy Pool
        (to: *mut c_void, attribute: i32, at: Pointer) => range::attribute;
    ATTRIBUTES cuPointerGetAttributes = "cuPointerGetAttributes" 7000 legacy Pool
        (count: u32, attributes: *const i32, to: *mut *mut c_void, at: Pointer) => range::attributes;
    IPC cuIpcGetMemHandle = "cuIpcGetMemHandle" 4010 legacy Pool (to: *mut c_void, at: Pointer) => range::ipc_handle;
    RANGE_HANDLE cuMemGetHandleForAddressRange = "cuMemGetHandleForAddressRange" 11070 legacy Pool
        (to: *mut c_void, at: Pointer, bytes: usize, kind: u32, flags: u64) => range::range_handle;

    RETAIN cuMemRetainAllocationHandle = "cuMemRetainAllocationHandle" 11000 legacy Pool
        (to: *mut u64, at: Pointer) => range::retain;
    GET_ACCESS cuMemGetAccess = "cuMemGetAccess" 10020 legacy Pool
        (to: *mut u64, location: *const c_void, at: Pointer) => range::get_access;
    SET_ACCESS cuMemSetAccess = "cuMemSetAccess" 10020 legacy Pool
        (at: Pointer, bytes: usize, list: *const c_void, count: usize) => range::set_access;
    UNMAP cuMemUnmap = "cuMemUnmap" 10020 legacy Pool (at: Pointer, bytes: usize) => range::unmap;

    STREAM_SYNCHRONIZE cuStreamSynchronize = "cuStreamSynchronize" 2000 legacy Order
        (stream: Handle) => order::stream_synchronize::<false>;
    STREAM_SYNCHRONIZE_TWIN cuStreamSynchronize_ptsz = "cuStreamSynchronize" 7000 twin Order
        (stream: Handle) => order::stream_synchronize::<true>;
    STREAM_WAIT cuStreamWaitEvent = "cuStreamWaitEvent" 3020 legacy Order
        (stream: Handle, event: Handle, flags: usize) => order::stream_wait::<false>;
    STREAM_WAIT_TWIN cuStreamWaitEvent_ptsz = "cuStreamWaitEvent" 7000 twin Order
        (stream: Handle, event: Handle, flags: usize) => order::stream_wait::<true>;
    EVENT_RECORD cuEventRecord = "cuEventRecord" 2000 legacy Order
        (event: Handle, stream: Handle, none: usize) => order::event_record::<false>;
    EVENT_RECORD_TWIN cuEventRecord_ptsz = "cuEventRecord" 7000 twin Order
        (event: Handle, stream: Handle, none: usize) => order::event_record::<true>;
    EVENT_RECORD_FLAGS cuEventRecordWithFlags = "cuEventRecordWithFlags" 11010 legacy Order
        (event: Handle, stream: Handle, flags: usize) => order::event_record::<false>;
    EVENT_RECORD_FLAGS_TWIN cuEventRecordWithFlags_ptsz = "cuEventRecordWithFlags" 11010 twin Order
        (event: Handle, stream: Handle, flags: usize) => order::event_record::<true>;
    EVENT_SYNCHRONIZE cuEventSynchronize = "cuEventSynchronize" 2000 legacy Order
        (event: Handle) => order::event_synchronize;
    EVENT_DESTROY cuEventDestroy_v2 = "cuEventDestroy" 4000 legacy Order (event: Handle) => order::event_destroy;

    POOL_GET cuMemPoolGetAttribute = "cuMemPoolGetAttribute" 11020 legacy Async
        (of: Handle, attribute: u32, to: *mut c_void) => attribute::get;
    POOL_SET cuMemPoolSetAttribute = "cuMemPoolSetAttribute" 11020 legacy Async
        (of: Handle, attribute: u32, from: *mut c_void) => attribute::set;
    POOL_TRIM cuMemPoolTrimTo = "cuMemPoolTrimTo" 11020 legacy Async (of: Handle, keep: usize) => attribute::trim;
    POOL_ACCESS cuMemPoolSetAccess = "cuMemPoolSetAccess" 11020 legacy Async
        (of: Handle, list: *const c_void, count: usize) => attribute::set_access;
    POOL_DESTROY cuMemPoolDestroy = "cuMemPoolDestroy" 11020 legacy Async (of: Handle) => attribute::destroy;
    SET_POOL cuDeviceSetMemPool = "cuDeviceSetMemPool" 11020 legacy Async
        (device: i32, pool: Handle) => attribute::set_pool;
    SET_POOL_AT cuMemSetMemPool = "cuMemSetMemPool" 13000 legacy Async
        (location: *mut c_void, kind: u32, pool: Handle) => attribute::set_pool_at;

    MEMCPYHTOD cuMemcpyHtoD_v2 = "cuMemcpyHtoD" 3020 legacy Check
        (to: Pointer, from: Pointer, bytes: usize) => access::copy_now::<false>;
    MEMCPYHTOD_TWIN cuMemcpyHtoD_v2_ptds = "cuMemcpyHtoD" 7000 twin Check
        (to: Pointer, from: Pointer, bytes: usize) => access::copy_now::<true>;
    MEMCPYDTOH cuMemcpyDtoH_v2 = "cuMemcpyDtoH" 3020 legacy Check
        (to: Pointer, from: Pointer, bytes: usize) => access::copy_to_host::<false>;
    MEMCPYDTOH_TWIN cuMemcpyDtoH_v2_ptds = "cuMemcpyDtoH" 7000 twin Check
        (to: Pointer, from: Pointer, bytes: usize) => access::copy_to_host::<true>;
    MEMCPYDTOD cuMemcpyDtoD_v2 = "cuMemcpyDtoD" 3020 legacy Check
        (to: Pointer, from: Pointer, bytes: usize) => access::copy_now::<false>;
    MEMCPYDTOD_TWIN cuMemcpyDtoD_v2_ptds = "cuMemcpyDtoD" 7000 twin Check
        (to: Pointer, from: Pointer, bytes: usize) => access::copy_now::<true>;
    MEMCPY cuMemcpy = "cuMemcpy" 4000 legacy Check
        (to: Pointer, from: Pointer, bytes: usize) => access::copy_now::<false>;
    MEMCPY_TWIN cuMemcpy_ptds = "cuMemcpy" 7000 twin Check
        (to: Pointer, from: Pointer, bytes: usize) => access::copy_now::<true>;
    MEMCPYHTODASYNC cuMemcpyHtoDAsync_v2 = "cuMemcpyHtoDAsync" 3020 legacy Check
        (to: Pointer, from: Pointer, bytes: usize, stream: Handle) => access::copy::<false>;
    MEMCPYHTODASYNC_TWIN cuMemcpyHtoDAsync_v2_ptsz = "cuMemcpyHtoDAsync" 7000 twin Check
        (to: Pointer, from: Pointer, bytes: usize, stream: Handle) => access::copy::<true>;
    MEMCPYDTOHASYNC cuMemcpyDtoHAsync_v2 = "cuMemcpyDtoHAsync" 3020 legacy Check
        (to: Pointer, from: Pointer, bytes: usize, stream: Handle) => access::copy::<false>;
    MEMCPYDTOHASYNC_TWIN cuMemcpyDtoHAsync_v2_ptsz = "cuMemcpyDtoHAsync" 7000 twin Check
        (to: Pointer, from: Pointer, bytes: usize, stream: Handle) => access::copy::<true>;
    MEMCPYDTODASYNC cuMemcpyDtoDAsync_v2 = "cuMemcpyDtoDAsync" 3020 legacy Check
        (to: Pointer, from: Pointer, bytes: usize, stream: Handle) => access::copy::<false>;
    MEMCPYDTODASYNC_TWIN cuMemcpyDtoDAsync_v2_ptsz = "cuMemcpyDtoDAsync" 7000 twin Check
        (to: Pointer, from: Pointer, bytes: usize, stream: Handle) => access::copy::<true>;
    MEMCPYASYNC cuMemcpyAsync = "cuMemcpyAsync" 4000 legacy Check
        (to: Pointer, from: Pointer, bytes: usize, stream: Handle) => access::copy::<false>;
    MEMCPYASYNC_TWIN cuMemcpyAsync_ptsz = "cuMemcpyAsync" 7000 twin Check
        (to: Pointer, from: Pointer, bytes: usize, stream: Handle) => access::copy::<true>;
    MEMSETD8 cuMemsetD8_v2 = "cuMemsetD8" 3020 legacy Check
        (to: Pointer, value: usize, count: usize) => access::set_now::<false, 1>;
    MEMSETD8_TWIN cuMemsetD8_v2_ptds = "cuMemsetD8" 7000 twin Check
        (to: Pointer, value: usize, count: usize) => access::set_now::<true, 1>;
    MEMSETD8ASYNC cuMemsetD8Async = "cuMemsetD8Async" 3020 legacy Check
        (to: Pointer, value: usize, count: usize, stream: Handle) => access::set::<false, 1>;
    MEMSETD8ASYNC_TWIN cuMemsetD8Async_ptsz = "cuMemsetD8Async" 7000 twin Check
        (to: Pointer, value: usize, count: usize, stream: Handle) => access::set::<true, 1>;
    MEMSETD16 cuMemsetD16_v2 = "cuMemsetD16" 3020 legacy Check
        (to: Pointer, value: usize, count: usize) => access::set_now::<false, 2>;
    MEMSETD16_TWIN cuMemsetD16_v2_ptds = "cuMemsetD16" 7000 twin Check
        (to: Pointer, value: usize, count: usize) => access::set_now::<true, 2>;
    MEMSETD16ASYNC cuMemsetD16Async = "cuMemsetD16Async" 3020 legacy Check
        (to: Pointer, value: usize, count: usize, stream: Handle) => access::set::<false, 2>;
    MEMSETD16ASYNC_TWIN cuMemsetD16Async_ptsz = "cuMemsetD16Async" 7000 twin Check
        (to: Pointer, value: usize, count: usize, stream: Handle) => access::set::<true, 2>;
    MEMSETD32 cuMemsetD32_v2 = "cuMemsetD32" 3020 legacy Check
        (to: Pointer, value: usize, count: usize) => access::set_now::<false, 4>;
    MEMSETD32_TWIN cuMemsetD32_v2_ptds = "cuMemsetD32" 7000 twin Check
        (to: Pointer, value: usize, count: usize) => access::set_now::<true, 4>;
    MEMSETD32ASYNC cuMemsetD32Async = "cuMemsetD32Async" 3020 legacy Check
        (to: Pointer, value: usize, count: usize, stream: Handle) => access::set::<false, 4>;
    MEMSETD32ASYNC_TWIN cuMemsetD32Async_ptsz = "cuMemsetD32Async" 7000 twin Check
        (to: Pointer, value: usize, count: usize, stream: Handle) => access::set::<true, 4>;
}

fn by_symbol(name: &CStr) -> Option<&'static Hook> {
    if broken("exact-names") {
        return HOOKS.iter().copied().find(|hook| name.to_bytes().starts_with(hook.base.as_bytes()));
    }
    HOOKS.iter().copied().find(|hook| hook.symbol == name)
}

/// What `dlsym(handle, name)` answers where that is ours to say; `None`: whatever the real one answers its caller.
///
/// # Safety
/// `handle` and `name` as `dlsym` takes them.
pub unsafe fn look_up(dlsym: Dlsym, handle: *mut c_void, name: *const c_char) -> Option<usize> {
    if name.is_null() || entry::inside() {
        return None;
    }
    // SAFETY: not null, so a terminated string.
    let name = unsafe { CStr::from_ptr(name) };
    if !name.to_bytes().starts_with(b"cu") {
        return None;
    }
    let hook = by_symbol(name)?;
    let _whole = entry::uncancelled();
    if broken("lazy-start") {
        // SAFETY: as the program would.
        unsafe { driver::cuInit(0) };
    }
    if handle == libc::RTLD_NEXT {
        // Whoever asks for the next one gets it, ours or the driver's; but ours is none where there is no driver's.
        // SAFETY: a handle every dlsym takes and a terminated string.
        let behind = unsafe { dlsym(handle, name.as_ptr()) } as usize;
        return (behind == 0).then_some(0);
    }
    // The caller's own handle decides what is found. The default scope is no handle: there the real one finds our export.
    // SAFETY: the caller's arguments.
    let found = unsafe { dlsym(handle, name.as_ptr()) } as usize;
    if found == 0 {
        // Asked again by the caller itself, so that dlerror tells what it must.
        return None;
    }
    if found == (hook.ours)() {
        // Our export stands before the driver's in the program's scope, and even where there is no driver: then the
        // program must not find it.
        if hook.real() != 0 {
            return None;
        }
        // SAFETY: a handle every dlsym takes and a terminated string.
        return Some(unsafe { dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize);
    }
    if broken("callers-handle") || broken("exact-names") {
        return Some((hook.ours)());
    }
    let library = driver::library_with(found);
    (hook.wanted() && driver::symbol_in(library, hook.symbol) == found).then(|| (hook.ours)())
}

/// What the program gets for a function that the driver says is `found`.
fn substitute(name: &CStr, version: i32, flags: u64, found: usize) -> usize {
    let Ok(name) = name.to_str() else { return found };
    if found == 0 || setting::settings().mode == Mode::Off {
        return found;
    }
    if broken("missing-symbols") && HOOKS.iter().any(|hook| hook.real() == 0) {
        return 0;
    }
    if broken("self-look-up") && name == "cuGetProcAddress" {
        return found;
    }
    if broken("exact-versions")
        && let Some(hook) = HOOKS.iter().find(|hook| hook.base == name)
    {
        return (hook.ours)();
    }
    let named = || HOOKS.iter().copied().filter(|hook| hook.base == name);
    let fitting = |hook: &&Hook| match broken("twin") {
        true => !hook.twin && named().any(|other| other.real() == found && other.since == hook.since),
        false => hook.real() == found,
    };
    if let Some(hook) = named().find(fitting) {
        return if hook.wanted() { (hook.ours)() } else { found };
    }
    // The driver may answer with another address than that of its export. Then the name, version and flags alone say
    // which function this is; where a name has several forms that could be it, that is not certain enough.
    let twin = flags & 2 != 0 && named().any(|hook| hook.twin);
    let mut fits = named().filter(|hook| hook.twin == twin);
    let (Some(hook), None) = (fits.next(), fits.next()) else { return found };
    let exported = hook.real();
    let same_file = || driver::file_of(exported).is_some_and(|file| driver::file_of(found) == Some(file));
    let unnamed = || !is_an_export(found);
    if version >= hook.since && exported != 0 && same_file() && unnamed() && hook.wanted() {
        hook.real.store(found, Relaxed);
        return (hook.ours)();
    }
    found
}

/// Whether an address is exactly that of some exported function: then it is that function, and not one without a name.
fn is_an_export(address: usize) -> bool {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: dladdr takes any address and writes `info` when it answers nonzero.
    let known = unsafe { libc::dladdr(address as *const c_void, &mut info) } != 0;
    known && info.dli_saddr as usize == address
}

/// Replaces the driver's answer to a look-up.
///
/// # Safety
/// `name` and `to` as `cuGetProcAddress` takes them, after it succeeded.
unsafe fn answered(name: *const c_char, to: *mut usize, version: i32, flags: u64) {
    if name.is_null() || to.is_null() || entry::inside() {
        return;
    }
    // SAFETY: the driver read the name and wrote the answer without an error, so both can be read, and `to` written.
    unsafe {
        let name = CStr::from_ptr(name);
        *to = substitute(name, version, flags, *to);
    }
}

type GetProcAddress = unsafe fn(*const c_char, *mut usize, i32, u64) -> Code;

unsafe fn get_proc_address(
    real: GetProcAddress,
    name: *const c_char,
    to: *mut usize,
    version: i32,
    flags: u64,
) -> Code {
    // SAFETY: the program's arguments.
    let code = unsafe { real(name, to, version, flags) };
    if code == SUCCESS {
        // SAFETY: the driver took these arguments.
        unsafe { answered(name, to, version, flags) };
    }
    code
}

type GetProcAddress2 = unsafe fn(*const c_char, *mut usize, i32, u64, *mut i32) -> Code;

unsafe fn get_proc_address_2(
    real: GetProcAddress2,
    name: *const c_char,
    to: *mut usize,
    version: i32,
    flags: u64,
    status: *mut i32,
) -> Code {
    let status = if broken("look-up-status") { std::ptr::null_mut() } else { status };
    // SAFETY: the program's arguments.
    let code = unsafe { real(name, to, version, flags, status) };
    if code == SUCCESS {
        // SAFETY: the driver took these arguments.
        unsafe { answered(name, to, version, flags) };
    }
    code
}
