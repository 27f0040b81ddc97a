//! `uzram down`: undoes `uzram up`, also where only a part of it is left.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal};
use uzram_server::attachment::{Leftovers, usage};
use uzram_server::control::Request;
use uzram_server::state::{Entry, StateDir, check_name, own_uid};
use uzram_server::survive::{holder_at, let_go};
use uzram_server::system;

use super::record::{forget, noted_at, resolved};
use super::runs::no_disk;
use super::{StateAt, disks, done, kernel_settings};
use crate::args::DownArgs;
use crate::failure::{Failure, Result};
use crate::output::print;

/// The time that a server has to end.
const END_TIMEOUT: Duration = Duration::from_secs(10);
const END_PAUSE: Duration = Duration::from_millis(10);

/// Ends a server that this process has started: by force, if it takes too long.
pub fn end(child: &mut Child) {
    let _ = rustix::process::kill_process(Pid::from_child(child), Signal::TERM);
    let deadline = Instant::now() + END_TIMEOUT;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
        std::thread::sleep(END_PAUSE);
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// Runs the command.
pub fn run(state: StateAt<'_>, args: &DownArgs) -> Result {
    let state = state.open_to_ask()?;
    let _turn = state.turn()?;
    if let Some(owner) = state.run(&args.target).and_then(|run| run.owner) {
        let text = no_disk(&args.target, owner.pid);
        return Err(Failure::Failed(format!("down: {text}")));
    }
    let Some(name) = find(&state, &args.target)? else {
        return Ok(());
    };
    let was_known = is_known(&state, &name);
    if was_known && own_uid() != 0 && needs_root(&state, &name) {
        let text = format!("down {name}: needs root, for swapoff or umount; try sudo");
        return Err(Failure::Failed(text));
    }
    take_down(&state, &name)?;
    match was_known {
        true => print(&format!("{name} is down.\n")),
        false => print(&format!("{name} is not up; nothing to do.\n")),
    }
}

/// The disk that `target` means: one of that name, or the one that is or was mounted there. `None`
/// if there is nothing to do, after a line that says so.
fn find(state: &StateDir, target: &str) -> Result<Option<String>> {
    let is_name = check_name(target).is_ok();
    if is_name && is_known(state, target) {
        return Ok(Some(target.to_owned()));
    }
    let is_path = target.contains('/') || target == "." || target == "..";
    let directory = resolved(Path::new(target));
    let Ok(directory) = directory else {
        return match is_name {
            true => Ok(Some(target.to_owned())),
            false => nothing_at(Path::new(target)).map(|()| None),
        };
    };
    if let Some(name) = belongs_to(state, &directory) {
        return Ok(Some(name));
    }
    let mounts = usage::mounts();
    let theirs = mounts.iter().rev().find(|m| m.directory == directory);
    match theirs {
        Some(mount) => {
            let (shown, kind) = (directory.display(), &mount.kind);
            Err(Failure::Failed(format!(
                "{shown}: {kind} of {} is mounted there, and no disk of uzram; umount takes it away",
                mount.source.display()
            )))
        }
        None if is_path => nothing_at(&directory).map(|()| None),
        None => {
            check_name(target)?;
            Ok(Some(target.to_owned()))
        }
    }
}

fn nothing_at(directory: &Path) -> Result {
    let shown = directory.display();
    print(&format!("Nothing is mounted on {shown}; nothing to do.\n"))
}

/// Whether a server, the kernel or the state directory knows the disk `name`.
pub fn is_known(state: &StateDir, name: &str) -> bool {
    is_up(state, name) || state.dead_entry(name).is_some()
}

/// Whether a server or the kernel knows it.
fn is_up(state: &StateDir, name: &str) -> bool {
    state.entry(name).is_some() || !Leftovers::of(state, name).is_empty()
}

/// The disk that is mounted on `directory`, or that `up` mounted there and that still exists.
pub fn belongs_to(state: &StateDir, directory: &Path) -> Option<String> {
    mounted_at(state, directory).or_else(|| noted_at(state, directory))
}

/// The disk that is mounted on `directory`, served or left over.
fn mounted_at(state: &StateDir, directory: &Path) -> Option<String> {
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

/// Whether taking the disk `name` down needs root: a block device, or its user.
fn needs_root(state: &StateDir, name: &str) -> bool {
    Leftovers::of(state, name).devices().next().is_some()
}

/// Stops using the disk `name`, ends its server if it has no other disk, and removes the rest.
///
/// It succeeds only when no server, no device and no mount is left.
pub fn take_down(state: &StateDir, name: &str) -> Result {
    let devices: Vec<PathBuf> = Leftovers::of(state, name)
        .devices()
        .map(Path::to_owned)
        .collect();
    for device in &devices {
        stop_using(device)?;
    }
    let dead_swap = devices.iter().find(|device| usage::is_dead_swap(device));
    kernel_settings::restore(state, name);
    if let Some(entry) = state.entry(name) {
        end_server(state, &entry)?;
    }
    Leftovers::of(state, name).remove()?;
    wait_until_gone(state, name)?;
    forget(state, name);
    state.sweep(name);
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

/// Waits: the kernel takes a loop device down when the last program closes it, and some programs
/// look at each new one.
fn wait_until_gone(state: &StateDir, name: &str) -> Result {
    let deadline = Instant::now() + END_TIMEOUT;
    while is_up(state, name) {
        if Instant::now() >= deadline {
            let left = Leftovers::of(state, name);
            let left: Vec<String> = left.devices().map(|d| d.display().to_string()).collect();
            return Err(Failure::Failed(format!(
                "{name}: not down: something holds {}; end that and try again",
                match left.as_slice() {
                    [] => state.fuse_directory(name).display().to_string(),
                    devices => devices.join(", "),
                }
            )));
        }
        std::thread::sleep(END_PAUSE);
    }
    Ok(())
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
        unmount(device, directory)?;
    }
    // Unmounted lazily, a file system lives on in the files that programs have open.
    usage::check_unused(device)?;
    Ok(())
}

fn unmount(device: &Path, directory: &Path) -> Result {
    let shown = directory.display();
    let mounts = usage::mounts();
    let top = mounts.iter().rev().find(|m| m.directory == directory);
    if let Some(top) = top.filter(|top| top.source != device) {
        let (kind, source) = (&top.kind, top.source.display());
        return Err(Failure::Failed(format!(
            "umount {shown}: {kind} of {source} is mounted over it; umount that first"
        )));
    }
    rustix::mount::unmount(directory, UnmountFlags::NOFOLLOW).map_err(|error| {
        let who = match usage::holders(directory) {
            holders if holders.is_empty() => String::new(),
            holders => format!(", in use by {}", holders.join(", ")),
        };
        Failure::Failed(format!("umount {shown}: {error}{who}; end that first"))
    })
}

fn end_server(state: &StateDir, entry: &Entry) -> Result {
    let name = &entry.name;
    let Some(owner) = &entry.owner else {
        return Err(Failure::Failed(format!(
            "{name}: its server is still starting; try again"
        )));
    };
    let holder = owner.holder_socket();
    // Its servers may have failed one after another, so that none is there to be asked.
    if holder
        .as_ref()
        .is_some_and(|socket| let_go(socket, name).is_ok())
    {
        return Ok(());
    }
    // A holder would follow its server by another one. It passes a signal on, and ends with the server.
    let holder = holder.and_then(|socket| holder_at(&socket));
    let others = disks(state)?;
    let has_others = others
        .iter()
        .any(|d| d.name != *name && d.pid == Some(owner.pid));
    if has_others {
        let name = name.clone();
        return done(state, entry, &Request::Remove { name, force: false }).map(|_| ());
    }
    let pid = i32::try_from(holder.unwrap_or(owner.pid))
        .ok()
        .and_then(Pid::from_raw);
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
