//! Where a block is to lie, and which chunks may move under it (`docs/placement.md` §7.1, steps 2 and 4).

use super::home::most_ghosts;
use super::{Chunks, Coming, Mapping, NOTHING, Plan, Range, Rank, Return, SERVES, Source, between, block_around};
use crate::order::StreamRef;
use crate::pool::alloc::Request;
use crate::pool::block::{Block, NIL, VACANT, block};
use crate::pool::seams::{Sequences, each_run, look, sequences};
use crate::pool::slow::Slow;
use crate::pool::span::{Bound, Limits, touches};
use crate::pool::state::PoolShared;
use crate::rules;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

impl Request<'_> {
    /// The usable free blocks that hold a whole chunk; where several streams are at work, the runs of adjacent ones that do,
    /// by their first blocks.
    pub(super) fn candidates(
        &self,
        slow: &mut Slow<'_>,
        shared: &mut PoolShared,
        e: usize,
        bound: &Bound,
        holders: &[StreamRef],
    ) -> Vec<(u64, u64, u32)> {
        let size = self.pool.entries[e].page_size;
        // (In host order only observed blocks are usable, and no two of them are neighbours: they have merged.)
        let several = shared.entries[e].sole.is_several() && self.stream.is_some();
        let mut sequences = if several { sequences(slow, shared, self.pool, e, holders) } else { Sequences::default() };
        let shared = &*shared;
        let own = &shared.entries[e];
        let limits = Limits::of(bound);
        let run_usable = |index: u32, b: &'static Block| {
            look();
            limits.admit(shared, bound, index, b)
        };
        let usable = |index: u32| run_usable(index, block(index));
        let mut found: Vec<(u64, u64, u32)> = Vec::with_capacity(64);
        each_run(&mut sequences, holders, size, run_usable, |first, bytes| {
            found.push((bytes, block(first).addr(), first))
        });
        // Those that lie alone.
        let in_run = |index: u32| {
            let b = block(index);
            let beside = |near: u32, touch: fn(&Block, &Block) -> bool| {
                near != NIL && block(near).is_settled() && touch(b, block(near)) && usable(near)
            };
            several && (beside(b.prev(), |b, left| touches(left, b)) || beside(b.next(), touches))
        };
        let mut add = |index: u32| {
            if !in_run(index) {
                found.push((block(index).size(), block(index).addr(), index));
            }
        };
        // All that is the stream's own is usable, and all that is observed.
        if let Some(me) = self.stream {
            slow.bins(me, self.pool, e).each_from(size, &mut add);
        }
        if !rules::off(rules::OBSERVED) {
            own.observed.each_from(size, &mut add);
        }
        let mut add = |index: u32| {
            if usable(index) {
                add(index);
            }
        };
        own.multi.each_from(size, &mut add);
        for holder in bound.holders().filter(|&holder| Some(holder) != self.stream) {
            slow.bins(holder, self.pool, e).each_from(size, &mut add);
        }
        found
    }

    /// How many chunks are idle: those in `candidates`.
    pub(super) fn idle(&self, shared: &PoolShared, e: usize, candidates: &[(u64, u64, u32)]) -> u64 {
        let size = self.pool.entries[e].page_size;
        let mapping = &shared.entries[e].mapped;
        let within = |&(bytes, address, _): &(u64, u64, u32)| {
            let range = &mapping.ranges[mapping.range_at(address)];
            let places = range.places_within(address, bytes, size);
            places.end.saturating_sub(places.start)
        };
        candidates.iter().map(within).sum()
    }

    /// The idle chunks: those at places that lie wholly in one of the `candidates`.
    pub(super) fn idle_chunks(&self, shared: &PoolShared, e: usize, candidates: &[(u64, u64, u32)]) -> Chunks {
        let size = self.pool.entries[e].page_size;
        let mapping = &shared.entries[e].mapped;
        let mut idle = Chunks::none_of(mapping.chunks.len());
        if mapping.ghosts == 0 {
            return idle;
        }
        for &(bytes, address, _) in candidates {
            let range = &mapping.ranges[mapping.range_at(address)];
            let within = range.places_within(address, bytes, size);
            let numbers = range.places.get(within.start as usize..within.end as usize).unwrap_or(&[]);
            numbers.iter().for_each(|&number| idle.add(number));
        }
        idle
    }

    /// Where in the ranges the block goes: the fewest places with nothing mapped, then the lowest address.
    pub(super) fn plan(&self, shared: &PoolShared, e: usize, bound: &Bound, idle: &Chunks) -> Option<Plan> {
        let size = self.pool.entries[e].page_size;
        let mapping = &shared.entries[e].mapped;
        // (Programs of several streams do not come back to the same places.)
        let fewest_ghosts = shared.entries[e].sole.is_several();
        // Rank, range, first block of the hole, its end.
        let mut best: Option<(Rank, usize, u32, u64)> = None;
        // All holes that begin below are known.
        let mut passed = 0;
        'search: for &(address, index) in &mapping.vacant {
            let range = mapping.range_at(address);
            let home = &mapping.ranges[range];
            let (start, end) = (home.place(address, size), home.place(block(index).end(), size));
            let mut from = start.max(home.place(passed.max(address), size));
            while from < end {
                // A hole of which these places are a part.
                let (mut low, mut first) = (address, index);
                if from == start && home.is_open(start, idle) {
                    let mut left = block(first).prev();
                    while left != NIL && touches(block(left), block(first)) && bound.usable(shared, left).is_some() {
                        (first, low) = (left, block(left).addr());
                        left = block(left).prev();
                    }
                }
                let mut open = from;
                if low == address {
                    let Some(run) = home.open_run(from, end, self.need.div_ceil(size), idle) else { break };
                    (low, open) = (home.base + run * size, (run + self.need.div_ceil(size)).min(end));
                }
                open = home.open_upto(open, end, idle);
                let (mut high, mut last) = (home.base + open * size, index);
                while high == block(last).end() && block(last).next() != NIL {
                    let next = block(last).next();
                    let n = block(next);
                    if !touches(block(last), n) {
                        break;
                    }
                    if n.has(VACANT) {
                        let (start, end) = (home.place(n.addr(), size), home.place(n.end(), size));
                        let open = home.open_upto(start, end, idle);
                        if open == start {
                            break;
                        }
                        (last, high) = (next, home.base + open * size);
                    } else if bound.usable(shared, next).is_some() {
                        (last, high) = (next, n.end());
                    } else {
                        break;
                    }
                }
                passed = high;
                // (The place after an end within the block is not open.)
                from = open + 1;
                if high - low < self.need {
                    continue;
                }
                // Whether there can be none better: what comes later has higher addresses.
                let mut offer = |(missing, ghosts, address): Rank| {
                    let rank = (missing, if fewest_ghosts { ghosts } else { 0 }, address);
                    if best.as_ref().is_none_or(|(other, ..)| rank < *other) {
                        best = Some((rank, range, first, high));
                    }
                    (rank.0, rank.1) == (0, 0)
                };
                // The low end, or as far up as it takes for no chunk to be needed twice.
                if self.lowest(mapping, home, low, high, size).is_some_and(&mut offer) {
                    break 'search;
                }
                if high != home.end() && self.lowest(mapping, home, high - self.need, high, size).is_some_and(offer) {
                    break 'search;
                }
            }
        }
        let ((count, _, address), range, first, high) = best?;
        let home = &mapping.ranges[range];
        let (from, to) = (home.place(address, size), home.place(address + self.need - 1, size));
        let (mut gaps, mut returns): (Vec<(u64, u64)>, Vec<Return>) = (Vec::new(), Vec::new());
        let (mut missing, mut back) = (0, 0);
        let numbers = home.numbers(from, to + 1);
        let ghosts = &home.ghosts[from.min(home.ghosts.len() as u64) as usize..];
        // Where a chunk serves that goes on with the last run, and where its range ends.
        let (mut next, mut end) = (0, 0);
        for ((place, &number), &ghost) in (from..).zip(numbers).zip(ghosts) {
            if number == NOTHING {
                missing += 1;
                add_gap(&mut gaps, place, 1);
                next = 0;
            } else if ghost == SERVES {
                next = 0;
            } else {
                back += 1;
                let at = mapping.chunks[number as usize].at;
                match returns.last_mut() {
                    Some(last) if at == next && at < end => last.count += 1,
                    _ => {
                        returns.push(Return { at, place, count: 1 });
                        end = mapping.ranges[mapping.range_at(at)].end();
                    }
                }
                next = at + size;
            }
        }
        let known = from + numbers.len() as u64;
        if known <= to {
            missing += to + 1 - known;
            add_gap(&mut gaps, known, to + 1 - known);
        }
        debug_assert_eq!(missing, count);
        let tail = high == home.end();
        let hole = between(first, high);
        Some(Plan { range, address, first: from, count: to - from + 1, missing, gaps, back, returns, tail, hole })
    }

    /// The lowest address from `low` on, itself or where a place begins, at which a block that ends at or below `high` takes no
    /// chunk twice; before it, how many of its places have nothing mapped, and how many are ghosts.
    fn lowest(&self, mapping: &Mapping, range: &Range, low: u64, high: u64, size: u64) -> Option<Rank> {
        let mark = mapping.new_mark();
        let (mut spot, mut first) = (low, range.place(low, size));
        let mut place = first;
        let (mut missing, mut back) = (0, 0);
        loop {
            let last = range.place(spot + self.need - 1, size);
            let known = (range.places.len() as u64).clamp(place, last + 1);
            let numbers = range.places.get(place as usize..known as usize).unwrap_or(&[]);
            let mut twice = None;
            for &number in numbers {
                if number == NOTHING {
                    missing += 1;
                } else {
                    back += u64::from(range.ghosts[place as usize] != SERVES);
                    let (met, before) = mapping.chunks[number as usize].needed.replace((mark, place));
                    if met == mark && before >= first {
                        twice = Some(before);
                    }
                }
                place += 1;
                if twice.is_some() {
                    break;
                }
            }
            let Some(before) = twice else { return Some((missing + last + 1 - known, back, spot)) };
            // Behind the first of the two.
            for place in first as usize..=before as usize {
                let nothing = range.places[place] == NOTHING;
                missing -= u64::from(nothing);
                back -= u64::from(!nothing && range.ghosts[place] != SERVES);
            }
            first = before + 1;
            spot = range.base + first * size;
            if high < spot || high - spot < self.need {
                return None;
            }
        }
    }

    /// Up to `wanted` idle chunks that are not needed for the plan's places: of the smallest usable free block that holds one,
    /// then the lowest, from its low end.
    pub(super) fn sources(
        &self,
        shared: &PoolShared,
        e: usize,
        candidates: &[(u64, u64, u32)],
        plan: &Plan,
        wanted: u64,
    ) -> Vec<Source> {
        if wanted == 0 {
            return Vec::new();
        }
        let size = self.pool.entries[e].page_size;
        let mapping = &shared.entries[e].mapped;
        let mark = mapping.new_mark();
        for place in plan.first..plan.first + plan.count {
            let number = mapping.ranges[plan.range].number(place);
            if number != NOTHING {
                mapping.chunks[number as usize].needed.set((mark, place));
            }
        }
        let mut found: Vec<Source> = Vec::new();
        let mut left = wanted;
        // Mostly the first few have enough, and mostly one stream's lie in order.
        let sorted = candidates.is_sorted();
        let mut in_order = candidates.iter().copied();
        let mut smallest: BinaryHeap<_> = match sorted {
            true => BinaryHeap::new(),
            false => candidates.iter().copied().map(Reverse).collect(),
        };
        let mut next = || if sorted { in_order.next() } else { smallest.pop().map(|Reverse(least)| least) };
        while let Some((bytes, address, mut index)) = next() {
            let range = mapping.range_at(address);
            for place in mapping.ranges[range].places_within(address, bytes, size) {
                if left == 0 {
                    return found;
                }
                let number = mapping.ranges[range].number(place);
                if mapping.chunks[number as usize].needed.get().0 == mark {
                    continue;
                }
                left -= 1;
                let start = mapping.ranges[range].base + place * size;
                while block(index).end() <= start {
                    index = block(index).next();
                }
                add_source(&mut found, index, range, (place, start + size));
            }
        }
        found
    }

    /// One of the chunks drops ghosts before it moves.
    pub(super) fn has_many_ghosts(&self, shared: &PoolShared, e: usize, source: &Source) -> bool {
        let mapping = &shared.entries[e].mapped;
        let range = &mapping.ranges[source.range];
        let ghosts = |place| mapping.chunks[range.number(place) as usize].ghosts.len();
        (source.first..source.first + source.count).any(|place| ghosts(place) >= most_ghosts(self.pool, e))
    }

    /// The chunks that come back to the plan's ghosts: where they serve now, adjacent ones of a block together; and in the same
    /// order what comes where, each of the first as its origin.
    pub(super) fn returning(&self, shared: &PoolShared, e: usize, plan: &Plan) -> (Vec<Source>, Vec<Coming>) {
        let size = self.pool.entries[e].page_size;
        let mapping = &shared.entries[e].mapped;
        let mut returns = plan.returns.clone();
        returns.sort_unstable_by_key(|run| run.at);
        let mut found: Vec<Source> = Vec::with_capacity(returns.len());
        let mut coming: Vec<Coming> = Vec::with_capacity(returns.len() + plan.gaps.len() + 4);
        let (mut around, mut end) = (NIL, 0);
        for Return { at, place: to, count } in returns {
            let (range, first) = mapping.place_at(at, size);
            let mut done = 0;
            while done < count {
                let (address, place) = (at + done * size, first + done);
                if address >= end {
                    around = block_around(mapping, address);
                    end = block(around).end();
                }
                // So many lie in the block, or one lies in several.
                let many = ((end - address) / size).clamp(1, count - done);
                match found.last_mut() {
                    Some(last) if last.block == around && last.first + last.count == place && address + size <= end => {
                        last.count += many;
                    }
                    _ => found.push(Source { block: around, range, first: place, count: many }),
                }
                let from = Some((range, place));
                coming.push(Coming { place: to + done, count: many, from, origin: found.len() - 1 });
                done += many;
            }
        }
        (found, coming)
    }
}

/// `count` more places from `place` on have nothing mapped.
pub(super) fn add_gap(gaps: &mut Vec<(u64, u64)>, place: u64, count: u64) {
    match gaps.last_mut() {
        Some((first, already)) if *first + *already == place => *already += count,
        _ => gaps.push((place, count)),
    }
}

/// One more chunk, whose place ends at `end` and begins in the block `first`; they come by block, and in a block by ascending
/// place.
fn add_source(sources: &mut Vec<Source>, first: u32, range: usize, (place, end): (u64, u64)) {
    match sources.last_mut() {
        Some(last) if last.block == first && last.first + last.count == place && end <= block(first).end() => {
            last.count += 1;
        }
        _ => sources.push(Source { block: first, range, first: place, count: 1 }),
    }
}
