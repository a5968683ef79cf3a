//! The entry points, by the public header's signatures, a file per subject.
//!
//! What is not implemented is in `stubs`: it answers NOT_SUPPORTED, never success.

#![allow(non_snake_case)]

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::code;
use crate::ffi::{Call, Symbol};

pub(crate) type Ptr = u64;
pub(crate) type Handle = u64;

/// One version of a function.
pub(crate) struct Entry {
    /// What the header calls it.
    name: &'static str,
    /// CUDA version it came with.
    since: i32,
    plain: (usize, &'static Symbol),
    /// Its form for the per-thread default stream.
    twin: Option<(usize, &'static Symbol)>,
}

impl Entry {
    /// Per-thread forms came with CUDA 7.0.
    fn twin_since(&self) -> i32 {
        self.since.max(7000)
    }
}

macro_rules! entry {
    ($symbol:ident ($c:ident $(, $arg:ident: $ty:ty)* $(,)?) $body:block) => {
        #[unsafe(no_mangle)]
        extern "C" fn $symbol($($arg: $ty),*) -> u32 {
            $crate::ffi::enter(&of::$symbol, &[$(&$arg),*], &|$c: &$crate::ffi::Call| -> $crate::code::Result<()> { $body })
        }
    };
}

/// Functions: what the header calls it, CUDA version, exported name and its per-thread form, arguments, body.
macro_rules! entries {
    ($($name:literal $since:literal $symbol:ident $(| $twin:ident)? => $args:tt $body:block)*) => {
        $(entry!($symbol $args $body);
        $(entry!($twin $args $body);)?)*

        #[allow(non_upper_case_globals)]
        mod of {
            use $crate::ffi::Symbol;
            $(pub(super) static $symbol: Symbol = Symbol::new(stringify!($symbol), false);
            $(pub(super) static $twin: Symbol = Symbol::new(stringify!($twin), true);)?)*
        }

        pub(super) fn table() -> Vec<$crate::api::Entry> {
            vec![$($crate::api::Entry {
                name: $name,
                since: $since,
                plain: ($symbol as *const () as usize, &of::$symbol),
                twin: None$(.or(Some(($twin as *const () as usize, &of::$twin))))?,
            }),*]
        }
    };
}

mod context;
pub mod control;
mod copy;
mod device;
mod event;
mod graph;
mod mapping;
mod memory;
mod module;
mod pool;
mod stream;
mod stubs;

fn entries() -> &'static [Entry] {
    static ENTRIES: OnceLock<Vec<Entry>> = OnceLock::new();
    ENTRIES.get_or_init(|| {
        [
            device::table,
            context::table,
            stream::table,
            event::table,
            memory::table,
            copy::table,
            pool::table,
            mapping::table,
            graph::table,
            module::table,
            stubs::table,
        ]
        .into_iter()
        .flat_map(|table| table())
        .collect()
    })
}

/// Every exported function, beside what the header calls it.
pub(crate) fn symbols() -> &'static [(&'static str, &'static Symbol)] {
    static SYMBOLS: OnceLock<Vec<(&'static str, &'static Symbol)>> = OnceLock::new();
    SYMBOLS.get_or_init(|| {
        let both = |entry: &Entry| [Some(entry.plain), entry.twin].map(|form| form.map(|form| (entry.name, form.1)));
        entries().iter().flat_map(both).flatten().collect()
    })
}

/// What `cuGetProcAddress` finds: an address and how it was found (0 found, 1 no such name, 2 none that old).
pub(crate) fn proc_address(name: &str, version: i32, flags: u64, driver: i32, missing: &[String]) -> (u64, i32) {
    static NAMES: OnceLock<HashMap<&'static str, Vec<&'static Entry>>> = OnceLock::new();
    let names = NAMES.get_or_init(|| {
        let mut names: HashMap<_, Vec<_>> = HashMap::new();
        entries().iter().for_each(|entry| names.entry(entry.name).or_default().push(entry));
        names
    });
    let gone = |symbol: &Symbol| missing.iter().any(|gone| gone == symbol.name);
    let there = |entry: &&&Entry| entry.since <= driver && !gone(entry.plain.1);
    let known = names.get(name).map_or(&[][..], Vec::as_slice).iter().filter(there);
    match known.clone().filter(|entry| entry.since <= version).max_by_key(|entry| entry.since) {
        Some(entry) => {
            let twin = entry.twin.filter(|(_, twin)| flags & 2 != 0 && version >= entry.twin_since() && !gone(twin));
            (twin.unwrap_or(entry.plain).0 as u64, 0)
        }
        None => (0, if known.count() == 0 { 1 } else { 2 }),
    }
}

/// A device by its ordinal.
pub(crate) fn device_of(c: &Call, ordinal: i32) -> code::Result<usize> {
    usize::try_from(ordinal).ok().filter(|&at| at < c.config().devices as usize).ok_or(code::INVALID_DEVICE)
}

/// The two 32-bit halves of a word of a structure.
pub(crate) fn halves(word: u64) -> (u32, i32) {
    (word as u32, (word >> 32) as i32)
}
