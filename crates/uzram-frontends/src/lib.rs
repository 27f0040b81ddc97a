//! Protocols over uzram's block devices. A frontend translates between a protocol and
//! [`uzram::BlockDevice`]; it stores nothing, and it decides no policy.
//!
//! | module  | feature | protocol                                                  |
//! |---------|---------|-----------------------------------------------------------|
//! | [`nbd`] | `nbd`   | Network Block Device, fixed newstyle, Unix sockets and TCP |
//! | [`fuse`] | `fuse` | Filesystem in Userspace: the device as one file           |
//!
//! Each feature only adds a module; `nbd` is on by default.
#![forbid(unsafe_code)]

#[cfg(feature = "fuse")]
pub mod fuse;
#[cfg(feature = "nbd")]
pub mod nbd;
