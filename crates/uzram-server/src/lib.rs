//! The server of uzram: many named devices in one process, one table of their attributes, and a
//! control socket.
//!
//! ```text
//! error        why something was refused, and which option it is about
//! size         sizes as people type them
//! log_level    the level of the log, which is the process's
//! server_config  the options of the server itself
//! state        the state directory: who serves which name
//! control      the protocol of the control socket, both ends
//! acceptor     connections of a socket, a thread each
//! metrics      the attribute table for Prometheus, and a socket to fetch it from
//! attributes   the attribute table; the command line and JSON only render it
//! options      the option table: what a device can be told to be, by flags, files and `add`
//! backing      what a device keeps its data in: a store, plain memory, a file
//! device       all that under a name
//! requests     what is asked of it, counted
//! latencies    and how long it took
//! attachment   a device as a file or a block device of this machine's kernel, or of its guests
//! swap         the swap area's header, and processes that swap can depend on
//! system       system calls for both
//! zswap        the kernel's cache in front of swap
//! place        a socket with the devices that it offers
//! config       the configuration file
//! zram_generator  that of zram-generator, for one machine
//! expression   zram-generator's arithmetic
//! cgroup       what a memory cgroup allows them
//! doctor       facts about this machine's kernel, and the command that suits it best
//! registry     the devices of a server, coming and going
//! sandbox      what a server gives up once it is set up
//! survive      disks that outlive their server: what a holder keeps
//! service      what a service manager is told, and hands over
//! server       all of it together
//! ```
//!
//! Lock order: the registry's > a device's own lock > the frontend's table of exports > the engine's.

#![deny(unsafe_code)]

mod acceptor;
pub mod attachment;
pub mod attributes;
mod backing;
mod cgroup;
mod compressions;
pub mod config;
mod config_file;
pub mod control;
mod device;
pub mod doctor;
mod error;
mod expression;
mod latencies;
pub mod log_level;
mod maintenance;
pub mod metrics;
pub mod nearest;
pub mod options;
mod place;
mod registry;
mod requests;
pub mod sandbox;
mod server;
mod server_config;
pub mod service;
pub mod size;
pub mod state;
pub mod survive;
pub mod swap;
pub mod system;
mod tls;
mod tree;
pub mod zram_generator;
pub mod zswap;

pub use device::{
    BackingDevice, Codec, DEVICE_BYTES_MAX, Device, DeviceConfig, DeviceKind, Live, WritebackBounds,
};
pub use error::{Error, Result};
pub use latencies::Latencies;
pub use requests::Requests;
pub use server::{Prepared, Server};
pub use server_config::{ServerConfig, metrics_endpoint};
pub use service::Inherited;
pub use system::give_back_large_memory;
pub use tls::TlsOptions;
pub use tree::AllowedFiles;
