//! One stream: its numbers, what its operations still wait for, and what it is ordered after.

use super::{At, Clock, StreamRef};
use crate::few::Few;
use crate::handle;
use crate::lock::StreamMutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// How many past barriers a stream remembers for points the host has not observed. Beyond that the oldest are dropped, which
/// can only make an answer more careful.
const BARRIERS: usize = 65536;
/// How many changes of its clock, likewise.
const CHANGES: usize = 4 * BARRIERS;

/// How calls name the legacy default stream, in [`State::handle`].
pub(crate) const LEGACY: u64 = 1;

/// A stream's record, alone on its cache lines. `X` is what the layers above keep under the stream's lock.
#[derive(Default)]
#[repr(C, align(128))]
pub(crate) struct Stream<X> {
    /// (device number << 32 | ordinal) while in use, else 0: tells whether a [`StreamRef`] still means this stream.
    ident: AtomicU64,
    executed: AtomicU64,
    observed: AtomicU64,
    /// What others want of this stream's next own call: bits of the layers above.
    pub(crate) watch: AtomicU32,
    pub(crate) state: StreamMutex<State<X>>,
}

/// What the stream's lock protects. The first fields are what most calls look at.
#[repr(C)]
pub(crate) struct State<X> {
    /// The same as `handle` while one more operation that depends on nothing needs no more than a number: the stream's handle is
    /// good, a barrier would take the stream in, the last barrier has been taken in, and nobody waits for it. Else 0, which no
    /// call compares with. What may end that sets it to 0; [`super::Order::admit`] looks again.
    pub(super) ready_for: u64,
    pub(crate) me: StreamRef,
    pub(crate) submitted: u64,
    /// With `ready_for`: the operation runs at once, for the stream is eager and held up by nothing.
    pub(super) runs: bool,
    pub(crate) attach: X,
    pub(crate) generation: u32,
    /// The handle is good: created and not released.
    pub(crate) live: bool,
    /// The handle's bits while it is good, else 0 ([`LEGACY`] for the legacy stream, which goes by its own names): what the hot
    /// path compares.
    pub(crate) handle: u64,
    pub(crate) released: bool,
    pub(crate) device_uid: u32,
    pub(crate) device_slot: u32,
    pub(crate) non_blocking: bool,
    pub(crate) lazy: bool,
    /// What it has executed is said from outside; dependencies are the driver's business.
    pub(crate) opaque: bool,
    /// What the last submitted operation is ordered after.
    pub(crate) clock: Clock,
    /// The last barrier of the legacy stream that an operation of this stream is ordered after; `u64::MAX` where barriers
    /// do not matter.
    pub(crate) joined: u64,
    /// Something was submitted since the last barrier that took this stream in; always where barriers do not matter.
    pub(crate) dirty: bool,
    /// Memory for the next clock.
    pub(super) spare: Clock,
    /// How the clock became what it is, as far as unobserved operations changed it.
    pub(super) clock_log: VecDeque<Raised>,
    /// The last operation whose change has been dropped though it was not observed: what the clock was before is not known.
    pub(super) clock_known_from: u64,
    pub(super) barrier_log: VecDeque<(u64, u64)>,
    /// Operations with dependencies that had not executed when submitted, once for each of them.
    pub(super) queue: VecDeque<(u64, At)>,
    /// Eager streams held up by this one.
    pub(crate) waiters: Vec<StreamRef>,
}

/// The operation `seq` covers more of `stream` than the one before it, which covered `had`.
#[derive(Clone, Copy)]
pub(super) struct Raised {
    seq: u64,
    stream: StreamRef,
    had: u64,
}

impl<X: Default> Default for State<X> {
    fn default() -> Self {
        State {
            ready_for: 0,
            runs: false,
            generation: 0,
            live: false,
            handle: 0,
            released: false,
            me: StreamRef(0),
            device_uid: 0,
            device_slot: 0,
            non_blocking: false,
            lazy: false,
            opaque: false,
            submitted: 0,
            clock: Clock::default(),
            joined: 0,
            dirty: false,
            spare: Clock::default(),
            clock_log: VecDeque::new(),
            clock_known_from: 0,
            barrier_log: VecDeque::new(),
            queue: VecDeque::new(),
            waiters: Vec::new(),
            attach: X::default(),
        }
    }
}

impl<X> Stream<X> {
    #[inline(always)]
    pub(crate) fn is(&self, device_uid: u32, stream: StreamRef) -> bool {
        self.ident.load(Ordering::Acquire) == ident(device_uid, stream)
    }
    pub(crate) fn name(&self, device_uid: u32, stream: StreamRef) {
        self.executed.store(0, Ordering::Relaxed);
        self.observed.store(0, Ordering::Relaxed);
        self.ident.store(ident(device_uid, stream), Ordering::Release);
    }
    pub(crate) fn forget(&self) {
        self.ident.store(0, Ordering::Release);
    }
    #[inline(always)]
    pub(crate) fn executed(&self) -> u64 {
        self.executed.load(Ordering::Acquire)
    }
    #[inline(always)]
    pub(crate) fn observed(&self) -> u64 {
        self.observed.load(Ordering::Acquire)
    }
    /// Raises *executed* to what an outside answer says.
    pub(crate) fn execute(&self, seq: u64) {
        self.executed.fetch_max(seq, Ordering::AcqRel);
    }
    /// Raises *observed*. Called under the lock that also moves the frees this makes usable.
    pub(crate) fn observe(&self, seq: u64) -> bool {
        self.observed.fetch_max(seq, Ordering::AcqRel) < seq
    }
}

fn ident(device_uid: u32, stream: StreamRef) -> u64 {
    (u64::from(device_uid) << 32) | u64::from(stream.ordinal())
}

impl<X> State<X> {
    pub(crate) fn is_legacy(&self) -> bool {
        self.me.ordinal() == 0
    }

    /// The stream begins: `me`, `generation` and `non_blocking` are set.
    pub(super) fn begin(&mut self) {
        self.handle = match self.is_legacy() {
            true => LEGACY,
            false => handle::encode(handle::Kind::Stream, self.generation, self.me.slot()),
        };
        if self.non_blocking || self.is_legacy() {
            (self.joined, self.dirty) = (u64::MAX, true);
        }
    }

    /// Calls name the stream with these bits from now on.
    pub(crate) fn set_handle(&mut self, handle: u64) {
        (self.handle, self.ready_for) = (handle, 0);
    }

    /// The handle is good no more.
    pub(crate) fn close(&mut self) {
        (self.live, self.handle, self.ready_for) = (false, 0, 0);
    }

    /// Whether the stream is the one that a call names with `key`, and [`State::push_next`] is all that an operation needs.
    #[inline(always)]
    pub(crate) fn is_ready_for(&self, key: u64) -> bool {
        self.ready_for == key
    }

    /// What a call names the stream with while it is ready for it.
    #[inline(always)]
    pub(crate) fn ready_key(&self) -> u64 {
        self.ready_for
    }

    /// More may be needed for the next operation.
    pub(crate) fn look_again(&mut self) {
        self.ready_for = 0;
    }

    /// Nothing it submitted is held up, unless it is lazy, and no one waits for it: [`super::Order::settle`] would move nothing.
    #[inline(always)]
    pub(crate) fn is_settled(&self) -> bool {
        self.waiters.is_empty() && (self.lazy || self.queue.is_empty())
    }

    /// Submits one operation that depends on nothing, on a stream that is ready for it. Returns its number.
    #[inline(always)]
    pub(crate) fn push_next(&mut self, stream: &Stream<X>) -> u64 {
        let seq = self.submitted + 1;
        self.submitted = seq;
        if self.runs {
            stream.executed.store(seq, Ordering::Release);
        }
        seq
    }

    /// Submits `count` operations that depend on nothing, if the stream is ready for them. Returns the first one's number.
    #[inline(always)]
    pub(crate) fn push_ready(&mut self, stream: &Stream<X>, count: u64) -> Option<u64> {
        if self.ready_for == 0 {
            return None;
        }
        let first = self.submitted + 1;
        self.submitted += count;
        if self.runs {
            stream.executed.store(self.submitted, Ordering::Release);
        }
        Some(first)
    }

    /// Submits one operation that depends on nothing. Returns its number.
    #[inline(always)]
    pub(crate) fn push_one(&mut self, stream: &Stream<X>) -> u64 {
        self.submitted += 1;
        if !self.lazy && self.queue.is_empty() {
            stream.executed.store(self.submitted, Ordering::Release);
        }
        self.submitted
    }

    /// Submits `count` operations of which the first depends on `deps` (already without what has executed). Returns the
    /// first one's number.
    #[inline(always)]
    pub(crate) fn push(&mut self, stream: &Stream<X>, count: u64, deps: &[At]) -> u64 {
        let first = self.submitted + 1;
        self.submitted += count;
        if !deps.is_empty() && !self.opaque {
            self.look_again();
            self.queue.extend(deps.iter().map(|&dep| (first, dep)));
        }
        if !self.lazy && self.queue.is_empty() {
            stream.executed.store(self.submitted, Ordering::Release);
        }
        first
    }

    /// Replaces the only dependency of the queued operation `seq`.
    pub(crate) fn replace_deps(&mut self, seq: u64, deps: &[At]) {
        if let Some(at) = self.queue.iter().position(|entry| entry.0 == seq) {
            // (Without any it stays in the queue, to be run on from there.)
            self.queue[at].1.seq = 0;
            for (place, &dep) in (at..).zip(deps) {
                self.queue.insert(place, (seq, dep));
            }
        }
    }

    /// Runs up to `limit`, as far as dependencies allow. Answers what stopped it, if something did.
    pub(crate) fn advance(&mut self, stream: &Stream<X>, limit: u64, done: impl Fn(At) -> bool) -> Option<At> {
        let limit = limit.min(self.submitted);
        let mut blocked = None;
        let mut reach = limit;
        while let Some(&(seq, dep)) = self.queue.front() {
            if seq > limit {
                break;
            }
            if !done(dep) {
                reach = seq - 1;
                blocked = Some(dep);
                break;
            }
            self.queue.pop_front();
        }
        if reach > stream.executed() {
            stream.executed.store(reach, Ordering::Release);
        }
        blocked
    }

    /// The stream's clock changes with the operation `seq`.
    pub(crate) fn set_clock(&mut self, seq: u64, clock: Clock) {
        if clock.is_same(&self.clock) {
            return;
        }
        for &(stream, covered) in clock.entries() {
            let had = self.clock.get(stream);
            if covered > had {
                self.clock_log.push_back(Raised { seq, stream, had });
            }
        }
        self.clock = clock;
        self.limit_clock_log();
    }

    /// The next operation is ordered after `at`, of another stream, and after what `clock` covers. `observed`: how far the host has
    /// observed a stream.
    #[inline(never)]
    pub(super) fn take_in(&mut self, at: At, clock: &Clock, observed: impl Fn(StreamRef) -> u64) {
        let State { clock: own, spare, clock_log, submitted, me, .. } = self;
        let seq = *submitted + 1;
        own.take_in(spare, *me, clock, at, observed, |stream, had| clock_log.push_back(Raised { seq, stream, had }));
        self.limit_clock_log();
    }

    #[inline]
    fn limit_clock_log(&mut self) {
        while self.clock_log.len() > CHANGES {
            self.clock_known_from = self.clock_log.pop_front().map_or(0, |dropped| dropped.seq);
        }
    }

    /// A record of an event holds the stream's clock now, and `old` no more.
    #[inline]
    pub(crate) fn share_clock(&mut self, old: Option<Clock>) -> Clock {
        if let Some(old) = old {
            old.leave_to(&mut self.spare);
        }
        self.clock.clone()
    }

    /// The clock as it was after operation `seq`, as far as remembered: what has been observed may be in it or not.
    pub(crate) fn clock_at(&self, seq: u64) -> Clock {
        if seq < self.clock_known_from {
            return Clock::default();
        }
        let later = self.clock_log.iter().rev().take_while(|raised| raised.seq > seq);
        let mut entries: Option<Few<(StreamRef, u64), 8>> = None;
        for &Raised { stream, had, .. } in later {
            let entries = entries.get_or_insert_with(|| self.clock.entries().into());
            match entries.binary_search_by_key(&stream, |entry| entry.0) {
                Ok(at) => entries[at].1 = had,
                Err(at) => entries.insert(at, (stream, had)),
            }
        }
        match entries {
            None => self.clock.clone(),
            Some(mut entries) => {
                entries.retain(|(_, covered)| covered > 0);
                Clock::of(&entries)
            }
        }
    }

    /// The last operation that is not ordered after an operation of another stream that has not executed. `executed`: how far
    /// this stream has.
    pub(crate) fn last_not_after(&self, at: At, executed: u64) -> u64 {
        if self.clock.get(at.stream) < at.seq {
            return self.submitted;
        }
        let raised = self.clock_log.iter().rev().find(|raised| raised.stream == at.stream && raised.had < at.seq);
        raised.map_or(executed, |raised| raised.seq - 1)
    }

    /// A barrier took in everything submitted up to `seq`.
    pub(crate) fn taken_by_barrier(&mut self, barrier: u64, seq: u64, observed: u64) {
        self.look_again();
        self.dirty = seq < self.submitted;
        self.barrier_log.push_back((barrier, seq));
        self.prune(observed);
    }

    /// The last operation covered by the barriers up to `barrier`.
    pub(crate) fn covered_by_barrier(&self, barrier: u64) -> u64 {
        self.barrier_log.iter().rev().find(|entry| entry.0 <= barrier).map_or(0, |entry| entry.1)
    }

    /// The last operation of this stream that `clock` covers, directly or by a barrier.
    pub(crate) fn covered_by(&self, clock: &Clock) -> u64 {
        let direct = clock.get(self.me);
        if self.non_blocking || self.is_legacy() {
            return direct;
        }
        match clock.legacy() {
            0 => direct,
            barrier => direct.max(self.covered_by_barrier(barrier)),
        }
    }

    /// Drops what only speaks of observed points.
    pub(crate) fn prune(&mut self, observed: u64) {
        if self.clock_log.front().is_some_and(|first| first.seq <= observed) {
            let gone = self.clock_log.partition_point(|raised| raised.seq <= observed);
            self.clock_log.drain(..gone);
        }
        while self.barrier_log.len() > BARRIERS || self.barrier_log.front().is_some_and(|entry| entry.1 <= observed) {
            self.barrier_log.pop_front();
        }
    }
}
