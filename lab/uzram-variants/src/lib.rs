//! The engine's paths not taken, kept measurable: other slot locks, other ways to share the streams.
//!
//! They run in the engine's own store, in place of what it has; [`build`](uzram::StoreBuilder) puts
//! them there. All of them, and the engine's, pass the same models under shuttle (`shuttle_tests.rs`), or are
//! seen to fail those that they do not promise to pass.
//!
//! # Modules that may use unsafe
//!
//! - `locks.rs`: promises that locks exclude

#![deny(unsafe_code)]

#[allow(unsafe_code)]
pub mod locks;
pub mod streams;
mod sync;

#[cfg(all(test, uzram_shuttle))]
mod shuttle_tests;
