//! The core of libsmp: a model of CUDA's stream-ordered allocator that decides, above a device that only supplies
//! pages and clocks.
//!
//! The rules are in `docs/placement.md`. Everything is named by handles that may be passed anywhere at any time; a bad
//! one is an error. No function here panics on any argument.

// Only the driver boundary (`device/cuda`), host memory for the model device (`device/host.rs`), the fork notice, the notice of ended
// threads (`runtime/thread.rs`), cancellation (`cancel.rs`), the leaves' lock (`leaf.rs`) and the streams' (`lock.rs`) allow it.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
#[doc(hidden)]
pub mod cancel;
#[doc(hidden)]
pub mod checks;
#[path = "device/mod.rs"]
mod device_source;
pub mod error;
mod few;
mod handle;
#[allow(unsafe_code)]
mod leaf;
#[allow(unsafe_code)]
mod lock;
pub mod log;
#[forbid(unsafe_code)]
mod order;
#[forbid(unsafe_code)]
pub mod pool;
pub mod report;
pub mod rules;
mod runtime;
mod slab;
pub mod trace;

/// Devices: opening, asking, synchronising, closing.
pub mod device {
    pub use crate::device_source::{CudaOptions, DeviceInfo, DeviceKind, ModelOptions, PageSupply, cuda};
    pub use crate::runtime::device::*;
}
pub use runtime::{Act, event, stream};

pub use error::{Error, Result, Status};
pub use handle::{AllocationId, DeviceId, EventId, PoolId, StreamId};
pub use order::{Point, Progress, StreamOrderId, StreamRef};
pub use pool::config::{MemoryPoolConfig, MemorySize, PoolConfig, Preset};
pub use slab::SlotMap;
