//! Step 6 of an allocation: several free neighbours with different free points serve together, and become one block
//! only then (`docs/placement.md` §6).

use super::Reason;
use super::alloc::{Found, MAX_QUESTIONS, Request, attach_any, detach_any, out_of_records, point_streams};
use super::block::{FREE, MULTI, NIL, OBSERVED, block};
use super::state::{PoolShared, Slow, cut};
use crate::error::Result;
use crate::order::{At, Clock, StreamRef};
use crate::rules;
use crate::slab::SlotMap;
use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;

/// Which free points an allocation may reuse, and why.
pub(super) struct Bound {
    /// Stream → last sequence number.
    pub(super) upto: SlotMap<StreamRef, (u64, Reason)>,
    /// What the device has answered in this allocation: stream → executed.
    pub(super) answers: SlotMap<StreamRef, u64>,
    /// The streams whose free blocks stay as they are, lowest first.
    pub(super) locked: Vec<StreamRef>,
}

impl Bound {
    /// Some free of the stream may be reused.
    pub(super) fn has(&self, stream: StreamRef) -> bool {
        self.upto.contains_key(&stream) || self.answers.contains_key(&stream)
    }
    /// Why a free block may be reused, if it may.
    pub(super) fn usable(&self, shared: &PoolShared, index: u32) -> Option<Reason> {
        usable(shared, index, &self.upto, &self.answers, &self.locked)
    }
}

impl Request<'_> {
    /// What precedes now: the stream's own frees, and (policy 1) those of streams it is ordered after.
    pub(super) fn bound(
        &self,
        slow: &mut Slow<'_>,
        shared: &PoolShared,
        e: usize,
        holders: &[StreamRef],
        clock: &Clock,
    ) -> Bound {
        let mut upto: SlotMap<StreamRef, (u64, Reason)> = SlotMap::default();
        if let Some(me) = self.stream {
            slow.state(me.slot());
            upto.insert(me, (u64::MAX, Reason::SameStream));
            if self.pool.follows() && !clock.entries().is_empty() {
                for stream in point_streams(holders, shared, e) {
                    let last = if stream == me { 0 } else { slow.state(stream.slot()).covered_by(clock) };
                    if last > 0 {
                        upto.insert(stream, (last, Reason::Event));
                    }
                }
            }
        }
        let mut locked = holders.to_vec();
        locked.extend(self.stream);
        locked.sort_unstable();
        locked.dedup();
        Bound { upto, answers: self.answers.clone(), locked }
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
        let Bound { upto: bound, locked, .. } = self.bound(slow, shared, e, holders, clock);
        let no_answers = SlotMap::default();
        let mut chosen = self.best_run(slow, shared, e, &locked, &bound, &no_answers);
        if chosen.is_none()
            && let Some(me) = self.stream
            && pool.opportunistic.load(Relaxed)
            && !rules::off(rules::POLICY2)
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
            let answers = self.answers.clone();
            chosen = self.best_run(slow, shared, e, &locked, &bound, &answers);
        }
        let Some(run) = chosen else { return Ok(None) };
        let mut reason = Reason::SameStream;
        let mut bytes = 0;
        let mut consumed = Vec::new();
        for &index in &run {
            if bytes >= self.need {
                break;
            }
            bytes += block(index).size();
            reason = reason.max(usable(shared, index, &bound, &self.answers, &locked).expect("part of a run"));
            consumed.push(index);
        }
        self.weld(slow, shared, e, &consumed, bytes)?;
        Ok(Some(Found { index: run[0], entry: e, reason }))
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

    /// The smallest maximal run of at least two usable adjacent blocks that is large enough, among equals the lowest.
    pub(super) fn best_run(
        &self,
        slow: &mut Slow<'_>,
        shared: &PoolShared,
        e: usize,
        locked: &[StreamRef],
        bound: &SlotMap<StreamRef, (u64, Reason)>,
        answers: &SlotMap<StreamRef, u64>,
    ) -> Option<Vec<u32>> {
        // Blocks of one group never touch one another (they would have merged), multi blocks aside: every run has a
        // block outside the largest group, so that group is not gone through.
        let own = &shared.entries[e];
        let groups: Vec<(u64, StreamRef)> = locked
            .iter()
            .copied()
            .filter(|holder| {
                bound.get(holder).is_some_and(|&(upto, _)| upto > 0)
                    || answers.get(holder).is_some_and(|&upto| upto > 0)
            })
            .map(|holder| (slow.bins(holder, self.pool, e).count, holder))
            .collect();
        let largest = groups.iter().copied().max().filter(|&(count, _)| count > own.observed.count + own.unused.count);
        let mut seeds: Vec<u32> = own.multi.iter().map(|&(.., index)| index).collect();
        if largest.is_some() {
            own.observed.each(|index| seeds.push(index));
            own.unused.each(|index| seeds.push(index));
        }
        for &group in groups.iter().filter(|&&group| Some(group) != largest) {
            slow.bins(group.1, self.pool, e).each(|index| seeds.push(index));
        }
        let usable_here = |index: u32| usable(shared, index, bound, answers, locked).is_some();
        let mut seen: HashSet<u32> = HashSet::new();
        let mut best: Option<(u64, u64, Vec<u32>)> = None;
        for seed in seeds {
            if seen.contains(&seed) || !usable_here(seed) {
                continue;
            }
            let run = run_around(seed, usable_here);
            if run.len() < 2 {
                continue;
            }
            seen.extend(&run);
            let bytes: u64 = run.iter().map(|&index| block(index).size()).sum();
            let addr = block(run[0]).addr();
            if bytes >= self.need && best.as_ref().is_none_or(|(size, low, _)| (bytes, addr) < (*size, *low)) {
                best = Some((bytes, addr, run));
            }
        }
        best.map(|(.., run)| run)
    }
}

/// Why a free block may be part of a span, if it may.
pub(super) fn usable(
    shared: &PoolShared,
    index: u32,
    bound: &SlotMap<StreamRef, (u64, Reason)>,
    answers: &SlotMap<StreamRef, u64>,
    locked: &[StreamRef],
) -> Option<Reason> {
    let one = |at: At| match bound.get(&at.stream) {
        Some(&(upto, reason)) if at.seq <= upto => Some(reason),
        _ => answers.get(&at.stream).filter(|&&upto| at.seq <= upto).map(|_| Reason::Opportunistic),
    };
    let b = block(index);
    if !b.has(FREE) {
        return None;
    }
    match b.stream() {
        OBSERVED if rules::off(rules::OBSERVED) => None,
        OBSERVED => Some(Reason::Observed),
        MULTI => {
            let mut weakest = Reason::SameStream;
            for &at in shared.points.get(&index)? {
                weakest = weakest.max(one(at)?);
            }
            Some(weakest)
        }
        // Only a locked stream's blocks stay as they are.
        stream if locked.binary_search(&stream).is_ok() => one(At { stream, seq: b.seq() }),
        _ => None,
    }
}

/// The maximal run of adjacent blocks around `seed` that `member` accepts, left to right. All streams that own a free
/// block of the entry are locked, so what is free and accepted stays as it is.
pub(super) fn run_around(seed: u32, member: impl Fn(u32) -> bool) -> Vec<u32> {
    let touches = |left: u32, right: u32| {
        let (l, r) = (block(left), block(right));
        l.page() == r.page() && l.end() == r.addr()
    };
    let mut left = Vec::new();
    let mut at = seed;
    loop {
        let prev = block(at).prev();
        if prev == NIL || !member(prev) || !touches(prev, at) {
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
        if next == NIL || !member(next) || !touches(at, next) {
            break;
        }
        left.push(next);
        at = next;
    }
    left
}
