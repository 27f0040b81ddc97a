//! NBD exports over Unix sockets: somebody's, or one of a server of ours that goes with the target.

use std::path::PathBuf;

use super::{BLOCK_MAX_BYTES, Channel, Job, Target};
use crate::cpu_time::CpuTime;
use crate::error::{Error, Result};
use crate::suite::nbd::client::{Connection, Line, REQUEST_MAX_BYTES};
use crate::suite::nbd::server::Server;
use crate::suite::nbd::start_uzram;

/// Where an export is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    export: String,
    socket: PathBuf,
}

/// An export that somebody serves.
pub(crate) struct Export {
    name: String,
    address: Address,
    size_bytes: u64,
}

impl Address {
    /// Of a URI `nbd+unix:///EXPORT?socket=PATH`; `None` for what is no NBD URI at all.
    ///
    /// # Errors
    /// [`Error::Usage`] for other NBD URIs.
    fn parse(uri: &str) -> Option<Result<Address>> {
        let (scheme, rest) = uri.split_once("://")?;
        if !scheme.starts_with("nbd") {
            return None;
        }
        let parts = (scheme == "nbd+unix")
            .then(|| rest.strip_prefix('/'))
            .flatten();
        let parts = parts.and_then(|rest| rest.split_once("?socket="));
        let address = parts.map(|(export, socket)| Address {
            export: export.to_owned(),
            socket: socket.into(),
        });
        Some(address.ok_or_else(|| {
            let form = "nbd+unix:///EXPORT?socket=PATH";
            Error::Usage(format!("on {uri:?}: of NBD exports only {form}"))
        }))
    }

    fn open(&self) -> Result<Connection> {
        Connection::open(&self.socket, &self.export)
    }
}

impl Export {
    /// The export at a URI; `None` for what is no NBD URI at all.
    pub(crate) fn at(uri: &str) -> Option<Result<Export>> {
        let address = match Address::parse(uri)? {
            Ok(address) => address,
            Err(error) => return Some(Err(error)),
        };
        let opened = address.open();
        Some(opened.map(|connection| Export {
            name: uri.to_owned(),
            size_bytes: connection.size_bytes(),
            address,
        }))
    }

    /// Reads at `offset`, for who must look before anything is written.
    pub(crate) fn peek(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        Channel::read(&mut self.address.open()?, offset, buffer)
    }
}

impl Target for Export {
    fn name(&self) -> &str {
        &self.name
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Not asked of somebody else's server: an initial write there overwrites what is.
    fn make_fresh(&mut self) -> Result<()> {
        Ok(())
    }

    fn open(&self, job: &Job) -> Result<Box<dyn Channel + '_>> {
        open(&self.name, &self.address, job)
    }
}

/// The engine behind a server process of its own.
pub(crate) struct ServedEngine {
    name: String,
    algorithm: String,
    size_bytes: u64,
    server: Server,
}

impl ServedEngine {
    pub(crate) fn start(name: &str, algorithm: &str, size_bytes: u64) -> Result<ServedEngine> {
        Ok(ServedEngine {
            name: name.to_owned(),
            algorithm: algorithm.to_owned(),
            size_bytes,
            server: start_uzram(algorithm, size_bytes, &[])?,
        })
    }
}

impl Target for ServedEngine {
    fn name(&self) -> &str {
        &self.name
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn make_fresh(&mut self) -> Result<()> {
        self.server = start_uzram(&self.algorithm, self.size_bytes, &[])?;
        Ok(())
    }

    fn open(&self, job: &Job) -> Result<Box<dyn Channel + '_>> {
        let address = Address {
            export: self.server.export.clone(),
            socket: self.server.socket(),
        };
        open(&self.name, &address, job)
    }

    fn cpu_elsewhere(&self) -> CpuTime {
        CpuTime::of_process(self.server.pid())
    }
}

fn open<'a>(name: &str, address: &Address, job: &Job) -> Result<Box<dyn Channel + 'a>> {
    const _: () = assert!(REQUEST_MAX_BYTES as u64 <= BLOCK_MAX_BYTES);
    if job.block_bytes > REQUEST_MAX_BYTES as u64 {
        let (block, most) = (job.block_bytes, REQUEST_MAX_BYTES >> 10);
        return Err(Error::Usage(format!(
            "{name}: blocks of {block} bytes; at most {most}K over NBD here"
        )));
    }
    Ok(Box::new(address.open()?))
}

/// One request at a time; whose reply it is needs no cookie.
impl Channel for Connection {
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        Line::read(self, 0, offset, buffer.len());
        self.send()?;
        let length = buffer.len();
        let mut answered = false;
        while !answered {
            self.receive(&|_| Some(length), &mut |reply| {
                buffer.copy_from_slice(reply.data);
                answered = true;
                Ok(())
            })?;
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        Line::write(self, 0, offset, data);
        self.send()?;
        let mut answered = false;
        while !answered {
            self.receive(&|_| Some(0), &mut |_| {
                answered = true;
                Ok(())
            })?;
        }
        Ok(())
    }
}
