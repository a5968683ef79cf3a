//! Bytes and addresses: the device address space, what lies where in it, and the host memory behind it.
//!
//! Device addresses lie in a range that is reserved without access, so that a host that reads a device pointer faults
//! at once, as with a real device. The bytes themselves live in host mappings elsewhere; only this file touches them.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::code::{self, Result};

/// Physical granularity of mapped memory and of address reservations.
pub const GRANULARITY: u64 = 2 << 20;

/// Host memory that stands behind device memory: zero when new, committed as touched.
#[derive(Debug)]
pub struct Backing {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone; its bytes are only touched under the machine's lock.
unsafe impl Send for Backing {}
// SAFETY: as above; a shared reference gives out no access without the lock.
unsafe impl Sync for Backing {}

impl Backing {
    /// Maps `len` bytes; `None` when the host has no more.
    pub fn new(len: u64, accessible: bool) -> Option<Backing> {
        let len = usize::try_from(len).ok().filter(|len| *len > 0)?;
        let access = if accessible { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new anonymous mapping at an address the system chooses touches nothing that exists.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        NonNull::new(start.cast()).map(|start| Backing { start, len })
    }

    /// Host address of the first byte.
    pub fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this length and nothing refers to it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// What a range of addresses is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// From `cuMemAlloc` and its like, with its context.
    Plain {
        /// Owner of the bytes.
        device: usize,
        /// Context it was made in.
        context: u64,
    },
    /// From `cuMemAllocManaged`.
    Managed {
        /// Owner of the bytes.
        device: usize,
        /// Context it was made in.
        context: u64,
    },
    /// A chunk of a memory pool.
    Chunk {
        /// Owner of the bytes.
        device: usize,
        /// The pool's number.
        pool: u64,
    },
    /// A mapped physical allocation.
    Mapped {
        /// Owner of the bytes.
        device: usize,
        /// The physical allocation's handle.
        handle: u64,
    },
    /// Memory of a graph's allocation node, while the graph holds it.
    Graph {
        /// Owner of the bytes.
        device: usize,
    },
    /// Host memory made by the driver.
    Pinned {
        /// Context it was made in.
        context: u64,
    },
    /// Host memory of the caller, registered.
    Registered {
        /// Context it was registered in.
        context: u64,
    },
}

impl Kind {
    /// The context that it goes with.
    pub fn context(&self) -> Option<u64> {
        match *self {
            Kind::Plain { context, .. }
            | Kind::Managed { context, .. }
            | Kind::Pinned { context }
            | Kind::Registered { context } => Some(context),
            Kind::Chunk { .. } | Kind::Mapped { .. } | Kind::Graph { .. } => None,
        }
    }

    /// The device that owns the bytes; `None` for host memory.
    pub fn device(&self) -> Option<usize> {
        match *self {
            Kind::Plain { device, .. }
            | Kind::Managed { device, .. }
            | Kind::Chunk { device, .. }
            | Kind::Mapped { device, .. }
            | Kind::Graph { device } => Some(device),
            Kind::Pinned { .. } | Kind::Registered { .. } => None,
        }
    }
}

/// A range of addresses with its bytes.
#[derive(Debug, Clone)]
pub struct Region {
    /// Bytes.
    pub len: u64,
    /// What it is.
    pub kind: Kind,
    /// Devices that may read it, a bit each (mapped memory has none until access is set).
    pub readers: u32,
    /// Devices that may write it.
    pub writers: u32,
    /// Its number, never used again.
    pub id: u64,
    _backing: Option<Arc<Backing>>,
    host: u64,
}

/// One end of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// An address that must lie in a known region when the copy runs.
    Device(u64),
    /// Plain host memory of the caller.
    Host(u64),
}

/// What a freed block's bytes are overwritten with.
pub const SPOILT: u8 = 0xDB;

/// How an address is to be reached, and by which devices (a bit each).
#[derive(Debug, Clone, Copy)]
pub struct Access {
    /// Written, not only read.
    pub write: bool,
    /// One of these must be allowed to.
    pub devices: u32,
}

impl Access {
    /// Reading by any device.
    pub const READ: Access = Access { write: false, devices: u32::MAX };
    /// Writing by any device.
    pub const WRITE: Access = Access { write: true, devices: u32::MAX };
}

/// The address space of all devices.
#[derive(Debug)]
pub struct Memory {
    space: Backing,
    free: BTreeMap<u64, u64>,
    regions: BTreeMap<u64, Region>,
    reserved: BTreeMap<u64, u64>,
    next: u64,
}

impl Memory {
    /// Reserves addresses for `wanted` bytes, or fewer where the host limits them.
    pub fn new(wanted: u64) -> Memory {
        let mut size = wanted.next_multiple_of(GRANULARITY);
        let space = loop {
            if let Some(space) = Backing::new(size, false) {
                break space;
            }
            size /= 2;
            assert!(size > GRANULARITY, "no addresses left");
        };
        let start = space.address().next_multiple_of(GRANULARITY);
        let len = space.address() + size - start;
        Memory {
            space,
            free: BTreeMap::from([(start, len)]),
            regions: BTreeMap::new(),
            reserved: BTreeMap::new(),
            next: 0,
        }
    }

    /// Takes `len` addresses, lowest first, so that a released address soon comes again as it does on a real driver.
    pub fn take(&mut self, len: u64, align: u64) -> Result<u64> {
        let found = self.free.iter().find_map(|(&start, &size)| {
            let at = start.checked_next_multiple_of(align)?;
            (at.checked_add(len)? <= start + size).then_some((start, size, at))
        });
        let (start, size, at) = found.ok_or(code::OUT_OF_MEMORY)?;
        self.cut(start, size, at, len);
        Ok(at)
    }

    /// Takes exactly these addresses, if they are free.
    pub fn take_at(&mut self, at: u64, len: u64) -> bool {
        let free = self.free.range(..=at).next_back().map(|(&start, &size)| (start, size));
        let fits = |start: u64, size: u64| at.checked_add(len).is_some_and(|end| end <= start + size);
        let Some((start, size)) = free.filter(|&(start, size)| fits(start, size)) else { return false };
        self.cut(start, size, at, len);
        true
    }

    fn cut(&mut self, start: u64, size: u64, at: u64, len: u64) {
        self.free.remove(&start);
        if at > start {
            self.free.insert(start, at - start);
        }
        if at + len < start + size {
            self.free.insert(at + len, start + size - at - len);
        }
    }

    /// Reserves addresses for mappings: at `wish` if they are free there, else the lowest.
    pub fn reserve(&mut self, len: u64, align: u64, wish: u64) -> Result<u64> {
        let fixed = wish != 0 && wish.is_multiple_of(align) && self.take_at(wish, len);
        let at = if fixed { wish } else { self.take(len, align)? };
        self.reserved.insert(at, len);
        Ok(at)
    }

    /// Ends a reservation that nothing is mapped in.
    pub fn unreserve(&mut self, at: u64, len: u64) -> Result<()> {
        let known = self.reserved.get(&at).is_some_and(|&size| size == len);
        if !known || !self.within(at, len).is_empty() {
            return Err(code::INVALID_VALUE);
        }
        self.reserved.remove(&at);
        self.give_back(at, len);
        Ok(())
    }

    /// Whether one reservation holds all of `at .. at + len`.
    pub fn is_reserved(&self, at: u64, len: u64) -> bool {
        let around = self.reserved.range(..=at).next_back();
        around.is_some_and(|(&start, &size)| at.checked_add(len).is_some_and(|end| end <= start + size))
    }

    fn put(&mut self, start: u64, len: u64, kind: Kind, open: bool, backing: Option<Arc<Backing>>) {
        let host = backing.as_ref().map_or(start, |backing| backing.address());
        let devices = if open { u32::MAX } else { 0 };
        self.next += 1;
        let region = Region { len, kind, readers: devices, writers: devices, id: self.next, _backing: backing, host };
        self.regions.insert(start, region);
    }

    /// Gives addresses back.
    pub fn give_back(&mut self, mut start: u64, mut len: u64) {
        if let Some(next) = self.free.remove(&(start + len)) {
            len += next;
        }
        if let Some((&before, &size)) = self.free.range(..start).next_back()
            && before + size == start
        {
            start = before;
            len += size;
        }
        self.free.insert(start, len);
    }

    /// Makes a region of new bytes at `start`.
    pub fn back(&mut self, start: u64, len: u64, kind: Kind) -> Result<()> {
        let backing = Arc::new(Backing::new(len, true).ok_or(code::OUT_OF_MEMORY)?);
        self.put(start, len, kind, true, Some(backing));
        Ok(())
    }

    /// Makes a region that the host can use too: its device address is its host address.
    pub fn back_shared(&mut self, len: u64, kind: Kind) -> Result<u64> {
        let backing = Arc::new(Backing::new(len, true).ok_or(code::OUT_OF_MEMORY)?);
        let host = backing.address();
        self.put(host, len, kind, true, Some(backing));
        Ok(host)
    }

    /// Makes a region of the caller's own host memory.
    pub fn register(&mut self, start: u64, len: u64, kind: Kind) {
        self.put(start, len, kind, true, None);
    }

    /// Makes `backing` appear at `start`, without access.
    pub fn map(&mut self, start: u64, len: u64, kind: Kind, backing: Arc<Backing>) {
        self.put(start, len, kind, false, Some(backing));
    }

    /// Ends the region that begins at `start`.
    pub fn remove(&mut self, start: u64) -> Option<Region> {
        self.regions.remove(&start)
    }

    /// The region that holds `address`, with its start.
    pub fn find(&self, address: u64) -> Option<(u64, &Region)> {
        let (&start, region) = self.regions.range(..=address).next_back()?;
        (address - start < region.len).then_some((start, region))
    }

    /// Whether an address is one of the devices', whatever lies there now.
    pub fn is_devices(&self, address: u64) -> bool {
        address.wrapping_sub(self.space.address()) < self.space.len as u64
    }

    /// The region that begins at `start`.
    pub fn at_mut(&mut self, start: u64) -> Option<&mut Region> {
        self.regions.get_mut(&start)
    }

    /// Starts of the regions that touch `start .. start + len`.
    pub fn within(&self, start: u64, len: u64) -> Vec<u64> {
        let end = start.saturating_add(len);
        let first = self.find(start).map_or(start, |(first, _)| first);
        self.regions.range(first..end).map(|(&at, _)| at).collect()
    }

    /// Starts of the regions whose kind satisfies `which`.
    pub fn select(&self, which: impl Fn(&Kind) -> bool) -> Vec<u64> {
        self.regions.iter().filter(|(_, region)| which(&region.kind)).map(|(&at, _)| at).collect()
    }

    /// Host address of `address` and how many bytes follow it there; `None` where nothing accessible lies.
    fn host_of(&self, address: u64, access: Access) -> Option<(u64, u64)> {
        let (start, region) = self.find(address)?;
        let devices = if access.write { region.writers } else { region.readers };
        (devices & access.devices != 0).then(|| (region.host + (address - start), region.len - (address - start)))
    }

    /// Whether all of `address .. address + len` can be reached now. Only mappings may be crossed from one into the
    /// next.
    pub fn accessible(&self, address: u64, len: u64, access: Access) -> bool {
        let (mut at, mut left) = (address, len);
        while left > 0 {
            match self.host_of(at, access) {
                Some((_, follow)) => {
                    let mapped = |region: &Region| matches!(region.kind, Kind::Mapped { .. });
                    if follow < left && !self.find(at).is_some_and(|(_, region)| mapped(region)) {
                        return false;
                    }
                    let part = follow.min(left);
                    at += part;
                    left -= part;
                }
                None => return false,
            }
        }
        true
    }

    /// Spoils what can be reached of `at .. at + len`: its beginning and its end, so that large blocks stay cheap.
    pub fn spoil(&self, at: u64, len: u64) {
        const PART: u64 = 16 << 10;
        let head = len.min(PART);
        let tail = (len - head).min(PART);
        for (at, len) in [(at, head), (at + len - tail, tail)] {
            // A part that is gone by now needs no spoiling.
            let _ = self.fill(at, &[SPOILT], len);
        }
    }

    /// Repeats `pattern` over `len` bytes.
    ///
    /// # Errors
    /// ILLEGAL_ADDRESS, as [`Memory::copy`].
    pub fn fill(&self, at: u64, pattern: &[u8], len: u64) -> Result<()> {
        let mut done = 0;
        while done < len {
            let (host, follow) = self.host_of(at + done, Access::WRITE).ok_or(code::ILLEGAL_ADDRESS)?;
            let part = follow.min(len - done) as usize;
            // SAFETY: `host_of` proved that `follow` bytes at `host` belong to a region of ours.
            let bytes = unsafe { std::slice::from_raw_parts_mut(host as *mut u8, part) };
            match pattern {
                [byte] => bytes.fill(*byte),
                _ => {
                    let skip = (done % pattern.len() as u64) as usize;
                    bytes.iter_mut().zip(pattern.iter().cycle().skip(skip)).for_each(|(to, from)| *to = *from);
                }
            }
            done += part as u64;
        }
        Ok(())
    }

    /// Copies `len` bytes as a device would; overlapping ranges come out as if through a buffer.
    ///
    /// # Errors
    /// ILLEGAL_ADDRESS when an end is a device address that nothing lies at (any longer).
    pub fn copy(&self, to: Place, from: Place, len: u64) -> Result<()> {
        let size = usize::try_from(len).map_err(|_| code::INVALID_VALUE)?;
        if size > 0
            && let (Ok((source, a)), Ok((target, b))) =
                (self.span(from, 0, size, Access::READ), self.span(to, 0, size, Access::WRITE))
            && a == size
            && b == size
        {
            // SAFETY: `span` proved both ends to be of one region each, or the caller of the entry point promised
            // them; `copy` allows them to overlap.
            unsafe { std::ptr::copy(source as *const u8, target as *mut u8, size) };
            return Ok(());
        }
        let bytes = self.read(from, len)?;
        self.write(to, &bytes)
    }

    /// Reads `len` bytes.
    ///
    /// # Errors
    /// ILLEGAL_ADDRESS, as [`Memory::copy`].
    pub fn read(&self, from: Place, len: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0u8; usize::try_from(len).map_err(|_| code::INVALID_VALUE)?];
        let mut done = 0;
        while done < bytes.len() {
            let (host, follow) = self.span(from, done, bytes.len(), Access::READ)?;
            // SAFETY: `span` proved that `follow` bytes at `host` belong to a region of ours, or the caller of the
            // entry point promised them; the target is a fresh vector with that many bytes left.
            unsafe { std::ptr::copy_nonoverlapping(host as *const u8, bytes[done..].as_mut_ptr(), follow) };
            done += follow;
        }
        Ok(bytes)
    }

    /// Writes `bytes`.
    ///
    /// # Errors
    /// ILLEGAL_ADDRESS, as [`Memory::copy`].
    pub fn write(&self, to: Place, bytes: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let (host, follow) = self.span(to, done, bytes.len(), Access::WRITE)?;
            // SAFETY: as in `read`, with the ends exchanged; `bytes` is not part of any region.
            unsafe { std::ptr::copy_nonoverlapping(bytes[done..].as_ptr(), host as *mut u8, follow) };
            done += follow;
        }
        Ok(())
    }

    /// Host address of the byte `done` of a range of `len` bytes, and how many of the range follow it there.
    fn span(&self, place: Place, done: usize, len: usize, access: Access) -> Result<(u64, usize)> {
        match place {
            Place::Host(start) => Ok((start + done as u64, len - done)),
            Place::Device(start) => {
                let (host, follow) = self.host_of(start + done as u64, access).ok_or(code::ILLEGAL_ADDRESS)?;
                Ok((host, follow.min((len - done) as u64) as usize))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Kind = Kind::Plain { device: 0, context: 1 };

    #[test]
    fn a_copy_crosses_from_one_region_into_the_next() {
        const MAPPED: Kind = Kind::Mapped { device: 0, handle: 1 };
        let mut memory = Memory::new(64 << 20);
        let at = memory.take(1024, 512).unwrap();
        memory.back(at, 512, MAPPED).unwrap();
        memory.back(at + 512, 512, MAPPED).unwrap();
        let bytes: Vec<u8> = (0..=255).cycle().take(1000).collect();
        memory.write(Place::Device(at + 10), &bytes).unwrap();
        assert_eq!(memory.read(Place::Device(at + 10), 1000).unwrap(), bytes);
        assert!(memory.accessible(at, 1024, Access::READ) && !memory.accessible(at, 1025, Access::READ));
    }

    #[test]
    fn plain_memory_ends_where_its_neighbour_begins() {
        let mut memory = Memory::new(64 << 20);
        let at = memory.take(1024, 512).unwrap();
        memory.back(at, 512, PLAIN).unwrap();
        memory.back(at + 512, 512, PLAIN).unwrap();
        assert!(memory.accessible(at, 512, Access::READ) && !memory.accessible(at, 513, Access::READ));
    }

    #[test]
    fn a_released_address_is_illegal_and_comes_again() {
        let mut memory = Memory::new(64 << 20);
        let at = memory.take(512, 512).unwrap();
        memory.back(at, 512, PLAIN).unwrap();
        memory.remove(at).unwrap();
        memory.give_back(at, 512);
        assert_eq!(memory.read(Place::Device(at), 1), Err(code::ILLEGAL_ADDRESS));
        assert_eq!(memory.take(512, 512), Ok(at));
    }

    #[test]
    fn a_fill_keeps_its_phase_from_one_region_into_the_next() {
        let mut memory = Memory::new(64 << 20);
        let at = memory.take(1024, 512).unwrap();
        memory.back(at, 511, PLAIN).unwrap();
        memory.back(at + 511, 513, PLAIN).unwrap();
        memory.fill(at + 508, &[1, 2, 3, 4], 8).unwrap();
        assert_eq!(memory.read(Place::Device(at + 508), 8).unwrap(), [1, 2, 3, 4, 1, 2, 3, 4]);
    }

    #[test]
    fn one_backing_shows_at_both_addresses_that_it_is_mapped_to() {
        let mut memory = Memory::new(64 << 20);
        let backing = Arc::new(Backing::new(GRANULARITY, true).unwrap());
        let a = memory.reserve(GRANULARITY, GRANULARITY, 0).unwrap();
        let b = memory.reserve(GRANULARITY, GRANULARITY, 0).unwrap();
        for at in [a, b] {
            memory.map(at, GRANULARITY, Kind::Mapped { device: 0, handle: 1 }, backing.clone());
            assert_eq!(memory.read(Place::Device(at), 1), Err(code::ILLEGAL_ADDRESS), "no access yet");
            let region = memory.at_mut(at).unwrap();
            (region.readers, region.writers) = (1, 1);
        }
        memory.write(Place::Device(a + 5), &[42]).unwrap();
        assert_eq!(memory.read(Place::Device(b + 5), 1).unwrap(), [42]);
        assert_eq!(memory.unreserve(a, GRANULARITY), Err(code::INVALID_VALUE), "something is mapped there");
        memory.remove(a).unwrap();
        assert_eq!(memory.unreserve(a, GRANULARITY), Ok(()));
    }
}
