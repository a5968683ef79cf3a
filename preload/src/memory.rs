//! The replaced calls that hand out, take back and tell about memory, as `count` mode has them: the driver does the work,
//! the ledger follows, and the limit may say no first.

use crate::driver::{self, Code, DEINITIALIZED, Handle, INVALID_VALUE, OUT_OF_MEMORY, Pointer, SUCCESS};
use crate::hook::real;
use crate::ledger::{self, Block, Kind, Space};
use crate::report;
use crate::session::{self, Session};
use crate::setting;
use crate::switch::broken;
use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts the destructions of contexts: what threads remember of contexts is good for one count only.
static CONTEXTS_CHANGED: AtomicU64 = AtomicU64::new(1);

/// The calling thread's context and its device; `None` where there is none, and the driver will say so itself.
fn current(_inside: &Session) -> Option<(Handle, i32)> {
    thread_local! {
        static LAST: Cell<(u64, Handle, i32)> = const { Cell::new((0, 0, 0)) };
    }
    let mut context: Handle = 0;
    // SAFETY: the target is ours.
    if unsafe { driver::cuCtxGetCurrent(&mut context) } != SUCCESS || context == 0 {
        return None;
    }
    let count = CONTEXTS_CHANGED.load(Relaxed);
    let (seen, known, device) = LAST.get();
    if seen == count && known == context {
        return Some((context, device));
    }
    let mut device = 0;
    // SAFETY: the target is ours.
    if unsafe { driver::cuCtxGetDevice(&mut device) } != SUCCESS {
        return None;
    }
    LAST.set((count, context, device));
    Some((context, device))
}

/// The device that a stream's allocations go to: the stream's own, else the calling thread's.
fn device_of_stream(inside: &Session, stream: Handle) -> Option<(Handle, i32)> {
    let here = current(inside);
    if stream <= 2 {
        return here;
    }
    let mut context: Handle = 0;
    // SAFETY: the stream is the program's; the target is ours.
    if unsafe { driver::cuStreamGetCtx(stream, &mut context) } != SUCCESS || here.is_some_and(|at| at.0 == context) {
        return here;
    }
    // SAFETY: a context that the driver just named; what is pushed is popped.
    unsafe {
        if driver::cuCtxPushCurrent_v2(context) != SUCCESS {
            return here;
        }
        let there = current(inside);
        driver::cuCtxPopCurrent_v2(&mut context);
        there
    }
}

/// What is known of a request before the driver is asked.
struct Request {
    kind: Kind,
    bytes: u64,
    context: Handle,
    device: i32,
    stream: Handle,
    caller: usize,
}

/// Asks the driver for memory within the limit, and books what it gave. `take` calls it and answers the address and the
/// bytes that it really took, which are the request's except for rows that the driver pads.
fn ask(request: Request, take: impl FnOnce() -> (Code, Pointer, u64)) -> Code {
    let books = ledger::device(request.device);
    let on_device = request.kind.on_device();
    let limit = setting::settings().limit.filter(|_| on_device);
    if on_device && !books.charge(request.bytes, limit) {
        books.refusals.fetch_add(1, Relaxed);
        return OUT_OF_MEMORY;
    }
    let (code, at, bytes) = take();
    if code != SUCCESS {
        if on_device {
            books.discharge(request.bytes);
        }
        books.failures.fetch_add(1, Relaxed);
        return code;
    }
    if on_device && bytes > request.bytes {
        // The padding of rows is known only now; the block is there, so it counts even past the limit.
        books.charge(bytes - request.bytes, None);
    }
    let caller = report::origin(request.caller);
    let Request { kind, context, device, stream, .. } = request;
    ledger::write_in(at, Block { bytes, device, context, stream, kind, caller });
    code
}

/// Gives memory back through `give`: struck out first, written in again if the driver refuses.
fn give_back(space: Space, at: Pointer, give: impl FnOnce() -> Code) -> Code {
    let block = ledger::strike_out(space, at);
    let code = give();
    match block {
        // While the process ends the driver may be gone already; the memory went with it.
        Some(block) if code == SUCCESS || code == DEINITIALIZED => ledger::settle(&block),
        Some(block) => ledger::put_back(at, block),
        None if code == SUCCESS && at != 0 => ledger::foreign_free(),
        None => {}
    }
    code
}

/// Reads what a successful call wrote.
///
/// # Safety
/// `to` was written by a driver call that succeeded.
unsafe fn written<T: Copy>(to: *mut T) -> T {
    // SAFETY: the caller's promise.
    unsafe { to.read() }
}

type Alloc = unsafe fn(*mut Pointer, usize) -> Code;

/// `cuMemAlloc_v2`.
///
/// # Safety
/// As the driver's.
pub unsafe fn alloc(real: Alloc, to: *mut Pointer, bytes: usize, caller: usize) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(to, bytes) };
    let Some(inside) = session::enter() else { return driver() };
    // What the driver refuses it refuses in its own words.
    if to.is_null() || bytes == 0 {
        return driver();
    }
    let Some((context, device)) = current(&inside) else { return driver() };
    let request = Request { kind: Kind::Device, bytes: bytes as u64, context, device, stream: 0, caller };
    ask(request, || match driver() {
        // SAFETY: written by the driver.
        SUCCESS => (SUCCESS, unsafe { written(to) }, bytes as u64),
        code => (code, 0, 0),
    })
}

/// `cuMemFree_v2`, which takes what any of the device kinds gave.
///
/// # Safety
/// As the driver's.
pub unsafe fn free(real: unsafe fn(Pointer) -> Code, at: Pointer) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(at) };
    let Some(_inside) = session::enter() else { return driver() };
    give_back(Space::Address, at, driver)
}

/// `cuMemAllocPitch_v2`.
///
/// # Safety
/// As the driver's.
pub unsafe fn alloc_pitch(
    real: unsafe fn(*mut Pointer, *mut usize, usize, usize, u32) -> Code,
    to: *mut Pointer,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: u32,
    caller: usize,
) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(to, pitch, width, height, element) };
    let Some(inside) = session::enter() else { return driver() };
    let (Some((context, device)), Some(bytes)) = (current(&inside), width.checked_mul(height)) else { return driver() };
    if to.is_null() || pitch.is_null() || bytes == 0 {
        return driver();
    }
    let request = Request { kind: Kind::Pitch, bytes: bytes as u64, context, device, stream: 0, caller };
    ask(request, || match driver() {
        // SAFETY: written by the driver.
        SUCCESS => unsafe { (SUCCESS, written(to), (written(pitch) as u64).saturating_mul(height as u64)) },
        code => (code, 0, 0),
    })
}

/// `cuMemAllocManaged`.
///
/// # Safety
/// As the driver's.
pub unsafe fn alloc_managed(
    real: unsafe fn(*mut Pointer, usize, u32) -> Code,
    to: *mut Pointer,
    bytes: usize,
    flags: u32,
    caller: usize,
) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(to, bytes, flags) };
    let Some(inside) = session::enter() else { return driver() };
    let Some((context, device)) = current(&inside).filter(|_| !to.is_null() && bytes > 0) else { return driver() };
    let request = Request { kind: Kind::Managed, bytes: bytes as u64, context, device, stream: 0, caller };
    ask(request, || match driver() {
        // SAFETY: written by the driver.
        SUCCESS => (SUCCESS, unsafe { written(to) }, bytes as u64),
        code => (code, 0, 0),
    })
}

/// `cuMemAllocAsync` and its twin.
///
/// # Safety
/// As the driver's.
pub unsafe fn alloc_async(
    real: unsafe fn(*mut Pointer, usize, Handle) -> Code,
    to: *mut Pointer,
    bytes: usize,
    stream: Handle,
    caller: usize,
) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(to, bytes, stream) };
    let Some(inside) = session::enter() else { return driver() };
    let Some((context, device)) = device_of_stream(&inside, stream).filter(|_| !to.is_null()) else { return driver() };
    raise_threshold(device);
    let request = Request { kind: Kind::Async, bytes: bytes as u64, context, device, stream, caller };
    let code = ask(request, || match driver() {
        // SAFETY: written by the driver.
        SUCCESS => (SUCCESS, unsafe { written(to) }, bytes as u64),
        code => (code, 0, 0),
    });
    if code == OUT_OF_MEMORY {
        // SAFETY: not null, and the program's to be written; the driver leaves null there.
        unsafe { to.write(0) };
    }
    code
}

/// `cuMemAllocFromPoolAsync` and its twin. The pool's device is the one that pays.
///
/// # Safety
/// As the driver's.
pub unsafe fn alloc_from_pool(
    real: unsafe fn(*mut Pointer, usize, Handle, Handle) -> Code,
    to: *mut Pointer,
    bytes: usize,
    pool: Handle,
    stream: Handle,
    caller: usize,
) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(to, bytes, pool, stream) };
    let Some(inside) = session::enter() else { return driver() };
    let Some((context, device)) = device_of_stream(&inside, stream).filter(|_| !to.is_null()) else { return driver() };
    let code = driver();
    if code != SUCCESS {
        ledger::device(device).failures.fetch_add(1, Relaxed);
        return code;
    }
    // Which device a pool lies on cannot be asked of every driver; which one its memory lies on can.
    // SAFETY: written by the driver.
    let at = unsafe { written(to) };
    let device = device_of_pointer(at).unwrap_or(device);
    let request = Request { kind: Kind::FromPool, bytes: bytes as u64, context, device, stream, caller };
    let code = ask(request, || (SUCCESS, at, bytes as u64));
    if code != SUCCESS {
        // SAFETY: the block came a moment ago on this stream and nobody else knows it; `to` is the program's.
        unsafe {
            real::cuMemFreeAsync(at, stream);
            to.write(0);
        }
    }
    code
}

fn device_of_pointer(at: Pointer) -> Option<i32> {
    let mut device = 0_i32;
    let to = (&raw mut device).cast::<c_void>();
    // SAFETY: this attribute is an int, and the target is one of ours.
    (unsafe { driver::cuPointerGetAttribute(to, driver::POINTER_DEVICE_ORDINAL, at) } == SUCCESS).then_some(device)
}

/// `SMP_RELEASE_THRESHOLD`: at a device's first stream-ordered allocation, what its pool may keep is raised.
fn raise_threshold(device: i32) {
    static RAISED: AtomicU64 = AtomicU64::new(0);
    let Some(threshold) = setting::settings().release_threshold else { return };
    let bit = 1_u64 << (device.clamp(0, 63));
    if RAISED.load(Relaxed) & bit != 0 || RAISED.fetch_or(bit, Relaxed) & bit != 0 {
        return;
    }
    let (mut pool, mut wanted, mut now) = (0, threshold, 0_u64);
    // SAFETY: the targets are ours, and this attribute is a 64-bit number.
    let code = unsafe {
        match driver::cuDeviceGetMemPool(&mut pool, device) {
            SUCCESS => {
                let attribute = driver::POOL_RELEASE_THRESHOLD;
                driver::cuMemPoolGetAttribute(pool, attribute, (&raw mut now).cast());
                // A program that asks for more keeps it.
                if now >= threshold {
                    return;
                }
                driver::cuMemPoolSetAttribute(pool, attribute, (&raw mut wanted).cast())
            }
            code => code,
        }
    };
    if code == SUCCESS {
        setting::info(&format!("device {device}: the driver's pool may keep {threshold} bytes"));
    } else {
        setting::warn(&format!("device {device}: the release threshold could not be set (error {code})"));
    }
}

/// `cuMemFreeAsync` and its twin, which takes what any of the device kinds gave.
///
/// # Safety
/// As the driver's.
pub unsafe fn free_async(real: unsafe fn(Pointer, Handle) -> Code, at: Pointer, stream: Handle) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(at, stream) };
    let Some(_inside) = session::enter() else { return driver() };
    give_back(Space::Address, at, driver)
}

/// `cuMemGetInfo_v2`: within the limit.
///
/// # Safety
/// As the driver's.
pub unsafe fn get_info(real: unsafe fn(*mut usize, *mut usize) -> Code, free: *mut usize, total: *mut usize) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(free, total) };
    let Some(inside) = session::enter() else { return driver() };
    let (Some(limit), Some((_, device))) = (setting::settings().limit, current(&inside)) else { return driver() };
    let (mut free_now, mut total_now) = (0, 0);
    // SAFETY: the targets are ours. The program's may be null, one or both.
    let code = unsafe { real(&mut free_now, &mut total_now) };
    if code != SUCCESS {
        return code;
    }
    let charged = ledger::device(device).charged();
    let left = if broken("clamp") { limit.wrapping_sub(charged) } else { limit.saturating_sub(charged) };
    let within = |now: usize, bound: u64| if broken("clamp") { bound as usize } else { now.min(clamp(bound)) };
    if free.is_null() && total.is_null() && !broken("null") {
        return INVALID_VALUE;
    }
    // SAFETY: not null, so the program's to be written.
    unsafe {
        if !free.is_null() || broken("null") {
            free.write(within(free_now, left));
        }
        if !total.is_null() || broken("null") {
            total.write(within(total_now, limit));
        }
    }
    SUCCESS
}

fn clamp(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// `cuMemAllocHost_v2`.
///
/// # Safety
/// As the driver's.
pub unsafe fn alloc_host(real: Alloc, to: *mut Pointer, bytes: usize, caller: usize) -> Code {
    // SAFETY: the program's arguments.
    unsafe { pinned(to, bytes, caller, || real(to, bytes)) }
}

/// `cuMemHostAlloc`.
///
/// # Safety
/// As the driver's.
pub unsafe fn host_alloc(
    real: unsafe fn(*mut Pointer, usize, u32) -> Code,
    to: *mut Pointer,
    bytes: usize,
    flags: u32,
    caller: usize,
) -> Code {
    // SAFETY: the program's arguments.
    unsafe { pinned(to, bytes, caller, || real(to, bytes, flags)) }
}

unsafe fn pinned(to: *mut Pointer, bytes: usize, caller: usize, driver: impl FnOnce() -> Code) -> Code {
    let Some(inside) = session::enter() else { return driver() };
    let Some((context, device)) = current(&inside).filter(|_| !to.is_null() && bytes > 0) else { return driver() };
    let request = Request { kind: Kind::Host, bytes: bytes as u64, context, device, stream: 0, caller };
    ask(request, || match driver() {
        // SAFETY: written by the driver.
        SUCCESS => (SUCCESS, unsafe { written(to) }, bytes as u64),
        code => (code, 0, 0),
    })
}

/// `cuMemFreeHost`.
///
/// # Safety
/// As the driver's.
pub unsafe fn free_host(real: unsafe fn(Pointer) -> Code, at: Pointer) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(at) };
    let Some(_inside) = session::enter() else { return driver() };
    give_back(Space::Address, at, driver)
}

/// `CUmemAllocationProp`, as far as it is read here: type, handle types, then where the memory is to lie.
#[repr(C)]
struct AllocationProp {
    kind: u32,
    handle_types: u32,
    location_kind: u32,
    location: i32,
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const ON_DEVICE: u32 = 1;

/// `cuMemCreate`. Memory of the host goes to the driver unbooked.
///
/// # Safety
/// As the driver's.
pub unsafe fn create(
    real: unsafe fn(*mut u64, usize, *const c_void, u64) -> Code,
    to: *mut u64,
    bytes: usize,
    properties: *const c_void,
    flags: u64,
    caller: usize,
) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(to, bytes, properties, flags) };
    let Some(_inside) = session::enter() else { return driver() };
    if to.is_null() || properties.is_null() {
        return driver();
    }
    // SAFETY: not null, so the program's `CUmemAllocationProp`, which begins with these fields.
    let AllocationProp { location_kind, location, .. } = unsafe { properties.cast::<AllocationProp>().read() };
    if location_kind != ON_DEVICE {
        return driver();
    }
    let bytes = bytes as u64;
    let request = Request { kind: Kind::Physical, bytes, context: 0, device: location, stream: 0, caller };
    ask(request, || match driver() {
        // SAFETY: written by the driver.
        SUCCESS => (SUCCESS, unsafe { written(to) }, bytes),
        code => (code, 0, 0),
    })
}

/// `cuMemRelease`.
///
/// # Safety
/// As the driver's.
pub unsafe fn release(real: unsafe fn(u64) -> Code, handle: u64) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(handle) };
    let Some(_inside) = session::enter() else { return driver() };
    give_back(Space::Handle, handle, driver)
}

/// `cuCtxDestroy_v2`: the context's plain memory goes with it.
///
/// # Safety
/// As the driver's.
pub unsafe fn context_destroy(real: unsafe fn(Handle) -> Code, context: Handle) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(context) };
    let Some(_inside) = session::enter() else { return driver() };
    let code = driver();
    if code == SUCCESS {
        gone(context);
    }
    code
}

fn gone(context: Handle) {
    if !broken("context") {
        CONTEXTS_CHANGED.fetch_add(1, Relaxed);
        ledger::context_gone(context);
    }
}

/// Whether a device's primary context exists.
fn primary_active(device: i32) -> bool {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: the targets are ours.
    (unsafe { driver::cuDevicePrimaryCtxGetState(device, &mut flags, &mut active) }) == SUCCESS && active != 0
}

/// A device's primary context, 0 if it does not exist.
fn primary(device: i32) -> Handle {
    let mut context: Handle = 0;
    if primary_active(device) {
        // SAFETY: the target is ours; the share is given back at once, and whoever made the context still holds its own.
        unsafe {
            if driver::cuDevicePrimaryCtxRetain(&mut context, device) == SUCCESS
                && real::cuDevicePrimaryCtxRelease_v2(device) == driver::NOT_FOUND
            {
                real::cuDevicePrimaryCtxRelease(device);
            }
        }
    }
    context
}

/// `cuDevicePrimaryCtxReset`, both versions: the context's plain memory goes.
///
/// # Safety
/// As the driver's.
pub unsafe fn primary_reset(real: unsafe fn(i32) -> Code, device: i32) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(device) };
    let Some(_inside) = session::enter() else { return driver() };
    let context = primary(device);
    let code = driver();
    if code == SUCCESS && context != 0 {
        gone(context);
    }
    code
}

/// `cuDevicePrimaryCtxRelease`, both versions: with the last share the context goes, and its plain memory.
///
/// # Safety
/// As the driver's.
pub unsafe fn primary_release(real: unsafe fn(i32) -> Code, device: i32) -> Code {
    // SAFETY: the program's arguments.
    let driver = || unsafe { real(device) };
    let Some(_inside) = session::enter() else { return driver() };
    let context = primary(device);
    let code = driver();
    if code == SUCCESS && context != 0 && !primary_active(device) {
        gone(context);
    }
    code
}
