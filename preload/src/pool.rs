//! Pool mode: blocks of `cuMemAlloc` come from a pool of the core, one a context, over pages that the driver gives.
//!
//! The promises of the driver's calls hold. A block is usable on return from any stream, so it is one whose last use is
//! known to be over. A free waits for the context's work as the driver's does, or, deferred, puts the block into *limbo*
//! until an event recorded after all that work has been passed. No lock is held across a call to the driver.

use crate::context::{self, Current};
use crate::driver::{self, Code, DEINITIALIZED, Handle, INVALID_VALUE, OUT_OF_MEMORY, Pointer, SUCCESS};
use crate::hook::real;
use crate::ledger::{self, Block, Kind};
use crate::order::{self, Captured};
use crate::report;
use crate::setting::{self, Mode};
use crate::switch::broken;
use smp_core::device::{self, CudaOptions};
use smp_core::pool::{self, AllocOptions};
use smp_core::{AllocationId, DeviceId, MemoryPoolConfig, PoolConfig, PoolId, Preset, Status, StreamId};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{CStr, OsStr, OsString, c_char, c_void};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError, RwLock};

/// What the driver aligns to at most where programs rely on it: textures.
const ALIGNMENT: u64 = 512;
/// Granularity of pages: what the driver itself hands out at least.
const GRANULARITY: u64 = 2 << 20;
const MIB: u64 = 1 << 20;

/// One context's pools.
pub struct Place {
    /// The context and its device.
    pub home: Current,
    device: DeviceId,
    /// Blocks below the export threshold.
    small: PoolId,
    /// Blocks with pages of their own, which can be exported.
    large: Option<PoolId>,
    /// Stream-ordered blocks, where they are taken over.
    ordered: OnceLock<Option<PoolId>>,
    /// The driver's pool that would serve them: the device's default one.
    instead_of: Handle,
    /// The program has given the device another pool, from which what names none comes.
    elsewhere: AtomicBool,
    /// Other devices may reach the memory of the driver's pool, so it is the driver that serves.
    opened: AtomicBool,
    /// The context is being ended: who works for other contexts keeps away.
    ending: AtomicBool,
    /// Held by who works for other contexts.
    visited: Mutex<()>,
    limbo: Mutex<Limbo>,
    /// Some of what is in limbo is of stream-ordered blocks.
    ordered_in_limbo: AtomicBool,
    /// A stream of the context that waits for those of others; 0 if there is none to be had.
    relay: OnceLock<Handle>,
    trace: AtomicBool,
}

/// Blocks that are free for the program but may still be in use on the device.
#[derive(Default)]
struct Limbo {
    /// Events recorded after every use of their blocks.
    fenced: VecDeque<(Handle, Vec<AllocationId>)>,
    /// Not covered by an event yet.
    open: Vec<AllocationId>,
    /// Events to use again.
    spare: Vec<Handle>,
}

/// A page of a pool.
#[derive(Clone, Copy)]
struct Page {
    bytes: u64,
    home: Current,
}

static PLACES: RwLock<Vec<&'static Place>> = RwLock::new(Vec::new());
/// Contexts in which no pool could be opened: the driver serves them.
static WITHOUT: Mutex<Vec<Handle>> = Mutex::new(Vec::new());
static PAGES: RwLock<BTreeMap<u64, Page>> = RwLock::new(BTreeMap::new());
/// Context synchronises that frees made.
static FREE_SYNCHRONISES: AtomicU64 = AtomicU64::new(0);
/// Blocks that a pool served.
static SERVED: AtomicU64 = AtomicU64::new(0);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn places() -> Vec<&'static Place> {
    PLACES.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The place of a context, if it has one.
fn known(context: Handle) -> Option<&'static Place> {
    let places = PLACES.read().unwrap_or_else(PoisonError::into_inner);
    places.iter().copied().find(|place| place.home.context == context)
}

/// The place of the current context; opened at its first use. `None`: the driver serves.
fn place(home: Current) -> Option<&'static Place> {
    if setting::settings().mode != Mode::Pool {
        return None;
    }
    if let Some(place) = known(home.context) {
        return Some(place);
    }
    if lock(&WITHOUT).contains(&home.context) {
        return None;
    }
    // One opens while others wait; nothing here calls back.
    static OPENING: Mutex<()> = Mutex::new(());
    let _one = lock(&OPENING);
    if let Some(place) = known(home.context) {
        return Some(place);
    }
    match open(home) {
        Ok(place) => {
            place.take_up();
            PLACES.write().unwrap_or_else(PoisonError::into_inner).push(place);
            // Once more: what the program did in between has not found the place.
            place.take_up();
            setting::info(&format!("device {}: a pool serves context {:#x}", home.device, home.context));
            Some(place)
        }
        Err(why) => {
            lock(&WITHOUT).push(home.context);
            setting::warn(&format!("device {}: no pool, the driver serves: {why}", home.device));
            None
        }
    }
}

/// The driver as the core sees it: past our own functions, and with its pages under the limit.
extern "C" fn resolve(symbol: *const c_char) -> *mut c_void {
    if symbol.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: not null, so a terminated string.
    match unsafe { CStr::from_ptr(symbol) } {
        name if name == c"cuMemAlloc_v2" => page_alloc as *mut c_void,
        name if name == c"cuMemFree_v2" => page_free as *mut c_void,
        // Which context is current while pages come tells whose they are.
        name if name == c"cuCtxPushCurrent_v2" => context::core_push as *mut c_void,
        name if name == c"cuCtxPopCurrent_v2" => context::core_pop as *mut c_void,
        name if name == c"cuMemCreate" && driver::symbol(name) != 0 => chunk_create as *mut c_void,
        name if name == c"cuMemRelease" && driver::symbol(name) != 0 => chunk_release as *mut c_void,
        name if name == c"cuMemAddressReserve" && driver::symbol(name) != 0 => range_reserve as *mut c_void,
        name if name == c"cuMemAddressFree" && driver::symbol(name) != 0 => range_free as *mut c_void,
        name if name == c"cuMemMap" && driver::symbol(name) != 0 => chunk_map as *mut c_void,
        name if name == c"cuMemUnmap" && driver::symbol(name) != 0 => chunk_unmap as *mut c_void,
        name => driver::symbol(name) as *mut c_void,
    }
}

extern "C" fn page_alloc(to: *mut Pointer, bytes: usize) -> Code {
    let Some(home) = context::current() else { return driver::INVALID_CONTEXT };
    let books = ledger::device(home.device);
    if !books.charge(bytes as u64, setting::settings().limit) {
        return OUT_OF_MEMORY;
    }
    // SAFETY: the core's arguments.
    let code = unsafe { real::cuMemAlloc_v2(to, bytes) };
    if code != SUCCESS {
        books.discharge(bytes as u64);
        return code;
    }
    // SAFETY: the driver wrote it.
    let at = unsafe { to.read() };
    books.pages.add(bytes as u64);
    given(at, bytes as u64);
    PAGES.write().unwrap_or_else(PoisonError::into_inner).insert(at, Page { bytes: bytes as u64, home });
    code
}

/// The driver has given these addresses: what was a page there has gone with its context, whose end another thread is about to
/// note.
pub fn given(at: Pointer, bytes: u64) {
    let end = at.saturating_add(bytes);
    let there = |pages: &BTreeMap<u64, Page>| -> Vec<u64> {
        let touches = |of: &(&u64, &Page)| of.0.saturating_add(of.1.bytes) > at;
        // Pages do not overlap: only the last that begins at or before this can reach into it.
        let before = pages.range(..=at).next_back().filter(touches).map(|(&start, _)| start);
        let after = pages.range(at..end).map(|(&start, _)| start).filter(|start| *start != at);
        before.into_iter().chain(after).collect()
    };
    let none = there(&PAGES.read().unwrap_or_else(PoisonError::into_inner)).is_empty();
    if none {
        return;
    }
    let mut pages = PAGES.write().unwrap_or_else(PoisonError::into_inner);
    for start in there(&pages) {
        if let Some(page) = pages.remove(&start) {
            drop_page(&page);
        }
    }
}

extern "C" fn page_free(at: Pointer) -> Code {
    // Struck out first: once the driver has it back, another page may come to lie there.
    let page = PAGES.write().unwrap_or_else(PoisonError::into_inner).remove(&at);
    // SAFETY: the core's argument.
    let code = unsafe { real::cuMemFree_v2(at) };
    let Some(page) = page else { return code };
    if code == SUCCESS || code == DEINITIALIZED {
        drop_page(&page);
    } else {
        PAGES.write().unwrap_or_else(PoisonError::into_inner).insert(at, page);
    }
    code
}

/// Physical memory that pools map, by the driver's handles.
static CHUNKS: Mutex<BTreeMap<u64, Page>> = Mutex::new(BTreeMap::new());

extern "C" fn chunk_create(to: *mut u64, bytes: usize, properties: *const c_void, flags: u64) -> Code {
    let Some(home) = context::current() else { return driver::INVALID_CONTEXT };
    let books = ledger::device(home.device);
    if !books.charge(bytes as u64, setting::settings().limit) {
        return OUT_OF_MEMORY;
    }
    // SAFETY: the core's arguments.
    let code = unsafe { real::cuMemCreate(to, bytes, properties, flags) };
    if code != SUCCESS {
        books.discharge(bytes as u64);
        return code;
    }
    books.pages.add(bytes as u64);
    // SAFETY: the driver wrote it.
    lock(&CHUNKS).insert(unsafe { to.read() }, Page { bytes: bytes as u64, home });
    code
}

extern "C" fn chunk_release(handle: u64) -> Code {
    let chunk = lock(&CHUNKS).remove(&handle);
    // SAFETY: the core's argument.
    let code = unsafe { real::cuMemRelease(handle) };
    let Some(chunk) = chunk else { return code };
    if code == SUCCESS || code == DEINITIALIZED {
        drop_page(&chunk);
    } else {
        lock(&CHUNKS).insert(handle, chunk);
    }
    code
}

/// Addresses by where they begin: how many bytes, and of which context's pools.
type Addresses = Mutex<BTreeMap<u64, (usize, Handle)>>;
/// One of those.
type Stretch = (u64, (usize, Handle));
/// What pools have reserved.
static RANGES: Addresses = Mutex::new(BTreeMap::new());
/// Where in that they have mapped something.
static MAPPED: Addresses = Mutex::new(BTreeMap::new());

extern "C" fn range_reserve(to: *mut Pointer, bytes: usize, alignment: usize, wish: Pointer, flags: u64) -> Code {
    let Some(home) = context::current() else { return driver::INVALID_CONTEXT };
    // SAFETY: the core's arguments.
    let code = unsafe { driver::cuMemAddressReserve(to, bytes, alignment, wish, flags) };
    if code == SUCCESS {
        // SAFETY: the driver wrote it.
        lock(&RANGES).insert(unsafe { to.read() }, (bytes, home.context));
    }
    code
}

extern "C" fn chunk_map(at: Pointer, bytes: usize, offset: usize, memory: u64, flags: u64) -> Code {
    let Some(home) = context::current() else { return driver::INVALID_CONTEXT };
    // SAFETY: the core's arguments.
    let code = unsafe { driver::cuMemMap(at, bytes, offset, memory, flags) };
    if code == SUCCESS {
        lock(&MAPPED).insert(at, (bytes, home.context));
    }
    code
}

extern "C" fn range_free(at: Pointer, bytes: usize) -> Code {
    // SAFETY: the core's arguments.
    struck_out(&RANGES, at, || unsafe { driver::cuMemAddressFree(at, bytes) })
}

extern "C" fn chunk_unmap(at: Pointer, bytes: usize) -> Code {
    // SAFETY: the core's arguments.
    struck_out(&MAPPED, at, || unsafe { driver::cuMemUnmap(at, bytes) })
}

/// Runs `call`, which ends what begins at `at`: struck out first, since something else may come to lie there.
fn struck_out(addresses: &Addresses, at: Pointer, call: impl FnOnce() -> Code) -> Code {
    let was = lock(addresses).remove(&at);
    let code = call();
    if let Some(was) = was.filter(|_| code != SUCCESS) {
        lock(addresses).insert(at, was);
    }
    code
}

fn drop_page(page: &Page) {
    let books = ledger::device(page.home.device);
    books.pages.take(page.bytes);
    books.discharge(page.bytes);
}

/// The page an address lies in, if it is one of ours, and its start.
fn page_at(at: Pointer) -> Option<(u64, Page)> {
    let pages = PAGES.read().unwrap_or_else(PoisonError::into_inner);
    pages.range(..=at).next_back().map(|(&start, &page)| (start, page)).filter(|(start, page)| at - start < page.bytes)
}

/// Whether an address lies in a page of ours: the driver must never be asked to free it.
pub fn owns(at: Pointer) -> bool {
    context_of(at).is_some()
}

/// The context whose pool has an address.
pub fn context_of(at: Pointer) -> Option<Handle> {
    of_page_or_range(page_at(at), at)
}

fn of_page_or_range(page: Option<(u64, Page)>, at: Pointer) -> Option<Handle> {
    page.map(|(_, page)| page.home.context).or_else(|| range_at(at))
}

/// The context whose pool has an address outside of all pages, as pools of the program's choice may: in addresses reserved to
/// map memory there, or in a block of a pool of the driver's.
fn range_at(at: Pointer) -> Option<Handle> {
    let config = setting::settings().pools.as_ref()?;
    let reserved = lock(&RANGES).range(..=at).next_back().map(|(&start, &of)| (start, of));
    if let Some((start, (bytes, context))) = reserved
        && at - start < bytes as u64
        && !broken("mapped")
    {
        return Some(context);
    }
    // All others have their blocks in pages; and where a context is ending, what lay there may be another's by now.
    if config.preset != Some(Preset::Driver) {
        return None;
    }
    let there = |place: &&Place| !place.ending.load(SeqCst) && pool::find(place.device, at).is_ok();
    places().into_iter().find(there).map(|place| place.home.context)
}

/// The pools' configurations: for small blocks, and for those with pages of their own.
fn configs() -> (PoolConfig, Option<PoolConfig>) {
    let settings = setting::settings();
    if let Some(config) = &settings.pools {
        let own_pages = settings.export_threshold_set.then(exclusive);
        return (config.clone(), own_pages);
    }
    let sliced = |page_size, max: u64| MemoryPoolConfig::Sliced {
        page_size,
        max_slice_size: Some(max),
        max_pool_size: None,
        dealloc_period: None,
    };
    // Large pages cost fewer calls; under a tight limit they would leave too little for anything else.
    let roomy = settings.limit.is_none_or(|limit| limit >= 1024 * MIB);
    let mut entries = vec![];
    if roomy {
        entries.push(sliced(2 * MIB, 64 << 10));
        entries.push(sliced(32 * MIB, 2 * MIB));
        if settings.export_threshold > 2 * MIB {
            entries.push(sliced(256 * MIB, 128 * MIB));
        }
    } else {
        entries.push(sliced(2 * MIB, 2 * MIB));
    }
    (PoolConfig::with_entries(entries), Some(exclusive()))
}

/// A page a block: by size, so that a small block does not take a large page.
fn exclusive() -> PoolConfig {
    let entry = |max_alloc_size| MemoryPoolConfig::Exclusive { max_alloc_size, dealloc_period: None };
    // From 2 MiB to 32 GiB, two steps to each doubling: at most a third of a page is unused.
    let steps = (21..35).flat_map(|power| [entry(1 << power), entry(3 << (power - 1))]);
    PoolConfig::with_entries(steps.chain([entry(1 << 46)]).collect())
}

fn open(home: Current) -> Result<&'static Place, String> {
    static RESOLVER: Once = Once::new();
    RESOLVER.call_once(|| {
        smp_core::log::set_sink(smp_core::log::Level::Warning, Some(|_, text| setting::warn(text)));
        // SAFETY: `resolve` answers with the driver's functions, or with ours of the same kind.
        unsafe { device::cuda::use_resolver(resolve) };
    });
    let options = CudaOptions {
        ordinal: u32::try_from(home.device).unwrap_or(0),
        context: home.context as u64,
        alignment: if broken("alignment") { 256 } else { ALIGNMENT },
        page_granularity: GRANULARITY,
        ..CudaOptions::default()
    };
    let device = device::open_cuda(&options).map_err(|why| why.to_string())?;
    let (small, large) = configs();
    let create = |config: &PoolConfig| pool::create(device, config).map_err(|why| why.to_string());
    let small = create(&small)?;
    let large = large.as_ref().map(create).transpose()?;
    let place = Place {
        home,
        device,
        small,
        large,
        ordered: OnceLock::new(),
        instead_of: default_pool(home.device),
        elsewhere: AtomicBool::new(false),
        opened: AtomicBool::new(false),
        ending: AtomicBool::new(false),
        visited: Mutex::default(),
        limbo: Mutex::default(),
        ordered_in_limbo: AtomicBool::new(false),
        relay: OnceLock::new(),
        trace: AtomicBool::new(false),
    };
    let place: &'static Place = Box::leak(Box::new(place));
    if let Some(name) = &setting::settings().trace {
        place.ordered_pool();
        static TRACES: AtomicUsize = AtomicUsize::new(0);
        let name = numbered(name, TRACES.fetch_add(1, Relaxed));
        match smp_core::trace::start(device, &name, 0) {
            Ok(()) => place.trace.store(true, Relaxed),
            Err(why) => setting::warn(&format!("no trace: {why}")),
        }
    }
    Ok(place)
}

/// A file name for the n-th context: the first has the name that was asked for.
fn numbered(name: &OsStr, index: usize) -> OsString {
    let bytes = name.as_bytes();
    let (stem, ending) = match (index, bytes.strip_suffix(b".gz")) {
        (0, _) => return name.to_owned(),
        (_, Some(stem)) => (stem, ".gz"),
        (_, None) => (bytes, ""),
    };
    OsString::from_vec([stem, format!(".{index}{ending}").as_bytes()].concat())
}

/// Completes the traces, as the process ends.
pub fn finish_traces() {
    places().into_iter().for_each(Place::finish_trace);
}

/// The core must be told of what orders and synchronises.
pub fn watched() -> bool {
    let settings = setting::settings();
    settings.async_pool || settings.trace.is_some() || settings.check
}

impl Place {
    /// The pool of stream-ordered blocks, if they are taken over.
    pub fn ordered_pool(&self) -> Option<PoolId> {
        *self.ordered.get_or_init(|| {
            if !setting::settings().async_pool {
                return None;
            }
            let ladder = || PoolConfig::preset(Preset::SubSlices);
            let config = setting::settings().pools.clone().unwrap_or_else(ladder);
            pool::create(self.device, &config)
                .inspect_err(|why| setting::warn(&format!("stream-ordered allocations go to the driver: {why}")))
                .ok()
        })
    }

    /// Completes the trace, if there is one.
    fn finish_trace(&self) {
        if self.trace.swap(false, Relaxed)
            && let Err(why) = smp_core::trace::stop(self.device)
        {
            setting::warn(&format!("the trace is not complete: {why}"));
        }
    }

    /// The core's device.
    pub fn device(&self) -> DeviceId {
        self.device
    }

    fn pools(&self) -> impl Iterator<Item = PoolId> + '_ {
        [Some(self.small), self.large, self.ordered.get().copied().flatten()].into_iter().flatten()
    }

    /// Takes everything out of limbo; a synchronise that begins now makes it free.
    fn empty_limbo(&self) -> Vec<AllocationId> {
        let mut limbo = lock(&self.limbo);
        let mut out = std::mem::take(&mut limbo.open);
        for (event, blocks) in std::mem::take(&mut limbo.fenced) {
            limbo.spare.push(event);
            out.extend(blocks);
        }
        out
    }

    /// Takes one block out of limbo again that no event covers yet. `false`: another thread has taken it along.
    fn out_of_limbo(&self, block: AllocationId) -> bool {
        let mut limbo = lock(&self.limbo);
        let at = limbo.open.iter().rposition(|open| *open == block);
        at.map(|at| limbo.open.swap_remove(at)).is_some()
    }

    /// Notes, under limbo's lock, that this block has come there.
    fn note_ordered(&self, block: &Block) {
        if block.kind.ordered() {
            self.ordered_in_limbo.store(true, Relaxed);
        }
    }

    /// Puts a block into limbo that the next synchronise, or event of ours, is to cover.
    fn put_in_limbo(&self, id: AllocationId, block: &Block) {
        let mut limbo = lock(&self.limbo);
        limbo.open.push(id);
        self.note_ordered(block);
    }

    /// Puts back what a failed synchronise left in limbo; the next one covers it.
    fn back_into_limbo(&self, blocks: Vec<AllocationId>) {
        if !blocks.is_empty() {
            lock(&self.limbo).open.extend(blocks);
        }
    }

    /// Runs `call`, which synchronises the context, and believes it if it succeeds.
    pub fn synchronised(&self, call: impl FnOnce() -> Code) -> Code {
        let waiting = self.empty_limbo();
        let mut code = driver::UNKNOWN;
        if watched() {
            let mut call = Some(call);
            let mut act = || {
                code = call.take().map_or(driver::UNKNOWN, |call| call());
                code == SUCCESS
            };
            // What went wrong is in `code`, or concerns the core's figures only.
            let _ = device::synchronize_by(self.device, smp_core::Act::With(&mut act));
            if let Some(call) = call {
                // The core did not come to it: the device is past use for it, not for the program.
                code = call();
            }
        } else {
            code = call();
        }
        if code == SUCCESS {
            waiting.into_iter().for_each(give);
        } else {
            self.back_into_limbo(waiting);
        }
        code
    }

    /// Frees what the events in limbo say is over.
    fn poll(&self) {
        if lock(&self.limbo).fenced.is_empty() {
            return;
        }
        // Taken out, so that no lock is held across the query; what is not over goes back.
        const AT_ONCE: usize = 8;
        let asked: Vec<_> = {
            let mut limbo = lock(&self.limbo);
            let count = limbo.fenced.len().min(AT_ONCE);
            limbo.fenced.drain(..count).collect()
        };
        let mut pending = Vec::new();
        for (event, blocks) in asked {
            // SAFETY: an event of ours.
            match order::relaxed(|| unsafe { driver::cuEventQuery(event) }) {
                code if code == SUCCESS || broken("usable-at-once") => {
                    blocks.into_iter().for_each(give);
                    lock(&self.limbo).spare.push(event);
                }
                _ => pending.push((event, blocks)),
            }
        }
        let mut limbo = lock(&self.limbo);
        pending.into_iter().rev().for_each(|entry| limbo.fenced.push_front(entry));
        let uncovered = !limbo.open.is_empty() && limbo.fenced.is_empty();
        if limbo.open.is_empty() && limbo.fenced.is_empty() {
            self.ordered_in_limbo.store(false, Relaxed);
        }
        drop(limbo);
        if uncovered {
            self.fence();
        }
    }

    /// An event of the place's context.
    fn event(&self) -> Option<Handle> {
        if let Some(event) = lock(&self.limbo).spare.pop() {
            return Some(event);
        }
        context::with(self.home.context, new_event)?
    }

    /// An event of the place's context, recorded after all that a stream has been given so far; the stream may be another
    /// context's. `Err(None)`: there is none to be had; `Err(Some(code))`: the driver refuses the stream.
    fn after(&self, stream: Handle) -> Result<Handle, Option<Code>> {
        let of = context::of_stream(stream).ok_or(driver::INVALID_CONTEXT)?;
        order::relaxed(|| {
            let (event, on) = if of.context == self.home.context || broken("other-contexts") {
                (self.event().ok_or(None)?, stream)
            } else {
                let relay = self.wait_for_other(of.context, stream)?;
                (self.event().ok_or(None)?, relay)
            };
            // SAFETY: an event of ours, a stream of the same context.
            let code = context::with(self.home.context, || unsafe { real::cuEventRecord(event, on, 0) });
            match code {
                Some(SUCCESS) => Ok(event),
                code => {
                    lock(&self.limbo).spare.push(event);
                    Err(Some(code.unwrap_or(driver::INVALID_CONTEXT)))
                }
            }
        })
    }

    /// Has a stream of the place's context wait for all that another context's stream has been given so far. A stream of
    /// ours, since the program's own must not wait for work that it has not ordered them after. Its work is the context's: a
    /// synchronise of that waits for it as well.
    fn wait_for_other(&self, context: Handle, stream: Handle) -> Result<Handle, Option<Code>> {
        const NON_BLOCKING: u32 = 1;
        let relay = *self.relay.get_or_init(|| {
            let mut relay: Handle = 0;
            // SAFETY: the target is ours.
            context::with(self.home.context, || unsafe { driver::cuStreamCreate(&mut relay, NON_BLOCKING) });
            relay
        });
        if relay == 0 {
            return Err(None);
        }
        let recorded = context::with(context, || {
            let event = new_event().ok_or(None)?;
            // SAFETY: an event of ours, the program's stream of the same context.
            match unsafe { real::cuEventRecord(event, stream, 0) } {
                SUCCESS => Ok(event),
                code => Err((event, code).into()),
            }
        });
        let (event, mut code) = match recorded {
            Some(Ok(event)) => (event, SUCCESS),
            Some(Err(Some((event, code)))) => (event, code),
            Some(Err(None)) | None => return Err(None),
        };
        if code == SUCCESS {
            // SAFETY: an event and a stream of ours. A wait takes events of any context.
            code = context::with(self.home.context, || unsafe { real::cuStreamWaitEvent(relay, event, 0) })
                .unwrap_or(driver::INVALID_CONTEXT);
        }
        // SAFETY: an event of ours; the wait keeps what it needs of it.
        context::with(context, || unsafe { driver::cuEventDestroy_v2(event) });
        if code == SUCCESS { Ok(relay) } else { Err(Some(code)) }
    }

    /// Covers the open blocks by one event after all that the context has been given so far. `false`: the driver cannot.
    fn fence(&self) -> bool {
        order::relaxed(|| {
            let Some(event) = self.event() else { return false };
            let open = std::mem::take(&mut lock(&self.limbo).open);
            // SAFETY: a live context, and an event of it.
            let code = unsafe { driver::cuCtxRecordEvent(self.home.context, event) };
            let mut limbo = lock(&self.limbo);
            if code == SUCCESS {
                limbo.fenced.push_back((event, open));
            } else {
                limbo.spare.push(event);
                limbo.open.extend(open);
            }
            code == SUCCESS
        })
    }

    /// Does something for the calls of other contexts, unless the context is being ended.
    fn visit(&self, run: impl FnOnce(&Self)) {
        let own = context::current().is_some_and(|home| home.context == self.home.context);
        let _visit = (!own).then(|| lock(&self.visited));
        if own || !self.ending.load(SeqCst) {
            run(self);
        }
    }

    /// Memory is out: everything that can be made free is, and goes back to the driver.
    fn relieve(&self) {
        if broken("relief") {
            return;
        }
        if !order::capturing() {
            self.synchronised(|| order::wait_for(self.home.context).unwrap_or(driver::INVALID_CONTEXT));
        }
        self.pools().for_each(|pool| drop(pool::trim_to(pool, 0)));
    }
}

/// The driver has no memory for something else on a device: what pools there hold and do not use goes back. `false`: they
/// hold nothing.
pub fn relieve(device: i32) -> bool {
    let held = || ledger::device(device).pages.figures().current;
    let before = held();
    if before == 0 || broken("relief-of-others") {
        return false;
    }
    places().into_iter().filter(|place| place.home.device == device).for_each(|place| place.visit(Place::relieve));
    held() < before
}

/// A context is about to be ended: from here on no other thread's call enters it on its own account.
#[must_use]
pub fn ending(context: Handle) -> Ending {
    let place = known(context);
    if let Some(place) = place {
        place.ending.store(true, SeqCst);
        // Who is there leaves first; the program's own calls are its own business.
        drop(lock(&place.visited));
    }
    Ending(place)
}

/// A context that may end.
pub struct Ending(Option<&'static Place>);

impl Ending {
    /// It has not ended.
    pub fn called_off(self) {
        if let Some(place) = self.0 {
            place.ending.store(false, SeqCst);
        }
    }
}

/// An event of the current context.
pub fn new_event() -> Option<Handle> {
    const DISABLE_TIMING: u32 = 2;
    let mut event: Handle = 0;
    // SAFETY: the target is ours.
    let code = unsafe { driver::cuEventCreate(&mut event, DISABLE_TIMING) };
    (code == SUCCESS).then_some(event)
}

/// Gives a block back whose uses are over.
fn give(block: AllocationId) {
    if let Err(why) = pool::free_observed(block) {
        setting::warn(&format!("a block could not go back to its pool: {why}"));
    }
}

/// The code a program gets for an error of the core.
fn code_of(error: &smp_core::Error) -> Code {
    match (error.status, u32::try_from(error.driver_code)) {
        (_, Ok(code)) if code != 0 => code,
        (Status::OutOfMemory | Status::CapacityExceeded | Status::SizeNotAccepted, _) => OUT_OF_MEMORY,
        (Status::InvalidValue | Status::Freed | Status::WrongDevice | Status::Capturing, _) => INVALID_VALUE,
        (Status::InvalidHandle | Status::Destroyed, _) => driver::INVALID_HANDLE,
        (Status::NotPermitted, _) => driver::NOT_PERMITTED,
        (Status::NotSupported, _) => driver::NOT_SUPPORTED,
        _ => driver::UNKNOWN,
    }
}

/// Serves `cuMemAlloc`. `None`: the driver is to serve, within the limit.
pub fn alloc(home: Current, bytes: u64, caller: usize) -> Option<Result<Pointer, Code>> {
    if order::capturing() {
        // A plain allocation may be illegal now; only the driver knows.
        return None;
    }
    let place = place(home)?;
    place.poll();
    let large = place.large.filter(|_| bytes >= setting::settings().export_threshold);
    let ask = || pool::alloc(large.unwrap_or(place.small), bytes, &AllocOptions::default());
    let block = ask().or_else(|_| {
        place.relieve();
        ask()
    });
    let Ok(block) = block else {
        // The pool's pages may be larger than what is left.
        return None;
    };
    let at = pool::pointer(block);
    SERVED.fetch_add(1, Relaxed);
    let Current { context, device } = home;
    let caller = report::origin(caller);
    ledger::write_in(at, Block { bytes, device, context, stream: 0, kind: Kind::Device, caller, pooled: block.0 });
    Some(Ok(at))
}

/// Serves `cuMemFree` of a block of ours that has been struck out of the ledger.
pub fn free(at: Pointer, block: Block) -> Code {
    let Some(place) = known(block.context) else {
        ledger::settle(&block);
        return SUCCESS;
    };
    let id = AllocationId(block.pooled);
    if order::capturing() {
        // Whether such a free is legal now, of whichever memory, only the driver knows: a request of the same kind tells.
        let mut probe = 0;
        // SAFETY: the target is ours.
        let code = unsafe { real::cuMemAlloc_v2(&mut probe, 1) };
        if code != SUCCESS {
            ledger::put_back(at, block);
            return code;
        }
        // SAFETY: it came a moment ago.
        unsafe { real::cuMemFree_v2(probe) };
        place.put_in_limbo(id, &block);
        ledger::settle(&block);
        return SUCCESS;
    }
    // A free of stream-ordered memory does not wait for other streams' work.
    if block.kind.ordered() && !broken("async-free") || setting::settings().deferred_free {
        return defer(place, at, block);
    }
    free_waiting(place, at, block)
}

/// A free that waits for the context's work.
fn free_waiting(place: &'static Place, at: Pointer, mut block: Block) -> Code {
    FREE_SYNCHRONISES.fetch_add(1, Relaxed);
    let code = match broken("synchronise") {
        true => SUCCESS,
        false => {
            let _held = broken("no-lock").then(|| ledger::hold(at));
            place.synchronised(|| order::wait_for(block.context).unwrap_or(DEINITIALIZED))
        }
    };
    match code {
        SUCCESS => {
            give(AllocationId(block.pooled));
            if broken("own-device") {
                block.device = context::current().map_or(block.device, |home| home.device);
            }
            ledger::settle(&block);
        }
        DEINITIALIZED => ledger::settle(&block),
        _ => ledger::put_back(at, block),
    }
    code
}

/// A free that waits for nothing: the block is in limbo until all that the context has been given so far is over.
fn defer(place: &'static Place, at: Pointer, block: Block) -> Code {
    let id = AllocationId(block.pooled);
    let alone = {
        let mut limbo = lock(&place.limbo);
        limbo.open.push(id);
        place.note_ordered(&block);
        limbo.fenced.is_empty()
    };
    if broken("deferred-order") {
        ledger::settle(&block);
        place.empty_limbo().into_iter().for_each(give);
        return SUCCESS;
    }
    if alone && !place.fence() && !order::capturing() && place.out_of_limbo(id) {
        // No such event in this driver: it waits.
        return free_waiting(place, at, block);
    }
    ledger::settle(&block);
    SUCCESS
}

/// Serves `cuMemFreeAsync` of a block of `cuMemAlloc`, and of any on a stream of another context: it is free once the
/// stream has come this far. `refuse` says what the driver does to memory that the stream cannot free.
pub fn free_on(at: Pointer, block: Block, stream: Handle, refuse: &dyn Fn() -> Code) -> Code {
    let Some(place) = known(block.context) else {
        ledger::settle(&block);
        return SUCCESS;
    };
    if order::captured(stream) == Captured::Itself {
        // Memory from outside a graph cannot be freed in one.
        ledger::put_back(at, block);
        return refuse();
    }
    let id = AllocationId(block.pooled);
    let code = match place.after(stream) {
        Ok(event) => {
            let mut limbo = lock(&place.limbo);
            limbo.fenced.push_back((event, vec![id]));
            place.note_ordered(&block);
            SUCCESS
        }
        // Without an event the host waits.
        Err(None) => match order::relaxed(|| order::wait_for_stream(stream)) {
            SUCCESS => {
                give(id);
                SUCCESS
            }
            code => code,
        },
        Err(Some(code)) => code,
    };
    match code {
        SUCCESS | DEINITIALIZED => ledger::settle(&block),
        _ => ledger::put_back(at, block),
    }
    code
}

/// Serves `cuMemAllocAsync`, and `cuMemAllocFromPoolAsync` from a `pool` of the driver's that ours stands in for. `None`: the
/// driver is to serve.
pub fn alloc_ordered(
    home: Current,
    bytes: u64,
    stream: Handle,
    pool: Option<Handle>,
    caller: usize,
) -> Option<Result<Pointer, Code>> {
    if !setting::settings().async_pool || order::captured(stream) != Captured::No && !broken("capture") {
        return None;
    }
    let place = place(home).filter(|place| match pool {
        None => !place.elsewhere.load(Relaxed) && !place.opened.load(Relaxed),
        Some(pool) => place.stands_in_for(pool),
    })?;
    let from = place.ordered_pool()?;
    if place.ordered_in_limbo.load(Relaxed) {
        place.poll();
    }
    let ask = || pool::alloc_async(from, bytes, StreamId(stream as u64));
    let block = ask().or_else(|error| match error.status {
        Status::OutOfMemory | Status::CapacityExceeded => {
            place.relieve();
            ask()
        }
        _ => Err(error),
    });
    let block = match block {
        Ok(block) => block,
        // The driver judges what is captured; and the pool's pages may be larger than what is left.
        Err(error)
            if matches!(
                error.status,
                Status::Capturing | Status::OutOfMemory | Status::CapacityExceeded | Status::SizeNotAccepted
            ) =>
        {
            return None;
        }
        Err(error) => return Some(Err(code_of(&error))),
    };
    let at = pool::pointer(block);
    SERVED.fetch_add(1, Relaxed);
    let Current { context, device } = home;
    let caller = report::origin(caller);
    let kind = if pool.is_some() { Kind::FromPool } else { Kind::Async };
    ledger::write_in(at, Block { bytes, device, context, stream, kind, caller, pooled: block.0 });
    Some(Ok(at))
}

/// The pools of ours that serve what this pool of the driver's would have: one a context, the oldest first. Where the program
/// asks before its first allocation, the current context's is opened now.
pub fn in_place_of(driver: Handle) -> Vec<PoolId> {
    let standing =
        || places().into_iter().filter(|place| place.stands_in_for(driver)).filter_map(Place::ordered_pool).collect();
    let mut pools: Vec<PoolId> = standing();
    if pools.is_empty()
        && let Some(home) = context::current()
        && default_pool(home.device) == driver
        && place(home).is_some()
    {
        pools = standing();
    }
    pools
}

/// Trims those pools. Pages that cannot go back stay, as the driver's do.
pub fn trim_in_place_of(driver: Handle, keep: u64) {
    in_place_of(driver);
    for place in places().into_iter().filter(|place| place.stands_in_for(driver)) {
        place.visit(|place| {
            place.ordered_pool().map(|pool| pool::trim_to(pool, keep));
        });
    }
}

/// A device's default pool of the driver's, 0 if it has none.
fn default_pool(device: i32) -> Handle {
    let mut pool: Handle = 0;
    // SAFETY: the target is ours. A driver without pools answers with an error, and leaves null.
    unsafe { driver::cuDeviceGetDefaultMemPool(&mut pool, device) };
    pool
}

fn devices() -> i32 {
    let mut count = 0;
    // SAFETY: the target is ours.
    unsafe { driver::cuDeviceGetCount(&mut count) };
    count
}

/// Attributes of a pool that a program sets to stay, by the pool of the driver's and the attribute.
static SET: Mutex<BTreeMap<(Handle, u32), u64>> = Mutex::new(BTreeMap::new());

/// The program has set an attribute of a pool of the driver's: so it is with all that stand in for it, now and later.
pub fn attribute_set(driver: Handle, attribute: u32, value: u64) {
    const STAY: std::ops::RangeInclusive<u32> = 1..=4;
    if !(0..devices()).any(|device| default_pool(device) == driver) {
        return;
    }
    let standing = || places().into_iter().filter(|place| place.instead_of == driver);
    if STAY.contains(&attribute) {
        lock(&SET).insert((driver, attribute), value);
        standing().for_each(Place::take_up_attributes);
    } else {
        for pool in standing().filter_map(Place::ordered_pool) {
            // What can be set of these has been judged by the driver.
            let _ = pool::set_attribute(pool, attribute, value);
        }
    }
}

/// The program has given a device another pool, ended one, or opened one to other devices.
pub fn pools_changed() {
    places().into_iter().for_each(Place::take_up_standing);
}

impl Place {
    /// What the program did to the device's pools before the place was there holds for it as well.
    fn take_up(&self) {
        if setting::settings().async_pool {
            self.take_up_standing();
            self.take_up_attributes();
        }
    }

    /// Asks the driver what ours stands in for.
    fn take_up_standing(&self) {
        // One asks while others wait, so that the last answer is the one that stays; nothing here calls back.
        static ASKING: Mutex<()> = Mutex::new(());
        let _one = lock(&ASKING);
        let device = self.home.device;
        let mut current = self.instead_of;
        // SAFETY: the target is ours. A driver without pools answers with an error, and leaves it.
        unsafe { driver::cuDeviceGetMemPool(&mut current, device) };
        self.elsewhere.store(current != self.instead_of, Relaxed);
        let reached = (0..devices()).filter(|other| *other != device).any(|other| {
            let mut access = 0;
            // SAFETY: the target and the place are ours. What cannot be asked has not been given.
            unsafe { driver::cuMemPoolGetAccess(&mut access, self.instead_of, &driver::Location::device(other)) };
            access != 0
        });
        if !self.opened.swap(reached, Relaxed) && reached {
            static TOLD: AtomicBool = AtomicBool::new(false);
            if !TOLD.swap(true, Relaxed) {
                setting::warn("a device's default pool is open to other devices: the driver serves what comes from it");
            }
        }
    }

    /// Sets what the program has set.
    fn take_up_attributes(&self) {
        let set = lock(&SET);
        let mut of_it = set.range((self.instead_of, 0)..=(self.instead_of, u32::MAX)).peekable();
        let Some(pool) = of_it.peek().and_then(|_| self.ordered_pool()) else { return };
        for (&(_, attribute), &value) in of_it {
            // What the driver has taken is in range.
            let _ = pool::set_attribute(pool, attribute, value);
        }
    }

    /// Whether what is asked of this pool of the driver's is ours to serve and to answer.
    fn stands_in_for(&self, driver: Handle) -> bool {
        driver != 0 && self.instead_of == driver && !self.opened.load(Relaxed)
    }
}

/// Serves `cuMemFreeAsync` of a stream-ordered block of ours that has been struck out of the ledger.
pub fn free_ordered(at: Pointer, block: Block, stream: Handle, refuse: &dyn Fn() -> Code) -> Code {
    // A default stream is the current context's. A context's own streams the core knows from others'.
    let own = stream > 2 || context::current().is_some_and(|home| home.context == block.context);
    if !own && !broken("other-contexts") || order::captured(stream) == Captured::Others {
        return free_on(at, block, stream, refuse);
    }
    let error = match pool::free_async(AllocationId(block.pooled), StreamId(stream as u64)) {
        Ok(()) => {
            ledger::settle(&block);
            return SUCCESS;
        }
        Err(error) => error,
    };
    // The driver's pools are their device's, and bound to no context.
    if known(block.context).is_none() || error.status == Status::WrongDevice && !broken("other-contexts") {
        return free_on(at, block, stream, refuse);
    }
    ledger::put_back(at, block);
    if error.status == Status::Capturing { refuse() } else { code_of(&error) }
}

/// A live block of ours that holds an address.
pub struct Found {
    /// Where it begins.
    pub base: Pointer,
    /// Bytes asked for.
    pub bytes: u64,
    /// A number no other block of the process has.
    pub number: u64,
    /// It has a page of its own, which begins where it does.
    pub own_page: bool,
    /// It lies in no page, but where a pool has mapped memory or has a block of the driver's pool.
    pub mapped: bool,
    /// The driver's pool that it would have come from, 0 for plain memory.
    pub of_pool: Handle,
    /// The context that it goes with, 0 for stream-ordered memory.
    pub context: Handle,
}

/// What an address of ours is; `Err(())`: in a page of ours, but no live block's.
pub fn find(at: Pointer) -> Option<Result<Found, ()>> {
    let page = page_at(at);
    // In the pools of its owner only: those of a context that is ending may still tell of what lay there.
    let place = known(of_page_or_range(page, at)?);
    let Some((id, offset)) = place.and_then(|place| pool::find(place.device, at).ok()) else { return Some(Err(())) };
    let base = at - offset;
    let Ok(info) = pool::info(id) else { return Some(Err(())) };
    // A block in limbo is live for its pool, and none for the program.
    let Some(block) = ledger::at(base) else { return Some(Err(())) };
    let own_page = page.is_some_and(|(start, page)| base == start && info.block_size == page.bytes);
    let of_pool = known(block.context).filter(|_| block.kind.ordered()).map_or(0, |place| place.instead_of);
    let context = if block.kind.ordered() { 0 } else { block.context };
    // What was asked for with size 0 has an address all the same.
    let bytes = if info.requested == 0 { info.block_size } else { info.requested };
    Some(Ok(Found { base, bytes, number: id.0, own_page, mapped: page.is_none(), of_pool, context }))
}

/// Bytes of a device's pages that no block holds.
pub fn idle(device: i32) -> u64 {
    const RESERVED: u32 = 5;
    const USED: u32 = 7;
    let figure = |pool, which| pool::get_attribute(pool, which).unwrap_or(0);
    let pools = places().into_iter().filter(|place| place.home.device == device).flat_map(|place| place.pools());
    pools.map(|pool| figure(pool, RESERVED).saturating_sub(figure(pool, USED))).sum()
}

/// What a context's pools are and have.
pub struct Struck {
    place: Option<&'static Place>,
    /// There were no pools to be had.
    without: Option<Handle>,
    pages: Vec<(u64, Page)>,
    chunks: Vec<(u64, Page)>,
    mapped: Vec<Stretch>,
    ranges: Vec<Stretch>,
}

/// Strikes out what belongs to a context that ends. Its pools are of no use any more then, and left as they are.
pub fn strike_out(context: Handle) -> Struck {
    let place = known(context);
    PLACES.write().unwrap_or_else(PoisonError::into_inner).retain(|place| place.home.context != context);
    let mut without = lock(&WITHOUT);
    let was = without.contains(&context).then_some(context);
    without.retain(|known| *known != context);
    drop(without);
    let of_it = |page: &Page| page.home.context == context;
    let pages = take_out(&mut PAGES.write().unwrap_or_else(PoisonError::into_inner), of_it);
    let chunks = take_out(&mut lock(&CHUNKS), of_it);
    let taken = |addresses: &Addresses| take_out(&mut lock(addresses), |of: &(usize, Handle)| of.1 == context);
    Struck { place, without: was, pages, chunks, mapped: taken(&MAPPED), ranges: taken(&RANGES) }
}

fn take_out<T: Copy>(map: &mut BTreeMap<u64, T>, which: impl Fn(&T) -> bool) -> Vec<(u64, T)> {
    let taken = map.iter().filter(|(_, value)| which(value)).map(|(&at, &value)| (at, value)).collect();
    map.retain(|_, value| !which(value));
    taken
}

impl Struck {
    /// The context has ended, and its pages with it. What its pools have mapped does not go so: it is given back here.
    pub fn gone(self) {
        if let Some(place) = self.place {
            place.finish_trace();
        }
        self.pages.iter().for_each(|(_, page)| drop_page(page));
        for (at, (bytes, _)) in self.mapped {
            // SAFETY: a mapping of a pool that no one will use any more.
            unsafe { driver::cuMemUnmap(at, bytes) };
        }
        for (chunk, page) in self.chunks {
            // SAFETY: as above, physical memory.
            unsafe { real::cuMemRelease(chunk as _) };
            drop_page(&page);
        }
        for (at, (bytes, _)) in self.ranges {
            // SAFETY: nothing is mapped there any more.
            unsafe { driver::cuMemAddressFree(at, bytes) };
        }
    }

    /// The context has not ended.
    pub fn put_back(self) {
        PLACES.write().unwrap_or_else(PoisonError::into_inner).extend(self.place);
        lock(&WITHOUT).extend(self.without);
        PAGES.write().unwrap_or_else(PoisonError::into_inner).extend(self.pages);
        lock(&CHUNKS).extend(self.chunks);
        lock(&MAPPED).extend(self.mapped);
        lock(&RANGES).extend(self.ranges);
    }
}

/// The place of a context that has one, for calls that order its streams.
pub fn of(context: Handle) -> Option<&'static Place> {
    known(context)
}

/// For the report: each context's device and pools.
pub fn pools() -> Vec<(i32, PoolId)> {
    places()
        .into_iter()
        .flat_map(|place| place.pools().map(|pool| (place.home.device, pool)).collect::<Vec<_>>())
        .collect()
}

/// For the report: blocks that pools served, and synchronises of the context that frees made.
pub fn calls() -> (u64, u64) {
    (SERVED.load(Relaxed), FREE_SYNCHRONISES.load(Relaxed))
}
