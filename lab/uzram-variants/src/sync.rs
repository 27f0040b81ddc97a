//! The variants' door to `std::sync` and `std::thread`: with `--cfg uzram_shuttle` the same names come
//! from shuttle, as in the engine.

#[cfg(uzram_shuttle)]
use shuttle::{hint, sync as imp, thread};
#[cfg(not(uzram_shuttle))]
use std::{hint, sync as imp, thread};

pub(super) use imp::atomic::{AtomicU64, Ordering};
pub(super) use imp::{Condvar, Mutex, MutexGuard};

/// Turns of spinning before a waiter gives its CPU away, as many as the engine's lock spins.
const SPINS_MAX: u32 = if cfg!(uzram_shuttle) { 1 } else { 200 };

/// Locks `mutex`, whose content a panic elsewhere leaves whole.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Waits on `condvar`, giving `guard` back meanwhile.
pub(super) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar
        .wait(guard)
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The pause of a spinning waiter between two looks. The holder of a kernel's spinlock cannot be preempted; here
/// it can, so a waiter must let it have the CPU.
#[derive(Default)]
pub(super) struct Patience {
    turns: u32,
}

impl Patience {
    pub(super) fn turn(&mut self) {
        if self.turns < SPINS_MAX {
            self.turns += 1;
            hint::spin_loop();
        } else {
            thread::yield_now();
        }
    }
}
