//! One served device: its data under a name, and the places where clients find it.

mod config;
mod kind;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use uzram::{BlockDevice, ErrorKind, Stats, Store};
use uzram_frontends::nbd::{Endpoint, Export};
use uzram_frontends::vhost_user::Disk;

use crate::attachment::{Attach, Attachment, GuestSocket};
use crate::backing::Backing;
use crate::error::{Error, Result};
use crate::place::Place;
use crate::requests::{Counted, Requests};
use crate::state::StateDir;

pub(crate) use config::check_size;
pub use config::{DEVICE_BYTES_MAX, DeviceConfig};
pub use kind::DeviceKind;

/// Time for clients that are told to leave, and the pause between two looks.
const FORCE_TIMEOUT: Duration = Duration::from_secs(5);
const FORCE_PAUSE: Duration = Duration::from_millis(5);
/// Users of a device that a refusal names, at most.
const USERS_SHOWN_MAX: usize = 8;

/// A device being served.
pub struct Device {
    name: String,
    backing: Backing,
    counted: Arc<Counted>,
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
        let counted = Arc::new(Counted::new(backing.device()));
        let attachment = match config.attach {
            Attach::Nbd | Attach::VhostUser => None,
            attach => Some(Attachment::new(
                attach,
                Arc::clone(&counted) as _,
                name,
                state,
                config.for_swap,
            )?),
        };
        let device = Device {
            name: name.to_owned(),
            backing,
            counted,
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

    /// The device as frontends read and write it.
    #[must_use]
    pub fn block_device(&self) -> Arc<dyn BlockDevice> {
        Arc::clone(&self.counted) as _
    }

    /// The requests to it since it was made or emptied.
    #[must_use]
    pub fn requests(&self) -> Requests {
        self.counted.requests()
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

    /// The places where it is served: one, or several sockets that the server was started with.
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

    /// The clients that use it now.
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

    /// Empties it and zeroes its counters. A client that comes meanwhile finds no export, so no
    /// client sees its data vanish.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while clients are connected, as zram has it; [`ErrorKind::Unsupported`] if its
    /// data is in a file.
    pub fn reset(&self) -> Result<()> {
        let _one_at_a_time = self.lock();
        if let Some(attachment) = &self.attachment {
            return attachment.exclusively(|| self.empty());
        }
        self.withdraw()?;
        // Offered again also if it cannot be emptied.
        let emptied = self.empty();
        self.publish()?;
        emptied
    }

    fn empty(&self) -> Result<()> {
        self.backing.reset()?;
        self.counted.reset();
        Ok(())
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
        let Some(store) = self.store() else {
            return Ok(());
        };
        if config.mem_limit_bytes != store.mem_limit() {
            store.set_mem_limit(config.mem_limit_bytes);
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
            guests.seat().offer(Disk {
                name: self.name.clone(),
                device: self.block_device(),
                is_read_only: self.is_read_only(),
            })?;
            return Ok(());
        }
        for (done, place) in self.places.iter().enumerate() {
            if let Err(error) = place.exports().add(self.export()) {
                self.remove_exports(done);
                return Err(error.into());
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
                        _ => error.into(),
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
