//! Every help text fits a terminal of 80 columns, and every listing one of 40.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::support::Home;

const COLUMNS: usize = 80;

fn at_80_columns(home: &Home, args: &[&str]) -> String {
    at_columns(home, args, Some(COLUMNS))
}

/// `None` is no terminal.
fn at_columns(home: &Home, args: &[&str], width: Option<usize>) -> String {
    let mut command = home.command(args);
    command.env_remove("COLUMNS");
    command.envs(width.map(|width| ("COLUMNS", width.to_string())));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Lines that are longer than `width`, but for those that are to be copied: a socket's address, a command.
fn too_long(text: &str, width: usize) -> Vec<&str> {
    const UNBREAKABLE: usize = 40;
    let is_long = |line: &&str| {
        let mut words = line.split_whitespace();
        let can_break = words.all(|word| word.chars().count() < UNBREAKABLE);
        let is_command = line.contains(" && ") || line.starts_with("  uzram up ");
        line.chars().count() > width && can_break && !is_command
    };
    text.lines().filter(is_long).collect()
}

/// Lines that end although the next word has room: wrapped by hand, and then again. Examples, lists and ends
/// of sentences may.
fn wrapped_twice(text: &str) -> Vec<&str> {
    let is_prose = |line: &str| !line.is_empty() && !line.starts_with([' ', '-', '<']);
    let lines: Vec<&str> = text.lines().collect();
    let pairs = lines.windows(2).filter(|pair| {
        let word = pair[1].split(' ').next().unwrap_or_default();
        let has_room = pair[0].chars().count() + 1 + word.chars().count() <= COLUMNS;
        let ends = pair[0].ends_with(['.', ':', ',', ';']);
        is_prose(pair[0]) && is_prose(pair[1]) && has_room && !ends
    });
    pairs.map(|pair| pair[0]).collect()
}

/// All sub-commands below `path`, as the help texts list them.
fn commands(home: &Home, path: &[&str], found: &mut Vec<Vec<String>>) {
    let help = at_80_columns(home, &[path, &["--help"]].concat());
    found.push(path.iter().map(|word| (*word).to_owned()).collect());
    let Some((_, listed)) = help.split_once("\nCommands:\n") else {
        return;
    };
    let names = listed.lines().take_while(|line| !line.is_empty());
    // A name, not the rest of a description that was wrapped.
    let names = names.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    for name in names.filter_map(|line| line.split_whitespace().next()) {
        // The laboratory's help is its own.
        if !["help", "bench"].contains(&name) {
            commands(home, &[path, &[name]].concat(), found);
        }
    }
}

#[test]
fn help_texts_fit_and_are_wrapped_once() {
    let home = Home::new();
    let mut all = Vec::new();
    commands(&home, &[], &mut all);
    assert!(all.len() > 15, "{all:?}");
    let mut problems = Vec::new();
    for path in &all {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        for flag in ["--help", "-h"] {
            let help = at_80_columns(&home, &[&path[..], &[flag]].concat());
            let shown = path.join(" ");
            problems.extend(
                wrapped_twice(&help)
                    .iter()
                    .map(|l| format!("{shown} {flag}: twice: {l:?}")),
            );
            problems.extend(
                too_long(&help, COLUMNS)
                    .iter()
                    .map(|l| format!("{shown} {flag}: {l:?}")),
            );
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Options are never beside a column of single words: each description has a line of its own where
/// the terminal is not wide enough for both.
#[test]
fn short_help_is_read_at_40_columns() {
    let home = Home::new();
    let mut problems = Vec::new();
    for name in ["serve", "up", "add"] {
        let mut command = home.command(&[name, "-h"]);
        let output = command.env("COLUMNS", "40").output().unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        let (_, options) = help.split_once("\nOptions:\n").unwrap();
        let (options, _) = options.split_once("\nExamples:\n").unwrap();
        let lines = options.lines().filter(|line| line.chars().count() > 40);
        problems.extend(lines.map(|line| format!("{name}: {line:?}")));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn listings_fit() {
    let home = Home::new();
    let _one = home.serve(&["--size", "64M"]);
    let name = "a-name-of-thirty-two-characters0";
    let _other = home.serve(&["--size", "1000G", "--name", name, "--mem-limit", "1000M"]);
    let mut dead = home.serve(&["--size", "1M", "--name", "dead"]);
    dead.signal("KILL");
    dead.wait();
    let mut problems = Vec::new();
    for width in [40, 60, COLUMNS] {
        for args in [&["list"][..], &["stat", "uzram0"], &["stat"], &["doctor"]] {
            let text = at_columns(&home, args, Some(width));
            let long = too_long(&text, width).into_iter();
            problems.extend(long.map(|line| format!("{width}: {args:?}: {line:?}")));
            let has_remedy = text.contains("uzram down dead");
            assert!(
                has_remedy || !matches!(args, ["list"] | ["stat"]),
                "{width}: {text}"
            );
        }
        let watched = watched(&home, Some(width)).into_iter();
        let long = watched.filter(|line| line.chars().count() > width);
        problems.extend(long.map(|line| format!("{width}: watch: {line:?}")));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Nothing is left out or cut where nobody said how much room there is, as in a pipe.
#[test]
fn without_a_terminal_listings_are_whole() {
    let home = Home::new();
    let name = "a-name-of-thirty-two-characters0";
    let _one = home.serve(&["--size", "1G", "--name", name]);
    let mut dead = home.serve(&["--size", "1M", "--name", "dead"]);
    dead.signal("KILL");
    dead.wait();
    let list = at_columns(&home, &["list"], None);
    assert_eq!(list.lines().count(), 3, "{list}");
    assert!(
        list.starts_with("NAME ") && list.contains(" PID  ENDPOINT\n"),
        "{list}"
    );
    let stat = at_columns(&home, &["stat", name], None);
    assert!(stat.contains(" (1073741824 bytes)\n"), "{stat}");
    assert!(
        stat.contains("0 bytes  data stored, uncompressed\n"),
        "{stat}"
    );
    assert!(watched(&home, None)[0].ends_with("RATIO FAILED"));
}

/// The first lines of a watch.
fn watched(home: &Home, width: Option<usize>) -> Vec<String> {
    let mut command = home.command(&["stat", "--watch=0.1"]);
    command.env_remove("COLUMNS").stdout(Stdio::piped());
    command.envs(width.map(|width| ("COLUMNS", width.to_string())));
    let mut watch = command.spawn().unwrap();
    let lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let lines = lines.map(Result::unwrap).take(6).collect();
    assert!(watch.wait().unwrap().success(), "nobody reads");
    lines
}
