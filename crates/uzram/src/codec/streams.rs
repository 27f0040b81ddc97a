//! Per-CPU compression streams.
//!
//! A stream is a codec's context and the buffers of one compression. There is one for each
//! possible CPU, made at first use. A thread takes its CPU's stream. If that is held (its holder
//! was preempted, or the thread moved) it takes a neighbour's. Only when all are held does it
//! sleep, on its own CPU's. So memory is bounded by the number of CPUs, whatever the number of
//! threads.
//!
//! Readers that need state take it from a separate set: a preempted compressor, away for
//! milliseconds, must not hold up a read of 1.5 us.

use std::ops::{Deref, DerefMut};

use super::{
    Codec, Compressor, Decompress, DecompressShared, Decompressor, Malformed, Parameters, by_name,
};
use crate::cpu::PerCpu;
use crate::error::Result;
use crate::memory;
use crate::page::{self, Unit};
use crate::sync::{Arc, Mutex, MutexGuard};

/// A codec with its per-CPU streams, for units of one size.
///
/// Stores with the same codec, parameters and unit can share one, and with it the contexts'
/// memory:
///
/// ```
/// use uzram::{Compression, Store, Unit};
/// let lz4 = Compression::new("lz4", Unit::DEFAULT)?;
/// let one = Store::builder().size(1 << 20).compression(lz4.clone()).build()?;
/// let two = Store::builder().size(1 << 20).compression(lz4).build()?;
/// # Ok::<(), uzram::Error>(())
/// ```
pub struct Compression {
    codec: Box<dyn Codec>,
    parameters: Parameters,
    /// Whether the codec is not asked about pages that look random.
    fails_on_random: bool,
    unit: Unit,
    streams: PerCpuStreams<Stream>,
    decoding: Decoding,
    /// One unit each, where partial reads are decompressed.
    pages: PerCpuStreams<Box<[u8]>>,
}

enum Decoding {
    Shared(Box<dyn DecompressShared>),
    PerCpu(PerCpuStreams<Box<dyn Decompress>>),
}

/// A writer's buffers while it compresses.
pub struct Stream {
    pub(crate) packer: Packer,
    /// One unit, where partial writes are merged.
    pub(crate) page: Box<[u8]>,
}

/// A codec's context with its output buffer.
pub(crate) struct Packer {
    compressor: Box<dyn Compressor>,
    /// Two units: codecs may expand, and the store decides whether the result is too big.
    packed: Box<[u8]>,
}

impl Compression {
    /// The built-in codec `algorithm` with its default parameters.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownName`](crate::ErrorKind::UnknownName), with the known names;
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory).
    pub fn new(algorithm: &str, unit: Unit) -> Result<Arc<Compression>> {
        Compression::with_parameters(algorithm, &Parameters::default(), unit)
    }

    /// The built-in codec `algorithm` with these parameters.
    ///
    /// # Errors
    /// As [`Compression::new`], and [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for
    /// a parameter that the codec does not take or that is out of its range, with the range.
    pub fn with_parameters(
        algorithm: &str,
        parameters: &Parameters,
        unit: Unit,
    ) -> Result<Arc<Compression>> {
        let parameters = parameters.clone().load()?;
        let codec = by_name(algorithm, &parameters, unit)?;
        // What a dictionary knows may look random.
        let fails_on_random = !parameters.has_dictionary();
        Compression::over(codec, parameters, fails_on_random, unit)
    }

    /// A codec of the caller's. The store asks it about every page that is not same-filled.
    /// Built-in codecs are not asked about pages that look random.
    ///
    /// # Errors
    /// The codec's own error for its first decompressor;
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory).
    pub fn with_codec(codec: Box<dyn Codec>, unit: Unit) -> Result<Arc<Compression>> {
        Compression::over(codec, Parameters::default(), false, unit)
    }

    fn over(
        codec: Box<dyn Codec>,
        parameters: Parameters,
        fails_on_random: bool,
        unit: Unit,
    ) -> Result<Arc<Compression>> {
        let decoding = match codec.decompressor(unit)? {
            Decompressor::Shared(shared) => Decoding::Shared(shared),
            Decompressor::Stateful(first) => {
                let contexts = PerCpuStreams::new()?;
                contexts.put(first);
                Decoding::PerCpu(contexts)
            }
        };
        let (streams, pages) = (PerCpuStreams::new()?, PerCpuStreams::new()?);
        Ok(Arc::new(Compression {
            codec,
            parameters,
            fails_on_random,
            unit,
            streams,
            decoding,
            pages,
        }))
    }

    /// The codec.
    #[must_use]
    pub fn codec(&self) -> &dyn Codec {
        &*self.codec
    }

    /// The parameters that it was made with; none for a codec of the caller's.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// The size that is compressed at once.
    #[must_use]
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// Whether compressing `page` is not worth a try. A wrong guess costs density and nothing
    /// else.
    pub(crate) fn is_in_vain(&self, page: &[u8]) -> bool {
        self.fails_on_random && page::looks_random(page)
    }

    /// A stream for a set of streams, the compression's or another.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory), or the codec's error.
    pub(crate) fn stream(&self) -> Result<Stream> {
        Ok(Stream {
            packer: Packer {
                compressor: self.codec.compressor(self.unit)?,
                packed: memory::boxed_slice(2 * self.unit.bytes(), 0)?,
            },
            page: memory::boxed_slice(self.unit.bytes(), 0)?,
        })
    }

    fn context(&self) -> Result<Box<dyn Decompress>> {
        match self.codec.decompressor(self.unit)? {
            Decompressor::Stateful(context) => Ok(context),
            Decompressor::Shared(shared) => Ok(memory::boxed(AsStateful(shared))?),
        }
    }

    /// Leases a buffer of one unit for a reader.
    pub(crate) fn lease_page(&self) -> Result<Lease<'_, Box<[u8]>>> {
        self.pages
            .lease(|| memory::boxed_slice(self.unit.bytes(), 0))
    }

    /// Decompresses `source` into `page`, one unit.
    pub(crate) fn decompress(
        &self,
        source: &[u8],
        page: &mut [u8],
    ) -> Result<Result<(), Malformed>> {
        match &self.decoding {
            Decoding::Shared(shared) => Ok(shared.decompress(source, page)),
            Decoding::PerCpu(contexts) => {
                let mut context = contexts.lease(|| self.context())?;
                Ok(context.decompress(source, page))
            }
        }
    }

    /// Makes each CPU's contexts now instead of at first use, and uses each once: contexts
    /// allocate when they first compress, and allocated memory is not resident before it is used.
    /// `streams` are the store's.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory), or the codec's error.
    pub(crate) fn make_all(&self, streams: &impl StreamPolicy<Stream>) -> Result<()> {
        let sample = self.sample()?;
        streams.make_all(|| {
            let mut stream = self.stream()?;
            stream.packer.compress(&sample);
            Ok(stream)
        })?;
        self.make_readers(&mut *streams.lease(|| self.stream())?)
    }

    /// As [`Compression::make_all`], but only what readers need. It packs a page with `stream` for them to read.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory), or the codec's error.
    pub(crate) fn make_readers(&self, stream: &mut Stream) -> Result<()> {
        self.pages
            .make_all(|| memory::boxed_slice(self.unit.bytes(), 0))?;
        let Decoding::PerCpu(contexts) = &self.decoding else {
            return Ok(());
        };
        let sample = self.sample()?;
        let packed = stream.packer.compress(&sample).unwrap_or_default();
        let mut page = memory::boxed_slice(self.unit.bytes(), 0)?;
        contexts.make_all(|| self.context())?;
        contexts.for_each(|context| {
            // A codec that cannot read its own page says so to whoever reads.
            let _ = context.decompress(packed, &mut page);
        });
        Ok(())
    }

    /// A page in which a codec finds both matches and literals.
    fn sample(&self) -> Result<Box<[u8]>> {
        let mut page = memory::boxed_slice(self.unit.bytes(), 0)?;
        for (at, byte) in page.iter_mut().enumerate() {
            let place = (at % 1024) as u32;
            *byte = (place.wrapping_mul(2_654_435_761) >> 24) as u8 % 96;
        }
        Ok(page)
    }

    /// Leases a stream of its own.
    #[cfg(test)]
    pub(crate) fn lease(&self) -> Result<Lease<'_, Stream>> {
        self.streams.lease(|| self.stream())
    }
}

impl std::fmt::Debug for Compression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compression")
            .field("codec", &self.codec.name())
            .field("unit", &self.unit)
            .finish_non_exhaustive()
    }
}

impl Packer {
    /// Compresses `page`; `None` if the codec cannot.
    pub(crate) fn compress(&mut self, page: &[u8]) -> Option<&[u8]> {
        let length = self.compressor.compress(page, &mut self.packed)?;
        self.packed.get(..length)
    }
}

/// A codec that answered "stateful" once and "shared" later still works.
struct AsStateful(Box<dyn DecompressShared>);

impl Decompress for AsStateful {
    fn decompress(&mut self, source: &[u8], destination: &mut [u8]) -> Result<(), Malformed> {
        self.0.decompress(source, destination)
    }
}

/// The policy for streams: which thread gets which stream, and which waits.
pub trait StreamPolicy<C>: Send + Sync {
    /// A context in use; dropping it gives it back.
    type Lease<'a>: DerefMut<Target = C>
    where
        Self: 'a;

    /// Takes a free context, or one of `make` if another is allowed. Sleeps while none is free.
    ///
    /// # Errors
    /// Those of `make`.
    fn lease(&self, make: impl FnOnce() -> Result<C>) -> Result<Self::Lease<'_>>;

    /// Makes all contexts that are allowed.
    ///
    /// # Errors
    /// Those of `make`.
    fn make_all(&self, make: impl Fn() -> Result<C>) -> Result<()>;
}

/// One context for each possible CPU, individually locked.
pub struct PerCpuStreams<C> {
    contexts: PerCpu<Mutex<Option<C>>>,
}

/// A context in use; dropping it gives it back.
pub struct Lease<'a, C> {
    context: MutexGuard<'a, Option<C>>,
}

impl<C> PerCpuStreams<C> {
    /// Contexts that are made at their first use.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory).
    pub fn new() -> Result<PerCpuStreams<C>> {
        Ok(PerCpuStreams {
            contexts: PerCpu::new(|| Mutex::new(None))?,
        })
    }

    fn put(&self, context: C) {
        *self.contexts.current().lock() = Some(context);
    }

    fn for_each(&self, mut change: impl FnMut(&mut C)) {
        for context in self.contexts.nearest_first() {
            if let Some(context) = &mut *context.lock() {
                change(context);
            }
        }
    }
}

impl<C: Send> StreamPolicy<C> for PerCpuStreams<C> {
    type Lease<'a>
        = Lease<'a, C>
    where
        C: 'a;

    fn lease(&self, make: impl FnOnce() -> Result<C>) -> Result<Lease<'_, C>> {
        let free = self.contexts.nearest_first().find_map(Mutex::try_lock);
        let mut context = free.unwrap_or_else(|| self.contexts.current().lock());
        if context.is_none() {
            *context = Some(make()?);
        }
        Ok(Lease { context })
    }

    fn make_all(&self, make: impl Fn() -> Result<C>) -> Result<()> {
        for context in self.contexts.nearest_first() {
            let mut context = context.lock();
            if context.is_none() {
                *context = Some(make()?);
            }
        }
        Ok(())
    }
}

/// The streams of a compression, which stores may share.
pub struct SharedStreams(pub(crate) Arc<Compression>);

impl StreamPolicy<Stream> for SharedStreams {
    type Lease<'a> = Lease<'a, Stream>;

    fn lease(&self, make: impl FnOnce() -> Result<Stream>) -> Result<Lease<'_, Stream>> {
        self.0.streams.lease(make)
    }

    fn make_all(&self, make: impl Fn() -> Result<Stream>) -> Result<()> {
        self.0.streams.make_all(make)
    }
}

impl<C> std::fmt::Debug for PerCpuStreams<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PerCpuStreams").finish_non_exhaustive()
    }
}

impl<C> Deref for Lease<'_, C> {
    type Target = C;

    fn deref(&self) -> &C {
        self.context
            .as_ref()
            .expect("a lease holds a context from its making on")
    }
}

impl<C> DerefMut for Lease<'_, C> {
    fn deref_mut(&mut self) -> &mut C {
        self.context
            .as_mut()
            .expect("a lease holds a context from its making on")
    }
}

#[cfg(all(test, not(uzram_shuttle)))]
mod tests {
    use super::*;
    use crate::cpu::pretend;

    #[test]
    fn a_held_stream_sends_the_next_writer_to_a_neighbour() {
        let streams = PerCpuStreams {
            contexts: PerCpu::with_count(2, || Mutex::new(None)).unwrap(),
        };
        pretend::CPU.set(Some(5));
        let mut made = 0;
        let mut make = || {
            made += 1;
            Ok(made)
        };
        let first = streams.lease(&mut make).unwrap();
        let second = streams.lease(&mut make).unwrap();
        assert_eq!((*first, *second), (1, 2));
        drop(first);
        assert_eq!(*streams.lease(&mut make).unwrap(), 1, "contexts are reused");
        pretend::CPU.set(None);
    }

    #[test]
    fn a_context_that_could_not_be_made_is_tried_again() {
        let streams = PerCpuStreams {
            contexts: PerCpu::with_count(1, || Mutex::new(None)).unwrap(),
        };
        memory::fault::fail_after(0);
        let failed = streams.lease(|| memory::gate().map(|()| 1));
        assert!(failed.is_err());
        assert_eq!(*streams.lease(|| Ok(2)).unwrap(), 2);
    }
}

#[cfg(all(test, uzram_shuttle))]
#[path = "streams_tests.rs"]
mod shuttle_tests;
