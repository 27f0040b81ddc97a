//! The attribute table: everything a device shows or takes, once. The command line, JSON and later
//! adapters only render it.
//!
//! Names are those of zram's documentation (`/sys/block/zramN`, and the columns of `mm_stat` and
//! `io_stat`); what zram lacks has a name of ours. Values are raw: bytes and counts, never scaled.

use std::time::{Duration, Instant};

use serde_json::Value;
use uzram::{Error, ErrorKind, Result, Stats, Store};

use crate::control::Attributes;
use crate::device::Device;
use crate::nearest::{nearest, remedy, shown as short};
use crate::options::boolean;
use crate::sandbox;
use crate::size;

/// Where zram shows the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// A file of its own, or what the device is.
    Device,
    /// A column of `mm_stat`; the table has them in its order.
    MmStat,
    /// A column of `io_stat`; the table has them in its order.
    IoStat,
    /// Only here.
    Uzram,
}

/// What a value counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// A text.
    Text,
    /// A number of bytes.
    Bytes,
    /// A number of whatever the name says.
    Count,
    /// A quotient, or null while its divisor is 0.
    Ratio,
}

/// Who may do what, as the mode of a file would say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Can only be read.
    Read,
    /// Can only be written.
    Write,
    /// Both.
    ReadWrite,
}

/// A device and its counters, all of one moment.
pub struct Snapshot<'a> {
    device: &'a Device,
    stats: Stats,
}

type Get = fn(&Snapshot<'_>) -> Value;
type Set = fn(&Device, &str) -> Result<()>;

/// One line of the table.
pub struct Attribute {
    /// The name.
    pub name: &'static str,
    /// Where zram shows it.
    pub group: Group,
    /// What it counts.
    pub measure: Measure,
    /// One line for people.
    pub about: &'static str,
    get: Option<Get>,
    set: Option<Set>,
}

impl Attribute {
    /// Who may do what.
    #[must_use]
    pub fn access(&self) -> Access {
        match (self.get, self.set) {
            (Some(_), Some(_)) => Access::ReadWrite,
            (None, _) => Access::Write,
            (_, None) => Access::Read,
        }
    }

    const fn writable(mut self, set: Set) -> Attribute {
        self.set = Some(set);
        self
    }
}

const fn shown(
    (group, measure): (Group, Measure),
    name: &'static str,
    about: &'static str,
    get: Get,
) -> Attribute {
    Attribute {
        name,
        group,
        measure,
        about,
        get: Some(get),
        set: None,
    }
}

/// The table.
#[rustfmt::skip]
pub static TABLE: &[Attribute] = {
    const TEXT: (Group, Measure) = (Group::Device, Measure::Text);
    const COUNT: (Group, Measure) = (Group::Device, Measure::Count);
    const BYTES: (Group, Measure) = (Group::Device, Measure::Bytes);
    const MM_BYTES: (Group, Measure) = (Group::MmStat, Measure::Bytes);
    const MM_COUNT: (Group, Measure) = (Group::MmStat, Measure::Count);
    const IO_COUNT: (Group, Measure) = (Group::IoStat, Measure::Count);
    const OUR_BYTES: (Group, Measure) = (Group::Uzram, Measure::Bytes);
    const OUR_COUNT: (Group, Measure) = (Group::Uzram, Measure::Count);
    const OUR_RATIO: (Group, Measure) = (Group::Uzram, Measure::Ratio);
    &[
        shown(TEXT, "name", "the device's name",
            |s| s.device.name().into()),
        shown(TEXT, "device", "what keeps its data: zram, brd, pmem or btt",
            |s| s.device.kind().name().into()),
        shown(TEXT, "path", "the file that keeps its data",
            |s| s.device.file().map_or_else(String::new, |path| path.display().to_string()).into()),
        shown(COUNT, "pid", "process id of its server",
            |_| std::process::id().into()),
        shown(BYTES, "disksize", "size of the device",
            |s| s.device.size_bytes().into()),
        shown(COUNT, "initstate", "1: ready for use",
            |_| 1.into()),
        Attribute {
            name: "reset",
            group: Group::Device,
            measure: Measure::Count,
            about: "1 empties the device and zeroes its counters, while no client is connected",
            get: None,
            set: Some(set_reset),
        },
        Attribute {
            name: "compact",
            group: Group::Device,
            measure: Measure::Count,
            about: "1 moves pages together for a second; write it again while pages_compacted grows",
            get: None,
            set: Some(set_compact),
        },
        shown(TEXT, "comp_algorithm", "codec",
            |s| s.device.store().map_or("none", Store::algorithm).into()),
        shown(TEXT, "algorithm_params", "its parameters, where they are not the defaults",
            |s| s.device.store().map_or_else(String::new, |store| store.parameters().to_string()).into()),
        shown(TEXT, "pool", "allocator of compressed pages",
            |s| s.device.store().map_or("none", Store::pool).into()),
        shown(BYTES, "unit", "what is compressed at once",
            |s| unit_bytes(s).into()),
        shown(COUNT, "checksum", "1: pages are checked when they are read back",
            |s| u8::from(s.device.has_checksums()).into()),
        shown(COUNT, "read_only", "1: writes are refused",
            |s| u8::from(s.device.is_read_only()).into()).writable(set_read_only),
        shown(TEXT, "sandbox", "what its server has given up",
            |_| sandbox::description().into()),
        shown(TEXT, "log_level", "what its server logs: off, error, warn, info, debug or trace",
            |_| log_level().into()).writable(set_log_level),
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
            |s| s.stats.mem_limit_bytes.into()).writable(set_mem_limit),
        shown(MM_BYTES, "mem_used_max", "most that mem_used_total was",
            |s| s.stats.mem_used_max_bytes.into()).writable(set_mem_used_max),
        shown(MM_COUNT, "same_pages", "pages filled with one word, which take no memory",
            |s| s.stats.same_pages.into()),
        shown(MM_COUNT, "pages_compacted", "pages freed by compaction",
            |s| s.stats.pages_compacted.into()),
        shown(MM_COUNT, "huge_pages", "incompressible pages stored now",
            |s| s.stats.huge_pages.into()),
        shown(MM_COUNT, "huge_pages_since", "incompressible pages stored ever",
            |s| s.stats.huge_pages_since.into()),

        shown(IO_COUNT, "failed_reads", "reads that failed",
            |s| s.stats.failed_reads.into()),
        shown(IO_COUNT, "failed_writes", "writes that failed, as at the memory limit",
            |s| s.stats.failed_writes.into()),
        shown(IO_COUNT, "invalid_io", "requests outside the device",
            |s| s.stats.invalid_io.into()),
        shown(IO_COUNT, "notify_free", "pages trimmed",
            |s| s.stats.notify_free.into()),

        shown(OUR_RATIO, "compr_ratio", "data without same-filled pages / compr_data_size",
            compr_ratio),
        shown(OUR_RATIO, "mem_ratio", "orig_data_size / mem_used_total",
            mem_ratio),
        shown(OUR_COUNT, "slow_path_writes", "writes that compressed twice, as memory had to be made",
            |s| s.stats.slow_path_writes.into()),
        shown(OUR_COUNT, "early_rejections", "writes kept raw untried, as the page looked random",
            |s| s.stats.early_rejections.into()),
        shown(OUR_BYTES, "mem_spare", "memory held ready, not in mem_used_total",
            |s| s.stats.mem_spare_bytes.into()),
        shown(OUR_BYTES, "mem_resident", "memory of the pool that the system has given",
            |s| s.stats.mem_resident_bytes.into()),
        shown(OUR_BYTES, "table", "address space of the slot table, 8 bytes a page",
            |s| s.stats.table_bytes.into()),
        shown(OUR_BYTES, "side_tables", "bookkeeping of the pool, and checksums",
            |s| s.stats.side_tables_bytes.into()),
    ]
};

/// The attribute of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Attribute> {
    TABLE.iter().find(|attribute| attribute.name == name)
}

/// All readable attributes of `device`, of one moment, in the table's order.
#[must_use]
pub fn read_all(device: &Device) -> Attributes {
    let snapshot = Snapshot {
        device,
        stats: device.stats(),
    };
    let readable = |attribute: &Attribute| {
        let get = attribute.get?;
        Some((attribute.name.to_owned(), get(&snapshot)))
    };
    TABLE.iter().filter_map(readable).collect()
}

/// Writes `value` to an attribute of `device`.
///
/// # Errors
/// [`ErrorKind::UnknownName`] if there is none of that name, [`ErrorKind::ReadOnly`] with the reason
/// if it takes no value, else what the attribute says.
pub fn write(device: &Device, name: &str, value: &str) -> Result<()> {
    let Some(attribute) = find(name) else {
        let writable = TABLE.iter().filter(|a| a.set.is_some()).map(|a| a.name);
        let text = match nearest(name, TABLE.iter().map(|a| a.name)) {
            Some(_) => remedy(name, &TABLE.iter().map(|a| a.name).collect::<Vec<_>>()),
            None => format!(
                "; writable are: {}",
                writable.collect::<Vec<_>>().join(", ")
            ),
        };
        let text = format!("no attribute {:?}{text}", short(name));
        return Err(Error::new(ErrorKind::UnknownName, text));
    };
    let Some(set) = attribute.set else {
        let text = format!("attribute {name} is read-only: {}", why_fixed(attribute));
        return Err(Error::new(ErrorKind::ReadOnly, text));
    };
    set(device, value)?;
    log::info!("{}: {name} set to {:?}", device.name(), short(value));
    Ok(())
}

/// Why an attribute takes no value, and what does instead.
fn why_fixed(attribute: &Attribute) -> &'static str {
    match (attribute.group, attribute.name) {
        (_, "name" | "endpoint") => "clients know the disk by it; add another disk",
        (_, "pid" | "sandbox") => "it is its server's; start another server",
        (_, "connections") => "it counts clients; end them to lower it",
        (_, "initstate") => "a disk is ready as soon as it exists; uzram remove ends it",
        (Group::Device, _) => "it was fixed when the disk was made; add another disk",
        (Group::MmStat | Group::Uzram, _) => "it says what the disk holds; uzram reset empties it",
        (Group::IoStat, _) => "it counts what happened; uzram reset starts it afresh",
    }
}

/// The columns of `group` in zram's own format: `%8llu`, separated by blanks.
#[must_use]
pub fn raw_line(attributes: &Attributes, group: Group) -> String {
    let columns = TABLE.iter().filter(|attribute| attribute.group == group);
    let number = |a: &Attribute| attributes.get(a.name).and_then(Value::as_u64).unwrap_or(0);
    columns
        .map(|a| format!("{:>8}", number(a)))
        .collect::<Vec<_>>()
        .join(" ")
}

fn set_reset(device: &Device, value: &str) -> Result<()> {
    match value.trim().parse::<u16>() {
        Ok(1..) => device.reset(),
        _ => Err(invalid("reset", value, "write 1")),
    }
}

/// At each writing compaction goes on for as long and until some pages are free, or for the most that
/// a client waits, so that the server can end in between.
const COMPACT_MIN: Duration = Duration::from_secs(1);
const COMPACT_MAX: Duration = Duration::from_secs(20);

fn set_compact(device: &Device, value: &str) -> Result<()> {
    if value.trim() != "1" {
        return Err(invalid("compact", value, "write 1"));
    }
    let store = store(device)?;
    let (start, before) = (Instant::now(), store.stats().pages_compacted);
    while store.compact(COMPACT_MIN / 10)? {
        let is_free = store.stats().pages_compacted > before;
        let enough = if is_free { COMPACT_MIN } else { COMPACT_MAX };
        if start.elapsed() >= enough {
            break;
        }
    }
    Ok(())
}

fn set_read_only(device: &Device, value: &str) -> Result<()> {
    device.set_read_only(boolean(value)?)
}

fn log_level() -> String {
    log::max_level().as_str().to_lowercase()
}

/// Of the whole server: a log has one level.
fn set_log_level(_: &Device, value: &str) -> Result<()> {
    log::set_max_level(log_level_of(value)?);
    Ok(())
}

/// The level of this name.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] with the list.
pub fn log_level_of(name: &str) -> Result<log::LevelFilter> {
    name.trim().parse().map_err(|_| {
        let levels = "write off, error, warn, info, debug or trace";
        invalid("log level", name, levels)
    })
}

fn set_mem_limit(device: &Device, value: &str) -> Result<()> {
    let bytes = size::parse_limit(value, size::ram_bytes())?;
    store(device)?.set_mem_limit(bytes);
    Ok(())
}

fn set_mem_used_max(device: &Device, value: &str) -> Result<()> {
    if value.trim() != "0" {
        return Err(invalid(
            "mem_used_max",
            value,
            "only 0 can be written; it starts the maximum afresh",
        ));
    }
    store(device)?.reset_mem_used_max();
    Ok(())
}

/// The pages of a device that compresses.
fn store(device: &Device) -> Result<&Store> {
    device.store().ok_or_else(|| {
        let text = format!(
            "{} does not compress, so this means nothing",
            device.kind().name()
        );
        Error::new(ErrorKind::Unsupported, text)
    })
}

fn unit_bytes(s: &Snapshot<'_>) -> u64 {
    s.device
        .store()
        .map_or(0, |store| store.unit().bytes() as u64)
}

fn invalid(name: &str, value: &str, remedy: &str) -> Error {
    let shown: String = value.chars().take(40).collect();
    Error::new(
        ErrorKind::InvalidInput,
        format!("{name} {shown:?}: {remedy}"),
    )
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

/// To three decimals, as more would be noise in JSON.
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
    use std::collections::BTreeSet;

    fn names(group: Group) -> Vec<&'static str> {
        TABLE
            .iter()
            .filter(|a| a.group == group)
            .map(|a| a.name)
            .collect()
    }

    #[test]
    fn columns_are_in_the_kernels_order() {
        let mm_stat = "orig_data_size compr_data_size mem_used_total mem_limit mem_used_max \
                       same_pages pages_compacted huge_pages huge_pages_since";
        assert_eq!(names(Group::MmStat).join(" "), mm_stat);
        let io_stat = "failed_reads failed_writes invalid_io notify_free";
        assert_eq!(names(Group::IoStat).join(" "), io_stat);
    }

    #[test]
    fn every_attribute_has_one_name_and_some_use() {
        let unique: BTreeSet<_> = TABLE.iter().map(|a| a.name).collect();
        assert_eq!(unique.len(), TABLE.len());
        for attribute in TABLE {
            assert!(
                attribute.get.is_some() || attribute.set.is_some(),
                "{}",
                attribute.name
            );
            assert!(!attribute.about.is_empty(), "{}", attribute.name);
        }
        let access = |name| find(name).map(Attribute::access);
        assert_eq!(access("reset"), Some(Access::Write));
        assert_eq!(access("mem_limit"), Some(Access::ReadWrite));
        assert_eq!(access("disksize"), Some(Access::Read));
        assert_eq!(access("nosuch"), None);
    }

    #[test]
    fn raw_lines_have_the_kernels_width() {
        let mut attributes = Attributes::new();
        attributes.insert("failed_writes".into(), 7.into());
        attributes.insert("notify_free".into(), 123_456_789_012u64.into());
        let line = raw_line(&attributes, Group::IoStat);
        assert_eq!(line, "       0        7        0 123456789012");
    }

    #[test]
    fn ratios_have_three_decimals_or_are_null() {
        assert_eq!(ratio(1, 0), Value::Null);
        assert_eq!(ratio(2, 3), Value::from(0.667));
    }
}
