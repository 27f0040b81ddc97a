//! uzram's server.
#![forbid(unsafe_code)]
pub mod control;
pub mod size;
pub mod state;
