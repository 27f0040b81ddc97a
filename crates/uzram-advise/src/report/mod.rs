//! A suite's report: figures, ratios, aims, and the peers that were missing.

mod better;
mod block;
mod claim;
mod columns;
mod front;
mod html;
mod json;
mod matrix;
mod table;

pub use block::{
    Aim, Block, Built, CorpusFacts, Findings, Headline, Measured, Missing, Ratio, Report, SUBJECT,
    Tradeoff, belongs, is_optimised,
};
pub use claim::{Basis, Claim, Standing};
pub use columns::{Column, Figure, Lines, Matrix};
pub use front::front;
pub use html::{html, write as write_html};
pub use json::write as write_json;
pub use table::{align, decimals, print as print_table, wrap};

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::corpus::Corpus;
    use crate::machine::Machine;
    use crate::sample::Series;

    pub(crate) fn corpus() -> Corpus {
        Corpus::new("half", &uzram_testkit::pages::fio(50, 2)).unwrap()
    }

    pub(crate) fn sample() -> Report {
        let machine = Machine {
            cpus: 2,
            model: "some CPU".to_owned(),
            kernel: "6.1".to_owned(),
            memory_bytes: 1 << 30,
            wakeup_same_cpu_ns: Some(4000),
            wakeup_cross_cpu_ns: None,
        };
        let ours = Series::from(vec![110.0, 120.0, 104.0]);
        let theirs = Series::from(vec![100.0, 100.0, 100.0]);
        let case = "text/lz4/overwrite";
        let measured = |variant: &str, series: &Series| Measured {
            case: case.to_owned(),
            variant: variant.to_owned(),
            metric: "time_per_page",
            unit: "ns",
            spread: series.spread().unwrap(),
            working_set_bytes: 1 << 29,
            pinned: Some("1".to_owned()),
        };
        let (us, them) = (("uzram", &ours), ("raw-codec", &theirs));
        let mut ratio = Ratio::of(case, "time_per_page", us, them).unwrap();
        ratio.aim = Some(Aim::AtMost(1.12));
        Report {
            suite: "store",
            command: "uzram bench store".to_owned(),
            built: Built::this(),
            machine,
            corpora: vec![CorpusFacts::from(&corpus())],
            blocks: vec![Block {
                title: "text, lz4".to_owned(),
                notes: vec!["a note".to_owned()],
                results: vec![measured("uzram", &ours), measured("raw-codec", &theirs)],
                ratios: vec![ratio],
                ..Block::default()
            }],
            missing: vec![Missing {
                peer: "kernel-zram".to_owned(),
                reason: "none".to_owned(),
            }],
            stopped: None,
            headline: None,
        }
    }

    #[test]
    fn an_aim_is_judged_by_the_median() {
        let spread = Series::from(vec![1.0, 1.1, 5.0]).spread().unwrap();
        assert!(Aim::AtMost(1.1).is_met(spread));
        assert!(!Aim::AtMost(1.09).is_met(spread));
        assert!(Aim::AtLeast(1.1).is_met(spread));
        assert!(!Aim::MoreThan(1.1).is_met(spread));
        assert!(Aim::Within(0.11).is_met(spread));
        assert!(!Aim::Within(0.09).is_met(spread));
    }
}
