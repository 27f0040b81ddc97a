//! A clean Debian system with systemd, as a folder: packages are installed in it, and guests start from it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::install::{self, Tool};
use crate::{debian, process, workspace};

pub const TOOLS: &[Tool] = &[install::MMDEBSTRAP, install::TAR, install::UNSHARE];
/// The packages beside Debian's smallest system: a service manager, what finds its devices, an NBD client.
const PACKAGES: &str = "systemd-sysv,udev,dbus,e2fsprogs,libnbd-bin,procps";
const MAKE_LIMIT: Duration = Duration::from_secs(900);
const UNPACK_LIMIT: Duration = Duration::from_secs(120);

/// A system of its own, removed when dropped.
pub struct CleanRoot {
    folder: tempfile::TempDir,
}

impl CleanRoot {
    /// Unpacks the system from the target directory, where it is made if it is missing. Needs root.
    ///
    /// # Errors
    /// One line that says why there is none.
    pub fn unpack() -> Result<CleanRoot, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("a system in a folder: needs root".into());
        }
        let archive = archive()?;
        let failed = |error: std::io::Error| format!("{}: {error}", archive.display());
        let folder = archive.parent().unwrap_or(&archive);
        let folder = tempfile::tempdir_in(folder).map_err(failed)?;
        set_open(folder.path()).map_err(failed)?;
        let mut tar = workspace::command(install::TAR.program);
        tar.arg("--extract")
            .arg("--numeric-owner")
            .arg("--file")
            .arg(&archive);
        process::succeed(tar.arg("--directory").arg(folder.path()), UNPACK_LIMIT)?;
        Ok(CleanRoot { folder })
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The shell in the system, with its own /proc, that ends with the first of `script`'s commands that fails.
    pub fn shell(&self, script: &str) -> Command {
        let enter = "mount -t proc proc \"$0/proc\" && exec chroot \"$0\" /bin/sh -ec \"$1\"";
        let mut command = workspace::command(install::UNSHARE.program);
        command
            .args(["--mount", "sh", "-c", enter])
            .arg(self.path())
            .arg(script);
        command
            .env_remove("XDG_RUNTIME_DIR")
            .env("DEBIAN_FRONTEND", "noninteractive");
        command
    }
}

/// The path of each user leads through it.
fn set_open(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))
}

/// The archive of the system, kept from run to run.
fn archive() -> Result<PathBuf, String> {
    let folder = workspace::target_dir().join("clean-root");
    let file = folder.join("debian.tar");
    if file.is_file() {
        return Ok(file);
    }
    let unfinished = folder.join("unfinished.tar");
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    fs::create_dir_all(&folder).map_err(failed)?;
    let mut make = workspace::command(install::MMDEBSTRAP.program);
    make.args(["--quiet", "--mode=root", "--variant=minbase"]);
    make.arg(format!("--include={PACKAGES}"))
        .arg(debian::RELEASE)
        .arg(&unfinished);
    make.arg(debian::source(debian::RELEASE, debian::AMD64)?.trim_end());
    process::succeed(&mut make, MAKE_LIMIT)?;
    fs::rename(&unfinished, &file).map_err(failed)?;
    Ok(file)
}
