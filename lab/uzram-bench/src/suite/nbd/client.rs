//! An NBD client for load: one connection, many requests in flight, every byte read checked.
//!
//! It speaks what the protocol calls fixed newstyle, asks with GO, and takes simple replies in any
//! order. A request leaves by itself, in one system call, as the kernel's client, libnbd and qemu
//! send: gathering many into one call would let a server that takes many at once look better than
//! its users find it. Replies are taken as many at a time as have come.
//! <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::error::{Error, Result};

/// How long a server may take for a reply.
const REPLY_LIMIT: Duration = Duration::from_secs(30);
/// Requests in flight on a connection at most. With blocks of 4 KiB everything that is in flight
/// fits the sockets' buffers, so that neither side can wait for the other to read.
pub(crate) const DEPTH_MAX: usize = 32;
/// Largest request, in bytes.
pub(crate) const REQUEST_MAX_BYTES: usize = 1 << 20;
/// Replies to options before ours is refused or acknowledged.
const OPTION_REPLIES_MAX: usize = 64;
/// Largest reply to an option, in bytes.
const OPTION_REPLY_MAX_BYTES: u32 = 64 << 10;

const INIT_MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const FLAG_FIXED_NEWSTYLE: u16 = 1;
const FLAG_NO_ZEROES: u16 = 2;
const OPT_GO: u32 = 7;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;
const REP_FLAG_ERROR: u32 = 1 << 31;
const INFO_EXPORT: u16 = 0;
const CMD_READ: u16 = 0;
const CMD_WRITE: u16 = 1;
const CMD_DISC: u16 = 2;
pub(crate) const REQUEST_BYTES: usize = 28;
pub(crate) const REPLY_BYTES: usize = 16;

/// The direction of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// A reply that came: which request, and the bytes if it was a read.
pub(crate) struct Reply<'a> {
    pub(crate) cookie: u64,
    pub(crate) data: &'a [u8],
}

/// A way to a disk with many requests in flight.
pub(crate) trait Line: Send {
    /// The disk's size in bytes.
    fn size_bytes(&self) -> u64;

    /// Puts a read on its way at the next [`Line::send`]. The low half of a cookie is a number below
    /// [`DEPTH_MAX`] that no other request in flight has.
    fn read(&mut self, cookie: u64, offset: u64, length: usize);

    /// Puts a write on its way at the next [`Line::send`].
    fn write(&mut self, cookie: u64, offset: u64, data: &[u8]);

    /// Sends what was put on its way.
    fn send(&mut self) -> Result<()>;

    /// Waits for replies and hands every whole one to `take`.
    ///
    /// `read_bytes` says how much data the reply to a request brings, `None` for a request that is
    /// not in flight.
    fn receive(
        &mut self,
        read_bytes: &dyn Fn(u64) -> Option<usize>,
        take: &mut dyn FnMut(Reply<'_>) -> Result<()>,
    ) -> Result<()>;
}

/// A connection in the transmission phase.
pub(crate) struct Connection {
    stream: UnixStream,
    size_bytes: u64,
    /// Requests not yet sent.
    outgoing: Vec<u8>,
    incoming: Box<[u8]>,
    /// Bytes of `incoming` that hold replies not yet taken.
    arrived: std::ops::Range<usize>,
}

impl Connection {
    /// Connects to `socket` and opens the export `export`.
    pub(crate) fn open(socket: &Path, export: &str) -> Result<Connection> {
        let failed = |error| Error::io(format!("NBD server at {}", socket.display()), error);
        let mut stream = UnixStream::connect(socket).map_err(failed)?;
        stream.set_read_timeout(Some(REPLY_LIMIT)).map_err(failed)?;
        stream
            .set_write_timeout(Some(REPLY_LIMIT))
            .map_err(failed)?;
        let size_bytes = negotiate(&mut stream, export).map_err(failed)?;
        let capacity = REQUEST_MAX_BYTES.max(DEPTH_MAX * 8192) + REPLY_BYTES;
        Ok(Connection {
            stream,
            size_bytes,
            outgoing: Vec::with_capacity(capacity),
            incoming: vec![0; capacity].into_boxed_slice(),
            arrived: 0..0,
        })
    }

    /// The socket, on which a write has begun of which `length` bytes at most are owed.
    pub(crate) fn into_stream(mut self, length: u32) -> Result<UnixStream> {
        self.request(CMD_WRITE, 0, 0, length);
        self.send()?;
        // The goodbye of this connection's end is payload of that write.
        let stream = self.stream.try_clone();
        stream.map_err(|error| Error::io("NBD server: socket", error))
    }

    fn request(&mut self, command: u16, cookie: u64, offset: u64, length: u32) {
        let mut header = [0; REQUEST_BYTES];
        header[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        header[6..8].copy_from_slice(&command.to_be_bytes());
        header[8..16].copy_from_slice(&cookie.to_be_bytes());
        header[16..24].copy_from_slice(&offset.to_be_bytes());
        header[24..28].copy_from_slice(&length.to_be_bytes());
        self.outgoing.extend_from_slice(&header);
    }
}

impl Line for Connection {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read(&mut self, cookie: u64, offset: u64, length: usize) {
        self.request(CMD_READ, cookie, offset, length as u32);
    }

    fn write(&mut self, cookie: u64, offset: u64, data: &[u8]) {
        self.request(CMD_WRITE, cookie, offset, data.len() as u32);
        self.outgoing.extend_from_slice(data);
    }

    fn send(&mut self) -> Result<()> {
        let sent = self.stream.write_all(&self.outgoing);
        self.outgoing.clear();
        sent.map_err(|error| Error::io("NBD server: send", error))
    }

    fn receive(
        &mut self,
        read_bytes: &dyn Fn(u64) -> Option<usize>,
        take: &mut dyn FnMut(Reply<'_>) -> Result<()>,
    ) -> Result<()> {
        let failed = |error| Error::io("NBD server: receive", error);
        if self.arrived.start > 0 {
            self.incoming.copy_within(self.arrived.clone(), 0);
        }
        let mut end = self.arrived.len();
        end += read_some(&mut self.stream, &mut self.incoming[end..]).map_err(failed)?;
        let mut start = 0;
        while end - start >= REPLY_BYTES {
            let header = &self.incoming[start..start + REPLY_BYTES];
            let (error, cookie) = parse_reply(header)?;
            let Some(length) = read_bytes(cookie) else {
                let text = format!("NBD server: reply to no request (cookie {cookie:#x})");
                return Err(Error::Failed(text));
            };
            if error != 0 {
                return Err(Error::Failed(format!(
                    "NBD server: a request failed, error {error}"
                )));
            }
            if end - start - REPLY_BYTES < length {
                break;
            }
            let data = &self.incoming[start + REPLY_BYTES..][..length];
            take(Reply { cookie, data })?;
            start += REPLY_BYTES + length;
        }
        self.arrived = start..end;
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.outgoing.clear();
        self.request(CMD_DISC, 0, 0, 0);
        // A courtesy; the server also copes with a closed socket.
        let _ = self.stream.write_all(&self.outgoing);
    }
}

/// Magic, error and cookie of a simple reply.
fn parse_reply(header: &[u8]) -> Result<(u32, u64)> {
    let magic = u32_at(header, 0);
    if magic != SIMPLE_REPLY_MAGIC {
        return Err(Error::Failed(format!(
            "NBD server: bad reply magic {magic:#010x}"
        )));
    }
    let cookie = u64::from(u32_at(header, 8)) << 32 | u64::from(u32_at(header, 12));
    Ok((u32_at(header, 4), cookie))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4]
        .iter()
        .fold(0, |word, &byte| word << 8 | u32::from(byte))
}

/// At least one byte.
fn read_some(stream: &mut UnixStream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// The handshake; the export's size in bytes.
fn negotiate(stream: &mut UnixStream, export: &str) -> io::Result<u64> {
    if read_u64(stream)? != INIT_MAGIC || read_u64(stream)? != OPTION_MAGIC {
        return Err(invalid("not a newstyle NBD server"));
    }
    let flags = read_u16(stream)?;
    if flags & FLAG_FIXED_NEWSTYLE == 0 {
        return Err(invalid("the server does not speak fixed newstyle"));
    }
    let ours = u32::from(flags & (FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES));
    let mut message = ours.to_be_bytes().to_vec();
    message.extend(OPTION_MAGIC.to_be_bytes());
    message.extend(OPT_GO.to_be_bytes());
    let name_length = export.len() as u32;
    message.extend((4 + name_length + 2).to_be_bytes());
    message.extend(name_length.to_be_bytes());
    message.extend(export.as_bytes());
    message.extend(0u16.to_be_bytes());
    stream.write_all(&message)?;
    go_replies(stream)
}

fn go_replies(stream: &mut UnixStream) -> io::Result<u64> {
    let mut size_bytes = None;
    for _ in 0..OPTION_REPLIES_MAX {
        if read_u64(stream)? != OPTION_REPLY_MAGIC || read_u32(stream)? != OPT_GO {
            return Err(invalid("malformed reply to GO"));
        }
        let (kind, length) = (read_u32(stream)?, read_u32(stream)?);
        if length > OPTION_REPLY_MAX_BYTES {
            return Err(invalid("oversized reply to GO"));
        }
        let mut data = vec![0; length as usize];
        stream.read_exact(&mut data)?;
        match kind {
            REP_ACK => return size_bytes.ok_or_else(|| invalid("GO told no export size")),
            REP_INFO => size_bytes = export_size(&data).or(size_bytes),
            _ if kind & REP_FLAG_ERROR != 0 => {
                let text = String::from_utf8_lossy(&data).into_owned();
                return Err(invalid(&format!("GO was refused ({kind:#x}) {text}")));
            }
            _ => {}
        }
    }
    Err(invalid("endless replies to GO"))
}

fn export_size(info: &[u8]) -> Option<u64> {
    let (kind, rest) = info.split_first_chunk::<2>()?;
    let size = rest.first_chunk::<8>()?;
    (u16::from_be_bytes(*kind) == INFO_EXPORT).then(|| u64::from_be_bytes(*size))
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

fn read_u16(stream: &mut UnixStream) -> io::Result<u16> {
    let mut bytes = [0; 2];
    stream.read_exact(&mut bytes)?;
    Ok(u16::from_be_bytes(bytes))
}

fn read_u32(stream: &mut UnixStream) -> io::Result<u32> {
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes)?;
    Ok(u32::from_be_bytes(bytes))
}

fn read_u64(stream: &mut UnixStream) -> io::Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes)?;
    Ok(u64::from_be_bytes(bytes))
}
