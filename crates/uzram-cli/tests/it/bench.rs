//! Benchmarks that are interrupted: the report so far, and nothing left behind.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{Home, eventually};

/// Ctrl-C may also reach the benchmark alone, as with `kill`.
#[test]
fn an_interrupted_benchmark_reports_and_leaves_no_server() {
    let nbd: &[&str] = &["bench", "nbd", "--quick", "--algorithm", "lz4"];
    let jobs: &[&str] = &[
        "bench", "jobs", "--scale", "1", "--on", "nbd", "--on", "engine",
    ];
    for (suite, signal) in [(nbd, "INT"), (nbd, "TERM"), (jobs, "INT"), (jobs, "TERM")] {
        let home = Home::new();
        let folder = home.dir.path();
        let (json, html) = (folder.join("report.json"), folder.join("report.html"));
        let mut command = home.command(suite);
        command
            .args([Path::new("--json"), &json, Path::new("--html"), &html])
            .env("TMPDIR", folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let bench = command.spawn().unwrap();
        eventually("a server of the benchmark's", || servers(folder) == 1);
        let pid = bench.id().to_string();
        let sent = Command::new("kill").args(["-s", signal, &pid]).status();
        assert!(sent.unwrap().success());
        let output = bench.wait_with_output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(
            errors.ends_with("uzram: interrupted: nothing is left running or set up\n"),
            "{errors}"
        );

        assert_eq!(servers(folder), 0, "a stray server");
        let left = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        let left: Vec<_> = left.filter(|entry| entry.path().is_dir()).collect();
        assert!(left.is_empty(), "{left:?}");

        let report: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
        let stopped = report["stopped"].as_str().unwrap();
        assert!(stopped.starts_with("interrupted"), "{stopped}");
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
    let refused = |words: &[&str], said: &str| home.run(words).refused(2, said);
    refused(&["bench", "spin"], "unrecognized subcommand 'spin'");
    refused(
        &["bench", "jobs", "--against", "ramdisk"],
        "peer \"ramdisk\": unknown to this suite",
    );
    refused(
        &["bench", "jobs", "--corpus", "/none"],
        "corpus /none: No such file",
    );
    refused(
        &["bench", "jobs", "--corpus", odd],
        "5000 bytes; must be a multiple of 4096",
    );
    refused(
        &["bench", "jobs", "--algorithm", "lz5"],
        "algorithm \"lz5\": unknown",
    );
    refused(
        &["bench", "jobs", "--seconds", "0"],
        "seconds 0: at least 1",
    );
    refused(
        &["bench", "jobs", "--seconds", "5"],
        "does a fixed amount of work",
    );
    refused(
        &["bench", "jobs", "--threads", "2"],
        "threads: suite jobs has 1 to 10",
    );
    refused(
        &["bench", "store", "--threads", "65"],
        "threads 65: at most",
    );
    refused(&["bench", "jobs", "--scale", "0"], "0 is not in 1..=1024");
    refused(&["bench", "jobs", "--iozone", "-t 65"], "-t 65: 1 to 64");
    refused(
        &["bench", "jobs", "--fio", "size=1m numjobs=65"],
        "numjobs 65: 1 to 64",
    );
    refused(
        &["bench", "jobs", "--on", "ramdisk"],
        "on \"ramdisk\": unknown; one of engine, nbd",
    );
    refused(
        &["bench", "jobs", "--on", precious],
        "holds data (a file of 4 bytes)",
    );
    refused(&["bench", "jobs", "--destroy", precious], "--on");
    assert_eq!(fs::read(precious).unwrap(), b"data");
}

/// In the words of both programs, on every kind of place that needs no privilege.
#[test]
fn jobs_of_ones_own_run_on_the_engine_a_server_and_a_file() {
    let home = Home::new();
    let folder = home.dir.path();
    let (json, file) = (folder.join("report.json"), folder.join("disk"));
    let mut command = home.command(&["bench", "jobs", "--quick", "--on", "engine", "--on", "nbd"]);
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
        let mut command = home.command(&["bench", suite, "--scale", "4"]);
        command
            .args([Path::new("--json"), &json])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let bench = command.spawn().unwrap();
        eventually("the report's file", || json.exists());
        let pid = bench.id().to_string();
        let sent = Command::new("kill").args(["-s", "INT", &pid]).status();
        assert!(sent.unwrap().success());
        let output = bench.wait_with_output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(
            errors.ends_with("uzram: interrupted: nothing is left running or set up\n"),
            "{errors}"
        );
        let report: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
        let stopped = report["stopped"].as_str().unwrap();
        assert!(stopped.starts_with("interrupted"), "{stopped}");
        assert_eq!(report["suite"], suite);
        assert!(report["results"].is_array());
    }
}

#[test]
fn suites_scales_and_threads_that_cannot_be_are_refused() {
    let home = Home::new();
    let refused = |arguments: &[&str], said: &str| {
        let all: Vec<&str> = ["bench"].iter().chain(arguments).copied().collect();
        home.run(&all).refused(2, said);
    };
    refused(&["stream"], "'streams'; see uzram bench --help");
    for suite in ["streams", "locks"] {
        refused(&[suite, "--scale", "0"], "scale 0: 1 to 512");
        refused(&[suite, "--threads", "65"], "threads 65: at most 64");
        refused(&[suite, "--seconds", "0"], "seconds 0: at least 1");
        refused(&[suite, "--against", "brd"], "one of kernel-zram");
        refused(&[suite, "--corpus", "/none"], "corpus /none: ");
    }
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
