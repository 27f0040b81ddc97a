//! The lines that `serve` tells people to type, typed.

use std::process::{Command, Stdio};

use crate::support::{Home, Served};

/// The lines under "To use it", without their comments.
fn lines(served: &Served) -> Vec<String> {
    let lines = served
        .said
        .lines()
        .skip_while(|line| !line.starts_with("To use it"));
    let lines = lines.skip(1).take_while(|line| !line.is_empty());
    lines
        .map(|line| line.split("  # ").next().unwrap().trim().to_owned())
        .collect()
}

fn is_installed(program: &str) -> bool {
    let mut found = Command::new("sh");
    found.args(["-c", &format!("command -v {program}")]);
    found.stdout(Stdio::null()).status().unwrap().success()
}

fn type_them(served: &Served, home: &Home) {
    let lines = lines(served);
    let (uri, lines) = lines.split_first().unwrap();
    assert!(uri.starts_with("URI='nbd"), "{uri}");
    let image: Vec<u8> = (0..4 << 20).map(|i: u32| (i / 5000) as u8).collect();
    std::fs::write(home.dir.path().join("disk.img"), image).unwrap();
    for line in lines {
        let program = line.split(' ').next().unwrap();
        // One needs a kernel module and root, the other FUSE and a directory to unmount.
        if matches!(program, "nbd-client" | "mkdir") {
            continue;
        }
        if !is_installed(program) {
            eprintln!("left out: {program} is not installed: {line}");
            continue;
        }
        let prepare = match program {
            "qemu-img" => "qemu-img convert -O qcow2 disk.img disk.qcow2 &&",
            _ => "",
        };
        let script = format!("{uri}; {prepare} {line}");
        let mut command = Command::new("sh");
        let output = command
            .args(["-c", &script])
            .current_dir(home.dir.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
    }
}

#[test]
fn over_a_unix_socket() {
    let home = Home::new();
    let socket = home.dir.path().join("a 'quoted' socket");
    let served = home.serve(&["--size", "64M", "--socket", socket.to_str().unwrap()]);
    type_them(&served, &home);
    if is_installed("nbdcopy") {
        let stat = home.json(&["stat", "uzram0", "--json"]);
        assert!(
            stat["orig_data_size"].as_u64().unwrap() >= 4 << 20,
            "{stat}"
        );
        assert_eq!(stat["failed_writes"], 0);
    }
}

#[test]
fn over_tcp() {
    let home = Home::new();
    let served = home.serve(&["--size", "64M", "--listen", "127.0.0.1:0"]);
    type_them(&served, &home);
}
