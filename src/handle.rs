//! The five handle types. They are pointers to incomplete structs in C, so that a compiler tells them apart, and hold
//! encoded values (kind, generation, slot) that nobody dereferences.
//!
//! The header's text for them is in `cbindgen.toml`: the tags of streams and events are CUDA's own, so that
//! `cudaStream_t` passes as it is.

use smp_core::{AllocationId, DeviceId, EventId, PoolId, StreamId};

/// Tag of device handles.
pub enum smp_device_st {}
/// Tag of pool handles.
pub enum smp_pool_st {}
/// Tag of allocation handles.
pub enum smp_allocation_st {}
/// CUDA's tag of stream handles.
pub enum CUstream_st {}
/// CUDA's tag of event handles.
pub enum CUevent_st {}

/// A source of pages and of stream progress.
pub type smp_device = *mut smp_device_st;
/// Pages, and the policy that carves them.
pub type smp_pool = *mut smp_pool_st;
/// The part of a page that serves one allocation.
pub type smp_allocation = *mut smp_allocation_st;
/// A stream.
pub type smp_stream = *mut CUstream_st;
/// An event.
pub type smp_event = *mut CUevent_st;

/// Between a handle type of C and the core's identifier.
pub(crate) trait Handle: Copy {
    /// The core's identifier.
    type Id;
    /// The identifier this handle holds, whatever it is.
    fn id(self) -> Self::Id;
    /// The handle that holds `id`.
    fn of(id: Self::Id) -> Self;
}

macro_rules! handles {
    ($($handle:ident => $id:ident),+ $(,)?) => {$(
        impl Handle for $handle {
            type Id = $id;
            #[inline(always)]
            fn id(self) -> $id {
                $id(self.addr() as u64)
            }
            #[inline(always)]
            fn of(id: $id) -> Self {
                std::ptr::without_provenance_mut(id.0 as usize)
            }
        }
    )+};
}

handles! {
    smp_device => DeviceId,
    smp_pool => PoolId,
    smp_allocation => AllocationId,
    smp_stream => StreamId,
    smp_event => EventId,
}

/// `stream` as a caller compiled for per-thread default streams means it: null is the thread's own.
#[inline(always)]
pub(crate) fn per_thread(stream: smp_stream) -> smp_stream {
    if stream.is_null() { std::ptr::without_provenance_mut(2) } else { stream }
}
