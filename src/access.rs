//! Checking accesses: does the caller's own work on a block follow its allocation, precede its free, and race nothing?

use crate::boundary::{Out, call, invalid, sized, text_field};
use crate::handle::{Handle, per_thread, smp_allocation, smp_device, smp_stream};
use crate::status::smp_status;
use smp_core::Result;
use smp_core::pool::access::{AccessKind, Outcome, Verdict};
use std::ffi::{c_char, c_void};

/// The access reads.
pub const SMP_ACCESS_READ: u32 = 1;
/// The access writes.
pub const SMP_ACCESS_WRITE: u32 = 2;
/// The access reads and writes.
pub const SMP_ACCESS_READ_WRITE: u32 = 3;

/// The order holds.
pub const SMP_ORDER_PROVED: u32 = 1;
/// The order does not hold.
pub const SMP_ORDER_REFUTED: u32 = 2;
/// The library cannot see whether it holds.
pub const SMP_ORDER_UNPROVEN: u32 = 3;

/// The access is not ordered after the allocation.
pub const SMP_FAULT_BEFORE_ALLOCATION: u32 = 1;
/// The block has been freed.
pub const SMP_FAULT_AFTER_FREE: u32 = 2;
/// The access races an earlier one: one of the two writes, and neither is ordered after the other.
pub const SMP_FAULT_RACE: u32 = 4;
/// The bytes reach past the allocation.
pub const SMP_FAULT_OUT_OF_BOUNDS: u32 = 8;
/// No allocation holds the first byte.
pub const SMP_FAULT_UNKNOWN_MEMORY: u32 = 16;

/// What is found about an access. Start from SMP_ACCESS_VERDICT_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct smp_access_verdict {
    /// Set by SMP_ACCESS_VERDICT_INIT.
    pub struct_size: u32,
    /// SMP_ORDER_PROVED: all is well. SMP_ORDER_REFUTED: see faults. SMP_ORDER_UNPROVEN: nothing refuted, but not all
    /// proved; never on the model device.
    pub order: u32,
    /// SMP_FAULT_... bits: what is wrong.
    pub faults: u32,
    /// With SMP_FAULT_RACE: SMP_ACCESS_... of the other access; else 0.
    pub other_access: u32,
    /// The allocation that holds the bytes; null if none does.
    pub allocation: smp_allocation,
    /// Bytes from the allocation's start to the access.
    pub offset: u64,
    /// The accessing stream, in order of creation.
    pub stream_id: u64,
    /// The access's place in that stream.
    pub seq: u64,
    /// The stream of the point that should precede and does not (the allocation, or the other access); SMP_NONE if none.
    pub missing_stream_id: u64,
    /// That point's place in its stream.
    pub missing_seq: u64,
    /// The verdict in words, with what is missing; empty if all is well. UTF-8, ends with a NUL, cut if longer.
    pub text: [c_char; 256],
}

sized!(smp_access_verdict, "smp_access_verdict", 320);

/// Notes that the caller's work on `stream` accesses bytes from now on, as the stream's next operation, and tells whether
/// that is in order. A later free that does not follow it is reported too.
///
/// `ptr`: model address, device pointer or host address of any byte of an allocation. `size`: bytes. `access`:
/// SMP_ACCESS_.... `out`: may be null; struct_size set. A fault found is a verdict, not an error: the call succeeds.
/// Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_WRONG_DEVICE; SMP_ERROR_INVALID_VALUE for a bad access
/// kind or struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_note_access(
    device: smp_device,
    ptr: *const c_void,
    size: u64,
    stream: smp_stream,
    access: u32,
    out: *mut smp_access_verdict,
) -> smp_status {
    // SAFETY: `out` is null or a struct of the size it states.
    call(|| unsafe { note(device, ptr, size, stream, access, out) })
}

/// smp_note_access as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_note_access_ptsz(
    device: smp_device,
    ptr: *const c_void,
    size: u64,
    stream: smp_stream,
    access: u32,
    out: *mut smp_access_verdict,
) -> smp_status {
    // SAFETY: `out` is null or a struct of the size it states.
    call(|| unsafe { note(device, ptr, size, per_thread(stream), access, out) })
}

unsafe fn note(
    device: smp_device,
    ptr: *const c_void,
    size: u64,
    stream: smp_stream,
    access: u32,
    out: *mut smp_access_verdict,
) -> Result<()> {
    // SAFETY: null or a struct of the size it states.
    let out = if out.is_null() { None } else { Some(unsafe { Out::new(out, "out") }?) };
    let kind = AccessKind::from_number(access)
        .ok_or_else(|| invalid(format_args!("access: {access} is not one of SMP_ACCESS_...")))?;
    let verdict = smp_core::pool::access::note(device.id(), ptr.addr() as u64, size, stream.id(), kind)?;
    if let Some(out) = out {
        out.write(translate(&verdict));
    }
    Ok(())
}

fn translate(verdict: &Verdict) -> smp_access_verdict {
    let faults = verdict.faults.iter().fold(0, |bits, fault| {
        bits | match fault {
            Outcome::Ordered | Outcome::Unproven => 0,
            Outcome::NotOrderedAfterAllocation => SMP_FAULT_BEFORE_ALLOCATION,
            Outcome::UseAfterFree => SMP_FAULT_AFTER_FREE,
            Outcome::RaceWriteWrite | Outcome::RaceReadWrite => SMP_FAULT_RACE,
            Outcome::OutOfBounds => SMP_FAULT_OUT_OF_BOUNDS,
            Outcome::UnknownPointer => SMP_FAULT_UNKNOWN_MEMORY,
        }
    });
    let missing = verdict.other.filter(|_| {
        faults & (SMP_FAULT_BEFORE_ALLOCATION | SMP_FAULT_RACE) != 0 || verdict.faults.contains(&Outcome::Unproven)
    });
    smp_access_verdict {
        struct_size: 0,
        order: match verdict.outcome {
            Outcome::Ordered => SMP_ORDER_PROVED,
            Outcome::Unproven => SMP_ORDER_UNPROVEN,
            _ => SMP_ORDER_REFUTED,
        },
        faults,
        other_access: verdict.other_kind.map_or(0, |kind| kind as u32),
        allocation: smp_allocation::of(verdict.allocation),
        offset: verdict.offset,
        stream_id: verdict.at.stream.0,
        seq: verdict.at.seq,
        missing_stream_id: missing.map_or(u64::MAX, |point| point.stream.0),
        missing_seq: missing.map_or(0, |point| point.seq),
        text: text_field(&verdict.message),
    }
}
