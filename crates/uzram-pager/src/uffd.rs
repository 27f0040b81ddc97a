//! The kernel's userfaultfd: its messages, and what answers them. Needs Linux 6.8.
//!
//! One descriptor serves the program's range and the ring, so that every verb stops (`EAGAIN`) from the moment in which
//! the program begins to unmap or discard until its message was read.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
#[cfg(test)]
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};
use rustix::mm::UserfaultfdFlags;
use uzram::{Error, ErrorKind, Result};

use crate::handler::FaultHandler;
use crate::mapping::PAGE_BYTES;
use crate::populated;

/// Most messages that one read takes.
pub const MESSAGES_MAX: usize = 16;

/// The first descriptor that may be used: below are the standard streams, into which a panic's message goes.
const DESCRIPTOR_MIN: i32 = 3;

/// Numbers of `linux/userfaultfd.h`.
const GROUP: u8 = 0xAA;
const API: u64 = 0xAA;
const FEATURE_EVENT_FORK: u64 = 1 << 1;
const FEATURE_EVENT_REMAP: u64 = 1 << 2;
const FEATURE_EVENT_REMOVE: u64 = 1 << 3;
const FEATURE_EVENT_UNMAP: u64 = 1 << 6;
const FEATURE_SIGBUS: u64 = 1 << 7;
const FEATURE_THREAD_ID: u64 = 1 << 8;
const FEATURE_POISON: u64 = 1 << 14;
const FEATURE_MOVE: u64 = 1 << 16;
const FEATURES: u64 = FEATURE_EVENT_REMAP
    | FEATURE_EVENT_REMOVE
    | FEATURE_EVENT_UNMAP
    | FEATURE_THREAD_ID
    | FEATURE_POISON
    | FEATURE_MOVE;
/// A flag of the system call: faults of system calls fail, which is allowed to everybody.
const USER_MODE_ONLY: u32 = 1;
const REGISTER_MISSING: u64 = 1;
const EVENT_PAGEFAULT: u8 = 0x12;
const EVENT_FORK: u8 = 0x13;
const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;
const FLAG_WRITE: u64 = 1;

/// A message of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A thread waits for the page at an address.
    Fault {
        address: u64,
        is_write: bool,
        thread: u32,
    },
    /// The program is about to discard these addresses.
    Removed { start: u64, end: u64 },
    /// The program has forked: the descriptor, which is nobody's yet, serves the child's ranges. See [`Uffd::of_child`].
    Forked { descriptor: i32 },
    /// The program has unmapped these addresses.
    Unmapped { start: u64, end: u64 },
    /// The program has moved these addresses: the first is `to` now. Their empty pages are served there, too.
    Moved { start: u64, end: u64, to: u64 },
}

/// The fate of those that wait for pages which arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Then {
    Wake = 0,
    /// They wait on: `UFFDIO_*_MODE_DONTWAKE`.
    Wait = 1,
}

/// The outcome of a request for some pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Pages done, from the first on.
    pub pages: usize,
    /// Why not all. After some pages the reason is always `EAGAIN`.
    pub stopped: Option<Errno>,
}

/// A descriptor. Who opened it owns it; a thread with a table of its own may have it there under the same number.
#[derive(Debug)]
pub struct Uffd {
    descriptor: ManuallyDrop<OwnedFd>,
    /// Tells the file from others. The program's threads use the descriptor where handlers answer, and may close it.
    identity: Option<Identity>,
    /// Whether a read waits for a message.
    waits: AtomicBool,
    /// So many pages more are refused for want of memory.
    #[cfg(test)]
    pub refusals: AtomicUsize,
    /// So many pages of the next move are not counted.
    #[cfg(test)]
    pub miscounts: AtomicUsize,
}

/// Device and inode.
type Identity = (u64, u64);

impl Uffd {
    /// Opens a descriptor. With a thread of its own it also serves system calls of the program.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] with what is missing or not permitted, and the remedy.
    pub fn open(handler: FaultHandler) -> Result<Uffd> {
        let (flag, feature) = match handler {
            FaultHandler::OwnThread => (0, 0),
            FaultHandler::FaultingThread => (USER_MODE_ONLY, FEATURE_SIGBUS),
        };
        // Polling needs a descriptor whose reads do not wait.
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
        let flags = flags | UserfaultfdFlags::from_bits_retain(flag);
        // SAFETY: the call is safe, and this type keeps the descriptor to itself.
        let descriptor = match unsafe { rustix::mm::userfaultfd(flags) } {
            Ok(descriptor) => descriptor,
            Err(refused) => open_device().map_err(|_| not_permitted(refused))?,
        };
        let failed = |errno: Errno| Error::new(ErrorKind::Io, "userfaultfd").with_source(errno);
        let descriptor =
            rustix::io::fcntl_dupfd_cloexec(descriptor, DESCRIPTOR_MIN).map_err(failed)?;
        let identity = match handler {
            FaultHandler::OwnThread => None,
            FaultHandler::FaultingThread => Some(identity_of(&descriptor).map_err(failed)?),
        };
        let uffd = Uffd::over(descriptor, identity);
        uffd.begin(feature)?;
        Ok(uffd)
    }

    /// A descriptor that another process has opened for its own memory, and has not used yet. It tells of that process's
    /// forks, too, for which its opener's rights do not matter, but the caller's.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] with what is missing or not permitted, and the remedy.
    pub fn of_another(descriptor: OwnedFd) -> Result<Uffd> {
        let uffd = Uffd::over(descriptor, None);
        uffd.begin(FEATURE_EVENT_FORK)?;
        Ok(uffd)
    }

    /// Whether [`Uffd::of_another`] would work for this process.
    ///
    /// # Errors
    /// As it and [`Uffd::open`].
    pub fn check_others() -> Result<()> {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
        // SAFETY: the call is safe, and this function keeps the descriptor to itself.
        let descriptor =
            unsafe { rustix::mm::userfaultfd(flags) }.map_err(not_permitted_for_others)?;
        Uffd::of_another(descriptor).map(drop)
    }

    /// The descriptor of a child's memory.
    ///
    /// # Safety
    /// `descriptor` is of a [`Message::Forked`], and no other value owns it.
    pub unsafe fn of_child(descriptor: i32) -> Uffd {
        // SAFETY: the caller's.
        let owned = unsafe { OwnedFd::from_raw_fd(descriptor) };
        // The child's is as its parent's, but for the flag by which reads do not wait.
        let _ = rustix::fs::fcntl_setfl(&owned, OFlags::NONBLOCK);
        Uffd::over(owned, None)
    }

    fn over(descriptor: OwnedFd, identity: Option<Identity>) -> Uffd {
        Uffd {
            descriptor: ManuallyDrop::new(descriptor),
            identity,
            waits: AtomicBool::new(false),
            #[cfg(test)]
            refusals: AtomicUsize::new(0),
            #[cfg(test)]
            miscounts: AtomicUsize::new(0),
        }
    }

    fn begin(&self, feature: u64) -> Result<()> {
        let mut api = ApiRequest {
            api: API,
            features: FEATURES | feature,
            ioctls: 0,
        };
        self.call::<0x3F, _>(&mut api).map_err(|errno| match errno {
            Errno::PERM => not_permitted_for_others(errno),
            _ => {
                let text = "this kernel's userfaultfd cannot move pages (UFFDIO_MOVE); use Linux 6.8 or newer";
                Error::new(ErrorKind::Unsupported, text).with_source(errno)
            }
        })
    }

    /// From now on faults from address `start` to `end` wait for an answer.
    ///
    /// # Errors
    /// The system's.
    pub fn register(&self, start: u64, end: u64) -> Result<(), Errno> {
        let length = end - start;
        self.call::<0x00, _>(&mut RegisterRequest {
            range: Range { start, length },
            mode: REGISTER_MISSING,
            ioctls: 0,
        })
    }

    /// Ends what [`Uffd::register`] began, for some addresses. Those that wait try again.
    ///
    /// # Errors
    /// The system's.
    pub fn unregister(&self, start: u64, end: u64) -> Result<(), Errno> {
        let mut range = Range {
            start,
            length: end - start,
        };
        let at = (&raw mut range).cast();
        // SAFETY: the number is that of a request that reads this structure; it changes no memory.
        unsafe { self.request(opcode::read::<Range>(GROUP, 0x01), at) }
    }

    /// Puts the messages that are there into `messages`, which it empties before: faults last, else in their order. If it
    /// `waits`, it returns when there is one.
    ///
    /// A thread that discards or unmaps runs on as soon as its message is read. Every verb after that must know of it.
    ///
    /// # Errors
    /// The system's.
    pub fn read(&self, messages: &mut Vec<Message>, waits: bool) -> Result<(), Errno> {
        self.set_waits(waits)?;
        let mut buffer = [[0; 32]; MESSAGES_MAX];
        messages.clear();
        let bytes = match rustix::io::read(self, buffer.as_flattened_mut()) {
            Ok(bytes) => bytes,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(errno) => return Err(errno),
        };
        let read = buffer.iter().take(bytes / 32);
        messages.extend(read.filter_map(Message::parse));
        faults_last(messages);
        Ok(())
    }

    /// A read that waits is one call where two would be needed, but the file must be told before.
    fn set_waits(&self, waits: bool) -> Result<(), Errno> {
        if self.waits.swap(waits, Ordering::Relaxed) == waits {
            return Ok(());
        }
        let flags = if waits {
            OFlags::empty()
        } else {
            OFlags::NONBLOCK
        };
        rustix::fs::fcntl_setfl(self, flags)
    }

    /// Waits until a message is there, or was: another answer may have woken its sender meanwhile.
    ///
    /// # Errors
    /// The system's.
    pub fn wait(&self) -> Result<(), Errno> {
        let mut polled = [PollFd::new(self, PollFlags::IN)];
        match rustix::event::poll(&mut polled, None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Moves `pages` pages of the program from address `from` into the empty slots of the ring from `slot` on.
    pub fn take(&self, from: u64, slot: u64, pages: usize) -> Done {
        let done = self.move_pages(from, slot, pages, Then::Wait);
        self.recount(done, pages, slot, true)
    }

    /// Moves `pages` pages from the ring's slots from `slot` on to the program's empty addresses from `to` on.
    pub fn bring(&self, slot: u64, to: u64, pages: usize, then: Then) -> Done {
        let done = self.move_pages(slot, to, pages, then);
        let all = self.recount(done, pages, slot, false);
        if then == Then::Wake && all.pages > done.pages {
            let came = to + (done.pages * PAGE_BYTES) as u64;
            // The system has woken those only whose pages it has counted.
            let _ = self.wake(came, all.pages - done.pages);
        }
        all
    }

    fn move_pages(&self, from: u64, to: u64, pages: usize, then: Then) -> Done {
        let mut request = MoveRequest {
            to,
            from,
            length: (pages * PAGE_BYTES) as u64,
            mode: then as u64,
            moved: 0,
        };
        let result = self.bring_or_copy::<0x05, _>(&mut request);
        #[cfg(test)]
        if result.is_ok() && self.miscounts.load(Ordering::Relaxed) > 0 {
            // As Linux 6.18 answers.
            let counted = pages - self.miscounts.swap(0, Ordering::Relaxed);
            return match counted {
                0 => done(Err(Errno::EXIST), -17, pages),
                _ => done(Err(Errno::AGAIN), (counted * PAGE_BYTES) as i64, pages),
            };
        }
        done(result, request.moved, pages)
    }

    /// Counts anew how many pages were moved, by the `slot` of the first, which are filled or emptied by that.
    ///
    /// Linux 6.18 loses count: a page for which it has to try again within the request (because it is being migrated,
    /// or was just marked as dirty) is moved, with some that follow, and not counted. It then finds the place filled, and
    /// says EEXIST, or EAGAIN if it has counted others before. Later versions do not.
    fn recount(&self, done: Done, pages: usize, slot: u64, fills: bool) -> Done {
        let may_be_wrong = match done.stopped {
            Some(Errno::EXIST) => true,
            Some(_) => done.pages > 0,
            None => false,
        };
        if !may_be_wrong {
            return done;
        }
        let next = slot + (done.pages * PAGE_BYTES) as u64;
        let more = populated::run(next, pages - done.pages, fills);
        let all = done.pages + more;
        let stopped = match more {
            0 => done.stopped,
            _ if all == pages => None,
            _ => Some(Errno::AGAIN),
        };
        Done {
            pages: all,
            stopped,
        }
    }

    /// Puts copies of `bytes`, whole pages, at the empty addresses from `to` on.
    pub fn copy(&self, bytes: &[u8], to: u64, then: Then) -> Done {
        let mut request = CopyRequest {
            to,
            from: bytes.as_ptr() as u64,
            length: bytes.len() as u64,
            mode: then as u64,
            copied: 0,
        };
        let result = self.bring_or_copy::<0x03, _>(&mut request);
        done(result, request.copied, bytes.len() / PAGE_BYTES)
    }

    /// Makes `pages` empty pages at `to` read as zeroes without memory, and wakes those that wait there.
    pub fn zero(&self, to: u64, pages: usize) -> Done {
        let mut request = RangeRequest::new(to, pages);
        let result = self.call::<0x04, _>(&mut request);
        done(result, request.done, pages)
    }

    /// Makes touching `pages` empty pages at `to` a SIGBUS, and wakes those that wait there.
    pub fn poison(&self, to: u64, pages: usize) -> Done {
        let mut request = RangeRequest::new(to, pages);
        let result = self.call::<0x08, _>(&mut request);
        done(result, request.done, pages)
    }

    /// Lets those that wait for the pages from `address` on try again.
    ///
    /// # Errors
    /// The system's.
    pub fn wake(&self, address: u64, pages: usize) -> Result<(), Errno> {
        let mut range = Range {
            start: address,
            length: (pages * PAGE_BYTES) as u64,
        };
        let at = (&raw mut range).cast();
        // SAFETY: the number is that of a request that reads this structure; waking changes no memory.
        unsafe { self.request(opcode::read::<Range>(GROUP, 0x02), at) }
    }

    /// A request that takes memory.
    fn bring_or_copy<const NUMBER: u8, T>(&self, argument: &mut T) -> Result<(), Errno> {
        #[cfg(test)]
        if self.refusals.load(Ordering::Relaxed) > 0 {
            self.refusals.fetch_sub(1, Ordering::Relaxed);
            return Err(Errno::NOMEM);
        }
        self.call::<NUMBER, T>(argument)
    }

    /// A request that reads and changes `argument`.
    fn call<const NUMBER: u8, T>(&self, argument: &mut T) -> Result<(), Errno> {
        let at = (&raw mut *argument).cast();
        // SAFETY: the structures of this file are those of the requests of their numbers. Their addresses are of
        // mappings whose pages the pager owes to the program, and it answers for the content.
        unsafe { self.request(opcode::read_write::<T>(GROUP, NUMBER), at) }
    }

    /// Whether the number is another file's now, or none's. The descriptor of another range would serve this one, too, but for
    /// moves, and would not keep requests from pages that are being discarded.
    pub fn is_another(&self) -> bool {
        let is_same = |identity| identity_of(self).is_ok_and(|now| now == identity);
        self.identity.is_some_and(|identity| !is_same(identity))
    }

    /// # Safety
    /// `argument` is what the request reads and writes.
    unsafe fn request(&self, opcode: Opcode, argument: *mut c_void) -> Result<(), Errno> {
        let request = Request { opcode, argument };
        // SAFETY: the caller's.
        unsafe { rustix::ioctl::ioctl(self.descriptor.as_fd(), request) }
    }
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for Uffd {
    fn drop(&mut self) {
        if !self.is_another() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.descriptor) };
        }
    }
}

fn identity_of(descriptor: impl AsFd) -> Result<Identity, Errno> {
    let status = rustix::fs::fstat(descriptor)?;
    Ok((status.st_dev, status.st_ino))
}

/// The right to serve other processes is none that a setting gives.
fn not_permitted_for_others(errno: Errno) -> Error {
    let text = match errno {
        Errno::NOSYS => "this kernel has no userfaultfd; use Linux 6.8 or newer",
        _ => {
            "serving other processes' memory needs CAP_SYS_PTRACE in the initial user namespace; run as root of the machine or \
             microVM; a container's seccomp profile must allow userfaultfd too"
        }
    };
    Error::new(ErrorKind::Unsupported, text).with_source(errno)
}

fn faults_last(messages: &mut [Message]) {
    messages.sort_by_key(|message| matches!(message, Message::Fault { .. }));
}

impl Message {
    fn parse(bytes: &[u8; 32]) -> Option<Message> {
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let range = |start: u64, end: u64| (start, end);
        match bytes[0] {
            EVENT_PAGEFAULT => Some(Message::Fault {
                address: word(16),
                is_write: word(8) & FLAG_WRITE != 0,
                thread: word(24) as u32,
            }),
            EVENT_FORK => Some(Message::Forked {
                descriptor: word(8) as u32 as i32,
            }),
            EVENT_REMOVE => {
                let (start, end) = range(word(8), word(16));
                Some(Message::Removed { start, end })
            }
            EVENT_UNMAP => {
                let (start, end) = range(word(8), word(16));
                Some(Message::Unmapped { start, end })
            }
            EVENT_REMAP => {
                let (start, length) = range(word(8), word(24));
                Some(Message::Moved {
                    start,
                    end: start.saturating_add(length),
                    to: word(16),
                })
            }
            _ => None,
        }
    }
}

#[repr(C)]
struct ApiRequest {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Range {
    start: u64,
    length: u64,
}

#[repr(C)]
struct RegisterRequest {
    range: Range,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct CopyRequest {
    to: u64,
    from: u64,
    length: u64,
    mode: u64,
    copied: i64,
}

#[repr(C)]
struct MoveRequest {
    to: u64,
    from: u64,
    length: u64,
    mode: u64,
    moved: i64,
}

/// Of zeroing and of poisoning.
#[repr(C)]
struct RangeRequest {
    range: Range,
    mode: u64,
    done: i64,
}

impl RangeRequest {
    fn new(start: u64, pages: usize) -> RangeRequest {
        let length = (pages * PAGE_BYTES) as u64;
        RangeRequest {
            range: Range { start, length },
            mode: 0,
            done: 0,
        }
    }
}

/// A request whose answer comes in its argument.
struct Request {
    opcode: Opcode,
    argument: *mut c_void,
}

// SAFETY: passes number and argument on; who makes one vouches that they fit.
unsafe impl Ioctl for Request {
    type Output = ();

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.argument
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> Result<(), Errno> {
        Ok(())
    }
}

/// The kernel counts bytes, or tells the error in place of them.
fn done(result: Result<(), Errno>, bytes: i64, pages: usize) -> Done {
    match result {
        Ok(()) => Done {
            pages,
            stopped: None,
        },
        Err(errno) => Done {
            pages: usize::try_from(bytes).unwrap_or(0) / PAGE_BYTES,
            stopped: Some(errno),
        },
    }
}

/// The other way in, since Linux 6.1: the right to open a file.
fn open_device() -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = rustix::fs::open("/dev/userfaultfd", flags, Mode::empty())?;
    // SAFETY: USERFAULTFD_IOC_NEW takes the flags of the descriptor as its value and reads no memory.
    unsafe { rustix::ioctl::ioctl(device, NewRequest) }
}

struct NewRequest;

// SAFETY: the request's value is flags, and its answer a new descriptor.
unsafe impl Ioctl for NewRequest {
    type Output = OwnedFd;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::none(GROUP, 0x00)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::without_provenance_mut((OFlags::CLOEXEC | OFlags::NONBLOCK).bits() as usize)
    }

    unsafe fn output_from_ptr(answer: IoctlOutput, _: *mut c_void) -> Result<OwnedFd, Errno> {
        // SAFETY: the request succeeded, so its answer is a descriptor that nobody owns.
        Ok(unsafe { OwnedFd::from_raw_fd(answer) })
    }
}

fn not_permitted(refused: Errno) -> Error {
    let text = match refused {
        Errno::NOSYS => {
            "this kernel has no userfaultfd; use one with CONFIG_USERFAULTFD, Linux 6.8 or newer"
        }
        _ => {
            "userfaultfd is not permitted; as root: `sysctl vm.unprivileged_userfaultfd=1`, or let this user read and \
             write /dev/userfaultfd; in a container also add to its seccomp profile: \
             {\"names\": [\"userfaultfd\"], \"action\": \"SCMP_ACT_ALLOW\"}"
        }
    };
    Error::new(ErrorKind::Unsupported, text).with_source(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_have_the_sizes_that_the_numbers_of_the_requests_say() {
        assert_eq!(opcode::read_write::<ApiRequest>(GROUP, 0x3F), 0xC018_AA3F);
        assert_eq!(opcode::read_write::<RegisterRequest>(GROUP, 0), 0xC020_AA00);
        assert_eq!(opcode::read::<Range>(GROUP, 1), 0x8010_AA01);
        assert_eq!(opcode::read_write::<CopyRequest>(GROUP, 3), 0xC028_AA03);
        assert_eq!(opcode::read_write::<RangeRequest>(GROUP, 4), 0xC020_AA04);
        assert_eq!(opcode::read_write::<MoveRequest>(GROUP, 5), 0xC028_AA05);
    }

    #[test]
    fn changes_of_the_mappings_come_before_faults_that_were_read_with_them() {
        let fault = |thread| Message::Fault {
            address: 0x7000,
            is_write: true,
            thread,
        };
        let (start, end) = (0x1000, 0x3000);
        let removed = Message::Removed { start, end };
        let unmapped = Message::Unmapped { start, end };
        let mut messages = [fault(1), removed, fault(2), unmapped, removed];
        faults_last(&mut messages);
        assert_eq!(messages, [removed, unmapped, removed, fault(1), fault(2)]);
    }

    #[test]
    fn messages_of_the_kernel_are_read_and_unknown_ones_passed_over() {
        let message = |event: u8, words: [u64; 3]| {
            let mut bytes = [0; 32];
            bytes[0] = event;
            for (at, word) in words.iter().enumerate() {
                bytes[8 * (at + 1)..8 * (at + 2)].copy_from_slice(&word.to_ne_bytes());
            }
            Message::parse(&bytes)
        };
        let fault = Message::Fault {
            address: 0x7000,
            is_write: true,
            thread: 9,
        };
        assert_eq!(message(EVENT_PAGEFAULT, [1, 0x7000, 9]), Some(fault));
        let (start, end) = (0x1000, 0x3000);
        let removed = Message::Removed { start, end };
        assert_eq!(message(EVENT_REMOVE, [0x1000, 0x3000, 0]), Some(removed));
        let gone = Message::Unmapped { start, end };
        let to = 0x9000;
        let moved = Message::Moved { start, end, to };
        assert_eq!(message(EVENT_REMAP, [0x1000, to, 0x2000]), Some(moved));
        assert_eq!(message(EVENT_UNMAP, [0x1000, 0x3000, 0]), Some(gone));
        assert_eq!(message(0x10, [0; 3]), None);
        assert_eq!(
            message(0x13, [7, 0, 0]),
            Some(Message::Forked { descriptor: 7 })
        );
    }
}
