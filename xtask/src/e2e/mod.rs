//! The end-to-end suite: `uzram serve`, built for release, against the clients that people use.

mod cases;
mod client;
mod image;
mod newer;
mod protocol;
mod server;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::install;
use crate::process::{self, Output};
use crate::suite::Report;
use crate::workspace;
use cases::{Bench, CASES, Variant};
use client::Client;

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
    cargo.args(["build", "--profile", "suite", "-p", "uzram-cli"]);
    let finished = process::run(&mut cargo, BUILD_LIMIT, Output::Shown)?;
    if finished.exit != process::Exit::Code(0) {
        return Err(process::failure(&cargo, &finished));
    }
    Ok(workspace::target_dir().join("suite/uzram"))
}

/// Writes and reads through `socket` without any program of the system.
///
/// # Errors
/// If the device is not of `size_bytes`, or a request fails, or other bytes come back.
pub fn write_and_read(socket: &Path, size_bytes: u64) -> Result<(), String> {
    const OFFSET: u64 = 12_345;
    let exchange = || -> std::io::Result<()> {
        let mut client = Client::connect(socket)?;
        if client.size_bytes != size_bytes {
            let message = format!("the device has {} bytes", client.size_bytes);
            return Err(std::io::Error::other(message));
        }
        let data: Vec<u8> = (0..300_000u32).map(|i| (i / 5 % 251) as u8).collect();
        let mut back = vec![0; data.len()];
        client.write(OFFSET, &data)?;
        client.read(OFFSET, &mut back)?;
        if back != data {
            return Err(std::io::Error::other("other bytes came back"));
        }
        Ok(())
    };
    exchange().map_err(|error| format!("{}: {error}", socket.display()))
}
