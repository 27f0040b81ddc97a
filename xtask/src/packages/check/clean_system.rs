//! The life of the Debian package in a clean system without a running systemd: installed, upgraded and removed with
//! a disk up. (With systemd: the guest test `systemd`.)

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use super::super::deb::{self, debian_package};
use super::super::parts::{Parts, VERSION};
use super::server::wait_for;
use crate::clean_root::CleanRoot;
use crate::e2e::Client;
use crate::process::{self, Exit, Finished, Output, Running};

const OLDER: &str = "0.0.1";
const LIMIT: Duration = Duration::from_secs(120);
const SIZE: &str = "16M";
const PAGE: [u8; 4096] = [7; 4096];
/// Paths that the purge may leave: the system's own notes, and the user, as Debian's packages do.
const MAY_STAY: &[&str] = &[
    "/etc/passwd",
    "/etc/group",
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/subuid",
    "/etc/subgid",
    "/etc/.pwd.lock",
    "/var/lib/dpkg/",
    "/var/log/",
    "/var/cache/",
    "/run/",
    "/tmp/",
];

/// Installs an older package, upgrades it, and purges it.
pub fn live(parts: &Parts) -> Result<String, String> {
    let root = CleanRoot::unpack()?;
    let before = files(root.path())?;
    let older = debian_package(parts, OLDER)?;
    install(&root, &older)?;
    // It is no release.
    let _ = fs::remove_file(older);
    ok(
        &root,
        "test -s /usr/share/man/man1/uzram.1.gz && getent passwd uzram",
    )?;
    ok(
        &root,
        "echo 'SWAP_OPTIONS=\"--size 1G\"' > /etc/default/uzram",
    )?;

    let mut server = serve(&root)?;
    let mut client = connect(&root)?;
    client.write(0, &PAGE).map_err(|error| error.to_string())?;
    let upgraded = install(&root, &deb::file(parts, VERSION))?;
    expect(
        &upgraded.stdout,
        &format!("disks that uzram {OLDER} serves go on as they are: d\n"),
    )?;
    still_there(&mut client)?;
    ok(
        &root,
        "grep -q 'size 1G' /etc/default/uzram && uzram --version",
    )?;
    for removal in ["dpkg --remove uzram", "dpkg --purge uzram"] {
        let refused = process::run(&mut root.shell(removal), LIMIT, Output::Kept)?;
        if refused.exit == Exit::Code(0) {
            return Err(format!("{removal}: with a disk up"));
        }
        expect(&refused.stderr, "first: uzram down d\n")?;
        still_there(&mut client)?;
    }
    drop(client);
    ok(
        &root,
        "dpkg-query -W -f '${Status}' uzram | grep 'ok installed'; uzram down d",
    )?;
    if server.wait(LIMIT).map(Exit::from) != Some(Exit::Code(0)) {
        return Err("the server did not leave when `uzram down` asked it to".into());
    }
    ok(&root, "dpkg --purge uzram")?;
    let left: Vec<String> = files(root.path())?.difference(&before).cloned().collect();
    match left.is_empty() {
        true => Ok(String::new()),
        false => Err(format!("the purge leaves {}", left.join(" "))),
    }
}

fn install(root: &CleanRoot, package: &Path) -> Result<Finished, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", package.display());
    fs::copy(package, root.path().join("tmp/uzram.deb")).map_err(failed)?;
    ok(root, "dpkg --install /tmp/uzram.deb")
}

fn ok(root: &CleanRoot, script: &str) -> Result<Finished, String> {
    process::succeed(&mut root.shell(script), LIMIT)
}

fn socket(root: &CleanRoot) -> PathBuf {
    root.path().join("run/uzram/d.nbd")
}

fn serve(root: &CleanRoot) -> Result<Running, String> {
    let mut command = root.shell(&format!("exec uzram serve --size {SIZE} --name d"));
    let log = root.path().join("tmp/log");
    let failed = |error: std::io::Error| format!("{}: {error}", log.display());
    command.stdout(Stdio::null());
    command.stderr(Stdio::from(File::create(&log).map_err(failed)?));
    let mut server = Running::start(&mut command)?;
    wait_for(&socket(root), &mut server, &log)?;
    Ok(server)
}

fn connect(root: &CleanRoot) -> Result<Client, String> {
    Client::connect(&socket(root)).map_err(|error| error.to_string())
}

fn still_there(client: &mut Client) -> Result<(), String> {
    let mut page = PAGE.map(|_| 0);
    client
        .read(0, &mut page)
        .map_err(|error| format!("the disk: {error}"))?;
    match page == PAGE {
        true => Ok(()),
        false => Err("the disk holds other bytes".into()),
    }
}

fn expect(said: &str, wanted: &str) -> Result<(), String> {
    match said.contains(wanted) {
        true => Ok(()),
        false => Err(format!("no `{}` in:\n{said}", wanted.trim_end())),
    }
}

/// All paths in the system, but for those that may stay.
fn files(root: &Path) -> Result<BTreeSet<String>, String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let path = entry.path();
            let inside = path.strip_prefix(root).unwrap_or(&path);
            let inside = format!("/{}", inside.display());
            if entry.file_type().map_err(failed)?.is_dir() {
                folders.push(path);
            }
            if !MAY_STAY.iter().any(|start| inside.starts_with(start)) {
                found.insert(inside);
            }
        }
    }
    Ok(found)
}
