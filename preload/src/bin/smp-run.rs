//! `smp-run`: runs a program with libsmp_preload.so under it, with settings from the command line instead of the
//! environment. It replaces itself by the program: the exit status is the program's own.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

// The library itself cannot be linked to; what a setting may be is said once, in its source.
#[allow(dead_code, reason = "the library's, of which only the reading is used")]
#[path = "../setting.rs"]
mod setting;
#[path = "../switch.rs"]
mod switch;

const HELP: &str = "\
smp-run: runs a CUDA program with a memory pool, a limit and a report under it; the program stays as it is.

smp-run [OPTIONS] [--] PROGRAM [ARGUMENTS]

  --mode off|count|pool     off: nothing; count: the driver allocates, we account; pool (default): a pool allocates
  --limit SIZE              bytes a device may hold through allocation calls, as 8GiB; more is out of memory
  --report stderr|FILE      what the memory did, at exit: JSON if FILE ends in .json, else text; %p is the process
  --report-signal           SIGUSR2 writes the report too, at the next call
  --trace FILE[.gz]         record every call; examples/replay replays it
  --check                   report copies and sets that are not ordered after their allocation, or race its free
  --pools SPEC              what the pool is made of, as \"sliced(page_size=64MiB); direct()\"
  --free sync|deferred      a free waits for the device as the driver's does (default), or is ordered after all work
  --async forward|pool      stream-ordered allocations go to the driver's pool (default), or to ours
  --release-threshold SIZE|none   what the driver's own pools may keep
  --export-threshold SIZE   sizes from which a block can be exported to other processes (default 2MiB)
  --log off|warn|info       what is said on standard error (default warn)
  --stand-in                run over the stand-in driver, without a GPU: kernels do not run
  --print                   print the environment and the command instead of running it
  --help, --version

Sizes are bytes, or numbers with KiB, MiB, GiB or TiB. Each option sets the environment variable of its name (SMP_LIMIT
for --limit), which may also be set without smp-run; SMP_MODE=off turns everything off.
";

/// Options that take a value, and the variables they set.
const VALUES: &[(&str, &str)] = &[
    ("--mode", "SMP_MODE"),
    ("--limit", "SMP_LIMIT"),
    ("--report", "SMP_REPORT"),
    ("--trace", "SMP_TRACE"),
    ("--pools", "SMP_POOLS"),
    ("--free", "SMP_FREE"),
    ("--async", "SMP_ASYNC"),
    ("--release-threshold", "SMP_RELEASE_THRESHOLD"),
    ("--export-threshold", "SMP_EXPORT_THRESHOLD"),
    ("--log", "SMP_LOG"),
];

/// Options without a value.
const SWITCHES: &[(&str, &str)] = &[("--report-signal", "SMP_REPORT_SIGNAL"), ("--check", "SMP_CHECK")];

/// A command line, read.
#[derive(Debug, Default, PartialEq, Eq)]
struct Run {
    variables: Vec<(&'static str, OsString)>,
    stand_in: bool,
    print: bool,
    command: Vec<OsString>,
}

enum Asked {
    Run(Run),
    Text(&'static str),
}

fn read(arguments: impl Iterator<Item = OsString>) -> Result<Asked, String> {
    let mut run = Run::default();
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy().into_owned();
        // The value as it is: a file's name need not be UTF-8.
        let bytes = argument.as_bytes();
        let (name, value) = match bytes.iter().position(|&byte| byte == b'=') {
            Some(at) => (&bytes[..at], Some(OsStr::from_bytes(&bytes[at + 1..]).to_owned())),
            None => (bytes, None),
        };
        if let Some((name, variable)) = VALUES.iter().find(|(option, _)| option.as_bytes() == name) {
            // What looks like an option is one, and `--` ends them: the value has been forgotten. An empty one would set
            // nothing, and the program run without what was asked for.
            let meant = |word: &OsString| !word.as_bytes().starts_with(b"--");
            let value = value.or_else(|| arguments.next().filter(meant)).filter(|value| !value.is_empty());
            let value = value.ok_or_else(|| {
                format!("{name} needs a value (one that begins with -- is written {name}=VALUE); see --help")
            })?;
            run.variables.push((variable, value));
        } else if let Some((_, variable)) = SWITCHES.iter().find(|(option, _)| *option == text) {
            run.variables.push((variable, "1".into()));
        } else {
            match text.as_str() {
                "--help" | "-h" => return Ok(Asked::Text(HELP)),
                "--version" => return Ok(Asked::Text(concat!("smp-run ", env!("CARGO_PKG_VERSION"), "\n"))),
                "--stand-in" => run.stand_in = true,
                "--print" => run.print = true,
                "--" => {
                    run.command.extend(arguments.by_ref());
                }
                option if option.starts_with('-') => return Err(format!("unknown option {option}; see --help")),
                _ => {
                    run.command.push(argument);
                    run.command.extend(arguments.by_ref());
                }
            }
        }
    }
    if run.command.is_empty() {
        return Err("no program to run; see --help".to_owned());
    }
    Ok(Asked::Run(run))
}

/// The first of `places` that exists below the folder of this program.
fn beside(folder: &Path, places: &[&str]) -> Option<PathBuf> {
    places.iter().map(|place| folder.join(place)).find(|path| path.exists()).and_then(|path| path.canonicalize().ok())
}

/// `first`, then what the variable already lists.
fn prepended(variable: &str, first: &OsStr) -> OsString {
    let mut list = first.to_owned();
    if let Some(rest) = std::env::var_os(variable).filter(|rest| !rest.is_empty()) {
        list.push(":");
        list.push(rest);
    }
    list
}

/// A folder in which the loader finds the stand-in under the driver's name.
fn stand_in(folder: &Path) -> Result<PathBuf, String> {
    let installed = ["../lib/smp/stand-in/libcuda.so.1", "../lib64/smp/stand-in/libcuda.so.1"];
    if let Some(installed) = beside(folder, &installed) {
        return Ok(installed.with_file_name(""));
    }
    // In a build folder the stand-in lies under its own name; the link is made beside it.
    let library = beside(folder, &["libsimcuda.so"]).ok_or("the stand-in driver is not installed with smp-run")?;
    let place = folder.join("stand-in");
    let failed = |why: std::io::Error| format!("{}: {why}", place.display());
    std::fs::create_dir_all(&place).map_err(failed)?;
    let link = place.join("libcuda.so.1");
    match std::os::unix::fs::symlink(&library, &link) {
        Err(why) if why.kind() != std::io::ErrorKind::AlreadyExists => Err(failed(why)),
        _ => Ok(place),
    }
}

fn prepare(run: &Run) -> Result<Command, String> {
    let own = std::env::current_exe().map_err(|why| format!("cannot find myself: {why}"))?;
    let folder = own.parent().unwrap_or(Path::new("."));
    let library = beside(folder, &["libsmp_preload.so", "../lib/libsmp_preload.so", "../lib64/libsmp_preload.so"])
        .ok_or_else(|| format!("libsmp_preload.so lies neither in {} nor in ../lib", folder.display()))?;
    if library.as_os_str().as_encoded_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
        return Err(format!("{}: the loader takes no path with a space or a colon in LD_PRELOAD", library.display()));
    }
    let mut command = Command::new(&run.command[0]);
    command.args(&run.command[1..]);
    command.env("LD_PRELOAD", prepended("LD_PRELOAD", library.as_os_str()));
    command.envs(run.variables.iter().map(|(name, value)| (name, value)));
    if run.stand_in {
        command.env("LD_LIBRARY_PATH", prepended("LD_LIBRARY_PATH", stand_in(folder)?.as_os_str()));
    }
    Ok(command)
}

/// The settings that the program would run with can all be read.
fn check(run: Run) -> Result<Run, String> {
    let given =
        |name: &str| run.variables.iter().rev().find(|(known, _)| *known == name).map(|(_, value)| value.clone());
    setting::Settings::read(|name| given(name).or_else(|| std::env::var_os(name)))?;
    Ok(run)
}

/// Writes to standard output, which may be full, or a pipe that nobody reads any more.
fn tell(text: &[u8]) -> ExitCode {
    let mut out = io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            // Standard error may be gone too.
            let _ = writeln!(io::stderr(), "smp-run: standard output: {why}");
            ExitCode::FAILURE
        }
    }
}

fn main() -> ExitCode {
    const NOT_RUN: u8 = 127;
    let asked = read(std::env::args_os().skip(1)).and_then(|asked| match asked {
        Asked::Run(run) => check(run).map(Asked::Run),
        text => Ok(text),
    });
    let run = match asked {
        Ok(Asked::Text(text)) => return tell(text.as_bytes()),
        Ok(Asked::Run(run)) => run,
        Err(why) => {
            let _ = writeln!(io::stderr(), "smp-run: {why}");
            return ExitCode::from(2);
        }
    };
    let why = match prepare(&run) {
        Ok(command) if run.print => {
            let mut text = Vec::new();
            for (name, value) in command.get_envs() {
                text.extend_from_slice(&[name.as_bytes(), b"=", value.unwrap_or_default().as_bytes(), b"\n"].concat());
            }
            let words: Vec<&[u8]> = run.command.iter().map(|word| word.as_bytes()).collect();
            text.extend_from_slice(&words.join(&b' '));
            text.push(b'\n');
            return tell(&text);
        }
        // Returns only if it failed.
        Ok(mut command) => format!("{}: {}", run.command[0].display(), command.exec()),
        Err(why) => why,
    };
    let _ = writeln!(io::stderr(), "smp-run: {why}");
    ExitCode::from(NOT_RUN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(arguments: &[&str]) -> Result<Run, String> {
        match read(arguments.iter().map(|argument| OsString::from(*argument)))? {
            Asked::Run(run) => Ok(run),
            Asked::Text(text) => Err(text.to_owned()),
        }
    }

    #[test]
    fn options_set_the_variables_of_their_names() {
        let run = run(&["--limit", "8GiB", "--report=out.json", "--check", "--", "./app", "--limit", "1"]).unwrap();
        let set = |name: &'static str, value: &str| (name, OsString::from(value));
        assert_eq!(run.variables, [set("SMP_LIMIT", "8GiB"), set("SMP_REPORT", "out.json"), set("SMP_CHECK", "1")]);
        assert_eq!(run.command, ["./app", "--limit", "1"]);
    }

    #[test]
    fn a_value_is_taken_byte_for_byte() {
        let odd = OsStr::from_bytes(b"\xff=1.json");
        let joined = OsStr::from_bytes(b"--report=\xff=1.json");
        for arguments in [vec![joined.to_owned()], vec![OsString::from("--report"), odd.to_owned()]] {
            let Ok(Asked::Run(run)) = read(arguments.into_iter().chain([OsString::from("app")])) else {
                panic!("it is read")
            };
            assert_eq!(run.variables, [("SMP_REPORT", odd.to_owned())]);
        }
    }

    #[test]
    fn an_empty_value_is_none() {
        for (option, _) in VALUES {
            let needs = format!("{option} needs a value");
            assert!(run(&[option, "", "./app"]).unwrap_err().starts_with(&needs));
            assert!(run(&[&format!("{option}="), "./app"]).unwrap_err().starts_with(&needs));
        }
    }

    #[test]
    fn what_follows_the_program_is_the_programs() {
        assert_eq!(run(&["app", "--help"]).unwrap().command, ["app", "--help"]);
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        assert!(run(&["--limit"]).unwrap_err().contains("--limit needs a value"));
        for (option, _) in VALUES {
            let needs = format!("{option} needs a value");
            assert!(run(&[option, "--", "./app"]).unwrap_err().starts_with(&needs));
            assert!(run(&[option, "--check", "./app"]).unwrap_err().starts_with(&needs));
        }
        assert!(run(&["--report=--", "app"]).is_ok(), "what is meant can be written");
        assert!(run(&["--limits", "1", "app"]).unwrap_err().contains("unknown option --limits"));
        assert!(run(&["--check"]).unwrap_err().contains("no program"));
        assert!(run(&["--check=1", "app"]).unwrap_err().contains("unknown option"));
    }

    #[test]
    fn a_setting_that_cannot_be_read_keeps_the_program_from_running() {
        let check = |arguments: &[&str]| check(run(arguments).unwrap());
        assert!(check(&["--limit", "8GB", "app"]).unwrap_err().starts_with("SMP_LIMIT"));
        assert!(check(&["--mode", "count", "--trace", "t", "app"]).unwrap_err().contains("SMP_MODE=pool"));
        assert!(check(&["--limit", "8GB", "--limit", "8GiB", "app"]).is_ok(), "the last one counts");
    }

    #[test]
    fn the_help_names_every_option() {
        for (option, _) in VALUES.iter().chain(SWITCHES) {
            assert!(HELP.contains(option), "{option}");
        }
    }
}
