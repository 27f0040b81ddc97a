//! The attribute table: everything a device shows or takes, once. The command line, JSON and later
//! adapters only render it.
//!
//! Names are those of zram's documentation (`/sys/block/zramN`, and the columns of `mm_stat` and
//! `io_stat`); what zram lacks has a name of ours. Values are raw: bytes and counts, never scaled.

use serde_json::Value;
use uzram::{Error, ErrorKind, Result, Stats};

use crate::control::Attributes;
use crate::device::Device;
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
    group: Group,
    measure: Measure,
    name: &'static str,
    get: Get,
    about: &'static str,
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

macro_rules! counter {
    ($group:ident, $measure:ident, $name:literal, $field:ident, $about:literal) => {
        shown(
            Group::$group,
            Measure::$measure,
            $name,
            |s| s.stats.$field.into(),
            $about,
        )
    };
}

/// The table.
pub static TABLE: &[Attribute] = &[
    shown(
        Group::Device,
        Measure::Text,
        "name",
        |s| s.device.name().into(),
        "the device's name",
    ),
    shown(
        Group::Device,
        Measure::Count,
        "pid",
        |_| std::process::id().into(),
        "process id of its server",
    ),
    shown(
        Group::Device,
        Measure::Bytes,
        "disksize",
        |s| s.device.store().size_bytes().into(),
        "size of the device",
    ),
    shown(
        Group::Device,
        Measure::Count,
        "initstate",
        |_| 1.into(),
        "1: ready for use",
    ),
    Attribute {
        name: "reset",
        group: Group::Device,
        measure: Measure::Count,
        about: "1 empties the device and zeroes its counters; refused while clients are connected",
        get: None,
        set: Some(set_reset),
    },
    shown(
        Group::Device,
        Measure::Text,
        "comp_algorithm",
        |s| s.device.store().algorithm().into(),
        "codec",
    ),
    shown(
        Group::Device,
        Measure::Text,
        "pool",
        |s| s.device.store().pool().into(),
        "allocator of compressed pages",
    ),
    shown(
        Group::Device,
        Measure::Bytes,
        "unit",
        |s| s.device.store().unit().bytes().into(),
        "what is compressed at once",
    ),
    shown(
        Group::Device,
        Measure::Text,
        "endpoint",
        |s| s.device.uri().into(),
        "where clients connect",
    ),
    shown(
        Group::Device,
        Measure::Count,
        "connections",
        |s| s.device.connections().into(),
        "clients connected",
    ),
    counter!(
        MmStat,
        Bytes,
        "orig_data_size",
        orig_data_size_bytes,
        "data stored, uncompressed"
    ),
    counter!(
        MmStat,
        Bytes,
        "compr_data_size",
        compr_data_size_bytes,
        "the same, compressed"
    ),
    counter!(
        MmStat,
        Bytes,
        "mem_used_total",
        mem_used_total_bytes,
        "memory that holds it, with the allocator's overhead"
    ),
    counter!(
        MmStat,
        Bytes,
        "mem_limit",
        mem_limit_bytes,
        "most that mem_used_total may be; 0: no limit"
    )
    .writable(set_mem_limit),
    counter!(
        MmStat,
        Bytes,
        "mem_used_max",
        mem_used_max_bytes,
        "most that mem_used_total was"
    )
    .writable(set_mem_used_max),
    counter!(
        MmStat,
        Count,
        "same_pages",
        same_pages,
        "pages filled with one word, which take no memory"
    ),
    counter!(
        MmStat,
        Count,
        "pages_compacted",
        pages_compacted,
        "pages freed by compaction"
    ),
    counter!(
        MmStat,
        Count,
        "huge_pages",
        huge_pages,
        "incompressible pages stored now"
    ),
    counter!(
        MmStat,
        Count,
        "huge_pages_since",
        huge_pages_since,
        "incompressible pages stored ever"
    ),
    counter!(
        IoStat,
        Count,
        "failed_reads",
        failed_reads,
        "reads that failed"
    ),
    counter!(
        IoStat,
        Count,
        "failed_writes",
        failed_writes,
        "writes that failed, as at the memory limit"
    ),
    counter!(
        IoStat,
        Count,
        "invalid_io",
        invalid_io,
        "requests outside the device"
    ),
    counter!(IoStat, Count, "notify_free", notify_free, "pages trimmed"),
    shown(
        Group::Uzram,
        Measure::Ratio,
        "compr_ratio",
        compr_ratio,
        "data without same-filled pages / compr_data_size",
    ),
    shown(
        Group::Uzram,
        Measure::Ratio,
        "mem_ratio",
        mem_ratio,
        "orig_data_size / mem_used_total",
    ),
    counter!(
        Uzram,
        Count,
        "slow_path_writes",
        slow_path_writes,
        "writes that compressed twice, as memory had to be made"
    ),
    counter!(
        Uzram,
        Bytes,
        "mem_spare",
        mem_spare_bytes,
        "memory held ready, not in mem_used_total"
    ),
    counter!(
        Uzram,
        Bytes,
        "mem_resident",
        mem_resident_bytes,
        "memory of the pool that the system has given"
    ),
    counter!(
        Uzram,
        Bytes,
        "table",
        table_bytes,
        "address space of the slot table, 8 bytes a page"
    ),
    counter!(
        Uzram,
        Bytes,
        "side_tables",
        side_tables_bytes,
        "bookkeeping of the pool, and checksums"
    ),
];

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
        stats: device.store().stats(),
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
/// [`ErrorKind::UnknownName`] if there is none of that name, [`ErrorKind::ReadOnly`] if it takes no
/// value, else what the attribute says.
pub fn write(device: &Device, name: &str, value: &str) -> Result<()> {
    let writable = || {
        let names = TABLE.iter().filter(|a| a.set.is_some()).map(|a| a.name);
        names.collect::<Vec<_>>().join(", ")
    };
    let Some(attribute) = find(name) else {
        let shown: String = name.chars().take(40).collect();
        let text = format!("no attribute {shown:?}; writable are: {}", writable());
        return Err(Error::new(ErrorKind::UnknownName, text));
    };
    let Some(set) = attribute.set else {
        let text = format!(
            "attribute {name} is read-only; writable are: {}",
            writable()
        );
        return Err(Error::new(ErrorKind::ReadOnly, text));
    };
    set(device, value)
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

fn set_mem_limit(device: &Device, value: &str) -> Result<()> {
    device
        .store()
        .set_mem_limit(size::parse_limit(value, size::ram_bytes())?);
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
    device.store().reset_mem_used_max();
    Ok(())
}

fn invalid(name: &str, value: &str, remedy: &str) -> Error {
    let shown: String = value.chars().take(40).collect();
    Error::new(
        ErrorKind::InvalidInput,
        format!("{name} {shown:?}: {remedy}"),
    )
}

fn compr_ratio(s: &Snapshot<'_>) -> Value {
    let same_bytes = s
        .stats
        .same_pages
        .saturating_mul(s.device.store().unit().bytes() as u64);
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
