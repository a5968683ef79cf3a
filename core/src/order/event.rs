//! Events: a point of a stream, remembered with everything it was ordered after.

use super::{At, Clock};
use parking_lot::Mutex;

/// One event's record. The lock is a leaf: nothing else is taken while it is held.
#[derive(Default)]
pub(crate) struct Event {
    pub(crate) state: Mutex<EventState>,
}

#[derive(Default)]
pub(crate) struct EventState {
    pub(crate) generation: u32,
    pub(crate) live: bool,
    /// (device number << 32) | device slot.
    pub(crate) device: u64,
    /// `None` until recorded; a never-recorded event counts as complete.
    pub(crate) recorded: Option<Recorded>,
    /// Counts records begun, so that who looked before a driver call can tell whether it was still the same after.
    pub(crate) version: u64,
    /// How many calls are having the driver record it now.
    pub(crate) under_way: u32,
    /// The driver's handle, 0 where no driver is.
    pub(crate) raw: u64,
}

/// What a record stored: the point and the clock of its stream at that point.
#[derive(Clone)]
pub(crate) struct Recorded {
    pub(crate) at: At,
    pub(crate) clock: Clock,
}
