//! A run beside an earlier one: `--against FILE.json`. Figures of two runs share a machine and pages, and nothing
//! else: a difference counts only where no run of one side lies among those of the other.

use std::fmt::Write as _;
use std::path::Path;

use crate::corpus::Corpus;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::report::{Measured, Report, align, decimals, wrap};
use crate::sample::Spread;
use crate::saved::{Figure, Saved};

/// The end of a file's name, by which `--against` tells it from a peer.
const SUFFIX: &str = ".json";
/// Cases that are named, of those that only one side has.
const NAMED_MAX: usize = 5;

/// The files and the peers among the words of `--against`.
pub(crate) fn told_apart(words: &[String]) -> (Vec<String>, Vec<String>) {
    words
        .iter()
        .cloned()
        .partition(|word| word.ends_with(SUFFIX))
}

/// Reads the report in `path`, which a run of `suite` on `corpora` is to be compared with.
///
/// # Errors
/// [`Error::Usage`] if it is no report, or one of other things.
pub(crate) fn load(path: &Path, suite: &str, corpora: &[Corpus]) -> Result<Saved> {
    let saved = Saved::load(path)?;
    if saved.suite != suite {
        let text = format!("of suite {}, and not of {suite}", saved.suite);
        return Err(refused(&saved, &text));
    }
    for facts in &saved.corpora {
        let same_name = corpora.iter().find(|corpus| corpus.name == facts.name);
        if let Some(corpus) = same_name.filter(|corpus| corpus.total_pages() != facts.pages) {
            let (name, now, before) = (&facts.name, corpus.total_pages(), facts.pages);
            let text =
                format!("corpus {name} has {now} pages here and {before} there: other pages");
            return Err(refused(&saved, &text));
        }
    }
    Ok(saved)
}

/// Refuses a report of another machine.
///
/// # Errors
/// [`Error::Usage`] with what differs.
pub(crate) fn check_machine(saved: &Saved, here: &Machine) -> Result<()> {
    let there = &saved.machine;
    if (&there.model, there.cpus) == (&here.model, here.cpus) {
        return Ok(());
    }
    let text = format!(
        "of another machine ({} CPUs, {}; here {}, {}): its figures cannot be compared",
        there.cpus, there.model, here.cpus, here.model
    );
    Err(refused(saved, &text))
}

fn refused(saved: &Saved, why: &str) -> Error {
    Error::Usage(format!("report {}: {why}", saved.path.display()))
}

/// The comparison, for people.
pub(crate) fn render(report: &Report, saved: &Saved) -> String {
    let mut out = String::from("\n");
    let (file, machine) = (saved.path.display(), &saved.machine);
    let head = format!(
        "Beside {file} (uzram {}, profile {}, Linux {}): then, now, now over then; what lies within the runs of \
         both is noise.",
        saved.git, saved.profile, machine.kernel
    );
    wrap(&head, 0, &mut out);
    if machine.kernel != report.machine.kernel {
        let text = format!("Another kernel: Linux {} now.", report.machine.kernel);
        wrap(&text, 0, &mut out);
    }
    let now: Vec<&Measured> = report
        .blocks
        .iter()
        .flat_map(|block| &block.results)
        .collect();
    let mut rows = vec![
        ["case", "side", "metric", "then", "now", "ratio", ""]
            .map(str::to_owned)
            .to_vec(),
    ];
    let mut only_now = Vec::new();
    for figure in &now {
        match saved
            .results
            .iter()
            .find(|then| is_same(then, figure))
            .and_then(Figure::spread)
        {
            Some(then) => rows.push(row(figure, then)),
            None => only_now.push(label(&figure.case, &figure.variant, figure.metric)),
        }
    }
    let was_left = |then: &&Figure| !now.iter().any(|figure| is_same(then, figure));
    let only_then = saved.results.iter().filter(was_left);
    let only_then: Vec<String> = only_then
        .map(|then| label(&then.case, &then.variant, &then.metric))
        .collect();
    match rows.len() {
        1 => out.push_str("No figure is in both.\n"),
        _ => align(
            &rows,
            &[false, false, false, true, true, true, false],
            &mut out,
        ),
    }
    name_missing("Only now", &only_now, &mut out);
    name_missing("Only then", &only_then, &mut out);
    out
}

fn is_same(then: &Figure, now: &Measured) -> bool {
    (
        &then.case,
        &then.variant,
        then.metric.as_str(),
        then.unit.as_str(),
    ) == (&now.case, &now.variant, now.metric, now.unit)
}

fn label(case: &str, variant: &str, metric: &str) -> String {
    format!("{case}, {variant}, {}", metric.replace('_', " "))
}

fn row(figure: &Measured, then: Spread) -> Vec<String> {
    let now = figure.spread;
    let shown = |value: f64| format!("{value:.0$} {1}", decimals(value), figure.unit);
    let ratio = match then.median == 0.0 {
        true => "-".to_owned(),
        false => format!("{:.3}", now.median / then.median),
    };
    vec![
        figure.case.clone(),
        figure.variant.clone(),
        figure.metric.replace('_', " "),
        shown(then.median),
        shown(now.median),
        ratio,
        difference(then, now).to_owned(),
    ]
}

/// The direction in which the figure has changed, if it has.
fn difference(then: Spread, now: Spread) -> &'static str {
    if now.min > then.max {
        "more"
    } else if now.max < then.min {
        "less"
    } else if now == then {
        "the same"
    } else {
        "noise"
    }
}

fn name_missing(side: &str, labels: &[String], out: &mut String) {
    if labels.is_empty() {
        return;
    }
    let named = labels[..labels.len().min(NAMED_MAX)].join("; ");
    let more = match labels.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let mut line = String::new();
    let _ = write!(line, "{side}, so not compared: {named}{more}.");
    wrap(&line, 0, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::saved::tests::{document, saved};

    fn report(medians: &[f64]) -> Report {
        saved(&document(medians)).unwrap().into_report().unwrap()
    }

    #[test]
    fn a_difference_within_the_runs_of_both_is_noise() {
        let spread = |min, median, max| Spread {
            min,
            median,
            max,
            runs: 3,
        };
        let then = spread(95.0, 100.0, 105.0);
        for (now, said) in [
            (spread(105.1, 110.0, 120.0), "more"),
            (spread(105.0, 110.0, 120.0), "noise"),
            (spread(80.0, 90.0, 94.9), "less"),
            (then, "the same"),
        ] {
            assert_eq!(difference(then, now), said);
        }
    }

    #[test]
    fn each_case_has_a_ratio_and_what_is_missing_is_named() {
        let mut then = document(&[100.0, 100.0]);
        then["results"][1]["case"] = "text/lz4/gone".into();
        let shown = render(&report(&[150.0, 50.0]), &saved(&then).unwrap());
        let line = shown.lines().find(|line| line.contains("case 0")).unwrap();
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(
            words[words.len() - 6..],
            ["100", "ns", "150", "ns", "1.500", "more"]
        );
        assert!(
            shown.contains("Only now, so not compared: text/lz4/case 1, uzram"),
            "{shown}"
        );
        assert!(
            shown.contains("Only then, so not compared: text/lz4/gone, uzram"),
            "{shown}"
        );
        assert!(!shown.contains("Another kernel"));
        then["machine"]["kernel"] = "5.0".into();
        then["results"] = serde_json::json!([]);
        let shown = render(&report(&[150.0]), &saved(&then).unwrap());
        assert!(shown.contains("Another kernel: Linux 6.1 now."), "{shown}");
        assert!(shown.contains("No figure is in both."), "{shown}");
    }

    #[test]
    fn other_machines_suites_and_pages_are_refused() {
        let write = |document: &serde_json::Value| {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), document.to_string()).unwrap();
            file
        };
        let file = write(&document(&[1.0]));
        let said = |result: Result<Saved>| result.unwrap_err().to_string();
        assert!(said(load(file.path(), "nbd", &[])).ends_with("of suite store, and not of nbd"));
        let text = Corpus::new("text", &uzram_testkit::pages::fio(50, 2)).unwrap();
        let error = said(load(file.path(), "store", &[text]));
        assert!(
            error.ends_with("corpus text has 2 pages here and 1000 there: other pages"),
            "{error}"
        );
        let other = Corpus::new("other", &uzram_testkit::pages::fio(50, 2)).unwrap();
        let saved = load(file.path(), "store", &[other]).unwrap();
        let mut here = saved.machine.clone();
        check_machine(&saved, &here).unwrap();
        here.cpus = 4;
        let error = check_machine(&saved, &here).unwrap_err().to_string();
        assert!(
            error.contains("of another machine (2 CPUs, a CPU; here 4, a CPU)"),
            "{error}"
        );
    }

    #[test]
    fn files_are_told_from_peers() {
        let words = ["memcpy", "a/b.json"].map(str::to_owned);
        assert_eq!(
            told_apart(&words),
            (vec!["a/b.json".into()], vec!["memcpy".into()])
        );
    }
}
