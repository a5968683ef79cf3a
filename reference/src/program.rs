//! Random programs: what may be called, what it answers, a generator, and the reference's side of a comparison.
//!
//! Things are named by numbers that the program gives out, so that a program stays meaningful when operations are deleted
//! from it: an operation on something that does not exist is skipped. Destroyed and freed things keep their numbers, to be
//! used again as stale handles.

use crate::{Config, Device, Entry, Failure, Figures, Options, OutOfMemory, StreamFigures};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// A name in a program. Stream 0 is the legacy default stream.
pub type Id = u32;

/// One call.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Op {
    CreateStream {
        id: Id,
        non_blocking: bool,
        lazy: Option<bool>,
    },
    DestroyStream {
        stream: Id,
    },
    Submit {
        stream: Id,
        count: u64,
    },
    Advance {
        stream: Id,
        count: u64,
    },
    SyncStream {
        stream: Id,
    },
    QueryStream {
        stream: Id,
    },
    SyncDevice,
    CreateEvent {
        id: Id,
    },
    DestroyEvent {
        event: Id,
    },
    Record {
        event: Id,
        stream: Id,
    },
    Wait {
        stream: Id,
        event: Id,
    },
    SyncEvent {
        event: Id,
    },
    QueryEvent {
        event: Id,
    },
    CreatePool {
        id: Id,
        config: Config,
    },
    DestroyPool {
        pool: Id,
    },
    Trim {
        pool: Id,
        keep: u64,
    },
    SetAttribute {
        pool: Id,
        attribute: u32,
        value: u64,
    },
    GetAttribute {
        pool: Id,
        attribute: u32,
    },
    /// What the pool's callback does at its first, second, … call, and what it answers; after the last it answers no.
    SetCallback {
        pool: Id,
        script: Vec<(Vec<Op>, bool)>,
    },
    SetCapacity {
        bytes: u64,
    },
    RefusePages {
        skip: u64,
        count: u64,
    },
    RefuseReleases {
        count: u64,
    },
    Alloc {
        id: Id,
        pool: Id,
        size: u64,
        stream: Option<Id>,
        alignment: u64,
    },
    Free {
        block: Id,
        stream: Option<Id>,
    },
    AddUser {
        block: Id,
        stream: Id,
    },
    IsReady {
        block: Id,
    },
    IsReadyOn {
        block: Id,
        stream: Id,
    },
    /// Looks up the block's address plus `offset`.
    Find {
        block: Id,
        offset: u64,
    },
    /// Notes an access of one byte to a live block.
    Access {
        block: Id,
        stream: Id,
        write: bool,
    },
}

/// What a call answered.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Outcome {
    /// It names something that was never made.
    Skipped,
    /// The status by name.
    Failed(String),
    Done,
    Number(u64),
    Flag(bool),
    Block {
        address: u64,
        block_address: u64,
        block_size: u64,
        requested: u64,
        ready_seq: u64,
        entry: u64,
        reason: u64,
    },
    Found {
        block: Option<Id>,
        offset: u64,
    },
    /// The access\'s number, and whether it follows the allocation.
    Access {
        seq: u64,
        follows: bool,
    },
}

/// What a callback was told, and what its calls answered.
pub type Called = (OutOfMemory, Vec<Outcome>);

/// A live block, whether it is ready, and whether it is on each stream.
pub type Ordered = (Id, bool, Vec<(Id, bool)>);

/// Everything that can be seen from outside after a call.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Snapshot {
    /// Reserved bytes, pages granted, pages taken back, pools left.
    pub device: (u64, u64, u64, u64),
    /// Of each stream that is not destroyed.
    pub streams: Vec<(Id, StreamFigures)>,
    /// Of each pool that is not destroyed, with its entries.
    pub pools: Vec<(Id, Figures, Vec<Figures>)>,
    /// For some live blocks.
    pub order: Vec<Ordered>,
    /// Callbacks made during the call.
    pub called: Vec<Called>,
}

/// One of the two that are compared.
pub trait Side {
    /// Makes the call.
    fn apply(&mut self, op: &Op) -> Outcome;
    /// What can be seen now. `blocks`: ask about the order of these.
    fn look(&mut self, blocks: &[Id]) -> Snapshot;
}

/// A program: the device it runs on, and the calls.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Program {
    pub options: Options,
    /// An observer is installed: it changes which paths the core takes, and no answer.
    pub observer: bool,
    pub ops: Vec<Op>,
}

// --- the reference's side

#[derive(Default)]
struct Names {
    streams: HashMap<Id, usize>,
    events: HashMap<Id, usize>,
    pools: HashMap<Id, usize>,
    blocks: HashMap<Id, usize>,
    called: Vec<Called>,
}

/// The reference, driven by programs.
pub struct Reference {
    device: Device,
    names: Rc<RefCell<Names>>,
}

fn status(failure: Failure) -> Outcome {
    Outcome::Failed(format!("{failure:?}"))
}
fn done(answer: Result<(), Failure>) -> Outcome {
    answer.map_or_else(status, |()| Outcome::Done)
}
fn number(answer: Result<u64, Failure>) -> Outcome {
    answer.map_or_else(status, Outcome::Number)
}
fn flag(answer: Result<bool, Failure>) -> Outcome {
    answer.map_or_else(status, Outcome::Flag)
}

impl Reference {
    /// A fresh device.
    pub fn new(options: Options) -> Self {
        let names = Rc::new(RefCell::new(Names::default()));
        names.borrow_mut().streams.insert(0, 0);
        Reference { device: Device::new(options), names }
    }

    /// How many allocations so far were served by a span of several blocks, by reason.
    pub fn spans(&self) -> [u64; 6] {
        self.device.spans()
    }

    /// What Mapped entries and recent blocks came to, a name each time.
    pub fn cases(&self) -> &[&'static str] {
        self.device.cases()
    }

    /// The device is as §5 says.
    pub fn check(&self) {
        self.device.check();
    }

    /// How often policy 2 would have needed a ninth question.
    pub fn ninth_questions(&self) -> u64 {
        self.device.ninth_questions()
    }
}

/// `None`: a name that stands for nothing.
fn apply(device: &mut Device, names: &Rc<RefCell<Names>>, op: &Op) -> Option<Outcome> {
    let stream = |id: &Id| names.borrow().streams.get(id).copied();
    let event = |id: &Id| names.borrow().events.get(id).copied();
    let pool = |id: &Id| names.borrow().pools.get(id).copied();
    let block = |id: &Id| names.borrow().blocks.get(id).copied();
    Some(match op {
        Op::CreateStream { id, non_blocking, lazy } => {
            let new = device.create_stream(*non_blocking, *lazy);
            names.borrow_mut().streams.insert(*id, new);
            Outcome::Done
        }
        Op::DestroyStream { stream: s } => done(device.destroy_stream(stream(s)?)),
        Op::Submit { stream: s, count } => number(device.submit(stream(s)?, *count)),
        Op::Advance { stream: s, count } => number(device.advance(stream(s)?, *count)),
        Op::SyncStream { stream: s } => done(device.synchronise_stream(stream(s)?)),
        Op::QueryStream { stream: s } => flag(device.query_stream(stream(s)?)),
        Op::SyncDevice => {
            device.synchronise_device();
            Outcome::Done
        }
        Op::CreateEvent { id } => {
            let new = device.create_event();
            names.borrow_mut().events.insert(*id, new);
            Outcome::Done
        }
        Op::DestroyEvent { event: e } => done(device.destroy_event(event(e)?)),
        Op::Record { event: e, stream: s } => number(device.record(event(e)?, stream(s)?).map(|point| point.seq)),
        Op::Wait { stream: s, event: e } => done(device.wait(stream(s)?, event(e)?)),
        Op::SyncEvent { event: e } => done(device.synchronise_event(event(e)?)),
        Op::QueryEvent { event: e } => flag(device.query_event(event(e)?)),
        Op::CreatePool { id, config } => match device.create_pool(config) {
            Ok(new) => {
                names.borrow_mut().pools.insert(*id, new);
                Outcome::Done
            }
            Err(failure) => status(failure),
        },
        Op::DestroyPool { pool: p } => done(device.destroy_pool(pool(p)?)),
        Op::Trim { pool: p, keep } => done(device.trim_to(pool(p)?, *keep)),
        Op::SetAttribute { pool: p, attribute, value } => done(device.set_attribute(pool(p)?, *attribute, *value)),
        Op::GetAttribute { pool: p, attribute } => number(device.attribute(pool(p)?, *attribute)),
        Op::SetCallback { pool: p, script } => {
            let (names, script) = (names.clone(), RefCell::new(script.clone()));
            done(device.set_callback(pool(p)?, move |device, told| {
                let (ops, again) =
                    if script.borrow().is_empty() { (Vec::new(), false) } else { script.borrow_mut().remove(0) };
                let answers = ops.iter().map(|op| apply(device, &names, op).unwrap_or(Outcome::Skipped)).collect();
                names.borrow_mut().called.push((*told, answers));
                again
            }))
        }
        Op::SetCapacity { bytes } => {
            device.set_capacity(*bytes);
            Outcome::Done
        }
        Op::RefusePages { skip, count } => {
            device.refuse_pages(*skip, *count);
            Outcome::Done
        }
        Op::RefuseReleases { count } => {
            device.refuse_releases(*count);
            Outcome::Done
        }
        Op::Alloc { id, pool: p, size, stream: s, alignment } => {
            let on = match s {
                Some(s) => Some(stream(s)?),
                None => None,
            };
            match device.alloc(pool(p)?, *size, on, *alignment) {
                Ok(new) => {
                    names.borrow_mut().blocks.insert(*id, new);
                    match device.allocation(new) {
                        Ok(a) => Outcome::Block {
                            address: a.address,
                            block_address: a.block_address,
                            block_size: a.block_size,
                            requested: a.requested,
                            ready_seq: a.ready_seq,
                            entry: a.entry as u64,
                            reason: a.reason as u64,
                        },
                        Err(failure) => status(failure),
                    }
                }
                Err(failure) => status(failure),
            }
        }
        Op::Free { block: b, stream: s } => {
            let on = match s {
                Some(s) => Some(stream(s)?),
                None => None,
            };
            done(device.free(block(b)?, on))
        }
        Op::AddUser { block: b, stream: s } => done(device.add_user(block(b)?, stream(s)?)),
        Op::IsReady { block: b } => flag(device.is_ready(block(b)?)),
        Op::IsReadyOn { block: b, stream: s } => flag(device.is_ready_on(block(b)?, stream(s)?)),
        Op::Access { block: b, stream: s, .. } => match device.access(block(b)?, stream(s)?) {
            Ok((seq, follows)) => Outcome::Access { seq, follows },
            Err(Failure::Freed) => return None,
            Err(failure) => status(failure),
        },
        Op::Find { block: b, offset } => {
            let address = device.address_given(block(b)?);
            match device.find(address + offset) {
                Ok((found, offset)) => {
                    let name = names.borrow().blocks.iter().find(|(_, at)| **at == found).map(|(id, _)| *id);
                    Outcome::Found { block: name, offset }
                }
                Err(failure) => status(failure),
            }
        }
    })
}

impl Side for Reference {
    fn apply(&mut self, op: &Op) -> Outcome {
        apply(&mut self.device, &self.names, op).unwrap_or(Outcome::Skipped)
    }

    fn look(&mut self, blocks: &[Id]) -> Snapshot {
        let called = std::mem::take(&mut self.names.borrow_mut().called);
        let names = self.names.borrow();
        let (page_allocs, page_frees) = self.device.page_calls();
        let mut look = Snapshot {
            device: (self.device.reserved(), page_allocs, page_frees, self.device.pools_left() as u64),
            called,
            ..Snapshot::default()
        };
        for (&id, &at) in &names.streams {
            if let Ok(figures) = self.device.stream_figures(at) {
                look.streams.push((id, figures));
            }
        }
        for (&id, &at) in &names.pools {
            if let Ok((pool, entries)) = self.device.figures(at) {
                look.pools.push((id, pool, entries));
            }
        }
        look.streams.sort_by_key(|(id, _)| *id);
        look.pools.sort_by_key(|(id, ..)| *id);
        for id in blocks {
            let Some(&at) = names.blocks.get(id) else { continue };
            let Ok(ready) = self.device.is_ready(at) else { continue };
            let on = |&(stream, _): &(Id, _)| {
                Some((stream, self.device.is_ready_on(at, *names.streams.get(&stream)?).ok()?))
            };
            look.order.push((*id, ready, look.streams.iter().filter_map(on).collect()));
        }
        look
    }
}

// --- the generator

/// A small deterministic source of randomness (splitmix64).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The same numbers for the same seed.
    pub fn new(seed: u64) -> Self {
        Dice(seed)
    }
    /// Any number.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.roll() % n.max(1)
    }
    /// True `percent` times in a hundred.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize].clone()
    }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// What the generator knows of the program so far.
struct Plan {
    dice: Dice,
    next: Id,
    streams: Vec<Id>,
    events: Vec<Id>,
    pools: Vec<Id>,
    /// The live ones; the freed are kept in `stale`.
    blocks: Vec<Id>,
    stale: Vec<Id>,
    cuda: bool,
    /// A long program with large pages, that rarely synchronises or fails.
    large: bool,
    /// Percent of calls on a stream that are on the legacy one.
    legacy: u64,
    /// Percent of calls that destroy a stream or make one.
    churn: u64,
    /// Most sizes are up to this many times 512.
    size_units: u64,
    /// Of a program about chunks that move: their size.
    chunk: Option<u64>,
    /// The stream that all allocations and frees are on.
    only: Option<Id>,
}

impl Plan {
    fn id(&mut self) -> Id {
        self.next += 1;
        self.next
    }

    fn size(&mut self) -> u64 {
        let units = self.size_units;
        if let Some(chunk) = self.chunk
            && self.dice.chance(80)
        {
            return self.parts(chunk, 12);
        }
        if self.cuda && self.dice.chance(50) {
            return self.dice.pick(&[
                MIB,
                4 * MIB,
                8 * MIB,
                12 * MIB,
                16 * MIB,
                24 * MIB,
                31 * MIB,
                32 * MIB,
                33 * MIB,
            ]);
        }
        match self.dice.below(100) {
            0..3 => 0,
            3..6 => 1,
            6..30 => self.dice.below(512 * units) + 1,
            30..97 => (self.dice.below(units) + 1) * 512,
            97 => self.dice.pick(&[1 << 40, (1 << 40) + 1]),
            98 => self.dice.pick(&[u64::MAX, u64::MAX - 511, u64::MAX - 512, 1 << 48, (1 << 47) + 1]),
            _ => 64 * KIB,
        }
    }

    /// Up to so many quarters of a chunk, most of them whole chunks.
    fn parts(&mut self, chunk: u64, quarters: u64) -> u64 {
        let quarters = 1 + self.dice.below(quarters);
        if self.dice.chance(50) { quarters.next_multiple_of(4) * chunk / 4 } else { quarters * chunk / 4 }
    }

    fn mapped(&mut self) -> Entry {
        if let Some(chunk) = self.chunk {
            return Entry::Mapped {
                range_size: chunk * self.dice.pick(&[3, 12, 24, 40, 100, 400]),
                chunk_size: chunk,
                max_pool_size: self.dice.pick(&[None, None, Some(12 * chunk), Some(20 * chunk), Some(30 * chunk)]),
                dealloc_period: if self.dice.chance(10) { Some(self.dice.below(12)) } else { None },
            };
        }
        let sizes = if self.large { [64 * KIB, 64 * KIB, 256 * KIB, 128 * KIB] } else { [512, 512, 4096, 12 * KIB] };
        let chunk_size = self.dice.pick(&sizes);
        Entry::Mapped {
            range_size: chunk_size * self.dice.pick(&[1, 3, 6, 40, 400]),
            chunk_size,
            // (A cap makes an entry of few chunks move some: without one it may hold eight more than it uses.)
            max_pool_size: self.dice.pick(&[None, None, Some(12 * chunk_size), Some(20 * chunk_size), Some(64 * KIB)]),
            dealloc_period: if self.dice.chance(20) { Some(self.dice.below(12)) } else { None },
        }
    }

    fn entry(&mut self) -> Entry {
        let sizes = if self.large { [64 * KIB, 256 * KIB, MIB, 40000] } else { [4096, 8192, 6144, 16384] };
        let page_size = if self.dice.chance(5) { 5000 } else { self.dice.pick(&sizes) };
        let period = if self.dice.chance(20) { Some(self.dice.below(12)) } else { None };
        match self.dice.below(130) {
            100.. => self.mapped(),
            0..20 => Entry::Exclusive {
                max_alloc_size: self.dice.pick(&[0, 1000, 4096, 8192, u64::MAX, u64::MAX]),
                dealloc_period: period,
            },
            20..35 => {
                Entry::Direct { reclaim_at: self.dice.pick(&[None, Some(0), Some(8192), Some(12 * KIB), Some(65536)]) }
            }
            _ => Entry::Sliced {
                page_size,
                max_slice_size: self.dice.pick(&[None, None, Some(2048), Some(page_size), Some(1000)]),
                max_pool_size: self.dice.pick(&[
                    None,
                    Some(page_size + 511),
                    Some(page_size * 2),
                    Some(page_size * 3 + 1),
                ]),
                dealloc_period: period,
            },
        }
    }

    fn config(&mut self) -> Config {
        let entries = if self.cuda {
            vec![Entry::Cuda {
                max_pool_size: self.dice.pick(&[None, None, Some(MIB), Some(64 * MIB), Some(65 * MIB)]),
            }]
        } else if self.dice.chance(3) {
            vec![self.broken_entry()]
        } else if self.dice.chance(if self.chunk.is_some() { 90 } else { 30 }) {
            vec![self.mapped()]
        } else {
            let mut entries: Vec<Entry> = (0..1 + self.dice.below(3)).map(|_| self.entry()).collect();
            if self.dice.chance(4) {
                entries.push(Entry::Cuda { max_pool_size: Some(32 * MIB) });
            }
            entries
        };
        let on = |dice: &mut Dice| dice.chance(75);
        Config {
            policy_1: on(&mut self.dice),
            policy_2: on(&mut self.dice),
            policy_3: on(&mut self.dice),
            release_threshold: if self.cuda {
                self.dice.pick(&[0, 0, 32 * MIB, u64::MAX])
            } else {
                self.dice.pick(&[u64::MAX, u64::MAX, u64::MAX, 0, 8192])
            },
            sync_on_oom: self.dice.chance(15),
            entries,
        }
    }

    fn broken_entry(&mut self) -> Entry {
        let sliced = |page_size, max_slice_size, max_pool_size| Entry::Sliced {
            page_size,
            max_slice_size,
            max_pool_size,
            dealloc_period: None,
        };
        let mapped = |range_size, chunk_size, max_pool_size| Entry::Mapped {
            range_size,
            chunk_size,
            max_pool_size,
            dealloc_period: None,
        };
        self.dice.pick(&[
            sliced(0, None, None),
            sliced(4096, Some(0), None),
            sliced(4096, None, Some(0)),
            sliced(4096, Some(4097), None),
            sliced(4096, None, Some(4095)),
            sliced(u64::MAX, None, None),
            Entry::Exclusive { max_alloc_size: u64::MAX - 1, dealloc_period: None },
            Entry::Cuda { max_pool_size: Some(0) },
            Entry::Cuda { max_pool_size: Some(u64::MAX) },
            mapped(0, 4096, None),
            mapped(4096, 0, None),
            mapped(4096, 4096, Some(0)),
            mapped(4096, 4096, Some(511)),
            mapped(u64::MAX, 4096, None),
            mapped((1 << 47) + 1, 4096, None),
            mapped(4096, (1 << 47) + 1, None),
        ])
    }

    fn stream(&mut self) -> Id {
        if self.dice.chance(self.legacy) { 0 } else { self.dice.pick(&self.streams.clone()) }
    }

    /// What an allocation or a free is ordered by.
    fn order(&mut self) -> Option<Id> {
        match self.only {
            Some(only) => Some(only),
            None if self.dice.chance(7) => None,
            None => Some(self.stream()),
        }
    }

    fn block(&mut self) -> Id {
        if self.blocks.is_empty() || (!self.stale.is_empty() && self.dice.chance(3)) {
            return if self.stale.is_empty() { 0 } else { self.dice.pick(&self.stale.clone()) };
        }
        let at = self.dice.below(self.blocks.len() as u64) as usize;
        self.blocks[at]
    }

    fn free(&mut self) -> Op {
        Op::Free { block: self.block(), stream: self.order() }
    }

    /// What a callback may do.
    fn calm(&mut self) -> Op {
        match self.dice.below(9) {
            // Someone pulls the carpet away while the allocation is under way.
            8 if self.dice.chance(10) => Op::DestroyPool { pool: self.dice.pick(&self.pools.clone()) },
            8 if self.dice.chance(10) => Op::DestroyStream { stream: self.stream() },
            0..4 | 8 => self.free(),
            4 => Op::Trim { pool: self.dice.pick(&self.pools.clone()), keep: 0 },
            5 => Op::SyncStream { stream: self.stream() },
            6 => Op::Advance { stream: self.stream(), count: 3 },
            _ => Op::Alloc {
                id: self.id(),
                pool: self.dice.pick(&self.pools.clone()),
                size: 512,
                stream: self.only.or(Some(self.stream())),
                alignment: 0,
            },
        }
    }

    fn stream_made(&mut self) -> Op {
        let id = self.id();
        self.streams.push(id);
        Op::CreateStream { id, non_blocking: self.dice.chance(40), lazy: self.laziness() }
    }

    fn step(&mut self) -> Op {
        let pool = self.dice.pick(&self.pools.clone());
        let event = self.dice.pick(&self.events.clone());
        if self.churn > 0 && self.dice.chance(self.churn) {
            return if self.streams.len() > 1 && self.dice.chance(50) {
                Op::DestroyStream { stream: self.stream() }
            } else {
                self.stream_made()
            };
        }
        match self.dice.below(1000) {
            0..330 => Op::Alloc {
                id: self.id(),
                pool,
                size: self.size(),
                stream: self.order(),
                alignment: if self.dice.chance(92) { 0 } else { self.dice.pick(&[1, 512, 1024, 2048, 4096, 3, 8192]) },
            },
            330..600 => self.free(),
            600..630 => Op::AddUser { block: self.block(), stream: self.stream() },
            630..690 => Op::Submit { stream: self.stream(), count: 1 + self.dice.below(3) },
            690..750 => Op::Advance { stream: self.stream(), count: 1 + self.dice.below(6) },
            750..790 => Op::Record { event, stream: self.stream() },
            790..840 => Op::Wait { stream: self.stream(), event },
            840..855 => Op::SyncEvent { event },
            855..880 => Op::SyncStream { stream: self.stream() },
            880..885 => Op::SyncDevice,
            885..895 => Op::Trim { pool, keep: self.dice.pick(&[0, 0, 1, 4096, 10000, u64::MAX]) },
            895..915 => Op::SetAttribute { pool, attribute: 1 + self.dice.below(3) as u32, value: self.dice.below(2) },
            915..922 => Op::SetAttribute {
                pool,
                attribute: self.dice.pick(&[4, 4, 4, 5, 6, 7, 8, 9, 16, 1]),
                value: self.dice.pick(&[0, 0, 0, 8192, u64::MAX]),
            },
            922..926 => Op::GetAttribute { pool, attribute: self.dice.below(10) as u32 },
            926..932 => Op::SetCapacity { bytes: self.dice.pick(&[1, 8192, 32 * KIB, 96 * MIB, u64::MAX, u64::MAX]) },
            932..942 => Op::RefusePages { skip: self.dice.below(3), count: 1 + self.dice.below(3) },
            942..950 => Op::RefuseReleases { count: self.dice.below(3) },
            950..956 => {
                let mut script = Vec::new();
                for _ in 0..self.dice.below(4) {
                    let ops = (0..self.dice.below(4)).map(|_| self.calm()).collect();
                    script.push((ops, self.dice.chance(80)));
                }
                Op::SetCallback { pool, script }
            }
            956..962 => self.stream_made(),
            962..966 => Op::DestroyStream { stream: self.stream() },
            966..968 => Op::DestroyEvent { event },
            968..972 => {
                let id = self.id();
                self.events.push(id);
                Op::CreateEvent { id }
            }
            972..974 => {
                let id = self.id();
                self.pools.push(id);
                Op::CreatePool { id, config: self.config() }
            }
            974..976 => Op::DestroyPool { pool },
            976..980 => Op::QueryStream { stream: self.stream() },
            980..984 => Op::QueryEvent { event },
            984..988 => Op::IsReady { block: self.block() },
            992..997 => Op::Access { block: self.block(), stream: self.stream(), write: self.dice.chance(50) },
            988..992 => Op::IsReadyOn { block: self.block(), stream: self.stream() },
            _ => Op::Find { block: self.block(), offset: self.dice.pick(&[0, 0, 1, 511, 512, 4095, 4096]) },
        }
    }

    /// One call, or a few that belong together.
    fn move_on(&mut self) -> Vec<Op> {
        if let Some(chunk) = self.chunk
            && (self.only.is_some() || self.dice.chance(50))
            && self.dice.chance(15)
        {
            return self.phases(chunk);
        }
        if self.only.is_some() {
            return vec![self.step()];
        }
        if !self.dice.chance(6) || self.blocks.is_empty() {
            let step = self.step();
            let drastic = matches!(
                step,
                Op::SyncDevice
                    | Op::SyncStream { .. }
                    | Op::SetCapacity { .. }
                    | Op::RefusePages { .. }
                    | Op::DestroyPool { .. }
                    | Op::DestroyStream { .. }
                    | Op::Trim { .. }
            );
            let instead = self.large && drastic && self.dice.chance(85);
            return vec![if instead { Op::Submit { stream: self.stream(), count: 1 } } else { step }];
        }
        // A free, and another stream ordered after it (directly, or through a third) or not quite.
        let (from, over, to) = (self.stream(), self.stream(), self.stream());
        let (first, second) = (self.dice.pick(&self.events.clone()), self.dice.pick(&self.events.clone()));
        let mut ops = vec![Op::Record { event: first, stream: from }, Op::Wait { stream: to, event: first }];
        if self.dice.chance(40) {
            ops[1] = Op::Wait { stream: over, event: first };
            ops.push(Op::Record { event: second, stream: over });
            ops.push(Op::Wait { stream: to, event: second });
        }
        let at = if self.dice.chance(80) { 0 } else { 1 };
        for _ in 0..1 + self.dice.below(2) {
            let block = self.block();
            ops.insert(at, Op::Free { block, stream: Some(from) });
        }
        for _ in 0..1 + self.dice.below(2) {
            let id = self.id();
            let pool = self.dice.pick(&self.pools.clone());
            ops.push(Op::Alloc { id, pool, size: self.size(), stream: Some(to), alignment: 0 });
        }
        ops
    }

    /// Another stream goes on: ordered after this one by an event, or after what has executed.
    fn hand_over(&mut self, stream: &mut Id) -> Vec<Op> {
        let (from, event) = (*stream, self.dice.pick(&self.events.clone()));
        *stream = self.stream();
        if self.dice.chance(50) {
            vec![Op::Record { event, stream: from }, Op::Wait { stream: *stream, event }]
        } else {
            vec![Op::Advance { stream: from, count: 1000 }]
        }
    }

    /// A few times the same: blocks come, every other goes, larger ones come that fit between no two, and all or most go.
    fn phases(&mut self, chunk: u64) -> Vec<Op> {
        let pool = self.dice.pick(&self.pools.clone());
        let mut stream = self.only.unwrap_or(self.stream());
        let free = |blocks: &[Id], stream| -> Vec<Op> {
            blocks.iter().map(|&block| Op::Free { block, stream: Some(stream) }).collect()
        };
        let mut ops = Vec::new();
        if self.dice.chance(70) {
            ops.extend(free(&self.blocks.clone(), stream));
        }
        // Now and then more pauses than an entry makes.
        let (rounds, count) =
            if self.dice.chance(3) { (70, 2) } else { (1 + self.dice.below(4), 3 + self.dice.below(14)) };
        let whole = self.dice.chance(30);
        let small: Vec<u64> = (0..count).map(|_| if whole { chunk } else { self.parts(chunk, 8) }).collect();
        let large: Vec<u64> = (0..1 + self.dice.below(3)).map(|_| self.parts(chunk, 40)).collect();
        let huge = self.dice.chance(60);
        let (between, after) = (self.dice.below(10), self.dice.below(12));
        for _ in 0..rounds {
            let mut live = Vec::new();
            for &size in &small {
                live.push(self.id());
                let id = self.next;
                ops.push(Op::Alloc { id, pool, size, stream: Some(stream), alignment: 0 });
            }
            if count > 2 {
                let going: Vec<Id> = live.iter().copied().step_by(2).collect();
                live.retain(|id| !going.contains(id));
                ops.extend(free(&going, stream));
                match between {
                    // What is free goes back: nothing is mapped between what is live.
                    9 => {
                        ops.push(Op::SyncStream { stream });
                        ops.push(Op::Trim { pool, keep: 0 });
                    }
                    0 => ops.push(Op::SyncStream { stream }),
                    1 => ops.push(Op::Advance { stream, count: 1 + self.dice.below(40) }),
                    2..6 if self.only.is_none() => ops.extend(self.hand_over(&mut stream)),
                    _ => {}
                }
                for &size in &large {
                    live.push(self.id());
                    let id = self.next;
                    ops.push(Op::Alloc { id, pool, size, stream: Some(stream), alignment: 0 });
                }
            }
            // One that fits only where others, which were moved, were and are.
            if huge && live.len() > 2 {
                let stays = match self.dice.below(3) {
                    0 => vec![live[0]],
                    1 => vec![live[0], live[live.len() - 1]],
                    _ => vec![self.dice.pick(&live)],
                };
                live.retain(|id| !stays.contains(id));
                ops.extend(free(&live, stream));
                live = stays;
                let step = self.dice.below(3) + 1;
                for of_small in 3..9 {
                    if self.only.is_none() && self.dice.chance(50) {
                        ops.extend(self.hand_over(&mut stream));
                    }
                    let (id, size) = (self.id(), small.iter().sum::<u64>() * (of_small * step + 1) / 12);
                    ops.push(Op::Alloc { id, pool, size, stream: Some(stream), alignment: 0 });
                    if self.dice.chance(80) {
                        ops.push(Op::Free { block: id, stream: Some(stream) });
                    } else {
                        live.push(id);
                    }
                }
            }
            let first = self.dice.below(live.len() as u64) as usize;
            live.rotate_left(first);
            if after == 0 {
                ops.push(Op::SyncStream { stream });
            }
            let left = if after == 1 { live.pop() } else { None };
            ops.extend(free(&live, stream));
            match after {
                2..4 => ops.push(Op::SyncStream { stream }),
                4 => ops.push(Op::SyncDevice),
                5 => ops.push(Op::SyncEvent { event: self.dice.pick(&self.events.clone()) }),
                _ => {}
            }
            ops.extend(free(&left.into_iter().collect::<Vec<Id>>(), stream));
        }
        ops
    }

    /// Keeps what exists apart from what is gone or never came.
    fn came_of(&mut self, op: &Op, outcome: &Outcome) {
        match (op, outcome) {
            (Op::Alloc { id, .. }, Outcome::Block { .. }) => self.blocks.push(*id),
            (Op::Free { block, .. }, Outcome::Done) => {
                self.blocks.retain(|other| other != block);
                self.stale.push(*block);
            }
            // Now and then a destroyed one is kept, to be a stale handle.
            (Op::DestroyStream { stream }, Outcome::Done) if self.streams.len() > 1 && self.dice.chance(80) => {
                self.streams.retain(|other| other != stream);
            }
            (Op::DestroyPool { pool } | Op::CreatePool { id: pool, .. }, Outcome::Done | Outcome::Failed(_)) => {
                let gone = !matches!((op, outcome), (Op::CreatePool { .. }, Outcome::Done));
                if gone && self.pools.len() > 1 && self.dice.chance(80) {
                    self.pools.retain(|other| other != pool);
                }
            }
            _ => {}
        }
    }

    fn laziness(&mut self) -> Option<bool> {
        self.dice.pick(&[None, None, Some(true), Some(false)])
    }
}

/// The sizes of [`Program::many_recent`].
fn some_size(dice: &mut Dice, alike: bool) -> u64 {
    // A hundred that are alike where a unit is 16 bytes, or a few.
    if alike && dice.chance(90) {
        return 64 * KIB + dice.below(100) * 16;
    }
    dice.pick(&[512, 512, 1024, 1024, 1536, 4096, 6 * KIB, 20 * KIB])
}

impl Program {
    /// A program in which streams have more recent blocks than they may keep: thousands of calls, most of them allocations
    /// and frees in bursts.
    pub fn many_recent(seed: u64) -> Program {
        let mut dice = Dice::new(seed);
        let alike = dice.chance(50);
        let alignment = if alike { 16 } else { 512 };
        let options = Options { alignment, granularity: 4096, capacity: u64::MAX, lazy: true, addresses: 1 << 52 };
        let sliced = Entry::Sliced { page_size: MIB, max_slice_size: None, max_pool_size: None, dealloc_period: None };
        let mapped = Entry::Mapped { range_size: 1 << 30, chunk_size: MIB, max_pool_size: None, dealloc_period: None };
        let config = Config {
            entries: vec![dice.pick(&[sliced, mapped.clone(), mapped, Entry::Cuda { max_pool_size: None }])],
            policy_1: true,
            policy_2: dice.chance(50),
            policy_3: true,
            release_threshold: u64::MAX,
            sync_on_oom: false,
        };
        let mut ops = vec![
            Op::CreateStream { id: 1, non_blocking: false, lazy: None },
            Op::CreateStream { id: 2, non_blocking: true, lazy: None },
            Op::CreateEvent { id: 3 },
            Op::CreatePool { id: 4, config },
        ];
        let mut next = 4;
        let mut live: Vec<(Id, Id)> = Vec::new();
        let mut first = true;
        while ops.len() < 16_000 {
            let stream = if dice.chance(80) { 1 } else { 2 };
            let count = if first { 5000 } else { 1 + dice.below(1500) };
            match if first { 0 } else { dice.below(10) } {
                0..3 => {
                    for _ in 0..count {
                        next += 1;
                        let size = some_size(&mut dice, alike);
                        ops.push(Op::Alloc { id: next, pool: 4, size, stream: Some(stream), alignment: 0 });
                        live.push((next, stream));
                    }
                }
                3..6 => {
                    let order = dice.below(3);
                    for _ in 0..(3 * count).min(live.len() as u64) {
                        let at = match order {
                            0 => 0,
                            1 => live.len() as u64 - 1,
                            _ => dice.below(live.len() as u64),
                        };
                        let (block, stream) = live.remove(at as usize);
                        let other = dice.chance(1);
                        ops.push(Op::Free { block, stream: Some(if other { 3 - stream } else { stream }) });
                    }
                }
                6..9 => {
                    for _ in 0..count {
                        if dice.chance(50) && !live.is_empty() {
                            let (block, stream) = live.remove(dice.below(live.len() as u64) as usize);
                            ops.push(Op::Free { block, stream: Some(stream) });
                        } else {
                            next += 1;
                            let size = some_size(&mut dice, alike);
                            ops.push(Op::Alloc { id: next, pool: 4, size, stream: Some(stream), alignment: 0 });
                            live.push((next, stream));
                        }
                    }
                }
                _ => ops.push(match dice.below(5) {
                    0 => Op::Advance { stream, count: 1000 },
                    1 => Op::SyncStream { stream },
                    2 => Op::Record { event: 3, stream },
                    3 => Op::Wait { stream, event: 3 },
                    _ => Op::Trim { pool: 4, keep: 8 * MIB },
                }),
            }
            if first {
                // More than may be kept, at once.
                ops.extend(live.drain(..4800).map(|(block, stream)| Op::Free { block, stream: Some(stream) }));
                first = false;
            }
        }
        Program { options, observer: dice.chance(30), ops }
    }

    /// A program in which a Mapped entry often lacks a few chunks: it does nearly the same in each of a few rounds, between
    /// which nothing is live.
    pub fn tight(seed: u64) -> Program {
        const CHUNK: u64 = 4096;
        let mut dice = Dice::new(seed);
        let options = Options {
            alignment: 512,
            granularity: CHUNK,
            capacity: u64::MAX,
            lazy: dice.chance(50),
            addresses: 1 << 52,
        };
        let max_pool_size = if dice.chance(15) { Some(1100 * CHUNK) } else { None };
        let range_size = dice.pick(&[4096, 4096, 1024, 900]) * CHUNK;
        let dealloc_period = if dice.chance(10) { Some(20 + dice.below(400)) } else { None };
        let mixed = dice.chance(20);
        let mapped = Entry::Mapped { range_size, chunk_size: CHUNK, max_pool_size, dealloc_period };
        // What the first entry serves are the pool's allocations, too.
        let sliced = Entry::Sliced {
            page_size: 16 * CHUNK,
            max_slice_size: Some(512),
            max_pool_size: None,
            dealloc_period: None,
        };
        let config = Config {
            entries: if mixed { vec![sliced, mapped] } else { vec![mapped] },
            policy_1: true,
            policy_2: dice.chance(50),
            policy_3: dice.chance(50),
            release_threshold: u64::MAX,
            sync_on_oom: false,
        };
        let mut ops = vec![
            Op::CreateStream { id: 1, non_blocking: false, lazy: None },
            Op::CreateStream { id: 2, non_blocking: true, lazy: None },
            Op::CreatePool { id: 3, config },
        ];
        let mut next = 3;
        let several = dice.chance(15);
        // The larger, the fewer chunks are few.
        let most = dice.pick(&[100, 800, 900, 900]);
        let count = 100 + dice.below(100);
        // Where a small one was, there is a whole chunk.
        let whole = dice.chance(60);
        let parts = |dice: &mut Dice| if whole { 8 } else { 12 + dice.below(6) };
        let small: Vec<u64> = (0..count).map(|_| parts(&mut dice) * CHUNK / 8).collect();
        let large: Vec<u64> = (0..count / 3).map(|_| (16 + dice.below(12)) * CHUNK / 8).collect();
        let rounds = 2 + dice.below(3);
        for round in 0..rounds {
            let mut live: Vec<Id> = Vec::new();
            let mut alloc = |ops: &mut Vec<Op>, size: u64, stream: Id| {
                next += 1;
                ops.push(Op::Alloc { id: next, pool: 3, size, stream: Some(stream), alignment: 0 });
                next
            };
            // Lives as long as the round.
            let weights = alloc(&mut ops, most * CHUNK, 1);
            for &size in &small {
                live.push(alloc(&mut ops, size, 1));
            }
            let (mut odd, mut stay) = (true, Vec::new());
            for block in live.drain(..) {
                match odd {
                    true => ops.push(Op::Free { block, stream: Some(1) }),
                    false => stay.push(block),
                }
                odd = !odd;
            }
            for &size in &large {
                stay.push(alloc(&mut ops, size, 1));
                if dice.chance(5) {
                    let size = (most / 64 + dice.below(8)) * CHUNK;
                    stay.push(alloc(&mut ops, size, 1));
                }
                if mixed && dice.chance(50) {
                    let block = alloc(&mut ops, 512, 1);
                    ops.push(Op::Free { block, stream: Some(1) });
                }
                if dice.chance(1) {
                    ops.push(Op::Trim { pool: 3, keep: dice.below(most) * CHUNK });
                }
                while dice.chance(10) && !stay.is_empty() {
                    let block = stay.swap_remove(dice.below(stay.len() as u64) as usize);
                    ops.push(Op::Free { block, stream: Some(1) });
                }
            }
            if several && round + 1 == rounds {
                stay.push(alloc(&mut ops, 3 * CHUNK, 2));
            }
            if dice.chance(10) {
                ops.push(Op::SyncStream { stream: 1 });
            }
            if dice.chance(15) {
                // The mark of used bytes is lowered, or what is idle goes back.
                ops.push(match dice.chance(50) {
                    true => Op::SetAttribute { pool: 3, attribute: 8, value: 0 },
                    false => Op::Trim { pool: 3, keep: 0 },
                });
            }
            // Some of it is too large to become recent.
            for _ in 0..dice.below(12) {
                let size = (1 + dice.below(2 + most / 32)) * CHUNK;
                let block = alloc(&mut ops, size, 1);
                match dice.chance(80) {
                    true => ops.push(Op::Free { block, stream: Some(1) }),
                    false => stay.push(block),
                }
            }
            stay.push(weights);
            if round + 1 == rounds && dice.chance(10) {
                ops.push(Op::DestroyPool { pool: 3 });
            }
            ops.extend(stay.iter().map(|&block| Op::Free { block, stream: Some(1) }));
        }
        Program { options, observer: dice.chance(30), ops }
    }

    /// The program of a seed: about `length` calls at most; now and then eight times as many.
    pub fn random(seed: u64, length: u64) -> Program {
        let mut dice = Dice::new(seed);
        let cuda = dice.chance(15);
        let options = Options {
            alignment: dice.pick(&[512, 512, 512, 16, 256]),
            granularity: dice.pick(&[4096, 4096, 4096, 512, 16384]),
            capacity: dice.pick(&[u64::MAX, u64::MAX, 24 * KIB, 64 * KIB]),
            lazy: dice.chance(70),
            addresses: 1 << 52,
        };
        let options = if cuda { Options { capacity: dice.pick(&[u64::MAX, 96 * MIB]), ..options } } else { options };
        // Now and then a long program with large pages, so that lists are long too.
        let large = !cuda && dice.chance(2);
        let (options, length) =
            if large { (Options { capacity: u64::MAX, ..options }, length * 8) } else { (options, length) };
        // Now and then a program whose chunks come to serve elsewhere, and go home.
        let chunk = if !cuda && !large && dice.chance(25) { Some(options.granularity) } else { None };
        let options = match chunk {
            Some(chunk) => Options { capacity: dice.pick(&[u64::MAX, u64::MAX, 25 * chunk, 60 * chunk]), ..options },
            None => options,
        };
        let length = if chunk.is_some() { length * 2 } else { length };
        // Now and then so few addresses that released ones are given out again, or none are left.
        let few = match chunk {
            Some(chunk) => chunk * dice.pick(&[60, 250, 900]),
            None if cuda => MIB * dice.pick(&[64, 160, 512]),
            None => (32 * KIB).max(4 * options.granularity) * dice.pick(&[1, 3, 8, 40]),
        };
        let options = if dice.chance(15) { Options { addresses: few, ..options } } else { options };
        let size_units = if large { dice.pick(&[4, 16, 60]) } else { dice.pick(&[4, 8, 8, 12]) };
        let legacy = dice.pick(&[0, 6, 6, 35]);
        // Now and then streams come and go, each in the place of another.
        let churn = dice.pick(&[0, 0, 0, 6]);
        let mut plan = Plan {
            dice,
            next: 0,
            streams: Vec::new(),
            events: Vec::new(),
            pools: Vec::new(),
            blocks: Vec::new(),
            stale: Vec::new(),
            cuda,
            large,
            legacy,
            churn,
            size_units,
            chunk,
            only: None,
        };
        let mut ops = Vec::new();
        // Now and then more streams than policy 2 may ask about.
        let streams = plan.dice.pick(&[1, 2, 2, 3, 3, 4, 6, 11]);
        for _ in 0..streams {
            let id = plan.id();
            plan.streams.push(id);
            ops.push(Op::CreateStream { id, non_blocking: plan.dice.chance(30), lazy: plan.laziness() });
        }
        if plan.chunk.is_some() && plan.dice.chance(50) {
            plan.only = Some(plan.stream());
        }
        for _ in 0..2 {
            let id = plan.id();
            plan.events.push(id);
            ops.push(Op::CreateEvent { id });
        }
        for _ in 0..plan.dice.pick(&[1, 1, 1, 2, 3]) {
            let id = plan.id();
            plan.pools.push(id);
            ops.push(Op::CreatePool { id, config: plan.config() });
        }
        // The reference runs along, so that the plan knows what came of it and does not go on with what is not there.
        let mut reference = Reference::new(options);
        ops.iter().for_each(|op| plan.came_of(op, &reference.apply(op)));
        let length = length / 4 + plan.dice.below(length * 3 / 4 + 1);
        while (ops.len() as u64) < length {
            for op in plan.move_on() {
                plan.came_of(&op, &reference.apply(&op));
                ops.push(op);
            }
        }
        Program { options, observer: plan.dice.chance(30), ops }
    }
}
