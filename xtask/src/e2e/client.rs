//! The smallest NBD client that can write and read: for machines where no other is installed, and
//! for a server in a root directory that holds nothing else.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const IO_LIMIT: Duration = Duration::from_secs(20);
const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
const FLAG_FIXED_NEWSTYLE: u16 = 1;
const FLAG_NO_ZEROES: u16 = 2;
const OPT_EXPORT_NAME: u32 = 1;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const CMD_READ: u16 = 0;
const CMD_WRITE: u16 = 1;
const CMD_DISC: u16 = 2;

/// A connection in its transmission phase; one request at a time.
pub struct Client {
    stream: UnixStream,
    pub size_bytes: u64,
}

impl Client {
    /// Connects to the default export.
    ///
    /// # Errors
    /// The system's, or `InvalidData` if the peer does not speak fixed newstyle.
    pub fn connect(socket: &Path) -> io::Result<Client> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(IO_LIMIT))?;
        stream.set_write_timeout(Some(IO_LIMIT))?;
        expect(u64::from_be_bytes(receive(&mut stream)?), NBDMAGIC)?;
        expect(u64::from_be_bytes(receive(&mut stream)?), IHAVEOPT)?;
        let flags =
            u16::from_be_bytes(receive(&mut stream)?) & (FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES);
        expect(
            u64::from(flags),
            u64::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES),
        )?;
        stream.write_all(&u32::from(flags).to_be_bytes())?;
        stream.write_all(&IHAVEOPT.to_be_bytes())?;
        stream.write_all(&OPT_EXPORT_NAME.to_be_bytes())?;
        stream.write_all(&0u32.to_be_bytes())?;
        let size_bytes = u64::from_be_bytes(receive(&mut stream)?);
        let _transmission_flags: [u8; 2] = receive(&mut stream)?;
        Ok(Client { stream, size_bytes })
    }

    /// Writes `data` from `offset`, in bytes, and waits for the reply.
    ///
    /// # Errors
    /// The system's, or the errno of the reply.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.request(CMD_WRITE, offset, data.len())?;
        self.stream.write_all(data)?;
        self.reply()
    }

    /// Fills `buffer` from `offset`, in bytes.
    ///
    /// # Errors
    /// The system's, or the errno of the reply.
    pub fn read(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.request(CMD_READ, offset, buffer.len())?;
        self.reply()?;
        self.stream.read_exact(buffer)
    }

    fn request(&mut self, kind: u16, offset: u64, length: usize) -> io::Result<()> {
        let length = u32::try_from(length).map_err(io::Error::other)?;
        let mut header = Vec::with_capacity(28);
        header.extend(REQUEST_MAGIC.to_be_bytes());
        header.extend(0u16.to_be_bytes());
        header.extend(kind.to_be_bytes());
        header.extend(offset.to_be_bytes()); // The cookie.
        header.extend(offset.to_be_bytes());
        header.extend(length.to_be_bytes());
        self.stream.write_all(&header)
    }

    fn reply(&mut self) -> io::Result<()> {
        let magic = u32::from_be_bytes(receive(&mut self.stream)?);
        expect(u64::from(magic), u64::from(SIMPLE_REPLY_MAGIC))?;
        let error = u32::from_be_bytes(receive(&mut self.stream)?);
        let _cookie: [u8; 8] = receive(&mut self.stream)?;
        match error {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error as i32)),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.request(CMD_DISC, 0, 0);
    }
}

/// Writes and reads through `socket` without any program of the system.
///
/// # Errors
/// If the device is not of `size_bytes`, or a request fails, or other bytes come back.
pub fn write_and_read(socket: &Path, size_bytes: u64) -> Result<(), String> {
    const OFFSET: u64 = 12_345;
    let exchange = || -> std::io::Result<()> {
        let mut client = Client::connect(socket)?;
        if client.size_bytes != size_bytes {
            let message = format!("the device has {} bytes", client.size_bytes);
            return Err(std::io::Error::other(message));
        }
        let data: Vec<u8> = (0..300_000u32).map(|i| (i / 5 % 251) as u8).collect();
        let mut back = vec![0; data.len()];
        client.write(OFFSET, &data)?;
        client.read(OFFSET, &mut back)?;
        if back != data {
            return Err(std::io::Error::other("other bytes came back"));
        }
        Ok(())
    };
    exchange().map_err(|error| format!("{}: {error}", socket.display()))
}

fn receive<const N: usize>(stream: &mut UnixStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn expect(found: u64, wanted: u64) -> io::Result<()> {
    if found == wanted {
        return Ok(());
    }
    let message = format!("the server sent {found:#x} where {wanted:#x} belongs");
    Err(io::Error::new(io::ErrorKind::InvalidData, message))
}
