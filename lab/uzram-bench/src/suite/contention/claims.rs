//! The aim of both suites: many threads on few CPUs get nearly as much done as two.

use super::WORST;
use crate::aims::limit;
use crate::report::{Claim, Standing};
use crate::suite::orderings::{common_ratio, shown};
use crate::suite::rows::{Cells, THROUGHPUT};

/// Throughput of `variant` with `most` threads over that with two, and the worst record of either.
pub(crate) fn of_many_threads(
    test: &str,
    most: usize,
    variant: &str,
    case: &dyn Fn(usize) -> String,
    cells: &Cells,
) -> Option<Claim> {
    let many = cells.series(&case(most), variant, THROUGHPUT)?;
    let two = cells.series(&case(2), variant, THROUGHPUT)?;
    let ratio = common_ratio(&many, &two)?;
    let worst = |threads: usize| cells.spread(&case(threads), variant, WORST);
    let (worst_many, worst_two) = (worst(most)?, worst(2)?);
    let least = limit("contention/many-threads");
    let claim = format!("{variant} with T={most} at least {least} of its throughput with T=2");
    let measured = format!(
        "{}; the worst record of a run took {:.1} ms (at most {:.1}), with T=2 {:.1} ms",
        shown(ratio),
        worst_many.median,
        worst_many.max,
        worst_two.median
    );
    let standing = Standing::at_least(least, ratio);
    Some(Claim::aim(test.to_owned(), claim, measured, standing))
}
