//! The purpose of a disk of `up`, noted in the state directory. By it `down` finds the disk of a
//! directory when the kernel has forgotten, as after umount or when the server was killed.
//!
//! The note is a line with the purpose, then the directory's bytes, which need not be UTF-8. A
//! server that takes the name afresh removes the note.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use uzram::file;
use uzram_server::state::StateDir;

use crate::failure::{Failure, Result};

/// A note's line and the longest path that Linux takes.
const NOTE_BYTES_MAX: u64 = 8192;

/// The purpose of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Use {
    /// It is swapped to.
    Swap,
    /// It is mounted.
    Mount(MountUse),
}

/// The mount point of a disk, and its file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountUse {
    /// The file system, as `mount -t` takes it.
    pub fs: String,
    /// Whether `up` made the directory, so that `down` removes it.
    pub made_directory: bool,
    /// Absolute and without links.
    pub directory: PathBuf,
}

impl Use {
    /// The note about the disk `name`.
    pub fn of(state: &StateDir, name: &str) -> Option<Use> {
        Use::parse(&read_note(&state.use_note(name))?)
    }

    /// Writes the note.
    pub fn note(&self, state: &StateDir, name: &str) -> Result {
        let path = state.use_note(name);
        fs::write(&path, self.text())
            .map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))
    }

    fn text(&self) -> Vec<u8> {
        match self {
            Use::Swap => b"swap\n".to_vec(),
            Use::Mount(mount) => {
                let made = match mount.made_directory {
                    true => "made",
                    false => "found",
                };
                let line = format!("mount {} {made}\n", mount.fs);
                [line.as_bytes(), mount.directory.as_os_str().as_bytes()].concat()
            }
        }
    }

    fn parse(text: &[u8]) -> Option<Use> {
        let end = text.iter().position(|byte| *byte == b'\n')?;
        let (line, directory) = (str::from_utf8(&text[..end]).ok()?, &text[end + 1..]);
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["swap"] => Some(Use::Swap),
            ["mount", fs, made @ ("made" | "found")] if directory.starts_with(b"/") => {
                Some(Use::Mount(MountUse {
                    fs: (*fs).to_owned(),
                    made_directory: *made == "made",
                    directory: OsStr::from_bytes(directory).into(),
                }))
            }
            _ => None,
        }
    }
}

/// Removes the note about the disk `name`, and a directory that was made for it, if it is empty.
pub fn forget(state: &StateDir, name: &str) {
    if let Some(Use::Mount(mount)) = Use::of(state, name)
        && mount.made_directory
    {
        let _ = fs::remove_dir(&mount.directory);
    }
    let _ = fs::remove_file(state.use_note(name));
}

/// The disk that was mounted on `directory`.
pub fn noted_at(state: &StateDir, directory: &Path) -> Option<String> {
    let is_there = |name: &String| match Use::of(state, name) {
        Some(Use::Mount(mount)) => mount.directory == directory,
        _ => false,
    };
    state.use_notes().into_iter().find(is_there)
}

/// `path`, absolute and without links, as the kernel's table of mounts has it. The last component
/// is not looked at: it may be a file system whose server was killed, or a directory that does not
/// exist.
pub fn resolved(path: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    fs::canonicalize(&path).or_else(|error| match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok(fs::canonicalize(parent)?.join(name)),
        _ => Err(error),
    })
}

/// The note at `path`; none for anything but a short file, as whoever owns the directory may have put
/// there.
pub fn read_note(path: &Path) -> Option<Vec<u8>> {
    file::read_regular(path, NOTE_BYTES_MAX).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read_as_they_are_written() {
        let odd = OsStr::from_bytes(b"/mnt/a b\n\xff");
        for (made_directory, directory) in [(true, odd), (false, OsStr::new("/"))] {
            let mount = Use::Mount(MountUse {
                fs: "ext4".into(),
                made_directory,
                directory: directory.into(),
            });
            assert_eq!(Use::parse(&mount.text()), Some(mount));
        }
        assert_eq!(Use::parse(&Use::Swap.text()), Some(Use::Swap));
        let hostile: [&[u8]; 6] = [
            b"",
            b"swap",
            b"mount ext4 made\nmnt",
            b"mount ext4\n/mnt",
            b"mount ext4 kept\n/mnt",
            b"\xff\n/mnt",
        ];
        for text in hostile {
            assert_eq!(Use::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn paths_are_resolved_whether_they_are_there_or_not() {
        let temp = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(temp.path()).unwrap();
        std::os::unix::fs::symlink(&real, real.join("link")).unwrap();
        for (path, found) in [
            ("link", real.clone()),
            ("link/new", real.join("new")),
            (".//link/.//new/", real.join("new")),
        ] {
            assert_eq!(resolved(&real.join(path)).unwrap(), found, "{path}");
        }
        assert!(resolved(&real.join("no/where")).is_err());
    }
}
