//! `dlsym`, in the place of libc's.
//!
//! What `RTLD_NEXT` and `RTLD_DEFAULT` mean depends on who calls, by the return address. So whatever is not certainly
//! ours to answer goes on to the real function by a jump that leaves the caller's return address where it is.

use crate::hook;
use std::ffi::{c_char, c_void};

/// An answer, or where to go on.
#[repr(C)]
pub struct Answer {
    /// What `dlsym` answers if `go_on` is 0, else the address of the real one.
    value: usize,
    go_on: usize,
}

/// In C: `void *dlsym(void *handle, const char *name)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
unsafe extern "C" fn dlsym(_handle: *mut c_void, _name: *const c_char) -> *mut c_void {
    core::arch::naked_asm!(
        "endbr64",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {answer}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rdx, rdx",
        "jnz 2f",
        "ret",
        "2:",
        "jmp rax",
        answer = sym answer,
    )
}

extern "C" fn answer(handle: *mut c_void, name: *const c_char) -> Answer {
    let Some(real) = crate::driver::real_dlsym() else {
        // No dlsym behind ours: libc is not the one this was built for.
        return Answer { value: 0, go_on: 0 };
    };
    // SAFETY: `handle` and `name` are what the caller gave to dlsym, whose rules for them are the same.
    match unsafe { hook::look_up(real, handle, name) } {
        Some(address) => Answer { value: address, go_on: 0 },
        None => Answer { value: real as usize, go_on: 1 },
    }
}
