//! `uzram doctor`.

use serde_json::{Value, json};
use uzram_server::doctor::{Advice, Diagnosis, Fact, Machine, examine};
use uzram_server::size::human;

use crate::args::DoctorArgs;
use crate::failure::Result;
use crate::output::{bold, hanging, print, print_json, width, wrapped};

/// Columns of a fact's subject and state, and of what stands before the words of the advice.
const SUBJECT_COLUMNS: usize = 13;
const STATE_COLUMNS: usize = 9;
const LABEL_COLUMNS: usize = 7;
/// Lines never get more columns than are easy to read.
const COLUMNS_MAX: usize = 100;

/// Runs the command.
pub fn run(args: &DoctorArgs) -> Result {
    let machine = Machine::here();
    let diagnosis = examine(&machine);
    match args.json {
        true => print_json(&json(&machine, &diagnosis)),
        false => print(&text(&machine, &diagnosis, width().min(COLUMNS_MAX))),
    }
}

fn text(machine: &Machine, diagnosis: &Diagnosis, width: usize) -> String {
    let title = format!(
        "Linux {}, {}, {} of RAM, {}",
        machine.release,
        machine.architecture,
        human(machine.ram_bytes),
        machine.rights.describe()
    );
    let mut text = format!("{}\n\n", wrapped(&title, width).join("\n"));
    for fact in &diagnosis.facts {
        text.push_str(&fact_lines(fact, width));
    }
    text.push('\n');
    text.push_str(&advice_lines(&diagnosis.advice, width));
    text
}

fn fact_lines(fact: &Fact, width: usize) -> String {
    let head = format!(
        "{:SUBJECT_COLUMNS$}{:STATE_COLUMNS$}",
        fact.subject.name(),
        fact.state.name()
    );
    let words = format!("{} [{}]", fact.detail, fact.source);
    hanging(&head, &words, width)
}

fn advice_lines(advice: &Advice, width: usize) -> String {
    let mut text = bold(&format!("Best here: {}", advice.goal)) + "\n";
    // In one line however long, so that it can be copied.
    if let Some(command) = &advice.command {
        text.push_str(&format!("  {command}\n"));
    }
    for (label, words) in [("why", advice.reason), ("price", advice.price.as_str())] {
        text.push_str(&hanging(&format!("{label:LABEL_COLUMNS$}"), words, width));
    }
    text
}

fn json(machine: &Machine, diagnosis: &Diagnosis) -> Value {
    let fact = |fact: &Fact| {
        json!({
            "name": fact.subject.name(),
            "state": fact.state.name(),
            "detail": fact.detail,
            "source": fact.source,
        })
    };
    let (rights, advice) = (machine.rights, &diagnosis.advice);
    json!({
        "kernel": machine.release,
        "architecture": machine.architecture,
        "ram_bytes": machine.ram_bytes,
        "rights": {
            "root": rights.is_root,
            "cap_sys_admin": rights.has_sys_admin,
            "user_namespace": rights.is_in_user_namespace,
        },
        "facts": diagnosis.facts.iter().map(fact).collect::<Vec<_>>(),
        "advice": {
            "goal": advice.goal,
            "command": advice.command,
            "reason": advice.reason,
            "price": advice.price,
        },
    })
}
