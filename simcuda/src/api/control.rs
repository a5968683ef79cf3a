//! Control calls for tests, as `include/simcuda.h` declares them. They are neither counted nor logged, and never fail
//! by plan.

use std::ffi::{CStr, c_char};

use crate::code::{self, Code, Result};
use crate::config::{Fault, Mode};
use crate::ffi;
use crate::ffi::{Call, In, Out, control};
use crate::order::Action;

fn answer(result: Result<()>) -> u32 {
    result.map_or_else(|code| code.0, |()| 0)
}

fn on_stream(stream: u64, body: impl FnOnce(&Call, usize) -> Result<()>) -> u32 {
    answer(control(|c| {
        let id = c.stream(stream)?;
        body(c, id)
    }))
}

/// A name, empty for null.
fn name(text: In<c_char>) -> String {
    text.text().unwrap_or_default()
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_calls(function: In<c_char>) -> u64 {
    control(|_| Ok(ffi::counts(&name(function)).0)).unwrap_or(0)
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_calls_of_thread(function: In<c_char>) -> u64 {
    control(|_| Ok(ffi::counts_of_thread(&name(function)))).unwrap_or(0)
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_fired(function: In<c_char>) -> u64 {
    control(|_| Ok(ffi::counts(&name(function)).1)).unwrap_or(0)
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_reset_counts() {
    let _ = control(|_| {
        ffi::reset_counts();
        Ok(())
    });
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_symbol(index: u64, calls: Out<u64>, fired: Out<u64>) -> *const c_char {
    control(|_| Ok(ffi::symbol_at(index))).ok().flatten().map_or(std::ptr::null(), |(name, counts): (&CStr, _)| {
        calls.set_if_wanted(counts.0);
        fired.set_if_wanted(counts.1);
        name.as_ptr()
    })
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_fail(function: In<c_char>, use_: u64, error: u32, onwards: i32) -> u32 {
    answer(control(|_| {
        if use_ == 0 || error == 0 {
            return Err(code::INVALID_VALUE);
        }
        let fault = Fault { name: function.text()?, from: use_, onwards: onwards != 0, code: Code(error) };
        if ffi::plan_failure(fault) == 0 { Err(code::NOT_FOUND) } else { Ok(()) }
    }))
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_clear_failures() {
    let _ = control(|_| {
        ffi::clear_failures();
        Ok(())
    });
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_hide(function: In<c_char>, hidden: i32) -> u32 {
    answer(control(|c| {
        let name = function.text()?;
        let mut missing = c.missing();
        missing.retain(|known| *known != name);
        if hidden != 0 {
            missing.push(name);
        }
        Ok(())
    }))
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_set_mode(mode: u32, seed: u64) -> u32 {
    answer(control(|c| {
        let mode = [Mode::Eager, Mode::Lazy, Mode::Adversarial].get(mode as usize).copied();
        let mut state = c.lock();
        state.set_mode(mode.ok_or(code::INVALID_VALUE)?, seed);
        state.stir(c.machine);
        Ok(())
    }))
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_submit(stream: u64, units: u64) -> u32 {
    on_stream(stream, |c, id| {
        let mut state = c.lock();
        for _ in 0..units {
            state.enqueue(id, Action::Nothing, true)?;
        }
        state.stir(c.machine);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_run(stream: u64, count: u64, ran: Out<u64>) -> u32 {
    on_stream(stream, |c, id| {
        ran.set_if_wanted(c.machine.run(id, count));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_progress(stream: u64, submitted: Out<u64>, executed: Out<u64>) -> u32 {
    on_stream(stream, |c, id| {
        let state = c.lock();
        submitted.set_if_wanted(state.streams[id].submitted);
        executed.set_if_wanted(state.streams[id].executed);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_gate_close(stream: u64) -> u32 {
    on_stream(stream, |c, id| {
        c.machine.gate(id, true);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_gate_open(stream: u64) -> u32 {
    on_stream(stream, |c, id| {
        c.machine.gate(id, false);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_set_free_memory(device: i32, bytes: u64) -> u32 {
    answer(control(|c| {
        let device = super::device_of(c, device)?;
        let mut state = c.lock();
        let whole = state.config.memory;
        let taken = state.devices[device].taken;
        state.devices[device].limit = if bytes == u64::MAX { whole } else { taken.saturating_add(bytes).min(whole) };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_reuses(reason: u32) -> u64 {
    control(|c| c.lock().reuses.get(reason as usize).copied().ok_or(code::INVALID_VALUE)).unwrap_or(0)
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_launches() -> u64 {
    control(|c| Ok(c.lock().launches)).unwrap_or(0)
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_note(text: In<c_char>) {
    let _ = control(|_| {
        ffi::note(&text.text()?);
        Ok(())
    });
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_end() {
    let _ = control(|_| {
        ffi::end();
        Ok(())
    });
}
