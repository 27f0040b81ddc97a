//! Texts of files as the kernel writes them.

use crate::device::{DeviceKind, Live};
use crate::latencies::Latencies;

use super::attribute::Snapshot;

/// A piece of a long text, in bytes.
const PIECE_BYTES: usize = 16 << 10;
const SECTOR_BYTES: u64 = 512;
const NS_PER_MS: u64 = 1_000_000;

/// All codecs, with the chosen one in brackets.
pub(super) fn comp_algorithm(s: &Snapshot<'_>) -> String {
    let chosen = match s.device.kind() {
        DeviceKind::Zram => s.setup.algorithm(),
        _ => "none",
    };
    algorithms(chosen)
}

fn algorithms(chosen: &str) -> String {
    let all = uzram::algorithms().into_iter();
    let mut text: String = all
        .map(|name| match name == chosen {
            true => format!("[{name}] "),
            false => format!("{name} "),
        })
        .collect();
    text.push('\n');
    text
}

/// The same for each secondary codec.
pub(super) fn recomp_algorithm(s: &Snapshot<'_>) -> String {
    let secondaries = s.setup.secondaries.iter().zip(1..);
    let chosen = secondaries.filter_map(|(codec, priority)| {
        let algorithm = codec.algorithm.as_deref()?;
        Some(format!("#{priority}: {}", algorithms(algorithm)))
    });
    chosen.collect()
}

/// A line for each page that has content.
pub(super) fn block_state(s: &Snapshot<'_>, place: u64) -> (String, Option<u64>) {
    let Some(store) = s.live.as_deref().and_then(Live::store) else {
        return (String::new(), None);
    };
    let mut text = String::new();
    let mut next = place;
    while text.len() < PIECE_BYTES {
        let Some(page) = store.block_state_from(next) else {
            return (text, None);
        };
        text += &format!("{page}\n");
        next = page.index + 1;
    }
    (text, Some(next))
}

pub(super) fn debug_stat(_: &Snapshot<'_>) -> String {
    // What the kernel counts there cannot happen here: nobody notifies of a slot that is free.
    format!("version: 1\n{}\n", columns(&[0, 0]))
}

/// The requests of a block device, of which none is merged, and their times.
pub(super) fn stat(s: &Snapshot<'_>) -> String {
    let r = &s.requests;
    let [reads_ms, writes_ms] = s.latencies.each_ref().map(milliseconds);
    let (reads_sectors, writes_sectors) =
        (r.read_bytes / SECTOR_BYTES, r.write_bytes / SECTOR_BYTES);
    let (merged, discards_ms, flushes_ms) = (0, 0, 0);
    let line = columns(&[
        r.reads,
        merged,
        reads_sectors,
        reads_ms,
        r.writes,
        merged,
        writes_sectors,
        writes_ms,
        r.reads_under_way + r.writes_under_way,
        reads_ms + writes_ms,
        reads_ms + writes_ms,
        r.discards,
        merged,
        r.discard_bytes / SECTOR_BYTES,
        discards_ms,
        r.flushes,
        flushes_ms,
    ]);
    line + "\n"
}

fn milliseconds(times: &Latencies) -> u64 {
    times.sum_ns() / NS_PER_MS
}

pub(super) fn inflight(s: &Snapshot<'_>) -> String {
    let r = &s.requests;
    columns(&[r.reads_under_way, r.writes_under_way]) + "\n"
}

pub(super) fn size(s: &Snapshot<'_>) -> String {
    format!("{}\n", s.device.size_bytes() / SECTOR_BYTES)
}

/// `%8llu`, separated by blanks.
pub(super) fn columns(values: &[u64]) -> String {
    let columns = values.iter().map(|value| format!("{value:>8}"));
    columns.collect::<Vec<_>>().join(" ")
}
