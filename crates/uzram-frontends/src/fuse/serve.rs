//! A file system as a worker needs it.

use super::wire::Reply;

/// A file system that answers the kernel's messages.
pub(super) trait Serve: Send + Sync {
    /// Carries out the message of this length at the start of `buffer`. Data that is read is
    /// gathered in `buffer`, in place of the message. `None` if the message takes no reply.
    fn answer<'b>(&self, buffer: &'b mut [u8], message_bytes: usize) -> Option<Reply<'b>>;

    /// Most data in one request, in bytes.
    fn request_bytes_max(&self) -> usize;
}
