//! Streams, host functions in them, and their capture.

use std::ffi::c_void;

use super::Handle;
use crate::code;
use crate::ffi::{Call, In, Out};
use crate::order::Action;

const PRIORITIES: std::ops::RangeInclusive<i32> = -5..=0;

fn create(c: &Call, to: Out<Handle>, flags: u32, priority: i32) -> code::Result<()> {
    let context = c.context()?;
    to.check()?;
    if flags > 1 {
        return Err(code::INVALID_VALUE);
    }
    to.set(c.lock().new_stream(context, flags, priority.clamp(*PRIORITIES.start(), *PRIORITIES.end())))
}

fn host_function(
    c: &Call,
    stream: Handle,
    function: Option<extern "C" fn(*mut c_void)>,
    data: usize,
) -> code::Result<()> {
    let function = function.ok_or(code::INVALID_VALUE)?;
    let id = c.stream(stream)?;
    let mut state = c.lock();
    state.enqueue(id, Action::Call((function, data)), true)?;
    state.stir(c.machine);
    Ok(())
}

fn begin_capture(c: &Call, stream: Handle, mode: u32) -> code::Result<()> {
    let id = c.stream(stream)?;
    if mode > 2 {
        return Err(code::INVALID_VALUE);
    }
    c.lock().begin_capture(id, mode, c.thread.id)
}

/// What a capture's status query gives besides the status.
struct CaptureInfo {
    id: Out<u64>,
    graph: Option<Out<Handle>>,
    tips: Option<Out<*const u64>>,
    edges: Option<Out<u64>>,
    count: Option<Out<usize>>,
}

fn capture_info(c: &Call, stream: Handle, status: Out<u32>, info: &CaptureInfo) -> code::Result<()> {
    status.check()?;
    let id = c.stream(stream)?;
    let state = c.lock();
    let (which, number) = state.capture_status(id)?;
    status.set(which)?;
    if which != 1 {
        return Ok(());
    }
    let tips = &state.streams[id].tips;
    info.id.set_if_wanted(number);
    if let (Some(to), Some(graph)) = (info.graph, state.capture_graph(id)) {
        to.set_if_wanted(graph);
    }
    if let Some(to) = info.tips {
        // Stays good until the stream is given something else, which is what CUDA promises.
        to.set_if_wanted(if tips.is_empty() { std::ptr::null() } else { tips.as_ptr() });
    }
    if let Some(to) = info.edges {
        // No edge carries data.
        to.set_if_wanted(0);
    }
    if let Some(to) = info.count {
        to.set_if_wanted(tips.len());
    }
    Ok(())
}

entries! {
    "cuStreamCreate" 2000 cuStreamCreate => (c, to: Out<Handle>, flags: u32) { create(c, to, flags, 0) }
    "cuStreamCreateWithPriority" 5050 cuStreamCreateWithPriority => (c, to: Out<Handle>, flags: u32, priority: i32) {
        create(c, to, flags, priority)
    }
    "cuStreamDestroy" 4000 cuStreamDestroy_v2 => (c, stream: Handle) {
        let mut state = c.lock();
        state.destroy_stream(stream)?;
        state.stir(c.machine);
        Ok(())
    }
    "cuStreamGetFlags" 5050 cuStreamGetFlags | cuStreamGetFlags_ptsz => (c, stream: Handle, to: Out<u32>) {
        to.check()?;
        let id = c.stream(stream)?;
        to.set(c.lock().streams[id].flags)
    }
    "cuStreamGetPriority" 5050 cuStreamGetPriority | cuStreamGetPriority_ptsz => (c, stream: Handle, to: Out<i32>) {
        to.check()?;
        let id = c.stream(stream)?;
        to.set(c.lock().streams[id].priority)
    }
    "cuStreamGetCtx" 9020 cuStreamGetCtx | cuStreamGetCtx_ptsz => (c, stream: Handle, to: Out<Handle>) {
        to.check()?;
        let id = c.stream(stream)?;
        to.set(c.lock().streams[id].context)
    }
    "cuStreamGetCtx" 12050 cuStreamGetCtx_v2 | cuStreamGetCtx_v2_ptsz => (
        c, stream: Handle, to: Out<Handle>, green: Out<Handle>) {
        to.check()?;
        let id = c.stream(stream)?;
        // There are no green contexts.
        green.set_if_wanted(0);
        to.set(c.lock().streams[id].context)
    }
    "cuStreamGetId" 12000 cuStreamGetId | cuStreamGetId_ptsz => (c, stream: Handle, to: Out<u64>) {
        to.check()?;
        let id = c.stream(stream)?;
        to.set(id as u64 + 1)
    }
    "cuStreamGetDevice" 12080 cuStreamGetDevice | cuStreamGetDevice_ptsz => (c, stream: Handle, to: Out<i32>) {
        to.check()?;
        let id = c.stream(stream)?;
        let state = c.lock();
        let context = state.contexts.get(&state.streams[id].context).ok_or(code::INVALID_CONTEXT)?;
        to.set(context.device as i32)
    }
    "cuStreamSynchronize" 2000 cuStreamSynchronize | cuStreamSynchronize_ptsz => (c, stream: Handle) {
        let id = c.stream(stream)?;
        c.lock().not_captured(id)?;
        c.machine.finish_stream(id);
        let state = c.lock();
        state.check(state.streams[id].context)
    }
    "cuStreamQuery" 2000 cuStreamQuery | cuStreamQuery_ptsz => (c, stream: Handle) {
        let id = c.stream(stream)?;
        let mut state = c.lock();
        state.not_captured(id)?;
        state.stir(c.machine);
        let end = (id, state.streams[id].submitted);
        let done = state.query(end, c.machine);
        state.check(state.streams[id].context)?;
        if done { Ok(()) } else { Err(code::NOT_READY) }
    }
    "cuStreamWaitEvent" 3020 cuStreamWaitEvent | cuStreamWaitEvent_ptsz => (
        c, stream: Handle, event: Handle, flags: u32) {
        if flags > 1 { return Err(code::INVALID_VALUE); }
        let id = c.stream(stream)?;
        let mut state = c.lock();
        state.wait(id, event)?;
        state.stir(c.machine);
        Ok(())
    }
    "cuLaunchHostFunc" 10000 cuLaunchHostFunc | cuLaunchHostFunc_ptsz => (
        c, stream: Handle, function: Option<extern "C" fn(*mut c_void)>, data: usize) {
        host_function(c, stream, function, data)
    }
    "cuLaunchHostFunc" 13010 cuLaunchHostFunc_v2 | cuLaunchHostFunc_v2_ptsz => (
        c, stream: Handle, function: Option<extern "C" fn(*mut c_void)>, data: usize, sync_mode: u32) {
        if sync_mode > 1 { return Err(code::INVALID_VALUE); }
        host_function(c, stream, function, data)
    }
    "cuStreamAddCallback" 5000 cuStreamAddCallback | cuStreamAddCallback_ptsz => (
        c, stream: Handle, function: Option<extern "C" fn(u64, u32, *mut c_void)>, data: usize, flags: u32) {
        let function = function.ok_or(code::INVALID_VALUE)?;
        if flags != 0 { return Err(code::INVALID_VALUE); }
        let id = c.stream(stream)?;
        let mut state = c.lock();
        // The older form cannot be captured.
        state.not_captured(id)?;
        state.enqueue(id, Action::CallBack((function, stream, data)), true)?;
        state.stir(c.machine);
        Ok(())
    }
    "cuStreamAttachMemAsync" 6000 cuStreamAttachMemAsync | cuStreamAttachMemAsync_ptsz => (
        c, stream: Handle, at: u64, len: usize, flags: u32) {
        let _ = len;
        let id = c.stream(stream)?;
        if !matches!(flags, 1 | 2 | 4) { return Err(code::INVALID_VALUE); }
        let mut state = c.lock();
        state.memory.find(at).ok_or(code::INVALID_VALUE)?;
        state.enqueue(id, Action::Nothing, true)?;
        state.stir(c.machine);
        Ok(())
    }

    "cuStreamBeginCapture" 10000 cuStreamBeginCapture | cuStreamBeginCapture_ptsz => (c, stream: Handle) {
        begin_capture(c, stream, 0)
    }
    "cuStreamBeginCapture" 10010 cuStreamBeginCapture_v2 | cuStreamBeginCapture_v2_ptsz => (
        c, stream: Handle, mode: u32) {
        begin_capture(c, stream, mode)
    }
    "cuStreamBeginCaptureToGraph" 12030 cuStreamBeginCaptureToGraph | cuStreamBeginCaptureToGraph_ptsz => (
        c, stream: Handle, graph: Handle, needs: In<u64>, edges: In<u64>, count: usize, mode: u32) {
        let id = c.stream(stream)?;
        if mode > 2 { return Err(code::INVALID_VALUE); }
        // No edge carries data.
        if !edges.is_null() && count > 0 { return Err(code::NOT_SUPPORTED); }
        let tips = (0..count).map(|index| needs.at(index).get()).collect::<code::Result<Vec<u64>>>()?;
        c.lock().begin_capture_to(id, graph, &tips, mode, c.thread.id)
    }
    "cuStreamEndCapture" 10000 cuStreamEndCapture | cuStreamEndCapture_ptsz => (c, stream: Handle, to: Out<Handle>) {
        to.check()?;
        let id = c.stream(stream)?;
        let answer = c.lock().end_capture(id, c.thread.id);
        to.set(answer.unwrap_or(0))?;
        answer.map(drop)
    }
    "cuStreamIsCapturing" 10000 cuStreamIsCapturing | cuStreamIsCapturing_ptsz => (c, stream: Handle, to: Out<u32>) {
        to.check()?;
        let id = c.stream(stream)?;
        let (status, _) = c.lock().capture_status(id)?;
        to.set(status)
    }
    "cuStreamGetCaptureInfo" 10010 cuStreamGetCaptureInfo | cuStreamGetCaptureInfo_ptsz => (
        c, stream: Handle, status: Out<u32>, id: Out<u64>) {
        capture_info(c, stream, status, &CaptureInfo { id, graph: None, tips: None, edges: None, count: None })
    }
    "cuStreamGetCaptureInfo" 11030 cuStreamGetCaptureInfo_v2 | cuStreamGetCaptureInfo_v2_ptsz => (
        c, stream: Handle, status: Out<u32>, id: Out<u64>, graph: Out<Handle>, tips: Out<*const u64>,
        count: Out<usize>) {
        let (graph, tips, count) = (Some(graph), Some(tips), Some(count));
        capture_info(c, stream, status, &CaptureInfo { id, graph, tips, edges: None, count })
    }
    "cuStreamGetCaptureInfo" 12030 cuStreamGetCaptureInfo_v3 | cuStreamGetCaptureInfo_v3_ptsz => (
        c, stream: Handle, status: Out<u32>, id: Out<u64>, graph: Out<Handle>, tips: Out<*const u64>,
        edges: Out<u64>, count: Out<usize>) {
        let (graph, tips, edges, count) = (Some(graph), Some(tips), Some(edges), Some(count));
        capture_info(c, stream, status, &CaptureInfo { id, graph, tips, edges, count })
    }
    "cuThreadExchangeStreamCaptureMode" 10010 cuThreadExchangeStreamCaptureMode => (c, mode: Out<u32>) {
        let wanted = mode.get()?;
        if wanted > 2 { return Err(code::INVALID_VALUE); }
        mode.set(c.thread.capture_mode.replace(wanted))
    }
}
