//! Packets between the front and the server.

use std::path::PathBuf;

use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::SendFlags;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::hand_over;

/// A packet's bytes at most: a report of [`PROCESSES_MAX`] processes.
const PACKET_BYTES_MAX: usize = 64 << 10;
/// Processes in a report.
pub(crate) const PROCESSES_MAX: usize = 200;

/// Figures of a run, all processes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    /// The budget, in bytes.
    pub budget_bytes: u64,
    /// Anonymous memory of all processes at the last look, in bytes.
    pub used_bytes: u64,
    /// The most of it that was seen, in bytes.
    pub peak_bytes: u64,
    /// Pages that are compressed.
    pub stored_pages: u64,
    /// The most pages that were compressed at a time.
    pub stored_pages_max: u64,
    /// Bytes of these pages, compressed.
    pub compressed_bytes: u64,
    /// Those of them that are in a file, and not compressed.
    pub spilled_pages: u64,
    /// Memory that the store takes, in bytes.
    pub store_bytes: u64,
    /// The most memory that the store took, in bytes.
    pub store_bytes_max: u64,
    /// Pages that left.
    pub pages_out: u64,
    /// Pages that came back.
    pub pages_back: u64,
    /// Pages that were touched for the first time where they are served.
    pub pages_fresh: u64,
    /// Times that a thread had to wait for a page.
    pub faults: u64,
    /// Time from reading of these faults to their answers, in microseconds.
    pub waited_us: u64,
    /// Address spaces that were entered or forked.
    pub spaces: u64,
    /// Mappings that are served.
    pub mappings: u64,
}

/// Figures of one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessFigures {
    /// Its number.
    pub pid: i32,
    /// The name of its program, of 15 bytes at most.
    pub name: String,
    /// Its anonymous memory, in bytes. What it has in common with others is in theirs, too.
    pub used_bytes: u64,
    /// Its pages that are compressed. Those that it has in common with others are in theirs, too.
    pub stored_pages: u64,
    /// Its mappings that are served.
    pub mappings: u64,
}

/// Figures of a run and of its processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// All processes together.
    pub statistics: Statistics,
    /// How many processes there are.
    pub processes_count: usize,
    /// The largest of them, 200 at most.
    pub processes: Vec<ProcessFigures>,
}

/// To the server.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToServer {
    /// The first packet. The file for what does not compress comes with it.
    Begin {
        budget_bytes: u64,
        algorithm: String,
        /// The group of all processes, if there is one.
        fence: Option<PathBuf>,
    },
    /// Another socket for questions comes with it.
    Controller,
    /// A question for [`ToFront::Report`].
    Report,
    /// A new budget, and the same question.
    Budget { bytes: u64 },
    /// The program runs.
    Program { pid: i32 },
    /// A question for [`ToFront::Statistics`].
    Statistics,
    /// The program has ended, and so does the front.
    End,
}

/// To the front.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToFront {
    Ready,
    /// It cannot work here.
    Refused(String),
    /// A duplicate comes with it: as long as one is open no absent page is zeroes.
    Descriptor {
        space: u32,
    },
    /// No process has this space any more.
    Ended {
        space: u32,
    },
    Statistics(Statistics),
    Report(Report),
    /// For the user.
    Warning(String),
    /// The tree has to end.
    Fatal(String),
}

/// Sends a packet.
///
/// # Errors
/// The system's.
pub(crate) fn send(
    socket: BorrowedFd,
    packet: &impl Serialize,
    descriptor: Option<BorrowedFd>,
) -> Result<(), Errno> {
    let bytes = serde_json::to_vec(packet).map_err(|_| Errno::INVAL)?;
    match descriptor {
        Some(descriptor) => hand_over::give(socket, descriptor, &bytes),
        None => rustix::net::send(socket, &bytes, SendFlags::NOSIGNAL).map(drop),
    }
}

/// Receives a packet. None: the other end is closed, or talks nonsense.
///
/// # Errors
/// The system's.
pub(crate) fn receive<T: DeserializeOwned>(
    socket: BorrowedFd,
) -> Result<Option<(T, Option<OwnedFd>)>, Errno> {
    let mut bytes = vec![0; PACKET_BYTES_MAX];
    let (length, descriptor) = hand_over::take(socket, &mut bytes)?;
    let packet = serde_json::from_slice(&bytes[..length]).ok();
    Ok(packet.map(|packet| (packet, descriptor)))
}

impl Statistics {
    /// The figures in words, for people.
    pub fn lines(&self) -> Vec<String> {
        let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
        let pages = |pages: u64| mib(pages * 4096);
        let compressed_pages = self.stored_pages.saturating_sub(self.spilled_pages);
        let ratio = compressed_pages as f64 * 4096.0 / self.compressed_bytes.max(1) as f64;
        let mut lines = vec![format!(
            "memory: {} now, {} at most, of a budget of {}",
            mib(self.used_bytes),
            mib(self.peak_bytes),
            mib(self.budget_bytes)
        )];
        if self.pages_out == 0 {
            lines.push("it fitted: nothing was compressed".into());
            return lines;
        }
        if self.spilled_pages > 0 {
            lines.push(format!("in the file: {}", pages(self.spilled_pages)));
        }
        if compressed_pages > 0 {
            lines.push(format!(
                "compressed: {} in {} (ratio {ratio:.2})",
                pages(compressed_pages),
                mib(self.compressed_bytes)
            ));
        }
        lines.push(format!(
            "at most {} were compressed at a time, in {}",
            pages(self.stored_pages_max),
            mib(self.store_bytes_max)
        ));
        lines.push(format!(
            "{} left and {} came back; {} waits of {} us",
            pages(self.pages_out),
            pages(self.pages_back),
            self.faults,
            self.waited_us / self.faults.max(1)
        ));
        lines
    }
}
