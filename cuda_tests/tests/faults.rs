//! Every entry point of the driver that the library uses fails in turn: at its first, second and a late use, with
//! out-of-memory, an error without a meaning of its own, and a sticky one. `src/bin/cuda-faults.rs` checks what must hold.

mod common;

use common::{program, succeeds, text};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const FAULTS: &str = env!("CARGO_BIN_EXE_cuda-faults");

#[test]
fn each_entry_point_can_fail_at_any_use_and_leaves_figures_locks_and_the_next_call_right() {
    let counted = succeeds(program(FAULTS, &["--count"], 600));
    let mut cases: Vec<(String, u64, u32)> = Vec::new();
    for line in counted.lines() {
        let (symbol, uses) = line.split_once(' ').unwrap();
        let uses: u64 = uses.parse().unwrap();
        let once = matches!(symbol, "cuInit" | "cuDriverGetVersion");
        assert!(uses >= 3 || once, "the program uses {symbol} {uses} times only");
        for from in [1, 2, (uses * 2 / 3).max(3)] {
            for error in [2, 999, 700] {
                cases.push((symbol.to_owned(), from, error));
            }
        }
    }
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(String, bool, String)>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((symbol, from, error)) = cases.get(next.fetch_add(1, Relaxed)) {
                    let (from, error) = (from.to_string(), error.to_string());
                    let output = program(FAULTS, &[symbol, &from, &error], 600).output().unwrap();
                    let found = text(&output);
                    let fired = output.status.success() && found.contains(" injected 1 fired 1 ");
                    let what = format!("{symbol}, use {from}, error {error}: {}\n{found}", output.status);
                    results.lock().unwrap().push((symbol.clone(), fired, what));
                }
            });
        }
    });
    let results = results.into_inner().unwrap();
    println!("{:36} injected fired", "entry point");
    for line in counted.lines() {
        let (symbol, _) = line.split_once(' ').unwrap();
        let of = results.iter().filter(|result| result.0 == symbol);
        println!("{symbol:36} {:8} {:5}", of.clone().count(), of.filter(|result| result.1).count());
    }
    let failed: Vec<&str> = results.iter().filter(|result| !result.1).map(|result| result.2.as_str()).collect();
    assert!(failed.is_empty(), "{} of {} cases:\n{}", failed.len(), results.len(), failed.join("\n"));
}
