//! A whole session without I/O: what the client says in, what it is told out.

use std::sync::Arc;

use super::export::{Exports, Lease};
use super::handshake::{Handshake, Step};
use super::transmission::{self, Input, Next, Output, Rules};
use super::wire;

/// One client's session over any transport, one request at a time in the order of arrival.
///
/// [`Server`](super::Server) overlaps requests; this type is for transports of one's own, for
/// tests and for fuzzing.
///
/// ```
/// use std::sync::Arc;
/// use uzram_frontends::nbd::{Exports, Session};
///
/// let mut session = Session::new(Arc::new(Exports::new()));
/// let mut replies = Vec::new();
/// assert!(session.receive(&[], &mut replies));
/// assert!(replies.starts_with(b"NBDMAGICIHAVEOPT"));
/// ```
#[derive(Debug)]
pub struct Session {
    phase: Phase,
    unread: Vec<u8>,
}

#[derive(Debug)]
enum Phase {
    Greeting(Handshake),
    Handshake(Handshake),
    Transmission {
        lease: Lease,
        input: Input,
        output: Output,
    },
    Closed,
}

impl Session {
    /// A session at its start.
    #[must_use]
    pub fn new(exports: Arc<Exports>) -> Session {
        Session {
            phase: Phase::Greeting(Handshake::new(exports)),
            unread: Vec::new(),
        }
    }

    /// Takes `bytes` from the client, in pieces of any size, and appends what to send to
    /// `replies`. Returns whether the session goes on; if not, send `replies` and hang up.
    pub fn receive(&mut self, bytes: &[u8], replies: &mut Vec<u8>) -> bool {
        self.phase = match std::mem::replace(&mut self.phase, Phase::Closed) {
            Phase::Greeting(handshake) => {
                replies.extend_from_slice(&wire::greeting());
                self.shake_hands(handshake, bytes, replies)
            }
            Phase::Handshake(handshake) => self.shake_hands(handshake, bytes, replies),
            Phase::Transmission {
                lease,
                input,
                output,
            } => transmit(lease, input, output, bytes, replies),
            Phase::Closed => Phase::Closed,
        };
        !matches!(self.phase, Phase::Closed)
    }

    fn shake_hands(
        &mut self,
        mut handshake: Handshake,
        bytes: &[u8],
        replies: &mut Vec<u8>,
    ) -> Phase {
        self.unread.extend_from_slice(bytes);
        let mut consumed = 0;
        loop {
            let (used, step) = handshake.step(&self.unread[consumed..], replies);
            consumed = (consumed + used).min(self.unread.len());
            match step {
                Step::Continue => {}
                Step::NeedBytes => {
                    self.unread.drain(..consumed);
                    return Phase::Handshake(handshake);
                }
                Step::Transmit(lease) => {
                    let rest = self.unread.split_off(consumed);
                    self.unread = Vec::new();
                    return transmit(lease, Input::default(), Output::default(), &rest, replies);
                }
                Step::Close => return Phase::Closed,
            }
        }
    }
}

fn transmit(
    lease: Lease,
    mut input: Input,
    mut output: Output,
    bytes: &[u8],
    replies: &mut Vec<u8>,
) -> Phase {
    let rules = Rules::of(&lease.export);
    if !input.append(bytes) {
        return Phase::Closed;
    }
    loop {
        match input.next(rules) {
            Next::Request(request) => {
                let device = &*lease.export.device;
                transmission::execute(&request, input.payload(&request), device, &mut output);
                input.consume(&request);
            }
            Next::Refused { cookie, error } => output.push(&wire::simple_reply(cookie, error)),
            Next::Incomplete { .. } => {
                return Phase::Transmission {
                    lease,
                    input,
                    output,
                };
            }
            Next::Disconnect | Next::Violation => return Phase::Closed,
        }
        replies.extend_from_slice(output.pending());
        output.clear();
    }
}
