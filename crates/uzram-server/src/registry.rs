//! The devices of a running server: adding and removing some while others go on.
//!
//! Lock order: `changing` > `devices` > a device's own lock > the frontend's table of exports >
//! the engine's. Queries take a snapshot of `devices` and hold no lock.

use std::path::{Path, PathBuf};
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use uzram::{ErrorKind, Store};
use uzram_frontends::nbd::{Endpoint, Limits};

use crate::attachment::{Attach, GuestSocket};
use crate::attributes::whole;
use crate::backing::Backing;
use crate::cgroup;
use crate::compressions::Compressions;
use crate::device::{Device, DeviceConfig, Live, Surroundings, check_size};
use crate::error::{Error, Result};
use crate::nearest::shown;
use crate::options::INSECURE_NEEDS;
use crate::place::Place;
use crate::sandbox::{self, Needs};
use crate::service::Inherited;
use crate::size::human;
use crate::state::{Claim, NAMES_MAX, NUMBERED, Owner, StateDir};
use crate::swap;

/// Devices of a server, at most.
pub(crate) const DEVICES_MAX: usize = NAMES_MAX;
/// Longest time for which replies that are not taken delay the removal of a socket.
const REMOVE_DRAIN: Duration = Duration::from_millis(100);
/// The largest number of a disk that `hot_remove` takes: the kernel's is an `int`.
const NUMBER_MAX: u64 = i32::MAX as u64;

/// The state that all threads of the server share.
pub(crate) struct Registry {
    devices: RwLock<Devices>,
    changing: Mutex<Changing>,
}

/// The devices of one moment, in the order in which they were added.
pub(crate) type Devices = Arc<[Arc<Device>]>;

/// The state that one change at a time may touch.
struct Changing {
    state: StateDir,
    owner: Owner,
    limits: Limits,
    phase: Phase,
    compressions: Arc<Compressions>,
    places: Vec<Weak<Place>>,
    inherited: Vec<(String, Arc<Place>)>,
    claims: Vec<Claim>,
    /// Directories in which a sandbox lets this server make sockets.
    changed_directories: Vec<PathBuf>,
    /// The device that is made when somebody asks for one and says no more.
    template: DeviceConfig,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Sockets are bound and not yet served.
    Starting,
    Serving,
    Ending,
}

impl Registry {
    pub(crate) fn new(state: &StateDir, owner: Owner, inherited: Vec<Inherited>) -> Result<Self> {
        // Once: later the CPUs that this process may use cannot always be asked for.
        let limits = Limits::default();
        let place = |socket: Inherited| {
            Place::inherit(socket.socket, limits).map(|place| (socket.name, Arc::new(place)))
        };
        let inherited = inherited.into_iter().map(place).collect::<Result<_>>()?;
        Ok(Registry {
            devices: RwLock::new(Arc::new([])),
            changing: Mutex::new(Changing {
                state: state.clone(),
                owner,
                limits,
                phase: Phase::Starting,
                compressions: Arc::default(),
                places: Vec::new(),
                inherited,
                claims: Vec::new(),
                changed_directories: Vec::new(),
                template: DeviceConfig::default(),
            }),
        })
    }

    /// The devices of this moment.
    pub(crate) fn devices(&self) -> Devices {
        let devices = self.devices.read();
        Arc::clone(&devices.unwrap_or_else(PoisonError::into_inner))
    }

    /// The device of this name.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownName`].
    pub(crate) fn find(&self, name: &str) -> Result<Arc<Device>> {
        let devices = self.devices();
        let found = devices.iter().find(|device| device.name() == name);
        found.cloned().ok_or_else(|| unknown(name))
    }

    /// Makes a device and serves it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] and [`ErrorKind::UnknownName`] for an invalid configuration,
    /// [`ErrorKind::Busy`] for a name or socket in use or a server that is ending,
    /// [`ErrorKind::NoMemory`], [`ErrorKind::Io`].
    pub(crate) fn add(&self, config: &DeviceConfig) -> Result<Arc<Device>> {
        if config.size_bytes == 0 && !config.kind.has_file() {
            check_size(0)?;
        }
        self.insert(config)
    }

    /// The same of one that may have no size yet.
    fn insert(&self, config: &DeviceConfig) -> Result<Arc<Device>> {
        let mut changing = self.lock();
        if changing.phase == Phase::Ending {
            return Err(Error::new(ErrorKind::Busy, "the server is ending"));
        }
        let devices = self.devices();
        if devices.len() >= DEVICES_MAX {
            let text = format!("{DEVICES_MAX} devices, the limit of a server; start another one");
            return Err(Error::new(ErrorKind::Busy, text));
        }
        let (device, claim) = changing.make(config)?;
        let device = Arc::new(device);
        let more: Devices = devices.iter().chain([&device]).cloned().collect();
        if let Some(warning) = cgroup::warning(&device, more.iter().map(Arc::as_ref)) {
            log::warn!("{warning}");
        }
        self.replace_devices(more);
        changing.claims.push(claim);
        if device.is_open_to_others() {
            let uri = device.uri();
            log::warn!("insecure: whoever reaches {uri} reads and writes the disk");
        }
        let (name, size) = (device.name(), human(device.size_bytes()));
        log::info!(
            "{name}: {size}, {}, at {}",
            device
                .live()
                .as_deref()
                .and_then(Live::store)
                .map_or(device.kind().name(), Store::algorithm),
            device.uri()
        );
        Ok(device)
    }

    /// Makes a device without a size, as it was said to [`Registry::allow_hot_add`], and returns the number in
    /// its name.
    ///
    /// # Errors
    /// As [`Registry::add`].
    pub(crate) fn hot_add(&self) -> Result<u64> {
        let template = self.lock().template.clone();
        let device = self.insert(&template)?;
        let number = number_in(device.name());
        number.ok_or_else(|| Error::new(ErrorKind::Io, format!("{}: no number", device.name())))
    }

    /// Removes the device of the number in `text`, unless it is open.
    ///
    /// # Errors
    /// EINVAL for no number, ERANGE for one above [`NUMBER_MAX`], ENODEV for an unknown one, and as [`Registry::remove`].
    pub(crate) fn hot_remove(&self, text: &str) -> Result<()> {
        let digits = text.strip_suffix('\n').unwrap_or(text);
        let number = whole("hot_remove", digits, NUMBER_MAX)?;
        let name = format!("{NUMBERED}{number}");
        let device = self
            .find(&name)
            .map_err(|error| error.with_errno(Errno::NODEV))?;
        device.check_not_open()?;
        self.remove(&name, false)
    }

    /// Sets the device that [`Registry::hot_add`] makes; its name and size count for nothing.
    pub(crate) fn allow_hot_add(&self, template: DeviceConfig) {
        self.lock().template = DeviceConfig {
            name: None,
            size_bytes: 0,
            endpoint: None,
            ..template
        };
    }

    /// Stops serving a device and frees its memory and its name. With `force` its clients are hung up
    /// on first.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownName`], [`ErrorKind::Busy`] while clients are connected.
    pub(crate) fn remove(&self, name: &str, force: bool) -> Result<()> {
        let mut changing = self.lock();
        let device = self.find(name)?;
        let places = device.retire(force)?;
        device.end_guests();
        let devices = self.devices();
        let rest = devices.iter().filter(|other| other.name() != name);
        self.replace_devices(rest.cloned().collect());
        for place in places.iter().filter(|place| place.is_unused()) {
            place.end(REMOVE_DRAIN);
        }
        // Last: whoever takes the name next finds its socket gone.
        changing.claims.retain(|claim| claim.name() != name);
        log::info!("{name}: removed");
        Ok(())
    }

    /// The paths that a sandbox must leave to this server, with the files that it reads.
    pub(crate) fn needs(&self, read: &[&Path]) -> Needs {
        let mut changing = self.lock();
        let own = changing.state.path().to_owned();
        let mut sockets = Vec::new();
        for device in self.devices().iter() {
            let socket = device.guest_socket().and_then(Path::parent);
            sockets.extend(socket.map(Path::to_path_buf));
        }
        for place in changing.living_places() {
            if let (Endpoint::Unix(path), false) = (place.endpoint(), place.is_inherited()) {
                sockets.extend(path.parent().map(Path::to_path_buf));
            }
        }
        sockets.retain(|directory| *directory != own);
        sockets.sort();
        sockets.dedup();
        changing.changed_directories = [slice::from_ref(&own), &sockets].concat();
        // Their directories: an editor puts a new file in place of an old one.
        let read = read.iter().filter_map(|path| path.parent());
        Needs {
            own: vec![own],
            sockets,
            read: read.map(Path::to_path_buf).collect(),
            files: Vec::new(),
        }
    }

    /// Adds new devices of `configs` and changes what may change. Never removes.
    pub(crate) fn apply(&self, configs: &[DeviceConfig]) {
        for config in configs {
            let name = config.name.as_deref().unwrap_or_default();
            let outcome = match self.find(name) {
                Ok(device) => device.adapt(config),
                Err(_) => self.add(config).map(|_| ()),
            };
            if let Err(error) = outcome {
                log::error!("{name}: {error}");
            }
        }
        for device in self.devices().iter() {
            if !configs
                .iter()
                .any(|config| config.name.as_deref() == Some(device.name()))
            {
                let name = device.name();
                log::info!("{name}: not in the configuration; uzram remove {name} ends it");
            }
        }
    }

    /// Serves the sockets bound so far. Later ones are served at once.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the system gives no thread.
    pub(crate) fn start(&self) -> Result<()> {
        let mut changing = self.lock();
        changing.phase = Phase::Serving;
        self.devices()
            .iter()
            .try_for_each(|device| device.start_guests())?;
        changing
            .living_places()
            .iter()
            .try_for_each(|place| place.start())
    }

    /// Refuses changes from now on, answers requests under way for at most `drain` and hangs up.
    pub(crate) fn end(&self, drain: Duration) {
        let mut changing = self.lock();
        changing.phase = Phase::Ending;
        let places = changing.living_places();
        drop(changing);
        for device in self.devices().iter() {
            device.hurry();
            device.end_guests();
        }
        // All at once: a client of one place that takes its time costs the others none.
        thread::scope(|scope| {
            for place in &places {
                let end = || place.end(drain);
                if thread::Builder::new().spawn_scoped(scope, end).is_err() {
                    place.end(Duration::ZERO);
                }
            }
        });
    }

    /// Lets all devices and their names go, after [`Registry::end`].
    pub(crate) fn forget_devices(&self) {
        self.replace_devices(Arc::new([]));
        self.lock().claims.clear();
    }

    fn replace_devices(&self, devices: Devices) {
        *self.devices.write().unwrap_or_else(PoisonError::into_inner) = devices;
    }

    fn lock(&self) -> MutexGuard<'_, Changing> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number in the name of a device that was given none.
fn number_in(name: &str) -> Option<u64> {
    name.strip_prefix(NUMBERED)?.parse().ok()
}

/// Whether a socket of this name is for all devices: its name is `nbd`, or the one that systemd
/// gives where none was chosen (the unit's, or none).
fn is_for_all(socket: &str) -> bool {
    matches!(socket, "nbd" | "unknown" | "") || socket.ends_with(".socket")
}

/// Whether the system's reason was a lack of permission.
fn is_refusal(error: &Error) -> bool {
    let cause = error.io_error();
    cause.is_some_and(|e| e.kind() == std::io::ErrorKind::PermissionDenied)
}

fn unknown(name: &str) -> Error {
    let text = format!("no device {:?} here", shown(name));
    Error::new(ErrorKind::UnknownName, text)
}

impl Changing {
    /// All or nothing: devices that were made before a failure are removed again.
    fn make(&mut self, config: &DeviceConfig) -> Result<(Device, Claim)> {
        if config.for_swap && !swap::is_process_prepared() {
            let text = "for-swap: this server was not started for swap; start one with --for-swap";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let has_data = config.size_bytes > 0 || config.kind.has_file();
        let backing = has_data.then(|| Backing::build(config, &self.compressions));
        let backing = backing.transpose();
        let backing = backing.map_err(|error| self.explain_file(error))?;
        let mut claim = match &config.name {
            Some(name) => self.state.claim(name)?,
            None => self.state.claim_free()?,
        };
        let places = match config.attach {
            Attach::Nbd => self.places_for(claim.name(), config.endpoint.as_ref())?,
            Attach::Fuse | Attach::Loop | Attach::Ublk | Attach::VhostUser => Vec::new(),
        };
        let guests = match config.attach {
            Attach::VhostUser => Some(self.guest_socket(claim.name(), config.endpoint.as_ref())?),
            _ => None,
        };
        for place in &places {
            let prepared = place.prepare_for(claim.name(), &config.tls, config.insecure);
            prepared.map_err(|error| self.explain_file(error))?;
        }
        let is_reached = |place: &Arc<Place>| !place.endpoint().is_loopback();
        if config.insecure && config.endpoint.is_none() && !places.iter().any(is_reached) {
            let text = format!("insecure: {INSECURE_NEEDS}");
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        let around = Surroundings {
            places: places.clone(),
            guests,
            state: &self.state,
            compressions: Arc::clone(&self.compressions),
        };
        let device = Device::new(claim.name(), backing, config, around)?;
        if self.phase == Phase::Serving {
            device.start_guests()?;
            places.iter().try_for_each(|place| place.start())?;
        }
        claim.publish(&self.owner)?;
        Ok((device, claim))
    }

    /// The places of the device `name`: the endpoint that it asks for, alone or with others; else
    /// the sockets handed over under its name; else all that were handed over; else its own.
    fn places_for(&mut self, name: &str, endpoint: Option<&Endpoint>) -> Result<Vec<Arc<Place>>> {
        if let Some(endpoint) = endpoint {
            return Ok(vec![self.place_at(endpoint)?]);
        }
        let handed_over = |wanted: &dyn Fn(&str) -> bool| -> Vec<Arc<Place>> {
            let sockets = self.inherited.iter();
            let chosen = sockets.filter(|(socket, _)| wanted(socket));
            chosen.map(|(_, place)| Arc::clone(place)).collect()
        };
        for places in [
            handed_over(&|socket| socket == name),
            handed_over(&is_for_all),
        ] {
            if !places.is_empty() {
                return Ok(places);
            }
        }
        let socket = self.state.nbd_socket(name);
        Ok(vec![self.place_at(&Endpoint::Unix(socket))?])
    }

    /// A socket for virtual machines, of the device `name` alone.
    fn guest_socket(&self, name: &str, endpoint: Option<&Endpoint>) -> Result<Arc<GuestSocket>> {
        let path = match endpoint {
            Some(Endpoint::Unix(path)) => path.clone(),
            Some(Endpoint::Tcp(_) | Endpoint::Vsock(_)) | None => self.state.vhost_socket(name),
        };
        let socket = GuestSocket::bind(&path);
        let socket = socket.map_err(|error| self.explain(error, &Endpoint::Unix(path)))?;
        Ok(Arc::new(socket))
    }

    /// One socket serves all devices that ask for the same address.
    fn place_at(&mut self, endpoint: &Endpoint) -> Result<Arc<Place>> {
        let living = self.living_places();
        if let Some(place) = living
            .iter()
            .find(|place| place.is_open() && place.endpoint() == endpoint)
        {
            return Ok(Arc::clone(place));
        }
        let place = Place::bind(endpoint, self.limits);
        let place = Arc::new(place.map_err(|error| self.explain(error, endpoint))?);
        self.places.push(Arc::downgrade(&place));
        Ok(place)
    }

    /// A refusal by the sandbox looks like one by a file's mode.
    fn explain_file(&self, error: Error) -> Error {
        if !is_refusal(&error) || !sandbox::is_on() {
            return error;
        }
        let text = format!(
            "{error}; this server's sandbox lets it read beside its configuration and in {} only: put \
             the file there, or start a server with --no-sandbox",
            self.state.path().display()
        );
        Error::new(ErrorKind::Io, text)
    }

    /// The same for a socket's path.
    fn explain(&self, error: Error, endpoint: &Endpoint) -> Error {
        let Endpoint::Unix(path) = endpoint else {
            return error;
        };
        let is_allowed = path.parent().is_some_and(|parent| {
            self.changed_directories
                .iter()
                .any(|allowed| parent.starts_with(allowed))
        });
        if !is_refusal(&error) || is_allowed || !sandbox::is_on() {
            return error;
        }
        let allowed = self.changed_directories.iter();
        let allowed: Vec<_> = allowed.map(|path| path.display().to_string()).collect();
        let text = format!(
            "socket {}: this server's sandbox lets it make sockets in {} only; choose a path there, \
             leave the path out, or start a server with --no-sandbox",
            path.display(),
            allowed.join(", ")
        );
        Error::new(ErrorKind::Io, text)
    }

    fn living_places(&mut self) -> Vec<Arc<Place>> {
        self.places.retain(|place| place.strong_count() > 0);
        let own = self.places.iter().filter_map(Weak::upgrade);
        let inherited = self.inherited.iter().map(|(_, place)| Arc::clone(place));
        own.chain(inherited).collect()
    }
}
