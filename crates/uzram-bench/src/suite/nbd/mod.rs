//! Suite `nbd`: servers under load at random places, over Unix sockets.
//!
//! Every server is a process of its own, ours included; the load comes from this one. All of them
//! run through the whole block with the same data, and get the load in slices in turn: a run is one
//! slice each, and ratios are taken run by run. Nothing is pinned under load, as nobody pins a server
//! and its clients apart; with as many connections as CPUs or more, the client takes its share of the
//! CPUs from every server alike, which draws all ratios towards one. Requests one at a time are timed
//! one by one, with server and client on one CPU and on two: waking an idle CPU costs ten times as
//! much as waking a busy one, so the two are not to be compared.

pub(crate) mod client;
mod latency;
pub(crate) mod load;
pub(crate) mod server;
mod slow;
#[cfg(test)]
pub(crate) mod tests;

use std::ffi::OsStr;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::corpus::{Corpus, PAGE_BYTES};
use crate::error::{Error, Result};
use crate::peers::{Missing, Peer, nbdkit};
use crate::progress::Progress;
use crate::report::{Aim, Block, Findings, Measured, Ratio};
use crate::sample::Series;
use crate::suite::{Options, SUBJECT};
use crate::workload::Workload;
use client::{Connection, Direction};
use load::{Job, Worker};
use server::Server;

/// What is measured under load.
const LOADS: [Load; 3] = [
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
/// Connections at once.
const CONNECTIONS: [usize; 2] = [1, 4];
/// Distinct pages of the generated buffers: 64 MiB.
const FIO_PAGES: usize = 16_384;
/// Slice for the warm-up of each case.
const WARM_UP: Duration = Duration::from_millis(200);
const IOPS: &str = "iops";

/// A kind of requests, so many of them in flight on each connection.
#[derive(Clone, Copy, Debug)]
struct Load {
    name: &'static str,
    direction: Direction,
    read_bytes: usize,
    depth: usize,
}

impl Load {
    fn job<'a>(&self, pages: &'a [u8], duration: Duration) -> Job<'a> {
        Job {
            pages,
            direction: self.direction,
            read_bytes: self.read_bytes,
            depth: self.depth,
            duration,
        }
    }

    fn case(&self, corpus: &str, connections: usize) -> String {
        format!("{corpus}/{}-{connections}x{}", self.name, self.depth)
    }

    /// A codec is compared with what stores as much: lz4 with no compression, zstd with zstd.
    fn aim(&self, subject: &str, peer: &str) -> Option<Aim> {
        let is_large = self.read_bytes > PAGE_BYTES;
        let limit = match (subject, peer, self.direction) {
            ("uzram-lz4", "nbdkit-memory", Direction::Write) => 0.8,
            ("uzram-lz4", "nbdkit-memory", Direction::Read) if is_large => 0.6,
            ("uzram-lz4", "nbdkit-memory", Direction::Read) => 0.95,
            ("uzram-zstd", "nbdkit-zstd", Direction::Write) => 5.0,
            ("uzram-zstd", "nbdkit-zstd", Direction::Read) if !is_large => 1.6,
            _ => return None,
        };
        Some(Aim::AtLeast(limit))
    }
}

/// Runs the suite: one block for each corpus, and one for fio's half-compressible buffers.
pub(crate) fn run(options: &Options, findings: &mut Findings) -> Result<()> {
    let fio = Corpus::fio(50, FIO_PAGES);
    let corpora: Vec<&Corpus> = options.corpora.iter().chain([&fio]).collect();
    let steps_a_corpus = CONNECTIONS.len() * LOADS.len() + latency::STEPS + 1;
    let mut progress = Progress::new(corpora.len() * steps_a_corpus);
    let (peers, missing) = available_peers(options);
    findings.missing = missing;
    for corpus in corpora {
        let workload = Workload::new(corpus, options.quick)?;
        findings.blocks.push(Block {
            title: format!(
                "{}: {} MiB device, random places, not pinned unless said",
                corpus.name,
                workload.bytes() >> 20
            ),
            notes: vec!["N x D: N connections, D requests in flight on each".to_owned()],
            ..Block::default()
        });
        let block = findings.blocks.last_mut().expect("it was just pushed");
        for connections in CONNECTIONS {
            let mut lines = Lines::start(options, &peers, &workload, connections, &mut progress)?;
            for load in &LOADS {
                let case = load.case(&corpus.name, connections);
                let figures = lines.measure(load, &case, options, &mut progress)?;
                record(load, &case, &figures, workload.bytes() as u64, block);
            }
            if connections == 1 {
                latency::measure(&mut lines, &corpus.name, options, &mut progress, block)?;
                slow::measure(&mut lines, &corpus.name, options, &mut progress, block)?;
            }
        }
    }
    Ok(())
}

fn available_peers(options: &Options) -> (Vec<Peer>, Vec<Missing>) {
    match nbdkit::missing() {
        None => (options.peers.clone(), Vec::new()),
        Some(reason) => {
            let missing = options.peers.iter().map(|peer| Missing {
                peer: peer.name().to_owned(),
                reason: reason.clone(),
            });
            (Vec::new(), missing.collect())
        }
    }
}

/// Servers with connections to them, all filled with the same data.
struct Lines<'a> {
    workload: &'a Workload,
    /// Declared before the servers, so that connections close first.
    workers: Vec<Vec<Worker<Connection>>>,
    servers: Vec<Server>,
}

impl<'a> Lines<'a> {
    fn start(
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
        let mut workers = Vec::new();
        for server in &servers {
            let mut group = Vec::new();
            for part in 0..connections {
                options.stop.check()?;
                progress.at(&format!("filling {}", server.variant), 0.0);
                let connection = Connection::open(&server.socket(), &server.export)?;
                let mut worker = Worker::new(connection, part, connections)?;
                worker.fill(workload.input())?;
                group.push(worker);
            }
            workers.push(group);
        }
        Ok(Lines {
            workload,
            workers,
            servers,
        })
    }

    /// For every server its operations a second, one figure a run.
    fn measure(
        &mut self,
        load: &Load,
        case: &str,
        options: &Options,
        progress: &mut Progress,
    ) -> Result<Vec<(String, Series)>> {
        let schedule = options.schedule;
        let slice = slice(options);
        let pages = self.workload.input();
        for group in &mut self.workers {
            load::run_together(group, load.job(pages, WARM_UP))?;
        }
        let mut series = vec![Series::default(); self.servers.len()];
        let started = Instant::now();
        for run in 0..schedule.runs_min {
            for position in 0..self.servers.len() {
                options.stop.check()?;
                progress.at(case, schedule.part(run, started.elapsed()));
                // Another server starts each run.
                let at = (position + run) % self.servers.len();
                let rate = load::run_together(&mut self.workers[at], load.job(pages, slice))?;
                series[at].push(rate);
            }
        }
        progress.step();
        let names = self.servers.iter().map(|server| server.variant.clone());
        Ok(names.zip(series).collect())
    }
}

/// How long a server has the load before it is another's turn.
fn slice(options: &Options) -> Duration {
    options.schedule.at_least / options.schedule.runs_min as u32
}

/// A server of ours in a process of its own, with these options besides.
pub(crate) fn start_uzram(algorithm: &str, size_bytes: u64, more: &[&str]) -> Result<Server> {
    let program = std::env::current_exe().map_err(|error| Error::io("own executable", error))?;
    let name = "bench";
    Server::start(&variant(algorithm), name, |folder, socket| {
        let mut command = Command::new(program);
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

fn variant(algorithm: &str) -> String {
    format!("{SUBJECT}-{algorithm}")
}

fn record(
    load: &Load,
    case: &str,
    figures: &[(String, Series)],
    working_set_bytes: u64,
    block: &mut Block,
) {
    for (variant, series) in figures {
        block.results.extend(series.spread().map(|spread| Measured {
            case: case.to_owned(),
            variant: variant.clone(),
            metric: IOPS,
            unit: "IOPS",
            spread,
            working_set_bytes,
            pinned: None,
        }));
    }
    for (peer, theirs) in figures.iter().filter(|(variant, _)| !is_ours(variant)) {
        for (subject, ours) in figures.iter().filter(|(variant, _)| is_ours(variant)) {
            let aim = load.aim(subject, peer);
            let sides = ((subject.as_str(), ours), (peer.as_str(), theirs));
            block
                .ratios
                .extend(Ratio::of(case, IOPS, sides.0, sides.1, aim));
        }
    }
}

fn is_ours(variant: &str) -> bool {
    variant.starts_with(SUBJECT)
}
