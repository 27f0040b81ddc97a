//! The fuzz targets of `fuzz/`, each for some seconds. They are built with the flags of cargo-fuzz, by cargo alone: to
//! build cargo-fuzz itself takes longer than to fuzz.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::install;
use crate::process::{self, Exit, Output};
use crate::report::Report;
use crate::target::Target;
use crate::workspace;

/// Time for each target.
const SECONDS: u32 = 10;
const MEMORY_MIB: u32 = 1024;
const BUILD_LIMIT: Duration = Duration::from_secs(900);
const RUN_LIMIT: Duration = Duration::from_secs(120);

/// The address sanitizer, and what libFuzzer reads to see where an input went: counters of edges, operands of
/// comparisons, and the depth of the stack. Panics on overflow count as findings.
const FLAGS: &[&str] = &[
    "--cfg=fuzzing",
    "-Zsanitizer=address",
    "-Cdebug-assertions",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-sanitizer-coverage-stack-depth",
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
];

/// Runs every target from an empty corpus and any seeds of its own.
///
/// # Errors
/// If the targets do not build, or there are none.
pub fn step() -> Result<Report, String> {
    let mut report = Report::default();
    if !install::missing(&[install::CPP]).is_empty() {
        report.leave_out("fuzz (no g++)".into(), &[install::CPP.package]);
        return Ok(report);
    }
    let targets = targets()?;
    let programs = build()?;
    // A target computes in one thread.
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let results = each_in_threads(&targets, threads, |target| run(&programs.join(target)));
    for (target, (elapsed, result)) in targets.iter().zip(results) {
        report.check(&format!("fuzz {target}"), elapsed, result);
    }
    Ok(report)
}

/// Their names, which are those of their files.
fn targets() -> Result<Vec<String>, String> {
    let folder = workspace::root().join("fuzz/fuzz_targets");
    let said = |error: std::io::Error| format!("{}: {error}", folder.display());
    let files = std::fs::read_dir(&folder).map_err(said)?;
    let paths = files.filter_map(|file| Some(file.ok()?.path()));
    let names = paths.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()));
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    match names.is_empty() {
        true => Err(format!("{}: no fuzz target", folder.display())),
        false => Ok(names),
    }
}

/// Builds all, and gives the folder of their programs.
fn build() -> Result<PathBuf, String> {
    let target = Target::host()?;
    let folder = workspace::target_dir().join("fuzz");
    let mut cargo = workspace::cargo();
    cargo.args(["build", "--release", "--bins"]);
    cargo.args(["--manifest-path", "fuzz/Cargo.toml"]);
    // Named, so that programs that run while it builds are compiled without the flags.
    cargo.args(["--target", target.triple()]);
    cargo
        .env("CARGO_TARGET_DIR", &folder)
        .env("RUSTFLAGS", FLAGS.join(" "))
        // Lets the stable compiler accept the sanitizer.
        .env("RUSTC_BOOTSTRAP", "1");
    let built = process::run(&mut cargo, BUILD_LIMIT, Output::Shown)?;
    match built.exit {
        Exit::Code(0) => Ok(folder.join(target.triple()).join("release")),
        _ => Err(process::failure(&cargo, &built)),
    }
}

/// Fuzzes with one program, in a folder that keeps what it finds. Says what it said if it fails.
fn run(program: &Path) -> (Duration, Result<String, String>) {
    let started = Instant::now();
    let result = attempt(program);
    (started.elapsed(), result)
}

fn attempt(program: &Path) -> Result<String, String> {
    let folder = program.with_extension("findings");
    let said = |error: std::io::Error| format!("{}: {error}", folder.display());
    std::fs::create_dir_all(&folder).map_err(said)?;
    let mut command = workspace::command(program);
    command.current_dir(&folder);
    command.arg(format!("-max_total_time={SECONDS}"));
    command.arg(format!("-rss_limit_mb={MEMORY_MIB}"));
    process::succeed(&mut command, RUN_LIMIT).map(|_| String::new())
}

/// The results of `work` on each item, in their order. Each thread takes the next item.
fn each_in_threads<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let take = || {
        let indexes = std::iter::from_fn(|| {
            let index = next.fetch_add(1, Ordering::Relaxed);
            (index < items.len()).then_some(index)
        });
        indexes.map(|index| (index, work(&items[index]))).collect()
    };
    let mut results: Vec<(usize, R)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(take)).collect();
        let results = workers.into_iter().flat_map(|worker| -> Vec<(usize, R)> {
            worker.join().expect("a step of the suite does not panic")
        });
        results.collect()
    });
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_in_threads_is_done_once_each_and_its_results_keep_their_order() {
        let items: Vec<u64> = (0..40).collect();
        for threads in [1, 2, 5, 60] {
            let results = each_in_threads(&items, threads, |item| {
                std::thread::sleep(Duration::from_micros((40 - item) * 10));
                item * 2
            });
            assert_eq!(results, (0..80).step_by(2).collect::<Vec<u64>>());
        }
        assert!(each_in_threads(&[0; 0], 2, |item| *item).is_empty());
    }

    #[test]
    fn every_target_is_a_program_of_the_manifest() {
        let manifest = std::fs::read_to_string(workspace::root().join("fuzz/Cargo.toml")).unwrap();
        let targets = targets().unwrap();
        assert!(targets.len() > 10);
        assert_eq!(manifest.matches("[[bin]]").count(), targets.len());
        for target in targets {
            let path = format!("path = \"fuzz_targets/{target}.rs\"");
            assert!(manifest.contains(&path), "{path}");
        }
    }
}
