//! TLS from the command line: files in, who must use it, and what is refused.

use std::path::{Path, PathBuf};
use std::process::Command;

use rcgen::CertifiedKey;

use crate::support::Home;

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
    served.signal("TERM");
    assert_eq!(served.wait(), Some(0));
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
