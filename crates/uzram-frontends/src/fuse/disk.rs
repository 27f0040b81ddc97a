//! The file system that the kernel sees: a directory with one file, whose bytes are the device's.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::io::Errno;
use uzram::{Bio, BlockDevice, Zeroing};

use super::gate::Gate;
use super::serve::Serve;
use super::wire::{Attributes, Entries, Limits, Message, Reply, Request};
use super::{BACKGROUND_MAX, REQUEST_BYTES_MAX};

/// The time for which the kernel may remember what the file is, also once its server is gone: a loop device
/// over it is only known for ours as long as the kernel knows. A change of its size is said.
const VALID: Duration = Duration::from_secs(24 * 3600);
const DIRECTORY: u64 = 1;
const FILE: u64 = 2;
/// Kind and permissions of directory and file, from `linux/stat.h`.
const DIRECTORY_MODE: u32 = 0o040_700;
const FILE_MODE: u32 = 0o100_600;

/// Bits of `fallocate`'s mode, from `linux/falloc.h`.
const KEEP_SIZE: u32 = 0x01;
const PUNCH_HOLE: u32 = 0x02;
const ZERO_RANGE: u32 = 0x10;

/// The device as a file.
pub(super) struct Disk {
    device: Arc<dyn BlockDevice>,
    name: String,
    /// The file's owner.
    owner: (u32, u32),
    made: SystemTime,
    gate: Arc<Gate>,
}

/// The reply to a request, or its errno.
type Outcome<'b> = Result<Reply<'b>, Errno>;

fn limits() -> Limits {
    Limits {
        request_bytes_max: REQUEST_BYTES_MAX,
        page_bytes: uzram::system_page::size_bytes() as u32,
        background_max: BACKGROUND_MAX,
    }
}

impl Serve for Disk {
    fn answer<'b>(&self, buffer: &'b mut [u8], message_bytes: usize) -> Option<Reply<'b>> {
        let message = match Message::received(buffer, message_bytes) {
            Ok(message) => message,
            Err(malformed) => return malformed.reply(),
        };
        let (unique, node) = (message.unique, message.node);
        let reply = match message.request {
            Request::Forget => return None,
            Request::Read {
                offset, size_bytes, ..
            } => self.read(unique, offset, size_bytes, buffer),
            Request::ReadDirectory { offset, size_bytes } => {
                let length = buffer.len().min(size_bytes as usize);
                Ok(self.read_directory(unique, offset, &mut buffer[..length]))
            }
            Request::Init(offered) => Ok(Reply::greeting(unique, &offered, limits())),
            Request::Lookup(name) => self.look_up(unique, node, name),
            Request::Attributes => self.attributes(unique, node),
            Request::SetAttributes {
                changes_access,
                size_bytes,
            } => self.set_attributes(unique, node, changes_access, size_bytes),
            Request::Open { .. } => self.open(unique, node),
            Request::Release { .. } => {
                self.gate.leave();
                Ok(Reply::done(unique))
            }
            Request::OpenDirectory => Ok(Reply::opened_directory(unique)),
            Request::ReleaseDirectory | Request::Destroy => Ok(Reply::done(unique)),
            Request::Write { offset, data } => self.write(unique, offset, data),
            Request::Sync => self.submit(Bio::Flush).map(|()| Reply::done(unique)),
            Request::Allocate {
                offset,
                length,
                mode,
            } => {
                let done = self.allocate(offset, length, mode);
                done.map(|()| Reply::done(unique))
            }
            Request::FileSystem => Ok(self.file_system(unique)),
            Request::ChangeNames => Err(Errno::PERM),
            Request::Ioctl => Err(Errno::NOTTY),
            Request::Other => Err(Errno::NOSYS),
        };
        Some(reply.unwrap_or_else(|errno| Reply::error(unique, errno)))
    }

    fn request_bytes_max(&self) -> usize {
        REQUEST_BYTES_MAX as usize
    }
}

impl Disk {
    pub fn new(device: Arc<dyn BlockDevice>, name: &str, gate: Arc<Gate>) -> Disk {
        Disk {
            device,
            name: name.into(),
            owner: (
                rustix::process::geteuid().as_raw(),
                rustix::process::getegid().as_raw(),
            ),
            made: SystemTime::now(),
            gate,
        }
    }

    fn size_bytes(&self) -> u64 {
        self.device.geometry().size_bytes
    }

    fn look_up<'b>(&self, unique: u64, parent: u64, name: &[u8]) -> Outcome<'b> {
        match parent == DIRECTORY && name == self.name.as_bytes() {
            true => Ok(Reply::entry(unique, &self.describe(FILE)?)),
            false => Err(Errno::NOENT),
        }
    }

    fn attributes<'b>(&self, unique: u64, node: u64) -> Outcome<'b> {
        Ok(Reply::attributes(unique, &self.describe(node)?))
    }

    /// Changes nothing: size 0 is a request of `O_TRUNC`, which leaves a block device as it is,
    /// and times are not kept.
    fn set_attributes<'b>(
        &self,
        unique: u64,
        node: u64,
        changes_access: bool,
        size_bytes: Option<u64>,
    ) -> Outcome<'b> {
        let found = self.describe(node)?;
        if size_bytes.is_some_and(|size| size != 0 && size != self.size_bytes()) {
            return Err(Errno::INVAL);
        }
        match changes_access {
            true => Err(Errno::PERM),
            false => Ok(Reply::attributes(unique, &found)),
        }
    }

    fn open<'b>(&self, unique: u64, node: u64) -> Outcome<'b> {
        if node != FILE {
            return Err(Errno::NOENT);
        }
        match self.gate.enter() {
            true => Ok(Reply::opened(unique, 0)),
            false => Err(Errno::BUSY),
        }
    }

    fn read<'b>(&self, unique: u64, offset: u64, bytes: u32, buffer: &'b mut [u8]) -> Outcome<'b> {
        // A short reply would be taken for the end of the file.
        if bytes > REQUEST_BYTES_MAX || bytes as usize > buffer.len() {
            return Err(Errno::INVAL);
        }
        // At or past the end a device has nothing to be asked for.
        let buffer = &mut buffer[..self.within(offset, bytes.into()) as usize];
        if !buffer.is_empty() {
            self.submit(Bio::Read { offset, buffer })?;
        }
        Ok(Reply::data(unique, buffer))
    }

    fn write<'b>(&self, unique: u64, offset: u64, data: &[u8]) -> Outcome<'b> {
        let length = self.within(offset, data.len() as u64) as usize;
        if length == 0 && !data.is_empty() {
            return Err(Errno::NOSPC);
        }
        let data = &data[..length];
        self.submit(Bio::Write { offset, data })?;
        Ok(Reply::written(unique, length as u32))
    }

    fn read_directory<'b>(&self, unique: u64, offset: u64, buffer: &'b mut [u8]) -> Reply<'b> {
        let mut entries = Entries::new(buffer);
        let names = [
            (DIRECTORY, DIRECTORY_MODE, "."),
            (DIRECTORY, DIRECTORY_MODE, ".."),
            (FILE, FILE_MODE, &self.name),
        ];
        let seen = usize::try_from(offset).unwrap_or(usize::MAX);
        for (index, (node, mode, name)) in names.into_iter().enumerate().skip(seen) {
            if !entries.add(node, index as u64 + 1, mode, name.as_bytes()) {
                break;
            }
        }
        Reply::data(unique, entries.into_bytes())
    }

    fn file_system<'b>(&self, unique: u64) -> Reply<'b> {
        let geometry = self.device.geometry();
        let block_bytes = geometry.preferred_block_bytes;
        let blocks = geometry.size_bytes.div_ceil(block_bytes.into());
        let files = 2;
        Reply::file_system(unique, blocks, files, block_bytes)
    }

    fn describe(&self, node: u64) -> Result<Attributes, Errno> {
        let (mode, links, size_bytes) = match node {
            DIRECTORY => (DIRECTORY_MODE, 2, 0),
            FILE => (FILE_MODE, 1, self.size_bytes()),
            _ => return Err(Errno::NOENT),
        };
        let since = self.made.duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Attributes {
            node,
            size_bytes,
            mode,
            links,
            uid: self.owner.0,
            gid: self.owner.1,
            block_bytes: self.device.geometry().preferred_block_bytes,
            time: (since.as_secs(), since.subsec_nanos()),
            valid_s: VALID.as_secs(),
        })
    }

    /// The part of `length` bytes from `offset` on that lies within the file.
    fn within(&self, offset: u64, length: u64) -> u64 {
        length.min(self.size_bytes().saturating_sub(offset))
    }

    /// Hands a request to the device. A request that panics fails, and the worker goes on.
    fn submit(&self, bio: Bio<'_>) -> Result<(), Errno> {
        match catch_unwind(AssertUnwindSafe(|| self.device.submit(bio))) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Errno::from_raw_os_error(error.errno())),
            Err(_panic) => Err(Errno::IO),
        }
    }

    fn allocate(&self, offset: u64, length: u64, mode: u32) -> Result<(), Errno> {
        let end = offset.checked_add(length).ok_or(Errno::INVAL)?;
        let is_inside = end <= self.size_bytes();
        let length = self.within(offset, length);
        let zero = |zeroing| {
            let bio = Bio::Zero {
                offset,
                length,
                zeroing,
            };
            match length {
                0 => Ok(()),
                _ => self.submit(bio),
            }
        };
        match mode & !KEEP_SIZE {
            // A hole reads as zeroes to its last byte, so it is more than a trim, which would leave
            // pages alone that it covers in part.
            PUNCH_HOLE if mode & KEEP_SIZE != 0 => zero(Zeroing::MayPunch),
            ZERO_RANGE if is_inside || mode & KEEP_SIZE != 0 => zero(Zeroing::NoHole),
            // Room for compressed pages cannot be promised, as their size is not known.
            0 if is_inside || mode & KEEP_SIZE != 0 => Ok(()),
            ZERO_RANGE | 0 => Err(Errno::NOSPC),
            _ => Err(Errno::OPNOTSUPP),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_is_shut_only_while_nobody_is_in() {
        let gate = Gate::default();
        assert!(gate.enter());
        assert!(!gate.shut());
        assert_eq!(gate.opens(), 1);
        gate.leave();
        gate.leave();
        assert_eq!(gate.opens(), 0);
        assert!(gate.shut());
        assert!(gate.shut());
        assert!(!gate.enter());
        assert_eq!(gate.opens(), 0);
        gate.reopen();
        assert!(gate.enter());
    }
}
