//! `uzram stat`.

use serde_json::Value;
use uzram_server::Latencies;
use uzram_server::attributes::{Attribute, Group, Measure, TABLE, find, raw_line};
use uzram_server::control::Attributes;
use uzram_server::size::human;

use super::runs::{detail, is_run, runs};
use super::{Dead, StateAt, dead, disk, disks, none, plain, quantile, ratio, watch};
use crate::args::StatArgs;
use crate::failure::{Failure, Result};
use crate::output::{Align, bold, columns, hanging, print, print_json, width, wrapped};

/// Fewest characters per line for a meaning. In a terminal that is narrower there are none.
const ABOUT_WIDTH_MIN: usize = 20;
/// The columns of counters.
const NAME: Align = Align::Left;
const FIGURE: Align = Align::Right;
const MEANING: Align = Align::Left;

/// Runs the command.
pub fn run(state: StateAt<'_>, args: &StatArgs) -> Result {
    let state = state.open_to_ask()?;
    if let (Some(name), true) = (&args.name, args.raw || args.watch.is_some())
        && state.run(name).is_some()
    {
        let text = format!("{name} is a program under a budget: leave --raw and --watch out");
        return Err(Failure::Usage(text));
    }
    if let Some(seconds) = args.watch {
        return watch::run(&state, args.name.as_deref(), seconds, args.json);
    }
    let devices = match &args.name {
        Some(name) => vec![disk(&state, name)?],
        None => {
            let runs = match args.raw {
                true => Vec::new(),
                false => runs(&state)?,
            };
            let all = disks(&state)?.into_iter().chain(runs);
            all.map(|disk| disk.attributes).collect::<Result<_>>()?
        }
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
    let dead: Vec<String> = match &args.name {
        Some(_) => Vec::new(),
        None => dead(&state).iter().map(Dead::line).collect(),
    };
    if devices.is_empty() && dead.is_empty() {
        return print(none(&state)?);
    }
    let tables = devices.iter().map(table).chain(dead);
    print(&tables.collect::<Vec<_>>().join("\n"))
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
    if is_run(device) {
        return detail(device);
    }
    let title = device.get("name").map(plain).unwrap_or_default();
    let counters = counters(device, width());
    format!("{}\n{}{counters}", bold(&title), facts(device, width()))
}

/// The group of the device's properties, with whatever a newer server adds.
fn facts(device: &Attributes, width: usize) -> String {
    let shown = |(name, value): (&String, &Value)| {
        let known = find(name);
        if name == "name" || known.is_some_and(|a| is_counter(a.group)) {
            return None;
        }
        let value = match known.map(|a| a.measure) {
            Some(Measure::Bytes) => bytes(value),
            _ => plain(value),
        };
        Some(vec![format!("  {name}"), value])
    };
    let rows: Vec<_> = device.iter().filter_map(shown).collect();
    let names = rows.iter().map(|row| row[0].chars().count());
    let indent = names.max().unwrap_or(0) + 2;
    let lines = rows.iter().map(|row| {
        let head = format!("{:indent$}", row[0]);
        hanging(&head, &row[1], width)
    });
    lines.collect()
}

fn is_counter(group: Group) -> bool {
    !matches!(group, Group::Device | Group::Server)
}

fn bytes(value: &Value) -> String {
    match value.as_u64() {
        Some(bytes) => format!("{} ({bytes} bytes)", human(bytes)),
        None => plain(value),
    }
}

/// All counters in one table, so that the sections' columns line up. A narrow terminal gets no
/// exact bytes, and meanings in several lines if necessary, or none.
fn counters(device: &Attributes, width: usize) -> String {
    let wide = table_of(&rows(device), &[NAME, FIGURE, FIGURE, MEANING]);
    if wide.lines().all(|line| line.chars().count() <= width) {
        return wide;
    }
    let mut narrow = rows(device);
    for row in narrow.iter_mut().filter(|row| row.len() > 1) {
        row.remove(2);
    }
    let figures = narrow
        .iter()
        .map(|row| row.iter().take(2).cloned().collect());
    let figures: Vec<Vec<String>> = figures.collect();
    let bare = columns(&figures, &[NAME, FIGURE]);
    let widths = bare.lines().map(|line| line.chars().count());
    let room = width.saturating_sub(widths.max().unwrap_or(0) + 2);
    if room < ABOUT_WIDTH_MIN {
        return table_of(&figures, &[NAME, FIGURE]);
    }
    let mut wrapped_rows = Vec::new();
    for row in narrow {
        let Some(about) = row.get(2) else {
            wrapped_rows.push(row);
            continue;
        };
        let mut first = row[..2].to_vec();
        for line in wrapped(about, room) {
            first.push(line);
            wrapped_rows.push(std::mem::replace(
                &mut first,
                vec![" ".into(), String::new()],
            ));
        }
    }
    table_of(&wrapped_rows, &[NAME, FIGURE, MEANING])
}

fn rows(device: &Attributes) -> Vec<Vec<String>> {
    let sections = [
        ("mm_stat", Group::MmStat),
        ("io_stat", Group::IoStat),
        ("bd_stat", Group::BdStat),
        ("uzram", Group::Uzram),
    ];
    let mut rows = Vec::new();
    for (title, group) in sections {
        rows.push(vec![title.to_owned()]);
        let of_it = TABLE.iter().filter(|attribute| attribute.group == group);
        rows.extend(of_it.filter_map(|attribute| counter(device, attribute)));
    }
    rows
}

/// Titles are bold.
fn table_of(rows: &[Vec<String>], align: &[Align]) -> String {
    let table = columns(rows, align);
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
        (Measure::Times, _) => {
            let times = Latencies::from_json(value);
            (quantile(&times, 0.5), quantile(&times, 0.99))
        }
        _ => (plain(value), String::new()),
    };
    Some(vec![
        format!("  {}", attribute.name),
        short,
        raw,
        attribute.about.to_owned(),
    ])
}
