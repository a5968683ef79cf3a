//! The driver's stream-ordered memory pools: chunks of 32 MiB, blocks of 512 bytes, CUDA's three reuse policies.
//!
//! Nothing is merged ahead of time. An allocation looks for *runs* of adjacent free blocks that its reason lets it use,
//! takes the smallest that fits (the lowest among equals) from its low end, and only then tries the next reason.

use std::collections::BTreeMap;

use crate::order::Point;

/// Bytes of a chunk, and what larger requests and maximum sizes are rounded up to.
pub const CHUNK: u64 = 32 << 20;
/// Bytes that every block is a multiple of.
pub const UNIT: u64 = 512;

/// What a free block of a chunk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Block {
    /// Never given out.
    Fresh,
    /// Freed at a point that the host has not seen complete.
    Pending(Point),
    /// Freed, and known by the host to be complete.
    Observed,
}

/// Why a block could be given out; also the order in which reasons are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Freed on the same stream, or seen complete by a synchronise.
    SameOrObserved,
    /// The free is ordered before by events.
    Event,
    /// The free has run.
    Opportunistic,
    /// Never used before, or new memory.
    Fresh,
    /// The stream was made to wait for the free.
    Internal,
}

/// A run that serves a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Chunk it lies in.
    pub chunk: u64,
    /// First byte.
    pub start: u64,
    /// Free points of the blocks that the request takes, that are not observed.
    pub points: Vec<Point>,
}

#[derive(Debug, Clone)]
struct Chunk {
    len: u64,
    /// Bytes by start.
    live: BTreeMap<u64, u64>,
    /// Bytes and state by start, apart from the live ones so that a search passes over few.
    free: BTreeMap<u64, (u64, Block)>,
}

/// A memory pool.
#[derive(Debug, Clone)]
pub struct Pool {
    /// Device whose memory it holds.
    pub device: usize,
    /// The device's default pool, which cannot be destroyed.
    pub default: bool,
    /// Its handle is gone; it lives until its blocks are free.
    pub destroyed: bool,
    /// Policies 1 to 3.
    pub policies: [bool; 3],
    /// Bytes that a synchronise leaves reserved.
    pub threshold: u64,
    /// Most bytes it may reserve.
    pub max: u64,
    /// Bytes of chunks held.
    pub reserved: u64,
    /// Bytes of live blocks.
    pub used: u64,
    /// Largest `reserved` since it was reset.
    pub reserved_high: u64,
    /// Largest `used` since it was reset.
    pub used_high: u64,
    /// Kinds of handles it was to be exportable as.
    pub handle_types: u32,
    /// How other devices may reach it, as set.
    pub access: BTreeMap<usize, u32>,
    chunks: BTreeMap<u64, Chunk>,
    pending: usize,
}

impl Pool {
    /// An empty pool with CUDA's defaults: all policies, threshold 0.
    pub fn new(device: usize, default: bool, max: u64) -> Pool {
        Pool {
            device,
            default,
            destroyed: false,
            policies: [true; 3],
            threshold: 0,
            max,
            reserved: 0,
            used: 0,
            reserved_high: 0,
            used_high: 0,
            handle_types: 0,
            access: BTreeMap::new(),
            chunks: BTreeMap::new(),
            pending: 0,
        }
    }

    /// The smallest run of free blocks that `usable` allows and that holds `need` bytes.
    pub fn find(&self, need: u64, usable: impl Fn(&Block) -> bool) -> Option<Run> {
        let mut best: Option<(u64, Run)> = None;
        for (&base, chunk) in &self.chunks {
            let mut run: Option<(u64, u64, Vec<Point>)> = None;
            let mut close = |run: Option<(u64, u64, Vec<Point>)>| {
                if let Some((start, total, points)) = run
                    && total >= need
                    && best.as_ref().is_none_or(|(size, _)| total < *size)
                {
                    best = Some((total, Run { chunk: base, start, points }));
                }
            };
            for (&at, &(len, block)) in &chunk.free {
                let usable = usable(&block);
                if !usable || run.as_ref().is_some_and(|(start, total, _)| start + total != at) {
                    close(run.take());
                }
                if usable {
                    let (_, total, points) = run.get_or_insert((at, 0, Vec::new()));
                    if let (Block::Pending(point), true) = (block, *total < need) {
                        points.push(point);
                    }
                    *total += len;
                }
            }
            close(run);
        }
        best.map(|(_, run)| run)
    }

    /// Adds a chunk that the device granted.
    pub fn grow(&mut self, base: u64, len: u64) {
        self.chunks
            .insert(base, Chunk { len, live: BTreeMap::new(), free: BTreeMap::from([(base, (len, Block::Fresh))]) });
        self.reserved += len;
        self.reserved_high = self.reserved_high.max(self.reserved);
    }

    /// Gives out `need` bytes at the low end of a run that `find` returned.
    pub fn take(&mut self, run: &Run, need: u64) {
        let Some(chunk) = self.chunks.get_mut(&run.chunk) else { return };
        let mut covered = 0;
        while covered < need {
            let at = run.start + covered;
            let Some((len, block)) = chunk.free.remove(&at) else { break };
            let left = (covered + len).saturating_sub(need);
            if left > 0 {
                chunk.free.insert(at + len - left, (left, block));
            } else if matches!(block, Block::Pending(_)) {
                self.pending -= 1;
            }
            covered += len;
        }
        chunk.live.insert(run.start, need);
        self.used += need;
        self.used_high = self.used_high.max(self.used);
    }

    /// Bytes of the live block that begins at `address`.
    pub fn live(&self, address: u64) -> Option<u64> {
        let (_, chunk) = self.chunks.range(..=address).next_back()?;
        chunk.live.get(&address).copied()
    }

    /// The live block that holds `address`: its start and bytes.
    pub fn live_around(&self, address: u64) -> Option<(u64, u64)> {
        let (_, chunk) = self.chunks.range(..=address).next_back()?;
        let (&start, &len) = chunk.live.range(..=address).next_back()?;
        (address - start < len).then_some((start, len))
    }

    /// Number of live blocks.
    pub fn live_count(&self) -> usize {
        self.chunks.values().map(|chunk| chunk.live.len()).sum()
    }

    /// Takes a live block back. Without a point the caller says that nothing uses it any more.
    pub fn release(&mut self, address: u64, point: Option<Point>) -> Option<u64> {
        let (_, chunk) = self.chunks.range_mut(..=address).next_back()?;
        let len = chunk.live.remove(&address)?;
        chunk.free.insert(address, (len, point.map_or(Block::Observed, Block::Pending)));
        self.pending += usize::from(point.is_some());
        self.used -= len;
        Some(len)
    }

    /// Makes the frees that `seen` names observed, and joins observed neighbours.
    pub fn observe(&mut self, seen: impl Fn(Point) -> bool) {
        if self.pending == 0 {
            return;
        }
        for chunk in self.chunks.values_mut() {
            let mut joined: BTreeMap<u64, (u64, Block)> = BTreeMap::new();
            for (&at, &(len, mut block)) in &chunk.free {
                if let Block::Pending(point) = block
                    && seen(point)
                {
                    block = Block::Observed;
                    self.pending -= 1;
                }
                match joined.last_entry() {
                    Some(mut last)
                        if (block, last.get().1) == (Block::Observed, Block::Observed)
                            && last.key() + last.get().0 == at =>
                    {
                        last.get_mut().0 += len;
                    }
                    _ => {
                        joined.insert(at, (len, block));
                    }
                }
            }
            chunk.free = joined;
        }
    }

    /// Whether some free is not yet known to be complete.
    pub fn any_pending(&self) -> bool {
        self.pending > 0
    }

    /// Takes out a chunk that is wholly free and observed, whose loss leaves at least `keep` bytes.
    pub fn shrink(&mut self, keep: u64) -> Option<(u64, u64)> {
        let given_back = |block: &Block| matches!(block, Block::Observed | Block::Fresh);
        let idle = |chunk: &Chunk| chunk.live.is_empty() && chunk.free.values().all(|(_, block)| given_back(block));
        let (&base, chunk) =
            self.chunks.iter().rev().find(|(_, chunk)| self.reserved - chunk.len >= keep && idle(chunk))?;
        let len = chunk.len;
        self.chunks.remove(&base);
        self.reserved -= len;
        Some((base, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pool with one chunk at `CHUNK` and `count` live blocks of one unit at its low end.
    fn pool_with(count: u64) -> Pool {
        let mut pool = Pool::new(0, false, u64::MAX);
        pool.grow(CHUNK, CHUNK);
        for _ in 0..count {
            let run = pool.find(UNIT, |_| true).unwrap();
            pool.take(&run, UNIT);
        }
        pool
    }

    #[test]
    fn a_run_of_two_pending_blocks_carries_both_points_and_leaves_the_rest_of_the_second() {
        let mut pool = pool_with(3);
        pool.release(CHUNK, Some((1, 5))).unwrap();
        pool.release(CHUNK + UNIT, Some((2, 7))).unwrap();
        let run = pool.find(UNIT + 1, |block| matches!(block, Block::Pending(_))).unwrap();
        assert_eq!(run, Run { chunk: CHUNK, start: CHUNK, points: vec![(1, 5), (2, 7)] });
        pool.take(&run, 2 * UNIT);
        assert_eq!(pool.live(CHUNK), Some(2 * UNIT));
        assert!(!pool.any_pending());
        assert_eq!(pool.used, 3 * UNIT);
    }

    #[test]
    fn a_live_block_between_two_free_ones_keeps_them_apart() {
        let mut pool = pool_with(3);
        for block in [0, 2] {
            pool.release(CHUNK + block * UNIT, Some((1, 1 + block))).unwrap();
        }
        let pending = |block: &Block| matches!(block, Block::Pending(_));
        assert_eq!(pool.find(2 * UNIT, pending), None);
        pool.observe(|_| true);
        let observed = |block: &Block| *block == Block::Observed;
        assert_eq!(pool.find(2 * UNIT, observed), None);
        pool.release(CHUNK + UNIT, None).unwrap();
        assert_eq!(pool.find(3 * UNIT, observed).map(|run| run.start), Some(CHUNK));
    }

    #[test]
    fn a_chunk_with_a_pending_free_does_not_go_back() {
        let mut pool = pool_with(1);
        pool.release(CHUNK, Some((1, 1))).unwrap();
        assert_eq!(pool.shrink(0), None);
        pool.observe(|point| point == (1, 1));
        assert_eq!(pool.shrink(CHUNK), None, "keep is kept");
        assert_eq!(pool.shrink(0), Some((CHUNK, CHUNK)));
        assert_eq!((pool.reserved, pool.reserved_high), (0, CHUNK));
    }

    #[test]
    fn a_block_is_released_once_and_only_by_its_start() {
        let mut pool = pool_with(1);
        assert_eq!(pool.release(CHUNK + 1, None), None);
        assert_eq!(pool.release(CHUNK, None), Some(UNIT));
        assert_eq!(pool.release(CHUNK, None), None);
    }
}
