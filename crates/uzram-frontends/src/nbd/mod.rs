//! A server of the Network Block Device protocol over [`uzram::BlockDevice`].
//!
//! Fixed newstyle handshake with every option of the protocol: `EXPORT_NAME`, `ABORT`, `LIST`, `INFO`,
//! `GO`, `STARTTLS` (feature `tls`), `STRUCTURED_REPLY`, `LIST_META_CONTEXT`, `SET_META_CONTEXT` and, of
//! the extensions, `EXTENDED_HEADERS`. Every command: `READ` (`DF`), `WRITE`, `FLUSH`, `TRIM`,
//! `WRITE_ZEROES` (`NO_HOLE`, `FAST_ZERO`), `CACHE`, `BLOCK_STATUS` (`REQ_ONE`, filtered by payload) and
//! `DISC`, with `FUA` on all that change something. Several connections may share an export.
//! Requests of one connection overlap and are answered in the order in which they finish.
//!
//! A structured read sends zeroes as holes wherever the device knows of them without looking at the
//! data and they are a page or all there is. Errors of reads name the first byte that could not be
//! read, behind what could. The size of an export is constant: the protocol has no notice of a new
//! one (the `RESIZE` extension is implemented nowhere), so a device is resized by removing its
//! export, which is refused while clients are connected, and offering it anew.
//!
//! # Metadata contexts
//!
//! `base:allocation` tells holes (never written, or trimmed) from zeroes that are allocated
//! (`WRITE_ZEROES` with `NO_HOLE`, or zeroes written) from data. `uzram:state` tells how each unit of the
//! store is kept, and is for looking at what compresses:
//!
//! | bits  | meaning                                                              |
//! |-------|----------------------------------------------------------------------|
//! | 0-3   | 0 hole, 1 filled with one 32-bit word, 2 kept as it is, 3 compressed |
//! | 4-20  | of a compressed unit, its compressed size in bytes; else 0           |
//! | 21-31 | 0                                                                    |
//!
//! `nbdinfo --map=uzram:state URI` prints it. An extent that is no hole can still be refused a write
//! with `ENOSPC`: what replaces a unit may compress to more than the unit did.
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
//! Who may connect is the caller's decision: a Unix socket is made with mode 0600, and
//! [`Endpoint::is_loopback`] tells whether a TCP address is reachable from elsewhere. Without TLS the
//! protocol has neither encryption nor authentication. With the feature `tls`, `Server::with_tls` offers or
//! requires TLS 1.2 or 1.3, with a certificate of the server and, if asked for, of the clients.
//!
//! # Bounds
//!
//! | what                                          | limit                                       | beyond it                           |
//! |-----------------------------------------------|---------------------------------------------|-------------------------------------|
//! | clients of a server                           | [`Limits::connections_max`], 128            | `ERR_POLICY` with the reason; beyond 16 such, hang-up |
//! | time for the handshake                        | [`Limits::handshake_timeout`], 10 s         | hang-up                             |
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
//! The payload in memory is that of requests above 128 KiB. Besides it a connection holds at most
//! 4 MiB of buffers a thread while it works (128 KiB once half of what all connections may have is
//! taken), and nothing but its first thread's stack after a second of silence.
//!
//! # How a connection works
//!
//! What decides the speed is not the protocol but sleeping and waking: under virtualization waking
//! a thread on an idle CPU takes 70-80 us, on a busy one 4; compressing a page takes 5, a system
//! call 1 to 2. Two designs were weighed.
//!
//! *A queue with workers.* One thread receives and queues, a few take from the queue, each sends its
//! reply. Each request crosses between threads, so payloads are copied or buffers handed about; a
//! wake-up is paid for each burst even if the receiver could have done the work itself sooner; and
//! helpers, once awake, contend for the queue, the reply lock and the compression streams.
//!
//! *The receiver moves* (chosen). The right to receive, with the buffer of bytes not yet decoded, is
//! a value that one worker owns at a time. There is no queue: the socket is the queue. Its owner
//! receives about as much as takes 50 us, lays the receiver down with what is behind that, carries
//! its turn out in place, gathers the replies in one buffer and sends that in one call. Then it
//! takes the receiver up again, unless another worker has come by meanwhile. Laying it down costs
//! next to nothing; waking somebody to take it is what must be worth it:
//!
//! - a large request (64 KiB of payload, 16 MiB of range): whatever follows overtakes it;
//! - 100 us of small requests that have come, at what the last ones cost, while fewer threads of the
//!   server work than there are CPUs.
//!
//! So cheap requests stay on one thread without a wake-up, dear ones spread to the other CPUs, whose
//! workers stay awake as long as there is something to receive, and a 1 MiB write holds up nothing.
//! A receiver that finds nothing looks again for up to 30 us, yielding its CPU, before it sleeps; on
//! a busy machine, where that is in vain, it learns to sleep at once. Buffers stay with their
//! workers or are exchanged: in the steady state nothing is allocated.
//!
//! *Halving a batch* (tried before). The owner received as much as there was and, having worked for
//! 50 us, gave half of the rest to a helper, taking it back if none came in time: a sixth of the
//! server's time went into waking helpers that were put to sleep again.
//!
//! What a small request may cost its connection: one that blocks inside the device holds up the
//! turn behind it, since it was not worth a wake-up beforehand. Devices are expected to take
//! microseconds for a small request.
//!
//! The protocol itself (`wire`, `handshake`, `transmission`, and [`Session`] over both) does no I/O.

mod budget;
mod connection;
mod context;
mod endpoint;
mod export;
mod handshake;
mod server;
mod session;
mod socket;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;
mod transmission;
mod wire;

use std::time::Duration;

pub use crate::peer::Peer;
pub use crate::unix_socket::SOCKET_PATH_BYTES_MAX;
pub use endpoint::Endpoint;
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
    /// something of what is sent to it; longer by a second for every 64 KiB that come or go. Whoever
    /// is slower is hung up on.
    pub request_timeout: Duration,
    /// Silence between requests after which a client is hung up on; `None`: never, as disks have it.
    pub idle_timeout: Option<Duration>,
    /// Threads that one connection may use. One more than are blocked in large requests keeps
    /// small ones going.
    pub workers_per_connection_max: usize,
}

impl Default for Limits {
    /// 128 connections, 10 s, 64 MiB, 256 MiB, 60 s, no limit on silence, and two threads more than there are CPUs (at most 16).
    fn default() -> Limits {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Limits {
            connections_max: 128,
            handshake_timeout: Duration::from_secs(10),
            in_flight_bytes_max: 64 << 20,
            buffered_bytes_max: 256 << 20,
            request_timeout: Duration::from_secs(60),
            idle_timeout: None,
            workers_per_connection_max: cpus.saturating_add(2).min(16),
        }
    }
}
