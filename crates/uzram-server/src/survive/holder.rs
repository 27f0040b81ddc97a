//! The process that starts servers and keeps what each of them has, for the next one.
//!
//! ```text
//! no server ──start──▶ Starting ──it serves──▶ Serving ──hand-over──▶ Leaving
//!     ▲                   │ ends                  │ ends                │ ends
//!     └── a successor, or the old program again ──┴─────────────────────┘
//! ```
//!
//! One thread waits for all of it: the end of the server, its messages, signals, and commands.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use uzram::REMAINS_FORMAT;

use super::commands::Commands;
use super::kept::{CONTROL, Kept, MEMORY_KEY, SERVER_KEY, Table};
use super::message::{Begin, Death, Message, now_ns, receive, send};
use super::program::Program;
use super::running::{Running, in_words};
use crate::attachment::Leftovers;
use crate::control;
use crate::error::Result;
use crate::state::{StateDir, check_name};
use crate::system::{keep_ended_children, reap_others};

/// Servers that crash one after another, each within [`CRASH_TIME`] of its start, before the holder starts no more.
const CRASHES_MAX: u32 = 5;
const CRASH_TIME: Duration = Duration::from_secs(60);
/// Longest time for a server to hand over, and for its successor to serve.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);
const SERVE_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time for any server to serve, that of a large table while memory is short included.
const START_TIMEOUT: Duration = Duration::from_secs(300);
/// A server that waits to begin is followed by another one if it lived so long.
const STANDBY_TIME: Duration = Duration::from_secs(10);
/// Status of a process that this one had to kill, for whoever waits for this one.
const STATUS_KILLED: i32 = 1;

/// A signal to the holder, as a byte of the stream that it is told by.
pub const END: u8 = b'e';
/// As [`END`]: to read the configuration again.
pub const RELOAD: u8 = b'r';

/// Starts servers, and keeps what they have.
pub struct Holder {
    state: StateDir,
    program: Program,
    arguments: Vec<OsString>,
    stderr: Option<OwnedFd>,
    /// Whether the next server is to be there before it is needed.
    has_standby: bool,
    /// One that waits to begin.
    standby: Option<Running>,
    kept: Table,
    take_overs: u64,
    crashes: u32,
    /// The end after which nobody served yet.
    before: Option<Death>,
    commands: Option<Commands>,
    upgrade: Option<Upgrade>,
    /// The last thing that somebody asked a server for which did not serve yet.
    is_told: Option<Signal>,
}

/// A replacement of the program that is under way.
struct Upgrade {
    asker: OwnedFd,
    /// The program that is not running: the new one until the old server has ended, then the old one.
    other: Program,
    step: Step,
    until: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The old server hands over.
    Leaving,
    /// The new one starts.
    Trying,
    /// The old one starts again.
    Returning,
}

/// The step after the end of a server.
enum Next {
    Server,
    /// Nothing but keeping.
    Nobody,
    End(i32),
}

impl Holder {
    /// A holder of servers that are started as this program with `arguments`, and `inherited` sockets, each with its name,
    /// for them, and `stderr` as their standard error in place of this process's. With `has_standby` the next server waits
    /// beside the one that serves: where that is swapped to, a start may wait for memory, and memory for the start.
    ///
    /// # Errors
    /// [`uzram::ErrorKind::Io`] if this program's file cannot be opened.
    pub fn new(
        state: StateDir,
        arguments: Vec<OsString>,
        inherited: Vec<(String, OwnedFd)>,
        has_standby: bool,
        stderr: Option<OwnedFd>,
    ) -> Result<Holder> {
        let mut kept = Table::default();
        for (number, (name, socket)) in inherited.into_iter().enumerate() {
            let socket = Kept {
                key: format!("inherited/{number}"),
                note: name.into(),
                files: vec![("socket".into(), socket)],
            };
            // There are at most 64 of them.
            let _ = kept.keep(socket);
        }
        Ok(Holder {
            state,
            program: Program::own()?,
            arguments,
            stderr,
            has_standby,
            standby: None,
            kept,
            take_overs: 0,
            crashes: 0,
            before: None,
            commands: None,
            upgrade: None,
            is_told: None,
        })
    }

    /// Serves until a server ends because it was asked to. Returns its exit status. `signals` brings a byte for each.
    ///
    /// # Errors
    /// [`uzram::ErrorKind::Io`] if the first server cannot be started, or the system does not let this process wait.
    pub fn run(mut self, signals: &UnixStream) -> Result<i32> {
        keep_ended_children();
        let mut server = Some(self.start()?);
        let status = loop {
            self.wait(server.as_mut(), signals)?;
            let children = server.iter().chain(&self.standby);
            reap_others(&children.map(Running::pid).collect::<Vec<_>>());
            self.look_after_others();
            match &mut server {
                Some(running) if is_ready(&running.ended) => {
                    self.hear_all(running);
                    let status = running.status()?;
                    match self.after(running, status) {
                        Next::Server => server = self.start_next(),
                        Next::Nobody => server = None,
                        Next::End(status) => break status,
                    }
                }
                Some(running) => self.hear(running),
                None => self.refuse_control(),
            }
            if let Some(asked) = asked(signals) {
                match &server {
                    Some(running) => self.tell(running, asked),
                    None if asked == END => break STATUS_KILLED,
                    None => {}
                }
            }
            self.hurry(server.as_mut());
            self.answer_command(server.as_ref());
            if server.is_none() {
                match (&self.upgrade, self.has_devices()) {
                    (Some(_), _) => server = self.start_next(),
                    (None, false) => break STATUS_KILLED,
                    (None, true) => {}
                }
            }
        };
        self.replace_standby(None);
        self.clean();
        Ok(status)
    }

    fn start(&mut self) -> Result<Running> {
        let begin = Begin {
            holder: std::process::id(),
            take_overs: self.take_overs,
            before: self.before.clone(),
        };
        let standby = self.standby.take();
        let mut running = match standby.filter(|standby| !is_ready(&standby.ended)) {
            Some(standby) => standby,
            None => Running::start(&self.program, &self.arguments, self.stderr.as_ref())?,
        };
        running.begin(&self.kept, begin);
        Ok(running)
    }

    /// Starts the server that is to follow the one that serves now.
    fn stand_by(&mut self) {
        if !self.has_standby || self.standby.is_some() {
            return;
        }
        match Running::start(&self.program, &self.arguments, self.stderr.as_ref()) {
            Ok(running) => self.standby = Some(running),
            Err(error) => log::warn!("{error}: the next server starts when it is needed"),
        }
    }

    /// Starts a successor. A new program that is none makes room for the old one; if that cannot be started either, what is
    /// kept stays kept.
    fn start_next(&mut self) -> Option<Running> {
        loop {
            let error = match self.start() {
                Ok(running) => return Some(running),
                Err(error) => error,
            };
            log::error!("{error}");
            let upgrade = self.upgrade.as_mut().filter(|it| it.step == Step::Trying);
            let Some(upgrade) = upgrade else {
                let upgrade = self.upgrade.take();
                if let Some(upgrade) = upgrade {
                    refuse(&upgrade.asker, error.to_string());
                }
                return None;
            };
            std::mem::swap(&mut self.program, &mut upgrade.other);
            upgrade.step = Step::Returning;
        }
    }

    /// Waits until something happens.
    fn wait(&self, server: Option<&mut Running>, signals: &UnixStream) -> Result<()> {
        let mut events = vec![PollFd::new(signals, PollFlags::IN)];
        if let Some(running) = &server {
            events.push(PollFd::new(&running.ended, PollFlags::IN));
            if !running.is_silent {
                events.push(PollFd::new(&running.socket, PollFlags::IN));
            }
        }
        let control = self.control().filter(|_| server.is_none());
        events.extend(control.map(|socket| PollFd::new(socket, PollFlags::IN)));
        if let Some(commands) = &self.commands {
            events.push(PollFd::new(&commands.listener, PollFlags::IN));
        }
        let others = self.memory().into_iter();
        let others = others.chain(self.standby.as_ref().map(|standby| &standby.ended));
        events.extend(others.map(|file| PollFd::new(file, PollFlags::IN)));
        let until = self.upgrade.as_ref().map(|upgrade| upgrade.until);
        let until = until.or(self.late_at(server.as_deref()));
        let timeout = until.map(|until| {
            let left = until.saturating_duration_since(Instant::now());
            Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: left.subsec_nanos().into(),
            }
        });
        match poll(&mut events, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => {
                Err(crate::Error::new(uzram::ErrorKind::Io, "holder: poll").with_source(error))
            }
        }
    }

    /// Takes what the dead server has said.
    fn hear_all(&mut self, running: &mut Running) {
        while !running.is_silent && is_ready(&running.socket) {
            self.hear(running);
        }
    }

    /// Takes one message of the server, if there is one.
    fn hear(&mut self, running: &mut Running) {
        if running.is_silent || !is_ready(&running.socket) {
            return;
        }
        match receive(&running.socket) {
            Ok(Some((message, files))) => self.take(running, message, files),
            Ok(None) => running.is_silent = true,
            Err(error) => {
                log::warn!("{error}");
                running.is_silent = error.kind() != uzram::ErrorKind::InvalidInput;
            }
        }
    }

    fn take(&mut self, running: &mut Running, message: Message, files: Vec<OwnedFd>) {
        match message {
            Message::Keep {
                key,
                note,
                files: kinds,
            } => {
                if let Err(why) = self.kept.keep(Kept::received(key, note, kinds, files)) {
                    log::error!("not kept: {why}");
                }
            }
            Message::Forget { key } => self.kept.forget(&key),
            Message::Serving { number, format } => self.serves(running, &number, format),
            Message::Ending {} => running.is_ending = true,
            other => log::warn!("the server said {other:?}"),
        }
    }

    fn serves(&mut self, running: &mut Running, number: &str, format: u32) {
        running.is_serving = true;
        if let Some(signal) = self.is_told.take() {
            running.signal(signal);
        }
        if format != REMAINS_FORMAT {
            log::info!("the server's format is {format}, and the holder's {REMAINS_FORMAT}");
        }
        if self.commands.is_none() && check_name(number).is_ok() {
            match Commands::bind(self.state.holder_socket(number)) {
                Ok(commands) => self.commands = Some(commands),
                Err(error) => log::warn!("{error}; uzram upgrade will not find this holder"),
            }
        }
        let served_at_ns = now_ns();
        self.stand_by();
        let Some(before) = self.before.take() else {
            return;
        };
        let pause_ns = served_at_ns.saturating_sub(before.at_ns);
        let Some(upgrade) = self.upgrade.take() else {
            return;
        };
        self.crashes = 0;
        let error = match upgrade.step {
            Step::Trying => None,
            Step::Leaving | Step::Returning => Some(
                "the new program did not serve, and the old one does again; its log says why"
                    .into(),
            ),
        };
        reply(&upgrade.asker, Message::Done { error, pause_ns });
    }

    /// The step after the end of `running`.
    fn after(&mut self, running: &Running, status: ExitStatus) -> Next {
        let why = in_words(status);
        let pid = running.pid();
        let code = status.code().unwrap_or(STATUS_KILLED);
        let was_told = matches!(
            status.signal().and_then(Signal::from_named_raw),
            Some(Signal::TERM | Signal::INT)
        );
        let never_served = self.take_overs == 0 && !running.is_serving;
        let is_left = self
            .upgrade
            .as_ref()
            .is_some_and(|it| it.step == Step::Leaving);
        if running.is_ending || never_served || (was_told && !is_left) {
            if let Some(upgrade) = self.upgrade.take() {
                let error = Some("the server was told to end meanwhile".to_owned());
                reply(&upgrade.asker, Message::Done { error, pause_ns: 0 });
            }
            return Next::End(code);
        }
        self.take_overs += 1;
        if self.before.is_none() {
            self.before = Some(Death {
                pid,
                why: why.clone(),
                at_ns: now_ns(),
            });
        }
        if let Some(upgrade) = self.upgrade.take_if(|it| it.step == Step::Returning) {
            let error = Some("the new program did not serve, nor does the old one now".to_owned());
            reply(&upgrade.asker, Message::Done { error, pause_ns: 0 });
        }
        if let Some(upgrade) = &mut self.upgrade {
            // The other program is the next one: the new one after the old one has left, and then the old one.
            std::mem::swap(&mut self.program, &mut upgrade.other);
            upgrade.step = match upgrade.step {
                Step::Leaving => Step::Trying,
                Step::Trying | Step::Returning => {
                    log::error!("upgrade: process {pid} {why}; back to the old program");
                    Step::Returning
                }
            };
            upgrade.until = Instant::now() + SERVE_TIMEOUT;
            return Next::Server;
        }
        log::error!("process {pid} {why}; its disks are kept");
        // Who kills a server that serves means it, or is short of memory: this is no fault of the program.
        let is_fault = status.signal() != Some(Signal::KILL.as_raw()) || !running.is_serving;
        let is_early = running.started.elapsed() < CRASH_TIME || running.is_given_up;
        self.crashes = match is_fault && is_early {
            true => self.crashes + 1,
            false => 0,
        };
        if self.crashes < CRASHES_MAX {
            return Next::Server;
        }
        self.is_told = None;
        log::error!(
            "{CRASHES_MAX} servers in a row failed within {} s: no more are started; what the disks hold is \
             kept for uzram upgrade and uzram survive export, and SIGTERM to process {} drops it",
            CRASH_TIME.as_secs(),
            std::process::id()
        );
        Next::Nobody
    }

    /// Passes on what this process was asked. A server that catches no signals yet would end by them, and its disks with it
    /// even if they are in use: it gets them once it serves. The first one has no disks before.
    fn tell(&mut self, running: &Running, asked: u8) {
        let signal = match asked {
            RELOAD => Signal::HUP,
            _ => Signal::TERM,
        };
        let may_end = signal == Signal::TERM && self.take_overs == 0;
        match running.is_serving || may_end {
            true => running.signal(signal),
            false if self.is_told == Some(Signal::TERM) => {}
            false => self.is_told = Some(signal),
        }
    }

    /// The time at which a successor that does not serve yet is given up.
    fn late_at(&self, server: Option<&Running>) -> Option<Instant> {
        let is_starting = |running: &&Running| !running.is_serving && !running.is_given_up;
        let starting = server.filter(|_| self.take_overs > 0).filter(is_starting);
        starting.map(|running| running.started + START_TIMEOUT)
    }

    /// Ends a server by force that takes too long to leave or to serve.
    fn hurry(&mut self, server: Option<&mut Running>) {
        let late_at = self.late_at(server.as_deref());
        let Some(upgrade) = &mut self.upgrade else {
            let is_late = late_at.is_some_and(|late| late <= Instant::now());
            if let Some(running) = server.filter(|_| is_late) {
                running.is_given_up = true;
                log::error!(
                    "process {} does not serve after {} s and is killed",
                    running.pid(),
                    START_TIMEOUT.as_secs()
                );
                running.signal(Signal::KILL);
            }
            return;
        };
        if Instant::now() < upgrade.until {
            return;
        }
        upgrade.until = Instant::now() + LEAVE_TIMEOUT;
        if let Some(running) = server {
            log::warn!(
                "upgrade: process {} takes too long and is killed",
                running.pid()
            );
            running.signal(Signal::KILL);
        }
    }

    /// Follows a server that waited and died, and tells when memory does not stay locked any more.
    fn look_after_others(&mut self) {
        if let Some(dead) = self.standby.take_if(|standby| is_ready(&standby.ended)) {
            let lived = dead.started.elapsed();
            log::warn!("process {}, the next server, is gone", dead.pid());
            dead.discard();
            if lived >= STANDBY_TIME && self.upgrade.is_none() {
                self.stand_by();
            }
        }
        if self.memory().is_some_and(is_ready) {
            log::warn!(
                "the process that keeps the memory locked is gone: if the server dies now, the system may swap it out"
            );
            self.kept.forget(MEMORY_KEY);
        }
    }

    /// Closed at its other end once the process is gone that keeps the memory locked.
    fn memory(&self) -> Option<&OwnedFd> {
        let kept = self.kept.find(MEMORY_KEY)?;
        kept.files.first().map(|(_, file)| file)
    }

    fn replace_standby(&mut self, next: Option<Running>) {
        if let Some(before) = std::mem::replace(&mut self.standby, next) {
            before.discard();
        }
    }

    fn has_devices(&self) -> bool {
        self.kept
            .iter()
            .any(|kept| kept.name_of("device").is_some())
    }

    /// The control socket, which somebody has to answer.
    fn control(&self) -> Option<&OwnedFd> {
        let server = self.kept.find(SERVER_KEY)?;
        let mut files = server.files.iter();
        files
            .find(|(what, _)| what == CONTROL)
            .map(|(_, file)| file)
    }

    /// Tells who asks a server that is gone for good.
    fn refuse_control(&self) {
        if let Some(socket) = self.control().filter(|socket| is_ready(socket)) {
            control::refuse_next(
                socket,
                "its servers failed one after another; its log says why. What the disk holds is kept: \
                 uzram survive export",
            );
        }
    }

    /// Removes what the servers left, as they leave nothing themselves once they were killed.
    fn clean(self) {
        let names: Vec<String> = self
            .kept
            .iter()
            .filter_map(|kept| kept.name_of("claim").map(str::to_owned))
            .collect();
        let server = self.kept.find(SERVER_KEY);
        let number = server.and_then(|kept| kept.note.as_str().map(str::to_owned));
        let state = self.state.clone();
        drop(self);
        state.sweep_server(&number.unwrap_or_default());
        for name in &names {
            remove_left(&state, name);
        }
        let _ = state.entries();
    }
}

/// Removes what the dead servers of the device `name` left, unless somebody has the name.
fn remove_left(state: &StateDir, name: &str) {
    if check_name(name).is_ok() && state.entry(name).is_none() {
        let _ = Leftovers::of(state, name).remove();
        state.sweep(name);
    }
}

fn reply(asker: &OwnedFd, message: Message) {
    // Who does not wait for it any more misses nothing.
    let _ = send(asker, &message, &[]);
}

fn refuse(asker: &OwnedFd, why: String) {
    reply(
        asker,
        Message::Done {
            error: Some(why),
            pause_ns: 0,
        },
    );
}

/// Whether something can be received or accepted there, or its other end is gone.
fn is_ready(file: impl AsFd) -> bool {
    let mut events = [PollFd::new(&file, PollFlags::IN)];
    poll(&mut events, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// The last signal that came, unless one of them is to end.
fn asked(signals: &UnixStream) -> Option<u8> {
    use std::io::Read;
    if !is_ready(signals) {
        return None;
    }
    let mut bytes = [0; 64];
    match (&*signals).read(&mut bytes) {
        Ok(count @ 1..) => match bytes[..count].contains(&END) {
            true => Some(END),
            false => Some(bytes[count - 1]),
        },
        // The thread that catches signals is gone; the next look is late enough.
        _ => None,
    }
}

#[path = "holder_commands.rs"]
mod commands;

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn who_is_told_to_end_ends_whatever_else_is_asked() {
        let (signals, mut teller) = UnixStream::pair().unwrap();
        assert_eq!(asked(&signals), None);
        for (told, expected) in [
            (&[RELOAD][..], RELOAD),
            (&[END], END),
            (&[END, RELOAD], END),
            (&[RELOAD, END, RELOAD], END),
        ] {
            teller.write_all(told).unwrap();
            assert_eq!(asked(&signals), Some(expected));
        }
    }
}
