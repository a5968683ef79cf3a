//! Allocations: making, freeing, asking about, and finding them by pointer.
//!
//! `smp_alloc_async` and `smp_free_async` are the hot path: beyond the core's work they check one pointer, and what most calls
//! need is a function without calls.

use crate::boundary::{
    Attempt, Out, answer, attempt, flags, frequent, invalid, null, read, reserved, sized, text, text_field,
};
use crate::handle::{Handle, per_thread, smp_allocation, smp_device, smp_pool, smp_stream};
use crate::status::{remember, smp_status};
use smp_core::pool::{self, AllocOptions, Left, LeftFree, LeftRecent, Order, Reason};
use smp_core::{AllocationId, Result, Status, StreamId};
use std::ffi::{c_char, c_void};
use std::ptr;

/// Served by a block freed on the same stream.
pub const SMP_REASON_SAME_STREAM: u32 = 0;
/// Served by a block whose free the host has observed.
pub const SMP_REASON_OBSERVED: u32 = 1;
/// Served by a block whose free precedes by dependency (policy 1).
pub const SMP_REASON_EVENT: u32 = 2;
/// Served by a block whose free had executed (policy 2).
pub const SMP_REASON_OPPORTUNISTIC: u32 = 3;
/// Served by a block whose free the stream was made to wait for (policy 3).
pub const SMP_REASON_INTERNAL: u32 = 4;
/// Served by memory never used before.
pub const SMP_REASON_FRESH: u32 = 5;

/// The longest name of an allocation, bytes without the NUL.
pub const SMP_NAME_MAX: u32 = 63;

/// What to allocate. Start from SMP_ALLOC_DESC_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct smp_alloc_desc {
    /// Set by SMP_ALLOC_DESC_INIT.
    pub struct_size: u32,
    /// Zero.
    pub flags: u32,
    /// Bytes; 0 gives a distinct block of one alignment unit.
    pub size: u64,
    /// A power of two up to the device's page granularity; 0: the device's alignment.
    pub alignment: u64,
    /// The stream; must be null in smp_alloc_ex.
    pub stream: smp_stream,
    /// Null, or at most SMP_NAME_MAX bytes of UTF-8; copied.
    pub name: *const c_char,
    /// Zero.
    pub reserved: [u64; 4],
}

/// What is known of a live allocation. Start from SMP_ALLOCATION_INFO_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct smp_allocation_info {
    /// Set by SMP_ALLOCATION_INFO_INIT.
    pub struct_size: u32,
    /// The entry of the pool that served it.
    pub entry: u32,
    /// SMP_REASON_...: why this block could serve.
    pub reason: u32,
    /// 1 if made by smp_alloc, which belongs to no stream; else 0.
    pub host_ordered: u32,
    /// The model address: stable, unique, the same on every device.
    pub address: u64,
    /// What smp_allocation_ptr gives.
    pub pointer: *mut c_void,
    /// The CUdeviceptr on the CUDA device, the host address with host backing, else 0.
    pub device_pointer: u64,
    /// Bytes asked for.
    pub requested: u64,
    /// The model address where its block begins; below `address` only if a larger alignment was asked for.
    pub block_address: u64,
    /// Bytes of its block.
    pub block_size: u64,
    /// Which stream of the device, in order of creation; 0 is the legacy default stream.
    pub stream_id: u64,
    /// Its place in that stream; 0 if host-ordered.
    pub ready_seq: u64,
    /// The stream's handle: null for the legacy default stream, if host-ordered, and once the stream has been
    /// destroyed. A thread's default stream has a handle of its own on the model device, and is SMP_STREAM_PER_THREAD on CUDA,
    /// which means it on that thread only.
    pub stream: smp_stream,
    /// The pool, which may be destroyed already.
    pub pool: smp_pool,
    /// The device, which may be closed already.
    pub device: smp_device,
    /// Its name, empty if it has none.
    pub name: [c_char; 64],
}

sized!(smp_alloc_desc, "smp_alloc_desc", 72);
sized!(smp_allocation_info, "smp_allocation_info", 168);

/// Allocates `size` bytes in the order of `stream`: usable by work submitted to it from now on, and elsewhere only where
/// ordered after this point.
///
/// `size`: bytes; 0 gives a distinct block. `out`: not null; set to null on failure. The caller owns the allocation and
/// gives it back with smp_free_async or smp_free.
/// Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_WRONG_DEVICE for pool and stream;
/// SMP_ERROR_OUT_OF_MEMORY, SMP_ERROR_CAPACITY_EXCEEDED, SMP_ERROR_SIZE_NOT_ACCEPTED; SMP_ERROR_NOT_PERMITTED inside this
/// pool's out-of-memory callback; SMP_ERROR_INVALID_VALUE if `out` is null.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_alloc_async(
    pool: smp_pool,
    size: u64,
    stream: smp_stream,
    out: *mut smp_allocation,
) -> smp_status {
    if out.is_null() {
        return refuse_null_out();
    }
    // SAFETY: not null; the caller's to write.
    unsafe { allocate_quick(pool, size, stream, out, || pool::alloc_quick(pool.id(), size, stream.id())) }
}

/// smp_alloc_async as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_alloc_async_ptsz(
    pool: smp_pool,
    size: u64,
    stream: smp_stream,
    out: *mut smp_allocation,
) -> smp_status {
    // SAFETY: `out` is null or the caller's to write.
    unsafe { allocate(out, || pool::alloc_async(pool.id(), size, per_thread(stream).id())) }
}

/// As smp_alloc_async, with an alignment and a name.
///
/// `desc`: not null; read during the call only. `out`: not null; set to null on failure.
/// Errors: as smp_alloc_async; SMP_ERROR_INVALID_VALUE also for a bad struct_size, flag, alignment or name.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_alloc_async_ex(
    pool: smp_pool,
    desc: *const smp_alloc_desc,
    out: *mut smp_allocation,
) -> smp_status {
    // SAFETY: both pointers are null or the caller's, as documented.
    unsafe { allocate(out, || allocate_ex(pool, desc, |stream| stream)) }
}

/// smp_alloc_async_ex as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_alloc_async_ex_ptsz(
    pool: smp_pool,
    desc: *const smp_alloc_desc,
    out: *mut smp_allocation,
) -> smp_status {
    // SAFETY: both pointers are null or the caller's, as documented.
    unsafe { allocate(out, || allocate_ex(pool, desc, per_thread)) }
}

/// Allocates in host order: usable at once from any stream, so it reuses only what the host has observed to be free.
///
/// `size`: bytes; 0 gives a distinct block, but is SMP_ERROR_INVALID_VALUE in the cuda preset, `like(cuda)` and a pool of cuda entries
/// alone, as the driver's is.
/// `out`: not null; set to null on failure. Errors: as smp_alloc_async.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_alloc(pool: smp_pool, size: u64, out: *mut smp_allocation) -> smp_status {
    // SAFETY: `out` is null or the caller's to write.
    unsafe { allocate(out, || pool::alloc(pool.id(), size, &AllocOptions::default())) }
}

/// As smp_alloc, with an alignment and a name.
///
/// `desc`: not null; its stream must be null; read during the call only. `out`: not null; set to null on failure.
/// Errors: as smp_alloc; SMP_ERROR_INVALID_VALUE also for a bad struct_size, flag, alignment, name or a stream.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_alloc_ex(
    pool: smp_pool,
    desc: *const smp_alloc_desc,
    out: *mut smp_allocation,
) -> smp_status {
    // SAFETY: both pointers are null or the caller's, as documented.
    unsafe {
        allocate(out, || {
            let desc = read_desc(desc)?;
            if !desc.stream.is_null() {
                return Err(invalid("desc->stream must be null: a host-ordered allocation belongs to no stream"));
            }
            pool::alloc(pool.id(), desc.size, &options(&desc)?)
        })
    }
}

/// Frees an allocation in the order of `stream`, which may be another than it was allocated on: all its uses must be
/// ordered before this point. Its bytes may serve work ordered after this point and after every added user.
///
/// On another stream that is not ordered after the allocation the free succeeds, is counted (unordered_frees) and logged.
/// Errors: SMP_ERROR_INVALID_HANDLE; SMP_ERROR_FREED if it was freed before; SMP_ERROR_DESTROYED, SMP_ERROR_WRONG_DEVICE
/// for the stream.
#[unsafe(no_mangle)]
pub extern "C" fn smp_free_async(allocation: smp_allocation, stream: smp_stream) -> smp_status {
    free_quick(allocation, stream, || pool::free_quick(allocation.id(), stream.id()))
}

/// smp_free_async as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
#[unsafe(no_mangle)]
pub extern "C" fn smp_free_async_ptsz(allocation: smp_allocation, stream: smp_stream) -> smp_status {
    frequent(|| pool::free_async(allocation.id(), per_thread(stream).id()))
}

/// Frees an allocation in host order: after everything submitted to the device so far, on whatever stream.
///
/// Errors: SMP_ERROR_INVALID_HANDLE; SMP_ERROR_FREED if it was freed before.
#[unsafe(no_mangle)]
pub extern "C" fn smp_free(allocation: smp_allocation) -> smp_status {
    frequent(|| pool::free(allocation.id()))
}

/// As smp_alloc_async, giving the pointer. Raw pointers cannot carry the handles' promise once their memory is reused.
///
/// `out`: not null; set to null on failure: the device pointer on the CUDA device, the host address with host backing,
/// else the model address, which must not be accessed. Freed with smp_free_ptr_async. Errors: as smp_alloc_async.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_alloc_ptr_async(
    pool: smp_pool,
    size: u64,
    stream: smp_stream,
    out: *mut *mut c_void,
) -> smp_status {
    // SAFETY: `out` is null or the caller's to write.
    unsafe { allocate_ptr(pool, size, stream, out) }
}

/// smp_alloc_ptr_async as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_alloc_ptr_async_ptsz(
    pool: smp_pool,
    size: u64,
    stream: smp_stream,
    out: *mut *mut c_void,
) -> smp_status {
    // SAFETY: `out` is null or the caller's to write.
    unsafe { allocate_ptr(pool, size, per_thread(stream), out) }
}

/// As smp_free_async, by pointer: the model address, or what smp_alloc_ptr_async gave. Null is freed by doing nothing.
///
/// Errors: SMP_ERROR_INVALID_VALUE if `ptr` is not the start of a live allocation of this device; else as
/// smp_free_async.
#[unsafe(no_mangle)]
pub extern "C" fn smp_free_ptr_async(device: smp_device, ptr: *mut c_void, stream: smp_stream) -> smp_status {
    frequent(|| free_ptr(device, ptr, stream))
}

/// smp_free_ptr_async as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
#[unsafe(no_mangle)]
pub extern "C" fn smp_free_ptr_async_ptsz(device: smp_device, ptr: *mut c_void, stream: smp_stream) -> smp_status {
    frequent(|| free_ptr(device, ptr, per_thread(stream)))
}

/// As smp_free, by pointer: the model address, or what an allocation's pointer is. Null is freed by doing nothing.
///
/// Errors: SMP_ERROR_INVALID_VALUE if `ptr` is not the start of a live allocation of this device; else as smp_free.
#[unsafe(no_mangle)]
pub extern "C" fn smp_free_ptr(device: smp_device, ptr: *mut c_void) -> smp_status {
    frequent(|| match starting_at(device, ptr)? {
        Some(allocation) => pool::free(allocation),
        None => Ok(()),
    })
}

/// The pointer of a live allocation: the device pointer on the CUDA device, the host address with host backing, else the
/// model address, which must not be accessed. Null if the handle is invalid or freed. Cannot fail otherwise.
#[unsafe(no_mangle)]
pub extern "C" fn smp_allocation_ptr(allocation: smp_allocation) -> *mut c_void {
    let mut pointer = 0;
    match frequent(|| {
        pointer = pool::pointer(allocation.id());
        Ok(())
    }) {
        smp_status::SMP_SUCCESS => ptr::with_exposed_provenance_mut(pointer as usize),
        _ => ptr::null_mut(),
    }
}

/// Tells about a live allocation.
///
/// `out`: not null; struct_size set. Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_FREED, SMP_ERROR_INVALID_VALUE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_allocation_get_info(
    allocation: smp_allocation,
    out: *mut smp_allocation_info,
) -> smp_status {
    frequent(|| {
        // SAFETY: null or a struct of the size it states.
        let out = unsafe { Out::new(out, "out") }?;
        let info = pool::info(allocation.id())?;
        out.write(smp_allocation_info {
            struct_size: 0,
            entry: info.entry,
            reason: match info.reason {
                Reason::SameStream => SMP_REASON_SAME_STREAM,
                Reason::Observed => SMP_REASON_OBSERVED,
                Reason::Event => SMP_REASON_EVENT,
                Reason::Opportunistic => SMP_REASON_OPPORTUNISTIC,
                Reason::Internal => SMP_REASON_INTERNAL,
                Reason::Fresh => SMP_REASON_FRESH,
            },
            host_ordered: info.host_ordered.into(),
            address: info.address,
            pointer: ptr::with_exposed_provenance_mut(info.pointer as usize),
            device_pointer: info.device_pointer,
            requested: info.requested,
            block_address: info.block_address,
            block_size: info.block_size,
            stream_id: info.stream_id.0,
            ready_seq: info.ready_seq,
            stream: smp_stream::of(info.stream),
            pool: smp_pool::of(info.pool),
            device: smp_device::of(info.device),
            name: text_field(info.name.as_deref().unwrap_or("")),
        });
        Ok(())
    })
}

/// Finds the live allocation that holds an address: of any byte that was asked for, by model address, device pointer or host
/// address. What its block is larger by is nobody's; of a zero-sized allocation its own address is found.
///
/// `out`, `offset`: each may be null; `offset` is how many bytes `ptr` lies past the allocation's start.
/// Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED for the device; SMP_ERROR_INVALID_VALUE if no live allocation of
/// the device holds the address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_allocation_find(
    device: smp_device,
    ptr: *const c_void,
    out: *mut smp_allocation,
    offset: *mut u64,
) -> smp_status {
    frequent(|| {
        let (found, at) = pool::find(device.id(), ptr.addr() as u64)?;
        // SAFETY: each is null or the caller's to write.
        unsafe {
            if !out.is_null() {
                out.write(smp_allocation::of(found));
            }
            if !offset.is_null() {
                offset.write(at);
            }
        }
        Ok(())
    })
}

/// Tells that `stream` uses the allocation too: after its free it is reusable only past the point that stream has reached
/// at the free.
///
/// Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_FREED; SMP_ERROR_DESTROYED, SMP_ERROR_WRONG_DEVICE for the stream.
#[unsafe(no_mangle)]
pub extern "C" fn smp_allocation_add_user(allocation: smp_allocation, stream: smp_stream) -> smp_status {
    frequent(|| pool::add_user(allocation.id(), stream.id()))
}

/// smp_allocation_add_user as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
#[unsafe(no_mangle)]
pub extern "C" fn smp_allocation_add_user_ptsz(allocation: smp_allocation, stream: smp_stream) -> smp_status {
    frequent(|| pool::add_user(allocation.id(), per_thread(stream).id()))
}

/// Has the allocation executed on its own stream?
///
/// SMP_SUCCESS: yes, as always in host order. SMP_NOT_READY: not yet. Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_FREED.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn smp_is_ready(allocation: smp_allocation) -> smp_status {
    answer(|| pool::readiness(allocation.id()).map(status_of))
}

/// Is work submitted to `consumer` now ordered after the allocation?
///
/// SMP_SUCCESS: proved. SMP_NOT_READY: refuted. SMP_UNPROVEN: not visible to the library; never on the model device.
/// Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_FREED; SMP_ERROR_DESTROYED, SMP_ERROR_WRONG_DEVICE for the stream.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn smp_is_ready_on(allocation: smp_allocation, consumer: smp_stream) -> smp_status {
    answer(|| is_ready_on(allocation, consumer))
}

/// smp_is_ready_on as seen by callers compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn smp_is_ready_on_ptsz(allocation: smp_allocation, consumer: smp_stream) -> smp_status {
    answer(|| is_ready_on(allocation, per_thread(consumer)))
}

/// smp_alloc_async by its short way `quick`.
///
/// # Safety
/// `out` is the caller's to write.
#[inline(always)]
unsafe fn allocate_quick(
    pool: smp_pool,
    size: u64,
    stream: smp_stream,
    out: *mut smp_allocation,
    quick: impl FnOnce() -> std::result::Result<AllocationId, Left>,
) -> smp_status {
    match attempt(quick) {
        Ok(allocation) => {
            // SAFETY: as promised.
            unsafe { out.write(smp_allocation::of(allocation)) };
            smp_status::SMP_SUCCESS
        }
        // SAFETY: as above.
        Err(Attempt::Missed(Left::Shared)) => unsafe { allocate_shared(pool, size, stream, out) },
        // SAFETY: as above.
        Err(Attempt::Missed(Left::ToCarve(record, locked))) => unsafe { carve(pool, size, out, record, locked) },
        // SAFETY: as above.
        Err(Attempt::Missed(Left::Elsewhere(record, locked))) => unsafe { recent(pool, size, out, record, locked) },
        // SAFETY: as above.
        Err(Attempt::Missed(Left::Missed(missed))) => unsafe { allocate_missed(pool, size, stream, out, missed) },
        Err(Attempt::Failed(status)) => {
            // SAFETY: as above.
            unsafe { out.write(ptr::null_mut()) };
            status
        }
    }
}

/// The rest of smp_alloc_async. Apart, and of C's calling convention, which lets no panic pass: so the call is a jump, and
/// what most calls do needs no stack.
///
/// # Safety
/// `out` is the caller's to write.
#[inline(never)]
#[allow(improper_ctypes_definitions)] // Rust calls it, too
unsafe extern "C" fn allocate_missed(
    pool: smp_pool,
    size: u64,
    stream: smp_stream,
    out: *mut smp_allocation,
    missed: pool::Missed,
) -> smp_status {
    // SAFETY: as promised.
    unsafe { allocate(out, || pool::alloc_missed(missed, pool.id(), size, stream.id())) }
}

/// The same, where the stream's lock is not biased to this thread.
///
/// # Safety
/// `out` is the caller's to write.
#[inline(never)]
unsafe extern "C" fn allocate_shared(
    pool: smp_pool,
    size: u64,
    stream: smp_stream,
    out: *mut smp_allocation,
) -> smp_status {
    // SAFETY: as promised.
    unsafe { allocate_quick(pool, size, stream, out, || pool::alloc_quick_shared(pool.id(), size, stream.id())) }
}

/// The same, where only a block is to be cut.
///
/// # Safety
/// `out` is the caller's to write.
#[inline(never)]
#[allow(improper_ctypes_definitions)]
unsafe extern "C" fn carve(
    pool: smp_pool,
    size: u64,
    out: *mut smp_allocation,
    record: pool::Record,
    locked: pool::Locked,
) -> smp_status {
    // SAFETY: as promised.
    unsafe { allocate_or_miss(pool, size, out, || pool::carve(record, locked, pool.id(), size)) }
}

/// The same, where a recent block of another entry than the first may serve.
///
/// # Safety
/// `out` is the caller's to write.
#[inline(never)]
#[allow(improper_ctypes_definitions)]
unsafe extern "C" fn recent(
    pool: smp_pool,
    size: u64,
    out: *mut smp_allocation,
    record: pool::Record,
    locked: pool::Locked,
) -> smp_status {
    match attempt(|| pool::alloc_recent(record, locked, pool.id(), size)) {
        Ok(allocation) => {
            // SAFETY: as promised.
            unsafe { out.write(smp_allocation::of(allocation)) };
            smp_status::SMP_SUCCESS
        }
        // SAFETY: as promised.
        Err(Attempt::Missed((record, locked))) => unsafe { elsewhere(pool, size, out, record, locked) },
        Err(Attempt::Failed(status)) => {
            // SAFETY: as promised.
            unsafe { out.write(ptr::null_mut()) };
            status
        }
    }
}

/// The same, in other entries than the quick way serves.
///
/// # Safety
/// `out` is the caller's to write.
#[inline(never)]
#[allow(improper_ctypes_definitions)]
unsafe extern "C" fn elsewhere(
    pool: smp_pool,
    size: u64,
    out: *mut smp_allocation,
    record: pool::Record,
    locked: pool::Locked,
) -> smp_status {
    // SAFETY: as promised.
    unsafe { allocate_or_miss(pool, size, out, || pool::alloc_elsewhere(record, locked, pool.id(), size)) }
}

/// # Safety
/// `out` is the caller's to write.
#[inline(always)]
unsafe fn allocate_or_miss(
    pool: smp_pool,
    size: u64,
    out: *mut smp_allocation,
    body: impl FnOnce() -> std::result::Result<AllocationId, (pool::Missed, StreamId)>,
) -> smp_status {
    match attempt(body) {
        Ok(allocation) => {
            // SAFETY: as promised.
            unsafe { out.write(smp_allocation::of(allocation)) };
            smp_status::SMP_SUCCESS
        }
        // SAFETY: as promised.
        Err(Attempt::Missed((missed, stream))) => unsafe {
            allocate_missed(pool, size, smp_stream::of(stream), out, missed)
        },
        Err(Attempt::Failed(status)) => {
            // SAFETY: as promised.
            unsafe { out.write(ptr::null_mut()) };
            status
        }
    }
}

/// The rest of smp_free_async, as the former.
#[inline(never)]
#[allow(improper_ctypes_definitions)]
extern "C" fn free_recent(
    allocation: smp_allocation,
    record: pool::Record,
    locked: pool::Locked,
    live: pool::Live,
) -> smp_status {
    match attempt(|| pool::free_recent(record, locked, live, allocation.id())) {
        Ok(()) => smp_status::SMP_SUCCESS,
        Err(Attempt::Missed(LeftRecent::Emptied(locked, live))) => free_emptied(locked, live),
        Err(Attempt::Missed(LeftRecent::Missed(missed, stream))) => {
            free_missed(allocation, smp_stream::of(stream), missed)
        }
        Err(Attempt::Failed(status)) => status,
    }
}

/// The end of that, where a page may be empty.
#[inline(never)]
#[allow(improper_ctypes_definitions)]
extern "C" fn free_emptied(locked: pool::Locked, live: pool::Live) -> smp_status {
    frequent(|| {
        pool::free_emptied(locked, live);
        Ok(())
    })
}

/// The same, where the block is a whole page.
#[inline(never)]
#[allow(improper_ctypes_definitions)]
extern "C" fn free_page(
    allocation: smp_allocation,
    record: pool::Record,
    locked: pool::Locked,
    live: pool::Live,
) -> smp_status {
    match attempt(|| pool::free_page(record, locked, live, allocation.id())) {
        Ok(()) => smp_status::SMP_SUCCESS,
        Err(Attempt::Missed((missed, stream))) => free_missed(allocation, smp_stream::of(stream), missed),
        Err(Attempt::Failed(status)) => status,
    }
}

/// The rest of what both miss.
#[inline(never)]
#[allow(improper_ctypes_definitions)]
extern "C" fn free_missed(allocation: smp_allocation, stream: smp_stream, missed: pool::Missed) -> smp_status {
    frequent(|| pool::free_missed(missed, allocation.id(), stream.id()))
}

/// smp_free_async by its short way `quick`.
#[inline(always)]
fn free_quick(
    allocation: smp_allocation,
    stream: smp_stream,
    quick: impl FnOnce() -> std::result::Result<(), LeftFree>,
) -> smp_status {
    match attempt(quick) {
        Ok(()) => smp_status::SMP_SUCCESS,
        Err(Attempt::Missed(LeftFree::Shared)) => free_shared(allocation, stream),
        Err(Attempt::Missed(LeftFree::Recent(record, locked, live))) => free_recent(allocation, record, locked, live),
        Err(Attempt::Missed(LeftFree::Page(record, locked, live))) => free_page(allocation, record, locked, live),
        Err(Attempt::Missed(LeftFree::Missed(missed))) => free_missed(allocation, stream, missed),
        Err(Attempt::Failed(status)) => status,
    }
}

/// The rest of smp_free_async where the stream's lock is not biased to this thread.
#[inline(never)]
extern "C" fn free_shared(allocation: smp_allocation, stream: smp_stream) -> smp_status {
    free_quick(allocation, stream, || pool::free_quick_shared(allocation.id(), stream.id()))
}

#[cold]
#[inline(never)]
extern "C" fn refuse_null_out() -> smp_status {
    remember(&null("out"))
}

/// Runs an allocation and writes its handle, or null as CUDA does.
///
/// # Safety
/// `out` is null or writable.
#[inline(always)]
unsafe fn allocate(out: *mut smp_allocation, body: impl FnOnce() -> Result<AllocationId>) -> smp_status {
    if out.is_null() {
        return refuse_null_out();
    }
    let mut allocation = ptr::null_mut();
    let status = frequent(|| {
        allocation = smp_allocation::of(body()?);
        Ok(())
    });
    // SAFETY: checked for null above; the caller's to write.
    unsafe { out.write(allocation) };
    status
}

/// # Safety
/// `desc` is null or points to a struct of the size it states.
unsafe fn allocate_ex(
    pool: smp_pool,
    desc: *const smp_alloc_desc,
    mean: impl FnOnce(smp_stream) -> smp_stream,
) -> Result<AllocationId> {
    // SAFETY: as promised.
    unsafe {
        let desc = read_desc(desc)?;
        pool::alloc_async_with(pool.id(), desc.size, mean(desc.stream).id(), &options(&desc)?)
    }
}

/// # Safety
/// `desc` is null or points to a struct of the size it states.
unsafe fn read_desc(desc: *const smp_alloc_desc) -> Result<smp_alloc_desc> {
    // SAFETY: as promised.
    let desc = unsafe { read(desc, "desc") }?;
    flags(desc.flags, 0, "desc->flags")?;
    reserved(&desc.reserved, "desc")?;
    Ok(desc)
}

/// # Safety
/// The name is null or NUL-terminated.
unsafe fn options(desc: &smp_alloc_desc) -> Result<AllocOptions<'_>> {
    let name = match desc.name.is_null() {
        true => None,
        // SAFETY: not null, so the caller's NUL-terminated text.
        false => Some(unsafe { text(desc.name, "desc->name") }?),
    };
    let length = name.map_or(0, str::len);
    if length > SMP_NAME_MAX as usize {
        return Err(invalid(format_args!("desc->name has {length} bytes; at most {SMP_NAME_MAX} fit")));
    }
    Ok(AllocOptions { alignment: desc.alignment, name })
}

/// # Safety
/// `out` is null or writable.
unsafe fn allocate_ptr(pool: smp_pool, size: u64, stream: smp_stream, out: *mut *mut c_void) -> smp_status {
    if out.is_null() {
        return refuse_null_out();
    }
    let mut pointer = ptr::null_mut();
    let status = frequent(|| {
        let allocation = pool::alloc_async(pool.id(), size, stream.id())?;
        pointer = ptr::with_exposed_provenance_mut(pool::pointer(allocation) as usize);
        Ok(())
    });
    // SAFETY: checked for null above; the caller's to write.
    unsafe { out.write(pointer) };
    status
}

/// The live allocation that starts at `pointer`; none for null, as cuMemFree(0).
fn starting_at(device: smp_device, pointer: *mut c_void) -> Result<Option<AllocationId>> {
    if pointer.is_null() {
        // The handle is still checked, so that a wrong one does not hide behind a null pointer.
        return smp_core::device::info(device.id()).map(|_| None);
    }
    match pool::find(device.id(), pointer.addr() as u64)? {
        (allocation, 0) => Ok(Some(allocation)),
        (_, offset) => {
            Err(invalid(format_args!("{pointer:p} lies {offset} bytes inside an allocation; a free takes its start")))
        }
    }
}

fn free_ptr(device: smp_device, pointer: *mut c_void, stream: smp_stream) -> Result<()> {
    match starting_at(device, pointer)? {
        Some(allocation) => pool::free_async(allocation, stream.id()),
        // Nor a wrong stream.
        None => smp_core::stream::info(device.id(), stream.id()).map(drop),
    }
}

fn is_ready_on(allocation: smp_allocation, consumer: smp_stream) -> Result<Status> {
    pool::is_ready_on(allocation.id(), consumer.id()).map(status_of)
}

fn status_of(known: Order) -> Status {
    match known {
        Order::Proved => Status::Success,
        Order::Refuted => Status::NotReady,
        Order::Unproven => Status::Unproven,
    }
}
