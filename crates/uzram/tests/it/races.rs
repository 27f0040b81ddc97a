//! Eight threads on the same pages: parts, whole pages, trims and zeroes, and every byte that was
//! acknowledged stays until somebody overwrites it.
//!
//! Fails when the slot's lock is dropped between the read and the publish of a partial write.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use uzram::{
    Bio, BlockDevice, Brd, Btt, BttVersion, Codec, Compression, Compressor, DecompressShared,
    Decompressor, ErrorKind, Malformed, PageIndex, Persistence, Pmem, PmemFile, Store, Unit,
    Zeroing, Zram,
};

use crate::history::{self, Clock, Event, SECTOR_BYTES, WHOLE, ZERO};
use crate::pages::{Rng, noise};

pub const THREADS: u64 = 8;
const PAGES: u64 = 64;
const SECTORS: u64 = 4096 / SECTOR_BYTES as u64;

/// Operations of each thread; pages are many, so that the last of a run matter as much as the first.
const TURNS: u64 = if cfg!(debug_assertions) {
    3_000
} else {
    30_000
};

/// What a thread asks for: a run of sectors of one page, or of neighbouring pages.
enum Request {
    Read,
    Write(u64),
    Zero(Zeroing),
    Trim,
}

/// A store or a device, addressed by sector.
trait Target: Sync {
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
struct Disk<'a>(&'a dyn BlockDevice);

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
        let page = self.rng.below(PAGES);
        let own = page * SECTORS + self.thread % SECTORS;
        let whole = page * SECTORS;
        match self.rng.below(100) {
            0..46 => self.write(own, 1),
            46..54 => self.zero(own, 1, Zeroing::MayPunch),
            54..62 => self.write(whole, SECTORS),
            62..66 => self.act(Request::Trim, whole, SECTORS),
            66..70 => self.zero(whole, SECTORS, Zeroing::NoHole),
            70..74 => {
                let most = self.target.sectors_max();
                let count = 1 + self.rng.below(most);
                let sector = self.rng.below(PAGES * SECTORS - count);
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
fn race<T: Target>(target: &T, turns: u64, prepare: &(dyn Fn() + Sync)) {
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

/// The race on a store of the default unit; also what other modules disturb in their way.
pub fn race_on_store(store: &Store, turns: u64, prepare: &(dyn Fn() + Sync)) {
    race(store, turns, prepare);
    let limit = store.mem_limit();
    assert!(limit == 0 || store.stats().mem_used_max_bytes <= limit);
    for page in 0..PAGES {
        store.trim(PageIndex(page)).unwrap();
    }
    let stats = store.stats();
    assert_eq!(
        (stats.mem_used_total_bytes, stats.orig_data_size_bytes),
        (0, 0),
        "{stats:?}"
    );
    assert_eq!(
        (
            stats.huge_pages,
            stats.same_pages,
            stats.compr_data_size_bytes
        ),
        (0, 0, 0)
    );
    assert_eq!(stats.failed_reads, 0);
    store.reset();
    assert_eq!(store.stats().mem_resident_bytes, 0);
}

fn builder() -> uzram::StoreBuilder {
    Store::builder().size(PAGES << 12)
}

#[test]
fn parts_of_a_page_survive_each_other_and_whole_pages() {
    for algorithm in uzram::algorithms() {
        let store = builder()
            .algorithm(algorithm)
            .checksum(algorithm == "lz4")
            .build()
            .unwrap();
        race_on_store(&store, TURNS, &|| {});
    }
}

/// Every write finds the pool short of memory now and then, and starts again from the read.
#[test]
fn parts_survive_when_memory_must_be_made_in_between() {
    let store = builder().mem_limit((PAGES << 12) * 3 / 5).build().unwrap();
    race_on_store(&store, TURNS, &|| {});
}

#[test]
fn parts_survive_in_every_pool() {
    for pool in uzram::pools().into_iter().skip(1) {
        let store = builder().pool(pool).build().unwrap();
        race_on_store(&store, TURNS / 3, &|| {});
    }
}

#[test]
fn requests_of_a_device_survive_each_other() {
    race(&Disk(&Zram::new(builder().build().unwrap())), TURNS, &|| {});
}

#[test]
fn requests_of_the_devices_that_compress_nothing_survive_each_other() {
    // A copy is over in 100 ns: fewer turns and nobody meets.
    let turns = TURNS * 5;
    race(&Disk(&Brd::new(PAGES << 12).unwrap()), turns, &|| {});
    let folder = tempfile::tempdir().unwrap();
    let file = PmemFile::create(&folder.path().join("pmem"), PAGES << 12).unwrap();
    race(&Disk(&Pmem::new(file).unwrap()), turns, &|| {});
    let file = PmemFile::create(&folder.path().join("btt"), 17 << 20).unwrap();
    // Else each write waits for the disk three times.
    let file = file.with_persistence(Persistence::Never);
    let btt = Btt::format(file, 4096, BttVersion::V1_1).unwrap();
    race(&Disk(&btt), TURNS / 3, &|| {});
}

/// Two sectors of 512 bytes are apart in time too when a page is large.
#[test]
fn large_units_keep_parts_apart() {
    let unit = Unit::new(16384).unwrap();
    let disk = Zram::new(builder().unit(unit).build().unwrap());
    race(&Disk(&disk), TURNS / 4, &|| {});
}

/// Two threads on the two halves of one page, nothing else: the smallest form of the race.
#[test]
fn two_halves_of_one_page_are_never_undone() {
    let store = builder().build().unwrap();
    let deadline = Instant::now() + Duration::from_secs(2);
    std::thread::scope(|scope| {
        for half in 0..2usize {
            let store = &store;
            scope.spawn(move || {
                let mut seen = [0; 2048];
                for turn in 0..20_000u64 {
                    let mut mine = [0; 2048];
                    for (at, sector) in (0u64..).zip(mine.chunks_exact_mut(SECTOR_BYTES)) {
                        history::fill(turn * 2 + 1, at, sector);
                    }
                    store.write_at(PageIndex(0), half * 2048, &mine).unwrap();
                    store.read_at(PageIndex(0), half * 2048, &mut seen).unwrap();
                    assert!(seen == mine, "half {half}, turn {turn}");
                    if Instant::now() > deadline {
                        break;
                    }
                }
            });
        }
    });
}

/// A codec that finds nothing to compress, and takes its time for pages that begin with 1.
struct Hesitant;

impl Codec for Hesitant {
    fn name(&self) -> &str {
        "hesitant"
    }

    fn compressor(&self, _unit: Unit) -> uzram::Result<Box<dyn Compressor>> {
        Ok(Box::new(Hesitant))
    }

    fn decompressor(&self, _unit: Unit) -> uzram::Result<Decompressor> {
        Ok(Decompressor::Shared(Box::new(Hesitant)))
    }
}

impl Compressor for Hesitant {
    fn compress(&mut self, source: &[u8], _destination: &mut [u8]) -> Option<usize> {
        if source[0] == 1 {
            std::thread::sleep(Duration::from_micros(300));
        }
        None
    }
}

impl DecompressShared for Hesitant {
    fn decompress(&self, _source: &[u8], _destination: &mut [u8]) -> Result<(), Malformed> {
        Err(Malformed)
    }
}

/// On a small disk each write makes memory and gives memory back. A slow writer gets at what he made in
/// the end, however many others find it first.
#[test]
fn nobody_starves_while_others_take_the_memory_that_he_makes() {
    let codec = Compression::with_codec(Box::new(Hesitant), Unit::DEFAULT).unwrap();
    let builder = Store::builder().size(THREADS << 12).compression(codec);
    let store = &builder.build().unwrap();
    let write = |place: u64, first: u8| {
        let mut page = noise(place, 4096);
        page[0] = first;
        store.write(PageIndex(place), &page).unwrap();
    };
    let is_done = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        for place in 1..THREADS {
            scope.spawn(move || {
                while !is_done.load(Ordering::Relaxed) {
                    write(place, 2);
                }
            });
        }
        let done = scope
            .spawn(move || (0..20).for_each(|_| write(0, 1)))
            .join();
        is_done.store(true, Ordering::Relaxed);
        done.unwrap();
    });
    assert_eq!(store.stats().failed_writes, 0);
}
