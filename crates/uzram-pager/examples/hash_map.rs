//! A hash map of 1 GiB in 256 MiB: keys and values lie in compressed memory.
//!
//! `cargo run --release -p uzram-pager --example hash_map`

use std::time::Instant;

use hashbrown::HashMap;
use uzram_pager::{CompressedHeap, CompressedMemory};

/// Addresses for the map and for the smaller ones that it grows out of.
const LENGTH_BYTES: usize = 3 << 30;
/// Pages that stay as they are. The compressed ones, and tables, come on top.
const BUDGET_BYTES: usize = 96 << 20;
const VALUE_BYTES: usize = 1016;
/// With a key of 8 bytes each: 1 GiB in a map that is seven eighths full.
const KEYS: u64 = (1 << 20) / 8 * 7;

fn value(key: u64) -> [u8; VALUE_BYTES] {
    let mut value = [0; VALUE_BYTES];
    let text = format!("The record of key {key} says {}. ", key * key);
    for chunk in value.chunks_mut(text.len()) {
        chunk.copy_from_slice(&text.as_bytes()[..chunk.len()]);
    }
    value
}

fn main() -> Result<(), uzram::Error> {
    let memory = CompressedMemory::new(LENGTH_BYTES, BUDGET_BYTES)?;
    let heap = CompressedHeap::new(memory)?;
    let mut map = HashMap::new_in(&heap);
    let began = Instant::now();
    for key in 0..KEYS {
        map.insert(key, value(key));
    }
    println!("inserted {KEYS} records in {:.1?}", began.elapsed());

    let began = Instant::now();
    let wanted = (0..KEYS).step_by(7);
    let found = wanted.filter(|key| map.get(key) == Some(&value(*key)));
    let (found, wanted) = (found.count(), KEYS.div_ceil(7));
    println!("found {found} of {wanted} in {:.1?}", began.elapsed());

    let mib = |bytes: u64| bytes >> 20;
    let statistics = heap.statistics();
    println!(
        "{} MiB in use: {} MiB as they are, and {} MiB in {} MiB, ratio {:.1}",
        heap.used_bytes() >> 20,
        mib(statistics.resident_bytes),
        mib(statistics.stored_bytes),
        mib(statistics.compressed_memory_bytes),
        statistics.stored_bytes as f64 / statistics.compressed_memory_bytes.max(1) as f64,
    );
    let faults = statistics.faults_fresh + statistics.faults_staged + statistics.faults_stored;
    println!(
        "{faults} faults, {:.1} us each in the pager: {} new pages, {} moved back, {} decompressed",
        statistics.faults_ns as f64 / 1000.0 / faults.max(1) as f64,
        statistics.faults_fresh,
        statistics.faults_staged,
        statistics.faults_stored,
    );
    for line in ["VmHWM", "VmRSS"] {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let found = status.lines().find(|text| text.starts_with(line));
        println!("{}, by the system's count", found.unwrap_or(line));
    }
    Ok(())
}
