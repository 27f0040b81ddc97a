//! Claims and aims, and whether they held.

use serde::{Deserialize, Serialize};

use crate::sample::Spread;

/// A claim about figures of this report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Claim {
    /// The source of the claim.
    pub basis: Basis,
    /// Its subject.
    pub case: String,
    /// The claim.
    pub claim: String,
    /// The measurement, in words and figures.
    pub measured: String,
    /// Whether it held.
    pub standing: Standing,
    /// The reason, where one is known.
    pub why: String,
}

/// The source of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// An aim of uzram.
    Aim,
    /// A published claim.
    Published,
}

/// Whether a claim held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// All runs confirm it.
    Held,
    /// No run confirms it.
    NotHeld,
    /// Some runs confirm it and some do not: nothing is concluded.
    WithinSpread,
}

impl Claim {
    /// An aim, with no more to say about it.
    pub fn aim(case: String, claim: String, measured: String, standing: Standing) -> Claim {
        Claim {
            basis: Basis::Aim,
            case,
            claim,
            measured,
            standing,
            why: String::new(),
        }
    }
}

impl Standing {
    /// The standing of a claim about several figures: one that fails is enough to fail all.
    pub fn of_all(standings: impl IntoIterator<Item = Standing>) -> Standing {
        let mut all = Standing::Held;
        for standing in standings {
            all = match (all, standing) {
                (Standing::NotHeld, _) | (_, Standing::NotHeld) => Standing::NotHeld,
                (Standing::WithinSpread, _) => Standing::WithinSpread,
                (Standing::Held, standing) => standing,
            };
        }
        all
    }

    /// The standing of the claim that a figure is at most `limit`, over all runs.
    pub fn at_most(limit: f64, spread: Spread) -> Standing {
        if spread.max <= limit {
            Standing::Held
        } else if spread.min > limit {
            Standing::NotHeld
        } else {
            Standing::WithinSpread
        }
    }

    /// The standing of the claim that a figure is at least `limit`, over all runs.
    pub fn at_least(limit: f64, spread: Spread) -> Standing {
        if spread.min >= limit {
            Standing::Held
        } else if spread.max < limit {
            Standing::NotHeld
        } else {
            Standing::WithinSpread
        }
    }

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Standing::Held => "held",
            Standing::NotHeld => "NOT HELD",
            Standing::WithinSpread => "within the spread",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Series;

    #[test]
    fn a_claim_stands_or_falls_only_outside_the_spread() {
        let spread = Series::from(vec![1.0, 1.1, 1.3]).spread().unwrap();
        assert_eq!(Standing::at_most(1.3, spread), Standing::Held);
        assert_eq!(Standing::at_most(1.2, spread), Standing::WithinSpread);
        assert_eq!(Standing::at_most(0.9, spread), Standing::NotHeld);
        assert_eq!(Standing::at_least(1.0, spread), Standing::Held);
        assert_eq!(Standing::at_least(1.2, spread), Standing::WithinSpread);
        assert_eq!(Standing::at_least(1.4, spread), Standing::NotHeld);
    }

    #[test]
    fn a_claim_about_several_figures_is_as_good_as_the_worst() {
        use Standing::{Held, NotHeld, WithinSpread};
        assert_eq!(Standing::of_all([Held, Held]), Held);
        assert_eq!(Standing::of_all([Held, WithinSpread, Held]), WithinSpread);
        assert_eq!(Standing::of_all([WithinSpread, NotHeld, Held]), NotHeld);
    }
}
