//! The attribute table for Prometheus: in its text format, and a socket to fetch it from.

mod server;
mod text;

pub(crate) use server::{BoundMetrics, Metrics};
pub use text::text;
