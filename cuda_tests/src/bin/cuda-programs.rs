//! Runs random programs on the CUDA device over the stand-in and compares every byte; with `--replay` also records each and
//! replays it verified on the model device.
//!
//! cuda-programs MODE FIRST_SEED COUNT [--replay] [--setup NAME]    MODE: eager, lazy or adversarial
//!
//! `SMP_CUDA_LIBRARY` names the stand-in's shared library. Prints one line with what was found; 1 if a byte was wrong.

use smp_cuda_tests::driver::{self, ADVERSARIAL, EAGER, LAZY};
use smp_cuda_tests::program::{Landing, Outcome, Run, SETUPS, run};

const USAGE: &str = "cuda-programs MODE FIRST_SEED COUNT [--replay] [--setup NAME]";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let option = |name: &str| arguments.iter().position(|argument| argument == name);
    let number = |index: usize| arguments.get(index).and_then(|text| text.parse::<u64>().ok()).expect(USAGE);
    let mode = match arguments.first().map(String::as_str) {
        Some("eager") => EAGER,
        Some("lazy") => LAZY,
        Some("adversarial") => ADVERSARIAL,
        _ => panic!("{USAGE}"),
    };
    let (first, count) = (number(1), number(2));
    let only = option("--setup").map(|index| arguments.get(index + 1).expect(USAGE).as_str());
    let setups: Vec<_> = SETUPS.iter().filter(|setup| only.is_none_or(|name| name == setup.name)).collect();
    assert!(!setups.is_empty(), "no setup of that name");
    let file = std::env::temp_dir().join(format!("smp-cuda-programs-{}.smp", std::process::id()));
    let trace = option("--replay").map(|_| file.as_path());

    driver::use_primary(0);
    let landing = Landing::new(48 << 20);
    let mut total = Outcome::default();
    for seed in first..first + count {
        let setup = setups[(seed % setups.len() as u64) as usize];
        let steps = 300;
        total.add(&run(&Run { setup, mode, seed, steps, trace }, &landing));
    }
    let _ = std::fs::remove_file(&file);
    let reuse = total.reuse;
    println!(
        "{count} programs, {} bytes compared, {} wrong; reused: {} same stream, {} observed, {} event, {} opportunistic, \
         {} internal; {} fresh, {} refused; {} calls replayed",
        total.bytes,
        total.wrong,
        reuse.same_stream,
        reuse.observed,
        reuse.event,
        reuse.opportunistic,
        reuse.internal,
        reuse.fresh,
        total.refused,
        total.replayed
    );
    if let Some(first) = total.first {
        println!("{first}");
        std::process::exit(1);
    }
}
