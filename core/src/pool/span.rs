//! Step 6 of an allocation: several free neighbours with different free points serve together, and become one block
//! only then (`docs/placement.md` §6).

use super::Reason;
use super::alloc::{Found, MAX_QUESTIONS, Request, attach_any, detach_any, out_of_records, point_streams};
use super::block::{Block, FREE, MULTI, NIL, OBSERVED, RECENT, WHOLE, block};
use super::page::page;
use super::state::{PoolShared, Slow, cut};
use crate::error::Result;
use crate::few::Few;
use crate::order::{At, Clock, StreamRef};
use crate::rules;
use std::sync::atomic::Ordering::Relaxed;

/// How far one stream's frees may be reused, and why.
#[derive(Clone, Copy, Default)]
struct Reach {
    stream: StreamRef,
    /// Its free blocks stay as they are.
    locked: bool,
    /// It is the stream that asks.
    own: bool,
    /// The last of its operations that precedes now.
    upto: u64,
    /// The last that has executed, as the device has answered in this allocation.
    answer: u64,
}

/// Which free points an allocation may reuse, and why: by ascending stream.
#[derive(Clone)]
pub(super) struct Bound(Few<Reach, 10>);

impl Bound {
    fn of(&mut self, stream: StreamRef) -> &mut Reach {
        let all = &mut self.0;
        let at = match all.binary_search_by_key(&stream, |reach| reach.stream) {
            Ok(at) => at,
            Err(at) => {
                all.insert(at, Reach { stream, ..Reach::default() });
                at
            }
        };
        &mut all[at]
    }
    fn find(&self, stream: StreamRef) -> Option<&Reach> {
        let all = &*self.0;
        match all.len() {
            0..=10 => all.iter().find(|reach| reach.stream == stream),
            _ => all.binary_search_by_key(&stream, |reach| reach.stream).ok().map(|at| &all[at]),
        }
    }
    /// What the device has answered.
    pub(super) fn add(&mut self, answers: &[(StreamRef, u64)]) {
        for &(stream, upto) in answers {
            self.of(stream).answer = upto;
        }
    }
    fn without_answers(&self) -> Bound {
        let mut without = self.clone();
        without.0.iter_mut().for_each(|reach| reach.answer = 0);
        without
    }
    /// Streams that are locked and some free of which may be reused, lowest first.
    pub(super) fn holders(&self) -> impl Iterator<Item = StreamRef> + '_ {
        self.0.iter().filter(|reach| reach.locked && (reach.upto > 0 || reach.answer > 0)).map(|reach| reach.stream)
    }
    /// Why a point may be reused, if it may.
    fn reason(reach: &Reach, seq: u64) -> Option<Reason> {
        match reach {
            _ if seq <= reach.upto && reach.own => Some(Reason::SameStream),
            _ if seq <= reach.upto => Some(Reason::Event),
            _ if seq <= reach.answer => Some(Reason::Opportunistic),
            _ => None,
        }
    }
    /// Why a free block may be part of a span, if it may.
    pub(super) fn usable(&self, shared: &PoolShared, index: u32) -> Option<Reason> {
        self.reason_of(shared, index, block(index))
    }
    /// A free block may be part of a span.
    fn admits(&self, shared: &PoolShared, index: u32, b: &Block) -> bool {
        self.reason_of(shared, index, b).is_some()
    }
    /// Why what has these points may be reused, if it may.
    pub(super) fn reason_after(&self, points: &[At]) -> Option<Reason> {
        let mut weakest = if points.is_empty() { Reason::Observed } else { Reason::SameStream };
        for at in points {
            weakest = weakest.max(Bound::reason(self.find(at.stream)?, at.seq)?);
        }
        Some(weakest)
    }
    fn reason_of(&self, shared: &PoolShared, index: u32, b: &Block) -> Option<Reason> {
        if !b.has(FREE) {
            return None;
        }
        match b.stream() {
            OBSERVED if rules::off(rules::OBSERVED) => None,
            OBSERVED => Some(Reason::Observed),
            MULTI => self.reason_after(shared.points.get(&index)?),
            // Only a locked stream's blocks stay as they are.
            stream => self.find(stream).filter(|reach| reach.locked).and_then(|reach| Bound::reason(reach, b.seq())),
        }
    }
}

impl Request<'_> {
    /// What precedes now (the stream's own frees, and with policy 1 those of streams it is ordered after) or has executed by
    /// the answers so far.
    pub(super) fn bound(
        &self,
        slow: &mut Slow<'_>,
        shared: &PoolShared,
        e: usize,
        holders: &[StreamRef],
        clock: &Clock,
    ) -> Bound {
        let mut bound = Bound(Few::default());
        for &holder in holders {
            bound.of(holder).locked = true;
        }
        if let Some(me) = self.stream {
            slow.state(me.slot());
            if self.pool.follows() && !clock.entries().is_empty() {
                let mut follow = |stream: StreamRef| {
                    if stream != me && bound.find(stream).is_none_or(|reach| reach.upto == 0) {
                        let covered = slow.state(stream.slot()).covered_by(clock);
                        if covered > 0 {
                            bound.of(stream).upto = covered;
                        }
                    }
                };
                holders.iter().for_each(|&holder| follow(holder));
                let multi = &shared.entries[e].multi;
                multi.each(|index| shared.points[&index].iter().for_each(|at| follow(at.stream)));
            }
            *bound.of(me) = Reach { stream: me, locked: true, own: true, upto: u64::MAX, answer: 0 };
        }
        bound.add(&self.answers);
        bound
    }

    /// Step 6. The pieces of the best run become one block.
    pub(super) fn span(
        &mut self,
        slow: &mut Slow<'_>,
        shared: &mut PoolShared,
        e: usize,
        holders: &[StreamRef],
        clock: &Clock,
    ) -> Result<Option<Found>> {
        let pool = self.pool;
        let mut bound = self.bound(slow, shared, e, holders, clock);
        // Answers that earlier steps had do not count before the questions of this one.
        let preceding = bound.without_answers();
        let asks = self.stream.is_some() && pool.opportunistic.load(Relaxed) && !rules::off(rules::POLICY2);
        let groups: Few<StreamRef, 10> = match asks {
            true => holders.iter().copied().collect(),
            false => preceding.holders().collect(),
        };
        let runs = if self.walks(slow, shared, e, &groups) { None } else { Some(self.runs(slow, shared, e, &groups)) };
        let mut chosen = self.best_of(shared, e, &preceding, runs.as_deref());
        if chosen.is_none()
            && asks
            && let Some(me) = self.stream
        {
            for stream in point_streams(holders, shared, e) {
                if self.asked >= MAX_QUESTIONS {
                    break;
                }
                if stream != me {
                    self.ask(stream);
                }
                if self.must_ask.is_some() {
                    return Ok(None);
                }
            }
            bound.add(&self.answers);
            chosen = self.best_of(shared, e, &bound, runs.as_deref());
        }
        let Some(first) = chosen else { return Ok(None) };
        let mut reason = Reason::SameStream;
        let mut bytes = 0;
        let mut consumed: Vec<u32> = Vec::with_capacity(16);
        let mut at = first;
        while bytes < self.need {
            bytes += block(at).size();
            reason = reason.max(bound.usable(shared, at).expect("part of a run"));
            consumed.push(at);
            at = block(at).next();
        }
        self.weld(slow, shared, e, &consumed, bytes)?;
        Ok(Some(Found { index: first, entry: e, reason }))
    }

    /// Makes one free block of adjacent ones (taken out of their structures); what the last has beyond `need` stays
    /// where it was.
    pub(super) fn weld(
        &self,
        slow: &mut Slow<'_>,
        shared: &mut PoolShared,
        e: usize,
        consumed: &[u32],
        bytes: u64,
    ) -> Result<()> {
        let last = *consumed.last().expect("a run has blocks");
        // Cut the last block first: the cut may fail, and then nothing has changed.
        let over = bytes - self.need;
        if over > 0 {
            let domain = block(last).stream();
            let points = shared.points.get(&last).cloned();
            detach_any(slow, shared, self.pool, e, last);
            let keep = block(last).size() - over;
            match cut(last, block(last), keep, &mut shared.stock) {
                Ok(rest) => {
                    let (rest, _) = rest.expect("something is over");
                    attach_any(slow, shared, self.pool, e, rest, domain, points.as_deref());
                }
                Err(()) => {
                    attach_any(slow, shared, self.pool, e, last, domain, points.as_deref());
                    return Err(out_of_records());
                }
            }
        } else {
            detach_any(slow, shared, self.pool, e, last);
        }
        for &index in consumed.iter().rev().skip(1) {
            detach_any(slow, shared, self.pool, e, index);
        }
        for &index in &consumed[1..] {
            super::state::absorb(consumed[0], block(consumed[0]), index, block(index), &mut shared.stock);
        }
        Ok(())
    }

    /// Where runs may be: the maximal sequences of at least two adjacent free blocks of `groups`, all of them locked, and of
    /// no single stream, that are large enough whatever the points are. (First block, address of the end.)
    fn runs(&self, slow: &mut Slow<'_>, shared: &PoolShared, e: usize, groups: &[StreamRef]) -> Few<(u32, u64), 16> {
        // Blocks of one group never touch one another (they would have merged), multi and whole ones aside: every run has a
        // block outside the largest group or a whole one, so of that group only those are seeds. So are all the others.
        let own = &shared.entries[e];
        let largest = groups.iter().map(|&group| (slow.bins(group, self.pool, e).count, group)).max();
        let largest =
            largest.filter(|&(count, _)| count > own.observed.count + own.unused.count).map(|(_, group)| group);
        let members = Members::of(groups);
        let is_member = |b: &Block| members.has(b.stream());
        let is_seed = |b: &Block| match b.stream() {
            MULTI => true,
            OBSERVED => largest.is_some(),
            stream => largest != Some(stream) || b.has(WHOLE),
        };
        let before = |b: &'static Block| neighbour(b.prev(), |left| touches(left, b) && is_member(left));
        let after = |b: &'static Block| neighbour(b.next(), |right| touches(b, right) && is_member(right));
        let mut found = Few::default();
        let mut look_at = |seed: u32| {
            let b = block(seed);
            let (mut first, mut left, mut bytes) = (seed, b, b.size());
            while let Some(further) = before(left) {
                // A sequence is looked at from its first seed.
                if is_seed(further) {
                    return;
                }
                (first, left, bytes) = (left.prev(), further, bytes + further.size());
            }
            let mut right = b;
            while let Some(further) = after(right) {
                (right, bytes) = (further, bytes + further.size());
            }
            if bytes >= self.need && !std::ptr::eq(left, right) {
                found.push((first, right.end()));
            }
        };
        own.multi.each(&mut look_at);
        if largest.is_some() {
            own.observed.each(&mut look_at);
            own.unused.each(&mut look_at);
        }
        for &group in groups.iter().filter(|&&group| Some(group) != largest || own.whole) {
            slow.bins(group, self.pool, e).each(|index| {
                if is_seed(block(index)) {
                    look_at(index);
                }
            });
        }
        found
    }

    /// Whether all of the entry's blocks are gone through in the order of their addresses, rather than those of `groups` with
    /// their neighbours: that takes a fraction of the steps for a block. All that is free stays as it is then.
    fn walks(&self, slow: &mut Slow<'_>, shared: &PoolShared, e: usize, groups: &[StreamRef]) -> bool {
        let own = &shared.entries[e];
        let mut free = own.observed.count + own.unused.count + own.multi.count;
        for &group in groups {
            free += slow.bins(group, self.pool, e).count;
        }
        let others = slow.live_blocks(shared, self.pool, e) + own.mapped.vacant_blocks();
        others / OTHERS_A_FREE_BLOCK <= free
    }

    /// The first block of the smallest maximal run of at least two usable adjacent blocks that is large enough, among equals
    /// the lowest. `runs`: see [`Request::runs`]; without, all blocks are gone through.
    fn best_of(&self, shared: &PoolShared, e: usize, bound: &Bound, runs: Option<&[(u32, u64)]>) -> Option<u32> {
        let mut best: Option<(u64, u64, u32)> = None;
        let limits = Limits::of(bound);
        let end_of_page = |slot: &u32| (page(*slot).first.load(Relaxed), u64::MAX);
        let pages = match runs {
            Some(_) => None,
            None => Some(shared.entries[e].pages.iter().map(end_of_page)),
        };
        for (mut at, end) in runs.into_iter().flatten().copied().chain(pages.into_iter().flatten()) {
            // The usable ones just gone through: (first block, how many, bytes).
            let mut run = (at, 0, 0);
            loop {
                let b = block(at);
                let size_flags = b.size_flags();
                let usable = size_flags & (FREE | RECENT) == FREE && limits.admit(shared, bound, at, b);
                if usable {
                    let bytes = Block::size_in(size_flags);
                    run = if run.1 == 0 { (at, 1, bytes) } else { (run.0, run.1 + 1, run.2 + bytes) };
                }
                let next = b.next();
                let last = next == NIL || b.end() == end;
                if last || !usable {
                    if run.1 > 1 && run.2 >= self.need {
                        let found = (run.2, block(run.0).addr(), run.0);
                        if best.is_none_or(|best| found < best) {
                            best = Some(found);
                        }
                    }
                    run.1 = 0;
                }
                if last {
                    break;
                }
                at = next;
            }
        }
        best.map(|(.., first)| first)
    }
}

/// So many blocks that are not free are gone through for a free one, rather than each free one's neighbours be looked at.
const OTHERS_A_FREE_BLOCK: u64 = 2;

/// What a [`Bound`] says of most streams, at hand.
struct Limits {
    /// By slot, as far as no two of them meet here: the stream, and up to where its frees may be reused.
    places: [(StreamRef, u64); 32],
    observed: bool,
}

impl Limits {
    fn of(bound: &Bound) -> Limits {
        let mut limits = Limits { places: [(OBSERVED, 0); 32], observed: !rules::off(rules::OBSERVED) };
        for reach in bound.0.iter().filter(|reach| reach.locked) {
            limits.places[reach.stream.slot() as usize % 32] = (reach.stream, reach.upto.max(reach.answer));
        }
        limits
    }

    /// The same as [`Bound::admits`] of a free block.
    #[inline(always)]
    fn admit(&self, shared: &PoolShared, bound: &Bound, index: u32, b: &Block) -> bool {
        let stream = b.stream();
        let (known, upto) = self.places[stream.slot() as usize % 32];
        if stream == OBSERVED {
            self.observed
        } else if stream == known {
            b.seq() <= upto
        } else {
            bound.admits(shared, index, b)
        }
    }
}

/// The groups of free blocks that a search goes through, to be asked about each block's neighbours.
struct Members<'a> {
    groups: &'a [StreamRef],
    /// By slot, as far as no two of them meet here.
    places: [StreamRef; 32],
    crowded: bool,
}

impl Members<'_> {
    fn of(groups: &[StreamRef]) -> Members<'_> {
        let mut members = Members { groups, places: [OBSERVED; 32], crowded: false };
        for &group in groups {
            let place = &mut members.places[group.slot() as usize % 32];
            members.crowded |= *place != OBSERVED;
            *place = group;
        }
        members
    }

    #[inline(always)]
    fn has(&self, group: StreamRef) -> bool {
        self.places[group.slot() as usize % 32] == group
            || matches!(group, MULTI | OBSERVED)
            || self.crowded && self.groups.contains(&group)
    }
}

/// The block at `index`, if there is one, it is free, and it is wanted.
#[inline(always)]
fn neighbour(index: u32, wanted: impl FnOnce(&'static Block) -> bool) -> Option<&'static Block> {
    if index == NIL {
        return None;
    }
    let b = block(index);
    (b.has(FREE) && wanted(b)).then_some(b)
}

/// Neighbours without a gap.
#[inline(always)]
pub(super) fn touches(left: &Block, right: &Block) -> bool {
    left.page() == right.page() && left.end() == right.addr()
}

/// Whether a block beside it is free, whosever it is; one without is no part of a run.
pub(super) fn has_free_neighbour(index: u32) -> bool {
    let b = block(index);
    [b.prev(), b.next()].into_iter().any(|near| near != NIL && block(near).has(FREE))
}

/// The maximal run of adjacent blocks around `seed` that `member` accepts, left to right. All streams that own a free
/// block of the entry are locked, so what is free and accepted stays as it is.
pub(super) fn run_around(seed: u32, member: impl Fn(u32) -> bool) -> Vec<u32> {
    let mut left = Vec::new();
    let mut at = seed;
    loop {
        let prev = block(at).prev();
        if prev == NIL || !member(prev) || !touches(block(prev), block(at)) {
            break;
        }
        left.push(prev);
        at = prev;
    }
    left.reverse();
    left.push(seed);
    at = seed;
    loop {
        let next = block(at).next();
        if next == NIL || !member(next) || !touches(block(at), block(next)) {
            break;
        }
        left.push(next);
        at = next;
    }
    left
}
