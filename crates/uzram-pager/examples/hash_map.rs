//! A hash map of 1 GiB of records in a budget of 256 MiB.
//!
//! `cargo run --release -p uzram-pager --example hash_map`

use std::time::Instant;

use uzram_pager::CompressedMemory;

const LENGTH_BYTES: usize = 1 << 30;
const BUDGET_BYTES: usize = 256 << 20;

/// A record: its key plus 1 in 8 bytes, 0 for none, and its value.
const RECORD_BYTES: usize = 1024;
const VALUE_BYTES: usize = RECORD_BYTES - 8;
const RECORDS: usize = LENGTH_BYTES / RECORD_BYTES;
/// Keys in the map: nine tenths of its records.
const KEYS: u64 = (RECORDS / 10 * 9) as u64;

/// Records at the place of their key's hash, or the next that is free.
struct Map {
    records: CompressedMemory,
}

impl Map {
    fn insert(&mut self, key: u64, value: &[u8; VALUE_BYTES]) {
        let at = self.find(key);
        let record = &mut self.records[at..at + RECORD_BYTES];
        record[..8].copy_from_slice(&(key + 1).to_le_bytes());
        record[8..].copy_from_slice(value);
    }

    fn get(&self, key: u64) -> Option<&[u8]> {
        let at = self.find(key);
        (self.key_at(at) != 0).then(|| &self.records[at + 8..at + RECORD_BYTES])
    }

    /// Where `key` is, or would be. The map is never full.
    fn find(&self, key: u64) -> usize {
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let mut record = hash as usize % RECORDS;
        loop {
            let at = record * RECORD_BYTES;
            if [0, key + 1].contains(&self.key_at(at)) {
                return at;
            }
            record = (record + 1) % RECORDS;
        }
    }

    fn key_at(&self, at: usize) -> u64 {
        let key = &self.records[at..at + 8];
        u64::from_le_bytes(key.try_into().expect("8 bytes"))
    }
}

fn value(key: u64) -> [u8; VALUE_BYTES] {
    let mut value = [0; VALUE_BYTES];
    let text = format!("The record of key {key} says {}. ", key * key);
    for chunk in value.chunks_mut(text.len()) {
        chunk.copy_from_slice(&text.as_bytes()[..chunk.len()]);
    }
    value
}

fn main() -> Result<(), uzram::Error> {
    let mut map = Map {
        records: CompressedMemory::new(LENGTH_BYTES, BUDGET_BYTES)?,
    };
    let began = Instant::now();
    for key in 0..KEYS {
        map.insert(key, &value(key));
    }
    println!("inserted {KEYS} records in {:.1?}", began.elapsed());
    let began = Instant::now();
    let wanted = (0..KEYS).step_by(7);
    let found = wanted
        .filter(|key| map.get(*key) == Some(&value(*key)[..]))
        .count();
    println!(
        "found {found} of {} in {:.1?}",
        KEYS.div_ceil(7),
        began.elapsed()
    );

    let statistics = map.records.statistics();
    let mib = |bytes: u64| bytes >> 20;
    println!(
        "{} MiB uncompressed, and {} MiB in {} MiB",
        mib(statistics.resident_bytes),
        mib(statistics.stored_bytes),
        mib(statistics.compressed_memory_bytes),
    );
    let faults = statistics.faults_staged + statistics.faults_stored;
    println!(
        "{} pages out, {} in, {:.1} us per fault in the pager",
        statistics.pages_out,
        statistics.pages_in,
        statistics.faults_ns as f64 / 1000.0 / (faults + statistics.faults_fresh).max(1) as f64,
    );
    Ok(())
}
