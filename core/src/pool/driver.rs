//! The *driver* preset: every block from a pool of the driver's own (`cuMemAllocFromPoolAsync`), with a *cuda* pool of the
//! model beside it that sees the same calls and says what the documented rules come to.
//!
//! The driver is asked first; the model follows. The model's addresses are identities here, and its figures can be
//! compared with the driver's.

use super::state::{Device, Pool};
use super::{AllocOptions, Attribute};
use crate::device_source::cuda::CudaDevice;
use crate::error::{Error, Result, Status};
use crate::handle::{self, AllocationId};
use crate::order::StreamRef;
use crate::runtime::{Act, native};
use crate::slab::SlotMap;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

pub(crate) struct DriverPool {
    pool: u64,
    destroyed: AtomicBool,
    blocks: Mutex<Blocks>,
}

#[derive(Default)]
struct Blocks {
    /// Block to pointer, and which of the blocks that have that number it is.
    pointers: SlotMap<u32, (u64, AllocationId)>,
    /// Pointer to block and bytes asked for.
    by_pointer: BTreeMap<u64, (u32, u64)>,
}

/// One attribute as the model and as the driver have it. Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compared {
    /// CUDA's number of the attribute, 1–8.
    pub attribute: u32,
    /// By the model's rules.
    pub model: u64,
    /// As the driver answers.
    pub driver: u64,
}

impl DriverPool {
    /// Opens a pool of the driver's with these policies and threshold.
    pub(super) fn open(cuda: &CudaDevice, config: &super::PoolConfig, cap: Option<u64>) -> Result<DriverPool> {
        if !cuda.memory_pools {
            return Err(Error::new(
                Status::NotSupported,
                "preset driver: the device or its driver has no memory pools (CUDA 11.2)",
            ));
        }
        let pool = cuda.pool_create(cap.unwrap_or(0)).map_err(|code| cuda.error("cuMemPoolCreate", code))?;
        let this = DriverPool { pool, destroyed: AtomicBool::new(false), blocks: Mutex::new(Blocks::default()) };
        let set = |attribute: u32, value: u64| {
            cuda.pool_set(pool, attribute, value).map_err(|code| cuda.error("cuMemPoolSetAttribute", code))
        };
        let all = [
            (1, u64::from(config.follow_event_dependencies)),
            (2, u64::from(config.allow_opportunistic)),
            (3, u64::from(config.allow_internal_dependencies)),
            (4, config.release_threshold),
        ];
        for (attribute, value) in all {
            if let Err(error) = set(attribute, value) {
                let _ = cuda.pool_destroy(pool);
                return Err(error);
            }
        }
        Ok(this)
    }

    pub(super) fn pointer(&self, index: u32) -> Option<u64> {
        self.blocks.lock().pointers.get(&index).map(|&(pointer, _)| pointer)
    }

    /// The block whose bytes hold `pointer`, and the offset in it.
    pub(super) fn find(&self, pointer: u64) -> Option<(u32, u64)> {
        let blocks = self.blocks.lock();
        let (&base, &(index, bytes)) = blocks.by_pointer.range(..=pointer).next_back()?;
        let offset = pointer - base;
        (offset == 0 || offset < bytes).then_some((index, offset))
    }

    fn add(&self, index: u32, allocation: AllocationId, pointer: u64, bytes: u64) {
        let mut blocks = self.blocks.lock();
        blocks.pointers.insert(index, (pointer, allocation));
        blocks.by_pointer.insert(pointer, (index, bytes));
    }

    /// Takes a block out, for the one call that frees it.
    fn take(&self, index: u32, allocation: AllocationId) -> Option<(u64, u64)> {
        let mut blocks = self.blocks.lock();
        // (Freed since by another thread, its number may be another block's.)
        let (pointer, _) = *blocks.pointers.get(&index).filter(|(_, of)| *of == allocation)?;
        blocks.pointers.remove(&index);
        let (_, bytes) = blocks.by_pointer.remove(&pointer)?;
        Some((pointer, bytes))
    }

    /// Destroys the driver's pool; its blocks stay good (`cuMemPoolDestroy`).
    pub(super) fn destroy(&self, cuda: &CudaDevice) {
        if !self.destroyed.swap(true, Relaxed)
            && let Err(code) = cuda.pool_destroy(self.pool)
        {
            let error = cuda.error("cuMemPoolDestroy", code);
            crate::log::emit(crate::log::Level::Warning, || error.message);
        }
    }
}

/// The parts of a *driver* pool: the device beneath and the driver's pool.
fn parts(pool: &Pool) -> Option<(&Arc<CudaDevice>, &DriverPool)> {
    Some((pool.device.cuda()?, pool.shadow.as_ref()?))
}

fn slot(allocation: AllocationId) -> Option<u32> {
    handle::decode(handle::Kind::Allocation, allocation.0).map(|(index, _)| index)
}

/// Allocates from the driver, then lets the model follow by `model`. `stream`: `None` in host order, where the block is
/// usable at once from any stream.
pub(super) fn allocate(
    pool: &Arc<Pool>,
    size: u64,
    stream: Option<StreamRef>,
    options: &AllocOptions<'_>,
    model: impl FnOnce() -> Result<AllocationId>,
) -> Result<AllocationId> {
    let Some((cuda, own)) = parts(pool) else { return model() };
    if options.alignment > pool.device.options.alignment {
        return Err(Error::new(
            Status::InvalidValue,
            format_args!(
                "alignment: {} is above {}, which is what the driver's pool gives",
                options.alignment, pool.device.options.alignment
            ),
        ));
    }
    let failed = |code| {
        let mut error = cuda.error("cuMemAllocFromPoolAsync", code);
        error.message = format!("{} ({size} bytes)", error.message);
        error
    };
    let _serial = pool.device.enter();
    let on = match stream {
        Some(stream) => native::raw(&pool.device, stream)?,
        None => cuda.own_stream().map_err(|code| cuda.error("cuStreamCreate", code))?,
    };
    let pointer = cuda.pool_allocate(own.pool, size, on).map_err(failed)?;
    let undo = |error: Error| {
        let _ = cuda.free_async(pointer, on);
        error
    };
    if stream.is_none() {
        cuda.stream_synchronize(on).map_err(|code| undo(cuda.error("cuStreamSynchronize", code)))?;
    }
    let allocation = model().map_err(undo)?;
    if let Some(index) = slot(allocation) {
        own.add(index, allocation, pointer, size);
    }
    Ok(allocation)
}

/// Frees to the driver, then lets the model follow by `model`. In host order the device is synchronised first.
pub(super) fn free(
    pool: &Arc<Pool>,
    allocation: AllocationId,
    stream: Option<StreamRef>,
    model: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let Some((cuda, own)) = parts(pool) else { return model() };
    let _serial = pool.device.enter();
    let index = slot(allocation).ok_or_else(|| handle::invalid(handle::Kind::Allocation, allocation.0))?;
    let on = match stream {
        Some(stream) => native::raw(&pool.device, stream)?,
        None => {
            crate::runtime::synchronize_device(&pool.device, &mut Act::Do, true)?;
            cuda.own_stream().map_err(|code| cuda.error("cuStreamCreate", code))?
        }
    };
    // Of two frees that race, one takes it.
    let (pointer, bytes) =
        own.take(index, allocation).ok_or_else(|| handle::gone(handle::Kind::Allocation, allocation.0))?;
    if let Err(code) = cuda.free_async(pointer, on) {
        own.add(index, allocation, pointer, bytes);
        return Err(cuda.error("cuMemFreeAsync", code));
    }
    model()
}

/// Passes an attribute on to the driver's pool.
pub(super) fn set_attribute(pool: &Pool, attribute: u32, value: u64) -> Result<()> {
    let Some((cuda, own)) = parts(pool) else { return Ok(()) };
    pool.device.sound_cuda()?;
    cuda.pool_set(own.pool, attribute, value).map_err(|code| cuda.error("cuMemPoolSetAttribute", code))
}

/// Passes a trim on to the driver's pool.
pub(super) fn trim(pool: &Pool, keep: u64) -> Result<()> {
    let Some((cuda, own)) = parts(pool) else { return Ok(()) };
    cuda.pool_trim(own.pool, keep).map_err(|code| cuda.error("cuMemPoolTrimTo", code))
}

/// The attributes 1–8 of a *driver* pool, by the model and by the driver.
///
/// # Errors
/// [`Status::InvalidValue`] for a pool of another preset; [`Status::DevicePoisoned`]; what the driver answers.
pub(super) fn compare(pool: &Pool) -> Result<Vec<Compared>> {
    let Some((cuda, own)) = parts(pool) else {
        return Err(Error::new(Status::InvalidValue, "pool: only a pool of preset driver has the driver's figures"));
    };
    pool.device.sound_cuda()?;
    (Attribute::FollowEventDependencies as u32..=Attribute::UsedHigh as u32)
        .map(|attribute| {
            let driver =
                cuda.pool_get(own.pool, attribute).map_err(|code| cuda.error("cuMemPoolGetAttribute", code))?;
            Ok(Compared { attribute, model: super::get_attribute(pool.id, attribute)?, driver })
        })
        .collect()
}

/// The block of a *driver* pool of the device that holds `pointer`, and the offset.
pub(super) fn locate(device: &Device, pointer: u64) -> Option<(u32, u64)> {
    let pools: Vec<Arc<Pool>> = device.pools.lock().iter().filter(|pool| pool.shadow.is_some()).cloned().collect();
    pools.iter().find_map(|pool| pool.shadow.as_ref()?.find(pointer))
}
