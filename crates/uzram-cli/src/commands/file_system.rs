//! File systems of `up`: made, and mounted.

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::mount::MountFlags;
use uzram_server::attachment::usage;

use crate::args::FileSystem;
use crate::failure::{Failure, Result};

/// Makes the mount point, if it is missing.
pub fn make_directory(directory: &Path) -> Result {
    match fs::create_dir(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(Failure::Failed(
            format!("--mount {}: {error}", directory.display()),
        )),
        _ => Ok(()),
    }
}

/// Makes a file system.
pub fn make(device: &Path, fs: FileSystem) -> Result {
    let program = fs.mkfs();
    let failed = |why: &str| Failure::Failed(format!("{program} {}: {why}", device.display()));
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new(program)
        .args(fs.mkfs_arguments())
        .arg(device)
        .env("PATH", format!("{path}:/usr/sbin:/sbin:/usr/local/sbin"))
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(&error.to_string()))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            // Some go on with how they are used.
            let mut lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
            let line = lines.next().unwrap_or("no reason given");
            // mkfs.btrfs looks at every mount, and at the files of their loop devices.
            let met_dead = line.contains("endpoint is not connected");
            let remedy = met_dead.then(remedy_for_dead).flatten().unwrap_or_default();
            Err(failed(&format!("{line}{remedy}")))
        }
    }
}

/// The remedy where a program has met a mounted disk whose server was killed.
fn remedy_for_dead() -> Option<String> {
    let dead = usage::mounts().into_iter().find(|mount| {
        mount.kind == "fuse.uzram"
            && rustix::fs::statfs(&mount.directory).err() == Some(Errno::NOTCONN)
    })?;
    let source = dead.source.to_string_lossy().into_owned();
    let name = source.strip_prefix("uzram:")?;
    let text = format!("; the server of {name} was killed; uzram down {name} cleans up");
    Some(text)
}

/// Mounts, with `options` or else our own. The file system's root gets the owner and mode of the
/// directory that it hides.
pub fn mount(device: &Path, directory: &Path, fs: &str, options: Option<&str>) -> Result {
    let shown = directory.display();
    let failed = |error: std::io::Error| {
        Failure::Failed(format!("mount {} on {shown}: {error}", device.display()))
    };
    let hidden = fs::metadata(directory).map_err(failed)?;
    let options = match options {
        Some(options) => MountOptions::parse(options),
        None => MountOptions::own(fs),
    };
    let data = CString::new(options.data).map_err(|error| failed(error.into()))?;
    rustix::mount::mount(device, directory, fs, options.flags, data.as_c_str())
        .map_err(|error| failed(error.into()))?;
    if options.flags.contains(MountFlags::RDONLY) {
        return Ok(());
    }
    let give = || {
        std::os::unix::fs::chown(directory, Some(hidden.uid()), Some(hidden.gid()))?;
        fs::set_permissions(directory, hidden.permissions())
    };
    give().map_err(|error: std::io::Error| {
        let _ = rustix::mount::unmount(directory, rustix::mount::UnmountFlags::empty());
        failed(error)
    })
}

/// Options as mount(2) takes them: flags, and a text for the file system.
#[derive(Debug, PartialEq, Eq)]
struct MountOptions {
    flags: MountFlags,
    data: String,
}

impl MountOptions {
    /// Deleted data is discarded, which frees its memory.
    fn own(fs: &str) -> MountOptions {
        let data = match fs {
            "btrfs" => "discard=async",
            _ => "discard",
        };
        MountOptions {
            flags: MountFlags::NOATIME,
            data: data.to_owned(),
        }
    }

    /// Options as in fstab(5). Those for programs that mount at boot mean nothing here.
    fn parse(text: &str) -> MountOptions {
        let mut flags = MountFlags::empty();
        let mut data: Vec<&str> = Vec::new();
        for word in text.split(',').map(str::trim) {
            match FLAGS.iter().find(|(name, ..)| *name == word) {
                Some((_, flag, true)) => flags |= *flag,
                Some((_, flag, false)) => flags &= !*flag,
                None if word.is_empty() || FOR_BOOT.contains(&word) => {}
                None if word.starts_with("x-") => {}
                None => data.push(word),
            }
        }
        MountOptions {
            flags,
            data: data.join(","),
        }
    }
}

/// Words, their flags, and whether they set them.
const FLAGS: [(&str, MountFlags, bool); 16] = [
    ("ro", MountFlags::RDONLY, true),
    ("rw", MountFlags::RDONLY, false),
    ("nosuid", MountFlags::NOSUID, true),
    ("suid", MountFlags::NOSUID, false),
    ("nodev", MountFlags::NODEV, true),
    ("dev", MountFlags::NODEV, false),
    ("noexec", MountFlags::NOEXEC, true),
    ("exec", MountFlags::NOEXEC, false),
    ("sync", MountFlags::SYNCHRONOUS, true),
    ("async", MountFlags::SYNCHRONOUS, false),
    ("dirsync", MountFlags::DIRSYNC, true),
    ("noatime", MountFlags::NOATIME, true),
    ("atime", MountFlags::NOATIME, false),
    ("nodiratime", MountFlags::NODIRATIME, true),
    ("strictatime", MountFlags::STRICTATIME, true),
    ("lazytime", MountFlags::LAZYTIME, true),
];

const FOR_BOOT: [&str; 6] = [
    "defaults", "relatime", "nofail", "auto", "noauto", "_netdev",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_flags_or_words_of_the_file_system() {
        let parsed =
            MountOptions::parse("discard,ro,noexec,exec,x-systemd.makefs, nofail,casefold");
        assert_eq!(parsed.flags, MountFlags::RDONLY);
        assert_eq!(parsed.data, "discard,casefold");
        let none = MountOptions::parse("");
        assert_eq!((none.flags, none.data.as_str()), (MountFlags::empty(), ""));
    }
}
