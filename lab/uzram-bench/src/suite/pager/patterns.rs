//! The choices of the page that is touched next, as pmbench makes them.

use uzram_testkit::Rng;

/// Of zipf's law: the page of rank `n` is touched in proportion to `n` to the power of minus this.
const ZIPF_EXPONENT: f64 = 0.99;
/// Touches among ten that go to the hot fifth of the pages.
const HOT_TENTHS: usize = 8;
const HOT_PART: usize = 5;

/// A choice of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// Any, all alike.
    Uniform,
    /// Mostly those in the middle.
    Normal,
    /// Few of them most of the time, which lie anywhere.
    Zipf,
    /// Four of five touches go to a fifth of the pages, which lie together.
    EightyTwenty,
}

impl Pattern {
    pub(super) const ALL: [Pattern; 4] = [
        Pattern::Uniform,
        Pattern::Normal,
        Pattern::Zipf,
        Pattern::EightyTwenty,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Pattern::Uniform => "uniform",
            Pattern::Normal => "normal",
            Pattern::Zipf => "zipf",
            Pattern::EightyTwenty => "80-20",
        }
    }

    /// `count` touches of `pages` pages, the same for the same seed.
    pub(super) fn touches(self, pages: usize, count: usize, seed: u64) -> Vec<u32> {
        let mut rng = Rng::new(seed);
        let zipf = match self {
            Pattern::Zipf => Some(Zipf::new(pages, &mut rng)),
            _ => None,
        };
        let mut next = || match &zipf {
            Some(zipf) => zipf.next(&mut rng),
            None => self.page(pages, &mut rng),
        };
        (0..count).map(|_| next() as u32).collect()
    }

    fn page(self, pages: usize, rng: &mut Rng) -> usize {
        match self {
            // The mean of four uniform numbers is near enough to a normal one.
            Pattern::Normal => (0..4).map(|_| rng.below(pages)).sum::<usize>() / 4,
            Pattern::EightyTwenty => {
                let hot = pages / HOT_PART;
                match rng.below(10) < HOT_TENTHS {
                    true => rng.below(hot.max(1)),
                    false => hot + rng.below(pages - hot),
                }
            }
            Pattern::Uniform | Pattern::Zipf => rng.below(pages),
        }
    }
}

/// Zipf's law over pages in a random order.
struct Zipf {
    /// Weights of the ranks so far, added up.
    sums: Vec<f64>,
    pages: Vec<u32>,
}

impl Zipf {
    fn new(pages: usize, rng: &mut Rng) -> Zipf {
        let mut sum = 0.0;
        let weights = (1..=pages).map(|rank| (rank as f64).powf(-ZIPF_EXPONENT));
        let sums = weights.map(|weight| {
            sum += weight;
            sum
        });
        let sums = sums.collect();
        let mut pages: Vec<u32> = (0..pages as u32).collect();
        rng.shuffle(&mut pages);
        Zipf { sums, pages }
    }

    fn next(&self, rng: &mut Rng) -> usize {
        let all = self.sums.last().copied().unwrap_or_default();
        let at = (rng.next() >> 11) as f64 / (1_u64 << 53) as f64 * all;
        let rank = self.sums.partition_point(|sum| *sum <= at);
        self.pages[rank.min(self.pages.len() - 1)] as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pattern_touches_its_share_of_hot_pages() {
        for (pattern, hottest_part) in [
            (Pattern::Uniform, 0.2..0.25),
            (Pattern::Normal, 0.45..0.6),
            (Pattern::Zipf, 0.75..0.9),
            (Pattern::EightyTwenty, 0.79..0.85),
        ] {
            let touches = pattern.touches(1000, 100_000, 3);
            let mut counts = vec![0; 1000];
            touches.iter().for_each(|page| counts[*page as usize] += 1);
            counts.sort_unstable();
            let hottest: i32 = counts[800..].iter().sum();
            let part = f64::from(hottest) / 100_000.0;
            assert!(hottest_part.contains(&part), "{pattern:?}: {part}");
            assert_eq!(touches, pattern.touches(1000, 100_000, 3));
        }
        assert_eq!(Pattern::EightyTwenty.touches(1, 2, 1), [0, 0]);
    }
}
