//! Sparse vector clocks: for each stream that matters, the last operation everything later is ordered after.
//!
//! A clock is shared, not copied: recording an event takes a reference, and only a wait that brings something new
//! makes a new one, mostly in the memory of one that nobody has any more. Entries the host has observed are left out when
//! streams come in.

use super::{At, StreamRef};
use crate::few::Few;
use std::cmp::Reverse;
use std::sync::Arc;

/// So many entries are put together without a list on the heap, and looked through one by one.
const FEW: usize = 16;
/// After all streams.
const NO_STREAM: StreamRef = StreamRef(u64::MAX);

/// By ascending stream.
type Entries = Few<(StreamRef, u64), 8>;

#[derive(Clone, Debug, Default)]
pub(crate) struct Clock(Option<Arc<Entries>>);

impl Clock {
    #[inline]
    pub(crate) fn entries(&self) -> &[(StreamRef, u64)] {
        match &self.0 {
            Some(entries) => entries,
            None => &[],
        }
    }

    /// By ascending stream, none twice.
    pub(super) fn of(entries: &[(StreamRef, u64)]) -> Clock {
        if entries.is_empty() { Clock(None) } else { Clock(Some(Arc::new(entries.into()))) }
    }

    /// Whether no one else has this clock. (There are no weak references to one.)
    fn is_sole(&self) -> bool {
        self.0.as_ref().is_some_and(|entries| Arc::strong_count(entries) == 1)
    }

    /// The clock goes. `spare` keeps its memory, if no one else has it and there is none yet.
    #[inline]
    pub(super) fn leave_to(self, spare: &mut Clock) {
        if spare.0.is_none() && self.is_sole() {
            *spare = self;
        }
    }

    /// The entries, to be changed: if others have the clock, a copy's, in the memory of `spare`.
    #[inline(always)]
    fn entries_mut(&mut self, spare: &mut Clock) -> &mut Entries {
        if !self.is_sole() {
            self.copy_into(spare);
        }
        Arc::make_mut(self.0.get_or_insert_default())
    }

    #[inline(never)]
    fn copy_into(&mut self, spare: &mut Clock) {
        let mut own = std::mem::take(spare).0.unwrap_or_default();
        match Arc::get_mut(&mut own) {
            Some(entries) => entries.assign(self.entries()),
            None => own = Arc::new(self.entries().into()),
        }
        self.0 = Some(own);
    }

    /// Takes in what `other` and `at` cover. As [`Clock::join_for`], but in place. `raised` is told of each stream that is covered
    /// further now, and how far it was.
    #[inline(always)]
    pub(super) fn take_in(
        &mut self,
        spare: &mut Clock,
        own: StreamRef,
        other: &Clock,
        at: At,
        observed: impl Fn(StreamRef) -> u64,
        mut raised: impl FnMut(StreamRef, u64),
    ) {
        // (One that no one else has is raised as it is looked through, mostly with that.)
        if let Some(entries) = self.0.as_mut().and_then(Arc::get_mut)
            && raise_known(entries, own, other.entries(), at, &mut raised)
        {
            return;
        }
        if self.covers(at, own, other) {
            return;
        }
        let entries = self.entries_mut(spare);
        if !raise_known(entries, own, other.entries(), at, &mut raised) {
            let had = entries.len();
            let mut place = 0;
            for &(stream, seq) in other.entries().iter().filter(|entry| entry.0 != own) {
                place = raise(entries, place, stream, seq, &mut raised);
            }
            raise(entries, 0, at.stream, at.seq, &mut raised);
            if entries.len() > had {
                entries.retain(|(stream, seq)| seq > observed(stream));
            }
        }
    }

    /// Neither `at` nor `other`, but for what it says of `own`, covers more.
    #[inline(always)]
    fn covers(&self, at: At, own: StreamRef, other: &Clock) -> bool {
        let entry = self.entries().iter().find(|entry| entry.0 >= at.stream);
        entry.is_some_and(|&(stream, seq)| stream == at.stream && seq >= at.seq)
            && other.entries().iter().all(|&(stream, seq)| stream == own || self.get(stream) >= seq)
    }

    /// The two are one, as after a join that brought nothing new.
    pub(crate) fn is_same(&self, other: &Clock) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            _ => false,
        }
    }

    /// The last operation of `stream` that is covered; 0 if none.
    #[inline(always)]
    pub(crate) fn get(&self, stream: StreamRef) -> u64 {
        let entries = self.entries();
        match entries.len() {
            0..=FEW => match entries.iter().find(|entry| entry.0 >= stream) {
                Some(&(found, seq)) if found == stream => seq,
                _ => 0,
            },
            _ => get_of_many(entries, stream),
        }
    }

    /// The entry of the legacy default stream (ordinal 0 sorts first).
    pub(crate) fn legacy(&self) -> u64 {
        match self.entries().first() {
            Some(&(stream, seq)) if stream.ordinal() == 0 => seq,
            _ => 0,
        }
    }

    /// The join of this clock, `other` and `extra`. If streams come in, without what `observed` says the host has observed.
    pub(crate) fn join(&self, other: &Clock, extra: &[(StreamRef, u64)], observed: impl Fn(StreamRef) -> u64) -> Clock {
        self.join_for(NO_STREAM, other, extra, observed)
    }

    /// The same for the clock of a stream `own`, which needs no entry in it.
    #[inline]
    pub(crate) fn join_for(
        &self,
        own: StreamRef,
        other: &Clock,
        extra: &[(StreamRef, u64)],
        observed: impl Fn(StreamRef) -> u64,
    ) -> Clock {
        let mut sorted: Few<(StreamRef, u64), 4> = Few::default();
        let extra = match extra {
            [] | [_] => extra,
            _ => {
                sorted.extend(extra.iter().copied());
                sorted.sort_unstable_by_key(|entry| (entry.0, Reverse(entry.1)));
                sorted.dedup_by_key(|entry| entry.0);
                &*sorted
            }
        };
        let most = self.entries().len() + other.entries().len() + extra.len();
        let mut here = [(NO_STREAM, 0); FEW];
        let mut heap = Vec::new();
        let merged = match most {
            0..=FEW => &mut here[..],
            _ => {
                heap.resize(most, (NO_STREAM, 0));
                &mut heap[..]
            }
        };
        let Some(count) = merge(self.entries(), other.entries(), extra, own, merged) else {
            // What has been observed of it goes when something new comes.
            return self.clone();
        };
        let mut kept = count;
        if count > self.entries().len() {
            kept = 0;
            for at in 0..count {
                let (stream, seq) = merged[at];
                merged[kept] = (stream, seq);
                kept += usize::from(seq > observed(stream));
            }
        }
        Clock::of(&merged[..kept])
    }
}

#[inline(never)]
fn get_of_many(entries: &[(StreamRef, u64)], stream: StreamRef) -> u64 {
    match entries.binary_search_by_key(&stream, |entry| entry.0) {
        Ok(index) => entries[index].1,
        Err(_) => 0,
    }
}

/// Raises the entries of what `other`, but for `own`, and `at` cover. `false`: some have none, and more is to be done.
#[inline(always)]
fn raise_known(
    all: &mut [(StreamRef, u64)],
    own: StreamRef,
    other: &[(StreamRef, u64)],
    at: At,
    raised: &mut impl FnMut(StreamRef, u64),
) -> bool {
    let mut rest = all.iter_mut();
    for &(stream, seq) in other.iter().filter(|entry| entry.0 != own) {
        match rest.find(|entry| entry.0 >= stream) {
            Some(entry) if entry.0 == stream => {
                if entry.1 < seq {
                    raised(stream, entry.1);
                    entry.1 = seq;
                }
            }
            _ => return false,
        }
    }
    match all.iter_mut().find(|entry| entry.0 >= at.stream) {
        Some(entry) if entry.0 == at.stream => {
            if entry.1 < at.seq {
                raised(at.stream, entry.1);
                entry.1 = at.seq;
            }
            true
        }
        _ => false,
    }
}

/// Raises the entry of `stream` to `seq`; it is not before `place`. Where it is.
#[inline(never)]
fn raise(
    entries: &mut Entries,
    mut place: usize,
    stream: StreamRef,
    seq: u64,
    raised: &mut impl FnMut(StreamRef, u64),
) -> usize {
    let all = &mut **entries;
    while place < all.len() && all[place].0 < stream {
        place += 1;
    }
    match all.get_mut(place) {
        Some(entry) if entry.0 == stream => {
            if entry.1 < seq {
                raised(stream, entry.1);
                entry.1 = seq;
            }
        }
        _ => {
            raised(stream, 0);
            entries.insert(place, (stream, seq));
        }
    }
    place
}

/// Merges three lists of entries, each by ascending stream, into `merged`, which is long enough: how many there are. `None`: the
/// first list has all that the others have. Of `own` no entry is taken.
#[inline(always)]
fn merge(
    ours: &[(StreamRef, u64)],
    theirs: &[(StreamRef, u64)],
    further: &[(StreamRef, u64)],
    own: StreamRef,
    merged: &mut [(StreamRef, u64)],
) -> Option<usize> {
    let at = |entries: &[(StreamRef, u64)], index: usize| match entries.get(index) {
        Some(&entry) => entry,
        None => (NO_STREAM, 0),
    };
    let (mut i, mut j, mut k) = (0, 0, 0);
    let (mut a, mut b, mut c) = (at(ours, 0), at(theirs, 0), at(further, 0));
    let (mut count, mut new) = (0, false);
    loop {
        let stream = a.0.min(b.0).min(c.0);
        if stream == NO_STREAM {
            return new.then_some(count);
        }
        let mut seq = 0;
        if a.0 == stream {
            seq = a.1;
            i += 1;
            a = at(ours, i);
        }
        let had = seq;
        if b.0 == stream {
            seq = seq.max(b.1);
            j += 1;
            b = at(theirs, j);
        }
        if c.0 == stream {
            seq = seq.max(c.1);
            k += 1;
            c = at(further, k);
        }
        if stream != own {
            new |= seq > had;
            merged[count] = (stream, seq);
            count += 1;
        }
    }
}
