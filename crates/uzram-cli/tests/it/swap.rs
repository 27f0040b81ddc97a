//! The system calls of a server while it serves writes to swap. The kernel may wait for it to
//! get memory, so it must not wait for any itself.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Barrier;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use rustix::thread::CapabilitySet;

use crate::attach::{Machine, text};
use crate::support::{Home, Served, eventually, field, is_root, noise, statuses};

const DISK_BYTES: u64 = 256 << 20;
const CLIENTS: u64 = 4;
/// Sizes of requests: one page, a few, and as many as the kernel passes on at once.
const SIZES: [usize; 5] = [4 << 10, 64 << 10, 12 << 10, 1 << 20, 128 << 10];

/// A server's memory map: what may be accessed how, adjoining ranges as one, so that advice about a part is
/// no difference.
fn memory_map(pid: u32) -> Vec<(u64, u64, String)> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let mut ranges: Vec<(u64, u64, String)> = Vec::new();
    for line in maps.lines() {
        let (range, access) = line.split_once(' ').unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).unwrap());
        let access = &access[..4];
        match ranges.last_mut() {
            Some(last) if last.1 == start && last.2 == access => last.1 = end,
            _ => ranges.push((start, end, access.to_owned())),
        }
    }
    ranges
}

/// The minor and major faults of each worker so far.
fn faults(pid: u32) -> Vec<(String, u64, u64)> {
    let mut workers = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten() {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap();
        let (name, fields) = stat.rsplit_once(") ").unwrap();
        let fields: Vec<_> = fields.split(' ').collect();
        if name.contains("(fuse-") {
            let count = |field: usize| fields[field].parse().unwrap();
            workers.push((name.to_owned(), count(7), count(9)));
        }
    }
    workers
}

/// Fills a client's share of the disk, twice: what does not compress, then, when all have, what does, in
/// requests of other sizes. Each page is its own, and is found again.
fn write_all(path: &Path, client: u64, all_have: &Barrier) {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let start = client * DISK_BYTES / CLIENTS;
    let end = start + DISK_BYTES / CLIENTS;
    let noise = noise(client, 1 << 20);
    let letters = text(client as u32, 4096).repeat(256);
    for (content, skipped) in [(noise, 0), (letters, 2)] {
        let mut content = content;
        let mut sizes = SIZES.iter().cycle().skip(skipped);
        let mut offset = start;
        while offset < end {
            let size = (*sizes.next().unwrap()).min((end - offset) as usize);
            for (page, bytes) in content[..size].chunks_exact_mut(4096).enumerate() {
                bytes[..8].copy_from_slice(&(offset + page as u64 * 4096).to_le_bytes());
            }
            file.write_all_at(&content[..size], offset).unwrap();
            offset += size as u64;
        }
        is_there(&file, &content, start..end);
        all_have.wait();
    }
}

/// Looks at some pages: each has its place, and then what one of `pages` has.
fn is_there(file: &File, pages: &[u8], range: std::ops::Range<u64>) {
    let mut found = [0; 4096];
    for offset in range.step_by(32 << 20) {
        file.read_exact_at(&mut found, offset).unwrap();
        assert_eq!(found[..8], offset.to_le_bytes());
        let mut pages = pages.chunks_exact(4096);
        assert!(pages.any(|page| page[8..] == found[8..]), "at {offset}");
    }
}

/// A thread that touches a page for the first time, or changes the memory map, may wait for one that waits
/// for memory with the map locked, as the thread that refills the spare does.
fn takes_no_memory(options: &[&str]) {
    let Some(machine) = Machine::new() else {
        return;
    };
    let size = DISK_BYTES.to_string();
    let arguments = ["--size", &size, "--attach", "fuse", "--for-swap"];
    let mut served = machine.home.serve(&[&arguments[..], options].concat());
    let path = Path::new(served.fact("path")).to_owned();
    let pid = served.child.id();
    // No thread is to begin meanwhile, as that of a control connection would; those of the start have.
    eventually("the server's threads are there", || {
        let seen = memory_map(pid);
        std::thread::sleep(Duration::from_millis(300));
        seen == memory_map(pid)
    });
    let before = (memory_map(pid), faults(pid));
    assert!(before.1.len() >= 2, "{before:?}");
    let all_have = Barrier::new(CLIENTS as usize);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (path, all_have) = (&path, &all_have);
            scope.spawn(move || write_all(path, client, all_have));
        }
    });
    let after = (memory_map(pid), faults(pid));
    assert_eq!(after.1, before.1, "faults: minor, major");
    assert_eq!(after.0, before.0);
    let stat = machine.home.json(&["stat", "uzram0", "--json"]);
    assert_eq!(stat["failed_writes"], 0, "{stat}");
    assert!(
        stat["mem_used_max"].as_u64().unwrap() > DISK_BYTES / 10 * 9,
        "{stat}"
    );
    served.ends();
    machine.is_clean();
}

#[test]
fn workers_for_swap_take_no_memory() {
    takes_no_memory(&[]);
}

/// Contexts for long pages are more than malloc has ready, and allocate when they are first used.
#[test]
fn workers_for_swap_take_no_memory_for_contexts() {
    takes_no_memory(&["--algorithm", "zstd", "--unit", "64K"]);
}

/// The warnings of a server with this limit of locked memory, with or without CAP_IPC_LOCK; it serves.
fn warnings(home: &Home, limit_mib: u64, right: &str, options: &[&str]) -> String {
    let limit_bytes = limit_mib << 20;
    let mut command = Command::new("prlimit");
    command.arg(format!("--memlock={limit_bytes}:{limit_bytes}"));
    if is_root() {
        command.args(["setpriv", &format!("--bounding-set={right}")]);
    }
    command.arg(env!("CARGO_BIN_EXE_uzram"));
    let arguments = ["serve", "--for-swap", "--size", "64M"];
    let mut served = home.start_by(command, &[&arguments[..], options].concat());
    served.wait_until_ready();
    let added = home.run(&["add", "--size", "64M", "--name", "later"]);
    assert_eq!(added.status, 0, "{added:?}");
    served.ends();
    served.stderr()
}

/// A limit on locked memory counts what is reserved, so under one not even a thread's stack could be had.
#[test]
fn a_server_for_swap_that_may_not_lock_memory_says_so_and_serves() {
    let home = Home::new();
    // The program alone is within the second, which only some may set.
    let hard_limit = getrlimit(Resource::Memlock).maximum;
    let may_set = |limit_mib: &u64| hard_limit.is_none_or(|most| limit_mib << 20 <= most);
    for limit_mib in [8, 64].into_iter().filter(may_set) {
        let said = warnings(&home, limit_mib, "-ipc_lock", &[]);
        assert!(said.contains("memory not locked"), "{said}");
    }
    // Containers often lack the right.
    let rights = rustix::thread::capabilities(None).unwrap().effective;
    if rights.contains(CapabilitySet::IPC_LOCK) {
        // It outlives the sandbox.
        let said = warnings(&home, 8, "+ipc_lock", &[]);
        assert!(!said.contains("memory not locked"), "{said}");
    }
    if let Some(machine) = Machine::new() {
        let said = warnings(&machine.home, 8, "-ipc_lock", &["--attach", "fuse"]);
        assert!(said.contains("memory not locked"), "{said}");
        machine.is_clean();
    }
}

/// The nice value of each thread.
fn niceness(pid: u32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let stats = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    let field = |stat: String| {
        let (_, fields) = stat.rsplit_once(") ")?;
        fields.split(' ').nth(16)?.parse().ok()
    };
    stats.map(|stat| field(stat).unwrap()).collect()
}

/// A program that waits for a page waits for the server's turn on a CPU.
#[test]
fn a_server_for_swap_runs_before_others_whatever_it_was_started_with() {
    let may = rustix::thread::capabilities(None).unwrap().effective;
    let may = may.contains(CapabilitySet::SYS_NICE);
    for right in ["+sys_nice", "-sys_nice"] {
        let home = Home::new();
        let mut command = Command::new("nice");
        command.args(["-n", "19"]);
        if is_root() {
            command.args(["setpriv", &format!("--bounding-set={right}")]);
        }
        command.arg(env!("CARGO_BIN_EXE_uzram"));
        let arguments = [
            "serve",
            "--for-swap",
            "--size",
            "64M",
            "--log-level",
            "info",
        ];
        let mut served = home.start_by(command, &arguments);
        served.wait_until_ready();
        let found = niceness(served.child.id());
        served.ends();
        let said = served.stderr();
        let nice = found[0];
        assert!(found.iter().all(|other| *other == nice), "{found:?}");
        assert!(said.contains(&format!("runs at nice {nice}")), "{said}");
        if may && right == "+sys_nice" {
            assert_eq!(nice, -20);
        }
        assert_eq!(said.contains("needs CAP_SYS_NICE"), nice != -20, "{said}");
    }
    let home = Home::new();
    let served = home.serve(&["--size", "64M"]);
    let own = rustix::process::getpriority_process(None).unwrap();
    assert!(niceness(served.child.id()).iter().all(|nice| *nice == own));
}

/// As the first program of a container often is: its session's leader has no number in it.
#[test]
fn a_server_for_swap_runs_where_its_session_began_outside_its_pid_namespace() {
    if !is_root() {
        return;
    }
    let home = Home::new();
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
    command.arg(env!("CARGO_BIN_EXE_uzram"));
    let mut served = home.start_by(command, &["serve", "--for-swap", "--size", "64M"]);
    served.wait_until_ready();
}

/// How often the thread that refills spares slept so far.
fn maintenance_pauses(served: &Served) -> u64 {
    let statuses = statuses(served);
    let mut statuses = statuses.iter();
    let status = statuses.find(|status| field(status, "Name") == "uzram-maintain");
    let status = status.expect("a server has the thread");
    field(status, "voluntary_ctxt_switches").parse().unwrap()
}

/// A burst of writes uses a spare up in less time than an idle server's pauses grow to, 640 ms. A
/// server for swap looks every 20 ms, and no more often, for every wake-up costs power.
#[test]
fn a_server_for_swap_keeps_looking_for_a_used_spare() {
    for (options, expected) in [(&["--for-swap"][..], 12..=100), (&[][..], 0..=4)] {
        let home = Home::new();
        let served = home.serve(&[&["--size", "64M"], options].concat());
        // Pauses double from 5 ms: within this time they would have reached their end.
        std::thread::sleep(Duration::from_millis(1500));
        let before = maintenance_pauses(&served);
        std::thread::sleep(Duration::from_millis(1280));
        let pauses = maintenance_pauses(&served) - before;
        assert!(expected.contains(&pauses), "{options:?}: {pauses}");
    }
}

/// Runs `script` in the home, where mounts are its own.
#[track_caller]
fn run_with_own_mounts(machine: &Machine, script: &str) -> Output {
    // Disks of other tests that are mounted here, too, could not be taken down.
    let others = r#"for disk in $(awk '$1 ~ "^(/dev/loop|uzram)" { print $2 }' /proc/mounts); do umount -l "$disk" || true; done"#;
    let script = format!("{others}\n{script}");
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-euc", &script])
        .current_dir(machine.home.dir.path())
        .env("XDG_RUNTIME_DIR", machine.home.dir.path())
        .env("UZRAM", env!("CARGO_BIN_EXE_uzram"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    output
}

/// The kernel's settings are everybody's, so files stand in for them, in a mount namespace of its own.
#[test]
fn watermarks_stay_raised_until_the_last_swap_is_down() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let script = r#"
        for setting in scale boost; do
            cp "/proc/sys/vm/watermark_${setting}_factor" "$PWD/$setting"
            mount --bind "$PWD/$setting" "/proc/sys/vm/watermark_${setting}_factor"
        done
        echo 1000 > min
        mount --bind "$PWD/min" /proc/sys/vm/min_free_kbytes
        settings() { echo "$(cat scale) $(cat boost)"; }
        is() { [ "$(settings)" = "$1" ] || { echo "$2: $(settings), not $1"; exit 1; }; }
        up() { "$UZRAM" up --size 64M --swap --name "$1" > said; }
        before="10 15000"
        echo 10 > scale
        echo 15000 > boost
        up a
        raised=$(settings)
        [ "$(cat scale)" -gt 10 ]
        [ "$(cat boost)" = 0 ]
        up b
        is "$raised" "two up"
        "$UZRAM" down a
        is "$raised" "one down"
        "$UZRAM" down b
        is "$before" "both down"
        up a
        kill -9 "$(sed -n 's/.*served by process \([0-9]*\).*/\1/p' said)"
        is "$raised" killed
        "$UZRAM" down a
        is "$before" "killed and down"
        # Found out after they were raised.
        if "$UZRAM" up --size 4K --swap --name c; then exit 1; fi
        is "$before" "failed"
        echo 1000 > scale
        up a
        is "1000 0" "higher before"
        "$UZRAM" down a
        is "1000 15000" "higher before, and after"
        [ "$(cat min)" = 1000 ] || { echo "min: $(cat min)"; exit 1; }
        "$UZRAM" up --size 64M --swap --survive --name d
        [ "$(cat min)" -gt 10000 ] || { echo "min with --survive: $(cat min)"; exit 1; }
        "$UZRAM" down d
        [ "$(cat min)" = 1000 ] || { echo "min after it: $(cat min)"; exit 1; }
    "#;
    let output = run_with_own_mounts(&machine, script);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("uzram down b sets 10 15000 1000 again"),
        "{said}"
    );
    machine.is_clean();
}

/// The settings are everybody's, so files stand in for them, in a mount namespace of its own.
#[test]
fn zswap_is_put_in_front_and_set_back() {
    let Some(machine) = Machine::new() else {
        return;
    };
    if !std::path::Path::new("/sys/module/zswap/parameters").exists() {
        return eprintln!("left out: this kernel has no zswap");
    }
    let script = r#"
        mkdir zswap
        for setting in "compressor lzo" "max_pool_percent 20" "enabled N"; do
            echo "${setting#* }" > "zswap/${setting% *}"
        done
        mount --bind "$PWD/zswap" /sys/module/zswap/parameters
        settings() { cat zswap/compressor zswap/max_pool_percent zswap/enabled | tr '\n' ' '; }
        # What is written is not followed by a line's end.
        is() { set -- "$(settings | tr -d ' ')" "$(echo "$1" | tr -d ' ')" "$2"
               [ "$1" = "$2" ] || { echo "$3: $1, not $2"; exit 1; }; }
        up() { "$UZRAM" up --size 64M --swap --priority 1 --name "$@" > said 2>&1; }
        before="lzo 20 N"
        up a
        grep -q 'this kernel has zswap: up --swap --zswap' said
        is "$before" "not asked for"
        if up a --zswap; then exit 1; fi
        grep -q 'zswap off (and not --zswap)' said
        up b --zswap
        grep -q 'uzram down b sets compressor lzo, max_pool_percent 20, enabled N again' said
        is "lz4 25 Y" "one up"
        up c --zswap
        "$UZRAM" down b
        is "lz4 25 Y" "one down"
        "$UZRAM" down a
        "$UZRAM" down c
        is "$before" "all down"
        up a --zswap
        kill -9 "$(sed -n 's/.*served by process \([0-9]*\).*/\1/p' said)"
        "$UZRAM" down a
        is "$before" "killed and down"
        rm zswap/enabled
        if up a --zswap; then exit 1; fi
        grep -q 'this kernel has no zswap' said
        "$UZRAM" down a
    "#;
    run_with_own_mounts(&machine, script);
    machine.is_clean();
}
