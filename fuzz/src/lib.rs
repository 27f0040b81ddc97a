//! What the fuzz targets share: a device of bytes, and readers of what a server says.
//!
//! # Modules that may use unsafe
//!
//! - `lib.rs`: names a function for the sanitizer to find

use std::sync::{Arc, Mutex};

use uzram::{Bio, BlockDevice, Error, ErrorKind, Geometry, Result};
use uzram_frontends::nbd::{Export, Exports, Session};

/// For targets that link the codecs. libdeflate compiles one file twice with the same table in it,
/// which the sanitizer takes for a violation of the one-definition rule; at 1 it reports only
/// definitions that differ.
#[macro_export]
macro_rules! sanitizer_options {
    () => {
        #[unsafe(no_mangle)]
        extern "C" fn __asan_default_options() -> *const std::ffi::c_char {
            c"detect_odr_violation=1".as_ptr()
        }
    };
}

pub const DEVICE_BYTES: usize = 8192;

/// Bytes that answer for themselves; writes to the last 16 fail as if memory had run out.
pub struct Bytes(Mutex<Vec<u8>>);

impl Bytes {
    pub fn new() -> Bytes {
        Bytes(Mutex::new(vec![0; DEVICE_BYTES]))
    }
}

impl Default for Bytes {
    fn default() -> Bytes {
        Bytes::new()
    }
}

impl BlockDevice for Bytes {
    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: DEVICE_BYTES as u64,
            preferred_block_bytes: 4096,
        }
    }

    fn submit(&self, bio: Bio<'_>) -> Result<()> {
        let mut bytes = self.0.lock().unwrap();
        // A range outside would panic here: the frontend must have refused it.
        let range = bio
            .range()
            .map(|(at, length)| at as usize..(at + length) as usize);
        match bio {
            Bio::Read { buffer, .. } => buffer.copy_from_slice(&bytes[range.unwrap()]),
            Bio::Write { data, .. } => {
                let range = range.unwrap();
                if range.end > DEVICE_BYTES - 16 {
                    return Err(Error::new(
                        ErrorKind::NoSpace,
                        "the last 16 bytes are never stored",
                    ));
                }
                bytes[range].copy_from_slice(data);
            }
            Bio::Zero { .. } | Bio::Trim { .. } => bytes[range.unwrap()].fill(0),
            Bio::Flush => {}
        }
        Ok(())
    }
}

pub fn exports() -> Arc<Exports> {
    let exports = Exports::new();
    for (name, read_only) in [("a", false), ("b", true)] {
        let export = Export {
            name: name.into(),
            description: "a device".into(),
            device: Arc::new(Bytes::new()),
            read_only,
        };
        exports.add(export).unwrap();
    }
    Arc::new(exports)
}

/// Feeds `bytes` in pieces of at most `piece` bytes; returns what was said, and if it goes on.
pub fn converse(session: &mut Session, bytes: &[u8], piece: usize) -> (Vec<u8>, bool) {
    let mut said = Vec::new();
    let mut open = session.receive(&[], &mut said);
    for piece in bytes.chunks(piece.max(1)) {
        if !open {
            break;
        }
        open = session.receive(piece, &mut said);
    }
    (said, open)
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = bytes.split_first_chunk()?;
    *bytes = tail;
    Some(*head)
}

/// Checks that `said`, from the greeting on, is a sequence of whole, known messages.
pub fn check_handshake_output(mut said: &[u8]) {
    let said = &mut said;
    assert_eq!(take::<16>(said).as_ref(), Some(b"NBDMAGICIHAVEOPT"));
    assert_eq!(take::<2>(said), Some([0, 3]));
    while let Some(magic) = take::<8>(said) {
        if u64::from_be_bytes(magic) != 0x0003_e889_0455_65a9 {
            // The answer to EXPORT_NAME has no magic: the size, the flags, perhaps zeroes.
            assert_eq!(u64::from_be_bytes(magic), DEVICE_BYTES as u64);
            return;
        }
        let option = u32::from_be_bytes(take(said).unwrap());
        let kind = u32::from_be_bytes(take(said).unwrap());
        let length = u32::from_be_bytes(take(said).unwrap()) as usize;
        assert!(kind >> 31 == 1 || (1..=3).contains(&kind), "kind {kind:x}");
        *said = &said[length..];
        if option == 7 && kind == 1 {
            return;
        }
    }
}

/// A handshake that ends in the transmission phase on `name`.
pub fn go(name: &str) -> Vec<u8> {
    let mut bytes = vec![0, 0, 0, 3];
    bytes.extend_from_slice(b"IHAVEOPT");
    bytes.extend_from_slice(&7u32.to_be_bytes());
    bytes.extend_from_slice(&(name.len() as u32 + 6).to_be_bytes());
    bytes.extend_from_slice(&(name.len() as u32).to_be_bytes());
    bytes.extend_from_slice(name.as_bytes());
    bytes.extend_from_slice(&[0, 0]);
    bytes
}
