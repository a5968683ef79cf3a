//! Builds `smoke.c` against the shared library and runs it in each mode.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The shared library that cargo built for this test, under the name a loader asks for.
fn library(folder: &Path) -> PathBuf {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let built = [deps.join("libsimcuda.so"), deps.join("../libsimcuda.so")];
    let newest =
        built.iter().filter(|path| path.exists()).max_by_key(|path| path.metadata().unwrap().modified().unwrap());
    let named = folder.join("libcuda.so.1");
    std::fs::copy(newest.expect("the shared library is built"), &named).unwrap();
    named
}

#[test]
fn a_c_program_sees_cudas_codes_order_and_data_in_every_mode() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("smoke");
    std::fs::create_dir_all(&folder).unwrap();
    let library = library(&folder);
    let program = folder.join("smoke");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/smoke.c");
    let flags = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"];
    let built = Command::new("cc").args(flags).arg(&source).arg(&library).arg("-o").arg(&program).status().unwrap();
    assert!(built.success());
    for mode in ["eager", "lazy", "adversarial"] {
        let run = Command::new(&program)
            .env("LD_LIBRARY_PATH", &folder)
            .env("SIMCUDA_MODE", mode)
            .env("SIMCUDA_FAIL", "cuMemFree_v2:2:999")
            .env("SIMCUDA_MISSING", "cuMemcpy")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&run.stdout).into_owned();
        assert_eq!(text, "ok\n", "{mode}: {}", String::from_utf8_lossy(&run.stderr));
    }
}
