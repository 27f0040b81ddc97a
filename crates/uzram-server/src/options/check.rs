//! Checks of options together: options that need others, and options that are void beside others.

use uzram_frontends::nbd::Endpoint;

use crate::attachment::Attach;
use crate::device::{DeviceConfig, DeviceKind};
use crate::error::{Error, Result};
use crate::tls::open_to_all;

/// The situations in which `insecure` has an effect.
pub(crate) const INSECURE_NEEDS: &str = "only means something with listen, or at a socket handed over \
                                         that other machines reach";

/// Refuses options that do not go together, and a device without a size.
///
/// # Errors
/// The option that is missing or void, and the reason.
pub(super) fn together(config: &DeviceConfig) -> Result<()> {
    check_kind(config).map_err(|(option, text)| Error::invalid(option, text))?;
    if config.size_bytes == 0 && !config.kind.has_file() {
        let text = "missing; say how large the disk is, as 1G or 50% (of RAM)";
        return Err(Error::invalid("size", text));
    }
    let tls = config.tls.check();
    tls.map_err(|(option, why)| Error::invalid(option, why))?;
    check_reach(config)
}

/// Refuses options that do not apply to the kind, and missing ones that it needs. Returns the
/// option's name and the fault.
fn check_kind(config: &DeviceConfig) -> Result<(), (&'static str, String)> {
    let kind = config.kind;
    match (&config.path, kind.has_file()) {
        (None, true) => {
            let text = format!("missing; say which file the {} device is in", kind.name());
            return Err(("path", text));
        }
        (Some(_), false) => {
            let text = format!(
                "means nothing for {}, which is memory; add --device pmem or btt",
                kind.name()
            );
            return Err(("path", text));
        }
        _ => {}
    }
    if kind == DeviceKind::Zram {
        return Ok(());
    }
    let zrams = [
        ("algorithm", config.algorithm.is_some()),
        ("pool", config.pool.is_some()),
        ("mem-limit", config.mem_limit_bytes != 0),
        ("checksum", config.checksum),
        ("ages", config.ages),
    ];
    match zrams.iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => Err((
            option,
            format!("means nothing for {}, which does not compress", kind.name()),
        )),
        None => Ok(()),
    }
}

fn check_reach(config: &DeviceConfig) -> Result<()> {
    let is_allowed = config.insecure || config.tls.is_given();
    let open = config.endpoint.as_ref().filter(|at| !at.is_loopback());
    if let (Some(endpoint), false) = (open, is_allowed) {
        let given = match endpoint {
            Endpoint::Tcp(address) => address.to_string(),
            Endpoint::Vsock(port) => format!("vsock:{port}"),
            Endpoint::Unix(path) => path.display().to_string(),
        };
        let text = format!("{given}: {}", open_to_all(endpoint));
        return Err(Error::invalid("listen", text));
    }
    let has_address = config.endpoint.is_some() || config.tls.is_given();
    let is_guests = config.attach == Attach::VhostUser;
    let has_socket = matches!(config.endpoint, Some(Endpoint::Unix(_)));
    let has_other = config.endpoint.is_some() && !has_socket;
    if is_guests && (config.tls.is_given() || has_other) {
        let text = "vhost-user: lends memory, which takes a Unix socket; leave listen and tls out";
        return Err(Error::invalid("attach", text));
    }
    if config.attach != Attach::Nbd && !is_guests && has_address {
        let text = format!(
            "{}: has no address; leave socket, listen and tls out, or attach as nbd",
            config.attach.name()
        );
        return Err(Error::invalid("attach", text));
    }
    if is_guests && config.for_swap {
        let text = "for-swap: is for swap of this machine, which reaches no disk of guests; swap in the \
                    guest needs nothing of it";
        return Err(Error::invalid("attach", text));
    }
    // Without an address it is for a socket that is handed over, of which only the server knows.
    if config.insecure && (has_socket || config.attach != Attach::Nbd) {
        return Err(Error::invalid("insecure", INSECURE_NEEDS));
    }
    Ok(())
}
