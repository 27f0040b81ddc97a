//! `uzram up`: sets a disk up for its purpose in one command.
//!
//! It starts a server in the background, attached as a block device: ublk where the kernel has it,
//! else loop. Then the device becomes swap, or gets a file system and is mounted. If a step fails,
//! the earlier ones are undone. What exists already stays. The kernel's tables tell what exists,
//! so a crash in between is no different from a stop.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use uzram_server::attachment::{Attach, Leftovers, usage};
use uzram_server::control::Attributes;
use uzram_server::options::ValueForm;
use uzram_server::size::{human, parse, ram_bytes};
use uzram_server::state::{Entry, StateDir, check_name, own_uid};
use uzram_server::swap;
use uzram_server::system;

use super::alike::differences;
use super::record::{MountUse, Use, forget, resolved};
use super::{StateAt, absolute, down, file_system, kernel_settings, number, plain, stat};
use crate::args::{FileSystem, UpArgs};
use crate::failure::{Failure, Result};
use crate::output::{bold, print, warn};

/// Name of the disk for swap, unless another one is given. It is always the same, so that `up`
/// finds it.
const SWAP_NAME: &str = "swap0";
/// Above that of swap on disks, which is negative unless somebody sets it.
const SWAP_PRIORITY: u16 = 100;
/// Share of RAM that a disk holds by default, as a divisor.
const RAM_SHARE: u64 = 2;
/// The default size is a multiple of this, in bytes.
const SIZE_GRAIN: u64 = 1 << 20;
/// Names tried for a disk that has none.
const NAMES_MAX: usize = 1024;
/// Longest wait for a server to be ready. Then it is ended.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
const READY_PAUSE: Duration = Duration::from_millis(10);
/// Bytes of a failed server's output that are shown.
const LOG_BYTES_MAX: u64 = 4096;

/// The purpose of the disk.
enum Purpose {
    Swap {
        priority: u16,
    },
    Mount {
        directory: PathBuf,
        fs: FileSystem,
        /// As in fstab(5); those of `up` if there are none.
        options: Option<String>,
    },
}

/// Runs the command.
pub fn run(state: StateAt<'_>, args: &UpArgs) -> Result {
    let purpose = purpose(args)?;
    if let Some(name) = args.device.0.text("name") {
        check_name(name).map_err(|error| Failure::from(error).about("--name"))?;
    }
    let size_bytes = match args.device.0.text("size") {
        Some(text) => {
            Some(parse(text, ram_bytes()).map_err(|error| Failure::from(error).about("--size"))?)
        }
        None => None,
    };
    check_rights()?;
    let state = state.open()?;
    // Two at once would choose the same name, or one would undo what the other has just made.
    let _turn = state.turn()?;
    let name = name(&state, args, &purpose)?;
    if let Some(device) = running(&state, &name)? {
        return already(&state, &name, &device, &purpose, args);
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
    check_makes(&purpose, size_bytes)?;
    let zswap = kernel_settings::zswap_if(args.zswap)?;
    let mut started = Started::new(&state, &name, args, &purpose, size_bytes)?;
    let device = started.wait()?;
    let path = PathBuf::from(device.get("endpoint").map(plain).unwrap_or_default());
    let raised = match purpose {
        Purpose::Swap { .. } if args.survive || !is_ublk(&path) => {
            kernel_settings::raise_watermarks(&state, &name, !is_ublk(&path), args.survive)
        }
        _ => None,
    };
    set_up(&state, &name, &path, number(&device, "disksize"), &purpose)
        .map_err(|failure| with_cause(failure, &state, &name, args))?;
    if matches!(purpose, Purpose::Swap { .. }) {
        say_reserve(size_bytes);
    }
    if let Some(raised) = raised {
        warn(&raised);
    }
    if let (Purpose::Swap { .. }, Some(zswap)) = (&purpose, zswap) {
        let said = kernel_settings::put_zswap_in_front(&state, &name, &zswap, args.zswap)?;
        warn(&said);
    }
    for line in started.log().lines() {
        warn(line.strip_prefix("uzram: ").unwrap_or(line));
    }
    started.keep();
    print(&welcome(&name, &device, &path, &purpose))
}

/// Refuses to begin without the rights for all of it.
pub fn check_rights() -> Result {
    if own_uid() != 0 {
        let text = "up: needs root, for the block device and swapon or mount; try sudo";
        return Err(Failure::Failed(text.into()));
    }
    if system::is_in_user_namespace() == Some(true) {
        let text = "up: this is root of a user namespace only, which may neither swapon nor mount a \
                    block device; be root outside of it, or see uzram serve --attach fuse";
        return Err(Failure::Failed(text.into()));
    }
    Ok(())
}

fn purpose(args: &UpArgs) -> Result<Purpose> {
    match &args.mount {
        None => Ok(Purpose::Swap {
            priority: args.priority.unwrap_or(SWAP_PRIORITY),
        }),
        Some(directory) => Ok(Purpose::Mount {
            directory: resolved(directory).map_err(|error| {
                let shown = directory.display();
                Failure::Failed(format!("--mount {shown}: {error}; create it"))
            })?,
            fs: args.fs.unwrap_or(FileSystem::Ext4),
            options: args.mount_options.clone(),
        }),
    }
}

/// The disk that is there for this purpose, or a name for a new one.
fn name(state: &StateDir, args: &UpArgs, purpose: &Purpose) -> Result<String> {
    let found = match purpose {
        Purpose::Swap { .. } => None,
        Purpose::Mount { directory, .. } => {
            down::belongs_to(state, directory).filter(|name| down::is_known(state, name))
        }
    };
    match (found, args.device.0.text("name"), purpose) {
        (Some(found), Some(wanted), Purpose::Mount { directory, .. }) if found != wanted => {
            let shown = directory.display();
            Err(Failure::Failed(format!(
                "{shown}: {found} is mounted there, and not {wanted}; uzram down {found}"
            )))
        }
        (Some(found), ..) => Ok(found),
        (None, Some(wanted), _) => Ok(wanted.to_owned()),
        (None, None, Purpose::Swap { .. }) => Ok(SWAP_NAME.into()),
        (None, None, Purpose::Mount { .. }) => {
            let mut names = (0..NAMES_MAX).map(|number| format!("uzram{number}"));
            let free = names.find(|name| !down::is_known(state, name));
            free.ok_or_else(|| {
                Failure::Failed(format!("uzram0 to uzram{}: all taken", NAMES_MAX - 1))
            })
        }
    }
}

/// The attributes of `name`, if a server has it and is not just ending.
fn running(state: &StateDir, name: &str) -> Result<Option<Attributes>> {
    let Some(entry) = state.entry(name) else {
        return Ok(None);
    };
    match stat(state, &entry) {
        Err(_) if !state.is_held(&entry) => Ok(None),
        asked => asked.map(Some),
    }
}

/// The disk is up if it serves the purpose. If it did until it was unmounted or swapoff was
/// called, it is used again, with its content. Otherwise it has another purpose.
fn already(
    state: &StateDir,
    name: &str,
    device: &Attributes,
    purpose: &Purpose,
    args: &UpArgs,
) -> Result {
    let path = PathBuf::from(device.get("endpoint").map(plain).unwrap_or_default());
    let shown = path.display();
    let serves = match purpose {
        Purpose::Swap { .. } => usage::is_swap(&path),
        Purpose::Mount { directory, .. } => usage::mounts_of(&path).contains(directory),
    };
    let noted = Use::of(state, name);
    let did = match (&noted, purpose) {
        (Some(Use::Swap), Purpose::Swap { .. }) => true,
        (Some(Use::Mount(mount)), Purpose::Mount { directory, .. }) => {
            mount.directory == *directory
        }
        _ => false,
    };
    if !serves && !did {
        return Err(Failure::Failed(format!(
            "{name}: served already, at {shown}, for something else; choose another --name or uzram down {name}"
        )));
    }
    let differences = differences(args, device, noted.as_ref())?;
    if !differences.is_empty() {
        return Err(Failure::Failed(format!(
            "{name}: up with {}; uzram down {name} before you choose otherwise",
            differences.join(", ")
        )));
    }
    if serves {
        return print(&format!("{name} is up already, at {shown}.\n"));
    }
    match (purpose, noted) {
        (
            Purpose::Mount {
                directory, options, ..
            },
            Some(Use::Mount(noted)),
        ) => {
            check_free(purpose)?;
            file_system::make_directory(directory)?;
            file_system::mount(&path, directory, &noted.fs, options.as_deref())?;
            let directory = directory.display();
            print(&format!(
                "{name} was up, but not mounted: it is on {directory} again, with what it held.\n"
            ))
        }
        (Purpose::Swap { priority }, _) => {
            swap_on(&path, *priority)?;
            print(&format!(
                "{name} was up, but not swapped to: {shown} is swap again.\n"
            ))
        }
        _ => Ok(()),
    }
}

/// Refuses a mount point in use, before anything is set up.
fn check_free(purpose: &Purpose) -> Result {
    let Purpose::Mount { directory, .. } = purpose else {
        return Ok(());
    };
    let shown = directory.display();
    let found = fs::symlink_metadata(directory);
    if found.is_ok_and(|found| !found.is_dir()) {
        return Err(Failure::Failed(format!("--mount {shown}: not a directory")));
    }
    let mounts = usage::mounts();
    match mounts.iter().rev().find(|m| m.directory == *directory) {
        None => Ok(()),
        Some(mount) => {
            let (kind, source) = (&mount.kind, mount.source.display());
            Err(Failure::Failed(format!(
                "--mount {shown}: busy, {kind} of {source} is mounted there; choose another directory"
            )))
        }
    }
}

/// Refuses a file system that cannot be made.
fn check_makes(purpose: &Purpose, size_bytes: u64) -> Result {
    let Purpose::Mount { fs, .. } = purpose else {
        return Ok(());
    };
    let least = fs.size_bytes_min();
    if size_bytes < least {
        return Err(Failure::Failed(format!(
            "--size {size_bytes}: too small for {}, which takes {} at least",
            fs.name(),
            human(least)
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

/// Half of RAM. Pages usually compress to less than half of their size, so a full disk takes a
/// quarter of RAM or less. zram's generators choose the same.
fn default_size() -> u64 {
    let size_bytes = (ram_bytes() / RAM_SHARE).max(SIZE_GRAIN) / SIZE_GRAIN * SIZE_GRAIN;
    warn(&format!(
        "size: {}, half of RAM; full, it takes about a quarter of RAM, as pages usually compress to \
         less than half. --size says otherwise",
        human(size_bytes)
    ));
    size_bytes
}

/// Swap that could grow to take all of RAM would end in a stall. Full swap ends in the kernel's
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

/// A server in the background. Dropping it before [`Started::keep`] ends it.
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
        command.arg("--own-session");
        command.args(["--attach", Attach::block_device().name()]);
        command.args(["--name", name, "--size"]);
        command.arg(size_bytes.to_string());
        for (spec, value) in args.device.0.options()? {
            match (spec.name, spec.value) {
                ("name" | "size", _) => {}
                (flag, ValueForm::Flag) => {
                    command.arg(format!("--{flag}"));
                }
                (option, _) => {
                    command.arg(format!("--{option}={value}"));
                }
            }
        }
        let has_limit = args.device.0.text("mem-limit").is_some();
        let limit = default_limit(purpose, size_bytes).filter(|_| !has_limit);
        if let Some(limit) = limit {
            command.arg(format!("--mem-limit={limit}"));
        }
        if let Purpose::Swap { .. } = purpose {
            command.arg("--for-swap");
        }
        if args.survive {
            command.arg("--survive");
        }
        if let Some(tree) = &args.tree {
            command.arg("--tree").arg(absolute("--tree", tree)?);
        }
        // `/`: it keeps no file system from being unmounted.
        command
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

    /// Waits until it serves, and returns its attributes.
    fn wait(&mut self) -> Result<Attributes> {
        let deadline = Instant::now() + READY_TIMEOUT;
        let name = self.name;
        while Instant::now() < deadline {
            let entry = self.state.entry(name);
            if let Some(entry) = entry.filter(|entry| self.is_of(entry))
                && let Ok(attributes) = stat(self.state, &entry)
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

    /// Whether `entry` is of this server, and not of one that was faster to take the name.
    fn is_of(&self, entry: &Entry) -> bool {
        let (Some(owner), Some(child)) = (&entry.owner, &self.child) else {
            return false;
        };
        owner.is_of(child.id())
    }

    /// Its output.
    fn log(&self) -> String {
        let mut text = String::new();
        if let Ok(log) = uzram::file::open_regular(&self.state.log(self.name)) {
            let _ = log.take(LOG_BYTES_MAX).read_to_string(&mut text);
        }
        text
    }

    /// The reason for its end, without the program's name, which is this program's too.
    fn last_words(&self) -> String {
        match self.log().lines().next_back() {
            Some(line) => line.strip_prefix("uzram: ").unwrap_or(line).to_owned(),
            None => format!("{}: its server ended without a word", self.name),
        }
    }

    /// Keeps the server: everything succeeded.
    fn keep(mut self) {
        self.child = None;
    }
}

impl Drop for Started<'_> {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        down::end(&mut child);
        if self.state.entry(self.name).is_some() {
            // Another server's by now, with all that follows.
            return;
        }
        kernel_settings::restore(self.state, self.name);
        let _ = Leftovers::of(self.state, self.name).remove();
        forget(self.state, self.name);
        let _ = fs::remove_file(self.state.log(self.name));
    }
}

/// Whether nothing has to be allocated on the way to the disk.
fn is_ublk(device: &Path) -> bool {
    device.to_string_lossy().starts_with("/dev/ublkb")
}

/// Tells the reserve: it is more than most expect of an empty disk.
fn say_reserve(size_bytes: u64) {
    warn(&format!(
        "reserve: {} of memory, held ready for bursts of swapping",
        human(swap::spare_bytes(size_bytes))
    ));
}

fn set_up(
    state: &StateDir,
    name: &str,
    device: &Path,
    size_bytes: u64,
    purpose: &Purpose,
) -> Result {
    match purpose {
        Purpose::Swap { priority } => {
            swap::make_area(device, size_bytes)?;
            Use::Swap.note(state, name)?;
            swap_on(device, *priority)
        }
        Purpose::Mount {
            directory,
            fs,
            options,
        } => {
            file_system::make(device, *fs)?;
            let noted = MountUse {
                fs: fs.name().to_owned(),
                made_directory: !directory.exists(),
                directory: directory.clone(),
            };
            Use::Mount(noted).note(state, name)?;
            file_system::make_directory(directory)?;
            file_system::mount(device, directory, fs.name(), options.as_deref())
        }
    }
}

/// `failure` to set up, with the memory limit in front where that made writes fail: programs and the kernel
/// then say anything from "Input/output error" to "Operation not permitted".
fn with_cause(failure: Failure, state: &StateDir, name: &str, args: &UpArgs) -> Failure {
    let device = running(state, name).ok().flatten().unwrap_or_default();
    let has_failed = number(&device, "mem_limit") > 0 && number(&device, "failed_writes") > 0;
    match args.device.0.text("mem-limit") {
        Some(limit) if has_failed => {
            failure.about(format!("--mem-limit {limit}: too small, choose more"))
        }
        _ => failure,
    }
}

fn swap_on(device: &Path, priority: u16) -> Result {
    system::swap_on(device, Some(priority)).map_err(|error| {
        let remedy = match error.kind() {
            std::io::ErrorKind::PermissionDenied => {
                "; it needs CAP_SYS_ADMIN, which containers usually lack"
            }
            _ => "",
        };
        Failure::Failed(format!("swapon {}: {error}{remedy}", device.display()))
    })
}

fn welcome(name: &str, device: &Attributes, path: &Path, purpose: &Purpose) -> String {
    let size = human(number(device, "disksize"));
    let pid = device.get("pid").map(plain).unwrap_or_default();
    let mut turn = String::new();
    let what = match purpose {
        Purpose::Swap { priority } => {
            if let Some(nice) = niceness_of(&pid) {
                turn = format!(" at nice {nice}");
            }
            format!("{size} of swap at {}, priority {priority}", path.display())
        }
        Purpose::Mount { directory, fs, .. } => format!(
            "{size} of {} on {}, at {}",
            fs.name(),
            directory.display(),
            path.display()
        ),
    };
    format!(
        "{} is up: {what}, served by process {pid}{turn}.\n  uzram stat {name}\n  uzram down {name}\n",
        bold(name)
    )
}

/// The nice value of a process.
fn niceness_of(pid: &str) -> Option<i32> {
    let pid = rustix::process::Pid::from_raw(pid.parse().ok()?);
    // Without one it would be our own.
    rustix::process::getpriority_process(Some(pid?)).ok()
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
            options: None,
        };
        assert_eq!(default_limit(&mount, u64::MAX), None);
    }
}
