//! What is logged: the caller's likely mistakes that no status tells, up to the level asked for, to whoever listens.
//!
//! One test, because the log belongs to the process.

mod common;

use common::*;
use smp::*;
use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::Mutex;

type Lines = Mutex<Vec<(u32, String)>>;

unsafe extern "C" fn keep(user: *mut c_void, level: u32, message: *const c_char) {
    // SAFETY: the test passes its list and keeps it until the callback is replaced.
    let lines = unsafe { &*user.cast::<Lines>() };
    // SAFETY: NUL-terminated, for this call.
    let message = unsafe { CStr::from_ptr(message) }.to_str().expect("messages are UTF-8").to_string();
    lines.lock().unwrap().push((level, message));
}

fn listen(level: u32, lines: &Lines) {
    // SAFETY: the callback fits its type; the list outlives it (`silence`).
    ok(unsafe { smp_set_log_callback(level, Some(keep), ptr::from_ref(lines).cast_mut().cast()) });
}

fn silence() {
    // SAFETY: no callback, no pointer.
    ok(unsafe { smp_set_log_callback(SMP_LOG_INFO, None, ptr::null_mut()) });
}

/// What one run of `mistake` logs at `level`.
fn logged(level: u32, mistake: impl FnOnce()) -> Vec<(u32, String)> {
    let lines = Lines::default();
    listen(level, &lines);
    mistake();
    silence();
    lines.into_inner().unwrap()
}

fn unordered_free() {
    let device = open(&smp_device_desc { flags: SMP_DEVICE_LAZY, ..device_desc() });
    let pool = pool_from(device, "preset(sub-slices)");
    let (a, b) = (stream_of(device, 0), stream_of(device, 0));
    ok(smp_free_async(alloc(pool, 8, a), b));
    assert_eq!(stats(pool).unordered_frees, 1);
    ok(smp_pool_destroy(pool));
    ok(smp_device_close(device));
}

fn ordered_free() {
    let device = open_default();
    let pool = pool_from(device, "preset(sub-slices)");
    let stream = stream_of(device, 0);
    ok(smp_free_async(alloc(pool, 8, stream), stream));
    ok(smp_pool_destroy(pool));
    ok(smp_device_close(device));
}

fn refused_release() {
    let device = open_default();
    let pool = pool_from(device, "direct()");
    let stream = stream_of(device, 0);
    ok(smp_free_async(alloc(pool, 8, stream), stream));
    ok(smp_model_refuse_releases(device, 1));
    ok(smp_pool_trim_to(pool, 0));
    let figures = stats(pool);
    assert_eq!((figures.release_failures, figures.pages), (1, 1), "the page stays reserved");
    ok(smp_pool_destroy(pool));
    ok(smp_device_close(device));
}

fn racing_access() {
    let device = open(&smp_device_desc { flags: SMP_DEVICE_LAZY, ..device_desc() });
    let pool = pool_from(device, "preset(sub-slices)");
    let (a, b) = (stream_of(device, 0), stream_of(device, 0));
    let allocation = alloc(pool, 8, a);
    let pointer = smp_allocation_ptr(allocation);
    // SAFETY: the verdict may be null; the pointer is only looked up.
    ok(unsafe { smp_note_access(device, pointer, 8, b, SMP_ACCESS_WRITE, ptr::null_mut()) });
    ok(smp_free(allocation));
    ok(smp_pool_destroy(pool));
    ok(smp_device_close(device));
}

#[test]
fn mistakes_are_logged_as_warnings_to_the_last_callback_set_and_to_nobody_else() {
    for (mistake, says) in [
        (unordered_free as fn(), "not ordered after its allocation"),
        (refused_release, "refused to take back"),
        (racing_access, "allocation"),
    ] {
        let lines = logged(SMP_LOG_WARNING, mistake);
        let [(level, message)] = &lines[..] else { panic!("one line expected: {lines:?}") };
        assert_eq!(*level, SMP_LOG_WARNING);
        assert!(message.contains(says), "{message:?} does not say {says:?}");
        assert_eq!(logged(SMP_LOG_ERROR, mistake), [], "a warning is below the level asked for");
        assert_eq!(logged(SMP_LOG_OFF, mistake), [], "off is off");
    }
    assert_eq!(logged(SMP_LOG_WARNING, ordered_free), [], "what is right is not warned about");

    let (first, second) = (Lines::default(), Lines::default());
    listen(SMP_LOG_INFO, &first);
    listen(SMP_LOG_INFO, &second);
    unordered_free();
    silence();
    unordered_free();
    assert!(first.lock().unwrap().is_empty(), "a callback set later replaces it");
    let heard = second.lock().unwrap().iter().filter(|(level, _)| *level == SMP_LOG_WARNING).count();
    assert_eq!(heard, 1, "nothing is heard after the callback is removed");
}
