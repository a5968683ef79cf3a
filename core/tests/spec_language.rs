//! The pool specification language of `docs/pool-spec.md`: what it means, what it refuses and where, and that the
//! canonical form reads back.

use smp_core::pool::spec::{format, parse};
use smp_core::{MemoryPoolConfig, PoolConfig, Preset, Status};

const MIB: u64 = 1 << 20;

fn sliced(page_size: u64) -> MemoryPoolConfig {
    MemoryPoolConfig::Sliced { page_size, max_slice_size: None, max_pool_size: None, dealloc_period: None }
}

#[test]
fn entries_are_read_in_order_with_their_options() {
    let config = parse(
        "sliced(page_size=64MiB, max_slice_size=8MiB, max_pool_size=1GiB, dealloc_period=100); direct(reclaim_at=4096); \
         exclusive(max_alloc_size=3KiB, dealloc_period=7); cuda(max_pool_size=2TiB); direct(); exclusive(); cuda()",
    )
    .unwrap();
    let entries = vec![
        MemoryPoolConfig::Sliced {
            page_size: 64 * MIB,
            max_slice_size: Some(8 * MIB),
            max_pool_size: Some(1 << 30),
            dealloc_period: Some(100),
        },
        MemoryPoolConfig::Direct { reclaim_at: Some(4096) },
        MemoryPoolConfig::Exclusive { max_alloc_size: 3072, dealloc_period: Some(7) },
        MemoryPoolConfig::Cuda { max_pool_size: Some(2 << 40) },
        MemoryPoolConfig::Direct { reclaim_at: None },
        MemoryPoolConfig::Exclusive { max_alloc_size: u64::MAX, dealloc_period: None },
        MemoryPoolConfig::Cuda { max_pool_size: None },
    ];
    assert_eq!(config, PoolConfig::with_entries(entries));
}

#[test]
fn presets_are_the_presets() {
    for (text, preset) in [
        ("preset(cuda)", Preset::Cuda),
        ("preset(sub-slices)", Preset::SubSlices),
        ("preset(exclusive-pages)", Preset::ExclusivePages),
    ] {
        assert_eq!(parse(text).unwrap(), PoolConfig::preset(preset));
        assert_eq!(format(&PoolConfig::preset(preset)), text);
    }
    let capped = parse("preset(cuda, max_pool_size=1GiB)").unwrap();
    assert_eq!(capped.entries, [MemoryPoolConfig::Cuda { max_pool_size: Some(1 << 30) }]);
    assert_eq!((capped.preset, capped.release_threshold), (Some(Preset::Cuda), 0));
}

#[test]
fn none_is_the_absence_of_a_limit_everywhere() {
    let long = "sliced(page_size=1MiB, max_slice_size=none, max_pool_size=none, dealloc_period=none); \
                direct(reclaim_at=none); exclusive(max_alloc_size=none, dealloc_period=none); cuda(max_pool_size=none); \
                release_threshold(none)";
    assert_eq!(parse(long), parse("sliced(page_size=1MiB); direct(); exclusive(); cuda()"));
}

#[test]
fn options_stand_anywhere_in_the_list() {
    let config = parse(
        "sync_on_oom(on); policies(follow_event_dependencies=off, opportunistic=off, internal_dependencies=off); \
         direct(); release_threshold(64MiB)",
    )
    .unwrap();
    let expected = PoolConfig {
        follow_event_dependencies: false,
        allow_opportunistic: false,
        allow_internal_dependencies: false,
        release_threshold: 64 * MIB,
        sync_on_oom: true,
        ..PoolConfig::with_entries(vec![MemoryPoolConfig::Direct { reclaim_at: None }])
    };
    assert_eq!(config, expected);
    let on = parse("policies(opportunistic=on); direct(); sync_on_oom(off)").unwrap();
    assert_eq!(on, parse("direct()").unwrap());
}

#[test]
fn the_threshold_is_never_unless_the_preset_or_the_text_says_otherwise() {
    assert_eq!(parse("cuda()").unwrap().release_threshold, u64::MAX);
    assert_eq!(parse("preset(cuda)").unwrap().release_threshold, 0);
    assert_eq!(parse("preset(cuda); release_threshold(none)").unwrap().release_threshold, u64::MAX);
    assert_eq!(parse("direct(); release_threshold(0)").unwrap().release_threshold, 0);
    assert_eq!(parse("like(cuda); direct()").unwrap().release_threshold, 0);
}

#[test]
fn like_keeps_the_name_and_takes_other_entries() {
    let config = parse("like(cuda); sliced(page_size=1MiB)").unwrap();
    assert_eq!((config.preset, config.entries), (Some(Preset::Cuda), vec![sliced(MIB)]));
}

#[test]
fn units_are_powers_of_1024_and_spaces_do_not_matter() {
    for (text, bytes) in [
        ("512", 512),
        ("512B", 512),
        ("3KiB", 3 << 10),
        ("3MiB", 3 << 20),
        ("3GiB", 3 << 30),
        ("3TiB", 3 << 40),
        ("16777215TiB", 16_777_215 << 40),
        ("18446744073709551615", u64::MAX),
    ] {
        assert_eq!(parse(&format!("sliced(page_size={text})")).unwrap().entries, [sliced(bytes)], "{text}");
        assert_eq!(parse(&format!(" sliced\t( page_size\n= {text} )  ")).unwrap().entries, [sliced(bytes)], "{text}");
    }
}

/// The text is refused at this column (from 1), and the message says each of the words.
#[track_caller]
fn refused(text: &str, column: usize, words: &[&str]) {
    let error = parse(text).unwrap_err();
    assert_eq!(error.status, Status::SpecSyntax, "{text:?}");
    let place = format!("column {column}:");
    assert!(error.message.contains(&place), "{text:?}: {} does not name {place}", error.message);
    for word in words {
        assert!(error.message.contains(word), "{text:?}: {} does not say {word:?}", error.message);
    }
}

#[test]
fn decimal_units_are_refused_and_the_binary_one_is_suggested() {
    refused("sliced(page_size=64MB)", 18, &["64MB", "64MiB"]);
    refused("sliced(page_size=64kb)", 18, &["64KiB"]);
    refused("sliced(page_size=64G)", 18, &["64GiB"]);
    refused("sliced(page_size=64tib)", 18, &["64TiB"]);
    refused("sliced(page_size=1.5GiB)", 18, &["1.5GiB"]);
    refused("direct(reclaim_at=7parsecs)", 19, &["parsecs", "MiB"]);
}

#[test]
fn what_is_wrong_is_named_with_its_column() {
    refused("", 1, &["empty"]);
    refused("   ", 4, &["empty"]);
    refused("nonsense", 1, &["nonsense", "sliced"]);
    refused("direct(); nonsense()", 11, &["nonsense"]);
    refused("direct", 7, &["'('"]);
    refused("sliced(page_size=64MiB", 23, &["the end"]);
    refused("sliced(page_size=64MiB; direct()", 23, &["';'"]);
    refused("sliced()", 1, &["page_size"]);
    refused("sliced(page_size=none)", 1, &["page_size"]);
    refused("sliced(page_size=)", 18, &["a value"]);
    refused("sliced(page_size)", 8, &["key=value"]);
    refused("sliced(page_size=-1)", 18, &["a size"]);
    refused("sliced(page_size=1MiB,)", 23, &["a key"]);
    refused("sliced(64MiB)", 8, &["key=value"]);
    refused("direct() direct()", 10, &["';'"]);
    refused("direct();", 10, &["after ';'"]);
    refused("direct();;direct()", 10, &["entry"]);
    refused("direct() x", 10, &["';'"]);
    refused("direct()é", 9, &["'é'"]);
    refused("é", 1, &["'é'"]);
    refused("policies(opportunistic=maybe); direct()", 24, &["on or off", "maybe"]);
    refused("policies(on); direct()", 10, &["key=value"]);
    refused("sync_on_oom(yes); direct()", 13, &["on or off"]);
    refused("sync_on_oom(); direct()", 1, &["one value"]);
    refused("release_threshold(1, 2); direct()", 1, &["one value"]);
    refused("release_threshold(bytes=1); direct()", 19, &["no key"]);
    refused("exclusive(dealloc_period=3KiB)", 26, &["no unit"]);
    refused("preset(other)", 8, &["other", "cuda", "driver"]);
    refused("preset()", 1, &["one name"]);
    refused("preset(sub-slices, max_pool_size=1MiB)", 20, &["max_pool_size"]);
    refused("sync_on_oom(on)", 16, &["no entry"]);
    refused("like(cuda)", 1, &["entries"]);
    refused("preset(cuda); direct()", 15, &["like("]);
    refused(&"x".repeat(70_000), 1, &["65536"]);
}

#[test]
fn unknown_keys_are_refused_with_their_column() {
    refused("sliced(page_size=64MiB, colour=3)", 25, &["colour", "max_slice_size"]);
    refused("direct(page_size=1)", 8, &["page_size", "reclaim_at"]);
    refused("cuda(page_size=1)", 6, &["page_size"]);
    refused("policies(speed=on); direct()", 10, &["speed"]);
}

#[test]
fn repeated_keys_and_options_are_refused_with_their_column() {
    refused("sliced(page_size=64MiB, page_size=64MiB)", 25, &["page_size", "twice"]);
    refused("direct(); sync_on_oom(on); sync_on_oom(on)", 28, &["sync_on_oom", "twice"]);
    refused("direct(); release_threshold(1); release_threshold(1)", 33, &["release_threshold", "twice"]);
    refused("policies(); direct(); policies()", 23, &["policies", "twice"]);
    refused("preset(cuda); preset(cuda)", 15, &["one preset"]);
    refused("like(cuda); direct(); preset(cuda)", 23, &["one preset"]);
}

#[test]
fn overflow_is_refused_with_its_column() {
    refused("sliced(page_size=18446744073709551616)", 18, &["64 bits"]);
    refused("sliced(page_size=99999999999999999999)", 18, &["64 bits"]);
    refused("sliced(page_size=17179869184GiB)", 18, &["64 bits"]);
    refused("exclusive(dealloc_period=18446744073709551616)", 26, &["64 bits"]);
}

#[test]
fn the_canonical_form_leaves_defaults_out_and_takes_the_largest_unit() {
    for (text, canonical) in [
        ("sliced( page_size=65536KiB,max_slice_size = 1025KiB )", "sliced(page_size=64MiB, max_slice_size=1025KiB)"),
        ("exclusive(max_alloc_size=0); release_threshold(none)", "exclusive(max_alloc_size=0)"),
        ("direct(reclaim_at=1000B); policies(opportunistic=on)", "direct(reclaim_at=1000)"),
        (
            "sync_on_oom(on); policies(internal_dependencies=off, follow_event_dependencies=off); direct()",
            "direct(); policies(follow_event_dependencies=off, internal_dependencies=off); sync_on_oom(on)",
        ),
        ("like(sub-slices); direct()", "like(sub-slices); direct()"),
        ("preset(cuda, max_pool_size=1024MiB); release_threshold(0)", "preset(cuda, max_pool_size=1GiB)"),
        ("preset(cuda, max_pool_size=none)", "preset(cuda)"),
    ] {
        assert_eq!(format(&parse(text).unwrap()), canonical);
    }
}

/// A small generator of its own, so that a seed gives the same configurations everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
    /// Sizes of every magnitude, round and not, ends included.
    fn size(&mut self) -> u64 {
        match self.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => self.below(2048),
            3 => self.next(),
            _ => self.below(4096) << (10 * self.below(5)),
        }
    }
    fn option(&mut self) -> Option<u64> {
        if self.below(2) == 0 { None } else { Some(self.size()) }
    }
    fn entry(&mut self) -> MemoryPoolConfig {
        match self.below(4) {
            0 => MemoryPoolConfig::Exclusive { max_alloc_size: self.size(), dealloc_period: self.option() },
            1 => MemoryPoolConfig::Direct { reclaim_at: self.option() },
            2 => MemoryPoolConfig::Sliced {
                page_size: self.size(),
                max_slice_size: self.option(),
                max_pool_size: self.option(),
                dealloc_period: self.option(),
            },
            _ => MemoryPoolConfig::Cuda { max_pool_size: self.option() },
        }
    }
    fn config(&mut self) -> PoolConfig {
        let preset =
            [None, Some(Preset::Cuda), Some(Preset::Driver), Some(Preset::SubSlices), Some(Preset::ExclusivePages)]
                [self.below(5) as usize];
        let entries = match preset {
            Some(preset) if self.below(2) == 0 => PoolConfig::preset(preset).entries,
            _ => (0..=self.below(4)).map(|_| self.entry()).collect(),
        };
        PoolConfig {
            entries,
            follow_event_dependencies: self.below(2) == 0,
            allow_opportunistic: self.below(2) == 0,
            allow_internal_dependencies: self.below(2) == 0,
            release_threshold: self.size(),
            sync_on_oom: self.below(2) == 0,
            waive_capture_check: self.below(2) == 0,
            preset,
        }
    }
}

#[test]
fn every_configuration_reads_back_from_its_canonical_form() {
    let mut random = Random(20_261_129);
    for round in 0..50_000 {
        let config = random.config();
        let text = format(&config);
        let read = parse(&text).unwrap_or_else(|error| panic!("round {round}: {text:?}: {error}"));
        assert_eq!(read, config, "round {round}: {text:?}");
        assert_eq!(format(&read), text, "round {round}: the canonical form is its own");
    }
}

#[test]
fn no_text_makes_the_reader_panic_and_refusals_name_a_column_inside() {
    let mut random = Random(7);
    let seeds = [
        "sliced(page_size=64MiB, max_slice_size=8MiB); direct(); policies(opportunistic=off); sync_on_oom(on)",
        "preset(cuda, max_pool_size=1GiB); release_threshold(none)",
        "like(exclusive-pages); exclusive(max_alloc_size=0, dealloc_period=18446744073709551615)",
    ];
    let pieces =
        ["(", ")", ";", ",", "=", "none", "MB", "é", "\u{0}", "99999999999999999999", "preset(cuda)", " ", "-"];
    let (mut good, mut bad) = (0, 0);
    for _ in 0..100_000 {
        let mut text: Vec<char> = seeds[random.below(3) as usize].chars().collect();
        for _ in 0..=random.below(3) {
            let place = random.below(text.len() as u64 + 1) as usize;
            match random.below(3) {
                0 if place < text.len() => {
                    text.remove(place);
                }
                1 => {
                    text.truncate(place);
                }
                _ => {
                    let piece = pieces[random.below(pieces.len() as u64) as usize];
                    text.splice(place..place, piece.chars());
                }
            }
        }
        let length = text.len();
        let text: String = text.into_iter().collect();
        match parse(&text) {
            Ok(config) => {
                assert_eq!(parse(&format(&config)).as_ref(), Ok(&config), "{text:?}");
                good += 1;
            }
            Err(error) => {
                assert_eq!(error.status, Status::SpecSyntax);
                let column = error.message.split("column ").nth(1).and_then(|rest| rest.split(':').next());
                let column: usize = column.and_then(|text| text.parse().ok()).expect("a column");
                assert!((1..=length + 1).contains(&column), "{text:?}: {error}");
                bad += 1;
            }
        }
    }
    assert!(good > 1000 && bad > 1000, "{good} read, {bad} refused: both must happen for this to show anything");
}
