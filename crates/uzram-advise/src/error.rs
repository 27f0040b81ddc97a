//! The bench's one error: wrong usage, a failure, or the user's Ctrl-C.

use std::fmt;

/// The reason why a benchmark gave no report. Every text is one line.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The command line is wrong (exit status 2).
    Usage(String),
    /// The attempt failed (exit status 1).
    Failed(String),
    /// A signal asked for the end; the set-up has been undone (exit status 1).
    Interrupted,
}

/// The bench's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The process's exit status: 1 it failed, 2 wrong usage.
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        match self {
            Error::Usage(_) => 2,
            Error::Failed(_) | Error::Interrupted => 1,
        }
    }

    /// A failure of `what`, with the operating system's reason.
    pub fn io(what: impl fmt::Display, source: impl fmt::Display) -> Error {
        Error::Failed(format!("{what}: {source}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Usage(text) | Error::Failed(text) => f.write_str(text),
            Error::Interrupted => f.write_str("interrupted: nothing is left running or set up"),
        }
    }
}

impl std::error::Error for Error {}

impl From<uzram::Error> for Error {
    fn from(source: uzram::Error) -> Error {
        Error::Failed(source.to_string())
    }
}
