//! Replies of the transmission phase, decoded as strictly as the protocol allows.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    Simple,
    Structured,
    Extended,
}

/// A whole reply.
#[derive(Debug, Default)]
pub struct Reply {
    pub cookie: u64,
    pub error: u32,
    /// Parts of a read: offset and data; a hole is zeroes.
    pub content: Vec<(u64, Vec<u8>)>,
    /// By context: extents with their status.
    pub status: Vec<(u32, Vec<(u64, u64)>)>,
}

impl Reply {
    /// Takes the reply off the front of `said`; a simple one to a read carries `plain_bytes`.
    pub fn decode(said: &mut &[u8], framing: Framing, offset: u64, plain_bytes: usize) -> Reply {
        let mut reply = Reply::default();
        loop {
            let magic = u32::from_be_bytes(take(said));
            if magic == 0x6744_6698 {
                assert!(framing != Framing::Extended && reply.content.is_empty());
                reply.error = u32::from_be_bytes(take(said));
                reply.cookie = u64::from_be_bytes(take(said));
                if framing == Framing::Simple {
                    let data = bytes(said, plain_bytes);
                    reply
                        .content
                        .extend((plain_bytes > 0).then(|| (offset, data.to_vec())));
                } else {
                    assert!(reply.error == 0 && plain_bytes == 0);
                }
                return reply;
            }
            let expected = match framing {
                Framing::Structured => 0x668e_33ef,
                _ => 0x6e8a_278c,
            };
            assert_eq!(magic, expected);
            let flags = u16::from_be_bytes(take(said));
            let kind = u16::from_be_bytes(take(said));
            let cookie = u64::from_be_bytes(take(said));
            assert!(flags <= 1 && (reply.cookie == 0 || reply.cookie == cookie));
            reply.cookie = cookie;
            let length = match framing {
                Framing::Extended => {
                    assert_eq!(u64::from_be_bytes(take(said)), offset);
                    u64::from_be_bytes(take(said)) as usize
                }
                _ => u32::from_be_bytes(take(said)) as usize,
            };
            reply.chunk(kind, bytes(said, length), framing);
            if flags == 1 {
                return reply;
            }
        }
    }

    fn chunk(&mut self, kind: u16, mut payload: &[u8], framing: Framing) {
        let payload = &mut payload;
        match kind {
            0 => {}
            1 => {
                let offset = u64::from_be_bytes(take(payload));
                self.content
                    .push((offset, std::mem::take(payload).to_vec()));
            }
            2 => {
                let offset = u64::from_be_bytes(take(payload));
                let length = u32::from_be_bytes(take(payload)) as usize;
                assert!(length > 0);
                self.content.push((offset, vec![0; length]));
            }
            5 | 6 => {
                assert_eq!(kind == 6, framing == Framing::Extended);
                let id = u32::from_be_bytes(take(payload));
                let count = (kind == 6).then(|| u32::from_be_bytes(take(payload)));
                let mut extents = Vec::new();
                while !payload.is_empty() {
                    extents.push(match kind {
                        6 => (
                            u64::from_be_bytes(take(payload)),
                            u64::from_be_bytes(take(payload)),
                        ),
                        _ => (
                            u32::from_be_bytes(take(payload)).into(),
                            u32::from_be_bytes(take(payload)).into(),
                        ),
                    });
                }
                assert!(!extents.is_empty() && extents.iter().all(|(length, _)| *length > 0));
                assert!(count.is_none_or(|count| count as usize == extents.len()));
                assert!(extents.windows(2).all(|pair| pair[0].1 != pair[1].1));
                self.status.push((id, extents));
            }
            0x8001 | 0x8002 => {
                self.error = u32::from_be_bytes(take(payload));
                assert_ne!(self.error, 0);
                let length = usize::from(u16::from_be_bytes(take(payload)));
                assert!(std::str::from_utf8(bytes(payload, length)).is_ok());
                if kind == 0x8002 {
                    take::<8>(payload);
                }
            }
            _ => panic!("chunk {kind}"),
        }
        assert!(payload.is_empty());
    }

    /// Each byte of `expected` came once, and no other.
    pub fn check_content(&self, offset: u64, expected: &[u8]) {
        let total: usize = self.content.iter().map(|(_, data)| data.len()).sum();
        assert_eq!(total, expected.len());
        for (at, data) in &self.content {
            let start = (at - offset) as usize;
            assert!(expected[start..start + data.len()] == **data);
        }
        let mut starts: Vec<_> = self
            .content
            .iter()
            .map(|(at, data)| (*at, data.len()))
            .collect();
        starts.sort_unstable();
        let touch = |pair: &[(u64, usize)]| pair[0].0 + pair[0].1 as u64 == pair[1].0;
        assert!(starts.windows(2).all(touch));
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> [u8; N] {
    let (head, tail) = bytes.split_first_chunk().expect("a whole reply");
    *bytes = tail;
    *head
}

fn bytes<'a>(said: &mut &'a [u8], length: usize) -> &'a [u8] {
    let (head, tail) = said.split_at(length);
    *said = tail;
    head
}
