//! Streams written by hand from the format, and the bounds of rings and repetitions.

use super::format::*;
use super::*;

/// Bits in groups of `0` and `1`, spaces anywhere, padded to 8 bytes.
fn stream(text: &str) -> Vec<u8> {
    let mut bits: Vec<u8> = text
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .map(|byte| byte - b'0')
        .collect();
    bits.resize(bits.len().next_multiple_of(8 * PADDING), 0);
    let byte = |bits: &[u8]| bits.iter().fold(0, |byte, bit| byte << 1 | bit);
    bits.chunks(8).map(byte).collect()
}

/// The end of a stream that makes `page`.
fn end(page: &[u8]) -> String {
    format!("11110 {:032b}", crc_by_bits(page))
}

fn decode(bytes: &[u8], length: usize) -> Option<Vec<u8>> {
    let mut page = vec![0xee; length];
    Decoder.decompress(bytes, &mut page).ok().map(|()| page)
}

fn encode(page: &[u8]) -> Vec<u8> {
    let mut packed = vec![0; 2 * page.len() + 64];
    let length = Finder::new().unwrap().compress(page, &mut packed).unwrap();
    packed.truncate(length);
    packed
}

/// The definition: shift out the highest bit, and subtract the polynomial if it was 1.
fn crc_by_bits(bytes: &[u8]) -> u32 {
    let mut crc = 0u32;
    for byte in bytes {
        crc ^= u32::from(*byte) << 24;
        for _ in 0..8 {
            let polynomial = if crc >> 31 == 1 { 0x04c1_1db7 } else { 0 };
            crc = crc << 1 ^ polynomial;
        }
    }
    crc
}

#[test]
fn the_crc_is_the_formats() {
    for length in [0, 1, 7, 511, 512, 513, 4096] {
        let bytes: Vec<u8> = (0..length).map(|n: u32| (n * n / 3) as u8).collect();
        assert_eq!(crc32(&bytes), crc_by_bits(&bytes), "{length}");
    }
}

#[test]
fn templates_make_eight_bytes_and_are_all_different() {
    for (nth, parts) in TEMPLATES.iter().enumerate() {
        assert_eq!(parts.iter().map(|part| part.bytes()).sum::<usize>(), BLOCK);
        assert!(!TEMPLATES[..nth].contains(parts), "{nth:#x}");
    }
}

#[test]
fn streams_written_by_hand_are_read_and_written() {
    let text = |bytes: &[u8]| -> String {
        let bits = bytes.iter().map(|byte| format!("{byte:08b}"));
        bits.collect()
    };
    // Whole data, zeroes, an index of 8 bytes, one of 4 with data, the last block twice more.
    let page = b"abcdefgh\0\0\0\0\0\0\0\0abcdefghefghWXYZefghWXYZefghWXYZ";
    let bits = format!(
        "00000 {}  11100  11001 00000000  10100 000000001 {}  11011 000001 {}",
        text(b"abcdefgh"),
        text(b"WXYZ"),
        end(page)
    );
    assert!(decode(&stream(&bits), page.len()).as_deref() == Some(&page[..]));
    // The same, but the index of 4 bytes names the latest place of `efgh`, the sixth.
    let bits = bits.replace("10100 000000001", "10100 000000101");
    assert_eq!(encode(page), stream(&bits));

    // Four indexes of 2 bytes, and of 4, 2 and data.
    let page = b"abcdefghghefcdabcdefghzz";
    let bits = format!(
        "00000 {}  10010 00000011 00000010 00000001 00000000  10110 {:09b} {:08b} {} {}",
        text(b"abcdefgh"),
        // `cdef` lies nowhere at a multiple of 4: this one cannot be said.
        0,
        0,
        text(b"zz"),
        end(page)
    );
    assert!(
        decode(&stream(&bits), page.len()).is_none(),
        "its CRC is of other bytes"
    );
    let made = b"abcdefghghefcdababcdabzz";
    let bits = bits.replace(&end(page), &end(made));
    assert!(decode(&stream(&bits), made.len()).as_deref() == Some(&made[..]));
}

/// Rings are no sliding windows: an index is a place modulo the ring's size.
#[test]
fn rings_reach_back_by_their_size_and_no_further() {
    let ring = |bytes| super::format::ring(bytes);
    assert_eq!([ring(2), ring(4), ring(8)], [512, 2048, 2048]);
    let noise = |length: usize| uzram_testkit::noise(7, length);
    for (bytes, template, bits) in [(2, 0x0bu8, 8), (4, 0x14, 9), (8, 0x19, 8)] {
        let ring = ring(bytes);
        for (at, index, from) in [
            (ring, 0, 0),
            (ring, ring / bytes - 1, ring - bytes),
            (ring + 8, 0, ring),
            (ring + 8, 8 / bytes, 8),
            (ring + 16, 0, ring),
            (2 * ring, 1, ring + bytes),
            (2 * ring - 8, ring / bytes - 1, ring - bytes),
        ] {
            let mut page = noise(at);
            let mut text: String = page
                .chunks(8)
                .map(|block| {
                    let data: String = block.iter().map(|byte| format!("{byte:08b}")).collect();
                    format!("00000{data}")
                })
                .collect();
            let index_bits = format!("{index:0bits$b}");
            page.extend_from_within(from..from + bytes);
            text += &match bytes {
                2 => format!("{template:05b}{index_bits}{:032b}{index_bits}", 0),
                4 => format!("{template:05b}{index_bits}{:032b}", 0),
                _ => format!("{template:05b}{index_bits}"),
            };
            page.extend(vec![0; 4 * usize::from(bytes < 8)]);
            if bytes == 2 {
                page.extend_from_within(from..from + bytes);
            }
            text += &end(&page);
            assert!(
                decode(&stream(&text), page.len()).as_ref() == Some(&page),
                "{bytes} at {at}: {index}"
            );
            assert!(decode(&encode(&page), page.len()).as_ref() == Some(&page));
        }
    }
    // The same 8 bytes again: within the ring as one index, beyond it as themselves.
    for (distance, bits) in [(2048, 5 + 8), (2056, 5 + 64)] {
        let mut page = noise(distance);
        page.extend_from_within(..8);
        let before = distance / 8 * (5 + 64);
        let after = encode(&page).len() * 8 - before;
        let expected = (before + bits + 5 + 32).next_multiple_of(64) - before;
        assert_eq!(after, expected, "{distance}");
    }
}

#[test]
fn repetitions_and_zeroes_of_every_length_come_back() {
    for block in [*b"repeated", [0; 8]] {
        for times in (1..70).chain([127, 128, 129, 130]) {
            let page = [&block.repeat(times)[..], b"other so", &block.repeat(times)].concat();
            let packed = encode(&page);
            assert!(
                decode(&packed, page.len()).as_ref() == Some(&page),
                "{times}"
            );
            assert!(packed.len() <= 64, "{times}: {}", packed.len());
        }
    }
}

#[test]
fn what_refers_to_nothing_is_refused() {
    for text in [
        // A repetition of nothing, and of more than there is room for.
        "11011 000000".to_owned(),
        "11100 11011 000001".to_owned(),
        // Indexes into rings without content.
        "11001 00000000".to_owned(),
        "11100 11001 00000001".to_owned(),
        "11100 11000 000000000 000000010".to_owned(),
        // Operations without meaning.
        "11010".to_owned(),
        "11101 001 00000000".to_owned(),
        "11111".to_owned(),
        // Too much, too little.
        "11100 11100 11100".to_owned(),
        "11100".to_owned(),
    ] {
        let all = format!("{text} {}", end(&[0; 16]));
        assert_eq!(decode(&stream(&all), 16), None, "{text}");
    }
    let good = stream(&format!("11100 11100 {}", end(&[0; 16])));
    assert_eq!(decode(&good, 16), Some(vec![0; 16]));
    let padded = |bytes: usize| [&good[..], &vec![0; bytes]].concat();
    assert!(decode(&padded(24), 16).is_some());
    for bytes in [1, 7, 32, 64] {
        assert_eq!(decode(&padded(bytes), 16), None, "{bytes} more");
    }
    assert_eq!(decode(&good[..good.len() - 1], 16), None);
}

#[test]
fn small_buffers_and_parts_of_blocks_are_refused() {
    let page: Vec<u8> = (0..4096u32).map(|n| (n * n / 128) as u8).collect();
    let length = encode(&page).len();
    let mut finder = Finder::new().unwrap();
    for room in [0, 4, length - 1] {
        assert_eq!(finder.compress(&page, &mut vec![0; room]), None);
    }
    assert_eq!(finder.compress(&page, &mut vec![0; length]), Some(length));
    assert_eq!(finder.compress(&page[..4095], &mut vec![0; 9000]), None);
}

#[test]
fn the_parts_of_a_template_fit_a_window() {
    let longest = TEMPLATES[1..].iter().map(|parts| {
        let bits = parts.iter().map(|part| part.bits());
        bits.sum::<u32>()
    });
    assert!(longest.max() <= Some(57));
}
