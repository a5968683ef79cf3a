//! Protections that a test build can take out one at a time, to show that a test notices each.
//! `scripts/pitfalls.sh` does so.

/// The named protection is taken out.
#[cfg(not(feature = "break-switches"))]
#[inline(always)]
pub const fn broken(_protection: &str) -> bool {
    false
}

/// The named protection is taken out.
#[cfg(feature = "break-switches")]
pub fn broken(protection: &str) -> bool {
    static OUT: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    OUT.get_or_init(|| std::env::var("SMP_PRELOAD_BREAK").unwrap_or_default()) == protection
}
