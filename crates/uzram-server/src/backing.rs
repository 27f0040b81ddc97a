//! What a served device keeps its data in: a compressing store, plain memory, or a file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use uzram::{
    Bio, BlockDevice, Brd, Btt, Compression, Error, ErrorKind, Pmem, PmemFile, Result, Stats,
    Store, Zram,
};

use crate::device::{DeviceConfig, check_size};
use crate::nearest::{remedy, shown};

/// The kinds of devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceKind {
    /// Memory, compressed.
    #[default]
    Zram,
    /// Memory as it is.
    Brd,
    /// A file as it is.
    Pmem,
    /// A file with atomic sectors.
    Btt,
}

/// Their names, as the kernel's drivers have them.
const KINDS: [(&str, DeviceKind); 4] = [
    ("zram", DeviceKind::Zram),
    ("brd", DeviceKind::Brd),
    ("pmem", DeviceKind::Pmem),
    ("btt", DeviceKind::Btt),
];

impl DeviceKind {
    /// The kind of this name.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownName`] with the list.
    pub fn parse(name: &str) -> Result<DeviceKind> {
        let found = KINDS.iter().find(|(known, _)| *known == name);
        found.map(|(_, kind)| *kind).ok_or_else(|| {
            let text = format!(
                "{:?}: not a kind of device{}",
                shown(name),
                remedy(name, &KINDS.map(|(name, _)| name))
            );
            Error::new(ErrorKind::UnknownName, text)
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        let found = KINDS.iter().find(|(_, kind)| *kind == self);
        found.map_or("", |(name, _)| name)
    }

    /// Whether its data is in a file.
    #[must_use]
    pub fn has_file(self) -> bool {
        matches!(self, DeviceKind::Pmem | DeviceKind::Btt)
    }

    /// What people call such a device.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            DeviceKind::Zram => "a compressed RAM disk",
            DeviceKind::Brd => "a RAM disk",
            DeviceKind::Pmem => "a disk in a file",
            DeviceKind::Btt => "a disk of atomic sectors in a file",
        }
    }
}

/// Refuses options that mean nothing for the kind, and misses those that it needs. Gives the
/// option's name and what is wrong with it.
pub(crate) fn check(config: &DeviceConfig) -> Result<(), (&'static str, String)> {
    let kind = config.kind;
    match (&config.path, kind.has_file()) {
        (None, true) => {
            let text = format!("missing; say which file the {} device is in", kind.name());
            return Err(("path", text));
        }
        (Some(_), false) => {
            let text = format!(
                "means nothing for {}, which is memory; add --device pmem or btt",
                kind.name()
            );
            return Err(("path", text));
        }
        _ => {}
    }
    if kind == DeviceKind::Zram {
        return Ok(());
    }
    let zrams = [
        ("algorithm", config.algorithm.is_some()),
        ("pool", config.pool.is_some()),
        ("mem-limit", config.mem_limit_bytes != 0),
        ("checksum", config.checksum),
    ];
    match zrams.iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => Err((
            option,
            format!("means nothing for {}, which does not compress", kind.name()),
        )),
        None => Ok(()),
    }
}

/// A device's data.
#[derive(Clone)]
pub(crate) enum Backing {
    Zram(Arc<Zram>),
    Brd(Arc<Brd>),
    Pmem(Arc<Pmem>),
    Btt(Arc<Btt>),
}

impl Backing {
    /// Makes or opens what `config` says; `compression` is only asked for where there is any.
    pub(crate) fn build(
        config: &DeviceConfig,
        compression: impl FnOnce() -> Result<Arc<Compression>>,
    ) -> Result<Backing> {
        Ok(match config.kind {
            DeviceKind::Zram => {
                let store = config.build(compression()?)?;
                Backing::Zram(Arc::new(Zram::new(store)))
            }
            DeviceKind::Brd => {
                check_size(config.size_bytes)?;
                Backing::Brd(Arc::new(Brd::new(config.size_bytes)?))
            }
            DeviceKind::Pmem => Backing::Pmem(Arc::new(pmem(config, path(config)?)?)),
            DeviceKind::Btt => Backing::Btt(Arc::new(btt(config, path(config)?)?)),
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
            Backing::Brd(brd) => brd.submit(Bio::Trim {
                offset: 0,
                length: brd.geometry().size_bytes,
            }),
            Backing::Pmem(_) | Backing::Btt(_) => Err(Error::new(
                ErrorKind::Unsupported,
                "its data is in a file, which outlives it: a client may trim it, or make another file",
            )),
        }
    }
}

fn path(config: &DeviceConfig) -> Result<&Path> {
    let missing = || Error::new(ErrorKind::InvalidInput, "path: missing");
    config.path.as_deref().ok_or_else(missing)
}

/// The file at `path` as it is, or a new one if there is none and a size is given.
fn pmem(config: &DeviceConfig, path: &Path) -> Result<Pmem> {
    let is_new = !path.exists();
    if is_new && config.size_bytes == 0 {
        let text = format!("{}: no such file; give --size to make it", path.display());
        return Err(Error::new(ErrorKind::InvalidInput, text));
    }
    let file = match is_new {
        true => PmemFile::create(path, config.size_bytes)?,
        false => PmemFile::open(path)?,
    };
    check_file_size(config, path, file.size_bytes())?;
    Pmem::new(file)
}

/// The table in the file at `path`.
fn btt(config: &DeviceConfig, path: &Path) -> Result<Btt> {
    if !path.exists() {
        let text = format!(
            "{}: no such file; `uzram btt create {0} --size N` makes one",
            path.display()
        );
        return Err(Error::new(ErrorKind::InvalidInput, text));
    }
    let btt = Btt::open(PmemFile::open(path)?)?;
    check_file_size(config, path, btt.geometry().size_bytes)?;
    for line in btt.recovered() {
        log::warn!("{}: {line}", path.display());
    }
    Ok(btt)
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

/// Reads the option `path`.
pub(crate) fn parse_path(value: &str) -> Result<PathBuf> {
    // The server may run elsewhere.
    match Path::new(value).is_absolute() {
        true => Ok(value.into()),
        false => {
            let text = format!("{:?}: must be an absolute path", shown(value));
            Err(Error::new(ErrorKind::InvalidInput, text))
        }
    }
}
