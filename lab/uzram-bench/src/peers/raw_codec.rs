//! The codec alone: what a store costs beyond it is the store's own.
//!
//! It calls the very codec objects that the engine calls: same library build, level, frame
//! parameters and reused state, the destination of two pages, and the output copied to a bump
//! arena in huge pages. It keeps no table but one word a page, takes no lock and frees nothing, so
//! it is a floor that no store reaches. A page that does not get smaller is kept as it is, as any
//! user of a codec would.

use std::hint::black_box;
use std::ops::Range;

use uzram::{Compression, Compressor, Decompressor, Unit};

use crate::corpus::PAGE_BYTES;
use crate::error::{Error, Result};
use crate::mapping::{Backing, Mapping};
use crate::side::Pages;
use crate::workload::{Case, Workload};

/// Objects start at multiples of this, as in any allocator, in bytes.
const OBJECT_ALIGNMENT: usize = 16;

/// A codec with its state and the arena that its output goes to, for the places of one thread.
pub(crate) struct RawCodec {
    compressor: Box<dyn Compressor>,
    decompressor: Decompressor,
    packed: Box<[u8]>,
    arena: Arena,
}

/// A bump arena and where each place's object lies.
struct Arena {
    memory: Mapping,
    /// The next object's offset in `memory`.
    top: usize,
    places: Range<usize>,
    objects: Vec<Object>,
}

/// Offset in units of [`OBJECT_ALIGNMENT`], and length in bytes.
#[derive(Clone, Copy, Default)]
struct Object {
    offset: u32,
    length: u32,
}

impl RawCodec {
    /// A codec for the chunks of `workload` in `chunks`.
    pub(crate) fn new(
        algorithm: &str,
        workload: &Workload,
        chunks: Range<usize>,
    ) -> Result<RawCodec> {
        RawCodec::backed_by(Backing::Huge, algorithm, workload, chunks)
    }

    /// The same with its objects in pages of this kind.
    pub(crate) fn backed_by(
        backing: Backing,
        algorithm: &str,
        workload: &Workload,
        chunks: Range<usize>,
    ) -> Result<RawCodec> {
        let compression = Compression::new(algorithm, Unit::DEFAULT)?;
        let codec = compression.codec();
        let places = workload.first_place(chunks.start)..workload.first_place(chunks.end);
        Ok(RawCodec {
            compressor: codec.compressor(Unit::DEFAULT)?,
            decompressor: codec.decompressor(Unit::DEFAULT)?,
            packed: vec![0; 2 * PAGE_BYTES].into_boxed_slice(),
            arena: Arena::new(places, backing)?,
        })
    }

    /// Puts the next objects where those from `place` on would lie if none compressed.
    ///
    /// For writers that come back to a part of the places while the rest stays as it is.
    pub(crate) fn rewind_to(&mut self, place: usize) {
        self.arena.top = (place - self.arena.places.start) * PAGE_BYTES;
    }
}

/// Decompresses one object.
fn read(decompressor: &mut Decompressor, object: &[u8], page: &mut [u8]) -> Result<()> {
    if object.len() == page.len() {
        page.copy_from_slice(object);
        return Ok(());
    }
    let result = match decompressor {
        Decompressor::Shared(shared) => shared.decompress(object, page),
        Decompressor::Stateful(state) => state.decompress(object, page),
    };
    result.map_err(|_| Error::Failed("raw-codec: its own output does not decompress".to_owned()))
}

impl Arena {
    fn new(places: Range<usize>, backing: Backing) -> Result<Arena> {
        // No object is larger than a page, so a page a place always suffices.
        let memory = Mapping::new(places.len() * PAGE_BYTES, backing);
        Ok(Arena {
            memory: memory.map_err(|error| Error::io("memory for raw-codec", error))?,
            top: 0,
            objects: vec![Object::default(); places.len()],
            places,
        })
    }

    fn put(&mut self, place: usize, bytes: &[u8]) {
        self.memory[self.top..][..bytes.len()].copy_from_slice(bytes);
        let offset = (self.top / OBJECT_ALIGNMENT) as u32;
        let object = Object {
            offset,
            length: bytes.len() as u32,
        };
        self.objects[place - self.places.start] = object;
        self.top += bytes.len().next_multiple_of(OBJECT_ALIGNMENT);
    }

    fn get(&self, place: usize) -> &[u8] {
        let object = self.objects[place - self.places.start];
        &self.memory[object.offset as usize * OBJECT_ALIGNMENT..][..object.length as usize]
    }
}

impl Pages for RawCodec {
    fn begin(&mut self, case: Case) -> Result<()> {
        if case == Case::FirstWrite {
            let failed = |error| Error::io("memory for raw-codec", error);
            self.arena.memory.make_fresh().map_err(failed)?;
        }
        if case.is_write() {
            self.arena.top = 0;
        }
        Ok(())
    }

    #[inline]
    fn write(&mut self, place: usize, page: &[u8]) -> Result<()> {
        let packed = self.compressor.compress(page, &mut self.packed);
        match packed.filter(|&length| length < page.len()) {
            Some(length) => self.arena.put(place, &self.packed[..length]),
            None => self.arena.put(place, page),
        }
        black_box(self.arena.top);
        Ok(())
    }

    #[inline]
    fn read(&mut self, place: usize, page: &mut [u8]) -> Result<()> {
        read(&mut self.decompressor, self.arena.get(place), page)
    }

    fn compressed_bytes(&self) -> Result<Option<u64>> {
        let objects = self.arena.objects.iter();
        Ok(Some(objects.map(|object| u64::from(object.length)).sum()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::Sink;
    use crate::workload::{CHUNK_PAGES, Generation};

    #[test]
    fn what_is_written_reads_back_also_from_incompressible_pages() {
        let corpora = crate::synthetic::corpora();
        for algorithm in uzram::algorithms() {
            let bytes = 4 * CHUNK_PAGES * PAGE_BYTES;
            let workload = Workload::with_bytes(corpora[2].pages(), bytes).unwrap();
            let mut side = RawCodec::new(algorithm, &workload, 1..3).unwrap();
            let mut sink = Sink::new().unwrap();
            for (case, generation) in [
                (Case::FirstWrite, Generation::First),
                (Case::Overwrite, Generation::Second),
            ] {
                side.begin(case).unwrap();
                for chunk in 1..3 {
                    let work = workload.work(case, chunk, generation);
                    side.run(work, &mut sink).unwrap();
                }
                let mut page = vec![0; PAGE_BYTES];
                for place in workload.first_place(1)..workload.first_place(3) {
                    side.read(place, &mut page).unwrap();
                    assert_eq!(page, workload.page(place, generation), "place {place}");
                }
            }
            let stored = side.compressed_bytes().unwrap().unwrap();
            assert!(stored < (2 * CHUNK_PAGES * PAGE_BYTES) as u64);
        }
    }
}
