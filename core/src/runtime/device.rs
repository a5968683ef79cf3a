//! Opening, asking, synchronising and closing devices.

use super::{Act, DEVICES, model_only, native, resolve_device, synchronize_device};
use crate::device_source::cuda::{CudaDevice, fork};
use crate::device_source::model::ModelDevice;
use crate::device_source::{CudaOptions, DeviceInfo, ModelOptions, PageSource, Source};
use crate::error::{Error, Result, Status};
use crate::handle::{self, DeviceId};
use crate::lock;
use crate::order::Order;
use crate::pool::caches::STREAMS;
use crate::pool::observer::{Event, Observer};
use crate::pool::state::Device;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Opens a model device.
///
/// # Errors
/// [`Status::InvalidValue`] naming the option.
pub fn open_model(options: &ModelOptions) -> Result<DeviceId> {
    open_model_because(options, "asked for")
}

/// As [`open_model`], saying why it was picked.
pub fn open_model_because(options: &ModelOptions, why: &str) -> Result<DeviceId> {
    native::refuse_forked()?;
    let options = options.checked()?;
    let source = Source::Model(ModelDevice::new(&options));
    open(source, options, false, false, why.to_owned()).map(|device| device.id)
}

/// Opens a CUDA device: loads the driver (`SMP_CUDA_LIBRARY`, else `libcuda.so.1`), and retains the device's primary
/// context unless another is given.
///
/// # Errors
/// [`Status::NotSupported`] saying what is missing: no driver, one too old or incomplete, no device, no such page supply;
/// [`Status::InvalidValue`] naming the option; [`Status::Driver`] for a driver call that failed.
pub fn open_cuda(options: &CudaOptions) -> Result<DeviceId> {
    open_cuda_because(options, "asked for")
}

/// As [`open_cuda`], saying why it was picked.
pub fn open_cuda_because(options: &CudaOptions, why: &str) -> Result<DeviceId> {
    native::refuse_forked()?;
    let checked = options.checked || checked_by_environment()?;
    let shape = ModelOptions {
        alignment: options.alignment,
        page_granularity: options.page_granularity,
        lazy: true,
        opaque: true,
        ..ModelOptions::default()
    }
    .checked()?;
    if shape.alignment < 256 {
        return Err(Error::new(
            Status::InvalidValue,
            format_args!("alignment: {} is below what CUDA promises (256)", shape.alignment),
        ));
    }
    let cuda = CudaDevice::open(options)?;
    if checked && !cuda.tells_identity() {
        return Err(Error::new(
            Status::NotSupported,
            "checked mode: this driver cannot tell streams apart (cuStreamGetId, CUDA 12.0)",
        ));
    }
    let shape = ModelOptions { context_events: cuda.records_contexts(), ..shape };
    fork::watch();
    let device = open(Source::Cuda(Arc::new(cuda)), shape, checked, options.capture_check, why.to_owned())?;
    native::name(&device, device.order.legacy, native::LEGACY, native::LEGACY, 0);
    Ok(device.id)
}

/// `SMP_CHECKED`: 0 or 1; an empty one counts as not set.
fn checked_by_environment() -> Result<bool> {
    match std::env::var_os("SMP_CHECKED") {
        None => Ok(false),
        Some(value) if value.is_empty() || value == "0" => Ok(false),
        Some(value) if value == "1" => Ok(true),
        Some(value) => Err(Error::new(
            Status::InvalidValue,
            format_args!("the environment variable SMP_CHECKED is \"{}\", which is not 0 or 1", value.display()),
        )),
    }
}

fn open(source: Source, options: ModelOptions, checked: bool, capture_check: bool, why: String) -> Result<Arc<Device>> {
    static NEXT_UID: AtomicU32 = AtomicU32::new(1);
    let full = || Error::new(Status::OutOfMemory, "no device or stream slot left in this process");
    if std::env::var_os("SMP_NO_MEMBARRIER").is_none_or(|value| value.is_empty() || value == "0") {
        lock::prepare();
    }
    crate::leaf::watch_forks();
    // (The last number is never given out: none is given out twice.)
    let uid = NEXT_UID.fetch_update(Relaxed, Relaxed, |next| next.checked_add(1)).map_err(|_| full())?;
    let slot = DEVICES.take_one().ok_or_else(full)?;
    let Some(order) = Order::new(&STREAMS, uid, slot, options.lazy, options.opaque) else {
        DEVICES.give_back([slot]);
        return Err(full());
    };
    let home = DEVICES.at(slot);
    let mut place = home.place.lock();
    place.generation += 1;
    let id = DeviceId(handle::encode(handle::Kind::Device, place.generation, slot));
    let device = Arc::new(Device::new(id, slot, uid, source, options, order, checked, capture_check, why));
    place.device = Some(device.clone());
    home.open.store((u64::from(place.generation) << 32) | u64::from(uid), Relaxed);
    drop(place);
    native::enlist(&device);
    Ok(device)
}

/// What the device is and what it has given out.
pub fn info(device: DeviceId) -> Result<DeviceInfo> {
    let device = resolve_device(device)?;
    let cuda = device.cuda();
    let capacity = cuda.map_or_else(|| device.source.memory().1, |cuda| cuda.total());
    Ok(DeviceInfo {
        kind: device.kind,
        ordinal: cuda.map_or(0, |cuda| cuda.ordinal()),
        driver_version: cuda.map_or(0, |cuda| u32::try_from(cuda.version()).unwrap_or(0)),
        alignment: device.options.alignment,
        page_granularity: device.options.page_granularity,
        capacity,
        reserved: device.reserved.load(Relaxed),
        lazy: device.options.lazy && cuda.is_none(),
        host_backing: device.options.host_backing,
        mapping: device.source.supports_mapping(),
        live_streams: device.order.streams.lock().len() as u64,
        pools: device.pools.lock().len() as u64,
        page_allocs: device.page_allocs.load(Relaxed),
        page_frees: device.page_frees.load(Relaxed),
        name: cuda.map_or_else(|| "libsmp model device".to_owned(), |cuda| cuda.name().to_owned()),
        why: device.why.clone(),
    })
}

/// Closes the handle. Pools, streams and blocks outlive it. A destroyed pool's memory goes with its last block even so:
/// where only frees that no one can observe any more hold it, the device is synchronised.
pub fn close(device: DeviceId) -> Result<()> {
    let gone = resolve_device(device)?;
    let home = DEVICES.at(gone.slot);
    let mut place = home.place.lock();
    match place.device.take() {
        // `gone` keeps it: nothing of it is torn down under the lock.
        Some(open) if open.uid == gone.uid => home.open.store(0, Relaxed),
        other => {
            place.device = other;
            return Err(handle::gone(handle::Kind::Device, device.0));
        }
    }
    let used_up = handle::used_up(place.generation);
    drop(place);
    if !used_up {
        DEVICES.give_back([gone.slot]);
    }
    gone.closed.store(true, Relaxed);
    super::drain_if_orphaned(&gone);
    Ok(())
}

/// Runs everything submitted so far, on every stream, and observes it (`cuCtxSynchronize`).
pub fn synchronize(device: DeviceId) -> Result<()> {
    synchronize_by(device, Act::Do)
}

/// As [`synchronize`], done by `act`.
pub fn synchronize_by(device: DeviceId, mut act: Act<'_>) -> Result<()> {
    let device = resolve_device(device)?;
    let _serial = device.enter();
    device.sound_cuda()?;
    synchronize_device(&device, &mut act, true)
}

fn of_model(device: &Device) -> Result<&ModelDevice> {
    model_only(device)?;
    device.source.model().ok_or_else(|| Error::new(Status::NotSupported, "not a model device"))
}

/// Sets how many bytes of pages the model device can grant; pages granted already stay.
pub fn set_capacity(device: DeviceId, bytes: u64) -> Result<()> {
    let device = resolve_device(device)?;
    let model = of_model(&device)?;
    let _serial = device.enter();
    device.tell(&Event::SetCapacity { bytes });
    model.set_capacity(bytes);
    Ok(())
}

/// After `skip` further page requests, refuses `count` of them. For tests of the out-of-memory paths.
pub fn refuse_pages(device: DeviceId, skip: u64, count: u64) -> Result<()> {
    let device = resolve_device(device)?;
    let model = of_model(&device)?;
    let _serial = device.enter();
    device.tell(&Event::RefusePages { skip, count });
    model.refuse_pages(skip, count);
    Ok(())
}

/// Refuses the next `count` pages given back. For tests.
pub fn refuse_releases(device: DeviceId, count: u64) -> Result<()> {
    let device = resolve_device(device)?;
    let model = of_model(&device)?;
    let _serial = device.enter();
    device.tell(&Event::RefuseReleases { count });
    model.refuse_releases(count);
    Ok(())
}

/// Installs an observer; from here on the device's calls are serialised and seen in their true order.
///
/// # Errors
/// [`Status::NotPermitted`] if the device has one already.
pub fn install_observer(device: DeviceId, observer: Arc<dyn Observer>) -> Result<()> {
    if resolve_device(device)?.observe(Some(observer)) {
        Ok(())
    } else {
        Err(Error::new(Status::NotPermitted, "the device is already being observed (a trace is running)"))
    }
}

/// Removes the observer. `false`: there was none.
pub fn remove_observer(device: DeviceId) -> Result<bool> {
    let device = resolve_device(device)?;
    let had = device.has_observer();
    device.observe(None);
    Ok(had)
}
