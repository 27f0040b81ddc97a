//! The configuration of a device, and the store that is made from it.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uzram::{ErrorKind, Parameters, Recovery, Remains, Store, StoreBuilder, Unit, system_page};
use uzram_frontends::nbd::Endpoint;

use super::kind::DeviceKind;
use crate::attachment::Attach;
use crate::compressions::Compressions;
use crate::error::{Error, Result};
use crate::swap;
use crate::tls::TlsOptions;

/// Batches that may be under way to a backing file at once. Each has 256 KiB of memory during a pass if nobody says otherwise
/// (`writeback_batch_size`), 4 MiB at most.
const WRITEBACK_DEPTH: usize = 4;

/// Largest device, in bytes: the user address space of a process, as a table of pages must fit it.
pub const DEVICE_BYTES_MAX: u64 = 1 << 47;

/// The configuration of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceConfig {
    /// Its name; `None` takes the first free `uzram0`, `uzram1`, …
    pub name: Option<String>,
    /// The kind of its data's place.
    pub kind: DeviceKind,
    /// The file of its data, for kinds that have one.
    pub path: Option<PathBuf>,
    /// Its size in bytes, rounded up to a unit; 0 for the size of an existing file.
    pub size_bytes: u64,
    /// The codec; `None` takes the default.
    pub algorithm: Option<String>,
    /// The codec's parameters.
    pub parameters: Parameters,
    /// The pool; `None` takes the default.
    pub pool: Option<String>,
    /// The page that is compressed at once; `None` takes the default.
    pub unit: Option<Unit>,
    /// Limit on memory for compressed pages, in bytes; 0 for none.
    pub mem_limit_bytes: u64,
    /// Whether pages are checked when they are read back.
    pub checksum: bool,
    /// Whether the second of each page's last access is kept.
    pub ages: bool,
    /// Codecs that pages can be packed by again, of priorities 1 to 3.
    pub secondaries: [Codec; 3],
    /// The place to which pages can be written back.
    pub backing: Option<BackingDevice>,
    /// Whether they are written there as they are, or decompressed.
    pub compressed_writeback: bool,
    /// The bounds of writing back.
    pub writeback: WritebackBounds,
    /// The address at which it is served. `None` takes the sockets that the server was started
    /// with, if there are any, else `NAME.nbd` in the state directory.
    pub endpoint: Option<Endpoint>,
    /// Whether an endpoint may be one that other machines reach without TLS.
    pub insecure: bool,
    /// TLS at that address.
    pub tls: TlsOptions,
    /// The way in which clients reach it.
    pub attach: Attach,
    /// Whether it is swapped to. Writing to it must then never wait for memory to be freed.
    pub for_swap: bool,
}

/// A codec by name, with its parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Codec {
    /// Its name, once it is chosen.
    pub algorithm: Option<String>,
    /// Its parameters, which may be there before.
    pub parameters: Parameters,
}

/// A file or block device, held open, to which pages can be written back.
#[derive(Clone, Debug)]
pub struct BackingDevice {
    /// Its path, to be shown.
    pub path: PathBuf,
    /// The file.
    pub file: Arc<File>,
}

impl PartialEq for BackingDevice {
    fn eq(&self, other: &BackingDevice) -> bool {
        Arc::ptr_eq(&self.file, &other.file)
    }
}

impl Eq for BackingDevice {}

/// How much may be written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WritebackBounds {
    /// Units of 4 KiB that may still be written, if there is a limit.
    pub limit_4k: u64,
    /// Whether there is.
    pub is_limited: bool,
    /// Pages that are written at once.
    pub batch_pages: usize,
}

impl WritebackBounds {
    /// Has a store keep to them.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a batch of another size than there may be.
    pub(crate) fn tell(self, store: &Store) -> Result<()> {
        store.set_writeback_limit(self.limit_4k);
        store.set_writeback_limit_enabled(self.is_limited);
        Ok(store.set_writeback_batch_pages(self.batch_pages)?)
    }
}

impl Default for WritebackBounds {
    /// No limit, and zram's batch.
    fn default() -> WritebackBounds {
        WritebackBounds {
            limit_4k: 0,
            is_limited: false,
            batch_pages: 32,
        }
    }
}

impl Default for DeviceConfig {
    /// A device of no size, which is refused, with the defaults of everything else.
    fn default() -> DeviceConfig {
        DeviceConfig {
            name: None,
            kind: DeviceKind::Zram,
            path: None,
            size_bytes: 0,
            algorithm: None,
            parameters: Parameters::default(),
            pool: None,
            unit: None,
            mem_limit_bytes: 0,
            checksum: false,
            ages: false,
            secondaries: Default::default(),
            backing: None,
            compressed_writeback: false,
            writeback: WritebackBounds::default(),
            endpoint: None,
            insecure: false,
            tls: TlsOptions::default(),
            attach: Attach::Nbd,
            for_swap: false,
        }
    }
}

impl DeviceConfig {
    pub(crate) fn algorithm(&self) -> &str {
        self.algorithm.as_deref().unwrap_or(uzram::algorithms()[0])
    }

    /// The same without all that is told to a device only once it is there. It holds no file open.
    pub(crate) fn without_backing(&self) -> DeviceConfig {
        DeviceConfig {
            backing: None,
            compressed_writeback: false,
            writeback: WritebackBounds::default(),
            ..self.clone()
        }
    }

    /// The page that is compressed at once.
    pub(crate) fn unit(&self) -> Unit {
        self.unit
            .unwrap_or_else(|| default_unit(self.for_swap, system_page::unit()))
    }

    /// Makes the store, with `outliving` in files that can outlive this process. The codecs, the first one and
    /// then those of [`DeviceConfig::secondaries`], may be shared with other devices.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a size outside the address space, [`ErrorKind::UnknownName`]
    /// for a pool that does not exist, [`ErrorKind::NoMemory`].
    pub(crate) fn build(&self, compressions: &Compressions, outliving: bool) -> Result<Store> {
        let store = self.builder(compressions)?.outliving(outliving).build()?;
        self.writeback.tell(&store)?;
        Ok(store)
    }

    /// Takes over the store of this configuration that a dead process left.
    ///
    /// # Errors
    /// As [`DeviceConfig::build`], and those of [`StoreBuilder::recover`].
    pub(crate) fn recover(
        &self,
        compressions: &Compressions,
        remains: Remains,
    ) -> Result<(Store, Recovery)> {
        Ok(self.builder(compressions)?.recover(remains)?)
    }

    fn builder(&self, compressions: &Compressions) -> Result<StoreBuilder> {
        check_size(self.size_bytes)?;
        let unit = self.unit();
        let compression = compressions.shared(self.algorithm(), &self.parameters, unit)?;
        let mut builder = Store::builder()
            .size(self.size_bytes)
            .compression(compression)
            .unit(self.unit())
            .pool(self.pool.as_deref().unwrap_or(uzram::pools()[0]))
            .mem_limit(self.mem_limit_bytes)
            .checksum(self.checksum)
            .spare(self.spare_bytes())
            .ages(self.ages)
            .compressed_writeback(self.compressed_writeback);
        for (secondary, priority) in self.secondaries.iter().zip(1..) {
            if let Some(algorithm) = &secondary.algorithm {
                let codec = compressions.shared(algorithm, &secondary.parameters, unit)?;
                builder = builder.secondary(priority, codec);
            }
        }
        if let Some(backing) = &self.backing {
            let file = Arc::clone(&backing.file);
            builder = builder.backing_file(file).writeback_depth(WRITEBACK_DEPTH);
        }
        Ok(builder)
    }

    fn spare_bytes(&self) -> u64 {
        match self.for_swap {
            true => swap::spare_bytes(self.size_bytes),
            false => 0,
        }
    }
}

/// The unit of a disk that was told none. The kernel swaps pages of its own size, one at a time.
fn default_unit(for_swap: bool, system_page: Unit) -> Unit {
    match for_swap {
        true => system_page,
        false => Unit::DEFAULT,
    }
}

pub(crate) fn check_size(size_bytes: u64) -> Result<()> {
    if (1..=DEVICE_BYTES_MAX).contains(&size_bytes) {
        return Ok(());
    }
    let most = DEVICE_BYTES_MAX >> 40;
    let text = match size_bytes {
        0 => "size 0: nothing; the smallest device is one page, 4K".to_owned(),
        _ => format!(
            "size {size_bytes}: over the address space of a process; a device is at most {most}T"
        ),
    };
    Err(Error::new(ErrorKind::InvalidInput, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_for_swap_has_the_systems_page_as_its_unit_unless_told() {
        let page = Unit::new(16384).unwrap();
        assert_eq!(default_unit(true, page), page);
        assert_eq!(default_unit(false, page), Unit::DEFAULT);
        let told = DeviceConfig {
            for_swap: true,
            unit: Some(Unit::new(65536).unwrap()),
            ..DeviceConfig::default()
        };
        assert_eq!(told.unit().bytes(), 65536);
    }
}
