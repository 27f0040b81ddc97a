//! The engine's errors, none of which occur here.

pub(crate) type Result<T> = std::result::Result<T, std::convert::Infallible>;
