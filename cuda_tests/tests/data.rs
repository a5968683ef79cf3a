//! Programs that fill and compare every byte, over the stand-in in each of its orders of execution.
//!
//! `SMP_CUDA_SEEDS`: how many seeds of each kind (default: a few, for a quick run); `SMP_CUDA_SEED`: where they begin.

mod common;

#[cfg(feature = "rule-switches")]
use common::text;
use common::{program, succeeds};

const PROGRAMS: &str = env!("CARGO_BIN_EXE_cuda-programs");

fn number(name: &str, default: u64) -> String {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default).to_string()
}

fn clean(mode: &str, seeds: u64, more: &[&str]) -> String {
    let (first, count) = (number("SMP_CUDA_SEED", 1), number("SMP_CUDA_SEEDS", seeds));
    let arguments = [&[mode, first.as_str(), count.as_str()], more].concat();
    let found = succeeds(program(PROGRAMS, &arguments, 3600));
    assert!(found.contains(" bytes compared, 0 wrong;"), "{found}");
    found
}

/// A program that never reuses a block proves nothing about reuse.
fn reused_for_every_reason(found: &str) {
    for reason in ["same stream", "observed", "event", "opportunistic", "internal"] {
        assert!(!found.contains(&format!(" 0 {reason}")), "no block was reused for the reason '{reason}': {found}");
    }
}

#[test]
fn no_byte_is_wrong_in_adversarial_order() {
    reused_for_every_reason(&clean("adversarial", 80, &[]));
}

#[test]
fn no_byte_is_wrong_in_lazy_order() {
    reused_for_every_reason(&clean("lazy", 32, &[]));
}

#[test]
fn no_byte_is_wrong_in_eager_order() {
    clean("eager", 32, &[]);
}

#[test]
fn what_was_recorded_on_the_cuda_device_replays_on_the_model_device_to_the_same_lines_and_figures() {
    for mode in ["adversarial", "lazy", "eager"] {
        let found = clean(mode, 32, &["--replay"]);
        assert!(!found.contains(" 0 calls replayed"), "{found}");
    }
}

/// With one rule turned off, some seed's bytes are wrong. The setup named makes the broken reuse likely.
#[cfg(feature = "rule-switches")]
fn caught(rule: &str, setup: &str) {
    let mut command = program(PROGRAMS, &["adversarial", "1", "60", "--setup", setup], 600);
    let output = command.env("SMP_RULE_OFF", rule).output().unwrap();
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1), "{rule} off: {}\n{text}", output.status);
    assert!(text.contains(" bytes of the block of pattern "), "{rule} off, and no byte is wrong: {text}");
}

#[cfg(feature = "rule-switches")]
#[test]
fn a_free_of_another_stream_taken_for_ones_own_shows_as_wrong_bytes() {
    caught("cuda-same-stream", "capped slices");
}

#[cfg(feature = "rule-switches")]
#[test]
fn a_free_observed_without_a_synchronise_shows_as_wrong_bytes() {
    caught("cuda-observed", "direct and exclusive");
}

#[cfg(feature = "rule-switches")]
#[test]
fn an_event_taken_to_cover_what_came_after_it_shows_as_wrong_bytes() {
    caught("cuda-event", "cuda");
}

#[cfg(feature = "rule-switches")]
#[test]
fn a_free_taken_for_executed_without_asking_shows_as_wrong_bytes() {
    caught("cuda-executed", "capped slices");
}

#[cfg(feature = "rule-switches")]
#[test]
fn a_policy_3_reuse_without_the_wait_shows_as_wrong_bytes() {
    caught("cuda-wait", "mapped");
}

#[cfg(feature = "rule-switches")]
#[test]
fn an_added_user_who_is_not_waited_for_shows_as_wrong_bytes() {
    caught("added-users", "capped slices");
}
