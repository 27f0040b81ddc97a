//! `uzram serve`.

mod welcome;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use uzram_server::attachment::{Attach, Leftovers};
use uzram_server::config::Config;
use uzram_server::log_level;
use uzram_server::service::{Notifier, inherited_sockets};
use uzram_server::size::ram_bytes;
use uzram_server::state::StateDir;
use uzram_server::{DeviceConfig, Server, give_back_large_memory, sandbox, swap};

use super::{StateAt, absolute};
use crate::args::ServeArgs;
use crate::failure::{Failure, Result};
use crate::logger;
use crate::output::{print, warn};
use crate::signals::{Asked, Signals};
use welcome::welcome;

/// Exit status of a server that a second signal cut short.
const STATUS_CUT_SHORT: i32 = 1;
/// Longest time for such a server to unmount.
const ABANDON_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs the command. Returns when a signal has ended the server.
pub fn run(state: StateAt<'_>, args: &ServeArgs) -> Result {
    let plan = Plan::of(args)?;
    logger::start(plan.log_level);
    if args.own_session {
        // Refused to the leader of a process group, which has no terminal's signals to fear.
        let _ = rustix::process::setsid();
    }
    let mut signals = Signals::catch(plan.config.is_some())?;
    let notifier = notifier();
    if plan.devices.iter().any(|device| device.for_swap) {
        for refused in swap::prepare_process() {
            log::warn!("{refused}");
        }
        log::info!("for-swap: runs at nice {}", swap::niceness());
        // A line of a log may wait for a disk, and the disk for memory.
        log::set_max_level(log::max_level().min(log::LevelFilter::Info));
    } else {
        give_back_large_memory();
    }
    // Everything that needs privileges or paths comes first, before there are threads.
    let state = state.open()?;
    let prepared = Server::prepare(&state, &plan.devices, inherited_sockets()?)?;
    let config: Vec<&Path> = plan.config.as_deref().into_iter().collect();
    prepared.confine(&config, plan.sandbox);
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
    let attached = attached(&server);
    end_at_once_if_asked_again(signals, state, attached);
    drop(server);
    Ok(())
}

/// The names of the disks that the kernel uses.
fn attached(server: &Server) -> Vec<String> {
    let devices = server.devices();
    let attached = devices.iter().filter(|device| device.path().is_some());
    attached.map(|device| device.name().to_owned()).collect()
}

/// From now on another signal to end cuts the end short. No mount is left even then, also if the
/// two signals came within an instant.
fn end_at_once_if_asked_again(mut signals: Signals, state: StateDir, attached: Vec<String>) {
    let end = move || {
        while signals.wait() != Asked::End {}
        let (done, is_done) = std::sync::mpsc::channel();
        thread::spawn(move || {
            for name in attached {
                Leftovers::of(&state, &name).abandon();
            }
            let _ = done.send(());
        });
        let _ = is_done.recv_timeout(ABANDON_TIMEOUT);
        signal_hook::low_level::exit(STATUS_CUT_SHORT);
    };
    let thread = thread::Builder::new().name("uzram-signals".into());
    if let Err(error) = thread.spawn(end) {
        log::warn!("a second signal will not be heard: {error}");
    }
}

/// The disks to serve, and the options of the server.
struct Plan {
    devices: Vec<DeviceConfig>,
    /// Absolute, so that a reload finds it.
    config: Option<PathBuf>,
    log_level: Option<log::LevelFilter>,
    sandbox: sandbox::Mode,
}

impl Plan {
    fn of(args: &ServeArgs) -> Result<Plan> {
        let flag = args.log_level.as_deref().map(log_level::parse).transpose();
        let flag = flag.map_err(|e| Failure::from(e).about("--log-level"))?;
        let Some(path) = &args.config else {
            if args.device.0.text("attach") == Some("auto") {
                let (attach, why) = Attach::auto();
                warn(&format!("attached as {}: {why}", attach.name()));
            }
            let devices = vec![args.device.0.config()?];
            return Ok(Plan {
                config: None,
                log_level: flag,
                sandbox: mode(args, None, &devices),
                devices,
            });
        };
        if let Some((option, _)) = args.device.0.iter().next() {
            let option = option.name;
            let text = format!("--{option}: a disk's options come from --config; add it there");
            return Err(Failure::Usage(text));
        }
        let path = absolute("--config", path)?;
        let config = Config::read(&path, ram_bytes())?;
        note_left_out(&config);
        Ok(Plan {
            sandbox: mode(args, config.server.sandbox, &config.devices),
            devices: config.devices,
            config: Some(path),
            log_level: flag.or(config.server.log_level),
        })
    }
}

/// The sandbox that the flags ask for, or else the configuration file. There is none where a disk is
/// attached: taking a mount, a loop device or a ublk device down again needs privileges that a sandbox
/// gives up.
fn mode(
    args: &ServeArgs,
    configured: Option<sandbox::Mode>,
    devices: &[DeviceConfig],
) -> sandbox::Mode {
    let mut attached = devices.iter().map(|device| device.attach);
    if args.no_sandbox || !attached.all(Attach::is_socket) {
        return sandbox::Mode::Off;
    }
    match args.sandbox_log {
        true => sandbox::Mode::LogCalls,
        false => configured.unwrap_or(sandbox::Mode::On),
    }
}

/// The users of an attached disk. They would lose its data.
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

/// Reports to the service manager. A manager that cannot be reached must not keep the disks from
/// their users.
fn notifier() -> Notifier {
    Notifier::from_environment().unwrap_or_else(|error| {
        log::warn!("{error}; nobody is told that the server is ready");
        Notifier::default()
    })
}

/// Reads the configuration again. Faults in it are logged, and nothing changes then.
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
