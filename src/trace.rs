//! Traces: recording what a program does, and replaying it on the model.

use crate::boundary::{Out, call, flags, invalid, null, read, reserved, sized, text};
use crate::handle::{Handle, smp_device};
use crate::report::{SMP_REPORT_JSON, emit, smp_write_fn};
use crate::status::smp_status;
use smp_core::Result;
use smp_core::trace::{self, ReplayOptions};
use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Recorded lines start with their time, in nanoseconds since recording began.
pub const SMP_TRACE_TIME: u32 = 1;

/// Starts recording a device to a file: every call that changes state, and every outside answer that mattered, in their
/// true order, as a version-2 trace. While it records, the device's calls run one at a time.
///
/// The device must hold no page and have no work the host has not observed; its streams and pools are noted at the start.
/// Pools begin anew there, as they do in the replay: address ranges that they have reserved go back to the device, and what
/// they have learnt is forgotten, but how much has been used. No other thread may be in a call on the device.
/// A trace is of the process that started it. In a child after a fork nothing records the device, and nothing is written to the
/// file, whatever the child does and however it ends; it may start a trace of its own.
/// `path`: not null; created or replaced; compressed if it ends in ".gz". `trace_flags`: 0 or SMP_TRACE_TIME.
/// Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_IO; SMP_ERROR_INVALID_VALUE, also, naming the file, if a
/// trace of another device is being written to it, by this name or another (a link), in this process, at the fork in the
/// process it was forked from, or in another process (where the file system has locks); only what is no regular file, such as
/// /dev/null, serves several;
/// SMP_ERROR_NOT_PERMITTED if the device is recorded already, is not at rest, or is in a call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_trace_start(device: smp_device, path: *const c_char, trace_flags: u32) -> smp_status {
    call(|| {
        flags(trace_flags, SMP_TRACE_TIME, "flags")?;
        // SAFETY: null or the caller's NUL-terminated text.
        let path = unsafe { file(path, "path") }?;
        let with_time = if trace_flags & SMP_TRACE_TIME != 0 { trace::TIME } else { 0 };
        trace::start(device.id(), path, with_time)
    })
}

/// Stops recording and completes the file.
///
/// Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED; SMP_ERROR_NOT_PERMITTED if nothing records, as in a child after a
/// fork that has started no trace of its own;
/// SMP_ERROR_IO if writing failed, now or since the start.
#[unsafe(no_mangle)]
pub extern "C" fn smp_trace_stop(device: smp_device) -> smp_status {
    call(|| trace::stop(device.id()))
}

/// Told how far a replay is: `done` of `total` bytes of the file. Called now and then, on the replaying thread.
pub type smp_replay_progress_fn = Option<unsafe extern "C" fn(user: *mut c_void, done: u64, total: u64)>;

/// Do not compare with what was recorded: the device answers for itself, within the recorded capacity. This is also the
/// way to time a replay, since a compared one serialises its calls.
pub const SMP_REPLAY_UNVERIFIED: u32 = 1;

/// How to replay. Start from SMP_REPLAY_OPTIONS_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct smp_replay_options {
    /// Set by SMP_REPLAY_OPTIONS_INIT.
    pub struct_size: u32,
    /// 0 or SMP_REPLAY_UNVERIFIED.
    pub flags: u32,
    /// Pool specification to use instead of the trace's, as in smp_pool_create_from_spec; null: the trace's own, the
    /// default preset for a version-1 trace. With another one the recorded answers are not compared.
    pub pools: *const c_char,
    /// Nanoseconds that each call to the device is taken to cost, added to elapsed_ns.
    pub device_call_ns: u64,
    /// May be null.
    pub progress: smp_replay_progress_fn,
    /// Handed to `progress`.
    pub progress_user: *mut c_void,
    /// SMP_REPORT_TEXT or SMP_REPORT_JSON, for `report`.
    pub report_format: u32,
    /// Zero.
    pub reserved0: u32,
    /// If not null, gets the report of every pool as it stands at the end.
    pub report: smp_write_fn,
    /// Handed to `report`.
    pub report_user: *mut c_void,
    /// Zero.
    pub reserved: [u64; 4],
}

/// What a replay found. Start from SMP_REPLAY_RESULT_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct smp_replay_result {
    /// Set by SMP_REPLAY_RESULT_INIT.
    pub struct_size: u32,
    /// The trace's version, 1 or 2.
    pub version: u32,
    /// Events replayed.
    pub events: u64,
    /// The most bytes asked for by live allocations at one time.
    pub live_peak: u64,
    /// The most bytes asked for by allocations that were live, or whose free had not executed.
    pub live_and_pending_peak: u64,
    /// The most bytes used at one time.
    pub used_peak: u64,
    /// The most bytes of pages held at one time.
    pub reserved_peak: u64,
    /// The most pages held at one time.
    pub pages_peak: u64,
    /// Calls made to the device.
    pub device_calls: u64,
    /// Allocations that failed.
    pub failures: u64,
    /// Nanoseconds spent in the calls, the reading of the file excluded, and device_call_ns for each call to the device.
    pub elapsed_ns: u64,
    /// Allocations.
    pub allocs: u64,
    /// Frees.
    pub frees: u64,
    /// Streams.
    pub streams: u64,
    /// Pools.
    pub pools: u64,
    /// 1 if every recorded answer was compared with the model's, and all agreed; else 0.
    pub verified: u64,
    /// Zero.
    pub reserved: [u64; 2],
}

sized!(smp_replay_options, "smp_replay_options", 96);
sized!(smp_replay_result, "smp_replay_result", 136);

/// Replays a trace of either version on a model device of its own.
///
/// `path`: not null; gzip is recognised. `options`: null means every default. `out`: not null; struct_size set.
/// Errors: SMP_ERROR_INVALID_VALUE, SMP_ERROR_SPEC_SYNTAX, SMP_ERROR_INVALID_CONFIG, SMP_ERROR_IO;
/// SMP_ERROR_NOT_SUPPORTED if the pools asked for need a CUDA device; SMP_ERROR_TRACE_SYNTAX, naming file and line;
/// SMP_ERROR_REPLAY_MISMATCH if a version-2 trace's answers differ from the model's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_trace_replay(
    path: *const c_char,
    options: *const smp_replay_options,
    out: *mut smp_replay_result,
) -> smp_status {
    call(|| {
        // SAFETY: null or the caller's NUL-terminated text.
        let path = unsafe { file(path, "path") }?;
        // SAFETY: null or a struct of the size it states.
        let out = unsafe { Out::new(out, "out") }?;
        let given = match options.is_null() {
            true => None,
            // SAFETY: not null, so a struct of the size it states.
            false => Some(unsafe { read(options, "options") }?),
        };
        let mut progress: Box<dyn FnMut(u64, u64)>;
        let mut options = ReplayOptions::default();
        if let Some(given) = &given {
            flags(given.flags, SMP_REPLAY_UNVERIFIED, "options->flags")?;
            reserved(&[given.reserved0.into()], "options")?;
            reserved(&given.reserved, "options")?;
            if given.report_format > SMP_REPORT_JSON {
                let format = given.report_format;
                return Err(invalid(format_args!("options->report_format is {format}, which is no report format")));
            }
            if !given.pools.is_null() {
                // SAFETY: not null, so the caller's NUL-terminated text.
                options.pools = Some(unsafe { text(given.pools, "options->pools") }?);
            }
            options.device_call_ns = given.device_call_ns;
            options.verify = given.flags & SMP_REPLAY_UNVERIFIED == 0;
            if let Some(told) = given.progress {
                let user = given.progress_user;
                // SAFETY: the caller's function and pointer, used during this call and on this thread only.
                progress = Box::new(move |done, total| unsafe { told(user, done, total) });
                options.progress = Some(&mut *progress);
            }
        }
        let found = trace::replay(path, options)?;
        if let Some((given, write)) = given.as_ref().and_then(|given| Some((given, given.report?))) {
            for pool in &found.pools {
                let text = if given.report_format == SMP_REPORT_JSON { &pool.json } else { &pool.text };
                // SAFETY: the caller's function and pointer, used during the call only.
                unsafe { emit(write, given.report_user, text) }?;
            }
        }
        out.write(smp_replay_result {
            struct_size: 0,
            version: found.version,
            events: found.events,
            live_peak: found.live_peak,
            live_and_pending_peak: found.live_plus_pending_peak,
            used_peak: found.used_peak,
            reserved_peak: found.reserved_peak,
            pages_peak: found.pages_peak,
            device_calls: found.device_calls,
            failures: found.failures,
            elapsed_ns: found.elapsed_ns,
            allocs: found.allocs,
            frees: found.frees,
            streams: found.streams,
            pools: found.pools.len() as u64,
            verified: found.verified.into(),
            reserved: [0; 2],
        });
        Ok(())
    })
}

/// A caller's file name, which need not be UTF-8.
///
/// # Safety
/// `path` is null or points to a NUL-terminated string that stays unchanged for `'a`.
unsafe fn file<'a>(path: *const c_char, argument: &str) -> Result<&'a Path> {
    if path.is_null() {
        return Err(null(argument));
    }
    // SAFETY: not null, so NUL-terminated.
    let name = unsafe { CStr::from_ptr(path) };
    Ok(Path::new(OsStr::from_bytes(name.to_bytes())))
}
