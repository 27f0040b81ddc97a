//! The options of a device under one set of names: the command line's flags, the configuration
//! file's keys and what `add` sends are all read here.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use uzram::{Error, ErrorKind, Result, Unit};
use uzram_frontends::nbd::Endpoint;

use crate::attachment::Attach;
use crate::backing::{self, DeviceKind};
use crate::device::DeviceConfig;
use crate::nearest::{remedy, shown};
use crate::size::{parse, parse_limit, ram_bytes};
use crate::state::check_name;
use crate::tls;

type Set = fn(&mut DeviceConfig, &str) -> Result<()>;

/// The table: a name, and what a value of it does.
static OPTIONS: &[(&str, Set)] = &[
    ("size", set_size),
    ("device", set_kind),
    ("path", set_path),
    ("name", set_name),
    ("algorithm", set_algorithm),
    ("algorithm-params", set_parameters),
    ("pool", set_pool),
    ("mem-limit", set_mem_limit),
    ("unit", set_unit),
    ("checksum", set_checksum),
    ("socket", set_socket),
    ("listen", set_listen),
    ("insecure", set_insecure),
    ("tls-cert", |config, value| {
        config.tls.certificate = Some(tls::path(value)?);
        Ok(())
    }),
    ("tls-key", |config, value| {
        config.tls.key = Some(tls::path(value)?);
        Ok(())
    }),
    ("tls-client-ca", |config, value| {
        config.tls.client_ca = Some(tls::path(value)?);
        Ok(())
    }),
    ("tls-required", |config, value| {
        config.tls.required = boolean(value)?;
        Ok(())
    }),
    ("attach", set_attach),
    ("for-swap", set_for_swap),
];

/// The names of all options.
pub fn names() -> impl Iterator<Item = &'static str> {
    OPTIONS.iter().map(|(name, _)| *name)
}

/// Why an option was refused.
#[derive(Debug)]
pub struct OptionError {
    /// Its name as it was given.
    pub option: String,
    /// What is wrong, without the name.
    pub error: Error,
}

impl OptionError {
    fn new(option: &str, error: Error) -> OptionError {
        let option = shown(option);
        OptionError { option, error }
    }

    fn invalid(option: &str, text: impl Into<String>) -> OptionError {
        OptionError::new(option, Error::new(ErrorKind::InvalidInput, text.into()))
    }
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.option, self.error)
    }
}

impl From<OptionError> for Error {
    fn from(refused: OptionError) -> Error {
        Error::new(refused.error.kind(), refused.to_string())
    }
}

/// The device that `options`, pairs of a name and a value, describe.
///
/// # Errors
/// The option that is unknown, malformed, out of range or missing, and why.
///
/// ```
/// use uzram_server::options::device_config;
/// let config = device_config([("size", "1G"), ("algorithm", "lz4"), ("checksum", "yes")])?;
/// assert_eq!((config.size_bytes, config.checksum), (1 << 30, true));
/// let refused = device_config([("sise", "1G")]).unwrap_err();
/// assert_eq!(refused.to_string(), "sise: unknown option; did you mean size?");
/// # Ok::<(), uzram::Error>(())
/// ```
pub fn device_config<'a>(
    options: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<DeviceConfig, OptionError> {
    let mut config = DeviceConfig::default();
    for (option, value) in options {
        let Some((_, set)) = OPTIONS.iter().find(|(name, _)| *name == option) else {
            let known: Vec<&str> = names().collect();
            let text = format!("unknown option{}", remedy(option, &known));
            let error = Error::new(ErrorKind::UnknownName, text);
            return Err(OptionError::new(option, error));
        };
        set(&mut config, value).map_err(|error| OptionError::new(option, error))?;
    }
    backing::check(&config).map_err(|(option, text)| OptionError::invalid(option, text))?;
    if config.size_bytes == 0 && !config.kind.has_file() {
        let text = "missing; say how large the disk is, as 1G or 50% (of RAM)";
        return Err(OptionError::invalid("size", text));
    }
    let tls = config.tls.check();
    tls.map_err(|(option, why)| OptionError::invalid(option, why))?;
    check_reach(&config)?;
    config.tls.required |= config.tls.is_given() && is_open(&config) && !config.insecure;
    Ok(config)
}

/// Refuses a value of `option` that is wrong by itself.
///
/// # Errors
/// As [`device_config`].
pub(crate) fn check(option: &str, value: &str) -> Result<()> {
    let known = OPTIONS.iter().find(|(name, _)| *name == option);
    known.map_or(Ok(()), |(_, set)| set(&mut DeviceConfig::default(), value))
}

/// Whether other machines can connect.
fn is_open(config: &DeviceConfig) -> bool {
    config.endpoint.as_ref().is_some_and(|e| !e.is_loopback())
}

fn check_reach(config: &DeviceConfig) -> Result<(), OptionError> {
    let is_allowed = config.insecure || config.tls.is_given();
    if let (Some(Endpoint::Tcp(address)), true, false) =
        (&config.endpoint, is_open(config), is_allowed)
    {
        let text = format!(
            "{address}: other machines could read and write the disk, as NBD without TLS is open to \
             all who connect; use 127.0.0.1 or [::1], give tls-cert and tls-key, or add insecure on a \
             network you trust"
        );
        return Err(OptionError::invalid("listen", text));
    }
    let has_address = config.endpoint.is_some() || config.tls.is_given();
    let is_guests = config.attach == Attach::VhostUser;
    let has_no_socket = config.tls.is_given() || matches!(config.endpoint, Some(Endpoint::Tcp(_)));
    if is_guests && has_no_socket {
        let text = "vhost-user: lends memory, which takes a Unix socket; leave listen and tls out";
        return Err(OptionError::invalid("attach", text));
    }
    if config.attach != Attach::Nbd && !is_guests && has_address {
        let text = format!(
            "{}: has no address; leave socket, listen and tls out, or attach as nbd",
            config.attach.name()
        );
        return Err(OptionError::invalid("attach", text));
    }
    if is_guests && config.for_swap {
        let text = "for-swap: is for swap of this machine, which reaches no disk of guests; swap in the \
                    guest needs nothing of it";
        return Err(OptionError::invalid("attach", text));
    }
    if config.insecure && !matches!(config.endpoint, Some(Endpoint::Tcp(_))) {
        return Err(OptionError::invalid(
            "insecure",
            "only means something with listen",
        ));
    }
    Ok(())
}

fn set_size(config: &mut DeviceConfig, value: &str) -> Result<()> {
    config.size_bytes = parse(value, ram_bytes())?;
    Ok(())
}

fn set_kind(config: &mut DeviceConfig, value: &str) -> Result<()> {
    config.kind = DeviceKind::parse(value)?;
    Ok(())
}

fn set_path(config: &mut DeviceConfig, value: &str) -> Result<()> {
    config.path = Some(backing::parse_path(value)?);
    Ok(())
}

fn set_name(config: &mut DeviceConfig, value: &str) -> Result<()> {
    check_name(value)?;
    config.name = Some(value.to_owned());
    Ok(())
}

fn set_algorithm(config: &mut DeviceConfig, value: &str) -> Result<()> {
    config.algorithm = Some(value.to_owned());
    Ok(())
}

fn set_parameters(config: &mut DeviceConfig, value: &str) -> Result<()> {
    config.parameters = value.parse()?;
    Ok(())
}

fn set_pool(config: &mut DeviceConfig, value: &str) -> Result<()> {
    config.pool = Some(value.to_owned());
    Ok(())
}

fn set_mem_limit(config: &mut DeviceConfig, value: &str) -> Result<()> {
    config.mem_limit_bytes = parse_limit(value, ram_bytes())?;
    Ok(())
}

fn set_unit(config: &mut DeviceConfig, value: &str) -> Result<()> {
    config.unit = parse(value, ram_bytes()).and_then(Unit::new)?;
    Ok(())
}

fn set_checksum(config: &mut DeviceConfig, value: &str) -> Result<()> {
    config.checksum = boolean(value)?;
    Ok(())
}

fn set_for_swap(config: &mut DeviceConfig, value: &str) -> Result<()> {
    config.for_swap = boolean(value)?;
    Ok(())
}

fn set_attach(config: &mut DeviceConfig, value: &str) -> Result<()> {
    const KNOWN: [Attach; 5] = [
        Attach::Nbd,
        Attach::Fuse,
        Attach::Loop,
        Attach::Ublk,
        Attach::VhostUser,
    ];
    let found = KNOWN.into_iter().find(|attach| attach.name() == value);
    config.attach = match (found, value) {
        (Some(attach), _) => attach,
        (None, "auto") => Attach::auto().0,
        (None, _) => {
            let text = format!(
                "{:?}: must be nbd, fuse, loop, ublk, vhost-user or auto",
                shown(value)
            );
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
    };
    Ok(())
}

fn set_insecure(config: &mut DeviceConfig, value: &str) -> Result<()> {
    config.insecure = boolean(value)?;
    Ok(())
}

fn set_socket(config: &mut DeviceConfig, value: &str) -> Result<()> {
    // Clients get the path in a URI, from wherever they run.
    if !Path::new(value).is_absolute() {
        let text = format!("{:?}: must be an absolute path", shown(value));
        return Err(Error::new(ErrorKind::InvalidInput, text));
    }
    set_endpoint(config, Endpoint::Unix(value.into()))
}

fn set_listen(config: &mut DeviceConfig, value: &str) -> Result<()> {
    let endpoint = Endpoint::Tcp(address(value)?);
    set_endpoint(config, endpoint)
}

fn set_endpoint(config: &mut DeviceConfig, endpoint: Endpoint) -> Result<()> {
    if config.endpoint.is_some() {
        let text = "socket and listen exclude each other; give one of them";
        return Err(Error::new(ErrorKind::InvalidInput, text));
    }
    config.endpoint = Some(endpoint);
    Ok(())
}

/// Numbers only: looking a name up needs a resolver, which a static binary in an initramfs lacks.
fn address(text: &str) -> Result<SocketAddr> {
    let local = text
        .strip_prefix("localhost:")
        .and_then(|port| port.parse().ok());
    let local = local.map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    local.or_else(|| text.parse().ok()).ok_or_else(|| {
        let text = format!(
            "{:?}: not an address; write IP:PORT, as 127.0.0.1:10809 or [::1]:10809",
            shown(text)
        );
        Error::new(ErrorKind::InvalidInput, text)
    })
}

/// A truth value as systemd's files have it.
///
/// # Errors
/// [`ErrorKind::InvalidInput`].
pub(crate) fn boolean(text: &str) -> Result<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "yes" | "true" | "on" => Ok(true),
        "0" | "no" | "false" | "off" => Ok(false),
        _ => {
            let text = format!("{:?}: write yes or no", shown(text));
            Err(Error::new(ErrorKind::InvalidInput, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(options: &[(&str, &str)]) -> String {
        let options = options.iter().copied();
        device_config(options).unwrap_err().to_string()
    }

    #[test]
    fn every_option_is_taken() {
        let config = device_config([
            ("size", "1M"),
            ("name", "d"),
            ("algorithm", "lz4"),
            ("algorithm-params", "level=2"),
            ("pool", "zbud"),
            ("mem-limit", "none"),
            ("unit", "16K"),
            ("checksum", "on"),
            ("listen", "0.0.0.0:1"),
            ("insecure", "1"),
        ])
        .unwrap();
        assert_eq!(config.name.as_deref(), Some("d"));
        assert_eq!(config.unit.bytes(), 16384);
        assert!(config.checksum && config.insecure);
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(refused(&[]).starts_with("size: missing"));
        assert!(refused(&[("sze", "1M")]).contains("did you mean size?"));
        assert!(refused(&[("size", "1M"), ("checksum", "maybe")]).contains("yes or no"));
        assert!(refused(&[("size", "1M"), ("socket", "x")]).contains("absolute"));
        assert!(refused(&[("size", "1M"), ("insecure", "1")]).contains("only means"));
        assert!(refused(&[("size", "1M"), ("listen", "0.0.0.0:1")]).contains("other machines"));
        let guests = |option, value| {
            let options = [("size", "1M"), ("attach", "vhost-user"), (option, value)];
            device_config(options).map_err(|refused| refused.to_string())
        };
        assert!(guests("socket", "/x").is_ok());
        assert!(
            guests("listen", "127.0.0.1:1")
                .unwrap_err()
                .contains("Unix socket")
        );
        assert!(
            guests("for-swap", "1")
                .unwrap_err()
                .contains("in the guest")
        );
        let both = [("size", "1M"), ("socket", "/x"), ("listen", "[::1]:1")];
        assert!(refused(&both).contains("exclude each other"));
        let hostile = "x\u{1b}".repeat(5000);
        assert!(refused(&[(&hostile, "1M")]).len() < 600);
    }

    #[test]
    fn addresses_are_numbers() {
        for (text, shown) in [
            ("127.0.0.1:10809", "127.0.0.1:10809"),
            ("[::1]:0", "[::1]:0"),
            ("localhost:7", "127.0.0.1:7"),
        ] {
            assert_eq!(address(text).unwrap().to_string(), shown);
        }
        for text in [
            "",
            "10809",
            ":10809",
            "example.org:1",
            "127.0.0.1",
            "127.0.0.1:65536",
            "localhost:x",
        ] {
            assert!(address(text).is_err(), "{text}");
        }
    }
}
