//! Allocators written in Rust behind one C interface, so that the C++ harness measures them as it measures the others.
//!
//! A peer is a context made by `peer_NAME_new(lazy)`, lazy meaning that submitted work does not execute during the run; `peer_NAME_alloc` writes the peer's own handle into 64 bytes
//! that the caller provides (false: refused), `peer_NAME_free` takes it out again. `peer_NAME_figures` writes peak
//! reserved bytes and device calls, u64::MAX where the peer has no such figure. Contexts are never freed: a measurement
//! is a process.

use std::alloc::Layout;
use std::mem::{align_of, size_of};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cubecl_ir::MemoryDeviceProperties;
use cubecl_runtime::logging::ServerLogger;
use cubecl_runtime::memory_management::{
    ManagedMemoryHandle, MemoryConfiguration, MemoryManagement, MemoryManagementOptions,
};
use cubecl_runtime::server::IoError;
use cubecl_runtime::storage::{ComputeStorage, StorageHandle, StorageId, StorageUtilization};
use oxicuda_driver::stream_ordered_alloc::{StreamAllocation, StreamMemoryPool, StreamOrderedAllocConfig};
use oxicuda_driver::stream_ordered_model::StreamOrderId;
use rlsf::Tlsf;

const NONE: u64 = u64::MAX;

/// What a peer does; the macro below puts it behind C functions.
pub trait Peer: Sized {
    /// The peer's own handle; at most 64 bytes, alignment at most 16.
    type Block;
    fn new(lazy: bool) -> Self;
    fn alloc(&mut self, size: u64, stream: u32) -> Option<Self::Block>;
    fn free(&mut self, block: Self::Block, stream: u32);
    /// Peak reserved bytes, device calls.
    fn figures(&self) -> [u64; 2];
}

macro_rules! export {
    ($peer:ty, $new:ident, $alloc:ident, $free:ident, $figures:ident) => {
        #[unsafe(no_mangle)]
        pub extern "C" fn $new(lazy: bool) -> *mut $peer {
            const { assert!(size_of::<<$peer as Peer>::Block>() <= 64 && align_of::<<$peer as Peer>::Block>() <= 16) };
            Box::into_raw(Box::new(<$peer>::new(lazy)))
        }

        /// # Safety
        /// `peer` is from the function above, `slot` 64 writable bytes, aligned to 16.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $alloc(peer: *mut $peer, size: u64, stream: u32, slot: *mut u8) -> bool {
            // SAFETY: as the caller promises; one thread at a time.
            match unsafe { &mut *peer }.alloc(size, stream) {
                Some(block) => {
                    // SAFETY: the block fits the slot, as asserted above.
                    unsafe { slot.cast::<<$peer as Peer>::Block>().write(block) };
                    true
                }
                None => false,
            }
        }

        /// # Safety
        /// `slot` was filled by the function above and not taken since.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $free(peer: *mut $peer, slot: *mut u8, stream: u32) {
            // SAFETY: as the caller promises.
            let block = unsafe { slot.cast::<<$peer as Peer>::Block>().read() };
            // SAFETY: as above.
            unsafe { &mut *peer }.free(block, stream);
        }

        /// # Safety
        /// `peer` is from the function above, `out` two writable words.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $figures(peer: *const $peer, out: *mut [u64; 2]) {
            // SAFETY: as the caller promises.
            unsafe { *out = (*peer).figures() };
        }
    };
}

/// A storage without memory: it counts.
struct Counting {
    held: Vec<(StorageId, u64)>,
    reserved: u64,
    peak: Arc<[AtomicU64; 2]>,
}

impl ComputeStorage for Counting {
    type Resource = ();

    fn alignment(&self) -> usize {
        512
    }

    fn get(&mut self, _handle: &StorageHandle) {}

    fn alloc(&mut self, size: u64) -> Result<StorageHandle, IoError> {
        let id = StorageId::new();
        self.held.push((id, size));
        self.reserved += size;
        self.peak[0].fetch_max(self.reserved, Ordering::Relaxed);
        self.peak[1].fetch_add(1, Ordering::Relaxed);
        Ok(StorageHandle::new(id, StorageUtilization { offset: 0, size }))
    }

    fn dealloc(&mut self, id: StorageId) {
        if let Some(at) = self.held.iter().position(|held| held.0 == id) {
            self.reserved -= self.held.swap_remove(at).1;
            self.peak[1].fetch_add(1, Ordering::Relaxed);
        }
    }

    fn flush(&mut self) {}
}

/// Its memory management over a storage without memory.
pub struct Cubecl<const SLICED: bool> {
    memory: MemoryManagement<Counting>,
    peak: Arc<[AtomicU64; 2]>,
}

impl<const SLICED: bool> Peer for Cubecl<SLICED> {
    type Block = ManagedMemoryHandle;

    fn new(_lazy: bool) -> Self {
        let peak = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let storage = Counting { held: Vec::new(), reserved: 0, peak: peak.clone() };
        // A quarter of a device of 80 GiB, as the project's CUDA runtime takes it; its alignment too.
        let properties = MemoryDeviceProperties { max_page_size: 20 << 30, alignment: 512 };
        let config = if SLICED { MemoryConfiguration::SubSlices } else { MemoryConfiguration::ExclusivePages };
        let memory = MemoryManagement::from_configuration(
            storage,
            &properties,
            config,
            Arc::new(ServerLogger::default()),
            MemoryManagementOptions::new("bench"),
        );
        Cubecl { memory, peak }
    }

    fn alloc(&mut self, size: u64, _stream: u32) -> Option<ManagedMemoryHandle> {
        self.memory.reserve(size).ok()
    }

    fn free(&mut self, block: ManagedMemoryHandle, _stream: u32) {
        drop(block);
    }

    fn figures(&self) -> [u64; 2] {
        [self.peak[0].load(Ordering::Relaxed), self.peak[1].load(Ordering::Relaxed)]
    }
}

/// Its pool takes a freed block back only when told that the stream has run, also for its own stream: so every free is
/// followed by a synchronise of the stream where work counts as run at once.
pub struct Oxicuda {
    pool: StreamMemoryPool,
    lazy: bool,
}

impl Peer for Oxicuda {
    type Block = StreamAllocation;

    fn new(lazy: bool) -> Self {
        let config = StreamOrderedAllocConfig {
            release_threshold: usize::MAX,
            ..StreamOrderedAllocConfig::default_for_device(0)
        };
        Oxicuda { pool: StreamMemoryPool::cpu_pool(config).expect("the default configuration is valid"), lazy }
    }

    fn alloc(&mut self, size: u64, stream: u32) -> Option<StreamAllocation> {
        self.pool.alloc_on(size as usize, StreamOrderId(u64::from(stream) + 16)).ok()
    }

    fn free(&mut self, mut block: StreamAllocation, stream: u32) {
        let stream = StreamOrderId(u64::from(stream) + 16);
        self.pool.free_on(&mut block, stream).expect("the block is live");
        if !self.lazy {
            self.pool.synchronize_stream(stream);
        }
    }

    fn figures(&self) -> [u64; 2] {
        [self.pool.stats().reserved_high, NONE]
    }
}

/// Over one range of 2 TiB in units of 512 bytes; "reserved" is the end of the highest block so far, in steps of 2 MiB.
pub struct OffsetAllocator {
    allocator: offset_allocator::Allocator<u32>,
    end: u64,
}

impl Peer for OffsetAllocator {
    type Block = offset_allocator::Allocation<u32>;

    fn new(_lazy: bool) -> Self {
        OffsetAllocator { allocator: offset_allocator::Allocator::with_max_allocs(u32::MAX, 8 << 20), end: 0 }
    }

    fn alloc(&mut self, size: u64, _stream: u32) -> Option<Self::Block> {
        let units = u32::try_from(size.div_ceil(512).max(1)).ok()?;
        let block = self.allocator.allocate(units)?;
        self.end = self.end.max(u64::from(block.offset) + u64::from(units));
        Some(block)
    }

    fn free(&mut self, block: Self::Block, _stream: u32) {
        self.allocator.free(block);
    }

    fn figures(&self) -> [u64; 2] {
        [(self.end * 512).next_multiple_of(2 << 20), NONE]
    }
}

const RANGE: usize = 60 << 30;

/// Over one range of address space, of which only the block headers are touched.
pub struct Rlsf {
    tlsf: Tlsf<'static, u32, u32, 32, 32>,
    base: u64,
    end: u64,
}

unsafe extern "C" {
    fn mmap(addr: *mut u8, length: usize, prot: i32, flags: i32, fd: i32, offset: i64) -> *mut u8;
}

impl Peer for Rlsf {
    type Block = NonNull<u8>;

    fn new(_lazy: bool) -> Self {
        // SAFETY: a fresh private anonymous mapping without reserve (Linux's numbers) disturbs nothing.
        let range = unsafe { mmap(std::ptr::null_mut(), RANGE, 3, 0x4022, -1, 0) };
        assert!(range as isize != -1, "no address space");
        let mut tlsf = Tlsf::new();
        let block = NonNull::slice_from_raw_parts(NonNull::new(range).expect("not null"), RANGE);
        // SAFETY: the range is ours and never unmapped.
        unsafe { tlsf.insert_free_block_ptr(block) }.expect("the range fits");
        Rlsf { tlsf, base: range as u64, end: 0 }
    }

    fn alloc(&mut self, size: u64, _stream: u32) -> Option<NonNull<u8>> {
        let layout = Layout::from_size_align(size.next_multiple_of(512) as usize, 16).ok()?;
        let block = self.tlsf.allocate(layout)?;
        self.end = self.end.max(block.as_ptr() as u64 + layout.size() as u64 - self.base);
        Some(block)
    }

    fn free(&mut self, block: NonNull<u8>, _stream: u32) {
        // SAFETY: the block is live and was asked for with this alignment.
        unsafe { self.tlsf.deallocate(block, 16) };
    }

    fn figures(&self) -> [u64; 2] {
        [self.end.next_multiple_of(2 << 20), NONE]
    }
}

/// Hands out real memory; its state is its own, so it alone may be called from several threads.
pub struct Mimalloc;

impl Peer for Mimalloc {
    type Block = NonNull<u8>;

    fn new(_lazy: bool) -> Self {
        Mimalloc
    }

    fn alloc(&mut self, size: u64, _stream: u32) -> Option<NonNull<u8>> {
        // SAFETY: any size may be asked for.
        NonNull::new(unsafe { libmimalloc_sys::mi_malloc(size as usize) }.cast())
    }

    fn free(&mut self, block: NonNull<u8>, _stream: u32) {
        // SAFETY: the block is live.
        unsafe { libmimalloc_sys::mi_free(block.as_ptr().cast()) };
    }

    fn figures(&self) -> [u64; 2] {
        [NONE, NONE]
    }
}

export!(
    Cubecl<true>,
    peer_cubecl_sliced_new,
    peer_cubecl_sliced_alloc,
    peer_cubecl_sliced_free,
    peer_cubecl_sliced_figures
);
export!(
    Cubecl<false>,
    peer_cubecl_exclusive_new,
    peer_cubecl_exclusive_alloc,
    peer_cubecl_exclusive_free,
    peer_cubecl_exclusive_figures
);
export!(Oxicuda, peer_oxicuda_new, peer_oxicuda_alloc, peer_oxicuda_free, peer_oxicuda_figures);
export!(
    OffsetAllocator,
    peer_offset_allocator_new,
    peer_offset_allocator_alloc,
    peer_offset_allocator_free,
    peer_offset_allocator_figures
);
export!(Rlsf, peer_rlsf_new, peer_rlsf_alloc, peer_rlsf_free, peer_rlsf_figures);
export!(Mimalloc, peer_mimalloc_new, peer_mimalloc_alloc, peer_mimalloc_free, peer_mimalloc_figures);
