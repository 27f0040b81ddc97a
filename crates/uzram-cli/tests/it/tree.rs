//! `serve --tree`: zram's files, as the kernel has them.

use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::nbd_client::NbdClient;
use crate::support::{Home, PATIENCE, Served, eventually, has_ended};

/// A server with a tree; unmounted whatever happens.
pub struct Tree {
    pub home: Home,
    pub directory: PathBuf,
    served: Option<Served>,
}

const E2BIG: i32 = 7;
const EACCES: i32 = 13;
pub const EBUSY: i32 = 16;
pub const ENODEV: i32 = 19;
pub const EINVAL: i32 = 22;
pub const ERANGE: i32 = 34;

impl Tree {
    /// None where nothing can be mounted.
    pub fn new(options: &[&str]) -> Option<Tree> {
        if !rustix::process::geteuid().is_root() || !std::path::Path::new("/dev/fuse").exists() {
            eprintln!("left out: mounting takes root and /dev/fuse");
            return None;
        }
        let home = Home::new();
        let directory = home.dir.path().join("tree");
        fs::create_dir(&directory).unwrap();
        let tree = ["--tree", directory.to_str().unwrap()];
        let served = home.serve(&[&tree[..], options].concat());
        Some(Tree {
            home,
            directory,
            served: Some(served),
        })
    }

    pub fn path(&self, file: &str) -> PathBuf {
        match file {
            "hot_add" | "hot_remove" => self.directory.join("class/zram-control").join(file),
            file => self.directory.join("block").join(file),
        }
    }

    pub fn read(&self, file: &str) -> String {
        fs::read_to_string(self.path(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
    }

    /// A column of a file of numbers, counted from 0.
    pub fn column(&self, file: &str, column: usize) -> u64 {
        let line = self.read(file);
        let number = line.split_whitespace().nth(column).unwrap();
        number.parse().unwrap()
    }

    /// As `printf VALUE > FILE`: the errno, or none.
    pub fn write(&self, file: &str, value: &[u8]) -> Result<(), i32> {
        let errno = |error: std::io::Error| error.raw_os_error().unwrap();
        let mut file = fs::File::create(self.path(file)).map_err(errno)?;
        let length = file.write(value).map_err(errno)?;
        assert_eq!(length, value.len().min(4096));
        Ok(())
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let Some(mut served) = self.served.take() else {
            return;
        };
        if !std::thread::panicking() {
            return served.ends();
        }
        // It takes its disks along, if it can.
        served.signal("TERM");
        let until = Instant::now() + PATIENCE;
        while matches!(served.child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = rustix::mount::unmount(&self.directory, rustix::mount::UnmountFlags::DETACH);
        let _ = served.child.kill();
        // Its log has the reason of each errno.
        eprintln!("the server said:\n{}", served.stderr());
    }
}

#[test]
fn a_disk_is_made_by_its_files_alone() {
    let Some(tree) = Tree::new(&[]) else {
        return;
    };
    assert_eq!(
        fs::read_dir(tree.directory.join("block")).unwrap().count(),
        0
    );
    assert_eq!(tree.read("hot_add"), "0\n");
    assert_eq!(tree.read("hot_add"), "1\n");
    // One disk per open, however often it is read.
    let mut file = fs::File::open(tree.path("hot_add")).unwrap();
    let mut number = String::new();
    file.read_to_string(&mut number).unwrap();
    for _ in 0..3 {
        use std::os::unix::fs::FileExt;
        let mut again = [0; 2];
        file.read_exact_at(&mut again, 0).unwrap();
        assert_eq!((number.as_bytes(), &again), (&b"2\n"[..], b"2\n"));
    }
    drop(file);
    assert_eq!(
        fs::read_dir(tree.directory.join("block")).unwrap().count(),
        3
    );

    assert_eq!(tree.read("uzram0/initstate"), "0\n");
    assert_eq!(tree.read("uzram0/disksize"), "0\n");
    assert!(tree.read("uzram0/comp_algorithm").contains("[auto] "));
    for (file, value) in [
        ("reset", &b"1"[..]),
        ("comp_algorithm", b"lz4\n"),
        ("algorithm_params", b"priority=0 algo=lz4 level=3"),
        ("mem_limit", b"2M"),
        ("disksize", b"1G\n"),
        ("mem_used_max", b"0\n"),
        ("compact", b"anything"),
    ] {
        assert_eq!(
            tree.write(&format!("uzram0/{file}"), value),
            Ok(()),
            "{file}"
        );
    }
    assert_eq!(tree.read("uzram0/disksize"), "1073741824\n");
    assert_eq!(tree.read("uzram0/initstate"), "1\n");
    assert_eq!(tree.read("uzram0/size"), "2097152\n");
    let algorithms = tree.read("uzram0/comp_algorithm");
    assert!(
        algorithms.contains("[lz4] ") && algorithms.ends_with(" \n"),
        "{algorithms}"
    );
    assert_eq!(
        tree.read("uzram0/mm_stat"),
        "       0        0        0  2097152        0        0        0        0        0\n"
    );
    assert_eq!(
        tree.read("uzram0/io_stat"),
        "       0        0        0        0\n"
    );
    assert_eq!(
        tree.read("uzram0/debug_stat"),
        "version: 1\n       0        0\n"
    );
    assert_eq!(tree.read("uzram0/inflight"), "       0        0\n");
    assert_eq!(tree.read("uzram0/stat").split_whitespace().count(), 17);
    assert_eq!(tree.read("uzram0/stat").len(), 17 * 9);
    // The same by the command.
    let stat = tree.home.json(&["stat", "uzram0", "--json"]);
    assert_eq!(
        (&stat["disksize"], &stat["mem_limit"]),
        (&(1 << 30).into(), &(2 << 20).into())
    );
    assert_eq!(tree.home.run(&["set", "uzram0", "reset", "1"]).status, 0);
    assert_eq!(tree.read("uzram0/disksize"), "0\n");
    assert_eq!(tree.write("hot_remove", b"1\n"), Ok(()));
    assert!(!tree.path("uzram1").exists());
    assert_eq!(tree.read("hot_add"), "1\n", "the first that is free");
}

#[test]
fn modes_and_refusals_are_the_kernels() {
    let Some(tree) = Tree::new(&[]) else {
        return;
    };
    tree.read("hot_add");
    let errno = |result: std::io::Result<fs::File>| result.unwrap_err().raw_os_error().unwrap();
    for (file, mode) in [
        ("uzram0/disksize", 0o644),
        ("uzram0/comp_algorithm", 0o644),
        ("uzram0/reset", 0o200),
        ("uzram0/mem_limit", 0o200),
        ("uzram0/algorithm_params", 0o200),
        ("uzram0/initstate", 0o444),
        ("uzram0/mm_stat", 0o444),
        ("hot_add", 0o400),
        ("hot_remove", 0o200),
    ] {
        use std::os::unix::fs::PermissionsExt;
        let found = fs::metadata(tree.path(file)).unwrap().permissions().mode();
        assert_eq!(found & 0o777, mode, "{file}");
        // Root, too, is held to it.
        let path = tree.path(file);
        if mode & 0o400 == 0 {
            assert_eq!(errno(fs::File::open(&path)), EACCES, "{file}");
        }
        if mode & 0o200 == 0 {
            assert_eq!(
                errno(fs::OpenOptions::new().write(true).open(&path)),
                EACCES
            );
        }
    }
    assert_eq!(errno(fs::File::create(tree.path("uzram0/new"))), EACCES);
    assert!(fs::remove_file(tree.path("uzram0/disksize")).is_err());
    assert!(fs::create_dir(tree.directory.join("d")).is_err());
    let long = [b'x'; 200];
    let huge = [b'9'; 30];
    for (file, value, errno) in [
        ("disksize", &b""[..], None),
        ("disksize", b"\n", Some(EINVAL)),
        ("disksize", b"0", Some(EINVAL)),
        ("disksize", b"lots", Some(EINVAL)),
        ("disksize", b"-1", Some(EINVAL)),
        ("disksize", &huge, Some(EINVAL)),
        ("disksize", b"\xff\xfe", Some(EINVAL)),
        ("disksize", b"1E", Some(12)),
        ("reset", b"0", Some(EINVAL)),
        ("reset", b"x", Some(EINVAL)),
        ("reset", b"65536", Some(ERANGE)),
        ("compact", b"1", Some(EINVAL)),
        ("mem_limit", b"x", Some(EINVAL)),
        ("mem_used_max", b"1", Some(EINVAL)),
        ("comp_algorithm", b"lz5", Some(EINVAL)),
        ("comp_algorithm", &long, Some(E2BIG)),
        ("algorithm_params", b"level", Some(EINVAL)),
        ("algorithm_params", b"level=x", Some(EINVAL)),
        ("algorithm_params", b"priority=4 level=1", Some(EINVAL)),
        ("algorithm_params", b"algo=zstd level=1", Some(EINVAL)),
        ("algorithm_params", b"dict=/etc/hostname", Some(EACCES)),
    ] {
        let outcome = tree.write(&format!("uzram0/{file}"), value);
        let shown = String::from_utf8_lossy(value);
        assert_eq!(outcome.err(), errno, "{file} {shown:?}");
    }
    assert_eq!(tree.read("uzram0/disksize"), "0\n");
    assert_eq!(tree.write("uzram0/disksize", b"1M"), Ok(()));
    for (file, value) in [
        ("disksize", &b"1M"[..]),
        ("comp_algorithm", b"lz4"),
        ("algorithm_params", b"level=1"),
    ] {
        assert_eq!(
            tree.write(&format!("uzram0/{file}"), value),
            Err(EBUSY),
            "{file}"
        );
    }
    for (value, errno) in [
        (&b"7"[..], ENODEV),
        (b"-1", EINVAL),
        (b"x", EINVAL),
        (b"4294967296", ERANGE),
    ] {
        assert_eq!(tree.write("hot_remove", value), Err(errno));
    }
}

#[test]
fn a_value_comes_in_one_piece_wherever_it_lies() {
    const PAGE: usize = 4096;
    let Some(tree) = Tree::new(&[]) else {
        return;
    };
    tree.read("hot_add");
    let value = b"algo=deflate priority=2";
    let mut memory = vec![0; 2 * PAGE];
    let boundary = PAGE - memory.as_ptr().addr() % PAGE;
    for before in 1..value.len().min(boundary) {
        let place = boundary - before..boundary - before + value.len();
        memory[place.clone()].copy_from_slice(value);
        let written = tree.write("uzram0/recomp_algorithm", &memory[place]);
        assert_eq!(written, Ok(()), "{before} bytes before a page's end");
    }
    assert!(tree.read("uzram0/recomp_algorithm").contains("[deflate]"));
}

#[test]
fn a_value_names_files_in_allowed_directories_only() {
    let files = tempfile::tempdir().unwrap();
    let path = |name: &str| files.path().join(name);
    fs::write(path("dict"), uzram_testkit::noise(1, 4096)).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", path("out")).unwrap();
    let Some(tree) = Tree::new(&["--tree-files", files.path().to_str().unwrap()]) else {
        return;
    };
    tree.read("hot_add");
    tree.write("uzram0/comp_algorithm", b"zstd").unwrap();
    let dict = |path: PathBuf| {
        let value = format!("dict={}", path.display());
        tree.write("uzram0/algorithm_params", value.as_bytes())
    };
    assert_eq!(dict(path("out")), Err(EACCES));
    assert_eq!(dict(path("../../etc/hostname")), Err(EACCES));
    assert_eq!(dict("/etc/hostname".into()), Err(EACCES));
    assert_eq!(dict(path("missing")), Err(2));
    assert_eq!(dict(path("dict")), Ok(()));
    tree.write("uzram0/disksize", b"1M").unwrap();
}

fn keeper_of(served: &Served) -> Pid {
    let pid = served.child.id();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let keeper = children.split_whitespace().next().expect("it has a keeper");
    Pid::from_raw(keeper.parse().unwrap()).unwrap()
}

#[test]
fn the_tree_of_a_killed_server_is_unmounted_also_while_it_is_used() {
    let Some(mut tree) = Tree::new(&["--size", "1M"]) else {
        return;
    };
    let mut served = tree.served.take().unwrap();
    let keeper = keeper_of(&served);
    for ends_the_server in [Signal::TERM, Signal::INT, Signal::HUP] {
        kill_process(keeper, ends_the_server).unwrap();
    }
    let mut held = fs::File::open(tree.path("uzram0/mm_stat")).unwrap();
    served.child.kill().unwrap();
    served.child.wait().unwrap();
    eventually("the directory is free", || {
        fs::read_dir(&tree.directory).is_ok_and(|entries| entries.count() == 0)
    });
    assert!(held.read_to_end(&mut Vec::new()).is_err());
    eventually("the keeper ends", || has_ended(keeper.as_raw_nonzero()));
}

#[test]
fn a_server_that_is_killed_leaves_no_hang_and_the_next_takes_its_place() {
    let Some(mut tree) = Tree::new(&[]) else {
        return;
    };
    tree.read("hot_add");
    let mut held = fs::File::open(tree.path("uzram0/mm_stat")).unwrap();
    let mut served = tree.served.take().unwrap();
    // The one who would unmount it.
    kill_process(keeper_of(&served), Signal::KILL).unwrap();
    served.child.kill().unwrap();
    served.child.wait().unwrap();
    let mut text = String::new();
    assert!(held.read_to_string(&mut text).is_err(), "{text}");
    assert!(fs::read(tree.path("uzram0/mm_stat")).is_err());
    drop(held);
    let directory = tree.directory.to_str().unwrap().to_owned();
    tree.served = Some(tree.home.serve(&["--tree", &directory]));
    assert_eq!(tree.read("hot_add"), "0\n");
    // Unmounted by force, with a file open: the server goes on, and ends.
    let held = fs::File::open(tree.path("uzram0/mm_stat")).unwrap();
    let detach = rustix::mount::UnmountFlags::DETACH | rustix::mount::UnmountFlags::FORCE;
    rustix::mount::unmount(&tree.directory, detach).unwrap();
    assert_eq!(
        tree.home
            .json(&["list", "--json"])
            .as_array()
            .unwrap()
            .len(),
        1
    );
    drop(held);
    tree.served.take().unwrap().ends();
    assert_eq!(tree.home.files(), Vec::<String>::new());
}

#[test]
fn the_name_of_a_server_that_died_meanwhile_is_taken() {
    let Some(tree) = Tree::new(&[]) else {
        return;
    };
    for _ in 0..2 {
        let mut other = tree.home.serve(&["--size", "1M"]);
        other.child.kill().unwrap();
        other.child.wait().unwrap();
        assert!(tree.home.files().contains(&"uzram0.nbd".to_owned()));
        assert_eq!(tree.read("hot_add"), "0\n");
        tree.write("uzram0/disksize", b"1M").unwrap();
        let socket = tree.home.state().join("uzram0.nbd");
        drop(NbdClient::connect(&socket, "uzram0").unwrap());
        eventually("nobody is connected", || {
            tree.write("hot_remove", b"0").is_ok()
        });
    }
    // A socket that somebody listens at is not taken.
    let socket = tree.home.state().join("uzram0.nbd");
    let options = ["--size", "1M", "--name", "a", "--socket"];
    let mut other = tree
        .home
        .serve(&[&options[..], &[socket.to_str().unwrap()]].concat());
    let refused = fs::read(tree.path("hot_add")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(EBUSY));
    drop(NbdClient::connect(&socket, "a").unwrap());
    other.ends();
}

#[test]
fn a_mount_point_in_use_does_not_keep_a_server() {
    let Some(mut tree) = Tree::new(&["--size", "1M"]) else {
        return;
    };
    let held = fs::File::open(tree.path("uzram0/mm_stat")).unwrap();
    tree.served.take().unwrap().ends();
    // The open file keeps the tree, and no name.
    let left = tree.home.files();
    assert!(!left.iter().any(|name| name.ends_with(".lock")), "{left:?}");
    eventually("the directory is free", || {
        fs::read_dir(&tree.directory).is_ok_and(|entries| entries.count() == 0)
    });
    drop(held);
}

#[test]
fn statistics_are_read_while_the_disk_comes_and_goes() {
    let Some(tree) = Tree::new(&[]) else {
        return;
    };
    tree.read("hot_add");
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut file = fs::File::open(tree.path("uzram0/mm_stat")).unwrap();
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    use std::io::Seek;
                    let mut text = String::new();
                    file.rewind().unwrap();
                    file.read_to_string(&mut text).unwrap();
                    assert_eq!(text.split_whitespace().count(), 9, "{text}");
                }
            });
        }
        for _ in 0..200 {
            tree.write("uzram0/disksize", b"4M").unwrap();
            tree.write("uzram0/reset", b"1").unwrap();
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn a_thousand_disks_come_and_go() {
    const DISKS: usize = 1000;
    let Some(tree) = Tree::new(&[]) else {
        return;
    };
    for number in 0..DISKS {
        assert_eq!(tree.read("hot_add"), format!("{number}\n"));
    }
    let shown = || fs::read_dir(tree.directory.join("block")).unwrap().count();
    assert_eq!(shown(), DISKS);
    assert_eq!(tree.write("uzram999/disksize", b"1M"), Ok(()));
    assert_eq!(tree.read("uzram999/initstate"), "1\n");
    for number in (0..DISKS).rev() {
        assert_eq!(
            tree.write("hot_remove", number.to_string().as_bytes()),
            Ok(())
        );
    }
    assert_eq!(shown(), 0);
}
