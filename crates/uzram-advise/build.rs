//! Hands the revision, the profile and the toolchain's target to the reports. Works without git.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rustc-env=UZRAM_BUILD_GIT={}", revision());
    let optimised = env::var("OPT_LEVEL").is_ok_and(|level| level != "0");
    println!("cargo::rustc-env=UZRAM_BUILD_PROFILE={}", profile_name());
    println!("cargo::rustc-env=UZRAM_BUILD_OPTIMISED={optimised}");
    // Asked of git, as a linked worktree has its own elsewhere.
    for name in ["HEAD", "logs/HEAD", "index"] {
        if let Some(path) = git(&["rev-parse", "--git-path", name])
            && Path::new(&path).exists()
        {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    println!("cargo::rerun-if-changed=build.rs");
}

/// `git describe` of the checkout, `unknown` where there is none.
fn revision() -> String {
    let described = git(&["describe", "--always", "--dirty", "--abbrev=12"]);
    described.unwrap_or_else(|| "unknown".to_owned())
}

/// The output of git without its line break; `None` where there is no git or no checkout.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let said = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| said.trim().to_owned())
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
