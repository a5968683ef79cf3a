//! Starts the programs of this package over the stand-in, each in a process of its own.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A shared library that cargo built for this test.
pub fn library(name: &str) -> PathBuf {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let built = [deps.join(name), deps.join("..").join(name)];
    let newest =
        built.iter().filter(|path| path.exists()).max_by_key(|path| path.metadata().unwrap().modified().unwrap());
    newest.unwrap_or_else(|| panic!("{name} is built")).clone()
}

/// A folder of this test run, empty.
pub fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// A program over the stand-in, ended if it hangs.
pub fn program(path: &str, arguments: &[&str], seconds: u32) -> Command {
    let mut command = Command::new("timeout");
    command.arg(seconds.to_string()).arg(path).args(arguments);
    command.env("SMP_CUDA_LIBRARY", library("libsimcuda.so")).env("RUST_BACKTRACE", "0").env_remove("SMP_RULE_OFF");
    command
}

/// What the program wrote.
pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs it; it must succeed.
#[track_caller]
pub fn succeeds(mut command: Command) -> String {
    let output = command.output().unwrap();
    let text = text(&output);
    assert!(output.status.success(), "{command:?}: {}\n{text}", output.status);
    print!("{text}");
    text
}
