//! The report: what the process's CUDA memory did, as text or JSON.

use crate::access;
use crate::driver;
use crate::ledger::{self, Figures, Kind};
use crate::pool;
use crate::setting::{self, Mode, Target};
use smp_core::PoolId;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString, c_void};
use std::fmt::Write as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// When a report is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// On request, while the program runs.
    Asked,
    /// The process has begun to exit.
    Exit,
    /// The loader takes the process down: static destructors have run.
    Unload,
}

impl Moment {
    fn name(self) -> &'static str {
        match self {
            Moment::Asked => "asked",
            Moment::Exit | Moment::Unload => "exit",
        }
    }
}

/// Kinds of memory that take room on a device without coming through a replaced call.
const NOT_SEEN: &[&str] =
    &["contexts", "modules", "arrays", "graph memory", "imported memory", "the driver's own pools"];

/// Everything a report tells.
struct Facts {
    program: String,
    process: u32,
    moment: Moment,
    limit: Option<u64>,
    mode: &'static str,
    devices: Vec<DeviceFacts>,
    streams: Vec<((i32, driver::Handle), Figures)>,
    sizes: Vec<(u64, u64)>,
    alive: Vec<Alive>,
    foreign_frees: u64,
    pools: Vec<(i32, PoolId)>,
    served: u64,
    synchronises: u64,
    checked: u64,
    faulty: u64,
    faults: Vec<String>,
    late: Option<(u64, u64)>,
}

struct DeviceFacts {
    ordinal: usize,
    sum: Figures,
    pages: Figures,
    kinds: Vec<(Kind, Figures)>,
    failures: u64,
    refusals: u64,
}

/// Live blocks of one size that one module asked for.
struct Alive {
    module: String,
    device: i32,
    kind: Kind,
    bytes: u64,
    blocks: u64,
}

/// (blocks, bytes) freed, as the report at exit had them.
static AT_EXIT: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

fn module(caller: usize) -> String {
    match driver::file_of(caller) {
        Some((file, _)) => {
            let bytes = file.to_bytes();
            String::from_utf8_lossy(bytes.rsplit(|&byte| byte == b'/').next().unwrap_or(bytes)).into_owned()
        }
        None => "unknown".to_owned(),
    }
}

fn gather(moment: Moment) -> Facts {
    let settings = setting::settings();
    let mut groups: BTreeMap<(String, i32, Kind, u64), u64> = BTreeMap::new();
    for block in ledger::live() {
        *groups.entry((module(block.caller), block.device, block.kind, block.bytes)).or_default() += 1;
    }
    let mut alive: Vec<Alive> = groups
        .into_iter()
        .map(|((module, device, kind, bytes), blocks)| Alive { module, device, kind, bytes, blocks })
        .collect();
    alive.sort_by_key(|group| std::cmp::Reverse(group.bytes.saturating_mul(group.blocks)));
    let devices: Vec<DeviceFacts> = ledger::devices()
        .iter()
        .enumerate()
        .map(|(ordinal, device)| DeviceFacts {
            ordinal,
            sum: device.sum.figures(),
            pages: device.pages.figures(),
            kinds: Kind::ALL
                .iter()
                .map(|kind| (*kind, device.kinds[*kind as usize].figures()))
                .filter(|(_, figures)| figures.allocs > 0)
                .collect(),
            failures: device.failures.load(Relaxed),
            refusals: device.refusals.load(Relaxed),
        })
        .collect();
    let held = devices.iter().fold((0, 0), |sum, device| (sum.0 + device.sum.blocks, sum.1 + device.sum.current));
    let late = match moment {
        Moment::Asked => None,
        Moment::Exit => {
            AT_EXIT[0].store(held.0, Relaxed);
            AT_EXIT[1].store(held.1, Relaxed);
            Some((0, 0))
        }
        Moment::Unload => {
            Some((AT_EXIT[0].load(Relaxed).saturating_sub(held.0), AT_EXIT[1].load(Relaxed).saturating_sub(held.1)))
        }
    };
    let (served, synchronises) = pool::calls();
    let (checked, faulty, faults) = access::verdicts();
    Facts {
        pools: pool::pools(),
        served,
        synchronises,
        checked,
        faulty,
        faults,
        program: std::env::current_exe().map_or_else(|_| "unknown".to_owned(), |path| path.display().to_string()),
        process: std::process::id(),
        moment,
        limit: settings.limit,
        mode: if settings.mode == Mode::Pool { "pool" } else { "count" },
        devices,
        streams: ledger::streams(),
        sizes: ledger::sizes()
            .iter()
            .enumerate()
            .filter(|(_, allocs)| **allocs > 0)
            .map(|(power, allocs)| (1_u64.checked_shl(power as u32).unwrap_or(u64::MAX), *allocs))
            .collect(),
        alive,
        foreign_frees: ledger::foreign_frees(),
        late,
    }
}

/// Writes the report, if one is wanted.
pub fn write(moment: Moment) {
    let Some(target) = &setting::settings().report else { return };
    let facts = gather(moment);
    if moment == Moment::Unload && facts.late == Some((0, 0)) {
        return;
    }
    match target {
        Target::Stderr if moment == Moment::Unload => {
            let (blocks, bytes) = facts.late.unwrap_or_default();
            setting::say(&format!(
                "{blocks} blocks of {bytes} bytes were freed after the report, by static destructors"
            ));
        }
        Target::Stderr => write_all(2, text(&facts).as_bytes()),
        Target::File(name) => {
            let name = named(name, facts.process);
            let report = if name.as_bytes().ends_with(b".json") { json(&facts) } else { text(&facts) };
            if let Err(why) = std::fs::write(&name, report) {
                setting::warn(&format!("the report could not be written to {}: {why}", name.display()));
            }
        }
    }
}

/// A file's name with the process's number in place of each `%p`.
fn named(name: &OsStr, process: u32) -> OsString {
    let mut out = Vec::new();
    let mut rest = name.as_bytes();
    while let Some(at) = rest.windows(2).position(|two| two == b"%p") {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(process.to_string().as_bytes());
        rest = &rest[at + 2..];
    }
    out.extend_from_slice(rest);
    OsString::from_vec(out)
}

/// All bytes, in as few writes as it takes.
fn write_all(descriptor: i32, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        // SAFETY: the buffer is valid for its length.
        match usize::try_from(unsafe { libc::write(descriptor, bytes.as_ptr().cast(), bytes.len()) }) {
            Ok(written) if written > 0 => bytes = &bytes[written..],
            _ => return,
        }
    }
}

/// A text as a JSON string.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out + "\""
}

fn stream_name(stream: driver::Handle) -> String {
    match stream {
        0 => "default".to_owned(),
        1 => "legacy".to_owned(),
        2 => "per-thread".to_owned(),
        ledger::OTHER_STREAMS => "others".to_owned(),
        handle => format!("{handle:#x}"),
    }
}

fn figures_json(figures: &Figures) -> String {
    let Figures { current, peak, blocks, allocs, frees } = figures;
    format!("\"current\":{current},\"peak\":{peak},\"blocks\":{blocks},\"allocs\":{allocs},\"frees\":{frees}")
}

fn json(facts: &Facts) -> String {
    let list = |items: Vec<String>| format!("[{}]", items.join(","));
    let devices = facts.devices.iter().map(|device| {
        let kinds: Vec<String> =
            device.kinds.iter().map(|(kind, f)| format!("{}:{{{}}}", quoted(kind.name()), figures_json(f))).collect();
        format!(
            "\n{{\"device\":{},{},\"pages\":{{{}}},\"failures\":{},\"limit_refusals\":{},\"kinds\":{{{}}}}}",
            device.ordinal,
            figures_json(&device.sum),
            figures_json(&device.pages),
            device.failures,
            device.refusals,
            kinds.join(",")
        )
    });
    let streams = facts.streams.iter().map(|((device, stream), figures)| {
        format!("\n{{\"device\":{device},\"stream\":{},{}}}", quoted(&stream_name(*stream)), figures_json(figures))
    });
    let sizes = facts.sizes.iter().map(|(up_to, allocs)| format!("{{\"up_to\":{up_to},\"allocs\":{allocs}}}"));
    let alive = facts.alive.iter().map(|group| {
        format!(
            "\n{{\"module\":{},\"device\":{},\"kind\":{},\"bytes\":{},\"blocks\":{}}}",
            quoted(&group.module),
            group.device,
            quoted(group.kind.name()),
            group.bytes,
            group.blocks
        )
    });
    let pools = facts.pools.iter().map(|(device, pool)| {
        // A pool whose context has gone has no figures.
        let figures = smp_core::report::json(*pool).unwrap_or_else(|_| "null".to_owned());
        format!("\n{{\"device\":{device},\"report\":{}}}", figures.trim())
    });
    let limit = facts.limit.map_or("null".to_owned(), |limit| limit.to_string());
    let late =
        facts.late.map_or("null".to_owned(), |(blocks, bytes)| format!("{{\"blocks\":{blocks},\"bytes\":{bytes}}}"));
    format!(
        "{{\"version\":{},\"program\":{},\"process\":{},\"mode\":{},\"moment\":{},\"limit\":{limit},\n\"devices\":{},\n\
         \"streams\":{},\n\"sizes\":{},\n\"foreign_frees\":{},\"served_by_pools\":{},\"free_synchronises\":{},\n\
         \"pools\":{},\n\"accesses_checked\":{},\"accesses_faulty\":{},\"faults\":{},\n\"freed_late\":{late},\n\"alive\":{},\n\
         \"not_seen\":{}}}\n",
        quoted(env!("CARGO_PKG_VERSION")),
        quoted(&facts.program),
        facts.process,
        quoted(facts.mode),
        quoted(facts.moment.name()),
        list(devices.collect()),
        list(streams.collect()),
        list(sizes.collect()),
        facts.foreign_frees,
        facts.served,
        facts.synchronises,
        list(pools.collect()),
        facts.checked,
        facts.faulty,
        list(facts.faults.iter().map(|text| quoted(text)).collect()),
        list(alive.collect()),
        list(NOT_SEEN.iter().map(|kind| quoted(kind)).collect()),
    )
}

fn human(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.2} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

/// Lines of live blocks that a text shows; a JSON report has all.
const ALIVE_LINES: usize = 30;

fn text(facts: &Facts) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(out, "smp_preload: CUDA memory of {} (process {})", facts.program, facts.process);
    if let Some(limit) = facts.limit {
        let _ = writeln!(out, "limit of {} ({limit} B) a device", human(limit));
    }
    let row = |out: &mut String, name: &str, f: &Figures| {
        let _ = writeln!(
            out,
            "  {name:<14}{:>12} now {:>12} peak {:>16} B peak {:>9} blocks {:>10} allocs {:>10} frees",
            human(f.current),
            human(f.peak),
            f.peak,
            f.blocks,
            f.allocs,
            f.frees
        );
    };
    for device in &facts.devices {
        let _ = writeln!(out, "device {}", device.ordinal);
        row(&mut out, "all", &device.sum);
        if device.pages.allocs > 0 {
            row(&mut out, "pages", &device.pages);
        }
        for (kind, figures) in &device.kinds {
            row(&mut out, kind.name(), figures);
        }
        if device.failures + device.refusals > 0 {
            let _ = writeln!(out, "  refused: {} by the driver, {} by the limit", device.failures, device.refusals);
        }
    }
    if !facts.streams.is_empty() {
        let _ = writeln!(out, "stream-ordered, by stream");
        for ((device, stream), figures) in &facts.streams {
            row(&mut out, &format!("{device}:{}", stream_name(*stream)), figures);
        }
    }
    let _ = writeln!(out, "allocations by size (at most)");
    for (up_to, allocs) in &facts.sizes {
        let _ = writeln!(out, "  {:<14}{allocs:>12}", human(*up_to));
    }
    if facts.foreign_frees > 0 {
        let _ = writeln!(out, "frees of memory from elsewhere: {}", facts.foreign_frees);
    }
    if facts.served > 0 {
        let pages: u64 = facts.devices.iter().map(|device| device.pages.allocs).sum();
        let _ = writeln!(
            out,
            "pools served {} blocks from {pages} pages ({} driver calls saved); frees synchronised {} times",
            facts.served,
            facts.served.saturating_sub(pages),
            facts.synchronises
        );
    }
    for (device, pool) in &facts.pools {
        pool_text(&mut out, *device, *pool);
    }
    if facts.checked > 0 {
        let _ = writeln!(out, "accesses checked: {}, faulty: {}", facts.checked, facts.faulty);
        for fault in &facts.faults {
            let _ = writeln!(out, "  {fault}");
        }
    }
    let held: u64 = facts.alive.iter().map(|group| group.blocks).sum();
    let _ = writeln!(out, "blocks alive: {held}");
    for group in facts.alive.iter().take(ALIVE_LINES) {
        let Alive { module, device, kind, bytes, blocks } = group;
        let _ = writeln!(out, "  {blocks:>9} of {bytes:>14} B  {:<10} device {device}  from {module}", kind.name());
    }
    if facts.alive.len() > ALIVE_LINES {
        let _ = writeln!(out, "  and {} more lines; a report in JSON has all", facts.alive.len() - ALIVE_LINES);
    }
    if let Some((blocks, bytes)) = facts.late.filter(|late| *late != (0, 0)) {
        let _ = writeln!(out, "freed by static destructors: {blocks} blocks, {bytes} B");
    }
    let _ = writeln!(out, "not seen: {}", NOT_SEEN.join(", "));
    out
}

/// A pool, and those of its entries that were used.
fn pool_text(out: &mut String, device: i32, id: PoolId) {
    use smp_core::pool::{self, Stats};
    let (Ok(stats), Ok(config), Ok(entries)) = (pool::stats(id), pool::config(id), pool::entry_count(id)) else {
        return;
    };
    if stats.allocs == 0 {
        return;
    }
    let line = |out: &mut String, name: &str, stats: &Stats| {
        let _ = writeln!(
            out,
            "  {:>12} peak used {:>12} peak reserved {:>6} pages {:>10} allocs  {name}",
            human(stats.used_high),
            human(stats.reserved_high),
            stats.pages_high,
            stats.allocs
        );
    };
    let _ = writeln!(out, "pool of device {device}");
    line(out, "all", &stats);
    for (index, entry) in config.entries.iter().enumerate().take(entries) {
        if let Ok(stats) = pool::entry_stats(id, index)
            && stats.allocs > 0
        {
            let config = smp_core::PoolConfig::with_entries(vec![entry.clone()]);
            line(out, &pool::spec::format(&config), &stats);
        }
    }
    let reuse = &stats.reuse;
    let _ = writeln!(
        out,
        "  blocks came from: same stream {}, observed {}, event {}, opportunistic {}, internal {}, fresh {}",
        reuse.same_stream, reuse.observed, reuse.event, reuse.opportunistic, reuse.internal, reuse.fresh
    );
}

// --- who asked

unsafe extern "C" {
    fn _Unwind_Backtrace(step: unsafe extern "C" fn(*mut c_void, *mut c_void) -> i32, user: *mut c_void) -> i32;
    fn _Unwind_GetIP(frame: *mut c_void) -> usize;
}

/// Frames looked at for the caller of the CUDA runtime.
const FRAMES: u32 = 24;

struct Walk {
    frames: u32,
    in_runtime: bool,
    found: usize,
}

fn is_runtime(address: usize) -> bool {
    // Callers are few and come again: a small table of the last answers, each an address with its answer in the top bit.
    const YES: usize = 1 << 63;
    static KNOWN: [AtomicUsize; 256] = [const { AtomicUsize::new(0) }; 256];
    let place = &KNOWN[(address >> 2) % KNOWN.len()];
    let known = place.load(Relaxed);
    if known & !YES == address {
        return known & YES != 0;
    }
    let runtime = driver::file_of(address).is_some_and(|(file, _)| {
        let bytes = file.to_bytes();
        bytes.rsplit(|&byte| byte == b'/').next().is_some_and(|name| name.starts_with(b"libcudart.so"))
    });
    place.store(address | if runtime { YES } else { 0 }, Relaxed);
    runtime
}

unsafe extern "C" fn step(frame: *mut c_void, user: *mut c_void) -> i32 {
    const GO_ON: i32 = 0;
    const END: i32 = 5;
    // SAFETY: `user` is the walk that `origin` passed, and nobody else has it.
    let walk = unsafe { &mut *user.cast::<Walk>() };
    // SAFETY: the frame is the unwinder's own, passed to this call.
    let at = unsafe { _Unwind_GetIP(frame) };
    walk.frames += 1;
    if is_runtime(at) {
        walk.in_runtime = true;
    } else if walk.in_runtime {
        walk.found = at;
        return END;
    }
    if walk.frames == FRAMES { END } else { GO_ON }
}

/// The place in the program's code that asked for memory: the caller, or, where that is the shared CUDA runtime, the
/// runtime's caller. Looked for only when a report will tell it.
pub fn origin(caller: usize) -> usize {
    if setting::settings().report.is_none() || !is_runtime(caller) {
        return caller;
    }
    let mut walk = Walk { frames: 0, in_runtime: false, found: caller };
    // SAFETY: `step` has the signature the unwinder calls, and `walk` lives through the call.
    unsafe { _Unwind_Backtrace(step, (&raw mut walk).cast()) };
    walk.found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_strings_escape_what_they_must() {
        assert_eq!(quoted("a\"b\\c\n"), r#""a\"b\\c\u000a""#);
    }

    #[test]
    fn a_name_takes_the_process_wherever_it_says_so() {
        assert_eq!(named(OsStr::from_bytes(b"%p\xff%%p.%p"), 7), OsStr::from_bytes(b"7\xff%7.7"));
        assert_eq!(named(OsStr::new("100%"), 7), "100%");
    }

    #[test]
    fn sizes_for_people_use_binary_units() {
        assert_eq!(
            [human(1023), human(1536), human(3 << 20), human(5 << 30)],
            ["1023 B", "1.5 KiB", "3.0 MiB", "5.00 GiB"]
        );
    }

    #[test]
    fn a_caller_outside_the_runtime_is_the_origin() {
        let here = a_caller_outside_the_runtime_is_the_origin as *const () as usize;
        assert!(!is_runtime(here));
        assert_eq!(origin(here), here);
    }
}
