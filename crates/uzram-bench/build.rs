//! Hands the revision, the profile and the toolchain's target to the reports. Works without git.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rustc-env=UZRAM_BENCH_GIT={}", revision());
    let optimised = env::var("OPT_LEVEL").is_ok_and(|level| level != "0");
    println!("cargo::rustc-env=UZRAM_BENCH_PROFILE={}", profile_name());
    println!("cargo::rustc-env=UZRAM_BENCH_OPTIMISED={optimised}");
    let head = Path::new("../../.git/HEAD");
    if head.exists() {
        println!("cargo::rerun-if-changed=../../.git/HEAD");
        println!("cargo::rerun-if-changed=../../.git/logs/HEAD");
    }
    println!("cargo::rerun-if-changed=build.rs");
}

/// `git describe` of the checkout, `unknown` where there is none.
fn revision() -> String {
    let described = Command::new("git")
        .args(["describe", "--always", "--dirty", "--abbrev=12"])
        .output();
    match described {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        _ => "unknown".to_owned(),
    }
}

/// The profile's own name ("dist" included), which cargo tells only through the output folder:
/// `target/PROFILE/build/PACKAGE/out`.
fn profile_name() -> String {
    let out = env::var("OUT_DIR").unwrap_or_default();
    let folder = Path::new(&out).ancestors().nth(3).and_then(Path::file_name);
    match folder.and_then(|name| name.to_str()) {
        Some(name) => name.to_owned(),
        None => env::var("PROFILE").unwrap_or_else(|_| "unknown".to_owned()),
    }
}
