//! The end-to-end suite: `uzram serve`, built for release, against the clients that people use.

mod cases;
mod client;
mod image;
mod newer;
mod protocol;
mod server;

use std::path::PathBuf;
use std::time::Duration;

use crate::install;
use crate::process::{self, Output};
use crate::report::Report;
use crate::workspace;
use cases::{Bench, CASES, Variant};
pub use client::{Client, write_and_read};
pub use server::{DEVICE_NAME, Server, uzram};

/// The packages that are tested optimized. One list for the program and the tests: cargo chooses features for all
/// packages of a command, and with other features it would build most crates again.
pub const PACKAGES: [&str; 10] = [
    "-p",
    "uzram",
    "-p",
    "uzram-media",
    "-p",
    "uzram-frontends",
    "-p",
    "uzram-server",
    "-p",
    "uzram-cli",
];
const BUILD_LIMIT: Duration = Duration::from_secs(900);

const VARIANTS: &[Variant] = &[
    Variant {
        algorithm: "lz4",
        unit_kib: 4,
    },
    Variant {
        algorithm: "lz4",
        unit_kib: 16,
    },
    Variant {
        algorithm: "zstd",
        unit_kib: 4,
    },
    Variant {
        algorithm: "zstd",
        unit_kib: 16,
    },
];

/// Builds the server and runs every case on every variant.
///
/// # Errors
/// If the server cannot be built; failed cases are counted in the report instead.
pub fn run(quick: bool) -> Result<Report, String> {
    let binary = build()?;
    let mut report = Report::default();
    let image = if install::missing(&[install::MKFS]).is_empty() {
        Some(image::make(quick)?)
    } else {
        None
    };
    for case in CASES.iter().chain(protocol::CASES) {
        let missing = install::missing(case.tools);
        if !missing.is_empty() {
            let programs: Vec<_> = missing.iter().map(|tool| tool.program).collect();
            let what = format!("e2e: {} (no {})", case.name, programs.join(", "));
            report.leave_out(what, &install::packages(&missing));
            continue;
        }
        for &variant in VARIANTS {
            let name = format!("{} {}K: {}", variant.algorithm, variant.unit_kib, case.name);
            let bench = Bench {
                binary: &binary,
                image: image.as_ref(),
                variant,
            };
            let started = std::time::Instant::now();
            let result = (case.run)(&bench);
            report.check(&name, started.elapsed(), result);
        }
    }
    newer::run(&binary, &mut report);
    Ok(report)
}

fn build() -> Result<PathBuf, String> {
    let mut cargo = workspace::cargo();
    cargo.args(["build", "--profile", "suite"]).args(PACKAGES);
    // With an example cargo chooses the features that it chooses for tests.
    cargo.args(["--bin", "uzram", "--example", "man"]);
    let finished = process::run(&mut cargo, BUILD_LIMIT, Output::Shown)?;
    if finished.exit != process::Exit::Code(0) {
        return Err(process::failure(&cargo, &finished));
    }
    Ok(workspace::target_dir().join("suite/uzram"))
}
