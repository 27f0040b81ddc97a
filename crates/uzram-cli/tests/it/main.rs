//! The real binary, driven as a user would. Each test has a state directory of its own.

mod bad_input;
mod capture;
mod control_socket;
mod life;
mod nbd_client;
mod support;
