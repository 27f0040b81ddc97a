//! Benchmarks that are interrupted: the report so far, and nothing left behind.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{Home, eventually};

/// Ctrl-C may also reach the benchmark alone, as with `kill`.
#[test]
fn an_interrupted_benchmark_reports_and_leaves_no_server() {
    for signal in ["INT", "TERM"] {
        let home = Home::new();
        let folder = home.dir.path();
        let (json, html) = (folder.join("report.json"), folder.join("report.html"));
        let mut command = home.command(&["bench", "nbd", "--quick", "--algorithm", "lz4"]);
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
