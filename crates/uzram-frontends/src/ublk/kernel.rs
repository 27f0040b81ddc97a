//! The kernel's driver: its control node, asked through a small io_uring, and the nodes of devices.

#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::io::Errno;
use uzram::{Error, ErrorKind, Result};

use super::lifecycle::{Ask, Driver};
use super::protocol::{ControlArgument, Info};
use super::ring::Ring;

const CONTROL_NODE: &str = "/dev/ublk-control";
/// Commands under way at once; one is.
const ENTRIES: u32 = 4;
/// A command that takes longer is given up. The limit is long, because stopping waits for requests
/// under way.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for a device's node and its owner.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(1);
/// Room for a path and the data of a command, in bytes.
const PAGE_BYTES: usize = 512;

/// The driver's control node.
pub(super) struct Kernel {
    // In this order: the ring goes before what its commands name.
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    node: File,
    /// The data of commands; `None` once a command was given up, because the driver may still
    /// write there.
    page: Option<Box<[u8; PAGE_BYTES]>>,
}

impl Kernel {
    /// Opens the control node.
    ///
    /// # Errors
    /// [`ErrorKind::Io`], naming the missing thing.
    pub(super) fn open() -> Result<Kernel> {
        let node = OpenOptions::new()
            .read(true)
            .write(true)
            .open(CONTROL_NODE)
            .map_err(|error| {
                let text = match error.kind() {
                    io::ErrorKind::NotFound => {
                        "ublk: no /dev/ublk-control; load the module ublk_drv (Linux 6.5 or newer), pass the \
                         device into the container, or attach as loop"
                    }
                    _ => "ublk: /dev/ublk-control cannot be opened; be root, or attach as loop",
                };
                Error::new(ErrorKind::Io, text).with_source(error)
            })?;
        let ring = IoUring::builder().build(ENTRIES).map_err(|error| {
            let text = "ublk: no io_uring; allow it (sysctl kernel.io_uring_disabled=0, the container's \
                        seccomp profile), or attach as loop";
            Error::new(ErrorKind::Io, text).with_source(error)
        })?;
        Ok(Kernel {
            ring,
            node,
            page: Some(Box::new([0; PAGE_BYTES])),
        })
    }

    /// Waits for the one command that is under way. Returns its result, or the reason why it is
    /// unknown.
    fn wait(&mut self) -> Result<io::Result<()>, io::Error> {
        let deadline = Instant::now() + COMMAND_TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let limit = types::Timespec::from(left);
            let arguments = types::SubmitArgs::new().timespec(&limit);
            let waited = self.ring.submitter().submit_with_args(1, &arguments);
            if let Some(entry) = self.ring.completion().next() {
                return Ok(match entry.result() {
                    0.. => Ok(()),
                    errno => Err(io::Error::from_raw_os_error(errno.saturating_neg())),
                });
            }
            match waited {
                Err(error) if !is_passing(&error) => return Err(error),
                _ if left.is_zero() => return Err(io::ErrorKind::TimedOut.into()),
                _ => {}
            }
        }
    }
}

impl Driver for Kernel {
    type Node = Arc<File>;
    type Channel = Ring;

    fn command(&mut self, ask: Ask<'_>) -> io::Result<()> {
        let mut page = self.page.take().ok_or(io::ErrorKind::TimedOut)?;
        let path = match ask.by_path {
            true => format!("{}\0", node_path(ask.id)),
            false => String::new(),
        };
        let length = path.len() + ask.data.len();
        let (Some(space), Ok(data_length)) = (page.get_mut(..length), u16::try_from(length)) else {
            self.page = Some(page);
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let (path_space, data_space) = space.split_at_mut(path.len());
        path_space.copy_from_slice(path.as_bytes());
        data_space.copy_from_slice(ask.data);
        let address = match length {
            0 => 0,
            _ => page.as_mut_ptr().expose_provenance() as u64,
        };
        let argument = ControlArgument {
            id: ask.id,
            address,
            length: data_length,
            path_length: path.len() as u16,
            word: ask.word,
        };
        let fd = types::Fd(self.node.as_raw_fd());
        let entry = opcode::UringCmd80::new(fd, ask.command.code()).cmd(argument.encode());
        let entry = entry.build();
        // SAFETY: the command reads and writes `length` bytes of the page, which is ours alone while the
        // command is under way: it was taken from its place, is given back once the command has completed,
        // and is leaked below if it has not.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.map_err(io::Error::other)?;
        let done = match self.wait() {
            Ok(done) => done,
            Err(error) => {
                Box::leak(page);
                return Err(error);
            }
        };
        ask.data.copy_from_slice(&page[path.len()..length]);
        self.page = Some(page);
        done
    }

    fn open(&mut self, id: u32) -> io::Result<Arc<File>> {
        let deadline = Instant::now() + NODE_TIMEOUT;
        loop {
            let opened = OpenOptions::new()
                .read(true)
                .write(true)
                .open(node_path(id));
            match opened {
                Ok(node) => return Ok(Arc::new(node)),
                // A rule may have to make it, or to give it to its owner.
                Err(error) if Instant::now() >= deadline => return Err(error),
                Err(_) => thread::sleep(PAUSE),
            }
        }
    }

    fn channel(node: &Arc<File>, info: &Info, queue: u16) -> io::Result<Ring> {
        Ring::new(node, info, queue)
    }
}

/// The node through which a device is served.
pub(super) fn node_path(id: u32) -> String {
    format!("/dev/ublkc{id}")
}

fn is_passing(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(
        errno,
        Some(Errno::INTR | Errno::TIME | Errno::AGAIN | Errno::BUSY)
    )
}
