//! Disks under the threads: the engine's store with a lock and a policy of choice, or the kernel's zram.

use std::os::unix::fs::FileExt;

use uzram::{PageIndex, SlotLock, Store, Stream, StreamPolicy};

use crate::corpus::PAGE_BYTES;
use crate::error::{Error, Result};
use crate::peers::kernel_zram::{Device, Kernel};
use crate::peers::{Missing, Peer};
use crate::report::Findings;
use crate::suite::Options;
use crate::variants::streams::Sleeps;

/// What a thread writes to and reads from: whole pages at offsets that are multiples of 4096.
pub(crate) trait Disk: Sync {
    fn write(&self, offset: u64, data: &[u8]) -> Result<()>;

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()>;

    /// Writes that compressed twice so far, where the disk tells.
    fn slow_path_writes(&self) -> Option<u64> {
        None
    }

    /// Writers that slept for a stream so far, where the disk tells.
    fn sleeps(&self) -> Option<u64> {
        None
    }
}

/// A side of the comparison.
#[derive(Clone, Copy)]
pub(crate) struct Variant<'a> {
    pub(crate) name: &'static str,
    make: Make<'a>,
}

/// Where a fresh disk comes from.
#[derive(Clone, Copy)]
enum Make<'a> {
    Store(fn(&str, u64) -> Result<Box<dyn Disk>>),
    Kernel(&'a KernelZram),
}

impl<'a> Variant<'a> {
    /// Stores that `make` makes of a codec's name and a size in bytes.
    pub(crate) const fn store(
        name: &'static str,
        make: fn(&str, u64) -> Result<Box<dyn Disk>>,
    ) -> Variant<'static> {
        let make = Make::Store(make);
        Variant { name, make }
    }

    pub(crate) fn kernel(zram: &'a KernelZram) -> Variant<'a> {
        let make = Make::Kernel(zram);
        Variant {
            name: KernelZram::NAME,
            make,
        }
    }

    /// A fresh disk of `bytes`.
    pub(crate) fn open(&self, algorithm: &str, bytes: u64) -> Result<Box<dyn Disk + 'a>> {
        match self.make {
            Make::Store(make) => Ok(make(algorithm, bytes)?),
            Make::Kernel(zram) => zram.emptied(),
        }
    }
}

/// The kernel's zram, on a device that is held for the whole suite and emptied for each round.
pub(crate) struct KernelZram {
    device: Device,
}

impl KernelZram {
    const NAME: &str = "kernel-zram";

    /// Takes a free device if it is asked for; `None`, with a line in `findings`, if there is none.
    pub(crate) fn acquire(
        options: &Options,
        bytes: u64,
        findings: &mut Findings,
    ) -> Option<KernelZram> {
        if !options.against(Peer::KernelZram) {
            return None;
        }
        let acquired = Kernel::default().acquire(&options.algorithms[0], bytes);
        let missing = |reason| Missing {
            peer: KernelZram::NAME.to_owned(),
            reason,
        };
        acquired
            .map(|device| KernelZram { device })
            .map_err(|reason| findings.missing.push(missing(reason)))
            .ok()
    }

    /// The device as it was when it was taken.
    fn emptied(&self) -> Result<Box<dyn Disk + '_>> {
        self.device.discard_all()?;
        Ok(Box::new(&self.device))
    }
}

/// A store of a variant.
pub(crate) fn store<L, S>(
    algorithm: &str,
    bytes: u64,
    streams: S,
    sleeps: Option<Sleeps>,
) -> Result<Box<dyn Disk>>
where
    L: SlotLock + 'static,
    S: StreamPolicy<Stream> + 'static,
{
    let builder = Store::builder().size(bytes).algorithm(algorithm);
    let store: Store<L, S> = builder.build_with(streams)?;
    Ok(Box::new(StoreDisk { store, sleeps }))
}

struct StoreDisk<L, S> {
    store: Store<L, S>,
    sleeps: Option<Sleeps>,
}

impl<L: SlotLock, S: StreamPolicy<Stream>> Disk for StoreDisk<L, S> {
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

    fn slow_path_writes(&self) -> Option<u64> {
        Some(self.store.stats().slow_path_writes)
    }

    fn sleeps(&self) -> Option<u64> {
        self.sleeps.as_ref().map(Sleeps::count)
    }
}

impl Disk for &Device {
    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let written = self.node().write_all_at(data, offset);
        written.map_err(|error| Error::io("kernel zram: write", error))
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let read = self.node().read_exact_at(buffer, offset);
        read.map_err(|error| Error::io("kernel zram: read", error))
    }
}
