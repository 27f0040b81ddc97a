//! One served device: its data under a name, and the places where clients find it.

mod config;
mod keep;
mod kept;
mod kind;
mod live;
mod note;
mod offer;
mod surroundings;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use uzram::{BlockDevice, ErrorKind, Store};
use uzram_frontends::fuse::MountRemains;
use uzram_frontends::nbd::Endpoint;

use crate::attachment::{Attach, Attachment, GuestSocket};
use crate::backing::Backing;
use crate::compressions::Compressions;
use crate::error::{Error, Result};
use crate::place::Place;
use crate::state::StateDir;
use crate::survive::Keeper;

pub(crate) use config::check_size;
pub use config::{BackingDevice, Codec, DEVICE_BYTES_MAX, DeviceConfig, WritebackBounds};
pub(crate) use kept::{claim_key, forget, give_back_memory, guests, key, mount_remains, remains};
pub use kind::DeviceKind;
pub use live::Live;
use live::Switch;
pub(crate) use note::Note;
pub(crate) use surroundings::Surroundings;

/// Time for clients that are told to leave, and the pause between two looks.
const FORCE_TIMEOUT: Duration = Duration::from_secs(5);
const FORCE_PAUSE: Duration = Duration::from_millis(5);

/// A device being served. It is there before it has a size, and after a reset.
pub struct Device {
    name: String,
    /// No other device of this process has or had it.
    number: u64,
    /// The options that it was made with.
    config: DeviceConfig,
    /// The settings that the next size is made with, or the present one was.
    setup: Mutex<DeviceConfig>,
    live: RwLock<Option<Arc<Live>>>,
    compressions: Arc<Compressions>,
    is_read_only: AtomicBool,
    is_ending: AtomicBool,
    places: Vec<Arc<Place>>,
    attachment: Mutex<Option<Arc<Attachment>>>,
    /// The device that a mounted file shows.
    switch: Arc<Switch>,
    guests: Option<Arc<GuestSocket>>,
    state: StateDir,
    keeper: Option<Arc<Keeper>>,
    /// Held while the exports are away.
    changing: Mutex<()>,
}

/// The number of the next device.
static NUMBER: AtomicU64 = AtomicU64::new(0);

impl Device {
    /// Offers `backing`, if it has any yet, at its places, or attaches it where the configuration wants
    /// that.
    pub(crate) fn new(
        name: &str,
        backing: Option<Backing>,
        config: &DeviceConfig,
        around: Surroundings<'_>,
    ) -> Result<Device> {
        let device = Device {
            name: name.to_owned(),
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            config: config.without_backing(),
            setup: Mutex::new(config.clone()),
            live: RwLock::new(None),
            compressions: around.compressions,
            is_read_only: AtomicBool::new(around.is_read_only),
            is_ending: AtomicBool::new(false),
            places: around.places,
            attachment: Mutex::new(None),
            switch: Arc::default(),
            guests: around.guests,
            state: around.state.clone(),
            keeper: around.keeper,
            changing: Mutex::new(()),
        };
        if let Some(backing) = backing {
            device.enliven(Live::new(backing));
        }
        // Before anybody can write to it.
        device.keep()?;
        if matches!(config.attach, Attach::Fuse | Attach::Loop) {
            let shown = Arc::clone(&device.switch) as _;
            match around.mount {
                Some(mount) => device.attach_again(shown, mount)?,
                None => device.attach(shown)?,
            }
            device.keep()?;
        }
        match device.live() {
            Some(live) if around.follows && config.attach == Attach::Ublk => {
                let shown = live.block_device();
                let attachment =
                    Attachment::resume_ublk(shown, name, &device.state, device.config.for_swap)?;
                *device.lock_attachment() = Some(Arc::new(attachment));
            }
            _ => device.publish()?,
        }
        Ok(device)
    }

    /// Its name, also that of its exports.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A number that no other device of this process has or had.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Its data, while it has a size.
    #[must_use]
    pub fn live(&self) -> Option<Arc<Live>> {
        let live = self.live.read();
        live.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The configuration that its size was made with, or will be.
    #[must_use]
    pub fn setup(&self) -> DeviceConfig {
        self.lock_setup().clone()
    }

    /// The limit on memory for its pages, in bytes; 0 for none.
    #[must_use]
    pub fn mem_limit(&self) -> u64 {
        self.lock_setup().mem_limit_bytes
    }

    /// Changes that limit, any time.
    pub fn set_mem_limit(&self, bytes: u64) {
        let tell = |store: &Store| {
            store.set_mem_limit(bytes);
            Ok(())
        };
        let _ = self.tune(|setup| setup.mem_limit_bytes = bytes, tell);
    }

    /// Changes what the next size is made with.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while it has a size, and the errors of `change`.
    pub fn prepare(&self, change: impl FnOnce(&mut DeviceConfig) -> Result<()>) -> Result<()> {
        let _one_at_a_time = self.lock();
        self.check_no_size()?;
        let mut changed = self.setup();
        change(&mut changed)?;
        *self.lock_setup() = changed;
        self.keep()
    }

    /// Gives it a size, and with it a table of pages, and offers it to its clients.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if it has one, [`ErrorKind::NoMemory`], and others as for a new device.
    pub fn set_size(&self, size_bytes: u64) -> Result<()> {
        let _one_at_a_time = self.lock();
        self.check_no_size()?;
        if size_bytes > DEVICE_BYTES_MAX {
            let text = format!("disksize {size_bytes}: over the address space of a process");
            return Err(Error::new(ErrorKind::NoMemory, text));
        }
        let before = self.setup();
        let config = DeviceConfig {
            size_bytes,
            ..before.clone()
        };
        let backing = Backing::build(&config, &self.compressions, self.keeper.is_some())?;
        self.lock_setup().size_bytes = size_bytes;
        self.enliven(Live::new(backing));
        let told = self.tell_bounds().and_then(|()| self.keep());
        told.and_then(|()| self.offer()).inspect_err(|_| {
            self.forget();
            *self.lock_setup() = before;
            let _ = self.keep();
        })
    }

    /// Tells the store the bounds that somebody may have changed while it was made.
    fn tell_bounds(&self) -> Result<()> {
        let setup = self.lock_setup();
        match self.live().as_deref().and_then(Live::store) {
            Some(store) => {
                store.set_mem_limit(setup.mem_limit_bytes);
                setup.writeback.tell(store)
            }
            None => Ok(()),
        }
    }

    /// Takes its content, its size and its settings away, as zram's reset does.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while it is open anywhere, [`ErrorKind::Unsupported`] if its data is in a file.
    pub fn reset(&self) -> Result<()> {
        let _one_at_a_time = self.lock();
        if self.config.kind.has_file() {
            return Err(crate::backing::is_in_a_file());
        }
        self.check_not_open()?;
        match self.attachment() {
            Some(attachment) if self.config.attach == Attach::Ublk => {
                attachment.detach()?;
                *self.lock_attachment() = None;
                self.forget();
                self.keep()?;
            }
            Some(attachment) => {
                attachment.exclusively(|| {
                    self.forget();
                    self.keep()
                })?;
                attachment.resized()?;
            }
            None => {
                self.withdraw()?;
                self.forget();
                self.keep()?;
            }
        }
        Ok(())
    }

    /// Refuses while a process has its file or block device open, which nothing else tells.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] with the processes.
    pub(crate) fn check_not_open(&self) -> Result<()> {
        match self.attachment() {
            Some(attachment) => attachment.check_not_open(),
            None => Ok(()),
        }
    }

    /// Changes what may change any time: in the configuration, and in the pages, if there are any.
    ///
    /// # Errors
    /// Those of `tell`.
    pub(crate) fn tune(
        &self,
        change: impl FnOnce(&mut DeviceConfig),
        tell: impl FnOnce(&Store) -> Result<()>,
    ) -> Result<()> {
        let mut setup = self.lock_setup();
        let live = self.live();
        if let Some(store) = live.as_deref().and_then(Live::store) {
            tell(store)?;
        }
        change(&mut setup);
        drop(setup);
        // A store's successor knows by itself what the store was told.
        if live.is_none() {
            let _one_at_a_time = self.lock();
            self.keep()?;
        }
        Ok(())
    }

    /// Whether its server is ending: long work stops.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    /// Stops work that takes long.
    pub(crate) fn hurry(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    fn check_no_size(&self) -> Result<()> {
        match self.live() {
            None => Ok(()),
            Some(live) => {
                let text = format!(
                    "{}: has a size, {} bytes; reset it first: uzram set {0} reset 1",
                    self.name,
                    live.size_bytes()
                );
                Err(Error::new(ErrorKind::Busy, text))
            }
        }
    }

    fn enliven(&self, live: Live) {
        self.switch.set(Some(live.block_device()));
        *self.live.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(live));
    }

    /// As it was made, without a size.
    fn forget(&self) {
        self.switch.set(None);
        *self.live.write().unwrap_or_else(PoisonError::into_inner) = None;
        let made = self.config.clone();
        *self.lock_setup() = DeviceConfig {
            name: made.name,
            kind: made.kind,
            pool: made.pool,
            unit: made.unit,
            checksum: made.checksum,
            ages: made.ages,
            attach: made.attach,
            for_swap: made.for_swap,
            ..DeviceConfig::default()
        };
    }

    /// Lets clients come to the size that it has now.
    fn offer(&self) -> Result<()> {
        match self.attachment() {
            Some(attachment) => attachment.resized(),
            None => self.publish(),
        }
    }

    fn attach(&self, device: Arc<dyn BlockDevice>) -> Result<()> {
        let for_swap = self.config.for_swap;
        let attach = self.config.attach;
        let outlives = self.keeper.is_some();
        let attachment =
            Attachment::new(attach, device, &self.name, &self.state, for_swap, outlives)?;
        *self.lock_attachment() = Some(Arc::new(attachment));
        Ok(())
    }

    fn attach_again(&self, device: Arc<dyn BlockDevice>, mount: MountRemains) -> Result<()> {
        let (attach, for_swap) = (self.config.attach, self.config.for_swap);
        let attachment =
            Attachment::resume(device, &self.name, &self.state, mount, attach, for_swap)?;
        *self.lock_attachment() = Some(Arc::new(attachment));
        Ok(())
    }

    fn attachment(&self) -> Option<Arc<Attachment>> {
        self.lock_attachment().clone()
    }

    /// Its data.
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
        self.live().map_or(0, |live| live.size_bytes())
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

    /// The places where it is served: one, or several sockets that the server was started with.
    pub fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.places.iter().map(|place| place.endpoint())
    }

    /// The file or block device that it is attached as.
    #[must_use]
    pub fn path(&self) -> Option<PathBuf> {
        self.attachment().map(|attached| attached.path().to_owned())
    }

    /// The socket that virtual machines take it from.
    #[must_use]
    pub fn guest_socket(&self) -> Option<&Path> {
        self.guests.as_ref().map(|guests| guests.path())
    }

    /// The address for clients; the first one if there are several. The path, if it is attached,
    /// and `vhost-user:` with the socket's path if it is a disk of virtual machines.
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
        self.places.iter().any(|place| place.is_open_to_others())
    }

    /// Requests that the dead server had taken, and this one answered as it took over.
    #[must_use]
    pub fn replayed(&self) -> u64 {
        self.attachment().map_or(0, |attached| attached.replayed())
    }

    /// The clients that use it now.
    #[must_use]
    pub fn connections(&self) -> u64 {
        let counts = self.places.iter();
        let connected: u64 = counts
            .map(|place| place.exports().connections(&self.name) as u64)
            .sum();
        let guests = self.guests.iter();
        let guests = guests.filter_map(|guests| guests.seat().user()).count() as u64;
        connected + guests + self.attachment().map_or(0, |attached| attached.users())
    }

    /// Empties it and zeroes its counters; its size stays. A client that comes meanwhile finds no export,
    /// so no client sees its data vanish.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while clients are connected; [`ErrorKind::Unsupported`] if its data is in a
    /// file.
    pub fn empty(&self) -> Result<()> {
        let _one_at_a_time = self.lock();
        let Some(live) = self.live() else {
            return Ok(());
        };
        if let Some(attachment) = self.attachment() {
            return attachment.exclusively(|| live.empty());
        }
        self.withdraw()?;
        // Offered again also if it cannot be emptied.
        let emptied = live.empty();
        self.publish()?;
        emptied
    }

    /// Makes it take writes or refuse them. It must have no clients, because clients are told when
    /// they connect.
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
        self.keep()?;
        self.publish()
    }

    /// Changes it to `config`, as far as a device can change.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if that takes another device.
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
        if config.mem_limit_bytes != self.mem_limit() {
            self.set_mem_limit(config.mem_limit_bytes);
            log::info!("{}: mem_limit is now {}", self.name, config.mem_limit_bytes);
        }
        Ok(())
    }

    /// Stops offering it for good. Its pages are freed with the last reference to it. With `force`
    /// clients are hung up on, but nothing is taken from under a mount.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while clients are connected, or come back faster than they are ended.
    pub(crate) fn retire(&self, force: bool) -> Result<&[Arc<Place>]> {
        let _one_at_a_time = self.lock();
        if let Some(attachment) = self.attachment() {
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

    fn lock_setup(&self) -> MutexGuard<'_, DeviceConfig> {
        self.setup.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_attachment(&self) -> MutexGuard<'_, Option<Arc<Attachment>>> {
        let attachment = self.attachment.lock();
        attachment.unwrap_or_else(PoisonError::into_inner)
    }
}
