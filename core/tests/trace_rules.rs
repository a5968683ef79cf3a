//! The rules of recording and replaying, one test a rule: when recording may begin and end, what happens to a trace when
//! the disk fails, what a replay does with answers, other pools and failures, and what it refuses.

mod trace_common;

use smp_core::device::{self, ModelOptions};
use smp_core::pool::{self, spec};
use smp_core::stream::{self, StreamFlags};
use smp_core::trace::{self, Item, Line, ReplayOptions, ReplayReport};
use smp_core::{DeviceId, Error, PoolId, Status, StreamId, event};
use std::path::Path;
use std::sync::{Arc, Mutex};
use trace_common::Folder;

const MIB: u64 = 1 << 20;

fn open() -> DeviceId {
    device::open_model(&ModelOptions { lazy: true, ..Default::default() }).unwrap()
}

fn pool_of(device: DeviceId, text: &str) -> PoolId {
    pool::create(device, &spec::parse(text).unwrap()).unwrap()
}

fn stream_of(device: DeviceId) -> StreamId {
    stream::create(device, StreamFlags::default()).unwrap()
}

fn verified(path: &Path) -> ReplayReport {
    trace::replay(path, ReplayOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn is(error: Error, status: Status, words: &[&str]) {
    assert_eq!(error.status, status, "{error}");
    for word in words {
        assert!(error.message.contains(word), "{word:?} in {error}");
    }
}

// ---- recording -------------------------------------------------------------------------------------------------------

#[test]
fn a_device_that_holds_pages_cannot_begin_a_trace_and_no_file_is_made() {
    let folder = Folder::new("pages");
    let device = open();
    let pool = pool_of(device, "direct()");
    let id = pool::alloc(pool, 5, &Default::default()).unwrap();
    let path = folder.file("trace");
    is(trace::start(device, &path, 0).unwrap_err(), Status::NotPermitted, &["2097152 bytes", "trim"]);
    pool::free(id).unwrap();
    is(trace::start(device, &path, 0).unwrap_err(), Status::NotPermitted, &["2097152 bytes"]);
    assert!(!path.exists());
    pool::trim_to(pool, 0).unwrap();
    trace::start(device, &path, 0).unwrap();
    trace::stop(device).unwrap();
}

#[test]
fn a_device_with_unobserved_work_cannot_begin_a_trace() {
    let folder = Folder::new("work");
    let device = open();
    let stream = stream_of(device);
    stream::submit(device, stream, 1).unwrap();
    let path = folder.file("trace");
    is(trace::start(device, &path, 0).unwrap_err(), Status::NotPermitted, &["stream 1", "synchronise"]);
    stream::advance(device, stream, 1).unwrap(); // executed, but not observed
    is(trace::start(device, &path, 0).unwrap_err(), Status::NotPermitted, &["stream 1"]);
    stream::synchronize(device, stream).unwrap();
    trace::start(device, &path, 0).unwrap();
    trace::stop(device).unwrap();
}

#[test]
fn a_trace_of_a_device_at_rest_begins_with_a_note_of_its_streams_and_pools() {
    let folder = Folder::new("notes");
    let device = open();
    let gone = stream_of(device);
    let (a, b) = (stream_of(device), stream::create(device, StreamFlags { non_blocking: true, lazy: Some(false) }));
    let b = b.unwrap();
    stream::destroy(gone).unwrap();
    let event = event::create(device).unwrap();
    let pool = pool_of(device, "sliced(page_size=2MiB)");
    let other = pool_of(device, "preset(cuda)");
    // A life before the trace: sequence numbers, page addresses, counts and marks have moved on.
    for size in [100, 3 * MIB, 2 * MIB] {
        if let Ok(id) = pool::alloc_async(pool, size, a) {
            pool::free_async(id, b).unwrap();
        }
    }
    stream::submit(device, StreamId(0), 2).unwrap();
    event::record(device, event, a).unwrap();
    pool::set_attribute(pool, 2, 0).unwrap();
    device::synchronize(device).unwrap();
    pool::trim_to(pool, 0).unwrap();

    let path = folder.file("trace");
    trace::start(device, &path, 0).unwrap();
    stream::wait_event(device, b, event).unwrap(); // recorded before, observed: as good as new
    let first = pool::alloc_async(pool, 1000, a).unwrap();
    let second = pool::alloc_async(other, 1000, b).unwrap();
    pool::free_async(first, b).unwrap();
    stream::submit(device, StreamId(0), 1).unwrap();
    let third = pool::alloc_async(pool, 1000, stream_of(device)).unwrap();
    let address = pool::info(first).err().map(|_| pool::info(third).unwrap().address).unwrap();
    trace::stop(device).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    // One page was before: 3 MiB is not accepted, and 2 MiB is the free block and the rest of that page together, since the
    // eager stream's free has executed.
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[1].contains("base=0x53f0000000200000"), "{}", lines[1]);
    // Stream 1 (destroyed and observed) has left no trace; the numbers keep the order of creation.
    assert_eq!(lines[2], "note-stream 0 blocking lazy 2");
    assert_eq!(lines[3], "note-stream 1 blocking lazy 3"); // two allocations and an event record
    assert_eq!(lines[4], "note-stream 2 non-blocking eager 2"); // two frees
    assert_eq!(lines[5], "note-pool 1 sliced(page_size=2MiB, max_slice_size=2MiB); policies(opportunistic=off)");
    assert_eq!(lines[6], "note-pool 2 preset(cuda)");
    assert_eq!(lines[7], "event 1");
    assert!(text.contains(&format!("{address:#x}")), "addresses are the program's own");
    let report = verified(&path);
    assert_eq!((report.allocs, report.frees, report.streams), (3, 1, 4));
    pool::free_async(second, b).unwrap();
    pool::free_async(third, a).unwrap();
}

#[test]
fn a_device_is_recorded_once_at_a_time_and_may_be_recorded_again() {
    let folder = Folder::new("once");
    let device = open();
    let (first, second) = (folder.file("first"), folder.file("second"));
    is(trace::stop(device).unwrap_err(), Status::NotPermitted, &["nothing records"]);
    trace::start(device, &first, 0).unwrap();
    is(trace::start(device, &second, 0).unwrap_err(), Status::NotPermitted, &["recorded already"]);
    assert!(!second.exists());
    trace::stop(device).unwrap();
    is(trace::stop(device).unwrap_err(), Status::NotPermitted, &["nothing records"]);
    trace::start(device, &second, trace::TIME).unwrap();
    trace::stop(device).unwrap();
    assert_eq!(verified(&first).events, 0);
    assert_eq!(verified(&second).events, 0);
}

#[test]
fn a_file_takes_one_trace_at_a_time_by_whatever_name() {
    let folder = Folder::new("one-file");
    let (first, second) = (open(), open());
    let path = folder.file("trace");
    let (hard, soft) = (folder.file("hard"), folder.file("soft.gz"));
    std::fs::write(&path, "what was there before").unwrap();
    std::fs::hard_link(&path, &hard).unwrap();
    std::os::unix::fs::symlink(&path, &soft).unwrap();
    trace::start(first, &path, 0).unwrap();
    let pool = pool_of(first, "direct()");
    // More than the buffer holds, so that there is something in the file to lose.
    let work = |count| {
        for _ in 0..count {
            pool::free(pool::alloc(pool, 5, &Default::default()).unwrap()).unwrap();
        }
    };
    work(3000);
    let written = std::fs::metadata(&path).unwrap().len();
    assert!(written > 0);
    for name in [&path, &hard, &soft] {
        let name_text = name.display().to_string();
        is(trace::start(second, name, 0).unwrap_err(), Status::InvalidValue, &[&name_text, "another trace"]);
        is(trace::stop(second).unwrap_err(), Status::NotPermitted, &["nothing records"]);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), written, "{name_text}");
    }
    // Another file of that name is another file.
    std::fs::rename(&path, folder.file("moved")).unwrap();
    trace::start(second, &path, 0).unwrap();
    work(1);
    trace::stop(first).unwrap();
    trace::stop(second).unwrap();
    assert_eq!(verified(&hard).allocs, 3001);
    assert_eq!(verified(&path).allocs, 0);
    // A trace that is complete may be replaced.
    trace::start(second, &hard, 0).unwrap();
    trace::stop(second).unwrap();
    assert_eq!(verified(&hard).allocs, 0);
}

#[test]
fn what_is_no_regular_file_takes_several_traces() {
    let (first, second) = (open(), open());
    let null = Path::new("/dev/null");
    trace::start(first, null, 0).unwrap();
    trace::start(second, null, 0).unwrap();
    trace::stop(first).unwrap();
    trace::stop(second).unwrap();
}

#[test]
fn start_refuses_bad_devices_flags_and_folders() {
    let folder = Folder::new("bad");
    let device = open();
    let path = folder.file("trace");
    is(trace::start(DeviceId(0), &path, 0).unwrap_err(), Status::InvalidHandle, &["null"]);
    is(trace::stop(DeviceId(0)).unwrap_err(), Status::InvalidHandle, &["null"]);
    is(trace::start(device, &path, 2).unwrap_err(), Status::InvalidValue, &["flags"]);
    let nowhere = folder.file("no/such/folder");
    is(trace::start(device, &nowhere, 0).unwrap_err(), Status::Io, &[&nowhere.display().to_string()]);
    trace::start(device, &path, 0).unwrap(); // a refused start leaves nothing behind
    trace::stop(device).unwrap();
    device::close(device).unwrap();
    is(trace::start(device, &path, 0).unwrap_err(), Status::Destroyed, &[]);
}

#[test]
fn a_full_disk_does_not_disturb_the_program_and_is_answered_at_stop() {
    let full = Path::new("/dev/full");
    if !full.exists() {
        return; // only some systems have it
    }
    let device = open();
    trace::start(device, full, 0).unwrap();
    let (pool, stream) = (pool_of(device, "sliced(page_size=2MiB)"), stream_of(device));
    // Far more than any buffer holds.
    for _ in 0..20_000 {
        let id = pool::alloc_async(pool, 1000, stream).unwrap();
        pool::free_async(id, stream).unwrap();
    }
    assert_eq!(pool::stats(pool).unwrap().allocs, 20_000);
    is(trace::stop(device).unwrap_err(), Status::Io, &["/dev/full", "No space"]);
    is(trace::stop(device).unwrap_err(), Status::NotPermitted, &[]);
    // A little that only fails when flushed is answered as well.
    let device = open();
    trace::start(device, full, 0).unwrap();
    is(trace::stop(device).unwrap_err(), Status::Io, &["/dev/full"]);
}

#[test]
fn a_device_that_goes_without_stop_leaves_a_complete_file() {
    let folder = Folder::new("drop");
    for name in ["trace", "trace.gz"] {
        let path = folder.file(name);
        let device = open();
        trace::start(device, &path, 0).unwrap();
        let pool = pool_of(device, "direct()");
        let id = pool::alloc(pool, 5, &Default::default()).unwrap();
        pool::destroy(pool).unwrap();
        device::close(device).unwrap();
        pool::free(id).unwrap(); // the last block takes the pool along, and that the device
        let report = verified(&path);
        assert_eq!((report.allocs, report.frees), (1, 1), "{name}");
    }
}

#[test]
fn any_name_that_ends_in_gz_is_compressed_and_no_other() {
    let folder = Folder::new("names");
    for (name, packed) in [("a.gz", true), (".gz", true), ("gz", false), ("a.GZ", false), ("a.gz.csv", false)] {
        let path = folder.file(name);
        let device = open();
        trace::start(device, &path, 0).unwrap();
        trace::stop(device).unwrap();
        assert_eq!(std::fs::read(&path).unwrap().starts_with(&[0x1f, 0x8b]), packed, "{name}");
        verified(&path);
    }
}

#[test]
fn an_answer_that_a_callback_brought_about_is_not_there_before_it() {
    // Work on the legacy stream waits for the lazy one's; what the first question finds is not what the callback's
    // synchronise leaves to the second.
    let folder = Folder::new("brought");
    let path = folder.file("trace");
    let device = device::open_model(&ModelOptions::default()).unwrap();
    trace::start(device, &path, 0).unwrap();
    let pool = pool_of(device, "direct()");
    let lazy = stream::create(device, StreamFlags { non_blocking: false, lazy: Some(true) }).unwrap();
    let kept = pool::alloc(pool, 3 * MIB, &Default::default()).unwrap();
    let ours = pool::alloc(pool, 5 * MIB, &Default::default()).unwrap();
    stream::submit(device, lazy, 1).unwrap();
    let legacy = StreamId(0);
    stream::submit(device, legacy, 1).unwrap();
    pool::free_async(ours, legacy).unwrap();
    let callback =
        move |_: &pool::OutOfMemory| device::synchronize(device).is_ok() && pool::free_async(kept, lazy).is_ok();
    pool::set_out_of_memory_callback(pool, Some(Arc::new(callback))).unwrap();
    device::refuse_pages(device, 0, 99).unwrap();
    let asking = stream::create(device, StreamFlags { non_blocking: true, lazy: Some(false) }).unwrap();
    pool::alloc_async(pool, 9 * MIB, asking).unwrap_err();
    trace::stop(device).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text.matches("\nprogress ").count(), 2, "{text}");
    verified(&path);
}

#[test]
fn recording_neither_begins_nor_ends_inside_a_callback() {
    let folder = Folder::new("inside");
    let path = folder.file("trace");
    let device = open();
    let answers: Arc<Mutex<Vec<Error>>> = Arc::default();
    let pool = pool_of(device, "direct()");
    let (kept, other) = (answers.clone(), folder.file("other"));
    let callback = move |_: &pool::OutOfMemory| {
        kept.lock().unwrap().push(trace::stop(device).unwrap_err());
        kept.lock().unwrap().push(trace::start(device, &other, 0).unwrap_err());
        false
    };
    pool::set_out_of_memory_callback(pool, Some(Arc::new(callback))).unwrap();
    trace::start(device, &path, 0).unwrap();
    device::refuse_pages(device, 0, 9).unwrap();
    let stream = stream_of(device);
    pool::alloc_async(pool, 1, stream).unwrap_err();
    trace::stop(device).unwrap();
    for error in answers.lock().unwrap().drain(..) {
        is(error, Status::NotPermitted, &[]);
    }
    verified(&path);
}

#[test]
fn with_times_every_line_has_one_and_they_do_not_go_back() {
    let folder = Folder::new("times");
    let path = folder.file("trace.gz");
    let device = open();
    trace::start(device, &path, trace::TIME).unwrap();
    let (pool, stream) = (pool_of(device, "direct()"), stream_of(device));
    for _ in 0..50 {
        let id = pool::alloc_async(pool, 5, stream).unwrap();
        pool::free_async(id, stream).unwrap();
    }
    trace::stop(device).unwrap();
    let read = trace::read(&path).unwrap();
    assert!(read.header().unwrap().time);
    let times: Vec<u64> = read.map(|record| record.unwrap().time.expect("a time")).collect();
    assert!(times.len() > 150);
    assert!(times.windows(2).all(|pair| pair[0] <= pair[1]));
    assert!(verified(&path).verified);
}

#[test]
fn threads_are_recorded_in_an_order_that_replays() {
    let folder = Folder::new("threads");
    let path = folder.file("trace");
    let device = device::open_model(&ModelOptions::default()).unwrap();
    trace::start(device, &path, 0).unwrap();
    let pool = pool_of(device, "sliced(page_size=2MiB)");
    let events: Vec<_> = (0..4).map(|_| event::create(device).unwrap()).collect();
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let events = &events;
            scope.spawn(move || {
                // The thread's own default stream is made at its first use, in the middle of everything.
                let own = StreamId(2);
                for round in 0..300usize {
                    let id = pool::alloc_async(pool, 512 * (1 + round as u64 % 7), own).unwrap();
                    event::record(device, events[thread], own).unwrap();
                    stream::wait_event(device, own, events[(thread + 1) % 4]).unwrap();
                    if round % 5 == 0 {
                        pool::free(id).unwrap();
                    } else {
                        pool::free_async(id, if round % 3 == 0 { StreamId(0) } else { own }).unwrap();
                    }
                    if round % 50 == 0 {
                        stream::synchronize(device, own).unwrap();
                    }
                }
            });
        }
    });
    trace::stop(device).unwrap();
    let report = verified(&path);
    assert_eq!((report.allocs, report.frees), (1200, 1200));
}

#[test]
fn a_device_with_host_memory_is_recorded_by_model_addresses() {
    let folder = Folder::new("host");
    let path = folder.file("trace");
    let device = device::open_model(&ModelOptions { host_backing: true, ..Default::default() }).unwrap();
    trace::start(device, &path, 0).unwrap();
    let (pool, stream) = (pool_of(device, "sliced(page_size=2MiB)"), stream_of(device));
    let id = pool::alloc_async(pool, 100, stream).unwrap();
    let pointer = pool::pointer(id);
    assert_ne!(pointer, pool::info(id).unwrap().address);
    pool::access::note(device, pointer + 3, 1, stream, pool::access::AccessKind::Read).unwrap();
    pool::free_async(id, stream).unwrap();
    trace::stop(device).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("got 1 0x53f0000000000000 512 0 fresh 1\naccess 1+3 1 1 read\n"), "{text}");
    assert!(!text.contains(&format!("{pointer:x}")), "no pointer of this process");
    verified(&path);
}

// ---- replaying -------------------------------------------------------------------------------------------------------

const HEAD: &str = "smp-trace 2\n\
    device kind=model alignment=512 granularity=2097152 capacity=none lazy=yes base=0x53f0000000000000 time=no\n";

/// A trace of these lines, with its end line.
fn written(folder: &Folder, name: &str, lines: &str) -> std::path::PathBuf {
    let count = lines.lines().filter(|line| !line.starts_with('#')).count();
    folder.with(name, format!("{HEAD}{lines}end {count}\n"))
}

#[test]
fn a_stream_that_ran_on_its_own_is_run_as_far_as_the_recorded_answer_says() {
    let folder = Folder::new("progress");
    // Nobody advances stream 1, yet the device once answered that it had run: policy 2 (rule 6.4) then serves stream 2.
    let lines = |executed: u32, rest: &str| {
        format!(
            "pool 1 sliced(page_size=2MiB, max_slice_size=2MiB)\nstream 1 blocking lazy\nstream 2 blocking lazy\n\
             alloc 1 2097152 0 1\npage 1 0 2097152 0x53f0000000000000\ngot 1 0x53f0000000000000 2097152 0 fresh 1\n\
             free 1 1\nalloc 1 512 0 2\nprogress 1 {executed}\n{rest}"
        )
    };
    let reused = "got 2 0x53f0000000000000 512 0 opportunistic 1\n";
    verified(&written(&folder, "ran", &lines(2, reused)));
    let fresh = "page 1 0 2097152 0x53f0000000200000\ngot 2 0x53f0000000200000 512 0 fresh 1\n";
    verified(&written(&folder, "behind", &lines(1, fresh)));
    // The answer decides: with the other one the same allocation is a mismatch.
    let wrong = written(&folder, "wrong", &lines(1, reused));
    is(trace::replay(&wrong, ReplayOptions::default()).unwrap_err(), Status::ReplayMismatch, &["wrong:12:"]);
    let more = written(&folder, "more", &lines(3, reused));
    is(trace::replay(&more, ReplayOptions::default()).unwrap_err(), Status::ReplayMismatch, &["more:11:", "progress"]);
}

#[test]
fn pages_are_refused_and_kept_as_recorded() {
    let folder = Folder::new("answers");
    // The device has no capacity and no test switches: only the trace knows that it said no (rules 8.1 and 9).
    let lines = "pool 1 direct()\nstream 1 blocking lazy\n\
        alloc 1 512 0 1\npage-refused 1 0 2097152\nfail out-of-memory\n\
        alloc 1 512 0 1\npage 1 0 2097152 0x53f0000000000000\ngot 1 0x53f0000000000000 512 0 fresh 1\n\
        free 1 1\nsync 1\n\
        trim 1 0\npage-kept 1 0 2097152 0x53f0000000000000\n\
        trim 1 0\npage-released 1 0 2097152 0x53f0000000000000\n";
    let report = verified(&written(&folder, "trace", lines));
    let stats = report.pools[0].stats;
    assert_eq!((stats.page_refusals, stats.release_failures, stats.failures, stats.pages), (1, 1, 1, 0));
}

#[test]
fn a_callback_does_again_what_it_did_and_answers_what_it_answered() {
    let folder = Folder::new("callback");
    // Two pages' worth of cap; the callback frees one block, and the allocation finds it (same stream).
    let lines = |answer: &str, rest: &str| {
        format!(
            "pool 1 sliced(page_size=2MiB, max_slice_size=2MiB, max_pool_size=2MiB)\nstream 1 blocking lazy\n\
             alloc 1 2097152 0 1\npage 1 0 2097152 0x53f0000000000000\ngot 1 0x53f0000000000000 2097152 0 fresh 1\n\
             alloc 1 512 0 1\ncallback 1\nfree 1 1\ncallback-end 1 {answer}\n{rest}"
        )
    };
    let report =
        verified(&written(&folder, "again", &lines("retry", "got 2 0x53f0000000000000 512 0 same-stream 3\n")));
    assert_eq!((report.events, report.allocs, report.frees, report.failures), (5, 2, 1, 0));
    let report = verified(&written(&folder, "not", &lines("give-up", "fail capacity-exceeded\n")));
    assert_eq!((report.allocs, report.frees, report.failures), (1, 1, 1));
    let wrong = written(&folder, "wrong", &lines("give-up", "got 2 0x53f0000000000000 512 0 same-stream 3\n"));
    is(trace::replay(&wrong, ReplayOptions::default()).unwrap_err(), Status::ReplayMismatch, &["wrong:12:", "fail"]);
}

#[test]
fn with_other_pools_the_calls_are_the_trace_s_and_the_answers_are_not() {
    let folder = Folder::new("other");
    let lines = "pool 1 sliced(page_size=2MiB, max_slice_size=2MiB, max_pool_size=2MiB)\nstream 1 blocking lazy\n\
        alloc 1 2097152 0 1\npage 1 0 2097152 0x53f0000000000000\ngot 1 0x53f0000000000000 2097152 0 fresh 1\n\
        alloc 1 512 0 1\ncallback 1\nfree 1 1\ncallback-end 1 give-up\nfail capacity-exceeded\n\
        alloc 1 1000 0 1\ngot 2 0x53f0000000000000 1024 0 same-stream 3\nuser 2 0\naccess 2+8 4 1 write\nfree 2 1\n";
    let path = written(&folder, "trace", lines);
    verified(&path);
    let with = |text| trace::replay(&path, ReplayOptions { pools: Some(text), ..Default::default() });
    // Exclusive pages serve what failed before; it is given back at once, for the program had nothing to free. What the
    // program did inside its callback is done although no callback was needed.
    let report = with("exclusive()").unwrap();
    assert!(!report.verified);
    assert_eq!((report.allocs, report.frees, report.failures), (3, 3, 0));
    assert_eq!(report.reserved_peak, 4 * MIB);
    assert_eq!(report.pools[0].spec, "exclusive()");
    // An entry that takes nothing above 512 B: two of three fail, and what the trace does with them is passed over.
    let report = with("exclusive(max_alloc_size=512)").unwrap();
    assert_eq!((report.allocs, report.frees, report.failures), (1, 1, 2));
    is(with("sliced(page_size=0)").unwrap_err(), Status::InvalidConfig, &["page_size"]);
    is(with("sliced(page_size=1MB)").unwrap_err(), Status::SpecSyntax, &["MiB"]);
}

#[test]
fn a_pool_asked_for_that_cannot_be_is_named_and_not_the_trace_s() {
    let folder = Folder::new("asked");
    let second = written(&folder, "pool", "pool 1 direct()\n");
    let noted = written(&folder, "note", "note-pool 1 direct()\n");
    let first = folder.with("v1", "op,id,size,stream\na,0,512,0\n");
    for path in [second, noted, first] {
        let options = ReplayOptions { pools: Some("preset(driver)"), ..Default::default() };
        let error = trace::replay(&path, options).unwrap_err();
        assert!(!error.message.contains("direct()"), "{error}");
        is(error, Status::NotSupported, &["preset(driver)", "CUDA"]);
    }
}

#[test]
fn without_verifying_the_device_answers_for_itself() {
    let folder = Folder::new("unverified");
    let lines =
        "pool 1 direct()\nstream 1 blocking lazy\nalloc 1 512 0 1\npage-refused 1 0 2097152\nfail out-of-memory\n";
    let path = written(&folder, "trace", lines);
    assert_eq!(verified(&path).failures, 1);
    let report = trace::replay(&path, ReplayOptions { verify: false, ..Default::default() }).unwrap();
    assert_eq!((report.failures, report.verified), (0, false));
    assert_eq!(report.reserved_peak, 2 * MIB);
}

#[test]
fn pending_bytes_are_those_whose_free_has_not_executed() {
    let folder = Folder::new("pending");
    // Live 1000, freed behind a kernel; live 500 beside it: 1500 held. After the advance only the new block counts.
    let lines = "pool 1 sliced(page_size=2MiB, max_slice_size=2MiB)\nstream 1 blocking lazy\nstream 2 blocking lazy\n\
        alloc 1 1000 0 1\npage 1 0 2097152 0x53f0000000000000\ngot 1 0x53f0000000000000 1024 0 fresh 1\n\
        free 1 1\n\
        alloc 1 500 0 2\nprogress 1 0\ngot 2 0x53f0000000000400 512 0 fresh 1\n\
        advance 1 9 2\n\
        alloc 1 900 0 2\nprogress 1 2\ngot 3 0x53f0000000000000 1024 0 opportunistic 2\n";
    let path = folder.with("trace", format!("{HEAD}{lines}end 14\n"));
    let report = trace::replay(&path, ReplayOptions { verify: false, ..Default::default() }).unwrap();
    assert_eq!((report.live_peak, report.live_plus_pending_peak), (1400, 1500));
}

#[test]
fn a_note_of_what_is_freed_or_wild_is_replayed_too() {
    let folder = Folder::new("wild");
    let device = open();
    let path = folder.file("trace");
    trace::start(device, &path, 0).unwrap();
    let (pool, stream) = (pool_of(device, "direct()"), stream_of(device));
    let id = pool::alloc_async(pool, 512, stream).unwrap();
    let at = pool::info(id).unwrap().address;
    let write = pool::access::AccessKind::Write;
    pool::access::note(device, at + 4, 8, stream, write).unwrap();
    pool::free_async(id, stream).unwrap();
    pool::access::note(device, at + 4, 8, stream, write).unwrap();
    pool::access::note(device, 12345, 8, stream, write).unwrap();
    trace::stop(device).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    for line in ["access 1+4 8 1 write", "access 0x53f0000000000004 8 1 write", "access 0x3039 8 1 write"] {
        assert!(text.contains(line), "{line} in {text}");
    }
    assert_eq!(verified(&path).events, 7);
}

#[test]
fn a_trace_that_is_wrong_is_refused_with_file_and_line() {
    let folder = Folder::new("wrong");
    let ok = "pool 1 direct()\nstream 1 blocking lazy\nevent 1\n"; // lines 3, 4, 5
    let got = "alloc 1 5 0 1\npage 1 0 2097152 0x53f0000000000000\ngot 1 0x53f0000000000000 512 0 fresh 1\n"; // 6, 7, 8
    for (lines, line, word) in [
        (format!("{ok}fly 1\n"), 6, "unknown word \"fly\""),
        (format!("{ok}submit 1\n"), 6, "count is missing"),
        (format!("{ok}submit 1 many\n"), 6, "count is not a number"),
        (format!("{ok}submit 1 1 1\n"), 6, "too much"),
        (format!("{ok}submit 2 1\n"), 6, "stream 2 is not known"),
        (format!("{ok}submit 1 0\n"), 6, "count"),
        (format!("{ok}record 2 1 1\n"), 6, "event 2 is not known"),
        (format!("{ok}trim 2 0\n"), 6, "pool 2 is not known"),
        (format!("{ok}free 1 1\n"), 6, "allocation 1 is not live"),
        (format!("{ok}stream 1 blocking lazy\n"), 6, "there already"),
        (format!("{ok}event 1\n"), 6, "there already"),
        (format!("{ok}pool 1 direct()\n"), 6, "there already"),
        (format!("{ok}pool 2 direct(\n"), 6, "column 8"),
        (format!("{ok}pool 2 sliced(page_size=0)\n"), 6, "page_size"),
        (
            format!("{ok}{got}{}", got.replace("53f0000000000000", "53f0000000200000")),
            11,
            "allocation 1 is there already",
        ),
        (format!("{ok}{got}free 1 1\nfree 1 1\n"), 10, "allocation 1 is not live"),
        (format!("{ok}progress 1 1\n"), 6, "answer"),
        (format!("{ok}fail out-of-memory\n"), 6, "allocation"),
        (format!("{ok}callback-end 1 retry\n"), 6, "not begun"),
        (format!("{ok}alloc 1 5 0 1\n"), 6, "inside an allocation"),
        (format!("{ok}alloc 1 5 0 1\nsubmit 1 1\n"), 7, "got or fail"),
        (format!("{ok}alloc 1 5 0 1\ncallback 1\n"), 7, "inside a callback"),
        (format!("{ok}figures 2 used=1\n"), 6, "pool 2 is not known"),
        (format!("{ok}attribute 1 5 0\n"), 6, "read-only"),
        (format!("{ok}\n"), 6, "empty"),
        (format!("{ok}note-stream 2 blocking lazy 281474976710657\n"), 6, "2^48"),
    ] {
        let path = written(&folder, "trace", &lines);
        // Lenient as well as verified: what is wrong with a trace is wrong in either.
        for verify in [true, false] {
            let error = trace::replay(&path, ReplayOptions { verify, ..Default::default() }).unwrap_err();
            assert!(matches!(error.status, Status::TraceSyntax | Status::ReplayMismatch), "{error}");
            let place = format!("{}:{line}: ", path.display());
            // The end of the file is one line further for what is only found missing there.
            let end = format!("{}:{}: ", path.display(), line + 1);
            let missing = word.starts_with("inside");
            assert!(error.message.starts_with(&place) || missing && error.message.starts_with(&end), "{error}");
            if error.status == Status::TraceSyntax || !verify {
                assert!(error.message.contains(word), "{word:?} in {error}");
            }
        }
    }
}

#[test]
fn a_header_that_is_wrong_is_refused_with_its_line() {
    let folder = Folder::new("header");
    let device = HEAD.lines().nth(1).unwrap();
    for (text, line, word) in [
        ("", 1, "empty"),
        ("smp-trace 3\n", 1, "version"),
        ("smp-trace 2\n", 2, "device"),
        ("smp-trace 2\npool 1 direct()\n", 2, "device"),
        (&format!("smp-trace 2\n{}\nend 0\n", device.replace("model", "abacus")), 2, "abacus"),
        (&format!("smp-trace 2\n{}\nend 0\n", device.replace("=512", "=x")), 2, "alignment is not a number"),
        (&format!("smp-trace 2\n{}\nend 0\n", device.replace("=512", "=500")), 2, "power of two"),
        (&format!("smp-trace 2\n{}\nend 0\n", device.replace("lazy=yes ", "")), 2, "expected lazy="),
        (&format!("smp-trace 2\n{device} more=1\nend 0\n"), 2, "too much"),
        (&format!("{HEAD}pool 1 direct()\n"), 4, "without its end line"),
        (&format!("{HEAD}pool 1 direct()\nend 2\n"), 4, "the trace has 1 lines"),
        (&format!("{HEAD}end 0\nsync-device\n"), 4, "after the end line"),
        (&format!("{}sync-device\nend 1\n", HEAD.replace("time=no", "time=yes")), 3, "time is not a number"),
    ] {
        let path = folder.with("trace", text);
        let error = trace::replay(&path, ReplayOptions::default()).unwrap_err();
        is(error, Status::TraceSyntax, &[&format!("{}:{line}: ", path.display()), word]);
    }
}

#[test]
fn comments_and_the_line_ends_of_other_systems_are_read() {
    let folder = Folder::new("comments");
    let text = format!("{HEAD}# from a test\nsync-device\n# so\nend 1\n# end\n\n").replace('\n', "\r\n");
    let path = folder.with("trace", text);
    let lines: Vec<_> = trace::read(&path).unwrap().map(|record| record.unwrap()).collect();
    assert_eq!(lines[0].item, Item::Line(Line::SyncDevice));
    assert_eq!((lines.len(), lines[0].line, lines[1].line), (2, 4, 6));
    assert_eq!(verified(&path).events, 1);
}

#[test]
fn a_refusal_of_addresses_is_replayed_as_one() {
    let folder = Folder::new("range-refused");
    let path = folder.file("t.smp");
    // Most hosts have no memory for a range of this size; where one has, it is the chunks that are refused.
    let options = ModelOptions { host_backing: true, capacity: 8 * MIB, ..Default::default() };
    let device = device::open_model(&options).unwrap();
    trace::start(device, &path, 0).unwrap();
    let pool = pool_of(device, "mapped(range_size=16MiB)");
    let s = stream_of(device);
    let small = pool::alloc_async(pool, MIB, s).unwrap();
    let large = pool::alloc(pool, 1 << 40, &Default::default());
    assert!(large.is_err_and(|error| error.status == Status::OutOfMemory));
    pool::free_async(small, s).unwrap();
    trace::stop(device).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("-refused 1 0 1099511627776"), "{text}");
    assert!(verified(&path).verified);
}

#[test]
fn a_callback_may_record_another_device_while_the_recording_of_its_own_ends() {
    let folder = Folder::new("callback-and-end");
    let (own, other) = (open(), open());
    let pool = pool_of(own, "direct()");
    device::set_capacity(own, MIB).unwrap();
    let beside = folder.file("beside.smp");
    let callback = move |_: &_| {
        trace::start(other, &beside, 0).unwrap();
        trace::stop(other).unwrap();
        false
    };
    pool::set_out_of_memory_callback(pool, Some(Arc::new(callback))).unwrap();
    let (done, wait) = std::sync::mpsc::channel();
    let over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (ended, file) = (over.clone(), folder.file("own.smp"));
    std::thread::spawn(move || {
        for _ in 0..300 {
            // While the other thread is in a call it may be refused, and its trace be no whole one.
            let _ = trace::start(own, &file, 0);
            std::thread::yield_now();
            let _ = trace::stop(own);
        }
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    std::thread::spawn(move || {
        while !over.load(std::sync::atomic::Ordering::Relaxed) {
            pool::alloc_async(pool, 4 * MIB, StreamId(0)).unwrap_err();
        }
        done.send(()).unwrap();
    });
    wait.recv_timeout(std::time::Duration::from_secs(200)).expect("neither waits for the other for ever");
}
