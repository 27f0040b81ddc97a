//! Published orderings against measured ones: how two sides stand to each other, and the sum of many pairs.
//!
//! A pair stands one way only where all runs agree.

use std::cmp::Ordering;

use crate::report::Standing;
use crate::sample::{Series, Spread};

/// How `ours` stands to `theirs` in every run; `None` where runs disagree.
pub(crate) fn agreement(ours: &Series, theirs: &Series) -> Option<Ordering> {
    let pairs = ours.values().iter().zip(theirs.values());
    let mut orders = pairs.map(|(ours, theirs)| ours.total_cmp(theirs));
    let first = orders.next()?;
    orders.all(|order| order == first).then_some(first)
}

/// One series over another in the runs that both have: the one may have been interrupted, or in time.
pub(crate) fn common_ratio(top: &Series, bottom: &Series) -> Option<Spread> {
    let runs = top.len().min(bottom.len());
    let first = |series: &Series| Series::from(series.values()[..runs].to_vec());
    first(top).over(&first(bottom)).spread()
}

/// Pairs of a published ordering by how they stand here.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    pub(crate) held: Vec<String>,
    pub(crate) reversed: Vec<String>,
    pub(crate) open: Vec<String>,
}

impl Pairs {
    /// Adds the pair `small < large` with what was found of small against large.
    pub(crate) fn add(&mut self, small: &str, large: &str, found: Option<Ordering>) {
        let (list, words) = match found {
            Some(Ordering::Less) => (&mut self.held, format!("{small} < {large}")),
            Some(Ordering::Greater) => (&mut self.reversed, format!("{small} > {large}")),
            // Equal in all runs, as counts of nothing are, concludes as little.
            Some(Ordering::Equal) | None => (&mut self.open, format!("{small} ~ {large}")),
        };
        list.push(words);
    }

    pub(crate) fn standing(&self) -> Standing {
        match (self.reversed.is_empty(), self.open.is_empty()) {
            (false, _) => Standing::NotHeld,
            (true, false) => Standing::WithinSpread,
            (true, true) => Standing::Held,
        }
    }

    pub(crate) fn words(&self) -> String {
        let lists = [
            ("as published", &self.held),
            ("the other way", &self.reversed),
            ("within the spread", &self.open),
        ];
        let lists = lists.iter().filter(|(_, pairs)| !pairs.is_empty());
        let words: Vec<String> = lists
            .map(|(what, pairs)| format!("{what}: {}", pairs.join(", ")))
            .collect();
        words.join("; ")
    }
}

/// A figure with its spread, in words.
pub(crate) fn shown(spread: Spread) -> String {
    let decimals = match spread.median.abs() {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        _ => 3,
    };
    match spread.runs {
        1 => format!("{:.decimals$}", spread.median),
        _ => format!(
            "{:.decimals$} ({:.decimals$} .. {:.decimals$})",
            spread.median, spread.min, spread.max
        ),
    }
}
