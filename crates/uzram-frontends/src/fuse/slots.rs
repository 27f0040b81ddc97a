//! The workers' buffers, in a file of memory that can outlive this process, and the state of each.
//!
//! ```text
//! page 0          magic 8, slots 4, bytes of a buffer 4
//! of each slot:   a page: state 8, length of the reply 8, the reply; at 512 two counts of opens, 8 each; at 1024 a
//!                 copy of a short message
//!                 the buffer, in whole pages
//! ```
//!
//! # States
//!
//! ```text
//! Empty ──▶ Reading ──▶ Received(length) ──▶ Done(reply) ──▶ Empty
//! ```
//!
//! A worker that dies leaves its slot in one of them, and a successor settles it before any new worker starts:
//!
//! - `Reading`, and the length in the message's header is 0, as it was set before: nothing came. Else the kernel has copied the
//!   message, all of it, as the buffer's pages are there: a killed process is refused one that has to be fetched. They are locked as
//!   far as this user may. It counts as received.
//! - `Received`: it is carried out (again) and answered. Whoever waits for it was told nothing.
//! - `Done`: it is answered again, and **not** carried out. Between its answer and `Empty` a later write of the same
//!   page may have been answered, which an older one must not undo. The kernel takes no second answer (`ENOENT`).
//!
//! Opens and closes are counted by the slot whose worker carried them out, in one of two words: the store of `Done` says which one
//! is valid. So each counts once, whenever its worker dies.
//!
//! A read gathers its data in place of its message, so short messages are copied aside first. Requests that nobody has
//! read are the kernel's, and wait there.
//!
//! A file of another process is hostile: it is sealed against shrinking, and each length is checked where it is used.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::THREADS_MAX;
use super::wire::REPLY_BYTES_MAX;

const MAGIC: &[u8; 8] = b"uzramfs1";
const REPLY_LENGTH_AT: usize = 8;
const REPLY_AT: usize = 16;
const COUNTS_AT: usize = 512;
const ASIDE_AT: usize = 1024;
/// Longest message that is copied aside. Only writes are longer, and those leave their message as it is.
const ASIDE_BYTES: usize = 512;

const EMPTY: u64 = 0;
const READING: u64 = 1;
const RECEIVED: u64 = 2;
const DONE: u64 = 3;
/// The state is in the low byte of its word, the length of the message in the high half. The bit between says which count is
/// valid.
const STATE: u64 = 0xff;
const SECOND_COUNT: u64 = 1 << 8;
const LENGTH_SHIFT: u32 = 32;

const _: () = assert!(REPLY_AT + REPLY_BYTES_MAX <= COUNTS_AT && COUNTS_AT + 16 <= ASIDE_AT);

/// All of them.
#[derive(Debug)]
pub(super) struct Slots {
    start: NonNull<u8>,
    bytes: usize,
    count: usize,
    buffer_bytes: usize,
    file: OwnedFd,
}

// SAFETY: the mapping belongs to this value. Its words are atomic, and each slot's rest is its `Slot`'s alone.
unsafe impl Send for Slots {}
// SAFETY: as above.
unsafe impl Sync for Slots {}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: mapped by `Slots::map` with this length; all that borrows from it holds this value.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Something that a dead worker left.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Left {
    Nothing,
    /// A message of this length, at the start of the buffer.
    Message(usize),
    /// The head of a reply.
    Reply(Vec<u8>),
}

/// The buffer of one worker.
#[derive(Debug)]
pub(super) struct Slot {
    slots: Arc<Slots>,
    index: usize,
}

/// The state of a slot, while its buffer is in use.
pub(super) struct State<'a> {
    slots: &'a Slots,
    page_at: usize,
}

fn page_bytes() -> usize {
    uzram::system_page::size_bytes()
}

impl Slots {
    /// `count` slots with buffers of so many bytes.
    ///
    /// # Errors
    /// If the system gives no memory.
    pub fn new(count: usize, buffer_bytes: usize) -> io::Result<Slots> {
        let bytes = bytes_of(count, buffer_bytes);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("uzram-fuse", flags)?;
        rustix::fs::ftruncate(&file, bytes as u64)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        let slots = Slots::map(file, bytes, count, buffer_bytes)?;
        slots.copy_in(0, MAGIC);
        slots.copy_in(8, &(count as u32).to_ne_bytes());
        slots.copy_in(12, &(buffer_bytes as u32).to_ne_bytes());
        Ok(slots)
    }

    /// Those of a dead process.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] with the reason for a file that cannot be one, or whose buffers have other lengths.
    pub fn resume(file: OwnedFd, buffer_bytes: usize) -> io::Result<Slots> {
        let bad = |why: String| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("requests under way: {why}"),
            )
        };
        let seals =
            rustix::fs::fcntl_get_seals(&file).map_err(|_| bad("no file of memory".into()))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(bad("could shrink".into()));
        }
        let file = File::from(file);
        let length = file.metadata()?.size();
        let mut facts = [0; 16];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut facts, 0)?;
        let half =
            |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|index| facts[at + index])) as usize;
        let (count, theirs) = (half(8), half(12));
        if facts[..8] != *MAGIC || theirs != buffer_bytes {
            return Err(bad(format!(
                "buffers of {theirs} bytes and not {buffer_bytes}, or another format"
            )));
        }
        if !(1..=THREADS_MAX).contains(&count) || length != bytes_of(count, buffer_bytes) as u64 {
            return Err(bad(format!("{count} buffers in {length} bytes")));
        }
        Slots::map(file.into(), length as usize, count, buffer_bytes)
    }

    fn map(file: OwnedFd, bytes: usize, count: usize, buffer_bytes: usize) -> io::Result<Slots> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // Populated: serving must not have to wait for memory.
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at a place of the kernel's choice touches no memory of ours; the file cannot shrink.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, flags, &file, 0) }?;
        let slots = Slots {
            start: NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?,
            bytes,
            count,
            buffer_bytes,
            file,
        };
        // SAFETY: all of it is mapped, and the advice changes no content. A successor waits for the end of a core dump.
        let _ = unsafe { rustix::mm::madvise(start, bytes, Advice::LinuxDontDump) };
        for index in 0..count {
            // SAFETY: the slot lies within the mapping.
            let start = unsafe { slots.start.add(slots.page_of(index)) };
            // SAFETY: all of it is mapped. Where it is refused, as beyond RLIMIT_MEMLOCK, a page that was swapped out costs its
            // request an error if the process is killed just then.
            let _ = unsafe { rustix::mm::mlock(start.as_ptr().cast(), slot_bytes(buffer_bytes)) };
        }
        Ok(slots)
    }

    /// Another descriptor of the file.
    ///
    /// # Errors
    /// If no more may be had.
    pub fn file(&self) -> io::Result<OwnedFd> {
        self.file.try_clone()
    }

    /// The number of times that the file is open, while no worker runs.
    pub fn opens(&self) -> u64 {
        let count = |index: usize| {
            let page_at = self.page_of(index);
            let word = self.word(page_at).load(Ordering::Acquire);
            self.count(page_at, word).load(Ordering::Relaxed)
        };
        let sum = (0..self.count).map(count).fold(0, u64::wrapping_add);
        // One slot may have closed what another one opened. Less than nothing is damage.
        u64::try_from(sum.cast_signed()).unwrap_or(0)
    }

    /// The valid count of the slot whose page is at `page_at`, with the state `word`.
    fn count(&self, page_at: usize, word: u64) -> &AtomicU64 {
        let second = usize::from(word & SECOND_COUNT != 0);
        self.word(page_at + COUNTS_AT + 8 * second)
    }

    /// The word at `at`, a multiple of 8 within the mapping.
    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.bytes);
        // SAFETY: within the mapping, as was just checked.
        let place = unsafe { self.start.add(at) };
        // SAFETY: aligned, mapped for as long as this value, and used as an atomic word alone.
        unsafe { AtomicU64::from_ptr(place.cast().as_ptr()) }
    }

    fn copy_in(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.bytes);
        // SAFETY: within the mapping, as was just checked.
        let place = unsafe { self.start.add(at) };
        // SAFETY: the place is mapped, and no slice is ever made of a slot's page or of the first one.
        unsafe { place.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
    }

    fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        assert!(at + bytes.len() <= self.bytes);
        // SAFETY: within the mapping, as was just checked.
        let place = unsafe { self.start.add(at) };
        // SAFETY: as in `copy_in`.
        unsafe { place.copy_to_nonoverlapping(NonNull::from(&mut *bytes).cast(), bytes.len()) };
    }

    fn page_of(&self, index: usize) -> usize {
        page_bytes() + index * slot_bytes(self.buffer_bytes)
    }
}

fn slot_bytes(buffer_bytes: usize) -> usize {
    page_bytes() + buffer_bytes.next_multiple_of(page_bytes())
}

fn bytes_of(count: usize, buffer_bytes: usize) -> usize {
    page_bytes() + count * slot_bytes(buffer_bytes)
}

impl Slot {
    /// All slots, each for one worker.
    pub fn all(slots: Slots) -> Vec<Slot> {
        let slots = Arc::new(slots);
        let slot = |index| Slot {
            slots: Arc::clone(&slots),
            index,
        };
        (0..slots.count).map(slot).collect()
    }

    /// The slots that this is one of.
    pub fn of(&self) -> &Arc<Slots> {
        &self.slots
    }

    /// The state and the buffer.
    pub fn parts(&mut self) -> (State<'_>, &mut [u8]) {
        let page_at = self.slots.page_of(self.index);
        let state = State {
            slots: &self.slots,
            page_at,
        };
        let at = page_at + page_bytes();
        assert!(at + self.slots.buffer_bytes <= self.slots.bytes);
        // SAFETY: within the mapping, as was just checked.
        let start = unsafe { self.slots.start.add(at) };
        // SAFETY: mapped for as long as the slots, readable and writable. There is one `Slot` of each index, and it
        // is borrowed; nothing else reads or writes buffers.
        let buffer =
            unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.slots.buffer_bytes) };
        (state, buffer)
    }

    /// Takes what a dead worker left. A message is at the start of the buffer then.
    pub fn left(&mut self) -> Left {
        let (state, buffer) = self.parts();
        let word = state.word().load(Ordering::Acquire);
        let length = match word & STATE {
            READING => first_word(buffer) as usize,
            RECEIVED => {
                let length = (word >> LENGTH_SHIFT) as usize;
                if length <= ASIDE_BYTES {
                    state
                        .slots
                        .copy_out(state.page_at + ASIDE_AT, &mut buffer[..length]);
                }
                length
            }
            DONE => {
                let length = state.slots.word(state.page_at + REPLY_LENGTH_AT);
                let length = length.load(Ordering::Relaxed) as usize;
                let mut reply = vec![0; length.min(REPLY_BYTES_MAX)];
                state.slots.copy_out(state.page_at + REPLY_AT, &mut reply);
                return Left::Reply(reply);
            }
            _ => 0,
        };
        match length {
            0 => Left::Nothing,
            _ => Left::Message(length.min(self.slots.buffer_bytes)),
        }
    }
}

fn first_word(buffer: &[u8]) -> u32 {
    buffer
        .first_chunk()
        .map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

impl State<'_> {
    fn word(&self) -> &AtomicU64 {
        self.slots.word(self.page_at)
    }

    /// Before the kernel is asked for a message in `buffer`.
    pub fn reading(&self, buffer: &mut [u8]) {
        if self.word().load(Ordering::Relaxed) & STATE == READING {
            // Nothing came at the last look.
            return;
        }
        buffer[..4].fill(0);
        // The header's length is 0 before anybody can take it for one.
        self.set(READING);
    }

    /// A message of this length has come.
    pub fn received(&self, message: &[u8]) {
        if message.len() <= ASIDE_BYTES {
            self.slots.copy_in(self.page_at + ASIDE_AT, message);
        }
        self.set(RECEIVED | (message.len() as u64) << LENGTH_SHIFT);
    }

    /// It was carried out, and this is all of the reply; one with data is made anew instead. The file is open `opens` times more.
    pub fn done(&self, reply: &[u8], opens: i64) {
        let length = self.slots.word(self.page_at + REPLY_LENGTH_AT);
        length.store(reply.len() as u64, Ordering::Relaxed);
        self.slots.copy_in(self.page_at + REPLY_AT, reply);
        let word = self.word().load(Ordering::Relaxed);
        if opens == 0 {
            return self.set(DONE);
        }
        let count = self.slots.count(self.page_at, word).load(Ordering::Relaxed);
        let other = word ^ SECOND_COUNT;
        let next = self.slots.count(self.page_at, other);
        next.store(count.wrapping_add_signed(opens), Ordering::Relaxed);
        let word = DONE | (other & SECOND_COUNT);
        self.word().store(word, Ordering::Release);
    }

    /// It was answered.
    pub fn empty(&self) {
        self.set(EMPTY);
    }

    /// Leaves the valid count as it is.
    fn set(&self, state: u64) {
        let word = self.word().load(Ordering::Relaxed);
        self.word()
            .store(state | (word & SECOND_COUNT), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    const BUFFER_BYTES: usize = 20_000;

    fn slot() -> Slot {
        let slots = Slots::new(2, BUFFER_BYTES).unwrap();
        Slot::all(slots).pop().unwrap()
    }

    /// The slots as another process finds them.
    fn again(slot: &Slot) -> Vec<Slot> {
        let file = slot.of().file().unwrap();
        Slot::all(Slots::resume(file, BUFFER_BYTES).unwrap())
    }

    fn message(length: usize) -> Vec<u8> {
        let mut bytes = vec![7; length];
        bytes[..4].copy_from_slice(&(length as u32).to_ne_bytes());
        bytes
    }

    #[test]
    fn a_dead_worker_leaves_what_it_had_begun() {
        for length in [40, ASIDE_BYTES, ASIDE_BYTES + 1, BUFFER_BYTES] {
            let mut slot = slot();
            let left = |slot: &Slot| again(slot)[1].left();
            assert_eq!(left(&slot), Left::Nothing);
            let (state, buffer) = slot.parts();
            // Of an earlier message.
            buffer.fill(9);
            state.reading(buffer);
            assert_eq!(left(&slot), Left::Nothing);
            let message = message(length);
            slot.parts().1[..length].copy_from_slice(&message);
            assert_eq!(left(&slot), Left::Message(length), "copied and not noted");
            let (state, buffer) = slot.parts();
            state.received(&buffer[..length]);
            if length <= ASIDE_BYTES {
                // A read gathers its data.
                buffer.fill(1);
            }
            let mut successor = again(&slot).pop().unwrap();
            assert_eq!(successor.left(), Left::Message(length));
            assert_eq!(successor.parts().1[..length], message);
            slot.parts().0.done(b"a reply", 0);
            assert_eq!(left(&slot), Left::Reply(b"a reply".to_vec()));
            slot.parts().0.empty();
            assert_eq!(left(&slot), Left::Nothing);
            assert_eq!(again(&slot)[0].left(), Left::Nothing, "another one's");
        }
    }

    /// An open or close counts from the moment at which it is not carried out again, and not before.
    #[test]
    fn opens_count_once_whenever_a_worker_dies() {
        let mut slots = Slot::all(Slots::new(2, BUFFER_BYTES).unwrap());
        let opens = |slot: &Slot| again(slot)[0].of().opens();
        for (index, change, sum) in [(0, 1, 1), (1, 1, 2), (1, -1, 1), (1, -1, 0), (0, 1, 1)] {
            let before = opens(&slots[0]);
            let (state, buffer) = slots[index].parts();
            state.reading(buffer);
            state.received(b"a message");
            assert_eq!(opens(&slots[0]), before);
            slots[index].parts().0.done(b"a reply", change);
            assert_eq!(opens(&slots[0]), sum);
            slots[index].parts().0.empty();
            assert_eq!(opens(&slots[0]), sum);
        }
        let (state, _) = slots[0].parts();
        state.done(b"", i64::MIN);
        assert_eq!(opens(&slots[0]), 0, "damage");
    }

    #[test]
    fn hostile_files_are_refused_or_bounded() {
        let other = |count: u32, buffer_bytes: u32| {
            let slot = slot();
            let file = File::from(slot.of().file().unwrap());
            file.write_all_at(&count.to_ne_bytes(), 8).unwrap();
            file.write_all_at(&buffer_bytes.to_ne_bytes(), 12).unwrap();
            Slots::resume(file.into(), BUFFER_BYTES).map(drop)
        };
        assert!(other(2, BUFFER_BYTES as u32).is_ok());
        for (count, buffer_bytes) in [(0, 20_000), (3, 20_000), (u32::MAX, 20_000), (2, 20_001)] {
            assert!(
                other(count, buffer_bytes).is_err(),
                "{count} of {buffer_bytes}"
            );
        }
        assert!(Slots::resume(File::open("/dev/null").unwrap().into(), BUFFER_BYTES).is_err());
        let unsealed = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(Slots::resume(unsealed, BUFFER_BYTES).is_err());

        for state in [0, 1, 2, 3, 4, u64::MAX] {
            for length in [0, 1, u64::from(u32::MAX)] {
                let mut slot = slot();
                let (now, buffer) = slot.parts();
                buffer.fill(0xff);
                now.word()
                    .store(state | length << LENGTH_SHIFT, Ordering::Relaxed);
                now.slots
                    .word(now.page_at + REPLY_LENGTH_AT)
                    .store(u64::MAX, Ordering::Relaxed);
                match slot.left() {
                    Left::Message(bytes) => assert!((1..=BUFFER_BYTES).contains(&bytes)),
                    Left::Reply(reply) => assert_eq!(reply.len(), REPLY_BYTES_MAX),
                    Left::Nothing => {}
                }
            }
        }
    }
}
