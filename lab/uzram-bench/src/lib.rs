//! `uzram-bench`: uzram measured against its peers, on pages that you choose.
//!
//! - [`cli`] checks the command line and runs a suite from there to the report.
//! - `suite/` holds one suite a folder: `store` (the library), `codecs`, `cold`, `pools` (the allocators),
//!   `streams` and `locks` (the engine's sharing), `nbd` (the server) and others.
//! - `job/` runs what iozone and fio made common on anything that holds blocks.
//! - `peers/` holds what uzram is compared with, one peer a file.
//! - `side` is a side of any comparison; `suite/turns` is the loop in which sides alternate; `figures` makes
//!   rows and ratios of what they did.
//! - `swap/` is a swap layer: slots of pages on any block device, and three ways to hand pages over.
//! - `workload`, `synthetic` and `sink` are what all sides share: pages, orders, buffers. The head of
//!   `workload` says what is fair.
//! - `folder` holds folders and cgroups of a run, and undoes what a run that was killed left behind.
//! - The crate `uzram-variants` holds the engine's paths not taken: other slot locks, other ways to share streams.
//! - `aims` and `published` put what is aimed at and what others published, from `data/`, beside figures;
//!   `suite/grid` makes the blocks of published tables, `suite/orderings` says which orders hold.
//! - Corpora, spreads and reports are those of `uzram-advise`.
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

#![deny(unsafe_code)]

mod aims;
pub mod args;
pub mod cli;
#[allow(unsafe_code)]
mod cpu_time;
mod earlier;
mod figures;
mod folder;
mod job;
mod machine;
#[allow(unsafe_code)]
mod mapping;
mod peers;
mod plain;
mod published;
mod render;
mod saved;
mod side;
mod sink;
mod suite;
mod summary;
mod swap;
mod synthetic;
mod workload;

pub use uzram_advise::{Error, Result};
use uzram_advise::{command, corpus, error, progress, report, sample, stop};
