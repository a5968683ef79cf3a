//! Plain, pitched, managed and pinned memory; what an address is.

use super::{Handle, Ptr, device_of, halves};
use crate::code;
use crate::ffi::{Call, In, Out};
use crate::machine::State;
use crate::memory::Kind;
use crate::order::Action;

/// Rows of pitched memory begin at multiples of this.
const PITCH: u64 = 512;

fn alloc(c: &Call, to: Out<Ptr>, bytes: u64) -> code::Result<()> {
    let context = c.context()?;
    to.check()?;
    c.outside_capture()?;
    if bytes == 0 {
        return Err(code::INVALID_VALUE);
    }
    let address = c.lock().alloc_plain(context, bytes)?;
    to.set(address)
}

fn alloc_host(c: &Call, to: Out<u64>, bytes: usize, flags: u32) -> code::Result<()> {
    let context = c.context()?;
    to.check()?;
    c.outside_capture()?;
    if bytes == 0 || flags > 7 {
        return Err(code::INVALID_VALUE);
    }
    let address = c.lock().memory.back_shared(bytes as u64, Kind::Pinned { context })?;
    to.set(address)
}

fn free(c: &Call, at: Ptr) -> code::Result<()> {
    c.context()?;
    if at == 0 {
        return Ok(());
    }
    c.outside_capture()?;
    let mut state = c.lock();
    if let Some(pool) = state.pool_of(at) {
        // The caller says that nothing uses it any more; nothing is waited for.
        return state.free_pool_now(pool, at);
    }
    if state.graph_live.remove(&at).is_some() {
        drop(state);
        let context = c.context()?;
        c.machine.finish_context(context, false);
        return c.lock().drop_graph_memory(at);
    }
    let context = state.plain_context(at).ok_or(code::INVALID_VALUE)?;
    drop(state);
    c.machine.finish_context(context, false);
    // Another thread may have been faster.
    c.lock().free_plain(at)
}

/// What lies around an address: its start and its bytes. Of a pool's chunk, the live block.
fn range(state: &State, at: Ptr) -> code::Result<(u64, u64)> {
    let (start, region) = state.memory.find(at).ok_or(code::INVALID_VALUE)?;
    match region.kind {
        Kind::Chunk { pool, .. } => {
            state.pools.get(&pool).and_then(|pool| pool.live_around(at)).ok_or(code::INVALID_VALUE)
        }
        _ => Ok((start, region.len)),
    }
}

/// A pointer attribute's value, with its width in bytes.
fn pointer_attribute(state: &State, which: i32, at: Ptr) -> code::Result<(u64, usize)> {
    let (base, region) = state.memory.find(at).ok_or(code::INVALID_VALUE)?;
    let (start, len) = range(state, at)?;
    let host = region.kind.device().is_none();
    let device = region.kind.device().unwrap_or_else(|| {
        region.kind.context().and_then(|context| state.contexts.get(&context)).map_or(0, |context| context.device)
    });
    let mapped = matches!(region.kind, Kind::Mapped { .. });
    let shared = host || matches!(region.kind, Kind::Managed { .. });
    Ok(match which {
        1 => (region.kind.context().unwrap_or(0), 8),
        2 => (if host { 1 } else { 2 }, 4),
        3 => (at, 8),
        4 if shared => (at, 8),
        4 => return Err(code::INVALID_VALUE),
        6 => (0, 1),
        7 => (region.id, 8),
        8 => (u64::from(matches!(region.kind, Kind::Managed { .. })), 1),
        9 => (device as u64, 4),
        10 => (0, 1),
        11 => (start, 8),
        12 => (len, 8),
        13 => (1, 1),
        14 => (0, 8),
        15 => (0, 1),
        16 => (if region.writers != 0 { 3 } else { u64::from(region.readers != 0) }, 4),
        17 => (state.pool_of(at).unwrap_or(0), 8),
        18 if mapped => (region.len, 8),
        19 if mapped => (base, 8),
        18 | 19 => return Err(code::INVALID_VALUE),
        20 => (region.id, 8),
        21 => (0, 1),
        5 => return Err(code::NOT_SUPPORTED),
        _ => return Err(code::INVALID_VALUE),
    })
}

/// Width of an attribute's value.
fn width(which: i32) -> Option<usize> {
    match which {
        1 | 3 | 4 | 5 | 7 | 11 | 12 | 14 | 17..=20 => Some(8),
        2 | 9 | 16 => Some(4),
        6 | 8 | 10 | 13 | 15 | 21 => Some(1),
        _ => None,
    }
}

fn write_attribute(to: Out<u64>, value: (u64, usize)) -> code::Result<()> {
    match value.1 {
        1 => to.cast::<u8>().set(value.0 as u8),
        4 => to.cast::<u32>().set(value.0 as u32),
        _ => to.set(value.0),
    }
}

entries! {
    "cuMemGetInfo" 3020 cuMemGetInfo_v2 => (c, free: Out<usize>, total: Out<usize>) {
        let context = c.context()?;
        let state = c.lock();
        let device = state.contexts.get(&context).ok_or(code::INVALID_CONTEXT)?.device;
        free.set_if_wanted(state.left(device) as usize);
        total.set_if_wanted(state.config.memory as usize);
        Ok(())
    }
    "cuMemAlloc" 3020 cuMemAlloc_v2 => (c, to: Out<Ptr>, bytes: usize) { alloc(c, to, bytes as u64) }
    "cuMemAllocPitch" 3020 cuMemAllocPitch_v2 => (
        c, to: Out<Ptr>, pitch: Out<usize>, width: usize, rows: usize, element: u32) {
        pitch.check()?;
        if !matches!(element, 4 | 8 | 16) { return Err(code::INVALID_VALUE); }
        let row = (width as u64).checked_next_multiple_of(PITCH).ok_or(code::INVALID_VALUE)?;
        alloc(c, to, row.checked_mul(rows as u64).ok_or(code::INVALID_VALUE)?)?;
        pitch.set(row as usize)
    }
    "cuMemAllocManaged" 6000 cuMemAllocManaged => (c, to: Out<Ptr>, bytes: usize, flags: u32) {
        let context = c.context()?;
        to.check()?;
        c.outside_capture()?;
        if bytes == 0 || !matches!(flags, 1 | 2) { return Err(code::INVALID_VALUE); }
        let address = c.lock().alloc_managed(context, bytes as u64)?;
        to.set(address)
    }
    "cuMemFree" 3020 cuMemFree_v2 => (c, at: Ptr) { free(c, at) }
    "cuMemGetAddressRange" 3020 cuMemGetAddressRange_v2 => (c, base: Out<Ptr>, size: Out<usize>, at: Ptr) {
        c.context()?;
        let (start, len) = range(&c.lock(), at)?;
        base.set_if_wanted(start);
        size.set_if_wanted(len as usize);
        Ok(())
    }
    "cuMemAllocHost" 3020 cuMemAllocHost_v2 => (c, to: Out<u64>, bytes: usize) { alloc_host(c, to, bytes, 0) }
    "cuMemHostAlloc" 2020 cuMemHostAlloc => (c, to: Out<u64>, bytes: usize, flags: u32) {
        alloc_host(c, to, bytes, flags)
    }
    "cuMemFreeHost" 2000 cuMemFreeHost => (c, at: u64) {
        c.context()?;
        c.outside_capture()?;
        let found = c.lock().memory.find(at).filter(|(start, _)| *start == at).map(|(_, region)| region.kind);
        let Some(Kind::Pinned { context }) = found else { return Err(code::INVALID_VALUE) };
        c.machine.finish_context(context, false);
        c.lock().memory.remove(at).map(drop).ok_or(code::INVALID_VALUE)
    }
    "cuMemHostRegister" 6050 cuMemHostRegister_v2 => (c, at: u64, bytes: usize, flags: u32) {
        let context = c.context()?;
        c.outside_capture()?;
        if at == 0 || bytes == 0 || flags & !0xF != 0 { return Err(code::INVALID_VALUE); }
        let mut state = c.lock();
        if !state.memory.within(at, bytes as u64).is_empty() {
            return Err(code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        state.memory.register(at, bytes as u64, Kind::Registered { context });
        Ok(())
    }
    "cuMemHostUnregister" 4000 cuMemHostUnregister => (c, at: u64) {
        c.context()?;
        c.outside_capture()?;
        let found = c.lock().memory.find(at).map(|(start, region)| (start, region.kind));
        let Some((start, Kind::Registered { context })) = found else {
            return Err(code::HOST_MEMORY_NOT_REGISTERED);
        };
        if start != at { return Err(code::INVALID_VALUE); }
        c.machine.finish_context(context, false);
        c.lock().memory.remove(at).map(drop).ok_or(code::HOST_MEMORY_NOT_REGISTERED)
    }
    "cuMemHostGetDevicePointer" 3020 cuMemHostGetDevicePointer_v2 => (c, to: Out<Ptr>, at: u64, flags: u32) {
        c.context()?;
        to.check()?;
        if flags != 0 { return Err(code::INVALID_VALUE); }
        c.lock().memory.find(at).filter(|(_, region)| region.kind.device().is_none()).ok_or(code::INVALID_VALUE)?;
        to.set(at)
    }
    "cuMemHostGetFlags" 2030 cuMemHostGetFlags => (c, to: Out<u32>, at: u64) {
        c.context()?;
        to.check()?;
        let state = c.lock();
        let pinned = state.memory.find(at).filter(|(_, region)| matches!(region.kind, Kind::Pinned { .. }));
        pinned.ok_or(code::INVALID_VALUE)?;
        // Mapped, as all pinned memory is where addresses are unified.
        to.set(2)
    }
    "cuMemAdvise" 8000 cuMemAdvise => (c, at: Ptr, bytes: usize, advice: u32, device: i32) {
        let _ = (bytes, device);
        advise(c, at, advice)
    }
    "cuMemAdvise" 12020 cuMemAdvise_v2 => (c, at: Ptr, bytes: usize, advice: u32, location: u64) {
        let _ = (bytes, location);
        advise(c, at, advice)
    }
    "cuMemPrefetchAsync" 8000 cuMemPrefetchAsync | cuMemPrefetchAsync_ptsz => (
        c, at: Ptr, bytes: usize, device: i32, stream: Handle) {
        // -1 is the host.
        if device != -1 { device_of(c, device)?; }
        prefetch(c, at, bytes, stream)
    }
    "cuMemPrefetchAsync" 12020 cuMemPrefetchAsync_v2 | cuMemPrefetchAsync_v2_ptsz => (
        c, at: Ptr, bytes: usize, location: u64, flags: u32, stream: Handle) {
        if flags != 0 { return Err(code::INVALID_VALUE); }
        let (kind, id) = halves(location);
        match kind {
            1 => { device_of(c, id)?; }
            2..=4 => {}
            _ => return Err(code::INVALID_VALUE),
        }
        prefetch(c, at, bytes, stream)
    }
    "cuPointerGetAttribute" 4000 cuPointerGetAttribute => (c, to: Out<u64>, which: i32, at: Ptr) {
        to.check()?;
        let value = pointer_attribute(&c.lock(), which, at)?;
        write_attribute(to, value)
    }
    "cuPointerGetAttributes" 7000 cuPointerGetAttributes => (
        c, count: u32, which: In<i32>, to: In<Out<u64>>, at: Ptr) {
        if count == 0 || which.is_null() || to.is_null() { return Err(code::INVALID_VALUE); }
        let state = c.lock();
        for index in 0..count as usize {
            let which = which.at(index).get()?;
            let room = width(which).ok_or(code::INVALID_VALUE)?;
            // What an address that is not CUDA's has: nothing, and no device.
            let none = if which == 9 { -2i32 as u32 as u64 } else { 0 };
            let value = pointer_attribute(&state, which, at).map_or(none, |value| value.0);
            write_attribute(to.at(index).get()?, (value, room))?;
        }
        Ok(())
    }
    "cuPointerSetAttribute" 6000 cuPointerSetAttribute => (c, from: In<u32>, which: i32, at: Ptr) {
        from.get()?;
        c.lock().memory.find(at).ok_or(code::INVALID_VALUE)?;
        // Only "synchronise memory operations" can be set. It would make sets synchronous, which none depends on.
        if which == 6 { Ok(()) } else { Err(code::INVALID_VALUE) }
    }
}

fn advise(c: &Call, at: Ptr, advice: u32) -> code::Result<()> {
    c.context()?;
    if !(1..=6).contains(&advice) {
        return Err(code::INVALID_VALUE);
    }
    managed(&c.lock(), at)
}

fn managed(state: &State, at: Ptr) -> code::Result<()> {
    let found = state.memory.find(at).filter(|(_, region)| matches!(region.kind, Kind::Managed { .. }));
    found.map(drop).ok_or(code::INVALID_VALUE)
}

fn prefetch(c: &Call, at: Ptr, bytes: usize, stream: Handle) -> code::Result<()> {
    let id = c.stream(stream)?;
    let mut state = c.lock();
    managed(&state, at)?;
    if bytes == 0 {
        return Err(code::INVALID_VALUE);
    }
    state.enqueue(id, Action::Nothing, true)?;
    state.stir(c.machine);
    Ok(())
}
