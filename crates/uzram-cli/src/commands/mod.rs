//! One file a command; what they share is asking the servers of the state directory.

pub mod add;
mod attached;
pub mod btt;
pub mod compact;
pub mod down;
pub mod list;
pub mod remove;
pub mod reset;
pub mod serve;
pub mod set;
pub mod stat;
pub mod up;
mod watch;

use std::path::{Path, PathBuf};

use serde_json::Value;
use uzram_server::DeviceConfig;
use uzram_server::control::{Attributes, Reply, Request, ask};
use uzram_server::nearest::remedy;
use uzram_server::options::{OptionError, device_config};
use uzram_server::state::{Entry, StateDir, check_name, default_path, own_uid};

use crate::args::{DeviceArgs, PagesArgs};
use crate::failure::{Failure, Result};

/// The state directory that the command line asks for: the default one, or another.
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

/// `path` as another process sees it, too.
fn absolute(option: &str, path: &Path) -> Result<PathBuf> {
    std::path::absolute(path)
        .map_err(|e| Failure::Usage(format!("{option} {}: {e}", path.display())))
}

/// The same, to be sent.
fn absolute_text(option: &str, path: &Path) -> Result<String> {
    let path = absolute(option, path)?.into_os_string();
    path.into_string()
        .map_err(|path| Failure::Usage(format!("{option} {}: must be UTF-8", path.display())))
}

/// Codec parameters whose dictionary is found from the server's directory, too.
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

impl DeviceArgs {
    /// The options as the server's table of them names them.
    pub fn options(&self) -> Result<Vec<(&'static str, String)>> {
        let path = |option: &str, path: &Option<PathBuf>| match path {
            Some(path) => absolute_text(option, path).map(Some),
            None => Ok(None),
        };
        let given = [
            ("size", self.size.clone()),
            ("device", self.device.clone()),
            ("path", path("--path", &self.path)?),
            ("name", self.name.clone()),
            ("mem-limit", self.mem_limit.clone()),
            ("unit", self.unit.clone()),
            ("socket", path("--socket", &self.socket)?),
            ("listen", self.listen.clone()),
            ("insecure", yes(self.insecure)),
            ("tls-cert", path("--tls-cert", &self.tls_cert)?),
            ("tls-key", path("--tls-key", &self.tls_key)?),
            (
                "tls-client-ca",
                path("--tls-client-ca", &self.tls_client_ca)?,
            ),
            ("tls-required", yes(self.tls_required)),
            ("for-swap", yes(self.for_swap)),
            ("attach", self.attach.map(|attach| attach.name().to_owned())),
        ];
        let given = given.into_iter().chain(self.pages.options());
        Ok(given
            .filter_map(|(name, value)| Some((name, value?)))
            .collect())
    }

    /// The device that they describe.
    pub fn config(&self) -> Result<DeviceConfig> {
        let options = self.options()?;
        let options = options.iter().map(|(name, value)| (*name, value.as_str()));
        device_config(options).map_err(|OptionError { option, error }| {
            Failure::from(error).about(format!("--{option}"))
        })
    }
}

impl PagesArgs {
    /// The options as the server's table of them names them, with the values of those given.
    pub fn options(&self) -> [(&'static str, Option<String>); 4] {
        let parameters = self.algorithm_params.as_deref();
        [
            ("algorithm", self.algorithm.clone()),
            ("algorithm-params", parameters.map(with_absolute_files)),
            ("pool", self.pool.clone()),
            ("checksum", yes(self.checksum)),
        ]
    }
}

/// The value of a flag that is given.
fn yes(flag: bool) -> Option<String> {
    flag.then(|| "yes".to_owned())
}

/// `text` as one word of a shell.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._~/".contains(c);
    match text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

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

/// What is said where there is no disk: a server may be waiting for some.
fn none(state: &StateDir) -> Result<&'static str> {
    Ok(match state.servers()?.is_empty() {
        true => "No disk is served. To make one: uzram serve --size 1G\n",
        false => "No disk is served. To make one: uzram add --size 1G\n",
    })
}

/// The attributes of the disk `name`.
pub fn disk(state: &StateDir, name: &str) -> Result<Attributes> {
    stat(&find(state, name)?)
}

/// Writes an attribute of the disk `name`.
pub fn set(state: &StateDir, name: &str, attribute: &str, value: &str) -> Result {
    let entry = find(state, name)?;
    let (name, attribute, value) = (name.into(), attribute.into(), value.into());
    let request = Request::Set {
        name,
        attribute,
        value,
    };
    done(&entry, &request).map(|_| ())
}

/// The server that `wanted` means: the one with a disk of that name or with that process id; the only
/// one if nothing is wanted.
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
    state.entry(name).ok_or_else(|| {
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
