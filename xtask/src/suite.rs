//! `cargo xtask test`: every check of the project, cheapest first, with a truthful count at the end.
//!
//! A build waits for its last crate, a guest for its one CPU, and tests wait for each other. So two steps run at a
//! time, each with the builds of profiles that the other does not use.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use crate::beside::{self, Done};
use crate::process::{self, Output};
use crate::report::{Report, tally};
use crate::{
    aarch64, across, builds, dist, e2e, fuzz, install, leftovers, packages, vm, workspace,
};

const MINUTE: Duration = Duration::from_secs(60);
/// Of building and running a group of tests. They hang beyond it: a machine with ten times as much work as
/// it has CPUs needs half of that.
const TESTS_LIMIT: Duration = Duration::from_secs(45 * 60);

/// As arguments of cargo.
const LABORATORY: &str =
    "test --profile suite -p uzram-bench -p uzram-testkit -p uzram-variants -p uzram-orderings";
/// The test that measures, by a part of its name.
const RATES: &str = "as_many_operations";

/// The arguments of `test`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options {
    install: bool,
    quick: bool,
    /// Where the findings go, of steps that run for another process of ours.
    report: Option<PathBuf>,
    steps: Vec<String>,
}

impl Options {
    /// Reads the arguments of `test`.
    ///
    /// # Errors
    /// One line that names the unknown argument.
    pub fn parse(arguments: &[String]) -> Result<Options, String> {
        let mut options = Options::default();
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--install" => options.install = true,
                "--quick" => options.quick = true,
                beside::REPORT => options.report = arguments.next().map(PathBuf::from),
                step if STEPS.iter().any(|known| known.name == step) => {
                    options.steps.push(step.to_string());
                }
                other => {
                    let known: Vec<_> = STEPS.iter().map(|step| step.name).collect();
                    return Err(format!(
                        "`{other}` is neither an option nor a step: {}",
                        known.join(" ")
                    ));
                }
            }
        }
        Ok(options)
    }

    fn wants(&self, step: &Step) -> bool {
        self.steps.is_empty() || self.steps.iter().any(|name| name == step.name)
    }

    fn leaves_out(&self, step: &Step) -> bool {
        self.quick && self.steps.is_empty() && step.is_slow
    }

    /// The options but for the steps, as arguments.
    fn flags(&self) -> Vec<&'static str> {
        let install = may_install(self).then_some("--install");
        let quick = self.quick.then_some("--quick");
        install.into_iter().chain(quick).collect()
    }
}

struct Step {
    name: &'static str,
    is_slow: bool,
    place: Place,
    run: fn(&Options) -> Result<Report, String>,
}

/// Where a step runs. Builds of the first two seldom wait for each other: nearly all use other profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In this process, one after the other.
    Here,
    /// In processes of their own, one after the other, while those here run.
    Beside,
    /// At the end, alone: it measures.
    Alone,
}
use Place::{Alone, Beside, Here};

const QUICK: bool = false;
const SLOW: bool = true;

const STEPS: &[Step] = &[
    step("fmt", QUICK, Here, fmt),
    step("clippy", QUICK, Here, clippy),
    step("docs", QUICK, Here, docs),
    step("deny", QUICK, Here, deny),
    step("features", SLOW, Here, features),
    step("msrv", SLOW, Here, minimum_rust),
    step("tests", QUICK, Here, tests),
    // Not beside the product's: both swap, and change the settings of the kernel for it.
    step("laboratory", QUICK, Here, laboratory),
    step("pure-rust", QUICK, Here, pure_rust),
    step("aarch64", SLOW, Here, emulated_tests),
    step("across", SLOW, Here, across_architectures),
    step("shuttle", QUICK, Beside, shuttle),
    step("e2e", QUICK, Beside, end_to_end),
    step("release-tests", SLOW, Beside, release_tests),
    step("dist", SLOW, Beside, static_binary),
    step("vm", SLOW, Beside, guest_tests),
    step("fuzz", SLOW, Beside, fuzz_targets),
    step("rates", SLOW, Alone, rates),
];

const fn step(
    name: &'static str,
    is_slow: bool,
    place: Place,
    run: fn(&Options) -> Result<Report, String>,
) -> Step {
    Step {
        name,
        is_slow,
        place,
        run,
    }
}

/// Runs the suite, prints the summary, and fails if anything failed.
pub fn run(options: &Options) -> ExitCode {
    let wanted = STEPS.iter().filter(|step| options.wants(step));
    if let Some(file) = &options.report {
        return run_for_others(wanted, options, file);
    }
    leftovers::put_back();
    if may_install(options) {
        install::install_missing();
    }
    let mut summary = Summary {
        started: Instant::now(),
        rows: Vec::new(),
        total: Report::default(),
    };
    let (left_out, wanted): (Vec<&Step>, Vec<_>) =
        wanted.partition(|step| options.leaves_out(step));
    for step in left_out {
        let mut report = Report::default();
        report.leave_out(format!("{} (--quick)", step.name), &[]);
        summary.add(step.name, Duration::ZERO, report);
    }
    let (here, beside, alone) = in_places(wanted);
    let beside = beside::start(beside, options.flags());
    for step in here {
        summary.run(step, options);
        beside.try_iter().for_each(|done| summary.add_done(done));
    }
    beside.iter().for_each(|done| summary.add_done(done));
    for step in alone {
        summary.run(step, options);
    }
    summary.end()
}

/// The steps that run here, those that run beside them, and those that run alone afterwards. With nothing to run
/// beside, all run here, where their output can be watched.
fn in_places(wanted: Vec<&Step>) -> (Vec<&Step>, Vec<&'static str>, Vec<&Step>) {
    let (alone, others): (Vec<_>, Vec<_>) =
        wanted.into_iter().partition(|step| step.place == Alone);
    if others.iter().all(|step| step.place == Beside) {
        return (others, Vec::new(), alone);
    }
    let (here, beside): (Vec<_>, Vec<_>) = others.into_iter().partition(|step| step.place == Here);
    let beside = beside.into_iter().map(|step| step.name).collect();
    (here, beside, alone)
}

/// Runs the steps for the process that runs others beside them, and leaves it the findings in `file`.
fn run_for_others<'a>(
    steps: impl Iterator<Item = &'a Step>,
    options: &Options,
    file: &Path,
) -> ExitCode {
    let mut total = Report::default();
    for step in steps {
        total.add(run_step(step, options));
    }
    match std::fs::write(file, total.to_json().to_string()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{}: {error}", file.display());
            ExitCode::FAILURE
        }
    }
}

fn run_step(step: &Step, options: &Options) -> Report {
    (step.run)(options).unwrap_or_else(|message| {
        let mut report = Report::default();
        report.fail(step.name, message);
        report
    })
}

/// The findings of all steps, and a row for each.
struct Summary {
    started: Instant,
    rows: Vec<String>,
    total: Report,
}

impl Summary {
    /// Runs a step in this process.
    fn run(&mut self, step: &Step, options: &Options) {
        println!("\n=== {}", step.name);
        let started = Instant::now();
        let report = run_step(step, options);
        self.add(step.name, started.elapsed(), report);
    }

    /// Shows a step that ran beside others.
    fn add_done(&mut self, done: Done) {
        println!("\n=== {} (ran beside)\n{}", done.name, done.log);
        self.add(done.name, done.elapsed, done.report);
    }

    fn add(&mut self, name: &str, elapsed: Duration, report: Report) {
        self.rows.push(report.row(name, elapsed));
        self.total.add(report);
    }

    /// Prints it.
    fn end(mut self) -> ExitCode {
        if is_ci() {
            self.total.require_packages(install::is_available);
        }
        println!("\n=== summary");
        self.rows.iter().for_each(|row| println!("{row}"));
        print!("{}", self.total);
        println!("in {} s", self.started.elapsed().as_secs());
        println!("{}", self.total.counts());
        match self.total.is_success() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        }
    }
}

fn may_install(options: &Options) -> bool {
    options.install || is_ci()
}

fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}

fn fmt(_: &Options) -> Result<Report, String> {
    let mut report = Report::default();
    report.run(cargo("fmt --all --check"), 2 * MINUTE);
    Ok(report)
}

fn clippy(_: &Options) -> Result<Report, String> {
    let mut report = Report::default();
    let default = cargo("clippy --workspace --all-targets -- -D warnings");
    report.run(default, 15 * MINUTE);
    let pure = cargo("clippy -p uzram --no-default-features --all-targets -- -D warnings");
    report.run(pure, 10 * MINUTE);
    Ok(report)
}

fn docs(_: &Options) -> Result<Report, String> {
    let mut report = Report::default();
    let mut doc = cargo("doc --workspace --no-deps --lib");
    doc.env("RUSTDOCFLAGS", "-D warnings");
    report.run(doc, 10 * MINUTE);
    builds::documentation(&mut report)?;
    Ok(report)
}

/// Licences and sources of all dependencies, and versions that are built twice, from cargo's own
/// data. The strict rules are also a test of `tidy`, so that they run where cargo-deny is missing.
fn deny(_: &Options) -> Result<Report, String> {
    let mut report = Report::default();
    report.leave_out(
        "deny: advisories (their database needs the network)".into(),
        &[],
    );
    if workspace::find_program("cargo-deny").is_none() {
        let remedy = "cargo install --locked cargo-deny";
        report.leave_out(format!("deny (no cargo-deny; {remedy})"), &[]);
        return Ok(report);
    }
    let check = cargo("deny --offline check --hide-inclusion-graph bans licenses sources");
    report.run(check, 2 * MINUTE);
    Ok(report)
}

fn features(_: &Options) -> Result<Report, String> {
    let mut report = Report::default();
    builds::features(&mut report)?;
    Ok(report)
}

fn minimum_rust(_: &Options) -> Result<Report, String> {
    let mut report = Report::default();
    builds::minimum_rust(&mut report)?;
    Ok(report)
}

fn tests(_: &Options) -> Result<Report, String> {
    // The default members are the product.
    let mut report = cargo_test(cargo("test --no-fail-fast"), TESTS_LIMIT)?;
    if !install::missing(&[install::CHROMIUM]).is_empty() {
        let what = "tests: reports in a browser (no chromium)";
        report.leave_out(what.into(), &[install::CHROMIUM.package]);
    }
    if !install::missing(&[install::PROMETHEUS, install::PROMTOOL]).is_empty() {
        let what = "tests: metrics in Prometheus (no prometheus, promtool)";
        report.leave_out(what.into(), &[install::PROMETHEUS.package]);
    }
    Ok(report)
}

/// The engine with codecs in Rust alone. Tests of memory that know no codec ran with the others.
fn pure_rust(_: &Options) -> Result<Report, String> {
    let mut test = cargo("test -p uzram --no-default-features --no-fail-fast --");
    let with_any_codec = [
        "memory::",
        "headroom::",
        "pool::",
        "region::",
        "cgroup::",
        "store::crash_tests",
        "store::recover_tests",
    ];
    for same in with_any_codec {
        test.args(["--skip", same]);
    }
    cargo_test(test, TESTS_LIMIT)
}

/// The engine's locks, and those that it is compared with, under a scheduler that tries many
/// interleavings: the tests named `shuttle` (others do not run in a schedule). A target directory
/// of its own keeps the flag from other steps.
fn shuttle(_: &Options) -> Result<Report, String> {
    let packages = "-p uzram -p uzram-variants --no-default-features";
    let mut test = cargo(&format!("test --profile suite {packages} --lib shuttle"));
    test.env("RUSTFLAGS", "--cfg uzram_shuttle");
    test.env("CARGO_TARGET_DIR", workspace::target_dir().join("shuttle"));
    cargo_test(test, TESTS_LIMIT)
}

/// Races and arithmetic of the engine, the protocols and the program, optimized. Tests that swap, or wait for the
/// kernel, for minutes run with the others in step `tests`, as do crashes at each point, which are no races.
fn release_tests(_: &Options) -> Result<Report, String> {
    let mut test = cargo("test --profile suite --no-fail-fast");
    test.args(e2e::PACKAGES)
        .args(["--", "--skip", "swap_carries", "--skip", "what_went_back"])
        .args(["--skip", "store::crash_tests"]);
    cargo_test(test, TESTS_LIMIT)
}

/// The laboratory's tests, optimized and with checked arithmetic: its corpora and models are large. Apart from the
/// product, for cargo would build the engine for both with the feature that only the laboratory enables.
fn laboratory(_: &Options) -> Result<Report, String> {
    let test = cargo(&format!("{LABORATORY} --no-fail-fast -- --skip {RATES}"));
    let mut report = cargo_test(test, TESTS_LIMIT)?;
    if !install::missing(&[install::CHROMIUM]).is_empty() {
        let what = "laboratory: reports in a browser (no chromium)";
        report.leave_out(what.into(), &[install::CHROMIUM.package]);
    }
    Ok(report)
}

/// The benchmark's jobs against fio's own. Rates mean something optimized only.
fn rates(_: &Options) -> Result<Report, String> {
    // What the other steps have written goes to the disk before, not meanwhile.
    rustix::fs::sync();
    cargo_test(
        cargo(&format!("{LABORATORY} --lib -- {RATES}")),
        TESTS_LIMIT,
    )
}

/// A subset of the tests on the other architecture that most users have.
fn emulated_tests(options: &Options) -> Result<Report, String> {
    let target = match aarch64::target("aarch64", may_install(options)) {
        Ok(target) => target,
        Err(left_out) => return Ok(left_out),
    };
    let mut report = Report::default();
    for command in aarch64::tests(&target) {
        report.add(cargo_test(command, TESTS_LIMIT)?);
    }
    Ok(report)
}

/// Files and sockets that cross from one architecture to the other.
fn across_architectures(options: &Options) -> Result<Report, String> {
    match aarch64::target("across", may_install(options)) {
        Ok(target) => across::run(&target, &aarch64::runner()),
        Err(left_out) => Ok(left_out),
    }
}

fn end_to_end(options: &Options) -> Result<Report, String> {
    e2e::run(options.quick)
}

fn static_binary(_: &Options) -> Result<Report, String> {
    let mut report = Report::default();
    let started = Instant::now();
    let result = dist::Options::native().and_then(|options| dist::dist(&options, &mut report));
    let (parts, result) = match result {
        Ok(parts) => (Some(parts), Ok(String::new())),
        Err(message) => (None, Err(message)),
    };
    report.check("cargo xtask dist", started.elapsed(), result);
    if let Some(parts) = parts {
        packages::check(&parts, &mut report);
    }
    Ok(report)
}

fn guest_tests(_: &Options) -> Result<Report, String> {
    vm::step()
}

fn fuzz_targets(_: &Options) -> Result<Report, String> {
    fuzz::step()
}

fn cargo(arguments: &str) -> Command {
    let mut cargo = workspace::cargo();
    cargo.args(arguments.split(' '));
    cargo
}

/// Runs `cargo test` and counts the results of its test binaries.
fn cargo_test(mut command: Command, limit: Duration) -> Result<Report, String> {
    println!("{}", process::line(&command));
    let finished = process::run(&mut command, limit, Output::Shown)?;
    Ok(tally(&process::line(&command), &finished))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_steps_are_read_and_others_refused() {
        let parse = |words: &[&str]| {
            Options::parse(&words.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let options = parse(&["--quick", "e2e", "fmt"]).unwrap();
        assert!(options.quick && !options.install);
        let wanted: Vec<_> = STEPS.iter().filter(|step| options.wants(step)).collect();
        assert_eq!(
            wanted.iter().map(|step| step.name).collect::<Vec<_>>(),
            ["fmt", "e2e"]
        );
        assert!(parse(&["--fast"]).unwrap_err().contains("release-tests"));
    }

    #[test]
    fn steps_run_beside_others_only_where_there_are_others() {
        let places = |names: &[&str]| {
            let wanted = STEPS.iter().filter(|step| names.contains(&step.name));
            let (here, beside, alone) = in_places(wanted.collect());
            let names = |steps: Vec<&Step>| steps.iter().map(|step| step.name).collect::<Vec<_>>();
            (names(here), beside, names(alone))
        };
        assert_eq!(
            places(&["rates", "e2e", "fmt", "tests", "vm"]),
            (vec!["fmt", "tests"], vec!["e2e", "vm"], vec!["rates"])
        );
        assert_eq!(places(&["e2e", "vm"]), (vec!["e2e", "vm"], vec![], vec![]));
        assert_eq!(places(&["rates"]), (vec![], vec![], vec!["rates"]));
    }

    #[test]
    fn a_step_beside_gets_the_options_and_is_not_left_out() {
        let parse = |words: &[&str]| {
            Options::parse(&words.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap()
        };
        let slow = STEPS.iter().find(|step| step.is_slow).unwrap();
        let options = parse(&["--quick", "--install"]);
        assert!(options.leaves_out(slow));
        let again = [&options.flags()[..], &[beside::REPORT, "file", slow.name]].concat();
        let again = parse(&again);
        assert!(again.quick && again.install && !again.leaves_out(slow));
        assert_eq!(again.report, Some(PathBuf::from("file")));
    }
}
