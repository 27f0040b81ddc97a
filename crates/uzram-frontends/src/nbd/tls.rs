//! TLS without I/O: bytes of the wire in and out, the protocol's bytes in between.
//!
//! rustls over ring. A connection's records are made and taken apart under one lock; sending and
//! receiving happen outside of it, so that a client that is slow to read does not keep its own
//! requests from being received. TLS costs an allocation a record, which the clear protocol does not.

use std::fmt;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use uzram::{Error, ErrorKind, Result};

use super::socket::Received;

/// Ciphertext that is received at once, in bytes: four of the longest records.
const CIPHERTEXT_BYTES: usize = 64 << 10;
/// Plaintext that is sealed at once, in bytes; bounds what a connection has in records.
const SEAL_BYTES: usize = 64 << 10;
/// Largest file of certificates or keys that is read, in bytes.
const PEM_BYTES_MAX: u64 = 1 << 20;

/// The files of a server that speaks TLS, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, then those that vouch for it.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Set: clients must show a certificate that one of these vouches for.
    pub client_ca: Option<PathBuf>,
}

/// What a server needs to speak TLS 1.2 and 1.3. Clones share it.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ServerConfig>,
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
        let key = PrivateKeyDer::from_pem_slice(&read(&files.key)?)
            .map_err(|error| refuse(&files.key, "holds no private key", &error))?;
        let what = "does not fit the certificate";
        let mut config = builder
            .with_single_cert(certificates(&files.certificate)?, key)
            .map_err(|error| refuse(&files.key, what, &error))?;
        // Nobody resumes: connections last.
        config.send_tls13_tickets = 0;
        Ok(Tls {
            config: Arc::new(config),
        })
    }

    /// A connection's side of it; `None` if there is no memory for one.
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

fn refuse(path: &Path, what: &str, why: &dyn fmt::Display) -> Error {
    let text = format!("{}: {what}: {why}", path.display());
    Error::new(ErrorKind::InvalidInput, text)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read =
        std::fs::File::open(path).and_then(|file| file.take(PEM_BYTES_MAX).read_to_end(&mut bytes));
    match read {
        Ok(_) => Ok(bytes),
        Err(error) => {
            let text = format!("{}: cannot be read", path.display());
            Err(Error::new(ErrorKind::Io, text).with_source(error))
        }
    }
}

/// One connection's TLS.
pub(crate) struct Stream {
    connection: ServerConnection,
    /// Received; the first `taken` bytes are with rustls already.
    ciphertext: Vec<u8>,
    taken: usize,
}

impl Stream {
    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Fills `buffer` as far as what is there goes; ciphertext comes from `source`, into a buffer.
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

    /// Takes some ciphertext, from `source` if none is left: `Bytes` if that went well, `End` for
    /// what is not TLS or not from this client, too.
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

    /// Appends to `out` the records of at most [`SEAL_BYTES`] of `plaintext`, behind what TLS itself
    /// has to say; returns how many bytes of it.
    pub fn seal(&mut self, plaintext: &[u8], out: &mut Vec<u8>) -> io::Result<usize> {
        let part = &plaintext[..plaintext.len().min(SEAL_BYTES)];
        let sealed = self.connection.writer().write(part)?;
        self.outgoing(out)?;
        Ok(sealed)
    }

    /// Appends to `out` what TLS itself has to say.
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
