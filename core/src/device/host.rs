//! Host memory that stands behind a model device's addresses: asked of the kernel, which may refuse it, and committed as it is touched.

use std::ptr;

/// Zeroed bytes of one's own, given back when dropped. The program reads and writes them by their address; the core does not.
#[derive(Debug)]
pub(crate) struct HostMemory {
    address: usize,
    length: usize,
}

impl HostMemory {
    /// `None`: the kernel has not so much, or `length` is 0.
    pub(crate) fn new(length: usize) -> Option<HostMemory> {
        // (Not by the heap's allocator: what it can't give ends some programs, as those that are built with sanitizers.)
        // SAFETY: a new mapping, wherever the kernel likes.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        (address != libc::MAP_FAILED).then(|| HostMemory { address: address.expose_provenance(), length })
    }

    pub(crate) fn address(&self) -> u64 {
        self.address as u64
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody else's. It cannot fail but for a lack of the kernel's own memory; then it stays mapped.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(self.address), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::HostMemory;

    #[test]
    fn what_the_kernel_does_not_have_is_refused() {
        assert!(HostMemory::new(0).is_none());
        assert!(HostMemory::new(usize::MAX).is_none());
        assert!(HostMemory::new(1 << 55).is_none());
        assert!(HostMemory::new(1 << 20).is_some_and(|memory| memory.address() != 0));
    }
}
