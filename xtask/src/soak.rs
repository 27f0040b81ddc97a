//! Long runs: of model processes, with the bugs that they must find, and of servers that are killed.
//!
//! Each bug of `plant.rs` is planted in a build of its own, with its window widened, and a short run must fail. Only then
//! the long run means something.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::process::{self, Exit, Output};
use crate::workspace;

const MINUTE: Duration = Duration::from_secs(60);
const SECONDS: u64 = 600;
const SECONDS_OF_A_PLANT: u64 = 20;
/// The time that a run may take beyond its own: rounds, and threads that wait in vain.
const GRACE: Duration = Duration::from_secs(30);
/// Kills of servers in the long run.
const KILLS: u64 = 1000;
const TEST: &str = "soak::random_programs_find_what_they_wrote";
/// Handlers of faults: `FaultHandler` in the pager, as the test reads it.
const HANDLERS: [&str; 2] = [THREAD, SIGBUS];
const THREAD: &str = "OwnThread";
const SIGBUS: &str = "FaultingThread";
/// The variants of `Plant` in `crates/uzram-pager/src/plant.rs`, each with the handler that has the bug and the test that must
/// find it.
const PLANTS: [(&str, &str, &str); 13] = [
    ("FaultsFirst", THREAD, TEST),
    ("DiscardedStays", THREAD, TEST),
    ("ForgetFirst", THREAD, TEST),
    ("UnmappedStays", THREAD, TEST),
    ("LaterDropped", THREAD, TEST),
    ("CopyStays", THREAD, TEST),
    ("DiscardedStays", SIGBUS, TEST),
    ("ForgetFirst", SIGBUS, TEST),
    ("UnmappedStays", SIGBUS, TEST),
    ("CopyStays", SIGBUS, TEST),
    ("LockGivenUp", SIGBUS, TEST),
    (
        "ClosedIgnored",
        SIGBUS,
        "handler::a_descriptor_that_the_program_closed_ends_it",
    ),
    (
        "StaysRegistered",
        SIGBUS,
        "handler::a_child_that_lives_on_does_not_hold_up_the_end_of_the_memory",
    ),
];

/// The soak of compressed memory.
///
/// # Errors
/// A plant that was not found, or a failure of the long run.
pub fn pager() -> Result<(), String> {
    let planted = build(true)?;
    for (plant, handler, test) in PLANTS {
        let mut command = match test {
            TEST => soak(&planted, handler, SECONDS_OF_A_PLANT),
            test => run(&planted, test),
        };
        command.env("UZRAM_PAGER_PLANT", plant);
        let limit = Duration::from_secs(SECONDS_OF_A_PLANT) + GRACE;
        let exit = process::run(&mut command, limit, Output::Kept)?.exit;
        if exit == Exit::Code(0) {
            return Err(format!("{handler}: the planted bug {plant} was not found"));
        }
        println!("{handler}, planted {plant}: found");
    }
    let test = build(false)?;
    for handler in HANDLERS {
        println!("{handler}: {SECONDS} seconds without a plant");
        let limit = Duration::from_secs(SECONDS) + MINUTE;
        let finished = process::run(&mut soak(&test, handler, SECONDS), limit, Output::Shown)?;
        match finished.exit {
            Exit::Code(0) if finished.stdout.contains("skipped") => {
                return Err("this system has no userfaultfd that moves pages".into());
            }
            Exit::Code(0) => {}
            exit => return Err(format!("{handler}: the run ended with {exit}")),
        }
    }
    Ok(())
}

/// Kills of servers under each kind of disk that this machine has. `cargo xtask vm survive-long survive-6.1-long
/// survive-vhost-long` are the same in a guest.
///
/// # Errors
/// A failure of the run.
pub fn survive() -> Result<(), String> {
    let mut cargo = workspace::cargo();
    cargo.args("test --profile suite -p uzram-cli --test it survive::".split(' '));
    cargo.args(["--", "--nocapture", "--test-threads=1"]);
    cargo.env("UZRAM_TEST_KILLS", KILLS.to_string());
    match process::run(&mut cargo, 60 * MINUTE, Output::Shown)?.exit {
        Exit::Code(0) => Ok(()),
        exit => Err(format!("the run ended with {exit}")),
    }
}

/// The model process itself.
fn soak(program: &PathBuf, handler: &str, seconds: u64) -> Command {
    let mut command = run(program, TEST);
    command.env("UZRAM_PAGER_TEST", TEST);
    command.env("UZRAM_PAGER_HANDLER", handler);
    command.env("UZRAM_PAGER_SOAK_SECONDS", seconds.to_string());
    command
}

/// A test, whose processes it starts itself.
fn run(program: &PathBuf, test: &str) -> Command {
    let mut command = Command::new(program);
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    command
}

/// Builds the tests of the pager, optimized, and returns their program.
fn build(is_planted: bool) -> Result<PathBuf, String> {
    let mut cargo = workspace::cargo();
    cargo.args("test --profile suite -p uzram-pager --test memory --no-run".split(' '));
    cargo.args(["--message-format", "json"]);
    if is_planted {
        // A target directory of its own keeps the flag from other builds.
        cargo.env("RUSTFLAGS", "--cfg uzram_plant");
        cargo.env("CARGO_TARGET_DIR", workspace::target_dir().join("plant"));
    }
    let built = process::succeed(&mut cargo, 20 * MINUTE)?;
    let messages = workspace::messages(&built.stdout);
    let mut programs =
        messages.filter_map(|message| message["executable"].as_str().map(PathBuf::from));
    programs
        .next_back()
        .ok_or_else(|| "cargo built no test program".into())
}
