//! The Debian package.

use std::fs;
use std::path::{Path, PathBuf};

use super::parts::{PACK_LIMIT, Parts, THIRD_PARTY, copy, set_mode, workplace, write};
use crate::install::{self, Tool};
use crate::{process, workspace};

pub const TOOLS: &[Tool] = &[install::DPKG_DEB, install::GZIP];

/// The form in which a file is installed.
#[derive(Clone, Copy)]
enum Form {
    Program,
    Plain,
    /// A file, or each file of a folder, with `.gz` behind its name.
    Compressed,
    /// Each file of a folder.
    Folder,
}
use Form::{Compressed, Folder, Plain, Program};

/// Parts, and their places in a system. A place that ends in a slash is a folder.
const INSTALLED: &[(&str, &str, Form)] = &[
    ("uzram", "usr/bin/uzram", Program),
    ("man/man1", "usr/share/man/man1/", Compressed),
    (
        "completions/bash/uzram",
        "usr/share/bash-completion/completions/uzram",
        Plain,
    ),
    (
        "completions/zsh/_uzram",
        "usr/share/zsh/vendor-completions/_uzram",
        Plain,
    ),
    (
        "completions/fish/uzram.fish",
        "usr/share/fish/vendor_completions.d/uzram.fish",
        Plain,
    ),
    ("systemd", "usr/lib/systemd/system/", Folder),
    ("sysusers.d", "usr/lib/sysusers.d/", Folder),
    ("default", "etc/default/uzram", Plain),
    (
        "uzram.toml",
        "usr/share/doc/uzram/examples/uzram.toml",
        Plain,
    ),
    ("grafana", "usr/share/doc/uzram/examples/grafana/", Folder),
    (THIRD_PARTY, "usr/share/doc/uzram/THIRD-PARTY", Compressed),
    ("CHANGELOG.md", "usr/share/doc/uzram/NEWS", Compressed),
];
const CONFFILES: &str = "/etc/default/uzram\n";
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// The package's place.
pub fn file(parts: &Parts, version: &str) -> PathBuf {
    let name = format!("uzram_{version}_{}.deb", parts.debian);
    parts.folder.join(name)
}

/// Makes the package `uzram_VERSION_ARCHITECTURE.deb`.
///
/// # Errors
/// The words of the program that could not pack.
pub fn debian_package(parts: &Parts, version: &str) -> Result<PathBuf, String> {
    let root = workplace(parts)?;
    set_mode(root.path(), 0o755)?;
    for (from, to, form) in INSTALLED {
        install_part(
            parts,
            &parts.folder.join(from),
            &root.path().join(to),
            *form,
        )?;
    }
    let sources = workspace::root().join("packaging/debian");
    let documents = root.path().join("usr/share/doc/uzram");
    write(
        &documents.join("copyright"),
        copyright(&sources)?.as_bytes(),
    )?;
    let changelog = root.path().join("usr/share/doc/uzram/changelog");
    write(&changelog, changes(parts, version)?.as_bytes())?;
    compress(parts, &changelog)?;
    let overrides = root.path().join("usr/share/lintian/overrides/uzram");
    copy(&sources.join("lintian-overrides"), &overrides, 0o644)?;
    control(parts, version, root.path(), &sources)?;

    let file = file(parts, version);
    let mut build = parts.packer(install::DPKG_DEB.program);
    build.args(["--root-owner-group", "-Zxz", "--build"]);
    process::succeed(build.arg(root.path()).arg(&file), PACK_LIMIT)?;
    Ok(file)
}

fn install_part(parts: &Parts, from: &Path, to: &Path, form: Form) -> Result<(), String> {
    match form {
        Program => copy(from, to, 0o755),
        Plain => copy(from, to, 0o644),
        Folder | Compressed if from.is_dir() => {
            let inner = if matches!(form, Folder) { Plain } else { form };
            for file in files_in(from)? {
                let name = file.file_name().unwrap_or_default();
                install_part(parts, &file, &to.join(name), inner)?;
            }
            Ok(())
        }
        Folder => Err(format!("{}: no folder", from.display())),
        Compressed => {
            copy(from, to, 0o644)?;
            compress(parts, to)
        }
    }
}

fn compress(parts: &Parts, file: &Path) -> Result<(), String> {
    let mut gzip = parts.packer(install::GZIP.program);
    process::succeed(gzip.arg("-9n").arg(file), PACK_LIMIT).map(drop)
}

/// The files that dpkg reads itself.
fn control(parts: &Parts, version: &str, root: &Path, sources: &Path) -> Result<(), String> {
    let folder = root.join("DEBIAN");
    let installed = files_below(root)?;
    let bytes: u64 = installed
        .iter()
        .filter_map(|file| Some(fs::metadata(file).ok()?.len()))
        .sum();
    let control = read(&sources.join("control"))?
        .replace("@VERSION@", version)
        .replace("@ARCHITECTURE@", parts.debian)
        .replace("@INSTALLED_KIB@", &bytes.div_ceil(1024).to_string());
    write(&folder.join("control"), control.as_bytes())?;
    write(&folder.join("conffiles"), CONFFILES.as_bytes())?;
    write(&folder.join("md5sums"), sums(root, &installed)?.as_bytes())?;
    for script in SCRIPTS {
        copy(&sources.join(script), &folder.join(script), 0o755)?;
    }
    Ok(())
}

/// The sums of all files but the configuration, which may change.
fn sums(root: &Path, installed: &[PathBuf]) -> Result<String, String> {
    let mut sum = workspace::command("md5sum");
    sum.current_dir(root).arg("--");
    let relative = installed
        .iter()
        .filter_map(|file| file.strip_prefix(root).ok());
    sum.args(relative.filter(|file| !file.starts_with("etc")));
    Ok(process::succeed(&mut sum, PACK_LIMIT)?.stdout)
}

/// Our own licence in Debian's form, with the whole text of the one that Debian does not have.
fn copyright(sources: &Path) -> Result<String, String> {
    let mit = read(&workspace::root().join("LICENSE-MIT"))?;
    let text = mit
        .split_once("Permission is")
        .ok_or("LICENSE-MIT: unknown text")?
        .1;
    let text = format!("Permission is{text}");
    let lines = text.trim_end().lines().map(|line| match line {
        "" => " .\n".to_string(),
        line => format!(" {line}\n"),
    });
    let head = read(&sources.join("copyright"))?;
    Ok(format!(
        "{head}License: Expat\n{}",
        lines.collect::<String>()
    ))
}

/// Debian's own list of changes, which names the version.
fn changes(parts: &Parts, version: &str) -> Result<String, String> {
    let mut date = workspace::command("date");
    date.args(["--utc", "--rfc-email", "--date"])
        .arg(format!("@{}", parts.epoch));
    let date = process::succeed(&mut date, PACK_LIMIT)?.stdout;
    let control = read(&workspace::root().join("packaging/debian/control"))?;
    let maintainer = control
        .lines()
        .find_map(|line| line.strip_prefix("Maintainer: "));
    Ok(format!(
        "uzram ({version}) unstable; urgency=medium\n\n  * Built by `cargo xtask dist`; NEWS.gz has the changes.\n\n \
         -- {}  {date}",
        maintainer.ok_or("packaging/debian/control: no Maintainer")?
    ))
}

fn files_in(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let entries: Result<Vec<_>, _> = fs::read_dir(folder).map_err(failed)?.collect();
    let mut paths: Vec<_> = entries
        .map_err(failed)?
        .iter()
        .map(fs::DirEntry::path)
        .collect();
    paths.sort();
    Ok(paths)
}

fn files_below(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    for path in files_in(folder)? {
        match path.is_dir() {
            true => files.extend(files_below(&path)?),
            false => files.push(path),
        }
    }
    Ok(files)
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}
