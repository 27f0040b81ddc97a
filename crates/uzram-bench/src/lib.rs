//! `uzram bench`: uzram measured against its peers, on pages that you choose.
//!
//! - [`cli`] checks the command line and runs a suite from there to the report.
//! - `suite/` holds one suite a folder: `store` (the library), `codecs`, `pools` (the allocators),
//!   `streams` and `locks` (the engine's sharing), `nbd` (the server) and others.
//! - `job/` runs what iozone and fio made common on anything that holds blocks.
//! - [`train`] makes dictionaries, and measures them on pages that they have not seen.
//! - `peers/` holds what uzram is compared with, one peer a file.
//! - `workload`, `corpus` and `sink` are what all sides share: pages, orders, buffers. The head of
//!   `workload` says what is fair; `suite/store/rounds` how the sides alternate.
//! - `variants/` holds the engine's paths not taken: other slot locks, other ways to share streams.
//! - [`advise`] tries every choice on somebody's pages and recommends one.
//! - `sample` turns runs into spreads and pairs into ratios; `report/` prints them and writes JSON.
//!
//! A benchmark is not a test: nothing here fails because something was slow. The tests of this
//! crate check the harness itself.
//!
//! # Modules that may use unsafe
//!
//! - `cpu_time.rs`: getrusage
//! - `mapping.rs`: mmap and madvise
//! - `suite/codecs/bare.rs`: calls into liblz4
//! - `suite/pools/glibc.rs`: malloc_trim
//! - `suite/pools/mimalloc.rs`: an allocator beside the program's own
//! - `suite/contention/usage.rs`: getrusage
//! - `train/trainer.rs`: a call into libzstd
//! - `variants/locks.rs`: promises that locks exclude

#![deny(unsafe_code)]

pub mod advise;
pub mod cli;
mod corpus;
#[allow(unsafe_code)]
mod cpu_time;
mod error;
mod job;
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
mod variants;
mod workload;

pub use error::{Error, Result};
