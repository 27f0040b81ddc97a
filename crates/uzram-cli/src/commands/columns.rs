//! Columns of disks by name, as `zramctl` has them, for people and for scripts.

use std::path::Path;

use uzram_server::attachment::usage;
use uzram_server::control::Attributes;
use uzram_server::nearest::remedy;
use uzram_server::size::human;

use super::{number, plain, ratio};
use crate::args::show::ColumnArgs;
use crate::failure::{Failure, Result};
use crate::output::{Align, bold, columns, cut, width};

/// A column: its title, and its cell for a disk.
struct Column {
    title: &'static str,
    cell: Cell,
}

enum Cell {
    Text(fn(&Attributes) -> String),
    Count(fn(&Attributes) -> String),
    Bytes(&'static str),
}

const fn column(title: &'static str, cell: Cell) -> Column {
    Column { title, cell }
}

/// All of zramctl's, and our own behind them.
const COLUMNS: [Column; 17] = [
    column("NAME", Cell::Text(|disk| text(disk, "name"))),
    column("DISKSIZE", Cell::Bytes("disksize")),
    column("DATA", Cell::Bytes("orig_data_size")),
    column("COMPR", Cell::Bytes("compr_data_size")),
    column("ALGORITHM", Cell::Text(|disk| text(disk, "comp_algorithm"))),
    // One for each CPU, as in the kernel.
    column(
        "STREAMS",
        Cell::Count(|_| {
            std::thread::available_parallelism()
                .map_or(1, usize::from)
                .to_string()
        }),
    ),
    column("ZERO-PAGES", Cell::Count(|disk| text(disk, "same_pages"))),
    column("TOTAL", Cell::Bytes("mem_used_total")),
    column("MEM-LIMIT", Cell::Bytes("mem_limit")),
    column("MEM-USED", Cell::Bytes("mem_used_max")),
    column(
        "MIGRATED",
        Cell::Count(|disk| text(disk, "pages_compacted")),
    ),
    column(
        "COMP-RATIO",
        Cell::Count(|disk| ratio(disk.get("compr_ratio"))),
    ),
    column("MOUNTPOINT", Cell::Text(mount_point)),
    column("CLIENTS", Cell::Count(|disk| text(disk, "connections"))),
    column("PID", Cell::Count(|disk| text(disk, "pid"))),
    column("HOLDER", Cell::Count(|disk| text(disk, "holder"))),
    column("ENDPOINT", Cell::Text(|disk| text(disk, "endpoint"))),
];

/// The columns of `zramctl` without `--output`.
pub const ZRAMCTL: &str = "NAME,ALGORITHM,DISKSIZE,DATA,COMPR,TOTAL,STREAMS,MOUNTPOINT";

impl ColumnArgs {
    /// Whether anything differs from a plain listing.
    pub fn is_given(&self) -> bool {
        self.bytes || self.noheadings || self.raw || self.output_all || self.output.is_some()
    }
}

/// The table of `disks`, whose columns are those asked for, or else `default`.
pub fn table(disks: &[Attributes], args: &ColumnArgs, default: &str) -> Result<String> {
    let wanted = wanted(args, default)?;
    let titles = wanted.iter().map(|column| column.title.to_owned());
    let titles: Vec<String> = titles.collect();
    let rows = disks.iter().map(|disk| {
        let cells = wanted.iter().map(|column| match &column.cell {
            Cell::Text(cell) | Cell::Count(cell) => cell(disk),
            Cell::Bytes(name) if args.bytes => number(disk, name).to_string(),
            Cell::Bytes(name) => human(number(disk, name)),
        });
        cells.collect()
    });
    let has_titles = !args.noheadings;
    let titles = has_titles.then_some(titles).into_iter();
    let rows: Vec<Vec<String>> = titles.chain(rows).collect();
    if args.raw {
        return Ok(rows.iter().map(|row| raw(row)).collect());
    }
    let align = wanted.iter().map(|column| match column.cell {
        Cell::Text(_) => Align::Left,
        Cell::Count(_) | Cell::Bytes(_) => Align::Right,
    });
    let text = columns(&rows, &align.collect::<Vec<_>>());
    // Never wrapped: a terminal would mix the columns of one line with those of the next.
    let lines = text.lines().map(|line| cut(line, width()));
    let lines = lines.enumerate().map(|(index, line)| match index {
        0 if has_titles => format!("{}\n", bold(&line)),
        _ => format!("{line}\n"),
    });
    Ok(lines.collect())
}

fn wanted(args: &ColumnArgs, default: &str) -> Result<Vec<&'static Column>> {
    if args.output_all {
        return Ok(COLUMNS.iter().collect());
    }
    let output = args.output.as_deref().unwrap_or(default);
    let list = match output.strip_prefix('+') {
        Some(more) => format!("{default},{more}"),
        None => output.to_owned(),
    };
    let find = |name: &str| {
        let found = COLUMNS
            .iter()
            .find(|column| column.title.eq_ignore_ascii_case(name));
        found.ok_or_else(|| {
            let known = COLUMNS.map(|column| column.title);
            let text = format!("--output: no column {name:?}{}", remedy(name, &known));
            Failure::Usage(text)
        })
    };
    list.split(',').map(|name| find(name.trim())).collect()
}

/// Cells one blank apart, so that a script can split them: blanks within are escaped, as by zramctl.
fn raw(cells: &[String]) -> String {
    let escaped = |cell: &String| cell.replace('\\', "\\x5c").replace(' ', "\\x20");
    let cells: Vec<String> = cells.iter().map(escaped).collect();
    format!("{}\n", cells.join(" "))
}

fn text(disk: &Attributes, name: &str) -> String {
    disk.get(name).map(plain).unwrap_or_default()
}

/// The places where a block device is mounted, or `[SWAP]`.
fn mount_point(disk: &Attributes) -> String {
    let path = text(disk, "endpoint");
    let path = Path::new(&path);
    if !path.is_absolute() {
        return String::new();
    }
    if usage::is_swap(path) {
        return "[SWAP]".into();
    }
    let mounts = usage::mounts_of(path);
    let shown = mounts
        .iter()
        .map(|place| plain(&place.display().to_string().into()));
    shown.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn disk() -> Attributes {
        match json!({"name": "a b\\", "disksize": 1 << 30, "same_pages": 7, "endpoint": "nbd:"}) {
            Value::Object(attributes) => attributes,
            _ => unreachable!(),
        }
    }

    fn args(output: &str) -> ColumnArgs {
        ColumnArgs {
            output: Some(output.into()),
            ..ColumnArgs::default()
        }
    }

    #[test]
    fn columns_are_chosen_by_name() {
        let of = |args: &ColumnArgs| table(&[disk()], args, "NAME,DISKSIZE").unwrap();
        assert_eq!(
            of(&ColumnArgs::default()),
            "NAME  DISKSIZE\na b\\     1 GiB\n"
        );
        let bytes = ColumnArgs {
            bytes: true,
            noheadings: true,
            ..args("disksize,+")
        };
        assert!(table(&[], &bytes, "NAME").is_err());
        let bytes = ColumnArgs {
            output: Some("disksize".into()),
            ..bytes
        };
        assert_eq!(of(&bytes), "1073741824\n");
        let raw = ColumnArgs {
            raw: true,
            ..args("+ZERO-PAGES")
        };
        assert_eq!(
            of(&raw),
            "NAME DISKSIZE ZERO-PAGES\na\\x20b\\x5c 1\\x20GiB 7\n"
        );
        let refused = table(&[], &args("NAMES"), "NAME").unwrap_err().to_string();
        assert_eq!(refused, "--output: no column \"NAMES\"; did you mean NAME?");
        let all = ColumnArgs {
            output_all: true,
            ..ColumnArgs::default()
        };
        let titles = table(&[], &all, ZRAMCTL).unwrap();
        assert_eq!(titles.split_whitespace().count(), COLUMNS.len());
        assert_eq!(
            table(&[], &ColumnArgs::default(), ZRAMCTL)
                .unwrap()
                .split_whitespace()
                .count(),
            8
        );
    }
}
