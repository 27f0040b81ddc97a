//! Arbitrary bytes into every version of the codec `words`: all refuse them or make the same page of them,
//! write nothing outside it and let nothing through that it held. The same bytes, made a page, come back
//! from both levels, and every version writes the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use uzram_words::{Decoder, Encoder, Error, Level, PAGE_BYTES, Version, bound};

const CANARY_BYTES: usize = 64;
/// Around the page, and in it before.
const CANARIES: [u8; 2] = [0xa5, 0x5a];

fn decode(source: &[u8]) -> Result<Vec<u8>, Error> {
    let versions = || Version::all().flat_map(|version| CANARIES.map(|canary| (version, canary)));
    let mut pages = versions().map(|(version, canary)| {
        let mut bytes = vec![canary; PAGE_BYTES + 2 * CANARY_BYTES];
        let page = &mut bytes[CANARY_BYTES..][..PAGE_BYTES];
        let decoded = Decoder::new(version).decompress(source, page);
        let outside = bytes[..CANARY_BYTES]
            .iter()
            .chain(&bytes[CANARY_BYTES + PAGE_BYTES..]);
        assert!(
            outside.into_iter().all(|byte| *byte == canary),
            "wrote outside the page"
        );
        decoded.map(|()| bytes[CANARY_BYTES..][..PAGE_BYTES].to_vec())
    });
    let first = pages.next().expect("the portable version is always there");
    assert!(pages.all(|page| page == first), "versions or old bytes differ");
    first
}

/// The page of `data`, its words repeated as often as the length asks.
fn page(data: &[u8]) -> [u8; PAGE_BYTES] {
    let mut page = [0; PAGE_BYTES];
    let pattern = data.chunks(8).cycle();
    for (word, bytes) in page.chunks_exact_mut(8).zip(pattern) {
        word[..bytes.len()].copy_from_slice(bytes);
    }
    page
}

fn round_trip(page: &[u8; PAGE_BYTES], at: usize, mask: u8) {
    for level in [Level::Fast, Level::Dense] {
        let mut packed: Option<Vec<u8>> = None;
        for version in Version::all() {
            let mut bytes = vec![0; bound(PAGE_BYTES)];
            let mut encoder = Box::new(Encoder::new(level, version));
            let length = encoder.compress(page, &mut bytes).expect("room for any page");
            bytes.truncate(length);
            let first = packed.get_or_insert_with(|| bytes.clone());
            assert!(*first == bytes, "{} writes other bytes", version.name());
        }
        // An exact copy, so that the sanitizer sees a read past its end.
        let mut packed = packed.expect("some version").into_boxed_slice();
        assert!(decode(&packed).expect("own output") == page);
        let at = at % packed.len();
        let _ = decode(&packed[..at]);
        packed[at] ^= mask;
        let _ = decode(&packed);
    }
}

uzram_fuzz::sanitizer_options!();

fuzz_target!(|data: &[u8]| {
    let [which, mask, low, high, bytes @ ..] = data else {
        return;
    };
    if *which < 128 || bytes.is_empty() {
        let _ = decode(bytes);
    } else {
        round_trip(&page(bytes), usize::from(u16::from_le_bytes([*low, *high])), *mask);
    }
});
