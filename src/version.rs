//! The library's version at run time.

/// The version of the library in use: major * 10000 + minor * 100 + patch, as the header's SMP_VERSION is made.
///
/// Versions 0.x with different minor numbers are not binary compatible. Cannot fail; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn smp_version() -> u32 {
    const VERSION: u32 = decimal(env!("CARGO_PKG_VERSION_MAJOR")) * 10_000
        + decimal(env!("CARGO_PKG_VERSION_MINOR")) * 100
        + decimal(env!("CARGO_PKG_VERSION_PATCH"));
    VERSION
}

const fn decimal(text: &str) -> u32 {
    let (bytes, mut value, mut i) = (text.as_bytes(), 0, 0);
    while i < bytes.len() {
        assert!(bytes[i].is_ascii_digit(), "cargo's version numbers are decimal");
        value = value * 10 + (bytes[i] - b'0') as u32;
        i += 1;
    }
    value
}
