//! A million calls with wild handles, pointers, sizes and structs, the same ones in every run.
//!
//! `SMP_WILD_SEED` and `SMP_WILD_CALLS` choose another run; a failure names the seed it happened with.

mod common;

use common::header::function_names;
use common::wild::{Source, World};
use std::collections::BTreeSet;

/// SplitMix64: small, and every seed is good.
struct Seeded(u64);

impl Source for Seeded {
    fn next(&mut self) -> Option<u64> {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some(z ^ (z >> 31))
    }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{variable}={text}")))
}

/// The functions of the header that take handles. What PyTorch calls takes raw pointers and device numbers instead.
fn wild_names() -> BTreeSet<String> {
    let all = function_names(include_str!("../include/smp.h"));
    all.into_iter().filter(|name| !name.starts_with("smp_torch_")).collect()
}

#[test]
fn any_handle_at_any_time_gets_an_error_and_changes_nothing() {
    let seed = number("SMP_WILD_SEED", 1);
    let calls = number("SMP_WILD_CALLS", 1_000_000);
    println!("SMP_WILD_SEED={seed} SMP_WILD_CALLS={calls}");
    let scratch = std::env::temp_dir().join(format!("smp-wild-{}.trace", std::process::id()));
    let mut world = World::new(Seeded(seed), scratch);
    for call in 0..calls {
        assert!(world.step(), "call {call}: a seed never runs dry");
    }
    let (called, statuses, compared) = (world.calls.clone(), world.statuses.clone(), world.compared);
    let replayed = world.replayed;
    world.end();

    println!("statuses {statuses:?}; {compared} errors compared; {replayed} recordings replayed");
    if calls >= 1_000_000 {
        let declared = wild_names();
        let called: BTreeSet<String> = called.keys().map(|name| name.to_string()).collect();
        assert_eq!(called, declared, "every function of the header is called");
        assert!(replayed > 20, "only {replayed} recordings were replayed");
        let successes = statuses[&0];
        assert!(successes > calls * 2 / 5, "only {successes} calls got past their checks");
        assert!(compared > calls / 100, "only {compared} errors had figures compared");
    }
}

#[test]
fn the_wild_calls_cover_the_whole_header() {
    let known: BTreeSet<String> = World::<Seeded>::functions().map(str::to_string).collect();
    assert_eq!(known, wild_names());
}
