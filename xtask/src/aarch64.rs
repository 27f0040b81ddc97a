//! Tests of the product compiled for aarch64, under user-mode emulation on this machine.
//!
//! An emulator of Debian's stable release keeps a table with an entry for each guest page that is mapped, also where
//! only addresses are reserved. A reservation of terabytes, which the engine makes, would cost it gigabytes. So the
//! guest gets few addresses: larger reservations fail at once, and a test's memory has a bound.

use std::process::Command;
use std::time::Duration;

use crate::install::{self, Tool};
use crate::report::Report;
use crate::{process, workspace};

const TARGET: &str = "aarch64-unknown-linux-gnu";
const TOOLS: &[Tool] = &[
    install::AARCH64_GCC,
    install::AARCH64_LIBC,
    install::QEMU_AARCH64,
];
/// The folder of the target's C library in Debian.
const LIBC_ROOT: &str = "/usr/aarch64-linux-gnu";
/// Addresses that a guest process has: the bound of its memory, and of the emulator's tables.
const GUEST_ADDRESSES: &str = "16G";
const TARGET_LIMIT: Duration = Duration::from_secs(300);

const STARTS: &str = "starts a program, which fails under the emulator";
const ADDRESSES: &str = "reserves more addresses than the emulator is given";
const TABLES: &str = "reads tables of memory that the emulator does not fill in";
const SLOW: &str = "takes long emulated";

/// Tests that do not run here, by the start of their names, and why. The suite runs them natively.
const SKIPPED: &[(&str, &str)] = &[
    ("codec::conformance::a_wrong_dictionary", SLOW),
    ("codec::conformance::damaged_pages", SLOW),
    ("codec::conformance::hostile_bytes", SLOW),
    ("codec::conformance::pages_at_the_edges", SLOW),
    ("codec::lzo::tests::far_copies_are_never", SLOW),
    ("pool::conformance::", SLOW),
    ("store::recover_tests::", SLOW),
    ("store::corrupt_tests::every_flipped_bit", SLOW),
    ("btt::", SLOW),
    ("pool::arena::tests::a_limit_of_a_few_pages", ADDRESSES),
    ("store::compact::tests::a_sweep_looks_at", ADDRESSES),
    ("region::tests::no_part_of_a_region_stays", TABLES),
    ("cgroup::tests::a_server_in_a_cgroup", STARTS),
    ("fuse::mount::tests::what_fusermount_refuses", STARTS),
];

/// The tested part, as arguments of `cargo test`.
const TESTED: &str =
    "-p uzram-words -p uzram -p uzram-media -p uzram-frontends -p uzram-server --lib";

/// The command of the step, or a report that says in one line what lacks.
pub fn command(may_install: bool) -> Result<Command, Report> {
    let mut report = Report::default();
    let missing = install::missing(TOOLS);
    if !missing.is_empty() {
        let packages = install::packages(&missing);
        let what = format!("aarch64 (no {})", packages.join(", no "));
        report.leave_out(what, &packages);
        return Err(report);
    }
    if let Err(message) = have_target(may_install) {
        report.leave_out(format!("aarch64 ({message})"), &[]);
        return Err(report);
    }
    for (name, why) in SKIPPED {
        println!("skipped: {name} ({why})");
    }
    Ok(cargo_test())
}

fn cargo_test() -> Command {
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--no-fail-fast", "--target", TARGET]);
    cargo.args(TESTED.split(' ')).arg("--");
    for (name, _) in SKIPPED {
        cargo.args(["--skip", name]);
    }
    let emulator = install::QEMU_AARCH64.program;
    let runner = format!("{emulator} -R {GUEST_ADDRESSES} -L {LIBC_ROOT}");
    let compiler = install::AARCH64_GCC.program;
    cargo
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", compiler)
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner)
        .env("CC_aarch64_unknown_linux_gnu", compiler);
    cargo
}

/// Makes sure of the standard library of the target. It is fetched through rustup where that is allowed.
fn have_target(may_install: bool) -> Result<(), String> {
    let remedy = format!("no Rust library for {TARGET}; rustup target add {TARGET}");
    if !has_library() && may_install {
        let mut rustup = workspace::command("rustup");
        rustup.args(["target", "add", TARGET]);
        // The look below says whether it helped.
        let _ = process::succeed(&mut rustup, TARGET_LIMIT);
    }
    has_library().then_some(()).ok_or(remedy)
}

fn has_library() -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = workspace::command(rustc);
    command.args(["--print", "target-libdir", "--target", TARGET]);
    process::succeed(&mut command, TARGET_LIMIT)
        .is_ok_and(|said| std::path::Path::new(said.stdout.trim()).is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emulator_gives_few_addresses_and_skips_by_name() {
        let cargo = cargo_test();
        let runner = cargo
            .get_envs()
            .find(|(name, _)| *name == "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER");
        let runner = runner.unwrap().1.unwrap().to_string_lossy().into_owned();
        assert!(runner.contains(" -R 16G "), "{runner}");
        assert_eq!(
            cargo.get_args().filter(|word| *word == "--skip").count(),
            SKIPPED.len()
        );
    }
}
