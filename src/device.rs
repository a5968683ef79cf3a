//! Devices: opening, telling about, synchronising, closing.

use crate::boundary::{Out, call, flags, invalid, not_null, read, reserved, sized, text_field};
use crate::handle::{Handle, smp_device};
use crate::status::smp_status;
use smp_core::device::{self, DeviceKind, ModelOptions};
use smp_core::{Error, Status};
use std::ffi::c_char;

/// The CUDA device if it works, else the model device; smp_device_info says which and why.
pub const SMP_DEVICE_AUTO: u32 = 0;
/// The model device: no GPU; streams run when told to.
pub const SMP_DEVICE_MODEL: u32 = 1;
/// The CUDA device; without a working driver, or in a build without it, the open fails.
pub const SMP_DEVICE_CUDA: u32 = 2;

/// Model device: streams run only when advanced or synchronised, not at submission.
pub const SMP_DEVICE_LAZY: u32 = 1;
/// Model device: blocks are host memory that can be read and written.
pub const SMP_DEVICE_HOST_BACKING: u32 = 2;
/// The device cannot map memory under reserved addresses, so that mapped entries become ladders of sliced ones. The model
/// device can, unless this is asked for.
pub const SMP_DEVICE_NO_MAPPING: u32 = 4;

/// What to open. Start from SMP_DEVICE_DESC_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct smp_device_desc {
    /// Set by SMP_DEVICE_DESC_INIT.
    pub struct_size: u32,
    /// SMP_DEVICE_AUTO, SMP_DEVICE_MODEL or SMP_DEVICE_CUDA.
    pub kind: u32,
    /// SMP_DEVICE_LAZY, SMP_DEVICE_HOST_BACKING, SMP_DEVICE_NO_MAPPING.
    pub flags: u32,
    /// The CUDA device's number; must be 0 on the model device.
    pub ordinal: u32,
    /// Alignment of blocks: a power of two from 16 up to page_granularity; 0: 512.
    pub alignment: u64,
    /// What pages are rounded to: a power of two; 0: 2 MiB.
    pub page_granularity: u64,
    /// Bytes of pages the model device can give out. SMP_NONE: unlimited, or 1 GiB with host backing.
    pub capacity: u64,
    /// Zero.
    pub reserved: [u64; 4],
}

/// What a device is. Start from SMP_DEVICE_INFO_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct smp_device_info {
    /// Set by SMP_DEVICE_INFO_INIT.
    pub struct_size: u32,
    /// SMP_DEVICE_MODEL or SMP_DEVICE_CUDA.
    pub kind: u32,
    /// SMP_DEVICE_LAZY, SMP_DEVICE_HOST_BACKING, SMP_DEVICE_NO_MAPPING.
    pub flags: u32,
    /// The CUDA device's number, 0 on the model device.
    pub ordinal: u32,
    /// Alignment of blocks, bytes.
    pub alignment: u64,
    /// What pages are rounded to, bytes.
    pub page_granularity: u64,
    /// Bytes of pages the device can give out in all; SMP_NONE: unlimited.
    pub capacity: u64,
    /// Bytes of pages given out and not taken back.
    pub reserved: u64,
    /// Streams in existence, the default ones included once used.
    pub live_streams: u64,
    /// Pools that are not destroyed.
    pub pools: u64,
    /// Pages given out so far.
    pub page_allocs: u64,
    /// Pages taken back so far.
    pub page_frees: u64,
    /// The device's name; UTF-8, ends with a NUL.
    pub name: [c_char; 64],
    /// Which device was picked, and why.
    pub why: [c_char; 256],
}

sized!(smp_device_desc, "smp_device_desc", 72);
sized!(smp_device_info, "smp_device_info", 400);

/// Opens a device.
///
/// `desc`: null means SMP_DEVICE_AUTO with every default. `out`: not null; the caller owns the handle and gives it back
/// with smp_device_close.
/// Errors: SMP_ERROR_INVALID_VALUE for a bad pointer, struct_size, kind, flag, alignment or granularity;
/// SMP_ERROR_NOT_SUPPORTED if a CUDA device is asked for and cannot be had; SMP_ERROR_OUT_OF_MEMORY if host backing
/// cannot be reserved.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_device_open(desc: *const smp_device_desc, out: *mut smp_device) -> smp_status {
    call(|| {
        not_null(out, "out")?;
        let mut options = ModelOptions::default();
        if !desc.is_null() {
            // SAFETY: not null, so a struct of the size it states.
            let desc = unsafe { read(desc, "desc") }?;
            let known = SMP_DEVICE_LAZY | SMP_DEVICE_HOST_BACKING | SMP_DEVICE_NO_MAPPING;
            flags(desc.flags, known, "desc->flags")?;
            reserved(&desc.reserved, "desc")?;
            match desc.kind {
                SMP_DEVICE_AUTO | SMP_DEVICE_MODEL => {}
                SMP_DEVICE_CUDA => {
                    return Err(Error::new(
                        Status::NotSupported,
                        "a CUDA device cannot be opened: this build of libsmp has the model device only",
                    ));
                }
                kind => return Err(invalid(format_args!("desc->kind is {kind}, which is no kind of device"))),
            }
            if desc.ordinal != 0 {
                return Err(invalid(format_args!("desc->ordinal is {}; the model device is number 0", desc.ordinal)));
            }
            if desc.alignment != 0 {
                options.alignment = desc.alignment;
            }
            if desc.page_granularity != 0 {
                options.page_granularity = desc.page_granularity;
            }
            options.capacity = desc.capacity;
            options.lazy = desc.flags & SMP_DEVICE_LAZY != 0;
            options.host_backing = desc.flags & SMP_DEVICE_HOST_BACKING != 0;
            options.mapping = desc.flags & SMP_DEVICE_NO_MAPPING == 0;
        }
        let device = device::open_model(&options)?;
        // SAFETY: checked for null above; the caller's to write.
        unsafe { out.write(smp_device::of(device)) };
        Ok(())
    })
}

/// Tells about a device.
///
/// `out`: not null; struct_size set. Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_INVALID_VALUE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_device_get_info(device: smp_device, out: *mut smp_device_info) -> smp_status {
    call(|| {
        // SAFETY: null or a struct of the size it states.
        let out = unsafe { Out::new(out, "out") }?;
        let info = device::info(device.id())?;
        let (kind, lazy, backed) = (info.kind, info.lazy, info.host_backing);
        out.write(smp_device_info {
            struct_size: 0,
            kind: match kind {
                DeviceKind::Model => SMP_DEVICE_MODEL,
                DeviceKind::Cuda => SMP_DEVICE_CUDA,
            },
            flags: if lazy { SMP_DEVICE_LAZY } else { 0 }
                | if backed { SMP_DEVICE_HOST_BACKING } else { 0 }
                | if info.mapping { 0 } else { SMP_DEVICE_NO_MAPPING },
            ordinal: 0,
            alignment: info.alignment,
            page_granularity: info.page_granularity,
            capacity: info.capacity,
            reserved: info.reserved,
            live_streams: info.live_streams,
            pools: info.pools,
            page_allocs: info.page_allocs,
            page_frees: info.page_frees,
            name: text_field(&info.name),
            why: text_field(&info.why),
        });
        Ok(())
    })
}

/// Waits until everything submitted to the device has executed; the host has then observed it all, and pools over
/// their release threshold give pages back.
///
/// Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED.
#[unsafe(no_mangle)]
pub extern "C" fn smp_device_synchronize(device: smp_device) -> smp_status {
    call(|| device::synchronize(device.id()))
}

/// Closes a device handle. Its pools and blocks outlive it and stay usable, and with them its streams; its memory goes with
/// the last of them. Its events can only be destroyed from then on.
///
/// Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED (closed already).
#[unsafe(no_mangle)]
pub extern "C" fn smp_device_close(device: smp_device) -> smp_status {
    call(|| device::close(device.id()))
}
