//! Every trace in `traces/`: it replays, its figures are those of the table in `traces/README.md`, and the recorded ones
//! replay exactly and are what their program records today.

mod trace_common;

#[path = "../examples/record_pipelines.rs"]
mod record_pipelines;

use smp_core::trace::{self, Item, Line, ReplayOptions};
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use trace_common::Folder;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../traces")
}

/// File, events, peak of live bytes, allocations alive at the end.
const VERSION_1: [(&str, u64, u64, u64); 4] = [
    ("bert_infer_fake.csv.gz", 144_598, 388_403_392, 0),
    ("gpt2_train_fake.csv.gz", 18_026, 8_298_392_776, 0),
    ("resnet50_train_fake.csv.gz", 15_022, 5_805_830_548, 0),
    ("gpt_medium_ctx1024_infer_gpu.csv.gz", 2_783, 2_879_401_984, 223),
];
const VERSION_2: [&str; 2] = ["inference_pipeline.smp.gz", "training_overlap.smp.gz"];

#[test]
fn the_folder_holds_these_traces_and_no_others() {
    let found: BTreeSet<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".gz"))
        .collect();
    let known: BTreeSet<String> = VERSION_1.iter().map(|row| row.0).chain(VERSION_2).map(str::to_owned).collect();
    assert_eq!(found, known);
    let table = std::fs::read_to_string(folder().join("README.md")).unwrap();
    for name in known {
        assert!(table.contains(&name), "README.md has no line for {name}");
    }
}

/// Events, peak of live bytes and allocations alive at the end, by a plain walk through the file.
fn walked(path: &Path) -> (u64, u64, u64) {
    let (mut events, mut live, mut peak, mut count) = (0, 0u64, 0, 0u64);
    for record in trace::read(path).unwrap() {
        events += 1;
        match record.unwrap().item {
            Item::Requested { size, .. } => {
                live += size;
                count += 1;
            }
            Item::Returned { size, .. } => {
                live -= size;
                count -= 1;
            }
            Item::Line(_) => unreachable!("version 1"),
        }
        peak = peak.max(live);
    }
    (events, peak, count)
}

#[test]
fn recorded_workloads_have_the_figures_of_the_table() {
    for (name, events, live_peak, alive) in VERSION_1 {
        let path = folder().join(name);
        assert_eq!(walked(&path), (events, live_peak, alive), "{name}");
    }
}

#[test]
fn recorded_workloads_replay_on_every_preset_without_a_failure() {
    for (name, events, live_peak, alive) in VERSION_1 {
        for pools in ["preset(sub-slices)", "preset(cuda)", "preset(exclusive-pages)", "direct()"] {
            let path = folder().join(name);
            let report = trace::replay(&path, ReplayOptions { pools: Some(pools), ..Default::default() }).unwrap();
            assert_eq!((report.version, report.events, report.failures), (1, events, 0), "{name} on {pools}");
            assert_eq!(report.allocs + report.frees, events, "{name} on {pools}");
            assert_eq!(report.live_peak, live_peak, "{name} on {pools}");
            let stats = report.pools[0].stats;
            assert_eq!((stats.live, report.streams), (alive, 1), "{name} on {pools}");
            // One stream: each block is fresh, its own, or a span of both (which counts as observed); nothing is asked or
            // waited for.
            let reuse = stats.reuse;
            assert_eq!((reuse.event, reuse.opportunistic, reuse.internal), (0, 0, 0), "{name} on {pools}");
            assert_eq!(reuse.same_stream + reuse.observed + reuse.fresh, stats.allocs, "{name} on {pools}");
            assert_eq!((stats.progress_queries, stats.internal_waits, stats.unordered_frees), (0, 0, 0));
            // requested ≤ used ≤ reserved, at the peaks too.
            assert!(live_peak <= report.used_peak && report.used_peak <= report.reserved_peak, "{name} on {pools}");
            if pools.contains("cuda") {
                // Blocks are cut in units of 512 B, and pages come in multiples of 32 MiB (rules 4).
                assert!(report.used_peak < live_peak + 512 * stats.allocs);
                assert_eq!(report.reserved_peak % (32 << 20), 0);
            }
        }
    }
}

#[test]
fn multi_stream_traces_replay_exactly() {
    for name in VERSION_2 {
        let report = trace::replay(folder().join(name), ReplayOptions::default()).unwrap();
        assert!(report.verified && report.version == 2 && report.failures == 0, "{name}");
        assert!(report.events > 5000 && report.streams >= 3, "{name}");
        assert_eq!(report.allocs, report.frees, "{name} frees all");
        assert!(report.live_plus_pending_peak > report.live_peak, "{name}: frees wait for work");
        assert!(report.live_peak <= report.used_peak && report.used_peak <= report.reserved_peak, "{name}");
    }
}

#[test]
fn in_multi_stream_traces_a_tenth_of_the_frees_is_on_another_stream_and_all_are_ordered() {
    for name in VERSION_2 {
        let (mut asked, mut of, mut frees, mut across) = (None, HashMap::new(), 0u64, 0u64);
        for record in trace::read(folder().join(name)).unwrap() {
            let Item::Line(line) = record.unwrap().item else { unreachable!("version 2") };
            match line {
                Line::Alloc { stream, .. } => asked = stream,
                Line::Got { allocation, .. } => drop(of.insert(allocation, asked)),
                Line::Free { allocation, stream, .. } => {
                    frees += 1;
                    across += u64::from(of[&allocation] != stream);
                }
                _ => {}
            }
        }
        assert!(across * 10 >= frees, "{name}: {across} of {frees}");
        let report = trace::replay(folder().join(name), ReplayOptions::default()).unwrap();
        assert_eq!(report.pools[0].stats.unordered_frees, 0, "{name} orders every free by an event");
    }
}

#[test]
fn multi_stream_traces_come_to_every_reason_of_reuse() {
    let mut sum = [0; 6];
    for name in VERSION_2 {
        let report = trace::replay(folder().join(name), ReplayOptions::default()).unwrap();
        let reuse = report.pools[0].stats.reuse;
        let counts = [reuse.same_stream, reuse.observed, reuse.event, reuse.opportunistic, reuse.internal, reuse.fresh];
        sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    assert!(sum.iter().all(|&count| count > 0), "{sum:?}");
}

#[test]
fn multi_stream_traces_replay_with_other_pools() {
    for name in VERSION_2 {
        let own = trace::replay(folder().join(name), ReplayOptions::default()).unwrap();
        let options = ReplayOptions { pools: Some("preset(exclusive-pages)"), ..Default::default() };
        let other = trace::replay(folder().join(name), options).unwrap();
        assert_eq!(other.events, own.events, "{name}");
        assert_eq!(other.allocs + other.failures, own.allocs, "{name}");
        assert!(other.live_peak <= own.live_peak && !other.verified, "{name}");
    }
}

/// All lines of a trace.
fn lines(path: &Path) -> Vec<Item> {
    trace::read(path).unwrap().map(|record| record.unwrap().item).collect()
}

#[test]
fn the_multi_stream_traces_are_what_their_program_records() {
    let fresh = Folder::new("shipped");
    record_pipelines::record(&fresh.file("")).unwrap();
    for name in VERSION_2 {
        let (shipped, today) = (lines(&folder().join(name)), lines(&fresh.file(name)));
        let differs = shipped.iter().zip(&today).position(|(a, b)| a != b);
        assert_eq!(differs, None, "{name}: record it again with `cargo run -p smp-core --example record_pipelines`");
        assert_eq!(shipped.len(), today.len(), "{name}");
    }
}
