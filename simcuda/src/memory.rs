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

/// A range of addresses with its bytes.
#[derive(Debug, Clone)]
pub struct Region {
    /// Bytes.
    pub len: u64,
    /// What it is.
    pub kind: Kind,
    /// Whether it may be read and written (mapped memory may not, until access is set).
    pub access: bool,
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

/// The address space of all devices.
#[derive(Debug)]
pub struct Memory {
    _space: Backing,
    free: BTreeMap<u64, u64>,
    regions: BTreeMap<u64, Region>,
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
        Memory { _space: space, free: BTreeMap::from([(start, len)]), regions: BTreeMap::new() }
    }

    /// Takes `len` addresses, lowest first, so that a released address soon comes again as it does on a real driver.
    pub fn take(&mut self, len: u64, align: u64) -> Result<u64> {
        let found = self.free.iter().find_map(|(&start, &size)| {
            let at = start.checked_next_multiple_of(align)?;
            (at.checked_add(len)? <= start + size).then_some((start, size, at))
        });
        let (start, size, at) = found.ok_or(code::OUT_OF_MEMORY)?;
        self.free.remove(&start);
        if at > start {
            self.free.insert(start, at - start);
        }
        if at + len < start + size {
            self.free.insert(at + len, start + size - at - len);
        }
        Ok(at)
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
        let host = backing.address();
        self.regions.insert(start, Region { len, kind, access: true, _backing: Some(backing), host });
        Ok(())
    }

    /// Makes a region that the host can use too: its device address is its host address.
    pub fn back_shared(&mut self, len: u64, kind: Kind) -> Result<u64> {
        let backing = Arc::new(Backing::new(len, true).ok_or(code::OUT_OF_MEMORY)?);
        let host = backing.address();
        self.regions.insert(host, Region { len, kind, access: true, _backing: Some(backing), host });
        Ok(host)
    }

    /// Makes a region of the caller's own host memory.
    pub fn register(&mut self, start: u64, len: u64, kind: Kind) {
        self.regions.insert(start, Region { len, kind, access: true, _backing: None, host: start });
    }

    /// Makes `backing` appear at `start`, without access.
    pub fn map(&mut self, start: u64, len: u64, kind: Kind, backing: Arc<Backing>) {
        let host = backing.address();
        self.regions.insert(start, Region { len, kind, access: false, _backing: Some(backing), host });
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
    fn host_of(&self, address: u64) -> Option<(u64, u64)> {
        let (start, region) = self.find(address).filter(|(_, region)| region.access)?;
        Some((region.host + (address - start), region.len - (address - start)))
    }

    /// Whether all of `address .. address + len` can be read and written now.
    pub fn accessible(&self, address: u64, len: u64) -> bool {
        let (mut at, mut left) = (address, len);
        while left > 0 {
            match self.host_of(at) {
                Some((_, follow)) => {
                    let part = follow.min(left);
                    at += part;
                    left -= part;
                }
                None => return false,
            }
        }
        true
    }

    /// Copies `len` bytes as a device would; overlapping ranges come out as if through a buffer.
    ///
    /// # Errors
    /// ILLEGAL_ADDRESS when an end is a device address that nothing lies at (any longer).
    pub fn copy(&self, to: Place, from: Place, len: u64) -> Result<()> {
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
            let (host, follow) = self.span(from, done, bytes.len())?;
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
            let (host, follow) = self.span(to, done, bytes.len())?;
            // SAFETY: as in `read`, with the ends exchanged; `bytes` is not part of any region.
            unsafe { std::ptr::copy_nonoverlapping(bytes[done..].as_ptr(), host as *mut u8, follow) };
            done += follow;
        }
        Ok(())
    }

    /// Host address of the byte `done` of a range of `len` bytes, and how many of the range follow it there.
    fn span(&self, place: Place, done: usize, len: usize) -> Result<(u64, usize)> {
        match place {
            Place::Host(start) => Ok((start + done as u64, len - done)),
            Place::Device(start) => {
                let (host, follow) = self.host_of(start + done as u64).ok_or(code::ILLEGAL_ADDRESS)?;
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
        let mut memory = Memory::new(64 << 20);
        let at = memory.take(1024, 512).unwrap();
        memory.back(at, 512, PLAIN).unwrap();
        memory.back(at + 512, 512, PLAIN).unwrap();
        let bytes: Vec<u8> = (0..=255).cycle().take(1000).collect();
        memory.write(Place::Device(at + 10), &bytes).unwrap();
        assert_eq!(memory.read(Place::Device(at + 10), 1000).unwrap(), bytes);
        assert!(memory.accessible(at, 1024) && !memory.accessible(at, 1025));
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
}
