//! The rule, in three steps, each with a margin, so that noise does not decide:
//!
//! 1. Of the choices whose page stays within the budget, or is at most a twentieth above it, the densest:
//!    the one that leaves the least memory in use.
//! 2. Choices that leave at most 1 % more than that are *as dense*. Of those, the cheapest.
//! 3. Choices that are as dense and cost at most a quarter more than that are *as good*. Of those, the
//!    first in a fixed order: without a dictionary first; then by pool, the default first; then by unit,
//!    the smallest first; then by what the codec costs as a rule.
//!
//! Memory is compared by what remains of it: from 5 % to 4 % saves a fifth of what is paid for, though it
//! is a hundredth of the original. It is counted and not timed, so it is the same each time.
//!
//! Times differ from run to run by some percent, and two choices that are as dense are often two levels of
//! one codec, which differ by little more. The fixed order has the usual cheapest first. So only a
//! machine on which another is cheaper by a quarter gets another answer.
//!
//! A cost is the least of its runs, and disturbances only add to it. So a choice that was once seen within
//! the budget stays there, and one that is little above it is measured again, in rounds that lie apart,
//! until it is within or has had its rounds. What is still above then is so by more than the twentieth,
//! which is twice what the least of 25 runs differed by from one advice to the next. No rule can hold a
//! choice that costs just that; it is left as the only one that noise can decide.
//!
//! The pages that decide are those that the shown figures were measured on. So a choice that saves more
//! *and* costs less than the recommended one can only be as good as it. Such choices are *tied* and are
//! not shown: they would look better by what is noise.

use super::choice::Choice;
use super::measure::{Figures, Trial};
use crate::report;

/// Choices that leave this much more in use, as a share of what the densest leaves, are as dense as it.
const AS_DENSE: f64 = 0.01;
/// Choices that cost this much more, as a share, are as cheap. More than the noise of a busy machine and
/// the difference between neighbouring levels, so that neither decides.
const AS_CHEAP: f64 = 0.25;
/// Choices that cost this much more than the budget, as a share, are within it.
const AT_BUDGET: f64 = 0.05;
/// Choices that cost this much more than the most that is within, as a share, may still turn out to be.
const DOUBTFUL: f64 = 0.25;
/// Share of memory from which on compressing is worth its while.
const WORTH: f64 = 0.05;
/// Choices that are tried in further pools, at most.
pub(super) const CONTENDERS_MAX: usize = 8;
/// Choices that are measured once more, at most.
const CLOSE_MAX: usize = 16;
/// Choices that cost up to this many budgets are measured once more: another process may have had the
/// core's other half for all of their first runs.
const MAY_FIT: f64 = 2.0;

/// The result.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Outcome {
    Recommended {
        index: usize,
        /// Whether no choice fits the budget; this one is then the cheapest.
        is_over_budget: bool,
    },
    /// No choice is worth its cost; `saved` is the best share.
    NotWorthIt { saved: f64 },
    /// Not everything was tried.
    Unfinished,
}

/// Applies the rule.
pub(super) fn recommend(trials: &[Trial], budget_ns: f64) -> Outcome {
    let (candidates, is_over_budget) = candidates(trials, budget_ns);
    let Some(index) = best(trials, &candidates) else {
        return Outcome::Unfinished;
    };
    if trials[index].figures.saved >= WORTH {
        return Outcome::Recommended {
            index,
            is_over_budget,
        };
    }
    let all = trials.iter().map(|trial| trial.figures.saved);
    Outcome::NotWorthIt {
        saved: all.fold(0.0, f64::max),
    }
}

/// The choices to try in further pools, in the order of `trials`: the densest of those that fit the
/// budget.
pub(super) fn contenders(trials: &[Trial], budget_ns: f64) -> Vec<usize> {
    let (mut found, _) = candidates(trials, budget_ns);
    by_density(trials, &mut found);
    found.truncate(CONTENDERS_MAX);
    found.sort_unstable();
    found
}

/// The choices whose costs decide, to be measured once more: those that are as dense as the densest
/// within the budget, and denser ones that may fit.
pub(super) fn close(trials: &[Trial], budget_ns: f64) -> Vec<usize> {
    let (candidates, is_over_budget) = candidates(trials, budget_ns);
    let Some(densest) = densest(trials, &candidates) else {
        return Vec::new();
    };
    let most = as_dense(&trials[densest].figures);
    let may_fit = |own: &Figures| own.cost_ns() <= budget_ns * MAY_FIT;
    let decides = |index: &usize| {
        let own = &trials[*index].figures;
        own.remaining() <= most && (may_fit(own) || is_over_budget)
    };
    let mut found: Vec<usize> = (0..trials.len()).filter(decides).collect();
    by_density(trials, &mut found);
    found.truncate(CLOSE_MAX);
    found
}

/// Those of the close ones that only just exceed the budget, so that a disturbance may be all that does.
pub(super) fn doubtful(trials: &[Trial], budget_ns: f64) -> Vec<usize> {
    let mut found = close(trials, budget_ns);
    let most = most_ns(budget_ns);
    found.retain(|&index| {
        let cost = trials[index].figures.cost_ns();
        cost > most && cost <= most * (1.0 + DOUBTFUL)
    });
    found
}

/// The most that a choice within the budget costs.
fn most_ns(budget_ns: f64) -> f64 {
    budget_ns * (1.0 + AT_BUDGET)
}

/// The choices within the budget, or the cheapest alone where none is: then the second is true.
fn candidates(trials: &[Trial], budget_ns: f64) -> (Vec<usize>, bool) {
    let cost = |index: &usize| trials[*index].figures.cost_ns();
    let all = 0..trials.len();
    let within = all.clone().filter(|at| cost(at) <= most_ns(budget_ns));
    let within: Vec<usize> = within.collect();
    if !within.is_empty() {
        return (within, false);
    }
    let cheapest = all.min_by(|a, b| cost(a).total_cmp(&cost(b)));
    (cheapest.into_iter().collect(), true)
}

/// The second and the third step.
pub(super) fn best(trials: &[Trial], candidates: &[usize]) -> Option<usize> {
    let figures = |index: usize| &trials[index].figures;
    let densest = densest(trials, candidates)?;
    let most = as_dense(figures(densest));
    let all = candidates.iter().copied();
    let band: Vec<usize> = all.filter(|&at| figures(at).remaining() <= most).collect();
    let cost = |index: usize| figures(index).cost_ns();
    let by_cost = |a: &usize, b: &usize| cost(*a).total_cmp(&cost(*b));
    let cheapest = band.iter().copied().min_by(by_cost)?;
    let as_cheap = band
        .into_iter()
        .filter(|&at| is_as_cheap(figures(at), figures(cheapest)));
    as_cheap.min_by_key(|&index| preference(trials, index))
}

fn densest(trials: &[Trial], candidates: &[usize]) -> Option<usize> {
    let mut candidates = candidates.to_vec();
    by_density(trials, &mut candidates);
    candidates.first().copied()
}

/// The densest first; the same density in the fixed order.
fn by_density(trials: &[Trial], choices: &mut [usize]) {
    let remaining = |index: usize| trials[index].figures.remaining();
    choices.sort_by(|&a, &b| {
        let density = remaining(a).total_cmp(&remaining(b));
        density.then_with(|| preference(trials, a).cmp(&preference(trials, b)))
    });
}

/// The most that a choice as dense as this one leaves.
fn as_dense(densest: &Figures) -> f64 {
    densest.remaining() * (1.0 + AS_DENSE)
}

/// Whether `own` costs no more than `other`, beyond the margin.
fn is_as_cheap(own: &Figures, other: &Figures) -> bool {
    own.cost_ns() <= other.cost_ns() * (1.0 + AS_CHEAP)
}

/// The place in the fixed order; the least is preferred.
fn preference(trials: &[Trial], index: usize) -> impl Ord {
    let Choice {
        setting,
        unit,
        pool,
    } = &trials[index].choice;
    let pool = uzram::pools().iter().position(|known| known == pool);
    let has_dictionary = setting.dictionary_bytes > 0;
    (has_dictionary, pool, unit.bytes(), setting.rank(), index)
}

/// Marks the choices that are tied with the recommended one, then those that no other beats.
pub(super) fn mark(trials: &mut [Trial], outcome: &Outcome) {
    let best = match *outcome {
        Outcome::Recommended { index, .. } => Some(point(&trials[index].figures)),
        Outcome::NotWorthIt { .. } | Outcome::Unfinished => None,
    };
    let mut shown = Vec::new();
    for trial in trials {
        let own = point(&trial.figures);
        trial.is_tied = best.is_some_and(|best| own != best && own.0 <= best.0 && own.1 <= best.1);
        if !trial.is_tied {
            shown.push((own, trial));
        }
    }
    let points: Vec<(f64, f64)> = shown.iter().map(|(point, _)| *point).collect();
    for ((_, trial), is_on_front) in shown.into_iter().zip(report::front(&points)) {
        trial.is_on_front = is_on_front;
    }
}

/// Less is better, in both.
fn point(figures: &Figures) -> (f64, f64) {
    (figures.cost_ns(), figures.remaining())
}
