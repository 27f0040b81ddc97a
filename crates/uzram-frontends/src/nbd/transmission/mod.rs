//! The transmission phase without I/O: requests are decoded from received bytes and validated,
//! carried out against a device, and their replies put into a buffer.

mod execute;
mod input;
mod output;
mod reply;
mod status;

use uzram::Zeroing;

use super::PAYLOAD_BYTES_MAX;
use super::context::Contexts;
use super::export::Export;
use super::wire::{self, Framing, RequestHeader};

pub(crate) use execute::execute;
pub(crate) use input::{Input, Next};
pub(crate) use output::Output;
pub(crate) use reply::refuse;

/// Payload of a refused compact write that is read and discarded, in bytes, so that the refusal
/// can be answered. A longer one ends the connection. So does the payload of an extended request
/// above [`PAYLOAD_BYTES_MAX`].
pub const REFUSED_PAYLOAD_BYTES_MAX: u32 = 64 << 20;

/// The rules for judging and answering requests, settled by the handshake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub size_bytes: u64,
    pub read_only: bool,
    pub framing: Framing,
    pub contexts: Contexts,
}

impl Rules {
    pub fn of(export: &Export, framing: Framing, contexts: Contexts) -> Rules {
        Rules {
            size_bytes: export.device.geometry().size_bytes,
            read_only: export.read_only,
            framing,
            contexts,
        }
    }

    /// The export's properties as the client was told them.
    pub fn transmission_flags(&self) -> u16 {
        // Multi-conn holds because a device completes a request before it is answered and keeps
        // nothing per connection: what one connection's flush covers, all see.
        let flags = wire::FLAG_HAS_FLAGS
            | wire::FLAG_SEND_FLUSH
            | wire::FLAG_SEND_FUA
            | wire::FLAG_SEND_CACHE
            | wire::FLAG_CAN_MULTI_CONN;
        let writing = match self.read_only {
            true => wire::FLAG_READ_ONLY,
            false => {
                wire::FLAG_SEND_TRIM | wire::FLAG_SEND_WRITE_ZEROES | wire::FLAG_SEND_FAST_ZERO
            }
        };
        let framing = match self.framing {
            Framing::Simple => 0,
            Framing::Extended if !self.contexts.is_empty() => {
                wire::FLAG_SEND_DF | wire::FLAG_BLOCK_STATUS_PAYLOAD
            }
            Framing::Structured | Framing::Extended => wire::FLAG_SEND_DF,
        };
        flags | writing | framing
    }
}

/// A valid request. Ranges lie within the device and payloads within the maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub cookie: u64,
    pub command: Command,
    pub offset: u64,
    /// Bytes of the device that the request covers; for a filtered `BLOCK_STATUS` the payload has
    /// them.
    pub length: u64,
    pub header_bytes: u32,
    pub payload_bytes: u32,
    /// Answer when the data is as durable as the device makes it.
    pub force_unit_access: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Read {
        /// Answer in one piece.
        whole: bool,
    },
    Write,
    Flush,
    Trim,
    Cache,
    WriteZeroes(Zeroing),
    BlockStatus {
        /// Only the first extent.
        one: bool,
        /// The payload names the length, and the contexts to answer for.
        filtered: bool,
    },
}

/// The verdict on a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Accept(Request),
    /// Answer with this error, after the payload if there is one.
    Refuse {
        refusal: Refusal,
        payload_bytes: u32,
    },
    Disconnect,
    /// Not answerable: hang up.
    Violation,
}

/// A request that is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub cookie: u64,
    pub offset: u64,
    pub error: u32,
    pub reason: &'static str,
}

type Reason = (u32, &'static str);

const UNKNOWN_COMMAND: Reason = (wire::EINVAL, "unknown command");
const WRONG_FLAGS: Reason = (wire::EINVAL, "flags that this command does not take");
const WRONG_PAYLOAD: Reason = (
    wire::EINVAL,
    "payload where none belongs, or none where one does",
);
const READ_ONLY: Reason = (wire::EPERM, "the export is read-only");
const FLUSH_OF_A_RANGE: Reason = (wire::EINVAL, "a flush has no offset and no length");
const NO_CONTEXT: Reason = (wire::EINVAL, "no metadata context was negotiated");
const NOTHING_ASKED: Reason = (wire::EINVAL, "status of no bytes");
const READ_TOO_LONG: Reason = (wire::EOVERFLOW, "reads take at most 32 MiB");
const WRITE_TOO_LONG: Reason = (wire::EINVAL, "writes take at most 32 MiB");
const WRITE_PAST_END: Reason = (wire::ENOSPC, "past the end of the export");
const PAST_END: Reason = (wire::EINVAL, "past the end of the export");

/// Judges a request by its header alone.
pub(crate) fn judge(header: &RequestHeader, rules: &Rules) -> Verdict {
    if header.command == wire::CMD_DISC {
        return Verdict::Disconnect;
    }
    // Extended writes are to say that they carry a payload. qemu's client up to 10.0 does not say
    // so and sends it, so that taking it at its word would lose the stream.
    let has_payload = header.command == wire::CMD_WRITE
        || rules.framing == Framing::Extended && header.flags & wire::CMD_FLAG_PAYLOAD_LEN != 0;
    let payload_bytes_max = match rules.framing {
        Framing::Extended => PAYLOAD_BYTES_MAX,
        Framing::Simple | Framing::Structured => REFUSED_PAYLOAD_BYTES_MAX,
    };
    let payload_bytes = if has_payload { header.length } else { 0 };
    // Whoever sends that much cannot be followed to its end.
    let Some(payload_bytes) = u32::try_from(payload_bytes)
        .ok()
        .filter(|&bytes| bytes <= payload_bytes_max)
    else {
        return Verdict::Violation;
    };
    match accept(header, rules, has_payload) {
        Ok((command, length)) => Verdict::Accept(Request {
            cookie: header.cookie,
            command,
            offset: header.offset,
            length,
            header_bytes: rules.framing.request_bytes() as u32,
            payload_bytes,
            force_unit_access: header.flags & wire::CMD_FLAG_FUA != 0 && command.modifies(),
        }),
        Err((error, reason)) => Verdict::Refuse {
            refusal: Refusal {
                cookie: header.cookie,
                offset: header.offset,
                error,
                reason,
            },
            payload_bytes,
        },
    }
}

fn accept(
    header: &RequestHeader,
    rules: &Rules,
    has_payload: bool,
) -> Result<(Command, u64), Reason> {
    let command = Command::decode(header, has_payload).ok_or(UNKNOWN_COMMAND)?;
    if header.flags & !command.flags_allowed(rules.framing) != 0 {
        return Err(WRONG_FLAGS);
    }
    if has_payload != command.has_payload() {
        return Err(WRONG_PAYLOAD);
    }
    if command.modifies() && rules.read_only {
        return Err(READ_ONLY);
    }
    if let Command::BlockStatus { filtered, .. } = command {
        check_status(header, rules, filtered)?;
        if filtered {
            return Ok((command, 0));
        }
    }
    check_extent(command, header.offset, header.length, rules.size_bytes)?;
    Ok((command, header.length))
}

fn check_status(header: &RequestHeader, rules: &Rules, filtered: bool) -> Result<(), Reason> {
    if rules.contexts.is_empty() {
        return Err(NO_CONTEXT);
    }
    if header.length == 0 {
        return Err(NOTHING_ASKED);
    }
    // The length of the range, then numbers of contexts, each of the set at most once.
    let longest = (8 + 4 * rules.contexts.len()) as u64;
    if filtered && !((8 + 4..=longest).contains(&header.length) && header.length.is_multiple_of(4))
    {
        return Err(WRONG_PAYLOAD);
    }
    Ok(())
}

fn check_extent(command: Command, offset: u64, length: u64, size_bytes: u64) -> Result<(), Reason> {
    if command == Command::Flush {
        return match offset == 0 && length == 0 {
            true => Ok(()),
            false => Err(FLUSH_OF_A_RANGE),
        };
    }
    if length > u64::from(PAYLOAD_BYTES_MAX) {
        match command {
            Command::Read { .. } => return Err(READ_TOO_LONG),
            Command::Write => return Err(WRITE_TOO_LONG),
            _ => {}
        }
    }
    let end = offset.checked_add(length);
    if end.is_some_and(|end| end <= size_bytes) {
        return Ok(());
    }
    Err(match command {
        Command::Write | Command::WriteZeroes(_) => WRITE_PAST_END,
        _ => PAST_END,
    })
}

impl Command {
    fn decode(header: &RequestHeader, has_payload: bool) -> Option<Command> {
        let has = |flag| header.flags & flag != 0;
        Some(match header.command {
            wire::CMD_READ => Command::Read {
                whole: has(wire::CMD_FLAG_DF),
            },
            wire::CMD_WRITE => Command::Write,
            wire::CMD_FLUSH => Command::Flush,
            wire::CMD_TRIM => Command::Trim,
            wire::CMD_CACHE => Command::Cache,
            wire::CMD_WRITE_ZEROES if has(wire::CMD_FLAG_NO_HOLE) => {
                Command::WriteZeroes(Zeroing::NoHole)
            }
            wire::CMD_WRITE_ZEROES => Command::WriteZeroes(Zeroing::MayPunch),
            wire::CMD_BLOCK_STATUS => Command::BlockStatus {
                one: has(wire::CMD_FLAG_REQ_ONE),
                filtered: has_payload,
            },
            _ => return None,
        })
    }

    fn modifies(self) -> bool {
        matches!(
            self,
            Command::Write | Command::Trim | Command::WriteZeroes(_)
        )
    }

    fn has_payload(self) -> bool {
        matches!(
            self,
            Command::Write | Command::BlockStatus { filtered: true, .. }
        )
    }

    fn flags_allowed(self, framing: Framing) -> u16 {
        // FUA is valid with every command, FAST_ZERO always honoured: zeroing whole pages frees
        // or marks slots, which is never slower than compressing the same bytes.
        let own = match self {
            Command::Read { .. } if framing >= Framing::Structured => wire::CMD_FLAG_DF,
            Command::WriteZeroes(_) => wire::CMD_FLAG_NO_HOLE | wire::CMD_FLAG_FAST_ZERO,
            Command::BlockStatus { .. } => wire::CMD_FLAG_REQ_ONE,
            _ => 0,
        };
        let payload = match framing {
            Framing::Extended => wire::CMD_FLAG_PAYLOAD_LEN,
            Framing::Simple | Framing::Structured => 0,
        };
        wire::CMD_FLAG_FUA | own | payload
    }
}

impl Request {
    /// Bytes of the header and what follows it.
    pub fn bytes(&self) -> usize {
        self.header_bytes as usize + self.payload_bytes as usize
    }

    /// Bytes of the device's content that a successful reply carries at most.
    pub fn reply_payload_bytes(&self) -> usize {
        match self.command {
            Command::Read { .. } => self.length as usize,
            _ => 0,
        }
    }
}
