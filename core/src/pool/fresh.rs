//! Step 7 of an allocation: a fresh page from the device (`docs/placement.md` §7). No lock is held while it is asked.

use super::alloc::{Found, Lack, Request, out_of_records, wait_a_little};
use super::block::{FREE, NIL, OBSERVED, UNUSED, block};
use super::config::MAX_PAGE;
use super::observer::{AllocDone, Event};
use super::page::{self, page};
use super::slow::Slow;
use super::state::{Kind, Pool, PoolShared};
use super::{Reason, mapped, release};
use crate::device_source::{Grant, PageSource, Refused};
use crate::error::Result;
use crate::handle;
use crate::rules;
use crate::runtime::native;
use std::sync::atomic::Ordering::Relaxed;

/// Makes a page known, with one block of `size` bytes all over it, whose domain is set. Under the slow lock.
#[allow(clippy::too_many_arguments)]
pub(super) fn enter_page(
    shared: &mut PoolShared,
    pool: &Pool,
    e: usize,
    slot: u32,
    index: u32,
    (size, flags): (u64, u64),
    address: u64,
    grant: Grant,
) {
    let device = &*pool.device;
    let record = page(slot);
    record.pointer.store(grant.pointer, Relaxed);
    record.pool.store(pool.slot, Relaxed);
    record.entry.store(e as u32, Relaxed);
    record.large.store(mapped::large(pool.entries[e].page_size) as u32, Relaxed);
    record.device_slot.store(device.slot, Relaxed);
    record.legacy.store(device.order.legacy.slot(), Relaxed);
    record.device_uid.store(device.uid, Relaxed);
    let b = block(index);
    b.set_addr(address);
    b.set_seq(0);
    b.set_page(slot);
    b.set_prev(NIL);
    b.set_next(NIL);
    b.set_size_flags_last(size, flags);
    record.set_first(address, index);
    device.by_address.write().insert(address, slot);
    if grant.pointer != 0 {
        device.by_pointer.write().insert(grant.pointer, slot);
    }
    device.granted.lock().grants.insert(slot, grant);
    shared.entries[e].pages.insert(slot);
}

impl Request<'_> {
    /// What the device refused, and why, as far as it was not for want of memory.
    pub(super) fn note_refusal(&mut self, refused: Refused) {
        self.refused = true;
        self.lack = None;
        if refused != Refused::MEMORY {
            self.refusal = refused.code;
        }
    }

    /// The device has no memory to give for want of something else.
    pub(super) fn note_lack(&mut self, lack: Lack) {
        self.refused = true;
        self.lack = Some(lack);
    }

    /// Step 7 for one entry.
    pub(super) fn fresh_page(&mut self, e: usize) -> Result<Option<AllocDone>> {
        let pool = self.pool;
        let device = &*pool.device;
        let entry = &pool.entries[e];
        if entry.kind == Kind::Mapped {
            return self.map(e);
        }
        let granularity = device.options.page_granularity;
        let Some(bytes) = entry.page_bytes(self.need, granularity).filter(|&bytes| bytes <= MAX_PAGE) else {
            self.refused = true;
            return Ok(None);
        };
        let tally = &pool.entry_tally[e];
        if entry.kind == Kind::Direct || pool.entries.iter().any(|entry| entry.period.is_some()) {
            native::poll_all(device);
        }
        let mut waited = 0;
        let (taken, index) = loop {
            let mut slow = Slow::lock(device);
            self.now(&mut slow)?;
            release::sweep_periods(&mut slow, pool);
            let full = match entry.kind {
                Kind::Sliced => tally.pages.load(Relaxed) >= entry.cap,
                Kind::Cuda => tally.reserved.load(Relaxed).saturating_add(bytes) > entry.cap,
                _ => false,
            };
            if full && !rules::off(rules::CAPS) {
                // What another thread asks for or got since the search may have room for this as well.
                let asked = tally.pages.load(Relaxed) > pool.shared.lock().entries[e].pages.len() as u64;
                let granted = self.searched.0 == e && tally.page_allocs.load(Relaxed) != self.searched.1;
                drop(slow);
                if asked {
                    wait_a_little(&mut waited);
                } else if !granted {
                    return Ok(None);
                }
                match self.reuse(e)? {
                    Some(done) => return Ok(Some(done)),
                    None => continue,
                }
            }
            if entry.kind == Kind::Direct && !rules::off(rules::RECLAIM) {
                release::reclaim(&mut slow, pool, e, bytes);
            }
            let Some(index) = pool.shared.lock().stock.take() else { return Err(out_of_records()) };
            let taken = device.granted.lock().addresses.take(bytes);
            let Some(taken) = taken else {
                pool.shared.lock().stock.give(index);
                self.note_lack(Lack::Addresses);
                return Ok(None);
            };
            // The quota is taken before the device is asked.
            pool.tally.ask(bytes);
            tally.ask(bytes);
            break (taken, index);
        };
        let address = taken.address;
        // A *driver* pool's pages are numbers: its blocks are the driver's own.
        let answer = match pool.shadow.is_some() {
            true => Ok(Grant::default()),
            false => device.source.allocate(bytes, address),
        };
        if let Some(code) = device.cuda().and_then(|cuda| cuda.poison()) {
            self.refusal = code.0;
        }
        let unit = if entry.carves() { device.options.alignment } else { 0 };
        let answer = match answer {
            Ok(grant) => match page::open(address, bytes, unit) {
                Some(slot) => Ok((slot, grant)),
                None => {
                    let _ = device.source.release(grant, bytes);
                    Err(Refused::MEMORY)
                }
            },
            Err(refused) => Err(refused),
        };
        let mut slow = Slow::lock(device);
        if pool.destroyed.load(Relaxed) {
            // Destroyed while the device was asked, and perhaps gone already: the page must not come into it.
            let mut shared = pool.shared.lock();
            shared.stock.give(index);
            shared.stock.give_back();
            drop(shared);
            device.granted.lock().addresses.put_back(&taken);
            drop(slow);
            if let Ok((slot, grant)) = answer {
                page::close(slot);
                let _ = device.source.release(grant, bytes);
            }
            return Err(handle::gone(handle::Kind::Pool, pool.id.0));
        }
        if let Err(refused) = answer {
            self.note_refusal(refused);
        }
        let Ok((slot, grant)) = answer else {
            pool.tally.refused(bytes);
            tally.refused(bytes);
            pool.shared.lock().stock.give(index);
            device.granted.lock().addresses.put_back(&taken);
            device.tell(&Event::PageRefused { pool: pool.id, entry: e as u32, bytes });
            return Ok(None);
        };
        pool.tally.granted();
        tally.granted();
        device.page_allocs.fetch_add(1, Relaxed);
        device.reserved.fetch_add(bytes, Relaxed);
        device.tell(&Event::PageGranted { pool: pool.id, entry: e as u32, bytes, address });
        page(slot).rest.free_since.store(pool.allocations(), Relaxed);
        let mut shared = pool.shared.lock();
        let b = block(index);
        let whole = if entry.kind == Kind::Direct { self.need } else { bytes };
        b.set_stream(OBSERVED);
        enter_page(&mut shared, pool, e, slot, index, (whole, FREE | UNUSED), address, grant);
        release::list_empty(pool, e, slot);
        match self.now(&mut slow) {
            Ok(_) => self.commit(&mut slow, &mut shared, Found { index, entry: e, reason: Reason::Fresh }),
            Err(error) => {
                let own = &mut shared.entries[e];
                if entry.kind == Kind::Cuda {
                    own.unused.insert(index)
                } else {
                    own.observed.insert(index)
                }
                Err(error)
            }
        }
    }
}
