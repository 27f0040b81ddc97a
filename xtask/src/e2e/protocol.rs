//! The younger parts of the protocol, as clients use them: extents, TLS, a mirror.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::cases::{Bench, CLIENT_LIMIT, Case, client, run_qemu_io};
use super::server::Server;
use crate::install;
use crate::process::{self, Exit, Output};
use crate::workspace;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Time limits for a mirror: until it is ready, and until it is complete.
const MIRROR_LIMIT: Duration = Duration::from_secs(60);

pub const CASES: &[Case] = &[
    Case {
        name: "holes, zeroes and data are told apart",
        tools: &[install::NBDINFO, install::QEMU_IO, install::QEMU_IMG],
        run: extents,
    },
    Case {
        name: "TLS lets in whom it should",
        tools: &[install::NBDINFO, install::NBDCOPY, install::CMP],
        run: tls,
    },
    Case {
        name: "qemu mirrors an image that is being written",
        tools: &[install::QEMU_IO, install::QEMU_IMG, install::QEMU_DAEMON],
        run: mirror,
    },
];

fn extents(bench: &Bench<'_>) -> Result<String, String> {
    let server = bench.serve(16, &[])?;
    let script = [
        "write -P 7 0 1m",
        "write -z 2m 64k",    // zeroes that may be holes, but qemu asks for none
        "write -z -u 3m 64k", // holes
        "write -P 0 4m 64k",  // zeroes as data
        "write -P 5 15m 1m",
    ];
    run_qemu_io(&server, &script)?;
    check_map(&server)?;
    server.stop()?;
    Ok(String::new())
}

/// The state that both clients see after the script.
fn check_map(server: &Server) -> Result<(), String> {
    let mut map = client("nbdinfo");
    map.args(["--map", "--json", &server.uri()]);
    let map = json_of(&mut map)?;
    let extents: Vec<[u64; 3]> = map
        .as_array()
        .into_iter()
        .flatten()
        .map(|extent| ["offset", "length", "type"].map(|key| extent[key].as_u64().unwrap_or(99)))
        .collect();
    // Type 0 is data, 2 zero, 3 hole and zero.
    let expected = [
        [0, MIB, 0],
        [MIB, MIB, 3],
        [2 * MIB, 64 * KIB, 2],
        [2 * MIB + 64 * KIB, 2 * MIB - 64 * KIB, 3],
        [4 * MIB, 64 * KIB, 2],
        [4 * MIB + 64 * KIB, 11 * MIB - 64 * KIB, 3],
        [15 * MIB, MIB, 0],
    ];
    if extents != expected {
        return Err(format!("nbdinfo's map is {extents:?}"));
    }
    let mut map = client("qemu-img");
    map.args(["map", "--output=json", "-f", "raw", &server.uri()]);
    let map = json_of(&mut map)?;
    let data: u64 = map
        .as_array()
        .into_iter()
        .flatten()
        .filter(|extent| extent["zero"] == false)
        .filter_map(|extent| extent["length"].as_u64())
        .sum();
    match data == 2 * MIB {
        true => Ok(()),
        false => Err(format!("qemu-img's map is {map}")),
    }
}

fn json_of(command: &mut Command) -> Result<Value, String> {
    let finished = process::succeed(command, CLIENT_LIMIT)?;
    serde_json::from_str(&finished.stdout).map_err(|error| format!("not JSON: {error}"))
}

fn tls(bench: &Bench<'_>) -> Result<String, String> {
    let dir = tempfile::tempdir().map_err(|error| format!("temporary directory: {error}"))?;
    certificates(dir.path()).map_err(|error| format!("certificates: {error}"))?;
    let file = |name: &str| dir.path().join(name).display().to_string();
    let (certificate, key, ca) = (
        file("server-cert.pem"),
        file("server-key.pem"),
        file("ca-cert.pem"),
    );
    let arguments = [
        "--tls-cert",
        &certificate,
        "--tls-key",
        &key,
        "--tls-client-ca",
        &ca,
    ];
    let server = bench.serve(16, &[&arguments[..], &["--tls-required"]].concat())?;
    let uri = |certificates: &Path| {
        format!(
            "nbds+unix://localhost/?socket={}&tls-certificates={}",
            server.socket().display(),
            certificates.display()
        )
    };
    let data: Vec<u8> = (0..4 * MIB as u32).map(|i| (i / 7 % 251) as u8).collect();
    let (from, back) = (dir.path().join("from"), dir.path().join("back"));
    let mut padded = data;
    padded.resize(16 * MIB as usize, 0);
    fs::write(&from, &padded).map_err(|error| format!("{}: {error}", from.display()))?;
    process::succeed(
        client("nbdcopy").arg(&from).arg(uri(dir.path())),
        CLIENT_LIMIT,
    )?;
    process::succeed(
        client("nbdcopy").arg(uri(dir.path())).arg(&back),
        CLIENT_LIMIT,
    )?;
    process::succeed(client("cmp").arg(&from).arg(&back), CLIENT_LIMIT)?;
    // Without TLS, without a certificate, and with one that has expired.
    let nobody = dir.path().join("nobody");
    let expired = dir.path().join("expired");
    for (refused, why) in [
        (server.uri(), "in the clear"),
        (uri(&nobody), "without a certificate"),
        (uri(&expired), "with an expired certificate"),
    ] {
        let finished = process::run(client("nbdinfo").arg(refused), CLIENT_LIMIT, Output::Kept)?;
        if !matches!(finished.exit, Exit::Code(1..)) {
            return Err(format!("nbdinfo came in {why}"));
        }
    }
    server.stop()?;
    Ok(String::new())
}

/// An authority, a server and a client in `dir` under the names that libnbd looks for; also a
/// folder without a certificate, and one with an expired client's.
fn certificates(dir: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let mut authority = rcgen::CertificateParams::new(Vec::new())?;
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = rcgen::CertifiedIssuer::self_signed(authority, rcgen::KeyPair::generate()?)?;
    let make = |folder: &str, who: &str, expired: bool| -> Result<(), Box<dyn std::error::Error>> {
        let folder = dir.join(folder);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("ca-cert.pem"), authority.pem())?;
        let mut params = rcgen::CertificateParams::new(vec!["localhost".to_string()])?;
        if expired {
            params.not_before = rcgen::date_time_ymd(2001, 1, 1);
            params.not_after = rcgen::date_time_ymd(2002, 1, 1);
        }
        let key = rcgen::KeyPair::generate()?;
        let certificate = params.signed_by(&key, &authority)?;
        fs::write(folder.join(format!("{who}-cert.pem")), certificate.pem())?;
        fs::write(folder.join(format!("{who}-key.pem")), key.serialize_pem())?;
        Ok(())
    };
    make("", "server", false)?;
    make("", "client", false)?;
    make("nobody", "unused", false)?;
    make("expired", "client", true)
}

fn mirror(bench: &Bench<'_>) -> Result<String, String> {
    let server = bench.serve(64, &[])?;
    run_qemu_io(&server, &["write -P 1 0 64m"])?;
    let source = server.dir.path().join("source");
    let file = fs::File::create(&source).and_then(|file| file.set_len(64 * MIB));
    file.map_err(|error| format!("{}: {error}", source.display()))?;
    let mut fill = client("qemu-io");
    fill.args([
        "-f",
        "raw",
        "-c",
        "write -P 7 1m 3m",
        "-c",
        "write -P 8 40m 5m",
    ]);
    process::succeed(fill.arg(&source), CLIENT_LIMIT)?;
    let front = server.dir.path().join("front");
    let mut daemon = Daemon::start(&source, &server.socket(), &front)?;
    daemon.ask(
        "blockdev-mirror",
        json!({"job-id": "m", "device": "s", "target": "t", "sync": "full"}),
    )?;
    // What runs on the image goes on meanwhile.
    let mut writes = client("qemu-io");
    writes.args(["-f", "raw"]);
    for at in 10..40 {
        writes.args(["-c", &format!("write -P {at} {at}m 300k")]);
    }
    writes.arg(format!("nbd+unix:///s?socket={}", front.display()));
    process::succeed(&mut writes, CLIENT_LIMIT)?;
    daemon.wait_for_job("ready", |jobs| jobs[0]["status"] == "ready")?;
    daemon.ask("job-complete", json!({"id": "m"}))?;
    daemon.wait_for_job("done", |jobs| jobs.as_array().is_some_and(Vec::is_empty))?;
    drop(daemon);
    let mut compare = client("qemu-img");
    compare.args(["compare", "-f", "raw", "-F", "raw"]);
    process::succeed(compare.arg(&source).arg(server.uri()), CLIENT_LIMIT)?;
    server.stop()?;
    Ok(String::new())
}

/// qemu-storage-daemon with an image, its export and a connection to our server; killed when
/// dropped.
struct Daemon {
    child: std::process::Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Daemon {
    fn start(source: &Path, target: &Path, front: &Path) -> Result<Daemon, String> {
        let mut command = workspace::command("qemu-storage-daemon");
        let nodes = [
            format!(
                "driver=raw,node-name=s,file.driver=file,file.filename={}",
                source.display()
            ),
            format!(
                "driver=nbd,node-name=t,server.type=unix,server.path={}",
                target.display()
            ),
        ];
        command.args(["--chardev", "stdio,id=c", "--monitor", "chardev=c"]);
        for node in &nodes {
            command.arg("--blockdev").arg(node);
        }
        command
            .arg("--nbd-server")
            .arg(format!("addr.type=unix,addr.path={}", front.display()))
            .args(["--export", "type=nbd,id=e,node-name=s,name=s,writable=on"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|error| format!("qemu-storage-daemon: {error}"))?;
        let answers = child
            .stdout
            .take()
            .ok_or("qemu-storage-daemon has no output")?;
        let mut daemon = Daemon {
            child,
            answers: BufReader::new(answers),
        };
        daemon.ask("qmp_capabilities", json!({}))?;
        Ok(daemon)
    }

    /// Runs a command and returns its reply. It answers at once or dies, and then its output ends.
    fn ask(&mut self, command: &str, arguments: Value) -> Result<Value, String> {
        let request = json!({"execute": command, "arguments": arguments});
        let failed = |error: std::io::Error| format!("qemu-storage-daemon: {command}: {error}");
        let input = self.child.stdin.as_mut().ok_or("no input")?;
        writeln!(input, "{request}").map_err(failed)?;
        loop {
            let mut line = String::new();
            if self.answers.read_line(&mut line).map_err(failed)? == 0 {
                return Err(format!("qemu-storage-daemon ended at {command}"));
            }
            let mut answer: Value = serde_json::from_str(&line)
                .map_err(|error| format!("qemu-storage-daemon: {error}: {line}"))?;
            if !answer["error"].is_null() {
                return Err(format!(
                    "qemu-storage-daemon: {command}: {}",
                    answer["error"]
                ));
            }
            if !answer["return"].is_null() {
                return Ok(answer["return"].take());
            }
        }
    }

    fn wait_for_job(&mut self, what: &str, is_so: impl Fn(&Value) -> bool) -> Result<(), String> {
        let started = Instant::now();
        loop {
            let jobs = self.ask("query-jobs", json!({}))?;
            if is_so(&jobs) {
                return Ok(());
            }
            if started.elapsed() > MIRROR_LIMIT {
                return Err(format!("the mirror is not {what}: {jobs}"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
