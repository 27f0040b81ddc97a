//! Sockets: modes, stale ones, ones in use, and what is refused.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use uzram::{Error, ErrorKind};
use uzram_frontends::nbd::{Endpoint, Exports, Limits, SOCKET_PATH_BYTES_MAX, Server};

use crate::device::Bytes;
use crate::{client, export};

fn bind(endpoint: &Endpoint) -> Result<Server, Error> {
    let exports = Exports::new();
    exports.add(export("disk", Bytes::new(4096))).unwrap();
    Server::bind(endpoint, Arc::new(exports), Limits::default())
}

fn bind_unix(path: &Path) -> Result<Server, Error> {
    bind(&Endpoint::Unix(path.into()))
}

#[test]
fn a_socket_is_private_and_goes_with_its_server() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let server = bind_unix(&path).unwrap();
    let metadata = fs::symlink_metadata(&path).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.mode() & 0o777, 0o600);
    // Bound, not yet spawned: dropping it cleans up as well.
    drop(server);
    assert!(!path.exists());
}

#[test]
fn a_socket_is_never_more_open_than_0600_whatever_the_umask() {
    // The umask belongs to the whole process, so this runs in one of its own: this test, again.
    const MARK: &str = "UZRAM_TEST_SOCKET_UNDER_UMASK";
    if let Some(path) = std::env::var_os(MARK) {
        // Often, since a moment of openness is short.
        for round in 0..300 {
            let path = std::path::PathBuf::from(&path).with_extension(round.to_string());
            let watched = path.clone();
            let watch = std::thread::spawn(move || {
                loop {
                    if let Ok(metadata) = fs::symlink_metadata(&watched) {
                        return metadata.mode() & 0o777;
                    }
                }
            });
            let _server = bind_unix(&path).unwrap();
            assert_eq!(watch.join().unwrap(), 0o600);
        }
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let test = "endpoint::a_socket_is_never_more_open_than_0600_whatever_the_umask";
    let status = std::process::Command::new("sh")
        .args(["-c", "umask 0; exec \"$0\" --exact \"$1\""])
        .arg(std::env::current_exe().unwrap())
        .arg(test)
        .env(MARK, directory.path().join("s"))
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    // Closed without being unlinked, as after a crash.
    drop(UnixListener::bind(&path).unwrap());
    let first = bind_unix(&path).unwrap();
    let error = bind_unix(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    let text = format!(
        "socket {}: a server is listening there; stop it or choose another path",
        path.display()
    );
    assert_eq!(error.to_string(), text);
    // The loser has not touched the winner's socket.
    let _handle = first.spawn().unwrap();
    client::Client::go(client::unix(&path), "disk");
}

#[test]
fn of_many_servers_that_find_a_stale_socket_one_wins() {
    for _ in 0..20 {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        let servers: Vec<_> = std::thread::scope(|scope| {
            let binding: Vec<_> = (0..4).map(|_| scope.spawn(|| bind_unix(&path))).collect();
            binding
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        let winners: Vec<_> = servers.into_iter().flatten().collect();
        assert_eq!(winners.len(), 1);
        let _handles: Vec<_> = winners
            .into_iter()
            .map(|winner| winner.spawn().unwrap())
            .collect();
        client::Client::go(client::unix(&path), "disk");
    }
}

#[test]
fn a_server_removes_no_socket_but_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let first = bind_unix(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let _second = bind_unix(&path).unwrap();
    drop(first);
    assert!(path.exists());
}

#[test]
fn paths_that_cannot_be_are_refused_with_a_reason() {
    let directory = tempfile::tempdir().unwrap();
    let refused = |path: &Path| {
        let error = bind_unix(path).unwrap_err();
        (error.kind(), error.to_string())
    };
    let fill = SOCKET_PATH_BYTES_MAX - directory.path().as_os_str().len() - 1;
    let longest = directory.path().join("x".repeat(fill));
    drop(bind_unix(&longest).unwrap());
    let (kind, text) = refused(&directory.path().join("x".repeat(fill + 1)));
    assert_eq!(kind, ErrorKind::InvalidInput);
    assert!(text.ends_with("108 bytes, must be 1 to 107"), "{text}");
    assert_eq!(refused(Path::new("")).0, ErrorKind::InvalidInput);
    let (kind, text) = refused(&directory.path().join("missing/s"));
    assert_eq!(kind, ErrorKind::Io);
    assert!(
        text.contains("its directory does not exist; create it"),
        "{text}"
    );
    let file = directory.path().join("file");
    fs::write(&file, "precious").unwrap();
    let (kind, text) = refused(&file);
    assert_eq!(kind, ErrorKind::Busy);
    assert!(text.contains("exists and is not a socket"), "{text}");
    assert_eq!(fs::read(&file).unwrap(), b"precious");
}

#[test]
fn a_port_in_use_is_refused() {
    let first = bind(&Endpoint::Tcp(([127, 0, 0, 1], 0).into())).unwrap();
    let endpoint = first.endpoint().clone();
    let error = bind(&endpoint).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains("choose another port"), "{error}");
    let error = bind(&Endpoint::Tcp(([192, 0, 2, 1], 0).into())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

/// Where the kernel has no vsock the error says so. Clients connect in the guest's test `vsock`.
#[test]
fn a_port_of_vsock_is_free_or_in_use_or_the_kernel_has_none() {
    let any = Endpoint::Vsock(u32::MAX);
    let first = match bind(&any) {
        Ok(first) => first,
        Err(error) => {
            let text = error.to_string();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{text}");
            assert!(text.contains("no vsock; load its module"), "{text}");
            return;
        }
    };
    let chosen = first.endpoint().clone();
    assert_ne!(chosen, any);
    let error = bind(&chosen).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains("choose another port"), "{error}");
}

#[test]
fn uris_escape_what_means_something_in_them() {
    let unix = Endpoint::Unix("/tmp/a b&c?#%/s.sock".into());
    assert_eq!(
        unix.uri("x/y z"),
        "nbd+unix:///x/y%20z?socket=/tmp/a%20b%26c%3F%23%25/s.sock"
    );
    let vsock = Endpoint::Vsock(10809);
    assert_eq!(vsock.uri("x/y z"), "nbd+vsock://1:10809/x/y%20z");
    assert_eq!(vsock.uri_tls("d"), "nbds+vsock://1:10809/d");
    assert!(!vsock.is_loopback());
    let v6 = Endpoint::Tcp("[::1]:10809".parse().unwrap());
    assert_eq!(v6.to_string(), "nbd://[::1]:10809/");
    assert!(v6.is_loopback());
    assert!(Endpoint::Tcp("[::ffff:127.0.0.1]:1".parse().unwrap()).is_loopback());
    assert!(!Endpoint::Tcp("0.0.0.0:1".parse().unwrap()).is_loopback());
    assert!(!Endpoint::Tcp("[::]:1".parse().unwrap()).is_loopback());
}
