//! The least of an NBD client: one export, one request at a time.

use std::io::{Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::support::PATIENCE;

const WRITE: u16 = 1;
const READ: u16 = 0;
const EXPORT_NAME: u32 = 1;

pub struct NbdClient {
    pub stream: UnixStream,
}

impl NbdClient {
    pub fn connect(socket: &Path, export: &str) -> Result<NbdClient> {
        let mut stream = UnixStream::connect(socket)?;
        // A socket that nobody serves any more takes connections as long as somebody holds it.
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        assert_eq!(&greeting[..8], b"NBDMAGIC");
        stream.write_all(&3u32.to_be_bytes())?;
        stream.write_all(b"IHAVEOPT")?;
        stream.write_all(&EXPORT_NAME.to_be_bytes())?;
        stream.write_all(&(export.len() as u32).to_be_bytes())?;
        stream.write_all(export.as_bytes())?;
        let mut size_and_flags = [0; 10];
        stream.read_exact(&mut size_and_flags)?;
        Ok(NbdClient { stream })
    }

    pub fn request(&mut self, kind: u16, offset: u64, length: u32, data: &[u8]) -> Result<()> {
        let mut request = Vec::from(0x2560_9513u32.to_be_bytes());
        request.extend(0u16.to_be_bytes());
        request.extend(kind.to_be_bytes());
        request.extend(7u64.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(length.to_be_bytes());
        request.extend(data);
        self.stream.write_all(&request)
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<u32> {
        self.request(WRITE, offset, data.len() as u32, data)?;
        self.error()
    }

    pub fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>> {
        self.ask_read(offset, length)?;
        assert_eq!(self.error()?, 0);
        let mut data = vec![0; length as usize];
        self.stream.read_exact(&mut data)?;
        Ok(data)
    }

    /// The errno of a read that fails.
    pub fn read_fails(&mut self, offset: u64, length: u32) -> Result<u32> {
        self.ask_read(offset, length)?;
        let errno = self.error()?;
        assert_ne!(errno, 0);
        Ok(errno)
    }

    pub fn ask_read(&mut self, offset: u64, length: u32) -> Result<()> {
        self.request(READ, offset, length, &[])
    }

    fn error(&mut self) -> Result<u32> {
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        assert_eq!(reply[..4], 0x6744_6698u32.to_be_bytes());
        Ok(u32::from_be_bytes([reply[4], reply[5], reply[6], reply[7]]))
    }
}
