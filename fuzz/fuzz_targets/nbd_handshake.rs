//! Arbitrary bytes as a handshake: every reply is well-formed, and how the bytes are cut into
//! pieces makes no difference.
#![no_main]

use libfuzzer_sys::fuzz_target;
use uzram_frontends::nbd::Session;

uzram_fuzz::sanitizer_options!();

fuzz_target!(|data: &[u8]| {
    let [piece, framed, rest @ ..] = data else {
        return;
    };
    // Half of the inputs start behind the magic numbers, which a fuzzer learns slowly.
    let mut bytes = Vec::new();
    if framed & 1 == 0 {
        bytes.extend_from_slice(rest);
    } else {
        bytes.extend_from_slice(&[0, 0, 0, 3]);
        for option in rest.split(|&byte| byte == 0xff) {
            let (kind, data) = option.split_first().unwrap_or((&9, &[]));
            bytes.extend_from_slice(b"IHAVEOPT");
            bytes.extend_from_slice(&u32::from(*kind).to_be_bytes());
            bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
            bytes.extend_from_slice(data);
        }
    }
    let session = || match framed >> 1 & 3 {
        0 | 1 => Session::new(uzram_fuzz::exports()),
        mode => Session::with_tls(uzram_fuzz::exports(), uzram_fuzz::tls(), mode == 3),
    };
    let whole = uzram_fuzz::converse(&mut session(), &bytes, usize::MAX);
    let has_tls = framed >> 1 & 3 > 1;
    let behind = uzram_fuzz::check_handshake_output(&whole.0);
    let piece = usize::from(*piece);
    let pieces = uzram_fuzz::converse(&mut session(), &bytes, piece);
    if has_tls {
        // Where TLS begins, bytes in the same piece end the connection, and later ones are no TLS.
        uzram_fuzz::check_handshake_output(&pieces.0);
        assert!(framed >> 1 & 3 != 3 || behind.is_empty());
    } else {
        assert_eq!(whole, pieces);
    }
});
