//! Long runs of model processes, and the bugs that they must find.
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
const TEST: &str = "soak::random_programs_find_what_they_wrote";
/// The variants of `Plant` in `crates/uzram-pager/src/plant.rs`.
const PLANTS: [&str; 5] = [
    "FaultsFirst",
    "DiscardedStays",
    "ForgetFirst",
    "UnmappedStays",
    "LaterDropped",
];

/// The soak of compressed memory.
///
/// # Errors
/// A plant that was not found, or a failure of the long run.
pub fn pager() -> Result<(), String> {
    let planted = build(true)?;
    for plant in PLANTS {
        let mut command = body(&planted, SECONDS_OF_A_PLANT);
        command.env("UZRAM_PAGER_PLANT", plant);
        let limit = Duration::from_secs(SECONDS_OF_A_PLANT) + GRACE;
        let exit = process::run(&mut command, limit, Output::Kept)?.exit;
        if exit == Exit::Code(0) {
            return Err(format!("the planted bug {plant} was not found"));
        }
        println!("planted {plant}: found");
    }
    let test = build(false)?;
    println!("{SECONDS} seconds without a plant");
    let limit = Duration::from_secs(SECONDS) + MINUTE;
    let finished = process::run(&mut body(&test, SECONDS), limit, Output::Shown)?;
    match finished.exit {
        Exit::Code(0) if finished.stdout.contains("skipped") => {
            Err("this system has no userfaultfd that moves pages".into())
        }
        Exit::Code(0) => Ok(()),
        exit => Err(format!("the run ended with {exit}")),
    }
}

/// The test itself, in the one process.
fn body(test: &PathBuf, seconds: u64) -> Command {
    let mut command = Command::new(test);
    command.args([TEST, "--exact", "--nocapture", "--test-threads=1"]);
    command.env("UZRAM_PAGER_TEST", TEST);
    command.env("UZRAM_PAGER_SOAK_SECONDS", seconds.to_string());
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
    let mut programs = built.stdout.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        message["executable"].as_str().map(PathBuf::from)
    });
    programs
        .next_back()
        .ok_or_else(|| "cargo built no test program".into())
}
