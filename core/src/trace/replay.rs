//! Replaying a trace on a model device of its own.
//!
//! A version-1 trace, and a version-2 trace replayed with other pools or without verifying, is a plain list of calls: the
//! device answers for itself. A version-2 trace that is verified is played with the answers it recorded (pages refused
//! and kept, progress, the out-of-memory callback), while an observer turns what the model does into lines and compares
//! them with the trace's, one by one, and the pools' figures after every call.

use super::at;
use super::encode::Encoder;
use super::line::{Line, Place};
use super::read::{Item, Record, Trace, read};
use crate::device::{self, ModelOptions};
use crate::error::{Error, Result, Status};
use crate::handle::{AllocationId, DeviceId, EventId, PoolId, StreamId};
use crate::order::{At, StreamRef};
use crate::pool::access::{self, AccessKind};
use crate::pool::addresses::{END_ADDRESS, FIRST_ADDRESS};
use crate::pool::caches::STREAMS;
use crate::pool::observer::{Event, Observer};
use crate::pool::state::{Device, Script};
use crate::pool::{self, AllocOptions, PoolConfig, Stats, spec};
use crate::stream::StreamFlags;
use crate::{event, report, stream};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// Events between two calls of the progress function, and between two readings of the clock in version 1.
const CHUNK: usize = 4096;
/// How deep out-of-memory callbacks may nest.
const MAX_DEPTH: usize = 16;

/// How to replay.
pub struct ReplayOptions<'a> {
    /// A pool specification to use in place of every pool of the trace. `None`: the trace's own; for version 1 the default
    /// preset.
    pub pools: Option<&'a str>,
    /// What each call to the device is taken to cost, nanoseconds.
    pub device_call_ns: u64,
    /// Version 2 without `pools`: answer as recorded, and compare.
    pub verify: bool,
    /// Told now and then how far it is: bytes of the file read, bytes of the file.
    pub progress: Option<&'a mut dyn FnMut(u64, u64)>,
}

impl Default for ReplayOptions<'_> {
    fn default() -> Self {
        ReplayOptions { pools: None, device_call_ns: 0, verify: true, progress: None }
    }
}

/// A pool of the trace as it stood at the end, or before it was destroyed.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolReplay {
    /// Its number in the trace; 1 in version 1.
    pub pool: u64,
    /// Its specification.
    pub spec: String,
    /// Its figures.
    pub stats: Stats,
    /// The figures of its entries.
    pub entries: Vec<Stats>,
    /// The report for people.
    pub text: String,
    /// The report for tools.
    pub json: String,
}

/// What a replay found. Bytes; peaks are over all pools together.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayReport {
    /// The file's name, without its folders.
    pub name: String,
    /// The trace's version.
    pub version: u32,
    /// Calls replayed.
    pub events: u64,
    /// Allocations that succeeded.
    pub allocs: u64,
    /// Frees.
    pub frees: u64,
    /// Allocations that failed.
    pub failures: u64,
    /// Streams, the legacy default stream only if the trace uses it.
    pub streams: u64,
    /// The most bytes requested by live allocations at one time.
    pub live_peak: u64,
    /// The most bytes requested by allocations that were live, or whose free had not executed.
    pub live_plus_pending_peak: u64,
    /// The most bytes used at one time.
    pub used_peak: u64,
    /// The most bytes of pages held at one time. Where several pools are not verified: seen after each call.
    pub reserved_peak: u64,
    /// The most pages held at one time, likewise.
    pub pages_peak: u64,
    /// Calls to the device.
    pub device_calls: u64,
    /// Nanoseconds inside the calls, with `device_call_ns` for each call to the device.
    pub elapsed_ns: u64,
    /// The same per event.
    pub ns_per_event: f64,
    /// Every recorded answer was compared, and all agreed.
    pub verified: bool,
    /// Pools in the order of their numbers.
    pub pools: Vec<PoolReplay>,
}

/// Replays a trace of either version.
///
/// # Errors
/// [`Status::Io`]; [`Status::TraceSyntax`] and [`Status::ReplayMismatch`] naming file and line; [`Status::SpecSyntax`] and
/// [`Status::InvalidConfig`] for `options.pools`, and [`Status::NotSupported`] where they need a CUDA device.
pub fn replay(path: impl AsRef<Path>, options: ReplayOptions<'_>) -> Result<ReplayReport> {
    Replayer::open(path, options)?.run()
}

/// A replay about to begin: the trace is open, its header read, the pools understood.
pub struct Replayer<'a> {
    trace: Trace,
    options: ReplayOptions<'a>,
    pools: Option<PoolConfig>,
    name: String,
}

impl<'a> Replayer<'a> {
    /// Opens the trace.
    ///
    /// # Errors
    /// As [`replay`], as far as the header goes.
    pub fn open(path: impl AsRef<Path>, options: ReplayOptions<'a>) -> Result<Self> {
        let path = path.as_ref();
        let pools = options.pools.map(spec::parse).transpose()?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Ok(Replayer { trace: read(path)?, options, pools, name })
    }

    /// The trace that will be played.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Plays it to the end.
    ///
    /// # Errors
    /// As [`replay`].
    pub fn run(self) -> Result<ReplayReport> {
        let Replayer { mut trace, mut options, pools, name } = self;
        let mut report = ReplayReport {
            name,
            version: trace.version(),
            events: 0,
            allocs: 0,
            frees: 0,
            failures: 0,
            streams: 0,
            live_peak: 0,
            live_plus_pending_peak: 0,
            used_peak: 0,
            reserved_peak: 0,
            pages_peak: 0,
            device_calls: 0,
            elapsed_ns: 0,
            ns_per_event: 0.0,
            verified: false,
            pools: Vec::new(),
        };
        if trace.version() == 1 {
            version_1(&mut trace, &mut options, pools, &mut report)?;
        } else {
            version_2(trace, &mut options, pools, &mut report)?;
        }
        report.device_calls = report.pools.iter().map(|pool| pool.stats.device_calls).sum();
        report.elapsed_ns =
            report.elapsed_ns.saturating_add(report.device_calls.saturating_mul(options.device_call_ns));
        report.ns_per_event = if report.events == 0 { 0.0 } else { report.elapsed_ns as f64 / report.events as f64 };
        Ok(report)
    }
}

fn pool_replay(number: u64, id: PoolId) -> Result<PoolReplay> {
    Ok(PoolReplay {
        pool: number,
        spec: spec::format(&pool::config(id)?),
        stats: pool::stats(id)?,
        entries: (0..pool::entry_count(id)?).map(|entry| pool::entry_stats(id, entry)).collect::<Result<_>>()?,
        text: report::text(id)?,
        json: report::json(id)?,
    })
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// The device of a replay and what was made on it; all of it goes when the replay ends, however it ends.
struct Stage {
    device: DeviceId,
    inner: Arc<Device>,
    pools: BTreeMap<u64, PoolId>,
    events: BTreeMap<u64, EventId>,
    /// `None`: failed here, so what the trace does with it is passed over.
    allocations: BTreeMap<u64, Option<(AllocationId, u64)>>,
    /// Version 1 keeps its own list.
    plain: Vec<AllocationId>,
    observed: bool,
}

impl Stage {
    fn new(options: &ModelOptions) -> Result<Self> {
        let device = device::open_model(options)?;
        let inner = crate::runtime::resolve_device(device)?;
        Ok(Stage {
            device,
            inner,
            pools: BTreeMap::new(),
            events: BTreeMap::new(),
            allocations: BTreeMap::new(),
            plain: Vec::new(),
            observed: false,
        })
    }
}

impl Drop for Stage {
    /// Errors have no one to go to: the handles are this replay's own.
    fn drop(&mut self) {
        if self.observed {
            self.inner.observe(None);
        }
        // Whatever the trace told the device to refuse, it takes everything back now.
        if let Some(model) = self.inner.source.model() {
            model.refuse_pages(0, 0);
            model.refuse_ranges(false);
            model.refuse_releases(0);
        }
        let live = self.allocations.values().flatten().map(|&(id, _)| id);
        for id in live.chain(self.plain.iter().copied().filter(|id| id.0 != 0)) {
            let _ = pool::free(id);
        }
        let _ = device::synchronize(self.device);
        for &id in self.pools.values() {
            let _ = pool::destroy(id);
        }
        for &id in self.events.values() {
            let _ = event::destroy(id);
        }
        let _ = device::close(self.device);
    }
}

// ---- version 1 -------------------------------------------------------------------------------------------------------

#[derive(Clone, Copy)]
struct Op {
    alloc: bool,
    /// Place in the table of handles.
    slot: u32,
    size: u64,
    stream: StreamId,
    done: bool,
}

/// A pool that cannot be, with the specification that the caller asked for, if any.
fn named(asked: Option<&str>, error: Error) -> Error {
    match asked {
        None => error,
        Some(asked) => Error { message: format!("{asked}: {error}"), ..error },
    }
}

fn version_1(
    trace: &mut Trace,
    options: &mut ReplayOptions<'_>,
    config: Option<PoolConfig>,
    report: &mut ReplayReport,
) -> Result<()> {
    let mut stage = Stage::new(&ModelOptions::default())?;
    let pool = pool::create(stage.device, &config.unwrap_or_default()).map_err(|error| named(options.pools, error))?;
    stage.pools.insert(1, pool);
    let mut streams: BTreeMap<u64, StreamId> = BTreeMap::new();
    let mut slots: BTreeMap<u64, u32> = BTreeMap::new();
    let mut spare: Vec<u32> = Vec::new();
    let mut chunk: Vec<Op> = Vec::with_capacity(CHUNK);
    let mut live = 0u64;
    let mut ended = false;
    while !ended {
        chunk.clear();
        while chunk.len() < CHUNK {
            let Some(record) = trace.next() else {
                ended = true;
                break;
            };
            let record = record?;
            let (alloc, id, size, number) = match record.item {
                Item::Requested { id, size, stream } => (true, id, size, stream),
                Item::Returned { id, size, stream } => (false, id, size, stream),
                Item::Line(_) => continue,
            };
            let stream = match streams.get(&number) {
                Some(&stream) => stream,
                None => {
                    let stream = stream::create(stage.device, StreamFlags::default())?;
                    streams.insert(number, stream);
                    stream
                }
            };
            let slot = if alloc {
                let slot = spare.pop().unwrap_or_else(|| {
                    stage.plain.push(AllocationId(0));
                    (stage.plain.len() - 1) as u32
                });
                slots.insert(id, slot);
                slot
            } else {
                let slot = slots.remove(&id).ok_or_else(|| {
                    at(Status::Internal, trace.name(), record.line, "a free the reader should have refused")
                })?;
                spare.push(slot);
                slot
            };
            chunk.push(Op { alloc, slot, size, stream, done: false });
        }
        let began = Instant::now();
        for op in &mut chunk {
            let handle = &mut stage.plain[op.slot as usize];
            if op.alloc {
                if let Ok(id) = pool::alloc_async(pool, op.size, op.stream) {
                    *handle = id;
                    op.done = true;
                }
            } else if handle.0 != 0 {
                op.done = pool::free_async(*handle, op.stream).is_ok();
                *handle = AllocationId(0);
            }
        }
        report.elapsed_ns += nanoseconds(began);
        for op in &chunk {
            match (op.alloc, op.done) {
                (true, true) => {
                    report.allocs += 1;
                    live = live.saturating_add(op.size);
                    report.live_peak = report.live_peak.max(live);
                }
                (true, false) => report.failures += 1,
                (false, true) => {
                    report.frees += 1;
                    live -= op.size.min(live);
                }
                (false, false) => {}
            }
        }
        report.events += chunk.len() as u64;
        if let Some(progress) = &mut options.progress {
            let (done, total) = trace.progress();
            progress(done, total);
        }
    }
    // Every stream runs at once, so no free is ever pending.
    report.live_plus_pending_peak = report.live_peak;
    report.streams = streams.len() as u64;
    let end = pool_replay(1, pool)?;
    report.used_peak = end.stats.used_high;
    report.reserved_peak = end.stats.reserved_high;
    report.pages_peak = end.stats.pages_high;
    report.pools.push(end);
    Ok(())
}

// ---- version 2: reading calls ----------------------------------------------------------------------------------------

/// A call with all that followed inside it.
struct Call {
    at: u64,
    line: Line,
    inner: Vec<Inner>,
    /// `got` or `fail`, of an allocation.
    end: Option<(u64, Line)>,
}

enum Inner {
    Answer(u64, Line),
    Callback { begin: (u64, Line), calls: Vec<Call>, end: (u64, Line), retry: bool },
}

struct Calls {
    trace: Trace,
    name: String,
    last: u64,
    ahead: Option<Result<Option<(u64, Line)>>>,
}

impl Calls {
    fn pull(&mut self) -> Result<Option<(u64, Line)>> {
        match self.trace.next().transpose()? {
            None => Ok(None),
            Some(Record { line, item: Item::Line(what), .. }) => Ok(Some((line, what))),
            Some(Record { line, .. }) => Err(at(Status::Internal, &self.name, line, "a line of version 1")),
        }
    }

    fn next_line(&mut self) -> Result<Option<(u64, Line)>> {
        let next = match self.ahead.take() {
            Some(ahead) => ahead,
            None => self.pull(),
        };
        if let Ok(Some((line, _))) = &next {
            self.last = *line;
        }
        next
    }

    /// What comes next, without taking it; errors wait for `next_line`.
    fn peek(&mut self) -> Option<&Line> {
        if self.ahead.is_none() {
            self.ahead = Some(self.pull());
        }
        match &self.ahead {
            Some(Ok(Some((_, line)))) => Some(line),
            _ => None,
        }
    }

    /// The next call.
    fn next_call(&mut self, depth: usize) -> Result<Option<Call>> {
        let Some((line_number, line)) = self.next_line()? else { return Ok(None) };
        self.call(line_number, line, depth).map(Some)
    }

    fn call(&mut self, number: u64, line: Line, depth: usize) -> Result<Call> {
        let wrong = |name: &str, line: u64, what: &str| Err(at(Status::TraceSyntax, name, line, what));
        let mut call = Call { at: number, line, inner: Vec::new(), end: None };
        match call.line {
            Line::Alloc { .. } => {}
            Line::Got { .. } | Line::Fail { .. } | Line::Callback { .. } => {
                return wrong(&self.name, number, "this belongs into an allocation, and there is none before it");
            }
            Line::CallbackEnd { .. } => {
                return wrong(&self.name, number, "a callback ends that has not begun");
            }
            ref answer if answer.is_answer() => {
                return wrong(&self.name, number, "an answer to no call");
            }
            // The calls that may ask the device or give pages back.
            Line::Stream { .. }
            | Line::Free { .. }
            | Line::Sync { .. }
            | Line::SyncEvent { .. }
            | Line::SyncDevice
            | Line::Trim { .. }
            | Line::PoolDestroy { .. } => {
                while self.peek().is_some_and(Line::is_answer) {
                    if let Some((number, line)) = self.next_line()? {
                        call.inner.push(Inner::Answer(number, line));
                    }
                }
                return Ok(call);
            }
            _ => return Ok(call),
        }
        loop {
            let Some((number, line)) = self.next_line()? else {
                return wrong(&self.name, self.last, "the trace ends inside an allocation");
            };
            match line {
                Line::Got { .. } | Line::Fail { .. } => {
                    call.end = Some((number, line));
                    return Ok(call);
                }
                Line::Callback { .. } if depth >= MAX_DEPTH => {
                    return wrong(&self.name, number, "callbacks are nested too deep");
                }
                Line::Callback { .. } => {
                    let begin = (number, line);
                    let mut calls = Vec::new();
                    loop {
                        match self.next_line()? {
                            None => return wrong(&self.name, self.last, "the trace ends inside a callback"),
                            Some((number, line @ Line::CallbackEnd { retry, .. })) => {
                                call.inner.push(Inner::Callback { begin, calls, end: (number, line), retry });
                                break;
                            }
                            Some((number, line)) => calls.push(self.call(number, line, depth + 1)?),
                        }
                    }
                }
                line if line.is_answer() => call.inner.push(Inner::Answer(number, line)),
                Line::End { .. } => return wrong(&self.name, number, "the trace ends inside an allocation"),
                _ => return wrong(&self.name, number, "an allocation must end with got or fail before the next call"),
            }
        }
    }
}

/// The lines of a call in the order of the file, nested ones included.
fn flatten(call: &Call, out: &mut VecDeque<(u64, Line)>) {
    out.push_back((call.at, call.line.clone()));
    for inner in &call.inner {
        match inner {
            Inner::Answer(number, line) => out.push_back((*number, line.clone())),
            Inner::Callback { begin, calls, end, .. } => {
                out.push_back(begin.clone());
                calls.iter().for_each(|call| flatten(call, out));
                out.push_back(end.clone());
            }
        }
    }
    out.extend(call.end.clone());
}

// ---- version 2: comparing --------------------------------------------------------------------------------------------

/// How the device answered a request. Addresses that it gave are not in a trace: pages in them follow.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Page,
    PageRefused,
    RangeRefused,
}

/// What the observer of a verified replay keeps.
struct Check {
    encoder: Encoder,
    expected: VecDeque<(u64, Line)>,
    /// The first difference: line, and what it is.
    mismatch: Option<(u64, String)>,
    /// How the device is to answer each request of the call, and whether each release is to be refused.
    pages: VecDeque<Answer>,
    releases: VecDeque<bool>,
    /// Notes are set up: nothing to compare.
    notes: bool,
    /// Line of the call.
    at: u64,
    spent_ns: u64,
}

struct Checker {
    device: Arc<Device>,
    check: Mutex<Check>,
}

impl Checker {
    /// A call begins: these are its lines.
    fn expect(&self, call: &Call) {
        let mut check = self.check.lock();
        check.at = call.at;
        check.expected.clear();
        flatten(call, &mut check.expected);
        let Check { expected, pages, releases, .. } = &mut *check;
        pages.clear();
        releases.clear();
        for (_, line) in expected.iter() {
            match line {
                Line::Page { .. } => pages.push_back(Answer::Page),
                Line::PageRefused { .. } => pages.push_back(Answer::PageRefused),
                Line::RangeRefused { .. } => pages.push_back(Answer::RangeRefused),
                Line::PageReleased { .. } => releases.push_back(false),
                Line::PageKept { .. } => releases.push_back(true),
                _ => {}
            }
        }
        self.arm(&check);
    }

    /// Tells the device how to answer next.
    fn arm(&self, check: &Check) {
        if let Some(model) = self.device.source.model() {
            let next = |answer| check.pages.front() == Some(&answer);
            model.refuse_pages(0, u64::from(next(Answer::PageRefused)));
            model.refuse_ranges(next(Answer::RangeRefused));
            model.refuse_releases(u64::from(check.releases.front() == Some(&true)));
        }
    }

    /// The call has returned: everything expected must have come.
    fn settle(&self) -> Option<(u64, String)> {
        let mut check = self.check.lock();
        if check.mismatch.is_none()
            && let Some((line, missing)) = check.expected.pop_front()
        {
            check.mismatch = Some((line, format!("recorded \"{missing}\", the model did not come to it")));
        }
        check.mismatch.clone()
    }
}

impl Observer for Checker {
    fn event(&self, event: &Event<'_>) {
        let began = Instant::now();
        let mut guard = self.check.lock();
        let check = &mut *guard;
        let mut lines: Vec<Line> = Vec::with_capacity(1);
        check.encoder.encode(event, &mut |line| lines.push(line));
        if !check.notes {
            for line in lines {
                match check.expected.pop_front() {
                    Some((_, expected)) if expected == line => {}
                    other if check.mismatch.is_none() => {
                        check.mismatch = Some(match other {
                            Some((at, expected)) => (at, format!("recorded \"{expected}\", the model did \"{line}\"")),
                            None => {
                                (check.at, format!("after this call the model did \"{line}\", which is not recorded"))
                            }
                        });
                    }
                    _ => {}
                }
            }
        }
        match event {
            Event::PageGranted { .. } | Event::PageRefused { .. } | Event::RangeRefused { .. } => {
                check.pages.pop_front();
                self.arm(check);
            }
            Event::PageReleased { .. } => {
                check.releases.pop_front();
                self.arm(check);
            }
            // The stream went on during the call: the next answer is the one that follows.
            &Event::ProgressAnswer { stream, .. } if self.device.order.opaque => {
                let number = check.encoder.stream(stream.0);
                let next = check.expected.iter().find_map(|(_, line)| match line {
                    Line::Progress { stream, executed } if *stream == number => Some(*executed),
                    _ => None,
                });
                let streams = self.device.order.streams.lock();
                if let Some(next) = next
                    && let Some(own) = streams.iter().find(|own| own.id() == stream)
                {
                    STREAMS.at(own.slot()).execute(next);
                }
            }
            _ => {}
        }
        check.spent_ns += nanoseconds(began);
    }
}

// ---- version 2: playing ----------------------------------------------------------------------------------------------

/// A free that has not executed.
struct Unexecuted {
    points: Vec<At>,
    bytes: u64,
}

struct World {
    stage: Stage,
    streams: BTreeMap<u64, (StreamId, StreamRef)>,
    report: ReplayReport,
    live: u64,
    unexecuted: Vec<Unexecuted>,
    unexecuted_bytes: u64,
    /// Pools there before recording began.
    noted: Vec<u64>,
    /// Time to leave out of the call under way: callbacks.
    aside_ns: u64,
    failed: Option<Error>,
}

struct Engine {
    name: String,
    device: DeviceId,
    inner: Arc<Device>,
    /// What the caller asked for, and how it was written.
    pools: Option<(PoolConfig, String)>,
    checker: Option<Arc<Checker>>,
    /// recorded address − address here.
    shift: u64,
    world: Mutex<World>,
}

fn version_2(
    trace: Trace,
    options: &mut ReplayOptions<'_>,
    pools: Option<PoolConfig>,
    report: &mut ReplayReport,
) -> Result<()> {
    let name = trace.name().to_owned();
    let header = trace
        .header()
        .cloned()
        .ok_or_else(|| at(Status::TraceSyntax, &name, 2, "the line that describes the device is missing"))?;
    let verify = options.verify && pools.is_none();
    let model = ModelOptions {
        alignment: header.alignment,
        page_granularity: header.granularity,
        // Verified, the pages that are refused are those the trace says.
        capacity: if verify { u64::MAX } else { header.capacity },
        lazy: header.lazy,
        host_backing: false,
        opaque: header.opaque,
        context_events: header.context_events,
        ..ModelOptions::default()
    };
    let mut stage = Stage::new(&model).map_err(|error| match error.status {
        Status::InvalidValue => at(Status::TraceSyntax, &name, 2, error),
        // Not the trace's fault.
        _ => error,
    })?;
    let shift = header.base.wrapping_sub(FIRST_ADDRESS);
    let (device, inner) = (stage.device, stage.inner.clone());
    let checker = verify.then(|| {
        Arc::new(Checker {
            device: inner.clone(),
            check: Mutex::new(Check {
                encoder: Encoder::new(shift),
                expected: VecDeque::new(),
                mismatch: None,
                pages: VecDeque::new(),
                releases: VecDeque::new(),
                notes: false,
                at: 0,
                spent_ns: 0,
            }),
        })
    });
    if let Some(checker) = &checker {
        device::install_observer(device, checker.clone())?;
        stage.observed = true;
    }
    let legacy = inner.order.legacy;
    let engine = Arc::new(Engine {
        name: name.clone(),
        device,
        inner,
        pools: pools.zip(options.pools.map(str::to_owned)),
        checker,
        shift,
        world: Mutex::new(World {
            stage,
            streams: BTreeMap::from([(0, (StreamId(0), legacy))]),
            report: report.clone(),
            live: 0,
            unexecuted: Vec::new(),
            unexecuted_bytes: 0,
            noted: Vec::new(),
            aside_ns: 0,
            failed: None,
        }),
    });
    let mut calls = Calls { trace, name, last: 0, ahead: None };
    let mut count = 0usize;
    let mut legacy_used = false;
    while let Some(call) = calls.next_call(0)? {
        legacy_used |= uses_legacy(&call.line);
        count += 1;
        engine.top(call)?;
        if count.is_multiple_of(CHUNK)
            && let Some(progress) = &mut options.progress
        {
            let (done, total) = calls.trace.progress();
            progress(done, total);
        }
    }
    let mut world = engine.world.lock();
    let open: Vec<(u64, PoolId)> = world.stage.pools.iter().map(|(number, id)| (*number, *id)).collect();
    for (number, id) in open {
        let end = pool_replay(number, id)?;
        world.mark(&end.stats);
        world.report.pools.push(end);
    }
    world.report.pools.sort_by_key(|pool| pool.pool);
    world.report.streams = world.streams.len() as u64 - u64::from(!legacy_used);
    if let Some(checker) = &engine.checker {
        let check = checker.check.lock();
        world.report.used_peak = check.encoder.used_peak;
        world.report.reserved_peak = check.encoder.reserved_peak;
        world.report.pages_peak = check.encoder.pages_peak;
        world.report.verified = true;
    }
    *report = world.report.clone();
    if let Some(progress) = &mut options.progress {
        let (_, total) = calls.trace.progress();
        progress(total, total);
    }
    Ok(())
}

fn uses_legacy(line: &Line) -> bool {
    match *line {
        Line::NoteStream { stream, .. }
        | Line::Record { stream, .. }
        | Line::Wait { stream, .. }
        | Line::Submit { stream, .. }
        | Line::Advance { stream, .. }
        | Line::Sync { stream }
        | Line::User { stream, .. }
        | Line::Access { stream, .. } => stream == 0,
        Line::Alloc { stream, .. } | Line::Free { stream, .. } => stream == Some(0),
        _ => false,
    }
}

impl World {
    /// A pool's own marks are peaks at least.
    fn mark(&mut self, stats: &Stats) {
        self.report.used_peak = self.report.used_peak.max(stats.used_high);
        self.report.reserved_peak = self.report.reserved_peak.max(stats.reserved_high);
        self.report.pages_peak = self.report.pages_peak.max(stats.pages_high);
    }

    /// A free was made that has to wait for `points`.
    fn freed(&mut self, inner: &Device, mut points: Vec<At>, bytes: u64) {
        points.retain(|&point| !inner.order.done(&STREAMS, point));
        if !points.is_empty() {
            self.unexecuted_bytes = self.unexecuted_bytes.saturating_add(bytes);
            self.unexecuted.push(Unexecuted { points, bytes });
        }
    }

    /// Looks again at the frees that had not executed.
    fn ran(&mut self, inner: &Device) {
        let mut bytes = 0;
        self.unexecuted.retain_mut(|free| {
            free.points.retain(|&point| !inner.order.done(&STREAMS, point));
            bytes += if free.points.is_empty() { free.bytes } else { 0 };
            !free.points.is_empty()
        });
        self.unexecuted_bytes = self.unexecuted_bytes.saturating_sub(bytes);
    }
}

fn submitted(stream: StreamRef) -> At {
    At { stream, seq: STREAMS.at(stream.slot()).state.lock().submitted }
}

impl Engine {
    fn syntax(&self, line: u64, what: impl std::fmt::Display) -> Error {
        at(Status::TraceSyntax, &self.name, line, what)
    }

    fn stream(&self, line: u64, number: u64) -> Result<(StreamId, StreamRef)> {
        let known = self.world.lock().streams.get(&number).copied();
        known.ok_or_else(|| self.syntax(line, format_args!("stream {number} is not known")))
    }

    fn pool(&self, line: u64, number: u64) -> Result<PoolId> {
        let known = self.world.lock().stage.pools.get(&number).copied();
        known.ok_or_else(|| self.syntax(line, format_args!("pool {number} is not known")))
    }

    fn event(&self, line: u64, number: u64) -> Result<EventId> {
        let known = self.world.lock().stage.events.get(&number).copied();
        known.ok_or_else(|| self.syntax(line, format_args!("event {number} is not known")))
    }

    /// `None`: the allocation failed here.
    fn allocation(&self, line: u64, number: u64) -> Result<Option<(AllocationId, u64)>> {
        let known = self.world.lock().stage.allocations.get(&number).copied();
        known.ok_or_else(|| self.syntax(line, format_args!("allocation {number} is not live")))
    }

    fn spent(&self) -> u64 {
        self.checker.as_ref().map_or(0, |checker| checker.check.lock().spent_ns)
    }

    /// Makes a call of the core and takes its time, without the checker's and the callbacks'.
    fn timed<T>(&self, call: impl FnOnce() -> T) -> T {
        let saved = std::mem::take(&mut self.world.lock().aside_ns);
        let spent = self.spent();
        let began = Instant::now();
        let result = call();
        let wall = nanoseconds(began);
        let spent = self.spent() - spent;
        let mut world = self.world.lock();
        let aside = std::mem::replace(&mut world.aside_ns, saved);
        world.report.elapsed_ns += wall.saturating_sub(spent).saturating_sub(aside);
        result
    }

    /// One call of the trace's outermost level, closing lines and notes included.
    fn top(self: &Arc<Self>, call: Call) -> Result<()> {
        match &call.line {
            Line::End { .. } => return Ok(()),
            Line::Figures { pool, values } => return self.figures(call.at, *pool, values),
            Line::NoteStream { .. } | Line::NotePool { .. } | Line::NoteUsed { .. } => return self.note(&call),
            _ => {}
        }
        let number = call.at;
        if let Some(checker) = &self.checker {
            checker.expect(&call);
            if self.inner.order.opaque {
                self.set_script(checker);
            } else {
                self.catch_up(checker);
            }
        }
        let done = self.perform(call);
        let failed = self.world.lock().failed.take();
        if let Some(checker) = &self.checker
            && let Some((line, what)) = checker.settle()
        {
            let why = match (&done, &failed) {
                (Err(error), _) | (_, Some(error)) => format!("{what} ({error})"),
                _ => what,
            };
            return Err(at(Status::ReplayMismatch, &self.name, line, why));
        }
        done?;
        if let Some(error) = failed {
            return Err(error);
        }
        self.compare_figures(number)
    }

    /// Streams that run on their own elsewhere are lazy here: they are run as far as the first answer says they were, unless
    /// that follows a callback, whose own calls may have run them.
    fn catch_up(&self, checker: &Checker) {
        let answers: Vec<(u64, u64)> = checker
            .check
            .lock()
            .expected
            .iter()
            .take_while(|(_, line)| !matches!(line, Line::Callback { .. }))
            .filter_map(|(_, line)| match line {
                Line::Progress { stream, executed } => Some((*stream, *executed)),
                _ => None,
            })
            .collect();
        let mut asked: Vec<u64> = Vec::new();
        for (number, executed) in answers {
            if asked.contains(&number) {
                continue;
            }
            asked.push(number);
            let Some((_, stream)) = self.world.lock().streams.get(&number).copied() else { continue };
            let record = STREAMS.at(stream.slot());
            let lazy = record.is(self.inner.uid, stream) && record.state.lock().lazy;
            if lazy && record.executed() < executed {
                self.inner.order.advance(&STREAMS, stream, executed - record.executed());
            }
        }
    }

    /// On an opaque device every answer is given again as it was recorded.
    fn set_script(&self, checker: &Checker) {
        let check = checker.check.lock();
        let world = self.world.lock();
        let mut script = Script::default();
        for (_, line) in &check.expected {
            let (answers, number, answer) = match line {
                Line::Progress { stream, executed } => (&mut script.progress, stream, executed),
                Line::Waitable { stream, upto } => (&mut script.waitable, stream, upto),
                _ => continue,
            };
            if let Some((_, stream)) = world.streams.get(number) {
                answers.push_back((*stream, *answer));
            }
        }
        *self.inner.script.lock() = script;
    }

    /// After a verified call, each pool's figures are those that follow from the trace's lines.
    fn compare_figures(&self, line: u64) -> Result<()> {
        let Some(checker) = &self.checker else { return Ok(()) };
        let check = checker.check.lock();
        for (number, books) in &check.encoder.books {
            for (name, attribute, expected) in [("reserved", 5, books.reserved), ("used", 7, books.used)] {
                let found = pool::get_attribute(books.id, attribute)?;
                if found != expected {
                    let what = format!("pool {number}: {name} is {found}, by the trace's lines {expected}");
                    return Err(at(Status::ReplayMismatch, &self.name, line, what));
                }
            }
        }
        Ok(())
    }

    fn figures(&self, line: u64, number: u64, values: &[(String, u64)]) -> Result<()> {
        let id = self.pool(line, number)?;
        let Some(checker) = &self.checker else { return Ok(()) };
        let check = checker.check.lock();
        let Some(books) = check.encoder.books.get(&number) else { return Ok(()) };
        let Line::Figures { values: found, .. } = Encoder::figures(number, books, &pool::stats(id)?) else {
            return Ok(());
        };
        for (key, value) in values {
            let here = found.iter().find(|figure| figure.0 == *key).map(|figure| figure.1);
            if here != Some(*value) {
                let here = here.map_or_else(|| "not known".to_owned(), |value| value.to_string());
                let what = format!("pool {number}: {key} was recorded as {value}, here it is {here}");
                return Err(at(Status::ReplayMismatch, &self.name, line, what));
            }
        }
        Ok(())
    }

    /// Sets up what was there before recording began.
    fn note(&self, call: &Call) -> Result<()> {
        if let Some(checker) = &self.checker {
            checker.check.lock().notes = true;
        }
        match &call.line {
            Line::NoteStream { stream, non_blocking, lazy, submitted } => {
                if *submitted > 1 << 48 {
                    return Err(self.syntax(call.at, "more than 2^48 operations submitted"));
                }
                if *stream != 0 {
                    self.add_stream(call.at, *stream, *non_blocking, *lazy)?;
                }
                let (id, _) = self.stream(call.at, *stream)?;
                let mut left = *submitted;
                while left > 0 {
                    let count = left.min(1 << 32);
                    stream::submit(self.device, id, count)?;
                    left -= count;
                }
                stream::synchronize(self.device, id)?;
            }
            Line::NotePool { pool, spec } => {
                self.add_pool(call.at, *pool, spec)?;
                self.world.lock().noted.push(*pool);
                if let Some(checker) = &self.checker
                    && let Some(books) = checker.check.lock().encoder.books.get_mut(pool)
                {
                    books.before = Some(Stats::default());
                }
            }
            // Other pools have other entries.
            Line::NoteUsed { pool, entry, bytes } if self.pools.is_none() => {
                let id = self.pool(call.at, *pool)?;
                pool::note_used(id, *entry as usize, *bytes).map_err(|error| self.syntax(call.at, error))?;
            }
            _ => {}
        }
        if let Some(checker) = &self.checker {
            checker.check.lock().notes = false;
        }
        Ok(())
    }

    fn add_stream(&self, line: u64, number: u64, non_blocking: bool, lazy: bool) -> Result<()> {
        if self.world.lock().streams.contains_key(&number) {
            return Err(self.syntax(line, format_args!("stream {number} is there already")));
        }
        let id = self.timed(|| stream::create(self.device, StreamFlags { non_blocking, lazy: Some(lazy) }))?;
        let stream = crate::runtime::resolve_stream(&self.inner, id)?;
        self.world.lock().streams.insert(number, (id, stream));
        Ok(())
    }

    fn add_pool(&self, line: u64, number: u64, spec: &str) -> Result<()> {
        if self.world.lock().stage.pools.contains_key(&number) {
            return Err(self.syntax(line, format_args!("pool {number} is there already")));
        }
        let id = match &self.pools {
            Some((config, asked)) => {
                self.timed(|| pool::create(self.device, config)).map_err(|error| named(Some(asked), error))?
            }
            None => {
                let config = spec::parse(spec).map_err(|error| self.syntax(line, error))?;
                self.timed(|| pool::create(self.device, &config)).map_err(|error| self.syntax(line, error))?
            }
        };
        self.world.lock().stage.pools.insert(number, id);
        Ok(())
    }

    /// One call, at whatever depth.
    fn perform(self: &Arc<Self>, call: Call) -> Result<()> {
        let number = call.at;
        self.world.lock().report.events += 1;
        let runs_nothing = matches!(call.line, Line::Alloc { .. } | Line::Free { .. } | Line::User { .. });
        let text = if runs_nothing { String::new() } else { call.line.to_string() };
        let asked = self.pools.is_some() && matches!(call.line, Line::Pool { .. });
        let outcome = if matches!(call.line, Line::Alloc { .. }) { self.allocate(call) } else { self.plain(&call) };
        outcome.map_err(|error| match error.status {
            // What these say is complete: a fault of the trace, or of the caller's own pools.
            Status::TraceSyntax | Status::ReplayMismatch | Status::InvalidConfig => error,
            _ if asked => error,
            _ => at(Status::ReplayMismatch, &self.name, number, format_args!("{text}: {error}")),
        })?;
        let mut guard = self.world.lock();
        let world = &mut *guard;
        if !runs_nothing && !world.unexecuted.is_empty() {
            world.ran(&self.inner);
        }
        let held = world.live.saturating_add(world.unexecuted_bytes);
        let pages = self.inner.page_allocs.load(Relaxed).saturating_sub(self.inner.page_frees.load(Relaxed));
        let used = match &self.checker {
            Some(_) => 0,
            None => world
                .stage
                .pools
                .values()
                .fold(0u64, |sum, &id| sum.saturating_add(pool::get_attribute(id, 7).unwrap_or(0))),
        };
        let report = &mut world.report;
        report.live_peak = report.live_peak.max(world.live);
        report.live_plus_pending_peak = report.live_plus_pending_peak.max(held);
        report.reserved_peak = report.reserved_peak.max(self.inner.reserved.load(Relaxed));
        report.pages_peak = report.pages_peak.max(pages);
        report.used_peak = report.used_peak.max(used);
        Ok(())
    }

    fn allocate(self: &Arc<Self>, call: Call) -> Result<()> {
        let Line::Alloc { pool, size, alignment, stream, name } = &call.line else { return Ok(()) };
        let (pool_number, size) = (*pool, *size);
        let pool = self.pool(call.at, pool_number)?;
        let stream = stream.map(|number| self.stream(call.at, number)).transpose()?;
        let mut callbacks: VecDeque<(Vec<Call>, bool)> = VecDeque::new();
        for inner in call.inner {
            if let Inner::Callback { calls, retry, .. } = inner {
                callbacks.push_back((calls, retry));
            }
        }
        let any = !callbacks.is_empty();
        let callbacks = Arc::new(Mutex::new(callbacks));
        if any {
            let (engine, callbacks) = (self.clone(), callbacks.clone());
            let answer = move |_: &pool::OutOfMemory| {
                let next = callbacks.lock().pop_front();
                let Some((calls, retry)) = next else { return false };
                let (began, spent) = (Instant::now(), engine.spent());
                engine.perform_all(calls);
                let wall = nanoseconds(began);
                let spent = engine.spent() - spent;
                engine.world.lock().aside_ns += wall.saturating_sub(spent);
                retry
            };
            pool::set_out_of_memory_callback(pool, Some(Arc::new(answer)))?;
        }
        let options = AllocOptions { alignment: *alignment, name: name.as_deref() };
        let result = self.timed(|| match stream {
            Some((stream, _)) if options.alignment == 0 && options.name.is_none() => {
                pool::alloc_async(pool, size, stream)
            }
            Some((stream, _)) => pool::alloc_async_with(pool, size, stream, &options),
            None => pool::alloc(pool, size, &options),
        });
        if any {
            // The pool may have been destroyed inside its callback.
            let _ = pool::set_out_of_memory_callback(pool, None);
            // With other pools the callback may not have been called: what the program did in it, it does now.
            let left = std::mem::take(&mut *callbacks.lock());
            for (calls, _) in left {
                self.perform_all(calls);
            }
        }
        let recorded = match &call.end {
            Some((line, Line::Got { allocation, .. })) => Some((*line, *allocation)),
            _ => None,
        };
        let mut world = self.world.lock();
        if let Some((line, allocation)) = recorded
            && world.stage.allocations.contains_key(&allocation)
        {
            if let Ok(id) = result {
                world.stage.plain.push(id);
            }
            return Err(self.syntax(line, format_args!("allocation {allocation} is there already")));
        }
        match (result, recorded) {
            (Ok(id), Some((_, allocation))) => {
                world.stage.allocations.insert(allocation, Some((id, size)));
                world.report.allocs += 1;
                world.live = world.live.saturating_add(size);
            }
            (Ok(id), None) if self.checker.is_none() => {
                // The program had nothing to free.
                world.report.allocs += 1;
                world.report.frees += 1;
                drop(world);
                match stream {
                    Some((stream, _)) => pool::free_async(id, stream)?,
                    None => pool::free(id)?,
                }
            }
            // The checker has seen the difference.
            (Ok(id), None) => world.stage.plain.push(id),
            (Err(_), recorded) => {
                world.report.failures += 1;
                if let Some((_, allocation)) = recorded {
                    world.stage.allocations.insert(allocation, None);
                }
            }
        }
        Ok(())
    }

    /// Calls inside a callback; a failure is kept for the outermost call.
    fn perform_all(self: &Arc<Self>, calls: Vec<Call>) {
        for call in calls {
            if let Err(error) = self.perform(call) {
                self.world.lock().failed.get_or_insert(error);
                return;
            }
        }
    }

    fn free(&self, line: u64, number: u64, stream: Option<u64>, observed: bool) -> Result<()> {
        let stream = stream.map(|number| self.stream(line, number)).transpose()?;
        let known = self.allocation(line, number)?;
        self.world.lock().stage.allocations.remove(&number);
        let Some((id, size)) = known else { return Ok(()) };
        self.timed(|| match stream {
            Some((stream, _)) => pool::free_async(id, stream),
            None if observed => pool::free_observed(id),
            None => pool::free(id),
        })
        .inspect_err(|_| self.world.lock().stage.plain.push(id))?;
        let points = match stream {
            Some((_, stream)) => vec![submitted(stream)],
            None if observed => Vec::new(),
            None => {
                let streams: Vec<StreamRef> = self.inner.order.streams.lock().iter().copied().collect();
                streams.into_iter().map(submitted).collect()
            }
        };
        let mut world = self.world.lock();
        world.report.frees += 1;
        world.live = world.live.saturating_sub(size);
        world.freed(&self.inner, points, size);
        Ok(())
    }

    fn plain(&self, call: &Call) -> Result<()> {
        let (at_line, device) = (call.at, self.device);
        match &call.line {
            Line::Stream { stream, non_blocking, lazy } => self.add_stream(at_line, *stream, *non_blocking, *lazy),
            Line::Timeline { stream } => {
                // Made by the host-ordered free that follows, had it not been asked for here.
                let own = crate::runtime::native::timeline(&self.inner)?;
                self.world.lock().streams.insert(*stream, (StreamId(0), own));
                Ok(())
            }
            Line::StreamRelease { stream } => {
                let (id, _) = self.stream(at_line, *stream)?;
                self.timed(|| stream::release(device, id))
            }
            Line::Event { event } => {
                if self.world.lock().stage.events.contains_key(event) {
                    return Err(self.syntax(at_line, format_args!("event {event} is there already")));
                }
                let id = self.timed(|| event::create(device))?;
                self.world.lock().stage.events.insert(*event, id);
                Ok(())
            }
            Line::EventDestroy { event } => {
                let id = self.event(at_line, *event)?;
                self.world.lock().stage.events.remove(event);
                self.timed(|| event::destroy(id))
            }
            Line::Record { event, stream, .. } => {
                let (id, (stream, _)) = (self.event(at_line, *event)?, self.stream(at_line, *stream)?);
                self.timed(|| event::record(device, id, stream)).map(drop)
            }
            Line::Wait { event, stream, .. } => {
                let (id, (stream, _)) = (self.event(at_line, *event)?, self.stream(at_line, *stream)?);
                self.timed(|| stream::wait_event(device, stream, id))
            }
            Line::Submit { stream, count } => {
                let (stream, _) = self.stream(at_line, *stream)?;
                self.timed(|| stream::submit(device, stream, *count)).map(drop)
            }
            Line::Advance { stream, count, .. } => {
                let (stream, _) = self.stream(at_line, *stream)?;
                self.timed(|| stream::advance(device, stream, *count)).map(drop)
            }
            Line::Sync { stream } => {
                let (stream, _) = self.stream(at_line, *stream)?;
                self.timed(|| stream::synchronize(device, stream))
            }
            Line::SyncEvent { event } => {
                let id = self.event(at_line, *event)?;
                self.timed(|| event::synchronize(id))
            }
            Line::SyncDevice => self.timed(|| device::synchronize(device)),
            Line::Pool { pool, spec } => self.add_pool(at_line, *pool, spec),
            Line::PoolDestroy { pool } => {
                let id = self.pool(at_line, *pool)?;
                let end = pool_replay(*pool, id)?;
                let mut world = self.world.lock();
                world.stage.pools.remove(pool);
                world.mark(&end.stats);
                world.report.pools.push(end);
                drop(world);
                self.timed(|| pool::destroy(id))
            }
            Line::Trim { pool, keep } => {
                let id = self.pool(at_line, *pool)?;
                self.timed(|| pool::trim_to(id, *keep))
            }
            Line::Attribute { pool, attribute, value } => {
                let id = self.pool(at_line, *pool)?;
                // Setting a mark forgets it.
                if matches!(attribute, 6 | 8) {
                    let stats = pool::stats(id)?;
                    self.world.lock().mark(&stats);
                }
                self.timed(|| pool::set_attribute(id, *attribute, *value))
            }
            Line::Capacity { bytes } => {
                device::set_capacity(device, *bytes)?;
                if self.checker.is_some()
                    && let Some(model) = self.inner.source.model()
                {
                    model.set_capacity(u64::MAX);
                }
                Ok(())
            }
            Line::RefusePages { skip, count } => device::refuse_pages(device, *skip, *count),
            Line::RefuseReleases { count } => device::refuse_releases(device, *count),
            Line::Free { allocation, stream, observed } => self.free(at_line, *allocation, *stream, *observed),
            Line::User { allocation, stream } => {
                let (stream, _) = self.stream(at_line, *stream)?;
                match self.allocation(at_line, *allocation)? {
                    Some((id, _)) => self.timed(|| pool::add_user(id, stream)),
                    None => Ok(()),
                }
            }
            Line::Access { place, size, stream, kind } => {
                let (stream, _) = self.stream(at_line, *stream)?;
                let kind = AccessKind::from_number(*kind)
                    .ok_or_else(|| self.syntax(at_line, format_args!("{kind} is no kind of access")))?;
                let pointer = match *place {
                    Place::Inside { allocation, offset } => match self.allocation(at_line, allocation)? {
                        Some((id, _)) => pool::info(id)?.address.saturating_add(offset),
                        None => return Ok(()),
                    },
                    Place::Address(address) => {
                        // Below the recording's first page it falls below the model's first address: unknown on both sides.
                        let model = (FIRST_ADDRESS..END_ADDRESS).contains(&address);
                        if model { address.wrapping_sub(self.shift) } else { address }
                    }
                };
                self.timed(|| access::note(device, pointer, *size, stream, kind)).map(drop)
            }
            _ => Err(self.syntax(at_line, "this line does not belong inside a callback")),
        }
    }
}
