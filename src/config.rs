//! Pool configurations as C writes them, and their translation.

use crate::boundary::{flags, invalid, null, read, reserved, sized};
use crate::{DEFAULT, NONE};
use smp_core::pool::config::MAX_ENTRIES;
use smp_core::{Error, MemoryPoolConfig, PoolConfig, Preset, Result, Status};

/// The default: SMP_PRESET_MAPPED.
pub const SMP_PRESET_DEFAULT: u32 = 0;
/// Size buckets of exclusive pages.
pub const SMP_PRESET_EXCLUSIVE_PAGES: u32 = 1;
/// Acts as the CUDA driver's own pool: 32 MiB pages, release threshold 0.
pub const SMP_PRESET_CUDA: u32 = 2;
/// Every block from the driver's own pool; CUDA device only.
pub const SMP_PRESET_DRIVER: u32 = 3;
/// One mapped entry; on a device that cannot map, SMP_PRESET_SUB_SLICES.
pub const SMP_PRESET_MAPPED: u32 = 4;
/// A ladder of sliced entries with an exclusive tail.
pub const SMP_PRESET_SUB_SLICES: u32 = 5;

/// A page per allocation; a free page may serve a smaller request.
pub const SMP_ENTRY_EXCLUSIVE: u32 = 1;
/// A page per allocation, reused by exact (rounded) size.
pub const SMP_ENTRY_DIRECT: u32 = 2;
/// Blocks carved from pages, split and merged.
pub const SMP_ENTRY_SLICED: u32 = 3;
/// As the CUDA driver's own pool: 32 MiB pages, larger requests get a page of their own.
pub const SMP_ENTRY_CUDA: u32 = 4;
/// Blocks carved from one range of addresses, under which chunks of memory are mapped as they are needed, and moved when
/// they are idle. On a device that cannot map, the entry becomes a ladder of sliced ones when the pool is created.
pub const SMP_ENTRY_MAPPED: u32 = 5;

/// Policy 1: reuse what precedes by events and other dependencies (attribute 1).
pub const SMP_POLICY_EVENT_DEPENDENCIES: u32 = 1;
/// Policy 2: reuse what has executed already (attribute 2).
pub const SMP_POLICY_OPPORTUNISTIC: u32 = 2;
/// Policy 3: make the stream wait when nothing else serves, and before a mapped entry holds more than about twice what was
/// ever used (attribute 3).
pub const SMP_POLICY_INTERNAL_DEPENDENCIES: u32 = 4;
/// All three policies.
pub const SMP_POLICY_ALL: u32 = 7;

/// Synchronise the device before an allocation fails.
pub const SMP_POOL_SYNC_ON_OOM: u32 = 1;
/// CUDA: do not ask the driver on every call whether the stream is capturing. A call on a capturing stream is then
/// undefined.
pub const SMP_POOL_WAIVE_CAPTURE_CHECK: u32 = 2;

/// One entry of a pool; entries are tried in order. Start from the SMP_ENTRY_..._INIT macro of its kind. Fields that
/// mean nothing to the kind must be 0 or SMP_NONE. The size of this struct never changes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct smp_pool_entry {
    /// SMP_ENTRY_EXCLUSIVE, SMP_ENTRY_DIRECT, SMP_ENTRY_SLICED, SMP_ENTRY_CUDA or SMP_ENTRY_MAPPED.
    pub kind: u32,
    /// Zero.
    pub reserved0: u32,
    /// Sliced: size of each page, not 0, bytes.
    pub page_size: u64,
    /// Exclusive: the largest request accepted, bytes; 0: zero-sized requests only; SMP_NONE: any.
    pub max_alloc_size: u64,
    /// Sliced: the largest request accepted, bytes, not 0, at most page_size; SMP_NONE: page_size.
    pub max_slice_size: u64,
    /// Sliced, cuda, mapped: hard cap on this entry's reserved bytes, not 0, for sliced at least page_size, for mapped at
    /// least chunk_size; SMP_NONE: no cap.
    pub max_pool_size: u64,
    /// Exclusive, sliced, mapped: a page (mapped: chunk) unused for this many of the pool's allocations goes back;
    /// SMP_NONE: never.
    pub dealloc_period: u64,
    /// Direct: reserved bytes of this entry above which free pages go back; SMP_NONE: only a trim gives back.
    pub reclaim_at: u64,
    /// Mapped: bytes of addresses reserved at a time, not 0; rounded up to whole chunks.
    pub range_size: u64,
    /// Mapped: bytes mapped at a time, not 0; rounded up to the device's page granularity.
    pub chunk_size: u64,
    /// Zero.
    pub reserved: [u64; 2],
}

const _: () = assert!(size_of::<smp_pool_entry>() == 88, "arrays of entries have a fixed layout");

/// What a pool is made of. Start from SMP_POOL_CONFIG_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct smp_pool_config {
    /// Set by SMP_POOL_CONFIG_INIT.
    pub struct_size: u32,
    /// SMP_PRESET_...; must be SMP_PRESET_DEFAULT (0) when entries are given.
    pub preset: u32,
    /// SMP_POLICY_... bits.
    pub policies: u32,
    /// SMP_POOL_SYNC_ON_OOM, SMP_POOL_WAIVE_CAPTURE_CHECK.
    pub flags: u32,
    /// Null: the preset's entries. Else `entry_count` entries, tried in order; read during the call only.
    pub entries: *const smp_pool_entry,
    /// How many entries `entries` points to, 1 to 32; 0 with a null pointer.
    pub entry_count: u64,
    /// Reserved bytes above which a synchronise gives pages back; SMP_NONE: never; SMP_DEFAULT: 0 in SMP_PRESET_CUDA,
    /// never elsewhere.
    pub release_threshold: u64,
    /// SMP_PRESET_CUDA only: cap on reserved bytes, rounded up to 32 MiB; SMP_NONE: no cap.
    pub max_pool_size: u64,
    /// Zero.
    pub reserved: [u64; 4],
}

sized!(smp_pool_config, "smp_pool_config", 80);

fn refused(message: impl std::fmt::Display) -> Error {
    Error::new(Status::InvalidConfig, message)
}

/// A caller's configuration, translated; null is the default preset.
///
/// # Safety
/// `config` is null or points to a struct of the size it states; its `entries` to `entry_count` entries.
pub(crate) unsafe fn translate(config: *const smp_pool_config) -> Result<PoolConfig> {
    if config.is_null() {
        return Ok(PoolConfig::default());
    }
    // SAFETY: not null, so a struct of the size it states.
    let given = unsafe { read(config, "config") }?;
    flags(given.policies, SMP_POLICY_ALL, "config->policies")?;
    flags(given.flags, SMP_POOL_SYNC_ON_OOM | SMP_POOL_WAIVE_CAPTURE_CHECK, "config->flags")?;
    reserved(&given.reserved, "config")?;

    let mut config = match given.preset {
        SMP_PRESET_DEFAULT => PoolConfig::default(),
        SMP_PRESET_MAPPED => PoolConfig::preset(Preset::Mapped),
        SMP_PRESET_SUB_SLICES => PoolConfig::preset(Preset::SubSlices),
        SMP_PRESET_EXCLUSIVE_PAGES => PoolConfig::preset(Preset::ExclusivePages),
        SMP_PRESET_CUDA => PoolConfig::preset(Preset::Cuda),
        SMP_PRESET_DRIVER => PoolConfig::preset(Preset::Driver),
        preset => return Err(invalid(format_args!("config->preset is {preset}, which is no preset"))),
    };
    if given.entries.is_null() {
        if given.entry_count != 0 {
            return Err(null("config->entries with an entry_count"));
        }
    } else {
        if given.preset != SMP_PRESET_DEFAULT {
            return Err(refused("config->preset must be 0 when entries are given"));
        }
        if given.entry_count > MAX_ENTRIES as u64 {
            return Err(refused(format_args!("entries: at most {MAX_ENTRIES} entries, got {}", given.entry_count)));
        }
        // SAFETY: the caller's array of that many entries; the count is small.
        let entries = unsafe { std::slice::from_raw_parts(given.entries, given.entry_count as usize) };
        let entries = entries.iter().enumerate().map(|(index, entry)| translate_entry(index, entry));
        config = PoolConfig::with_entries(entries.collect::<Result<_>>()?);
    }
    if given.max_pool_size != NONE {
        let [MemoryPoolConfig::Cuda { max_pool_size }] = &mut config.entries[..] else {
            return Err(refused("config->max_pool_size: only the cuda preset has one; others have it per entry"));
        };
        if config.preset.is_none() {
            return Err(refused("config->max_pool_size: only the cuda preset has one; others have it per entry"));
        }
        *max_pool_size = Some(given.max_pool_size);
    }
    if given.release_threshold != DEFAULT {
        config.release_threshold = given.release_threshold;
    }
    config.follow_event_dependencies = given.policies & SMP_POLICY_EVENT_DEPENDENCIES != 0;
    config.allow_opportunistic = given.policies & SMP_POLICY_OPPORTUNISTIC != 0;
    config.allow_internal_dependencies = given.policies & SMP_POLICY_INTERNAL_DEPENDENCIES != 0;
    config.sync_on_oom = given.flags & SMP_POOL_SYNC_ON_OOM != 0;
    config.waive_capture_check = given.flags & SMP_POOL_WAIVE_CAPTURE_CHECK != 0;
    Ok(config)
}

fn translate_entry(index: usize, entry: &smp_pool_entry) -> Result<MemoryPoolConfig> {
    let some = |value| if value == NONE { None } else { Some(value) };
    // What a caller sets and nobody reads is a misunderstanding worth telling.
    let unused = |fields: &[(&str, u64)]| match fields.iter().find(|(_, value)| *value != 0 && *value != NONE) {
        Some((field, value)) => {
            Err(refused(format_args!("entries[{index}].{field}: is {value}, but this kind of entry has no such field")))
        }
        None => Ok(()),
    };
    if entry.reserved0 != 0 || entry.reserved != [0; 2] {
        return Err(invalid(format_args!("entries[{index}]: a reserved field is not zero")));
    }
    let page_size = ("page_size", entry.page_size);
    let max_alloc_size = ("max_alloc_size", entry.max_alloc_size);
    let max_slice_size = ("max_slice_size", entry.max_slice_size);
    let max_pool_size = ("max_pool_size", entry.max_pool_size);
    let dealloc_period = ("dealloc_period", entry.dealloc_period);
    let reclaim_at = ("reclaim_at", entry.reclaim_at);
    let range_size = ("range_size", entry.range_size);
    let chunk_size = ("chunk_size", entry.chunk_size);
    if entry.kind != SMP_ENTRY_MAPPED {
        unused(&[range_size, chunk_size])?;
    }
    match entry.kind {
        SMP_ENTRY_EXCLUSIVE => {
            unused(&[page_size, max_slice_size, max_pool_size, reclaim_at])?;
            Ok(MemoryPoolConfig::Exclusive {
                max_alloc_size: entry.max_alloc_size,
                dealloc_period: some(entry.dealloc_period),
            })
        }
        SMP_ENTRY_DIRECT => {
            unused(&[page_size, max_alloc_size, max_slice_size, max_pool_size, dealloc_period])?;
            Ok(MemoryPoolConfig::Direct { reclaim_at: some(entry.reclaim_at) })
        }
        SMP_ENTRY_SLICED => {
            unused(&[max_alloc_size, reclaim_at])?;
            Ok(MemoryPoolConfig::Sliced {
                page_size: entry.page_size,
                max_slice_size: some(entry.max_slice_size),
                max_pool_size: some(entry.max_pool_size),
                dealloc_period: some(entry.dealloc_period),
            })
        }
        SMP_ENTRY_CUDA => {
            unused(&[page_size, max_alloc_size, max_slice_size, dealloc_period, reclaim_at])?;
            Ok(MemoryPoolConfig::Cuda { max_pool_size: some(entry.max_pool_size) })
        }
        SMP_ENTRY_MAPPED => {
            unused(&[page_size, max_alloc_size, max_slice_size, reclaim_at])?;
            Ok(MemoryPoolConfig::Mapped {
                range_size: entry.range_size,
                chunk_size: entry.chunk_size,
                max_pool_size: some(entry.max_pool_size),
                dealloc_period: some(entry.dealloc_period),
            })
        }
        kind => Err(invalid(format_args!("entries[{index}].kind is {kind}, which is no kind of entry"))),
    }
}
