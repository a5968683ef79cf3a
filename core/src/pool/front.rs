//! What a stream freed last in a pool's first entry, before it is put among the recent blocks: a pair of free and allocation
//! of one size touches nothing else.
//!
//! It is a recent block like any other, freed after all of them, and its bytes are *ready* room. Everybody but the quick way, and
//! [`super::alloc::carve`] that goes on with it, puts it where it belongs first
//! ([`super::caches::PoolCache::retire_front`]), and sees no front.

use super::block::{Block, GENERATION_LIMIT};
use crate::handle;

/// The first handle that is not for the quick way, its slot left out: the last that a record can have.
const BEYOND: u64 = handle::encode(handle::Kind::Allocation, GENERATION_LIMIT, 0);

#[derive(Default)]
#[repr(C)]
pub(crate) struct Front {
    block: Option<&'static Block>,
    /// Of meaning with a block, as `next`.
    bytes: u64,
    /// What its next allocation will be called.
    next: u64,
}

impl Front {
    #[inline(always)]
    pub(crate) fn is_none(&self) -> bool {
        self.block.is_none()
    }

    /// A block that was freed as `allocation`; there is no other.
    #[inline(always)]
    pub(crate) fn set(&mut self, block: &'static Block, allocation: u64, bytes: u64) {
        debug_assert!(self.is_none());
        (self.block, self.bytes, self.next) = (Some(block), bytes, handle::next(allocation));
    }

    /// The block, if `size` bytes rounded up to `unit` are exactly its own: the record, its bytes, and the handle, to be taken by
    /// [`Front::clear`].
    #[inline(always)]
    pub(crate) fn exact(&self, size: u64, unit: u64) -> Option<(&'static Block, u64, u64)> {
        let b = self.block?;
        // A size of 0 is not for this way: the difference is then no less than the unit.
        if self.bytes.wrapping_sub(size) < unit { Some((b, self.bytes, self.next)) } else { None }
    }

    /// Whether a record could have no other handle after this one, if it could have this one.
    #[inline(always)]
    pub(crate) fn is_beyond(allocation: u64) -> bool {
        allocation >= BEYOND
    }

    /// The block is taken.
    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        self.block = None;
    }

    /// Takes it: its index, the record, and its bytes.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<(u32, &'static Block, u64)> {
        let b = self.block.take()?;
        Some((handle::slot(self.next), b, self.bytes))
    }

    /// Its bytes, 0 without.
    pub(crate) fn bytes(&self) -> u64 {
        if self.is_none() { 0 } else { self.bytes }
    }
}
