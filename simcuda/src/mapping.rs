//! Virtual memory: addresses reserved, physical memory created, mapped, and made accessible, each apart from the
//! others.

use std::sync::Arc;

use crate::code::{self, Result};
use crate::machine::State;
use crate::memory::{Backing, GRANULARITY, Kind};

/// A physical allocation; it lives while a handle or a mapping holds it.
pub struct Physical {
    /// Owner of the bytes.
    pub device: usize,
    /// Bytes.
    pub len: u64,
    /// Kinds of handles it was to be exportable as.
    pub handle_types: u32,
    /// The allocation flags as they were given.
    pub flags: u64,
    handles: u32,
    mappings: u32,
    backing: Arc<Backing>,
}

impl State {
    /// Reserves addresses.
    pub fn reserve_addresses(&mut self, len: u64, align: u64, wish: u64) -> Result<u64> {
        let page = 4096;
        if len == 0 || !len.is_multiple_of(page) || align != 0 && !align.is_power_of_two() {
            return Err(code::INVALID_VALUE);
        }
        self.memory.reserve(len, align.max(GRANULARITY), wish)
    }

    /// Makes physical memory.
    pub fn create_physical(&mut self, device: usize, len: u64, handle_types: u32, flags: u64) -> Result<u64> {
        if len == 0 || !len.is_multiple_of(GRANULARITY) {
            return Err(code::INVALID_VALUE);
        }
        self.charge(device, len)?;
        let Some(backing) = Backing::new(len, true) else {
            self.devices[device].taken -= len;
            return Err(code::OUT_OF_MEMORY);
        };
        let handle = self.handle();
        let (handles, mappings) = (1, 0);
        let backing = Arc::new(backing);
        self.physical.insert(handle, Physical { device, len, handle_types, flags, handles, mappings, backing });
        Ok(handle)
    }

    fn physical(&mut self, handle: u64) -> Result<&mut Physical> {
        self.physical.get_mut(&handle).filter(|physical| physical.handles > 0).ok_or(code::INVALID_VALUE)
    }

    /// What a handle names: device, kinds of exportable handles, allocation flags.
    pub fn physical_properties(&mut self, handle: u64) -> Result<(usize, u32, u64)> {
        self.physical(handle).map(|physical| (physical.device, physical.handle_types, physical.flags))
    }

    /// Gives a handle back.
    pub fn release_physical(&mut self, handle: u64) -> Result<()> {
        self.physical(handle)?.handles -= 1;
        self.drop_physical(handle);
        Ok(())
    }

    fn drop_physical(&mut self, handle: u64) {
        if let Some(physical) = self.physical.get(&handle)
            && physical.handles == 0
            && physical.mappings == 0
        {
            self.devices[physical.device].taken -= physical.len;
            self.physical.remove(&handle);
        }
    }

    /// Another handle of the physical memory that is mapped at `address`.
    pub fn retain_physical(&mut self, address: u64) -> Result<u64> {
        let (_, region) = self.memory.find(address).ok_or(code::INVALID_VALUE)?;
        let Kind::Mapped { handle, .. } = region.kind else { return Err(code::INVALID_VALUE) };
        self.physical.get_mut(&handle).ok_or(code::INVALID_VALUE)?.handles += 1;
        Ok(handle)
    }

    /// Maps physical memory at reserved addresses, without access.
    pub fn map(&mut self, at: u64, len: u64, offset: u64, handle: u64) -> Result<()> {
        let free = self.memory.is_reserved(at, len) && self.memory.within(at, len).is_empty();
        let physical = self.physical(handle)?;
        let aligned = [at, len].iter().all(|number| number.is_multiple_of(GRANULARITY));
        if len == 0 || offset != 0 || !aligned || len > physical.len || !free {
            return Err(code::INVALID_VALUE);
        }
        physical.mappings += 1;
        let (device, backing) = (physical.device, physical.backing.clone());
        self.memory.map(at, len, Kind::Mapped { device, handle }, backing);
        Ok(())
    }

    /// The mappings that make up `at .. at + len` exactly.
    fn mappings(&self, at: u64, len: u64) -> Result<Vec<u64>> {
        let starts = self.memory.within(at, len);
        let mut next = at;
        for &start in &starts {
            let (_, region) = self.memory.find(start).ok_or(code::INVALID_VALUE)?;
            if start != next || !matches!(region.kind, Kind::Mapped { .. }) {
                return Err(code::INVALID_VALUE);
            }
            next += region.len;
        }
        if len > 0 && at.checked_add(len) == Some(next) { Ok(starts) } else { Err(code::INVALID_VALUE) }
    }

    /// Ends whole mappings. Work that still runs on them will find nothing there.
    pub fn unmap(&mut self, at: u64, len: u64) -> Result<()> {
        for start in self.mappings(at, len)? {
            let Some(region) = self.memory.remove(start) else { continue };
            if let Kind::Mapped { handle, .. } = region.kind {
                if let Some(physical) = self.physical.get_mut(&handle) {
                    physical.mappings -= 1;
                }
                self.drop_physical(handle);
            }
        }
        Ok(())
    }

    /// Lets a device read (1), read and write (3), or not reach (0) whole mappings.
    pub fn set_access(&mut self, at: u64, len: u64, device: usize, flags: u32) -> Result<()> {
        if !matches!(flags, 0 | 1 | 3) {
            return Err(code::INVALID_VALUE);
        }
        let bit = 1u32 << device;
        let with = |devices: u32, on: bool| if on { devices | bit } else { devices & !bit };
        for start in self.mappings(at, len)? {
            if let Some(region) = self.memory.at_mut(start) {
                region.readers = with(region.readers, flags & 1 != 0);
                region.writers = with(region.writers, flags & 2 != 0);
            }
        }
        Ok(())
    }

    /// How a device may reach the mapping at `address`.
    pub fn access(&self, address: u64, device: usize) -> Result<u32> {
        let (_, region) = self.memory.find(address).ok_or(code::INVALID_VALUE)?;
        let Kind::Mapped { .. } = region.kind else { return Err(code::INVALID_VALUE) };
        let bit = |devices: u32| devices >> device & 1;
        Ok(bit(region.readers) | bit(region.writers) << 1)
    }
}
