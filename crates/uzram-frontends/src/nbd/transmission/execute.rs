//! A request against a device, and its reply.

use uzram::{Bio, BlockDevice, Error};

use super::output::Output;
use super::reply::{Address, chunk, fail, fail_at, fail_with, head_of, nothing_more, succeed};
use super::status::block_status;
use super::{Command, Request, Rules};
use crate::nbd::wire::{self, Framing, REPLY_BYTES};

/// Shortest run of zeroes within a read that gets a chunk of its own, in bytes. Such a chunk and
/// the head of the next take at most 84.
const HOLE_BYTES_MIN: u64 = 4096;

/// Carries out `request` with `payload`, and appends its reply.
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

/// Answers with data and holes; in one chunk if `whole`.
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

/// Appends a chunk of data. On an error it appends the readable data before it, then the error
/// with its place. Returns whether all was read.
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

/// Reads block by block after `error`. Returns the number of bytes before the first unreadable
/// one, and the error there.
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
