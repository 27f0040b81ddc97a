//! Values of more than one option.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use uzram::ErrorKind;

use crate::error::{Error, Result};
use crate::nearest::shown;

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

/// Numbers only: looking a name up needs a resolver, which a static binary in an initramfs lacks.
///
/// # Errors
/// [`ErrorKind::InvalidInput`].
pub(crate) fn address(text: &str) -> Result<SocketAddr> {
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
