//! The front: the program's parent. It passes signals on, reaps, and ends as the program ends.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use log::debug;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::raw::WithRawSiginfo;

use crate::controller::Controller;
use crate::fence::Fence;
use crate::process;
use crate::protocol::{Statistics, ToFront, ToServer, receive, send};

/// The variable that says to a `uzram run` within another that it is.
const NESTED: &str = "UZRAM_RUN";
/// The exit status for a failure of the front or the server.
const FAILED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
/// Signals that are passed on to the program.
const PASSED: [Signal; 5] = [
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGUSR2,
];
/// `si_code` of signals that the kernel sends, as for a key of the terminal: the program gets those, too.
const SI_KERNEL: i32 = 0x80;
/// Time until the server answers when all has ended.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);

/// A program, and how to run it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes of anonymous memory that all processes together may have uncompressed.
    pub memory_bytes: u64,
    /// The codec, by zram's name.
    pub algorithm: String,
    /// A file, or a block device, for pages that do not compress. A new file is removed at once, and lives as long as the run.
    pub spill: Option<PathBuf>,
    /// The command that serves, as [`serve`](crate::serve) does.
    pub server: Vec<OsString>,
    /// The program and its arguments.
    pub program: Vec<OsString>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The exit status: the program's, 128 + N after signal N, 125 if it was killed for a failure of this crate, 126 if it could
    /// not be executed, 127 if it was not found.
    pub status: u8,
    /// Figures of what was done. None if the server could not tell any more.
    pub statistics: Option<Statistics>,
}

/// A program that runs, and its front. Dropping it leaves them to themselves: [`wait`](Run::wait) for it.
#[derive(Debug)]
pub struct Run {
    front: Front,
    controller: Controller,
}

/// A run's parts.
#[derive(Debug)]
struct Front {
    socket: OwnedFd,
    fence: Option<Fence>,
    server: Pid,
    program: Pid,
    /// As long as these are open no absent page is zeroes. By the server's number of the space.
    descriptors: BTreeMap<u32, OwnedFd>,
    signals: SignalDelivery<UnixStream, WithRawSiginfo>,
    status: Option<u8>,
}

/// Starts a program.
///
/// # Errors
/// The exit status, and one line: why it was not started.
pub fn start(options: &Options) -> Result<Run, (u8, String)> {
    if std::env::var_os(NESTED).is_some() {
        let text = "this runs within another `uzram run` already, whose budget holds for it too; start the program as it is";
        return Err((FAILED, text.into()));
    }
    if !Path::new("/proc/self").exists() {
        let text = "there is no /proc, which tells of the program's memory; mount it (mount -t proc proc /proc)";
        return Err((FAILED, text.into()));
    }
    Front::start(options)
}

impl Run {
    /// The program's process.
    pub fn pid(&self) -> i32 {
        self.front.program.as_raw()
    }

    /// Asks the server, from any thread.
    pub fn controller(&self) -> Controller {
        self.controller.clone()
    }

    /// Waits for the program's end. `say` gets lines for the user meanwhile.
    pub fn wait(self, mut say: impl FnMut(&str)) -> Outcome {
        let mut front = self.front;
        let fatal = front.until_end(&mut say);
        if let Err(text) = fatal {
            say(&format!("{text}; all its processes are killed"));
            front.kill_all();
            return Outcome {
                status: FAILED,
                statistics: None,
            };
        }
        let statistics = front.last_statistics();
        front.say_what_the_kernel_ended(&mut say);
        let _ = send(front.socket.as_fd(), &ToServer::End, None);
        Outcome {
            status: front.status.unwrap_or(FAILED),
            statistics,
        }
    }
}

impl Front {
    fn start(options: &Options) -> Result<Run, (u8, String)> {
        let failed = |what: &str| {
            let what = what.to_string();
            move |error: Errno| (FAILED, format!("{what}: {error}"))
        };
        let spill = options.spill.as_deref().map(open_spill).transpose()?;
        let (socket, its) = sockets().map_err(failed("no socket"))?;
        let server = start_server(&options.server, its)?;
        let fence = make_fence(options.memory_bytes);
        let begin = ToServer::Begin {
            budget_bytes: options.memory_bytes,
            algorithm: options.algorithm.clone(),
            fence: fence.as_ref().map(|fence| fence.path().to_path_buf()),
        };
        let descriptor = spill.as_ref().map(File::as_fd);
        send(socket.as_fd(), &begin, descriptor).map_err(failed("the server does not hear"))?;
        let refused = |text: String| {
            fence.iter().for_each(Fence::remove);
            Err((FAILED, text))
        };
        match receive(socket.as_fd()) {
            Ok(Some((ToFront::Ready, _))) => {}
            Ok(Some((ToFront::Refused(text), _))) => return refused(text),
            _ => return refused("the server does not start".into()),
        }
        let (questions, its) = sockets().map_err(failed("no socket"))?;
        send(socket.as_fd(), &ToServer::Controller, Some(its.as_fd()))
            .map_err(failed("the server does not hear"))?;
        let controller = Controller::new(questions).map_err(failed("no socket"))?;
        let me = rustix::process::getpid();
        rustix::process::set_child_subreaper(Some(me)).map_err(failed("no subreaper"))?;
        let signals = catch_signals().map_err(|error| (FAILED, format!("no signals: {error}")))?;
        let entered = fence.as_ref().map(Fence::enter);
        let program = start_program(&options.program);
        if let (Some(fence), Some(Ok(()))) = (&fence, entered) {
            fence.leave();
        }
        let program = program.inspect_err(|_| {
            let _ = send(socket.as_fd(), &ToServer::End, None);
            fence.iter().for_each(Fence::remove);
        })?;
        process::raise_descriptors();
        let began = ToServer::Program {
            pid: program.as_raw(),
        };
        let _ = send(socket.as_fd(), &began, None);
        let front = Front {
            socket,
            fence,
            server,
            program,
            descriptors: BTreeMap::new(),
            signals,
            status: None,
        };
        Ok(Run { front, controller })
    }

    /// Until the program has ended.
    fn until_end(&mut self, say: &mut impl FnMut(&str)) -> Result<(), String> {
        while self.status.is_none() {
            let polled = &mut [
                PollFd::new(&self.socket, PollFlags::IN),
                PollFd::new(self.signals.get_read(), PollFlags::IN),
            ];
            match poll(polled, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(format!("cannot wait: {errno}")),
            }
            let [server_spoke, signal_came] = [0, 1].map(|i| !polled[i].revents().is_empty());
            if signal_came {
                self.take_signals();
            }
            if server_spoke && self.status.is_none() {
                self.hear(say)?;
            }
        }
        Ok(())
    }

    fn take_signals(&mut self) {
        let mut has_children = false;
        for info in self.signals.pending() {
            match Signal::try_from(info.si_signo) {
                Ok(Signal::SIGCHLD) => has_children = true,
                Ok(Signal::SIGUSR1) => {
                    let _ = send(self.socket.as_fd(), &ToServer::Statistics, None);
                }
                Ok(signal) if info.si_code != SI_KERNEL => {
                    // It may have ended meanwhile.
                    let _ = kill(self.program, signal);
                }
                _ => {}
            }
        }
        if has_children {
            self.reap();
        }
    }

    fn reap(&mut self) {
        let flags = WaitPidFlag::WNOHANG | WaitPidFlag::__WALL;
        loop {
            match waitpid(None, Some(flags)) {
                Ok(WaitStatus::Exited(pid, code)) if pid == self.program => {
                    self.status = Some(code as u8);
                }
                Ok(WaitStatus::Signaled(pid, signal, _)) if pid == self.program => {
                    self.status = Some(128 + signal as u8);
                }
                Ok(WaitStatus::StillAlive) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }

    fn hear(&mut self, say: &mut impl FnMut(&str)) -> Result<(), String> {
        match receive(self.socket.as_fd()) {
            Ok(Some((ToFront::Descriptor { space }, descriptor))) => {
                let text = "no descriptor is free to guard another process: raise `ulimit -n`";
                let descriptor = descriptor.ok_or(text)?;
                self.descriptors.insert(space, descriptor);
                Ok(())
            }
            Ok(Some((ToFront::Ended { space }, _))) => {
                self.descriptors.remove(&space);
                Ok(())
            }
            Ok(Some((ToFront::Warning(text), _))) => {
                say(&text);
                Ok(())
            }
            Ok(Some((ToFront::Statistics(statistics), _))) => {
                statistics.lines().iter().for_each(|line| say(line));
                Ok(())
            }
            Ok(Some((ToFront::Fatal(text), _))) => Err(text),
            Ok(Some(_)) | Err(Errno::INTR) => Ok(()),
            Ok(None) | Err(_) => Err("the server was killed".into()),
        }
    }

    fn last_statistics(&mut self) -> Option<Statistics> {
        send(self.socket.as_fd(), &ToServer::Statistics, None).ok()?;
        let begin = Instant::now();
        while begin.elapsed() < ANSWER_TIME_MAX {
            match receive(self.socket.as_fd()) {
                Ok(Some((ToFront::Statistics(statistics), _))) => return Some(statistics),
                Ok(Some(_)) => {}
                _ => return None,
            }
        }
        None
    }

    fn say_what_the_kernel_ended(&self, say: &mut impl FnMut(&str)) {
        let killed = self.fence.as_ref().map_or(0, Fence::killed);
        if killed > 0 {
            say(&format!(
                "processes that the kernel has ended: {killed}; together they had more than twice the budget in memory \
                 that cannot leave, or in files; give more --memory"
            ));
        }
    }

    /// No process may run on, whose absent pages would read as zeroes when the descriptors are closed.
    fn kill_all(&mut self) {
        let me = std::process::id() as i32;
        self.fence.iter().for_each(Fence::kill);
        process::kill_all(|| {
            self.reap();
            let mut alive = process::descendants(&[me].into());
            alive.remove(&me);
            alive.remove(&self.server.as_raw());
            alive
        });
        let _ = kill(self.server, Signal::SIGKILL);
        self.reap();
        self.descriptors.clear();
        self.fence.iter().for_each(Fence::remove);
    }
}

/// Opens the file for what does not compress.
fn open_spill(path: &Path) -> Result<File, (u8, String)> {
    let failed = |error: std::io::Error| (FAILED, format!("--spill {}: {error}", path.display()));
    let mut options = File::options();
    options.read(true).write(true);
    match options.clone().create_new(true).open(path) {
        Ok(file) => {
            // Nothing of it is of use to anybody afterwards, and so nothing is left, however the run ends.
            fs::remove_file(path).map_err(failed)?;
            Ok(file)
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let kind = fs::metadata(path).map_err(failed)?.file_type();
            if !kind.is_file() && !kind.is_block_device() {
                let text = format!("--spill {}: name a file or a block device", path.display());
                return Err((FAILED, text));
            }
            options.open(path).map_err(failed)
        }
        Err(error) => Err(failed(error)),
    }
}

/// Nothing is promised of a fence: where none can be made there is none.
fn make_fence(budget_bytes: u64) -> Option<Fence> {
    let fence = Fence::make()
        .inspect_err(|error| debug!("no group: {error}"))
        .ok()?;
    fence.limit(budget_bytes);
    Some(fence)
}

/// Signals are caught and not blocked, as the program would inherit that.
fn catch_signals() -> std::io::Result<SignalDelivery<UnixStream, WithRawSiginfo>> {
    let mut caught: Vec<i32> = PASSED.iter().map(|signal| *signal as i32).collect();
    caught.extend([Signal::SIGCHLD as i32, Signal::SIGUSR1 as i32]);
    let (read, write) = UnixStream::pair()?;
    SignalDelivery::with_pipe(read, write, WithRawSiginfo, caught)
}

/// Two connected sockets.
fn sockets() -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

fn start_server(command: &[OsString], socket: OwnedFd) -> Result<Pid, (u8, String)> {
    let (program, arguments) = command
        .split_first()
        .ok_or((FAILED, "no server".to_string()))?;
    let child = Command::new(program)
        .args(arguments)
        .stdin(socket)
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| (FAILED, format!("cannot start the server: {error}")))?;
    Ok(Pid::from_raw(child.id() as i32))
}

fn start_program(command: &[OsString]) -> Result<Pid, (u8, String)> {
    let (program, arguments) = command
        .split_first()
        .ok_or((FAILED, "no program".to_string()))?;
    let spawned = Command::new(program)
        .arg0(program)
        .args(arguments)
        .env(NESTED, "1")
        .spawn();
    let child = spawned.map_err(|error| {
        let status = match error.kind() {
            std::io::ErrorKind::NotFound => NOT_FOUND,
            _ => NOT_EXECUTABLE,
        };
        (status, format!("{}: {error}", program.display()))
    })?;
    Ok(Pid::from_raw(child.id() as i32))
}
