//! The devices under load, each set up as its users would and taken down again.
//!
//! Ours are served by this process, which does nothing else while fio, another one, makes the load.
//! Loop devices are all made by losetup with the same options.

use std::any::Any;
use std::fs;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use uzram::device::check_range;
use uzram::{Bio, BlockDevice, Geometry, Store, Zram};
use uzram_frontends::fuse::{Mount, Options};
use uzram_frontends::ublk::{self, Disk};

use crate::error::{Error, Result};
use crate::folder::{Folder, end_child, run, take_down};
use crate::peers::kernel_zram::{Device as ZramDevice, Kernel};
use crate::side::Side;

const START_LIMIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);

/// A device under load.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) path: PathBuf,
    /// The parts that go with it, in this order: a loop device before the file under it.
    _parts: Vec<Box<dyn Part>>,
}

/// Something to take down, by its destructor.
trait Part: Any + std::fmt::Debug {}

impl<T: Any + std::fmt::Debug> Part for T {}

/// A command that takes something down when this is dropped.
#[derive(Debug)]
pub(super) struct Undo(pub(super) Command);

impl Undo {
    pub(super) fn new(program: &str, arguments: &[&str], last: &Path) -> Undo {
        let mut command = Command::new(program);
        command.args(arguments).arg(last);
        Undo(command)
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        take_down(&mut self.0);
    }
}

fn side(name: &str, path: &Path, parts: Vec<Box<dyn Part>>) -> Side<Device> {
    let path = path.to_owned();
    Side::new(
        name,
        Device {
            path,
            _parts: parts,
        },
    )
}

fn failed(error: impl ToString) -> Error {
    Error::Failed(error.to_string())
}

/// A disk of ours.
fn zram(algorithm: &str, bytes: u64) -> Result<Arc<Zram>> {
    let store = Store::builder().size(bytes).algorithm(algorithm).build();
    Ok(Arc::new(Zram::new(store.map_err(failed)?)))
}

/// A file of ours, and a loop device over it.
pub(super) fn uzram(algorithm: &str, bytes: u64) -> Result<Vec<Side<Device>>> {
    served(&format!("uzram-{algorithm}"), zram(algorithm, bytes)?)
}

/// A disk of ours through the kernel's driver for user space.
pub(super) fn ublk(algorithm: &str, bytes: u64) -> Result<Vec<Side<Device>>> {
    let disk = Disk::new(zram(algorithm, bytes)?, ublk::Options::default());
    let disk = disk.map_err(failed)?;
    let (name, path) = (format!("uzram-{algorithm}-ublk"), disk.path().to_owned());
    Ok(vec![side(&name, &path, vec![Box::new(disk)])])
}

/// The same as a file with a device that stores nothing: what the way to it costs.
pub(super) fn fuse_null(bytes: u64) -> Result<Vec<Side<Device>>> {
    served("fuse-null", Arc::new(Null(bytes)))
}

fn served(variant: &str, device: Arc<dyn BlockDevice>) -> Result<Vec<Side<Device>>> {
    let folder = Folder::new()?;
    let mount = Mount::new(device, "disk", folder.path(), Options::default()).map_err(failed)?;
    let path = mount.path().to_owned();
    with_loop(variant, &path, vec![Box::new(mount), Box::new(folder)])
}

/// nbdkit's RAM disk as a file, through nbdfuse, and a loop device over it.
pub(super) fn nbdfuse(bytes: u64) -> Result<Vec<Side<Device>>> {
    let folder = Folder::new()?;
    let server = Nbdfuse::start(folder.path(), bytes)?;
    let path = folder.path().join("nbd");
    with_loop("nbdfuse", &path, vec![Box::new(server), Box::new(folder)])
}

/// A loop device over a file in memory that is not compressed.
pub(super) fn tmpfs(bytes: u64) -> Result<Vec<Side<Device>>> {
    let folder = Folder::new()?;
    let mut mount = Command::new("mount");
    run(mount
        .args(["-t", "tmpfs", "uzram-bench"])
        .arg(folder.path()))?;
    let tmpfs = Undo::new("umount", &[], folder.path());
    let path = folder.path().join("disk");
    let made = fs::File::create(&path).and_then(|file| file.set_len(bytes));
    made.map_err(|error| Error::io("tmpfs", error))?;
    let (device, end) = loop_over(&path)?;
    let parts: Vec<Box<dyn Part>> = vec![Box::new(end), Box::new(tmpfs), Box::new(folder)];
    Ok(vec![side("tmpfs-loop", &device, parts)])
}

/// The kernel's own, changed by `then`: held, or for whoever opens it.
pub(super) fn kernel_zram(
    algorithm: &str,
    bytes: u64,
    then: fn(ZramDevice) -> ZramDevice,
) -> Result<Vec<Side<Device>>> {
    let device = Kernel::default().acquire(algorithm, bytes);
    let device = then(device.map_err(Error::Failed)?);
    let path = device.path();
    Ok(vec![side("kernel-zram", &path, vec![Box::new(device)])])
}

/// The kernel's RAM disk, if there is one that holds nothing.
pub(super) fn kernel_brd(bytes: u64) -> Result<Vec<Side<Device>>> {
    let held = take_brd(bytes)?;
    let empty = Undo::new("blkdiscard", &["-z", "-f"], Path::new(BRD));
    let parts: Vec<Box<dyn Part>> = vec![Box::new(empty), Box::new(held)];
    Ok(vec![side("kernel-brd", Path::new(BRD), parts)])
}

/// The side of a file, and in front of it, for it goes first, that of a loop device over it.
fn with_loop(variant: &str, file: &Path, parts: Vec<Box<dyn Part>>) -> Result<Vec<Side<Device>>> {
    let of_file = side(&format!("{variant}-file"), file, parts);
    let (device, end) = loop_over(file)?;
    let of_loop = side(&format!("{variant}-loop"), &device, vec![Box::new(end)]);
    Ok(vec![of_loop, of_file])
}

/// A loop device over a file, and its end.
fn loop_over(file: &Path) -> Result<(PathBuf, Undo)> {
    let options = ["--direct-io=on", "--sector-size=4096", "--show", "--find"];
    let said = run(Command::new("losetup").args(options).arg(file))?;
    let device = PathBuf::from(said.trim());
    let end = Undo::new("losetup", &["-d"], &device);
    Ok((device, end))
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

const BRD: &str = "/dev/ram0";

/// The kernel's RAM disk, held so that nobody mounts it meanwhile.
fn take_brd(bytes: u64) -> Result<fs::File> {
    let failed = |why: &str| {
        let remedy = format!("modprobe brd rd_nr=1 rd_size={}", bytes >> 10);
        Error::Failed(format!("{BRD}: {why}; {remedy}"))
    };
    let exclusive = OFlags::EXCL.bits().cast_signed();
    let opened = fs::OpenOptions::new()
        .read(true)
        .custom_flags(exclusive)
        .open(BRD);
    let mut device = opened.map_err(|error| failed(&error.to_string()))?;
    let mut block = vec![0; 1 << 20];
    for _ in 0..bytes >> 20 {
        let read = device.read_exact(&mut block);
        read.map_err(|_| failed("smaller than the devices that it is compared with"))?;
        if block.iter().any(|byte| *byte != 0) {
            return Err(failed("holds somebody's data"));
        }
    }
    Ok(device)
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
            take_down(Command::new("umount").arg(&self.directory));
        }
        end_child(&mut self.child);
    }
}
