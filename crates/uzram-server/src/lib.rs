//! The server of uzram: many named devices in one process, one table of what they show and take,
//! and a socket to ask them.
//!
//! ```text
//! size         sizes as people type them
//! state        the state directory: who serves which name
//! control      the protocol of the control socket, both ends
//! attributes   the attribute table; the command line and JSON only render it
//! device       a store under a name, and its export
//! server       all of it together
//! ```
//!
//! Lock order: a device's reset lock > the frontend's table of exports > the engine's.

#![forbid(unsafe_code)]

pub mod attributes;
pub mod control;
mod device;
mod maintenance;
mod server;
pub mod size;
pub mod state;

pub use device::{DEVICE_BYTES_MAX, Device, DeviceConfig};
pub use server::Server;
