//! Exports: the devices that are served by name, and the count of their connections.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use uzram::{BlockDevice, Error, ErrorKind, Result};

use super::wire;

/// Longest export name, in bytes. The protocol allows 4096 and recommends at most 256.
pub const NAME_BYTES_MAX: usize = 256;
/// Longest description, in bytes, as the protocol has it.
pub const DESCRIPTION_BYTES_MAX: usize = wire::STRING_BYTES_MAX;

/// A device under a name.
#[derive(Clone)]
pub struct Export {
    /// The name that clients ask for: at most [`NAME_BYTES_MAX`] bytes without NUL. A client that
    /// asks for the empty name gets the export of that name, else the default
    /// ([`Exports::set_default`]), else the only one.
    pub name: String,
    /// Text for people, shown by clients that list exports; may be empty.
    pub description: String,
    /// The device that requests go to.
    pub device: Arc<dyn BlockDevice>,
    /// Whether writes, trims and write-zeroes are refused with `EPERM`.
    pub read_only: bool,
}

impl Export {
    fn validate(&self) -> Result<()> {
        if self.name.len() > NAME_BYTES_MAX || self.name.contains('\0') {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "export name of {} bytes: must be at most {NAME_BYTES_MAX} bytes without NUL",
                    self.name.len()
                ),
            ));
        }
        if self.description.len() > DESCRIPTION_BYTES_MAX || self.description.contains('\0') {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "export '{}': its description must be at most {DESCRIPTION_BYTES_MAX} bytes \
                     without NUL",
                    self.name
                ),
            ));
        }
        let geometry = self.device.geometry();
        if geometry.size_bytes > i64::MAX as u64 {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "export '{}': {} bytes are more than the {} that clients accept",
                    self.name,
                    geometry.size_bytes,
                    i64::MAX
                ),
            ));
        }
        let preferred = geometry.preferred_block_bytes;
        if !preferred.is_power_of_two() || !(512..=super::PAYLOAD_BYTES_MAX).contains(&preferred) {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "export '{}': preferred block of {preferred} bytes: must be a power of two \
                     from 512 to {}",
                    self.name,
                    super::PAYLOAD_BYTES_MAX
                ),
            ));
        }
        Ok(())
    }
}

impl std::fmt::Debug for Export {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Export")
            .field("name", &self.name)
            .field("description", &self.description)
            .field("geometry", &self.device.geometry())
            .field("read_only", &self.read_only)
            .finish()
    }
}

/// The exports that servers offer. Shared by any number of servers; changes show at the next
/// handshake.
#[derive(Debug, Default)]
pub struct Exports {
    table: RwLock<Table>,
}

#[derive(Debug, Default)]
struct Table {
    by_name: BTreeMap<String, Entry>,
    default: Option<String>,
}

#[derive(Debug)]
struct Entry {
    export: Arc<Export>,
    connections: Arc<AtomicUsize>,
}

impl Exports {
    /// No exports.
    #[must_use]
    pub fn new() -> Exports {
        Exports::default()
    }

    /// Offers `export` from now on.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if the name is taken, [`ErrorKind::InvalidInput`] for a name,
    /// description, size or preferred block outside the protocol's bounds.
    pub fn add(&self, export: Export) -> Result<()> {
        export.validate()?;
        let by_name = &mut self.write().by_name;
        if by_name.contains_key(&export.name) {
            return Err(Error::new(
                ErrorKind::Busy,
                format!("export '{}' exists; choose another name", export.name),
            ));
        }
        let entry = Entry {
            export: Arc::new(export),
            connections: Arc::new(AtomicUsize::new(0)),
        };
        by_name.insert(entry.export.name.clone(), entry);
        Ok(())
    }

    /// Chooses the export for clients that ask for the empty name; it counts while it is offered.
    /// With `None` such a client gets the only export. The chosen export need not be offered yet.
    pub fn set_default(&self, name: Option<&str>) {
        self.write().default = name.map(str::to_owned);
    }

    /// Stops offering the export `name` and gives it back.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownName`] if there is none, [`ErrorKind::Busy`] while connections use it.
    pub fn remove(&self, name: &str) -> Result<Arc<Export>> {
        // Leases are taken under the read lock, so none appears between the test and the removal.
        let by_name = &mut self.write().by_name;
        let Some(entry) = by_name.get(name) else {
            return Err(Error::new(
                ErrorKind::UnknownName,
                format!("export '{name}' does not exist"),
            ));
        };
        let connections = entry.connections.load(Ordering::Acquire);
        if connections > 0 {
            return Err(Error::new(
                ErrorKind::Busy,
                format!("export '{name}' is used by {connections} connections; disconnect them"),
            ));
        }
        let entry = by_name.remove(name).expect("looked up under this lock");
        Ok(entry.export)
    }

    /// The exports in the order of their names.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<Export>> {
        self.read()
            .by_name
            .values()
            .map(|entry| Arc::clone(&entry.export))
            .collect()
    }

    /// Connections in the transmission phase on the export `name`; 0 if there is no such export.
    #[must_use]
    pub fn connections(&self, name: &str) -> usize {
        self.read()
            .by_name
            .get(name)
            .map_or(0, |entry| entry.connections.load(Ordering::Acquire))
    }

    /// The export that a client gets for `name`.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<Export>> {
        let table = self.read();
        table.resolve(name).map(|entry| Arc::clone(&entry.export))
    }

    /// The same, counted as in use until the lease is dropped.
    pub(crate) fn lease(&self, name: &str) -> Option<Lease> {
        let table = self.read();
        table.resolve(name).map(|entry| {
            entry.connections.fetch_add(1, Ordering::AcqRel);
            Lease {
                export: Arc::clone(&entry.export),
                connections: Arc::clone(&entry.connections),
            }
        })
    }

    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn resolve(&self, name: &str) -> Option<&Entry> {
        self.by_name.get(name).or_else(|| {
            let chosen = self.default.as_ref().filter(|_| name.is_empty());
            let the_only_one = name.is_empty() && self.by_name.len() == 1;
            chosen
                .and_then(|chosen| self.by_name.get(chosen))
                .or_else(|| self.by_name.values().next().filter(|_| the_only_one))
        })
    }
}

/// One connection's use of an export.
#[derive(Debug)]
pub(crate) struct Lease {
    pub export: Arc<Export>,
    connections: Arc<AtomicUsize>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.connections.fetch_sub(1, Ordering::AcqRel);
    }
}
