//! Block nodes whose sizes come and go by zram's files: what scripts for zram do with `/dev/zramN`.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::eventually;
use crate::tree::{EBUSY, Tree};

fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
}

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    if !found {
        eprintln!("left out: {program} is not installed");
    }
    found
}

/// The block device of a disk of the tree.
fn node(tree: &Tree, name: &str) -> PathBuf {
    let stat = tree.home.json(&["stat", name, "--json"]);
    let path = PathBuf::from(stat["endpoint"].as_str().unwrap());
    assert!(fs::metadata(&path).unwrap().file_type().is_block_device());
    path
}

fn size_of(node: &Path) -> u64 {
    let name = node.file_name().unwrap().to_str().unwrap();
    let sectors = fs::read_to_string(format!("/sys/block/{name}/size")).unwrap();
    sectors.trim().parse::<u64>().unwrap() * 512
}

#[test]
fn a_node_is_there_before_its_size_and_every_file_system_fits_on_it() {
    let Some(tree) = Tree::new(&["--attach", "loop"]) else {
        return;
    };
    let mnt = tempfile::tempdir().unwrap();
    let mnt = mnt.path().to_str().unwrap();
    assert_eq!(tree.read("hot_add"), "0\n");
    let device = node(&tree, "uzram0");
    let shown = device.to_str().unwrap();
    assert_eq!(size_of(&device), 0);
    for (fs, size, flags) in [
        ("ext2", "26214400", "-qF"),
        ("ext3", "25M", "-qF"),
        ("ext4", "25M", "-qF"),
        ("xfs", "314572800", "-qf"),
        ("btrfs", "402653184", "-qf"),
    ] {
        let mkfs = format!("mkfs.{fs}");
        if !is_there(&mkfs) {
            continue;
        }
        tree.write("uzram0/comp_algorithm", b"lz4").unwrap();
        tree.write("uzram0/disksize", size.as_bytes()).unwrap();
        assert_eq!(
            size_of(&device).to_string() + "\n",
            tree.read("uzram0/disksize")
        );
        tree.write("uzram0/mem_limit", b"400M").unwrap();
        run(&mkfs, &[flags, shown]);
        let known = fs::read_to_string("/proc/filesystems").unwrap();
        if known
            .lines()
            .any(|line| line.split_whitespace().last() == Some(fs))
        {
            run("mount", &[shown, mnt]);
            let file = Path::new(mnt).join("zeroes");
            fs::write(file, vec![0; 4 << 20]).unwrap();
            rustix::fs::sync();
            assert_eq!(tree.write("uzram0/reset", b"1"), Err(EBUSY), "{fs}");
            assert_eq!(tree.write("hot_remove", b"0"), Err(EBUSY), "{fs}");
            run("umount", &[mnt]);
        } else {
            eprintln!("left out: this kernel mounts no {fs}");
        }
        assert!(
            tree.column("uzram0/mm_stat", 0) > tree.column("uzram0/mm_stat", 2),
            "{fs} compresses"
        );
        eventually("nobody has it open", || {
            tree.write("uzram0/reset", b"1").is_ok()
        });
        assert_eq!(
            (size_of(&device), tree.column("uzram0/mm_stat", 0)),
            (0, 0),
            "{fs}"
        );
    }
    for algorithm in tree.read("uzram0/comp_algorithm").split_whitespace() {
        let name = algorithm.trim_matches(['[', ']']);
        tree.write("uzram0/comp_algorithm", name.as_bytes())
            .unwrap();
        assert!(
            tree.read("uzram0/comp_algorithm")
                .contains(&format!("[{name}] "))
        );
    }
    tree.write("hot_remove", b"0").unwrap();
    assert!(!tree.path("uzram0").exists());
}

#[test]
fn who_has_a_node_open_keeps_it() {
    let Some(tree) = Tree::new(&["--attach", "loop"]) else {
        return;
    };
    tree.read("hot_add");
    tree.write("uzram0/disksize", b"1M").unwrap();
    let open = fs::File::open(node(&tree, "uzram0")).unwrap();
    assert_eq!(tree.write("uzram0/reset", b"1"), Err(EBUSY));
    assert_eq!(tree.write("hot_remove", b"0"), Err(EBUSY));
    assert_eq!(tree.read("uzram0/disksize"), "1048576\n");
    drop(open);
    eventually("the reset", || tree.write("uzram0/reset", b"1").is_ok());
}

/// Written to, each by its own thread, while others come and go.
#[test]
fn nodes_are_added_and_removed_under_load() {
    use std::os::unix::fs::FileExt;
    const DISKS: usize = 32;
    const BYTES: u64 = 1 << 20;
    let Some(tree) = Tree::new(&["--attach", "loop"]) else {
        return;
    };
    let use_one = |number: usize| {
        let name = format!("uzram{number}");
        tree.write(&format!("{name}/disksize"), b"1M").unwrap();
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(node(&tree, &name))
            .unwrap();
        let block = uzram_testkit::noise(number as u64, 4096);
        for offset in (0..BYTES).step_by(4096) {
            file.write_all_at(&block, offset).unwrap();
        }
        file.sync_all().unwrap();
        assert_eq!(
            tree.write("hot_remove", number.to_string().as_bytes()),
            Err(EBUSY)
        );
        let mut back = vec![0; 4096];
        for offset in (0..BYTES).step_by(4096) {
            file.read_exact_at(&mut back, offset).unwrap();
            assert!(back == block, "{name}");
        }
        drop(file);
        eventually("it is closed", || {
            tree.write("hot_remove", number.to_string().as_bytes())
                .is_ok()
        });
    };
    for number in 0..DISKS {
        assert_eq!(tree.read("hot_add"), format!("{number}\n"));
    }
    std::thread::scope(|scope| {
        for first in 0..4 {
            let use_one = &use_one;
            scope.spawn(move || (first..DISKS).step_by(4).for_each(use_one));
        }
    });
    assert_eq!(
        fs::read_dir(tree.directory.join("block")).unwrap().count(),
        0
    );
}
