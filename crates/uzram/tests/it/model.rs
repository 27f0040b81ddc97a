//! The store and the device against a map of pages, operation by operation.

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;
use uzram::{Bio, BlockDevice, ErrorKind, PageIndex, Stats, Store, Unit, Zeroing, Zram};

use crate::pages::{compressible, is_same_filled, noise, odd_filled, same_filled};

/// Few, so that operations meet.
const PAGES: u64 = 24;

/// Cases of each property; debug builds compile the C codecs without optimisation too.
const CASES: u32 = if cfg!(debug_assertions) { 48 } else { 800 };

/// Longest run of units that an object's block takes: what the limit can fall short by.
const BLOCK_UNITS_MAX: u64 = 16;

#[derive(Clone, Copy, Debug)]
struct Setup {
    unit: Unit,
    algorithm: &'static str,
    pool: &'static str,
    checksum: bool,
    mem_limit_bytes: u64,
}

fn setup() -> impl Strategy<Value = Setup> {
    let units = prop_oneof![Just(4096u64), Just(16384), Just(65536)];
    let limits = prop_oneof![3 => Just(0u64), 1 => (1..64u64).prop_map(|pages| pages << 12)];
    let names = (
        prop::sample::select(uzram::algorithms()),
        prop::sample::select(uzram::pools()),
    );
    (units, names, any::<bool>(), limits).prop_map(
        |(unit, (algorithm, pool), checksum, mem_limit_bytes)| Setup {
            unit: Unit::new(unit).unwrap(),
            algorithm,
            pool,
            checksum,
            mem_limit_bytes,
        },
    )
}

fn build(setup: Setup) -> Store {
    let builder = Store::builder()
        .size(PAGES * setup.unit.bytes() as u64)
        .unit(setup.unit);
    let builder = builder.algorithm(setup.algorithm).checksum(setup.checksum);
    builder
        .pool(setup.pool)
        .mem_limit(setup.mem_limit_bytes)
        .build()
        .unwrap()
}

#[derive(Clone, Copy, Debug)]
enum Content {
    Same(u32),
    Odd(u64),
    Compressible(u64),
    Noise(u64),
}

impl Content {
    fn bytes(self, length: usize) -> Vec<u8> {
        match self {
            Content::Same(word) => same_filled(word, length),
            Content::Odd(word) => odd_filled(word, length),
            Content::Compressible(seed) => compressible(seed, length),
            Content::Noise(seed) => noise(seed, length),
        }
    }
}

fn content() -> impl Strategy<Value = Content> {
    prop_oneof![
        2 => prop_oneof![Just(0), Just(0x0101_0101), any::<u32>()].prop_map(Content::Same),
        1 => any::<u64>().prop_map(Content::Odd),
        3 => any::<u64>().prop_map(Content::Compressible),
        2 => any::<u64>().prop_map(Content::Noise),
    ]
}

fn zeroing() -> impl Strategy<Value = Zeroing> {
    prop_oneof![Just(Zeroing::MayPunch), Just(Zeroing::NoHole)]
}

/// A part of a page in 1/65536ths: any byte range, the whole page and nothing included.
fn part() -> impl Strategy<Value = (u32, u32)> {
    let edge = || prop_oneof![1 => Just(0u32), 1 => Just(65536), 4 => 0..=65536u32];
    (edge(), edge()).prop_map(|(a, b)| (a.min(b), a.max(b)))
}

#[derive(Clone, Debug)]
enum Op {
    Read,
    ReadAt((u32, u32)),
    Write(Content),
    WriteAt((u32, u32), Content),
    Trim,
    Zero(Zeroing),
    ZeroAt((u32, u32), Zeroing),
    SetLimit(u64),
    ResetUsedMax,
    Maintain,
    Reset,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        10 => Just(Op::Read),
        10 => part().prop_map(Op::ReadAt),
        25 => content().prop_map(Op::Write),
        25 => (part(), content()).prop_map(|(part, content)| Op::WriteAt(part, content)),
        8 => Just(Op::Trim),
        6 => zeroing().prop_map(Op::Zero),
        8 => (part(), zeroing()).prop_map(|(part, zeroing)| Op::ZeroAt(part, zeroing)),
        2 => prop_oneof![Just(0u64), (0..40u64).prop_map(|pages| pages << 14)].prop_map(Op::SetLimit),
        1 => Just(Op::ResetUsedMax),
        2 => Just(Op::Maintain),
        1 => Just(Op::Reset),
    ]
}

/// The expected state of the store: its pages, and counts of events.
struct Model {
    unit: usize,
    pages: HashMap<u64, Vec<u8>>,
    /// Pages written whole with bytes that must be kept raw, or must not.
    noisy: HashMap<u64, bool>,
    trims: u64,
    failed_writes: u64,
}

impl Model {
    fn page(&self, index: u64) -> Vec<u8> {
        self.pages
            .get(&index)
            .cloned()
            .unwrap_or_else(|| vec![0; self.unit])
    }

    fn put(&mut self, index: u64, start: usize, bytes: &[u8]) {
        let mut page = self.page(index);
        page[start..start + bytes.len()].copy_from_slice(bytes);
        self.pages.insert(index, page);
        self.noisy.remove(&index);
    }

    fn check(&self, stats: &Stats) -> Result<(), TestCaseError> {
        let unit = self.unit as u64;
        let same = self
            .pages
            .values()
            .filter(|page| is_same_filled(page))
            .count() as u64;
        let objects = self.pages.len() as u64 - same;
        prop_assert_eq!(stats.orig_data_size_bytes, self.pages.len() as u64 * unit);
        prop_assert_eq!(stats.same_pages, same);
        let noisy = self.noisy.values().filter(|noisy| **noisy).count() as u64;
        let calm = self.noisy.values().filter(|noisy| !**noisy).count() as u64;
        prop_assert!(
            (noisy..=objects - calm).contains(&stats.huge_pages),
            "{stats:?}"
        );
        prop_assert!(stats.huge_pages_since >= stats.huge_pages);
        let packed = objects - stats.huge_pages;
        let least = stats.huge_pages * unit + packed;
        let most = stats.huge_pages * unit + packed * (unit - 1);
        prop_assert!(
            (least..=most).contains(&stats.compr_data_size_bytes),
            "{stats:?}"
        );
        prop_assert!(stats.mem_used_total_bytes >= stats.compr_data_size_bytes);
        prop_assert_eq!(stats.mem_used_total_bytes == 0, objects == 0);
        prop_assert!(stats.mem_used_max_bytes >= stats.mem_used_total_bytes);
        prop_assert_eq!(
            stats.mem_resident_bytes,
            stats.mem_used_total_bytes + stats.mem_spare_bytes
        );
        prop_assert_eq!(stats.notify_free, self.trims);
        prop_assert_eq!(stats.failed_writes, self.failed_writes);
        prop_assert_eq!(stats.failed_reads, 0);
        prop_assert_eq!(stats.invalid_io, 0);
        Ok(())
    }
}

fn scaled((start, end): (u32, u32), unit: usize) -> (usize, usize) {
    let scale = |part: u32| part as usize * unit / 65536;
    (scale(start), scale(end))
}

/// Whether a write may fail with `error`: for the limit, and only when it is that near.
fn check_refusal(error: &uzram::Error, before: &Stats, unit: usize) -> Result<(), TestCaseError> {
    prop_assert_eq!(error.kind(), ErrorKind::NoSpace);
    let near = before.mem_used_total_bytes + BLOCK_UNITS_MAX * unit as u64;
    prop_assert!(
        before.mem_limit_bytes > 0 && near > before.mem_limit_bytes,
        "{before:?}"
    );
    Ok(())
}

fn apply(store: &Store, model: &mut Model, index: u64, op: &Op) -> Result<(), TestCaseError> {
    let (unit, at) = (model.unit, PageIndex(index));
    let before = store.stats();
    match op {
        Op::Read => {
            let mut page = vec![0xee; unit];
            store.read(at, &mut page).unwrap();
            prop_assert!(page == model.page(index));
        }
        Op::ReadAt(part) => {
            let (start, end) = scaled(*part, unit);
            let mut bytes = vec![0xee; end - start];
            store.read_at(at, start, &mut bytes).unwrap();
            prop_assert!(bytes == model.page(index)[start..end]);
        }
        Op::Write(content) => {
            let page = content.bytes(unit);
            match store.write(at, &page) {
                Ok(()) => {
                    model.put(index, 0, &page);
                    match content {
                        Content::Noise(_) => drop(model.noisy.insert(index, true)),
                        Content::Same(_) => {}
                        _ => drop(model.noisy.insert(index, false)),
                    }
                }
                Err(error) => {
                    prop_assert!(!is_same_filled(&page), "same-filled pages need no memory");
                    check_refusal(&error, &before, unit)?;
                    model.failed_writes += 1;
                }
            }
        }
        Op::WriteAt(part, content) => {
            let (start, end) = scaled(*part, unit);
            let bytes = content.bytes(end - start);
            match store.write_at(at, start, &bytes) {
                Ok(()) if bytes.is_empty() => {}
                Ok(()) => model.put(index, start, &bytes),
                Err(error) => {
                    check_refusal(&error, &before, unit)?;
                    model.failed_writes += 1;
                }
            }
        }
        Op::Trim => {
            store.trim(at).unwrap();
            model.pages.remove(&index);
            model.noisy.remove(&index);
            model.trims += 1;
        }
        Op::Zero(zeroing) => {
            store.zero(at, *zeroing).unwrap();
            model.put(index, 0, &vec![0; unit]);
            if *zeroing == Zeroing::MayPunch {
                model.pages.remove(&index);
            }
        }
        Op::ZeroAt(part, zeroing) => {
            let (start, end) = scaled(*part, unit);
            let hole = !model.pages.contains_key(&index);
            match store.zero_at(at, start, end - start, *zeroing) {
                Ok(()) if start == end => {}
                Ok(()) if *zeroing == Zeroing::MayPunch && (hole || end - start == unit) => {
                    model.pages.remove(&index);
                    model.noisy.remove(&index);
                }
                Ok(()) => model.put(index, start, &vec![0; end - start]),
                Err(error) => {
                    check_refusal(&error, &before, unit)?;
                    model.failed_writes += 1;
                }
            }
        }
        Op::SetLimit(bytes) => store.set_mem_limit(*bytes),
        Op::ResetUsedMax => {
            store.reset_mem_used_max();
            prop_assert_eq!(
                store.stats().mem_used_max_bytes,
                before.mem_used_total_bytes
            );
        }
        Op::Maintain => drop(store.maintain(Duration::from_millis(1))),
        Op::Reset => {
            store.reset();
            model.pages.clear();
            model.noisy.clear();
            (model.trims, model.failed_writes) = (0, 0);
            check_empty(&store.stats())?;
        }
    }
    let after = store.stats();
    if after.mem_limit_bytes > 0 {
        let most = after.mem_limit_bytes.max(before.mem_used_total_bytes);
        prop_assert!(after.mem_used_total_bytes <= most, "{before:?} {after:?}");
    }
    Ok(())
}

/// After a reset: nothing stored, nothing remembered, no memory.
fn check_empty(stats: &Stats) -> Result<(), TestCaseError> {
    let zeroes = [
        stats.orig_data_size_bytes,
        stats.compr_data_size_bytes,
        stats.mem_used_total_bytes,
        stats.mem_used_max_bytes,
        stats.mem_resident_bytes,
        stats.mem_spare_bytes,
        stats.same_pages,
        stats.huge_pages,
        stats.huge_pages_since,
        stats.failed_reads,
        stats.failed_writes,
        stats.invalid_io,
        stats.notify_free,
        stats.slow_path_writes,
    ];
    prop_assert_eq!(zeroes, [0; 14], "{:?}", stats);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    #[test]
    fn a_store_is_a_map_of_pages(
        setup in setup(),
        ops in prop::collection::vec((0..PAGES, op()), 1..160),
    ) {
        let store = build(setup);
        let unit = setup.unit.bytes();
        let mut model =
            Model { unit, pages: HashMap::new(), noisy: HashMap::new(), trims: 0, failed_writes: 0 };
        for (index, op) in &ops {
            apply(&store, &mut model, *index, op)?;
            model.check(&store.stats())?;
        }
        let mut page = vec![0xee; unit];
        for index in 0..PAGES {
            store.read(PageIndex(index), &mut page).unwrap();
            prop_assert!(page == model.page(index), "page {}", index);
        }
        for index in 0..PAGES {
            store.trim(PageIndex(index)).unwrap();
        }
        let stats = store.stats();
        prop_assert_eq!((stats.orig_data_size_bytes, stats.mem_used_total_bytes), (0, 0));
        prop_assert_eq!((stats.same_pages, stats.huge_pages, stats.compr_data_size_bytes), (0, 0, 0));
        store.reset();
        check_empty(&store.stats())?;
    }

    #[test]
    fn a_device_is_a_row_of_bytes(
        setup in setup(),
        ops in prop::collection::vec((device_op(), any::<u32>(), any::<u32>()), 1..60),
    ) {
        let disk = Zram::new(build(setup));
        let size = disk.geometry().size_bytes;
        let mut bytes = vec![0u8; size as usize];
        let mut invalid = 0;
        for (op, a, b) in &ops {
            invalid += submit(&disk, &mut bytes, op, *a, *b)?;
        }
        prop_assert_eq!(disk.store().stats().invalid_io, invalid);
        let mut all = vec![0xee; size as usize];
        disk.submit(Bio::Read { offset: 0, buffer: &mut all }).unwrap();
        prop_assert!(all == bytes);
        disk.submit(Bio::Trim { offset: 0, length: size }).unwrap();
        prop_assert_eq!(disk.store().stats().mem_used_total_bytes, 0);
    }
}

#[derive(Clone, Debug)]
enum DeviceOp {
    Read,
    Write(Content),
    Trim,
    Zero(Zeroing),
    Flush,
    /// Past the end, or around the end of the address space.
    Invalid(u64, u64),
}

fn device_op() -> impl Strategy<Value = DeviceOp> {
    prop_oneof![
        4 => Just(DeviceOp::Read),
        8 => content().prop_map(DeviceOp::Write),
        2 => Just(DeviceOp::Trim),
        3 => zeroing().prop_map(DeviceOp::Zero),
        1 => Just(DeviceOp::Flush),
        1 => (any::<u64>(), prop_oneof![Just(u64::MAX), any::<u64>()])
            .prop_map(|(offset, length)| DeviceOp::Invalid(offset, length)),
    ]
}

/// Carries out one request on both sides; returns how many of them were outside the device.
fn submit(
    disk: &Zram,
    bytes: &mut [u8],
    op: &DeviceOp,
    a: u32,
    b: u32,
) -> Result<u64, TestCaseError> {
    let size = bytes.len() as u64;
    let offset = u64::from(a) % size;
    // Short requests and long ones, to the end at most.
    let length = (u64::from(b) >> (b % 20)).min(size - offset);
    let range = offset as usize..(offset + length) as usize;
    match op {
        DeviceOp::Read => {
            let mut buffer = vec![0xee; range.len()];
            disk.submit(Bio::Read {
                offset,
                buffer: &mut buffer,
            })
            .unwrap();
            prop_assert!(buffer == bytes[range]);
        }
        DeviceOp::Write(content) => {
            let data = content.bytes(range.len());
            match disk.submit(Bio::Write {
                offset,
                data: &data,
            }) {
                Ok(()) => bytes[range].copy_from_slice(&data),
                Err(error) => {
                    prop_assert_eq!(error.kind(), ErrorKind::NoSpace);
                    settle(disk, bytes, offset, &data)?;
                }
            }
        }
        DeviceOp::Trim => {
            disk.submit(Bio::Trim { offset, length }).unwrap();
            let unit = disk.store().unit().bytes();
            let (first, end) = (range.start.next_multiple_of(unit), range.end / unit * unit);
            if first < end {
                bytes[first..end].fill(0);
            }
        }
        DeviceOp::Zero(zeroing) => {
            match disk.submit(Bio::Zero {
                offset,
                length,
                zeroing: *zeroing,
            }) {
                Ok(()) => bytes[range].fill(0),
                Err(error) => {
                    prop_assert_eq!(error.kind(), ErrorKind::NoSpace);
                    settle(disk, bytes, offset, &vec![0; length as usize])?;
                }
            }
        }
        DeviceOp::Flush => disk.submit(Bio::Flush).unwrap(),
        DeviceOp::Invalid(offset, length) => {
            if offset.checked_add(*length).is_some_and(|end| end <= size) {
                return Ok(0);
            }
            let (offset, length) = (*offset, *length);
            let zero = Bio::Zero {
                offset,
                length,
                zeroing: Zeroing::NoHole,
            };
            for bio in [Bio::Trim { offset, length }, zero] {
                let error = disk.submit(bio).unwrap_err();
                prop_assert_eq!(error.kind(), ErrorKind::OutOfRange);
            }
            return Ok(2);
        }
    }
    Ok(0)
}

/// After a failed write: every page holds its old or its new content, whole.
fn settle(disk: &Zram, bytes: &mut [u8], offset: u64, data: &[u8]) -> Result<(), TestCaseError> {
    let unit = disk.store().unit().bytes();
    let mut written = bytes.to_vec();
    written[offset as usize..offset as usize + data.len()].copy_from_slice(data);
    let mut page = vec![0xee; unit];
    for (index, old) in bytes.chunks_mut(unit).enumerate() {
        disk.store()
            .read(PageIndex(index as u64), &mut page)
            .unwrap();
        let new = &written[index * unit..(index + 1) * unit];
        prop_assert!(page == *old || page == new, "page {} is torn", index);
        old.copy_from_slice(&page);
    }
    Ok(())
}

#[test]
fn arguments_that_do_not_fit_are_refused_and_change_nothing() {
    let store = Store::builder().size(8192).build().unwrap();
    let page = compressible(1, 4096);
    store.write(PageIndex(1), &page).unwrap();
    let mut short = vec![0; 4095];
    let kinds = [
        store.write(PageIndex(0), &page[1..]),
        store.read(PageIndex(0), &mut short),
        store.write(PageIndex(2), &page),
        store.read(PageIndex(u64::MAX), &mut vec![0; 4096]),
        store.write_at(PageIndex(1), 4096, &[1]),
        store.write_at(PageIndex(1), usize::MAX, &[1]),
        store.read_at(PageIndex(1), 1, &mut vec![0; 4096]),
        store.zero_at(PageIndex(1), 4000, 97, Zeroing::NoHole),
        store.zero_at(PageIndex(2), 0, 4096, Zeroing::NoHole),
        store.trim(PageIndex(2)),
    ]
    .map(|result| result.unwrap_err().kind());
    let (invalid, range) = (ErrorKind::InvalidInput, ErrorKind::OutOfRange);
    assert_eq!(kinds[..2], [invalid; 2]);
    assert_eq!(kinds[2..], [range; 8]);
    let mut back = vec![0; 4096];
    store.read(PageIndex(1), &mut back).unwrap();
    assert_eq!(back, page);
    assert_eq!(store.stats().orig_data_size_bytes, 4096);
}
