//! A report in a few lines, for people who did not write the suite.
//!
//! A line a case: what uzram took or did, and what the others did. All figures are in the table, which
//! `--table` prints.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use crate::report::{Block, Measured, Report, decimals, wrap};

/// Cases of a block that are shown.
const CASES_MAX: usize = 8;
/// Warnings among a block's notes begin with this.
const WARNING: &str = "BUSY";
const INDENT: usize = 2;

/// Prints the lines.
pub(crate) fn print(report: &Report) -> io::Result<()> {
    io::stdout().lock().write_all(render(report).as_bytes())
}

fn render(report: &Report) -> String {
    let mut out = String::new();
    for block in &report.blocks {
        render_block(block, &mut out);
    }
    for missing in &report.missing {
        let line = format!("Not compared with {}: {}.", missing.peer, missing.reason);
        wrap(&line, 0, &mut out);
    }
    if let Some(reason) = &report.stopped {
        wrap(
            &format!("Only a part of what was asked for: {reason}."),
            0,
            &mut out,
        );
    }
    let more = "These are medians of several runs. All figures: --table, --json FILE or --html FILE; what is \
                aimed at: --aims; what others published: --published.";
    wrap(more, 0, &mut out);
    out
}

fn render_block(block: &Block, out: &mut String) {
    wrap(&block.title, 0, out);
    for warning in block.notes.iter().filter(|note| note.starts_with(WARNING)) {
        wrap(warning, INDENT, out);
    }
    let cases = cases(block);
    for case in cases.iter().take(CASES_MAX) {
        wrap(&sentence(case), INDENT, out);
    }
    if cases.len() > CASES_MAX {
        let _ = writeln!(out, "{:INDENT$}and {} more", "", cases.len() - CASES_MAX);
    }
    out.push('\n');
}

/// The figures of each case and metric: of those that are compared, else of all.
fn cases(block: &Block) -> Vec<Vec<&Measured>> {
    let is_compared = |row: &Measured| {
        let mut ratios = block.ratios.iter();
        ratios.any(|ratio| ratio.case == row.case && ratio.metric == row.metric)
    };
    let mut cases: Vec<Vec<&Measured>> = Vec::new();
    let rows = block.results.iter();
    for row in rows.filter(|row| block.ratios.is_empty() || is_compared(row)) {
        let is_same =
            |case: &&mut Vec<&Measured>| case[0].case == row.case && case[0].metric == row.metric;
        match cases.iter_mut().find(is_same) {
            Some(case) => case.push(row),
            None => cases.push(vec![row]),
        }
    }
    cases
}

/// `random read, time per page: uzram 512 ns, raw-codec 480 ns`
fn sentence(case: &[&Measured]) -> String {
    let name = case[0].case.rsplit('/').next().unwrap_or_default();
    let metric = case[0].metric.replace('_', " ");
    let figures = case.iter().map(|row| {
        let decimals = decimals(row.spread.median);
        format!(
            "{} {:.decimals$} {}",
            row.variant, row.spread.median, row.unit
        )
    });
    let figures: Vec<String> = figures.collect();
    format!("{name}, {metric}: {}", figures.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::report::{Built, Missing, Ratio};
    use crate::sample::Series;

    fn report() -> Report {
        let series = Series::from(vec![512.25, 511.0, 513.0]);
        let row = |case: &str, variant: &str| Measured {
            case: format!("heap/lz4/{case}"),
            variant: variant.to_owned(),
            metric: "time_per_page",
            unit: "ns",
            spread: series.spread().unwrap(),
            working_set_bytes: 1,
            pinned: None,
        };
        let compared = ["first-write", "random-read"];
        let ratios = compared.iter().filter_map(|case| {
            let sides = (("uzram", &series), ("raw-codec", &series));
            Ratio::of(
                &format!("heap/lz4/{case}"),
                "time_per_page",
                sides.0,
                sides.1,
            )
        });
        let sides = [
            "uzram",
            "raw-codec",
            "a-peer-with-a-long-name",
            "and-another-such-peer",
        ];
        let cases = ["first-write", "random-read", "not-compared"];
        let results = cases
            .iter()
            .flat_map(|case| sides.iter().map(move |side| row(case, side)));
        let block = Block {
            title: "heap, lz4".to_owned(),
            notes: vec![
                "a detail".to_owned(),
                "BUSY MACHINE: do not quote".to_owned(),
            ],
            results: results.collect(),
            ratios: ratios.collect(),
            ..Block::default()
        };
        let many = Block {
            title: "many".to_owned(),
            results: (0..20).map(|n| row(&n.to_string(), "uzram")).collect(),
            ..Block::default()
        };
        Report {
            suite: "store",
            command: String::new(),
            built: Built::this(),
            machine: Machine::survey(),
            corpora: Vec::new(),
            blocks: vec![block, many],
            missing: vec![Missing {
                peer: "kernel-zram".to_owned(),
                reason: "not root".to_owned(),
            }],
            stopped: None,
            headline: None,
        }
    }

    #[test]
    fn what_is_compared_stands_in_a_sentence_and_all_lines_fit_a_terminal() {
        let text = render(&report());
        let start = "heap, lz4\n  BUSY MACHINE: do not quote\n  \
                     first-write, time per page: uzram 512 ns, raw-codec 512 ns,";
        assert!(text.starts_with(start), "{text}");
        assert!(
            !text.contains("not-compared") && !text.contains("a detail"),
            "{text}"
        );
        assert!(text.contains("\n  and 12 more\n"), "{text}");
        assert!(
            text.contains("Not compared with kernel-zram: not root.\n"),
            "{text}"
        );
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
    }
}
