//! Programs under a budget, for `list`, `stat` and `set`: their control sockets and their tables.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use uzram::ErrorKind;
use uzram_run::{Controller, Report};
use uzram_server::control::{Attributes, Control, Handler, Reply, Request};
use uzram_server::size::human;
use uzram_server::state::{Claim, Owner, StateDir};

use super::{Disk, LIST_DYING_TIMEOUT, number, plain, stat_by};
use crate::failure::Result;
use crate::output::{Align, bold, columns, cut};

/// The value of `kind` in a run's attributes. Disks have none.
const KIND: &str = "run";
/// Characters of a program's command line in a listing.
const PROGRAM_WIDTH: usize = 24;
const PAGE_BYTES: u64 = 4096;

const HEADER: [(&str, Align); 8] = [
    ("RUN", Align::Left),
    ("PROGRAM", Align::Left),
    ("MEMORY", Align::Right),
    ("USED", Align::Right),
    ("AWAY", Align::Right),
    ("TOTAL", Align::Right),
    ("PROCESSES", Align::Right),
    ("PID", Align::Right),
];
const PROCESS_HEADER: [(&str, Align); 5] = [
    ("PID", Align::Right),
    ("PROCESS", Align::Left),
    ("USED", Align::Right),
    ("AWAY", Align::Right),
    ("MAPPINGS", Align::Right),
];

/// A run that others can ask about. Dropping it frees the name.
pub struct Published {
    _control: Control,
    _claim: Claim,
}

/// Lets others ask about the run that `controller` controls, under the name of `claim`.
pub fn publish(
    mut claim: Claim,
    controller: Controller,
    pid: i32,
    program: String,
    parse_memory: fn(&str) -> Result<u64>,
) -> Result<Published> {
    let path = claim.dir().run_control_socket(claim.name());
    let name = claim.name().to_owned();
    let answer = move |request: &Request| match request {
        Request::List {} | Request::Stat { .. } => controller.report().map_err(Into::into),
        Request::Set {
            attribute, value, ..
        } if attribute == "memory" => parse_memory(value)
            .map_err(|failure| refusal(failure.to_string()))
            .and_then(|bytes| Ok(controller.set_memory(bytes)?)),
        Request::Set { attribute, .. } if attribute == "empty" => Err(refusal(format!(
            "{name} is a program under a budget and no disk: nothing of it can be reset"
        ))),
        Request::Set { attribute, .. } => Err(refusal(format!(
            "{attribute}: a program under a budget has one attribute to set, memory"
        ))),
        Request::Add { .. } | Request::Remove { .. } => Err(refusal(no_disk(&name, pid))),
    };
    let name = claim.name().to_owned();
    let handler: Arc<Handler> = Arc::new(move |request, _file| match answer(request) {
        Ok(report) => Reply::done(vec![attributes(&name, pid, &program, &report)]),
        Err(error) => Reply::refused(&error),
    });
    let control = Control::bind(&path)?.serve(handler)?;
    let owner = Owner {
        pid: std::process::id(),
        control: path,
        holder: None,
    };
    claim.publish(&owner)?;
    Ok(Published {
        _control: control,
        _claim: claim,
    })
}

/// The answer to who takes the run `name` for a disk. A signal to `pid` ends it.
pub fn no_disk(name: &str, pid: impl std::fmt::Display) -> String {
    format!("{name} is a program under a budget and no disk; to end it: kill {pid}")
}

fn refusal(text: String) -> uzram_server::Error {
    uzram_server::Error::new(ErrorKind::InvalidInput, text)
}

fn attributes(name: &str, pid: i32, program: &str, report: &Report) -> Attributes {
    let facts = json!({
        "name": name,
        "kind": KIND,
        "pid": pid,
        "program": program,
        "memory": report.statistics.budget_bytes,
    });
    let mut all = object(facts);
    all.extend(object(serde_json::to_value(report).unwrap_or_default()));
    all
}

fn object(value: Value) -> Attributes {
    match value {
        Value::Object(object) => object,
        _ => Attributes::new(),
    }
}

/// Whether these are a run's attributes.
pub fn is_run(attributes: &Attributes) -> bool {
    attributes.get("kind").is_some_and(|kind| kind == KIND)
}

/// All runs in the order of their names.
pub fn runs(state: &StateDir) -> Result<Vec<Disk>> {
    let deadline = Instant::now() + LIST_DYING_TIMEOUT;
    let mut runs = Vec::new();
    for entry in state.runs()? {
        let attributes = stat_by(state, &entry, deadline);
        // It has ended meanwhile.
        if attributes.is_ok() || state.is_held(&entry) {
            runs.push(Disk {
                name: entry.name,
                pid: entry.owner.map(|owner| owner.pid),
                attributes,
            });
        }
    }
    Ok(runs)
}

/// A table of runs under their titles; nothing without any.
pub fn table(runs: &[Attributes]) -> String {
    let row = |attributes: &Attributes| {
        let text = |name: &str| attributes.get(name).map(plain).unwrap_or_default();
        let report = report(attributes);
        let statistics = report.statistics;
        vec![
            text("name"),
            cut(&text("program"), PROGRAM_WIDTH),
            human(number(attributes, "memory")),
            human(statistics.used_bytes),
            human(statistics.stored_pages * PAGE_BYTES),
            human(statistics.store_bytes),
            report.processes_count.to_string(),
            text("pid"),
        ]
    };
    titled(&HEADER, runs.iter().map(row).collect())
}

/// All figures of a run: those of all its processes together, and of each.
pub fn detail(attributes: &Attributes) -> String {
    let text = |name: &str| attributes.get(name).map(plain).unwrap_or_default();
    let report = report(attributes);
    let facts = [
        format!("program: {}", text("program")),
        format!("pid: {}", text("pid")),
    ];
    let lines = facts.into_iter().chain(report.statistics.lines());
    let lines: String = lines.map(|line| format!("  {line}\n")).collect();
    let rows = report.processes.iter().map(|its| {
        vec![
            its.pid.to_string(),
            its.name.clone(),
            human(its.used_bytes),
            human(its.stored_pages * PAGE_BYTES),
            its.mappings.to_string(),
        ]
    });
    let processes = titled(&PROCESS_HEADER, rows.collect());
    let others = match report.processes_count - report.processes.len() {
        0 => String::new(),
        count => format!("and {count} smaller ones\n"),
    };
    format!("{}\n{lines}{processes}{others}", bold(&text("name")))
}

fn report(attributes: &Attributes) -> Report {
    serde_json::from_value(Value::Object(attributes.clone())).unwrap_or_default()
}

fn titled(header: &[(&str, Align)], rows: Vec<Vec<String>>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let titles = header
        .iter()
        .map(|(title, _)| (*title).to_owned())
        .collect();
    let align: Vec<Align> = header.iter().map(|(_, align)| *align).collect();
    let table = columns(&[vec![titles], rows].concat(), &align);
    let (titles, rows) = table.split_once('\n').unwrap_or((&table, ""));
    format!("{}\n{rows}", bold(titles))
}

/// The command line of a program, as a shell would take it.
pub fn command_line(program: &[std::ffi::OsString]) -> String {
    let words = program.iter().enumerate().map(|(at, word)| {
        let word = match at {
            0 => Path::new(word).file_name().unwrap_or(word),
            _ => word,
        };
        super::quoted(&word.to_string_lossy())
    });
    words.collect::<Vec<_>>().join(" ")
}
