//! A client with structured replies or extended headers, made of bytes as `client` is. It is strict:
//! what the protocol forbids a server panics.

use std::io::{Read, Write};

use crate::client::{Stream, exactly, info_data, option, option_reply};

pub const DF: u16 = 4;
pub const REQ_ONE: u16 = 8;
pub const PAYLOAD_LEN: u16 = 32;
pub const BLOCK_STATUS: u16 = 7;

/// The data of LIST_ and SET_META_CONTEXT.
pub fn meta_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend_from_slice(&(query.len() as u32).to_be_bytes());
        data.extend_from_slice(query.as_bytes());
    }
    data
}

/// Sends a list or a selection; the contexts of the answer by number and name.
pub fn contexts(
    stream: &mut (impl Read + Write),
    number: u32,
    data: &[u8],
) -> Result<Vec<(u32, String)>, u32> {
    stream.write_all(&option(number, data)).unwrap();
    let mut found = Vec::new();
    loop {
        match option_reply(stream, number) {
            (1, data) => {
                assert_eq!(data, b"");
                return Ok(found);
            }
            (4, data) => {
                let (id, name) = data.split_first_chunk().unwrap();
                let name = String::from_utf8(name.to_vec()).unwrap();
                found.push((u32::from_be_bytes(*id), name));
            }
            (kind, _) => return Err(kind),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum Chunk {
    /// A simple reply: success.
    Simple,
    Nothing,
    Data(u64, Vec<u8>),
    Hole(u64, u64),
    Status(u32, Vec<(u64, u64)>),
    Error {
        number: u32,
        at: Option<u64>,
        text: String,
    },
}

pub struct Reply {
    pub cookie: u64,
    pub chunks: Vec<Chunk>,
}

impl Reply {
    pub fn error(&self) -> u32 {
        let errors = self.chunks.iter().filter_map(|chunk| match chunk {
            Chunk::Error { number, .. } => Some(*number),
            _ => None,
        });
        errors.into_iter().next().unwrap_or(0)
    }

    /// The content of a successful read, put together; each byte must come once.
    pub fn content(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![None; length];
        let mut put = |at: u64, part: &mut dyn Iterator<Item = u8>| {
            for (index, byte) in part.enumerate() {
                let place = &mut bytes[(at - offset) as usize + index];
                assert_eq!(place.replace(byte), None, "a byte came twice");
            }
        };
        for chunk in &self.chunks {
            match chunk {
                Chunk::Data(at, data) => put(*at, &mut data.iter().copied()),
                Chunk::Hole(at, length) => put(*at, &mut (0..*length).map(|_| 0)),
                Chunk::Nothing => {}
                other => panic!("{other:?} in a successful read"),
            }
        }
        let bytes: Option<Vec<u8>> = bytes.into_iter().collect();
        bytes.expect("all bytes of the read")
    }
}

pub struct Chunked {
    pub stream: Box<dyn Stream>,
    pub flags: u16,
    pub extended: bool,
    /// Offsets of the requests, which extended replies repeat.
    offsets: std::collections::HashMap<u64, u64>,
    cookie: u64,
}

impl Chunked {
    pub fn go(
        mut stream: impl Stream + 'static,
        name: &str,
        extended: bool,
        queries: &[&str],
    ) -> Chunked {
        assert_eq!(&exactly::<18>(&mut stream), b"NBDMAGICIHAVEOPT\0\x03");
        stream.write_all(&[0, 0, 0, 3]).unwrap();
        Chunked::go_on(stream, name, extended, queries)
    }

    /// From the options on.
    pub fn go_on(
        mut stream: impl Stream + 'static,
        name: &str,
        extended: bool,
        queries: &[&str],
    ) -> Chunked {
        let number = if extended { 11 } else { 8 };
        stream.write_all(&option(number, &[])).unwrap();
        assert_eq!(option_reply(&mut stream, number), (1, vec![]));
        if !queries.is_empty() {
            let selected = contexts(&mut stream, 10, &meta_data(name, queries)).unwrap();
            assert_eq!(selected.len(), queries.len());
        }
        stream.write_all(&option(7, &info_data(name, &[]))).unwrap();
        let (kind, data) = option_reply(&mut stream, 7);
        assert_eq!((kind, data.len()), (3, 12));
        let flags = u16::from_be_bytes(data[10..].try_into().unwrap());
        assert_eq!(option_reply(&mut stream, 7), (1, Vec::new()));
        Chunked {
            stream: Box::new(stream),
            flags,
            extended,
            offsets: std::collections::HashMap::new(),
            cookie: 0x2000,
        }
    }

    /// Sends a request and returns its cookie. `PAYLOAD_LEN` is the caller's business.
    pub fn send_raw(
        &mut self,
        flags: u16,
        command: u16,
        offset: u64,
        length: u64,
        payload: &[u8],
    ) -> u64 {
        self.cookie += 1;
        self.offsets.insert(self.cookie, offset);
        let magic: u32 = if self.extended {
            0x21e4_1c71
        } else {
            0x2560_9513
        };
        let mut bytes = magic.to_be_bytes().to_vec();
        bytes.extend_from_slice(&flags.to_be_bytes());
        bytes.extend_from_slice(&command.to_be_bytes());
        bytes.extend_from_slice(&self.cookie.to_be_bytes());
        bytes.extend_from_slice(&offset.to_be_bytes());
        match self.extended {
            true => bytes.extend_from_slice(&length.to_be_bytes()),
            false => bytes.extend_from_slice(&u32::try_from(length).unwrap().to_be_bytes()),
        }
        bytes.extend_from_slice(payload);
        self.stream.write_all(&bytes).unwrap();
        self.cookie
    }

    pub fn send(
        &mut self,
        flags: u16,
        command: u16,
        offset: u64,
        length: u64,
        payload: &[u8],
    ) -> u64 {
        let has_payload = self.extended && (command == 1 || !payload.is_empty());
        let more = if has_payload { PAYLOAD_LEN } else { 0 };
        self.send_raw(flags | more, command, offset, length, payload)
    }

    pub fn call(&mut self, flags: u16, command: u16, offset: u64, length: u64) -> Reply {
        let cookie = self.send(flags, command, offset, length, &[]);
        let reply = self.reply();
        assert_eq!(reply.cookie, cookie);
        reply
    }

    pub fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> u32 {
        let cookie = self.send(flags, 1, offset, data.len() as u64, data);
        let reply = self.reply();
        assert_eq!(reply.cookie, cookie);
        reply.error()
    }

    /// The extents of each context.
    pub fn status(&mut self, flags: u16, offset: u64, length: u64) -> Vec<(u32, Vec<(u64, u64)>)> {
        let reply = self.call(flags, BLOCK_STATUS, offset, length);
        let chunks = reply.chunks.into_iter().map(|chunk| match chunk {
            Chunk::Status(id, extents) => (id, extents),
            other => panic!("{other:?} instead of a status"),
        });
        chunks.collect()
    }

    /// All chunks of the next reply. This server does not interleave them with others'.
    pub fn reply(&mut self) -> Reply {
        let mut chunks = Vec::new();
        loop {
            let (cookie, is_last, chunk) = self.chunk();
            let is_simple = chunk == Chunk::Simple;
            chunks.push(chunk);
            if is_last {
                assert!(!is_simple || chunks.len() == 1);
                return Reply { cookie, chunks };
            }
        }
    }

    fn chunk(&mut self) -> (u64, bool, Chunk) {
        let magic = u32::from_be_bytes(exactly(&mut self.stream));
        if magic == 0x6744_6698 {
            assert!(!self.extended, "a simple reply with extended headers");
            let error = u32::from_be_bytes(exactly(&mut self.stream));
            assert_eq!(error, 0, "errors have chunks");
            let cookie = u64::from_be_bytes(exactly(&mut self.stream));
            return (cookie, true, Chunk::Simple);
        }
        assert_eq!(
            magic,
            if self.extended {
                0x6e8a_278c
            } else {
                0x668e_33ef
            }
        );
        let flags = u16::from_be_bytes(exactly(&mut self.stream));
        let kind = u16::from_be_bytes(exactly(&mut self.stream));
        let cookie = u64::from_be_bytes(exactly(&mut self.stream));
        let length = match self.extended {
            true => {
                let offset = u64::from_be_bytes(exactly(&mut self.stream));
                assert_eq!(self.offsets[&cookie], offset, "of the request");
                u64::from_be_bytes(exactly(&mut self.stream))
            }
            false => u32::from_be_bytes(exactly(&mut self.stream)).into(),
        };
        assert!(flags <= 1 && length <= (32 << 20) + 8);
        let mut payload = vec![0; length as usize];
        self.stream.read_exact(&mut payload).unwrap();
        (cookie, flags == 1, decode(kind, &payload, self.extended))
    }
}

fn decode(kind: u16, payload: &[u8], extended: bool) -> Chunk {
    let u64_at = |at: usize| u64::from_be_bytes(payload[at..at + 8].try_into().unwrap());
    let u32_at = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
    match kind {
        0 => {
            assert_eq!(payload, b"");
            Chunk::Nothing
        }
        1 => {
            assert!(payload.len() > 8);
            Chunk::Data(u64_at(0), payload[8..].to_vec())
        }
        2 => {
            assert!(payload.len() == 12 && u32_at(8) > 0);
            Chunk::Hole(u64_at(0), u32_at(8).into())
        }
        5 => {
            assert!(!extended && payload.len() > 4 && payload.len() % 8 == 4);
            let places = (4..payload.len()).step_by(8);
            let extents = places.map(|at| (u32_at(at).into(), u32_at(at + 4).into()));
            status(u32_at(0), extents.collect())
        }
        6 => {
            assert!(extended && payload.len() > 8);
            assert_eq!(payload.len(), u32_at(4) as usize * 16 + 8);
            let places = (8..payload.len()).step_by(16);
            status(
                u32_at(0),
                places.map(|at| (u64_at(at), u64_at(at + 8))).collect(),
            )
        }
        0x8001 | 0x8002 => {
            let length = usize::from(u16::from_be_bytes(payload[4..6].try_into().unwrap()));
            let has_offset = kind == 0x8002;
            assert_eq!(payload.len(), 6 + length + if has_offset { 8 } else { 0 });
            assert_ne!(u32_at(0), 0);
            Chunk::Error {
                number: u32_at(0),
                at: has_offset.then(|| u64_at(6 + length)),
                text: String::from_utf8(payload[6..6 + length].to_vec()).unwrap(),
            }
        }
        _ => panic!("chunk of kind {kind}"),
    }
}

fn status(id: u32, extents: Vec<(u64, u64)>) -> Chunk {
    assert!(extents.iter().all(|&(length, _)| length > 0));
    assert!(
        extents.windows(2).all(|pair| pair[0].1 != pair[1].1),
        "neighbours alike"
    );
    Chunk::Status(id, extents)
}
