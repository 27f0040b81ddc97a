//! Backing devices that vanish under a disk, and those that are a disk of the same server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::attach::installed;
use crate::nbd_client::NbdClient;
use crate::support::{Home, eventually, noise};
use crate::tree::{EBUSY, EINVAL, Tree};

const EIO: i32 = 5;
const PAGE: u64 = 4096;
/// Pages of noise on a disk; the first half of them is written back.
const PAGES: u64 = 32;

/// A disk of a tree with a backing device.
struct Disk<'a> {
    tree: &'a Tree,
    client: NbdClient,
}

impl Disk<'_> {
    fn new<'a>(tree: &'a Tree, backing: &Path) -> Disk<'a> {
        tree.read("hot_add");
        let backing = backing.to_str().unwrap().as_bytes();
        assert_eq!(tree.write("uzram0/backing_dev", backing), Ok(()));
        assert_eq!(tree.write("uzram0/disksize", b"4M"), Ok(()));
        let socket = tree.home.state().join("uzram0.nbd");
        let mut client = NbdClient::connect(&socket, "uzram0").unwrap();
        for page in 0..PAGES {
            client.write(page * PAGE, &noise(page, 4096)).unwrap();
        }
        let disk = Disk { tree, client };
        let range = format!("page_indexes=0-{}", PAGES / 2 - 1);
        assert_eq!(disk.write_back(&range), Ok(()));
        assert_eq!(tree.column("uzram0/bd_stat", 0), PAGES / 2);
        disk
    }

    fn write_back(&self, what: &str) -> Result<(), i32> {
        self.tree.write("uzram0/writeback", what.as_bytes())
    }

    fn is_right(&mut self, page: u64) -> bool {
        self.client.read(page * PAGE, 4096).unwrap() == noise(page, 4096)
    }

    /// Pages in memory stay and are served, those that are not fail, and those written anew are there again.
    fn goes_on_without_its_backing_device(mut self) {
        let failed = |disk: &Disk<'_>| disk.tree.column("uzram0/io_stat", 0);
        for page in 0..PAGES / 2 {
            let errno = self.client.read_fails(page * PAGE, 4096).unwrap();
            assert_eq!(errno, EIO as u32, "{page}");
        }
        assert_eq!(failed(&self), PAGES / 2);
        assert_eq!(self.write_back("type=huge"), Err(EIO));
        assert_eq!(self.tree.column("uzram0/bd_stat", 0), PAGES / 2);
        assert!((PAGES / 2..PAGES).all(|page| self.is_right(page)));
        self.client.write(0, &noise(0, 4096)).unwrap();
        assert!(self.is_right(0));
        assert_eq!(self.tree.column("uzram0/bd_stat", 0), PAGES / 2 - 1);
        let stat = self.tree.home.json(&["stat", "uzram0", "--json"]);
        assert!(stat["bd_failed_writes"].as_u64() > Some(0), "{stat}");
        self.ends();
    }

    fn ends(self) {
        let Disk { tree, client } = self;
        drop(client);
        eventually("a reset", || tree.write("uzram0/reset", b"1").is_ok());
        assert_eq!(tree.read("uzram0/backing_dev"), "none\n");
        assert_eq!(tree.write("uzram0/disksize", b"1M"), Ok(()));
    }
}

fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
}

/// The endpoint of a disk.
fn endpoint(home: &Home, name: &str) -> PathBuf {
    let stat = home.json(&["stat", name, "--json"]);
    stat["endpoint"].as_str().unwrap().into()
}

#[test]
fn a_backing_file_without_a_name_is_used_until_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let backing = folder.path().join("backing");
    fs::write(&backing, "").unwrap();
    let Some(tree) = Tree::new(&["--tree-files", folder.path().to_str().unwrap()]) else {
        return;
    };
    let mut disk = Disk::new(&tree, &backing);
    fs::remove_file(&backing).unwrap();
    assert_eq!(disk.write_back("type=huge"), Ok(()));
    assert!((0..PAGES).all(|page| disk.is_right(page)));
    disk.ends();
}

#[test]
fn a_file_system_that_is_shut_down_costs_what_is_in_it() {
    if !installed(&["mkfs.ext4", "xfs_io"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (image, mnt) = (folder.path().join("image"), folder.path().join("mnt"));
    fs::create_dir(&mnt).unwrap();
    let made = fs::File::create(&image).unwrap();
    made.set_len(32 << 20).unwrap();
    let [image, shown] = [&image, &mnt].map(|path| path.to_str().unwrap());
    let Some(tree) = Tree::new(&["--tree-files", folder.path().to_str().unwrap()]) else {
        return;
    };
    run("mkfs.ext4", &["-qF", image]);
    run("mount", &["-o", "loop", image, shown]);
    fs::write(mnt.join("backing"), "").unwrap();
    let mut disk = Disk::new(&tree, &mnt.join("backing"));
    // As a lazy unmount leaves it, which `umount -f` falls back to.
    run("umount", &["-l", shown]);
    assert!((0..PAGES).all(|page| disk.is_right(page)));
    disk.ends();
    tree.write("hot_remove", b"0").unwrap();
    eventually("it is unmounted", || {
        Command::new("mount")
            .args(["-o", "loop", image, shown])
            .status()
            .unwrap()
            .success()
    });
    let disk = Disk::new(&tree, &mnt.join("backing"));
    run("xfs_io", &["-x", "-c", "shutdown", shown]);
    run("umount", &["-l", shown]);
    disk.goes_on_without_its_backing_device();
}

#[test]
fn a_block_device_that_dies_costs_what_is_on_it() {
    let Some(tree) = Tree::new(&["--tree-files", "/dev"]) else {
        return;
    };
    let other = Home::new();
    let mut served = other.serve(&["--size", "16M", "--attach", "loop"]);
    let disk = Disk::new(&tree, &endpoint(&other, "uzram0"));
    served.child.kill().unwrap();
    served.child.wait().unwrap();
    disk.goes_on_without_its_backing_device();
    let down = other.run(&["down", "uzram0"]);
    assert_eq!(down.status, 0, "{down:?}");
}

#[test]
fn a_disk_is_not_its_own_backing_device() {
    let Some(tree) = Tree::new(&["--attach", "loop", "--tree-files", "/dev"]) else {
        return;
    };
    for number in 0..2 {
        assert_eq!(tree.read("hot_add"), format!("{number}\n"));
    }
    let nodes = ["uzram0", "uzram1"].map(|name| endpoint(&tree.home, name));
    let back = |disk: &str, path: &Path| {
        tree.write(
            &format!("{disk}/backing_dev"),
            path.to_str().unwrap().as_bytes(),
        )
    };
    let set = |disk: &str, path: PathBuf| {
        let path = path.to_str().unwrap();
        tree.home.run(&["set", disk, "backing_dev", path])
    };
    let file = |name: &str| tree.home.state().join(format!("{name}.fuse/{name}"));
    // Neither it nor the other has a size, so neither has room.
    assert_eq!(back("uzram0", &nodes[0]), Err(EINVAL));
    assert_eq!(back("uzram0", &nodes[1]), Err(EINVAL));
    let has_no_use = |name: &str| {
        assert_eq!(set("uzram0", file(name)).status, 0);
        let sized = tree.home.run(&["set", "uzram0", "disksize", "4M"]);
        sized.refused(1, "the backing file");
        assert_eq!(tree.read("uzram0/disksize"), "0\n");
    };
    has_no_use("uzram0");
    has_no_use("uzram1");
    assert_eq!(tree.write("uzram1/disksize", b"8M"), Ok(()));
    has_no_use("uzram1");
    assert_eq!(back("uzram1", &nodes[1]), Err(EBUSY));
    // On another disk it may lie, which is in use then.
    assert_eq!(back("uzram0", &nodes[1]), Ok(()));
    assert_eq!(back("uzram1", &nodes[0]), Err(EBUSY), "it has a size");
    assert_eq!(tree.write("uzram0/disksize", b"4M"), Ok(()));
    let written = fs::File::options().write(true).open(&nodes[0]).unwrap();
    for page in 0..PAGES {
        use std::os::unix::fs::FileExt;
        let data = noise(page, 4096);
        written.write_all_at(&data, page * PAGE).unwrap();
    }
    written.sync_all().unwrap();
    drop(written);
    assert_eq!(tree.write("uzram0/writeback", b"type=huge"), Ok(()));
    assert_eq!(tree.column("uzram0/bd_stat", 0), PAGES);
    assert!(tree.column("uzram1/mm_stat", 0) >= PAGES * PAGE);
    for (file, value) in [("uzram1/reset", "1"), ("hot_remove", "1")] {
        assert_eq!(tree.write(file, value.as_bytes()), Err(EBUSY), "{file}");
    }
    let read = fs::read(&nodes[0]).unwrap();
    let pages = read.chunks(4096).take(PAGES as usize).enumerate();
    assert!(
        pages
            .into_iter()
            .all(|(page, data)| data == noise(page as u64, 4096))
    );
    eventually("nobody has it open", || {
        tree.write("uzram0/reset", b"1").is_ok()
    });
    assert_eq!(back("uzram0", &nodes[0]), Err(EINVAL));
    assert_eq!(tree.write("uzram1/reset", b"1"), Ok(()));
}
