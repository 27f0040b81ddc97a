//! The command that is best on a machine, from its facts alone. A command is named only where all
//! that it needs is known to be there.

use super::fact::{Fact, State, Subject, state_of};
use super::machine::Rights;

/// Share of RAM that swap on the kernel's zram holds, as a divisor; `uzram up --swap` takes the same.
const RAM_SHARE: u64 = 2;
/// Prices are of the machine that docs/figures.md describes, one request at a time.
const FUSE_AND_LOOP: &str = "over FUSE and loop a page touched at random costs five to seven times as much \
                             as with the kernel's zram, and a machine that is short of memory as a whole can \
                             stall: limit the programs that swap with a memory cgroup";

/// The best command here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// The result of the command.
    pub goal: &'static str,
    /// The line to type; `None` if nothing needs to be done.
    pub command: Option<String>,
    /// The reason for this one.
    pub reason: &'static str,
    /// Its cost to those who use the result.
    pub price: String,
}

/// The part of the decision that is not in the facts.
pub(super) struct Setting {
    pub rights: Rights,
    pub ram_bytes: u64,
    /// Whether programs swap to the kernel's zram already.
    pub has_zram_swap: bool,
}

/// The best command for a machine with these facts.
pub(super) fn advise(facts: &[Fact], setting: &Setting) -> Advice {
    let is = |subject, state| state_of(facts, subject) == state;
    if setting.has_zram_swap {
        return nothing();
    }
    let way = BlockDevice::of(facts).filter(|_| setting.rights.may_set_up());
    let has_swap = is(Subject::Swap, State::Yes);
    let has_zram = is(Subject::Zram, State::Yes) || is(Subject::Zram, State::Off);
    if has_swap && has_zram && setting.rights.may_set_up() {
        return kernel_zram(is(Subject::Zram, State::Off), setting.ram_bytes);
    }
    match way {
        Some(way) if has_swap => swap(way, state_of(facts, Subject::Zswap)),
        Some(way) if is(Subject::Swap, State::No) => file_system(way),
        _ if is(Subject::Fuse, State::Yes) => file(),
        _ => socket(),
    }
}

/// A way to a block device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BlockDevice {
    Ublk,
    /// As a module that must be loaded first.
    UblkModule,
    FuseAndLoop,
}

impl BlockDevice {
    fn of(facts: &[Fact]) -> Option<BlockDevice> {
        let is = |subject| state_of(facts, subject);
        match (is(Subject::Ublk), is(Subject::Fuse), is(Subject::Loop)) {
            (State::Yes, ..) => Some(BlockDevice::Ublk),
            (State::Off, ..) => Some(BlockDevice::UblkModule),
            (_, State::Yes, State::Yes) => Some(BlockDevice::FuseAndLoop),
            _ => None,
        }
    }

    /// `command` behind what it needs.
    fn before(self, command: &str) -> String {
        match self {
            BlockDevice::UblkModule => format!("modprobe ublk_drv && {command}"),
            BlockDevice::Ublk | BlockDevice::FuseAndLoop => command.to_owned(),
        }
    }
}

fn nothing() -> Advice {
    Advice {
        goal: "compressed swap",
        command: None,
        reason: "programs swap to the kernel's zram already, and nothing is faster",
        price: "none".into(),
    }
}

fn kernel_zram(is_module: bool, ram_bytes: u64) -> Advice {
    let load = if is_module { "modprobe zram && " } else { "" };
    let mib = (ram_bytes / RAM_SHARE) >> 20;
    Advice {
        goal: "compressed swap",
        command: Some(format!(
            "{load}d=$(zramctl -f -s {mib}M -a lz4) && mkswap $d && swapon -p 100 $d"
        )),
        reason: "the kernel's own zram is the fastest swap there is; uzram is not needed for it",
        price: "the least: no process stands between".into(),
    }
}

fn swap(way: BlockDevice, zswap: State) -> Advice {
    let command = match zswap {
        State::Off => "uzram up --swap --zswap",
        _ => "uzram up --swap",
    };
    let reason = match way {
        BlockDevice::Ublk | BlockDevice::UblkModule => {
            "zram is not to be had; ublk is the fastest block device of a process"
        }
        BlockDevice::FuseAndLoop => {
            "neither zram nor ublk is to be had; a loop device over FUSE is the block device that is left"
        }
    };
    let beyond = match way {
        BlockDevice::Ublk | BlockDevice::UblkModule => {
            "over ublk each page that is touched again passes one process (not measured)"
        }
        BlockDevice::FuseAndLoop => FUSE_AND_LOOP,
    };
    let price = match zswap {
        State::Off | State::Yes => {
            format!("pages that zswap holds are at the kernel's speed; for the rest, {beyond}")
        }
        _ => beyond.to_owned(),
    };
    Advice {
        goal: "compressed swap",
        command: Some(way.before(command)),
        reason,
        price,
    }
}

fn file_system(way: BlockDevice) -> Advice {
    let price = match way {
        BlockDevice::Ublk | BlockDevice::UblkModule => {
            "a request passes one process (not measured)"
        }
        BlockDevice::FuseAndLoop => {
            "a request of 4 KiB takes some 40 us, and the kernel caches files"
        }
    };
    Advice {
        goal: "a compressed file system in memory",
        command: Some(way.before("uzram up --size 50% --mount /mnt/uzram")),
        reason: "this kernel has no swap, so only files can be kept compressed, not the memory of programs",
        price: price.into(),
    }
}

fn file() -> Advice {
    Advice {
        goal: "a compressed disk as a file",
        command: Some("uzram serve --size 1G --attach fuse".into()),
        reason: "a block device or swap cannot be set up here, a FUSE file can",
        price: "a request of 4 KiB takes some 20 us".into(),
    }
}

fn socket() -> Advice {
    Advice {
        goal: "a compressed disk on a socket (NBD)",
        command: Some("uzram serve --size 1G".into()),
        reason: "it needs nothing of the kernel, and nothing else is known to work here",
        price: "only programs that speak NBD use it, as qemu and nbdcopy; a request of 4 KiB takes 30 to 40 us"
            .into(),
    }
}
