//! TLS from the command line: files in, who must use it, and what is refused.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use rcgen::CertifiedKey;

use crate::nbd_client::NbdClient;
use crate::service::activated;
use crate::support::{Home, PATIENCE, Served};

const GO: u32 = 7;
/// The server's word for: first TLS.
const ERR_TLS_REQD: u32 = 0x8000_0005;

/// The answer to a client without TLS that asks for the default export.
fn answer_to_go(mut stream: impl Read + Write) -> u32 {
    stream.read_exact(&mut [0; 18]).unwrap();
    let mut ask = 3u32.to_be_bytes().to_vec();
    ask.extend(b"IHAVEOPT");
    ask.extend(GO.to_be_bytes());
    ask.extend(6u32.to_be_bytes());
    ask.extend([0; 6]);
    stream.write_all(&ask).unwrap();
    let mut reply = [0; 20];
    stream.read_exact(&mut reply).unwrap();
    u32::from_be_bytes(reply[12..16].try_into().unwrap())
}

/// A certificate that vouches for itself and its key, beside the state directory.
fn certificate(home: &Home) -> (String, String) {
    let names = vec!["localhost".to_owned()];
    let CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed(names).unwrap();
    let put = |name: &str, text: String| {
        let path = home.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let cert = put("cert.pem", cert.pem());
    (cert, put("key.pem", signing_key.serialize_pem()))
}

fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        eprintln!("skipped: {program} is not installed");
    }
    found
}

#[test]
fn where_other_machines_can_connect_they_must_start_tls() {
    let home = Home::new();
    let (cert, key) = certificate(&home);
    let open = ["--size", "16M", "--listen", "0.0.0.0:0"];
    let tls = ["--tls-cert", cert.as_str(), "--tls-key", key.as_str()];
    home.run(&[&["serve"], &open[..]].concat())
        .refused(2, "give tls-cert and tls-key");
    let mut served = home.serve(&[&open[..], &tls].concat());
    let uri = served.fact("URI").to_owned();
    assert!(uri.starts_with("nbds://0.0.0.0:"), "{uri}");
    assert!(
        served.said.contains("nbd-client -enable-tls -N"),
        "{}",
        served.said
    );
    if has("nbdinfo") {
        let plain = uri.replace("nbds:", "nbd:").replace("0.0.0.0", "127.0.0.1");
        let refused = Command::new("nbdinfo").arg(plain).output().unwrap();
        assert!(!refused.status.success(), "in the clear");
        // The client trusts the certificate as its own authority.
        let trusted = tempfile::tempdir().unwrap();
        std::fs::copy(&cert, trusted.path().join("ca-cert.pem")).unwrap();
        let uri = uri.replace("0.0.0.0", "localhost");
        let uri = format!("{uri}?tls-certificates={}", trusted.path().display());
        let output = Command::new("nbdinfo").arg(uri).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("with TLS"), "{output:?}");
    }
    served.ends();
    assert!(!served.stderr().contains("insecure"), "no warning");
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let home = Home::new();
    let (cert, key) = certificate(&home);
    let refused = |more: &[&str], status: i32, said: &str| {
        home.run(&[&["serve", "--size", "1M"], more].concat())
            .refused(status, said);
    };
    refused(
        &["--tls-cert", &cert],
        2,
        "--tls-cert: needs its private key",
    );
    refused(&["--tls-key", &key], 2, "--tls-key: needs its certificate");
    refused(&["--tls-required"], 2, "--tls-required: needs");
    refused(&["--tls-client-ca", &cert], 2, "--tls-client-ca: needs");
    let swapped = ["--tls-cert", key.as_str(), "--tls-key", &cert];
    refused(&swapped, 2, "cert.pem: holds no private key");
    let missing = ["--tls-cert", "/nonexistent", "--tls-key", &key];
    refused(&missing, 1, "/nonexistent: cannot be read");
    assert!(!home.state().exists() || home.files().is_empty());
}

#[test]
fn disks_at_one_address_share_its_tls_and_the_first_is_the_default() {
    let home = Home::new();
    let (cert, key) = certificate(&home);
    let other = tempfile::tempdir().unwrap();
    let copy = |from: &str| -> PathBuf {
        let to = other.path().join(Path::new(from).file_name().unwrap());
        std::fs::copy(from, &to).unwrap();
        to
    };
    let socket = home.dir.path().join("socket");
    let at = ["--size", "1M", "--socket", socket.to_str().unwrap()];
    let tls = ["--tls-cert", cert.as_str(), "--tls-key", key.as_str()];
    let _served = home.serve(&[&at[..], &tls, &["--name", "a"]].concat());
    let add = |more: &[&str]| home.run(&[&["add"], &at[..], more].concat());
    assert_eq!(add(&["--name", "b"]).status, 0);
    assert_eq!(add(&[&tls[..], &["--name", "c"]].concat()).status, 0);
    let (cert, key) = (copy(&cert), copy(&key));
    let others = [
        "--tls-cert",
        cert.to_str().unwrap(),
        "--tls-key",
        key.to_str().unwrap(),
    ];
    let ran = add(&[&others[..], &["--name", "d"]].concat());
    assert!(
        ran.status != 0 && ran.stderr.contains("other TLS options"),
        "{ran:?}"
    );
    if has("nbdinfo") {
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        let ask = |arguments: &[&str]| {
            let output = Command::new("nbdinfo").args(arguments).arg(&uri).output();
            String::from_utf8_lossy(&output.unwrap().stdout).into_owned()
        };
        // Offered and not required: the clear works as well.
        let listed = ask(&["--list", "--json"]);
        for name in ["\"a\"", "\"b\"", "\"c\""] {
            assert!(listed.contains(name), "{listed}");
        }
        assert!(
            ask(&["--json"]).contains("\"export-name\": \"a\""),
            "{}",
            ask(&["--json"])
        );
    }
}

#[test]
fn whoever_needs_a_certificate_needs_tls_everywhere() {
    let home = Home::new();
    let (cert, key) = certificate(&home);
    let checked = [
        "--size",
        "1M",
        "--tls-cert",
        &cert,
        "--tls-key",
        &key,
        "--tls-client-ca",
        &cert,
    ];
    let socket = home.dir.path().join("socket");
    let unix = ["--socket", socket.to_str().unwrap()];
    let served = home.serve(&[&checked[..], &unix].concat());
    let uri = served.fact("URI");
    assert!(uri.starts_with("nbds+unix:///"), "{uri}");
    let in_the_clear = UnixStream::connect(&socket).unwrap();
    assert_eq!(answer_to_go(in_the_clear), ERR_TLS_REQD);
    let in_the_clear = NbdClient::connect(&socket, "uzram0");
    assert!(in_the_clear.is_err(), "without a certificate");

    let loopback = ["--listen", "127.0.0.1:0"];
    let served = home.serve(&[&checked[..], &loopback].concat());
    let in_the_clear = TcpStream::connect(tcp_address(&served)).unwrap();
    assert_eq!(answer_to_go(in_the_clear), ERR_TLS_REQD);
}

/// Where a server with a TCP address listens.
fn tcp_address(served: &Served) -> &str {
    let uri = served.fact("URI");
    let address = uri.split("//").nth(1).unwrap();
    address.split('/').next().unwrap()
}

#[test]
fn a_socket_that_other_machines_reach_is_served_with_tls_or_not_at_all() {
    let home = Home::new();
    let (cert, key) = certificate(&home);
    let open = || TcpListener::bind("0.0.0.0:0").unwrap();
    let serve = |socket: &TcpListener, args: &[&str]| {
        let socket = socket.try_clone().unwrap();
        activated(&home, socket.into(), "nbd", args)
            .spawn()
            .unwrap()
    };
    // Without TLS: refused, never warned of.
    let refused = serve(&open(), &["--size", "1M"])
        .wait_with_output()
        .unwrap();
    let text = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{text}");
    assert!(
        text.contains("other machines could read and write"),
        "{text}"
    );

    // With certificates: no bytes of the disk in the clear, from the command line or a file.
    let config = home.dir.path().join("uzram.toml");
    let text = format!("[d]\nsize = \"1M\"\ntls-cert = {cert:?}\ntls-key = {key:?}\n");
    std::fs::write(&config, text).unwrap();
    let by_flags = ["--size", "1M", "--tls-cert", &cert, "--tls-key", &key];
    let by_file = ["--config", config.to_str().unwrap()];
    for args in [&by_flags[..], &by_file] {
        let socket = open();
        let mut served = Served::of(serve(&socket, args));
        served.wait_until_ready();
        assert!(
            served.fact("URI").starts_with("nbds://0.0.0.0:"),
            "{}",
            served.said
        );
        let port = socket.local_addr().unwrap().port();
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(answer_to_go(stream), ERR_TLS_REQD);
    }

    // At this machine's own address TLS may be used and need not be.
    let local = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut served = Served::of(serve(&local, &by_flags));
    served.wait_until_ready();
    let stream = TcpStream::connect(local.local_addr().unwrap()).unwrap();
    assert_ne!(answer_to_go(stream), ERR_TLS_REQD);
    drop(served);

    // Who wants it open says so.
    let mut served = Served::of(serve(&open(), &["--size", "1M", "--insecure"]));
    served.wait_until_ready();
    let refused = home.run(&["add", "--size", "1M", "--name", "late"]);
    assert!(
        refused.stderr.contains("other machines could"),
        "{refused:?}"
    );
}
