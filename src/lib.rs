//! The C boundary of libsmp: every `smp_*` function, a file per noun.
//!
//! Thin on purpose: validate the arguments, call `smp-core`, translate what it answers. No rule about memory or order
//! lives here. `include/smp.h` is generated from these declarations, so their documentation speaks to C callers.
//!
//! Invariants: no panic crosses a function of this crate; an argument is validated before anything changes; `unsafe`
//! reads and writes only what the caller's pointers promise.

#![allow(non_camel_case_types, reason = "the names are C's")]
#![allow(clippy::missing_safety_doc, reason = "each function documents its pointers for C callers")]

#[cfg(not(target_pointer_width = "64"))]
compile_error!("libsmp's handles are 64-bit values in pointer types");

mod access;
mod allocation;
mod boundary;
mod config;
mod device;
mod event;
mod handle;
mod log;
mod model;
mod note;
mod pool;
mod report;
mod status;
mod stream;
mod torch;
mod trace;
mod version;

pub use access::*;
pub use allocation::*;
pub use config::*;
pub use device::*;
pub use event::*;
pub use handle::{
    CUevent_st, CUstream_st, smp_allocation, smp_allocation_st, smp_device, smp_device_st, smp_event, smp_pool,
    smp_pool_st, smp_stream,
};
pub use log::*;
pub use model::*;
pub use note::*;
pub use pool::*;
pub use report::*;
pub use status::*;
pub use stream::*;
pub use torch::*;
pub use trace::*;
pub use version::*;

/// Rust's name for C's `SMP_NONE`.
pub const NONE: u64 = u64::MAX;
/// Rust's name for C's `SMP_DEFAULT`.
pub const DEFAULT: u64 = u64::MAX - 1;
