//! The directory of a view, and the ways to put things over others. It is a tmpfs that only the namespace
//! sees; with it goes all that is mounted in it.

use std::ffi::{CStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive,
    mount_change,
};
use rustix::thread::UnshareFlags;
use uzram_server::state::StateDir;

use crate::failure::{Failure, Result};

/// Makes disks where scripts load the kernel's module.
const MODPROBE: &str = include_str!("modprobe.sh");
const NO_DATA: Option<&CStr> = None;

/// The directory. Dropping it takes it away; the namespace is the process's, and ends with it.
pub(super) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Enters a namespace. `/dev` and `/sys` as they were are below `real`.
    pub(super) fn new(state: &StateDir) -> Result<Scratch> {
        let path = state.path().join(format!("view-{}", std::process::id()));
        fs::create_dir_all(&path).map_err(|e| failed(&path, e))?;
        let scratch = Scratch { path };
        unshare()?;
        tmpfs(&scratch.path)?;
        for place in ["dev", "sys"] {
            let real = scratch.directory(&format!("real/{place}"))?;
            let from = Path::new("/").join(place);
            mount_bind_recursive(&from, &real).map_err(|e| failed(&real, e))?;
        }
        Ok(scratch)
    }

    /// A directory in it, made if it is not there.
    pub(super) fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir_all(&path).map_err(|e| failed(&path, e))?;
        Ok(path)
    }

    /// A path of the machine, as it is without the view.
    pub(super) fn real(&self, path: &str) -> PathBuf {
        self.path.join("real").join(path.trim_start_matches('/'))
    }

    /// Puts `directory` in the place of one of `/sys/class`, which the kernel may not have.
    pub(super) fn put_over_class(&self, name: &str, directory: &Path) -> Result {
        let there = Path::new("/sys/class").join(name);
        if there.exists() {
            return put_over(directory, &there);
        }
        let class = self.directory("class")?;
        link_all(&self.real("/sys/class"), &class, |_| true)?;
        link(directory, &class.join(name))?;
        put_over(&class, Path::new("/sys/class"))
    }

    /// A search path whose first directory has the programs of the view.
    pub(super) fn programs(&self) -> Result<OsString> {
        let bin = self.directory("bin")?;
        for name in ["modprobe", "rmmod"] {
            let path = bin.join(name);
            let written = fs::write(&path, MODPROBE)
                .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o755)));
            written.map_err(|e| failed(&path, e))?;
        }
        let mut path = bin.into_os_string();
        path.push(":");
        path.push(
            std::env::var_os("PATH").unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into()),
        );
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.path, UnmountFlags::DETACH);
        let _ = fs::remove_dir(&self.path);
    }
}

pub(super) fn tmpfs(directory: &Path) -> Result {
    let mounted = mount(
        "uzram:view",
        directory,
        "tmpfs",
        MountFlags::NOSUID,
        NO_DATA,
    );
    mounted.map_err(|e| failed(directory, e))
}

/// Has `directory` seen at `there`.
pub(super) fn put_over(directory: &Path, there: &Path) -> Result {
    mount_bind(directory, there).map_err(|e| failed(there, e))
}

/// Links to all in `from` that `is_wanted`, in the directory `to`.
pub(super) fn link_all(from: &Path, to: &Path, is_wanted: impl Fn(&str) -> bool) -> Result {
    for entry in fs::read_dir(from).map_err(|e| failed(from, e))?.flatten() {
        let name = entry.file_name();
        let place = to.join(&name);
        if is_wanted(&name.to_string_lossy()) && fs::symlink_metadata(&place).is_err() {
            link(&entry.path(), &place)?;
        }
    }
    Ok(())
}

pub(super) fn link(to: &Path, at: &Path) -> Result {
    std::os::unix::fs::symlink(to, at).map_err(|e| failed(at, e))
}

pub(super) fn failed(path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::Failed(format!("view: {}: {error}", path.display()))
}

/// A mount namespace of this process, from which nothing gets out.
fn unshare() -> Result {
    let failed = |error: rustix::io::Errno| {
        Failure::Failed(format!(
            "a mount namespace: {error}; it takes root, or unshare -r -m"
        ))
    };
    #[expect(
        deprecated,
        reason = "what can go wrong is a table of files of one's own, which is not asked for"
    )]
    rustix::thread::unshare(UnshareFlags::NEWNS).map_err(failed)?;
    let flags = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    mount_change("/", flags).map_err(failed)
}
