//! The real binary, driven as a user would. Each test has a state directory of its own.

// Clippy lets functions marked as tests unwrap, and not what they share.
#![allow(clippy::unwrap_used)]

mod advise;
mod attach;
mod bad_input;
mod bench;
mod capture;
mod cgroup;
mod clients;
mod compact;
mod config;
mod control_socket;
mod devices;
mod doctor;
mod habits;
mod life;
mod log;
mod memory;
mod metrics;
mod nbd_client;
mod run;
mod sandbox;
mod service;
mod set;
mod support;
mod survive;
mod survive_swap;
mod survive_writeback;
mod swap;
#[cfg(feature = "tls")]
mod tls;
mod top;
mod tree;
mod tree_backing;
mod tree_block;
mod tree_cold;
mod tree_kernel;
mod tree_view;
mod up;
mod up_file;
mod uses;
mod vhost_user;
mod widths;
