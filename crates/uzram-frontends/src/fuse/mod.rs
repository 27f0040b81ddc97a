//! A block device as one file, for kernels that have FUSE and nothing else.
//!
//! The file is `DIR/NAME` in a file system of its own, as large as the device, and cannot grow. It
//! is opened for direct I/O whatever a program asks for, so the page cache never holds a second
//! copy. Punching a hole or zeroing a range (`fallocate`) gives the memory of whole pages back;
//! opening with `O_TRUNC` leaves the content, as it does on a block device. A loop device over the
//! file is a block device that mkfs, mount and swapon take.
//!
//! ```no_run
//! use std::sync::Arc;
//! use uzram::{Store, Zram};
//! use uzram_frontends::fuse::{Mount, Options};
//!
//! let disk = Zram::new(Store::builder().size(1 << 30).build()?);
//! let mut mount = Mount::new(Arc::new(disk), "disk", "/mnt/uzram".as_ref(), Options::default())?;
//! println!("dd if=disk.img of={} conv=notrunc", mount.path().display());
//! mount.unmount()?;
//! # Ok::<(), uzram::Error>(())
//! ```
//!
//! # Speed
//!
//! A request costs two system calls of a worker and one copy, and a wake-up unless a worker is
//! still looking for requests. Depth helps: the kernel is asked for `FUSE_ASYNC_DIO` and parallel
//! direct writes. Without them a loop device keeps one request in flight.
//!
//! # Bounds
//!
//! | what                            | limit                                | beyond it            |
//! |---------------------------------|--------------------------------------|----------------------|
//! | a request's data                | [`REQUEST_BYTES_MAX`], 1 MiB         | the kernel splits it |
//! | requests in flight in background | [`BACKGROUND_MAX`]                  | the kernel queues    |
//! | worker threads                  | [`Options::threads`], [`THREADS_MAX`] | refused             |
//! | wait for the workers' end       | [`END_TIMEOUT`]                      | they are left behind |
//!
//! Each worker has one buffer of [`REQUEST_BYTES_MAX`] and 8 KiB, for the message that it receives
//! and the data that it reads. A request allocates nothing, and takes no lock but the device's. The buffers lie in a
//! file of memory: with it and the mount's descriptor another process takes the mount over ([`Mount::remains`]).

pub mod bare;
mod disk;
mod fusermount;
mod gate;
mod keeper;
mod mount;
mod mounted;
mod serve;
mod slots;
mod tree;
mod wire;
mod worker;

use std::time::Duration;

pub use fusermount::unmount_as_user;
pub use keeper::{Keeper, keep};
pub use mount::{Mount, MountRemains, Options};
pub use tree::{Files, Node, ROOT, TREE_SOURCE, Text, TreeMount, UnservedTree};

/// Most data in one request, in bytes: the kernel allows 256 pages.
pub const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Most requests that the kernel keeps in flight without a thread waiting for each: those of a loop
/// device and of asynchronous I/O.
pub const BACKGROUND_MAX: u16 = 256;
/// Most worker threads of a mount.
pub const THREADS_MAX: usize = 64;
/// Longest wait for the workers once the file system is unmounted.
pub const END_TIMEOUT: Duration = Duration::from_secs(5);
