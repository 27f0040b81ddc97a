//! A table with its figures filled in, as text and for the page.

use super::better::{Better, Verdict};
use super::block::{Block, Measured, Ratio, belongs};
use super::columns::{Column, Figure, Lines, Matrix};
use super::table::{align, decimals};

/// One field of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) text: String,
    /// The verdict of a ratio; other figures have none.
    pub(super) verdict: Option<Verdict>,
}

impl Matrix {
    /// Appends the table to `out`.
    pub fn render(&self, block: &Block, out: &mut String) {
        let heads = self.columns.iter().map(|column| column.head.clone());
        let head = std::iter::once(self.title.clone()).chain(heads);
        let mut rows = vec![head.collect::<Vec<String>>()];
        for (name, cells) in self.rows(block) {
            let cells = cells.into_iter().map(|cell| cell.text);
            rows.push(std::iter::once(name).chain(cells).collect());
        }
        let right: Vec<bool> = (0..=self.columns.len()).map(|column| column > 0).collect();
        align(&rows, &right, out);
    }

    /// The lines: what each is called, and its fields; those of which nothing was measured are left out.
    pub(super) fn rows(&self, block: &Block) -> Vec<(String, Vec<Cell>)> {
        let rows = self.names(block).into_iter().map(|(name, key)| {
            let cells = self
                .columns
                .iter()
                .map(|column| self.cell(block, &key, column));
            (name, cells.collect::<Vec<Cell>>())
        });
        let is_measured =
            |(_, cells): &(String, Vec<Cell>)| cells.iter().any(|cell| cell.text != NONE);
        rows.filter(is_measured).collect()
    }

    /// The name of each line, and its variant or case.
    fn names(&self, block: &Block) -> Vec<(String, String)> {
        match &self.lines {
            Lines::Cases(cases) => cases.clone(),
            Lines::Variants => {
                let mut variants: Vec<&str> = Vec::new();
                let ours = |case: &str| self.columns.iter().any(|column| column.is_of(case));
                for measured in block.results.iter().filter(|result| ours(&result.case)) {
                    if !variants.contains(&measured.variant.as_str()) {
                        variants.push(&measured.variant);
                    }
                }
                let both = variants
                    .into_iter()
                    .map(|name| (name.to_owned(), name.to_owned()));
                both.collect()
            }
        }
    }

    fn cell(&self, block: &Block, line: &str, column: &Column) -> Cell {
        let find = |of: &str, metric: &str| {
            let (case, variant) = match self.lines {
                Lines::Variants => (of, line),
                Lines::Cases(_) => (line, of),
            };
            let is_it = |result: &&Measured| {
                result.case == case && result.variant == variant && result.metric == metric
            };
            block.results.iter().find(is_it)
        };
        let figure = |value: f64| format!("{value:.*}", decimals(value));
        let text = match &column.figure {
            Figure::Median { of, metric } => {
                find(of, metric).map(|found| figure(found.spread.median))
            }
            Figure::Range { of, metric } => find(of, metric).map(|found| {
                let spread = found.spread;
                let decimals = decimals(spread.median);
                format!("{:.decimals$} .. {:.decimals$}", spread.min, spread.max)
            }),
            Figure::Sum { of, metrics } => {
                let [one, other] = metrics.map(|metric| find(of, metric));
                let both = one.zip(other);
                both.map(|(one, other)| {
                    format!("{:.2} + {:.2}", one.spread.median, other.spread.median)
                })
            }
            Figure::Ratio {
                numerator,
                denominator,
                metric,
            } => {
                let sides = (numerator.as_str(), denominator.as_str());
                return ratio(block, |ratio| {
                    let own = (ratio.numerator.as_str(), ratio.denominator.as_str());
                    ratio.case == line && own == sides && ratio.metric == *metric
                });
            }
            Figure::RatioBeside { of, metric } => {
                let measured = find(of, metric);
                let is_it = |ratio: &Ratio| measured.is_some_and(|own| belongs(ratio, own));
                let mut cell = ratio(block, is_it);
                if let Some(Ratio {
                    numerator,
                    denominator,
                    ..
                }) = block.ratios.iter().find(|ratio| is_it(ratio))
                {
                    cell.text = format!("{} {numerator} / {denominator}", cell.text.trim_end());
                }
                return cell;
            }
        };
        Cell {
            text: text.unwrap_or_else(|| NONE.to_owned()),
            verdict: None,
        }
    }
}

/// The text of a field without a figure.
const NONE: &str = "-";

fn ratio(block: &Block, is_it: impl Fn(&Ratio) -> bool) -> Cell {
    let found = block.ratios.iter().find(|ratio| is_it(ratio));
    let Some(ratio) = found else {
        return Cell {
            text: NONE.to_owned(),
            verdict: None,
        };
    };
    let verdict = Verdict::of(ratio, Better::of_ratio(ratio, block));
    let word = match verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::Open => "~",
    };
    Cell {
        text: format!("{:.2} {word:<6}", ratio.spread.median),
        verdict: Some(verdict),
    }
}

impl Column {
    fn is_of(&self, case: &str) -> bool {
        match &self.figure {
            Figure::Median { of, .. }
            | Figure::Range { of, .. }
            | Figure::Sum { of, .. }
            | Figure::RatioBeside { of, .. } => of == case,
            Figure::Ratio { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(matrix: &Matrix, block: &Block) -> Vec<Vec<String>> {
        let mut out = String::new();
        matrix.render(block, &mut out);
        let lines = out.lines();
        lines
            .map(|line| line.split_whitespace().map(str::to_owned).collect())
            .collect()
    }

    #[test]
    fn a_variant_is_a_line_and_a_figure_that_lacks_is_a_dash() {
        let mut block = crate::report::tests::sample().blocks.remove(0);
        block.results.pop();
        let mut other = block.results[0].clone();
        other.variant = "memcpy".to_owned();
        other.case = "text/lz4/read".to_owned();
        block.results.push(other);
        let column = |head: &str, case: &str| Column::median(head, case, "time_per_page");
        let matrix = Matrix {
            title: "ns".to_owned(),
            columns: vec![
                column("write", "text/lz4/overwrite"),
                column("read", "text/lz4/read"),
            ],
            ..Matrix::default()
        };
        assert_eq!(
            words(&matrix, &block),
            [
                vec!["ns", "write", "read"],
                vec!["uzram", "110", "-"],
                vec!["memcpy", "-", "110"],
            ]
        );
    }

    #[test]
    fn a_ratio_stands_beside_the_variant_that_is_compared_with() {
        let block = crate::report::tests::sample().blocks.remove(0);
        let figure = Figure::RatioBeside {
            of: "text/lz4/overwrite".to_owned(),
            metric: "time_per_page",
        };
        let matrix = Matrix {
            title: "x".to_owned(),
            columns: vec![Column {
                head: "ratio".to_owned(),
                figure,
            }],
            ..Matrix::default()
        };
        let rows = matrix.rows(&block);
        assert_eq!(rows[0].0, "raw-codec", "uzram itself has none");
        assert_eq!(rows[0].1[0].text, "1.10 worse uzram / raw-codec");
    }

    #[test]
    fn a_case_is_a_line_with_spread_and_a_ratio_that_all_runs_agree_on() {
        let block = crate::report::tests::sample().blocks.remove(0);
        let case = |name: &str, case: &str| (name.to_owned(), case.to_owned());
        let (ours, theirs) = ("uzram".to_owned(), "raw-codec".to_owned());
        let metric = "time_per_page";
        let matrix = Matrix {
            title: "ns".to_owned(),
            lines: Lines::Cases(vec![
                case("over", "text/lz4/overwrite"),
                case("not measured", "text/lz4/read"),
            ]),
            columns: vec![
                Column::median("uzram", "uzram", metric),
                Column {
                    head: "spread".to_owned(),
                    figure: Figure::Range {
                        of: ours.clone(),
                        metric,
                    },
                },
                Column {
                    head: "ratio".to_owned(),
                    figure: Figure::Ratio {
                        numerator: ours,
                        denominator: theirs,
                        metric,
                    },
                },
            ],
        };
        assert_eq!(
            words(&matrix, &block),
            [
                vec!["ns", "uzram", "spread", "ratio"],
                vec!["over", "110", "104", "..", "120", "1.10", "worse"],
            ]
        );
        assert_eq!(matrix.rows(&block)[0].1[2].verdict, Some(Verdict::Worse));
    }
}
