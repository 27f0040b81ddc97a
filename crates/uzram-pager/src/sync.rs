//! Atomics of the files that the laboratory also compiles under a checker with weak memory, which gives its own under
//! this name.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence};
