//! Handles: what the outside holds in place of references.
//!
//! A handle is 64 bits: kind (4) | generation (32) | slot (28). The kinds are chosen so that no handle is a canonical
//! user-space address on any platform, and none is 0, 1 or 2, which name the default streams. A handle is only ever
//! decoded and compared; the record it names decides whether it is still good.

use crate::error::{Error, Result, Status};
use std::fmt;

const SLOT_BITS: u32 = 28;
const GENERATION_BITS: u32 = 32;

/// What a handle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Kind {
    Device = 0x9,
    Pool = 0xa,
    Stream = 0xb,
    Event = 0xc,
    Allocation = 0xd,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Device => "device",
            Kind::Pool => "pool",
            Kind::Stream => "stream",
            Kind::Event => "event",
            Kind::Allocation => "allocation",
        }
    }

    /// The name after its article.
    fn one(self) -> String {
        let article = if matches!(self, Kind::Event | Kind::Allocation) { "an" } else { "a" };
        format!("{article} {}", self.name())
    }
    fn of(bits: u64) -> Option<Kind> {
        Some(match bits >> (SLOT_BITS + GENERATION_BITS) {
            0x9 => Kind::Device,
            0xa => Kind::Pool,
            0xb => Kind::Stream,
            0xc => Kind::Event,
            0xd => Kind::Allocation,
            _ => return None,
        })
    }
}

#[inline(always)]
pub(crate) const fn encode(kind: Kind, generation: u32, slot: u32) -> u64 {
    ((kind as u64) << (SLOT_BITS + GENERATION_BITS)) | ((generation as u64) << SLOT_BITS) | slot as u64
}

/// The uppermost bit, which every kind has.
const MARK: u64 = 1 << 63;
const _: () = {
    let kinds = [Kind::Device, Kind::Pool, Kind::Stream, Kind::Event, Kind::Allocation];
    let mut at = 0;
    while at < kinds.len() {
        assert!(encode(kinds[at], 0, 0) & MARK != 0);
        at += 1;
    }
};

/// Whether bits have what every handle has: for a caller that then compares nearly all of them with a record's word, which may hold
/// something else than a handle.
#[inline(always)]
pub(crate) fn may_be_one(bits: u64) -> bool {
    bits & MARK != 0
}

/// (slot, generation) of a handle of this kind.
#[inline(always)]
pub(crate) fn decode(kind: Kind, bits: u64) -> Option<(u32, u32)> {
    if bits >> (SLOT_BITS + GENERATION_BITS) != kind as u64 {
        return None;
    }
    Some(((bits & SLOT_MASK) as u32, (bits >> SLOT_BITS) as u32))
}

/// The slot that bits would name if they were a handle, for a caller that then compares all of them with the record's.
#[inline(always)]
pub(crate) fn slot(bits: u64) -> u32 {
    (bits & SLOT_MASK) as u32
}

/// The generation of a handle.
#[inline(always)]
pub(crate) fn generation(bits: u64) -> u32 {
    (bits >> SLOT_BITS) as u32
}

/// The bits of a handle that name its slot.
pub(crate) const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;

/// The handle that the slot gives out after this one.
#[inline(always)]
pub(crate) fn next(bits: u64) -> u64 {
    bits + (1 << SLOT_BITS)
}

/// The error for bits that are no handle of `kind` that was ever given out.
#[cold]
pub(crate) fn invalid(kind: Kind, bits: u64) -> Error {
    let what = kind.name();
    Error::new(
        Status::InvalidHandle,
        match (bits, Kind::of(bits)) {
            (0, _) => format!("{what} handle is null"),
            (_, Some(other)) if other != kind => {
                format!("expected {} handle, got {} handle ({bits:#x})", kind.one(), other.one())
            }
            (_, Some(_)) => format!("{bits:#x} is no {what} handle that was ever given out"),
            _ => format!("{bits:#x} is not {} handle", kind.one()),
        },
    )
}

/// The error for a handle whose object is gone.
#[cold]
pub(crate) fn gone(kind: Kind, bits: u64) -> Error {
    let what = kind.name();
    match kind {
        Kind::Allocation => Error::new(Status::Freed, format_args!("{what} {bits:#x} has been freed")),
        Kind::Device => Error::new(Status::Destroyed, format_args!("{what} {bits:#x} has been closed")),
        _ => Error::new(Status::Destroyed, format_args!("{what} {bits:#x} has been destroyed")),
    }
}

/// Whether a slot has used up its generations. Such a slot is not given out again: its last handle would come back.
#[inline(always)]
pub(crate) fn used_up(generation: u32) -> bool {
    generation == u32::MAX
}

/// Judges a decoded generation against the record's: `Ok` if equal and live.
#[inline(always)]
pub(crate) fn judge(kind: Kind, bits: u64, given: u32, current: u32, live: bool) -> Result<()> {
    if given == current && live {
        return Ok(());
    }
    Err(if given != 0 && given <= current { gone(kind, bits) } else { invalid(kind, bits) })
}

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u64);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }
    };
}

handle!(
    /// Names a device. Any value may be passed anywhere; a bad one is an error.
    DeviceId
);
handle!(
    /// Names a pool.
    PoolId
);
handle!(
    /// Names a stream: one created here, or 0 / 1 (legacy default stream) or 2 (the thread's default stream).
    StreamId
);
handle!(
    /// Names an event.
    EventId
);
handle!(
    /// Names an allocation.
    AllocationId
);
