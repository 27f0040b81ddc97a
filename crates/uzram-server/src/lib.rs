//! The server of uzram: many named devices in one process, one table of what they show and take,
//! and a socket to ask them.
//!
//! ```text
//! size         sizes as people type them
//! state        the state directory: who serves which name
//! control      the protocol of the control socket, both ends
//! attributes   the attribute table; the command line and JSON only render it
//! options      what a device can be told to be; flags, files and `add` are read there
//! backing      what a device keeps its data in: a store, plain memory, a file
//! device       all that under a name
//! attachment   a device as a file or a block device of this machine's kernel, or of its guests
//! swap         the swap area's header, and processes that swap can depend on
//! system       system calls for both
//! place        a socket with the devices that it offers
//! config       the configuration file
//! registry     the devices of a server, coming and going
//! sandbox      what a server gives up once it is set up
//! service      what a service manager is told, and hands over
//! server       all of it together
//! ```
//!
//! Lock order: the registry's > a device's own lock > the frontend's table of exports > the engine's.

//!
//! # Modules that may use unsafe
//!
//! - `system.rs`: ioctls of the loop driver, swapon and swapoff, settings of malloc

#![deny(unsafe_code)]

pub mod attachment;
pub mod attributes;
mod backing;
pub mod config;
pub mod control;
mod device;
mod maintenance;
pub mod nearest;
pub mod options;
mod place;
mod registry;
pub mod sandbox;
mod server;
pub mod service;
pub mod size;
pub mod state;
pub mod swap;
pub mod system;
mod tls;

pub use backing::DeviceKind;
pub use device::{DEVICE_BYTES_MAX, Device, DeviceConfig};
pub use server::{Inherited, Prepared, Server};
pub use tls::TlsOptions;
