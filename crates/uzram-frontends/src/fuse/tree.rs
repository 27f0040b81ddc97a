//! A tree of small text files whose content is made when it is read, and acted upon when it is written: what
//! sysfs is to the kernel.
//!
//! A file's text is made at the first read of an open, and again when it is read from its start. A write is
//! one value, whatever its place: sysfs has it so. Names and sizes are asked for anew each time, because
//! files come and go.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::io::Errno;
use uzram::Result;

use super::BACKGROUND_MAX;
use super::keeper::Keeper;
use super::mounted::{Mounted, To, Unserved};
use super::serve::Serve;
use super::wire::{Attributes, Entries, Limits, Message, Reply, Request};
use super::worker;

/// The name of a tree in the mount table.
pub const TREE_SOURCE: &str = "uzram:tree";
/// The root directory's number.
pub const ROOT: u64 = 1;
/// Most bytes of a value that is written, and of text that is read at once; sysfs's is a page.
const VALUE_BYTES_MAX: u32 = 4096;
/// Threads. A value that takes long to act upon holds up one of them.
const THREADS: usize = 8;
/// Files that are open at once, at most.
const OPEN_MAX: usize = 4096;
/// Each file's size, as sysfs states it, in bytes.
const FILE_BYTES: u64 = 4096;

const DIRECTORY_KIND: u32 = 0o040_000;
const FILE_KIND: u32 = 0o100_000;
const DIRECTORY_MODE: u32 = 0o755;
/// Bits of an open's flags, from `fcntl.h`.
const ACCESS_MODE: u32 = 3;
const READ_ONLY: u32 = 0;
const WRITE_ONLY: u32 = 1;

/// A file or a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its number: never that of another one, also later.
    pub number: u64,
    /// A file's permissions; none for a directory.
    pub mode: Option<u16>,
}

/// Text of a file, from some place on.
#[derive(Debug, Default)]
pub struct Text {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The place where more of it begins, as its maker counts; none at the end.
    pub next: Option<u64>,
}

/// The files. Errors are an errno.
pub trait Files: Send + Sync {
    /// The file or directory of this number, if it is there.
    fn node(&self, number: u64) -> Option<Node>;

    /// The one of this name in a directory.
    fn look_up(&self, directory: u64, name: &str) -> Option<Node>;

    /// All in a directory.
    fn list(&self, directory: u64) -> Vec<(String, Node)>;

    /// Text of a file; `place` is 0 or a [`Text::next`].
    ///
    /// # Errors
    /// The errno for the reader.
    fn read(&self, file: u64, place: u64) -> Result<Text, i32>;

    /// Acts upon a value.
    ///
    /// # Errors
    /// The errno for the writer.
    fn write(&self, file: u64, value: &[u8]) -> Result<(), i32>;

    /// Whether making the text does something, so that it is made once per open.
    fn reads_once(&self, file: u64) -> bool;
}

/// A mounted tree. Dropping it unmounts it. If that is refused because a program uses it, it is detached, and
/// the last close ends it.
#[derive(Debug)]
pub struct TreeMount {
    directory: PathBuf,
    mounted: Mounted,
}

impl TreeMount {
    /// Mounts `files` over `directory`, which exists. Root lets everybody look in, as far as the files'
    /// modes allow; other users need the program `fusermount3`, and are alone.
    ///
    /// # Errors
    /// [`uzram::ErrorKind::Io`] with the remedy if the system refuses. Nothing is left behind.
    pub fn new(files: Arc<dyn Files>, directory: &Path) -> Result<TreeMount> {
        let tree = Tree::new(files);
        let slots = worker::slots(&tree, THREADS)?;
        let (mounted, _) = Mounted::new(Arc::new(tree), &to(directory), slots)?;
        let directory = directory.to_owned();
        Ok(TreeMount { directory, mounted })
    }

    /// The directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Unmounts it. If it is unmounted already, it does nothing.
    ///
    /// # Errors
    /// [`uzram::ErrorKind::Busy`] while a program uses it, [`uzram::ErrorKind::Io`].
    pub fn unmount(&mut self) -> Result<()> {
        self.mounted.unmount()
    }
}

/// A tree that is mounted and that nobody serves yet: who looks in waits. Another process unmounts it, so that
/// this one may give up the right to.
#[derive(Debug)]
pub struct UnservedTree {
    directory: PathBuf,
    // In this order: the keeper finds a mount that is dropped dead.
    unserved: Unserved,
    keeper: Keeper,
}

impl UnservedTree {
    /// Mounts over `directory`, as [`TreeMount::new`] does. `keeper` calls [`keep`](super::keep) with the same
    /// directory and does nothing else; it ends with the mount.
    ///
    /// # Errors
    /// [`uzram::ErrorKind::Io`] with the remedy if the system refuses. Nothing is left behind.
    pub fn new(directory: &Path, keeper: Command) -> Result<UnservedTree> {
        Ok(UnservedTree {
            // First, so that it has nothing of the mount.
            keeper: Keeper::start(keeper)?,
            unserved: Unserved::new(&to(directory))?,
            directory: directory.to_owned(),
        })
    }

    /// The way to the process that unmounts it.
    #[must_use]
    pub fn keeper(&self) -> Keeper {
        self.keeper.clone()
    }

    /// Serves `files` there.
    ///
    /// # Errors
    /// [`uzram::ErrorKind::Io`] if the system gives no thread. Nothing is left behind.
    pub fn serve(self, files: Arc<dyn Files>) -> Result<TreeMount> {
        let served = Arc::new(Tree::new(files));
        let mounted = self.unserved.serve(served, THREADS, self.keeper)?;
        let directory = self.directory;
        Ok(TreeMount { directory, mounted })
    }
}

fn to(directory: &Path) -> To<'_> {
    To {
        source: TREE_SOURCE,
        directory,
        is_for_all: rustix::process::geteuid().is_root(),
    }
}

/// The file system that the kernel sees.
struct Tree {
    files: Arc<dyn Files>,
    /// The owner of all.
    owner: (u32, u32),
    made: SystemTime,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    next_handle: u64,
    readers: HashMap<u64, Arc<Mutex<Reader>>>,
}

/// The reading of an open file.
#[derive(Default)]
struct Reader {
    has_begun: bool,
    /// Text that was made, and the place in the file of its first byte.
    bytes: Vec<u8>,
    start: u64,
    next: Option<u64>,
}

type Outcome<T> = Result<T, Errno>;

impl Tree {
    fn new(files: Arc<dyn Files>) -> Tree {
        Tree {
            files,
            owner: (
                rustix::process::geteuid().as_raw(),
                rustix::process::getegid().as_raw(),
            ),
            made: SystemTime::now(),
            open: Mutex::default(),
        }
    }

    fn node(&self, number: u64) -> Outcome<Node> {
        self.files.node(number).ok_or(Errno::NOENT)
    }

    fn describe(&self, node: Node) -> Attributes {
        let since = self.made.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (mode, links, size_bytes) = match node.mode {
            Some(mode) => (FILE_KIND | u32::from(mode), 1, FILE_BYTES),
            None => (DIRECTORY_KIND | DIRECTORY_MODE, 2, 0),
        };
        Attributes {
            node: node.number,
            size_bytes,
            mode,
            links,
            uid: self.owner.0,
            gid: self.owner.1,
            block_bytes: VALUE_BYTES_MAX,
            time: (since.as_secs(), since.subsec_nanos()),
            valid_s: 0,
        }
    }

    fn look_up(&self, parent: u64, name: &[u8]) -> Outcome<Node> {
        let name = std::str::from_utf8(name).map_err(|_| Errno::NOENT)?;
        self.files.look_up(parent, name).ok_or(Errno::NOENT)
    }

    /// As sysfs: what the mode forbids is forbidden to root, too.
    fn open(&self, number: u64, flags: u32) -> Outcome<u64> {
        let mode = self.node(number)?.mode.ok_or(Errno::ISDIR)?;
        let wants_read = flags & ACCESS_MODE != WRITE_ONLY;
        let wants_write = flags & ACCESS_MODE != READ_ONLY;
        if wants_read && mode & 0o444 == 0 || wants_write && mode & 0o222 == 0 {
            return Err(Errno::ACCESS);
        }
        let mut open = self.lock_open();
        if open.readers.len() >= OPEN_MAX {
            return Err(Errno::NFILE);
        }
        open.next_handle += 1;
        let handle = open.next_handle;
        open.readers.insert(handle, Arc::default());
        Ok(handle)
    }

    fn close(&self, handle: u64) {
        self.lock_open().readers.remove(&handle);
    }

    fn read(&self, file: u64, handle: u64, offset: u64, buffer: &mut [u8]) -> Outcome<usize> {
        let reader = self.lock_open().readers.get(&handle).cloned();
        let reader = reader.ok_or(Errno::BADF)?;
        let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
        if !reader.has_begun || offset == 0 && !self.files.reads_once(file) {
            *reader = self.text(file, 0)?;
        }
        // A text may be long and made piece by piece, in its order only.
        while offset >= reader.end() {
            let Some(next) = reader.next else {
                return Ok(0);
            };
            let start = reader.end();
            *reader = self.text(file, next)?;
            reader.start = start;
        }
        let skipped = offset.checked_sub(reader.start).ok_or(Errno::SPIPE)?;
        let rest = reader.bytes.get(skipped as usize..).unwrap_or_default();
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }

    fn text(&self, file: u64, place: u64) -> Outcome<Reader> {
        let Text { bytes, next } = guarded(|| self.files.read(file, place))?;
        Ok(Reader {
            has_begun: true,
            // A piece of no bytes would be asked for again and again.
            next: next.filter(|_| !bytes.is_empty()),
            bytes,
            start: 0,
        })
    }

    fn write(&self, file: u64, value: &[u8]) -> Outcome<usize> {
        guarded(|| self.files.write(file, value))?;
        Ok(value.len())
    }

    fn list<'b>(&self, directory: u64, offset: u64, buffer: &'b mut [u8]) -> Outcome<&'b [u8]> {
        if self.node(directory)?.mode.is_some() {
            return Err(Errno::NOTDIR);
        }
        let itself = |name: &str| {
            let node = Node {
                number: directory,
                mode: None,
            };
            (name.to_owned(), node)
        };
        let mut names = vec![itself("."), itself("..")];
        names.extend(self.files.list(directory));
        let seen = usize::try_from(offset).unwrap_or(usize::MAX);
        let mut entries = Entries::new(buffer);
        for (index, (name, node)) in names.iter().enumerate().skip(seen) {
            let mode = self.describe(*node).mode;
            if !entries.add(node.number, index as u64 + 1, mode, name.as_bytes()) {
                break;
            }
        }
        Ok(entries.into_bytes())
    }

    fn lock_open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reader {
    /// The place in the file behind the text that was made.
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

/// The outcome of `work`. A file that panics fails, and the worker goes on.
fn guarded<T>(work: impl FnOnce() -> Result<T, i32>) -> Outcome<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done.map_err(Errno::from_raw_os_error),
        Err(_panic) => Err(Errno::IO),
    }
}

impl Serve for Tree {
    fn answer<'b>(&self, buffer: &'b mut [u8], message_bytes: usize) -> Option<Reply<'b>> {
        let message = match Message::received(buffer, message_bytes) {
            Ok(message) => message,
            Err(malformed) => return malformed.reply(),
        };
        let (unique, node) = (message.unique, message.node);
        let reply = match message.request {
            Request::Forget => return None,
            Request::Read {
                handle,
                offset,
                size_bytes,
            } => {
                let length = buffer.len().min(size_bytes as usize);
                let buffer = &mut buffer[..length];
                let read = self.read(node, handle, offset, buffer);
                read.map(|length| Reply::data(unique, &buffer[..length]))
            }
            Request::ReadDirectory { offset, size_bytes } => {
                let length = buffer.len().min(size_bytes as usize);
                let listed = self.list(node, offset, &mut buffer[..length]);
                listed.map(|entries| Reply::data(unique, entries))
            }
            Request::Init(offered) => Ok(Reply::greeting(unique, &offered, limits())),
            Request::Lookup(name) => self
                .look_up(node, name)
                .map(|found| Reply::entry(unique, &self.describe(found))),
            Request::Attributes => self
                .node(node)
                .map(|found| Reply::attributes(unique, &self.describe(found))),
            // The size that O_TRUNC asks for means nothing, as in sysfs.
            Request::SetAttributes { changes_access, .. } => match changes_access {
                true => Err(Errno::PERM),
                false => self
                    .node(node)
                    .map(|found| Reply::attributes(unique, &self.describe(found))),
            },
            Request::Open { flags } => self
                .open(node, flags)
                .map(|handle| Reply::opened(unique, handle)),
            Request::Release { handle } => {
                self.close(handle);
                Ok(Reply::done(unique))
            }
            Request::OpenDirectory => Ok(Reply::opened_directory(unique)),
            Request::ReleaseDirectory | Request::Destroy | Request::Sync => Ok(Reply::done(unique)),
            Request::Write { data, .. } => self
                .write(node, data)
                .map(|length| Reply::written(unique, length as u32)),
            Request::FileSystem => Ok(Reply::file_system(unique, 0, 0, VALUE_BYTES_MAX)),
            Request::ChangeNames => Err(Errno::ACCESS),
            Request::Allocate { .. } => Err(Errno::OPNOTSUPP),
            Request::Ioctl => Err(Errno::NOTTY),
            Request::Other => Err(Errno::NOSYS),
        };
        Some(reply.unwrap_or_else(|errno| Reply::error(unique, errno)))
    }

    fn request_bytes_max(&self) -> usize {
        VALUE_BYTES_MAX as usize
    }
}

fn limits() -> Limits {
    Limits {
        request_bytes_max: VALUE_BYTES_MAX,
        page_bytes: VALUE_BYTES_MAX,
        background_max: BACKGROUND_MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One long text in pieces, and a file that counts how often it was made.
    struct Two(Mutex<u64>);

    const LONG: u64 = 2;
    const COUNTED: u64 = 3;

    impl Files for Two {
        fn node(&self, number: u64) -> Option<Node> {
            let mode = match number {
                ROOT => None,
                LONG => Some(0o444),
                COUNTED => Some(0o400),
                _ => return None,
            };
            Some(Node { number, mode })
        }

        fn look_up(&self, _: u64, name: &str) -> Option<Node> {
            self.list(ROOT)
                .into_iter()
                .find(|(n, _)| n == name)
                .map(|(_, node)| node)
        }

        fn list(&self, _: u64) -> Vec<(String, Node)> {
            let named = |name: &str, number| (name.to_owned(), self.node(number).unwrap());
            vec![named("long", LONG), named("counted", COUNTED)]
        }

        fn read(&self, file: u64, place: u64) -> Result<Text, i32> {
            if file == COUNTED {
                let mut count = self.0.lock().unwrap();
                *count += 1;
                let bytes = format!("{count}\n").into_bytes();
                return Ok(Text { bytes, next: None });
            }
            Ok(Text {
                bytes: vec![b'a' + place as u8; 10],
                next: (place < 3).then_some(place + 1),
            })
        }

        fn write(&self, _: u64, value: &[u8]) -> Result<(), i32> {
            assert_ne!(value, b"panic", "told to");
            Err(16)
        }

        fn reads_once(&self, file: u64) -> bool {
            file == COUNTED
        }
    }

    fn tree() -> Tree {
        Tree::new(Arc::new(Two(Mutex::default())))
    }

    #[test]
    fn a_long_text_is_read_piece_by_piece_in_its_order() {
        let tree = tree();
        let handle = tree.open(LONG, READ_ONLY).unwrap();
        let mut all: Vec<u8> = Vec::new();
        let mut part = [0; 7];
        loop {
            let length = tree
                .read(LONG, handle, all.len() as u64, &mut part)
                .unwrap();
            if length == 0 {
                break;
            }
            all.extend(&part[..length]);
        }
        assert_eq!(all, b"aaaaaaaaaabbbbbbbbbbccccccccccdddddddddd");
        assert_eq!(tree.read(LONG, handle, 5, &mut part), Err(Errno::SPIPE));
        assert_eq!(tree.read(LONG, handle, 0, &mut part), Ok(7));
        assert_eq!(tree.read(LONG, handle, 25, &mut part), Ok(5));
        tree.close(handle);
        assert_eq!(tree.read(LONG, handle, 0, &mut part), Err(Errno::BADF));
    }

    #[test]
    fn what_a_read_does_is_done_once_per_open() {
        let tree = tree();
        let mut part = [0; 8];
        for open in 1..4 {
            let handle = tree.open(COUNTED, READ_ONLY).unwrap();
            for _again in 0..3 {
                assert_eq!(tree.read(COUNTED, handle, 0, &mut part), Ok(2));
                assert_eq!(part[0], b'0' + open);
                assert_eq!(tree.read(COUNTED, handle, 2, &mut part), Ok(0));
            }
            tree.close(handle);
        }
    }

    #[test]
    fn modes_hold_for_root_and_a_panic_is_an_error() {
        let tree = tree();
        for flags in [WRITE_ONLY, 2] {
            assert_eq!(tree.open(LONG, flags), Err(Errno::ACCESS));
        }
        assert_eq!(tree.open(ROOT, READ_ONLY), Err(Errno::ISDIR));
        assert_eq!(tree.open(9, READ_ONLY), Err(Errno::NOENT));
        assert_eq!(tree.write(LONG, b"x"), Err(Errno::BUSY));
        assert_eq!(tree.write(LONG, b"panic"), Err(Errno::IO));
        let handles: Vec<_> = (0..OPEN_MAX).map(|_| tree.open(LONG, READ_ONLY)).collect();
        assert_eq!(tree.open(LONG, READ_ONLY), Err(Errno::NFILE));
        tree.close(handles[7].unwrap());
        assert!(tree.open(LONG, READ_ONLY).is_ok());
    }
}
