//! Initialisation, errors, look-up by name, devices and their primary contexts.

use std::ffi::c_char;

use super::{Handle, device_of, halves, proc_address};
use crate::code;
use crate::ffi::{Call, In, Out};

const NAME: &[u8] = b"libsmp stand-in device (no GPU)";

/// Attributes of a device as the public header numbers them, of a middling device. What it does not have is 0.
fn attribute(c: &Call, which: i32, device: usize) -> code::Result<i32> {
    if !(1..=152).contains(&which) {
        return Err(code::INVALID_VALUE);
    }
    Ok(match which {
        1..=3 | 39 | 95 => 1024,
        4..=6 => 65535,
        8 | 81 | 97 => 49152,
        9 => 65536,
        10 => 32,
        11 => i32::MAX,
        12 | 82 => 65536,
        13 | 36 => 1_000_000,
        14 | 51 => 512,
        16 | 78 => 1,
        // One copy engine, no PCI domain of its own; the bus is the ordinal, so that bus ids differ.
        15 | 40 => 1,
        33 => device as i32,
        37 => 256,
        38 => 4 << 20,
        75 => 8,
        106 => 16,
        // What is there: unified addresses, managed memory, host registration, mapping, pools.
        19 | 41 | 83 | 99 | 102 => 1,
        115 => i32::from(c.config().pools),
        _ => 0,
    })
}

fn look_up(c: &Call, name: In<c_char>, version: i32, flags: u64) -> code::Result<(u64, i32)> {
    let name = name.text()?;
    if flags & !3 != 0 || flags == 3 || version > c.config().driver_version {
        return Err(code::INVALID_VALUE);
    }
    let missing = c.missing();
    if missing.contains(&name) {
        return Ok((0, 1));
    }
    Ok(proc_address(&name, version, flags, c.config().driver_version, &missing))
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
        to.check()?;
        let (address, _) = look_up(c, name, version, flags)?;
        // Null, and success, when there is none.
        to.set(address)
    }
    "cuGetProcAddress" 12000 cuGetProcAddress_v2 => (
        c, name: In<c_char>, to: Out<u64>, version: i32, flags: u64, status: Out<i32>) {
        to.check()?;
        let (address, found) = look_up(c, name, version, flags)?;
        status.set_if_wanted(found);
        to.set(address)
    }

    "cuDeviceGet" 2000 cuDeviceGet => (c, to: Out<i32>, ordinal: i32) {
        to.check()?;
        device_of(c, ordinal)?;
        to.set(ordinal)
    }
    "cuDeviceGetCount" 2000 cuDeviceGetCount => (c, to: Out<i32>) { to.set(c.config().devices as i32) }
    "cuDeviceGetName" 2000 cuDeviceGetName => (c, to: Out<u8>, len: i32, dev: i32) {
        device_of(c, dev)?;
        let room = usize::try_from(len).ok().filter(|&len| len > 0).ok_or(code::INVALID_VALUE)?;
        to.check()?;
        let used = NAME.len().min(room - 1);
        NAME[..used].iter().chain(&[0]).enumerate().try_for_each(|(at, &byte)| to.at(at).set(byte))
    }
    "cuDeviceGetAttribute" 2000 cuDeviceGetAttribute => (c, to: Out<i32>, which: i32, dev: i32) {
        to.check()?;
        let device = device_of(c, dev)?;
        to.set(attribute(c, which, device)?)
    }
    "cuDeviceComputeCapability" 2000 cuDeviceComputeCapability => (c, major: Out<i32>, minor: Out<i32>, dev: i32) {
        device_of(c, dev)?;
        minor.check()?;
        major.set(8)?;
        minor.set(0)
    }
    "cuDeviceTotalMem" 3020 cuDeviceTotalMem_v2 => (c, to: Out<usize>, dev: i32) {
        device_of(c, dev)?;
        to.set(c.config().memory as usize)
    }
    "cuDeviceGetUuid" 9020 cuDeviceGetUuid => (c, to: Out<[u8; 16]>, dev: i32) { uuid(c, to, dev) }
    "cuDeviceGetUuid" 11040 cuDeviceGetUuid_v2 => (c, to: Out<[u8; 16]>, dev: i32) { uuid(c, to, dev) }
    "cuDeviceGetPCIBusId" 4010 cuDeviceGetPCIBusId => (c, to: Out<u8>, len: i32, dev: i32) {
        let text = format!("0000:{:02x}:00.0", device_of(c, dev)?);
        let fits = usize::try_from(len).is_ok_and(|room| room > text.len());
        to.check()?;
        if !fits { return Err(code::INVALID_VALUE); }
        text.bytes().chain([0]).enumerate().try_for_each(|(at, byte)| to.at(at).set(byte))
    }
    "cuDeviceGetByPCIBusId" 4010 cuDeviceGetByPCIBusId => (c, to: Out<i32>, id: In<c_char>) {
        to.check()?;
        let text = id.text()?;
        let parts: Vec<Option<u32>> =
            text.split([':', '.']).map(|part| u32::from_str_radix(part, 16).ok()).collect();
        let (Some(&Some(0)), Some(&Some(bus))) = (parts.first(), parts.get(1)) else { return Err(code::INVALID_VALUE) };
        let device = device_of(c, bus as i32)?;
        to.set(device as i32)
    }
    "cuDeviceCanAccessPeer" 4000 cuDeviceCanAccessPeer => (c, to: Out<i32>, dev: i32, peer: i32) {
        to.check()?;
        let (device, peer) = (device_of(c, dev)?, device_of(c, peer)?);
        to.set(i32::from(device != peer))
    }
    "cuDeviceGetP2PAttribute" 8000 cuDeviceGetP2PAttribute => (c, to: Out<i32>, which: i32, dev: i32, peer: i32) {
        to.check()?;
        let (device, peer) = (device_of(c, dev)?, device_of(c, peer)?);
        if device == peer { return Err(code::INVALID_DEVICE); }
        if !(1..=5).contains(&which) { return Err(code::INVALID_VALUE); }
        to.set(i32::from(which == 2))
    }
    "cuDeviceGetDefaultMemPool" 11020 cuDeviceGetDefaultMemPool => (c, to: Out<Handle>, dev: i32) {
        let dev = device_of(c, dev)?;
        to.check()?;
        if !c.config().pools { return Err(code::NOT_SUPPORTED); }
        to.set(c.lock().devices[dev].default_pool)
    }
    "cuDeviceGetMemPool" 11020 cuDeviceGetMemPool => (c, to: Out<Handle>, dev: i32) {
        let dev = device_of(c, dev)?;
        to.check()?;
        if !c.config().pools { return Err(code::NOT_SUPPORTED); }
        to.set(c.lock().devices[dev].pool)
    }
    "cuDeviceSetMemPool" 11020 cuDeviceSetMemPool => (c, dev: i32, pool: Handle) {
        let dev = device_of(c, dev)?;
        set_pool(c, dev, pool)
    }
    "cuMemGetDefaultMemPool" 13000 cuMemGetDefaultMemPool => (c, to: Out<Handle>, location: In<u64>, kind: u32) {
        to.check()?;
        let dev = located(c, location, kind)?;
        to.set(c.lock().devices[dev].default_pool)
    }
    "cuMemGetMemPool" 13000 cuMemGetMemPool => (c, to: Out<Handle>, location: In<u64>, kind: u32) {
        to.check()?;
        let dev = located(c, location, kind)?;
        to.set(c.lock().devices[dev].pool)
    }
    "cuMemSetMemPool" 13000 cuMemSetMemPool => (c, location: In<u64>, kind: u32, pool: Handle) {
        let dev = located(c, location, kind)?;
        set_pool(c, dev, pool)
    }
    "cuDeviceGraphMemTrim" 11040 cuDeviceGraphMemTrim => (c, dev: i32) {
        // Graph memory is taken and given back launch by launch: nothing is held that could be trimmed.
        device_of(c, dev).map(drop)
    }
    "cuDeviceGetGraphMemAttribute" 11040 cuDeviceGetGraphMemAttribute => (c, dev: i32, which: u32, to: Out<u64>) {
        let dev = device_of(c, dev)?;
        to.check()?;
        let used = c.lock().graph_live.values().filter(|(_, device)| *device == dev).map(|(len, _)| len).sum();
        match which {
            0 | 2 => to.set(used),
            1 | 3 => Err(code::NOT_SUPPORTED),
            _ => Err(code::INVALID_VALUE),
        }
    }

    "cuDevicePrimaryCtxRetain" 7000 cuDevicePrimaryCtxRetain => (c, to: Out<Handle>, dev: i32) {
        let dev = device_of(c, dev)?;
        to.check()?;
        let mut state = c.lock();
        state.devices[dev].retained += 1;
        let context = state.primary(dev);
        to.set(context)
    }
    "cuDevicePrimaryCtxRelease" 7000 cuDevicePrimaryCtxRelease => (c, dev: i32) { release(c, dev) }
    "cuDevicePrimaryCtxRelease" 11000 cuDevicePrimaryCtxRelease_v2 => (c, dev: i32) { release(c, dev) }
    "cuDevicePrimaryCtxReset" 7000 cuDevicePrimaryCtxReset => (c, dev: i32) { reset(c, dev) }
    "cuDevicePrimaryCtxReset" 11000 cuDevicePrimaryCtxReset_v2 => (c, dev: i32) { reset(c, dev) }
    "cuDevicePrimaryCtxSetFlags" 7000 cuDevicePrimaryCtxSetFlags => (c, dev: i32, flags: u32) {
        set_flags(c, dev, flags)
    }
    "cuDevicePrimaryCtxSetFlags" 11000 cuDevicePrimaryCtxSetFlags_v2 => (c, dev: i32, flags: u32) {
        set_flags(c, dev, flags)
    }
    "cuDevicePrimaryCtxGetState" 7000 cuDevicePrimaryCtxGetState => (c, dev: i32, flags: Out<u32>, active: Out<i32>) {
        let dev = device_of(c, dev)?;
        let state = c.lock();
        let alive = state.devices[dev].primary.is_some_and(|handle| state.contexts.contains_key(&handle));
        flags.set_if_wanted(state.devices[dev].flags);
        active.set_if_wanted(i32::from(alive));
        Ok(())
    }
}

fn uuid(c: &Call, to: Out<[u8; 16]>, dev: i32) -> code::Result<()> {
    let mut uuid = *b"libsmp-standin-0";
    uuid[15] += device_of(c, dev)? as u8;
    to.set(uuid)
}

/// The device of a memory location, for pinned memory, the only kind there are pools of.
fn located(c: &Call, location: In<u64>, kind: u32) -> code::Result<usize> {
    let (place, id) = halves(location.get()?);
    match (place, kind) {
        (1, 1) if c.config().pools => device_of(c, id).map_err(|_| code::INVALID_VALUE),
        // Managed memory needs no location.
        (1..=4, 1 | 2) | (0, 2) => Err(code::NOT_SUPPORTED),
        _ => Err(code::INVALID_VALUE),
    }
}

fn set_pool(c: &Call, device: usize, pool: Handle) -> code::Result<()> {
    let mut state = c.lock();
    state.pools.get(&pool).filter(|p| p.device == device && !p.destroyed).ok_or(code::INVALID_VALUE)?;
    state.devices[device].pool = pool;
    Ok(())
}

fn release(c: &Call, dev: i32) -> code::Result<()> {
    let device = device_of(c, dev)?;
    let context = {
        let mut state = c.lock();
        let left = state.devices[device].retained.checked_sub(1).ok_or(code::INVALID_CONTEXT)?;
        state.devices[device].retained = left;
        state.devices[device].primary.filter(|_| left == 0)
    };
    if let Some(context) = context {
        c.machine.end_context(context);
    }
    Ok(())
}

fn reset(c: &Call, dev: i32) -> code::Result<()> {
    let device = device_of(c, dev)?;
    let primary = c.lock().devices[device].primary;
    if let Some(context) = primary {
        c.machine.end_context(context);
        c.lock().devices[device].retained = 0;
    }
    Ok(())
}

fn set_flags(c: &Call, dev: i32, flags: u32) -> code::Result<()> {
    let device = device_of(c, dev)?;
    if flags & !0x1FF != 0 || flags & 7 > 4 {
        return Err(code::INVALID_VALUE);
    }
    c.lock().devices[device].flags = flags;
    Ok(())
}
