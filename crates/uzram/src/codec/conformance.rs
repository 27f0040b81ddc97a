//! Laws that every codec obeys. They run for each entry of the table, once more with a dictionary
//! for codecs that take one, and for a codec as a library's user may write it.
//!
//! `UZRAM_CORPORA`, a list of files separated by colons, adds real pages to the round trips.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use uzram_testkit::noise;

use super::{Compression, Parameters, algorithms};
use crate::page::Unit;
use crate::sync::Arc;

const UNITS_BYTES: [u64; 3] = [4096, 16384, 65536];

/// The longest output for tests that try all lengths, in bytes.
const HOSTILE_BYTES_MAX: usize = 8192;

fn each(mut law: impl FnMut(&Compression)) {
    for unit in UNITS_BYTES.map(|bytes| Unit::new(bytes).unwrap()) {
        for name in algorithms() {
            law(&Compression::new(name, unit).unwrap());
        }
        for name in TAKE_DICTIONARIES {
            law(&with_dictionary(name, &dictionary(1), unit));
        }
        law(&Compression::with_codec(Box::new(runs::Runs::default()), unit).unwrap());
    }
}

#[path = "../../tests/it/runs.rs"]
mod runs;

/// The codecs that take a dictionary.
#[cfg(feature = "c-codecs")]
const TAKE_DICTIONARIES: &[&str] = &["lz4", "lz4hc", "zstd"];
#[cfg(not(feature = "c-codecs"))]
const TAKE_DICTIONARIES: &[&str] = &[];

fn with_dictionary(name: &str, bytes: &[u8], unit: Unit) -> Arc<Compression> {
    let parameters = Parameters::default().dictionary(bytes);
    Compression::with_parameters(name, &parameters, unit).unwrap()
}

/// Longer than the 64 KiB that lz4 reaches; the pages of [`mixture`] resemble its end.
fn dictionary(seed: u64) -> Vec<u8> {
    [noise(seed, 64 << 10), mixture(seed + 1, 8 << 10)].concat()
}

fn pack(compression: &Compression, page: &[u8]) -> Vec<u8> {
    let mut stream = compression.lease().unwrap();
    let packed = stream.packer.compress(page);
    packed
        .expect("built-in codecs compress into two units")
        .to_vec()
}

/// Decodes between canaries, twice, over different old bytes: the page must depend on `source`
/// alone.
fn unpack(compression: &Compression, source: &[u8]) -> Option<Vec<u8>> {
    let decode = |old: u8| {
        let unit = compression.unit().bytes();
        let mut out = vec![old; unit + 64];
        let decoded = compression
            .decompress(source, &mut out[32..32 + unit])
            .unwrap();
        let (before, after) = (&out[..32], &out[32 + unit..]);
        assert!(
            before.iter().chain(after).all(|byte| *byte == old),
            "{} wrote outside the page",
            compression.codec().name()
        );
        decoded.ok().map(|()| out[32..32 + unit].to_vec())
    };
    let page = decode(0xa5)?;
    assert!(
        decode(0x5a).as_ref() == Some(&page),
        "{} lets old bytes of the buffer through: {source:02x?}",
        compression.codec().name()
    );
    Some(page)
}

fn comes_back(compression: &Compression, page: &[u8], what: &str) {
    let packed = pack(compression, page);
    let name = compression.codec().name();
    let unit = compression.unit();
    assert!(
        unpack(compression, &packed).as_deref() == Some(page),
        "{name} at {unit}: {what}"
    );
}

/// Pages of each kind: runs, words, noise, and mixtures.
fn page(unit: usize) -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        (any::<u8>(), 1..600usize).prop_map(|(byte, n)| vec![byte; n]),
        (1..3000usize).prop_map(|n| vec![0; n]),
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

/// Noise and compressible bytes, alternately. It packs to more than half of its size.
fn mixture(seed: u64, unit: usize) -> Vec<u8> {
    let noise = noise(seed, unit);
    let word = |at: usize| b"a page of words and words and zeroes \0\0\0\0\0\0\0"[at % 44];
    let byte = |at: usize| match at / 96 % 3 {
        0 | 1 => noise[at],
        _ => word(at),
    };
    (0..unit).map(byte).collect()
}

#[test]
fn what_goes_in_comes_out() {
    each(|compression| {
        let unit = compression.unit().bytes();
        let run = TestRunner::new(ProptestConfig::with_cases(40)).run(&page(unit), |page| {
            comes_back(compression, &page, "a generated page");
            Ok(())
        });
        run.unwrap();
    });
}

#[test]
fn pages_at_the_edges_come_back() {
    each(|compression| {
        let unit = compression.unit().bytes();
        for byte in [0, 1, 0xff] {
            comes_back(compression, &vec![byte; unit], "one byte");
        }
        for period in [2, 3, 7, 8, 255, 256, 2049, 4095] {
            let page: Vec<u8> = noise(3, period).into_iter().cycle().take(unit).collect();
            comes_back(compression, &page, "a period");
        }
        comes_back(compression, &noise(1, unit), "noise");
        comes_back(compression, &mixture(2, unit), "a mixture");
        let half_and_half = [noise(4, unit / 2), vec![0; unit / 2]].concat();
        comes_back(compression, &half_and_half, "noise, then zeroes");
        let doubled = noise(5, unit / 2).repeat(2);
        comes_back(compression, &doubled, "a match of half a page");
        for zeroes in [1, 3, 4, 5, 11, 12, 260, 2051, 2052] {
            let mut page = noise(6, unit);
            page[5..5 + zeroes].fill(0);
            page[unit - zeroes..].fill(0);
            comes_back(compression, &page, "short runs of zeroes");
        }
    });
}

#[test]
fn pages_of_the_corpora_come_back() {
    let Some(files) = std::env::var_os("UZRAM_CORPORA") else {
        return;
    };
    for file in std::env::split_paths(&files) {
        let bytes = std::fs::read(&file).unwrap();
        each(|compression| {
            for (index, page) in bytes.chunks_exact(compression.unit().bytes()).enumerate() {
                comes_back(compression, page, &format!("{} {index}", file.display()));
            }
        });
    }
}

/// All lengths of noise, of a codec's own output cut there, and of that output with a bit flipped.
#[test]
fn hostile_bytes_of_every_length_are_refused_or_make_a_page() {
    each(|compression| {
        let own = pack(compression, &mixture(7, compression.unit().bytes()));
        let noise = noise(8, 2 * HOSTILE_BYTES_MAX);
        for length in 0..=HOSTILE_BYTES_MAX {
            unpack(compression, &noise[length..2 * length]);
            let mut cut = own[..length.min(own.len())].to_vec();
            cut.extend_from_slice(&noise[..length - cut.len()]);
            let page = unpack(compression, &cut);
            assert!(
                page.is_none() || length >= own.len(),
                "{} makes a page of its first {length} bytes",
                compression.codec().name()
            );
            if length > 0 {
                let at = usize::from(noise[length]) * 131 % length;
                cut[at] ^= 1 << (noise[length + 1] % 8);
                unpack(compression, &cut);
            }
        }
    });
}

#[test]
fn damaged_pages_are_refused_or_make_a_page() {
    each(|compression| {
        let unit = compression.unit().bytes();
        let flips = prop::collection::vec(any::<(u16, u8)>(), 0..4);
        let run = TestRunner::new(ProptestConfig::with_cases(40)).run(
            &(page(unit), flips, 0..HOSTILE_BYTES_MAX),
            |(page, flips, length)| {
                let mut bytes = pack(compression, &page);
                for (at, mask) in flips {
                    let at = usize::from(at) % bytes.len();
                    bytes[at] ^= mask;
                }
                bytes.truncate(length);
                unpack(compression, &bytes);
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
        let packed = small
            .lease()
            .unwrap()
            .packer
            .compress(&page)
            .unwrap()
            .to_vec();
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

#[test]
fn a_dictionary_makes_pages_that_resemble_it_smaller() {
    for name in TAKE_DICTIONARIES {
        for unit in UNITS_BYTES.map(|bytes| Unit::new(bytes).unwrap()) {
            let page = mixture(2, unit.bytes());
            let plain = pack(&Compression::new(name, unit).unwrap(), &page);
            let short = pack(&with_dictionary(name, &dictionary(1), unit), &page);
            let gained = plain.len() - short.len();
            assert!(gained > 1000, "{name} at {unit}: {gained}");
            let tiny = with_dictionary(name, b"x", unit);
            comes_back(&tiny, &page, "a dictionary of one byte");
        }
    }
}

/// Pages of another dictionary, pages without one, and pages without one that are read with one.
#[test]
fn a_wrong_dictionary_is_refused_or_makes_a_page() {
    for name in TAKE_DICTIONARIES {
        for unit in UNITS_BYTES.map(|bytes| Unit::new(bytes).unwrap()) {
            let codecs = [
                Compression::new(name, unit).unwrap(),
                with_dictionary(name, &dictionary(1), unit),
                with_dictionary(name, &dictionary(9), unit),
                with_dictionary(name, &dictionary(1)[..70_000], unit),
                with_dictionary(name, b"x", unit),
            ];
            let mut same = 0;
            for (writer, seed) in codecs.iter().flat_map(|c| (0..40).map(move |n| (c, n))) {
                let page = mixture(seed, unit.bytes());
                let packed = pack(writer, &page);
                for reader in codecs.iter().filter(|reader| !Arc::ptr_eq(reader, writer)) {
                    same += usize::from(unpack(reader, &packed).as_ref() == Some(&page));
                }
            }
            // Without a dictionary there is nothing to miss; with a wrong one there is.
            assert!((80..400).contains(&same), "{name} at {unit}: {same}");
        }
    }
}

#[test]
fn codecs_without_dictionaries_say_so() {
    let bytes = Parameters::default().dictionary(&b"some bytes"[..]);
    let takes = |name: &&str| TAKE_DICTIONARIES.contains(name);
    for name in algorithms().into_iter().filter(|name| !takes(name)) {
        let error = Compression::with_parameters(name, &bytes, Unit::DEFAULT).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with(&format!("dict (10 bytes): {name} takes none, ")),
            "{text}"
        );
    }
    let missing: Parameters = "dict=/none/such".parse().unwrap();
    let error = Compression::with_parameters("lz4", &missing, Unit::DEFAULT).unwrap_err();
    assert!(
        error.to_string().starts_with("dict /none/such: "),
        "{error}"
    );
}

/// A dictionary that begins like a trained one must be one throughout.
#[cfg(feature = "c-codecs")]
#[test]
fn a_damaged_zstd_dictionary_is_refused() {
    let bytes = [&[0x37, 0xa4, 0x30, 0xec][..], &noise(3, 1000)].concat();
    let parameters = Parameters::default().dictionary(bytes);
    let error = Compression::with_parameters("zstd", &parameters, Unit::DEFAULT).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("dict of 1004 bytes: no zstd dictionary"),
        "{error}"
    );
}

/// The levels of each codec: the least, the greatest, and the level from which a page of text must
/// get smaller.
#[cfg(feature = "c-codecs")]
const LEVELS: [(&str, i32, i32); 4] = [
    ("lz4", 65537, 1),
    ("lz4hc", 2, 12),
    ("zstd", -131_072, 22),
    ("deflate", 1, 12),
];

#[cfg(feature = "c-codecs")]
#[test]
fn levels_reach_the_codec_and_end_where_they_say() {
    let at = |name: &str, level: i32| {
        Compression::with_parameters(name, &Parameters::default().level(level), Unit::DEFAULT)
    };
    let page: Vec<u8> = (0..4096u32).map(|i| (i * i / 977 % 61) as u8).collect();
    for (name, worst, best) in LEVELS {
        let (worst_codec, best_codec) = (at(name, worst).unwrap(), at(name, best).unwrap());
        comes_back(&worst_codec, &page, "at its worst level");
        comes_back(&best_codec, &page, "at its best level");
        let (long, short) = (pack(&worst_codec, &page), pack(&best_codec, &page));
        assert!(
            short.len() < long.len(),
            "{name}: {} {}",
            short.len(),
            long.len()
        );
        let (least, most) = (worst.min(best), worst.max(best));
        for level in [least - 1, most + 1, i32::MIN, i32::MAX] {
            assert_eq!(
                at(name, level).unwrap_err().to_string(),
                format!("level {level}: {name} takes {least} to {most}")
            );
        }
    }
}

#[cfg(feature = "c-codecs")]
#[test]
fn deflate_takes_the_windows_that_it_has() {
    let with = |bits: i32, unit: u64| {
        let parameters = Parameters::default().deflate_winbits(bits);
        Compression::with_parameters("deflate", &parameters, Unit::new(unit).unwrap())
    };
    for (bits, unit) in [(-12, 4096), (-15, 4096), (-14, 16384), (-15, 65536)] {
        with(bits, unit).unwrap();
    }
    for (bits, unit, range) in [
        (-11, 4096, "-15 to -12"),
        (15, 4096, "-15 to -12"),
        (-13, 16384, "-15 to -14"),
        (-14, 65536, "only -15 here"),
    ] {
        let error = with(bits, unit).unwrap_err().to_string();
        assert_eq!(
            error,
            format!("deflate.winbits {bits}: deflate takes {range}")
        );
    }
}

#[test]
fn parameters_of_another_codec_are_refused() {
    for name in ["lzo", "lzo-rle", "842"] {
        let level = Parameters::default().level(1);
        let error = Compression::with_parameters(name, &level, Unit::DEFAULT).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("level 1: {name} has no such parameter")
        );
    }
    for name in algorithms().into_iter().filter(|name| *name != "deflate") {
        let parameters = Parameters::default().deflate_winbits(-15);
        let error = Compression::with_parameters(name, &parameters, Unit::DEFAULT).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("deflate.winbits -15: {name} has no such parameter")
        );
    }
}
