//! One file per command. They share the way to ask the servers of the state directory.

pub mod add;
mod alike;
mod attached;
mod background;
pub mod btt;
mod columns;
pub mod compact;
pub mod doctor;
pub mod down;
mod file_system;
mod kernel_settings;
pub mod list;
pub mod metrics;
mod record;
pub mod remove;
pub mod reset;
pub mod run;
mod runs;
pub mod serve;
pub mod set;
pub mod stat;
pub mod survive;
pub mod top;
pub mod up;
pub mod up_file;
pub mod upgrade;
pub mod view;
mod watch;
pub mod zramctl;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, UnexpectedEof};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use uzram_server::attachment::Leftovers;
use uzram_server::control::{Attributes, Reply, Request, ask, ask_with};
use uzram_server::nearest::remedy;
use uzram_server::options::{OptionSpec, ValueForm, device_config};
use uzram_server::state::{Entry, Owner, StateDir, check_name, default_path, own_uid};
use uzram_server::{DeviceConfig, Latencies};

use crate::args::device::Given;
use crate::failure::{Failure, Result};
use crate::output::{hanging, warn, width};

/// Longest time from the end of a killed server's socket to the end of its locks: the kernel frees
/// the memory of its disks meanwhile.
const DYING_TIMEOUT: Duration = Duration::from_secs(10);
/// The same for all the servers of a listing together, which has others to show.
const LIST_DYING_TIMEOUT: Duration = Duration::from_secs(1);
const DYING_PAUSE: Duration = Duration::from_millis(10);

/// The state directory of the command line: the default one, or another.
#[derive(Clone, Copy)]
pub struct StateAt<'a>(pub Option<&'a Path>);

impl StateAt<'_> {
    /// For a server.
    pub fn open(self) -> Result<StateDir> {
        Ok(StateDir::open(self.path()?)?)
    }

    /// For asking servers.
    pub fn open_to_ask(self) -> Result<StateDir> {
        Ok(StateDir::open_to_ask(self.path()?)?)
    }

    fn path(self) -> Result<PathBuf> {
        let Some(path) = self.0 else {
            let xdg = std::env::var_os("XDG_RUNTIME_DIR");
            return Ok(default_path(xdg.as_deref(), own_uid()));
        };
        absolute("--control-dir", path)
    }
}

/// `path` in a form that another process understands too.
fn absolute(option: &str, path: &Path) -> Result<PathBuf> {
    std::path::absolute(path)
        .map_err(|e| Failure::Usage(format!("{option} {}: {e}", path.display())))
}

/// The same as text for a request.
fn absolute_text(option: &str, path: &Path) -> Result<String> {
    let path = absolute(option, path)?.into_os_string();
    path.into_string()
        .map_err(|path| Failure::Usage(format!("{option} {}: must be UTF-8", path.display())))
}

/// Codec parameters with a dictionary's path that also works from the server's directory.
fn with_absolute_files(parameters: &str) -> String {
    let absolute = |word: &str| match word.strip_prefix("dict=") {
        Some(path) => match std::path::absolute(path) {
            Ok(path) => format!("dict={}", path.display()),
            Err(_) => word.to_owned(),
        },
        None => word.to_owned(),
    };
    let words = parameters.split([',', ' ']).filter(|word| !word.is_empty());
    words.map(absolute).collect::<Vec<_>>().join(",")
}

impl Given {
    /// The options as a server takes them, wherever it runs.
    pub fn options(&self) -> Result<Vec<(&'static OptionSpec, String)>> {
        let sent = |spec: &OptionSpec, value: &OsStr| match spec.value {
            ValueForm::Path(_) => absolute_text(&format!("--{}", spec.name), value.as_ref()),
            ValueForm::Parameters(_) => Ok(with_absolute_files(&value.to_string_lossy())),
            ValueForm::Flag | ValueForm::Text(_) | ValueForm::Word(..) => {
                Ok(value.to_string_lossy().into_owned())
            }
        };
        self.iter()
            .map(|(spec, value)| Ok((spec, sent(spec, value)?)))
            .collect()
    }

    /// The device that the options describe, whatever its size.
    pub fn template(self) -> Result<DeviceConfig> {
        let mut given = self.without("size");
        given.extend([("size", "1G".to_owned())]);
        given.config()
    }

    /// The device that the options describe.
    pub fn config(&self) -> Result<DeviceConfig> {
        let options = self.options()?;
        let options = options
            .iter()
            .map(|(spec, value)| (spec.name, value.as_str()));
        Ok(device_config(options)?)
    }
}

/// `text` as one word of a shell.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._~/".contains(c);
    match text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// A disk that is served, or a program that runs under a budget.
pub struct Disk {
    /// Its name.
    pub name: String,
    /// Its server's process, if the server told it.
    pub pid: Option<u32>,
    /// Its attributes, or the reason why there are none.
    pub attributes: Result<Attributes>,
}

/// All disks in the order of their names. Each server is asked once.
pub fn disks(state: &StateDir) -> Result<Vec<Disk>> {
    let mut disks: Vec<Disk> = Vec::new();
    let mut told = HashMap::new();
    let deadline = Instant::now() + LIST_DYING_TIMEOUT;
    for entry in state.entries()? {
        let answer = entry.owner.as_ref().map(|owner| {
            let answer = told.entry(owner.control.clone());
            (owner, answer.or_insert_with(|| ask_for_all(owner)))
        });
        let attributes = match answer {
            Some((_, Ok(all))) => match all.remove(&entry.name) {
                Some(attributes) => Ok(attributes),
                // It has come since, or the server refused.
                None => stat_by(state, &entry, deadline),
            },
            Some((owner, Err(error))) => Err(unanswered(state, &entry, owner, error, deadline)),
            None => stat_by(state, &entry, deadline),
        };
        // A server that was ending when it was asked is gone by now.
        if attributes.is_err() && !state.is_held(&entry) {
            continue;
        }
        disks.push(Disk {
            name: entry.name,
            pid: entry.owner.map(|owner| owner.pid),
            attributes,
        });
    }
    Ok(disks)
}

/// The attributes of those that answer. The others are named.
fn answered(asked: Vec<Disk>) -> Vec<Attributes> {
    let answer = |disk: Disk| {
        let attributes = disk.attributes;
        attributes
            .map_err(|failure| warn(&failure.to_string()))
            .ok()
    };
    asked.into_iter().filter_map(answer).collect()
}

/// The attributes of all disks of a server by their names; none if it refuses.
fn ask_for_all(owner: &Owner) -> uzram_server::Result<HashMap<String, Attributes>> {
    let reply = ask(&owner.control, &Request::List {})?;
    let named = reply.devices.into_iter().filter_map(|attributes| {
        let name = attributes.get("name")?.as_str()?.to_owned();
        Some((name, attributes))
    });
    Ok(named.collect())
}

/// The text for an empty list: a server may be waiting for disks.
fn none(state: &StateDir) -> Result<&'static str> {
    Ok(match state.servers()?.is_empty() {
        true => "No disk is served. To make one: uzram serve --size 1G\n",
        false => "No disk is served. To make one: uzram add --size 1G\n",
    })
}

/// The attributes of the disk `name`.
pub fn disk(state: &StateDir, name: &str) -> Result<Attributes> {
    stat(state, &find(state, name)?)
}

/// Writes an attribute of the disk `name`.
pub fn set(state: &StateDir, name: &str, attribute: &str, value: &str) -> Result {
    set_with(state, name, attribute, value, None)
}

/// The same, with the file that the value names.
fn set_with(
    state: &StateDir,
    name: &str,
    attribute: &str,
    value: &str,
    file: Option<&File>,
) -> Result {
    let entry = find(state, name)?;
    let (name, attribute, value) = (name.to_owned(), attribute.into(), value.into());
    let request = Request::Set {
        name: Some(name),
        attribute,
        value,
    };
    let deadline = Instant::now() + DYING_TIMEOUT;
    done_by(state, &entry, &request, file, deadline).map(|_| ())
}

/// The server that `wanted` means: the one with a disk of that name or with that process id, or
/// the only one if nothing is wanted.
fn server(state: &StateDir, wanted: Option<&str>) -> Result<Entry> {
    let mut servers = state.servers()?;
    let Some(wanted) = wanted else {
        return match servers.len() {
            0 => Err(Failure::Failed(
                "no server runs; start one: uzram serve --size 1G".into(),
            )),
            1 => Ok(servers.remove(0)),
            count => {
                let text = format!("{count} servers run; choose one with --server NAME or PID: ");
                Err(Failure::Usage(text + &described(state, &servers)))
            }
        };
    };
    if let Some(entry) = state.entry(wanted) {
        return Ok(entry);
    }
    let pid = |entry: &Entry| entry.owner.as_ref().map(|owner| owner.pid.to_string());
    let found = servers
        .iter()
        .position(|entry| pid(entry).as_deref() == Some(wanted));
    found.map(|at| servers.remove(at)).ok_or_else(|| {
        let running = described(state, &servers);
        Failure::Failed(format!(
            "--server {wanted:?}: no disk or server of that name or process id; running: {running}"
        ))
    })
}

/// `process 12 (uzram0, b), process 34 (no disk)`
fn described(state: &StateDir, servers: &[Entry]) -> String {
    let disks = state.entries().unwrap_or_default();
    let describe = |server: &Entry| {
        let Some(owner) = &server.owner else {
            return "one that is starting".to_owned();
        };
        let own = disks
            .iter()
            .filter(|disk| disk.owner.as_ref() == Some(owner));
        let names: Vec<&str> = own.map(|disk| disk.name.as_str()).collect();
        match names.as_slice() {
            [] => format!("process {} (no disk)", owner.pid),
            names => format!("process {} ({})", owner.pid, names.join(", ")),
        }
    };
    match servers {
        [] => "none".into(),
        servers => servers.iter().map(describe).collect::<Vec<_>>().join(", "),
    }
}

fn find(state: &StateDir, name: &str) -> Result<Entry> {
    check_name(name)?;
    let entry = state.entry(name).or_else(|| state.run(name));
    entry.ok_or_else(|| {
        if dead(state).iter().any(|dead| dead.name == name) {
            return was_killed(name);
        }
        let names: Vec<String> = match state.entries() {
            Ok(entries) => entries.into_iter().map(|entry| entry.name).collect(),
            Err(_) => Vec::new(),
        };
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let remedy = match names.as_slice() {
            [] => "; none is served; uzram serve --size 1G makes one".into(),
            names => remedy(name, names).replace("known are", "served are"),
        };
        Failure::Failed(format!("no disk {name:?}{remedy}"))
    })
}

/// A disk whose server was killed.
pub struct Dead {
    /// Its name.
    pub name: String,
    /// Its server's process, if it is known.
    pub pid: Option<u32>,
}

impl Dead {
    /// Its line in a listing, with the command that cleans up; more lines in a narrow terminal.
    pub fn line(&self) -> String {
        let name = &self.name;
        let process = self.pid.map_or(String::new(), |pid| format!(" ({pid})"));
        // A command stays in one line.
        let words =
            format!("dead: its server{process} was killed; uzram\u{a0}down\u{a0}{name} cleans up");
        hanging(&format!("{name}  "), &words, width()).replace('\u{a0}', " ")
    }
}

/// The disks whose servers were killed and that were not taken down yet.
pub fn dead(state: &StateDir) -> Vec<Dead> {
    let of = |entry: Entry| Dead {
        name: entry.name,
        pid: entry.owner.map(|owner| owner.pid),
    };
    let mut dead: Vec<Dead> = state.dead().into_iter().map(of).collect();
    // What the kernel still has of a disk whose files somebody removed.
    for name in state.attached_names() {
        let is_known = dead.iter().any(|known| known.name == name);
        // In this order: a server that ends takes its attachments down first.
        if !is_known && state.entry(&name).is_none() && !Leftovers::of(state, &name).is_empty() {
            dead.push(Dead { name, pid: None });
        }
    }
    dead
}

fn stat(state: &StateDir, entry: &Entry) -> Result<Attributes> {
    stat_by(state, entry, Instant::now() + DYING_TIMEOUT)
}

fn stat_by(state: &StateDir, entry: &Entry, deadline: Instant) -> Result<Attributes> {
    let name = entry.name.clone();
    let reply = done_by(state, entry, &Request::Stat { name }, None, deadline)?;
    let device = reply.devices.into_iter().next();
    device.ok_or_else(|| Failure::Failed(format!("{}: its server sent no attributes", entry.name)))
}

/// Has the server of `entry` carry `request` out.
fn done(state: &StateDir, entry: &Entry, request: &Request) -> Result<Reply> {
    done_by(state, entry, request, None, Instant::now() + DYING_TIMEOUT)
}

/// The same. A server that ends meanwhile closes its socket before it gives its locks back: until
/// `deadline` they are waited for, as they tell that it was killed and is not just deaf.
fn done_by(
    state: &StateDir,
    entry: &Entry,
    request: &Request,
    file: Option<&File>,
    deadline: Instant,
) -> Result<Reply> {
    let name = &entry.name;
    let Some(owner) = &entry.owner else {
        return Err(Failure::Failed(format!(
            "{name}: its server is still starting; try again"
        )));
    };
    let reply = ask_with(&owner.control, request, file)
        .map_err(|error| unanswered(state, entry, owner, &error, deadline))?;
    match reply.ok {
        true => Ok(reply),
        false => Err(Failure::Failed(
            reply.error.unwrap_or_else(|| format!("{name}: refused")),
        )),
    }
}

/// The failure of a request to the server of `entry`, which has until `deadline` to end.
fn unanswered(
    state: &StateDir,
    entry: &Entry,
    owner: &Owner,
    error: &uzram_server::Error,
    deadline: Instant,
) -> Failure {
    let (name, pid) = (&entry.name, owner.pid);
    if is_closed(error) && ends(state, entry, deadline) {
        return match state.dead_entry(name) {
            Some(_) => was_killed(name),
            None => Failure::Failed(format!("{name}: process {pid} has ended")),
        };
    }
    Failure::Failed(format!("{name}: process {pid} does not answer: {error}"))
}

/// Whether nobody listens any more, as when a process has ended; one that hangs still does.
fn is_closed(error: &uzram_server::Error) -> bool {
    let kind = error.io_error().map(std::io::Error::kind);
    let closed = [
        ConnectionRefused,
        ConnectionReset,
        BrokenPipe,
        NotFound,
        UnexpectedEof,
    ];
    kind.is_some_and(|kind| closed.contains(&kind))
}

/// Waits until the server of `entry` has given its lock back; false if it has not by `deadline`.
fn ends(state: &StateDir, entry: &Entry, deadline: Instant) -> bool {
    while state.is_held(entry) {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(DYING_PAUSE);
    }
    true
}

fn was_killed(name: &str) -> Failure {
    Failure::Failed(format!(
        "{name}: its server was killed; uzram down {name} cleans up"
    ))
}

/// A number of the attributes, 0 if it is missing.
pub fn number(attributes: &Attributes, name: &str) -> u64 {
    attributes.get(name).and_then(Value::as_u64).unwrap_or(0)
}

/// A ratio as text: `2.86`, or `-` while nothing is stored.
pub fn ratio(value: Option<&Value>) -> String {
    match value.and_then(Value::as_f64) {
        Some(ratio) => format!("{ratio:.2}"),
        None => "-".into(),
    }
}

/// The time within which a share of requests ended: `12 us`, or `-` without requests.
pub fn quantile(times: &Latencies, share: f64) -> String {
    times.quantile_ns(share).map_or("-".into(), time)
}

/// Nanoseconds for people, with two digits or more.
fn time(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    match value < 9.95 {
        true => format!("{value:.1} {unit}"),
        false => format!("{value:.0} {unit}"),
    }
}

/// A text as it is, anything else as JSON. Control characters are removed, because they would
/// reach the terminal.
pub fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text
            .chars()
            .map(|c| if c.is_control() { '?' } else { c })
            .collect(),
        value => value.to_string(),
    }
}
