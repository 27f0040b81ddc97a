//! A disk for virtual machines: virtio-blk over vhost-user, as QEMU, cloud-hypervisor and crosvm
//! attach it.
//!
//! A virtual machine's process connects to a Unix socket and lends its guest's memory. From then
//! on the guest's requests lie in rings in that memory, and one thread per queue carries them out,
//! without a copy through a socket. QEMU needs memory that can be shared:
//!
//! ```text
//! qemu-system-x86_64 … -object memory-backend-memfd,id=memory,size=2G,share=on \
//!   -machine memory-backend=memory -chardev socket,id=disk,path=/run/uzram/disk.vhost,reconnect=1 \
//!   -device vhost-user-blk-pci,chardev=disk,num-queues=2
//! ```
//!
//! Offered: any number of queues up to [`QUEUES_MAX`], indirect descriptors, event indexes, flush,
//! discard, write zeroes, the disk's name (`GET_ID`), a cache mode that the guest can change,
//! read-only disks, and a topology that makes guests write whole units. Not offered: the record of
//! written pages that moving a running guest elsewhere takes, and the record of requests in
//! flight, which is not needed because requests finish in order (a guest that reconnects goes on
//! at its used ring).
//!
//! ```no_run
//! use std::sync::Arc;
//! use uzram::{Store, Zram};
//! use uzram_frontends::vhost_user::{Disk, Server};
//!
//! let disk = Zram::new(Store::builder().size(1 << 30).build()?);
//! let server = Server::bind("/run/disk.vhost".as_ref())?;
//! let device = Arc::new(disk);
//! server.seat().offer(Disk { name: "disk".into(), device, is_read_only: false })?;
//! let server = server.spawn(Arc::new(|notice| eprintln!("{notice}")))?;
//! # drop(server);
//! # Ok::<(), uzram::Error>(())
//! ```
//!
//! # Trust
//!
//! Nothing that comes from a guest or its owner is trusted. A descriptor is copied before it is
//! checked, and data before it is compressed, because the guest can change its memory at any
//! moment. Addresses are checked against the lent memory. A chain that loops, leads outside or has
//! no place for a status stops its queue, until the guest resets it. Any other fault is answered
//! with an error. Memory that its owner truncates while it is in use costs that guest its queues,
//! and no other guest anything.
//!
//! # Bounds
//!
//! | what                              | limit                            | beyond it                |
//! |-----------------------------------|----------------------------------|--------------------------|
//! | guests of a socket                | 1                                | hang-up, with a notice   |
//! | queues of a guest                 | [`QUEUES_MAX`], a thread each    | hang-up                  |
//! | requests in a queue               | [`QUEUE_SIZE_MAX`]               | hang-up                  |
//! | descriptors of a request          | [`QUEUE_SIZE_MAX`]               | the queue stops          |
//! | data of a request                 | [`REQUEST_BYTES_MAX`], 32 MiB    | an error                 |
//! | ranges of a discard, each         | [`RANGES_MAX`], [`RANGE_BYTES_MAX`] | an error              |
//! | regions of memory                 | 32                               | hang-up                  |
//! | time for a message to come whole  | [`MESSAGE_TIMEOUT`]              | hang-up                  |

mod backend;
pub mod bare;
mod chain;
#[cfg(feature = "vhost-user-client")]
pub mod client;
mod config;
mod mark;
mod memory;
mod request;
mod ring;
mod seat;
mod server;
mod vanish;
mod worker;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use uzram::BlockDevice;

pub use crate::peer::Peer;
pub use seat::Seat;
pub use server::{Server, ServerHandle};

/// Most queues of a guest. Only those that the guest uses have a thread.
pub const QUEUES_MAX: u16 = 64;
/// Most requests in a queue, and the most descriptors of a request.
pub const QUEUE_SIZE_MAX: u16 = 1024;
/// Most parts of a request's data, as advertised to guests.
pub const SEGMENTS_MAX: u32 = 126;
/// Longest part of a request's data, in bytes, as advertised to guests.
pub const SEGMENT_BYTES_MAX: u32 = 256 << 10;
/// Most data of a request, in bytes.
pub const REQUEST_BYTES_MAX: u64 = 32 << 20;
/// Most ranges of a discard or of zeroes, as advertised to guests.
pub const RANGES_MAX: u32 = 32;
/// Longest such range, in bytes, as advertised to guests.
pub const RANGE_BYTES_MAX: u64 = 1 << 30;
/// Time in which a message that has begun must arrive whole, and in which a reply must be taken.
pub const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);

/// Takes lines for people who look for a fault. It is called now and then, never for a request.
pub type Notices = Arc<dyn Fn(&str) + Send + Sync>;

/// A disk as guests see it.
#[derive(Clone)]
pub struct Disk {
    /// Its name: the first 20 bytes are its serial number for the guest.
    pub name: String,
    /// The device that requests go to.
    pub device: Arc<dyn BlockDevice>,
    /// Whether writes fail.
    pub is_read_only: bool,
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk").field("name", &self.name).finish()
    }
}
