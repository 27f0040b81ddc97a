//! The product's algorithms that order memory by themselves, under loom, which explores what weaker machines than
//! x86-64 may show. Its limits: few threads, no more than a few switches against their will, sequentially consistent
//! accesses weaker than real, and no load that is satisfied by a later store of another thread.
//!
//! The files are the product's own, compiled a second time with loom's atomics, mutexes and condition variables under
//! the name `crate::sync`. What they publish is a cell here of which loom sees every unordered access.
//!
//! # Modules that may use unsafe
//!
//! - `cell.rs`: access to such a cell

#![cfg(test)]
#![deny(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "all of this is a test")]

mod cell;
mod error;
mod fuse;
mod memory;
mod signal;
mod store;
mod sync;
mod vhost_user;

/// Runs `model` in every order of its steps with few switches of a thread that could go on.
fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut checker = loom::model::Builder::new();
    checker.preemption_bound = Some(2);
    checker.check(model);
}
