//! Figures from several runs, and ratios taken pair by pair.

use serde::Serialize;

/// The measurements of each run, in the order of the runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series(Vec<f64>);

/// The least, the middle and the greatest of a series.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The least.
    pub min: f64,
    /// The middle one, or the mean of the middle two.
    pub median: f64,
    /// The greatest.
    pub max: f64,
    /// How many there are.
    pub runs: usize,
}

impl Series {
    /// Appends a run.
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// Runs so far.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The figures, in the order of the runs.
    pub fn values(&self) -> &[f64] {
        &self.0
    }

    /// `None` for a series without runs.
    pub fn spread(&self) -> Option<Spread> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let upper = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            1 => sorted[upper],
            _ => f64::midpoint(sorted[upper - 1], sorted[upper]),
        };
        Some(Spread {
            min,
            median,
            max,
            runs: sorted.len(),
        })
    }

    /// The mean and the standard deviation of the runs, `None` for a series without any.
    pub fn mean_and_deviation(&self) -> Option<(f64, f64)> {
        let count = self.0.len() as f64;
        let mean = self.0.iter().sum::<f64>() / count;
        let squares = self
            .0
            .iter()
            .map(|value| (value - mean).powi(2))
            .sum::<f64>();
        (!self.is_empty()).then(|| (mean, (squares / (count - 1.0).max(1.0)).sqrt()))
    }

    /// Run by run: this series' figure over the other's of the *same* run.
    ///
    /// The ratio of two medians would compare runs that never met the same noise.
    pub fn over(&self, denominator: &Series) -> Series {
        assert_eq!(
            self.len(),
            denominator.len(),
            "both sides of a ratio run alternately"
        );
        let pairs = self.0.iter().zip(&denominator.0);
        Series(pairs.map(|(top, bottom)| top / bottom).collect())
    }
}

impl From<Vec<f64>> for Series {
    fn from(values: Vec<f64>) -> Series {
        Series(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_count_is_between_the_middle_two() {
        let spread = Series::from(vec![4.0, 1.0, 3.0, 2.0]).spread().unwrap();
        assert_eq!(
            spread,
            Spread {
                min: 1.0,
                median: 2.5,
                max: 4.0,
                runs: 4
            }
        );
        let spread = Series::from(vec![9.0, 1.0, 3.0]).spread().unwrap();
        assert_eq!(
            spread,
            Spread {
                min: 1.0,
                median: 3.0,
                max: 9.0,
                runs: 3
            }
        );
        assert_eq!(Series::default().spread(), None);
    }

    /// Noise that hits a whole run cancels in the pairs, and would not in a ratio of medians.
    #[test]
    fn ratios_are_taken_pair_by_pair() {
        let subject = Series::from(vec![11.0, 22.0, 3.3]);
        let peer = Series::from(vec![10.0, 20.0, 3.0]);
        let ratio = subject.over(&peer).spread().unwrap();
        for value in [ratio.min, ratio.median, ratio.max] {
            assert!((value - 1.1).abs() < 1e-12, "{value}");
        }
        let subject = Series::from(vec![1.0, 4.0, 9.0]);
        let peer = Series::from(vec![2.0, 1.0, 3.0]);
        // Pairs 0.5, 4, 3: median 3. The medians alone, 4 / 2, would say 2.
        assert_eq!(subject.over(&peer).spread().unwrap().median, 3.0);
    }

    #[test]
    #[should_panic(expected = "alternately")]
    fn sides_of_unequal_length_are_no_pairs() {
        let _ = Series::from(vec![1.0]).over(&Series::default());
    }
}
