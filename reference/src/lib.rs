//! The naive reference model of `docs/placement.md`: what libsmp's core must do, written for obviousness.
//!
//! Plain vectors, linear scans, explicit graphs, no index and no cache of any kind, and no code shared with the core:
//! an error would have to be made twice to stay hidden. It models a whole device with its streams, events and pools.
//! Handles are positions in vectors that only grow; nothing is ever reused. Section numbers in comments are those of
//! `docs/placement.md`. Sizes are bytes.
//!
//! [`program`] holds random programs and what they answer; `tests/agree.rs` drives this model and the core with the same
//! ones.

#![forbid(unsafe_code)]

mod alloc;
mod device;
mod mapped;
mod order;
mod pool;
pub mod program;
mod release;

pub use alloc::OutOfMemory;
pub use device::{Allocation, Device, Options, StreamFigures};
pub use order::Point;
pub use pool::{Config, Entry, Failure, Figures, Reason};
