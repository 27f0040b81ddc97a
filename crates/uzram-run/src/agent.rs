//! An agent: a process that shares the memory of a program's process, and moves pages out of its way.
//!
//! The kernel lets pages be moved by a process of the same memory only. The agent is stopped at all
//! times, and its tracer, this thread, has it make one system call after another. Only moves, which are many, are made by a loop
//! of ten instructions. It has no descriptors but one, blocks all
//! signals, is in a session of its own, and dies with its tracer.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::libc::{self, c_long};
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, PidfdGetfdFlags};
use uzram_pager::uffd::Uffd;

use crate::hand_over;
use crate::process;
use crate::registers;

use crate::tracee::{Lost, Stopped};
use crate::units::{CHUNK_BYTES, CHUNK_PAGES, PAGE_BYTES, Range, pages};

/// The agent's name in lists of processes.
const NAME: &[u8; 16] = b"uzram-agent\0\0\0\0\0";
/// `UFFDIO_MOVE`, with a request of 40 bytes.
const MOVE: u64 = 0xC028_AA05;
/// Since Linux 6.1. `USERFAULTFD_IOC_NEW`, with the flags of the system call.
const DEVICE: &str = "/dev/userfaultfd";
const NEW: u64 = 0xAA00;
/// No page that a move brings wakes anybody: nobody can wait for a page of the staging area.
const MOVE_DONTWAKE: u64 = 1;
/// Since Linux 4.14.
const MADV_WIPEONFORK: u64 = 18;
/// Runs that one call of [`Agent::take`] moves at most.
pub(crate) const RUNS_MAX: usize = 256;
/// Words of a request to move.
const MOVE_WORDS: usize = 5;
/// Bytes for what system calls read and write: a list of moves, and the requests behind it, are the longest.
const CALL_BYTES: u64 = (RUNS_MAX * (registers::LOOP_WORDS + MOVE_WORDS) * 8) as u64;
/// The vdso is two or three pages.
const VDSO_BYTES_MAX: u64 = 64 << 10;
const POPULATED: u64 = 0b11 << 62;

/// Why a process has no agent.
#[derive(Debug)]
pub(crate) enum NoAgent {
    /// It has ended, or is another program now.
    Gone,
    /// Not at this moment. The thread was told to stop, and is to be let go once it has.
    Later(Option<i32>),
    /// For the reason told: its memory is left alone.
    Never(String),
}

impl From<Lost> for NoAgent {
    fn from(lost: Lost) -> NoAgent {
        match lost {
            Lost::Ended => NoAgent::Gone,
            Lost::Busy => NoAgent::Later(None),
            Lost::Refused(errno) => NoAgent::Never(format!("the system refuses: {}", errno.desc())),
        }
    }
}

/// Pages that were moved out.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// Of those that went, in order.
    pub addresses: Vec<u64>,
    /// Runs that stay, for somebody else has their first page, or had it.
    pub busy: Vec<Range>,
}

/// Why pages could not be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakeError {
    /// None went.
    Lost(Lost),
    /// Some went, and cannot be read.
    Torn,
}

impl From<Lost> for TakeError {
    fn from(lost: Lost) -> TakeError {
        TakeError::Lost(lost)
    }
}

/// A page of each address space by which it is told from others, in the processes that have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub address: u64,
    pub word: u64,
}

impl Mark {
    /// A mark for the page at `address`, which nobody guesses by chance.
    pub(crate) fn new(address: u64) -> Mark {
        use std::hash::{BuildHasher, Hasher};
        let word = std::hash::RandomState::new().build_hasher().finish();
        Mark { address, word }
    }

    /// The bytes of the page.
    pub(crate) fn page(&self) -> [u8; PAGE_BYTES] {
        let mut page = [0; PAGE_BYTES];
        for (part, word) in page.chunks_exact_mut(16).zip(0_u64..) {
            part[..8].copy_from_slice(&self.word.to_ne_bytes());
            part[8..].copy_from_slice(&word.wrapping_mul(self.word).to_ne_bytes());
        }
        page
    }

    /// Whether process `pid` has this address space.
    pub(crate) fn is_of(&self, pid: i32) -> bool {
        let mut bytes = [0; 64];
        // To read an absent page would be to wait for this very thread.
        let at = self.address / PAGE_BYTES as u64 * 8;
        let mut word = [0; 8];
        let pagemap = File::open(format!("/proc/{pid}/pagemap"));
        let found = pagemap.and_then(|file| file.read_exact_at(&mut word, at));
        if found.is_err() || u64::from_ne_bytes(word) & POPULATED == 0 {
            return false;
        }
        read(Pid::from_raw(pid), self.address, &mut bytes).is_ok() && bytes == self.page()[..64]
    }
}

/// An agent. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Agent {
    process: Stopped,
    /// Tells of its end.
    handle: OwnedFd,
    /// Its table of pages.
    pagemap: File,
    /// Pages for what system calls read and write.
    page: u64,
    /// The loop.
    code: u64,
    /// A chunk, empty between two calls of [`Agent::free`].
    staging: u64,
    /// The number of the userfaultfd, in its own table.
    descriptor: u64,
    is_busy: bool,
    /// It cannot be used any more.
    is_broken: bool,
    /// The process that it has entered.
    owner: i32,
}

impl Agent {
    /// Enters process `pid`, whose memory has no descriptor yet, and marks it.
    ///
    /// # Errors
    /// [`NoAgent`]; the process goes on as it was.
    pub(crate) fn enter(pid: i32) -> Result<(Agent, Uffd, Mark), NoAgent> {
        let mut agent = Agent::begin(pid)?;
        agent.descriptor = agent.open_userfaultfd()?;
        let uffd = Uffd::of_another(agent.take_descriptor(agent.descriptor)?)
            .map_err(|error| NoAgent::Never(error.to_string()))?;
        let address = agent.map(PAGE_BYTES as u64, MADV_WIPEONFORK)?;
        let mark = Mark::new(address);
        agent.write(address, &mark.page())?;
        let end = address + PAGE_BYTES as u64;
        uffd.register(address, end).map_err(refused)?;
        agent.register_staging(&uffd)?;
        Ok((agent, uffd, mark))
    }

    /// Enters process `pid`, whose memory `uffd` serves already.
    ///
    /// # Errors
    /// [`NoAgent`]; the process goes on as it was.
    pub(crate) fn enter_again(pid: i32, uffd: &Uffd) -> Result<Agent, NoAgent> {
        let mut agent = Agent::begin(pid)?;
        agent.descriptor = agent.give(uffd.as_fd())?;
        agent.register_staging(uffd)?;
        Ok(agent)
    }

    /// A new userfaultfd. The system call is refused to programs of most users; who may open the device may give it to them.
    fn open_userfaultfd(&mut self) -> Result<u64, NoAgent> {
        let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;
        let arguments = [flags, 0, 0, 0, 0, 0];
        let answer = self.process.call(libc::SYS_userfaultfd, arguments)?;
        if answer != -i64::from(libc::EPERM) {
            return answered(libc::SYS_userfaultfd, answer);
        }
        let device = File::open(DEVICE).map_err(|error| {
            NoAgent::Never(format!(
                "its user may have no userfaultfd, and {DEVICE}: {error}"
            ))
        })?;
        let device = self.give(device.as_fd())?;
        let made = self.must(libc::SYS_ioctl, [device, NEW, flags, 0, 0, 0])?;
        self.must(libc::SYS_close, [device, 0, 0, 0, 0, 0])?;
        Ok(made)
    }

    /// Gives it a duplicate of `descriptor`. The number that it has there.
    fn give(&mut self, descriptor: BorrowedFd) -> Result<u64, NoAgent> {
        let pair = [libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0];
        let [family, kind, protocol] = pair.map(|word| word as u64);
        self.must(
            libc::SYS_socketpair,
            [family, kind, protocol, self.page, 0, 0],
        )?;
        let mut numbers = [0; 8];
        self.read(self.page, &mut numbers)?;
        let number =
            |at: usize| u64::from(u32::from_ne_bytes([0, 1, 2, 3].map(|i| numbers[at + i])));
        let (ours, its) = (number(0), number(4));
        let socket = self.take_descriptor(ours)?;
        hand_over::give(socket.as_fd(), descriptor, b"u").map_err(refused)?;
        let (bytes, places) = hand_over::header(self.page);
        self.write(self.page, &bytes)?;
        self.must(libc::SYS_recvmsg, [its, places.header, 0, 0, 0, 0])?;
        let mut came = [0; 4];
        self.read(places.descriptor, &mut came)?;
        for number in [ours, its] {
            self.must(libc::SYS_close, [number, 0, 0, 0, 0, 0])?;
        }
        Ok(u32::from_ne_bytes(came).into())
    }

    /// The process alone, with memory for its calls, without any descriptor.
    fn begin(pid: i32) -> Result<Agent, NoAgent> {
        if process::filters(pid) != process::filters(std::process::id() as i32) {
            let text = "it filters its system calls (seccomp)";
            return Err(NoAgent::Never(text.into()));
        }
        let instruction = find_instruction(pid)?;
        let thread = process::thread_to_stop(pid).ok_or(NoAgent::Later(None))?;
        let stopped = Stopped::seize(thread, instruction).map_err(|lost| match lost {
            Lost::Busy => NoAgent::Later(Some(thread)),
            lost => lost.into(),
        })?;
        let spawned = stopped.spawn();
        let released = stopped.release();
        let process = spawned?;
        let agent = Agent::over(process, pid);
        released?;
        agent
    }

    fn over(process: Stopped, owner: i32) -> Result<Agent, NoAgent> {
        let id = process.pid().as_raw();
        process::hurry(id);
        let opened = || {
            let pid = rustix::process::Pid::from_raw(id)?;
            let handle = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?;
            Some((handle, File::open(format!("/proc/{id}/pagemap")).ok()?))
        };
        let Some((handle, pagemap)) = opened() else {
            process.kill();
            return Err(NoAgent::Gone);
        };
        let mut agent = Agent {
            process,
            handle,
            pagemap,
            page: 0,
            code: 0,
            staging: 0,
            descriptor: 0,
            is_busy: false,
            is_broken: false,
            owner,
        };
        agent.must(libc::SYS_close_range, [0, u32::MAX.into(), 0, 0, 0, 0])?;
        agent.must(libc::SYS_setsid, [0; 6])?;
        agent.page = agent.map(CALL_BYTES, libc::MADV_DONTFORK as u64)?;
        agent.map_code()?;
        // Twice as much has a whole chunk in it, which a huge page can be moved to.
        let area = agent.map(2 * CHUNK_BYTES, libc::MADV_DONTFORK as u64)?;
        agent.staging = area.next_multiple_of(CHUNK_BYTES);
        agent.write(agent.page, NAME)?;
        let set_name = libc::PR_SET_NAME as u64;
        agent.must(libc::SYS_prctl, [set_name, agent.page, 0, 0, 0, 0])?;
        Ok(agent)
    }

    /// The process.
    pub(crate) fn pid(&self) -> i32 {
        self.process.pid().as_raw()
    }

    /// Whether these addresses are the agent's own.
    pub(crate) fn owns(&self, range: &Range) -> bool {
        let meets = |start: u64, bytes: u64| range.start < start + bytes && start < range.end;
        meets(self.page, CALL_BYTES)
            || meets(self.code, PAGE_BYTES as u64)
            || meets(self.staging, CHUNK_BYTES)
    }

    /// Moves runs of pages out, [`RUNS_MAX`] and a chunk's worth of pages at most, copies them to `buffer` one behind the other, and
    /// gives their memory back to the system. A page that cannot be moved stays, and so does what is behind it in its run.
    ///
    /// # Errors
    /// [`TakeError`]; then nothing has gone, unless it is [`TakeError::Torn`].
    pub(crate) fn take(
        &mut self,
        uffd: &Uffd,
        runs: &[Range],
        buffer: &mut [u8],
    ) -> Result<Taken, TakeError> {
        let requests = self.page + (runs.len() * registers::LOOP_WORDS * 8) as u64;
        let mut calls = Vec::new();
        let mut moves = Vec::new();
        let mut slots = 0;
        for run in runs {
            let bytes = run.end - run.start;
            let request = requests + (moves.len() * MOVE_WORDS * 8) as u64;
            calls.push([libc::SYS_ioctl as u64, self.descriptor, MOVE, request, 0]);
            moves.push([self.slot(slots), run.start, bytes, MOVE_DONTWAKE, 0]);
            slots += bytes as usize / PAGE_BYTES;
        }
        self.write_lost(requests, &to_bytes(&moves))?;
        self.begin_list(&calls)?;
        let ran = self.process.has_ended_loop(true);
        // What the kernel says of how many it has moved may be wrong (Linux 6.18). The slots tell.
        let has_page = self.populated(slots).map_err(|_| TakeError::Torn)?;
        let mut taken = Taken::default();
        let mut parts = Vec::new();
        for ((slot, address), has_page) in runs.iter().flat_map(pages).enumerate().zip(has_page) {
            if has_page {
                taken.addresses.push(address);
                let base = self.slot(slot) as usize;
                parts.push(RemoteIoVec {
                    base,
                    len: PAGE_BYTES,
                });
            }
        }
        if taken.addresses.is_empty() {
            ran?;
        } else {
            let buffer = &mut buffer[..parts.len() * PAGE_BYTES];
            self.copy_slots(&parts, buffer)
                .map_err(|_| TakeError::Torn)?;
            // If it fails the slots are not empty, and must not be used again.
            self.is_broken = ran.is_err() || self.empty_slots(uffd).is_err();
        }
        let answers = self.answers(calls.len()).unwrap_or_default();
        let busy = answers
            .iter()
            .zip(runs)
            .filter(|(answer, _)| **answer == -i64::from(libc::EBUSY));
        taken.busy = busy.map(|(_, run)| run.clone()).collect();
        Ok(taken)
    }

    fn begin_list(&self, calls: &[[u64; registers::LOOP_WORDS]]) -> Result<(), Lost> {
        let bytes = to_bytes(calls);
        self.write_lost(self.page, &bytes)?;
        let list = self.page..self.page + bytes.len() as u64;
        self.process.begin_loop(self.code, list)
    }

    fn answers(&self, calls: usize) -> Result<Vec<i64>, Lost> {
        let mut bytes = vec![0; calls * registers::LOOP_WORDS * 8];
        read(self.process.pid(), self.page, &mut bytes)?;
        let answer = |call: &[u8]| i64::from_ne_bytes(call[32..40].try_into().unwrap_or_default());
        Ok(bytes.chunks_exact(40).map(answer).collect())
    }

    /// Copies slots by the memory of the agent, or of the program, if the agent has ended.
    fn copy_slots(&self, parts: &[RemoteIoVec], buffer: &mut [u8]) -> Result<(), Lost> {
        let length = buffer.len();
        let mut copy = |pid| {
            let copied = process_vm_readv(pid, &mut [IoSliceMut::new(buffer)], parts)?;
            whole(copied, length)
        };
        copy(self.process.pid()).or_else(|_| copy(Pid::from_raw(self.owner)))
    }

    fn empty_slots(&self, uffd: &Uffd) -> Result<(), Lost> {
        let (start, end) = (self.staging, self.staging + CHUNK_BYTES);
        // Discarding memory that is registered would wait for this very thread.
        uffd.unregister(start, end).map_err(lost)?;
        let discard = libc::MADV_DONTNEED as u64;
        let answer = self
            .process
            .call(libc::SYS_madvise, [start, CHUNK_BYTES, discard, 0, 0, 0])?;
        if answer < 0 {
            return Err(Lost::Refused(Errno::from_raw(-answer as i32)));
        }
        uffd.register(start, end).map_err(lost)
    }

    /// Whether the first slots have a page, each.
    fn populated(&self, slots: usize) -> std::io::Result<Vec<bool>> {
        let mut words = vec![[0; 8]; slots];
        let at = self.staging / PAGE_BYTES as u64 * 8;
        self.pagemap.read_exact_at(words.as_flattened_mut(), at)?;
        let has_page = |word: [u8; 8]| u64::from_ne_bytes(word) & POPULATED != 0;
        Ok(words.into_iter().map(has_page).collect())
    }

    /// The kernel's words about the pages of the chunk at `address`, for [`is_takeable`].
    pub(crate) fn page_words(&self, address: u64) -> Vec<u64> {
        let mut words = vec![[0; 8]; CHUNK_PAGES];
        let at = address / PAGE_BYTES as u64 * 8;
        match self.pagemap.read_exact_at(words.as_flattened_mut(), at) {
            Ok(()) => words.into_iter().map(u64::from_ne_bytes).collect(),
            Err(_) => vec![0; CHUNK_PAGES],
        }
    }

    /// Begins to make the pages of `runs`, [`RUNS_MAX`] at most, the program's alone: what it had in common with a child that has
    /// ended, or has a copy of its own now, cannot be moved before. It may wait for this thread, if the program discards a page
    /// meanwhile. So there must be no other call until [`Agent::is_idle`].
    ///
    /// # Errors
    /// [`Lost`].
    pub(crate) fn begin_unsharing(&mut self, runs: &[Range]) -> Result<(), Lost> {
        let call = |run: &Range| {
            let (number, advice) = (libc::SYS_madvise as u64, libc::MADV_POPULATE_WRITE as u64);
            [number, run.start, run.end - run.start, advice, 0]
        };
        let calls: Vec<_> = runs.iter().map(call).collect();
        self.is_busy = true;
        self.begin_list(&calls)
    }

    /// Whether it has ended what it had begun.
    ///
    /// # Errors
    /// [`Lost`].
    pub(crate) fn is_idle(&mut self) -> Result<bool, Lost> {
        if self.is_broken {
            return Err(Lost::Ended);
        }
        if self.is_busy {
            self.is_busy = !self.process.has_ended_loop(false)?;
        }
        Ok(!self.is_busy)
    }

    fn slot(&self, slot: usize) -> u64 {
        debug_assert!(slot < CHUNK_PAGES);
        self.staging + (slot * PAGE_BYTES) as u64
    }

    fn register_staging(&self, uffd: &Uffd) -> Result<(), NoAgent> {
        uffd.register(self.staging, self.staging + CHUNK_BYTES)
            .map_err(refused)
    }

    fn map(&self, bytes: u64, advice: u64) -> Result<u64, NoAgent> {
        let access = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
        let at = self.must(libc::SYS_mmap, [0, bytes, access, flags, u64::MAX, 0])?;
        self.must(libc::SYS_madvise, [at, bytes, advice, 0, 0, 0])?;
        Ok(at)
    }

    /// A page that can be executed, and never written by the program.
    fn map_code(&mut self) -> Result<(), NoAgent> {
        let access = (libc::PROT_READ | libc::PROT_EXEC) as u64;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let bytes = PAGE_BYTES as u64;
        self.code = self.must(libc::SYS_mmap, [0, bytes, access, flags, u64::MAX, 0])?;
        let advice = libc::MADV_DONTFORK as u64;
        self.must(libc::SYS_madvise, [self.code, bytes, advice, 0, 0, 0])?;
        let memory = File::options()
            .write(true)
            .open(format!("/proc/{}/mem", self.pid()));
        let written = memory.and_then(|memory| memory.write_all_at(registers::LOOP, self.code));
        written.map_err(|error| NoAgent::Never(format!("its memory cannot be written: {error}")))
    }

    /// Takes a duplicate of the agent's descriptor `number`.
    fn take_descriptor(&self, number: u64) -> Result<OwnedFd, NoAgent> {
        let (handle, flags) = (self.handle.as_fd(), PidfdGetfdFlags::empty());
        rustix::process::pidfd_getfd(handle, number as i32, flags).map_err(refused)
    }

    /// A call that must not fail.
    fn must(&self, number: c_long, arguments: [u64; 6]) -> Result<u64, NoAgent> {
        answered(number, self.process.call(number, arguments)?)
    }

    fn write(&self, to: u64, bytes: &[u8]) -> Result<(), NoAgent> {
        Ok(self.write_lost(to, bytes)?)
    }

    fn write_lost(&self, to: u64, bytes: &[u8]) -> Result<(), Lost> {
        let remote = RemoteIoVec {
            base: to as usize,
            len: bytes.len(),
        };
        let written = process_vm_writev(self.process.pid(), &[IoSlice::new(bytes)], &[remote])?;
        whole(written, bytes.len())
    }

    fn read(&self, from: u64, bytes: &mut [u8]) -> Result<(), NoAgent> {
        Ok(read(self.process.pid(), from, bytes)?)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.process.kill();
    }
}

/// Whether a page may be moved: it is in memory, anonymous, and of one process only.
pub(crate) fn is_takeable(word: u64) -> bool {
    const PRESENT: u64 = 1 << 63;
    const OF_FILE: u64 = 1 << 61;
    const EXCLUSIVE: u64 = 1 << 56;
    word & (PRESENT | OF_FILE | EXCLUSIVE) == PRESENT | EXCLUSIVE
}

/// Copies from the memory of another process.
fn read(pid: Pid, from: u64, bytes: &mut [u8]) -> Result<(), Lost> {
    let length = bytes.len();
    let remote = RemoteIoVec {
        base: from as usize,
        len: length,
    };
    let copied = process_vm_readv(pid, &mut [IoSliceMut::new(bytes)], &[remote])?;
    whole(copied, length)
}

fn to_bytes<const WORDS: usize>(rows: &[[u64; WORDS]]) -> Vec<u8> {
    rows.iter()
        .flatten()
        .flat_map(|word| word.to_ne_bytes())
        .collect()
}

fn whole(done: usize, wanted: usize) -> Result<(), Lost> {
    match done == wanted {
        true => Ok(()),
        false => Err(Lost::Refused(Errno::EFAULT)),
    }
}

/// An instruction of a system call in the vdso of process `pid`, which every program has, and its threads alone run.
fn find_instruction(pid: i32) -> Result<u64, NoAgent> {
    let Some(vdso) = process::vdso(pid) else {
        return Err(NoAgent::Never("it has no vdso".into()));
    };
    let mut code = vec![0; (vdso.end - vdso.start).min(VDSO_BYTES_MAX) as usize];
    read(Pid::from_raw(pid), vdso.start, &mut code)?;
    let (instruction, step) = registers::INSTRUCTION;
    (0..code.len())
        .step_by(step)
        .find(|at| code[*at..].starts_with(instruction))
        .map(|at| vdso.start + at as u64)
        .ok_or_else(|| NoAgent::Never("its vdso makes no system call".into()))
}

fn answered(number: c_long, answer: i64) -> Result<u64, NoAgent> {
    u64::try_from(answer).map_err(|_| {
        let errno = Errno::from_raw(-answer as i32);
        let text = format!("system call {number} fails there: {}", errno.desc());
        NoAgent::Never(text)
    })
}

fn refused(errno: rustix::io::Errno) -> NoAgent {
    lost(errno).into()
}

fn lost(errno: rustix::io::Errno) -> Lost {
    Errno::from_raw(errno.raw_os_error()).into()
}
