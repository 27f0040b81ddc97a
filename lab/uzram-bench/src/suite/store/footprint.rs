//! The memory of a store beyond the compressed bytes, by the kernel's count.
//!
//! A store of 65,536 slots is made and gets an object in every slot. What the kernel's count of
//! private memory grows by meanwhile is the slot table, touched in full, and the pool: arena and
//! side tables. The codec's contexts have been made before, for another store. The table is taken
//! off, and so is the arena's spare, which is populated on purpose and bounded; both are shown.

use std::sync::Arc;

use uzram::{Compression, Store, Unit, Zram};

use crate::corpus::PAGE_BYTES;
use crate::error::{Error, Result};
use crate::figures::Cell;
use crate::machine;
use crate::report::Block;
use crate::sample::Series;
use crate::side::Pages;
use crate::stop::Stop;
use crate::suite::SUBJECT;
use crate::workload::{CHUNK_PAGES, Generation, Workload};

/// Objects in the pool when it is weighed.
const OBJECTS: usize = 65_536;
const SIZE_BYTES: u64 = (OBJECTS * PAGE_BYTES) as u64;
const RUNS: usize = 3;
const MEBIBYTE: f64 = 1_048_576.0;

/// One weighing, in bytes.
#[derive(Clone, Copy, Debug)]
struct Weight {
    /// The kernel's count for arena and side tables, without spare and slot table.
    pool: u64,
    spare: u64,
    /// The engine's count of the same.
    accounted: u64,
    compressed: u64,
    table: u64,
}

/// Weighs a store that holds pages of `workload`, into `block`; `case` begins the names of its cases.
pub(crate) fn measure(
    algorithm: &str,
    workload: &Workload,
    case: &str,
    stop: &Stop,
    block: &mut Block,
) -> Result<()> {
    let mut weights = Vec::new();
    for _ in 0..RUNS {
        stop.check()?;
        weights.push(weigh(algorithm, workload)?);
    }
    let series = |of: fn(&Weight) -> u64, scale: f64| {
        let weights = weights.iter().map(|weight| of(weight) as f64 / scale);
        Series::from(weights.collect::<Vec<_>>())
    };
    let cell = |metric| Cell::new(format!("{case}/memory"), metric, SIZE_BYTES);
    let names = [SUBJECT, "compressed-bytes"];
    let both = [
        series(|weight| weight.pool, MEBIBYTE),
        series(|weight| weight.compressed, MEBIBYTE),
    ];
    let pool = cell(("pool_memory", "MiB"));
    pool.add_all(&names, &both, |top, bottom| [top, bottom] == names, block);
    let spare = series(|weight| weight.spare, MEBIBYTE);
    cell(("spare_memory", "MiB spare")).add(SUBJECT, &spare, block);
    let table = series(|weight| weight.table, OBJECTS as f64);
    cell(("table_memory", "bytes/slot")).add(SUBJECT, &table, block);
    block.notes.push(note(weights[RUNS - 1]));
    Ok(())
}

fn weigh(algorithm: &str, workload: &Workload) -> Result<Weight> {
    let compression = Compression::new(algorithm, Unit::DEFAULT)?;
    warm_up(&compression, workload)?;
    let before = machine::private_dirty_bytes()?;
    let store = Store::builder()
        .size(SIZE_BYTES)
        .compression(Arc::clone(&compression))
        .build()?;
    let mut disk = Arc::new(Zram::new(store));
    for chunk in 0..OBJECTS / CHUNK_PAGES {
        let content = workload.content(chunk % workload.chunks(), Generation::First);
        Pages::write(&mut disk, chunk * CHUNK_PAGES, content)?;
    }
    let grown = machine::private_dirty_bytes()?.saturating_sub(before);
    let stats = disk.store().stats();
    if stats.same_pages != 0 || stats.orig_data_size_bytes != SIZE_BYTES {
        let pages = stats.orig_data_size_bytes / PAGE_BYTES as u64 - stats.same_pages;
        return Err(Error::Failed(format!(
            "memory case: {pages} objects in place of {OBJECTS}"
        )));
    }
    Ok(Weight {
        pool: grown.saturating_sub(stats.mem_spare_bytes + stats.table_bytes),
        spare: stats.mem_spare_bytes,
        accounted: stats.mem_used_total_bytes + stats.side_tables_bytes,
        compressed: stats.compr_data_size_bytes,
        table: stats.table_bytes,
    })
}

/// Has the streams make their contexts.
fn warm_up(compression: &Arc<Compression>, workload: &Workload) -> Result<()> {
    let size_bytes = (CHUNK_PAGES * PAGE_BYTES) as u64;
    let store = Store::builder()
        .size(size_bytes)
        .compression(Arc::clone(compression))
        .build()?;
    Arc::new(Zram::new(store)).write(0, workload.content(0, Generation::First))
}

fn note(weight: Weight) -> String {
    let mebibytes = |bytes: u64| bytes as f64 / MEBIBYTE;
    let gap = weight.pool as f64 / weight.accounted as f64 - 1.0;
    let with_spare = (weight.pool + weight.spare) as f64 / weight.compressed as f64;
    format!(
        "memory: pool {:.2} MiB by the kernel's count, {:.2} by the engine's ({:+.2} %); with the \
         spare of {:.2} MiB {with_spare:.3} of the compressed bytes",
        mebibytes(weight.pool),
        mebibytes(weight.accounted),
        gap * 100.0,
        mebibytes(weight.spare),
    )
}
