//! The devices of a running server: adding and removing some while others go on.
//!
//! Lock order: `changing` > `devices` > a device's own lock > the frontend's table of exports >
//! the engine's. Queries take a snapshot of `devices` and hold no lock.

mod changing;

use std::path::Path;
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use uzram::{ErrorKind, Store};
use uzram_frontends::nbd::{Endpoint, Limits};

use crate::attributes::whole;
use crate::cgroup;
use crate::device::{self, Device, DeviceConfig, Live, check_size};
use crate::error::{Error, Result};
use crate::nearest::shown;
use crate::place::Place;
use crate::sandbox::Needs;
use crate::service::Inherited;
use crate::size::human;
use crate::state::{Claim, NAMES_MAX, NUMBERED, Owner, StateDir};
use crate::survive::{Keeper, Kept};
use crate::swap;
use changing::{Changing, Phase, place_key};

/// Devices of a server, at most.
pub(crate) const DEVICES_MAX: usize = NAMES_MAX;
/// Longest time for which replies that are not taken delay the removal of a socket.
const REMOVE_DRAIN: Duration = Duration::from_millis(100);
/// Longest time in which a disk is taken over while memory is short, and between two tries.
const RESUME_TIMEOUT: Duration = Duration::from_secs(20);
const RESUME_AGAIN: Duration = Duration::from_millis(250);
/// The largest number of a disk that `hot_remove` takes: the kernel's is an `int`.
const NUMBER_MAX: u64 = i32::MAX as u64;

/// The state that all threads of the server share.
pub(crate) struct Registry {
    devices: RwLock<Devices>,
    changing: Mutex<Changing>,
}

/// The devices of one moment, in the order in which they were added.
pub(crate) type Devices = Arc<[Arc<Device>]>;

impl Registry {
    pub(crate) fn new(
        state: &StateDir,
        claim: Claim,
        owner: Owner,
        inherited: Vec<Inherited>,
        keeper: Option<Arc<Keeper>>,
    ) -> Result<Self> {
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
                own_claim: Some(claim),
                keeper,
                changed_directories: Vec::new(),
                template: DeviceConfig::default(),
            }),
        })
    }

    /// Says in the state directory who this server is.
    ///
    /// # Errors
    /// [`ErrorKind::Io`].
    pub(crate) fn publish(&self) -> Result<()> {
        let changing = &mut *self.lock();
        match &mut changing.own_claim {
            Some(claim) => claim.publish(&changing.owner),
            None => Ok(()),
        }
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
        self.take_in(&mut changing, &devices, device, claim)
    }

    /// Takes over what a dead server left: its sockets, and then its devices. A device that cannot be is said in the log
    /// and stays kept.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] for a socket.
    pub(crate) fn resume(&self, left: Vec<Kept>) -> Result<()> {
        let mut changing = self.lock();
        let (mut places, mut devices, mut locks) = (Vec::new(), Vec::new(), Vec::new());
        for mut kept in left {
            if kept.name_of("place").is_some() {
                let socket = kept.take("socket").ok_or_else(|| no_file(&kept))?;
                let place = Arc::new(Place::resume(socket, changing.limits)?);
                changing.places.push(Arc::downgrade(&place));
                places.push(place);
            } else if kept.name_of("device").is_some() {
                devices.push(kept);
            } else if let Some(name) = kept.name_of("claim").map(str::to_owned) {
                locks.extend(kept.take("claim").map(|lock| (name, lock)));
            }
        }
        for mut kept in devices {
            let name = kept.name_of("device").unwrap_or_default().to_owned();
            if let Some(at) = locks.iter().position(|(of, _)| *of == name) {
                kept.files.push(("claim".into(), locks.swap_remove(at).1));
            }
            let devices = self.devices();
            let resumed = resume_with_patience(&mut changing, kept);
            let outcome = resumed.and_then(|(device, mut claim)| {
                if let Err(error) = claim.publish_again(&changing.owner) {
                    log::error!("{name}: commands do not find it: {error}");
                }
                self.take_in(&mut changing, &devices, device, claim)
            });
            if let Err(error) = outcome {
                if error.kind() == ErrorKind::NoMemory && swap::is_process_prepared() {
                    // Whoever swaps to it waits. The next server may have more.
                    return Err(error);
                }
                log::error!("{name}: not taken over, and kept as it is: {error}");
                // Its sockets' paths stay, too.
                std::mem::forget(places.clone());
            }
        }
        Ok(())
    }

    fn take_in(
        &self,
        changing: &mut Changing,
        devices: &Devices,
        device: Device,
        claim: Claim,
    ) -> Result<Arc<Device>> {
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
            if let Some(keeper) = &changing.keeper {
                keeper.forget(place_key(place));
            }
        }
        // Last: whoever takes the name next finds its socket gone.
        changing.claims.retain(|claim| claim.name() != name);
        device::forget(&changing.keeper, name);
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
        let places = self.refuse_changes();
        for device in self.devices().iter() {
            device.end_guests();
        }
        at_once(&places, drain, Place::end);
    }

    /// As [`Registry::end`], but leaves sockets, and all that is outside of this process, to whoever takes them over.
    pub(crate) fn leave(&self, drain: Duration) {
        at_once(&self.refuse_changes(), drain, Place::leave);
    }

    /// Refuses changes from now on, and stops long work. Returns the places that are left.
    fn refuse_changes(&self) -> Vec<Arc<Place>> {
        let mut changing = self.lock();
        changing.phase = Phase::Ending;
        let places = changing.living_places();
        drop(changing);
        self.devices().iter().for_each(|device| device.hurry());
        places
    }

    /// The way to the process that keeps what this one has.
    pub(crate) fn keeper(&self) -> Option<Arc<Keeper>> {
        self.lock().keeper.clone()
    }

    /// Tells the holder, if there is one, that no server is to follow.
    pub(crate) fn say_end(&self) {
        if let Some(keeper) = self.keeper() {
            keeper.ending();
        }
    }

    /// Lets all devices and their names go, after [`Registry::end`].
    pub(crate) fn forget_devices(&self) {
        self.replace_devices(Arc::new([]));
        let mut changing = self.lock();
        changing.claims.clear();
        changing.own_claim = None;
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

/// Ends all places at once: a client of one that takes its time costs the others none.
fn at_once(places: &[Arc<Place>], drain: Duration, end: fn(&Place, Duration)) {
    thread::scope(|scope| {
        for place in places {
            let ended = thread::Builder::new().spawn_scoped(scope, || end(place, drain));
            if ended.is_err() {
                end(place, Duration::ZERO);
            }
        }
    });
}

/// As [`Changing::resume`]. Where memory is short it tries again: whoever waits for the disk waits for nobody else.
fn resume_with_patience(changing: &mut Changing, kept: Kept) -> Result<(Device, Claim)> {
    let until = Instant::now() + RESUME_TIMEOUT;
    loop {
        let copy = match kept.try_clone() {
            Ok(copy) => copy,
            Err(_) => return changing.resume(kept),
        };
        match changing.resume(copy) {
            Err(error) if error.kind() == ErrorKind::NoMemory && Instant::now() < until => {
                // Nothing is logged: the log may lie in memory that was swapped out to this disk.
                thread::sleep(RESUME_AGAIN);
            }
            done => return done,
        }
    }
}

fn no_file(kept: &Kept) -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        format!("{}: kept without its file", kept.key),
    )
}

fn unknown(name: &str) -> Error {
    let text = format!("no device {:?} here", shown(name));
    Error::new(ErrorKind::UnknownName, text)
}
