//! Graphs that come of captures: looked at, made ready, launched.

use std::ffi::c_void;

use super::{Handle, device_of};
use crate::capture::Node;
use crate::code;
use crate::ffi::{Call, In, Out};

/// Fills an array of at most `*count` elements, and says how many there are; without an array only the latter.
fn list(all: &[u64], to: Out<u64>, count: Out<usize>) -> code::Result<()> {
    let room = count.get()?;
    if to.is_null() {
        return count.set(all.len());
    }
    for index in 0..room {
        to.at(index).set(all.get(index).copied().unwrap_or(0))?;
    }
    count.set(all.len().min(room))
}

fn node(c: &Call, handle: Handle) -> code::Result<Node> {
    let state = c.lock();
    let found = state.graphs.values().flat_map(|graph| &graph.nodes).find(|node| node.handle == handle);
    found.cloned().ok_or(code::INVALID_VALUE)
}

fn instantiate(c: &Call, to: Out<Handle>, graph: Handle, flags: u64) -> code::Result<()> {
    to.check()?;
    let executable = c.lock().instantiate(graph, flags)?;
    to.set(executable)
}

entries! {
    "cuGraphCreate" 10000 cuGraphCreate => (c, to: Out<Handle>, flags: u32) {
        to.check()?;
        if flags != 0 { return Err(code::INVALID_VALUE); }
        let graph = c.lock().new_graph();
        to.set(graph)
    }
    "cuGraphDestroy" 10000 cuGraphDestroy => (c, graph: Handle) { c.lock().destroy_graph(graph) }
    "cuGraphGetId" 13010 cuGraphGetId => (c, graph: Handle, to: Out<u32>) {
        to.check()?;
        let id = c.lock().graphs.get(&graph).ok_or(code::INVALID_VALUE)?.id;
        to.set(id as u32)
    }
    "cuGraphGetNodes" 10000 cuGraphGetNodes => (c, graph: Handle, to: Out<u64>, count: Out<usize>) {
        let state = c.lock();
        let graph = state.graphs.get(&graph).ok_or(code::INVALID_VALUE)?;
        list(&graph.nodes.iter().map(|node| node.handle).collect::<Vec<_>>(), to, count)
    }
    "cuGraphGetRootNodes" 10000 cuGraphGetRootNodes => (c, graph: Handle, to: Out<u64>, count: Out<usize>) {
        let state = c.lock();
        let graph = state.graphs.get(&graph).ok_or(code::INVALID_VALUE)?;
        let roots = graph.nodes.iter().filter(|node| node.needs.is_empty());
        list(&roots.map(|node| node.handle).collect::<Vec<_>>(), to, count)
    }
    "cuGraphNodeGetType" 10000 cuGraphNodeGetType => (c, handle: Handle, to: Out<u32>) {
        to.check()?;
        to.set(node(c, handle)?.kind())
    }
    "cuGraphNodeGetDependencies" 10000 cuGraphNodeGetDependencies => (
        c, handle: Handle, to: Out<u64>, count: Out<usize>) {
        list(&node(c, handle)?.needs, to, count)
    }
    "cuGraphInstantiate" 10000 cuGraphInstantiate => (
        c, to: Out<Handle>, graph: Handle, error: Out<Handle>, log: Out<u8>, len: usize) {
        let _ = len;
        error.set_if_wanted(0);
        if len > 0 { log.set_if_wanted(0); }
        instantiate(c, to, graph, 0)
    }
    "cuGraphInstantiate" 11000 cuGraphInstantiate_v2 => (
        c, to: Out<Handle>, graph: Handle, error: Out<Handle>, log: Out<u8>, len: usize) {
        error.set_if_wanted(0);
        if len > 0 { log.set_if_wanted(0); }
        instantiate(c, to, graph, 0)
    }
    "cuGraphInstantiateWithFlags" 11040 cuGraphInstantiateWithFlags => (
        c, to: Out<Handle>, graph: Handle, flags: u64) {
        instantiate(c, to, graph, flags)
    }
    "cuGraphInstantiateWithParams" 12000 cuGraphInstantiateWithParams | cuGraphInstantiateWithParams_ptsz => (
        c, to: Out<Handle>, graph: Handle, params: Out<[u64; 4]>) {
        // Flags, a stream to upload on, and two results: the node that failed, and why (0: nothing did).
        let [flags, upload, _, _] = params.get()?;
        instantiate(c, to, graph, flags)?;
        params.set([flags, upload, 0, 0])
    }
    "cuGraphExecDestroy" 10000 cuGraphExecDestroy => (c, executable: Handle) {
        c.lock().destroy_executable(executable)
    }
    "cuGraphExecGetFlags" 12000 cuGraphExecGetFlags => (c, executable: Handle, to: Out<u64>) {
        to.check()?;
        let flags = c.lock().executables.get(&executable).ok_or(code::INVALID_VALUE)?.flags;
        to.set(flags)
    }
    "cuGraphUpload" 11010 cuGraphUpload | cuGraphUpload_ptsz => (c, executable: Handle, stream: Handle) {
        c.stream(stream)?;
        // Nothing is prepared: launches submit the nodes as they are.
        c.lock().executables.get(&executable).map(drop).ok_or(code::INVALID_VALUE)
    }
    "cuGraphLaunch" 10000 cuGraphLaunch | cuGraphLaunch_ptsz => (c, executable: Handle, stream: Handle) {
        let id = c.stream(stream)?;
        let mut state = c.lock();
        state.launch_graph(executable, id)?;
        state.stir(c.machine);
        Ok(())
    }
    "cuUserObjectCreate" 11030 cuUserObjectCreate => (
        c, to: Out<Handle>, data: usize, destroy: Option<extern "C" fn(*mut c_void)>, references: u32, flags: u32) {
        to.check()?;
        let destroy = destroy.ok_or(code::INVALID_VALUE)?;
        // The only flag, and it must be set: nobody can wait for the destructor.
        if references == 0 || flags != 1 { return Err(code::INVALID_VALUE); }
        let object = c.lock().new_object((destroy, data), references.into());
        to.set(object)
    }
    "cuUserObjectRetain" 11030 cuUserObjectRetain => (c, object: Handle, count: u32) {
        if count == 0 { return Err(code::INVALID_VALUE); }
        c.lock().retain_object(object, count.into())
    }
    "cuUserObjectRelease" 11030 cuUserObjectRelease => (c, object: Handle, count: u32) {
        if count == 0 { return Err(code::INVALID_VALUE); }
        c.lock().release_object(object, count.into())
    }
    "cuGraphRetainUserObject" 11030 cuGraphRetainUserObject => (
        c, graph: Handle, object: Handle, count: u32, flags: u32) {
        if count == 0 || flags > 1 { return Err(code::INVALID_VALUE); }
        c.lock().graph_retain(graph, object, count.into(), flags == 1)
    }
    "cuGraphReleaseUserObject" 11030 cuGraphReleaseUserObject => (c, graph: Handle, object: Handle, count: u32) {
        if count == 0 { return Err(code::INVALID_VALUE); }
        c.lock().graph_release(graph, object, count.into())
    }
    "cuDeviceSetGraphMemAttribute" 11040 cuDeviceSetGraphMemAttribute => (c, dev: i32, which: u32, from: In<u64>) {
        device_of(c, dev)?;
        // Only the marks may be set, and only to 0; they are not kept.
        match (which, from.get()?) {
            (1 | 3, 0) => Err(code::NOT_SUPPORTED),
            _ => Err(code::INVALID_VALUE),
        }
    }
}
