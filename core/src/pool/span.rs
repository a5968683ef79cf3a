//! Step 6 of an allocation: several free neighbours with different free points serve together, and become one block
//! only then (`docs/placement.md` §6).

use super::Reason;
use super::alloc::{Found, MAX_QUESTIONS, Request, attach_any, detach_any, out_of_records, point_streams};
use super::block::{Block, FREE, MULTI, OBSERVED, block};
use super::merge::cut;
use super::seams::{Sequences, each_run, sequences};
use super::slow::Slow;
use super::state::PoolShared;
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
    /// The answers allow more than the order does.
    fn reaches_further(&self) -> bool {
        self.0.iter().any(|reach| reach.answer > reach.upto)
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
        debug_assert!(holders.is_sorted());
        let mut bound = Bound(Few::default());
        let follows = self.stream.is_some() && self.pool.follows() && !clock.entries().is_empty();
        for &stream in holders {
            let upto = if follows { slow.state(stream.slot()).covered_by(clock) } else { 0 };
            bound.0.push(Reach { stream, locked: true, upto, ..Reach::default() });
        }
        if let Some(me) = self.stream {
            slow.state(me.slot());
            if follows {
                shared.entries[e].multi.each(|index| {
                    for at in shared.points[&index].iter().filter(|at| at.stream != me) {
                        if bound.find(at.stream).is_none_or(|reach| reach.upto == 0) {
                            let covered = slow.state(at.stream.slot()).covered_by(clock);
                            if covered > 0 {
                                bound.of(at.stream).upto = covered;
                            }
                        }
                    }
                });
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
        // In host order only observed blocks are usable, and no two of them are neighbours: they have merged.
        let Some(me) = self.stream else { return Ok(None) };
        let pool = self.pool;
        let mut bound = self.bound(slow, shared, e, holders, clock);
        // Answers that earlier steps had do not count before the questions of this one.
        let preceding = bound.without_answers();
        let asks = pool.opportunistic.load(Relaxed) && !rules::off(rules::POLICY2);
        let (need, mut found) = (self.need, None);
        let mut search = |slow: &mut Slow<'_>, shared: &mut PoolShared, bound: &Bound| {
            // Only where all that may be used is enough.
            let bytes = |holder| slow.held_bins(holder, pool, e).map_or(0, |bins| bins.bytes);
            let own: u64 = bound.holders().map(bytes).sum();
            if own + shared.entries[e].free_bytes() < need {
                return None;
            }
            let found = found.get_or_insert_with(|| sequences(slow, shared, pool, e, holders));
            best_of(need, shared, bound, found, holders)
        };
        let mut chosen = search(slow, shared, &preceding);
        if chosen.is_none() && asks {
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
            if bound.reaches_further() {
                chosen = search(slow, shared, &bound);
            }
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
            super::merge::absorb(consumed[0], block(consumed[0]), index, block(index), &mut shared.stock);
        }
        Ok(())
    }
}

/// The first block of the smallest maximal run of at least two usable adjacent blocks that is at least `need` bytes, among equals the
/// lowest. `found`, `holders`: see [`each_run`].
fn best_of(need: u64, shared: &PoolShared, bound: &Bound, found: &mut Sequences, holders: &[StreamRef]) -> Option<u32> {
    let mut best: Option<(u64, u64, u32)> = None;
    let limits = Limits::of(bound);
    let usable = |index: u32, b: &'static Block| limits.admit(shared, bound, index, b);
    each_run(found, holders, need, usable, |first, bytes| {
        let found = (bytes, block(first).addr(), first);
        if best.is_none_or(|best| found < best) {
            best = Some(found);
        }
    });
    best.map(|(.., first)| first)
}

/// What a [`Bound`] says of most streams, at hand.
pub(super) struct Limits {
    /// By slot, as far as no two of them meet here: the stream, and up to where its frees may be reused.
    places: [(StreamRef, u64); 32],
    observed: bool,
}

impl Limits {
    pub(super) fn of(bound: &Bound) -> Limits {
        let mut limits = Limits { places: [(OBSERVED, 0); 32], observed: !rules::off(rules::OBSERVED) };
        for reach in bound.0.iter().filter(|reach| reach.locked) {
            limits.places[reach.stream.slot() as usize % 32] = (reach.stream, reach.upto.max(reach.answer));
        }
        limits
    }

    /// The same as [`Bound::admits`] of a free block.
    #[inline(always)]
    pub(super) fn admit(&self, shared: &PoolShared, bound: &Bound, index: u32, b: &Block) -> bool {
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

/// The streams that own what a search goes through, to be asked about each block.
pub(super) struct Members<'a> {
    streams: &'a [StreamRef],
    /// By slot, as far as no two of them meet here.
    places: [StreamRef; 32],
    crowded: bool,
}

impl Members<'_> {
    pub(super) fn of(streams: &[StreamRef]) -> Members<'_> {
        let mut members = Members { streams, places: [OBSERVED; 32], crowded: false };
        for &stream in streams {
            let place = &mut members.places[stream.slot() as usize % 32];
            members.crowded |= *place != OBSERVED;
            *place = stream;
        }
        members
    }

    /// Whether a free block of that owner is one of these streams' or of no single stream.
    #[inline(always)]
    pub(super) fn has(&self, owner: StreamRef) -> bool {
        self.places[owner.slot() as usize % 32] == owner
            || matches!(owner, MULTI | OBSERVED)
            || self.crowded && self.streams.contains(&owner)
    }
}

/// Neighbours without a gap.
#[inline(always)]
pub(super) fn touches(left: &Block, right: &Block) -> bool {
    left.page() == right.page() && left.end() == right.addr()
}
