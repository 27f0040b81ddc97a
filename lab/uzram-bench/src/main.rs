//! `uzram-bench`: uzram measured against its peers on this machine. `uzram bench` hands over to it.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use uzram_advise::command::refusal;
use uzram_bench::cli::Args;
use uzram_bench::{Error, Result};

/// Measure uzram on your pages, against its peers on this machine
#[derive(Debug, Parser)]
#[command(
    name = "uzram-bench",
    version,
    after_help = "\
Examples:
  uzram-bench store --quick
  uzram capture --pid 1234 --out heap.pages
  uzram-bench store --corpus heap.pages
  uzram-bench nbd --corpus heap.pages --json report.json
  uzram-bench pools --quick --corpus heap.pages
  uzram-bench streams --quick --html streams.html

Peers that are not installed are reported as missing. What measures servers takes the uzram that \
lies beside uzram-bench, or else in PATH.
Exit status: 0 done, 1 failed, 2 wrong usage."
)]
struct Cli {
    /// The suite
    #[command(subcommand)]
    suite: Args,
}

fn main() -> ExitCode {
    let outcome = match Cli::try_parse() {
        Ok(cli) => uzram_bench::cli::run(cli.suite),
        Err(error) => parse_error(&error),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("uzram-bench: {error}");
            ExitCode::from(error.exit_status())
        }
    }
}

/// Help and version are what was asked for; everything else becomes one line.
fn parse_error(error: &clap::Error) -> Result<()> {
    let is_help = matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    );
    if is_help || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
        return match is_help {
            true => Ok(()),
            false => Err(Error::Usage("name a suite; they are listed above".into())),
        };
    }
    let line = refusal(&error.to_string());
    Err(Error::Usage(format!("{line}; see uzram-bench --help")))
}
