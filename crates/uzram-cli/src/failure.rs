//! Failures of a command: one line, and the exit status that scripts rely on.

use std::fmt;
use std::process::ExitCode;

use uzram::ErrorKind;

/// The reason why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// Wrong usage: exit status 2.
    Usage(String),
    /// A failure: exit status 1.
    Failed(String),
}

/// The result of a command.
pub type Result<T = ()> = std::result::Result<T, Failure>;

impl Failure {
    /// The exit status.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Failure::Usage(_) => ExitCode::from(2),
            Failure::Failed(_) => ExitCode::from(1),
        }
    }

    fn of(kind: ErrorKind, text: String) -> Failure {
        match kind {
            ErrorKind::InvalidInput | ErrorKind::UnknownName => Failure::Usage(text),
            _ => Failure::Failed(text),
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
    /// One line, whatever characters a path or a peer put into the text.
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
        Failure::of(error.kind(), error.to_string())
    }
}

impl From<uzram_server::Error> for Failure {
    /// An option is named as the flag that it is here.
    fn from(error: uzram_server::Error) -> Failure {
        let text = match error.option() {
            Some(option) => format!("--{option}: {}", error.reason()),
            None => error.to_string(),
        };
        Failure::of(error.kind(), text)
    }
}

impl From<uzram_advise::Error> for Failure {
    fn from(error: uzram_advise::Error) -> Failure {
        match error.exit_status() {
            2 => Failure::Usage(error.to_string()),
            _ => Failure::Failed(error.to_string()),
        }
    }
}
