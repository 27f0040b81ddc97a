//! uzram frontends.
