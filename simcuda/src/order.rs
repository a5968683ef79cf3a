//! Streams, their operations, and what is ordered after what.
//!
//! Execution knows only direct dependencies: an operation runs when the one before it in its stream has run and its
//! dependencies have. The memory pools ask a second question, "is this point ordered before what would be submitted
//! now?", which the clocks answer: for each stream, the largest sequence number of every stream ordered before now.

use std::collections::{BTreeMap, VecDeque};

use crate::memory::Place;

/// A stream's number; never used again, unlike its handle.
pub type StreamId = usize;

/// An operation of a stream: the `.1`-th (from 1) of stream `.0`.
pub type Point = (StreamId, u64);

/// What is ordered before something: per stream, every operation up to a sequence number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Clock(BTreeMap<StreamId, u64>);

impl Clock {
    /// Orders `point`, and nothing else, before.
    pub fn add(&mut self, point: Point) {
        let seen = self.0.entry(point.0).or_insert(0);
        *seen = (*seen).max(point.1);
    }

    /// Orders before all that `other` holds.
    pub fn merge(&mut self, other: &Clock) {
        for (&stream, &seq) in &other.0 {
            self.add((stream, seq));
        }
    }

    /// Whether `point` is ordered before.
    pub fn holds(&self, point: Point) -> bool {
        self.0.get(&point.0).is_some_and(|&seq| seq >= point.1)
    }

    /// Drops what `other` holds as well.
    pub fn forget(&mut self, other: &Clock) {
        self.0.retain(|&stream, &mut seq| !other.holds((stream, seq)));
    }
}

/// What an operation does when its turn comes.
pub enum Action {
    /// Takes its place in the order: waits, frees, allocations, launches (whose kernels are not run).
    Nothing,
    /// `rows` copies of `width` bytes, each end moving on by its pitch.
    Copy {
        /// First byte written.
        to: Place,
        /// Bytes from one row to the next.
        to_pitch: u64,
        /// First byte read.
        from: Place,
        /// Bytes from one row to the next.
        from_pitch: u64,
        /// Bytes of a row.
        width: u64,
        /// Number of rows.
        rows: u64,
    },
    /// Writes bytes that were read when the call was made, row by row.
    Write {
        /// First byte written.
        to: Place,
        /// Bytes from one row to the next.
        to_pitch: u64,
        /// Bytes of a row.
        width: u64,
        /// All rows, one after another.
        bytes: Vec<u8>,
    },
    /// Repeats a pattern over `rows` rows of `width` bytes.
    Fill {
        /// First byte written.
        to: u64,
        /// Bytes from one row to the next.
        pitch: u64,
        /// What is repeated: 1, 2 or 4 bytes.
        pattern: Vec<u8>,
        /// Bytes of a row.
        width: u64,
        /// Number of rows.
        rows: u64,
    },
    /// Calls the host, on a thread of its own.
    Call(Box<dyn FnOnce() + Send>),
    /// Notes the time for an event's record number.
    Record(u64, u64),
    /// Gives back memory of `cuMemAlloc` that was freed in stream order.
    Free(u64),
}

/// An operation that has been submitted and has not run.
pub struct Operation {
    /// Points that must have run.
    pub needs: Vec<Point>,
    /// What it does.
    pub action: Action,
}

/// A stream.
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
    /// Its handle has been destroyed.
    pub destroyed: bool,
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
            destroyed: false,
            starved: false,
            queue: VecDeque::new(),
            submitted: 0,
            executed: 0,
            clock: Clock::default(),
            needs: Vec::new(),
            barrier: 0,
            capture: None,
        }
    }

    /// Ordered with the legacy default stream.
    pub fn blocking(&self) -> bool {
        self.flags & 1 == 0
    }
}

/// A small generator (SplitMix64) for the adversarial order: the same seed gives the same order.
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
