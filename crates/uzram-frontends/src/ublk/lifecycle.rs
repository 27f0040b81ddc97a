//! A device from the first command to the last: added, described, served, started; stopped,
//! deleted. If any step fails, the device is deleted from the driver again.
//!
//! ```text
//! add ──▶ parameters ──▶ queues fetch ──▶ start ═══ requests ═══▶ stop ──▶ queues end ──▶ delete
//!  └──────── a failure here stops and deletes ─────────┘
//! ```
//!
//! A device is a new one, under a number of the kernel's choice, or that of a dead server:
//!
//! ```text
//! label and state ──▶ start recovery ──▶ queues fetch ──▶ end recovery ═══ requests ═══▶ as above
//! ```
//!
//! Users of a disk that is taken over must see the store that they wrote to. So the driver is only
//! asked to keep disks (user recovery) whose store outlives its server. Without that the kernel
//! fails all I/O and takes the disk away as soon as its server dies. A take-over that fails leaves
//! the disk to the next successor.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};
use uzram::{BlockDevice, Error, ErrorKind, Result};

use super::protocol::{
    AFFINITY_BYTES, ANY_ID, Control, FEATURE_IOCTL_ENCODE, FEATURE_UNPRIVILEGED, FEATURES_BYTES,
    FEATURES_RECOVERY, INFO_BYTES, Info, Parameters, State, cpu_set,
};
use super::queue::{Channel, Queue};
use super::{DEPTH_MAX, END_TIMEOUT, QUEUES_MAX, REQUEST_BYTES_MAX};

/// Longest wait for the queues to be ready.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for a deleted device's number to be free, unless a program has the disk open.
const GONE_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for a dead server's hold on a device to end.
const DEATH_TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);
/// Smallest requests that a driver may impose, in bytes: a page.
const REQUEST_BYTES_MIN: u32 = 4096;

/// The kernel's driver, or its stand-in in a test.
pub(super) trait Driver: Send {
    /// The node that is open while a device is served.
    type Node: Clone + Send + 'static;
    /// A queue's channel to the kernel.
    type Channel: Channel;

    /// Sends a command to the driver. `data` is its input and output.
    fn command(&mut self, ask: Ask<'_>) -> io::Result<()>;

    /// Opens the device that was just added.
    fn open(&mut self, id: u32) -> io::Result<Self::Node>;

    /// A queue's channel, for the calling thread.
    fn channel(node: &Self::Node, info: &Info, queue: u16) -> io::Result<Self::Channel>;
}

/// A command for the driver.
pub(super) struct Ask<'a> {
    pub command: Control,
    pub id: u32,
    /// Whether the driver is to check permissions by the path of the device's node: for users
    /// without privileges, and for questions about any device.
    pub by_path: bool,
    pub word: u64,
    pub data: &'a mut [u8],
}

/// The properties of a new device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    pub queues: u16,
    pub depth: u16,
    pub label: u64,
    /// Whether the disk waits for another server when this one dies.
    pub outlives: bool,
}

/// A device of ours in the kernel. Dropping it stops and deletes it.
pub(super) struct Served<D: Driver> {
    driver: D,
    info: Info,
    node: Option<D::Node>,
    queues: Vec<JoinHandle<()>>,
    is_stopped: bool,
    is_deleted: bool,
    is_io_flusher: bool,
}

impl<D: Driver> Served<D> {
    /// Makes the device and its disk.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`], [`ErrorKind::Unsupported`] by an old driver, [`ErrorKind::Io`]; nothing is
    /// left behind.
    pub(super) fn start(
        mut driver: D,
        device: &Arc<dyn BlockDevice>,
        wish: Wish,
    ) -> Result<Served<D>> {
        check(wish)?;
        let parameters = parameters(device.as_ref(), REQUEST_BYTES_MAX)?;
        let features = features(&mut driver)?;
        if wish.outlives && features & FEATURES_RECOVERY != FEATURES_RECOVERY {
            let text = "ublk: this kernel's driver keeps no disk for another server; do not ask for that, \
                        or attach as loop";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let info = add(&mut driver, wish, features)?;
        // From here on its destructor deletes the device.
        let mut served = Served::of(driver, info);
        served.check_info(wish)?;
        let node = served.open_node()?;
        let parameters = Parameters {
            request_bytes: info.request_bytes,
            ..parameters
        };
        served
            .tell(Control::SetParameters, 0, &mut parameters.encode())
            .map_err(|error| failed("the disk's parameters were refused", error))?;
        served.start_queues(&node, device)?;
        served
            .tell(Control::Start, std::process::id().into(), &mut [])
            .map_err(|error| failed("the disk cannot be started", error))?;
        Ok(served)
    }

    /// Takes over the disk `id` of a dead server, with the queues and the depth that it has.
    /// `device` must hold what the dead server's did.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if the device has another label or was not made to outlive its
    /// server, [`ErrorKind::Busy`] if it is served, [`ErrorKind::Unsupported`],
    /// [`ErrorKind::Io`]. The disk stays, for another successor once this process has ended.
    pub(super) fn resume(
        mut driver: D,
        device: &Arc<dyn BlockDevice>,
        id: u32,
        label: u64,
    ) -> Result<Served<D>> {
        features(&mut driver)?;
        let info = quiesced(&mut driver, id, label)?;
        let mut served = Served::of(driver, info);
        match served.recover(device) {
            Ok(()) => Ok(served),
            Err(error) => {
                // Deleting it would take a disk from its users that another successor can serve.
                (served.is_stopped, served.is_deleted) = (true, true);
                Err(error)
            }
        }
    }

    fn recover(&mut self, device: &Arc<dyn BlockDevice>) -> Result<()> {
        self.check_info(Wish {
            queues: QUEUES_MAX,
            depth: DEPTH_MAX,
            label: self.info.label,
            outlives: true,
        })?;
        let deadline = Instant::now() + DEATH_TIMEOUT;
        // The driver is busy while the dead process still has the node open.
        while let Err(error) = self.tell(Control::StartRecovery, 0, &mut []) {
            let is_busy = error.raw_os_error() == Some(Errno::BUSY.raw_os_error());
            if !is_busy || Instant::now() >= deadline {
                return Err(failed("the disk cannot be taken over", error));
            }
            thread::sleep(PAUSE);
        }
        let node = self.open_node()?;
        self.start_queues(&node, device)?;
        self.tell(Control::EndRecovery, std::process::id().into(), &mut [])
            .map_err(|error| failed("the disk that was taken over does not go on", error))
    }

    fn open_node(&mut self) -> Result<D::Node> {
        let info = self.info;
        let node = self.driver.open(info.id).map_err(|error| {
            let text = format!("ublk: /dev/ublkc{}: cannot be opened", info.id);
            let remedy = match info.features & FEATURE_UNPRIVILEGED {
                0 => "; mount devtmpfs on /dev, or pass the device into the container",
                _ => "; a udev rule has to give it to the user who made it, and root alone can delete it now",
            };
            Error::new(ErrorKind::Io, text + remedy).with_source(error)
        })?;
        self.node = Some(node.clone());
        Ok(node)
    }

    fn of(driver: D, info: Info) -> Served<D> {
        Served {
            driver,
            info,
            node: None,
            queues: Vec::new(),
            is_stopped: false,
            is_deleted: false,
            is_io_flusher: true,
        }
    }

    pub(super) fn id(&self) -> u32 {
        self.info.id
    }

    /// Whether the kernel never makes the queues wait for memory that only their own disk would
    /// free.
    pub(super) fn is_io_flusher(&self) -> bool {
        self.is_io_flusher
    }

    /// Takes the disk away and ends the queues. If this was done already, it does nothing.
    /// Programs that have the disk open get errors from now on.
    ///
    /// # Errors
    /// [`ErrorKind::Io`]; it may be tried again.
    pub(super) fn stop(&mut self) -> Result<()> {
        if self.is_stopped {
            return Ok(());
        }
        match self.tell(Control::Stop, 0, &mut []) {
            Err(error) if !is_gone(&error) => {
                return Err(failed("the disk cannot be stopped", error));
            }
            _ => {}
        }
        self.end_queues();
        self.node = None;
        self.is_stopped = true;
        Ok(())
    }

    /// Stops and deletes the device. Its number is free on return, unless a program has the disk
    /// open.
    ///
    /// # Errors
    /// As [`Served::stop`].
    pub(super) fn remove(&mut self) -> Result<()> {
        if self.is_deleted {
            return Ok(());
        }
        self.stop()?;
        let by_path = self.has_path();
        delete(&mut self.driver, self.info.id, by_path)
            .map_err(|error| failed("the device cannot be deleted", error))?;
        self.is_deleted = true;
        Ok(())
    }

    fn has_path(&self) -> bool {
        self.info.features & FEATURE_UNPRIVILEGED != 0
    }

    fn tell(&mut self, command: Control, word: u64, data: &mut [u8]) -> io::Result<()> {
        let by_path = self.has_path();
        self.driver.command(Ask {
            command,
            id: self.info.id,
            by_path,
            word,
            data,
        })
    }

    /// Checks the driver's answer to the wish: less is fine, more would not fit the memory made
    /// for it.
    fn check_info(&self, wish: Wish) -> Result<()> {
        let Info {
            queues,
            depth,
            request_bytes,
            ..
        } = self.info;
        let is_fine = (1..=wish.queues).contains(&queues)
            && (1..=wish.depth).contains(&depth)
            && (REQUEST_BYTES_MIN..=REQUEST_BYTES_MAX).contains(&request_bytes)
            && request_bytes.is_multiple_of(REQUEST_BYTES_MIN);
        if is_fine {
            return Ok(());
        }
        let text = format!(
            "ublk: the kernel offers {queues} queues, {depth} deep, of {request_bytes} bytes, and was asked \
             for {}, {} deep, of {REQUEST_BYTES_MAX}",
            wish.queues, wish.depth
        );
        Err(Error::new(ErrorKind::Unsupported, text))
    }

    fn start_queues(&mut self, node: &D::Node, device: &Arc<dyn BlockDevice>) -> Result<()> {
        let (ready, readiness) = mpsc::sync_channel(self.info.queues.into());
        for queue in 0..self.info.queues {
            let mut cpus = [0; AFFINITY_BYTES];
            // An old or a large machine's driver may not say; then the system chooses.
            let cpus = match self.tell(Control::Affinity, queue.into(), &mut cpus) {
                Ok(()) => cpu_set(&cpus),
                Err(_) => CpuSet::new(),
            };
            let (node, device) = (node.clone(), Arc::clone(device));
            let (info, ready) = (self.info, ready.clone());
            let thread = thread::Builder::new().name(format!("ublk-{queue}"));
            let serve =
                move || serve_queue::<D>(&node, device.as_ref(), &info, queue, &cpus, &ready);
            let thread = thread.spawn(serve);
            self.queues
                .push(thread.map_err(|error| failed("no thread for a queue", error))?);
        }
        drop(ready);
        self.wait_for_queues(&readiness)
    }

    fn wait_for_queues(&mut self, readiness: &Receiver<Readiness>) -> Result<()> {
        let deadline = Instant::now() + READY_TIMEOUT;
        for _ in 0..self.info.queues {
            let left = deadline.saturating_duration_since(Instant::now());
            let queue = readiness.recv_timeout(left).map_err(|_| {
                let seconds = READY_TIMEOUT.as_secs();
                let text = format!("ublk: a queue was not ready in {seconds} s; try again");
                Error::new(ErrorKind::Io, text)
            })?;
            self.is_io_flusher &= queue.is_io_flusher;
            queue
                .opened
                .map_err(|error| failed("a queue cannot be opened", error))?;
        }
        Ok(())
    }

    /// Waits for the queues to end. The kernel has handed their tags back.
    fn end_queues(&mut self) {
        let deadline = Instant::now() + END_TIMEOUT;
        for queue in self.queues.drain(..) {
            while !queue.is_finished() && Instant::now() < deadline {
                thread::sleep(PAUSE);
            }
            if queue.is_finished() {
                // One that panicked has failed its requests, and nobody is left to be told.
                let _ = queue.join();
            }
        }
    }
}

impl<D: Driver> Drop for Served<D> {
    fn drop(&mut self) {
        let _ = self.remove();
    }
}

/// The report of a queue's thread before it serves.
struct Readiness {
    opened: io::Result<()>,
    is_io_flusher: bool,
}

/// The life of a queue's thread.
fn serve_queue<D: Driver>(
    node: &D::Node,
    device: &dyn BlockDevice,
    info: &Info,
    queue: u16,
    cpus: &CpuSet,
    ready: &SyncSender<Readiness>,
) {
    if cpus.count() > 0 {
        // Not within a cpuset that lacks them; then any CPU will do.
        let _ = sched_setaffinity(None, cpus);
    }
    // A file system on the disk is written to so that memory becomes free: no wait for memory in here may
    // wait for that.
    let is_io_flusher = rustix::process::configure_io_flusher_behavior(true).is_ok();
    let opened = D::channel(node, info, queue).and_then(|channel| Queue::open(channel, device));
    let (opened, queue) = match opened {
        Ok(queue) => (Ok(()), Some(queue)),
        Err(error) => (Err(error), None),
    };
    let _ = ready.send(Readiness {
        opened,
        is_io_flusher,
    });
    if let Some(queue) = queue {
        // What it returns is that of a kernel that is beyond reach; it fails the requests with this thread.
        let _ = queue.run();
    }
}

/// Deletes the device `id`. Its number is free on return, unless a program has its disk open.
pub(super) fn delete<D: Driver>(driver: &mut D, id: u32, by_path: bool) -> io::Result<()> {
    let mut ask = |command| {
        driver.command(Ask {
            command,
            id,
            by_path,
            word: 0,
            data: &mut [],
        })
    };
    // The other way waits for whoever has the disk open, which may be for ever.
    let deleted = match ask(Control::DeleteLater) {
        Err(error) if is_unknown(&error) => ask(Control::Delete),
        done => done,
    };
    match deleted {
        Err(error) if !is_gone(&error) => return Err(error),
        _ => {}
    }
    let deadline = Instant::now() + GONE_TIMEOUT;
    while self::info(driver, id).is_ok() && Instant::now() < deadline {
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// The driver's description of the device `id`.
pub(super) fn info<D: Driver>(driver: &mut D, id: u32) -> io::Result<Info> {
    let mut data = [0; INFO_BYTES];
    driver.command(Ask {
        command: Control::Info,
        id,
        by_path: true,
        word: 0,
        data: &mut data,
    })?;
    Ok(Info::decode(&data))
}

/// The description of the device `id`, once its server is dead and its disk waits for another.
fn quiesced<D: Driver>(driver: &mut D, id: u32, label: u64) -> Result<Info> {
    let deadline = Instant::now() + DEATH_TIMEOUT;
    loop {
        let info = info(driver, id)
            .map_err(|error| failed("the disk to take over cannot be asked for", error))?;
        let wrong = if info.label != label {
            format!(
                "label {:#x}: not {label:#x}; it is another server's",
                info.label
            )
        } else if info.features & FEATURES_RECOVERY != FEATURES_RECOVERY {
            "not made to outlive its server; remove it".to_owned()
        } else {
            String::new()
        };
        if !wrong.is_empty() {
            let text = format!("ublk: /dev/ublkc{id}: {wrong}");
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        if info.state == State::Quiesced {
            return Ok(info);
        }
        if Instant::now() >= deadline {
            let text = format!(
                "ublk: /dev/ublkc{id}: {:?}: does not wait for a server; end its server first",
                info.state
            );
            return Err(Error::new(ErrorKind::Busy, text));
        }
        thread::sleep(PAUSE);
    }
}

/// The driver's features, or the reason why it cannot be used.
pub(super) fn features<D: Driver>(driver: &mut D) -> Result<u64> {
    let mut data = [0; FEATURES_BYTES];
    let asked = driver.command(Ask {
        command: Control::Features,
        id: ANY_ID,
        by_path: false,
        word: 0,
        data: &mut data,
    });
    let features = u64::from_ne_bytes(data);
    match asked {
        Ok(()) if features & FEATURE_IOCTL_ENCODE != 0 => Ok(features),
        Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {
            let text =
                "ublk: the driver takes no commands from this user; be root, or attach as loop";
            Err(Error::new(ErrorKind::Io, text).with_source(error))
        }
        _ => {
            let text = "ublk: this kernel's driver does not say what it can do, as that of Linux 6.5 does; \
                        attach as loop";
            Err(Error::new(ErrorKind::Unsupported, text))
        }
    }
}

/// Adds a device; as a user's without privileges where the driver allows that.
fn add<D: Driver>(driver: &mut D, wish: Wish, features: u64) -> Result<Info> {
    let mut ask = |features| {
        let info = Info {
            queues: wish.queues,
            depth: wish.depth,
            state: State::Dead,
            request_bytes: REQUEST_BYTES_MAX,
            id: ANY_ID,
            features,
            label: wish.label,
        };
        let mut data = info.encode();
        let added = driver.command(Ask {
            command: Control::Add,
            id: ANY_ID,
            by_path: false,
            word: 0,
            data: &mut data,
        });
        added.map(|()| Info::decode(&data))
    };
    let is_refusal = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    let wanted = match wish.outlives {
        true => FEATURE_IOCTL_ENCODE | FEATURES_RECOVERY,
        false => FEATURE_IOCTL_ENCODE,
    };
    let added = match ask(wanted) {
        Err(error) if is_refusal(&error) && features & FEATURE_UNPRIVILEGED != 0 => {
            ask(wanted | FEATURE_UNPRIVILEGED)
        }
        added => added,
    };
    added.map_err(|error| {
        let remedy = match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::PERM | Errno::ACCESS) => {
                "be root, as this driver or its limit of devices (ublk_drv.ublks_max) lets nobody else in"
            }
            Some(Errno::EXIST) => "the number is taken by a device that is being deleted; try again",
            Some(Errno::NOSPC) => "all numbers are taken; delete devices that nobody uses",
            _ => "no device can be added",
        };
        failed(remedy, error)
    })
}

fn check(wish: Wish) -> Result<()> {
    let (queues, depth) = (wish.queues, wish.depth);
    let text = if !(1..=QUEUES_MAX).contains(&queues) {
        format!("ublk: {queues} queues: must be 1 to {QUEUES_MAX}")
    } else if !(1..=DEPTH_MAX).contains(&depth) {
        format!("ublk: a queue's depth of {depth}: must be 1 to {DEPTH_MAX}")
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::InvalidInput, text))
}

/// The parameters of the disk: blocks of a page, as zram's disks have, if the device consists of
/// whole pages and takes them at once; smaller blocks for a device that is atomic in them.
pub(super) fn parameters(device: &dyn BlockDevice, request_bytes: u32) -> Result<Parameters> {
    const BLOCK_BYTES: [u32; 4] = [4096, 2048, 1024, 512];
    /// A range of this many bytes takes milliseconds at most.
    const RANGE_BYTES_MAX: u64 = 1 << 30;
    let geometry = device.geometry();
    let fits = |block: &&u32| {
        geometry.size_bytes.is_multiple_of(u64::from(**block))
            && geometry.preferred_block_bytes.is_multiple_of(**block)
    };
    let logical = BLOCK_BYTES.iter().find(fits).ok_or_else(|| {
        let size = geometry.size_bytes;
        let text = format!("ublk: size {size}: must be a multiple of 512 bytes");
        Error::new(ErrorKind::InvalidInput, text)
    })?;
    let preferred = geometry.preferred_block_bytes;
    Ok(Parameters {
        logical_block_bytes: *logical,
        preferred_block_bytes: match preferred.is_power_of_two() {
            true => preferred.min(request_bytes),
            false => *logical,
        },
        size_bytes: geometry.size_bytes,
        request_bytes,
        range_bytes: RANGE_BYTES_MAX,
    })
}

fn failed(what: &str, error: io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("ublk: {what}")).with_source(error)
}

fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NODEV.raw_os_error())
}

/// Whether the driver does not know the command.
fn is_unknown(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(
        errno,
        Some(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOTTY | Errno::NOSYS)
    )
}
