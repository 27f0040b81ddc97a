//! Replies on their way out, and the growing of buffers.

/// Replies that wait to be sent.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// Its length is what was ever needed, so that no byte is zeroed twice.
    buffer: Vec<u8>,
    end: usize,
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

    /// Gives memory beyond `keep_bytes` back; nothing may be pending.
    pub fn shrink(&mut self, keep_bytes: usize) {
        if self.buffer.len() > keep_bytes {
            self.buffer = Vec::new();
            self.end = 0;
        }
    }

    /// Room for `length` bytes after what is pending, `None` if there is no memory.
    pub(super) fn reserve(&mut self, length: usize) -> Option<&mut [u8]> {
        let needed = self.end + length;
        if needed > self.buffer.len() {
            grow(&mut self.buffer, needed)?;
        }
        Some(&mut self.buffer[self.end..needed])
    }

    /// Accepts `length` bytes that were written to what [`Output::reserve`] gave.
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
