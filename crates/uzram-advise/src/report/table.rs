//! The report for people: aligned columns, aims beside what was measured.

use std::fmt::Write as _;
use std::io::{self, Write};

use super::block::{Aim, Block, Measured, Ratio, Report, belongs};
use super::claim::Claim;

const RIGHT_ALIGNED: [bool; COLUMNS] = [false, false, true, false, true, false, false];
const COLUMNS: usize = 7;
/// Longest line, in characters: a terminal's usual width.
const WIDTH: usize = 80;
const HEAD: [&str; COLUMNS] = [
    "case",
    "variant",
    "median",
    "min .. max",
    "ratio",
    "of",
    "aim",
];

/// The columns of the two tables that a list becomes where it is wider than a terminal.
const FIGURES: [usize; 4] = [0, 1, 2, 3];
const RATIOS: [usize; 4] = [0, 5, 4, 6];

type Cells = [String; COLUMNS];

/// Prints the report.
pub fn print(report: &Report) -> io::Result<()> {
    io::stdout().lock().write_all(render(report).as_bytes())
}

fn render(report: &Report) -> String {
    let mut out = String::new();
    let machine = &report.machine;
    let micros =
        |ns: Option<u64>| ns.map_or("-".to_owned(), |ns| format!("{:.1} us", ns as f64 / 1e3));
    let text = format!(
        "uzram {}, profile {}; {} CPUs, {}, Linux {}, {:.1} GiB; a wake-up takes {} on \
         the same CPU, {} to another",
        report.built.git,
        report.built.profile,
        machine.cpus,
        machine.model,
        machine.kernel,
        machine.memory_bytes as f64 / f64::from(1u32 << 30),
        micros(machine.wakeup_same_cpu_ns),
        micros(machine.wakeup_cross_cpu_ns),
    );
    wrap(&text, 0, &mut out);
    for block in &report.blocks {
        render_block(block, &mut out);
    }
    for missing in &report.missing {
        out.push('\n');
        let text = format!("missing peer {}: {}", missing.peer, missing.reason);
        wrap(&text, 0, &mut out);
    }
    if let Some(reason) = &report.stopped {
        let _ = writeln!(out, "\nONLY A PART: {reason}");
    }
    out
}

fn render_block(block: &Block, out: &mut String) {
    out.push('\n');
    wrap(&block.title, 0, out);
    for note in &block.notes {
        wrap(note, 2, out);
    }
    for matrix in &block.matrices {
        out.push('\n');
        matrix.render(block, out);
    }
    if block.matrices.is_empty() {
        render_list(block, out);
    }
    render_claims(block, out);
}

fn render_list(block: &Block, out: &mut String) {
    let mut rows: Vec<Vec<String>> = vec![HEAD.map(str::to_owned).to_vec()];
    for measured in &block.results {
        let lines = lines(block, measured, label(block, measured));
        rows.extend(lines.into_iter().map(|line| line.to_vec()));
    }
    let says = |column: &usize| rows[1..].iter().any(|row| !row[*column].is_empty());
    let all: Vec<usize> = (0..COLUMNS).filter(says).collect();
    if parts(2, &widths(&pick(&rows, &all))).len() == 1 {
        return align_list(&rows, &all, out);
    }
    // Too wide together: the figures, then the ratios, which name the variant.
    align_list(&rows, &FIGURES, out);
    let ratios: Vec<usize> = RATIOS.into_iter().filter(says).collect();
    if ratios.len() > 1 {
        out.push('\n');
        align_list(&rows, &ratios, out);
    }
}

fn align_list(rows: &[Vec<String>], columns: &[usize], out: &mut String) {
    let right: Vec<bool> = columns.iter().map(|&at| RIGHT_ALIGNED[at]).collect();
    align_by(2, &pick(rows, columns), &right, out);
}

fn pick(rows: &[Vec<String>], columns: &[usize]) -> Vec<Vec<String>> {
    let row = |row: &Vec<String>| columns.iter().map(|&at| row[at].clone()).collect();
    rows.iter().map(row).collect()
}

/// The last part of a case's name, with the measure where the case has several.
fn label(block: &Block, measured: &Measured) -> String {
    let case = measured.case.rsplit('/').next().unwrap_or_default();
    let is_other =
        |other: &Measured| other.case == measured.case && other.metric != measured.metric;
    match block.results.iter().any(is_other) {
        true => format!("{case}, {}", measured.metric.replace('_', " ")),
        false => case.to_owned(),
    }
}

/// Each claim with how it stands, what was measured, and why.
fn render_claims(block: &Block, out: &mut String) {
    if !block.claims.is_empty() {
        out.push('\n');
    }
    let mut said = "";
    for claim in &block.claims {
        let Claim {
            claim: text,
            measured,
            why,
            ..
        } = claim;
        let line = format!("{}: {text}: {measured}", claim.standing.name());
        wrap(&line, 2, out);
        // A reason of several claims in a row stands with the first.
        if why != said {
            wrap(why, 6, out);
        }
        said = why;
    }
}

/// Appends `text` in lines of at most 80 characters, the first one indented by `indent`.
pub fn wrap(text: &str, indent: usize, out: &mut String) {
    let mut column = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if column == 0 || column + 1 + length > WIDTH {
            let indent = if column == 0 { indent } else { 6 };
            let newline = if column == 0 { "" } else { "\n" };
            let _ = write!(out, "{newline}{:indent$}{word}", "");
            column = indent + length;
        } else {
            let _ = write!(out, " {word}");
            column += 1 + length;
        }
    }
    if column > 0 {
        out.push('\n');
    }
}

/// A figure's line, and one more for every further ratio of it.
fn lines(block: &Block, measured: &Measured, case: String) -> Vec<Cells> {
    let spread = measured.spread;
    let decimals = decimals(spread.median);
    let median = format!("{:.decimals$} {}", spread.median, measured.unit);
    let range = format!("{:.decimals$} .. {:.decimals$}", spread.min, spread.max);
    let ours = block.ratios.iter().filter(|ratio| belongs(ratio, measured));
    let ratios: Vec<[String; 3]> = ours.map(ratio_cells).collect();
    let line = |nth: usize| {
        let [median, range] = match nth {
            0 => [median.clone(), range.clone()],
            _ => Default::default(),
        };
        let [value, of, aim] = ratios.get(nth).cloned().unwrap_or_default();
        let (case, variant) = (case.clone(), measured.variant.clone());
        [case, variant, median, range, value, of, aim]
    };
    (0..ratios.len().max(1)).map(line).collect()
}

fn ratio_cells(ratio: &Ratio) -> [String; 3] {
    let spread = ratio.spread;
    let aim = ratio.aim.map(|aim| {
        let met = if aim.is_met(spread) { "met" } else { "MISSED" };
        let bound = match aim {
            Aim::AtMost(limit) => format!("<= {limit}"),
            Aim::AtLeast(limit) => format!(">= {limit}"),
            Aim::MoreThan(limit) => format!("> {limit}"),
            Aim::Within(tolerance) => format!("1 +- {tolerance}"),
        };
        format!("{bound} {met}")
    });
    [
        format!(
            "{:.3} ({:.3} .. {:.3})",
            spread.median, spread.min, spread.max
        ),
        format!("{} / {}", ratio.numerator, ratio.denominator),
        aim.unwrap_or_default(),
    ]
}

/// Digits after the point with which people read `value`.
#[must_use]
pub fn decimals(value: f64) -> usize {
    match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 3,
    }
}

/// Appends `rows` of equally many cells in aligned columns. A table that is wider than a terminal comes in
/// parts, each with the first column. A row that says nothing in a part is left out there.
pub fn align(rows: &[Vec<String>], right_aligned: &[bool], out: &mut String) {
    align_by(1, rows, right_aligned, out);
}

/// The same with the first `keys` columns in each part. They are blank where they repeat the row above.
fn align_by(keys: usize, rows: &[Vec<String>], right_aligned: &[bool], out: &mut String) {
    let widths = widths(rows);
    for (nth, part) in parts(keys, &widths).into_iter().enumerate() {
        if nth > 0 {
            out.push('\n');
        }
        let says = |row: &&Vec<String>| {
            let mut others = part[keys.min(part.len())..].iter();
            part.len() <= keys || others.any(|&column| !row[column].is_empty())
        };
        let mut above: &[String] = &[];
        for row in rows.iter().filter(says) {
            let mut line = String::from(" ");
            for &column in &part {
                let repeats = column < keys && above.get(..=column) == Some(&row[..=column]);
                let cell = if repeats { "" } else { &row[column] };
                let width = widths[column];
                let _ = if right_aligned[column] {
                    write!(line, " {cell:>width$} ")
                } else {
                    write!(line, " {cell:<width$} ")
                };
            }
            let _ = writeln!(out, "{}", line.trim_end());
            above = row;
        }
    }
}

/// The widest cell of each column, in characters.
fn widths(rows: &[Vec<String>]) -> Vec<usize> {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    (0..columns)
        .map(|column| width(column).unwrap_or(0))
        .collect()
}

/// The columns of each part of a table whose columns are so wide.
fn parts(keys: usize, widths: &[usize]) -> Vec<Vec<usize>> {
    // A blank in front, and one on each side of a cell; the last is cut off.
    let total = |columns: &[usize]| -> usize { columns.iter().map(|&at| widths[at] + 2).sum() };
    let keys: Vec<usize> = (0..widths.len().min(keys)).collect();
    let mut parts = vec![keys.clone()];
    for (column, width) in widths.iter().enumerate().skip(keys.len()) {
        let last = parts.last_mut().expect("there is one from the start");
        if last.len() > keys.len() && total(last) + width + 2 > WIDTH {
            parts.push(keys.clone());
        }
        let last = parts.last_mut().expect("there is one from the start");
        last.push(column);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_aligned_and_marks_aims_and_missing_peers() {
        let text = render(&crate::report::tests::sample());
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            text.contains("2 CPUs, some CPU, Linux 6.1, 1.0 GiB"),
            "{text}"
        );
        let ours = lines.iter().find(|line| line.contains("  uzram ")).unwrap();
        let theirs = lines
            .iter()
            .find(|line| line.contains("  raw-codec "))
            .unwrap();
        assert!(
            ours.contains("overwrite") && ours.contains("110 ns"),
            "{text}"
        );
        assert!(theirs.ends_with("100 .. 100"), "{text}");
        let beside = "overwrite  uzram / raw-codec  1.100 (1.040 .. 1.200)  <= 1.12 met";
        assert!(lines.iter().any(|line| line.ends_with(beside)), "{text}");
        assert!(lines.iter().all(|line| line.len() <= WIDTH), "{text}");
        assert_eq!(ours.find(" ns"), theirs.find(" ns"), "{text}");
        assert!(text.ends_with("missing peer kernel-zram: none\n"), "{text}");
    }

    #[test]
    fn a_claim_stands_below_the_figures_with_its_reason() {
        let mut report = crate::report::tests::sample();
        report.blocks[0].claims.push(crate::report::Claim {
            basis: crate::report::Basis::Published,
            case: "c".to_owned(),
            claim: "a < b".to_owned(),
            measured: "1.2 (1.1 .. 1.3)".to_owned(),
            standing: crate::report::Standing::NotHeld,
            why: "a copies more".to_owned(),
        });
        let text = render(&report);
        assert!(text.contains("\n  NOT HELD: a < b: 1.2 (1.1 .. 1.3)\n      a copies more\n"));
    }

    #[test]
    fn running_text_is_wrapped_at_words() {
        let mut out = String::new();
        wrap(&"word ".repeat(60), 2, &mut out);
        assert_eq!(out.split_whitespace().count(), 60);
        assert!(out.lines().count() == 4 && out.lines().all(|line| line.len() <= WIDTH));
        assert!(out.starts_with("  word word") && out.contains("\n      word"));
        wrap("", 2, &mut out);
        assert!(out.ends_with("word\n"));
    }

    #[test]
    fn a_wide_table_comes_in_parts_that_fit_each_with_its_first_column() {
        let row = |name: &str| {
            (0..12)
                .map(|column| format!("{name} {column:08}"))
                .collect()
        };
        let rows: [Vec<String>; 2] = [row("a"), row("b")];
        let mut out = String::new();
        align(&rows, &[true; 12], &mut out);
        assert!(out.lines().all(|line| line.len() <= WIDTH), "{out}");
        assert_eq!(out.matches("a 00000000").count(), 3);
        for column in 1..12 {
            assert_eq!(out.matches(&format!("b {column:08}")).count(), 1);
        }
    }

    #[test]
    fn a_wide_list_has_no_empty_column_or_row_and_each_ratio_says_of_what() {
        let mut report = crate::report::tests::sample();
        let block = &mut report.blocks[0];
        let mut second = block.ratios[0].clone();
        second.numerator = "uzram-zstd".to_owned();
        block.ratios.push(second);
        block.ratios.iter_mut().for_each(|ratio| ratio.aim = None);
        block.results.push(block.results[0].clone());
        block.results[2].variant = "echo".to_owned();
        let text = render(&report);
        let tables = "\n  \
            case       variant    median  min .. max\n  \
            overwrite  uzram      110 ns  104 .. 120\n             \
                       raw-codec  100 ns  100 .. 100\n             \
                       echo       110 ns  104 .. 120\n\n  \
            case       of                                       ratio\n  \
            overwrite  uzram / raw-codec       1.100 (1.040 .. 1.200)\n             \
                       uzram-zstd / raw-codec  1.100 (1.040 .. 1.200)\n\n";
        assert!(text.contains(tables), "{text}");
    }

    #[test]
    fn a_case_of_several_measures_names_each() {
        let mut report = crate::report::tests::sample();
        let results = &mut report.blocks[0].results;
        let mut scans = results.clone();
        scans.iter_mut().for_each(|row| row.metric = "two_scans");
        results.extend(scans);
        let text = render(&report);
        let count = |label: &str| text.lines().filter(|line| line.contains(label)).count();
        // Among the figures, the ratios and the aims; the scans have figures alone.
        assert_eq!(count("  overwrite, time per page "), 3, "{text}");
        assert_eq!(count("  overwrite, two scans "), 1, "{text}");
    }

    #[test]
    fn a_missed_aim_is_loud() {
        let mut report = crate::report::tests::sample();
        report.blocks[0].ratios[0].aim = Some(Aim::AtMost(1.08));
        assert!(render(&report).contains("<= 1.08 MISSED"));
    }
}
