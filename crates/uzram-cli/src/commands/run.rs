//! `uzram run`.

use uzram_run::Options;
use uzram_server::size::{parse, ram_bytes};
use uzram_server::state::Claim;

use super::StateAt;
use super::runs::{self, command_line};
use crate::args::RunArgs;
use crate::failure::{Failure, Result};
use crate::output::warn;

/// Less would be used up by what one system call touches.
const MEMORY_BYTES_MIN: u64 = 16 << 20;

/// The exit status of a failure that is not the program's.
const FAILED: i32 = 125;

/// Runs the command, and ends as the program ends.
pub fn run(state: StateAt<'_>, args: &RunArgs) -> Result {
    let budget_bytes = memory_bytes(&args.memory)?;
    let options = Options {
        memory_bytes: budget_bytes,
        algorithm: args.algorithm.clone(),
        spill: args.spill.clone(),
        server: vec!["/proc/self/exe".into(), "run-server".into()],
        program: args.program.clone(),
    };
    let say = |line: &str| warn(&format!("run: {line}"));
    let claim = match claim(state, args.name.as_deref()) {
        Ok(claim) => claim,
        Err(failure) => {
            say(&failure.to_string());
            std::process::exit(FAILED);
        }
    };
    let status = match uzram_run::start(&options) {
        Ok(run) => {
            let program = command_line(&args.program);
            let publish =
                |claim| runs::publish(claim, run.controller(), run.pid(), program, memory_bytes);
            let published = claim.map(publish).transpose();
            // The program runs, and is worth more than its place in a list.
            let published = published.unwrap_or_else(|failure| {
                say(&format!("it is not listed: {failure}"));
                None
            });
            let outcome = run.wait(say);
            drop(published);
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

/// The run's name. Without a name that was asked for, and where there is no state directory, it has none.
fn claim(state: StateAt<'_>, name: Option<&str>) -> Result<Option<Claim>> {
    let claimed = state.open().and_then(|state| Ok(state.claim_run(name)?));
    match (claimed, name) {
        (Ok(claim), _) => Ok(Some(claim)),
        (Err(failure), Some(_)) => Err(failure),
        (Err(failure), None) => {
            log::info!("the run is not listed: {failure}");
            Ok(None)
        }
    }
}

fn memory_bytes(text: &str) -> Result<u64> {
    let bytes = parse(text, ram_bytes()).map_err(|error| Failure::from(error).about("memory"))?;
    if bytes < MEMORY_BYTES_MIN {
        let text = format!(
            "memory {text}: give at least 16M; a program that fits in less needs no budget"
        );
        return Err(Failure::Usage(text));
    }
    Ok(bytes)
}
