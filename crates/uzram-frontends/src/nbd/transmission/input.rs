//! Received bytes, and the requests at their front.

use std::sync::Arc;

use super::output::{grow, may_stay};
use super::{Refusal, Request, Rules, Verdict, judge};
use crate::nbd::budget::{Budget, Kept};
use crate::nbd::wire::{Decoded, RequestHeader};

/// Received bytes that are not decoded yet.
#[derive(Debug, Default)]
pub(crate) struct Input {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// A refused write whose payload is being discarded.
    refused: Option<Refused>,
    /// The buffer's bytes in the budget while it is kept for later.
    kept: Option<Kept>,
}

#[derive(Debug)]
struct Refused {
    refusal: Refusal,
    remaining: usize,
}

/// The front of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// A request with its payload at the front of the input: call `payload`, then `consume`.
    Request(Request),
    /// No whole request: one of `bytes` in all (at least a header) has begun or is awaited.
    Incomplete { bytes: usize },
    /// A request was refused and consumed.
    Refused(Refusal),
    /// The client says goodbye.
    Disconnect,
    /// The client breaks the protocol in a way that has no answer.
    Violation,
}

impl Input {
    /// Decodes the request at the front. A [`Next::Request`] stays until it is consumed.
    pub fn next(&mut self, rules: &Rules) -> Next {
        if self.refused.is_some() {
            return self.skip_refused(rules);
        }
        let unread = &self.buffer[self.start..self.end];
        let header = match RequestHeader::decode(unread, rules.framing) {
            Decoded::Header(header) => header,
            Decoded::Short => return awaiting_a_header(rules),
            Decoded::Garbage => return Next::Violation,
        };
        match judge(&header, rules) {
            Verdict::Accept(request) if unread.len() < request.bytes() => Next::Incomplete {
                bytes: request.bytes(),
            },
            Verdict::Accept(request) => Next::Request(request),
            Verdict::Refuse {
                refusal,
                payload_bytes,
            } => {
                self.start += rules.framing.request_bytes();
                self.refused = Some(Refused {
                    refusal,
                    remaining: payload_bytes as usize,
                });
                self.skip_refused(rules)
            }
            Verdict::Disconnect => Next::Disconnect,
            Verdict::Violation => Next::Violation,
        }
    }

    fn skip_refused(&mut self, rules: &Rules) -> Next {
        let Some(refused) = &mut self.refused else {
            return awaiting_a_header(rules);
        };
        let skipped = refused.remaining.min(self.end - self.start);
        self.start += skipped;
        refused.remaining -= skipped;
        if refused.remaining > 0 {
            return awaiting_a_header(rules);
        }
        let refusal = refused.refusal;
        self.refused = None;
        Next::Refused(refusal)
    }

    /// The payload of the request that [`Input::next`] returned.
    pub fn payload(&self, request: &Request) -> &[u8] {
        let start = self.start + request.header_bytes as usize;
        &self.buffer[start..self.start + request.bytes()]
    }

    /// Drops the request that [`Input::next`] returned.
    pub fn consume(&mut self, request: &Request) {
        self.start += request.bytes();
    }

    /// Whether the client has sent part of a request and owes the rest.
    pub fn is_within_a_request(&self) -> bool {
        self.refused.is_some() || self.unread() > 0
    }

    /// Bytes received and not consumed.
    pub fn unread(&self) -> usize {
        self.end - self.start
    }

    /// Room to receive into for an incomplete request of `bytes`: at least its rest; `None` if
    /// there is no memory. A large request gets exactly its rest, so that no bytes behind it must
    /// be moved. Otherwise there is room for `base_bytes` in all.
    pub fn room(&mut self, bytes: usize, base_bytes: usize) -> Option<&mut [u8]> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        let capacity = bytes.max(base_bytes);
        if self.buffer.len() < capacity {
            grow(&mut self.buffer, capacity)?;
        }
        if self.start + capacity > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let wanted = if bytes > base_bytes / 2 {
            bytes
        } else {
            base_bytes
        };
        Some(&mut self.buffer[self.end..self.start + wanted])
    }

    /// Accepts `length` bytes that were received into [`Input::room`].
    pub fn received(&mut self, length: usize) {
        debug_assert!(self.end + length <= self.buffer.len());
        self.end += length;
    }

    /// Adds bytes from elsewhere; `false` if there is no memory.
    pub fn append(&mut self, bytes: &[u8]) -> bool {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        let needed = self.end + bytes.len();
        if needed > self.buffer.len() && grow(&mut self.buffer, needed).is_none() {
            return false;
        }
        self.buffer[self.end..needed].copy_from_slice(bytes);
        self.end = needed;
        true
    }

    /// Keeps the first `bytes` unread bytes in `self` and moves the rest to `rest`, which must be
    /// empty. `false`, with nothing changed, if there is no memory.
    pub fn split_off(&mut self, bytes: usize, rest: &mut Input) -> bool {
        debug_assert!(rest.unread() == 0 && rest.refused.is_none() && self.refused.is_none());
        let split = self.start + bytes;
        if !rest.append(&self.buffer[split..self.end]) {
            return false;
        }
        self.end = split;
        true
    }

    /// The number of next requests, at most `max`, that are whole, accepted and `wanted`, and
    /// their bytes.
    pub fn run_of(
        &self,
        max: usize,
        rules: &Rules,
        wanted: impl Fn(&Request) -> bool,
    ) -> (usize, usize) {
        let mut position = self.start;
        let mut count = 0;
        while count < max {
            let unread = &self.buffer[position..self.end];
            let Decoded::Header(header) = RequestHeader::decode(unread, rules.framing) else {
                break;
            };
            let Verdict::Accept(request) = judge(&header, rules) else {
                break;
            };
            let end = position + request.bytes();
            if end > self.end || !wanted(&request) {
                break;
            }
            position = end;
            count += 1;
        }
        (count, position - self.start)
    }

    /// Keeps memory of at most `bytes_max` for the next large request, if `budget` has room for
    /// it. Nothing may be unread.
    pub fn keep(&mut self, bytes_max: usize, budget: &Arc<Budget>) {
        if !may_stay(&mut self.kept, self.buffer.capacity(), bytes_max, budget) {
            self.release();
        }
    }

    /// Gives its memory back, unless something is unread.
    pub fn release(&mut self) {
        if self.unread() == 0 {
            self.buffer = Vec::new();
            (self.start, self.end) = (0, 0);
            self.kept = None;
        }
    }
}

fn awaiting_a_header(rules: &Rules) -> Next {
    Next::Incomplete {
        bytes: rules.framing.request_bytes(),
    }
}
