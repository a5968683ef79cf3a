//! The entry points, by the public header's signatures. What is not here is absent, never a false success.

#![allow(non_snake_case)]

use std::ffi::{c_char, c_void};

use crate::code;
use crate::ffi::{Call, In, Out, enter, host_call};
use crate::memory::{Kind, Place};
use crate::order::Action;

type Ptr = u64;
type Handle = u64;

struct Entry {
    name: &'static str,
    since: i32,
    plain: usize,
    twin: Option<usize>,
}

macro_rules! entry {
    ($symbol:ident $twin:literal ($c:ident $(, $arg:ident: $ty:ty)*) $body:block) => {
        #[unsafe(no_mangle)]
        extern "C" fn $symbol($($arg: $ty),*) -> u32 {
            enter(stringify!($symbol), $twin, &[$(&$arg),*], |$c: &Call| -> code::Result<()> { $body })
        }
    };
}

macro_rules! entries {
    ($($name:literal $since:literal $symbol:ident $(| $twin:ident)? => $args:tt $body:block)*) => {
        $(entry!($symbol false $args $body);
        $(entry!($twin true $args $body);)?)*

        fn table() -> Vec<Entry> {
            vec![$(Entry {
                name: $name,
                since: $since,
                plain: $symbol as *const () as usize,
                twin: None$(.or(Some($twin as *const () as usize)))?,
            }),*]
        }
    };
}

fn device(c: &Call, ordinal: i32) -> code::Result<usize> {
    usize::try_from(ordinal).ok().filter(|&at| at < c.lock().devices.len()).ok_or(code::INVALID_DEVICE)
}

/// The place an address means: device memory where something lies, else the caller's own memory.
fn unified(c: &Call, at: Ptr) -> Place {
    if c.lock().memory.find(at).is_some() { Place::Device(at) } else { Place::Host(at) }
}

fn known(c: &Call, place: Place, len: u64) -> code::Result<()> {
    match place {
        Place::Device(at) if !c.lock().memory.accessible(at, len) => Err(code::INVALID_VALUE),
        Place::Host(0) if len > 0 => Err(code::INVALID_VALUE),
        _ => Ok(()),
    }
}

/// Copies in stream order. Pageable sources are read now and pageable targets written before the call returns, as CUDA
/// has it; `wait` makes the call synchronous.
fn copy(c: &Call, to: Place, from: Place, len: u64, stream: Handle, wait: bool) -> code::Result<()> {
    let id = c.stream(stream)?;
    known(c, to, len)?;
    known(c, from, len)?;
    if len == 0 {
        return Ok(());
    }
    let mut state = c.lock();
    let pinned = |place| match place {
        Place::Host(at) => state.memory.find(at).is_some(),
        Place::Device(_) => true,
    };
    let wait = wait || !pinned(to);
    let action = if pinned(from) {
        Action::Copy { to, to_pitch: 0, from, from_pitch: 0, width: len, rows: 1 }
    } else {
        let bytes = state.memory.read(from, len)?;
        Action::Write { to, to_pitch: 0, width: len, bytes }
    };
    let point = state.submit(id, action, true)?;
    state.stir(c.machine);
    let context = state.streams[id].context;
    drop(state);
    if wait {
        c.machine.finish(&[point], &Default::default(), false);
        c.lock().check(context)?;
    }
    Ok(())
}

fn fill(c: &Call, to: Ptr, pattern: &[u8], count: usize, stream: Handle) -> code::Result<()> {
    let id = c.stream(stream)?;
    let width = (count as u64).checked_mul(pattern.len() as u64).ok_or(code::INVALID_VALUE)?;
    if !to.is_multiple_of(pattern.len() as u64) {
        return Err(code::INVALID_VALUE);
    }
    known(c, Place::Device(to), width)?;
    let mut state = c.lock();
    state.submit(id, Action::Fill { to, pitch: 0, pattern: pattern.to_vec(), width, rows: 1 }, true)?;
    state.stir(c.machine);
    Ok(())
}

fn attribute(c: &Call, which: i32) -> code::Result<i32> {
    if !(1..=147).contains(&which) {
        return Err(code::INVALID_VALUE);
    }
    Ok(match which {
        1 | 2 | 3 | 39 => 1024,
        4..=6 => 65535,
        8 | 97 => 49152,
        10 => 32,
        11 => i32::MAX,
        12 => 65536,
        14 | 30 => 512,
        16 => 1,
        19 | 41 | 78 | 83 => 1,
        75 => 8,
        115 => i32::from(c.config().pools),
        _ => 0,
    })
}

fn locate(address: usize) -> u64 {
    address as u64
}

fn proc_address(c: &Call, name: &str, version: i32, flags: u64) -> (u64, i32) {
    let config = c.config();
    if config.missing.iter().any(|missing| missing == name) {
        return (0, 1);
    }
    let all: Vec<Entry> = table().into_iter().filter(|e| e.name == name && e.since <= config.driver_version).collect();
    match all.iter().filter(|entry| entry.since <= version).max_by_key(|entry| entry.since) {
        Some(entry) => (locate(entry.twin.filter(|_| flags & 2 != 0).unwrap_or(entry.plain)), 0),
        None => (0, if all.is_empty() { 1 } else { 2 }),
    }
}

entries! {
    "cuInit" 2000 cuInit => (c, flags: u32) {
        if flags != 0 { return Err(code::INVALID_VALUE); }
        if c.config().devices == 0 { return Err(code::NO_DEVICE); }
        c.initialised();
        Ok(())
    }
    "cuDriverGetVersion" 2020 cuDriverGetVersion => (c, version: Out<i32>) { version.set(c.config().driver_version) }
    "cuGetErrorName" 6000 cuGetErrorName => (c, error: u32, text: Out<*const c_char>) {
        let _ = c;
        let found = code::texts(error);
        text.set(found.map_or(std::ptr::null(), |texts| texts.0.as_ptr()))?;
        found.map(drop).ok_or(code::INVALID_VALUE)
    }
    "cuGetErrorString" 6000 cuGetErrorString => (c, error: u32, text: Out<*const c_char>) {
        let _ = c;
        let found = code::texts(error);
        text.set(found.map_or(std::ptr::null(), |texts| texts.1.as_ptr()))?;
        found.map(drop).ok_or(code::INVALID_VALUE)
    }
    "cuGetProcAddress" 11030 cuGetProcAddress => (c, name: In<c_char>, to: Out<u64>, version: i32, flags: u64) {
        let (address, status) = proc_address(c, &name.text()?, version, flags);
        to.set(address)?;
        if status == 0 { Ok(()) } else { Err(code::NOT_FOUND) }
    }
    "cuGetProcAddress" 12000 cuGetProcAddress_v2 => (c, name: In<c_char>, to: Out<u64>, version: i32, flags: u64,
                                                 status: Out<i32>) {
        let (address, found) = proc_address(c, &name.text()?, version, flags);
        to.set(address)?;
        if status.check().is_ok() { status.set(found)?; }
        if found == 0 { Ok(()) } else { Err(code::NOT_FOUND) }
    }
    "cuDeviceGet" 2000 cuDeviceGet => (c, to: Out<i32>, ordinal: i32) { device(c, ordinal)?; to.set(ordinal) }
    "cuDeviceGetCount" 2000 cuDeviceGetCount => (c, to: Out<i32>) { to.set(c.config().devices as i32) }
    "cuDeviceGetName" 2000 cuDeviceGetName => (c, to: Out<u8>, len: i32, dev: i32) {
        device(c, dev)?;
        let room = usize::try_from(len).ok().filter(|&len| len > 0).ok_or(code::INVALID_VALUE)?;
        to.check()?;
        let name = b"libsmp stand-in device (no GPU)";
        let used = name.len().min(room - 1);
        name[..used].iter().chain(&[0]).enumerate().try_for_each(|(at, &byte)| to.at(at).set(byte))
    }
    "cuDeviceGetAttribute" 2000 cuDeviceGetAttribute => (c, to: Out<i32>, which: i32, dev: i32) {
        device(c, dev)?;
        to.set(attribute(c, which)?)
    }
    "cuDeviceTotalMem" 3020 cuDeviceTotalMem_v2 => (c, to: Out<usize>, dev: i32) {
        device(c, dev)?;
        to.set(c.config().memory as usize)
    }
    "cuDeviceGetUuid" 9020 cuDeviceGetUuid => (c, to: Out<[u8; 16]>, dev: i32) {
        let mut uuid = *b"libsmp-standin-0";
        uuid[15] += device(c, dev)? as u8;
        to.set(uuid)
    }
    "cuDeviceGetDefaultMemPool" 11020 cuDeviceGetDefaultMemPool => (c, to: Out<Handle>, dev: i32) {
        let dev = device(c, dev)?;
        to.set(c.lock().devices[dev].default_pool)
    }
    "cuDeviceGetMemPool" 11020 cuDeviceGetMemPool => (c, to: Out<Handle>, dev: i32) {
        let dev = device(c, dev)?;
        to.set(c.lock().devices[dev].pool)
    }
    "cuDeviceSetMemPool" 11020 cuDeviceSetMemPool => (c, dev: i32, pool: Handle) {
        let dev = device(c, dev)?;
        let mut state = c.lock();
        state.pools.get(&pool).filter(|p| p.device == dev && !p.destroyed).ok_or(code::INVALID_VALUE)?;
        state.devices[dev].pool = pool;
        Ok(())
    }
    "cuDevicePrimaryCtxRetain" 7000 cuDevicePrimaryCtxRetain => (c, to: Out<Handle>, dev: i32) {
        let dev = device(c, dev)?;
        to.check()?;
        let mut state = c.lock();
        let context = match state.devices[dev].primary {
            Some(context) => context,
            None => state.new_context(dev),
        };
        state.devices[dev].primary = Some(context);
        state.devices[dev].retained += 1;
        to.set(context)
    }
    "cuDevicePrimaryCtxRelease" 11000 cuDevicePrimaryCtxRelease_v2 => (c, dev: i32) {
        let dev = device(c, dev)?;
        let mut state = c.lock();
        let left = state.devices[dev].retained.checked_sub(1).ok_or(code::INVALID_CONTEXT)?;
        // The context itself stays until the process ends, as if another holder kept it.
        state.devices[dev].retained = left;
        Ok(())
    }
    "cuDevicePrimaryCtxGetState" 7000 cuDevicePrimaryCtxGetState => (c, dev: i32, flags: Out<u32>, active: Out<i32>) {
        let dev = device(c, dev)?;
        flags.check()?;
        active.set(i32::from(c.lock().devices[dev].retained > 0))?;
        flags.set(0)
    }
    "cuCtxPushCurrent" 4000 cuCtxPushCurrent_v2 => (c, context: Handle) {
        c.lock().contexts.get(&context).ok_or(code::INVALID_CONTEXT)?;
        c.stack(|stack| stack.push(context));
        Ok(())
    }
    "cuCtxPopCurrent" 4000 cuCtxPopCurrent_v2 => (c, to: Out<Handle>) {
        let top = c.stack(Vec::pop).ok_or(code::INVALID_CONTEXT)?;
        if to.check().is_ok() { to.set(top)?; }
        Ok(())
    }
    "cuCtxSetCurrent" 4000 cuCtxSetCurrent => (c, context: Handle) {
        if context != 0 { c.lock().contexts.get(&context).ok_or(code::INVALID_CONTEXT)?; }
        c.stack(|stack| { stack.pop(); if context != 0 { stack.push(context); } });
        Ok(())
    }
    "cuCtxGetCurrent" 4000 cuCtxGetCurrent => (c, to: Out<Handle>) { to.set(c.stack(|s| s.last().copied().unwrap_or(0))) }
    "cuCtxGetDevice" 2000 cuCtxGetDevice => (c, to: Out<i32>) {
        let context = c.context()?;
        to.set(c.lock().contexts[&context].device as i32)
    }
    "cuCtxSynchronize" 2000 cuCtxSynchronize => (c) {
        let context = c.context()?;
        c.machine.finish_context(context, true);
        c.lock().check(context)
    }
    "cuStreamCreate" 2000 cuStreamCreate => (c, to: Out<Handle>, flags: u32) {
        let context = c.context()?;
        to.check()?;
        if flags > 1 { return Err(code::INVALID_VALUE); }
        to.set(c.lock().new_stream(context, flags, 0))
    }
    "cuStreamCreateWithPriority" 5050 cuStreamCreateWithPriority => (c, to: Out<Handle>, flags: u32, priority: i32) {
        let context = c.context()?;
        to.check()?;
        if flags > 1 { return Err(code::INVALID_VALUE); }
        to.set(c.lock().new_stream(context, flags, priority.clamp(-1, 0)))
    }
    "cuStreamDestroy" 4000 cuStreamDestroy_v2 => (c, stream: Handle) { c.lock().destroy_stream(stream) }
    "cuStreamGetFlags" 5050 cuStreamGetFlags | cuStreamGetFlags_ptsz => (c, stream: Handle, to: Out<u32>) {
        let id = c.stream(stream)?;
        to.set(c.lock().streams[id].flags)
    }
    "cuStreamGetPriority" 5050 cuStreamGetPriority | cuStreamGetPriority_ptsz => (c, stream: Handle, to: Out<i32>) {
        let id = c.stream(stream)?;
        to.set(c.lock().streams[id].priority)
    }
    "cuStreamGetCtx" 9020 cuStreamGetCtx | cuStreamGetCtx_ptsz => (c, stream: Handle, to: Out<Handle>) {
        let id = c.stream(stream)?;
        to.set(c.lock().streams[id].context)
    }
    "cuStreamIsCapturing" 10000 cuStreamIsCapturing | cuStreamIsCapturing_ptsz => (c, stream: Handle, to: Out<u32>) {
        c.stream(stream)?;
        to.set(0)
    }
    "cuStreamBeginCapture" 10010 cuStreamBeginCapture_v2 | cuStreamBeginCapture_v2_ptsz => (c, stream: Handle, mode: u32) {
        c.stream(stream)?;
        if mode > 2 { return Err(code::INVALID_VALUE); }
        Err(code::NOT_SUPPORTED)
    }
    "cuThreadExchangeStreamCaptureMode" 10010 cuThreadExchangeStreamCaptureMode => (c, mode: Out<u32>) {
        let _ = c;
        // Without captures every thread's mode stays the default, GLOBAL.
        mode.set(0)
    }
    "cuStreamSynchronize" 2000 cuStreamSynchronize | cuStreamSynchronize_ptsz => (c, stream: Handle) {
        let id = c.stream(stream)?;
        c.machine.finish_stream(id);
        let state = c.lock();
        state.check(state.streams[id].context)
    }
    "cuStreamQuery" 2000 cuStreamQuery | cuStreamQuery_ptsz => (c, stream: Handle) {
        let id = c.stream(stream)?;
        let mut state = c.lock();
        state.stir(c.machine);
        let end = (id, state.streams[id].submitted);
        if state.query(end, c.machine) { Ok(()) } else { Err(code::NOT_READY) }
    }
    "cuStreamWaitEvent" 3020 cuStreamWaitEvent | cuStreamWaitEvent_ptsz => (c, stream: Handle, event: Handle, flags: u32) {
        if flags > 1 { return Err(code::INVALID_VALUE); }
        let id = c.stream(stream)?;
        let mut state = c.lock();
        state.wait(id, event)?;
        state.stir(c.machine);
        Ok(())
    }
    "cuLaunchHostFunc" 10000 cuLaunchHostFunc | cuLaunchHostFunc_ptsz => (
        c, stream: Handle, function: Option<extern "C" fn(*mut c_void)>, data: usize) {
        let function = function.ok_or(code::INVALID_VALUE)?;
        let id = c.stream(stream)?;
        let mut state = c.lock();
        state.submit(id, Action::Call(Box::new(move || host_call(|| function(data as *mut c_void)))), true)?;
        state.stir(c.machine);
        Ok(())
    }
    "cuEventCreate" 2000 cuEventCreate => (c, to: Out<Handle>, flags: u32) {
        let context = c.context()?;
        to.check()?;
        if flags > 3 { return Err(code::INVALID_VALUE); }
        to.set(c.lock().new_event(context, flags))
    }
    "cuEventRecord" 2000 cuEventRecord | cuEventRecord_ptsz => (c, event: Handle, stream: Handle) {
        let id = c.stream(stream)?;
        let mut state = c.lock();
        state.record(event, id)?;
        state.stir(c.machine);
        Ok(())
    }
    "cuEventQuery" 2000 cuEventQuery => (c, event: Handle) {
        let mut state = c.lock();
        state.stir(c.machine);
        match state.event_point(event)?.0 {
            Some(point) if !state.query(point, c.machine) => Err(code::NOT_READY),
            _ => Ok(()),
        }
    }
    "cuEventSynchronize" 2000 cuEventSynchronize => (c, event: Handle) {
        let (point, clock) = c.lock().event_point(event)?;
        if let Some(point) = point { c.machine.finish(&[point], &clock, true); }
        Ok(())
    }
    "cuEventDestroy" 4000 cuEventDestroy_v2 => (c, event: Handle) {
        c.lock().events.remove(&event).map(drop).ok_or(code::INVALID_HANDLE)
    }
    "cuEventElapsedTime" 2000 cuEventElapsedTime => (c, to: Out<f32>, start: Handle, end: Handle) {
        to.check()?;
        let time = c.lock().elapsed(start, end)?;
        to.set(time)
    }
    "cuMemGetInfo" 3020 cuMemGetInfo_v2 => (c, free: Out<usize>, total: Out<usize>) {
        let context = c.context()?;
        let state = c.lock();
        let taken = state.devices[state.contexts[&context].device].taken;
        free.set((state.config.memory - taken) as usize)?;
        total.set(state.config.memory as usize)
    }
    "cuMemAlloc" 3020 cuMemAlloc_v2 => (c, to: Out<Ptr>, bytes: usize) {
        let context = c.context()?;
        to.check()?;
        if bytes == 0 { return Err(code::INVALID_VALUE); }
        let address = c.lock().alloc_plain(context, bytes as u64)?;
        to.set(address)
    }
    "cuMemFree" 3020 cuMemFree_v2 => (c, at: Ptr) {
        let context = c.context()?;
        if at == 0 { return Ok(()); }
        let pool = c.lock().pool_of(at);
        if let Some(pool) = pool { return c.lock().free_pool_now(pool, at); }
        let plain = c.lock().memory.find(at).is_some_and(|(s, r)| s == at && matches!(r.kind, Kind::Plain { .. }));
        if !plain { return Err(code::INVALID_VALUE); }
        c.machine.finish_context(context, false);
        c.lock().free_plain(at)
    }
    "cuMemGetAddressRange" 3020 cuMemGetAddressRange_v2 => (c, base: Out<Ptr>, size: Out<usize>, at: Ptr) {
        let state = c.lock();
        let pooled = state.pool_of(at).and_then(|pool| state.pools[&pool].live_around(at));
        let plain = || state.memory.find(at).filter(|_| state.pool_of(at).is_none()).map(|(s, r)| (s, r.len));
        let (start, len) = pooled.or_else(plain).ok_or(code::NOT_FOUND)?;
        if base.check().is_ok() { base.set(start)?; }
        if size.check().is_ok() { size.set(len as usize)?; }
        Ok(())
    }
    "cuMemAllocHost" 3020 cuMemAllocHost_v2 => (c, to: Out<u64>, bytes: usize) {
        let context = c.context()?;
        to.check()?;
        if bytes == 0 { return Err(code::INVALID_VALUE); }
        let address = c.lock().memory.back_shared(bytes as u64, Kind::Pinned { context })?;
        to.set(address)
    }
    "cuMemHostAlloc" 2020 cuMemHostAlloc => (c, to: Out<u64>, bytes: usize, flags: u32) {
        let context = c.context()?;
        to.check()?;
        if bytes == 0 || flags > 7 { return Err(code::INVALID_VALUE); }
        let address = c.lock().memory.back_shared(bytes as u64, Kind::Pinned { context })?;
        to.set(address)
    }
    "cuMemFreeHost" 2000 cuMemFreeHost => (c, at: u64) {
        let context = c.context()?;
        let pinned = c.lock().memory.find(at).is_some_and(|(s, r)| s == at && matches!(r.kind, Kind::Pinned { .. }));
        if !pinned { return Err(code::INVALID_VALUE); }
        c.machine.finish_context(context, false);
        c.lock().memory.remove(at).map(drop).ok_or(code::INVALID_VALUE)
    }
    "cuMemcpyHtoD" 3020 cuMemcpyHtoD_v2 | cuMemcpyHtoD_v2_ptds => (c, to: Ptr, from: u64, n: usize) {
        copy(c, Place::Device(to), Place::Host(from), n as u64, 0, true)
    }
    "cuMemcpyDtoH" 3020 cuMemcpyDtoH_v2 | cuMemcpyDtoH_v2_ptds => (c, to: u64, from: Ptr, n: usize) {
        copy(c, Place::Host(to), Place::Device(from), n as u64, 0, true)
    }
    "cuMemcpyDtoD" 3020 cuMemcpyDtoD_v2 | cuMemcpyDtoD_v2_ptds => (c, to: Ptr, from: Ptr, n: usize) {
        copy(c, Place::Device(to), Place::Device(from), n as u64, 0, false)
    }
    "cuMemcpy" 4000 cuMemcpy | cuMemcpy_ptds => (c, to: Ptr, from: Ptr, n: usize) {
        copy(c, unified(c, to), unified(c, from), n as u64, 0, true)
    }
    "cuMemcpyHtoDAsync" 3020 cuMemcpyHtoDAsync_v2 | cuMemcpyHtoDAsync_v2_ptsz => (
        c, to: Ptr, from: u64, n: usize, stream: Handle) {
        copy(c, Place::Device(to), Place::Host(from), n as u64, stream, false)
    }
    "cuMemcpyDtoHAsync" 3020 cuMemcpyDtoHAsync_v2 | cuMemcpyDtoHAsync_v2_ptsz => (
        c, to: u64, from: Ptr, n: usize, stream: Handle) {
        copy(c, Place::Host(to), Place::Device(from), n as u64, stream, false)
    }
    "cuMemcpyDtoDAsync" 3020 cuMemcpyDtoDAsync_v2 | cuMemcpyDtoDAsync_v2_ptsz => (
        c, to: Ptr, from: Ptr, n: usize, stream: Handle) {
        copy(c, Place::Device(to), Place::Device(from), n as u64, stream, false)
    }
    "cuMemcpyAsync" 4000 cuMemcpyAsync | cuMemcpyAsync_ptsz => (c, to: Ptr, from: Ptr, n: usize, stream: Handle) {
        copy(c, unified(c, to), unified(c, from), n as u64, stream, false)
    }
    "cuMemsetD8" 3020 cuMemsetD8_v2 | cuMemsetD8_v2_ptds => (c, to: Ptr, value: u8, n: usize) {
        fill(c, to, &[value], n, 0)
    }
    "cuMemsetD16" 3020 cuMemsetD16_v2 | cuMemsetD16_v2_ptds => (c, to: Ptr, value: u16, n: usize) {
        fill(c, to, &value.to_ne_bytes(), n, 0)
    }
    "cuMemsetD32" 3020 cuMemsetD32_v2 | cuMemsetD32_v2_ptds => (c, to: Ptr, value: u32, n: usize) {
        fill(c, to, &value.to_ne_bytes(), n, 0)
    }
    "cuMemsetD8Async" 3020 cuMemsetD8Async | cuMemsetD8Async_ptsz => (c, to: Ptr, value: u8, n: usize, stream: Handle) {
        fill(c, to, &[value], n, stream)
    }
    "cuMemsetD16Async" 3020 cuMemsetD16Async | cuMemsetD16Async_ptsz => (
        c, to: Ptr, value: u16, n: usize, stream: Handle) {
        fill(c, to, &value.to_ne_bytes(), n, stream)
    }
    "cuMemsetD32Async" 3020 cuMemsetD32Async | cuMemsetD32Async_ptsz => (
        c, to: Ptr, value: u32, n: usize, stream: Handle) {
        fill(c, to, &value.to_ne_bytes(), n, stream)
    }
    "cuMemAllocAsync" 11020 cuMemAllocAsync | cuMemAllocAsync_ptsz => (c, to: Out<Ptr>, bytes: usize, stream: Handle) {
        to.set(0)?;
        if !c.config().pools { return Err(code::NOT_SUPPORTED); }
        let id = c.stream(stream)?;
        let mut state = c.lock();
        let context = state.streams[id].context;
        let pool = state.devices[state.contexts[&context].device].pool;
        let address = state.alloc_async(pool, bytes as u64, id)?;
        state.stir(c.machine);
        to.set(address)
    }
    "cuMemAllocFromPoolAsync" 11020 cuMemAllocFromPoolAsync | cuMemAllocFromPoolAsync_ptsz => (
        c, to: Out<Ptr>, bytes: usize, pool: Handle, stream: Handle) {
        to.set(0)?;
        let id = c.stream(stream)?;
        let mut state = c.lock();
        let address = state.alloc_async(pool, bytes as u64, id)?;
        state.stir(c.machine);
        to.set(address)
    }
    "cuMemFreeAsync" 11020 cuMemFreeAsync | cuMemFreeAsync_ptsz => (c, at: Ptr, stream: Handle) {
        let id = c.stream(stream)?;
        let mut state = c.lock();
        state.free_async(at, id)?;
        state.stir(c.machine);
        Ok(())
    }
    "cuMemPoolCreate" 11020 cuMemPoolCreate => (c, to: Out<Handle>, props: In<[u64; 11]>) {
        to.check()?;
        // Two 32-bit fields a word: type and handle types, location type and id; then a pointer and the maximum.
        let words = props.get()?;
        let halves = |word: u64| (word as u32, (word >> 32) as i32);
        let ((kind, handles), (location, id)) = (halves(words[0]), halves(words[1]));
        if kind != 1 { return Err(if kind == 2 { code::NOT_SUPPORTED } else { code::INVALID_VALUE }); }
        if handles != 0 || location != 1 { return Err(code::NOT_SUPPORTED); }
        let dev = device(c, id).map_err(|_| code::INVALID_VALUE)?;
        to.set(c.lock().new_pool(dev, false, words[3]))
    }
    "cuMemPoolDestroy" 11020 cuMemPoolDestroy => (c, pool: Handle) { c.lock().destroy_pool(pool) }
    "cuMemPoolTrimTo" 11020 cuMemPoolTrimTo => (c, pool: Handle, keep: usize) { c.lock().trim(pool, keep as u64) }
    "cuMemPoolGetAttribute" 11020 cuMemPoolGetAttribute => (c, pool: Handle, which: u32, to: Out<u64>) {
        let state = c.lock();
        let pool = state.pools.get(&pool).filter(|pool| !pool.destroyed).ok_or(code::INVALID_VALUE)?;
        match which {
            1..=3 => to.cast::<i32>().set(i32::from(pool.policies[which as usize - 1])),
            4 => to.set(pool.threshold),
            5 => to.set(pool.reserved),
            6 => to.set(pool.reserved_high),
            7 => to.set(pool.used),
            8 => to.set(pool.used_high),
            _ => Err(code::INVALID_VALUE),
        }
    }
    "cuMemPoolSetAttribute" 11020 cuMemPoolSetAttribute => (c, pool: Handle, which: u32, from: In<u64>) {
        let mut state = c.lock();
        let pool = state.pools.get_mut(&pool).filter(|pool| !pool.destroyed).ok_or(code::INVALID_VALUE)?;
        match which {
            1..=3 => pool.policies[which as usize - 1] = from.cast::<i32>().get()? != 0,
            4 => pool.threshold = from.get()?,
            6 if from.get()? == 0 => pool.reserved_high = pool.reserved,
            8 if from.get()? == 0 => pool.used_high = pool.used,
            _ => return Err(code::INVALID_VALUE),
        }
        Ok(())
    }
    "cuPointerGetAttribute" 4000 cuPointerGetAttribute => (c, to: Out<u64>, which: i32, at: Ptr) {
        to.check()?;
        let state = c.lock();
        let (_, region) = state.memory.find(at).ok_or(code::INVALID_VALUE)?;
        let (context, dev, host) = match region.kind {
            Kind::Plain { device, context } | Kind::Managed { device, context } => (context, device, false),
            Kind::Chunk { device, .. } | Kind::Mapped { device, .. } => (0, device, false),
            Kind::Pinned { context } | Kind::Registered { context } => (context, 0, true),
        };
        match which {
            1 => to.set(context),
            2 => to.cast::<u32>().set(if host { 1 } else { 2 }),
            3 => to.set(at),
            4 if host => to.set(at),
            8 => to.cast::<u8>().set(0),
            9 => to.cast::<i32>().set(dev as i32),
            17 => to.set(state.pool_of(at).unwrap_or(0)),
            _ if (1..=21).contains(&which) => Err(code::NOT_SUPPORTED),
            _ => Err(code::INVALID_VALUE),
        }
    }
}

/// Holds a stream: nothing of it runs until its gate opens.
#[unsafe(no_mangle)]
extern "C" fn simcuda_gate_close(stream: Handle) -> u32 {
    enter("simcuda_gate_close", false, &[&stream], |c| c.stream(stream).map(|id| c.machine.gate(id, true)))
}

/// Lets a held stream go on.
#[unsafe(no_mangle)]
extern "C" fn simcuda_gate_open(stream: Handle) -> u32 {
    enter("simcuda_gate_open", false, &[&stream], |c| c.stream(stream).map(|id| c.machine.gate(id, false)))
}
