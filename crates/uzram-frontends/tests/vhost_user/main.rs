//! Tests of the vhost-user frontend by the crate's own client, a guest without a virtual machine, and
//! by hostile ones that know the rings' format.
#![allow(clippy::unwrap_used)]

#[path = "../it/device.rs"]
mod device;

mod faults;
mod hostile;
mod reconnect;
mod refused;
mod requests;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use uzram::BlockDevice;
use uzram_frontends::vhost_user::client::{Client, Completed, Data, Queue, Setup};
use uzram_frontends::vhost_user::{Disk, Server, ServerHandle};

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;

const OK: u8 = 0;
const IOERR: u8 = 1;
const UNSUPPORTED: u8 = 2;

/// For what must happen; a busy machine takes its time.
const SOON: Duration = Duration::from_secs(20);

/// A server with one disk on a socket in a directory of its own.
struct Served {
    handle: Option<ServerHandle>,
    directory: tempfile::TempDir,
    notices: Arc<Mutex<Vec<String>>>,
}

impl Served {
    fn new(device: Arc<dyn BlockDevice>) -> Served {
        Served::with(device, false)
    }

    fn with(device: Arc<dyn BlockDevice>, is_read_only: bool) -> Served {
        let mut served = Served {
            handle: None,
            directory: tempfile::tempdir().unwrap(),
            notices: Arc::default(),
        };
        served.start(device, is_read_only);
        served
    }

    /// Ends the server, and starts another one in its place.
    fn start(&mut self, device: Arc<dyn BlockDevice>, is_read_only: bool) {
        self.handle = None;
        let server = Server::bind(&self.path()).unwrap();
        let name = "disk".to_owned();
        let disk = Disk {
            name,
            device,
            is_read_only,
        };
        server.seat().offer(disk).unwrap();
        let notices = Arc::clone(&self.notices);
        let notice = move |text: &str| notices.lock().unwrap().push(text.to_owned());
        self.handle = Some(server.spawn(Arc::new(notice)).unwrap());
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("s")
    }

    fn connect(&self, setup: Setup) -> Client {
        Client::connect(&self.path(), setup).unwrap()
    }

    /// A client with its queues started.
    fn guest(&self, setup: Setup) -> (Client, Vec<Queue>) {
        let mut client = self.connect(setup);
        let queues = client.start(&[]).unwrap();
        (client, queues)
    }

    /// Waits for a notice that contains `text`.
    fn notice(&self, text: &str) -> String {
        let mut found = None;
        until(|| {
            let notices = self.notices.lock().unwrap();
            found = notices.iter().find(|notice| notice.contains(text)).cloned();
            found.is_some() || {
                drop(notices);
                false
            }
        });
        found.unwrap()
    }

    fn is_free(&self) -> bool {
        self.handle.as_ref().unwrap().seat().user().is_none()
    }
}

/// Waits for `condition`, which must come soon.
fn until(mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < SOON, "does not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A request, which must end.
fn ask(queue: &mut Queue, kind: u32, sector: u64, data: Data) -> Completed {
    queue.request(kind, sector, data, SOON).expect("no answer")
}

/// Writes `bytes`.
fn write(queue: &mut Queue, sector: u64, bytes: &[u8]) -> u8 {
    use vm_memory::Bytes;
    queue.memory.write_slice(bytes, queue.data_at(0)).unwrap();
    ask(queue, OUT, sector, Data::Given(bytes.len() as u32)).status
}

/// Reads.
fn read(queue: &mut Queue, sector: u64, length: usize) -> (u8, Vec<u8>) {
    use vm_memory::Bytes;
    let done = ask(queue, IN, sector, Data::Taken(length as u32));
    let mut bytes = vec![0; length];
    queue
        .memory
        .read_slice(&mut bytes, queue.data_at(0))
        .unwrap();
    (done.status, bytes)
}

/// Bytes that differ from place to place.
fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at as u8).wrapping_mul(31) ^ seed ^ (at >> 8) as u8)
        .collect()
}
