//! A server of the Network Block Device protocol over [`uzram::BlockDevice`].
//!
//! Fixed newstyle handshake with every option of the protocol: `EXPORT_NAME`, `ABORT`, `LIST`, `INFO`,
//! `GO`, `STARTTLS` (feature `tls`), `STRUCTURED_REPLY`, `LIST_META_CONTEXT`, `SET_META_CONTEXT` and, of
//! the extensions, `EXTENDED_HEADERS`. Every command: `READ` (`DF`), `WRITE`, `FLUSH`, `TRIM`,
//! `WRITE_ZEROES` (`NO_HOLE`, `FAST_ZERO`), `CACHE`, `BLOCK_STATUS` (`REQ_ONE`, filtered by payload) and
//! `DISC`, with `FUA` on all that change something. Several connections may share an export.
//! Requests of one connection overlap and are answered in the order in which they finish.
//!
//! A structured read sends zeroes as holes where the device knows of them without looking at the
//! data and they fill a page or the whole range. The error of a read names the first byte that
//! could not be read; the bytes before it are sent. The size of an export is constant, because the
//! protocol has no notice of a new one (the `RESIZE` extension is implemented nowhere). To resize
//! a device, remove its export, which is refused while clients are connected, and offer it anew.
//!
//! # Metadata contexts
//!
//! `base:allocation` tells holes (never written, or trimmed) from zeroes that are allocated
//! (`WRITE_ZEROES` with `NO_HOLE`, or zeroes written) from data. `uzram:state` tells how each unit
//! of the store is kept. It shows which parts of a disk compress:
//!
//! | bits  | meaning                                                              |
//! |-------|----------------------------------------------------------------------|
//! | 0-3   | 0 hole, 1 filled with one 32-bit word, 2 kept as it is, 3 compressed |
//! | 4-20  | of a compressed unit, its compressed size in bytes; else 0           |
//! | 21-31 | 0                                                                    |
//!
//! `nbdinfo --map=uzram:state URI` prints it. A write to an extent that is no hole can still be
//! refused with `ENOSPC`: the new content may compress less well.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//! use uzram::{Bio, BlockDevice, Geometry};
//! use uzram_frontends::nbd::{Endpoint, Export, Exports, Limits, Server};
//!
//! /// Reads as zeroes, forgets what is written.
//! struct Null;
//!
//! impl BlockDevice for Null {
//!     fn geometry(&self) -> Geometry {
//!         Geometry { size_bytes: 1 << 30, preferred_block_bytes: 4096 }
//!     }
//!     fn submit(&self, bio: Bio<'_>) -> uzram::Result<()> {
//!         if let Bio::Read { buffer, .. } = bio {
//!             buffer.fill(0);
//!         }
//!         Ok(())
//!     }
//! }
//!
//! let exports = Arc::new(Exports::new());
//! exports.add(Export {
//!     name: "null".into(),
//!     description: "nothing".into(),
//!     device: Arc::new(Null),
//!     read_only: false,
//! })?;
//! let anywhere = Endpoint::Tcp(([127, 0, 0, 1], 0).into());
//! let server = Server::bind(&anywhere, Arc::clone(&exports), Limits::default())?.spawn()?;
//! println!("nbdinfo {}", server.endpoint().uri("null"));
//! server.shutdown(Duration::from_secs(5));
//! exports.remove("null")?;
//! # Ok::<(), uzram::Error>(())
//! ```
//!
//! The caller decides which clients may connect: a Unix socket is made with mode 0600, and
//! [`Endpoint::is_loopback`] tells whether other machines reach an address. Without TLS the
//! protocol has neither encryption nor authentication. With the feature `tls`, `Server::with_tls`
//! offers or requires TLS 1.2 or 1.3, with a certificate of the server and, if asked for, of the
//! clients.
//!
//! # Bounds
//!
//! | what                                          | limit                                       | beyond it                           |
//! |-----------------------------------------------|---------------------------------------------|-------------------------------------|
//! | clients of a server                           | [`Limits::connections_max`], 128            | `ERR_POLICY` with the reason; beyond 16 such, hang-up |
//! | time for the handshake                        | [`Limits::handshake_timeout`], 5 s          | hang-up                             |
//! | clients in the handshake, of one user or address | half of all                              | its oldest one in the handshake goes |
//! | clients of which some are in the handshake    | [`Limits::connections_max`]                 | the oldest one in the handshake goes |
//! | options in a handshake                        | [`OPTIONS_MAX`]                             | hang-up                             |
//! | option data                                   | [`OPTION_DATA_BYTES_MAX`]                   | `ERR_TOO_BIG`; beyond [`OPTION_SKIP_BYTES_MAX`] hang-up |
//! | payload of a read or write                    | [`PAYLOAD_BYTES_MAX`], 32 MiB               | `EOVERFLOW`, `EINVAL`               |
//! | payload of a refused write                    | [`REFUSED_PAYLOAD_BYTES_MAX`], 64 MiB; with extended headers 32 MiB | hang-up      |
//! | payload in memory, a connection               | [`Limits::in_flight_bytes_max`], 64 MiB     | it is not received from             |
//! | payload in memory, all connections            | [`Limits::buffered_bytes_max`], 256 MiB     | they are not received from          |
//! | time for a request to arrive, a reply to go   | [`Limits::request_timeout`], 60 s and 1 s for each 64 KiB | hang-up               |
//! | silence between requests                      | [`Limits::idle_timeout`], none              | hang-up                             |
//! | silence of a TCP peer                         | 60 s, then 6 questions in 60 s              | hang-up                             |
//! | extents in a reply                            | 32768, and 20 ms of looking                 | the reply ends there                |
//! | threads of a connection                       | [`Limits::workers_per_connection_max`]      | it is not received from             |
//! | path of a Unix socket                         | [`SOCKET_PATH_BYTES_MAX`]                   | [`Server::bind`] fails              |
//! | export name, description                      | [`NAME_BYTES_MAX`], [`DESCRIPTION_BYTES_MAX`] | [`Exports::add`] fails            |
//!
//! "Payload in memory" counts requests above 128 KiB. Of the memory for all connections, an eighth
//! is for buffers that are kept for the next request of that kind. Besides it a connection holds
//! at most three buffers of 256 KiB per thread while it works, and nothing but its first thread's
//! stack after a second of silence. A read whose client has gone is not carried out.
//!
//! Requests end at 32 MiB, and the handshake says so: a client that asks for the sizes asks for no
//! more. Longer requests are not taken in pieces, for two reasons. A write in pieces that fails
//! half-way, for want of memory, would be done in part. And two such requests would hold a
//! connection's whole share of memory.
//!
//! # How a connection works
//!
//! Sleeping and waking decide the speed, not the protocol. Under virtualization, waking a thread
//! on an idle CPU takes 70-80 us and on a busy one 4 us; compressing a page takes 5 us, a system
//! call 1 to 2 us. Two designs were weighed.
//!
//! *A queue with workers.* One thread receives and queues, several take from the queue, and each
//! sends its reply. Each request crosses between threads, so payloads are copied or buffers handed
//! over. Each burst pays a wake-up, even if the receiver could have done the work sooner itself.
//! Helpers that are awake contend for the queue, the reply lock and the compression streams.
//!
//! *The receiver moves* (chosen). The right to receive, with the buffer of bytes not yet decoded,
//! is a value that one worker owns at a time. There is no queue: the socket is the queue. The
//! owner receives about as much as takes 50 us, lays the receiver down with the bytes behind that,
//! carries its turn out in place, gathers the replies in one buffer and sends them in one call.
//! Then it takes the receiver up again, unless another worker has. Laying it down costs next to
//! nothing. Waking a worker to take it must be worth it:
//!
//! - a large request (64 KiB of payload, 16 MiB of range): whatever follows overtakes it;
//! - 100 us of small requests that have come, at what the last ones cost, while fewer threads of the
//!   server work than there are CPUs.
//!
//! So cheap requests stay on one thread without a wake-up. Expensive ones spread to the other
//! CPUs, whose workers stay awake as long as there is something to receive. A 1 MiB write holds up
//! nothing. A receiver that finds nothing looks again for up to 30 us, yielding its CPU, before it
//! sleeps. On a busy machine, where that is in vain, it learns to sleep at once. Buffers stay with
//! their workers or are exchanged: in the steady state nothing is allocated.
//!
//! *Halving a batch* (tried before). The owner received as much as there was. After 50 us of work
//! it gave half of the rest to a helper, and took it back if no helper came in time. A sixth of
//! the server's time went into waking helpers that were put to sleep again.
//!
//! A small request that blocks inside the device holds up the turn behind it, because it did not
//! look worth a wake-up. Devices are expected to take microseconds for a small request.
//!
//! The protocol itself (`wire`, `handshake`, `transmission`, and [`Session`] over both) does no I/O.

mod budget;
mod connection;
mod context;
mod endpoint;
mod export;
mod handshake;
mod received;
mod server;
mod session;
mod socket;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;
mod transmission;
mod vsock;
mod wire;

use std::time::Duration;

pub use crate::peer::Peer;
pub use crate::unix_socket::SOCKET_PATH_BYTES_MAX;
pub use endpoint::{Endpoint, Listener};
pub use export::{DESCRIPTION_BYTES_MAX, Export, Exports, NAME_BYTES_MAX};
pub use handshake::{OPTION_DATA_BYTES_MAX, OPTION_SKIP_BYTES_MAX, OPTIONS_MAX};
pub use server::{Server, ServerHandle};
pub use session::Session;
#[cfg(feature = "tls")]
pub use tls::{Tls, TlsFiles};
pub use transmission::REFUSED_PAYLOAD_BYTES_MAX;

/// Longest payload of a read or a write, in bytes, as advertised to clients.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;
/// Alignment and smallest size of a request, in bytes, as advertised to clients.
pub const BLOCK_BYTES_MIN: u32 = 1;

/// Bounds of a server, all of them per server or per connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Clients at a time, those in the handshake included. Further ones are told so.
    pub connections_max: usize,
    /// Time from connecting to the end of the handshake.
    pub handshake_timeout: Duration,
    /// Payload bytes of requests above 128 KiB that one connection may have in memory at a time,
    /// received or read and not yet sent. Reaching it stops receiving on this connection.
    pub in_flight_bytes_max: usize,
    /// The same for all connections together.
    pub buffered_bytes_max: usize,
    /// Time in which a request that has begun must arrive whole, and in which a client must take
    /// part of what is sent to it. It grows by a second for every 64 KiB that come or go. Slower
    /// clients are hung up on.
    pub request_timeout: Duration,
    /// Silence between requests after which a client is hung up on. `None`, as disks have it:
    /// never.
    pub idle_timeout: Option<Duration>,
    /// Threads that one connection may use. One more than are blocked in large requests keeps
    /// small ones going.
    pub workers_per_connection_max: usize,
}

impl Default for Limits {
    /// 128 connections, 5 s, 64 MiB, 256 MiB, 60 s, no limit on silence, and two threads more than there are CPUs (at most 16).
    fn default() -> Limits {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Limits {
            connections_max: 128,
            handshake_timeout: Duration::from_secs(5),
            in_flight_bytes_max: 64 << 20,
            buffered_bytes_max: 256 << 20,
            request_timeout: Duration::from_secs(60),
            idle_timeout: None,
            workers_per_connection_max: cpus.saturating_add(2).min(16),
        }
    }
}
