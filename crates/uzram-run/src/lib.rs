//! A program under a memory budget, the rest of its memory compressed: what `uzram run` does.
//!
//! [`start`] is the front: it starts the program and a server beside it. [`serve`] is that server. [`Controller`] asks it while the
//! program runs. The program needs no change, may
//! be static, and may fork. How it works, and what was considered, is in `docs/design/run.md`.

#![deny(unsafe_code)]

mod agent;
mod common;
mod controller;
mod evict;
mod faults;
mod fence;
mod follow;
mod front;
mod hand_over;
mod look;
mod objects;
mod process;
mod protocol;
mod registers;
mod server;
mod space;
mod spill;
mod state;
mod table;
mod taken;
mod throttle;
mod tracee;
mod units;

pub use controller::Controller;
pub use front::{Options, Outcome, Run, start};
pub use protocol::{ProcessFigures, Report, Statistics};
pub use server::serve;
