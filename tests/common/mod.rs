//! What the tests of the C interface share: initialised structs and the last error.
#![allow(dead_code, reason = "each test file uses its own part")]

pub mod header;
pub mod wild;

use smp::*;
use std::ffi::{CStr, CString, c_char};
use std::ptr;

/// A zeroed struct of the header with its size stated, as its `_INIT` macro leaves figures and infos.
macro_rules! sized {
    ($name:ident) => {{
        // SAFETY: these structs are integers, pointers and arrays; zero is valid for each.
        let mut value: $name = unsafe { std::mem::zeroed() };
        value.struct_size = std::mem::size_of::<$name>() as u32;
        value
    }};
}
pub(crate) use sized;

pub fn device_desc() -> smp_device_desc {
    smp_device_desc { capacity: NONE, ..sized!(smp_device_desc) }
}

pub fn pool_config() -> smp_pool_config {
    smp_pool_config {
        policies: SMP_POLICY_ALL,
        release_threshold: DEFAULT,
        max_pool_size: NONE,
        ..sized!(smp_pool_config)
    }
}

pub fn entry(kind: u32) -> smp_pool_entry {
    smp_pool_entry {
        kind,
        reserved0: 0,
        page_size: 0,
        max_alloc_size: 0,
        max_slice_size: NONE,
        max_pool_size: NONE,
        dealloc_period: NONE,
        reclaim_at: NONE,
        range_size: 0,
        chunk_size: 0,
        reserved: [0; 2],
    }
}

pub fn sliced(page_size: u64) -> smp_pool_entry {
    smp_pool_entry { page_size, ..entry(SMP_ENTRY_SLICED) }
}

pub fn mapped() -> smp_pool_entry {
    smp_pool_entry { range_size: 1 << 30, chunk_size: 2 << 20, ..entry(SMP_ENTRY_MAPPED) }
}

pub fn text_of(field: &[c_char]) -> String {
    let bytes: Vec<u8> = field.iter().map(|c| *c as u8).collect();
    CStr::from_bytes_until_nul(&bytes).expect("texts end with a NUL").to_str().expect("texts are UTF-8").to_string()
}

/// (status, text) of this thread's last error.
pub fn last_error() -> (u32, String) {
    let mut error = sized!(smp_error);
    // SAFETY: a struct with its size stated.
    assert_eq!(unsafe { smp_last_error(&mut error) }, smp_status::SMP_SUCCESS);
    (error.status, text_of(&error.text))
}

pub fn open(desc: &smp_device_desc) -> smp_device {
    let mut device = ptr::null_mut();
    // SAFETY: both pointers are valid.
    ok(unsafe { smp_device_open(desc, &mut device) });
    device
}

pub fn open_default() -> smp_device {
    open(&device_desc())
}

pub fn pool_of(device: smp_device, config: &smp_pool_config) -> smp_pool {
    let mut pool = ptr::null_mut();
    // SAFETY: both pointers are valid.
    ok(unsafe { smp_pool_create(device, config, &mut pool) });
    pool
}

pub fn pool_from(device: smp_device, spec: &str) -> smp_pool {
    let spec = CString::new(spec).unwrap();
    let mut pool = ptr::null_mut();
    // SAFETY: both pointers are valid.
    ok(unsafe { smp_pool_create_from_spec(device, spec.as_ptr(), &mut pool) });
    pool
}

pub fn stream_of(device: smp_device, flags: u32) -> smp_stream {
    let mut stream = ptr::null_mut();
    // SAFETY: the pointer is valid.
    ok(unsafe { smp_stream_create(device, flags, &mut stream) });
    stream
}

pub fn event_of(device: smp_device) -> smp_event {
    let mut event = ptr::null_mut();
    // SAFETY: the pointer is valid.
    ok(unsafe { smp_event_create(device, 0, &mut event) });
    event
}

pub fn alloc(pool: smp_pool, size: u64, stream: smp_stream) -> smp_allocation {
    let mut allocation = ptr::null_mut();
    // SAFETY: the pointer is valid.
    ok(unsafe { smp_alloc_async(pool, size, stream, &mut allocation) });
    allocation
}

pub fn stats(pool: smp_pool) -> smp_pool_stats {
    let mut stats = sized!(smp_pool_stats);
    // SAFETY: a struct with its size stated.
    ok(unsafe { smp_pool_get_stats(pool, &mut stats) });
    stats
}

#[track_caller]
pub fn ok(status: smp_status) {
    assert!(status == smp_status::SMP_SUCCESS, "{status:?}: {}", last_error().1);
}

/// The call failed so, said each of `parts`, and `smp_last_error` kept it.
#[track_caller]
pub fn refused(status: smp_status, expected: smp_status, parts: &[&str]) {
    let (kept, text) = last_error();
    assert!(status == expected, "{status:?} ({text}), expected {expected:?}");
    assert_eq!(kept, expected as u32, "smp_last_error kept another status");
    for part in parts {
        assert!(text.contains(part), "{text:?} does not say {part:?}");
    }
}
