//! Coverage-guided wild calls: the engine of `tests/wild_handles.rs`, driven by the fuzzer's bytes in place of a seed.
//!
//! Eight bytes are one decision; the program ends with the bytes, and gives everything back.

#![no_main]

#[path = "../../tests/common/mod.rs"]
mod common;

use common::wild::{Source, World};
use libfuzzer_sys::fuzz_target;

struct Bytes<'a>(&'a [u8]);

impl Source for Bytes<'_> {
    fn next(&mut self) -> Option<u64> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*head))
    }
}

fuzz_target!(|bytes: &[u8]| {
    let scratch = std::env::temp_dir().join(format!("smp-fuzz-{}.trace", std::process::id()));
    let mut world = World::new(Bytes(bytes), scratch);
    while world.step() {}
    world.end();
});
