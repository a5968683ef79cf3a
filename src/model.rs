//! What only the model device can do: submit work that does nothing, advance streams by hand, and run out of memory on
//! demand. On any other device these answer SMP_ERROR_NOT_SUPPORTED.

use crate::boundary::{call, frequent};
use crate::handle::{Handle, per_thread, smp_device, smp_stream};
use crate::status::smp_status;
use smp_core::{Result, device, stream};

/// Submits `count` operations to a stream, as kernels would be.
///
/// `device`: whose default stream 0, 1 or 2 means; may be null beside a created stream. `last_seq`: may be null; the
/// stream's last sequence number after it. Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_WRONG_DEVICE,
/// SMP_ERROR_NOT_SUPPORTED; SMP_ERROR_INVALID_VALUE if `count` is 0 or above 2^32, or the stream has had 2^61 operations.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_model_stream_submit(
    device: smp_device,
    stream: smp_stream,
    count: u64,
    last_seq: *mut u64,
) -> smp_status {
    // SAFETY: `last_seq` is null or the caller's to write.
    frequent(|| unsafe { write(last_seq, stream::submit(device.id(), stream.id(), count)?) })
}

/// smp_model_stream_submit as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_model_stream_submit_ptsz(
    device: smp_device,
    stream: smp_stream,
    count: u64,
    last_seq: *mut u64,
) -> smp_status {
    // SAFETY: `last_seq` is null or the caller's to write.
    frequent(|| unsafe { write(last_seq, stream::submit(device.id(), per_thread(stream).id(), count)?) })
}

/// Runs up to `count` further operations of a stream; stops at the first whose dependencies have not executed.
///
/// `device`: as above. `ran`: may be null; how many ran. Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED,
/// SMP_ERROR_WRONG_DEVICE, SMP_ERROR_NOT_SUPPORTED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_model_stream_advance(
    device: smp_device,
    stream: smp_stream,
    count: u64,
    ran: *mut u64,
) -> smp_status {
    // SAFETY: `ran` is null or the caller's to write.
    frequent(|| unsafe { write(ran, stream::advance(device.id(), stream.id(), count)?) })
}

/// smp_model_stream_advance as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_model_stream_advance_ptsz(
    device: smp_device,
    stream: smp_stream,
    count: u64,
    ran: *mut u64,
) -> smp_status {
    // SAFETY: `ran` is null or the caller's to write.
    frequent(|| unsafe { write(ran, stream::advance(device.id(), per_thread(stream).id(), count)?) })
}

/// Sets how many bytes of pages the device can give out; pages given out already stay.
///
/// `bytes`: SMP_NONE: unlimited; with host backing it is the host that may then refuse a page.
/// Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_NOT_SUPPORTED.
#[unsafe(no_mangle)]
pub extern "C" fn smp_model_set_capacity(device: smp_device, bytes: u64) -> smp_status {
    call(|| device::set_capacity(device.id(), bytes))
}

/// Makes the device refuse `count` page requests after granting `skip` more; replaces what was set before.
///
/// Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_NOT_SUPPORTED.
#[unsafe(no_mangle)]
pub extern "C" fn smp_model_refuse_pages(device: smp_device, skip: u64, count: u64) -> smp_status {
    call(|| device::refuse_pages(device.id(), skip, count))
}

/// Makes the device refuse to take back the next `count` pages.
///
/// Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_NOT_SUPPORTED.
#[unsafe(no_mangle)]
pub extern "C" fn smp_model_refuse_releases(device: smp_device, count: u64) -> smp_status {
    call(|| device::refuse_releases(device.id(), count))
}

/// # Safety
/// `to` is null or writable.
unsafe fn write(to: *mut u64, value: u64) -> Result<()> {
    if !to.is_null() {
        // SAFETY: not null, so the caller's to write.
        unsafe { to.write(value) };
    }
    Ok(())
}
