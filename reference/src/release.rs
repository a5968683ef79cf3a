//! Pages going back (§9). Questions to the device about progress are counted once a stream in each walk over pages, in
//! the order of addresses and streams.

use crate::device::Device;
use crate::order::Point;

/// Streams that were asked in one walk.
pub(crate) type Asked = Vec<usize>;

impl Device {
    /// The page at `base`: all its blocks are free and their points have executed (Cuda: are observed).
    fn releasable(&mut self, pool: usize, entry: usize, base: u64, asked: &mut Asked) -> bool {
        let shelf = &self.pools[pool].shelves[entry];
        let Some(page) = shelf.pages.iter().find(|page| page.base == base) else { return false };
        if !page.is_free() {
            return false;
        }
        let points: Vec<Point> = page.blocks.iter().flat_map(|block| block.points().unwrap_or(&[])).copied().collect();
        if shelf.kind.is_cuda() {
            return points.is_empty();
        }
        self.have_executed(pool, &points, asked)
    }

    /// Asks the device about the points' streams, once each, stopping at the first that has not executed.
    pub(crate) fn have_executed(&mut self, pool: usize, points: &[Point], asked: &mut Asked) -> bool {
        for point in points {
            if !asked.contains(&point.stream) {
                asked.push(point.stream);
                self.pools[pool].counted.progress_queries += 1;
            }
            if !self.graph.has_executed(*point) {
                return false;
            }
        }
        true
    }

    /// Gives the page back if it is releasable and the device takes it.
    fn release(&mut self, pool: usize, entry: usize, base: u64, asked: &mut Asked) -> bool {
        if !self.releasable(pool, entry, base, asked) {
            return false;
        }
        let shelf = &mut self.pools[pool].shelves[entry];
        if self.refuse_releases > 0 {
            self.refuse_releases -= 1;
            shelf.counted.release_failures += 1;
            return false;
        }
        shelf.counted.page_frees += 1;
        let bytes: u64 = shelf.pages.iter().filter(|page| page.base == base).map(|page| page.bytes).sum();
        shelf.pages.retain(|page| page.base != base);
        self.release_address(base, bytes);
        self.page_frees += 1;
        true
    }

    /// The pages of an entry with nothing live, in the order in which they go back: (free_since, base, bytes).
    fn idle_pages(&self, pool: usize, entry: usize) -> Vec<(u64, u64, u64)> {
        let mut pages: Vec<(u64, u64, u64)> = self.pools[pool].shelves[entry]
            .pages
            .iter()
            .filter(|page| page.is_free() && self.pools[pool].shelves[entry].kind.chunk().is_none())
            .map(|page| (page.free_since, page.base, page.bytes))
            .collect();
        pages.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        pages
    }

    /// One walk over the pool's pages, last entry first; `wanted` is told what is reserved and the page's bytes.
    fn walk(&mut self, pool: usize, wanted: impl Fn(u64, u64) -> bool) -> bool {
        let mut asked = Asked::new();
        let mut went = false;
        for entry in (0..self.pools[pool].shelves.len()).rev() {
            went |= self.release_chunks(pool, entry, None, &wanted, &mut asked);
            self.drop_ranges(pool, entry);
            for (_, base, bytes) in self.idle_pages(pool, entry) {
                if wanted(self.pools[pool].reserved(), bytes) {
                    went |= self.release(pool, entry, base, &mut asked);
                }
            }
        }
        went
    }

    /// The ranges of a destroyed pool's Mapped entry go with its last chunk.
    fn drop_ranges(&mut self, pool: usize, entry: usize) {
        let destroyed = self.pools[pool].destroyed;
        let shelf = &mut self.pools[pool].shelves[entry];
        if destroyed && shelf.kind.chunk().is_some() && shelf.reserved() == 0 && !shelf.pages.is_empty() {
            self.met.push("the ranges of a destroyed pool dropped");
            for range in std::mem::take(&mut shelf.pages) {
                self.release_address(range.base, range.bytes);
            }
        }
    }

    /// Every releasable page; whether any went.
    pub(crate) fn release_all(&mut self, pool: usize) -> bool {
        self.walk(pool, |_, _| true)
    }

    /// §9, `dealloc_period`.
    pub(crate) fn sweep(&mut self, pool: usize) {
        let mut asked = Asked::new();
        for entry in (0..self.pools[pool].shelves.len()).rev() {
            let Some(period) = self.pools[pool].shelves[entry].kind.dealloc_period() else { continue };
            self.release_chunks(pool, entry, Some(period), &|_, _| true, &mut asked);
            for (since, base, _) in self.idle_pages(pool, entry) {
                if self.pools[pool].allocations - since >= period {
                    self.release(pool, entry, base, &mut asked);
                }
            }
        }
    }

    /// §7.3.
    pub(crate) fn reclaim(&mut self, pool: usize, entry: usize, mark: u64, page: u64) {
        let mut asked = Asked::new();
        for (_, base, _) in self.idle_pages(pool, entry) {
            if self.pools[pool].shelves[entry].reserved() + page > mark {
                self.release(pool, entry, base, &mut asked);
            }
        }
    }

    /// §9, after a synchronise.
    pub(crate) fn release_after_synchronise(&mut self) {
        for pool in 0..self.pools.len() {
            for entry in 0..self.pools[pool].shelves.len() {
                self.go_home(pool, entry, None);
            }
            self.sweep(pool);
            let threshold = self.pools[pool].config.release_threshold;
            self.walk(pool, |reserved, _| reserved > threshold);
            if self.pools[pool].destroyed {
                self.bury(pool);
            }
        }
    }

    /// What a destroyed pool can give back goes back.
    pub(crate) fn bury(&mut self, pool: usize) {
        self.release_all(pool);
    }

    /// §9, `trim_to`.
    pub fn trim_to(&mut self, pool: usize, keep: u64) -> Result<(), crate::Failure> {
        self.pool(pool)?;
        self.sweep(pool);
        self.walk(pool, |reserved, bytes| reserved - bytes >= keep);
        Ok(())
    }
}
