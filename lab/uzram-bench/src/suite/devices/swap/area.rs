//! Swap areas: set up as their users would, and taken down again, for each turn anew.
//!
//! Ours is `uzram up --swap` and `uzram down`, in a process group of their own: Ctrl-C ends the
//! program that swaps, and then the swap is taken down in order.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::command;
use crate::error::{Error, Result};
use crate::peers::Peer;
use crate::side::Side;
use crate::suite::SUBJECT;
use crate::suite::devices::sides::{self, Device, Folder, take_down};

const NAME: &str = "bench-swap";
/// The highest that there is.
const PRIORITY: &str = "32767";
/// The nice value of a server that somebody started from a build.
const NICE: &str = "19";

/// A kind of swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Uzram { zswap: bool, is_niced: bool },
    TmpfsLoop,
    KernelZram,
}

/// Swap in use; dropping it takes it down.
#[derive(Debug)]
pub(super) enum Area {
    Uzram(#[expect(dead_code, reason = "held for its destructor")] Up),
    Device(#[expect(dead_code, reason = "held for its destructor")] SwapOn),
}

impl Kind {
    pub(super) fn variant(self, algorithm: &str) -> String {
        match self {
            Kind::Uzram { zswap: false, .. } => format!("{SUBJECT}-{algorithm}"),
            Kind::Uzram { zswap: true, .. } => format!("{SUBJECT}-{algorithm}-zswap"),
            Kind::TmpfsLoop => Peer::TmpfsLoop.name().to_owned(),
            Kind::KernelZram => Peer::KernelZram.name().to_owned(),
        }
    }

    /// A note for the reader of its figures, made while it is in use.
    pub(super) fn note(self, variant: &str) -> Option<String> {
        let Kind::Uzram { zswap: true, .. } = self else {
            return None;
        };
        let codec = fs::read_to_string("/sys/module/zswap/parameters/compressor").ok()?;
        let codec = codec.trim();
        Some(format!("{variant}: zswap in front compresses with {codec}"))
    }

    /// Starts swapping to a new one of this size.
    ///
    /// # Errors
    /// The thing that is missing for it.
    pub(super) fn on(self, algorithm: &str, bytes: u64) -> Result<Area> {
        match self {
            Kind::Uzram { zswap, is_niced } => {
                Up::new(algorithm, bytes, zswap, is_niced).map(Area::Uzram)
            }
            // As ours, its pages go when they are not needed.
            Kind::TmpfsLoop => {
                SwapOn::over(sides::tmpfs(bytes)?, &["--discard=pages"]).map(Area::Device)
            }
            Kind::KernelZram => {
                SwapOn::over(sides::kernel_zram_to_open(algorithm, bytes)?, &[]).map(Area::Device)
            }
        }
    }
}

/// A disk of ours that is swapped to.
#[derive(Debug)]
pub(super) struct Up(Folder);

impl Up {
    fn new(algorithm: &str, bytes: u64, zswap: bool, is_niced: bool) -> Result<Up> {
        // From here on there may be something to take down.
        let up = Up(Folder::new()?);
        let uzram = command::beside(SUBJECT);
        let mut command = match is_niced {
            true => {
                let mut command = Command::new("nice");
                command.args(["-n", NICE]).arg(uzram);
                command
            }
            false => Command::new(uzram),
        };
        command.args(["up", "--swap", "--name", NAME, "--priority", PRIORITY]);
        command.args(["--algorithm", algorithm, "--size"]);
        command.arg(bytes.to_string());
        command.args(zswap.then_some("--zswap"));
        up.finish(command)?;
        Ok(up)
    }

    fn finish(&self, mut command: Command) -> Result<()> {
        // Its state in a folder of its own: no other server's name is in the way.
        command.env("XDG_RUNTIME_DIR", self.0.path());
        command.process_group(0).stdin(Stdio::null());
        let output = command.output();
        let output = output.map_err(|error| Error::io(SUBJECT, error))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().next_back().unwrap_or_default();
        Err(Error::Failed(last.to_owned()))
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let mut command = Command::new(command::beside(SUBJECT));
        command.args(["down", NAME]);
        match self.finish(command) {
            Ok(()) => self.0.empty(),
            Err(error) => {
                let folder = self.0.path().display();
                eprintln!(
                    "uzram-bench: left behind: {error}; XDG_RUNTIME_DIR={folder} uzram down {NAME}"
                );
            }
        }
    }
}

/// A device that is swapped to.
#[derive(Debug)]
pub(super) struct SwapOn {
    device: PathBuf,
    /// Goes after swapoff.
    _driven: Device,
}

impl SwapOn {
    fn over(mut sides: Vec<Side<Device>>, how: &[&str]) -> Result<SwapOn> {
        let driven = sides.remove(0).driven;
        let device = driven.path.clone();
        sides::run("mkswap", &[device.as_ref()])?;
        let mut arguments = vec![OsStr::new("--priority"), OsStr::new(PRIORITY)];
        arguments.extend(how.iter().map(OsStr::new));
        arguments.push(device.as_ref());
        sides::run("swapon", &arguments)?;
        Ok(SwapOn {
            device,
            _driven: driven,
        })
    }
}

impl Drop for SwapOn {
    fn drop(&mut self) {
        take_down("swapoff", &[self.device.as_ref()]);
    }
}

/// The swap area that the machine already uses, if any.
pub(super) fn other_swap() -> Option<String> {
    let table = fs::read_to_string(Path::new("/proc/swaps")).unwrap_or_default();
    let line = table.lines().nth(1)?;
    line.split_whitespace().next().map(str::to_owned)
}
