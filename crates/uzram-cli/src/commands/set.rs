//! `uzram set`.

use super::{StateAt, disk, plain, set};
use crate::args::SetArgs;
use crate::failure::Result;
use crate::output::print;

/// Runs the command, and says what the attribute is now: sizes are rounded, words have a meaning.
pub fn run(state: StateAt<'_>, args: &SetArgs) -> Result {
    let state = state.open_to_ask()?;
    let (name, attribute) = (&args.name, &args.attribute);
    set(&state, name, attribute, &args.value)?;
    let now = disk(&state, name)?.get(attribute).map(plain);
    // What can only be written has no value to show.
    print(&now.map_or_else(String::new, |value| {
        format!("{name}: {attribute} is {value}\n")
    }))
}
