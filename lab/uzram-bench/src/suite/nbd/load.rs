//! The job: reads or writes at random places, a fixed number in flight on each connection.
//!
//! The writer remembers which page it put at each place, and every byte that a read brings is
//! compared with it, within the measurement: a server that is fast and wrong is not fast. Each
//! connection has a part of the device to itself, and no place has two requests in flight, so what
//! a place holds is never in doubt.

use std::time::{Duration, Instant};

use crate::corpus::PAGE_BYTES;
use crate::error::{Error, Result};
use crate::suite::nbd::client::{DEPTH_MAX, Direction, Line};
use crate::suite::together::at_once;
use uzram_testkit::Rng;

/// Bytes of a request when a disk is filled.
pub(crate) const FILL_BYTES: usize = 256 << 10;

/// The requests of all connections: their number, size, direction and depth.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job<'a> {
    /// Whole pages, in the order in which the device is filled.
    pub(crate) pages: &'a [u8],
    pub(crate) direction: Direction,
    /// Bytes of a read, whole pages, at most [`super::client::REQUEST_MAX_BYTES`]; a write is one page.
    pub(crate) read_bytes: usize,
    pub(crate) depth: usize,
    pub(crate) duration: Duration,
}

/// A connection with its part of the device.
pub(crate) struct Worker {
    connection: Box<dyn Line>,
    /// First byte of its part.
    base: u64,
    /// For each place of its part the page it holds, as an index into the job's pages.
    held: Vec<u32>,
    rng: Rng,
    slots: Vec<Slot>,
    busy: Vec<u32>,
    /// Of the last job's requests, if it had one at a time, from sending to the whole reply.
    latencies_ns: Vec<u64>,
}

/// A request in flight, at most [`DEPTH_MAX`] of them.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    in_flight: bool,
    /// Bytes that the reply brings: none of a write.
    read_bytes: usize,
    place: u32,
    /// Told apart in the cookie, so that a late or doubled reply is noticed.
    sequence: u32,
}

/// Operations that completed, and when the first started and the last ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) operations: u64,
    started: Instant,
    ended: Instant,
}

impl Worker {
    /// A worker for part `part` of `parts` of the device.
    pub(crate) fn new(connection: Box<dyn Line>, part: usize, parts: usize) -> Result<Worker> {
        let places = connection.size_bytes() as usize / PAGE_BYTES / parts;
        if places <= DEPTH_MAX {
            return Err(Error::Failed(format!(
                "a disk for load: {places} pages are too few"
            )));
        }
        Ok(Worker {
            connection,
            base: (part * places * PAGE_BYTES) as u64,
            held: vec![0; places],
            rng: Rng::new(part as u64 + 1),
            slots: vec![Slot::default(); DEPTH_MAX],
            busy: Vec::with_capacity(DEPTH_MAX),
            latencies_ns: Vec::new(),
        })
    }

    /// How long each request of the last job took, in ns; empty unless its depth was 1.
    pub(crate) fn latencies_ns(&self) -> &[u64] {
        &self.latencies_ns
    }

    /// Writes every place once, in order, in large requests.
    pub(crate) fn fill(&mut self, pages: &[u8]) -> Result<()> {
        let pages_count = pages.len() / PAGE_BYTES;
        let places_a_request = FILL_BYTES / PAGE_BYTES;
        let mut data = Vec::with_capacity(FILL_BYTES);
        for first in (0..self.held.len()).step_by(places_a_request) {
            let end = (first + places_a_request).min(self.held.len());
            data.clear();
            for place in first..end {
                let page = place % pages_count;
                self.held[place] = page as u32;
                data.extend_from_slice(page_at(pages, page as u32));
            }
            self.connection
                .write(0, self.base + (first * PAGE_BYTES) as u64, &data);
            self.connection.send()?;
            let mut answered = false;
            while !answered {
                let read_bytes = |cookie| (cookie == 0).then_some(0);
                self.connection.receive(&read_bytes, &mut |_| {
                    answered = true;
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    /// Keeps `depth` requests in flight for the job's duration, then waits for the last of them.
    pub(crate) fn run(&mut self, job: Job<'_>) -> Result<Done> {
        let started = Instant::now();
        let deadline = started + job.duration;
        let mut operations = 0;
        self.latencies_ns.clear();
        loop {
            let now = Instant::now();
            if now < deadline {
                self.issue(job)?;
            } else if self.busy.is_empty() {
                return Ok(Done {
                    operations,
                    started,
                    ended: Instant::now(),
                });
            }
            operations += self.collect(job.pages)?;
            if job.depth == 1 && self.busy.is_empty() {
                self.latencies_ns.push(now.elapsed().as_nanos() as u64);
            }
        }
    }

    /// Sends requests, each by itself, until `depth` are in flight.
    fn issue(&mut self, job: Job<'_>) -> Result<()> {
        let pages_count = job.pages.len() / PAGE_BYTES;
        for index in 0..job.depth.min(DEPTH_MAX) {
            if self.slots[index].in_flight {
                continue;
            }
            let read_bytes = match job.direction {
                Direction::Read => job.read_bytes,
                Direction::Write => 0,
            };
            let place = self.free_place(read_bytes.max(PAGE_BYTES) / PAGE_BYTES);
            let sequence = self.slots[index].sequence.wrapping_add(1);
            self.slots[index] = Slot {
                in_flight: true,
                read_bytes,
                place,
                sequence,
            };
            self.busy.push(place);
            let cookie = cookie(index, sequence);
            let offset = self.base + u64::from(place) * PAGE_BYTES as u64;
            match job.direction {
                Direction::Read => self.connection.read(cookie, offset, read_bytes),
                Direction::Write => {
                    let page = self.rng.below(pages_count) as u32;
                    self.held[place as usize] = page;
                    self.connection
                        .write(cookie, offset, page_at(job.pages, page));
                }
            }
            self.connection.send()?;
        }
        Ok(())
    }

    /// The first of `pages` places without a request in flight, at random.
    fn free_place(&mut self, pages: usize) -> u32 {
        loop {
            let place = (self.rng.below(self.held.len() / pages) * pages) as u32;
            // At most DEPTH_MAX of more places than that are busy, so this ends.
            if !self.busy.contains(&place) {
                return place;
            }
        }
    }

    /// Takes the replies that have come; how many.
    fn collect(&mut self, pages: &[u8]) -> Result<u64> {
        let Worker {
            connection,
            slots,
            busy,
            held,
            base,
            ..
        } = self;
        let find = |slots: &[Slot], reply: u64| {
            let index = (reply & 0xffff_ffff) as usize;
            let slot = slots.get(index).filter(|slot| slot.in_flight)?;
            (cookie(index, slot.sequence) == reply).then_some((index, *slot))
        };
        let mut answered = [false; DEPTH_MAX];
        let mut count = 0;
        let in_flight = slots.clone();
        let read_bytes = |cookie| {
            let (_, slot) = find(&in_flight, cookie)?;
            Some(slot.read_bytes)
        };
        connection.receive(&read_bytes, &mut |reply| {
            let found = find(&in_flight, reply.cookie).filter(|(index, _)| !answered[*index]);
            let Some((index, slot)) = found else {
                return Err(Error::Failed(
                    "NBD server: two replies to one request".to_owned(),
                ));
            };
            answered[index] = true;
            let places = slot.place..;
            for (place, data) in places.zip(reply.data.chunks_exact(PAGE_BYTES)) {
                if data != page_at(pages, held[place as usize]) {
                    let offset = *base + u64::from(place) * PAGE_BYTES as u64;
                    return Err(Error::Failed(format!(
                        "NBD server: wrong data at offset {offset}"
                    )));
                }
            }
            busy.retain(|&place| place != slot.place);
            count += 1;
            Ok(())
        })?;
        for (slot, answered) in slots.iter_mut().zip(answered) {
            slot.in_flight &= !answered;
        }
        Ok(count)
    }
}

/// Runs the job on all workers at once: operations a second.
pub(crate) fn run_together(workers: &mut [Worker], job: Job<'_>) -> Result<f64> {
    let works = workers.iter_mut().map(|worker| move || worker.run(job));
    let done = at_once(works)?;
    let operations: u64 = done.iter().map(|done| done.operations).sum();
    let first = done.iter().map(|done| done.started).min();
    let last = done.iter().map(|done| done.ended).max();
    let span = first
        .zip(last)
        .map_or(Duration::ZERO, |(first, last)| last - first);
    Ok(operations as f64 / span.as_secs_f64().max(f64::MIN_POSITIVE))
}

fn cookie(index: usize, sequence: u32) -> u64 {
    u64::from(sequence) << 32 | index as u64
}

fn page_at(pages: &[u8], page: u32) -> &[u8] {
    &pages[page as usize * PAGE_BYTES..][..PAGE_BYTES]
}
