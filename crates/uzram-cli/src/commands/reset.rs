//! `uzram reset`.

use super::{StateAt, set};
use crate::args::ResetArgs;
use crate::failure::Result;
use crate::output::print;

/// Runs the command.
pub fn run(state: StateAt<'_>, args: &ResetArgs) -> Result {
    set(&state.open_to_ask()?, &args.name, "empty", "1")?;
    print(&format!("{} is empty.\n", args.name))
}
