//! Devices: where pages come from and how far streams have run. Nothing here decides anything.

#[allow(unsafe_code)]
pub mod cuda;
#[allow(unsafe_code)]
mod host;
pub(crate) mod model;

pub use cuda::{CudaOptions, PageSupply};
pub use model::ModelOptions;

use cuda::CudaDevice;
use model::ModelDevice;
use std::sync::Arc;

/// Which kind of device this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum DeviceKind {
    /// No GPU: streams run when told to, pages are numbers or host memory.
    Model = 1,
    /// The CUDA driver.
    Cuda = 2,
}

/// A page as the device granted it.
#[derive(Debug, Default)]
pub(crate) struct Grant {
    /// What a kernel or the host would use; 0 where the page cannot be accessed.
    pub(crate) pointer: u64,
    /// CUDA: where the driver's allocation begins, at or below `pointer`.
    pub(crate) raw: u64,
    /// CUDA: the physical allocation that is mapped there, 0 if it is no mapping.
    pub(crate) handle: u64,
    /// What keeps a host-backed page alive; never read here, the program reads and writes it through `pointer`.
    pub(crate) _backing: Option<host::HostMemory>,
}

/// The device said no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// The driver's code; [`Refused::MEMORY`]'s is that of out-of-memory.
    pub(crate) code: u32,
}

impl Refused {
    /// There is no memory left.
    pub(crate) const MEMORY: Refused = Refused { code: cuda::Code::OUT_OF_MEMORY.0 };
}

/// A piece of physical memory that can stand behind reserved addresses, as the device numbers it. What it is mapped at is
/// the pool's business; a chunk may be mapped at several places of its range at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk(pub(crate) u64);

/// A source of pages. Every method may be called from any thread; none may call back into the pool.
///
/// The second half serves Mapped entries: addresses are reserved first, and chunks mapped under them as needed. In terms of
/// the CUDA driver: `reserve` is `cuMemAddressReserve`, `create_chunks` one `cuMemCreate` a chunk, `map` a `cuMemMap` a
/// chunk and one `cuMemSetAccess` over all, `unmap` a `cuMemUnmap` a chunk, `release_chunk` a `cuMemRelease`. The pool
/// unmaps a place only when the work that used it has executed.
/// `create_chunks` and `reserve` are called with no lock held, the others under the slow lock.
pub(crate) trait PageSource: Send + Sync {
    /// One page of `bytes`, at model address `address`.
    fn allocate(&self, bytes: u64, address: u64) -> Result<Grant, Refused>;
    /// Takes a page back; a refusal leaves the page with the caller.
    fn release(&self, grant: Grant, bytes: u64) -> Result<(), Grant>;
    /// (free, total) bytes; `u64::MAX` where unlimited.
    fn memory(&self) -> (u64, u64);

    /// Whether the methods below work. If not, Mapped entries become a ladder of sliced ones when a pool is created.
    fn supports_mapping(&self) -> bool {
        false
    }
    /// `bytes` of addresses (a multiple of the page granularity) with nothing behind them, at model address `address`.
    /// [`Grant::pointer`] is where they begin for a kernel.
    fn reserve(&self, _bytes: u64, _address: u64) -> Result<Grant, Refused> {
        Err(Refused::MEMORY)
    }
    /// Takes reserved addresses back; nothing is mapped there.
    fn unreserve(&self, _grant: Grant, _bytes: u64) {}
    /// `count` chunks of `bytes` each, all of them or none.
    fn create_chunks(&self, _count: u64, _bytes: u64) -> Result<Vec<Chunk>, Refused> {
        Err(Refused::MEMORY)
    }
    /// Makes `chunks` (each of `bytes`) readable and writable at `pointer`, the beginning of a reservation, plus `offset`,
    /// one after the other. A refusal leaves nothing mapped there.
    fn map(&self, _pointer: u64, _offset: u64, _chunks: &[Chunk], _bytes: u64) -> Result<(), Refused> {
        Err(Refused::MEMORY)
    }
    /// Nothing is mapped at `pointer` plus `offset` any more, for `count` chunks of `bytes` each. A refusal leaves what
    /// is mapped there.
    fn unmap(&self, _pointer: u64, _offset: u64, _count: u64, _bytes: u64) -> Result<(), Refused> {
        Err(Refused::MEMORY)
    }
    /// Takes a chunk back. Where it is mapped still, the pool unmaps it right after; the memory goes with the last place.
    /// A refusal leaves it with the caller.
    fn release_chunk(&self, _chunk: Chunk, _bytes: u64) -> Result<(), Refused> {
        Err(Refused::MEMORY)
    }
}

/// The device beneath the model.
pub(crate) enum Source {
    Model(ModelDevice),
    Cuda(Arc<CudaDevice>),
}

impl Source {
    /// The model device, if it is one.
    pub(crate) fn model(&self) -> Option<&ModelDevice> {
        match self {
            Source::Model(model) => Some(model),
            Source::Cuda(_) => None,
        }
    }
    /// The CUDA device, if it is one.
    #[inline(always)]
    pub(crate) fn cuda(&self) -> Option<&Arc<CudaDevice>> {
        match self {
            Source::Model(_) => None,
            Source::Cuda(cuda) => Some(cuda),
        }
    }
}

impl PageSource for Source {
    fn allocate(&self, bytes: u64, address: u64) -> Result<Grant, Refused> {
        match self {
            Source::Model(model) => model.allocate(bytes, address),
            Source::Cuda(cuda) => cuda.allocate(bytes, address),
        }
    }
    fn release(&self, grant: Grant, bytes: u64) -> Result<(), Grant> {
        match self {
            Source::Model(model) => model.release(grant, bytes),
            Source::Cuda(cuda) => cuda.release(grant, bytes),
        }
    }
    fn memory(&self) -> (u64, u64) {
        match self {
            Source::Model(model) => model.memory(),
            Source::Cuda(cuda) => cuda.memory(),
        }
    }
    fn supports_mapping(&self) -> bool {
        match self {
            Source::Model(model) => model.supports_mapping(),
            Source::Cuda(cuda) => cuda.supports_mapping(),
        }
    }
    fn reserve(&self, bytes: u64, address: u64) -> Result<Grant, Refused> {
        match self {
            Source::Model(model) => model.reserve(bytes, address),
            Source::Cuda(cuda) => cuda.reserve(bytes, address),
        }
    }
    fn unreserve(&self, grant: Grant, bytes: u64) {
        match self {
            Source::Model(model) => model.unreserve(grant, bytes),
            Source::Cuda(cuda) => cuda.unreserve(grant, bytes),
        }
    }
    fn create_chunks(&self, count: u64, bytes: u64) -> Result<Vec<Chunk>, Refused> {
        match self {
            Source::Model(model) => model.create_chunks(count, bytes),
            Source::Cuda(cuda) => cuda.create_chunks(count, bytes),
        }
    }
    fn map(&self, pointer: u64, offset: u64, chunks: &[Chunk], bytes: u64) -> Result<(), Refused> {
        match self {
            Source::Model(model) => model.map(pointer, offset, chunks, bytes),
            Source::Cuda(cuda) => cuda.map(pointer, offset, chunks, bytes),
        }
    }
    fn unmap(&self, pointer: u64, offset: u64, count: u64, bytes: u64) -> Result<(), Refused> {
        match self {
            Source::Model(model) => model.unmap(pointer, offset, count, bytes),
            Source::Cuda(cuda) => cuda.unmap(pointer, offset, count, bytes),
        }
    }
    fn release_chunk(&self, chunk: Chunk, bytes: u64) -> Result<(), Refused> {
        match self {
            Source::Model(model) => model.release_chunk(chunk, bytes),
            Source::Cuda(cuda) => cuda.release_chunk(chunk, bytes),
        }
    }
}

/// What [`crate::device::info`] answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Model or CUDA.
    pub kind: DeviceKind,
    /// The CUDA device's number; 0 on the model device.
    pub ordinal: u32,
    /// The CUDA driver's version (1000 × major + 10 × minor); 0 on the model device.
    pub driver_version: u32,
    /// Alignment of blocks, bytes.
    pub alignment: u64,
    /// Granularity of pages, bytes.
    pub page_granularity: u64,
    /// Total bytes; `u64::MAX`: unlimited.
    pub capacity: u64,
    /// Bytes of pages granted now, over all pools.
    pub reserved: u64,
    /// Streams run only when advanced or synchronised, unless created otherwise.
    pub lazy: bool,
    /// Blocks can be read and written by the host.
    pub host_backing: bool,
    /// Chunks of memory can be mapped under reserved addresses; if not, Mapped entries become ladders of sliced ones.
    pub mapping: bool,
    /// Streams not yet forgotten, the legacy default stream included.
    pub live_streams: u64,
    /// Pools not yet destroyed, or with blocks or pages left.
    pub pools: u64,
    /// Pages granted so far.
    pub page_allocs: u64,
    /// Pages taken back so far.
    pub page_frees: u64,
    /// Name of the device.
    pub name: String,
    /// Which device was picked, and why.
    pub why: String,
}
