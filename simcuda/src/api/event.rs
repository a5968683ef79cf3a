//! Events.

use super::Handle;
use crate::code;
use crate::ffi::{Call, Out};

fn record(c: &Call, event: Handle, stream: Handle, flags: u32) -> code::Result<()> {
    let id = c.stream(stream)?;
    match flags {
        0 => {}
        // A record that a graph does on an event outside it.
        1 => return Err(code::NOT_SUPPORTED),
        _ => return Err(code::INVALID_VALUE),
    }
    let mut state = c.lock();
    state.record(event, id)?;
    state.stir(c.machine);
    Ok(())
}

fn elapsed(c: &Call, to: Out<f32>, start: Handle, end: Handle) -> code::Result<()> {
    to.check()?;
    let time = c.lock().elapsed(start, end)?;
    to.set(time)
}

entries! {
    "cuEventCreate" 2000 cuEventCreate => (c, to: Out<Handle>, flags: u32) {
        let context = c.context()?;
        to.check()?;
        // Blocking, no timing; interprocess (which needs the latter) is not there.
        if flags & 4 != 0 && flags & 2 != 0 && flags & !7 == 0 { return Err(code::NOT_SUPPORTED); }
        if flags > 3 { return Err(code::INVALID_VALUE); }
        to.set(c.lock().new_event(context, flags))
    }
    "cuEventRecord" 2000 cuEventRecord | cuEventRecord_ptsz => (c, event: Handle, stream: Handle) {
        record(c, event, stream, 0)
    }
    "cuEventRecordWithFlags" 11010 cuEventRecordWithFlags | cuEventRecordWithFlags_ptsz => (
        c, event: Handle, stream: Handle, flags: u32) {
        record(c, event, stream, flags)
    }
    "cuEventQuery" 2000 cuEventQuery => (c, event: Handle) {
        c.outside_capture()?;
        let mut state = c.lock();
        state.stir(c.machine);
        let point = state.event_point(event)?.0;
        match point {
            Some(point) if !state.query(point, c.machine) => Err(code::NOT_READY),
            _ => Ok(()),
        }
    }
    "cuEventSynchronize" 2000 cuEventSynchronize => (c, event: Handle) {
        let (point, clock) = c.lock().event_point(event)?;
        c.machine.finish(point.as_slice(), &clock, true);
        // What failed meanwhile is told here; the event itself may be gone by now.
        let mut state = c.lock();
        if state.events.contains_key(&event) { state.event_point(event).map(drop) } else { Ok(()) }
    }
    "cuEventDestroy" 4000 cuEventDestroy_v2 => (c, event: Handle) {
        c.lock().events.remove(&event).map(drop).ok_or(code::INVALID_HANDLE)
    }
    "cuEventElapsedTime" 2000 cuEventElapsedTime => (c, to: Out<f32>, start: Handle, end: Handle) {
        elapsed(c, to, start, end)
    }
    "cuEventElapsedTime" 12080 cuEventElapsedTime_v2 => (c, to: Out<f32>, start: Handle, end: Handle) {
        elapsed(c, to, start, end)
    }
}
