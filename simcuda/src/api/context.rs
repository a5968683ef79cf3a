//! Contexts and each thread's stack of them.

use super::{Handle, device_of};
use crate::code;
use crate::ffi::{Call, In, Out};

fn create(c: &Call, to: Out<Handle>, flags: u32, dev: i32) -> code::Result<()> {
    to.check()?;
    let device = device_of(c, dev)?;
    if flags & !0x1FF != 0 || flags & 7 > 4 {
        return Err(code::INVALID_VALUE);
    }
    let mut state = c.lock();
    let context = state.new_context(device, flags);
    drop(state);
    c.stack(|stack| stack.push(context));
    to.set(context)
}

fn synchronize(c: &Call, context: Handle) -> code::Result<()> {
    c.lock().context_not_captured(context)?;
    c.machine.finish_context(context, true);
    c.lock().check(context)
}

/// The context that `given` names, or the current one for null.
fn given_or_current(c: &Call, given: Handle) -> code::Result<Handle> {
    if given == 0 {
        return c.context();
    }
    let state = c.lock();
    state.contexts.get(&given).ok_or(code::INVALID_CONTEXT)?;
    state.check(given).map(|()| given)
}

/// Limits of a context by number; none can be changed to anything of consequence.
fn limit(which: u32) -> code::Result<usize> {
    match which {
        0 => Ok(1024),
        1 => Ok(1 << 20),
        2 => Ok(8 << 20),
        3 => Ok(2),
        4 => Ok(2048),
        5 => Ok(64),
        6 => Ok(0),
        7..=9 => Err(code::NOT_SUPPORTED),
        _ => Err(code::INVALID_VALUE),
    }
}

entries! {
    "cuCtxCreate" 3020 cuCtxCreate_v2 => (c, to: Out<Handle>, flags: u32, dev: i32) { create(c, to, flags, dev) }
    "cuCtxCreate" 11040 cuCtxCreate_v3 => (c, to: Out<Handle>, params: In<u64>, count: i32, flags: u32, dev: i32) {
        // Execution affinity is not there.
        if count < 0 || (count > 0 && params.is_null()) { return Err(code::INVALID_VALUE); }
        if count > 0 { return Err(code::NOT_SUPPORTED); }
        create(c, to, flags, dev)
    }
    "cuCtxCreate" 12050 cuCtxCreate_v4 => (c, to: Out<Handle>, params: In<[u64; 3]>, flags: u32, dev: i32) {
        if let Ok(params) = params.get()
            && params != [0; 3]
        {
            return Err(code::NOT_SUPPORTED);
        }
        create(c, to, flags, dev)
    }
    "cuCtxDestroy" 4000 cuCtxDestroy_v2 => (c, context: Handle) {
        {
            let state = c.lock();
            state.contexts.get(&context).ok_or(code::INVALID_CONTEXT)?;
            if state.devices.iter().any(|device| device.primary == Some(context)) {
                return Err(code::INVALID_CONTEXT);
            }
        }
        c.machine.end_context(context);
        c.stack(|stack| if stack.last() == Some(&context) { stack.pop(); });
        // As after any call, another thread may come first: here it may get the handle.
        if c.machine.lock().config.contexts_again {
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
        Ok(())
    }
    "cuCtxAttach" 2000 cuCtxAttach => (c, to: Out<Handle>, flags: u32) {
        to.check()?;
        if flags != 0 { return Err(code::INVALID_VALUE); }
        let context = c.context()?;
        if let Some(known) = c.lock().contexts.get_mut(&context) { known.attached += 1; }
        to.set(context)
    }
    "cuCtxDetach" 2000 cuCtxDetach => (c, context: Handle) {
        if c.context()? != context { return Err(code::INVALID_CONTEXT); }
        let last = {
            let mut state = c.lock();
            if state.devices.iter().any(|device| device.primary == Some(context)) { return Err(code::INVALID_CONTEXT); }
            let known = state.contexts.get_mut(&context).ok_or(code::INVALID_CONTEXT)?;
            known.attached -= 1;
            known.attached == 0
        };
        if last {
            c.machine.end_context(context);
            c.stack(Vec::pop);
        }
        Ok(())
    }
    "cuCtxPushCurrent" 4000 cuCtxPushCurrent_v2 => (c, context: Handle) {
        c.lock().contexts.get(&context).ok_or(code::INVALID_CONTEXT)?;
        c.stack(|stack| stack.push(context));
        Ok(())
    }
    "cuCtxPopCurrent" 4000 cuCtxPopCurrent_v2 => (c, to: Out<Handle>) {
        let top = c.stack(Vec::pop).ok_or(code::INVALID_CONTEXT)?;
        to.set_if_wanted(top);
        Ok(())
    }
    "cuCtxSetCurrent" 4000 cuCtxSetCurrent => (c, context: Handle) {
        if context != 0 { c.lock().contexts.get(&context).ok_or(code::INVALID_CONTEXT)?; }
        c.stack(|stack| { stack.pop(); if context != 0 { stack.push(context); } });
        Ok(())
    }
    "cuCtxGetCurrent" 4000 cuCtxGetCurrent => (c, to: Out<Handle>) {
        to.set(c.stack(|stack| stack.last().copied().unwrap_or(0)))
    }
    "cuCtxGetDevice" 2000 cuCtxGetDevice => (c, to: Out<i32>) {
        to.check()?;
        let context = c.context()?;
        let device = c.lock().contexts.get(&context).ok_or(code::INVALID_CONTEXT)?.device;
        to.set(device as i32)
    }
    "cuCtxGetDevice" 13000 cuCtxGetDevice_v2 => (c, to: Out<i32>, context: Handle) {
        to.check()?;
        let context = given_or_current(c, context)?;
        let device = c.lock().contexts.get(&context).ok_or(code::INVALID_CONTEXT)?.device;
        to.set(device as i32)
    }
    "cuCtxGetFlags" 7000 cuCtxGetFlags => (c, to: Out<u32>) {
        to.check()?;
        let context = c.context()?;
        let flags = c.lock().contexts.get(&context).ok_or(code::INVALID_CONTEXT)?.flags;
        to.set(flags)
    }
    "cuCtxSetFlags" 12010 cuCtxSetFlags => (c, flags: u32) {
        let context = c.context()?;
        if flags & !0x1FF != 0 { return Err(code::INVALID_VALUE); }
        c.lock().contexts.entry(context).and_modify(|context| context.flags = flags);
        Ok(())
    }
    "cuCtxGetId" 12000 cuCtxGetId => (c, context: Handle, to: Out<u64>) {
        to.check()?;
        let context = given_or_current(c, context)?;
        let id = c.lock().contexts.get(&context).ok_or(code::INVALID_CONTEXT)?.id;
        to.set(id)
    }
    "cuCtxGetApiVersion" 3020 cuCtxGetApiVersion => (c, context: Handle, to: Out<u32>) {
        to.check()?;
        given_or_current(c, context)?;
        to.set(3020)
    }
    "cuCtxSynchronize" 2000 cuCtxSynchronize => (c) {
        let context = c.context()?;
        synchronize(c, context)
    }
    "cuCtxSynchronize" 13000 cuCtxSynchronize_v2 => (c, context: Handle) {
        let context = given_or_current(c, context)?;
        synchronize(c, context)
    }
    "cuCtxRecordEvent" 12050 cuCtxRecordEvent => (c, context: Handle, event: Handle) {
        let context = given_or_current(c, context)?;
        let mut state = c.lock();
        state.record_context(context, event)?;
        state.stir(c.machine);
        Ok(())
    }
    "cuCtxWaitEvent" 12050 cuCtxWaitEvent => (c, context: Handle, event: Handle) {
        let context = given_or_current(c, context)?;
        c.lock().wait_context(context, event)
    }
    "cuCtxGetStreamPriorityRange" 5050 cuCtxGetStreamPriorityRange => (c, least: Out<i32>, greatest: Out<i32>) {
        c.context()?;
        least.set_if_wanted(0);
        greatest.set_if_wanted(-5);
        Ok(())
    }
    "cuCtxGetLimit" 3010 cuCtxGetLimit => (c, to: Out<usize>, which: u32) {
        to.check()?;
        c.context()?;
        to.set(limit(which)?)
    }
    "cuCtxSetLimit" 3010 cuCtxSetLimit => (c, which: u32, value: usize) {
        let _ = value;
        c.context()?;
        limit(which).map(drop)
    }
    "cuCtxGetCacheConfig" 3020 cuCtxGetCacheConfig => (c, to: Out<u32>) {
        c.context()?;
        to.set(0)
    }
    "cuCtxSetCacheConfig" 3020 cuCtxSetCacheConfig => (c, config: u32) {
        c.context()?;
        if config > 3 { Err(code::INVALID_VALUE) } else { Ok(()) }
    }
    "cuCtxEnablePeerAccess" 4000 cuCtxEnablePeerAccess => (c, peer: Handle, flags: u32) {
        let context = c.context()?;
        if flags != 0 { return Err(code::INVALID_VALUE); }
        let mut state = c.lock();
        let device = |handle: &Handle| state.contexts.get(handle).map(|context| context.device);
        let (Some(own), Some(other)) = (device(&context), device(&peer)) else { return Err(code::INVALID_CONTEXT) };
        if own == other { return Err(code::INVALID_CONTEXT); }
        let peers = &mut state.contexts.get_mut(&context).ok_or(code::INVALID_CONTEXT)?.peers;
        if peers.contains(&peer) { return Err(code::PEER_ACCESS_ALREADY_ENABLED); }
        peers.push(peer);
        Ok(())
    }
    "cuCtxDisablePeerAccess" 4000 cuCtxDisablePeerAccess => (c, peer: Handle) {
        let context = c.context()?;
        let mut state = c.lock();
        let peers = &mut state.contexts.get_mut(&context).ok_or(code::INVALID_CONTEXT)?.peers;
        let at = peers.iter().position(|&known| known == peer).ok_or(code::PEER_ACCESS_NOT_ENABLED)?;
        peers.remove(at);
        Ok(())
    }
}
