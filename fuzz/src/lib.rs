//! Parts that the fuzz targets share: a device of bytes, and readers of replies.
//!
//! # Modules that may use unsafe
//!
//! - `lib.rs`: names a function for the sanitizer to find

pub mod reply;

use std::sync::{Arc, Mutex, OnceLock};

use reply::Framing;
use uzram::{Bio, BlockDevice, Error, ErrorKind, Extent, Geometry, PageState, Result};
use uzram_frontends::nbd::{Export, Exports, Session, Tls, TlsFiles};

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

/// Small, for most of an execution is the copying and comparing of content.
pub const DEVICE_BYTES: usize = 2048;
/// Unit in which the device tells zeroes from data, in bytes.
pub const BLOCK_BYTES: usize = 128;

/// A device of plain bytes; writes to the last 16 fail as if memory had run out.
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

    fn extent(&self, offset: u64, length: u64) -> Result<Extent> {
        let bytes = self.0.lock().unwrap();
        let is_zero = |at: usize| {
            let start = at / BLOCK_BYTES * BLOCK_BYTES;
            bytes[start..start + BLOCK_BYTES]
                .iter()
                .all(|&byte| byte == 0)
        };
        // To the end of the block, even where the next is alike: merging is the frontend's.
        let at = offset as usize;
        let border = (at / BLOCK_BYTES + 1) * BLOCK_BYTES;
        assert!(length > 0 && at + length as usize <= DEVICE_BYTES);
        Ok(Extent {
            length_bytes: length.min((border - at) as u64),
            state: match is_zero(at) {
                true => PageState::Same(0),
                false => PageState::Raw,
            },
        })
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

/// Checks that `said`, from the greeting on, is a sequence of whole, known messages; returns what
/// follows the handshake: nothing, what the transmission phase brings, or TLS.
pub fn check_handshake_output(mut said: &[u8]) -> &[u8] {
    let said = &mut said;
    assert_eq!(take::<16>(said).as_ref(), Some(b"NBDMAGICIHAVEOPT"));
    assert_eq!(take::<2>(said), Some([0, 3]));
    while let Some(magic) = take::<8>(said) {
        if u64::from_be_bytes(magic) != 0x0003_e889_0455_65a9 {
            // The answer to EXPORT_NAME has no magic: the size, the flags, perhaps zeroes.
            assert_eq!(u64::from_be_bytes(magic), DEVICE_BYTES as u64);
            return &[];
        }
        let option = u32::from_be_bytes(take(said).unwrap());
        let kind = u32::from_be_bytes(take(said).unwrap());
        let length = u32::from_be_bytes(take(said).unwrap()) as usize;
        assert!(kind >> 31 == 1 || (1..=4).contains(&kind), "kind {kind:x}");
        *said = &said[length..];
        if matches!(option, 5 | 7) && kind == 1 {
            return said;
        }
    }
    &[]
}

/// TLS with a certificate of its own, made once.
pub fn tls() -> &'static Tls {
    static TLS: OnceLock<Tls> = OnceLock::new();
    TLS.get_or_init(|| {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let put = |name: &str, text: String| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let files = TlsFiles {
            certificate: put("cert", made.cert.pem()),
            key: put("key", made.signing_key.serialize_pem()),
            client_ca: None,
        };
        Tls::load(&files).unwrap()
    })
}

/// A handshake that ends in the transmission phase on `name`, in `framing` and with the contexts of
/// these numbers.
pub fn negotiate(name: &str, framing: Framing, contexts: &[u32]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 0, 3];
    let option = |number: u32, data: &[u8]| {
        let mut bytes = b"IHAVEOPT".to_vec();
        bytes.extend_from_slice(&number.to_be_bytes());
        bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
        bytes.extend_from_slice(data);
        bytes
    };
    match framing {
        Framing::Simple => {}
        Framing::Structured => bytes.extend(option(8, &[])),
        Framing::Extended => bytes.extend(option(11, &[])),
    }
    let mut named = (name.len() as u32).to_be_bytes().to_vec();
    named.extend_from_slice(name.as_bytes());
    if !contexts.is_empty() {
        let mut data = named.clone();
        data.extend_from_slice(&(contexts.len() as u32).to_be_bytes());
        for id in contexts {
            let query = ["base:allocation", "uzram:state"][*id as usize - 1];
            data.extend_from_slice(&(query.len() as u32).to_be_bytes());
            data.extend_from_slice(query.as_bytes());
        }
        bytes.extend(option(10, &data));
    }
    named.extend_from_slice(&[0, 0]);
    bytes.extend(option(7, &named));
    bytes
}
