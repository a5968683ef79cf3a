//! The lines of a version-2 trace: a word and its operands, separated by single spaces.
//!
//! Numbers are decimal except addresses, which are hexadecimal with `0x`. Streams, events, pools and allocations are
//! named by small numbers in the order in which the trace meets them; stream 0 is the legacy default stream.

use crate::error::Status;
use crate::pool::Reason;
use std::fmt;

/// What an access touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Bytes from the address of a live allocation.
    Inside {
        /// The allocation's number.
        allocation: u64,
        /// Bytes from its address.
        offset: u64,
    },
    /// An address in no live block.
    Address(u64),
}

/// One line of a version-2 trace, the header lines excepted. Sizes are bytes; `stream: None` is host order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the variants and fields are those of `docs/traces.md`
pub enum Line {
    // What the device had when recording began.
    NoteStream {
        stream: u64,
        non_blocking: bool,
        lazy: bool,
        submitted: u64,
    },
    NotePool {
        pool: u64,
        spec: String,
    },
    NoteUsed {
        pool: u64,
        entry: u32,
        bytes: u64,
    },
    // Calls.
    Stream {
        stream: u64,
        non_blocking: bool,
        lazy: bool,
    },
    Timeline {
        stream: u64,
    },
    StreamRelease {
        stream: u64,
    },
    Event {
        event: u64,
    },
    EventDestroy {
        event: u64,
    },
    Record {
        event: u64,
        stream: u64,
        seq: u64,
    },
    Wait {
        event: u64,
        stream: u64,
        seq: u64,
    },
    Submit {
        stream: u64,
        count: u64,
    },
    Advance {
        stream: u64,
        count: u64,
        ran: u64,
    },
    Sync {
        stream: u64,
    },
    SyncEvent {
        event: u64,
    },
    SyncDevice,
    Pool {
        pool: u64,
        spec: String,
    },
    PoolDestroy {
        pool: u64,
    },
    Trim {
        pool: u64,
        keep: u64,
    },
    Attribute {
        pool: u64,
        attribute: u32,
        value: u64,
    },
    Capacity {
        bytes: u64,
    },
    RefusePages {
        skip: u64,
        count: u64,
    },
    RefuseReleases {
        count: u64,
    },
    Alloc {
        pool: u64,
        size: u64,
        alignment: u64,
        stream: Option<u64>,
        name: Option<String>,
    },
    /// `observed`: in host order, and known to be over.
    Free {
        allocation: u64,
        stream: Option<u64>,
        observed: bool,
    },
    User {
        allocation: u64,
        stream: u64,
    },
    Access {
        place: Place,
        size: u64,
        stream: u64,
        kind: u32,
    },
    // What followed inside the call before.
    Progress {
        stream: u64,
        executed: u64,
    },
    Waitable {
        stream: u64,
        upto: u64,
    },
    Page {
        pool: u64,
        entry: u32,
        bytes: u64,
        address: u64,
    },
    PageRefused {
        pool: u64,
        entry: u32,
        bytes: u64,
    },
    RangeRefused {
        pool: u64,
        entry: u32,
        bytes: u64,
    },
    PageReleased {
        pool: u64,
        entry: u32,
        bytes: u64,
        address: u64,
    },
    PageKept {
        pool: u64,
        entry: u32,
        bytes: u64,
        address: u64,
    },
    Callback {
        pool: u64,
    },
    CallbackEnd {
        pool: u64,
        retry: bool,
    },
    Got {
        allocation: u64,
        address: u64,
        block: u64,
        entry: u32,
        reason: Reason,
        seq: u64,
    },
    Fail {
        status: Status,
    },
    // How it ended.
    Figures {
        pool: u64,
        values: Vec<(String, u64)>,
    },
    End {
        lines: u64,
    },
}

const STATUSES: [(Status, &str); 23] = [
    (Status::Success, "success"),
    (Status::InvalidValue, "invalid-value"),
    (Status::InvalidHandle, "invalid-handle"),
    (Status::Destroyed, "destroyed"),
    (Status::Freed, "freed"),
    (Status::OutOfMemory, "out-of-memory"),
    (Status::CapacityExceeded, "capacity-exceeded"),
    (Status::SizeNotAccepted, "size-not-accepted"),
    (Status::NotReady, "not-ready"),
    (Status::Unproven, "unproven"),
    (Status::NotSupported, "not-supported"),
    (Status::InvalidConfig, "invalid-config"),
    (Status::SpecSyntax, "spec-syntax"),
    (Status::WrongDevice, "wrong-device"),
    (Status::Capturing, "capturing"),
    (Status::DevicePoisoned, "device-poisoned"),
    (Status::Forked, "forked"),
    (Status::NotPermitted, "not-permitted"),
    (Status::Io, "io"),
    (Status::TraceSyntax, "trace-syntax"),
    (Status::Driver, "driver"),
    (Status::Internal, "internal"),
    (Status::ReplayMismatch, "replay-mismatch"),
];

const REASONS: [(Reason, &str); 6] = [
    (Reason::SameStream, "same-stream"),
    (Reason::Observed, "observed"),
    (Reason::Event, "event"),
    (Reason::Opportunistic, "opportunistic"),
    (Reason::Internal, "internal"),
    (Reason::Fresh, "fresh"),
];

const KINDS: [(u32, &str); 3] = [(1, "read"), (2, "write"), (3, "read-write")];

/// The word of a reason in a trace.
pub fn reason_word(reason: Reason) -> &'static str {
    REASONS.iter().find(|known| known.0 == reason).map_or("?", |known| known.1)
}

/// The word of a status in a trace.
pub fn status_word(status: Status) -> &'static str {
    STATUSES.iter().find(|known| known.0 == status).map_or("?", |known| known.1)
}

fn on_host(stream: &Option<u64>) -> String {
    stream.map_or_else(|| "host".to_owned(), |stream| stream.to_string())
}

fn bytes_or_none(bytes: u64) -> String {
    if bytes == u64::MAX { "none".to_owned() } else { bytes.to_string() }
}

fn nature(non_blocking: bool, lazy: bool) -> String {
    let blocking = if non_blocking { "non-blocking" } else { "blocking" };
    format!("{blocking} {}", if lazy { "lazy" } else { "eager" })
}

/// The longest name that is kept, bytes.
pub(super) const MAX_NAME: usize = 4096;

/// A name as it stands in a trace: no spaces, no control characters, and the same name back.
fn escape(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for c in name.chars() {
        match c {
            '%' => text.push_str("%25"),
            ' '..='~' if c != ' ' => text.push(c),
            _ => c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| text.push_str(&format!("%{byte:02X}"))),
        }
    }
    text
}

fn unescape(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next().unwrap_or(0), rest.next().unwrap_or(0)];
            let value = std::str::from_utf8(&digits).ok().and_then(|digits| u8::from_str_radix(digits, 16).ok());
            bytes.push(value.ok_or_else(|| format!("{text:?}: '%' is not followed by two hexadecimal digits"))?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).map_err(|_| format!("{text:?} is not UTF-8"))
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Line::NoteStream { stream, non_blocking, lazy, submitted } => {
                write!(f, "note-stream {stream} {} {submitted}", nature(*non_blocking, *lazy))
            }
            Line::NotePool { pool, spec } => write!(f, "note-pool {pool} {spec}"),
            Line::NoteUsed { pool, entry, bytes } => write!(f, "note-used {pool} {entry} {bytes}"),
            Line::Stream { stream, non_blocking, lazy } => {
                write!(f, "stream {stream} {}", nature(*non_blocking, *lazy))
            }
            Line::Timeline { stream } => write!(f, "timeline {stream}"),
            Line::StreamRelease { stream } => write!(f, "stream-release {stream}"),
            Line::Event { event } => write!(f, "event {event}"),
            Line::EventDestroy { event } => write!(f, "event-destroy {event}"),
            Line::Record { event, stream, seq } => write!(f, "record {event} {stream} {seq}"),
            Line::Wait { event, stream, seq } => write!(f, "wait {event} {stream} {seq}"),
            Line::Submit { stream, count } => write!(f, "submit {stream} {count}"),
            Line::Advance { stream, count, ran } => write!(f, "advance {stream} {count} {ran}"),
            Line::Sync { stream } => write!(f, "sync {stream}"),
            Line::SyncEvent { event } => write!(f, "sync-event {event}"),
            Line::SyncDevice => f.write_str("sync-device"),
            Line::Pool { pool, spec } => write!(f, "pool {pool} {spec}"),
            Line::PoolDestroy { pool } => write!(f, "pool-destroy {pool}"),
            Line::Trim { pool, keep } => write!(f, "trim {pool} {keep}"),
            Line::Attribute { pool, attribute, value } => write!(f, "attribute {pool} {attribute} {value}"),
            Line::Capacity { bytes } => write!(f, "capacity {}", bytes_or_none(*bytes)),
            Line::RefusePages { skip, count } => write!(f, "refuse-pages {skip} {count}"),
            Line::RefuseReleases { count } => write!(f, "refuse-releases {count}"),
            Line::Alloc { pool, size, alignment, stream, name } => {
                write!(f, "alloc {pool} {size} {alignment} {}", on_host(stream))?;
                match name {
                    Some(name) => write!(f, " name={}", escape(name)),
                    None => Ok(()),
                }
            }
            Line::Free { allocation, observed: true, .. } => write!(f, "free {allocation} observed"),
            Line::Free { allocation, stream, .. } => write!(f, "free {allocation} {}", on_host(stream)),
            Line::User { allocation, stream } => write!(f, "user {allocation} {stream}"),
            Line::Access { place, size, stream, kind } => {
                match place {
                    Place::Inside { allocation, offset } => write!(f, "access {allocation}+{offset}")?,
                    Place::Address(address) => write!(f, "access {address:#x}")?,
                }
                let kind = KINDS.iter().find(|known| known.0 == *kind).map_or("?", |known| known.1);
                write!(f, " {size} {stream} {kind}")
            }
            Line::Progress { stream, executed } => write!(f, "progress {stream} {executed}"),
            Line::Waitable { stream, upto } => write!(f, "waitable {stream} {upto}"),
            Line::Page { pool, entry, bytes, address } => write!(f, "page {pool} {entry} {bytes} {address:#x}"),
            Line::PageRefused { pool, entry, bytes } => write!(f, "page-refused {pool} {entry} {bytes}"),
            Line::RangeRefused { pool, entry, bytes } => write!(f, "range-refused {pool} {entry} {bytes}"),
            Line::PageReleased { pool, entry, bytes, address } => {
                write!(f, "page-released {pool} {entry} {bytes} {address:#x}")
            }
            Line::PageKept { pool, entry, bytes, address } => {
                write!(f, "page-kept {pool} {entry} {bytes} {address:#x}")
            }
            Line::Callback { pool } => write!(f, "callback {pool}"),
            Line::CallbackEnd { pool, retry } => {
                write!(f, "callback-end {pool} {}", if *retry { "retry" } else { "give-up" })
            }
            Line::Got { allocation, address, block, entry, reason, seq } => {
                write!(f, "got {allocation} {address:#x} {block} {entry} {} {seq}", reason_word(*reason))
            }
            Line::Fail { status } => write!(f, "fail {}", status_word(*status)),
            Line::Figures { pool, values } => {
                write!(f, "figures {pool}")?;
                values.iter().try_for_each(|(key, value)| write!(f, " {key}={value}"))
            }
            Line::End { lines } => write!(f, "end {lines}"),
        }
    }
}

/// Takes a line's operands one after the other.
struct Operands<'a> {
    word: &'a str,
    rest: Option<&'a str>,
}

impl<'a> Operands<'a> {
    fn text(&mut self, what: &str) -> Result<&'a str, String> {
        let rest = self.rest.take().ok_or_else(|| format!("{}: {what} is missing", self.word))?;
        let (first, rest) = match rest.split_once(' ') {
            Some((first, rest)) => (first, Some(rest)),
            None => (rest, None),
        };
        self.rest = rest;
        if first.is_empty() { Err(format!("{}: {what} is empty", self.word)) } else { Ok(first) }
    }
    fn number(&mut self, what: &str) -> Result<u64, String> {
        let text = self.text(what)?;
        number(text).ok_or_else(|| format!("{}: {what} is not a number: {text:?}", self.word))
    }
    /// Takes the next word if it is `word`.
    fn next_is(&mut self, word: &str) -> bool {
        let next = self.rest.filter(|rest| rest.split(' ').next() == Some(word));
        next.is_some() && self.text(word).is_ok()
    }
    fn small(&mut self, what: &str) -> Result<u32, String> {
        let value = self.number(what)?;
        u32::try_from(value).map_err(|_| format!("{}: {what} is too large: {value}", self.word))
    }
    fn address(&mut self) -> Result<u64, String> {
        let text = self.text("address")?;
        hexadecimal(text).ok_or_else(|| format!("{}: not an address: {text:?}", self.word))
    }
    fn bytes_or_none(&mut self, what: &str) -> Result<u64, String> {
        match self.text(what)? {
            "none" => Ok(u64::MAX),
            text => number(text).ok_or_else(|| format!("{}: {what} is not a number: {text:?}", self.word)),
        }
    }
    fn stream_or_host(&mut self) -> Result<Option<u64>, String> {
        match self.text("stream")? {
            "host" => Ok(None),
            text => match number(text) {
                Some(stream) => Ok(Some(stream)),
                None => Err(format!("{}: stream is neither a number nor host: {text:?}", self.word)),
            },
        }
    }
    /// One of two words.
    fn either(&mut self, no: &str, yes: &str) -> Result<bool, String> {
        match self.text(yes)? {
            text if text == no => Ok(false),
            text if text == yes => Ok(true),
            text => Err(format!("{}: expected {no} or {yes}, found {text:?}", self.word)),
        }
    }
    fn known<T: Copy>(&mut self, what: &str, words: &[(T, &str)]) -> Result<T, String> {
        let text = self.text(what)?;
        words
            .iter()
            .find(|known| known.1 == text)
            .map(|known| known.0)
            .ok_or_else(|| format!("{}: unknown {what} {text:?}", self.word))
    }
    /// Everything that is left.
    fn remainder(&mut self, what: &str) -> Result<&'a str, String> {
        self.rest.take().filter(|rest| !rest.is_empty()).ok_or_else(|| format!("{}: {what} is missing", self.word))
    }
}

/// A decimal number: digits only, within 64 bits.
pub(super) fn number(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) { None } else { text.parse().ok() }
}

/// `0x` and hexadecimal digits.
pub(super) fn hexadecimal(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x")?;
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(digits, 16).ok()
}

impl Line {
    /// Reads one line, without its time column and line end.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn parse(text: &str) -> Result<Line, String> {
        let (word, rest) = match text.split_once(' ') {
            Some((word, rest)) => (word, Some(rest)),
            None => (text, None),
        };
        let mut o = Operands { word, rest };
        let line = match word {
            "note-stream" => Line::NoteStream {
                stream: o.number("stream")?,
                non_blocking: o.either("blocking", "non-blocking")?,
                lazy: o.either("eager", "lazy")?,
                submitted: o.number("operations submitted")?,
            },
            "note-pool" => Line::NotePool { pool: o.number("pool")?, spec: o.remainder("specification")?.to_owned() },
            "note-used" => {
                Line::NoteUsed { pool: o.number("pool")?, entry: o.small("entry")?, bytes: o.number("bytes")? }
            }
            "stream" => Line::Stream {
                stream: o.number("stream")?,
                non_blocking: o.either("blocking", "non-blocking")?,
                lazy: o.either("eager", "lazy")?,
            },
            "timeline" => Line::Timeline { stream: o.number("stream")? },
            "stream-release" => Line::StreamRelease { stream: o.number("stream")? },
            "event" => Line::Event { event: o.number("event")? },
            "event-destroy" => Line::EventDestroy { event: o.number("event")? },
            "record" => Line::Record {
                event: o.number("event")?,
                stream: o.number("stream")?,
                seq: o.number("sequence number")?,
            },
            "wait" => {
                Line::Wait { event: o.number("event")?, stream: o.number("stream")?, seq: o.number("sequence number")? }
            }
            "submit" => Line::Submit { stream: o.number("stream")?, count: o.number("count")? },
            "advance" => {
                Line::Advance { stream: o.number("stream")?, count: o.number("count")?, ran: o.number("how many ran")? }
            }
            "sync" => Line::Sync { stream: o.number("stream")? },
            "sync-event" => Line::SyncEvent { event: o.number("event")? },
            "sync-device" => Line::SyncDevice,
            "pool" => Line::Pool { pool: o.number("pool")?, spec: o.remainder("specification")?.to_owned() },
            "pool-destroy" => Line::PoolDestroy { pool: o.number("pool")? },
            "trim" => Line::Trim { pool: o.number("pool")?, keep: o.number("bytes to keep")? },
            "attribute" => {
                Line::Attribute { pool: o.number("pool")?, attribute: o.small("attribute")?, value: o.number("value")? }
            }
            "capacity" => Line::Capacity { bytes: o.bytes_or_none("bytes")? },
            "refuse-pages" => Line::RefusePages { skip: o.number("skip")?, count: o.number("count")? },
            "refuse-releases" => Line::RefuseReleases { count: o.number("count")? },
            "alloc" => Line::Alloc {
                pool: o.number("pool")?,
                size: o.number("size")?,
                alignment: o.number("alignment")?,
                stream: o.stream_or_host()?,
                name: match o.rest.take() {
                    None => None,
                    Some(rest) => match rest.strip_prefix("name=") {
                        Some(name) if !name.contains(' ') => Some(unescape(name)?),
                        _ => return Err(format!("alloc: expected name=..., found {rest:?}")),
                    },
                },
            },
            "free" => {
                let allocation = o.number("allocation")?;
                let observed = o.next_is("observed");
                let stream = if observed { None } else { o.stream_or_host()? };
                Line::Free { allocation, stream, observed }
            }
            "user" => Line::User { allocation: o.number("allocation")?, stream: o.number("stream")? },
            "access" => {
                let text = o.text("what is accessed")?;
                let place = match text.split_once('+') {
                    Some((allocation, offset)) => number(allocation)
                        .zip(number(offset))
                        .map(|(allocation, offset)| Place::Inside { allocation, offset }),
                    None => hexadecimal(text).map(Place::Address),
                };
                Line::Access {
                    place: place
                        .ok_or_else(|| format!("access: neither ALLOCATION+OFFSET nor an address: {text:?}"))?,
                    size: o.number("size")?,
                    stream: o.number("stream")?,
                    kind: o.known("kind of access", &KINDS)?,
                }
            }
            "waitable" => Line::Waitable { stream: o.number("stream")?, upto: o.number("operations")? },
            "progress" => Line::Progress { stream: o.number("stream")?, executed: o.number("executed")? },
            "page" => Line::Page {
                pool: o.number("pool")?,
                entry: o.small("entry")?,
                bytes: o.number("bytes")?,
                address: o.address()?,
            },
            "range-refused" => {
                Line::RangeRefused { pool: o.number("pool")?, entry: o.small("entry")?, bytes: o.number("bytes")? }
            }
            "page-refused" => {
                Line::PageRefused { pool: o.number("pool")?, entry: o.small("entry")?, bytes: o.number("bytes")? }
            }
            "page-released" => Line::PageReleased {
                pool: o.number("pool")?,
                entry: o.small("entry")?,
                bytes: o.number("bytes")?,
                address: o.address()?,
            },
            "page-kept" => Line::PageKept {
                pool: o.number("pool")?,
                entry: o.small("entry")?,
                bytes: o.number("bytes")?,
                address: o.address()?,
            },
            "callback" => Line::Callback { pool: o.number("pool")? },
            "callback-end" => Line::CallbackEnd { pool: o.number("pool")?, retry: o.either("give-up", "retry")? },
            "got" => Line::Got {
                allocation: o.number("allocation")?,
                address: o.address()?,
                block: o.number("block size")?,
                entry: o.small("entry")?,
                reason: o.known("reason", &REASONS)?,
                seq: o.number("sequence number")?,
            },
            "fail" => Line::Fail { status: o.known("status", &STATUSES)? },
            "figures" => {
                let pool = o.number("pool")?;
                let mut values = Vec::new();
                while o.rest.is_some() {
                    let text = o.text("figure")?;
                    let value = text.split_once('=').and_then(|(key, value)| Some((key.to_owned(), number(value)?)));
                    values.push(value.ok_or_else(|| format!("figures: not KEY=NUMBER: {text:?}"))?);
                }
                Line::Figures { pool, values }
            }
            "end" => Line::End { lines: o.number("number of lines")? },
            "" => return Err("the line is empty".to_owned()),
            _ => return Err(format!("unknown word {:?}", word.chars().take(40).collect::<String>())),
        };
        match o.rest {
            Some(rest) => Err(format!("{word}: {:?} is too much", rest.chars().take(40).collect::<String>())),
            None => Ok(line),
        }
    }

    /// The line tells what followed inside a call (or its end), not a call.
    pub(super) fn is_answer(&self) -> bool {
        matches!(
            self,
            Line::Progress { .. }
                | Line::Waitable { .. }
                | Line::Page { .. }
                | Line::PageRefused { .. }
                | Line::RangeRefused { .. }
                | Line::PageReleased { .. }
                | Line::PageKept { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of each, with values at their ends.
    fn samples() -> Vec<Line> {
        let (pool, stream, event, allocation) = (1, 2, 3, u64::MAX);
        let (entry, bytes, address) = (u32::MAX, u64::MAX, 0x53f0_0000_0000_0000);
        vec![
            Line::NoteStream { stream, non_blocking: true, lazy: false, submitted: 9 },
            Line::NotePool { pool, spec: "direct(); policies(opportunistic=off)".into() },
            Line::NoteUsed { pool, entry, bytes },
            Line::Stream { stream: 0, non_blocking: false, lazy: true },
            Line::Timeline { stream },
            Line::StreamRelease { stream },
            Line::Event { event },
            Line::EventDestroy { event },
            Line::Record { event, stream, seq: 4 },
            Line::Wait { event, stream, seq: 5 },
            Line::Submit { stream, count: 6 },
            Line::Advance { stream, count: 6, ran: 0 },
            Line::Sync { stream },
            Line::SyncEvent { event },
            Line::SyncDevice,
            Line::Pool { pool, spec: "preset(cuda)".into() },
            Line::PoolDestroy { pool },
            Line::Trim { pool, keep: u64::MAX },
            Line::Attribute { pool, attribute: 4, value: u64::MAX },
            Line::Capacity { bytes: u64::MAX },
            Line::Capacity { bytes: 0 },
            Line::RefusePages { skip: 1, count: 2 },
            Line::RefuseReleases { count: 3 },
            Line::Alloc { pool, size: 0, alignment: 0, stream: None, name: None },
            Line::Alloc { pool, size: 7, alignment: 4096, stream: Some(0), name: Some("50% of \"ä\"\n\t=".into()) },
            Line::Alloc { pool, size: 7, alignment: 0, stream: Some(1), name: Some(String::new()) },
            Line::Free { allocation, stream: None, observed: false },
            Line::Free { allocation, stream: None, observed: true },
            Line::Free { allocation, stream: Some(2), observed: false },
            Line::User { allocation, stream },
            Line::Access { place: Place::Inside { allocation: 1, offset: 8 }, size: 4, stream, kind: 1 },
            Line::Access { place: Place::Address(0), size: 4, stream, kind: 3 },
            Line::Progress { stream, executed: 8 },
            Line::Waitable { stream, upto: 7 },
            Line::Page { pool, entry, bytes, address },
            Line::PageRefused { pool, entry, bytes },
            Line::RangeRefused { pool, entry, bytes },
            Line::PageReleased { pool, entry, bytes, address },
            Line::PageKept { pool, entry, bytes, address },
            Line::Callback { pool },
            Line::CallbackEnd { pool, retry: true },
            Line::CallbackEnd { pool, retry: false },
            Line::Got { allocation, address, block: 512, entry: 0, reason: Reason::Internal, seq: 0 },
            Line::Fail { status: Status::CapacityExceeded },
            Line::Figures { pool, values: vec![("used".into(), 1), ("live".into(), u64::MAX)] },
            Line::Figures { pool, values: vec![] },
            Line::End { lines: 12 },
        ]
    }

    #[test]
    fn every_line_reads_back_as_written() {
        for line in samples() {
            let text = line.to_string();
            assert!(!text.contains('\n'), "{text:?} is one line");
            assert_eq!(Line::parse(&text), Ok(line), "{text:?}");
        }
    }

    #[test]
    fn every_status_and_reason_has_its_own_word() {
        for (index, (status, word)) in STATUSES.iter().enumerate() {
            assert_eq!(*status as usize, index);
            assert_eq!(STATUSES.iter().filter(|known| known.1 == *word).count(), 1);
            assert_eq!(status_word(*status), *word);
        }
        for (index, (reason, word)) in REASONS.iter().enumerate() {
            assert_eq!(*reason as usize, index);
            assert_eq!(reason_word(*reason), *word);
        }
    }

    #[test]
    fn a_line_cut_short_or_grown_is_an_error() {
        for line in samples() {
            let text = line.to_string();
            if matches!(line, Line::Figures { .. } | Line::NotePool { .. } | Line::Pool { .. }) {
                continue; // these end in a list
            }
            assert!(Line::parse(&format!("{text} 1")).is_err(), "{text:?} with something more");
            if let Some((shorter, _)) = text.rsplit_once(' ')
                && !matches!(line, Line::Alloc { name: Some(_), .. })
            {
                assert!(Line::parse(shorter).is_err(), "{shorter:?}");
            }
        }
    }

    #[test]
    fn what_is_no_number_is_said_so() {
        for text in ["submit 1 x", "submit 1 -1", "submit 1 +1", "submit 1 18446744073709551616", "submit 1 0x1"] {
            let why = Line::parse(text).unwrap_err();
            assert!(why.contains("count is not a number"), "{why}");
        }
        assert!(Line::parse("got 1 53f0 512 0 fresh 1").unwrap_err().contains("not an address"));
        assert!(Line::parse("attribute 1 4294967296 0").unwrap_err().contains("too large"));
        assert!(Line::parse("submit  1").unwrap_err().contains("is empty"));
    }
}
