//! Atomics of the files that the laboratory also compiles under a checker with weak memory, which gives its own under
//! this name.

#[cfg(feature = "fuse")]
pub(crate) use std::sync::atomic::AtomicU64;
pub(crate) use std::sync::atomic::Ordering;
#[cfg(feature = "vhost-user")]
pub(crate) use std::sync::atomic::{AtomicBool, fence};
