//! Copies and sets, of lines, planes and boxes.

use super::{Handle, Ptr};
use crate::code;
use crate::ffi::{Call, In};
use crate::machine::State;
use crate::memory::{Access, Place};
use crate::order::{Action, Shape, StreamId};

/// The place an address means: device memory where something lies or may lie, else the caller's own memory.
fn unified(state: &State, at: Ptr) -> Place {
    let known = state.memory.is_devices(at) || state.memory.find(at).is_some();
    if known { Place::Device(at) } else { Place::Host(at) }
}

/// Refuses an end of a copy that is not there, or that the stream's device may not reach.
fn reachable(state: &State, id: StreamId, place: Place, len: Option<u64>, write: bool) -> code::Result<()> {
    let len = len.ok_or(code::INVALID_VALUE)?;
    let device = state.contexts.get(&state.streams[id].context).map_or(0, |context| context.device);
    let access = Access { write, devices: 1 << device };
    match place {
        // Captured work may use what its graph allocates when it is launched.
        Place::Device(at) if state.streams[id].capture.is_some() && state.in_graph_memory(at, len) => Ok(()),
        Place::Device(at) if !state.memory.accessible(at, len, access) => Err(code::INVALID_VALUE),
        Place::Host(0) if len > 0 => Err(code::INVALID_VALUE),
        _ => Ok(()),
    }
}

/// Whether the host may change or read the bytes at any time, unseen by the driver.
fn pageable(state: &State, place: Place) -> bool {
    match place {
        Place::Host(at) => state.memory.find(at).is_none(),
        Place::Device(_) => false,
    }
}

/// Copies in stream order. Pageable sources are read now and pageable targets written before the call returns, as CUDA
/// has it; `wait` makes the call synchronous.
fn copy(c: &Call, to: Place, from: Place, shape: Shape, stream: Handle, wait: bool) -> code::Result<()> {
    if wait {
        c.outside_capture()?;
    }
    let id = c.stream(stream)?;
    let mut state = c.lock();
    reachable(&state, id, to, shape.span(shape.to_pitch, shape.to_slice), true)?;
    reachable(&state, id, from, shape.span(shape.from_pitch, shape.from_slice), false)?;
    if shape.width == 0 || shape.rows == 0 || shape.slices == 0 {
        return Ok(());
    }
    let wait = wait || pageable(&state, to);
    // A captured copy reads its source when it is launched.
    let action = if pageable(&state, from) && state.streams[id].capture.is_none() {
        let mut bytes = Vec::new();
        for (_, at) in shape.offsets() {
            let place = match from {
                Place::Host(start) => Place::Host(start + at),
                Place::Device(start) => Place::Device(start + at),
            };
            bytes.extend(state.memory.read(place, shape.width)?);
        }
        Action::Write { to, shape, bytes }
    } else {
        Action::Copy { to, from, shape }
    };
    let Some(point) = state.enqueue(id, action, true)? else { return Ok(()) };
    state.stir(c.machine);
    let context = state.streams[id].context;
    drop(state);
    if wait {
        c.machine.finish(&[point], &Default::default(), false);
        c.lock().check(context)?;
    }
    Ok(())
}

/// Copies between addresses of which either may be anything.
fn copy_unified(c: &Call, to: Ptr, from: Ptr, len: usize, stream: Handle, wait: bool) -> code::Result<()> {
    let (to, from) = {
        let state = c.lock();
        (unified(&state, to), unified(&state, from))
    };
    copy(c, to, from, Shape::line(len as u64), stream, wait)
}

/// An end of a copy of a plane or box, as its structure describes it.
struct End {
    x: u64,
    y: u64,
    z: u64,
    kind: u64,
    host: u64,
    device: u64,
    pitch: u64,
    height: u64,
}

impl End {
    /// Its first byte, its pitch and its slice's size.
    fn place(&self, state: &State, width: u64, deep: bool) -> code::Result<(Place, u64, u64)> {
        let base = match self.kind as u32 {
            1 => self.host,
            2 | 4 => self.device,
            // Arrays are not there.
            3 => return Err(code::NOT_SUPPORTED),
            _ => return Err(code::INVALID_VALUE),
        };
        let pitch = if self.pitch == 0 { width } else { self.pitch };
        if pitch < width.saturating_add(self.x) && (self.pitch != 0 || self.x != 0) {
            return Err(code::INVALID_VALUE);
        }
        let slice = if deep { pitch.checked_mul(self.height).ok_or(code::INVALID_VALUE)? } else { 0 };
        let part = |count: u64, size: u64| count.checked_mul(size);
        let skip = part(self.z, slice).and_then(|z| part(self.y, pitch)?.checked_add(z)?.checked_add(self.x));
        let at = skip.and_then(|skip| base.checked_add(skip)).ok_or(code::INVALID_VALUE)?;
        let place = match self.kind as u32 {
            1 => Place::Host(at),
            2 => Place::Device(at),
            _ => unified(state, at),
        };
        Ok((place, pitch, slice))
    }
}

/// `size` is width, height and, for boxes, depth.
fn copy_shape(
    c: &Call,
    to: &End,
    from: &End,
    size: [u64; 3],
    deep: bool,
    stream: Handle,
    wait: bool,
) -> code::Result<()> {
    let [width, rows, slices] = size;
    let (to, from, shape) = {
        let state = c.lock();
        let (to, to_pitch, to_slice) = to.place(&state, width, deep)?;
        let (from, from_pitch, from_slice) = from.place(&state, width, deep)?;
        (to, from, Shape { width, rows, slices, to_pitch, from_pitch, to_slice, from_slice })
    };
    copy(c, to, from, shape, stream, wait)
}

fn copy_plane(c: &Call, what: In<[u64; 16]>, stream: Handle, wait: bool) -> code::Result<()> {
    let w = what.get()?;
    let end = |at: usize| End {
        x: w[at],
        y: w[at + 1],
        z: 0,
        kind: w[at + 2],
        host: w[at + 3],
        device: w[at + 4],
        pitch: w[at + 6],
        height: 0,
    };
    copy_shape(c, &end(7), &end(0), [w[14], w[15], 1], false, stream, wait)
}

fn box_end(w: &[u64], at: usize) -> End {
    End {
        x: w[at],
        y: w[at + 1],
        z: w[at + 2],
        kind: w[at + 4],
        host: w[at + 5],
        device: w[at + 6],
        pitch: w[at + 9],
        height: w[at + 10],
    }
}

fn copy_box(c: &Call, what: In<[u64; 25]>, stream: Handle, wait: bool) -> code::Result<()> {
    let w = what.get()?;
    copy_shape(c, &box_end(&w, 11), &box_end(&w, 0), [w[22], w[23], w[24]], true, stream, wait)
}

fn fill(c: &Call, to: Ptr, pattern: &[u8], shape: Shape, stream: Handle) -> code::Result<()> {
    let id = c.stream(stream)?;
    let size = pattern.len() as u64;
    if !to.is_multiple_of(size) || !shape.to_pitch.is_multiple_of(size) {
        return Err(code::INVALID_VALUE);
    }
    let width = shape.width.checked_mul(size).ok_or(code::INVALID_VALUE)?;
    if shape.rows > 1 && shape.to_pitch < width {
        return Err(code::INVALID_VALUE);
    }
    let shape = Shape { width, ..shape };
    let mut state = c.lock();
    reachable(&state, id, Place::Device(to), shape.span(shape.to_pitch, 0), true)?;
    if width == 0 || shape.rows == 0 {
        return Ok(());
    }
    let mut whole = [0; 4];
    whole[..pattern.len()].copy_from_slice(pattern);
    state.enqueue(id, Action::Fill { to, pattern: whole, size: pattern.len() as u8, shape }, true)?;
    state.stir(c.machine);
    Ok(())
}

/// A set that is not given a stream: asynchronous towards the host, but not to be used during a capture.
fn fill_now(c: &Call, to: Ptr, pattern: &[u8], shape: Shape) -> code::Result<()> {
    c.outside_capture()?;
    let host = c.lock().memory.find(to).is_some_and(|(_, region)| region.kind.device().is_none());
    fill(c, to, pattern, shape, 0)?;
    if host {
        // Pinned host memory is set before the call returns.
        let id = c.stream(0)?;
        let end = (id, c.lock().streams[id].submitted);
        c.machine.finish(&[end], &Default::default(), false);
    }
    Ok(())
}

fn line(count: usize) -> Shape {
    Shape::line(count as u64)
}

fn plane(pitch: usize, width: usize, rows: usize) -> Shape {
    Shape { rows: rows as u64, to_pitch: pitch as u64, ..Shape::line(width as u64) }
}

entries! {
    "cuMemcpyHtoD" 3020 cuMemcpyHtoD_v2 | cuMemcpyHtoD_v2_ptds => (c, to: Ptr, from: u64, n: usize) {
        copy(c, Place::Device(to), Place::Host(from), line(n), 0, true)
    }
    "cuMemcpyDtoH" 3020 cuMemcpyDtoH_v2 | cuMemcpyDtoH_v2_ptds => (c, to: u64, from: Ptr, n: usize) {
        copy(c, Place::Host(to), Place::Device(from), line(n), 0, true)
    }
    "cuMemcpyDtoD" 3020 cuMemcpyDtoD_v2 | cuMemcpyDtoD_v2_ptds => (c, to: Ptr, from: Ptr, n: usize) {
        c.outside_capture()?;
        copy(c, Place::Device(to), Place::Device(from), line(n), 0, false)
    }
    "cuMemcpy" 4000 cuMemcpy | cuMemcpy_ptds => (c, to: Ptr, from: Ptr, n: usize) {
        copy_unified(c, to, from, n, 0, true)
    }
    "cuMemcpyHtoDAsync" 3020 cuMemcpyHtoDAsync_v2 | cuMemcpyHtoDAsync_v2_ptsz => (
        c, to: Ptr, from: u64, n: usize, stream: Handle) {
        copy(c, Place::Device(to), Place::Host(from), line(n), stream, false)
    }
    "cuMemcpyDtoHAsync" 3020 cuMemcpyDtoHAsync_v2 | cuMemcpyDtoHAsync_v2_ptsz => (
        c, to: u64, from: Ptr, n: usize, stream: Handle) {
        copy(c, Place::Host(to), Place::Device(from), line(n), stream, false)
    }
    "cuMemcpyDtoDAsync" 3020 cuMemcpyDtoDAsync_v2 | cuMemcpyDtoDAsync_v2_ptsz => (
        c, to: Ptr, from: Ptr, n: usize, stream: Handle) {
        copy(c, Place::Device(to), Place::Device(from), line(n), stream, false)
    }
    "cuMemcpyAsync" 4000 cuMemcpyAsync | cuMemcpyAsync_ptsz => (c, to: Ptr, from: Ptr, n: usize, stream: Handle) {
        copy_unified(c, to, from, n, stream, false)
    }
    "cuMemcpyPeer" 4000 cuMemcpyPeer | cuMemcpyPeer_ptds => (
        c, to: Ptr, to_context: Handle, from: Ptr, from_context: Handle, n: usize) {
        both_alive(c, to_context, from_context)?;
        copy(c, Place::Device(to), Place::Device(from), line(n), 0, true)
    }
    "cuMemcpyPeerAsync" 4000 cuMemcpyPeerAsync | cuMemcpyPeerAsync_ptsz => (
        c, to: Ptr, to_context: Handle, from: Ptr, from_context: Handle, n: usize, stream: Handle) {
        both_alive(c, to_context, from_context)?;
        copy(c, Place::Device(to), Place::Device(from), line(n), stream, false)
    }
    "cuMemcpy2D" 3020 cuMemcpy2D_v2 | cuMemcpy2D_v2_ptds => (c, what: In<[u64; 16]>) { copy_plane(c, what, 0, true) }
    "cuMemcpy2DUnaligned" 3020 cuMemcpy2DUnaligned_v2 | cuMemcpy2DUnaligned_v2_ptds => (c, what: In<[u64; 16]>) {
        copy_plane(c, what, 0, true)
    }
    "cuMemcpy2DAsync" 3020 cuMemcpy2DAsync_v2 | cuMemcpy2DAsync_v2_ptsz => (c, what: In<[u64; 16]>, stream: Handle) {
        copy_plane(c, what, stream, false)
    }
    "cuMemcpy3D" 3020 cuMemcpy3D_v2 | cuMemcpy3D_v2_ptds => (c, what: In<[u64; 25]>) { copy_box(c, what, 0, true) }
    "cuMemcpy3DAsync" 3020 cuMemcpy3DAsync_v2 | cuMemcpy3DAsync_v2_ptsz => (c, what: In<[u64; 25]>, stream: Handle) {
        copy_box(c, what, stream, false)
    }

    "cuMemsetD8" 3020 cuMemsetD8_v2 | cuMemsetD8_v2_ptds => (c, to: Ptr, value: u8, n: usize) {
        fill_now(c, to, &[value], line(n))
    }
    "cuMemsetD16" 3020 cuMemsetD16_v2 | cuMemsetD16_v2_ptds => (c, to: Ptr, value: u16, n: usize) {
        fill_now(c, to, &value.to_ne_bytes(), line(n))
    }
    "cuMemsetD32" 3020 cuMemsetD32_v2 | cuMemsetD32_v2_ptds => (c, to: Ptr, value: u32, n: usize) {
        fill_now(c, to, &value.to_ne_bytes(), line(n))
    }
    "cuMemsetD8Async" 3020 cuMemsetD8Async | cuMemsetD8Async_ptsz => (c, to: Ptr, value: u8, n: usize, stream: Handle) {
        fill(c, to, &[value], line(n), stream)
    }
    "cuMemsetD16Async" 3020 cuMemsetD16Async | cuMemsetD16Async_ptsz => (
        c, to: Ptr, value: u16, n: usize, stream: Handle) {
        fill(c, to, &value.to_ne_bytes(), line(n), stream)
    }
    "cuMemsetD32Async" 3020 cuMemsetD32Async | cuMemsetD32Async_ptsz => (
        c, to: Ptr, value: u32, n: usize, stream: Handle) {
        fill(c, to, &value.to_ne_bytes(), line(n), stream)
    }
    "cuMemsetD2D8" 3020 cuMemsetD2D8_v2 | cuMemsetD2D8_v2_ptds => (
        c, to: Ptr, pitch: usize, value: u8, width: usize, rows: usize) {
        fill_now(c, to, &[value], plane(pitch, width, rows))
    }
    "cuMemsetD2D16" 3020 cuMemsetD2D16_v2 | cuMemsetD2D16_v2_ptds => (
        c, to: Ptr, pitch: usize, value: u16, width: usize, rows: usize) {
        fill_now(c, to, &value.to_ne_bytes(), plane(pitch, width, rows))
    }
    "cuMemsetD2D32" 3020 cuMemsetD2D32_v2 | cuMemsetD2D32_v2_ptds => (
        c, to: Ptr, pitch: usize, value: u32, width: usize, rows: usize) {
        fill_now(c, to, &value.to_ne_bytes(), plane(pitch, width, rows))
    }
    "cuMemsetD2D8Async" 3020 cuMemsetD2D8Async | cuMemsetD2D8Async_ptsz => (
        c, to: Ptr, pitch: usize, value: u8, width: usize, rows: usize, stream: Handle) {
        fill(c, to, &[value], plane(pitch, width, rows), stream)
    }
    "cuMemsetD2D16Async" 3020 cuMemsetD2D16Async | cuMemsetD2D16Async_ptsz => (
        c, to: Ptr, pitch: usize, value: u16, width: usize, rows: usize, stream: Handle) {
        fill(c, to, &value.to_ne_bytes(), plane(pitch, width, rows), stream)
    }
    "cuMemsetD2D32Async" 3020 cuMemsetD2D32Async | cuMemsetD2D32Async_ptsz => (
        c, to: Ptr, pitch: usize, value: u32, width: usize, rows: usize, stream: Handle) {
        fill(c, to, &value.to_ne_bytes(), plane(pitch, width, rows), stream)
    }
}

fn both_alive(c: &Call, a: Handle, b: Handle) -> code::Result<()> {
    let state = c.lock();
    [a, b].iter().try_for_each(|context| state.contexts.get(context).map(drop).ok_or(code::INVALID_CONTEXT))
}
