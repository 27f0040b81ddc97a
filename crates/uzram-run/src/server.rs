//! The server: a process beside the program's, which serves the memory of all of them.
//!
//! One thread does all: it reads the kernel's messages, answers faults, takes pages when the budget is used up, and compresses
//! them, in small steps. So no two of these ever meet, and it is the tracer of all agents.

use std::io::IsTerminal;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use uzram::{Error, ErrorKind};
use uzram_pager::uffd::{MESSAGES_MAX, Message, Uffd};

use crate::fence::Fence;
use crate::process;
use crate::protocol::{ToFront, ToServer, receive, send};
use crate::space::Fault;
use crate::state::{Fatal, Server};
use crate::units::PAGE_BYTES;

/// The server's share of busy CPUs, if it may choose that.
const NICE: i32 = -10;
/// Rounds of reading messages before other work.
const READS_MAX: usize = 8;

/// Serves the front at the other end of standard input, until the program and all that it has begun have ended.
///
/// # Errors
/// Of the connection.
pub fn serve() -> uzram::Result<()> {
    if std::io::stdin().is_terminal() {
        let text = "this is for `uzram run` to start; start `uzram run`";
        return Err(Error::new(ErrorKind::InvalidInput, text));
    }
    let front = rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), 3).map_err(no_front)?;
    process::raise_descriptors();
    // Signals of the terminal are the program's, and so are those for all processes of a unit. This one ends after them.
    let _ = rustix::process::setsid();
    // Programs wait for it, and it looks at them in time, also where all CPUs are busy.
    let _ = rustix::process::setpriority_process(None, NICE);
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let nobody = Arc::new(AtomicBool::new(false));
        let _ = signal_hook::flag::register(signal as i32, nobody);
    }
    let begin = receive(front.as_fd()).map_err(no_front)?;
    let Some((
        ToServer::Begin {
            budget_bytes,
            algorithm,
            fence,
        },
        spill,
    )) = begin
    else {
        return Err(Error::new(ErrorKind::InvalidInput, "no front speaks"));
    };
    let fence = fence.and_then(|group| Fence::at(group).ok());
    let made = Uffd::check_others()
        .and_then(|()| Server::new(&front, budget_bytes, &algorithm, spill, fence));
    let mut server = match made {
        Ok(server) => server,
        Err(error) => {
            let _ = send(front.as_fd(), &ToFront::Refused(error.to_string()), None);
            return Ok(());
        }
    };
    let _ = send(front.as_fd(), &ToFront::Ready, None);
    if let Err(Fatal(text)) = server.run() {
        server.end_all(&text);
    }
    if let Some(fence) = &server.throttle.fence {
        fence.remove();
    }
    Ok(())
}

fn no_front(errno: Errno) -> Error {
    Error::new(ErrorKind::Io, "the front does not answer").with_source(errno)
}

impl Server {
    fn run(&mut self) -> Result<(), Fatal> {
        while !self.is_ending {
            self.wait()?;
            self.read_messages()?;
            self.answer_all()?;
            self.look_if_due()?;
            self.evict()?;
            let can_leave =
                !self.is_stuck() && self.spaces.values().any(|space| space.agent.is_some());
            let statistics = &self.statistics;
            self.throttle
                .follow(statistics.used_bytes, statistics.budget_bytes, can_leave);
        }
        Ok(())
    }

    /// Waits until there is something to do.
    fn wait(&mut self) -> Result<(), Fatal> {
        let until = self.next_look.saturating_duration_since(Instant::now());
        let timeout = match self.has_work() {
            true => Duration::ZERO,
            false => until,
        };
        let mut polled = Vec::new();
        let speakers = [&self.front, &self.controller];
        polled.extend(
            speakers
                .into_iter()
                .flatten()
                .map(|speaker| PollFd::new(speaker, PollFlags::IN)),
        );
        polled.extend(
            self.spaces
                .values()
                .map(|space| PollFd::new(&space.uffd, PollFlags::IN)),
        );
        let timeout = Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Fatal(format!("cannot wait for messages: {errno}"))),
        }
        let mut polled = polled.iter().map(|polled| !polled.revents().is_empty());
        let mut speaks =
            |speaker: &Option<OwnedFd>| speaker.is_some() && polled.next() == Some(true);
        let [front_speaks, controller_speaks] = [&self.front, &self.controller].map(&mut speaks);
        if controller_speaks {
            self.hear_controller();
        }
        if front_speaks {
            self.hear_front()?;
        }
        Ok(())
    }

    fn has_work(&self) -> bool {
        let may_evict = self.must_evict() && !self.is_stuck();
        !self.taken.is_empty()
            || may_evict
            || self.spaces.values().any(|space| !space.waiting.is_empty())
    }

    fn hear_front(&mut self) -> Result<(), Fatal> {
        let Some(front) = &self.front else {
            return Ok(());
        };
        match receive(front.as_fd()) {
            Ok(Some((ToServer::Program { pid }, _))) => {
                self.tree.insert(pid);
                self.has_begun = true;
            }
            Ok(Some((ToServer::Statistics, _))) => {
                self.tell(&ToFront::Statistics(self.statistics()));
            }
            // What the program has left running is served on.
            Ok(Some((ToServer::End, _))) => {
                self.front = None;
                self.is_ending = !self.has_begun;
            }
            Ok(Some((ToServer::Controller, socket))) => self.controller = socket,
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) | Err(_) => {
                self.front = None;
                return Err(Fatal("its front was killed".into()));
            }
        }
        Ok(())
    }

    fn hear_controller(&mut self) {
        let Some(controller) = &self.controller else {
            return;
        };
        match receive(controller.as_fd()) {
            Ok(Some((ToServer::Report, _))) => {}
            Ok(Some((ToServer::Budget { bytes }, _))) => self.set_budget(bytes),
            Err(Errno::INTR) => return,
            // It ends with the front, which is asked what that means.
            _ => {
                self.controller = None;
                return;
            }
        }
        let report = ToFront::Report(self.report());
        if let Some(controller) = &self.controller {
            let _ = send(controller.as_fd(), &report, None);
        }
    }

    pub(crate) fn read_messages(&mut self) -> Result<(), Fatal> {
        let ids: Vec<u32> = self.spaces.keys().copied().collect();
        for id in ids {
            let mut messages = Vec::new();
            for _ in 0..READS_MAX {
                let Some(space) = self.spaces.get(&id) else {
                    break;
                };
                // A descriptor of a dead space has no messages.
                let read = space.uffd.read(&mut messages, false);
                if read.is_err() {
                    break;
                }
                let has_more = messages.len() == MESSAGES_MAX;
                for message in messages.drain(..) {
                    self.take_message(id, message)?;
                }
                if !has_more {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Kills the whole tree, and only then lets the descriptors go: no thread ever sees zeroes in place of its bytes.
    fn end_all(&mut self, text: &str) {
        if self.front.is_some() {
            self.tell(&ToFront::Fatal(text.into()));
        } else {
            eprintln!("uzram run: {text}; all processes are killed");
        }
        if let Some(fence) = &self.throttle.fence {
            fence.kill();
        }
        process::kill_all(|| {
            // The front is not in it: it ends by itself, and must never be taken for who adopts its children.
            self.tree = process::descendants(&self.tree);
            let agents = self.agents();
            self.spaces
                .values_mut()
                .for_each(|space| space.agent = None);
            self.tree.difference(&agents).copied().collect()
        });
    }

    fn take_message(&mut self, id: u32, message: Message) -> Result<(), Fatal> {
        let Message::Fault {
            address,
            is_write,
            thread,
        } = message
        else {
            return self.follow(id, message);
        };
        if let Some(space) = self.spaces.get_mut(&id) {
            let address = address - address % PAGE_BYTES as u64;
            space.waiting.push(Fault {
                address,
                is_write,
                thread,
            });
            self.statistics.faults += 1;
        }
        Ok(())
    }
}
