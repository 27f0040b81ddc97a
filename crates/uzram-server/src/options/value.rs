//! Values of more than one option.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use uzram::ErrorKind;
use uzram_frontends::nbd::Endpoint;

use crate::error::{Error, Result};
use crate::nearest::shown;

/// Ports at which clients can be told to connect. The number above them means any port to the system.
const VSOCK_PORTS: RangeInclusive<u32> = 1..=u32::MAX - 1;

/// A truth value in the notation of systemd's files.
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

/// A path that means the same to the server and to every program that asks it.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] if it is not absolute.
pub(crate) fn absolute_path(text: &str) -> Result<PathBuf> {
    if Path::new(text).is_absolute() {
        return Ok(text.into());
    }
    let text = format!("{:?}: must be an absolute path", shown(text));
    Err(Error::new(ErrorKind::InvalidInput, text))
}

/// An address of TCP: IP:PORT. Numbers only: looking a name up needs a resolver, which a static binary in an
/// initramfs lacks.
pub(crate) fn address(text: &str) -> Option<SocketAddr> {
    let local = text
        .strip_prefix("localhost:")
        .and_then(|port| port.parse().ok());
    let local = local.map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    local.or_else(|| text.parse().ok())
}

/// An address to listen at: IP:PORT or vsock:PORT.
///
/// # Errors
/// [`ErrorKind::InvalidInput`].
pub(crate) fn listen_address(text: &str) -> Result<Endpoint> {
    let refuse = |why: &str| {
        let text = format!("{:?}: {why}", shown(text));
        Error::new(ErrorKind::InvalidInput, text)
    };
    let Some(port) = text.strip_prefix("vsock:") else {
        return address(text).map(Endpoint::Tcp).ok_or_else(|| {
            refuse(
                "not an address; write IP:PORT, as 127.0.0.1:10809 or [::1]:10809, or vsock:PORT for \
                 virtual machines",
            )
        });
    };
    if port.contains(':') {
        return Err(refuse(
            "a server listens at every number (CID) of its machine; write vsock:PORT, as vsock:10809",
        ));
    }
    let port = port.parse().ok().filter(|port| VSOCK_PORTS.contains(port));
    port.map(Endpoint::Vsock).ok_or_else(|| {
        let (first, last) = (VSOCK_PORTS.start(), VSOCK_PORTS.end());
        refuse(&format!(
            "not a port of vsock; write vsock:PORT with {first} to {last}, as vsock:10809"
        ))
    })
}
