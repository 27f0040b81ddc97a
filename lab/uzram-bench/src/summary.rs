//! `uzram-bench summary`: a report's JSON in a quarter of its length, for people and for the repository.
//!
//! Comment lines say what was measured where; then a line a figure. An empty case or variant is the
//! one of the line above. Four digits are kept: runs differ in the second.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::command::ignore_closed_pipe;
use crate::error::{Error, Result};
use crate::saved;

/// The arguments of `summary`.
#[derive(Clone, Debug, clap::Args)]
pub struct SummaryArgs {
    /// A report that --json wrote
    #[arg(value_name = "REPORT")]
    pub report: PathBuf,
}

const HEAD: &str = "case,variant,metric,unit,median,min,max,runs\n";

/// Prints the summary.
///
/// # Errors
/// [`Error::Usage`] if the file is no report, [`Error::Failed`] if it cannot be printed.
pub(crate) fn run(args: &SummaryArgs) -> Result<()> {
    let text = summary(&load(&args.report)?);
    let written = std::io::stdout().lock().write_all(text.as_bytes());
    let written = written.or_else(ignore_closed_pipe);
    written.map_err(|error| Error::io("standard output", error))
}

fn load(path: &Path) -> Result<Value> {
    let report: Value = saved::load(path)?;
    match report["results"].is_array() {
        true => Ok(report),
        false => Err(Error::Usage(format!(
            "report {}: has no results; name what --json wrote",
            path.display()
        ))),
    }
}

fn summary(report: &Value) -> String {
    let mut out = String::new();
    let machine = &report["machine"];
    let _ = writeln!(
        out,
        "# {}\n# uzram {}, profile {}; {} CPUs, {}, Linux {}",
        text(&report["command"]),
        text(&report["git"]),
        text(&report["profile"]),
        machine["cpus"],
        text(&machine["model"]),
        text(&machine["kernel"]),
    );
    for claim in rows(report, "claims") {
        let of = |field: &str| text(&claim[field]);
        let (case, claimed, found) = (of("case"), of("claim"), of("measured"));
        let _ = writeln!(out, "# {}: {case}: {claimed}: {found}", of("standing"));
    }
    out.push_str(HEAD);
    let mut above = (String::new(), String::new());
    for row in rows(report, "results") {
        figure(
            row,
            text(&row["variant"]),
            text(&row["unit"]),
            &mut above,
            &mut out,
        );
    }
    for row in rows(report, "ratios") {
        let sides = [&row["numerator"], &row["denominator"]].map(text);
        figure(row, sides.join(" / "), "x".to_owned(), &mut above, &mut out);
    }
    out
}

fn figure(
    row: &Value,
    variant: String,
    unit: String,
    above: &mut (String, String),
    out: &mut String,
) {
    let case = text(&row["case"]);
    let is_new = above.0 != case;
    let shown_case = if is_new { case.as_str() } else { "" };
    let is_same = !is_new && above.1 == variant;
    let shown_variant = if is_same { "" } else { variant.as_str() };
    let metric = text(&row["metric"]);
    let _ = write!(out, "{shown_case},{shown_variant},{metric},{unit}");
    for value in ["median", "min", "max"] {
        let _ = write!(out, ",{}", short(row[value].as_f64().unwrap_or(f64::NAN)));
    }
    let _ = writeln!(out, ",{}", row["runs"]);
    *above = (case, variant);
}

fn rows<'a>(report: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    report[name].as_array().into_iter().flatten()
}

/// A field's text, in one line and without the comma that ends it.
fn text(value: &Value) -> String {
    let text = value.as_str().unwrap_or_default();
    text.replace(',', ";").replace('\n', " ")
}

/// Four digits of `value`, or all before its point.
fn short(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let magnitude = value.abs().log10().floor() as i32;
    let decimals = (3 - magnitude).clamp(0, 12) as usize;
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_digits_are_kept_and_nothing_before_the_point_is_lost() {
        for (value, shown) in [
            (0.0, "0"),
            (1.0, "1"),
            (123_456.7, "123457"),
            (0.000_123_456, "0.0001235"),
            (9.999_96, "10"),
            (-2.5, "-2.5"),
        ] {
            assert_eq!(short(value), shown);
        }
    }

    #[test]
    fn every_figure_has_a_line_and_what_repeats_is_left_empty() {
        let row = |case: &str, variant: &str, metric: &str| {
            serde_json::json!({"case": case, "variant": variant, "metric": metric, "unit": "ns",
                "min": 1.0, "median": 2.0, "max": 3.25, "runs": 7})
        };
        let report = serde_json::json!({
            "command": "uzram-bench x", "git": "abc", "profile": "release",
            "machine": {"cpus": 2, "model": "a CPU", "kernel": "6.1"},
            "results": [row("a", "uzram", "time"), row("a", "uzram", "worst"), row("a", "b,c", "time"),
                row("d", "b,c", "time")],
            "ratios": [{"case": "d", "numerator": "uzram", "denominator": "b", "metric": "time",
                "min": 1.0, "median": 2.0, "max": 3.0, "runs": 7}],
            "claims": [{"case": "d", "claim": "fast", "measured": "1 ns", "standing": "held"}],
        });
        let expected = "# uzram-bench x\n# uzram abc, profile release; 2 CPUs, a CPU, Linux 6.1\n\
            # held: d: fast: 1 ns\ncase,variant,metric,unit,median,min,max,runs\n\
            a,uzram,time,ns,2,1,3.25,7\n,,worst,ns,2,1,3.25,7\n,b;c,time,ns,2,1,3.25,7\n\
            d,b;c,time,ns,2,1,3.25,7\n,uzram / b,time,x,2,1,3,7\n";
        assert_eq!(summary(&report), expected);
    }
}
