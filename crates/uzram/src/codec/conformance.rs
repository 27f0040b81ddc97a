//! Laws that every codec obeys, instantiated for each entry of the table.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::{Compression, algorithms};
use crate::page::Unit;

const UNITS_BYTES: [u64; 3] = [4096, 16384, 65536];

fn each(mut law: impl FnMut(&Compression)) {
    for name in algorithms() {
        for unit in UNITS_BYTES {
            law(&Compression::new(name, Unit::new(unit).unwrap()).unwrap());
        }
    }
}

/// Pages of every temper: runs, words, noise, and mixtures.
fn page(unit: usize) -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        (any::<u8>(), 1..600usize).prop_map(|(byte, n)| vec![byte; n]),
        prop::collection::vec(any::<u8>(), 1..300),
        (prop::collection::vec(any::<u8>(), 1..24), 1..60usize)
            .prop_map(|(word, n)| word.repeat(n)),
    ];
    prop::collection::vec(piece, 1..80).prop_map(move |pieces| {
        let mut page: Vec<u8> = pieces.into_iter().flatten().cycle().take(unit).collect();
        page.resize(unit, 0);
        page
    })
}

#[test]
fn what_goes_in_comes_out() {
    each(|compression| {
        let unit = compression.unit().bytes();
        let run = TestRunner::new(ProptestConfig::with_cases(60)).run(&page(unit), |page| {
            let packed = compression
                .lease()
                .unwrap()
                .compress(&page)
                .map(<[u8]>::to_vec);
            let packed = packed.expect("built-in codecs compress into two units");
            let mut out = vec![0xa5; unit];
            compression
                .decompress(&packed, &mut out)
                .unwrap()
                .expect("own output is well formed");
            prop_assert_eq!(out, page);
            Ok(())
        });
        run.unwrap();
    });
}

#[test]
fn hostile_bytes_are_refused_or_decode_within_the_page() {
    each(|compression| {
        let unit = compression.unit().bytes();
        let strategy = (
            page(unit),
            prop::collection::vec(any::<(u16, u8)>(), 0..4),
            0..8192usize,
        );
        let run = TestRunner::new(ProptestConfig::with_cases(60)).run(
            &strategy,
            |(page, flips, length)| {
                let mut stream = compression.lease().unwrap();
                let mut bytes = stream.compress(&page).unwrap().to_vec();
                drop(stream);
                for (at, mask) in flips {
                    let at = usize::from(at) % bytes.len();
                    bytes[at] ^= mask;
                }
                bytes.truncate(length);
                // Canaries around the destination: nothing may be written outside it.
                let mut out = vec![0xa5; unit + 64];
                let _ = compression
                    .decompress(&bytes, &mut out[32..32 + unit])
                    .unwrap();
                prop_assert!(
                    out[..32]
                        .iter()
                        .chain(&out[32 + unit..])
                        .all(|byte| *byte == 0xa5)
                );
                Ok(())
            },
        );
        run.unwrap();
    });
}

#[test]
fn a_unit_of_another_size_is_refused() {
    for name in algorithms() {
        let small = Compression::new(name, Unit::DEFAULT).unwrap();
        let page: Vec<u8> = (0..4096u32).map(|i| (i / 7) as u8).collect();
        let packed = small.lease().unwrap().compress(&page).unwrap().to_vec();
        for size in [0, 1, 4095, 4097, 8192] {
            let mut out = vec![0; size];
            assert!(
                small.decompress(&packed, &mut out).unwrap().is_err(),
                "{name} into {size}"
            );
        }
        assert!(
            small.decompress(&[], &mut vec![0; 4096]).unwrap().is_err(),
            "{name}"
        );
    }
}
