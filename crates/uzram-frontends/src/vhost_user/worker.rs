//! A thread that serves one queue: its looks, its notifications, its sleep.
//!
//! Two designs were weighed. *A pool*, in which idle threads help a queue that has much to do:
//! requests would end out of order, so a server that dies would leave no record of what was done,
//! and each hand-over costs a wake-up. *One thread per queue* (chosen): virtio has queues for this
//! purpose, and a guest that needs more than one CPU asks for more queues.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{FileType, OFlags};

use super::chain::Broken;
use super::ring::Ring;
use crate::patience::Patience;

/// The guest is notified at the latest when the oldest finished request has waited this long. It
/// then goes on while the rest is worked on.
const TELL_DELAY_MAX: Duration = Duration::from_micros(25);
/// Data that is moved before the guest is notified, in bytes.
const TELL_BYTES: u64 = 64 << 10;

/// An eventfd that the guest's owner gave us.
#[derive(Debug)]
pub(super) struct Event(OwnedFd);

impl Event {
    /// # Errors
    /// If it is another kind of file: writing to it could block for ever.
    pub fn new(file: File) -> Result<Event, &'static str> {
        let stat = rustix::fs::fstat(&file).map_err(|_| "a descriptor that cannot be looked at")?;
        // What has no place in a file system has no type either.
        if FileType::from_raw_mode(stat.st_mode) != FileType::Unknown {
            return Err("a descriptor that is no eventfd");
        }
        let flags = rustix::fs::fcntl_getfl(&file).map_err(|_| "a descriptor without flags")?;
        rustix::fs::fcntl_setfl(&file, flags | OFlags::NONBLOCK)
            .map_err(|_| "a descriptor that always blocks")?;
        Ok(Event(file.into()))
    }

    fn own() -> io::Result<Event> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Event(eventfd(0, flags)?))
    }

    /// Signals it. If it was signalled as often as possible, it is signalled already.
    pub fn signal(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn forget(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

/// The way to notify a guest. It changes while the queue is served.
#[derive(Debug, Default)]
pub(super) struct Call(Mutex<Option<Event>>);

impl Call {
    /// Signals it, too: a server that was killed may have answered requests and not told so, and the wish of a guest that
    /// waits for these would keep later ones quiet as well. One signal too many is allowed.
    pub fn set(&self, event: Option<Event>) {
        *self.lock() = event;
        self.signal();
    }

    fn signal(&self) {
        if let Some(event) = &*self.lock() {
            event.signal();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Event>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place that a queue reached, and the reason for its end unless it was asked to end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub next_available: u16,
    pub broken: Option<Broken>,
}

#[derive(Debug)]
struct Stop {
    is_set: AtomicBool,
    event: Event,
}

/// A queue that is served.
#[derive(Debug)]
pub(super) struct Worker {
    stop: Arc<Stop>,
    thread: JoinHandle<Ended>,
}

impl Worker {
    /// Serves `ring` from now on. `on_broken` is called if it cannot be served any further.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn start(
        ring: Ring,
        kick: Arc<Event>,
        call: Arc<Call>,
        on_broken: impl FnOnce(Broken) + Send + 'static,
    ) -> io::Result<Worker> {
        let stop = Arc::new(Stop {
            is_set: AtomicBool::new(false),
            event: Event::own()?,
        });
        let mut serving = Serving {
            ring,
            kick,
            call,
            stop: Arc::clone(&stop),
            patience: Patience::default(),
        };
        let run = move || {
            let broken = serving.run().err();
            broken.map(on_broken);
            let next_available = serving.ring.next_available();
            Ended {
                next_available,
                broken,
            }
        };
        let thread = thread::Builder::new().name("vhost-queue".to_owned());
        let thread = thread.spawn(run)?;
        Ok(Worker { stop, thread })
    }

    /// Lets it finish its current request, and waits for that.
    pub fn stop(self) -> Ended {
        self.stop.is_set.store(true, Ordering::Release);
        self.stop.event.signal();
        self.thread.join().unwrap_or(Ended {
            next_available: 0,
            broken: Some(Broken("its thread panicked")),
        })
    }
}

struct Serving {
    ring: Ring,
    kick: Arc<Event>,
    call: Arc<Call>,
    stop: Arc<Stop>,
    patience: Patience,
}

impl Serving {
    fn run(&mut self) -> Result<(), Broken> {
        self.ring.ignore()?;
        let mut looking_since = Instant::now();
        while !self.is_stopped() {
            if self.serve_available()? {
                looking_since = Instant::now();
            } else if self.patience.lasts(looking_since) {
                thread::yield_now();
            } else {
                // More may have come before the guest saw that we listen; of that it says nothing.
                if !self.ring.listen()? {
                    self.sleep();
                    self.patience.slept_since(looking_since);
                }
                self.ring.ignore()?;
                looking_since = Instant::now();
            }
        }
        Ok(())
    }

    /// Carries out the requests that are there; false if there were none.
    fn serve_available(&mut self) -> Result<bool, Broken> {
        let mut untold: Option<(Instant, u64)> = None;
        let mut outcome = Ok(false);
        while !self.is_stopped() {
            let bytes = match self.ring.serve_next() {
                Ok(Some(bytes)) => bytes,
                Ok(None) => break,
                Err(broken) => {
                    outcome = Err(broken);
                    break;
                }
            };
            outcome = Ok(true);
            let now = Instant::now();
            let (since, sum) = untold.map_or((now, bytes), |(since, sum)| (since, sum + bytes));
            untold = Some((since, sum));
            if sum >= TELL_BYTES || now - since >= TELL_DELAY_MAX {
                self.tell()?;
                untold = None;
            }
        }
        // Also what was done before the queue turned out to be broken.
        if untold.is_some() {
            self.tell()?;
        }
        outcome
    }

    fn tell(&mut self) -> Result<(), Broken> {
        if self.ring.wants_interrupt()? {
            self.call.signal();
        }
        Ok(())
    }

    fn sleep(&self) {
        let mut wakers = [
            PollFd::new(&self.kick.0, PollFlags::IN),
            PollFd::new(&self.stop.event.0, PollFlags::IN),
        ];
        // Interrupted: there is a look before the next sleep.
        let _ = poll(&mut wakers, None);
        self.kick.forget();
    }

    fn is_stopped(&self) -> bool {
        self.stop.is_set.load(Ordering::Acquire)
    }
}
