//! Stream capture, and the graphs that come of it.
//!
//! What a capturing stream is given becomes a node of a graph and is not run. A launch submits the nodes one after
//! another, in the order in which they were captured, which every dependency among them allows.

use crate::code::{self, Result};
use crate::executor::call_host;
use crate::machine::State;
use crate::order::{Action, HostFunction, Point, StreamId};

/// A capture that has begun and not ended.
pub struct Capture {
    /// Stream it was begun on.
    pub origin: StreamId,
    thread: u64,
    /// 0 global, 1 thread-local, 2 relaxed.
    mode: u32,
    /// Something was done that it does not allow.
    pub invalid: bool,
    /// The graph it fills.
    pub graph: u64,
    /// The graph was there before, and stays whatever comes of the capture.
    lent: bool,
    members: Vec<StreamId>,
}

/// A node of a graph.
#[derive(Clone)]
pub struct Node {
    /// Its handle.
    pub handle: u64,
    /// What it does.
    pub action: Action,
    /// Nodes that it follows.
    pub needs: Vec<u64>,
}

impl Node {
    /// Its type's number in the public header.
    pub fn kind(&self) -> u32 {
        match self.action {
            Action::Nothing => 0,
            Action::Copy { .. } | Action::Write { .. } => 1,
            Action::Fill { .. } => 2,
            Action::Call(_) | Action::CallBack(_) => 3,
            Action::Record(..) => 7,
            Action::GraphAlloc { .. } => 10,
            Action::GraphFree(_) | Action::Free(_) | Action::Spoil { .. } => 11,
        }
    }
}

/// Something of the caller's that graphs keep alive; its function is called when the last reference is gone.
pub struct UserObject {
    destroy: HostFunction,
    references: u64,
}

/// A graph.
#[derive(Clone, Default)]
pub struct Graph {
    /// Nodes in an order that their dependencies allow.
    pub nodes: Vec<Node>,
    /// Its number.
    pub id: u64,
    instances: u32,
    /// User objects it holds, with its references to each.
    objects: Vec<(u64, u64)>,
}

impl Graph {
    /// The addresses that its allocation nodes give.
    fn allocations(&self) -> impl Iterator<Item = (u64, u64)> {
        self.nodes.iter().filter_map(|node| match node.action {
            Action::GraphAlloc { at, len, .. } => Some((at, len)),
            _ => None,
        })
    }
}

/// A graph made ready to launch.
pub struct Executable {
    nodes: Vec<Node>,
    graph: u64,
    objects: Vec<(u64, u64)>,
    launched: Option<Point>,
    /// Flags of the instantiation.
    pub flags: u64,
}

impl State {
    // --- what may be done while something is captured

    /// Refuses a call that could disturb a capture: of this thread, unless that is relaxed, or a global one of any
    /// thread. The capture is invalid then. `mode` is how the thread treats such calls.
    pub fn unsafe_call(&mut self, thread: u64, mode: u32) -> Result<()> {
        if self.captures.is_empty() || mode == 2 {
            return Ok(());
        }
        let mut answer = Ok(());
        for capture in self.captures.values_mut() {
            let own = capture.thread == thread && capture.mode != 2;
            if own || mode == 0 && capture.mode == 0 {
                capture.invalid = true;
                answer = Err(code::STREAM_CAPTURE_UNSUPPORTED);
            }
        }
        answer
    }

    /// Refuses to wait for, or ask after, a stream that is being captured; the capture is invalid then.
    pub fn not_captured(&mut self, id: StreamId) -> Result<()> {
        if self.captures.is_empty() {
            return Ok(());
        }
        if self.streams[id].capture.is_some() {
            self.invalidate(id);
            return Err(code::STREAM_CAPTURE_UNSUPPORTED);
        }
        self.implicit(id)
    }

    /// Refuses to wait for a context that a stream is being captured in; the captures are invalid then.
    pub fn context_not_captured(&mut self, context: u64) -> Result<()> {
        let streams = self.capturing(context, false);
        if streams.is_empty() {
            return Ok(());
        }
        streams.into_iter().for_each(|id| self.invalidate(id));
        Err(code::STREAM_CAPTURE_UNSUPPORTED)
    }

    fn capturing(&self, context: u64, only_blocking: bool) -> Vec<StreamId> {
        if self.captures.is_empty() {
            return Vec::new();
        }
        let members = self.captures.values().flat_map(|capture| capture.members.iter().copied());
        let of = |id: &StreamId| {
            let stream = &self.streams[*id];
            stream.context == context && (!only_blocking || stream.blocking())
        };
        members.filter(of).collect()
    }

    /// Refuses the legacy stream while a blocking stream of its context is captured: it would have to wait for that.
    pub fn implicit(&mut self, id: StreamId) -> Result<()> {
        if self.captures.is_empty() || !self.streams[id].legacy {
            return Ok(());
        }
        let streams = self.capturing(self.streams[id].context, true);
        if streams.is_empty() {
            return Ok(());
        }
        streams.into_iter().for_each(|id| self.invalidate(id));
        Err(code::STREAM_CAPTURE_IMPLICIT)
    }

    pub(crate) fn invalidate(&mut self, id: StreamId) {
        if let Some(capture) = self.streams[id].capture.and_then(|number| self.captures.get_mut(&number)) {
            capture.invalid = true;
        }
    }

    // --- begin, end, ask

    /// Begins a capture.
    pub fn begin_capture(&mut self, id: StreamId, mode: u32, thread: u64) -> Result<()> {
        self.begin(id, mode, thread, None, &[])
    }

    /// Begins a capture that adds to a graph, after the nodes that `tips` names.
    pub fn begin_capture_to(&mut self, id: StreamId, graph: u64, tips: &[u64], mode: u32, thread: u64) -> Result<()> {
        let nodes = &self.graphs.get(&graph).ok_or(code::INVALID_VALUE)?.nodes;
        if tips.iter().any(|tip| !nodes.iter().any(|node| node.handle == *tip)) {
            return Err(code::INVALID_VALUE);
        }
        self.begin(id, mode, thread, Some(graph), tips)
    }

    fn begin(&mut self, id: StreamId, mode: u32, thread: u64, lent: Option<u64>, tips: &[u64]) -> Result<()> {
        if self.streams[id].legacy {
            return Err(code::STREAM_CAPTURE_UNSUPPORTED);
        }
        if self.streams[id].capture.is_some() {
            return Err(code::ILLEGAL_STATE);
        }
        let number = self.number();
        let graph = match lent {
            Some(graph) => graph,
            None => self.new_graph(),
        };
        let capture =
            Capture { origin: id, thread, mode, invalid: false, graph, lent: lent.is_some(), members: vec![id] };
        self.captures.insert(number, capture);
        self.streams[id].capture = Some(number);
        self.streams[id].tips = tips.to_vec();
        Ok(())
    }

    /// Ends a capture; gives its graph.
    pub fn end_capture(&mut self, id: StreamId, thread: u64) -> Result<u64> {
        let number = self.streams[id].capture.ok_or(code::ILLEGAL_STATE)?;
        let capture = self.captures.get_mut(&number).ok_or(code::ILLEGAL_STATE)?;
        if capture.origin != id {
            capture.invalid = true;
            return Err(code::STREAM_CAPTURE_UNMATCHED);
        }
        if capture.mode != 2 && capture.thread != thread {
            return Err(code::STREAM_CAPTURE_WRONG_THREAD);
        }
        let (invalid, graph, lent, members) = (capture.invalid, capture.graph, capture.lent, capture.members.clone());
        let joined = self.all_joined(id, graph, &members);
        members.into_iter().for_each(|member| self.streams[member].capture = None);
        self.captures.remove(&number);
        let answer = if invalid {
            Err(code::STREAM_CAPTURE_INVALIDATED)
        } else if !joined {
            Err(code::STREAM_CAPTURE_UNJOINED)
        } else {
            Ok(graph)
        };
        if answer.is_err() && !lent {
            self.destroy_graph(graph)?;
        }
        answer
    }

    /// Whether what other streams were given last precedes the origin's end.
    fn all_joined(&self, origin: StreamId, graph: u64, members: &[StreamId]) -> bool {
        let Some(graph) = self.graphs.get(&graph) else { return false };
        let mut before = self.streams[origin].tips.clone();
        for node in graph.nodes.iter().rev() {
            if before.contains(&node.handle) {
                before.extend(&node.needs);
            }
        }
        members.iter().flat_map(|&id| &self.streams[id].tips).all(|tip| before.contains(tip))
    }

    pub(crate) fn leave_capture(&mut self, id: StreamId) {
        if let Some(number) = self.streams[id].capture.take()
            && let Some(capture) = self.captures.get_mut(&number)
        {
            capture.members.retain(|&member| member != id);
            if capture.origin == id {
                // Nobody can end it any more.
                for member in std::mem::take(&mut capture.members) {
                    self.streams[member].capture = None;
                }
                self.captures.remove(&number);
            }
        }
    }

    /// 0 not capturing, 1 capturing, 2 invalid; with the capture's number.
    pub fn capture_status(&self, id: StreamId) -> Result<(u32, u64)> {
        if self.captures.is_empty() {
            return Ok((0, 0));
        }
        let stream = &self.streams[id];
        if stream.legacy && !self.capturing(stream.context, true).is_empty() {
            return Err(code::STREAM_CAPTURE_IMPLICIT);
        }
        let found = stream.capture.and_then(|number| self.captures.get(&number).map(|capture| (number, capture)));
        Ok(found.map_or((0, 0), |(number, capture)| (if capture.invalid { 2 } else { 1 }, number)))
    }

    /// The graph that a stream's capture fills.
    pub fn capture_graph(&self, id: StreamId) -> Option<u64> {
        self.captures.get(&self.streams[id].capture?).map(|capture| capture.graph)
    }

    // --- what a capturing stream is given

    /// The graph of a stream's valid capture.
    fn open_graph(&self, id: StreamId) -> Result<u64> {
        let capture = self.streams[id].capture.and_then(|number| self.captures.get(&number));
        let capture = capture.ok_or(code::ILLEGAL_STATE)?;
        if capture.invalid { Err(code::STREAM_CAPTURE_INVALIDATED) } else { Ok(capture.graph) }
    }

    pub(crate) fn add_node(&mut self, id: StreamId, action: Action) -> Result<()> {
        let graph = self.open_graph(id)?;
        let handle = self.handle();
        let needs = std::mem::replace(&mut self.streams[id].tips, vec![handle]);
        let graph = self.graphs.get_mut(&graph).ok_or(code::ILLEGAL_STATE)?;
        graph.nodes.push(Node { handle, action, needs });
        Ok(())
    }

    pub(crate) fn record_captured(&mut self, event: u64, id: StreamId) -> Result<()> {
        self.open_graph(id)?;
        let stream = &self.streams[id];
        let captured = stream.capture.map(|number| (number, stream.tips.clone()));
        if let Some(event) = self.events.get_mut(&event) {
            event.record += 1;
            event.captured = captured;
        }
        Ok(())
    }

    pub(crate) fn wait_captured(&mut self, id: StreamId, event: u64) -> Result<()> {
        let event = self.events.get(&event).ok_or(code::INVALID_HANDLE)?;
        let (own, recorded) = (self.streams[id].capture, event.record > 0);
        let captured = event.captured.clone().filter(|(number, _)| self.captures.contains_key(number));
        match (own, captured) {
            (None, None) => Err(code::CAPTURED_EVENT),
            (None, Some((number, tips))) => {
                if self.streams[id].legacy {
                    return Err(code::STREAM_CAPTURE_IMPLICIT);
                }
                let capture = self.captures.get_mut(&number).ok_or(code::CAPTURED_EVENT)?;
                if capture.invalid {
                    return Err(code::STREAM_CAPTURE_INVALIDATED);
                }
                capture.members.push(id);
                self.streams[id].capture = Some(number);
                self.streams[id].tips = tips;
                Ok(())
            }
            (Some(_), None) if !recorded => self.open_graph(id).map(drop),
            (Some(_), None) => {
                self.open_graph(id)?;
                self.invalidate(id);
                Err(code::STREAM_CAPTURE_ISOLATION)
            }
            (Some(own), Some((other, _))) if own != other => {
                self.open_graph(id)?;
                self.invalidate(id);
                if let Some(capture) = self.captures.get_mut(&other) {
                    capture.invalid = true;
                }
                Err(code::STREAM_CAPTURE_MERGE)
            }
            (Some(_), Some((_, tips))) => {
                self.open_graph(id)?;
                for tip in tips {
                    if !self.streams[id].tips.contains(&tip) {
                        self.streams[id].tips.push(tip);
                    }
                }
                Ok(())
            }
        }
    }

    pub(crate) fn capture_alloc(&mut self, id: StreamId, device: usize, len: u64) -> Result<u64> {
        self.open_graph(id)?;
        let at = self.memory.take(len, 512)?;
        self.add_node(id, Action::GraphAlloc { at, len, device })?;
        Ok(at)
    }

    /// Whether `at .. at + len` lies in memory that an allocation node of some graph gives when it is launched.
    pub fn in_graph_memory(&self, at: u64, len: u64) -> bool {
        let holds =
            |(start, size): (u64, u64)| at >= start && at.checked_add(len).is_some_and(|end| end <= start + size);
        self.graphs.values().flat_map(Graph::allocations).any(holds)
    }

    pub(crate) fn capture_free(&mut self, id: StreamId, address: u64) -> Result<()> {
        let graph = self.open_graph(id)?;
        let own = self.graphs.get(&graph).is_some_and(|graph| graph.allocations().any(|(at, _)| at == address));
        if !own {
            return Err(code::INVALID_VALUE);
        }
        self.add_node(id, Action::GraphFree(address))
    }

    pub(crate) fn drop_graph_memory(&mut self, at: u64) -> Result<()> {
        let region = self.memory.remove(at).ok_or(code::ILLEGAL_ADDRESS)?;
        if let Some(device) = region.kind.device() {
            self.devices[device].taken -= region.len;
        }
        Ok(())
    }

    // --- graphs

    /// An empty graph.
    pub fn new_graph(&mut self) -> u64 {
        let handle = self.handle();
        let id = self.number();
        self.graphs.insert(handle, Graph { id, ..Graph::default() });
        handle
    }

    /// Ends a graph; what was made of it stays.
    pub fn destroy_graph(&mut self, handle: u64) -> Result<()> {
        let graph = self.graphs.remove(&handle).ok_or(code::INVALID_VALUE)?;
        self.release_all(&graph.objects);
        if graph.instances == 0 {
            for (at, len) in graph.allocations() {
                // An address that a launch still holds stays taken.
                if !self.graph_live.contains_key(&at) && self.memory.find(at).is_none() {
                    self.memory.give_back(at, len);
                }
            }
        }
        Ok(())
    }

    /// Makes a graph ready to launch. One with allocation nodes only once at a time.
    pub fn instantiate(&mut self, handle: u64, flags: u64) -> Result<u64> {
        if flags & !0b1011 != 0 {
            return Err(if flags & !0b1111 == 0 { code::NOT_SUPPORTED } else { code::INVALID_VALUE });
        }
        let graph = self.graphs.get_mut(&handle).ok_or(code::INVALID_VALUE)?;
        if graph.instances > 0 && graph.allocations().next().is_some() {
            return Err(code::NOT_SUPPORTED);
        }
        graph.instances += 1;
        let nodes = graph.nodes.clone();
        // One reference to each object the graph holds.
        let objects: Vec<(u64, u64)> = graph.objects.iter().map(|&(object, _)| (object, 1)).collect();
        for &(object, count) in &objects {
            self.retain_object(object, count)?;
        }
        let executable = self.handle();
        self.executables.insert(executable, Executable { nodes, graph: handle, objects, launched: None, flags });
        Ok(executable)
    }

    /// Ends an executable graph; launches that were submitted still run.
    pub fn destroy_executable(&mut self, handle: u64) -> Result<()> {
        let executable = self.executables.remove(&handle).ok_or(code::INVALID_VALUE)?;
        if let Some(graph) = self.graphs.get_mut(&executable.graph) {
            graph.instances -= 1;
        }
        // What was launched still uses them.
        match executable.launched.filter(|&point| !self.has_run(point)) {
            Some(point) => self.objects_in_use.push((point, executable.objects)),
            None => self.release_all(&executable.objects),
        }
        Ok(())
    }

    // --- user objects

    /// A user object with `references` of the caller's.
    pub fn new_object(&mut self, destroy: HostFunction, references: u64) -> u64 {
        let handle = self.handle();
        self.objects.insert(handle, UserObject { destroy, references });
        handle
    }

    /// Adds references of the caller's.
    pub fn retain_object(&mut self, object: u64, count: u64) -> Result<()> {
        let object = self.objects.get_mut(&object).ok_or(code::INVALID_VALUE)?;
        object.references += count;
        Ok(())
    }

    /// Takes references away; with the last the object's function is called, on a thread of its own.
    pub fn release_object(&mut self, handle: u64, count: u64) -> Result<()> {
        let object = self.objects.get_mut(&handle).ok_or(code::INVALID_VALUE)?;
        object.references = object.references.checked_sub(count).ok_or(code::INVALID_VALUE)?;
        if object.references == 0 {
            let destroy = object.destroy;
            self.objects.remove(&handle);
            call_host(destroy);
        }
        Ok(())
    }

    fn release_all(&mut self, objects: &[(u64, u64)]) {
        for &(object, count) in objects {
            // The caller may have given back more than its own.
            let _ = self.release_object(object, count);
        }
    }

    /// Lets go of what finished launches of destroyed graphs used.
    pub(crate) fn release_unused(&mut self) {
        let in_use = std::mem::take(&mut self.objects_in_use);
        for (point, objects) in in_use {
            if self.has_run(point) {
                self.release_all(&objects);
            } else {
                self.objects_in_use.push((point, objects));
            }
        }
    }

    /// Makes a graph hold an object: with references of its own, or (`moved`) with the caller's.
    pub fn graph_retain(&mut self, graph: u64, object: u64, count: u64, moved: bool) -> Result<()> {
        self.graphs.get(&graph).ok_or(code::INVALID_VALUE)?;
        if !self.objects.get(&object).is_some_and(|object| !moved || object.references >= count) {
            return Err(code::INVALID_VALUE);
        }
        if !moved {
            self.retain_object(object, count)?;
        }
        let held = &mut self.graphs.get_mut(&graph).ok_or(code::INVALID_VALUE)?.objects;
        match held.iter_mut().find(|(known, _)| *known == object) {
            Some((_, references)) => *references += count,
            None => held.push((object, count)),
        }
        Ok(())
    }

    /// Takes references of a graph's away.
    pub fn graph_release(&mut self, graph: u64, object: u64, count: u64) -> Result<()> {
        let held = &mut self.graphs.get_mut(&graph).ok_or(code::INVALID_VALUE)?.objects;
        let (_, references) = held.iter_mut().find(|(known, _)| *known == object).ok_or(code::INVALID_VALUE)?;
        *references = references.checked_sub(count).ok_or(code::INVALID_VALUE)?;
        held.retain(|(_, references)| *references > 0);
        self.release_object(object, count)
    }

    /// Submits a graph's nodes. Memory that the last launch left allocated makes it INVALID_VALUE, unless the graph was
    /// instantiated to free it.
    pub fn launch_graph(&mut self, handle: u64, id: StreamId) -> Result<()> {
        let executable = self.executables.get(&handle).ok_or(code::INVALID_VALUE)?;
        let (nodes, auto_free) = (executable.nodes.clone(), executable.flags & 1 != 0);
        if self.streams[id].capture.is_some() {
            return Err(code::NOT_SUPPORTED);
        }
        self.implicit(id)?;
        let given = |node: &Node| match node.action {
            Action::GraphAlloc { at, .. } => Some(at),
            _ => None,
        };
        let held: Vec<u64> = nodes.iter().filter_map(given).filter(|at| self.graph_live.contains_key(at)).collect();
        if !held.is_empty() && !auto_free {
            return Err(code::INVALID_VALUE);
        }
        for at in held {
            self.graph_live.remove(&at);
            self.submit(id, Action::GraphFree(at), true)?;
        }
        // Even a graph without nodes is work in its stream.
        self.submit(id, Action::Nothing, true)?;
        for node in nodes {
            match node.action {
                Action::GraphAlloc { at, len, device } => {
                    self.graph_live.insert(at, (len, device));
                }
                Action::GraphFree(at) => {
                    self.graph_live.remove(&at);
                }
                _ => {}
            }
            self.submit(id, node.action, true)?;
        }
        let end = (id, self.streams[id].submitted);
        if let Some(executable) = self.executables.get_mut(&handle) {
            executable.launched = Some(end);
        }
        Ok(())
    }
}
