//! The engine's one error: a kind to match on, a text that names the thing, the value and the
//! remedy, and the cause. The kind decides the errno; no other table does.

use std::borrow::Cow;
use std::fmt;

/// The kind of an error, for callers to match on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument is malformed or outside its stated range (`EINVAL`).
    InvalidInput,
    /// The range reaches past the end of the device (`EINVAL` for reads, as block devices do).
    OutOfRange,
    /// Storing the page would exceed `mem_limit` (`ENOSPC`). The page keeps its old content.
    NoSpace,
    /// The system gave no memory (`ENOMEM`). The page keeps its old content.
    NoMemory,
    /// A stored object does not decompress to a page or fails its checksum (`EIO`).
    Corrupt,
    /// No codec, pool or device of this name (`EINVAL`).
    UnknownName,
    /// The thing is in use (`EBUSY`).
    Busy,
    /// The device takes no writes (`EPERM`).
    ReadOnly,
    /// This device or build does not offer the operation (`EOPNOTSUPP`).
    Unsupported,
    /// The operating system refused a call (`EIO`).
    Io,
    /// The limit on pages written to the backing file is used up (`EIO`).
    LimitUsedUp,
}

impl ErrorKind {
    /// The Linux errno that a block device would return.
    #[must_use]
    pub const fn errno(self) -> i32 {
        match self {
            ErrorKind::ReadOnly => 1,                                         // EPERM
            ErrorKind::Corrupt | ErrorKind::Io | ErrorKind::LimitUsedUp => 5, // EIO
            ErrorKind::NoMemory => 12,                                        // ENOMEM
            ErrorKind::Busy => 16,                                            // EBUSY
            ErrorKind::InvalidInput | ErrorKind::OutOfRange | ErrorKind::UnknownName => 22, // EINVAL
            ErrorKind::NoSpace => 28,     // ENOSPC
            ErrorKind::Unsupported => 95, // EOPNOTSUPP
        }
    }
}

/// An error of the engine.
///
/// Its text is one line that ends with the system's words. [`source`](std::error::Error::source)
/// is the cause of those, and mostly absent: printing the chain prints each text once.
///
/// Making an error must not fail, so contexts on the write path are static texts.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    context: Cow<'static, str>,
    source: Option<std::io::Error>,
}

/// The engine's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind`; `context` names the thing, the value and the remedy in one line.
    pub fn new(kind: ErrorKind, context: impl Into<Cow<'static, str>>) -> Error {
        Error {
            kind,
            context: context.into(),
            source: None,
        }
    }

    /// The same with the operating system's error as its cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<std::io::Error>) -> Error {
        self.source = Some(source.into());
        self
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The Linux errno that a block device would return.
    #[must_use]
    pub fn errno(&self) -> i32 {
        self.kind.errno()
    }

    /// The operating system's error that caused this one, if one did. This error's text ends with
    /// it, so [`source`](std::error::Error::source) passes it over.
    #[must_use]
    pub fn io_error(&self) -> Option<&std::io::Error> {
        self.source.as_ref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)?;
        match &self.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // Its text is part of this one's; what is behind it is not.
        self.source.as_ref().and_then(|source| source.source())
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn a_chain_of_causes_says_each_thing_once() {
        let refused = std::io::Error::from_raw_os_error(13);
        let error = Error::new(ErrorKind::Io, "disk").with_source(refused);
        assert!(error.to_string().starts_with("disk: Permission denied"));
        assert!(error.source().is_none());
        assert_eq!(error.io_error().unwrap().raw_os_error(), Some(13));
        let behind = Error::new(ErrorKind::NoSpace, "behind");
        let error = Error::new(ErrorKind::Io, "disk").with_source(std::io::Error::other(behind));
        let mut text = error.to_string();
        let mut next = error.source();
        while let Some(cause) = next {
            text.push_str(&format!("; {cause}"));
            next = cause.source();
        }
        assert_eq!(text.matches("behind").count(), 1, "{text}");
    }
}
