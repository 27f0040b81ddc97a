//! Every device behaves as bytes through every transport: random unaligned requests over two connections
//! are compared with a model.

use std::ops::Range;
use std::sync::Arc;

use uzram::{BlockDevice, Compression, Store, Unit, Zram};
use uzram_frontends::nbd::{Endpoint, Exports, Limits, Server};
use uzram_testkit::Rng;

use crate::chunks::Chunked;
use crate::client::{
    self, CACHE, Client, FAST_ZERO, FLUSH, FUA, NO_HOLE, READ, TRIM, WRITE, WRITE_ZEROES,
};
use crate::device::Bytes;
use crate::runs::Runs;
use crate::{Served, export};

const SIZE: u64 = 768 << 10;
/// Requests in flight on each connection.
const DEPTH: usize = 12;
const ROUNDS: usize = 150;

#[test]
fn bytes_over_a_unix_socket() {
    let served = Served::new(Bytes::new(SIZE as usize));
    conform(4096, || served.connect());
}

#[test]
fn bytes_over_tcp() {
    let exports = Arc::new(Exports::new());
    exports
        .add(export("disk", Bytes::new(SIZE as usize)))
        .unwrap();
    let endpoint = Endpoint::Tcp(([127, 0, 0, 1], 0).into());
    let server = Server::bind(&endpoint, exports, Limits::default()).unwrap();
    let Endpoint::Tcp(address) = *server.endpoint() else {
        panic!("not TCP")
    };
    assert_ne!(address.port(), 0);
    let _handle = server.spawn().unwrap();
    conform(4096, || Client::go(client::tcp(address), "disk"));
}

#[test]
fn compressed_memory_over_a_unix_socket() {
    for (algorithm, unit) in [("lz4", 4096), ("zstd", 16384)] {
        let builder = Store::builder().size(SIZE).algorithm(algorithm);
        let store = builder.unit(Unit::new(unit).unwrap()).build().unwrap();
        let device: Arc<dyn BlockDevice> = Arc::new(Zram::new(store));
        let served = Served::new(device);
        conform(unit, || served.connect());
        for extended in [false, true] {
            // Each starts from zeroes.
            let mut client = served.connect();
            assert_eq!(client.call(0, WRITE_ZEROES, 0, SIZE as u32), 0);
            conform(unit, || {
                Chunked::go(client::unix(&served.path()), "disk", extended, &[])
            });
        }
    }
}

/// A codec of the library's user, as it is named and handed over.
#[test]
fn a_codec_of_the_users_over_a_unix_socket() {
    for unit in [4096, 65536] {
        let size = Unit::new(unit).unwrap();
        let compression = Compression::with_codec(Box::new(Runs::default()), size).unwrap();
        let builder = Store::builder().size(SIZE).compression(compression);
        let zram = Arc::new(Zram::new(builder.algorithm("runs").build().unwrap()));
        let served = Served::new(Arc::clone(&zram) as Arc<dyn BlockDevice>);
        conform(unit, || served.connect());
        let long_runs: Vec<u8> = (0..SIZE as usize / 2).map(|at| (at / 100) as u8).collect();
        let mut client = served.connect();
        assert_eq!(client.write(0, 0, &long_runs), 0);
        assert!(client.read(0, long_runs.len()) == Ok(long_runs));
        let stats = zram.store().stats();
        assert_eq!(zram.store().algorithm(), "runs");
        assert!(stats.compr_data_size_bytes < stats.orig_data_size_bytes);
    }
}

/// A client of any framing.
trait Talk {
    fn send(&mut self, flags: u16, command: u16, at: u64, length: u32, payload: &[u8]) -> u64;

    /// The next answer: its cookie, its error, and the data of a read whose range `range_of` knows.
    fn answer(
        &mut self,
        range_of: &dyn Fn(u64) -> Option<Range<u64>>,
    ) -> (u64, u32, Option<Vec<u8>>);
}

impl Talk for Client {
    fn send(&mut self, flags: u16, command: u16, at: u64, length: u32, payload: &[u8]) -> u64 {
        Client::send(self, flags, command, at, length, payload)
    }

    fn answer(
        &mut self,
        range_of: &dyn Fn(u64) -> Option<Range<u64>>,
    ) -> (u64, u32, Option<Vec<u8>>) {
        let (cookie, error) = self.reply();
        let range = range_of(cookie).filter(|_| error == 0);
        let data = range.map(|range| self.data((range.end - range.start) as usize));
        (cookie, error, data)
    }
}

impl Talk for Chunked {
    fn send(&mut self, flags: u16, command: u16, at: u64, length: u32, payload: &[u8]) -> u64 {
        Chunked::send(self, flags, command, at, length.into(), payload)
    }

    fn answer(
        &mut self,
        range_of: &dyn Fn(u64) -> Option<Range<u64>>,
    ) -> (u64, u32, Option<Vec<u8>>) {
        let reply = self.reply();
        let range = range_of(reply.cookie).filter(|_| reply.error() == 0);
        let data = range.map(|range| {
            let length = (range.end - range.start) as usize;
            reply.content(range.start, length)
        });
        (reply.cookie, reply.error(), data)
    }
}

/// The expected content of a reply.
struct Expected {
    cookie: u64,
    /// The offset and the data of a read.
    data: Option<(u64, Vec<u8>)>,
}

/// Two connections own interleaved stripes, so that what each reads is decided by its own requests
/// although all pages are shared. Requests of one batch do not overlap: their order is free.
fn conform<T: Talk>(unit_bytes: u64, connect: impl Fn() -> T) {
    let mut clients = [connect(), connect()];
    let mut model = vec![0u8; SIZE as usize];
    let mut random = Rng::new(0x5eed_0001);
    for round in 0..ROUNDS {
        let mut expected = [Vec::new(), Vec::new()];
        let batch = DEPTH * clients.len();
        let share = SIZE / batch as u64;
        for slot in 0..batch {
            let who = slot % clients.len();
            let start = slot as u64 * share + random.below_u64(share / 4);
            let room = (slot as u64 + 1) * share - start;
            let longest = if random.below_u64(4) == 0 {
                room
            } else {
                room.min(6000)
            };
            let length = random.below_u64(longest + 1);
            let entry = one_request(
                &mut clients[who],
                &mut model,
                &mut random,
                (start, length),
                unit_bytes,
            );
            expected[who].push(entry);
        }
        for (client, mut expected) in clients.iter_mut().zip(expected) {
            while !expected.is_empty() {
                let range_of = |cookie| {
                    let entry = expected.iter().find(|entry| entry.cookie == cookie)?;
                    let (at, data) = entry.data.as_ref()?;
                    Some(*at..at + data.len() as u64)
                };
                let (cookie, error, data) = client.answer(&range_of);
                assert_eq!(error, 0, "round {round}");
                let at = expected.iter().position(|entry| entry.cookie == cookie);
                let entry = expected.swap_remove(at.expect("a cookie that is in flight"));
                let wanted = entry.data.map(|(_, data)| data);
                assert!(data == wanted, "round {round}, cookie {cookie:#x}");
            }
        }
    }
    for client in &mut clients {
        client.send(0, FLUSH, 0, 0, &[]);
        assert_eq!(client.answer(&|_| None).1, 0);
        client.send(0, READ, 0, SIZE as u32, &[]);
        let (_, error, data) = client.answer(&|_| Some(0..SIZE));
        assert_eq!(error, 0);
        assert!(data.unwrap() == model, "the whole device at the end");
    }
}

fn one_request(
    client: &mut impl Talk,
    model: &mut [u8],
    random: &mut Rng,
    (offset, length): (u64, u64),
    unit_bytes: u64,
) -> Expected {
    let range = offset as usize..(offset + length) as usize;
    let fua = if random.below_u64(8) == 0 { FUA } else { 0 };
    let wire_length = length as u32;
    let mut data = None;
    let cookie = match random.below_u64(10) {
        0..=3 => {
            data = Some((offset, model[range].to_vec()));
            client.send(fua, READ, offset, wire_length, &[])
        }
        4..=6 => {
            let seed = random.below_u64(256) as u8;
            let sparse = random.below_u64(3) == 0;
            for (at, byte) in model[range.clone()].iter_mut().enumerate() {
                *byte = if sparse { seed } else { (at / 7) as u8 ^ seed };
            }
            client.send(fua, WRITE, offset, wire_length, &model[range])
        }
        7 => {
            model[range].fill(0);
            let flags = [0, NO_HOLE, FAST_ZERO, NO_HOLE | FAST_ZERO][random.below_u64(4) as usize];
            client.send(fua | flags, WRITE_ZEROES, offset, wire_length, &[])
        }
        8 => {
            // Whole units become zero, partial ones stay.
            let start = offset.next_multiple_of(unit_bytes);
            let end = (offset + length) / unit_bytes * unit_bytes;
            if start < end {
                model[start as usize..end as usize].fill(0);
            }
            client.send(fua, TRIM, offset, wire_length, &[])
        }
        _ => client.send(fua, CACHE, offset, wire_length, &[]),
    };
    Expected { cookie, data }
}
