//! `uzram serve`.

mod welcome;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use uzram_server::attributes::log_level_of;
use uzram_server::config::Config;
use uzram_server::service::{Notifier, inherited_sockets};
use uzram_server::size::ram_bytes;
use uzram_server::{DeviceConfig, Server, sandbox};

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
    while signals.wait() == Asked::Reload {
        reload(&server, plan.config.as_deref());
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
        let Attach::Nbd = args.attach;
        let flag = args.log_level.as_deref().map(log_level_of).transpose();
        let flag = flag.map_err(|e| Failure::from(e).about("--log-level"))?;
        let Some(path) = &args.config else {
            return Ok(Plan {
                devices: vec![args.device.config()?],
                config: None,
                log_level: flag,
                is_sandboxed: !args.no_sandbox,
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
        Ok(Plan {
            devices: config.devices,
            config: Some(path),
            log_level: flag.or(level),
            is_sandboxed: !args.no_sandbox && config.sandbox.unwrap_or(true),
        })
    }
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
