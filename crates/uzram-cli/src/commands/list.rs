//! `uzram list`.

use serde_json::{Value, json};
use uzram_server::control::Attributes;
use uzram_server::size::human;

use super::runs::{self, runs};
use super::{Dead, Disk, StateAt, answered, columns, dead, disks, none, number, plain, ratio};
use crate::args::ListArgs;
use crate::failure::Result;
use crate::output::{Align, bold, columns as aligned, cut, print, print_json, width};

/// The fields of a disk in JSON, by the attribute table's names.
const LISTED: [&str; 14] = [
    "name",
    "device",
    "pid",
    "holder",
    "take_overs",
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
/// The columns of `--bytes` and the like without `--output`.
const USUAL: &str = "NAME,ALGORITHM,DISKSIZE,DATA,COMPR,TOTAL,COMP-RATIO,CLIENTS,PID,ENDPOINT";
/// The columns that a narrow terminal lacks, as endpoints have lines of their own there.
const LEFT_OUT: [&str; 3] = ["ENDPOINT", "PID", "CLIENTS"];
/// The next ones that are left out until the table fits.
const LEFT_OUT_NEXT: [&str; 3] = ["ALGORITHM", "COMPR", "DISKSIZE"];
/// Characters of a name in a narrow terminal.
const NARROW_NAME: usize = 12;

/// Runs the command.
pub fn run(state: StateAt<'_>, args: &ListArgs) -> Result {
    let state = state.open_to_ask()?;
    let disks = disks(&state)?;
    let dead = dead(&state);
    let runs = match args.columns.is_given() {
        true => Vec::new(),
        false => runs(&state)?,
    };
    if args.json {
        let all = disks.iter().map(json).chain(dead.iter().map(dead_json));
        return print_json(&all.chain(runs.iter().map(run_json)).collect());
    }
    if disks.is_empty() && dead.is_empty() && runs.is_empty() && !args.columns.is_given() {
        return print(none(&state)?);
    }
    let disks = answered(disks);
    if args.columns.is_given() {
        return print(&columns::table(&disks, &args.columns, USUAL)?);
    }
    let rows: Vec<_> = disks.iter().map(row).collect();
    let dead: Vec<String> = dead.iter().map(Dead::line).collect();
    let disks = [table(&rows, width()), dead.concat()].concat();
    let runs = runs::table(&answered(runs));
    let between = match disks.is_empty() || runs.is_empty() {
        true => "",
        false => "\n",
    };
    print(&[&disks, between, &runs].concat())
}

/// All attributes of a run; those of a disk are chosen.
fn run_json(run: &Disk) -> Value {
    match &run.attributes {
        Ok(attributes) => Value::Object(attributes.clone()),
        Err(_) => json(run),
    }
}

/// The rows under their titles. In a narrow terminal each endpoint has a line of its own: it is as long as
/// it is, so that it can be copied.
fn table(rows: &[Vec<String>], width: usize) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let wide = without(&[], rows);
    if fits(&wide, width) {
        return with_bold_titles(&wide, &[]);
    }
    let mut rows_cut = rows.to_vec();
    for row in &mut rows_cut {
        row[0] = cut(&row[0], NARROW_NAME);
    }
    let mut left_out = LEFT_OUT.to_vec();
    let mut next = LEFT_OUT_NEXT.into_iter();
    let table = loop {
        let table = without(&left_out, &rows_cut);
        match next.next() {
            Some(title) if !fits(&table, width) => left_out.push(title),
            _ => break table,
        }
    };
    let endpoints: Vec<&str> = rows
        .iter()
        .filter_map(|row| row.last())
        .map(String::as_str)
        .collect();
    with_bold_titles(&table, &endpoints)
}

/// The table of `rows` under their titles, but for the columns `left_out`.
fn without(left_out: &[&str], rows: &[Vec<String>]) -> String {
    let titles = HEADER.map(|(title, _)| title.to_owned()).to_vec();
    let is_kept = |column: &usize| !left_out.contains(&HEADER[*column].0);
    let kept: Vec<usize> = (0..HEADER.len()).filter(is_kept).collect();
    let shown = |row: &Vec<String>| kept.iter().map(|&column| row[column].clone()).collect();
    let rows: Vec<_> = [&titles].into_iter().chain(rows).map(shown).collect();
    let align: Vec<_> = kept.iter().map(|&column| HEADER[column].1).collect();
    aligned(&rows, &align)
}

fn fits(table: &str, width: usize) -> bool {
    table.lines().all(|line| line.chars().count() <= width)
}

/// `table` with its first line in bold, and below each other line the endpoint that belongs to it.
fn with_bold_titles(table: &str, endpoints: &[&str]) -> String {
    let mut lines = table.lines();
    let mut text = format!("{}\n", bold(lines.next().unwrap_or_default()));
    let mut endpoints = endpoints.iter();
    for line in lines {
        text.push_str(&format!("{line}\n"));
        if let Some(endpoint) = endpoints.next() {
            text.push_str(&format!("  {endpoint}\n"));
        }
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
        for (width, titles) in [
            (80, "NAME ALGORITHM DISKSIZE DATA COMPR TOTAL RATIO"),
            (60, "NAME DISKSIZE DATA COMPR TOTAL RATIO"),
            (40, "NAME DATA TOTAL RATIO"),
        ] {
            let narrow = table(&rows, width);
            let lines: Vec<_> = narrow.lines().collect();
            assert_eq!((lines.len(), lines[2]), (3, &*format!("  {endpoint}")));
            assert_eq!(
                lines[0].split_whitespace().collect::<Vec<_>>().join(" "),
                titles
            );
            for line in &lines[..2] {
                assert!(line.chars().count() <= width, "{line:?}");
            }
        }
    }
}
