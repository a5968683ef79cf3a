//! Devices: opening, telling about, synchronising, closing.

use crate::NONE;
use crate::boundary::{Out, call, flags, invalid, not_null, read, reserved, sized, text_field};
use crate::handle::{Handle, smp_device};
use crate::status::smp_status;
use smp_core::device::{self, CudaOptions, DeviceKind, ModelOptions, PageSupply};
use smp_core::{DeviceId, Result};
use std::ffi::{c_char, c_void};

/// The CUDA device if it works, else the model device; smp_device_info says which and why.
pub const SMP_DEVICE_AUTO: u32 = 0;
/// The model device: no GPU; streams run when told to.
pub const SMP_DEVICE_MODEL: u32 = 1;
/// A CUDA device; without a working driver the open fails. The driver is looked for at run time: the library that the
/// environment variable SMP_CUDA_LIBRARY names, else libcuda.so.1.
pub const SMP_DEVICE_CUDA: u32 = 2;

/// Model device: streams run only when advanced or synchronised, not at submission.
pub const SMP_DEVICE_LAZY: u32 = 1;
/// Model device: blocks are host memory that can be read and written.
pub const SMP_DEVICE_HOST_BACKING: u32 = 2;
/// The device cannot map memory under reserved addresses, so that mapped entries become ladders of sliced ones. The model
/// device can, unless this is asked for.
pub const SMP_DEVICE_NO_MAPPING: u32 = 4;
/// CUDA: a stream's identity is verified with the driver on every call, so that one destroyed without smp_stream_release,
/// and its handle given out again, is noticed. The environment variable SMP_CHECKED=1 asks for the same.
pub const SMP_DEVICE_CHECKED: u32 = 8;

/// CUDA: pages by cuMemAlloc.
pub const SMP_PAGES_PLAIN: u32 = 0;
/// CUDA: pages from a memory pool of the driver's, which gets them faster a second time.
pub const SMP_PAGES_DRIVER_POOL: u32 = 1;
/// CUDA: pages by virtual memory management.
pub const SMP_PAGES_VIRTUAL_MEMORY: u32 = 2;

/// What to open. Start from SMP_DEVICE_DESC_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct smp_device_desc {
    /// Set by SMP_DEVICE_DESC_INIT.
    pub struct_size: u32,
    /// SMP_DEVICE_AUTO, SMP_DEVICE_MODEL or SMP_DEVICE_CUDA.
    pub kind: u32,
    /// SMP_DEVICE_LAZY, SMP_DEVICE_HOST_BACKING (model), SMP_DEVICE_CHECKED (CUDA), SMP_DEVICE_NO_MAPPING.
    pub flags: u32,
    /// The CUDA device's number; must be 0 on the model device.
    pub ordinal: u32,
    /// Alignment of blocks: a power of two from 16 up to page_granularity; 0: 512.
    pub alignment: u64,
    /// What pages are rounded to: a power of two; 0: 2 MiB.
    pub page_granularity: u64,
    /// Bytes of pages the model device can give out, not 0. SMP_NONE: unlimited, or 1 GiB with host backing.
    pub capacity: u64,
    /// CUDA: the CUcontext to work in, of that device; null: its primary context. Null on the model device.
    pub context: *mut c_void,
    /// CUDA: SMP_PAGES_..., where pages come from; 0 on the model device.
    pub page_supply: u32,
    /// Zero.
    pub reserved0: u32,
    /// Zero.
    pub reserved: [u64; 2],
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
    /// Streams in existence: the legacy default stream, always; those created and not destroyed; threads' default streams once used,
    /// those of ended threads until another thread begins one; and those destroyed whose work is neither observed nor found executed
    /// yet (smp_stream_destroy).
    pub live_streams: u64,
    /// Pools that are not destroyed, and those destroyed that have not given all their pages back yet, as with live blocks.
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
/// `desc`: null means SMP_DEVICE_AUTO with every default. SMP_DEVICE_AUTO picks CUDA if it works and nothing is asked for
/// that only the model device has (lazy streams, host backing, a capacity); smp_device_info says which it was and why.
/// `out`: not null; the caller owns the handle and gives it back with smp_device_close.
/// The first device of a process registers it with the kernel for membarrier(2), by which a stream passes from the thread that mostly
/// uses it to another; in a process with threads that may take some milliseconds. The environment variable
/// SMP_NO_MEMBARRIER=1 keeps libsmp from it (for a process that may not make this system call, on pain of death): calls then
/// take a little longer. A refusal does no harm.
/// Errors: SMP_ERROR_INVALID_VALUE for a bad pointer, struct_size, kind, flag, alignment, granularity, capacity or ordinal, and for
/// what the kind does not have; SMP_ERROR_NOT_SUPPORTED if a CUDA device is asked for and cannot be had, with what is
/// missing; SMP_ERROR_DRIVER if the driver failed; SMP_ERROR_OUT_OF_MEMORY if host backing cannot be reserved, or the
/// driver has no memory for a context.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_device_open(desc: *const smp_device_desc, out: *mut smp_device) -> smp_status {
    call(|| {
        not_null(out, "out")?;
        let desc = match desc.is_null() {
            true => None,
            // SAFETY: not null, so a struct of the size it states.
            false => Some(unsafe { read(desc, "desc") }?),
        };
        let device = open(desc.as_ref())?;
        // SAFETY: checked for null above; the caller's to write.
        unsafe { out.write(smp_device::of(device)) };
        Ok(())
    })
}

fn open(desc: Option<&smp_device_desc>) -> Result<DeviceId> {
    let (mut model, mut cuda) = (ModelOptions::default(), CudaOptions::default());
    let mut kind = SMP_DEVICE_AUTO;
    let (mut model_only, mut cuda_only) = (None, None);
    if let Some(desc) = desc {
        let known = SMP_DEVICE_LAZY | SMP_DEVICE_HOST_BACKING | SMP_DEVICE_NO_MAPPING | SMP_DEVICE_CHECKED;
        flags(desc.flags, known, "desc->flags")?;
        reserved(&desc.reserved, "desc")?;
        reserved(&[u64::from(desc.reserved0)], "desc")?;
        kind = desc.kind;
        if kind > SMP_DEVICE_CUDA {
            return Err(invalid(format_args!("desc->kind is {kind}, which is no kind of device")));
        }
        let set = |flag: u32| desc.flags & flag != 0;
        let named = |is: bool, name: &'static str| is.then_some(name);
        model_only = named(set(SMP_DEVICE_LAZY), "SMP_DEVICE_LAZY")
            .or(named(set(SMP_DEVICE_HOST_BACKING), "SMP_DEVICE_HOST_BACKING"))
            .or(named(desc.capacity != NONE, "a capacity"));
        cuda_only = named(set(SMP_DEVICE_CHECKED), "SMP_DEVICE_CHECKED")
            .or(named(!desc.context.is_null(), "a context"))
            .or(named(desc.page_supply != SMP_PAGES_PLAIN, "a page supply"));
        if desc.alignment != 0 {
            (model.alignment, cuda.alignment) = (desc.alignment, desc.alignment);
        }
        if desc.page_granularity != 0 {
            (model.page_granularity, cuda.page_granularity) = (desc.page_granularity, desc.page_granularity);
        }
        model.capacity = desc.capacity;
        model.lazy = set(SMP_DEVICE_LAZY);
        model.host_backing = set(SMP_DEVICE_HOST_BACKING);
        (model.mapping, cuda.mapping) = (!set(SMP_DEVICE_NO_MAPPING), !set(SMP_DEVICE_NO_MAPPING));
        cuda.ordinal = desc.ordinal;
        cuda.context = desc.context.addr() as u64;
        cuda.checked = set(SMP_DEVICE_CHECKED);
        cuda.supply = match desc.page_supply {
            SMP_PAGES_PLAIN => PageSupply::Plain,
            SMP_PAGES_DRIVER_POOL => PageSupply::DriverPool,
            SMP_PAGES_VIRTUAL_MEMORY => PageSupply::VirtualMemory,
            other => return Err(invalid(format_args!("desc->page_supply is {other}, which is no supply of pages"))),
        };
        if kind != SMP_DEVICE_CUDA && desc.ordinal != 0 && (kind == SMP_DEVICE_MODEL || model_only.is_some()) {
            return Err(invalid(format_args!("desc->ordinal is {}; the model device is number 0", desc.ordinal)));
        }
    }
    let without = |what: &str, device: &str| invalid(format_args!("desc: {what} is not for {device}"));
    match (kind, model_only, cuda_only) {
        (SMP_DEVICE_CUDA, Some(what), _) => Err(without(what, "a CUDA device")),
        (SMP_DEVICE_MODEL, _, Some(what)) => Err(without(what, "the model device")),
        (_, Some(model), Some(cuda)) => {
            Err(invalid(format_args!("desc: {model} is for the model device, {cuda} for a CUDA device")))
        }
        (SMP_DEVICE_CUDA, ..) => device::open_cuda(&cuda),
        (SMP_DEVICE_MODEL, ..) => device::open_model(&model),
        (_, Some(what), None) => {
            device::open_model_because(&model, &format!("the model device: only it has {what}, which was asked for"))
        }
        (_, None, Some(_)) => device::open_cuda(&cuda),
        (_, None, None) => match device::open_cuda_because(&cuda, "CUDA works") {
            Ok(device) => Ok(device),
            // Asked for by number, no other will do.
            Err(error) if cuda.ordinal != 0 => Err(error),
            Err(error) => device::open_model_because(&model, &format!("the model device: {error}")),
        },
    }
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
            ordinal: info.ordinal,
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
