//! Files and block devices, by the system calls that the job's test is named after.

use std::fs::{self, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
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
        let path = self.path.as_path();
        Ok(match job.calls {
            Calls::Positioned => Box::new(Handle { file, path }),
            Calls::Seek => Box::new(Cursor(Handle { file, path })),
            Calls::Buffered => Box::new(Stream::new(file, path)?),
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

fn failed(path: &Path, what: &str, offset: u64, error: &io::Error) -> Error {
    let path = path.display();
    let hint = match error.raw_os_error() {
        Some(libc::EINVAL) => "; direct I/O wants blocks of whole sectors",
        _ => "",
    };
    Error::Failed(format!("{path}: {what} at {offset}: {error}{hint}"))
}

impl Channel for Handle<'_> {
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let read = self.file.read_exact_at(buffer, offset);
        read.map_err(|error| failed(self.path, "read", offset, &error))
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let written = self.file.write_all_at(data, offset);
        written.map_err(|error| failed(self.path, "write", offset, &error))
    }
}

/// `lseek`, then `read` or `write`.
struct Cursor<'a>(Handle<'a>);

impl Channel for Cursor<'_> {
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let sought = self.0.file.seek(SeekFrom::Start(offset));
        let read = sought.and_then(|_| self.0.file.read_exact(buffer));
        read.map_err(|error| failed(self.0.path, "read", offset, &error))
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let sought = self.0.file.seek(SeekFrom::Start(offset));
        let written = sought.and_then(|_| self.0.file.write_all(data));
        written.map_err(|error| failed(self.0.path, "write", offset, &error))
    }
}

/// `fread` and `fwrite`: small requests gather in a buffer, larger ones go past it, and a position
/// other than the next one is sought.
struct Stream<'a> {
    path: &'a Path,
    reader: BufReader<fs::File>,
    writer: BufWriter<fs::File>,
    /// The file's position, and whether the writer left it there; both have one.
    next: Option<(u64, bool)>,
}

impl<'a> Stream<'a> {
    fn new(file: fs::File, path: &'a Path) -> Result<Stream<'a>> {
        let same = file.try_clone();
        let same = same.map_err(|error| Error::io(path.display(), error))?;
        Ok(Stream {
            path,
            reader: BufReader::with_capacity(STREAM_BUFFER_BYTES, same),
            writer: BufWriter::with_capacity(STREAM_BUFFER_BYTES, file),
            next: None,
        })
    }

    fn seek_to(&mut self, offset: u64, is_writing: bool) -> io::Result<()> {
        if self.next.take() == Some((offset, is_writing)) {
            return Ok(());
        }
        self.writer.flush()?;
        let start = SeekFrom::Start(offset);
        match is_writing {
            true => self.writer.seek(start)?,
            false => self.reader.seek(start)?,
        };
        Ok(())
    }
}

impl Channel for Stream<'_> {
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let sought = self.seek_to(offset, false);
        let read = sought.and_then(|()| self.reader.read_exact(buffer));
        read.map_err(|error| failed(self.path, "fread", offset, &error))?;
        self.next = Some((offset + buffer.len() as u64, false));
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let sought = self.seek_to(offset, true);
        let written = sought.and_then(|()| self.writer.write_all(data));
        written.map_err(|error| failed(self.path, "fwrite", offset, &error))?;
        self.next = Some((offset + data.len() as u64, true));
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let offset = self.next.map_or(0, |(offset, _)| offset);
        let flushed = self.writer.flush();
        flushed.map_err(|error| failed(self.path, "fflush", offset, &error))
    }
}
