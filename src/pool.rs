//! Pools: creation, destruction, trimming, attributes, figures, and what happens when memory runs out.

use crate::boundary::{Out, call, invalid, not_null, null, sized, text};
use crate::config::{smp_pool_config, translate};
use crate::handle::{Handle, smp_device, smp_pool};
use crate::status::smp_status;
use smp_core::cancel;
use smp_core::pool::{self, OutOfMemory, Stats};
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

/// Int: reuse what precedes by events and other dependencies. Default 1.
pub const SMP_ATTRIBUTE_REUSE_FOLLOW_EVENT_DEPENDENCIES: u32 = 1;
/// Int: reuse what has executed already. Default 1.
pub const SMP_ATTRIBUTE_REUSE_ALLOW_OPPORTUNISTIC: u32 = 2;
/// Int: make the stream wait when nothing else serves. Default 1.
pub const SMP_ATTRIBUTE_REUSE_ALLOW_INTERNAL_DEPENDENCIES: u32 = 3;
/// Bytes reserved above which a synchronise gives pages back; SMP_NONE: never.
pub const SMP_ATTRIBUTE_RELEASE_THRESHOLD: u32 = 4;
/// Bytes of pages held. Read-only.
pub const SMP_ATTRIBUTE_RESERVED_CURRENT: u32 = 5;
/// The most bytes of pages held since it was last set to 0; nothing else may be set.
pub const SMP_ATTRIBUTE_RESERVED_HIGH: u32 = 6;
/// Bytes no one else can have because of live blocks. Read-only.
pub const SMP_ATTRIBUTE_USED_CURRENT: u32 = 7;
/// The most bytes used since it was last set to 0; nothing else may be set.
pub const SMP_ATTRIBUTE_USED_HIGH: u32 = 8;
/// Cap on reserved bytes: the sum of the entries' max_pool_size, SMP_NONE if one of them has none. Read-only.
pub const SMP_ATTRIBUTE_MAX_POOL_SIZE: u32 = 13;

/// Figures of a pool or of one of its entries; always requested <= used <= reserved. Start from SMP_POOL_STATS_INIT.
/// Exact at any quiet moment; reserved is exact always.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct smp_pool_stats {
    /// Set by SMP_POOL_STATS_INIT.
    pub struct_size: u32,
    /// How many entries the pool has.
    pub entry_count: u32,
    /// Bytes asked for by live allocations.
    pub requested: u64,
    /// Bytes no one else can have because of live blocks.
    pub used: u64,
    /// The most bytes used.
    pub used_high: u64,
    /// Bytes of pages held; of a mapped entry: of chunks. So for the other figures of pages.
    pub reserved: u64,
    /// The most bytes of pages held.
    pub reserved_high: u64,
    /// used - requested.
    pub padding: u64,
    /// Live allocations.
    pub live: u64,
    /// Free blocks not reusable by everyone yet.
    pub pending: u64,
    /// Bytes of those.
    pub pending_bytes: u64,
    /// Successful allocations so far.
    pub allocs: u64,
    /// Frees so far.
    pub frees: u64,
    /// Allocations that failed; 0 in an entry.
    pub failures: u64,
    /// Pages held.
    pub pages: u64,
    /// The most pages held.
    pub pages_high: u64,
    /// Pages the device gave.
    pub page_allocs: u64,
    /// Pages given back.
    pub page_frees: u64,
    /// Pages the device refused.
    pub page_refusals: u64,
    /// Page releases the device refused; such a page stays reserved.
    pub release_failures: u64,
    /// Calls made to the device: for pages and ranges of addresses, progress queries and host synchronises. Chunks of a mapped
    /// entry that are asked for together count once, and so does each that is moved, given back or refused.
    pub device_calls: u64,
    /// Frees on another stream that were not ordered after their allocation.
    pub unordered_frees: u64,
    /// Frees that did not follow an access noted with smp_note_access; 0 in an entry.
    pub racing_frees: u64,
    /// Times the device was asked how far a stream has run; 0 in an entry.
    pub progress_queries: u64,
    /// Waits that policy 3 put into a stream.
    pub internal_waits: u64,
    /// Device synchronises made before failing (SMP_POOL_SYNC_ON_OOM); 0 in an entry.
    pub host_syncs: u64,
    /// Blocks split.
    pub splits: u64,
    /// Blocks merged.
    pub merges: u64,
    /// Allocations served by a block freed on the same stream.
    pub reuse_same_stream: u64,
    /// By a block whose free the host has observed.
    pub reuse_observed: u64,
    /// By policy 1.
    pub reuse_event: u64,
    /// By policy 2.
    pub reuse_opportunistic: u64,
    /// By policy 3.
    pub reuse_internal: u64,
    /// By memory never used before.
    pub reuse_fresh: u64,
    /// The largest free block, bytes.
    pub largest_free: u64,
    /// Host memory that the pool's own records take, bytes.
    pub metadata_bytes: u64,
    /// Chunks of mapped entries that were mapped elsewhere instead of asking the device for more. None of them waits.
    pub chunk_moves: u64,
    /// Ranges of addresses that mapped entries have reserved.
    pub ranges: u64,
}

sized!(smp_pool_stats, "smp_pool_stats", 280);

fn stats_of(stats: &Stats, entry_count: usize) -> smp_pool_stats {
    smp_pool_stats {
        struct_size: 0,
        entry_count: entry_count as u32,
        requested: stats.requested,
        used: stats.used,
        used_high: stats.used_high,
        reserved: stats.reserved,
        reserved_high: stats.reserved_high,
        padding: stats.padding,
        live: stats.live,
        pending: stats.pending,
        pending_bytes: stats.pending_bytes,
        allocs: stats.allocs,
        frees: stats.frees,
        failures: stats.failures,
        pages: stats.pages,
        pages_high: stats.pages_high,
        page_allocs: stats.page_allocs,
        page_frees: stats.page_frees,
        page_refusals: stats.page_refusals,
        release_failures: stats.release_failures,
        device_calls: stats.device_calls,
        unordered_frees: stats.unordered_frees,
        racing_frees: stats.racing_frees,
        progress_queries: stats.progress_queries,
        internal_waits: stats.internal_waits,
        host_syncs: stats.host_syncs,
        splits: stats.splits,
        merges: stats.merges,
        reuse_same_stream: stats.reuse.same_stream,
        reuse_observed: stats.reuse.observed,
        reuse_event: stats.reuse.event,
        reuse_opportunistic: stats.reuse.opportunistic,
        reuse_internal: stats.reuse.internal,
        reuse_fresh: stats.reuse.fresh,
        largest_free: stats.largest_free,
        metadata_bytes: stats.metadata_bytes,
        chunk_moves: stats.chunk_moves,
        ranges: stats.ranges,
    }
}

/// What is known when an allocation is about to fail.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct smp_out_of_memory {
    /// The size of this struct, set by the library.
    pub struct_size: u32,
    /// Zero.
    pub reserved0: u32,
    /// The pool.
    pub pool: smp_pool,
    /// Bytes asked for.
    pub asked: u64,
    /// Bytes used.
    pub used: u64,
    /// Bytes of pages held.
    pub reserved: u64,
    /// Bytes free but not reusable by everyone yet.
    pub pending_bytes: u64,
    /// The largest free block, bytes.
    pub largest_free: u64,
    /// Bytes the device still has; SMP_NONE: unlimited.
    pub device_free: u64,
    /// Bytes the device has in all; SMP_NONE: unlimited.
    pub device_total: u64,
}

/// Called when an allocation is about to fail: nonzero to try again, 0 to let it fail. It runs on the allocating thread
/// with no lock held; it may free, trim or synchronise, but not allocate from this pool. `info` lives for the call only.
pub type smp_out_of_memory_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, info: *const smp_out_of_memory) -> c_int>;

/// Creates a pool on a device.
///
/// `config`: null means the default preset; read during the call only. `out`: not null; the caller owns the handle and
/// gives it back with smp_pool_destroy.
/// Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED for the device; SMP_ERROR_INVALID_VALUE for bad pointers,
/// struct_size, numbers of enumerations, reserved bytes; SMP_ERROR_INVALID_CONFIG for what cannot be a pool, naming the
/// field; SMP_ERROR_NOT_SUPPORTED for SMP_PRESET_DRIVER without a CUDA device.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_pool_create(
    device: smp_device,
    config: *const smp_pool_config,
    out: *mut smp_pool,
) -> smp_status {
    call(|| {
        not_null(out, "out")?;
        // SAFETY: null or the caller's configuration.
        let config = unsafe { translate(config) }?;
        let pool = pool::create(device.id(), &config)?;
        // SAFETY: checked for null above; the caller's to write.
        unsafe { out.write(smp_pool::of(pool)) };
        Ok(())
    })
}

/// Creates a pool from a specification such as "sliced(page_size=64MiB, max_slice_size=8MiB); direct()" or
/// "preset(cuda)".
///
/// `spec`: not null, UTF-8, read during the call only. `out`: as in smp_pool_create.
/// Errors: SMP_ERROR_SPEC_SYNTAX, naming the column; SMP_ERROR_INVALID_VALUE if `spec` is null or not UTF-8; else as smp_pool_create.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_pool_create_from_spec(
    device: smp_device,
    spec: *const c_char,
    out: *mut smp_pool,
) -> smp_status {
    call(|| {
        not_null(out, "out")?;
        // SAFETY: null or the caller's NUL-terminated text.
        let config = pool::spec::parse(unsafe { text(spec, "spec") }?)?;
        let pool = pool::create(device.id(), &config)?;
        // SAFETY: checked for null above; the caller's to write.
        unsafe { out.write(smp_pool::of(pool)) };
        Ok(())
    })
}

/// Destroys a pool. Live blocks stay usable, their later free succeeds, and the memory goes with the last.
///
/// Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED.
#[unsafe(no_mangle)]
pub extern "C" fn smp_pool_destroy(pool: smp_pool) -> smp_status {
    call(|| pool::destroy(pool.id()))
}

/// Gives free pages back to the device while at least `keep` bytes stay reserved. Pages with live blocks stay, and so
/// do those whose frees have not executed (in cuda entries: that the host has not observed).
///
/// `keep`: bytes. Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED.
#[unsafe(no_mangle)]
pub extern "C" fn smp_pool_trim_to(pool: smp_pool, keep: u64) -> smp_status {
    call(|| pool::trim_to(pool.id(), keep))
}

/// Reads an attribute.
///
/// `attribute`: SMP_ATTRIBUTE_...; the numbers are those of CUmemPool_attribute. `out`: not null.
/// Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED; SMP_ERROR_INVALID_VALUE for an unknown attribute.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_pool_get_attribute(pool: smp_pool, attribute: u32, out: *mut u64) -> smp_status {
    call(|| {
        not_null(out, "out")?;
        let value = pool::get_attribute(pool.id(), attribute)?;
        // SAFETY: checked for null above; the caller's to write.
        unsafe { out.write(value) };
        Ok(())
    })
}

/// Reads an attribute of the driver's own pool beneath a pool of SMP_PRESET_DRIVER; smp_pool_get_attribute answers what it
/// comes to by the documented rules, and the difference is the driver's own.
///
/// `attribute`: 1 to 8. `out`: not null. Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED; SMP_ERROR_INVALID_VALUE for
/// another attribute, or a pool of another preset; SMP_ERROR_DRIVER.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_pool_get_driver_attribute(pool: smp_pool, attribute: u32, out: *mut u64) -> smp_status {
    call(|| {
        not_null(out, "out")?;
        let all = pool::compare_with_driver(pool.id())?;
        let value = all
            .iter()
            .find(|compared| compared.attribute == attribute)
            .ok_or_else(|| invalid(format_args!("attribute {attribute} is not from 1 to 8")))?;
        // SAFETY: checked for null above; the caller's to write.
        unsafe { out.write(value.driver) };
        Ok(())
    })
}

/// Sets an attribute: 1 to 3 to 0 or 1, 4 to a number of bytes, 6 and 8 to 0 only, which sets them to the current value
/// (these are the pool's own marks, as in CUDA: those of its entries, in smp_pool_get_entry_stats, stay).
///
/// Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED; SMP_ERROR_INVALID_VALUE for an unknown or read-only attribute
/// or a value it cannot have.
#[unsafe(no_mangle)]
pub extern "C" fn smp_pool_set_attribute(pool: smp_pool, attribute: u32, value: u64) -> smp_status {
    call(|| pool::set_attribute(pool.id(), attribute, value))
}

/// The figures of a pool.
///
/// `out`: not null; struct_size set. Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED, SMP_ERROR_INVALID_VALUE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_pool_get_stats(pool: smp_pool, out: *mut smp_pool_stats) -> smp_status {
    call(|| {
        // SAFETY: null or a struct of the size it states.
        let out = unsafe { Out::new(out, "out") }?;
        let entries = pool::entry_count(pool.id())?;
        out.write(stats_of(&pool::stats(pool.id())?, entries));
        Ok(())
    })
}

/// The figures of one entry of a pool.
///
/// Amounts and counts of the entries add up to the pool's, but for these: `failures`, `racing_frees`, `progress_queries` and `host_syncs`
/// are the pool's alone, 0 in an entry, and its `device_calls` count the latter two besides the entries' own; `largest_free` is the largest of
/// theirs; high-water marks are each entry's own, reached in its own time; in `metadata_bytes` the pool's noted accesses are no entry's.
///
/// `index`: below smp_pool_stats.entry_count. `out`: not null; struct_size set.
/// Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED; SMP_ERROR_INVALID_VALUE, also for an index out of range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_pool_get_entry_stats(pool: smp_pool, index: u32, out: *mut smp_pool_stats) -> smp_status {
    call(|| {
        // SAFETY: null or a struct of the size it states.
        let out = unsafe { Out::new(out, "out") }?;
        let entries = pool::entry_count(pool.id())?;
        if index as usize >= entries {
            return Err(invalid(format_args!("index is {index}; the pool has {entries} entries")));
        }
        out.write(stats_of(&pool::entry_stats(pool.id(), index as usize)?, entries));
        Ok(())
    })
}

/// Sets what is called when an allocation of this pool is about to fail; replaces the one before.
///
/// `callback`: null removes it. `user`: handed to it as it is; must stay valid until the callback is replaced or the pool
/// is destroyed, and no allocation of the pool is running. Errors: SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smp_pool_set_out_of_memory_callback(
    pool: smp_pool,
    callback: smp_out_of_memory_fn,
    user: *mut c_void,
) -> smp_status {
    call(|| {
        let callback = callback.map(|callback| {
            let user = User(user);
            let asked = move |info: &OutOfMemory| {
                let user = &user;
                let info = smp_out_of_memory {
                    struct_size: size_of::<smp_out_of_memory>() as u32,
                    reserved0: 0,
                    pool: smp_pool::of(info.pool),
                    asked: info.asked,
                    used: info.used,
                    reserved: info.reserved,
                    pending_bytes: info.pending_bytes,
                    largest_free: info.largest_free,
                    device_free: info.device_free,
                    device_total: info.device_total,
                };
                let _held = cancel::hold();
                // SAFETY: the caller set this function and this pointer together and keeps both usable from any thread.
                unsafe { callback(user.0, &info) != 0 }
            };
            Arc::new(asked) as Arc<dyn Fn(&OutOfMemory) -> bool + Send + Sync>
        });
        pool::set_out_of_memory_callback(pool.id(), callback)
    })
}

/// A caller's pointer that goes along with its callback.
#[derive(Clone, Copy)]
pub(crate) struct User(pub(crate) *mut c_void);
// SAFETY: the library never follows it; whoever sets a callback promises that it can run on any thread.
unsafe impl Send for User {}
// SAFETY: as above.
unsafe impl Sync for User {}

/// The refusal of a callback that must be there.
pub(crate) fn needed<F>(callback: Option<F>, argument: &str) -> smp_core::Result<F> {
    callback.ok_or_else(|| null(argument))
}
