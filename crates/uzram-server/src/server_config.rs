//! The options of a server itself, as opposed to those of its devices.

use log::LevelFilter;
use uzram::ErrorKind;

use crate::error::{Error, Result};
use crate::log_level;
use crate::nearest::{remedy, shown};
use crate::options::boolean;
use crate::sandbox::Mode;

/// The options of a server. The caller decides where one is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerConfig {
    /// The level of the log.
    pub log_level: Option<LevelFilter>,
    /// How much of what serving does not need it gives up.
    pub sandbox: Option<Mode>,
}

type Set = fn(&mut ServerConfig, &str) -> Result<()>;

/// The table: the key in a configuration file, and what a value does.
const OPTIONS: [(&str, Set); 2] = [
    ("log-level", |config, text| {
        config.log_level = Some(log_level::parse(text)?);
        Ok(())
    }),
    ("sandbox", |config, text| {
        config.sandbox = Some(mode(text)?);
        Ok(())
    }),
];

impl ServerConfig {
    /// Takes the value of an option.
    ///
    /// # Errors
    /// For an unknown option and a value that is wrong, without the option's name.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let Some((_, set)) = OPTIONS.iter().find(|(known, _)| *known == name) else {
            let text = format!("unknown{}", remedy(name, &OPTIONS.map(|(name, _)| name)));
            return Err(Error::new(ErrorKind::UnknownName, text));
        };
        set(self, value)
    }
}

/// How much a server gives up: yes, no or log.
fn mode(text: &str) -> Result<Mode> {
    if text.trim().eq_ignore_ascii_case("log") {
        return Ok(Mode::LogCalls);
    }
    match boolean(text) {
        Ok(true) => Ok(Mode::On),
        Ok(false) => Ok(Mode::Off),
        Err(_) => {
            let text = format!("{:?}: write yes, no or log", shown(text));
            Err(Error::new(ErrorKind::InvalidInput, text))
        }
    }
}
