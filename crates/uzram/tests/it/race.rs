//! Eight threads on the same pages of a store or a device, and the judge of what they saw.

use std::sync::atomic::{AtomicU64, Ordering};

use uzram::{Bio, BlockDevice, ErrorKind, PageIndex, Store, Zeroing};

use crate::history::{self, Clock, Event, SECTOR_BYTES, WHOLE, ZERO};
use crate::pages::Rng;

pub const THREADS: u64 = 8;
/// Pages that they share.
pub const PAGES: u64 = 64;
const SECTORS: u64 = 4096 / SECTOR_BYTES as u64;

/// Operations of each thread; pages are many, so that the last of a run matter as much as the first.
pub const TURNS: u64 = if cfg!(debug_assertions) {
    3_000
} else {
    30_000
};

/// The request of a thread: a run of sectors of one page, or of neighbouring pages.
pub enum Request {
    Read,
    Write(u64),
    Zero(Zeroing),
    Trim,
}

/// A store or a device, addressed by sector.
pub trait Target: Sync {
    /// Carries out the request; reads fill `buffer`, writes take it. False if it was refused for
    /// want of memory.
    fn act(&self, request: &Request, sector: u64, buffer: &mut [u8]) -> bool;
    /// Sectors that one request may cover; all of a page if 8.
    fn sectors_max(&self) -> u64;
}

impl Target for Store {
    fn act(&self, request: &Request, sector: u64, buffer: &mut [u8]) -> bool {
        let (page, start) = (
            PageIndex(sector / SECTORS),
            (sector % SECTORS) as usize * SECTOR_BYTES,
        );
        let done = match request {
            Request::Read => self.read_at(page, start, buffer),
            Request::Write(_) => self.write_at(page, start, buffer),
            Request::Zero(zeroing) => self.zero_at(page, start, buffer.len(), *zeroing),
            Request::Trim => self.trim(page),
        };
        accept(done)
    }

    fn sectors_max(&self) -> u64 {
        SECTORS
    }
}

/// A device of pages of 4096 bytes, whatever it keeps them in.
pub struct Disk<'a>(pub &'a dyn BlockDevice);

impl Target for Disk<'_> {
    fn act(&self, request: &Request, sector: u64, buffer: &mut [u8]) -> bool {
        let (offset, length) = (sector * SECTOR_BYTES as u64, buffer.len() as u64);
        let bio = match request {
            Request::Read => Bio::Read { offset, buffer },
            Request::Write(_) => Bio::Write {
                offset,
                data: buffer,
            },
            Request::Zero(zeroing) => Bio::Zero {
                offset,
                length,
                zeroing: *zeroing,
            },
            // A trim skips what is not a whole unit.
            Request::Trim if self.0.geometry().preferred_block_bytes != 4096 => Bio::Zero {
                offset,
                length,
                zeroing: Zeroing::MayPunch,
            },
            Request::Trim => Bio::Trim { offset, length },
        };
        accept(self.0.submit(bio))
    }

    fn sectors_max(&self) -> u64 {
        3 * SECTORS
    }
}

fn accept(done: uzram::Result<()>) -> bool {
    match done {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            false
        }
    }
}

struct Worker<'a, T> {
    target: &'a T,
    clock: &'a Clock,
    values: &'a AtomicU64,
    thread: u64,
    rng: Rng,
    events: Vec<Event>,
}

impl<T: Target> Worker<'_, T> {
    /// One operation: mostly this thread's own sector of a page, else what disturbs the others.
    fn turn(&mut self) {
        let page = self.rng.below_u64(PAGES);
        let own = page * SECTORS + self.thread % SECTORS;
        let whole = page * SECTORS;
        match self.rng.below_u64(100) {
            0..46 => self.write(own, 1),
            46..54 => self.zero(own, 1, Zeroing::MayPunch),
            54..62 => self.write(whole, SECTORS),
            62..66 => self.act(Request::Trim, whole, SECTORS),
            66..70 => self.zero(whole, SECTORS, Zeroing::NoHole),
            70..74 => {
                let most = self.target.sectors_max();
                let count = 1 + self.rng.below_u64(most);
                let sector = self.rng.below_u64(PAGES * SECTORS - count);
                // One page at a time unless the target takes more.
                let count = if most == SECTORS {
                    count.min(SECTORS - sector % SECTORS)
                } else {
                    count
                };
                self.write(sector, count);
            }
            74..86 => self.act(Request::Read, own, 1),
            _ => self.act(Request::Read, whole, SECTORS),
        }
    }

    fn write(&mut self, sector: u64, count: u64) {
        let covers = count == SECTORS && sector.is_multiple_of(SECTORS);
        let number = self.values.fetch_add(1, Ordering::Relaxed);
        self.act(
            Request::Write(number | if covers { WHOLE } else { 0 }),
            sector,
            count,
        );
    }

    fn zero(&mut self, sector: u64, count: u64, zeroing: Zeroing) {
        self.act(Request::Zero(zeroing), sector, count);
    }

    fn act(&mut self, request: Request, sector: u64, count: u64) {
        let mut buffer = vec![0xee; count as usize * SECTOR_BYTES];
        if let Request::Write(value) = request {
            for (at, bytes) in (sector..).zip(buffer.chunks_exact_mut(SECTOR_BYTES)) {
                history::fill(value, at, bytes);
            }
        }
        let begin = self.clock.tick();
        let done = self.target.act(&request, sector, &mut buffer);
        let end = self.clock.tick();
        if !done {
            // A refused request may have changed pages before the one that it failed at; requests
            // of one page change nothing.
            return self.note_refused(&request, sector, count, begin);
        }
        let mut whole = Vec::new();
        for (at, bytes) in (sector..).zip(buffer.chunks_exact(SECTOR_BYTES)) {
            let value = match request {
                Request::Read => history::value(at, bytes),
                Request::Write(value) => value,
                Request::Zero(_) | Request::Trim => ZERO,
            };
            let is_read = matches!(request, Request::Read);
            if is_read && value & WHOLE != 0 {
                whole.push(value);
            }
            self.events.push(Event {
                sector: at,
                value,
                is_read,
                begin,
                end,
            });
        }
        assert!(
            whole.windows(2).all(|pair| pair[0] == pair[1]),
            "a torn page: {whole:x?}"
        );
    }

    /// Notes a write that may have happened in part: never acknowledged, so it may end any time.
    fn note_refused(&mut self, request: &Request, sector: u64, count: u64, begin: u64) {
        if sector / SECTORS == (sector + count - 1) / SECTORS {
            return;
        }
        let value = if let Request::Write(value) = request {
            *value
        } else {
            ZERO
        };
        let events = (sector..sector + count).map(|sector| Event {
            sector,
            value,
            is_read: false,
            begin,
            end: u64::MAX,
        });
        self.events.extend(events);
    }
}

/// Runs all threads to the end of their turns, then reads everything and judges it.
pub fn race<T: Target>(target: &T, turns: u64, prepare: &(dyn Fn() + Sync)) {
    let (clock, values) = (Clock::default(), AtomicU64::new(1));
    let worker = |thread| Worker {
        target,
        clock: &clock,
        values: &values,
        thread,
        rng: Rng::new(thread + 1),
        events: Vec::new(),
    };
    let mut events: Vec<Event> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let mut worker = worker(thread);
                scope.spawn(move || {
                    prepare();
                    (0..turns).for_each(|_| worker.turn());
                    worker.events
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    let mut last = worker(THREADS);
    (0..PAGES).for_each(|page| last.act(Request::Read, page * SECTORS, SECTORS));
    events.extend(last.events);
    assert!(history::check(&events) as u64 > turns);
}
