//! Streams, their operations, and what is ordered after what.
//!
//! Execution knows only direct dependencies: an operation runs when the one before it in its stream has run and its
//! dependencies have. The memory pools ask a second question, "is this point ordered before what would be submitted
//! now?", which the clocks answer: for each stream, the largest sequence number of every stream ordered before now.

use std::collections::VecDeque;

use crate::memory::Place;

/// A stream's number; never used again, unlike its handle.
pub type StreamId = usize;

/// An operation of a stream: the `.1`-th (from 1) of stream `.0`.
pub type Point = (StreamId, u64);

/// What is ordered before something: per stream, every operation up to a sequence number. Sorted by stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Clock(Vec<Point>);

impl Clock {
    /// Orders `point`, and nothing else, before.
    pub fn add(&mut self, point: Point) {
        match self.0.binary_search_by_key(&point.0, |entry| entry.0) {
            Ok(at) => self.0[at].1 = self.0[at].1.max(point.1),
            Err(at) => self.0.insert(at, point),
        }
    }

    /// Orders before all that `other` holds.
    pub fn merge(&mut self, other: &Clock) {
        for &point in &other.0 {
            self.add(point);
        }
    }

    /// Whether `point` is ordered before.
    pub fn holds(&self, point: Point) -> bool {
        self.0.binary_search_by_key(&point.0, |entry| entry.0).is_ok_and(|at| self.0[at].1 >= point.1)
    }

    /// Drops what `other` holds as well.
    pub fn forget(&mut self, other: &Clock) {
        self.0.retain(|&point| !other.holds(point));
    }

    /// Number of streams it names.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing is ordered before.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The shape of a copy or a fill: slices of rows of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of a row.
    pub width: u64,
    /// Rows of a slice.
    pub rows: u64,
    /// Slices.
    pub slices: u64,
    /// Bytes from one row to the next where is written.
    pub to_pitch: u64,
    /// Bytes from one row to the next where is read.
    pub from_pitch: u64,
    /// Bytes from one slice to the next where is written.
    pub to_slice: u64,
    /// Bytes from one slice to the next where is read.
    pub from_slice: u64,
}

impl Shape {
    /// One row.
    pub fn line(width: u64) -> Shape {
        Shape { width, rows: 1, slices: 1, to_pitch: 0, from_pitch: 0, to_slice: 0, from_slice: 0 }
    }

    /// Where each row begins: offsets written to and read from.
    pub fn offsets(self) -> impl Iterator<Item = (u64, u64)> {
        (0..self.slices).flat_map(move |slice| {
            (0..self.rows).map(move |row| {
                (slice * self.to_slice + row * self.to_pitch, slice * self.from_slice + row * self.from_pitch)
            })
        })
    }

    /// Bytes from the first to the last one touched, with these distances between rows and slices; `None` when that is
    /// no number.
    pub fn span(self, pitch: u64, slice: u64) -> Option<u64> {
        if self.width == 0 || self.rows == 0 || self.slices == 0 {
            return Some(0);
        }
        let rows = (self.rows - 1).checked_mul(pitch)?;
        (self.slices - 1).checked_mul(slice)?.checked_add(rows)?.checked_add(self.width)
    }
}

/// A function of the caller with its argument.
pub type HostFunction = (extern "C" fn(*mut std::ffi::c_void), usize);

/// A stream callback, the older form: also told the stream's handle and a status.
pub type Callback = (extern "C" fn(u64, u32, *mut std::ffi::c_void), u64, usize);

/// What an operation does when its turn comes.
#[derive(Debug, Clone)]
pub enum Action {
    /// Takes its place in the order: waits, allocations, launches (whose kernels are not run).
    Nothing,
    /// Copies.
    Copy {
        /// First byte written.
        to: Place,
        /// First byte read.
        from: Place,
        /// Rows and distances.
        shape: Shape,
    },
    /// Writes bytes that were read when the call was made, row by row.
    Write {
        /// First byte written.
        to: Place,
        /// Rows and distances.
        shape: Shape,
        /// All rows, one after another.
        bytes: Vec<u8>,
    },
    /// Repeats a pattern.
    Fill {
        /// First byte written.
        to: u64,
        /// What is repeated: the first `size` bytes.
        pattern: [u8; 4],
        /// 1, 2 or 4.
        size: u8,
        /// Rows and distances.
        shape: Shape,
    },
    /// Calls the host, on a thread of its own.
    Call(HostFunction),
    /// Calls the host, in the older form.
    CallBack(Callback),
    /// Notes the time for an event's record number.
    Record(u64, u64),
    /// Gives back memory of `cuMemAlloc` that was freed in stream order.
    Free(u64),
    /// Spoils the bytes of a freed block, so that a later read by its former user shows.
    Spoil {
        /// First byte.
        at: u64,
        /// Bytes of the block.
        len: u64,
    },
    /// Brings memory of a graph's allocation node into being.
    GraphAlloc {
        /// First byte.
        at: u64,
        /// Bytes.
        len: u64,
        /// Device whose memory it is.
        device: usize,
    },
    /// Takes memory of a graph's allocation node away.
    GraphFree(u64),
}

/// An operation that has been submitted and has not run.
#[derive(Debug)]
pub struct Operation {
    /// Points that must have run.
    pub needs: Vec<Point>,
    /// What it does.
    pub action: Action,
}

/// A stream.
#[derive(Debug)]
pub struct Stream {
    /// Context it belongs to.
    pub context: u64,
    /// Flags of its creation; bit 0 is "non-blocking".
    pub flags: u32,
    /// Priority of its creation.
    pub priority: i32,
    /// The context's legacy default stream.
    pub legacy: bool,
    /// Nothing of it runs while closed.
    pub gated: bool,
    /// A host call of it is under way.
    pub calling: bool,
    /// Stands in the list of streams that may have something to run.
    pub listed: bool,
    /// In the adversarial order: held back for now.
    pub starved: bool,
    /// Submitted and not yet run.
    pub queue: VecDeque<Operation>,
    /// Sequence number given out last.
    pub submitted: u64,
    /// All up to here have run.
    pub executed: u64,
    /// What is ordered before the next operation.
    pub clock: Clock,
    /// Dependencies that the next operation takes.
    pub needs: Vec<Point>,
    /// The context's last barrier that it follows.
    pub barrier: u64,
    /// The capture it takes part in.
    pub capture: Option<u64>,
    /// While capturing: the graph nodes that its next one follows.
    pub tips: Vec<u64>,
}

impl Stream {
    /// A stream with nothing submitted.
    pub fn new(context: u64, flags: u32, priority: i32, legacy: bool) -> Stream {
        Stream {
            context,
            flags,
            priority,
            legacy,
            gated: false,
            calling: false,
            listed: false,
            starved: false,
            queue: VecDeque::new(),
            submitted: 0,
            executed: 0,
            clock: Clock::default(),
            needs: Vec::new(),
            barrier: 0,
            capture: None,
            tips: Vec::new(),
        }
    }

    /// Ordered with the legacy default stream.
    pub fn blocking(&self) -> bool {
        self.flags & 1 == 0
    }
}

/// A small generator (SplitMix64) for the adversarial order: the same seed gives the same order.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// A number below `bound` (which is not 0).
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_keeps_the_latest_point_of_each_stream() {
        let (mut a, mut b) = (Clock::default(), Clock::default());
        a.add((7, 3));
        a.add((2, 5));
        a.add((7, 1));
        b.add((7, 4));
        a.merge(&b);
        assert!(a.holds((7, 4)) && !a.holds((7, 5)) && a.holds((2, 5)) && !a.holds((3, 1)));
        a.forget(&b);
        assert_eq!(a, Clock(vec![(2, 5)]));
    }

    #[test]
    fn a_shape_spans_from_its_first_to_its_last_byte() {
        let shape = Shape { width: 3, rows: 2, slices: 2, to_pitch: 10, from_pitch: 4, to_slice: 100, from_slice: 8 };
        assert_eq!(shape.span(10, 100), Some(113));
        assert_eq!(shape.offsets().collect::<Vec<_>>(), [(0, 0), (10, 4), (100, 8), (110, 12)]);
        assert_eq!(shape.span(u64::MAX, 1), None);
    }
}
