//! The engine's store with a slot lock and a stream policy of choice.

use uzram::lab::{SlotLock, StoreWith, Stream, StreamPolicy};
use uzram::{PageIndex, Store};

use super::{Channel, Counts, Job, Target};
use crate::corpus::PAGE_BYTES;
use crate::error::Result;
use uzram_variants::streams::Sleeps;

/// Makes a store of a codec's name and a size in bytes.
pub(crate) type Make = fn(&str, u64) -> Result<Box<dyn AnyStore>>;

/// A store of some variant, made anew whenever it is to be fresh.
pub(crate) struct Variant {
    name: &'static str,
    algorithm: String,
    size_bytes: u64,
    make: Make,
    /// `None` between two rows: the next side is to have the memory.
    store: Option<Box<dyn AnyStore>>,
}

impl Variant {
    pub(crate) fn new((name, make): (&'static str, Make), algorithm: &str, bytes: u64) -> Variant {
        Variant {
            name,
            algorithm: algorithm.to_owned(),
            size_bytes: bytes,
            make,
            store: None,
        }
    }
}

impl Target for Variant {
    fn name(&self) -> &str {
        self.name
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn make_fresh(&mut self) -> Result<()> {
        self.store = Some((self.make)(&self.algorithm, self.size_bytes)?);
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        self.store = None;
        Ok(())
    }

    fn open(&self, _job: &Job) -> Result<Box<dyn Channel + '_>> {
        let store = self.store.as_deref();
        Ok(Box::new(store.expect("a row's first job makes it fresh")))
    }

    fn counts(&self) -> Result<Counts> {
        let counts = self.store.as_ref().map(|store| store.counts());
        Ok(counts.unwrap_or_default())
    }
}

/// A store whatever its lock and policy; whole pages at offsets that are multiples of 4096.
pub(crate) trait AnyStore: Sync {
    fn write(&self, offset: u64, data: &[u8]) -> Result<()>;

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()>;

    fn counts(&self) -> Counts;
}

impl Channel for &dyn AnyStore {
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        AnyStore::read(*self, offset, buffer)
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        AnyStore::write(*self, offset, data)
    }
}

/// A store of a variant.
pub(crate) fn store<L, S>(
    algorithm: &str,
    bytes: u64,
    streams: S,
    sleeps: Option<Sleeps>,
) -> Result<Box<dyn AnyStore>>
where
    L: SlotLock + 'static,
    S: StreamPolicy<Stream> + 'static,
{
    let builder = Store::builder().size(bytes).algorithm(algorithm);
    let store: StoreWith<L, S> = builder.build_with(streams)?;
    Ok(Box::new(Counted { store, sleeps }))
}

struct Counted<L, S> {
    store: StoreWith<L, S>,
    sleeps: Option<Sleeps>,
}

impl<L: SlotLock, S: StreamPolicy<Stream>> AnyStore for Counted<L, S> {
    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        for (index, page) in (offset / PAGE_BYTES as u64..).zip(data.chunks_exact(PAGE_BYTES)) {
            self.store.write(PageIndex(index), page)?;
        }
        Ok(())
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let pages = buffer.chunks_exact_mut(PAGE_BYTES);
        for (index, page) in (offset / PAGE_BYTES as u64..).zip(pages) {
            self.store.read(PageIndex(index), page)?;
        }
        Ok(())
    }

    fn counts(&self) -> Counts {
        let stats = self.store.stats();
        Counts {
            compressed_bytes: Some(stats.compr_data_size_bytes),
            slow_path_writes: Some(stats.slow_path_writes),
            sleeps: self.sleeps.as_ref().map(Sleeps::count),
        }
    }
}
