//! The CUDA device over the stand-in driver: what the programs of `src/bin` share. The driver is loaded once a process, so
//! each configuration is a process of its own, which the tests in `tests/` start and judge.

pub mod driver;
pub mod program;
pub mod random;
