//! Noted accesses per block, and what a free or another access must follow.

use crate::order::At;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// A pool's noted accesses, by block.
#[derive(Default)]
pub(crate) struct Table {
    any: AtomicBool,
    racing_frees: AtomicU64,
}

impl Table {
    /// Some access was noted in this pool, ever.
    #[inline(always)]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Relaxed)
    }
    /// The points of a block's noted accesses.
    pub(crate) fn points(&self, _index: u32) -> Vec<At> {
        Vec::new()
    }
    /// The block is freed; `unfollowed` are the points the free does not follow. Returns how many accesses that is.
    pub(crate) fn forget(&self, _index: u32, unfollowed: &[At]) -> u64 {
        if !unfollowed.is_empty() {
            self.racing_frees.fetch_add(1, Relaxed);
        }
        unfollowed.len() as u64
    }
    /// Frees that did not follow a noted access.
    pub(crate) fn racing_frees(&self) -> u64 {
        self.racing_frees.load(Relaxed)
    }
    /// Bytes of the history.
    pub(crate) fn bytes(&self) -> u64 {
        0
    }
}
