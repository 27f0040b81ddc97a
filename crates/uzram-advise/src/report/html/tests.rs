//! The content of the page, without a browser; and the report with every element, which the tests in a
//! browser open.

use super::*;
use crate::report::{Aim, Column, Figure, Headline, Lines, Matrix, Missing, Ratio, Tradeoff};
use crate::sample::Series as Runs;
use uzram_testkit::Rng;

/// A name as somebody may give to a file, to see it run.
pub(super) const HOSTILE: &str = "<script>document.title='broken'</script>\"'&";
const PEERS: [&str; 4] = ["uzram", "raw-codec", "memcpy", "kernel-zram-4k"];

/// Every kind of chart, names that are long or hostile, aims met and missed, a peer missing.
pub(super) fn gallery() -> Report {
    let mut report = crate::report::tests::sample();
    report.command = format!("uzram bench gallery --corpus '{HOSTILE}.pages' --seconds 5");
    report.machine.model = "AMD EPYC 9R14 96-Core Processor with a long name".to_owned();
    let mut corpus = crate::report::tests::corpus();
    corpus.name = HOSTILE.to_owned();
    report.corpora.push(CorpusFacts::from(&corpus));
    report.blocks = vec![comparison(), scaling(), choices(), laid_out()];
    report.headline = Some(Headline {
        title: "Everything that a page can have".to_owned(),
        sentence: format!("Recommended: {HOSTILE}."),
        command: Some(format!("uzram serve --size 1G --name '{HOSTILE}'")),
    });
    report.missing = vec![Missing {
        peer: "kernel-zram".to_owned(),
        reason: format!("no /dev/zram*; {HOSTILE}"),
    }];
    report.stopped = Some("interrupted: nothing is left running or set up".to_owned());
    report
}

fn figure(
    case: &str,
    variant: &str,
    (metric, unit): (&'static str, &'static str),
    values: &[f64],
) -> Measured {
    Measured {
        case: case.to_owned(),
        variant: variant.to_owned(),
        metric,
        unit,
        spread: Runs::from(values.to_vec()).spread().unwrap(),
        working_set_bytes: 1 << 29,
        pinned: None,
    }
}

fn around(rng: &mut Rng, value: f64) -> Vec<f64> {
    let noise = |rng: &mut Rng| 0.95 + rng.below(100) as f64 / 1000.0;
    (0..7).map(|_| value * noise(rng)).collect()
}

fn comparison() -> Block {
    let mut rng = Rng::new(1);
    let mut block = Block {
        title: format!(
            "{HOSTILE} zstd: 512 MiB of 3421 distinct pages, one thread pinned to CPU 1"
        ),
        notes: vec![
            "BUSY MACHINE: other processes had the CPU for 7 % of the time; do not quote"
                .to_owned(),
        ],
        ..Block::default()
    };
    let cases = [
        ("first-write", 10_453.0),
        ("overwrite", 10_192.0),
        ("random-read", 4275.0),
    ];
    for (case, time) in cases {
        let case = format!("{HOSTILE}/zstd/{case}");
        let times = [time, time * 0.98, 385.0, time * 1.3];
        let series = times.map(|time| Runs::from(around(&mut rng, time)));
        for (variant, series) in PEERS.iter().zip(&series) {
            let spread = series.spread().unwrap();
            let values = [spread.min, spread.median, spread.max];
            block
                .results
                .push(figure(&case, variant, ("time_per_page", "ns"), &values));
        }
        let (ours, codec) = (("uzram", &series[0]), ("raw-codec", &series[1]));
        let (memcpy, kernel) = (("memcpy", &series[2]), ("kernel-zram-4k", &series[3]));
        let metric = "time_per_page";
        for (top, bottom, aim) in [
            (ours, codec, Some(Aim::AtMost(1.03))),
            (ours, memcpy, None),
            (kernel, ours, Some(Aim::AtLeast(1.08))),
        ] {
            let ratio = Ratio::of(&case, metric, top, bottom);
            block
                .ratios
                .extend(ratio.map(|ratio| Ratio { aim, ..ratio }));
        }
    }
    block
}

fn scaling() -> Block {
    let mut rng = Rng::new(2);
    let mut block = Block {
        title: "streams: 8 threads, a policy each".to_owned(),
        ..Block::default()
    };
    for threads in [1, 2, 3, 4, 6, 8] {
        let case = format!("heap-python/write-{threads}-threads");
        let at = f64::from(threads).min(4.0);
        for (policy, most) in [
            ("per-cpu", 260_000.0),
            ("idle-list-4", 210_000.0),
            ("one-stream", 95_000.0),
        ] {
            let value = if policy == "one-stream" {
                most
            } else {
                most * at
            };
            let values = around(&mut rng, value);
            block
                .results
                .push(figure(&case, policy, ("pages", "pages/s"), &values));
        }
    }
    for (policy, scale) in [("per-cpu", 1.0), ("idle-list-4", 1.6), ("one-stream", 5.0)] {
        let ranks = [
            ("latency_p50", 5_100.0),
            ("latency_p90", 6_400.0),
            ("latency_p99", 21_000.0),
            ("latency_p999", 190_000.0),
            // To tens of millions, whose texts are the widest.
            ("latency_max", 14_100_000.0),
        ];
        for (metric, value) in ranks {
            let values = around(&mut rng, value * scale);
            block
                .results
                .push(figure("heap-python/write", policy, (metric, "ns"), &values));
        }
    }
    // The text that reaches farthest to the right, in each column of what is printed.
    for case in ["a", "b", "c", "d"] {
        for (metric, value) in [("held_p50", 12.0), ("held_p999", 14_100_000.0)] {
            let values = around(&mut rng, value);
            block
                .results
                .push(figure(case, "x", (metric, "ns"), &values));
        }
    }
    block
}

fn choices() -> Block {
    let mut rng = Rng::new(3);
    let mut block = Block {
        title: "process 1234: 4096 pages sampled".to_owned(),
        tradeoffs: vec![Tradeoff {
            title: "Memory saved against the cost of a page".to_owned(),
            across: "cost",
            up: "saved",
            chosen: Some("zstd level=1, zsmalloc, 16K".to_owned()),
        }],
        ..Block::default()
    };
    let codecs = [
        ("lz4", 5_000.0, 62.0),
        ("lzo-rle", 6_000.0, 60.0),
        ("zstd level=1", 9_000.0, 76.0),
        ("zstd level=9", 40_000.0, 78.0),
        ("deflate", 60_000.0, 76.5),
    ];
    for (codec, cost, saved) in codecs {
        for (unit, more) in [("4K", 0.0), ("16K", 5.0), ("64K", 7.0)] {
            for (pool, less) in [("zsmalloc", 0.0), ("z3fold", 14.0)] {
                let variant = format!("{codec}, {pool}, {unit}");
                let cost = around(&mut rng, cost * (1.0 + more / 10.0));
                block
                    .results
                    .push(figure("all", &variant, ("cost", "ns"), &cost));
                block.results.push(figure(
                    "all",
                    &variant,
                    ("saved", "%"),
                    &[saved + more - less],
                ));
            }
        }
    }
    block
}

/// A block whose suite laid its figures out, in both ways.
fn laid_out() -> Block {
    let mut block = comparison();
    block.title = "laid out: the same as tables".to_owned();
    let metric = "time_per_page";
    let cases = ["first-write", "overwrite", "random-read"];
    let case = |name: &str| format!("{HOSTILE}/zstd/{name}");
    let by_variant = cases.map(|name| Column::median(name, &case(name), metric));
    let ratio = Figure::Ratio {
        numerator: "uzram".to_owned(),
        denominator: "raw-codec".to_owned(),
        metric,
    };
    let mut by_case: Vec<Column> = PEERS
        .iter()
        .map(|peer| Column::median(peer, peer, metric))
        .collect();
    by_case.push(Column {
        head: "spread of uzram's runs".to_owned(),
        figure: Figure::Range {
            of: "uzram".to_owned(),
            metric,
        },
    });
    by_case.push(Column {
        head: "ratio".to_owned(),
        figure: ratio,
    });
    let lines = cases.map(|name| (name.to_owned(), case(name)));
    block.matrices = vec![
        Matrix {
            title: format!("ns {HOSTILE}"),
            columns: by_variant.to_vec(),
            ..Matrix::default()
        },
        Matrix {
            title: "ns".to_owned(),
            lines: Lines::Cases(lines.to_vec()),
            columns: by_case,
        },
    ];
    block
}

fn text() -> String {
    page(&gallery()).into_string()
}

#[test]
fn a_suites_own_tables_are_shown_and_all_figures_stand_behind_them() {
    let mut report = gallery();
    report.blocks = vec![laid_out()];
    let page = page(&report).into_string();
    let tables: Vec<&str> = page.split("<table class=\"matrix\">").skip(1).collect();
    assert_eq!(tables.len(), 2);
    assert!(
        tables[0].contains("<td>kernel-zram-4k</td>"),
        "a line a variant"
    );
    assert!(tables[1].contains("<td>overwrite</td>"), "a line a case");
    assert!(tables[1].contains("class=\"n bad\"") || tables[1].contains("class=\"n\""));
    let behind = page.split("<details>").nth(1).unwrap();
    assert!(behind.contains("<summary>All figures</summary>"));
    assert!(behind.contains("<b>") && behind.contains("memcpy"));
}

#[test]
fn names_from_outside_are_text_and_nothing_else() {
    let page = text();
    assert!(!page.contains("<script"), "a name became markup");
    assert!(page.contains("&lt;script&gt;document.title='broken'&lt;/script&gt;"));
    // Within attributes a quote must not end the value.
    let says = page.split("aria-label=\"").skip(1);
    assert!(says.count() > 10);
    assert!(!page.contains("=\"<"));
}

#[test]
fn the_page_needs_nothing_from_outside() {
    let page = text();
    for outside in [
        "http:", "https:", "src=", "@import", "url(", "<link", "<script", "//",
    ] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn the_page_has_a_chart_of_every_kind_and_all_figures() {
    let report = gallery();
    let page = text();
    for class in [
        "strips ratios",
        "strips amounts",
        "class=\"front\"",
        "class=\"error\"",
        "class=\"warning\"",
    ] {
        assert!(page.contains(class), "{class}");
    }
    for measured in report.blocks.iter().flat_map(|block| &block.results) {
        let median = axis::number(measured.spread.median);
        assert!(page.contains(&median), "{} {median}", measured.case);
    }
    assert!(page.contains("uzram bench gallery"));
    assert!(page.contains("Only a part of what was asked for."));
    assert!(page.contains("kernel-zram</b> was not measured"));
}

#[test]
fn the_summary_says_who_is_better_and_counts_the_aims() {
    let page = text();
    let plain = page.replace("</b>", "").replace("</span>", "");
    assert!(
        plain.contains("uzram needs <b class=\"bad\">"),
        "against raw-codec"
    );
    // The kernel's time over uzram's is turned round: the subject is always uzram.
    assert!(
        plain.contains("% less time per page than <span class=\"peer\">kernel-zram-4k"),
        "{plain}"
    );
    assert!(plain.contains("aims met."));
}

#[test]
fn a_report_without_figures_is_a_page_too() {
    let mut report = gallery();
    report.blocks.clear();
    assert!(
        page(&report)
            .into_string()
            .contains("Nothing was measured.")
    );
    report.blocks = vec![Block::default()];
    assert!(
        page(&report)
            .into_string()
            .contains("Nothing was measured.")
    );
}

#[test]
fn a_path_that_cannot_be_written_is_named() {
    let error = write(&gallery(), Path::new("/proc/none/x")).unwrap_err();
    assert!(
        error.to_string().starts_with("report /proc/none/x: "),
        "{error}"
    );
}

#[test]
fn every_chart_has_data_and_nothing_overflows_in_a_browser() {
    uzram_testkit::browser::assert_sound(&crate::report::html(&gallery()));
}

#[test]
fn a_browser_prints_it() {
    uzram_testkit::browser::assert_prints(&crate::report::html(&gallery()));
}
