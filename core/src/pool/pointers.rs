//! From allocations to what programs use, and back: pointers, which are model addresses, host addresses or the driver's.
//!
//! Who asks for an allocation's pointer mostly comes back with it soon, to free it: where it was last seen is remembered.

use super::addresses::{END_ADDRESS, FIRST_ADDRESS};
use super::block::{BLOCKS, Block, LIVE, block};
use super::page::page;
use super::registry::POOLS;
use super::{driver, read_live, state};
use crate::error::{Error, Result, Status};
use crate::handle::{self, AllocationId, DeviceId};
use std::cell::{Cell, OnceCell};
use std::sync::atomic::{
    Ordering::{Acquire, Relaxed},
    fence,
};

const SEEN_LOG2: u32 = 11;

/// The allocations that a thread last saw at pointers, by a few of the pointers' bits: handles, which may be old or another
/// pointer's. (A thread's own, so that threads do not write to the same cache lines.)
type Seen = [Cell<u64>; 1 << SEEN_LOG2];

thread_local! {
    /// Made when first written to: what is thread-local in itself is taken from the stack of each thread of the program, which may be
    /// small.
    static SEEN: OnceCell<Box<Seen>> = const { OnceCell::new() };
}

/// The thread's table, unless memory is short.
#[cold]
#[inline(never)]
fn make_seen(seen: &OnceCell<Box<Seen>>) -> Option<&Seen> {
    let mut table = Vec::new();
    table.try_reserve_exact(1 << SEEN_LOG2).ok()?;
    table.resize(1 << SEEN_LOG2, Cell::new(0));
    let table = table.into_boxed_slice().try_into().ok()?;
    Some(seen.get_or_init(|| table))
}

/// The place in [`SEEN`] of a pointer.
#[inline(always)]
fn place_of(pointer: u64) -> usize {
    // (Fibonacci hashing: pointers that are apart by powers of two get places apart.)
    (pointer.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - SEEN_LOG2)) as usize
}

/// The live allocation of the device that starts at `pointer`, if it is the one that this thread saw there last.
#[inline(always)]
fn seen_at(device: &state::Device, pointer: u64) -> Option<AllocationId> {
    // (A thread that is ending has forgotten.)
    let bits = SEEN.try_with(|seen| Some(seen.get()?[place_of(pointer)].get())).ok()??;
    let (index, generation) = handle::decode(handle::Kind::Allocation, bits)?;
    let b = BLOCKS.get(index)?;
    let live = || b.generation() == generation && b.has(LIVE);
    if !live() {
        return None;
    }
    let there =
        page(b.page()).device_uid.load(Relaxed) == device.uid && (b.address() == pointer || pointer_of(b) == pointer);
    // Where an allocation lies does not change while it is live.
    fence(Acquire);
    (there && live()).then_some(AllocationId(bits))
}

/// What pointer-returning calls give for an allocation: 0 if the handle is bad.
pub fn pointer(allocation: AllocationId) -> u64 {
    let pointer = read_live(allocation, |_, b| pointer_of(b)).unwrap_or(0);
    let _ = SEEN.try_with(|seen| {
        if let Some(seen) = seen.get().map(|seen| &**seen).or_else(|| make_seen(seen)) {
            seen[place_of(pointer)].set(allocation.0);
        }
    });
    pointer
}

pub(super) fn pointer_of(b: &Block) -> u64 {
    let home = page(b.page());
    match home.pointer.load(Relaxed) {
        0 if crate::runtime::native::any() => driver_pointer(home.pool.load(Relaxed), b).unwrap_or_else(|| b.address()),
        0 => b.address(),
        pointer => pointer.wrapping_add(b.address().wrapping_sub(home.base.load(Relaxed))),
    }
}

/// The pointer of a *driver* pool's block.
#[cold]
fn driver_pointer(pool_slot: u32, b: &Block) -> Option<u64> {
    let pool = POOLS.by_slot(pool_slot)?;
    let index = page(b.page()).block_at(b.page(), b.addr())?;
    pool.shadow.as_ref()?.pointer(index)
}

/// The live allocation of whose bytes asked for `pointer` (model address, device or host pointer) is one, and the offset of
/// `pointer` from the address that was given out. A block's padding, before and after those bytes, is nobody's; of a
/// zero-sized allocation the address itself is found.
///
/// # Errors
/// [`Status::InvalidValue`] if it is none of a live allocation's.
pub fn find(device: DeviceId, pointer: u64) -> Result<(AllocationId, u64)> {
    let device = &*crate::runtime::resolve_device(device)?;
    if let Some(allocation) = seen_at(device, pointer) {
        return Ok((allocation, 0));
    }
    locate(device, pointer)
        .and_then(|(index, addr)| {
            let b = block(index);
            // (Live first: see `Named::judge_live`.)
            if !b.has(LIVE) {
                return None;
            }
            fence(Acquire);
            let generation = b.generation();
            let offset = addr.checked_sub(b.address())?;
            (offset < b.requested().max(1))
                .then(|| (AllocationId(handle::encode(handle::Kind::Allocation, generation, index)), offset))
        })
        .ok_or_else(|| {
            Error::new(
                Status::InvalidValue,
                format_args!("pointer {pointer:#x} is in no live allocation of the device"),
            )
        })
}

/// The block that holds `pointer`, live or free, and the pointer's model address.
pub(crate) fn locate(device: &state::Device, pointer: u64) -> Option<(u32, u64)> {
    let (slot, addr, begins) = if (FIRST_ADDRESS..END_ADDRESS).contains(&pointer) {
        let pages = device.by_address.read();
        let (_, &slot) = pages.range(..=pointer).next_back()?;
        (slot, pointer, None)
    } else {
        let found = {
            let pages = device.by_pointer.read();
            pages.range(..=pointer).next_back().map(|(&base, &slot)| (base, slot))
        };
        if device.cuda().is_some()
            && let Some((index, offset)) = driver::locate(device, pointer)
        {
            return Some((index, block(index).address().checked_add(offset)?));
        }
        let (base, slot) = found?;
        (slot, page(slot).base.load(Relaxed).checked_add(pointer - base)?, Some(base))
    };
    let record = page(slot);
    if addr.wrapping_sub(record.base.load(Relaxed)) >= record.bytes.load(Relaxed) {
        return None;
    }
    let index = record.block_at(slot, addr)?;
    // (The page may have gone meanwhile, and its record be another's, which begins elsewhere.)
    fence(Acquire);
    if begins.is_some_and(|begins| record.pointer.load(Relaxed) != begins) {
        return None;
    }
    Some((index, addr))
}
