//! The access checker behind `smp_note_access`: does an access lie in one live block, follow its allocation, and race no
//! other access? And does a free follow the accesses that were noted?
//!
//! A pool that never had an access noted pays one relaxed load a free. Once noted, accesses are kept per block until the
//! block is freed, as a map from byte ranges to the last read and the last write of each stream; what a stronger access
//! follows, and what the host has observed, is dropped. The answers are exact on the model device: nothing is rounded to
//! larger ranges or later points, so the history grows with the number of different ranges and streams still unobserved.

use super::block::{FREE, HOST, LIVE, MULTI, OBSERVED, UNUSED, block};
use super::caches::STREAMS;
use super::observer::Event;
use super::page::page;
use super::registry::POOLS;
use super::slow::Slow;
use super::state::Device;
use crate::error::Result;
use crate::handle::{self, AllocationId, DeviceId, PoolId, StreamId};
use crate::order::{At, Clock, Point, Points, StreamRef};
use crate::rules;
use crate::runtime::native;
use crate::slab::SlotMap;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// What an access does to the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum AccessKind {
    /// Reads only.
    Read = 1,
    /// Writes only.
    Write = 2,
    /// Reads and writes.
    ReadWrite = 3,
}

impl AccessKind {
    /// The kind with this number.
    pub fn from_number(number: u32) -> Option<AccessKind> {
        Some(match number {
            1 => AccessKind::Read,
            2 => AccessKind::Write,
            3 => AccessKind::ReadWrite,
            _ => return None,
        })
    }
    fn writes(self) -> bool {
        self != AccessKind::Read
    }
    fn word(self) -> &'static str {
        match self {
            AccessKind::Read => "read",
            AccessKind::Write => "write",
            AccessKind::ReadWrite => "read-write",
        }
    }
}

/// What is found about an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Outcome {
    /// In bounds, after the allocation, racing nothing.
    Ordered = 0,
    /// It does not follow the allocation.
    NotOrderedAfterAllocation = 1,
    /// The memory has been freed, even if the free has not executed: once the call returned, new work is undefined.
    UseAfterFree = 2,
    /// It and an earlier access both write, and it does not follow that one.
    RaceWriteWrite = 3,
    /// One of it and an earlier access writes, and it does not follow that one.
    RaceReadWrite = 4,
    /// It reaches past the bytes asked for.
    OutOfBounds = 5,
    /// The first byte is in memory no pool of the device gave out (or no longer holds).
    UnknownPointer = 6,
    /// The library cannot see whether the order holds. Never on the model device.
    Unproven = 7,
}

/// What is found about one access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The first of `faults`, or [`Outcome::Ordered`].
    pub outcome: Outcome,
    /// All that is wrong, in this order: bounds, allocation, race. Empty if all is well.
    pub faults: Vec<Outcome>,
    /// The live allocation that holds the first byte; 0 if none does.
    pub allocation: AllocationId,
    /// Bytes from the allocation's address to the access.
    pub offset: u64,
    /// The access's own place in the order.
    pub at: Point,
    /// What the access conflicts with: the allocation or earlier access it should follow, or the free it comes after (of
    /// several free points that of the highest stream; none once the host has observed them).
    pub other: Option<Point>,
    /// With a race: what the other access does.
    pub other_kind: Option<AccessKind>,
    /// The verdict in words, with what is missing. Empty if all is well.
    pub message: String,
}

/// Notes that work on `stream` accesses `size` bytes at `ptr` (model address, device pointer or host pointer), and judges
/// it. The access is the stream's next operation, on the legacy default stream a barrier, whatever the verdict.
///
/// An access of 0 bytes races nothing; for the rest it is judged as others. Bytes out of bounds are judged as such and
/// not held against another block. Memory of a page that went back to the device is an unknown pointer. `device` may be
/// null for a created stream.
///
/// # Errors
/// Bad handles, [`crate::Status::WrongDevice`], [`crate::Status::Destroyed`]: no operation was submitted. What is found
/// wrong with the access is a verdict, not an error.
pub fn note(device: DeviceId, ptr: u64, size: u64, stream: StreamId, kind: AccessKind) -> Result<Verdict> {
    let (device, stream) = crate::runtime::resolve_both(device, stream)?;
    let _serial = device.enter();
    let place = super::pointers::locate(&device, ptr);
    let home = place.and_then(|(index, _)| POOLS.by_slot(page(block(index).page()).pool.load(Relaxed)));
    // Notes on a pool are taken one at a time, so that what is judged second finds the first one recorded.
    let _noting = home.as_ref().map(|pool| pool.accesses.noting.lock());
    let seq = if device.order.opaque {
        // What the access is part of may not have reached the driver yet: no barrier is believed on its account.
        let mut state = native::live(&device, stream)?;
        device.order.submit(&STREAMS, &mut state, 1, Points::default(), None)
    } else {
        crate::runtime::submit_work(&device, stream, 1, Points::default(), None)?
    };
    let address = place.map_or(ptr, |(_, address)| address);
    device.tell(&Event::Access { address, size, stream: stream.id(), kind: kind as u32 });
    let clock = {
        let state = STREAMS.at(stream.slot()).state.lock();
        let clock = state.clock_at(seq);
        // A barrier is on the far side of itself: that brings in what the blocking streams had submitted.
        if state.is_legacy() && !rules::off(rules::LEGACY) {
            clock.join(&Clock::default(), &[(stream, seq)], |_| 0)
        } else {
            clock
        }
    };
    let me = Judge { device: &device, at: At { stream, seq }, clock, kind };
    let verdict = me.judge(ptr, size);
    if !verdict.faults.is_empty() {
        crate::log::emit(crate::log::Level::Warning, || verdict.message.clone());
    }
    Ok(verdict)
}

/// The message about the last free of the pool that did not follow a noted access.
///
/// # Errors
/// Bad pool handle.
pub fn last_racing_free(pool: PoolId) -> Result<Option<String>> {
    Ok(POOLS.resolve(pool)?.accesses.inner.lock().last_racing_free.clone())
}

struct Judge<'a> {
    device: &'a Arc<Device>,
    at: At,
    clock: Clock,
    kind: AccessKind,
}

/// What the memory under a pointer is.
enum Memory {
    Live { index: u32, address: u64 },
    Freed(Option<At>),
    Unknown,
}

impl Judge<'_> {
    fn judge(&self, ptr: u64, size: u64) -> Verdict {
        let mut slow = Slow::lock(self.device);
        match self.memory(&mut slow, ptr) {
            Memory::Live { index, address } => self.live(&mut slow, index, address, size),
            Memory::Freed(free) => {
                let after = free.map_or_else(String::new, |at| format!(" by {}", named(at)));
                self.fault(
                    Outcome::UseAfterFree,
                    free,
                    format!("{} at {ptr:#x}: the memory was freed{after}", self.subject()),
                )
            }
            Memory::Unknown => self.fault(
                Outcome::UnknownPointer,
                None,
                format!("{} at {ptr:#x}: no allocation of the device holds that byte", self.subject()),
            ),
        }
    }

    fn fault(&self, outcome: Outcome, other: Option<At>, message: String) -> Verdict {
        Verdict {
            outcome,
            faults: vec![outcome],
            allocation: AllocationId(0),
            offset: 0,
            at: self.at.point(),
            other: other.map(At::point),
            other_kind: None,
            message,
        }
    }

    /// "write on stream 2 (operation 7)"
    fn subject(&self) -> String {
        format!("{} on {}", self.kind.word(), named(self.at))
    }

    /// Finds the block under `ptr` and holds its lock, so that it stays what it is while `slow` lives.
    fn memory(&self, slow: &mut Slow<'_>, ptr: u64) -> Memory {
        loop {
            let Some((index, address)) = super::pointers::locate(self.device, ptr) else { return Memory::Unknown };
            let b = block(index);
            let owner = b.stream();
            if !matches!(owner, OBSERVED | MULTI | HOST) {
                slow.state(owner.slot());
            }
            // It may have been merged, cut or freed before the lock was held.
            if b.stream() != owner || b.addr() > address || address >= b.end() {
                continue;
            }
            if b.has(LIVE) {
                return Memory::Live { index, address };
            }
            if !b.has(FREE) || b.has(UNUSED) {
                return Memory::Unknown;
            }
            return Memory::Freed(match owner {
                OBSERVED | HOST => None,
                MULTI => POOLS.by_slot(page(b.page()).pool.load(Relaxed)).and_then(|pool| {
                    let shared = pool.shared.lock();
                    shared.points.get(&index).and_then(|points| points.last().copied())
                }),
                stream => Some(At { stream, seq: b.seq() }),
            });
        }
    }

    /// The access follows `at`.
    fn follows(&self, slow: &mut Slow<'_>, at: At) -> bool {
        at.stream == self.at.stream
            || self.device.order.observed(&STREAMS, at.stream) >= at.seq
            || slow.state(at.stream.slot()).covered_by(&self.clock) >= at.seq
            || !STREAMS.at(at.stream.slot()).is(self.device.uid, at.stream)
    }

    fn live(&self, slow: &mut Slow<'_>, index: u32, address: u64, size: u64) -> Verdict {
        let b = block(index);
        let start = b.address();
        let (offset, before) = (address.saturating_sub(start), start.saturating_sub(address));
        let end = address.saturating_add(size);
        let limit = start + b.requested();
        // Where others' work is not seen, an order that is not known may hold all the same.
        let unseen = self.device.order.opaque;
        let mut faults = Vec::new();
        let mut message = String::new();
        let (mut other, mut other_kind) = (None, None);
        let mut say = |outcome: Outcome, text: String| {
            if faults.is_empty() {
                message = format!("{}{text}", self.subject());
            }
            faults.push(outcome);
        };
        if before > 0 || end > limit {
            let text = format!(
                " of {size} bytes at offset {}{offset}: the allocation holds {} bytes",
                if before > 0 { "before " } else { "" },
                b.requested()
            );
            say(Outcome::OutOfBounds, text);
        }
        let ready = At { stream: b.stream(), seq: b.seq() };
        if ready.stream != HOST && !self.follows(slow, ready) {
            let text = match unseen {
                false => {
                    format!(" does not follow the allocation ({}): wait for an event recorded after it", named(ready))
                }
                true => format!(
                    " is not known to follow the allocation ({}): if you have ordered it, tell by smp_note_...",
                    named(ready)
                ),
            };
            say(if unseen { Outcome::Unproven } else { Outcome::NotOrderedAfterAllocation }, text);
            other = Some(ready);
        }
        // What of it lies in the block is an access to the block.
        let bytes = offset..end.min(limit).saturating_sub(start);
        if let Some(pool) = POOLS.by_slot(page(b.page()).pool.load(Relaxed))
            && bytes.start < bytes.end
        {
            let order = &self.device.order;
            // Its free looks at what was noted.
            if b.sole_user().is_none() {
                b.set_pass(0);
            }
            let observed = |at: At| order.observed(&STREAMS, at.stream) >= at.seq;
            let mut precedes = |at: At| self.follows(slow, at);
            if let Some((at, kind)) = pool.accesses.note(index, bytes, self.kind, self.at, &mut precedes, &observed) {
                let both = self.kind.writes() && kind.writes();
                let text = match unseen {
                    false => {
                        format!(" races the {} on {}: wait for an event recorded after that", kind.word(), named(at))
                    }
                    true => format!(
                        " is not known to follow the {} on {}: if you have ordered it, tell by smp_note_...",
                        kind.word(),
                        named(at)
                    ),
                };
                say(
                    if unseen {
                        Outcome::Unproven
                    } else if both {
                        Outcome::RaceWriteWrite
                    } else {
                        Outcome::RaceReadWrite
                    },
                    text,
                );
                other = other.or(Some(at));
                other_kind = Some(kind);
            }
        }
        Verdict {
            // What is certain comes before what is not known.
            outcome: faults
                .iter()
                .copied()
                .find(|&fault| fault != Outcome::Unproven)
                .or(faults.first().copied())
                .unwrap_or(Outcome::Ordered),
            faults,
            allocation: AllocationId(handle::encode(handle::Kind::Allocation, b.generation(), index)),
            offset,
            at: self.at.point(),
            other: other.map(At::point),
            other_kind,
            message,
        }
    }
}

fn named(at: At) -> String {
    format!("stream {} (operation {})", at.stream.ordinal(), at.seq)
}

/// A pool's noted accesses, by block.
#[derive(Default)]
pub(crate) struct Table {
    /// Some block has a history. Set under the lock of the block's domain, so the free that comes next sees it.
    any: AtomicBool,
    racing_frees: AtomicU64,
    /// Held through one note. Outside the device's slow lock.
    noting: Mutex<()>,
    /// Taken under the device's slow lock, streams may be locked inside it; or alone, for a moment.
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    blocks: SlotMap<u32, History>,
    last_racing_free: Option<String>,
}

impl Table {
    /// Some live block of the pool has noted accesses.
    #[inline(always)]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Relaxed)
    }

    /// Judges an access to a block against its history, and adds it. The block's domain is locked.
    fn note(
        &self,
        index: u32,
        bytes: Range<u64>,
        kind: AccessKind,
        at: At,
        precedes: &mut dyn FnMut(At) -> bool,
        observed: &dyn Fn(At) -> bool,
    ) -> Option<(At, AccessKind)> {
        let mut inner = self.inner.lock();
        self.any.store(true, Relaxed);
        let history = inner.blocks.entry(index).or_default();
        let race = history.race(&bytes, kind, &mut *precedes);
        history.add(&bytes, kind, at, precedes, observed);
        race
    }

    /// The last noted access of each stream to a block: what a free must follow.
    pub(crate) fn points(&self, index: u32) -> Vec<At> {
        self.inner.lock().blocks.get(&index).map(History::points).unwrap_or_default()
    }

    /// The live block is being freed; `unfollowed` are those of [`Table::points`] that the free does not follow. Returns
    /// what to say about it, if something.
    pub(crate) fn forget(&self, index: u32, unfollowed: &[At]) -> Option<String> {
        if !self.any() {
            return None;
        }
        let mut inner = self.inner.lock();
        let history = inner.blocks.remove(&index);
        if inner.blocks.is_empty() {
            self.any.store(false, Relaxed);
        }
        let (history, &at) = (history?, unfollowed.first()?);
        self.racing_frees.fetch_add(1, Relaxed);
        let allocation = AllocationId(handle::encode(handle::Kind::Allocation, block(index).generation(), index));
        let what = history.kind_of(at).map_or("access", AccessKind::word);
        let more = match unfollowed.len() {
            1 => String::new(),
            n => format!(" and {} other streams' accesses", n - 1),
        };
        let message = format!("the free of {allocation:?} does not follow the {what} on {}{more}", named(at));
        inner.last_racing_free = Some(message.clone());
        Some(message)
    }

    /// Frees that did not follow a noted access.
    pub(crate) fn racing_frees(&self) -> u64 {
        self.racing_frees.load(Relaxed)
    }

    /// Bytes of the histories.
    pub(crate) fn bytes(&self) -> u64 {
        let inner = self.inner.lock();
        inner.blocks.values().map(History::bytes).sum::<u64>()
            + (inner.blocks.capacity() * std::mem::size_of::<(u32, History)>()) as u64
    }
}

/// One stream's last accesses to the bytes of a segment; 0 is none. A read-write counts as a write: whatever conflicts
/// with its reading conflicts with its writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Use {
    stream: StreamRef,
    read: u64,
    write: u64,
    /// The write reads too.
    both: bool,
}

impl Use {
    fn of(kind: AccessKind, at: At) -> Use {
        let (read, write) = if kind.writes() { (0, at.seq) } else { (at.seq, 0) };
        Use { stream: at.stream, read, write, both: kind == AccessKind::ReadWrite }
    }
    fn is_empty(&self) -> bool {
        self.read == 0 && self.write == 0
    }
    fn at(&self, seq: u64) -> At {
        At { stream: self.stream, seq }
    }
    fn kind_at(&self, seq: u64) -> AccessKind {
        match (self.write == seq, self.both) {
            (false, _) => AccessKind::Read,
            (true, false) => AccessKind::Write,
            (true, true) => AccessKind::ReadWrite,
        }
    }
    fn drop_write(&mut self) {
        (self.write, self.both) = (0, false);
    }
}

/// Bytes with the same past. `uses` ascend by stream and are never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Segment {
    end: u64,
    uses: Vec<Use>,
}

/// The accesses to one block that still matter: disjoint segments of bytes, offsets from the allocation's address.
#[derive(Debug, Default)]
struct History {
    segments: BTreeMap<u64, Segment>,
    /// When to look for observed accesses in all segments, so that the look is paid for by the growth before it.
    prune_at: usize,
}

const FIRST_PRUNE: usize = 64;

impl History {
    /// An earlier access to some of `bytes` that conflicts with one of `kind` and does not precede it.
    fn race(&self, bytes: &Range<u64>, kind: AccessKind, precedes: impl FnMut(At) -> bool) -> Option<(At, AccessKind)> {
        let mut precedes = precedes;
        let first = self.segments.range(..bytes.start).next_back().map(|(_, segment)| segment);
        let first = first.filter(|segment| segment.end > bytes.start);
        for segment in first.into_iter().chain(self.segments.range(bytes.clone()).map(|(_, segment)| segment)) {
            for past in &segment.uses {
                for seq in [past.write, if kind.writes() { past.read } else { 0 }] {
                    if seq != 0 && !precedes(past.at(seq)) {
                        return Some((past.at(seq), past.kind_at(seq)));
                    }
                }
            }
        }
        None
    }

    /// Adds an access. Of what lies under it, reads it follows are dropped, and if it writes, writes it follows: whoever
    /// conflicts with those conflicts with the new access too, and following it means following them.
    fn add(
        &mut self,
        bytes: &Range<u64>,
        kind: AccessKind,
        at: At,
        mut precedes: impl FnMut(At) -> bool,
        observed: impl Fn(At) -> bool,
    ) {
        self.split(bytes.start);
        self.split(bytes.end);
        let mut cursor = bytes.start;
        while cursor < bytes.end {
            let next = self.segments.range(cursor..bytes.end).next().map(|(&start, segment)| (start, segment.end));
            let (start, end) = next.unwrap_or((bytes.end, bytes.end));
            if cursor < start {
                self.segments.insert(cursor, Segment { end: start, uses: vec![Use::of(kind, at)] });
            }
            if let Some(segment) = self.segments.get_mut(&start).filter(|_| start < bytes.end) {
                for past in &mut segment.uses {
                    if past.read != 0 && precedes(past.at(past.read)) {
                        past.read = 0;
                    }
                    if past.write != 0
                        && (kind.writes() && precedes(past.at(past.write)) || observed(past.at(past.write)))
                    {
                        past.drop_write();
                    }
                }
                match segment.uses.binary_search_by_key(&at.stream, |past| past.stream) {
                    Ok(here) if kind.writes() => segment.uses[here] = Use::of(kind, at),
                    Ok(here) => segment.uses[here].read = at.seq,
                    Err(here) => segment.uses.insert(here, Use::of(kind, at)),
                }
                segment.uses.retain(|past| !past.is_empty());
            }
            cursor = end;
        }
        self.join(bytes);
        if self.segments.len() > self.prune_at.max(FIRST_PRUNE) {
            self.prune(observed);
            self.prune_at = 2 * self.segments.len();
        }
    }

    /// Makes a segment that holds `offset` inside end there.
    fn split(&mut self, offset: u64) {
        if let Some((_, segment)) = self.segments.range_mut(..offset).next_back()
            && segment.end > offset
        {
            let right = segment.clone();
            segment.end = offset;
            self.segments.insert(offset, right);
        }
    }

    /// Joins neighbours of one past that touch, in and around `bytes`.
    fn join(&mut self, bytes: &Range<u64>) {
        let mut at = self.segments.range(..bytes.start).next_back().map_or(bytes.start, |(&start, _)| start);
        while at <= bytes.end
            && let Some(segment) = self.segments.get(&at)
        {
            let end = segment.end;
            match self.segments.get(&end).filter(|right| right.uses == segment.uses).map(|right| right.end) {
                Some(further) => {
                    self.segments.remove(&end);
                    if let Some(segment) = self.segments.get_mut(&at) {
                        segment.end = further;
                    }
                }
                None => match self.segments.range(end..).next() {
                    Some((&start, _)) => at = start,
                    None => return,
                },
            }
        }
    }

    /// Drops what the host has observed.
    fn prune(&mut self, observed: impl Fn(At) -> bool) {
        for segment in self.segments.values_mut() {
            for past in &mut segment.uses {
                if observed(past.at(past.read)) {
                    past.read = 0;
                }
                if observed(past.at(past.write)) {
                    past.drop_write();
                }
            }
            segment.uses.retain(|past| !past.is_empty());
        }
        self.segments.retain(|_, segment| !segment.uses.is_empty());
        if let Some((&start, _)) = self.segments.first_key_value() {
            self.join(&(start..u64::MAX));
        }
    }

    /// The last access of each stream, ascending by stream.
    fn points(&self) -> Vec<At> {
        let mut last: BTreeMap<StreamRef, u64> = BTreeMap::new();
        for past in self.segments.values().flat_map(|segment| &segment.uses) {
            let seq = last.entry(past.stream).or_default();
            *seq = (*seq).max(past.read).max(past.write);
        }
        last.into_iter().map(|(stream, seq)| At { stream, seq }).collect()
    }

    fn kind_of(&self, at: At) -> Option<AccessKind> {
        let mut uses = self.segments.values().flat_map(|segment| &segment.uses);
        uses.find(|past| past.stream == at.stream && (past.read == at.seq || past.write == at.seq))
            .map(|past| past.kind_at(at.seq))
    }

    fn bytes(&self) -> u64 {
        let uses: usize = self.segments.values().map(|segment| segment.uses.capacity()).sum();
        (self.segments.len() * std::mem::size_of::<(u64, Segment)>() + uses * std::mem::size_of::<Use>()) as u64
    }

    /// Says what is wrong with the structure itself.
    #[cfg(test)]
    fn check(&self) {
        let mut previous: Option<&Segment> = None;
        let mut from = 0;
        for (&start, segment) in &self.segments {
            assert!(start >= from && segment.end > start, "segments are disjoint and hold bytes");
            assert!(!segment.uses.is_empty() && segment.uses.iter().all(|past| !past.is_empty()));
            assert!(segment.uses.is_sorted_by(|a, b| a.stream < b.stream), "one use a stream, ascending");
            if let Some(left) = previous.filter(|left| left.end == start) {
                assert_ne!(left.uses, segment.uses, "touching segments of one past are joined");
            }
            from = segment.end;
            previous = Some(segment);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::AccessKind::{Read, ReadWrite, Write};
    use super::*;

    fn at(stream: u32, seq: u64) -> At {
        At { stream: StreamRef::new(stream, stream), seq }
    }

    /// A history in which an access follows its own stream and what `follows` names, and nothing is observed.
    struct Case(History);

    impl Case {
        fn new() -> Case {
            Case(History::default())
        }
        fn note(&mut self, bytes: Range<u64>, kind: AccessKind, me: At, follows: &[At]) -> Option<(At, AccessKind)> {
            let precedes = |past: At| {
                past.stream == me.stream || follows.iter().any(|f| f.stream == past.stream && f.seq >= past.seq)
            };
            let race = self.0.race(&bytes, kind, precedes);
            self.0.add(&bytes, kind, me, precedes, |_| false);
            self.0.check();
            race
        }
    }

    #[test]
    fn reads_do_not_race_reads() {
        let mut case = Case::new();
        assert_eq!(case.note(0..10, Read, at(1, 1), &[]), None);
        assert_eq!(case.note(0..10, Read, at(2, 1), &[]), None);
    }

    #[test]
    fn a_write_races_what_it_does_not_follow_on_common_bytes_only() {
        let mut case = Case::new();
        case.note(10..20, Read, at(1, 1), &[]);
        assert_eq!(case.note(0..10, Write, at(2, 1), &[]), None);
        assert_eq!(case.note(20..30, Write, at(2, 2), &[]), None);
        assert_eq!(case.note(19..21, Write, at(2, 3), &[]), Some((at(1, 1), Read)));
        assert_eq!(case.note(9..11, Write, at(3, 1), &[at(2, 3)]), Some((at(1, 1), Read)));
        assert_eq!(case.note(10..12, Write, at(4, 1), &[at(1, 1), at(3, 1)]), None);
    }

    #[test]
    fn a_read_races_a_write_it_does_not_follow() {
        let mut case = Case::new();
        case.note(0..10, ReadWrite, at(1, 5), &[]);
        assert_eq!(case.note(9..10, Read, at(2, 1), &[at(1, 4)]), Some((at(1, 5), ReadWrite)));
        assert_eq!(case.note(9..10, Read, at(3, 1), &[at(1, 5)]), None);
    }

    #[test]
    fn a_later_read_of_a_stream_does_not_hide_its_earlier_write() {
        let mut case = Case::new();
        case.note(0..10, Write, at(1, 1), &[]);
        case.note(0..10, Read, at(1, 2), &[]);
        assert_eq!(case.note(0..10, Read, at(2, 1), &[]), Some((at(1, 1), Write)));
    }

    #[test]
    fn a_write_on_other_bytes_leaves_an_earlier_point_of_the_same_stream_alone() {
        let mut case = Case::new();
        case.note(0..10, Write, at(1, 1), &[]);
        case.note(10..20, Write, at(1, 3), &[]);
        assert_eq!(case.note(0..10, Read, at(2, 1), &[at(1, 1)]), None);
        assert_eq!(case.note(5..11, Read, at(3, 1), &[at(1, 1)]), Some((at(1, 3), Write)));
    }

    #[test]
    fn a_covering_write_that_follows_all_leaves_one_segment_with_one_use() {
        let mut case = Case::new();
        for k in 0..100 {
            case.note(10 * k..10 * k + 5, Read, at(1 + k as u32 % 3, 1 + k), &[]);
        }
        assert_eq!(case.note(0..1000, Write, at(9, 1), &[at(1, 100), at(2, 100), at(3, 100)]), None);
        assert_eq!(case.0.segments.len(), 1);
        assert_eq!(case.0.points(), [at(9, 1)]);
    }

    #[test]
    fn one_stream_that_writes_on_and_on_keeps_one_use() {
        let mut case = Case::new();
        for seq in 1..1000 {
            case.note(0..64, if seq % 2 == 0 { Write } else { ReadWrite }, at(1, seq), &[]);
        }
        assert_eq!(case.0.segments.len(), 1);
        assert_eq!(case.0.segments[&0].uses.len(), 1);
    }

    #[test]
    fn what_is_observed_is_dropped_when_the_history_has_grown() {
        let mut history = History::default();
        for k in 0..10_000u64 {
            let (me, done) = (at(1, k + 1), k.saturating_sub(10));
            history.add(&(2 * k..2 * k + 1), Write, me, |past| past.stream == me.stream, |past| past.seq <= done);
            history.check();
            assert!(history.segments.len() <= 2 * FIRST_PRUNE, "{} segments", history.segments.len());
        }
    }

    #[test]
    fn a_free_must_follow_the_last_access_of_each_stream() {
        let mut case = Case::new();
        case.note(0..10, Read, at(1, 1), &[]);
        case.note(20..30, Read, at(1, 7), &[]);
        case.note(0..30, Read, at(2, 3), &[]);
        assert_eq!(case.0.points(), [at(1, 7), at(2, 3)]);
        assert_eq!(case.0.kind_of(at(2, 3)), Some(Read));
    }

    /// Every access ever made, byte by byte; nothing is dropped.
    #[derive(Default)]
    struct Plain(Vec<(Range<u64>, AccessKind, At)>);

    impl Plain {
        fn races(&self, bytes: &Range<u64>, kind: AccessKind, precedes: impl Fn(At) -> bool) -> bool {
            self.0.iter().any(|(past, past_kind, at)| {
                past.start < bytes.end
                    && bytes.start < past.end
                    && (kind.writes() || past_kind.writes())
                    && !precedes(*at)
            })
        }
    }

    /// Random accesses, waits and observations: the history races exactly when some access ever made does. The order is
    /// kept as full vector clocks, so that it is transitive, as the history assumes.
    #[test]
    fn the_history_agrees_with_a_plain_list_of_all_accesses() {
        for seed in 1..=60u64 {
            let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let mut next = |below: u64| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random % below
            };
            const STREAMS: usize = 4;
            let mut clocks = [[0u64; STREAMS]; STREAMS];
            let mut observed = [0u64; STREAMS];
            let (mut history, mut plain) = (History::default(), Plain::default());
            let mut races = 0;
            for _ in 0..600 {
                let s = next(STREAMS as u64) as usize;
                match next(10) {
                    0..=2 => {
                        let other = clocks[next(STREAMS as u64) as usize];
                        for (mine, theirs) in clocks[s].iter_mut().zip(other) {
                            *mine = theirs.max(*mine);
                        }
                    }
                    3 => {
                        for (seen, mine) in observed.iter_mut().zip(clocks[s]) {
                            *seen = mine.max(*seen);
                        }
                    }
                    _ => {
                        clocks[s][s] += 1;
                        let me = At { stream: StreamRef::new(s as u32, s as u32), seq: clocks[s][s] };
                        let start = next(60);
                        let bytes = start..start + 1 + next(20);
                        let kind = [Read, Write, ReadWrite][next(3) as usize];
                        let done = |past: At| observed[past.stream.slot() as usize] >= past.seq;
                        let precedes = |past: At| {
                            let k = past.stream.slot() as usize;
                            k == s || clocks[s][k] >= past.seq || done(past)
                        };
                        let race = history.race(&bytes, kind, precedes);
                        assert_eq!(
                            race.is_some(),
                            plain.races(&bytes, kind, precedes),
                            "seed {seed}, {me:?} {bytes:?}"
                        );
                        races += u32::from(race.is_some());
                        if let Some((at, kind_of_other)) = race {
                            assert!(
                                !precedes(at) && plain.0.iter().any(|past| past.2 == at && past.1 == kind_of_other)
                            );
                        }
                        history.add(&bytes, kind, me, precedes, done);
                        plain.0.push((bytes, kind, me));
                        history.check();
                    }
                }
            }
            assert!(races > 20 && races < 400, "seed {seed}: {races} races; the program shows too little");
        }
    }
}
