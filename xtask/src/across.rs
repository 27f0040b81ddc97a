//! Files and sockets that cross from one architecture to the other: a corpus, a dictionary, a table of atomic sectors,
//! a state directory and its control sockets. This machine's `uzram` makes them and one for aarch64 uses them, under
//! user-mode emulation, and the other way round.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::e2e::{Client, DEVICE_NAME, Server, uzram};
use crate::process::{self, Exit, Output};
use crate::report::Report;
use crate::target::Target;
use crate::workspace;

const BUILD_LIMIT: Duration = Duration::from_secs(900);
/// Of one command, which may be emulated.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);
/// Pages of the corpus. Half of them are trained on, of which there must be 64.
const CORPUS_PAGES: u32 = 192;

/// A check of what `maker` makes for `user`, with a folder for its files.
type Check = fn(maker: &Path, user: &Path, folder: &Path) -> Result<(), String>;

const CHECKS: [(&str, Check); 3] = [
    ("a corpus and a dictionary", dictionary),
    ("a table of atomic sectors", table),
    ("a state directory and its sockets", state),
];

/// Builds both programs and runs all checks. `runner` are the words before a program for `other` that run it here.
///
/// # Errors
/// If a program cannot be built.
pub fn run(other: &Target, runner: &str) -> Result<Report, String> {
    let mut report = Report::default();
    let scripts = tempfile::tempdir().map_err(|error| error.to_string())?;
    let native = build(&Target::host()?)?;
    let emulated = script(scripts.path(), runner, &build(other)?)?;
    let ways = [
        (&native, &emulated, "to aarch64"),
        (&emulated, &native, "from aarch64"),
    ];
    for (name, check) in CHECKS {
        for (maker, user, way) in ways {
            let started = Instant::now();
            let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
            let result = check(maker, user, folder.path()).map(|()| String::new());
            report.check(&format!("{name} {way}"), started.elapsed(), result);
        }
    }
    Ok(report)
}

/// The program for `target`, built as tests are.
fn build(target: &Target) -> Result<PathBuf, String> {
    let mut cargo = workspace::cargo();
    // With an example cargo chooses the features that it chooses for tests.
    cargo.args(["build", "--bin", "uzram", "--example", "man"]);
    if target.is_cross() {
        target.configure(&mut cargo);
    }
    let finished = process::run(&mut cargo, BUILD_LIMIT, Output::Shown)?;
    match finished.exit {
        Exit::Code(0) => Ok(target
            .folder(workspace::target_dir())
            .join("debug")
            .join("uzram")),
        _ => Err(process::failure(&cargo, &finished)),
    }
}

/// A script that runs `program` as if this machine could.
fn script(folder: &Path, runner: &str, program: &Path) -> Result<PathBuf, String> {
    let path = folder.join("uzram");
    let text = format!("#!/bin/sh\nexec {runner} '{}' \"$@\"\n", program.display());
    let written = fs::write(&path, text)
        .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o755)));
    written.map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

/// A corpus is trained on, and the dictionary taken back.
fn dictionary(maker: &Path, user: &Path, folder: &Path) -> Result<(), String> {
    let pages: String = (0..CORPUS_PAGES * 64)
        .map(|line| {
            format!(
                "{line:>20} of these lines, key {:>22}\n",
                line * 7919 % 100_003
            )
        })
        .collect();
    let source = folder.join("source");
    fs::write(&source, pages).map_err(|error| error.to_string())?;
    let (corpus, dictionary) = (text(folder, "corpus"), text(folder, "dictionary"));
    let source = text(folder, "source");
    succeed(
        maker,
        folder,
        &["capture", "--file", &source, "--out", &corpus],
    )?;
    succeed(user, folder, &["train", "--out", &dictionary, &corpus])?;
    let parameters = format!("dict={dictionary}");
    for codec in ["zstd", "lz4"] {
        let options = [
            "--size",
            "16M",
            "--algorithm",
            codec,
            "--algorithm-params",
            &parameters,
        ];
        let server = Server::start(maker, &options)?;
        exchange(&server, 3, None)?;
        server.stop()?;
    }
    Ok(())
}

/// Each writes sectors that the other reads.
fn table(maker: &Path, user: &Path, folder: &Path) -> Result<(), String> {
    let path = text(folder, "disk.btt");
    succeed(
        maker,
        folder,
        &[
            "btt",
            "create",
            &path,
            "--size",
            "17M",
            "--sector-size",
            "512",
        ],
    )?;
    let ours = ["--device", "btt", "--path", &path];
    for (binary, seed, before) in [(maker, 1, None), (user, 2, Some(1)), (maker, 3, Some(2))] {
        succeed(binary, folder, &["btt", "check", &path])?;
        let server = Server::start(binary, &ours)?;
        exchange(&server, seed, before)?;
        server.stop()?;
    }
    succeed(user, folder, &["btt", "check", &path]).map(drop)
}

/// A server is asked by the other's commands, and what it leaves when it is killed is no obstacle.
fn state(maker: &Path, user: &Path, _: &Path) -> Result<(), String> {
    let server = Server::start(maker, &["--size", "16M"])?;
    let folder = server.dir.path();
    let ask = |arguments: &[&str]| succeed(user, folder, arguments);
    // Its disk is served a moment before it answers commands.
    let deadline = Instant::now() + COMMAND_LIMIT;
    while let Err(message) = ask(&["stat", DEVICE_NAME]) {
        if Instant::now() > deadline {
            return Err(message);
        }
        thread::sleep(Duration::from_millis(100));
    }
    ask(&[
        "add",
        "--server",
        DEVICE_NAME,
        "--name",
        "other",
        "--size",
        "4M",
    ])?;
    expect(&ask(&["list"])?, "other")?;
    expect(&ask(&["stat", "other", "--json"])?, "\"disksize\": 4194304")?;
    ask(&["set", "other", "mem_limit", "1M"])?;
    ask(&["remove", "other"])?;
    let again = ["serve", "--size", "4M", "--name", DEVICE_NAME];
    refused(user, folder, &again, "already served")?;
    let folder = server.kill();
    refused(user, folder.path(), &["stat", DEVICE_NAME], DEVICE_NAME)?;
    let server = Server::start_in(folder, user, &["--size", "16M"])?;
    exchange(&server, 5, None)?;
    server.stop()
}

/// Reads what [`exchange`] wrote with the seed `before`, and writes with `seed` in its place, across sectors.
fn exchange(server: &Server, seed: u32, before: Option<u32>) -> Result<(), String> {
    const OFFSET: u64 = 12_345;
    let content = |seed: u32| -> Vec<u8> {
        (0..300_000u32)
            .map(|at| ((at / 5) * seed % 251) as u8)
            .collect()
    };
    let all = || -> std::io::Result<()> {
        let mut client = Client::connect(&server.socket())?;
        for (is_written, seed) in [(false, before), (true, Some(seed))] {
            let Some(content) = seed.map(content) else {
                continue;
            };
            if is_written {
                client.write(OFFSET, &content)?;
            }
            let mut found = vec![0; content.len()];
            client.read(OFFSET, &mut found)?;
            if found != content {
                return Err(std::io::Error::other("other bytes came back"));
            }
        }
        Ok(())
    };
    all().map_err(|error| format!("{}: {error}", server.socket().display()))
}

fn text(folder: &Path, name: &str) -> String {
    folder.join(name).display().to_string()
}

/// The output of `uzram` with its state in `folder`.
fn succeed(binary: &Path, folder: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = uzram(binary, folder);
    Ok(process::succeed(command.args(arguments), COMMAND_LIMIT)?.stdout)
}

/// It fails with one line that has `word` in it.
fn refused(binary: &Path, folder: &Path, arguments: &[&str], word: &str) -> Result<(), String> {
    let mut command = uzram(binary, folder);
    let finished = process::run(command.args(arguments), COMMAND_LIMIT, Output::Kept)?;
    match finished.exit {
        Exit::Code(1) => expect(&finished.stderr, word),
        _ => Err(process::failure(&command, &finished)),
    }
}

fn expect(said: &str, word: &str) -> Result<(), String> {
    match said.contains(word) {
        true => Ok(()),
        false => Err(format!("no `{word}` in: {said}")),
    }
}
