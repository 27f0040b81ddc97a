//! The attribute table: everything that a device shows, and the part that can be set. The command
//! line, JSON, metrics and the tree of files only render it.
//!
//! Names are those of zram's documentation (`/sys/block/zramN`, and the columns of `mm_stat` and
//! `io_stat`). Other attributes have names of ours. Values are raw: bytes and counts, never
//! scaled.

use serde_json::Value;

use super::attribute::{
    Attribute, Group, Measure, READ, READ_WRITE, Set, Show, Snapshot, WRITE, file_of, pieces_of,
    shown, verb,
};
use super::{cold, set, show};
use crate::device::{DeviceConfig, DeviceKind, Live, WritebackBounds};
use crate::log_level;
use crate::sandbox;
use crate::survive::Keeper;

/// The table.
#[rustfmt::skip]
pub static TABLE: &[Attribute] = {
    const TEXT: (Group, Measure) = (Group::Device, Measure::Text);
    const SERVER: (Group, Measure) = (Group::Server, Measure::Text);
    const COUNT: (Group, Measure) = (Group::Device, Measure::Count);
    const BYTES: (Group, Measure) = (Group::Device, Measure::Bytes);
    const MM_BYTES: (Group, Measure) = (Group::MmStat, Measure::Bytes);
    const MM_COUNT: (Group, Measure) = (Group::MmStat, Measure::Count);
    const IO_COUNT: (Group, Measure) = (Group::IoStat, Measure::Count);
    const BD_COUNT: (Group, Measure) = (Group::BdStat, Measure::Count);
    const OUR_BYTES: (Group, Measure) = (Group::Uzram, Measure::Bytes);
    const OUR_COUNT: (Group, Measure) = (Group::Uzram, Measure::Count);
    const OUR_TIMES: (Group, Measure) = (Group::Uzram, Measure::Times);
    const OUR_RATIO: (Group, Measure) = (Group::Uzram, Measure::Ratio);
    &[
        shown(TEXT, "name", "the device's name",
            |s| s.device.name().into()),
        shown(TEXT, "device", "what keeps its data: zram, brd, pmem or btt",
            |s| s.device.kind().name().into()),
        shown(TEXT, "path", "the file that keeps its data",
            |s| s.device.file().map_or_else(String::new, |path| path.display().to_string()).into()),
        shown((Group::Server, Measure::Count), "pid", "process id of its server",
            |_| std::process::id().into()),
        shown((Group::Server, Measure::Count), "holder", "process id of what keeps its disks beyond its end; 0: they end with it",
            |s| s.device.keeper().map_or(0, Keeper::holder).into()),
        shown((Group::Server, Measure::Count), "take_overs", "servers that ended before this one and left their disks to it",
            |s| s.device.keeper().map_or(0, |keeper| keeper.begin().take_overs).into()),
        shown(SERVER, "last_end", "how the last of them ended, and for how long nobody served",
            |s| s.device.keeper().map_or_else(String::new, last_end).into()),
        shown((Group::Server, Measure::Count), "replayed", "requests that it had taken and this one answered, by FUSE or a loop device",
            |s| s.device.replayed().into()),
        shown(BYTES, "disksize", "size of the device",
            |s| s.device.size_bytes().into()).writable(set::disksize).file(READ_WRITE),
        shown(COUNT, "initstate", "1: it has a size, and is ready for use",
            |s| u8::from(s.live.is_some()).into()).file(READ),
        verb("reset", "1 takes content, size and settings away, while nobody has the disk open",
            WRITE, set::reset),
        verb("empty", "1 takes the content away and zeroes the counters, while no client is connected",
            0, set::empty),
        verb("compact", "1 moves pages together for a second; write it again while pages_compacted grows",
            WRITE, set::compact),
        shown(TEXT, "comp_algorithm", "codec",
            |s| of_zram(s, DeviceConfig::algorithm).into())
            .writable(set::comp_algorithm).file(READ_WRITE).in_words(show::comp_algorithm),
        shown(TEXT, "algorithm_params", "its parameters, where they are not the defaults",
            |s| s.setup.parameters.to_string().into())
            .writable(set::algorithm_params).file(WRITE),
        shown(TEXT, "recomp_algorithm", "codecs to pack pages by again, by priority",
            |s| secondaries(s).into())
            .writable(cold::recomp_algorithm).file(READ_WRITE).in_words(show::recomp_algorithm),
        verb("recompress", "packs pages again: type=idle, huge or huge_idle, threshold=, max_pages=, algo=, priority=",
            WRITE, cold::recompress),
        verb("idle", "all marks all pages as not used; a number those not used for so many seconds",
            WRITE, cold::idle),
        shown(COUNT, "ages", "1: the second of each page's last use is kept",
            |s| u8::from(s.setup.ages).into()),
        shown(TEXT, "backing_dev", "the file or block device that pages are written back to",
            |s| backing_dev(s).into()).writable(cold::backing_dev).file(READ_WRITE),
        verb("writeback", "writes pages back: type=idle, huge, huge_idle or incompressible, page_index=N, page_indexes=LO-HI",
            WRITE, cold::writeback),
        shown(COUNT, "writeback_limit", "units of 4 KiB that may still be written back",
            |s| writeback(s).limit_4k.into()).writable(cold::writeback_limit).file(READ_WRITE),
        shown(COUNT, "writeback_limit_enable", "1: that limit holds",
            |s| u8::from(writeback(s).is_limited).into())
            .writable(cold::writeback_limit_enable).file(READ_WRITE),
        shown(COUNT, "writeback_batch_size", "pages written back at once",
            |s| writeback(s).batch_pages.into())
            .writable(cold::writeback_batch_size).file(READ_WRITE),
        shown(COUNT, "compressed_writeback", "1: pages are written back as they are, 0: decompressed",
            |s| u8::from(s.setup.compressed_writeback).into())
            .writable(cold::compressed_writeback).file(READ_WRITE),
        shown(TEXT, "pool", "allocator of compressed pages",
            |s| of_zram(s, |setup| setup.pool.as_deref().unwrap_or(uzram::pools()[0])).into()),
        shown(BYTES, "unit", "what is compressed at once",
            |s| unit_bytes(s).into()),
        shown(COUNT, "checksum", "1: pages are checked when they are read back",
            |s| u8::from(s.device.has_checksums()).into()),
        shown(COUNT, "read_only", "1: writes are refused",
            |s| u8::from(s.device.is_read_only()).into()).writable(set::read_only),
        shown(SERVER, "sandbox", "what its server has given up",
            |_| sandbox::description().into()),
        Attribute {
            set: Some(Set::Server(log_level::set)),
            ..shown(SERVER, "log_level", "what its server logs: off, error, warn, info, debug or trace",
                |_| log_level::current().into())
        },
        shown(TEXT, "endpoint", "where clients connect",
            |s| s.device.uri().into()),
        shown(COUNT, "connections", "clients connected",
            |s| s.device.connections().into()),

        shown(MM_BYTES, "orig_data_size", "data stored, uncompressed",
            |s| s.stats.orig_data_size_bytes.into()),
        shown(MM_BYTES, "compr_data_size", "the same, compressed",
            |s| s.stats.compr_data_size_bytes.into()),
        shown(MM_BYTES, "mem_used_total", "memory that holds it, with the allocator's overhead",
            |s| s.stats.mem_used_total_bytes.into()),
        shown(MM_BYTES, "mem_limit", "most that mem_used_total may be; 0: no limit",
            |s| s.stats.mem_limit_bytes.into()).writable(set::mem_limit).file(WRITE),
        shown(MM_BYTES, "mem_used_max", "most that mem_used_total was",
            |s| s.stats.mem_used_max_bytes.into()).writable(set::mem_used_max).file(WRITE),
        shown(MM_COUNT, "same_pages", "pages filled with one word, which take no memory",
            |s| s.stats.same_pages.into()),
        shown(MM_COUNT, "pages_compacted", "pages freed by compaction",
            |s| s.stats.pages_compacted.into()).grows(),
        shown(MM_COUNT, "huge_pages", "incompressible pages stored now",
            |s| s.stats.huge_pages.into()),
        shown(MM_COUNT, "huge_pages_since", "incompressible pages stored ever",
            |s| s.stats.huge_pages_since.into()).grows(),

        shown(IO_COUNT, "failed_reads", "reads that failed",
            |s| s.stats.failed_reads.into()).grows(),
        shown(IO_COUNT, "failed_writes", "writes that failed, as at the memory limit",
            |s| s.stats.failed_writes.into()).grows(),
        shown(IO_COUNT, "invalid_io", "requests outside the device",
            |s| s.stats.invalid_io.into()).grows(),
        shown(IO_COUNT, "notify_free", "pages trimmed",
            |s| s.stats.notify_free.into()).grows(),

        shown(BD_COUNT, "bd_count", "units of 4 KiB that are written back now",
            |s| counted(s, s.stats.bd_count)),
        shown(BD_COUNT, "bd_reads", "units of 4 KiB read from there",
            |s| counted(s, s.stats.bd_reads)).grows(),
        shown(BD_COUNT, "bd_writes", "units of 4 KiB written there",
            |s| counted(s, s.stats.bd_writes)).grows(),

        shown(OUR_COUNT, "read_requests", "reads asked of the device",
            |s| s.requests.reads.into()).grows(),
        shown(OUR_BYTES, "read_bytes", "and what they read",
            |s| s.requests.read_bytes.into()).grows(),
        shown(OUR_COUNT, "write_requests", "writes, and zeroings that leave no hole",
            |s| s.requests.writes.into()).grows(),
        shown(OUR_BYTES, "write_bytes", "and what they wrote",
            |s| s.requests.write_bytes.into()).grows(),
        shown(OUR_COUNT, "discard_requests", "discards, and zeroings that may leave holes",
            |s| s.requests.discards.into()).grows(),
        shown(OUR_BYTES, "discard_bytes", "and what they gave up",
            |s| s.requests.discard_bytes.into()).grows(),
        shown(OUR_COUNT, "flush_requests", "flushes",
            |s| s.requests.flushes.into()).grows(),
        shown(OUR_TIMES, "read_latency", "time of reads: half, and 99 of 100, took no longer",
            |s| s.latencies[0].to_json()),
        shown(OUR_TIMES, "write_latency", "time of writes, in the same way",
            |s| s.latencies[1].to_json()),
        shown(OUR_RATIO, "compr_ratio", "data without same-filled pages / compr_data_size",
            compr_ratio),
        shown(OUR_RATIO, "mem_ratio", "orig_data_size / mem_used_total",
            mem_ratio),
        shown(OUR_COUNT, "recompressed_pages", "pages packed by another codec than they were written by",
            |s| s.stats.recompressed_pages.into()),
        shown(OUR_COUNT, "incompressible_pages", "pages that packing again does not make smaller",
            |s| s.stats.incompressible_pages.into()),
        shown(OUR_COUNT, "bd_failed_writes", "tries to write pages back that failed; the pages stayed in memory",
            |s| s.stats.bd_failed_writes.into()).grows(),
        shown(OUR_COUNT, "slow_path_writes", "writes that compressed twice, as memory had to be made",
            |s| s.stats.slow_path_writes.into()).grows(),
        shown(OUR_COUNT, "early_rejections", "writes kept raw untried, as the page looked random",
            |s| s.stats.early_rejections.into()).grows(),
        shown(OUR_COUNT, "lost_pages", "pages whose record a take-over found damaged: reading them fails until they are written",
            |s| s.stats.lost_pages.into()),
        shown(OUR_BYTES, "mem_spare", "memory held ready, not in mem_used_total",
            |s| s.stats.mem_spare_bytes.into()),
        shown(OUR_BYTES, "mem_resident", "memory of the pool that the system has given",
            |s| s.stats.mem_resident_bytes.into()),
        shown(OUR_BYTES, "table", "address space of the slot table, 8 bytes per page",
            |s| s.stats.table_bytes.into()),
        shown(OUR_BYTES, "side_tables", "bookkeeping of the pool, and checksums",
            |s| s.stats.side_tables_bytes.into()),

        file_of("mm_stat", "the counters of memory, in one line",
            |s| raw_line(s, Group::MmStat)),
        file_of("io_stat", "the counters of failures, in one line",
            |s| raw_line(s, Group::IoStat)),
        file_of("bd_stat", "the counters of what is written back, in one line",
            |s| raw_line(s, Group::BdStat)),
        pieces_of((Group::Debug, 0o400), "block_state", "each page that has content: index, last use, flags",
            Show::Pieces(show::block_state)),
        file_of("debug_stat", "what zram's developers count",
            show::debug_stat),
        file_of("stat", "requests, sectors and milliseconds, as of any block device",
            show::stat),
        file_of("inflight", "reads and writes under way",
            show::inflight),
        file_of("size", "the size in sectors of 512 bytes",
            show::size),
        file_of("ro", "1: writes are refused",
            |s| format!("{}\n", u8::from(s.device.is_read_only()))),
    ]
};

/// `process 7 killed by signal 9 (KILL); nobody served for 12.3 ms`, or nothing. The time comes once it is over.
fn last_end(keeper: &Keeper) -> String {
    let Some(before) = &keeper.begin().before else {
        return String::new();
    };
    let ended = format!("process {} {}", before.pid, before.why);
    match keeper.pause_ns() {
        0 => ended,
        pause_ns => format!("{ended}; nobody served for {:.1} ms", pause_ns as f64 / 1e6),
    }
}

fn unit_bytes(s: &Snapshot<'_>) -> u64 {
    match s.device.kind() {
        DeviceKind::Zram => s.setup.unit().bytes() as u64,
        _ => 0,
    }
}

/// A word of the configuration that only a device which compresses has.
fn of_zram<'a>(s: &'a Snapshot<'_>, word: impl FnOnce(&'a DeviceConfig) -> &'a str) -> &'a str {
    match s.device.kind() {
        DeviceKind::Zram => word(&s.setup),
        _ => "none",
    }
}

/// Names of secondary codecs, with their priorities.
fn secondaries(s: &Snapshot<'_>) -> String {
    let all = s.setup.secondaries.iter().zip(1..);
    let chosen = all.filter_map(|(codec, priority)| {
        let algorithm = codec.algorithm.as_ref()?;
        Some(format!("{priority}:{algorithm}"))
    });
    chosen.collect::<Vec<_>>().join(" ")
}

fn backing_dev(s: &Snapshot<'_>) -> String {
    let backing = s.setup.backing.as_ref();
    backing.map_or_else(
        || "none".to_owned(),
        |backing| backing.path.display().to_string(),
    )
}

/// The bounds of writing back, as far as they are used up.
fn writeback(s: &Snapshot<'_>) -> WritebackBounds {
    match s.live.as_deref().and_then(Live::store) {
        Some(store) => WritebackBounds {
            limit_4k: store.writeback_limit(),
            is_limited: store.writeback_limit_enabled(),
            batch_pages: store.writeback_batch_pages(),
        },
        None => s.setup.writeback,
    }
}

/// Units of the store in those that zram counts, 4 KiB.
fn counted(s: &Snapshot<'_>, units: u64) -> Value {
    (units * (unit_bytes(s) / 4096).max(1)).into()
}

/// The columns of `group` in one line.
fn raw_line(s: &Snapshot<'_>, group: Group) -> String {
    let of_it = TABLE.iter().filter(|attribute| attribute.group == group);
    let number = |a: &Attribute| a.get.and_then(|get| get(s).as_u64()).unwrap_or(0);
    let values: Vec<u64> = of_it.map(number).collect();
    show::columns(&values) + "\n"
}

fn compr_ratio(s: &Snapshot<'_>) -> Value {
    let same_bytes = s.stats.same_pages.saturating_mul(unit_bytes(s));
    ratio(
        s.stats.orig_data_size_bytes.saturating_sub(same_bytes),
        s.stats.compr_data_size_bytes,
    )
}

fn mem_ratio(s: &Snapshot<'_>) -> Value {
    ratio(s.stats.orig_data_size_bytes, s.stats.mem_used_total_bytes)
}

/// Rounds to three decimals: more would be noise in JSON.
fn ratio(dividend: u64, divisor: u64) -> Value {
    if divisor == 0 {
        return Value::Null;
    }
    let exact = dividend as f64 / divisor as f64;
    ((exact * 1000.0).round() / 1000.0).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_have_three_decimals_or_are_null() {
        assert_eq!(ratio(1, 0), Value::Null);
        assert_eq!(ratio(2, 3), Value::from(0.667));
    }
}
