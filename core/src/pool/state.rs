//! What a device and its pools keep, and under which lock.
//!
//! Locks, outermost first: the device's serialising lock (only while an observer is installed), the device's *slow*
//! lock, stream locks (any number, only under the slow lock; without it, one), then leaves. The hot path takes one
//! stream's lock and nothing else. Caches of free blocks hang on the stream, under the stream's own lock; whatever
//! several streams may use hangs on the pool, under the slow lock.

use super::bins::Bins;
use super::block::{Block, FREE, NIL, Stock, UNUSED, block};
use super::config::{MemoryPoolConfig, PoolConfig};
use super::mapped::Mapping;
use super::observer::{Event, Observer};
use super::page::PageIndex;
use crate::device_source::model::ModelDevice;
use crate::device_source::{DeviceKind, Grant, ModelOptions};
use crate::handle::{self, DeviceId, PoolId};
use crate::order::{self, At, Order, State, StreamRef};
use crate::slab::{Slab, SlotMap};
use parking_lot::{Mutex, MutexGuard, ReentrantMutex, ReentrantMutexGuard, RwLock};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

/// Every stream of the process.
pub(crate) static STREAMS: order::Table<Caches> = Slab::new();

pub(crate) type StreamState = State<Caches>;
pub(crate) type StreamGuard = MutexGuard<'static, StreamState>;

/// What a stream keeps for the pools: its own frees, and a stock of block records.
#[derive(Default)]
pub(crate) struct Caches {
    /// By pool slot.
    pub(crate) pools: Vec<Option<Box<PoolCache>>>,
    pub(crate) stock: Stock,
}

/// One pool's part of a stream.
pub(crate) struct PoolCache {
    pub(crate) pool: Arc<Pool>,
    /// This stream is the pool's favoured one: see [`Biased`].
    pub(crate) favoured: bool,
    pub(crate) entries: Box<[EntryCache]>,
}

/// One entry's part of a stream: the stream's own free blocks, and counts of what was done on it.
#[derive(Default)]
pub(crate) struct EntryCache {
    pub(crate) bins: Option<Box<Bins>>,
    /// The entry's list of streams with free blocks names this stream.
    pub(crate) published: bool,
    pub(crate) counts: Counts,
}

/// Counts kept per stream and added up when asked for. Differences may go below zero on one stream.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) requested: i64,
    pub(crate) live: i64,
    pub(crate) allocs: u64,
    pub(crate) frees: u64,
    pub(crate) reuse: [u64; 6],
    pub(crate) splits: u64,
    pub(crate) merges: u64,
    pub(crate) unordered_frees: u64,
    pub(crate) internal_waits: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Counts) {
        self.requested += other.requested;
        self.live += other.live;
        self.allocs += other.allocs;
        self.frees += other.frees;
        for (mine, theirs) in self.reuse.iter_mut().zip(other.reuse) {
            *mine += theirs;
        }
        self.splits += other.splits;
        self.merges += other.merges;
        self.unordered_frees += other.unordered_frees;
        self.internal_waits += other.internal_waits;
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
    pub(crate) fn page_bytes(&self, need: u64, granularity: u64) -> Option<u64> {
        match self.kind {
            Kind::Sliced => Some(self.page_size),
            Kind::Exclusive | Kind::Direct => need.checked_next_multiple_of(granularity),
            Kind::Cuda => need.checked_next_multiple_of(super::config::CUDA_PAGE),
            Kind::Mapped => None,
        }
    }
}

/// A sum that one favoured stream adds to with plain writes (under its lock), and all others atomically. The two parts
/// wrap; their sum does not, except to a reader that races with calls under way, which takes it for 0.
#[derive(Default)]
pub(crate) struct Biased {
    own: AtomicU64,
    rest: AtomicU64,
}

impl Biased {
    #[inline(always)]
    pub(crate) fn add(&self, amount: u64, favoured: bool) {
        if favoured {
            self.own.store(self.own.load(Relaxed).wrapping_add(amount), Relaxed);
        } else {
            self.rest.fetch_add(amount, Relaxed);
        }
    }
    #[inline(always)]
    pub(crate) fn sub(&self, amount: u64, favoured: bool) {
        self.add(amount.wrapping_neg(), favoured);
    }
    /// As [`Biased::add`], and what other threads added before is in the next [`Biased::get`].
    #[inline(always)]
    fn add_fenced(&self, amount: u64, favoured: bool) {
        if favoured {
            self.own.swap(self.own.load(Relaxed).wrapping_add(amount), SeqCst);
        } else {
            self.rest.fetch_add(amount, SeqCst);
        }
    }
    #[inline(always)]
    pub(crate) fn get(&self) -> u64 {
        let sum = self.own.load(Relaxed).wrapping_add(self.rest.load(Relaxed));
        if sum >> 63 == 0 { sum } else { 0 }
    }
}

/// Figures every stream adds to at once, so that marks are exact when calls are serialised. Reserved figures change
/// only under the slow lock.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) used: Biased,
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
}

impl Tally {
    /// A block of `bytes` becomes live in `entry` of the pool. Both marks are exact when calls are serialised; of calls
    /// that overlap, at least one sees all the others' blocks.
    #[inline(always)]
    pub(crate) fn take(&self, entry: &Tally, bytes: u64, favoured: bool) {
        entry.used.add(bytes, favoured);
        self.used.add_fenced(bytes, favoured);
        for tally in [self, entry] {
            let after = tally.used.get();
            if after > tally.used_high.load(Relaxed) {
                tally.used_high.fetch_max(after, Relaxed);
            }
        }
    }
    /// It is freed.
    #[inline(always)]
    pub(crate) fn drop(&self, entry: &Tally, bytes: u64, favoured: bool) {
        entry.used.sub(bytes, favoured);
        self.used.sub(bytes, favoured);
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
    pub(crate) slow_only: AtomicU32,
    /// Successful allocations so far.
    pub(crate) allocations: Biased,
    /// A stream was chosen as the favoured one.
    pub(crate) has_favoured: AtomicBool,
    pub(crate) tally: Tally,
    pub(crate) entry_tally: Box<[Tally]>,
    /// Per entry: streams that may hold free blocks of it. A leaf.
    pub(crate) published: Box<[Mutex<Vec<StreamRef>>]>,
    /// Per entry: pages that had no live block at some time. A leaf.
    pub(crate) empties: Box<[Mutex<Vec<u32>>]>,
    /// Streams that have a cache of this pool. A leaf.
    pub(crate) attached: Mutex<Vec<u32>>,
    pub(crate) names: Mutex<HashMap<u32, String>>,
    pub(crate) users: Mutex<HashMap<u32, Vec<StreamRef>>>,
    pub(crate) callback: Mutex<Option<OutOfMemoryCallback>>,
    /// Under the device's slow lock; a mutex of its own only so that the compiler can see it.
    pub(crate) shared: Mutex<PoolShared>,
    pub(crate) accesses: super::access::Table,
}

#[derive(Default)]
pub(crate) struct PoolShared {
    pub(crate) entries: Vec<EntryShared>,
    /// Free points of multi blocks, ascending by stream.
    pub(crate) points: SlotMap<u32, Vec<At>>,
    pub(crate) stock: Stock,
}

#[derive(Default)]
pub(crate) struct EntryShared {
    /// Observed free blocks, and never-used ones unless the entry is Cuda.
    pub(crate) observed: Bins,
    /// Never-used blocks of a Cuda entry.
    pub(crate) unused: Bins,
    /// (size, address, block)
    pub(crate) multi: BTreeSet<(u64, u64, u32)>,
    pub(crate) multi_bytes: u64,
    pub(crate) pages: BTreeSet<u32>,
    /// What a Mapped entry has reserved and mapped.
    pub(crate) mapped: Mapping,
    /// What host-ordered calls and streams that are gone counted.
    pub(crate) counts: Counts,
}

/// The device's pages and what model addresses come next; under the slow lock.
#[derive(Default)]
pub(crate) struct Granted {
    pub(crate) grants: HashMap<u32, Grant>,
    pub(crate) next_address: u64,
}

pub(crate) struct Device {
    pub(crate) id: DeviceId,
    pub(crate) slot: u32,
    pub(crate) uid: u32,
    pub(crate) kind: DeviceKind,
    pub(crate) options: ModelOptions,
    pub(crate) source: ModelDevice,
    pub(crate) order: Order,
    pub(crate) slow: Mutex<()>,
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
    pub(crate) per_thread: Mutex<HashMap<u64, StreamRef>>,
    pub(crate) in_callback: Mutex<Vec<(std::thread::ThreadId, PoolId)>>,
    pub(crate) page_allocs: AtomicU64,
    pub(crate) page_frees: AtomicU64,
    pub(crate) reserved: AtomicU64,
}

/// First model address. No x86-64 (48- or 57-bit) or arm64 (top-byte-ignore) user space can map it.
pub(crate) const FIRST_ADDRESS: u64 = 0x53F0_0000_0000_0000;
/// One past the last model address.
pub(crate) const END_ADDRESS: u64 = 0x5400_0000_0000_0000;

impl Device {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(id: DeviceId, slot: u32, uid: u32, options: ModelOptions, order: Order) -> Device {
        Device {
            id,
            slot,
            uid,
            kind: DeviceKind::Model,
            source: ModelDevice::new(&options),
            options,
            order,
            slow: Mutex::new(()),
            granted: Mutex::new(Granted { grants: HashMap::new(), next_address: FIRST_ADDRESS }),
            pools: Mutex::new(Vec::new()),
            serial: AtomicBool::new(false),
            serial_lock: ReentrantMutex::new(()),
            observer: RwLock::new(None),
            by_address: RwLock::new(BTreeMap::new()),
            by_pointer: RwLock::new(BTreeMap::new()),
            closed: AtomicBool::new(false),
            per_thread: Mutex::new(HashMap::new()),
            in_callback: Mutex::new(Vec::new()),
            page_allocs: AtomicU64::new(0),
            page_frees: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
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
        if observer.is_some() && place.is_some() {
            return false;
        }
        self.serial.store(observer.is_some(), std::sync::atomic::Ordering::SeqCst);
        *place = observer;
        drop(place);
        // Whoever holds a lock now did not see the flag; wait for them.
        drop(self.slow.lock());
        let streams: Vec<StreamRef> = self.order.streams.lock().iter().copied().collect();
        for stream in streams {
            drop(STREAMS.at(stream.slot()).state.lock());
        }
        true
    }
    pub(crate) fn has_observer(&self) -> bool {
        self.observer.read().is_some()
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
                state.live = false;
                state.attach.pools = Vec::new();
                state.attach.stock.give_back();
                let used_up = handle::used_up(state.generation);
                drop(state);
                if !used_up {
                    STREAMS.give_back([stream.slot()]);
                }
            }
        }
    }
}

impl order::Progress for Device {
    fn executed(&self, stream: StreamRef) -> u64 {
        let record = STREAMS.at(stream.slot());
        let executed = record.executed();
        if record.is(self.uid, stream) { executed } else { u64::MAX }
    }
}

/// The slow path's locks: the device's slow lock and any number of streams.
pub(crate) struct Slow<'a> {
    pub(crate) device: &'a Device,
    _slow: MutexGuard<'a, ()>,
    held: Vec<(u32, StreamGuard)>,
    /// Where in `held` a slot is, once there are too many to look through.
    places: SlotMap<u32, usize>,
}

/// How many locked streams are looked through one by one.
const FEW: usize = 8;

impl<'a> Slow<'a> {
    pub(crate) fn lock(device: &'a Device) -> Self {
        Slow { device, _slow: device.slow.lock(), held: Vec::new(), places: SlotMap::default() }
    }

    /// Locks a stream's slot (once) and gives its state.
    pub(crate) fn state(&mut self, slot: u32) -> &mut StreamState {
        let known = match self.held.len() {
            0..=FEW => self.held.iter().position(|held| held.0 == slot),
            _ => self.places.get(&slot).copied(),
        };
        let index = match known {
            Some(index) => index,
            None => self.lock_stream(slot),
        };
        &mut self.held[index].1
    }

    fn lock_stream(&mut self, slot: u32) -> usize {
        self.held.push((slot, STREAMS.at(slot).state.lock()));
        let index = self.held.len() - 1;
        if index == FEW {
            self.places = self.held.iter().enumerate().map(|(at, held)| (held.0, at)).collect();
        } else if index > FEW {
            self.places.insert(slot, index);
        }
        index
    }

    /// The cache of `pool` on a stream, made if there is none.
    pub(crate) fn cache(&mut self, slot: u32, pool: &Arc<Pool>) -> &mut PoolCache {
        let caches = &mut self.state(slot).attach.pools;
        let index = pool.slot as usize;
        if caches.len() <= index {
            caches.resize_with(index + 1, || None);
        }
        let stale = caches[index].as_ref().is_none_or(|cache| cache.pool.id != pool.id);
        if stale {
            pool.attached.lock().push(slot);
            caches[index] = Some(Box::new(PoolCache {
                pool: pool.clone(),
                favoured: !pool.has_favoured.swap(true, Relaxed),
                entries: pool.entries.iter().map(|_| EntryCache::default()).collect(),
            }));
        }
        caches[index].as_mut().expect("just made")
    }

    /// The streams that hold free blocks of an entry, all locked, lowest id first; streams found to hold none leave
    /// the list.
    pub(crate) fn holders(&mut self, pool: &Arc<Pool>, entry: usize) -> Vec<StreamRef> {
        let mut list = std::mem::take(&mut *pool.published[entry].lock());
        list.sort_unstable();
        list.retain(|&stream| {
            let here = STREAMS.at(stream.slot()).is(self.device.uid, stream);
            if !here {
                return false;
            }
            let cache = &mut self.cache(stream.slot(), pool).entries[entry];
            let holds = cache.bins.as_ref().is_some_and(|bins| bins.count > 0);
            if !holds {
                cache.published = false;
            }
            holds
        });
        pool.published[entry].lock().extend_from_slice(&list);
        list
    }

    pub(crate) fn bins(&mut self, stream: StreamRef, pool: &Arc<Pool>, entry: usize) -> &mut Bins {
        self.cache(stream.slot(), pool).entries[entry].bins.get_or_insert_with(Box::default)
    }
}

impl EntryCache {
    /// The bins to put a free block into; makes the stream known to the entry.
    #[inline(always)]
    pub(crate) fn bins_to_fill(&mut self, pool: &Pool, entry: usize, me: StreamRef) -> &mut Bins {
        if !self.published {
            self.published = true;
            pool.published[entry].lock().push(me);
        }
        self.bins.get_or_insert_with(Box::default)
    }
}

/// Puts a free block of `domain` into `bins`, merged with its neighbours of the same domain. Returns how often it merged.
/// `unused` are the bins of a Cuda entry's never-used blocks (only with the observed domain). The block's flags say FREE
/// and whether it is UNUSED. All under the domain's lock.
#[inline(always)]
pub(crate) fn insert_merged(
    mut index: u32,
    mut b: &'static Block,
    domain: StreamRef,
    bins: &mut Bins,
    mut unused: Option<&mut Bins>,
    stock: &mut Stock,
    pages: &PageIndex,
) -> u64 {
    let mut merges = 0;
    debug_assert!(b.stream() == domain && b.has(FREE));
    let next = b.next();
    if next != NIL {
        let n = block(next);
        if n.stream() == domain && n.has(FREE) && n.addr() == b.end() && n.page() == b.page() {
            take_out(next, n, bins, unused.as_deref_mut());
            absorb(index, b, next, n, stock, pages);
            merges += 1;
        }
    }
    let prev = b.prev();
    if prev != NIL {
        let p = block(prev);
        if p.stream() == domain && p.has(FREE) && p.end() == b.addr() && p.page() == b.page() {
            take_out(prev, p, bins, unused.as_deref_mut());
            absorb(prev, p, index, b, stock, pages);
            (index, b) = (prev, p);
            merges += 1;
        }
    }
    match unused {
        Some(unused) if b.has(UNUSED) => unused.insert_record(index, b),
        _ => bins.insert_record(index, b),
    }
    merges
}

#[inline(always)]
fn take_out(index: u32, b: &Block, bins: &mut Bins, unused: Option<&mut Bins>) {
    match unused {
        Some(unused) if b.has(UNUSED) => unused.remove_record(index, b),
        _ => bins.remove_record(index, b),
    }
}

/// `right` becomes part of `left`; neither is in a structure.
#[inline(always)]
pub(crate) fn absorb(left: u32, l: &Block, right: u32, r: &Block, stock: &mut Stock, pages: &PageIndex) {
    let unused = l.flags() & r.flags() & UNUSED;
    let next = r.next();
    pages.clear(r.addr());
    l.set_seq(l.seq().max(r.seq()));
    l.set_next(next);
    if next != NIL {
        block(next).set_prev(left);
    }
    l.set_size_flags(l.size() + r.size(), FREE | unused);
    stock.give_record(right, r);
}

/// Cuts `need` bytes off the low end of a free block that is in no structure; returns the remainder, if any, in the
/// same domain with the same point and flags. `None` in the error case: no record left.
#[inline(always)]
pub(crate) fn cut(
    index: u32,
    b: &Block,
    need: u64,
    stock: &mut Stock,
    pages: &PageIndex,
) -> Result<Option<(u32, &'static Block)>, ()> {
    if b.size() == need {
        return Ok(None);
    }
    let rest = stock.take().ok_or(())?;
    let r = block(rest);
    let next = b.next();
    r.set_addr(b.addr() + need);
    r.set_size_flags(b.size() - need, b.flags());
    r.set_stream(b.stream());
    r.set_seq(b.seq());
    r.set_page(b.page());
    r.set_prev(index);
    r.set_next(next);
    if next != NIL {
        block(next).set_prev(rest);
    }
    b.set_next(rest);
    b.set_size_flags(need, b.flags());
    pages.set(r.addr(), rest);
    Ok(Some((rest, r)))
}
