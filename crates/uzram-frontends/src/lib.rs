//! Protocols over uzram's block devices. A frontend translates between a protocol and
//! [`uzram::BlockDevice`]; it stores nothing, and it decides no policy.
//!
//! | module  | feature | protocol                                                  |
//! |---------|---------|-----------------------------------------------------------|
//! | [`nbd`] | `nbd`   | Network Block Device, fixed newstyle, Unix sockets and TCP |
//!
//! Each feature only adds a module; `nbd` is on by default.
#![forbid(unsafe_code)]

#[cfg(feature = "nbd")]
pub mod nbd;
