//! How a command fails: one line, and the exit status that scripts rely on.

use std::fmt;
use std::process::ExitCode;

use uzram::ErrorKind;

/// Why a command did not do what was asked.
#[derive(Debug)]
pub enum Failure {
    /// It was asked wrongly: exit status 2.
    Usage(String),
    /// It failed: exit status 1.
    Failed(String),
}

/// What commands return.
pub type Result<T = ()> = std::result::Result<T, Failure>;

impl Failure {
    /// The exit status.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Failure::Usage(_) => ExitCode::from(2),
            Failure::Failed(_) => ExitCode::from(1),
        }
    }

    /// The same with `subject: ` in front.
    pub fn about(self, subject: impl fmt::Display) -> Failure {
        match self {
            Failure::Usage(text) => Failure::Usage(format!("{subject}: {text}")),
            Failure::Failed(text) => Failure::Failed(format!("{subject}: {text}")),
        }
    }
}

impl fmt::Display for Failure {
    /// One line, whatever a path or a peer put into the text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Failure::Usage(text) | Failure::Failed(text)) = self;
        f.write_str(&one_line(text))
    }
}

/// `text` without line breaks and other control characters, which would reach a terminal.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => line.push_str("; "),
            c if c.is_control() => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
    line
}

impl From<uzram::Error> for Failure {
    fn from(error: uzram::Error) -> Failure {
        match error.kind() {
            ErrorKind::InvalidInput | ErrorKind::UnknownName => Failure::Usage(error.to_string()),
            _ => Failure::Failed(error.to_string()),
        }
    }
}

impl From<uzram_bench::Error> for Failure {
    fn from(error: uzram_bench::Error) -> Failure {
        match error.exit_status() {
            2 => Failure::Usage(error.to_string()),
            _ => Failure::Failed(error.to_string()),
        }
    }
}
