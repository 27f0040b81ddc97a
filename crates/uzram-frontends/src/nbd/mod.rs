//! A server of the Network Block Device protocol over [`uzram::BlockDevice`].
//!
//! Fixed newstyle handshake (`EXPORT_NAME`, `GO`, `INFO`, `LIST`, `ABORT`; every other option is
//! answered `ERR_UNSUP`), simple replies, and the commands `READ`, `WRITE`, `FLUSH`, `TRIM`,
//! `WRITE_ZEROES` (`NO_HOLE`, `FAST_ZERO`), `CACHE` and `DISC`, with `FUA` on all that change
//! something. Several connections may share an export. Requests of one connection overlap and are
//! answered in the order in which they finish.
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
//! [`Endpoint::is_loopback`] tells whether a TCP address is reachable from elsewhere. The protocol
//! as served here has neither encryption nor authentication.
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
//! | payload of a refused write                    | [`REFUSED_PAYLOAD_BYTES_MAX`], 64 MiB       | hang-up                             |
//! | payload in memory, a connection               | [`Limits::in_flight_bytes_max`], 64 MiB     | it is not received from             |
//! | threads of a connection                       | [`Limits::workers_per_connection_max`]      | it is not received from             |
//! | path of a Unix socket                         | [`SOCKET_PATH_BYTES_MAX`]                   | [`Server::bind`] fails              |
//! | export name, description                      | [`NAME_BYTES_MAX`], [`DESCRIPTION_BYTES_MAX`] | [`Exports::add`] fails            |
//!
//! Besides its payload in flight a connection holds at most 4 MiB of buffers a thread while it
//! works, and nothing but its first thread's stack after a second of silence.
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
//! a value that one worker owns at a time. Its owner receives as much as there is in one call, carries
//! out the requests in place, gathers the replies in one buffer and sends that in one call. There is
//! no queue: the socket is the queue. Only when what is at hand is worth a wake-up does the owner
//! hand the receiver over and go on with its part alone:
//!
//! - a large request (64 KiB of payload, 16 MiB of range): the bytes behind it go with the receiver,
//!   so whatever follows overtakes it;
//! - a batch that has taken 50 us and will take as long again: half of what is left is given to a
//!   helper, and taken back if none came in time.
//!
//! Whoever is done and finds the receiver free takes it, awake as it is. So lz4 at queue depth 16
//! runs on one thread without a wake-up, zstd spreads to the other CPU, and a 1 MiB write holds up
//! nothing. Replies are sent when 25 us have passed or 64 KiB are gathered, so that the client never
//! waits for a whole batch. A receiver that finds nothing looks again for up to 30 us, yielding its
//! CPU, before it sleeps; on a busy machine, where that is in vain, it learns to sleep at once.
//! Buffers stay with their workers or are exchanged: in the steady state nothing is allocated.
//!
//! What a small request may cost its connection: one that blocks inside the device holds up the
//! batch behind it, since it was not worth a wake-up beforehand. Devices are expected to take
//! microseconds for a small request.
//!
//! The protocol itself (`wire`, `handshake`, `transmission`, and [`Session`] over both) does no I/O.

mod connection;
mod endpoint;
mod export;
mod handshake;
mod server;
mod session;
mod socket;
mod transmission;
mod wire;

use std::time::Duration;

pub use endpoint::{Endpoint, SOCKET_PATH_BYTES_MAX};
pub use export::{DESCRIPTION_BYTES_MAX, Export, Exports, NAME_BYTES_MAX};
pub use handshake::{OPTION_DATA_BYTES_MAX, OPTION_SKIP_BYTES_MAX, OPTIONS_MAX};
pub use server::{Server, ServerHandle};
pub use session::Session;
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
    /// Threads that one connection may use. One more than are blocked in large requests keeps
    /// small ones going.
    pub workers_per_connection_max: usize,
}

impl Default for Limits {
    /// 128 connections, 10 s, 64 MiB, and two threads more than there are CPUs (at most 16).
    fn default() -> Limits {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Limits {
            connections_max: 128,
            handshake_timeout: Duration::from_secs(10),
            in_flight_bytes_max: 64 << 20,
            workers_per_connection_max: cpus.saturating_add(2).min(16),
        }
    }
}
