//! Traces: recording what a program does, and replaying it on the model.

use crate::boundary::call;
use crate::boundary::sized;
use crate::handle::smp_device;
use crate::report::smp_write_fn;
use crate::status::smp_status;
use std::ffi::{c_char, c_void};

/// Starts recording a device to a file: every call that changes state, and every outside answer that mattered, in their
/// true order, as a version-2 trace. While it records, the device's calls run one at a time.
///
/// `path`: not null; created or replaced; compressed if it ends in ".gz".
/// Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_INVALID_VALUE, SMP_ERROR_IO;
/// SMP_ERROR_NOT_PERMITTED if the device is recorded already.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_trace_start(device: smp_device, path: *const c_char) -> smp_status {
    call(pending)
}

/// Stops recording and completes the file.
///
/// Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED; SMP_ERROR_NOT_PERMITTED if nothing records;
/// SMP_ERROR_IO if writing failed, now or since the start.
#[unsafe(no_mangle)]
pub extern "C" fn smp_trace_stop(device: smp_device) -> smp_status {
    call(pending)
}

/// Told how far a replay is: `done` of `total` units (events, or bytes if the number of events is not known; total is 0 if
/// neither is). Called now and then, on the replaying thread.
pub type smp_replay_progress_fn = Option<unsafe extern "C" fn(user: *mut c_void, done: u64, total: u64)>;

/// How to replay. Start from SMP_REPLAY_OPTIONS_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct smp_replay_options {
    /// Set by SMP_REPLAY_OPTIONS_INIT.
    pub struct_size: u32,
    /// Zero.
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
    /// Nanoseconds spent in the pool's calls, the reading of the file excluded.
    pub elapsed_ns: u64,
    /// Allocations.
    pub allocs: u64,
    /// Frees.
    pub frees: u64,
    /// Streams.
    pub streams: u64,
    /// Pools.
    pub pools: u64,
    /// Zero.
    pub reserved: [u64; 4],
}

sized!(smp_replay_options, "smp_replay_options", 96);
sized!(smp_replay_result, "smp_replay_result", 136);

/// Replays a trace of either version on a model device of its own.
///
/// `path`: not null; gzip is recognised. `options`: null means every default. `out`: not null; struct_size set.
/// Errors: SMP_ERROR_INVALID_VALUE, SMP_ERROR_SPEC_SYNTAX, SMP_ERROR_INVALID_CONFIG, SMP_ERROR_IO;
/// SMP_ERROR_TRACE_SYNTAX, naming file and line; SMP_ERROR_REPLAY_MISMATCH if a version-2 trace's answers differ from the
/// model's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_trace_replay(
    path: *const c_char,
    options: *const smp_replay_options,
    out: *mut smp_replay_result,
) -> smp_status {
    call(pending)
}

fn pending() -> smp_core::Result<()> {
    Err(smp_core::Error::new(smp_core::Status::NotSupported, "traces are not built yet"))
}
