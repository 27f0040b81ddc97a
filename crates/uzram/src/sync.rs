//! The engine's only door to `std::sync` and `std::thread`: with `--cfg uzram_shuttle` the same names
//! come from shuttle, which then chooses every interleaving.
//!
//! Locks here do not poison: each critical section of the engine leaves its data whole at every
//! point where a caller's code (a registered codec) can unwind.

#[cfg(uzram_shuttle)]
use shuttle::sync as imp;
#[cfg(not(uzram_shuttle))]
use std::sync as imp;

pub(crate) use imp::atomic::{AtomicBool, AtomicU64, Ordering};
pub(crate) use imp::{Condvar, MutexGuard};
// Shared ownership needs no model checking.
pub(crate) use std::sync::Arc;
// Orders accesses to memory that the model checker does not see.
pub(crate) use std::sync::atomic::fence;
// What a process does once needs no model checking.
#[cfg(target_arch = "x86_64")]
pub(crate) use std::sync::OnceLock;
// Words that live in mapped memory; publication of what they describe goes through a lock.
pub(crate) use std::sync::atomic::AtomicU32 as MappedU32;
#[cfg(any(test, not(uzram_shuttle)))]
pub(crate) use std::sync::atomic::AtomicU64 as MappedU64;

/// A mutex whose guard survives a panic elsewhere.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T> {
    inner: imp::Mutex<T>,
}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex {
            inner: imp::Mutex::new(value),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.inner
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.inner.try_lock() {
            Ok(guard) => Some(guard),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }
}

/// Waits on `condvar`, giving `guard` back meanwhile.
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar
        .wait(guard)
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Gives the CPU away for so long.
pub(crate) fn sleep(pause: std::time::Duration) {
    #[cfg(uzram_shuttle)]
    {
        let _ = pause;
        shuttle::thread::yield_now();
    }
    #[cfg(not(uzram_shuttle))]
    std::thread::sleep(pause);
}

/// One turn of a spin loop.
pub(crate) fn spin() {
    #[cfg(uzram_shuttle)]
    shuttle::hint::spin_loop();
    #[cfg(not(uzram_shuttle))]
    std::hint::spin_loop();
}
