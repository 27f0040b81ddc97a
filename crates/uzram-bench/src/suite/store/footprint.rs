//! What a store costs in memory beyond the compressed bytes, as the kernel counts it.
//!
//! A store of 65,536 slots is made and gets an object in every slot. What the kernel's count of
//! private memory grows by meanwhile is the slot table, touched in full, and the pool: arena and
//! side tables. The codec's contexts have been made before, for another store. The table is taken
//! off, and so is the arena's spare, which is populated on purpose and bounded; both are shown.

use std::sync::Arc;

use uzram::{Compression, Store, Unit};

use crate::corpus::PAGE_BYTES;
use crate::error::{Error, Result};
use crate::machine;
use crate::report::{Aim, Measured, Ratio};
use crate::sample::Series;
use crate::stop::Stop;
use crate::suite::SUBJECT;
use crate::suite::store::subject::write_chunk;
use crate::workload::{CHUNK_PAGES, Generation, Workload};

/// Objects in the pool when it is weighed.
const OBJECTS: usize = 65_536;
const RUNS: usize = 3;
/// Pool bytes per compressed byte.
const AIM: Aim = Aim::AtMost(1.05);
const MEBIBYTE: f64 = 1_048_576.0;

/// The figures of a corpus, and a line on how the engine's own count compares.
pub(crate) struct Footprint {
    pub(crate) results: Vec<Measured>,
    pub(crate) ratios: Vec<Ratio>,
    pub(crate) note: String,
}

/// One weighing, in bytes.
#[derive(Clone, Copy, Debug)]
struct Weight {
    /// What the kernel counts for arena and side tables, spare and slot table taken off.
    pool: u64,
    spare: u64,
    /// What the engine counts for the same.
    accounted: u64,
    compressed: u64,
    table: u64,
}

/// Weighs a store that holds pages of `workload`; `case` begins the names of its cases.
pub(crate) fn measure(
    algorithm: &str,
    workload: &Workload,
    case: &str,
    stop: &Stop,
) -> Result<Footprint> {
    let mut weights = Vec::new();
    for _ in 0..RUNS {
        stop.check()?;
        weights.push(weigh(algorithm, workload)?);
    }
    let case = format!("{case}/memory");
    let series = |of: fn(&Weight) -> u64, scale: f64| {
        Series::from(
            weights
                .iter()
                .map(|weight| of(weight) as f64 / scale)
                .collect::<Vec<_>>(),
        )
    };
    let pool = series(|weight| weight.pool, MEBIBYTE);
    let compressed = series(|weight| weight.compressed, MEBIBYTE);
    let rows = [
        (SUBJECT, "pool_memory", "MiB", &pool),
        ("compressed-bytes", "pool_memory", "MiB", &compressed),
        (
            SUBJECT,
            "spare_memory",
            "MiB spare",
            &series(|weight| weight.spare, MEBIBYTE),
        ),
        (
            SUBJECT,
            "table_memory",
            "bytes/slot",
            &series(|weight| weight.table, OBJECTS as f64),
        ),
    ];
    let results = rows
        .into_iter()
        .filter_map(|(variant, metric, unit, series)| {
            Some(Measured {
                case: case.clone(),
                variant: variant.to_owned(),
                metric,
                unit,
                spread: series.spread()?,
                working_set_bytes: (OBJECTS * PAGE_BYTES) as u64,
                pinned: None,
            })
        });
    let sides = ((SUBJECT, &pool), ("compressed-bytes", &compressed));
    let ratio = Ratio::of(&case, "pool_memory", sides.0, sides.1, Some(AIM));
    Ok(Footprint {
        results: results.collect(),
        ratios: ratio.into_iter().collect(),
        note: note(weights[RUNS - 1]),
    })
}

fn weigh(algorithm: &str, workload: &Workload) -> Result<Weight> {
    let compression = Compression::new(algorithm, Unit::DEFAULT)?;
    warm_up(&compression, workload)?;
    let size_bytes = (OBJECTS * PAGE_BYTES) as u64;
    let before = machine::private_dirty_bytes()?;
    let store = Store::builder()
        .size(size_bytes)
        .compression(Arc::clone(&compression))
        .build()?;
    for chunk in 0..OBJECTS / CHUNK_PAGES {
        let content = workload.content(chunk % workload.chunks(), Generation::First);
        write_chunk(&store, chunk * CHUNK_PAGES, content)?;
    }
    let grown = machine::private_dirty_bytes()?.saturating_sub(before);
    let stats = store.stats();
    if stats.same_pages != 0 || stats.orig_data_size_bytes != size_bytes {
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
    write_chunk(&store, 0, workload.content(0, Generation::First))
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
