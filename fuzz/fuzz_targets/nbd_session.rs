//! A whole session of mostly valid requests against a model of bytes: every reply is checked.
#![no_main]

use libfuzzer_sys::fuzz_target;
use uzram_frontends::nbd::Session;
use uzram_fuzz::DEVICE_BYTES;

const SIZE: u64 = DEVICE_BYTES as u64;

struct Request {
    flags: u16,
    command: u16,
    offset: u64,
    length: u32,
    fill: u8,
}

impl Request {
    fn from(raw: &[u8; 8]) -> Request {
        let [
            flags,
            command,
            offset_high,
            offset_low,
            length_high,
            length_low,
            fill,
            far,
        ] = *raw;
        let far = if far > 250 { u64::MAX << (far & 63) } else { 0 };
        Request {
            flags: u16::from(flags & 0x3f),
            command: u16::from(command % 9),
            offset: u64::from(u16::from_be_bytes([offset_high, offset_low]) % 0x2400) | far,
            length: u32::from(u16::from_be_bytes([length_high, length_low]) % 0x2400),
            fill,
        }
    }

    fn encode(&self, cookie: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(&0x2560_9513_u32.to_be_bytes());
        out.extend_from_slice(&self.flags.to_be_bytes());
        out.extend_from_slice(&self.command.to_be_bytes());
        out.extend_from_slice(&cookie.to_be_bytes());
        out.extend_from_slice(&self.offset.to_be_bytes());
        out.extend_from_slice(&self.length.to_be_bytes());
        if self.command == 1 {
            out.resize(out.len() + self.length as usize, self.fill);
        }
    }

    /// The error that the protocol asks for, and the data of a successful read.
    fn model(&self, bytes: &mut [u8]) -> (u32, Vec<u8>) {
        let allowed = if self.command == 6 { 0b1_0011 } else { 0b1 };
        let is_flush = self.command == 3;
        if self.command > 6 || self.flags & !allowed != 0 {
            return (22, Vec::new());
        }
        if is_flush {
            let valid = self.offset == 0 && self.length == 0;
            return (if valid { 0 } else { 22 }, Vec::new());
        }
        let end = u128::from(self.offset) + u128::from(self.length);
        if end > u128::from(SIZE) {
            return (
                if matches!(self.command, 1 | 6) {
                    28
                } else {
                    22
                },
                Vec::new(),
            );
        }
        let range = self.offset as usize..end as usize;
        match self.command {
            0 => return (0, bytes[range].to_vec()),
            1 if self.length > 0 && range.end > DEVICE_BYTES - 16 => return (28, Vec::new()),
            1 => bytes[range].fill(self.fill),
            4 | 6 => bytes[range].fill(0),
            _ => {}
        }
        (0, Vec::new())
    }
}

fuzz_target!(|data: &[u8]| {
    let [piece, rest @ ..] = data else { return };
    let mut model = vec![0; DEVICE_BYTES];
    let mut sent = uzram_fuzz::go("a");
    let mut expected = Vec::new();
    let mut open = true;
    for (cookie, raw) in rest.as_chunks::<8>().0.iter().enumerate() {
        let cookie = cookie as u64 ^ 0x0123_4567_89ab_cdef;
        let request = Request::from(raw);
        request.encode(cookie, &mut sent);
        if request.command == 2 {
            open = false;
            break;
        }
        let (error, data) = request.model(&mut model);
        expected.extend_from_slice(&0x6744_6698_u32.to_be_bytes());
        expected.extend_from_slice(&error.to_be_bytes());
        expected.extend_from_slice(&cookie.to_be_bytes());
        expected.extend_from_slice(&data);
    }
    let mut session = Session::new(uzram_fuzz::exports());
    let (said, still_open) = uzram_fuzz::converse(&mut session, &sent, usize::from(*piece) * 7 + 1);
    assert_eq!(still_open, open);
    let replies = said.len() - expected.len();
    uzram_fuzz::check_handshake_output(&said[..replies]);
    assert!(said[replies..] == expected);
});
