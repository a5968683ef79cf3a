//! Pool specifications: a pool's configuration as one line of text, read and written.
//!
//! The grammar is published in `docs/pool-spec.md`. [`parse`] judges syntax only; whether the sizes make a pool is
//! judged where the pool is created. [`format`](format()) writes the canonical form: what is a default is left out, and
//! parsing it gives the same configuration back.

use super::config::{DEFAULT_CHUNK, DEFAULT_RANGE, MemoryPoolConfig, PoolConfig, Preset};
use crate::error::{Error, Result, Status};
use std::fmt::Write;

/// The longest specification that is read, bytes.
const MAX_LENGTH: usize = 1 << 16;

const UNITS: [(&str, u64); 5] = [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];

const PRESETS: [(&str, Preset); 5] = [
    ("cuda", Preset::Cuda),
    ("driver", Preset::Driver),
    ("mapped", Preset::Mapped),
    ("sub-slices", Preset::SubSlices),
    ("exclusive-pages", Preset::ExclusivePages),
];

/// Reads a specification such as `sliced(page_size=64MiB, max_slice_size=8MiB); direct()` or `preset(cuda)`.
///
/// # Errors
/// [`Status::SpecSyntax`]; the message starts with the column, counted in characters from 1.
pub fn parse(spec: &str) -> Result<PoolConfig> {
    let mut parser = Parser { spec, at: 0 };
    if spec.len() > MAX_LENGTH {
        return Err(parser.fail(0, format_args!("a specification has at most {MAX_LENGTH} bytes")));
    }
    let mut found = Found::default();
    parser.skip_space();
    if parser.rest().is_empty() {
        return Err(parser.fail(parser.at, "the specification is empty"));
    }
    loop {
        parser.item(&mut found)?;
        parser.skip_space();
        if parser.rest().is_empty() {
            break;
        }
        if !parser.take(';') {
            return Err(parser.expected("';' or the end"));
        }
        parser.skip_space();
        if parser.rest().is_empty() {
            return Err(parser.expected("an entry or option after ';'"));
        }
    }
    found.finish(&parser)
}

/// Writes a configuration in the canonical form. A configuration without entries, which no pool can have, gives a text
/// that does not parse.
pub fn format(config: &PoolConfig) -> String {
    let mut items = Vec::new();
    let name = |preset| PRESETS.iter().find(|known| known.1 == preset).map_or("", |known| known.0);
    match config.preset {
        Some(preset) if PoolConfig::preset(preset).entries == config.entries => {
            items.push(format!("preset({})", name(preset)));
        }
        Some(preset @ (Preset::Cuda | Preset::Driver))
            if matches!(config.entries[..], [MemoryPoolConfig::Cuda { .. }]) =>
        {
            if let [MemoryPoolConfig::Cuda { max_pool_size: Some(cap) }] = config.entries[..] {
                items.push(format!("preset({}, max_pool_size={})", name(preset), size_text(cap)));
            }
        }
        Some(preset) => {
            items.push(format!("like({})", name(preset)));
            items.extend(config.entries.iter().map(entry_text));
        }
        None => items.extend(config.entries.iter().map(entry_text)),
    }
    let policies = [
        ("follow_event_dependencies", config.follow_event_dependencies),
        ("opportunistic", config.allow_opportunistic),
        ("internal_dependencies", config.allow_internal_dependencies),
    ];
    let off: Vec<String> =
        policies.iter().filter(|policy| !policy.1).map(|policy| format!("{}=off", policy.0)).collect();
    if !off.is_empty() {
        items.push(format!("policies({})", off.join(", ")));
    }
    if config.release_threshold != default_threshold(config.preset) {
        let value = match config.release_threshold {
            u64::MAX => "none".to_owned(),
            bytes => size_text(bytes),
        };
        items.push(format!("release_threshold({value})"));
    }
    if config.sync_on_oom {
        items.push("sync_on_oom(on)".to_owned());
    }
    if config.waive_capture_check {
        items.push("waive_capture_check(on)".to_owned());
    }
    items.join("; ")
}

fn default_threshold(preset: Option<Preset>) -> u64 {
    preset.map_or(u64::MAX, |preset| PoolConfig::preset(preset).release_threshold)
}

/// Bytes in the largest unit that divides them.
fn size_text(bytes: u64) -> String {
    match UNITS.iter().skip(1).rev().find(|unit| bytes != 0 && bytes.is_multiple_of(unit.1)) {
        Some((unit, factor)) => format!("{}{unit}", bytes / factor),
        None => bytes.to_string(),
    }
}

fn entry_text(entry: &MemoryPoolConfig) -> String {
    let mut keys: Vec<(&str, String)> = Vec::new();
    let kind = match *entry {
        MemoryPoolConfig::Exclusive { max_alloc_size, dealloc_period } => {
            if max_alloc_size != u64::MAX {
                keys.push(("max_alloc_size", size_text(max_alloc_size)));
            }
            keys.extend(dealloc_period.map(|period| ("dealloc_period", period.to_string())));
            "exclusive"
        }
        MemoryPoolConfig::Direct { reclaim_at } => {
            keys.extend(reclaim_at.map(|bytes| ("reclaim_at", size_text(bytes))));
            "direct"
        }
        MemoryPoolConfig::Sliced { page_size, max_slice_size, max_pool_size, dealloc_period } => {
            keys.push(("page_size", size_text(page_size)));
            keys.extend(max_slice_size.map(|bytes| ("max_slice_size", size_text(bytes))));
            keys.extend(max_pool_size.map(|bytes| ("max_pool_size", size_text(bytes))));
            keys.extend(dealloc_period.map(|period| ("dealloc_period", period.to_string())));
            "sliced"
        }
        MemoryPoolConfig::Cuda { max_pool_size } => {
            keys.extend(max_pool_size.map(|bytes| ("max_pool_size", size_text(bytes))));
            "cuda"
        }
        MemoryPoolConfig::Mapped { range_size, chunk_size, max_pool_size, dealloc_period } => {
            if range_size != DEFAULT_RANGE {
                keys.push(("range_size", size_text(range_size)));
            }
            if chunk_size != DEFAULT_CHUNK {
                keys.push(("chunk_size", size_text(chunk_size)));
            }
            keys.extend(max_pool_size.map(|bytes| ("max_pool_size", size_text(bytes))));
            keys.extend(dealloc_period.map(|period| ("dealloc_period", period.to_string())));
            "mapped"
        }
    };
    let mut text = format!("{kind}(");
    for (index, (key, value)) in keys.iter().enumerate() {
        let comma = if index == 0 { "" } else { ", " };
        let _ = write!(text, "{comma}{key}={value}");
    }
    text.push(')');
    text
}

/// What was read so far. Positions are bytes into the specification.
#[derive(Default)]
struct Found {
    entries: Vec<MemoryPoolConfig>,
    first_entry: Option<usize>,
    /// The preset and where; `true`: its entries are taken too.
    preset: Option<(Preset, usize, bool)>,
    preset_cap: Option<u64>,
    policies: Option<[bool; 3]>,
    threshold: Option<u64>,
    sync_on_oom: Option<bool>,
    waive_capture_check: Option<bool>,
}

impl Found {
    fn finish(self, parser: &Parser<'_>) -> Result<PoolConfig> {
        let mut config = match self.preset {
            Some((preset, _, true)) => {
                if let Some(at) = self.first_entry {
                    return Err(parser.fail(
                        at,
                        "preset(...) brings its own entries; write like(...) to list others under its name",
                    ));
                }
                PoolConfig::preset(preset)
            }
            Some((preset, at, false)) if self.entries.is_empty() => {
                let why = format!("like({}) needs entries beside it", preset_name(preset));
                return Err(parser.fail(at, why));
            }
            None if self.entries.is_empty() => {
                return Err(parser.fail(parser.spec.len(), "the specification names no entry and no preset"));
            }
            other => PoolConfig {
                preset: other.map(|(preset, ..)| preset),
                release_threshold: default_threshold(other.map(|(preset, ..)| preset)),
                ..PoolConfig::with_entries(self.entries)
            },
        };
        if self.preset_cap.is_some() {
            config.entries = vec![MemoryPoolConfig::Cuda { max_pool_size: self.preset_cap }];
        }
        if let Some([follow, opportunistic, internal]) = self.policies {
            config.follow_event_dependencies = follow;
            config.allow_opportunistic = opportunistic;
            config.allow_internal_dependencies = internal;
        }
        if let Some(threshold) = self.threshold {
            config.release_threshold = threshold;
        }
        config.sync_on_oom = self.sync_on_oom.unwrap_or(false);
        config.waive_capture_check = self.waive_capture_check.unwrap_or(false);
        Ok(config)
    }
}

fn preset_name(preset: Preset) -> &'static str {
    PRESETS.iter().find(|known| known.1 == preset).map_or("?", |known| known.0)
}

/// One value between parentheses: `key=text` or `text` alone, with the places they start at.
struct Argument<'a> {
    key: Option<(&'a str, usize)>,
    value: &'a str,
    at: usize,
}

struct Parser<'a> {
    spec: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.spec[self.at..]
    }

    /// The error at byte `at`.
    fn fail(&self, at: usize, why: impl std::fmt::Display) -> Error {
        let column = self.spec.get(..at).map_or(0, |before| before.chars().count()) + 1;
        Error::new(Status::SpecSyntax, format_args!("pool specification, column {column}: {why}"))
    }

    fn expected(&self, what: &str) -> Error {
        match self.rest().chars().next() {
            Some(found) => self.fail(self.at, format_args!("expected {what}, found {found:?}")),
            None => self.fail(self.at, format_args!("expected {what}, found the end")),
        }
    }

    fn skip_space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\n', '\r']).len();
    }

    fn take(&mut self, wanted: char) -> bool {
        let found = self.rest().starts_with(wanted);
        if found {
            self.at += wanted.len_utf8();
        }
        found
    }

    /// A run of letters, digits, `_`, `-` and `.`; may be empty.
    fn word(&mut self) -> (&'a str, usize) {
        let (rest, at) = (self.rest(), self.at);
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || "_-.".contains(c))).unwrap_or(rest.len());
        self.at += end;
        (&rest[..end], at)
    }

    fn arguments(&mut self, of: &str) -> Result<Vec<Argument<'a>>> {
        self.skip_space();
        if !self.take('(') {
            return Err(self.expected(&format!("'(' after {of}")));
        }
        let mut arguments: Vec<Argument<'a>> = Vec::new();
        self.skip_space();
        if self.take(')') {
            return Ok(arguments);
        }
        loop {
            self.skip_space();
            let (word, at) = self.word();
            if word.is_empty() {
                return Err(self.expected(&format!("a key or value of {of}")));
            }
            self.skip_space();
            if self.take('=') {
                self.skip_space();
                let (value, value_at) = self.word();
                if value.is_empty() {
                    return Err(self.expected(&format!("a value for {word}")));
                }
                if arguments.iter().any(|known| known.key.is_some_and(|(key, _)| key == word)) {
                    return Err(self.fail(at, format_args!("{word} is given twice")));
                }
                arguments.push(Argument { key: Some((word, at)), value, at: value_at });
            } else {
                arguments.push(Argument { key: None, value: word, at });
            }
            self.skip_space();
            if self.take(')') {
                return Ok(arguments);
            }
            if !self.take(',') {
                return Err(self.expected("',' or ')'"));
            }
        }
    }

    fn item(&mut self, found: &mut Found) -> Result<()> {
        let (name, at) = self.word();
        let keys: &[&str] = match name {
            "exclusive" => &["max_alloc_size", "dealloc_period"],
            "direct" => &["reclaim_at"],
            "sliced" => &["page_size", "max_slice_size", "max_pool_size", "dealloc_period"],
            "cuda" => &["max_pool_size"],
            "mapped" => &["range_size", "chunk_size", "max_pool_size", "dealloc_period"],
            "preset" => &["max_pool_size"],
            "policies" => &["follow_event_dependencies", "opportunistic", "internal_dependencies"],
            "like" | "release_threshold" | "sync_on_oom" | "waive_capture_check" => &[],
            "" => return Err(self.expected("an entry or option")),
            _ => {
                return Err(self.fail(
                    at,
                    format_args!(
                        "{name:?} is no entry or option; there are mapped, sliced, direct, exclusive, cuda, preset, like, \
                         policies, release_threshold, sync_on_oom, waive_capture_check"
                    ),
                ));
            }
        };
        let arguments = self.arguments(name)?;
        for argument in &arguments {
            match argument.key {
                Some((key, at)) if !keys.contains(&key) => {
                    return Err(self.fail(
                        at,
                        match keys {
                            [] => format!("{name} takes no key, got {key:?}"),
                            _ => format!("{name} has no key {key:?}; there are {}", keys.join(", ")),
                        },
                    ));
                }
                _ => {}
            }
        }
        let is_entry = matches!(name, "exclusive" | "direct" | "sliced" | "cuda" | "mapped" | "policies");
        if let Some(bare) = arguments.iter().find(|argument| argument.key.is_none())
            && is_entry
        {
            return Err(self.fail(bare.at, format_args!("{name} takes key=value, got {:?}", bare.value)));
        }
        let size = |key: &str| -> Result<Option<u64>> {
            match arguments.iter().find(|argument| argument.key.is_some_and(|(known, _)| known == key)) {
                Some(argument) => self.size(argument),
                None => Ok(None),
            }
        };
        let count = |key: &str| -> Result<Option<u64>> {
            match arguments.iter().find(|argument| argument.key.is_some_and(|(known, _)| known == key)) {
                Some(argument) => self.count(key, argument),
                None => Ok(None),
            }
        };
        let twice = || self.fail(at, format_args!("{name} is given twice"));
        let entry = match name {
            "exclusive" => MemoryPoolConfig::Exclusive {
                max_alloc_size: size("max_alloc_size")?.unwrap_or(u64::MAX),
                dealloc_period: count("dealloc_period")?,
            },
            "direct" => MemoryPoolConfig::Direct { reclaim_at: size("reclaim_at")? },
            "sliced" => MemoryPoolConfig::Sliced {
                page_size: size("page_size")?
                    .ok_or_else(|| self.fail(at, "sliced needs page_size, as in sliced(page_size=32MiB)"))?,
                max_slice_size: size("max_slice_size")?,
                max_pool_size: size("max_pool_size")?,
                dealloc_period: count("dealloc_period")?,
            },
            "cuda" => MemoryPoolConfig::Cuda { max_pool_size: size("max_pool_size")? },
            "mapped" => MemoryPoolConfig::Mapped {
                range_size: size("range_size")?.unwrap_or(DEFAULT_RANGE),
                chunk_size: size("chunk_size")?.unwrap_or(DEFAULT_CHUNK),
                max_pool_size: size("max_pool_size")?,
                dealloc_period: count("dealloc_period")?,
            },
            "preset" | "like" => {
                if found.preset.is_some() {
                    return Err(self.fail(at, "a specification has at most one preset(...) or like(...)"));
                }
                let mut bare = arguments.iter().filter(|argument| argument.key.is_none());
                let (Some(first), None) = (bare.next(), bare.next()) else {
                    return Err(self.fail(
                        at,
                        format_args!("{name} takes one name: cuda, driver, mapped, sub-slices or exclusive-pages"),
                    ));
                };
                let Some(&(_, preset)) = PRESETS.iter().find(|known| known.0 == first.value) else {
                    return Err(self.fail(
                        first.at,
                        format_args!(
                            "{:?} is no preset; there are cuda, driver, mapped, sub-slices, exclusive-pages",
                            first.value
                        ),
                    ));
                };
                if let Some(Argument { key: Some((key, key_at)), .. }) = arguments.iter().find(|a| a.key.is_some())
                    && !matches!(preset, Preset::Cuda | Preset::Driver)
                {
                    return Err(self.fail(*key_at, format_args!("preset({}) has no key {key:?}", first.value)));
                }
                found.preset = Some((preset, at, name == "preset"));
                found.preset_cap = size("max_pool_size")?;
                return Ok(());
            }
            "policies" => {
                if found.policies.is_some() {
                    return Err(twice());
                }
                let mut on = [true; 3];
                for argument in &arguments {
                    let index = argument.key.and_then(|(key, _)| keys.iter().position(|known| *known == key));
                    if let Some(index) = index {
                        on[index] = self.switch(argument)?;
                    }
                }
                found.policies = Some(on);
                return Ok(());
            }
            _ => {
                let [argument] = &arguments[..] else {
                    return Err(self.fail(at, format_args!("{name} takes one value")));
                };
                if name == "release_threshold" {
                    if found.threshold.is_some() {
                        return Err(twice());
                    }
                    found.threshold = Some(self.size(argument)?.unwrap_or(u64::MAX));
                } else {
                    let on = self.switch(argument)?;
                    let place =
                        if name == "sync_on_oom" { &mut found.sync_on_oom } else { &mut found.waive_capture_check };
                    if place.replace(on).is_some() {
                        return Err(twice());
                    }
                }
                return Ok(());
            }
        };
        found.first_entry.get_or_insert(at);
        found.entries.push(entry);
        Ok(())
    }

    fn switch(&self, argument: &Argument<'_>) -> Result<bool> {
        match argument.value {
            "on" => Ok(true),
            "off" => Ok(false),
            other => Err(self.fail(argument.at, format_args!("expected on or off, found {other:?}"))),
        }
    }

    /// The digits at the start of a value and what follows them.
    fn number(&self, argument: &Argument<'a>, what: &str) -> Result<(u64, &'a str)> {
        let text = argument.value;
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (digits, unit) = text.split_at(end);
        if digits.is_empty() {
            return Err(self.fail(argument.at, format_args!("expected {what}, found {text:?}")));
        }
        let number =
            digits.parse().map_err(|_| self.fail(argument.at, format_args!("{digits} does not fit in 64 bits")))?;
        Ok((number, unit))
    }

    /// A size in bytes; `none` is `None`.
    fn size(&self, argument: &Argument<'a>) -> Result<Option<u64>> {
        if argument.value == "none" {
            return Ok(None);
        }
        let (number, unit) = self.number(argument, "a size such as 64MiB, or none")?;
        if unit.is_empty() {
            return Ok(Some(number));
        }
        if let Some((_, factor)) = UNITS.iter().find(|known| known.0 == unit) {
            return match number.checked_mul(*factor) {
                Some(bytes) => Ok(Some(bytes)),
                None => Err(self.fail(argument.at, format_args!("{} does not fit in 64 bits", argument.value))),
            };
        }
        // The likely slips: MB, kb, m, KIB. None of them is guessed at.
        let meant = match unit.to_ascii_lowercase().as_str() {
            "b" => Some("B"),
            "k" | "kb" | "kib" => Some("KiB"),
            "m" | "mb" | "mib" => Some("MiB"),
            "g" | "gb" | "gib" => Some("GiB"),
            "t" | "tb" | "tib" => Some("TiB"),
            _ => None,
        };
        Err(self.fail(
            argument.at,
            match meant {
                Some(meant) => {
                    format!(
                        "{:?} is no unit of {:?}; sizes are powers of 1024: write {number}{meant}",
                        unit, argument.value
                    )
                }
                None => format!("{:?} is no unit of {:?}; there are B, KiB, MiB, GiB, TiB", unit, argument.value),
            },
        ))
    }

    /// A count; `none` is `None`.
    fn count(&self, key: &str, argument: &Argument<'a>) -> Result<Option<u64>> {
        if argument.value == "none" {
            return Ok(None);
        }
        match self.number(argument, "a count, or none")? {
            (number, "") => Ok(Some(number)),
            (_, rest) => {
                Err(self.fail(argument.at, format_args!("{key} counts allocations and takes no unit, found {rest:?}")))
            }
        }
    }
}
