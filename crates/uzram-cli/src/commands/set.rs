//! `uzram set`.

use uzram_server::attributes;
use uzram_server::control::Request;

use super::{StateAt, disk, done, plain, server, set};
use crate::args::SetArgs;
use crate::failure::{Failure, Result};
use crate::output::print;

/// Runs the command, and prints the attribute's new value: sizes are rounded, words have a
/// meaning.
pub fn run(state: StateAt<'_>, args: &SetArgs) -> Result {
    match args.words() {
        (Some(name), attribute, value) => set_of_disk(state, args, (name, attribute, value)),
        (None, attribute, value) => set_of_server(state, args, attribute, value),
    }
}

fn set_of_disk(
    state: StateAt<'_>,
    args: &SetArgs,
    (name, attribute, value): (&str, &str, &str),
) -> Result {
    if args.server.is_some() {
        let text = format!("--server: the disk {name} says which server; leave one of them out");
        return Err(Failure::Usage(text));
    }
    let state = state.open_to_ask()?;
    set(&state, name, attribute, value)?;
    let now = disk(&state, name)?.get(attribute).map(plain);
    // What can only be written has no value to show.
    print(&now.map_or_else(String::new, |value| {
        format!("{name}: {attribute} is {value}\n")
    }))
}

fn set_of_server(state: StateAt<'_>, args: &SetArgs, attribute: &str, value: &str) -> Result {
    if !attributes::find(attribute).is_some_and(attributes::Attribute::is_set_for_server) {
        let text = "give the disk, the attribute and the value: uzram set NAME ATTRIBUTE VALUE; only \
                    log_level needs no disk";
        return Err(Failure::Usage(text.into()));
    }
    let state = state.open_to_ask()?;
    let server = server(&state, args.server.as_deref())?;
    let request = Request::Set {
        name: None,
        attribute: attribute.to_owned(),
        value: value.to_owned(),
    };
    let reply = done(&state, &server, &request)?;
    let now = reply.devices.first().and_then(|now| now.get(attribute));
    print(&now.map_or_else(String::new, |now| {
        format!("{attribute} is {}\n", plain(now))
    }))
}
