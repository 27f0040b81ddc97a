//! `uzram serve`.

mod welcome;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use uzram_server::attributes::log_level_of;
use uzram_server::config::Config;
use uzram_server::service::{Notifier, inherited_sockets};
use uzram_server::size::ram_bytes;
use uzram_server::{DeviceConfig, Server, sandbox, swap};

use super::{StateAt, absolute};
use crate::args::{Attach, ServeArgs};
use crate::failure::{Failure, Result};
use crate::logger;
use crate::output::{print, warn};
use crate::signals::{Asked, Signals};
use welcome::welcome;

/// Runs the command: returns when a signal has ended the server.
pub fn run(state: StateAt<'_>, args: &ServeArgs) -> Result {
    let plan = Plan::of(args)?;
    logger::start(plan.log_level);
    let mut signals = Signals::catch(plan.config.is_some())?;
    let notifier = notifier();
    if plan.devices.iter().any(|device| device.for_swap) {
        for refused in swap::prepare_process() {
            log::warn!("{refused}");
        }
        // A line of a log may wait for a disk, and the disk for memory.
        log::set_max_level(log::max_level().min(log::LevelFilter::Info));
    }
    // Everything that needs privileges or paths comes first, before there are threads.
    let prepared = Server::prepare(&state.open()?, &plan.devices, inherited_sockets()?)?;
    if plan.is_sandboxed {
        let config: Vec<&Path> = plan.config.as_deref().into_iter().collect();
        prepared.confine(&config);
    }
    log::info!("sandbox: {}", sandbox::description());
    let server = prepared.run(notifier)?;
    // The journal has the log's lines about the disks; what to type next is for people.
    if !logger::is_journal() {
        print(&welcome(&server.devices()))?;
    }
    server.notifier().ready(&status(&server));
    loop {
        match (signals.wait(), in_use(&server)) {
            (Asked::Reload, _) => reload(&server, plan.config.as_deref()),
            (Asked::End, None) => break,
            (Asked::End, Some(users)) => {
                signals.refuse();
                log::error!(
                    "not ending: {users}; end that first (uzram down), or kill -9 this process and \
                     lose what it holds"
                );
            }
        }
    }
    server.notifier().stopping();
    log::info!("ending: requests under way are answered first");
    if std::io::stderr().is_terminal() {
        warn("ending: requests under way are answered first; once more to end at once");
    }
    drop(server);
    Ok(())
}

/// What is to be served, and how.
struct Plan {
    devices: Vec<DeviceConfig>,
    /// Absolute, to be found again.
    config: Option<PathBuf>,
    log_level: Option<log::LevelFilter>,
    is_sandboxed: bool,
}

impl Plan {
    fn of(args: &ServeArgs) -> Result<Plan> {
        let flag = args.log_level.as_deref().map(log_level_of).transpose();
        let flag = flag.map_err(|e| Failure::from(e).about("--log-level"))?;
        let Some(path) = &args.config else {
            if args.device.attach == Some(Attach::Auto) {
                let (attach, why) = uzram_server::attachment::Attach::auto();
                warn(&format!("attached as {}: {why}", attach.name()));
            }
            let devices = vec![args.device.config()?];
            return Ok(Plan {
                config: None,
                log_level: flag,
                is_sandboxed: !args.no_sandbox && can_be_sandboxed(&devices),
                devices,
            });
        };
        if let Some((option, _)) = args.device.options()?.first() {
            let text = format!("--{option}: a disk's options come from --config; add it there");
            return Err(Failure::Usage(text));
        }
        let path = absolute("--config", path)?;
        let config = Config::read(&path, ram_bytes())?;
        let level = config.log_level.as_deref().map(log_level_of).transpose();
        let level = level.map_err(|e| {
            Failure::from(e).about(format!("{}: [server] log-level", path.display()))
        })?;
        note_left_out(&config);
        let is_wanted = !args.no_sandbox && config.sandbox.unwrap_or(true);
        Ok(Plan {
            is_sandboxed: is_wanted && can_be_sandboxed(&config.devices),
            devices: config.devices,
            config: Some(path),
            log_level: flag.or(level),
        })
    }
}

/// Taking a mount, a loop device or a ublk device down again needs what a sandbox gives up.
fn can_be_sandboxed(devices: &[DeviceConfig]) -> bool {
    let mut attached = devices.iter().map(|device| device.attach);
    attached.all(uzram_server::attachment::Attach::is_socket)
}

/// What uses a disk that is attached: its data would be lost under it.
fn in_use(server: &Server) -> Option<String> {
    let devices = server.devices();
    let mut attached = devices.iter().filter(|device| device.path().is_some());
    let used = attached.find(|device| device.connections() > 0)?;
    Some(format!("{} is in use at {}", used.name(), used.uri()))
}

fn note_left_out(config: &Config) {
    for name in &config.left_out {
        warn(&format!(
            "{name}: left out; the machine has more memory than its host-memory-limit"
        ));
    }
}

/// A manager that cannot be reached must not keep the disks away from their users.
fn notifier() -> Notifier {
    Notifier::from_environment().unwrap_or_else(|error| {
        log::warn!("{error}; nobody is told that the server is ready");
        Notifier::default()
    })
}

/// Reads the configuration again. What is wrong with it is logged, and nothing changes then.
fn reload(server: &Server, config: Option<&Path>) {
    let Some(path) = config else {
        return;
    };
    server.notifier().reloading();
    match Config::read(path, ram_bytes()) {
        Ok(config) => {
            server.apply(&config.devices);
            log::info!("{}: read again", path.display());
        }
        Err(error) => log::error!("{error}; nothing was changed"),
    }
    server.notifier().ready(&status(server));
}

/// A line for `systemctl status`.
fn status(server: &Server) -> String {
    let devices = server.devices();
    match &*devices {
        [] => "no disk; uzram add makes one".into(),
        [device] => format!("serving {}", device.name()),
        devices => format!("serving {} disks", devices.len()),
    }
}
