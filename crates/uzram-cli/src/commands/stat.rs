//! `uzram stat`.

use serde_json::Value;
use uzram_server::attributes::{Attribute, Group, Measure, TABLE, find, raw_line};
use uzram_server::control::Attributes;
use uzram_server::size::human;

use super::{StateAt, disk, disks, none, plain, ratio, watch};
use crate::args::StatArgs;
use crate::failure::{Failure, Result};
use crate::output::{Align, bold, columns, print, print_json};

/// Runs the command.
pub fn run(state: StateAt<'_>, args: &StatArgs) -> Result {
    let state = state.open_to_ask()?;
    if let Some(seconds) = args.watch {
        return watch::run(&state, args.name.as_deref(), seconds, args.json);
    }
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
        return print(none(&state)?);
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
    format!("{}\n{}{}", bold(&title), facts(device), counters(device))
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

/// All counters in one table, so that the sections' columns line up.
fn counters(device: &Attributes) -> String {
    let sections = [
        ("mm_stat", Group::MmStat),
        ("io_stat", Group::IoStat),
        ("uzram", Group::Uzram),
    ];
    let mut rows = Vec::new();
    for (title, group) in sections {
        rows.push(vec![title.to_owned()]);
        rows.extend(
            TABLE
                .iter()
                .filter(|a| a.group == group)
                .filter_map(|a| counter(device, a)),
        );
    }
    let table = columns(
        &rows,
        &[Align::Left, Align::Right, Align::Right, Align::Left],
    );
    let emphasised = |line: &str| match line.starts_with(' ') {
        true => format!("{line}\n"),
        false => format!("{}\n", bold(line)),
    };
    table.lines().map(emphasised).collect()
}

fn counter(device: &Attributes, attribute: &Attribute) -> Option<Vec<String>> {
    let value = device.get(attribute.name)?;
    let (short, raw) = match (attribute.measure, value.as_u64()) {
        (Measure::Bytes, Some(bytes)) => (human(bytes), format!("{bytes} bytes")),
        (Measure::Ratio, _) => (ratio(Some(value)), String::new()),
        _ => (plain(value), String::new()),
    };
    Some(vec![
        format!("  {}", attribute.name),
        short,
        raw,
        attribute.about.to_owned(),
    ])
}
