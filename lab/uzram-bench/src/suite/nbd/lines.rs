//! Servers with connections to them, and loads that they take in turns.

use std::ffi::OsStr;
use std::process::Command;
use std::time::Duration;

use crate::command;
use crate::corpus::PAGE_BYTES;
use crate::error::Result;
use crate::figures::{Cell, Metric};
use crate::folder::DISKS;
use crate::peers::{Peer, nbdkit};
use crate::progress::Progress;
use crate::report::Block;
use crate::side::Side;
use crate::suite::nbd::client::{Connection, Direction, Line};
use crate::suite::nbd::load::{self, Job, Worker};
use crate::suite::nbd::server::Server;
use crate::suite::turns::{Runs, Turns};
use crate::suite::{Options, SUBJECT};
use crate::workload::Workload;

/// The loads that are measured.
pub(crate) const LOADS: [Load; 3] = [
    Load {
        name: "random-write",
        direction: Direction::Write,
        read_bytes: PAGE_BYTES,
        depth: 32,
    },
    Load {
        name: "random-read",
        direction: Direction::Read,
        read_bytes: PAGE_BYTES,
        depth: 32,
    },
    Load {
        name: "random-read-1m",
        direction: Direction::Read,
        read_bytes: 1 << 20,
        depth: 4,
    },
];
/// A turn of the warm-up of each case.
pub(crate) const WARM_UP: Duration = Duration::from_millis(200);
pub(crate) const IOPS: Metric = ("iops", "IOPS");

/// A kind of requests, so many of them in flight on each connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) name: &'static str,
    pub(crate) direction: Direction,
    pub(crate) read_bytes: usize,
    pub(crate) depth: usize,
}

impl Load {
    pub(crate) fn job<'a>(&self, pages: &'a [u8], duration: Duration) -> Job<'a> {
        Job {
            pages,
            direction: self.direction,
            read_bytes: self.read_bytes,
            depth: self.depth,
            duration,
        }
    }

    pub(crate) fn case(&self, corpus: &str, connections: usize) -> String {
        format!("{corpus}/{}-{connections}x{}", self.name, self.depth)
    }
}

/// A server with connections to it.
pub(crate) struct Served {
    /// Declared before the server, so that connections close first.
    pub(crate) workers: Vec<Worker>,
    pub(crate) server: Server,
}

impl Side<Served> {
    /// Fills the server by all of its `lines`, each a part.
    pub(crate) fn filled(
        server: Server,
        lines: Vec<Box<dyn Line>>,
        workload: &Workload,
        options: &Options,
    ) -> Result<Side<Served>> {
        let (mut workers, parts) = (Vec::new(), lines.len());
        for (part, line) in lines.into_iter().enumerate() {
            options.stop.check()?;
            let mut worker = Worker::new(line, part, parts)?;
            worker.fill(workload.input())?;
            workers.push(worker);
        }
        Ok(Side::new(
            server.variant.clone(),
            Served { workers, server },
        ))
    }
}

/// Servers, all filled with the same data.
pub(crate) struct Lines<'a> {
    pub(crate) workload: &'a Workload,
    pub(crate) sides: Vec<Side<Served>>,
}

impl<'a> Lines<'a> {
    pub(super) fn start(
        options: &Options,
        peers: &[Peer],
        workload: &'a Workload,
        connections: usize,
        progress: &mut Progress,
    ) -> Result<Lines<'a>> {
        let size_bytes = workload.bytes() as u64;
        let ours = options
            .algorithms
            .iter()
            .map(|name| start_uzram(name, size_bytes, &[]));
        let theirs = peers.iter().map(|&peer| start_nbdkit(peer, size_bytes));
        let servers = ours.chain(theirs).collect::<Result<Vec<_>>>()?;
        let fill = |server: Server| {
            progress.at(&format!("filling {}", server.variant), 0.0);
            let open = |_| -> Result<Box<dyn Line>> {
                let connection = Connection::open(&server.socket(), &server.export)?;
                Ok(Box::new(connection))
            };
            let lines = (0..connections).map(open).collect::<Result<Vec<_>>>()?;
            Side::filled(server, lines, workload, options)
        };
        let sides = servers.into_iter().map(fill).collect::<Result<_>>()?;
        Ok(Lines { workload, sides })
    }

    /// Operations a second of every server, one figure a run; and the ratios of those that `pairs` names.
    pub(crate) fn measure(
        &mut self,
        load: &Load,
        case: String,
        pairs: impl Fn(&str, &str) -> bool,
        options: &Options,
        progress: &mut Progress,
        block: &mut Block,
    ) -> Result<()> {
        let (pages, sides) = (self.workload.input(), &mut self.sides);
        let turns = Turns::of(&case, sides.len(), Runs::Few);
        let rates = turns.measure(options, progress, |turn| {
            let job = load.job(pages, turn.time(WARM_UP, options));
            load::run_together(&mut sides[turn.side].driven.workers, job)
        })?;
        let cell = Cell::new(case, IOPS, self.workload.bytes() as u64);
        cell.add_all(&Side::names(sides), &rates, pairs, block);
        Ok(())
    }
}

/// A server of ours in a process of its own, with these options besides.
pub(crate) fn start_uzram(algorithm: &str, size_bytes: u64, more: &[&str]) -> Result<Server> {
    let name = DISKS[0];
    Server::start(&variant(algorithm), name, |folder, socket| {
        let mut command = Command::new(command::beside(SUBJECT));
        command.args(["serve", "--name", name, "--algorithm", algorithm, "--size"]);
        command
            .arg(size_bytes.to_string())
            .args([OsStr::new("--socket"), socket.as_os_str()])
            .args(more);
        // Its state in a folder of its own: no other server's name is in the way.
        command.env("XDG_RUNTIME_DIR", folder);
        command
    })
}

fn start_nbdkit(peer: Peer, size_bytes: u64) -> Result<Server> {
    Server::start(peer.name(), "", |_, socket| {
        nbdkit::command(peer, size_bytes, socket)
    })
}

pub(super) fn variant(algorithm: &str) -> String {
    format!("{SUBJECT}-{algorithm}")
}
