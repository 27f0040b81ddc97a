//! `uzram set`.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::OFlags;
use uzram_server::attributes;
use uzram_server::control::Request;

use super::{
    StateAt, absolute_text, disk, done, plain, server, set, set_with, with_absolute_files,
};
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
    match named_file(attribute, value)? {
        Some((value, file)) => set_with(&state, name, attribute, &value, Some(&file))?,
        None => set(&state, name, attribute, value)?,
    }
    let now = disk(&state, name)?.get(attribute).map(plain);
    // What can only be written has no value to show.
    print(&now.map_or_else(String::new, |value| {
        format!("{name}: {attribute} is {value}\n")
    }))
}

/// The file that a value names, opened, and the value with its whole path: the server may be in a sandbox,
/// and in another directory.
fn named_file(attribute: &str, value: &str) -> Result<Option<(String, File)>> {
    let (value, path, is_written) = match attribute {
        "backing_dev" => {
            let path = absolute_text(attribute, value.as_ref())?;
            (path.clone(), path, true)
        }
        "algorithm_params" => {
            let value = with_absolute_files(value);
            let named = value.split(',').find_map(|word| word.strip_prefix("dict="));
            match named.map(str::to_owned) {
                Some(path) => (value, path, false),
                None => return Ok(None),
            }
        }
        _ => return Ok(None),
    };
    // NONBLOCK: what is no file must not hold the command up.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let opened = OpenOptions::new()
        .read(true)
        .write(is_written)
        .custom_flags(flags)
        .open(&path);
    match opened {
        Ok(file) => Ok(Some((value, file))),
        Err(error) => Err(Failure::Failed(format!("{attribute} {path:?}: {error}"))),
    }
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
