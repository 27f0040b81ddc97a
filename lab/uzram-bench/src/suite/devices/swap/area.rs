//! Swap areas: set up as their users would, and taken down again, for each turn anew.
//!
//! Ours is `uzram up --swap` and `uzram down`, in a process group of their own: Ctrl-C ends the
//! program that swaps, and then the swap is taken down in order.

use std::any::Any;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::command;
use crate::error::{Error, Result};
use crate::folder::{DISKS, Folder, run};
use crate::peers::Peer;
use crate::peers::kernel_zram;
use crate::side::Side;
use crate::suite::SUBJECT;
use crate::suite::devices::sides::{self, Device, Undo};

const NAME: &str = DISKS[1];
/// The highest that there is.
const PRIORITY: &str = "32767";
/// The nice value of a server that somebody started from a build.
const NICE: &str = "19";

/// A kind of swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Uzram { zswap: bool, is_niced: bool },
    TmpfsLoop,
    KernelZram,
}

/// Swap in use; dropping it takes it down.
pub(crate) type Area = Box<dyn Any>;

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
    pub(crate) fn on(self, algorithm: &str, bytes: u64) -> Result<Area> {
        match self {
            Kind::Uzram { zswap, is_niced } => {
                Ok(Box::new(Up::new(algorithm, bytes, zswap, is_niced)?))
            }
            // As ours, its pages go when they are not needed.
            Kind::TmpfsLoop => swap_on(sides::tmpfs(bytes)?, &["--discard=pages"]),
            Kind::KernelZram => {
                let open = kernel_zram::Device::let_others_open;
                swap_on(sides::kernel_zram(algorithm, bytes, open)?, &[])
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
            Ok(()) => {}
            Err(error) => {
                self.0.stay();
                let folder = self.0.path().display();
                eprintln!(
                    "uzram-bench: left behind: {error}; XDG_RUNTIME_DIR={folder} uzram down {NAME}"
                );
            }
        }
    }
}

/// Swaps to a device.
fn swap_on(mut sides: Vec<Side<Device>>, how: &[&str]) -> Result<Area> {
    let device = sides.remove(0).driven;
    run(Command::new("mkswap")
        .args(["--label", kernel_zram::SWAP_LABEL])
        .arg(&device.path))?;
    let mut on = Command::new("swapon");
    run(on
        .args(["--priority", PRIORITY])
        .args(how)
        .arg(&device.path))?;
    let off = Undo::new("swapoff", &[], &device.path);
    // In this order.
    Ok(Box::new((off, device)))
}

/// The swap area that the machine already uses, if any.
pub(super) fn other_swap() -> Option<String> {
    let table = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let line = table.lines().nth(1)?;
    line.split_whitespace().next().map(str::to_owned)
}
