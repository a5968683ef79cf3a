//! libsmp under an unchanged CUDA program: `LD_PRELOAD=libsmp_preload.so ./app`.
//!
//! The library takes the place of a few functions of the CUDA driver, wherever the program finds them: linked, through
//! `dlsym`, or through `cuGetProcAddress`. Each is asked of the driver first; only a pointer that is certainly the
//! driver's function of that exact name and version is replaced by ours. Nothing happens before the first such look-up
//! or call: there is no constructor, and nothing of CUDA is needed to load the library.
//!
//! From the bottom up: `switch` (protections that a test build can take out), `setting` (the environment), `driver`
//! (the driver's types and the functions asked of it), `hook` (which functions are replaced, and the look-ups),
//! `ledger` (who holds how much), `entry` (what a hooked call starts with; fork, exit, signals), `context` (which is
//! current, and what goes with it), `pool` (pool mode), `memory`, `order`, `range`, `attribute`, `access` (the hooked
//! calls: who gets memory, what orders work, what an address is, what a pool is set to, what touches memory), `report`.

// The hooks have the driver's names.
#![allow(non_snake_case)]
// A test program exports nothing, so that its own `dlsym` stays libc's; then nothing leads to the hooks.
#![cfg_attr(test, allow(dead_code))]

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("libsmp_preload is for Linux on x86-64 only; build the other packages with --exclude smp-preload");

mod access;
mod attribute;
mod context;
mod dlsym;
mod driver;
mod entry;
mod hook;
mod ledger;
mod memory;
mod order;
mod pool;
mod range;
mod report;
mod setting;
mod switch;
