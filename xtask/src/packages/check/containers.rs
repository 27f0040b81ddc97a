//! The image, run with as few rights as a container can have.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::super::image::{self, NAME};
use super::super::parts::{Parts, VERSION};
use super::server::wait_for;
use crate::install;
use crate::process::{self, Exit, Running};
use crate::{e2e, workspace};

const LIMIT: Duration = Duration::from_secs(120);
const LEAVE_LIMIT: Duration = Duration::from_secs(30);
const SERVE: [&str; 6] = ["serve", "--size", "16M", "--name", "d", "--checksum"];
const SIZE_BYTES: u64 = 16 << 20;
/// The image's user.
const USER: u32 = 65532;
const MOUNTED: &str = "/run/uzram";

/// Serves from the image, by each program, to a client outside.
pub fn serve(parts: &Parts) -> Result<String, String> {
    let archive = image::file(parts);
    let work = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut load = podman(work.path());
    process::succeed(load.args(["load", "--input"]).arg(&archive), LIMIT)?;
    let served = in_podman(work.path()).and_then(|()| in_runc(work.path()));
    // Its store has mounts, which a removal of the folder would run into.
    let reset = process::succeed(
        podman(work.path()).args(["system", "reset", "--force"]),
        LIMIT,
    );
    served.and(reset.map(|_| String::new()))
}

fn podman(work: &Path) -> Command {
    let mut podman = workspace::command(install::PODMAN.program);
    // A store of its own: the system's containers are neither seen nor changed.
    podman.args(["--storage-driver", "vfs", "--cgroup-manager", "cgroupfs"]);
    podman.args(["--runtime", install::RUNC.program]);
    podman.arg("--root").arg(work.join("store"));
    podman.arg("--runroot").arg(work.join("run"));
    podman
}

fn in_podman(work: &Path) -> Result<(), String> {
    let volume = volume(work, "podman")?;
    let mut run = podman(work);
    run.args([
        "run",
        "--rm",
        "--network",
        "none",
        "--read-only",
        "--cap-drop",
        "all",
    ]);
    run.args(["--security-opt", "no-new-privileges"]);
    // No more than this process may give.
    run.args([
        "--ulimit",
        "nofile=1024:1024",
        "--ulimit",
        "nproc=1000:1000",
    ]);
    run.arg("--volume")
        .arg(format!("{}:{MOUNTED}", volume.display()));
    run.arg(format!("{NAME}:{VERSION}")).args(SERVE);
    served(run, &volume)
}

fn in_runc(work: &Path) -> Result<(), String> {
    let volume = volume(work, "runc")?;
    let bundle = work.join("bundle");
    let failed = |error: std::io::Error| format!("{}: {error}", bundle.display());
    fs::create_dir_all(bundle.join("rootfs")).map_err(failed)?;
    unpack(work, &bundle.join("rootfs"))?;
    let mut spec = runc(work);
    process::succeed(spec.arg("spec").arg("--bundle").arg(&bundle), LIMIT)?;
    let config = bundle.join("config.json");
    let text = fs::read_to_string(&config).map_err(failed)?;
    let text = configured(&text, &volume).ok_or("runc spec: another form than known")?;
    fs::write(&config, text).map_err(failed)?;
    let mut run = runc(work);
    run.arg("run")
        .arg("--bundle")
        .arg(&bundle)
        .arg("uzram-check");
    served(run, &volume)
}

fn runc(work: &Path) -> Command {
    let mut runc = workspace::command(install::RUNC.program);
    runc.arg("--root").arg(work.join("runc"));
    runc
}

/// The image's files, in `root`.
fn unpack(work: &Path, root: &Path) -> Result<(), String> {
    let mut create = podman(work);
    create
        .args(["create", "--network", "none"])
        .arg(format!("{NAME}:{VERSION}"));
    let container = process::succeed(&mut create, LIMIT)?.stdout;
    let archive = work.join("files.tar");
    let mut export = podman(work);
    export
        .arg("export")
        .arg("--output")
        .arg(&archive)
        .arg(container.trim());
    process::succeed(&mut export, LIMIT)?;
    let mut tar = workspace::command(install::TAR.program);
    tar.arg("--extract")
        .arg("--file")
        .arg(&archive)
        .arg("--directory")
        .arg(root);
    process::succeed(&mut tar, LIMIT).map(drop)
}

/// The configuration that `runc spec` made, for the image's user and command, without capabilities.
fn configured(spec: &str, volume: &Path) -> Option<String> {
    let mut spec: Value = serde_json::from_str(spec).ok()?;
    let process = spec["process"].as_object_mut()?;
    let mut arguments = vec!["/usr/bin/uzram"];
    arguments.extend(SERVE);
    process.insert("terminal".into(), json!(false));
    process.insert("args".into(), json!(arguments));
    process.insert("env".into(), json!([format!("XDG_RUNTIME_DIR={MOUNTED}")]));
    process.insert("user".into(), json!({"uid": USER, "gid": USER}));
    process.remove("capabilities");
    process.remove("rlimits");
    let mount = json!({"destination": MOUNTED, "type": "bind", "source": volume, "options": ["bind", "rw"]});
    spec["mounts"].as_array_mut()?.push(mount);
    Some(spec.to_string())
}

/// A folder of the container's user.
fn volume(work: &Path, name: &str) -> Result<std::path::PathBuf, String> {
    let volume = work.join(name);
    let made = fs::create_dir_all(&volume);
    let made = made.and_then(|()| std::os::unix::fs::chown(&volume, Some(USER), Some(USER)));
    made.map_err(|error| format!("{}: {error}", volume.display()))?;
    Ok(volume)
}

/// Runs the server, uses its disk, and asks it to leave.
fn served(mut run: Command, volume: &Path) -> Result<(), String> {
    let log = volume.join("log");
    let file = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
    let again = file
        .try_clone()
        .map_err(|error| format!("{}: {error}", log.display()))?;
    run.stdout(Stdio::from(file)).stderr(Stdio::from(again));
    let mut server = Running::start(&mut run)?;
    let socket = volume.join("uzram/d.nbd");
    wait_for(&socket, &mut server, &log)?;
    e2e::write_and_read(&socket, SIZE_BYTES)?;
    server.terminate();
    match server.wait(LEAVE_LIMIT).map(Exit::from) {
        Some(Exit::Code(0)) => Ok(()),
        other => {
            let said = fs::read_to_string(&log).unwrap_or_default();
            Err(format!(
                "{}: did not leave ({other:?}):\n{said}",
                process::line(&run)
            ))
        }
    }
}
