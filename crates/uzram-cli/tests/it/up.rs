//! `uzram up` and `uzram down`, with servers that are killed in between. Swap here is small and on for
//! a moment only; what happens under pressure is tested in a memory cgroup and in the guest.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use uzram_testkit::copy_program;

use crate::attach::{Machine, installed, no_dead_disks, run, text};
use crate::cgroup::Cgroup;
use crate::support::{Ran, eventually, has_ended, is_root};

impl Machine {
    fn up(&self, arguments: &[&str]) -> Ran {
        let mut all = vec!["up"];
        all.extend(arguments);
        self.home.run(&all)
    }

    fn down(&self, target: &str) -> Ran {
        self.home.run(&["down", target])
    }

    #[track_caller]
    fn goes_up(&self, arguments: &[&str], said: &str) {
        succeeded(&self.up(arguments), said);
    }

    /// To its end, so that nothing is left.
    #[track_caller]
    fn goes_down(&self, target: &str, name: &str) {
        succeeded(&self.down(target), &format!("{name} is down."));
        self.is_clean();
    }

    fn mnt(&self) -> &str {
        self.directory.to_str().unwrap()
    }

    #[track_caller]
    fn pid(&self, name: &str) -> u64 {
        self.home.json(&["stat", name, "--json"])["pid"]
            .as_u64()
            .unwrap()
    }

    /// Kills the server of `name` and waits until it is gone.
    fn kill(&self, name: &str) {
        self.will_kill();
        let pid = self.pid(name).to_string();
        run("kill", &["-9", &pid]);
        eventually("the server is gone", || has_ended(&pid));
    }
}

fn is_swap(device: &Path) -> bool {
    let swaps = fs::read_to_string("/proc/swaps").unwrap();
    swaps
        .lines()
        .any(|line| line.starts_with(&format!("{} ", device.display())))
}

#[track_caller]
fn succeeded(ran: &Ran, said: &str) {
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(ran.stdout.contains(said), "expected {said:?}: {ran:?}");
}

#[test]
fn a_directory_is_up_and_down_and_twice_is_fine() {
    let Some(machine) = Machine::with(&["mkfs.ext4", "findmnt"]) else {
        return;
    };
    chown(&machine.directory, Some(65534), Some(65534)).unwrap();
    fs::set_permissions(&machine.directory, fs::Permissions::from_mode(0o750)).unwrap();
    let mnt = machine.mnt();
    machine.goes_up(
        &["--size", "64M", "--mount", mnt],
        "uzram0 is up: 64 MiB of ext4 on",
    );
    let root = fs::metadata(mnt).unwrap();
    assert_eq!((root.uid(), root.mode() & 0o777), (65534, 0o750));
    let options = run("findmnt", &["-no", "FSTYPE,OPTIONS", mnt]);
    assert!(
        options.starts_with("ext4") && options.contains("discard"),
        "{options}"
    );
    fs::write(machine.directory.join("file"), text(1, 5 << 20)).unwrap();
    // Again, by all its names.
    machine.goes_up(&["--size", "64M", "--mount", mnt], "uzram0 is up already");
    machine.goes_up(&["--mount", mnt, "--name", "uzram0"], "up already");
    machine
        .up(&["--mount", mnt, "--name", "other"])
        .refused(1, "uzram0 is mounted there");
    machine
        .up(&["--size", "65M", "--mount", mnt])
        .refused(1, "up with 64 MiB (and not --size 65M)");
    assert!(fs::read(machine.directory.join("file")).unwrap() == text(1, 5 << 20));
    // Busy, and by whom.
    let held = File::open(machine.directory.join("file")).unwrap();
    let refused = machine.down(mnt);
    refused.refused(1, &format!("({})", std::process::id()));
    assert_eq!(machine.mounts(), 2);
    drop(held);
    // A program that another test has just forked has the file open until it executes.
    eventually("the file system ends", || machine.down(mnt).status == 0);
    machine.is_clean();
    succeeded(&machine.down(mnt), "nothing to do");
    succeeded(&machine.down("uzram0"), "nothing to do");
    assert_eq!(fs::metadata(mnt).unwrap().uid(), 65534);
}

#[test]
fn a_limit_too_small_to_begin_with_is_named_and_all_is_undone() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let _alone = no_dead_disks();
    let made = machine.directory.join("made");
    let made = made.to_str().unwrap();
    // mkfs fails at the first, and mount at the second.
    for (limit, fs) in [("1", "ext4"), ("8K", "xfs"), ("1", "xfs"), ("1", "btrfs")] {
        if !installed(&[&format!("mkfs.{fs}")]) {
            continue;
        }
        let up = machine.up(&[
            "--mount",
            made,
            "--size=512M",
            "--mem-limit",
            limit,
            "--fs",
            fs,
        ]);
        up.refused(
            1,
            &format!("uzram: --mem-limit {limit}: too small, choose more: m"),
        );
        assert!(!Path::new(made).exists(), "{limit} {fs}");
        machine.is_clean();
    }
    machine
        .up(&["--swap", "--size=64M", "--mem-limit=1"])
        .refused(1, "--mem-limit 1: too small, choose more: /dev/loop");
    machine.is_clean();
}

/// A nice value counts within a session only, where the kernel shares the CPUs out among them.
fn has_a_session_before_others(pid: u64) {
    let own = rustix::process::Pid::from_raw(pid as i32);
    assert_eq!(rustix::process::getsid(own).ok(), own);
    let sharing = fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled");
    if sharing.is_ok_and(|sharing| sharing.trim() == "1") {
        let session = fs::read_to_string(format!("/proc/{pid}/autogroup")).unwrap();
        assert!(session.trim_end().ends_with(" nice -20"), "{session}");
    }
}

#[test]
fn swap_is_up_safely_and_down_and_twice_is_fine() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let arguments = ["--size", "64M", "--swap", "--priority", "7"];
    let up = machine.up(&arguments);
    succeeded(&up, "swap0 is up: 64 MiB of swap at /dev/loop");
    succeeded(&up, " at nice ");
    let device: PathBuf = machine.loops().remove(0);
    let swaps = fs::read_to_string("/proc/swaps").unwrap();
    let line = swaps
        .lines()
        .find(|line| line.starts_with(device.to_str().unwrap()))
        .unwrap();
    let fields: Vec<_> = line.split_whitespace().collect();
    assert_eq!(
        (fields[1], fields[2], fields[4]),
        ("partition", "65532", "7")
    );
    // What a container's root may not do is said, and the rest is done.
    match up.stderr.contains("CAP_SYS_RESOURCE") {
        true => eprintln!("left out: marking I/O flushers needs CAP_SYS_RESOURCE"),
        false => is_spared_and_marked(machine.pid("swap0")),
    }
    is_locked(machine.pid("swap0"));
    has_a_session_before_others(machine.pid("swap0"));
    machine.goes_up(&arguments, "swap0 is up already");
    machine
        .home
        .run(&["remove", "swap0"])
        .refused(1, "swapped to");
    succeeded(&machine.down("swap0"), "swap0 is down.");
    assert!(!is_swap(&device));
    machine.is_clean();
    succeeded(&machine.down("swap0"), "nothing to do");
}

#[test]
fn a_dictionary_is_found_from_where_up_was_said() {
    let Some(machine) = Machine::with(&["mkfs.ext4"]) else {
        return;
    };
    let home = machine.home.dir.path();
    fs::write(home.join("d.dict"), "pages look like this ".repeat(100)).unwrap();
    let mut command = machine
        .home
        .command(&["up", "--size", "64M", "--mount", machine.mnt()]);
    command.args(["--algorithm=zstd", "--algorithm-params=level=3,dict=d.dict"]);
    let output = command
        .args(["--checksum"])
        .current_dir(home)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let stat = machine.home.json(&["stat", "uzram0", "--json"]);
    let parameters = stat["algorithm_params"].as_str().unwrap();
    assert!(parameters.ends_with("/d.dict"), "{stat}");
    assert_eq!(stat["checksum"], 1, "{stat}");
    machine.goes_down("uzram0", "uzram0");
}

#[track_caller]
fn is_spared_and_marked(pid: u64) {
    const PF_MEMALLOC_NOIO: u64 = 0x8_0000;
    let mut threads = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten() {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap();
        let (name, fields) = stat.rsplit_once(") ").unwrap();
        let flags: u64 = fields.split(' ').nth(6).unwrap().parse().unwrap();
        assert_ne!(flags & PF_MEMALLOC_NOIO, 0, "{name}: {flags:#x}");
        threads += 1;
    }
    assert!(threads >= 5, "{threads}");
    let score = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
    assert_eq!(score.trim(), "-1000");
}

#[track_caller]
fn is_locked(pid: u64) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let kilobytes = |what: &str| -> u64 {
        let line = status.lines().find(|line| line.starts_with(what)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    assert!(kilobytes("VmLck:") >= kilobytes("RssAnon:"), "{status}");
}

/// Memory that the program uses: twice its limit.
const EATEN: usize = if cfg!(debug_assertions) {
    96 << 20
} else {
    512 << 20
};
const EATERS_LIMIT: usize = EATEN / 2;
/// One after the other on the same swap. A deadlock may take more than one to come about.
const EATERS: usize = if cfg!(debug_assertions) { 1 } else { 10 };
/// Pages between one that is looked at and the next: a prime, so that none is left out.
const STRIDE: usize = 7919;

#[test]
fn swap_carries_programs_of_twice_their_memory() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let swaps = fs::read_to_string("/proc/swaps").unwrap();
    let is_tests = |line: &str| line.starts_with("/dev/loop");
    if !swaps.lines().skip(1).all(is_tests) {
        return eprintln!("left out: this machine has swap of its own:\n{swaps}");
    }
    let Some(cgroup) = Cgroup::new("swap", Some(EATERS_LIMIT)) else {
        return;
    };
    let up = machine.up(&["--size", "768M", "--swap", "--priority", "32767"]);
    succeeded(&up, "swap0 is up");
    let device = machine.loops().remove(0);
    // This very program, as the test below.
    let mut eater = Command::new("timeout");
    eater.arg("120").arg(std::env::current_exe().unwrap());
    eater.args(["--exact", "up::eater", "--ignored", "--nocapture"]);
    let mut outputs = Vec::new();
    for _ in 0..EATERS {
        outputs.push(cgroup.within(&eater).output().unwrap());
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap();
    // What the programs had was discarded, but for clusters of which other slots are in use.
    eventually("freed swap takes no memory", || {
        let stat = machine.home.json(&["stat", "swap0", "--json"]);
        stat["orig_data_size"].as_u64().unwrap() < EATEN as u64 / 8
    });
    let stat = machine.home.json(&["stat", "swap0", "--json"]);
    succeeded(&machine.down("swap0"), "swap0 is down.");
    for output in outputs {
        let said = String::from_utf8_lossy(&output.stdout);
        let is_right = output.status.success() && said.contains("all of it is right");
        assert!(is_right, "{output:?}");
    }
    // No other swap has taken any of it.
    for line in swaps.lines().skip(1) {
        let fields: Vec<_> = line.split_whitespace().collect();
        assert!(
            Path::new(fields[0]) == device || fields[3] == "0",
            "{swaps}"
        );
    }
    let swapped = stat["mem_used_max"].as_u64().unwrap();
    assert!(swapped > EATEN as u64 / 16, "{stat}");
    assert_eq!(stat["failed_writes"], 0, "{stat}");
    machine.is_clean();
}

/// Not a test of its own: a program that uses more memory than it may have.
#[test]
#[ignore = "run by another test, in a memory cgroup"]
fn eater() {
    let page = |number: usize| text(number as u32, 4096);
    let mut memory = vec![0; EATEN];
    for (number, target) in memory.chunks_exact_mut(4096).enumerate() {
        target.copy_from_slice(&page(number));
    }
    let pages = EATEN / 4096;
    for number in (0..pages).map(|step| step * STRIDE % pages) {
        let found = &memory[number * 4096..][..4096];
        assert!(found == page(number), "page {number}");
    }
    println!("all of it is right");
}

/// The output of programs that run at once.
fn at_once<const N: usize>(commands: [Command; N]) -> [Ran; N] {
    let started = commands.map(|mut command| {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    });
    started.map(|child| Ran::of(&child.wait_with_output().unwrap()))
}

#[test]
fn many_at_once_come_one_after_the_other() {
    let Some(machine) = Machine::with(&["mkfs.ext4"]) else {
        return;
    };
    let directories = ["a", "b", "a", "b"].map(|name| machine.directory.join(name));
    let made = directories
        .each_ref()
        .map(|directory| directory.to_str().unwrap());
    let ups = made.map(|made| {
        machine
            .home
            .command(&["up", "--size", "64M", "--mount", made])
    });
    for (ran, made) in at_once(ups).iter().zip(made) {
        assert_eq!(ran.status, 0, "{ran:?}");
        assert!(
            ran.stdout.contains(made) || ran.stdout.contains("up already"),
            "{ran:?}"
        );
    }
    assert_eq!(machine.loops().len(), 2);
    let downs = made.map(|made| machine.home.command(&["down", made]));
    let said = at_once(downs).map(|ran| {
        assert_eq!(ran.status, 0, "{ran:?}");
        ran.stdout.contains(" is down.")
    });
    assert_eq!(
        said.iter().filter(|is_down| **is_down).count(),
        2,
        "{said:?}"
    );
    assert!(directories.iter().all(|directory| !directory.exists()));
    machine.is_clean();
}

#[test]
fn a_killed_server_is_taken_down() {
    let Some(machine) = Machine::with(&["mkfs.ext4"]) else {
        return;
    };
    let mnt = machine.mnt();
    machine.goes_up(&["--size", "64M", "--mount", mnt, "--name", "a"], "a is up");
    fs::write(machine.directory.join("file"), text(1, 1 << 20)).unwrap();
    machine.kill("a");
    machine.goes_down(mnt, "a");
    // By its name, and as swap.
    machine.goes_up(&["--size", "64M", "--swap"], "swap0 is up");
    machine.kill("swap0");
    machine.goes_down("swap0", "swap0");
    // Or by the next up.
    machine.goes_up(&["--size", "64M", "--mount", mnt, "--name", "a"], "a is up");
    machine.kill("a");
    let again = machine.up(&["--size", "32M", "--mount", mnt]);
    succeeded(&again, "a is up: 32 MiB");
    assert!(
        again
            .stderr
            .contains("taking down what a server that was killed left"),
        "{again:?}"
    );
    fs::write(machine.directory.join("file"), text(2, 1 << 20)).unwrap();
    machine.goes_down("a", "a");
}

/// mkfs.btrfs looks at every mount, and at the files of their loop devices.
#[test]
fn a_dead_disk_that_keeps_mkfs_from_its_work_is_named() {
    let Some(machine) = Machine::with(&["mkfs.ext4", "mkfs.btrfs"]) else {
        return;
    };
    let mnt = machine.mnt();
    machine.goes_up(&["--size", "64M", "--mount", mnt, "--name", "a"], "a is up");
    machine.kill("a");
    let other = machine.home.dir.path().join("other");
    let other = other.to_str().unwrap();
    let up = ["--size", "512M", "--mount", other, "--fs", "btrfs"];
    let refused = machine.up(&up);
    refused.refused(1, "mkfs.btrfs /dev/loop");
    // Another test's may be found first.
    refused.refused(1, "was killed; uzram down ");
    machine.goes_down("a", "a");
}

/// A killed server's socket is closed before its lock is free.
#[test]
fn a_server_that_is_just_dying_is_no_obstacle() {
    let Some(machine) = Machine::with(&["mkfs.ext4"]) else {
        return;
    };
    let up = ["--size", "64M", "--mount", machine.mnt(), "--name", "a"];
    machine.goes_up(&up, "a is up");
    machine.kill("a");
    let lock = File::open(machine.home.state().join("a.lock")).unwrap();
    eventually("the killed server's lock is free", || {
        lock.try_lock().is_ok()
    });
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            drop(lock);
        });
        machine.goes_up(&up, "a is up");
    });
    machine.goes_down("a", "a");
}

#[test]
fn a_file_mount_that_somebody_took_away_is_no_obstacle() {
    let Some(machine) = Machine::with(&["mkfs.ext4"]) else {
        return;
    };
    let mnt = machine.mnt();
    machine.goes_up(&["--size", "64M", "--mount", mnt], "uzram0 is up");
    run(
        "umount",
        &["-l", machine.fuse_directory("uzram0").to_str().unwrap()],
    );
    machine.goes_down(mnt, "uzram0");
    machine.goes_up(&["--size", "64M", "--mount", mnt], "uzram0 is up");
    run(
        "umount",
        &["-l", machine.fuse_directory("uzram0").to_str().unwrap()],
    );
    machine.kill("uzram0");
    machine.goes_down("uzram0", "uzram0");
}

impl Machine {
    /// A command in the home, so that paths can be relative to it.
    fn run_at_home(&self, arguments: &[&str]) -> Ran {
        let mut command = self.home.command(arguments);
        command.current_dir(self.home.dir.path());
        Ran::of(&command.output().unwrap())
    }
}

#[test]
fn a_directory_is_known_however_it_is_named_and_whatever_became_of_it() {
    let Some(machine) = Machine::with(&["mkfs.ext4"]) else {
        return;
    };
    let up = ["up", "--size", "64M", "--mount", "mnt"];
    std::os::unix::fs::symlink("mnt", machine.home.dir.path().join("link")).unwrap();
    for named in ["mnt", "./mnt", "mnt/", "link", "mnt/../mnt"] {
        succeeded(&machine.run_at_home(&up), "uzram0 is up: 64 MiB of ext4");
        let down = machine.run_at_home(&["down", named]);
        succeeded(&down, "uzram0 is down.");
        machine.is_clean();
    }
    // Unmounted by somebody, killed, and both.
    let mnt = machine.mnt();
    type Harm = (bool, &'static [&'static str]);
    let harms: [Harm; 4] = [
        (false, &[]),
        (false, &["-l"]),
        (true, &["-l"]),
        (true, &["-l", "-n"]),
    ];
    for (is_killed, options) in harms {
        succeeded(&machine.run_at_home(&up), "uzram0 is up: 64 MiB of ext4");
        if is_killed {
            machine.kill("uzram0");
        }
        run("umount", &[options, &[mnt]].concat());
        succeeded(&machine.run_at_home(&["down", "mnt"]), "uzram0 is down.");
        machine.is_clean();
    }
}

#[test]
fn a_file_system_that_lives_on_unseen_is_not_down() {
    let Some(machine) = Machine::with(&["mkfs.ext4"]) else {
        return;
    };
    let mnt = machine.mnt();
    machine.goes_up(&["--size", "64M", "--mount", mnt], "uzram0 is up");
    let held = File::create(machine.directory.join("file")).unwrap();
    run("umount", &["-l", mnt]);
    let holder = format!("({})", std::process::id());
    machine.down(mnt).refused(1, &holder);
    assert_eq!(machine.home.json(&["list", "--json"])[0]["name"], "uzram0");
    drop(held);
    // A program that another test has just forked has the file open until it executes.
    eventually("the file system ends", || machine.down(mnt).status == 0);
    machine.is_clean();
    // Something of somebody else's over ours is theirs to take away.
    machine.goes_up(&["--size", "64M", "--mount", mnt], "uzram0 is up");
    run("mount", &["-t", "tmpfs", "theirs", mnt]);
    machine
        .down("uzram0")
        .refused(1, "tmpfs of theirs is mounted over it");
    run("umount", &[mnt]);
    machine.goes_down(mnt, "uzram0");
}

#[test]
fn up_again_takes_the_disk_that_is_there() {
    let Some(machine) = Machine::with(&["mkfs.ext4"]) else {
        return;
    };
    // A directory that up makes, and down removes.
    let made = machine.home.dir.path().join("made");
    let mnt = made.to_str().unwrap();
    let up = ["--size", "64M", "--mount", mnt];
    machine.goes_up(&up, "uzram0 is up: 64 MiB of ext4");
    fs::write(made.join("file"), text(3, 100_000)).unwrap();
    run("umount", &[mnt]);
    machine.goes_up(&up, "is on");
    assert!(fs::read(made.join("file")).unwrap() == text(3, 100_000));
    succeeded(&machine.down("made/../uzram0"), "nothing to do");
    succeeded(&machine.down(mnt), "uzram0 is down.");
    assert!(!made.exists());
    machine.is_clean();

    let up = ["--size", "64M", "--swap", "--priority", "1"];
    machine.goes_up(&up, "swap0 is up");
    let device = machine.loops().remove(0);
    run("swapoff", &[device.to_str().unwrap()]);
    machine.goes_up(&up, "is swap again");
    assert!(is_swap(&device));
    machine.goes_down("swap0", "swap0");
}

#[test]
fn other_options_than_those_of_a_disk_that_is_up_are_refused_by_name() {
    let Some(machine) = Machine::with(&["mkfs.ext4"]) else {
        return;
    };
    let mnt = machine.mnt();
    let up = ["--mount", mnt, "--algorithm=zstd", "--mem-limit=32M"];
    let first = machine.up(&[&up[..], &["--size=64M", "--algorithm-params=level=3"]].concat());
    succeeded(&first, "uzram0 is up");
    for alike in [
        &["--size=64M"][..],
        &["--pool=bestfit", "--fs=ext4", "--algorithm-params=level=3"],
        &["--name=uzram0"],
    ] {
        machine.goes_up(&[&up[..], alike].concat(), "up already");
    }
    for (other, said) in [
        ("--size=1G", "64 MiB (and not --size 1G)"),
        ("--pool=zbud", "bestfit (and not --pool zbud)"),
        ("--checksum", "no checksums (and not --checksum)"),
        ("--fs=xfs", "ext4 (and not --fs xfs)"),
        (
            "--algorithm-params=level=4",
            "level=3 (and not --algorithm-params level=4)",
        ),
    ] {
        let ran = machine.up(&[&up[..], &[other]].concat());
        ran.refused(1, said);
        assert!(!ran.stderr.contains("--algorithm zstd"), "{ran:?}");
    }
    let both = ["--mount", mnt, "--algorithm=lz4", "--mem-limit=none"];
    machine.up(&both).refused(
        1,
        "up with a memory limit of 32 MiB (and not --mem-limit none), zstd (and not --algorithm lz4)",
    );
    machine.goes_down(mnt, "uzram0");

    machine.goes_up(&["--size=64M", "--swap"], "swap0 is up");
    machine
        .up(&["--swap", "--priority=7"])
        .refused(1, "priority 100 (and not --priority 7)");
    machine.goes_down("swap0", "swap0");
}

#[test]
fn the_reserve_is_said_and_no_limit_that_nobody_asked_for() {
    let Some(machine) = Machine::new() else {
        return;
    };
    // Half of RAM, which is no limit that anybody asked for.
    let up = machine.up(&["--swap", "--priority", "1"]);
    succeeded(&up, "swap0 is up");
    assert!(!up.stderr.contains("--mem-limit"), "{up:?}");
    assert!(up.stderr.contains("reserve: "), "{up:?}");
    machine.goes_down("swap0", "swap0");
}

#[test]
fn root_of_a_user_namespace_is_told_what_it_lacks() {
    let home = crate::support::Home::new();
    let mut command = Command::new("unshare");
    command.args(["-r", "timeout", "60", env!("CARGO_BIN_EXE_uzram")]);
    command.args(["up", "--swap", "--size", "64M"]);
    let output = command.env("XDG_RUNTIME_DIR", home.dir.path()).output();
    let said = match output {
        Ok(output) if output.status.code() == Some(1) => {
            String::from_utf8_lossy(&output.stderr).into_owned()
        }
        other => return eprintln!("left out: no user namespace here: {other:?}"),
    };
    if said.starts_with("unshare") {
        return eprintln!("left out: {said}");
    }
    assert!(said.contains("root of a user namespace only"), "{said}");
}

#[test]
fn what_fails_half_way_leaves_nothing() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let mnt = machine.mnt().to_owned();
    for (fs, least) in [
        ("ext4", "256 KiB"),
        ("xfs", "300 MiB"),
        ("btrfs", "109 MiB"),
    ] {
        machine
            .up(&["--size", "128K", "--mount", &mnt, "--fs", fs])
            .refused(
                1,
                &format!("too small for {fs}, which takes {least} at least"),
            );
    }
    machine.is_clean();
    machine
        .up(&["--size", "4K", "--swap"])
        .refused(2, "too small for swap");
    machine.is_clean();
    let unknown = machine.up(&["--size", "64M", "--mount", &mnt, "--algorithm", "lz5"]);
    unknown.refused(1, "lz5");
    machine.is_clean();
    machine
        .up(&["--size", "64M", "--mount", "/nowhere/at/all"])
        .refused(1, "create it");
    run("mount", &["-t", "tmpfs", "theirs", &mnt]);
    machine
        .up(&["--size", "64M", "--mount", &mnt])
        .refused(1, "tmpfs of theirs is mounted there");
    machine.down(&mnt).refused(1, "no disk of uzram");
    run("umount", &[&mnt]);
    machine.is_clean();
}

#[test]
fn what_makes_no_sense_is_wrong_usage() {
    let home = crate::support::Home::new();
    for (arguments, said) in [
        (&["up"][..], "required"),
        (&["up", "--swap", "--mount", "/mnt"], "cannot be used with"),
        (&["up", "--swap", "--priority", "32768"], "32768"),
        (
            &["up", "--mount", "/mnt", "--priority", "1"],
            "cannot be used with",
        ),
        (&["up", "--swap", "--size", "many"], "--size"),
        (&["up", "--swap", "--name", "../x"], "--name"),
        (&["down"], "required"),
    ] {
        home.run(arguments).refused(2, said);
    }
    if is_root() {
        // As nobody, in a state directory of nobody's.
        let dir = tempfile::tempdir().unwrap();
        chown(dir.path(), Some(65534), Some(65534)).unwrap();
        let binary = dir.path().join("uzram");
        copy_program(env!("CARGO_BIN_EXE_uzram"), &binary);
        let mut command = Command::new(&binary);
        use std::os::unix::process::CommandExt;
        command
            .args(["up", "--size", "1M", "--swap"])
            .uid(65534)
            .gid(65534);
        let output = command.env("XDG_RUNTIME_DIR", dir.path()).output();
        let Ok(output) = output else {
            return eprintln!("left out: others cannot run {}", binary.display());
        };
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("needs root"), "{said}");
    }
}
