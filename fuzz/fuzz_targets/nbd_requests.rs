//! Arbitrary bytes in the transmission phase: no range outside the device reaches it, and how the
//! bytes are cut into pieces makes no difference.
#![no_main]

use libfuzzer_sys::fuzz_target;
use uzram_frontends::nbd::Session;

fuzz_target!(|data: &[u8]| {
    let [piece, read_only, rest @ ..] = data else {
        return;
    };
    let name = if read_only & 1 == 0 { "a" } else { "b" };
    let converse = |piece| {
        let mut session = Session::new(uzram_fuzz::exports());
        let (_, open) = uzram_fuzz::converse(&mut session, &uzram_fuzz::go(name), usize::MAX);
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
