//! The driver's functions as a table of pointers, and safe calls on it that answer `Result<_, Code>`.
//!
//! Functions are named by their exported symbols. `cuda-driver-sys` supplies the base types; results are plain numbers
//! here, because a newer driver knows codes that an older enumeration does not. What came after its CUDA 10.2 is
//! declared beside it.

#![allow(non_snake_case, non_camel_case_types)]

use cuda_driver_sys::{CUcontext, CUdevice, CUdeviceptr, CUevent, CUstream};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// A result of the driver other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) u32);

impl Code {
    pub(crate) const OUT_OF_MEMORY: Code = Code(2);
    pub(crate) const INVALID_CONTEXT: Code = Code(201);
    pub(crate) const INVALID_HANDLE: Code = Code(400);
    pub(crate) const NOT_READY: Code = Code(600);
    pub(crate) const NOT_SUPPORTED: Code = Code(801);
    pub(crate) const CAPTURE_UNSUPPORTED: Code = Code(900);
    pub(crate) const CAPTURE_IMPLICIT: Code = Code(906);

    /// After it the context answers nothing else any more: what it says about progress proves nothing.
    pub(crate) fn is_sticky(self) -> bool {
        // ECC, NVLink and contained errors; illegal address, timeout; assert to launch failure, but for those about peer
        // access and registration; a destroyed context; a driver shutting down.
        matches!(self.0, 4 | 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721)
    }
}

pub(crate) type Answer<T> = Result<T, Code>;

/// `CUmemPoolProps` of cuda.h 11.2 and later.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PoolProps {
    pub(crate) alloc_type: c_uint,
    pub(crate) handle_types: c_uint,
    pub(crate) location_type: c_uint,
    pub(crate) location_id: c_int,
    pub(crate) win32_security_attributes: usize,
    pub(crate) max_size: usize,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 54],
}

impl Default for PoolProps {
    fn default() -> Self {
        PoolProps {
            alloc_type: 0,
            handle_types: 0,
            location_type: 0,
            location_id: 0,
            win32_security_attributes: 0,
            max_size: 0,
            usage: 0,
            reserved: [0; 54],
        }
    }
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct AllocationProp {
    pub(crate) alloc_type: c_uint,
    pub(crate) handle_types: c_uint,
    pub(crate) location_type: c_uint,
    pub(crate) location_id: c_int,
    pub(crate) win32_handle_meta_data: usize,
    pub(crate) flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct AccessDesc {
    pub(crate) location_type: c_uint,
    pub(crate) location_id: c_int,
    pub(crate) flags: c_uint,
}

pub(crate) type CUmemoryPool = *mut c_void;

macro_rules! driver {
    (
        required { $($need:ident = $need_base:literal $need_version:literal ( $($need_arg:ty),* );)* }
        optional { $($may:ident = $may_base:literal $may_version:literal ( $($may_arg:ty),* );)* }
    ) => {
        /// The functions used. Those without which the library cannot work are plain; of the others, only what needs
        /// a missing one goes.
        pub(crate) struct Driver {
            $(pub(crate) $need: unsafe extern "C" fn($($need_arg),*) -> u32,)*
            $(pub(crate) $may: Option<unsafe extern "C" fn($($may_arg),*) -> u32>,)*
        }

        /// Exported symbol, name for `cuGetProcAddress`, version of the interface, whether it is required.
        pub(crate) const ENTRY_POINTS: &[(&str, &str, i32, bool)] = &[
            $((stringify!($need), $need_base, $need_version, true),)*
            $((stringify!($may), $may_base, $may_version, false),)*
        ];

        impl Driver {
            /// Fills the table from `find`; the error names a required function that is missing.
            ///
            /// # Safety
            /// What `find` answers for a symbol is null or that function of the driver.
            pub(crate) unsafe fn from(find: impl Fn(&str, &str, i32) -> *mut c_void) -> Result<Driver, &'static str> {
                Ok(Driver {
                    $($need: {
                        let pointer = find(stringify!($need), $need_base, $need_version);
                        if pointer.is_null() {
                            return Err(stringify!($need));
                        }
                        // SAFETY: the caller vouches that this is the function of that name, whose type this is.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($need_arg),*) -> u32>(pointer) }
                    },)*
                    $($may: {
                        let pointer = find(stringify!($may), $may_base, $may_version);
                        // SAFETY: as above; null becomes `None`.
                        unsafe { std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn($($may_arg),*) -> u32>>(pointer) }
                    },)*
                })
            }
        }
    };
}

driver! {
    required {
        cuInit = "cuInit" 2000 (c_uint);
        cuDriverGetVersion = "cuDriverGetVersion" 2020 (*mut c_int);
        cuDeviceGetCount = "cuDeviceGetCount" 2000 (*mut c_int);
        cuDeviceGet = "cuDeviceGet" 2000 (*mut CUdevice, c_int);
        cuDeviceGetName = "cuDeviceGetName" 2000 (*mut c_char, c_int, CUdevice);
        cuDevicePrimaryCtxRetain = "cuDevicePrimaryCtxRetain" 7000 (*mut CUcontext, CUdevice);
        cuDevicePrimaryCtxRelease_v2 = "cuDevicePrimaryCtxRelease" 11000 (CUdevice);
        cuCtxGetCurrent = "cuCtxGetCurrent" 4000 (*mut CUcontext);
        cuCtxPushCurrent_v2 = "cuCtxPushCurrent" 4000 (CUcontext);
        cuCtxPopCurrent_v2 = "cuCtxPopCurrent" 4000 (*mut CUcontext);
        cuCtxGetDevice = "cuCtxGetDevice" 2000 (*mut CUdevice);
        cuCtxSynchronize = "cuCtxSynchronize" 2000 ();
        cuMemGetInfo_v2 = "cuMemGetInfo" 3020 (*mut usize, *mut usize);
        cuMemAlloc_v2 = "cuMemAlloc" 3020 (*mut CUdeviceptr, usize);
        cuMemFree_v2 = "cuMemFree" 3020 (CUdeviceptr);
        cuStreamCreate = "cuStreamCreate" 2000 (*mut CUstream, c_uint);
        cuStreamDestroy_v2 = "cuStreamDestroy" 4000 (CUstream);
        cuStreamSynchronize = "cuStreamSynchronize" 2000 (CUstream);
        cuStreamQuery = "cuStreamQuery" 2000 (CUstream);
        cuStreamWaitEvent = "cuStreamWaitEvent" 3020 (CUstream, CUevent, c_uint);
        cuStreamGetFlags = "cuStreamGetFlags" 5050 (CUstream, *mut c_uint);
        cuEventCreate = "cuEventCreate" 2000 (*mut CUevent, c_uint);
        cuEventDestroy_v2 = "cuEventDestroy" 4000 (CUevent);
        cuEventRecord = "cuEventRecord" 2000 (CUevent, CUstream);
        cuEventQuery = "cuEventQuery" 2000 (CUevent);
        cuEventSynchronize = "cuEventSynchronize" 2000 (CUevent);
    }
    optional {
        cuDeviceGetAttribute = "cuDeviceGetAttribute" 2000 (*mut c_int, c_int, CUdevice);
        cuStreamGetCtx = "cuStreamGetCtx" 9020 (CUstream, *mut CUcontext);
        cuStreamGetId = "cuStreamGetId" 12000 (CUstream, *mut u64);
        cuStreamIsCapturing = "cuStreamIsCapturing" 10000 (CUstream, *mut c_uint);
        cuThreadExchangeStreamCaptureMode = "cuThreadExchangeStreamCaptureMode" 10010 (*mut c_uint);
        cuCtxRecordEvent = "cuCtxRecordEvent" 12050 (CUcontext, CUevent);
        cuGetErrorName = "cuGetErrorName" 6000 (u32, *mut *const c_char);
        cuGetErrorString = "cuGetErrorString" 6000 (u32, *mut *const c_char);
        cuMemPoolCreate = "cuMemPoolCreate" 11020 (*mut CUmemoryPool, *const PoolProps);
        cuMemPoolDestroy = "cuMemPoolDestroy" 11020 (CUmemoryPool);
        cuMemPoolGetAttribute = "cuMemPoolGetAttribute" 11020 (CUmemoryPool, c_uint, *mut c_void);
        cuMemPoolSetAttribute = "cuMemPoolSetAttribute" 11020 (CUmemoryPool, c_uint, *mut c_void);
        cuMemPoolTrimTo = "cuMemPoolTrimTo" 11020 (CUmemoryPool, usize);
        cuMemAllocFromPoolAsync = "cuMemAllocFromPoolAsync" 11020 (*mut CUdeviceptr, usize, CUmemoryPool, CUstream);
        cuMemFreeAsync = "cuMemFreeAsync" 11020 (CUdeviceptr, CUstream);
        cuMemGetAllocationGranularity = "cuMemGetAllocationGranularity" 10020 (*mut usize, *const AllocationProp, c_uint);
        cuMemAddressReserve = "cuMemAddressReserve" 10020 (*mut CUdeviceptr, usize, usize, CUdeviceptr, u64);
        cuMemAddressFree = "cuMemAddressFree" 10020 (CUdeviceptr, usize);
        cuMemCreate = "cuMemCreate" 10020 (*mut u64, usize, *const AllocationProp, u64);
        cuMemRelease = "cuMemRelease" 10020 (u64);
        cuMemMap = "cuMemMap" 10020 (CUdeviceptr, usize, usize, u64, u64);
        cuMemUnmap = "cuMemUnmap" 10020 (CUdeviceptr, usize);
        cuMemSetAccess = "cuMemSetAccess" 10020 (CUdeviceptr, usize, *const AccessDesc, usize);
    }
}

/// Success or the code.
pub(crate) fn check(result: u32) -> Answer<()> {
    if result == 0 { Ok(()) } else { Err(Code(result)) }
}

/// Calls a function of the table with the arguments given.
macro_rules! cu {
    ($driver:expr, $name:ident ( $($arg:expr),* )) => {
        // SAFETY: the table holds the driver's own function; pointers are to live locals of the type it writes or reads,
        // and handles are the driver's own or the caller's, whose validity the interface makes the caller's duty.
        $crate::device_source::cuda::ffi::check(unsafe { ($driver.$name)($($arg),*) })
    };
}

/// As `cu!`, for a function that may be missing: NOT_SUPPORTED then.
macro_rules! cu_optional {
    ($driver:expr, $name:ident ( $($arg:expr),* )) => {
        match $driver.$name {
            // SAFETY: as for `cu!`.
            Some(function) => $crate::device_source::cuda::ffi::check(unsafe { function($($arg),*) }),
            None => Err($crate::device_source::cuda::ffi::Code::NOT_SUPPORTED),
        }
    };
}

pub(crate) use {cu, cu_optional};

impl Driver {
    /// Every function that reserving addresses and mapping memory takes is there.
    pub(crate) fn has_virtual_memory(&self) -> bool {
        self.cuMemGetAllocationGranularity.is_some()
            && self.cuMemAddressReserve.is_some()
            && self.cuMemAddressFree.is_some()
            && self.cuMemCreate.is_some()
            && self.cuMemRelease.is_some()
            && self.cuMemMap.is_some()
            && self.cuMemUnmap.is_some()
            && self.cuMemSetAccess.is_some()
    }

    /// Every function that a pool of the driver's takes is there.
    pub(crate) fn has_memory_pools(&self) -> bool {
        self.cuMemPoolCreate.is_some()
            && self.cuMemPoolDestroy.is_some()
            && self.cuMemPoolGetAttribute.is_some()
            && self.cuMemPoolSetAttribute.is_some()
            && self.cuMemPoolTrimTo.is_some()
            && self.cuMemAllocFromPoolAsync.is_some()
            && self.cuMemFreeAsync.is_some()
    }

    /// `CUDA_ERROR_… (number): what the driver says of it`.
    pub(crate) fn describe(&self, code: Code) -> String {
        let text = |function: Option<unsafe extern "C" fn(u32, *mut *const c_char) -> u32>| {
            let mut pointer: *const c_char = std::ptr::null();
            // SAFETY: the driver writes null or a static text.
            let result = function.map_or(1, |function| unsafe { function(code.0, &mut pointer) });
            // SAFETY: not null on success: a NUL-terminated static text.
            (result == 0 && !pointer.is_null())
                .then(|| unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned())
        };
        let name = text(self.cuGetErrorName).unwrap_or_else(|| "CUDA error".to_owned());
        match text(self.cuGetErrorString) {
            Some(what) => format!("{name} ({}): {what}", code.0),
            None => format!("{name} ({})", code.0),
        }
    }
}
