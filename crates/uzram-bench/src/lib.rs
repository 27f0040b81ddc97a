//! `uzram bench`: uzram measured against its peers, on pages that you choose.
//!
//! - [`cli`] checks the command line and runs a suite from there to the report.
//! - `suite/` holds one suite a folder: `store` (the library), `codecs`, `pools` (the allocators)
//!   and `nbd` (the server).
//! - [`train`] makes dictionaries, and measures them on pages that they have not seen.
//! - `peers/` holds what uzram is compared with, one peer a file.
//! - `workload`, `corpus` and `sink` are what all sides share: pages, orders, buffers. The head of
//!   `workload` says what is fair; `suite/store/rounds` how the sides alternate.
//! - [`advise`] tries every choice on somebody's pages and recommends one.
//! - `sample` turns runs into spreads and pairs into ratios; `report/` prints them and writes JSON.
//!
//! A benchmark is not a test: nothing here fails because something was slow. The tests of this
//! crate check the harness itself.
//!
//! # Modules that may use unsafe
//!
//! - `mapping.rs`: mmap and madvise
//! - `suite/codecs/bare.rs`: calls into liblz4
//! - `suite/pools/glibc.rs`: malloc_trim
//! - `suite/pools/mimalloc.rs`: an allocator beside the program's own
//! - `train/trainer.rs`: a call into libzstd

#![deny(unsafe_code)]

pub mod advise;
pub mod cli;
mod corpus;
mod error;
mod machine;
#[allow(unsafe_code)]
mod mapping;
mod peers;
mod progress;
mod report;
mod rng;
mod sample;
mod sink;
mod stop;
mod suite;
pub mod train;
mod workload;

pub use error::{Error, Result};
