//! `uzram compact`.

use std::io::{IsTerminal, Write};

use uzram_server::control::Attributes;
use uzram_server::size::human;

use super::{StateAt, disk, number, set};
use crate::args::CompactArgs;
use crate::failure::Result;
use crate::output::print;

/// Runs the command: the server compacts for a second per request, and is asked until it frees
/// nothing more.
pub fn run(state: StateAt<'_>, args: &CompactArgs) -> Result {
    let state = state.open_to_ask()?;
    let before = disk(&state, &args.name)?;
    let mut now = before.clone();
    let mut asked = 0;
    let last = loop {
        set(&state, &args.name, "compact", "1")?;
        let next = disk(&state, &args.name)?;
        let moved = number(&next, "pages_compacted") > number(&now, "pages_compacted");
        now = next;
        asked += 1;
        if !moved {
            break now;
        }
        show(asked, given_back_bytes(&before, &now));
    };
    hide(asked);
    let bytes = given_back_bytes(&before, &last);
    print(&format!(
        "{}: {} ({bytes} bytes) given back, {} left\n",
        args.name,
        human(bytes),
        human(number(&last, "mem_resident")),
    ))
}

/// Memory that the system has back. Memory taken by writes meanwhile counts against it.
fn given_back_bytes(before: &Attributes, now: &Attributes) -> u64 {
    number(before, "mem_resident").saturating_sub(number(now, "mem_resident"))
}

/// Shows the progress on a terminal once the work takes a while.
fn show(asked: usize, bytes: u64) {
    if asked > 1 && std::io::stderr().is_terminal() {
        let _ = write!(std::io::stderr(), "\r{} so far\x1b[K", human(bytes));
    }
}

fn hide(asked: usize) {
    if asked > 1 && std::io::stderr().is_terminal() {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
}
