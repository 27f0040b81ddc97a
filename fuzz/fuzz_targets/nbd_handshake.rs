//! Arbitrary bytes as a handshake: every reply is well-formed, and how the bytes are cut into
//! pieces makes no difference.
#![no_main]

use libfuzzer_sys::fuzz_target;
use uzram_frontends::nbd::Session;

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
    let whole = uzram_fuzz::converse(&mut Session::new(uzram_fuzz::exports()), &bytes, usize::MAX);
    uzram_fuzz::check_handshake_output(&whole.0);
    let piece = usize::from(*piece);
    let pieces = uzram_fuzz::converse(&mut Session::new(uzram_fuzz::exports()), &bytes, piece);
    assert_eq!(whole, pieces);
});
