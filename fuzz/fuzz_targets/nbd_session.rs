//! A whole session of mostly valid requests, in any framing and with any contexts, against a model of
//! bytes: every reply is checked.
#![no_main]

use libfuzzer_sys::fuzz_target;
use uzram_frontends::nbd::Session;
use uzram_fuzz::reply::{Framing, Reply};
use uzram_fuzz::{BLOCK_BYTES, DEVICE_BYTES};

uzram_fuzz::sanitizer_options!();

const SIZE: u64 = DEVICE_BYTES as u64;
/// Offsets and lengths stay below: some lie outside, most do not.
const SIZE_AND_BEYOND: u64 = SIZE + SIZE / 8;

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISC: u16 = 2;
const FLUSH: u16 = 3;
const WRITE_ZEROES: u16 = 6;
const BLOCK_STATUS: u16 = 7;
const FLAG_FUA: u16 = 1;
const FLAG_DF: u16 = 4;
const FLAG_REQ_ONE: u16 = 8;
const FLAG_PAYLOAD_LEN: u16 = 32;

struct Request {
    flags: u16,
    command: u16,
    offset: u64,
    /// The length of the effect, which may differ from that of the payload.
    length: u64,
    fill: u8,
    /// Contexts of a filter.
    ids: Vec<u32>,
}

impl Request {
    fn from(raw: &[u8; 8], framing: Framing) -> Request {
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
        let command = u16::from(command % 10);
        let mut flags = u16::from(flags & 0x3f);
        // Mostly as the protocol has it.
        if framing == Framing::Extended && command == WRITE && flags & FLAG_REQ_ONE == 0 {
            flags |= FLAG_PAYLOAD_LEN;
        }
        let ids = (0..usize::from(fill % 4)).map(|index| u32::from(fill >> (2 + index) & 3));
        Request {
            flags,
            command,
            offset: u64::from(u16::from_be_bytes([offset_high, offset_low])) % SIZE_AND_BEYOND | far,
            length: u64::from(u16::from_be_bytes([length_high, length_low])) % SIZE_AND_BEYOND,
            fill,
            ids: ids.collect(),
        }
    }

    fn has_payload(&self, framing: Framing) -> bool {
        match framing {
            Framing::Extended if self.command != WRITE => self.flags & FLAG_PAYLOAD_LEN != 0,
            _ => self.command == WRITE,
        }
    }

    fn is_filtered(&self, framing: Framing) -> bool {
        self.command == BLOCK_STATUS && framing == Framing::Extended && self.has_payload(framing)
    }

    fn encode(&self, cookie: u64, framing: Framing, out: &mut Vec<u8>) {
        let magic: u32 = match framing {
            Framing::Extended => 0x21e4_1c71,
            _ => 0x2560_9513,
        };
        let mut payload = Vec::new();
        if self.is_filtered(framing) {
            payload.extend_from_slice(&self.length.to_be_bytes());
            payload.extend(self.ids.iter().flat_map(|id| id.to_be_bytes()));
        } else if self.has_payload(framing) {
            payload.resize(self.length as usize, self.fill);
        }
        let length = match self.is_filtered(framing) {
            true => payload.len() as u64,
            false => self.length,
        };
        out.extend_from_slice(&magic.to_be_bytes());
        out.extend_from_slice(&self.flags.to_be_bytes());
        out.extend_from_slice(&self.command.to_be_bytes());
        out.extend_from_slice(&cookie.to_be_bytes());
        out.extend_from_slice(&self.offset.to_be_bytes());
        match framing {
            Framing::Extended => out.extend_from_slice(&length.to_be_bytes()),
            _ => out.extend_from_slice(&(length as u32).to_be_bytes()),
        }
        out.extend_from_slice(&payload);
    }

    /// The error that the protocol asks for; the model then is as the request leaves it.
    fn model(&self, framing: Framing, contexts: &[u32], bytes: &mut [u8]) -> u32 {
        let mut allowed = FLAG_FUA;
        match self.command {
            READ if framing != Framing::Simple => allowed |= FLAG_DF,
            WRITE_ZEROES => allowed |= 0b1_0010,
            BLOCK_STATUS => allowed |= FLAG_REQ_ONE,
            _ => {}
        }
        if framing == Framing::Extended {
            allowed |= FLAG_PAYLOAD_LEN;
        }
        let takes_payload = self.command == WRITE || self.is_filtered(framing);
        if self.command > BLOCK_STATUS
            || self.flags & !allowed != 0
            || self.has_payload(framing) != takes_payload
        {
            return 22;
        }
        if self.command == FLUSH {
            return if self.offset == 0 && self.length == 0 {
                0
            } else {
                22
            };
        }
        let end = u128::from(self.offset) + u128::from(self.length);
        let is_inside = end <= u128::from(SIZE);
        if self.command == BLOCK_STATUS {
            let mut ids = self.ids.clone();
            ids.sort_unstable();
            ids.dedup();
            let is_good = !self.is_filtered(framing)
                || ids.len() == self.ids.len()
                    && !ids.is_empty()
                    && ids.iter().all(|id| contexts.contains(id));
            let is_good = is_good && is_inside && self.length > 0 && !contexts.is_empty();
            return if is_good { 0 } else { 22 };
        }
        if !is_inside {
            return if matches!(self.command, WRITE | WRITE_ZEROES) {
                28
            } else {
                22
            };
        }
        let range = self.offset as usize..end as usize;
        match self.command {
            WRITE if self.length > 0 && range.end > DEVICE_BYTES - 16 => return 28,
            WRITE => bytes[range].fill(self.fill),
            4 | WRITE_ZEROES => bytes[range].fill(0),
            _ => {}
        }
        0
    }

    fn check(&self, reply: &Reply, framing: Framing, contexts: &[u32], bytes: &[u8]) {
        let range = self.offset as usize..(self.offset + self.length) as usize;
        match self.command {
            READ => {
                reply.check_content(self.offset, &bytes[range]);
                assert!(self.flags & FLAG_DF == 0 || reply.content.len() <= 1);
            }
            BLOCK_STATUS => {
                let mut wanted = match self.is_filtered(framing) {
                    true => self.ids.clone(),
                    false => contexts.to_vec(),
                };
                wanted.sort_unstable();
                let ids: Vec<u32> = reply.status.iter().map(|(id, _)| *id).collect();
                assert_eq!(ids, wanted);
                for (id, extents) in &reply.status {
                    self.check_extents(*id, extents, bytes);
                }
            }
            _ => assert!(reply.content.is_empty() && reply.status.is_empty()),
        }
    }

    fn check_extents(&self, id: u32, extents: &[(u64, u64)], bytes: &[u8]) {
        let total: u64 = extents.iter().map(|(length, _)| length).sum();
        match self.flags & FLAG_REQ_ONE != 0 {
            true => assert!(extents.len() == 1 && total <= self.length),
            false => assert_eq!(total, self.length),
        }
        let mut at = self.offset as usize;
        for &(length, status) in extents {
            let end = at + length as usize;
            for block in at / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES) {
                let content = &bytes[block * BLOCK_BYTES..][..BLOCK_BYTES];
                let is_zero = content.iter().all(|&byte| byte == 0);
                let expected = match id {
                    1 => u64::from(is_zero) << 1,
                    _ if is_zero => 1,
                    _ => 2,
                };
                assert_eq!(status, expected);
            }
            at = end;
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let [piece, mode, rest @ ..] = data else {
        return;
    };
    let framing = [Framing::Simple, Framing::Structured, Framing::Extended][usize::from(mode % 3)];
    let contexts = match framing {
        Framing::Simple => &[][..],
        _ => [&[][..], &[1], &[2], &[1, 2]][usize::from(mode >> 2 & 3)],
    };
    let mut sent = uzram_fuzz::negotiate("a", framing, contexts);
    let mut requests = Vec::new();
    let mut open = true;
    for (cookie, raw) in rest.as_chunks::<8>().0.iter().enumerate() {
        let request = Request::from(raw, framing);
        request.encode(cookie as u64 ^ 0x0123_4567_89ab_cdef, framing, &mut sent);
        if request.command == DISC {
            open = false;
            break;
        }
        requests.push(request);
    }
    let mut session = Session::new(uzram_fuzz::exports());
    let (said, still_open) = uzram_fuzz::converse(&mut session, &sent, usize::from(*piece) * 7 + 1);
    assert_eq!(still_open, open);
    let mut said = uzram_fuzz::check_handshake_output(&said);
    let mut model = vec![0; DEVICE_BYTES];
    for (cookie, request) in requests.iter().enumerate() {
        let error = request.model(framing, contexts, &mut model);
        let is_read = request.command == READ && error == 0;
        let plain_bytes = if is_read { request.length as usize } else { 0 };
        let reply = Reply::decode(&mut said, framing, request.offset, plain_bytes);
        assert_eq!(reply.cookie, cookie as u64 ^ 0x0123_4567_89ab_cdef);
        assert_eq!(reply.error, error);
        if error == 0 {
            request.check(&reply, framing, contexts, &model);
        }
    }
    assert!(said.is_empty());
});
