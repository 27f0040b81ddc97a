//! The protocol's numbers, and pure functions between bytes and values. All integers on the wire
//! are big-endian. Names are those of the protocol document.

use uzram::ErrorKind;

pub(crate) const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
pub(crate) const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(crate) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;

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
pub(crate) const FLAG_CAN_MULTI_CONN: u16 = 1 << 8;
pub(crate) const FLAG_SEND_CACHE: u16 = 1 << 10;
pub(crate) const FLAG_SEND_FAST_ZERO: u16 = 1 << 11;

pub(crate) const OPT_EXPORT_NAME: u32 = 1;
pub(crate) const OPT_ABORT: u32 = 2;
pub(crate) const OPT_LIST: u32 = 3;
pub(crate) const OPT_INFO: u32 = 6;
pub(crate) const OPT_GO: u32 = 7;

pub(crate) const REP_ACK: u32 = 1;
pub(crate) const REP_SERVER: u32 = 2;
pub(crate) const REP_INFO: u32 = 3;
pub(crate) const REP_ERR_UNSUP: u32 = (1 << 31) + 1;
pub(crate) const REP_ERR_POLICY: u32 = (1 << 31) + 2;
pub(crate) const REP_ERR_INVALID: u32 = (1 << 31) + 3;
pub(crate) const REP_ERR_UNKNOWN: u32 = (1 << 31) + 6;
pub(crate) const REP_ERR_TOO_BIG: u32 = (1 << 31) + 9;

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

pub(crate) const CMD_FLAG_FUA: u16 = 1 << 0;
pub(crate) const CMD_FLAG_NO_HOLE: u16 = 1 << 1;
pub(crate) const CMD_FLAG_FAST_ZERO: u16 = 1 << 4;

pub(crate) const EPERM: u32 = 1;
pub(crate) const EIO: u32 = 5;
pub(crate) const ENOMEM: u32 = 12;
pub(crate) const EINVAL: u32 = 22;
pub(crate) const ENOSPC: u32 = 28;
pub(crate) const EOVERFLOW: u32 = 75;
pub(crate) const ENOTSUP: u32 = 95;

/// Bytes of a request before its payload.
pub(crate) const REQUEST_BYTES: usize = 28;
/// Bytes of a simple reply before its payload.
pub(crate) const REPLY_BYTES: usize = 16;
/// Bytes of an option before its data.
pub(crate) const OPTION_BYTES: usize = 16;

/// Longest string that the protocol allows, in bytes.
pub(crate) const STRING_BYTES_MAX: usize = 4096;

/// The error that a client sees for a device's error: the one table.
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

/// The fixed part of a request, not yet validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestHeader {
    pub flags: u16,
    pub command: u16,
    /// Opaque to the server, repeated in the reply.
    pub cookie: u64,
    pub offset: u64,
    pub length: u32,
}

impl RequestHeader {
    /// Decodes a request, `None` if the magic is wrong: then the stream's framing is lost.
    pub fn decode(bytes: &[u8; REQUEST_BYTES]) -> Option<RequestHeader> {
        let mut fields = Fields(bytes);
        (fields.u32()? == REQUEST_MAGIC).then_some(())?;
        Some(RequestHeader {
            flags: fields.u16()?,
            command: fields.u16()?,
            cookie: fields.u64()?,
            offset: fields.u64()?,
            length: fields.u32()?,
        })
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

/// What the server says first.
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
        assert_eq!(
            RequestHeader::decode(&bytes),
            Some(RequestHeader {
                flags: 0x11,
                command: CMD_WRITE_ZEROES,
                cookie: 0x0102_0304_0506_0708,
                offset: 0x1_0000_0002,
                length: 4096,
            })
        );
        for bit in 0..32 {
            let mut wrong = bytes;
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(RequestHeader::decode(&wrong), None, "magic bit {bit}");
        }
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
