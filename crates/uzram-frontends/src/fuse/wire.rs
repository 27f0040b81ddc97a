//! The kernel's messages and the replies as bytes: protocol 7 of `linux/fuse.h`, as far as a
//! directory with one file, or a tree of small ones, needs it.
//!
//! The parser is total: any bytes give a request or [`Malformed`], and the ranges of a request lie
//! within the message.

use rustix::io::Errno;

/// Features that the reply to the kernel's greeting asks for, where the kernel offers them.
const WANTED: u64 = ASYNC_READ
    | BIG_WRITES
    | ASYNC_DIO
    | PARALLEL_DIROPS
    | MAX_PAGES
    | INIT_EXT
    | DIRECT_IO_ALLOW_MMAP;
const ASYNC_READ: u64 = 1 << 0;
const BIG_WRITES: u64 = 1 << 5;
const ASYNC_DIO: u64 = 1 << 15;
const PARALLEL_DIROPS: u64 = 1 << 18;
const MAX_PAGES: u64 = 1 << 22;
const INIT_EXT: u64 = 1 << 30;
const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;

/// The protocol's version. Of the two minor versions the lower one counts.
const MAJOR: u32 = 7;
const MINOR: u32 = 36;
/// Linux 3.15's. Before it, a reply to the greeting is shorter.
const MINOR_MIN: u32 = 23;

const HEADER_BYTES: usize = 40;
/// The least buffer that holds any message without data; the kernel demands 8 KiB.
pub(super) const MESSAGE_BYTES_MIN: usize = 8192;
/// Bytes of a reply without its data, its header included.
pub(super) const REPLY_BYTES_MAX: usize = REPLY_HEADER_BYTES + 128;
const REPLY_HEADER_BYTES: usize = 16;
/// Bytes of a directory's entry before its name. An entry's length is a multiple of the second.
const ENTRY_BYTES: usize = 24;
const ENTRY_ALIGNMENT: usize = 8;

/// Bits that name the attributes of a change.
const CHANGES_MODE: u32 = 1 << 0;
const CHANGES_OWNER: u32 = 1 << 1 | 1 << 2;
const CHANGES_SIZE: u32 = 1 << 3;

/// Bits of a reply to an open.
const OPENED_DIRECT: u32 = 1 << 0;
const OPENED_PARALLEL_WRITES: u32 = 1 << 6;

/// A message of the kernel.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Message<'a> {
    /// The number of the request, repeated in its reply.
    pub unique: u64,
    /// The file or directory of the request.
    pub node: u64,
    pub request: Request<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request<'a> {
    Init(Greeting),
    Lookup(&'a [u8]),
    Attributes,
    SetAttributes {
        changes_access: bool,
        size_bytes: Option<u64>,
    },
    Open {
        flags: u32,
    },
    Release {
        handle: u64,
    },
    OpenDirectory,
    ReleaseDirectory,
    ReadDirectory {
        offset: u64,
        size_bytes: u32,
    },
    Read {
        handle: u64,
        offset: u64,
        size_bytes: u32,
    },
    Write {
        offset: u64,
        data: &'a [u8],
    },
    Sync,
    Allocate {
        offset: u64,
        length: u64,
        mode: u32,
    },
    FileSystem,
    /// Would make, remove or rename a file.
    ChangeNames,
    Ioctl,
    /// The kernel is done with the file. It expects a reply.
    Destroy,
    /// Expects no reply.
    Forget,
    /// Answered with "no such call". The kernel then does without.
    Other,
}

/// The kernel's offer in its greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    major: u32,
    minor: u32,
    readahead_bytes_max: u32,
    flags: u64,
}

/// A malformed message. Without `unique` it cannot even be answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed {
    pub unique: Option<u64>,
}

impl Malformed {
    /// The reply with `EINVAL`; none if the message does not say whose it is.
    pub fn reply(self) -> Option<Reply<'static>> {
        let unique = self.unique?;
        Some(Reply::error(unique, Errno::INVAL))
    }
}

impl<'a> Message<'a> {
    /// The message of so many bytes at the start of a buffer.
    pub fn received(buffer: &'a [u8], bytes: usize) -> Result<Message<'a>, Malformed> {
        Message::parse(&buffer[..bytes.min(buffer.len())])
    }

    pub fn parse(bytes: &'a [u8]) -> Result<Message<'a>, Malformed> {
        let nothing = Malformed { unique: None };
        let Some((header, _)) = bytes.split_at_checked(HEADER_BYTES) else {
            return Err(nothing);
        };
        let mut fields = Fields(header);
        let read = (|| Some((fields.u32()?, fields.u32()?, fields.u64()?, fields.u64()?)))();
        let Some((length, opcode, unique, node)) = read else {
            return Err(nothing);
        };
        // What follows the body are extensions, which nobody asked for.
        let body = bytes.get(HEADER_BYTES..length as usize);
        let request = body.filter(|_| length as usize == bytes.len());
        match request.and_then(|body| Request::parse(opcode, body)) {
            Some(request) => Ok(Message {
                unique,
                node,
                request,
            }),
            None => Err(Malformed {
                unique: Some(unique),
            }),
        }
    }
}

/// The number by which the file is open more often once `message` is carried out.
pub(super) fn opens(message: &[u8]) -> i64 {
    match message.get(4..8) {
        // OPEN and RELEASE.
        Some([14, 0, 0, 0]) => 1,
        Some([18, 0, 0, 0]) => -1,
        _ => 0,
    }
}

impl<'a> Request<'a> {
    fn parse(opcode: u32, body: &'a [u8]) -> Option<Request<'a>> {
        let mut fields = Fields(body);
        Some(match opcode {
            1 => Request::Lookup(fields.name()?),
            // FORGET, NOTIFY_REPLY, BATCH_FORGET.
            2 | 41 | 42 => Request::Forget,
            3 => Request::Attributes,
            4 => fields.set_attributes()?,
            // SYMLINK, MKNOD, MKDIR, UNLINK, RMDIR, RENAME, LINK, CREATE, RENAME2.
            6 | 8..=13 | 35 | 45 => Request::ChangeNames,
            14 => Request::Open {
                flags: fields.u32()?,
            },
            15 => {
                let (handle, offset, size_bytes) = fields.place()?;
                Request::Read {
                    handle,
                    offset,
                    size_bytes,
                }
            }
            16 => fields.write()?,
            17 => Request::FileSystem,
            18 => Request::Release {
                handle: fields.u64()?,
            },
            20 => Request::Sync,
            26 => Request::Init(fields.greeting()?),
            27 => Request::OpenDirectory,
            28 => {
                let (_, offset, size_bytes) = fields.place()?;
                Request::ReadDirectory { offset, size_bytes }
            }
            29 => Request::ReleaseDirectory,
            38 => Request::Destroy,
            39 => Request::Ioctl,
            43 => {
                fields.skip(8)?;
                Request::Allocate {
                    offset: fields.u64()?,
                    length: fields.u64()?,
                    mode: fields.u32()?,
                }
            }
            // Among them FLUSH: closing a file makes nothing durable. ACCESS: the kernel checks the mode
            // by itself. INTERRUPT: what has begun ends soon.
            _ => Request::Other,
        })
    }
}

/// The rest of a message that is being read.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn skip(&mut self, bytes: usize) -> Option<()> {
        self.0 = self.0.get(bytes..)?;
        Some(())
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }

    /// A name ends with a zero byte.
    fn name(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        self.0.get(..end)
    }

    /// Handle, offset and length of a read.
    fn place(&mut self) -> Option<(u64, u64, u32)> {
        Some((self.u64()?, self.u64()?, self.u32()?))
    }

    fn write(&mut self) -> Option<Request<'a>> {
        let (_, offset, size_bytes) = self.place()?;
        self.skip(20)?;
        let data = self.0.get(..size_bytes as usize)?;
        Some(Request::Write { offset, data })
    }

    fn set_attributes(&mut self) -> Option<Request<'a>> {
        let changed = self.u32()?;
        self.skip(12)?;
        let size_bytes = self.u64()?;
        Some(Request::SetAttributes {
            changes_access: changed & (CHANGES_MODE | CHANGES_OWNER) != 0,
            size_bytes: (changed & CHANGES_SIZE != 0).then_some(size_bytes),
        })
    }

    fn greeting(&mut self) -> Option<Greeting> {
        let (major, minor) = (self.u32()?, self.u32()?);
        let readahead_bytes_max = self.u32()?;
        let low = u64::from(self.u32()?);
        // Kernels before 5.17 have no more.
        let high = match low & INIT_EXT {
            0 => 0,
            _ => self.u32().map_or(0, u64::from),
        };
        Some(Greeting {
            major,
            minor,
            readahead_bytes_max,
            flags: high << 32 | low,
        })
    }
}

/// The attributes of a file or directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attributes {
    pub node: u64,
    pub size_bytes: u64,
    /// Kind and permissions.
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub block_bytes: u32,
    /// All its times, in seconds since 1970 and nanoseconds.
    pub time: (u64, u32),
    /// The time for which the kernel may remember all this, in seconds.
    pub valid_s: u64,
}

/// The bounds that the reply to the greeting sets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub request_bytes_max: u32,
    pub page_bytes: u32,
    pub background_max: u16,
}

/// A reply. Its data is not copied.
#[derive(Debug)]
pub(super) struct Reply<'a> {
    head: [u8; REPLY_BYTES_MAX],
    head_bytes: usize,
    pub data: &'a [u8],
}

impl<'a> Reply<'a> {
    /// A reply without content: success.
    pub fn done(unique: u64) -> Reply<'a> {
        Reply::new(unique, 0)
    }

    pub fn error(unique: u64, errno: Errno) -> Reply<'a> {
        Reply::new(unique, -errno.raw_os_error())
    }

    pub fn data(unique: u64, data: &'a [u8]) -> Reply<'a> {
        let mut reply = Reply::new(unique, 0);
        reply.data = data;
        reply.count(data.len());
        reply
    }

    /// The reply to a look-up of a file.
    pub fn entry(unique: u64, found: &Attributes) -> Reply<'a> {
        let mut reply = Reply::new(unique, 0);
        let generation = 0;
        for field in [found.node, generation, found.valid_s, found.valid_s, 0] {
            reply.u64(field);
        }
        reply.attributes_follow(found)
    }

    pub fn attributes(unique: u64, found: &Attributes) -> Reply<'a> {
        let mut reply = Reply::new(unique, 0);
        reply.u64(found.valid_s);
        reply.u64(0);
        reply.attributes_follow(found)
    }

    fn attributes_follow(mut self, found: &Attributes) -> Reply<'a> {
        let (seconds, nanoseconds) = found.time;
        let blocks = found.size_bytes.div_ceil(512);
        for field in [found.node, found.size_bytes, blocks] {
            self.u64(field);
        }
        (0..3).for_each(|_| self.u64(seconds));
        (0..3).for_each(|_| self.u32(nanoseconds));
        let (device, flags) = (0, 0);
        for field in [
            found.mode,
            found.links,
            found.uid,
            found.gid,
            device,
            found.block_bytes,
            flags,
        ] {
            self.u32(field);
        }
        self
    }

    pub fn opened(unique: u64, handle: u64) -> Reply<'a> {
        Reply::opened_with(unique, handle, OPENED_DIRECT | OPENED_PARALLEL_WRITES)
    }

    pub fn opened_directory(unique: u64) -> Reply<'a> {
        Reply::opened_with(unique, 0, 0)
    }

    fn opened_with(unique: u64, handle: u64, flags: u32) -> Reply<'a> {
        let mut reply = Reply::new(unique, 0);
        reply.u64(handle);
        reply.u32(flags);
        reply.u32(0);
        reply
    }

    pub fn written(unique: u64, bytes: u32) -> Reply<'a> {
        let mut reply = Reply::new(unique, 0);
        reply.u32(bytes);
        reply.u32(0);
        reply
    }

    /// A full file system of so many blocks and files.
    pub fn file_system(unique: u64, blocks: u64, files: u64, block_bytes: u32) -> Reply<'a> {
        let mut reply = Reply::new(unique, 0);
        for field in [blocks, 0, 0, files, 0] {
            reply.u64(field);
        }
        let name_bytes_max = 255;
        for field in [block_bytes, name_bytes_max, block_bytes, 0] {
            reply.u32(field);
        }
        (0..3).for_each(|_| reply.u64(0));
        reply
    }

    /// The agreed protocol, or the reason why there is none.
    pub fn greeting(unique: u64, offered: &Greeting, limits: Limits) -> Reply<'a> {
        if offered.major < MAJOR || offered.major == MAJOR && offered.minor < MINOR_MIN {
            return Reply::error(unique, Errno::PROTO);
        }
        let flags = offered.flags & WANTED;
        // A later protocol is told of ours, and greets again in it.
        let minor = match offered.major {
            MAJOR => offered.minor.min(MINOR),
            _ => MINOR,
        };
        let readahead = offered.readahead_bytes_max.min(limits.request_bytes_max);
        let mut reply = Reply::new(unique, 0);
        for field in [MAJOR, minor, readahead, flags as u32] {
            reply.u32(field);
        }
        reply.u16(limits.background_max);
        // Never congested: loop devices then wait at the first limit only.
        reply.u16(limits.background_max);
        reply.u32(limits.request_bytes_max);
        let time_granularity_ns = 1;
        reply.u32(time_granularity_ns);
        let pages = limits.request_bytes_max / limits.page_bytes.max(1);
        // Two at least: what is no longer than a page may lie in two, and must not come in two requests.
        reply.u16(u16::try_from(pages).unwrap_or(u16::MAX).max(2));
        reply.u16(0);
        reply.u32((flags >> 32) as u32);
        (0..7).for_each(|_| reply.u32(0));
        reply
    }

    /// The header and the fixed part, without the data.
    pub fn head(&self) -> &[u8] {
        &self.head[..self.head_bytes]
    }

    fn new(unique: u64, error: i32) -> Reply<'a> {
        let mut reply = Reply {
            head: [0; REPLY_BYTES_MAX],
            head_bytes: 4,
            data: &[],
        };
        reply.u32(error.cast_unsigned());
        reply.u64(unique);
        reply.count(0);
        reply
    }

    fn u16(&mut self, value: u16) {
        self.put(&value.to_ne_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.put(&value.to_ne_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.put(&value.to_ne_bytes());
    }

    fn put(&mut self, bytes: &[u8]) {
        let end = self.head_bytes + bytes.len();
        self.head[self.head_bytes..end].copy_from_slice(bytes);
        self.head_bytes = end;
        self.count(0);
    }

    /// The first field counts all bytes, its own included.
    fn count(&mut self, data_bytes: usize) {
        let bytes = (self.head_bytes + data_bytes) as u32;
        self.head[..4].copy_from_slice(&bytes.to_ne_bytes());
    }
}

/// A directory's entries, in the buffer from which they are sent.
pub(super) struct Entries<'a> {
    buffer: &'a mut [u8],
    used: usize,
}

impl<'a> Entries<'a> {
    pub fn new(buffer: &'a mut [u8]) -> Entries<'a> {
        Entries { buffer, used: 0 }
    }

    /// Adds an entry. A reader that continues after it asks for `next`. False if it does not fit.
    pub fn add(&mut self, node: u64, next: u64, mode: u32, name: &[u8]) -> bool {
        let length = (ENTRY_BYTES + name.len()).next_multiple_of(ENTRY_ALIGNMENT);
        let Some(place) = self.buffer[self.used..].get_mut(..length) else {
            return false;
        };
        place.fill(0);
        let kind = (mode & 0o170_000) >> 12;
        place[..8].copy_from_slice(&node.to_ne_bytes());
        place[8..16].copy_from_slice(&next.to_ne_bytes());
        place[16..20].copy_from_slice(&(name.len() as u32).to_ne_bytes());
        place[20..24].copy_from_slice(&kind.to_ne_bytes());
        place[ENTRY_BYTES..][..name.len()].copy_from_slice(name);
        self.used += length;
        true
    }

    pub fn into_bytes(self) -> &'a [u8] {
        &self.buffer[..self.used]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(opcode: u32, body: &[u8]) -> Vec<u8> {
        let length = (HEADER_BYTES + body.len()) as u32;
        let mut bytes = [length.to_ne_bytes(), opcode.to_ne_bytes()].concat();
        bytes.extend([7u64.to_ne_bytes(), 2u64.to_ne_bytes(), [0; 8], [0; 8]].concat());
        bytes.extend(body);
        bytes
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn parsed(bytes: &[u8]) -> Option<Request<'_>> {
        Message::parse(bytes).ok().map(|message| {
            assert_eq!((message.unique, message.node), (7, 2));
            message.request
        })
    }

    #[test]
    fn requests_are_read_as_the_kernel_lays_them_out() {
        let read = message(15, &words(&[5, 4096, 8192, 0, 0]));
        let expected = Request::Read {
            handle: 5,
            offset: 4096,
            size_bytes: 8192,
        };
        assert_eq!(parsed(&read), Some(expected));
        let mut body = words(&[0, 4096, 3, 0, 0]);
        body.extend(b"abc");
        let write = message(16, &body);
        let expected = Request::Write {
            offset: 4096,
            data: b"abc",
        };
        assert_eq!(parsed(&write), Some(expected));
        assert_eq!(
            parsed(&message(1, b"disk\0")),
            Some(Request::Lookup(b"disk"))
        );
        let allocate = message(43, &words(&[0, 1, 2, 3]));
        let expected = Request::Allocate {
            offset: 1,
            length: 2,
            mode: 3,
        };
        assert_eq!(parsed(&allocate), Some(expected));
        let mut body = words(&[u64::from(CHANGES_SIZE), 0, 77]);
        body.extend([0; 64]);
        let expected = Request::SetAttributes {
            changes_access: false,
            size_bytes: Some(77),
        };
        assert_eq!(parsed(&message(4, &body)), Some(expected));
    }

    #[test]
    fn what_is_cut_short_is_malformed() {
        let mut body = words(&[0, 4096, 3, 0, 0]);
        body.extend(b"abc");
        for whole in [
            message(1, b"disk\0"),
            message(4, &[0; 88]),
            message(14, &[0; 8]),
            message(18, &[0; 24]),
            message(15, &[0; 40]),
            message(16, &body),
            message(26, &[0; 16]),
            message(28, &[0; 40]),
            message(43, &[0; 32]),
        ] {
            assert!(parsed(&whole).is_some());
            for length in 0..whole.len() {
                let unique = (length >= HEADER_BYTES).then_some(7);
                let outcome = Message::parse(&whole[..length]);
                assert_eq!(outcome, Err(Malformed { unique }), "{length}");
            }
        }
        // A length that agrees, of data that is not there.
        let mut body = words(&[0, 4096, 4, 0, 0]);
        body.extend(b"abc");
        assert_eq!(parsed(&message(16, &body)), None);
        assert_eq!(parsed(&message(1, b"no end")), None);
    }

    #[test]
    fn a_reply_says_how_long_it_is() {
        let reply = Reply::data(9, b"abc");
        assert_eq!(reply.head()[..4], 19u32.to_ne_bytes());
        assert_eq!(reply.head()[4..8], [0; 4]);
        assert_eq!(reply.head()[8..], 9u64.to_ne_bytes());
        let reply = Reply::error(9, Errno::IO);
        assert_eq!(reply.head()[..4], 16u32.to_ne_bytes());
        assert_eq!(reply.head()[4..8], (-5i32).to_ne_bytes());
        let found = Attributes {
            node: 2,
            size_bytes: 513,
            mode: 0o100_600,
            links: 1,
            uid: 3,
            gid: 4,
            block_bytes: 4096,
            time: (5, 6),
            valid_s: 7,
        };
        assert_eq!(Reply::entry(9, &found).head().len(), 16 + 128);
        assert_eq!(Reply::attributes(9, &found).head().len(), 16 + 104);
        assert_eq!(Reply::opened(9, 0).head().len(), 16 + 16);
        assert_eq!(Reply::written(9, 1).head().len(), 16 + 8);
        assert_eq!(Reply::file_system(9, 1, 2, 4096).head().len(), 16 + 80);
    }

    #[test]
    fn a_kernel_is_promised_what_it_offers_and_no_more() {
        let limits = Limits {
            request_bytes_max: 1 << 20,
            page_bytes: 4096,
            background_max: 256,
        };
        let greet = |major, minor, flags| {
            let offered = Greeting {
                major,
                minor,
                readahead_bytes_max: 131_072,
                flags,
            };
            Reply::greeting(1, &offered, limits).head().to_vec()
        };
        let field =
            |head: &[u8], at: usize| u32::from_ne_bytes(*head[16 + at..].first_chunk().unwrap());
        let modern = greet(7, 45, u64::MAX);
        assert_eq!(modern.len(), 16 + 64);
        assert_eq!([0, 4, 8].map(|at| field(&modern, at)), [7, 36, 131_072]);
        assert_eq!(u64::from(field(&modern, 12)), WANTED & 0xffff_ffff);
        assert_eq!(field(&modern, 16), 256 << 16 | 256);
        assert_eq!([20, 24].map(|at| field(&modern, at)), [1 << 20, 1]);
        assert_eq!(field(&modern, 28), 256);
        assert_eq!(field(&modern, 32), 1 << 4);
        let old = greet(7, 23, ASYNC_READ);
        assert_eq!([4, 12, 32].map(|at| field(&old, at)), [23, 1, 0]);
        assert_eq!(greet(7, 22, u64::MAX).len(), 16);
        assert_eq!(greet(6, 99, u64::MAX).len(), 16);
        assert_eq!(field(&greet(8, 0, 0), 0), 7);
    }

    #[test]
    fn entries_end_where_the_buffer_does() {
        let mut buffer = [0xee; 70];
        let mut entries = Entries::new(&mut buffer);
        assert!(entries.add(1, 1, 0o040_700, b"."));
        assert!(entries.add(2, 2, 0o100_600, b"12345678"));
        assert!(!entries.add(2, 3, 0o100_600, b""));
        let bytes = entries.into_bytes();
        assert_eq!(bytes.len(), 64);
        assert_eq!(bytes[20..24], 4u32.to_ne_bytes());
        assert_eq!(bytes[24..32], *b".\0\0\0\0\0\0\0");
        assert_eq!(bytes[32 + 20..32 + 24], 8u32.to_ne_bytes());
        assert_eq!(bytes[56..], *b"12345678");
    }
}
