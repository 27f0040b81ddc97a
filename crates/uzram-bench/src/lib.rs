//! uzram bench.
