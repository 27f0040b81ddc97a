//! Turns at the pager: its own thread's, and those of threads that answer their own faults.
//!
//! One lock excludes them. Who has it does not touch the range and blocks all signals, so it never waits for one that waits
//! for it. The system's messages are read under the lock: a thread that discards pages runs on as soon as its message was
//! read, and whoever has the next turn must know of it.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use rustix::io::Errno;
use uzram::Store;

use crate::handler::FaultHandler;
use crate::mapping::Mapping;
use crate::pager::{Pager, Turn};
use crate::uffd::Uffd;

/// The longest that the store is maintained at a time, about.
const MAINTAIN_MAX: Duration = Duration::from_micros(100);
/// Pauses of a thread that has ended its service and still reads messages: each twice the last.
const REST_PAUSE_MIN: Duration = Duration::from_micros(50);
const REST_PAUSE_MAX: Duration = Duration::from_millis(50);
/// How often the pager's thread lets threads that fault go first, before a turn of its own.
const YIELDS_MAX: u32 = 16;

/// The pager and its lock.
#[derive(Debug)]
pub(crate) struct Turns {
    pager: Mutex<Pager>,
    /// Threads that wait for the lock because they fault.
    waiting: AtomicUsize,
    uffd: Arc<Uffd>,
    store: Arc<Store>,
    program: Arc<Mapping>,
    /// Whether others than the pager's thread take turns.
    has_handlers: bool,
}

impl Turns {
    pub fn new(
        pager: Pager,
        handler: FaultHandler,
        uffd: Arc<Uffd>,
        store: Arc<Store>,
        program: Arc<Mapping>,
    ) -> Turns {
        Turns {
            has_handlers: handler == FaultHandler::FaultingThread,
            pager: Mutex::new(pager),
            waiting: AtomicUsize::new(0),
            uffd,
            store,
            program,
        }
    }

    /// The turn of a thread that faults.
    pub fn take(&self) -> MutexGuard<'_, Pager> {
        loop {
            match self.pager.try_lock() {
                Ok(turn) => return turn,
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Poisoned(poisoned)) => {
                    let turn = poisoned.into_inner();
                    if turn.has_ended() {
                        return turn;
                    }
                    // The pager's thread has failed, and is about to mark what is lost.
                    drop(turn);
                    std::thread::yield_now();
                    continue;
                }
            }
            self.waiting.fetch_add(1, Ordering::Relaxed);
            // Not kept if it is poisoned: the next round sees that.
            let turn = self.pager.lock();
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            if let Ok(turn) = turn {
                return turn;
            }
        }
    }

    /// Tells the pager's thread that there is something to do.
    pub fn call(&self) {
        self.program.ring_bell();
    }

    /// Does what the pager's thread does, until told to end. After a failure no page of the program reads as zeroes that
    /// is not zero.
    pub fn run(&self) {
        let served = std::panic::catch_unwind(AssertUnwindSafe(|| self.serve_until_the_end()));
        self.with_pager(|pager| {
            if !matches!(served, Ok(Ok(()))) {
                pager.give_up();
            }
            pager.end();
        });
        if self.has_handlers {
            self.read_the_rest();
        }
    }

    /// A discard that began before the end waits until its message is read, or the descriptor is closed. Handlers have that
    /// as long as the memory is there.
    fn read_the_rest(&self) {
        let mut pause = REST_PAUSE_MIN;
        while !self.with_pager(Pager::read_the_rest) {
            std::thread::sleep(pause);
            pause = (2 * pause).min(REST_PAUSE_MAX);
        }
    }

    fn serve_until_the_end(&self) -> Result<(), Errno> {
        let mut last = Turn::Idle;
        loop {
            let mut waits = false;
            match last {
                // Its wait must not keep handlers from the lock.
                Turn::Idle if self.has_handlers => self.uffd.wait()?,
                Turn::Idle => waits = true,
                Turn::Busy => {}
                // The thread that changes mappings must run on first.
                Turn::Blocked => std::thread::yield_now(),
                Turn::Maintain => {
                    if !self.store.maintain(MAINTAIN_MAX) {
                        self.with_pager(Pager::maintained);
                    }
                }
                Turn::End => return Ok(()),
            }
            for _ in 0..YIELDS_MAX {
                if self.waiting.load(Ordering::Relaxed) == 0 {
                    break;
                }
                std::thread::yield_now();
            }
            last = self.with_pager(|pager| pager.turn(waits))?;
        }
    }

    fn with_pager<R>(&self, body: impl FnOnce(&mut Pager) -> R) -> R {
        let mut turn = self.pager.lock().unwrap_or_else(PoisonError::into_inner);
        body(&mut turn)
    }
}
