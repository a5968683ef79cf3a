//! Builds the C programs in this folder against the shared library and runs each of their cases in a process of its own,
//! in each mode. A program lists its cases when it is run without arguments.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The shared library that cargo built for this test.
fn library() -> PathBuf {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let built = [deps.join("libsimcuda.so"), deps.join("../libsimcuda.so")];
    let newest =
        built.iter().filter(|path| path.exists()).max_by_key(|path| path.metadata().unwrap().modified().unwrap());
    newest.expect("the shared library is built").clone()
}

/// Builds a program beside a copy of the library that has the name a loader asks for.
fn build(name: &str) -> (PathBuf, PathBuf) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let named = folder.join("libcuda.so.1");
    std::fs::copy(library(), &named).unwrap();
    let program = folder.join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/{name}.c"));
    let flags = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1"];
    let mut compiler = Command::new("cc");
    compiler.args(flags).arg(&source).arg(&named).args(["-lpthread", "-ldl", "-o"]).arg(&program);
    assert!(compiler.status().unwrap().success(), "{name}.c does not build");
    (program, folder)
}

/// Runs every case of a program with the same settings.
fn run(name: &str, settings: &[(&str, &str)]) {
    run_where(name, settings, |_| true);
}

fn run_where(name: &str, settings: &[(&str, &str)], wanted: impl Fn(&str) -> bool) {
    let (program, folder) = build(name);
    let listed = Command::new(&program).env("LD_LIBRARY_PATH", &folder).output().unwrap();
    let text = String::from_utf8(listed.stdout).unwrap();
    let cases: Vec<&str> = text.lines().filter(|case| wanted(case)).collect();
    assert!(!cases.is_empty());
    let mut failed = Vec::new();
    for case in &cases {
        for (mode, seed) in [("eager", "0"), ("lazy", "0"), ("adversarial", "1"), ("adversarial", "2")] {
            let mut command = Command::new("timeout");
            command.arg("600").arg(&program).arg(case).env("LD_LIBRARY_PATH", &folder).current_dir(&folder);
            command.env("SIMCUDA_MODE", mode).env("SIMCUDA_SEED", seed).envs(settings.iter().copied());
            let run = command.output().unwrap();
            let text = String::from_utf8_lossy(&run.stdout).into_owned();
            if !run.status.success() || text != "ok\n" {
                let errors = String::from_utf8_lossy(&run.stderr).into_owned();
                failed.push(format!("{case} ({mode} {seed}): {} {text}{errors}", run.status));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn contexts() {
    run("contexts", &[("SIMCUDA_DEVICES", "2")]);
}

#[test]
fn mappings() {
    run("mappings", &[("SIMCUDA_DEVICES", "2")]);
}

#[test]
fn captures() {
    run("captures", &[]);
}

#[test]
fn pools() {
    run("pools", &[("SIMCUDA_DEVICES", "2")]);
}

#[test]
fn streams() {
    run("streams", &[]);
}

#[test]
fn copies() {
    run("copies", &[]);
}

#[test]
fn controls() {
    run(
        "controls",
        &[
            ("SIMCUDA_FAIL", "cuMemFree_v2:2:999"),
            ("SIMCUDA_MISSING", "cuMemcpy,cuMemFree_v2"),
            ("SIMCUDA_LOG", "calls.log"),
        ],
    );
}

#[test]
fn settings() {
    for (case, name, value) in [
        ("without_pools_stream_ordered_allocation_is_not_supported", "SIMCUDA_POOLS", "0"),
        ("without_devices_there_is_nothing_to_initialise", "SIMCUDA_DEVICES", "0"),
        ("an_old_driver_has_no_newer_functions", "SIMCUDA_DRIVER_VERSION", "11010"),
        ("memory_is_what_was_set", "SIMCUDA_MEMORY", "64MiB"),
    ] {
        run_where("settings", &[(name, value)], |known| known == case);
    }
}

#[test]
fn threads() {
    run("threads", &[]);
}

#[test]
fn strange_arguments() {
    run("strange", &[("SIMCUDA_MEMORY", "8GiB")]);
}
