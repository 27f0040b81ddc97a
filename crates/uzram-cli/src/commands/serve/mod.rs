//! `uzram serve`.

mod for_swap;
mod hold;
mod welcome;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use uzram_frontends::nbd::Endpoint;
use uzram_server::attachment::{Attach, Leftovers};
use uzram_server::config::Config;
use uzram_server::log_level;
use uzram_server::service::{Notifier, inherited_sockets};
use uzram_server::size::ram_bytes;
use uzram_server::state::StateDir;
use uzram_server::{
    AllowedFiles, DeviceConfig, Server, ServerConfig, give_back_large_memory, metrics_endpoint,
    sandbox,
};

use super::background::Background;
use super::{StateAt, absolute, absolute_text};
use crate::args::ServeArgs;
use crate::failure::{Failure, Result};
use crate::logger;
use crate::output::{print, warn};
use crate::signals::{Asked, Signals};
use welcome::welcome;

/// Exit status of a server that a second signal cut short.
const STATUS_CUT_SHORT: i32 = 1;
/// Signals of a held server that come within this time are one.
const TOLD_TWICE: Duration = Duration::from_secs(1);
/// Longest time for such a server to unmount.
const ABANDON_TIMEOUT: Duration = Duration::from_secs(1);

/// Longest time from the last close of a file to the kernel's word about it, and between two looks.
const CLOSE_TIME_MAX: Duration = Duration::from_millis(500);
const CLOSE_PAUSE: Duration = Duration::from_millis(10);

/// Runs the command. Returns when a signal has ended the server.
pub fn run(state: StateAt<'_>, args: &ServeArgs) -> Result {
    let plan = match Plan::of(args) {
        // Its holder has read it before. What was kept is served whatever became of it.
        Err(failure) if args.held && args.config.is_some() => {
            warn(&format!(
                "{failure}: only what was kept is served, and without a sandbox"
            ));
            Plan::without_devices(args)?
        }
        plan => plan?,
    };
    if args.fork || args.run.is_some() {
        return in_background(state, args);
    }
    if args.end_with_parent {
        // Where it is refused, only a parent that is killed leaves a server behind.
        let _ = rustix::process::set_parent_process_death_signal(Some(Signal::TERM));
    }
    logger::start(plan.log_level);
    if args.own_session {
        // Refused to the leader of a process group, which has no terminal's signals to fear.
        let _ = rustix::process::setsid();
    }
    if args.survive && !args.held {
        return hold::run(state, args, plan.is_for_swap());
    }
    let notifier = notifier();
    let is_for_swap = plan.is_for_swap();
    match is_for_swap {
        true => for_swap::prepare(args.held),
        false => give_back_large_memory(),
    }
    // Everything that needs privileges or paths comes first, before there are threads.
    let state = state.open()?;
    // One that waits to begin is no server yet: a signal ends it, and another one waits.
    let joined = args.held.then(hold::join).transpose()?;
    let mut signals = Signals::catch(plan.config.is_some())?;
    let follows = joined.as_ref().is_some_and(|joined| joined.follows());
    let mut prepared = match joined {
        None => Server::prepare(&state, &plan.devices, inherited_sockets()?)?,
        Some(joined) => Server::prepare_held(&state, &plan.devices, Vec::new(), Some(joined))?,
    };
    if let Some(metrics) = &plan.metrics {
        match prepared.listen_for_metrics(metrics) {
            Err(error) if follows => log::error!("no metrics: {error}"),
            done => done?,
        }
    }
    if let Some(tree) = plan.tree {
        let keeper = keeper(&tree.directory, state.path())?;
        prepared.mount_tree(&tree.directory, tree.template, tree.files, keeper)?;
    }
    let config: Vec<&Path> = plan.config.as_deref().into_iter().collect();
    prepared.confine(&config, plan.sandbox);
    if is_for_swap {
        logger::write_aside();
    }
    log::info!("sandbox: {}", sandbox::description());
    let server = prepared.run(notifier)?;
    // The journal has the log's lines about the disks; what to type next is for people.
    // A successor has nobody to tell them to.
    if !logger::is_journal() && !server.is_successor() {
        print(&welcome(&server.devices(), server.metrics(), server.tree()))?;
    }
    server.notifier().ready(&status(&server));
    loop {
        match signals.wait() {
            Asked::Reload => reload(&server, plan.config.as_deref()),
            Asked::End => {
                let Some(users) = still_in_use(&server) else {
                    break;
                };
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
    // A service manager tells all processes of a unit, and the holder tells its server, too.
    let told_twice = if args.held {
        TOLD_TWICE
    } else {
        Duration::ZERO
    };
    end_at_once_if_asked_again(signals, state, attached, told_twice);
    drop(server);
    Ok(())
}

/// The program that unmounts the tree at `directory`, and removes what dead servers left in the directory `state`.
fn keeper(directory: &Path, state: &Path) -> Result<Command> {
    let failed = |error: std::io::Error| Failure::Failed(format!("serve: {error}"));
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.arg("--control-dir").arg(state);
    command.arg("keep-tree").arg(directory);
    Ok(command)
}

/// Waits for the server that has started this process, and unmounts its tree; meanwhile it looks at the state
/// directory when it is asked to. What asks the server to end, as Ctrl-C or the service manager, comes here too, and
/// too early.
pub fn keep_tree(state: StateAt<'_>, directory: &Path) -> Result {
    let _ignored = Signals::catch(false)?;
    let state = state.open()?;
    // Looking removes what dead servers left.
    let tidy = || drop(state.entries());
    Ok(uzram_frontends::fuse::keep(directory, tidy)?)
}

/// Has another process serve, for `--fork` and `--run`.
fn in_background(state: StateAt<'_>, args: &ServeArgs) -> Result {
    let mut arguments: Vec<OsString> = Vec::new();
    let mut given = std::env::args_os().skip(1);
    while let Some(word) = given.next() {
        match word.to_str() {
            Some("--fork") => {}
            Some("--run") => drop(given.next()),
            Some(text) if text.starts_with("--run=") => {}
            _ => arguments.push(word),
        }
    }
    let Some(command) = &args.run else {
        return Background::start(arguments)?.welcome();
    };
    arguments.push("--end-with-parent".into());
    let status = Background::start(arguments)?.run(state, command)?;
    std::process::exit(status)
}

/// The names of the disks that the kernel uses.
fn attached(server: &Server) -> Vec<String> {
    let devices = server.devices();
    let attached = devices.iter().filter(|device| device.path().is_some());
    attached.map(|device| device.name().to_owned()).collect()
}

/// From now on another signal to end cuts the end short, unless it comes within `told_twice`. No mount is left even then,
/// also if the two signals came within an instant.
fn end_at_once_if_asked_again(
    mut signals: Signals,
    state: StateDir,
    attached: Vec<String>,
    told_twice: Duration,
) {
    let first = Instant::now();
    let end = move || {
        while signals.wait() != Asked::End || first.elapsed() < told_twice {}
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
    metrics: Option<Endpoint>,
    tree: Option<TreePlan>,
}

/// The tree to mount.
struct TreePlan {
    directory: PathBuf,
    /// The disk that `hot_add` makes, but for its size.
    template: DeviceConfig,
    files: AllowedFiles,
}

impl TreePlan {
    fn of(args: &ServeArgs, directory: &Path) -> Result<TreePlan> {
        let files = args.tree_files.iter();
        let files: Vec<_> = files
            .map(|path| absolute("--tree-files", path))
            .collect::<Result<_>>()?;
        let given = &args.device.0;
        Ok(TreePlan {
            directory: absolute("--tree", directory)?,
            template: given.clone().without("socket").template()?,
            files: AllowedFiles::below(&files)?,
        })
    }
}

impl Plan {
    fn is_for_swap(&self) -> bool {
        self.devices.iter().any(|device| device.for_swap)
    }

    /// That of a server of what others had.
    fn without_devices(args: &ServeArgs) -> Result<Plan> {
        let path = args.config.as_ref();
        Ok(Plan {
            devices: Vec::new(),
            config: path.map(|path| absolute("--config", path)).transpose()?,
            log_level: None,
            sandbox: sandbox::Mode::Off,
            metrics: None,
            tree: None,
        })
    }

    fn of(args: &ServeArgs) -> Result<Plan> {
        let flag = args.log_level.as_deref().map(log_level::parse).transpose();
        let flag = flag.map_err(|e| Failure::from(e).about("--log-level"))?;
        let Some(path) = &args.config else {
            if args.device.0.text("attach") == Some("auto") {
                let (attach, why) = Attach::auto();
                warn(&format!("attached as {}: {why}", attach.name()));
            }
            let server = ServerConfig {
                insecure: args.device.0.text("insecure").is_some(),
                ..ServerConfig::default()
            };
            let metrics = metrics(args, server)?;
            // It is meant for the metrics, where the disk has no use for it.
            let given = match metrics.is_some() && args.device.0.text("listen").is_none() {
                true => args.device.0.clone().without("insecure"),
                false => args.device.0.clone(),
            };
            let tree = args.tree.as_deref();
            let tree = tree
                .map(|directory| TreePlan::of(args, directory))
                .transpose()?;
            let devices = match (&tree, given.text("size")) {
                (Some(_), None) if given.text("name").is_none() => Vec::new(),
                _ => vec![given.config()?],
            };
            return Ok(Plan {
                config: None,
                metrics,
                log_level: flag,
                sandbox: mode(
                    args,
                    None,
                    devices.iter().chain(tree.iter().map(|t| &t.template)),
                ),
                devices,
                tree,
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
            metrics: metrics(args, config.server.clone())?,
            sandbox: mode(args, config.server.sandbox, &config.devices),
            devices: config.devices,
            config: Some(path),
            log_level: flag.or(config.server.log_level),
            tree: None,
        })
    }
}

/// The address of metrics that the flag asks for, or else the configuration file.
fn metrics(args: &ServeArgs, mut server: ServerConfig) -> Result<Option<Endpoint>> {
    if let Some(text) = &args.metrics {
        let text = match text.contains('/') {
            true => absolute_text("--metrics", text.as_ref())?,
            false => text.clone(),
        };
        let endpoint = metrics_endpoint(&text);
        server.metrics = Some(endpoint.map_err(|e| Failure::from(e).about("--metrics"))?);
    }
    server.check_reach()?;
    Ok(server.metrics)
}

/// The sandbox that the flags ask for, or else the configuration file. There is none where a disk is
/// attached, or `hot_add` makes such disks: taking a mount, a loop device or a ublk device down again needs
/// privileges that a sandbox gives up.
fn mode<'a>(
    args: &ServeArgs,
    configured: Option<sandbox::Mode>,
    devices: impl IntoIterator<Item = &'a DeviceConfig>,
) -> sandbox::Mode {
    let mut attached = devices.into_iter().map(|device| device.attach);
    if args.no_sandbox || !attached.all(Attach::is_socket) {
        return sandbox::Mode::Off;
    }
    match args.sandbox_log {
        true => sandbox::Mode::LogCalls,
        false => configured.unwrap_or(sandbox::Mode::On),
    }
}

/// As [`in_use`], but after a moment: the kernel tells of the last close after the close.
fn still_in_use(server: &Server) -> Option<String> {
    let begin = Instant::now();
    loop {
        let users = in_use(server)?;
        if begin.elapsed() > CLOSE_TIME_MAX {
            return Some(users);
        }
        thread::sleep(CLOSE_PAUSE);
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
