//! Recording: an observer that writes what it sees to a file.
//!
//! Nothing that goes wrong with the file disturbs the program: the first failure is remembered, the rest of the trace is
//! dropped, and [`stop`] answers it.
//!
//! A trace is its process's own. A child after a fork has a copy of what is buffered, and shares the file and the place in it:
//! nothing is written there, and no recording runs in it until it starts one.

use super::encode::Encoder;
use super::line::Line;
use super::read::Header;
use crate::error::{Error, Result, Status};
use crate::handle::DeviceId;
use crate::pool::addresses::FIRST_ADDRESS;
use crate::pool::caches::STREAMS;
use crate::pool::observer::{Event, Observer};
use crate::pool::slow::Slow;
use crate::pool::state::{Device, Kind, Pool, Tally};
use crate::pool::{Stats, release};
use crate::slab::SlotMap;
use flate2::Compression;
use flate2::write::GzEncoder;
use parking_lot::Mutex;
use std::fmt::Write as _;
use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

/// Flag of [`start`]: each line starts with its time, in nanoseconds since recording began.
pub const TIME: u32 = 1;

/// Who records which device, by the device's number. A recorder lives as long as its device observes through it.
/// Taken inside a device's serialising lock, under which its out-of-memory callback runs, which may come here.
static RECORDERS: Mutex<Option<SlotMap<u32, Weak<Recorder>>>> = Mutex::new(None);

/// The file, locked, in the process that opened it. In a child after a fork, what the buffers above still let go of ends here, also
/// when they are dropped.
struct OwnFile {
    file: File,
    process: u32,
}

impl Write for OwnFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.process == process::id() { self.file.write(bytes) } else { Ok(bytes.len()) }
    }
    fn flush(&mut self) -> io::Result<()> {
        if self.process == process::id() { self.file.flush() } else { Ok(()) }
    }
}

impl Drop for OwnFile {
    /// A child after a fork has the file open as well, so that closing it alone would leave it locked.
    fn drop(&mut self) {
        if self.process == process::id() {
            let _ = self.file.unlock();
        }
    }
}

/// A file whatever its name: device and inode.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileId(u64, u64);

impl FileId {
    /// `None`: what is no regular file (`/dev/null`, a pipe) keeps nothing that another trace could spoil.
    fn of(file: &Metadata) -> Option<FileId> {
        file.is_file().then(|| FileId(file.dev(), file.ino()))
    }
}

enum Sink {
    Plain(BufWriter<OwnFile>),
    Packed(GzEncoder<BufWriter<OwnFile>>),
}

impl Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Sink::Plain(file) => file.write_all(bytes),
            Sink::Packed(file) => file.write_all(bytes),
        }
    }
    fn finish(self) -> io::Result<()> {
        let mut file = match self {
            Sink::Plain(file) => file,
            Sink::Packed(file) => file.finish()?,
        };
        file.flush()
    }
}

struct State {
    encoder: Encoder,
    /// `None` before the notes are written and after the file is complete.
    sink: Option<Sink>,
    error: Option<io::Error>,
    /// Something was seen before the notes were written.
    early: bool,
    lines: u64,
    text: String,
}

impl State {
    fn put(&mut self, text: &str) {
        if self.error.is_some() {
            return;
        }
        if let Some(sink) = &mut self.sink
            && let Err(error) = sink.write(text.as_bytes())
        {
            self.error = Some(error);
        }
    }

    fn line(&mut self, time: Option<u64>, line: &Line) {
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        let _ = match time {
            Some(time) => writeln!(text, "{time} {line}"),
            None => writeln!(text, "{line}"),
        };
        self.put(&text);
        self.text = text;
        if !matches!(line, Line::End { .. }) {
            self.lines += 1;
        }
    }

    /// Completes the file. Answers the first failure.
    fn finish(&mut self, time: Option<u64>, complete: bool) -> io::Result<()> {
        if complete {
            self.line(time, &Line::End { lines: self.lines });
        }
        let finished = self.sink.take().map_or(Ok(()), Sink::finish);
        match self.error.take() {
            Some(error) => Err(error),
            None => finished,
        }
    }
}

struct Recorder {
    path: PathBuf,
    /// The process that records.
    process: u32,
    /// The file, once it is open, if no other trace may write to it.
    file: OnceLock<FileId>,
    began: Instant,
    time: bool,
    state: Mutex<State>,
}

impl Recorder {
    fn now(&self) -> Option<u64> {
        self.time.then(|| u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Observer for Recorder {
    fn here(&self) -> bool {
        self.process == process::id()
    }

    fn event(&self, event: &Event<'_>) {
        if !self.here() {
            return;
        }
        let _held = crate::cancel::hold();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.sink.is_none() {
            state.early = true;
            return;
        }
        let now = self.now();
        let mut lines: [Option<Line>; 2] = [None, None];
        state.encoder.encode(event, &mut |line| {
            let place = if lines[0].is_none() { &mut lines[0] } else { &mut lines[1] };
            *place = Some(line);
        });
        for line in lines.iter().flatten() {
            state.line(now, line);
        }
    }
}

impl Drop for Recorder {
    /// The device is gone and nobody stopped the trace: the file is completed, without closing figures.
    fn drop(&mut self) {
        if !self.here() {
            return;
        }
        let _held = crate::cancel::hold();
        let now = self.now();
        let state = self.state.get_mut();
        if state.sink.is_some()
            && let Err(error) = state.finish(now, true)
        {
            crate::log::emit(crate::log::Level::Error, || format!("{}: {error}", self.path.display()));
        }
    }
}

fn not_permitted(what: &str) -> Error {
    Error::new(Status::NotPermitted, what)
}

/// A stream and a pool that were there before.
struct Notes {
    streams: Vec<(u64, bool, bool, u64)>,
    pools: Vec<PoolNote>,
}

struct PoolNote {
    pool: Arc<Pool>,
    config: crate::pool::config::PoolConfig,
    stats: Stats,
    /// Of each Mapped entry that has been used: its number, and its mark of used bytes, by which it grows.
    used: Vec<(u32, u64)>,
}

/// Looks at a serialised device: it must hold no page and have nothing unobserved, so that it can be built again.
fn take_notes(device: &Device) -> Result<Notes> {
    let reserved = device.reserved.load(Relaxed);
    if reserved != 0 {
        return Err(Error::new(
            Status::NotPermitted,
            format_args!(
                "a trace starts with what the device holds, and it holds {reserved} bytes of pages: start the trace before \
                 the first allocation, or free all blocks, synchronise the device and trim its pools to 0"
            ),
        ));
    }
    let mut notes = Notes { streams: Vec::new(), pools: Vec::new() };
    let members: Vec<_> = device.order.streams.lock().iter().copied().collect();
    for member in members {
        let record = STREAMS.at(member.slot());
        let state = record.state.lock();
        if !record.is(device.uid, member) {
            continue;
        }
        if record.observed() < state.submitted {
            return Err(Error::new(
                Status::NotPermitted,
                format_args!(
                    "a trace starts on a device at rest, and stream {} has work the host has not observed: synchronise the \
                     device first",
                    member.ordinal()
                ),
            ));
        }
        if state.live {
            notes.streams.push((u64::from(member.ordinal()), state.non_blocking, state.lazy, state.submitted));
        }
    }
    let pools = device.pools.lock().clone();
    let slow = Slow::lock(device);
    if !pools.iter().all(|pool| release::is_unmapped(&slow, pool)) {
        return Err(not_permitted(
            "a trace starts with what the device holds, and the device still refuses to unmap chunks that were given back",
        ));
    }
    drop(slow);
    for pool in pools {
        // A destroyed pool holds no page any more, so it is gone for the trace too.
        if let (Ok(config), Ok(stats)) = (crate::pool::config(pool.id), crate::pool::stats(pool.id)) {
            let mapped = |(e, tally): (u32, &Tally)| {
                let used = tally.used_high.load(Relaxed);
                (pool.entries[e as usize].kind == Kind::Mapped && used > 0).then_some((e, used))
            };
            let used = (0..).zip(&pool.entry_tally).filter_map(mapped).collect();
            notes.pools.push(PoolNote { pool, config, stats, used });
        }
    }
    Ok(notes)
}

/// Starts recording a device to a file as a version-2 trace; gzip if the name ends in `.gz`. An existing file is
/// replaced. Until [`stop`], the device's calls run one at a time.
///
/// The device must hold no page and have no work the host has not observed; its streams and pools are noted at the
/// start of the trace, and pools begin anew as the trace does: Mapped entries give back the addresses that they have
/// reserved, and forget what they have learnt but for how much has been used. No other thread may be in a call on the device. `flags`: 0 or [`TIME`].
///
/// # Errors
/// Bad device; [`Status::InvalidValue`] for unknown flags, and for a regular file, by whatever name, that another
/// recording is writing (or was, of the process this was forked from); [`Status::NotPermitted`] if the device is recorded already,
/// is not at rest, or is in a call; [`Status::Io`] naming the file. Nothing is recorded then.
pub fn start(device: DeviceId, path: impl AsRef<Path>, flags: u32) -> Result<()> {
    let path = path.as_ref();
    if flags & !TIME != 0 {
        return Err(Error::new(Status::InvalidValue, format_args!("flags: {flags:#x} has unknown bits")));
    }
    let device = crate::runtime::resolve_device(device)?;
    let outside = || match device.in_callback.lock().is_empty() {
        true => Ok(()),
        false => Err(not_permitted("recording cannot start inside an out-of-memory callback")),
    };
    // Asked before too: whoever is in a callback may wait for this thread.
    outside()?;
    let _serial = device.serialise();
    let mut registry = RECORDERS.lock();
    let registry = registry.get_or_insert_with(SlotMap::default);
    if device.has_observer() {
        return Err(not_permitted("the device is being recorded already"));
    }
    outside()?;
    let time = flags & TIME != 0;
    // In a child after a fork that of the parent is among them: installing another observer takes it away.
    let taken: Vec<FileId> =
        registry.values().filter_map(Weak::upgrade).filter_map(|other| other.file.get().copied()).collect();
    let recorder = Arc::new(Recorder {
        path: path.to_owned(),
        process: process::id(),
        file: OnceLock::new(),
        began: Instant::now(),
        time,
        state: Mutex::new(State {
            encoder: Encoder::new(0),
            sink: None,
            error: None,
            early: false,
            lines: 0,
            text: String::new(),
        }),
    });
    crate::runtime::native::retire_timeline(&device)?;
    if !device.observe(Some(recorder.clone())) {
        return Err(not_permitted("the device is being recorded already"));
    }
    let begun = take_notes(&device).and_then(|notes| begin(&device, &recorder, notes, &taken));
    if begun.is_err() {
        device.observe(None);
    } else {
        registry.retain(|_, other| other.strong_count() > 0);
        registry.insert(device.uid, Arc::downgrade(&recorder));
    }
    begun
}

/// Opens a file to write a trace to, and empties it unless one of `taken` is being written, or another process writes a trace to it.
fn create(path: &Path, taken: &[FileId]) -> Result<(File, Option<FileId>)> {
    let io = |error: io::Error| Error::new(Status::Io, format_args!("{}: {error}", path.display()));
    let refused = |whose: &str| {
        Error::new(
            Status::InvalidValue,
            format_args!("path: {}: another trace is being written to this file{whose}", path.display()),
        )
    };
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(io)?;
    let id = FileId::of(&file.metadata().map_err(io)?);
    if let Some(id) = &id {
        if taken.contains(id) {
            return Err(refused(""));
        }
        // File systems without locks do without.
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            return Err(refused(" by another process"));
        }
        file.set_len(0).map_err(io)?;
    }
    Ok((file, id))
}

fn begin(device: &Device, recorder: &Recorder, notes: Notes, taken: &[FileId]) -> Result<()> {
    let base = device.granted.lock().addresses.next();
    let (_, capacity) = crate::device_source::PageSource::memory(&device.source);
    let mut guard = recorder.state.lock();
    let state = &mut *guard;
    if state.early || !notes.pools.iter().all(|note| release::renew(&mut Slow::lock(device), &note.pool)) {
        return Err(not_permitted("another thread is in a call on the device: recording starts on a device at rest"));
    }
    let (file, id) = create(&recorder.path, taken)?;
    if let Some(id) = id {
        let _ = recorder.file.set(id);
    }
    let file = BufWriter::with_capacity(1 << 16, OwnFile { file, process: recorder.process });
    state.sink = Some(if recorder.path.as_os_str().as_bytes().ends_with(b".gz") {
        Sink::Packed(GzEncoder::new(file, Compression::default()))
    } else {
        Sink::Plain(file)
    });
    debug_assert!(base >= FIRST_ADDRESS);
    let header = Header {
        kind: match device.kind {
            crate::device::DeviceKind::Model if !device.order.opaque => "model".to_owned(),
            _ => "cuda".to_owned(),
        },
        opaque: device.order.opaque,
        context_events: device.options.context_events,
        alignment: device.options.alignment,
        granularity: device.options.page_granularity,
        capacity,
        lazy: device.options.lazy,
        base,
        time: recorder.time,
    };
    state.put(&format!("smp-trace 2\n{header}\n"));
    let now = recorder.now();
    for (ordinal, non_blocking, lazy, submitted) in notes.streams {
        let stream = state.encoder.add_stream(ordinal);
        // The legacy default stream is noted only if something was submitted to it.
        if stream != 0 || submitted > 0 {
            state.line(now, &Line::NoteStream { stream, non_blocking, lazy, submitted });
        }
    }
    for PoolNote { pool, config, stats, used } in notes.pools {
        let pool = state.encoder.add_pool(pool.id, Some(stats));
        state.line(now, &Line::NotePool { pool, spec: crate::pool::spec::format(&super::encode::replayable(&config)) });
        for (entry, bytes) in used {
            state.line(now, &Line::NoteUsed { pool, entry, bytes });
        }
    }
    Ok(())
}

/// Stops recording, writes the pools' figures, and completes the file.
///
/// # Errors
/// Bad device; [`Status::NotPermitted`] if nothing records it in this process, or inside an out-of-memory callback (it goes on
/// recording then); [`Status::Io`] naming the file if writing failed, now or since the start; [`Status::NotPermitted`]
/// too if calls were under way when recording began, so that the trace does not replay.
pub fn stop(device: DeviceId) -> Result<()> {
    let device = crate::runtime::resolve_device(device)?;
    let outside = || match device.in_callback.lock().is_empty() {
        true => Ok(()),
        false => Err(not_permitted("recording cannot stop inside an out-of-memory callback")),
    };
    if !device.has_observer() {
        return Err(not_permitted("nothing records the device in this process"));
    }
    // Asked before too: whoever is in a callback may wait for this thread.
    outside()?;
    let _serial = device.serialise();
    let mut registry = RECORDERS.lock();
    let recorder = registry
        .as_ref()
        .and_then(|registry| registry.get(&device.uid)?.upgrade())
        .filter(|recorder| recorder.here())
        .ok_or_else(|| not_permitted("nothing records the device in this process"))?;
    outside()?;
    let books: Vec<_> = recorder.state.lock().encoder.books.iter().map(|(n, books)| (*n, books.clone())).collect();
    let figures: Vec<Line> = books
        .iter()
        .filter_map(|(number, books)| Some(Encoder::figures(*number, books, &crate::pool::stats(books.id).ok()?)))
        .collect();
    device.observe(None);
    if let Some(registry) = registry.as_mut() {
        registry.remove(&device.uid);
    }
    let now = recorder.now();
    let mut state = recorder.state.lock();
    for line in &figures {
        state.line(now, line);
    }
    state
        .finish(now, true)
        .map_err(|error| Error::new(Status::Io, format_args!("{}: {error}", recorder.path.display())))?;
    if state.encoder.stranger {
        return Err(not_permitted(
            "calls were under way on other threads when recording began: the trace is written, but does not replay",
        ));
    }
    Ok(())
}
