//! `uzram list`.

use serde_json::{Value, json};
use uzram_server::control::Attributes;
use uzram_server::size::human;

use super::{Disk, StateAt, disks, none, number, plain, ratio};
use crate::args::ListArgs;
use crate::failure::Result;
use crate::output::{Align, bold, columns, print, print_json, warn};

/// What JSON has of each disk, by the attribute table's names.
const LISTED: [&str; 12] = [
    "name",
    "device",
    "pid",
    "comp_algorithm",
    "pool",
    "disksize",
    "orig_data_size",
    "compr_data_size",
    "mem_used_total",
    "compr_ratio",
    "connections",
    "endpoint",
];

const HEADER: [(&str, Align); 10] = [
    ("NAME", Align::Left),
    ("ALGORITHM", Align::Left),
    ("DISKSIZE", Align::Right),
    ("DATA", Align::Right),
    ("COMPR", Align::Right),
    ("TOTAL", Align::Right),
    ("RATIO", Align::Right),
    ("CLIENTS", Align::Right),
    ("PID", Align::Right),
    ("ENDPOINT", Align::Left),
];

/// Runs the command.
pub fn run(state: StateAt<'_>, args: &ListArgs) -> Result {
    let state = state.open_to_ask()?;
    let disks = disks(&state)?;
    if args.json {
        return print_json(&disks.iter().map(json).collect());
    }
    if disks.is_empty() {
        return print(none(&state)?);
    }
    let mut rows = vec![HEADER.map(|(title, _)| title.to_owned()).to_vec()];
    for disk in &disks {
        match &disk.attributes {
            Ok(attributes) => rows.push(row(attributes)),
            Err(failure) => warn(&failure.to_string()),
        }
    }
    let table = columns(&rows, &HEADER.map(|(_, align)| align));
    let (header, rest) = table.split_once('\n').unwrap_or((&table, ""));
    print(&format!("{}\n{rest}", bold(header)))
}

fn row(attributes: &Attributes) -> Vec<String> {
    let text = |name: &str| attributes.get(name).map(plain).unwrap_or_default();
    let size = |name: &str| human(number(attributes, name));
    vec![
        text("name"),
        // What does not compress is known by its kind.
        match text("device") {
            kind if kind == "zram" => text("comp_algorithm"),
            kind => kind,
        },
        size("disksize"),
        size("orig_data_size"),
        size("compr_data_size"),
        size("mem_used_total"),
        ratio(attributes.get("compr_ratio")),
        text("connections"),
        text("pid"),
        text("endpoint"),
    ]
}

fn json(disk: &Disk) -> Value {
    match &disk.attributes {
        Ok(attributes) => {
            let listed = |name: &&str| Some(((*name).to_owned(), attributes.get(*name)?.clone()));
            Value::Object(LISTED.iter().filter_map(listed).collect())
        }
        Err(failure) => json!({"name": disk.name, "pid": disk.pid, "error": failure.to_string()}),
    }
}
