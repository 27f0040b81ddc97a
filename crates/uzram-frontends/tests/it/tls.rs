//! TLS: who gets in, who does not, and that nothing said in the clear counts.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use uzram_frontends::nbd::{
    Endpoint, Exports, Limits, Server, ServerHandle, Session, Tls, TlsFiles,
};

use crate::chunks::Chunked;
use crate::client::{
    self, Client, FLUSH, WRITE, exactly, info_data, option, option_reply, until_closed,
};
use crate::device::Bytes;
use crate::{eventually, export};

const STARTTLS: u32 = 5;
const ERR_UNSUP: u32 = (1 << 31) + 1;
const ERR_INVALID: u32 = (1 << 31) + 3;
const ERR_TLS_REQD: u32 = (1 << 31) + 5;
const SIZE: usize = 8 << 20;

/// Certificates in a directory, under the names that libnbd and qemu look for.
struct Certificates {
    directory: tempfile::TempDir,
}

impl Certificates {
    /// An authority, a server, and clients: one fine, one expired, one of another authority.
    fn new() -> Certificates {
        let directory = tempfile::tempdir().unwrap();
        let put = |name: &str, text: String| fs::write(directory.path().join(name), text).unwrap();
        let authority = authority("ours");
        let other = authority_named_alike();
        put("ca-cert.pem", authority.pem());
        put("other-ca.pem", other.pem());
        for (name, issuer, expired) in [
            ("server", &authority, false),
            ("client", &authority, false),
            ("expired", &authority, true),
            ("stranger", &other, false),
        ] {
            let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            if expired {
                params.not_before = rcgen::date_time_ymd(2001, 1, 1);
                params.not_after = rcgen::date_time_ymd(2002, 1, 1);
            }
            let key = KeyPair::generate().unwrap();
            put(
                &format!("{name}-cert.pem"),
                params.signed_by(&key, issuer).unwrap().pem(),
            );
            put(&format!("{name}-key.pem"), key.serialize_pem());
        }
        Certificates { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn server(&self, name: &str, client_ca: Option<&str>) -> uzram::Result<Tls> {
        Tls::load(&TlsFiles {
            certificate: self.path(&format!("{name}-cert.pem")),
            key: self.path(&format!("{name}-key.pem")),
            client_ca: client_ca.map(|name| self.path(name)),
        })
    }

    /// A client that trusts the authority in `ca`, and shows the certificate of `who`.
    fn client(&self, ca: &str, who: Option<&str>) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_file(self.path(ca)).unwrap();
        roots.add(authority).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        match who {
            None => builder.with_no_client_auth(),
            Some(who) => {
                let file = |what: &str| self.path(&format!("{who}-{what}.pem"));
                let certificate = CertificateDer::from_pem_file(file("cert")).unwrap();
                let key = PrivateKeyDer::from_pem_file(file("key")).unwrap();
                builder
                    .with_client_auth_cert(vec![certificate], key)
                    .unwrap()
            }
        }
    }
}

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Known by the same name, with another key.
fn authority_named_alike() -> CertifiedIssuer<'static, KeyPair> {
    authority("ours")
}

struct Served {
    handle: ServerHandle,
    directory: tempfile::TempDir,
}

impl Served {
    fn new(tls: Option<Tls>, required: bool) -> Served {
        let limits = Limits {
            handshake_timeout: Duration::from_secs(3),
            ..Limits::default()
        };
        let exports = Arc::new(Exports::new());
        exports.add(export("disk", Bytes::new(SIZE))).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let endpoint = Endpoint::Unix(directory.path().join("s"));
        let mut server = Server::bind(&endpoint, exports, limits).unwrap();
        if let Some(tls) = tls {
            server = server.with_tls(tls, required);
        }
        Served {
            handle: server.spawn().unwrap(),
            directory,
        }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("s")
    }

    fn greeted(&self) -> UnixStream {
        greeted(&self.socket())
    }

    /// In the handshake behind STARTTLS; `Err` if TLS fails.
    fn secured(&self, config: ClientConfig) -> std::io::Result<Secured> {
        let mut stream = self.greeted();
        stream.write_all(&option(STARTTLS, &[])).unwrap();
        assert_eq!(option_reply(&mut stream, STARTTLS), (1, vec![]));
        let name = ServerName::try_from("localhost").unwrap();
        let mut connection = ClientConnection::new(Arc::new(config), name).unwrap();
        while connection.is_handshaking() {
            connection.complete_io(&mut stream)?;
        }
        let mut stream = StreamOwned::new(connection, stream);
        // TLS 1.3 tells a client late that its certificate is not wanted.
        stream.write_all(&option(3, &[]))?;
        let mut magic = [0; 8];
        stream.read_exact(&mut magic)?;
        let mut rest = [0; 12];
        stream.read_exact(&mut rest)?;
        let length = u32::from_be_bytes(rest[8..].try_into().unwrap());
        stream.read_exact(&mut vec![0; length as usize])?;
        assert_eq!(option_reply(&mut stream, 3), (1, vec![]));
        Ok(stream)
    }
}

type Secured = StreamOwned<ClientConnection, UnixStream>;

fn greeted(path: &Path) -> UnixStream {
    let mut stream = client::unix(path);
    assert_eq!(&exactly::<18>(&mut stream), b"NBDMAGICIHAVEOPT\0\x03");
    stream.write_all(&[0, 0, 0, 3]).unwrap();
    stream
}

#[test]
fn data_goes_in_and_out_through_tls() {
    let certificates = Certificates::new();
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let served = Served::new(Some(certificates.server("server", None).unwrap()), true);
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_file(certificates.path("ca-cert.pem"));
        roots.add(authority.unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = served.secured(config).unwrap();
        let mut client = Chunked::go_on(stream, "disk", true, &[]);
        let data: Vec<u8> = (0..3_000_000u32).map(|i| (i / 3 % 251) as u8).collect();
        assert_eq!(client.write(0, 12345, &data), 0);
        let reply = client.call(0, client::READ, 12345, data.len() as u64);
        assert!(reply.content(12345, data.len()) == data);
        for _ in 0..100 {
            assert_eq!(client.write(0, 0, &[7; 4096]), 0);
        }
        assert!(served.handle.uri("disk").starts_with("nbds+unix:///disk?"));
        // The goodbye is answered by TLS's own, then by the end.
        client.send(0, client::DISC, 0, 0, &[]);
        assert_eq!(client.stream.read(&mut [0; 10]).unwrap(), 0);
    }
}

#[test]
fn whoever_must_and_does_not_start_tls_learns_nothing() {
    let certificates = Certificates::new();
    let served = Served::new(Some(certificates.server("server", None).unwrap()), true);
    let mut stream = served.greeted();
    let info = info_data("disk", &[]);
    let meta = crate::chunks::meta_data("disk", &[]);
    for (number, data) in [
        (3, &b""[..]),
        (6, &info),
        (7, &info),
        (8, b""),
        (9, &meta),
        (10, &meta),
        (11, b""),
        (99, b""),
    ] {
        stream.write_all(&option(number, data)).unwrap();
        assert_eq!(
            option_reply(&mut stream, number).0,
            ERR_TLS_REQD,
            "{number}"
        );
    }
    stream.write_all(&option(STARTTLS, b"x")).unwrap();
    assert_eq!(option_reply(&mut stream, STARTTLS).0, ERR_INVALID);
    stream.write_all(&option(2, &[])).unwrap();
    assert_eq!(option_reply(&mut stream, 2), (1, vec![]));
    let mut stream = served.greeted();
    stream.write_all(&option(1, b"disk")).unwrap();
    assert_eq!(until_closed(&mut stream), b"");
    // A client without fixed newstyle can have no TLS.
    let mut stream = client::unix(&served.socket());
    exactly::<18>(&mut stream);
    stream.write_all(&[0, 0, 0, 0]).unwrap();
    assert_eq!(until_closed(&mut stream), b"");
}

#[test]
fn where_tls_is_offered_the_clear_works_too_and_where_it_is_not_it_is_refused() {
    let certificates = Certificates::new();
    let served = Served::new(Some(certificates.server("server", None).unwrap()), false);
    let mut client = Client::go(client::unix(&served.socket()), "disk");
    assert_eq!(client.call(0, FLUSH, 0, 0), 0);
    let config = certificates.client("ca-cert.pem", None);
    let mut stream = served.secured(config).unwrap();
    stream.write_all(&option(STARTTLS, &[])).unwrap();
    assert_eq!(option_reply(&mut stream, STARTTLS).0, ERR_INVALID, "twice");
    let mut client = Chunked::go_on(stream, "disk", false, &[]);
    assert_eq!(client.call(0, FLUSH, 0, 0).error(), 0);

    let served = Served::new(None, false);
    let mut stream = served.greeted();
    stream.write_all(&option(STARTTLS, &[])).unwrap();
    assert_eq!(option_reply(&mut stream, STARTTLS).0, ERR_UNSUP);
}

#[test]
fn what_was_negotiated_in_the_clear_is_forgotten() {
    let certificates = Certificates::new();
    let served = Served::new(Some(certificates.server("server", None).unwrap()), false);
    let mut stream = served.greeted();
    stream.write_all(&option(11, &[])).unwrap();
    assert_eq!(option_reply(&mut stream, 11), (1, vec![]));
    stream.write_all(&option(STARTTLS, &[])).unwrap();
    assert_eq!(option_reply(&mut stream, STARTTLS), (1, vec![]));
    let config = Arc::new(certificates.client("ca-cert.pem", None));
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = StreamOwned::new(ClientConnection::new(config, name).unwrap(), stream);
    // Compact again: EXPORT_NAME works, and a simple reply comes.
    stream.write_all(&option(1, b"disk")).unwrap();
    let answer = exactly::<10>(&mut stream);
    assert_eq!(u16::from_be_bytes([answer[8], answer[9]]) >> 7 & 1, 0);
    stream
        .write_all(&client::request(0, FLUSH, 9, 0, 0))
        .unwrap();
    assert_eq!(exactly::<4>(&mut stream), [0x67, 0x44, 0x66, 0x98]);
}

#[test]
fn words_put_behind_starttls_in_the_clear_are_never_heard() {
    let certificates = Certificates::new();
    let device = Bytes::new(SIZE);
    let exports = Arc::new(Exports::new());
    exports.add(export("disk", device.clone())).unwrap();
    let injected = [
        option(7, &info_data("disk", &[])),
        option(3, &[]),
        option(2, &[]),
        option(1, b"disk"),
        vec![0],
    ];
    let served = Served::new(Some(certificates.server("server", None).unwrap()), false);
    for words in &injected {
        // In one piece with the option: the connection ends, before a byte of TLS.
        let mut stream = served.greeted();
        stream
            .write_all(&[option(STARTTLS, &[]), words.clone()].concat())
            .unwrap();
        let mut answer = Vec::new();
        let answered = (&mut stream).take(20).read_to_end(&mut answer);
        let config = Arc::new(certificates.client("ca-cert.pem", None));
        let name = ServerName::try_from("localhost").unwrap();
        let mut connection = ClientConnection::new(config, name).unwrap();
        let mut shaken = answered.map(|_| ());
        while shaken.is_ok() && connection.is_handshaking() {
            shaken = connection.complete_io(&mut stream).map(|_| ());
        }
        assert!(shaken.is_err(), "TLS goes on behind words in the clear");
        // Behind the answer: they are no TLS.
        let mut stream = served.greeted();
        stream.write_all(&option(STARTTLS, &[])).unwrap();
        assert_eq!(option_reply(&mut stream, STARTTLS), (1, vec![]));
        stream.write_all(words).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let said = until_closed(&mut stream);
        // At most an alert of seven bytes.
        assert!(
            said.is_empty() || said[0] == 21 && said.len() == 7,
            "{said:?}"
        );
        // The same without a socket.
        let tls = certificates.server("server", None).unwrap();
        let mut session = Session::with_tls(exports.clone(), &tls, false);
        let mut said = Vec::new();
        let bytes = [&[0, 0, 0, 3][..], &option(STARTTLS, &[]), words].concat();
        assert!(!session.receive(&bytes, &mut said));
        assert_eq!(said.len(), 18 + 20);
    }
    assert_eq!(device.take_seen(), []);
}

#[test]
fn certificates_decide_who_gets_in() {
    let certificates = Certificates::new();
    let tls = certificates.server("server", Some("ca-cert.pem")).unwrap();
    let served = Served::new(Some(tls), true);
    let enter = |ca: &str, who: Option<&str>| served.secured(certificates.client(ca, who)).is_ok();
    assert!(enter("ca-cert.pem", Some("client")));
    assert!(!enter("ca-cert.pem", None), "no certificate");
    assert!(!enter("ca-cert.pem", Some("expired")));
    assert!(!enter("ca-cert.pem", Some("stranger")));
    // The client's own check.
    assert!(!enter("other-ca.pem", Some("client")));
    let tls = certificates.server("expired", None).unwrap();
    let served = Served::new(Some(tls), true);
    assert!(
        served
            .secured(certificates.client("ca-cert.pem", None))
            .is_err()
    );
    eventually("nobody is left", || served.handle.connections() == 0);
}

#[test]
fn files_that_are_not_what_they_should_be_are_named() {
    let certificates = Certificates::new();
    fs::write(certificates.path("empty"), "").unwrap();
    fs::write(certificates.path("binary"), [0xff; 100]).unwrap();
    let load = |certificate: &str, key: &str, ca: Option<&str>| {
        let files = TlsFiles {
            certificate: certificates.path(certificate),
            key: certificates.path(key),
            client_ca: ca.map(|name| certificates.path(name)),
        };
        Tls::load(&files).unwrap_err().to_string()
    };
    let (cert, key) = ("server-cert.pem", "server-key.pem");
    for (text, culprit, why) in [
        (load("none", key, None), "none", "cannot be read"),
        (load("empty", key, None), "empty", "holds no certificate"),
        (load("binary", key, None), "binary", "holds no certificate"),
        (load(key, key, None), key, "holds no certificate"),
        (load(cert, cert, None), cert, "holds no private key"),
        (load(cert, "none", None), "none", "cannot be read"),
        (
            load(cert, "client-key.pem", None),
            "client-key.pem",
            "does not fit",
        ),
        (
            load(cert, key, Some("empty")),
            "empty",
            "holds no certificate",
        ),
    ] {
        assert!(text.contains(culprit) && text.contains(why), "{text}");
        assert!(!text.contains('\n'), "{text}");
    }
}

#[test]
fn keys_of_odd_sizes_are_refused_for_what_they_are() {
    let certificates = Certificates::new();
    let odd = certificates.path("rsa-2056-key.pem");
    fs::write(&odd, include_str!("rsa-2056-key.pem")).unwrap();
    let files = TlsFiles {
        certificate: certificates.path("server-cert.pem"),
        key: odd,
        client_ca: None,
    };
    let said = Tls::load(&files).unwrap_err().to_string();
    assert!(
        said.contains("rsa-2056-key.pem: a private key that cannot be used"),
        "{said}"
    );
    assert!(
        said.contains("RSA of 2048") && !said.contains("does not fit"),
        "{said}"
    );
}

#[test]
fn a_certificate_of_an_old_version_is_refused_with_the_way_to_a_new_one() {
    let certificates = Certificates::new();
    let old = certificates.path("old-cert.pem");
    fs::write(&old, include_str!("x509-v1-cert.pem")).unwrap();
    let files = TlsFiles {
        certificate: old,
        key: certificates.path("server-key.pem"),
        client_ca: None,
    };
    let said = Tls::load(&files).unwrap_err().to_string();
    assert!(
        said.contains("old-cert.pem: a certificate that cannot be used: make one"),
        "{said}"
    );
    assert!(!said.contains("OtherError"), "{said}");
}

#[test]
fn a_certificate_outside_of_its_dates_is_told_and_served() {
    let certificates = Certificates::new();
    let told = |from: (i32, u8, u8), to: (i32, u8, u8)| {
        let names = vec!["localhost".to_owned()];
        let mut params = CertificateParams::new(names).unwrap();
        params.not_before = rcgen::date_time_ymd(from.0, from.1, from.2);
        params.not_after = rcgen::date_time_ymd(to.0, to.1, to.2);
        let key = KeyPair::generate().unwrap();
        let cert = params.self_signed(&key).unwrap();
        fs::write(certificates.path("dated-cert.pem"), cert.pem()).unwrap();
        fs::write(certificates.path("dated-key.pem"), key.serialize_pem()).unwrap();
        let tls = certificates.server("dated", None).unwrap();
        tls.not_valid_now().map(str::to_owned)
    };
    let expired = told((2001, 1, 1), (2002, 1, 1)).unwrap();
    assert!(
        expired.contains("dated-cert.pem: the certificate expired"),
        "{expired}"
    );
    let early = told((3001, 1, 1), (3002, 1, 1)).unwrap();
    assert!(early.contains("is not valid for"), "{early}");
    assert_eq!(told((2001, 1, 1), (3002, 1, 1)), None);
}

#[test]
fn clients_that_must_show_a_certificate_cannot_stay_in_the_clear() {
    let certificates = Certificates::new();
    let tls = certificates.server("server", Some("ca-cert.pem")).unwrap();
    let served = Served::new(Some(tls), false);
    let mut stream = served.greeted();
    stream.write_all(&option(3, &[])).unwrap();
    assert_eq!(option_reply(&mut stream, 3).0, 0x8000_0005, "ERR_TLS_REQD");
    assert!(served.handle.uri("disk").starts_with("nbds+unix:"));
}

#[test]
fn a_half_handshake_at_every_byte_costs_only_its_connection() {
    let certificates = Certificates::new();
    let served = Served::new(Some(certificates.server("server", None).unwrap()), true);
    let config = Arc::new(certificates.client("ca-cert.pem", None));
    let name = ServerName::try_from("localhost").unwrap();
    let mut hello = Vec::new();
    let mut connection = ClientConnection::new(config, name).unwrap();
    connection.write_tls(&mut hello).unwrap();
    for end in (0..hello.len()).step_by(if cfg!(debug_assertions) { 7 } else { 1 }) {
        let mut stream = served.greeted();
        stream.write_all(&option(STARTTLS, &[])).unwrap();
        assert_eq!(option_reply(&mut stream, STARTTLS), (1, vec![]));
        stream.write_all(&hello[..end]).unwrap();
    }
    eventually("all are gone", || served.handle.connections() == 0);
    // Whoever begins and stays silent is not waited for longer than for any handshake.
    let started = Instant::now();
    let mut stream = served.greeted();
    stream.write_all(&option(STARTTLS, &[])).unwrap();
    option_reply(&mut stream, STARTTLS);
    stream.write_all(&hello[..20]).unwrap();
    let said = until_closed(&mut stream);
    assert!(said.is_empty() || said[0] == 21, "an alert at most");
    assert!(started.elapsed() >= Duration::from_millis(2900));
    // And bytes turned over on the way are noticed.
    let mut stream = served
        .secured(certificates.client("ca-cert.pem", None))
        .unwrap();
    let mut record = Vec::new();
    stream.conn.writer().write_all(&option(3, &[])).unwrap();
    stream.conn.write_tls(&mut record).unwrap();
    *record.last_mut().unwrap() ^= 1;
    stream.sock.write_all(&record).unwrap();
    let mut answer = Vec::new();
    assert!(stream.read_to_end(&mut answer).is_err() || answer.is_empty());
}

#[test]
fn a_session_without_io_speaks_tls_too() {
    let certificates = Certificates::new();
    let exports = Arc::new(Exports::new());
    exports.add(export("disk", Bytes::new(SIZE))).unwrap();
    let tls = certificates.server("server", None).unwrap();
    for piece in [1, 13, usize::MAX] {
        let mut session = Session::with_tls(exports.clone(), &tls, true);
        let mut said = Vec::new();
        let bytes = [&[0, 0, 0, 3][..], &option(STARTTLS, &[])].concat();
        for piece in bytes.chunks(piece.min(bytes.len())) {
            assert!(session.receive(piece, &mut said));
        }
        assert_eq!(said.len(), 18 + 20);
        let config = Arc::new(certificates.client("ca-cert.pem", None));
        let name = ServerName::try_from("localhost").unwrap();
        let mut connection = ClientConnection::new(config, name).unwrap();
        let mut wanted = [option(7, &info_data("disk", &[])), {
            let mut write = client::request(0, WRITE, 3, 0, 9000);
            write.extend_from_slice(&[8; 9000]);
            write
        }]
        .concat();
        let mut heard = Vec::new();
        let mut open = true;
        for _ in 0..20 {
            if !connection.is_handshaking() && !wanted.is_empty() {
                connection.writer().write_all(&wanted).unwrap();
                wanted.clear();
            }
            let mut sent = Vec::new();
            while connection.wants_write() {
                connection.write_tls(&mut sent).unwrap();
            }
            let mut said = Vec::new();
            for piece in sent.chunks(piece.min(sent.len()).max(1)) {
                open = open && session.receive(piece, &mut said);
            }
            let mut said = &said[..];
            while !said.is_empty() {
                connection.read_tls(&mut said).unwrap();
                connection.process_new_packets().unwrap();
            }
            let _ = connection.reader().read_to_end(&mut heard);
        }
        assert!(open);
        assert_eq!(heard.len(), 20 + 12 + 20 + 16);
        assert!(heard.ends_with(&3u64.to_be_bytes()));
    }
}

/// The clients that people use: they speak TLS through GnuTLS.
#[test]
fn libnbd_and_qemu_come_in_through_tls() {
    let certificates = Certificates::new();
    let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
    let tls = certificates.server("server", Some("ca-cert.pem")).unwrap();
    let served = Served::new(Some(tls), true);
    let socket = served.socket().display().to_string();
    let run = |command: &mut Command| {
        let output = command.env("LC_ALL", "C").output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.success(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    };
    if has("nbdinfo") {
        let directory = certificates.directory.path().display();
        let uri =
            format!("nbds+unix://localhost/disk?socket={socket}&tls-certificates={directory}");
        let (ok, text) = run(Command::new("nbdinfo").arg(&uri));
        assert!(ok && text.contains("with TLS"), "{text}");
        let (ok, _) = run(Command::new("nbdinfo").arg(format!("nbd+unix:///disk?socket={socket}")));
        assert!(!ok, "without TLS");
        let stranger = tempfile::tempdir().unwrap();
        for (from, to) in [
            ("ca-cert.pem", "ca-cert.pem"),
            ("expired-cert.pem", "client-cert.pem"),
            ("expired-key.pem", "client-key.pem"),
        ] {
            fs::copy(certificates.path(from), stranger.path().join(to)).unwrap();
        }
        let (ok, _) = run(Command::new("nbdinfo").arg(format!(
            "nbds+unix://localhost/disk?socket={socket}&tls-certificates={}",
            stranger.path().display()
        )));
        assert!(!ok, "with an expired certificate");
    } else {
        eprintln!("skipped: nbdinfo is not installed");
    }
    if has("qemu-io") {
        let qemu = |directory: &Path| {
            let mut command = Command::new("qemu-io");
            command
                .arg("--object")
                .arg(format!(
                    "tls-creds-x509,id=t,endpoint=client,dir={},verify-peer=on",
                    directory.display()
                ))
                .args([
                    "-c",
                    "write -P 5 0 3m",
                    "-c",
                    "read -P 5 0 3m",
                    "--image-opts",
                ])
                .arg(format!(
                    "driver=nbd,server.type=unix,server.path={socket},export=disk,tls-creds=t,\
                     tls-hostname=localhost"
                ));
            command
        };
        let (ok, text) = run(&mut qemu(certificates.directory.path()));
        // Before 6.2 qemu knows no tls-hostname.
        if text.contains("tls-hostname") {
            eprintln!("skipped: this qemu-io has no tls-hostname");
        } else {
            assert!(ok && !text.contains("failed"), "{text}");
        }
    } else {
        eprintln!("skipped: qemu-io is not installed");
    }
}
