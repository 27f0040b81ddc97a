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
pub(crate) mod lines;
pub(crate) mod load;
pub(crate) mod server;
mod slow;
#[cfg(test)]
pub(crate) mod tests;

use crate::corpus::Corpus;
use crate::error::Result;
use crate::peers::{Missing, Peer, nbdkit};
use crate::progress::Progress;
use crate::report::{Block, Findings};
use crate::side::ours_over_theirs;
use crate::suite::{Options, Suite, Work};
use crate::workload::Workload;
pub(crate) use lines::start_uzram;
use lines::{LOADS, Lines};

/// Connections at once.
const CONNECTIONS: [usize; 2] = [1, 4];
/// Distinct pages of the generated buffers: 64 MiB.
const FIO_PAGES: usize = 16_384;
/// The suite.
pub(crate) const SUITE: Suite = Suite {
    name: "nbd",
    peers: &Peer::NBD,
    algorithms: &["lz4", "zstd"],
    corpus: None,
    work: Work::Timed,
    plan: |_, ()| Ok(Box::new(run)),
};

/// Runs the suite: one block for each corpus, and one for fio's half-compressible buffers.
fn run(options: &Options, findings: &mut Findings) -> Result<()> {
    let fio = crate::synthetic::fio(50, FIO_PAGES);
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
                lines.measure(load, case, ours_over_theirs, options, &mut progress, block)?;
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
            let missing = |peer: &Peer| Missing::new(peer.name(), &reason);
            (Vec::new(), options.peers.iter().map(missing).collect())
        }
    }
}
