//! The attributes of devices: reading and writing them by name.
//!
//! ```text
//! table        one line each: name, permissions, show, set
//! attribute    what a line is
//! set, cold    what written values do; cold: about pages that nobody uses
//! show         texts as the kernel has them
//! number       numbers as the kernel reads them
//! ```

mod attribute;
mod cold;
mod number;
mod set;
mod show;
mod table;

use serde_json::Value;
use uzram::ErrorKind;

use crate::control::Attributes;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::nearest::{nearest, remedy, shown as short};

pub use attribute::{Access, Attribute, Files, Group, Measure, Written};
use attribute::{Set, Show, Snapshot};
pub(crate) use number::whole;
pub use table::TABLE;

/// The attribute of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Attribute> {
    TABLE.iter().find(|attribute| attribute.name == name)
}

/// All readable attributes of `device`, of one moment, in the table's order.
#[must_use]
pub fn read_all(device: &Device) -> Attributes {
    let snapshot = Snapshot::of(device);
    let readable = |attribute: &Attribute| {
        let get = attribute.get?;
        Some((attribute.name.to_owned(), get(&snapshot)))
    };
    TABLE.iter().filter_map(readable).collect()
}

/// The attributes that are files in the tree.
pub fn files() -> impl Iterator<Item = &'static Attribute> {
    TABLE.iter().filter(|attribute| attribute.mode != 0)
}

/// The text of an attribute's file, from `place` on, and the place of more: the kernel's words, or the value
/// and the end of a line. The first place is 0.
#[must_use]
pub fn read(device: &Device, attribute: &Attribute, place: u64) -> (String, Option<u64>) {
    let snapshot = Snapshot::of(device);
    let text = match (attribute.show, attribute.get) {
        (Some(Show::Pieces(show)), _) => return show(&snapshot, place),
        (Some(Show::Whole(show)), _) => show(&snapshot),
        (None, Some(get)) => match get(&snapshot) {
            Value::String(text) => text + "\n",
            other => format!("{other}\n"),
        },
        (None, None) => String::new(),
    };
    (text, None)
}

/// Writes `value` to an attribute of `device`. The end of a line at its end counts for nothing; files that
/// it names are opened by `files`.
///
/// # Errors
/// [`ErrorKind::UnknownName`] if there is none of that name, [`ErrorKind::ReadOnly`] with the reason
/// if it takes no value, and the attribute's own errors.
pub fn write(device: &Device, name: &str, value: &str, files: &dyn Files) -> Result<()> {
    let value = value.strip_suffix('\n').unwrap_or(value);
    match setter(name)? {
        Set::Device(set) => set(device, &Written { value, files })?,
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
        (_, "initstate") => "a disk is ready once it has a size: set disksize",
        (Group::File | Group::Debug, _) => "it shows what others hold and count",
        (Group::Device, _) => "it was fixed when the disk was made; add another disk",
        (Group::MmStat | Group::BdStat | Group::Uzram, _) => {
            "it says what the disk holds; uzram reset empties it"
        }
        (Group::IoStat, _) => "it counts what happened; uzram reset starts it afresh",
    }
}

/// The columns of `group` in zram's own format: `%8llu`, separated by blanks.
#[must_use]
pub fn raw_line(attributes: &Attributes, group: Group) -> String {
    let columns = TABLE.iter().filter(|attribute| attribute.group == group);
    let number = |a: &Attribute| attributes.get(a.name).and_then(Value::as_u64).unwrap_or(0);
    show::columns(&columns.map(number).collect::<Vec<_>>())
}

#[cfg(test)]
mod hostile_tests;

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
                attribute.get.is_some() || attribute.set.is_some() || attribute.show.is_some(),
                "{}",
                attribute.name
            );
            assert!(!attribute.about.is_empty(), "{}", attribute.name);
        }
        let access = |name| find(name).map(Attribute::access);
        assert_eq!(access("reset"), Some(Access::Write));
        assert_eq!(access("mem_limit"), Some(Access::ReadWrite));
        assert_eq!(access("disksize"), Some(Access::ReadWrite));
        assert_eq!(access("mm_stat"), Some(Access::Read));
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
}
