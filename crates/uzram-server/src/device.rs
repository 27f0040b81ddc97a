//! One served device: a store under a name, and the places where clients find it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use uzram::{BlockDevice, Compression, Error, ErrorKind, Parameters, Result, Stats, Store, Unit};
use uzram_frontends::nbd::{Endpoint, Export};
use uzram_frontends::vhost_user::Disk;

use crate::attachment::{Attach, Attachment, GuestSocket};
use crate::backing::{Backing, DeviceKind};
use crate::place::Place;
use crate::state::StateDir;
use crate::tls::TlsOptions;

/// Largest device, in bytes: the user address space of a process, as a table of pages must fit it.
pub const DEVICE_BYTES_MAX: u64 = 1 << 47;

/// Clients that are told to go have so long, and are looked after so often.
const FORCE_TIMEOUT: Duration = Duration::from_secs(5);
const FORCE_PAUSE: Duration = Duration::from_millis(5);
/// Users of a device that a refusal names, at most.
const USERS_SHOWN_MAX: usize = 8;
/// Memory kept in reserve for a device that is swapped to: a fiftieth of its size, and at least this,
/// in bytes, unless the device is smaller.
const SWAP_SPARE_SHARE: u64 = 50;
const SWAP_SPARE_BYTES_MIN: u64 = 64 << 20;

/// What a device is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceConfig {
    /// Its name; `None` takes the first free `uzram0`, `uzram1`, …
    pub name: Option<String>,
    /// What keeps its data.
    pub kind: DeviceKind,
    /// The file that does, for kinds that have one.
    pub path: Option<PathBuf>,
    /// Its size in bytes, rounded up to a unit; 0 for that of an existing file.
    pub size_bytes: u64,
    /// The codec; `None` takes the default.
    pub algorithm: Option<String>,
    /// The codec's parameters.
    pub parameters: Parameters,
    /// The pool; `None` takes the default.
    pub pool: Option<String>,
    /// What is compressed at once.
    pub unit: Unit,
    /// Limit on memory for compressed pages, in bytes; 0 for none.
    pub mem_limit_bytes: u64,
    /// Whether pages are checked when they are read back.
    pub checksum: bool,
    /// Where it is served; `None` takes the sockets that the server was started with, if there
    /// are any, else `NAME.nbd` in the state directory.
    pub endpoint: Option<Endpoint>,
    /// Whether an endpoint may be one that other machines reach without TLS.
    pub insecure: bool,
    /// TLS where it is served.
    pub tls: TlsOptions,
    /// How clients reach it.
    pub attach: Attach,
    /// Whether it is swapped to, so that writing to it must never wait for memory to be freed.
    pub for_swap: bool,
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
            unit: Unit::DEFAULT,
            mem_limit_bytes: 0,
            checksum: false,
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
            .spare(self.spare_bytes())
            .build()
    }

    /// Memory kept for writes that must not wait for any: a burst of swapping lasts until the
    /// maintenance thread, which looks every few milliseconds, has made more.
    fn spare_bytes(&self) -> u64 {
        let share = self.size_bytes / SWAP_SPARE_SHARE;
        match self.for_swap {
            true => share.max(SWAP_SPARE_BYTES_MIN).min(self.size_bytes),
            false => 0,
        }
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

/// A device being served.
pub struct Device {
    name: String,
    backing: Backing,
    config: DeviceConfig,
    is_read_only: AtomicBool,
    places: Vec<Arc<Place>>,
    attachment: Option<Attachment>,
    guests: Option<Arc<GuestSocket>>,
    /// Held while the exports are away.
    changing: Mutex<()>,
}

impl Device {
    /// Offers `backing` at `places`, or attaches it where the configuration wants that.
    pub(crate) fn new(
        name: &str,
        backing: Backing,
        config: &DeviceConfig,
        places: Vec<Arc<Place>>,
        guests: Option<Arc<GuestSocket>>,
        state: &StateDir,
    ) -> Result<Device> {
        let attachment = match config.attach {
            Attach::Nbd | Attach::VhostUser => None,
            attach => Some(Attachment::new(
                attach,
                backing.device(),
                name,
                state,
                config.for_swap,
            )?),
        };
        let device = Device {
            name: name.to_owned(),
            backing,
            attachment,
            guests,
            config: config.clone(),
            is_read_only: AtomicBool::new(false),
            places,
            changing: Mutex::new(()),
        };
        device.publish()?;
        Ok(device)
    }

    /// Its name, also that of its exports.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its pages, if it compresses any.
    #[must_use]
    pub fn store(&self) -> Option<&Store> {
        self.backing.store()
    }

    /// Its counters; those that its kind does not have are 0.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.backing.stats()
    }

    /// What it is for those who read and write it.
    #[must_use]
    pub fn block_device(&self) -> Arc<dyn BlockDevice> {
        self.backing.device()
    }

    /// What keeps its data.
    #[must_use]
    pub fn kind(&self) -> DeviceKind {
        self.config.kind
    }

    /// The file that keeps its data, if one does.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.config.path.as_deref()
    }

    /// Its size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.backing.device().geometry().size_bytes
    }

    /// Whether pages are checked when they are read back.
    #[must_use]
    pub fn has_checksums(&self) -> bool {
        self.config.checksum
    }

    /// Whether writes are refused.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.is_read_only.load(Ordering::Relaxed)
    }

    /// Whether it is swapped to.
    #[must_use]
    pub fn is_for_swap(&self) -> bool {
        self.config.for_swap
    }

    /// Where it is served: one place, or several sockets that the server was started with.
    pub fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.places.iter().map(|place| place.endpoint())
    }

    /// The file or block device that it is attached as.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.attachment.as_ref().map(Attachment::path)
    }

    /// The socket that virtual machines take it from.
    #[must_use]
    pub fn guest_socket(&self) -> Option<&Path> {
        self.guests.as_ref().map(|guests| guests.path())
    }

    /// The address that clients take; the first one if there are several. The path, if it is
    /// attached, and `vhost-user:` with the socket's if it is a disk of virtual machines.
    #[must_use]
    pub fn uri(&self) -> String {
        if let Some(path) = self.path() {
            return path.display().to_string();
        }
        if let Some(socket) = self.guest_socket() {
            return format!("vhost-user:{}", socket.display());
        }
        let place = self.places.first();
        place.map_or_else(String::new, |place| place.uri(&self.name))
    }

    /// Whether other machines can connect without TLS.
    #[must_use]
    pub fn is_open_to_others(&self) -> bool {
        let mut places = self.places.iter();
        places.any(|place| !place.endpoint().is_loopback() && !place.requires_tls())
    }

    /// Clients that use it now.
    #[must_use]
    pub fn connections(&self) -> u64 {
        let counts = self.places.iter();
        let connected: u64 = counts
            .map(|place| place.exports().connections(&self.name) as u64)
            .sum();
        let guests = self.guests.iter();
        let guests = guests.filter_map(|guests| guests.seat().user()).count() as u64;
        connected + guests + self.attachment.as_ref().map_or(0, Attachment::users)
    }

    /// Empties it and zeroes its counters. A client that comes meanwhile finds no export, so none
    /// sees its data vanish.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while clients are connected, as zram has it; [`ErrorKind::Unsupported`] if its
    /// data is in a file.
    pub fn reset(&self) -> Result<()> {
        let _one_at_a_time = self.lock();
        if let Some(attachment) = &self.attachment {
            return attachment.exclusively(|| self.backing.reset());
        }
        self.withdraw()?;
        // Offered again also if it cannot be emptied.
        let emptied = self.backing.reset();
        self.publish()?;
        emptied
    }

    /// Makes it take writes or refuse them. Clients are told when they connect, so those that are
    /// connected would be surprised.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while clients are connected.
    pub fn set_read_only(&self, is_read_only: bool) -> Result<()> {
        let _one_at_a_time = self.lock();
        if self.is_read_only() == is_read_only {
            return Ok(());
        }
        if let Some(path) = self.path() {
            let text = format!(
                "{}: say so when you open or mount it (-o ro)",
                path.display()
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        self.withdraw()?;
        self.is_read_only.store(is_read_only, Ordering::Relaxed);
        self.publish()
    }

    /// Makes it what `config` says as far as a device can change.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if it would have to be another device.
    pub(crate) fn adapt(&self, config: &DeviceConfig) -> Result<()> {
        let alike = DeviceConfig {
            name: self.config.name.clone(),
            mem_limit_bytes: self.config.mem_limit_bytes,
            ..config.clone()
        };
        if alike != self.config {
            let text = "only mem-limit can change while a disk is served; for the rest, remove it \
                        and reload";
            return Err(Error::new(ErrorKind::Busy, text));
        }
        let Some(store) = self.store() else {
            return Ok(());
        };
        if config.mem_limit_bytes != store.mem_limit() {
            store.set_mem_limit(config.mem_limit_bytes);
            log::info!("{}: mem_limit is now {}", self.name, config.mem_limit_bytes);
        }
        Ok(())
    }

    /// Stops offering it for good; its pages go with the last reference to it. With `force` clients
    /// are hung up on, but nothing is taken from under a mount.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while clients are connected, or come back faster than they are ended.
    pub(crate) fn retire(&self, force: bool) -> Result<&[Arc<Place>]> {
        let _one_at_a_time = self.lock();
        if let Some(attachment) = &self.attachment {
            attachment.detach()?;
        }
        let deadline = Instant::now() + FORCE_TIMEOUT;
        while let Err(error) = self.withdraw() {
            if !force || error.kind() != ErrorKind::Busy || Instant::now() > deadline {
                return Err(error);
            }
            for place in &self.places {
                place.disconnect(&self.name);
            }
            if let Some(guests) = &self.guests {
                guests.seat().disconnect();
            }
            thread::sleep(FORCE_PAUSE);
        }
        Ok(&self.places)
    }

    /// Lets virtual machines in.
    pub(crate) fn start_guests(&self) -> Result<()> {
        let mut guests = self.guests.iter();
        guests.try_for_each(|guests| guests.start(&self.name))
    }

    /// Hangs up on a virtual machine and takes the socket away.
    pub(crate) fn end_guests(&self) {
        if let Some(guests) = &self.guests {
            guests.end();
        }
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Offers it everywhere, or nowhere.
    fn publish(&self) -> Result<()> {
        if let Some(guests) = &self.guests {
            return guests.seat().offer(Disk {
                name: self.name.clone(),
                device: self.block_device(),
                is_read_only: self.is_read_only(),
            });
        }
        for (done, place) in self.places.iter().enumerate() {
            if let Err(error) = place.exports().add(self.export()) {
                self.remove_exports(done);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Stops offering it, unless clients are connected somewhere.
    fn withdraw(&self) -> Result<()> {
        if let Some(guests) = &self.guests {
            return guests.seat().withdraw().map_err(|_in_use| self.busy());
        }
        for (done, place) in self.places.iter().enumerate() {
            match place.exports().remove(&self.name) {
                Ok(_) => {}
                // An earlier change failed half-way: then it is not offered, which is the aim.
                Err(error) if error.kind() == ErrorKind::UnknownName => {}
                Err(error) => {
                    for place in &self.places[..done] {
                        place.exports().add(self.export())?;
                    }
                    return Err(match error.kind() {
                        ErrorKind::Busy => self.busy(),
                        _ => error,
                    });
                }
            }
        }
        Ok(())
    }

    fn remove_exports(&self, count: usize) {
        for place in &self.places[..count] {
            // A client that came at once keeps its lease on an export that nobody else finds.
            let _ = place.exports().remove(&self.name);
        }
    }

    fn busy(&self) -> Error {
        let users = self.users();
        let text = match self.connections() {
            1 => format!("1 client is connected{users}; disconnect it first"),
            // 0: the last one left just now.
            count => format!("{count} clients are connected{users}; disconnect them first"),
        };
        Error::new(ErrorKind::Busy, format!("{}: {text}", self.name))
    }

    /// ` (process 12, 127.0.0.1:5000)`, as far as they are known and there is room.
    fn users(&self) -> String {
        let peers = self.places.iter().flat_map(|place| place.peers(&self.name));
        let guests = self.guests.iter();
        let guests = guests.filter_map(|guests| guests.seat().user());
        let mut names: Vec<String> = peers.chain(guests).map(|peer| peer.to_string()).collect();
        names.sort();
        names.dedup();
        if names.len() > USERS_SHOWN_MAX {
            names.truncate(USERS_SHOWN_MAX);
            names.push("others".into());
        }
        match names.as_slice() {
            [] => String::new(),
            names => format!(" ({})", names.join(", ")),
        }
    }

    fn export(&self) -> Export {
        Export {
            name: self.name.clone(),
            description: "uzram".into(),
            device: self.block_device(),
            read_only: self.is_read_only(),
        }
    }
}
