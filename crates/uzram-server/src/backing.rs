//! The data of a served device: a compressing store, plain memory, or a file.

use std::path::Path;
use std::sync::Arc;

use uzram::{Bio, BlockDevice, ErrorKind, Remains, Stats, Store, Zram};
use uzram_media::{Brd, Btt, Pmem, PmemFile};

use crate::compressions::Compressions;
use crate::device::{DeviceConfig, DeviceKind, check_size};
use crate::error::{Error, Result};

/// A device's data.
#[derive(Clone)]
pub(crate) enum Backing {
    Zram(Arc<Zram>),
    Brd(Arc<Brd>),
    Pmem(Arc<Pmem>),
    Btt(Arc<Btt>),
}

impl Backing {
    /// Makes or opens the data of `config`; with `outliving`, so that it can outlive this process. Only a compressing
    /// store takes its codecs from `compressions`.
    ///
    /// # Errors
    /// Those of the kinds; [`ErrorKind::Unsupported`] for one that cannot outlive its process.
    pub(crate) fn build(
        config: &DeviceConfig,
        compressions: &Compressions,
        outliving: bool,
    ) -> Result<Backing> {
        Ok(match config.kind {
            DeviceKind::Zram => {
                let store = config.build(compressions, outliving)?;
                Backing::Zram(Arc::new(Zram::new(store)))
            }
            DeviceKind::Brd if outliving => {
                let text = "brd: its pages are this process's own and cannot outlive it; leave --survive out, or                             choose --device zram";
                return Err(Error::new(ErrorKind::Unsupported, text));
            }
            DeviceKind::Brd => {
                check_size(config.size_bytes)?;
                Backing::Brd(Arc::new(Brd::new(config.size_bytes)?))
            }
            DeviceKind::Pmem => Backing::Pmem(Arc::new(pmem(config, path(config)?)?)),
            DeviceKind::Btt => Backing::Btt(Arc::new(btt(config, path(config)?)?)),
        })
    }

    /// Takes over the data of `config` that a dead process left. What is in a file is opened again.
    ///
    /// # Errors
    /// As [`Backing::build`], and if `remains` are of something else.
    pub(crate) fn resume(
        config: &DeviceConfig,
        compressions: &Compressions,
        remains: Option<Remains>,
    ) -> Result<Backing> {
        match (config.kind, remains) {
            (DeviceKind::Zram, Some(remains)) => {
                let (store, found) = config.recover(compressions, remains)?;
                let name = config.name.as_deref().unwrap_or_default();
                log::info!(
                    "{name}: {} pages taken over, opened for the {}th time",
                    found.pages,
                    found.generation
                );
                if found.lost_pages > 0 {
                    log::error!(
                        "{name}: {} pages are lost: reading them fails",
                        found.lost_pages
                    );
                }
                Ok(Backing::Zram(Arc::new(Zram::new(store))))
            }
            _ => Backing::build(config, compressions, true),
        }
    }

    /// The files that a process which outlives this one has to keep; none if the data is in a file.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if no more descriptors may be had.
    pub(crate) fn remains(&self) -> Result<Option<Remains>> {
        Ok(match self.store() {
            Some(store) => store.remains()?,
            None => None,
        })
    }

    pub(crate) fn device(&self) -> Arc<dyn BlockDevice> {
        match self {
            Backing::Zram(zram) => Arc::clone(zram) as _,
            Backing::Brd(brd) => Arc::clone(brd) as _,
            Backing::Pmem(pmem) => Arc::clone(pmem) as _,
            Backing::Btt(btt) => Arc::clone(btt) as _,
        }
    }

    pub(crate) fn store(&self) -> Option<&Store> {
        match self {
            Backing::Zram(zram) => Some(zram.store()),
            Backing::Brd(_) | Backing::Pmem(_) | Backing::Btt(_) => None,
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        match self {
            Backing::Zram(zram) => zram.store().stats(),
            Backing::Brd(brd) => {
                let mut stats = Stats::default();
                stats.orig_data_size_bytes = brd.used_bytes();
                stats.compr_data_size_bytes = stats.orig_data_size_bytes;
                stats.mem_used_total_bytes = stats.orig_data_size_bytes;
                stats
            }
            Backing::Pmem(_) | Backing::Btt(_) => Stats::default(),
        }
    }

    /// Empties it.
    pub(crate) fn reset(&self) -> Result<()> {
        match self {
            Backing::Zram(zram) => {
                zram.store().reset();
                Ok(())
            }
            Backing::Brd(brd) => Ok(brd.submit(Bio::Trim {
                offset: 0,
                length: brd.geometry().size_bytes,
            })?),
            Backing::Pmem(_) | Backing::Btt(_) => Err(is_in_a_file()),
        }
    }
}

/// The refusal to empty a device whose data is in a file.
pub(crate) fn is_in_a_file() -> Error {
    let text =
        "its data is in a file, which outlives it: a client may trim it, or make another file";
    Error::new(ErrorKind::Unsupported, text)
}

fn path(config: &DeviceConfig) -> Result<&Path> {
    let missing = || Error::new(ErrorKind::InvalidInput, "path: missing");
    config.path.as_deref().ok_or_else(missing)
}

/// The file at `path` as it is, or a new one if there is none and a size is given.
fn pmem(config: &DeviceConfig, path: &Path) -> Result<Pmem> {
    let file = match PmemFile::open(path) {
        Err(error) if is_missing(&error) && config.size_bytes == 0 => {
            let text = format!("{}: no such file; give --size to make it", path.display());
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        Err(error) if is_missing(&error) => PmemFile::create(path, config.size_bytes)?,
        opened => opened?,
    };
    check_file_size(config, path, file.size_bytes())?;
    Ok(Pmem::new(file)?)
}

/// The table in the file at `path`.
fn btt(config: &DeviceConfig, path: &Path) -> Result<Btt> {
    let file = PmemFile::open(path).map_err(|error| match is_missing(&error) {
        true => {
            let text = format!(
                "{}: no such file; `uzram btt create {0} --size N` makes one",
                path.display()
            );
            uzram::Error::new(ErrorKind::InvalidInput, text)
        }
        false => error,
    })?;
    let btt = Btt::open(file)?;
    check_file_size(config, path, btt.geometry().size_bytes)?;
    for line in btt.recovered() {
        log::warn!("{}: {line}", path.display());
    }
    Ok(btt)
}

/// Whether a file could not be opened because there is none.
fn is_missing(error: &uzram::Error) -> bool {
    let cause = error.io_error();
    cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::NotFound)
}

fn check_file_size(config: &DeviceConfig, path: &Path, size_bytes: u64) -> Result<()> {
    if config.size_bytes == 0 || config.size_bytes == size_bytes {
        return Ok(());
    }
    let text = format!(
        "size {}: {} offers {size_bytes} bytes; leave the size out",
        config.size_bytes,
        path.display()
    );
    Err(Error::new(ErrorKind::InvalidInput, text))
}
