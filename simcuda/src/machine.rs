//! The whole driver behind one lock: devices, contexts, streams, events, pools, and the executor that runs streams.
//!
//! Everything here is safe and knows nothing of C; `api` converts and calls.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Instant;

use crate::code::{self, Code, Result};
use crate::config::{Config, Mode};
use crate::memory::{Kind, Memory, Place};
use crate::order::{Action, Clock, Operation, Point, Random, Stream, StreamId};
use crate::pool::{Block, CHUNK, Pool, Reason, UNIT};

/// A device.
pub struct Device {
    /// Bytes in use by chunks and plain allocations.
    pub taken: u64,
    /// The primary context, once made.
    pub primary: Option<u64>,
    /// Retain count of the primary context.
    pub retained: u32,
    /// Number of the pool that `cuMemAllocAsync` uses.
    pub pool: u64,
    /// Number of the default pool.
    pub default_pool: u64,
}

/// A context.
pub struct Context {
    /// Its device.
    pub device: usize,
    /// Its legacy default stream.
    pub legacy: StreamId,
    per_thread: HashMap<u64, StreamId>,
    barrier: u64,
    barrier_clock: Clock,
    /// The error that lost the device.
    pub sticky: Option<Code>,
}

/// An event.
pub struct Event {
    /// Context it was made in.
    pub context: u64,
    /// Flags of its creation.
    pub flags: u32,
    record: u64,
    point: Option<Point>,
    clock: Clock,
    time: Option<Instant>,
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
    /// Addresses and bytes.
    pub memory: Memory,
    observed: Clock,
    random: Random,
    next: u64,
    spare: Vec<u64>,
    /// Blocks given out by reason, in the order of [`Reason`].
    pub reuses: [u64; 5],
}

/// The driver.
pub struct Machine {
    state: Mutex<State>,
    changed: Condvar,
}

impl State {
    fn handle(&mut self) -> u64 {
        self.next += 16;
        self.next
    }

    /// A new context of `device`.
    pub fn new_context(&mut self, device: usize) -> u64 {
        let handle = self.handle();
        self.streams.push(Stream::new(handle, 0, 0, true));
        let legacy = self.streams.len() - 1;
        let context = Context {
            device,
            legacy,
            per_thread: HashMap::new(),
            barrier: 0,
            barrier_clock: Clock::default(),
            sticky: None,
        };
        self.contexts.insert(handle, context);
        handle
    }

    /// A new stream; the handle destroyed last is given out again, as a real driver may.
    pub fn new_stream(&mut self, context: u64, flags: u32, priority: i32) -> u64 {
        let handle = self.spare.pop().unwrap_or_else(|| self.handle());
        self.streams.push(Stream::new(context, flags, priority, false));
        self.handles.insert(handle, self.streams.len() - 1);
        handle
    }

    /// Ends a stream's handle; what was submitted still runs.
    pub fn destroy_stream(&mut self, handle: u64) -> Result<()> {
        let id = self.handles.remove(&handle).ok_or(code::INVALID_HANDLE)?;
        self.streams[id].destroyed = true;
        self.spare.push(handle);
        Ok(())
    }

    /// The stream a handle means to `thread` with `context` current.
    pub fn stream(&mut self, handle: u64, context: u64, per_thread: bool, thread: u64) -> Result<StreamId> {
        if handle > 2 {
            return self.handles.get(&handle).copied().ok_or(code::INVALID_HANDLE);
        }
        let of = self.contexts.get_mut(&context).ok_or(code::INVALID_CONTEXT)?;
        if handle == 1 || (handle == 0 && !per_thread) {
            return Ok(of.legacy);
        }
        let new = self.streams.len();
        let id = *of.per_thread.entry(thread).or_insert(new);
        if id == new {
            self.streams.push(Stream::new(context, 0, 0, false));
        }
        Ok(id)
    }

    /// A new event.
    pub fn new_event(&mut self, context: u64, flags: u32) -> u64 {
        let handle = self.handle();
        let event = Event { context, flags, record: 0, point: None, clock: Clock::default(), time: None };
        self.events.insert(handle, event);
        handle
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

    /// Submits an operation. `work` is false for what is served from a pool, which is no barrier.
    pub fn submit(&mut self, id: StreamId, action: Action, work: bool) -> Result<Point> {
        self.follow_barrier(id);
        let context = self.streams[id].context;
        let barrier = work && self.streams[id].legacy;
        if barrier {
            for other in 0..self.streams.len() {
                let stream = &self.streams[other];
                if other != id && stream.context == context && stream.blocking() && stream.submitted > 0 {
                    let (point, clock) = ((other, stream.submitted), stream.clock.clone());
                    self.streams[id].needs.push(point);
                    self.streams[id].clock.merge(&clock);
                }
            }
        }
        let stream = &mut self.streams[id];
        stream.submitted += 1;
        let point = (id, stream.submitted);
        stream.clock.add(point);
        let needs = std::mem::take(&mut stream.needs);
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

    /// Records an event at the stream's end.
    pub fn record(&mut self, handle: u64, id: StreamId) -> Result<()> {
        let event = self.events.get(&handle).ok_or(code::INVALID_HANDLE)?;
        if event.context != self.streams[id].context {
            return Err(code::INVALID_HANDLE);
        }
        let number = event.record + 1;
        let point = self.submit(id, Action::Record(handle, number), true)?;
        let clock = self.streams[id].clock.clone();
        if let Some(event) = self.events.get_mut(&handle) {
            (event.record, event.point, event.clock, event.time) = (number, Some(point), clock, None);
        }
        Ok(())
    }

    /// Makes the stream's later operations wait for the event's last record.
    pub fn wait(&mut self, id: StreamId, handle: u64) -> Result<()> {
        let event = self.events.get(&handle).ok_or(code::INVALID_HANDLE)?;
        if let Some(point) = event.point {
            let clock = event.clock.clone();
            self.streams[id].needs.push(point);
            self.streams[id].clock.merge(&clock);
        }
        self.submit(id, Action::Nothing, true).map(drop)
    }

    fn has_run(&self, point: Point) -> bool {
        self.streams[point.0].executed >= point.1
    }

    /// The event's point; `None` when it was never recorded, which counts as complete.
    pub fn event_point(&self, handle: u64) -> Result<(Option<Point>, Clock)> {
        let event = self.events.get(&handle).ok_or(code::INVALID_HANDLE)?;
        Ok((event.point, event.clock.clone()))
    }

    /// Milliseconds between two events.
    pub fn elapsed(&self, start: u64, end: u64) -> Result<f32> {
        let get = |handle: u64| self.events.get(&handle).filter(|e| e.point.is_some() && e.flags & 2 == 0);
        let (a, b) = (get(start).ok_or(code::INVALID_HANDLE)?, get(end).ok_or(code::INVALID_HANDLE)?);
        let (a, b) = (a.time.ok_or(code::NOT_READY)?, b.time.ok_or(code::NOT_READY)?);
        Ok(b.saturating_duration_since(a).as_secs_f32() * 1e3)
    }

    fn runnable(&self, id: StreamId) -> bool {
        let stream = &self.streams[id];
        let ready = |op: &Operation| op.needs.iter().all(|&point| self.has_run(point));
        !stream.gated && !stream.calling && stream.queue.front().is_some_and(ready)
    }

    /// Runs the operation at the head of a runnable stream.
    fn run_head(&mut self, id: StreamId, machine: &'static Machine) {
        let Some(operation) = self.streams[id].queue.pop_front() else { return };
        if let Action::Call(call) = operation.action {
            self.streams[id].calling = true;
            std::thread::spawn(move || {
                call();
                let mut state = machine.lock();
                state.streams[id].calling = false;
                state.streams[id].executed += 1;
                state.stir(machine);
                machine.changed.notify_all();
            });
            return;
        }
        if let Err(code) = self.perform(operation.action) {
            let context = self.streams[id].context;
            if let Some(context) = self.contexts.get_mut(&context) {
                context.sticky.get_or_insert(code);
            }
        }
        self.streams[id].executed += 1;
    }

    fn perform(&mut self, action: Action) -> Result<()> {
        let step = |place: Place, by: u64| match place {
            Place::Device(at) => Place::Device(at + by),
            Place::Host(at) => Place::Host(at + by),
        };
        match action {
            Action::Copy { to, to_pitch, from, from_pitch, width, rows } => (0..rows)
                .try_for_each(|row| self.memory.copy(step(to, row * to_pitch), step(from, row * from_pitch), width)),
            Action::Write { to, to_pitch, width, bytes } => {
                let rows = bytes.chunks(usize::try_from(width.max(1)).map_err(|_| code::INVALID_VALUE)?);
                rows.enumerate().try_for_each(|(row, part)| self.memory.write(step(to, row as u64 * to_pitch), part))
            }
            Action::Fill { to, pitch, pattern, width, rows } => {
                let bytes: Vec<u8> = pattern.iter().copied().cycle().take(width as usize).collect();
                (0..rows).try_for_each(|row| self.memory.write(Place::Device(to + row * pitch), &bytes))
            }
            Action::Record(handle, number) => {
                if let Some(event) = self.events.get_mut(&handle).filter(|event| event.record == number) {
                    event.time = Some(Instant::now());
                }
                Ok(())
            }
            Action::Free(address) => self.free_plain(address),
            Action::Nothing | Action::Call(_) => Ok(()),
        }
    }

    /// Runs one operation of the stream, or of what it waits for; false when a gate or a host call holds everything.
    fn pull(&mut self, id: StreamId, machine: &'static Machine) -> bool {
        if self.runnable(id) {
            self.run_head(id, machine);
            return true;
        }
        let stream = &self.streams[id];
        if stream.gated || stream.calling {
            return false;
        }
        let Some(head) = stream.queue.front() else { return false };
        let unmet: Vec<Point> = head.needs.iter().copied().filter(|&point| !self.has_run(point)).collect();
        unmet.into_iter().any(|point| self.pull(point.0, machine))
    }

    /// Lets streams run as the mode has it; called at every submission and query.
    pub fn stir(&mut self, machine: &'static Machine) {
        match self.config.mode {
            Mode::Lazy => {}
            Mode::Eager => loop {
                let ready: Vec<StreamId> = (0..self.streams.len()).filter(|&id| self.runnable(id)).collect();
                if ready.is_empty() {
                    break;
                }
                ready.into_iter().for_each(|id| self.run_head(id, machine));
            },
            Mode::Adversarial => {
                if self.random.below(16) == 0 && !self.streams.is_empty() {
                    let id = self.random.below(self.streams.len() as u64) as usize;
                    self.streams[id].starved = !self.streams[id].starved;
                }
                for _ in 0..self.random.below(4) {
                    let fed = |id: &StreamId| self.runnable(*id) && !self.streams[*id].starved;
                    let ready: Vec<StreamId> = (0..self.streams.len()).filter(fed).collect();
                    if ready.is_empty() {
                        break;
                    }
                    let pick = self.random.below(ready.len() as u64) as usize;
                    self.run_head(ready[pick], machine);
                }
            }
        }
    }

    /// Whether the point has run. In the modes that wait to be asked, "no" brings it one step nearer, so that a
    /// program that polls ends.
    pub fn query(&mut self, point: Point, machine: &'static Machine) -> bool {
        let done = self.has_run(point);
        if !done && self.config.mode != Mode::Eager {
            self.pull(point.0, machine);
        }
        done
    }

    fn observe(&mut self, clock: &Clock) {
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
        self.drop_chunks(&gone);
        self.pools.retain(|_, pool| !(pool.destroyed && pool.reserved == 0));
    }

    fn drop_chunks(&mut self, chunks: &[(usize, u64, u64)]) {
        for &(device, base, len) in chunks {
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
        self.drop_chunks(&gone);
        Ok(())
    }

    /// Takes device memory that is not a pool's.
    pub fn alloc_plain(&mut self, context: u64, bytes: u64) -> Result<u64> {
        let device = self.contexts.get(&context).ok_or(code::INVALID_CONTEXT)?.device;
        let len = bytes.checked_next_multiple_of(UNIT).ok_or(code::OUT_OF_MEMORY)?;
        self.charge(device, len)?;
        let at = self.memory.take(len, UNIT).inspect_err(|_| self.devices[device].taken -= len)?;
        if let Err(code) = self.memory.back(at, len, Kind::Plain { device, context }) {
            self.memory.give_back(at, len);
            self.devices[device].taken -= len;
            return Err(code);
        }
        Ok(at)
    }

    fn charge(&mut self, device: usize, len: u64) -> Result<()> {
        let left = self.config.memory - self.devices[device].taken;
        if len > left {
            return Err(code::OUT_OF_MEMORY);
        }
        self.devices[device].taken += len;
        Ok(())
    }

    /// Gives plain memory back.
    pub fn free_plain(&mut self, address: u64) -> Result<()> {
        let found = self.memory.find(address).filter(|(start, _)| *start == address);
        let Some((_, Kind::Plain { device, .. }, len)) = found.map(|(at, region)| (at, region.kind, region.len)) else {
            return Err(code::INVALID_VALUE);
        };
        self.drop_chunks(&[(device, address, len)]);
        Ok(())
    }

    /// A new pool.
    pub fn new_pool(&mut self, device: usize, default: bool, max: u64) -> u64 {
        let handle = self.handle();
        let max = if max == 0 { u64::MAX } else { max.checked_next_multiple_of(CHUNK).unwrap_or(u64::MAX) };
        self.pools.insert(handle, Pool::new(device, default, max));
        handle
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
        self.follow_barrier(id);
        let need = bytes.max(1).checked_next_multiple_of(UNIT).ok_or(code::OUT_OF_MEMORY)?;
        let pool = self.pools.get(&handle).filter(|pool| !pool.destroyed).ok_or(code::INVALID_VALUE)?;
        let (device, policies) = (pool.device, pool.policies);
        let clock = &self.streams[id].clock;
        let same = |b: &Block| matches!(b, Block::Observed) || matches!(b, Block::Pending(p) if p.0 == id);
        let event = |b: &Block| same(b) || policies[0] && matches!(b, Block::Pending(p) if clock.holds(*p));
        let done = |b: &Block| event(b) || policies[1] && matches!(b, Block::Pending(p) if self.has_run(*p));
        let mut found = pool.find(need, same).map(|run| (run, Reason::SameOrObserved));
        found = found.or_else(|| pool.find(need, event).map(|run| (run, Reason::Event)));
        found = found.or_else(|| pool.find(need, done).map(|run| (run, Reason::Opportunistic)));
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
        self.charge(device, len)?;
        let made = self.memory.take(len, CHUNK).and_then(|at| {
            let kind = Kind::Chunk { device, pool: handle };
            self.memory.back(at, len, kind).inspect_err(|_| self.memory.give_back(at, len)).map(|()| at)
        });
        let at = made.inspect_err(|_| self.devices[device].taken -= len)?;
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
        let Some(handle) = self.pool_of(address) else {
            let plain = self
                .memory
                .find(address)
                .is_some_and(|(at, region)| at == address && matches!(region.kind, Kind::Plain { .. }));
            return if plain {
                self.submit(id, Action::Free(address), true).map(drop)
            } else {
                Err(code::INVALID_VALUE)
            };
        };
        self.pools[&handle].live(address).ok_or(code::INVALID_VALUE)?;
        let point = self.submit(id, Action::Nothing, false)?;
        if let Some(pool) = self.pools.get_mut(&handle) {
            pool.release(address, Some(point));
        }
        Ok(())
    }

    /// Frees pool memory that the caller says nothing uses any more.
    pub fn free_pool_now(&mut self, handle: u64, address: u64) -> Result<()> {
        let pool = self.pools.get_mut(&handle).ok_or(code::INVALID_VALUE)?;
        pool.release(address, None).ok_or(code::INVALID_VALUE).map(drop)
    }

    /// The error that lost the context's device, if any.
    pub fn check(&self, context: u64) -> Result<()> {
        self.contexts.get(&context).and_then(|context| context.sticky).map_or(Ok(()), Err)
    }
}

impl Machine {
    /// A driver that lives as long as the process.
    pub fn new(config: Config) -> &'static Machine {
        let total = config.memory.saturating_mul(u64::from(config.devices.max(1)));
        let memory = Memory::new(total.saturating_mul(4).max(64 << 30));
        let mut state = State {
            random: Random(config.seed),
            devices: Vec::new(),
            contexts: HashMap::new(),
            streams: Vec::new(),
            handles: HashMap::new(),
            events: HashMap::new(),
            pools: BTreeMap::new(),
            memory,
            observed: Clock::default(),
            next: 0x51_0000_0000,
            spare: Vec::new(),
            reuses: [0; 5],
            config,
        };
        for device in 0..state.config.devices as usize {
            let pool = state.new_pool(device, true, 0);
            state.devices.push(Device { taken: 0, primary: None, retained: 0, pool, default_pool: pool });
        }
        Box::leak(Box::new(Machine { state: Mutex::new(state), changed: Condvar::new() }))
    }

    /// The state, alone.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Opens or closes a stream's gate.
    pub fn gate(&'static self, id: StreamId, closed: bool) {
        let mut state = self.lock();
        state.streams[id].gated = closed;
        state.stir(self);
        self.changed.notify_all();
    }

    /// Runs until every point has run; what `clock` holds is then observed.
    pub fn finish(&'static self, points: &[Point], clock: &Clock, observe: bool) {
        let mut state = self.lock();
        while let Some(&point) = points.iter().find(|&&point| !state.has_run(point)) {
            if !state.pull(point.0, self) {
                // A gate or a host call holds it: another thread must act.
                state = self.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
            }
        }
        if observe {
            state.observe(clock);
        }
    }

    /// Runs a stream to its present end.
    pub fn finish_stream(&'static self, id: StreamId) {
        let (point, clock) = {
            let state = self.lock();
            ((id, state.streams[id].submitted), state.streams[id].clock.clone())
        };
        self.finish(&[point], &clock, true);
    }

    /// Runs every stream of a context to its present end.
    pub fn finish_context(&'static self, context: u64, observe: bool) {
        let (points, clock) = {
            let state = self.lock();
            let mut clock = Clock::default();
            let mut points = Vec::new();
            for (id, stream) in state.streams.iter().enumerate().filter(|(_, s)| s.context == context) {
                points.push((id, stream.submitted));
                clock.merge(&stream.clock);
            }
            (points, clock)
        };
        self.finish(&points, &clock, observe);
    }
}
