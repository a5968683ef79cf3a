//! Reports of a pool: a table for people, and the same as JSON.

use crate::error::Result;
use crate::handle::PoolId;
use crate::pool::{self, Compared, PoolConfig, Stats, spec};
use std::fmt::Write;

/// Everything a report tells, read one after the other: figures of a pool in use may be of slightly different moments.
struct Facts {
    config: PoolConfig,
    fell_back: bool,
    pool: Stats,
    entries: Vec<Stats>,
    /// Preset *driver*: the attributes by the model and by the driver. Empty elsewhere, or where the driver does not answer.
    driver: Vec<Compared>,
}

fn facts(pool: PoolId) -> Result<Facts> {
    let config = pool::config(pool)?;
    let entries = (0..pool::entry_count(pool)?).map(|index| pool::entry_stats(pool, index)).collect::<Result<_>>()?;
    let fell_back = pool::fell_back(pool)?;
    let driver = pool::compare_with_driver(pool).unwrap_or_default();
    Ok(Facts { config, fell_back, pool: pool::stats(pool)?, entries, driver })
}

/// A figure: its name, whether it is bytes, whether an entry has it too, and where it is.
type Figure = (&'static str, bool, bool, fn(&Stats) -> u64);

const FIGURES: &[Figure] = &[
    ("requested", true, true, |s| s.requested),
    ("used", true, true, |s| s.used),
    ("used_high", true, true, |s| s.used_high),
    ("padding", true, true, |s| s.padding),
    ("reserved", true, true, |s| s.reserved),
    ("reserved_high", true, true, |s| s.reserved_high),
    ("pending_bytes", true, true, |s| s.pending_bytes),
    ("largest_free", true, true, |s| s.largest_free),
    ("metadata_bytes", true, true, |s| s.metadata_bytes),
    ("live", false, true, |s| s.live),
    ("pending", false, true, |s| s.pending),
    ("pages", false, true, |s| s.pages),
    ("pages_high", false, true, |s| s.pages_high),
    ("allocs", false, true, |s| s.allocs),
    ("frees", false, true, |s| s.frees),
    ("failures", false, false, |s| s.failures),
    ("page_allocs", false, true, |s| s.page_allocs),
    ("page_frees", false, true, |s| s.page_frees),
    ("page_refusals", false, true, |s| s.page_refusals),
    ("release_failures", false, true, |s| s.release_failures),
    ("device_calls", false, true, |s| s.device_calls),
    ("chunk_moves", false, true, |s| s.chunk_moves),
    ("ranges", false, true, |s| s.ranges),
    ("progress_queries", false, false, |s| s.progress_queries),
    ("host_syncs", false, false, |s| s.host_syncs),
    ("internal_waits", false, true, |s| s.internal_waits),
    ("unordered_frees", false, true, |s| s.unordered_frees),
    ("racing_frees", false, false, |s| s.racing_frees),
    ("splits", false, true, |s| s.splits),
    ("merges", false, true, |s| s.merges),
];

/// A reason of reuse and how often it was.
type Reason = (&'static str, fn(&Stats) -> u64);

const REASONS: &[Reason] = &[
    ("same_stream", |s| s.reuse.same_stream),
    ("observed", |s| s.reuse.observed),
    ("event", |s| s.reuse.event),
    ("opportunistic", |s| s.reuse.opportunistic),
    ("internal", |s| s.reuse.internal),
    ("fresh", |s| s.reuse.fresh),
];

/// Names of CUDA's pool attributes 1 to 8.
const ATTRIBUTES: [&str; 8] = [
    "reuse_follow_event_dependencies",
    "reuse_allow_opportunistic",
    "reuse_allow_internal_dependencies",
    "release_threshold",
    "reserved_mem_current",
    "reserved_mem_high",
    "used_mem_current",
    "used_mem_high",
];

/// The specification of one entry alone.
fn entry_spec(config: &PoolConfig, index: usize) -> String {
    match config.entries.get(index) {
        Some(entry) => spec::format(&PoolConfig::with_entries(vec![entry.clone()])),
        None => String::new(),
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.2} MiB", bytes as f64 / f64::from(1 << 20))
}

/// A table for people: sizes in MiB beside the exact bytes, the pool first, then each entry.
///
/// # Errors
/// Bad pool handle.
pub fn text(pool: PoolId) -> Result<String> {
    let facts = facts(pool)?;
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(out, "pool  {}", spec::format(&facts.config));
    if facts.fell_back {
        let _ = writeln!(out, "  the device cannot map memory: sliced entries stand in for mapped ones");
    }
    table(&mut out, &facts.pool, false);
    for (index, entry) in facts.entries.iter().enumerate() {
        let _ = writeln!(out, "entry {index}  {}", entry_spec(&facts.config, index));
        table(&mut out, entry, true);
    }
    if !facts.driver.is_empty() {
        let _ = writeln!(out, "driver  attributes of its own pool beside what the documented rules come to");
        for &Compared { attribute, model, driver } in &facts.driver {
            let name = format!("{attribute} {}", ATTRIBUTES[(attribute as usize - 1).min(7)].replace('_', " "));
            let _ = writeln!(out, "  {name:<24}{driver:>22}{model:>22}");
        }
    }
    Ok(out)
}

fn table(out: &mut String, stats: &Stats, entry: bool) {
    for (name, is_bytes, in_entry, of) in FIGURES {
        if entry && !in_entry {
            continue;
        }
        let (label, value) = (name.replace('_', " "), of(stats));
        let _ = if *is_bytes {
            writeln!(out, "  {label:<18}{:>18}{value:>22} B", mib(value))
        } else {
            writeln!(out, "  {label:<18}{:>18}{value:>22}", "")
        };
    }
    let reasons: Vec<String> =
        REASONS.iter().map(|(name, of)| format!("{} {}", name.replace('_', " "), of(stats))).collect();
    let _ = writeln!(out, "  {:<18}{}", "blocks came from", reasons.join(", "));
}

/// One JSON object: `spec`, `policies`, `release_threshold` (null: never), `sync_on_oom`, `mapping_fell_back` (sliced
/// entries stand in for mapped ones), `figures`, with preset *driver* `driver` (each attribute by the `driver` and by the
/// `model`), and `entries`, each with `spec` and `figures`. Sizes are bytes; numbers go up to 2^64 − 1.
///
/// # Errors
/// Bad pool handle.
pub fn json(pool: PoolId) -> Result<String> {
    let facts = facts(pool)?;
    let config = &facts.config;
    let threshold = match config.release_threshold {
        u64::MAX => "null".to_owned(),
        bytes => bytes.to_string(),
    };
    let mut out = String::new();
    let _ = write!(
        out,
        "{{\"spec\":{},\"policies\":{{\"follow_event_dependencies\":{},\"opportunistic\":{},\
         \"internal_dependencies\":{}}},\"release_threshold\":{threshold},\"sync_on_oom\":{},\"mapping_fell_back\":{},\"figures\":",
        quoted(&spec::format(config)),
        config.follow_event_dependencies,
        config.allow_opportunistic,
        config.allow_internal_dependencies,
        config.sync_on_oom,
        facts.fell_back
    );
    object(&mut out, &facts.pool, false);
    if !facts.driver.is_empty() {
        let both = |&Compared { attribute, model, driver }: &Compared| {
            let name = ATTRIBUTES[(attribute as usize - 1).min(7)];
            format!("\"{name}\":{{\"driver\":{driver},\"model\":{model}}}")
        };
        let all: Vec<String> = facts.driver.iter().map(both).collect();
        let _ = write!(out, ",\"driver\":{{{}}}", all.join(","));
    }
    out.push_str(",\"entries\":[");
    for (index, entry) in facts.entries.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let _ = write!(out, "{comma}{{\"spec\":{},\"figures\":", quoted(&entry_spec(config, index)));
        object(&mut out, entry, true);
        out.push('}');
    }
    out.push_str("]}");
    Ok(out)
}

fn object(out: &mut String, stats: &Stats, entry: bool) {
    out.push('{');
    for (name, _, in_entry, of) in FIGURES {
        if !entry || *in_entry {
            let _ = write!(out, "\"{name}\":{},", of(stats));
        }
    }
    let reasons: Vec<String> = REASONS.iter().map(|(name, of)| format!("\"{name}\":{}", of(stats))).collect();
    let _ = write!(out, "\"reuse\":{{{}}}}}", reasons.join(","));
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if u32::from(c) < 0x20 => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{self, ModelOptions};
    use crate::handle::StreamId;

    #[test]
    fn strings_are_escaped() {
        assert_eq!(quoted("a\"b\\c\n\r\t\u{1}ä"), "\"a\\\"b\\\\c\\n\\r\\t\\u0001ä\"");
    }

    /// Reads a JSON value; answers what is left. Strict enough to refuse what is not JSON.
    fn skip_json(text: &str) -> std::result::Result<&str, String> {
        let fail = || Err(format!("not JSON at {:?}", &text[..text.len().min(30)]));
        match text.chars().next() {
            Some('{') => {
                let mut rest = &text[1..];
                if let Some(rest) = rest.strip_prefix('}') {
                    return Ok(rest);
                }
                loop {
                    if !rest.starts_with('"') {
                        return fail();
                    }
                    rest = skip_json(rest)?;
                    rest = skip_json(rest.strip_prefix(':').ok_or("no colon")?)?;
                    match rest.chars().next() {
                        Some(',') => rest = &rest[1..],
                        Some('}') => return Ok(&rest[1..]),
                        _ => return fail(),
                    }
                }
            }
            Some('[') => {
                let mut rest = &text[1..];
                if let Some(rest) = rest.strip_prefix(']') {
                    return Ok(rest);
                }
                loop {
                    rest = skip_json(rest)?;
                    match rest.chars().next() {
                        Some(',') => rest = &rest[1..],
                        Some(']') => return Ok(&rest[1..]),
                        _ => return fail(),
                    }
                }
            }
            Some('"') => match text[1..].find('"') {
                Some(end) if !text[1..=end].contains('\\') => Ok(&text[end + 2..]),
                _ => fail(),
            },
            Some('0'..='9') => Ok(text.trim_start_matches(|c: char| c.is_ascii_digit())),
            _ => match ["true", "false", "null"].iter().find_map(|word| text.strip_prefix(word)) {
                Some(rest) => Ok(rest),
                None => fail(),
            },
        }
    }

    fn a_pool(spec: &str) -> PoolId {
        let device = device::open_model(&ModelOptions::default()).unwrap();
        let pool = pool::create(device, &spec::parse(spec).unwrap()).unwrap();
        pool::alloc_async(pool, 1000, StreamId(0)).unwrap();
        device::close(device).unwrap();
        pool
    }

    #[test]
    fn the_json_is_json_and_has_the_figures() {
        let pool = a_pool("sliced(page_size=2MiB, max_slice_size=1MiB); direct(); release_threshold(3)");
        let json = json(pool).unwrap();
        assert_eq!(skip_json(&json), Ok(""), "{json}");
        let spec = "\"spec\":\"sliced(page_size=2MiB, max_slice_size=1MiB); direct(); release_threshold(3)\"";
        // A request of 1000 B uses 1024 B of a page of 2 MiB.
        for part in [
            spec,
            "\"release_threshold\":3",
            "\"requested\":1000,\"used\":1024",
            "\"padding\":24",
            "\"reserved\":2097152",
            "\"fresh\":1}",
            "\"entries\":[{\"spec\":\"sliced(page_size=2MiB, max_slice_size=1MiB)\"",
            "{\"spec\":\"direct()\"",
        ] {
            assert!(json.contains(part), "{part} in {json}");
        }
        assert_eq!(json.matches("\"used\":1024").count(), 2, "the pool and its first entry");
        assert_eq!(json.matches("\"used\":0").count(), 1, "the second entry");
    }

    #[test]
    fn the_table_shows_mebibytes_and_exact_bytes() {
        let text = text(a_pool("preset(cuda)")).unwrap();
        assert!(text.starts_with("pool  preset(cuda)\n"), "{text}");
        let reserved = text.lines().find(|line| line.trim_start().starts_with("reserved ")).unwrap();
        assert!(reserved.contains("32.00 MiB") && reserved.ends_with("33554432 B"), "{reserved}");
        assert!(text.contains("\nentry 0  cuda()\n"), "{text}");
        assert!(text.lines().all(|line| line.len() < 120), "{text}");
    }

    #[test]
    fn a_bad_pool_is_refused() {
        assert_eq!(text(PoolId(0)).unwrap_err().status, crate::Status::InvalidHandle);
        assert_eq!(json(PoolId(0)).unwrap_err().status, crate::Status::InvalidHandle);
    }
}
