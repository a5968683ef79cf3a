//! Opening, asking, synchronising and closing devices.

use super::{DEVICES, resolve_device, synchronize_device};
use crate::device_source::{DeviceInfo, ModelOptions, PageSource};
use crate::error::{Error, Result, Status};
use crate::handle::{self, DeviceId};
use crate::order::Order;
use crate::pool::observer::{Event, Observer};
use crate::pool::state::{Device, STREAMS};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Opens a model device.
///
/// # Errors
/// [`Status::InvalidValue`] naming the option.
pub fn open_model(options: &ModelOptions) -> Result<DeviceId> {
    static NEXT_UID: AtomicU32 = AtomicU32::new(1);
    let options = options.checked()?;
    let full = || Error::new(Status::OutOfMemory, "no device or stream slot left in this process");
    let slot = DEVICES.take_one().ok_or_else(full)?;
    let uid = NEXT_UID.fetch_add(1, Relaxed);
    let Some(order) = Order::new(&STREAMS, uid, slot, options.lazy) else {
        DEVICES.give_back([slot]);
        return Err(full());
    };
    let mut place = DEVICES.at(slot).0.lock();
    place.generation += 1;
    let id = DeviceId(handle::encode(handle::Kind::Device, place.generation, slot));
    place.device = Some(Arc::new(Device::new(id, slot, uid, options, order)));
    Ok(id)
}

/// What the device is and what it has given out.
pub fn info(device: DeviceId) -> Result<DeviceInfo> {
    let device = resolve_device(device)?;
    let (_, capacity) = device.source.memory();
    Ok(DeviceInfo {
        kind: device.kind,
        alignment: device.options.alignment,
        page_granularity: device.options.page_granularity,
        capacity,
        reserved: device.reserved.load(Relaxed),
        lazy: device.options.lazy,
        host_backing: device.options.host_backing,
        mapping: device.source.supports_mapping(),
        live_streams: device.order.streams.lock().len() as u64,
        pools: device.pools.lock().len() as u64,
        page_allocs: device.page_allocs.load(Relaxed),
        page_frees: device.page_frees.load(Relaxed),
        name: "libsmp model device".to_owned(),
        why: "this build of libsmp has the model device only".to_owned(),
    })
}

/// Closes the handle. Pools, streams and blocks outlive it. A destroyed pool's memory goes with its last block even so:
/// where only frees that no one can observe any more hold it, the device is synchronised.
pub fn close(device: DeviceId) -> Result<()> {
    let gone = resolve_device(device)?;
    let mut place = DEVICES.at(gone.slot).0.lock();
    match place.device.take() {
        Some(open) if open.uid == gone.uid => drop(open),
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
    let device = resolve_device(device)?;
    let _serial = device.enter();
    device.tell(&Event::SynchronizeDevice);
    synchronize_device(&device);
    Ok(())
}

/// Sets how many bytes of pages the model device can grant; pages granted already stay.
pub fn set_capacity(device: DeviceId, bytes: u64) -> Result<()> {
    let device = resolve_device(device)?;
    let _serial = device.enter();
    device.tell(&Event::SetCapacity { bytes });
    device.source.set_capacity(bytes);
    Ok(())
}

/// After `skip` further page requests, refuses `count` of them. For tests of the out-of-memory paths.
pub fn refuse_pages(device: DeviceId, skip: u64, count: u64) -> Result<()> {
    let device = resolve_device(device)?;
    let _serial = device.enter();
    device.tell(&Event::RefusePages { skip, count });
    device.source.refuse_pages(skip, count);
    Ok(())
}

/// Refuses the next `count` pages given back. For tests.
pub fn refuse_releases(device: DeviceId, count: u64) -> Result<()> {
    let device = resolve_device(device)?;
    let _serial = device.enter();
    device.tell(&Event::RefuseReleases { count });
    device.source.refuse_releases(count);
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
