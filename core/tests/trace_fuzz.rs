//! Damaged traces: the readers and the replayer answer with an error that names a place, or read what is still a trace;
//! they never panic. The damage comes from fixed seeds, so a failure can be seen again.

mod trace_common;

use flate2::Compression;
use flate2::write::GzEncoder;
use smp_core::device::{self, ModelOptions};
use smp_core::pool::{self, AllocOptions, spec};
use smp_core::stream::{self, StreamFlags};
use smp_core::trace::{self, ReplayOptions};
use smp_core::{Status, StreamId, event};
use std::io::Write;
use std::sync::Arc;
use trace_common::{Folder, Random};

/// A version-2 trace with most kinds of lines, without and with times.
fn recorded(folder: &Folder, flags: u32) -> Vec<u8> {
    let path = folder.file("valid");
    let options = ModelOptions { lazy: true, capacity: 8 << 20, ..Default::default() };
    let device = device::open_model(&options).unwrap();
    let early = stream::create(device, StreamFlags { non_blocking: true, lazy: None }).unwrap();
    stream::submit(device, StreamId(0), 3).unwrap();
    device::synchronize(device).unwrap();
    trace::start(device, &path, flags).unwrap();
    let pool =
        pool::create(device, &spec::parse("sliced(page_size=2MiB); exclusive(dealloc_period=3)").unwrap()).unwrap();
    pool::set_out_of_memory_callback(pool, Some(Arc::new(move |_: &_| pool::trim_to(pool, 0).is_err()))).unwrap();
    let streams = [StreamId(0), early, stream::create(device, StreamFlags::default()).unwrap()];
    let event = event::create(device).unwrap();
    let mut live = Vec::new();
    for round in 0..40u64 {
        let on = streams[round as usize % 3];
        let options = AllocOptions { alignment: 0, name: (round % 7 == 0).then_some("weights 1") };
        let size = if round % 5 == 0 { 3 << 20 } else { 700 * round };
        if let Ok(id) = pool::alloc_async_with(pool, size, on, &options) {
            live.push(id);
            pool::access::note(device, pool::pointer(id), 4, on, pool::access::AccessKind::Write).unwrap();
        }
        match round % 6 {
            0 => stream::advance(device, on, 3).map(drop).unwrap(),
            1 => event::record(device, event, on).map(drop).unwrap(),
            2 => stream::wait_event(device, on, event).unwrap(),
            3 => stream::submit(device, on, 2).map(drop).unwrap(),
            4 => device::refuse_pages(device, 0, 1).unwrap(),
            _ => stream::synchronize(device, on).unwrap(),
        }
        if live.len() > 4 {
            let id = live.remove(0);
            pool::add_user(id, streams[(round as usize + 1) % 3]).unwrap();
            if round % 4 == 0 { pool::free(id).unwrap() } else { pool::free_async(id, on).unwrap() }
        }
    }
    trace::stop(device).unwrap();
    for id in live {
        pool::free(id).unwrap();
    }
    pool::destroy(pool).unwrap();
    device::close(device).unwrap();
    std::fs::read(path).unwrap()
}

fn version_1() -> Vec<u8> {
    let mut text = "op,id,size,stream,thread\n".to_owned();
    for id in 0..60 {
        text.push_str(&format!("a,{id},{},{},0\n", id * 1000 % 7001, id % 3));
        if id % 3 == 2 {
            text.push_str(&format!("f,{0},{1},{2},0\n", id - 2, (id - 2) * 1000 % 7001, id % 2));
        }
    }
    text.into_bytes()
}

/// Damages a text: bytes, digits, words, whole lines.
fn damaged(valid: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = valid.to_vec();
    for _ in 0..=random.below(4) {
        if bytes.is_empty() {
            break;
        }
        let place = random.below(bytes.len() as u64) as usize;
        match random.below(9) {
            0 => bytes[place] = random.next() as u8,
            1 => bytes[place] = b'0' + random.below(10) as u8,
            2 => drop(bytes.remove(place)),
            3 => bytes.insert(place, b" ,\n-x0"[random.below(6) as usize]),
            4 => bytes.truncate(place),
            5 => {
                let big =
                    [&b"18446744073709551615"[..], b"99999999999999999999", b"4294967296"][random.below(3) as usize];
                bytes.splice(place..place, big.iter().copied());
            }
            // Whole lines: away, twice, or exchanged.
            kind => {
                let mut lines: Vec<Vec<u8>> = bytes.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
                let (a, b) = (random.below(lines.len() as u64) as usize, random.below(lines.len() as u64) as usize);
                match kind {
                    6 => drop(lines.remove(a)),
                    7 => lines.insert(a, lines[b].clone()),
                    _ => lines.swap(a, b),
                }
                bytes = lines.join(&b'\n');
            }
        }
    }
    bytes
}

/// Takes the count in the end line away as a reason to refuse, so that damage reaches the replayer.
fn with_true_end(bytes: Vec<u8>) -> Vec<u8> {
    let Ok(text) = String::from_utf8(bytes) else { return Vec::new() };
    let body: Vec<&str> = text.lines().filter(|line| !line.contains("end ") || line.contains("callback")).collect();
    let time = if body.get(1).is_some_and(|device| device.contains("time=yes")) { "9 " } else { "" };
    format!("{}\n{time}end {}\n", body.join("\n"), body.len().saturating_sub(2)).into_bytes()
}

/// Rounds; `SMP_TRACE_RUNS` asks for more.
fn rounds(usual: u64) -> u64 {
    std::env::var("SMP_TRACE_RUNS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual).max(usual)
}

#[derive(Default)]
struct Outcomes {
    good: u32,
    syntax: u32,
    mismatch: u32,
}

/// Replays in all three ways; what fails must say where.
fn attempt(path: &std::path::Path, outcomes: &mut Outcomes) {
    for (verify, pools) in [(true, None), (false, None), (true, Some("exclusive(max_alloc_size=4KiB); direct()"))] {
        match trace::replay(path, ReplayOptions { verify, pools, ..Default::default() }) {
            Ok(report) => {
                assert!(report.live_plus_pending_peak >= report.live_peak);
                outcomes.good += 1;
            }
            Err(error) => {
                let name = path.display().to_string();
                let place = error.message.strip_prefix(&format!("{name}:")).and_then(|rest| rest.split(':').next());
                assert!(place.is_some_and(|line| line.parse::<u64>().is_ok()), "{error}");
                match error.status {
                    Status::TraceSyntax => outcomes.syntax += 1,
                    Status::ReplayMismatch => outcomes.mismatch += 1,
                    status => panic!("{status:?}: {error}"),
                }
            }
        }
    }
}

#[test]
fn damaged_texts_are_refused_with_a_place_or_still_read() {
    let folder = Folder::new("fuzz-text");
    let valid = [version_1(), recorded(&folder, 0), recorded(&folder, trace::TIME)];
    for bytes in &valid {
        let path = folder.with("valid", bytes);
        trace::replay(&path, ReplayOptions::default()).unwrap();
    }
    let mut random = Random(1);
    let mut outcomes = Outcomes::default();
    for round in 0..rounds(3000) {
        let valid = &valid[random.below(3) as usize];
        let mut bytes = damaged(valid, &mut random);
        if round % 2 == 0 && valid.starts_with(b"smp") {
            bytes = with_true_end(bytes);
        }
        attempt(&folder.with("damaged", bytes), &mut outcomes);
    }
    let Outcomes { good, syntax, mismatch } = outcomes;
    assert!(good > 100 && syntax > 100 && mismatch > 100, "{good} read, {syntax} syntax, {mismatch} mismatch");
}

#[test]
fn damaged_gzip_is_refused_with_a_place_or_still_read() {
    let folder = Folder::new("fuzz-gzip");
    let valid: Vec<Vec<u8>> = [version_1(), recorded(&folder, 0)]
        .into_iter()
        .map(|bytes| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(&bytes).unwrap();
            encoder.finish().unwrap()
        })
        .collect();
    let mut random = Random(2);
    let mut outcomes = Outcomes::default();
    for _ in 0..rounds(1500) {
        let mut bytes = valid[random.below(2) as usize].clone();
        for _ in 0..=random.below(3) {
            let place = random.below(bytes.len() as u64) as usize;
            match random.below(4) {
                0 => bytes.truncate(place.max(1)),
                1 => drop(bytes.splice(place..place, [random.next() as u8])),
                _ => bytes[place] = random.next() as u8,
            }
        }
        attempt(&folder.with("damaged.gz", bytes), &mut outcomes);
    }
    assert!(outcomes.syntax > 1000, "nearly all must be noticed, {} were", outcomes.syntax);
}
