//! Common uses of a disk: file systems, trees of files, fio, filling it up, giving memory back.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use uzram_testkit::copy_program;

use crate::attach::{Machine, installed, no_dead_disks, run, text};
use crate::cgroup::Cgroup;
use crate::support::{Served, eventually};

const NOBODY: u32 = 65534;

/// Whether the kernel can mount `fs`, now or after it has loaded a module.
fn is_mountable(fs: &str) -> bool {
    let _ = Command::new("modprobe").args(["-q", fs]).status();
    let known = fs::read_to_string("/proc/filesystems").unwrap();
    let is_there = known.lines().any(|line| line.trim() == fs);
    if !is_there {
        eprintln!("left out: this kernel has no {fs}");
    }
    is_there
}

/// A tree that somebody wrote: the sources of the workspace's crates.
fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

/// Up with the file system, a tree in it, checked by its own checker and read back from the disk.
fn holds_a_tree(fs: &str, size: &str, check: &[&str]) {
    let Some(machine) = Machine::new() else {
        return;
    };
    let mkfs = format!("mkfs.{fs}");
    if !installed(&[&mkfs, check[0], "tar", "diff"]) || !is_mountable(fs) {
        return;
    }
    let _alone = (fs == "btrfs").then(no_dead_disks);
    let mnt = machine.directory.to_str().unwrap();
    let up = machine
        .home
        .run(&["up", "--size", size, "--mount", mnt, "--fs", fs]);
    assert_eq!(up.status, 0, "{up:?}");
    let device = machine.loops().remove(0);
    let device = device.to_str().unwrap();
    let sources = sources();
    let script = "tar -C \"$1\" -cf - . | tar -C \"$2\" -xf -";
    run("sh", &["-ec", script, "sh", sources.to_str().unwrap(), mnt]);
    run("umount", &[mnt]);
    run(check[0], &[&check[1..], &[device]].concat());
    // Anew, so that nothing of it is in the page cache.
    run("mount", &["-t", fs, device, mnt]);
    let lost = "lost+found";
    run(
        "diff",
        &[
            "-r",
            "--no-dereference",
            "-x",
            lost,
            sources.to_str().unwrap(),
            mnt,
        ],
    );
    let down = machine.home.run(&["down", mnt]);
    assert_eq!(down.status, 0, "{down:?}");
    machine.is_clean();
}

#[test]
fn ext4_holds_a_tree() {
    holds_a_tree("ext4", "128M", &["fsck.ext4", "-f", "-n"]);
}

#[test]
fn xfs_holds_a_tree() {
    holds_a_tree("xfs", "320M", &["xfs_repair", "-n"]);
}

#[test]
fn btrfs_holds_a_tree() {
    holds_a_tree("btrfs", "256M", &["btrfs", "check", "--readonly"]);
}

#[test]
fn fio_finds_what_it_wrote_in_any_sizes() {
    let Some(machine) = Machine::with(&["fio"]) else {
        return;
    };
    let mut served = machine.home.serve(&["--size", "64M", "--attach", "loop"]);
    let device = format!("--filename={}", served.fact("path"));
    run(
        "fio",
        &[
            "--name=mixed",
            &device,
            "--ioengine=libaio",
            "--direct=1",
            "--rw=randrw",
            "--bsrange=4k-256k",
            "--blockalign=4k",
            "--iodepth=32",
            "--numjobs=4",
            "--size=16M",
            "--offset_increment=16M",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
            "--buffer_compress_percentage=50",
            "--refill_buffers",
            "--group_reporting",
        ],
    );
    let stat = machine.home.json(&["stat", "uzram0", "--json"]);
    assert!(
        stat["orig_data_size"].as_u64().unwrap() > 32 << 20,
        "{stat}"
    );
    served.ends();
    machine.is_clean();
}

/// The server alone is in a cgroup: what the system has given it, whatever it says itself.
#[test]
fn what_is_trimmed_goes_back_to_the_system() {
    let Some(machine) = Machine::with(&["mkfs.ext4", "fstrim", "blkdiscard"]) else {
        return;
    };
    let Some(cgroup) = Cgroup::new("trim", None) else {
        return;
    };
    let arguments = ["--size", "256M", "--attach", "loop"];
    let mut served = Served::of(
        cgroup
            .within(&machine.home.command(&[&["serve"], &arguments[..]].concat()))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    served.wait_until_ready();
    let device = served.fact("path").to_owned();
    let mnt = machine.directory.to_str().unwrap();
    run("mkfs.ext4", &["-q", "-F", &device]);
    run("mount", &[&device, mnt]);
    let fill = |name: &str| fs::write(machine.directory.join(name), text(5, 96 << 20)).unwrap();
    let empty = cgroup.usage_bytes();
    fill("a");
    rustix::fs::sync();
    let full = cgroup.usage_bytes();
    assert!(full > empty + (40 << 20), "{empty} bytes, then {full}");
    fs::remove_file(machine.directory.join("a")).unwrap();
    rustix::fs::sync();
    run("fstrim", &[mnt]);
    let is_back = || cgroup.usage_bytes() < empty + (full - empty) / 4;
    eventually("memory back after fstrim", is_back);
    fill("b");
    run("umount", &[mnt]);
    assert!(cgroup.usage_bytes() > empty + (40 << 20));
    run("blkdiscard", &[&device]);
    eventually("memory back after blkdiscard", is_back);
    served.ends();
    machine.is_clean();
}

/// A file system on a disk whose memory ends first: errors, then room again for what is deleted, and
/// nothing else is harmed.
#[test]
fn a_file_system_that_meets_the_limit_goes_on() {
    let Some(machine) = Machine::with(&["mkfs.ext4", "fsck.ext4", "fstrim"]) else {
        return;
    };
    let mnt = machine.directory.to_str().unwrap();
    let up = machine
        .home
        .run(&["up", "--size", "128M", "--mount", mnt, "--mem-limit", "16M"]);
    assert_eq!(up.status, 0, "{up:?}");
    let device = machine.loops().remove(0);
    let early = text(1, 4 << 20);
    let write = |name: &str, content: &[u8]| {
        let mut file = File::create(machine.directory.join(name))?;
        file.write_all(content)?;
        file.sync_all()
    };
    write("early", &early).unwrap();
    let error = write("late", &text(2, 64 << 20)).unwrap_err();
    assert!(matches!(error.raw_os_error(), Some(28 | 5)), "{error}");
    let stat = machine.home.json(&["stat", "uzram0", "--json"]);
    assert!(stat["mem_used_max"].as_u64().unwrap() <= 16 << 20, "{stat}");
    fs::remove_file(machine.directory.join("late")).unwrap();
    let _ = write("little", b"");
    run("fstrim", &[mnt]);
    write("after", &text(3, 2 << 20)).unwrap();
    run("umount", &[mnt]);
    run("fsck.ext4", &["-f", "-n", device.to_str().unwrap()]);
    run("mount", &[device.to_str().unwrap(), mnt]);
    assert!(fs::read(machine.directory.join("early")).unwrap() == early);
    assert!(fs::read(machine.directory.join("after")).unwrap() == text(3, 2 << 20));
    let down = machine.home.run(&["down", mnt]);
    assert_eq!(down.status, 0, "{down:?}");
    machine.is_clean();
}

/// A user who is not root attaches a disk as a file through fusermount3, and detaches it.
#[test]
fn nobody_has_a_disk_as_a_file() {
    let Some(machine) = Machine::with(&["fusermount3", "unshare", "mknod"]) else {
        return;
    };
    let home = machine.home.dir.path();
    chown(home, Some(NOBODY), Some(NOBODY)).unwrap();
    let binary = home.join("program");
    copy_program(env!("CARGO_BIN_EXE_uzram"), &binary);
    // A device node that everybody may open, as udev makes it, in mount namespaces of their own: what
    // these tests mount goes with the script.
    let script = r#"
        mount -t tmpfs tmpfs "$PWD/mnt"
        mknod -m 666 "$PWD/mnt/fuse" c 10 229
        mount --bind "$PWD/mnt/fuse" /dev/fuse
        cat > "$PWD/use" << 'END'
            set -eu
            ./program serve --size 16M --attach fuse > said 2>&1 &
            server=$!
            until grep -q Ctrl-C said; do kill -0 "$server"; sleep 0.05; done
            file=$(sed -n 's/^ *path *//p' said)
            [ "$(stat -c %u "$file")" = 65534 ]
            head -c 1000000 program > part
            dd if=part of="$file" conv=notrunc bs=64k status=none
            cmp -n 1000000 part "$file"
            grep -q "uzram0 $PWD/uzram/uzram0.fuse fuse.uzram" /proc/self/mounts
            kill "$server"
            wait "$server"
            # Other tests' mounts are here too.
            if grep -q "$PWD/uzram/uzram0.fuse" /proc/self/mounts; then exit 1; fi
            # Of one that was killed the name is free again, by down and by itself.
            start() {
                : > said
                ./program serve --size 16M --attach fuse --name dead > said 2>&1 &
                server=$!
                until grep -q Ctrl-C said; do kill -0 "$server"; sleep 0.05; done
            }
            start
            kill -9 "$server"
            wait "$server" || true
            ./program list | grep -q 'uzram down dead cleans up'
            ./program down dead
            if grep -q "$PWD/uzram/dead.fuse" /proc/self/mounts; then exit 1; fi
            start
            kill -9 "$server"
            wait "$server" || true
            start
            kill "$server"
            wait "$server"
            if grep -q "$PWD/uzram/dead.fuse" /proc/self/mounts; then exit 1; fi
END
        setpriv --reuid 65534 --regid 65534 --clear-groups sh "$PWD/use"
    "#;
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-euc", script])
        .current_dir(home)
        .env("XDG_RUNTIME_DIR", home)
        .output()
        .unwrap();
    let said = fs::read_to_string(home.join("said")).unwrap_or_default();
    assert!(output.status.success(), "{output:?}\n{said}");
}
