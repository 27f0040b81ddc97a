//! `BLOCK_STATUS`: extents by metadata context.

use std::time::{Duration, Instant};

use uzram::{BlockDevice, Error};

use super::output::Output;
use super::reply::{Address, fail, fail_with, head_of};
use super::{Request, Rules};
use crate::nbd::context::{Context, Contexts};
use crate::nbd::wire::{self, Fields, Framing};

/// Most extents in one chunk, so that it takes at most 512 KiB; the protocol allows 2^20. The
/// client asks again from the end of the reply.
const EXTENTS_MAX: usize = 32 << 10;
/// A reply ends early once gathering it took this long.
const LOOK_MAX: Duration = Duration::from_millis(20);
/// Looks at the device between two looks at the clock.
const LOOKS_PER_CLOCK: usize = 16;

/// Appends one chunk for each context that is asked for, or one error. `filter` is the payload that
/// names length and contexts.
pub(super) fn block_status(
    request: &Request,
    one: bool,
    filter: Option<&[u8]>,
    rules: &Rules,
    address: Address,
    device: &dyn BlockDevice,
    output: &mut Output,
) {
    let asked = match filter {
        None => Some((request.length, rules.contexts)),
        Some(payload) => decode_filter(payload, request.offset, rules),
    };
    let Some((length, contexts)) = asked else {
        let reason = "a filter names a range within the export and negotiated contexts, each once";
        return fail_with(address, wire::EINVAL, reason, output);
    };
    let start = output.pending().len();
    let last = contexts.iter().last();
    for context in contexts.iter() {
        let is_last = Some(context) == last;
        let range = (request.offset, length, one);
        if let Err(error) = describe(context, range, is_last, address, device, output) {
            output.truncate(start);
            return fail(address, &error, output);
        }
    }
}

fn decode_filter(payload: &[u8], offset: u64, rules: &Rules) -> Option<(u64, Contexts)> {
    let mut fields = Fields(payload);
    let length = fields.u64()?;
    let end = offset.checked_add(length)?;
    if length == 0 || end > rules.size_bytes {
        return None;
    }
    let ids = std::iter::from_fn(|| fields.u32());
    Some((length, rules.contexts.filtered(ids)?))
}

/// Appends the chunk of one context.
fn describe(
    context: Context,
    (offset, length, one): (u64, u64, bool),
    is_last: bool,
    address: Address,
    device: &dyn BlockDevice,
    output: &mut Output,
) -> Result<(), Error> {
    let framing = address.framing;
    let (kind, fixed_bytes) = match framing {
        Framing::Extended => (wire::REPLY_BLOCK_STATUS_EXT, 8),
        Framing::Simple | Framing::Structured => (wire::REPLY_BLOCK_STATUS, 4),
    };
    let head_bytes = framing.chunk_bytes();
    let start = output.pending().len();
    output.push(&[0; 40][..head_bytes + fixed_bytes]);
    let count = extents(context, offset, length, one, device, |length, status| {
        match framing {
            Framing::Extended => {
                output.push(&length.to_be_bytes());
                output.push(&u64::from(status).to_be_bytes());
            }
            Framing::Simple | Framing::Structured => {
                // A compact request's length is of 32 bits, and no extent reaches past it.
                output.push(&(length as u32).to_be_bytes());
                output.push(&status.to_be_bytes());
            }
        }
    })?;
    let payload_bytes = output.pending().len() - start - head_bytes;
    let head = &mut output.pending_mut()[start..];
    head_of(address, is_last, kind, payload_bytes).encode(framing, head);
    head[head_bytes..][..4].copy_from_slice(&context.id().to_be_bytes());
    if framing == Framing::Extended {
        head[head_bytes + 4..][..4].copy_from_slice(&count.to_be_bytes());
    }
    Ok(())
}

/// Calls `found` with length and status of each run of equal status, at least one and as many as
/// the limits allow. Returns their number.
fn extents(
    context: Context,
    offset: u64,
    length: u64,
    one: bool,
    device: &dyn BlockDevice,
    mut found: impl FnMut(u64, u32),
) -> Result<u32, Error> {
    let count_max = if one { 1 } else { EXTENTS_MAX };
    let end = offset + length;
    let mut at = offset;
    let mut count = 0;
    let mut run: Option<(u64, u32)> = None;
    let mut started = None;
    for looks in 1.. {
        let extent = device.extent(at, end - at)?;
        let status = context.status(extent.state);
        match &mut run {
            Some((length, of_run)) if *of_run == status => *length += extent.length_bytes,
            _ => {
                if let Some((length, status)) = run.replace((extent.length_bytes, status)) {
                    found(length, status);
                    count += 1;
                    if count == count_max {
                        return Ok(count as u32);
                    }
                }
            }
        }
        at += extent.length_bytes;
        if at == end || looks % LOOKS_PER_CLOCK == 0 && is_late(&mut started) {
            break;
        }
    }
    if let Some((length, status)) = run {
        found(length, status);
        count += 1;
    }
    Ok(count as u32)
}

/// Whether [`LOOK_MAX`] has passed since the first call, which does not count.
fn is_late(started: &mut Option<Instant>) -> bool {
    started.get_or_insert_with(Instant::now).elapsed() >= LOOK_MAX
}
