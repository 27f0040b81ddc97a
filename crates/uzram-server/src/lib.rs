//! uzram server.
