//! The result of receiving, in the clear and through TLS.

/// The result of an attempt to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    Bytes(usize),
    /// Nothing is there now.
    Nothing,
    /// The client has gone, or this side has stopped receiving.
    End,
}
