//! A block device of this machine's kernel, /dev/ublkbN, for mkfs, mount and swapon, through the
//! driver `ublk_drv` (Linux 6.5 or newer) and io_uring.
//!
//! ```no_run
//! use std::sync::Arc;
//! use uzram::{Store, Zram};
//! use uzram_frontends::ublk::{Disk, Options};
//!
//! let device = Zram::new(Store::builder().size(1 << 30).build()?);
//! let disk = Disk::new(Arc::new(device), Options::default())?;
//! println!("mkfs.ext4 {}", disk.path().display());
//! disk.remove()?;
//! # Ok::<(), uzram::Error>(())
//! ```
//!
//! ```text
//! disk        what others use: a disk, and what dead servers left
//! lifecycle   a device from its first command to its last
//! kernel      the driver's control node
//! queue       requests arrive, are carried out, and are answered
//! execute     one request
//! ring        a queue's io_uring
//! memory      what a queue shares with the kernel
//! protocol    all of that as bytes
//! ```
//!
//! # The life of a request
//!
//! A queue is a thread with a ring, for the CPUs whose requests it gets. The kernel copies the
//! data of a write into the request's buffer before the request arrives, and the data of a read
//! out of it when the request is answered. One system call takes answers to the kernel and
//! requests back. The thread sleeps in it while there is nothing to do. It allocates nothing for a
//! request, and takes no lock but the device's. It is marked as an I/O flusher, so that its own
//! waits for memory never wait for the disk.
//!
//! # When the server dies
//!
//! The kernel fails requests under way and later ones, and takes the disk away. With
//! [`Options::outlives`] it keeps the disk and the requests instead, and [`Disk::resume`] in
//! another process goes on with both. A request that the dead server had carried out and not
//! answered is carried out again: nobody was told of it, and the block layer's users order no
//! request before one that is not answered. One that was answered never comes again.
//!
//! # Bounds
//!
//! | what                         | limit                                  | beyond it              |
//! |------------------------------|----------------------------------------|------------------------|
//! | a request's data             | [`REQUEST_BYTES_MAX`], 128 KiB         | the kernel splits it   |
//! | requests at once             | [`Options::depth`] in each queue       | the kernel queues      |
//! | queues, a thread each        | [`Options::queues`], [`QUEUES_MAX`]    | refused                |
//! | answers that wait for others | 64 KiB of data                         | are sent               |
//! | one command of the driver    | 30 s                                   | fails                  |
//! | wait for the queues' end     | [`END_TIMEOUT`]                        | they are left behind   |
//!
//! Each queue maps depth times [`REQUEST_BYTES_MAX`] for buffers. Only the used part of them takes
//! memory.

mod bare;
mod disk;
mod execute;
#[doc(hidden)]
pub mod hostile;
mod kernel;
mod lifecycle;
mod memory;
mod protocol;
mod queue;
mod ring;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;

use std::time::Duration;

// For our benchmarks alone: a queue without the driver.
#[doc(hidden)]
pub use bare::drive;
pub use disk::{Device, Disk, Options, check, devices};

/// Most data in one request, in bytes.
pub const REQUEST_BYTES_MAX: u32 = 128 << 10;
/// Most queues of a disk.
pub const QUEUES_MAX: u16 = 64;
/// Most requests at once in a queue: the driver's limit.
pub const DEPTH_MAX: u16 = protocol::DEPTH_MAX;
/// Longest wait for the queues once the kernel has handed their requests back.
pub const END_TIMEOUT: Duration = Duration::from_secs(5);
