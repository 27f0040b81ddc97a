//! A client made of bytes, written from the protocol document and not from the crate.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const WRITE_ZEROES: u16 = 6;

pub const FUA: u16 = 1;
pub const NO_HOLE: u16 = 2;
pub const FAST_ZERO: u16 = 16;

/// No test waits longer for a server that says nothing.
const TIMEOUT: Duration = Duration::from_secs(10);

pub trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

pub fn unix(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    stream
}

pub fn tcp(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

pub fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend_from_slice(&number.to_be_bytes());
    bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// The data of INFO and GO.
pub fn info_data(name: &str, requests: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&(requests.len() as u16).to_be_bytes());
    for request in requests {
        data.extend_from_slice(&request.to_be_bytes());
    }
    data
}

pub fn request(flags: u16, command: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = vec![0x25, 0x60, 0x95, 0x13];
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&command.to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes
}

/// Reads all that comes until the server closes.
pub fn until_closed(stream: &mut impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("{error}"),
    }
    bytes
}

pub fn exactly<const N: usize>(stream: &mut impl Read) -> [u8; N] {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// One reply to an option: its kind and data.
pub fn option_reply(stream: &mut impl Read, option: u32) -> (u32, Vec<u8>) {
    assert_eq!(exactly(stream), 0x0003_e889_0455_65a9_u64.to_be_bytes());
    assert_eq!(exactly(stream), option.to_be_bytes());
    let kind = u32::from_be_bytes(exactly(stream));
    let mut data = vec![0; u32::from_be_bytes(exactly(stream)) as usize];
    stream.read_exact(&mut data).unwrap();
    (kind, data)
}

/// A client in the transmission phase.
pub struct Client {
    pub stream: Box<dyn Stream>,
    pub flags: u16,
    cookie: u64,
}

impl Client {
    pub fn go(mut stream: impl Stream + 'static, name: &str) -> Client {
        assert_eq!(&exactly::<18>(&mut stream), b"NBDMAGICIHAVEOPT\0\x03");
        stream.write_all(&[0, 0, 0, 3]).unwrap();
        stream.write_all(&option(7, &info_data(name, &[]))).unwrap();
        let (kind, data) = option_reply(&mut stream, 7);
        assert_eq!(
            (kind, data.len()),
            (3, 12),
            "{}",
            String::from_utf8_lossy(&data)
        );
        let flags = u16::from_be_bytes(data[10..].try_into().unwrap());
        assert_eq!(option_reply(&mut stream, 7), (1, Vec::new()));
        Client {
            stream: Box::new(stream),
            flags,
            cookie: 0x1000,
        }
    }

    /// Sends a request, returns its cookie.
    pub fn send(
        &mut self,
        flags: u16,
        command: u16,
        offset: u64,
        length: u32,
        payload: &[u8],
    ) -> u64 {
        self.cookie += 1;
        let mut bytes = request(flags, command, self.cookie, offset, length);
        bytes.extend_from_slice(payload);
        self.stream.write_all(&bytes).unwrap();
        self.cookie
    }

    /// The next reply's cookie and error.
    pub fn reply(&mut self) -> (u64, u32) {
        assert_eq!(exactly(&mut self.stream), [0x67, 0x44, 0x66, 0x98]);
        let error = u32::from_be_bytes(exactly(&mut self.stream));
        (u64::from_be_bytes(exactly(&mut self.stream)), error)
    }

    /// Sends a request without reply data and returns its error.
    pub fn call(&mut self, flags: u16, command: u16, offset: u64, length: u32) -> u32 {
        let cookie = self.send(flags, command, offset, length, &[]);
        let (replied, error) = self.reply();
        assert_eq!(replied, cookie);
        error
    }

    pub fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> u32 {
        let cookie = self.send(flags, WRITE, offset, data.len() as u32, data);
        let (replied, error) = self.reply();
        assert_eq!(replied, cookie);
        error
    }

    pub fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, u32> {
        match self.call(0, READ, offset, length as u32) {
            0 => Ok(self.data(length)),
            error => Err(error),
        }
    }

    pub fn data(&mut self, length: usize) -> Vec<u8> {
        let mut data = vec![0; length];
        self.stream.read_exact(&mut data).unwrap();
        data
    }
}
