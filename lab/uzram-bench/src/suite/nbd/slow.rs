//! A fast client beside many that send a byte now and then, in the handshake or within a request: what
//! is left of its speed.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::figures::Cell;
use crate::progress::Progress;
use crate::report::Block;
use crate::suite::Options;
use crate::suite::nbd::client::Connection;
use crate::suite::nbd::lines::{IOPS, LOADS, Lines, Served, WARM_UP};
use crate::suite::nbd::load;
use crate::suite::turns::{Runs, Turns};

/// Clients that send slowly.
const SLOW_CLIENTS: usize = 100;
/// How often each of them sends its byte.
const BYTE_EVERY: Duration = Duration::from_millis(100);
/// Payload of the write that half of them never finish, in bytes.
const WRITE_BYTES: u32 = 1 << 20;
/// The first bytes of the other clients: client flags, and the head of a GO with more data than ever comes.
const HELLO: &[u8; 20] = b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\x10\0";

/// Measures the first of the servers, which is ours, with the first load.
pub(super) fn measure(
    lines: &mut Lines<'_>,
    corpus: &str,
    options: &Options,
    progress: &mut Progress,
    block: &mut Block,
) -> Result<()> {
    let (pages, bytes) = (lines.workload.input(), lines.workload.bytes() as u64);
    let Some(side) = lines.sides.first_mut().filter(|side| side.is_ours()) else {
        return Ok(());
    };
    let Served { workers, server } = &mut side.driven;
    let (socket, load) = (server.socket(), &LOADS[0]);
    let case = format!("{}-beside-slow-clients", load.case(corpus, 1));
    let turns = Turns::of(&case, 2, Runs::Few);
    let rates = turns.measure(options, progress, |turn| {
        let job = load.job(pages, turn.time(WARM_UP, options));
        let mut work = || load::run_together(workers, job);
        match turn.side {
            0 => work(),
            _ => beside(&socket, &server.export, work),
        }
    })?;
    let names = [
        side.name.clone(),
        format!("{}-beside-{SLOW_CLIENTS}", side.name),
    ];
    let pair = |top: &str, bottom: &str| [bottom, top] == names;
    Cell::new(case, IOPS, bytes).add_all(&names, &rates, pair, block);
    Ok(())
}

/// Does `work` while the slow clients are connected.
fn beside<T>(socket: &Path, export: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let clients = (0..SLOW_CLIENTS).map(|number| Slow::open(socket, export, number % 2 == 0));
    let mut clients = clients.collect::<Result<Vec<_>>>()?;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let dripping = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for client in &mut clients {
                    client.drip()?;
                    thread::sleep(BYTE_EVERY / SLOW_CLIENTS as u32);
                }
            }
            Ok(())
        });
        let done = work();
        is_over.store(true, Ordering::Relaxed);
        let died = |_| {
            Err(Error::Failed(
                "a thread of slow clients panicked".to_owned(),
            ))
        };
        dripping.join().unwrap_or_else(died)?;
        done
    })
}

/// A client that never gets to the end of what it says.
struct Slow {
    socket: PathBuf,
    export: String,
    is_shaking_hands: bool,
    stream: UnixStream,
    said_bytes: usize,
}

impl Slow {
    fn open(socket: &Path, export: &str, is_shaking_hands: bool) -> Result<Slow> {
        let stream = match is_shaking_hands {
            true => UnixStream::connect(socket)
                .map_err(|error| Error::io("NBD server: slow client", error))?,
            false => Connection::open(socket, export)?.into_stream(WRITE_BYTES)?,
        };
        Ok(Slow {
            socket: socket.to_owned(),
            export: export.to_owned(),
            is_shaking_hands,
            stream,
            said_bytes: 0,
        })
    }

    /// Sends a byte; a client that has been hung up on, as it must be in the end, comes again.
    fn drip(&mut self) -> Result<()> {
        let byte = match self.is_shaking_hands {
            true => HELLO.get(self.said_bytes).copied().unwrap_or(0),
            false => 0,
        };
        self.said_bytes += 1;
        if self.stream.write_all(&[byte]).is_err() {
            *self = Slow::open(&self.socket, &self.export, self.is_shaking_hands)?;
        }
        Ok(())
    }
}
