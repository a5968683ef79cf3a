//! Policy 3: when nothing else serves, the stream is made to wait for a free (`docs/placement.md` §6).

use super::Reason;
use super::alloc::{Found, Rank, Request, largest_per_stream, multis};
use super::bins::Upto;
use super::block::{MULTI, NIL, OBSERVED, block};
use super::observer::AllocDone;
use super::span::run_around;
use super::state::{Kind, Slow};
use crate::error::Result;
use crate::order::{At, Clock, StreamRef};
use std::collections::HashSet;

impl Request<'_> {
    /// Policy 3 for one entry.
    pub(super) fn internal(&mut self, e: usize) -> Result<Option<AllocDone>> {
        let pool = self.pool;
        let Some(me) = self.stream else { return Ok(None) };
        let exact = pool.entries[e].kind == Kind::Direct;
        let mut slow = Slow::lock(&pool.device);
        let clock = self.now(&mut slow)?;
        let mut shared = pool.shared.lock();
        let holders = slow.holders(pool, e);
        let mut best: Option<(Rank, u32, Option<StreamRef>)> = None;
        let mut offer = |rank: Rank, index: u32, holder: Option<StreamRef>| {
            if best.as_ref().is_none_or(|(other, ..)| rank < *other) {
                best = Some((rank, index, holder));
            }
        };
        for &holder in holders.iter().filter(|&&holder| holder != me) {
            let covered = slow.state(holder.slot()).covered_by(&clock);
            let bins = slow.bins(holder, pool, e);
            let rank = |waits: usize, index: u32| (waits, block(index).size(), block(index).seq(), block(index).addr());
            let index = bins.oldest(self.need, exact);
            if index != NIL {
                offer(rank(usize::from(block(index).seq() > covered), index), index, Some(holder));
            }
            let near = if exact {
                bins.exact(self.need, Upto::Seq(covered))
            } else {
                bins.best(self.need, Upto::Seq(covered))
            };
            if covered > 0 && near != NIL {
                let index = bins.oldest(block(near).size(), true);
                offer(rank(0, index), index, Some(holder));
            }
        }
        let candidates: Vec<u32> = multis(&shared, e, self.need, exact).collect();
        for index in candidates {
            let points = &shared.points[&index];
            let waits = self.waits(&mut slow, &clock, me, points).len();
            let oldest = points.iter().map(|at| at.seq).max().unwrap_or(0);
            offer((waits, block(index).size(), oldest, block(index).addr()), index, None);
        }
        if let Some((_, index, holder)) = best {
            let points = match holder {
                Some(holder) => vec![At { stream: holder, seq: block(index).seq() }],
                None => shared.points[&index].clone(),
            };
            self.detach(&mut slow, &mut shared, e, index, holder);
            let waits = self.waits(&mut slow, &clock, me, &points);
            return self.commit_waiting(slow, &mut shared, Found { index, entry: e, reason: Reason::Internal }, waits);
        }
        if !pool.entries[e].carves() {
            return Ok(None);
        }
        // Runs of any adjacent free blocks, whatever their points.
        let mut all: Vec<u32> = Vec::new();
        let own = &shared.entries[e];
        own.observed.each(|index| all.push(index));
        own.unused.each(|index| all.push(index));
        all.extend(own.multi.iter().map(|&(.., index)| index));
        for &holder in &holders {
            slow.bins(holder, pool, e).each(|index| all.push(index));
        }
        let members: HashSet<u32> = all.iter().copied().collect();
        let mut seen: HashSet<u32> = HashSet::new();
        let mut best: Option<(Rank, Vec<u32>, u64, Vec<At>)> = None;
        for &seed in &all {
            if seen.contains(&seed) {
                continue;
            }
            let run = run_around(seed, |index| members.contains(&index));
            seen.extend(&run);
            let total: u64 = run.iter().map(|&index| block(index).size()).sum();
            if run.len() < 2 || total < self.need {
                continue;
            }
            let mut bytes = 0;
            let mut consumed = Vec::new();
            let mut points: Vec<At> = Vec::new();
            for &index in &run {
                if bytes >= self.need {
                    break;
                }
                bytes += block(index).size();
                consumed.push(index);
                match block(index).stream() {
                    OBSERVED => {}
                    MULTI => points.extend(&shared.points[&index]),
                    stream => points.push(At { stream, seq: block(index).seq() }),
                }
            }
            let points = largest_per_stream(points);
            let oldest = points.iter().map(|at| at.seq).max().unwrap_or(0);
            let waits = self.waits(&mut slow, &clock, me, &points);
            let rank = (waits.len(), total, oldest, block(run[0]).addr());
            if best.as_ref().is_none_or(|(other, ..)| rank < *other) {
                best = Some((rank, consumed, bytes, waits));
            }
        }
        let Some((_, consumed, bytes, waits)) = best else { return Ok(None) };
        self.weld(&mut slow, &mut shared, e, &consumed, bytes)?;
        let found = Found { index: consumed[0], entry: e, reason: Reason::Internal };
        self.commit_waiting(slow, &mut shared, found, waits)
    }

    /// The points the stream does not follow yet.
    pub(super) fn waits(&self, slow: &mut Slow<'_>, clock: &Clock, me: StreamRef, points: &[At]) -> Vec<At> {
        points
            .iter()
            .copied()
            .filter(|at| at.stream != me && slow.state(at.stream.slot()).covered_by(clock) < at.seq)
            .collect()
    }
}
