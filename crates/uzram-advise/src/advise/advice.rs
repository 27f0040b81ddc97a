//! The trials of a sample, and the result.

use std::time::Duration;

use super::measure::Trial;
use super::rule::{self, Outcome};
use super::split::{Sample, Split};

/// Everything that the output needs.
pub(super) struct Advice<'a> {
    pub(super) sample: &'a Sample,
    pub(super) split: &'a Split,
    pub(super) trials: Vec<Trial>,
    pub(super) outcome: Outcome,
    pub(super) budget: Duration,
    /// The reason why not everything was tried.
    pub(super) stopped: Option<String>,
}

impl<'a> Advice<'a> {
    pub(super) fn new(
        sample: &'a Sample,
        split: &'a Split,
        mut trials: Vec<Trial>,
        budget: Duration,
        stopped: Option<String>,
    ) -> Advice<'a> {
        let outcome = match stopped {
            Some(_) => Outcome::Unfinished,
            None => rule::recommend(&trials, budget.as_nanos() as f64),
        };
        rule::mark(&mut trials, &outcome);
        Advice {
            sample,
            split,
            trials,
            outcome,
            budget,
            stopped,
        }
    }

    pub(super) fn recommended(&self) -> Option<&Trial> {
        match self.outcome {
            Outcome::Recommended { index, .. } => self.trials.get(index),
            Outcome::NotWorthIt { .. } | Outcome::Unfinished => None,
        }
    }
}
