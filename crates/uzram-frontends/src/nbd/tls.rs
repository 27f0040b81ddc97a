//! TLS without I/O: ciphertext on one side, the protocol's bytes on the other.
//!
//! rustls over ring. A connection's records are made and taken apart under one lock. Sending and
//! receiving happen outside of it, so that a client that is slow to read does not keep its own
//! requests from being received. TLS costs one allocation per record, which the clear protocol
//! does not.

use std::fmt;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{CertificateError, RootCertStore, ServerConfig, ServerConnection};
use uzram::file::read_regular;
use uzram::{Error, ErrorKind, Result};

use super::received::Received;

/// Ciphertext that is received at once, in bytes: four of the longest records.
const CIPHERTEXT_BYTES: usize = 64 << 10;
/// Plaintext that is sealed at once, in bytes. It bounds the memory of a connection's records.
const SEAL_BYTES: usize = 64 << 10;
/// Largest file of certificates or keys that is read, in bytes.
const PEM_BYTES_MAX: u64 = 1 << 20;
/// The keys with which the server can sign.
const KEYS_TAKEN: &str = "take ECDSA (P-256 or P-384), Ed25519, or RSA of 2048, 3072 or 4096 bits";
/// The certificates that clients can check.
const CERTIFICATES_TAKEN: &str = "make one of X.509 version 3, with the server's names \
                                  (openssl req -x509 -addext subjectAltName=DNS:…)";
const SECONDS_A_DAY: u64 = 24 * 60 * 60;

/// The files of a server that speaks TLS, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, then those that vouch for it.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// If set, clients must show a certificate that one of these vouches for.
    pub client_ca: Option<PathBuf>,
}

/// The set-up of a server that speaks TLS 1.2 and 1.3. Clones share it.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ServerConfig>,
    checks_clients: bool,
    not_valid_now: Option<String>,
}

impl Tls {
    /// Reads the files once; later changes to them do not matter.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] for a file that cannot be read, [`ErrorKind::InvalidInput`] for one that
    /// holds something else than it should, and for a key that does not fit the certificate.
    pub fn load(files: &TlsFiles) -> Result<Tls> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::new(ErrorKind::Unsupported, format!("TLS: {error}")))?;
        let builder = match &files.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(path)? {
                    let what = "holds a certificate that cannot vouch for others";
                    roots
                        .add(certificate)
                        .map_err(|error| refuse(path, what, &error))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                let what = "cannot be used to check clients";
                builder.with_client_cert_verifier(
                    verifier.map_err(|error| refuse(path, what, &error))?,
                )
            }
        };
        let key = private_key(&files.key)?;
        let chain = certificates(&files.certificate)?;
        let not_valid_now = chain.iter().find_map(not_valid_now);
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => {
                    refuse(&files.key, "does not fit the certificate", &error)
                }
                rustls::Error::InvalidCertificate(CertificateError::Other(_)) => {
                    let what = "a certificate that cannot be used";
                    refuse(&files.certificate, what, &CERTIFICATES_TAKEN)
                }
                _ => refuse(&files.certificate, "cannot be used", &error),
            })?;
        // Nobody resumes: connections last.
        config.send_tls13_tickets = 0;
        Ok(Tls {
            config: Arc::new(config),
            checks_clients: files.client_ca.is_some(),
            not_valid_now: not_valid_now
                .map(|why| format!("{}: {why}", files.certificate.display())),
        })
    }

    /// The reasons why clients will refuse the certificate at this time, with the file. It is
    /// served all the same, because clients decide what they accept.
    #[must_use]
    pub fn not_valid_now(&self) -> Option<&str> {
        self.not_valid_now.as_deref()
    }

    /// Whether clients must show a certificate.
    pub(crate) fn checks_clients(&self) -> bool {
        self.checks_clients
    }

    /// The TLS state of a new connection; `None` if there is no memory for it.
    pub(crate) fn stream(&self) -> Option<Stream> {
        Some(Stream {
            connection: ServerConnection::new(Arc::clone(&self.config)).ok()?,
            ciphertext: Vec::new(),
            taken: 0,
        })
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let bytes = read(path)?;
    let found: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let found = found.map_err(|error| refuse(path, "holds no certificate", &error))?;
    match found.is_empty() {
        true => Err(refuse(path, "holds no certificate", &"nothing in PEM")),
        false => Ok(found),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    let key = PrivateKeyDer::from_pem_slice(&read(path)?)
        .map_err(|error| refuse(path, "holds no private key", &error))?;
    // Apart from the certificate, so that the reason is the key's.
    match rustls::crypto::ring::sign::any_supported_type(&key) {
        Ok(_) => Ok(key),
        Err(_) => Err(refuse(
            path,
            "a private key that cannot be used",
            &KEYS_TAKEN,
        )),
    }
}

/// The reason why `certificate` is not valid at this time, if it is not.
fn not_valid_now(certificate: &CertificateDer<'_>) -> Option<String> {
    let parsed = ParsedCertificate::try_from(certificate).ok()?;
    let algorithms = rustls::crypto::ring::default_provider()
        .signature_verification_algorithms
        .all;
    // Its dates are looked at before who vouches for it, which nobody does here.
    let verdict = verify_server_cert_signed_by_trust_anchor(
        &parsed,
        &RootCertStore::empty(),
        &[],
        UnixTime::now(),
        algorithms,
    );
    let days = |later: UnixTime, earlier: UnixTime| {
        later.as_secs().saturating_sub(earlier.as_secs()) / SECONDS_A_DAY
    };
    let Err(rustls::Error::InvalidCertificate(why)) = verdict else {
        return None;
    };
    match why {
        CertificateError::Expired => Some("the certificate has expired".to_owned()),
        CertificateError::ExpiredContext { time, not_after } => {
            let days = days(time, not_after);
            Some(format!("the certificate expired {days} days ago"))
        }
        CertificateError::NotValidYet => Some("the certificate is not valid yet".to_owned()),
        CertificateError::NotValidYetContext { time, not_before } => {
            let days = days(not_before, time);
            Some(format!("the certificate is not valid for {days} days yet"))
        }
        _ => None,
    }
}

fn refuse(path: &Path, what: &str, why: &dyn fmt::Display) -> Error {
    let text = format!("{}: {what}: {why}", path.display());
    Error::new(ErrorKind::InvalidInput, text)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    read_regular(path, PEM_BYTES_MAX).map_err(|error| {
        let text = format!("{}: cannot be read", path.display());
        Error::new(ErrorKind::Io, text).with_source(error)
    })
}

/// One connection's TLS.
pub(crate) struct Stream {
    connection: ServerConnection,
    /// Received bytes. rustls has taken the first `taken` of them.
    ciphertext: Vec<u8>,
    taken: usize,
}

impl Stream {
    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Fills `buffer` as far as decrypted bytes are there. Ciphertext comes from `source`, into a
    /// buffer.
    pub fn receive(
        &mut self,
        buffer: &mut [u8],
        source: &mut dyn FnMut(&mut [u8]) -> Received,
    ) -> Received {
        let mut filled = 0;
        loop {
            match self.connection.reader().read(&mut buffer[filled..]) {
                // The client has said goodbye.
                Ok(0) => return some_or(filled, Received::End),
                Ok(length) => filled += length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return some_or(filled, Received::End),
            }
            if filled == buffer.len() {
                return Received::Bytes(filled);
            }
            let has_more = self.taken < self.ciphertext.len();
            if filled > 0 && !has_more {
                return Received::Bytes(filled);
            }
            match self.advance(source) {
                Received::Bytes(_) => {}
                other => return some_or(filled, other),
            }
        }
    }

    /// Takes some ciphertext, from `source` if none is left: `Bytes` on success, `End` also for
    /// bytes that are not TLS or not from this client.
    pub fn advance(&mut self, source: &mut dyn FnMut(&mut [u8]) -> Received) -> Received {
        if self.taken == self.ciphertext.len() {
            self.ciphertext.resize(CIPHERTEXT_BYTES, 0);
            self.taken = 0;
            let received = source(&mut self.ciphertext);
            let length = match received {
                Received::Bytes(length) => length,
                Received::Nothing | Received::End => 0,
            };
            self.ciphertext.truncate(length);
            if length == 0 {
                return received;
            }
        }
        let mut rest = &self.ciphertext[self.taken..];
        let Ok(length) = self.connection.read_tls(&mut rest) else {
            return Received::End;
        };
        self.taken += length;
        match self.connection.process_new_packets() {
            Ok(_) if length > 0 => Received::Bytes(length),
            Ok(_) | Err(_) => Received::End,
        }
    }

    /// Appends to `out` the records of at most [`SEAL_BYTES`] of `plaintext`, behind TLS's own
    /// messages. Returns how many bytes of it were taken.
    pub fn seal(&mut self, plaintext: &[u8], out: &mut Vec<u8>) -> io::Result<usize> {
        let part = &plaintext[..plaintext.len().min(SEAL_BYTES)];
        let sealed = self.connection.writer().write(part)?;
        self.outgoing(out)?;
        Ok(sealed)
    }

    /// Appends TLS's own messages to `out`.
    pub fn outgoing(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        while self.connection.wants_write() {
            self.connection.write_tls(out)?;
        }
        Ok(())
    }

    /// Says goodbye.
    pub fn close(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        self.connection.send_close_notify();
        self.outgoing(out)
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stream")
    }
}

fn some_or(filled: usize, other: Received) -> Received {
    match filled {
        0 => other,
        _ => Received::Bytes(filled),
    }
}
