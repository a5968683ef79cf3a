//! One CUDA device in one context: memory, streams and events by driver calls. Nothing here decides anything, and nothing
//! here may be called with a lock of the pool held: a driver call may take long.
//!
//! Every call runs with the device's context current (the caller's is restored) and in relaxed capture mode, so that a
//! capture of the caller's is neither broken nor entered by what the library does for itself.

use super::ffi::{AccessDesc, AllocationProp, Answer, CUmemoryPool, Code, PoolProps, cu, cu_optional};
use super::loader::{Loaded, driver};
use crate::device_source::{Chunk, Grant, PageSource, Refused};
use crate::error::{Error, Result, Status};
use cuda_driver_sys::{CUcontext, CUdevice, CUevent, CUstream};
use parking_lot::Mutex;
use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Where a CUDA device's pages come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum PageSupply {
    /// `cuMemAlloc` and `cuMemFree`.
    #[default]
    Plain = 0,
    /// A memory pool of the driver's, through `cuMemAllocFromPoolAsync`: fast again once the driver holds the memory.
    DriverPool = 1,
    /// Virtual memory management: `cuMemCreate` and `cuMemMap`.
    VirtualMemory = 2,
}

/// How a CUDA device is to be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaOptions {
    /// The device's number.
    pub ordinal: u32,
    /// A `CUcontext` of that device; 0: its primary context, retained while the device is in use.
    pub context: u64,
    /// Where pages come from.
    pub supply: PageSupply,
    /// Alignment of blocks in bytes: a power of two from 256 to the page granularity.
    pub alignment: u64,
    /// Granularity of pages in bytes: a power of two; with virtual memory at least the driver's.
    pub page_granularity: u64,
    /// Ask the driver on every call whether the stream is capturing. Without it, a call on a capturing stream is undefined.
    pub capture_check: bool,
    /// Let Mapped entries map chunks, where the device can.
    pub mapping: bool,
    /// Verify a stream's identity with the driver on every call (`SMP_CHECKED=1` does too).
    pub checked: bool,
}

impl Default for CudaOptions {
    fn default() -> Self {
        CudaOptions {
            ordinal: 0,
            context: 0,
            supply: PageSupply::Plain,
            alignment: 512,
            page_granularity: 2 << 20,
            capture_check: true,
            mapping: true,
            checked: false,
        }
    }
}

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;
/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: u32 = 2;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: u32 = 2;
/// `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`.
const ATTRIBUTE_VIRTUAL_MEMORY: i32 = 102;
/// `CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED`.
const ATTRIBUTE_MEMORY_POOLS: i32 = 115;
/// `CU_MEM_ALLOCATION_TYPE_PINNED` and `CU_MEM_LOCATION_TYPE_DEVICE`.
const PINNED: u32 = 1;
const LOCATION_DEVICE: u32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ_WRITE: u32 = 3;
/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`.
const ATTRIBUTE_THRESHOLD: u32 = 4;
/// How many events are kept for later.
const IDLE_EVENTS: usize = 1024;

pub(crate) struct CudaDevice {
    loaded: &'static Loaded,
    ordinal: u32,
    device: CUdevice,
    context: usize,
    /// The primary context was retained.
    retained: bool,
    name: String,
    total: u64,
    supply: PageSupply,
    granularity: u64,
    /// What chunks are a multiple of; `u64::MAX` if not known.
    chunk_granularity: u64,
    virtual_memory: bool,
    mapping: bool,
    pub(crate) memory_pools: bool,
    /// The first sticky error, 0 if none.
    poisoned: AtomicU32,
    idle: Mutex<Vec<usize>>,
    reserve: Mutex<Option<Reserve>>,
}

/// The driver's pool that pages come from, and the library's own stream.
#[derive(Clone, Copy)]
struct Reserve {
    pool: usize,
    stream: usize,
}

/// An event of the library's own, recorded at a stream's position. Goes back to be used again when no one holds it.
pub(crate) struct Fence {
    device: Arc<CudaDevice>,
    event: usize,
}

impl Drop for Fence {
    fn drop(&mut self) {
        let mut idle = self.device.idle.lock();
        if idle.len() < IDLE_EVENTS {
            idle.push(self.event);
        } else {
            drop(idle);
            // A wait or query already made keeps what it needs of an event that is destroyed.
            let _ = self.device.event_destroy(self.event as u64);
        }
    }
}

/// The device's context is current and capture mode relaxed, until dropped.
struct Current<'a> {
    loaded: &'a Loaded,
    pushed: bool,
    mode: Option<u32>,
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        if let Some(mut mode) = self.mode {
            let _ = cu_optional!(self.loaded.driver, cuThreadExchangeStreamCaptureMode(&mut mode));
        }
        if self.pushed {
            let mut popped: CUcontext = std::ptr::null_mut();
            let _ = cu!(self.loaded.driver, cuCtxPopCurrent_v2(&mut popped));
        }
    }
}

fn stream(raw: u64) -> CUstream {
    raw as usize as CUstream
}

fn event(raw: usize) -> CUevent {
    raw as CUevent
}

impl CudaDevice {
    /// Opens the device: driver, device, context.
    pub(crate) fn open(options: &CudaOptions) -> Result<CudaDevice> {
        let loaded = driver()?;
        let driver = &loaded.driver;
        let failed = |what: &str, code: Code| {
            let status = match code {
                Code::OUT_OF_MEMORY => Status::OutOfMemory,
                Code::NOT_SUPPORTED => Status::NotSupported,
                _ => Status::Driver,
            };
            let mut error =
                Error::new(status, format_args!("{}: {what} failed: {}", loaded.library, driver.describe(code)));
            error.driver_code = code.0 as i32;
            error
        };
        let mut count = 0;
        cu!(driver, cuDeviceGetCount(&mut count)).map_err(|code| failed("cuDeviceGetCount", code))?;
        if i64::from(options.ordinal) >= i64::from(count) {
            let status = if count == 0 { Status::NotSupported } else { Status::InvalidValue };
            return Err(Error::new(
                status,
                format_args!("device {}: the driver has {count} device(s)", options.ordinal),
            ));
        }
        let mut device: CUdevice = 0;
        cu!(driver, cuDeviceGet(&mut device, options.ordinal as i32)).map_err(|code| failed("cuDeviceGet", code))?;
        let mut name = [0 as c_char; 128];
        cu!(driver, cuDeviceGetName(name.as_mut_ptr(), 127, device)).map_err(|code| failed("cuDeviceGetName", code))?;
        // SAFETY: the last byte is zero whatever the driver wrote before it.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let attribute = |which: i32| {
            let mut value = 0;
            cu_optional!(driver, cuDeviceGetAttribute(&mut value, which, device)).is_ok() && value != 0
        };
        let (mut context, retained) = (options.context as usize, options.context == 0);
        if retained {
            let mut primary: CUcontext = std::ptr::null_mut();
            cu!(driver, cuDevicePrimaryCtxRetain(&mut primary, device))
                .map_err(|code| failed("cuDevicePrimaryCtxRetain", code))?;
            context = primary as usize;
        }
        // From here on dropping it lets the context go.
        let mut this = CudaDevice {
            loaded,
            ordinal: options.ordinal,
            device,
            context,
            retained,
            name,
            total: 0,
            supply: options.supply,
            granularity: options.page_granularity,
            chunk_granularity: u64::MAX,
            virtual_memory: attribute(ATTRIBUTE_VIRTUAL_MEMORY) && driver.has_virtual_memory(),
            mapping: options.mapping,
            memory_pools: attribute(ATTRIBUTE_MEMORY_POOLS) && driver.has_memory_pools(),
            poisoned: AtomicU32::new(0),
            idle: Mutex::new(Vec::new()),
            reserve: Mutex::new(None),
        };
        let mut own: CUdevice = -1;
        this.with(|| cu!(driver, cuCtxGetDevice(&mut own))).map_err(|code| failed("cuCtxGetDevice", code))?;
        if own != device {
            return Err(Error::new(
                Status::InvalidValue,
                format_args!("context {context:#x} belongs to another device than number {}", options.ordinal),
            ));
        }
        let (mut free, mut total) = (0usize, 0usize);
        this.with(|| cu!(driver, cuMemGetInfo_v2(&mut free, &mut total)))
            .map_err(|code| failed("cuMemGetInfo", code))?;
        this.total = total as u64;
        if this.virtual_memory && options.mapping {
            this.chunk_granularity = this.minimum_chunk().unwrap_or(u64::MAX);
        }
        match options.supply {
            PageSupply::Plain => {}
            PageSupply::DriverPool => {
                if !this.memory_pools {
                    return Err(Error::new(
                        Status::NotSupported,
                        "pages from the driver's pool: it has no memory pools",
                    ));
                }
                let reserve = this.open_reserve(u64::MAX).map_err(|(what, code)| failed(what, code))?;
                *this.reserve.lock() = Some(reserve);
            }
            PageSupply::VirtualMemory => {
                if !this.virtual_memory {
                    return Err(Error::new(
                        Status::NotSupported,
                        "pages by virtual memory management: the device or its driver has none",
                    ));
                }
                let least = this.minimum_chunk().map_err(|code| failed("cuMemGetAllocationGranularity", code))?;
                if !this.granularity.is_multiple_of(least) {
                    return Err(Error::new(
                        Status::InvalidValue,
                        format_args!(
                            "page_granularity: {} is no multiple of the driver's granularity ({least})",
                            this.granularity
                        ),
                    ));
                }
            }
        }
        Ok(this)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
    pub(crate) fn ordinal(&self) -> u32 {
        self.ordinal
    }
    pub(crate) fn total(&self) -> u64 {
        self.total
    }
    pub(crate) fn version(&self) -> i32 {
        self.loaded.version
    }
    pub(crate) fn shares_context(&self, other: &CudaDevice) -> bool {
        self.context == other.context
    }
    /// Events can stand for everything submitted to the context.
    pub(crate) fn records_contexts(&self) -> bool {
        self.loaded.driver.cuCtxRecordEvent.is_some()
    }
    /// It can be asked whether a stream is capturing.
    pub(crate) fn tells_capturing(&self) -> bool {
        self.loaded.driver.cuStreamIsCapturing.is_some()
    }
    /// It can tell streams apart that have had the same handle.
    pub(crate) fn tells_identity(&self) -> bool {
        self.loaded.driver.cuStreamGetId.is_some()
    }

    /// The sticky error that spoilt the context, if one did.
    pub(crate) fn poison(&self) -> Option<Code> {
        match self.poisoned.load(Relaxed) {
            0 => None,
            code => Some(Code(code)),
        }
    }

    /// The error for a driver call that failed.
    #[cold]
    pub(crate) fn error(&self, what: &str, code: Code) -> Error {
        let status = match code {
            code if code.is_sticky() => Status::DevicePoisoned,
            Code::OUT_OF_MEMORY => Status::OutOfMemory,
            Code::NOT_SUPPORTED => Status::NotSupported,
            Code::INVALID_HANDLE => Status::InvalidHandle,
            Code::CAPTURE_UNSUPPORTED | Code::CAPTURE_IMPLICIT => Status::Capturing,
            _ => Status::Driver,
        };
        let mut error = Error::new(status, format_args!("{what} failed: {}", self.loaded.driver.describe(code)));
        error.driver_code = code.0 as i32;
        error
    }

    /// The error of a poisoned device.
    #[cold]
    pub(crate) fn poisoned_error(&self, code: Code) -> Error {
        let mut error = Error::new(
            Status::DevicePoisoned,
            format_args!("the device is unusable since a sticky error: {}", self.loaded.driver.describe(code)),
        );
        error.driver_code = code.0 as i32;
        error
    }

    /// Notes a sticky error.
    fn seen<T>(&self, answer: Answer<T>) -> Answer<T> {
        if let Err(code) = &answer
            && code.is_sticky()
            && self.poisoned.compare_exchange(0, code.0, Relaxed, Relaxed).is_ok()
        {
            super::fork::mark(super::fork::POISONED);
            crate::log::emit(crate::log::Level::Error, || {
                format!("device {}: sticky error: {}", self.ordinal, self.loaded.driver.describe(*code))
            });
        }
        answer
    }

    fn is_current(&self) -> Answer<bool> {
        let mut current: CUcontext = std::ptr::null_mut();
        cu!(self.loaded.driver, cuCtxGetCurrent(&mut current))?;
        Ok(current as usize == self.context)
    }

    fn enter(&self) -> Answer<Current<'_>> {
        let driver = &self.loaded.driver;
        let is_current = self.is_current()?;
        let mut guard = Current { loaded: self.loaded, pushed: false, mode: None };
        if !is_current {
            cu!(driver, cuCtxPushCurrent_v2(self.context as CUcontext))?;
            guard.pushed = true;
        }
        let mut mode = RELAXED;
        if cu_optional!(driver, cuThreadExchangeStreamCaptureMode(&mut mode)).is_ok() {
            guard.mode = Some(mode);
        }
        Ok(guard)
    }

    /// Runs driver calls with the context current. No cancellation of the thread takes effect in them. (The question whether a stream
    /// is capturing is asked without: it looks, and neither waits nor reads nor writes.)
    fn with<T>(&self, calls: impl FnOnce() -> Answer<T>) -> Answer<T> {
        let _held = crate::cancel::hold();
        let answer = self.enter().and_then(|_current| calls());
        self.seen(answer)
    }

    // Streams. `raw` is a CUstream, or 1 for the legacy and 2 for the calling thread's default stream of the context.

    pub(crate) fn stream_create(&self, non_blocking: bool) -> Answer<u64> {
        let mut created: CUstream = std::ptr::null_mut();
        let flags = if non_blocking { NON_BLOCKING } else { 0 };
        self.with(|| cu!(self.loaded.driver, cuStreamCreate(&mut created, flags)))?;
        Ok(created as usize as u64)
    }
    pub(crate) fn stream_destroy(&self, raw: u64) -> Answer<()> {
        self.with(|| cu!(self.loaded.driver, cuStreamDestroy_v2(stream(raw))))
    }
    pub(crate) fn stream_synchronize(&self, raw: u64) -> Answer<()> {
        self.with(|| cu!(self.loaded.driver, cuStreamSynchronize(stream(raw))))
    }
    /// Whether all of the stream has run.
    pub(crate) fn stream_query(&self, raw: u64) -> Answer<bool> {
        ready(self.with(|| cu!(self.loaded.driver, cuStreamQuery(stream(raw)))))
    }
    pub(crate) fn stream_wait(&self, raw: u64, on: u64) -> Answer<()> {
        self.with(|| cu!(self.loaded.driver, cuStreamWaitEvent(stream(raw), event(on as usize), 0)))
    }
    /// Whether the stream is non-blocking, and that it is one of this context.
    pub(crate) fn stream_facts(&self, raw: u64) -> Answer<(bool, bool)> {
        let (mut flags, mut context): (u32, CUcontext) = (0, std::ptr::null_mut());
        self.with(|| {
            cu!(self.loaded.driver, cuStreamGetFlags(stream(raw), &mut flags))?;
            // A driver that cannot tell: the caller is believed.
            let told = cu_optional!(self.loaded.driver, cuStreamGetCtx(stream(raw), &mut context));
            let ours = match told {
                Ok(()) => context as usize == self.context,
                Err(Code::NOT_SUPPORTED) => true,
                Err(code) => return Err(code),
            };
            Ok((flags & NON_BLOCKING != 0, ours))
        })
    }
    /// A number that no other stream of the program has had.
    pub(crate) fn stream_identity(&self, raw: u64) -> Answer<u64> {
        let mut id = 0;
        self.with(|| cu_optional!(self.loaded.driver, cuStreamGetId(stream(raw), &mut id)))?;
        Ok(id)
    }
    /// Whether the stream is capturing. For a created stream this is the one driver call of a steady state; a thread's default stream
    /// is one of the context that is current.
    pub(crate) fn stream_is_capturing(&self, raw: u64) -> Answer<bool> {
        let mut status = 0;
        let driver = &self.loaded.driver;
        if raw > 2 || self.seen(self.is_current())? {
            let answer = cu_optional!(driver, cuStreamIsCapturing(stream(raw), &mut status));
            self.seen(answer)?;
        } else {
            self.with(|| cu_optional!(driver, cuStreamIsCapturing(stream(raw), &mut status)))?;
        }
        Ok(status != 0)
    }
    /// The same for a created stream of any device, whose error is to be passed to [`CudaDevice::noted`]. A driver that
    /// cannot tell has no captures.
    #[inline(always)]
    pub(crate) fn any_stream_is_capturing(raw: u64) -> Answer<bool> {
        let Some(loaded) = super::loader::loaded() else { return Err(Code::NOT_SUPPORTED) };
        let mut status = 0;
        cu_optional!(loaded.driver, cuStreamIsCapturing(stream(raw), &mut status))
            .or_else(|code| if loaded.driver.cuStreamIsCapturing.is_none() { Ok(()) } else { Err(code) })?;
        Ok(status != 0)
    }
    /// An answer to a call about a stream of this device.
    pub(crate) fn noted(&self, code: Code) -> Code {
        let _ = self.seen::<()>(Err(code));
        code
    }
    pub(crate) fn synchronize(&self) -> Answer<()> {
        self.with(|| cu!(self.loaded.driver, cuCtxSynchronize()))
    }

    // Events.

    pub(crate) fn event_create(&self) -> Answer<u64> {
        let mut created: CUevent = std::ptr::null_mut();
        self.with(|| cu!(self.loaded.driver, cuEventCreate(&mut created, DISABLE_TIMING)))?;
        Ok(created as usize as u64)
    }
    pub(crate) fn event_destroy(&self, raw: u64) -> Answer<()> {
        self.with(|| cu!(self.loaded.driver, cuEventDestroy_v2(event(raw as usize))))
    }
    pub(crate) fn event_record(&self, raw: u64, on: u64) -> Answer<()> {
        self.with(|| cu!(self.loaded.driver, cuEventRecord(event(raw as usize), stream(on))))
    }
    pub(crate) fn event_query(&self, raw: u64) -> Answer<bool> {
        ready(self.with(|| cu!(self.loaded.driver, cuEventQuery(event(raw as usize)))))
    }
    pub(crate) fn event_synchronize(&self, raw: u64) -> Answer<()> {
        self.with(|| cu!(self.loaded.driver, cuEventSynchronize(event(raw as usize))))
    }

    /// An event of the library's own recorded on a stream, or after everything in the context (`None`).
    pub(crate) fn fence(self: &Arc<Self>, on: Option<u64>) -> Answer<Arc<Fence>> {
        let idle = self.idle.lock().pop();
        let own = match idle {
            Some(own) => own,
            None => self.event_create()? as usize,
        };
        // Dropped on failure, which keeps the event for the next.
        let fence = Fence { device: self.clone(), event: own };
        match on {
            Some(on) => self.event_record(own as u64, on)?,
            None => {
                self.with(|| cu_optional!(self.loaded.driver, cuCtxRecordEvent(self.context as CUcontext, event(own))))?
            }
        }
        Ok(Arc::new(fence))
    }

    // The driver's own pools.

    /// A pool of the driver's on this device that keeps up to `threshold` bytes, and a stream to use it on.
    fn open_reserve(&self, threshold: u64) -> std::result::Result<Reserve, (&'static str, Code)> {
        let pool = self.pool_create(0).map_err(|code| ("cuMemPoolCreate", code))?;
        let undo = |what| {
            move |code| {
                let _ = self.pool_destroy(pool);
                (what, code)
            }
        };
        self.pool_set(pool, ATTRIBUTE_THRESHOLD, threshold).map_err(undo("cuMemPoolSetAttribute"))?;
        let stream = self.stream_create(true).map_err(undo("cuStreamCreate"))?;
        Ok(Reserve { pool: pool as usize, stream: stream as usize })
    }
    pub(crate) fn pool_create(&self, max_size: u64) -> Answer<u64> {
        let props = PoolProps {
            alloc_type: PINNED,
            location_type: LOCATION_DEVICE,
            location_id: self.device,
            max_size: usize::try_from(max_size).unwrap_or(usize::MAX),
            ..PoolProps::default()
        };
        let mut pool: CUmemoryPool = std::ptr::null_mut();
        self.with(|| cu_optional!(self.loaded.driver, cuMemPoolCreate(&mut pool, &props)))?;
        Ok(pool as usize as u64)
    }
    pub(crate) fn pool_destroy(&self, pool: u64) -> Answer<()> {
        self.with(|| cu_optional!(self.loaded.driver, cuMemPoolDestroy(pool as usize as CUmemoryPool)))
    }
    /// Sets an attribute: 1–3 are an int, the others 64 bits.
    pub(crate) fn pool_set(&self, pool: u64, attribute: u32, value: u64) -> Answer<()> {
        let (mut int, mut long) = (i32::try_from(value).unwrap_or(i32::MAX), value);
        let place: *mut c_void = if attribute <= 3 { (&raw mut int).cast() } else { (&raw mut long).cast() };
        self.with(|| {
            cu_optional!(self.loaded.driver, cuMemPoolSetAttribute(pool as usize as CUmemoryPool, attribute, place))
        })
    }
    pub(crate) fn pool_get(&self, pool: u64, attribute: u32) -> Answer<u64> {
        let (mut int, mut long) = (0i32, 0u64);
        let place: *mut c_void = if attribute <= 3 { (&raw mut int).cast() } else { (&raw mut long).cast() };
        self.with(|| {
            cu_optional!(self.loaded.driver, cuMemPoolGetAttribute(pool as usize as CUmemoryPool, attribute, place))
        })?;
        Ok(if attribute <= 3 { u64::try_from(int).unwrap_or(0) } else { long })
    }
    pub(crate) fn pool_trim(&self, pool: u64, keep: u64) -> Answer<()> {
        let keep = usize::try_from(keep).unwrap_or(usize::MAX);
        self.with(|| cu_optional!(self.loaded.driver, cuMemPoolTrimTo(pool as usize as CUmemoryPool, keep)))
    }
    pub(crate) fn pool_allocate(&self, pool: u64, bytes: u64, on: u64) -> Answer<u64> {
        let mut pointer = 0;
        let bytes = usize::try_from(bytes).map_err(|_| Code::OUT_OF_MEMORY)?;
        self.with(|| {
            cu_optional!(
                self.loaded.driver,
                cuMemAllocFromPoolAsync(&mut pointer, bytes, pool as usize as CUmemoryPool, stream(on))
            )
        })?;
        Ok(pointer)
    }
    pub(crate) fn free_async(&self, pointer: u64, on: u64) -> Answer<()> {
        self.with(|| cu_optional!(self.loaded.driver, cuMemFreeAsync(pointer, stream(on))))
    }
    /// The library's own stream, created when first needed.
    pub(crate) fn own_stream(&self) -> Answer<u64> {
        if let Some(reserve) = *self.reserve.lock() {
            return Ok(reserve.stream as u64);
        }
        let created = self.stream_create(true)?;
        let mut place = self.reserve.lock();
        if let Some(reserve) = *place {
            drop(place);
            let _ = self.stream_destroy(created);
            return Ok(reserve.stream as u64);
        }
        *place = Some(Reserve { pool: 0, stream: created as usize });
        Ok(created)
    }

    // Pages.

    fn properties(&self) -> AllocationProp {
        AllocationProp {
            alloc_type: PINNED,
            location_type: LOCATION_DEVICE,
            location_id: self.device,
            ..AllocationProp::default()
        }
    }
    fn minimum_chunk(&self) -> Answer<u64> {
        let mut least = 0usize;
        let properties = self.properties();
        self.with(|| cu_optional!(self.loaded.driver, cuMemGetAllocationGranularity(&mut least, &properties, 0)))?;
        Ok((least as u64).max(1))
    }

    fn allocate_plain(&self, bytes: u64) -> Answer<Grant> {
        let ask = |bytes: u64| {
            let mut pointer = 0;
            let length = usize::try_from(bytes).map_err(|_| Code::OUT_OF_MEMORY)?;
            self.with(|| cu!(self.loaded.driver, cuMemAlloc_v2(&mut pointer, length)))?;
            Ok(pointer)
        };
        self.aligned(bytes, ask, |pointer| self.with(|| cu!(self.loaded.driver, cuMemFree_v2(pointer))))
    }

    /// A page at a multiple of the granularity, as its model address is, so that every alignment a block may ask for
    /// holds for its pointer too. Drivers give large pages so aligned of themselves; where one does not, more is asked for.
    fn aligned(
        &self,
        bytes: u64,
        ask: impl Fn(u64) -> Answer<u64>,
        give_back: impl Fn(u64) -> Answer<()>,
    ) -> Answer<Grant> {
        let raw = ask(bytes)?;
        if raw % self.granularity == 0 {
            return Ok(Grant { pointer: raw, raw, ..Grant::default() });
        }
        give_back(raw)?;
        let raw = ask(bytes.checked_add(self.granularity).ok_or(Code::OUT_OF_MEMORY)?)?;
        Ok(Grant { pointer: raw.next_multiple_of(self.granularity), raw, ..Grant::default() })
    }

    fn allocate_from_pool(&self, bytes: u64, reserve: Reserve) -> Answer<Grant> {
        let own = reserve.stream as u64;
        let ask = |bytes: u64| {
            let pointer = self.pool_allocate(reserve.pool as u64, bytes, own)?;
            // Usable from any stream once the allocation has executed.
            if let Err(code) = self.stream_synchronize(own) {
                let _ = self.free_async(pointer, own);
                return Err(code);
            }
            Ok(pointer)
        };
        self.aligned(bytes, ask, |pointer| self.free_async(pointer, own))
    }

    /// What is mapped for a page of so many bytes: sliced pages need not be a multiple of the granularity, mappings must.
    fn mapped_length(&self, bytes: u64) -> Option<usize> {
        usize::try_from(bytes.checked_next_multiple_of(self.granularity)?).ok()
    }

    fn allocate_mapped(&self, bytes: u64) -> Answer<Grant> {
        let length = self.mapped_length(bytes).ok_or(Code::OUT_OF_MEMORY)?;
        let driver = &self.loaded.driver;
        let properties = self.properties();
        let access = AccessDesc { location_type: LOCATION_DEVICE, location_id: self.device, flags: READ_WRITE };
        self.with(|| {
            let (mut base, mut handle) = (0, 0);
            let alignment = self.granularity as usize;
            cu_optional!(driver, cuMemAddressReserve(&mut base, length, alignment, 0, 0))?;
            // Each step undoes those before it.
            let undo_reserve = |code| {
                let _ = cu_optional!(driver, cuMemAddressFree(base, length));
                code
            };
            cu_optional!(driver, cuMemCreate(&mut handle, length, &properties, 0)).map_err(undo_reserve)?;
            let undo_create = |code| {
                let _ = cu_optional!(driver, cuMemRelease(handle));
                undo_reserve(code)
            };
            cu_optional!(driver, cuMemMap(base, length, 0, handle, 0)).map_err(undo_create)?;
            cu_optional!(driver, cuMemSetAccess(base, length, &access, 1)).map_err(|code| {
                let _ = cu_optional!(driver, cuMemUnmap(base, length));
                undo_create(code)
            })?;
            Ok(Grant { pointer: base, raw: base, handle, ..Grant::default() })
        })
    }
}

fn ready(answer: Answer<()>) -> Answer<bool> {
    match answer {
        Ok(()) => Ok(true),
        Err(Code::NOT_READY) => Ok(false),
        Err(code) => Err(code),
    }
}

impl Fence {
    pub(crate) fn raw(&self) -> u64 {
        self.event as u64
    }
    /// Whether it has been passed. An error answers "not yet".
    pub(crate) fn passed(&self) -> bool {
        self.device.event_query(self.event as u64).unwrap_or(false)
    }
}

impl PageSource for CudaDevice {
    fn allocate(&self, bytes: u64, _address: u64) -> std::result::Result<Grant, Refused> {
        let reserve = *self.reserve.lock();
        let answer = match (self.supply, reserve) {
            (PageSupply::DriverPool, Some(reserve)) => self.allocate_from_pool(bytes, reserve),
            (PageSupply::VirtualMemory, _) => self.allocate_mapped(bytes),
            _ => self.allocate_plain(bytes),
        };
        answer.map_err(|code| Refused { code: code.0 })
    }

    fn release(&self, grant: Grant, bytes: u64) -> std::result::Result<(), Grant> {
        if grant.raw == 0 {
            // A page of the model beside a pool of the driver's: nothing stands behind it.
            return Ok(());
        }
        let reserve = *self.reserve.lock();
        let driver = &self.loaded.driver;
        let answer = match (self.supply, reserve) {
            (PageSupply::DriverPool, Some(reserve)) => self.free_async(grant.raw, reserve.stream as u64),
            (PageSupply::VirtualMemory, _) => {
                let Some(length) = self.mapped_length(bytes) else { return Err(grant) };
                self.with(|| {
                    cu_optional!(driver, cuMemUnmap(grant.raw, length))?;
                    // The mapping is gone, and with it the page; what follows can only leak, and is told of.
                    for rest in [
                        cu_optional!(driver, cuMemRelease(grant.handle)),
                        cu_optional!(driver, cuMemAddressFree(grant.raw, length)),
                    ] {
                        if let Err(code) = rest {
                            crate::log::emit(crate::log::Level::Warning, || {
                                format!("part of an unmapped page could not be given back: {}", driver.describe(code))
                            });
                        }
                    }
                    Ok(())
                })
            }
            _ => self.with(|| cu!(driver, cuMemFree_v2(grant.raw))),
        };
        answer.map_err(|_| grant)
    }

    fn memory(&self) -> (u64, u64) {
        let (mut free, mut total) = (0usize, 0usize);
        match self.with(|| cu!(self.loaded.driver, cuMemGetInfo_v2(&mut free, &mut total))) {
            Ok(()) => (free as u64, total as u64),
            Err(_) => (0, self.total),
        }
    }

    fn supports_mapping(&self) -> bool {
        self.virtual_memory && self.mapping && self.granularity >= self.chunk_granularity
    }

    fn reserve(&self, bytes: u64, _address: u64) -> std::result::Result<Grant, Refused> {
        let length = usize::try_from(bytes).map_err(|_| Refused::MEMORY)?;
        let mut base = 0;
        let alignment = self.granularity as usize;
        self.with(|| cu_optional!(self.loaded.driver, cuMemAddressReserve(&mut base, length, alignment, 0, 0)))
            .map_err(|code| Refused { code: code.0 })?;
        Ok(Grant { pointer: base, raw: base, ..Grant::default() })
    }

    fn unreserve(&self, grant: Grant, bytes: u64) {
        let answer = self.with(|| cu_optional!(self.loaded.driver, cuMemAddressFree(grant.raw, bytes as usize)));
        if let Err(code) = answer {
            let error = self.error("cuMemAddressFree", code);
            crate::log::emit(crate::log::Level::Warning, || error.message);
        }
    }

    fn create_chunks(&self, count: u64, bytes: u64) -> std::result::Result<Vec<Chunk>, Refused> {
        let length = usize::try_from(bytes).map_err(|_| Refused::MEMORY)?;
        let driver = &self.loaded.driver;
        let properties = self.properties();
        let mut chunks = Vec::new();
        self.with(|| {
            for _ in 0..count {
                let mut handle = 0;
                if let Err(code) = cu_optional!(driver, cuMemCreate(&mut handle, length, &properties, 0)) {
                    for &Chunk(handle) in &chunks {
                        let _ = cu_optional!(driver, cuMemRelease(handle));
                    }
                    return Err(code);
                }
                chunks.push(Chunk(handle));
            }
            Ok(())
        })
        .map_err(|code| Refused { code: code.0 })?;
        Ok(chunks)
    }

    fn map(&self, pointer: u64, offset: u64, chunks: &[Chunk], bytes: u64) -> std::result::Result<(), Refused> {
        let driver = &self.loaded.driver;
        let (start, length) = (pointer + offset, bytes as usize);
        let access = AccessDesc { location_type: LOCATION_DEVICE, location_id: self.device, flags: READ_WRITE };
        self.with(|| {
            let unmap = |count: usize| {
                for index in 0..count {
                    let _ = cu_optional!(driver, cuMemUnmap(start + index as u64 * bytes, length));
                }
            };
            for (index, &Chunk(handle)) in chunks.iter().enumerate() {
                let place = start + index as u64 * bytes;
                if let Err(code) = cu_optional!(driver, cuMemMap(place, length, 0, handle, 0)) {
                    unmap(index);
                    return Err(code);
                }
            }
            let all = length * chunks.len();
            cu_optional!(driver, cuMemSetAccess(start, all, &access, 1)).inspect_err(|_| unmap(chunks.len()))
        })
        .map_err(|code| Refused { code: code.0 })
    }

    fn unmap(&self, pointer: u64, offset: u64, count: u64, bytes: u64) -> std::result::Result<(), Refused> {
        self.with(|| {
            for index in 0..count {
                cu_optional!(self.loaded.driver, cuMemUnmap(pointer + offset + index * bytes, bytes as usize))?;
            }
            Ok(())
        })
        .map_err(|code| Refused { code: code.0 })
    }

    fn release_chunk(&self, chunk: Chunk, _bytes: u64) -> std::result::Result<(), Refused> {
        self.with(|| cu_optional!(self.loaded.driver, cuMemRelease(chunk.0))).map_err(|code| Refused { code: code.0 })
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        if super::fork::process() & super::fork::FORKED != 0 {
            // The driver is unusable in a child process.
            return;
        }
        let _held = crate::cancel::hold();
        let idle = std::mem::take(self.idle.get_mut());
        for own in idle {
            let _ = self.event_destroy(own as u64);
        }
        if let Some(reserve) = self.reserve.get_mut().take() {
            let _ = self.stream_destroy(reserve.stream as u64);
            if reserve.pool != 0 {
                let _ = self.pool_destroy(reserve.pool as u64);
            }
        }
        if self.retained {
            let _ = cu!(self.loaded.driver, cuDevicePrimaryCtxRelease_v2(self.device));
        }
    }
}
