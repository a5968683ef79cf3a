//! The core of libsmp: a model of CUDA's stream-ordered allocator that decides, above a device that only supplies
//! pages and clocks.
pub mod error;
