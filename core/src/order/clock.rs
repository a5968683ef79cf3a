//! Sparse vector clocks: for each stream that matters, the last operation everything later is ordered after.
//!
//! A clock is shared, not copied: recording an event takes a reference, and only a wait that brings something new
//! makes a new one. Entries the host has observed are left out when a clock is rebuilt.

use super::StreamRef;
use std::sync::Arc;

#[derive(Clone, Debug, Default)]
pub(crate) struct Clock(Option<Arc<[(StreamRef, u64)]>>);

impl Clock {
    pub(crate) fn entries(&self) -> &[(StreamRef, u64)] {
        self.0.as_deref().unwrap_or(&[])
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
        let mut merged: Vec<(StreamRef, u64)> =
            self.entries().iter().chain(other.entries()).chain(extra).copied().collect();
        merged.sort_unstable_by_key(|&(stream, seq)| (stream, std::cmp::Reverse(seq)));
        merged.dedup_by_key(|entry| entry.0);
        merged.retain(|&(stream, seq)| seq > observed(stream));
        if merged.is_empty() { Clock(None) } else { Clock(Some(merged.into())) }
    }
}
