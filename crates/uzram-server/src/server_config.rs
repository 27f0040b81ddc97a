//! The options of a server itself, as opposed to those of its devices.

use log::LevelFilter;
use uzram::ErrorKind;
use uzram_frontends::nbd::Endpoint;

use crate::error::{Error, Result};
use crate::log_level;
use crate::nearest::{remedy, shown};
use crate::options::{absolute_path, address, boolean};
use crate::sandbox::Mode;

/// The options of a server. The caller decides where one is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerConfig {
    /// The level of the log.
    pub log_level: Option<LevelFilter>,
    /// How much of what serving does not need it gives up.
    pub sandbox: Option<Mode>,
    /// The address of its metrics.
    pub metrics: Option<Endpoint>,
    /// Whether other machines may read them.
    pub insecure: bool,
}

type Set = fn(&mut ServerConfig, &str) -> Result<()>;

/// The table: the key in a configuration file, and what a value does.
const OPTIONS: [(&str, Set); 4] = [
    ("log-level", |config, text| {
        config.log_level = Some(log_level::parse(text)?);
        Ok(())
    }),
    ("sandbox", |config, text| {
        config.sandbox = Some(mode(text)?);
        Ok(())
    }),
    ("metrics", |config, text| {
        config.metrics = Some(metrics_endpoint(text)?);
        Ok(())
    }),
    ("insecure", |config, text| {
        config.insecure = boolean(text)?;
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

    /// Refuses metrics that other machines can read, unless they may.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] with the address and the remedy.
    pub fn check_reach(&self) -> Result<()> {
        match &self.metrics {
            Some(endpoint) if !self.insecure && !endpoint.is_loopback() => {
                let address = match endpoint {
                    Endpoint::Tcp(address) => address.to_string(),
                    Endpoint::Vsock(_) | Endpoint::Unix(_) => endpoint.to_string(),
                };
                let text = format!(
                    "{address}: other machines could read what the disks hold and do; use 127.0.0.1 \
                     or [::1], a Unix socket, or add insecure on a network you trust"
                );
                Err(Error::invalid("metrics", text))
            }
            _ => Ok(()),
        }
    }
}

/// An address for metrics: IP:PORT, or a path, which has a slash.
///
/// # Errors
/// [`ErrorKind::InvalidInput`].
pub fn metrics_endpoint(text: &str) -> Result<Endpoint> {
    match text.contains('/') {
        true => Ok(Endpoint::Unix(absolute_path(text)?)),
        false => address(text).map(Endpoint::Tcp).ok_or_else(|| {
            let text = format!(
                "{:?}: neither an address, as 127.0.0.1:9100, nor a path, as /run/uzram/metrics",
                shown(text)
            );
            Error::new(ErrorKind::InvalidInput, text)
        }),
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
