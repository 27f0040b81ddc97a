//! A thread that takes requests from the kernel: when it looks, and when it sleeps.
//!
//! All workers of a mount share one descriptor of `/dev/fuse`, which never blocks. A worker takes
//! and answers requests until there are none, looks again for a while, and then sleeps in an epoll
//! of its own. It waits there exclusively: a request wakes one sleeping worker, always the first.
//! A worker that is awake is never waited for. If one is stuck in a device, the next request wakes
//! the next worker. Nothing is lost between the last look and the sleep, because the epoll looks
//! once more.
//!
//! A worker holds no lock while it calls the device.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use rustix::event::epoll;
use rustix::io::Errno;
use uzram::{Error, ErrorKind, Result};

use super::serve::Serve;
use super::slots::{Left, Slot, Slots, State};
use super::wire::{self, MESSAGE_BYTES_MIN, Reply};
use crate::patience::Patience;

/// Serves `served` with this many threads until its file system is gone.
///
/// # Errors
/// If the system gives no descriptor or no thread. Threads that were started end with the file
/// system.
pub(super) fn start(
    served: Arc<dyn Serve>,
    device: OwnedFd,
    slots: Vec<Slot>,
) -> io::Result<Vec<JoinHandle<()>>> {
    let device = Arc::new(device);
    let start_one = |(number, slot)| {
        let mut worker = Worker::new(Arc::clone(&served), Arc::clone(&device), slot)?;
        let thread = thread::Builder::new().name(format!("fuse-{number}"));
        thread.spawn(move || worker.run())
    };
    slots.into_iter().enumerate().map(start_one).collect()
}

/// A slot for each of so many workers of `served`.
///
/// # Errors
/// [`ErrorKind::Io`] if the system gives no memory.
pub(super) fn slots(served: &dyn Serve, threads: usize) -> Result<Vec<Slot>> {
    let slots = Slots::new(threads, buffer_bytes(served.request_bytes_max()));
    slots
        .map(Slot::all)
        .map_err(|error| Error::new(ErrorKind::Io, "buffers of a mount").with_source(error))
}

/// The largest message is a write: its header is in the second part.
pub(super) fn buffer_bytes(request_bytes_max: usize) -> usize {
    request_bytes_max + MESSAGE_BYTES_MIN
}

/// Answers what dead workers had taken and not answered. Returns the number of requests.
pub(super) fn settle(served: &dyn Serve, device: &OwnedFd, slots: &mut [Slot]) -> u64 {
    let mut answered = 0;
    for slot in slots {
        match slot.left() {
            Left::Nothing => continue,
            Left::Message(message_bytes) => {
                let (state, buffer) = slot.parts();
                carry_out(served, device, &state, buffer, message_bytes);
            }
            // Not carried out again: see `slots`. Who was told already is not told twice.
            Left::Reply(reply) => {
                let _ = rustix::io::write(device, &reply);
                slot.parts().0.empty();
            }
        }
        answered += 1;
    }
    answered
}

struct Worker {
    served: Arc<dyn Serve>,
    device: Arc<OwnedFd>,
    /// An epoll that waits for `device` alone.
    waiting: OwnedFd,
    slot: Slot,
    patience: Patience,
}

/// The result of a look at the device.
enum Look {
    Served,
    Nothing,
    /// The file system is gone, or cannot be served.
    Ended,
}

impl Worker {
    fn new(served: Arc<dyn Serve>, device: Arc<OwnedFd>, slot: Slot) -> io::Result<Worker> {
        let waiting = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
        epoll::add(&waiting, &device, epoll::EventData::new_u64(0), flags)?;
        Ok(Worker {
            served,
            device,
            waiting,
            slot,
            patience: Patience::default(),
        })
    }

    fn run(&mut self) {
        let mut looking_since = Instant::now();
        loop {
            match self.serve_next() {
                Look::Served => looking_since = Instant::now(),
                Look::Nothing if self.patience.lasts(looking_since) => thread::yield_now(),
                Look::Nothing => {
                    self.sleep();
                    self.patience.slept_since(looking_since);
                    looking_since = Instant::now();
                }
                Look::Ended => return,
            }
        }
    }

    /// Answers one request, if there is one.
    fn serve_next(&mut self) -> Look {
        let (state, buffer) = self.slot.parts();
        state.reading(buffer);
        let message_bytes = match rustix::io::read(&*self.device, &mut buffer[..]) {
            Ok(bytes) => bytes,
            Err(Errno::AGAIN) => return Look::Nothing,
            // A request that was taken back meanwhile, or a signal.
            Err(Errno::NOENT | Errno::INTR) => {
                state.empty();
                return Look::Served;
            }
            // NODEV: unmounted. Nothing else is known to come, and would come again.
            Err(_) => return Look::Ended,
        };
        state.received(&buffer[..message_bytes]);
        carry_out(&*self.served, &self.device, &state, buffer, message_bytes)
    }

    fn sleep(&self) {
        let mut event = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }];
        // Interrupted: there is a look before the next sleep.
        let _ = epoll::wait(&self.waiting, &mut event, None);
    }
}

/// Carries out the message at the start of `buffer`, and answers it.
fn carry_out(
    served: &dyn Serve,
    device: &OwnedFd,
    state: &State<'_>,
    buffer: &mut [u8],
    message_bytes: usize,
) -> Look {
    let opens = wire::opens(buffer);
    let Some(reply) = served.answer(buffer, message_bytes) else {
        state.empty();
        return Look::Served;
    };
    if reply.data.is_empty() {
        let is_done = reply.head()[4..8] == [0; 4];
        state.done(reply.head(), if is_done { opens } else { 0 });
    }
    let sent = send(device, &reply);
    state.empty();
    sent
}

fn send(device: &OwnedFd, reply: &Reply<'_>) -> Look {
    let parts = [reply.head(), reply.data].map(io::IoSlice::new);
    match rustix::io::writev(device, &parts) {
        Err(Errno::NODEV) => Look::Ended,
        // NOENT: nobody waits for it any more. What else is refused was answered by the kernel itself.
        _ => Look::Served,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Counts what it carries out.
    #[derive(Default)]
    struct Counting(AtomicUsize);

    impl Serve for Counting {
        fn answer<'b>(&self, buffer: &'b mut [u8], message_bytes: usize) -> Option<Reply<'b>> {
            self.0.fetch_add(1, Ordering::Relaxed);
            (buffer[..message_bytes] == *b"\x06\0\0\0 m").then(|| Reply::done(7))
        }

        fn request_bytes_max(&self) -> usize {
            4096
        }
    }

    /// A write that was carried out may have been answered, and a later one of the same page, too: only its answer is
    /// sent again.
    #[test]
    fn what_was_carried_out_is_answered_and_not_carried_out_again() {
        let served = Counting::default();
        let mut slots = slots(&served, 4).unwrap();
        let begin = |slot: &mut Slot| {
            let (state, buffer) = slot.parts();
            buffer[..6].copy_from_slice(b"\x06\0\0\0 m");
            state.received(&buffer[..6]);
        };
        begin(&mut slots[1]);
        begin(&mut slots[2]);
        slots[2].parts().0.done(b"the reply of before", 0);
        let (kernel, device) = UnixStream::pair().unwrap();
        let device = OwnedFd::from(device);
        settle(&served, &device, &mut slots);
        assert_eq!(served.0.load(Ordering::Relaxed), 1);
        assert!(slots.iter_mut().all(|slot| slot.left() == Left::Nothing));
        drop(device);
        let mut answers = Vec::new();
        (&kernel).read_to_end(&mut answers).unwrap();
        let expected = [Reply::done(7).head(), b"the reply of before"].concat();
        assert_eq!(answers, expected);
    }
}
