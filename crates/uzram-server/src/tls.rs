//! TLS at a place where clients connect: the options of a device for it, and their checks.
//!
//! TLS belongs to the place: the first device there brings the files, others may repeat them.

use std::path::PathBuf;

use uzram_frontends::nbd::{Endpoint, Server as NbdServer};

use crate::error::Result;

/// The files of TLS in PEM, and whether clients must use it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// The server's certificate and those that vouch for it.
    pub certificate: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
    /// Clients must show a certificate that one of these vouches for, and so must start TLS.
    pub client_ca: Option<PathBuf>,
    /// Clients that do not start TLS are refused. This is always so with `client_ca`, and where
    /// other machines can connect, unless the device is `insecure`.
    pub required: bool,
}

impl TlsOptions {
    /// Whether there is TLS.
    #[must_use]
    pub fn is_given(&self) -> bool {
        self.certificate.is_some()
    }

    /// The rules for `endpoint`, where the socket really listens.
    pub(crate) fn at(&self, endpoint: &Endpoint, is_insecure: bool) -> TlsOptions {
        let is_open = !endpoint.is_loopback() && !is_insecure;
        TlsOptions {
            required: self.is_given() && (self.required || self.client_ca.is_some() || is_open),
            ..self.clone()
        }
    }

    /// Refuses options that are void without others: the option, and the reason.
    pub(crate) fn check(&self) -> Result<(), (&'static str, &'static str)> {
        match (&self.certificate, &self.key) {
            (Some(_), None) => Err(("tls-cert", "needs its private key, tls-key")),
            (None, Some(_)) => Err(("tls-key", "needs its certificate, tls-cert")),
            (None, None) if self.client_ca.is_some() => {
                Err(("tls-client-ca", "needs tls-cert and tls-key"))
            }
            (None, None) if self.required => Err(("tls-required", "needs tls-cert and tls-key")),
            _ => Ok(()),
        }
    }

    /// Gives TLS to `server`, which listens and does not serve yet; warns of a certificate that is not
    /// valid now.
    ///
    /// # Errors
    /// The frontend's errors for wrong files.
    #[cfg(feature = "tls")]
    pub(crate) fn secure(&self, server: NbdServer) -> Result<NbdServer> {
        use uzram_frontends::nbd::{Tls, TlsFiles};

        let (Some(certificate), Some(key)) = (&self.certificate, &self.key) else {
            return Ok(server);
        };
        let tls = Tls::load(&TlsFiles {
            certificate: certificate.clone(),
            key: key.clone(),
            client_ca: self.client_ca.clone(),
        })?;
        if let Some(why) = tls.not_valid_now() {
            log::warn!("{why}; clients that check it refuse it until you renew it");
        }
        Ok(server.with_tls(tls, self.required))
    }

    #[cfg(not(feature = "tls"))]
    pub(crate) fn secure(&self, server: NbdServer) -> Result<NbdServer> {
        use crate::error::Error;
        use uzram::ErrorKind;

        match self.is_given() {
            true => Err(Error::new(
                ErrorKind::Unsupported,
                "this program was built without TLS; build it with the feature tls",
            )),
            false => Ok(server),
        }
    }
}

/// The reason why no disk is served without TLS at `endpoint`, which other machines reach, and the ways out.
pub(crate) fn open_to_all(endpoint: &Endpoint) -> String {
    let remedy = match endpoint {
        Endpoint::Vsock(_) => {
            "give tls-cert and tls-key, or add insecure where you trust the host and every guest"
        }
        Endpoint::Tcp(_) | Endpoint::Unix(_) => {
            "use 127.0.0.1 or [::1], give tls-cert and tls-key, or add insecure on a network you trust"
        }
    };
    format!(
        "other machines could read and write the disk, as NBD without TLS is open to all who connect; {remedy}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_need_others_say_which() {
        let given = |names: &[&str]| {
            let path = |name| names.contains(&name).then(|| PathBuf::from("/f"));
            let options = TlsOptions {
                certificate: path("cert"),
                key: path("key"),
                client_ca: path("ca"),
                required: names.contains(&"required"),
            };
            options.check().err().map(|(option, _)| option)
        };
        assert_eq!(given(&[]), None);
        assert_eq!(given(&["cert", "key"]), None);
        assert_eq!(given(&["cert", "key", "ca", "required"]), None);
        assert_eq!(given(&["cert"]), Some("tls-cert"));
        assert_eq!(given(&["key", "ca"]), Some("tls-key"));
        assert_eq!(given(&["ca", "required"]), Some("tls-client-ca"));
        assert_eq!(given(&["required"]), Some("tls-required"));
    }
}
