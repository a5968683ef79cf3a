//! The replaced calls on the driver's pools, where stream-ordered allocations are taken over: the pool that would have
//! served them answers with the figures and settings of ours. A program that gives a device a pool of its own, or opens the
//! pool to other devices, gets what it asks for: the driver serves that device for as long as it is so.

use crate::driver::{Code, Handle, SUCCESS};
use crate::entry;
use crate::pool;
use std::ffi::c_void;

/// Attributes 1 to 3 are ints, 4 to 8 numbers of 64 bits.
const INTS: std::ops::RangeInclusive<u32> = 1..=3;
const KNOWN: std::ops::RangeInclusive<u32> = 1..=8;
const INVALID_VALUE: Code = crate::driver::INVALID_VALUE;

/// `cuMemPoolGetAttribute`.
///
/// # Safety
/// As the driver's.
pub unsafe fn get(
    real: unsafe fn(Handle, u32, *mut c_void) -> Code,
    of: Handle,
    attribute: u32,
    to: *mut c_void,
) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(of, attribute, to) };
    let Some(_inside) = entry::enter() else { return driver() };
    if !KNOWN.contains(&attribute) || to.is_null() {
        return driver();
    }
    let Some(&ours) = pool::in_place_of(of).first() else { return driver() };
    match smp_core::pool::get_attribute(ours, attribute) {
        Ok(value) => {
            // SAFETY: not null, and of the attribute's type.
            unsafe {
                if INTS.contains(&attribute) {
                    to.cast::<i32>().write(i32::from(value != 0));
                } else {
                    to.cast::<u64>().write(value);
                }
            }
            SUCCESS
        }
        Err(_) => INVALID_VALUE,
    }
}

/// `cuMemPoolSetAttribute`.
///
/// # Safety
/// As the driver's.
pub unsafe fn set(
    real: unsafe fn(Handle, u32, *mut c_void) -> Code,
    of: Handle,
    attribute: u32,
    from: *mut c_void,
) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(of, attribute, from) };
    let Some(_inside) = entry::enter() else { return driver() };
    // The driver's own pool has it too: it judges what may be set, and serves where ours does not.
    let code = driver();
    if code == SUCCESS && KNOWN.contains(&attribute) && !from.is_null() {
        // SAFETY: not null, and of the attribute's type: the driver has read it.
        let value = unsafe {
            if INTS.contains(&attribute) {
                u64::from(from.cast::<i32>().read() != 0)
            } else {
                from.cast::<u64>().read()
            }
        };
        pool::attribute_set(of, attribute, value);
    }
    code
}

/// `cuMemPoolTrimTo`.
///
/// # Safety
/// As the driver's.
pub unsafe fn trim(real: unsafe fn(Handle, usize) -> Code, of: Handle, keep: usize) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(of, keep) };
    let Some(_inside) = entry::enter() else { return driver() };
    let code = driver();
    if code == SUCCESS {
        pool::trim_in_place_of(of, keep as u64);
    }
    code
}

/// A call after which another pool may serve.
fn changing(driver: impl FnOnce() -> Code) -> Code {
    let Some(_inside) = entry::enter() else { return driver() };
    let code = driver();
    if code == SUCCESS {
        pool::pools_changed();
    }
    code
}

/// `cuDeviceSetMemPool`: the device has a pool of the program's own, or its default one again.
///
/// # Safety
/// As the driver's.
pub unsafe fn set_pool(real: unsafe fn(i32, Handle) -> Code, device: i32, given: Handle) -> Code {
    // SAFETY: the program's arguments.
    changing(|| unsafe { real(device, given) })
}

/// `cuMemSetMemPool`, which says so by a location and a kind of memory.
///
/// # Safety
/// As the driver's.
pub unsafe fn set_pool_at(
    real: unsafe fn(*mut c_void, u32, Handle) -> Code,
    location: *mut c_void,
    kind: u32,
    given: Handle,
) -> Code {
    // SAFETY: the program's arguments.
    changing(|| unsafe { real(location, kind, given) })
}

/// `cuMemPoolDestroy`: where the pool was a device's current one, that is the default one again.
///
/// # Safety
/// As the driver's.
pub unsafe fn destroy(real: unsafe fn(Handle) -> Code, of: Handle) -> Code {
    // SAFETY: the program's arguments.
    changing(|| unsafe { real(of) })
}

/// `cuMemPoolSetAccess`: other devices are to reach the pool's memory, which ours cannot promise.
///
/// # Safety
/// As the driver's.
pub unsafe fn set_access(
    real: unsafe fn(Handle, *const c_void, usize) -> Code,
    of: Handle,
    list: *const c_void,
    count: usize,
) -> Code {
    // SAFETY: the program's arguments.
    changing(|| unsafe { real(of, list, count) })
}
