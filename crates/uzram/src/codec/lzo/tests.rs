//! Streams by hand from the format's description, every distance and length at an edge, and
//! another implementation.

use uzram_testkit::noise;

use super::format::*;
use super::*;

const LARGEST: usize = 1 << 16;

fn compressor(version: Version) -> Box<dyn Compressor> {
    Lzo { version }
        .compressor(Unit::new(LARGEST as u64).unwrap())
        .unwrap()
}

fn pack(compressor: &mut dyn Compressor, page: &[u8]) -> Vec<u8> {
    let mut packed = vec![0; 2 * LARGEST];
    let length = compressor.compress(page, &mut packed).unwrap();
    packed.truncate(length);
    packed
}

fn unpack(stream: &[u8], length: usize) -> Option<Vec<u8>> {
    let mut page = vec![0xa5; length];
    let done = LzoDecoder.decompress(stream, &mut page);
    done.ok().map(|()| page)
}

/// The stream `start` + `instructions` + the end, and the page that it encodes.
#[track_caller]
fn stands_for(start: &[u8], instructions: &[&[u8]], page: &[u8]) {
    let stream = [start, &instructions.concat(), &END].concat();
    assert_eq!(unpack(&stream, page.len()).as_deref(), Some(page));
    for wrong in [page.len() - 1, page.len() + 1] {
        assert_eq!(unpack(&stream, wrong), None, "a page of {wrong} bytes");
    }
    for cut in 0..stream.len() {
        assert_eq!(unpack(&stream[..cut], page.len()), None, "cut at {cut}");
    }
    assert_eq!(unpack(&[&stream[..], &[0]].concat(), page.len()), None);
}

#[test]
fn streams_written_by_hand_decode() {
    // 5 literals; then a near copy of 8 at distance 5 with 2 literals behind it.
    stands_for(
        &[22],
        &[b"abcde", &[0b1111_0010, 0], b"yz"],
        b"abcdeabcdeabcyz",
    );
    // 1 literal at the start makes the next instruction a copy of 2, from distance 1.
    stands_for(&[18], &[b"a", &[0b0000_0001, 0], b"b"], b"aaab");
    // A long run of literals: 3 + 15 + 1, the first instruction of a stream included.
    stands_for(&[0, 1], &[&[b'x'; 19]], &[b'x'; 19]);
    stands_for(&[1], &[b"wxyz", &[0b0110_0000, 0]], b"wxyzzzzz");
    // 3 + 15 + 255 + 2 literals, and a middle copy of 2 + 31 + 255 + 3 at distance 2.
    let literals = noise(1, 275);
    let copied: Vec<u8> = literals[273..].iter().copied().cycle().take(291).collect();
    stands_for(
        &[0, 0, 2],
        &[&literals, &[32, 0, 3, 0b100, 0]],
        &[&literals[..], &copied].concat(),
    );
    // No literal behind a copy: the next instruction is a run of literals again.
    stands_for(
        &[21],
        &[b"abcd", &[64 | 3 << 2, 0], &[2], b"01234"],
        b"abcdabc01234",
    );
}

#[test]
fn three_bytes_after_many_literals_come_from_beyond_the_near_distances() {
    let literals = noise(2, 2049);
    let run = |count: usize| {
        let over = count - 18;
        [
            vec![0; over.div_ceil(255)],
            vec![(over - 255 * ((over - 1) / 255)) as u8],
        ]
        .concat()
    };
    let page = [&literals[..], &literals[..3], b"z"].concat();
    stands_for(&run(2049), &[&literals, &[0b0000_0001, 0], b"z"], &page);
}

#[test]
fn far_copies_reach_as_far_as_they_say() {
    // Distance 16384 + 16384 + 5, length 2 + 4, one literal behind.
    let literals = noise(3, 40_000);
    let from = literals.len() - (32_768 + 5);
    let page = [&literals[..], &literals[from..from + 6], b"!"].concat();
    let over = literals.len() - 18;
    let zeroes = (over - 1) / 255;
    let start = [vec![0; zeroes + 1], vec![(over - 255 * zeroes) as u8]].concat();
    stands_for(
        &start,
        &[&literals, &[0b0001_1100, 5 << 2 | 1, 0], b"!"],
        &page,
    );
}

#[test]
fn runs_of_zeroes_belong_to_version_one() {
    // 4 literals, then (3 << 3 | 5) + 4 zeroes and one literal.
    let body: &[&[u8]] = &[b"abcd", &[0x18 | 5, 0xfd, 0xff, 3], b"e"];
    let page = [&b"abcd"[..], &[0; 33], b"e"].concat();
    stands_for(&[17, 1, 21], body, &page);
    let version_0 = [&[21][..], &body.concat(), &END].concat();
    assert_eq!(unpack(&version_0, page.len()), None);
    for version in 2..=255 {
        let unknown = [&[17, version, 21][..], &body.concat(), &END].concat();
        assert_eq!(unpack(&unknown, page.len()), None, "version {version}");
    }
    // Version 0 may say so.
    stands_for(&[17, 0, 21], &[b"abcd"], b"abcd");
}

#[test]
fn copies_from_before_the_page_are_refused() {
    for stream in [
        &[21, 1, 2, 3, 4, 64 | 4 << 2, 0, 17, 0, 0][..],
        &[21, 1, 2, 3, 4, 33, 16, 0, 17, 0, 0],
        &[21, 1, 2, 3, 4, 17, 4, 0, 17, 0, 0],
        &[21, 1, 2, 3, 4, 0, 0, 17, 0, 0],
        &[16, 4, 0, 17, 0, 0],
        // An end with a length or with literals behind it is none.
        &[21, 1, 2, 3, 4, 18, 0, 0],
        &[21, 1, 2, 3, 4, 17, 1, 0, 5],
    ] {
        for length in 0..20 {
            assert_eq!(unpack(stream, length), None, "{stream:?} as {length} bytes");
        }
    }
}

/// Distances and lengths where instructions change, with three literals behind each copy.
#[test]
fn every_edge_of_distance_and_length_comes_back() {
    let distances = [
        1, 2, 7, 8, 15, 16, 17, 1024, 2047, 2048, 2049, 3072, 16_383, 16_384, 16_385, 32_767,
        32_768, 0x803f, 0x807f, 0xbfbf, 49_149, 49_150, 49_151, 49_152, 60_000,
    ];
    let lengths = [
        3, 4, 8, 9, 10, 33, 34, 260, 261, 262, 263, 264, 265, 288, 289, 4000,
    ];
    for version in [Version::Original, Version::Rle] {
        let mut compressor = compressor(version);
        for (distance, length) in distances.iter().flat_map(|d| lengths.map(|l| (*d, l))) {
            let mut page = noise(distance as u64, distance.max(16));
            for _ in 0..length {
                page.push(page[page.len() - distance]);
            }
            page.extend(b"\xfe\xfd\xfc");
            page.extend_from_within(page.len() - 12..page.len() - 3);
            page.extend(noise(7, 40));
            page.truncate(LARGEST);
            let packed = pack(&mut *compressor, &page);
            assert!(
                unpack(&packed, page.len()).as_ref() == Some(&page),
                "distance {distance}, length {length}"
            );
        }
    }
}

/// Some far copies look like runs of zeroes: that far, that long, and with three literals behind.
#[test]
fn far_copies_are_never_taken_for_runs_of_zeroes() {
    let mut compressor = compressor(Version::Rle);
    let start = noise(1, 300);
    for distance in [0x803e, 0x803f, 0x807f, 0xbfbf, 0xbffe, 0xbfff, 0xc000] {
        for length in 3..280 {
            let mut page = start.clone();
            page.resize(8 + distance, 0);
            page.extend(&start[8..8 + length]);
            page.extend([!start[8 + length], 0xfe, 0xfc]);
            page.extend(&start[12..40]);
            let packed = pack(&mut *compressor, &page);
            assert!(
                unpack(&packed, page.len()).as_ref() == Some(&page),
                "distance {distance:#x}, length {length}"
            );
        }
    }
}

#[test]
fn runs_of_zeroes_of_every_length_come_back() {
    let mut compressor = compressor(Version::Rle);
    for zeroes in (0..300).chain(2040..2070).chain(4090..4120) {
        let page = [
            &noise(1, 20)[..],
            &vec![0; zeroes],
            &noise(2, 20),
            &vec![0; zeroes],
        ]
        .concat();
        let packed = pack(&mut *compressor, &page);
        assert!(unpack(&packed, page.len()) == Some(page), "{zeroes} zeroes");
        assert!(
            packed.len() < 40 + 40,
            "{zeroes} zeroes in {} bytes",
            packed.len()
        );
    }
}

#[test]
fn small_buffers_are_refused_and_odd_lengths_are_not() {
    for version in [Version::Original, Version::Rle] {
        let mut compressor = compressor(version);
        assert_eq!(compressor.compress(&[0; 4096], &mut [0; 4096]), None);
        assert_eq!(
            compressor.compress(&vec![0; LARGEST + 1], &mut vec![0; 1 << 18]),
            None
        );
        for length in 0..300 {
            for page in [vec![0; length], noise(5, length), b"ab".repeat(length)] {
                let packed = pack(&mut *compressor, &page);
                assert!(unpack(&packed, page.len()) == Some(page), "{length}");
            }
        }
    }
}

#[test]
fn a_decoder_that_is_not_ours_agrees() {
    let mut compressor = compressor(Version::Original);
    let pages = [
        noise(9, LARGEST),
        vec![0; LARGEST],
        noise(10, 20_000).repeat(4)[..LARGEST].to_vec(),
        b"to be or not to be, that is the question; ".repeat(1600)[..LARGEST].to_vec(),
        noise(11, LARGEST)
            .into_iter()
            .map(|byte| byte & 3)
            .collect(),
    ];
    for page in pages {
        for length in [4096, 16384, LARGEST] {
            let page = &page[..length];
            let packed = pack(&mut *compressor, page);
            let mut theirs = vec![0; length];
            let written = lzallright::decompress(&packed, &mut theirs).unwrap();
            assert!(written == length && theirs == page);
        }
    }
}

/// Clusters of 16 KiB that Linux 6.12 wrote to an f2fs mounted with `compress_algorithm=lzo-rle`, taken
/// from the image behind their headers of 24 bytes.
const KERNEL_CLUSTERS: [&[u8]; 4] = [
    include_bytes!("kernel/cluster-0.lzo-rle"),
    include_bytes!("kernel/cluster-1.lzo-rle"),
    include_bytes!("kernel/cluster-2.lzo-rle"),
    include_bytes!("kernel/cluster-3.lzo-rle"),
];

#[test]
fn what_a_kernel_wrote_with_lzo_rle_is_read() {
    let line = |i: usize| {
        let text = format!("page {i} of a file in a file system, square {}\n", i * i);
        [text.into_bytes(), vec![0; i * 13 % 300]].concat()
    };
    let file: Vec<u8> = (0..400).flat_map(line).collect();
    for (packed, expected) in KERNEL_CLUSTERS.iter().zip(file.chunks_exact(16384)) {
        assert_eq!(packed[..2], [VERSIONED, 1]);
        let mut page = vec![0xee; 16384];
        LzoDecoder.decompress(packed, &mut page).unwrap();
        assert!(page == expected);
    }
}
