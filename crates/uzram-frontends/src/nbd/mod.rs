//! A server of the Network Block Device protocol over [`uzram::BlockDevice`].
#![allow(rustdoc::private_intra_doc_links)]

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
