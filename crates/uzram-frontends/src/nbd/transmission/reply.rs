//! Replies: success, errors and chunks, in the framing that the handshake settled.

use uzram::Error;

use super::output::Output;
use super::{Refusal, Request, Rules};
use crate::nbd::wire::{self, Chunk, Framing};

/// Longest explanation of an error, in bytes. The protocol allows 4096.
const REASON_BYTES_MAX: usize = 256;

/// The parts of a reply that its request determines, and its framing.
#[derive(Clone, Copy)]
pub(super) struct Address {
    pub framing: Framing,
    pub cookie: u64,
    pub offset: u64,
}

impl Address {
    pub fn of(request: &Request, rules: &Rules) -> Address {
        Address {
            framing: rules.framing,
            cookie: request.cookie,
            offset: request.offset,
        }
    }
}

/// Appends the reply to a request that is not carried out.
pub(crate) fn refuse(refusal: &Refusal, framing: Framing, output: &mut Output) {
    let address = Address {
        framing,
        cookie: refusal.cookie,
        offset: refusal.offset,
    };
    fail_with(address, refusal.error, refusal.reason, output);
}

/// Success, without data.
pub(super) fn succeed(address: Address, output: &mut Output) {
    match address.framing {
        // A structured reply without payload may be simple, and is shorter.
        Framing::Simple | Framing::Structured => {
            output.push(&wire::simple_reply(address.cookie, 0));
        }
        Framing::Extended => nothing_more(address, output),
    }
}

/// The chunk that ends a reply without any other chunk.
pub(super) fn nothing_more(address: Address, output: &mut Output) {
    chunk(address, true, wire::REPLY_NONE, &[], output);
}

pub(super) fn fail(address: Address, error: &Error, output: &mut Output) {
    let number = wire::error_number(error.kind());
    fail_with(address, number, &error.to_string(), output);
}

pub(super) fn fail_with(address: Address, error: u32, reason: &str, output: &mut Output) {
    if address.framing == Framing::Simple {
        return output.push(&wire::simple_reply(address.cookie, error));
    }
    let reason = shown(reason);
    let parts: [&[u8]; 3] = [
        &error.to_be_bytes(),
        &(reason.len() as u16).to_be_bytes(),
        reason.as_bytes(),
    ];
    chunk(address, true, wire::REPLY_ERROR, &parts, output);
}

/// An error at one place of the range. The chunks sent before do not cover that place.
pub(super) fn fail_at(address: Address, at: u64, error: &Error, output: &mut Output) {
    let reason = error.to_string();
    let reason = shown(&reason);
    let parts: [&[u8]; 4] = [
        &wire::error_number(error.kind()).to_be_bytes(),
        &(reason.len() as u16).to_be_bytes(),
        reason.as_bytes(),
        &at.to_be_bytes(),
    ];
    chunk(address, true, wire::REPLY_ERROR_OFFSET, &parts, output);
}

fn shown(reason: &str) -> &str {
    let mut end = reason.len().min(REASON_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    &reason[..end]
}

/// Appends a whole chunk, its payload being the concatenation of `parts`.
pub(super) fn chunk(
    address: Address,
    is_last: bool,
    kind: u16,
    parts: &[&[u8]],
    output: &mut Output,
) {
    let payload_bytes: usize = parts.iter().map(|part| part.len()).sum();
    let mut head = [0; 32];
    head_of(address, is_last, kind, payload_bytes).encode(address.framing, &mut head);
    output.push(&head[..address.framing.chunk_bytes()]);
    for part in parts {
        output.push(part);
    }
}

pub(super) fn head_of(address: Address, is_last: bool, kind: u16, payload_bytes: usize) -> Chunk {
    Chunk {
        is_last,
        kind,
        cookie: address.cookie,
        offset: address.offset,
        payload_bytes: u32::try_from(payload_bytes).expect("payloads are far below 4 GiB"),
    }
}
