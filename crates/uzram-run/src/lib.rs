//! A program under a memory budget, the rest of its memory compressed: what `uzram run` does.
//!
//! [`run`] is the front: it starts the program and a server beside it. [`serve`] is that server. The program needs no change, may
//! be static, and may fork. How it works, and what was considered, is in `docs/design/run.md`.

#![deny(unsafe_code)]

mod agent;
mod evict;
mod faults;
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
mod tracee;
mod units;

pub use front::{Options, Outcome, run};
pub use protocol::Statistics;
pub use server::serve;
