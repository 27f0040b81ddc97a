//! The entry for the fuzz target: a disk that takes messages without a mount.
#![doc(hidden)]

use std::sync::Arc;

use uzram::BlockDevice;

use super::REQUEST_BYTES_MAX;
use super::disk::Disk;
use super::gate::Gate;
use super::serve::Serve;
use super::wire::MESSAGE_BYTES_MIN;

/// A disk, with the buffer of one worker.
pub struct Bare {
    disk: Disk,
    buffer: Vec<u8>,
}

impl Bare {
    #[must_use]
    pub fn new(device: Arc<dyn BlockDevice>) -> Bare {
        Bare {
            disk: Disk::new(device, "disk", Arc::new(Gate::default())),
            buffer: vec![0; REQUEST_BYTES_MAX as usize + MESSAGE_BYTES_MIN],
        }
    }

    /// Carries out one message, truncated if it does not fit.
    ///
    /// # Panics
    /// If the reply is malformed: its length differs from the one that it states, it belongs to
    /// another request, or it has an error and data.
    pub fn answer(&mut self, message: &[u8]) {
        let length = message.len().min(self.buffer.len());
        self.buffer[..length].copy_from_slice(&message[..length]);
        let unique = message.get(8..16).map(<[u8]>::to_vec);
        let Some(reply) = self.disk.answer(&mut self.buffer, length) else {
            return;
        };
        let head = reply.head();
        let said = u32::from_ne_bytes(*head.first_chunk().expect("a length"));
        assert_eq!(said as usize, head.len() + reply.data.len());
        assert_eq!(Some(&head[8..16]), unique.as_deref());
        let error = i32::from_ne_bytes(*head[4..].first_chunk().expect("an error"));
        assert!((-4095..=0).contains(&error), "{error}");
        assert!(error == 0 || said == 16, "{error} with {said} bytes in all");
    }
}
