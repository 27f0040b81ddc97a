//! The devices through their public interface.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

mod devices;
#[path = "../../../uzram/tests/it/history.rs"]
#[allow(dead_code, reason = "the engine's tests use the rest")]
mod history;
#[path = "../../../uzram/tests/it/pages.rs"]
#[allow(dead_code, reason = "the engine's tests use the rest")]
mod pages;
#[path = "../../../uzram/tests/it/race.rs"]
mod race;
mod races;
