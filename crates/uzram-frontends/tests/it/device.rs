//! Devices for tests.
