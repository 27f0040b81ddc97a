//! `cargo xtask test`: every check of the project, cheapest first, with a truthful count at the end.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use crate::process::{self, Exit, Finished, Output};
use crate::{dist, e2e, install, vm, workspace};

/// How long each fuzz target runs.
const FUZZ_SECONDS: u32 = 10;
const FUZZ_LIMIT: Duration = Duration::from_secs(900);
/// The release of cargo-fuzz that is built where none is installed.
const CARGO_FUZZ_VERSION: &str = "0.13.2";
const MINUTE: Duration = Duration::from_secs(60);

/// What the user asked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options {
    install: bool,
    quick: bool,
    steps: Vec<String>,
}

impl Options {
    /// Reads the arguments of `test`.
    ///
    /// # Errors
    /// One line that names the argument nobody knows.
    pub fn parse(arguments: &[String]) -> Result<Options, String> {
        let mut options = Options::default();
        for argument in arguments {
            match argument.as_str() {
                "--install" => options.install = true,
                "--quick" => options.quick = true,
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
}

/// What a step found.
#[derive(Debug, Default)]
pub struct Report {
    passed: u64,
    failed: u64,
    left_out: Vec<String>,
    packages: Vec<&'static str>,
}

impl Report {
    /// Counts one check and shows how it went.
    pub fn check(&mut self, name: &str, elapsed: Duration, result: Result<String, String>) {
        let seconds = elapsed.as_secs_f32();
        match result {
            Ok(remark) => {
                println!("ok      {name} ({seconds:.1} s) {remark}");
                self.passed += 1;
            }
            Err(message) => {
                println!("FAILED  {name} ({seconds:.1} s)\n    {message}");
                self.failed += 1;
            }
        }
    }

    /// Notes something that did not run, and the packages with which it would have.
    pub fn leave_out(&mut self, what: String, packages: &[&'static str]) {
        println!("left out: {what}");
        self.left_out.push(what);
        self.packages.extend_from_slice(packages);
    }

    /// Whether something passed and nothing failed.
    pub fn is_success(&self) -> bool {
        self.failed == 0 && self.passed > 0
    }

    /// The count, as the last line of a run.
    pub fn counts(&self) -> String {
        format!("{} passed, {} failed", self.passed, self.failed)
    }

    fn add(&mut self, other: Report) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.left_out.extend(other.left_out);
        self.packages.extend(other.packages);
    }
}

struct Step {
    name: &'static str,
    slow: bool,
    run: fn(&Options) -> Result<Report, String>,
}

const STEPS: &[Step] = &[
    Step {
        name: "fmt",
        slow: false,
        run: fmt,
    },
    Step {
        name: "clippy",
        slow: false,
        run: clippy,
    },
    Step {
        name: "docs",
        slow: false,
        run: docs,
    },
    Step {
        name: "deny",
        slow: false,
        run: deny,
    },
    Step {
        name: "tests",
        slow: false,
        run: tests,
    },
    Step {
        name: "pure-rust",
        slow: false,
        run: pure_rust,
    },
    Step {
        name: "shuttle",
        slow: false,
        run: shuttle,
    },
    Step {
        name: "e2e",
        slow: false,
        run: end_to_end,
    },
    Step {
        name: "release-tests",
        slow: true,
        run: release_tests,
    },
    Step {
        name: "dist",
        slow: true,
        run: static_binary,
    },
    Step {
        name: "vm",
        slow: true,
        run: guest_tests,
    },
    Step {
        name: "fuzz",
        slow: true,
        run: fuzz,
    },
];

/// Runs the suite, prints the summary, and fails if anything failed.
pub fn run(options: &Options) -> ExitCode {
    if may_install(options) {
        install::install_missing();
    }
    let mut total = Report::default();
    let mut table = Vec::new();
    for step in STEPS.iter().filter(|step| options.wants(step)) {
        println!("\n=== {}", step.name);
        let started = Instant::now();
        let report = run_step(step, options);
        table.push(row(step.name, &report, started.elapsed()));
        total.add(report);
    }
    print_summary(&table, &total);
    if total.is_success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn run_step(step: &Step, options: &Options) -> Report {
    let mut report = Report::default();
    if step.slow && options.quick && options.steps.is_empty() {
        report.leave_out(format!("{} (--quick)", step.name), &[]);
        return report;
    }
    (step.run)(options).unwrap_or_else(|message| {
        println!("FAILED  {message}");
        report.failed += 1;
        report
    })
}

fn row(name: &str, report: &Report, elapsed: Duration) -> String {
    let Report {
        passed,
        failed,
        left_out,
        ..
    } = report;
    let left_out = left_out.len();
    let seconds = elapsed.as_secs();
    format!(
        "{name:<14} {passed:>6} passed {failed:>4} failed {left_out:>4} left out {seconds:>5} s"
    )
}

fn print_summary(table: &[String], total: &Report) {
    println!("\n=== summary");
    for row in table {
        println!("{row}");
    }
    for what in &total.left_out {
        println!("left out: {what}");
    }
    if !total.packages.is_empty() {
        let mut packages = total.packages.clone();
        packages.sort_unstable();
        packages.dedup();
        println!(
            "to enable what was left out: {}",
            install::apt_line(&packages)
        );
    }
    println!("{}", total.counts());
}

fn may_install(options: &Options) -> bool {
    options.install || std::env::var("CI").is_ok_and(|value| value == "true")
}

fn fmt(_: &Options) -> Result<Report, String> {
    let mut report = Report::default();
    one_check(&mut report, cargo("fmt --all --check"), 2 * MINUTE);
    Ok(report)
}

fn clippy(_: &Options) -> Result<Report, String> {
    let mut report = Report::default();
    let default = cargo("clippy --workspace --all-targets -- -D warnings");
    one_check(&mut report, default, 15 * MINUTE);
    let pure = cargo("clippy -p uzram --no-default-features --all-targets -- -D warnings");
    one_check(&mut report, pure, 10 * MINUTE);
    Ok(report)
}

fn docs(_: &Options) -> Result<Report, String> {
    let mut report = Report::default();
    let mut doc = cargo("doc --workspace --no-deps --lib");
    doc.env("RUSTDOCFLAGS", "-D warnings");
    one_check(&mut report, doc, 10 * MINUTE);
    Ok(report)
}

/// Licences and sources of all dependencies, from what cargo has already: advisories need the network.
fn deny(_: &Options) -> Result<Report, String> {
    let mut report = Report::default();
    if workspace::find_program("cargo-deny").is_none() {
        let remedy = "cargo install --locked cargo-deny";
        report.leave_out(format!("deny (no cargo-deny; {remedy})"), &[]);
        return Ok(report);
    }
    let check = cargo("deny --offline check --hide-inclusion-graph bans licenses sources");
    one_check(&mut report, check, 2 * MINUTE);
    Ok(report)
}

fn tests(_: &Options) -> Result<Report, String> {
    let mut report = cargo_test(cargo("test --workspace --no-fail-fast"), 20 * MINUTE)?;
    if !install::missing(&[install::CHROMIUM]).is_empty() {
        let what = "tests: reports in a browser (no chromium)";
        report.leave_out(what.into(), &[install::CHROMIUM.package]);
    }
    Ok(report)
}

fn pure_rust(_: &Options) -> Result<Report, String> {
    cargo_test(
        cargo("test -p uzram --no-default-features --no-fail-fast"),
        15 * MINUTE,
    )
}

/// The engine's locks, and those that it is compared with, under a scheduler that tries many
/// interleavings: the tests named `shuttle` (others do not run in a schedule). Its own target directory
/// keeps the flag from other steps.
fn shuttle(_: &Options) -> Result<Report, String> {
    let mut test = cargo("test --profile suite -p uzram -p uzram-bench --lib shuttle");
    test.env("RUSTFLAGS", "--cfg uzram_shuttle");
    test.env("CARGO_TARGET_DIR", workspace::target_dir().join("shuttle"));
    cargo_test(test, 20 * MINUTE)
}

/// Races and arithmetic of the engine and the protocol, optimized.
fn release_tests(_: &Options) -> Result<Report, String> {
    let crates = "-p uzram -p uzram-frontends -p uzram-server";
    let test = cargo(&format!("test --profile suite {crates} --no-fail-fast"));
    let mut report = cargo_test(test, 20 * MINUTE)?;
    // Rates mean something there only: the benchmark's jobs against fio's own.
    let rates = cargo("test --profile suite -p uzram-bench --lib -- as_many_operations");
    report.add(cargo_test(rates, 15 * MINUTE)?);
    Ok(report)
}

fn end_to_end(options: &Options) -> Result<Report, String> {
    e2e::run(options.quick)
}

fn static_binary(_: &Options) -> Result<Report, String> {
    let mut report = Report::default();
    let started = Instant::now();
    let result = dist::dist().map(|()| String::new());
    report.check("cargo xtask dist", started.elapsed(), result);
    Ok(report)
}

fn guest_tests(_: &Options) -> Result<Report, String> {
    vm::step()
}

/// Every fuzz target for some seconds, from an empty corpus and any seeds of its own.
fn fuzz(options: &Options) -> Result<Report, String> {
    let mut report = Report::default();
    if !workspace::root().join("fuzz/Cargo.toml").exists() {
        report.leave_out("fuzz (there are no fuzz targets)".into(), &[]);
        return Ok(report);
    }
    if !install::missing(&[install::CPP]).is_empty() {
        report.leave_out("fuzz (no g++)".into(), &[install::CPP.package]);
        return Ok(report);
    }
    if let Err(message) = have_cargo_fuzz(may_install(options)) {
        report.leave_out(format!("fuzz ({message})"), &[]);
        return Ok(report);
    }
    let list = process::succeed(&mut fuzz_command(&["list"]), MINUTE)?;
    let targets: Vec<&str> = list.stdout.split_whitespace().collect();
    if targets.is_empty() {
        return Err("`cargo fuzz list` names no target".into());
    }
    let target_dir = workspace::target_dir().join("fuzz").display().to_string();
    for target in targets {
        let seconds = format!("-max_total_time={FUZZ_SECONDS}");
        let run = [
            "run",
            "--target-dir",
            &target_dir,
            target,
            "--",
            &seconds,
            "-rss_limit_mb=1024",
        ];
        one_check(&mut report, fuzz_command(&run), FUZZ_LIMIT);
    }
    Ok(report)
}

fn have_cargo_fuzz(may_install: bool) -> Result<(), String> {
    if workspace::find_program("cargo-fuzz").is_some() {
        return Ok(());
    }
    let hint = format!("no cargo-fuzz; cargo install --locked cargo-fuzz@{CARGO_FUZZ_VERSION}");
    if !may_install {
        return Err(hint);
    }
    let mut install = workspace::cargo();
    install
        .args(["install", "--quiet", "--locked", "--root"])
        .arg(workspace::tools_dir());
    install.arg(format!("cargo-fuzz@{CARGO_FUZZ_VERSION}"));
    println!("{}", process::line(&install));
    process::succeed(&mut install, 10 * MINUTE)
        .map(drop)
        .map_err(|_| hint)
}

/// Sanitizers need unstable flags; this lets the stable compiler take them.
fn fuzz_command(arguments: &[&str]) -> Command {
    let mut command = workspace::command("cargo-fuzz");
    command
        .arg("fuzz")
        .args(arguments)
        .env("RUSTC_BOOTSTRAP", "1");
    command.env_remove("CARGO_TARGET_DIR");
    command
}

fn cargo(arguments: &str) -> Command {
    let mut cargo = workspace::cargo();
    cargo.args(arguments.split(' '));
    cargo
}

/// Runs a command that is one check by itself.
fn one_check(report: &mut Report, mut command: Command, limit: Duration) {
    let started = Instant::now();
    let result = process::run(&mut command, limit, Output::Shown).and_then(|finished| {
        let ok = finished.exit == Exit::Code(0);
        if ok {
            Ok(String::new())
        } else {
            Err(finished.exit.to_string())
        }
    });
    report.check(&process::line(&command), started.elapsed(), result);
}

/// Runs `cargo test` and counts what its test binaries say.
fn cargo_test(mut command: Command, limit: Duration) -> Result<Report, String> {
    println!("{}", process::line(&command));
    let finished = process::run(&mut command, limit, Output::Shown)?;
    let (report, problem) = tally(&finished);
    if let Some(problem) = problem {
        println!("FAILED  `{}` {problem}", process::line(&command));
    }
    Ok(report)
}

/// What a run of `cargo test` comes to, and in words what is wrong with it.
fn tally(finished: &Finished) -> (Report, Option<String>) {
    let (passed, failed) = count(&finished.stdout);
    let (failed, problem) = match finished.exit {
        // A test that takes its whole process down, or does not compile, is in no count.
        exit if exit != Exit::Code(0) => (failed.max(1), Some(exit.to_string())),
        _ if passed == 0 => (1, Some("ran no test".to_string())),
        _ => (failed, None),
    };
    (
        Report {
            passed,
            failed,
            ..Report::default()
        },
        problem,
    )
}

/// Adds up the `test result:` lines of `cargo test`.
fn count(output: &str) -> (u64, u64) {
    let results = output
        .lines()
        .filter(|line| line.starts_with("test result:"));
    results.fold((0, 0), |(passed, failed), line| {
        (
            passed + number_before(line, " passed"),
            failed + number_before(line, " failed"),
        )
    })
}

fn number_before(line: &str, word: &str) -> u64 {
    let before = line.split(word).next().unwrap_or_default();
    before
        .split_whitespace()
        .next_back()
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_all_test_binaries_are_added_up() {
        let output = "running 3 tests\n\
            test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s\n\
            test result: FAILED. 12 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n";
        assert_eq!(count(output), (15, 2));
        assert_eq!(count("no results at all"), (0, 0));
    }

    #[test]
    fn a_test_run_that_fails_uncounted_counts_as_failed() {
        let counts = |code, stdout: &str| {
            let exit = Exit::Code(code);
            let finished = Finished {
                exit,
                stdout: stdout.into(),
                stderr: String::new(),
            };
            let (report, problem) = tally(&finished);
            (report.passed, report.failed, problem.is_some())
        };
        assert_eq!(
            counts(0, "test result: ok. 3 passed; 0 failed\n"),
            (3, 0, false)
        );
        assert_eq!(
            counts(101, "test result: ok. 3 passed; 0 failed\n"),
            (3, 1, true)
        );
        assert_eq!(
            counts(101, "test result: FAILED. 3 passed; 2 failed\n"),
            (3, 2, true)
        );
        assert_eq!(counts(0, ""), (0, 1, true));
    }

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
    fn a_failed_check_is_counted_and_does_not_stop_the_others() {
        let mut report = Report::default();
        report.check("bad", Duration::ZERO, Err("broken".into()));
        report.check("good", Duration::ZERO, Ok(String::new()));
        assert_eq!((report.passed, report.failed), (1, 1));
    }
}
