//! Writes a copy of the stand-in that lacks functions: `simcuda-without LIBRARY COPY NAME...`, names as exported.

use std::process::ExitCode;

fn run(args: &[String]) -> Result<(), String> {
    let [library, copy, names @ ..] = args else { return Err("LIBRARY COPY NAME...".to_owned()) };
    let mut bytes = std::fs::read(library).map_err(|why| format!("{library}: {why}"))?;
    simcuda::variant::hide(&mut bytes, names)?;
    std::fs::write(copy, bytes).map_err(|why| format!("{copy}: {why}"))
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("simcuda-without: {why}");
            ExitCode::FAILURE
        }
    }
}
