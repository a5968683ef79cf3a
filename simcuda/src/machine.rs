//! The whole driver behind one lock: devices, contexts, streams, events and pools.
//!
//! Everything here is safe and knows nothing of C; `api` converts and calls. `executor` runs the streams, `capture` has
//! captures and graphs, `mapping` virtual memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Instant;

use crate::capture::{Capture, Executable, Graph, UserObject};
use crate::code::{self, Code, Result};
use crate::config::Config;
use crate::mapping::Physical;
use crate::memory::{Kind, Memory};
use crate::order::{Action, Clock, Operation, Point, Random, Stream, StreamId};
use crate::pool::{Block, CHUNK, Pool, Reason, UNIT};

/// A device.
pub struct Device {
    /// Bytes in use by chunks, plain allocations and physical allocations.
    pub taken: u64,
    /// Most bytes that may be in use.
    pub limit: u64,
    /// The primary context's handle, once made: it stays the same over resets.
    pub primary: Option<u64>,
    /// Retain count of the primary context.
    pub retained: u32,
    /// Flags that the primary context has or will have.
    pub flags: u32,
    /// Number of the pool that `cuMemAllocAsync` uses.
    pub pool: u64,
    /// Number of the default pool.
    pub default_pool: u64,
}

/// A context.
pub struct Context {
    /// Its device.
    pub device: usize,
    /// Flags of its creation.
    pub flags: u32,
    /// Attachments, the older way to share a context: the last detachment ends it.
    pub attached: u32,
    /// Its number, never used again, unlike a primary context's handle.
    pub id: u64,
    /// Its legacy default stream.
    pub legacy: StreamId,
    /// Contexts whose memory it may reach.
    pub peers: Vec<u64>,
    pub(crate) streams: Vec<StreamId>,
    per_thread: HashMap<u64, StreamId>,
    barrier: u64,
    barrier_clock: Clock,
    /// The error that lost the device.
    pub sticky: Option<Code>,
}

impl Context {
    /// Streams that no handle names: the default ones.
    pub(crate) fn kept(&self) -> Vec<StreamId> {
        self.per_thread.values().copied().chain([self.legacy]).collect()
    }
}

/// An event.
#[derive(Default)]
pub struct Event {
    /// Context it was made in.
    pub context: u64,
    /// Flags of its creation.
    pub flags: u32,
    pub(crate) record: u64,
    point: Option<Point>,
    clock: Clock,
    pub(crate) time: Option<Instant>,
    /// The capture that it was recorded in last, and the graph nodes that it stands for.
    pub(crate) captured: Option<(u64, Vec<u64>)>,
}

/// A loaded module or library. Its kernels are never run, so that nothing of it is read.
pub struct Module {
    /// Context it was loaded in.
    pub context: u64,
    /// Handle by kernel name.
    pub functions: HashMap<String, u64>,
}

/// Everything under the lock.
pub struct State {
    /// Settings.
    pub config: Config,
    /// Devices by ordinal.
    pub devices: Vec<Device>,
    /// Contexts by handle.
    pub contexts: HashMap<u64, Context>,
    /// Streams by number; a destroyed one stays as a record.
    pub streams: Vec<Stream>,
    /// Stream handles.
    pub handles: HashMap<u64, StreamId>,
    /// Events by handle.
    pub events: HashMap<u64, Event>,
    /// Pools by handle.
    pub pools: BTreeMap<u64, Pool>,
    /// Physical allocations by handle.
    pub physical: HashMap<u64, Physical>,
    /// Captures that have begun and not ended, by number.
    pub captures: HashMap<u64, Capture>,
    /// Graphs by handle.
    pub graphs: HashMap<u64, Graph>,
    /// Executable graphs by handle.
    pub executables: HashMap<u64, Executable>,
    /// User objects by handle.
    pub objects: HashMap<u64, UserObject>,
    /// What launches of destroyed executable graphs still use.
    pub(crate) objects_in_use: Vec<(Point, Vec<(u64, u64)>)>,
    /// Modules and libraries by handle.
    pub modules: HashMap<u64, Module>,
    /// Module of each kernel handle.
    pub functions: HashMap<u64, u64>,
    /// Memory of graphs' allocation nodes that launches hold: bytes and device by address.
    pub graph_live: HashMap<u64, (u64, usize)>,
    /// Launches accepted.
    pub launches: u64,
    /// Addresses and bytes.
    pub memory: Memory,
    /// Streams that may have something to run.
    pub(crate) busy: Vec<StreamId>,
    pub(crate) observed: Clock,
    pub(crate) random: Random,
    next: u64,
    next_id: u64,
    spare: Vec<u64>,
    /// Handles of ended contexts, to be given out again, the last one first.
    spare_contexts: Vec<u64>,
    /// Blocks given out by reason, in the order of [`Reason`].
    pub reuses: [u64; 5],
}

/// The driver.
pub struct Machine {
    pub(crate) state: Mutex<State>,
    pub(crate) changed: Condvar,
}

impl State {
    pub(crate) fn handle(&mut self) -> u64 {
        self.next += 16;
        self.next
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    // --- contexts

    /// A new context of `device`.
    pub fn new_context(&mut self, device: usize, flags: u32) -> u64 {
        let handle = self.spare_contexts.pop().unwrap_or_else(|| self.handle());
        self.fill_context(handle, device, flags);
        handle
    }

    /// Makes the context that `handle` names.
    pub fn fill_context(&mut self, handle: u64, device: usize, flags: u32) {
        self.streams.push(Stream::new(handle, 0, 0, true));
        let legacy = self.streams.len() - 1;
        let context = Context {
            device,
            flags,
            attached: 1,
            id: self.number(),
            legacy,
            peers: Vec::new(),
            streams: vec![legacy],
            per_thread: HashMap::new(),
            barrier: 0,
            barrier_clock: Clock::default(),
            sticky: None,
        };
        self.contexts.insert(handle, context);
    }

    /// The device's primary context, made if need be.
    pub fn primary(&mut self, device: usize) -> u64 {
        let handle = match self.devices[device].primary {
            Some(handle) => handle,
            None => self.handle(),
        };
        self.devices[device].primary = Some(handle);
        if !self.contexts.contains_key(&handle) {
            let flags = self.devices[device].flags;
            self.fill_context(handle, device, flags);
        }
        handle
    }

    /// Ends a context with all that belongs to it, pool memory excepted. What could not run never will.
    pub fn end_context(&mut self, handle: u64) {
        let Some(context) = self.contexts.remove(&handle) else { return };
        // A primary context's stays its own.
        if self.config.contexts_again && self.devices.iter().all(|device| device.primary != Some(handle)) {
            self.spare_contexts.push(handle);
        }
        for &id in &context.streams {
            let stream = &mut self.streams[id];
            stream.queue.clear();
            stream.executed = stream.submitted;
            if let Some(capture) = stream.capture.take() {
                self.captures.remove(&capture);
            }
        }
        let spare = &mut self.spare;
        self.handles.retain(|&handle, id| {
            let stays = !context.streams.contains(id);
            if !stays {
                spare.push(handle);
            }
            stays
        });
        self.events.retain(|_, event| event.context != handle);
        self.modules.retain(|_, module| module.context != handle);
        let modules = &self.modules;
        self.functions.retain(|_, module| modules.contains_key(module));
        for at in self.memory.select(|kind| kind.context() == Some(handle)) {
            let Some(region) = self.memory.remove(at) else { continue };
            match region.kind {
                Kind::Plain { device, .. } => {
                    self.memory.give_back(at, region.len);
                    self.devices[device].taken -= region.len;
                }
                Kind::Managed { device, .. } => self.devices[device].taken -= region.len,
                _ => {}
            }
        }
        self.busy.retain(|id| !context.streams.contains(id));
    }

    /// Notes the error that loses the context's device.
    pub fn lose(&mut self, context: u64, code: Code) {
        if let Some(context) = self.contexts.get_mut(&context) {
            context.sticky.get_or_insert(code);
        }
    }

    /// The error that lost the context's device, if any; CONTEXT_IS_DESTROYED for one that is no more.
    pub fn check(&self, context: u64) -> Result<()> {
        self.contexts.get(&context).ok_or(code::CONTEXT_IS_DESTROYED)?.sticky.map_or(Ok(()), Err)
    }

    // --- streams

    /// A new stream; the handle destroyed last is given out again, as a real driver may.
    pub fn new_stream(&mut self, context: u64, flags: u32, priority: i32) -> u64 {
        let handle = self.spare.pop().unwrap_or_else(|| self.handle());
        let id = self.add_stream(Stream::new(context, flags, priority, false));
        self.handles.insert(handle, id);
        handle
    }

    fn add_stream(&mut self, stream: Stream) -> StreamId {
        let id = self.streams.len();
        if let Some(context) = self.contexts.get_mut(&stream.context) {
            context.streams.push(id);
        }
        self.streams.push(stream);
        id
    }

    /// Ends a stream's handle; what was submitted still runs.
    pub fn destroy_stream(&mut self, handle: u64) -> Result<()> {
        let id = self.handles.remove(&handle).ok_or(code::INVALID_HANDLE)?;
        self.spare.push(handle);
        if self.streams[id].capture.is_some() {
            self.invalidate(id);
            self.leave_capture(id);
        }
        Ok(())
    }

    /// The stream a handle means to `thread` with `context` current.
    pub fn stream(&mut self, handle: u64, context: u64, per_thread: bool, thread: u64) -> Result<StreamId> {
        if handle > 2 {
            return self.handles.get(&handle).copied().ok_or(code::INVALID_HANDLE);
        }
        let of = self.contexts.get(&context).ok_or(code::INVALID_CONTEXT)?;
        if handle == 1 || (handle == 0 && !per_thread) {
            return Ok(of.legacy);
        }
        if let Some(&id) = of.per_thread.get(&thread) {
            return Ok(id);
        }
        let id = self.add_stream(Stream::new(context, 0, 0, false));
        if let Some(of) = self.contexts.get_mut(&context) {
            of.per_thread.insert(thread, id);
        }
        Ok(id)
    }

    /// Orders the stream's next operation after the context's last barrier.
    fn follow_barrier(&mut self, id: StreamId) {
        let stream = &mut self.streams[id];
        let Some(context) = self.contexts.get(&stream.context) else { return };
        if !stream.legacy && stream.blocking() && context.barrier > stream.barrier {
            stream.barrier = context.barrier;
            stream.needs.push((context.legacy, context.barrier));
            stream.clock.merge(&context.barrier_clock);
        }
    }

    /// Submits an operation, or adds it to the capture that the stream takes part in. `work` is false for what is
    /// served from a pool, which is no barrier.
    pub fn enqueue(&mut self, id: StreamId, action: Action, work: bool) -> Result<Option<Point>> {
        if self.captures.is_empty() {
            return self.submit(id, action, work).map(Some);
        }
        if self.streams[id].capture.is_some() {
            self.add_node(id, action)?;
            return Ok(None);
        }
        self.implicit(id)?;
        self.submit(id, action, work).map(Some)
    }

    /// Submits an operation, whatever is being captured.
    pub fn submit(&mut self, id: StreamId, action: Action, work: bool) -> Result<Point> {
        self.follow_barrier(id);
        let context = self.streams[id].context;
        let barrier = work && self.streams[id].legacy;
        if barrier {
            let (mut needs, mut clock) = (Vec::new(), Clock::default());
            for &other in &self.contexts.get(&context).ok_or(code::INVALID_CONTEXT)?.streams {
                let stream = &self.streams[other];
                let point = (other, stream.submitted);
                if other != id && stream.blocking() && stream.submitted > 0 && !self.observed.holds(point) {
                    clock.merge(&stream.clock);
                    if stream.executed < stream.submitted {
                        needs.push(point);
                    }
                }
            }
            self.streams[id].needs.append(&mut needs);
            self.streams[id].clock.merge(&clock);
        }
        let stream = &mut self.streams[id];
        stream.submitted += 1;
        let point = (id, stream.submitted);
        if stream.clock.len() > 16 {
            stream.clock.forget(&self.observed);
        }
        stream.clock.add(point);
        let needs = std::mem::take(&mut stream.needs);
        if !std::mem::replace(&mut stream.listed, true) {
            self.busy.push(id);
        }
        stream.queue.push_back(Operation { needs, action });
        if barrier {
            let clock = stream.clock.clone();
            if let Some(context) = self.contexts.get_mut(&context) {
                context.barrier = point.1;
                context.barrier_clock = clock;
            }
        }
        Ok(point)
    }

    // --- events

    /// A new event.
    pub fn new_event(&mut self, context: u64, flags: u32) -> u64 {
        let handle = self.handle();
        self.events.insert(handle, Event { context, flags, ..Event::default() });
        handle
    }

    /// Records an event at the stream's end.
    pub fn record(&mut self, handle: u64, id: StreamId) -> Result<()> {
        let event = self.events.get(&handle).ok_or(code::INVALID_HANDLE)?;
        if event.context != self.streams[id].context {
            return Err(code::INVALID_HANDLE);
        }
        if self.streams[id].capture.is_some() {
            return self.record_captured(handle, id);
        }
        let number = event.record + 1;
        let Some(point) = self.enqueue(id, Action::Record(handle, number), true)? else { return Ok(()) };
        let clock = self.streams[id].clock.clone();
        self.point_event(handle, point, clock);
        Ok(())
    }

    fn point_event(&mut self, handle: u64, point: Point, clock: Clock) {
        if let Some(event) = self.events.get_mut(&handle) {
            event.record += 1;
            (event.point, event.clock, event.time, event.captured) = (Some(point), clock, None, None);
        }
    }

    /// Records an event after all that the context's streams have been given.
    pub fn record_context(&mut self, context: u64, handle: u64) -> Result<()> {
        let event = self.events.get(&handle).ok_or(code::INVALID_HANDLE)?;
        if event.context != context {
            return Err(code::INVALID_HANDLE);
        }
        let number = event.record + 1;
        let of = self.contexts.get(&context).ok_or(code::INVALID_CONTEXT)?;
        let streams = of.streams.clone();
        if streams.iter().any(|&id| self.streams[id].capture.is_some()) {
            streams.iter().for_each(|&id| self.invalidate(id));
            return Err(code::STREAM_CAPTURE_UNSUPPORTED);
        }
        // A stream of its own, never seen outside: the record follows every other stream's end.
        let id = self.streams.len();
        let mut gather = Stream::new(context, 1, 0, false);
        for other in streams {
            let stream = &self.streams[other];
            gather.clock.merge(&stream.clock);
            if stream.executed < stream.submitted {
                gather.needs.push((other, stream.submitted));
            }
        }
        self.streams.push(gather);
        let point = self.submit(id, Action::Record(handle, number), true)?;
        let clock = self.streams[id].clock.clone();
        self.point_event(handle, point, clock);
        Ok(())
    }

    /// Makes all that the context's streams are given later wait for the event's last record.
    pub fn wait_context(&mut self, context: u64, handle: u64) -> Result<()> {
        let streams = self.contexts.get(&context).ok_or(code::INVALID_CONTEXT)?.streams.clone();
        if streams.iter().any(|&id| self.streams[id].capture.is_some()) {
            streams.iter().for_each(|&id| self.invalidate(id));
            return Err(code::STREAM_CAPTURE_UNSUPPORTED);
        }
        let event = self.events.get(&handle).ok_or(code::INVALID_HANDLE)?;
        if event.captured.is_some() {
            return Err(code::CAPTURED_EVENT);
        }
        let Some(point) = event.point else { return Ok(()) };
        let clock = event.clock.clone();
        for id in streams {
            self.streams[id].needs.push(point);
            self.streams[id].clock.merge(&clock);
        }
        Ok(())
    }

    /// Makes the stream's later operations wait for the event's last record.
    pub fn wait(&mut self, id: StreamId, handle: u64) -> Result<()> {
        let event = self.events.get(&handle).ok_or(code::INVALID_HANDLE)?;
        if event.captured.is_some() || self.streams[id].capture.is_some() {
            return self.wait_captured(id, handle);
        }
        self.implicit(id)?;
        let event = &self.events[&handle];
        if let Some(point) = event.point {
            let clock = event.clock.clone();
            if !self.has_run(point) {
                self.streams[id].needs.push(point);
            }
            self.streams[id].clock.merge(&clock);
        }
        self.submit(id, Action::Nothing, true).map(drop)
    }

    pub(crate) fn has_run(&self, point: Point) -> bool {
        self.streams[point.0].executed >= point.1
    }

    /// The event's point; `None` when it was never recorded, which counts as complete. CAPTURED_EVENT, and the capture
    /// is invalid, when its last record was captured.
    pub fn event_point(&mut self, handle: u64) -> Result<(Option<Point>, Clock)> {
        let event = self.events.get(&handle).ok_or(code::INVALID_HANDLE)?;
        if let Some((capture, _)) = event.captured {
            if let Some(capture) = self.captures.get_mut(&capture) {
                capture.invalid = true;
            }
            return Err(code::CAPTURED_EVENT);
        }
        self.check(event.context)?;
        Ok((event.point, event.clock.clone()))
    }

    /// Milliseconds between two events.
    pub fn elapsed(&self, start: u64, end: u64) -> Result<f32> {
        let get = |handle: u64| self.events.get(&handle).filter(|e| e.point.is_some() && e.flags & 2 == 0);
        let (a, b) = (get(start).ok_or(code::INVALID_HANDLE)?, get(end).ok_or(code::INVALID_HANDLE)?);
        if a.captured.is_some() || b.captured.is_some() {
            return Err(code::CAPTURED_EVENT);
        }
        let (a, b) = (a.time.ok_or(code::NOT_READY)?, b.time.ok_or(code::NOT_READY)?);
        Ok(b.saturating_duration_since(a).as_secs_f32() * 1e3)
    }

    // --- memory

    pub(crate) fn observe(&mut self, clock: &Clock) {
        self.observed.merge(clock);
        let observed = &self.observed;
        let mut gone = Vec::new();
        for pool in self.pools.values_mut() {
            pool.observe(|point| observed.holds(point));
            while pool.reserved > pool.threshold || pool.destroyed {
                let Some((base, len)) = pool.shrink(0) else { break };
                gone.push((pool.device, base, len));
            }
        }
        self.drop_regions(&gone);
        self.pools.retain(|_, pool| !(pool.destroyed && pool.reserved == 0));
    }

    pub(crate) fn drop_regions(&mut self, regions: &[(usize, u64, u64)]) {
        for &(device, base, len) in regions {
            self.memory.remove(base);
            self.memory.give_back(base, len);
            self.devices[device].taken -= len;
        }
    }

    /// Gives free chunks back until `keep` would be undercut.
    pub fn trim(&mut self, handle: u64, keep: u64) -> Result<()> {
        let pool = self.pools.get_mut(&handle).filter(|pool| !pool.destroyed).ok_or(code::INVALID_VALUE)?;
        let device = pool.device;
        let gone: Vec<_> = std::iter::from_fn(|| pool.shrink(keep)).map(|(at, len)| (device, at, len)).collect();
        self.drop_regions(&gone);
        Ok(())
    }

    /// Takes device memory that is not a pool's.
    pub fn alloc_plain(&mut self, context: u64, bytes: u64) -> Result<u64> {
        let device = self.contexts.get(&context).ok_or(code::INVALID_CONTEXT)?.device;
        let len = bytes.checked_next_multiple_of(UNIT).ok_or(code::OUT_OF_MEMORY)?;
        self.new_region(device, len, UNIT, Kind::Plain { device, context })
    }

    /// Takes memory that host and device share.
    pub fn alloc_managed(&mut self, context: u64, bytes: u64) -> Result<u64> {
        let device = self.contexts.get(&context).ok_or(code::INVALID_CONTEXT)?.device;
        self.charge(device, bytes)?;
        let made = self.memory.back_shared(bytes, Kind::Managed { device, context });
        made.inspect_err(|_| self.devices[device].taken -= bytes)
    }

    fn new_region(&mut self, device: usize, len: u64, align: u64, kind: Kind) -> Result<u64> {
        self.charge(device, len)?;
        let at = self.memory.take(len, align).inspect_err(|_| self.devices[device].taken -= len)?;
        if let Err(code) = self.memory.back(at, len, kind) {
            self.memory.give_back(at, len);
            self.devices[device].taken -= len;
            return Err(code);
        }
        Ok(at)
    }

    /// Bytes the device could still give.
    pub fn left(&self, device: usize) -> u64 {
        self.devices[device].limit.saturating_sub(self.devices[device].taken)
    }

    pub(crate) fn charge(&mut self, device: usize, len: u64) -> Result<()> {
        if len > self.left(device) {
            return Err(code::OUT_OF_MEMORY);
        }
        self.devices[device].taken += len;
        Ok(())
    }

    /// Gives plain or managed memory back.
    pub fn free_plain(&mut self, address: u64) -> Result<()> {
        let found = self.memory.find(address).filter(|(start, _)| *start == address);
        match found.map(|(_, region)| (region.kind, region.len)) {
            Some((Kind::Plain { device, .. }, len)) => self.drop_regions(&[(device, address, len)]),
            Some((Kind::Managed { device, .. }, len)) => {
                self.memory.remove(address);
                self.devices[device].taken -= len;
            }
            _ => return Err(code::INVALID_VALUE),
        }
        Ok(())
    }

    /// The context that plain or managed memory at `address` was made in.
    pub fn plain_context(&self, address: u64) -> Option<u64> {
        match self.memory.find(address).filter(|(start, _)| *start == address)?.1.kind {
            Kind::Plain { context, .. } | Kind::Managed { context, .. } => Some(context),
            _ => None,
        }
    }

    // --- pools

    /// A new pool.
    pub fn new_pool(&mut self, device: usize, default: bool, max: u64) -> u64 {
        let handle = self.handle();
        let max = if max == 0 { u64::MAX } else { max.checked_next_multiple_of(CHUNK).unwrap_or(u64::MAX) };
        self.pools.insert(handle, Pool::new(device, default, max));
        handle
    }

    /// The pool that a handle names.
    pub fn pool(&mut self, handle: u64) -> Result<&mut Pool> {
        self.pools.get_mut(&handle).filter(|pool| !pool.destroyed).ok_or(code::INVALID_VALUE)
    }

    /// Ends a pool's handle; its blocks stay.
    pub fn destroy_pool(&mut self, handle: u64) -> Result<()> {
        let pool = self.pools.get_mut(&handle).filter(|p| !p.destroyed && !p.default).ok_or(code::INVALID_VALUE)?;
        pool.destroyed = true;
        self.devices.iter_mut().filter(|device| device.pool == handle).for_each(|d| d.pool = d.default_pool);
        self.observe(&Clock::default());
        Ok(())
    }

    /// Allocates from a pool in stream order.
    pub fn alloc_async(&mut self, handle: u64, bytes: u64, id: StreamId) -> Result<u64> {
        let need = bytes.max(1).checked_next_multiple_of(UNIT).ok_or(code::OUT_OF_MEMORY)?;
        let pool = self.pools.get(&handle).filter(|pool| !pool.destroyed).ok_or(code::INVALID_VALUE)?;
        let (device, policies) = (pool.device, pool.policies);
        if self.streams[id].capture.is_some() {
            return self.capture_alloc(id, device, need);
        }
        self.implicit(id)?;
        self.follow_barrier(id);
        let clock = &self.streams[id].clock;
        let pool = &self.pools[&handle];
        let same = |b: &Block| matches!(b, Block::Observed) || matches!(b, Block::Pending(p) if p.0 == id);
        let event = |b: &Block| same(b) || policies[0] && matches!(b, Block::Pending(p) if clock.holds(*p));
        let done = |b: &Block| event(b) || policies[1] && matches!(b, Block::Pending(p) if self.has_run(*p));
        let mut found = pool.find(need, same).map(|run| (run, Reason::SameOrObserved));
        if pool.any_pending() {
            found = found.or_else(|| pool.find(need, event).map(|run| (run, Reason::Event)));
            found = found.or_else(|| pool.find(need, done).map(|run| (run, Reason::Opportunistic)));
        }
        found = found.or_else(|| pool.find(need, |b| *b == Block::Fresh).map(|run| (run, Reason::Fresh)));
        if found.is_none() && self.grow(handle, device, need).is_ok() {
            found = self.pools[&handle].find(need, |b| *b == Block::Fresh).map(|run| (run, Reason::Fresh));
        }
        if found.is_none() && policies[2] {
            found = self.pools[&handle].find(need, |_| true).map(|run| (run, Reason::Internal));
        }
        let (run, reason) = found.ok_or(code::OUT_OF_MEMORY)?;
        if reason == Reason::Internal {
            self.streams[id].needs.extend(run.points.iter().copied());
            for point in &run.points {
                self.streams[id].clock.add(*point);
            }
        }
        if let Some(pool) = self.pools.get_mut(&handle) {
            pool.take(&run, need);
        }
        self.reuses[reason as usize] += 1;
        self.submit(id, Action::Nothing, false)?;
        Ok(run.start)
    }

    fn grow(&mut self, handle: u64, device: usize, need: u64) -> Result<()> {
        let len = need.checked_next_multiple_of(CHUNK).ok_or(code::OUT_OF_MEMORY)?;
        let pool = &self.pools[&handle];
        if pool.reserved.checked_add(len).is_none_or(|sum| sum > pool.max) {
            return Err(code::OUT_OF_MEMORY);
        }
        let at = self.new_region(device, len, CHUNK, Kind::Chunk { device, pool: handle })?;
        if let Some(pool) = self.pools.get_mut(&handle) {
            pool.grow(at, len);
        }
        Ok(())
    }

    /// Pool that the address belongs to.
    pub fn pool_of(&self, address: u64) -> Option<u64> {
        match self.memory.find(address)?.1.kind {
            Kind::Chunk { pool, .. } => Some(pool),
            _ => None,
        }
    }

    /// Frees in stream order, pool or plain memory.
    pub fn free_async(&mut self, address: u64, id: StreamId) -> Result<()> {
        if self.streams[id].capture.is_some() {
            return self.capture_free(id, address);
        }
        let Some(handle) = self.pool_of(address) else {
            if self.graph_live.remove(&address).is_some() {
                return self.enqueue(id, Action::GraphFree(address), true).map(drop);
            }
            self.plain_context(address).ok_or(code::INVALID_VALUE)?;
            return self.enqueue(id, Action::Free(address), true).map(drop);
        };
        let len = self.pools[&handle].live(address).ok_or(code::INVALID_VALUE)?;
        self.implicit(id)?;
        let point = self.submit(id, Action::Spoil { at: address, len }, false)?;
        if let Some(pool) = self.pools.get_mut(&handle) {
            pool.release(address, Some(point));
        }
        Ok(())
    }

    /// Frees pool memory that the caller says nothing uses any more.
    pub fn free_pool_now(&mut self, handle: u64, address: u64) -> Result<()> {
        let pool = self.pools.get_mut(&handle).ok_or(code::INVALID_VALUE)?;
        let len = pool.release(address, None).ok_or(code::INVALID_VALUE)?;
        self.memory.spoil(address, len);
        Ok(())
    }
}

impl Machine {
    /// A driver that lives as long as the process.
    pub fn new(config: Config) -> &'static Machine {
        let total = config.memory.saturating_mul(u64::from(config.devices.max(1)));
        // Far more addresses than memory, as a device has: ranges many times its memory are reserved to grow in.
        let memory = Memory::new(total.saturating_mul(64).clamp(64 << 30, 1 << 45));
        let mut state = State {
            random: Random(config.seed),
            devices: Vec::new(),
            contexts: HashMap::new(),
            streams: Vec::new(),
            handles: HashMap::new(),
            events: HashMap::new(),
            pools: BTreeMap::new(),
            physical: HashMap::new(),
            captures: HashMap::new(),
            graphs: HashMap::new(),
            executables: HashMap::new(),
            objects: HashMap::new(),
            objects_in_use: Vec::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            graph_live: HashMap::new(),
            launches: 0,
            memory,
            busy: Vec::new(),
            observed: Clock::default(),
            next: 0x51_0000_0000,
            next_id: 0,
            spare: Vec::new(),
            spare_contexts: Vec::new(),
            reuses: [0; 5],
            config,
        };
        for device in 0..state.config.devices as usize {
            let pool = state.new_pool(device, true, 0);
            let limit = state.config.memory;
            let (primary, retained, flags, default_pool) = (None, 0, 0, pool);
            state.devices.push(Device { taken: 0, limit, primary, retained, flags, pool, default_pool });
        }
        Box::leak(Box::new(Machine { state: Mutex::new(state), changed: Condvar::new() }))
    }

    /// The state, alone.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
