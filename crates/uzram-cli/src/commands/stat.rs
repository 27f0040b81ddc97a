//! `uzram stat`.

use serde_json::Value;
use uzram_server::attributes::{Access, Attribute, Group, Measure, TABLE, find, raw_line};
use uzram_server::control::Attributes;
use uzram_server::size::human;
use uzram_server::state::StateDir;

use super::{disk, disks, plain, ratio};
use crate::args::StatArgs;
use crate::failure::{Failure, Result};
use crate::output::{Align, bold, columns, print, print_json};

/// Runs the command.
pub fn run(args: &StatArgs) -> Result {
    let state = StateDir::open_default()?;
    let devices = match &args.name {
        Some(name) => vec![disk(&state, name)?],
        None => disks(&state)?
            .into_iter()
            .map(|disk| disk.attributes)
            .collect::<Result<_>>()?,
    };
    if args.json {
        let mut values = devices.into_iter().map(Value::Object);
        return match &args.name {
            Some(_) => print_json(&values.next().unwrap_or_default()),
            None => print_json(&values.collect()),
        };
    }
    if args.raw {
        return raw(&devices);
    }
    if devices.is_empty() {
        return print("No disk is served. To make one: uzram serve --size 1G\n");
    }
    print(&devices.iter().map(table).collect::<Vec<_>>().join("\n"))
}

fn raw(devices: &[Attributes]) -> Result {
    let [device] = devices else {
        let text = format!("--raw: {} disks are served; name one", devices.len());
        return Err(Failure::Usage(text));
    };
    let (mm_stat, io_stat) = (
        raw_line(device, Group::MmStat),
        raw_line(device, Group::IoStat),
    );
    print(&format!("{mm_stat}\n{io_stat}\n"))
}

fn table(device: &Attributes) -> String {
    let title = device.get("name").map(plain).unwrap_or_default();
    let mut text = format!("{}\n", bold(&title));
    text.push_str(&facts(device));
    let sections = [
        ("mm_stat", Group::MmStat),
        ("io_stat", Group::IoStat),
        ("uzram", Group::Uzram),
    ];
    for (title, group) in sections {
        text.push_str(&format!("{}\n", bold(title)));
        text.push_str(&counters(device, group));
    }
    text
}

/// What the device is, and whatever a newer server says that this table does not know.
fn facts(device: &Attributes) -> String {
    let shown = |(name, value): (&String, &Value)| {
        let known = find(name);
        if name == "name" || known.is_some_and(|a| a.group != Group::Device) {
            return None;
        }
        let value = match known.map(|a| a.measure) {
            Some(Measure::Bytes) => bytes(value),
            _ => plain(value),
        };
        Some(vec![format!("  {name}"), value])
    };
    let rows: Vec<_> = device.iter().filter_map(shown).collect();
    columns(&rows, &[Align::Left, Align::Left])
}

fn bytes(value: &Value) -> String {
    match value.as_u64() {
        Some(bytes) => format!("{} ({bytes} bytes)", human(bytes)),
        None => plain(value),
    }
}

fn counters(device: &Attributes, group: Group) -> String {
    let of_group = |a: &&Attribute| a.group == group && a.access() != Access::Write;
    let row = |a: &Attribute| {
        let value = device.get(a.name)?;
        let (short, raw) = match (a.measure, value.as_u64()) {
            (Measure::Bytes, Some(bytes)) => (human(bytes), format!("{bytes} bytes")),
            (Measure::Ratio, _) => (ratio(Some(value)), String::new()),
            _ => (plain(value), String::new()),
        };
        Some(vec![
            format!("  {}", a.name),
            short,
            raw,
            a.about.to_owned(),
        ])
    };
    let rows: Vec<_> = TABLE.iter().filter(of_group).filter_map(row).collect();
    columns(
        &rows,
        &[Align::Left, Align::Right, Align::Right, Align::Left],
    )
}
