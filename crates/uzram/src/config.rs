//! Raw options, parsed into a valid configuration of a [`Store`](crate::Store).

use std::collections::BTreeMap;
use std::fs::File;

use crate::codec::{self, Compression, Parameters};
use crate::error::{Error, ErrorKind, Result};
use crate::page::Unit;
use crate::pool::{self, PoolConfig};
use crate::region::Backing;
use crate::sync::Arc;

/// Options for a [`Store`](crate::Store); only the size has no default.
#[derive(Clone, Debug, Default)]
pub struct StoreBuilder {
    size_bytes: u64,
    algorithm: Option<String>,
    parameters: Option<Parameters>,
    compression: Option<Arc<Compression>>,
    pool: Option<String>,
    unit: Option<Unit>,
    mem_limit_bytes: u64,
    checksum: bool,
    ages: bool,
    spare_bytes: u64,
    outliving: bool,
    backing_file: Option<Arc<File>>,
    uncompressed_writeback: bool,
    writeback_depth: Option<usize>,
    /// By priority.
    secondaries: BTreeMap<u8, Arc<Compression>>,
}

/// The last priority of a secondary codec; the first is 1.
pub(crate) const PRIORITY_MAX: u8 = 3;

/// Batches that may be under way to a file at once, at most.
const WRITEBACK_DEPTH_MAX: usize = 16;

/// Codecs by their priority, less one.
pub(crate) type Secondaries = [Option<Arc<Compression>>; PRIORITY_MAX as usize];

/// Options that are valid together.
#[derive(Clone, Debug)]
pub(crate) struct StoreConfig {
    pub disksize_bytes: u64,
    pub unit: Unit,
    pub compression: Arc<Compression>,
    pub pool: &'static str,
    pub mem_limit_bytes: u64,
    pub checksum: bool,
    pub ages: bool,
    pub spare_bytes: u64,
    pub backing: Backing,
    pub backing_file: Option<Arc<File>>,
    pub compressed_writeback: bool,
    pub writeback_depth: usize,
    pub secondaries: Secondaries,
}

impl StoreBuilder {
    /// Size before compression, in bytes; rounded up to the unit. Required, not 0.
    #[must_use]
    pub fn size(mut self, size_bytes: u64) -> StoreBuilder {
        self.size_bytes = size_bytes;
        self
    }

    /// The codec by name; see [`algorithms`](crate::algorithms). Default: the first of them.
    #[must_use]
    pub fn algorithm(mut self, name: &str) -> StoreBuilder {
        self.algorithm = Some(name.to_owned());
        self
    }

    /// Parameters of the codec that [`StoreBuilder::algorithm`] names. Default: the codec's own.
    #[must_use]
    pub fn parameters(mut self, parameters: Parameters) -> StoreBuilder {
        self.parameters = Some(parameters);
        self
    }

    /// A codec with its streams, shared with other stores; its unit must be the store's.
    #[must_use]
    pub fn compression(mut self, compression: Arc<Compression>) -> StoreBuilder {
        self.compression = Some(compression);
        self
    }

    /// A codec of this priority, 1 to 3, for [`Store::recompress`](crate::Store::recompress); its unit must be the
    /// store's. The last one that is named for a priority counts.
    #[must_use]
    pub fn secondary(mut self, priority: u8, compression: Arc<Compression>) -> StoreBuilder {
        self.secondaries.insert(priority, compression);
        self
    }

    /// The pool by name; see [`pools`](crate::pools). Default: the first of them.
    #[must_use]
    pub fn pool(mut self, name: &str) -> StoreBuilder {
        self.pool = Some(name.to_owned());
        self
    }

    /// The page that is compressed at once. Default: that of [`StoreBuilder::compression`], else 4 KiB.
    #[must_use]
    pub fn unit(mut self, unit: Unit) -> StoreBuilder {
        self.unit = Some(unit);
        self
    }

    /// Limit on memory for objects, in bytes; rounded down to 4 KiB. 0, the default, is none.
    #[must_use]
    pub fn mem_limit(mut self, limit_bytes: u64) -> StoreBuilder {
        self.mem_limit_bytes = limit_bytes;
        self
    }

    /// Whether each stored object gets a CRC-32 that reads verify. Without one, only the codec can
    /// find damage, and not all of it. Costs 4 bytes per page. Default: no.
    #[must_use]
    pub fn checksum(mut self, checksum: bool) -> StoreBuilder {
        self.checksum = checksum;
        self
    }

    /// Whether the second of each page's last access is kept, for [`Store::mark_idle_older_than`]. Costs 4 bytes per
    /// page. Default: no.
    ///
    /// [`Store::mark_idle_older_than`]: crate::Store::mark_idle_older_than
    #[must_use]
    pub fn ages(mut self, ages: bool) -> StoreBuilder {
        self.ages = ages;
        self
    }

    /// Memory to keep populated ahead of writers, in bytes, rounded up to 2 MiB. It is for stores
    /// that are written while the system frees memory, as swap is. 0, the default, keeps a few
    /// MiB.
    ///
    /// Everything else that a write needs is then made at once, too: the table, and a stream for
    /// each CPU. Writes take no memory from the system. When the spare is used up, they wait for
    /// [`Store::maintain`](crate::Store::maintain) to refill it, a second at most, and then fail
    /// with [`ErrorKind::NoMemory`]. The spare keeps within
    /// [`mem_limit`](StoreBuilder::mem_limit). Only close to that limit writes may have to make
    /// room themselves.
    #[must_use]
    pub fn spare(mut self, bytes: u64) -> StoreBuilder {
        self.spare_bytes = bytes;
        self
    }

    /// Whether the store's memory lies in files of memory, which [`Store::remains`] hands out and
    /// [`StoreBuilder::recover`] opens after the process that made the store is gone. Only the process that has the store
    /// uses them meanwhile. Such a store takes memory in small pages, of which [`Store::maintain`] makes huge ones; with a
    /// [`spare`](StoreBuilder::spare), it does so before writers use them. It writes to its backing file one batch after
    /// another. Default: no.
    ///
    /// [`Store::remains`]: crate::Store::remains
    /// [`Store::maintain`]: crate::Store::maintain
    #[must_use]
    pub fn outliving(mut self, outliving: bool) -> StoreBuilder {
        self.outliving = outliving;
        self
    }

    /// A regular file or a block device to which [`Store::write_back`](crate::Store::write_back) takes pages. It must be
    /// opened for reading and writing. A regular file is new, empty, or of an earlier store; of a device the first 128 KiB
    /// are zero, or it is of an earlier store. Its content is overwritten and never read; one store at a time uses it.
    /// A file grows as pages come, by a unit for each, and gets holes where they leave. The store sets O_DIRECT where the
    /// file takes it; copies of the descriptor share that. Whoever takes over a store that [outlives](StoreBuilder::outliving)
    /// its process names the file again; a copy of the descriptor keeps the file from other stores meanwhile.
    #[must_use]
    pub fn backing_file(mut self, file: impl Into<Arc<File>>) -> StoreBuilder {
        self.backing_file = Some(file.into());
        self
    }

    /// Whether compressed pages go to the backing file as they are, which is the default, or decompressed. Either takes a
    /// unit of the file; a read of a decompressed one only waits for the disk.
    #[must_use]
    pub fn compressed_writeback(mut self, compressed: bool) -> StoreBuilder {
        self.uncompressed_writeback = !compressed;
        self
    }

    /// Batches of a pass that may be under way to the backing file at once, 1 to 16: while some are being written, the next
    /// is filled. Each takes its own memory during a pass. More than 1 take an io_uring, with a descriptor, where the
    /// system has one and the file takes O_DIRECT; otherwise, and in a store that [outlives](StoreBuilder::outliving) its
    /// process, they are written one after another. Default: 1.
    #[must_use]
    pub fn writeback_depth(mut self, batches: usize) -> StoreBuilder {
        self.writeback_depth = Some(batches);
        self
    }

    pub(crate) fn parse(self) -> Result<StoreConfig> {
        let shared_unit = self.compression.as_ref().map(|shared| shared.unit());
        let unit = self.unit.or(shared_unit).unwrap_or_default();
        let compression = match self.compression {
            None => {
                let name = self.algorithm.as_deref().unwrap_or(codec::algorithms()[0]);
                Compression::with_parameters(name, &self.parameters.unwrap_or_default(), unit)?
            }
            Some(shared) => {
                check_shared(&shared, unit, self.algorithm.as_deref())?;
                no_parameters_beside(&shared, self.parameters)?;
                shared
            }
        };
        Ok(StoreConfig {
            disksize_bytes: disksize(self.size_bytes, unit)?,
            unit,
            compression,
            pool: pool::find(self.pool.as_deref().unwrap_or(pool::pools()[0]))?,
            mem_limit_bytes: self.mem_limit_bytes,
            checksum: self.checksum,
            ages: self.ages,
            spare_bytes: self.spare_bytes,
            backing: match self.outliving {
                true => Backing::Memfd,
                false => Backing::Private,
            },
            backing_file: self.backing_file,
            compressed_writeback: !self.uncompressed_writeback,
            writeback_depth: depth(self.writeback_depth.unwrap_or(1))?,
            secondaries: secondaries(self.secondaries, unit)?,
        })
    }
}

impl StoreConfig {
    pub(crate) fn pool_config(&self) -> PoolConfig {
        PoolConfig {
            unit: self.unit,
            disksize_bytes: self.disksize_bytes,
            limit_bytes: self.mem_limit_bytes,
            backing: self.backing,
            spare_bytes: self.spare_bytes,
        }
    }
}

fn disksize(size_bytes: u64, unit: Unit) -> Result<u64> {
    if size_bytes == 0 {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            "size 0: must be at least one byte",
        ));
    }
    size_bytes
        .checked_next_multiple_of(unit.bytes() as u64)
        .ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidInput,
                format!("size {size_bytes}: larger than an address space; choose a smaller one"),
            )
        })
}

fn depth(batches: usize) -> Result<usize> {
    if (1..=WRITEBACK_DEPTH_MAX).contains(&batches) {
        return Ok(batches);
    }
    let text = format!("writeback_depth {batches}: must be 1 to {WRITEBACK_DEPTH_MAX}");
    Err(Error::new(ErrorKind::InvalidInput, text))
}

fn secondaries(named: BTreeMap<u8, Arc<Compression>>, unit: Unit) -> Result<Secondaries> {
    let mut secondaries = Secondaries::default();
    for (priority, compression) in named {
        check_shared(&compression, unit, None)?;
        let place = usize::from(priority).checked_sub(1);
        let place = place.and_then(|place| secondaries.get_mut(place));
        let place = place.ok_or_else(|| {
            let text = format!("priority {priority}: a secondary codec's is 1 to {PRIORITY_MAX}");
            Error::new(ErrorKind::InvalidInput, text)
        })?;
        *place = Some(compression);
    }
    Ok(secondaries)
}

fn check_shared(shared: &Compression, unit: Unit, algorithm: Option<&str>) -> Result<()> {
    if shared.unit() != unit {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!(
                "unit {unit}: the shared compression works on units of {}",
                shared.unit()
            ),
        ));
    }
    match algorithm {
        Some(name) if name != shared.codec().name() => Err(Error::new(
            ErrorKind::InvalidInput,
            format!(
                "algorithm {name}: the shared compression is {}",
                shared.codec().name()
            ),
        )),
        _ => Ok(()),
    }
}

fn no_parameters_beside(shared: &Compression, parameters: Option<Parameters>) -> Result<()> {
    match parameters {
        None => Ok(()),
        Some(parameters) => Err(Error::new(
            ErrorKind::InvalidInput,
            format!(
                "parameters {parameters}: the shared {} has its own; set them where it is made",
                shared.codec().name()
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;

    #[test]
    fn bad_options_are_refused_by_name() {
        let refused = |builder: StoreBuilder| builder.parse().unwrap_err();
        assert_eq!(
            refused(StoreBuilder::default()).to_string(),
            "size 0: must be at least one byte"
        );
        let error = refused(Store::builder().size(u64::MAX));
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let error = refused(Store::builder().size(1).algorithm("lz5"));
        assert_eq!(error.kind(), ErrorKind::UnknownName);
        assert!(
            error.to_string().contains("`lz5`; known: auto, lz4"),
            "{error}"
        );
        let error = refused(Store::builder().size(1).pool("slab"));
        assert!(
            error.to_string().contains("`slab`; known: bestfit"),
            "{error}"
        );
        let shared = Compression::new("lz4", Unit::DEFAULT).unwrap();
        let large = Unit::new(16384).unwrap();
        let other = Store::builder()
            .size(1)
            .compression(shared.clone())
            .unit(large);
        assert_eq!(refused(other).kind(), ErrorKind::InvalidInput);
        let other = Store::builder()
            .size(1)
            .compression(shared.clone())
            .algorithm("zstd");
        assert_eq!(refused(other).kind(), ErrorKind::InvalidInput);
        let level = Parameters::default().level(1);
        let other = Store::builder()
            .size(1)
            .compression(shared)
            .parameters(level);
        assert_eq!(
            refused(other).to_string(),
            "parameters level=1: the shared lz4 has its own; set them where it is made"
        );
        let too_fast = Parameters::default().level(0);
        let error = refused(Store::builder().size(1).parameters(too_fast));
        assert!(
            error.to_string().starts_with("level 0: auto takes"),
            "{error}"
        );
    }

    #[test]
    fn sizes_round_up_to_the_unit_and_too_large_ones_say_so() {
        assert_eq!(Store::builder().size(1).build().unwrap().size_bytes(), 4096);
        let error = Store::builder().size(1 << 62).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoMemory);
        assert!(error.to_string().contains("smaller size"), "{error}");
    }
}
