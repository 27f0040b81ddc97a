//! All that the server knows: spaces, what is stored, who is in the tree.
//!
//! One verb a file works on it: `follow`, `faults`, `evict`, `look`, and the loop in `server`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use uzram::{Error, ErrorKind};
use uzram_pager::near::Near;

use crate::agent::Agent;
use crate::common::Common;
use crate::fence::Fence;
use crate::objects::Objects;
use crate::process;
use crate::protocol::{PROCESSES_MAX, ProcessFigures, Report, Statistics, ToFront, send};
use crate::space::Space;
use crate::table::Place;
use crate::taken::Taken;
use crate::throttle::Throttle;
use crate::tracee;
use crate::units::PAGE_BYTES;

/// Processes below a part of the budget are left alone.
const PROCESS_BYTES: std::ops::RangeInclusive<u64> = 8 << 20..=64 << 20;
const PROCESS_PART: u64 = 8;
/// Pages that come with one fault at most, if the ones before were touched in a row.
pub(crate) const AHEAD_MAX: usize = 32;
/// Time until a look for pages is worth another one, after there were none; twice as long each time.
pub(crate) const STUCK_TIME: std::ops::Range<Duration> =
    Duration::from_millis(20)..Duration::from_secs(2);
/// Time for the store's housekeeping at a time.
const MAINTENANCE: Duration = Duration::from_micros(200);

/// The reason why the tree has to end.
#[derive(Debug)]
pub(crate) struct Fatal(pub String);

/// All that is managed.
pub(crate) struct Server {
    pub(crate) front: Option<OwnedFd>,
    /// Where else questions come from.
    pub(crate) controller: Option<OwnedFd>,
    /// The front's number, while it was there.
    pub(crate) front_process: i32,
    pub(crate) objects: Objects,
    pub(crate) spaces: BTreeMap<u32, Space>,
    next_space: u32,
    pub(crate) taken: Taken,
    /// Room for pages that come back together.
    pub(crate) ahead: Box<[u8]>,
    /// Processes of the tree, by the last look.
    pub(crate) tree: BTreeSet<i32>,
    /// Processes that are left alone.
    pub(crate) alone: BTreeSet<i32>,
    /// Threads that stop too late.
    stopping: Vec<i32>,
    /// Processes with less memory are left alone.
    pub(crate) process_bytes_min: u64,
    pub(crate) common: Common,
    /// Anonymous bytes of the large processes, the largest first, by the last look.
    pub(crate) large: Vec<(i32, u64)>,
    pub(crate) statistics: Statistics,
    pub(crate) next_look: Instant,
    pub(crate) next_tree: Instant,
    /// Nothing could be taken.
    pub(crate) stuck_until: Option<Instant>,
    pub(crate) stuck_time: Duration,
    pub(crate) near: Near,
    pub(crate) throttle: Throttle,
    pub(crate) has_begun: bool,
    pub(crate) is_ending: bool,
}

impl Server {
    /// A server without anything to serve yet.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn new(
        front: &OwnedFd,
        budget_bytes: u64,
        algorithm: &str,
        spill: Option<OwnedFd>,
        fence: Option<Fence>,
    ) -> uzram::Result<Server> {
        let now = Instant::now();
        let front_process = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
        Ok(Server {
            front: Some(front.try_clone().map_err(|error| {
                Error::new(ErrorKind::Io, "no descriptor is free").with_source(error)
            })?),
            controller: None,
            front_process,
            objects: Objects::new(algorithm, spill.map(File::from))?,
            spaces: BTreeMap::new(),
            next_space: 0,
            taken: Taken::new(),
            ahead: vec![0; AHEAD_MAX * PAGE_BYTES].into(),
            tree: BTreeSet::new(),
            alone: BTreeSet::new(),
            stopping: Vec::new(),
            process_bytes_min: process_bytes_min(budget_bytes),
            common: Common::new(),
            large: Vec::new(),
            statistics: Statistics {
                budget_bytes,
                ..Statistics::default()
            },
            next_look: now,
            next_tree: now,
            stuck_until: None,
            stuck_time: STUCK_TIME.start,
            near: Near::new("/proc"),
            throttle: Throttle::new(fence),
            has_begun: false,
            is_ending: false,
        })
    }

    /// A budget for all processes from now on, in bytes.
    pub(crate) fn set_budget(&mut self, bytes: u64) {
        self.statistics.budget_bytes = bytes;
        self.process_bytes_min = process_bytes_min(bytes);
        self.stuck_until = None;
        self.next_look = Instant::now();
        if let Some(fence) = &self.throttle.fence {
            fence.limit(bytes);
        }
    }

    /// Tells the front, if it is there.
    pub(crate) fn tell(&self, packet: &ToFront) {
        if let Some(front) = &self.front {
            // Without a front there is nobody to tell, which the next look at its socket finds.
            let _ = send(front.as_fd(), packet, None);
        }
    }

    /// A space that is served from now on. The front gets a duplicate of its descriptor at once.
    pub(crate) fn add(&mut self, space: Space) -> u32 {
        let id = self.next_space;
        if let Some(front) = &self.front {
            let _ = send(
                front.as_fd(),
                &ToFront::Descriptor { space: id },
                Some(space.uffd.as_fd()),
            );
        }
        self.next_space += 1;
        self.statistics.spaces += 1;
        self.spaces.insert(id, space);
        id
    }

    /// Forgets a space that no process has.
    pub(crate) fn forget(&mut self, id: u32) {
        if let Some(space) = self.spaces.remove(&id) {
            self.tell(&ToFront::Ended { space: id });
            for place in space.table.places() {
                self.release(place);
            }
        }
    }

    /// The page has no use for its place any more.
    pub(crate) fn release(&mut self, place: Place) {
        match place {
            Place::Stored(object) => self.objects.drop(object),
            Place::Taken(slot) => self.taken.drop(slot),
            Place::Memory { .. } | Place::Zero | Place::Discarded => {}
        }
    }

    /// Lets threads go that have stopped too late to be of use.
    pub(crate) fn let_go(&mut self) {
        self.stopping.retain(|thread| !tracee::let_go(*thread));
    }

    /// A thread is to be let go once it has stopped.
    pub(crate) fn lets_go_later(&mut self, thread: i32) {
        self.stopping.push(thread);
    }

    pub(crate) fn statistics(&self) -> Statistics {
        let stats = self.objects.store().stats();
        Statistics {
            stored_pages: self.objects.pages() as u64,
            compressed_bytes: stats.compr_data_size_bytes,
            spilled_pages: stats.bd_count,
            store_bytes: self.objects.store().mem_used_bytes(),
            mappings: self
                .spaces
                .values()
                .map(|space| space.mappings() as u64)
                .sum(),
            ..self.statistics
        }
    }

    /// The same, and the figures of each process.
    pub(crate) fn report(&self) -> Report {
        let figures = |pid: &i32| {
            let space = self.spaces.values().find(|space| space.owner == Some(*pid));
            Some(ProcessFigures {
                pid: *pid,
                name: process::name(*pid),
                used_bytes: process::anonymous_bytes(*pid)?,
                stored_pages: space.map_or(0, |space| space.table.away() as u64),
                mappings: space.map_or(0, |space| space.mappings() as u64),
            })
        };
        let mut processes: Vec<ProcessFigures> = self.tree.iter().filter_map(figures).collect();
        processes.sort_by_key(|its| std::cmp::Reverse((its.used_bytes, its.stored_pages)));
        let processes_count = processes.len();
        processes.truncate(PROCESSES_MAX);
        Report {
            statistics: self.statistics(),
            processes_count,
            processes,
        }
    }

    pub(crate) fn maintain(&mut self) {
        let stats_max = self.objects.store().mem_used_bytes();
        let statistics = &mut self.statistics;
        statistics.store_bytes_max = statistics.store_bytes_max.max(stats_max);
        statistics.stored_pages_max = statistics.stored_pages_max.max(self.objects.pages() as u64);
        self.objects.store().maintain(MAINTENANCE);
        if let Some(text) = self.objects.spill_failure() {
            let text = format!("what does not compress stays in memory: {text}");
            self.tell(&ToFront::Warning(text));
        }
    }

    pub(crate) fn agents(&self) -> BTreeSet<i32> {
        let agents = self
            .spaces
            .values()
            .filter_map(|space| space.agent.as_ref());
        agents.map(Agent::pid).collect()
    }
}

fn process_bytes_min(budget_bytes: u64) -> u64 {
    (budget_bytes / PROCESS_PART).clamp(*PROCESS_BYTES.start(), *PROCESS_BYTES.end())
}
