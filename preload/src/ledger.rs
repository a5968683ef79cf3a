//! Who holds how much: every live block that came through a replaced call, and the sums, by device, kind and stream.
//!
//! A block is struck out before its memory goes back to the driver and written in after it came: between the two, the
//! driver may give the same address to another thread. No lock is held across a call to the driver.

use crate::driver::{Handle, Pointer};
use smp_core::SlotMap;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// Devices told apart; what lies on a later one is booked on the last.
pub const DEVICES: usize = 64;
/// Streams told apart a process; what later ones do is booked under [`OTHER_STREAMS`].
const STREAMS: usize = 1 << 16;
/// The streams beyond the first 65,536.
pub const OTHER_STREAMS: Handle = usize::MAX;

/// By which call a block came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum Kind {
    /// `cuMemAlloc`.
    Device = 0,
    /// `cuMemAllocPitch`.
    Pitch,
    /// `cuMemAllocManaged`.
    Managed,
    /// `cuMemAllocAsync`.
    Async,
    /// `cuMemAllocFromPoolAsync`.
    FromPool,
    /// `cuMemCreate`.
    Physical,
    /// `cuMemAllocHost`, `cuMemHostAlloc`: the host's memory, in no device's sum.
    Host,
}

impl Kind {
    /// Every kind, in order.
    pub const ALL: [Kind; 7] =
        [Kind::Device, Kind::Pitch, Kind::Managed, Kind::Async, Kind::FromPool, Kind::Physical, Kind::Host];

    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Device => "device",
            Kind::Pitch => "pitch",
            Kind::Managed => "managed",
            Kind::Async => "async",
            Kind::FromPool => "from_pool",
            Kind::Physical => "physical",
            Kind::Host => "host",
        }
    }

    /// Whether it takes a device's memory.
    pub fn on_device(self) -> bool {
        self != Kind::Host
    }

    /// Whether it came in stream order.
    pub fn ordered(self) -> bool {
        matches!(self, Kind::Async | Kind::FromPool)
    }

    /// Whether it outlives the context it came in.
    fn outlives_context(self) -> bool {
        self.ordered() || self == Kind::Physical
    }
}

/// One live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Bytes: for [`Kind::Pitch`] with the padding of its rows.
    pub bytes: u64,
    /// Where it lies, whatever is current when it is freed.
    pub device: i32,
    /// The context that was current.
    pub context: Handle,
    /// The stream, for stream-ordered kinds.
    pub stream: Handle,
    /// By which call it came.
    pub kind: Kind,
    /// Address in the program's code that asked for it.
    pub caller: usize,
    /// The pool's handle of it, 0 if the driver gave it.
    pub pooled: u64,
}

/// A sum: what is held now and the most that was.
#[derive(Debug)]
pub struct Sum {
    current: AtomicU64,
    peak: AtomicU64,
    blocks: AtomicU64,
    allocs: AtomicU64,
    frees: AtomicU64,
}

impl Sum {
    const fn new() -> Sum {
        Sum {
            current: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            blocks: AtomicU64::new(0),
            allocs: AtomicU64::new(0),
            frees: AtomicU64::new(0),
        }
    }

    /// Books something held from now on.
    pub fn add(&self, bytes: u64) {
        let now = self.current.fetch_add(bytes, Relaxed) + bytes;
        self.peak.fetch_max(now, Relaxed);
        self.blocks.fetch_add(1, Relaxed);
        self.allocs.fetch_add(1, Relaxed);
    }

    /// Books it as gone.
    pub fn take(&self, bytes: u64) {
        self.current.fetch_sub(bytes, Relaxed);
        self.blocks.fetch_sub(1, Relaxed);
        self.frees.fetch_add(1, Relaxed);
    }

    /// The figures now: exact when no call is running.
    pub fn figures(&self) -> Figures {
        Figures {
            current: self.current.load(Relaxed),
            peak: self.peak.load(Relaxed),
            blocks: self.blocks.load(Relaxed),
            allocs: self.allocs.load(Relaxed),
            frees: self.frees.load(Relaxed),
        }
    }
}

/// The figures of a [`Sum`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Bytes held.
    pub current: u64,
    /// The most bytes held.
    pub peak: u64,
    /// Blocks held.
    pub blocks: u64,
    /// Blocks given out so far.
    pub allocs: u64,
    /// Blocks given back so far.
    pub frees: u64,
}

/// What is known of a device.
pub struct Device {
    /// All kinds that take its memory.
    pub sum: Sum,
    /// Pages that pools hold.
    pub pages: Sum,
    /// By kind.
    pub kinds: [Sum; Kind::ALL.len()],
    /// Bytes that count against the limit: of live blocks, and of those being asked for.
    charged: AtomicU64,
    /// Allocations that the driver refused.
    pub failures: AtomicU64,
    /// Allocations that the limit refused.
    pub refusals: AtomicU64,
}

/// What names a block: an address, or the handle of a physical block, which may look like an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// Named by an address.
    Address,
    /// Named by a handle of `cuMemCreate`.
    Handle,
}

#[derive(Default)]
struct Shard {
    blocks: SlotMap<(Space, u64), Block>,
}

const SHARDS: usize = 64;

static DEVICE_LIST: [Device; DEVICES] = [const {
    Device {
        sum: Sum::new(),
        pages: Sum::new(),
        kinds: [const { Sum::new() }; Kind::ALL.len()],
        charged: AtomicU64::new(0),
        failures: AtomicU64::new(0),
        refusals: AtomicU64::new(0),
    }
}; DEVICES];
static DEVICES_SEEN: AtomicUsize = AtomicUsize::new(0);
static SIZES: [AtomicU64; 65] = [const { AtomicU64::new(0) }; 65];
static FOREIGN_FREES: AtomicU64 = AtomicU64::new(0);
static SHARD_LIST: LazyLock<Vec<Mutex<Shard>>> = LazyLock::new(|| (0..SHARDS).map(|_| Mutex::default()).collect());
static STREAM_LIST: LazyLock<Mutex<BTreeMap<(i32, Handle), Figures>>> = LazyLock::new(Mutex::default);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A device's books.
pub fn device(ordinal: i32) -> &'static Device {
    let at = usize::try_from(ordinal).unwrap_or(0).min(DEVICES - 1);
    DEVICES_SEEN.fetch_max(at + 1, Relaxed);
    &DEVICE_LIST[at]
}

/// The devices that something was booked on or asked of, and those below them.
pub fn devices() -> &'static [Device] {
    &DEVICE_LIST[..DEVICES_SEEN.load(Relaxed)]
}

impl Device {
    /// Sets `bytes` aside for a request, within `limit`. `false`: they do not fit. Without a limit all do, and what the driver is
    /// about to refuse to one thread is in no other's way: sums wrap meanwhile.
    pub fn charge(&self, bytes: u64, limit: Option<u64>) -> bool {
        let Some(limit) = limit else {
            self.charged.fetch_add(bytes, Relaxed);
            return true;
        };
        self.charged
            .fetch_update(Relaxed, Relaxed, |charged| charged.checked_add(bytes).filter(|sum| *sum <= limit))
            .is_ok()
    }

    /// Takes back a charge: the request failed, or the memory has gone back.
    pub fn discharge(&self, bytes: u64) {
        self.charged.fetch_sub(bytes, Relaxed);
    }

    /// Bytes charged now.
    pub fn charged(&self) -> u64 {
        self.charged.load(Relaxed)
    }
}

fn key(kind: Kind, at: u64) -> (Space, u64) {
    (if kind == Kind::Physical { Space::Handle } else { Space::Address }, at)
}

fn shard(at: u64) -> MutexGuard<'static, Shard> {
    // Blocks lie at multiples of 512 and more; a multiplication spreads what differs in the upper bits only. (By another number
    // than in the maps, which would else see the same bits in all their keys.)
    lock(&SHARD_LIST[(at.wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 58) as usize])
}

/// Books a block that the driver gave and that has been charged.
pub fn write_in(at: Pointer, block: Block) {
    let books = device(block.device);
    if block.kind.on_device() {
        books.sum.add(block.bytes);
    }
    books.kinds[block.kind as usize].add(block.bytes);
    SIZES[(u64::BITS - block.bytes.saturating_sub(1).leading_zeros()) as usize].fetch_add(1, Relaxed);
    if block.kind.ordered() {
        book_stream(block.device, block.stream, |figures| {
            figures.current += block.bytes;
            figures.peak = figures.peak.max(figures.current);
            figures.blocks += 1;
            figures.allocs += 1;
        });
    }
    let before = shard(at).blocks.insert(key(block.kind, at), block);
    if let Some(before) = before {
        // The address was freed by a call that is not replaced.
        settle(&before);
    }
}

/// Strikes a block out before it is freed. `None`: it did not come through here.
pub fn strike_out(space: Space, at: Pointer) -> Option<Block> {
    shard(at).blocks.remove(&(space, at))
}

/// Holds the lock of an address, as must not be done across a call to the driver.
pub fn hold(at: Pointer) -> impl Sized {
    shard(at)
}

/// The live block that begins at an address.
pub fn at(at: Pointer) -> Option<Block> {
    shard(at).blocks.get(&(Space::Address, at)).copied()
}

/// Puts back what was struck out: the driver did not free it.
pub fn put_back(at: Pointer, block: Block) {
    shard(at).blocks.insert(key(block.kind, at), block);
}

/// Takes a struck-out block off the sums, once its memory has gone back.
pub fn settle(block: &Block) {
    let books = device(block.device);
    if block.kind.on_device() {
        books.sum.take(block.bytes);
        // A pool's block lies in a page, which has been charged.
        if block.pooled == 0 {
            books.discharge(block.bytes);
        }
    }
    books.kinds[block.kind as usize].take(block.bytes);
    if block.kind.ordered() {
        book_stream(block.device, block.stream, |figures| {
            figures.current = figures.current.saturating_sub(block.bytes);
            figures.blocks = figures.blocks.saturating_sub(1);
            figures.frees += 1;
        });
    }
}

fn book_stream(device: i32, stream: Handle, change: impl FnOnce(&mut Figures)) {
    let mut streams = lock(&STREAM_LIST);
    let at = (device, stream);
    let at = if streams.len() < STREAMS || streams.contains_key(&at) { at } else { (device, OTHER_STREAMS) };
    change(streams.entry(at).or_default());
}

/// Counts a free of memory that did not come through here.
pub fn foreign_free() {
    FOREIGN_FREES.fetch_add(1, Relaxed);
}

/// Frees of memory that did not come through here.
pub fn foreign_frees() -> u64 {
    FOREIGN_FREES.load(Relaxed)
}

/// Strikes out the blocks that go with a context, and tells where they begin.
pub fn strike_out_of(context: Handle) -> Vec<(Pointer, Block)> {
    let mut gone = Vec::new();
    for shard in SHARD_LIST.iter() {
        lock(shard).blocks.retain(|&(_, at), block| {
            let stays = block.context != context || block.kind.outlives_context();
            if !stays {
                gone.push((at, *block));
            }
            stays
        });
    }
    gone
}

/// Allocations by size: how many were above 2^(n-1) and at most 2^n bytes, for each n.
pub fn sizes() -> [u64; 65] {
    std::array::from_fn(|at| SIZES[at].load(Relaxed))
}

/// Figures of the streams that stream-ordered allocations named.
pub fn streams() -> Vec<((i32, Handle), Figures)> {
    lock(&STREAM_LIST).iter().map(|(at, figures)| (*at, *figures)).collect()
}

/// Every live block.
pub fn live() -> Vec<Block> {
    SHARD_LIST.iter().flat_map(|shard| lock(shard).blocks.values().copied().collect::<Vec<_>>()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(device: i32, bytes: u64, kind: Kind) -> Block {
        Block { bytes, device, context: 7, stream: 3, kind, caller: 0, pooled: 0 }
    }

    // The books are the process's: each test has devices of its own.

    #[test]
    fn sums_follow_blocks_and_the_peak_stays() {
        let books = device(20);
        for (at, bytes) in [(0x1000, 100), (0x2000, 50)] {
            assert!(books.charge(bytes, None));
            write_in(at, block(20, bytes, Kind::Device));
        }
        settle(&strike_out(Space::Address, 0x1000).unwrap());
        let figures = books.sum.figures();
        assert_eq!(figures, Figures { current: 50, peak: 150, blocks: 1, allocs: 2, frees: 1 });
        assert_eq!(books.charged(), 50);
    }

    #[test]
    fn a_limit_can_be_reached_but_not_passed() {
        let books = device(21);
        assert!(books.charge(60, Some(100)));
        assert!(!books.charge(41, Some(100)));
        assert!(books.charge(40, Some(100)));
        books.discharge(60);
        assert!(!books.charge(u64::MAX, Some(u64::MAX)), "a sum that overflows does not fit");
        assert_eq!(books.charged(), 40);
    }

    #[test]
    fn without_a_limit_no_thread_is_refused_for_what_another_asks() {
        let books = device(25);
        assert!(books.charge(100, None));
        assert!(books.charge(u64::MAX - 50, None), "the driver refuses this");
        assert!(books.charge(1 << 20, None), "and is to be asked for that");
        books.discharge(u64::MAX - 50);
        assert_eq!(books.charged(), 100 + (1 << 20));
    }

    #[test]
    fn what_was_not_written_in_cannot_be_struck_out() {
        assert_eq!(strike_out(Space::Address, 0xdead_0000), None);
    }

    #[test]
    fn host_memory_is_in_no_devices_sum() {
        write_in(0x9000, block(22, 4096, Kind::Host));
        assert_eq!(device(22).sum.figures().current, 0);
        assert_eq!(device(22).kinds[Kind::Host as usize].figures().current, 4096);
        settle(&strike_out(Space::Address, 0x9000).unwrap());
        assert_eq!(device(22).kinds[Kind::Host as usize].figures().blocks, 0);
    }

    #[test]
    fn a_context_takes_its_plain_blocks_along_and_no_stream_ordered_ones() {
        let of = |kind| Block { context: 0x55, ..block(23, 10, kind) };
        for (at, kind) in [(0xa000, Kind::Device), (0xb000, Kind::Async)] {
            assert!(device(23).charge(10, None));
            write_in(at, of(kind));
        }
        assert_eq!(strike_out_of(0x55), [(0xa000, of(Kind::Device))]);
        assert_eq!(strike_out(Space::Address, 0xa000), None);
        assert_eq!(strike_out(Space::Address, 0xb000), Some(of(Kind::Async)));
    }

    #[test]
    fn sizes_are_counted_by_the_power_of_two_that_holds_them() {
        let before = sizes();
        for (at, bytes) in [(0x1_0000, 1 << 41), (0x2_0000, (1 << 41) + 1)] {
            write_in(at, block(24, bytes, Kind::Device));
        }
        let after = sizes();
        assert_eq!((after[41] - before[41], after[42] - before[42]), (1, 1));
    }
}
