//! What a pool is made of: entry kinds, policies, thresholds, presets; and what is refused at creation.

use crate::error::{Error, Result, Status};

/// A size in bytes.
pub type MemorySize = u64;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Page size of the *cuda* entry kind, as the driver's own pool: 32 MiB.
pub const CUDA_PAGE: u64 = 32 * MIB;

/// Range size of a Mapped entry where none is given: 64 GiB. Addresses cost nothing, so it is many times the need.
pub const DEFAULT_RANGE: u64 = 64 << 30;
/// Chunk size of a Mapped entry where none is given: 2 MiB, the granularity at which GPUs map memory.
pub const DEFAULT_CHUNK: u64 = 2 * MIB;

/// One entry of a pool. Sizes are bytes, rounded up to the device's alignment at creation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryPoolConfig {
    /// A page per allocation; a free page may serve a smaller request.
    Exclusive {
        /// Largest request this entry accepts; 0 makes an entry for zero-sized requests only.
        max_alloc_size: MemorySize,
        /// A page unused for this many of the pool's allocations goes back; `None`: never.
        dealloc_period: Option<u64>,
    },
    /// A page per allocation, reused by exact (rounded) size.
    Direct {
        /// Reserved bytes of this entry above which free pages go back. A watermark, not a budget.
        reclaim_at: Option<MemorySize>,
    },
    /// Blocks carved from pages, split and merged.
    Sliced {
        /// Size of each page.
        page_size: MemorySize,
        /// Largest request this entry accepts; defaults to `page_size`.
        max_slice_size: Option<MemorySize>,
        /// Hard cap on this entry's reserved bytes.
        max_pool_size: Option<MemorySize>,
        /// A page unused for this many of the pool's allocations goes back; `None`: never.
        dealloc_period: Option<u64>,
    },
    /// Acts as the CUDA driver's own pool does: 32 MiB pages, larger requests get a page of their own.
    Cuda {
        /// Cap on reserved bytes, rounded up to 32 MiB; `None`: no cap.
        max_pool_size: Option<MemorySize>,
    },
    /// Blocks carved from one contiguous range of reserved addresses, under which the device maps chunks of memory as they
    /// are needed, and moves idle ones. Accepts any size. On a device that cannot map, the entry becomes the ladder of
    /// [`Preset::SubSlices`] when the pool is created.
    Mapped {
        /// Addresses reserved at a time, rounded up to `chunk_size`; at most four times the device's capacity, and more
        /// than this where one request needs more.
        range_size: MemorySize,
        /// What is mapped at a time, rounded up to the device's page granularity.
        chunk_size: MemorySize,
        /// Hard cap on this entry's reserved bytes: whole chunks.
        max_pool_size: Option<MemorySize>,
        /// A chunk unused for this many of the pool's allocations goes back; `None`: never.
        dealloc_period: Option<u64>,
    },
}

/// A named choice of entries and thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Preset {
    /// A ladder of sliced entries with an exclusive tail.
    SubSlices = 5,
    /// The default: one mapped entry.
    Mapped = 4,
    /// Size buckets of exclusive pages.
    ExclusivePages = 1,
    /// Acts as the driver's own pool: release threshold 0.
    Cuda = 2,
    /// CUDA device only: every block from a pool of the driver's own, which a *cuda* pool of the model shadows.
    Driver = 3,
}

/// Everything a pool is created from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Tried in order.
    pub entries: Vec<MemoryPoolConfig>,
    /// Policy 1: reuse what precedes by events and other dependencies (attribute 1).
    pub follow_event_dependencies: bool,
    /// Policy 2: reuse what has executed already (attribute 2).
    pub allow_opportunistic: bool,
    /// Policy 3: make the stream wait when nothing else serves, and before a mapped entry holds more than about twice what was
    /// ever used (attribute 3).
    pub allow_internal_dependencies: bool,
    /// Reserved bytes above which a synchronise gives pages back (attribute 4); `u64::MAX`: never.
    pub release_threshold: u64,
    /// Synchronise the device before an allocation fails.
    pub sync_on_oom: bool,
    /// CUDA: do not ask the driver on every call whether the stream is capturing. A call on a capturing stream is then
    /// undefined.
    pub waive_capture_check: bool,
    /// The preset this came from, if any.
    pub preset: Option<Preset>,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self::preset(Preset::Mapped)
    }
}

impl PoolConfig {
    /// A pool of these entries: all policies on, nothing released at a synchronise.
    pub fn with_entries(entries: Vec<MemoryPoolConfig>) -> Self {
        PoolConfig {
            entries,
            follow_event_dependencies: true,
            allow_opportunistic: true,
            allow_internal_dependencies: true,
            release_threshold: u64::MAX,
            sync_on_oom: false,
            waive_capture_check: false,
            preset: None,
        }
    }

    /// The entries and thresholds of a preset.
    pub fn preset(preset: Preset) -> Self {
        let sliced = |page_size, max_slice_size| MemoryPoolConfig::Sliced {
            page_size,
            max_slice_size: Some(max_slice_size),
            max_pool_size: None,
            dealloc_period: None,
        };
        let exclusive = |max_alloc_size| MemoryPoolConfig::Exclusive { max_alloc_size, dealloc_period: None };
        let entries = match preset {
            Preset::SubSlices => vec![
                sliced(2 * MIB, 64 * KIB),
                sliced(32 * MIB, 16 * MIB),
                sliced(256 * MIB, 128 * MIB),
                exclusive(u64::MAX),
            ],
            Preset::ExclusivePages => {
                let mut entries: Vec<_> = (0..8).map(|i| exclusive((2 * MIB) << (2 * i))).collect();
                entries.push(exclusive(u64::MAX));
                entries
            }
            Preset::Cuda | Preset::Driver => vec![MemoryPoolConfig::Cuda { max_pool_size: None }],
            Preset::Mapped => vec![MemoryPoolConfig::Mapped {
                range_size: DEFAULT_RANGE,
                chunk_size: DEFAULT_CHUNK,
                max_pool_size: None,
                dealloc_period: None,
            }],
        };
        PoolConfig {
            release_threshold: if matches!(preset, Preset::Cuda | Preset::Driver) { 0 } else { u64::MAX },
            preset: Some(preset),
            ..Self::with_entries(entries)
        }
    }

    /// Checks the entries against a device's `alignment` and `granularity`; returns them with every size rounded up.
    ///
    /// Errors: [`Status::InvalidConfig`]; the message names the entry by index and the field.
    pub fn validate(&self, alignment: u64, granularity: u64) -> Result<Vec<MemoryPoolConfig>> {
        if self.entries.is_empty() {
            return Err(Error::new(Status::InvalidConfig, "entries: a pool needs at least one entry"));
        }
        if self.entries.len() > MAX_ENTRIES {
            return Err(Error::new(
                Status::InvalidConfig,
                format_args!("entries: at most {MAX_ENTRIES} entries, got {}", self.entries.len()),
            ));
        }
        self.entries.iter().enumerate().map(|(index, entry)| entry.validate(index, alignment, granularity)).collect()
    }

    /// For a device that cannot map: each Mapped entry gives way to the ladder of [`Preset::SubSlices`], with its
    /// `dealloc_period`; one with a cap to a single sliced entry with that cap, whose pages are as large as the cap allows,
    /// up to 256 MiB. `None`: there is no Mapped entry.
    pub(crate) fn without_mapping(&self) -> Option<PoolConfig> {
        let is_mapped = |entry: &MemoryPoolConfig| matches!(entry, MemoryPoolConfig::Mapped { .. });
        if !self.entries.iter().any(is_mapped) {
            return None;
        }
        let instead = |entry: &MemoryPoolConfig| match *entry {
            MemoryPoolConfig::Mapped { max_pool_size: Some(cap), dealloc_period, .. } => {
                let page_size = cap.min(256 * MIB);
                let max_pool_size = Some(cap);
                vec![MemoryPoolConfig::Sliced { page_size, max_slice_size: None, max_pool_size, dealloc_period }]
            }
            MemoryPoolConfig::Mapped { dealloc_period: period, .. } => {
                let mut ladder = Self::preset(Preset::SubSlices).entries;
                for entry in &mut ladder {
                    if let MemoryPoolConfig::Sliced { dealloc_period, .. }
                    | MemoryPoolConfig::Exclusive { dealloc_period, .. } = entry
                    {
                        *dealloc_period = period;
                    }
                }
                ladder
            }
            _ => vec![entry.clone()],
        };
        Some(PoolConfig { entries: self.entries.iter().flat_map(instead).collect(), ..self.clone() })
    }
}

/// The most entries a pool may have.
pub const MAX_ENTRIES: usize = 32;

impl MemoryPoolConfig {
    fn validate(&self, index: usize, alignment: u64, granularity: u64) -> Result<Self> {
        let refuse = |field: &str, why: &str| {
            Err(Error::new(Status::InvalidConfig, format_args!("entries[{index}].{field}: {why}")))
        };
        // u64::MAX means "any size" for an acceptance bound; it need not round.
        let round = |field: &str, value: u64, unit: u64| match value.checked_next_multiple_of(unit) {
            Some(rounded) => Ok(rounded),
            None => refuse(field, "overflows when rounded up").map(|_: Self| 0),
        };
        match *self {
            MemoryPoolConfig::Exclusive { max_alloc_size, dealloc_period } => {
                let max_alloc_size = match max_alloc_size {
                    u64::MAX => u64::MAX,
                    size => {
                        round("max_alloc_size", size, granularity)?;
                        round("max_alloc_size", size, alignment)?
                    }
                };
                Ok(MemoryPoolConfig::Exclusive { max_alloc_size, dealloc_period })
            }
            MemoryPoolConfig::Direct { reclaim_at } => Ok(MemoryPoolConfig::Direct { reclaim_at }),
            MemoryPoolConfig::Sliced { page_size, max_slice_size, max_pool_size, dealloc_period } => {
                if page_size == 0 {
                    return refuse("page_size", "must not be 0");
                }
                if max_slice_size == Some(0) {
                    return refuse("max_slice_size", "must not be 0");
                }
                if max_pool_size == Some(0) {
                    return refuse("max_pool_size", "must not be 0");
                }
                let page = round("page_size", page_size, alignment)?;
                if page > MAX_PAGE {
                    return refuse("page_size", "is above 2^47 bytes");
                }
                let slice = round("max_slice_size", max_slice_size.unwrap_or(page), alignment)?;
                if slice > page {
                    return refuse("max_slice_size", "is larger than page_size");
                }
                if max_pool_size.is_some_and(|cap| cap < page) {
                    return refuse("max_pool_size", "is smaller than page_size");
                }
                Ok(MemoryPoolConfig::Sliced {
                    page_size: page,
                    max_slice_size: Some(slice),
                    max_pool_size,
                    dealloc_period,
                })
            }
            MemoryPoolConfig::Cuda { max_pool_size } => {
                if max_pool_size == Some(0) {
                    return refuse("max_pool_size", "must not be 0");
                }
                let max_pool_size = match max_pool_size {
                    Some(cap) => Some(round("max_pool_size", cap, CUDA_PAGE)?),
                    None => None,
                };
                Ok(MemoryPoolConfig::Cuda { max_pool_size })
            }
            MemoryPoolConfig::Mapped { range_size, chunk_size, max_pool_size, dealloc_period } => {
                for (field, value) in [
                    ("range_size", Some(range_size)),
                    ("chunk_size", Some(chunk_size)),
                    ("max_pool_size", max_pool_size),
                ] {
                    if value == Some(0) {
                        return refuse(field, "must not be 0");
                    }
                }
                let chunk = round("chunk_size", chunk_size, granularity)?;
                if chunk > MAX_PAGE {
                    return refuse("chunk_size", "is above 2^47 bytes");
                }
                let range = round("range_size", range_size, chunk)?;
                if range > MAX_PAGE {
                    return refuse("range_size", "is above 2^47 bytes");
                }
                if max_pool_size.is_some_and(|cap| cap < chunk) {
                    return refuse("max_pool_size", "is smaller than chunk_size");
                }
                Ok(MemoryPoolConfig::Mapped { range_size: range, chunk_size: chunk, max_pool_size, dealloc_period })
            }
        }
    }
}

/// On a device that can grant `capacity` bytes, a Mapped entry of `entries` need not reserve more than four times that.
pub(crate) fn bound_ranges(entries: &mut [MemoryPoolConfig], capacity: u64) {
    for entry in entries {
        if let MemoryPoolConfig::Mapped { range_size, chunk_size, .. } = entry {
            let most = capacity.saturating_mul(4).div_ceil(*chunk_size).saturating_mul(*chunk_size);
            *range_size = most.min(*range_size);
        }
    }
}

/// The largest page and the largest `need`: 2^47 bytes.
pub const MAX_PAGE: u64 = 1 << 47;
