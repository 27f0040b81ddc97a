//! Published results and aims, compared with the figures of a run.

use std::cmp::Ordering;

use super::policies::{IDLE_1, IDLE_4, IDLE_8, PER_CPU, case, others};
use super::published::{self, COLUMNS, PER_CPU_COLUMN};
use crate::aims::limit;
use crate::job::Mix;
use crate::published::Table;
use crate::report::{Basis, Claim, Standing};
use crate::sample::{Series, Spread};
use crate::suite::contention::claims::of_many_threads;
use crate::suite::contention::{ALL_TESTS, SLEEPS, SYSTEM, USER, iozone_tests, ranges};
use crate::suite::orderings::{Pairs, agreement, shown};
use crate::suite::rows::{Cells, THROUGHPUT};

/// The test in which the idle list's queue is looked for: nothing but compressions.
const QUEUEING: &str = "rewrite";

const WHY_WRITES: &str = "There, with 4 CPUs, per-CPU streams spared the list's lock and the sleep of who found it empty, and \
     could not be preempted. Here the list is empty only where more threads than it has streams are at work at once, \
     and a holder can be preempted under every policy.";
const WHY_READS: &str = "Reads take no stream under any policy, there or here: what orders them is noise. The published author \
     says that he cannot explain his.";
const WHY_MIXED: &str =
    "Half of the threads write, the others take no stream; published as no reliable gain.";

/// Of one test over the threads.
pub(super) fn of_a_test(
    test: &str,
    title: &str,
    threads: &[usize],
    published: &Table,
    cells: &Cells,
) -> Vec<Claim> {
    let mut claims = Vec::new();
    claims.extend(not_slower(test, threads, cells));
    for (column, policy) in [(0, IDLE_4), (1, IDLE_8)] {
        claims.extend(ordering(
            test,
            title,
            (column, policy),
            threads,
            published,
            cells,
        ));
    }
    claims.extend(many_threads(test, threads, cells));
    claims
}

/// Of all tests together.
pub(super) fn of_all_tests(threads: &[usize], published: &Table, cells: &Cells) -> Vec<Claim> {
    let mut claims = Vec::new();
    claims.extend(not_slower(ALL_TESTS, threads, cells));
    claims.extend(queues(threads, cells));
    claims.extend(many_threads(ALL_TESTS, threads, cells));
    for (column, policy) in [(0, IDLE_4), (1, IDLE_8)] {
        claims.extend(cpu_time((column, policy), threads, published, cells));
    }
    claims
}

/// No row where the engine's policy is slower than another one's beyond the spread.
fn not_slower(test: &str, threads: &[usize], cells: &Cells) -> Option<Claim> {
    let least = limit("streams/not-slower");
    let mut worst: Option<(f64, String)> = None;
    let (mut slower, mut open, mut count) = (Vec::new(), 0, 0);
    for &threads in threads {
        for other in others() {
            let Some(ratio) = cells.ratio(&case(test, threads), PER_CPU, other) else {
                continue;
            };
            let spread = ratio.spread;
            let words = format!("{} of {other} at T={threads}", shown(spread));
            match Standing::at_least(least, spread) {
                Standing::Held => {}
                Standing::NotHeld => slower.push(words.clone()),
                Standing::WithinSpread => open += 1,
            }
            if worst
                .as_ref()
                .is_none_or(|(lowest, _)| spread.median < *lowest)
            {
                worst = Some((spread.median, words));
            }
            count += 1;
        }
    }
    let (_, worst) = worst?;
    let standing = match (slower.is_empty(), open) {
        (false, _) => Standing::NotHeld,
        (true, 0) => Standing::Held,
        (true, _) => Standing::WithinSpread,
    };
    let found = match slower.is_empty() {
        true => {
            format!("none of {count} below it beyond the spread, {open} with runs on both sides")
        }
        false => format!("below it {}", slower.join(", ")),
    };
    let claim = format!("per-CPU at least {least} of every other policy at every T");
    let measured = format!("{found}; the least is {worst}");
    Some(Claim::aim(test.to_owned(), claim, measured, standing))
}

/// Per-CPU against a published column, thread by thread.
fn ordering(
    test: &str,
    title: &str,
    (column, policy): (usize, &str),
    threads: &[usize],
    published: &Table,
    cells: &Cells,
) -> Option<Claim> {
    let figure = |threads: usize| {
        let values = published::of(published, title, threads)?;
        let here = compared(&case(test, threads), policy, cells)?;
        Some((values[PER_CPU_COLUMN].total_cmp(&values[column]), here))
    };
    let why = match iozone_tests().find(|known| known.name == test)?.mix {
        Mix::Reads => WHY_READS,
        Mix::ByWorker => WHY_MIXED,
        Mix::Writes | Mix::Half => WHY_WRITES,
    };
    by_threads(
        test,
        COLUMNS.names[column],
        "throughput",
        threads,
        figure,
        why,
    )
}

/// A published ordering of per-CPU and another column, by the threads at which it holds here.
///
/// `figure` gives how per-CPU stands to the other one as published, and here in all runs.
fn by_threads(
    test: &str,
    column: &str,
    what: &str,
    threads: &[usize],
    figure: impl Fn(usize) -> Option<(Ordering, Option<Ordering>)>,
    why: &str,
) -> Option<Claim> {
    let (mut more, mut less) = (Vec::new(), Vec::new());
    let (mut held, mut reversed, mut open) = (Vec::new(), Vec::new(), Vec::new());
    for &threads in threads {
        let Some((there, here)) = figure(threads) else {
            continue;
        };
        let side = if there == Ordering::Greater {
            &mut more
        } else {
            &mut less
        };
        side.push(threads);
        match here {
            None | Some(Ordering::Equal) => open.push(threads),
            Some(here) if here == there => held.push(threads),
            Some(_) => reversed.push(threads),
        }
    }
    if more.is_empty() && less.is_empty() {
        return None;
    }
    let at = |list: &[usize]| match list.is_empty() {
        true => Vec::new(),
        false => vec![format!("T={}", ranges(list))],
    };
    let pairs = Pairs {
        held: at(&held),
        reversed: at(&reversed),
        open: at(&open),
    };
    let sides = [("more than", more), ("less than", less)];
    let sides = sides.iter().filter(|(_, list)| !list.is_empty());
    let sides: Vec<String> = sides
        .map(|(how, list)| format!("{how} {column} at T={}", ranges(list)))
        .collect();
    Some(Claim {
        basis: Basis::Published,
        case: test.to_owned(),
        claim: format!("published {what} of per-CPU {}", sides.join(", ")),
        measured: pairs.words(),
        standing: pairs.standing(),
        why: why.to_owned(),
    })
}

/// How per-CPU's throughput stands to a policy's in all runs.
fn compared(case: &str, policy: &str, cells: &Cells) -> Option<Option<Ordering>> {
    let ours = cells.series(case, PER_CPU, THROUGHPUT)?;
    let theirs = cells.series(case, policy, THROUGHPUT)?;
    Some(agreement(&ours, &theirs))
}

/// The CPU time of all tests against a published column.
fn cpu_time(
    (column, policy): (usize, &str),
    threads: &[usize],
    published: &Table,
    cells: &Cells,
) -> Option<Claim> {
    let total = |threads: usize, variant: &str| -> Option<Series> {
        let case = case(ALL_TESTS, threads);
        let user = cells.series(&case, variant, USER)?;
        let system = cells.series(&case, variant, SYSTEM)?;
        let sums = user.values().iter().zip(system.values());
        Some(Series::from(
            sums.map(|(user, system)| user + system)
                .collect::<Vec<f64>>(),
        ))
    };
    let figure = |threads: usize| {
        let user = published::of(published, "time_user", threads)?;
        let system = published::of(published, "time_sys", threads)?;
        let there = (user[PER_CPU_COLUMN] + system[PER_CPU_COLUMN])
            .total_cmp(&(user[column] + system[column]));
        let here = agreement(&total(threads, PER_CPU)?, &total(threads, policy)?);
        Some((there, here))
    };
    let why = "There system time was the whole of a compression, with the list's lock and the waking of \
               sleepers in it. Here a sleep and a wake-up are all that a policy adds, where it has any.";
    by_threads(
        ALL_TESTS,
        COLUMNS.names[column],
        "CPU time",
        threads,
        figure,
        why,
    )
}

/// The idle list with one stream makes writers wait.
fn queues(threads: &[usize], cells: &Cells) -> Option<Claim> {
    let (mut sleepers, mut words) = (Vec::new(), Vec::new());
    for &threads in threads.iter().filter(|threads| **threads > 1) {
        let case = case(QUEUEING, threads);
        let Some(sleeps) = cells.spread(&case, IDLE_1, SLEEPS) else {
            continue;
        };
        let Some(ratio) = cells.ratio(&case, IDLE_1, PER_CPU) else {
            continue;
        };
        words.push(format!(
            "T={threads} {:.0} of 1000 writes slept, {:.2} of per-CPU's throughput",
            sleeps.median, ratio.spread.median
        ));
        sleepers.push((sleeps.min, ratio.spread));
    }
    if sleepers.is_empty() {
        return None;
    }
    let all = |is: fn(&(f64, Spread)) -> bool| sleepers.iter().all(is);
    let standing = if all(|(sleeps, ratio)| *sleeps > 0.0 && ratio.max < 1.0) {
        Standing::Held
    } else if all(|(sleeps, ratio)| *sleeps == 0.0 || ratio.min > 1.0) {
        Standing::NotHeld
    } else {
        Standing::WithinSpread
    };
    let claim = format!("an idle list of one stream queues in {QUEUEING}, and is slower for it");
    let measured = words.join("; ");
    Some(Claim::aim(QUEUEING.to_owned(), claim, measured, standing))
}

/// Many threads are not much slower than two.
fn many_threads(test: &str, threads: &[usize], cells: &Cells) -> Option<Claim> {
    let most = *threads.last().filter(|threads| **threads > 2)?;
    of_many_threads(test, most, PER_CPU, &|threads| case(test, threads), cells)
}
