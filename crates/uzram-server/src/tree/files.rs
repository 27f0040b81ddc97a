//! Files that a value in the tree may name: those below directories that were allowed when the server
//! started, and are held open since. The kernel keeps a path within its directory, links included.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use uzram::ErrorKind;

use crate::attributes::Files;
use crate::error::{Error, Result};

/// Directories in which values may name files.
#[derive(Debug, Default)]
pub struct AllowedFiles(Vec<(PathBuf, OwnedFd)>);

impl AllowedFiles {
    /// The files below `directories`, which are absolute.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] for one that is no directory.
    pub fn below(directories: &[PathBuf]) -> Result<AllowedFiles> {
        let open = |path: &PathBuf| {
            let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::PATH;
            match rustix::fs::open(path, flags, Mode::empty()) {
                Ok(directory) => Ok((path.clone(), directory)),
                Err(error) => {
                    let text = format!("directory {}: cannot be opened", path.display());
                    Err(Error::new(ErrorKind::Io, text).with_source(error))
                }
            }
        };
        directories
            .iter()
            .map(open)
            .collect::<Result<_>>()
            .map(AllowedFiles)
    }

    /// The directories.
    pub(crate) fn directories(&self) -> Vec<PathBuf> {
        self.0.iter().map(|(path, _)| path.clone()).collect()
    }
}

impl Files for AllowedFiles {
    fn open(&self, path: &Path, is_written: bool) -> Result<File> {
        let below = |(allowed, directory): &'_ (PathBuf, OwnedFd)| {
            let rest = Path::new(".").join(path.strip_prefix(allowed).ok()?);
            Some((directory.try_clone(), rest))
        };
        let Some((directory, rest)) = self.0.iter().find_map(below) else {
            let text = format!(
                "{}: not below a directory that --tree-files allows; name it there, or write it by uzram set",
                path.display()
            );
            return Err(Error::new(ErrorKind::Io, text).with_errno(Errno::ACCESS));
        };
        let access = if is_written {
            OFlags::RDWR
        } else {
            OFlags::RDONLY
        };
        let opened = directory.map_err(|_| Errno::MFILE).and_then(|directory| {
            // NONBLOCK: a pipe must not hold the writer up.
            let flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
            let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
            openat2(&directory, &rest, flags, Mode::empty(), within)
        });
        match opened {
            Ok(file) => Ok(file.into()),
            Err(error) => {
                // XDEV: a link or `..` leads out.
                let errno = if error == Errno::XDEV {
                    Errno::ACCESS
                } else {
                    error
                };
                let text = format!("{}: cannot be opened", path.display());
                Err(Error::new(ErrorKind::Io, text)
                    .with_source(error)
                    .with_errno(errno))
            }
        }
    }
}
