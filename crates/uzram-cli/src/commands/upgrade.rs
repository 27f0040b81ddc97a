//! `uzram upgrade`.

use std::fs::File;

use uzram_server::state::{Entry, Owner, StateDir};
use uzram_server::survive;

use super::{StateAt, find};
use crate::args::UpgradeArgs;
use crate::failure::{Failure, Result};
use crate::output::{print, warn};

/// Runs the command: this program takes the place of the one that serves.
pub fn run(state: StateAt<'_>, args: &UpgradeArgs) -> Result {
    let state = state.open_to_ask()?;
    let program = File::open("/proc/self/exe");
    let program = program.map_err(|e| Failure::Failed(format!("upgrade: /proc/self/exe: {e}")))?;
    let Some(name) = &args.name else {
        return all(&state, &program);
    };
    let entry = find(&state, name)?;
    let owner = entry.owner.as_ref().filter(|owner| owner.holder.is_some());
    let owner = owner.ok_or_else(|| {
        let text = format!(
            "upgrade {name}: its server was not started with --survive: the disk ends with it"
        );
        Failure::Failed(text)
    })?;
    print(&one(owner, &names(&state.entries()?, owner), &program)?)
}

/// Every server that has a holder. One that fails is said, and the others have their turn.
fn all(state: &StateDir, program: &File) -> Result {
    let entries = state.entries()?;
    let mut owners: Vec<&Owner> = Vec::new();
    for owner in entries.iter().filter_map(|entry| entry.owner.as_ref()) {
        if owner.holder.is_some() && !owners.contains(&owner) {
            owners.push(owner);
        }
    }
    if owners.is_empty() {
        return print("No disk is served with --survive; nothing to do.\n");
    }
    let mut failures = 0;
    for owner in &owners {
        match one(owner, &names(&entries, owner), program) {
            Ok(line) => print(&line)?,
            Err(failure) => {
                warn(&failure.to_string());
                failures += 1;
            }
        }
    }
    match failures {
        0 => Ok(()),
        _ => Err(Failure::Failed(format!(
            "upgrade: {failures} of {} servers go on as they were",
            owners.len()
        ))),
    }
}

fn one(owner: &Owner, names: &str, program: &File) -> Result<String> {
    let socket = owner.holder_socket().unwrap_or_default();
    let pause_ns = survive::upgrade(&socket, program)
        .map_err(|error| Failure::Failed(format!("upgrade {names}: {error}")))?;
    let pause_ms = pause_ns as f64 / 1e6;
    Ok(format!(
        "{names}: served by uzram {} now; nobody served for {pause_ms:.0} ms.\n",
        env!("CARGO_PKG_VERSION")
    ))
}

/// The disks of a server.
fn names(entries: &[Entry], owner: &Owner) -> String {
    let of_it = entries
        .iter()
        .filter(|entry| entry.owner.as_ref() == Some(owner));
    let names: Vec<&str> = of_it.map(|entry| entry.name.as_str()).collect();
    names.join(", ")
}
