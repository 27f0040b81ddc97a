//! Texts: they speak of the project alone, and their links lead somewhere.

use crate::tree::{Tree, root};

/// Words, in lower case, that speak of how or where the project is made instead of what it is.
/// Written apart so that this file does not hold them.
const BANNED: &[&str] = &[
    concat!("ses", "sion"),
    concat!("ses", "sions"),
    concat!("help", "er agent"),
    concat!("help", "er agents"),
    concat!("sub", "agent"),
    concat!("clau", "de"),
    concat!("anthro", "pic"),
    concat!("crates", ".io"),
    concat!("proxy", ".golang"),
    concat!("art", "ifactory"),
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/tmp/", "t-"),
    concat!("../sha", "red"),
    concat!("design", ".md"),
    concat!("the ", "brief"),
];

/// What a banned word also means, and where.
const ALLOWED: &[(&str, &str)] = &[
    // One client's exchange with a server, as the NBD protocol calls it.
    (BANNED[0], "crates/uzram-frontends/"),
    (BANNED[1], "crates/uzram-frontends/"),
    (BANNED[0], "ARCHITECTURE.md"),
    (BANNED[0], "crates/uzram-bench/src/suite/nbd/"),
    (BANNED[0], "fuzz/"),
];

/// Lock files name where every crate comes from; their content is not ours.
const GENERATED: &[&str] = &["Cargo.lock", "fuzz/Cargo.lock"];

/// Banned words in any file.
pub fn banned_words(tree: &Tree) -> Vec<String> {
    let mut violations = Vec::new();
    for file in tree
        .files
        .iter()
        .filter(|file| !GENERATED.contains(&file.path.as_str()))
    {
        for (index, line) in file.text.lines().enumerate() {
            let lower = line.to_lowercase();
            let allowed = |word: &str| {
                ALLOWED
                    .iter()
                    .any(|(known, place)| *known == word && file.path.starts_with(place))
            };
            let found = BANNED
                .iter()
                .filter(|word| has_word(&lower, word) && !allowed(word));
            violations.extend(found.map(|word| format!("{}:{}: `{word}`", file.path, index + 1)));
        }
    }
    violations
}

/// Whether `word` stands in `line`, and not as a part of a longer word.
fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let letter = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        let starts = word.starts_with(char::is_alphanumeric);
        let ends = word.ends_with(char::is_alphanumeric);
        let before = letter(line[..at].chars().next_back());
        let after = letter(line[at + word.len()..].chars().next());
        !(starts && before || ends && after)
    })
}

/// Relative links of Markdown files to files or headings that do not exist.
pub fn links(tree: &Tree) -> Vec<String> {
    let mut violations = Vec::new();
    for file in tree.files.iter().filter(|file| file.path.ends_with(".md")) {
        for (line, target) in targets(&file.text) {
            let (path, heading) = target.split_once('#').unwrap_or((&target, ""));
            let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
            let path = if path.is_empty() {
                file.path.clone()
            } else {
                join(folder, path)
            };
            let other = tree.get(&path);
            let exists = other.is_some() || root().join(&path).exists();
            let heading_exists = heading.is_empty()
                || other.is_some_and(|other| headings(&other.text).any(|known| known == heading));
            if !exists || !heading_exists {
                violations.push(format!("{}:{line}: {target} leads nowhere", file.path));
            }
        }
    }
    violations
}

/// The targets of inline links that are neither addresses nor in fenced code, with their lines.
fn targets(text: &str) -> Vec<(usize, String)> {
    let mut fenced = false;
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        let links = line
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next());
        let relative = links.filter(|link| !link.contains("://") && !link.starts_with("mailto:"));
        if !fenced {
            found.extend(relative.map(|link| (index + 1, link.to_string())));
        }
    }
    found
}

/// `path` as seen from `folder`, relative to the root.
fn join(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    parts.join("/")
}

/// The anchors that a Markdown file's headings get.
fn headings(text: &str) -> impl Iterator<Item = String> {
    text.lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title
                .chars()
                .filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
}

#[test]
fn a_banned_word_is_caught_as_a_word_only() {
    for word in BANNED {
        let text = format!("fine\nthis is {}, here", word.to_uppercase());
        assert_eq!(
            banned_words(&Tree::planted(&[("docs/a.md", &text)])).len(),
            1,
            "{word}"
        );
    }
    let fine = "obsessions; the root directory; work in /workshop; crate";
    assert_eq!(
        banned_words(&Tree::planted(&[("docs/a.md", fine)])),
        [""; 0]
    );
    let lock = format!("source = \"{}\"", BANNED[7]);
    assert_eq!(
        banned_words(&Tree::planted(&[("Cargo.lock", &lock)])),
        [""; 0]
    );
}

#[test]
fn a_link_that_leads_nowhere_is_caught() {
    let page =
        "# Top\n[gone](nowhere.md) [no heading](b.md#gone)\n```\n[code](x.md)\n```\n[self](#top)\n";
    let more =
        "[up](../a.md#top) [there](b.md#a-heading) [net](https://example.org/x)\n## A heading!\n";
    let tree = Tree::planted(&[("a.md", page), ("docs/b.md", more), ("b.md", "")]);
    let violations = links(&tree);
    assert_eq!(violations.len(), 2, "{violations:?}");
    assert!(
        violations
            .iter()
            .all(|violation| violation.starts_with("a.md:2:"))
    );
}
