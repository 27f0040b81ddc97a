//! `uzram`: compressed RAM disks in user space.

#![forbid(unsafe_code)]

mod advise;
mod args;
mod bench;
mod capture;
mod commands;
mod failure;
mod logger;
mod output;
mod signals;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use uzram_advise::command::refusal;
use uzram_advise::train::Options;

use args::survive::SurviveCommand;
use args::{Cli, Command, TrainArgs};
use commands::StateAt;
use failure::{Failure, Result};

fn main() -> ExitCode {
    let outcome = match Cli::try_parse_from(arguments()) {
        Ok(cli) => run(cli),
        Err(error) => parse_error(&error),
    };
    log::logger().flush();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::warn(&failure.to_string());
            failure.exit_code()
        }
    }
}

/// The command line. Called as `zramctl`, the program has that command already.
fn arguments() -> Vec<OsString> {
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    let called = arguments.first().map(Path::new).and_then(Path::file_name);
    if called.is_some_and(|name| name == "zramctl") {
        arguments.insert(1, "zramctl".into());
    }
    arguments
}

fn run(cli: Cli) -> Result {
    let state = StateAt(cli.control_dir.as_deref());
    match cli.command {
        Command::Serve(args) => commands::serve::run(state, &args),
        Command::Up(args) => match &args.config {
            Some(path) => commands::up_file::run(state, path, &args),
            None => commands::up::run(state, &args),
        },
        Command::Down(args) => commands::down::run(state, &args),
        Command::Run(args) => commands::run::run(state, &args),
        Command::RunServer => commands::run::serve(),
        Command::KeepTree { directory } => commands::serve::keep_tree(state, &directory),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Add(args) => commands::add::run(state, &args),
        Command::Remove(args) => commands::remove::run(state, &args),
        Command::List(args) => commands::list::run(state, &args),
        Command::Stat(args) => commands::stat::run(state, &args),
        Command::Top(args) => commands::top::run(state, &args),
        Command::Zramctl(args) => commands::zramctl::run(state, &args),
        Command::View(args) => commands::view::run(state, &args),
        Command::Metrics(args) => commands::metrics::run(state, &args),
        Command::Set(args) => commands::set::run(state, &args),
        Command::Compact(args) => commands::compact::run(state, &args),
        Command::Reset(args) => commands::reset::run(state, &args),
        Command::Upgrade(args) => commands::upgrade::run(state, &args),
        Command::Survive(args) => match &args.command {
            SurviveCommand::Export(args) => commands::survive::export(state, args),
        },
        Command::Btt(args) => commands::btt::run(&args),
        Command::Capture(args) => capture::run(&args),
        Command::Advise(args) => advise::run(&args),
        Command::Train(args) => train(args),
        Command::Bench(args) => bench::run(&args),
    }
}

fn train(args: TrainArgs) -> Result {
    let (out, corpora) = (args.out, args.corpora);
    Ok(uzram_advise::train::run(&Options { out, corpora })?)
}

/// Help and version are printed whole. Everything else becomes one line.
fn parse_error(error: &clap::Error) -> Result {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            return Ok(());
        }
        // `uzram` alone asks what there is: the help, and still exit status 2.
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            let _ = error.print();
            return Err(Failure::Usage(
                "name a command; they are listed above".into(),
            ));
        }
        _ => {}
    }
    let line = refusal(&error.to_string());
    Err(Failure::Usage(format!("{line}; see {} --help", invoked())))
}

/// `uzram`, with the sub-command if the first word is one.
fn invoked() -> String {
    let first = arguments().into_iter().nth(1).unwrap_or_default();
    let first = first.to_string_lossy().into_owned();
    let is_command = <Cli as clap::CommandFactory>::command()
        .get_subcommands()
        .any(|command| command.get_name() == first);
    if is_command {
        format!("uzram {first}")
    } else {
        "uzram".into()
    }
}
