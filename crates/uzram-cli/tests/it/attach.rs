//! Disks as files and block devices of this machine, driven by the programs that people use.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::support::{Home, Served, eventually, is_root};

/// A home whose attachments go with the test, whatever became of their servers.
pub struct Machine {
    pub home: Home,
    /// Where tests mount file systems.
    pub directory: PathBuf,
    /// Lost ones of whoever was here before.
    lost_before: BTreeSet<PathBuf>,
    /// Held, shared, once a server was killed.
    dead: OnceLock<File>,
}

/// Held, alone, by who may not meet disks whose servers were killed: btrfs's programs look at every mount of the machine.
pub fn no_dead_disks() -> File {
    let lock = dead_disks();
    lock.lock().unwrap();
    lock
}

fn dead_disks() -> File {
    let path = std::env::temp_dir().join("uzram-tests-dead-disks");
    File::create(path).unwrap()
}

/// Loop devices, and the files that they are over.
fn all_loops() -> impl Iterator<Item = (PathBuf, PathBuf)> {
    let devices = fs::read_dir("/sys/block").unwrap().flatten();
    devices.filter_map(|entry| {
        let file = fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
        Some((
            Path::new("/dev").join(entry.file_name()),
            file.trim().into(),
        ))
    })
}

/// Those over files whose mount has gone: the kernel shows them as if they lay in the root directory.
fn lost_loops() -> BTreeSet<PathBuf> {
    let is_lost = |file: &Path| file.parent() == Some(Path::new("/"));
    let lost = all_loops().filter(|(_, file)| is_lost(file));
    lost.map(|(device, _)| device).collect()
}

impl Machine {
    /// `None`, with a line that says so, where nothing can be mounted.
    pub fn new() -> Option<Machine> {
        let openable = |path: &str| OpenOptions::new().read(true).write(true).open(path).is_ok();
        if !is_root() || !openable("/dev/fuse") || !openable("/dev/loop-control") {
            eprintln!("left out: attaching needs root, /dev/fuse and /dev/loop-control");
            return None;
        }
        if Path::new("/dev/ublk-control").exists() {
            eprintln!("left out: uzram up prefers ublk here, and these tests are of loop devices");
            return None;
        }
        let home = Home::new();
        let directory = home.dir.path().join("mnt");
        fs::create_dir(&directory).unwrap();
        Some(Machine {
            home,
            directory,
            lost_before: lost_loops(),
            dead: OnceLock::new(),
        })
    }

    /// Before a server is killed under what is mounted.
    pub fn will_kill(&self) {
        self.dead.get_or_init(|| {
            let lock = dead_disks();
            lock.lock_shared().unwrap();
            lock
        });
    }

    /// `None`, with a line that says so, where nothing can be mounted or a program is missing.
    pub fn with(programs: &[&str]) -> Option<Machine> {
        let machine = Machine::new()?;
        installed(programs).then_some(machine)
    }

    pub fn fuse_directory(&self, name: &str) -> PathBuf {
        self.home.state().join(format!("{name}.fuse"))
    }

    /// The loop devices over files in this home.
    pub fn loops(&self) -> Vec<PathBuf> {
        let ours = all_loops().filter(|(_, file)| file.starts_with(self.home.dir.path()));
        ours.map(|(device, _)| device).collect()
    }

    /// Mount points in this home.
    pub fn mounts(&self) -> usize {
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let home = self.home.dir.path().display().to_string();
        table.lines().filter(|line| line.contains(&home)).count()
    }

    /// Nothing of ours is in the kernel or the state directory.
    #[track_caller]
    pub fn is_clean(&self) {
        eventually("no loop device is left", || {
            // Those that tests beside this one have lost for the moment go, too.
            self.loops().is_empty() && lost_loops().is_subset(&self.lost_before)
        });
        assert_eq!(self.mounts(), 0);
        assert_eq!(self.home.files(), Vec::<String>::new());
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let quietly = |program: &str, argument: &str, path: &Path| {
            let _ = Command::new(program).arg(argument).arg(path).output();
        };
        let swaps = fs::read_to_string("/proc/swaps").unwrap();
        for device in self.loops() {
            if swaps.contains(&format!("{} ", device.display())) {
                quietly("swapoff", "--", &device);
            }
        }
        quietly("umount", "-l", &self.directory);
        for device in self.loops() {
            quietly("losetup", "-d", &device);
        }
        // Servers of `uzram up` are nobody's children, and one that a failed test left lives on.
        let listed = self.home.run(&["list", "--json"]).stdout;
        let listed: serde_json::Value = serde_json::from_str(&listed).unwrap_or_default();
        for disk in listed.as_array().into_iter().flatten() {
            quietly("kill", "-KILL", Path::new(&disk["pid"].to_string()));
        }
        for entry in fs::read_dir(self.home.state())
            .into_iter()
            .flatten()
            .flatten()
        {
            quietly("umount", "-l", &entry.path());
        }
    }
}

pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|e| panic!("{program}: {e}"));
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{program} {arguments:?}: {text}");
    text
}

/// Whether all programs are installed; says so if not.
pub fn installed(programs: &[&str]) -> bool {
    let is_there = |program: &&str| {
        let directories = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];
        directories
            .iter()
            .any(|dir| Path::new(dir).join(program).exists())
    };
    let missing: Vec<_> = programs.iter().filter(|p| !is_there(p)).collect();
    if !missing.is_empty() {
        eprintln!("left out: {missing:?} are not installed");
    }
    missing.is_empty()
}

fn queue(device: &Path, what: &str) -> String {
    let name = device.file_name().unwrap();
    let path = Path::new("/sys/block").join(name).join(what);
    fs::read_to_string(path).unwrap().trim().to_owned()
}

fn path_of(served: &Served) -> PathBuf {
    served.fact("path").into()
}

/// Pages that compress to about a half, different for each seed.
pub fn text(seed: u32, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    (0..length).map(|_| b'a' + (next() % 16) as u8).collect()
}

#[test]
fn a_disk_is_a_file() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let mut served = machine.home.serve(&["--size", "64M", "--attach", "fuse"]);
    let path = machine.fuse_directory("uzram0").join("uzram0");
    assert_eq!(path_of(&served), path);
    assert_eq!(fs::metadata(&path).unwrap().len(), 64 << 20);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    file.write_all_at(&text(1, 100_000), 4000).unwrap();
    let mut back = vec![0; 100_000];
    file.read_exact_at(&mut back, 4000).unwrap();
    assert!(back == text(1, 100_000));
    let stat = machine.home.json(&["stat", "uzram0", "--json"]);
    assert_eq!(stat["endpoint"], path.to_str().unwrap());
    assert_eq!(stat["connections"], 1);
    for refused in [["remove", "uzram0"], ["reset", "uzram0"]] {
        machine
            .home
            .run(&refused)
            .refused(1, "open in 1 place; close it first");
    }
    drop(file);
    eventually("the close arrives", || {
        machine.home.json(&["stat", "uzram0", "--json"])["connections"] == 0
    });
    assert_eq!(machine.home.run(&["reset", "uzram0"]).status, 0);
    let mut start = [1; 4096];
    File::open(&path).unwrap().read_exact(&mut start).unwrap();
    assert_eq!(start, [0; 4096]);
    eventually("the disk is removed", || {
        machine.home.run(&["remove", "uzram0"]).status == 0
    });
    assert_eq!(machine.mounts(), 0);
    assert!(
        machine
            .home
            .run(&["add", "--size", "1M", "--attach", "fuse"])
            .status
            == 0
    );
    assert_eq!(machine.mounts(), 1);
    served.ends();
    machine.is_clean();
}

/// ublk itself is tested in the guest. Here its absence is reported and leaves nothing behind.
#[test]
fn a_disk_of_a_driver_that_is_missing_is_refused() {
    if Path::new("/dev/ublk-control").exists() {
        return eprintln!("left out: this machine has the driver");
    }
    let home = Home::new();
    let arguments = ["serve", "--size", "1M", "--attach", "ublk"];
    home.run(&arguments)
        .refused(1, "load the module ublk_drv (Linux 6.5 or newer)");
    assert_eq!(home.files(), Vec::<String>::new());
}

#[test]
fn a_disk_is_a_block_device_that_holds_a_file_system() {
    let Some(machine) = Machine::with(&["mkfs.ext4", "fsck.ext4", "fstrim", "blkdiscard", "mount"])
    else {
        return;
    };
    let arguments = ["--size", "256M", "--attach", "loop", "--name", "block"];
    let mut served = machine.home.serve(&arguments);
    let device = path_of(&served);
    assert_eq!(machine.loops(), std::slice::from_ref(&device));
    for (what, value) in [
        ("queue/logical_block_size", "4096"),
        ("queue/physical_block_size", "4096"),
        ("loop/dio", "1"),
        ("size", "524288"),
    ] {
        assert_eq!(queue(&device, what), value, "{what}");
    }
    assert_ne!(queue(&device, "queue/discard_max_bytes"), "0");
    let shown = device.to_str().unwrap();
    let mnt = machine.directory.to_str().unwrap();
    run("mkfs.ext4", &["-q", "-F", shown]);
    run("mount", &[shown, mnt]);
    let tree: Vec<_> = (0..40)
        .map(|n| (format!("dir{}/file{n}", n % 5), text(n, 900_000)))
        .collect();
    for (name, content) in &tree {
        let path = machine.directory.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    machine
        .home
        .run(&["remove", "block"])
        .refused(1, &format!("mounted on {mnt}"));
    run("umount", &[mnt]);
    run("fsck.ext4", &["-f", "-n", shown]);
    run("mount", &[shown, mnt]);
    for (name, content) in &tree {
        assert!(
            fs::read(machine.directory.join(name)).unwrap() == *content,
            "{name}"
        );
    }
    let used = || {
        let stat = machine.home.json(&["stat", "block", "--json"]);
        stat["mem_used_total"].as_u64().unwrap()
    };
    let before = used();
    assert!(before > 15 << 20, "{before}");
    for directory in fs::read_dir(mnt).unwrap().flatten() {
        if directory.file_name().to_str().unwrap().starts_with("dir") {
            fs::remove_dir_all(directory.path()).unwrap();
        }
    }
    rustix::fs::sync();
    run("fstrim", &[mnt]);
    assert!(used() < before / 4, "{} of {before} bytes are left", used());
    run("umount", &[mnt]);
    run("blkdiscard", &[shown]);
    assert_eq!(
        machine.home.json(&["stat", "block", "--json"])["orig_data_size"],
        0
    );
    served.ends();
    machine.is_clean();
}

#[test]
fn a_full_disk_says_so_and_goes_on() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let arguments = ["--size", "64M", "--attach", "loop", "--mem-limit", "8M"];
    let mut served = machine.home.serve(&arguments);
    let device = path_of(&served);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&device)
        .unwrap();
    let content = text(7, 32 << 20);
    let written = file
        .write_all_at(&content, 0)
        .and_then(|()| file.sync_all());
    let errno = written.unwrap_err().raw_os_error();
    // What the page cache writes later has lost the reason.
    assert!(matches!(errno, Some(28 | 5)), "{errno:?}");
    drop(file);
    let to = format!("of={}", device.display());
    let dd = Command::new("dd")
        .args(["if=/dev/urandom", &to, "bs=1M", "count=32", "oflag=direct"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&dd.stderr);
    assert!(said.contains("No space left on device"), "{said}");
    let stat = machine.home.json(&["stat", "uzram0", "--json"]);
    assert!(stat["mem_used_max"].as_u64().unwrap() <= 8 << 20, "{stat}");
    assert!(stat["failed_writes"].as_u64().unwrap() > 0, "{stat}");
    assert_eq!(machine.home.run(&["reset", "uzram0"]).status, 0);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&device)
        .unwrap();
    file.write_all_at(&content[..4096], 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    served.ends();
    machine.is_clean();
}

/// Having it open is not using it: nothing is mounted.
#[test]
fn a_reset_is_seen_by_who_has_the_device_open() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let mut served = machine.home.serve(&["--size", "16M", "--attach", "loop"]);
    let mut open = OpenOptions::new();
    let file = open.read(true).write(true).open(path_of(&served)).unwrap();
    file.write_all_at(&text(1, 8192), 4096).unwrap();
    let mut found = [1; 8192];
    file.read_exact_at(&mut found, 4096).unwrap();
    assert!(found[..] == text(1, 8192));
    assert_eq!(machine.home.run(&["reset", "uzram0"]).status, 0);
    // Neither what the kernel has read nor what it had not yet written.
    file.read_exact_at(&mut found, 4096).unwrap();
    assert_eq!(found, [0; 8192]);
    file.sync_all().unwrap();
    drop(file);
    let stat = machine.home.json(&["stat", "uzram0", "--json"]);
    assert_eq!(stat["orig_data_size"], 0, "{stat}");
    served.ends();
    machine.is_clean();
}

#[test]
fn a_server_does_not_end_under_a_file_system() {
    let Some(machine) = Machine::with(&["mkfs.ext4", "mount"]) else {
        return;
    };
    let mut served = machine.home.serve(&["--size", "64M", "--attach", "loop"]);
    let device = path_of(&served);
    let mnt = machine.directory.to_str().unwrap();
    run("mkfs.ext4", &["-q", "-F", device.to_str().unwrap()]);
    run("mount", &[device.to_str().unwrap(), mnt]);
    served.signal("TERM");
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert!(served.child.try_wait().unwrap().is_none());
    fs::write(machine.directory.join("file"), text(3, 10_000)).unwrap();
    run("umount", &[mnt]);
    served.ends();
    let said = served.stderr();
    assert!(
        said.contains("not ending: uzram0 is in use at /dev/loop"),
        "{said}"
    );
    machine.is_clean();
}

#[test]
fn a_server_ends_that_was_told_so_just_before_the_last_close() {
    let Some(machine) = Machine::with(&[]) else {
        return;
    };
    let mut served = machine.home.serve(&["--size", "1M", "--attach", "fuse"]);
    let file = fs::File::open(path_of(&served)).unwrap();
    served.signal("TERM");
    std::thread::sleep(std::time::Duration::from_millis(100));
    drop(file);
    assert_eq!(served.wait(), Some(0));
    assert!(!served.stderr().contains("not ending"));
    machine.is_clean();
}

#[test]
fn a_killed_server_leaves_errors_and_nothing_that_reads_as_zeroes() {
    let Some(machine) = Machine::with(&["mkfs.ext4", "mount"]) else {
        return;
    };
    let arguments = ["--size", "64M", "--attach", "loop", "--name", "killed"];
    let mut served = machine.home.serve(&arguments);
    let device = path_of(&served);
    let mnt = machine.directory.to_str().unwrap();
    run("mkfs.ext4", &["-q", "-F", device.to_str().unwrap()]);
    run("mount", &[device.to_str().unwrap(), mnt]);
    fs::write(machine.directory.join("file"), text(3, 1 << 20)).unwrap();
    rustix::fs::sync();
    served.signal("KILL");
    assert_eq!(served.wait(), None);

    fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
    let raw = File::open(&device).unwrap();
    let error = raw.read_at(&mut [0; 4096], 32 << 20).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    drop(raw);
    assert!(fs::read(machine.directory.join("file")).is_err());
    assert!(fs::read(machine.fuse_directory("killed").join("killed")).is_err());

    let refused = machine.home.run(&[
        "serve", "--size", "64M", "--attach", "loop", "--name", "killed",
    ]);
    refused.refused(1, &format!("mounted on {mnt}"));
    assert!(refused.stderr.contains("uzram down"), "{refused:?}");
    run("umount", &[mnt]);
    // A test beside this one may have taken the mount along into a namespace of its own.
    eventually("the file system is gone everywhere", || {
        let mut open = OpenOptions::new();
        open.read(true)
            .custom_flags(rustix::fs::OFlags::EXCL.bits().cast_signed());
        open.open(&device).is_ok()
    });
    // Now nobody uses what is left, so that it is no obstacle.
    let mut served = machine.home.serve(&arguments);
    assert_eq!(machine.loops(), [path_of(&served)]);
    let mut start = [1; 4096];
    File::open(path_of(&served))
        .unwrap()
        .read_exact(&mut start)
        .unwrap();
    assert_eq!(start, [0; 4096]);
    served.ends();
    machine.is_clean();
}

#[test]
fn mounts_that_somebody_takes_away_do_not_stop_the_end() {
    let Some(machine) = Machine::new() else {
        return;
    };
    for (attach, name) in [("fuse", "a"), ("loop", "b")] {
        let arguments = ["--size", "1M", "--attach", attach, "--name", name];
        let mut served = machine.home.serve(&arguments);
        run(
            "umount",
            &["-l", machine.fuse_directory(name).to_str().unwrap()],
        );
        assert_eq!(machine.home.json(&["stat", name, "--json"])["name"], name);
        served.signal("TERM");
        assert_eq!(served.wait(), Some(0), "{attach}");
        machine.is_clean();
    }
}

#[test]
fn a_start_that_fails_half_way_leaves_nothing() {
    let Some(machine) = Machine::with(&["unshare", "sh"]) else {
        return;
    };
    // A control device that knows of no loop devices, for this process alone.
    let binary = env!("CARGO_BIN_EXE_uzram");
    let script = format!(
        "mount --bind /dev/null /dev/loop-control && exec {binary} serve --size 1M --attach loop"
    );
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script])
        .env("XDG_RUNTIME_DIR", machine.home.dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("no free loop device"), "{said}");
    machine.is_clean();
    // A mount point that is taken.
    fs::write(machine.fuse_directory("uzram0"), "").unwrap();
    machine
        .home
        .run(&["serve", "--size", "1M", "--attach", "fuse"])
        .refused(1, "cannot be made");
    fs::remove_file(machine.fuse_directory("uzram0")).unwrap();
    machine.is_clean();
}

#[test]
fn what_cannot_be_attached_says_why() {
    let home = Home::new();
    home.run(&["serve", "--size", "1M", "--attach", "nfs"])
        .refused(2, "invalid value 'nfs'");
    let address = [
        "serve",
        "--size",
        "1M",
        "--attach",
        "loop",
        "--listen",
        "127.0.0.1:0",
    ];
    home.run(&address).refused(2, "has no address");
    let Some(machine) = Machine::new() else {
        return;
    };
    let mut served = machine.home.serve(&["--size", "5000", "--attach", "auto"]);
    // Rounded up to a page, which a block is.
    assert_eq!(queue(&path_of(&served), "size"), "16");
    let again = [
        "serve", "--size", "1M", "--attach", "loop", "--name", "uzram0",
    ];
    machine.home.run(&again).refused(1, "already served");
    served.ends();
    assert!(
        served
            .stderr()
            .contains("attached as loop: FUSE and loop devices are here")
    );
    machine.is_clean();
}

#[test]
fn two_signals_within_an_instant_leave_no_mount() {
    let Some(machine) = Machine::new() else {
        return;
    };
    for (round, way) in ["fuse", "loop"].iter().cycle().take(12).enumerate() {
        let mut served = machine.home.serve(&["--size", "16M", "--attach", way]);
        let pid = served.child.id().to_string();
        // From both at once to a few milliseconds apart.
        let pause = format!("0.00{round:02}");
        let script = r#"kill -TERM "$1"; sleep "$2"; kill -TERM "$1" || true"#;
        run("sh", &["-c", script, "sh", &pid, &pause]);
        let status = served.wait();
        assert!(matches!(status, Some(0 | 1)), "{status:?}");
        assert_eq!(machine.mounts(), 0, "round {round}");
        eventually("no loop device is left", || machine.loops().is_empty());
        assert_eq!(machine.home.run(&["down", "uzram0"]).status, 0);
    }
    machine.is_clean();
}
