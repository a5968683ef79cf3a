//! Traces: what a program did to a device, as lines of text. Reading, recording, replaying.
//!
//! Version 1 is a CSV of allocations and frees; version 2 holds every call that changes state, in true order, with the
//! answers that came from outside the model. The formats are in `docs/traces.md`. A version-2 trace replays on a fresh
//! model device to the same addresses, reasons, statuses and figures.
//!
//! `line` is the text of one line, `encode` turns observed events into lines (for the recorder, and for the replayer,
//! which compares), `read` reads files of both versions, `record` writes, `replay` plays.

mod encode;
mod line;
mod read;
mod record;
mod replay;

pub use line::{Line, Place, reason_word, status_word};
pub use read::{Header, Item, Record, Trace, read};
pub use record::{TIME, start, stop};
pub use replay::{PoolReplay, ReplayOptions, ReplayReport, Replayer, replay};

use crate::error::{Error, Status};
use std::fmt::Display;

/// The error that names a place in a file.
#[cold]
fn at(status: Status, name: &str, line: u64, what: impl Display) -> Error {
    Error::new(status, format_args!("{name}:{line}: {what}"))
}
