//! Protocols over uzram's block devices. A frontend translates between a protocol and
//! [`uzram::BlockDevice`]; it stores nothing, and it decides no policy.
//!
//! | module       | feature      | protocol                                                   |
//! |--------------|--------------|------------------------------------------------------------|
//! | `nbd`        | `nbd`        | Network Block Device, fixed newstyle, Unix sockets and TCP |
//! | `fuse`       | `fuse`       | Filesystem in Userspace: the device as one file            |
//! | `ublk`       | `ublk`       | the kernel's driver for block devices in user space        |
//! | `vhost_user` | `vhost-user` | virtio-blk over vhost-user: a disk of virtual machines     |
//!
//! Each feature only adds a module; `nbd` is on by default.

#![deny(unsafe_code)]

#[cfg(feature = "fuse")]
pub mod fuse;
#[cfg(feature = "nbd")]
pub mod nbd;
#[cfg(any(feature = "fuse", feature = "nbd", feature = "vhost-user"))]
mod patience;
#[cfg(any(feature = "nbd", feature = "vhost-user"))]
mod peer;
#[cfg(any(feature = "fuse", feature = "vhost-user"))]
mod sync;
#[cfg(feature = "ublk")]
pub mod ublk;
#[cfg(any(feature = "nbd", feature = "vhost-user"))]
mod unix_socket;
#[cfg(feature = "vhost-user")]
pub mod vhost_user;
