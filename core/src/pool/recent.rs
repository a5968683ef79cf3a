//! The recent block of one entry on one stream (`docs/placement.md` §5): its last free, not merged, for the next allocation
//! of exactly that size.
//!
//! A *ready* one is served and kept with almost nothing looked at: its bytes are part of the stream's room (towards both
//! marks) without being counted there, its free is not counted yet, so neither its free nor its allocation touches a
//! [`super::state::Room`], and the handle of its next allocation is made. Whoever looks at the stream's room counts them first, and it is ready no more.

use super::block::{Block, GENERATION_LIMIT};
use crate::handle;

#[derive(Default)]
#[repr(C)]
pub(crate) struct Recent {
    ready: Option<&'static Block>,
    /// Of meaning while there is one, as `next`.
    bytes: u64,
    /// What its next allocation will be called.
    next: u64,
    /// There is one, and it is not ready.
    waits: bool,
}

impl Recent {
    #[inline(always)]
    pub(crate) fn is_none(&self) -> bool {
        self.ready.is_none() && !self.waits
    }
    /// There is one that is not ready.
    #[inline(always)]
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }
    #[inline(always)]
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.is_some()
    }
    /// 0: there is none.
    #[inline(always)]
    pub(crate) fn bytes(&self) -> u64 {
        if self.is_none() { 0 } else { self.bytes }
    }
    #[inline(always)]
    pub(crate) fn index(&self) -> u32 {
        handle::slot(self.next)
    }
    /// The block in `index` is the recent one.
    #[inline(always)]
    pub(crate) fn is(&self, index: u32) -> bool {
        !self.is_none() && self.index() == index
    }

    /// Keeps a block that was freed as `allocation`; there is no other. Its bytes have been given back as room.
    #[inline(always)]
    pub(crate) fn keep(&mut self, allocation: u64, bytes: u64) {
        debug_assert!(self.is_none());
        (self.bytes, self.next, self.waits) = (bytes, handle::next(allocation), true);
    }
    /// The same, ready: its bytes have not been given back, nor has its free been counted.
    #[inline(always)]
    pub(crate) fn keep_ready(&mut self, b: &'static Block, allocation: u64, bytes: u64) {
        debug_assert!(self.is_none());
        (self.ready, self.bytes, self.next) = (Some(b), bytes, handle::next(allocation));
    }

    /// Takes the ready block if `size` bytes rounded up to `unit` are exactly its own: the record, its bytes, and the handle.
    #[inline(always)]
    pub(crate) fn take_ready(&mut self, size: u64, unit: u64) -> Option<(&'static Block, u64, u64)> {
        let b = self.ready?;
        // A size of 0 is not for this way: the difference is then no less than the unit.
        if self.bytes.wrapping_sub(size) >= unit || handle::generation(self.next) >= GENERATION_LIMIT {
            return None;
        }
        self.ready = None;
        Some((b, self.bytes, self.next))
    }
    /// Takes the block; it is not ready.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<(u32, u64)> {
        debug_assert!(self.ready.is_none());
        std::mem::take(&mut self.waits).then(|| (self.index(), self.bytes))
    }

    /// Takes the ready block to merge it: the record, its index, and its bytes.
    #[inline(always)]
    pub(crate) fn take_to_merge(&mut self) -> Option<(&'static Block, u32, u64)> {
        Some((self.ready.take()?, self.index(), self.bytes))
    }

    /// A ready block is not ready any more: how many bytes are to be counted as room.
    #[inline(always)]
    pub(crate) fn uncover(&mut self) -> Option<u64> {
        self.ready.take()?;
        self.waits = true;
        Some(self.bytes)
    }
    /// Bytes that are room without being counted.
    pub(crate) fn covered(&self) -> u64 {
        if self.is_ready() { self.bytes } else { 0 }
    }
}
