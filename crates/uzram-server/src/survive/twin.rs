//! A process that has this one's memory and does nothing: what this one has locked stays locked when it is gone.
//!
//! A disk that is swapped to has its content in files of memory. The system swaps these out as any other memory, unless a
//! process has them mapped and locked, and the locks of a process go with it. Then content could be swapped out to the disk
//! that nobody serves, and its successor would wait for itself. So there is a second process with the same address space
//! (`CLONE_VM` of clone(2)) and nothing else of this one: no descriptor and no signal. The holder keeps a socket, and the
//! second process ends once that is closed: when a successor has mapped and locked all of it.
//!
//! After the death of this process the second one unmaps two things. A driver whose memory is mapped here would take this
//! process for alive. And what this process had for itself, as its heap, is memory that its successor needs now, and that
//! may be all there is.
//!
//! It runs on a stack of its own, but with the thread-local memory of the thread that started it. That thread does nothing
//! any more, so both never meet. After the death of this process any of its locks may be held for ever, and its heap is
//! gone: the second one takes none, and allocates nothing.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::io::{self, Read};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use uzram::ErrorKind;

use crate::error::{Error, Result};

/// Bytes of its stack. It calls little.
const STACK_BYTES: usize = 64 << 10;
/// Longest wait for its start.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Names of mappings by which a driver knows that a process lives, as /proc/PID/maps has them.
const DRIVERS: [&[u8]; 2] = [b"/dev/ublkc", b"anon_inode:[io_uring]"];
/// The mapping of the first heap there.
const HEAP: &[u8] = b"[heap]";
/// Memory on both sides of a thread-local variable that is kept, in bytes: all of a thread's lies there.
const THREAD_LOCAL_BYTES: usize = 64 << 10;
/// Longest part of a line there that is looked at.
const LINE_BYTES: usize = 512;

/// Descriptors that the process keeps.
#[derive(Clone, Copy)]
struct Descriptors {
    socket: c_int,
    /// Readable once this process has ended.
    ended: c_int,
}

/// Starts the process. It ends once every descriptor of the returned socket is closed.
///
/// # Errors
/// [`ErrorKind::Io`] if the system gives none: before Linux 5.9, and in a sandbox, where no process can be made.
pub(crate) fn start() -> Result<OwnedFd> {
    let failed = |error: io::Error| {
        let text = "memory does not stay locked when this process ends: no process that keeps it";
        Error::new(ErrorKind::Io, text).with_source(error)
    };
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    ours.set_read_timeout(Some(START_TIMEOUT)).map_err(failed)?;
    let ended = pidfd_open(getpid(), PidfdFlags::empty()).map_err(|error| failed(error.into()))?;
    let clone = move || {
        let descriptors = Descriptors {
            socket: theirs.as_raw_fd(),
            ended: ended.as_raw_fd(),
        };
        if clone_this(descriptors).is_err() {
            return;
        }
        // The clone has its own. Who waits for it learns from a closed one that it is gone.
        drop((theirs, ended));
        loop {
            thread::park();
        }
    };
    let thread = thread::Builder::new().name("uzram-memory".into());
    thread.spawn(clone).map_err(failed)?;
    let mut told = [0];
    (&ours).read_exact(&mut told).map_err(failed)?;
    Ok(ours.into())
}

/// Starts the process from this thread, which must do nothing from then on.
fn clone_this(descriptors: Descriptors) -> io::Result<()> {
    let descriptors = Box::leak(Box::new(descriptors));
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping at a place of the kernel's choice touches no memory of ours.
    let stack = unsafe {
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), STACK_BYTES, protection, flags)
    }?;
    let top = stack.wrapping_byte_add(STACK_BYTES);
    // Nobody else waits for it than the holder, which is the parent of both.
    let flags = libc::CLONE_VM | libc::CLONE_PARENT;
    // SAFETY: it is plain bits.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is there.
    unsafe { libc::sigfillset(&raw mut all) };
    // The clone gets this thread's mask, so no handler of this process ever runs in it.
    // SAFETY: as above; nobody asks for the old mask.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut()) };
    // SAFETY: the clone runs `twin` on a stack that is its own and lives for ever, and so do its descriptors. It uses the
    // thread-local memory of this thread, which does not use it any more, as this function's contract says.
    let pid = unsafe { libc::clone(twin, top, flags, std::ptr::from_mut(descriptors).cast()) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// The process, to its end.
extern "C" fn twin(descriptors: *mut c_void) -> c_int {
    // SAFETY: it was made of a reference to such a value, which lives for ever and is not written any more.
    let Descriptors { socket, mut ended } = unsafe { *descriptors.cast::<Descriptors>() };
    let kept = kept();
    if !close_all_but(socket, ended) || !tell(socket) {
        return 1;
    }
    loop {
        let event = |fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let mut events = [event(socket), event(ended)];
        // SAFETY: the events are there, as many as are named.
        unsafe { libc::poll(events.as_mut_ptr(), 2, -1) };
        if events[0].revents != 0 {
            // Nobody ever sends anything: its other end is closed.
            return 0;
        }
        if events[1].revents != 0 {
            unmap_private(&kept);
            // A negative one is not looked at.
            ended = -1;
        }
    }
}

/// Closes every descriptor but these two. False if the system cannot.
fn close_all_but(one: c_int, other: c_int) -> bool {
    let (first, second) = (one.min(other) as c_uint, one.max(other) as c_uint);
    let close = |range: Range<c_uint>| {
        // SAFETY: descriptors of this process, which uses none of them. It has a table of its own.
        let closed =
            || unsafe { libc::syscall(libc::SYS_close_range, range.start, range.end - 1, 0) };
        range.is_empty() || closed() == 0
    };
    close(0..first) && close(first + 1..second) && close(second + 1..c_uint::MAX)
}

/// Says that the process is there.
fn tell(socket: c_int) -> bool {
    // SAFETY: one byte is there.
    unsafe { libc::write(socket, [1_u8].as_ptr().cast(), 1) == 1 }
}

/// Memory that the process needs itself, whole pages of the system: its stack, and the thread-local memory.
fn kept() -> [Range<usize>; 2] {
    let page_bytes = uzram::system_page::size_bytes();
    let around = |at: usize, bytes: usize| {
        let start = at.saturating_sub(bytes) / page_bytes * page_bytes;
        start..(at + bytes).next_multiple_of(page_bytes)
    };
    let on_stack = 0_u8;
    // SAFETY: it is the address of a thread-local variable.
    let local = unsafe { libc::__errno_location() };
    [
        around((&raw const on_stack).addr(), STACK_BYTES),
        around(local.addr(), THREAD_LOCAL_BYTES),
    ]
}

/// Unmaps what the dead process had for itself, and what drivers have mapped here.
fn unmap_private(kept: &[Range<usize>]) {
    // SAFETY: the path ends with a zero.
    let file = unsafe { libc::open(c"/proc/self/maps".as_ptr(), libc::O_RDONLY) };
    let mut lines = Lines::new();
    let mut bytes = [0; 4096];
    loop {
        // SAFETY: as many bytes are there.
        let count = unsafe { libc::read(file, bytes.as_mut_ptr().cast(), bytes.len()) };
        let Ok(count @ 1..) = usize::try_from(count) else {
            break;
        };
        for byte in bytes.iter().take(count) {
            match lines.add(*byte) {
                Some(Mapped::Private(mapping)) => unmap_but(mapping, kept),
                // They may lie right beside what is kept.
                Some(Mapped::Driver(mapping)) => unmap_but(mapping, &[]),
                None => {}
            }
        }
    }
    // SAFETY: opened above.
    unsafe { libc::close(file) };
}

/// Unmaps the parts of `mapping` that are not kept.
fn unmap_but(mapping: Range<usize>, kept: &[Range<usize>]) {
    let Some((first, others)) = kept.split_first() else {
        if !mapping.is_empty() {
            let start = std::ptr::without_provenance_mut(mapping.start);
            // SAFETY: the process that used this memory is dead, and this one uses what it keeps.
            unsafe { libc::munmap(start, mapping.len()) };
        }
        return;
    };
    if first.end <= mapping.start || mapping.end <= first.start {
        return unmap_but(mapping, others);
    }
    unmap_but(mapping.start..first.start.max(mapping.start), others);
    unmap_but(first.end.min(mapping.end)..mapping.end, others);
}

/// Memory that is unmapped.
#[derive(Debug, PartialEq)]
enum Mapped {
    /// The process's own, of no file.
    Private(Range<usize>),
    Driver(Range<usize>),
}

/// Lines of /proc/PID/maps, of which the beginnings are looked at.
struct Lines {
    bytes: [u8; LINE_BYTES],
    length: usize,
    /// The end of the mapping before, if it is a file's: a program's variables follow it.
    file_end: usize,
}

impl Lines {
    fn new() -> Lines {
        Lines {
            bytes: [0; LINE_BYTES],
            length: 0,
            file_end: 0,
        }
    }

    /// Takes the next byte in. Returns the memory of the line that ends with it, if it is to be unmapped.
    fn add(&mut self, byte: u8) -> Option<Mapped> {
        if byte != b'\n' {
            if let Some(place) = self.bytes.get_mut(self.length) {
                *place = byte;
                self.length += 1;
            }
            return None;
        }
        let line = self.bytes.get(..std::mem::take(&mut self.length))?;
        let mut words = line
            .split(|byte| *byte == b' ')
            .filter(|word| !word.is_empty());
        let mut addresses = words.next()?.split(|byte| *byte == b'-').map(hexadecimal);
        let mapping = addresses.next()??..addresses.next()??;
        let access = words.next()?;
        // Offset, device, inode.
        let name = words.nth(3).unwrap_or_default();
        let follows_file = std::mem::take(&mut self.file_end) == mapping.start;
        if name.first() == Some(&b'/') {
            self.file_end = mapping.end;
        }
        let is_driver = DRIVERS.iter().any(|driver| name.starts_with(driver));
        let is_private = access == b"rw-p" && (name == HEAP || name.is_empty() && !follows_file);
        match (is_driver, is_private) {
            (true, _) => Some(Mapped::Driver(mapping)),
            (false, true) => Some(Mapped::Private(mapping)),
            (false, false) => None,
        }
    }
}

fn hexadecimal(digits: &[u8]) -> Option<usize> {
    digits.iter().try_fold(0_usize, |value, digit| {
        Some(value << 4 | char::from(*digit).to_digit(16)? as usize)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_memory_and_drivers_are_found_among_other_mappings() {
        let text = "\
555555554000-555555556000 r--p 00000000 fe:00 262 /usr/bin/ublkcount\n\
555555556000-555555558000 rw-p 00002000 fe:00 262 /usr/bin/ublkcount\n\
555555558000-555555559000 rw-p 00000000 00:00 0\n\
55555555a000-55555557a000 rw-p 00000000 00:00 0                          [heap]\n\
7ffff7c00000-7ffff7d00000 ---p 00000000 00:00 0\n\
7ffff7d00000-7ffff7e00000 rw-s 00000000 00:01 9                          /memfd:uzram (deleted)\n\
7ffff7f00000-7ffff7f02000 r--s 00000000 00:06 88                         /dev/ublkc0\n\
7ffff7f02000-7ffff7f06000 rw-s 10000000 00:0f 7                          anon_inode:[io_uring]\n\
zz-7f r--s 00000000 00:06 88 /dev/ublkc1\n\
\n\
7ffff7f07000-7ffff7f08000 rw-p 00000000 00:00 0 \n\
7ffffffde000-7ffffffff000 rw-p 00000000 00:00 0                          [stack]\n";
        let mut lines = Lines::new();
        let text = format!("{}\n{text}", "x".repeat(3 * LINE_BYTES));
        let found: Vec<_> = text.bytes().filter_map(|byte| lines.add(byte)).collect();
        assert_eq!(
            found,
            [
                Mapped::Private(0x5555_5555_a000..0x5555_5557_a000),
                Mapped::Driver(0x7fff_f7f0_0000..0x7fff_f7f0_2000),
                Mapped::Driver(0x7fff_f7f0_2000..0x7fff_f7f0_6000),
                Mapped::Private(0x7fff_f7f0_7000..0x7fff_f7f0_8000),
            ]
        );
    }
}
