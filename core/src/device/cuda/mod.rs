//! The CUDA device: pages and clocks from the real driver, found at run time.
//!
//! `loader` finds the driver, `ffi` is its functions as a table, `device` is one device on it. The only `unsafe` code of
//! this crate is here, at the driver's boundary.

mod device;
pub(crate) mod ffi;
pub(crate) mod fork;
pub(crate) mod loader;

pub(crate) use device::{CudaDevice, Fence};
pub use device::{CudaOptions, PageSupply};
pub(crate) use ffi::Code;
pub use loader::{Resolver, use_resolver};

/// The driver's functions the library uses, by exported symbol; `true`: it cannot work without it.
pub fn entry_points() -> Vec<(&'static str, bool)> {
    ffi::ENTRY_POINTS.iter().map(|&(symbol, _, _, required)| (symbol, required)).collect()
}
