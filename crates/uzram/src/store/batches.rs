//! The batches of a pass that writes back: one is filled while those before it are being written.
//!
//! They stand in a row of fixed length. Its oldest batch is settled first, and its place filled again.

use std::io;

use super::backing_file::{BackingFile, Block};
use super::direct::AlignedBytes;
use super::ring::{Ring, Run};
use super::room::Room;
use crate::error::Result;
use crate::memory;
use crate::page::{PageIndex, Unit};

/// Pages that are written together.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// A unit for each page: its object, and zeroes.
    bytes: AlignedBytes,
    pages: Vec<(PageIndex, Block)>,
    /// The parts of the bytes that go to blocks in a row, once it is written.
    runs: Vec<Run>,
    /// The result, unless the ring has the bytes.
    done: Option<io::Result<()>>,
}

impl Batch {
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Its pages.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Makes room for this many pages in an empty one.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory).
    pub fn make_room(&mut self, pages: usize, unit: Unit) -> Result<()> {
        debug_assert!(self.is_empty());
        memory::reserve(&mut self.pages, pages)?;
        memory::reserve(&mut self.runs, pages)?;
        if self.bytes.bytes().len() < pages * unit.bytes() {
            self.bytes = AlignedBytes::default();
            self.bytes = AlignedBytes::new(pages * unit.bytes())?;
        }
        Ok(())
    }

    /// The unit of the next page, if there is room for one. It has anything in it.
    pub fn next_unit(&mut self, unit: Unit) -> Option<&mut [u8]> {
        let start = self.pages.len() * unit.bytes();
        self.bytes.bytes_mut().get_mut(start..start + unit.bytes())
    }

    /// Takes the page whose bytes are in the next unit.
    pub fn push(&mut self, index: PageIndex, block: Block) {
        self.pages.push((index, block));
    }

    fn find_runs(&mut self, unit: Unit) {
        self.runs.clear();
        for ((_, block), start) in self.pages.iter().zip((0..).step_by(unit.bytes())) {
            let (at, end) = (block.number() << unit.shift(), start + unit.bytes());
            match self.runs.last_mut() {
                Some(run) if run.at + run.bytes.len() as u64 == at => run.bytes.end = end,
                _ => self.runs.push(Run {
                    bytes: start..end,
                    at,
                }),
            }
        }
    }
}

/// A batch that is no longer being written.
pub(super) struct Finished<'a> {
    pub pages: std::vec::Drain<'a, (PageIndex, Block)>,
    /// Whether the file has them all; if not, none of their blocks must be used.
    pub done: io::Result<()>,
}

/// The turn to write back, and what it needs.
#[derive(Debug)]
pub(super) struct Batches {
    row: Box<[Batch]>,
    /// The place of the oldest that is being written, or of the one that is being filled.
    oldest: usize,
    /// Those that are being written.
    started: usize,
    ring: Option<Ring>,
    room: Room,
}

impl Batches {
    /// A row of one batch or more, which a ring writes if there is one.
    pub fn new(length: usize, ring: Option<Ring>) -> Batches {
        let row = std::iter::repeat_with(Batch::default).take(length.max(1));
        Batches {
            row: row.collect(),
            oldest: 0,
            started: 0,
            ring,
            room: Room::default(),
        }
    }

    /// Goes on in a file that a dead process wrote to.
    #[cfg(not(uzram_shuttle))]
    pub fn go_on(&mut self, room: Room) {
        self.room = room;
    }

    #[cfg(all(test, not(uzram_shuttle)))]
    pub fn has_ring(&self) -> bool {
        self.ring.is_some()
    }

    /// Whether a batch can be filled.
    pub fn has_room(&self) -> bool {
        self.started < self.row.len()
    }

    /// Whether any is being written.
    pub fn is_writing(&self) -> bool {
        self.started > 0
    }

    /// The one that is being filled.
    pub fn filling(&mut self) -> &mut Batch {
        debug_assert!(self.has_room());
        let place = self.place_of_filling();
        &mut self.row[place]
    }

    fn place_of_filling(&self) -> usize {
        (self.oldest + self.started) % self.row.len()
    }

    /// Begins to write the one that is being filled.
    pub fn start(&mut self, backing: &BackingFile) {
        let place = self.place_of_filling();
        let batch = &mut self.row[place];
        batch.find_runs(backing.unit());
        for run in &batch.runs {
            backing.make_room(&mut self.room, run.at + run.bytes.len() as u64);
        }
        let blocks = batch.pages.iter().map(|(_, block)| block);
        backing.note_checksums(blocks, batch.bytes.bytes());
        batch.done = match backing.refused_by_a_test() {
            Err(error) => Some(Err(error)),
            Ok(()) => match &mut self.ring {
                Some(ring) => {
                    let (bytes, runs) = (&mut batch.bytes, &mut batch.runs);
                    ring.start(place, std::mem::take(bytes), std::mem::take(runs));
                    None
                }
                None => Some(backing.write(&batch.runs, batch.bytes.bytes())),
            },
        };
        self.started += 1;
    }

    /// Waits for the oldest that is being written. None: none is.
    pub fn finish(&mut self, backing: &BackingFile) -> Option<Finished<'_>> {
        if self.started == 0 {
            return None;
        }
        let place = self.oldest;
        let batch = &mut self.row[place];
        let done = match (batch.done.take(), &mut self.ring) {
            (None, Some(ring)) => {
                let (bytes, done) = ring.finish(place, |rest, at| backing.write_at(rest, at));
                batch.bytes = bytes;
                done
            }
            (done, _) => done.unwrap_or(Ok(())),
        };
        self.started -= 1;
        self.oldest = (place + 1) % self.row.len();
        let pages = self.row[place].pages.drain(..);
        Some(Finished { pages, done })
    }

    /// Gives the memory of all but the next batch back, and room in the file that was not used, when none is being
    /// written or filled.
    pub fn give_back(&mut self, backing: &BackingFile) {
        debug_assert!(self.started == 0 && self.row.iter().all(Batch::is_empty));
        backing.give_room_back(&mut self.room);
        self.oldest = 0;
        self.row[1..].fill_with(Batch::default);
    }
}

#[cfg(all(test, not(uzram_shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn blocks_in_a_row_are_one_run() {
        let mut batch = Batch::default();
        for number in [7, 8, 9, 11, 5, 6] {
            batch.push(PageIndex(0), Block::from_parts(number, 100));
        }
        batch.find_runs(Unit::DEFAULT);
        let found: Vec<_> = batch
            .runs
            .iter()
            .map(|run| (run.at >> 12, run.bytes.clone()))
            .collect();
        let units = |range: std::ops::Range<usize>| range.start << 12..range.end << 12;
        assert_eq!(
            found,
            [(7, units(0..3)), (11, units(3..4)), (5, units(4..6))]
        );
    }
}
