//! A mounted file system with its workers: mounting, and the ways to unmount it.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use uzram::{Error, ErrorKind, Result};

use super::keeper::{FUSE_MAGIC, Keeper};
use super::serve::Serve;
use super::slots::Slot;
use super::{END_TIMEOUT, fusermount, worker};

const END_PAUSE: Duration = Duration::from_millis(2);

/// The place of a mount.
pub(super) struct To<'a> {
    /// The name in the mount table.
    pub source: &'a str,
    pub directory: &'a Path,
    /// Whether other users than the one who mounts may look in; their rights are the files' modes. Only
    /// root can allow that.
    pub is_for_all: bool,
}

/// A file system that is mounted and that nobody serves yet: who looks in waits.
#[derive(Debug)]
pub(super) struct Unserved {
    directory: PathBuf,
    device: OwnedFd,
}

/// A mounted file system. Dropping it unmounts it. If that is refused because a program uses it, it is
/// detached, and the last close ends it.
#[derive(Debug)]
pub(super) struct Mounted {
    directory: PathBuf,
    /// The mount's own file system: nothing else is ever unmounted.
    device_number: u64,
    /// `None` once unmounted.
    workers: Option<Vec<JoinHandle<()>>>,
    /// The one to unmount it where this process may not.
    keeper: Option<Keeper>,
    replayed: u64,
}

impl Unserved {
    /// Mounts.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] with the remedy if the system refuses.
    pub fn new(to: &To<'_>) -> Result<Unserved> {
        let device = mount(to, rustix::process::geteuid().is_root());
        Ok(Unserved {
            device: device.map_err(|error| refused(to.directory, error))?,
            directory: to.directory.to_owned(),
        })
    }

    /// Serves it from now on. `keeper` unmounts it, also if this fails.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the system gives no thread.
    pub fn serve(self, served: Arc<dyn Serve>, threads: usize, keeper: Keeper) -> Result<Mounted> {
        let slots = worker::slots(&*served, threads)?;
        let workers = worker::start(served, self.device, slots);
        Ok(Mounted {
            workers: Some(workers.map_err(|error| refused(&self.directory, error))?),
            directory: self.directory,
            device_number: 0,
            keeper: Some(keeper),
            replayed: 0,
        })
    }
}

impl Mounted {
    /// Mounts `served`, with a worker for each slot. Returns another descriptor of the mount, too.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] with the remedy if the system refuses. Nothing is left behind.
    pub fn new(
        served: Arc<dyn Serve>,
        to: &To<'_>,
        slots: Vec<Slot>,
    ) -> Result<(Mounted, OwnedFd)> {
        let refused = |error: io::Error| refused(to.directory, error);
        let is_root = rustix::process::geteuid().is_root();
        let (workers, device) = start(served, to, slots, is_root).map_err(refused)?;
        let mut mounted = Mounted {
            directory: to.directory.to_owned(),
            device_number: 0,
            workers: Some(workers),
            keeper: None,
            replayed: 0,
        };
        // Asks the new workers, so that a mount which cannot serve fails here and is taken away.
        mounted.device_number = fs::metadata(to.directory).map_err(refused)?.dev();
        Ok((mounted, device))
    }

    /// Takes over the mount at `directory` that a dead process served by `device`. What it had begun is answered
    /// first.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the system gives no thread, or nobody answers there. The mount stays.
    pub fn resume(
        served: Arc<dyn Serve>,
        directory: &Path,
        device: OwnedFd,
        mut slots: Vec<Slot>,
    ) -> Result<Mounted> {
        let refused = |error: io::Error| refused(directory, error);
        let replayed = worker::settle(&*served, &device, &mut slots);
        let workers = worker::start(served, device, slots).map_err(refused)?;
        let found = rustix::fs::statfs(directory).map_err(|errno| refused(errno.into()))?;
        if found.f_type != FUSE_MAGIC {
            return Err(refused(io::Error::other("another file system lies there")));
        }
        let device_number = fs::metadata(directory).map_err(refused)?.dev();
        Ok(Mounted {
            directory: directory.to_owned(),
            device_number,
            workers: Some(workers),
            keeper: None,
            replayed,
        })
    }

    /// Requests of its dead process that were answered when it was taken over.
    pub fn replayed(&self) -> u64 {
        self.replayed
    }

    /// Whether the kernel still has it: another program may have unmounted it.
    pub fn is_mounted(&self) -> bool {
        // The first to notice may be some way ahead of the others.
        let mut workers = self.workers.iter().flatten();
        workers.any(|worker| !worker.is_finished())
    }

    /// Unmounts it and ends its workers. If it is unmounted already, it does nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while a program uses it, which may be tried again, [`ErrorKind::Io`].
    pub fn unmount(&mut self) -> Result<()> {
        if let Some(keeper) = self.keeper.take() {
            if self.is_mounted() {
                keeper.unmount();
            }
            // No wait: who uses it still does so until the last close.
            self.workers = None;
            return Ok(());
        }
        if self.workers.is_some() && self.is_ours_there() {
            self.unmount_with(UnmountFlags::empty())?;
        }
        self.end();
        Ok(())
    }

    fn is_ours_there(&self) -> bool {
        // The number alone would not do: a new mount takes that of one that has gone.
        match rustix::fs::statfs(&self.directory) {
            Ok(found) if found.f_type == FUSE_MAGIC => fs::metadata(&self.directory)
                .is_ok_and(|found| [found.dev(), 0].contains(&self.device_number)),
            // Nobody serves it any more, not even we.
            Err(rustix::io::Errno::NOTCONN) => !self.is_mounted(),
            _ => false,
        }
    }

    fn unmount_with(&self, flags: UnmountFlags) -> Result<()> {
        let shown = self.directory.display();
        match rustix::mount::unmount(&self.directory, flags) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::BUSY) => {
                let text = format!("{shown}: a program uses it; end that first");
                Err(Error::new(ErrorKind::Busy, text))
            }
            // Not root: fusermount3 mounted it, and has to be asked to undo it.
            Err(rustix::io::Errno::PERM) => {
                let lazily = flags.contains(UnmountFlags::DETACH);
                fusermount::unmount_as_user(&self.directory, lazily)
            }
            Err(error) => {
                let text = format!("{shown}: cannot be unmounted");
                Err(Error::new(ErrorKind::Io, text).with_source(error))
            }
        }
    }

    /// Waits for the workers. The kernel ends them with the last use of the file system.
    fn end(&mut self) {
        let deadline = Instant::now() + END_TIMEOUT;
        while self.is_mounted() && Instant::now() < deadline {
            std::thread::sleep(END_PAUSE);
        }
        // Of a detached mount that is still open they live until the last close.
        self.workers = None;
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.workers.is_none() || self.unmount().is_ok() {
            return;
        }
        // The last close unmounts it. No wait: that may be any time.
        let _ = self.unmount_with(UnmountFlags::DETACH);
    }
}

/// Mounts and starts the workers; nothing is mounted after an error.
fn start(
    served: Arc<dyn Serve>,
    to: &To<'_>,
    slots: Vec<Slot>,
    is_root: bool,
) -> io::Result<(Vec<JoinHandle<()>>, OwnedFd)> {
    let device = mount(to, is_root)?;
    let started = device.try_clone().and_then(|another| {
        let workers = worker::start(served, device, slots)?;
        Ok((workers, another))
    });
    started.inspect_err(|_| undo(to.directory, is_root))
}

/// Mounts; nothing is mounted after an error.
fn mount(to: &To<'_>, is_root: bool) -> io::Result<OwnedFd> {
    let device = match is_root {
        true => mount_as_root(to)?,
        false => fusermount::mount(to.source, to.directory)?,
    };
    let never_blocks = || {
        let flags = rustix::fs::fcntl_getfl(&device)?;
        rustix::fs::fcntl_setfl(&device, flags | OFlags::NONBLOCK)
    };
    never_blocks().inspect_err(|_| undo(to.directory, is_root))?;
    Ok(device)
}

/// Takes a mount away that cannot be served. What failed has said why; one that is left would only say that it
/// is dead.
fn undo(directory: &Path, is_root: bool) {
    let _ = match is_root {
        true => rustix::mount::unmount(directory, UnmountFlags::DETACH).map_err(|_| ()),
        false => fusermount::unmount_as_user(directory, true).map_err(|_| ()),
    };
}

fn mount_as_root(to: &To<'_>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = rustix::fs::open("/dev/fuse", flags, Mode::empty())?;
    let data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions{}",
        device.as_raw_fd(),
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
        if to.is_for_all { ",allow_other" } else { "" }
    );
    let flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOEXEC;
    let data = CString::new(data)?;
    rustix::mount::mount(
        to.source,
        to.directory,
        "fuse.uzram",
        flags,
        data.as_c_str(),
    )?;
    Ok(device)
}

/// Names the missing thing instead of the call that failed.
fn refused(directory: &Path, error: io::Error) -> Error {
    let shown = directory.display();
    let device = Path::new("/dev/fuse");
    let remedy = if !device.exists() {
        "this kernel offers no /dev/fuse; load the module `fuse`, or pass the device into the container"
    } else if fs::File::open(device).is_err() {
        "/dev/fuse may not be opened; be root, or pass --device /dev/fuse to the container"
    } else if !directory.is_dir() {
        "not a directory; create it"
    } else if !rustix::process::geteuid().is_root() {
        remedy_of_a_user(&error)
    } else {
        "cannot mount there; a container needs the capability SYS_ADMIN for it"
    };
    Error::new(ErrorKind::Io, format!("FUSE mount at {shown}: {remedy}")).with_source(error)
}

/// Where fusermount3 mounts: it is missing, or it says itself what it refuses.
fn remedy_of_a_user(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "mounting without being root needs fusermount3; install the package fuse3"
        }
        _ => "fusermount3 refused to mount there",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uzram::{Store, Zram};

    use crate::fuse::disk::Disk;
    use crate::fuse::gate::Gate;

    #[test]
    fn users_mount_through_fusermount() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::builder().size(1 << 20).build().unwrap();
        // A comma would begin an option.
        let disk = Disk::new(Arc::new(Zram::new(store)), "a,b", Arc::new(Gate::default()));
        let to = To {
            source: "uzram:a,b",
            directory: directory.path(),
            is_for_all: false,
        };
        let slots = worker::slots(&disk, 2).unwrap();
        let workers = match start(Arc::new(disk), &to, slots, false) {
            Ok((workers, _)) => workers,
            Err(error) => return eprintln!("left out: fusermount3 cannot mount here ({error})"),
        };
        let path = directory.path().join("a,b");
        fs::write(&path, "content").unwrap();
        assert_eq!(fs::read(&path).unwrap()[..8], *b"content\0");
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let source = table.lines().find(|line| line.contains(" uzram:a,b "));
        assert!(
            source.is_some_and(|line| line.contains("fuse.uzram")),
            "{table}"
        );
        fusermount::unmount_as_user(directory.path(), false).unwrap();
        for worker in workers {
            worker.join().unwrap();
        }
    }

    #[test]
    fn only_a_missing_fusermount_is_to_be_installed() {
        let missing = remedy_of_a_user(&io::ErrorKind::NotFound.into());
        let refusal = remedy_of_a_user(&io::Error::other("user has no name"));
        assert!(missing.contains("install the package fuse3"), "{missing}");
        assert!(!refusal.contains("install"), "{refusal}");
    }

    #[test]
    fn what_fusermount_refuses_it_says() {
        let store = Store::builder().size(1 << 20).build().unwrap();
        let disk = Disk::new(
            Arc::new(Zram::new(store)),
            "disk",
            Arc::new(Gate::default()),
        );
        let to = To {
            source: "uzram:disk",
            directory: "/nowhere".as_ref(),
            is_for_all: false,
        };
        let slots = worker::slots(&disk, 1).unwrap();
        let error = start(Arc::new(disk), &to, slots, false).unwrap_err();
        // Or that the program is not there.
        assert!(error.to_string().contains("No such file"), "{error}");
    }
}
