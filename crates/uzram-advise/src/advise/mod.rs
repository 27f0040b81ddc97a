//! `uzram advise`: which codec, level, unit and pool suit these pages.
//!
//! The sample is parted by runs of 64 KiB: one of four trains a dictionary, the others judge. Every
//! choice is put through a real store. Its memory is the store's own count. Its cost is that of one
//! 4 KiB page at a random place, also where a larger unit must be read, changed and compressed again
//! for it. The printed figures are those that decided.
//!
//! `rule` is the rule for the recommendation, with its reasons. The choices whose costs decide are
//! measured again, in turns, so that a disturbance does not hit one of them alone.

mod advice;
mod choice;
mod measure;
mod output;
mod rule;
mod split;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use crate::command;
use crate::corpus::PAGE_BYTES;
use crate::error::Result;
use crate::machine;
use crate::progress::Progress;
use crate::report;
use crate::stop::Stop;
use advice::Advice;
use choice::{Choice, Setting};
use measure::{Effort, Measuring, Trial};
use split::Split;

pub use choice::{DICTIONARY, parse_budget};
pub use split::{PAGES_MIN, RUN_PAGES, Sample};

/// The budget per page by default, in and out together: a third of the time in which a fast SSD
/// reads one.
pub const BUDGET: Duration = Duration::from_micros(30);
/// How often the choices whose costs decide are measured again.
const ROUNDS_MORE: usize = 3;
/// How often a choice that costs little more than the budget is measured again, at most.
const ROUNDS_DOUBTFUL: usize = 12;
/// Fewest pages to train on: a megabyte.
const TRAINING_PAGES_MIN: usize = 256;

/// The options.
#[derive(Clone, Debug)]
pub struct Options {
    /// The budget for one 4 KiB page, written and read once.
    pub budget: Duration,
    /// Fewer choices and shorter measuring.
    pub quick: bool,
    /// Print JSON instead of a table.
    pub json: bool,
    /// Also write a page with a chart there.
    pub html: Option<PathBuf>,
}

/// Measures, and prints the advice.
///
/// # Errors
/// [`Error::Failed`](crate::Error::Failed) for a sample that is too small or that no choice matters for,
/// [`Error::Interrupted`](crate::Error::Interrupted), after what was measured until then was written.
pub fn run(sample: &Sample, options: &Options) -> Result<()> {
    let stop = Stop::on_signals()?;
    if let Some(path) = &options.html {
        command::check_writable("html", Some(path))?;
    }
    let split = Split::of(sample)?;
    if !report::is_optimised() {
        eprintln!("uzram: WARNING: a build without optimisation; its times mean NOTHING");
    }
    let mut settings = choice::settings(options.quick);
    settings.extend(trained(&split));
    let mut trials = Vec::new();
    let cpus = machine::allowed_cpus();
    let effort = Effort::new(options.quick);
    let stored_bytes = sample.pages_total as f64 * PAGE_BYTES as f64;
    let budget_ns = options.budget.as_nanos() as f64;
    let how = (effort, budget_ns);
    let measured = try_all(&split, stored_bytes, &settings, how, &stop, &mut trials);
    machine::restrict_to(&cpus)?;
    let stopped = measured.as_ref().err().map(ToString::to_string);
    let advice = Advice::new(sample, &split, trials, options.budget, stopped);
    if !advice.trials.is_empty() {
        output::print(&advice, options.json)?;
        if let Some(path) = &options.html {
            report::write_html(&output::report(&advice), path)?;
        }
    }
    measured
}

/// Settings with a dictionary from the pages to train on, if there are enough and they have
/// something in common.
fn trained(split: &Split) -> Vec<Setting> {
    let samples = split.samples();
    if samples.len() < TRAINING_PAGES_MIN {
        return Vec::new();
    }
    let dictionary = crate::train::dictionary(&samples);
    dictionary.map_or_else(
        |_| Vec::new(),
        |bytes| choice::with_dictionary(&bytes.into()),
    )
}

/// Tries every setting at every unit in the default pool, then those that may be recommended in the
/// others; last, the choices whose costs decide are measured again, in turns.
fn try_all(
    split: &Split,
    stored_bytes: f64,
    settings: &[Setting],
    (effort, budget_ns): (Effort, f64),
    stop: &Stop,
    trials: &mut Vec<Trial>,
) -> Result<()> {
    // The last CPU: the first one is where interrupts go by default.
    if let Some(&cpu) = machine::allowed_cpus().last() {
        machine::pin_to(cpu)?;
    }
    let pools = uzram::pools();
    let first: usize = settings.iter().map(|setting| setting.units().count()).sum();
    let most = first + rule::CONTENDERS_MAX * (pools.len() - 1) + ROUNDS_MORE;
    let mut progress = Progress::new(most);
    let try_one = |choice: Choice, progress: &mut Progress| -> Result<Trial> {
        stop.check()?;
        progress.at(&choice.to_string(), 0.0);
        let figures = Measuring::new(&choice, split, stored_bytes)?.run(effort, stop)?;
        progress.step();
        Ok(Trial {
            choice,
            figures,
            is_on_front: false,
            is_tied: false,
        })
    };
    for setting in settings {
        for unit in setting.units() {
            trials.push(try_one(setting.choice(unit, pools[0]), &mut progress)?);
        }
    }
    let again = |indexes: &[usize], trials: &mut [Trial]| {
        measure_again(split, stored_bytes, effort, stop, indexes, trials)
    };
    again(&rule::close(trials, budget_ns), trials)?;
    for _ in 0..ROUNDS_DOUBTFUL {
        let doubtful = rule::doubtful(trials, budget_ns);
        // Nothing is measured any more that could change the answer.
        if doubtful.is_empty() {
            break;
        }
        again(&doubtful, trials)?;
    }
    for index in rule::contenders(trials, budget_ns) {
        let choice = trials[index].choice.clone();
        for pool in &pools[1..] {
            trials.push(try_one(choice.in_pool(pool), &mut progress)?);
        }
    }
    for _ in 0..ROUNDS_MORE {
        progress.at("those that are close, once more", 0.0);
        again(&rule::close(trials, budget_ns), trials)?;
        progress.step();
    }
    Ok(())
}

/// Measures these choices' costs once more, one after the other.
fn measure_again(
    split: &Split,
    stored_bytes: f64,
    effort: Effort,
    stop: &Stop,
    indexes: &[usize],
    trials: &mut [Trial],
) -> Result<()> {
    for &index in indexes {
        let Trial {
            choice, figures, ..
        } = &mut trials[index];
        Measuring::new(choice, split, stored_bytes)?.time_again(figures, effort, stop)?;
    }
    Ok(())
}
