//! The order of one device: its streams, the legacy stream's barriers, execution and observation.
//!
//! Locks, outermost first: `barrier`, then one stream's lock, then the leaves (`dirty`, `barrier_clock`, `streams`).

use super::{At, Clock, Points, State, Stream, StreamRef};
use crate::few::Few;
use crate::slab::Slab;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Every stream of the process: up to 2^24.
pub(crate) type Table<X> = Slab<Stream<X>, { 1 << 16 }>;

/// What one device knows of its streams beyond their own records.
pub(crate) struct Order {
    pub(crate) uid: u32,
    next_ordinal: AtomicU32,
    /// Sequence number of the legacy stream's last barrier, 0 if none.
    barrier: AtomicU64,
    /// Serialises barriers.
    barriers: Mutex<()>,
    dirty: Mutex<Dirty>,
    /// What the last barrier was ordered after, beside the blocking streams themselves.
    barrier_clock: Mutex<Clock>,
    pub(crate) streams: Mutex<BTreeSet<StreamRef>>,
    pub(crate) legacy: StreamRef,
    /// Someone wants to see every call: no stream is ready for one that is not looked at.
    pub(crate) watched: AtomicBool,
    /// There may be work the library does not see: nothing runs of itself here, an outside answer says how far a stream is.
    pub(crate) opaque: bool,
}

/// Blocking streams with something submitted since the last barrier. One that is forgotten since then stays until the list has
/// doubled, for a program may make and destroy streams without end and never use the legacy one.
#[derive(Default)]
struct Dirty {
    members: Vec<StreamRef>,
    /// At this length those that are forgotten are dropped.
    full_at: usize,
}

impl Dirty {
    /// Lists shorter than this are not gone through.
    const SHORT: usize = 64;

    fn push(&mut self, member: StreamRef, is_known: impl Fn(StreamRef) -> bool) {
        if self.members.len() >= self.full_at.max(Self::SHORT) {
            self.members.retain(|&member| is_known(member));
            self.full_at = 2 * self.members.len();
        }
        self.members.push(member);
    }
}

/// A barrier that has its numbers and orders nothing yet.
pub(crate) struct Barrier {
    pub(crate) first: u64,
    deps: Points,
    /// What it comes after beside the blocking streams themselves.
    extra: Vec<(StreamRef, u64)>,
}

/// What an operation about to be submitted is ordered after.
pub(crate) struct Now {
    pub(crate) clock: Clock,
    barrier: u64,
}

/// See [`Order::done`].
#[inline(always)]
pub(crate) fn done<X: Default>(table: &Table<X>, uid: u32, at: At) -> bool {
    let stream = table.at(at.stream.slot());
    let executed = stream.executed();
    !stream.is(uid, at.stream) || executed >= at.seq
}

#[inline(always)]
fn observed<X: Default>(table: &Table<X>, uid: u32, stream: StreamRef) -> u64 {
    let record = table.at(stream.slot());
    let observed = record.observed();
    if record.is(uid, stream) { observed } else { u64::MAX }
}

/// Submits a wait for what an event stands for, on a stream, locked, that is ready for an operation and not the legacy one, if
/// the event's stream is not forgotten, and nothing else need be done for it. `false`: nothing was done.
#[inline(always)]
pub(crate) fn submit_wait<X: Default>(
    table: &Table<X>,
    stream: &Stream<X>,
    state: &mut State<X>,
    at: At,
    clock: &Clock,
) -> bool {
    let uid = state.device_uid;
    if at.stream == state.me {
        state.push_next(stream);
        return true;
    }
    let other = table.at(at.stream.slot());
    let done = other.executed() >= at.seq;
    if !other.is(uid, at.stream) {
        return false;
    }
    // Others would have to know that they hold up an eager stream.
    if !done && !state.lazy {
        return false;
    }
    state.take_in(at, clock, |stream| observed(table, uid, stream));
    let seq = state.push_next(stream);
    if !done && !state.opaque {
        state.queue.push_back((seq, at));
    }
    true
}

impl Order {
    /// A new order with its legacy stream. `None`: out of slots.
    pub(crate) fn new<X: Default>(
        table: &Table<X>,
        uid: u32,
        device_slot: u32,
        lazy: bool,
        opaque: bool,
    ) -> Option<Order> {
        let slot = table.take_one()?;
        let order = Order {
            uid,
            next_ordinal: AtomicU32::new(1),
            barrier: AtomicU64::new(0),
            barriers: Mutex::new(()),
            dirty: Mutex::new(Dirty::default()),
            barrier_clock: Mutex::new(Clock::default()),
            streams: Mutex::new(BTreeSet::new()),
            legacy: StreamRef::new(0, slot),
            watched: AtomicBool::new(false),
            opaque,
        };
        order.open(table, order.legacy, device_slot, false, lazy);
        Some(order)
    }

    fn open<X: Default>(
        &self,
        table: &Table<X>,
        me: StreamRef,
        device_slot: u32,
        non_blocking: bool,
        lazy: bool,
    ) -> u32 {
        let stream = table.at(me.slot());
        let mut state = stream.state.lock();
        let generation = state.generation + 1;
        *state = State {
            generation,
            live: true,
            me,
            device_uid: self.uid,
            device_slot,
            non_blocking,
            lazy: lazy || self.opaque,
            opaque: self.opaque,
            // A barrier that came before the stream orders the stream's first operation too.
            joined: 0,
            ..State::default()
        };
        state.begin();
        stream.watch.store(0, Ordering::Relaxed);
        stream.name(self.uid, me);
        self.streams.lock().insert(me);
        generation
    }

    /// A new stream and its handle's generation. `None`: out of slots, or of the device's numbers.
    pub(crate) fn create<X: Default>(
        &self,
        table: &Table<X>,
        device_slot: u32,
        non_blocking: bool,
        lazy: bool,
    ) -> Option<(StreamRef, u32)> {
        let slot = table.take_one()?;
        // (The last of them is never given out: none is given out twice.)
        let next = self.next_ordinal.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| next.checked_add(1));
        let Ok(ordinal) = next else {
            table.give_back([slot]);
            return None;
        };
        let me = StreamRef::new(ordinal, slot);
        let generation = self.open(table, me, device_slot, non_blocking, lazy);
        Some((me, generation))
    }

    /// All operations of `at.stream` up to `at.seq` have executed. A forgotten stream has nothing left to run.
    #[inline]
    pub(crate) fn done<X: Default>(&self, table: &Table<X>, at: At) -> bool {
        done(table, self.uid, at)
    }

    /// The last operation of `stream` the host has observed; all of them for a forgotten one.
    #[inline]
    pub(crate) fn observed<X: Default>(&self, table: &Table<X>, stream: StreamRef) -> u64 {
        observed(table, self.uid, stream)
    }

    /// What the next operation of a stream is ordered after, the barrier it would depend on included.
    #[inline(always)]
    pub(crate) fn now<X: Default>(&self, table: &Table<X>, state: &State<X>) -> Now {
        if !state.non_blocking && !state.is_legacy() && self.barrier.load(Ordering::Acquire) <= state.joined {
            return Now { clock: state.clock.clone(), barrier: state.joined };
        }
        self.now_rest(table, state)
    }

    #[inline(never)]
    fn now_rest<X: Default>(&self, table: &Table<X>, state: &State<X>) -> Now {
        if state.non_blocking || state.is_legacy() {
            let clock = if state.is_legacy() && state.submitted > 0 {
                state.clock.join(&Clock::default(), &[(state.me, state.submitted)], |_| 0)
            } else {
                state.clock.clone()
            };
            return Now { clock, barrier: 0 };
        }
        let shared = self.barrier_clock.lock();
        // Read again under the lock: clock and number belong together.
        let barrier = self.barrier.load(Ordering::Acquire);
        let clock = state.clock.join(&shared, &[(self.legacy, barrier)], |stream| self.observed(table, stream));
        Now { clock, barrier }
    }

    /// Nothing new would be brought in by the next operation (the usual case, read without a lock).
    #[inline(always)]
    pub(crate) fn is_joined(&self, joined: u64) -> bool {
        self.barrier.load(Ordering::Relaxed) <= joined
    }

    /// Marks a blocking stream as having something a barrier must wait for.
    #[inline(always)]
    fn mark_dirty<X: Default>(&self, table: &Table<X>, dirty: &mut bool, me: StreamRef) {
        if !*dirty {
            *dirty = true;
            self.list_dirty(table, me);
        }
    }

    #[inline(never)]
    fn list_dirty<X: Default>(&self, table: &Table<X>, me: StreamRef) {
        self.dirty.lock().push(me, |member| table.at(member.slot()).is(self.uid, member));
    }

    /// Whether an operation that depends on nothing may be submitted with [`State::push_one`]: nothing new would be brought
    /// in. The next barrier takes the stream in.
    #[cold]
    #[inline(never)]
    pub(crate) fn admit<X: Default>(&self, table: &Table<X>, state: &mut State<X>) -> bool {
        if !self.is_joined(state.joined) {
            return false;
        }
        self.mark_dirty(table, &mut state.dirty, state.me);
        // A barrier that is published from now on finds the stream in the list; one that did not has been published.
        if !self.is_joined(state.joined) {
            return false;
        }
        // (Whoever begins to watch locks every stream after.)
        if state.is_settled() && !self.watched.load(Ordering::Relaxed) {
            (state.ready_for, state.runs) = (state.handle, !state.lazy);
        }
        true
    }

    /// Submits `count` operations on a locked stream, the first depending on `deps`, ordered after `clock` beside. For
    /// the legacy stream this is no barrier: see [`Order::begin_barrier`]. Returns the first number.
    pub(crate) fn submit<X: Default>(
        &self,
        table: &Table<X>,
        state: &mut State<X>,
        count: u64,
        mut deps: Points,
        after: Option<&Clock>,
    ) -> u64 {
        let stream = table.at(state.me.slot());
        if after.is_none()
            && deps.is_empty()
            && let Some(first) = state.push_ready(stream, count)
        {
            return first;
        }
        let first = state.submitted + 1;
        if !self.is_joined(state.joined) {
            let now = self.now(table, state);
            state.joined = now.barrier;
            deps.push(At { stream: self.legacy, seq: now.barrier });
            state.set_clock(first, now.clock);
        }
        if after.is_some() || !deps.is_empty() {
            let extra: Few<(StreamRef, u64), 4> =
                deps.iter().filter(|dep| dep.stream != state.me).map(|dep| (dep.stream, dep.seq)).collect();
            let none = Clock::default();
            let observed = |stream| self.observed(table, stream);
            let clock = state.clock.join_for(state.me, after.unwrap_or(&none), &extra, observed);
            state.set_clock(first, clock);
        }
        deps.retain(|dep| dep.stream != state.me && !self.done(table, dep));
        self.mark_dirty(table, &mut state.dirty, state.me);
        let first = state.push(stream, count, &deps);
        if state.ready_for == 0 {
            self.admit(table, state);
        }
        first
    }

    /// The legacy stream's last barrier that orders something.
    pub(crate) fn last_barrier(&self) -> u64 {
        self.barrier.load(Ordering::Acquire)
    }

    /// Whether the next operation of a stream comes after a barrier of the legacy stream that was published after `seen` was its last one.
    pub(crate) fn follows_barrier_after<X>(&self, state: &State<X>, seen: u64) -> bool {
        !state.non_blocking && !state.is_legacy() && !self.is_joined(state.joined.max(seen))
    }

    /// Submits an operation that nothing is given to a driver for. Returns its number, and whether what it is ordered after by the
    /// legacy stream's last barrier holds for no operation of the driver's on this stream yet: who waits for the stream there
    /// does not wait for that.
    pub(crate) fn submit_unseen<X: Default>(&self, table: &Table<X>, state: &mut State<X>) -> (u64, bool) {
        let unseen = self.opaque && self.follows_barrier_after(state, 0);
        (self.submit(table, state, 1, Points::default(), None), unseen)
    }

    /// Whether a stream may come after operations of another, or of any if none is named, by what the legacy stream and blocking ones
    /// owe each other.
    pub(crate) fn may_follow_by_legacy<X>(&self, state: &State<X>, other: Option<StreamRef>) -> bool {
        !state.non_blocking && (state.is_legacy() || other.is_none_or(|other| other == self.legacy))
    }

    /// Submits an operation that stands for what the stream was given so far, seen here or not, and brings in nothing new.
    pub(crate) fn mark<X: Default>(&self, table: &Table<X>, state: &mut State<X>) -> u64 {
        let stream = table.at(state.me.slot());
        state.push_ready(stream, 1).unwrap_or_else(|| {
            self.mark_dirty(table, &mut state.dirty, state.me);
            state.push(stream, 1, &Points::default())
        })
    }

    /// Takes the numbers of `count` operations on the legacy stream that are barriers (work, event records, waits), and what
    /// they come after. The legacy stream must not be locked by the caller. Nothing is ordered by it yet. Where a driver has to agree
    /// first, it is asked between this and [`Order::publish_barrier`]; if it refuses, the numbers stand for nothing.
    pub(crate) fn begin_barrier<X: Default>(&self, table: &Table<X>, count: u64, deps: Points) -> Barrier {
        let _serial = self.barriers.lock();
        let stream = table.at(self.legacy.slot());
        // The number is taken first, held back by a dependency that cannot be met, so that whatever a blocking stream
        // submits from now on is on the far side of the barrier.
        let never = At { stream: self.legacy, seq: u64::MAX };
        let first = stream.state.lock().push(stream, count, &[never]);
        let mut deps = deps;
        let mut extra: Vec<(StreamRef, u64)> =
            deps.iter().filter(|dep| dep.stream != self.legacy).map(|dep| (dep.stream, dep.seq)).collect();
        let dirty = std::mem::take(&mut *self.dirty.lock()).members;
        for member in dirty {
            let record = table.at(member.slot());
            let mut state = record.state.lock();
            if !record.is(self.uid, member) {
                continue;
            }
            // What the member submitted since the number was taken may wait for what the legacy stream was given after it: the
            // barrier must not wait for that in turn.
            let barrier = At { stream: self.legacy, seq: first };
            let at = At { stream: member, seq: state.last_not_after(barrier, record.executed()) };
            let clock = if at.seq == state.submitted { state.clock.clone() } else { state.clock_at(at.seq) };
            state.taken_by_barrier(first, at.seq, record.observed());
            extra.extend(clock.entries().iter().filter(|entry| entry.0 != self.legacy));
            if state.dirty {
                self.list_dirty(table, member);
            }
            drop(state);
            if !self.done(table, at) {
                deps.push(at);
            }
        }
        deps.retain(|dep| dep.stream != self.legacy && !self.done(table, dep));
        Barrier { first, deps, extra }
    }

    /// What follows is ordered after the barrier. Barriers may be published in another order than begun: a later one comes
    /// after all that an earlier one does.
    pub(crate) fn publish_barrier<X: Default>(
        &self,
        table: &Table<X>,
        barrier: Barrier,
        count: u64,
        after: Option<&Clock>,
    ) {
        let Barrier { first, deps, extra } = barrier;
        let _serial = self.barriers.lock();
        let stream = table.at(self.legacy.slot());
        let mut state = stream.state.lock();
        let none = Clock::default();
        let observed = |stream| self.observed(table, stream);
        let clock = state.clock.join_for(self.legacy, after.unwrap_or(&none), &extra, observed);
        state.set_clock(first, clock.clone());
        state.replace_deps(first, &deps);
        drop(state);
        let mut shared = self.barrier_clock.lock();
        *shared = clock;
        self.barrier.fetch_max(first + count - 1, Ordering::AcqRel);
        drop(shared);
        // Those who have submitted something since it began.
        let dirty = self.dirty.lock().members.clone();
        for member in dirty {
            table.at(member.slot()).state.lock().look_again();
        }
    }

    /// Runs eager streams on from where `start` moved, until nothing moves.
    pub(crate) fn settle<X: Default>(&self, table: &Table<X>, start: StreamRef) {
        {
            // What most operations leave: a stream that has nothing to run, and no one that waits for it.
            if table.at(start.slot()).state.lock().is_settled() {
                return;
            }
        }
        let mut work = vec![start];
        while let Some(at) = work.pop() {
            let record = table.at(at.slot());
            let mut state = record.state.lock();
            if !record.is(self.uid, at) {
                continue;
            }
            let blocked = if state.lazy { None } else { state.advance(record, u64::MAX, |dep| self.done(table, dep)) };
            work.append(&mut state.waiters);
            drop(state);
            let Some(dep) = blocked else { continue };
            let holder = table.at(dep.stream.slot());
            let mut state = holder.state.lock();
            if self.done(table, dep) {
                work.push(at);
            } else if !state.waiters.contains(&at) {
                state.look_again();
                state.waiters.push(at);
            }
        }
    }

    /// Runs up to `count` further operations of a stream; answers how many ran. What runs may let an eager stream
    /// continue, and that may be what the next operation waits for.
    pub(crate) fn advance<X: Default>(&self, table: &Table<X>, at: StreamRef, count: u64) -> u64 {
        let record = table.at(at.slot());
        let mut ran = 0;
        loop {
            let now = {
                let mut state = record.state.lock();
                if !record.is(self.uid, at) {
                    return ran;
                }
                let before = record.executed();
                state.advance(record, before.saturating_add(count - ran), |dep| self.done(table, dep));
                record.executed() - before
            };
            if now == 0 {
                return ran;
            }
            ran += now;
            self.settle(table, at);
            if ran == count {
                return ran;
            }
        }
    }

    /// Runs a stream up to `seq` and first, on whatever stream, what that depends on.
    pub(crate) fn run_to<X: Default>(&self, table: &Table<X>, target: At) {
        let mut stack: Few<At, 4> = Few::default();
        stack.push(target);
        while let Some(&at) = stack.last() {
            let record = table.at(at.stream.slot());
            let (blocked, moves_others) = {
                let mut state = record.state.lock();
                if !record.is(self.uid, at.stream) {
                    stack.pop();
                    continue;
                }
                let before = record.executed();
                let blocked = state.advance(record, at.seq, |dep| self.done(table, dep));
                (blocked, record.executed() > before && !state.is_settled())
            };
            match blocked {
                // A barrier whose dependencies are just being gathered by another thread.
                Some(dep) if dep.seq == u64::MAX => std::thread::yield_now(),
                Some(dep) => stack.push(dep),
                None => {
                    stack.pop();
                }
            }
            if moves_others {
                self.settle(table, at.stream);
            }
        }
    }

    /// The points a host that has waited for `at` has observed, `at` included, given the clock at that point, and the last barrier of the
    /// legacy stream that it comes after or is.
    pub(crate) fn closure<X: Default>(&self, table: &Table<X>, at: At, clock: &Clock, barrier: u64) -> Few<At, 8> {
        let mut seen: Few<At, 8> = Few::default();
        seen.push(at);
        seen.extend(clock.entries().iter().map(|&(stream, seq)| At { stream, seq }));
        if barrier > self.observed(table, self.legacy) {
            let members: Vec<StreamRef> = self.streams.lock().iter().copied().collect();
            for member in members {
                let record = table.at(member.slot());
                let state = record.state.lock();
                if record.is(self.uid, member) && !state.is_legacy() && !state.non_blocking {
                    let seq = state.covered_by_barrier(barrier);
                    if seq > 0 {
                        seen.push(At { stream: member, seq });
                    }
                }
            }
        }
        seen
    }

    /// Whether `at` precedes what is ordered after `clock` on stream `on`.
    pub(crate) fn precedes<X: Default>(&self, table: &Table<X>, at: At, on: StreamRef, clock: &Clock) -> bool {
        if at.stream == on || clock.get(at.stream) >= at.seq || self.observed(table, at.stream) >= at.seq {
            return true;
        }
        if clock.legacy() == 0 {
            return false;
        }
        let record = table.at(at.stream.slot());
        let state = record.state.lock();
        !record.is(self.uid, at.stream) || state.covered_by(clock) >= at.seq
    }
}

#[cfg(test)]
mod tests {
    use super::{Dirty, Order, Ordering, Table};
    use crate::order::Points;

    #[test]
    fn a_device_whose_stream_numbers_are_used_up_gives_none_out_twice() {
        static STREAMS: Table<()> = Table::new();
        let order = Order::new(&STREAMS, 1, 0, false, false).unwrap();
        order.next_ordinal.store(u32::MAX - 1, Ordering::Relaxed);
        let (last, _) = order.create(&STREAMS, 0, false, false).unwrap();
        assert_eq!(last.ordinal(), u32::MAX - 1);
        for _ in 0..3 {
            assert!(order.create(&STREAMS, 0, false, false).is_none(), "0 is the legacy stream's");
        }
        assert_eq!(order.streams.lock().len(), 2);
    }

    #[test]
    fn what_is_kept_for_the_next_barrier_grows_with_the_streams_that_are_not_forgotten_only() {
        static STREAMS: Table<()> = Table::new();
        let order = Order::new(&STREAMS, 1, 0, false, false).unwrap();
        let begin = || {
            let (me, _) = order.create(&STREAMS, 0, false, false).unwrap();
            order.submit(&STREAMS, &mut STREAMS.at(me.slot()).state.lock(), 1, Points::default(), None);
            me
        };
        let kept: Vec<_> = (0..100).map(|_| begin()).collect();
        for _ in 0..10_000 {
            let me = begin();
            STREAMS.at(me.slot()).forget();
            STREAMS.give_back([me.slot()]);
        }
        let members = order.dirty.lock().members.clone();
        assert!(members.len() <= 2 * kept.len() + Dirty::SHORT, "{}", members.len());
        assert!(kept.iter().all(|me| members.contains(me)), "the barrier comes after each");
    }
}
