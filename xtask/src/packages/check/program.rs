//! The program in each package: the one that was built, for the machine that the package names.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::super::parts::{Parts, VERSION, read, workplace};
use super::super::{deb, image, tarball};
use crate::install;
use crate::{elf, process, workspace};

const LIMIT: Duration = Duration::from_secs(60);

pub fn in_tarball(parts: &Parts) -> Result<String, String> {
    let work = workplace(parts)?;
    unpack(&tarball::file(parts), work.path())?;
    let folder = format!("uzram-{VERSION}-{}", parts.machine);
    check(parts, &work.path().join(folder).join("uzram"))
}

pub fn in_deb(parts: &Parts) -> Result<String, String> {
    let work = workplace(parts)?;
    let file = deb::file(parts, VERSION);
    let dpkg_deb = || workspace::command(install::DPKG_DEB.program);
    let mut ask = dpkg_deb();
    ask.arg("--field").arg(&file).arg("Architecture");
    let said = process::succeed(&mut ask, LIMIT)?.stdout;
    expect("the package", said.trim(), parts.debian)?;
    let mut extract = dpkg_deb();
    extract.arg("--extract").arg(&file).arg(work.path());
    process::succeed(&mut extract, LIMIT)?;
    check(parts, &work.path().join("usr/bin/uzram"))
}

/// Of an archive of layers that lie one on the other.
pub fn in_image(parts: &Parts) -> Result<String, String> {
    let work = workplace(parts)?;
    unpack(&image::file(parts), work.path())?;
    let manifest = json(&work.path().join("manifest.json"))?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let config = json(&work.path().join(text(&manifest[0]["Config"])))?;
    expect("the image", &text(&config["architecture"]), parts.debian)?;
    let root = work.path().join("root");
    std::fs::create_dir(&root).map_err(|error| format!("{}: {error}", root.display()))?;
    for layer in manifest[0]["Layers"].as_array().into_iter().flatten() {
        unpack(&work.path().join(text(layer)), &root)?;
    }
    check(parts, &root.join("usr/bin/uzram"))
}

fn unpack(archive: &Path, to: &Path) -> Result<(), String> {
    let mut tar = workspace::command(install::TAR.program);
    tar.arg("--extract").arg("--no-same-owner");
    tar.arg("--file").arg(archive).arg("--directory").arg(to);
    process::succeed(&mut tar, LIMIT).map(drop)
}

fn json(file: &Path) -> Result<Value, String> {
    let failed = |error: serde_json::Error| format!("{}: {error}", file.display());
    serde_json::from_slice(&read(file)?).map_err(failed)
}

fn expect(what: &str, found: &str, wanted: &str) -> Result<(), String> {
    match found == wanted {
        true => Ok(()),
        false => Err(format!("{what} is for {found:?}, not for {wanted}")),
    }
}

fn check(parts: &Parts, program: &Path) -> Result<String, String> {
    let packed = read(program)?;
    if packed != read(&parts.folder.join("uzram"))? {
        return Err("another program than the one that was built".into());
    }
    expect("the program", elf::machine(&packed)?, &parts.machine)?;
    let Some(mut start) = command(parts, program) else {
        let emulator = install::QEMU_AARCH64.program;
        return Ok(format!("not started: no {emulator}"));
    };
    let said = process::succeed(start.arg("--version"), LIMIT)?.stdout;
    match said.contains(VERSION) {
        true => Ok(String::new()),
        false => Err(format!("it says that it is {said:?}")),
    }
}

/// The command that starts `program`, by an emulator if need be.
fn command(parts: &Parts, program: &Path) -> Option<Command> {
    if parts.is_native() {
        return Some(workspace::command(program));
    }
    let emulator: PathBuf = workspace::find_program(install::QEMU_AARCH64.program)?;
    let mut command = workspace::command(emulator);
    command.arg(program);
    Some(command)
}
