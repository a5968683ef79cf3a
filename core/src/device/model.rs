//! The model device: pages without a GPU, unlimited or with a capacity, as numbers or backed by host memory.

use super::host::HostMemory;
use super::{Chunk, Grant, PageSource, Refused};
use crate::error::{Error, Result, Status};
use parking_lot::Mutex;

/// How a model device is to behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelOptions {
    /// Alignment of blocks in bytes: a power of two from 16 to the page granularity.
    pub alignment: u64,
    /// Granularity of pages in bytes: a power of two up to 2^40.
    pub page_granularity: u64,
    /// Bytes of pages the device can grant; `u64::MAX`: unlimited (with host backing: 1 GiB).
    pub capacity: u64,
    /// Streams run only when advanced or synchronised.
    pub lazy: bool,
    /// Pages are host memory, committed as touched; pointers can be read and written.
    pub host_backing: bool,
    /// The device can map chunks of memory under reserved addresses, as Mapped entries need it.
    pub mapping: bool,
    /// As on CUDA, there may be work the library does not see: streams have executed only what an outside answer says,
    /// and a point that stands for others' work is a new operation. For replaying what was recorded on CUDA.
    pub opaque: bool,
    /// With `opaque`: one event can stand for everything submitted to the device (`cuCtxRecordEvent`), so a host-ordered
    /// free need not synchronise.
    pub context_events: bool,
    /// How many bytes of model addresses pages and ranges can have, a multiple of the page granularity up to 2^52 (which is the
    /// default). With fewer it does not take as long until released ones are given out again.
    pub addresses: u64,
}

impl Default for ModelOptions {
    fn default() -> Self {
        ModelOptions {
            alignment: 512,
            page_granularity: 2 << 20,
            capacity: u64::MAX,
            lazy: false,
            host_backing: false,
            mapping: true,
            opaque: false,
            context_events: false,
            addresses: 1 << 52,
        }
    }
}

/// Capacity of a host-backed model device that names none: 1 GiB.
pub(crate) const DEFAULT_BACKING: u64 = 1 << 30;

impl ModelOptions {
    pub(crate) fn checked(mut self) -> Result<Self> {
        let refuse = |why: String| Err(Error::new(Status::InvalidValue, why));
        if !self.page_granularity.is_power_of_two() || self.page_granularity > 1 << 40 {
            return refuse(format!("page_granularity: {} is not a power of two up to 2^40", self.page_granularity));
        }
        if !self.alignment.is_power_of_two() || self.alignment < 16 || self.alignment > self.page_granularity {
            return refuse(format!(
                "alignment: {} is not a power of two from 16 to the page granularity ({})",
                self.alignment, self.page_granularity
            ));
        }
        if self.addresses == 0 || !self.addresses.is_multiple_of(self.page_granularity) || self.addresses > 1 << 52 {
            return refuse(format!("addresses: {} is not a multiple of page_granularity up to 2^52", self.addresses));
        }
        if self.capacity == 0 {
            return refuse("capacity: must not be 0".into());
        }
        if self.host_backing && self.capacity == u64::MAX {
            self.capacity = DEFAULT_BACKING;
        }
        Ok(self)
    }
}

#[derive(Default)]
struct Supply {
    granted: u64,
    skip: u64,
    refuse: u64,
    refuse_ranges: bool,
    refuse_releases: u64,
    capacity: u64,
    next_chunk: u64,
}

impl Supply {
    /// Takes `bytes` out of the capacity, unless the request is one that is to be refused.
    fn take(&mut self, bytes: u64) -> std::result::Result<(), Refused> {
        if self.skip > 0 {
            self.skip -= 1;
        } else if self.refuse > 0 {
            self.refuse -= 1;
            return Err(Refused::MEMORY);
        }
        self.granted =
            self.granted.checked_add(bytes).filter(|&after| after <= self.capacity).ok_or(Refused::MEMORY)?;
        Ok(())
    }
    /// Puts `bytes` back, unless that is to be refused.
    fn put_back(&mut self, bytes: u64) -> std::result::Result<(), Refused> {
        if self.refuse_releases > 0 {
            self.refuse_releases -= 1;
            return Err(Refused::MEMORY);
        }
        self.granted -= bytes;
        Ok(())
    }
}

pub(crate) struct ModelDevice {
    supply: Mutex<Supply>,
    host_backing: bool,
    mapping: bool,
    /// Host pages begin at multiples of the page granularity, as model addresses do, so that every alignment a block
    /// may ask for holds for its host address too.
    alignment: u64,
}

impl ModelDevice {
    pub(crate) fn new(options: &ModelOptions) -> Self {
        ModelDevice {
            supply: Mutex::new(Supply { capacity: options.capacity, ..Supply::default() }),
            host_backing: options.host_backing,
            mapping: options.mapping,
            alignment: options.page_granularity.max(4096),
        }
    }
    pub(crate) fn set_capacity(&self, bytes: u64) {
        self.supply.lock().capacity = bytes;
    }
    pub(crate) fn refuse_pages(&self, skip: u64, count: u64) {
        let mut supply = self.supply.lock();
        (supply.skip, supply.refuse) = (skip, count);
    }
    /// No addresses are given, for the replay of a run in which none were.
    pub(crate) fn refuse_ranges(&self, refuse: bool) {
        self.supply.lock().refuse_ranges = refuse;
    }
    pub(crate) fn refuse_releases(&self, count: u64) {
        self.supply.lock().refuse_releases = count;
    }
}

impl ModelDevice {
    /// What stands behind `bytes` of addresses: host memory with host backing, else nothing.
    fn back(&self, bytes: u64) -> std::result::Result<Grant, Refused> {
        if !self.host_backing {
            return Ok(Grant::default());
        }
        let length =
            bytes.checked_add(self.alignment).and_then(|length| usize::try_from(length).ok()).ok_or(Refused::MEMORY)?;
        let backing = HostMemory::new(length).ok_or(Refused::MEMORY)?;
        let pointer = backing.address().next_multiple_of(self.alignment);
        Ok(Grant { pointer, _backing: Some(backing), ..Grant::default() })
    }
}

impl PageSource for ModelDevice {
    fn allocate(&self, bytes: u64, _address: u64) -> std::result::Result<Grant, Refused> {
        let mut supply = self.supply.lock();
        let before = supply.granted;
        supply.take(bytes)?;
        self.back(bytes).inspect_err(|_| supply.granted = before)
    }

    fn release(&self, grant: Grant, bytes: u64) -> std::result::Result<(), Grant> {
        self.supply.lock().put_back(bytes).map_err(|_| grant)
    }

    fn supports_mapping(&self) -> bool {
        self.mapping
    }

    /// Addresses cost nothing. With host backing all of a range is one piece of memory, committed as touched: what a
    /// place keeps of earlier blocks is nobody's business, so chunks need not carry bytes from place to place.
    fn reserve(&self, bytes: u64, _address: u64) -> std::result::Result<Grant, Refused> {
        match self.supply.lock().refuse_ranges {
            true => Err(Refused::MEMORY),
            false => self.back(bytes),
        }
    }

    fn create_chunks(&self, count: u64, bytes: u64) -> std::result::Result<Vec<Chunk>, Refused> {
        let mut supply = self.supply.lock();
        supply.take(count.checked_mul(bytes).ok_or(Refused::MEMORY)?)?;
        let first = supply.next_chunk;
        supply.next_chunk += count;
        Ok((first..first + count).map(Chunk).collect())
    }

    fn map(&self, _pointer: u64, _offset: u64, _chunks: &[Chunk], _bytes: u64) -> std::result::Result<(), Refused> {
        Ok(())
    }

    fn unmap(&self, _pointer: u64, _offset: u64, _count: u64, _bytes: u64) -> std::result::Result<(), Refused> {
        Ok(())
    }

    fn release_chunk(&self, _chunk: Chunk, bytes: u64) -> std::result::Result<(), Refused> {
        self.supply.lock().put_back(bytes)
    }

    fn memory(&self) -> (u64, u64) {
        let supply = self.supply.lock();
        match supply.capacity {
            u64::MAX => (u64::MAX, u64::MAX),
            capacity => (capacity.saturating_sub(supply.granted), capacity),
        }
    }
}
