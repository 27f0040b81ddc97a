//! The disk of a virtual machine against the disk of a network: the same store over vhost-user and over
//! NBD, each with a client of ours in place of a guest, 4 KiB at random places, one queue or
//! connection, one process each.
//!
//! Both sides run the load of suite `nbd`, which compares every byte that a read brings. The guest's data
//! is in its memory when a request ends; the client copies it out to compare it, which a guest would not.

use std::path::Path;
use std::time::{Duration, Instant};

use uzram_frontends::vhost_user::client::{Client, Data, Queue, Setup};
use vm_memory::Bytes;

use crate::corpus::PAGE_BYTES;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::report::{Block, Findings};
use crate::side::Side;
use crate::suite::nbd::client::{Connection, DEPTH_MAX, Line, Reply};
use crate::suite::nbd::lines::{LOADS, Lines, Load};
use crate::suite::nbd::load::FILL_BYTES;
use crate::suite::nbd::server::Server;
use crate::suite::{Options, nbd};
use crate::workload::Workload;

/// Requests in flight.
const DEPTHS: [usize; 2] = [1, 32];
/// Distinct pages of the generated buffers: 64 MiB.
const FIO_PAGES: usize = 16_384;
const REPLY_LIMIT: Duration = Duration::from_secs(30);
const NAMES: [&str; 2] = ["uzram-vhost-user", "uzram-nbd"];

const READ: u32 = 0;
const WRITE: u32 = 1;
const SECTOR_BYTES: u64 = 512;

/// One block: both ways, both directions, each depth.
pub(super) fn run(options: &Options, algorithm: &str, findings: &mut Findings) -> Result<()> {
    let corpus = crate::synthetic::fio(50, FIO_PAGES);
    let workload = Workload::new(&corpus, options.quick)?;
    let mut progress = Progress::new(DEPTHS.len() * 2);
    let mut block = Block {
        title: format!(
            "{algorithm}: {} MiB, vhost-user and NBD with clients of ours, 4 KiB random, not pinned",
            workload.bytes() >> 20
        ),
        ..Block::default()
    };
    let size_bytes = workload.bytes() as u64;
    let guests = nbd::start_uzram(algorithm, size_bytes, &["--attach", "vhost-user"])?;
    let network = nbd::start_uzram(algorithm, size_bytes, &[])?;
    let guest = GuestLine::open(&guests)?;
    let connection = Connection::open(&network.socket(), &network.export)?;
    let mut sides = vec![
        Side::filled(guests, vec![Box::new(guest)], &workload, options)?,
        Side::filled(network, vec![Box::new(connection)], &workload, options)?,
    ];
    for (side, name) in sides.iter_mut().zip(NAMES) {
        name.clone_into(&mut side.name);
    }
    let mut lines = Lines {
        workload: &workload,
        sides,
    };
    let pair = |top: &str, bottom: &str| [top, bottom] == NAMES;
    for depth in DEPTHS {
        for load in &LOADS[..2] {
            let load = Load { depth, ..*load };
            let case = format!("{}-1x{depth}", load.name);
            lines.measure(&load, case, pair, options, &mut progress, &mut block)?;
        }
    }
    findings.blocks.push(block);
    Ok(())
}

/// A queue of a guest that is not there.
struct GuestLine {
    // Its end is the connection's, and the server's of the queue.
    _client: Client,
    queue: Queue,
    size_bytes: u64,
    cookies: [u64; DEPTH_MAX],
    page: Box<[u8]>,
}

impl GuestLine {
    fn open(server: &Server) -> Result<GuestLine> {
        GuestLine::connect(&server.socket()).map_err(|error| Error::io("vhost-user", error))
    }

    fn connect(socket: &Path) -> std::io::Result<GuestLine> {
        let mut client = Client::connect(
            socket,
            Setup {
                data_bytes: FILL_BYTES as u32,
                ..Setup::default()
            },
        )?;
        let capacity = client.config(8)?;
        let sectors = capacity
            .first_chunk()
            .map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let mut queues = client.start(&[])?;
        Ok(GuestLine {
            _client: client,
            queue: queues.remove(0),
            size_bytes: sectors * SECTOR_BYTES,
            cookies: [0; DEPTH_MAX],
            page: vec![0; PAGE_BYTES].into(),
        })
    }

    fn submit(&mut self, cookie: u64, kind: u32, offset: u64, data: Data) {
        let slot = slot_of(cookie);
        self.cookies[usize::from(slot)] = cookie;
        self.queue.submit(slot, kind, offset / SECTOR_BYTES, data);
    }
}

impl Line for GuestLine {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read(&mut self, cookie: u64, offset: u64, length: usize) {
        self.submit(cookie, READ, offset, Data::Taken(length as u32));
    }

    fn write(&mut self, cookie: u64, offset: u64, data: &[u8]) {
        let at = self.queue.data_at(slot_of(cookie));
        let written = self.queue.memory.write_slice(data, at);
        written.expect("a slot has room for any request");
        self.submit(cookie, WRITE, offset, Data::Given(data.len() as u32));
    }

    fn send(&mut self) -> Result<()> {
        self.queue.kick();
        Ok(())
    }

    fn receive(
        &mut self,
        read_bytes: &dyn Fn(u64) -> Option<usize>,
        take: &mut dyn FnMut(Reply<'_>) -> Result<()>,
    ) -> Result<()> {
        let deadline = Instant::now() + REPLY_LIMIT;
        let mut count = 0;
        while count == 0 {
            while let Some(done) = self.queue.completed() {
                let cookie = self.cookies[usize::from(done.slot)];
                let length = read_bytes(cookie).unwrap_or(0);
                if done.status != 0 {
                    return Err(Error::Failed("vhost-user: a request failed".to_owned()));
                }
                let data = &mut self.page[..length];
                let at = self.queue.data_at(done.slot);
                let read = self.queue.memory.read_slice(data, at);
                read.expect("a slot has room for any request");
                take(Reply { cookie, data })?;
                count += 1;
            }
            if count == 0 {
                if Instant::now() > deadline {
                    return Err(Error::Failed("vhost-user: no reply".to_owned()));
                }
                self.queue.wait(REPLY_LIMIT);
            }
        }
        Ok(())
    }
}

fn slot_of(cookie: u64) -> u16 {
    (cookie & 0xffff) as u16
}
