//! The suite at the size of a test, in every form of the report; and fio's jobs by fio and by us.

use std::path::Path;
use std::time::Duration;

use uzram_testkit::Loop;

use super::*;
use crate::machine::Machine;
use crate::report::{self, Built, CorpusFacts, Report};
use crate::suite::two_runs;

fn options() -> Options {
    Options {
        corpora: vec![crate::synthetic::corpora().pop().unwrap()],
        algorithms: vec!["lzo".to_owned()],
        quick: true,
        ..two_runs(1)
    }
}

fn tiny() -> Vec<Plan> {
    vec![interface::plan("lzo", &Sizes::tiny()).unwrap()]
}

fn report(findings: Findings) -> Report {
    Report {
        suite: "jobs",
        command: "uzram-bench jobs".to_owned(),
        built: Built::this(),
        machine: Machine::survey(),
        corpora: options().corpora.iter().map(CorpusFacts::from).collect(),
        blocks: findings.blocks,
        missing: findings.missing,
        stopped: None,
        headline: None,
    }
}

#[test]
fn every_cell_of_the_tables_has_its_figures_and_what_was_published() {
    let (options, plans) = (options(), tiny());
    let mut findings = Findings::default();
    run(&options, &plans, &[On::Engine], &mut findings).unwrap();
    assert_eq!(findings.blocks.len(), fio::TESTS.len());
    let rows = plans[0].rows.iter().flat_map(|row| &row.jobs);
    for ((case, job), block) in rows.zip(findings.blocks.iter().cycle()) {
        let of = |case: &str, variant: &str, metric: &str| {
            let is_it = |result: &&report::Measured| {
                (&*result.case, &*result.variant, result.metric) == (case, variant, metric)
            };
            block.results.iter().find(is_it).map(|found| found.spread)
        };
        let rate = of(case, "uzram-lzo", "throughput").unwrap_or_else(|| panic!("{case}"));
        assert!(rate.runs == 2 && rate.min > 0.0, "{case}");
        for metric in ["cpu_user", "cpu_system", "worst_record"] {
            assert_eq!(of(case, "uzram-lzo", metric).unwrap().runs, 2, "{case}");
        }
        let slow = of(case, "uzram-lzo", "slow_path");
        assert_eq!(slow.is_some(), job.writes(), "{case}");
        let published = case.replace("/jobs=", "/published-jobs=");
        for column in ["base", "crypto-api"] {
            assert!(of(&published, column, "throughput").unwrap().min > 700.0);
        }
        assert!(!block.matrices.is_empty());
    }

    let folder = tempfile::tempdir().unwrap();
    let report = report(findings);
    let (json, html) = (folder.path().join("r.json"), folder.path().join("r.html"));
    report::write_json(&report, &json).unwrap();
    report::write_html(&report, &html).unwrap();
    let json: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert!(json["results"].as_array().unwrap().len() > 150);
    uzram_testkit::browser::assert_sound(&report::html(&report));
}

#[test]
fn own_jobs_run_on_a_file_by_us_and_by_fio() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let mut options = options();
    options.algorithms = vec!["lz4".to_owned()];
    let args = JobsArgs {
        scale: 16,
        fio: vec!["rw=randrw bs=4k size=1m numjobs=2 direct=0".to_owned()],
        iozone: vec!["-t 2 -r 16K -s 128K -+Z -i 0 -i 6 -i 7".to_owned()],
        on: vec!["engine".to_owned(), path.display().to_string()],
        destroy: Vec::new(),
    };
    let (plans, places) = plan(&options, &args).unwrap();
    let mut findings = Findings::default();
    run(&options, &plans, &places, &mut findings).unwrap();
    let variants = |block: &report::Block| {
        let mut names: Vec<String> = Vec::new();
        for result in &block.results {
            if !names.contains(&result.variant) {
                names.push(result.variant.clone());
            }
        }
        names
    };
    let ours = vec!["uzram-lz4".to_owned(), path.display().to_string()];
    assert_eq!(variants(&findings.blocks[0]), ours, "iozone");
    let by_fio = [ours, vec![format!("{}-by-fio", path.display())]].concat();
    match crate::job::fio_program::missing() {
        Some(reason) => assert_eq!(findings.missing[0].reason, reason),
        None => assert_eq!(variants(&findings.blocks[1]), by_fio),
    }
    assert!(path.exists());
    drop(places);
    assert!(!path.exists(), "it was made for the run");
}

fn refused(args: &JobsArgs) -> String {
    let error = plan(&options(), args).err().unwrap();
    assert_eq!(error.exit_status(), 2);
    let text = error.to_string();
    assert!(!text.contains('\n'), "{text}");
    text
}

#[test]
fn what_cannot_be_run_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let precious = folder.path().join("precious");
    std::fs::write(&precious, "data").unwrap();
    let shown = precious.display().to_string();
    let with = |on: &[&str], destroy: &[&Path]| JobsArgs {
        scale: 16,
        on: on.iter().map(ToString::to_string).collect(),
        destroy: destroy.iter().map(|path| path.to_path_buf()).collect(),
        ..JobsArgs::default()
    };
    assert!(refused(&with(&["ramdisk"], &[])).contains("on \"ramdisk\": unknown; one of engine"));
    assert!(refused(&with(&[&shown], &[])).contains("holds data (a file of 4 bytes)"));
    assert_eq!(std::fs::read(&precious).unwrap(), b"data");
    let other = refused(&with(&["engine"], &[&precious]));
    assert!(
        other.starts_with(&format!("destroy {shown}: --on {shown} is missing")),
        "{other}"
    );
    let many = vec!["engine"; 17];
    assert!(refused(&with(&many, &[])).contains("on: 17 times; at most 16"));
    let threads = JobsArgs {
        iozone: vec!["-t 65".to_owned()],
        ..with(&[], &[])
    };
    assert_eq!(refused(&threads), "-t 65: 1 to 64");
    let none = "nbd+unix:///x?socket=/none";
    assert!(plan(&options(), &with(&[none], &[])).is_err());
}

#[test]
fn a_device_that_is_too_small_is_refused_with_both_sizes() {
    let Some(device) = Loop::new(1 << 20) else {
        return;
    };
    let args = JobsArgs {
        fio: vec!["size=2m".to_owned()],
        on: vec![device.path.display().to_string()],
        ..JobsArgs::default()
    };
    let text = refused(&args);
    assert!(
        text.contains("1048576 bytes; the jobs need 2097152: a larger --scale"),
        "{text}"
    );
}

#[test]
fn an_interrupted_run_reports_what_it_has() {
    let options = options();
    let plans: Vec<Plan> = (0..4000).flat_map(|_| tiny()).collect();
    let stop = options.stop.clone();
    let ends = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        stop.raise();
    });
    let mut findings = Findings::default();
    let error = run(&options, &plans, &[On::Engine], &mut findings).unwrap_err();
    ends.join().unwrap();
    assert!(matches!(error, Error::Interrupted));
    assert!(!findings.blocks.is_empty());
    let folder = tempfile::tempdir().unwrap();
    report::write_html(&report(findings), &folder.path().join("r.html")).unwrap();
}

#[test]
fn what_reads_first_is_filled_first() {
    let job = fio::parse("rw=randread size=1m loops=7").unwrap();
    let fill = row(vec![("x".to_owned(), job)]).fill.unwrap();
    assert!(fill.starts_fresh && fill.writes() && fill.loops == 1);
}
