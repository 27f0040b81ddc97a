//! `uzram run`.

use uzram_run::Options;
use uzram_server::size::{parse, ram_bytes};

use crate::args::RunArgs;
use crate::failure::{Failure, Result};
use crate::output::warn;

/// Less would be used up by what one system call touches.
const MEMORY_BYTES_MIN: u64 = 16 << 20;

/// Runs the command, and ends as the program ends.
pub fn run(args: &RunArgs) -> Result {
    let memory_bytes = memory_bytes(&args.memory)?;
    let options = Options {
        memory_bytes,
        algorithm: args.algorithm.clone(),
        spill: args.spill.clone(),
        server: vec!["/proc/self/exe".into(), "run-server".into()],
        program: args.program.clone(),
    };
    let say = |line: &str| warn(&format!("run: {line}"));
    let status = match uzram_run::run(&options, say) {
        Ok(outcome) => {
            if let (true, Some(statistics)) = (args.stats, outcome.statistics) {
                statistics.lines().iter().for_each(|line| say(line));
            }
            outcome.status
        }
        Err((status, text)) => {
            say(&text);
            status
        }
    };
    std::process::exit(status.into())
}

/// The server, at the other end of standard input.
pub fn serve() -> Result {
    Ok(uzram_run::serve()?)
}

fn memory_bytes(text: &str) -> Result<u64> {
    let bytes = parse(text, ram_bytes()).map_err(|error| Failure::from(error).about("--memory"))?;
    if bytes < MEMORY_BYTES_MIN {
        let text = format!(
            "--memory {text}: give at least 16M; a program that fits in less needs no budget"
        );
        return Err(Failure::Usage(text));
    }
    Ok(bytes)
}
