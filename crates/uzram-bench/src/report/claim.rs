//! What was claimed or aimed at, and whether it held here.

use serde::Serialize;

use crate::sample::Spread;

/// A claim about figures of this report.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Claim {
    pub(crate) case: String,
    pub(crate) claim: String,
    /// What was measured, in words and figures.
    pub(crate) measured: String,
    pub(crate) standing: Standing,
    /// The reason, where one is known.
    pub(crate) why: String,
}

/// Whether a claim held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Standing {
    Held,
    NotHeld,
    /// Some runs say so and some do not: nothing is concluded.
    WithinSpread,
}

impl Standing {
    /// Of the claim that a figure is at most `limit`, over all runs.
    pub(crate) fn at_most(limit: f64, spread: Spread) -> Standing {
        if spread.max <= limit {
            Standing::Held
        } else if spread.min > limit {
            Standing::NotHeld
        } else {
            Standing::WithinSpread
        }
    }

    /// Of the claim that a figure is at least `limit`, over all runs.
    pub(crate) fn at_least(limit: f64, spread: Spread) -> Standing {
        if spread.min >= limit {
            Standing::Held
        } else if spread.max < limit {
            Standing::NotHeld
        } else {
            Standing::WithinSpread
        }
    }

    pub(crate) fn name(self) -> &'static str {
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
}
