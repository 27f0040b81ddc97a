//! A server: devices, their sockets, the control socket, and the thread that maintains stores.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use uzram::{Compression, Error, ErrorKind, Result, Unit};
use uzram_frontends::nbd::{Endpoint, Exports, Limits, Server as NbdServer, ServerHandle};

use crate::attributes;
use crate::control::{Attributes, Control, Reply, Request};
use crate::device::{Device, DeviceConfig};
use crate::maintenance::Maintenance;
use crate::state::{Claim, Owner, StateDir};

/// Requests under way have this long to be answered when a server ends: a client may have stopped
/// reading.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// A running server. Dropped, it drains: requests under way are answered, then sockets and state
/// files are removed and the names are free again.
pub struct Server {
    // Clients are drained first, while the control socket still answers; then in this order, so
    // that nobody is told about a device that is going and names are given back last.
    _control: Control,
    served: Vec<ServerHandle>,
    _maintenance: Maintenance,
    devices: Vec<Arc<Device>>,
    _claims: Vec<Claim>,
}

impl Server {
    /// Claims the names, makes the devices and serves them. Either all of them or none.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] and [`ErrorKind::UnknownName`] for a configuration that cannot
    /// be, [`ErrorKind::Busy`] for a name or socket in use, [`ErrorKind::NoMemory`],
    /// [`ErrorKind::Io`].
    pub fn start(state: &StateDir, configs: &[DeviceConfig]) -> Result<Server> {
        if configs.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, "no device to serve"));
        }
        let mut compressions = Compressions::default();
        let mut claims = Vec::new();
        let mut devices = Vec::new();
        let mut bound = Vec::new();
        for config in configs {
            let store = config.build(compressions.shared(config)?)?;
            let claim = match &config.name {
                Some(name) => state.claim(name)?,
                None => state.claim_free()?,
            };
            let default = || Endpoint::Unix(state.nbd_socket(claim.name()));
            let endpoint = config.endpoint.clone().unwrap_or_else(default);
            let exports = Arc::new(Exports::new());
            let server = NbdServer::bind(&endpoint, Arc::clone(&exports), Limits::default())?;
            let endpoint = server.endpoint().clone();
            devices.push(Arc::new(Device::new(
                claim.name(),
                store,
                exports,
                endpoint,
            )?));
            bound.push(server);
            claims.push(claim);
        }
        let control = start_control(state, &mut claims, devices.clone())?;
        let maintenance = Maintenance::start(devices.clone())?;
        let served = bound
            .into_iter()
            .map(NbdServer::spawn)
            .collect::<Result<_>>()?;
        Ok(Server {
            _control: control,
            served,
            _maintenance: maintenance,
            devices,
            _claims: claims,
        })
    }

    /// Its devices, in the order in which they were asked for.
    #[must_use]
    pub fn devices(&self) -> &[Arc<Device>] {
        &self.devices
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for server in self.served.drain(..) {
            server.shutdown(DRAIN_TIMEOUT);
        }
    }
}

/// Codecs with their streams, shared by the devices with the same algorithm and unit.
#[derive(Default)]
struct Compressions(HashMap<(String, Unit), Arc<Compression>>);

impl Compressions {
    fn shared(&mut self, config: &DeviceConfig) -> Result<Arc<Compression>> {
        let key = (config.algorithm().to_owned(), config.unit);
        if let Some(compression) = self.0.get(&key) {
            return Ok(Arc::clone(compression));
        }
        let compression = Compression::new(&key.0, key.1)?;
        self.0.insert(key, Arc::clone(&compression));
        Ok(compression)
    }
}

fn start_control(
    state: &StateDir,
    claims: &mut [Claim],
    devices: Vec<Arc<Device>>,
) -> Result<Control> {
    let path = state.control_socket(claims[0].name());
    let control = Control::start(
        &path,
        Arc::new(move |request: &Request| answer(&devices, request)),
    )?;
    let owner = Owner {
        pid: std::process::id(),
        control: path,
    };
    for claim in claims {
        claim.publish(&owner)?;
    }
    Ok(control)
}

fn answer(devices: &[Arc<Device>], request: &Request) -> Reply {
    let outcome = match request {
        Request::List {} => Ok(devices
            .iter()
            .map(|device| attributes::read_all(device))
            .collect()),
        Request::Stat { name } => find(devices, name).map(|d| vec![attributes::read_all(d)]),
        Request::Set {
            name,
            attribute,
            value,
        } => find(devices, name)
            .and_then(|device| attributes::write(device, attribute, value))
            .map(|()| Vec::<Attributes>::new()),
    };
    outcome.map_or_else(|error| Reply::refused(&error), Reply::done)
}

fn find<'a>(devices: &'a [Arc<Device>], name: &str) -> Result<&'a Device> {
    devices
        .iter()
        .find(|device| device.name() == name)
        .map(Arc::as_ref)
        .ok_or_else(|| {
            let shown: String = name.chars().take(40).collect();
            Error::new(ErrorKind::UnknownName, format!("no device {shown:?} here"))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::ask;
    use uzram::PageIndex;

    fn config(name: &str) -> DeviceConfig {
        DeviceConfig {
            name: Some(name.into()),
            size_bytes: 1 << 20,
            algorithm: None,
            pool: None,
            unit: Unit::DEFAULT,
            mem_limit_bytes: 0,
            checksum: true,
            endpoint: None,
        }
    }

    fn state() -> (tempfile::TempDir, StateDir) {
        let temp = tempfile::tempdir().unwrap();
        let state = StateDir::open(temp.path().join("uzram")).unwrap();
        (temp, state)
    }

    #[test]
    fn many_devices_share_a_server_but_no_pages() {
        let (_temp, state) = state();
        let server = Server::start(&state, &[config("a"), config("b"), config("c")]).unwrap();
        let entries = state.entries().unwrap();
        assert_eq!(entries.len(), 3);
        let controls: Vec<_> = entries
            .iter()
            .map(|entry| entry.owner.clone().unwrap().control)
            .collect();
        assert!(
            controls
                .iter()
                .all(|control| *control == state.control_socket("a"))
        );

        server.devices()[0]
            .store()
            .write(PageIndex(0), &[7; 4096])
            .unwrap();
        let stat = |name: &str| {
            let reply = ask(&controls[0], &Request::Stat { name: name.into() }).unwrap();
            reply.devices[0]["orig_data_size"].clone()
        };
        assert_eq!((stat("a"), stat("b")), (4096.into(), 0.into()));
        assert_eq!(
            ask(&controls[0], &Request::List {}).unwrap().devices.len(),
            3
        );
        drop(server);
        assert_eq!(std::fs::read_dir(state.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_start_that_fails_leaves_nothing() {
        let (temp, state) = state();
        let taken = Server::start(&state, &[config("taken")]).unwrap();
        let error = Server::start(&state, &[config("a"), config("taken")])
            .err()
            .unwrap();
        assert_eq!(error.kind(), ErrorKind::Busy);
        let mut elsewhere = config("b");
        elsewhere.endpoint = Some(Endpoint::Unix(temp.path().join("missing/socket")));
        let error = Server::start(&state, &[config("a"), elsewhere])
            .err()
            .unwrap();
        assert_eq!(error.kind(), ErrorKind::Io);
        let names: Vec<_> = state
            .entries()
            .unwrap()
            .into_iter()
            .map(|e| e.name)
            .collect();
        assert_eq!(names, ["taken"]);
        assert!(Server::start(&state, &[]).is_err());
        drop(taken);
        assert_eq!(std::fs::read_dir(state.path()).unwrap().count(), 0);
    }

    #[test]
    fn sizes_outside_the_address_space_are_refused() {
        let (_temp, state) = state();
        for size_bytes in [0, crate::DEVICE_BYTES_MAX + 1, u64::MAX] {
            let error = Server::start(
                &state,
                &[DeviceConfig {
                    size_bytes,
                    ..config("a")
                }],
            );
            assert_eq!(
                error.err().unwrap().kind(),
                ErrorKind::InvalidInput,
                "{size_bytes}"
            );
        }
    }
}
