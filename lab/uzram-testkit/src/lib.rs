//! Shared by tests and benchmarks: one generator of random numbers, pages of known kinds, and a
//! browser that checks reports.
//!
//! The same seed gives the same bytes everywhere. This crate depends on none of the others, so
//! that all of them can use it in their tests. The product never does.

#![forbid(unsafe_code)]

pub mod browser;
pub mod pages;
mod rng;

pub use rng::{Rng, noise};
