//! The rule: *the densest choice that a page's budget allows, or one clearly cheaper that is almost as
//! dense*, if the pages held back agree.
//!
//! Density is what compressed memory is for, so within a budget of time the densest is wanted; but a
//! hundredth of memory is not worth a tenth of the time. Choosing among dozens of choices by what they do to
//! some pages favours those that happen to suit these very pages (a dictionary trained on them, above
//! all). So a choice that *loses* on pages that took no part in choosing is dropped and the rule is
//! asked again: it loses if some choice that costs no more saves more there.

use super::Trial;
use crate::report;

/// Shares of memory this close are as good as each other.
const POINT: f64 = 0.01;
/// What costs at most this part of another is clearly cheaper.
const CLEARLY_CHEAPER: f64 = 0.9;
/// Share of memory from which on compressing is worth its while.
const WORTH: f64 = 0.05;
/// Choices on the front that are tried in further pools, at most.
pub(super) const FRONT_MAX: usize = 8;

/// What comes out.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Outcome {
    Recommended {
        index: usize,
        /// Choices that looked better and lost on the pages held back.
        dropped: Vec<usize>,
        /// Nothing fits the budget; this is the cheapest.
        is_over_budget: bool,
    },
    /// The most that anything saves of the pages held back.
    NotWorthIt { saved: f64 },
    /// Not everything was tried.
    Unfinished,
}

/// Applies the rule.
pub(super) fn recommend(trials: &[Trial], budget_ns: f64) -> Outcome {
    let cost = |index: &usize| trials[*index].figures.cost_ns();
    let all = || 0..trials.len();
    let Some(cheapest) = all().min_by(|a, b| cost(a).total_cmp(&cost(b))) else {
        return Outcome::Unfinished;
    };
    let is_over_budget = cost(&cheapest) > budget_ns;
    let mut candidates: Vec<usize> = all().filter(|index| cost(index) <= budget_ns).collect();
    if is_over_budget {
        candidates = vec![cheapest];
    }
    let mut dropped = Vec::new();
    while let Some(index) = densest(trials, &candidates) {
        if !loses(trials, index) {
            return worth(trials, index, dropped, is_over_budget);
        }
        dropped.push(index);
        candidates.retain(|other| *other != index);
    }
    // The cheapest is always a candidate and has nobody to lose to.
    Outcome::Unfinished
}

fn densest(trials: &[Trial], candidates: &[usize]) -> Option<usize> {
    let saved = |index: usize| trials[index].figures.saved_choosing;
    let cost = |index: usize| trials[index].figures.cost_ns();
    let by_density = |a: &&usize, b: &&usize| saved(**a).total_cmp(&saved(**b));
    let densest = *candidates.iter().max_by(by_density)?;
    let almost = candidates
        .iter()
        .copied()
        .filter(|&index| saved(index) >= saved(densest) - POINT);
    let cheapest = almost.min_by(|&a, &b| cost(a).total_cmp(&cost(b)))?;
    match cost(cheapest) <= cost(densest) * CLEARLY_CHEAPER {
        true => Some(cheapest),
        false => Some(densest),
    }
}

/// Whether something that costs no more saves more of the pages held back.
fn loses(trials: &[Trial], index: usize) -> bool {
    let own = &trials[index].figures;
    let beats = |other: &Trial| {
        other.figures.cost_ns() <= own.cost_ns()
            && other.figures.saved_held_back > own.saved_held_back + POINT
    };
    trials.iter().any(beats)
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
