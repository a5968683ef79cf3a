//! Pools: pages, the blocks carved from them, and the rules by which a block may be used again. No driver, no files.
//!
//! [`alloc`](alloc()), [`alloc_async`], [`free_async`] and [`free`](free()) are the work; everything else asks or
//! configures. All functions may be called from any thread, with any handle value.

pub mod access;
pub(crate) mod addresses;
mod alloc;
mod bins;
pub(crate) mod block;
pub(crate) mod caches;
mod classes;
pub mod config;
pub(crate) mod driver;
mod elsewhere;
mod free;
mod fresh;
mod front;
mod internal;
mod mapped;
mod merge;
mod observed;
pub mod observer;
pub(crate) mod page;
mod pointers;
mod points;
mod recents;
pub(crate) mod registry;
pub(crate) mod release;
mod seams;
pub(crate) mod slow;
mod span;
pub mod spec;
pub(crate) mod state;
mod stats;

pub use alloc::{
    Left, Locked, Missed, Record, alloc, alloc_async, alloc_async_with, alloc_elsewhere, alloc_missed, alloc_quick,
    alloc_quick_shared, alloc_recent, carve,
};
pub use config::{MemoryPoolConfig, MemorySize, PoolConfig, Preset};
pub use driver::Compared;
pub use free::{
    LeftFree, LeftRecent, Live, add_user, free, free_async, free_emptied, free_missed, free_observed, free_page,
    free_quick, free_quick_shared, free_recent,
};
pub use pointers::{find, pointer};
pub use state::OutOfMemoryCallback;
pub use stats::{Reuse, Stats};

use crate::device_source::PageSource;
use crate::error::{Error, Result, Status};
use crate::handle::{self, AllocationId, DeviceId, PoolId, StreamId};
use crate::order::{At, StreamOrderId};
use crate::rules;
use block::{HOST, NAMED};
use caches::STREAMS;
use observer::Event;
use page::page;
use pointers::pointer_of;
use registry::POOLS;
use slow::Slow;
use state::{Entry, Pool};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Why a block could be used, strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Reason {
    /// Freed on the same stream.
    SameStream = 0,
    /// The host had observed the free.
    Observed = 1,
    /// Policy 1: the free preceded by dependency.
    Event = 2,
    /// Policy 2: the free had executed.
    Opportunistic = 3,
    /// Policy 3: the stream was made to wait.
    Internal = 4,
    /// Never used before.
    Fresh = 5,
}

impl Reason {
    fn from_bits(bits: u64) -> Reason {
        match bits {
            0 => Reason::SameStream,
            1 => Reason::Observed,
            2 => Reason::Event,
            3 => Reason::Opportunistic,
            4 => Reason::Internal,
            _ => Reason::Fresh,
        }
    }
}

/// What is known about an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// The order holds.
    Proved,
    /// It does not.
    Refuted,
    /// The library cannot see.
    Unproven,
}

/// The pool attributes of `cuMemPoolGetAttribute`, by CUDA's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum Attribute {
    FollowEventDependencies = 1,
    AllowOpportunistic = 2,
    AllowInternalDependencies = 3,
    ReleaseThreshold = 4,
    ReservedCurrent = 5,
    ReservedHigh = 6,
    UsedCurrent = 7,
    UsedHigh = 8,
    MaxPoolSize = 13,
}

/// Beyond the size.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllocOptions<'a> {
    /// Alignment in bytes, a power of two up to the page granularity; 0: the device's.
    pub alignment: u64,
    /// A name for reports.
    pub name: Option<&'a str>,
}

/// What is known when memory is out. Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// The pool.
    pub pool: PoolId,
    /// Bytes asked for.
    pub asked: u64,
    /// Used by live blocks of the pool.
    pub used: u64,
    /// Held in pages by the pool.
    pub reserved: u64,
    /// Free, but not observed to be free yet.
    pub pending_bytes: u64,
    /// Largest free block, whatever its free points.
    pub largest_free: u64,
    /// Free on the device; `u64::MAX`: unlimited.
    pub device_free: u64,
    /// All of the device; `u64::MAX`: unlimited.
    pub device_total: u64,
}

impl OutOfMemory {
    /// The figures in words, and what would help: `refusal` where it is not memory that the device has none of. Pages are multiples of
    /// `granularity` bytes.
    pub(crate) fn sentence(&self, refusal: Option<&str>, granularity: u64) -> String {
        let limited = self.device_total != u64::MAX;
        let device = match limited {
            false => "device unlimited".to_owned(),
            true => format!("device free {} of {}", self.device_free, self.device_total),
        };
        let help = if self.largest_free >= self.asked {
            "a synchronise, or an event wait on the stream that freed, would make the largest free block usable"
        } else if self.pending_bytes >= self.asked {
            "a synchronise would let pending frees merge or go back to the device"
        } else if let Some(refusal) = refusal {
            refusal
        } else if limited && self.asked > self.device_total {
            "that is more than the device has"
        } else if limited && self.used.saturating_add(self.asked) > self.device_total {
            "live blocks leave too little of the device: free some"
        } else if limited && self.device_free < granularity && self.device_free >= self.asked {
            return format!(
                "{}; {device}; a page has at least {granularity} bytes: free blocks, trim or destroy other pools, or raise the capacity",
                self.figures()
            );
        } else {
            "free blocks, trim or destroy other pools, or raise the cap or capacity"
        };
        format!("{}; {device}; {help}", self.figures())
    }

    fn figures(&self) -> String {
        format!(
            "asked {} bytes; pool used {}, reserved {}, pending {}, largest free block {}",
            self.asked, self.used, self.reserved, self.pending_bytes, self.largest_free
        )
    }
}

/// What is known of a live allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocationInfo {
    /// Model address: the allocation's identity.
    pub address: u64,
    /// What a kernel uses; 0 on the model device.
    pub device_pointer: u64,
    /// What pointer-returning calls give: device pointer, else host pointer, else the model address.
    pub pointer: u64,
    /// Bytes asked for.
    pub requested: u64,
    /// Model address of the block (differs from `address` with a larger alignment).
    pub block_address: u64,
    /// Bytes of the block.
    pub block_size: u64,
    /// The stream, as a handle; 0 in host order, or if the stream has been destroyed.
    pub stream: StreamId,
    /// The stream's number; 0 in host order.
    pub stream_id: StreamOrderId,
    /// Made in host order: usable at once from any stream.
    pub host_ordered: bool,
    /// Sequence number of the allocation on its stream; 0 in host order.
    pub ready_seq: u64,
    /// Its pool.
    pub pool: PoolId,
    /// Its device.
    pub device: DeviceId,
    /// The entry that served it.
    pub entry: u32,
    /// Why the block could be used.
    pub reason: Reason,
    /// Its name.
    pub name: Option<String>,
}

impl Pool {
    /// Policy 1 is on.
    pub(crate) fn follows(&self) -> bool {
        (self.follow.load(Relaxed) || rules::off(rules::POLICY1_ATTRIBUTE)) && !rules::off(rules::POLICY1)
    }
    /// Some page holds a live block.
    pub(crate) fn has_live_blocks(&self) -> bool {
        let shared = self.shared.lock();
        shared.entries.iter().any(|entry| entry.pages.iter().any(|&slot| page(slot).has_live_block(slot)))
    }
    /// A synchronise may give pages back.
    pub(crate) fn gives_back_at_synchronise(&self) -> bool {
        self.tally.reserved.load(Relaxed) > self.threshold.load(Relaxed)
            || self.destroyed.load(Relaxed)
            || self.entries.iter().any(|entry| entry.period.is_some())
    }
    pub(crate) fn is_cuda(&self) -> bool {
        self.config.preset == Some(Preset::Cuda) || self.entries.iter().all(|entry| entry.kind == state::Kind::Cuda)
    }
}

/// Creates a pool on a device.
///
/// # Errors
/// Bad device; [`Status::InvalidConfig`] naming entry and field.
pub fn create(device: DeviceId, config: &PoolConfig) -> Result<PoolId> {
    let device = crate::runtime::resolve_device(device)?;
    let check = |config: &PoolConfig| config.validate(device.options.alignment, device.options.page_granularity);
    let mut entries = check(config)?;
    let mut fell_back = false;
    if !device.source.supports_mapping()
        && let Some(ladder) = config.without_mapping()
    {
        entries = check(&ladder)?;
        fell_back = true;
    }
    config::bound_ranges(&mut entries, device.options.capacity);
    let shadow = match config.preset {
        Some(Preset::Driver) => {
            let Some(cuda) = device.sound_cuda()? else {
                return Err(Error::new(Status::NotSupported, "preset driver: only a CUDA device has a driver's pools"));
            };
            let [MemoryPoolConfig::Cuda { max_pool_size }] = entries[..] else {
                return Err(Error::new(Status::InvalidConfig, "entries: preset driver has its one cuda entry only"));
            };
            Some(driver::DriverPool::open(cuda, config, max_pool_size)?)
        }
        _ => None,
    };
    let _serial = device.enter();
    let (slot, id) =
        POOLS.open().ok_or_else(|| Error::new(Status::OutOfMemory, "no pool slot left in this process"))?;
    let kinds: Box<[Entry]> = entries.iter().map(Entry::new).collect();
    let count = kinds.len();
    let pool = Arc::new(Pool {
        id,
        slot,
        follow: config.follow_event_dependencies.into(),
        opportunistic: config.allow_opportunistic.into(),
        internal: config.allow_internal_dependencies.into(),
        threshold: config.release_threshold.into(),
        fell_back,
        destroyed: false.into(),
        aside: 0.into(),
        other_allocations: Default::default(),
        shares: Default::default(),
        sharing: Default::default(),
        roomy: (0..=count).map(|_| Default::default()).collect(),
        tally: Default::default(),
        entry_tally: kinds.iter().map(state::Tally::of).collect(),
        published: (0..count).map(|_| Default::default()).collect(),
        empties: (0..count).map(|_| Default::default()).collect(),
        attached: Default::default(),
        names: Default::default(),
        users: Default::default(),
        callback: Default::default(),
        shared: parking_lot::Mutex::new(state::PoolShared {
            entries: (0..count).map(|_| state::EntryShared::new()).collect(),
            ..Default::default()
        }),
        accesses: Default::default(),
        shadow,
        config: PoolConfig { entries, ..config.clone() },
        entries: kinds,
        device: device.clone(),
    });
    device.pools.lock().push(pool.clone());
    POOLS.publish(&pool, device.order.legacy.slot());
    device.tell(&Event::PoolCreate { pool: id, config: &pool.config });
    Ok(id)
}

/// Destroys a pool (`cuMemPoolDestroy`). Live blocks stay usable, their later free succeeds, and the memory goes with
/// the last.
pub fn destroy(pool: PoolId) -> Result<()> {
    let pool = POOLS.resolve(pool)?;
    crate::runtime::native::poll_all(&pool.device);
    let _serial = pool.device.enter();
    let mut slow = Slow::lock(&pool.device);
    if !POOLS.retire(&pool) {
        return Err(handle::gone(handle::Kind::Pool, pool.id.0));
    }
    pool.device.tell(&Event::PoolDestroy { pool: pool.id });
    pool.destroyed.store(true, Relaxed);
    pool.step_aside(&mut slow);
    *pool.callback.lock() = None;
    release::bury(&mut slow, &pool);
    drop(slow);
    if let (Some(cuda), Some(shadow)) = (pool.device.cuda(), &pool.shadow) {
        shadow.destroy(cuda);
    }
    crate::runtime::drain_if_orphaned(&pool.device);
    Ok(())
}

/// Gives back pages until `keep` bytes are left, or no more can go (`cuMemPoolTrimTo`).
pub fn trim_to(pool: PoolId, keep: u64) -> Result<()> {
    let pool = POOLS.resolve(pool)?;
    let _serial = pool.device.enter();
    pool.device.sound_cuda()?;
    driver::trim(&pool, keep)?;
    crate::runtime::native::poll_all(&pool.device);
    pool.device.tell(&Event::TrimTo { pool: pool.id, keep });
    release::trim(&mut Slow::lock(&pool.device), &pool, keep);
    Ok(())
}

/// Reads an attribute by CUDA's number: 1–8, and 13 (the sum of the entries' caps; `u64::MAX` if one has
/// none).
///
/// # Errors
/// [`Status::InvalidValue`] for another number.
pub fn get_attribute(pool: PoolId, attribute: u32) -> Result<u64> {
    let pool = POOLS.resolve(pool)?;
    Ok(match attribute {
        1 => pool.follow.load(Relaxed).into(),
        2 => pool.opportunistic.load(Relaxed).into(),
        3 => pool.internal.load(Relaxed).into(),
        4 => pool.threshold.load(Relaxed),
        5 => pool.tally.reserved.load(Relaxed),
        6 => pool.tally.reserved_high.load(Relaxed),
        7 => used(&pool),
        8 => pool.tally.used_high.load(Relaxed),
        13 => pool.config.entries.iter().fold(0u64, |sum, entry| {
            sum.saturating_add(match *entry {
                MemoryPoolConfig::Sliced { max_pool_size, .. }
                | MemoryPoolConfig::Cuda { max_pool_size }
                | MemoryPoolConfig::Mapped { max_pool_size, .. } => max_pool_size.unwrap_or(u64::MAX),
                _ => u64::MAX,
            })
        }),
        _ => return Err(Error::new(Status::InvalidValue, format_args!("attribute {attribute} is not known"))),
    })
}

fn used(pool: &Arc<Pool>) -> u64 {
    let mut slow = Slow::lock(&pool.device);
    slow.used(&mut pool.shared.lock(), pool, pool.entries.len())
}

/// Sets an attribute by CUDA's number: 1–3 to 0 or 1, 4, and 6 and 8 to 0, which makes the mark the current value.
///
/// # Errors
/// [`Status::InvalidValue`] for a read-only or unknown number, or a value it cannot have.
pub fn set_attribute(pool: PoolId, attribute: u32, value: u64) -> Result<()> {
    let pool = POOLS.resolve(pool)?;
    let _serial = pool.device.enter();
    let refuse = |why: String| Err(Error::new(Status::InvalidValue, why));
    if pool.shadow.is_some() && matches!(attribute, 1..=4 | 6 | 8) {
        driver::set_attribute(&pool, attribute, value)?;
    }
    match attribute {
        1..=3 if value > 1 => return refuse(format!("attribute {attribute} is 0 or 1, not {value}")),
        1 => pool.follow.store(value != 0, Relaxed),
        2 => pool.opportunistic.store(value != 0, Relaxed),
        3 => pool.internal.store(value != 0, Relaxed),
        4 => pool.threshold.store(value, Relaxed),
        6 | 8 if value != 0 => return refuse(format!("attribute {attribute}: a high-water mark can only be set to 0")),
        6 => {
            // (Under the lock by which pages are got: none comes in between.)
            let _slow = Slow::lock(&pool.device);
            pool.tally.reserved_high.store(pool.tally.reserved.load(Relaxed), Relaxed);
        }
        8 => {
            let mut slow = Slow::lock(&pool.device);
            slow.lower_mark(&mut pool.shared.lock(), &pool, pool.entries.len());
        }
        5 | 7 | 13 => return refuse(format!("attribute {attribute} is read-only")),
        _ => return refuse(format!("attribute {attribute} is not known")),
    }
    pool.device.tell(&Event::SetAttribute { pool: pool.id, attribute, value });
    Ok(())
}

/// The pool's figures.
pub fn stats(pool: PoolId) -> Result<Stats> {
    let pool = POOLS.resolve(pool)?;
    let _serial = pool.device.enter();
    Ok(stats::of_pool(&pool))
}

/// How many entries the pool has.
pub fn entry_count(pool: PoolId) -> Result<usize> {
    Ok(POOLS.resolve(pool)?.entries.len())
}

/// One entry's figures.
///
/// # Errors
/// [`Status::InvalidValue`] if there is no such entry.
pub fn entry_stats(pool: PoolId, index: usize) -> Result<Stats> {
    let pool = POOLS.resolve(pool)?;
    if index >= pool.entries.len() {
        return Err(Error::new(
            Status::InvalidValue,
            format_args!("entry {index}: the pool has {} entries", pool.entries.len()),
        ));
    }
    let _serial = pool.device.enter();
    Ok(stats::of_entry(&pool, index))
}

/// The configuration as rounded at creation, with the policies and threshold as they are now.
pub fn config(pool: PoolId) -> Result<PoolConfig> {
    let pool = POOLS.resolve(pool)?;
    Ok(PoolConfig {
        follow_event_dependencies: pool.follow.load(Relaxed),
        allow_opportunistic: pool.opportunistic.load(Relaxed),
        allow_internal_dependencies: pool.internal.load(Relaxed),
        release_threshold: pool.threshold.load(Relaxed),
        ..pool.config.clone()
    })
}

/// So many bytes of a Mapped entry, which nothing has used here yet, were in use at one time where a trace was recorded.
pub(crate) fn note_used(pool: PoolId, index: usize, bytes: u64) -> Result<()> {
    let pool = POOLS.resolve(pool)?;
    let wrong = |what: std::fmt::Arguments<'_>| Err(Error::new(Status::InvalidValue, what));
    match pool.entries.get(index) {
        Some(entry) if entry.kind == state::Kind::Mapped => {}
        _ => return wrong(format_args!("entry {index}: the pool has no such Mapped entry")),
    }
    if bytes > addresses::END_ADDRESS - addresses::FIRST_ADDRESS {
        return wrong(format_args!("entry {index}: {bytes} bytes are more than there are addresses"));
    }
    let _slow = Slow::lock(&pool.device);
    let mut shared = pool.shared.lock();
    if pool.mark(index).load(Relaxed) != 0 {
        return wrong(format_args!("entry {index} has been used already"));
    }
    pool.mark(index).store(bytes, Relaxed);
    shared.add_room(&pool, index, bytes);
    Ok(())
}

/// The pool was to have Mapped entries, which its device cannot serve: it has ladders of sliced entries in their place.
pub fn fell_back(pool: PoolId) -> Result<bool> {
    Ok(POOLS.resolve(pool)?.fell_back)
}

/// Sets or clears what is called before an allocation fails. It runs unlocked, and may free, trim or synchronise, but
/// not allocate from the pool. (While a trace is running, other threads' calls on the device wait for it.)
pub fn set_out_of_memory_callback(pool: PoolId, callback: Option<OutOfMemoryCallback>) -> Result<()> {
    *POOLS.resolve(pool)?.callback.lock() = callback;
    Ok(())
}

/// The device of a pool.
pub fn device(pool: PoolId) -> Result<DeviceId> {
    Ok(POOLS.resolve(pool)?.device.id)
}

/// Reads a live block's record so that what is returned belongs together.
fn read_live<T>(allocation: AllocationId, read: impl Fn(u32, &block::Block) -> T) -> Result<T> {
    let named = block::named(allocation)?;
    named.judge_live()?;
    let value = read(named.index, named.record);
    std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
    named.judge_live()?;
    Ok(value)
}

/// The attributes 1–8 of a pool of preset *driver*, by the model and by the driver.
///
/// # Errors
/// [`Status::InvalidValue`] for a pool of another preset; what the driver answers.
pub fn compare_with_driver(pool: PoolId) -> Result<Vec<Compared>> {
    let pool = POOLS.resolve(pool)?;
    pool.device.sound_cuda()?;
    driver::compare(&pool)
}

/// Everything known of a live allocation.
pub fn info(allocation: AllocationId) -> Result<AllocationInfo> {
    let pool = free::pool_of(allocation)?;
    let name = read_live(allocation, |index, b| b.has(NAMED).then(|| pool.names.lock().get(&index).cloned()))?;
    read_live(allocation, |_, b| {
        let stream = b.stream();
        AllocationInfo {
            address: b.address(),
            device_pointer: if pool.device.cuda().is_some() { pointer_of(b) } else { 0 },
            pointer: pointer_of(b),
            requested: b.requested(),
            block_address: b.addr(),
            block_size: b.size(),
            stream: if stream == HOST { StreamId(0) } else { crate::runtime::handle_of(&pool.device, stream) },
            stream_id: if stream == HOST { StreamOrderId(0) } else { stream.id() },
            host_ordered: stream == HOST,
            ready_seq: b.seq(),
            pool: pool.id,
            device: pool.device.id,
            entry: page(b.page()).entry.load(Relaxed),
            reason: Reason::from_bits(b.reason()),
            name: name.clone().flatten(),
        }
    })
}

/// Whether the allocation's own stream is known to have executed it.
pub fn is_ready(allocation: AllocationId) -> Result<bool> {
    readiness(allocation).map(|known| known == Order::Proved)
}

/// Whether the allocation's own stream has executed it. On CUDA it is proved by an event or synchronise after it, refuted
/// by an event before it that has not been passed; a stream that is quiet proves neither, and is wanted from then on.
pub fn readiness(allocation: AllocationId) -> Result<Order> {
    let pool = free::pool_of(allocation)?;
    let device = &pool.device;
    let at = read_live(allocation, |_, b| At { stream: b.stream(), seq: b.seq() })?;
    if at.stream == HOST || device.order.done(&STREAMS, at) {
        return Ok(Order::Proved);
    }
    if !device.order.opaque {
        return Ok(Order::Refuted);
    }
    crate::runtime::native::poll(device, at.stream);
    if device.order.done(&STREAMS, at) {
        return Ok(Order::Proved);
    }
    crate::runtime::native::want(at.stream);
    let state = STREAMS.at(at.stream.slot()).state.lock();
    let executed = STREAMS.at(at.stream.slot()).executed();
    let before = state.attach.native.fences.iter().any(|fence| executed < fence.seq && fence.seq <= at.seq);
    Ok(if before { Order::Refuted } else { Order::Unproven })
}

/// Whether work submitted to `stream` now is ordered after the allocation.
pub fn is_ready_on(allocation: AllocationId, stream: StreamId) -> Result<Order> {
    let pool = free::pool_of(allocation)?;
    let stream = crate::runtime::resolve_stream(&pool.device, stream)?;
    let at = read_live(allocation, |_, b| At { stream: b.stream(), seq: b.seq() })?;
    let holds = at.stream == HOST || crate::runtime::work_follows(&pool.device, at, stream);
    Ok(match (holds, pool.device.order.opaque) {
        (true, _) => Order::Proved,
        (false, false) => Order::Refuted,
        (false, true) => Order::Unproven,
    })
}

/// Compares every structure of the pool with its rules. Slow; for tests.
pub fn check_invariants(pool: PoolId) -> std::result::Result<(), String> {
    let pool = POOLS.resolve(pool).map_err(|error| error.to_string())?;
    stats::check(&pool)
}
