//! A server: devices, their sockets, the control socket, and the thread that maintains stores.

use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use uzram::ErrorKind;
use uzram_frontends::fuse::{TreeMount, UnservedTree};
use uzram_frontends::nbd::Endpoint;

use crate::attributes::{self, Files};
use crate::control::{Attributes, BoundControl, Control, Reply, Request};
use crate::device::{Device, DeviceConfig};
use crate::error::{Error, Result};
use crate::maintenance::Maintenance;
use crate::metrics::{self, BoundMetrics, Metrics};
use crate::options::device_config;
use crate::registry::Registry;
use crate::sandbox;
use crate::service::{Inherited, Notifier};
use crate::state::{Claim, Owner, StateDir};
use crate::survive::{CONTROL, Joined, Keeper, Kept, MEMORY_KEY, SERVER_KEY};
use crate::swap;
use crate::tree::{self, AllowedFiles, Tree};

/// Time for requests under way when a server ends: a client may have stopped reading.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// The same when it hands over: what is not answered then is asked for again by clients that outlive servers.
const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(1);

/// A server that holds everything that it needs from the system, and has no threads yet. This is
/// the moment to give up privileges, which belong to a thread.
pub struct Prepared {
    // In this order: nobody is told about a device that is gone.
    control: BoundControl,
    metrics: Option<BoundMetrics>,
    tree: Option<(UnservedTree, AllowedFiles)>,
    registry: Arc<Registry>,
    keeper: Option<Arc<Keeper>>,
    number: String,
    holder_socket: PathBuf,
}

/// A running server. Dropping it drains it: requests under way are answered, then sockets and
/// state files are removed and the names are free again.
pub struct Server {
    // Clients are drained first, while the control socket still answers; then in this order, so
    // that nobody is told about a device that is going, and the devices' names are given back last:
    // whoever waits for one of them finds the server gone.
    control: Option<Control>,
    tree: Option<TreeMount>,
    metrics: Option<Metrics>,
    _maintenance: Maintenance,
    registry: Arc<Registry>,
    notifier: Arc<Notifier>,
}

impl Server {
    /// Claims the names, makes the devices and listens for their clients: all of them or none.
    /// Without devices the server waits for some to be added.
    ///
    /// # Errors
    /// [`InvalidInput`](uzram::ErrorKind::InvalidInput) and
    /// [`UnknownName`](uzram::ErrorKind::UnknownName) for an invalid configuration,
    /// [`Busy`](uzram::ErrorKind::Busy) for a name or socket in use,
    /// [`NoMemory`](uzram::ErrorKind::NoMemory), [`Io`](uzram::ErrorKind::Io).
    pub fn prepare(
        state: &StateDir,
        configs: &[DeviceConfig],
        inherited: Vec<Inherited>,
    ) -> Result<Prepared> {
        Server::prepare_held(state, configs, inherited, None)
    }

    /// The same for a server that a holder has started: it takes over what the server before it left, if there was
    /// one, and not `configs` then.
    ///
    /// # Errors
    /// As [`Server::prepare`]. What was left stays as it is.
    pub fn prepare_held(
        state: &StateDir,
        configs: &[DeviceConfig],
        mut inherited: Vec<Inherited>,
        joined: Option<Joined>,
    ) -> Result<Prepared> {
        let (keeper, mut left) = match joined {
            Some(joined) => (Some(Arc::new(joined.keeper)), joined.kept),
            None => (None, Vec::new()),
        };
        inherited.extend(inherited_by_holder(&mut left));
        // The holder keeps it until this process has something like it.
        left.retain(|kept| kept.key != MEMORY_KEY);
        if let Some(at) = left.iter().position(|kept| kept.key == SERVER_KEY) {
            let server = left.swap_remove(at);
            return resume(state, server, left, inherited, keeper);
        }
        let claim = state.claim_server()?;
        let path = state.control_socket(claim.name());
        let control = Control::bind(&path)?;
        if let Some(keeper) = &keeper {
            let files = [("claim", claim.lock()?), (CONTROL, control.socket()?)];
            keeper.keep(SERVER_KEY.into(), claim.name().into(), &files);
        }
        let prepared = Prepared::new(state, claim, control, inherited, keeper)?;
        prepared.registry.publish()?;
        for config in configs {
            prepared
                .registry
                .add(config)
                .map_err(|error| match &config.name {
                    Some(name) if configs.len() > 1 => {
                        Error::new(error.kind(), format!("{name}: {error}"))
                    }
                    _ => error,
                })?;
        }
        Ok(prepared)
    }

    /// Prepares and runs.
    ///
    /// # Errors
    /// As [`Server::prepare`] and [`Prepared::run`].
    pub fn start(state: &StateDir, configs: &[DeviceConfig]) -> Result<Server> {
        Server::prepare(state, configs, Vec::new())?.run(Notifier::default())
    }

    /// Its devices now, in the order in which they were added.
    #[must_use]
    pub fn devices(&self) -> Arc<[Arc<Device>]> {
        self.registry.devices()
    }

    /// The address of its metrics, with the port that was chosen.
    #[must_use]
    pub fn metrics(&self) -> Option<&Endpoint> {
        self.metrics.as_ref().map(Metrics::endpoint)
    }

    /// The directory of its tree.
    #[must_use]
    pub fn tree(&self) -> Option<&Path> {
        self.tree.as_ref().map(TreeMount::directory)
    }

    /// Whether it follows another one that died.
    #[must_use]
    pub fn is_successor(&self) -> bool {
        self.registry
            .keeper()
            .is_some_and(|keeper| keeper.begin().take_overs > 0)
    }

    /// The way to the service manager.
    #[must_use]
    pub fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    /// Adds the devices of `configs` that are new and sets the memory limits of the others.
    /// Nothing is removed, because content would be lost. The changes, and the reasons against
    /// others, go to the log.
    pub fn apply(&self, configs: &[DeviceConfig]) {
        self.registry.apply(configs);
    }
}

/// Sockets that somebody handed over to the holder.
fn inherited_by_holder(left: &mut Vec<Kept>) -> Vec<Inherited> {
    let is_inherited = |kept: &mut Kept| kept.name_of("inherited").is_some();
    let sockets = left.extract_if(.., is_inherited);
    sockets
        .filter_map(|mut kept| {
            Some(Inherited {
                name: kept.note.as_str()?.to_owned(),
                socket: kept.take("socket")?,
            })
        })
        .collect()
}

/// Takes over what a dead server left.
fn resume(
    state: &StateDir,
    mut server: Kept,
    left: Vec<Kept>,
    inherited: Vec<Inherited>,
    keeper: Option<Arc<Keeper>>,
) -> Result<Prepared> {
    let number = server.note.as_str().unwrap_or_default().to_owned();
    let (Some(lock), Some(socket)) = (server.take("claim"), server.take(CONTROL)) else {
        let text = format!("{SERVER_KEY}: kept without its files");
        return Err(Error::new(ErrorKind::InvalidInput, text));
    };
    let claim = state.resume_server(&number, lock)?;
    let control = BoundControl::resume(&state.control_socket(&number), socket);
    let prepared = Prepared::new(state, claim, control, inherited, keeper)?;
    // Whatever fails from here on, nothing is removed that the next server needs. Who ends on purpose lets go of
    // everything by name (`Server`'s destructor).
    std::mem::forget(Arc::clone(&prepared.registry));
    prepared.registry.resume(left)?;
    // Last: the file may have been swapped out, to a disk of this server.
    prepared.registry.publish()?;
    Ok(prepared)
}

impl Prepared {
    fn new(
        state: &StateDir,
        claim: Claim,
        control: BoundControl,
        inherited: Vec<Inherited>,
        keeper: Option<Arc<Keeper>>,
    ) -> Result<Prepared> {
        let number = claim.name().to_owned();
        let owner = Owner {
            pid: std::process::id(),
            control: state.control_socket(&number),
            holder: keeper.as_ref().map(|keeper| keeper.begin().holder),
        };
        let registry = Registry::new(state, claim, owner, inherited, keeper.clone())?;
        Ok(Prepared {
            control,
            metrics: None,
            tree: None,
            registry: Arc::new(registry),
            keeper,
            holder_socket: state.holder_socket(&number),
            number,
        })
    }

    /// Its devices, in the order in which they were asked for.
    #[must_use]
    pub fn devices(&self) -> Arc<[Arc<Device>]> {
        self.registry.devices()
    }

    /// Mounts zram's files over `directory`; see [`AllowedFiles`] for the files that values may name.
    /// `hot_add` makes disks as `template`, which has no size. `keeper` starts the process that unmounts it,
    /// which calls [`keep`](uzram_frontends::fuse::keep) with the same directory, and there looks at the state
    /// directory ([`StateDir::entries`]) to tidy up.
    ///
    /// # Errors
    /// [`Io`](uzram::ErrorKind::Io) with the remedy, [`Busy`](uzram::ErrorKind::Busy) where another server's is.
    pub fn mount_tree(
        &mut self,
        directory: &Path,
        template: DeviceConfig,
        files: AllowedFiles,
        keeper: Command,
    ) -> Result<()> {
        tree::take_over(directory)?;
        self.registry.allow_hot_add(template);
        self.tree = Some((UnservedTree::new(directory, keeper)?, files));
        Ok(())
    }

    /// Listens for scrapers at `endpoint`.
    ///
    /// # Errors
    /// [`Busy`](uzram::ErrorKind::Busy) if the address is in use, and others as for a disk's socket.
    pub fn listen_for_metrics(&mut self, endpoint: &Endpoint) -> Result<()> {
        self.metrics = Some(BoundMetrics::bind(endpoint)?);
        Ok(())
    }

    /// Gives up everything that serving does not need, as far as `mode` says, for ever: see
    /// [`sandbox`]. Files in `read` and their directories can still be read. The process's only thread
    /// must call this.
    pub fn confine(&self, read: &[&Path], mode: sandbox::Mode) {
        let mut needs = self.registry.needs(read);
        let directory = self.metrics.as_ref().and_then(BoundMetrics::directory);
        needs.sockets.extend(directory.map(Path::to_path_buf));
        if let Some((_, files)) = &self.tree {
            needs.files = files.directories();
        }
        if mode != sandbox::Mode::Off && self.keeper.is_some() && swap::is_process_prepared() {
            // As its holder is urgent. In a sandbox this could not be changed any more.
            swap::be_usual();
        }
        sandbox::enter(&needs, mode);
    }

    /// Serves, and says so to `notifier` now and then.
    ///
    /// # Errors
    /// [`Io`](uzram::ErrorKind::Io) if the system gives no thread.
    pub fn run(self, notifier: Notifier) -> Result<Server> {
        let asked = Arc::clone(&self.registry);
        let control = self
            .control
            .serve(Arc::new(move |request: &Request, file| {
                answer(&asked, request, file)
            }))?;
        let notifier = Arc::new(notifier);
        let maintenance = Maintenance::start(Arc::clone(&self.registry), Arc::clone(&notifier))?;
        self.registry.start()?;
        let asked = Arc::clone(&self.registry);
        let scrape = move || metrics::text(all(&asked));
        let metrics = self.metrics.map(|bound| bound.serve(scrape)).transpose()?;
        let tree = self.tree.map(|(unserved, files)| {
            let tree = Tree::new(Arc::clone(&self.registry), files, unserved.keeper());
            unserved.serve(Arc::new(tree))
        });
        if let Some(keeper) = self.keeper {
            if swap::is_process_prepared() {
                keeper.keep_locked();
                swap::be_usual();
            }
            keeper.serving(&self.number);
            leave_when_asked(keeper, Arc::clone(&self.registry), self.holder_socket)?;
        }
        Ok(Server {
            control: Some(control),
            tree: tree.transpose()?,
            metrics,
            _maintenance: maintenance,
            registry: self.registry,
            notifier,
        })
    }
}

/// Ends this process once its holder asks for that: what is under way is answered, and everything else is left to the next
/// server.
fn leave_when_asked(keeper: Arc<Keeper>, registry: Arc<Registry>, socket: PathBuf) -> Result<()> {
    let leave = move || {
        if keeper.waits_for_hand_over() {
            log::info!("handing over: requests under way are answered first");
            registry.leave(HAND_OVER_TIMEOUT);
            log::logger().flush();
            // No destructor runs: names, sockets and mounts stay.
            std::process::exit(0);
        }
        let _ = std::fs::remove_file(socket);
        log::error!(
            "the holder, process {}, is gone: the disks are served on, but the end of this process loses them",
            keeper.begin().holder
        );
    };
    let thread = thread::Builder::new().name("uzram-holder".into());
    let started = thread.spawn(leave);
    started
        .map(drop)
        .map_err(|error| Error::new(ErrorKind::Io, "holder thread").with_source(error))
}

impl Drop for Server {
    fn drop(&mut self) {
        if thread::panicking() && self.registry.keeper().is_some() {
            // The disks are the next server's: nothing of them may be dropped, and the holder must not be told of an end.
            std::process::abort();
        }
        self.registry.say_end();
        self.registry.end(DRAIN_TIMEOUT);
        // While somebody uses its files they keep the registry.
        drop(self.tree.take());
        // Their paths go before the names do: who waits for these finds nothing.
        drop(self.control.take());
        drop(self.metrics.take());
        self.registry.forget_devices();
    }
}

fn answer(registry: &Registry, request: &Request, file: Option<OwnedFd>) -> Reply {
    let shown = |device: &Arc<Device>| vec![attributes::read_all(device)];
    let files = Passed(Mutex::new(file));
    let outcome = match request {
        Request::List {} => Ok(all(registry)),
        Request::Stat { name } => registry.find(name).map(|device| shown(&device)),
        Request::Set {
            name: None,
            attribute,
            value,
        } => attributes::write_server(attribute, value).map(|now| vec![now]),
        Request::Set {
            name: Some(name),
            attribute,
            value,
        } => registry
            .find(name)
            .and_then(|device| attributes::write(&device, attribute, value, &files))
            .map(|()| Vec::<Attributes>::new()),
        Request::Add { options } => add(registry, options).map(|device| shown(&device)),
        Request::Remove { name, force } => registry.remove(name, *force).map(|()| Vec::new()),
    };
    log::debug!("asked: {request:?}");
    outcome.map_or_else(
        |error| {
            log::info!("refused: {error}");
            Reply::refused(&error)
        },
        Reply::done,
    )
}

/// Files that the control socket's clients name: they are this server's own user or root, and hand over what
/// they have opened.
struct Passed(Mutex<Option<OwnedFd>>);

impl Files for Passed {
    fn open(&self, path: &Path, is_written: bool) -> Result<File> {
        let passed = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(file) = passed {
            return Ok(file.into());
        }
        let opened = OpenOptions::new().read(true).write(is_written).open(path);
        opened.map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            let text = format!("{}: cannot be opened", path.display());
            Error::new(ErrorKind::Io, text)
                .with_source(error)
                .with_errno(errno)
        })
    }
}

/// The attributes of all devices.
fn all(registry: &Registry) -> Vec<Attributes> {
    let devices = registry.devices();
    devices.iter().map(|d| attributes::read_all(d)).collect()
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
    use uzram::PageIndex;

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

    /// A client of the export `name`, past the handshake.
    fn connect(socket: &Path, name: &str) -> Option<std::os::unix::net::UnixStream> {
        use std::io::{Read, Write};
        let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
        stream.read_exact(&mut [0; 18]).ok()?;
        let mut ask = b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0".to_vec();
        ask.push(name.len() as u8);
        ask.extend(name.as_bytes());
        stream.write_all(&ask).ok()?;
        stream.read_exact(&mut [0; 10]).ok()?;
        Some(stream)
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

        let live = server.devices()[0].live().unwrap();
        let store = live.store().unwrap();
        store.write(PageIndex(0), &[7; 4096]).unwrap();
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
    fn sockets_handed_over_serve_whom_they_are_named_for() {
        let (temp, state) = state();
        let socket = |name: &str| {
            let path = temp.path().join(name);
            let socket = std::os::unix::net::UnixListener::bind(path).unwrap().into();
            let name = name.to_owned();
            Inherited { name, socket }
        };
        let inherited = ["a", "nbd", "uzram.socket", "nobody"].map(socket);
        let mut elsewhere = config("c");
        elsewhere.endpoint = Some(Endpoint::Unix(temp.path().join("own")));
        let configs = [config("a"), config("b"), elsewhere];
        let prepared = Server::prepare(&state, &configs, inherited.into()).unwrap();
        let served = |device: &Arc<Device>| -> Vec<String> {
            let paths = device.endpoints().map(|endpoint| match endpoint {
                Endpoint::Unix(path) => path.file_name().unwrap().to_str().unwrap().to_owned(),
                Endpoint::Tcp(_) | Endpoint::Vsock(_) => unreachable!(),
            });
            paths.collect()
        };
        let served: Vec<_> = prepared.devices().iter().map(served).collect();
        assert_eq!(
            served,
            [vec!["a"], vec!["nbd", "uzram.socket"], vec!["own"]]
        );

        // One that is served in two places is withdrawn from both or from none.
        let server = prepared.run(Notifier::default()).unwrap();
        let device = Arc::clone(&server.devices()[1]);
        device.empty().unwrap();
        let connected = connect(&temp.path().join("uzram.socket"), "b").unwrap();
        let refused = device.set_read_only(true).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy);
        assert!(
            connect(&temp.path().join("nbd"), "b").is_some(),
            "withdrawn half-way"
        );
        drop(connected);
        let until = std::time::Instant::now() + DRAIN_TIMEOUT;
        while let Err(error) = device.set_read_only(true) {
            assert!(std::time::Instant::now() < until, "{error}");
        }
        drop(server);
        assert!(
            temp.path().join("nbd").exists(),
            "the path is somebody else's"
        );
        assert!(!temp.path().join("own").exists());
    }

    #[test]
    fn devices_that_come_and_go_leave_nothing() {
        let (_temp, state) = state();
        let server = Server::start(&state, &[]).unwrap();
        let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let mut before = 0;
        for round in 0..60 {
            let name = format!("d{}", round % 3);
            server.registry.add(&config(&name)).unwrap();
            if round % 20 == 0 {
                let twice = server.registry.add(&config(&name)).err().unwrap();
                assert_eq!(twice.kind(), ErrorKind::Busy);
            }
            // Somebody who asks holds it a little longer, which must not keep its socket.
            let held = server.registry.find(&name).unwrap();
            server.registry.remove(&name, false).unwrap();
            server.registry.add(&config(&name)).unwrap();
            let again = server.registry.find(&name).unwrap();
            let Some(Endpoint::Unix(path)) = again.endpoints().next() else {
                panic!("not its own socket");
            };
            std::os::unix::net::UnixStream::connect(path).expect("nobody listens");
            drop((held, again));
            server.registry.remove(&name, false).unwrap();
            let gone = server.registry.remove(&name, false).unwrap_err();
            assert_eq!(gone.kind(), ErrorKind::UnknownName);
            if round == 10 {
                before = descriptors();
            }
        }
        // Other tests of this process open some, too; sixty rounds of a leak would stand out.
        assert!(
            descriptors() < before + 40,
            "{before} became {}",
            descriptors()
        );
        assert_eq!(std::fs::read_dir(state.path()).unwrap().count(), 2);
        server.registry.end(DRAIN_TIMEOUT);
        let late = server.registry.add(&config("late")).err().unwrap();
        assert!(late.to_string().contains("ending"), "{late}");
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
