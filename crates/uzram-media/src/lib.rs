//! Block devices that compress nothing, with the interface of uzram's compressed ones
//! ([`uzram::BlockDevice`]).
//!
//! - [`Brd`] keeps pages as they are in memory.
//! - [`Pmem`] keeps bytes at their place in a file of persistent memory, [`PmemFile`].
//! - [`Btt`] makes sectors atomic on such a file: a Block Translation Table in the format of the UEFI
//!   specification and of Linux.
//!
//! A mapped file can be truncated while it is used. That is an I/O error here: accesses go through
//! guarded copies and a handler of SIGBUS ([`sigbus`]) that a process shares with other owners of
//! such memory.

#![deny(unsafe_code)]

mod brd;
mod btt;
mod cpu;
mod mapping;
mod medium;
mod memory;
mod pmem;
pub mod sigbus;
mod sync;
mod turns;

pub use brd::Brd;
pub use btt::{Btt, BttProblem, BttReport, BttVersion};
pub use medium::{Persistence, PmemFile};
pub use pmem::Pmem;
