//! Texts: their links lead to existing files and headings, and docs begin with their subject.

use crate::tree::{Tree, root};

/// Words that a sentence of a doc does not begin with: the thing meant has a name.
const NO_SUBJECTS: [&str; 4] = ["what", "which", "who", "whose"];

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

/// Docs, and sentences at the start of a line of one, that begin with a question word. A line that
/// continues a sentence may.
pub fn subjects(tree: &Tree) -> Vec<String> {
    let mut violations = Vec::new();
    for file in tree.rust("") {
        let mut goes_on = false;
        for (index, line) in file.text.lines().enumerate() {
            let doc = doc(line);
            let first = doc.and_then(|doc| doc.split_whitespace().next());
            let first = first.unwrap_or_default();
            let begins = !goes_on || first.starts_with(char::is_uppercase);
            if begins && NO_SUBJECTS.contains(&first.to_lowercase().as_str()) {
                let place = format!("{}:{}", file.path, index + 1);
                violations.push(format!("{place}: begins with {first}; name the thing"));
            }
            goes_on = !first.is_empty();
        }
    }
    violations
}

/// The text of a line of documentation.
fn doc(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("//!")
        .or_else(|| line.strip_prefix("///"))
}

#[test]
fn a_doc_without_a_subject_is_caught() {
    let caught = |text: &str| subjects(&Tree::planted(&[("a.rs", text)])).len();
    for word in ["What", "Which", "Who", "Whose", "what"] {
        assert_eq!(caught(&format!("//! {word} it does.\n")), 1, "{word}");
        assert_eq!(caught(&format!("    /// {word} it does.\n")), 1, "{word}");
        let second = format!("/// A thing.\n///\n/// {word} it does.\n");
        assert_eq!(caught(&second), 1, "{word}");
    }
    assert_eq!(caught("/// # Errors\n/// What failed.\n"), 1);
    assert_eq!(
        caught("/// The pages, and\n/// which of them are idle.\n"),
        0
    );
    assert_eq!(
        caught("/// Whatever it is.\n// What a comment may say.\n"),
        0
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
