//! The sandbox: a server that holds what it needs gives up paths, capabilities, the gaining of privileges,
//! and being inspected by others.
//!
//! All of this belongs to a thread and goes to the threads that it starts, so it is done before there
//! are any. Each step that the system does not offer is left out and said; the others hold.

mod calls;

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

use crate::{swap, system};
use calls::Others;

/// The newest kernel interface that this was tested against; older kernels do what they can.
const LANDLOCK_ABI: ABI = ABI::V7;
/// Where the number of CPUs is read, which a codec that comes later asks for.
const CPU_DIRECTORY: &str = "/sys/devices/system/cpu";
/// Where memory cgroups are, at whose files a server looks before it grows.
const CGROUP_DIRECTORY: &str = "/sys/fs/cgroup";

/// The result of [`enter`], in words; unset while this process has no sandbox.
static ENTERED: OnceLock<String> = OnceLock::new();

/// Directories that a server needs after its set-up.
#[derive(Debug, Default)]
pub(crate) struct Needs {
    /// Its own directory, for state files and sockets that it makes, writes and removes.
    pub own: Vec<PathBuf>,
    /// Other directories, where it makes and removes sockets and neither reads nor writes a file.
    pub sockets: Vec<PathBuf>,
    /// Directories of files that it reads: configuration.
    pub read: Vec<PathBuf>,
    /// Directories of files and block devices that somebody may name later, and that it reads and writes.
    pub files: Vec<PathBuf>,
}

/// How much a server gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    Off,
    /// All that is not needed, but for system calls: those that are not needed are carried out, and
    /// the kernel logs them.
    LogCalls,
    /// All that is not needed.
    On,
}

/// Gives up everything but `needs`, for this thread and those that it will start, for ever, as far as
/// `mode` says.
pub(crate) fn enter(needs: &Needs, mode: Mode) {
    let others = match mode {
        Mode::Off => return,
        Mode::LogCalls => Others::Logged,
        Mode::On => Others::Refused,
    };
    let mut kept = Vec::new();
    let mut failed = Vec::new();
    let mut note = |what: &str, outcome: Result<(), String>| match outcome {
        Ok(()) => kept.push(what.to_owned()),
        Err(why) => failed.push(format!("{what}: {why}")),
    };
    // Found now, as /proc is out of reach later; what their files say is not.
    let _ = uzram::cgroup_limit();
    // This finds the vDSO. Later nothing says where it is, and each look would be a system call.
    let _ = rustix::thread::sched_getcpu();
    // Order: landlock needs no new privileges, and dropping the bounding set needs a capability.
    note(
        "no_new_privs",
        set_no_new_privs(true).map_err(|e| e.to_string()),
    );
    let (right, what) = match swap::is_process_prepared() {
        // A device's memory, and a thread's stack, that comes later must be locked, beyond any limit.
        true => (CapabilitySet::IPC_LOCK, "no capabilities but IPC_LOCK"),
        false => (CapabilitySet::empty(), "no capabilities"),
    };
    note(what, drop_capabilities(right).map_err(|e| e.to_string()));
    note(
        "no dumps",
        set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|e| e.to_string()),
    );
    match restrict_paths(needs) {
        Ok(status) => match paths_status(&status) {
            Ok(done) => kept.insert(0, done),
            Err(why) => failed.push(why),
        },
        Err(error) => failed.push(format!("landlock: {error}")),
    }
    // Last: the steps before make calls that it refuses.
    match filter_calls(others, !needs.files.is_empty()) {
        Ok(done) => kept.insert(0, done.to_owned()),
        Err(why) => failed.push(why),
    }
    for failure in &failed {
        log::warn!("sandbox: left out: {failure}");
    }
    let _ = ENTERED.set(kept.join(", "));
}

/// The privileges that this process has given up, in words: `off` if none.
#[must_use]
pub fn description() -> &'static str {
    ENTERED.get().map_or("off", |text| text.as_str())
}

/// Whether the sandbox, and not only the system, may have refused a path.
pub(crate) fn is_on() -> bool {
    ENTERED.get().is_some()
}

/// Lets the kernel refuse or log the system calls that serving does not make; the result in words. With
/// `opens_named` files are opened that somebody names.
fn filter_calls(others: Others, opens_named: bool) -> Result<&'static str, String> {
    for filter in calls::filters(others, opens_named).map_err(|why| format!("seccomp: {why}"))? {
        let filter = filter.iter().map(|line| libc::sock_filter {
            code: line.code,
            jt: line.jt,
            jf: line.jf,
            k: line.k,
        });
        let filter: Vec<_> = filter.collect();
        let done = system::filter_calls(&filter);
        done.map_err(|error| format!("seccomp: not in this kernel, or refused: {error}"))?;
    }
    Ok(match others {
        Others::Refused => "seccomp",
        Others::Logged => "seccomp (logs only)",
    })
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
    // Whoever makes a socket locks its directory, which takes reading it.
    let socket = AccessFs::ReadDir | AccessFs::MakeSock | AccessFs::RemoveFile;
    let change =
        socket | AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::MakeReg;
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let named = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate;
    let ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(LANDLOCK_ABI))?
        // A server never calls out. It may listen at a further address: `add --listen`.
        .handle_access(AccessNet::ConnectTcp)?
        .scope(Scope::AbstractUnixSocket | Scope::Signal)?
        .create()?;
    let system = [CPU_DIRECTORY, CGROUP_DIRECTORY].map(PathBuf::from);
    ruleset
        .add_rules(beneath(&needs.own, change))?
        .add_rules(beneath(&needs.sockets, socket))?
        .add_rules(beneath(&needs.read, read))?
        .add_rules(beneath(&needs.files, named))?
        .add_rules(beneath(&system, read))?
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::ErrorKind::PermissionDenied;
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::Path;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// A sandbox belongs to a thread, so a test needs no process of its own.
    #[test]
    fn in_directories_of_others_sockets_are_all_that_is_made() {
        let [own, sockets, read, files] = [(); 4].map(|()| tempfile::tempdir().unwrap());
        for dir in [&own, &sockets, &read, &files] {
            fs::write(dir.path().join("file"), "content").unwrap();
        }
        let needs = Needs {
            own: vec![own.path().to_owned()],
            sockets: vec![sockets.path().to_owned()],
            read: vec![read.path().to_owned()],
            files: vec![files.path().to_owned()],
        };
        let inside = move || {
            let status = restrict_paths(&needs).unwrap();
            if let Err(why) = paths_status(&status) {
                return eprintln!("left out: {why}");
            }
            let refused = |outcome: std::io::Result<()>, what: &str| {
                let kind = outcome.expect_err(what).kind();
                assert_eq!(kind, PermissionDenied, "{what}");
            };
            let read_file = |dir: &Path| fs::read(dir.join("file")).map(drop);
            let write_file = |dir: &Path| fs::write(dir.join("file"), "other");
            let make_file = |dir: &Path| fs::write(dir.join("new"), "x");
            let make_socket = |dir: &Path| UnixListener::bind(dir.join("socket")).map(drop);
            let remove = |dir: &Path, name: &str| fs::remove_file(dir.join(name));
            let dir = own.path();
            for done in [
                read_file(dir),
                write_file(dir),
                make_file(dir),
                make_socket(dir),
            ] {
                done.unwrap();
            }
            remove(dir, "new").unwrap();
            let dir = sockets.path();
            make_socket(dir).unwrap();
            fs::read_dir(dir).unwrap();
            remove(dir, "socket").unwrap();
            refused(read_file(dir), "reads a file beside a socket");
            refused(write_file(dir), "writes a file beside a socket");
            refused(make_file(dir), "makes a file beside a socket");
            let made = fs::create_dir(dir.join("d"));
            refused(made, "makes a directory beside a socket");
            let linked = std::os::unix::fs::symlink("/", dir.join("l"));
            refused(linked, "makes a link beside a socket");
            let dir = read.path();
            read_file(dir).unwrap();
            refused(write_file(dir), "writes where it reads");
            refused(make_socket(dir), "makes a socket where it reads");
            refused(remove(dir, "file"), "removes where it reads");
            let dir = files.path();
            read_file(dir).unwrap();
            write_file(dir).unwrap();
            refused(make_file(dir), "makes a file where some are named");
            refused(make_socket(dir), "makes a socket where files are named");
            refused(remove(dir, "file"), "removes a file that is named");
            refused(fs::read("/etc/passwd").map(drop), "reads anything");
        };
        std::thread::spawn(inside).join().unwrap();
    }

    /// Prints the CPU time that the filter adds to a call. It belongs to a thread, so one thread with and one
    /// without take turns.
    #[test]
    #[ignore = "a measurement, quoted in docs/design/server.md"]
    fn cost_of_the_filter() {
        const PAIRS: usize = 1001;
        let bare = measurer(false);
        let filtered = measurer(true);
        let mut added = [const { Vec::new() }; CALLS.len()];
        for _ in 0..PAIRS {
            for (call, added) in added.iter_mut().enumerate() {
                let times = [&bare, &filtered].map(|(ask, answer)| {
                    ask.send(call).unwrap();
                    answer.recv().unwrap()
                });
                added.push((times[1] - times[0], times[0]));
            }
        }
        for ((name, _), mut added) in CALLS.iter().zip(added) {
            added.sort_by(|a, b| a.0.total_cmp(&b.0));
            let [low, middle, high] = [PAIRS / 4, PAIRS / 2, PAIRS * 3 / 4].map(|at| added[at].0);
            let bare = added[PAIRS / 2].1;
            println!("{name}: {middle:.0} ns more ({low:.0} to {high:.0}) than {bare:.0} ns");
        }
    }

    type Call = fn(&mut [UnixStream; 2]);

    /// The calls of an NBD request: the kernel knows that the first is always allowed, and the filter looks at
    /// the arguments of the others.
    const CALLS: [(&str, Call); 3] = [
        ("recvfrom", |sockets| {
            let _ = sockets[0].read(&mut [0]);
        }),
        ("sendto", |sockets| {
            let _ = sockets[1].write(&[]);
        }),
        ("ioctl", |sockets| {
            let _ = rustix::io::ioctl_fionread(&sockets[0]);
        }),
    ];

    /// A thread that takes the number of a call and gives the nanoseconds that it takes.
    fn measurer(is_filtered: bool) -> (Sender<usize>, Receiver<f64>) {
        const ROUNDS: u32 = 1000;
        let (ask, asked) = channel();
        let (answer, answers) = channel();
        std::thread::spawn(move || {
            let (one, other) = UnixStream::pair().unwrap();
            one.set_nonblocking(true).unwrap();
            let mut sockets = [one, other];
            if is_filtered {
                set_no_new_privs(true).unwrap();
                filter_calls(Others::Refused, false).unwrap();
            }
            for call in asked {
                let call: usize = call;
                let start = cpu_time_ns();
                (0..ROUNDS).for_each(|_| CALLS[call].1(&mut sockets));
                let time = cpu_time_ns() - start;
                answer.send(time / f64::from(ROUNDS)).unwrap();
            }
        });
        (ask, answers)
    }

    /// Of this thread: what else runs here does not count.
    fn cpu_time_ns() -> f64 {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
    }
}
