//! Messages for a person: what is wrong in the calling program but no error of the call.
//!
//! One sink for the process, a plain function pointer behind an atomic, so that a silent library pays one load. The sink
//! may be called from any thread and must not call back into the library.

use parking_lot::RwLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// How grave a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Level {
    /// The library or the device is broken.
    Error = 1,
    /// The calling program very likely has a fault.
    Warning = 2,
    /// What was done, for those who ask.
    Info = 3,
}

static LEVEL: AtomicU32 = AtomicU32::new(0);
/// Receives messages.
pub type Sink = fn(Level, &str);

static SINK: RwLock<Option<Sink>> = RwLock::new(None);

/// Sends messages up to `level` to `sink`; `None`: to no one.
pub fn set_sink(level: Level, sink: Option<Sink>) {
    *SINK.write() = sink;
    LEVEL.store(if sink.is_some() { level as u32 } else { 0 }, Ordering::Relaxed);
}

/// Says something, if anyone listens; `message` is only made then.
#[inline]
pub(crate) fn emit(level: Level, message: impl FnOnce() -> String) {
    if level as u32 <= LEVEL.load(Ordering::Relaxed) {
        let sink = *SINK.read();
        if let Some(sink) = sink {
            sink(level, &message());
        }
    }
}
