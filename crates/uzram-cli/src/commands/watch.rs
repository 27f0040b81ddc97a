//! `uzram stat --watch`: a line a disk again and again, as vmstat does, on terminals and in pipes alike.
//!
//! There is no `uzram top`: servers spend no time that belongs to one disk, so a full screen would show
//! the same lines.

use std::collections::HashMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use serde_json::Value;
use uzram_server::control::Attributes;
use uzram_server::size::human;
use uzram_server::state::StateDir;

use super::{disk, disks, number, plain, ratio};
use crate::failure::{Failure, Result};
use crate::output::{print_while_read, warn};

/// Seconds between two looks, at least and at most.
const SECONDS_MIN: f64 = 0.1;
const SECONDS_MAX: f64 = 86_400.0;
/// Lines after which a terminal sees the titles again.
const LINES_A_TITLE: u32 = 20;

/// Prints until nobody reads, or until the disk `name` is gone.
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

/// Those that answer; the others are named.
fn all(state: &StateDir) -> Result<Vec<Attributes>> {
    let answered = disks(state)?.into_iter().filter_map(|disk| {
        let attributes = disk.attributes;
        attributes
            .map_err(|failure| warn(&failure.to_string()))
            .ok()
    });
    Ok(answered.collect())
}

struct Printer {
    is_json: bool,
    repeats_titles: bool,
    lines_until_title: u32,
    /// When each disk was seen last, and what data it held then, in bytes.
    before: HashMap<String, (Duration, u64)>,
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

    /// Returns whether somebody still reads.
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
                text.push_str(&titles());
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
        let data = number(disk, "orig_data_size");
        let before = self.before.insert(name.clone(), (elapsed, data));
        let size = |attribute: &str| human(number(disk, attribute));
        let limit = match number(disk, "mem_limit") {
            0 => "-".to_owned(),
            bytes => human(bytes),
        };
        row([
            format!("{:.1}", elapsed.as_secs_f64()),
            name,
            human(data),
            before.map_or("-".to_owned(), |before| change(before, (elapsed, data))),
            size("compr_data_size"),
            size("mem_used_total"),
            limit,
            ratio(disk.get("compr_ratio")),
            number(disk, "failed_writes").to_string(),
            number(disk, "connections").to_string(),
        ])
    }
}

/// What came or went a second.
fn change(before: (Duration, u64), now: (Duration, u64)) -> String {
    let seconds = (now.0 - before.0).as_secs_f64().max(SECONDS_MIN / 2.0);
    let bytes = (now.1.abs_diff(before.1) as f64 / seconds) as u64;
    match now.1.cmp(&before.1) {
        std::cmp::Ordering::Less => format!("-{}", human(bytes)),
        std::cmp::Ordering::Equal => "0".into(),
        std::cmp::Ordering::Greater => format!("+{}", human(bytes)),
    }
}

fn titles() -> String {
    let titles = [
        "SECONDS", "NAME", "DATA", "CHANGE/S", "COMPR", "TOTAL", "LIMIT", "RATIO", "FAILED",
        "CLIENTS",
    ];
    row(titles.map(str::to_owned))
}

/// Widths are fixed: lines to come are not known.
fn row(cells: [String; 10]) -> String {
    let [
        seconds,
        name,
        data,
        change,
        compr,
        total,
        limit,
        ratio,
        failed,
        clients,
    ] = cells;
    format!(
        "{seconds:>8}  {name:<12}  {data:>9}  {change:>10}  {compr:>9}  {total:>9}  {limit:>9}  \
         {ratio:>6}  {failed:>7}  {clients:>7}\n"
    )
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
    fn changes_are_by_the_second() {
        let at = |seconds, bytes| (Duration::from_secs(seconds), bytes);
        assert_eq!(change(at(0, 0), at(2, 4 << 20)), "+2 MiB");
        assert_eq!(change(at(0, 4 << 20), at(4, 0)), "-1 MiB");
        assert_eq!(change(at(0, 5), at(1, 5)), "0");
        assert_eq!(
            change(at(1, 0), at(1, 1)),
            "+20 B",
            "no division by nothing"
        );
    }
}
