//! The transmission phase without I/O: requests off a buffer of received bytes, validated;
//! requests carried out against a device; replies into a buffer to send.

use uzram::{Bio, BlockDevice, Zeroing};

use super::PAYLOAD_BYTES_MAX;
use super::export::Export;
use super::wire::{self, REPLY_BYTES, REQUEST_BYTES, RequestHeader};

/// Payload of a refused write that is read and thrown away, in bytes, so that the refusal can be
/// answered. A longer one ends the connection.
pub const REFUSED_PAYLOAD_BYTES_MAX: u32 = 64 << 20;

/// What a request is judged by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub size_bytes: u64,
    pub read_only: bool,
}

impl Rules {
    pub fn of(export: &Export) -> Rules {
        Rules {
            size_bytes: export.device.geometry().size_bytes,
            read_only: export.read_only,
        }
    }
}

/// A valid request. Ranges lie within the device and payloads within the maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub cookie: u64,
    pub command: Command,
    pub offset: u64,
    pub length: u32,
    /// Answer when the data is as durable as the device makes it.
    pub force_unit_access: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Read,
    Write,
    Flush,
    Trim,
    Cache,
    WriteZeroes(Zeroing),
}

/// What a header asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Accept(Request),
    /// Answer with this error, after the payload if there is one.
    Refuse {
        error: u32,
        payload_bytes: u32,
    },
    Disconnect,
    /// Not answerable: hang up.
    Violation,
}

/// Judges a request by its header alone.
pub(crate) fn judge(header: &RequestHeader, rules: Rules) -> Verdict {
    if header.command == wire::CMD_DISC {
        return Verdict::Disconnect;
    }
    let payload_bytes = if header.command == wire::CMD_WRITE {
        header.length
    } else {
        0
    };
    match accept(header, rules) {
        Ok(request) => Verdict::Accept(request),
        Err(_) if payload_bytes > REFUSED_PAYLOAD_BYTES_MAX => Verdict::Violation,
        Err(error) => Verdict::Refuse {
            error,
            payload_bytes,
        },
    }
}

fn accept(header: &RequestHeader, rules: Rules) -> Result<Request, u32> {
    let &RequestHeader {
        flags,
        command,
        cookie,
        offset,
        length,
    } = header;
    let zeroing = if flags & wire::CMD_FLAG_NO_HOLE != 0 {
        Zeroing::NoHole
    } else {
        Zeroing::MayPunch
    };
    let command = match command {
        wire::CMD_READ => Command::Read,
        wire::CMD_WRITE => Command::Write,
        wire::CMD_FLUSH => Command::Flush,
        wire::CMD_TRIM => Command::Trim,
        wire::CMD_CACHE => Command::Cache,
        wire::CMD_WRITE_ZEROES => Command::WriteZeroes(zeroing),
        _ => return Err(wire::EINVAL),
    };
    if flags & !command.flags_allowed() != 0 {
        return Err(wire::EINVAL);
    }
    if command.modifies() && rules.read_only {
        return Err(wire::EPERM);
    }
    check_extent(command, offset, length, rules.size_bytes)?;
    let force_unit_access = flags & wire::CMD_FLAG_FUA != 0 && command.modifies();
    Ok(Request {
        cookie,
        command,
        offset,
        length,
        force_unit_access,
    })
}

fn check_extent(command: Command, offset: u64, length: u32, size_bytes: u64) -> Result<(), u32> {
    if command == Command::Flush {
        return if offset == 0 && length == 0 {
            Ok(())
        } else {
            Err(wire::EINVAL)
        };
    }
    if length > PAYLOAD_BYTES_MAX {
        match command {
            Command::Read => return Err(wire::EOVERFLOW),
            Command::Write => return Err(wire::EINVAL),
            _ => {}
        }
    }
    let end = offset.checked_add(length.into());
    if end.is_some_and(|end| end <= size_bytes) {
        return Ok(());
    }
    Err(match command {
        Command::Write | Command::WriteZeroes(_) => wire::ENOSPC,
        _ => wire::EINVAL,
    })
}

impl Command {
    fn modifies(self) -> bool {
        matches!(
            self,
            Command::Write | Command::Trim | Command::WriteZeroes(_)
        )
    }

    fn flags_allowed(self) -> u16 {
        // FUA is valid with every command, FAST_ZERO always honoured: zeroing whole pages frees
        // or marks slots, which is never slower than compressing the same bytes.
        match self {
            Command::WriteZeroes(_) => {
                wire::CMD_FLAG_FUA | wire::CMD_FLAG_NO_HOLE | wire::CMD_FLAG_FAST_ZERO
            }
            _ => wire::CMD_FLAG_FUA,
        }
    }
}

impl Request {
    /// Bytes that follow the header.
    pub fn payload_bytes(&self) -> usize {
        match self.command {
            Command::Write => self.length as usize,
            _ => 0,
        }
    }

    /// Bytes that follow the reply's head on success.
    pub fn reply_payload_bytes(&self) -> usize {
        match self.command {
            Command::Read => self.length as usize,
            _ => 0,
        }
    }
}

/// Carries out `request` and appends its reply.
pub(crate) fn execute(
    request: &Request,
    payload: &[u8],
    device: &dyn BlockDevice,
    output: &mut Output,
) {
    let Request { cookie, offset, .. } = *request;
    let length = u64::from(request.length);
    if request.command == Command::Read {
        return read(request, device, output);
    }
    let mut result = match request.command {
        Command::Flush => device.submit(Bio::Flush),
        // Nothing to do: `Cache` because the data is in memory, the others because it is nothing.
        Command::Read | Command::Cache => Ok(()),
        _ if length == 0 => Ok(()),
        Command::Write => device.submit(Bio::Write {
            offset,
            data: payload,
        }),
        Command::Trim => device.submit(Bio::Trim { offset, length }),
        Command::WriteZeroes(zeroing) => device.submit(Bio::Zero {
            offset,
            length,
            zeroing,
        }),
    };
    if request.force_unit_access {
        result = result.and_then(|()| device.submit(Bio::Flush));
    }
    let error = result.map_or_else(|error| wire::error_number(error.kind()), |()| 0);
    output.push(&wire::simple_reply(cookie, error));
}

fn read(request: &Request, device: &dyn BlockDevice, output: &mut Output) {
    let length = request.length as usize;
    let Some(reply) = output.reserve(REPLY_BYTES + length) else {
        output.push(&wire::simple_reply(request.cookie, wire::ENOMEM));
        return;
    };
    let (head, buffer) = reply.split_at_mut(REPLY_BYTES);
    let result = if length == 0 {
        Ok(())
    } else {
        device.submit(Bio::Read {
            offset: request.offset,
            buffer,
        })
    };
    match result {
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

/// A fresh buffer up to this size is made in one piece, zeroed by the system as it is touched.
const FRESH_BYTES_MAX: usize = 128 << 10;

/// Makes a buffer longer, the new bytes being zero; `None` if there is no memory.
fn grow(buffer: &mut Vec<u8>, length: usize) -> Option<()> {
    if buffer.is_empty() && length <= FRESH_BYTES_MAX {
        *buffer = vec![0; length];
        return Some(());
    }
    if buffer.capacity() < length {
        buffer.try_reserve_exact(length - buffer.len()).ok()?;
    }
    buffer.resize(length, 0);
    Some(())
}

/// Replies that wait to be sent.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// Its length is what was ever needed, so that no byte is zeroed twice.
    buffer: Vec<u8>,
    end: usize,
}

impl Output {
    pub fn pending(&self) -> &[u8] {
        &self.buffer[..self.end]
    }

    pub fn is_empty(&self) -> bool {
        self.end == 0
    }

    pub fn clear(&mut self) {
        self.end = 0;
    }

    /// Gives memory beyond `keep_bytes` back; nothing may be pending.
    pub fn shrink(&mut self, keep_bytes: usize) {
        if self.buffer.len() > keep_bytes {
            self.buffer = Vec::new();
            self.end = 0;
        }
    }

    /// Room for `length` bytes after what is pending, `None` if there is no memory.
    fn reserve(&mut self, length: usize) -> Option<&mut [u8]> {
        let needed = self.end + length;
        if needed > self.buffer.len() {
            grow(&mut self.buffer, needed)?;
        }
        Some(&mut self.buffer[self.end..needed])
    }

    fn advance(&mut self, length: usize) {
        self.end += length;
    }

    pub fn push(&mut self, bytes: &[u8]) {
        let needed = self.end + bytes.len();
        if needed > self.buffer.len() {
            self.buffer.resize(needed, 0);
        }
        self.buffer[self.end..needed].copy_from_slice(bytes);
        self.end = needed;
    }
}

/// Received bytes that are not decoded yet.
#[derive(Debug, Default)]
pub(crate) struct Input {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// A refused write whose payload is being thrown away.
    refused: Option<Refused>,
}

#[derive(Debug)]
struct Refused {
    cookie: u64,
    error: u32,
    remaining: usize,
}

/// What is at the front of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// A request, its payload at the front of the input: `payload`, then `consume`.
    Request(Request),
    /// Nothing whole: a request of `bytes` in all (at least its header) has begun or is awaited.
    Incomplete { bytes: usize },
    /// A request was refused and consumed.
    Refused { cookie: u64, error: u32 },
    /// The client says goodbye.
    Disconnect,
    /// The client breaks the protocol in a way that has no answer.
    Violation,
}

impl Input {
    /// Decodes the request at the front. A [`Next::Request`] stays until it is consumed.
    pub fn next(&mut self, rules: Rules) -> Next {
        if self.refused.is_some() {
            return self.skip_refused();
        }
        let Some(header) = self.buffer[self.start..self.end].first_chunk() else {
            return Next::Incomplete {
                bytes: REQUEST_BYTES,
            };
        };
        let Some(header) = RequestHeader::decode(header) else {
            return Next::Violation;
        };
        match judge(&header, rules) {
            Verdict::Accept(request) => {
                let bytes = REQUEST_BYTES + request.payload_bytes();
                if self.end - self.start < bytes {
                    return Next::Incomplete { bytes };
                }
                Next::Request(request)
            }
            Verdict::Refuse {
                error,
                payload_bytes,
            } => {
                self.start += REQUEST_BYTES;
                self.refused = Some(Refused {
                    cookie: header.cookie,
                    error,
                    remaining: payload_bytes as usize,
                });
                self.skip_refused()
            }
            Verdict::Disconnect => Next::Disconnect,
            Verdict::Violation => Next::Violation,
        }
    }

    fn skip_refused(&mut self) -> Next {
        let Some(refused) = &mut self.refused else {
            return Next::Incomplete {
                bytes: REQUEST_BYTES,
            };
        };
        let skipped = refused.remaining.min(self.end - self.start);
        self.start += skipped;
        refused.remaining -= skipped;
        if refused.remaining > 0 {
            return Next::Incomplete {
                bytes: REQUEST_BYTES,
            };
        }
        let Refused { cookie, error, .. } = *refused;
        self.refused = None;
        Next::Refused { cookie, error }
    }

    /// The payload of the request that [`Input::next`] returned.
    pub fn payload(&self, request: &Request) -> &[u8] {
        let start = self.start + REQUEST_BYTES;
        &self.buffer[start..start + request.payload_bytes()]
    }

    /// Drops the request that [`Input::next`] returned.
    pub fn consume(&mut self, request: &Request) {
        self.start += REQUEST_BYTES + request.payload_bytes();
    }

    /// Bytes received and not consumed.
    pub fn unread(&self) -> usize {
        self.end - self.start
    }

    /// Room to receive into for a request of `bytes` that is incomplete: at least its rest; `None`
    /// if there is no memory. A large request gets exactly its rest, so that it is not followed by
    /// bytes that would have to be moved; else there is room for `base_bytes` in all.
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
    /// empty; `false`, and nothing changed, if there is no memory.
    pub fn split_off(&mut self, bytes: usize, rest: &mut Input) -> bool {
        debug_assert!(rest.unread() == 0 && rest.refused.is_none() && self.refused.is_none());
        let split = self.start + bytes;
        if !rest.append(&self.buffer[split..self.end]) {
            return false;
        }
        self.end = split;
        true
    }

    /// Moves the first `bytes` unread bytes, whole requests, to `front`, which must be empty;
    /// `false`, and nothing changed, if there is no memory.
    pub fn move_front(&mut self, bytes: usize, front: &mut Input) -> bool {
        debug_assert!(front.unread() == 0 && front.refused.is_none() && self.refused.is_none());
        let end = self.start + bytes;
        if !front.append(&self.buffer[self.start..end]) {
            return false;
        }
        self.start = end;
        true
    }

    /// How many of the next requests, at most `max`, are whole, accepted and `wanted`, and their
    /// bytes.
    pub fn run_of(
        &self,
        max: usize,
        rules: Rules,
        wanted: impl Fn(&Request) -> bool,
    ) -> (usize, usize) {
        let mut position = self.start;
        let mut count = 0;
        while count < max {
            let Some(header) = self.buffer[position..self.end].first_chunk() else {
                break;
            };
            let verdict = RequestHeader::decode(header).map(|header| judge(&header, rules));
            let Some(Verdict::Accept(request)) = verdict else {
                break;
            };
            let end = position + REQUEST_BYTES + request.payload_bytes();
            if end > self.end || !wanted(&request) {
                break;
            }
            position = end;
            count += 1;
        }
        (count, position - self.start)
    }

    /// Gives memory beyond `keep_bytes` back; nothing may be unread.
    pub fn shrink(&mut self, keep_bytes: usize) {
        if self.unread() == 0 && self.buffer.len() > keep_bytes {
            self.buffer = Vec::new();
            (self.start, self.end) = (0, 0);
        }
    }
}
