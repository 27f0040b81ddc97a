//! Writes that are under way through an io_uring, and the memory that they name.
//!
//! The ring takes one operation on one file (IORING_REGISTER_RESTRICTIONS), so whoever may use it may do nothing with
//! it but write there. Buffers move into it and come back when the kernel is done with them.
//!
//! The rest is handed back to the ring's owner: a request beyond its places, the rest of one that wrote less, and
//! all of them once the system refuses to take requests. It may refuse when a filter of system calls is installed later.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::register::Restriction;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::io::Errno;

use super::direct::AlignedBytes;
use crate::sync;

/// Requests that are under way at once.
const PLACES: u32 = 128;
/// The file's place in the ring's table of files.
const FILE: types::Fixed = types::Fixed(0);
/// From linux/io_uring.h: the one use of `io_uring_register` that stays.
const UNREGISTER_FILES: u8 = 3;
/// Pause before the next look for results, or the next try to hand requests over.
const PAUSE: Duration = Duration::from_millis(1);
/// Tries to hand requests over while the kernel is short of memory: a second.
const TRIES_MAX: usize = 1000;

/// A part of a buffer, and where it goes in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub bytes: Range<usize>,
    /// In bytes.
    pub at: u64,
}

/// A buffer that is being written.
#[derive(Debug, Default)]
struct Held {
    bytes: AlignedBytes,
    runs: Vec<Run>,
    /// Requests that the kernel has.
    under_way: usize,
    /// Parts that the ring has not written.
    rest: Vec<Run>,
    failed: Option<Errno>,
}

/// The ring, and a place for each of its buffers.
pub(super) struct Ring {
    ring: IoUring,
    held: Vec<Held>,
    /// Requests that the kernel has.
    under_way: usize,
    /// The system takes no requests any more.
    is_broken: bool,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring")
            .field("held", &self.held)
            .finish_non_exhaustive()
    }
}

impl Ring {
    /// A ring for writes to `file` of this many buffers at once.
    ///
    /// # Errors
    /// The system's: no io_uring, or none that can be restricted (before Linux 5.10).
    pub fn new(file: &File, buffers: usize) -> io::Result<Ring> {
        let ring = IoUring::builder().setup_r_disabled().build(PLACES)?;
        let submitter = ring.submitter();
        submitter.register_files(&[file.as_raw_fd()])?;
        let fixed = squeue::Flags::FIXED_FILE.bits();
        submitter.register_restrictions(&mut [
            Restriction::sqe_op(opcode::Write::CODE),
            Restriction::sqe_flags_required(fixed),
            Restriction::sqe_flags_allowed(fixed),
            Restriction::register_op(UNREGISTER_FILES),
        ])?;
        submitter.register_enable_rings()?;
        Ok(Ring {
            ring,
            held: std::iter::repeat_with(Held::default)
                .take(buffers)
                .collect(),
            under_way: 0,
            is_broken: false,
        })
    }

    /// Begins to write `runs` of `bytes`, which has this place until [`Ring::finish`].
    pub fn start(&mut self, place: usize, bytes: AlignedBytes, runs: Vec<Run>) {
        debug_assert_eq!(self.held[place].under_way, 0);
        self.held[place] = Held {
            bytes,
            runs,
            ..Held::default()
        };
        for number in 0..self.held[place].runs.len() {
            self.push(place, number);
        }
        // The first ones: no room comes back before they are handed over.
        let pushed = self.held[place].under_way;
        self.submit(place, pushed);
    }

    fn push(&mut self, place: usize, number: usize) {
        let held = &mut self.held[place];
        let run = &held.runs[number];
        let bytes = &held.bytes.bytes()[run.bytes.clone()];
        let entry = opcode::Write::new(FILE, bytes.as_ptr(), bytes.len() as u32).offset(run.at);
        let entry = entry
            .build()
            .user_data((place as u64) << 32 | number as u64);
        let has_room = self.under_way < PLACES as usize && !self.is_broken;
        // SAFETY: the entry names bytes of a buffer that this ring owns, and that it neither changes nor gives away or
        // frees before the kernel has said that the request is done: `finish` and `drop` wait for that.
        if has_room && unsafe { self.ring.submission().push(&entry) }.is_ok() {
            held.under_way += 1;
            self.under_way += 1;
        } else {
            held.rest.push(run.clone());
        }
    }

    /// Hands the requests for the first `pushed` runs of `place`, all that are waiting, to the kernel. Those that it does
    /// not take are left over.
    fn submit(&mut self, place: usize, pushed: usize) {
        if self.is_broken {
            return;
        }
        for _ in 0..TRIES_MAX {
            let waiting = self.ring.submission().len();
            if waiting == 0 {
                return;
            }
            match self.ring.submit() {
                Ok(taken) if taken > 0 => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // It has no memory for now, or waits for results to be taken.
                Ok(_) => self.take_results_later(),
                Err(error) if is_passing(&error) => self.take_results_later(),
                Err(_) => break,
            }
        }
        // They stay in the ring, which is never handed over again.
        let left = self.ring.submission().len();
        self.is_broken |= left > 0;
        self.under_way -= left;
        let held = &mut self.held[place];
        held.under_way -= left;
        let lost = held.runs[pushed - left..pushed].to_vec();
        held.rest.extend(lost);
    }

    fn take_results_later(&mut self) {
        sync::sleep(PAUSE);
        self.take_results();
    }

    /// Waits until all of the buffer at `place` is written, and gives it back. `write` writes what the ring has not.
    pub fn finish(
        &mut self,
        place: usize,
        mut write: impl FnMut(&[u8], u64) -> io::Result<()>,
    ) -> (AlignedBytes, io::Result<()>) {
        let mut done = Ok(());
        loop {
            let held = &mut self.held[place];
            for run in std::mem::take(&mut held.rest) {
                done = done.and(write(&held.bytes.bytes()[run.bytes], run.at));
            }
            if held.under_way == 0 {
                break;
            }
            self.wait();
        }
        let held = std::mem::take(&mut self.held[place]);
        let failed = held.failed.map_or(Ok(()), |errno| Err(errno.into()));
        (held.bytes, done.and(failed))
    }

    /// Waits for results. It has no limit, as no write has: a disk answers or fails.
    fn wait(&mut self) {
        if self.is_broken || self.ring.submit_and_wait(1).is_err() {
            sync::sleep(PAUSE);
        }
        self.take_results();
    }

    fn take_results(&mut self) {
        for entry in self.ring.completion() {
            self.under_way -= 1;
            let place = (entry.user_data() >> 32) as usize;
            self.held[place].note(&entry);
        }
    }
}

impl Held {
    fn note(&mut self, entry: &cqueue::Entry) {
        self.under_way -= 1;
        let Run { bytes, at } = self.runs[entry.user_data() as u32 as usize].clone();
        let written = match u32::try_from(entry.result()) {
            Ok(written) => (written as usize).min(bytes.len()),
            Err(_) if is_passing(&io::Error::from_raw_os_error(-entry.result())) => 0,
            Err(_) => {
                self.failed = Some(Errno::from_raw_os_error(-entry.result()));
                return;
            }
        };
        if written < bytes.len() {
            self.rest.push(Run {
                bytes: bytes.start + written..bytes.end,
                at: at + written as u64,
            });
        }
    }
}

/// Whether another try may do.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy
    )
}

impl Drop for Ring {
    fn drop(&mut self) {
        while self.under_way > 0 {
            self.wait();
        }
        // Otherwise the file stays open until the kernel has taken the ring down, some time later.
        let _ = self.ring.submitter().unregister_files();
    }
}

#[cfg(all(test, not(uzram_shuttle)))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "all of this is a test")]

    use std::io::Read;
    use std::os::fd::{FromRawFd, OwnedFd};
    use std::os::unix::fs::FileExt;

    use super::*;

    /// None, with a word about it, where the system has no io_uring.
    fn ring(file: &File, buffers: usize) -> Option<Ring> {
        let ring = Ring::new(file, buffers);
        ring.inspect_err(|error| println!("skipped: {error}")).ok()
    }

    fn bytes(length: usize, seed: usize) -> AlignedBytes {
        let mut bytes = AlignedBytes::new(length).unwrap();
        let content = bytes.bytes_mut().iter_mut();
        (0..)
            .zip(content)
            .for_each(|(at, byte)| *byte = (at / 7 + seed) as u8);
        bytes
    }

    fn run(bytes: Range<usize>, at: u64) -> Run {
        Run { bytes, at }
    }

    #[test]
    fn all_runs_are_written_more_than_there_are_places_too() {
        let file = tempfile::tempfile().unwrap();
        let Some(mut ring) = ring(&file, 3) else {
            return;
        };
        let count = PLACES as usize + 40;
        let pieces = |first: u64| {
            let piece = |n: usize| run(n * 64..(n + 1) * 64, (first + 2 * n as u64) * 64);
            (0..count).map(piece).collect::<Vec<_>>()
        };
        ring.start(0, bytes(count * 64, 1), pieces(0));
        ring.start(2, bytes(count * 64, 2), pieces(1));
        for (place, seed, first) in [(2, 2, 1), (0, 1, 0)] {
            let (back, done) = ring.finish(place, |rest, at| file.write_all_at(rest, at));
            done.unwrap();
            assert_eq!(back.bytes(), bytes(count * 64, seed).bytes());
            for Run { bytes, at } in pieces(first) {
                let mut found = [0; 64];
                file.read_exact_at(&mut found, at).unwrap();
                assert_eq!(found, back.bytes()[bytes]);
            }
        }
    }

    #[test]
    fn a_refused_write_and_a_short_one_are_told() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let Some(mut refused) = ring(&full, 1) else {
            return;
        };
        refused.start(0, bytes(4096, 1), vec![run(0..4096, 0)]);
        let (_, done) = refused.finish(0, |_, _| unreachable!("it was refused"));
        assert_eq!(done.unwrap_err().kind(), io::ErrorKind::StorageFull);

        let (mut reader, writer) = std::io::pipe().unwrap();
        rustix::fs::fcntl_setfl(&writer, rustix::fs::OFlags::NONBLOCK).unwrap();
        let writer = File::from(std::os::fd::OwnedFd::from(writer));
        // The room of a pipe if nobody says otherwise.
        let room = 65536;
        let mut short = ring(&writer, 1).unwrap();
        short.start(0, bytes(3 * room, 1), vec![run(0..3 * room, 0)]);
        let mut rests = Vec::new();
        let (back, done) = short.finish(0, |rest, at| {
            rests.push((rest.to_vec(), at));
            Ok(())
        });
        done.unwrap();
        assert_eq!(rests, [(back.bytes()[room..].to_vec(), room as u64)]);
        let mut found = vec![0; room];
        reader.read_exact(&mut found).unwrap();
        assert_eq!(found, back.bytes()[..room]);
    }

    /// As when a filter of system calls comes later.
    #[test]
    fn what_the_system_does_not_take_is_left_to_the_owner() {
        let file = tempfile::tempfile().unwrap();
        let Some(mut ring) = ring(&file, 2) else {
            return;
        };
        let count = PLACES as usize + 3;
        let pieces: Vec<_> = (0..count as u64)
            .map(|n| run(n as usize * 64..(n as usize + 1) * 64, n * 64))
            .collect();
        let descriptor = ring.ring.as_raw_fd();
        // SAFETY: the ring goes on to own the number, which now is another file's.
        let mut own = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(descriptor) });
        rustix::io::dup3(&file, &mut own, rustix::io::DupFlags::CLOEXEC).unwrap();
        for place in 0..2 {
            ring.start(place, bytes(count * 64, place), pieces.clone());
            let mut rests = Vec::new();
            let (_, done) = ring.finish(place, |rest, at| {
                rests.push((at, rest.to_vec()));
                Ok(())
            });
            done.unwrap();
            rests.sort();
            let found: Vec<u8> = rests.into_iter().flat_map(|(_, bytes)| bytes).collect();
            assert!(found == bytes(count * 64, place).bytes(), "batch {place}");
        }
    }

    /// Neither reading nor another file.
    #[test]
    fn nothing_passes_but_writes_to_the_file() {
        let file = tempfile::tempfile().unwrap();
        let Some(mut ring) = ring(&file, 1) else {
            return;
        };
        let other = tempfile::tempfile().unwrap();
        let mut into = [0_u8; 8];
        let descriptor = types::Fd(other.as_raw_fd());
        for entry in [
            opcode::Read::new(FILE, into.as_mut_ptr(), 8).build(),
            opcode::Write::new(descriptor, into.as_ptr(), 8).build(),
            opcode::Fsync::new(FILE).build(),
            opcode::Nop::new().build(),
        ] {
            // SAFETY: each is refused before it uses the array, which outlives the wait below.
            unsafe { ring.ring.submission().push(&entry) }.unwrap();
            ring.ring.submit_and_wait(1).unwrap();
            let result = ring.ring.completion().next().unwrap().result();
            assert_eq!(Errno::from_raw_os_error(-result), Errno::ACCESS);
        }
        let more = ring.ring.submitter().register_files(&[other.as_raw_fd()]);
        assert!(more.is_err());
        assert_eq!(other.metadata().unwrap().len(), 0);
    }
}
