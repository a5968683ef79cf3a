//! The committed header against the declarations, the library's exported names, and the version numbers.
//!
//! `SMP_UPDATE_HEADER=1 cargo test --test header` writes a fresh `include/smp.h`.

mod common;

use common::header::{function_names, functions};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

const FRESH: &str = include_str!(concat!(env!("OUT_DIR"), "/smp.h"));
/// What cbindgen found, for the linker: `{ name; name; ... };`.
const SYMBOLS: &str = include_str!(concat!(env!("OUT_DIR"), "/smp.sym"));

fn committed_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include/smp.h")
}

fn committed() -> String {
    std::fs::read_to_string(committed_path()).expect("include/smp.h is readable")
}

/// The shared library that cargo built with this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let library = test.with_file_name("libsmp.so");
    assert!(library.exists(), "{} is missing", library.display());
    library
}

fn output(command: &str, arguments: &[&str], file: &Path) -> String {
    let run = Command::new(command).args(arguments).arg(file).output();
    let run = run.unwrap_or_else(|error| panic!("{command} (binutils) is needed: {error}"));
    assert!(run.status.success(), "{command}: {}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).expect("binutils write UTF-8")
}

#[test]
fn committed_header_is_what_the_declarations_give() {
    if std::env::var_os("SMP_UPDATE_HEADER").is_some() {
        std::fs::write(committed_path(), FRESH).expect("include/smp.h is writable");
    }
    assert!(
        committed() == FRESH,
        "include/smp.h is stale; run SMP_UPDATE_HEADER=1 cargo test --test header and commit it"
    );
}

#[test]
fn library_exports_the_headers_functions_and_nothing_else() {
    let listing = output("nm", &["-D", "--defined-only"], &library());
    let exported: BTreeSet<String> =
        listing.lines().map(|line| line.split_whitespace().last().expect("nm names symbols").to_string()).collect();
    let declared = function_names(&committed());
    assert!(declared.len() > 50, "the header's functions were not found: {declared:?}");
    assert_eq!(exported, declared);
    let seen: BTreeSet<String> = SYMBOLS
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|s| !s.is_empty())
        .map(str::to_string)
        .collect();
    assert_eq!(seen, declared, "what cbindgen saw is not what it wrote");
}

#[test]
fn library_is_named_by_its_minor_version_and_is_never_unloaded() {
    let dynamic = output("readelf", &["-d"], &library());
    let soname = format!("[libsmp.so.{}.{}]", env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"));
    assert!(dynamic.lines().any(|line| line.contains("SONAME") && line.contains(&soname)), "{dynamic}");
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
}

/// What is thread-local in a library that a program starts with is taken from the stack of each of its threads, and a stack too small for
/// it is refused.
#[test]
fn library_takes_at_most_a_kibibyte_of_each_threads_stack() {
    let headers = output("readelf", &["-lW"], &library());
    let line = headers.lines().map(str::trim).find(|line| line.starts_with("TLS ")).expect("a segment TLS");
    let bytes = line.split_whitespace().nth(5).expect("its size in memory");
    let bytes = u64::from_str_radix(bytes.trim_start_matches("0x"), 16).expect("hexadecimal");
    assert!(bytes <= 1024, "{bytes} bytes: {line}");
}

#[test]
fn header_and_library_have_the_packages_version() {
    let number = |name: &str| -> u32 {
        let define = format!("#define SMP_VERSION_{name} ");
        let line = FRESH.lines().find_map(|line| line.strip_prefix(&define)).expect("the header has its version");
        line.parse().expect("version numbers are decimal")
    };
    let header = (number("MAJOR"), number("MINOR"), number("PATCH"));
    assert_eq!(format!("{}.{}.{}", header.0, header.1, header.2), env!("CARGO_PKG_VERSION"));
    assert_eq!(smp::smp_version(), header.0 * 10_000 + header.1 * 100 + header.2);
    assert!(FRESH.contains(&format!("#define SMP_VERSION_STRING \"{}\"", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn every_function_that_takes_a_stream_by_value_has_a_per_thread_twin() {
    let header = committed();
    let functions = functions(&header);
    let names = function_names(&header);
    // A destroyed stream is never a default one; PyTorch finds its functions by name, whatever a caller is compiled for.
    let takes_stream = |name: &str, parameters: &str| {
        name != "smp_stream_destroy"
            && !name.starts_with("smp_torch_")
            && (parameters.contains("smp_stream ") && !parameters.contains("smp_stream *")
                || name == "smp_alloc_async_ex")
    };
    for (name, parameters) in functions.iter().filter(|(name, _)| !name.ends_with("_ptsz")) {
        let twin = format!("{name}_ptsz");
        let define = format!("#define {name} {twin}\n");
        assert_eq!(names.contains(&twin), takes_stream(name, parameters), "{name}{parameters}");
        assert_eq!(header.contains(&define), takes_stream(name, parameters), "{name}");
    }
}

#[test]
fn every_declaration_is_documented() {
    let header = committed();
    let mut previous = "";
    let mut undocumented = Vec::new();
    for line in header.lines().filter(|line| !line.trim().is_empty()) {
        let declares = line.starts_with("typedef struct smp_")
            || line.starts_with("smp_status smp_")
            || line.starts_with("SMP_NODISCARD");
        // The attribute may stand on a line of its own; then that line is the documented one.
        if declares && !previous.ends_with("*/") && previous != "SMP_NODISCARD" {
            undocumented.push(line.to_string());
        }
        previous = line;
    }
    assert!(undocumented.is_empty(), "{undocumented:#?}");
}
