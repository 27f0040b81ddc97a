//! `uzram remove`.

use uzram_server::control::Request;

use super::{StateAt, done, find};
use crate::args::RemoveArgs;
use crate::failure::Result;
use crate::output::print;

/// Runs the command.
pub fn run(state: StateAt<'_>, args: &RemoveArgs) -> Result {
    let state = state.open_to_ask()?;
    let entry = find(&state, &args.name)?;
    let name = args.name.clone();
    done(
        &state,
        &entry,
        &Request::Remove {
            name,
            force: args.force,
        },
    )?;
    print(&format!("{} is gone.\n", args.name))
}
