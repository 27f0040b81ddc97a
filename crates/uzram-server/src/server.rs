//! A server: devices, their sockets, the control socket, and the thread that maintains stores.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use uzram::Result;

use crate::attributes;
use crate::control::{Attributes, BoundControl, Control, Reply, Request};
use crate::device::{Device, DeviceConfig};
use crate::maintenance::Maintenance;
use crate::options::device_config;
use crate::registry::Registry;
use crate::state::{Claim, Owner, StateDir};

/// Requests under way have this long to be answered when a server ends: a client may have stopped
/// reading.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// A socket that clients of NBD connect to and that another process listens with, as systemd hands
/// over. One named like a device is for that device, others are for all.
#[derive(Debug)]
pub struct Inherited {
    /// Its name.
    pub name: String,
    /// The socket.
    pub socket: OwnedFd,
}

/// A server that holds all that it needs from the system, and has no threads yet: the moment to
/// give up privileges, which belong to a thread.
pub struct Prepared {
    // In this order: nobody is told about a device that is gone.
    control: BoundControl,
    registry: Arc<Registry>,
    claim: Claim,
}

/// A running server. Dropped, it drains: requests under way are answered, then sockets and state
/// files are removed and the names are free again.
pub struct Server {
    // Clients are drained first, while the control socket still answers; then in this order, so
    // that nobody is told about a device that is going and names are given back last.
    _control: Control,
    _maintenance: Maintenance,
    registry: Arc<Registry>,
    _claim: Claim,
}

impl Server {
    /// Claims the names, makes the devices and listens for their clients: all of them or none.
    /// Without devices the server waits for some to be added.
    ///
    /// # Errors
    /// [`InvalidInput`](uzram::ErrorKind::InvalidInput) and
    /// [`UnknownName`](uzram::ErrorKind::UnknownName) for a configuration that cannot be,
    /// [`Busy`](uzram::ErrorKind::Busy) for a name or socket in use,
    /// [`NoMemory`](uzram::ErrorKind::NoMemory), [`Io`](uzram::ErrorKind::Io).
    pub fn prepare(
        state: &StateDir,
        configs: &[DeviceConfig],
        inherited: Vec<Inherited>,
    ) -> Result<Prepared> {
        let mut claim = state.claim_server()?;
        let path = state.control_socket(claim.name());
        let control = Control::bind(&path)?;
        let owner = Owner {
            pid: std::process::id(),
            control: path,
        };
        claim.publish(&owner)?;
        let registry = Arc::new(Registry::new(state, owner, inherited)?);
        for config in configs {
            registry.add(config)?;
        }
        Ok(Prepared {
            control,
            registry,
            claim,
        })
    }

    /// Prepares and runs.
    ///
    /// # Errors
    /// As [`Server::prepare`] and [`Prepared::run`].
    pub fn start(state: &StateDir, configs: &[DeviceConfig]) -> Result<Server> {
        Server::prepare(state, configs, Vec::new())?.run()
    }

    /// Its devices now, in the order in which they were added.
    #[must_use]
    pub fn devices(&self) -> Arc<[Arc<Device>]> {
        self.registry.devices()
    }
}

impl Prepared {
    /// Its devices, in the order in which they were asked for.
    #[must_use]
    pub fn devices(&self) -> Arc<[Arc<Device>]> {
        self.registry.devices()
    }

    /// Serves.
    ///
    /// # Errors
    /// [`Io`](uzram::ErrorKind::Io) if the system gives no thread.
    pub fn run(self) -> Result<Server> {
        let asked = Arc::clone(&self.registry);
        let control = self
            .control
            .serve(Arc::new(move |request: &Request| answer(&asked, request)))?;
        let maintenance = Maintenance::start(Arc::clone(&self.registry))?;
        self.registry.start()?;
        Ok(Server {
            _control: control,
            _maintenance: maintenance,
            registry: self.registry,
            _claim: self.claim,
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.registry.end(DRAIN_TIMEOUT);
    }
}

fn answer(registry: &Registry, request: &Request) -> Reply {
    let shown = |device: &Arc<Device>| vec![attributes::read_all(device)];
    let outcome = match request {
        Request::List {} => {
            let devices = registry.devices();
            Ok(devices.iter().map(|d| attributes::read_all(d)).collect())
        }
        Request::Stat { name } => registry.find(name).map(|device| shown(&device)),
        Request::Set {
            name,
            attribute,
            value,
        } => registry
            .find(name)
            .and_then(|device| attributes::write(&device, attribute, value))
            .map(|()| Vec::<Attributes>::new()),
        Request::Add { options } => add(registry, options).map(|device| shown(&device)),
        Request::Remove { name } => registry.remove(name).map(|()| Vec::new()),
    };
    outcome.map_or_else(|error| Reply::refused(&error), Reply::done)
}

fn add(
    registry: &Registry,
    options: &std::collections::BTreeMap<String, String>,
) -> Result<Arc<Device>> {
    let options = options.iter();
    let config = device_config(options.map(|(name, value)| (name.as_str(), value.as_str())))?;
    registry.add(&config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::ask;
    use uzram::{ErrorKind, PageIndex};
    use uzram_frontends::nbd::Endpoint;

    fn config(name: &str) -> DeviceConfig {
        DeviceConfig {
            name: Some(name.into()),
            size_bytes: 1 << 20,
            checksum: true,
            ..DeviceConfig::default()
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
                .all(|control| *control == state.control_socket("0"))
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
