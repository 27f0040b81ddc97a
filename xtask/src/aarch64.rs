//! Tests of the product compiled for aarch64, under user-mode emulation on this machine.
//!
//! An emulator of Debian's stable release keeps a table with an entry for each guest page that is mapped, also where
//! only addresses are reserved. A reservation of terabytes, which the engine makes, would cost it gigabytes. So the
//! guest gets few addresses: larger reservations fail at once, and a test's memory has a bound.

use std::process::Command;

use crate::install;
use crate::report::Report;
use crate::target::Target;
use crate::workspace;

/// The folder of the target's C library in Debian.
const LIBC_ROOT: &str = "/usr/aarch64-linux-gnu";
/// Addresses that a guest process has: the bound of its memory, and of the emulator's tables.
const GUEST_ADDRESSES: &str = "16G";

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
    ("pool::arena::tests::counts_are_the_systems", TABLES),
    ("cgroup::tests::a_server_in_a_cgroup", STARTS),
    ("fuse::mount::tests::what_fusermount_refuses", STARTS),
];

/// The tested part, as arguments of `cargo test`.
const TESTED: &str =
    "-p uzram-words -p uzram -p uzram-media -p uzram-frontends -p uzram-server --lib";

/// The command of the step, or a report that says in one line what lacks.
pub fn command(may_install: bool) -> Result<Command, Report> {
    let mut report = Report::default();
    let target = Target::aarch64_gnu();
    let mut missing = target.missing_tools();
    missing.extend(install::missing(&[install::QEMU_AARCH64]));
    if !missing.is_empty() {
        let packages = install::packages(&missing);
        let what = format!("aarch64 (no {})", packages.join(", no "));
        report.leave_out(what, &packages);
        return Err(report);
    }
    if let Err(message) = target.require_library(may_install) {
        report.leave_out(format!("aarch64 ({message})"), &[]);
        return Err(report);
    }
    for (name, why) in SKIPPED {
        println!("skipped: {name} ({why})");
    }
    Ok(cargo_test(&target))
}

fn cargo_test(target: &Target) -> Command {
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--no-fail-fast"]);
    target.configure(&mut cargo);
    cargo.args(TESTED.split(' ')).arg("--");
    for (name, _) in SKIPPED {
        cargo.args(["--skip", name]);
    }
    let emulator = install::QEMU_AARCH64.program;
    let runner = format!("{emulator} -R {GUEST_ADDRESSES} -L {LIBC_ROOT}");
    cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner);
    cargo
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emulator_gives_few_addresses_and_skips_by_name() {
        let cargo = cargo_test(&Target::aarch64_gnu());
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
