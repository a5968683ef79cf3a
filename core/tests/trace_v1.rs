//! Version-1 traces: what their lines mean, and what is refused. Figures are counted by hand from the placement rules.

mod trace_common;

use flate2::Compression;
use flate2::write::GzEncoder;
use smp_core::Status;
use smp_core::trace::{self, Item, ReplayOptions, ReplayReport};
use std::io::Write;
use trace_common::Folder;

const MIB: u64 = 1 << 20;

fn replayed(folder: &Folder, text: &str, pools: Option<&str>) -> ReplayReport {
    let path = folder.with("trace", text);
    trace::replay(&path, ReplayOptions { pools, ..Default::default() }).unwrap_or_else(|error| panic!("{error}"))
}

fn packed(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn the_figures_are_those_counted_by_hand() {
    let folder = Folder::new("v1-figures");
    let report = replayed(
        &folder,
        "op,id,size,stream,thread\n\
         a,0,1000,0,0\n\
         a,1,2000,0,0\n\
         f,0,1000,0,0\n\
         a,2,500,0,0\n\
         a,3,2097152,0,0\n\
         f,1,2000,0,0\n\
         f,2,500,0,0\n\
         f,3,2097152,0,0\n\
         a,4,2097152,0,0\n",
        Some("sliced(page_size=2MiB)"),
    );
    assert_eq!((report.version, report.events, report.allocs, report.frees, report.failures), (1, 9, 5, 4, 0));
    assert_eq!(report.live_peak, 2000 + 500 + 2_097_152);
    assert_eq!(report.live_plus_pending_peak, report.live_peak, "every stream runs at once");
    assert_eq!(report.used_peak, 2048 + 512 + 2_097_152);
    assert_eq!((report.reserved_peak, report.pages_peak, report.device_calls), (4 * MIB, 2, 2));
    assert_eq!((report.streams, report.pools.len()), (1, 1));
    assert_eq!(report.name, "trace");
    assert_eq!(report.pools[0].stats.reuse.same_stream, 2, "allocations 2 and 4");
}

#[test]
fn each_stream_is_a_blocking_one_and_a_free_may_name_another() {
    let folder = Folder::new("v1-streams");
    // Allocation 2 on stream 9 takes what stream 9 freed: same stream, although stream 5 allocated it.
    let report = replayed(
        &folder,
        "op,id,size,stream\na,1,600,5\nf,1,600,9\na,2,600,9\nf,2,,\na,3,600,9\n",
        Some("sliced(page_size=2MiB); policies(follow_event_dependencies=off, opportunistic=off)"),
    );
    assert_eq!(report.pools[0].stats.reuse.same_stream, 2, "a free without a stream is on its allocation's");
    assert_eq!(report.pools[0].stats.unordered_frees, 1);
    assert_eq!(report.streams, 2);
}

#[test]
fn a_device_call_costs_what_it_is_taken_to_cost() {
    let folder = Folder::new("v1-cost");
    let path = folder.with("trace", "op,id,size,stream\na,0,1,0\na,1,1,0\n");
    let options = ReplayOptions { pools: Some("direct()"), device_call_ns: 1_000_000_000, ..Default::default() };
    let report = trace::replay(&path, options).unwrap();
    assert_eq!(report.device_calls, 2);
    assert!((2_000_000_000..3_000_000_000).contains(&report.elapsed_ns), "{}", report.elapsed_ns);
    assert_eq!(report.ns_per_event, report.elapsed_ns as f64 / 2.0);
}

#[test]
fn a_failed_allocation_is_counted_and_its_free_passed_over() {
    let folder = Folder::new("v1-failed");
    let text = "op,id,size,stream\na,0,2097152,0\na,1,2097152,0\nf,1,2097152,0\nf,0,2097152,0\n";
    let report = replayed(&folder, text, Some("sliced(page_size=2MiB, max_pool_size=2MiB)"));
    assert_eq!((report.failures, report.allocs, report.frees, report.live_peak), (1, 1, 1, 2 * MIB));
}

#[test]
fn gzip_is_told_by_content_and_not_by_name() {
    let folder = Folder::new("v1-gzip");
    let text = "op,id,size,stream\na,0,100,0\nf,0,100,0\n";
    let [plain, gzip] = [folder.with("plain.gz", text), folder.with("gzip.csv", packed(text))];
    for path in [plain, gzip] {
        assert_eq!(trace::replay(&path, ReplayOptions::default()).unwrap().events, 2);
    }
    // Two gzip members one after the other are one file.
    let (first, second) = text.split_at(20);
    let both = folder.with("both", [packed(first), packed(second)].concat());
    assert_eq!(trace::replay(&both, ReplayOptions::default()).unwrap().events, 2);
}

#[test]
fn line_ends_may_be_missing_at_the_end_or_those_of_other_systems() {
    let folder = Folder::new("v1-ends");
    assert_eq!(replayed(&folder, "op,id,size,stream\r\na,0,5,0\r\n\r\nf,0,5,0", None).events, 2);
}

#[test]
fn the_reader_gives_lines_with_their_numbers_and_frees_with_their_allocation() {
    let folder = Folder::new("v1-read");
    let path = folder.with("trace", "op,id,size,stream,thread\na,4,7,3,1\nf,4,,\n");
    let mut read = trace::read(&path).unwrap();
    assert_eq!((read.version(), read.header()), (1, None));
    let first = read.next().unwrap().unwrap();
    assert_eq!((first.line, first.item), (2, Item::Requested { id: 4, size: 7, stream: 3 }));
    let second = read.next().unwrap().unwrap();
    assert_eq!((second.line, second.item), (3, Item::Returned { id: 4, size: 7, stream: 3 }));
    assert!(read.next().is_none());
}

#[test]
fn a_malformed_line_is_refused_with_file_and_line() {
    let folder = Folder::new("v1-wrong");
    let good = "op,id,size,stream\na,0,512,0\n"; // lines 1 and 2
    for (text, line, word) in [
        ("".to_owned(), 1, "empty"),
        ("a,0,512,0\n".into(), 1, "header"),
        ("op;id;size;stream\n".into(), 1, "header"),
        (format!("{good}x,1,512,0\n"), 3, "unknown op \"x\""),
        (format!("{good},1,512,0\n"), 3, "unknown op"),
        (format!("{good}a,1\n"), 3, "column size is missing"),
        (format!("{good}a,1,5\n"), 3, "column stream is missing"),
        (format!("{good}a\n"), 3, "column id is missing"),
        (format!("{good}a,1,5,0,0,0\n"), 3, "too many columns"),
        (format!("{good}a,one,5,0\n"), 3, "id is not a number"),
        (format!("{good}a,1,five,0\n"), 3, "size is not a number"),
        (format!("{good}a,1,-1,0\n"), 3, "size is not a number"),
        (format!("{good}a,1, 5,0\n"), 3, "size is not a number"),
        (format!("{good}a,1,99999999999999999999,0\n"), 3, "size is not a number"),
        (format!("{good}a,1,5,s\n"), 3, "stream is not a number"),
        (format!("{good}a,1,5,0,t\n"), 3, "thread is not a number"),
        (format!("{good}a,0,512,0\n"), 3, "allocation 0 is there already"),
        (format!("{good}f,1,512,0\n"), 3, "allocation 1, which is not known"),
        (format!("{good}f,0,513,0\n"), 3, "has 512 bytes"),
        (format!("{good}f,0,512,0\nf,0,512,0\n"), 4, "freed already"),
        (format!("{good}f,0,512,0\na,0,512,0\n"), 4, "there already"),
    ] {
        let path = folder.with("trace", &text);
        let error = trace::replay(&path, ReplayOptions::default()).unwrap_err();
        assert_eq!(error.status, Status::TraceSyntax, "{text:?}: {error}");
        assert!(error.message.starts_with(&format!("{}:{line}: ", path.display())), "{text:?}: {error}");
        assert!(error.message.contains(word), "{text:?}: {word:?} in {error}");
    }
}

#[test]
fn bytes_that_are_no_text_and_endless_lines_are_refused() {
    let folder = Folder::new("v1-bytes");
    for (bytes, word) in [
        (b"op,id,size,stream\na,0,\xff,0\n".to_vec(), "UTF-8"),
        ([b"op,id,size,stream\na,0,".to_vec(), vec![b'1'; 2 << 20]].concat(), "longer than"),
    ] {
        let path = folder.with("trace", bytes);
        let error = trace::replay(&path, ReplayOptions::default()).unwrap_err();
        assert_eq!(error.status, Status::TraceSyntax);
        assert!(error.message.contains(":2: ") && error.message.contains(word), "{error}");
    }
}

#[test]
fn gzip_that_ends_early_or_is_damaged_is_refused() {
    let folder = Folder::new("v1-cut");
    let mut text = "op,id,size,stream\n".to_owned();
    for id in 0..5000 {
        text.push_str(&format!("a,{id},{},0\n", id * 37 % 1000));
    }
    let whole = packed(&text);
    for length in [3, 11, whole.len() / 2, whole.len() - 1] {
        let path = folder.with("cut.gz", &whole[..length]);
        let error = trace::replay(&path, ReplayOptions::default()).unwrap_err();
        assert_eq!(error.status, Status::TraceSyntax, "{length} bytes: {error}");
        assert!(error.message.contains("cut.gz:") && error.message.contains("ends early"), "{length} bytes: {error}");
    }
    let mut damaged = whole.clone();
    let end = damaged.len() - 6; // in the checksum
    damaged[end] ^= 1;
    let path = folder.with("bad.gz", damaged);
    let error = trace::replay(&path, ReplayOptions::default()).unwrap_err();
    assert_eq!(error.status, Status::TraceSyntax);
    assert!(error.message.contains("bad.gz:5002: ") && error.message.contains("damaged"), "{error}");
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let folder = Folder::new("v1-none");
    let path = folder.file("absent");
    let error = trace::replay(&path, ReplayOptions::default()).unwrap_err();
    assert_eq!(error.status, Status::Io);
    assert!(error.message.contains(&path.display().to_string()), "{error}");
    assert_eq!(trace::replay(std::env::temp_dir(), ReplayOptions::default()).unwrap_err().status, Status::Io);
}

#[test]
fn progress_goes_forward_to_the_end_of_the_file() {
    let folder = Folder::new("v1-progress");
    let mut text = "op,id,size,stream\n".to_owned();
    for id in 0..100_000 {
        text.push_str(&format!("a,{id},512,0\nf,{id},512,0\n"));
    }
    let path = folder.with("trace", &text);
    let mut seen = Vec::new();
    let mut progress = |done, total| seen.push((done, total));
    let report = trace::replay(&path, ReplayOptions { progress: Some(&mut progress), ..Default::default() }).unwrap();
    assert_eq!(report.events, 200_000);
    assert!(seen.len() > 10);
    assert!(seen.windows(2).all(|pair| pair[0].0 <= pair[1].0));
    assert!(seen.iter().all(|&(done, total)| done <= total && total == text.len() as u64));
    assert_eq!(seen.last(), Some(&(text.len() as u64, text.len() as u64)));
}
