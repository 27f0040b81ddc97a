//! Shared by tests and benchmarks: one generator of random numbers, pages of known kinds, a
//! browser that checks reports, cargo for tests that build programs, programs to execute, and loop
//! devices.
//!
//! The same seed gives the same bytes everywhere. This crate depends on none of the others, so
//! that all of them can use it in their tests. The product never does.

#![forbid(unsafe_code)]

pub mod browser;
mod cargo;
mod loop_device;
pub mod pages;
mod program;
mod rng;

pub use cargo::cargo;
pub use loop_device::Loop;
pub use program::{copy_program, make_program};
pub use rng::{Rng, noise};
