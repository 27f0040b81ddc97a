//! One served device: a store under a name, its export and where clients find it.

use std::sync::{Arc, Mutex, PoisonError};

use uzram::{Compression, Error, ErrorKind, Result, Store, Unit, Zram};
use uzram_frontends::nbd::{Endpoint, Export, Exports};

/// Largest device, in bytes: the user address space of a process, as a table of pages must fit it.
pub const DEVICE_BYTES_MAX: u64 = 1 << 47;

/// What a device is to be.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Its name; `None` takes the first free `uzram0`, `uzram1`, …
    pub name: Option<String>,
    /// Its size in bytes, rounded up to a unit.
    pub size_bytes: u64,
    /// The codec; `None` takes the default.
    pub algorithm: Option<String>,
    /// The pool; `None` takes the default.
    pub pool: Option<String>,
    /// What is compressed at once.
    pub unit: Unit,
    /// Limit on memory for compressed pages, in bytes; 0 for none.
    pub mem_limit_bytes: u64,
    /// Whether pages are checked when they are read back.
    pub checksum: bool,
    /// Where it is served; `None` takes `NAME.nbd` in the state directory.
    pub endpoint: Option<Endpoint>,
}

impl DeviceConfig {
    pub(crate) fn algorithm(&self) -> &str {
        self.algorithm.as_deref().unwrap_or(uzram::algorithms()[0])
    }

    /// Makes the store; `compression` may be shared with other devices.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a size outside the address space, [`ErrorKind::UnknownName`]
    /// for a pool that does not exist, [`ErrorKind::NoMemory`].
    pub(crate) fn build(&self, compression: Arc<Compression>) -> Result<Store> {
        check_size(self.size_bytes)?;
        Store::builder()
            .size(self.size_bytes)
            .compression(compression)
            .unit(self.unit)
            .pool(self.pool.as_deref().unwrap_or(uzram::pools()[0]))
            .mem_limit(self.mem_limit_bytes)
            .checksum(self.checksum)
            .build()
    }
}

fn check_size(size_bytes: u64) -> Result<()> {
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

/// A device being served.
pub struct Device {
    name: String,
    zram: Arc<Zram>,
    exports: Arc<Exports>,
    endpoint: Endpoint,
    /// Held while the export is away for a reset.
    resetting: Mutex<()>,
}

impl Device {
    pub(crate) fn new(
        name: &str,
        store: Store,
        exports: Arc<Exports>,
        endpoint: Endpoint,
    ) -> Result<Device> {
        let zram = Arc::new(Zram::new(store));
        let device = Device {
            name: name.to_owned(),
            zram,
            exports,
            endpoint,
            resetting: Mutex::new(()),
        };
        device.exports.add(device.export())?;
        Ok(device)
    }

    /// Its name, also that of its export.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its pages.
    #[must_use]
    pub fn store(&self) -> &Store {
        self.zram.store()
    }

    /// Where it is served.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The address that clients take.
    #[must_use]
    pub fn uri(&self) -> String {
        self.endpoint.uri(&self.name)
    }

    /// Clients that use it now.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.exports.connections(&self.name) as u64
    }

    /// Empties it and zeroes its counters. A client that comes meanwhile finds no export, so none
    /// sees its data vanish.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while clients are connected, as zram has it.
    pub fn reset(&self) -> Result<()> {
        let _one_at_a_time = self
            .resetting
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let export = self
            .exports
            .remove(&self.name)
            .map_err(|error| match error.kind() {
                ErrorKind::Busy => self.busy(),
                _ => error,
            })?;
        self.store().reset();
        self.exports.add(Export::clone(&export))
    }

    fn busy(&self) -> Error {
        let text = match self.connections() {
            1 => "1 client is connected; disconnect it first".to_owned(),
            // 0: the last one left just now.
            count => format!("{count} clients are connected; disconnect them first"),
        };
        Error::new(ErrorKind::Busy, format!("{}: {text}", self.name))
    }

    fn export(&self) -> Export {
        Export {
            name: self.name.clone(),
            description: "uzram".into(),
            device: Arc::clone(&self.zram) as _,
            read_only: false,
        }
    }
}
