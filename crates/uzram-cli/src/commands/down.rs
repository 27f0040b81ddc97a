//! `uzram down`: undoes what `uzram up` did, whatever is left of it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal};
use uzram_server::attachment::{Leftovers, usage};
use uzram_server::control::Request;
use uzram_server::state::{Entry, StateDir, check_name, own_uid};
use uzram_server::swap::Watermarks;
use uzram_server::system;

use super::{StateAt, disks, done, up};
use crate::args::DownArgs;
use crate::failure::{Failure, Result};
use crate::output::{print, warn};

/// A server has this long to end.
pub const END_TIMEOUT: Duration = Duration::from_secs(10);
const END_PAUSE: Duration = Duration::from_millis(10);

/// Runs the command.
pub fn run(state: StateAt<'_>, args: &DownArgs) -> Result {
    let state = state.open_to_ask()?;
    let name = match up::as_directory(&args.target)? {
        None => args.target.clone(),
        Some(directory) => match mounted_at(&state, &directory) {
            Some(name) => name,
            None => return not_ours(&directory),
        },
    };
    check_name(&name)?;
    if state.entry(&name).is_none() && Leftovers::of(&state, &name).is_empty() {
        let _ = std::fs::remove_file(state.log(&name));
        return print(&format!("{name} is not up; nothing to do.\n"));
    }
    if own_uid() != 0 {
        let text = format!("down {name}: needs root, for swapoff or umount; try sudo");
        return Err(Failure::Failed(text));
    }
    take_down(&state, &name)?;
    print(&format!("{name} is down.\n"))
}

fn not_ours(directory: &Path) -> Result {
    let shown = directory.display();
    let mounts = usage::mounts();
    match mounts
        .iter()
        .rev()
        .find(|mount| mount.directory == directory)
    {
        None => print(&format!("Nothing is mounted on {shown}; nothing to do.\n")),
        Some(mount) => Err(Failure::Failed(format!(
            "{shown}: {} of {} is mounted there, and no disk of uzram; umount takes it away",
            mount.kind,
            mount.source.display()
        ))),
    }
}

/// The disk that is mounted on `directory`, served or left over.
pub fn mounted_at(state: &StateDir, directory: &Path) -> Option<String> {
    let mounts = usage::mounts().into_iter().rev();
    let source = mounts
        .filter(|mount| mount.directory == directory)
        .map(|mount| mount.source)
        .next()?;
    let has_it = |name: &String| {
        Leftovers::of(state, name)
            .devices()
            .any(|path| path == source)
    };
    state.attached_names().into_iter().find(has_it)
}

/// Stops using the disk `name`, ends its server if that has no other, and removes what is left.
pub fn take_down(state: &StateDir, name: &str) -> Result {
    let devices: Vec<PathBuf> = Leftovers::of(state, name)
        .devices()
        .map(Path::to_owned)
        .collect();
    for device in &devices {
        stop_using(device)?;
    }
    let dead_swap = devices.iter().find(|device| usage::is_dead_swap(device));
    restore_watermarks(state, name);
    if let Some(entry) = state.entry(name) {
        end_server(state, &entry)?;
    }
    Leftovers::of(state, name).remove()?;
    let _ = std::fs::remove_file(state.log(name));
    // Looking removes what dead servers left in the state directory.
    state.entries()?;
    match dead_swap {
        None => Ok(()),
        Some(device) => Err(Failure::Failed(format!(
            "{name}: down, but its server was killed under swap: what it held is lost, and the kernel \
             lists {} as swap until the machine restarts",
            device.display()
        ))),
    }
}

/// Sets the kernel's watermarks to what `up` noted, if it did and no other device is swapped to.
pub fn restore_watermarks(state: &StateDir, name: &str) {
    let path = state.watermark(name);
    let before = watermark_in(&path);
    let _ = std::fs::remove_file(path);
    let Some(before) = before.filter(|_| state.watermark_names().is_empty()) else {
        return;
    };
    if let Err(error) = before.set() {
        warn(&format!(
            "vm.watermark_scale_factor and vm.watermark_boost_factor: not set back to {before}: {error}"
        ));
    }
}

/// What the kernel's watermarks were before any device was swapped to, if one is.
pub fn noted_watermark(state: &StateDir) -> Option<Watermarks> {
    let mut names = state.watermark_names().into_iter();
    names.find_map(|name| watermark_in(&state.watermark(&name)))
}

fn watermark_in(path: &Path) -> Option<Watermarks> {
    Watermarks::parse(&std::fs::read_to_string(path).ok()?)
}

fn stop_using(device: &Path) -> Result {
    let shown = device.display();
    if usage::is_swap(device) {
        system::swap_off(device).map_err(|error| {
            let remedy = match error.kind() {
                std::io::ErrorKind::OutOfMemory => {
                    "; what it holds does not fit in memory now, end some programs"
                }
                _ => "",
            };
            Failure::Failed(format!("swapoff {shown}: {error}{remedy}"))
        })?;
    }
    // The last one mounted first: it may lie within another one.
    for directory in usage::mounts_of(device).iter().rev() {
        rustix::mount::unmount(directory, UnmountFlags::NOFOLLOW).map_err(|error| {
            let shown = directory.display();
            let who = match usage::holders(directory) {
                holders if holders.is_empty() => String::new(),
                holders => format!(", in use by {}", holders.join(", ")),
            };
            Failure::Failed(format!("umount {shown}: {error}{who}; end that first"))
        })?;
    }
    Ok(())
}

fn end_server(state: &StateDir, entry: &Entry) -> Result {
    let name = &entry.name;
    let Some(owner) = &entry.owner else {
        return Err(Failure::Failed(format!(
            "{name}: its server is still starting; try again"
        )));
    };
    let others = disks(state)?;
    let has_others = others
        .iter()
        .any(|d| d.name != *name && d.pid == Some(owner.pid));
    if has_others {
        let name = name.clone();
        return done(entry, &Request::Remove { name, force: false }).map(|_| ());
    }
    let pid = i32::try_from(owner.pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Failure::Failed(format!("{name}: no process {}", owner.pid)))?;
    // Its lock tells that it has ended: a number of a process may be another's by then.
    let _ = rustix::process::kill_process(pid, Signal::TERM);
    let deadline = Instant::now() + END_TIMEOUT;
    // The server's own lock is the last that it gives back, after the device's.
    let runs = || -> Result<bool> {
        let servers = state.servers()?;
        let is_it = |server: &Entry| server.owner.as_ref() == Some(owner);
        Ok(state.entry(name).is_some() || servers.iter().any(is_it))
    };
    while runs()? {
        if Instant::now() >= deadline {
            let text = format!(
                "{name}: process {} does not end; kill -9 it and try again",
                owner.pid
            );
            return Err(Failure::Failed(text));
        }
        std::thread::sleep(END_PAUSE);
    }
    Ok(())
}
