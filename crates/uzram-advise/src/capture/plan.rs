//! The choice of pages when not all are wanted: runs of consecutive pages, evenly spread.

/// Size of a corpus page, in bytes, whatever the system's page size.
pub const PAGE_BYTES: u64 = 4096;
/// Consecutive pages taken together, so that multi-page units can be measured on a corpus too.
pub const RUN_PAGES: u64 = 16;
const RUN_BYTES: u64 = RUN_PAGES * PAGE_BYTES;

/// A range of addresses or of a file, in bytes; whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First byte.
    pub start: u64,
    /// Length.
    pub bytes: u64,
}

/// At most `pages_max` pages of `segments`: everything if that fits, else runs spread evenly.
///
/// Full runs come first and shorter ends of segments last, so every full run lies at a multiple of
/// its size in the corpus.
pub fn plan(segments: &[Segment], pages_max: u64) -> Vec<Segment> {
    let full_runs: u64 = segments.iter().map(|s| s.bytes / RUN_BYTES).sum();
    let wanted_runs = full_runs.min(pages_max.div_ceil(RUN_PAGES));
    let mut runs = spread(segments, full_runs, wanted_runs);
    let mut pages_left = pages_max;
    if wanted_runs == full_runs {
        runs.extend(segments.iter().filter_map(tail));
    }
    for run in &mut runs {
        let pages = (run.bytes / PAGE_BYTES).min(pages_left);
        run.bytes = pages * PAGE_BYTES;
        pages_left -= pages;
    }
    runs.retain(|run| run.bytes > 0);
    runs
}

/// `wanted` of the `full_runs` full runs of `segments`: numbers `i * full_runs / wanted`.
fn spread(segments: &[Segment], full_runs: u64, wanted: u64) -> Vec<Segment> {
    let mut runs = Vec::new();
    let mut segments = segments.iter();
    let mut segment = segments.next();
    let mut passed = 0;
    for i in 0..wanted {
        let number = (u128::from(i) * u128::from(full_runs) / u128::from(wanted)) as u64;
        while let Some(s) = segment {
            let within = number - passed;
            if within < s.bytes / RUN_BYTES {
                runs.push(Segment {
                    start: s.start + within * RUN_BYTES,
                    bytes: RUN_BYTES,
                });
                break;
            }
            passed += s.bytes / RUN_BYTES;
            segment = segments.next();
        }
    }
    runs
}

fn tail(segment: &Segment) -> Option<Segment> {
    let bytes = segment.bytes % RUN_BYTES / PAGE_BYTES * PAGE_BYTES;
    let start = segment.start + segment.bytes / RUN_BYTES * RUN_BYTES;
    (bytes > 0).then_some(Segment { start, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn pages(runs: &[Segment]) -> Vec<u64> {
        let pages = |r: &Segment| (r.start..r.start + r.bytes).step_by(PAGE_BYTES as usize);
        runs.iter().flat_map(pages).collect()
    }

    fn segments(lengths: &[u64]) -> Vec<Segment> {
        let at = |(i, pages): (usize, &u64)| Segment {
            start: (i as u64) << 32,
            bytes: pages * PAGE_BYTES,
        };
        lengths.iter().enumerate().map(at).collect()
    }

    #[test]
    fn everything_is_taken_once_if_it_fits() {
        let all = segments(&[1, 16, 40, 0, 15, 33]);
        let runs = plan(&all, 105);
        let taken = pages(&runs);
        assert_eq!(taken.len(), 105);
        assert_eq!(
            taken.iter().collect::<BTreeSet<_>>(),
            pages(&all).iter().collect()
        );
        assert!(
            runs[..5].iter().all(|run| run.bytes == RUN_BYTES),
            "full runs first"
        );
    }

    #[test]
    fn samples_are_full_runs_from_everywhere_and_never_too_many() {
        let all = segments(&[1000, 7, 5000, 160]);
        for pages_max in [1, 15, 16, 17, 160, 1600, 6143, 6144, 6167, 10_000] {
            let taken = pages(&plan(&all, pages_max));
            assert_eq!(taken.len() as u64, pages_max.min(6167), "{pages_max}");
            assert_eq!(
                taken.iter().collect::<BTreeSet<_>>().len(),
                taken.len(),
                "{pages_max}"
            );
        }
        let runs = plan(&all, 160);
        assert!(runs.iter().all(|run| run.bytes == RUN_BYTES));
        let in_third = runs.iter().filter(|run| run.start >> 32 == 2).count();
        assert!(
            (7..=9).contains(&in_third),
            "{in_third} of 10 runs from 5/6 of the pages"
        );
    }

    #[test]
    fn nothing_gives_nothing() {
        assert!(plan(&[], 100).is_empty());
        assert!(plan(&segments(&[0, 0]), 100).is_empty());
        assert!(plan(&segments(&[100]), 0).is_empty());
    }

    #[test]
    fn a_terabyte_needs_no_more_memory_than_its_sample() {
        let runs = plan(&segments(&[1 << 28]), 64);
        assert_eq!(runs.len(), 4);
        assert_eq!(runs[3].start, 3 * (1 << 28) / 4 * PAGE_BYTES);
    }
}
