//! What the shared library finds by name: every look-up that two CUDA runtimes make, versions, hidden functions.

use std::collections::HashSet;
use std::ffi::{CStr, CString, c_void};
use std::path::{Path, PathBuf};

use simcuda::variant;

type LookUp = extern "C" fn(*const libc::c_char, *mut *mut c_void, i32, u64, *mut i32) -> u32;

fn library() -> PathBuf {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let built = [deps.join("libsimcuda.so"), deps.join("../libsimcuda.so")];
    let newest =
        built.iter().filter(|path| path.exists()).max_by_key(|path| path.metadata().unwrap().modified().unwrap());
    newest.expect("the shared library is built").clone()
}

struct Library(*mut c_void);

impl Library {
    fn open(path: &Path) -> Library {
        let path = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: the stand-in has no constructor that depends on anything here.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null());
        Library(handle)
    }

    fn symbol(&self, name: &str) -> *mut c_void {
        let name = CString::new(name).unwrap();
        // SAFETY: an open library and a terminated name.
        unsafe { libc::dlsym(self.0, name.as_ptr()) }
    }

    /// The exported name of what `cuGetProcAddress_v2` gives, with the code and the status.
    fn find(&self, name: &str, version: i32, flags: u64) -> (Option<String>, u32, i32) {
        // SAFETY: the function has this signature in the public header.
        let look_up: LookUp = unsafe { std::mem::transmute(self.symbol("cuGetProcAddress_v2")) };
        let text = CString::new(name).unwrap();
        let (mut found, mut status) = (std::ptr::null_mut(), -1);
        let code = look_up(text.as_ptr(), &mut found, version, flags, &mut status);
        (exported(found), code, status)
    }
}

/// The exported name that an address has.
fn exported(address: *mut c_void) -> Option<String> {
    if address.is_null() {
        return None;
    }
    // SAFETY: all-zero is a valid value of this plain structure, and `dladdr` takes any address.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    assert_ne!(unsafe { libc::dladdr(address, &mut info) }, 0);
    // SAFETY: `dladdr` succeeded; the name is null or a string of the loaded library.
    (!info.dli_sname.is_null()).then(|| unsafe { CStr::from_ptr(info.dli_sname) }.to_string_lossy().into_owned())
}

/// (name, version, flags) of each look-up that a CUDA runtime makes when it starts.
fn look_ups(runtime: &str) -> Vec<(String, i32, u64)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../preload/c_tests/data");
    let text = std::fs::read_to_string(folder.join(format!("cudart-{runtime}-lookups.csv"))).unwrap();
    let rows = text.lines().skip(1).map(|line| {
        let fields: Vec<&str> = line.split(',').collect();
        (fields[0].to_owned(), fields[1].parse().unwrap(), fields[2].parse().unwrap())
    });
    rows.collect()
}

/// What an exported name is called without version and per-thread suffix.
fn base(symbol: &str) -> &str {
    let plain = symbol.trim_end_matches("_ptsz").trim_end_matches("_ptds");
    match plain.rsplit_once("_v") {
        Some((base, digits)) if digits.bytes().all(|byte| byte.is_ascii_digit()) => base,
        _ => plain,
    }
}

#[test]
fn every_look_up_of_two_runtimes_finds_a_function_of_that_name_and_thread_form() {
    let library = Library::open(&library());
    for runtime in ["12.9", "13.5"] {
        let all = look_ups(runtime);
        assert!(all.len() > 400);
        for (name, version, flags) in all {
            let (found, code, status) = library.find(&name, version, flags);
            if name.is_empty() {
                assert_eq!((found, code, status), (None, 0, 1));
                continue;
            }
            let found = found.unwrap_or_else(|| panic!("{name} {version} {flags}: not found"));
            assert_eq!((code, status), (0, 0), "{name}");
            assert_eq!(base(&found), name, "{name} {version} gives {found}");
            let twin = found.ends_with("_ptsz") || found.ends_with("_ptds");
            assert_eq!(twin, flags == 2, "{name} {version} {flags} gives {found}");
        }
    }
}

#[test]
fn the_newest_version_not_newer_than_asked_for_is_found() {
    let library = Library::open(&library());
    let find = |name: &str, version: i32, flags: u64| library.find(name, version, flags);
    let found = |symbol: &str| (Some(symbol.to_owned()), 0, 0);
    for (name, version, flags, symbol) in [
        ("cuMemAlloc", 2000, 0, "cuMemAlloc"),
        ("cuMemAlloc", 3020, 0, "cuMemAlloc_v2"),
        ("cuMemAlloc", 13050, 0, "cuMemAlloc_v2"),
        ("cuMemAlloc", 13050, 2, "cuMemAlloc_v2"),
        ("cuCtxCreate", 11030, 0, "cuCtxCreate_v2"),
        ("cuCtxCreate", 11040, 0, "cuCtxCreate_v3"),
        ("cuCtxCreate", 12050, 0, "cuCtxCreate_v4"),
        ("cuGetProcAddress", 11030, 0, "cuGetProcAddress"),
        ("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"),
        ("cuStreamGetCaptureInfo", 10010, 0, "cuStreamGetCaptureInfo"),
        ("cuStreamGetCaptureInfo", 12000, 2, "cuStreamGetCaptureInfo_v2_ptsz"),
        ("cuStreamGetCaptureInfo", 12030, 2, "cuStreamGetCaptureInfo_v3_ptsz"),
        ("cuMemcpyHtoD", 3020, 2, "cuMemcpyHtoD_v2"),
        ("cuMemcpyHtoD", 7000, 2, "cuMemcpyHtoD_v2_ptds"),
        ("cuMemAllocAsync", 11020, 1, "cuMemAllocAsync"),
        ("cuMemAllocAsync", 11020, 2, "cuMemAllocAsync_ptsz"),
    ] {
        assert_eq!(find(name, version, flags), found(symbol), "{name} {version} {flags}");
    }
    assert_eq!(find("cuMemAllocAsync", 11010, 0), (None, 0, 2), "none that old");
    assert_eq!(find("cuMemAllocate", 13050, 0), (None, 0, 1), "no such name");
    assert_eq!(find("cuInit", 99_000, 0).1, 1, "newer than the driver");
    assert_eq!(find("cuInit", 13050, 4).1, 1, "no such flag");
    assert_eq!(find("cuInit", 13050, 3).1, 1, "both kinds at once");
}

#[test]
fn what_is_not_implemented_answers_not_supported_and_never_success() {
    let library = Library::open(&library());
    // SAFETY: `cuInit` takes a number.
    let init: extern "C" fn(u32) -> u32 = unsafe { std::mem::transmute(library.symbol("cuInit")) };
    assert_eq!(init(0), 0);
    let source = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/api/stubs.rs")).unwrap();
    let listed: HashSet<&str> = source
        .lines()
        .filter(|line| line.trim_start().starts_with("\"cu"))
        .flat_map(|line| line.split_whitespace().skip(2).filter(|word| *word != "|"))
        .collect();
    assert!(listed.len() > 300);
    for name in listed {
        let address = library.symbol(name);
        assert!(!address.is_null(), "{name} is not exported");
        // SAFETY: the stubs look at no argument.
        let stub: extern "C" fn() -> u32 = unsafe { std::mem::transmute(address) };
        assert_eq!(stub(), 801, "{name}");
    }
}

#[test]
fn a_copy_without_a_function_exports_all_others() {
    let mut bytes = std::fs::read(library()).unwrap();
    let names = ["cuGetProcAddress", "cuMemCreate"].map(str::to_owned);
    variant::hide(&mut bytes, &names).unwrap();
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libsimcuda-without.so");
    std::fs::write(&copy, &bytes).unwrap();
    let copy = Library::open(&copy);
    assert!(names.iter().all(|name| copy.symbol(name).is_null()));
    assert!(["cuInit", "cuGetProcAddress_v2", "cuMemMap"].iter().all(|name| !copy.symbol(name).is_null()));
    assert_eq!(copy.find("cuMemCreate", 13050, 0).1, 0, "look-up by the driver itself is another matter");
    assert!(variant::hide(&mut bytes, &["cuMemCreate_v9".to_owned()]).is_err());
    assert!(variant::hide(&mut [1, 2, 3], &[]).is_err());
}
