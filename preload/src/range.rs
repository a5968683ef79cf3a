//! What an address is: a block of ours answers for itself, and never shows the page that it lies in.

use crate::context;
use crate::driver::{Code, Handle, INVALID_VALUE, NOT_SUPPORTED, NOWHERE, Pointer, SUCCESS};
use crate::entry;
use crate::pool::{self, Found};
use crate::setting;
use crate::switch::broken;
use std::ffi::c_void;

/// `CU_POINTER_ATTRIBUTE_CONTEXT`: a context, null for stream-ordered memory.
const CONTEXT: i32 = 1;
/// `CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID`: 64 bits.
const MEMORY_BLOCK_ID: i32 = 20;
/// `CU_POINTER_ATTRIBUTE_BUFFER_ID`: 64 bits.
const BUFFER_ID: i32 = 7;
/// `CU_POINTER_ATTRIBUTE_RANGE_START_ADDR`: an address.
const RANGE_START: i32 = 11;
/// `CU_POINTER_ATTRIBUTE_RANGE_SIZE`: bytes.
const RANGE_SIZE: i32 = 12;
/// `CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE`: a bool.
const IPC_CAPABLE: i32 = 10;
/// `CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE`: a pool of the driver's.
const POOL: i32 = 17;
/// `CU_POINTER_ATTRIBUTE_MAPPING_SIZE` and `CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR`: 64 bits each, of memory that is mapped.
const MAPPING: std::ops::RangeInclusive<i32> = 18..=19;

/// `cuMemGetAddressRange_v2`.
///
/// # Safety
/// As the driver's.
pub unsafe fn address_range(
    real: unsafe fn(*mut Pointer, *mut usize, Pointer) -> Code,
    base: *mut Pointer,
    size: *mut usize,
    at: Pointer,
) -> Code {
    // SAFETY: the program's arguments.
    let driver = |at| unsafe { real(base, size, at) };
    let Some(_inside) = entry::enter() else { return driver(at) };
    match pool::find(at).filter(|_| !broken("range")) {
        None => driver(at),
        Some(Err(())) => driver(NOWHERE),
        // A thread without a context is told nothing.
        Some(Ok(_)) if context::current().is_none() => driver(NOWHERE),
        Some(Ok(found)) => {
            // SAFETY: each may be null, else it is the program's to be written.
            unsafe {
                if !base.is_null() {
                    base.write(found.base);
                }
                if !size.is_null() {
                    size.write(found.bytes as usize);
                }
            }
            SUCCESS
        }
    }
}

/// Writes what a block answers for itself, over what the driver said of its page.
///
/// # Safety
/// `to` takes this attribute's value, as the driver has just written it.
unsafe fn overwrite(to: *mut c_void, attribute: i32, found: &Found) {
    if to.is_null() || broken("range") {
        return;
    }
    // SAFETY: the caller's promise; the types are those of the attributes.
    unsafe {
        match attribute {
            // The driver counts its own up from small numbers.
            BUFFER_ID | MEMORY_BLOCK_ID => to.cast::<u64>().write(found.number | 1 << 63),
            CONTEXT => to.cast::<Handle>().write(found.context),
            RANGE_START => to.cast::<Pointer>().write(found.base),
            RANGE_SIZE => to.cast::<usize>().write(found.bytes as usize),
            POOL => to.cast::<Handle>().write(found.of_pool),
            attribute if found.mapped && MAPPING.contains(&attribute) => to.cast::<u64>().write(0),
            IPC_CAPABLE if !found.own_page => to.cast::<u8>().write(0),
            _ => {}
        }
    }
}

/// `cuPointerGetAttribute`.
///
/// # Safety
/// As the driver's.
pub unsafe fn attribute(
    real: unsafe fn(*mut c_void, i32, Pointer) -> Code,
    to: *mut c_void,
    attribute: i32,
    at: Pointer,
) -> Code {
    // SAFETY: the program's arguments.
    let driver = |at| unsafe { real(to, attribute, at) };
    let Some(_inside) = entry::enter() else { return driver(at) };
    match pool::find(at) {
        None => driver(at),
        Some(Err(())) if !broken("range") => driver(NOWHERE),
        Some(Err(())) => driver(at),
        // The mapping is the pool's, and the program has made none.
        Some(Ok(found)) if found.mapped && MAPPING.contains(&attribute) && !broken("range") => driver(NOWHERE),
        Some(Ok(found)) => {
            let code = driver(at);
            if code == SUCCESS {
                // SAFETY: the driver wrote it.
                unsafe { overwrite(to, attribute, &found) };
            }
            code
        }
    }
}

/// `cuPointerGetAttributes`.
///
/// # Safety
/// As the driver's.
pub unsafe fn attributes(
    real: unsafe fn(u32, *const i32, *mut *mut c_void, Pointer) -> Code,
    count: u32,
    attributes: *const i32,
    to: *mut *mut c_void,
    at: Pointer,
) -> Code {
    // SAFETY: the program's arguments.
    let driver = |at| unsafe { real(count, attributes, to, at) };
    let Some(_inside) = entry::enter() else { return driver(at) };
    match pool::find(at) {
        None => driver(at),
        Some(Err(())) => driver(NOWHERE),
        Some(Ok(found)) => {
            let code = driver(at);
            if code == SUCCESS && !attributes.is_null() && !to.is_null() {
                for index in 0..count as usize {
                    // SAFETY: the driver read and wrote `count` of each.
                    unsafe { overwrite(*to.add(index), *attributes.add(index), &found) };
                }
            }
            code
        }
    }
}

/// Says that a block inside a page cannot be exported, once a process in full.
fn refuse(what: &str, found: &Found) -> Code {
    setting::warn(&format!(
        "{what} refused: the block of {} bytes at {:#x} shares its page with others; SMP_EXPORT_THRESHOLD={} or less would \
         have given it one of its own",
        found.bytes, found.base, found.bytes
    ));
    NOT_SUPPORTED
}

/// `cuIpcGetMemHandle`: a handle names the driver's whole allocation, so only a block that is one gets it.
///
/// # Safety
/// As the driver's.
pub unsafe fn ipc_handle(real: unsafe fn(*mut c_void, Pointer) -> Code, to: *mut c_void, at: Pointer) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(to, at) };
    let Some(_inside) = entry::enter() else { return driver() };
    match pool::find(at).filter(|_| !broken("export")) {
        Some(Ok(found)) if !found.own_page => refuse("cuIpcGetMemHandle", &found),
        Some(Err(())) => INVALID_VALUE,
        _ => driver(),
    }
}

/// `cuMemGetHandleForAddressRange`, for the same reason.
///
/// # Safety
/// As the driver's.
pub unsafe fn range_handle(
    real: unsafe fn(*mut c_void, Pointer, usize, u32, u64) -> Code,
    to: *mut c_void,
    at: Pointer,
    bytes: usize,
    kind: u32,
    flags: u64,
) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(to, at, bytes, kind, flags) };
    let Some(_inside) = entry::enter() else { return driver() };
    match pool::find(at).filter(|_| !broken("export")) {
        Some(Ok(found)) if !found.own_page => refuse("cuMemGetHandleForAddressRange", &found),
        Some(Err(())) => INVALID_VALUE,
        _ => driver(),
    }
}

/// A call on a mapping: the driver's, but of those that pools have made it is not told; the program has made none there.
fn of_a_mapping(at: Pointer, driver: impl Fn(Pointer) -> Code) -> Code {
    let Some(_inside) = entry::enter() else { return driver(at) };
    match pool::find(at).filter(|_| !broken("range")) {
        Some(Ok(found)) if !found.mapped => driver(at),
        Some(_) => driver(NOWHERE),
        None => driver(at),
    }
}

/// `cuMemRetainAllocationHandle`.
///
/// # Safety
/// As the driver's.
pub unsafe fn retain(real: unsafe fn(*mut u64, Pointer) -> Code, to: *mut u64, at: Pointer) -> Code {
    // SAFETY: the program's arguments.
    of_a_mapping(at, |at| unsafe { real(to, at) })
}

/// `cuMemGetAccess`.
///
/// # Safety
/// As the driver's.
pub unsafe fn get_access(
    real: unsafe fn(*mut u64, *const c_void, Pointer) -> Code,
    to: *mut u64,
    location: *const c_void,
    at: Pointer,
) -> Code {
    // SAFETY: the program's arguments.
    of_a_mapping(at, |at| unsafe { real(to, location, at) })
}

/// `cuMemSetAccess`.
///
/// # Safety
/// As the driver's.
pub unsafe fn set_access(
    real: unsafe fn(Pointer, usize, *const c_void, usize) -> Code,
    at: Pointer,
    bytes: usize,
    list: *const c_void,
    count: usize,
) -> Code {
    // SAFETY: the program's arguments.
    of_a_mapping(at, |at| unsafe { real(at, bytes, list, count) })
}

/// `cuMemUnmap`.
///
/// # Safety
/// As the driver's.
pub unsafe fn unmap(real: unsafe fn(Pointer, usize) -> Code, at: Pointer, bytes: usize) -> Code {
    // SAFETY: the program's arguments.
    of_a_mapping(at, |at| unsafe { real(at, bytes) })
}
