//! The observer: sees every call of a device that changes state, and every outside answer that mattered, in true order.
//!
//! While an observer is installed the device's calls are serialised by one lock, so the order it sees is the order in
//! which things happened. It is called inside that lock and must not call back.

use super::config::PoolConfig;
use crate::error::Status;
use crate::handle::{AllocationId, EventId, PoolId};
use crate::order::StreamOrderId;

/// What a successful allocation came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocDone {
    /// Its handle.
    pub allocation: AllocationId,
    /// Its model address.
    pub address: u64,
    /// Bytes of its block.
    pub block_size: u64,
    /// Index of the entry that served it.
    pub entry: u32,
    /// Why the block could be used.
    pub reason: super::Reason,
    /// Its sequence number on its stream; 0 in host order.
    pub ready_seq: u64,
}

/// One thing that happened. Calls are reported when they begin unless a result is part of the event.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the variants and fields are the calls and their arguments
pub enum Event<'a> {
    StreamCreate {
        id: StreamOrderId,
        non_blocking: bool,
        lazy: bool,
    },
    TimelineCreate {
        id: StreamOrderId,
    },
    StreamRelease {
        id: StreamOrderId,
    },
    EventCreate {
        event: EventId,
    },
    EventDestroy {
        event: EventId,
    },
    EventRecord {
        event: EventId,
        stream: StreamOrderId,
        seq: u64,
    },
    WaitEvent {
        event: EventId,
        stream: StreamOrderId,
        seq: u64,
    },
    Submit {
        stream: StreamOrderId,
        count: u64,
    },
    Advance {
        stream: StreamOrderId,
        count: u64,
        ran: u64,
    },
    SynchronizeStream {
        stream: StreamOrderId,
    },
    SynchronizeEvent {
        event: EventId,
    },
    SynchronizeDevice,
    PoolCreate {
        pool: PoolId,
        config: &'a PoolConfig,
    },
    PoolDestroy {
        pool: PoolId,
    },
    TrimTo {
        pool: PoolId,
        keep: u64,
    },
    SetAttribute {
        pool: PoolId,
        attribute: u32,
        value: u64,
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
    AllocBegin {
        pool: PoolId,
        size: u64,
        alignment: u64,
        stream: Option<StreamOrderId>,
        name: Option<&'a str>,
    },
    ProgressAnswer {
        stream: StreamOrderId,
        executed: u64,
    },
    Waitable {
        stream: StreamOrderId,
        upto: u64,
    },
    PageGranted {
        pool: PoolId,
        entry: u32,
        bytes: u64,
        address: u64,
    },
    PageRefused {
        pool: PoolId,
        entry: u32,
        bytes: u64,
    },
    /// A Mapped entry's addresses, not its memory.
    RangeRefused {
        pool: PoolId,
        entry: u32,
        bytes: u64,
    },
    PageReleased {
        pool: PoolId,
        entry: u32,
        bytes: u64,
        address: u64,
        refused: bool,
    },
    CallbackBegin {
        pool: PoolId,
    },
    CallbackEnd {
        pool: PoolId,
        retry: bool,
    },
    AllocEnd {
        pool: PoolId,
        result: Result<AllocDone, Status>,
    },
    Free {
        allocation: AllocationId,
        address: u64,
        stream: Option<StreamOrderId>,
        observed: bool,
    },
    AddUser {
        allocation: AllocationId,
        address: u64,
        stream: StreamOrderId,
    },
    Access {
        address: u64,
        size: u64,
        stream: StreamOrderId,
        kind: u32,
    },
}

/// Sees what happens on a device.
pub trait Observer: Send + Sync {
    /// Whether it still observes, in this process: `false` makes room for another, as for a trace of a child after a fork.
    fn here(&self) -> bool {
        true
    }

    /// Something happened. Called under the device's serialising lock.
    fn event(&self, event: &Event<'_>);
}
