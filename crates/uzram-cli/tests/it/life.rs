//! From `serve` to the end, wanted or not.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use crate::nbd_client::NbdClient;
use crate::support::{Home, eventually};

const NAMES: [&str; 64] = [
    "name",
    "device",
    "path",
    "pid",
    "holder",
    "take_overs",
    "last_end",
    "replayed",
    "disksize",
    "initstate",
    "comp_algorithm",
    "algorithm_params",
    "recomp_algorithm",
    "ages",
    "backing_dev",
    "writeback_limit",
    "writeback_limit_enable",
    "writeback_batch_size",
    "compressed_writeback",
    "pool",
    "unit",
    "checksum",
    "read_only",
    "sandbox",
    "log_level",
    "endpoint",
    "connections",
    "orig_data_size",
    "compr_data_size",
    "mem_used_total",
    "mem_limit",
    "mem_used_max",
    "same_pages",
    "pages_compacted",
    "huge_pages",
    "huge_pages_since",
    "failed_reads",
    "failed_writes",
    "invalid_io",
    "notify_free",
    "bd_count",
    "bd_reads",
    "bd_writes",
    "read_requests",
    "read_bytes",
    "write_requests",
    "write_bytes",
    "discard_requests",
    "discard_bytes",
    "flush_requests",
    "read_latency",
    "write_latency",
    "compr_ratio",
    "mem_ratio",
    "recompressed_pages",
    "incompressible_pages",
    "bd_failed_writes",
    "slow_path_writes",
    "early_rejections",
    "lost_pages",
    "mem_spare",
    "mem_resident",
    "table",
    "side_tables",
];

fn page(fill: u8) -> Vec<u8> {
    (0..4096)
        .map(|i| if i % 7 == 0 { (i / 7) as u8 } else { fill })
        .collect()
}

#[test]
fn serve_stat_reset_and_end() {
    let home = Home::new();
    let mut served = home.serve(&["--size", "64M", "--mem-limit", "1M"]);
    let socket = home.state().join("uzram0.nbd");
    assert!(served.said.starts_with("uzram0 is a compressed RAM disk"));
    assert_eq!(served.fact("size"), "64 MiB (67108864 bytes)");
    assert_eq!(served.fact("algorithm"), "auto");
    assert_eq!(served.fact("memory limit"), "1 MiB (1048576 bytes)");
    let uri = format!("nbd+unix:///uzram0?socket={}", socket.display());
    assert_eq!(served.fact("URI"), uri);
    assert!(served.said.contains("uzram stat uzram0"));

    let mut client = NbdClient::connect(&socket, "uzram0").unwrap();
    assert_eq!(client.write(0, &page(1)).unwrap(), 0);
    assert_eq!(client.write(4096, &[0x55; 4096]).unwrap(), 0);
    assert_eq!(client.read(0, 4096).unwrap(), page(1));

    let stat = home.json(&["stat", "uzram0", "--json"]);
    let names: Vec<_> = stat
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(names, NAMES);
    assert_eq!(stat["pid"], served.child.id());
    assert_eq!(stat["disksize"], 64 << 20);
    assert_eq!(stat["mem_limit"], 1 << 20);
    assert_eq!(stat["orig_data_size"], 8192);
    assert_eq!(stat["same_pages"], 1);
    assert_eq!(stat["connections"], 1);
    let compressed = stat["compr_data_size"].as_f64().unwrap();
    let ratio = stat["compr_ratio"].as_f64().unwrap();
    assert!(
        (ratio - 4096.0 / compressed).abs() < 0.001,
        "same-filled pages flatter: {stat}"
    );

    let counts = |stat: &serde_json::Value| {
        let of = |name: &str| stat[name].as_u64().unwrap();
        [
            (of("read_requests"), of("read_bytes")),
            (of("write_requests"), of("write_bytes")),
        ]
    };
    assert_eq!(counts(&stat), [(1, 4096), (2, 8192)]);
    let [reads, writes] = ["read_latency", "write_latency"].map(|name| stat[name].clone());
    assert_eq!((&reads["count"], &writes["count"]), (&1.into(), &2.into()));
    assert!(reads["p99_ns"].as_u64() > Some(0), "{stat}");
    let text = home.run(&["stat", "uzram0"]).stdout;
    assert!(
        text.contains("  read_latency") && text.contains("s  time of reads: half"),
        "{text}"
    );

    let ran = home.run(&["reset", "uzram0"]);
    ran.refused(1, "uzram0: 1 client is connected");
    assert_eq!(
        client.read(0, 4096).unwrap(),
        page(1),
        "a refused reset changes nothing"
    );

    drop(client);
    eventually("the client is gone", || {
        home.json(&["stat", "uzram0", "--json"])["connections"] == 0
    });
    assert_eq!(home.run(&["reset", "uzram0"]).stdout, "uzram0 is empty.\n");
    let stat = home.json(&["stat", "uzram0", "--json"]);
    assert_eq!(stat["orig_data_size"], 0);
    assert_eq!(stat["mem_used_total"], 0);
    assert_eq!(counts(&stat), [(0, 0), (0, 0)]);
    assert_eq!(stat["mem_limit"], 1 << 20);
    let mut client = NbdClient::connect(&socket, "uzram0").unwrap();
    assert_eq!(client.read(0, 4096).unwrap(), vec![0; 4096]);

    served.ends();
    assert_eq!(
        client.stream.read(&mut [0]).unwrap(),
        0,
        "the client sees the end"
    );
    assert!(home.files().is_empty(), "{:?}", home.files());
    assert_eq!(served.stderr(), "");
}

#[test]
fn stat_and_list_for_people_and_scripts() {
    let home = Home::new();
    let none = "No disk is served. To make one: uzram serve --size 1G\n";
    assert_eq!(home.run(&["list"]).stdout, none);
    assert_eq!(home.run(&["stat"]).stdout, none);
    assert_eq!(home.json(&["list", "--json"]), serde_json::json!([]));
    home.run(&["stat", "x"])
        .refused(1, "no disk \"x\"; none is served");

    let _b = home.serve(&[
        "--size",
        "8M",
        "--name",
        "b",
        "--algorithm",
        "zstd",
        "--unit",
        "16K",
    ]);
    let _a = home.serve(&["--size", "16M", "--name", "a"]);
    let list = home.run(&["list"]).stdout;
    let lines: Vec<_> = list.lines().collect();
    assert_eq!(lines.len(), 3, "{list}");
    assert!(lines[0].starts_with("NAME  ALGORITHM  DISKSIZE"), "{list}");
    assert!(lines[1].starts_with("a     auto         16 MiB"), "{list}");
    assert!(lines[2].starts_with("b     zstd          8 MiB"), "{list}");

    let list = home.json(&["list", "--json"]);
    assert_eq!(list[1]["name"], "b");
    assert_eq!(list[1]["comp_algorithm"], "zstd");
    assert_eq!(list[1]["compr_ratio"], serde_json::Value::Null);
    assert_eq!(home.json(&["stat", "--json"]).as_array().unwrap().len(), 2);
    home.run(&["stat", "x"]).refused(1, "served are: a, b");
    home.run(&["stat", "--raw"])
        .refused(2, "2 disks are served; name one");

    let raw = home.run(&["stat", "a", "--raw"]).stdout;
    let columns: Vec<_> = raw
        .lines()
        .map(|line| line.split_whitespace().count())
        .collect();
    assert_eq!(columns, [9, 4], "{raw}");
    assert!(
        raw.starts_with("       0        0 "),
        "the kernel's width: {raw}"
    );
    let people = home.run(&["stat", "b"]).stdout;
    assert!(
        people
            .lines()
            .any(|line| line.starts_with("  unit ") && line.contains(" 16 KiB (16384 bytes)")),
        "{people}"
    );
    assert!(people.contains("\nmm_stat\n  orig_data_size "), "{people}");
    assert!(!people.contains('\x1b'), "colours in a pipe");
}

#[test]
fn names_count_up_and_belong_to_one_server() {
    let home = Home::new();
    let first = home.serve(&["--size", "1M"]);
    let second = home.serve(&["--size", "1M"]);
    assert!(first.said.starts_with("uzram0 ") && second.said.starts_with("uzram1 "));
    let ran = home.run(&["serve", "--size", "1M", "--name", "uzram0"]);
    ran.refused(
        1,
        &format!(
            "name uzram0: already served by process {}",
            first.child.id()
        ),
    );
    assert!(
        home.run(&["stat", "uzram0"]).status == 0,
        "the first goes on"
    );
}

#[test]
fn of_two_that_start_at_once_with_one_name_one_wins() {
    let home = Home::new();
    for round in 0..8 {
        let mut both = [(); 2].map(|()| home.start(&["--size", "1M", "--name", "disk"]));
        let ready = both.each_mut().map(|served| served.is_ready());
        assert_eq!(
            ready.iter().filter(|ready| **ready).count(),
            1,
            "round {round}: {ready:?}"
        );
        let loser = usize::from(ready[0]);
        assert_eq!(both[loser].wait(), Some(1));
        assert!(both[loser].stderr().contains("already served"));
        let socket = home.state().join("disk.nbd");
        NbdClient::connect(&socket, "disk").expect("the winner's socket is there");
        assert_eq!(home.run(&["stat", "disk"]).status, 0);
        both[1 - loser].signal("INT");
        assert_eq!(both[1 - loser].wait(), Some(0));
    }
}

#[test]
fn a_killed_server_is_no_obstacle() {
    let home = Home::new();
    let mut killed = home.serve(&["--size", "1M", "--name", "disk"]);
    killed.signal("KILL");
    assert_eq!(killed.wait(), None);
    assert_eq!(
        home.files(),
        ["0.control", "0.server", "disk.lock", "disk.nbd"],
        "leftovers"
    );
    let _served = home.serve(&["--size", "1M", "--name", "disk"]);
    assert_eq!(home.json(&["list", "--json"]).as_array().unwrap().len(), 1);
}

#[test]
fn a_killed_server_stays_listed_until_it_is_down() {
    let home = Home::new();
    let _alive = home.serve(&["--size", "1M", "--name", "alive"]);
    let mut killed = home.serve(&["--size", "1M", "--name", "dead"]);
    let pid = killed.child.id();
    killed.signal("KILL");
    killed.wait();
    std::fs::write(home.state().join("notes.txt"), "").unwrap();
    for _ in 0..2 {
        let list = home.run(&["list"]);
        assert_eq!(list.status, 0);
        let line = format!("dead  dead: its server ({pid}) was killed; uzram down dead cleans up");
        assert!(list.stdout.contains("alive"), "{list:?}");
        assert!(list.stdout.lines().any(|found| found == line), "{list:?}");
    }
    let stat = home.run(&["stat"]).stdout;
    assert!(stat.ends_with("; uzram down dead cleans up\n"), "{stat}");
    let list = home.json(&["list", "--json"]);
    let dead = serde_json::json!({"name": "dead", "state": "dead", "dead_pid": pid,
                                  "remedy": "uzram down dead"});
    assert_eq!((list.as_array().unwrap().len(), &list[1]), (2, &dead));
    home.run(&["stat", "dead"])
        .refused(1, "dead: its server was killed; uzram down dead cleans up");
    assert_eq!(home.run(&["down", "dead"]).stdout, "dead is down.\n");
    assert_eq!(
        home.files(),
        [
            "0.control",
            "0.server",
            "alive.lock",
            "alive.nbd",
            "notes.txt"
        ]
    );
    let again = home.run(&["down", "dead"]);
    assert_eq!(again.stdout, "dead is not up; nothing to do.\n");
}

/// A killed server's socket is closed before its locks are free, which takes seconds for a large disk.
#[test]
fn a_server_that_is_just_dying_is_waited_for_and_said_to_be_killed() {
    let home = Home::new();
    let said = "dead: its server was killed; uzram down dead cleans up";
    let commands: [&[&str]; 4] = [
        &["stat", "dead"],
        &["set", "dead", "mem_limit", "1M"],
        &["compact", "dead"],
        &["remove", "dead"],
    ];
    let lock = home.just_dying();
    std::thread::scope(|scope| {
        let asked = commands.map(|command| scope.spawn(|| home.run(command)));
        // Those that do not wait have answered by now.
        std::thread::sleep(Duration::from_millis(300));
        drop(lock);
        for ran in asked {
            ran.join().unwrap().refused(1, said);
        }
    });
}

#[test]
fn a_server_that_is_just_dying_is_no_error_of_a_listing() {
    let home = Home::new();
    drop(home.just_dying());
    // A listing waits for one second only, and a busy machine may hold this test up for longer than that.
    let is_seen = (0..10).any(|_| {
        let lock = home.hold_dead();
        let list = std::thread::scope(|scope| {
            let list = scope.spawn(|| home.run(&["list"]));
            std::thread::sleep(Duration::from_millis(300));
            drop(lock);
            list.join().unwrap()
        });
        list.status == 0
            && list.stderr.is_empty()
            && list.stdout.contains("was killed; uzram down dead")
    });
    assert!(is_seen);
}

impl Home {
    /// A killed server of the disk `dead` whose lock is not free yet. This process holds the
    /// disk's lock, and nobody listens.
    fn just_dying(&self) -> std::fs::File {
        let mut killed = self.serve(&["--size", "1M", "--name", "dead"]);
        killed.signal("KILL");
        killed.wait();
        self.hold_dead()
    }

    /// Takes the lock of the disk `dead`, whose server is dead.
    fn hold_dead(&self) -> std::fs::File {
        let lock = std::fs::File::open(self.state().join("dead.lock")).unwrap();
        eventually("the lock is free", || lock.try_lock().is_ok());
        lock
    }
}

#[test]
fn a_server_that_hangs_is_named_and_does_not_hide_the_others() {
    let home = Home::new();
    let _alive = home.serve(&["--size", "1M", "--name", "alive"]);
    // Alive, as it holds the lock, and deaf: nobody accepts on its control socket any more.
    let lock = home.state().join("deaf.lock");
    let control = home.state().join("deaf.control");
    drop(UnixListener::bind(&control).unwrap());
    std::fs::write(&lock, format!("{{\"pid\":4,\"control\":{control:?}}}")).unwrap();
    let held = std::fs::File::open(&lock).unwrap();
    held.lock().unwrap();
    // And one that is stopped: it takes requests and answers none.
    let stopped = home.serve(&["--size", "1M", "--name", "stopped"]);
    stopped.signal("STOP");
    let began = Instant::now();
    let list = home.run(&["list"]);
    assert_eq!(list.status, 0);
    assert!(list.stdout.contains("alive"), "{list:?}");
    assert!(
        list.stderr.contains("deaf: process 4 does not answer"),
        "{list:?}"
    );
    assert!(list.stderr.contains("stopped: process"), "{list:?}");
    assert!(list.stderr.contains("timed out"), "{list:?}");
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
    stopped.signal("CONT");
    let disksize = || home.json(&["list", "--json"])[2]["disksize"].clone();
    eventually("it goes on", || disksize() == 1 << 20);
    let list = home.json(&["list", "--json"]);
    assert!(
        list[1]["error"]
            .as_str()
            .unwrap()
            .contains("does not answer"),
        "{list}"
    );
}

#[test]
fn a_server_is_asked_once_for_all_its_disks() {
    let home = Home::new();
    let mut served = home.serve(&["--size", "1M", "--name", "d0", "--log-level", "debug"]);
    for number in 1..8 {
        let added = home.run(&["add", "--size", "1M", "--name", &format!("d{number}")]);
        assert_eq!(added.status, 0);
    }
    let listed = home.json(&["list", "--json"]);
    assert_eq!(listed.as_array().unwrap().len(), 8);
    assert_eq!(listed[7]["name"], "d7");
    // Eight waits for it would be 24 seconds.
    served.signal("STOP");
    let began = Instant::now();
    let list = home.run(&["list"]);
    let lines = list
        .stderr
        .lines()
        .filter(|line| line.contains("timed out"));
    assert_eq!(lines.count(), 8, "{list:?}");
    assert!(began.elapsed() < Duration::from_secs(12));
    served.signal("CONT");
    served.ends();
    let log = served.stderr();
    assert!(!log.contains("asked: Stat"), "{log}");
    assert!(log.contains("asked: List"), "{log}");
}

#[test]
fn a_silent_client_does_not_hold_up_the_end() {
    let home = Home::new();
    let mut served = home.serve(&["--size", "1M"]);
    let socket = home.state().join("uzram0.nbd");
    let mut client = NbdClient::connect(&socket, "uzram0").unwrap();
    assert_eq!(client.write(0, &page(3)).unwrap(), 0);
    let began = Instant::now();
    served.signal("INT");
    assert_eq!(served.wait(), Some(0));
    assert!(
        began.elapsed() < Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let home = Home::new();
    let mut served = home.serve(&["--size", "64M"]);
    let socket = home.state().join("uzram0.nbd");
    let mut client = NbdClient::connect(&socket, "uzram0").unwrap();
    // A reply that nobody takes: the drain has something to wait for.
    client.ask_read(0, 32 << 20).unwrap();
    let mut first = [0; 16];
    client.stream.read_exact(&mut first).unwrap();
    let began = Instant::now();
    served.signal("TERM");
    std::thread::sleep(Duration::from_millis(300));
    assert!(
        served.child.try_wait().unwrap().is_none(),
        "it did not drain"
    );
    served.signal("INT");
    assert_eq!(served.wait(), Some(1));
    assert!(
        began.elapsed() < Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
}

#[test]
fn sockets_and_state_are_private() {
    let home = Home::new();
    let custom = home.dir.path().join("custom.sock");
    let _default = home.serve(&["--size", "1M"]);
    let _custom = home.serve(&["--size", "1M", "--socket", custom.to_str().unwrap()]);
    let mode =
        |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&home.state()), 0o700);
    for file in home.files() {
        assert_eq!(mode(&home.state().join(&file)), 0o600, "{file}");
    }
    assert_eq!(mode(&custom), 0o600);
}

#[test]
fn a_server_holds_many_disks_that_come_and_go() {
    let home = Home::new();
    let mut served = home.serve(&["--size", "8M", "--name", "first"]);
    let added = home.run(&[
        "add",
        "--size",
        "16M",
        "--name",
        "second",
        "--unit",
        "16K",
        "--mem-limit",
        "1M",
    ]);
    assert_eq!(added.status, 0, "{added:?}");
    assert!(
        added
            .stdout
            .starts_with("second is a compressed RAM disk of 16 MiB"),
        "{added:?}"
    );
    let stat = home.json(&["stat", "second", "--json"]);
    assert_eq!(
        (&stat["unit"], &stat["mem_limit"]),
        (&16384.into(), &(1 << 20).into())
    );
    assert_eq!(stat["pid"], served.child.id());
    assert_eq!(home.run(&["add", "--size", "1M"]).status, 0);
    let names = |home: &Home| -> Vec<String> {
        let list = home.json(&["list", "--json"]);
        let disks = list.as_array().unwrap().iter();
        disks
            .map(|disk| disk["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&home), ["first", "second", "uzram0"]);

    let [first, second] = ["first", "second"].map(|name| {
        let socket = home.state().join(format!("{name}.nbd"));
        NbdClient::connect(&socket, name).unwrap()
    });
    let (mut first, mut second) = (first, second);
    assert_eq!(second.write(0, &page(2)).unwrap(), 0);
    assert_eq!(
        first.read(0, 4096).unwrap(),
        vec![0; 4096],
        "pages of another disk"
    );
    home.run(&["remove", "second"])
        .refused(1, "second: 1 client is connected");
    assert_eq!(
        second.read(0, 4096).unwrap(),
        page(2),
        "a refused removal changes nothing"
    );
    drop(second);
    eventually("the client is gone", || {
        home.run(&["remove", "second"]).status == 0
    });
    assert_eq!(names(&home), ["first", "uzram0"]);
    assert!(
        !home.files().iter().any(|file| file.starts_with("second")),
        "{:?}",
        home.files()
    );
    assert_eq!(first.write(0, &page(1)).unwrap(), 0, "the others go on");
    home.run(&["remove", "second"])
        .refused(1, "no disk \"second\"");

    // The name is free, and the first disk may go like any other: the server stays.
    drop(first);
    eventually("the client is gone", || {
        home.run(&["remove", "first"]).status == 0
    });
    assert_eq!(home.run(&["remove", "uzram0"]).stdout, "uzram0 is gone.\n");
    assert_eq!(home.files(), ["0.control", "0.server"]);
    assert_eq!(
        home.run(&["add", "--size", "1M", "--name", "first"]).status,
        0
    );
    served.ends();
    assert!(home.files().is_empty(), "{:?}", home.files());
}

#[test]
fn who_uses_a_disk_is_named_and_can_be_hung_up_on() {
    let home = Home::new();
    let socket = home.dir.path().join("both.sock");
    let path = socket.to_str().unwrap();
    let _served = home.serve(&["--size", "1M", "--name", "a", "--socket", path]);
    assert_eq!(
        home.run(&["add", "--size", "1M", "--name", "b", "--socket", path])
            .status,
        0
    );
    assert_eq!(
        home.run(&[
            "add",
            "--size",
            "1M",
            "--name",
            "c",
            "--listen",
            "127.0.0.1:0"
        ])
        .status,
        0
    );
    let mut a = NbdClient::connect(&socket, "a").unwrap();
    let mut b = NbdClient::connect(&socket, "b").unwrap();
    let own = std::process::id();
    let said = format!("a: 1 client is connected (process {own}); disconnect it first");
    home.run(&["remove", "a"]).refused(1, &said);
    let more: Vec<_> = (0..3)
        .map(|_| NbdClient::connect(&socket, "a").unwrap())
        .collect();
    home.run(&["remove", "a"])
        .refused(1, &format!("4 clients are connected (process {own})"));

    let uri = home.json(&["stat", "c", "--json"])["endpoint"]
        .as_str()
        .unwrap()
        .to_owned();
    let address = uri
        .trim_start_matches("nbd://")
        .trim_end_matches("/c")
        .to_owned();
    let mut tcp = std::net::TcpStream::connect(address).unwrap();
    tcp.read_exact(&mut [0; 18]).unwrap();
    std::io::Write::write_all(&mut tcp, b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x01c").unwrap();
    tcp.read_exact(&mut [0; 10]).unwrap();
    let peer = tcp.local_addr().unwrap();
    home.run(&["remove", "c"])
        .refused(1, &format!("c: 1 client is connected ({peer})"));

    assert_eq!(home.run(&["remove", "a", "--force"]).stdout, "a is gone.\n");
    assert_eq!(a.stream.read(&mut [0]).unwrap_or(0), 0, "hung up");
    assert_eq!(
        b.write(0, &page(2)).unwrap(),
        0,
        "others at the same socket go on"
    );
    drop(more);
    home.run(&["remove", "a", "--force"])
        .refused(1, "no disk \"a\"");
}

#[test]
fn a_disk_is_added_to_the_server_that_is_meant() {
    let home = Home::new();
    home.run(&["add", "--size", "1M"])
        .refused(1, "no server runs; start one");
    let a = home.serve(&["--size", "1M", "--name", "a"]);
    let b = home.serve(&["--size", "1M", "--name", "b"]);
    let (a, b) = (a.child.id(), b.child.id());
    home.run(&["add", "--size", "1M"]).refused(
        2,
        &format!(
            "2 servers run; choose one with --server NAME or PID: process {a} (a), process {b} (b)"
        ),
    );
    home.run(&["add", "--size", "1M", "--server", "c"])
        .refused(1, "--server \"c\": no disk or server");
    let by_pid = b.to_string();
    assert_eq!(
        home.run(&["add", "--size", "1M", "--name", "x", "--server", "a"])
            .status,
        0
    );
    assert_eq!(
        home.run(&["add", "--size", "1M", "--name", "y", "--server", &by_pid])
            .status,
        0
    );
    assert_eq!(home.json(&["stat", "x", "--json"])["pid"], a);
    assert_eq!(home.json(&["stat", "y", "--json"])["pid"], b);
    home.run(&["add", "--size", "1M", "--name", "b", "--server", "a"])
        .refused(1, "name b: already served");
    home.run(&["add", "--size", "0"])
        .refused(2, "--size: size \"0\": nothing");
    home.run(&["add", "--size", "1M", "--algorithm", "lz5", "--server", "a"])
        .refused(1, "lz5");
}

#[test]
fn disks_of_one_address_are_exports_of_it() {
    let home = Home::new();
    let socket = home.dir.path().join("both.sock");
    let path = socket.to_str().unwrap();
    let _served = home.serve(&["--size", "1M", "--name", "a", "--socket", path]);
    assert_eq!(
        home.run(&["add", "--size", "2M", "--name", "b", "--socket", path])
            .status,
        0
    );
    let mut a = NbdClient::connect(&socket, "a").unwrap();
    let mut b = NbdClient::connect(&socket, "b").unwrap();
    assert_eq!(a.write(0, &page(1)).unwrap(), 0);
    assert_eq!(b.write(0, &page(2)).unwrap(), 0);
    assert_eq!(a.read(0, 4096).unwrap(), page(1));
    drop(a);
    eventually("a is free", || home.run(&["remove", "a"]).status == 0);
    assert_eq!(b.read(0, 4096).unwrap(), page(2), "the socket stays for b");
    drop(b);
    eventually("b is free", || home.run(&["remove", "b"]).status == 0);
    assert!(!socket.exists(), "nobody is left");
}

#[test]
fn a_watch_goes_on_until_its_disk_is_gone_or_nobody_reads() {
    use std::io::BufRead;
    let home = Home::new();
    let _served = home.serve(&["--size", "8M", "--name", "d", "--mem-limit", "1M"]);
    let watch = |args: &[&str]| {
        let mut command = home.command(&["stat"]);
        command.args(args).stdout(std::process::Stdio::piped());
        let mut child = command.stderr(std::process::Stdio::null()).spawn().unwrap();
        let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        (child, lines.map(Result::unwrap))
    };
    let (mut child, mut lines) = watch(&["d", "--watch=0.1"]);
    assert!(
        lines
            .next()
            .unwrap()
            .trim_start()
            .starts_with("SECONDS NAME")
    );
    let first = lines.next().unwrap();
    let columns: Vec<_> = first.split_whitespace().collect();
    assert_eq!(
        columns[1..],
        ["d", "-", "-", "0", "B", "0", "B", "1", "MiB", "-", "0"]
    );
    let mut client = NbdClient::connect(&home.state().join("d.nbd"), "d").unwrap();
    // Also if what the disk holds does not change.
    for _ in 0..2 {
        assert_eq!(client.write(0, &[5; 1 << 20]).unwrap(), 0);
        // SECONDS NAME READ/S WRITE/S: nothing is read, and then the rate.
        let is_seen = |line: String| {
            let words: Vec<_> = line.split_whitespace().collect();
            words[2] == "0" && words[3] != "0"
        };
        assert!(lines.by_ref().take(50).any(is_seen), "no write was seen");
    }
    drop(client);
    eventually("the client is gone", || {
        home.run(&["remove", "d"]).status == 0
    });
    assert!(lines.count() < 1000);
    assert_eq!(
        child.wait().unwrap().code(),
        Some(1),
        "it ends with the disk"
    );

    assert_eq!(home.run(&["add", "--size", "1M", "--name", "e"]).status, 0);
    let (mut child, mut lines) = watch(&["--watch=0.1", "--json"]);
    let line: serde_json::Value = serde_json::from_str(&lines.next().unwrap()).unwrap();
    assert!(line["elapsed_ms"].is_u64() && line["name"] == "e", "{line}");
    drop(lines);
    assert_eq!(child.wait().unwrap().code(), Some(0), "nobody reads");

    home.run(&["stat", "--watch=0"])
        .refused(2, "--watch 0: must be 0.1 to 86400 seconds");
    home.run(&["stat", "--watch=x"])
        .refused(2, "invalid value 'x'");
    home.run(&["stat", "--watch", "--raw"])
        .refused(2, "cannot be used with");
}
