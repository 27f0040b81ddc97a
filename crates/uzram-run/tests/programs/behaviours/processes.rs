//! Programs that make processes of every kind while pages are away.

use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio, exit};

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use crate::area::{Area, MIB, Pressure, done, expect, read_of};
use crate::pages::{PAGE, Random};

/// Runs `part` in a child, which ends the program if it finds something wrong.
pub fn in_child(part: impl FnOnce()) {
    until_right(begin_child(part));
}

fn begin_child(part: impl FnOnce()) -> Pid {
    // SAFETY: this program has one thread when it forks.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            part();
            exit(0);
        }
        ForkResult::Parent { child } => child,
    }
}

fn until_right(child: Pid) {
    expect(
        "a child's end",
        waitpid(child, None),
        Ok(WaitStatus::Exited(child, 0)),
    );
}

/// The work of a process that shares this one's memory: every second page from `first` on.
struct Share {
    area: Area,
    first: usize,
}

extern "C" fn works_in_shared_memory(share: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the pointer is of the value that `begin_sharing` was given, which lives as long as the process.
    let share = unsafe { &mut *share.cast::<Share>() };
    for at in (share.first..share.area.pages()).step_by(2) {
        share.area.check(at..at + 1);
        share.area.write(at..at + 1, 2);
    }
    // SAFETY: ends this process without touching what it shares with the other.
    unsafe { libc::_exit(0) }
}

fn begin_sharing(share: &mut Share, flags: i32) -> Pid {
    const STACK_BYTES: usize = 256 << 10;
    let stack = Vec::leak(vec![0_u8; STACK_BYTES]).as_mut_ptr_range();
    let (share, flags) = (
        std::ptr::from_mut(share).cast(),
        flags | libc::CLONE_VM | libc::SIGCHLD,
    );
    // SAFETY: the stack is the process's alone, and it touches no page that this one touches meanwhile.
    let pid = unsafe { libc::clone(works_in_shared_memory, stack.end.cast(), flags, share) };
    Pid::from_raw(done("clone", pid.into()) as i32)
}

/// A process of the same memory works while this one does.
pub fn shares_memory() {
    let area = Area::away(64 * MIB);
    let mut its = Share {
        area: area.clone(),
        first: 0,
    };
    let mut own = Share { area, first: 1 };
    let child = begin_sharing(&mut its, 0);
    for at in (1..own.area.pages()).step_by(2) {
        own.area.check(at..at + 1);
        own.area.write(at..at + 1, 2);
    }
    until_right(child);
    own.area.versions.fill(2);
    own.area.push_out();
    own.area.check_all();
}

/// A child that is traced before it needs much memory is left alone. Its parent, whose memory leaves, traces it.
pub fn is_traced() {
    let area = Area::away(32 * MIB);
    in_child(|| {
        nix::sys::ptrace::traceme().unwrap();
        Area::stays();
        area.check_all();
    });
    area.check_all();
}

/// As vfork does: this process waits until the other, of the same memory, has ended.
pub fn vforks() {
    let mut area = Area::away(64 * MIB);
    let mut its = Share {
        area: area.clone(),
        first: 0,
    };
    let child = begin_sharing(&mut its, libc::CLONE_VFORK);
    until_right(child);
    for at in (0..area.pages()).step_by(2) {
        area.versions[at] = 2;
    }
    area.check_all();
    area.push_out();
    area.check_all();
}

/// Other programs are started by posix_spawn, and get bytes that are away through pipes.
pub fn spawns() {
    let area = Area::away(32 * MIB);
    for _ in 0..2 {
        let child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.unwrap();
        let (mut to, mut from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut back = Area {
            base: crate::pages::map(None, area.pages()),
            versions: area.versions.clone(),
        };
        std::thread::scope(|scope| {
            // SAFETY: the bytes are the area's, and nobody writes to them.
            let bytes = unsafe { std::slice::from_raw_parts(area.base as *const u8, area.bytes()) };
            scope.spawn(move || to.write_all(bytes).unwrap());
            for at in 0..back.pages() {
                from.read_exact(back.page(at)).unwrap();
            }
        });
        expect("cat's end", child.wait().unwrap().success(), true);
        back.check_all();
        back.push_out();
        back.check_all();
        area.push_out();
        back.versions.clear();
    }
    area.check_all();
}

/// A child reads its parent's memory, which is away, by process_vm_readv, and by /proc/PID/mem, as debuggers do: there the kernel
/// does not wait, and reports an error.
pub fn is_read_from_outside() {
    let area = Area::away(32 * MIB);
    let parent = std::process::id();
    in_child(|| {
        let memory = std::fs::File::open(format!("/proc/{parent}/mem")).unwrap();
        for at in 0..area.pages() {
            let mut page = [0_u8; PAGE];
            if at % 2 == 0 {
                let read = memory.read_exact_at(&mut page, area.address(at) as u64);
                if let Err(error) = read {
                    // It is away. Those that came ahead of the page before are not.
                    expect("the error", error.raw_os_error(), Some(libc::EIO));
                    continue;
                }
            } else {
                let read = read_of(parent, area.address(at), &mut page);
                expect("bytes that were read", read, PAGE as isize);
            }
            crate::pages::check(&page, at, 1);
        }
    });
    area.check_all();
}

/// Many children at once, each of which has pages of its parent and changes some.
pub fn bomb() {
    const CHILDREN: u64 = 500;
    const PLACES: usize = 64;
    let area = Area::away(64 * MIB);
    let mut children = Vec::new();
    let (all_are_there, writer) = std::io::pipe().unwrap();
    let mut writer = Some(writer);
    for child in 1..=CHILDREN {
        let begun = begin_child(|| {
            drop(writer.take());
            let mut its = area.clone();
            let mut random = Random(child);
            let places = [(); PLACES].map(|()| random.below(its.pages()));
            for at in places {
                its.check(at..at + 1);
                its.write(at..at + 1, 100 + child);
            }
            let _ = (&all_are_there).read(&mut [0]);
            places.iter().for_each(|at| its.check(*at..at + 1));
        });
        children.push(begun);
    }
    drop(writer.take());
    children.into_iter().for_each(until_right);
    area.check_all();
}

/// More children than a process has descriptors by default, one after the other. The last checks its memory until it is killed.
pub fn forks_one_after_another() {
    const CHILDREN: usize = 1200;
    let area = Area::away(96 * MIB);
    for child in 0..CHILDREN {
        in_child(|| area.check(child..child + 4));
    }
    in_child(|| holds_on(&area));
}

/// Checks its memory until it is killed, and says when it begins, and where the memory is.
pub fn holds() {
    holds_on(&Area::away(96 * MIB));
}

fn holds_on(area: &Area) {
    println!("holds {:x}", area.base);
    loop {
        area.check_all();
    }
}

/// A child that is nobody executes a program that is root's, which needs more than the budget.
pub fn becomes_setuid() {
    let area = Area::away(32 * MIB);
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o755)).unwrap();
    let program = directory.path().join("program");
    std::fs::copy("/proc/self/exe", &program).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o4755)).unwrap();
    in_child(|| {
        // SAFETY: gives up rights.
        done("setuid", unsafe { libc::setuid(65534) }.into());
        panic!("{}", Command::new(&program).arg("lock").exec());
    });
    area.check_all();
    Pressure::new().round();
    area.check_all();
}
