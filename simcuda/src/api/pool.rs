//! Stream-ordered allocation and memory pools.

use super::{Handle, Ptr, device_of, halves};
use crate::code;
use crate::ffi::{Call, In, Out};

fn alloc(c: &Call, to: Out<Ptr>, bytes: usize, pool: Option<Handle>, stream: Handle) -> code::Result<()> {
    // Null whenever the call fails.
    to.set(0)?;
    if !c.config().pools {
        return Err(code::NOT_SUPPORTED);
    }
    let id = c.stream(stream)?;
    let mut state = c.lock();
    let pool = match pool {
        Some(pool) => pool,
        None => {
            let context = state.contexts.get(&state.streams[id].context).ok_or(code::INVALID_CONTEXT)?;
            state.devices[context.device].pool
        }
    };
    let address = state.alloc_async(pool, bytes as u64, id)?;
    state.stir(c.machine);
    to.set(address)
}

/// A location's device, of a structure's word that holds type and id.
fn location(c: &Call, word: u64) -> code::Result<usize> {
    match halves(word) {
        (1, id) => device_of(c, id).map_err(|_| code::INVALID_VALUE),
        _ => Err(code::INVALID_VALUE),
    }
}

entries! {
    "cuMemAllocAsync" 11020 cuMemAllocAsync | cuMemAllocAsync_ptsz => (c, to: Out<Ptr>, bytes: usize, stream: Handle) {
        alloc(c, to, bytes, None, stream)
    }
    "cuMemAllocFromPoolAsync" 11020 cuMemAllocFromPoolAsync | cuMemAllocFromPoolAsync_ptsz => (
        c, to: Out<Ptr>, bytes: usize, pool: Handle, stream: Handle) {
        alloc(c, to, bytes, Some(pool), stream)
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
        if !c.config().pools { return Err(code::NOT_SUPPORTED); }
        // Type and handle types, location type and id; then a pointer, the maximum with its usage, and a reserved tail.
        let words = props.get()?;
        let ((kind, handles), (place, id)) = (halves(words[0]), halves(words[1]));
        // Managed memory needs no location.
        let lowest = if kind == 2 { 0 } else { 1 };
        if !(1..=2).contains(&kind) || !(0..=15).contains(&handles) || !(lowest..=4).contains(&place) {
            return Err(code::INVALID_VALUE);
        }
        // `usage` takes 2 bytes, then 54 reserved ones that must be 0.
        if words[4] >> 16 != 0 || words[5..].iter().any(|&word| word != 0) { return Err(code::INVALID_VALUE); }
        if kind != 1 || handles > 1 || place != 1 { return Err(code::NOT_SUPPORTED); }
        let dev = device_of(c, id).map_err(|_| code::INVALID_VALUE)?;
        let mut state = c.lock();
        let pool = state.new_pool(dev, false, words[3]);
        state.pool(pool)?.handle_types = handles as u32;
        to.set(pool)
    }
    "cuMemPoolDestroy" 11020 cuMemPoolDestroy => (c, pool: Handle) { c.lock().destroy_pool(pool) }
    "cuMemPoolTrimTo" 11020 cuMemPoolTrimTo => (c, pool: Handle, keep: usize) { c.lock().trim(pool, keep as u64) }
    "cuMemPoolGetAttribute" 11020 cuMemPoolGetAttribute => (c, pool: Handle, which: u32, to: Out<u64>) {
        to.check()?;
        let mut state = c.lock();
        let whole = state.config.memory;
        let pool = state.pool(pool)?;
        match which {
            1..=3 => to.cast::<i32>().set(i32::from(pool.policies[which as usize - 1])),
            4 => to.set(pool.threshold),
            5 => to.set(pool.reserved),
            6 => to.set(pool.reserved_high),
            7 => to.set(pool.used),
            8 => to.set(pool.used_high),
            9 => to.cast::<u32>().set(1),
            10 => to.cast::<u32>().set(pool.handle_types),
            11 => to.cast::<i32>().set(pool.device as i32),
            12 => to.cast::<u32>().set(1),
            13 => to.set(if pool.max == u64::MAX { whole } else { pool.max }),
            14 => to.cast::<i32>().set(0),
            _ => Err(code::INVALID_VALUE),
        }
    }
    "cuMemPoolSetAttribute" 11020 cuMemPoolSetAttribute => (c, pool: Handle, which: u32, from: In<u64>) {
        let mut state = c.lock();
        let pool = state.pool(pool)?;
        match which {
            1..=3 => pool.policies[which as usize - 1] = from.cast::<i32>().get()? != 0,
            4 => pool.threshold = from.get()?,
            6 if from.get()? == 0 => pool.reserved_high = pool.reserved,
            8 if from.get()? == 0 => pool.used_high = pool.used,
            _ => return Err(code::INVALID_VALUE),
        }
        Ok(())
    }
    "cuMemPoolSetAccess" 11020 cuMemPoolSetAccess => (c, pool: Handle, map: In<[u32; 3]>, count: usize) {
        let mut given = Vec::new();
        for index in 0..count {
            let [place, id, flags] = map.at(index).get()?;
            let device = location(c, u64::from(place) | u64::from(id) << 32)?;
            if !matches!(flags, 0 | 1 | 3) { return Err(code::INVALID_VALUE); }
            given.push((device, flags));
        }
        let mut state = c.lock();
        let pool = state.pool(pool)?;
        // The owner's own access stays.
        if given.iter().any(|&(device, flags)| device == pool.device && flags != 3) {
            return Err(code::INVALID_VALUE);
        }
        pool.access.extend(given);
        Ok(())
    }
    "cuMemPoolGetAccess" 11020 cuMemPoolGetAccess => (c, to: Out<u32>, pool: Handle, place: In<u64>) {
        to.check()?;
        let device = location(c, place.get()?)?;
        let mut state = c.lock();
        let pool = state.pool(pool)?;
        let own = if device == pool.device { 3 } else { 0 };
        to.set(pool.access.get(&device).copied().unwrap_or(own))
    }
}
