//! A program file that is held open, so that it can be started again after another one has its name.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use uzram::ErrorKind;

use crate::error::{Error, Result};

/// A program.
#[derive(Debug)]
pub(super) struct Program(File);

impl Program {
    /// This process's own.
    pub(super) fn own() -> Result<Program> {
        let file = File::open("/proc/self/exe");
        let failed = |error| Error::new(ErrorKind::Io, "/proc/self/exe").with_source(error);
        file.map(Program).map_err(failed)
    }

    /// One that somebody has opened. Whether it is a program shows when it is started.
    pub(super) fn opened(file: File) -> Program {
        Program(file)
    }

    /// A command that starts it. It goes by its path while that is still this file, as tools then show its name.
    pub(super) fn command(&self) -> Command {
        let held = PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()));
        let is_itself = |path: &PathBuf| {
            let (Ok(there), Ok(here)) = (path.metadata(), self.0.metadata()) else {
                return false;
            };
            (there.dev(), there.ino()) == (here.dev(), here.ino())
        };
        let path = std::fs::read_link(&held).ok().filter(is_itself);
        let mut command = Command::new(path.unwrap_or(held));
        command.arg0("uzram");
        command
    }
}
