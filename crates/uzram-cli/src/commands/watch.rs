//! `uzram stat --watch`: a line per disk again and again, as vmstat does, on terminals and in
//! pipes alike.

use std::collections::HashMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use serde_json::Value;
use uzram_server::control::Attributes;
use uzram_server::size::human;
use uzram_server::state::StateDir;

use super::{answered, disk, disks, number, plain, ratio};
use crate::failure::{Failure, Result};
use crate::output::{cut, print_while_read, width};

/// Seconds between two looks, at least and at most.
const SECONDS_MIN: f64 = 0.1;
const SECONDS_MAX: f64 = 86_400.0;
/// Lines after which a terminal sees the titles again.
const LINES_A_TITLE: u32 = 20;
/// Characters of a name.
const NAME_WIDTH: usize = 12;

/// A column of the table.
#[derive(Clone, Copy)]
struct Column {
    title: &'static str,
    width: usize,
    /// Characters per line of the narrowest terminal that has the column.
    least_width: usize,
}

/// All of them take 79 characters, those of the narrowest terminal 39.
const COLUMNS: [Column; 9] = [
    column("SECONDS", 7, 56),
    column("NAME", NAME_WIDTH, 0),
    column("READ/S", 8, 0),
    column("WRITE/S", 8, 0),
    column("DATA", 8, 48),
    column("TOTAL", 8, 0),
    column("LIMIT", 8, 72),
    column("RATIO", 6, 63),
    column("FAILED", 6, 79),
];

const fn column(title: &'static str, width: usize, least_width: usize) -> Column {
    Column {
        title,
        width,
        least_width,
    }
}

/// Prints until the reader is gone, or the disk `name` is.
pub fn run(state: &StateDir, name: Option<&str>, seconds: f64, is_json: bool) -> Result {
    if !(SECONDS_MIN..=SECONDS_MAX).contains(&seconds) {
        let text = format!("--watch {seconds}: must be {SECONDS_MIN} to {SECONDS_MAX} seconds");
        return Err(Failure::Usage(text));
    }
    let start = Instant::now();
    let mut printer = Printer::new(is_json);
    for round in 0u32.. {
        let due = start + Duration::from_secs_f64(seconds) * round;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let seen = match name {
            Some(name) => vec![disk(state, name)?],
            None => all(state)?,
        };
        if !printer.show(start.elapsed(), &seen)? {
            break;
        }
    }
    Ok(())
}

/// The disks that answer. The others are named.
fn all(state: &StateDir) -> Result<Vec<Attributes>> {
    Ok(answered(disks(state)?))
}

/// The counters of moved bytes at some time.
#[derive(Clone, Copy)]
struct Seen {
    at: Duration,
    read_bytes: u64,
    write_bytes: u64,
}

struct Printer {
    is_json: bool,
    repeats_titles: bool,
    lines_until_title: u32,
    /// For each disk the time of the last look, and the bytes read from and written to it by then.
    before: HashMap<String, Seen>,
}

impl Printer {
    fn new(is_json: bool) -> Printer {
        Printer {
            is_json,
            repeats_titles: std::io::stdout().is_terminal(),
            lines_until_title: 0,
            before: HashMap::new(),
        }
    }

    /// Returns whether there is still a reader.
    fn show(&mut self, elapsed: Duration, disks: &[Attributes]) -> Result<bool> {
        let mut text = String::new();
        if disks.is_empty() && !self.is_json {
            text.push_str("No disk is served.\n");
        }
        for disk in disks {
            if self.is_json {
                text.push_str(&json(elapsed, disk));
                continue;
            }
            if self.lines_until_title == 0 {
                text.push_str(&row(&COLUMNS.map(|column| column.title), width()));
                let again = if self.repeats_titles {
                    LINES_A_TITLE
                } else {
                    u32::MAX
                };
                self.lines_until_title = again;
            }
            self.lines_until_title -= 1;
            text.push_str(&self.line(elapsed, disk));
        }
        print_while_read(&text)
    }

    fn line(&mut self, elapsed: Duration, disk: &Attributes) -> String {
        let name = disk.get("name").map(plain).unwrap_or_default();
        let now = Seen {
            at: elapsed,
            read_bytes: number(disk, "read_bytes"),
            write_bytes: number(disk, "write_bytes"),
        };
        let before = self.before.insert(name.clone(), now);
        let a_second = |bytes: fn(&Seen) -> u64| match &before {
            Some(before) => rate(now.at - before.at, bytes(before), bytes(&now)),
            None => "-".to_owned(),
        };
        let size = |attribute: &str| human(number(disk, attribute));
        let limit = match number(disk, "mem_limit") {
            0 => "-".to_owned(),
            bytes => human(bytes),
        };
        row(
            &[
                &format!("{:.1}", elapsed.as_secs_f64()),
                &cut(&name, NAME_WIDTH),
                &a_second(|seen| seen.read_bytes),
                &a_second(|seen| seen.write_bytes),
                &size("orig_data_size"),
                &size("mem_used_total"),
                &limit,
                &ratio(disk.get("compr_ratio")),
                &number(disk, "failed_writes").to_string(),
            ],
            width(),
        )
    }
}

/// Bytes per second. A reset in between starts the counter afresh.
fn rate(time: Duration, before: u64, now: u64) -> String {
    let seconds = time.as_secs_f64().max(SECONDS_MIN / 2.0);
    let bytes = now.checked_sub(before).unwrap_or(now);
    match bytes {
        0 => "0".to_owned(),
        bytes => human((bytes as f64 / seconds) as u64),
    }
}

/// A cell for each column, in as many columns as fit. Their widths are fixed, because later lines are not
/// known.
fn row(cells: &[&str; COLUMNS.len()], width: usize) -> String {
    let kept = |column: &Column| column.least_width <= width;
    let mut line = String::new();
    for (column, cell) in COLUMNS.iter().zip(cells).filter(|(column, _)| kept(column)) {
        let width = column.width;
        match column.title {
            "NAME" => line.push_str(&format!("{cell:<width$} ")),
            _ => line.push_str(&format!("{cell:>width$} ")),
        }
    }
    format!("{}\n", line.trim_end())
}

fn json(elapsed: Duration, disk: &Attributes) -> String {
    let mut object = Attributes::new();
    let milliseconds = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
    object.insert("elapsed_ms".into(), milliseconds.into());
    object.extend(disk.clone());
    format!("{}\n", Value::Object(object))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_by_the_second() {
        let of = |seconds, before, now| rate(Duration::from_secs(seconds), before, now);
        assert_eq!(of(2, 0, 4 << 20), "2 MiB");
        assert_eq!(of(4, 4 << 20, 4 << 20), "0");
        assert_eq!(of(1, 4 << 20, 1 << 20), "1 MiB", "reset in between");
        assert_eq!(of(0, 1, 2), "20 B", "no division by nothing");
    }

    #[test]
    fn a_line_fits_a_terminal() {
        let long = "1023 MiB";
        let name = cut("a-name-of-thirty-two-characters0", NAME_WIDTH);
        let cells = [
            "86400.0", &name, long, long, long, long, long, "999.99", "0",
        ];
        for width in 39..=80 {
            for cells in [cells, COLUMNS.map(|column| column.title)] {
                let line = row(&cells, width);
                let line = line.trim_end();
                assert!(line.chars().count() <= width, "{width}: {line:?}");
            }
        }
        let titles = |width| row(&COLUMNS.map(|column| column.title), width);
        let shown = |width| {
            titles(width)
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(shown(38), "NAME READ/S WRITE/S TOTAL");
        assert_eq!(shown(60), "SECONDS NAME READ/S WRITE/S DATA TOTAL");
        assert_eq!(shown(80), shown(usize::MAX));
        assert_eq!(shown(80).split(' ').count(), COLUMNS.len());
    }
}
