//! Streams: creating and destroying, synchronising and asking, and waiting for events.
//!
//! `device` says whose default stream 0, 1 or 2 means; beside a created stream it may be null.

use crate::boundary::{Out, answer, call, flags, frequent, invalid, not_null, sized};
use crate::handle::{Handle, per_thread, smp_device, smp_event, smp_stream};
use crate::status::smp_status;
use smp_core::stream::{self, StreamFlags};
use smp_core::{Result, Status};

/// Not ordered by the legacy default stream.
pub const SMP_STREAM_NON_BLOCKING: u32 = 1;
/// Model device: runs only when advanced or synchronised, whatever the device's default.
pub const SMP_STREAM_LAZY: u32 = 2;
/// Model device: runs at submission, whatever the device's default.
pub const SMP_STREAM_EAGER: u32 = 4;

/// Where a stream stands. Start from SMP_STREAM_INFO_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct smp_stream_info {
    /// Set by SMP_STREAM_INFO_INIT.
    pub struct_size: u32,
    /// SMP_STREAM_NON_BLOCKING; and one of SMP_STREAM_LAZY and SMP_STREAM_EAGER on the model device.
    pub flags: u32,
    /// Which stream of the device, in order of creation; 0 is the legacy default stream.
    pub stream_id: u64,
    /// The last sequence number given out.
    pub submitted: u64,
    /// All operations up to this one have run.
    pub executed: u64,
    /// The host knows that all operations up to this one have run, because it synchronised.
    pub observed: u64,
}

sized!(smp_stream_info, "smp_stream_info", 40);

/// Creates a stream.
///
/// `create_flags`: 0, or SMP_STREAM_NON_BLOCKING and at most one of SMP_STREAM_LAZY and SMP_STREAM_EAGER.
/// `out`: not null; the caller owns the stream and gives it back with smp_stream_destroy.
/// Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED for the device; SMP_ERROR_INVALID_VALUE.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_stream_create(device: smp_device, create_flags: u32, out: *mut smp_stream) -> smp_status {
    call(|| {
        not_null(out, "out")?;
        flags(create_flags, SMP_STREAM_NON_BLOCKING | SMP_STREAM_LAZY | SMP_STREAM_EAGER, "flags")?;
        let lazy = match (create_flags & SMP_STREAM_LAZY != 0, create_flags & SMP_STREAM_EAGER != 0) {
            (true, true) => return Err(invalid("flags: a stream is lazy or eager, not both")),
            (false, false) => None,
            (lazy, _) => Some(lazy),
        };
        let non_blocking = create_flags & SMP_STREAM_NON_BLOCKING != 0;
        let stream = stream::create(device.id(), StreamFlags { non_blocking, lazy })?;
        // SAFETY: checked for null above; the caller's to write.
        unsafe { out.write(smp_stream::of(stream)) };
        Ok(())
    })
}

/// Destroys a created stream. It returns at once; what was submitted still runs, and allocations made on it stay.
///
/// What was freed on it is anybody's once the host has observed it, or once the stream is found executed to its end: by an
/// allocation that asks (policy 2), or when a later stream is created.
///
/// Errors: SMP_ERROR_INVALID_HANDLE; SMP_ERROR_DESTROYED; SMP_ERROR_INVALID_VALUE for a default stream.
#[unsafe(no_mangle)]
pub extern "C" fn smp_stream_destroy(stream: smp_stream) -> smp_status {
    call(|| stream::destroy(stream.id()))
}

/// Tells that the caller is about to destroy a stream of its own, before it does; without it a recycled handle value could
/// inherit an order it does not have. On the model device, whose streams are all the library's, it destroys the stream.
///
/// `device`: the stream's; may be null beside a stream that the library has seen.
/// Errors: as smp_stream_destroy; SMP_ERROR_WRONG_DEVICE.
#[unsafe(no_mangle)]
pub extern "C" fn smp_stream_release(device: smp_device, stream: smp_stream) -> smp_status {
    call(|| stream::release(device.id(), stream.id()))
}

/// smp_stream_release as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
#[unsafe(no_mangle)]
pub extern "C" fn smp_stream_release_ptsz(device: smp_device, stream: smp_stream) -> smp_status {
    call(|| stream::release(device.id(), per_thread(stream).id()))
}

/// Waits until everything submitted to the stream has executed, with all it depends on; the host has then observed it,
/// and pools over their release threshold give pages back.
///
/// Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_WRONG_DEVICE.
#[unsafe(no_mangle)]
pub extern "C" fn smp_stream_synchronize(device: smp_device, stream: smp_stream) -> smp_status {
    frequent(|| stream::synchronize(device.id(), stream.id()))
}

/// smp_stream_synchronize as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
#[unsafe(no_mangle)]
pub extern "C" fn smp_stream_synchronize_ptsz(device: smp_device, stream: smp_stream) -> smp_status {
    frequent(|| stream::synchronize(device.id(), per_thread(stream).id()))
}

/// Has everything submitted to the stream executed? Changes nothing; in particular nothing becomes observed.
///
/// SMP_SUCCESS: yes. SMP_NOT_READY: no. Errors: as smp_stream_synchronize; SMP_ERROR_CAPTURING for a stream that is being
/// captured, which CUDA does not answer about (and whose capture it ends).
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn smp_stream_query(device: smp_device, stream: smp_stream) -> smp_status {
    answer(|| query(device, stream))
}

/// smp_stream_query as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn smp_stream_query_ptsz(device: smp_device, stream: smp_stream) -> smp_status {
    answer(|| query(device, per_thread(stream)))
}

/// Tells where a stream stands.
///
/// `out`: not null; struct_size set. Errors: as smp_stream_synchronize; SMP_ERROR_INVALID_VALUE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_stream_get_info(
    device: smp_device,
    stream: smp_stream,
    out: *mut smp_stream_info,
) -> smp_status {
    // SAFETY: `out` is null or a struct of the size it states.
    call(|| unsafe { get_info(device, stream, out) })
}

/// smp_stream_get_info as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_stream_get_info_ptsz(
    device: smp_device,
    stream: smp_stream,
    out: *mut smp_stream_info,
) -> smp_status {
    // SAFETY: `out` is null or a struct of the size it states.
    call(|| unsafe { get_info(device, per_thread(stream), out) })
}

/// Makes what is submitted to the stream from now on wait for the event's point. A never-recorded event is complete; one
/// recorded again later keeps this wait where it was.
///
/// Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_WRONG_DEVICE.
#[unsafe(no_mangle)]
pub extern "C" fn smp_stream_wait_event(device: smp_device, stream: smp_stream, event: smp_event) -> smp_status {
    frequent(|| stream::wait_event(device.id(), stream.id(), event.id()))
}

/// smp_stream_wait_event as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
#[unsafe(no_mangle)]
pub extern "C" fn smp_stream_wait_event_ptsz(device: smp_device, stream: smp_stream, event: smp_event) -> smp_status {
    frequent(|| stream::wait_event(device.id(), per_thread(stream).id(), event.id()))
}

fn query(device: smp_device, stream: smp_stream) -> Result<Status> {
    Ok(if stream::query(device.id(), stream.id())? { Status::Success } else { Status::NotReady })
}

unsafe fn get_info(device: smp_device, stream: smp_stream, out: *mut smp_stream_info) -> Result<()> {
    // SAFETY: null or a struct of the size it states.
    let out = unsafe { Out::new(out, "out") }?;
    let info = stream::info(device.id(), stream.id())?;
    let pace = info.lazy.map_or(0, |lazy| if lazy { SMP_STREAM_LAZY } else { SMP_STREAM_EAGER });
    out.write(smp_stream_info {
        struct_size: 0,
        flags: pace | if info.non_blocking { SMP_STREAM_NON_BLOCKING } else { 0 },
        stream_id: info.id.0,
        submitted: info.submitted,
        executed: info.executed,
        observed: info.observed,
    });
    Ok(())
}
