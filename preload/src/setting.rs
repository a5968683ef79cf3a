//! The settings, from `SMP_*` environment variables, read once. What cannot be read turns the library off: a program must
//! not run differently from what was asked for.

use std::ffi::OsString;
use std::sync::OnceLock;

/// What the library does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    Off,
    /// Everything goes to the driver and is accounted for.
    Count,
    /// Plain allocations come from a pool.
    Pool,
}

/// Where the report goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Standard error, as text.
    Stderr,
    /// A file; JSON if its name ends in `.json`. `%p` in the name stands for the process's number.
    File(OsString),
}

/// How much is said on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Log {
    /// Nothing.
    Off,
    /// What went wrong.
    Warn,
    /// Also what was done.
    Info,
}

/// Every setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `SMP_MODE`: `off`, `count`, `pool` (default).
    pub mode: Mode,
    /// `SMP_POOLS`: specification of the pool.
    pub pools: Option<smp_core::PoolConfig>,
    /// `SMP_LIMIT`: bytes a device.
    pub limit: Option<u64>,
    /// `SMP_FREE=deferred`: a free does not wait for the device (default `sync`: it does, as the driver's).
    pub deferred_free: bool,
    /// `SMP_ASYNC=pool`: stream-ordered allocations come from our pool too (default `forward`).
    pub async_pool: bool,
    /// `SMP_RELEASE_THRESHOLD`: what the driver's own pools may keep, bytes; `none` is everything.
    pub release_threshold: Option<u64>,
    /// `SMP_EXPORT_THRESHOLD`: sizes from which a block has driver memory of its own and can be exported, bytes.
    pub export_threshold: u64,
    /// It was set: blocks above it have pages of their own whatever `SMP_POOLS` says.
    pub export_threshold_set: bool,
    /// `SMP_REPORT`: `stderr` or a file.
    pub report: Option<Target>,
    /// `SMP_REPORT_SIGNAL=1`: `SIGUSR2` asks for a report.
    pub report_signal: bool,
    /// `SMP_TRACE`: file for a version-2 trace; gzip if its name ends in `.gz`.
    pub trace: Option<OsString>,
    /// `SMP_CHECK=1`: copies and sets are checked against their allocation.
    pub check: bool,
    /// `SMP_LOG`: `off`, `warn` (default), `info`.
    pub log: Log,
}

/// From this size on a block gets driver memory of its own unless `SMP_EXPORT_THRESHOLD` says otherwise: what the driver
/// itself rounds to, and what libraries that exchange buffers between processes stay above.
pub const EXPORT_THRESHOLD: u64 = 2 << 20;

impl Default for Settings {
    fn default() -> Self {
        Settings {
            mode: Mode::Pool,
            pools: None,
            limit: None,
            deferred_free: false,
            async_pool: false,
            release_threshold: None,
            export_threshold: EXPORT_THRESHOLD,
            export_threshold_set: false,
            report: None,
            report_signal: false,
            trace: None,
            check: false,
            log: Log::Warn,
        }
    }
}

/// Reads bytes: an integer, or one followed by B, KiB, MiB, GiB or TiB.
///
/// # Errors
/// A text that says what could not be read.
pub fn bytes(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    if split == 0 {
        return Err(format!("`{text}` is not a size: bytes, or a number with B, KiB, MiB, GiB or TiB, as 8GiB"));
    }
    let unit: u64 = match text[split..].trim_start() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        other => return Err(format!("`{other}` in `{text}` is not B, KiB, MiB, GiB or TiB")),
    };
    let number = text[..split].parse::<u64>().map_err(|_| format!("`{text}` is too large"))?;
    number.checked_mul(unit).ok_or_else(|| format!("`{text}` is too large"))
}

fn choice<T: Copy>(text: &str, choices: &[(&str, T)]) -> Result<T, String> {
    choices.iter().find(|(name, _)| *name == text).map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        format!("`{text}` is not {}", names.join(" or "))
    })
}

impl Settings {
    /// Reads all variables through `get`; an empty one counts as not set. Names of files are taken as they are, all else is text.
    ///
    /// # Errors
    /// A text that names the variable that could not be read.
    pub fn read(get: impl Fn(&str) -> Option<OsString>) -> Result<Settings, String> {
        const SWITCH: &[(&str, bool)] = &[("0", false), ("1", true)];
        let get = |name: &str| get(name).filter(|text| !text.is_empty());
        let mut settings = Settings::default();
        fn set<T>(
            get: &impl Fn(&str) -> Option<OsString>,
            name: &str,
            read: impl FnOnce(&str) -> Result<T, String>,
            to: &mut T,
        ) -> Result<(), String> {
            if let Some(text) = get(name) {
                let text = text.to_str().ok_or_else(|| format!("{name}: {text:?} is not UTF-8"))?;
                *to = read(text).map_err(|why| format!("{name}: {why}"))?;
            }
            Ok(())
        }
        let modes = &[("off", Mode::Off), ("count", Mode::Count), ("pool", Mode::Pool)];
        set(&get, "SMP_MODE", |t| choice(t, modes), &mut settings.mode)?;
        if settings.mode == Mode::Off && !crate::switch::broken("kill-switch") {
            // The kill switch works whatever else is set.
            return Ok(settings);
        }
        let pools = |t: &str| smp_core::pool::spec::parse(t).map(Some).map_err(|why| why.to_string());
        set(&get, "SMP_POOLS", pools, &mut settings.pools)?;
        let limit = |t: &str| match bytes(t)? {
            0 => Err("the limit is 0".to_owned()),
            limit => Ok(Some(limit)),
        };
        set(&get, "SMP_LIMIT", limit, &mut settings.limit)?;
        let frees = &[("sync", false), ("deferred", true)];
        set(&get, "SMP_FREE", |t| choice(t, frees), &mut settings.deferred_free)?;
        let asyncs = &[("forward", false), ("pool", true)];
        set(&get, "SMP_ASYNC", |t| choice(t, asyncs), &mut settings.async_pool)?;
        let threshold = |t: &str| if t == "none" { Ok(Some(u64::MAX)) } else { bytes(t).map(Some) };
        set(&get, "SMP_RELEASE_THRESHOLD", threshold, &mut settings.release_threshold)?;
        set(&get, "SMP_EXPORT_THRESHOLD", bytes, &mut settings.export_threshold)?;
        settings.export_threshold_set = get("SMP_EXPORT_THRESHOLD").is_some();
        let target = |file: OsString| if file == "stderr" { Target::Stderr } else { Target::File(file) };
        settings.report = get("SMP_REPORT").map(target);
        set(&get, "SMP_REPORT_SIGNAL", |t| choice(t, SWITCH), &mut settings.report_signal)?;
        settings.trace = get("SMP_TRACE");
        set(&get, "SMP_CHECK", |t| choice(t, SWITCH), &mut settings.check)?;
        let logs = &[("off", Log::Off), ("warn", Log::Warn), ("info", Log::Info)];
        set(&get, "SMP_LOG", |t| choice(t, logs), &mut settings.log)?;
        if settings.check && get("SMP_ASYNC").is_none() {
            // Order can be wrong only where memory is stream-ordered, and only what is ours can be checked.
            settings.async_pool = true;
        }
        for (name, set) in [
            ("SMP_TRACE", settings.trace.is_some()),
            ("SMP_CHECK=1", settings.check),
            ("SMP_POOLS", settings.pools.is_some()),
            ("SMP_ASYNC=pool", settings.async_pool),
            ("SMP_FREE=deferred", settings.deferred_free),
        ] {
            if set && settings.mode != Mode::Pool {
                return Err(format!("{name} needs SMP_MODE=pool"));
            }
        }
        if settings.report_signal && settings.report.is_none() {
            return Err("SMP_REPORT_SIGNAL needs SMP_REPORT".to_owned());
        }
        Ok(settings)
    }
}

/// The process's settings. A bad one is told in one line on standard error, and everything is off.
pub fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        Settings::read(|name| std::env::var_os(name)).unwrap_or_else(|why| {
            say(&format!("{why}; switched off"));
            Settings { mode: Mode::Off, ..Settings::default() }
        })
    })
}

/// One line on standard error, in one write, so that lines of several threads stay whole.
pub fn say(line: &str) {
    let line = format!("smp_preload: {line}\n");
    // SAFETY: the buffer is valid for its length. A lost message must not change what the program sees.
    unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
}

/// Says what went wrong, if that is wanted.
pub fn warn(line: &str) {
    if settings().log >= Log::Warn {
        say(line);
    }
}

/// Says what was done, if that is wanted.
pub fn info(line: &str) {
    if settings().log >= Log::Info {
        say(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    fn read(pairs: &[(&str, &str)]) -> Result<Settings, String> {
        Settings::read(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value)))
    }

    #[test]
    fn nothing_set_means_the_defaults() {
        assert_eq!(read(&[]).unwrap(), Settings::default());
        assert_eq!(read(&[("SMP_MODE", "")]).unwrap(), Settings::default());
    }

    #[test]
    fn every_setting_is_read() {
        let settings = read(&[
            ("SMP_MODE", "pool"),
            ("SMP_POOLS", "direct()"),
            ("SMP_LIMIT", "8GiB"),
            ("SMP_FREE", "deferred"),
            ("SMP_ASYNC", "pool"),
            ("SMP_RELEASE_THRESHOLD", "none"),
            ("SMP_EXPORT_THRESHOLD", "4MiB"),
            ("SMP_REPORT", "out.json"),
            ("SMP_REPORT_SIGNAL", "1"),
            ("SMP_TRACE", "t.gz"),
            ("SMP_CHECK", "1"),
            ("SMP_LOG", "info"),
        ])
        .unwrap();
        assert_eq!(settings.mode, Mode::Pool);
        assert!(settings.pools.is_some());
        assert_eq!(settings.limit, Some(8 << 30));
        assert!(settings.deferred_free && settings.async_pool && settings.report_signal && settings.check);
        assert_eq!((settings.release_threshold, settings.export_threshold), (Some(u64::MAX), 4 << 20));
        assert_eq!(settings.report, Some(Target::File("out.json".into())));
        assert_eq!(settings.trace.as_deref(), Some(OsStr::new("t.gz")));
        assert_eq!(settings.log, Log::Info);
    }

    #[test]
    fn a_setting_that_cannot_be_read_is_an_error_that_names_it() {
        for (name, value) in [
            ("SMP_MODE", "on"),
            ("SMP_POOLS", "sliced("),
            ("SMP_LIMIT", "8GB"),
            ("SMP_LIMIT", "0"),
            ("SMP_LIMIT", "99999999TiB"),
            ("SMP_FREE", "later"),
            ("SMP_ASYNC", "yes"),
            ("SMP_RELEASE_THRESHOLD", "much"),
            ("SMP_EXPORT_THRESHOLD", "-1"),
            ("SMP_REPORT_SIGNAL", "2"),
            ("SMP_CHECK", "yes"),
            ("SMP_LOG", "loud"),
        ] {
            let error = read(&[(name, value)]).unwrap_err();
            assert!(error.starts_with(name), "{error}");
        }
    }

    #[test]
    fn a_size_that_cannot_be_read_is_told_as_what_it_is() {
        for (text, told) in [
            ("-1", "`-1` is not a size"),
            ("nan", "`nan` is not a size"),
            (" 8GiB", "` 8GiB` is not a size"),
            ("8GB", "`GB` in `8GB` is not B"),
            ("99999999999999999999", "is too large"),
            ("16777216TiB", "is too large"),
        ] {
            let error = super::bytes(text).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
        assert_eq!(super::bytes("16777215TiB"), Ok(16_777_215 << 40));
    }

    #[test]
    fn a_file_may_have_any_name_and_all_else_is_text() {
        let odd = OsStr::from_bytes(b"\xff.json");
        let read = |name: &str| Settings::read(|known| (known == name).then(|| odd.to_owned()));
        assert_eq!(read("SMP_REPORT").unwrap().report, Some(Target::File(odd.to_owned())));
        assert_eq!(read("SMP_TRACE").unwrap().trace.as_deref(), Some(odd));
        for name in ["SMP_MODE", "SMP_POOLS", "SMP_LIMIT", "SMP_ASYNC"] {
            let error = read(name).unwrap_err();
            assert!(error.starts_with(name) && error.ends_with("is not UTF-8"), "{error}");
        }
    }

    #[test]
    fn the_kill_switch_works_whatever_else_is_set() {
        assert_eq!(read(&[("SMP_MODE", "off"), ("SMP_LIMIT", "much")]).unwrap().mode, Mode::Off);
    }

    #[test]
    fn what_only_a_pool_can_do_is_refused_without_one() {
        for (name, value) in [("SMP_TRACE", "t"), ("SMP_CHECK", "1"), ("SMP_ASYNC", "pool"), ("SMP_FREE", "deferred")] {
            assert!(read(&[("SMP_MODE", "count"), (name, value)]).unwrap_err().contains(name));
        }
    }
}
