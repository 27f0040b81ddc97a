//! A request against a device, and its reply.

use uzram::{Bio, BlockDevice, Error};

use super::output::Output;
use super::status::block_status;
use super::{Command, Refusal, Request, Rules};
use crate::nbd::wire::{self, Chunk, Framing, REPLY_BYTES};

/// Shortest run of zeroes within a read that is told apart, in bytes: a chunk of its own and the
/// head of the next take at most 84.
const HOLE_BYTES_MIN: u64 = 4096;
/// Longest explanation of an error, in bytes. The protocol allows 4096.
const REASON_BYTES_MAX: usize = 256;

/// What a reply repeats of its request, and how it looks.
#[derive(Clone, Copy)]
pub(super) struct Address {
    pub framing: Framing,
    pub cookie: u64,
    pub offset: u64,
}

impl Address {
    fn of(request: &Request, rules: &Rules) -> Address {
        Address {
            framing: rules.framing,
            cookie: request.cookie,
            offset: request.offset,
        }
    }
}

/// Carries out `request`, whose payload is `payload`, and appends its reply.
pub(crate) fn execute(
    request: &Request,
    payload: &[u8],
    rules: &Rules,
    device: &dyn BlockDevice,
    output: &mut Output,
) {
    let address = Address::of(request, rules);
    match (request.command, rules.framing) {
        (Command::Read { .. }, Framing::Simple) => read_simply(request, device, output),
        (Command::Read { whole }, _) => read_in_chunks(request, whole, address, device, output),
        (Command::BlockStatus { one, filtered }, _) => {
            let filter = filtered.then_some(payload);
            block_status(request, one, filter, rules, address, device, output);
        }
        _ => match change(request, payload, device) {
            Ok(()) => succeed(address, output),
            Err(error) => fail(address, &error, output),
        },
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

fn change(request: &Request, payload: &[u8], device: &dyn BlockDevice) -> Result<(), Error> {
    let Request { offset, length, .. } = *request;
    match request.command {
        Command::Flush => device.submit(Bio::Flush)?,
        _ if length == 0 => {}
        Command::Write => device.submit(Bio::Write {
            offset,
            data: payload,
        })?,
        Command::Trim => device.submit(Bio::Trim { offset, length })?,
        Command::WriteZeroes(zeroing) => device.submit(Bio::Zero {
            offset,
            length,
            zeroing,
        })?,
        // `Cache`: the data is in memory. The others change nothing and do not come here.
        Command::Cache | Command::Read { .. } | Command::BlockStatus { .. } => {}
    }
    match request.force_unit_access {
        true => device.submit(Bio::Flush),
        false => Ok(()),
    }
}

/// Success, without anything to say.
fn succeed(address: Address, output: &mut Output) {
    match address.framing {
        // A structured reply without payload may be simple, and is shorter.
        Framing::Simple | Framing::Structured => {
            output.push(&wire::simple_reply(address.cookie, 0));
        }
        Framing::Extended => nothing_more(address, output),
    }
}

/// The chunk that ends a reply that has no other.
fn nothing_more(address: Address, output: &mut Output) {
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

/// An error at one place of the range, which what was sent before does not cover.
fn fail_at(address: Address, at: u64, error: &Error, output: &mut Output) {
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
fn chunk(address: Address, is_last: bool, kind: u16, parts: &[&[u8]], output: &mut Output) {
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

fn read_simply(request: &Request, device: &dyn BlockDevice, output: &mut Output) {
    let length = request.length as usize;
    let Some(reply) = output.reserve(REPLY_BYTES + length) else {
        output.push(&wire::simple_reply(request.cookie, wire::ENOMEM));
        return;
    };
    let (head, buffer) = reply.split_at_mut(REPLY_BYTES);
    match read_part(device, request.offset, buffer) {
        Ok(()) => {
            head.copy_from_slice(&wire::simple_reply(request.cookie, 0));
            output.advance(REPLY_BYTES + length);
        }
        Err(error) => {
            let error = wire::error_number(error.kind());
            output.push(&wire::simple_reply(request.cookie, error));
        }
    }
}

fn read_part(device: &dyn BlockDevice, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
    match buffer.is_empty() {
        true => Ok(()),
        false => device.submit(Bio::Read { offset, buffer }),
    }
}

/// Answers with data and holes; `whole`: in one chunk.
fn read_in_chunks(
    request: &Request,
    whole: bool,
    address: Address,
    device: &dyn BlockDevice,
    output: &mut Output,
) {
    let end = request.offset + request.length;
    let mut at = request.offset;
    if at == end {
        // A read is answered by chunks, even one of nothing.
        return nothing_more(address, output);
    }
    while at < end {
        let piece = next_piece(device, at, end, whole);
        let is_last = at + piece.length_bytes == end;
        if piece.is_zero {
            let length = (piece.length_bytes as u32).to_be_bytes();
            let parts: [&[u8]; 2] = [&at.to_be_bytes(), &length];
            chunk(address, is_last, wire::REPLY_OFFSET_HOLE, &parts, output);
        } else if !data(
            address,
            is_last,
            at,
            piece.length_bytes as usize,
            device,
            output,
        ) {
            return;
        }
        at += piece.length_bytes;
    }
}

struct Piece {
    length_bytes: u64,
    is_zero: bool,
}

/// The longest piece from `at` on that is zeroes, or data with no long run of zeroes in it.
fn next_piece(device: &dyn BlockDevice, at: u64, end: u64, whole: bool) -> Piece {
    let mut data_bytes = 0;
    let mut zero_bytes = 0;
    let piece = |length_bytes, is_zero| Piece {
        length_bytes,
        is_zero,
    };
    let is_run = |zero_bytes: u64| zero_bytes >= HOLE_BYTES_MIN || zero_bytes == end - at;
    while at + data_bytes + zero_bytes < end {
        let look = at + data_bytes + zero_bytes;
        // Where the device cannot tell, the read will.
        let Ok(extent) = device.extent(look, end - look) else {
            return piece(end - at, false);
        };
        if extent.state.is_zero() {
            zero_bytes += extent.length_bytes;
        } else if data_bytes == 0 && is_run(zero_bytes) {
            break;
        } else {
            data_bytes += zero_bytes + extent.length_bytes;
            zero_bytes = 0;
        }
        if whole && data_bytes > 0 {
            return piece(end - at, false);
        }
        if data_bytes > 0 && is_run(zero_bytes) {
            return piece(data_bytes, false);
        }
    }
    match data_bytes == 0 && is_run(zero_bytes) && !(whole && zero_bytes < end - at) {
        true => piece(zero_bytes, true),
        false if whole => piece(end - at, false),
        false => piece(data_bytes + zero_bytes, false),
    }
}

/// Appends a chunk of data; on an error what can be read before it, then the error and where it
/// lies. Returns whether all was read.
fn data(
    address: Address,
    is_last: bool,
    at: u64,
    length: usize,
    device: &dyn BlockDevice,
    output: &mut Output,
) -> bool {
    let head_bytes = address.framing.chunk_bytes() + 8;
    let Some(reply) = output.reserve(head_bytes + length) else {
        fail_with(address, wire::ENOMEM, "no memory for the reply", output);
        return false;
    };
    let (head, buffer) = reply.split_at_mut(head_bytes);
    let read = read_part(device, at, buffer);
    let failed = read.err().map(|error| {
        let block_bytes = device.geometry().preferred_block_bytes as usize;
        readable_prefix(device, at, buffer, block_bytes, error)
    });
    let read_bytes = failed.as_ref().map_or(length, |&(bytes, _)| bytes);
    if read_bytes > 0 {
        let is_last = is_last && failed.is_none();
        let chunk = head_of(address, is_last, wire::REPLY_OFFSET_DATA, 8 + read_bytes);
        chunk.encode(address.framing, head);
        head[head_bytes - 8..].copy_from_slice(&at.to_be_bytes());
        output.advance(head_bytes + read_bytes);
    }
    match failed {
        None => true,
        Some((bytes, error)) => {
            fail_at(address, at + bytes as u64, &error, output);
            false
        }
    }
}

/// Reads block by block after `error`: how many bytes are readable before the first that is not,
/// and the error there.
fn readable_prefix(
    device: &dyn BlockDevice,
    at: u64,
    buffer: &mut [u8],
    block_bytes: usize,
    error: Error,
) -> (usize, Error) {
    let mut done = 0;
    while done < buffer.len() {
        let to_border = block_bytes - ((at + done as u64) % block_bytes as u64) as usize;
        let length = to_border.min(buffer.len() - done);
        let block = &mut buffer[done..done + length];
        if let Err(error) = read_part(device, at + done as u64, block) {
            return (done, error);
        }
        done += length;
    }
    // Healed meanwhile: the first verdict stands, for the whole range.
    (0, error)
}
