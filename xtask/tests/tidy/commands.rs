//! The commands that README.md shows: every sub-command and option of `uzram` exists.

use std::process::Command;
use std::sync::LazyLock;

use crate::tree::{Tree, cargo};

/// The program. It is built together with an example, for then cargo chooses the features that it chooses for tests
/// and finds all crates built.
static BINARY: LazyLock<String> = LazyLock::new(|| {
    let said = cargo("build --quiet --bin uzram --example man --message-format json");
    let mut messages = said.lines().map(|line| serde_json::from_str(line).unwrap());
    let program = messages.find_map(|message: serde_json::Value| {
        let is_program = message["target"]["name"] == "uzram";
        message["executable"]
            .as_str()
            .filter(|_| is_program)
            .map(str::to_owned)
    });
    program.expect("cargo names the program that it built")
});

/// The output of the built program for `uzram help`, or `uzram help SUB...`; `None` if it fails.
pub fn help_of_the_binary(subcommand: &[String]) -> Option<String> {
    let mut command = Command::new(&*BINARY);
    let output = command.arg("help").args(subcommand).output().unwrap();
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Sub-commands and options in the README's code blocks that the program's help does not name.
pub fn unknown(tree: &Tree, help: &dyn Fn(&[String]) -> Option<String>) -> Vec<String> {
    let Some(readme) = tree.get("README.md") else {
        return vec!["README.md does not exist".into()];
    };
    let mut violations = Vec::new();
    let mut seen: Vec<(Vec<String>, Option<String>)> = Vec::new();
    // Suites are looked up by a test of the laboratory.
    let is_suite = |words: &[String]| words.first().is_some_and(|word| word == "bench");
    let commands = uzram_commands(&readme.text).into_iter();
    for (line, words) in commands.filter(|(_, words)| !is_suite(words)) {
        let subcommand: Vec<String> = subcommand(&words);
        if !seen.iter().any(|(known, _)| *known == subcommand) {
            seen.push((subcommand.clone(), help(&subcommand)));
        }
        let known = seen.iter().find(|(known, _)| *known == subcommand);
        let Some(text) = known.and_then(|(_, text)| text.as_ref()) else {
            violations.push(format!(
                "README.md:{line}: `uzram {}` is unknown",
                subcommand.join(" ")
            ));
            continue;
        };
        let options = words
            .iter()
            .filter(|word| word.starts_with("--") && word.len() > 2);
        let options = options.map(|word| word.split('=').next().unwrap_or(word));
        let bad = options.filter(|option| !has_option(text, option));
        violations.extend(bad.map(|option| {
            format!(
                "README.md:{line}: `uzram {}` has no {option}",
                subcommand.join(" ")
            )
        }));
    }
    violations
}

/// The words after `uzram` (or after `cargo run … uzram-cli --`) of each command in a code block.
fn uzram_commands(text: &str) -> Vec<(usize, Vec<String>)> {
    let mut fenced = false;
    let mut commands = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            continue;
        }
        let line = line.split(" #").next().unwrap_or_default();
        for command in line.split(['|', ';', '&']).filter(|_| fenced) {
            let words: Vec<&str> = command.split_whitespace().collect();
            let words = match words.as_slice() {
                ["sudo" | "$", "uzram", rest @ ..] | ["uzram", rest @ ..] => rest,
                ["cargo", "run", rest @ ..] => match rest.iter().position(|word| *word == "--") {
                    Some(at) if rest.contains(&"uzram-cli") => &rest[at + 1..],
                    _ => continue,
                },
                _ => continue,
            };
            commands.push((index + 1, words.iter().map(ToString::to_string).collect()));
        }
    }
    commands
}

/// The sub-command: one word, or two for `bench`, which has suites.
fn subcommand(words: &[String]) -> Vec<String> {
    let count = if words.first().is_some_and(|word| word == "bench") {
        2
    } else {
        1
    };
    words
        .iter()
        .take_while(|word| !word.starts_with('-'))
        .take(count)
        .cloned()
        .collect()
}

/// Whether `help` names exactly this option.
fn has_option(help: &str, option: &str) -> bool {
    help.split(|c: char| !c.is_alphanumeric() && c != '-')
        .any(|word| word == option)
}

#[test]
fn commands_and_options_that_do_not_exist_are_caught() {
    let help = |subcommand: &[String]| match subcommand.first().map(String::as_str) {
        Some("serve") => Some("usage: uzram serve --size <SIZE> [--mem-limit <N>]".to_string()),
        Some("bench") if subcommand.len() == 2 => Some("--json".to_string()),
        _ => None,
    };
    let caught = |text: &str| unknown(&Tree::planted(&[("README.md", text)]), &help).len();
    assert_eq!(caught("```sh\nuzram conjure --size 1G\n```"), 1);
    assert_eq!(caught("```sh\nuzram serve --size 1G --mem 5 | cat\n```"), 1);
    assert_eq!(
        caught("```sh\ncargo run --release -p uzram-cli -- serve --sise=1G\n```"),
        1
    );
    assert_eq!(
        caught("```sh\nuzram serve --size=1G # --not-read\n```\nuzram conjure"),
        0
    );
    assert_eq!(caught("```sh\nuzram bench store --json F\n```"), 0);
    assert_eq!(unknown(&Tree::planted(&[]), &help).len(), 1);
}
