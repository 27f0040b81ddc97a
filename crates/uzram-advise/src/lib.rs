//! The choice of codec, unit, pool and dictionary for given pages, by measuring on those pages.
//!
//! - [`capture`] takes pages out of a process or a file; [`corpus`] reads a file of them.
//! - [`advise`] tries every choice on a sample of pages and recommends one.
//! - [`train`] makes dictionaries, and measures them on pages that they have not seen.
//! - [`sample`] turns runs into spreads and pairs into ratios; [`report`] shows them, also as one
//!   HTML page with charts.
//!
//! # Modules that may use unsafe
//!
//! - `train/trainer.rs`: a call into libzstd

#![deny(unsafe_code)]

pub mod advise;
pub mod capture;
pub mod command;
pub mod corpus;
pub mod error;
pub mod machine;
pub mod progress;
pub mod report;
pub mod sample;
pub mod stop;
pub mod train;

pub use error::{Error, Result};
