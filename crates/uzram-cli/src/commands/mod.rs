//! One file a command; what they share is asking the servers of the state directory.

pub mod list;
pub mod reset;
pub mod serve;
pub mod stat;

use serde_json::Value;
use uzram_server::control::{Attributes, Reply, Request, ask};
use uzram_server::state::{Entry, StateDir, check_name};

use crate::failure::{Failure, Result};

/// A disk that somebody serves.
pub struct Disk {
    /// Its name.
    pub name: String,
    /// Its server's process, once that said so.
    pub pid: Option<u32>,
    /// Its attributes, or why there are none.
    pub attributes: Result<Attributes>,
}

/// All disks in the order of their names.
pub fn disks(state: &StateDir) -> Result<Vec<Disk>> {
    let mut disks: Vec<Disk> = Vec::new();
    for entry in state.entries()? {
        let attributes = stat(&entry);
        disks.push(Disk {
            name: entry.name,
            pid: entry.owner.map(|owner| owner.pid),
            attributes,
        });
    }
    Ok(disks)
}

/// The attributes of the disk `name`.
pub fn disk(state: &StateDir, name: &str) -> Result<Attributes> {
    stat(&find(state, name)?)
}

/// Writes an attribute of the disk `name`.
pub fn set(state: &StateDir, name: &str, attribute: &str, value: &str) -> Result {
    let entry = find(state, name)?;
    let (name, attribute, value) = (name.into(), attribute.into(), value.into());
    done(
        &entry,
        &Request::Set {
            name,
            attribute,
            value,
        },
    )
    .map(|_| ())
}

fn find(state: &StateDir, name: &str) -> Result<Entry> {
    check_name(name)?;
    state.entry(name).ok_or_else(|| {
        let names: Vec<String> = match state.entries() {
            Ok(entries) => entries.into_iter().map(|entry| entry.name).collect(),
            Err(_) => Vec::new(),
        };
        let remedy = match names.as_slice() {
            [] => "none is served; uzram serve --size 1G makes one".into(),
            names => format!("served are: {}", names.join(", ")),
        };
        Failure::Failed(format!("no disk {name:?}; {remedy}"))
    })
}

fn stat(entry: &Entry) -> Result<Attributes> {
    let reply = done(
        entry,
        &Request::Stat {
            name: entry.name.clone(),
        },
    )?;
    let device = reply.devices.into_iter().next();
    device.ok_or_else(|| Failure::Failed(format!("{}: its server sent no attributes", entry.name)))
}

fn done(entry: &Entry, request: &Request) -> Result<Reply> {
    let name = &entry.name;
    let Some(owner) = &entry.owner else {
        return Err(Failure::Failed(format!(
            "{name}: its server is still starting; try again"
        )));
    };
    let reply = ask(&owner.control, request).map_err(|e| {
        Failure::Failed(format!(
            "{name}: process {} does not answer: {e}",
            owner.pid
        ))
    })?;
    match reply.ok {
        true => Ok(reply),
        false => Err(Failure::Failed(
            reply.error.unwrap_or_else(|| format!("{name}: refused")),
        )),
    }
}

/// A number of the attributes, 0 if it is missing.
pub fn number(attributes: &Attributes, name: &str) -> u64 {
    attributes.get(name).and_then(Value::as_u64).unwrap_or(0)
}

/// A ratio as people read it: `2.86`, or `-` while nothing is stored.
pub fn ratio(value: Option<&Value>) -> String {
    match value.and_then(Value::as_f64) {
        Some(ratio) => format!("{ratio:.2}"),
        None => "-".into(),
    }
}

/// A text as it is, anything else as JSON. Control characters would reach the terminal.
pub fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text
            .chars()
            .map(|c| if c.is_control() { '?' } else { c })
            .collect(),
        value => value.to_string(),
    }
}
