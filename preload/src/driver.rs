//! The driver: its types and result codes, the library it lies in, and the functions that are asked of it without being
//! replaced.

use crate::switch::broken;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// `CUresult`.
pub type Code = u32;
/// `CUstream`, `CUevent`, `CUcontext`, `CUmemoryPool`: values that only the driver reads.
pub type Handle = usize;
/// `CUdeviceptr`.
pub type Pointer = u64;

/// `CUDA_SUCCESS`.
pub const SUCCESS: Code = 0;
/// `CUDA_ERROR_INVALID_VALUE`.
pub const INVALID_VALUE: Code = 1;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub const OUT_OF_MEMORY: Code = 2;
/// `CUDA_ERROR_DEINITIALIZED`: the process is going away; what is freed now goes with it.
pub const DEINITIALIZED: Code = 4;
/// `CUDA_ERROR_INVALID_CONTEXT`.
pub const INVALID_CONTEXT: Code = 201;
/// `CUDA_ERROR_INVALID_HANDLE`.
pub const INVALID_HANDLE: Code = 400;
/// `CUDA_ERROR_NOT_PERMITTED`.
pub const NOT_PERMITTED: Code = 800;
/// `CUDA_ERROR_NOT_SUPPORTED`.
pub const NOT_SUPPORTED: Code = 801;
/// `CUDA_ERROR_NOT_FOUND`.
pub const NOT_FOUND: Code = 500;
/// `CUDA_ERROR_UNKNOWN`.
pub const UNKNOWN: Code = 999;

/// No memory's address: what the driver says of it, it would say of memory that has been freed.
pub const NOWHERE: Pointer = 8;

/// `CUmemLocation`: a device.
#[repr(C)]
pub struct Location {
    kind: u32,
    device: i32,
}

impl Location {
    /// The memory of a device, or the device that reaches it.
    pub fn device(device: i32) -> Location {
        const ON_DEVICE: u32 = 1;
        Location { kind: ON_DEVICE, device }
    }
}

/// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`.
pub const POINTER_DEVICE_ORDINAL: i32 = 9;
/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`.
pub const POOL_RELEASE_THRESHOLD: u32 = 4;

/// libc's `dlsym`, or that of a library preloaded after this one.
pub type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// The `dlsym` behind ours.
pub fn real_dlsym() -> Option<Dlsym> {
    static REAL: AtomicUsize = AtomicUsize::new(0);
    let mut found = REAL.load(Relaxed);
    if found == 0 {
        // Newest version first; where libc keeps an old version beside it, both end in the same function.
        for version in [c"GLIBC_2.34", c"GLIBC_2.2.5"] {
            // SAFETY: both names are terminated strings; RTLD_NEXT is a handle every dlvsym takes.
            found = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) } as usize;
            if found != 0 {
                break;
            }
        }
        // SAFETY: nonzero, it is the address of a function `dlsym` with this signature; zero is `None`.
        let dlsym = unsafe { std::mem::transmute::<usize, Option<Dlsym>>(found) }?;
        // A library preloaded after this one may have a `dlsym` without a version, which that look-up passes over.
        // SAFETY: a handle every dlsym takes and a terminated string.
        let next = unsafe { dlsym(libc::RTLD_NEXT, c"dlsym".as_ptr()) } as usize;
        if next != 0 && !broken("chain") {
            found = next;
        }
        REAL.store(found, Relaxed);
    }
    // SAFETY: the address of a function `dlsym` with this signature.
    unsafe { std::mem::transmute::<usize, Option<Dlsym>>(found) }
}

/// The file an address lies in, and where that file is mapped.
pub fn file_of(address: usize) -> Option<(&'static CStr, usize)> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: null_mut(),
    };
    // SAFETY: dladdr takes any address and writes `info` when it answers nonzero.
    let known = unsafe { libc::dladdr(address as *const c_void, &mut info) } != 0 && !info.dli_fname.is_null();
    // SAFETY: the loader's name of a loaded file, a terminated string. Files with CUDA in them stay loaded; the name of
    // another could go with its file, so callers copy it at once.
    known.then(|| (unsafe { CStr::from_ptr(info.dli_fname) }, info.dli_fbase as usize))
}

/// Whether a file is a CUDA driver by its name.
fn is_driver(file: &CStr) -> bool {
    let bytes = file.to_bytes();
    let name = bytes.rsplit(|&byte| byte == b'/').next().unwrap_or(bytes);
    name == b"libcuda.so" || name.starts_with(b"libcuda.so.")
}

static LIBRARY: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// The driver's library, if it is loaded. Never loads it: that is the program's business.
pub fn library() -> *mut c_void {
    let known = LIBRARY.load(Acquire);
    if !known.is_null() {
        return known;
    }
    let open = |name: &CStr| {
        // SAFETY: a terminated string; RTLD_NOLOAD only looks.
        unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) }
    };
    let named = std::env::var_os("SMP_CUDA_LIBRARY")
        // Opened by an empty name is the program itself.
        .filter(|name| !name.is_empty())
        .and_then(|name| std::ffi::CString::new(std::os::unix::ffi::OsStringExt::into_vec(name)).ok());
    let mut found = named.map_or(null_mut(), |name| open(&name));
    if found.is_null() {
        found = open(c"libcuda.so.1");
    }
    adopt(found)
}

/// Takes the first library found; a second driver in one process stays as it is.
fn adopt(found: *mut c_void) -> *mut c_void {
    if found.is_null() {
        return found;
    }
    match LIBRARY.compare_exchange(null_mut(), found, Release, Acquire) {
        Ok(_) => found,
        Err(first) => first,
    }
}

/// As [`library`], with an address that a look-up through the program's handle gave: a driver that was loaded under a
/// path of its own and has no usual name is known by its file.
pub fn library_with(address: usize) -> *mut c_void {
    let known = library();
    if !known.is_null() {
        return known;
    }
    match file_of(address) {
        Some((file, _)) if is_driver(file) => {
            // SAFETY: a terminated string; RTLD_NOLOAD only looks.
            adopt(unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) })
        }
        _ => null_mut(),
    }
}

/// The driver's function of this exact name, 0 if it has none.
pub fn symbol(name: &CStr) -> usize {
    symbol_in(library(), name)
}

/// As [`symbol`], in a library already known to be the driver.
pub fn symbol_in(library: *mut c_void, name: &CStr) -> usize {
    let Some(dlsym) = real_dlsym() else { return 0 };
    if library.is_null() {
        return 0;
    }
    // SAFETY: an open library's handle and a terminated string.
    (unsafe { dlsym(library, name.as_ptr()) }) as usize
}

/// The driver's functions that are asked but not replaced: one that an old driver lacks answers `NOT_FOUND`, and only
/// what needs it goes without.
macro_rules! asked {
    ($($(#[$doc:meta])* $name:ident ( $($arg:ident : $ty:ty),* );)*) => {
        $($(#[$doc])*
        ///
        /// # Safety
        /// As the driver's function of that name.
        pub unsafe fn $name($($arg: $ty),*) -> Code {
            static REAL: AtomicUsize = AtomicUsize::new(0);
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name with a zero byte"),
            };
            let mut address = REAL.load(Relaxed);
            if address == 0 {
                address = symbol(NAME);
                if address == 0 {
                    return NOT_FOUND;
                }
                REAL.store(address, Relaxed);
            }
            // SAFETY: the driver's function of that name has this signature.
            let function: unsafe extern "C" fn($($ty),*) -> Code = unsafe { std::mem::transmute(address) };
            // SAFETY: the caller's promise.
            unsafe { function($($arg),*) }
        })*
    };
}

asked! {
    /// Initialises the driver.
    cuInit(flags: u32);
    /// The calling thread's context.
    cuCtxGetCurrent(to: *mut Handle);
    /// The device of the calling thread's context.
    cuCtxGetDevice(to: *mut i32);
    /// Makes a context current.
    cuCtxPushCurrent_v2(context: Handle);
    /// Undoes a push.
    cuCtxPopCurrent_v2(to: *mut Handle);
    /// Whether a device's primary context exists.
    cuDevicePrimaryCtxGetState(device: i32, flags: *mut u32, active: *mut i32);
    /// Takes a share in a device's primary context.
    cuDevicePrimaryCtxRetain(to: *mut Handle, device: i32);
    /// Creates a stream.
    cuStreamCreate(to: *mut Handle, flags: u32);
    /// The context of a stream.
    cuStreamGetCtx(stream: Handle, to: *mut Handle);
    /// Whether a stream is being captured.
    cuStreamIsCapturing(stream: Handle, to: *mut u32);
    /// How this thread's calls treat captures.
    cuThreadExchangeStreamCaptureMode(mode: *mut u32);
    /// Creates an event.
    cuEventCreate(to: *mut Handle, flags: u32);
    /// Destroys an event.
    cuEventDestroy_v2(event: Handle);
    /// Whether an event has been passed.
    cuEventQuery(event: Handle);
    /// Records an event after all that a context has been given.
    cuCtxRecordEvent(context: Handle, event: Handle);
    /// A device's default pool.
    cuDeviceGetDefaultMemPool(to: *mut Handle, device: i32);
    /// A device's current pool.
    cuDeviceGetMemPool(to: *mut Handle, device: i32);
    /// How many devices there are.
    cuDeviceGetCount(to: *mut i32);
    /// How a device may reach a pool's memory.
    cuMemPoolGetAccess(to: *mut u32, pool: Handle, place: *const Location);
    /// An attribute of a pool.
    cuMemPoolGetAttribute(pool: Handle, attribute: u32, to: *mut c_void);
    /// Sets an attribute of a pool.
    cuMemPoolSetAttribute(pool: Handle, attribute: u32, from: *mut c_void);
    /// Reserves addresses.
    cuMemAddressReserve(to: *mut Pointer, bytes: usize, alignment: usize, wish: Pointer, flags: u64);
    /// Gives reserved addresses back.
    cuMemAddressFree(at: Pointer, bytes: usize);
    /// Makes memory appear at reserved addresses.
    cuMemMap(at: Pointer, bytes: usize, offset: usize, memory: u64, flags: u64);
    /// Ends that.
    cuMemUnmap(at: Pointer, bytes: usize);
    /// An attribute of an address.
    cuPointerGetAttribute(to: *mut c_void, attribute: i32, at: Pointer);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_drivers_own_file_names_count() {
        for yes in [c"libcuda.so", c"/usr/lib/libcuda.so.1", c"./libcuda.so.550.54.15"] {
            assert!(is_driver(yes), "{yes:?}");
        }
        for no in [c"libcudart.so.13", c"/usr/lib/libcudnn.so.9", c"libcuda", c"/libcuda.so.1/libother.so", c""] {
            assert!(!is_driver(no), "{no:?}");
        }
    }

    #[test]
    fn the_dlsym_behind_ours_is_found() {
        let dlsym = real_dlsym().unwrap();
        // SAFETY: a handle every dlsym takes and a terminated string.
        assert!(!unsafe { dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()) }.is_null());
    }
}
