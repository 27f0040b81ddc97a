//! The state that one change at a time may touch: names, sockets and codecs, and how a device is made of them.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use serde_json::Value;
use uzram::ErrorKind;
use uzram_frontends::fuse::MountRemains;
use uzram_frontends::nbd::{Endpoint, Limits};

use crate::attachment::{Attach, GuestSocket};
use crate::backing::Backing;
use crate::compressions::Compressions;
use crate::device::{self, Device, DeviceConfig, Note, Surroundings};
use crate::error::{Error, Result};
use crate::options::INSECURE_NEEDS;
use crate::place::Place;
use crate::sandbox;
use crate::state::{Claim, Owner, StateDir};
use crate::survive::{Keeper, Kept};
use crate::swap;

/// The state that one change at a time may touch.
pub(super) struct Changing {
    pub(super) state: StateDir,
    pub(super) owner: Owner,
    pub(super) limits: Limits,
    pub(super) phase: Phase,
    pub(super) compressions: Arc<Compressions>,
    pub(super) places: Vec<Weak<Place>>,
    pub(super) inherited: Vec<(String, Arc<Place>)>,
    pub(super) claims: Vec<Claim>,
    /// The server's own.
    pub(super) own_claim: Option<Claim>,
    /// The way to the process that keeps all of it, if one does.
    pub(super) keeper: Option<Arc<Keeper>>,
    /// Directories in which a sandbox lets this server make sockets.
    pub(super) changed_directories: Vec<PathBuf>,
    /// The device that is made when somebody asks for one and says no more.
    pub(super) template: DeviceConfig,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Sockets are bound and not yet served.
    Starting,
    Serving,
    Ending,
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

/// The key of the socket of a place among what is kept.
pub(super) fn place_key(place: &Place) -> String {
    format!("place/{}", place.endpoint())
}

/// The sockets at which a device is found.
struct Ways {
    places: Vec<Arc<Place>>,
    guests: Option<Arc<GuestSocket>>,
    /// Whether a dead server had the device, and the mount of that one.
    follows: bool,
    mount: Option<MountRemains>,
}

impl Changing {
    /// Makes a device under a name that is free. All or nothing: nothing is left after an error.
    pub(super) fn make(&mut self, config: &DeviceConfig) -> Result<(Device, Claim)> {
        if config.for_swap && !swap::is_process_prepared() {
            let text = "for-swap: this server was not started for swap; start one with --for-swap";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let has_data = config.size_bytes > 0 || config.kind.has_file();
        let outliving = self.keeper.is_some();
        let backing = has_data.then(|| Backing::build(config, &self.compressions, outliving));
        let backing = backing.transpose();
        let backing = backing.map_err(|error| self.explain_file(error))?;
        let mut claim = match &config.name {
            Some(name) => self.state.claim(name)?,
            None => self.state.claim_free()?,
        };
        let made = self.make_claimed(config, &claim, backing);
        let done = made.and_then(|device| claim.publish(&self.owner).map(|()| device));
        if done.is_err() {
            device::forget(&self.keeper, claim.name());
        }
        done.map(|device| (device, claim))
    }

    fn make_claimed(
        &mut self,
        config: &DeviceConfig,
        claim: &Claim,
        backing: Option<Backing>,
    ) -> Result<Device> {
        if let Some(keeper) = &self.keeper {
            keeper.keep(
                device::claim_key(claim.name()),
                Value::Null,
                &[("claim", claim.lock()?)],
            );
        }
        let places = match config.attach {
            Attach::Nbd => self.places_for(claim.name(), config.endpoint.as_ref())?,
            Attach::Fuse | Attach::Loop | Attach::Ublk | Attach::VhostUser => Vec::new(),
        };
        let guests = match config.attach {
            Attach::VhostUser => Some(self.guest_socket(claim.name(), config.endpoint.as_ref())?),
            _ => None,
        };
        let ways = Ways {
            places,
            guests,
            follows: false,
            mount: None,
        };
        self.make_at(config, claim, backing, ways, false)
    }

    /// Makes a device that is reached by `ways`.
    fn make_at(
        &self,
        config: &DeviceConfig,
        claim: &Claim,
        backing: Option<Backing>,
        ways: Ways,
        is_read_only: bool,
    ) -> Result<Device> {
        let Ways {
            places,
            guests,
            follows,
            mount,
        } = ways;
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
            keeper: self.keeper.clone(),
            is_read_only,
            follows,
            mount,
        };
        let device = Device::new(claim.name(), backing, config, around)?;
        if self.phase == Phase::Serving {
            device.start_guests()?;
            places.iter().try_for_each(|place| place.start())?;
        }
        Ok(device)
    }

    /// Makes the device that a dead server left. After an error everything is as it was left.
    pub(super) fn resume(&mut self, mut left: Kept) -> Result<(Device, Claim)> {
        let name = left.name_of("device").unwrap_or_default().to_owned();
        let note = Note::read(&left)?;
        let mut config = note.config(&mut left)?;
        let remains = device::remains(&mut left);
        let has_data = remains.is_some() || config.kind.has_file();
        let backing = has_data.then(|| Backing::resume(&config, &self.compressions, remains));
        let backing = backing.transpose()?;
        if let Some(store) = backing.as_ref().and_then(Backing::store) {
            config.mem_limit_bytes = store.mem_limit();
        }
        let claim = match left.take("claim") {
            Some(lock) => self.state.resume(&name, lock)?,
            None => self.state.claim(&name)?,
        };
        let left = (device::mount_remains(&mut left), device::guests(&mut left));
        let resumed = self.resume_claimed(&config, &claim, backing, &note, left);
        match resumed {
            Ok(device) => Ok((device, claim)),
            Err(error) => {
                claim.leave();
                Err(error)
            }
        }
    }

    fn resume_claimed(
        &mut self,
        config: &DeviceConfig,
        claim: &Claim,
        backing: Option<Backing>,
        note: &Note,
        (mount, guests): (Option<MountRemains>, Option<OwnedFd>),
    ) -> Result<Device> {
        let mut places = Vec::new();
        for uri in &note.places {
            let known = self.living_places().into_iter();
            let mut there = known.filter(|place| place.endpoint().to_string() == *uri);
            places.push(there.next().ok_or_else(|| {
                Error::new(ErrorKind::Io, format!("{uri}: its socket was not kept"))
            })?);
        }
        let path = self.guest_path(claim.name(), config.endpoint.as_ref());
        let guests = guests.map(|socket| GuestSocket::resume(socket, &path));
        if guests.is_none() && config.attach == Attach::VhostUser {
            let text = format!("{}: its socket was not kept", path.display());
            return Err(Error::new(ErrorKind::Io, text));
        }
        let ways = Ways {
            places,
            guests: guests.transpose()?.map(Arc::new),
            follows: true,
            mount,
        };
        self.make_at(config, claim, backing, ways, note.is_read_only)
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
        let path = self.guest_path(name, endpoint);
        let socket = GuestSocket::bind(&path);
        let socket = socket.map_err(|error| self.explain(error, &Endpoint::Unix(path)))?;
        Ok(Arc::new(socket))
    }

    fn guest_path(&self, name: &str, endpoint: Option<&Endpoint>) -> PathBuf {
        match endpoint {
            Some(Endpoint::Unix(path)) => path.clone(),
            Some(Endpoint::Tcp(_) | Endpoint::Vsock(_)) | None => self.state.vhost_socket(name),
        }
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
        if let (Some(keeper), Some(socket)) = (&self.keeper, place.socket()?) {
            keeper.keep(place_key(&place), Value::Null, &[("socket", socket)]);
        }
        self.places.push(Arc::downgrade(&place));
        Ok(place)
    }

    /// A refusal by the sandbox looks like one by a file's mode.
    pub(super) fn explain_file(&self, error: Error) -> Error {
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

    pub(super) fn living_places(&mut self) -> Vec<Arc<Place>> {
        self.places.retain(|place| place.strong_count() > 0);
        let own = self.places.iter().filter_map(Weak::upgrade);
        let inherited = self.inherited.iter().map(|(_, place)| Arc::clone(place));
        own.chain(inherited).collect()
    }
}
