//! Published results and aims, compared with the figures of a run.

use super::kinds::{ENGINE, TABLE, case, entry_locks};
use super::published::{COLUMNS, Table};
use crate::job::{Mix, Test};
use crate::report::{Basis, Claim, Standing};
use crate::suite::contention::FIO;
use crate::suite::contention::claims::of_many_threads;
use crate::suite::orderings::{Pairs, agreement, shown};
use crate::suite::rows::{Cells, THROUGHPUT};

const WHY_IOZONE: &str = "Each thread has pages of its own, so no two meet on an entry, and a lock that nobody holds costs some \
     ns of the microseconds of a page, whatever its kind. The table's lock costs its cache line, which each user \
     takes from the last: little on 2 CPUs, more on many. In a profile on 2 CPUs (perf, cpu-clock, --quick) waits that \
     outlast their spinning, futex and sched_yield, have at most 0.6 % of the samples of these tests.";
const WHY_FIO: &str = "Jobs meet on entries, yet a writer holds one only to publish a word, and a reader for a copy. The holder \
     could not be preempted there; here it can, and who spins for it yields after a while. In a profile on 2 CPUs \
     (perf, cpu-clock, --quick) futex and sched_yield have 0.1 to 0.6 % of the samples of these tests.";
const WHY_AMONG: &str = "Published as small differences, of which nothing was concluded.";

/// The published orderings of a table, test by test, each pair by itself.
pub(super) fn of_a_table(
    table: Table,
    tests: &[Test],
    case: &dyn Fn(&Test) -> String,
    cells: &Cells,
) -> Vec<Claim> {
    let why = match table {
        Table::Iozone => WHY_IOZONE,
        Table::Fio => WHY_FIO,
    };
    let mut claims = Vec::new();
    // What was concluded first, test by test; then what was not.
    for is_base in [true, false] {
        for test in tests {
            let Some(values) = table.of(test.title) else {
                continue;
            };
            let mut columns: Vec<(&str, f64)> = COLUMNS.names.into_iter().zip(values).collect();
            columns.sort_by(|one, other| one.1.total_cmp(&other.1));
            let names: Vec<&str> = columns.iter().map(|column| column.0).collect();
            let why = if is_base { why } else { WHY_AMONG };
            claims.extend(ordering(test, &case(test), &names, is_base, why, cells));
        }
    }
    claims
}

/// The published order of the variants, each pair by itself: those with the base in them, or the others.
fn ordering(
    test: &Test,
    case: &str,
    names: &[&'static str],
    is_base: bool,
    why: &str,
    cells: &Cells,
) -> Option<Claim> {
    let mut pairs = Pairs::default();
    for (at, small) in names.iter().enumerate() {
        let ours = cells.series(case, small, THROUGHPUT)?;
        for large in &names[at + 1..] {
            let theirs = cells.series(case, large, THROUGHPUT)?;
            if [*small, *large].contains(&TABLE) == is_base {
                pairs.add(small, large, agreement(&ours, &theirs));
            }
        }
    }
    let entries: Vec<&str> = names
        .iter()
        .copied()
        .filter(|name| *name != TABLE)
        .collect();
    let order = match is_base {
        true => format!("{TABLE} < {}", entries.join(", ")),
        false => entries.join(" < "),
    };
    Some(Claim {
        basis: Basis::Published,
        case: case.to_owned(),
        claim: format!("{}, published {order}", test.title),
        measured: pairs.words(),
        standing: pairs.standing(),
        why: why.to_owned(),
    })
}

/// Every lock of an entry is at least as fast as the table's where threads read and write and meet.
pub(super) fn of_mixed_rows(case: &dyn Fn(&Test) -> String, cells: &Cells) -> Vec<Claim> {
    let mixed = FIO.iter().filter(|test| test.mix == Mix::Half);
    mixed
        .filter_map(|test| faster_than_the_table(&case(test), test.name, cells))
        .collect()
}

fn faster_than_the_table(case: &str, test: &str, cells: &Cells) -> Option<Claim> {
    let ratios = entry_locks().map(|lock| Some((lock, cells.ratio(case, lock, TABLE)?.spread)));
    let ratios: Vec<_> = ratios.collect::<Option<_>>()?;
    let standings = ratios
        .iter()
        .map(|(_, ratio)| Standing::at_least(1.0, *ratio));
    let standing = Standing::of_all(standings);
    let words = ratios
        .iter()
        .map(|(lock, ratio)| format!("{lock} {}", shown(*ratio)));
    let claim = format!("{test}: every lock of an entry at least as fast as the table's");
    let measured = format!("over the table's {}", words.collect::<Vec<_>>().join(", "));
    Some(Claim::aim(case.to_owned(), claim, measured, standing))
}

/// Many jobs are not much slower than two.
pub(super) fn over_threads(test: &str, threads: &[usize], cells: &Cells) -> Vec<Claim> {
    let Some(&most) = threads.last().filter(|threads| **threads > 2) else {
        return Vec::new();
    };
    let claim = of_many_threads(test, most, ENGINE, &|threads| case(test, threads), cells);
    claim.into_iter().collect()
}
