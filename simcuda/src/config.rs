//! What a process may set by environment variables, read once at the first call. `README.md` beside this folder has
//! the list.

use crate::code::{self, Code};

/// When a stream's operations run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// At submission, as far as dependencies and gates allow.
    Eager,
    /// Only when a synchronising call needs them, or one at a time when a query answered "not ready".
    Lazy,
    /// A seeded choice at every call: some streams race ahead, others starve.
    Adversarial,
}

/// One planned failure: the `from`-th use of `name` (1 is the first) answers `code`, and every later one if `onwards`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Exported name, with or without its `_ptsz`/`_ptds` suffix.
    pub name: String,
    /// First use that fails, counted from 1.
    pub from: u64,
    /// Also fail every use after `from`.
    pub onwards: bool,
    /// What the call answers.
    pub code: Code,
}

/// Everything that can be set.
#[derive(Debug, Clone)]
pub struct Config {
    /// Order of execution.
    pub mode: Mode,
    /// Seed of the adversarial order.
    pub seed: u64,
    /// Number of devices, 0 to 16.
    pub devices: u32,
    /// Bytes of memory of each device.
    pub memory: u64,
    /// Driver version, as `cuDriverGetVersion` tells it (13000 is 13.0).
    pub driver_version: i32,
    /// Names that `cuGetProcAddress` says it does not know.
    pub missing: Vec<String>,
    /// Planned failures.
    pub faults: Vec<Fault>,
    /// File that gets a line for each call.
    pub log: Option<String>,
    /// Whether the devices have memory pools (attribute 115).
    pub pools: bool,
    /// Whether the handle of an ended context is the next to be given out again.
    pub contexts_again: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            mode: Mode::Eager,
            seed: 1,
            devices: 1,
            memory: 4 << 30,
            driver_version: 13050,
            missing: Vec::new(),
            faults: Vec::new(),
            log: None,
            pools: true,
            contexts_again: false,
        }
    }
}

/// Reads `name:use:error`, a comma between several; `use` is `n` or `n+`.
///
/// # Errors
/// A text that says what could not be read.
pub fn parse_faults(text: &str) -> Result<Vec<Fault>, String> {
    text.split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(|part| {
            let fields: Vec<&str> = part.split(':').collect();
            let [name, uses, error] = fields[..] else { return Err(format!("`{part}` is not name:use:error")) };
            let (digits, onwards) = match uses.strip_suffix('+') {
                Some(digits) => (digits, true),
                None => (uses, false),
            };
            let from = digits.parse::<u64>().ok().filter(|n| *n > 0).ok_or(format!("`{uses}` is not a use"))?;
            let error = error.parse::<u32>().ok().filter(|n| *n > 0).ok_or(format!("`{error}` is not an error"))?;
            Ok(Fault { name: name.to_owned(), from, onwards, code: code::Code(error) })
        })
        .collect()
}

/// Reads bytes: an integer, or one followed by KiB, MiB or GiB.
///
/// # Errors
/// A text that says what could not be read.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit = match &text[split..] {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        other => return Err(format!("`{other}` is not B, KiB, MiB or GiB")),
    };
    let number = text[..split].parse::<u64>().map_err(|_| format!("`{text}` is not a size"))?;
    number.checked_mul(unit).ok_or(format!("`{text}` is too large"))
}

impl Config {
    /// Reads the `SIMCUDA_*` variables through `get`.
    ///
    /// # Errors
    /// A text that names the variable that could not be read: a test that runs with a misspelt setting proves nothing.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Config, String> {
        let mut config = Config::default();
        let bad = |name: &str, why: String| format!("{name}: {why}");
        if let Some(text) = get("SIMCUDA_MODE") {
            config.mode = match text.as_str() {
                "eager" => Mode::Eager,
                "lazy" => Mode::Lazy,
                "adversarial" => Mode::Adversarial,
                other => return Err(bad("SIMCUDA_MODE", format!("`{other}` is not eager, lazy or adversarial"))),
            };
        }
        let number = |name: &str, low: u64, high: u64| -> Result<Option<u64>, String> {
            get(name)
                .map(|text| {
                    let value = text.parse::<u64>().ok().filter(|n| (low..=high).contains(n));
                    value.ok_or_else(|| bad(name, format!("`{text}` is not a number from {low} to {high}")))
                })
                .transpose()
        };
        config.seed = number("SIMCUDA_SEED", 0, u64::MAX)?.unwrap_or(config.seed);
        config.devices = number("SIMCUDA_DEVICES", 0, 16)?.map_or(config.devices, |n| n as u32);
        config.driver_version =
            number("SIMCUDA_DRIVER_VERSION", 1, 99_999)?.map_or(config.driver_version, |n| n as i32);
        config.pools = number("SIMCUDA_POOLS", 0, 1)?.map_or(config.pools, |n| n == 1);
        config.contexts_again = number("SIMCUDA_CONTEXTS_AGAIN", 0, 1)?.map_or(config.contexts_again, |n| n == 1);
        if let Some(text) = get("SIMCUDA_MEMORY") {
            config.memory = parse_bytes(&text).map_err(|why| bad("SIMCUDA_MEMORY", why))?;
        }
        if let Some(text) = get("SIMCUDA_MISSING") {
            config.missing = text.split(',').map(|name| name.trim().to_owned()).filter(|n| !n.is_empty()).collect();
        }
        if let Some(text) = get("SIMCUDA_FAIL") {
            config.faults = parse_faults(&text).map_err(|why| bad("SIMCUDA_FAIL", why))?;
        }
        config.log = get("SIMCUDA_LOG").filter(|path| !path.is_empty());
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Config, String> {
        Config::read(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn every_setting_is_read() {
        let config = read(&[
            ("SIMCUDA_MODE", "adversarial"),
            ("SIMCUDA_SEED", "7"),
            ("SIMCUDA_DEVICES", "3"),
            ("SIMCUDA_MEMORY", "64MiB"),
            ("SIMCUDA_DRIVER_VERSION", "11020"),
            ("SIMCUDA_MISSING", "cuMemCreate, cuMemMap"),
            ("SIMCUDA_FAIL", "cuMemAlloc_v2:2:2,cuEventRecord:5+:719"),
            ("SIMCUDA_POOLS", "0"),
            ("SIMCUDA_CONTEXTS_AGAIN", "1"),
        ])
        .unwrap();
        assert!(config.contexts_again);
        assert_eq!((config.mode, config.seed, config.devices), (Mode::Adversarial, 7, 3));
        assert_eq!((config.memory, config.driver_version, config.pools), (64 << 20, 11020, false));
        assert_eq!(config.missing, ["cuMemCreate", "cuMemMap"]);
        assert_eq!(config.faults[0], Fault { name: "cuMemAlloc_v2".into(), from: 2, onwards: false, code: Code(2) });
        assert_eq!(config.faults[1], Fault { name: "cuEventRecord".into(), from: 5, onwards: true, code: Code(719) });
    }

    #[test]
    fn a_setting_that_cannot_be_read_is_an_error_that_names_it() {
        for (name, value) in [
            ("SIMCUDA_MODE", "quick"),
            ("SIMCUDA_SEED", "x"),
            ("SIMCUDA_DEVICES", "17"),
            ("SIMCUDA_MEMORY", "1MB"),
            ("SIMCUDA_FAIL", "cuInit:0:1"),
            ("SIMCUDA_FAIL", "cuInit:1:0"),
            ("SIMCUDA_FAIL", "cuInit:1"),
        ] {
            let error = read(&[(name, value)]).unwrap_err();
            assert!(error.starts_with(name), "{error}");
        }
    }
}
