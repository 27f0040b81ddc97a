//! The server's one error: a kind to match on, the option at fault, a text that names the thing,
//! the value and the remedy, and the cause.
//!
//! Kinds are the engine's, since its table from kind to errno is the only one.

use std::fmt;
use std::io;

use rustix::io::Errno;
use uzram::ErrorKind;

use crate::nearest::shown;

/// The reason why a server did not do what was asked.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    /// Where zram has a more particular one than the kind.
    errno: Option<i32>,
    option: Option<String>,
    context: String,
    cause: Option<Cause>,
}

#[derive(Debug)]
enum Cause {
    /// The operating system refused.
    System(io::Error),
    /// The engine, a medium or a frontend refused. The context is empty: the cause's text is
    /// enough.
    Engine(uzram::Error),
}

/// The server's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind`; `context` names the thing, the value and the remedy in one line.
    pub fn new(kind: ErrorKind, context: impl Into<String>) -> Error {
        Error {
            kind,
            errno: None,
            option: None,
            context: context.into(),
            cause: None,
        }
    }

    /// An invalid value of an option, or options that exclude each other.
    pub(crate) fn invalid(option: &str, context: impl Into<String>) -> Error {
        Error::new(ErrorKind::InvalidInput, context).in_option(option)
    }

    /// The same with the operating system's error as its cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<io::Error>) -> Error {
        self.cause = Some(Cause::System(source.into()));
        self
    }

    /// The same, about an option.
    #[must_use]
    pub(crate) fn in_option(mut self, option: &str) -> Error {
        self.option = Some(shown(option));
        self
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The same with another errno than the kind's.
    #[must_use]
    pub(crate) fn with_errno(mut self, errno: Errno) -> Error {
        self.errno = Some(errno.raw_os_error());
        self
    }

    /// The Linux errno: the kind's, unless zram's attributes have another one for this.
    #[must_use]
    pub fn errno(&self) -> i32 {
        self.errno.unwrap_or(self.kind.errno())
    }

    /// The option that was refused, as it was given.
    #[must_use]
    pub fn option(&self) -> Option<&str> {
        self.option.as_deref()
    }

    /// The fault, without the option's name.
    #[must_use]
    pub fn reason(&self) -> impl fmt::Display {
        Reason(self)
    }

    /// The operating system's error that caused this one, if one did. Its text is part of this one's.
    #[must_use]
    pub fn io_error(&self) -> Option<&io::Error> {
        match &self.cause {
            Some(Cause::System(error)) => Some(error),
            Some(Cause::Engine(error)) => error.io_error(),
            None => None,
        }
    }
}

struct Reason<'a>(&'a Error);

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Error { context, cause, .. } = self.0;
        match cause {
            None => f.write_str(context),
            Some(Cause::System(error)) => write!(f, "{context}: {error}"),
            Some(Cause::Engine(error)) => error.fmt(f),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(option) = &self.option {
            write!(f, "{option}: ")?;
        }
        self.reason().fmt(f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The cause's text is part of this one's; what is behind it is not.
        match self.cause.as_ref()? {
            Cause::System(error) => error.source(),
            Cause::Engine(error) => error.source(),
        }
    }
}

impl From<uzram::Error> for Error {
    fn from(error: uzram::Error) -> Error {
        Error {
            kind: error.kind(),
            errno: None,
            option: None,
            context: String::new(),
            cause: Some(Cause::Engine(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_engine_says_is_said_once_and_keeps_its_kind_and_cause() {
        let denied = || io::Error::from_raw_os_error(13);
        let engine = uzram::Error::new(ErrorKind::Io, "dict /x").with_source(denied());
        let said = engine.to_string();
        let error = Error::from(engine);
        assert_eq!((error.to_string(), error.errno()), (said.clone(), 5));
        assert_eq!(error.io_error().unwrap().raw_os_error(), Some(13));
        let error = error.in_option("algorithm-params");
        assert_eq!(error.to_string(), format!("algorithm-params: {said}"));
        assert_eq!(error.reason().to_string(), said);
        let own = Error::new(ErrorKind::Busy, "socket").with_source(denied());
        assert_eq!(own.to_string(), format!("socket: {}", denied()));
        assert!(std::error::Error::source(&own).is_none());
    }

    #[test]
    fn a_name_from_outside_is_cut() {
        let error = Error::invalid(&"x".repeat(1 << 20), "unknown");
        assert!(error.to_string().len() < 100);
    }
}
