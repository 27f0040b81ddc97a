//! Every version on the same pages: the same bytes out, the same pages back, and no input that harms.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use uzram_testkit::{Rng, noise, pages::synthetic};
use uzram_words::{Decoder, Encoder, Error, Level, PAGE_BYTES, Version, bound};

const LEVELS: [Level; 2] = [Level::Fast, Level::Dense];
const UNITS_BYTES: [usize; 3] = [4096, 16384, 65536];

/// `unit` packed, alike by every version, and unpacked again by all of them.
fn pack(level: Level, unit: &[u8]) -> Vec<u8> {
    let mut first: Option<Vec<u8>> = None;
    for version in Version::all() {
        let mut packed = vec![0x5a; bound(unit.len())];
        let mut encoder = Box::new(Encoder::new(level, version));
        let length = encoder.compress(unit, &mut packed).unwrap();
        packed.truncate(length);
        let first = first.get_or_insert_with(|| packed.clone());
        assert!(*first == packed, "{} writes other bytes", version.name());
    }
    let packed = first.unwrap();
    assert_eq!(
        unpack(&packed, unit.len()).as_deref(),
        Ok(unit),
        "{level:?}"
    );
    packed
}

/// `packed` unpacked, alike by every version, between canaries and over different old bytes.
fn unpack(packed: &[u8], unit_bytes: usize) -> Result<Vec<u8>, Error> {
    let mut first: Option<Result<Vec<u8>, Error>> = None;
    // An exact allocation, so that a sanitizer sees a read past its end.
    let packed: Box<[u8]> = packed.into();
    for (old, version) in [0xa5, 0x5a]
        .into_iter()
        .flat_map(|old| Version::all().map(move |v| (old, v)))
    {
        let mut bytes = vec![old; unit_bytes + 128];
        let page = &mut bytes[64..][..unit_bytes];
        let result = Decoder::new(version)
            .decompress(&packed, page)
            .map(|()| page.to_vec());
        let outside = bytes[..64].iter().chain(&bytes[64 + unit_bytes..]);
        assert!(
            outside.into_iter().all(|byte| *byte == old),
            "wrote outside"
        );
        let first = first.get_or_insert_with(|| result.clone());
        assert!(
            *first == result,
            "{} reads otherwise: {packed:02x?}",
            version.name()
        );
    }
    first.unwrap()
}

/// Pages of all kinds: heaps, text, noise, and such as put many words of one class together.
fn pages() -> Vec<Vec<u8>> {
    let mut pages = Vec::new();
    for (_, bytes) in synthetic() {
        pages.extend(
            bytes
                .chunks_exact(PAGE_BYTES)
                .step_by(16)
                .map(<[u8]>::to_vec),
        );
    }
    let mut rng = Rng::new(22);
    for kind in 0..600 {
        let mut words: Vec<u64> = (0..512).map(|n| word(&mut rng, kind, n)).collect();
        // Copies at one distance, at many, at the farthest and just beyond.
        for n in 1..512 {
            let distance = match kind % 5 {
                0 => 1 + rng.below(16),
                1 => 1 + rng.below(300),
                2 => 255 + rng.below(2),
                3 => 3,
                _ => continue,
            };
            if rng.below(8) < kind % 9 && n >= distance {
                let changed = rng.next() & [0, 0, 0xff, 0xffff, 0x1_0000][rng.below(5)];
                words[n] = words[n - distance] ^ changed;
            }
        }
        pages.push(words.iter().flat_map(|word| word.to_le_bytes()).collect());
    }
    pages
}

fn word(rng: &mut Rng, kind: usize, n: usize) -> u64 {
    let noise = rng.next();
    match (kind / 3 % 8, rng.below(16)) {
        (0, _) => 0,
        (1, _) => noise,
        (2, shift) => noise >> (4 * shift),
        (3, shift) => noise << (4 * shift),
        (4, 0..4) => 0,
        (4 | 5, _) => 0x7f3a_5c00_0000 + (noise & 0xff_fff8),
        // Bytes that are zero anywhere.
        (6, _) => noise & rng.next().wrapping_mul(0x81) & (rng.next() | 0xff00_ff00),
        _ => (n as u64 / 3) << 56 | noise & 0xf0_0000_000f,
    }
}

#[test]
fn pages_of_all_kinds_come_back_and_all_versions_write_the_same() {
    for level in LEVELS {
        for page in pages() {
            pack(level, &page);
        }
    }
}

/// `UZRAM_CORPORA`, a list of files separated by colons, adds real pages.
#[test]
fn pages_of_the_corpora_come_back() {
    let Some(files) = std::env::var_os("UZRAM_CORPORA") else {
        return;
    };
    for file in std::env::split_paths(&files) {
        let bytes = std::fs::read(&file).unwrap();
        for (level, unit) in LEVELS
            .into_iter()
            .flat_map(|level| UNITS_BYTES.map(|unit| (level, unit)))
        {
            bytes
                .chunks_exact(unit)
                .for_each(|unit| drop(pack(level, unit)));
        }
    }
}

#[test]
fn units_are_pages_one_after_the_other() {
    let all = pages();
    for level in LEVELS {
        for pages in all.chunks(16).step_by(7) {
            let unit = pages.concat();
            let apart: Vec<u8> = pages.iter().flat_map(|page| pack(level, page)).collect();
            assert_eq!(pack(level, &unit), apart);
        }
    }
}

/// Nothing that an encoder keeps of a page stands in the next: here an odd number of nibbles, the last 64
/// from one whole register.
#[test]
fn nothing_of_a_page_is_left_in_the_next() {
    let mut rng = Rng::new(7);
    let mut six_bytes = || rng.next() >> 16 | 1 << 40;
    let full: Vec<u64> = (0..512).map(|_| six_bytes()).collect();
    let mut words = vec![0; 512];
    words[..128].fill_with(six_bytes);
    words[0] = 1;
    let unit = [full, words].concat();
    let unit: Vec<u8> = unit.iter().flat_map(|word| word.to_le_bytes()).collect();
    for level in LEVELS {
        let apart = [
            pack(level, &unit[..PAGE_BYTES]),
            pack(level, &unit[PAGE_BYTES..]),
        ];
        assert_eq!(pack(level, &unit), apart.concat());
    }
}

/// The format's bytes, which no version may change.
#[test]
fn a_small_page_is_these_bytes() {
    let mut words = [0u64; 512];
    words[1] = 0x7f00_0000_1000;
    words[2] = 0x7f00_0000_1040;
    words[3] = 0x7f00_0000_1000;
    words[259] = 7;
    let page: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let planes = |coded: [usize; 3], copied: &[usize]| {
        let mut bytes = vec![0u8; 128];
        coded.iter().for_each(|n| bytes[n / 8] |= 1 << (n % 8));
        copied
            .iter()
            .for_each(|n| bytes[64 + n / 8] |= 1 << (n % 8));
        bytes
    };
    let packed = pack(Level::Fast, &page);
    let expected = [
        &[1u8][..],
        &planes([1, 2, 259], &[3]),
        &[1],                   // the copy's distance is new
        &[1],                   // and near:
        &[2 - 1],               // two words back
        &[0, 0, 0],             // the first group has no neighbours
        &[0b011],               // two words have bytes in their high halves
        &[0b0011_0010, 0b0001], // the low halves: byte 1; bytes 0 and 1; byte 0
        &[0b0010_0010],         // the high halves: byte 5
        &[0x10, 0x7f, 0x40, 0x10, 0x7f, 7],
    ];
    assert_eq!(packed, expected.concat());
}

#[test]
fn the_longest_output_is_a_raw_page() {
    for unit in UNITS_BYTES {
        let noise = noise(1, unit);
        for level in LEVELS {
            assert_eq!(pack(level, &noise).len(), bound(unit));
        }
    }
}

#[test]
fn a_destination_that_is_one_byte_too_small_is_refused() {
    for page in pages().iter().step_by(5) {
        for (level, version) in LEVELS
            .into_iter()
            .flat_map(|level| Version::all().map(move |v| (level, v)))
        {
            let length = pack(level, page).len();
            let mut encoder = Box::new(Encoder::new(level, version));
            let mut exact = vec![0; length];
            assert_eq!(encoder.compress(page, &mut exact), Ok(length));
            let short = &mut exact[1..];
            assert_eq!(
                encoder.compress(page, short),
                Err(Error::Destination(length - 1))
            );
        }
    }
}

#[test]
fn units_of_other_sizes_are_refused() {
    let packed = pack(Level::Fast, &pages()[0]);
    for size in [0, 1, 4095, 4097, 6000] {
        for version in Version::all() {
            let mut page = vec![0; size];
            let result = Decoder::new(version).decompress(&packed, &mut page);
            assert_eq!(result, Err(Error::Unit(size)));
            let result = Encoder::new(Level::Fast, version).compress(&page, &mut [0; 9000]);
            assert_eq!(result, Err(Error::Unit(size)));
        }
    }
    assert_eq!(unpack(&packed, 8192), Err(Error::Malformed));
    let two = [&packed[..], &packed].concat();
    assert_eq!(unpack(&two, 4096), Err(Error::Malformed));
    assert!(unpack(&two, 8192).is_ok());
}

/// All versions agree on every cut, every longer one, and on thousands with bits flipped.
#[test]
fn hostile_bytes_are_refused_or_make_a_page() {
    let mut rng = Rng::new(5);
    for (nth, page) in pages().iter().enumerate().step_by(9) {
        for level in LEVELS {
            let packed = pack(level, page);
            for length in (0..packed.len()).step_by(1 + nth % 13) {
                assert_eq!(
                    unpack(&packed[..length], 4096),
                    Err(Error::Malformed),
                    "{length}"
                );
            }
            for more in [1, 2, 7, 8, 9, 63, 64, 65, 4096] {
                let longer = [&packed[..], &vec![nth as u8; more]].concat();
                assert_eq!(unpack(&longer, 4096), Err(Error::Malformed), "{more} more");
            }
            for _ in 0..300 {
                let mut hostile = packed.clone();
                for _ in 0..=rng.below(3) {
                    // Mostly in the head and the lists behind it.
                    let reach = [2, 130, 400, hostile.len()][rng.below(4)].min(hostile.len());
                    hostile[rng.below(reach)] ^= 1 << rng.below(8);
                }
                let _ = unpack(&hostile, 4096);
            }
        }
    }
}

/// A page of one reference: at each place, from each distance.
#[test]
fn references_to_before_the_page_or_to_nothing_are_refused() {
    for index in [0, 1, 2, 16, 17, 63, 64, 254, 255, 256, 511] {
        for distance in 0..=255usize {
            let mut packed = vec![1u8];
            packed.resize(129, 0);
            packed[65 + index / 8] = 1 << (index % 8);
            // One change, which is far: distances below 17 may be written so too.
            packed.extend([1, 0, distance as u8]);
            let result = unpack(&packed, 4096);
            let is_fine = (1..=index).contains(&distance);
            assert_eq!(
                result,
                if is_fine {
                    Ok(vec![0; 4096])
                } else {
                    Err(Error::Malformed)
                }
            );
        }
        // A first reference without a distance of its own.
        let mut packed = vec![1u8];
        packed.resize(129, 0);
        packed[65 + index / 8] = 1 << (index % 8);
        packed.push(0);
        assert_eq!(unpack(&packed, 4096), Err(Error::Malformed));
    }
}

/// The same of near references, which level 2 has.
#[test]
fn near_references_to_before_the_page_or_to_nothing_are_refused() {
    for index in [0, 1, 16, 64, 254, 255, 256, 511] {
        for distance in 0..=255usize {
            let mut packed = vec![2u8];
            packed.resize(129, 0);
            for plane in [1, 65] {
                packed[plane + index / 8] |= 1 << (index % 8);
            }
            // One far change; then the low byte of the delta, and the high one.
            packed.extend([1, 0, distance as u8, 0x34, 1, 0x12]);
            let mut page = vec![0; 4096];
            page[index * 8..][..2].copy_from_slice(&[0x34, 0x12]);
            let is_fine = (1..=index).contains(&distance);
            let expected = if is_fine {
                Ok(page)
            } else {
                Err(Error::Malformed)
            };
            assert_eq!(unpack(&packed, 4096), expected, "{index} {distance}");
        }
    }
}

/// Groups before the first are zero, whichever selector names a lane of theirs.
#[test]
fn selectors_of_groups_that_are_not_there_name_zero() {
    for (level, bits) in [(1u8, 3), (2, 4)] {
        for (words, selector) in (1..20).flat_map(|words| (0..1 << bits).map(move |s| (words, s))) {
            let mut packed = vec![level];
            packed.resize(129, 0);
            (0..words).for_each(|n| packed[1 + n / 8] |= 1 << (n % 8));
            // All selectors of the first group, and of the second in level 2 those of the group before the last.
            let all = (0..8u32).fold(0u32, |all, lane| all | selector << (bits * lane));
            for group in 0..usize::div_ceil(words, 8) {
                let is_far = selector > 8 && group == 1;
                let these = if group == 0 || is_far { all } else { 0 };
                packed.extend(&these.to_le_bytes()[..bits as usize]);
            }
            // Each word has one byte, its lowest.
            packed.extend(vec![0; words.div_ceil(8)]);
            packed.extend(vec![0x11; words.div_ceil(2)]);
            packed.extend((0..words).map(|n| n as u8 + 1));
            let mut page = vec![0; 4096];
            (0..words).for_each(|n| page[n * 8] = n as u8 + 1);
            assert_eq!(
                unpack(&packed, 4096),
                Ok(page),
                "{level} {words} {selector}"
            );
        }
    }
}

/// Lengths follow from the planes and the bitmaps: each bit of those that lies asks for more or fewer bytes.
#[test]
fn every_bit_of_the_planes_may_lie() {
    let (mut refused, mut made) = (0, 0);
    for page in pages().iter().step_by(97) {
        for level in LEVELS {
            let packed = pack(level, page);
            for bit in 0..1032.min(packed.len() * 8) {
                let mut lying = packed.clone();
                lying[bit / 8] ^= 1 << (bit % 8);
                match unpack(&lying, 4096) {
                    Ok(_) => made += 1,
                    Err(error) => {
                        assert_eq!(error, Error::Malformed);
                        refused += 1;
                    }
                }
            }
        }
    }
    assert!(refused > made, "{refused} refused, {made} made");
}

/// A page whose method byte is another's is refused or is some page, the same for all versions.
#[test]
fn methods_decode_each_others_pages_alike() {
    let mut refused = 0;
    let pages = pages();
    for page in pages.iter().step_by(7) {
        for level in LEVELS {
            let packed = pack(level, page);
            for method in [0, 1, 2, 0x81, 0x82] {
                let mut other = packed.clone();
                other[0] = method;
                let result = unpack(&other, 4096);
                if method == packed[0] {
                    assert_eq!(result.as_ref(), Ok(page));
                }
                refused += usize::from(result.is_err());
            }
        }
    }
    assert!(refused > pages.len() / 7, "{refused}");
}

/// Coded words that all are plain, and a number of them that is no whole group.
#[test]
fn plain_words_of_every_number_come_back_and_a_missing_byte_is_refused() {
    for words in 1..=512usize {
        let mut packed = vec![0x81u8];
        packed.resize(129, 0);
        (0..words).for_each(|n| packed[1 + n / 8] |= 1 << (n % 8));
        let bytes: Vec<u8> = (0..words * 8).map(|n| (n % 255) as u8 + 1).collect();
        packed.extend(&bytes);
        let mut page = bytes;
        page.resize(4096, 0);
        assert_eq!(unpack(&packed, 4096), Ok(page), "{words}");
        let short = &packed[..packed.len() - 1];
        assert_eq!(unpack(short, 4096), Err(Error::Malformed), "{words}");
    }
}

#[test]
fn methods_that_nobody_writes_are_refused() {
    for method in (3..0x81).chain(0x83..=255).chain([0x80]) {
        let mut packed = vec![0; 4097];
        packed[0] = method as u8;
        assert_eq!(unpack(&packed, 4096), Err(Error::Malformed), "{method:#x}");
    }
    // A near reference in level 1.
    let mut packed = vec![0; 129];
    (packed[0], packed[1 + 8], packed[65 + 8]) = (1, 1, 1);
    packed.extend([1, 0, 1]);
    assert_eq!(unpack(&packed, 4096), Err(Error::Malformed));
}

/// A process whose environment names a version chooses that, or the best below that the CPU has.
#[test]
fn the_environment_masks_versions() {
    let names: Vec<&str> = Version::all().map(Version::name).collect();
    let best = |most: Option<&str>| {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args([
            "--exact",
            "tell_the_best_version",
            "--ignored",
            "--nocapture",
        ]);
        match most {
            Some(most) => child.env("UZRAM_WORDS_CPU", most),
            None => child.env_remove("UZRAM_WORDS_CPU"),
        };
        let output = child.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let told = text.split("best version: ").nth(1).unwrap();
        told.split_whitespace().next().unwrap().to_owned()
    };
    assert_eq!(best(None), *names.last().unwrap());
    assert_eq!(best(Some("scalar")), "scalar");
    // A name of another kind of CPU masks nothing.
    assert_eq!(best(Some("avx2")), names[names.len().min(2) - 1]);
    assert_eq!(best(Some("neon")), *names.last().unwrap());
    assert_eq!(best(Some("no version")), *names.last().unwrap());
    assert_eq!(best(Some("avx512")), *names.last().unwrap());
}

#[test]
#[ignore = "a child of the test above"]
fn tell_the_best_version() {
    println!("best version: {} ", Version::best().name());
}

/// For hand, optimized: `UZRAM_WORDS_STREAMS` streams, a hundred million if it is not set.
#[test]
#[ignore = "takes minutes; run it with --release"]
fn a_hundred_million_mutated_streams() {
    let count = std::env::var("UZRAM_WORDS_STREAMS").map_or(100_000_000, |n| n.parse().unwrap());
    let mut rng = Rng::new(99);
    let of = |level| {
        pages()
            .iter()
            .map(|page| pack(level, page))
            .collect::<Vec<_>>()
    };
    let own = LEVELS.map(of).concat();
    let versions: Vec<Version> = Version::all().collect();
    let mut made = [0u64; 2];
    for nth in 0..count {
        let mut hostile = own[nth % own.len()].clone();
        for _ in 0..=rng.below(3) {
            let reach = [2, 130, 400, hostile.len()][rng.below(4)].min(hostile.len());
            hostile[rng.below(reach)] ^= 1 << rng.below(8);
        }
        if rng.below(4) == 0 {
            hostile.truncate(rng.below(hostile.len()));
        }
        // As many bytes more or fewer as the damaged planes promise, so that later parts are reached.
        hostile.resize(
            hostile.len() + [0, 0, 1, 8, 40][rng.below(5)],
            rng.next() as u8,
        );
        // An exact allocation, as above.
        let hostile: Box<[u8]> = hostile.into();
        let results = versions.iter().map(|version| {
            let mut page = [nth as u8; PAGE_BYTES];
            Decoder::new(*version)
                .decompress(&hostile, &mut page)
                .map(|()| page)
        });
        let results: Vec<_> = results.collect();
        assert!(
            results.iter().all(|result| *result == results[0]),
            "{hostile:02x?}"
        );
        made[usize::from(results[0].is_ok())] += 1;
    }
    eprintln!("{} streams were refused, {} made a page", made[0], made[1]);
}
