//! A whole session without I/O: the client's bytes in, the replies out.

use std::sync::Arc;

use super::export::Exports;
use super::handshake::{Agreement, Handshake, Security, Step};
use super::received::Received;
use super::tls::{Stream, Tls};
use super::transmission::{self, Input, Next, Output};
use super::wire;

/// Plaintext that is taken from TLS at once, in bytes.
const PLAINTEXT_BYTES: usize = 16 << 10;

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
    tls: Option<Tls>,
    stream: Option<Stream>,
}

#[derive(Debug)]
enum Phase {
    Greeting(Handshake),
    Handshake(Handshake),
    Transmission {
        agreement: Agreement,
        input: Input,
        output: Output,
    },
    Closed,
}

impl Session {
    /// A session at its start.
    #[must_use]
    pub fn new(exports: Arc<Exports>) -> Session {
        Session::begin(Handshake::new(exports, Security::Plain), None)
    }

    /// The same for a server with TLS. With `required`, or if `tls` asks for the client's
    /// certificate, the client must start it before anything else.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn with_tls(exports: Arc<Exports>, tls: &Tls, required: bool) -> Session {
        let handshake = Handshake::new(exports, Security::of(required || tls.checks_clients()));
        Session::begin(handshake, Some(tls.clone()))
    }

    fn begin(handshake: Handshake, tls: Option<Tls>) -> Session {
        Session {
            phase: Phase::Greeting(handshake),
            unread: Vec::new(),
            tls,
            stream: None,
        }
    }

    /// Takes `bytes` from the client, in pieces of any size, and appends what to send to
    /// `replies`. Returns whether the session goes on; if not, send `replies` and hang up.
    pub fn receive(&mut self, bytes: &[u8], replies: &mut Vec<u8>) -> bool {
        match self.stream.take() {
            None => self.receive_clear(bytes, replies),
            Some(mut stream) => {
                if !self.receive_sealed(&mut stream, bytes, replies) {
                    self.phase = Phase::Closed;
                }
                self.stream = Some(stream);
            }
        }
        !matches!(self.phase, Phase::Closed)
    }

    /// `false` if TLS has come to its end.
    fn receive_sealed(&mut self, stream: &mut Stream, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        let mut rest = bytes;
        let mut source = |buffer: &mut [u8]| {
            let length = rest.len().min(buffer.len());
            let (now, later) = rest.split_at(length);
            buffer[..length].copy_from_slice(now);
            rest = later;
            match length {
                0 => Received::Nothing,
                _ => Received::Bytes(length),
            }
        };
        let mut plaintext = [0; PLAINTEXT_BYTES];
        loop {
            let received = stream.receive(&mut plaintext, &mut source);
            let Received::Bytes(length) = received else {
                // An alert, where TLS failed.
                let said = stream.outgoing(out);
                return said.is_ok() && matches!(received, Received::Nothing);
            };
            let mut replies = Vec::new();
            self.receive_clear(&plaintext[..length], &mut replies);
            let mut replies = &replies[..];
            while !replies.is_empty() {
                match stream.seal(replies, out) {
                    Ok(sealed) => replies = &replies[sealed..],
                    Err(_) => return false,
                }
            }
            if matches!(self.phase, Phase::Closed) {
                let _ = stream.close(out);
                return false;
            }
        }
    }

    fn receive_clear(&mut self, bytes: &[u8], replies: &mut Vec<u8>) {
        self.phase = match std::mem::replace(&mut self.phase, Phase::Closed) {
            Phase::Greeting(handshake) => {
                replies.extend_from_slice(&wire::greeting());
                self.shake_hands(handshake, bytes, replies)
            }
            Phase::Handshake(handshake) => self.shake_hands(handshake, bytes, replies),
            Phase::Transmission {
                agreement,
                input,
                output,
            } => transmit(agreement, input, output, bytes, replies),
            Phase::Closed => Phase::Closed,
        };
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
                Step::StartTls => {
                    self.stream = self.tls.as_ref().and_then(Tls::stream);
                    let is_clean = consumed == self.unread.len();
                    self.unread.clear();
                    handshake.secured();
                    return match is_clean && self.stream.is_some() {
                        true => Phase::Handshake(handshake),
                        false => Phase::Closed,
                    };
                }
                Step::Transmit(agreement) => {
                    let rest = self.unread.split_off(consumed);
                    self.unread = Vec::new();
                    let (input, output) = (Input::default(), Output::default());
                    return transmit(agreement, input, output, &rest, replies);
                }
                Step::Close => return Phase::Closed,
            }
        }
    }
}

fn transmit(
    agreement: Agreement,
    mut input: Input,
    mut output: Output,
    bytes: &[u8],
    replies: &mut Vec<u8>,
) -> Phase {
    let rules = &agreement.rules;
    if !input.append(bytes) {
        return Phase::Closed;
    }
    loop {
        match input.next(rules) {
            Next::Request(request) => {
                let device = &*agreement.lease.export.device;
                let payload = input.payload(&request);
                transmission::execute(&request, payload, rules, device, &mut output);
                input.consume(&request);
            }
            Next::Refused(refusal) => transmission::refuse(&refusal, rules.framing, &mut output),
            Next::Incomplete { .. } => {
                return Phase::Transmission {
                    agreement,
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
