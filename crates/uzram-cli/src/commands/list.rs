//! `uzram list`.

use serde_json::{Value, json};
use uzram_server::control::Attributes;
use uzram_server::size::human;

use super::{Dead, Disk, StateAt, dead, disks, none, number, plain, ratio};
use crate::args::ListArgs;
use crate::failure::Result;
use crate::output::{Align, bold, columns, cut, print, print_json, warn, width};

/// The fields of a disk in JSON, by the attribute table's names.
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
/// The columns that a narrow terminal has, before the endpoint's own line.
const NARROW: usize = 7;
/// Characters of a name in a narrow terminal.
const NARROW_NAME: usize = 12;

/// Runs the command.
pub fn run(state: StateAt<'_>, args: &ListArgs) -> Result {
    let state = state.open_to_ask()?;
    let disks = disks(&state)?;
    let dead = dead(&state);
    if args.json {
        let all = disks.iter().map(json).chain(dead.iter().map(dead_json));
        return print_json(&all.collect());
    }
    if disks.is_empty() && dead.is_empty() {
        return print(none(&state)?);
    }
    let mut rows = Vec::new();
    for disk in &disks {
        match &disk.attributes {
            Ok(attributes) => rows.push(row(attributes)),
            Err(failure) => warn(&failure.to_string()),
        }
    }
    let dead: Vec<String> = dead.iter().map(Dead::line).collect();
    print(&[table(&rows, width()), dead.concat()].concat())
}

/// The rows under their titles; in a narrow terminal each endpoint has a line of its own.
fn table(rows: &[Vec<String>], width: usize) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let titles = HEADER.map(|(title, _)| title.to_owned()).to_vec();
    let aligned = |rows: Vec<Vec<String>>| columns(&rows, &HEADER.map(|(_, align)| align));
    let wide = aligned([std::slice::from_ref(&titles), rows].concat());
    let with_bold_titles = |table: &str| match table.split_once('\n') {
        Some((titles, rest)) => format!("{}\n{rest}", bold(titles)),
        None => table.to_owned(),
    };
    if wide.lines().all(|line| line.chars().count() <= width) {
        return with_bold_titles(&wide);
    }
    let narrow = |row: &Vec<String>| {
        let mut row = row[..NARROW].to_vec();
        row[0] = cut(&row[0], NARROW_NAME);
        row
    };
    let table = aligned([&titles].into_iter().chain(rows).map(narrow).collect());
    let mut lines = table.lines();
    let mut text = format!("{}\n", bold(lines.next().unwrap_or_default()));
    for (line, row) in lines.zip(rows) {
        let endpoint = row.last().map_or("", String::as_str);
        text.push_str(&format!("{line}\n  {endpoint}\n"));
    }
    text
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

/// Without `pid`: another process may have that number by now.
fn dead_json(dead: &Dead) -> Value {
    let remedy = format!("uzram down {}", dead.name);
    json!({"name": dead.name, "state": "dead", "dead_pid": dead.pid, "remedy": remedy})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_terminal_has_endpoints_on_lines_of_their_own() {
        let endpoint = "nbd+unix:///scratch?socket=/run/uzram/scratch.nbd";
        let row = [
            "a-name-of-thirty-two-characters0",
            "deflate",
            "1023 MiB",
            "99.9 MiB",
            "99.9 MiB",
            "99.9 MiB",
            "2.86",
            "1",
            "4194304",
            endpoint,
        ];
        let rows = [row.map(str::to_owned).to_vec()];
        let wide = table(&rows, usize::MAX);
        assert_eq!(wide.lines().count(), 2, "{wide}");
        let narrow = table(&rows, 80);
        let lines: Vec<_> = narrow.lines().collect();
        assert_eq!((lines.len(), lines[2]), (3, &*format!("  {endpoint}")));
        for line in lines {
            assert!(line.chars().count() <= 80, "{line:?}");
        }
    }
}
