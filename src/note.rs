//! Notes: the caller did it, past the library, and tells. A note is a contract: what it says must be so, and since it was
//! done no other call of this library has named that stream (an order must not be claimed for frees that came after it); nor, where
//! it is the legacy default stream, a blocking one, and the other way round.
//! An event of the caller's becomes known by the note of its record.
//!
//! On the model device nothing but the library runs streams and holds events, so what a note tells has not happened until
//! the note: there each does what it names.

use crate::boundary::call;
use crate::handle::{Handle, per_thread, smp_device, smp_event, smp_stream};
use crate::status::smp_status;
use smp_core::{Act, device, event, stream};

/// Notes that the caller has recorded the event on the stream. On the model device: smp_event_record.
///
/// `device`: whose default stream 0, 1 or 2 means; may be null beside a created stream.
/// Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_WRONG_DEVICE.
#[unsafe(no_mangle)]
pub extern "C" fn smp_note_event_record(device: smp_device, event: smp_event, stream: smp_stream) -> smp_status {
    call(|| event::record_by(device.id(), event.id(), stream.id(), Act::Noted).map(drop))
}

/// smp_note_event_record as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
#[unsafe(no_mangle)]
pub extern "C" fn smp_note_event_record_ptsz(device: smp_device, event: smp_event, stream: smp_stream) -> smp_status {
    call(|| event::record_by(device.id(), event.id(), per_thread(stream).id(), Act::Noted).map(drop))
}

/// Notes that the caller has made the stream wait for the event. On the model device: smp_stream_wait_event.
///
/// `device`: whose default stream 0, 1 or 2 means; may be null beside a created stream.
/// Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_WRONG_DEVICE.
#[unsafe(no_mangle)]
pub extern "C" fn smp_note_stream_wait(device: smp_device, stream: smp_stream, event: smp_event) -> smp_status {
    call(|| stream::wait_event_by(device.id(), stream.id(), event.id(), Act::Noted))
}

/// smp_note_stream_wait as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
#[unsafe(no_mangle)]
pub extern "C" fn smp_note_stream_wait_ptsz(device: smp_device, stream: smp_stream, event: smp_event) -> smp_status {
    call(|| stream::wait_event_by(device.id(), per_thread(stream).id(), event.id(), Act::Noted))
}

/// Notes that the caller has synchronised with the event. On the model device: smp_event_synchronize.
///
/// `device`: the event's; of two CUDA devices in one context, either.
/// Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_WRONG_DEVICE.
#[unsafe(no_mangle)]
pub extern "C" fn smp_note_event_synchronized(device: smp_device, event: smp_event) -> smp_status {
    call(|| event::note_synchronized(device.id(), event.id()))
}

/// Notes that the caller has synchronised with the stream. On the model device: smp_stream_synchronize.
///
/// `device`: whose default stream 0, 1 or 2 means; may be null beside a created stream.
/// Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_WRONG_DEVICE.
#[unsafe(no_mangle)]
pub extern "C" fn smp_note_stream_synchronized(device: smp_device, stream: smp_stream) -> smp_status {
    call(|| stream::synchronize_by(device.id(), stream.id(), Act::Noted))
}

/// smp_note_stream_synchronized as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
#[unsafe(no_mangle)]
pub extern "C" fn smp_note_stream_synchronized_ptsz(device: smp_device, stream: smp_stream) -> smp_status {
    call(|| stream::synchronize_by(device.id(), per_thread(stream).id(), Act::Noted))
}

/// Notes that the caller has synchronised the device or its context. On the model device: smp_device_synchronize.
///
/// Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED.
#[unsafe(no_mangle)]
pub extern "C" fn smp_note_device_synchronized(device: smp_device) -> smp_status {
    call(|| device::synchronize_by(device.id(), Act::Noted))
}

/// Notes that the caller has destroyed the event. On the model device: smp_event_destroy.
///
/// On CUDA an event that the library has not seen has nothing to forget.
///
/// `device`: the event's; of two CUDA devices in one context, either.
/// Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_WRONG_DEVICE.
#[unsafe(no_mangle)]
pub extern "C" fn smp_note_event_destroyed(device: smp_device, event: smp_event) -> smp_status {
    call(|| event::note_destroyed(device.id(), event.id()))
}
