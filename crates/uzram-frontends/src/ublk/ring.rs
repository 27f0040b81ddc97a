//! A queue's way to the kernel: an io_uring of its own. Only the queue's thread makes and uses it.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use super::memory::{Buffers, Descriptors};
use super::protocol::{Descriptor, Info, Io, encode_io};
use super::queue::{Arrival, Channel};

/// Place of the device's node in the ring's table of files. It spares each request a count on the
/// node, which all queues would share.
const NODE: types::Fixed = types::Fixed(0);
/// Pause before another try if the kernel is short of memory, or has results that were not taken.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// The source of requests.
pub(super) trait Source {
    /// The command that announces room for a request under `tag`, whose buffer is at `address`,
    /// and the result of the last one. The kernel may write to that buffer only.
    fn entry(&self, tag: u16, command: Io, result: i32, address: u64) -> squeue::Entry;

    /// The request under `tag`, which is below the depth and has arrived.
    fn descriptor(&self, tag: u16) -> Descriptor;

    /// The meaning of a completion.
    fn arrival(&mut self, entry: &cqueue::Entry) -> Arrival {
        Arrival {
            tag: entry.user_data(),
            result: entry.result(),
        }
    }
}

/// The driver, for one queue of a device.
pub(super) struct Node {
    descriptors: Descriptors,
    queue: u16,
}

impl Source for Node {
    fn entry(&self, tag: u16, command: Io, result: i32, address: u64) -> squeue::Entry {
        let argument = encode_io(self.queue, tag, result, address);
        let entry = opcode::UringCmd16::new(NODE, command.code()).cmd(argument);
        entry.build()
    }

    fn descriptor(&self, tag: u16) -> Descriptor {
        self.descriptors.read(tag)
    }
}

/// A queue's ring and the memory that its requests use.
pub(super) struct Ring<S: Source = Node> {
    // In this order: the ring goes before the memory that its commands name.
    ring: IoUring,
    source: S,
    buffers: Buffers,
    depth: u16,
}

impl Ring {
    /// A channel for `queue` of the device that `info` describes and whose node is `node`. The
    /// thread that serves the queue must call this.
    pub(super) fn new(node: &File, info: &Info, queue: u16) -> io::Result<Ring> {
        let descriptors = Descriptors::map(node.as_fd(), queue, info.depth)?;
        let source = Node { descriptors, queue };
        let ring = Ring::over(source, info.depth, info.request_bytes)?;
        ring.ring.submitter().register_files(&[node.as_raw_fd()])?;
        Ok(ring)
    }
}

impl<S: Source> Ring<S> {
    /// A channel for requests from `source`, `depth` at once.
    pub(super) fn over(source: S, depth: u16, request_bytes: u32) -> io::Result<Ring<S>> {
        Ok(Ring {
            ring: build(depth.into())?,
            source,
            buffers: Buffers::new(depth, request_bytes)?,
            depth,
        })
    }

    fn push(&mut self, tag: u16, command: Io, result: i32) {
        let address = self.buffers.address(tag);
        let entry = self.source.entry(tag, command, result, address);
        let entry = entry.user_data(tag.into());
        // SAFETY: the command names the buffer of its tag, which stays mapped until the kernel has handed
        // every tag back: `Drop` unmaps after the ring, and an abandoned queue's buffers are never unmapped.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        // A tag is either with us or with the kernel, so no more entries than tags are waiting.
        debug_assert!(pushed.is_ok(), "more entries than tags");
    }
}

impl<S: Source> Channel for Ring<S> {
    fn depth(&self) -> u16 {
        self.depth
    }

    fn fetch(&mut self, tag: u16) {
        self.push(tag, Io::Fetch, -1);
    }

    fn commit(&mut self, tag: u16, result: i32) {
        self.push(tag, Io::CommitAndFetch, result);
    }

    fn submit(&mut self, wait: bool) -> io::Result<()> {
        loop {
            let submitted = match wait {
                true => self.ring.submit_and_wait(1),
                false => self.ring.submit(),
            };
            match submitted {
                // The rest, if the kernel had no memory for all of them at once.
                Ok(_) if !self.ring.submission().is_empty() => {}
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_passing(&error) => {
                    // What has arrived is taken first, which is what the kernel may wait for.
                    if !self.ring.completion().is_empty() {
                        return Ok(());
                    }
                    std::thread::sleep(RETRY_PAUSE);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn arrival(&mut self) -> Option<Arrival> {
        let entry = self.ring.completion().next()?;
        Some(self.source.arrival(&entry))
    }

    fn request(&mut self, tag: u16) -> (Descriptor, &mut [u8]) {
        (self.source.descriptor(tag), self.buffers.get(tag))
    }

    fn abandon(&mut self) {
        self.buffers.abandon();
    }
}

impl<S: Source> Drop for Ring<S> {
    fn drop(&mut self) {
        // By itself the kernel would let go of the node some time after the ring is closed, and a device
        // is gone only when nobody has its node.
        let _ = self.ring.submitter().unregister_files();
    }
}

/// A ring whose completions wait until the thread asks for them; kernels before 6.1 interrupt it.
fn build(entries: u32) -> io::Result<IoUring> {
    let mut builder = IoUring::<squeue::Entry>::builder();
    let quiet = builder.setup_single_issuer().setup_defer_taskrun();
    quiet.build(entries).or_else(|_| IoUring::new(entries))
}

fn is_passing(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::AGAIN | Errno::BUSY | Errno::NOMEM))
}
