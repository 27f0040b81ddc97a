//! The clients of Debian's backports, which know extended headers. They are unpacked into a cache
//! and never installed. Without a mirror they are left out, by name.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::server::Server;
use crate::debian::{self, Suite};
use crate::process;
use crate::report::Report;
use crate::vm::kernel::cache_folder;
use crate::workspace;

const PACKAGE: &str = "qemu-utils";
const CLIENT_LIMIT: Duration = Duration::from_secs(120);

/// Runs the case with the programs in the cache, or downloads them.
pub fn run(binary: &Path, report: &mut Report) {
    let what = format!("e2e: {PACKAGE} of backports");
    let programs = match obtain() {
        Ok(programs) => programs,
        Err(reason) => return report.leave_out(format!("{what} ({reason})"), &[]),
    };
    let started = Instant::now();
    let result = extended_headers(binary, &programs);
    report.check(&what, started.elapsed(), result);
}

/// The folder with its programs; they run with the libraries of the release.
fn obtain() -> Result<PathBuf, String> {
    let cache = cache_folder("clients")?;
    let place = cache.join(PACKAGE);
    let programs = place.join("usr/bin");
    if !programs.is_dir() {
        let failed = |error: std::io::Error| format!("{}: {error}", cache.display());
        fs::create_dir_all(&cache).map_err(failed)?;
        let work = tempfile::tempdir_in(&cache).map_err(failed)?;
        let package =
            Suite::open(work.path(), debian::BACKPORTS, debian::AMD64)?.download(PACKAGE)?;
        let unpacked = work.path().join("unpacked");
        debian::unpack(&package, &unpacked)?;
        // Another checkout may have been faster: its copy is as good.
        if fs::rename(&unpacked, &place).is_err() && !programs.is_dir() {
            return Err(format!("{}: cannot be put there", place.display()));
        }
    }
    let mut version = workspace::command(programs.join("qemu-io"));
    process::succeed(version.arg("--version"), CLIENT_LIMIT)
        .map_err(|_| "it does not run with this system's libraries".to_string())?;
    Ok(programs)
}

fn extended_headers(binary: &Path, programs: &Path) -> Result<String, String> {
    // Over 4 GiB, so that one request reaches further than 32 bits.
    let server = Server::start(binary, &["--size", "6G", "--algorithm", "lz4"])?;
    let qemu_io = |script: &[&str]| {
        let mut command = workspace::command(programs.join("qemu-io"));
        command.args(["-f", "raw"]);
        for line in script {
            command.args(["-c", line]);
        }
        let finished = process::succeed(command.arg(server.uri()), CLIENT_LIMIT)?;
        // Some versions say so and end with status 0.
        match finished.stdout.contains("failed") || finished.stderr.contains("failed") {
            true => Err(process::failure(&command, &finished)),
            false => Ok(()),
        }
    };
    qemu_io(&[
        "write -P 5 1000 70000",
        "write -P 6 5g 1m",
        "read -P 5 1000 70000",
        "read -P 6 5g 1m",
    ])?;
    let data_bytes = || -> Result<u64, String> {
        let mut map = workspace::command(programs.join("qemu-img"));
        map.args(["map", "--output=json", "-f", "raw", &server.uri()]);
        let map = process::succeed(&mut map, CLIENT_LIMIT)?.stdout;
        let map: serde_json::Value = serde_json::from_str(&map).map_err(|e| e.to_string())?;
        let extents = map.as_array().into_iter().flatten();
        let data = extents.filter(|extent| extent["zero"] == false);
        Ok(data.filter_map(|extent| extent["length"].as_u64()).sum())
    };
    let written = data_bytes()?;
    if written != (1 << 20) + 73_728 {
        return Err(format!("qemu-img sees {written} bytes of data"));
    }
    qemu_io(&["write -z -u -n 1m 5500m", "read -P 0 5g 1m", "discard 0 1g"])?;
    match data_bytes()? {
        0 => {}
        left => {
            return Err(format!(
                "{left} bytes of data are left after a discard of all"
            ));
        }
    }
    server.stop()?;
    Ok(String::new())
}
