//! What both suites aim at: many threads on few CPUs get nearly as much done as two.

use super::cells::{Cells, THROUGHPUT, WORST};
use crate::report::{Claim, Standing};
use crate::sample::Series;
use crate::suite::orderings::shown;

/// Throughput with the most threads over that with two.
const MANY_THREADS_AIM: f64 = 0.9;

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
    // One more round of the one than of the other may have been interrupted or in time.
    let rounds = many.len().min(two.len());
    let first = |series: &Series| Series::from(series.values()[..rounds].to_vec());
    let ratio = first(&many).over(&first(&two)).spread()?;
    let worst = |threads: usize| cells.spread(&case(threads), variant, WORST);
    let (worst_many, worst_two) = (worst(most)?, worst(2)?);
    let standing = match (ratio.min >= MANY_THREADS_AIM, ratio.max < MANY_THREADS_AIM) {
        (true, _) => Standing::Held,
        (_, true) => Standing::NotHeld,
        _ => Standing::WithinSpread,
    };
    Some(Claim {
        case: test.to_owned(),
        claim: format!(
            "{variant} with T={most} at least {MANY_THREADS_AIM} of its throughput with T=2"
        ),
        measured: format!(
            "{}; the worst record of a run took {:.1} ms (at most {:.1}), with T=2 {:.1} ms",
            shown(ratio),
            worst_many.median,
            worst_many.max,
            worst_two.median
        ),
        standing,
        why: String::new(),
    })
}
