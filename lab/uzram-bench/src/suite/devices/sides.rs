//! The devices under load, each set up as its users would and taken down again.
//!
//! Ours are served by this process, which does nothing else while fio, another one, makes the load.
//! Loop devices are all made by losetup with the same options.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use uzram::device::check_range;
use uzram::{Bio, BlockDevice, Geometry, Store, Zram};
use uzram_frontends::fuse::{Mount, Options};
use uzram_frontends::ublk::{self, Disk};

use crate::error::{Error, Result};
use crate::peers::kernel_zram::{self, Kernel};
use crate::side::Side;

const START_LIMIT: Duration = Duration::from_secs(10);
const LEAVE_LIMIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);

/// A device under load.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) path: PathBuf,
    /// In the order in which they go: a loop device before the file under it.
    _parts: Vec<Part>,
}

/// Something to take down; fields are read by their destructors only.
#[derive(Debug)]
#[expect(dead_code, reason = "held for their destructors")]
enum Part {
    Loop(Loop),
    Mount(Box<Mount>),
    Nbdfuse(Nbdfuse),
    Tmpfs(Tmpfs),
    Zram(kernel_zram::Device),
    Ublk(Box<Disk>),
    Brd(Brd),
    Folder(Folder),
}

fn side(name: &str, path: &Path, parts: Vec<Part>) -> Side<Device> {
    let device = Device {
        path: path.to_owned(),
        _parts: parts,
    };
    Side::new(name, device)
}

/// A file of ours, and a loop device over it.
pub(super) fn uzram(algorithm: &str, bytes: u64) -> Result<Vec<Side<Device>>> {
    let store = Store::builder().size(bytes).algorithm(algorithm).build();
    let store = store.map_err(|error| Error::Failed(error.to_string()))?;
    served(&format!("uzram-{algorithm}"), Arc::new(Zram::new(store)))
}

/// A disk of ours through the kernel's driver for user space.
pub(super) fn ublk(algorithm: &str, bytes: u64) -> Result<Vec<Side<Device>>> {
    let store = Store::builder().size(bytes).algorithm(algorithm).build();
    let store = store.map_err(|error| Error::Failed(error.to_string()))?;
    let disk = Disk::new(Arc::new(Zram::new(store)), ublk::Options::default());
    let disk = disk.map_err(|error| Error::Failed(error.to_string()))?;
    let path = disk.path().to_owned();
    let variant = format!("uzram-{algorithm}-ublk");
    Ok(vec![side(
        &variant,
        &path,
        vec![Part::Ublk(Box::new(disk))],
    )])
}

/// The same as a file with a device that stores nothing: what the way to it costs.
pub(super) fn fuse_null(bytes: u64) -> Result<Vec<Side<Device>>> {
    served("fuse-null", Arc::new(Null(bytes)))
}

fn served(variant: &str, device: Arc<dyn BlockDevice>) -> Result<Vec<Side<Device>>> {
    let folder = Folder::new()?;
    let mount = Mount::new(device, "disk", &folder.0, Options::default());
    let mount = mount.map_err(|error| Error::Failed(error.to_string()))?;
    let path = mount.path().to_owned();
    let mut sides = vec![side(
        &format!("{variant}-file"),
        &path,
        vec![Part::Mount(Box::new(mount)), Part::Folder(folder)],
    )];
    add_loop(&mut sides, variant, &path)?;
    Ok(sides)
}

/// nbdkit's RAM disk as a file, through nbdfuse, and a loop device over it.
pub(super) fn nbdfuse(bytes: u64) -> Result<Vec<Side<Device>>> {
    let folder = Folder::new()?;
    let server = Nbdfuse::start(&folder.0, bytes)?;
    let path = folder.0.join("nbd");
    let parts = vec![Part::Nbdfuse(server), Part::Folder(folder)];
    let mut sides = vec![side("nbdfuse-file", &path, parts)];
    add_loop(&mut sides, "nbdfuse", &path)?;
    Ok(sides)
}

/// A loop device over a file in memory that is not compressed.
pub(super) fn tmpfs(bytes: u64) -> Result<Vec<Side<Device>>> {
    let folder = Folder::new()?;
    run(
        "mount",
        &[
            "-t".as_ref(),
            "tmpfs".as_ref(),
            "uzram-bench".as_ref(),
            folder.0.as_ref(),
        ],
    )?;
    let tmpfs = Tmpfs(folder.0.clone());
    let path = folder.0.join("disk");
    let made = fs::File::create(&path).and_then(|file| file.set_len(bytes));
    made.map_err(|error| Error::io("tmpfs", error))?;
    let device = Loop::over(&path)?;
    let shown = device.0.clone();
    let parts = vec![Part::Loop(device), Part::Tmpfs(tmpfs), Part::Folder(folder)];
    Ok(vec![side("tmpfs-loop", &shown, parts)])
}

/// The kernel's own.
pub(super) fn kernel_zram(algorithm: &str, bytes: u64) -> Result<Vec<Side<Device>>> {
    let device = Kernel::default()
        .acquire(algorithm, bytes)
        .map_err(Error::Failed)?;
    let path = device.path();
    Ok(vec![side("kernel-zram", &path, vec![Part::Zram(device)])])
}

/// The same, for whoever opens it.
pub(super) fn kernel_zram_to_open(algorithm: &str, bytes: u64) -> Result<Vec<Side<Device>>> {
    let device = Kernel::default()
        .acquire(algorithm, bytes)
        .map_err(Error::Failed)?
        .let_others_open();
    let path = device.path();
    Ok(vec![side("kernel-zram", &path, vec![Part::Zram(device)])])
}

/// The kernel's RAM disk, if there is one that holds nothing.
pub(super) fn kernel_brd(bytes: u64) -> Result<Vec<Side<Device>>> {
    let brd = Brd::take(bytes)?;
    let path = PathBuf::from(Brd::PATH);
    Ok(vec![side("kernel-brd", &path, vec![Part::Brd(brd)])])
}

/// In front of the file's side: it goes first.
fn add_loop(sides: &mut Vec<Side<Device>>, variant: &str, file: &Path) -> Result<()> {
    let device = Loop::over(file)?;
    let path = device.0.clone();
    let made = side(&format!("{variant}-loop"), &path, vec![Part::Loop(device)]);
    sides.insert(0, made);
    Ok(())
}

/// Reads as zeroes, forgets what is written.
struct Null(u64);

impl BlockDevice for Null {
    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: self.0,
            preferred_block_bytes: 4096,
        }
    }

    fn submit(&self, bio: Bio<'_>) -> uzram::Result<()> {
        if let Some((offset, length)) = bio.range() {
            check_range(offset, length, self.0)?;
        }
        if let Bio::Read { buffer, .. } = bio {
            buffer.fill(0);
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Loop(PathBuf);

impl Loop {
    fn over(file: &Path) -> Result<Loop> {
        let options = ["--direct-io=on", "--sector-size=4096", "--show", "--find"];
        let mut arguments: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
        arguments.push(file.as_ref());
        let said = run("losetup", &arguments)?;
        Ok(Loop(PathBuf::from(said.trim())))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        take_down("losetup", &["-d".as_ref(), self.0.as_ref()]);
    }
}

/// Held, so that nobody mounts it meanwhile; emptied in the end.
#[derive(Debug)]
struct Brd(#[expect(dead_code, reason = "held open")] fs::File);

impl Brd {
    const PATH: &str = "/dev/ram0";

    fn take(bytes: u64) -> Result<Brd> {
        let failed = |why: &str| {
            let path = Brd::PATH;
            Error::Failed(format!(
                "{path}: {why}; modprobe brd rd_nr=1 rd_size={}",
                bytes >> 10
            ))
        };
        let exclusive = OFlags::EXCL.bits().cast_signed();
        let opened = fs::OpenOptions::new()
            .read(true)
            .custom_flags(exclusive)
            .open(Brd::PATH);
        let mut device = opened.map_err(|error| failed(&error.to_string()))?;
        let mut block = vec![0; 1 << 20];
        for _ in 0..bytes >> 20 {
            let read = device.read_exact(&mut block);
            read.map_err(|_| failed("smaller than the devices that it is compared with"))?;
            if block.iter().any(|byte| *byte != 0) {
                return Err(failed("holds somebody's data"));
            }
        }
        Ok(Brd(device))
    }
}

impl Drop for Brd {
    fn drop(&mut self) {
        take_down(
            "blkdiscard",
            &["-z".as_ref(), "-f".as_ref(), Brd::PATH.as_ref()],
        );
    }
}

#[derive(Debug)]
struct Tmpfs(PathBuf);

impl Drop for Tmpfs {
    fn drop(&mut self) {
        take_down("umount", &[self.0.as_ref()]);
    }
}

/// nbdfuse with the nbdkit that it starts.
#[derive(Debug)]
struct Nbdfuse {
    child: Child,
    directory: PathBuf,
}

impl Nbdfuse {
    fn start(directory: &Path, bytes: u64) -> Result<Nbdfuse> {
        let failed = |error| Error::io("nbdfuse", error);
        let mut command = Command::new("nbdfuse");
        command
            .arg(directory)
            .args(["[", "nbdkit", "--exit-with-parent", "memory"]);
        command.arg(bytes.to_string()).arg("]");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().map_err(failed)?;
        let mut server = Nbdfuse {
            child,
            directory: directory.to_owned(),
        };
        let deadline = Instant::now() + START_LIMIT;
        while !directory.join("nbd").exists() {
            let exited = server.child.try_wait().ok().flatten();
            if exited.is_some() || Instant::now() > deadline {
                return Err(Error::Failed(
                    "nbdfuse: does not serve (nbdkit missing?)".into(),
                ));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(server)
    }
}

impl Drop for Nbdfuse {
    fn drop(&mut self) {
        // Ctrl-C reaches it too, and then it goes by itself.
        if self.directory.join("nbd").exists() {
            take_down("umount", &[self.directory.as_ref()]);
        }
        let deadline = Instant::now() + LEAVE_LIMIT;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(PAUSE);
        }
        // Both do nothing to a child that has left.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder of mode 0700 that goes with its owner.
#[derive(Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new() -> Result<Folder> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("uzram-bench-devices-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let made = fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|error| Error::io(format!("folder {}", path.display()), error))?;
        Ok(Folder(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Removes what is in it, where nothing is mounted.
    pub(super) fn empty(&self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Empty by now; what is mounted on it still must not be removed.
        let _ = fs::remove_dir(&self.0);
    }
}

pub(super) fn run(program: &str, arguments: &[&OsStr]) -> Result<String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| Error::io(program, error))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(Error::Failed(format!("{program}: {}", said.trim())))
        }
    }
}

/// The kernel lets go of a device a moment after its last user has ended, so this is tried for a while.
pub(super) fn take_down(program: &str, arguments: &[&OsStr]) {
    let deadline = Instant::now() + LEAVE_LIMIT;
    while let Err(error) = run(program, arguments) {
        if Instant::now() > deadline {
            return eprintln!("uzram: left behind: {error}");
        }
        std::thread::sleep(PAUSE);
    }
}
