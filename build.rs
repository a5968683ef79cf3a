//! Writes the C header from the Rust declarations and gives the shared library its name.
//!
//! The header goes to `OUT_DIR`; the committed `include/smp.h` is compared with it by `tests/header.rs`, so that a
//! build never changes the source tree.

use std::env;
use std::path::PathBuf;

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for input in ["build.rs", "cbindgen.toml", "src"] {
        println!("cargo:rerun-if-changed={input}");
    }

    let mut config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml must parse");
    let (major, minor, patch) =
        (env::var("CARGO_PKG_VERSION_MAJOR"), env::var("CARGO_PKG_VERSION_MINOR"), env::var("CARGO_PKG_VERSION_PATCH"));
    let (major, minor, patch) = (major.unwrap(), minor.unwrap(), patch.unwrap());
    // The version is said once, in Cargo.toml; the preamble has placeholders for it.
    let preamble = config.after_includes.take().expect("cbindgen.toml has after_includes");
    config.after_includes =
        Some(preamble.replace("@MAJOR@", &major).replace("@MINOR@", &minor).replace("@PATCH@", &patch));
    let bindings = cbindgen::Builder::new()
        .with_crate(&root)
        .with_config(config)
        .generate()
        .expect("cbindgen must accept the declarations");
    let mut header = Vec::new();
    bindings.write(&mut header);
    let header = String::from_utf8(header).expect("cbindgen writes UTF-8");
    std::fs::write(out.join("smp.h"), plain_names(&header)).expect("OUT_DIR is writable");
    // The names that must be exported, one a line: a function cbindgen did not see would be missing from both header
    // and list, so the test compares this list with the library's dynamic symbols.
    bindings.generate_symfile(out.join("smp.sym"));

    if env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        // 0.x: every minor version may change the binary interface, so it is part of the name.
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libsmp.so.{major}.{minor}");
        // Handles, callbacks and thread-locals must stay valid if the host program calls dlclose.
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}

/// The header with types called by their typedef names throughout, as callers write them.
fn plain_names(header: &str) -> String {
    let mut plain = String::with_capacity(header.len());
    for line in header.lines() {
        if line.starts_with("typedef struct") {
            // Definitions and handles keep their tags.
            plain += line;
        } else if let Some(parameter) = line.strip_prefix("                     ") {
            // A further parameter, aligned by cbindgen below a name that "enum " no longer shifts.
            plain += "                ";
            plain += &parameter.replace("struct smp_", "smp_");
        } else {
            plain += &line.replace("enum smp_status smp_", "smp_status smp_").replace("struct smp_", "smp_");
        }
        plain.push('\n');
    }
    plain
}
