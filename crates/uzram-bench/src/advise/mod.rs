//! `uzram advise`: which codec, level, unit and pool suit these pages.
//!
//! The sample is parted by runs of 64 KiB: one half is for training a dictionary and for choosing,
//! with different pages, the other is held back. Every
//! choice is put through a real store: its memory is the store's own count, and its
//! cost is that of one 4 KiB page at a random place, also where a larger unit has to be read,
//! changed and compressed again for it. What is shown was measured on the pages held back.
//!
//! `rule` is the rule by which one choice is recommended, and why.

mod choice;
mod measure;
mod output;
mod rule;
mod split;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use crate::corpus::PAGE_BYTES;
use crate::error::Result;
use crate::machine;
use crate::progress::Progress;
use crate::report;
use crate::stop::Stop;
use choice::{Choice, Setting};
use measure::{Effort, Figures, Measuring};
use rule::Outcome;
use split::Split;

pub use choice::{DICTIONARY, parse_budget};
pub use split::{PAGES_MIN, RUN_PAGES};

/// What a page may cost by default, in and out together: a third of what a fast SSD takes to read one.
pub const BUDGET: Duration = Duration::from_micros(30);
/// Fewer pages are not trained on: a megabyte.
const TRAINING_PAGES_MIN: usize = 256;

/// Pages to advise on.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Where they come from, for people: `process 1234`.
    pub name: String,
    /// Whole pages of 4 KiB in runs of [`RUN_PAGES`], at least [`PAGES_MIN`] of them.
    pub pages: Vec<u8>,
    /// Pages that there are, sampled or not.
    pub pages_total: u64,
    /// What to type to have [`DICTIONARY`] made from them.
    pub training: Vec<String>,
}

/// What to do with them.
#[derive(Clone, Debug)]
pub struct Options {
    /// What one 4 KiB page may cost, written and read once.
    pub budget: Duration,
    /// Fewer choices and shorter measuring.
    pub quick: bool,
    /// Print JSON instead of a table.
    pub json: bool,
    /// Also write a page with a chart there.
    pub html: Option<PathBuf>,
}

/// A choice with what was measured.
#[derive(Clone, Debug)]
struct Trial {
    choice: Choice,
    figures: Figures,
    /// No other is at least as good in memory and in cost and better in one of them.
    is_on_front: bool,
}

/// Everything that the output needs.
struct Advice<'a> {
    sample: &'a Sample,
    split: &'a Split,
    trials: Vec<Trial>,
    outcome: Outcome,
    budget: Duration,
    /// Why not everything was tried.
    stopped: Option<String>,
}

/// Measures, and prints the advice.
///
/// # Errors
/// [`Error::Failed`](crate::Error::Failed) for a sample that is too small or that no choice matters for,
/// [`Error::Interrupted`](crate::Error::Interrupted), after what was measured until then was written.
pub fn run(sample: &Sample, options: &Options) -> Result<()> {
    let stop = Stop::on_signals()?;
    if let Some(path) = &options.html {
        crate::cli::check_writable("html", Some(path))?;
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
    let measured = try_all(&split, stored_bytes, &settings, effort, &stop, &mut trials);
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

/// Settings with a dictionary from the pages to train on, if they are enough and have anything in
/// common.
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

/// Tries every setting at every unit in the default pool, then the best of them in the others.
fn try_all(
    split: &Split,
    stored_bytes: f64,
    settings: &[Setting],
    effort: Effort,
    stop: &Stop,
    trials: &mut Vec<Trial>,
) -> Result<()> {
    // The last CPU: the first one is where interrupts go by default.
    if let Some(&cpu) = machine::allowed_cpus().last() {
        machine::pin_to(cpu)?;
    }
    let pools = uzram::pools();
    let first: usize = settings.iter().map(|setting| setting.units().count()).sum();
    let mut progress = Progress::new(first + rule::FRONT_MAX * (pools.len() - 1));
    let try_one = |choice: Choice, progress: &mut Progress| -> Result<Trial> {
        stop.check()?;
        progress.at(&choice.to_string(), 0.0);
        let figures = Measuring::new(&choice, split, stored_bytes)?.run(effort, stop)?;
        progress.step();
        let is_on_front = false;
        Ok(Trial {
            choice,
            figures,
            is_on_front,
        })
    };
    for setting in settings {
        for unit in setting.units() {
            trials.push(try_one(setting.choice(unit, pools[0]), &mut progress)?);
        }
    }
    rule::mark_front(trials);
    let front = trials.iter().filter(|trial| trial.is_on_front);
    let front: Vec<Choice> = front
        .take(rule::FRONT_MAX)
        .map(|trial| trial.choice.clone())
        .collect();
    for choice in &front {
        for pool in &pools[1..] {
            trials.push(try_one(choice.in_pool(pool), &mut progress)?);
        }
    }
    Ok(())
}

impl<'a> Advice<'a> {
    fn new(
        sample: &'a Sample,
        split: &'a Split,
        mut trials: Vec<Trial>,
        budget: Duration,
        stopped: Option<String>,
    ) -> Advice<'a> {
        rule::mark_front(&mut trials);
        let outcome = match stopped {
            Some(_) => Outcome::Unfinished,
            None => rule::recommend(&trials, budget.as_nanos() as f64),
        };
        Advice {
            sample,
            split,
            trials,
            outcome,
            budget,
            stopped,
        }
    }

    fn recommended(&self) -> Option<&Trial> {
        match self.outcome {
            Outcome::Recommended { index, .. } => self.trials.get(index),
            Outcome::NotWorthIt { .. } | Outcome::Unfinished => None,
        }
    }
}
