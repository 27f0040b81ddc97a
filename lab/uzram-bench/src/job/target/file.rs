//! Files and block devices, by the system calls that the job's test is named after.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;

use super::{Channel, Counts, Job, Target};
use crate::error::{Error, Result};
use crate::job::Calls;
use crate::job::disk::{Disk, discard};
use crate::job::guard::Claim;
use crate::peers::kernel_zram;

/// The buffer of a C library's stream, in bytes: what `st_blksize` says of files here.
const STREAM_BUFFER_BYTES: usize = 4096;

/// A file, or a block device that is nobody else's.
pub(crate) struct File {
    name: String,
    path: PathBuf,
    size_bytes: u64,
    holder: Holder,
}

/// The claim that keeps others off a path until the target is dropped.
enum Holder {
    Claim(Arc<Claim>),
    KernelZram(Arc<kernel_zram::Device>),
}

impl File {
    /// A path that the guard has let pass; a new file gets `size_bytes`, which are holes.
    pub(crate) fn claimed(claim: Arc<Claim>, size_bytes: u64) -> Result<File> {
        let path = claim.path().to_owned();
        if claim.disk() == Disk::File {
            let failed = |error| Error::io(path.display(), error);
            let file = OpenOptions::new().write(true).open(&path).map_err(failed)?;
            file.set_len(size_bytes).map_err(failed)?;
        }
        let size_bytes = match claim.disk() {
            Disk::File => size_bytes,
            Disk::Block => claim.size_bytes(),
        };
        Ok(File {
            name: path.display().to_string(),
            path,
            size_bytes,
            holder: Holder::Claim(claim),
        })
    }

    /// A device of the kernel's zram.
    pub(crate) fn kernel_zram(
        name: &str,
        device: Arc<kernel_zram::Device>,
        size_bytes: u64,
    ) -> File {
        File {
            name: name.to_owned(),
            path: device.path(),
            size_bytes,
            holder: Holder::KernelZram(device),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Target for File {
    fn name(&self) -> &str {
        &self.name
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn make_fresh(&mut self) -> Result<()> {
        let failed = |error: io::Error| Error::io(self.path.display(), error);
        let discarded = match &self.holder {
            Holder::Claim(claim) if claim.disk() == Disk::File => {
                let opened = OpenOptions::new().write(true).open(&self.path);
                let file = opened.map_err(failed)?;
                let emptied = file.set_len(0).and_then(|()| file.set_len(self.size_bytes));
                return emptied.map_err(failed);
            }
            Holder::Claim(claim) => claim.discard(),
            Holder::KernelZram(device) => discard(device.node(), self.size_bytes),
        };
        match discarded {
            // Then an initial write overwrites, and there is nothing to be done about it.
            Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
            result => result.map_err(|error| failed(error.into())),
        }
    }

    fn open(&self, job: &Job) -> Result<Box<dyn Channel + '_>> {
        let mut options = OpenOptions::new();
        options.read(true).write(job.writes());
        // A stream of the C library knows nothing of direct I/O.
        if job.is_direct && job.calls != Calls::Buffered {
            options.custom_flags(OFlags::DIRECT.bits() as i32);
        }
        let opened = options.open(&self.path);
        let file = opened.map_err(|error| Error::io(self.path.display(), error))?;
        Ok(match job.calls {
            Calls::Positioned => Box::new(Handle {
                file,
                path: &self.path,
            }),
            Calls::Seek => Box::new(Cursor(Handle {
                file,
                path: &self.path,
            })),
            Calls::Buffered => Box::new(Stream::new(Handle {
                file,
                path: &self.path,
            })),
        })
    }

    fn counts(&self) -> Result<Counts> {
        match &self.holder {
            Holder::KernelZram(device) => Ok(Counts {
                compressed_bytes: Some(device.compressed_bytes()?),
                ..Counts::default()
            }),
            Holder::Claim(_) => Ok(Counts::default()),
        }
    }
}

/// `pread` and `pwrite`.
struct Handle<'a> {
    file: fs::File,
    path: &'a Path,
}

impl Handle<'_> {
    fn failed(&self, what: &str, offset: u64, error: &io::Error) -> Error {
        let path = self.path.display();
        let hint = match error.raw_os_error() {
            Some(libc::EINVAL) => "; direct I/O wants blocks of whole sectors",
            _ => "",
        };
        Error::Failed(format!("{path}: {what} at {offset}: {error}{hint}"))
    }
}

impl Channel for Handle<'_> {
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let read = self.file.read_exact_at(buffer, offset);
        read.map_err(|error| self.failed("read", offset, &error))
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let written = self.file.write_all_at(data, offset);
        written.map_err(|error| self.failed("write", offset, &error))
    }
}

/// `lseek`, then `read` or `write`.
struct Cursor<'a>(Handle<'a>);

impl Channel for Cursor<'_> {
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let sought = self.0.file.seek(SeekFrom::Start(offset));
        let read = sought.and_then(|_| self.0.file.read_exact(buffer));
        read.map_err(|error| self.0.failed("read", offset, &error))
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let sought = self.0.file.seek(SeekFrom::Start(offset));
        let written = sought.and_then(|_| self.0.file.write_all(data));
        written.map_err(|error| self.0.failed("write", offset, &error))
    }
}

/// `fread` and `fwrite`: small requests gather in a buffer, larger ones go past it, and a position
/// other than the next one is sought.
struct Stream<'a> {
    handle: Handle<'a>,
    buffer: Vec<u8>,
    /// Of `buffer`, what has been read and not been handed out yet.
    unread: std::ops::Range<usize>,
    /// Where the file's own position is.
    position: u64,
    is_writing: bool,
}

impl<'a> Stream<'a> {
    fn new(handle: Handle<'a>) -> Stream<'a> {
        Stream {
            handle,
            buffer: Vec::with_capacity(STREAM_BUFFER_BYTES),
            unread: 0..0,
            position: 0,
            is_writing: false,
        }
    }

    /// Where the next byte of the stream lies.
    fn next(&self) -> u64 {
        match self.is_writing {
            true => self.position + self.buffer.len() as u64,
            false => self.position - self.unread.len() as u64,
        }
    }

    fn seek_to(&mut self, offset: u64, is_writing: bool) -> io::Result<()> {
        if self.is_writing == is_writing && self.next() == offset {
            return Ok(());
        }
        self.flush()?;
        self.unread = 0..0;
        self.buffer.clear();
        self.is_writing = is_writing;
        self.position = self.handle.file.seek(SeekFrom::Start(offset))?;
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.is_writing && !self.buffer.is_empty() {
            self.handle.file.write_all(&self.buffer)?;
            self.position += self.buffer.len() as u64;
            self.buffer.clear();
        }
        Ok(())
    }

    fn put(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.seek_to(offset, true)?;
        if self.buffer.len() + data.len() > STREAM_BUFFER_BYTES {
            self.flush()?;
        }
        if data.len() >= STREAM_BUFFER_BYTES {
            self.handle.file.write_all(data)?;
            self.position += data.len() as u64;
        } else {
            self.buffer.extend_from_slice(data);
        }
        Ok(())
    }

    fn take(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.seek_to(offset, false)?;
        let kept = self.unread.len().min(buffer.len());
        buffer[..kept].copy_from_slice(&self.buffer[self.unread.start..][..kept]);
        self.unread.start += kept;
        let rest = &mut buffer[kept..];
        if rest.is_empty() {
            return Ok(());
        }
        if rest.len() >= STREAM_BUFFER_BYTES {
            self.handle.file.read_exact(rest)?;
            self.position += rest.len() as u64;
            return Ok(());
        }
        self.buffer.resize(STREAM_BUFFER_BYTES, 0);
        let mut filled = 0;
        while filled < rest.len() {
            match self.handle.file.read(&mut self.buffer[filled..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                more => filled += more,
            }
        }
        self.position += filled as u64;
        self.unread = rest.len()..filled;
        rest.copy_from_slice(&self.buffer[..rest.len()]);
        Ok(())
    }
}

impl Channel for Stream<'_> {
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let taken = self.take(offset, buffer);
        taken.map_err(|error| self.handle.failed("fread", offset, &error))
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let put = self.put(offset, data);
        put.map_err(|error| self.handle.failed("fwrite", offset, &error))
    }

    fn finish(&mut self) -> Result<()> {
        let position = self.position;
        let flushed = self.flush();
        flushed.map_err(|error| self.handle.failed("fflush", position, &error))
    }
}
