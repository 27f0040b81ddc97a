//! The level of the log. A process has one, so it is the server's and not a device's.

use log::LevelFilter;
use uzram::ErrorKind;

use crate::error::{Error, Result};
use crate::nearest::shown;

/// The level of this name.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] with the list.
pub fn parse(name: &str) -> Result<LevelFilter> {
    name.trim().parse().map_err(|_| {
        let text = format!(
            "log level {:?}: write off, error, warn, info, debug or trace",
            shown(name)
        );
        Error::new(ErrorKind::InvalidInput, text)
    })
}

/// The name of the level in force.
pub(crate) fn current() -> String {
    log::max_level().as_str().to_lowercase()
}

/// Puts the level of this name in force, and returns the name as [`current`] does.
///
/// # Errors
/// As [`parse`].
pub(crate) fn set(name: &str) -> Result<String> {
    log::set_max_level(parse(name)?);
    Ok(current())
}
