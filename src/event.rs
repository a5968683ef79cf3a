//! Events: points of streams that others can wait for.

use crate::boundary::{answer, call, flags, frequent, not_null};
use crate::handle::{Handle, per_thread, smp_device, smp_event, smp_stream};
use crate::status::smp_status;
use smp_core::Status;
use smp_core::event;

/// Creates an event; until recorded it counts as complete.
///
/// `create_flags`: 0. `out`: not null; the caller owns the event and gives it back with smp_event_destroy.
/// Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED for the device; SMP_ERROR_INVALID_VALUE.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_event_create(device: smp_device, create_flags: u32, out: *mut smp_event) -> smp_status {
    call(|| {
        not_null(out, "out")?;
        flags(create_flags, 0, "flags")?;
        let event = event::create(device.id())?;
        // SAFETY: checked for null above; the caller's to write.
        unsafe { out.write(smp_event::of(event)) };
        Ok(())
    })
}

/// Records the event: its point is the stream's position now. Recording again replaces the point; waits made before keep
/// theirs.
///
/// `device`: whose default stream 0, 1 or 2 means; may be null beside a created stream.
/// Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_WRONG_DEVICE.
#[unsafe(no_mangle)]
pub extern "C" fn smp_event_record(device: smp_device, event: smp_event, stream: smp_stream) -> smp_status {
    frequent(|| event::record(device.id(), event.id(), stream.id()).map(drop))
}

/// smp_event_record as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
#[unsafe(no_mangle)]
pub extern "C" fn smp_event_record_ptsz(device: smp_device, event: smp_event, stream: smp_stream) -> smp_status {
    frequent(|| event::record(device.id(), event.id(), per_thread(stream).id()).map(drop))
}

/// Has the event's point executed? Changes nothing.
///
/// SMP_SUCCESS: yes, or never recorded. SMP_NOT_READY: no. Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn smp_event_query(event: smp_event) -> smp_status {
    answer(|| Ok(if event::query(event.id())? { Status::Success } else { Status::NotReady }))
}

/// Waits until the event's point has executed, with all it depends on; the host has then observed it, and pools over
/// their release threshold give pages back.
///
/// Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED.
#[unsafe(no_mangle)]
pub extern "C" fn smp_event_synchronize(event: smp_event) -> smp_status {
    frequent(|| event::synchronize(event.id()))
}

/// Destroys an event. Waits made for it keep their point.
///
/// Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED.
#[unsafe(no_mangle)]
pub extern "C" fn smp_event_destroy(event: smp_event) -> smp_status {
    call(|| event::destroy(event.id()))
}
