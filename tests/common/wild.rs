//! Calls of the C interface as nobody should make them: null, stale, foreign and random handles, pointers, sizes and
//! structs, with valid ones mixed in so that the calls get deep. Driven by a seed in `tests/wild_handles.rs`, by a
//! coverage-guided fuzzer's bytes in `fuzz/`.
//!
//! What it checks: nothing crashes; a status is a known number and never a fault inside the library; a handle that is
//! not live never passes for one; out-parameters are written on success only (null where an allocation fails); an error
//! changes no figure of a live pool (sampled); in the end everything can be given back and no byte stays reserved.

use super::{device_desc, entry, last_error, pool_config, sized, sliced};
use smp::smp_status::*;
use smp::*;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where decisions come from.
pub trait Source {
    /// 64 bits; `None` when there are no more.
    fn next(&mut self) -> Option<u64>;
}

/// Every function, called or known to be called by `step`; more than once to be chosen more often.
const OFTEN: &[&str] = &[
    "smp_alloc_async",
    "smp_free_async",
    "smp_alloc_async",
    "smp_free_async",
    "smp_alloc_ptr_async",
    "smp_free_ptr_async",
    "smp_alloc",
    "smp_free",
    "smp_alloc_async_ex",
    "smp_allocation_add_user",
    "smp_event_record",
    "smp_stream_wait_event",
    "smp_model_stream_submit",
    "smp_model_stream_advance",
    "smp_stream_synchronize",
];
const ALL: &[&str] = &[
    "smp_alloc",
    "smp_alloc_async",
    "smp_alloc_async_ex",
    "smp_alloc_async_ex_ptsz",
    "smp_alloc_async_ptsz",
    "smp_alloc_ex",
    "smp_alloc_ptr_async",
    "smp_alloc_ptr_async_ptsz",
    "smp_allocation_add_user",
    "smp_allocation_add_user_ptsz",
    "smp_allocation_find",
    "smp_allocation_get_info",
    "smp_allocation_ptr",
    "smp_device_close",
    "smp_device_get_info",
    "smp_device_open",
    "smp_device_synchronize",
    "smp_event_create",
    "smp_event_destroy",
    "smp_event_query",
    "smp_event_record",
    "smp_event_record_ptsz",
    "smp_event_synchronize",
    "smp_free",
    "smp_free_async",
    "smp_free_async_ptsz",
    "smp_free_ptr",
    "smp_free_ptr_async",
    "smp_free_ptr_async_ptsz",
    "smp_is_ready",
    "smp_is_ready_on",
    "smp_is_ready_on_ptsz",
    "smp_last_error",
    "smp_model_refuse_pages",
    "smp_model_refuse_releases",
    "smp_model_set_capacity",
    "smp_model_stream_advance",
    "smp_model_stream_advance_ptsz",
    "smp_model_stream_submit",
    "smp_model_stream_submit_ptsz",
    "smp_note_access",
    "smp_note_access_ptsz",
    "smp_note_device_synchronized",
    "smp_note_event_destroyed",
    "smp_note_event_record",
    "smp_note_event_record_ptsz",
    "smp_note_event_synchronized",
    "smp_note_stream_synchronized",
    "smp_note_stream_synchronized_ptsz",
    "smp_note_stream_wait",
    "smp_note_stream_wait_ptsz",
    "smp_pool_create",
    "smp_pool_create_from_spec",
    "smp_pool_destroy",
    "smp_pool_get_attribute",
    "smp_pool_get_driver_attribute",
    "smp_pool_get_entry_stats",
    "smp_pool_get_stats",
    "smp_pool_report",
    "smp_pool_set_attribute",
    "smp_pool_set_out_of_memory_callback",
    "smp_pool_trim_to",
    "smp_set_log_callback",
    "smp_status_description",
    "smp_status_name",
    "smp_stream_create",
    "smp_stream_destroy",
    "smp_stream_get_info",
    "smp_stream_get_info_ptsz",
    "smp_stream_query",
    "smp_stream_query_ptsz",
    "smp_stream_release",
    "smp_stream_release_ptsz",
    "smp_stream_synchronize",
    "smp_stream_synchronize_ptsz",
    "smp_stream_wait_event",
    "smp_stream_wait_event_ptsz",
    "smp_trace_replay",
    "smp_trace_start",
    "smp_trace_stop",
    "smp_version",
];

const MOST_DEVICES: usize = 3;
const MOST_POOLS: usize = 10;
const MOST_STREAMS: usize = 20;
const MOST_EVENTS: usize = 20;
const MOST_ALLOCATIONS: usize = 2000;
const SENTINEL: usize = 0x5e5e;

/// Live handles of one kind, by value.
#[derive(Default)]
struct Live {
    list: Vec<u64>,
    set: HashSet<u64>,
}

impl Live {
    fn insert(&mut self, handle: u64) {
        assert!(self.set.insert(handle), "{handle:#x} was given out twice");
        self.list.push(handle);
    }
    /// Removes a handle whatever way it was come by.
    fn remove(&mut self, handle: u64) -> bool {
        let known = self.set.remove(&handle);
        if known {
            let at = self.list.iter().position(|other| *other == handle).expect("the list holds what the set holds");
            self.list.swap_remove(at);
        }
        known
    }
    fn len(&self) -> usize {
        self.list.len()
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Device,
    Pool,
    Stream,
    Event,
    Allocation,
}

/// The program's view of what it holds.
pub struct World<S> {
    source: S,
    devices: Live,
    pools: Live,
    streams: Live,
    events: Live,
    allocations: Live,
    /// Which device a pool, stream, event or block lives on.
    homes: HashMap<u64, u64>,
    /// The device that this call is mostly about, so that many calls get past the first check.
    home: u64,
    stale: Vec<u64>,
    scratch: PathBuf,
    /// What records which device.
    recordings: HashMap<u64, PathBuf>,
    /// Recordings that were replayed and agreed.
    pub replayed: u64,
    /// Calls made, by function.
    pub calls: BTreeMap<&'static str, u64>,
    /// Calls made, by status.
    pub statuses: BTreeMap<u32, u64>,
    /// Errors after which the figures of all live pools were compared.
    pub compared: u64,
}

/// How often the callbacks ran; they have no world to write to.
static CALLBACKS: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn on_out_of_memory(_: *mut c_void, info: *const smp_out_of_memory) -> c_int {
    let count = CALLBACKS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the library's, for this call.
    let info = unsafe { &*info };
    assert_eq!(info.struct_size as usize, size_of::<smp_out_of_memory>());
    let mut out = ptr::null_mut();
    // SAFETY: the out-parameter is valid.
    let nested = unsafe { smp_alloc_async(info.pool, 512, ptr::null_mut(), &mut out) };
    assert!(nested != SMP_SUCCESS && out.is_null(), "the callback may not allocate from its pool");
    let _ = smp_pool_trim_to(info.pool, 0);
    count.is_multiple_of(4).into()
}

unsafe extern "C" fn on_log(_: *mut c_void, level: u32, message: *const c_char) {
    CALLBACKS.fetch_add(1, Ordering::Relaxed);
    assert!((SMP_LOG_ERROR..=SMP_LOG_INFO).contains(&level) && !message.is_null());
}

unsafe extern "C" fn on_write(user: *mut c_void, text: *const c_char, length: u64) -> c_int {
    assert!(!text.is_null() || length == 0);
    (!user.is_null()).into()
}

unsafe extern "C" fn on_progress(_: *mut c_void, done: u64, total: u64) {
    assert!(total == 0 || done <= total);
}

fn c_path(path: PathBuf) -> CString {
    CString::new(path.into_os_string().into_encoded_bytes()).expect("paths hold no NUL")
}

/// A struct of any stated size, with enough of the caller's memory behind it.
#[repr(C, align(8))]
struct Roomy<T> {
    value: T,
    tail: [u8; 4096],
}

impl<S: Source> World<S> {
    /// Nothing yet; `scratch` is a file it may write.
    pub fn new(source: S, scratch: PathBuf) -> Self {
        World {
            source,
            devices: Live::default(),
            pools: Live::default(),
            streams: Live::default(),
            events: Live::default(),
            allocations: Live::default(),
            homes: HashMap::new(),
            home: 0,
            stale: Vec::new(),
            scratch,
            recordings: HashMap::new(),
            replayed: 0,
            calls: BTreeMap::new(),
            statuses: BTreeMap::new(),
            compared: 0,
        }
    }

    /// Every function this knows to call.
    pub fn functions() -> impl Iterator<Item = &'static str> {
        ALL.iter().copied()
    }

    // ---- choosing ----------------------------------------------------------------------------------------------------

    fn bits(&mut self) -> u64 {
        self.source.next().unwrap_or(0)
    }

    fn below(&mut self, bound: usize) -> usize {
        if bound == 0 { 0 } else { (self.bits() >> 11) as usize % bound }
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn live(&self, kind: Kind) -> &Live {
        match kind {
            Kind::Device => &self.devices,
            Kind::Pool => &self.pools,
            Kind::Stream => &self.streams,
            Kind::Event => &self.events,
            Kind::Allocation => &self.allocations,
        }
    }

    fn some_live(&mut self, kind: Kind) -> u64 {
        let mut handle = 0;
        for _ in 0..6 {
            let at = self.below(self.live(kind).len());
            handle = self.live(kind).list.get(at).copied().unwrap_or(0);
            let home = if matches!(kind, Kind::Device) { Some(&handle) } else { self.homes.get(&handle) };
            if home == Some(&self.home) {
                break;
            }
        }
        handle
    }

    /// A handle that is live seven times out of eight.
    fn handle(&mut self, kind: Kind) -> u64 {
        match self.below(48) {
            0 => 0,
            1 => {
                let at = self.below(self.stale.len());
                self.stale.get(at).copied().unwrap_or(0)
            }
            2 => {
                let other = [Kind::Device, Kind::Pool, Kind::Stream, Kind::Event, Kind::Allocation][self.below(5)];
                self.some_live(other)
            }
            3 => self.bits(),
            4 => {
                let flip = 1 << self.below(64);
                self.some_live(kind) ^ flip
            }
            5 => self.below(5) as u64,
            _ => self.some_live(kind),
        }
    }

    fn device(&mut self) -> smp_device {
        ptr::without_provenance_mut(self.handle(Kind::Device) as usize)
    }
    fn pool(&mut self) -> smp_pool {
        ptr::without_provenance_mut(self.handle(Kind::Pool) as usize)
    }
    fn stream(&mut self) -> smp_stream {
        let bits = if self.one_in(8) { self.below(3) as u64 } else { self.handle(Kind::Stream) };
        ptr::without_provenance_mut(bits as usize)
    }
    fn event(&mut self) -> smp_event {
        ptr::without_provenance_mut(self.handle(Kind::Event) as usize)
    }
    fn allocation(&mut self) -> smp_allocation {
        ptr::without_provenance_mut(self.handle(Kind::Allocation) as usize)
    }

    fn size(&mut self) -> u64 {
        match self.below(32) {
            0 => 0,
            1 => u64::MAX - self.below(3) as u64,
            2 => self.bits(),
            3 => (1 << 47) + self.below(3) as u64 - 1,
            4 => 1 << self.below(64),
            5..8 => self.below(8 << 20) as u64,
            8..16 => self.below(256 << 10) as u64,
            _ => self.below(8 << 10) as u64,
        }
    }

    fn count(&mut self) -> u64 {
        if self.one_in(64) { self.size() } else { self.below(8) as u64 }
    }

    fn number(&mut self, known: u32) -> u32 {
        if self.one_in(8) { self.bits() as u32 } else { self.below(known as usize + 1) as u32 }
    }

    /// A pointer to look at, never to follow: into a live block, one of ours, or anything.
    fn pointer(&mut self) -> *mut c_void {
        match self.below(8) {
            0 => ptr::without_provenance_mut(self.bits() as usize),
            1 => ptr::null_mut(),
            2 => ptr::from_mut(self).cast(),
            n => {
                let allocation = self.some_live(Kind::Allocation);
                let start = smp_allocation_ptr(ptr::without_provenance_mut(allocation as usize));
                let offset = if n == 3 { self.size() as usize } else { 0 };
                start.wrapping_byte_add(offset)
            }
        }
    }

    /// The size a struct claims to have: mostly the right one, and never more than the room behind it.
    fn stated<T>(&mut self) -> u32 {
        let right = size_of::<T>() as u32;
        match self.below(16) {
            0 => self.below(4096) as u32,
            1 => [0, 1, 4, right - 1, right + 1, 4096, 4097, u32::MAX][self.below(8)],
            _ => right,
        }
    }

    fn roomy<T>(&mut self, value: T) -> Roomy<T> {
        let tail = if self.one_in(4) { self.bits() as u8 } else { 0 };
        Roomy { value, tail: [tail; 4096] }
    }

    fn nullable<T>(&mut self, pointer: *mut T) -> *mut T {
        if self.one_in(16) { ptr::null_mut() } else { pointer }
    }

    fn desc(&mut self) -> smp_device_desc {
        let mut desc = device_desc();
        desc.struct_size = self.stated::<smp_device_desc>();
        desc.kind = self.number(2);
        desc.flags = self.number(3);
        // Never unlimited: a block of host memory must stay affordable.
        desc.capacity = (self.below(64) as u64) << 20;
        match self.below(8) {
            0 => desc.alignment = self.size(),
            1 => desc.page_granularity = self.size(),
            2 => desc.ordinal = self.number(1),
            3 => desc.reserved[self.below(2)] = self.bits() & 1,
            4 => desc.page_supply = self.number(2),
            5 => desc.context = std::ptr::without_provenance_mut(self.below(2) << 4),
            _ => desc.alignment = 16 << self.below(8),
        }
        desc
    }

    fn entry(&mut self) -> smp_pool_entry {
        let mut wild = entry(self.number(5));
        let wanted = |world: &mut Self| if world.one_in(3) { NONE } else { world.size() };
        match wild.kind {
            SMP_ENTRY_EXCLUSIVE => {
                wild.max_alloc_size = self.size();
                wild.dealloc_period = wanted(self);
            }
            SMP_ENTRY_DIRECT => wild.reclaim_at = wanted(self),
            SMP_ENTRY_SLICED => {
                wild.page_size = if self.one_in(8) { self.size() } else { (1 + self.below(64) as u64) << 16 };
                wild.max_slice_size = wanted(self);
                wild.max_pool_size = wanted(self);
                wild.dealloc_period = wanted(self);
            }
            SMP_ENTRY_CUDA => wild.max_pool_size = wanted(self),
            SMP_ENTRY_MAPPED => {
                wild.range_size = if self.one_in(4) { self.size() } else { (1 + self.below(1 << 12) as u64) << 20 };
                wild.chunk_size = if self.one_in(8) { self.size() } else { (1 + self.below(64) as u64) << 16 };
                wild.max_pool_size = wanted(self);
                wild.dealloc_period = wanted(self);
            }
            _ => wild.page_size = self.size(),
        }
        match self.below(16) {
            0 => wild.reserved[self.below(2)] = self.bits() & 1,
            1 => wild.reserved0 = self.number(1),
            2 => wild.reclaim_at = self.size(),
            _ => {}
        }
        wild
    }

    fn text(&mut self) -> CString {
        let known = [
            "preset(cuda)",
            "preset(sub-slices)",
            "preset(mapped)",
            "preset(exclusive-pages)",
            "sliced(page_size=1MiB, max_slice_size=128KiB); direct()",
            "exclusive(max_alloc_size=1MiB); direct(reclaim_at=8MiB)",
            "sliced(page_size=2MiB, max_pool_size=16MiB, dealloc_period=10)",
        ];
        let mut text = known[self.below(known.len())].as_bytes().to_vec();
        if self.one_in(3) {
            for _ in 0..=self.below(3) {
                let at = self.below(text.len());
                text[at] = 1 + self.below(255) as u8;
            }
        }
        CString::new(text).expect("no NUL was put in")
    }

    fn path(&mut self) -> CString {
        let path = match self.below(6) {
            0 => "/nonexistent-folder/trace".into(),
            1 => "".into(),
            2 => "/".into(),
            3 => "/dev/null".into(),
            _ => self.scratch.clone(),
        };
        c_path(path)
    }

    /// Records a device that was just opened, so that what follows can be replayed.
    fn record(&mut self, device: smp_device) {
        let suffix = if self.one_in(8) { ".gz" } else { "" };
        let path = self.scratch.with_extension(format!("{:x}{suffix}", device.addr()));
        let flags = self.below(2) as u32 * SMP_TRACE_TIME;
        // SAFETY: the path ends with a NUL.
        super::ok(unsafe { smp_trace_start(device, c_path(path.clone()).as_ptr(), flags) });
        self.recordings.insert(device.addr() as u64, path);
    }

    /// Replays what was recorded of a device, if this is what recorded it: every answer must be the same.
    fn replay(&mut self, device: smp_device) {
        let Some(path) = self.recordings.remove(&(device.addr() as u64)) else { return };
        let mut result = sized!(smp_replay_result);
        // SAFETY: the path ends with a NUL, and the struct states its size.
        let status = unsafe { smp_trace_replay(c_path(path.clone()).as_ptr(), ptr::null(), &mut result) };
        assert!(status == SMP_SUCCESS, "{status:?}: {} (kept)", last_error().1);
        assert_eq!(result.verified, 1);
        let _ = std::fs::remove_file(path);
        self.replayed += 1;
    }

    // ---- keeping the world peopled -----------------------------------------------------------------------------------

    /// Opens and creates what has become too few, by valid calls; gives back what has become too many.
    fn tend(&mut self) {
        while self.devices.len() < 2 {
            let flags = [0, SMP_DEVICE_LAZY, SMP_DEVICE_HOST_BACKING][self.below(3)];
            let desc = smp_device_desc { flags, capacity: 128 << 20, ..device_desc() };
            let mut device = ptr::null_mut();
            // SAFETY: both pointers are valid.
            super::ok(unsafe { smp_device_open(&desc, &mut device) });
            self.devices.insert(device.addr() as u64);
            if self.one_in(2) {
                self.record(device);
            }
        }
        let device: smp_device = ptr::without_provenance_mut(self.some_live(Kind::Device) as usize);
        if self.pools.len() < 3 {
            let capped = smp_pool_entry { max_pool_size: 8 << 20, ..sliced(1 << 20) };
            let entries = [capped, entry(SMP_ENTRY_DIRECT)];
            let count = 1 + self.below(2) as u64;
            let mut config = pool_config();
            match self.below(3) {
                0 => config.preset = SMP_PRESET_CUDA,
                1 => (config.entries, config.entry_count) = (entries.as_ptr(), count),
                _ => {}
            }
            let pool = super::pool_of(device, &config).addr() as u64;
            self.pools.insert(pool);
            self.homes.insert(pool, device.addr() as u64);
        }
        if self.streams.len() < 6 {
            let mut stream = ptr::null_mut();
            // SAFETY: the pointer is valid.
            super::ok(unsafe { smp_stream_create(device, 0, &mut stream) });
            self.streams.insert(stream.addr() as u64);
            self.homes.insert(stream.addr() as u64, device.addr() as u64);
        }
        if self.events.len() < 4 {
            let mut event = ptr::null_mut();
            // SAFETY: the pointer is valid.
            super::ok(unsafe { smp_event_create(device, 0, &mut event) });
            self.events.insert(event.addr() as u64);
            self.homes.insert(event.addr() as u64, device.addr() as u64);
        }
        if self.one_in(256) {
            self.forget_what_went_with_its_device();
        }
        if self.allocations.len() > MOST_ALLOCATIONS {
            for _ in 0..MOST_ALLOCATIONS / 2 {
                let allocation = self.some_live(Kind::Allocation);
                super::ok(smp_free(ptr::without_provenance_mut(allocation as usize)));
                self.freed(allocation);
            }
        }
        if self.pools.len() > MOST_POOLS {
            let pool = self.some_live(Kind::Pool);
            super::ok(smp_pool_destroy(ptr::without_provenance_mut(pool as usize)));
            self.gone(Kind::Pool, pool);
        }
        if self.streams.len() > MOST_STREAMS {
            let stream = self.some_live(Kind::Stream);
            self.ok_if_home(stream, smp_stream_destroy(ptr::without_provenance_mut(stream as usize)));
            self.gone(Kind::Stream, stream);
        }
        if self.events.len() > MOST_EVENTS {
            let event = self.some_live(Kind::Event);
            self.ok_if_home(event, smp_event_destroy(ptr::without_provenance_mut(event as usize)));
            self.gone(Kind::Event, event);
        }
        if self.devices.len() > MOST_DEVICES {
            let device = self.some_live(Kind::Device);
            super::ok(smp_device_close(ptr::without_provenance_mut(device as usize)));
            self.gone(Kind::Device, device);
        }
    }

    fn gone(&mut self, kind: Kind, handle: u64) {
        let known = match kind {
            Kind::Device => self.devices.remove(handle),
            Kind::Pool => self.pools.remove(handle),
            Kind::Stream => self.streams.remove(handle),
            Kind::Event => self.events.remove(handle),
            Kind::Allocation => self.allocations.remove(handle),
        };
        assert!(known, "{handle:#x} is not live and was taken for it");
        self.homes.remove(&handle);
        if self.stale.len() < 512 {
            self.stale.push(handle);
        } else {
            let at = self.below(512);
            self.stale[at] = handle;
        }
    }

    fn forget_what_went_with_its_device(&mut self) {
        for stream in self.streams.list.clone() {
            let handle = ptr::without_provenance_mut(stream as usize);
            if !self.at_home(stream) && smp_stream_query(ptr::null_mut(), handle) == SMP_ERROR_DESTROYED {
                self.gone(Kind::Stream, stream);
            }
        }
        for event in self.events.list.clone() {
            let handle = ptr::without_provenance_mut(event as usize);
            if !self.at_home(event) {
                self.ok_if_home(event, smp_event_destroy(handle));
                self.gone(Kind::Event, event);
            }
        }
    }

    /// Whether the device this lives on is open.
    fn at_home(&self, handle: u64) -> bool {
        self.homes.get(&handle).is_some_and(|home| self.devices.set.contains(home))
    }

    /// A stream or event of an open device can be destroyed; a closed device's may have gone with its last pool.
    fn ok_if_home(&self, handle: u64, status: smp_status) {
        if self.at_home(handle) || status != SMP_ERROR_DESTROYED {
            super::ok(status);
        }
    }

    fn freed(&mut self, allocation: u64) {
        self.gone(Kind::Allocation, allocation);
    }

    /// An allocation call's end: a new handle on success, null on failure.
    fn allocated(&mut self, pool: smp_pool, status: smp_status, out: smp_allocation, passed: bool) {
        if status == SMP_SUCCESS {
            let home = self.homes.get(&(pool.addr() as u64)).copied().unwrap_or(0);
            self.homes.insert(out.addr() as u64, home);
            self.allocations.insert(out.addr() as u64);
        } else if passed {
            assert!(out.is_null(), "an allocation that fails gives null");
        }
    }

    /// A creating call's end.
    fn created(&mut self, kind: Kind, status: smp_status, handle: usize) {
        if status == SMP_SUCCESS {
            let handle = handle as u64;
            match kind {
                Kind::Device => self.devices.insert(handle),
                Kind::Pool => self.pools.insert(handle),
                Kind::Stream => self.streams.insert(handle),
                Kind::Event => self.events.insert(handle),
                Kind::Allocation => self.allocations.insert(handle),
            }
        } else {
            assert_eq!(handle, SENTINEL, "an out-parameter is written on success only");
        }
    }

    fn figures(&self) -> Vec<smp_pool_stats> {
        self.pools
            .list
            .iter()
            .map(|pool| {
                let mut stats = sized!(smp_pool_stats);
                // SAFETY: a struct with its size stated.
                super::ok(unsafe { smp_pool_get_stats(ptr::without_provenance_mut(*pool as usize), &mut stats) });
                stats
            })
            .collect()
    }

    // ---- calling -----------------------------------------------------------------------------------------------------

    /// One wild call. False when the source has run dry.
    pub fn step(&mut self) -> bool {
        let Some(choice) = self.source.next() else { return false };
        self.tend();
        self.home = self.devices.list[(choice >> 4) as usize % self.devices.len()];
        let among = if choice % 2 == 0 { OFTEN } else { ALL };
        let mut name = among[(choice >> 8) as usize % among.len()];
        if matches!(name, "smp_device_close" | "smp_trace_replay" | "smp_device_open") && !self.one_in(16) {
            name = "smp_is_ready"; // dear or drastic ones come less often
        }
        let sampled = (choice >> 40) % 32 == 0;
        let before = if sampled { self.figures() } else { Vec::new() };
        *self.calls.entry(name).or_default() += 1;
        let Some(status) = self.call(name) else { return true };
        *self.statuses.entry(status as u32).or_default() += 1;
        assert!(STATUSES.contains(&status) && status != SMP_ERROR_INTERNAL, "{name}: {status:?}: {}", last_error().1);
        let answer = matches!(status, SMP_SUCCESS | SMP_NOT_READY | SMP_UNPROVEN);
        if !answer && name != "smp_last_error" {
            let (kept, text) = last_error();
            assert_eq!(kept, status as u32, "{name}: smp_last_error kept another status ({text})");
            assert!(!text.is_empty(), "{name}: {status:?} has no text");
        }
        if (choice >> 40) % 4096 == 0 {
            self.check_invariants();
        }
        if sampled && status != SMP_SUCCESS {
            self.compared += 1;
            self.unchanged(name, status, &before);
        }
        true
    }

    /// Takes the live pools apart and compares every structure with its rules.
    fn check_invariants(&self) {
        for pool in &self.pools.list {
            if let Err(broken) = smp_core::pool::check_invariants(smp_core::PoolId(*pool)) {
                panic!("pool {pool:#x}: {broken}");
            }
        }
    }

    /// What an error may leave behind: the count of failed allocations, and where memory ran short what the attempt to
    /// make room did, which never touches a live block.
    fn unchanged(&self, name: &str, status: smp_status, before: &[smp_pool_stats]) {
        for (before, after) in before.iter().zip(self.figures()) {
            let tried = matches!(status, SMP_ERROR_OUT_OF_MEMORY | SMP_ERROR_CAPACITY_EXCEEDED);
            let may_change = |figures: &smp_pool_stats| {
                let mut kept = *figures;
                kept.failures = 0;
                kept.metadata_bytes = 0;
                if tried {
                    let kept_exact = sized!(smp_pool_stats);
                    kept = smp_pool_stats {
                        requested: figures.requested,
                        used: figures.used,
                        padding: figures.padding,
                        live: figures.live,
                        allocs: figures.allocs,
                        frees: figures.frees,
                        used_high: figures.used_high,
                        unordered_frees: figures.unordered_frees,
                        ..kept_exact
                    };
                }
                kept
            };
            assert_eq!(may_change(before), may_change(&after), "{name} failed with {status:?} and changed figures");
        }
    }

    fn call(&mut self, name: &str) -> Option<smp_status> {
        let sentinel = ptr::without_provenance_mut::<c_void>(SENTINEL);
        // SAFETY (all blocks below): handles and looked-at pointers may be anything by the interface's promise; structs
        // have the room they state; texts end with a NUL; out-parameters are null or valid.
        Some(match name {
            "smp_alloc" | "smp_alloc_async" | "smp_alloc_async_ptsz" => {
                let (pool, size, stream) = (self.pool(), self.size(), self.stream());
                let mut value: smp_allocation = sentinel.cast();
                let out = self.nullable(&raw mut value);
                // SAFETY: as above.
                let status = unsafe {
                    match name {
                        "smp_alloc" => smp_alloc(pool, size, out),
                        "smp_alloc_async" => smp_alloc_async(pool, size, stream, out),
                        _ => smp_alloc_async_ptsz(pool, size, stream, out),
                    }
                };
                self.allocated(pool, status, value, !out.is_null());
                status
            }
            "smp_alloc_ex" | "smp_alloc_async_ex" | "smp_alloc_async_ex_ptsz" => {
                let label = self.text();
                let mut desc = sized!(smp_alloc_desc);
                desc.struct_size = self.stated::<smp_alloc_desc>();
                desc.size = self.size();
                desc.alignment = if self.one_in(4) { self.size() } else { 1 << (4 + self.below(10)) };
                desc.flags = if self.one_in(32) { self.number(1) } else { 0 };
                if self.one_in(2) {
                    desc.name = label.as_ptr();
                }
                if name != "smp_alloc_ex" || self.one_in(8) {
                    desc.stream = self.stream();
                }
                let mut desc = self.roomy(desc);
                let desc = self.nullable(&raw mut desc).cast();
                let pool = self.pool();
                let mut value: smp_allocation = sentinel.cast();
                let out = self.nullable(&raw mut value);
                // SAFETY: as above.
                let status = unsafe {
                    match name {
                        "smp_alloc_ex" => smp_alloc_ex(pool, desc, out),
                        "smp_alloc_async_ex" => smp_alloc_async_ex(pool, desc, out),
                        _ => smp_alloc_async_ex_ptsz(pool, desc, out),
                    }
                };
                self.allocated(pool, status, value, !out.is_null());
                status
            }
            "smp_alloc_ptr_async" | "smp_alloc_ptr_async_ptsz" => {
                let (pool, size, stream) = (self.pool(), self.size(), self.stream());
                let home = self.homes.get(&(pool.addr() as u64)).copied().unwrap_or(0);
                if self.pools.set.contains(&(pool.addr() as u64)) && !self.devices.set.contains(&home) {
                    // Without its device a block cannot be found by pointer, so it could never be given back.
                    return None;
                }
                let mut value = sentinel;
                let out = self.nullable(&raw mut value);
                // SAFETY: as above.
                let status = unsafe {
                    match name {
                        "smp_alloc_ptr_async" => smp_alloc_ptr_async(pool, size, stream, out),
                        _ => smp_alloc_ptr_async_ptsz(pool, size, stream, out),
                    }
                };
                if status == SMP_SUCCESS {
                    assert!(!value.is_null());
                    let device = ptr::without_provenance_mut(home as usize);
                    let allocation = self.found_on(device, value).expect("what was just allocated can be found");
                    self.allocations.insert(allocation);
                    self.homes.insert(allocation, home);
                } else if !out.is_null() {
                    assert!(value.is_null(), "an allocation that fails gives null");
                }
                status
            }
            "smp_free" | "smp_free_async" | "smp_free_async_ptsz" => {
                let (allocation, stream) = (self.allocation(), self.stream());
                let status = match name {
                    "smp_free" => smp_free(allocation),
                    "smp_free_async" => smp_free_async(allocation, stream),
                    _ => smp_free_async_ptsz(allocation, stream),
                };
                if status == SMP_SUCCESS {
                    self.freed(allocation.addr() as u64);
                }
                status
            }
            "smp_free_ptr" | "smp_free_ptr_async" | "smp_free_ptr_async_ptsz" => {
                let (device, pointer, stream) = (self.device(), self.pointer(), self.stream());
                let found = self.found_on(device, pointer);
                let status = match name {
                    "smp_free_ptr" => smp_free_ptr(device, pointer),
                    "smp_free_ptr_async" => smp_free_ptr_async(device, pointer, stream),
                    _ => smp_free_ptr_async_ptsz(device, pointer, stream),
                };
                if status == SMP_SUCCESS && !pointer.is_null() {
                    self.freed(found.expect("only a block that can be found is freed"));
                }
                status
            }
            "smp_allocation_add_user" => smp_allocation_add_user(self.allocation(), self.stream()),
            "smp_allocation_add_user_ptsz" => smp_allocation_add_user_ptsz(self.allocation(), self.stream()),
            "smp_allocation_find" => {
                let (device, pointer) = (self.device(), self.pointer());
                let (mut value, mut offset): (smp_allocation, u64) = (sentinel.cast(), SENTINEL as u64);
                let (out, to) = (self.nullable(&raw mut value), self.nullable(&raw mut offset));
                // SAFETY: as above.
                let status = unsafe { smp_allocation_find(device, pointer, out, to) };
                if status == SMP_SUCCESS {
                    let live = self.allocations.set.contains(&(value.addr() as u64));
                    assert!(live || out.is_null(), "a block was found that is not live");
                } else {
                    assert_eq!((value.addr(), offset), (SENTINEL, SENTINEL as u64));
                }
                status
            }
            "smp_allocation_get_info" => {
                let allocation = self.allocation();
                let status = self.filled(|out| {
                    // SAFETY: as above.
                    unsafe { smp_allocation_get_info(allocation, out) }
                });
                let live = self.allocations.set.contains(&(allocation.addr() as u64));
                assert!(status != SMP_SUCCESS || live);
                status
            }
            "smp_allocation_ptr" => {
                let allocation = self.allocation();
                let live = self.allocations.set.contains(&(allocation.addr() as u64));
                assert_eq!(!smp_allocation_ptr(allocation).is_null(), live);
                return None;
            }
            "smp_is_ready" => smp_is_ready(self.allocation()),
            "smp_is_ready_on" => smp_is_ready_on(self.allocation(), self.stream()),
            "smp_is_ready_on_ptsz" => smp_is_ready_on_ptsz(self.allocation(), self.stream()),

            "smp_device_open" => {
                let desc = self.desc();
                let mut desc = self.roomy(desc);
                let desc = self.nullable(&raw mut desc);
                let mut value: smp_device = sentinel.cast();
                let out = self.nullable(&raw mut value);
                // SAFETY: as above.
                let status = unsafe { smp_device_open(desc.cast(), out) };
                self.created(Kind::Device, status, value.addr());
                status
            }
            "smp_device_get_info" => {
                let device = self.device();
                // SAFETY: as above.
                self.filled(|out| unsafe { smp_device_get_info(device, out) })
            }
            "smp_device_synchronize" => smp_device_synchronize(self.device()),
            "smp_device_close" => {
                let device = self.device();
                let status = smp_device_close(device);
                if status == SMP_SUCCESS {
                    self.gone(Kind::Device, device.addr() as u64);
                }
                status
            }

            "smp_pool_create" => {
                let mut config = pool_config();
                let count = self.below(4);
                let entries: Vec<_> = (0..count).map(|_| self.entry()).collect();
                config.struct_size = self.stated::<smp_pool_config>();
                config.policies = self.number(7);
                config.flags = self.number(1);
                config.release_threshold = if self.one_in(2) { DEFAULT } else { self.size() };
                if self.one_in(2) {
                    (config.entries, config.entry_count) = (entries.as_ptr(), entries.len() as u64);
                } else {
                    config.preset = self.number(3);
                    config.entry_count = if self.one_in(16) { self.size() } else { 0 };
                    config.max_pool_size = if self.one_in(8) { self.size() } else { NONE };
                }
                if self.one_in(16) {
                    config.reserved[self.below(4)] = self.bits() & 1;
                }
                let mut config = self.roomy(config);
                let config = self.nullable(&raw mut config);
                let device = self.device();
                let mut value: smp_pool = sentinel.cast();
                let out = self.nullable(&raw mut value);
                // SAFETY: as above.
                let status = unsafe { smp_pool_create(device, config.cast(), out) };
                self.created(Kind::Pool, status, value.addr());
                self.homes.insert(value.addr() as u64, device.addr() as u64);
                status
            }
            "smp_pool_create_from_spec" => {
                let (device, spec) = (self.device(), self.text());
                let spec = self.nullable(spec.as_ptr().cast_mut());
                let mut value: smp_pool = sentinel.cast();
                let out = self.nullable(&raw mut value);
                // SAFETY: as above.
                let status = unsafe { smp_pool_create_from_spec(device, spec, out) };
                self.created(Kind::Pool, status, value.addr());
                self.homes.insert(value.addr() as u64, device.addr() as u64);
                status
            }
            "smp_pool_destroy" => {
                let pool = self.pool();
                let status = smp_pool_destroy(pool);
                if status == SMP_SUCCESS {
                    self.gone(Kind::Pool, pool.addr() as u64);
                }
                status
            }
            "smp_pool_trim_to" => smp_pool_trim_to(self.pool(), self.size()),
            "smp_pool_get_attribute" => {
                let (pool, attribute) = (self.pool(), self.number(16));
                let mut value = SENTINEL as u64;
                let out = self.nullable(&raw mut value);
                // SAFETY: as above.
                let status = unsafe { smp_pool_get_attribute(pool, attribute, out) };
                assert!(status == SMP_SUCCESS || value == SENTINEL as u64);
                status
            }
            "smp_pool_get_driver_attribute" => {
                let (pool, attribute) = (self.pool(), self.number(16));
                let mut value = SENTINEL as u64;
                let out = self.nullable(&raw mut value);
                // SAFETY: as above.
                let status = unsafe { smp_pool_get_driver_attribute(pool, attribute, out) };
                assert!(status == SMP_SUCCESS || value == SENTINEL as u64);
                status
            }
            "smp_pool_set_attribute" => {
                let value = if self.one_in(2) { self.below(2) as u64 } else { self.size() };
                smp_pool_set_attribute(self.pool(), self.number(16), value)
            }
            "smp_pool_get_stats" => {
                let pool = self.pool();
                // SAFETY: as above.
                self.filled(|out| unsafe { smp_pool_get_stats(pool, out) })
            }
            "smp_pool_get_entry_stats" => {
                let (pool, index) = (self.pool(), self.number(4));
                // SAFETY: as above.
                self.filled(|out| unsafe { smp_pool_get_entry_stats(pool, index, out) })
            }
            "smp_pool_report" => {
                let write: smp_write_fn = if self.one_in(8) { None } else { Some(on_write) };
                let user = if self.one_in(4) { sentinel } else { ptr::null_mut() };
                // SAFETY: the callback fits its type.
                unsafe { smp_pool_report(self.pool(), self.number(2), write, user) }
            }
            "smp_pool_set_out_of_memory_callback" => {
                let callback: smp_out_of_memory_fn = if self.one_in(3) { None } else { Some(on_out_of_memory) };
                // SAFETY: the callback fits its type and needs no user pointer.
                unsafe { smp_pool_set_out_of_memory_callback(self.pool(), callback, ptr::null_mut()) }
            }

            "smp_stream_create" => {
                let (device, flags) = (self.device(), self.number(7));
                let mut value: smp_stream = sentinel.cast();
                let out = self.nullable(&raw mut value);
                // SAFETY: as above.
                let status = unsafe { smp_stream_create(device, flags, out) };
                self.created(Kind::Stream, status, value.addr());
                self.homes.insert(value.addr() as u64, device.addr() as u64);
                status
            }
            "smp_stream_destroy" | "smp_stream_release" | "smp_stream_release_ptsz" => {
                let (device, stream) = (self.device(), self.stream());
                let status = match name {
                    "smp_stream_destroy" => smp_stream_destroy(stream),
                    "smp_stream_release" => smp_stream_release(device, stream),
                    _ => smp_stream_release_ptsz(device, stream),
                };
                if status == SMP_SUCCESS {
                    self.gone(Kind::Stream, stream.addr() as u64);
                }
                status
            }
            "smp_stream_synchronize" => smp_stream_synchronize(self.device(), self.stream()),
            "smp_stream_synchronize_ptsz" => smp_stream_synchronize_ptsz(self.device(), self.stream()),
            "smp_stream_query" => smp_stream_query(self.device(), self.stream()),
            "smp_stream_query_ptsz" => smp_stream_query_ptsz(self.device(), self.stream()),
            "smp_stream_get_info" | "smp_stream_get_info_ptsz" => {
                let (device, stream) = (self.device(), self.stream());
                let twin = name.ends_with("_ptsz");
                self.filled(|out| {
                    // SAFETY: as above.
                    unsafe {
                        match twin {
                            false => smp_stream_get_info(device, stream, out),
                            true => smp_stream_get_info_ptsz(device, stream, out),
                        }
                    }
                })
            }
            "smp_stream_wait_event" => smp_stream_wait_event(self.device(), self.stream(), self.event()),
            "smp_stream_wait_event_ptsz" => smp_stream_wait_event_ptsz(self.device(), self.stream(), self.event()),

            "smp_event_create" => {
                let (device, flags) = (self.device(), if self.one_in(8) { self.number(1) } else { 0 });
                let mut value: smp_event = sentinel.cast();
                let out = self.nullable(&raw mut value);
                // SAFETY: as above.
                let status = unsafe { smp_event_create(device, flags, out) };
                self.created(Kind::Event, status, value.addr());
                self.homes.insert(value.addr() as u64, device.addr() as u64);
                status
            }
            "smp_event_destroy" | "smp_note_event_destroyed" => {
                let (device, event) = (self.device(), self.event());
                let status = match name {
                    "smp_event_destroy" => smp_event_destroy(event),
                    _ => smp_note_event_destroyed(device, event),
                };
                if status == SMP_SUCCESS {
                    self.gone(Kind::Event, event.addr() as u64);
                }
                status
            }
            "smp_event_record" => smp_event_record(self.device(), self.event(), self.stream()),
            "smp_event_record_ptsz" => smp_event_record_ptsz(self.device(), self.event(), self.stream()),
            "smp_event_query" => smp_event_query(self.event()),
            "smp_event_synchronize" => smp_event_synchronize(self.event()),

            "smp_note_event_record" => smp_note_event_record(self.device(), self.event(), self.stream()),
            "smp_note_event_record_ptsz" => smp_note_event_record_ptsz(self.device(), self.event(), self.stream()),
            "smp_note_stream_wait" => smp_note_stream_wait(self.device(), self.stream(), self.event()),
            "smp_note_stream_wait_ptsz" => smp_note_stream_wait_ptsz(self.device(), self.stream(), self.event()),
            "smp_note_event_synchronized" => smp_note_event_synchronized(self.device(), self.event()),
            "smp_note_stream_synchronized" => smp_note_stream_synchronized(self.device(), self.stream()),
            "smp_note_stream_synchronized_ptsz" => smp_note_stream_synchronized_ptsz(self.device(), self.stream()),
            "smp_note_device_synchronized" => smp_note_device_synchronized(self.device()),
            "smp_note_access" | "smp_note_access_ptsz" => {
                let (device, pointer, stream) = (self.device(), self.pointer(), self.stream());
                let (size, access) = (self.size(), self.number(3));
                let mut verdict = sized!(smp_access_verdict);
                verdict.struct_size = self.stated::<smp_access_verdict>();
                let mut verdict = self.roomy(verdict);
                let out = self.nullable(&raw mut verdict).cast();
                // SAFETY: as above.
                unsafe {
                    match name {
                        "smp_note_access" => smp_note_access(device, pointer, size, stream, access, out),
                        _ => smp_note_access_ptsz(device, pointer, size, stream, access, out),
                    }
                }
            }

            "smp_model_stream_submit"
            | "smp_model_stream_submit_ptsz"
            | "smp_model_stream_advance"
            | "smp_model_stream_advance_ptsz" => {
                let (device, stream, count) = (self.device(), self.stream(), self.count());
                let mut value = SENTINEL as u64;
                let out = self.nullable(&raw mut value);
                // SAFETY: as above.
                let status = unsafe {
                    match name {
                        "smp_model_stream_submit" => smp_model_stream_submit(device, stream, count, out),
                        "smp_model_stream_submit_ptsz" => smp_model_stream_submit_ptsz(device, stream, count, out),
                        "smp_model_stream_advance" => smp_model_stream_advance(device, stream, count, out),
                        _ => smp_model_stream_advance_ptsz(device, stream, count, out),
                    }
                };
                assert!(status == SMP_SUCCESS || value == SENTINEL as u64);
                status
            }
            "smp_model_set_capacity" => {
                // Never unlimited: a block of host memory must stay affordable.
                let bytes = if self.one_in(8) { self.size() % (256 << 20) } else { 128 << 20 };
                smp_model_set_capacity(self.device(), bytes)
            }
            "smp_model_refuse_pages" => {
                let (skip, count) = (self.count(), if self.one_in(4) { self.count() % 64 } else { 0 });
                smp_model_refuse_pages(self.device(), skip, count)
            }
            "smp_model_refuse_releases" => {
                let count = if self.one_in(4) { self.count() % 64 } else { 0 };
                smp_model_refuse_releases(self.device(), count)
            }

            "smp_trace_start" => {
                let path = self.path();
                let path = self.nullable(path.as_ptr().cast_mut());
                // SAFETY: as above.
                unsafe { smp_trace_start(self.device(), path, self.number(1)) }
            }
            "smp_trace_stop" => {
                let device = self.device();
                let status = smp_trace_stop(device);
                if status == SMP_SUCCESS {
                    self.replay(device);
                }
                status
            }
            "smp_trace_replay" => {
                let (path, pools) = (self.path(), self.text());
                let mut options = sized!(smp_replay_options);
                options.struct_size = self.stated::<smp_replay_options>();
                options.flags = if self.one_in(16) { self.number(1) } else { 0 };
                options.progress = Some(on_progress);
                options.report_format = self.number(2);
                options.report = if self.one_in(2) { None } else { Some(on_write) };
                options.device_call_ns = self.size();
                if self.one_in(2) {
                    options.pools = pools.as_ptr();
                }
                let mut options = self.roomy(options);
                let options = self.nullable(&raw mut options).cast();
                let path = self.nullable(path.as_ptr().cast_mut());
                // SAFETY: as above.
                self.filled(|out| unsafe { smp_trace_replay(path, options, out) })
            }

            "smp_set_log_callback" => {
                let callback: smp_log_fn = if self.one_in(3) { None } else { Some(on_log) };
                // SAFETY: the callback fits its type and needs no user pointer.
                unsafe { smp_set_log_callback(self.number(3), callback, ptr::null_mut()) }
            }
            // SAFETY: as above.
            "smp_last_error" => self.filled(|out| unsafe { smp_last_error(out) }),
            "smp_status_name" => {
                assert!(!smp_status_name(self.number(24)).is_null());
                return None;
            }
            "smp_status_description" => {
                assert!(!smp_status_description(self.number(24)).is_null());
                return None;
            }
            "smp_version" => {
                assert_ne!(smp_version(), 0);
                return None;
            }
            other => unreachable!("{other} is in a list and not called"),
        })
    }

    /// Calls with a struct to be filled, of any stated size; bytes beyond that stay as they were.
    fn filled<T>(&mut self, call: impl FnOnce(*mut T) -> smp_status) -> smp_status {
        // SAFETY: the structs filled are integers, pointers and arrays; any bytes are valid.
        let mut room: Roomy<T> = unsafe { std::mem::transmute_copy(&[0xa5_u8; 8192]) };
        let stated = self.stated::<T>();
        // SAFETY: each of these structs begins with its size.
        unsafe { (&raw mut room).cast::<u32>().write(stated) };
        let out = self.nullable(&raw mut room);
        let status = call(out.cast());
        let total = size_of::<T>() + 4096;
        // SAFETY: the value and the tail lie one behind the other and are initialised.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const room).cast::<u8>(), total) };
        let written = if status == SMP_SUCCESS { stated as usize } else { 4 };
        assert!(bytes[written.max(4)..].iter().all(|byte| *byte == 0xa5), "bytes beyond the stated size were written");
        status
    }

    /// The live block of a device that holds a pointer.
    fn found_on(&self, device: smp_device, pointer: *mut c_void) -> Option<u64> {
        let mut allocation = ptr::null_mut();
        // SAFETY: the out-parameter is valid; the offset is not wanted.
        let status = unsafe { smp_allocation_find(device, pointer, &mut allocation, ptr::null_mut()) };
        (status == SMP_SUCCESS).then(|| allocation.addr() as u64)
    }

    // ---- the end -----------------------------------------------------------------------------------------------------

    /// Gives everything back; every call must succeed and no byte may stay.
    pub fn end(mut self) {
        // SAFETY: removing a callback needs no pointers.
        super::ok(unsafe { smp_set_log_callback(SMP_LOG_OFF, None, ptr::null_mut()) });
        for device in self.devices.list.clone() {
            let device = ptr::without_provenance_mut(device as usize);
            super::ok(smp_model_refuse_releases(device, 0));
            if smp_trace_stop(device) == SMP_SUCCESS {
                self.replay(device);
            }
        }
        for allocation in self.allocations.list.clone() {
            super::ok(smp_free(ptr::without_provenance_mut(allocation as usize)));
            self.freed(allocation);
        }
        self.check_invariants();
        for figures in self.figures() {
            assert_eq!((figures.live, figures.used, figures.requested, figures.padding), (0, 0, 0, 0));
            assert_eq!(figures.allocs, figures.frees);
        }
        for pool in self.pools.list.clone() {
            super::ok(smp_pool_destroy(ptr::without_provenance_mut(pool as usize)));
        }
        for event in self.events.list.clone() {
            self.ok_if_home(event, smp_event_destroy(ptr::without_provenance_mut(event as usize)));
        }
        for stream in self.streams.list.clone() {
            self.ok_if_home(stream, smp_stream_destroy(ptr::without_provenance_mut(stream as usize)));
        }
        for device in self.devices.list.clone() {
            let device: smp_device = ptr::without_provenance_mut(device as usize);
            super::ok(smp_device_synchronize(device));
            let mut info = sized!(smp_device_info);
            // SAFETY: a struct with its size stated.
            super::ok(unsafe { smp_device_get_info(device, &mut info) });
            assert_eq!((info.reserved, info.pools), (0, 0), "memory stayed behind");
            super::ok(smp_device_close(device));
        }
        // Devices that were closed while recorded leave theirs.
        for path in self.recordings.into_values().chain([self.scratch]) {
            let _ = std::fs::remove_file(path);
        }
    }
}
