//! Benchmarks that are interrupted: the report so far, and nothing left behind.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Nothing here takes longer unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// Nor does a command that is refused.
const RUN_SECONDS_MAX: &str = "60";

/// A folder for what the benchmark writes, and commands in it.
struct Home {
    dir: tempfile::TempDir,
}

impl Home {
    fn new() -> Home {
        Home {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    /// `uzram-bench` with `args`, which finds `uzram`.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uzram-bench"));
        command.args(args).env("XDG_RUNTIME_DIR", self.dir.path());
        command.env("PATH", path_with_uzram());
        command
    }

    /// It said why in one line and measured nothing.
    #[track_caller]
    fn refused(&self, args: &[&str], said: &str) {
        let mut command = Command::new("timeout");
        command.args([RUN_SECONDS_MAX, env!("CARGO_BIN_EXE_uzram-bench")]);
        let output = command.args(args).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {errors}");
        assert_eq!(output.stdout, b"", "{args:?}");
        assert!(errors.starts_with("uzram-bench: "), "{args:?}: {errors}");
        assert_eq!(errors.matches('\n').count(), 1, "{args:?}: {errors}");
        assert!(errors.contains(said), "{args:?}: no {said:?}: {errors}");
    }
}

/// `PATH` with the folder of a `uzram` of these sources in front. Cargo builds the programs of the
/// package under test only.
fn path_with_uzram() -> std::ffi::OsString {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        // With an example, and of the default members: so the tests of the product have built it.
        let arguments = "build --quiet --offline --bin uzram --example man --message-format json";
        let mut build = uzram_testkit::cargo();
        build.args(arguments.split(' '));
        build.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
        let built = build.stderr(Stdio::inherit()).output().unwrap();
        assert!(built.status.success(), "{build:?}");
        let said = String::from_utf8(built.stdout).unwrap();
        let messages = said
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let mut programs =
            messages.filter_map(|message| Some(PathBuf::from(message["executable"].as_str()?)));
        let uzram = programs.find(|path| path.ends_with("uzram")).unwrap();
        uzram.parent().unwrap().to_path_buf()
    });
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder.clone()).chain(std::env::split_paths(&path));
    std::env::join_paths(folders).unwrap()
}

/// Tries until `done` or out of patience.
#[track_caller]
fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The report in `json` of a benchmark that gets `signal` once it is `ready`.
#[track_caller]
fn interrupted(
    mut command: Command,
    signal: &str,
    json: &Path,
    ready: impl FnMut() -> bool,
) -> serde_json::Value {
    command.arg("--json").arg(json);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let bench = command.spawn().unwrap();
    eventually("what it makes first", ready);
    let pid = bench.id().to_string();
    let sent = Command::new("kill").args(["-s", signal, &pid]).status();
    assert!(sent.unwrap().success());
    let output = bench.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(
        errors.ends_with("uzram-bench: interrupted: nothing is left running or set up\n"),
        "{errors}"
    );
    let report = fs::read_to_string(json).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let stopped = report["stopped"].as_str().unwrap();
    assert!(stopped.starts_with("interrupted"), "{stopped}");
    report
}

/// Ctrl-C may also reach the benchmark alone, as with `kill`.
#[test]
fn an_interrupted_benchmark_reports_and_leaves_no_server() {
    let nbd: &[&str] = &["nbd", "--quick", "--algorithm", "lz4"];
    let jobs: &[&str] = &["jobs", "--scale", "1", "--on", "nbd", "--on", "engine"];
    for (suite, signal) in [(nbd, "INT"), (nbd, "TERM"), (jobs, "INT"), (jobs, "TERM")] {
        let home = Home::new();
        let folder = home.dir.path();
        let (json, html) = (folder.join("report.json"), folder.join("report.html"));
        let mut command = home.command(suite);
        command
            .args([Path::new("--html"), &html])
            .env("TMPDIR", folder);
        let report = interrupted(command, signal, &json, || servers(folder) == 1);
        assert_eq!(servers(folder), 0, "a stray server");
        let left = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        let left: Vec<_> = left.filter(|entry| entry.path().is_dir()).collect();
        assert!(left.is_empty(), "{left:?}");

        assert!(report["results"].is_array());
        let page = fs::read_to_string(html).unwrap();
        assert!(page.contains("Only a part of what was asked for."));
        assert!(page.ends_with("</html>"));
    }
}

/// Each with what it is and what would be right, before anything is measured.
#[test]
fn what_cannot_be_measured_is_refused_in_a_line() {
    let home = Home::new();
    let folder = home.dir.path();
    let odd = folder.join("odd.pages");
    fs::write(&odd, [7; 5000]).unwrap();
    let odd = odd.to_str().unwrap();
    let precious = folder.join("precious");
    fs::write(&precious, "data").unwrap();
    let precious = precious.to_str().unwrap();
    let refused = |words: &[&str], said: &str| home.refused(words, said);
    refused(&["spin"], "unrecognized subcommand 'spin'");
    refused(
        &["jobs", "--against", "ramdisk"],
        "peer \"ramdisk\": unknown to this suite",
    );
    refused(&["jobs", "--corpus", "/none"], "corpus /none: No such file");
    refused(
        &["jobs", "--corpus", odd],
        "5000 bytes; must be a multiple of 4096",
    );
    refused(
        &["jobs", "--algorithm", "lz5"],
        "algorithm \"lz5\": unknown",
    );
    refused(&["jobs", "--seconds", "0"], "seconds 0: at least 1");
    refused(&["jobs", "--seconds", "5"], "does a fixed amount of work");
    refused(
        &["jobs", "--threads", "2"],
        "threads: suite jobs has 1 to 10",
    );
    refused(&["store", "--threads", "65"], "threads 65: at most");
    refused(&["jobs", "--scale", "0"], "0 is not in 1..=1024");
    refused(&["jobs", "--iozone", "-t 65"], "-t 65: 1 to 64");
    refused(
        &["jobs", "--fio", "size=1m numjobs=65"],
        "numjobs 65: 1 to 64",
    );
    refused(
        &["jobs", "--on", "ramdisk"],
        "on \"ramdisk\": unknown; one of engine, nbd",
    );
    refused(
        &["jobs", "--on", precious],
        "holds data (a file of 4 bytes)",
    );
    refused(&["jobs", "--destroy", precious], "--on");
    assert_eq!(fs::read(precious).unwrap(), b"data");
}

/// In the words of both programs, on every kind of place that needs no privilege.
#[test]
fn jobs_of_ones_own_run_on_the_engine_a_server_and_a_file() {
    let home = Home::new();
    let folder = home.dir.path();
    let (json, file) = (folder.join("report.json"), folder.join("disk"));
    let mut command = home.command(&["jobs", "--quick", "--on", "engine", "--on", "nbd"]);
    command.args(["--iozone", "-t 2 -r 16K -s 128K -+Z -i 0"]);
    command.args(["--fio", "rw=randrw bs=4k size=512k direct=0"]);
    command.args([Path::new("--on"), &file, Path::new("--json"), &json]);
    let output = command.env("TMPDIR", folder).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{errors}");
    let report: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let rates = report["results"].as_array().unwrap();
    for variant in ["uzram-lzo", "uzram-lzo-nbd", file.to_str().unwrap()] {
        let own = rates.iter().filter(|row| row["variant"] == variant);
        let rates =
            own.filter(|row| row["metric"] == "throughput" && row["min"].as_f64() > Some(0.0));
        assert_eq!(
            rates.count(),
            3,
            "{variant}: initial-write, rewrite, randrw"
        );
    }
    assert!(!file.exists(), "it was made for the run");
    assert_eq!(servers(folder), 0, "a stray server");
}

/// The file is made before anything is measured, and a build for tests takes minutes for all of it.
#[test]
fn interrupted_matrices_report_what_is_whole() {
    for suite in ["streams", "locks"] {
        let home = Home::new();
        let json = home.dir.path().join("report.json");
        let command = home.command(&[suite, "--scale", "4"]);
        let report = interrupted(command, "INT", &json, || json.exists());
        assert_eq!(report["suite"], suite);
        assert!(report["results"].is_array());
    }
}

#[test]
fn suites_scales_and_threads_that_cannot_be_are_refused() {
    let home = Home::new();
    let refused = |arguments: &[&str], said: &str| {
        home.refused(arguments, said);
    };
    refused(&["stream"], "'streams'; see uzram-bench --help");
    for suite in ["streams", "locks"] {
        refused(&[suite, "--scale", "0"], "scale 0: 1 to 512");
        refused(&[suite, "--threads", "65"], "threads 65: at most 64");
        refused(&[suite, "--seconds", "0"], "seconds 0: at least 1");
        refused(&[suite, "--against", "brd"], "one of kernel-zram");
        refused(&[suite, "--corpus", "/none"], "corpus /none: ");
    }
}

#[test]
fn suites_and_options_that_the_readme_names_exist() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = fs::read_to_string(readme).unwrap();
    let shown: Vec<&str> = readme
        .lines()
        .filter_map(|line| line.strip_prefix("uzram bench "))
        .collect();
    assert!(!shown.is_empty());
    for arguments in shown {
        let suite = arguments.split(' ').next().unwrap();
        let help = Home::new().command(&[suite, "--help"]).output().unwrap();
        assert!(help.status.success(), "{arguments}");
        let help = String::from_utf8(help.stdout).unwrap();
        let mut options = arguments.split(' ').filter(|word| word.starts_with("--"));
        assert!(options.all(|option| help.contains(option)), "{arguments}");
    }
}

/// One test at a time swaps.
static SWAP: Mutex<()> = Mutex::new(());

/// Traces of swapping: swap areas, loop devices over a file in `folder`, cgroups, settings.
#[derive(Debug, PartialEq)]
struct Traces {
    swaps: String,
    loops: usize,
    groups: Vec<PathBuf>,
    settings: Vec<String>,
}

impl Traces {
    fn of(folder: &Path) -> Traces {
        let text = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        let under = |root: &str| fs::read_dir(root).into_iter().flatten().flatten();
        let files = under("/sys/block").map(|entry| text(&entry.path().join("loop/backing_file")));
        let groups = under(GROUPS).map(|entry| entry.path());
        let settings = ["scale", "boost"].map(|of| format!("/proc/sys/vm/watermark_{of}_factor"));
        Traces {
            swaps: text("/proc/swaps".as_ref()),
            loops: files
                .filter(|file| file.contains(folder.to_str().unwrap()))
                .count(),
            groups: groups
                .filter(|path| path.to_str().unwrap().contains("uzram-bench"))
                .collect(),
            settings: settings.map(|path| text(path.as_ref())).to_vec(),
        }
    }
}

const GROUPS: &str = "/sys/fs/cgroup/memory";

/// Ctrl-C while a program swaps, and a server that dies then: the program ends, and nothing stays.
#[test]
fn a_swap_case_that_ends_early_leaves_no_swap() {
    let _alone = SWAP.lock().unwrap_or_else(PoisonError::into_inner);
    let needed = [GROUPS, "/dev/fuse", "/dev/loop-control"];
    let is_root = rustix::process::geteuid().is_root();
    let is_free = fs::read_to_string("/proc/swaps").is_ok_and(|swaps| swaps.lines().count() == 1);
    if !is_root || !is_free || needed.iter().any(|path| !Path::new(path).exists()) {
        return eprintln!("left out: it needs root, loop, FUSE, cgroups (v1), and no other swap");
    }
    for (signal, said) in [
        ("INT", "interrupted: nothing is left"),
        ("KILL", "swapping program: "),
    ] {
        let home = Home::new();
        let folder = home.dir.path();
        let before = Traces::of(folder);
        let mut command = home.command(&["devices", "--quick", "--only", "swap"]);
        command
            .args(["--against", "tmpfs-loop"])
            .env("TMPDIR", folder);
        let bench = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        eventually("pages are swapped", || swapped_kib() > 1 << 12);
        let own = format!("{GROUPS}/uzram-bench.{}.", bench.id());
        let groups = Traces::of(folder).groups;
        let is_own = |group: &PathBuf| group.to_str().unwrap().starts_with(&own);
        assert!(groups.iter().any(is_own), "{groups:?}");
        let target = match signal {
            "INT" => bench.id(),
            _ => swap_server(folder),
        };
        let sent = Command::new("kill")
            .args(["-s", signal, &target.to_string()])
            .status();
        assert!(sent.unwrap().success());
        let output = bench.wait_with_output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{signal}: {errors}");
        assert!(errors.contains(said), "{signal}: {errors}");
        assert!(!errors.contains("left behind"), "{signal}: {errors}");
        assert_eq!(Traces::of(folder), before, "{signal}: {errors}");
        let left: Vec<_> = fs::read_dir(folder).unwrap().flatten().collect();
        assert!(left.is_empty(), "{signal}: {left:?}");
    }
}

/// Its faults, and the end of what a SIGKILL leaves: the next run takes the swap down before it measures.
#[test]
fn compressed_memory_is_measured_and_a_killed_run_s_swap_is_undone() {
    let _alone = SWAP.lock().unwrap_or_else(PoisonError::into_inner);
    let home = Home::new();
    let (json, folder) = (home.dir.path().join("report.json"), home.dir.path());
    let quick = [
        "pager",
        "--quick",
        "--against",
        "kernel-zram-swap",
        "--against",
        "small-pages",
    ];
    let before = Traces::of(folder);
    let page_cluster = || fs::read_to_string("/proc/sys/vm/page-cluster").ok();
    let cluster_before = page_cluster();
    let measured = |more: &[&str]| {
        let mut command = home.command(&quick);
        command.args(more).env("TMPDIR", folder);
        command.args([Path::new("--json"), &json]).output().unwrap()
    };
    // The patterns are measured against a cgroup's limit, at which the kernel may kill: not for a test.
    let output = measured(&["--only", "faults", "--only", "fits"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if errors.contains("userfaultfd") {
        return eprintln!("left out: {errors}");
    }
    assert_eq!(output.status.code(), Some(0), "{errors}");
    let report = fs::read_to_string(&json).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let rows = report["results"].as_array().unwrap();
    let of = |variant| rows.iter().filter(move |row| row["variant"] == variant);
    for variant in ["uzram-lz4", "uzram-words"] {
        let own = of(variant).filter(|row| row["min"].as_f64() > Some(0.0));
        assert!(own.count() >= 7 + 2, "{variant}");
    }
    assert_eq!(of("small-pages").count(), 2);
    assert_eq!(Traces::of(folder), before, "{errors}");
    assert_eq!(page_cluster(), cluster_before);
    if report["missing"]
        .as_array()
        .is_some_and(|missing| !missing.is_empty())
    {
        return eprintln!(
            "left out: a kill while the kernel swaps: {}",
            report["missing"]
        );
    }

    let mut command = home.command(&quick);
    let command = command.args(["--only", "patterns"]).env("TMPDIR", folder);
    let mut bench = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually("pages are swapped", || swapped_kib() > 1 << 10);
    bench.kill().unwrap();
    bench.wait().unwrap();
    assert_ne!(Traces::of(folder), before, "a kill leaves swap");
    let output = measured(&["--only", "fits"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert_eq!(Traces::of(folder), before, "{errors}");
    assert_eq!(page_cluster(), cluster_before);
}

/// How much is swapped out, in KiB.
fn swapped_kib() -> u64 {
    let table = fs::read_to_string("/proc/swaps").unwrap();
    let used = table
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().nth(3).unwrap());
    used.map(|kib| kib.parse::<u64>().unwrap()).sum()
}

/// The server that serves swap with its state in `folder`.
fn swap_server(folder: &Path) -> u32 {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let is_server = |entry: &fs::DirEntry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.contains("\0--for-swap") && line.contains(folder.to_str().unwrap())
    };
    let mut found = processes.filter(is_server);
    let entry = found.next().unwrap();
    entry.file_name().to_str().unwrap().parse().unwrap()
}

/// Processes that serve a socket in `folder`.
fn servers(folder: &Path) -> usize {
    let folder = folder.to_str().unwrap();
    let is_server = |line: &Vec<u8>| {
        let line = String::from_utf8_lossy(line);
        line.contains("\0serve\0") && line.contains(folder)
    };
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines.filter(is_server).count()
}
