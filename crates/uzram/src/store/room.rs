//! Room in a backing file that grows, made ahead of what is written.
//!
//! A direct write that makes a file longer has the file system's lock alone, and an io_uring hands it to a thread of
//! the kernel's; writes into room that is there go on side by side. So the second batch of a pass that would grow the
//! file, and those after it, find room for more than themselves. What is left of it goes back at the pass's end.

use std::fs::File;

use rustix::fs::FallocateFlags;
use rustix::process::{Resource, getrlimit};

/// Room that is made at once: as much as the file has, within these bytes.
const BYTES_MIN: u64 = 1 << 20;
const BYTES_MAX: u64 = 64 << 20;

/// The ends of what a file has, in bytes. It belongs to the turn to write back.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Of all that was written.
    written: u64,
    /// Of the room that was made.
    made: u64,
    /// Whether the pass has written behind the end before.
    is_growing: bool,
    /// Whether the file takes none.
    is_refused: bool,
}

impl Room {
    /// That of a file which ends at `made`, and which a dead process may have written up to `written`, in bytes.
    #[cfg(not(uzram_shuttle))]
    pub fn left(written: u64, made: u64) -> Room {
        Room {
            written,
            made,
            ..Room::default()
        }
    }

    /// Notes a write that makes no room and ends at `end`.
    pub fn reach(&mut self, end: u64) {
        self.written = self.written.max(end);
    }

    /// Makes room in `file` if a write that ends at `end` needs some, and never behind `most`. Without it the write
    /// makes the file longer itself, or says why it cannot.
    pub fn make(&mut self, file: &File, end: u64, most: u64) {
        if end > self.made.max(self.written) && self.is_growing && !self.is_refused {
            let start = self.made.max(self.written);
            let ahead = start.clamp(BYTES_MIN, BYTES_MAX);
            // Behind the process's limit of a file's size a signal would end it.
            let limit = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
            let wanted = end.saturating_add(ahead).min(most).min(limit);
            if wanted > start {
                let done =
                    rustix::fs::fallocate(file, FallocateFlags::empty(), start, wanted - start);
                self.is_refused = done.is_err();
                if done.is_ok() {
                    self.made = wanted;
                }
            }
        }
        self.is_growing |= end > self.written;
        self.reach(end);
    }

    /// Gives back what was not used. A full disk may have room again at the next pass.
    pub fn give_back(&mut self, file: &File) {
        if self.made > self.written {
            // What stays is free for the next pass.
            let is_given = file.set_len(self.written).is_ok();
            self.made = if is_given { self.written } else { self.made };
        }
        self.is_growing = false;
        self.is_refused = false;
    }
}

#[cfg(all(test, not(uzram_shuttle)))]
mod tests {
    use super::*;

    const BATCH: u64 = 128 << 10;
    const ENDLESS: u64 = u64::MAX;

    #[test]
    fn room_is_made_from_the_second_growth_on_and_what_is_left_goes_back() {
        let file = tempfile::tempfile().unwrap();
        let length = || file.metadata().unwrap().len();
        let mut room = Room::default();
        room.make(&file, BATCH, ENDLESS);
        assert_eq!(length(), 0, "one batch alone needs none");
        room.make(&file, 2 * BATCH, ENDLESS);
        let made = length();
        assert_eq!(made, 2 * BATCH + BYTES_MIN);
        for end in (2 * BATCH..=made).step_by(BATCH as usize) {
            room.make(&file, end, ENDLESS);
        }
        assert_eq!(length(), made, "there is enough");
        let far = 128 << 20;
        room.make(&file, far, ENDLESS);
        room.make(&file, 2 * far, ENDLESS);
        assert_eq!(length(), 2 * far + BYTES_MAX, "it is bounded");
        room.give_back(&file);
        assert_eq!(length(), 2 * far);
        // The same blocks again.
        room.make(&file, BATCH, ENDLESS);
        room.make(&file, 2 * BATCH, ENDLESS);
        room.give_back(&file);
        assert_eq!(length(), 2 * far);
    }

    #[test]
    fn none_is_made_behind_the_last_block_or_where_it_is_refused() {
        let file = tempfile::tempfile().unwrap();
        let length = || file.metadata().unwrap().len();
        let mut room = Room::default();
        room.make(&file, BATCH, 3 * BATCH);
        room.make(&file, 2 * BATCH, 3 * BATCH);
        assert_eq!(length(), 3 * BATCH);
        let reader = File::open("/dev/null").unwrap();
        let mut room = Room::default();
        for batch in 1..5 {
            room.make(&reader, batch * BATCH, ENDLESS);
        }
        assert!(room.is_refused);
        room.give_back(&reader);
        assert_eq!(room.written, 4 * BATCH);
    }
}
