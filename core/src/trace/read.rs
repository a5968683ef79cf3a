//! Reading traces of both versions, line by line; every error names file and line.

use super::at;
use super::line::{Line, hexadecimal, number};
use crate::error::{Error, Result, Status};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The longest line that is read, bytes.
const MAX_LINE: u64 = 1 << 20;

/// The device a version-2 trace was recorded on. Sizes are bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// `model` or `cuda`.
    pub kind: String,
    /// CUDA: there may have been work the library did not see.
    pub opaque: bool,
    /// CUDA: one event could stand for all of the device (`cuCtxRecordEvent`).
    pub context_events: bool,
    /// Alignment of blocks.
    pub alignment: u64,
    /// Page granularity.
    pub granularity: u64,
    /// What the device can grant; `u64::MAX`: unlimited.
    pub capacity: u64,
    /// Its default stream runs only when advanced or synchronised.
    pub lazy: bool,
    /// Model address of the first page that could come.
    pub base: u64,
    /// Each line starts with its time.
    pub time: bool,
}

/// What one line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// Version 1: an allocation.
    Requested {
        /// Its id.
        id: u64,
        /// Bytes asked for.
        size: u64,
        /// Its stream, by the trace's number.
        stream: u64,
    },
    /// Version 1: a free of a live allocation.
    Returned {
        /// Its id.
        id: u64,
        /// The bytes that were asked for.
        size: u64,
        /// The stream of the free: the allocation's, unless the line names another.
        stream: u64,
    },
    /// Version 2.
    Line(Line),
}

/// One line of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its number in the file, from 1.
    pub line: u64,
    /// Nanoseconds since recording began, if the trace has times.
    pub time: Option<u64>,
    /// What it says.
    pub item: Item,
}

/// A trace being read. Iterates over its records; after an error it ends.
pub struct Trace {
    name: String,
    version: u32,
    header: Option<Header>,
    input: Box<dyn BufRead>,
    consumed: Arc<AtomicU64>,
    total: u64,
    line: u64,
    text: Vec<u8>,
    records: u64,
    done: bool,
    /// Version 1: what every id met so far is: size and stream while live.
    ids: BTreeMap<u64, Option<(u64, u64)>>,
}

/// Counts the bytes taken from a file.
struct Counted {
    file: File,
    consumed: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.consumed.fetch_add(count as u64, Relaxed);
        Ok(count)
    }
}

/// Opens a trace of either version, gzip or not (told by the content), and reads its header.
///
/// # Errors
/// [`Status::Io`] naming the file; [`Status::TraceSyntax`] naming file and line.
pub fn read(path: impl AsRef<Path>) -> Result<Trace> {
    let path = path.as_ref();
    let name = path.display().to_string();
    let failed = |error: io::Error| Error::new(Status::Io, format_args!("{name}: {error}"));
    let file = File::open(path).map_err(failed)?;
    let total = file.metadata().map_err(failed)?.len();
    let consumed = Arc::new(AtomicU64::new(0));
    let mut plain = BufReader::with_capacity(1 << 16, Counted { file, consumed: consumed.clone() });
    let magic = plain.fill_buf().map_err(failed)?;
    let input: Box<dyn BufRead> = if magic.starts_with(&[0x1f, 0x8b]) {
        Box::new(BufReader::with_capacity(1 << 16, flate2::bufread::MultiGzDecoder::new(plain)))
    } else {
        Box::new(plain)
    };
    let mut trace = Trace {
        name,
        version: 0,
        header: None,
        input,
        consumed,
        total,
        line: 0,
        text: Vec::new(),
        records: 0,
        done: false,
        ids: BTreeMap::new(),
    };
    trace.read_header()?;
    Ok(trace)
}

impl Trace {
    /// The file, as it was named.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// 1 or 2.
    pub fn version(&self) -> u32 {
        self.version
    }
    /// The device, in a version-2 trace.
    pub fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }
    /// (bytes read, bytes of the file).
    pub fn progress(&self) -> (u64, u64) {
        (self.consumed.load(Relaxed).min(self.total), self.total)
    }

    /// The error at the line read last.
    fn wrong(&self, what: impl std::fmt::Display) -> Error {
        at(Status::TraceSyntax, &self.name, self.line.max(1), what)
    }

    /// Reads the next line into `text`; `false` at the end.
    fn next_text(&mut self) -> Result<bool> {
        self.text.clear();
        self.line += 1;
        let count = match (&mut self.input).take(MAX_LINE + 1).read_until(b'\n', &mut self.text) {
            Ok(count) => count as u64,
            Err(error) => {
                return Err(match error.kind() {
                    io::ErrorKind::UnexpectedEof => self.wrong("the compressed data ends early"),
                    io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => {
                        self.wrong(format_args!("the compressed data is damaged: {error}"))
                    }
                    _ => at(Status::Io, &self.name, self.line, error),
                });
            }
        };
        if count > MAX_LINE {
            return Err(self.wrong(format_args!("the line is longer than {MAX_LINE} bytes")));
        }
        if self.text.last() == Some(&b'\n') {
            self.text.pop();
        }
        if self.text.last() == Some(&b'\r') {
            self.text.pop();
        }
        Ok(count > 0)
    }

    fn read_header(&mut self) -> Result<()> {
        if !self.next_text()? {
            return Err(self.wrong("the file is empty"));
        }
        match &self.text[..] {
            b"op,id,size,stream" | b"op,id,size,stream,thread" => {
                self.version = 1;
                return Ok(());
            }
            b"smp-trace 2" => {}
            text => {
                let text = String::from_utf8_lossy(&text[..text.len().min(40)]);
                let why = if text.starts_with("smp-trace ") {
                    format!("{text:?}: this version of a trace is not known; 1 and 2 are")
                } else {
                    format!("no trace: expected the header op,id,size,stream[,thread] or smp-trace 2, found {text:?}")
                };
                return Err(self.wrong(why));
            }
        }
        self.version = 2;
        if !self.next_text()? {
            return Err(self.wrong("the line that describes the device is missing"));
        }
        let text = std::str::from_utf8(&self.text).map_err(|_| self.wrong("the line is not UTF-8"))?;
        let header = parse_device(text).map_err(|why| self.wrong(why))?;
        self.header = Some(header);
        Ok(())
    }

    fn next_record(&mut self) -> Result<Option<Record>> {
        loop {
            if !self.next_text()? {
                if self.version == 2 {
                    return Err(self.wrong("the trace ends without its end line: recording was not stopped"));
                }
                return Ok(None);
            }
            if self.version == 1 && self.text.is_empty() || self.version == 2 && self.text.first() == Some(&b'#') {
                continue;
            }
            break;
        }
        let mut text = std::mem::take(&mut self.text);
        let record = match std::str::from_utf8(&text) {
            Ok(text) if self.version == 1 => self.version_1(text),
            Ok(text) => self.version_2(text),
            Err(_) => Err(self.wrong("the line is not UTF-8")),
        };
        text.clear();
        self.text = text;
        record.map(Some)
    }

    fn version_1(&mut self, text: &str) -> Result<Record> {
        let mut columns = text.split(',');
        let (op, id, size, stream, thread) =
            (columns.next(), columns.next(), columns.next(), columns.next(), columns.next());
        if columns.next().is_some() {
            return Err(self.wrong("too many columns: expected op,id,size,stream[,thread]"));
        }
        let field = |what: &str, text: Option<&str>| match text {
            None => Err(self.wrong(format_args!("the column {what} is missing"))),
            Some(text) => {
                number(text).ok_or_else(|| self.wrong(format_args!("{what} is not a number: {}", shortened(text))))
            }
        };
        let is_alloc = match op {
            Some("a") => true,
            Some("f") => false,
            op => {
                let op = shortened(op.unwrap_or(""));
                return Err(self.wrong(format_args!("unknown op {op}; there are a and f")));
            }
        };
        let id = field("id", id)?;
        if let Some(thread) = thread {
            field("thread", Some(thread))?;
        }
        let item = if is_alloc {
            let (size, stream) = (field("size", size)?, field("stream", stream)?);
            if self.ids.contains_key(&id) {
                return Err(self.wrong(format_args!("allocation {id} is there already")));
            }
            self.ids.insert(id, Some((size, stream)));
            Item::Requested { id, size, stream }
        } else {
            // A free may leave size and stream to its allocation.
            let optional = |what, text: Option<&str>| match text {
                None | Some("") => Ok(None),
                text => field(what, text).map(Some),
            };
            let (named_size, named_stream) = (optional("size", size)?, optional("stream", stream)?);
            let live = match self.ids.get(&id) {
                None => return Err(self.wrong(format_args!("free of allocation {id}, which is not known"))),
                Some(None) => return Err(self.wrong(format_args!("allocation {id} has been freed already"))),
                Some(&Some(live)) => live,
            };
            let (size, stream) = live;
            if named_size.is_some_and(|named| named != size) {
                let named = named_size.unwrap_or(0);
                return Err(self.wrong(format_args!("allocation {id} has {size} bytes, its free says {named}")));
            }
            self.ids.insert(id, None);
            Item::Returned { id, size, stream: named_stream.unwrap_or(stream) }
        };
        self.records += 1;
        Ok(Record { line: self.line, time: None, item })
    }

    fn version_2(&mut self, text: &str) -> Result<Record> {
        let (time, text) = if self.header.as_ref().is_some_and(|header| header.time) {
            let (time, rest) = text.split_once(' ').unwrap_or((text, ""));
            let time =
                number(time).ok_or_else(|| self.wrong(format_args!("time is not a number: {}", shortened(time))))?;
            (Some(time), rest)
        } else {
            (None, text)
        };
        let line = Line::parse(text).map_err(|why| self.wrong(why))?;
        if let Line::End { lines } = line {
            if lines != self.records {
                let found = self.records;
                return Err(self.wrong(format_args!("the trace has {found} lines, its end line says {lines}")));
            }
            let after = self.line;
            while self.next_text()? {
                if !self.text.is_empty() && self.text.first() != Some(&b'#') {
                    return Err(self.wrong("there is something after the end line"));
                }
            }
            self.line = after;
            self.done = true;
        } else {
            self.records += 1;
        }
        Ok(Record { line: self.line, time, item: Item::Line(line) })
    }
}

impl Iterator for Trace {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Result<Record>> {
        if self.done {
            return None;
        }
        let next = self.next_record().transpose();
        self.done |= !matches!(next, Some(Ok(_)));
        next
    }
}

fn shortened(text: &str) -> String {
    format!("{:?}", text.chars().take(40).collect::<String>())
}

impl std::fmt::Display for Header {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let yes = |value| if value { "yes" } else { "no" };
        let capacity = if self.capacity == u64::MAX { "none".to_owned() } else { self.capacity.to_string() };
        write!(
            f,
            "device kind={} alignment={} granularity={} capacity={capacity} lazy={} base={:#x} time={}",
            self.kind,
            self.alignment,
            self.granularity,
            yes(self.lazy),
            self.base,
            yes(self.time)
        )?;
        if self.opaque { write!(f, " context-events={}", yes(self.context_events)) } else { Ok(()) }
    }
}

fn parse_device(text: &str) -> std::result::Result<Header, String> {
    let mut words = text.split(' ');
    if words.next() != Some("device") {
        return Err("expected the line that describes the device: device kind=...".to_owned());
    }
    let mut value = |key: &str| -> std::result::Result<&str, String> {
        let word = words.next().ok_or_else(|| format!("device: {key} is missing"))?;
        match word.split_once('=') {
            Some((found, value)) if found == key => Ok(value),
            _ => Err(format!("device: expected {key}=..., found {}", shortened(word))),
        }
    };
    let bytes = |key: &str, text: &str| number(text).ok_or_else(|| format!("device: {key} is not a number: {text:?}"));
    let switch = |key: &str, text: &str| match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(format!("device: {key} is neither yes nor no: {text:?}")),
    };
    let mut header = Header {
        opaque: false,
        context_events: false,
        kind: match value("kind")? {
            kind @ ("model" | "cuda") => kind.to_owned(),
            kind => return Err(format!("device: unknown kind {kind:?}")),
        },
        alignment: bytes("alignment", value("alignment")?)?,
        granularity: bytes("granularity", value("granularity")?)?,
        capacity: match value("capacity")? {
            "none" => u64::MAX,
            text => bytes("capacity", text)?,
        },
        lazy: switch("lazy", value("lazy")?)?,
        base: value("base")
            .and_then(|text| hexadecimal(text).ok_or(format!("device: base is no address: {text:?}")))?,
        time: switch("time", value("time")?)?,
    };
    if header.kind == "cuda" {
        header.opaque = true;
        header.context_events = switch("context-events", value("context-events")?)?;
    }
    match words.next() {
        Some(word) => Err(format!("device: {} is too much", shortened(word))),
        None => Ok(header),
    }
}
