//! Structured replies and extended headers: chunks, holes, errors with places, status of extents.

use std::io::Write;
use std::sync::Arc;

use uzram::{ErrorKind, Store, Unit, Zram};
use uzram_frontends::nbd::{Endpoint, Export, Exports, Limits, PAYLOAD_BYTES_MAX, Server};

use crate::chunks::{self, BLOCK_STATUS, Chunk, Chunked, DF, PAYLOAD_LEN, REQ_ONE, meta_data};
use crate::client::{
    self, FAST_ZERO, FLUSH, FUA, NO_HOLE, READ, TRIM, WRITE, WRITE_ZEROES, exactly, info_data,
    option, option_reply, until_closed,
};
use crate::device::{Action, Bytes, Seen};
use crate::{Served, export};

const BOTH: [&str; 2] = ["base:allocation", "uzram:state"];
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const EOVERFLOW: u32 = 75;
const ERR_INVALID: u32 = (1 << 31) + 3;
const ERR_UNKNOWN: u32 = (1 << 31) + 6;

fn zram(size_bytes: u64) -> Served {
    let store = Store::builder().size(size_bytes).build().unwrap();
    Served::new(Arc::new(Zram::new(store)))
}

fn connect(served: &Served, extended: bool) -> Chunked {
    Chunked::go(client::unix(&served.path()), "disk", extended, &BOTH)
}

/// A page that compresses and is not filled with one word.
fn text() -> Vec<u8> {
    b"some words, ".repeat(342)[..4096].to_vec()
}

#[test]
fn reads_tell_data_from_zeroes_and_leave_out_the_latter() {
    for extended in [false, true] {
        let served = zram(1 << 20);
        let mut client = connect(&served, extended);
        // Pages: hole, data, allocated zeroes, data, data, then holes.
        assert_eq!(client.write(0, 4096, &text()), 0);
        assert_eq!(client.call(NO_HOLE, WRITE_ZEROES, 8192, 4096).error(), 0);
        assert_eq!(client.write(0, 12288, &[text(), text()].concat()), 0);
        let mut model = vec![0; 65536];
        for page in [1, 3, 4] {
            model[page * 4096..][..4096].copy_from_slice(&text());
        }

        let shape = |reply: &chunks::Reply| -> Vec<(u64, usize, bool)> {
            let shapes = reply.chunks.iter().map(|chunk| match chunk {
                Chunk::Data(at, data) => (*at, data.len(), true),
                Chunk::Hole(at, length) => (*at, *length as usize, false),
                other => panic!("{other:?}"),
            });
            shapes.collect()
        };
        let reply = client.call(0, READ, 0, 65536);
        assert_eq!(reply.content(0, 65536), model);
        assert_eq!(
            shape(&reply),
            [
                (0, 4096, false),
                (4096, 4096, true),
                (8192, 4096, false),
                (12288, 8192, true),
                (20480, 45056, false)
            ]
        );
        // Runs below a page are not worth a chunk, unless they are all there is.
        for (offset, length, expected) in [
            (100, 4000, vec![(100, 4000, true)]),
            (100, 3996, vec![(100, 3996, false)]),
            (8200, 10, vec![(8200, 10, false)]),
            (4096, 6000, vec![(4096, 6000, true)]),
            (
                8000,
                8192,
                vec![(8000, 192, true), (8192, 4096, false), (12288, 3904, true)],
            ),
        ] {
            let reply = client.call(0, READ, offset, length);
            let range = offset as usize..(offset + length) as usize;
            assert_eq!(reply.content(offset, length as usize), model[range]);
            assert_eq!(shape(&reply), expected, "{offset} {length}");
        }
        // Not to be cut: one chunk, and a hole only if all of it is.
        let reply = client.call(DF, READ, 0, 65536);
        assert_eq!(shape(&reply), [(0, 65536, true)]);
        assert_eq!(reply.content(0, 65536), model);
        let reply = client.call(DF, READ, 4096, 16384);
        assert_eq!(shape(&reply), [(4096, 16384, true)]);
        let reply = client.call(DF, READ, 24576, 40960);
        assert_eq!(shape(&reply), [(24576, 40960, false)]);
        // Nothing is answered by nothing.
        assert_eq!(client.call(0, READ, 77, 0).chunks, [Chunk::Nothing]);
    }
}

#[test]
fn replies_without_content_are_short() {
    for extended in [false, true] {
        let served = zram(1 << 20);
        let mut client = connect(&served, extended);
        let expected = if extended {
            Chunk::Nothing
        } else {
            Chunk::Simple
        };
        for (flags, command, length) in [
            (0, FLUSH, 0),
            (FUA, TRIM, 4096),
            (FAST_ZERO, WRITE_ZEROES, 4096),
            (0, client::CACHE, 4096),
        ] {
            let reply = client.call(flags, command, 0, length);
            assert_eq!(reply.chunks.len(), 1);
            assert_eq!(reply.chunks[0], expected);
        }
    }
}

#[test]
fn a_failed_read_names_the_place_and_delivers_what_lies_before() {
    for extended in [false, true] {
        let device = Bytes::new(1 << 20);
        let served = Served::new(device.clone());
        let mut client = connect(&served, extended);
        assert_eq!(client.write(0, 0, &[7; 65536]), 0);
        // Any read that touches the block at 20480 fails.
        device.set_rule(|seen| match seen {
            Seen::Read(at, length) if at < 24576 && at + length > 20480 => {
                Action::Fail(ErrorKind::Corrupt)
            }
            _ => Action::Pass,
        });
        for flags in [0, DF] {
            let reply = client.call(flags, READ, 5000, 40000);
            let [
                Chunk::Data(5000, data),
                Chunk::Error {
                    number: 5,
                    at: Some(20480),
                    text,
                },
            ] = &reply.chunks[..]
            else {
                panic!("{:?}", reply.chunks)
            };
            assert_eq!(data, &[7; 15480]);
            assert_eq!(text, "told to");
        }
        let reply = client.call(0, READ, 21000, 100);
        assert!(
            matches!(
                &reply.chunks[..],
                [Chunk::Error {
                    number: 5,
                    at: Some(21000),
                    ..
                }]
            ),
            "{:?}",
            reply.chunks
        );
        device.set_rule(|_| Action::Fail(ErrorKind::NoSpace));
        let cookie = client.send(0, WRITE, 0, 4096, &[1; 4096]);
        let reply = client.reply();
        assert_eq!((reply.cookie, reply.error()), (cookie, ENOSPC));
    }
}

#[test]
fn refusals_say_why() {
    let served = zram(1 << 20);
    for extended in [false, true] {
        let mut client = connect(&served, extended);
        let more = if extended { PAYLOAD_LEN } else { 0 };
        for (flags, command, offset, length, payload, error) in [
            (0, READ, 1 << 20, 1, 0, EINVAL),
            (0, READ, 0, 32 << 20 | 1, 0, EOVERFLOW),
            (REQ_ONE, READ, 0, 512, 0, EINVAL),
            (DF, FLUSH, 0, 0, 0, EINVAL),
            (more, WRITE, (1 << 20) - 100, 200, 200, ENOSPC),
            (more | DF, WRITE, 0, 200, 200, EINVAL),
            (0, FLUSH, 1, 0, 0, EINVAL),
            (0, TRIM, 1 << 19, 1 << 30, 0, EINVAL),
            (0, BLOCK_STATUS, 0, 0, 0, EINVAL),
            (0, BLOCK_STATUS, 1 << 20, 1, 0, EINVAL),
            (0, BLOCK_STATUS, 0, (1 << 20) + 1, 0, EINVAL),
            (DF, BLOCK_STATUS, 0, 1, 0, EINVAL),
            (0, 8, 0, 1, 0, EINVAL),
            (64, READ, 0, 1, 0, EINVAL),
        ] {
            let cookie = client.send_raw(flags, command, offset, length, &vec![0; payload]);
            let reply = client.reply();
            assert_eq!(reply.cookie, cookie);
            let [Chunk::Error { number, text, .. }] = &reply.chunks[..] else {
                panic!("{:?}", reply.chunks)
            };
            assert_eq!(*number, error, "command {command} flags {flags} {text}");
            assert!(!text.is_empty());
        }
        assert_eq!(client.call(0, FLUSH, 0, 0).error(), 0);
    }
}

#[test]
fn payloads_of_extended_requests_are_where_they_belong_or_are_skipped() {
    let served = zram(1 << 20);
    let mut client = connect(&served, true);
    // A write carries its data, whether it says so or, as qemu's, does not.
    client.send_raw(0, WRITE, 0, 4096, &[5; 4096]);
    assert_eq!(client.reply().error(), 0);
    assert_eq!(client.call(0, READ, 0, 4096).content(0, 4096), [5; 4096]);
    // Others must not.
    for command in [READ, FLUSH, TRIM, WRITE_ZEROES, client::CACHE, 99] {
        client.send_raw(PAYLOAD_LEN, command, 0, 100, &[0; 100]);
        assert_eq!(client.reply().error(), EINVAL, "command {command}");
    }
    assert_eq!(client.write(0, 0, &[]), 0);
    assert_eq!(client.call(0, FLUSH, 0, 0).error(), 0);
    for length in [u64::from(PAYLOAD_BYTES_MAX) + 1, 1 << 32, u64::MAX] {
        for command in [WRITE, READ] {
            let mut client = connect(&served, true);
            client.send_raw(PAYLOAD_LEN, command, 0, length, &[]);
            assert_eq!(until_closed(&mut client.stream), b"", "{length} {command}");
        }
    }
}

#[test]
fn effects_of_extended_requests_have_64_bits() {
    let size_bytes = 16 << 30;
    let served = zram(size_bytes);
    let mut client = connect(&served, true);
    for offset in [0, 5 << 30, size_bytes - 4096] {
        assert_eq!(client.write(0, offset, &text()), 0);
    }
    // A reply may end early; the client goes on from there.
    let all = |client: &mut Chunked, context: usize| {
        let mut all: Vec<(u64, u64)> = Vec::new();
        let mut at = 0;
        while at < size_bytes {
            for (length, status) in client.status(0, at, size_bytes - at).remove(context).1 {
                at += length;
                match all.last_mut() {
                    Some((sum, same)) if *same == status => *sum += length,
                    _ => all.push((length, status)),
                }
            }
        }
        all
    };
    let allocation = |client: &mut Chunked| all(client, 0);
    assert_eq!(
        allocation(&mut client),
        [
            (4096, 0),
            ((5 << 30) - 4096, 3),
            (4096, 0),
            (size_bytes - (5 << 30) - 8192, 3),
            (4096, 0)
        ]
    );
    assert_eq!(client.call(0, TRIM, 4096, 6 << 30).error(), 0);
    assert_eq!(allocation(&mut client).len(), 3);
    let reply = client.call(FAST_ZERO, WRITE_ZEROES, 1, size_bytes - 1);
    assert_eq!(reply.error(), 0);
    let state = all(&mut client, 1);
    assert_eq!(
        (state.len(), state[0].0, state[1]),
        (2, 4096, (size_bytes - 4096, 0))
    );
    assert_eq!(client.call(0, client::CACHE, 0, size_bytes).error(), 0);
}

#[test]
fn status_tells_holes_zeroes_and_how_pages_are_kept() {
    for unit in [4096, 16384] {
        let builder = Store::builder().size(1 << 20);
        let store = builder.unit(Unit::new(unit).unwrap()).build().unwrap();
        let zram = Arc::new(Zram::new(store));
        let served = Served::new(zram.clone());
        for extended in [false, true] {
            let mut client = connect(&served, extended);
            let page = |index: u64| index * unit;
            assert_eq!(client.call(0, TRIM, 0, 1 << 20).error(), 0);
            let noise = uzram_testkit::noise(1, unit as usize);
            let text = text().repeat(unit as usize / 4096);
            assert_eq!(client.write(0, page(2), &vec![5; unit as usize]), 0);
            assert_eq!(client.write(0, page(3), &text), 0);
            assert_eq!(client.write(0, page(4), &noise), 0);
            assert_eq!(client.call(NO_HOLE, WRITE_ZEROES, page(5), unit).error(), 0);
            // Zeroes that are written are as good as zeroes that are asked for.
            assert_eq!(client.write(0, page(6), &vec![0; unit as usize]), 0);

            let rest = (1 << 20) - page(7);
            let found = client.status(0, 0, 1 << 20);
            assert_eq!(
                found[0],
                (1, vec![(page(2), 3), (page(3), 0), (page(2), 2), (rest, 3)])
            );
            let (2, state) = &found[1] else { panic!() };
            let kinds: Vec<_> = state.iter().map(|&(length, s)| (length, s & 15)).collect();
            let raw_is = if state[3].1 & 15 == 2 { 2 } else { 3 };
            assert_eq!(
                kinds,
                [
                    (page(2), 0),
                    (unit, 1),
                    (unit, 3),
                    (unit, raw_is),
                    (page(2), 1),
                    (rest, 0)
                ]
            );
            let compressed: u64 = state
                .iter()
                .filter(|(_, s)| s & 15 == 3)
                .map(|(_, s)| s >> 4)
                .sum();
            let stats = zram.store().stats();
            let raw_bytes = stats.huge_pages * unit;
            assert_eq!(compressed + raw_bytes, stats.compr_data_size_bytes);

            // One extent, not longer than asked.
            assert_eq!(client.status(REQ_ONE, 100, 300)[0].1, [(300, 3)]);
            let found = client.status(REQ_ONE, page(1) + 5, 1 << 19);
            assert_eq!(found[0].1, [(unit - 5, 3)]);
            assert_eq!(found[1].1, [(unit - 5, 0)]);
            assert_eq!(client.status(0, page(2) + 7, 1)[0].1, [(1, 0)]);
        }
    }
}

#[test]
fn a_status_of_many_extents_ends_early_and_goes_on() {
    let served = zram(1 << 30);
    let mut client = connect(&served, false);
    let mut pages = vec![0u8; 1 << 20];
    for page in pages.chunks_mut(8192) {
        page[..4096].copy_from_slice(&text());
    }
    for at in (0..512 << 20).step_by(1 << 20) {
        assert_eq!(client.write(0, at, &pages), 0);
    }
    let mut at = 0;
    let mut replies = 0;
    let mut extents = 0;
    while at < 512 << 20 {
        let found = client.status(0, at, (512 << 20) - at).remove(0).1;
        assert!(found.len() <= 1 << 15);
        at += found.iter().map(|(length, _)| length).sum::<u64>();
        extents += found.len();
        replies += 1;
    }
    assert_eq!((at, extents), (512 << 20, 1 << 17));
    assert!(replies >= 4);
}

#[test]
fn a_filter_chooses_contexts_of_those_negotiated() {
    let served = zram(1 << 20);
    let mut client = connect(&served, true);
    assert_ne!(client.flags & 1 << 12, 0);
    let payload = |length: u64, ids: &[u32]| {
        let ids = ids.iter().flat_map(|id| id.to_be_bytes());
        [&length.to_be_bytes()[..], &ids.collect::<Vec<u8>>()].concat()
    };
    for (ids, expected) in [(&[1u32][..], &[1u32][..]), (&[2], &[2]), (&[2, 1], &[1, 2])] {
        let payload = payload(8192, ids);
        client.send(0, BLOCK_STATUS, 4096, payload.len() as u64, &payload);
        let reply = client.reply();
        let found: Vec<u32> = reply
            .chunks
            .iter()
            .map(|chunk| match chunk {
                Chunk::Status(id, extents) => {
                    assert_eq!(extents.iter().map(|(length, _)| length).sum::<u64>(), 8192);
                    *id
                }
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(found, expected);
    }
    let bad = [
        payload(4096, &[]),
        payload(4096, &[0]),
        payload(4096, &[3]),
        payload(4096, &[1, 1]),
        payload(4096, &[1, 2, 1]),
        payload(0, &[1]),
        payload((1 << 20) + 1, &[1]),
        payload(u64::MAX, &[1]),
        payload(4096, &[1])[..11].to_vec(),
        vec![0; 7],
        vec![0; 1000],
    ];
    for payload in bad {
        client.send(0, BLOCK_STATUS, 0, payload.len() as u64, &payload);
        assert_eq!(client.reply().error(), EINVAL, "{payload:?}");
    }
    assert_eq!(client.call(0, FLUSH, 0, 0).error(), 0);
    // No flag, and no status, for whoever has negotiated no context.
    let mut client = Chunked::go(client::unix(&served.path()), "disk", true, &[]);
    assert_eq!(client.flags & 1 << 12, 0);
    assert_ne!(client.flags & 1 << 7, 0);
    assert_eq!(client.call(0, BLOCK_STATUS, 0, 4096).error(), EINVAL);
}

#[test]
fn contexts_are_listed_and_set_by_name() {
    let exports = Arc::new(Exports::new());
    exports.add(export("a", Bytes::new(8192))).unwrap();
    exports.add(export("b", Bytes::new(8192))).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let server = Server::bind(
        &Endpoint::Unix(path.clone()),
        exports.clone(),
        Limits::default(),
    );
    let _server = server.unwrap().spawn().unwrap();
    let greeted = || {
        let mut stream = client::unix(&path);
        exactly::<18>(&mut stream);
        stream.write_all(&[0, 0, 0, 3]).unwrap();
        stream
    };
    let ask = |stream: &mut std::os::unix::net::UnixStream, number, queries: &[&str]| {
        chunks::contexts(stream, number, &meta_data("a", queries))
    };
    let mut stream = greeted();
    for number in [9, 10] {
        assert_eq!(ask(&mut stream, number, &[]), Err(ERR_INVALID), "too early");
    }
    stream.write_all(&option(8, b"x")).unwrap();
    assert_eq!(option_reply(&mut stream, 8).0, ERR_INVALID);
    for _ in 0..2 {
        stream.write_all(&option(8, &[])).unwrap();
        assert_eq!(option_reply(&mut stream, 8), (1, vec![]));
    }
    let list = |ids: &[(u32, usize)]| -> Result<Vec<(u32, String)>, u32> {
        Ok(ids
            .iter()
            .map(|&(id, which)| (id, BOTH[which].to_owned()))
            .collect())
    };
    for (queries, expected) in [
        (&[][..], &[(0, 0), (0, 1)][..]),
        (&["base:"], &[(0, 0)]),
        (&["uzram:"], &[(0, 1)]),
        (&["uzram:state", "base:"], &[(0, 0), (0, 1)]),
        (&["base:other", "qemu:dirty-bitmap:x", "nonsense", ""], &[]),
    ] {
        assert_eq!(ask(&mut stream, 9, queries), list(expected), "{queries:?}");
    }
    for (queries, expected) in [
        (&[][..], &[][..]),
        (&["base:", "uzram:"], &[]),
        (&["base:allocation"], &[(1, 0)]),
        (&["uzram:state", "x:y", "uzram:state"], &[(2, 1)]),
    ] {
        assert_eq!(ask(&mut stream, 10, queries), list(expected), "{queries:?}");
    }
    // What does not add up, and an export that is not there, undo what was set.
    let good = meta_data("a", &["base:allocation"]);
    for cut in 0..good.len() {
        let answer = chunks::contexts(&mut stream, 10, &good[..cut]);
        assert_eq!(answer, Err(ERR_INVALID), "cut at {cut}");
    }
    let long = [&good[..], b"!"].concat();
    assert_eq!(chunks::contexts(&mut stream, 10, &long), Err(ERR_INVALID));
    let many = [&meta_data("a", &[])[..5], &[0xff; 4]].concat();
    assert_eq!(chunks::contexts(&mut stream, 9, &many), Err(ERR_INVALID));
    let unknown = meta_data("c", &["base:allocation"]);
    assert_eq!(
        chunks::contexts(&mut stream, 10, &unknown),
        Err(ERR_UNKNOWN)
    );
    stream.write_all(&option(7, &info_data("a", &[]))).unwrap();
    let (_, info) = option_reply(&mut stream, 7);
    assert_eq!(
        u16::from_be_bytes(info[10..].try_into().unwrap()) >> 7 & 1,
        1
    );
    option_reply(&mut stream, 7);
    stream
        .write_all(&client::request(0, BLOCK_STATUS, 1, 0, 512))
        .unwrap();
    let reply = exactly::<26>(&mut stream);
    assert_eq!(reply[6..8], [0x80, 1]);
    // Contexts of one export do not count for another.
    for (set, expected) in [("a", 0), ("b", EINVAL)] {
        let mut stream = greeted();
        stream.write_all(&option(8, &[])).unwrap();
        option_reply(&mut stream, 8);
        chunks::contexts(&mut stream, 10, &meta_data(set, &["base:allocation"])).unwrap();
        let mut client = Chunked::go_on(stream, "a", false, &[]);
        assert_eq!(client.call(0, BLOCK_STATUS, 0, 512).error(), expected);
    }
}

#[test]
fn extended_headers_win_over_structured_replies_and_exclude_export_name() {
    let served = zram(1 << 20);
    let greeted = || {
        let mut stream = client::unix(&served.path());
        exactly::<18>(&mut stream);
        stream.write_all(&[0, 0, 0, 3]).unwrap();
        stream
    };
    let mut stream = greeted();
    for (number, data, kind) in [
        (8, &b""[..], 1),
        (11, b"x", ERR_INVALID),
        (11, b"", 1),
        (11, b"", 1),
        (8, b"", (1 << 31) + 10),
    ] {
        stream.write_all(&option(number, data)).unwrap();
        assert_eq!(option_reply(&mut stream, number).0, kind, "{number}");
    }
    stream.write_all(&option(1, b"disk")).unwrap();
    assert_eq!(until_closed(&mut stream), b"");
    // Structured replies go with it.
    let mut stream = greeted();
    stream.write_all(&option(8, &[])).unwrap();
    option_reply(&mut stream, 8);
    stream.write_all(&option(1, b"disk")).unwrap();
    let answer = exactly::<10>(&mut stream);
    assert_eq!(u16::from_be_bytes([answer[8], answer[9]]) >> 7 & 1, 1);
    stream
        .write_all(&client::request(0, READ, 7, 0, 512))
        .unwrap();
    let reply = exactly::<32>(&mut stream);
    assert_eq!(reply[..8], [0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 2], "a hole");
}

#[test]
fn the_default_export_is_the_one_chosen() {
    let exports = Arc::new(Exports::new());
    for (name, size) in [("a", 4096), ("b", 8192)] {
        let read_only = name == "b";
        let device = Bytes::new(size);
        let export = Export {
            read_only,
            ..export(name, device)
        };
        exports.add(export).unwrap();
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let endpoint = Endpoint::Unix(path.clone());
    let server = Server::bind(&endpoint, exports.clone(), Limits::default());
    let _server = server.unwrap().spawn().unwrap();
    let size_of = |name: &str| {
        let mut stream = client::unix(&path);
        exactly::<18>(&mut stream);
        stream.write_all(&[0, 0, 0, 3]).unwrap();
        stream.write_all(&option(6, &info_data(name, &[]))).unwrap();
        let (kind, data) = option_reply(&mut stream, 6);
        (kind == 3).then(|| u64::from_be_bytes(data[2..10].try_into().unwrap()))
    };
    assert_eq!(size_of(""), None, "two, and none is the default");
    exports.set_default(Some("b"));
    assert_eq!(size_of(""), Some(8192));
    exports.set_default(Some("gone"));
    assert_eq!(size_of(""), None);
    exports.set_default(Some("a"));
    exports.remove("a").unwrap();
    assert_eq!(size_of(""), Some(8192), "the only one left");
    let mut client = Chunked::go(client::unix(&path), "", true, &[]);
    assert_eq!(client.write(0, 0, &[1; 512]), 1, "read-only");
}
