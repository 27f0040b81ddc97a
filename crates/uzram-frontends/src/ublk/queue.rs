//! One queue: requests arrive, are carried out, and their results go back.
//!
//! A request is a tag, a number below the queue's depth. At any moment a tag belongs either to the
//! kernel, which may write its description and its buffer, or to us, between its arrival and its
//! commit. A tag that the kernel hands back with an error is retired: it is never used again, and
//! the queue ends with its last one. Arrivals are not trusted.

use std::io;

use uzram::BlockDevice;

use super::execute::execute;
use super::protocol::Descriptor;

/// Results wait for each other in one system call up to this much data, in bytes: sixteen pages.
pub(super) const GATHERED_BYTES_MAX: u64 = 64 << 10;
/// The assumed size of a request without data.
const GATHERED_BYTES_MIN: u64 = 4096;
/// The result of an arrival that makes no sense: `EIO`.
const SENSELESS: i32 = -uzram::ErrorKind::Io.errno();

/// The way to the kernel, or to its stand-in in a test.
pub(super) trait Channel {
    /// The number of requests that can be under way at once.
    fn depth(&self) -> u16;

    /// Announces room for a request under `tag`, with the next [`Channel::submit`].
    fn fetch(&mut self, tag: u16);

    /// Announces the result of the request under `tag` and room for the next one, with the next
    /// [`Channel::submit`].
    fn commit(&mut self, tag: u16, result: i32);

    /// Sends the announcements to the kernel, and waits for an arrival if `wait` is set.
    fn submit(&mut self, wait: bool) -> io::Result<()>;

    /// The next arrival, if there is one.
    fn arrival(&mut self) -> Option<Arrival>;

    /// The request under `tag`, which is below the depth and ours, and its buffer.
    fn request(&mut self, tag: u16) -> (Descriptor, &mut [u8]);

    /// Announces that some tags, and with them their buffers, will stay with the kernel for ever.
    fn abandon(&mut self);
}

/// The kernel's word about a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    pub tag: u64,
    /// 0 for a request, a negative errno for a tag that is handed back.
    pub result: i32,
}

/// A queue whose tags are all with the kernel.
pub(super) struct Queue<'a, C: Channel> {
    channel: C,
    device: &'a dyn BlockDevice,
    /// By tag: whether it is in use.
    is_live: Box<[bool]>,
    live_count: usize,
    gathered_bytes: u64,
}

impl<'a, C: Channel> Queue<'a, C> {
    /// Announces room for as many requests as the channel is deep. The calling thread must run the
    /// queue later: the kernel takes results from no other.
    ///
    /// # Errors
    /// The kernel's error if it refuses any of them.
    pub(super) fn open(channel: C, device: &'a dyn BlockDevice) -> io::Result<Queue<'a, C>> {
        let mut queue = Queue::begin(channel, device)?;
        // There are no requests yet, so whatever is back at once is a refusal.
        let Some(refused) = queue.channel.arrival() else {
            return Ok(queue);
        };
        queue.channel.abandon();
        Err(match refused.result {
            0.. => io::ErrorKind::InvalidData.into(),
            errno => io::Error::from_raw_os_error(errno.saturating_neg()),
        })
    }

    /// The same for a channel whose first requests may be there at once.
    ///
    /// # Errors
    /// If the kernel cannot be told.
    pub(super) fn begin(mut channel: C, device: &'a dyn BlockDevice) -> io::Result<Queue<'a, C>> {
        let depth = channel.depth();
        for tag in 0..depth {
            channel.fetch(tag);
        }
        if let Err(error) = channel.submit(false) {
            channel.abandon();
            return Err(error);
        }
        Ok(Queue {
            channel,
            device,
            is_live: vec![true; depth.into()].into(),
            live_count: depth.into(),
            gathered_bytes: 0,
        })
    }

    /// Serves until the kernel has handed all tags back.
    ///
    /// # Errors
    /// If the kernel cannot be reached any more. Then requests under way stay without an answer
    /// until this thread has ended, and the kernel fails them.
    pub(super) fn run(mut self) -> io::Result<()> {
        while self.live_count > 0 {
            if let Err(error) = self.channel.submit(true) {
                self.channel.abandon();
                return Err(error);
            }
            self.gathered_bytes = 0;
            while let Some(arrival) = self.channel.arrival() {
                if let Err(error) = self.serve(arrival) {
                    self.channel.abandon();
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn serve(&mut self, arrival: Arrival) -> io::Result<()> {
        let Some((tag, is_live)) = self.slot(arrival.tag) else {
            return Ok(());
        };
        match arrival.result {
            0 => {}
            // A question that was never to be asked: an answer keeps its request from hanging.
            1.. => {
                self.channel.commit(tag, SENSELESS);
                return Ok(());
            }
            _ => {
                *is_live = false;
                self.live_count -= 1;
                return Ok(());
            }
        }
        let (request, buffer) = self.channel.request(tag);
        let result = execute(self.device, &request, buffer);
        // Only now: an answer means that the data is stored.
        self.channel.commit(tag, result);
        self.gathered_bytes += u64::from(result.unsigned_abs()).max(GATHERED_BYTES_MIN);
        if self.gathered_bytes < GATHERED_BYTES_MAX {
            return Ok(());
        }
        // Whoever waits for the first ones goes on while the rest is worked on.
        self.gathered_bytes = 0;
        self.channel.submit(false)
    }

    /// The arrival's tag and whether it is live, if there is such a tag.
    fn slot(&mut self, tag: u64) -> Option<(u16, &mut bool)> {
        let index = u16::try_from(tag).ok()?;
        let is_live = self.is_live.get_mut(usize::from(index))?;
        is_live.then_some((index, is_live))
    }
}
