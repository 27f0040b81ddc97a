//! Loom's side of the names that the product's files use.

pub(crate) use loom::sync::Condvar;
pub(crate) use loom::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence,
};

/// As the engine's: no poison.
#[derive(Debug)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T: Default> Default for Mutex<T> {
    fn default() -> Mutex<T> {
        Mutex(loom::sync::Mutex::new(T::default()))
    }
}

impl<T> Mutex<T> {
    pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        self.0.lock().unwrap()
    }
}

pub(crate) fn wait<'a, T>(
    condvar: &Condvar,
    guard: loom::sync::MutexGuard<'a, T>,
) -> loom::sync::MutexGuard<'a, T> {
    condvar.wait(guard).unwrap()
}

/// A turn of spinning, of which there are few. A yield would let no other thread find this one waiting.
pub(crate) fn spin() {}
