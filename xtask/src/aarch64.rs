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
const ADVICE: &str = "needs advice on memory that the emulator does not pass on";
const SLOW: &str = "takes long emulated";

/// Tests that do not run here, by the start of their names, and why. The suite runs them natively.
const SKIPPED: &[(&str, &str)] = &[
    ("codec::conformance::a_wrong_dictionary", SLOW),
    ("codec::conformance::damaged_pages", SLOW),
    ("codec::conformance::hostile_bytes", SLOW),
    ("pool::conformance::a_pool_rebuilt", SLOW),
    ("pool::conformance::agrees_with_a_model", SLOW),
    ("pool::conformance::reopened_blocks", SLOW),
    ("pool::conformance::threads_never_share", SLOW),
    ("store::crash_tests::a_crash_within_a_pass", SLOW),
    ("store::crash_tests::a_crash_within_a_write", SLOW),
    ("store::crash_tests::a_crash_within_compaction", SLOW),
    ("store::recover_tests::a_killed_writer", STARTS),
    ("store::recover_tests::a_rebuilt_store", SLOW),
    ("btt::damage_tests::after_any", SLOW),
    ("btt::tests::a_power_cut_leaves_every", SLOW),
    ("btt::tests::hostile_metadata", SLOW),
    ("pool::arena::tests::a_limit_of_a_few_pages", ADDRESSES),
    ("pool::arena::tests::no_span_is_copied", ADVICE),
    ("pool::arena::tests::pages_that_leave_a_span", ADVICE),
    ("store::recover_tests::a_take_over_makes_no_page", ADDRESSES),
    ("store::recover_tests::a_spare_is_there", ADVICE),
    ("store::recover_tests::full_spans_become_huge", ADVICE),
    ("store::recover_tests::memory_of_a_small_disk", ADVICE),
    ("region::tests::a_file_is_not_in_core_dumps", ADVICE),
    ("store::compact::tests::a_sweep_looks_at", ADDRESSES),
    ("region::tests::no_part_of_a_region_stays", TABLES),
    ("pool::arena::tests::counts_are_the_systems", TABLES),
    ("store::slot::tests::words::empty_chunks_go_back", TABLES),
    ("cgroup::tests::a_server_in_a_cgroup", STARTS),
    ("devices::a_ram_disk_has_memory", ADDRESSES),
    ("fuse::mount::tests::what_fusermount_refuses", STARTS),
    ("the_environment_masks_versions", STARTS),
];

/// The tested parts, as arguments of `cargo test`. The second has files that are cut off while they are mapped, the third
/// compares the page codec in NEON with the portable one.
const TESTED: &str = "-p uzram-words -p uzram -p uzram-media -p uzram-frontends -p uzram-pager -p uzram-server --lib --";
const DEVICES: &str = "-p uzram-media --test it -- devices::";
const CODEC: &str = "-p uzram-words --test versions --";

/// The target, if this machine can build for it and run what it builds; else a report for `step` that says in one
/// line what lacks.
pub fn target(step: &str, may_install: bool) -> Result<Target, Report> {
    let mut report = Report::default();
    let target = Target::aarch64_gnu();
    let mut missing = target.missing_tools();
    missing.extend(install::missing(&[install::QEMU_AARCH64]));
    if !missing.is_empty() {
        let packages = install::packages(&missing);
        let what = format!("{step} (no {})", packages.join(", no "));
        report.leave_out(what, &packages);
        return Err(report);
    }
    if let Err(message) = target.require_library(may_install) {
        report.leave_out(format!("{step} ({message})"), &[]);
        return Err(report);
    }
    Ok(target)
}

/// The commands of the tests.
pub fn tests(target: &Target) -> [Command; 3] {
    for (name, why) in SKIPPED {
        println!("skipped: {name} ({why})");
    }
    [TESTED, DEVICES, CODEC].map(|tested| cargo_test(target, tested))
}

fn cargo_test(target: &Target, tested: &str) -> Command {
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--no-fail-fast"]);
    target.configure(&mut cargo);
    cargo.args(tested.split(' '));
    for (name, _) in SKIPPED {
        cargo.args(["--skip", name]);
    }
    cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner());
    cargo
}

/// The words before a program for aarch64 that run it here.
pub fn runner() -> String {
    let emulator = install::QEMU_AARCH64.program;
    format!("{emulator} -R {GUEST_ADDRESSES} -L {LIBC_ROOT}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emulator_gives_few_addresses_and_skips_by_name() {
        let cargo = cargo_test(&Target::aarch64_gnu(), TESTED);
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
