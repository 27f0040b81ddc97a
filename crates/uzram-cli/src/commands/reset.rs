//! `uzram reset`.

use uzram_server::state::StateDir;

use super::set;
use crate::args::ResetArgs;
use crate::failure::Result;
use crate::output::print;

/// Runs the command.
pub fn run(args: &ResetArgs) -> Result {
    set(&StateDir::open_default()?, &args.name, "reset", "1")?;
    print(&format!("{} is empty.\n", args.name))
}
