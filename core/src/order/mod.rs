//! Stream order: streams, events, points, precedence, execution. No memory, no device, no wall clock.
//!
//! Every rule here is written down in `docs/placement.md` §1–§3. A stream's state sits behind the stream's own lock;
//! *executed* and *observed* are also readable without it. No function here holds two stream locks at once.

mod clock;
mod event;
mod graph;
mod stream;

pub(crate) use clock::Clock;
pub(crate) use event::{Event, EventState, Recorded};
pub(crate) use graph::{Order, Table, done, submit_wait};
pub(crate) use stream::{LEGACY, State, Stream};

use crate::few::Few;

/// Numbers the streams of a device: 0 is the legacy default stream, the others count up as they are created; never
/// reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamOrderId(pub u64);

/// A place in the order: the `seq`-th operation of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Point {
    /// The stream.
    pub stream: StreamOrderId,
    /// Its operation, counted from 1.
    pub seq: u64,
}

/// Tells how far a stream has run, as the device knows it. Asked by policy 2 and before pages are given back; the
/// answer never makes anything *observed*.
pub trait Progress {
    /// All operations of the stream up to the returned one have executed.
    fn executed(&self, stream: StreamRef) -> u64;
}

/// Inside the core a stream is its ordinal (the [`StreamOrderId`]) and the slot of its record. Sorts by ordinal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamRef(pub(crate) u64);

impl StreamRef {
    pub(crate) fn new(ordinal: u32, slot: u32) -> Self {
        StreamRef((u64::from(ordinal) << 32) | u64::from(slot))
    }
    #[inline(always)]
    pub(crate) fn slot(self) -> u32 {
        self.0 as u32
    }
    #[inline(always)]
    pub(crate) fn ordinal(self) -> u32 {
        (self.0 >> 32) as u32
    }
    /// The public number.
    pub fn id(self) -> StreamOrderId {
        StreamOrderId(u64::from(self.ordinal()))
    }
}

/// An internal point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) stream: StreamRef,
    pub(crate) seq: u64,
}

/// Points, mostly one.
pub(crate) type Points = Few<At, 2>;

impl At {
    pub(crate) fn point(self) -> Point {
        Point { stream: self.stream.id(), seq: self.seq }
    }
}
