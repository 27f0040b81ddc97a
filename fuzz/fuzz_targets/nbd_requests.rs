//! Arbitrary bytes in the transmission phase: no range outside the device reaches it, and how the
//! bytes are cut into pieces makes no difference.
#![no_main]

use libfuzzer_sys::fuzz_target;
use uzram_frontends::nbd::Session;
use uzram_fuzz::reply::Framing;

uzram_fuzz::sanitizer_options!();

fuzz_target!(|data: &[u8]| {
    let [piece, mode, rest @ ..] = data else {
        return;
    };
    let name = if mode & 1 == 0 { "a" } else { "b" };
    let framing = [Framing::Simple, Framing::Structured, Framing::Extended][usize::from(mode % 3)];
    let contexts = match framing {
        Framing::Simple => &[][..],
        _ => [&[][..], &[1], &[2], &[1, 2]][usize::from(mode >> 2 & 3)],
    };
    let handshake = uzram_fuzz::negotiate(name, framing, contexts);
    let converse = |piece| {
        let mut session = Session::new(uzram_fuzz::exports());
        let (_, open) = uzram_fuzz::converse(&mut session, &handshake, usize::MAX);
        assert!(open);
        let mut said = Vec::new();
        let mut open = true;
        for piece in rest.chunks(piece) {
            open = open && session.receive(piece, &mut said);
        }
        (said, open)
    };
    assert_eq!(converse(usize::MAX), converse(usize::from(*piece).max(1)));
});
