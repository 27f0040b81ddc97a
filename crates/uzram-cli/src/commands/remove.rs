//! `uzram remove`.

use uzram_server::control::Request;

use super::{StateAt, done, find};
use crate::args::RemoveArgs;
use crate::failure::Result;
use crate::output::print;

/// Runs the command.
pub fn run(state: StateAt<'_>, args: &RemoveArgs) -> Result {
    let entry = find(&state.open_to_ask()?, &args.name)?;
    let name = args.name.clone();
    done(
        &entry,
        &Request::Remove {
            name,
            force: args.force,
        },
    )?;
    print(&format!("{} is gone.\n", args.name))
}
