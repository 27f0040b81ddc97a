//! The suite at the size of a test: every variant, every case, and a report that adds up.

use std::path::Path;
use std::time::Duration;

use super::*;
use crate::machine::Machine;
use crate::peers::Peer;
use crate::report::{self, Built, CorpusFacts, Report};
use crate::stop::Stop;
use crate::suite::Schedule;

fn tiny() -> Scale {
    Scale {
        objects: vec![512, 2048],
        alternated_objects: 512,
        disk_pages: vec![256],
        disk_divisor: 1000,
        runs: 2,
        thread_runs: 2,
        thread_overwrites: 64,
        copy_bytes: 2 << 20,
    }
}

fn options() -> Options {
    let mut corpora = crate::synthetic::corpora();
    corpora.truncate(1);
    Options {
        corpora,
        peers: Peer::POOLS.to_vec(),
        algorithms: vec!["lz4".to_owned()],
        threads: machine::allowed_cpus().len().min(2),
        schedule: Schedule {
            at_least: Duration::ZERO,
            runs_min: 1,
        },
        quick: true,
        stop: Stop::default(),
    }
}

#[test]
fn every_variant_has_a_figure_in_every_case() {
    let (options, scale) = (options(), tiny());
    let mut findings = Findings::default();
    measure(&options, &scale, &mut findings).unwrap();
    let blocks = findings.blocks;
    assert_eq!(blocks.len(), 2, "a disk and a corpus");
    let variants = Variant::all(&options.peers);
    for variant in &variants {
        let name = variant.name();
        let of = |block: &Block, case: &str, metric: &str| {
            let found = block.results.iter().find(|result| {
                result.case == case && result.variant == name && result.metric == metric
            });
            found
                .unwrap_or_else(|| panic!("{name}: no {metric} in {case}"))
                .spread
        };
        let [disk, corpus] = &blocks[..] else {
            unreachable!("two blocks");
        };
        for figure in &figures::FIGURES {
            assert_eq!(of(disk, "disk-1M", figure.metric).runs, 2);
        }
        assert!(of(disk, "disk-1M", "insert_mean").median > 0.0);
        let cases = [
            ("512/fill", "pool_bytes_per_stored_byte"),
            ("2048/fill", "insert_beyond_copy_mean"),
            ("2048/overwritten", "pool_bytes_per_stored_byte"),
            ("2048/half-discarded", "pool_bytes_per_stored_byte"),
            ("2048/emptied", "pool_bytes_left"),
            ("2048/overwrite", "insert_beyond_copy_p999"),
            ("2048/overwrite", "remove_mean"),
            ("2048/overwrite", "access_beyond_copy_p999"),
            ("2048/overwrite", "maintenance_per_overwrite"),
            ("2048/overwrite", "empty_loop_over_1ms"),
            ("in-turns/overwrite", "overwrite_mean"),
        ];
        for (case, metric) in cases {
            of(corpus, &format!("synthetic-text/lz4/{case}"), metric);
        }
        let rounds = of(corpus, "synthetic-text/lz4/2048/overwrite", "remove_mean");
        assert_eq!(rounds.runs, cells::ROUNDS);
    }
    check_report(&options, blocks);
}

/// The table shows each variant in a line, the JSON has the claims and the published figures.
fn check_report(options: &Options, blocks: Vec<Block>) {
    let report = Report {
        suite: "pools",
        headline: None,
        command: "uzram-bench pools".to_owned(),
        built: Built::this(),
        machine: Machine::survey(),
        corpora: options.corpora.iter().map(CorpusFacts::from).collect(),
        blocks,
        missing: Vec::new(),
        stopped: None,
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pools.json");
    report::write_json(&report, Path::new(&path)).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let rows = json["results"].as_array().unwrap();
    let published = rows.iter().find(|row| {
        row["case"] == "published" && row["variant"] == "ztree" && row["metric"] == "insert_mean"
    });
    assert_eq!(published.unwrap()["median"], 3.8);
    uzram_testkit::browser::assert_sound(&report::html(&report));
    let claims = json["claims"].as_array().unwrap();
    let orderings = claims.iter().filter(|claim| {
        claim["claim"].as_str().unwrap().contains("published ") && claim["why"] != ""
    });
    assert_eq!(
        orderings.count(),
        6,
        "one for each published column, and density"
    );
    let mut aimed = report.blocks;
    crate::aims::apply("pools", true, &mut aimed);
    // Costs, interruptions, threads, and the default pool beside the others; no limit of 2048 objects.
    let aims = aimed[1].claims.iter().map(|claim| claim.claim.as_str());
    let aims: Vec<&str> = aims.collect();
    let threads = usize::from(options.threads > 1);
    assert_eq!(aims.len(), 5 + threads + 3, "{aims:#?}");
}
