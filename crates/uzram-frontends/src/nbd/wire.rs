//! The protocol's numbers, and pure functions between bytes and values. All integers on the wire
//! are big-endian. Names are those of the protocol document.

use uzram::ErrorKind;

pub(crate) const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
pub(crate) const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(crate) const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
pub(crate) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub(crate) const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
pub(crate) const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// Handshake flags of the server.
pub(crate) const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
pub(crate) const FLAG_NO_ZEROES: u16 = 1 << 1;
/// Handshake flags of the client.
pub(crate) const FLAG_C_FIXED_NEWSTYLE: u32 = 1 << 0;
pub(crate) const FLAG_C_NO_ZEROES: u32 = 1 << 1;

/// Transmission flags.
pub(crate) const FLAG_HAS_FLAGS: u16 = 1 << 0;
pub(crate) const FLAG_READ_ONLY: u16 = 1 << 1;
pub(crate) const FLAG_SEND_FLUSH: u16 = 1 << 2;
pub(crate) const FLAG_SEND_FUA: u16 = 1 << 3;
pub(crate) const FLAG_SEND_TRIM: u16 = 1 << 5;
pub(crate) const FLAG_SEND_WRITE_ZEROES: u16 = 1 << 6;
pub(crate) const FLAG_SEND_DF: u16 = 1 << 7;
pub(crate) const FLAG_CAN_MULTI_CONN: u16 = 1 << 8;
pub(crate) const FLAG_SEND_CACHE: u16 = 1 << 10;
pub(crate) const FLAG_SEND_FAST_ZERO: u16 = 1 << 11;
pub(crate) const FLAG_BLOCK_STATUS_PAYLOAD: u16 = 1 << 12;

pub(crate) const OPT_EXPORT_NAME: u32 = 1;
pub(crate) const OPT_ABORT: u32 = 2;
pub(crate) const OPT_LIST: u32 = 3;
pub(crate) const OPT_STARTTLS: u32 = 5;
pub(crate) const OPT_INFO: u32 = 6;
pub(crate) const OPT_GO: u32 = 7;
pub(crate) const OPT_STRUCTURED_REPLY: u32 = 8;
pub(crate) const OPT_LIST_META_CONTEXT: u32 = 9;
pub(crate) const OPT_SET_META_CONTEXT: u32 = 10;
pub(crate) const OPT_EXTENDED_HEADERS: u32 = 11;

pub(crate) const REP_ACK: u32 = 1;
pub(crate) const REP_SERVER: u32 = 2;
pub(crate) const REP_INFO: u32 = 3;
pub(crate) const REP_META_CONTEXT: u32 = 4;
pub(crate) const REP_ERR_UNSUP: u32 = (1 << 31) + 1;
pub(crate) const REP_ERR_POLICY: u32 = (1 << 31) + 2;
pub(crate) const REP_ERR_INVALID: u32 = (1 << 31) + 3;
pub(crate) const REP_ERR_TLS_REQD: u32 = (1 << 31) + 5;
pub(crate) const REP_ERR_UNKNOWN: u32 = (1 << 31) + 6;
pub(crate) const REP_ERR_TOO_BIG: u32 = (1 << 31) + 9;
pub(crate) const REP_ERR_EXT_HEADER_REQD: u32 = (1 << 31) + 10;

pub(crate) const INFO_EXPORT: u16 = 0;
pub(crate) const INFO_NAME: u16 = 1;
pub(crate) const INFO_DESCRIPTION: u16 = 2;
pub(crate) const INFO_BLOCK_SIZE: u16 = 3;

pub(crate) const CMD_READ: u16 = 0;
pub(crate) const CMD_WRITE: u16 = 1;
pub(crate) const CMD_DISC: u16 = 2;
pub(crate) const CMD_FLUSH: u16 = 3;
pub(crate) const CMD_TRIM: u16 = 4;
pub(crate) const CMD_CACHE: u16 = 5;
pub(crate) const CMD_WRITE_ZEROES: u16 = 6;
pub(crate) const CMD_BLOCK_STATUS: u16 = 7;

pub(crate) const CMD_FLAG_FUA: u16 = 1 << 0;
pub(crate) const CMD_FLAG_NO_HOLE: u16 = 1 << 1;
pub(crate) const CMD_FLAG_DF: u16 = 1 << 2;
pub(crate) const CMD_FLAG_REQ_ONE: u16 = 1 << 3;
pub(crate) const CMD_FLAG_FAST_ZERO: u16 = 1 << 4;
pub(crate) const CMD_FLAG_PAYLOAD_LEN: u16 = 1 << 5;

pub(crate) const REPLY_FLAG_DONE: u16 = 1 << 0;

/// Types of reply chunks.
pub(crate) const REPLY_NONE: u16 = 0;
pub(crate) const REPLY_OFFSET_DATA: u16 = 1;
pub(crate) const REPLY_OFFSET_HOLE: u16 = 2;
pub(crate) const REPLY_BLOCK_STATUS: u16 = 5;
pub(crate) const REPLY_BLOCK_STATUS_EXT: u16 = 6;
pub(crate) const REPLY_ERROR: u16 = (1 << 15) + 1;
pub(crate) const REPLY_ERROR_OFFSET: u16 = (1 << 15) + 2;

/// Flags of the context `base:allocation`.
pub(crate) const STATE_HOLE: u32 = 1 << 0;
pub(crate) const STATE_ZERO: u32 = 1 << 1;

pub(crate) const EPERM: u32 = 1;
pub(crate) const EIO: u32 = 5;
pub(crate) const ENOMEM: u32 = 12;
pub(crate) const EINVAL: u32 = 22;
pub(crate) const ENOSPC: u32 = 28;
pub(crate) const EOVERFLOW: u32 = 75;
pub(crate) const ENOTSUP: u32 = 95;

/// Bytes of a compact request before its payload.
pub(crate) const REQUEST_BYTES: usize = 28;
/// Bytes of an extended request before its payload.
pub(crate) const EXTENDED_REQUEST_BYTES: usize = 32;
/// Bytes of a simple reply before its payload.
pub(crate) const REPLY_BYTES: usize = 16;
/// Bytes of a structured chunk before its payload.
const STRUCTURED_CHUNK_BYTES: usize = 20;
/// Bytes of an extended chunk before its payload.
const EXTENDED_CHUNK_BYTES: usize = 32;
/// Bytes of an option before its data.
pub(crate) const OPTION_BYTES: usize = 16;

/// Longest string that the protocol allows, in bytes.
pub(crate) const STRING_BYTES_MAX: usize = 4096;

/// The protocol's error for a device's error. No other table decides it.
pub(crate) fn error_number(kind: ErrorKind) -> u32 {
    match kind {
        ErrorKind::NoSpace => ENOSPC,
        ErrorKind::NoMemory => ENOMEM,
        ErrorKind::ReadOnly => EPERM,
        ErrorKind::Unsupported => ENOTSUP,
        ErrorKind::InvalidInput | ErrorKind::OutOfRange | ErrorKind::UnknownName => EINVAL,
        // Busy has no number in the protocol; kinds added later must not reach a client unmapped.
        _ => EIO,
    }
}

/// The layout of requests and replies, as the handshake settled it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Framing {
    /// Compact requests, simple replies.
    #[default]
    Simple,
    /// Compact requests, structured replies.
    Structured,
    /// Extended requests and replies: lengths of 64 bits.
    Extended,
}

impl Framing {
    /// Bytes of a request before its payload.
    pub fn request_bytes(self) -> usize {
        match self {
            Framing::Simple | Framing::Structured => REQUEST_BYTES,
            Framing::Extended => EXTENDED_REQUEST_BYTES,
        }
    }

    /// Bytes of a reply chunk before its payload.
    pub fn chunk_bytes(self) -> usize {
        match self {
            Framing::Simple | Framing::Structured => STRUCTURED_CHUNK_BYTES,
            Framing::Extended => EXTENDED_CHUNK_BYTES,
        }
    }
}

/// The fixed part of a request, not yet validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestHeader {
    pub flags: u16,
    pub command: u16,
    /// Opaque to the server, repeated in the reply.
    pub cookie: u64,
    pub offset: u64,
    /// In bytes, of the payload or of the effect.
    pub length: u64,
}

/// The front of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decoded {
    Header(RequestHeader),
    /// Not yet as long as a header.
    Short,
    /// The magic is wrong: the stream's framing is lost.
    Garbage,
}

impl RequestHeader {
    /// Decodes the request at the front of `bytes`.
    pub fn decode(bytes: &[u8], framing: Framing) -> Decoded {
        let Some(bytes) = bytes.get(..framing.request_bytes()) else {
            return Decoded::Short;
        };
        match RequestHeader::fields(bytes, framing) {
            Some(header) => Decoded::Header(header),
            None => Decoded::Garbage,
        }
    }

    fn fields(bytes: &[u8], framing: Framing) -> Option<RequestHeader> {
        let mut fields = Fields(bytes);
        let magic = match framing {
            Framing::Simple | Framing::Structured => REQUEST_MAGIC,
            Framing::Extended => EXTENDED_REQUEST_MAGIC,
        };
        (fields.u32()? == magic).then_some(())?;
        Some(RequestHeader {
            flags: fields.u16()?,
            command: fields.u16()?,
            cookie: fields.u64()?,
            offset: fields.u64()?,
            length: match framing {
                Framing::Simple | Framing::Structured => fields.u32()?.into(),
                Framing::Extended => fields.u64()?,
            },
        })
    }
}

/// The head of a structured or extended reply chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    pub is_last: bool,
    /// One of the `REPLY_` numbers.
    pub kind: u16,
    pub cookie: u64,
    /// The request's, which extended chunks repeat.
    pub offset: u64,
    pub payload_bytes: u32,
}

impl Chunk {
    /// Writes the head to the front of `out`, which holds at least [`Framing::chunk_bytes`].
    pub fn encode(&self, framing: Framing, out: &mut [u8]) {
        let flags = if self.is_last { REPLY_FLAG_DONE } else { 0 };
        let magic = match framing {
            Framing::Simple | Framing::Structured => STRUCTURED_REPLY_MAGIC,
            Framing::Extended => EXTENDED_REPLY_MAGIC,
        };
        out[..4].copy_from_slice(&magic.to_be_bytes());
        out[4..6].copy_from_slice(&flags.to_be_bytes());
        out[6..8].copy_from_slice(&self.kind.to_be_bytes());
        out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        match framing {
            Framing::Simple | Framing::Structured => {
                out[16..20].copy_from_slice(&self.payload_bytes.to_be_bytes());
            }
            Framing::Extended => {
                out[16..24].copy_from_slice(&self.offset.to_be_bytes());
                out[24..32].copy_from_slice(&u64::from(self.payload_bytes).to_be_bytes());
            }
        }
    }
}

/// The head of a simple reply; `error` 0 is success.
pub(crate) fn simple_reply(cookie: u64, error: u32) -> [u8; REPLY_BYTES] {
    let mut reply = [0; REPLY_BYTES];
    reply[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    reply[4..8].copy_from_slice(&error.to_be_bytes());
    reply[8..].copy_from_slice(&cookie.to_be_bytes());
    reply
}

/// The server's first message.
pub(crate) fn greeting() -> [u8; 18] {
    let mut greeting = [0; 18];
    greeting[..8].copy_from_slice(&NBDMAGIC.to_be_bytes());
    greeting[8..16].copy_from_slice(&IHAVEOPT.to_be_bytes());
    greeting[16..].copy_from_slice(&(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
    greeting
}

/// Appends the reply `kind` to `option`, its data being the concatenation of `parts`.
pub(crate) fn option_reply(out: &mut Vec<u8>, option: u32, kind: u32, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    let length = u32::try_from(length).expect("replies hold a few strings of at most 4096 bytes");
    out.extend_from_slice(&length.to_be_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// Appends the refusal `kind` of `option`, with a reason for people.
pub(crate) fn refuse_option(out: &mut Vec<u8>, option: u32, kind: u32, reason: &str) {
    option_reply(out, option, kind, &[reason.as_bytes()]);
}

/// Reads big-endian integers and runs of bytes off the front of a slice.
pub(crate) struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(length)?;
        self.0 = tail;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk()?;
        self.0 = tail;
        Some(*head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_decodes_field_by_field() {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&[0x25, 0x60, 0x95, 0x13]);
        bytes[4..8].copy_from_slice(&[0x00, 0x11, 0x00, 0x06]);
        bytes[8..16].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        bytes[16..24].copy_from_slice(&[0, 0, 0, 1, 0, 0, 0, 2]);
        bytes[24..].copy_from_slice(&[0, 0, 0x10, 0]);
        let header = RequestHeader {
            flags: 0x11,
            command: CMD_WRITE_ZEROES,
            cookie: 0x0102_0304_0506_0708,
            offset: 0x1_0000_0002,
            length: 4096,
        };
        for framing in [Framing::Simple, Framing::Structured] {
            let decode = |bytes: &[u8]| RequestHeader::decode(bytes, framing);
            assert_eq!(decode(&bytes), Decoded::Header(header));
            assert_eq!(decode(&bytes[..27]), Decoded::Short);
            for bit in 0..32 {
                let mut wrong = bytes;
                wrong[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(decode(&wrong), Decoded::Garbage, "magic bit {bit}");
            }
        }
        let mut extended = bytes[..24].to_vec();
        extended[..4].copy_from_slice(&[0x21, 0xe4, 0x1c, 0x71]);
        extended.extend_from_slice(&[0, 0, 1, 0, 0, 0, 0x10, 0]);
        let long = RequestHeader {
            length: 0x100_0000_1000,
            ..header
        };
        let decode = |bytes: &[u8]| RequestHeader::decode(bytes, Framing::Extended);
        assert_eq!(decode(&extended), Decoded::Header(long));
        assert_eq!(decode(&extended[..31]), Decoded::Short);
        assert_eq!(decode(&[&bytes[..], &[0; 4]].concat()), Decoded::Garbage);
    }

    #[test]
    fn every_kind_of_error_has_its_number() {
        for (kind, number) in [
            (ErrorKind::NoSpace, 28),
            (ErrorKind::NoMemory, 12),
            (ErrorKind::ReadOnly, 1),
            (ErrorKind::Unsupported, 95),
            (ErrorKind::InvalidInput, 22),
            (ErrorKind::OutOfRange, 22),
            (ErrorKind::UnknownName, 22),
            (ErrorKind::Corrupt, 5),
            (ErrorKind::Io, 5),
            (ErrorKind::Busy, 5),
        ] {
            assert_eq!(error_number(kind), number, "{kind:?}");
        }
    }
}
