//! What a server gives up once it holds what it needs: paths, capabilities, privileges to gain, and
//! being looked into.
//!
//! All of this belongs to a thread and goes to the threads that it starts, so it is done before there
//! are any. Each step that the system does not offer is left out and said; the others hold. There is
//! no filter of system calls: which ones an allocator, a runtime and eight codecs make depends on the
//! C library and the kernel, and a wrong guess kills a server with data in it. The systemd unit has
//! one, made of systemd's own groups, where a distribution can test it.

use std::path::PathBuf;
use std::sync::OnceLock;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, PathBeneath, PathFd,
    RestrictionStatus, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus,
    Scope,
};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, set_capabilities, set_no_new_privs,
};

use crate::swap;

/// The newest kernel interface that this was tested against; older kernels do what they can.
const LANDLOCK_ABI: ABI = ABI::V7;
/// Where the number of CPUs is read, which a codec that comes later asks for.
const CPU_DIRECTORY: &str = "/sys/devices/system/cpu";

/// What [`enter`] did, in words; unset while this process has no sandbox.
static ENTERED: OnceLock<String> = OnceLock::new();

/// Directories that a server needs after its set-up.
#[derive(Debug, Default)]
pub(crate) struct Needs {
    /// Where it makes and removes sockets and state files.
    pub changed: Vec<PathBuf>,
    /// Where it reads files: configuration.
    pub read: Vec<PathBuf>,
}

/// Gives up everything but `needs`, for this thread and those that it will start. For ever.
pub(crate) fn enter(needs: &Needs) {
    let mut kept = Vec::new();
    let mut failed = Vec::new();
    let mut note = |what: &str, outcome: Result<(), String>| match outcome {
        Ok(()) => kept.push(what.to_owned()),
        Err(why) => failed.push(format!("{what}: {why}")),
    };
    // Order: landlock needs no new privileges, and dropping the bounding set needs a capability.
    note(
        "no new privileges",
        set_no_new_privs(true).map_err(|e| e.to_string()),
    );
    let (right, what) = match swap::is_process_prepared() {
        // A device's memory, and a thread's stack, that comes later must be locked, beyond any limit.
        true => (CapabilitySet::IPC_LOCK, "no capabilities but IPC_LOCK"),
        false => (CapabilitySet::empty(), "no capabilities"),
    };
    note(what, drop_capabilities(right).map_err(|e| e.to_string()));
    note(
        "not dumpable",
        set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|e| e.to_string()),
    );
    match restrict_paths(needs) {
        Ok(status) => match paths_status(&status) {
            Ok(done) => kept.insert(0, done),
            Err(why) => failed.push(why),
        },
        Err(error) => failed.push(format!("landlock: {error}")),
    }
    for failure in &failed {
        log::warn!("sandbox: left out: {failure}");
    }
    let _ = ENTERED.set(kept.join(", "));
}

/// What this process has given up, in words: `off` if nothing.
#[must_use]
pub fn description() -> &'static str {
    ENTERED.get().map_or("off", |text| text.as_str())
}

/// Whether the sandbox, and not only the system, may have refused a path.
pub(crate) fn is_on() -> bool {
    ENTERED.get().is_some()
}

/// Gives up all but `kept`.
fn drop_capabilities(kept: CapabilitySet) -> rustix::io::Result<()> {
    for capability in CapabilitySet::all().iter() {
        // Refused without CAP_SETPCAP; then no exec could gain any, as there are no new privileges.
        let _ = rustix::thread::remove_capability_from_bounding_set(capability);
    }
    clear_ambient_capability_set()?;
    let permitted = rustix::thread::capabilities(None)?.permitted & kept;
    let rest = CapabilitySets {
        effective: permitted,
        permitted,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, rest)
}

fn restrict_paths(needs: &Needs) -> Result<RestrictionStatus, RulesetError> {
    let change = AccessFs::ReadFile
        | AccessFs::ReadDir
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::MakeReg
        | AccessFs::MakeSock
        | AccessFs::RemoveFile;
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(LANDLOCK_ABI))?
        // A server never calls out. It may listen at a further address: `add --listen`.
        .handle_access(AccessNet::ConnectTcp)?
        .scope(Scope::AbstractUnixSocket | Scope::Signal)?
        .create()?;
    let cpus = [PathBuf::from(CPU_DIRECTORY)];
    ruleset
        .add_rules(beneath(&needs.changed, change))?
        .add_rules(beneath(&needs.read, read))?
        .add_rules(beneath(&cpus, read))?
        .restrict_self()
}

/// A rule for each of `paths` that exists: an initramfs has no /sys.
fn beneath(
    paths: &[PathBuf],
    access: BitFlags<AccessFs>,
) -> impl Iterator<Item = Result<PathBeneath<PathFd>, RulesetError>> {
    let open = move |path: &PathBuf| Some(Ok(PathBeneath::new(PathFd::new(path).ok()?, access)));
    paths.iter().filter_map(open)
}

fn paths_status(status: &RestrictionStatus) -> Result<String, String> {
    let abi = match status.landlock {
        LandlockStatus::Available { effective_abi, .. } => effective_abi as i32,
        LandlockStatus::NotEnabled => return Err("landlock: not enabled in this kernel".into()),
        LandlockStatus::NotImplemented => return Err("landlock: not in this kernel".into()),
    };
    match status.ruleset {
        RulesetStatus::FullyEnforced => Ok(format!("landlock {abi}")),
        RulesetStatus::PartiallyEnforced => Ok(format!("landlock {abi} (in part)")),
        RulesetStatus::NotEnforced => Err("landlock: not enforced by this kernel".into()),
    }
}
