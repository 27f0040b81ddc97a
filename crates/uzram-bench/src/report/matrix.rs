//! Many figures of the same few variants: a line a variant, a column a figure.

use super::Block;
use super::table::{align, decimals};

/// A table of medians out of a block's results.
#[derive(Clone, Debug, Default)]
pub(crate) struct Matrix {
    pub(crate) title: String,
    pub(crate) columns: Vec<Column>,
}

/// One figure of every variant.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    pub(crate) head: String,
    pub(crate) case: String,
    pub(crate) metric: &'static str,
}

impl Matrix {
    /// Appends the table to `out`: variants in the order of the results, `-` where there is no figure.
    pub(crate) fn render(&self, block: &Block, out: &mut String) {
        let mut rows = vec![self.head()];
        let mut variants: Vec<&str> = Vec::new();
        let ours = |case: &str| self.columns.iter().any(|column| column.case == case);
        for measured in block.results.iter().filter(|result| ours(&result.case)) {
            if !variants.contains(&measured.variant.as_str()) {
                variants.push(&measured.variant);
            }
        }
        for variant in variants {
            let cells = self
                .columns
                .iter()
                .map(|column| cell(block, variant, column));
            rows.push(std::iter::once(variant.to_owned()).chain(cells).collect());
        }
        let right: Vec<bool> = (0..=self.columns.len()).map(|column| column > 0).collect();
        align(&rows, &right, out);
    }

    fn head(&self) -> Vec<String> {
        let heads = self.columns.iter().map(|column| column.head.clone());
        std::iter::once(self.title.clone()).chain(heads).collect()
    }
}

fn cell(block: &Block, variant: &str, column: &Column) -> String {
    let found = block.results.iter().find(|result| {
        result.variant == variant && result.case == column.case && result.metric == column.metric
    });
    found.map_or("-".to_owned(), |result| {
        let median = result.spread.median;
        format!("{median:.*}", decimals(median))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variant_is_a_line_and_a_figure_that_lacks_is_a_dash() {
        let mut block = crate::report::tests::sample().blocks.remove(0);
        block.results.pop();
        let mut other = block.results[0].clone();
        other.variant = "memcpy".to_owned();
        other.case = "text/lz4/read".to_owned();
        block.results.push(other);
        let column = |head: &str, case: &str| Column {
            head: head.to_owned(),
            case: case.to_owned(),
            metric: "time_per_page",
        };
        let matrix = Matrix {
            title: "ns".to_owned(),
            columns: vec![
                column("write", "text/lz4/overwrite"),
                column("read", "text/lz4/read"),
            ],
        };
        let mut out = String::new();
        matrix.render(&block, &mut out);
        let words: Vec<Vec<&str>> = out
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(
            words,
            [
                vec!["ns", "write", "read"],
                vec!["uzram", "110", "-"],
                vec!["memcpy", "-", "110"],
            ]
        );
    }
}
