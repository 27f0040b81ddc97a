//! The system calls that a server makes once it serves. The filter refuses all others.
//!
//! A filter sees numbers, not what they point to: flags, commands and lengths, but no path and no
//! address. So no call is allowed that does something by a path which Landlock does not check: no stat,
//! chmod, utime, xattr, chdir, connect. What serving looks at, it opens first.
//!
//! A refused call fails with EPERM. It does not end the server: a call that is missing here must not
//! cost anybody the content of a disk. A call of the 32-bit interface does end it, as no code of this
//! process makes any.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::SeccompCmpArgLen::{Dword, Qword};
use seccompiler::SeccompCmpOp::{Eq, MaskedEq};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

/// The fate of a call that is not on the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Others {
    Refused,
    /// The kernel carries it out and logs it.
    Logged,
}

/// The calls that are allowed with any arguments.
const ALLOWED: &[c_long] = &[
    // Memory.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_memfd_create,
    libc::SYS_mlockall,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // Files that are open.
    libc::SYS_close,
    libc::SYS_fallocate,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_ftruncate,
    libc::SYS_getdents64,
    libc::SYS_lseek,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    // The rings that were made before, each of which takes writes to one file only. Another cannot be made.
    libc::SYS_io_uring_enter,
    // Names, which Landlock checks; `openat` is below.
    libc::SYS_bind,
    libc::SYS_getcwd,
    libc::SYS_unlinkat,
    // Sockets; `socket`, `sendto` and others are below.
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_listen,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_shutdown,
    // Waiting, and clocks where the vDSO does not tell them.
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    libc::SYS_futex,
    libc::SYS_gettimeofday,
    libc::SYS_nanosleep,
    libc::SYS_ppoll,
    libc::SYS_restart_syscall,
    libc::SYS_sched_yield,
    // Threads and signals of this process; `clone` and `tgkill` are below.
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    // It never comes so far: see `clone3_is_missing`.
    libc::SYS_clone3,
    // What this process is, and what the machine has.
    libc::SYS_capget,
    libc::SYS_getcpu,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpid,
    libc::SYS_getpriority,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_sched_getaffinity,
    libc::SYS_sysinfo,
];

/// The older forms of calls above. Other machines never had them.
#[cfg(target_arch = "x86_64")]
const ALLOWED_OLD: &[c_long] = &[
    libc::SYS_epoll_wait,
    libc::SYS_poll,
    libc::SYS_time,
    libc::SYS_unlink,
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_OLD: &[c_long] = &[];

/// Flags of a new thread, and of nothing else: a process, a namespace.
const THREAD_FLAGS: i32 =
    libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
const NOT_THREAD_FLAGS: i32 = libc::CLONE_VFORK
    | libc::CLONE_PTRACE
    | libc::CLONE_PIDFD
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// From linux/prctl.h: names memory for people, as newer C libraries do.
const PR_SET_VMA: i32 = 0x5356_4d41;
/// The mode of all that a server makes.
const PRIVATE_MODE: u64 = 0o600;
/// The bits of `socket`'s type that are the type.
const SOCKET_TYPE_MASK: u64 = 0xf;

/// Commands of `fcntl`: none that has signals sent to other processes (`F_SETOWN`). Seals are of files of memory.
const FCNTL: [i32; 6] = [
    libc::F_ADD_SEALS,
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
];
/// Commands of `ioctl`: waiting or not, bytes that have come, whether a file is a terminal.
const IOCTL: [libc::Ioctl; 4] = [
    libc::FIONBIO,
    libc::FIONREAD,
    libc::TCGETS,
    libc::TIOCGWINSZ,
];
/// Two timeouts in the wider form, which some libraries ask for first and which libc's names leave out.
const SO_RCVTIMEO_NEW: i32 = 66;
const SO_SNDTIMEO_NEW: i32 = 67;
const SOCKET_OPTIONS: [(i32, i32); 11] = [
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_RCVTIMEO),
    (libc::SOL_SOCKET, libc::SO_SNDTIMEO),
    (libc::SOL_SOCKET, SO_RCVTIMEO_NEW),
    (libc::SOL_SOCKET, SO_SNDTIMEO_NEW),
    (libc::SOL_SOCKET, libc::SO_LINGER),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
];

/// The filters, in the order in which they must be installed. With `opens_named` a path may be opened by the rules
/// of `openat2`, which keep it below a directory.
///
/// # Errors
/// The reason why there are none, such as a processor that the compiler does not know.
pub(super) fn filters(others: Others, opens_named: bool) -> Result<Vec<BpfProgram>, String> {
    let action = match others {
        Others::Refused => SeccompAction::Errno(libc::EPERM.cast_unsigned()),
        Others::Logged => SeccompAction::Log,
    };
    let mut allowed = rules().map_err(|error| error.to_string())?;
    if opens_named {
        // Its flags are in memory: Landlock alone keeps it from content elsewhere, and nothing from telling
        // whether a path is there.
        allowed.insert(libc::SYS_openat2, Vec::new());
    }
    let compiled = clone3_is_missing().and_then(|first| {
        let second = compiled(allowed, action, SeccompAction::Allow)?;
        Ok(vec![first, second])
    });
    compiled.map_err(|error| error.to_string())
}

/// A filter of its own, as the answer is another one: the kernel takes the stricter of two filters'
/// answers. The flags of `clone3` are in memory, where no filter sees them; without it the C libraries
/// take `clone`.
fn clone3_is_missing() -> Result<BpfProgram, seccompiler::BackendError> {
    let rules = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let missing = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    compiled(rules, SeccompAction::Allow, missing)
}

fn compiled(
    rules: BTreeMap<c_long, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    matched: SeccompAction,
) -> Result<BpfProgram, seccompiler::BackendError> {
    let machine = TargetArch::try_from(std::env::consts::ARCH)?;
    SeccompFilter::new(rules, otherwise, matched, machine)?.try_into()
}

type Rules = Vec<SeccompRule>;

/// The list: for each call the arguments with which it is allowed, one of them at least; none for any.
fn rules() -> Result<BTreeMap<c_long, Rules>, seccompiler::BackendError> {
    let mut rules: BTreeMap<c_long, Rules> = BTreeMap::new();
    for number in ALLOWED.iter().chain(ALLOWED_OLD) {
        rules.insert(*number, Vec::new());
    }
    for (number, alternatives) in conditional() {
        let alternatives = alternatives.into_iter().map(|conditions| {
            let conditions = conditions.iter().map(Condition::compiled);
            SeccompRule::new(conditions.collect::<Result<_, _>>()?)
        });
        rules.insert(number, alternatives.collect::<Result<_, _>>()?);
    }
    Ok(rules)
}

/// Another type with musl.
#[allow(clippy::unnecessary_cast)]
fn ioctl_number(command: libc::Ioctl) -> u64 {
    command as u64
}

/// A condition on an argument, counted from 0.
#[derive(Clone, Copy)]
enum Condition {
    /// As a number of 32 bits.
    Is(u8, u64),
    /// A pointer that points nowhere.
    IsNull(u8),
    /// None of these bits is set.
    Without(u8, u64),
    /// Of the bits of the mask exactly these are set.
    Bits { argument: u8, mask: u64, set: u64 },
}

impl Condition {
    fn compiled(&self) -> Result<SeccompCondition, seccompiler::BackendError> {
        match *self {
            Condition::Is(argument, value) => SeccompCondition::new(argument, Dword, Eq, value),
            Condition::IsNull(argument) => SeccompCondition::new(argument, Qword, Eq, 0),
            Condition::Without(argument, bits) => {
                SeccompCondition::new(argument, Dword, MaskedEq(bits), 0)
            }
            Condition::Bits {
                argument,
                mask,
                set,
            } => SeccompCondition::new(argument, Dword, MaskedEq(mask), set),
        }
    }
}

/// The calls that are allowed with some arguments only: the conditions of an alternative hold all at
/// once.
fn conditional() -> Vec<(c_long, Vec<Vec<Condition>>)> {
    use Condition::{Bits, Is, IsNull, Without};
    let bits = |flags: i32| u64::from(flags.cast_unsigned());
    let one_of = |argument: u8, values: &[i32]| -> Vec<Vec<Condition>> {
        let alternatives = values.iter().map(|value| vec![Is(argument, bits(*value))]);
        alternatives.collect()
    };
    let no_code = |argument| vec![vec![Without(argument, bits(libc::PROT_EXEC))]];
    // A path that is only looked up, and not opened, passes Landlock.
    let opened = |argument| vec![vec![Without(argument, bits(libc::O_PATH))]];
    let stream = |family: i32| {
        let is_stream = Bits {
            argument: 1,
            mask: SOCKET_TYPE_MASK,
            set: bits(libc::SOCK_STREAM),
        };
        vec![Is(0, bits(family)), is_stream, Is(2, 0)]
    };
    let own_process = u64::from(std::process::id());
    let thread = Bits {
        argument: 0,
        mask: bits(THREAD_FLAGS | NOT_THREAD_FLAGS),
        set: bits(THREAD_FLAGS),
    };
    let option = |(level, name): &(i32, i32)| vec![Is(1, bits(*level)), Is(2, bits(*name))];
    vec![
        (libc::SYS_mmap, no_code(2)),
        (libc::SYS_mprotect, no_code(2)),
        (libc::SYS_openat, opened(2)),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_open, opened(1)),
        (libc::SYS_fchmod, vec![vec![Is(1, PRIVATE_MODE)]]),
        (libc::SYS_fcntl, one_of(1, &FCNTL)),
        (
            libc::SYS_ioctl,
            IOCTL
                .map(|command| vec![Is(1, ioctl_number(command))])
                .into(),
        ),
        (
            libc::SYS_socket,
            [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_VSOCK]
                .map(stream)
                .into(),
        ),
        (libc::SYS_socketpair, vec![stream(libc::AF_UNIX)]),
        (
            libc::SYS_setsockopt,
            SOCKET_OPTIONS.iter().map(option).collect(),
        ),
        // To whom it is connected, and never connecting by the way.
        (
            libc::SYS_sendto,
            vec![vec![IsNull(4), Without(3, bits(libc::MSG_FASTOPEN))]],
        ),
        (
            libc::SYS_sendmsg,
            vec![vec![Without(2, bits(libc::MSG_FASTOPEN))]],
        ),
        (libc::SYS_clone, vec![vec![thread]]),
        (libc::SYS_tgkill, vec![vec![Is(0, own_process)]]),
        (libc::SYS_prctl, one_of(0, &[libc::PR_SET_NAME, PR_SET_VMA])),
        // Limits of its own, to be read.
        (libc::SYS_prlimit64, vec![vec![Is(0, 0), IsNull(2)]]),
    ]
}
