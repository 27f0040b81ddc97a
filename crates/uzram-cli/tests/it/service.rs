//! The service manager's side: readiness, a watchdog, sockets handed over.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::process::{Command, Stdio};

use crate::nbd_client::NbdClient;
use crate::support::{Home, PATIENCE, Served, eventually};

#[test]
fn the_manager_is_told_what_happens() {
    let home = Home::new();
    let path = home.dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let heard = || {
        let mut buffer = [0; 500];
        let count = manager
            .recv(&mut buffer)
            .expect("the manager hears nothing");
        String::from_utf8(buffer[..count].to_vec()).unwrap()
    };
    let until = |wanted: &str| while !heard().contains(wanted) {};
    let config = home.dir.path().join("uzram.toml");
    std::fs::write(&config, "[d]\nsize = \"1M\"\n").unwrap();
    let mut command = home.command(&["serve", "--config", config.to_str().unwrap()]);
    command
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "30000");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut served = Served::of(command.spawn().unwrap());
    until("READY=1\nSTATUS=serving d");
    NbdClient::connect(&home.state().join("d.nbd"), "d")
        .expect("ready means that clients can connect");
    until("WATCHDOG=1");
    served.signal("HUP");
    until("RELOADING=1\nMONOTONIC_USEC=");
    until("READY=1");
    served.signal("TERM");
    until("STOPPING=1");
    assert_eq!(served.wait(), Some(0));
}

#[test]
fn a_manager_that_cannot_be_reached_keeps_nobody_from_the_disk() {
    let home = Home::new();
    for address in ["/nowhere/notify", "relative", "@uzram-test-nobody-listens"] {
        let mut command = home.command(&["serve", "--size", "1M"]);
        command.env("NOTIFY_SOCKET", address);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut served = Served::of(command.spawn().unwrap());
        served.wait_until_ready();
        served.ends();
        let log = served.stderr();
        assert!(
            log.contains(&format!("warning: NOTIFY_SOCKET {address}")),
            "{log}"
        );
    }
}

/// `serve` with `socket` as descriptor 3, as a manager hands it over under `name`.
pub fn activated(home: &Home, socket: OwnedFd, name: &str, args: &[&str]) -> Command {
    // The variable names the process, which stays the same across exec.
    let script = "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" serve \"$@\" 3<&0 </dev/null";
    let mut command = Command::new("sh");
    command
        .args(["-c", script, env!("CARGO_BIN_EXE_uzram")])
        .args(args);
    command
        .env("XDG_RUNTIME_DIR", home.dir.path())
        .env("LISTEN_FDNAMES", name);
    command
        .stdin(socket)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

#[test]
fn a_socket_that_is_handed_over_is_served_and_left() {
    let home = Home::new();
    let path = home.dir.path().join("uzram.sock");
    let socket = UnixListener::bind(&path).unwrap();
    // Connected before the server is there, as with activation on demand.
    let early = std::thread::spawn({
        let path = path.clone();
        move || NbdClient::connect(&path, "uzram0")
    });
    let mut command = activated(&home, socket.into(), "uzram.socket", &["--size", "1M"]);
    let mut served = Served::of(command.spawn().unwrap());
    served.wait_until_ready();
    assert!(served.fact("URI").contains("uzram.sock"), "{}", served.said);
    let mut client = early.join().unwrap().unwrap();
    assert_eq!(client.write(0, &[7; 4096]).unwrap(), 0);
    assert_eq!(home.run(&["add", "--size", "1M", "--name", "b"]).status, 0);
    NbdClient::connect(&path, "b").expect("a disk that is added is served there too");
    assert!(
        !home.files().iter().any(|file| file.ends_with(".nbd")),
        "{:?}",
        home.files()
    );
    drop(client);
    for name in ["uzram0", "b"] {
        eventually("the client is gone", || {
            home.run(&["remove", name]).status == 0
        });
    }
    assert_eq!(home.run(&["add", "--size", "1M", "--name", "c"]).status, 0);
    NbdClient::connect(&path, "c").expect("the socket outlives the disks");
    served.ends();
    assert!(path.exists(), "the path is the manager's");
}

#[test]
fn a_disk_that_is_added_does_not_open_a_socket_either() {
    let home = Home::new();
    let socket = TcpListener::bind("[::]:0").unwrap();
    let config = home.dir.path().join("uzram.toml");
    std::fs::write(&config, "").unwrap();
    let args = ["--config", config.to_str().unwrap()];
    let mut served = Served::of(
        activated(&home, socket.into(), "nbd", &args)
            .spawn()
            .unwrap(),
    );
    served.wait_until_ready();
    home.run(&["add", "--size", "1M"])
        .refused(1, "other machines could read and write the disk");
    home.run(&["add", "--size", "1M", "--insecure"]);
    assert_eq!(home.json(&["list", "--json"]).as_array().unwrap().len(), 1);
}

#[test]
fn a_descriptor_that_is_no_listening_socket_is_refused() {
    let home = Home::new();
    let file = tempfile::tempfile().unwrap();
    let output = activated(&home, file.into(), "x", &["--size", "1M"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("inherited socket 0 \"x\": must be a Unix or TCP socket"),
        "{text}"
    );
    let (connected, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let output = activated(&home, connected.into(), "x", &["--size", "1M"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}
