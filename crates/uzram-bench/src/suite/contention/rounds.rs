//! Rounds: each variant on a fresh disk, all tests, another variant first in each round.

use std::time::Instant;

use super::cells::Cells;
use super::content::Content;
use super::crew::{Crew, Layout, Slice};
use super::disk::Variant;
use super::patterns::Test;
use crate::error::Result;
use crate::progress::Progress;
use crate::suite::Options;

/// The case of all tests of a round together.
pub(crate) const ALL_TESTS: &str = "all-tests";

/// What is measured with one layout.
pub(crate) struct Plan<'a> {
    pub(crate) algorithm: &'a str,
    pub(crate) variants: &'a [Variant<'a>],
    pub(crate) tests: &'a [Test],
    pub(crate) content: &'a Content,
    pub(crate) layout: Layout,
    /// The case's name of a test's.
    pub(crate) case: &'a dyn Fn(&str) -> String,
}

/// What the variants of a round did in each test: case, variant, slice.
type Round = Vec<(String, &'static str, Slice)>;

/// Runs rounds until there are enough, into `cells`. A round that is interrupted leaves nothing.
pub(crate) fn measure(
    plan: &Plan<'_>,
    options: &Options,
    cells: &mut Cells,
    progress: &mut Progress,
) -> Result<()> {
    let (schedule, started) = (options.schedule, Instant::now());
    let mut rounds = 0;
    while schedule.wants_more(rounds, started.elapsed()) {
        let part = schedule.part(rounds, started.elapsed());
        progress.at(&(plan.case)(ALL_TESTS), part);
        for (case, variant, slice) in round(plan, rounds, options)? {
            cells.add(&case, variant, plan.layout.disk_bytes(), slice);
        }
        rounds += 1;
    }
    progress.step();
    Ok(())
}

fn round(plan: &Plan<'_>, nth: usize, options: &Options) -> Result<Round> {
    let count = plan.variants.len();
    let mut found = Round::new();
    for turn in 0..count {
        let variant = &plan.variants[(turn + nth) % count];
        let disk = variant.open(plan.algorithm, plan.layout.disk_bytes())?;
        let mut crew = Crew::new(&*disk, plan.content, plan.layout)?;
        let mut all = Slice::default();
        for test in plan.tests {
            let slice = crew.run(test, &options.stop)?;
            all.then(&slice);
            found.push(((plan.case)(test.name), variant.name, slice));
        }
        found.push(((plan.case)(ALL_TESTS), variant.name, all));
        crew.verify()?;
    }
    Ok(found)
}
