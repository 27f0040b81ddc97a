//! The engine's only access to `std::sync` and `std::thread`. With `--cfg uzram_shuttle` the same
//! names come from shuttle, which then chooses every interleaving.
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
// A lock of the whole process, which outlives every schedule; nothing that a model runs takes it.
pub(crate) use std::sync::Mutex as ProcessMutex;
// Words that live in mapped memory; publication of what they describe goes through a lock.
#[cfg(uzram_shuttle)]
pub(crate) use self::mapped::MappedU32;
#[cfg(all(test, uzram_shuttle))]
pub(crate) use self::mapped::{interpose, interpose_now};
#[cfg(not(uzram_shuttle))]
pub(crate) use std::sync::atomic::AtomicU32 as MappedU32;
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
        #[cfg(all(test, uzram_shuttle))]
        mapped::pass_a_point();
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

/// Locks what the whole process shares.
pub(crate) fn lock_process<T>(mutex: &ProcessMutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Waits on `condvar`, giving `guard` back meanwhile.
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar
        .wait(guard)
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Sleeps for this long.
pub(crate) fn sleep(pause: std::time::Duration) {
    #[cfg(uzram_shuttle)]
    {
        let _ = pause;
        shuttle::thread::yield_now();
    }
    #[cfg(not(uzram_shuttle))]
    std::thread::sleep(pause);
}

/// Words in mapped memory for the model checker: other threads may run before each access.
#[cfg(uzram_shuttle)]
mod mapped {
    use super::{AtomicBool, Ordering};

    /// The standard library's atomic, whose size and alignment a word in memory has.
    #[derive(Debug)]
    #[repr(transparent)]
    pub(crate) struct MappedU32(std::sync::atomic::AtomicU32);

    impl MappedU32 {
        pub(crate) fn load(&self, ordering: Ordering) -> u32 {
            let_others_run();
            self.0.load(ordering)
        }

        pub(crate) fn store(&self, value: u32, ordering: Ordering) {
            let_others_run();
            self.0.store(value, ordering);
        }
    }

    #[cfg(test)]
    thread_local! {
        static INTERPOSED: std::cell::RefCell<Option<(usize, Box<dyn FnOnce()>)>> = const {
            std::cell::RefCell::new(None)
        };
    }

    /// Does `action` before a later access to a mapped word or lock, after this many others. A scheduler would need
    /// too many tries to hit a point between two accesses.
    #[cfg(test)]
    pub(crate) fn interpose(accesses: usize, action: Box<dyn FnOnce()>) {
        INTERPOSED.set(Some((accesses, action)));
    }

    /// Counts an access, or does the pending action before it.
    #[cfg(test)]
    pub(super) fn pass_a_point() {
        match INTERPOSED.take() {
            Some((0, action)) => action(),
            Some((accesses, action)) => INTERPOSED.set(Some((accesses - 1, action))),
            None => {}
        }
    }

    /// Does the pending action if its turn has come.
    #[cfg(test)]
    pub(crate) fn interpose_now() {
        if let Some((_, action)) = INTERPOSED.take() {
            action();
        }
    }

    /// Touching any object that the checker tracks lets it switch threads.
    fn let_others_run() {
        #[cfg(test)]
        pass_a_point();
        let _ = AtomicBool::new(false).load(Ordering::SeqCst);
    }
}

/// One turn of a spin loop.
pub(crate) fn spin() {
    #[cfg(uzram_shuttle)]
    shuttle::hint::spin_loop();
    #[cfg(not(uzram_shuttle))]
    std::hint::spin_loop();
}
