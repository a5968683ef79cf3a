//! Finding the driver at run time: nothing of CUDA is needed to build or load the library.
//!
//! The library named by `SMP_CUDA_LIBRARY`, else `libcuda.so.1`, is opened once a process, at the first CUDA device asked
//! for. Its functions are resolved by its `cuGetProcAddress` where it has one, else by name.

use super::ffi::{Code, Driver};
use crate::error::{Error, Result, Status};
use once_cell::sync::OnceCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The oldest driver that can be used: 11.0, which has everything that is required.
pub(crate) const OLDEST_DRIVER: i32 = 11000;

/// What an embedding library gives in place of the search: exported symbol to pointer, null if there is none.
pub type Resolver = unsafe extern "C" fn(symbol: *const c_char) -> *mut c_void;

static RESOLVER: AtomicUsize = AtomicUsize::new(0);
static DRIVER: OnceCell<Loaded> = OnceCell::new();

/// The driver, initialised.
pub(crate) struct Loaded {
    pub(crate) driver: Driver,
    /// 1000 × major + 10 × minor.
    pub(crate) version: i32,
    /// The library as it was named.
    pub(crate) library: String,
}

/// Resolves the driver's functions by `resolver` instead of looking for a library; for a library that sits between a
/// program and its driver. To be called before the first device is opened.
///
/// # Safety
/// For a symbol of the driver `resolver` answers null or that function, from any thread, for the life of the process.
pub unsafe fn use_resolver(resolver: Resolver) {
    RESOLVER.store(resolver as usize, Ordering::Release);
}

/// The driver; found, resolved and initialised at the first call, and again at the next if that failed.
pub(crate) fn driver() -> Result<&'static Loaded> {
    DRIVER.get_or_try_init(load)
}

/// The driver, if it is loaded.
#[inline(always)]
pub(crate) fn loaded() -> Option<&'static Loaded> {
    DRIVER.get()
}

fn unsupported(text: impl std::fmt::Display) -> Error {
    Error::new(Status::NotSupported, text)
}

fn load() -> Result<Loaded> {
    let resolver = RESOLVER.load(Ordering::Acquire);
    let loaded = if resolver == 0 {
        open()?
    } else {
        // SAFETY: only `use_resolver` stores there, and it stores such a function.
        let resolver = unsafe { std::mem::transmute::<usize, Resolver>(resolver) };
        let find = |symbol: &str, _: &str, _: i32| match CString::new(symbol) {
            // SAFETY: a NUL-terminated text; what the function is like is promised by whoever gave it.
            Ok(symbol) => unsafe { resolver(symbol.as_ptr()) },
            Err(_) => std::ptr::null_mut(),
        };
        // SAFETY: promised by whoever gave the resolver.
        let driver = unsafe { Driver::from(find) }.map_err(|name| lacking("the program's driver", name, find))?;
        Loaded { driver, version: 0, library: "the program's driver".to_owned() }
    };
    start(loaded)
}

/// Initialises the driver and asks its version.
fn start(mut loaded: Loaded) -> Result<Loaded> {
    let driver = &loaded.driver;
    super::ffi::cu!(driver, cuInit(0)).map_err(|code: Code| {
        unsupported(format_args!("{}: cuInit failed: {}", loaded.library, driver.describe(code)))
    })?;
    let mut version = 0;
    super::ffi::cu!(driver, cuDriverGetVersion(&mut version)).map_err(|code: Code| {
        unsupported(format_args!("{}: cuDriverGetVersion failed: {}", loaded.library, driver.describe(code)))
    })?;
    if version < OLDEST_DRIVER {
        return Err(unsupported(format_args!("{}: {}", loaded.library, too_old(version))));
    }
    loaded.version = version;
    Ok(loaded)
}

fn too_old(version: i32) -> String {
    let text = |version: i32| format!("{}.{}", version / 1000, version % 1000 / 10);
    format!("the driver is of CUDA {}; the oldest that can be used is {}", text(version), text(OLDEST_DRIVER))
}

/// The error for a required function that `find` does not find: it may be for the driver's age.
fn lacking(library: &str, name: &str, find: impl Fn(&str, &str, i32) -> *mut c_void) -> Error {
    let ask = find("cuDriverGetVersion", "cuDriverGetVersion", 2020);
    // SAFETY: null, which becomes `None`, or the driver's function of that name, whose type this is.
    let ask = unsafe { std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn(*mut c_int) -> u32>>(ask) };
    let mut version = 0;
    // SAFETY: a place to write to; the function needs no initialised driver.
    let known = ask.is_some_and(|ask| unsafe { ask(&mut version) } == 0);
    match known && version < OLDEST_DRIVER {
        true => unsupported(format_args!("{library}: {}", too_old(version))),
        false => unsupported(format_args!("{library}: the driver has no {name}, which is required")),
    }
}

fn open() -> Result<Loaded> {
    // A path need not be UTF-8.
    let path = std::env::var_os("SMP_CUDA_LIBRARY").filter(|path| !path.is_empty());
    let path = path.unwrap_or_else(|| "libcuda.so.1".into());
    let library = path.to_string_lossy().into_owned();
    let name = CString::new(path.into_vec()).map_err(|_| unsupported("SMP_CUDA_LIBRARY holds a NUL"))?;
    // SAFETY: a NUL-terminated name. The library stays open for the life of the process.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        // SAFETY: dlerror answers null or a text valid until the thread's next call of its kind.
        let why = unsafe {
            let text = libc::dlerror();
            if text.is_null() { "not found".to_owned() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
        };
        return Err(unsupported(format_args!("no CUDA driver: {why}")));
    }
    let by_name = |symbol: &str| match CString::new(symbol) {
        // SAFETY: an open library and a NUL-terminated name.
        Ok(symbol) => unsafe { libc::dlsym(handle, symbol.as_ptr()) },
        Err(_) => std::ptr::null_mut(),
    };
    type GetProcAddress = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64) -> u32;
    type GetProcAddress2 = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> u32;
    let second = by_name("cuGetProcAddress_v2");
    let first = by_name("cuGetProcAddress");
    // SAFETY: the driver's functions of these names have these types; null becomes `None`.
    let (second, first) = unsafe {
        (
            std::mem::transmute::<*mut c_void, Option<GetProcAddress2>>(second),
            std::mem::transmute::<*mut c_void, Option<GetProcAddress>>(first),
        )
    };
    let find = |symbol: &str, base: &str, version: i32| {
        let Ok(base) = CString::new(base) else { return std::ptr::null_mut() };
        let mut pointer = std::ptr::null_mut();
        let mut status = 0;
        // SAFETY: a NUL-terminated name, and places to write to.
        let result = unsafe {
            match (second, first) {
                (Some(ask), _) => ask(base.as_ptr(), &mut pointer, version, 1, &mut status),
                (None, Some(ask)) => ask(base.as_ptr(), &mut pointer, version, 1),
                (None, None) => return by_name(symbol),
            }
        };
        if result == 0 { pointer } else { std::ptr::null_mut() }
    };
    // SAFETY: the pointers come from the driver library under these names.
    let driver = unsafe { Driver::from(find) }.map_err(|name| lacking(&library, name, find))?;
    Ok(Loaded { driver, version: 0, library })
}
