//! Places of removed objects, kept as they are for new objects of the same length in granules.
//!
//! To its block a parked place is still an object: parking it, or giving it to a new object, does
//! not look at the block. Overwriting stores objects of the sizes that it removes. So most
//! removals and insertions end here, without the block's words, which are cold in a large store.
//!
//! The last places of each length are in a line of their own, the top. A place that comes when the
//! top is full lets it sink below, among the lines that all lengths share. The number of a
//! length's kept places varies by the root of the number of its objects, so a few lines below
//! avoid nearly every look at a block. A CPU without places of a length takes a line from below of
//! another CPU (`exchange.rs`).

use super::lengths::{LENGTHS, Lengths, SharedLengths};
use super::place::Place;
use crate::cpu;
use crate::error::Result;
use crate::memory;
use crate::sync::Arc;

/// Places of a line: as many as a cache line has room for.
const PLACES: usize = if cfg!(uzram_shuttle) { 1 } else { 10 };

/// Lines in one allocation.
const CHUNK_LINES: usize = 64;

/// Most lines below. It bounds the search when blocks are closed.
const LINES_MAX: usize = 4096;

const NONE: u16 = u16::MAX;

const _: () = assert!(LINES_MAX <= NONE as usize && LINES_MAX.is_multiple_of(CHUNK_LINES));

/// Places of one length.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Line {
    frames: [u32; PLACES],
    starts: [u16; PLACES],
    count: u16,
    /// For a used line below the next one of its length; for an unused line the next unused one.
    below: u16,
}

const _: () = assert!(size_of::<Line>() == 64);

/// The view of a shard's kept places for other CPUs, without its lock.
#[derive(Debug)]
pub(super) struct Shown {
    tops_address: usize,
    /// Lengths with lines below; hints. Written under the shard's lock.
    pub(super) sunken: SharedLengths,
}

#[derive(Debug)]
pub(super) struct Parked {
    /// One per length, or none: then nothing is kept.
    tops: Box<[Line]>,
    lines: Lines,
    nonempty: Lengths,
    granules: usize,
    shown: Arc<Shown>,
}

/// The lines below, each full.
#[derive(Debug)]
struct Lines {
    chunks: Vec<Box<[Line]>>,
    /// Head of the list of unused lines.
    unused: u16,
}

impl Line {
    const EMPTY: Line = Line {
        frames: [0; PLACES],
        starts: [0; PLACES],
        count: 0,
        below: NONE,
    };

    pub(super) fn places(&self) -> impl Iterator<Item = (u32, u16)> {
        let places = self.frames.iter().copied().zip(self.starts);
        places.take(usize::from(self.count))
    }
}

impl Shown {
    /// Prefetches the top of a length.
    pub(super) fn bring_top_closer(&self, length: usize) {
        cpu::prefetch(self.tops_address + length * size_of::<Line>());
    }
}

impl Lines {
    /// Puts a line below; `None` if there is no room.
    fn put(&mut self, line: Line) -> Option<u16> {
        if self.unused == NONE {
            (self.len() < LINES_MAX).then(|| self.add_chunk())?.ok()?;
        }
        let id = self.unused;
        self.unused = self.at(id).below;
        *self.at_mut(id) = line;
        Some(id)
    }

    fn take(&mut self, id: u16) -> Line {
        let unused = Line {
            below: self.unused,
            ..Line::EMPTY
        };
        self.unused = id;
        std::mem::replace(self.at_mut(id), unused)
    }

    /// How many there are, used or not.
    fn len(&self) -> usize {
        self.chunks.len() * CHUNK_LINES
    }

    fn add_chunk(&mut self) -> Result<()> {
        let first = self.len();
        let mut chunk = memory::boxed_slice(CHUNK_LINES, Line::EMPTY)?;
        for (line, next) in chunk.iter_mut().zip(first as u16 + 1..) {
            line.below = next;
        }
        chunk[CHUNK_LINES - 1].below = self.unused;
        memory::push(&mut self.chunks, chunk)?;
        self.unused = first as u16;
        Ok(())
    }

    fn at(&self, id: u16) -> &Line {
        let id = usize::from(id);
        &self.chunks[id / CHUNK_LINES][id % CHUNK_LINES]
    }

    fn at_mut(&mut self, id: u16) -> &mut Line {
        let id = usize::from(id);
        &mut self.chunks[id / CHUNK_LINES][id % CHUNK_LINES]
    }
}

impl Parked {
    /// Keeps nothing.
    pub(super) fn none() -> Parked {
        Parked::with_tops(Box::default())
    }

    /// # Errors
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory).
    pub(super) fn new() -> Result<Parked> {
        Ok(Parked::with_tops(memory::boxed_slice(
            LENGTHS,
            Line::EMPTY,
        )?))
    }

    fn with_tops(tops: Box<[Line]>) -> Parked {
        let shown = Shown {
            tops_address: tops.as_ptr().addr(),
            sunken: SharedLengths::default(),
        };
        Parked {
            tops,
            lines: Lines {
                chunks: Vec::new(),
                unused: NONE,
            },
            nonempty: Lengths::default(),
            granules: 0,
            shown: Arc::new(shown),
        }
    }

    pub(super) fn shown(&self) -> &Arc<Shown> {
        &self.shown
    }

    /// Granules of a line's places.
    pub(super) fn line_granules(length: usize) -> usize {
        PLACES * length
    }

    /// Granules of all places.
    pub(super) fn granules(&self) -> usize {
        self.granules
    }

    /// Keeps a place; false if there is no room for its length, or only below while `may_sink` is
    /// not set.
    pub(super) fn push(&mut self, place: Place, may_sink: bool) -> bool {
        let Some(top) = self.tops.get(place.length()) else {
            return false;
        };
        if usize::from(top.count) == PLACES && !(may_sink && self.sink(place.length())) {
            return false;
        }
        let top = &mut self.tops[place.length()];
        let at = usize::from(top.count);
        top.frames[at] = place.frame();
        top.starts[at] = place.start() as u16;
        top.count += 1;
        self.nonempty.insert(place.length());
        self.granules += place.length();
        true
    }

    /// The newest place of exactly this length.
    pub(super) fn pop(&mut self, length: usize) -> Option<Place> {
        let top = self.tops.get(length)?;
        if top.count == 0 && top.below != NONE {
            self.rise(length);
        }
        let top = &mut self.tops[length];
        let at = usize::from(top.count.checked_sub(1)?);
        top.count -= 1;
        if at == 0 && top.below == NONE {
            self.nonempty.remove(length);
        }
        self.granules -= length;
        let start = usize::from(top.starts[at]);
        Place::new(top.frames[at], start, length)
    }

    /// Puts the top of a length below as a line; false if there is no room.
    #[cold]
    fn sink(&mut self, length: usize) -> bool {
        let top = &mut self.tops[length];
        let Some(below) = self.lines.put(*top) else {
            return false;
        };
        *top = Line {
            below,
            ..Line::EMPTY
        };
        self.shown.sunken.insert(length);
        true
    }

    /// Makes the line below a top that has no places the top.
    #[cold]
    fn rise(&mut self, length: usize) {
        let top = &mut self.tops[length];
        *top = self.lines.take(top.below);
        if top.below == NONE {
            self.shown.sunken.remove(length);
        }
    }

    /// A place of at least this length.
    pub(super) fn pop_from(&mut self, length: usize) -> Option<Place> {
        self.pop(self.nonempty.first_from(length)?)
    }

    /// The highest line below of a length, unless one of its frames may not be used.
    pub(super) fn pop_line(
        &mut self,
        length: usize,
        may_use: impl Fn(u32) -> bool,
    ) -> Option<Line> {
        let top = self.tops.get_mut(length)?;
        let id = Some(top.below).filter(|below| *below != NONE)?;
        let is_usable = self.lines.at(id).places().all(|(frame, _)| may_use(frame));
        let line = is_usable.then(|| self.lines.take(id))?;
        top.below = line.below;
        if top.below == NONE {
            self.shown.sunken.remove(length);
            if top.count == 0 {
                self.nonempty.remove(length);
            }
        }
        self.granules -= Parked::line_granules(length);
        Some(line)
    }

    /// Keeps another shard's line, of a length that has none here.
    pub(super) fn push_line(&mut self, length: usize, line: Line) {
        let top = &mut self.tops[length];
        debug_assert!(top.count == 0 && top.below == NONE, "no other places");
        *top = Line {
            below: NONE,
            ..line
        };
        self.nonempty.insert(length);
        self.granules += Parked::line_granules(length);
    }

    /// Whether this place is here.
    pub(super) fn has(&self, place: Place) -> bool {
        let mut line = self.tops.get(place.length());
        while let Some(current) = line {
            if current
                .places()
                .any(|(frame, start)| (frame, usize::from(start)) == (place.frame(), place.start()))
            {
                return true;
            }
            line = Some(current.below)
                .filter(|below| *below != NONE)
                .map(|below| self.lines.at(below));
        }
        false
    }

    /// Takes all memory that lines will ever need.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory).
    pub(super) fn make_ready(&mut self) -> Result<()> {
        while !self.tops.is_empty() && self.lines.len() < LINES_MAX {
            self.lines.add_chunk()?;
        }
        Ok(())
    }

    /// Bookkeeping memory, in bytes.
    pub(super) fn side_bytes(&self) -> usize {
        let lines_bytes = self.lines.len() * size_of::<Line>();
        size_of_val(&*self.tops) + lines_bytes + size_of::<Shown>()
    }
}
