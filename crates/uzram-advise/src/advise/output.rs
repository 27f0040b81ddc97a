//! The advice as a table, as JSON and as a page.

use std::io::{self, Write};

use serde::Serialize;

use super::advice::Advice;
use super::measure::Trial;
use super::rule::Outcome;
use crate::command::{self, ignore_closed_pipe};
use crate::corpus::PAGE_BYTES;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::report::{self, Block, Built, Headline, Measured, Report, Tradeoff};
use crate::sample::{Series, Spread};

const SCHEMA: u32 = 1;

/// Prints a table, or JSON.
pub(super) fn print(advice: &Advice<'_>, as_json: bool) -> Result<()> {
    let text = match as_json {
        true => json(advice)?,
        false => table(advice),
    };
    let written = io::stdout().lock().write_all(text.as_bytes());
    let written = written.or_else(ignore_closed_pipe);
    written.map_err(|error| Error::io("standard output", error))
}

/// The table: the front, the default, and the best of every other codec; then the advice.
fn table(advice: &Advice<'_>) -> String {
    let mut rows = vec![
        ["", "saved", "ratio", "in", "out", "choice"]
            .map(str::to_owned)
            .to_vec(),
    ];
    let recommended = advice.recommended().map(|trial| trial.choice.to_string());
    for trial in shown(advice) {
        let figures = &trial.figures;
        let name = trial.choice.to_string();
        let is_recommended = Some(&name) == recommended.as_ref();
        let mark = match (is_recommended, trial.is_on_front) {
            (true, _) => "=>",
            (false, true) => "*",
            (false, false) => "",
        };
        let name = match is_recommended {
            true => format!("{name}  <= RECOMMENDED"),
            false => name,
        };
        rows.push(vec![
            mark.to_owned(),
            percent(figures.saved),
            format!("{:.2}", figures.ratio),
            time(figures.times.write_ns().min),
            time(figures.times.read_ns().min),
            name,
        ]);
    }
    let mut text = format!("{}\n\n", source(advice));
    report::align(&rows, &[false, true, true, true, true, false], &mut text);
    text.push_str(&format!(
        "\n  * no other of {} choices saves more and costs less{}. saved: memory;\n  \
         ratio: the same without same-filled pages; in, out: a 4 KiB page at a random place, the least of 5 runs\n\n{}\n",
        advice.trials.len(),
        tied(advice),
        sentences(advice).join("\n"),
    ));
    if let Some(commands) = commands(advice) {
        text.push('\n');
        for command in commands {
            text.push_str(&format!("  {command}\n"));
        }
    }
    text
}

/// The choices that are left out of the table because they are as good as the recommended one.
fn tied(advice: &Advice<'_>) -> String {
    match advice.trials.iter().filter(|trial| trial.is_tied).count() {
        0 => String::new(),
        count => format!("; {count} as good as => within the noise left out"),
    }
}

/// The source of the figures.
fn source(advice: &Advice<'_>) -> String {
    let pages = advice.split.pages();
    format!(
        "{}: {pages} of {} pages, {} of them same-filled; a quarter only trains a dictionary",
        advice.sample.name, advice.sample.pages_total, advice.split.same_filled_pages
    )
}

/// The recommendation and its reason.
pub(super) fn sentences(advice: &Advice<'_>) -> [String; 2] {
    let budget = time(advice.budget.as_nanos() as f64);
    match &advice.outcome {
        Outcome::Recommended {
            index,
            is_over_budget,
        } => {
            let trial = &advice.trials[*index];
            let why = match is_over_budget {
                true => format!(
                    "No choice writes and reads a page within about {budget}; this is the cheapest."
                ),
                false => format!(
                    "Among the choices that write and read a page within about {budget}, none leaves over 1 % less \
                     memory in use, and none as dense is clearly cheaper."
                ),
            };
            [
                format!(
                    "Recommended: {}, which saves {} of the memory at {} per page.",
                    trial.choice,
                    percent(trial.figures.saved),
                    time(trial.figures.cost_ns()),
                ),
                why,
            ]
        }
        Outcome::NotWorthIt { saved } => [
            "No recommendation: these pages hardly compress.".to_owned(),
            format!("The best choice saves {} of the memory.", percent(*saved)),
        ],
        Outcome::Unfinished => [
            "No recommendation: not everything was tried.".to_owned(),
            advice.stopped.clone().unwrap_or_default(),
        ],
    }
}

/// The commands: for the disk, and before it for the dictionary.
fn commands(advice: &Advice<'_>) -> Option<Vec<String>> {
    let choice = &advice.recommended()?.choice;
    let mut commands = Vec::new();
    if choice.setting.dictionary_bytes > 0 {
        commands.extend(advice.sample.training.iter().cloned());
    }
    commands.push(choice.command(advice.sample.disk_bytes));
    Some(commands)
}

/// The lines by saving, most first: the front, the default, and the best of every other setting.
pub(super) fn shown<'a>(advice: &'a Advice<'_>) -> Vec<&'a Trial> {
    let mut trials: Vec<&Trial> = advice.trials.iter().filter(|it| !it.is_tied).collect();
    trials.sort_by(|a, b| b.figures.saved.total_cmp(&a.figures.saved));
    let setting = |trial: &Trial| {
        (
            trial.choice.setting.algorithm.clone(),
            trial.choice.setting.parameters.clone(),
        )
    };
    let mut known: Vec<(String, String)> = Vec::new();
    for trial in trials.iter().filter(|trial| trial.is_on_front) {
        known.push(setting(trial));
    }
    let default = advice.trials.first().map(|trial| trial.choice.to_string());
    let recommended = advice.recommended().map(|trial| trial.choice.to_string());
    trials.retain(|trial| {
        let name = Some(trial.choice.to_string());
        let is_new = !known.contains(&setting(trial));
        if is_new {
            known.push(setting(trial));
        }
        is_new || trial.is_on_front || name == default || name == recommended
    });
    trials
}

fn percent(share: f64) -> String {
    // Not "-0.0".
    format!("{:.1} %", (share * 1000.0).round() / 10.0 + 0.0)
}

fn time(nanoseconds: f64) -> String {
    match nanoseconds {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e5 => format!("{:.1} us", ns / 1e3),
        ns if ns < 1e6 => format!("{:.0} us", ns / 1e3),
        ns => format!("{:.1} ms", ns / 1e6),
    }
}

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    source: Source<'a>,
    budget_ns: u64,
    choices: Vec<Row>,
    recommendation: Option<Recommendation>,
    advice: String,
    /// Null if everything was tried, else the reason why not.
    stopped: Option<&'a str>,
}

#[derive(Serialize)]
struct Source<'a> {
    name: &'a str,
    pages: u64,
    sampled_pages: usize,
    same_filled_pages: usize,
}

#[derive(Serialize)]
struct Row {
    algorithm: String,
    parameters: String,
    unit_bytes: u64,
    pool: &'static str,
    saved_percent: f64,
    ratio: f64,
    write_ns: Nanoseconds,
    read_ns: Nanoseconds,
    on_front: bool,
    /// As good as the recommended one, within the noise.
    tied: bool,
}

#[derive(Serialize)]
struct Nanoseconds {
    min: f64,
    median: f64,
    max: f64,
    runs: usize,
}

#[derive(Serialize)]
struct Recommendation {
    /// The place in `choices`.
    choice: usize,
    /// The commands, one line each; the last one serves.
    commands: Vec<String>,
}

fn json(advice: &Advice<'_>) -> Result<String> {
    let index = match advice.outcome {
        Outcome::Recommended { index, .. } => Some(index),
        Outcome::NotWorthIt { .. } | Outcome::Unfinished => None,
    };
    let recommendation = index.zip(commands(advice));
    let document = Document {
        schema: SCHEMA,
        source: Source {
            name: &advice.sample.name,
            pages: advice.sample.pages_total,
            sampled_pages: advice.split.pages(),
            same_filled_pages: advice.split.same_filled_pages,
        },
        budget_ns: advice.budget.as_nanos() as u64,
        choices: advice.trials.iter().map(row).collect(),
        recommendation: recommendation
            .map(|(choice, commands)| Recommendation { choice, commands }),
        advice: sentences(advice).join(" "),
        stopped: advice.stopped.as_deref(),
    };
    let text = serde_json::to_string_pretty(&document);
    let text = text.map_err(|error| Error::io("JSON", error))?;
    Ok(text + "\n")
}

fn row(trial: &Trial) -> Row {
    let (choice, figures) = (&trial.choice, &trial.figures);
    Row {
        algorithm: choice.setting.algorithm.clone(),
        parameters: choice.setting.parameters.clone(),
        unit_bytes: choice.unit.bytes() as u64,
        pool: choice.pool,
        saved_percent: figures.saved * 100.0,
        ratio: figures.ratio,
        write_ns: figures.times.write_ns().into(),
        read_ns: figures.times.read_ns().into(),
        on_front: trial.is_on_front,
        tied: trial.is_tied,
    }
}

impl From<Spread> for Nanoseconds {
    fn from(spread: Spread) -> Nanoseconds {
        let Spread {
            min,
            median,
            max,
            runs,
        } = spread;
        Nanoseconds {
            min,
            median,
            max,
            runs,
        }
    }
}

/// The advice as a report, for its page.
pub(super) fn report(advice: &Advice<'_>) -> Report {
    let mut block = Block {
        title: source(advice),
        tradeoffs: vec![Tradeoff {
            title: "Memory saved against the cost of a page".to_owned(),
            across: "page_in_and_out",
            up: "memory_saved",
            chosen: advice.recommended().map(|trial| trial.choice.to_string()),
        }],
        ..Block::default()
    };
    for trial in advice.trials.iter().filter(|trial| !trial.is_tied) {
        block.results.extend(figures(advice, trial));
    }
    Report {
        suite: "advise",
        command: command::line("uzram"),
        built: Built::this(),
        machine: Machine::survey(),
        corpora: Vec::new(),
        blocks: vec![block],
        missing: Vec::new(),
        stopped: advice.stopped.clone(),
        headline: Some(Headline {
            title: "Which compression suits these pages?".to_owned(),
            sentence: sentences(advice).join(" "),
            command: commands(advice).map(|commands| commands.join("\n")),
        }),
    }
}

fn figures(advice: &Advice<'_>, trial: &Trial) -> Vec<Measured> {
    let figures = &trial.figures;
    let one = |value: f64| Series::from(vec![value]).spread();
    let rows = [
        ("memory_saved", "%", one(figures.saved * 100.0)),
        ("page_in_and_out", "ns", one(figures.cost_ns())),
        ("page_in", "ns", one(figures.times.write_ns().min)),
        ("page_out", "ns", one(figures.times.read_ns().min)),
    ];
    let measured = rows.into_iter().filter_map(|(metric, unit, spread)| {
        Some(Measured {
            case: "all".to_owned(),
            variant: trial.choice.to_string(),
            metric,
            unit,
            spread: spread?,
            working_set_bytes: (advice.split.pages() * PAGE_BYTES) as u64,
            pinned: None,
        })
    });
    measured.collect()
}
