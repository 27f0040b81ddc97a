//! The rule, in three steps, each with a tolerance, so that noise does not decide:
//!
//! 1. Of the choices whose page stays within the budget, the densest: the one that leaves the least
//!    memory in use.
//! 2. Choices that leave at most 1 % more than that are *as dense*. Of those, the cheapest.
//! 3. Choices that are not dearer than that beyond the noise are *as cheap*. Of those, the first in a
//!    fixed order: by pool, the default first; then by unit, the smallest first; then by codec.
//!
//! Memory is compared by what remains of it: from 5 % to 4 % saves a fifth of what is paid for, though it
//! is a hundredth of the original.
//!
//! Choosing among dozens of choices by what they do to some pages favours those that happen to suit
//! these very pages (a dictionary trained on them, above all). So a choice that *loses* on pages that
//! took no part in choosing is dropped and the rule is asked again: it loses if some choice that is as
//! cheap leaves clearly less of those pages.

use super::measure::{Figures, Trial};
use crate::report;

/// Choices that leave this much more in use, as a share of what the densest leaves, are as dense as it.
const AS_DENSE: f64 = 0.01;
/// Choices that cost this much more, as a share, are as cheap; more than that where the runs spread
/// further.
const AS_CHEAP: f64 = 0.1;
/// A choice may leave this much more of the pages held back than another, as a share: the halves of a
/// sample differ by as much.
const LUCK: f64 = 0.05;
/// Share of memory from which on compressing is worth its while.
const WORTH: f64 = 0.05;
/// Choices that are tried in further pools, at most.
pub(super) const CONTENDERS_MAX: usize = 8;
/// Choices that are measured once more, at most.
const CLOSE_MAX: usize = 16;
/// How far a cost may be from the budget, as a share of it, to be measured once more.
const NEAR_BUDGET: f64 = 0.2;

/// The result.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Outcome {
    Recommended {
        index: usize,
        /// Choices that looked better and lost on the pages held back.
        dropped: Vec<usize>,
        /// Whether no choice fits the budget; this one is then the cheapest.
        is_over_budget: bool,
    },
    /// No choice is worth its cost; `saved` is the best share of the pages held back.
    NotWorthIt { saved: f64 },
    /// Not everything was tried.
    Unfinished,
}

/// Applies the rule.
pub(super) fn recommend(trials: &[Trial], budget_ns: f64) -> Outcome {
    let (all, is_over_budget) = candidates(trials, budget_ns);
    let mut candidates = all.clone();
    let mut dropped = Vec::new();
    while let Some(index) = best(trials, &candidates) {
        if !loses(trials, &all, index) {
            return worth(trials, index, dropped, is_over_budget);
        }
        dropped.push(index);
        candidates.retain(|other| *other != index);
    }
    // The one that leaves the least of the pages held back has nobody to lose to.
    Outcome::Unfinished
}

/// The choices to try in further pools, in the order of `trials`: the densest of those that fit the
/// budget, or may with less noise, and that no other beats in both memory and cost.
pub(super) fn contenders(trials: &[Trial], budget_ns: f64) -> Vec<usize> {
    let (candidates, _) = candidates(trials, budget_ns * (1.0 + NEAR_BUDGET));
    let is_beaten = |own: &Figures| {
        let beats = |other: &usize| {
            let other = &trials[*other].figures;
            other.remaining_choosing() <= own.remaining_choosing() && !is_as_cheap(own, other)
        };
        candidates.iter().any(beats)
    };
    let mut found: Vec<usize> = candidates.clone();
    found.retain(|index| !is_beaten(&trials[*index].figures));
    by_density(trials, &mut found);
    found.truncate(CONTENDERS_MAX);
    found.sort_unstable();
    found
}

/// The choices whose costs decide, to be measured once more: those that are as dense as the densest
/// within the budget, and denser ones that are near the budget.
pub(super) fn close(trials: &[Trial], budget_ns: f64) -> Vec<usize> {
    let (candidates, is_over_budget) = candidates(trials, budget_ns);
    let Some(densest) = densest(trials, &candidates) else {
        return Vec::new();
    };
    let most = as_dense(&trials[densest].figures);
    let is_near = |own: &Figures| (own.cost_ns() / budget_ns - 1.0).abs() <= NEAR_BUDGET;
    let decides = |index: &usize| {
        let own = &trials[*index].figures;
        let is_candidate = candidates.contains(index);
        own.remaining_choosing() <= most && (is_candidate || is_near(own) || is_over_budget)
    };
    let mut found: Vec<usize> = (0..trials.len()).filter(decides).collect();
    by_density(trials, &mut found);
    found.truncate(CLOSE_MAX);
    found
}

/// The choices within the budget, or the cheapest alone where none is: then the second is true.
fn candidates(trials: &[Trial], budget_ns: f64) -> (Vec<usize>, bool) {
    let cost = |index: &usize| trials[*index].figures.cost_ns();
    let all = 0..trials.len();
    let within: Vec<usize> = all.clone().filter(|at| cost(at) <= budget_ns).collect();
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
    let band: Vec<usize> = all
        .filter(|&at| figures(at).remaining_choosing() <= most)
        .collect();
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
    let remaining = |index: usize| trials[index].figures.remaining_choosing();
    choices.sort_by(|&a, &b| {
        let density = remaining(a).total_cmp(&remaining(b));
        density.then_with(|| preference(trials, a).cmp(&preference(trials, b)))
    });
}

/// The most that a choice as dense as this one leaves.
fn as_dense(densest: &Figures) -> f64 {
    densest.remaining_choosing() * (1.0 + AS_DENSE)
}

/// Whether `own` costs no more than `other`, beyond the spread of both.
fn is_as_cheap(own: &Figures, other: &Figures) -> bool {
    let tolerance = AS_CHEAP.max(own.noise()).max(other.noise());
    own.cost_ns() <= other.cost_ns() * (1.0 + tolerance)
}

/// The place in the fixed order; the least is preferred.
fn preference(trials: &[Trial], index: usize) -> (Option<usize>, usize, usize) {
    let choice = &trials[index].choice;
    let pool = uzram::pools().iter().position(|pool| *pool == choice.pool);
    (pool, choice.unit.bytes(), index)
}

/// Whether a candidate with the same cost leaves clearly less of the pages held back.
fn loses(trials: &[Trial], candidates: &[usize], index: usize) -> bool {
    let own = &trials[index].figures;
    let beats = |other: &usize| {
        let other = &trials[*other].figures;
        is_as_cheap(other, own)
            && other.remaining_held_back() * (1.0 + LUCK) < own.remaining_held_back()
    };
    candidates.iter().any(beats)
}

fn worth(trials: &[Trial], index: usize, dropped: Vec<usize>, is_over_budget: bool) -> Outcome {
    let saved = trials[index].figures.saved_held_back;
    if saved >= WORTH {
        return Outcome::Recommended {
            index,
            dropped,
            is_over_budget,
        };
    }
    let all = trials.iter().map(|trial| trial.figures.saved_held_back);
    Outcome::NotWorthIt {
        saved: all.fold(0.0, f64::max),
    }
}

/// Marks the choices that no other beats, on the pages held back.
pub(super) fn mark_front(trials: &mut [Trial]) {
    let points = trials.iter().map(|trial| {
        let figures = &trial.figures;
        (figures.cost_ns(), -figures.saved_held_back)
    });
    let points: Vec<(f64, f64)> = points.collect();
    for (trial, is_on_front) in trials.iter_mut().zip(report::front(&points)) {
        trial.is_on_front = is_on_front;
    }
}
