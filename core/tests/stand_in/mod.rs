//! The stand-in driver, for tests of the CUDA device.

use std::path::PathBuf;
use std::process::Command;

/// The stand-in, built beside this test if it is not there.
pub fn driver() -> PathBuf {
    let deps = std::env::current_exe().expect("this test has a path");
    let folder = deps.parent().and_then(|deps| deps.parent()).expect("target/PROFILE/deps/TEST").to_owned();
    let library = folder.join("libsimcuda.so");
    if !library.exists() {
        let profile = if folder.ends_with("release") { "release" } else { "dev" };
        let built =
            Command::new(env!("CARGO")).args(["build", "--quiet", "--profile", profile, "-p", "simcuda"]).status();
        assert!(built.is_ok_and(|status| status.success()), "the stand-in driver builds");
    }
    assert!(library.exists(), "{} is there", library.display());
    library
}
