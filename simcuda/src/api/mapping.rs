//! Virtual memory management.

use super::{Handle, Ptr, device_of, halves};
use crate::code;
use crate::ffi::{Call, In, Out};
use crate::memory::GRANULARITY;

/// Device, kinds of handles and flags that a physical allocation's properties name.
fn properties(c: &Call, props: In<[u64; 4]>) -> code::Result<(usize, u32, u64)> {
    let words = props.get()?;
    let ((kind, handles), (place, id)) = (halves(words[0]), halves(words[1]));
    if kind != 1 || !(0..=15).contains(&handles) || !(1..=4).contains(&place) {
        return Err(code::INVALID_VALUE);
    }
    // Memory of the device only; exportable at most as a file descriptor, which nothing here exports; not compressed.
    if place != 1 || handles > 1 || words[3] as u8 != 0 {
        return Err(code::NOT_SUPPORTED);
    }
    let device = device_of(c, id)?;
    Ok((device, handles as u32, words[3]))
}

entries! {
    "cuMemGetAllocationGranularity" 10020 cuMemGetAllocationGranularity => (
        c, to: Out<usize>, props: In<[u64; 4]>, option: u32) {
        to.check()?;
        properties(c, props)?;
        if option > 1 { return Err(code::INVALID_VALUE); }
        to.set(GRANULARITY as usize)
    }
    "cuMemAddressReserve" 10020 cuMemAddressReserve => (
        c, to: Out<Ptr>, len: usize, align: usize, wish: Ptr, flags: u64) {
        to.check()?;
        if flags != 0 { return Err(code::INVALID_VALUE); }
        let at = c.lock().reserve_addresses(len as u64, align as u64, wish)?;
        to.set(at)
    }
    "cuMemAddressFree" 10020 cuMemAddressFree => (c, at: Ptr, len: usize) {
        c.lock().memory.unreserve(at, len as u64)
    }
    "cuMemCreate" 10020 cuMemCreate => (c, to: Out<Handle>, len: usize, props: In<[u64; 4]>, flags: u64) {
        to.check()?;
        if flags != 0 { return Err(code::INVALID_VALUE); }
        let (device, handle_types, flags) = properties(c, props)?;
        let handle = c.lock().create_physical(device, len as u64, handle_types, flags)?;
        to.set(handle)
    }
    "cuMemRelease" 10020 cuMemRelease => (c, handle: Handle) { c.lock().release_physical(handle) }
    "cuMemMap" 10020 cuMemMap => (c, at: Ptr, len: usize, offset: usize, handle: Handle, flags: u64) {
        if flags != 0 { return Err(code::INVALID_VALUE); }
        c.lock().map(at, len as u64, offset as u64, handle)
    }
    "cuMemUnmap" 10020 cuMemUnmap => (c, at: Ptr, len: usize) { c.lock().unmap(at, len as u64) }
    "cuMemSetAccess" 10020 cuMemSetAccess => (c, at: Ptr, len: usize, descriptions: In<[u32; 3]>, count: usize) {
        if count == 0 { return Err(code::INVALID_VALUE); }
        for index in 0..count {
            let [place, id, flags] = descriptions.at(index).get()?;
            if place != 1 { return Err(if place <= 4 { code::NOT_SUPPORTED } else { code::INVALID_VALUE }); }
            let device = device_of(c, id as i32)?;
            c.lock().set_access(at, len as u64, device, flags)?;
        }
        Ok(())
    }
    "cuMemGetAccess" 10020 cuMemGetAccess => (c, to: Out<u64>, location: In<u64>, at: Ptr) {
        to.check()?;
        let (place, id) = halves(location.get()?);
        if place != 1 { return Err(code::INVALID_VALUE); }
        let device = device_of(c, id)?;
        let flags = c.lock().access(at, device)?;
        to.set(flags.into())
    }
    "cuMemRetainAllocationHandle" 11000 cuMemRetainAllocationHandle => (c, to: Out<Handle>, at: Ptr) {
        to.check()?;
        let handle = c.lock().retain_physical(at)?;
        to.set(handle)
    }
    "cuMemGetAllocationPropertiesFromHandle" 10020 cuMemGetAllocationPropertiesFromHandle => (
        c, to: Out<[u64; 4]>, handle: Handle) {
        to.check()?;
        let (device, handle_types, flags) = c.lock().physical_properties(handle)?;
        to.set([1 | u64::from(handle_types) << 32, 1 | (device as u64) << 32, 0, flags])
    }
}
