//! Sparse vector clocks: for each stream that matters, the last operation everything later is ordered after.
//!
//! A clock is shared, not copied: recording an event takes a reference, and only a wait that brings something new
//! makes a new one. Entries the host has observed are left out when a clock is rebuilt.

use super::StreamRef;
use crate::few::Few;
use std::sync::Arc;

/// So many further points are put into a clock one by one.
const FEW: usize = 4;

#[derive(Clone, Debug, Default)]
pub(crate) struct Clock(Option<Arc<[(StreamRef, u64)]>>);

impl Clock {
    pub(crate) fn entries(&self) -> &[(StreamRef, u64)] {
        self.0.as_deref().unwrap_or(&[])
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
    pub(crate) fn get(&self, stream: StreamRef) -> u64 {
        let entries = self.entries();
        match entries.binary_search_by_key(&stream, |entry| entry.0) {
            Ok(index) => entries[index].1,
            Err(_) => 0,
        }
    }

    /// The entry of the legacy default stream (ordinal 0 sorts first).
    pub(crate) fn legacy(&self) -> u64 {
        match self.entries().first() {
            Some(&(stream, seq)) if stream.ordinal() == 0 => seq,
            _ => 0,
        }
    }

    /// The join of this clock, `other` and `extra`, without what `observed` says the host has observed.
    pub(crate) fn join(&self, other: &Clock, extra: &[(StreamRef, u64)], observed: impl Fn(StreamRef) -> u64) -> Clock {
        let mut merged: Few<(StreamRef, u64), 8> = Few::default();
        let mut new = false;
        let (mut ours, mut theirs) = (self.entries(), other.entries());
        loop {
            let entry = match (ours, theirs) {
                ([a, rest @ ..], [b, others @ ..]) if a.0 == b.0 => {
                    new |= b.1 > a.1;
                    (ours, theirs) = (rest, others);
                    (a.0, a.1.max(b.1))
                }
                ([a, rest @ ..], [b, ..]) if a.0 < b.0 => {
                    ours = rest;
                    *a
                }
                (_, [b, others @ ..]) => {
                    new = true;
                    theirs = others;
                    *b
                }
                ([a, rest @ ..], []) => {
                    ours = rest;
                    *a
                }
                ([], []) => break,
            };
            merged.push(entry);
        }
        if extra.len() > FEW {
            let all = |entry: &(StreamRef, u64)| (entry.0, std::cmp::Reverse(entry.1));
            merged.extend(extra.iter().copied());
            merged.sort_unstable_by_key(all);
            merged.dedup_by_key(|entry| entry.0);
            new = true;
        } else {
            for &(stream, seq) in extra {
                match merged.binary_search_by_key(&stream, |entry| entry.0) {
                    Ok(at) => {
                        new |= seq > merged[at].1;
                        merged[at].1 = merged[at].1.max(seq);
                    }
                    Err(at) => {
                        new = true;
                        merged.insert(at, (stream, seq));
                    }
                }
            }
        }
        if !new {
            // What has been observed of it goes when something new comes.
            return self.clone();
        }
        merged.retain(|(stream, seq)| seq > observed(stream));
        if merged.is_empty() { Clock(None) } else { Clock(Some((&*merged).into())) }
    }
}
