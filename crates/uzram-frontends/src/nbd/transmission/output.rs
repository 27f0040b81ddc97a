//! Pending replies, and buffers that grow.

use std::sync::Arc;

use crate::nbd::budget::{Budget, Kept};

/// A buffer up to this size suffices for small requests and is not counted, in bytes.
const UNCOUNTED_BYTES_MAX: usize = 256 << 10;

/// Replies that wait to be sent.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// Its length is the most that was ever needed, so that no byte is zeroed twice.
    buffer: Vec<u8>,
    end: usize,
    /// The buffer's bytes in the budget while it is kept for later.
    kept: Option<Kept>,
}

impl Output {
    pub fn pending(&self) -> &[u8] {
        &self.buffer[..self.end]
    }

    /// The same, to complete a head whose payload came first.
    pub(super) fn pending_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.end]
    }

    /// Takes back what was appended after the first `length` pending bytes.
    pub(super) fn truncate(&mut self, length: usize) {
        self.end = self.end.min(length);
    }

    pub fn is_empty(&self) -> bool {
        self.end == 0
    }

    pub fn clear(&mut self) {
        self.end = 0;
    }

    /// Keeps memory of at most `bytes_max` for the next large reply, if `budget` has room for it.
    /// Nothing may be pending.
    pub fn keep(&mut self, bytes_max: usize, budget: &Arc<Budget>) {
        if !may_stay(&mut self.kept, self.buffer.capacity(), bytes_max, budget) {
            self.release();
        }
    }

    /// Gives its memory back; nothing may be pending.
    pub fn release(&mut self) {
        *self = Output::default();
    }

    /// Room for `length` bytes after what is pending, `None` if there is no memory.
    pub(super) fn reserve(&mut self, length: usize) -> Option<&mut [u8]> {
        let needed = self.end + length;
        if needed > self.buffer.len() {
            grow(&mut self.buffer, needed)?;
        }
        Some(&mut self.buffer[self.end..needed])
    }

    /// Accepts `length` bytes that were written to the room of [`Output::reserve`].
    pub(super) fn advance(&mut self, length: usize) {
        self.end += length;
    }

    pub fn push(&mut self, bytes: &[u8]) {
        let needed = self.end + bytes.len();
        if needed > self.buffer.len() {
            self.buffer.resize(needed, 0);
        }
        self.buffer[self.end..needed].copy_from_slice(bytes);
        self.end = needed;
    }
}

/// A fresh buffer up to this size is made in one piece, zeroed by the system as it is touched.
const FRESH_BYTES_MAX: usize = 128 << 10;

/// Whether a buffer of `bytes` may stay for the next large request or reply: it is not counted, or it
/// has at most `bytes_max` and `budget` has room for it. Renews `kept`, its share of the budget.
pub(super) fn may_stay(
    kept: &mut Option<Kept>,
    bytes: usize,
    bytes_max: usize,
    budget: &Arc<Budget>,
) -> bool {
    if bytes <= UNCOUNTED_BYTES_MAX {
        return true;
    }
    // Given back first: the buffer must not be counted twice.
    *kept = None;
    if bytes <= bytes_max {
        *kept = budget.keep(bytes);
    }
    kept.is_some()
}

/// Makes a buffer longer, the new bytes being zero; `None` if there is no memory.
pub(super) fn grow(buffer: &mut Vec<u8>, length: usize) -> Option<()> {
    if buffer.is_empty() && length <= FRESH_BYTES_MAX {
        *buffer = vec![0; length];
        return Some(());
    }
    if buffer.capacity() < length {
        buffer.try_reserve_exact(length - buffer.len()).ok()?;
    }
    buffer.resize(length, 0);
    Some(())
}
