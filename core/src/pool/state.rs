//! What a device and its pools keep, and under which lock.
//!
//! Locks, outermost first: the device's serialising lock (only while an observer is installed), the device's *slow*
//! lock, stream locks (any number, only under the slow lock; without it, one), then leaves. The hot path takes one
//! stream's lock and nothing else. Caches of free blocks hang on the stream, under the stream's own lock; whatever
//! several streams may use hangs on the pool, under the slow lock.

use super::addresses::Addresses;
use super::bins::Bins;
use super::block::{Stock, block};
use super::caches::{NO_STREAM, PoolCache, Room, STREAMS, Share, list_room};
use super::config::{MemoryPoolConfig, PoolConfig};
use super::mapped::Mapping;
use super::observer::{Event, Observer};
use super::points::PointSets;
use super::seams::Seams;
use super::slow::Slow;
use crate::checks::SlowMutex;
use crate::device_source::cuda::CudaDevice;
use crate::device_source::{DeviceKind, Grant, ModelOptions, Source};
use crate::error::Result;
use crate::few::Few;
use crate::handle::{self, DeviceId, PoolId};
use crate::lock::Comers;
use crate::order::{self, At, Order, StreamRef};
use crate::rules;
use crate::runtime::native::NativeStream;
use crate::slab::SlotMap;
use parking_lot::{Mutex, ReentrantMutex, ReentrantMutexGuard, RwLock};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};

/// Counts kept per stream and added up when asked for. Differences may go below zero on one stream.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) requested: i64,
    pub(crate) frees: u64,
    /// By reason. Together: the allocations.
    pub(crate) reuse: [u64; 6],
    pub(crate) splits: u64,
    pub(crate) merges: u64,
    pub(crate) unordered_frees: u64,
    pub(crate) internal_waits: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Counts) {
        self.requested += other.requested;
        self.frees += other.frees;
        for (mine, theirs) in self.reuse.iter_mut().zip(other.reuse) {
            *mine += theirs;
        }
        self.splits += other.splits;
        self.merges += other.merges;
        self.unordered_frees += other.unordered_frees;
        self.internal_waits += other.internal_waits;
    }
    pub(crate) fn allocs(&self) -> u64 {
        self.reuse.iter().sum()
    }
}

/// Which kind an entry is, for the code that only needs to know that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Exclusive,
    Direct,
    Sliced,
    Cuda,
    Mapped,
}

/// An entry's configuration, worked out once.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    /// Largest request accepted, and largest need (page bytes of a sliced entry).
    pub(crate) accept: u64,
    pub(crate) accept_need: u64,
    /// Bytes of a page (Sliced) or of a chunk (Mapped).
    pub(crate) page_size: u64,
    /// Addresses a Mapped entry reserves at a time.
    pub(crate) range_size: u64,
    /// Frees have to note when they leave a chunk idle, which the hot path does not do.
    pub(crate) slow_free: bool,
    /// Cap in pages (Sliced), chunks (Mapped) or bytes (Cuda).
    pub(crate) cap: u64,
    pub(crate) reclaim_at: u64,
    pub(crate) period: Option<u64>,
}

impl Entry {
    pub(crate) fn new(config: &MemoryPoolConfig) -> Entry {
        let base = Entry {
            kind: Kind::Direct,
            accept: u64::MAX,
            accept_need: u64::MAX,
            page_size: 0,
            range_size: 0,
            slow_free: false,
            cap: u64::MAX,
            reclaim_at: u64::MAX,
            period: None,
        };
        match *config {
            MemoryPoolConfig::Exclusive { max_alloc_size, dealloc_period } => {
                Entry { kind: Kind::Exclusive, accept: max_alloc_size, period: dealloc_period, ..base }
            }
            MemoryPoolConfig::Direct { reclaim_at } => Entry { reclaim_at: reclaim_at.unwrap_or(u64::MAX), ..base },
            MemoryPoolConfig::Sliced { page_size, max_slice_size, max_pool_size, dealloc_period } => Entry {
                kind: Kind::Sliced,
                accept: max_slice_size.unwrap_or(page_size),
                accept_need: page_size,
                page_size,
                cap: max_pool_size.map_or(u64::MAX, |cap| cap / page_size),
                period: dealloc_period,
                ..base
            },
            MemoryPoolConfig::Cuda { max_pool_size } => {
                Entry { kind: Kind::Cuda, cap: max_pool_size.unwrap_or(u64::MAX), ..base }
            }
            MemoryPoolConfig::Mapped { range_size, chunk_size, max_pool_size, dealloc_period } => Entry {
                kind: Kind::Mapped,
                page_size: chunk_size,
                range_size,
                cap: max_pool_size.map_or(u64::MAX, |cap| cap / chunk_size),
                period: dealloc_period,
                slow_free: dealloc_period.is_some(),
                ..base
            },
        }
    }
    #[inline(always)]
    pub(crate) fn accepts(&self, requested: u64, need: u64) -> bool {
        requested <= self.accept && need <= self.accept_need
    }
    /// Blocks are carved from pages, split and merged.
    #[inline(always)]
    pub(crate) fn carves(&self) -> bool {
        matches!(self.kind, Kind::Sliced | Kind::Cuda | Kind::Mapped)
    }
    /// A block of so many bytes stays whole when it is freed on another stream than it was allocated on.
    pub(crate) fn stays_whole(&self, bytes: u64) -> bool {
        self.kind == Kind::Mapped && bytes >= self.page_size && !rules::off(rules::WHOLE_BLOCKS)
    }
    /// A stream's last frees stay unmerged for a while.
    pub(crate) fn keeps_recent(&self) -> bool {
        self.carves() && !self.slow_free && !rules::off(rules::MERGE)
    }
    pub(crate) fn page_bytes(&self, need: u64, granularity: u64) -> Option<u64> {
        match self.kind {
            Kind::Sliced => Some(self.page_size),
            Kind::Exclusive | Kind::Direct => need.checked_next_multiple_of(granularity),
            Kind::Cuda => need.checked_next_multiple_of(super::config::CUDA_PAGE),
            Kind::Mapped => None,
        }
    }
}

/// Figures of a pool or an entry that change only under the slow lock, and the mark of used bytes (see [`Room`]).
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) used_high: AtomicU64,
    pub(crate) reserved: AtomicU64,
    pub(crate) reserved_high: AtomicU64,
    pub(crate) pages: AtomicU64,
    pub(crate) pages_high: AtomicU64,
    pub(crate) page_allocs: AtomicU64,
    pub(crate) page_frees: AtomicU64,
    pub(crate) page_refusals: AtomicU64,
    pub(crate) release_failures: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) progress_queries: AtomicU64,
    pub(crate) host_syncs: AtomicU64,
    /// Chunks that came with another in one call to the device.
    pub(crate) batched: AtomicU64,
    /// Chunks that were mapped elsewhere.
    pub(crate) chunk_moves: AtomicU64,
    /// Ranges of addresses reserved.
    pub(crate) ranges: AtomicU64,
    /// How often a Mapped entry may pause still; changed under the slow lock.
    pub(crate) pauses: AtomicU32,
    /// The largest block that its free leaves recent, 0 if none is; changed only while nothing is live in the entry.
    pub(crate) largest_recent: AtomicU64,
    /// Streams note seams ([`super::seams`]); changed under the slow lock.
    pub(crate) notes_seams: AtomicBool,
}

impl Tally {
    pub(crate) fn of(entry: &Entry) -> Tally {
        let largest_recent = if entry.keeps_recent() { u64::MAX } else { 0 };
        Tally { largest_recent: largest_recent.into(), ..Default::default() }
    }

    /// A page is being asked for: its quota is taken.
    pub(crate) fn ask(&self, bytes: u64) {
        self.reserved.fetch_add(bytes, Relaxed);
        self.pages.fetch_add(1, Relaxed);
    }
    /// The device granted it.
    pub(crate) fn granted(&self) {
        self.reserved_high.fetch_max(self.reserved.load(Relaxed), Relaxed);
        self.pages_high.fetch_max(self.pages.load(Relaxed), Relaxed);
        self.page_allocs.fetch_add(1, Relaxed);
    }
    /// The device refused it.
    pub(crate) fn refused(&self, bytes: u64) {
        self.reserved.fetch_sub(bytes, Relaxed);
        self.pages.fetch_sub(1, Relaxed);
        self.page_refusals.fetch_add(1, Relaxed);
    }
    /// `count` chunks of `bytes` each are being asked for: their quota is taken.
    pub(crate) fn ask_chunks(&self, count: u64, bytes: u64) {
        self.reserved.fetch_add(count * bytes, Relaxed);
        self.pages.fetch_add(count, Relaxed);
    }
    /// The device granted them in one call.
    pub(crate) fn granted_chunks(&self, count: u64) {
        self.granted();
        self.page_allocs.fetch_add(count - 1, Relaxed);
        self.batched.fetch_add(count - 1, Relaxed);
    }
    /// The device refused them in one call.
    pub(crate) fn refused_chunks(&self, count: u64, bytes: u64) {
        self.reserved.fetch_sub(count * bytes, Relaxed);
        self.pages.fetch_sub(count, Relaxed);
        self.page_refusals.fetch_add(1, Relaxed);
    }
    pub(crate) fn shrink(&self, bytes: u64) {
        self.reserved.fetch_sub(bytes, Relaxed);
        self.pages.fetch_sub(1, Relaxed);
        self.page_frees.fetch_add(1, Relaxed);
    }
}

/// Called before an allocation fails; `true`: something was given back, try again.
pub type OutOfMemoryCallback = Arc<dyn Fn(&super::OutOfMemory) -> bool + Send + Sync>;

pub(crate) struct Pool {
    pub(crate) id: PoolId,
    pub(crate) slot: u32,
    pub(crate) device: Arc<Device>,
    pub(crate) config: PoolConfig,
    pub(crate) entries: Box<[Entry]>,
    pub(crate) follow: AtomicBool,
    pub(crate) opportunistic: AtomicBool,
    pub(crate) internal: AtomicBool,
    pub(crate) threshold: AtomicU64,
    /// Mapped entries became ladders, since the device cannot map.
    pub(crate) fell_back: bool,
    pub(crate) destroyed: AtomicBool,
    /// Not 0: the hot path stands aside (destroyed, or out-of-memory callbacks are running).
    pub(crate) aside: AtomicU32,
    /// Successful allocations that belong to no stream that has a share.
    pub(crate) other_allocations: AtomicU64,
    /// What each stream with a cache of this pool counted. A leaf.
    pub(crate) shares: Mutex<Vec<Arc<Share>>>,
    /// How many of these there are.
    pub(crate) sharing: AtomicUsize,
    /// Per entry, then for the pool: streams that may have room. A leaf.
    pub(crate) roomy: Box<[Mutex<Vec<u32>>]>,
    pub(crate) tally: Tally,
    pub(crate) entry_tally: Box<[Tally]>,
    /// Per entry: streams that may hold free blocks of it. A leaf.
    pub(crate) published: Box<[Mutex<Vec<StreamRef>>]>,
    /// Per entry: pages that had no live block at some time. A leaf.
    pub(crate) empties: Box<[Mutex<Vec<u32>>]>,
    /// Streams that have a cache of this pool. A leaf.
    pub(crate) attached: Mutex<Vec<u32>>,
    pub(crate) names: Mutex<SlotMap<u32, String>>,
    pub(crate) users: Mutex<SlotMap<u32, Few<StreamRef, 2>>>,
    pub(crate) callback: Mutex<Option<OutOfMemoryCallback>>,
    /// Under the device's slow lock; a mutex of its own only so that the compiler can see it.
    pub(crate) shared: Mutex<PoolShared>,
    pub(crate) accesses: super::access::Table,
    /// A *driver* pool: the driver's own pool, and its blocks' pointers.
    pub(crate) shadow: Option<super::driver::DriverPool>,
}

impl Pool {
    /// An entry's mark of used bytes, or with the number of entries the pool's.
    pub(crate) fn mark(&self, mark: usize) -> &AtomicU64 {
        match self.entry_tally.get(mark) {
            Some(tally) => &tally.used_high,
            None => &self.tally.used_high,
        }
    }

    /// Successful allocations so far.
    pub(crate) fn allocations(&self) -> u64 {
        let shares = self.shares.lock();
        shares.iter().fold(self.other_allocations.load(Relaxed), |sum, share| sum + share.total())
    }

    /// The same, for the holder of a stream's lock, whose share this is: it needs no other lock while there is no other share.
    #[inline(always)]
    pub(crate) fn allocations_seen_by(&self, share: &Share) -> u64 {
        match self.sharing.load(Relaxed) {
            1 => self.other_allocations.load(Relaxed) + share.total(),
            _ => self.allocations(),
        }
    }

    /// A stream that comes to the pool counts its own.
    pub(super) fn add_share(&self) -> Arc<Share> {
        let share: Arc<Share> = Arc::default();
        let mut shares = self.shares.lock();
        shares.push(share.clone());
        self.sharing.store(shares.len(), Relaxed);
        share
    }

    /// A stream's share is counted with what belongs to no stream from now on.
    pub(crate) fn drop_share(&self, share: &Arc<Share>) {
        let mut shares = self.shares.lock();
        shares.retain(|other| !Arc::ptr_eq(other, share));
        self.other_allocations.fetch_add(share.total(), Relaxed);
        self.sharing.store(shares.len(), Relaxed);
    }

    /// The hot path may be taken.
    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        self.aside.load(Relaxed) == 0 && !self.device.serial.load(Relaxed)
    }
    /// The same, on a stream that is ready: none is while an observer is installed.
    #[inline(always)]
    pub(crate) fn is_open_to_ready(&self) -> bool {
        self.aside.load(Relaxed) == 0
    }
    /// The hot path is not taken any more, until as many [`Pool::step_back`].
    pub(crate) fn step_aside(&self, slow: &mut Slow<'_>) {
        self.aside.fetch_add(1, Relaxed);
        for slot in slow.lock_attached(self) {
            if let Some(Some(cache)) = slow.state(slot).attach.pools.get_mut(self.slot as usize)
                && cache.id == self.id
            {
                cache.stand_aside();
            }
        }
    }
    pub(crate) fn step_back(&self) {
        self.aside.fetch_sub(1, Relaxed);
    }
}

#[derive(Default)]
pub(crate) struct PoolShared {
    /// Of host-ordered frees and of streams that are gone, towards the pool's mark.
    pub(crate) room: Room,
    pub(crate) entries: Vec<EntryShared>,
    /// Free points of multi blocks.
    pub(crate) points: PointSets,
    pub(crate) stock: Stock,
    /// Memory for a list of blocks.
    pub(crate) listed: Vec<u32>,
}

/// The streams on which an entry's blocks have been allocated and freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sole {
    None,
    One(StreamRef),
    /// Several, or the host.
    Many,
}

impl Sole {
    pub(crate) fn is_several(self) -> bool {
        self == Sole::Many
    }
}

pub(crate) struct EntryShared {
    /// As the pool's.
    pub(crate) room: Room,
    /// Observed free blocks, and never-used ones unless the entry is Cuda.
    pub(crate) observed: Bins,
    /// Never-used blocks of a Cuda entry.
    pub(crate) unused: Bins,
    /// Free blocks of several points, which `PoolShared::points` has.
    pub(crate) multi: Bins,
    /// Counts what came to `multi`, and what has fewer points there than it had.
    pub(crate) multi_changes: u64,
    pub(crate) pages: BTreeSet<u32>,
    /// Where free blocks touch.
    pub(crate) seams: Seams,
    /// What a Mapped entry has reserved and mapped.
    pub(crate) mapped: Mapping,
    /// On which streams its blocks are allocated and freed.
    pub(crate) sole: Sole,
    /// A free block has been whole.
    pub(crate) whole: bool,
    /// What host-ordered calls and streams that are gone counted.
    pub(crate) counts: Counts,
}

impl EntryShared {
    pub(crate) fn new() -> EntryShared {
        EntryShared {
            room: Room::default(),
            observed: Bins::new(),
            unused: Bins::new(),
            multi: Bins::new(),
            multi_changes: 0,
            pages: BTreeSet::new(),
            seams: Seams::default(),
            mapped: Mapping::default(),
            sole: Sole::None,
            whole: false,
            counts: Counts::default(),
        }
    }
    /// A block was allocated or freed: on this stream, or not in the order of one only. (A stream does neither by the hot path
    /// before it has done so here.)
    pub(crate) fn note_order(&mut self, pool: &Pool, entry: usize, stream: Option<StreamRef>) {
        self.sole = match (self.sole, stream) {
            (Sole::None, Some(stream)) => Sole::One(stream),
            (Sole::One(sole), Some(stream)) if sole == stream => return,
            (Sole::Many, _) => return,
            _ => Sole::Many,
        };
        if self.sole == Sole::Many {
            pool.entry_tally[entry].pauses.store(0, Relaxed);
        }
    }
    /// Bytes of free blocks that belong to no single stream.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.observed.bytes + self.unused.bytes + self.multi.bytes
    }
}

impl PoolShared {
    /// As [`PoolCache::room`].
    pub(crate) fn room(&mut self, mark: usize) -> &mut Room {
        match self.entries.get_mut(mark) {
            Some(entry) => &mut entry.room,
            None => &mut self.room,
        }
    }

    /// Puts a free block of these points, in no structure, among the multi blocks.
    pub(crate) fn insert_multi(&mut self, entry: usize, index: u32, points: &[At]) {
        self.points.insert(index, points);
        let own = &mut self.entries[entry];
        own.multi.insert(index);
        own.observed.note_beside(index, block(index));
        own.multi_changes += 1;
    }

    /// Gives `bytes` of an entry back as room that belongs to no stream.
    pub(crate) fn give_room(&mut self, pool: &Pool, entry: usize, bytes: u64) {
        for mark in [entry, pool.entries.len()] {
            self.add_room(pool, mark, bytes);
        }
    }

    /// The room of a stream that is gone belongs to none.
    pub(crate) fn take_over_room(&mut self, pool: &Pool, cache: &PoolCache) {
        for mark in 0..=pool.entries.len() {
            self.add_room(pool, mark, cache.room_bytes(mark));
        }
    }

    /// Gives `bytes` back as room that belongs to no stream, towards one mark only.
    pub(crate) fn add_room(&mut self, pool: &Pool, mark: usize, bytes: u64) {
        let room = self.room(mark);
        room.bytes += bytes;
        if bytes > 0 {
            list_room(pool, mark, room, NO_STREAM);
        }
    }
}

/// The device's pages and what model addresses they get; under the slow lock.
pub(crate) struct Granted {
    pub(crate) grants: SlotMap<u32, Grant>,
    pub(crate) addresses: Addresses,
}

pub(crate) struct Device {
    pub(crate) id: DeviceId,
    pub(crate) slot: u32,
    pub(crate) uid: u32,
    pub(crate) kind: DeviceKind,
    pub(crate) options: ModelOptions,
    pub(crate) source: Source,
    pub(crate) order: Order,
    pub(crate) slow: SlowMutex,
    /// Who took that lock.
    pub(crate) comers: Comers,
    pub(crate) granted: Mutex<Granted>,
    /// Pools with anything left, in order of creation. A leaf.
    pub(crate) pools: Mutex<Vec<Arc<Pool>>>,
    pub(crate) serial: AtomicBool,
    serial_lock: ReentrantMutex<()>,
    observer: RwLock<Option<Arc<dyn Observer>>>,
    /// Pages by model address and, where there is backing, by pointer.
    pub(crate) by_address: RwLock<BTreeMap<u64, u32>>,
    pub(crate) by_pointer: RwLock<BTreeMap<u64, u32>>,
    /// Its handle is closed: no one is left to synchronise it as a whole.
    pub(crate) closed: AtomicBool,
    pub(crate) per_thread: Mutex<SlotMap<u64, StreamRef>>,
    /// CUDA: streams by the driver's handle. A leaf.
    pub(crate) adopted: RwLock<SlotMap<u64, StreamRef>>,
    /// Destroyed streams that may not be forgotten yet, in the order in which they are looked at. A leaf.
    pub(crate) ended: Mutex<VecDeque<StreamRef>>,
    /// Opaque model device: the answers that a trace recorded inside the call being replayed. A leaf.
    pub(crate) script: Mutex<Script>,
    /// Opaque: the stream of no one whose operations are the host-ordered frees. A leaf.
    pub(crate) timeline: Mutex<Option<StreamRef>>,
    /// CUDA: a stream's identity is verified with the driver on every call.
    pub(crate) checked: bool,
    /// CUDA: the driver is asked on every call whether the stream is capturing, unless the pool waives it.
    pub(crate) capture_check: bool,
    /// Why this device was picked.
    pub(crate) why: String,
    pub(crate) in_callback: Mutex<Vec<(std::thread::ThreadId, PoolId)>>,
    pub(crate) page_allocs: AtomicU64,
    pub(crate) page_frees: AtomicU64,
    pub(crate) reserved: AtomicU64,
}

impl Device {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(
        id: DeviceId,
        slot: u32,
        uid: u32,
        source: Source,
        options: ModelOptions,
        order: Order,
        checked: bool,
        capture_check: bool,
        why: String,
    ) -> Device {
        Device {
            id,
            slot,
            uid,
            kind: if source.cuda().is_some() { DeviceKind::Cuda } else { DeviceKind::Model },
            source,
            options,
            order,
            slow: SlowMutex::new(()),
            comers: Comers::default(),
            granted: Mutex::new(Granted {
                grants: SlotMap::default(),
                addresses: Addresses::new(options.addresses, options.page_granularity),
            }),
            pools: Mutex::new(Vec::new()),
            serial: AtomicBool::new(false),
            serial_lock: ReentrantMutex::new(()),
            observer: RwLock::new(None),
            by_address: RwLock::new(BTreeMap::new()),
            by_pointer: RwLock::new(BTreeMap::new()),
            closed: AtomicBool::new(false),
            per_thread: Mutex::default(),
            adopted: RwLock::default(),
            ended: Mutex::default(),
            script: Mutex::new(Script::default()),
            timeline: Mutex::new(None),
            checked,
            capture_check,
            why,
            in_callback: Mutex::new(Vec::new()),
            page_allocs: AtomicU64::new(0),
            page_frees: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
        }
    }

    /// The CUDA device beneath, if it is one.
    #[inline(always)]
    pub(crate) fn cuda(&self) -> Option<&Arc<CudaDevice>> {
        self.source.cuda()
    }

    /// The CUDA device beneath, if it is one, usable.
    ///
    /// # Errors
    /// DEVICE_POISONED after a sticky error.
    pub(crate) fn sound_cuda(&self) -> Result<Option<&Arc<CudaDevice>>> {
        let cuda = self.source.cuda();
        match cuda.and_then(|cuda| cuda.poison().map(|code| cuda.poisoned_error(code))) {
            Some(error) => Err(error),
            None => Ok(cuda),
        }
    }

    /// Holds the serialising lock while an observer is installed.
    #[inline(always)]
    pub(crate) fn enter(&self) -> Option<ReentrantMutexGuard<'_, ()>> {
        if self.serial.load(Relaxed) { Some(self.serial_lock.lock()) } else { None }
    }

    /// Holds the serialising lock, observer or not: what installs or removes one is not interrupted.
    pub(crate) fn serialise(&self) -> ReentrantMutexGuard<'_, ()> {
        self.serial_lock.lock()
    }

    /// Tells the observer, if there is one.
    #[inline(always)]
    pub(crate) fn tell(&self, event: &Event<'_>) {
        if self.serial.load(Relaxed) {
            self.tell_now(event);
        }
    }
    #[cold]
    fn tell_now(&self, event: &Event<'_>) {
        let observer = self.observer.read().clone();
        if let Some(observer) = observer {
            observer.event(event);
        }
    }

    /// Installs or removes the observer. Calls already under way finish first.
    pub(crate) fn observe(&self, observer: Option<Arc<dyn Observer>>) -> bool {
        let _serial = self.serial_lock.lock();
        let mut place = self.observer.write();
        if observer.is_some() && place.as_ref().is_some_and(|other| other.here()) {
            return false;
        }
        self.serial.store(observer.is_some(), SeqCst);
        self.order.watched.store(observer.is_some(), SeqCst);
        *place = observer;
        drop(place);
        // Whoever holds a lock now did not see the flag; wait for them.
        drop(self.slow.lock());
        let streams: Vec<StreamRef> = self.order.streams.lock().iter().copied().collect();
        for stream in streams {
            let mut state = STREAMS.at(stream.slot()).state.lock();
            state.look_again();
            state.attach.pools.iter_mut().flatten().for_each(|cache| cache.stand_aside());
        }
        true
    }
    pub(crate) fn has_observer(&self) -> bool {
        self.observer.read().as_ref().is_some_and(|observer| observer.here())
    }
}

impl Drop for Device {
    /// The last pool and the handle are gone: the streams' slots go back.
    fn drop(&mut self) {
        for stream in std::mem::take(&mut *self.order.streams.lock()) {
            let record = STREAMS.at(stream.slot());
            let mut state = record.state.lock();
            if record.is(self.uid, stream) {
                record.forget();
                state.close();
                state.attach.pools = Vec::new();
                state.attach.stock.give_back();
                state.attach.native = NativeStream::default();
                let used_up = handle::used_up(state.generation);
                drop(state);
                if !used_up {
                    STREAMS.give_back([stream.slot()]);
                }
            }
        }
    }
}

/// Recorded answers, in the order in which they are asked for again.
#[derive(Default)]
pub(crate) struct Script {
    /// How far a stream had executed.
    pub(crate) progress: VecDeque<(StreamRef, u64)>,
    /// How far others could be made to wait for it.
    pub(crate) waitable: VecDeque<(StreamRef, u64)>,
}

impl Script {
    /// The next answer, if it is about that stream.
    fn next(answers: &mut VecDeque<(StreamRef, u64)>, stream: StreamRef) -> Option<u64> {
        let answer = answers.front().filter(|answer| answer.0 == stream).map(|answer| answer.1);
        if answer.is_some() {
            answers.pop_front();
        }
        answer
    }
}

impl Device {
    /// Whether a trace recorded that a stream was found executed to its end by the call that is replayed.
    pub(crate) fn recorded_end(&self, stream: StreamRef) -> Option<u64> {
        Script::next(&mut self.script.lock().progress, stream)
    }

    /// How far others could be made to wait for a stream, whose state is `native`.
    pub(crate) fn waitable(&self, stream: StreamRef, native: &NativeStream) -> u64 {
        match self.cuda() {
            Some(_) => native.waitable(),
            None => Script::next(&mut self.script.lock().waitable, stream).unwrap_or(0),
        }
    }
}

impl order::Progress for Device {
    fn executed(&self, stream: StreamRef) -> u64 {
        let record = STREAMS.at(stream.slot());
        if self.order.opaque
            && self.cuda().is_none()
            && let Some(answer) = Script::next(&mut self.script.lock().progress, stream)
            && record.is(self.uid, stream)
        {
            record.execute(answer);
        }
        let executed = record.executed();
        if record.is(self.uid, stream) { executed } else { u64::MAX }
    }
}
