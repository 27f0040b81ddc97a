//! A fact about this machine: its subject, its state, and the source of both.

/// The subject of a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The kernel's compressed block device.
    Zram,
    /// The kernel's compressed cache in front of swap.
    Zswap,
    /// Swap as such: `CONFIG_SWAP`.
    Swap,
    /// The driver for block devices in user space.
    Ublk,
    /// The kernel's NBD client.
    Nbd,
    /// File systems in user space.
    Fuse,
    /// Loop devices.
    Loop,
    /// Page faults served by a process.
    Userfaultfd,
    /// `UFFDIO_MOVE`, which takes a page out of a mapping without a copy.
    Move,
    /// The memory controller of control groups.
    Cgroup,
    /// Pressure stall information.
    Psi,
}

impl Subject {
    /// Its name in listings and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Subject::Zram => "zram",
            Subject::Zswap => "zswap",
            Subject::Swap => "swap",
            Subject::Ublk => "ublk",
            Subject::Nbd => "nbd",
            Subject::Fuse => "fuse",
            Subject::Loop => "loop",
            Subject::Userfaultfd => "userfaultfd",
            Subject::Move => "move",
            Subject::Cgroup => "cgroup",
            Subject::Psi => "psi",
        }
    }
}

/// The state of a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It can be used now.
    Yes,
    /// The kernel has it, but it is not active: a module that is not loaded, or a setting.
    Off,
    /// The kernel has it, and this process may not use it.
    Refused,
    /// The kernel does not have it.
    No,
    /// It cannot be told from here.
    Unknown,
}

impl State {
    /// Its name in listings and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            State::Yes => "yes",
            State::Off => "off",
            State::Refused => "refused",
            State::No => "no",
            State::Unknown => "unknown",
        }
    }
}

/// One fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Its subject.
    pub subject: Subject,
    /// Its state.
    pub state: State,
    /// The reason, and the remedy if there is one, in a few words.
    pub detail: String,
    /// The file or the system call that says so.
    pub source: &'static str,
}

/// The state of `subject` among `facts`; unknown if none is about it.
pub(super) fn state_of(facts: &[Fact], subject: Subject) -> State {
    let found = facts.iter().find(|fact| fact.subject == subject);
    found.map_or(State::Unknown, |fact| fact.state)
}
