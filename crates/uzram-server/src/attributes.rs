//! The attribute table: everything that a device shows, and the part that can be set. The command
//! line, JSON and later adapters only render it.
//!
//! Names are those of zram's documentation (`/sys/block/zramN`, and the columns of `mm_stat` and
//! `io_stat`). Other attributes have names of ours. Values are raw: bytes and counts, never
//! scaled.

use std::time::{Duration, Instant};

use serde_json::Value;
use uzram::{ErrorKind, Stats, Store};

use crate::control::Attributes;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::log_level;
use crate::nearest::{nearest, remedy, shown as short};
use crate::options::boolean;
use crate::requests::Requests;
use crate::sandbox;
use crate::size;

/// The place where zram shows the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// A file of its own, or a property of the device.
    Device,
    /// Nowhere: it is the server's, and the same for all its devices.
    Server,
    /// A column of `mm_stat`; the table has them in its order.
    MmStat,
    /// A column of `io_stat`; the table has them in its order.
    IoStat,
    /// Only here.
    Uzram,
}

/// The unit of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// A text.
    Text,
    /// A number of bytes.
    Bytes,
    /// A number of the things in the name.
    Count,
    /// A quotient, or null while its divisor is 0.
    Ratio,
}

/// The access, as a file's mode would say.
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
    requests: Requests,
}

type Get = fn(&Snapshot<'_>) -> Value;

/// The target of a written value.
enum Set {
    Device(fn(&Device, &str) -> Result<()>),
    /// The process, whichever device it is asked by, or none. Returns the new value.
    Server(fn(&str) -> Result<String>),
}

/// One line of the table.
pub struct Attribute {
    /// The name.
    pub name: &'static str,
    /// The file in which zram shows it.
    pub group: Group,
    /// Its unit.
    pub measure: Measure,
    /// One line for people.
    pub about: &'static str,
    get: Option<Get>,
    set: Option<Set>,
}

impl Attribute {
    /// Its access.
    #[must_use]
    pub fn access(&self) -> Access {
        match (self.get, &self.set) {
            (Some(_), Some(_)) => Access::ReadWrite,
            (None, _) => Access::Write,
            (_, None) => Access::Read,
        }
    }

    /// Whether it is set for a whole server, and needs no device's name.
    #[must_use]
    pub fn is_set_for_server(&self) -> bool {
        matches!(self.set, Some(Set::Server(_)))
    }

    const fn writable(mut self, set: fn(&Device, &str) -> Result<()>) -> Attribute {
        self.set = Some(Set::Device(set));
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
    const SERVER: (Group, Measure) = (Group::Server, Measure::Text);
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
        shown((Group::Server, Measure::Count), "pid", "process id of its server",
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
            set: Some(Set::Device(set_reset)),
        },
        Attribute {
            name: "compact",
            group: Group::Device,
            measure: Measure::Count,
            about: "1 moves pages together for a second; write it again while pages_compacted grows",
            get: None,
            set: Some(Set::Device(set_compact)),
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

        shown(OUR_COUNT, "read_requests", "reads asked of the device",
            |s| s.requests.reads.into()),
        shown(OUR_BYTES, "read_bytes", "and what they read",
            |s| s.requests.read_bytes.into()),
        shown(OUR_COUNT, "write_requests", "writes, and zeroings that leave no hole",
            |s| s.requests.writes.into()),
        shown(OUR_BYTES, "write_bytes", "and what they wrote",
            |s| s.requests.write_bytes.into()),
        shown(OUR_COUNT, "discard_requests", "discards, and zeroings that may leave holes",
            |s| s.requests.discards.into()),
        shown(OUR_BYTES, "discard_bytes", "and what they gave up",
            |s| s.requests.discard_bytes.into()),
        shown(OUR_COUNT, "flush_requests", "flushes",
            |s| s.requests.flushes.into()),
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
        shown(OUR_BYTES, "table", "address space of the slot table, 8 bytes per page",
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
        requests: device.requests(),
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
/// if it takes no value, and the attribute's own errors.
pub fn write(device: &Device, name: &str, value: &str) -> Result<()> {
    match setter(name)? {
        Set::Device(set) => set(device, value)?,
        Set::Server(set) => {
            set(value)?;
        }
    }
    log::info!("{}: {name} set to {:?}", device.name(), short(value));
    Ok(())
}

/// Writes `value` to an attribute of the server, and returns its new value under its name.
///
/// # Errors
/// As [`write()`], and [`ErrorKind::InvalidInput`] for an attribute of a device.
pub fn write_server(name: &str, value: &str) -> Result<Attributes> {
    let Set::Server(set) = setter(name)? else {
        let text =
            format!("attribute {name} is a disk's; name the disk: uzram set NAME {name} VALUE");
        return Err(Error::new(ErrorKind::InvalidInput, text));
    };
    let now = set(value)?;
    log::info!("{name} set to {now}");
    Ok(Attributes::from_iter([(name.to_owned(), now.into())]))
}

fn setter(name: &str) -> Result<&'static Set> {
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
    attribute.set.as_ref().ok_or_else(|| {
        let text = format!("attribute {name} is read-only: {}", why_fixed(attribute));
        Error::new(ErrorKind::ReadOnly, text)
    })
}

/// The reason why an attribute takes no value, and the alternative.
fn why_fixed(attribute: &Attribute) -> &'static str {
    match (attribute.group, attribute.name) {
        (_, "name" | "endpoint") => "clients know the disk by it; add another disk",
        (Group::Server, _) => "it is its server's; start another server",
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

/// Each write compacts for this long and until some pages are free, or for the longest time that a
/// client waits, so that the server can end in between.
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
