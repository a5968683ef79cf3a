//! Pools by handle.

use super::block::PLACE_SHIFT;
use super::caches::{Caches, STREAMS};
use super::config::Preset;
use super::state::Pool;
use crate::error::Result;
use crate::handle::{self, PoolId, StreamId};
use crate::order::Stream;
use crate::runtime::native;
use crate::slab::Slab;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Default)]
pub(crate) struct PoolSlot {
    generation: AtomicU32,
    legacy: AtomicU32,
    /// Bits below, and the device's slot above them; for calls that look before they lock.
    native: AtomicU32,
    /// The device's alignment in bytes.
    alignment: AtomicU32,
    place: Mutex<Place>,
}

#[derive(Default)]
struct Place {
    /// The handle is good.
    live: bool,
    /// Stays until the last block and page are gone.
    pool: Option<Arc<Pool>>,
}

impl Place {
    fn holds(&self, pool: &Pool) -> bool {
        self.pool.as_ref().is_some_and(|held| held.id == pool.id)
    }
}

impl PoolSlot {
    /// Slot of the legacy stream of the pool's device, if `generation` is the current one.
    #[inline(always)]
    pub(crate) fn legacy(&self, generation: u32) -> Option<u32> {
        (self.generation.load(Ordering::Acquire) == generation).then(|| self.legacy.load(Ordering::Relaxed))
    }
}

/// Bit of [`PoolSlot::native`]: the pool is on a CUDA device.
const CUDA: u32 = 1;
/// Bit: the driver need not be asked whether a stream is capturing.
const WAIVED: u32 = 2;
/// Bit: streams' identities are verified.
const CHECKED: u32 = 4;
/// Bit: blocks are the driver's own.
const DRIVER: u32 = 8;

/// What a call must know of a pool on a CUDA device before it locks anything.
#[derive(Clone, Copy)]
pub(crate) struct NativePool(u32);

impl NativePool {
    /// The record of the stream a call names, and what it says of itself while it is that stream; `None` where nothing but
    /// the slow path looks closely enough. The stream is not capturing.
    ///
    /// # Errors
    /// CAPTURING; what the driver answers.
    #[inline(always)]
    pub(crate) fn stream(self, pool_slot: u32, stream: StreamId) -> Result<Option<(&'static Stream<Caches>, u64)>> {
        if self.0 & (CHECKED | DRIVER) != 0 || native::any_poisoned() {
            return Ok(None);
        }
        // (A key that the library makes up is nobody's name.)
        if stream.0 > native::PER_THREAD && !native::is_foreign(stream.0) {
            return Ok(None);
        }
        let key = native::key(stream);
        let Some(record) = native::hint(key, self.0 >> 4).and_then(|slot| STREAMS.get(slot)) else {
            return Ok(None);
        };
        if self.0 & WAIVED == 0 {
            match stream.0 {
                0 | native::LEGACY => {}
                native::PER_THREAD => {
                    let pool = POOLS.by_slot(pool_slot);
                    if let Some(cuda) = pool.as_ref().and_then(|pool| pool.device.cuda()) {
                        native::refuse_capturing(cuda, native::PER_THREAD)?;
                    }
                }
                raw => native::refuse_capturing_now(raw)?,
            }
        }
        Ok(Some((record, key)))
    }

    /// What a call on the stream leaves to do when others want what it has freed.
    #[cold]
    pub(crate) fn after_call(self, pool_slot: u32, stream: StreamId, in_free: bool) {
        if let Some(pool) = POOLS.by_slot(pool_slot)
            && let Ok(me) = crate::runtime::resolve_stream(&pool.device, stream)
        {
            native::after_call(&pool.device, me, in_free);
        }
    }
}

type Slots = Slab<PoolSlot, { 1 << 12 }>;
// A block's pass names its pool in so many bits, and the quick way takes more of them for no pool.
const _: () = assert!(Slots::SLOTS <= 1 << PLACE_SHIFT);

pub(crate) struct Registry(Slots);

/// Every pool of the process.
pub(crate) static POOLS: Registry = Registry(Slab::new());

impl Registry {
    /// See [`Slab::forget_free`].
    pub(crate) fn forget_free(&self) {
        self.0.forget_free();
    }
    /// The leaf of its slots.
    pub(crate) fn leaf(&self) -> &crate::leaf::RawLeaf {
        self.0.leaf()
    }
    #[inline(always)]
    pub(crate) fn get(&self, slot: u32) -> Option<&PoolSlot> {
        self.0.get(slot)
    }
    /// Slot of the legacy stream of a pool's device, if the handle is one of a pool that was not replaced since.
    #[cold]
    pub(crate) fn legacy(&self, pool: PoolId) -> Option<u32> {
        let (slot, generation) = handle::decode(handle::Kind::Pool, pool.0)?;
        self.get(slot)?.legacy(generation)
    }
    /// The pool in a slot as a native one, if it is on a CUDA device. A stale slot answers for its successor, which the
    /// call then finds out.
    #[inline(always)]
    pub(crate) fn native(&self, slot: u32) -> Option<NativePool> {
        let bits = self.0.get(slot)?.native.load(Ordering::Relaxed);
        (bits & CUDA != 0).then_some(NativePool(bits))
    }
    /// Whether every block of the pool is aligned to `alignment`. (A stale handle's answer is of no meaning, which whoever uses the
    /// pool finds out.)
    #[inline(always)]
    pub(crate) fn aligns(&self, pool: PoolId, alignment: u64) -> bool {
        let unit = self.0.get(handle::slot(pool.0)).map_or(0, |record| record.alignment.load(Ordering::Relaxed));
        alignment.is_power_of_two() && alignment <= u64::from(unit)
    }
    /// A slot and the handle its pool will have.
    pub(crate) fn open(&self) -> Option<(u32, PoolId)> {
        let slot = self.0.take_one()?;
        let generation = self.0.at(slot).generation.load(Ordering::Relaxed) + 1;
        Some((slot, PoolId(handle::encode(handle::Kind::Pool, generation, slot))))
    }
    pub(crate) fn publish(&self, pool: &Arc<Pool>, legacy: u32) {
        let (slot, generation) = handle::decode(handle::Kind::Pool, pool.id.0).expect("a pool's own handle");
        let record = self.0.at(slot);
        // Held to the end: whoever finds the pool here is told its generation, and nobody ends it before.
        let mut place = record.place.lock();
        *place = Place { live: true, pool: Some(pool.clone()) };
        record.legacy.store(legacy, Ordering::Relaxed);
        let alignment = u32::try_from(pool.device.options.alignment).unwrap_or(0);
        record.alignment.store(alignment, Ordering::Relaxed);
        let device = &pool.device;
        let bit = |on: bool, bit: u32| if on { bit } else { 0 };
        let native = bit(true, CUDA)
            | bit(!device.capture_check || pool.config.waive_capture_check, WAIVED)
            | bit(device.checked, CHECKED)
            | bit(pool.config.preset == Some(Preset::Driver), DRIVER)
            | (device.slot << 4);
        record.native.store(if device.cuda().is_some() { native } else { 0 }, Ordering::Relaxed);
        record.generation.store(generation, Ordering::Release);
    }
    /// The live pool a handle names.
    pub(crate) fn resolve(&self, id: PoolId) -> Result<Arc<Pool>> {
        let kind = handle::Kind::Pool;
        crate::runtime::native::refuse_forked()?;
        let (slot, generation) = handle::decode(kind, id.0).ok_or_else(|| handle::invalid(kind, id.0))?;
        let record = self.0.get(slot).ok_or_else(|| handle::invalid(kind, id.0))?;
        let place = record.place.lock();
        handle::judge(kind, id.0, generation, record.generation.load(Ordering::Acquire), place.live)?;
        place.pool.clone().ok_or_else(|| handle::gone(kind, id.0))
    }
    /// The pool in a slot, destroyed or not.
    pub(crate) fn by_slot(&self, slot: u32) -> Option<Arc<Pool>> {
        self.0.get(slot)?.place.lock().pool.clone()
    }
    /// The handle is good no more. `false`: it was not. (Another pool may have the slot by now.)
    pub(crate) fn retire(&self, pool: &Pool) -> bool {
        let mut place = self.0.at(pool.slot).place.lock();
        place.holds(pool) && std::mem::replace(&mut place.live, false)
    }
    /// Nothing of the pool is left. Whoever still has it may say so again, when another pool has the slot.
    pub(crate) fn close(&self, pool: &Pool) {
        let record = self.0.at(pool.slot);
        let gone = {
            let mut place = record.place.lock();
            if place.holds(pool) { place.pool.take() } else { None }
        };
        if gone.is_some() && !handle::used_up(record.generation.load(Ordering::Relaxed)) {
            self.0.give_back([pool.slot]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::POOLS;
    use crate::PoolId;
    use crate::device::{self, ModelOptions};
    use crate::pool::{self, PoolConfig};
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::thread;
    use std::time::{Duration, Instant};

    #[test]
    fn what_is_said_of_a_pool_that_is_gone_is_not_said_of_the_next_one_in_its_slot() {
        let device = device::open_model(&ModelOptions::default()).unwrap();
        let config = PoolConfig::default();
        let before = pool::create(device, &config).unwrap();
        let gone = POOLS.resolve(before).unwrap();
        pool::destroy(before).unwrap();
        // (Other tests take slots as well.)
        let next = std::iter::repeat_with(|| pool::create(device, &config).unwrap())
            .take(10_000)
            .find(|&id| POOLS.resolve(id).unwrap().slot == gone.slot)
            .expect("slots are used again");
        assert!(!POOLS.retire(&gone));
        POOLS.close(&gone);
        assert!(POOLS.resolve(next).is_ok());
        pool::destroy(next).unwrap();
    }

    #[test]
    fn a_stale_handle_never_names_the_next_pool_in_the_slot_not_even_while_that_one_comes() {
        let device = device::open_model(&ModelOptions::default()).unwrap();
        let config = PoolConfig::default();
        let stale = Mutex::new(Vec::new());
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Relaxed) {
                        let handles = stale.lock().unwrap().clone();
                        for id in handles {
                            assert!(POOLS.resolve(id).is_err());
                        }
                    }
                });
            }
            let until = Instant::now() + Duration::from_secs(1);
            while Instant::now() < until && !done.load(Relaxed) {
                let id = pool::create(device, &config).unwrap();
                // One that has just been given out is good, whatever is done by stale ones.
                if POOLS.resolve(id).is_err() || pool::destroy(id).is_err() {
                    done.store(true, Relaxed);
                    panic!("{id:?} does not name its pool");
                }
                let mut stale = stale.lock().unwrap();
                stale.retain(|other: &PoolId| crate::handle::slot(other.0) != crate::handle::slot(id.0));
                stale.push(id);
            }
            done.store(true, Relaxed);
        });
    }
}
