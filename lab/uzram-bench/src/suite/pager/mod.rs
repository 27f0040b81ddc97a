//! Suite `pager`: compressed memory of a process beside swap and plain memory.
//!
//! Each turn is a program of its own (`program.rs`), with swap set up for it and taken down after it. The kernel's sides
//! swap inside a memory cgroup, or where MADV_PAGEOUT says so, and only on a machine without other swap.

mod patterns;
mod program;
mod sides;

use crate::error::Result;
use crate::figures::{Cell, Metric};
use crate::peers::Peer;
use crate::progress::Progress;
use crate::report::{Block, Findings};
use crate::sample::Series;
use crate::side::{Side, ours_over_theirs};
use crate::suite::turns::{Runs, Turns};
use crate::suite::{Options, Suite, Work};
use patterns::Pattern;
use program::{FAULTS, FITS, PATTERNS, Plan};
use sides::Kind;

/// Pages of the program where all can stay; with --quick the smaller number.
const PAGES: [usize; 2] = [16_384, 2_048];
/// Pages that fit under the patterns. The kernel ends programs in cgroups of a few MiB rather than swap their hot pages.
const BUDGET_PAGES: [usize; 2] = [8_192, 4_096];
/// The program's pages over those that fit, in quarters.
const QUARTERS: [usize; 3] = [5, 8, 16];
/// Touches of a pattern, and of memory in which everything fits.
const TOUCHES: [usize; 2] = [100_000, 10_000];
const TOUCHES_OF_FITTING: [usize; 2] = [2_000_000, 100_000];

/// The suite.
pub(crate) const SUITE: Suite<PagerArgs> = Suite {
    name: "pager",
    peers: &Peer::PAGER,
    algorithms: &["lz4", "words"],
    corpus: Some("synthetic-mixed"),
    work: Work::Fixed,
    plan: |_, args| {
        let args = args.clone();
        Ok(Box::new(move |options, findings| {
            run(options, &args, findings)
        }))
    },
};

/// Arguments of this suite alone.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct PagerArgs {
    /// A part of the suite; repeatable. Default: all
    #[arg(long = "only", value_enum, value_name = "PART")]
    pub parts: Vec<Part>,
    /// Called by this program itself, as the program that is measured
    #[arg(long, hide = true, value_name = "PLAN")]
    pub program: Option<String>,
}

/// A part of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Single faults, scans, and pages that leave
    Faults,
    /// pmbench's patterns with more pages than memory
    Patterns,
    /// Memory in which everything fits
    Fits,
}

/// Runs the program that is measured, if this is it.
pub(crate) fn child(args: &PagerArgs) -> Option<Result<()>> {
    args.program.as_deref().map(program::child)
}

/// Runs the suite.
fn run(options: &Options, args: &PagerArgs, findings: &mut Findings) -> Result<()> {
    sides::refusal_of_ours().map_or(Ok(()), Err)?;
    let _setting = sides::PageCluster::none()?;
    let kinds = sides::all(options, &mut findings.missing);
    let parts = [Part::Faults, Part::Patterns, Part::Fits];
    let wanted = |part: &Part| args.parts.is_empty() || args.parts.contains(part);
    let bench = Bench {
        options,
        kinds,
        quick: usize::from(options.quick),
    };
    for part in parts.into_iter().filter(wanted) {
        for corpus in &options.corpora {
            let source = (corpus.name.as_str(), corpus.pages());
            match part {
                Part::Faults => bench.faults(source, findings)?,
                Part::Patterns => bench.patterns(source, findings)?,
                Part::Fits => bench.fits(source, findings)?,
            }
        }
    }
    Ok(())
}

/// A figure of a turn: its case, and its metric.
type Figure = (String, Metric);

/// One work, of which each side has a turn in each run.
struct Experiment<'a, const N: usize> {
    name: &'static str,
    plan: Plan,
    source: &'a [u8],
    figures: [Figure; N],
    /// Where they go. Has its title.
    block: Block,
}

struct Bench<'a> {
    options: &'a Options,
    kinds: Vec<Side<Kind>>,
    quick: usize,
}

impl Bench<'_> {
    fn faults(&self, (corpus, source): (&str, &[u8]), findings: &mut Findings) -> Result<()> {
        let pages = PAGES[self.quick];
        let us = |case: &str, metric| (format!("{corpus}/{case}"), (metric, "us"));
        let figures = [
            us("random-fault", "mean"),
            us("random-fault", "p50"),
            us("random-fault", "p99"),
            us("random-fault", "max"),
            us("sequential-scan", "time_per_page"),
            us("strided-scan", "time_per_page"),
            us("page-out", "time_per_page"),
        ];
        let block = Block {
            title: format!(
                "{corpus}: {pages} pages that have left and come back, one thread on one CPU"
            ),
            notes: vec![format!(
                "strided-scan: one page of {}; page-out: all pages, after they were written",
                program::STRIDE
            )],
            ..Block::default()
        };
        let experiment: Experiment<FAULTS> = Experiment {
            name: "faults",
            plan: plan(program::Work::Faults, pages, pages + pages / 2, 1),
            source,
            figures,
            block,
        };
        self.measure(experiment, Kind::swaps, findings)
    }

    fn patterns(&self, (corpus, source): (&str, &[u8]), findings: &mut Findings) -> Result<()> {
        let budget = BUDGET_PAGES[self.quick];
        let touches = TOUCHES[self.quick];
        let is_on_budget = |kind: &Kind| kind.swaps() && *kind != Kind::LoopSwap;
        for quarters in QUARTERS {
            for threads in [1, self.options.threads] {
                let pages = budget * quarters / 4;
                let times = quarters as f64 / 4.0;
                let figure = |at: usize| {
                    let name = Pattern::ALL[at / 2].name();
                    let metric = if at.is_multiple_of(2) { "mean" } else { "p99" };
                    let case = format!("{corpus}/{name}-{times}x-{threads}t");
                    (case, (metric, "us"))
                };
                let block = Block {
                    title: format!(
                        "{corpus}: {pages} pages, {times} times as many as fit, {threads} threads, a touch"
                    ),
                    ..Block::default()
                };
                let experiment: Experiment<PATTERNS> = Experiment {
                    name: "patterns",
                    plan: plan(program::Work::Patterns { touches }, pages, budget, threads),
                    source,
                    figures: std::array::from_fn(figure),
                    block,
                };
                self.measure(experiment, is_on_budget, findings)?;
                if self.options.threads == 1 {
                    break;
                }
            }
        }
        Ok(())
    }

    fn fits(&self, (corpus, source): (&str, &[u8]), findings: &mut Findings) -> Result<()> {
        let pages = PAGES[self.quick];
        let ns = |case: &str, metric| (format!("{corpus}/{case}"), (metric, "ns"));
        let figures = [
            ns("fitting-touch", "mean"),
            ns("first-touch", "time_per_page"),
        ];
        let block = Block {
            title: format!("{corpus}: {pages} pages that all fit, one thread on one CPU"),
            ..Block::default()
        };
        let touches = TOUCHES_OF_FITTING[self.quick];
        let experiment: Experiment<FITS> = Experiment {
            name: "fits",
            plan: plan(program::Work::Fits { touches }, pages, 2 * pages, 1),
            source,
            figures,
            block,
        };
        let is_memory = |kind: &Kind| matches!(kind, Kind::Ours { .. }) || !kind.swaps();
        self.measure(experiment, is_memory, findings)
    }

    /// Makes the experiment with each side that is `wanted`.
    fn measure<const N: usize>(
        &self,
        experiment: Experiment<'_, N>,
        wanted: impl Fn(&Kind) -> bool,
        findings: &mut Findings,
    ) -> Result<()> {
        let Experiment {
            name,
            plan,
            source,
            figures,
            mut block,
        } = experiment;
        let sides: Vec<&Side<Kind>> = self
            .kinds
            .iter()
            .filter(|side| wanted(&side.driven))
            .collect();
        let mut killed = 0;
        let turns = Turns {
            warms_up: false,
            ..Turns::of(name, sides.len(), Runs::Few)
        };
        let series = turns.take::<N>(self.options, &mut Progress::new(1), |turn| {
            let (figures, times) =
                sides::turn(sides[turn.side], &plan, source, &self.options.stop)?;
            killed += times;
            Ok(figures)
        })?;
        if killed > 0 {
            let note = "times the kernel killed a program in its cgroup, which was started again";
            block.notes.push(format!("{killed} {note}"));
        }
        let names: Vec<&str> = sides.iter().map(|side| side.name.as_str()).collect();
        let bytes = (plan.pages * crate::corpus::PAGE_BYTES) as u64;
        for (at, (case, metric)) in figures.into_iter().enumerate() {
            let of_figure: Vec<Series> = series.iter().map(|series| series[at].clone()).collect();
            let cell = Cell::new(case, metric, bytes);
            cell.add_all(&names, &of_figure, ours_over_theirs, &mut block);
        }
        findings.blocks.push(block);
        Ok(())
    }
}

/// A plan for any side: memory, algorithm and cgroup are the side's.
fn plan(work: program::Work, pages: usize, budget_pages: usize, threads: usize) -> Plan {
    Plan {
        memory: program::Memory::Small,
        algorithm: String::new(),
        work,
        pages,
        budget_pages,
        threads,
        group: None,
    }
}
