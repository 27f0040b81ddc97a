//! Kernels of hosts that uzram is for, as directories that stand for their /proc, /sys and /dev.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use tempfile::TempDir;
use uzram::CgroupLimit;

use super::machine::{Opened, Way};
use super::*;

const FEATURES_5_10: u64 = 0x1ff;
const FEATURES_6_1: u64 = 0x1fff;
const FEATURES_6_18: u64 = 0x1_ffff;
const SWAPS_HEADER: &str = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
const ROOT: Rights = Rights {
    is_root: true,
    has_sys_admin: true,
    is_in_user_namespace: Some(false),
};

/// A machine whose files the test makes.
struct Fake {
    directory: TempDir,
    machine: Machine,
}

impl Fake {
    /// A kernel with /proc and /sys, and nothing that is asked for but FUSE and loop devices; its
    /// processes are root's.
    fn new(release: &str) -> Fake {
        let directory = tempfile::tempdir().unwrap();
        let machine = Machine {
            root: directory.path().to_owned(),
            release: release.into(),
            architecture: "x86_64".into(),
            ram_bytes: 2 << 30,
            rights: ROOT,
            ublk: Err("ublk: no /dev/ublk-control".into()),
            userfaultfd: Err(io::ErrorKind::Unsupported),
            memory_limit: None,
        };
        let fake = Fake { directory, machine };
        fake.file("proc/filesystems", "nodev\tsysfs\nnodev\tfuse\n\text4\n")
            .file("proc/self/status", "Name:\tuzram\nSeccomp:\t0\n")
            .file("sys/module/loop/parameters/max_loop", "0\n")
            .file("dev/fuse", "")
            .file("dev/loop-control", "")
            // For who runs the tests without being root.
            .file("usr/bin/fusermount3", "")
    }

    fn file(self, path: &str, content: &str) -> Fake {
        let path = self.directory.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    fn without(self, path: &str) -> Fake {
        let path = self.directory.path().join(path);
        let is_directory = path.is_dir();
        match is_directory {
            true => fs::remove_dir_all(path).unwrap(),
            false => fs::remove_file(path).unwrap(),
        }
        self
    }

    fn swap(self, areas: &str) -> Fake {
        self.file("proc/swaps", &format!("{SWAPS_HEADER}{areas}"))
    }

    fn zswap(self, zpool: Option<&str>, enabled: &str) -> Fake {
        let at = "sys/module/zswap/parameters";
        let fake = match zpool {
            Some(zpool) => self.file(&format!("{at}/zpool"), zpool),
            None => self,
        };
        fake.file(&format!("{at}/compressor"), "lzo\n")
            .file(&format!("{at}/enabled"), enabled)
    }

    fn modules(self, list: &str) -> Fake {
        let path = format!("lib/modules/{}/modules.dep", self.machine.release);
        self.file("proc/modules", "").file(&path, list)
    }

    fn userfaultfd(mut self, features: u64) -> Fake {
        let way = Way::Call;
        self.machine.userfaultfd = Ok(Opened { way, features });
        self.file("proc/sys/vm/unprivileged_userfaultfd", "0\n")
    }

    fn set(mut self, change: impl FnOnce(&mut Machine)) -> Fake {
        change(&mut self.machine);
        self
    }

    fn examine(&self) -> Seen {
        let diagnosis = examine(&self.machine);
        for fact in &diagnosis.facts {
            assert!(
                !fact.detail.is_empty() && !fact.source.is_empty(),
                "{fact:?}"
            );
        }
        Seen(diagnosis)
    }
}

/// A diagnosis with short ways to ask it.
struct Seen(Diagnosis);

impl Seen {
    fn fact(&self, subject: Subject) -> &Fact {
        let mut facts = self.0.facts.iter();
        facts.find(|fact| fact.subject == subject).unwrap()
    }

    #[track_caller]
    fn is(&self, subject: Subject, state: State, said: &str) -> &Seen {
        let fact = self.fact(subject);
        assert_eq!(fact.state, state, "{fact:?}");
        assert!(fact.detail.contains(said), "{said:?}: {fact:?}");
        self
    }

    #[track_caller]
    fn advises(&self, command: &str) -> &Seen {
        assert_eq!(
            self.0.advice.command.as_deref(),
            Some(command),
            "{:?}",
            self.0
        );
        self
    }
}

/// The kernels of Firecracker's guests, and libkrun's for aarch64: swap and zswap, no zram, no ublk.
#[test]
fn zswap_goes_in_front_of_our_swap_where_there_is_no_zram() {
    let without_modules = [
        Fake::new("5.10.245")
            .zswap(Some("zbud\n"), "N\n")
            .userfaultfd(FEATURES_5_10),
        Fake::new("6.1.155")
            .zswap(Some("zbud\n"), "N\n")
            .userfaultfd(FEATURES_6_1),
        Fake::new("6.12.91")
            .zswap(Some("zbud\n"), "N\n")
            .userfaultfd(FEATURES_6_18),
    ];
    let with_modules = Fake::new("6.18.0")
        .zswap(None, "N\n")
        .modules("kernel/fs/xfs/xfs.ko:\n")
        .userfaultfd(FEATURES_6_18);
    for fake in without_modules.into_iter().chain([with_modules]) {
        let seen = fake.swap("").examine();
        seen.is(Subject::Zram, State::No, "kernel")
            .is(Subject::Zswap, State::Off, "lzo")
            .is(Subject::Swap, State::Yes, "no area in use")
            .is(Subject::Ublk, State::No, "kernel")
            .is(Subject::Nbd, State::No, "kernel")
            .is(Subject::Fuse, State::Yes, "")
            .is(Subject::Loop, State::Yes, "")
            .is(Subject::Userfaultfd, State::Yes, "write protection")
            .advises("uzram up --swap --zswap");
        assert!(
            seen.0.advice.price.contains("for the rest"),
            "{:?}",
            seen.0.advice
        );
    }
}

#[test]
fn the_features_of_userfaultfd_are_read_from_its_bits() {
    let of = |features| Fake::new("6.8.0").userfaultfd(features).examine();
    of(FEATURES_5_10)
        .is(
            Subject::Userfaultfd,
            State::Yes,
            "all code; write protection",
        )
        .is(Subject::Move, State::No, "6.8");
    of(0).is(Subject::Userfaultfd, State::Yes, "no write protection");
    of(FEATURES_6_18)
        .is(Subject::Userfaultfd, State::Yes, "not there")
        .is(Subject::Move, State::Yes, "");
}

/// libkrun's kernel for x86-64: no swap at all, so no advice to swap.
#[test]
fn a_kernel_without_swap_gets_a_file_system() {
    let seen = Fake::new("6.12.91").examine();
    seen.is(Subject::Swap, State::No, "without swap")
        .is(Subject::Zswap, State::No, "")
        .advises("uzram up --size 50% --mount /mnt/uzram");
    // The same with zram: a disk of zram cannot be swapped to either.
    let seen = Fake::new("6.12.91")
        .file("sys/class/zram-control/hot_add", "")
        .examine();
    seen.is(Subject::Zram, State::Yes, "")
        .advises("uzram up --size 50% --mount /mnt/uzram");
}

/// A guest of docker's sandboxes: swap, no zram; the nodes of FUSE and loop devices are not there.
#[test]
fn a_guest_without_nodes_is_served_over_a_socket() {
    let fake = Fake::new("6.12.44")
        .swap("")
        .without("dev/fuse")
        .without("dev/loop-control");
    let seen = fake.examine();
    seen.is(Subject::Fuse, State::Refused, "--device /dev/fuse")
        .is(
            Subject::Loop,
            State::Refused,
            "/dev/loop-control does not exist",
        )
        .is(Subject::Zram, State::No, "takes no modules")
        .advises("uzram serve --size 1G");
}

#[test]
fn the_kernels_own_zram_comes_first_and_is_never_doubled() {
    let zram = |areas: &str| {
        Fake::new("6.12.0")
            .swap(areas)
            .file("sys/class/zram-control/hot_add", "1")
            .file("sys/block/zram0/disksize", "1073741824\n")
            .file("sys/block/zram1/disksize", "0\n")
    };
    let seen = zram("").examine();
    seen.is(Subject::Zram, State::Yes, "2 devices, 1 unused")
        .advises("d=$(zramctl -f -s 1024M -a lz4) && mkswap $d && swapon -p 100 $d");
    let seen = zram("/dev/zram0 partition\t1048572\t\t512\t\t100\n").examine();
    seen.is(
        Subject::Swap,
        State::Yes,
        "/dev/zram0, 1.00 GiB, 512 KiB of it used",
    );
    assert_eq!(seen.0.advice.command, None, "{:?}", seen.0.advice);

    let module = "kernel/drivers/block/zram/zram.ko.xz: kernel/mm/zsmalloc.ko.xz\n";
    let seen = Fake::new("6.1.0").swap("").modules(module).examine();
    seen.is(Subject::Zram, State::Off, "modprobe zram")
        .is(Subject::Nbd, State::No, "among its modules")
        .advises(
            "modprobe zram && d=$(zramctl -f -s 1024M -a lz4) && mkswap $d && swapon -p 100 $d",
        );
}

#[test]
fn ublk_comes_before_fuse_and_loop() {
    let fake = Fake::new("6.12.0")
        .swap("")
        .set(|machine| machine.ublk = Ok(()));
    let seen = fake.examine();
    seen.is(Subject::Ublk, State::Yes, "")
        .advises("uzram up --swap");
    assert!(seen.0.advice.reason.contains("ublk"), "{:?}", seen.0.advice);
    let seen = Fake::new("6.12.0").swap("").examine();
    seen.advises("uzram up --swap");
    assert!(
        seen.0.advice.price.contains("five to seven times"),
        "{:?}",
        seen.0.advice
    );
}

#[test]
fn a_module_is_off_and_a_driver_that_may_not_be_asked_is_refused() {
    let list = "kernel/drivers/block/ublk_drv.ko.zst:\nkernel/drivers/block/nbd.ko:\nkernel/fs/fuse/fuse.ko:\n";
    let fake = Fake::new("6.12.0")
        .modules(list)
        .file("proc/filesystems", "\text4\n")
        .without("dev/fuse");
    fake.examine()
        .advises("modprobe ublk_drv && uzram up --size 50% --mount /mnt/uzram")
        .is(Subject::Ublk, State::Off, "modprobe ublk_drv")
        .is(Subject::Nbd, State::Off, "modprobe nbd")
        .is(Subject::Fuse, State::Off, "modprobe fuse");
    let fake = Fake::new("6.12.0").file("dev/ublk-control", "").examine();
    fake.is(Subject::Ublk, State::Refused, "no /dev/ublk-control");
    let fake = Fake::new("6.12.0").file("proc/modules", "");
    fake.examine().is(
        Subject::Ublk,
        State::Unknown,
        "/lib/modules/6.12.0/modules.dep is not here",
    );
    let fake = Fake::new("6.12.0").file("sys/block/nbd0/size", "0");
    fake.examine().is(Subject::Nbd, State::Yes, "nbd-client");
}

/// Without privileges nothing is set up; a file still is, where FUSE allows it.
#[test]
fn whoever_may_not_set_a_device_up_gets_a_file_or_a_socket() {
    let plain = Rights {
        is_root: false,
        has_sys_admin: false,
        is_in_user_namespace: Some(false),
    };
    let nested = Rights {
        is_in_user_namespace: Some(true),
        ..ROOT
    };
    let bounded = Rights {
        has_sys_admin: false,
        ..ROOT
    };
    let untold = Rights {
        is_in_user_namespace: None,
        ..ROOT
    };
    for rights in [plain, nested, bounded, untold] {
        let fake = || {
            let fake = Fake::new("6.12.0").swap("").zswap(None, "N\n");
            fake.file("sys/class/zram-control/hot_add", "")
                .set(|machine| machine.rights = rights)
        };
        fake()
            .examine()
            .advises("uzram serve --size 1G --attach fuse");
        fake()
            .without("dev/fuse")
            .examine()
            .advises("uzram serve --size 1G");
        assert_ne!(rights.describe(), ROOT.describe());
    }
}

#[test]
fn what_is_hidden_is_unknown() {
    let bare = Fake::new("6.12.0")
        .without("proc")
        .without("sys")
        .without("dev")
        .set(|machine| machine.userfaultfd = Err(io::ErrorKind::PermissionDenied));
    let seen = bare.examine();
    for fact in &seen.0.facts {
        assert_eq!(fact.state, State::Unknown, "{fact:?}");
    }
    seen.advises("uzram serve --size 1G");
    // Of processes only, as a mount of /proc with subset=pid.
    let fake = Fake::new("6.12.0").without("proc/filesystems");
    fake.examine()
        .is(Subject::Swap, State::Unknown, "/proc")
        .is(Subject::Psi, State::Unknown, "");
}

#[test]
fn a_refused_userfaultfd_is_told_from_one_that_is_not_there() {
    let refused = |kind| {
        Fake::new("6.1.0")
            .file("proc/sys/vm/unprivileged_userfaultfd", "0\n")
            .set(|machine| machine.userfaultfd = Err(kind))
    };
    let seen = refused(io::ErrorKind::PermissionDenied).examine();
    seen.is(
        Subject::Userfaultfd,
        State::Refused,
        "unprivileged_userfaultfd=1",
    )
    .is(Subject::Move, State::Unknown, "");
    // A filter may answer either way.
    for kind in [io::ErrorKind::PermissionDenied, io::ErrorKind::Unsupported] {
        let filtered = refused(kind).file("proc/self/status", "Name:\tx\nSeccomp:\t2\n");
        filtered.examine().is(
            Subject::Userfaultfd,
            State::Refused,
            "--device /dev/userfaultfd",
        );
    }
    let seen = Fake::new("6.1.0").examine();
    seen.is(Subject::Userfaultfd, State::No, "not in this kernel")
        .is(Subject::Move, State::No, "");
    for (way, said) in [
        (Way::Device, "/dev/userfaultfd"),
        (Way::UserMode, "outside of system calls"),
    ] {
        let features = FEATURES_6_18;
        let fake =
            Fake::new("6.1.0").set(|machine| machine.userfaultfd = Ok(Opened { way, features }));
        fake.examine().is(Subject::Userfaultfd, State::Yes, said);
    }
}

#[test]
fn control_groups_of_both_versions_are_found() {
    let rows = |enabled| {
        format!("#subsys_name\thierarchy\tnum_cgroups\tenabled\nmemory\t0\t3\t{enabled}\n")
    };
    let limit = CgroupLimit {
        bytes: 512 << 20,
        path: "/sys/fs/cgroup/memory.max".into(),
    };
    let fake = Fake::new("6.12.0")
        .file("sys/fs/cgroup/cgroup.controllers", "cpu io memory pids\n")
        .set(|machine| machine.memory_limit = Some(limit));
    fake.examine().is(
        Subject::Cgroup,
        State::Yes,
        "version 2; 512 MiB for this process",
    );
    let fake = Fake::new("5.10.0").file("sys/fs/cgroup/memory/memory.limit_in_bytes", "1\n");
    fake.examine().is(Subject::Cgroup, State::Yes, "version 1");
    let fake = Fake::new("5.10.0").file("proc/cgroups", &rows(1));
    fake.examine()
        .is(Subject::Cgroup, State::Off, "not in /sys/fs/cgroup");
    let fake = Fake::new("5.10.0").file("proc/cgroups", &rows(0));
    fake.examine()
        .is(Subject::Cgroup, State::Off, "cgroup_disable");
    let fake = Fake::new("6.12.0").file("proc/cgroups", "#subsys_name\thierarchy\n");
    fake.examine()
        .is(Subject::Cgroup, State::Unknown, "no table");
    Fake::new("6.12.0")
        .examine()
        .is(Subject::Cgroup, State::No, "without control groups");
}

#[test]
fn pressure_is_shown() {
    let text = "some avg10=1.50 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
    let fake = Fake::new("6.12.0").file("proc/pressure/memory", text);
    fake.examine().is(Subject::Psi, State::Yes, "1.50 %");
    Fake::new("6.12.0")
        .examine()
        .is(Subject::Psi, State::No, "psi=1");
}

/// Files of strange content give facts too.
#[test]
fn hostile_files_do_not_panic() {
    for text in [
        "",
        "\n\n",
        "a",
        "a b c d e\nx",
        "\u{0}\u{1b}[31m",
        "memory",
        "some avg10=",
        "/dev/zram x 1 2 3",
    ] {
        let fake = [
            "proc/swaps",
            "proc/cgroups",
            "proc/pressure/memory",
            "proc/self/status",
        ]
        .into_iter()
        .chain([
            "sys/class/zram-control/hot_add",
            "sys/block/zram0/disksize",
            "proc/modules",
        ])
        .chain([
            "sys/module/zswap/parameters/enabled",
            "sys/fs/cgroup/cgroup.controllers",
        ])
        .chain(["lib/modules/6.12.0/modules.dep"])
        .fold(Fake::new("6.12.0"), |fake, path| fake.file(path, text));
        assert_eq!(fake.examine().0.facts.len(), 11);
    }
}

/// Nothing below the root changes, and this machine can be examined whoever runs the tests.
#[test]
fn a_probe_changes_nothing() {
    let fake = Fake::new("6.12.0").swap("").zswap(Some("zbud"), "N\n");
    let before = files(fake.directory.path());
    fake.examine();
    assert_eq!(files(fake.directory.path()), before);
    let here = Machine::here();
    assert_eq!(examine(&here).facts.len(), 11);
    assert!(here.ram_bytes > 0 && !here.release.is_empty());
}

fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => {
                found.insert(path.display().to_string(), fs::read(&path).unwrap());
            }
        }
    }
    found
}
