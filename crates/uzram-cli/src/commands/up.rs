//! `uzram up`: a disk and all that makes it of use, in one command.
//!
//! A server is started in the background, attached as a block device: ublk where the kernel has it, else
//! loop. Then the device becomes swap, or gets a file system and is mounted. What fails is undone. What is there already stays: the kernel's
//! tables say what that is, so a crash in between is no different from a stop.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::mount::MountFlags;
use uzram_server::attachment::{Attach, Leftovers, usage};
use uzram_server::control::Attributes;
use uzram_server::size::{human, parse, ram_bytes};
use uzram_server::state::{StateDir, check_name, own_uid};
use uzram_server::swap::{self, Watermarks};
use uzram_server::system;

use super::{StateAt, absolute, down, number, plain, stat};
use crate::args::{FileSystem, UpArgs};
use crate::failure::{Failure, Result};
use crate::output::{bold, print, warn};

/// Name of the disk for swap, unless another one is given: the same each time, so that `up` finds it.
const SWAP_NAME: &str = "swap0";
/// Above disks', whose swap has negative priorities unless somebody gives others.
const SWAP_PRIORITY: u16 = 100;
/// Share of RAM that a disk holds by default, as a divisor.
const RAM_SHARE: u64 = 2;
/// Names tried for a disk that has none.
const NAMES_MAX: usize = 1024;
/// A server that is not ready by then is ended.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
const READY_PAUSE: Duration = Duration::from_millis(10);
/// Bytes shown of what a server said before it failed.
const LOG_BYTES_MAX: u64 = 4096;

/// What the disk is for.
enum Purpose {
    Swap { priority: u16 },
    Mount { directory: PathBuf, fs: FileSystem },
}

/// Runs the command.
pub fn run(state: StateAt<'_>, args: &UpArgs) -> Result {
    let purpose = purpose(args)?;
    if let Some(name) = &args.name {
        check_name(name).map_err(|error| Failure::from(error).about("--name"))?;
    }
    let size_bytes = match &args.size {
        Some(text) => {
            Some(parse(text, ram_bytes()).map_err(|error| Failure::from(error).about("--size"))?)
        }
        None => None,
    };
    if own_uid() != 0 {
        let text = "up: needs root, for the block device and swapon or mount; try sudo";
        return Err(Failure::Failed(text.into()));
    }
    let state = state.open()?;
    let name = name(&state, args, &purpose)?;
    if let Some(device) = running(&state, &name)? {
        return already(&name, &device, &purpose, size_bytes);
    }
    // Of a server that was killed: its content is gone, so what is left is only in the way.
    if !Leftovers::of(&state, &name).is_empty() {
        warn(&format!(
            "{name}: taking down what a server that was killed left"
        ));
        down::take_down(&state, &name)?;
    }
    check_free(&purpose)?;
    let size_bytes = size_bytes.unwrap_or_else(default_size);
    let mut started = Started::new(&state, &name, args, &purpose, size_bytes)?;
    let device = started.wait()?;
    let path = PathBuf::from(device.get("endpoint").map(plain).unwrap_or_default());
    if matches!(purpose, Purpose::Swap { .. }) && !is_ublk(&path) {
        raise_watermarks(&state, &name);
    }
    set_up(&path, number(&device, "disksize"), &purpose)?;
    for line in started.log().lines() {
        warn(line.strip_prefix("uzram: ").unwrap_or(line));
    }
    started.keep();
    print(&welcome(&name, &device, &path, &purpose))
}

fn purpose(args: &UpArgs) -> Result<Purpose> {
    match &args.mount {
        None => Ok(Purpose::Swap {
            priority: args.priority.unwrap_or(SWAP_PRIORITY),
        }),
        Some(directory) => Ok(Purpose::Mount {
            // Without links: the kernel's table has none.
            directory: fs::canonicalize(directory).map_err(|error| {
                let shown = directory.display();
                Failure::Failed(format!("--mount {shown}: {error}; create it"))
            })?,
            fs: args.fs,
        }),
    }
}

/// The disk that is there for this purpose, or a name for a new one.
fn name(state: &StateDir, args: &UpArgs, purpose: &Purpose) -> Result<String> {
    let found = match purpose {
        Purpose::Swap { .. } => None,
        Purpose::Mount { directory, .. } => down::mounted_at(state, directory),
    };
    match (found, &args.name, purpose) {
        (Some(found), Some(wanted), Purpose::Mount { directory, .. }) if found != *wanted => {
            let shown = directory.display();
            Err(Failure::Failed(format!(
                "{shown}: {found} is mounted there, and not {wanted}; uzram down {found}"
            )))
        }
        (Some(found), ..) => Ok(found),
        (None, Some(wanted), _) => Ok(wanted.clone()),
        (None, None, Purpose::Swap { .. }) => Ok(SWAP_NAME.into()),
        (None, None, Purpose::Mount { .. }) => {
            let names = (0..NAMES_MAX).map(|number| format!("uzram{number}"));
            let is_free = |name: &String| {
                state.entry(name).is_none() && Leftovers::of(state, name).is_empty()
            };
            let mut free = names.filter(is_free);
            free.next().ok_or_else(|| {
                Failure::Failed(format!("uzram0 to uzram{}: all taken", NAMES_MAX - 1))
            })
        }
    }
}

/// The attributes of `name`, if a server has it.
fn running(state: &StateDir, name: &str) -> Result<Option<Attributes>> {
    state.entry(name).map(|entry| stat(&entry)).transpose()
}

/// It is up if it serves the purpose; otherwise somebody has it for something else.
fn already(name: &str, device: &Attributes, purpose: &Purpose, size_bytes: Option<u64>) -> Result {
    let path = PathBuf::from(device.get("endpoint").map(plain).unwrap_or_default());
    let serves = match purpose {
        Purpose::Swap { .. } => usage::is_swap(&path),
        Purpose::Mount { directory, .. } => usage::mounts_of(&path).contains(directory),
    };
    if !serves {
        let shown = path.display();
        return Err(Failure::Failed(format!(
            "{name}: served already, at {shown}, for something else; choose another --name or uzram down {name}"
        )));
    }
    let has_bytes = number(device, "disksize");
    if size_bytes.is_some_and(|wanted| wanted.next_multiple_of(4096) != has_bytes) {
        let has = human(has_bytes);
        return Err(Failure::Failed(format!(
            "{name}: up with {has}; uzram down {name} before you choose another size"
        )));
    }
    print(&format!("{name} is up already, at {}.\n", path.display()))
}

/// Refuses a mount point that somebody uses and a file system that cannot be made, before anything
/// is set up.
fn check_free(purpose: &Purpose) -> Result {
    let Purpose::Mount { directory, fs } = purpose else {
        return Ok(());
    };
    let shown = directory.display();
    if !directory.is_dir() {
        return Err(Failure::Failed(format!("--mount {shown}: not a directory")));
    }
    let mounts = usage::mounts();
    if let Some(mount) = mounts.iter().rev().find(|m| m.directory == *directory) {
        let (kind, source) = (&mount.kind, mount.source.display());
        return Err(Failure::Failed(format!(
            "--mount {shown}: busy, {kind} of {source} is mounted there; choose another directory"
        )));
    }
    let program = fs.mkfs();
    let is_there = |dir: &Path| dir.join(program).is_file();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin", "/usr/local/sbin"];
    let found = std::env::split_paths(&path).any(|dir| is_there(&dir))
        || usual.iter().any(|dir| is_there(Path::new(dir)));
    match found {
        true => Ok(()),
        false => Err(Failure::Failed(format!(
            "--fs {}: {program} is not installed; apt install {}",
            fs.name(),
            fs.package()
        ))),
    }
}

/// Half of RAM: pages usually compress to less than half of their size, so a disk that is full takes
/// a quarter of RAM or less. zram's generators choose the same.
fn default_size() -> u64 {
    let size_bytes = (ram_bytes() / RAM_SHARE).next_multiple_of(1 << 20);
    warn(&format!(
        "size: {}, half of RAM; full, it takes about a quarter of RAM, as pages usually compress to \
         less than half. --size says otherwise",
        human(size_bytes)
    ));
    size_bytes
}

/// Swap that could grow to take all of RAM would end in a stall, where a full one ends in the kernel's
/// choice of a program to kill.
fn default_limit(purpose: &Purpose, size_bytes: u64) -> Option<String> {
    let limit_bytes = ram_bytes() / RAM_SHARE;
    if !matches!(purpose, Purpose::Swap { .. }) || size_bytes <= limit_bytes {
        return None;
    }
    warn(&format!(
        "--mem-limit {limit_bytes}: {}, half of RAM, as the disk is larger than that",
        human(limit_bytes)
    ));
    Some(limit_bytes.to_string())
}

/// A server in the background. Dropped before [`Started::keep`], it is ended.
struct Started<'a> {
    state: &'a StateDir,
    name: &'a str,
    child: Option<Child>,
}

impl<'a> Started<'a> {
    fn new(
        state: &'a StateDir,
        name: &'a str,
        args: &UpArgs,
        purpose: &Purpose,
        size_bytes: u64,
    ) -> Result<Started<'a>> {
        let failed =
            |what: &str, error: std::io::Error| Failure::Failed(format!("{name}: {what}: {error}"));
        let program = std::env::current_exe().map_err(|e| failed("own program", e))?;
        let log = File::create(state.log(name)).map_err(|e| failed("log", e))?;
        let mut command = Command::new(program);
        command.arg("--control-dir").arg(state.path()).arg("serve");
        command.args(["--attach", Attach::block_device().name()]);
        command.args(["--name", name, "--size"]);
        command.arg(size_bytes.to_string());
        let mem_limit = args
            .mem_limit
            .clone()
            .or_else(|| default_limit(purpose, size_bytes));
        let mut options = args.pages.options().to_vec();
        options.push(("mem-limit", mem_limit));
        for (option, value) in options {
            let Some(value) = value else { continue };
            command.arg(match option {
                "checksum" => "--checksum".to_owned(),
                _ => format!("--{option}={value}"),
            });
        }
        if let Purpose::Swap { .. } = purpose {
            command.arg("--for-swap");
        }
        // A group of its own: Ctrl-C in this terminal is not meant for it. `/`: it keeps no file
        // system from being unmounted.
        command
            .process_group(0)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let child = command.spawn().map_err(|e| failed("server", e))?;
        Ok(Started {
            state,
            name,
            child: Some(child),
        })
    }

    /// Its attributes, once it serves.
    fn wait(&mut self) -> Result<Attributes> {
        let deadline = Instant::now() + READY_TIMEOUT;
        let name = self.name;
        while Instant::now() < deadline {
            let entry = self.state.entry(name);
            if let Some(entry) = entry.filter(|entry| entry.owner.is_some())
                && let Ok(attributes) = stat(&entry)
            {
                return Ok(attributes);
            }
            let ended = self.child.as_mut().map(Child::try_wait);
            if let Some(Ok(Some(_))) = ended {
                return Err(Failure::Failed(self.last_words()));
            }
            std::thread::sleep(READY_PAUSE);
        }
        let seconds = READY_TIMEOUT.as_secs();
        Err(Failure::Failed(format!(
            "{name}: its server was not ready in {seconds} s"
        )))
    }

    /// What it has said.
    fn log(&self) -> String {
        let mut text = String::new();
        if let Ok(log) = File::open(self.state.log(self.name)) {
            let _ = log.take(LOG_BYTES_MAX).read_to_string(&mut text);
        }
        text
    }

    /// Why it ended, without the program's name, which is ours too.
    fn last_words(&self) -> String {
        match self.log().lines().next_back() {
            Some(line) => line.strip_prefix("uzram: ").unwrap_or(line).to_owned(),
            None => format!("{}: its server ended without a word", self.name),
        }
    }

    /// It is of use now and stays.
    fn keep(mut self) {
        self.child = None;
    }
}

impl Drop for Started<'_> {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        let pid = rustix::process::Pid::from_child(&child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let deadline = Instant::now() + down::END_TIMEOUT;
        while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(READY_PAUSE);
        }
        let _ = child.kill();
        let _ = child.wait();
        down::restore_watermarks(self.state, self.name);
        let _ = Leftovers::of(self.state, self.name).remove();
        let _ = fs::remove_file(self.state.log(self.name));
    }
}

/// Whether nothing has to be allocated on the way to the disk.
fn is_ublk(device: &Path) -> bool {
    device.to_string_lossy().starts_with("/dev/ublkb")
}

/// Noted for `down`; a container may not, and is told what that means.
fn raise_watermarks(state: &StateDir, name: &str) {
    match Watermarks::raise(ram_bytes()) {
        Ok(raised) => {
            // What others have noted is older: after they have raised it, it is no longer what it was.
            let noted = down::noted_watermark(state);
            if let Some(before) = noted.or(raised)
                && fs::write(state.watermark(name), before.to_string()).is_err()
            {
                warn(&format!(
                    "vm.watermark_scale_factor and vm.watermark_boost_factor were {before}, and stay as they are"
                ));
            }
        }
        Err(error) => warn(&format!(
            "vm.watermark_scale_factor and vm.watermark_boost_factor: not set ({error}): if the whole machine runs short of memory \
             it may stall; limit the programs that swap with a memory cgroup"
        )),
    }
}

fn set_up(device: &Path, size_bytes: u64, purpose: &Purpose) -> Result {
    let shown = device.display();
    match purpose {
        Purpose::Swap { priority } => {
            swap::make_area(device, size_bytes)?;
            system::swap_on(device, Some(*priority))
                .map_err(|error| Failure::Failed(format!("swapon {shown}: {error}")))
        }
        Purpose::Mount { directory, fs } => {
            make_file_system(device, *fs)?;
            mount(device, directory, *fs)
        }
    }
}

fn make_file_system(device: &Path, fs: FileSystem) -> Result {
    let program = fs.mkfs();
    let failed = |why: &str| Failure::Failed(format!("{program} {}: {why}", device.display()));
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new(program)
        .args(fs.mkfs_arguments())
        .arg(device)
        .env("PATH", format!("{path}:/usr/sbin:/sbin:/usr/local/sbin"))
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(&error.to_string()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// Mounts; the file system's root gets the owner and mode of the directory that it hides.
fn mount(device: &Path, directory: &Path, fs: FileSystem) -> Result {
    let shown = directory.display();
    let failed = |error: std::io::Error| {
        Failure::Failed(format!("mount {} on {shown}: {error}", device.display()))
    };
    let hidden = fs::metadata(directory).map_err(failed)?;
    let options = fs.mount_options();
    let flags = MountFlags::NOATIME;
    rustix::mount::mount(device, directory, fs.name(), flags, options)
        .map_err(|error| failed(error.into()))?;
    let give = || {
        std::os::unix::fs::chown(directory, Some(hidden.uid()), Some(hidden.gid()))?;
        fs::set_permissions(directory, hidden.permissions())
    };
    give().map_err(|error: std::io::Error| {
        let _ = rustix::mount::unmount(directory, rustix::mount::UnmountFlags::empty());
        failed(error)
    })
}

fn welcome(name: &str, device: &Attributes, path: &Path, purpose: &Purpose) -> String {
    let size = human(number(device, "disksize"));
    let pid = device.get("pid").map(plain).unwrap_or_default();
    let what = match purpose {
        Purpose::Swap { priority } => {
            format!("{size} of swap at {}, priority {priority}", path.display())
        }
        Purpose::Mount { directory, fs } => format!(
            "{size} of {} on {}, at {}",
            fs.name(),
            directory.display(),
            path.display()
        ),
    };
    format!(
        "{} is up: {what}, served by process {pid}.\n  uzram stat {name}\n  uzram down {name}\n",
        bold(name)
    )
}

/// The directory that an argument names, if it can be told from a disk's name.
pub fn as_directory(argument: &str) -> Result<Option<PathBuf>> {
    if !argument.contains('/') && argument != "." && argument != ".." {
        return Ok(None);
    }
    let path = absolute("DIR", Path::new(argument))?;
    // Of a file system whose device is gone, the last component may not be looked at.
    Ok(Some(fs::canonicalize(&path).unwrap_or(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_larger_than_half_of_ram_is_limited_to_that() {
        let swap = Purpose::Swap { priority: 1 };
        let half = ram_bytes() / 2;
        assert_eq!(default_limit(&swap, half), None);
        assert_eq!(default_limit(&swap, half + 1), Some(half.to_string()));
        let mount = Purpose::Mount {
            directory: PathBuf::new(),
            fs: FileSystem::Ext4,
        };
        assert_eq!(default_limit(&mount, u64::MAX), None);
    }
}
