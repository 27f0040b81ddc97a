//! Published orderings against measured ones.
//!
//! Each pair is judged by itself, by the difference within each run. It stands one way only where all runs agree;
//! else nothing is concluded.

use std::cmp::Ordering;

use crate::report::{Basis, Claim, Standing};
use crate::sample::{Series, Spread};

/// Published orders of variants, and how each pair of them stands here.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    published: Found,
    held: Found,
    reversed: Found,
    open: Found,
}

impl Orders {
    /// Adds variants with their published figures and their runs here; with so many threads, if that matters.
    pub(crate) fn add(&mut self, threads: Option<usize>, mut sides: Vec<(&str, f64, Series)>) {
        sides.sort_by(|one, other| one.1.total_cmp(&other.1));
        let names: Vec<&str> = sides.iter().map(|side| side.0).collect();
        self.published.add(names.join(" < "), threads);
        for (at, (small, _, ours)) in sides.iter().enumerate() {
            for (large, _, theirs) in &sides[at + 1..] {
                let (list, sign) = match agreement(ours, theirs) {
                    Some(Ordering::Less) => (&mut self.held, '<'),
                    Some(Ordering::Greater) => (&mut self.reversed, '>'),
                    // Equal in all runs, as counts of nothing are, concludes as little.
                    Some(Ordering::Equal) | None => (&mut self.open, '~'),
                };
                list.add(format!("{small} {sign} {large}"), threads);
            }
        }
    }

    /// The published order of `what`, and the part of it that holds; `None` before anything was added. `label`
    /// stands in front of numbers of threads.
    pub(crate) fn claim(&self, case: &str, what: &str, label: &str, why: &str) -> Option<Claim> {
        let lists = [
            ("as published", &self.held),
            ("the other way", &self.reversed),
            ("within the spread", &self.open),
        ];
        let lists = lists.iter().filter(|(_, found)| !found.0.is_empty());
        let lists = lists.map(|(how, found)| format!("{how}: {}", found.words(label)));
        let standing = match (self.reversed.0.is_empty(), self.open.0.is_empty()) {
            (false, _) => Standing::NotHeld,
            (true, false) => Standing::WithinSpread,
            (true, true) => Standing::Held,
        };
        (!self.published.0.is_empty()).then(|| Claim {
            basis: Basis::Published,
            case: case.to_owned(),
            claim: format!("{what}, published {}", self.published.words(label)),
            measured: lists.collect::<Vec<_>>().join("; "),
            standing,
            why: why.to_owned(),
        })
    }
}

/// Words, each with the numbers of threads of which they are true.
#[derive(Debug, Default)]
struct Found(Vec<(String, Vec<usize>)>);

impl Found {
    fn add(&mut self, words: String, threads: Option<usize>) {
        let known = self.0.iter_mut().find(|(known, _)| *known == words);
        match known {
            Some((_, list)) => list.extend(threads),
            None => self.0.push((words, threads.into_iter().collect())),
        }
    }

    fn words(&self, label: &str) -> String {
        let words = self.0.iter().map(|(words, threads)| match &threads[..] {
            [] => words.clone(),
            threads => format!("{words} at {label}{}", ranges(threads)),
        });
        words.collect::<Vec<_>>().join(", ")
    }
}

/// A list of rising numbers in words: `1-3,5`.
fn ranges(numbers: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, end)) if *end + 1 == number => *end = number,
            _ => runs.push((number, number)),
        }
    }
    let words = runs.iter().map(|(start, end)| match start == end {
        true => start.to_string(),
        false => format!("{start}-{end}"),
    });
    words.collect::<Vec<_>>().join(",")
}

/// How `ours` stands to `theirs` in every run; `None` where runs disagree.
fn agreement(ours: &Series, theirs: &Series) -> Option<Ordering> {
    let pairs = ours.values().iter().zip(theirs.values());
    let mut orders = pairs.map(|(ours, theirs)| ours.total_cmp(theirs));
    let first = orders.next()?;
    orders.all(|order| order == first).then_some(first)
}

/// One series over another in the runs that both have: the one may have been interrupted, or in time.
pub(crate) fn common_ratio(top: &Series, bottom: &Series) -> Series {
    let runs = top.len().min(bottom.len());
    let first = |series: &Series| Series::from(series.values()[..runs].to_vec());
    first(top).over(&first(bottom))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_stand_as_published_only_where_all_runs_agree() {
        let mut orders = Orders::default();
        assert!(orders.claim("c", "rate", "T=", "").is_none());
        let side = |name, published, runs: [f64; 2]| (name, published, Series::from(runs.to_vec()));
        for threads in [1, 2, 3, 5] {
            let slow = if threads == 3 { 3.0 } else { 1.0 };
            let sides = vec![
                side("b", 20.0, [2.0, 2.0]),
                side("a", 10.0, [slow, slow]),
                side("c", 30.0, [1.0, 3.0]),
            ];
            orders.add(Some(threads), sides);
        }
        let claim = orders.claim("c", "rate", "T=", "so").unwrap();
        assert_eq!(claim.claim, "rate, published a < b < c at T=1-3,5");
        let measured = "as published: a < b at T=1-2,5; the other way: a > b at T=3; \
            within the spread: a ~ c at T=1-3,5, b ~ c at T=1-3,5";
        assert_eq!(claim.measured, measured);
        assert_eq!(claim.standing, Standing::NotHeld);
        let mut alone = Orders::default();
        alone.add(
            None,
            vec![side("a", 1.0, [1.0, 1.5]), side("b", 2.0, [2.0, 2.0])],
        );
        let claim = alone.claim("c", "rate", "", "").unwrap();
        assert_eq!(
            (claim.claim.as_str(), claim.standing),
            ("rate, published a < b", Standing::Held)
        );
    }
}
