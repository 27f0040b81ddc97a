//! Disks of virtual machines: the socket, who uses it, and QEMU as a guest's owner.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use crate::support::{Home, eventually};

#[test]
fn a_disk_of_guests_is_listed_and_says_who_uses_it() {
    let home = Home::new();
    let served = home.serve(&["--size", "1M", "--name", "d", "--attach", "vhost-user"]);
    let socket = home.state().join("d.vhost");
    assert!(
        served.said.contains("vhost-user-blk-pci"),
        "{}",
        served.said
    );
    assert!(
        served.said.contains(&socket.display().to_string()),
        "{}",
        served.said
    );
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let listed = home.json(&["list", "--json"]);
    let endpoint = format!("vhost-user:{}", socket.display());
    assert_eq!(listed[0]["endpoint"], endpoint.as_str());
    assert_eq!(listed[0]["connections"], 0);
    assert_ne!(listed[0]["sandbox"], "off");

    let connected = UnixStream::connect(&socket).unwrap();
    eventually("the connection is counted", || {
        home.json(&["list", "--json"])[0]["connections"] == 1
    });
    let me = format!("process {}", std::process::id());
    for command in [
        &["remove", "d"][..],
        &["reset", "d"],
        &["set", "d", "read_only", "1"],
    ] {
        let refused = home.run(command);
        refused.refused(1, &me);
    }
    drop(connected);
    eventually("it is free again", || {
        home.run(&["set", "d", "read_only", "1"]).status == 0
    });
    assert_eq!(home.run(&["reset", "d"]).status, 0);

    let _held = UnixStream::connect(&socket).unwrap();
    assert_eq!(home.run(&["remove", "--force", "d"]).status, 0);
    assert!(!socket.exists());
    assert_eq!(home.json(&["list", "--json"]), serde_json::json!([]));
}

#[test]
fn sockets_are_one_disk_s_and_dead_ones_are_replaced() {
    let home = Home::new();
    let place = home.dir.path().join("vm.sock");
    let path = place.to_str().unwrap();
    let options = ["--size", "1M", "--attach", "vhost-user", "--socket", path];
    let mut served = home.serve(&[&options[..], &["--name", "a"]].concat());
    let busy = home.run(&[&["add", "--name", "b"], &options[..]].concat());
    assert_eq!(busy.status, 1, "{busy:?}");
    // With a sandbox the server cannot find out; the second start below can.
    let taken = ["exists already", "a server is listening there"];
    assert!(
        taken.iter().any(|said| busy.stderr.contains(said)),
        "{busy:?}"
    );
    home.run(&[&["serve", "--name", "b"], &options[..]].concat())
        .refused(1, "a server is listening there");
    served.child.kill().unwrap();
    served.child.wait().unwrap();
    assert!(place.exists());
    let again = home.serve(&[&options[..], &["--name", "a"]].concat());
    UnixStream::connect(&place).unwrap();
    drop(again);
    for (options, said) in [
        (&["--listen", "127.0.0.1:0"][..], "Unix socket"),
        (&["--tls-cert", "/x", "--tls-key", "/y"], "Unix socket"),
        (&["--for-swap"], "in the guest"),
    ] {
        let base = ["serve", "--attach", "vhost-user", "--size", "1M"];
        let refused = home.run(&[&base[..], options].concat());
        assert_ne!(refused.status, 0, "{options:?}");
        assert!(refused.stderr.contains(said), "{refused:?}");
    }
}

/// QEMU without a guest's system: its firmware asks for the configuration, and no more.
struct Qemu(Child);

impl Qemu {
    fn start(socket: &str) -> Option<Qemu> {
        let mut command = Command::new("qemu-system-x86_64");
        command.args([
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-m",
            "64M",
            "-S",
        ]);
        command.args(["-machine", "q35,memory-backend=m", "-accel", "tcg"]);
        command.args(["-object", "memory-backend-memfd,id=m,size=64M,share=on"]);
        command.args(["-chardev", &format!("socket,id=d,path={socket}")]);
        command.args(["-device", "vhost-user-blk-pci,chardev=d,num-queues=2"]);
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        command.spawn().ok().map(Qemu)
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn qemu_takes_a_disk_and_a_second_one_is_refused() {
    let home = Home::new();
    let _served = home.serve(&["--size", "1G", "--name", "d", "--attach", "vhost-user"]);
    let socket = home.state().join("d.vhost");
    let Some(first) = Qemu::start(socket.to_str().unwrap()) else {
        return eprintln!("left out: no qemu-system-x86_64");
    };
    is_user(&home, &first);
    let mut second = Qemu::start(socket.to_str().unwrap()).unwrap();
    let status = second.0.wait().unwrap();
    assert!(!status.success());
    drop(first);
    eventually("QEMU is gone", || {
        home.json(&["list", "--json"])[0]["connections"] == 0
    });
    let again = Qemu::start(socket.to_str().unwrap()).unwrap();
    is_user(&home, &again);
}

fn is_user(home: &Home, qemu: &Qemu) {
    eventually("QEMU is connected", || {
        home.json(&["list", "--json"])[0]["connections"] == 1
    });
    let user = format!("process {}", qemu.0.id());
    home.run(&["remove", "d"]).refused(1, &user);
}
