//! The parts of a package: what `dist` has built, and the files that go beside it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::licences;
use crate::target::Target;
use crate::{process, workspace};

/// The version of all packages.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Licences of what is linked into the program.
pub const THIRD_PARTY: &str = "THIRD-PARTY";
/// Files that go beside the binary as they are, and their places there.
pub const FILES: &[(&str, &str)] = &[
    ("packaging/uzram.toml", "uzram.toml"),
    ("packaging/default", "default"),
    ("packaging/grafana/uzram.json", "grafana/uzram.json"),
    ("packaging/sysusers.d/uzram.conf", "sysusers.d/uzram.conf"),
    ("packaging/systemd/uzram.service", "systemd/uzram.service"),
    ("packaging/systemd/uzram.socket", "systemd/uzram.socket"),
    ("packaging/systemd/uzram@.service", "systemd/uzram@.service"),
    (
        "packaging/systemd/uzram-swap.service",
        "systemd/uzram-swap.service",
    ),
    (
        "packaging/systemd/uzram-mount@.service",
        "systemd/uzram-mount@.service",
    ),
    ("LICENSE-MIT", "LICENSE-MIT"),
    ("LICENSE-APACHE", "LICENSE-APACHE"),
    ("CHANGELOG.md", "CHANGELOG.md"),
];
/// Of one program that packs.
pub const PACK_LIMIT: Duration = Duration::from_secs(120);

/// The parts of a package, in one folder, and facts about them.
#[derive(Debug)]
pub struct Parts {
    /// The folder of the binary, manual pages, completions and all [`FILES`]; packages are written to it too.
    pub folder: PathBuf,
    /// The processor, by the names of Rust and of Debian.
    pub machine: String,
    pub debian: &'static str,
    /// All files' time, in seconds since 1970.
    pub epoch: String,
}

impl Parts {
    /// Puts all other files beside the binary, the manual pages and the completions in `folder`.
    ///
    /// # Errors
    /// One line that names the missing thing.
    pub fn gather(folder: &Path, target: &Target) -> Result<Parts, String> {
        let machine = target.triple().split('-').next().unwrap_or_default();
        let debian = match machine {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => return Err(format!("{other}: Debian's name of it is unknown here")),
        };
        for (from, to) in FILES {
            copy(&workspace::root().join(from), &folder.join(to), 0o644)?;
        }
        write(&folder.join(THIRD_PARTY), &licences::third_party(target)?)?;
        Ok(Parts {
            folder: folder.into(),
            machine: machine.into(),
            debian,
            epoch: epoch()?,
        })
    }

    /// Whether they are for this machine.
    pub fn is_native(&self) -> bool {
        self.machine == std::env::consts::ARCH
    }

    /// `program`, whose files get the time of the parts.
    pub fn packer(&self, program: &str) -> Command {
        let mut command = workspace::command(program);
        command.env("SOURCE_DATE_EPOCH", &self.epoch);
        command
    }
}

/// The time of the last commit, or what SOURCE_DATE_EPOCH names.
fn epoch() -> Result<String, String> {
    if let Ok(epoch) = std::env::var("SOURCE_DATE_EPOCH") {
        return match epoch.parse::<u32>() {
            Ok(_) => Ok(epoch),
            Err(_) => Err(format!(
                "SOURCE_DATE_EPOCH {epoch}: must be seconds since 1970"
            )),
        };
    }
    let mut log = workspace::command("git");
    log.args(["log", "-1", "--format=%ct"]);
    let said = process::succeed(&mut log, PACK_LIMIT)
        .map_err(|_| "no commit to take the time from; set SOURCE_DATE_EPOCH".to_string())?;
    Ok(said.stdout.trim().to_string())
}

/// A temporary folder beside the parts.
pub fn workplace(parts: &Parts) -> Result<tempfile::TempDir, String> {
    tempfile::tempdir_in(&parts.folder)
        .map_err(|error| format!("{}: {error}", parts.folder.display()))
}

pub fn copy(from: &Path, to: &Path, mode: u32) -> Result<(), String> {
    write(to, &read(from)?)?;
    set_mode(to, mode)
}

pub fn read(file: &Path) -> Result<Vec<u8>, String> {
    fs::read(file).map_err(|error| format!("{}: {error}", file.display()))
}

pub fn write(to: &Path, content: &[u8]) -> Result<(), String> {
    let folder = to.parent().unwrap_or(to);
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(to, content));
    written.map_err(|error| format!("{}: {error}", to.display()))?;
    set_mode(to, 0o644)
}

pub fn set_mode(path: &Path, mode: u32) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_that_is_packed_exists() {
        for (from, _) in FILES {
            assert!(workspace::root().join(from).is_file(), "{from}");
        }
        let units = fs::read_dir(workspace::root().join("packaging/systemd")).unwrap();
        assert_eq!(
            units.count(),
            FILES
                .iter()
                .filter(|(_, to)| to.starts_with("systemd/"))
                .count()
        );
    }
}
