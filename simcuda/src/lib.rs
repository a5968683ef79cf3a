//! A stand-in for NVIDIA's driver library: streams with real order, host-backed memory, no GPU.
//!
//! It shares no code with the pool it helps to test: an error in both would hide twice.

#![allow(clippy::missing_errors_doc)]

pub mod api;
pub mod capture;
pub mod code;
pub mod config;
mod executor;
mod ffi;
pub mod machine;
pub mod mapping;
pub mod memory;
pub mod order;
pub mod pool;
pub mod variant;
