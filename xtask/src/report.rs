//! The findings of the suite's steps: counts, steps that were left out, and failures, by name and
//! with their output. So the end of a long log tells what to mend.

use std::fmt;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::install;
use crate::process::{self, Exit, Finished, Output};

/// Lines of a failed test's output that are shown again at the end.
const LAST_WORDS_LINES_MAX: usize = 12;
/// Failures that are shown again with their output. The others are shown by name.
const LAST_WORDS_FAILURES_MAX: usize = 8;

/// The findings of a step.
#[derive(Debug, Default)]
pub struct Report {
    passed: u64,
    failures: Vec<Failure>,
    left_out: Vec<String>,
    packages: Vec<&'static str>,
}

#[derive(Debug, PartialEq, Eq)]
struct Failure {
    name: String,
    said: String,
}

impl Report {
    /// Counts one check and shows its result.
    pub fn check(&mut self, name: &str, elapsed: Duration, result: Result<String, String>) {
        let seconds = elapsed.as_secs_f32();
        match result {
            Ok(remark) => {
                println!("ok      {name} ({seconds:.1} s) {remark}");
                self.passed += 1;
            }
            Err(message) => self.fail(&format!("{name} ({seconds:.1} s)"), message),
        }
    }

    /// Runs a command that is one check by itself.
    pub fn run(&mut self, mut command: Command, limit: Duration) {
        let started = Instant::now();
        let result = process::run(&mut command, limit, Output::Shown);
        let result = result.and_then(|finished| match finished.exit {
            Exit::Code(0) => Ok(String::new()),
            exit => Err(exit.to_string()),
        });
        self.check(&process::line(&command), started.elapsed(), result);
    }

    /// Counts a failure and shows it.
    pub fn fail(&mut self, name: &str, said: String) {
        println!("FAILED  {name}\n    {said}");
        let name = name.to_string();
        self.failures.push(Failure { name, said });
    }

    /// Notes a check that did not run, and the packages that it needs.
    pub fn leave_out(&mut self, what: String, packages: &[&'static str]) {
        println!("left out: {what}");
        self.left_out.push(what);
        self.packages.extend_from_slice(packages);
    }

    /// Whether something passed and nothing failed.
    pub fn is_success(&self) -> bool {
        self.passed > 0 && !self.has_failures()
    }

    pub fn has_failures(&self) -> bool {
        !self.failures.is_empty()
    }

    /// The count, as the last line of a run.
    pub fn counts(&self) -> String {
        format!("{} passed, {} failed", self.passed, self.failures.len())
    }

    /// The counts as one row of the summary.
    pub fn row(&self, name: &str, elapsed: Duration) -> String {
        let (passed, failed) = (self.passed, self.failures.len());
        let (left_out, seconds) = (self.left_out.len(), elapsed.as_secs());
        format!(
            "{name:<14} {passed:>6} passed {failed:>4} failed {left_out:>4} left out {seconds:>5} s"
        )
    }

    /// Counts each package that is missing although it can be installed as a failure: the checks
    /// that need it would have run.
    pub fn require_packages(&mut self, is_available: impl Fn(&str) -> bool) {
        for package in self.missing_packages() {
            if is_available(package) {
                let said = "can be installed, and is not: see what is left out";
                self.fail(package, said.to_string());
            }
        }
    }

    /// Adds the findings of another step.
    pub fn add(&mut self, other: Report) {
        self.passed += other.passed;
        self.failures.extend(other.failures);
        self.left_out.extend(other.left_out);
        self.packages.extend(other.packages);
    }

    /// The findings for another process of ours.
    pub fn to_json(&self) -> Value {
        let failures = self.failures.iter();
        let failures: Vec<_> = failures
            .map(|failure| (&failure.name, &failure.said))
            .collect();
        json!({
            "passed": self.passed,
            "failures": failures,
            "left_out": self.left_out,
            "packages": self.packages,
        })
    }

    /// The findings of another process of ours; `None` if the text is something else.
    pub fn from_json(text: &str) -> Option<Report> {
        let value: Value = serde_json::from_str(text).ok()?;
        let failure = |failure: &Value| {
            Some(Failure {
                name: failure[0].as_str()?.to_string(),
                said: failure[1].as_str()?.to_string(),
            })
        };
        let package = |package: &Value| {
            let mut known = install::ALL.iter().map(|tool| tool.package);
            known.find(|known| *package == *known)
        };
        let list = |name: &str| value[name].as_array();
        Some(Report {
            passed: value["passed"].as_u64()?,
            failures: list("failures")?
                .iter()
                .map(failure)
                .collect::<Option<_>>()?,
            left_out: list("left_out")?
                .iter()
                .map(|what| what.as_str().map(str::to_string))
                .collect::<Option<_>>()?,
            packages: list("packages")?
                .iter()
                .map(package)
                .collect::<Option<_>>()?,
        })
    }

    fn missing_packages(&self) -> Vec<&'static str> {
        let mut packages = self.packages.clone();
        packages.sort_unstable();
        packages.dedup();
        packages
    }
}

/// The checks that were left out, the way to enable them, and the failures.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for what in &self.left_out {
            writeln!(f, "left out: {what}")?;
        }
        let packages = self.missing_packages();
        if !packages.is_empty() {
            let line = install::apt_line(&packages);
            writeln!(f, "to enable what was left out: {line}")?;
        }
        for (index, failure) in self.failures.iter().enumerate() {
            writeln!(f, "FAILED  {}", failure.name)?;
            if index < LAST_WORDS_FAILURES_MAX {
                for line in failure.said.lines().take(LAST_WORDS_LINES_MAX) {
                    writeln!(f, "    {line}")?;
                }
            }
        }
        Ok(())
    }
}

/// The report of a run of `cargo test`, called by `line`.
pub fn tally(line: &str, finished: &Finished) -> Report {
    let (passed, failed) = count(&finished.stdout);
    let mut report = Report {
        passed,
        failures: failed_tests(&finished.stdout),
        ..Report::default()
    };
    // A test that takes its whole process down, or does not compile, is in no count.
    let problem = match finished.exit {
        exit if exit != Exit::Code(0) && failed == 0 => Some(exit.to_string()),
        _ if report.failures.len() as u64 != failed => {
            let found = report.failures.len();
            Some(format!("{failed} tests failed, {found} of them are named"))
        }
        _ if passed + failed == 0 => Some("ran no test".to_string()),
        _ => None,
    };
    if let Some(problem) = problem {
        report.fail(line, problem);
    }
    report
}

/// The failed tests of a run of `cargo test`, each with its output.
fn failed_tests(output: &str) -> Vec<Failure> {
    let names = output.lines().filter_map(|line| {
        let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
        // A test that should panic says so behind its name.
        Some(name.split(" - should panic").next().unwrap_or(name))
    });
    let failure = |name: &str| Failure {
        name: name.to_string(),
        said: words_of(output, name),
    };
    names.map(failure).collect()
}

fn words_of(output: &str, name: &str) -> String {
    let heading = format!("---- {name} stdout ----");
    let after = output.lines().skip_while(|line| *line != heading).skip(1);
    let words = after.take_while(|line| !line.starts_with("---- ") && *line != "failures:");
    let words: Vec<&str> = words.filter(|line| !line.is_empty()).collect();
    words.join("\n")
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

    fn finished(code: i32, stdout: &str) -> Finished {
        Finished {
            exit: Exit::Code(code),
            stdout: stdout.into(),
            stderr: String::new(),
        }
    }

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
            let report = tally("cargo test", &finished(code, stdout));
            (report.passed, report.failures.len())
        };
        assert_eq!(counts(0, "test result: ok. 3 passed; 0 failed\n"), (3, 0));
        assert_eq!(counts(101, "test result: ok. 3 passed; 0 failed\n"), (3, 1));
        let unnamed = "test result: FAILED. 3 passed; 2 failed\n";
        assert_eq!(counts(101, unnamed), (3, 1));
        assert_eq!(counts(0, ""), (0, 1));
    }

    #[test]
    fn the_end_names_each_failed_test_and_what_it_said() {
        let output = "test good ... ok\ntest bad ... FAILED\ntest worse - should panic ... FAILED\n\
            \nfailures:\n\n---- bad stdout ----\nthread 'bad' panicked\nleft: 1\n\n\
            ---- worse stdout ----\nnote: test did not panic\n\nfailures:\n    bad\n    worse\n\n\
            test result: FAILED. 1 passed; 2 failed\n";
        let report = tally("cargo test", &finished(101, output));
        assert_eq!(report.counts(), "1 passed, 2 failed");
        let end = "FAILED  bad\n    thread 'bad' panicked\n    left: 1\n\
            FAILED  worse\n    note: test did not panic\n";
        assert_eq!(report.to_string(), end);
    }

    #[test]
    fn a_failed_check_is_counted_and_does_not_stop_the_others() {
        let mut report = Report::default();
        report.check("bad", Duration::ZERO, Err("broken".into()));
        report.check("good", Duration::ZERO, Ok(String::new()));
        assert_eq!(report.counts(), "1 passed, 1 failed");
        assert!(!report.is_success());
        assert!(report.has_failures());
    }

    #[test]
    fn what_checked_nothing_has_neither_failed_nor_succeeded() {
        let report = Report::default();
        assert!(!report.has_failures());
        assert!(!report.is_success());
    }

    #[test]
    fn findings_of_another_process_arrive_whole() {
        let mut report = Report::default();
        report.check("good", Duration::ZERO, Ok(String::new()));
        report.fail("bad", "two\nlines".into());
        report.leave_out("a test".into(), &["fio"]);
        let text = report.to_json().to_string();
        let again = Report::from_json(&text).unwrap();
        assert_eq!(again.counts(), "1 passed, 1 failed");
        assert_eq!(again.failures, report.failures);
        assert_eq!(
            (again.left_out, again.packages),
            (report.left_out, report.packages)
        );
        // The file of a process that was killed while it wrote.
        for end in 0..text.len() {
            assert!(Report::from_json(&text[..end]).is_none());
        }
        assert!(Report::from_json(&text.replace("fio", "fioo")).is_none());
    }

    #[test]
    fn a_package_that_is_missing_and_can_be_had_is_a_failure() {
        let mut report = Report::default();
        report.leave_out("two tests".into(), &["fio", "fio", "qemu-utils"]);
        report.require_packages(|package| package == "fio");
        assert_eq!(report.failures.len(), 1);
    }
}
