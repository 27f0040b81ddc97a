//! Tests of the frontends through their public interfaces.
mod device;
