//! What a pool is made of: configuration (§4), pages and blocks (§5), figures (§10).

use crate::alloc::OutOfMemory;
use crate::device::Device;
use crate::order::Point;
use std::rc::Rc;

/// Page size of a Cuda entry: 32 MiB.
pub(crate) const CUDA_PAGE: u64 = 32 << 20;

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Failure {
    InvalidValue,
    Destroyed,
    Freed,
    OutOfMemory,
    CapacityExceeded,
    SizeNotAccepted,
    InvalidConfig,
    NotPermitted,
}

/// Why a block could be used, strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Reason {
    SameStream,
    Observed,
    Event,
    Opportunistic,
    Internal,
    Fresh,
}

/// An entry of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Entry {
    Exclusive { max_alloc_size: u64, dealloc_period: Option<u64> },
    Direct { reclaim_at: Option<u64> },
    Sliced { page_size: u64, max_slice_size: Option<u64>, max_pool_size: Option<u64>, dealloc_period: Option<u64> },
    Cuda { max_pool_size: Option<u64> },
    Mapped { range_size: u64, chunk_size: u64, max_pool_size: Option<u64>, dealloc_period: Option<u64> },
}

/// What a pool is created from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Config {
    pub entries: Vec<Entry>,
    pub policy_1: bool,
    pub policy_2: bool,
    pub policy_3: bool,
    pub release_threshold: u64,
    pub sync_on_oom: bool,
}

impl Entry {
    /// The entry with its sizes rounded, or nothing if it is to be refused.
    fn checked(&self, alignment: u64, granularity: u64, capacity: u64) -> Option<Entry> {
        let round = |size: u64| size.checked_next_multiple_of(alignment);
        match *self {
            Entry::Exclusive { max_alloc_size, dealloc_period } => {
                let max_alloc_size = if max_alloc_size == u64::MAX { u64::MAX } else { round(max_alloc_size)? };
                Some(Entry::Exclusive { max_alloc_size, dealloc_period })
            }
            Entry::Direct { reclaim_at } => Some(Entry::Direct { reclaim_at }),
            Entry::Sliced { page_size, max_slice_size, max_pool_size, dealloc_period } => {
                let page_size = round(page_size)?;
                let slice = round(max_slice_size.unwrap_or(page_size))?;
                let fine = page_size > 0
                    && page_size <= 1 << 47
                    && slice > 0
                    && slice <= page_size
                    && max_pool_size.is_none_or(|cap| cap >= page_size);
                fine.then_some(Entry::Sliced { page_size, max_slice_size: Some(slice), max_pool_size, dealloc_period })
            }
            Entry::Cuda { max_pool_size: None } => Some(Entry::Cuda { max_pool_size: None }),
            Entry::Cuda { max_pool_size: Some(0) } => None,
            Entry::Cuda { max_pool_size: Some(cap) } => {
                Some(Entry::Cuda { max_pool_size: Some(cap.checked_next_multiple_of(CUDA_PAGE)?) })
            }
            Entry::Mapped { range_size, chunk_size, max_pool_size, dealloc_period } => {
                let chunk_size = chunk_size.checked_next_multiple_of(granularity)?;
                let fine = chunk_size > 0
                    && chunk_size <= 1 << 47
                    && range_size > 0
                    && max_pool_size.is_none_or(|cap| cap >= chunk_size);
                if !fine {
                    return None;
                }
                let range_size = range_size.checked_next_multiple_of(chunk_size).filter(|&range| range <= 1 << 47)?;
                // In more bits than a size has, so that nothing overflows.
                let most = (u128::from(capacity) * 4).next_multiple_of(chunk_size.into());
                let range_size = if u128::from(range_size) > most { most as u64 } else { range_size };
                Some(Entry::Mapped { range_size, chunk_size, max_pool_size, dealloc_period })
            }
        }
    }

    /// Blocks are cut from pages and merged.
    pub(crate) fn carves(&self) -> bool {
        matches!(self, Entry::Sliced { .. } | Entry::Cuda { .. } | Entry::Mapped { .. })
    }

    /// Size of a chunk, of a Mapped entry.
    pub(crate) fn chunk(&self) -> Option<u64> {
        if let Entry::Mapped { chunk_size, .. } = self { Some(*chunk_size) } else { None }
    }

    pub(crate) fn is_cuda(&self) -> bool {
        matches!(self, Entry::Cuda { .. })
    }

    /// §4; `need` is nothing if it is above what can be had at all.
    pub(crate) fn accepts(&self, requested: u64, need: Option<u64>) -> bool {
        match *self {
            Entry::Exclusive { max_alloc_size, .. } => requested <= max_alloc_size,
            Entry::Direct { .. } | Entry::Cuda { .. } | Entry::Mapped { .. } => true,
            Entry::Sliced { page_size, max_slice_size, .. } => {
                requested <= max_slice_size.unwrap_or(page_size) && need.is_none_or(|need| need <= page_size)
            }
        }
    }

    pub(crate) fn page_bytes(&self, need: u64, granularity: u64) -> u64 {
        match *self {
            Entry::Sliced { page_size, .. } => page_size,
            Entry::Exclusive { .. } | Entry::Direct { .. } => need.next_multiple_of(granularity),
            Entry::Cuda { .. } => need.next_multiple_of(CUDA_PAGE),
            Entry::Mapped { range_size, chunk_size, .. } => range_size.max(need.next_multiple_of(chunk_size)),
        }
    }

    /// A block of `bytes` can serve `need`.
    pub(crate) fn fits(&self, bytes: u64, need: u64) -> bool {
        if matches!(self, Entry::Direct { .. }) { bytes == need } else { bytes >= need }
    }

    /// §5: a stream's last frees stay unmerged for a while.
    pub(crate) fn keeps_recent(&self) -> bool {
        match *self {
            Entry::Sliced { .. } | Entry::Cuda { .. } => true,
            Entry::Mapped { dealloc_period, .. } => dealloc_period.is_none(),
            _ => false,
        }
    }

    pub(crate) fn dealloc_period(&self) -> Option<u64> {
        match *self {
            Entry::Exclusive { dealloc_period, .. }
            | Entry::Sliced { dealloc_period, .. }
            | Entry::Mapped { dealloc_period, .. } => dealloc_period,
            _ => None,
        }
    }
}

impl Config {
    pub(crate) fn checked(&self, alignment: u64, granularity: u64, capacity: u64) -> Option<Config> {
        let entries: Option<Vec<Entry>> =
            self.entries.iter().map(|entry| entry.checked(alignment, granularity, capacity)).collect();
        let entries = entries.filter(|entries| !entries.is_empty())?;
        Some(Config { entries, ..self.clone() })
    }

    /// The pool acts as the driver's: every entry is a Cuda one.
    pub(crate) fn is_cuda(&self) -> bool {
        self.entries.iter().all(Entry::is_cuda)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Position of the allocation.
    Live(usize),
    /// Points by ascending stream. `recent`: not to be merged yet. `whole`: not to be merged before it is observed.
    Free { points: Vec<Point>, never_used: bool, recent: bool, whole: bool },
    /// Whole places where no chunk serves, in a Mapped entry.
    Vacant,
}

/// Neither recent nor whole.
pub(crate) fn free(points: Vec<Point>, never_used: bool) -> State {
    State::Free { points, never_used, recent: false, whole: false }
}

#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) state: State,
}

impl Block {
    pub(crate) fn points(&self) -> Option<&[Point]> {
        match &self.state {
            State::Free { points, .. } => Some(points),
            _ => None,
        }
    }

    pub(crate) fn is_recent(&self) -> bool {
        matches!(self.state, State::Free { recent: true, .. })
    }

    pub(crate) fn never_used(&self) -> bool {
        matches!(self.state, State::Free { never_used: true, .. })
    }
}

pub(crate) struct Page {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    pub(crate) free_since: u64,
    /// By ascending address.
    pub(crate) blocks: Vec<Block>,
}

impl Page {
    pub(crate) fn is_free(&self) -> bool {
        self.blocks.iter().all(|block| block.points().is_some())
    }

    /// §5: merges what may be merged; how many neighbours went.
    pub(crate) fn merge(&mut self) -> u64 {
        let mut merges = 0;
        let mut left = 0;
        while left + 1 < self.blocks.len() {
            if self.blocks[left].state == State::Vacant && self.blocks[left + 1].state == State::Vacant {
                self.blocks[left].bytes += self.blocks[left + 1].bytes;
                self.blocks.remove(left + 1);
                continue;
            }
            let merged = match (&self.blocks[left].state, &self.blocks[left + 1].state) {
                (
                    State::Free { points: a, never_used: x, recent: false, whole: false },
                    State::Free { points: b, never_used: y, recent: false, whole: false },
                ) => match (a.as_slice(), b.as_slice()) {
                    ([], []) => Some(free(Vec::new(), *x && *y)),
                    ([a], [b]) if a.stream == b.stream => Some(free(vec![(*a).max(*b)], false)),
                    _ => None,
                },
                _ => None,
            };
            if let Some(state) = merged {
                self.blocks[left].bytes += self.blocks[left + 1].bytes;
                self.blocks[left].state = state;
                self.blocks.remove(left + 1);
                merges += 1;
            } else {
                left += 1;
            }
        }
        merges
    }
}

/// The figures of §10, of a pool or of one entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Figures {
    pub requested: u64,
    pub used: u64,
    pub used_high: u64,
    pub reserved: u64,
    pub reserved_high: u64,
    pub padding: u64,
    pub live: u64,
    pub pending: u64,
    pub pending_bytes: u64,
    pub allocs: u64,
    pub frees: u64,
    /// Of a pool only.
    pub failures: u64,
    pub pages: u64,
    pub pages_high: u64,
    pub page_allocs: u64,
    pub page_frees: u64,
    pub page_refusals: u64,
    pub release_failures: u64,
    pub device_calls: u64,
    pub unordered_frees: u64,
    /// Of a pool only.
    pub progress_queries: u64,
    pub internal_waits: u64,
    /// Of a pool only.
    pub host_syncs: u64,
    pub chunk_moves: u64,
    pub ranges: u64,
    pub splits: u64,
    pub merges: u64,
    /// By reason.
    pub reuse: [u64; 6],
    pub largest_free: u64,
}

/// One entry of a pool with what it holds. Of `counted` only what cannot be seen in the pages is kept.
pub(crate) struct Shelf {
    pub(crate) kind: Entry,
    pub(crate) pages: Vec<Page>,
    pub(crate) counted: Figures,
    /// Of a Mapped entry.
    pub(crate) chunks: Vec<Chunk>,
    /// Chunks that came with another in one call to the device.
    pub(crate) batched: u64,
    /// The streams that allocations and frees were made on, each once; none: host order.
    pub(crate) orders: Vec<Option<usize>>,
    /// A block was freed that had users added.
    pub(crate) had_users: bool,
    /// How often it has paused since §7.1 served.
    pub(crate) pauses: u64,
    /// The device's last answer to a question for chunks was no.
    pub(crate) refused: bool,
    pub(crate) tight: bool,
    /// For how many allocations a few chunks were moved or returned since it paused last.
    pub(crate) lacking: u64,
    /// The pool's allocations when it paused last.
    pub(crate) paused_at: u64,
    /// Then: the high-water mark of used bytes, whether the entry was tight, the chunks held.
    pub(crate) paused: Option<(u64, bool, u64)>,
    /// The largest block that becomes recent.
    pub(crate) largest_recent: u64,
    /// Blocks that would have become recent but for their size, since it paused last.
    pub(crate) passed_over: usize,
}

/// §5: a chunk. A place is named by its address, which no two ranges have.
pub(crate) struct Chunk {
    /// Where it serves.
    pub(crate) at: u64,
    pub(crate) home: u64,
    pub(crate) ghosts: Vec<Ghost>,
    /// The pool's allocations when its place became idle.
    pub(crate) idle_since: u64,
}

/// A place that a chunk has left, and stays mapped at.
pub(crate) struct Ghost {
    pub(crate) at: u64,
    /// Of the free block that the chunk left there.
    pub(crate) points: Vec<Point>,
}

/// The most recent blocks of a stream in an entry.
pub(crate) const MOST_RECENT: usize = 4096;

/// How many recent blocks alike with what is needed are looked at.
pub(crate) const LOOKED_AT: usize = 64;

/// §5: the smallest size that is alike with this one.
pub(crate) fn least_alike(bytes: u64) -> u64 {
    let mut digits = Vec::new();
    let mut left = bytes;
    while left > 0 {
        digits.insert(0, left % 2);
        left /= 2;
    }
    digits.iter_mut().skip(6).for_each(|digit| *digit = 0);
    digits.into_iter().fold(0, |bytes, digit| bytes * 2 + digit)
}

impl Shelf {
    /// The bytes and sequence numbers of the stream's recent blocks.
    pub(crate) fn recent(&self, stream: usize) -> Vec<(u64, u64)> {
        let own = |block: &Block| match &block.state {
            State::Free { points, recent: true, .. } if points[0].stream == stream => {
                Some((block.bytes, points[0].seq))
            }
            _ => None,
        };
        self.blocks().filter_map(own).collect()
    }
    /// §5: the recent blocks of `stream`, or of every stream, of at least `bytes` are its own like any other.
    pub(crate) fn settle(&mut self, stream: Option<usize>, bytes: u64) {
        for page in &mut self.pages {
            for block in &mut page.blocks {
                if let State::Free { points, recent, .. } = &mut block.state
                    && stream.is_none_or(|stream| points.iter().all(|point| point.stream == stream))
                    && block.bytes >= bytes
                {
                    *recent = false;
                }
            }
            if self.kind.carves() {
                self.counted.merges += page.merge();
            }
        }
    }
    pub(crate) fn reserved(&self) -> u64 {
        match self.kind {
            Entry::Mapped { chunk_size, .. } => self.chunks.len() as u64 * chunk_size,
            _ => self.pages.iter().map(|page| page.bytes).sum(),
        }
    }
    pub(crate) fn used(&self) -> u64 {
        self.blocks().filter(|block| matches!(block.state, State::Live(_))).map(|block| block.bytes).sum()
    }
    /// Pages; of a Mapped entry: chunks.
    pub(crate) fn page_count(&self) -> u64 {
        match self.kind.chunk() {
            Some(chunk) => self.reserved() / chunk,
            None => self.pages.len() as u64,
        }
    }
    /// Notes an allocation or a free.
    pub(crate) fn note_order(&mut self, stream: Option<usize>) {
        if !self.orders.contains(&stream) {
            self.orders.push(stream);
        }
    }
    pub(crate) fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.pages.iter().flat_map(|page| &page.blocks)
    }
}

/// What an out-of-memory callback does; true: try again.
pub(crate) type Callback = Rc<dyn Fn(&mut Device, &OutOfMemory) -> bool>;

pub(crate) struct Pool {
    pub(crate) config: Config,
    pub(crate) shelves: Vec<Shelf>,
    pub(crate) destroyed: bool,
    /// Allocations so far.
    pub(crate) allocations: u64,
    /// What only a pool counts, and its high-water marks.
    pub(crate) counted: Figures,
    pub(crate) callback: Option<Callback>,
    /// How many of its callbacks are running.
    pub(crate) in_callback: u64,
}

impl Pool {
    pub(crate) fn reserved(&self) -> u64 {
        self.shelves.iter().map(Shelf::reserved).sum()
    }
    pub(crate) fn used(&self) -> u64 {
        self.shelves.iter().map(Shelf::used).sum()
    }
    pub(crate) fn page_count(&self) -> u64 {
        self.shelves.iter().map(Shelf::page_count).sum()
    }

    /// Raises the high-water marks to what is held now.
    pub(crate) fn raise_marks(&mut self) {
        for shelf in &mut self.shelves {
            let (used, reserved, pages) = (shelf.used(), shelf.reserved(), shelf.page_count());
            let counted = &mut shelf.counted;
            counted.used_high = counted.used_high.max(used);
            counted.reserved_high = counted.reserved_high.max(reserved);
            counted.pages_high = counted.pages_high.max(pages);
        }
        let (used, reserved, pages) = (self.used(), self.reserved(), self.page_count());
        let counted = &mut self.counted;
        counted.used_high = counted.used_high.max(used);
        counted.reserved_high = counted.reserved_high.max(reserved);
        counted.pages_high = counted.pages_high.max(pages);
    }
}
