//! The layout of a table: one line per variant or per case, one column per figure.

/// A table out of a block's results and ratios.
#[derive(Clone, Debug, Default)]
pub struct Matrix {
    /// The head of the first column.
    pub title: String,
    /// Its lines.
    pub lines: Lines,
    /// Its columns, from the second on.
    pub columns: Vec<Column>,
}

/// The meaning of a line of a table.
#[derive(Clone, Debug, Default)]
pub enum Lines {
    /// A variant, in the order of the results; columns name cases.
    #[default]
    Variants,
    /// A case, with its name in the table; columns name variants.
    Cases(Vec<(String, String)>),
}

/// One figure of every line.
#[derive(Clone, Debug)]
pub struct Column {
    /// Its head.
    pub head: String,
    /// The figure in each of its cells.
    pub figure: Figure,
}

/// A figure of a line: `of` is the case, or the variant where lines are cases.
#[derive(Clone, Debug)]
pub enum Figure {
    /// The middle run.
    Median {
        /// Case or variant.
        of: String,
        /// Its metric.
        metric: &'static str,
    },
    /// The least and the greatest run.
    Range {
        /// Case or variant.
        of: String,
        /// Its metric.
        metric: &'static str,
    },
    /// Two medians that add up.
    Sum {
        /// Case or variant.
        of: String,
        /// Both metrics.
        metrics: [&'static str; 2],
    },
    /// The ratio of the line's case, and the verdict of all its runs.
    Ratio {
        /// The variant above the line.
        numerator: String,
        /// The variant below it.
        denominator: String,
        /// The metric of both.
        metric: &'static str,
    },
    /// Where lines are variants: the ratio in which the line's variant is the one compared with, and its
    /// two sides.
    RatioBeside {
        /// The case.
        of: String,
        /// The metric of both.
        metric: &'static str,
    },
}

impl Matrix {
    /// A table with a line per variant.
    pub fn of(title: &str, columns: impl IntoIterator<Item = Column>) -> Matrix {
        Matrix {
            title: title.to_owned(),
            lines: Lines::Variants,
            columns: columns.into_iter().collect(),
        }
    }
}

impl Column {
    /// The median of a case's, or a variant's, metric.
    pub fn median(head: &str, of: &str, metric: &'static str) -> Column {
        Column {
            head: head.to_owned(),
            figure: Figure::Median {
                of: of.to_owned(),
                metric,
            },
        }
    }
}
