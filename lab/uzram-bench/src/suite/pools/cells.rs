//! One corpus by one codec: every variant at every number of objects, weighed and timed.
//!
//! For weighing a variant is alone in the process, for the kernel counts processes and not
//! allocators. For the comparison of costs all variants are filled and take turns, round by round.

use std::thread;
use std::time::Instant;

use super::churn::{Bench, Beyond, Cell, Round};
use super::clock::{Clock, Latencies};
use super::draw::Packed;
use super::heap::Variant;
use super::metrics::{
    BACK, BEYOND_IDLE, COMPACTION, DENSITY, IDLE_OVER_1MS, IDLE_OVER_100US, IN_TURNS, INSERT_MEAN,
    INSERT_P999, LEFT, OVER_1MS, OVER_100US, OVERWRITE_MEAN, OVERWRITES_MEAN, REMOVE_MEAN,
    REMOVE_P999, SPARE, WORST,
};
use super::scaling;
use super::scope::{Cells, Scale};
use crate::error::{Error, Result};
use crate::figures::{self, Metric};
use crate::machine::{self, BUSY, Stopwatch};
use crate::progress::Progress;
use crate::report::{Block, Column, Matrix, Ratio};
use crate::sample::Series;
use crate::suite::turns::{Runs, Turns};

/// Overwrites of everything.
pub(super) const ROUNDS: usize = 10;
/// Most memory of a variant, in bytes; a variant that would take more is left out of the case.
const RESIDENT_MAX_BYTES: u64 = 9 << 28;
/// Objects are fewer where more would be likely to be left out, in bytes stored.
const STORED_MAX_BYTES: f64 = 2048.0 * MEBIBYTE;
const MEBIBYTE: f64 = 1_048_576.0;

/// A figure of each round.
struct Time {
    /// The column's head; none for what only the JSON has.
    head: &'static str,
    metric: Metric,
    of: fn(&Round, &Beyond, Clock) -> f64,
}

const fn time(
    head: &'static str,
    metric: &'static str,
    of: fn(&Round, &Beyond, Clock) -> f64,
) -> Time {
    let metric = (metric, "ns");
    Time { head, metric, of }
}

const INSERT_AND_REMOVE: [Time; 12] = [
    time("insert", INSERT_MEAN.0, |_, beyond, _| beyond.insert.mean),
    time("p50", "insert_beyond_copy_p50", |_, beyond, _| {
        beyond.insert.p50
    }),
    time("p99", "insert_beyond_copy_p99", |_, beyond, _| {
        beyond.insert.p99
    }),
    time("p99.9", INSERT_P999.0, |_, beyond, _| beyond.insert.p999),
    time("remove", REMOVE_MEAN.0, |_, beyond, _| beyond.remove.mean),
    time("p50", "remove_p50", |_, beyond, _| beyond.remove.p50),
    time("p99", "remove_p99", |_, beyond, _| beyond.remove.p99),
    time("p99.9", REMOVE_P999.0, |_, beyond, _| beyond.remove.p999),
    time("", "insert_mean", |round, _, clock| {
        clock.costs(&round.insert).mean
    }),
    time("", "copy_mean", |round, _, clock| {
        clock.costs(&round.insert_floor).mean
    }),
    time("", OVERWRITE_MEAN.0, overwrite_mean),
    time("upkeep", "maintenance_per_overwrite", |round, _, _| {
        upkeep(round)
    }),
];

const ACCESS: [Time; 4] = [
    time("access", "access_beyond_copy_mean", |_, beyond, _| {
        beyond.access.mean
    }),
    time("p50", "access_beyond_copy_p50", |_, beyond, _| {
        beyond.access.p50
    }),
    time("p99", "access_beyond_copy_p99", |_, beyond, _| {
        beyond.access.p99
    }),
    time("p99.9", "access_beyond_copy_p999", |_, beyond, _| {
        beyond.access.p999
    }),
];

/// The columns that stand beside the accesses.
const RARE: [(&str, Metric); 5] = [
    ("> 1 ms", OVER_1MS),
    ("empty", IDLE_OVER_1MS),
    ("> 100 us", OVER_100US),
    ("empty", IDLE_OVER_100US),
    ("worst us", WORST),
];

fn overwrite_mean(round: &Round, _: &Beyond, clock: Clock) -> f64 {
    clock.costs(&round.insert).mean + clock.costs(&round.remove).mean + upkeep(round)
}

fn upkeep(round: &Round) -> f64 {
    round.maintenance.as_nanos() as f64 / round.insert.count() as f64
}

/// Steps of a block, for the estimate of the time left.
pub(super) fn steps(scale: &Scale, variants: &[Variant]) -> usize {
    scale.objects.len() * variants.len() + 1
}

impl Cells<'_> {
    /// Measures into `block`, which holds what there is also after a failure.
    pub(super) fn measure(&self, block: &mut Block, progress: &mut Progress) -> Result<()> {
        let objects = Packed::new(self.corpus, self.algorithm)?;
        let cpu = self.cpus[self.cpus.len() - 1];
        block.title = format!(
            "{} {}: objects of {:.0} bytes on average, one thread pinned to CPU {cpu}",
            self.corpus.name,
            self.algorithm,
            objects.mean_bytes()
        );
        machine::pin_to(cpu)?;
        let mut bench = Bench::new(self.scale.copy_bytes)?;
        let counts = self.counts(&objects, block);
        block.matrices = self.matrices(&counts);
        self.every_variant(&objects, &counts, &mut bench, block, progress)?;
        let count = counts.last().copied().unwrap_or(0);
        self.compare_pools(count, block);
        self.alternate(&objects, &mut bench, block, progress)?;
        machine::restrict_to(self.cpus)?;
        scaling::measure(self, &objects, count, block, progress)?;
        Ok(())
    }

    fn every_variant(
        &self,
        objects: &Packed,
        counts: &[usize],
        bench: &mut Bench,
        block: &mut Block,
        progress: &mut Progress,
    ) -> Result<()> {
        let mut most_lost: f64 = 0.0;
        for &count in counts {
            for &variant in self.variants {
                self.options.stop.check()?;
                let what = format!("{}, {count} objects, {}", self.prefix(), variant.name());
                progress.at(&what, 0.0);
                let work = || self.weigh_and_time(variant, objects, count, bench, block);
                most_lost = most_lost.max(alone(work)?);
                progress.step();
            }
        }
        if most_lost > BUSY {
            block.notes.push(format!(
                "BUSY MACHINE: other processes had the CPU for up to {:.0} % of a variant's time; do \
                 not quote times",
                most_lost * 100.0
            ));
        }
        Ok(())
    }

    /// How many objects the cases have: fewer where so many of these would not fit.
    fn counts(&self, objects: &Packed, block: &mut Block) -> Vec<usize> {
        let most = (STORED_MAX_BYTES / objects.mean_bytes()) as usize;
        let mut counts: Vec<usize> = Vec::new();
        for &count in &self.scale.objects {
            if count > most {
                block.notes.push(format!(
                    "{count} of these objects do not fit into 2 GiB: {most} were taken"
                ));
            }
            counts.push(count.min(most));
        }
        counts.dedup();
        counts
    }

    /// One variant at one number of objects; returns the part of the time lost to other processes.
    fn weigh_and_time(
        &self,
        variant: Variant,
        objects: &Packed,
        count: usize,
        bench: &mut Bench,
        block: &mut Block,
    ) -> Result<f64> {
        let stopwatch = Stopwatch::start();
        let mut cell = Cell::open(variant, objects, count, bench)?;
        let mut filled = Round::default();
        if !cell.fill(bench, &mut filled, RESIDENT_MAX_BYTES)? {
            let gibibytes = RESIDENT_MAX_BYTES as f64 / f64::from(1 << 30);
            let name = variant.name();
            block.notes.push(format!(
                "{name}: left out with {count} objects, which took over {gibibytes:.2} GiB"
            ));
            return Ok(0.0);
        }
        let mut rows = self.rows(&format!("{count}"), variant, cell.stored_bytes(), block);
        let filled_bytes = cell.pool_bytes(bench)?.saturating_sub(cell.spare_bytes());
        let density = filled_bytes as f64 / cell.stored_bytes() as f64;
        rows.one("fill", DENSITY, density);
        rows.one("fill", SPARE, cell.spare_bytes() as f64 / MEBIBYTE);
        rows.one("fill", INSERT_MEAN, filled.beyond(bench.clock).insert.mean);

        bench.copies.warm();
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            self.options.stop.check()?;
            rounds.push(cell.overwrite(bench)?);
        }
        rows.times("overwrite", &rounds, bench.clock);
        let full_bytes = cell.pool_bytes(bench)?;
        rows.one("overwritten", DENSITY, cell.density(bench)?);

        let free_before = machine::free_memory_bytes();
        cell.discard_half();
        rows.one("half-discarded", DENSITY, cell.density(bench)?);
        let compacting = Instant::now();
        if cell.compact()? {
            let milliseconds = compacting.elapsed().as_secs_f64() * 1e3;
            rows.one("compacted", COMPACTION, milliseconds);
            rows.one("compacted", DENSITY, cell.density(bench)?);
        }
        cell.empty();
        let left_bytes = cell.pool_bytes(bench)?;
        rows.one("emptied", LEFT, left_bytes as f64 / MEBIBYTE);
        if let Some((before, after)) = free_before.zip(machine::free_memory_bytes()) {
            let back = (after as f64 - before as f64) / full_bytes as f64;
            rows.one("emptied", BACK, back * 100.0);
        }
        let lap = stopwatch.stop();
        Ok(lap.waited.as_secs_f64() / lap.elapsed.as_secs_f64())
    }

    /// The default pool over each other one, of most objects.
    fn compare_pools(&self, count: usize, block: &mut Block) {
        for (case, metric) in [
            ("fill", DENSITY),
            ("overwritten", DENSITY),
            ("compacted", DENSITY),
            ("overwrite", OVERWRITES_MEAN),
        ] {
            let case = format!("{}/{count}/{case}", self.prefix());
            let of = |pool: &str| {
                let mut rows = block.results.iter();
                let found = rows.find(|row| {
                    (&*row.case, &*row.variant, row.metric) == (&*case, pool, metric.0)
                });
                found.map(|row| Series::from(vec![row.spread.median]))
            };
            let pools = uzram::pools();
            let ours = of(pools[0]);
            let pairs = pools[1..].iter().filter_map(|other| {
                let sides = ((pools[0], ours.as_ref()?), (*other, &of(other)?));
                Ratio::of(&case, metric.0, sides.0, sides.1)
            });
            let ratios: Vec<Ratio> = pairs.collect();
            block.ratios.extend(ratios);
        }
    }

    /// All variants filled, and overwritten in turns; the default pool's cost over each other's.
    fn alternate(
        &self,
        objects: &Packed,
        bench: &mut Bench,
        block: &mut Block,
        progress: &mut Progress,
    ) -> Result<()> {
        let count = self.scale.alternated_objects;
        let mut cells = Vec::new();
        for &variant in self.variants {
            let mut cell = Cell::open(variant, objects, count, bench)?;
            cell.fill(bench, &mut Round::default(), RESIDENT_MAX_BYTES)?;
            cells.push((cell, Vec::new()));
        }
        bench.copies.warm();
        let what = format!("{}, in turns", self.prefix());
        let turns = Turns {
            warms_up: false,
            ..Turns::of(&what, cells.len(), Runs::Exactly(ROUNDS))
        };
        let costs = turns.measure(self.options, progress, |turn| {
            let (cell, rounds) = &mut cells[turn.side];
            let round = cell.overwrite(bench)?;
            let cost = overwrite_mean(&round, &Beyond::default(), bench.clock);
            rounds.push(round);
            Ok(cost)
        })?;
        for (&variant, (cell, rounds)) in self.variants.iter().zip(&cells) {
            let mut rows = self.rows(IN_TURNS, variant, cell.stored_bytes(), block);
            rows.times("overwrite", rounds, bench.clock);
        }
        let case = format!("{}/{IN_TURNS}/overwrite", self.prefix());
        let cell = figures::Cell::new(case, OVERWRITE_MEAN, 0);
        let ours = (self.variants[0].name(), &costs[0]);
        for (variant, cost) in self.variants.iter().zip(&costs).skip(1) {
            cell.compare(ours, (variant.name(), cost), block);
        }
        Ok(())
    }

    fn rows<'b>(
        &self,
        case: &str,
        variant: Variant,
        stored_bytes: u64,
        block: &'b mut Block,
    ) -> Rows<'b> {
        Rows {
            prefix: format!("{}/{case}", self.prefix()),
            variant: variant.name(),
            stored_bytes,
            cpu: self.cpus[self.cpus.len() - 1],
            block,
        }
    }

    fn matrices(&self, counts: &[usize]) -> Vec<Matrix> {
        let prefix = self.prefix();
        let largest = counts.last().copied().unwrap_or(0);
        let column = |head: &str, count: usize, case: &str, metric: Metric| {
            Column::median(head, &format!("{prefix}/{count}/{case}"), metric.0)
        };
        let fills = counts
            .iter()
            .map(|&count| column(&format!("fill {}", short(count)), count, "fill", DENSITY));
        let later = [
            ("spare MiB", "fill", SPARE),
            ("x10", "overwritten", DENSITY),
            ("half", "half-discarded", DENSITY),
            ("compacted", "compacted", DENSITY),
            ("in ms", "compacted", COMPACTION),
            ("left MiB", "emptied", LEFT),
            ("back %", "emptied", BACK),
        ];
        let later = later.map(|(head, case, metric)| column(head, largest, case, metric));
        let timed = |times: &[Time]| -> Vec<Column> {
            let shown = times.iter().filter(|time| !time.head.is_empty());
            shown
                .map(|time| column(time.head, largest, "overwrite", time.metric))
                .collect()
        };
        let mut rare = timed(&ACCESS);
        rare.extend(RARE.map(|(head, metric)| column(head, largest, "overwrite", metric)));
        rare.extend(scaling::column(self));
        vec![
            Matrix::of("pool bytes per stored byte", fills.chain(later)),
            Matrix::of("ns beyond the copy", timed(&INSERT_AND_REMOVE)),
            Matrix::of("ns beyond the copy", rare),
        ]
    }
}

/// Runs `work` in a thread of its own. A thread's cache of freed objects goes with it; a cache that
/// outlived a case would hold pages that the next case uses unseen.
fn alone<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let died = |_| Err(Error::Failed("a measuring thread panicked".to_owned()));
    thread::scope(|scope| scope.spawn(work).join().unwrap_or_else(died))
}

/// Takes the figures of one variant at one number of objects.
struct Rows<'a> {
    prefix: String,
    variant: &'static str,
    stored_bytes: u64,
    cpu: usize,
    block: &'a mut Block,
}

impl Rows<'_> {
    fn one(&mut self, case: &str, metric: Metric, value: f64) {
        self.series(case, metric, &Series::from(vec![value]));
    }

    fn times(&mut self, case: &str, rounds: &[Round], clock: Clock) {
        for time in INSERT_AND_REMOVE.iter().chain(&ACCESS) {
            let value = |round: &Round| (time.of)(round, &round.beyond(clock), clock);
            let values: Vec<f64> = rounds.iter().map(value).collect();
            self.series(case, time.metric, &Series::from(values));
        }
        let (mut operations, mut idle) = (Latencies::default(), Latencies::default());
        for round in rounds {
            operations.add(&round.operations());
            idle.add(&round.idle);
        }
        let beyond = |round: &Round| {
            let beyond = round.beyond(clock);
            beyond.insert.mean + beyond.remove.mean + upkeep(round)
        };
        let total: f64 = rounds.iter().map(beyond).sum();
        self.one(case, OVERWRITES_MEAN, total / rounds.len() as f64);
        // As many as there would have been in the time that the operations took.
        let longer = operations.total_ns as f64 / idle.total_ns.max(1) as f64;
        self.one(case, OVER_1MS, operations.over_1ms as f64);
        let idle_over_1ms = idle.over_1ms as f64 * longer;
        self.one(case, IDLE_OVER_1MS, idle_over_1ms);
        let over_1ms = operations.over_1ms as f64;
        let scatter = (over_1ms + idle_over_1ms).sqrt().max(1.0);
        self.one(case, BEYOND_IDLE, (over_1ms - idle_over_1ms) / scatter);
        self.one(case, OVER_100US, operations.over_100us as f64);
        self.one(case, IDLE_OVER_100US, idle.over_100us as f64 * longer);
        self.one(case, WORST, operations.worst_ns as f64 / 1e3);
    }

    fn series(&mut self, case: &str, metric: Metric, series: &Series) {
        let case = format!("{}/{case}", self.prefix);
        let cell = figures::Cell::new(case, metric, self.stored_bytes).pinned(&[self.cpu]);
        cell.add(self.variant, series, self.block);
    }
}

/// `65536` as `64K`.
fn short(count: usize) -> String {
    match count {
        count if count.is_multiple_of(1 << 20) => format!("{}M", count >> 20),
        count if count.is_multiple_of(1 << 10) => format!("{}K", count >> 10),
        count => count.to_string(),
    }
}
