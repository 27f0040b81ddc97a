//! The control socket of a real server against clients that are not `uzram`.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::support::{Home, is_root};

fn answer(path: &Path, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

#[test]
fn every_request_gets_one_line() {
    let home = Home::new();
    let mut served = home.serve(&["--size", "1M", "--name", "d"]);
    let path = home.state().join("0.control");
    for (bytes, said) in [
        (&b"{\"op\":\"stat\",\"name\":\"e\"}\n"[..], "no device"),
        (b"{\"op\":\"stat\",\"name\":\"\\u001b[31m\"}\n", "no device"),
        (
            b"{\"op\":\"set\",\"name\":\"d\",\"attribute\":\"x\",\"value\":\"1\"}\n",
            "no attribute",
        ),
        (
            b"{\"op\":\"set\",\"name\":\"d\",\"attribute\":\"pid\",\"value\":\"1\"}\n",
            "read-only",
        ),
        (
            b"{\"op\":\"set\",\"name\":\"d\",\"attribute\":\"reset\",\"value\":\"0\"}\n",
            "write 1",
        ),
        (
            b"{\"op\":\"set\",\"name\":\"d\",\"attribute\":\"mem_limit\",\"value\":\"-\"}\n",
            "negative",
        ),
        (
            b"{\"op\":\"set\",\"name\":\"d\",\"attribute\":\"mem_used_max\",\"value\":\"1\"}\n",
            "only 0",
        ),
        (b"GET / HTTP/1.1\r\n\r\n", "malformed"),
        (b"NBDMAGICIHAVEOPT", "malformed"),
        (&[0; 100_000], "over 4096 bytes"),
        (&[b'['; 4000], "malformed"),
        (b"\n\n\n\n", "malformed"),
    ] {
        let reply = answer(&path, bytes);
        assert_eq!(reply.matches('\n').count(), 1, "{reply}");
        let reply: serde_json::Value = serde_json::from_str(&reply).unwrap();
        assert_eq!(reply["ok"], false);
        assert!(
            reply["error"].as_str().unwrap().contains(said),
            "{said}: {reply}"
        );
    }
    let set = b"{\"op\":\"set\",\"name\":\"d\",\"attribute\":\"mem_limit\",\"value\":\"64K\"}\n";
    assert_eq!(answer(&path, set), "{\"ok\":true}\n");
    assert_eq!(home.json(&["stat", "d", "--json"])["mem_limit"], 65536);
    // Connections that say nothing do not keep it from ending.
    let _silent: Vec<_> = (0..8)
        .map(|_| UnixStream::connect(&path).unwrap())
        .collect();
    served.ends();
}

/// Run in another process as another user by the next test.
#[test]
fn helper_asks_as_somebody_else() {
    if let Some(path) = std::env::var_os("UZRAM_TEST_CONTROL") {
        print!(
            "answer: {}",
            answer(Path::new(&path), b"{\"op\":\"list\"}\n")
        );
    }
}

#[test]
fn other_users_are_refused_even_where_the_modes_let_them_in() {
    if !is_root() {
        return eprintln!("left out: only root can become another user");
    }
    let home = Home::new();
    let _served = home.serve(&["--size", "1M", "--name", "d"]);
    let path = home.state().join("0.control");
    let own_directory = home.dir.path().to_owned();
    for opened in [&own_directory, &home.state(), &path] {
        std::fs::set_permissions(opened, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "control_socket::helper_asks_as_somebody_else",
            "--nocapture",
        ])
        .env("UZRAM_TEST_CONTROL", &path)
        .uid(65534)
        .output();
    let output = match output {
        Ok(output) => output,
        Err(e) => {
            return eprintln!(
                "left out: others cannot run {:?}: {e}",
                std::env::current_exe()
            );
        }
    };
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("only the server's own user and root may ask"),
        "{text}"
    );
    assert!(!text.contains("disksize"), "{text}");
}
