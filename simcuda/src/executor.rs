//! What runs when: eagerly, only when asked, or in a seeded adversarial order.

use std::time::Instant;

use crate::code::{self, Result};
use crate::config::Mode;
use crate::ffi::host_call;
use crate::machine::{Machine, State};
use crate::memory::{Kind, Place};
use crate::order::{Action, Clock, HostFunction, Operation, Point, Random, StreamId};

fn step(place: Place, by: u64) -> Place {
    match place {
        Place::Device(at) => Place::Device(at + by),
        Place::Host(at) => Place::Host(at + by),
    }
}

/// Calls the host on a thread of its own, where it may not call the driver.
pub(crate) fn call_host((function, data): HostFunction) {
    std::thread::spawn(move || host_call(|| function(data as *mut std::ffi::c_void)));
}

impl State {
    fn runnable(&self, id: StreamId) -> bool {
        let stream = &self.streams[id];
        let ready = |op: &Operation| op.needs.iter().all(|&point| self.has_run(point));
        !stream.gated && !stream.calling && stream.queue.front().is_some_and(ready)
    }

    /// Runs the operation at the head of a runnable stream.
    fn run_head(&mut self, id: StreamId, machine: &'static Machine) {
        let Some(operation) = self.streams[id].queue.pop_front() else { return };
        let function: Box<dyn FnOnce() + Send> = match operation.action {
            Action::Call((function, data)) => Box::new(move || function(data as *mut std::ffi::c_void)),
            Action::CallBack((function, stream, data)) => {
                let status = self.check(self.streams[id].context).map_or_else(|code| code.0, |()| 0);
                Box::new(move || function(stream, status, data as *mut std::ffi::c_void))
            }
            action => {
                if let Err(code) = self.perform(action) {
                    let context = self.streams[id].context;
                    self.lose(context, code);
                }
                self.streams[id].executed += 1;
                return;
            }
        };
        self.streams[id].calling = true;
        std::thread::spawn(move || {
            host_call(function);
            let mut state = machine.lock();
            let stream = &mut state.streams[id];
            stream.calling = false;
            // A context that ended meanwhile has counted it already.
            stream.executed = stream.submitted.min(stream.executed + 1);
            state.stir(machine);
            machine.changed.notify_all();
        });
    }

    fn perform(&mut self, action: Action) -> Result<()> {
        match action {
            Action::Copy { to, from, shape } => shape
                .offsets()
                .try_for_each(|(write, read)| self.memory.copy(step(to, write), step(from, read), shape.width)),
            Action::Write { to, shape, bytes } => {
                let rows = bytes.chunks(usize::try_from(shape.width.max(1)).map_err(|_| code::INVALID_VALUE)?);
                rows.zip(shape.offsets()).try_for_each(|(row, (at, _))| self.memory.write(step(to, at), row))
            }
            Action::Fill { to, pattern, size, shape } => {
                shape.offsets().try_for_each(|(at, _)| self.memory.fill(to + at, &pattern[..size.into()], shape.width))
            }
            Action::Record(handle, number) => {
                if let Some(event) = self.events.get_mut(&handle).filter(|event| event.record == number) {
                    event.time = Some(Instant::now());
                }
                Ok(())
            }
            // Freed twice: the second comes too late to be told.
            Action::Free(address) => self.free_plain(address).map_err(|_| code::ILLEGAL_ADDRESS),
            Action::Spoil { at, len } => {
                self.memory.spoil(at, len);
                Ok(())
            }
            Action::GraphAlloc { at, len, device } => {
                self.charge(device, len)?;
                self.memory.back(at, len, Kind::Graph { device })
            }
            Action::GraphFree(at) => self.drop_graph_memory(at),
            Action::Nothing | Action::Call(_) | Action::CallBack(_) => Ok(()),
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

    /// Runs at most `count` operations of the stream; stops at a wait that is not met. Gives how many ran.
    pub fn run(&mut self, id: StreamId, count: u64, machine: &'static Machine) -> u64 {
        let mut ran = 0;
        while ran < count && self.runnable(id) {
            self.run_head(id, machine);
            ran += 1;
        }
        ran
    }

    /// Lets streams run as the mode has it; called at every submission and query.
    pub fn stir(&mut self, machine: &'static Machine) {
        match self.config.mode {
            Mode::Lazy => {}
            Mode::Eager => self.run_all(machine),
            Mode::Adversarial => {
                if !self.busy.is_empty() && self.random.below(16) == 0 {
                    let id = self.busy[self.random.below(self.busy.len() as u64) as usize];
                    self.streams[id].starved = !self.streams[id].starved;
                }
                for _ in 0..self.random.below(4) {
                    let fed = |id: &StreamId| self.runnable(*id) && !self.streams[*id].starved;
                    let ready: Vec<StreamId> = self.busy.iter().copied().filter(fed).collect();
                    if ready.is_empty() {
                        break;
                    }
                    let pick = self.random.below(ready.len() as u64) as usize;
                    self.run_head(ready[pick], machine);
                }
            }
        }
        if !self.objects_in_use.is_empty() {
            self.release_unused();
        }
        let streams = &mut self.streams;
        self.busy.retain(|&id| {
            streams[id].listed = !streams[id].queue.is_empty();
            streams[id].listed
        });
    }

    /// Runs all that no gate and no host call holds.
    pub fn run_all(&mut self, machine: &'static Machine) {
        let mut moved = true;
        while moved {
            moved = false;
            for at in 0..self.busy.len() {
                let id = self.busy[at];
                while self.runnable(id) {
                    self.run_head(id, machine);
                    moved = true;
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

    /// Changes the order of execution from now on.
    pub fn set_mode(&mut self, mode: Mode, seed: u64) {
        self.config.mode = mode;
        self.config.seed = seed;
        self.random = Random(seed);
        self.streams.iter_mut().for_each(|stream| stream.starved = false);
    }
}

impl Machine {
    /// Opens or closes a stream's gate.
    pub fn gate(&'static self, id: StreamId, closed: bool) {
        let mut state = self.lock();
        state.streams[id].gated = closed;
        state.stir(self);
        self.changed.notify_all();
    }

    /// Runs at most `count` operations of a stream; gives how many ran.
    pub fn run(&'static self, id: StreamId, count: u64) -> u64 {
        let ran = self.lock().run(id, count, self);
        self.changed.notify_all();
        ran
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
        state.release_unused();
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
            let mut guard = self.lock();
            let state = &mut *guard;
            let (mut clock, mut points) = (Clock::default(), Vec::new());
            if let Some(context) = state.contexts.get(&context) {
                for &id in &context.streams {
                    let stream = &state.streams[id];
                    points.push((id, stream.submitted));
                    clock.merge(&stream.clock);
                }
            }
            (points, clock)
        };
        self.finish(&points, &clock, observe);
        if observe {
            self.forget_destroyed(context);
        }
    }

    /// Ends a context, after all of it has run that can.
    pub fn end_context(&'static self, context: u64) {
        let mut state = self.lock();
        state.run_all(self);
        state.end_context(context);
        state.stir(self);
        self.changed.notify_all();
    }

    /// Streams whose handle is gone and whose work is observed no longer matter to barriers and synchronises.
    fn forget_destroyed(&self, context: u64) {
        let mut guard = self.lock();
        let state = &mut *guard;
        let live: std::collections::HashSet<StreamId> = state.handles.values().copied().collect();
        let (streams, observed) = (&state.streams, &state.observed);
        if let Some(context) = state.contexts.get_mut(&context) {
            let kept = context.kept();
            context.streams.retain(|id| {
                let stream = &streams[*id];
                live.contains(id)
                    || kept.contains(id)
                    || stream.executed < stream.submitted
                    || stream.submitted > 0 && !observed.holds((*id, stream.submitted))
            });
        }
    }
}
