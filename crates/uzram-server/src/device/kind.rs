//! The kinds of devices, by the names of the kernel's drivers.

use uzram::ErrorKind;

use crate::error::{Error, Result};
use crate::nearest::{remedy, shown};

/// The kinds of devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceKind {
    /// Memory, compressed.
    #[default]
    Zram,
    /// Memory, uncompressed.
    Brd,
    /// A file, uncompressed.
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

    /// A description for people.
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
