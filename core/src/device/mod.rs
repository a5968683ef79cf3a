//! Devices: where pages come from and how far streams have run. Nothing here decides anything.

pub(crate) mod model;

pub use model::ModelOptions;

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
    /// What keeps a host-backed page alive; never read here, the program reads and writes it through `pointer`.
    pub(crate) _backing: Option<Vec<u8>>,
}

/// The device said no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused;

/// A source of pages. Every method may be called from any thread; none may call back into the pool.
pub(crate) trait PageSource: Send + Sync {
    /// One page of `bytes`, at model address `address`.
    fn allocate(&self, bytes: u64, address: u64) -> Result<Grant, Refused>;
    /// Takes a page back; a refusal leaves the page with the caller.
    fn release(&self, grant: Grant, bytes: u64) -> Result<(), Grant>;
    /// (free, total) bytes; `u64::MAX` where unlimited.
    fn memory(&self) -> (u64, u64);
}

/// What [`crate::device::info`] answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Model or CUDA.
    pub kind: DeviceKind,
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
