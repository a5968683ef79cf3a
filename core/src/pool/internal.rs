//! Policy 3: when nothing else serves, the stream is made to wait for a free (`docs/placement.md` §6).

use super::Reason;
use super::alloc::{Found, Rank, Request, largest_per_stream, multis, out_of_records};
use super::bins::Upto;
use super::block::{Block, FREE, HOST, MULTI, NIL, OBSERVED, block};
use super::caches::STREAMS;
use super::merge::cut;
use super::observer::{AllocDone, Event};
use super::seams::{each_run, sequences};
use super::slow::Slow;
use super::span::Members;
use super::state::{Kind, PoolShared};
use crate::device_source::cuda::Fence;
use crate::error::{Error, Result, Status};
use crate::order::{At, Clock, StreamRef};
use crate::rules;
use crate::runtime::native;
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Adjacent free blocks that would serve together.
struct Run {
    consumed: Vec<u32>,
    bytes: u64,
    /// Those of its points that are not followed yet.
    waits: Vec<At>,
    points: Vec<At>,
}

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
            let reach = self.reach(&mut slow, holder);
            let bins = slow.bins(holder, pool, e);
            let rank = |waits: usize, index: u32| (waits, block(index).size(), block(index).seq(), block(index).addr());
            let index = match reach {
                u64::MAX => bins.oldest(self.need, exact),
                reach => {
                    let upto = Upto::Seq(reach.max(covered));
                    let fit = if exact { bins.exact(self.need, upto) } else { bins.best(self.need, upto) };
                    if fit == NIL { NIL } else { bins.oldest(block(fit).size(), true) }
                }
            };
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
            if !self.reachable(&mut slow, &clock, me, points) {
                continue;
            }
            let waits = self.waits(&mut slow, &clock, me, points).len();
            let oldest = points.iter().map(|at| at.seq).max().unwrap_or(0);
            offer((waits, block(index).size(), oldest, block(index).addr()), index, None);
        }
        if let Some((_, index, holder)) = best {
            let points = match holder {
                Some(holder) => vec![At { stream: holder, seq: block(index).seq() }],
                None => shared.points[&index].to_vec(),
            };
            self.detach(&mut slow, &mut shared, e, index, holder);
            let waits = self.waits(&mut slow, &clock, me, &points);
            return self.wait_and_commit(
                slow,
                shared,
                Found { index, entry: e, reason: Reason::Internal },
                waits,
                points,
            );
        }
        if !pool.entries[e].carves() {
            return Ok(None);
        }
        // Runs of any adjacent free blocks, whatever their points; in one order, in which they are asked about.
        let mut found = sequences(&mut slow, &mut shared, pool, e, &holders);
        let mut runs: Vec<(u64, u32, u64)> = Vec::new();
        let members = Members::of(&holders);
        let any = |_, b: &Block| members.has(b.stream());
        each_run(&mut found, &holders, self.need, any, |first, total| runs.push((block(first).addr(), first, total)));
        runs.sort_unstable();
        let mut best: Option<(Rank, Run)> = None;
        for (address, first, total) in runs {
            let mut bytes = 0;
            let mut consumed = Vec::new();
            let mut points: Vec<At> = Vec::new();
            let mut index = first;
            while bytes < self.need {
                bytes += block(index).size();
                consumed.push(index);
                match block(index).stream() {
                    OBSERVED => {}
                    MULTI => points.extend_from_slice(&shared.points[&index]),
                    stream => points.push(At { stream, seq: block(index).seq() }),
                }
                index = block(index).next();
            }
            let points = largest_per_stream(points);
            let oldest = points.iter().map(|at| at.seq).max().unwrap_or(0);
            if !self.reachable(&mut slow, &clock, me, &points) {
                continue;
            }
            let waits = self.waits(&mut slow, &clock, me, &points);
            let rank = (waits.len(), total, oldest, address);
            if best.as_ref().is_none_or(|(other, ..)| rank < *other) {
                best = Some((rank, Run { consumed, bytes, waits, points }));
            }
        }
        let Some((_, Run { consumed, bytes, waits, points })) = best else { return Ok(None) };
        self.weld(&mut slow, &mut shared, e, &consumed, bytes)?;
        let found = Found { index: consumed[0], entry: e, reason: Reason::Internal };
        self.wait_and_commit(slow, shared, found, waits, points)
    }

    /// How far the stream could be made to wait for another: everything on the model device; up to the last event recorded
    /// inside a free on CUDA, where an answer is asked for once in a call and the stream wanted from then on.
    fn reach(&mut self, slow: &mut Slow<'_>, stream: StreamRef) -> u64 {
        let device = slow.device;
        if !device.order.opaque {
            return u64::MAX;
        }
        if let Some(&answer) = self.waitable.get(&stream) {
            return answer;
        }
        let upto = device.waitable(stream, &slow.state(stream.slot()).attach.native);
        device.tell(&Event::Waitable { stream: stream.id(), upto });
        self.waitable.insert(stream, upto);
        native::want(stream);
        upto
    }

    /// Every point is followed already or could be waited for.
    fn reachable(&mut self, slow: &mut Slow<'_>, clock: &Clock, me: StreamRef, points: &[At]) -> bool {
        !slow.device.order.opaque
            || points.iter().all(|at| {
                at.stream == me
                    || slow.state(at.stream.slot()).covered_by(clock) >= at.seq
                    || self.reach(slow, at.stream) >= at.seq
            })
    }

    /// Commits a block taken out of its structure; on CUDA the driver makes the stream wait first, with no lock held. If
    /// it refuses, the block is put back with its `points`.
    fn wait_and_commit(
        &mut self,
        mut slow: Slow<'_>,
        mut shared: MutexGuard<'_, PoolShared>,
        found: Found,
        waits: Vec<At>,
        points: Vec<At>,
    ) -> Result<Option<AllocDone>> {
        let pool = self.pool;
        let device = &*pool.device;
        let (Some(cuda), Some(me), false) = (device.cuda(), self.stream, waits.is_empty()) else {
            return self.commit_waiting(&mut slow, &mut shared, found, waits);
        };
        let fences: Vec<Option<Arc<Fence>>> =
            waits.iter().map(|at| slow.state(at.stream.slot()).attach.native.fence_after(at.seq)).collect();
        let raw = slow.state(me.slot()).attach.native.raw;
        // In no structure, and not to be merged with; of no stream, for those that it was of go on, and may be forgotten.
        let b = block(found.index);
        shared.points.remove(&found.index);
        b.set_size_flags(b.size(), b.flags() & !FREE);
        b.set_stream(HOST);
        drop(shared);
        drop(slow);
        let mut agreed = Ok(());
        for fence in fences {
            let Some(fence) = fence else {
                agreed = Err(Error::new(Status::Internal, "an event that could be waited for is gone"));
                break;
            };
            if !rules::off(rules::CUDA_WAIT)
                && let Err(code) = cuda.stream_wait(raw, fence.raw())
            {
                agreed = Err(cuda.error("cuStreamWaitEvent", code));
                break;
            }
        }
        let mut slow = Slow::lock(device);
        let agreed = agreed.and_then(|()| self.now(&mut slow).map(drop));
        let mut shared = pool.shared.lock();
        // Some may have been observed meanwhile.
        let mut points = points;
        points.retain(|at| device.order.observed(&STREAMS, at.stream) < at.seq);
        let e = found.entry;
        let agreed = agreed.and_then(|()| self.cut_to_need(&mut slow, &mut shared, &found, &points));
        if let Err(error) = agreed {
            b.add_flag(FREE);
            super::free::place(&mut slow, &mut shared, pool, e, found.index, &points);
            drop(shared);
            if pool.destroyed.load(Relaxed) {
                super::release::bury(&mut slow, pool);
            }
            return Err(error);
        }
        match points[..] {
            [] => b.set_stream(OBSERVED),
            [At { stream, seq }] => {
                slow.state(stream.slot());
                b.set_stream(stream);
                b.set_seq(seq);
            }
            _ => {
                b.set_stream(MULTI);
                shared.points.insert(found.index, &points);
            }
        }
        b.add_flag(FREE);
        let waits = waits.into_iter().filter(|at| STREAMS.at(at.stream.slot()).is(device.uid, at.stream)).collect();
        self.commit_waiting(&mut slow, &mut shared, found, waits)
    }

    /// What a block that was in no structure for a while has beyond the need becomes a free block, and merges with what has come
    /// to be beside it.
    fn cut_to_need(&self, slow: &mut Slow<'_>, shared: &mut PoolShared, found: &Found, points: &[At]) -> Result<()> {
        let (pool, e, b) = (self.pool, found.entry, block(found.index));
        if !pool.entries[e].carves() || b.size() <= self.need {
            return Ok(());
        }
        let cut = cut(found.index, b, self.need, &mut shared.stock).map_err(|()| out_of_records())?;
        if let (Some((rest, r)), Some(me)) = (cut, self.stream) {
            r.add_flag(FREE);
            super::free::place(slow, shared, pool, e, rest, points);
            slow.cache(me.slot(), pool).entries[e].counts.splits += 1;
        }
        Ok(())
    }

    /// The points the stream does not follow yet.
    fn waits(&self, slow: &mut Slow<'_>, clock: &Clock, me: StreamRef, points: &[At]) -> Vec<At> {
        points
            .iter()
            .copied()
            .filter(|at| at.stream != me && slow.state(at.stream.slot()).covered_by(clock) < at.seq)
            .collect()
    }
}
