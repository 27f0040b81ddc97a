//! The shape of every file: a head that describes it, a bounded length, nothing unfinished.

use crate::tree::{Tree, code, without_tests};

/// Ceiling of a source file without its tests, in lines.
const LINES_MAX: usize = 600;
/// Ceiling of any file, in bytes.
const BYTES_MAX: u64 = 256 << 10;

/// Calls and markers of unfinished work. They are written in parts because of this very file.
const UNFINISHED_CODE: &[&str] = &["todo!", "dbg!", "unimplemented!"];
const UNFINISHED_COMMENTS: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
];

/// Source files that do not start with `//!`.
pub fn heads(tree: &Tree) -> Vec<String> {
    let headless = tree.rust("").filter(|file| !file.text.starts_with("//! "));
    headless
        .map(|file| {
            format!(
                "{}: does not start by saying what it is, with //!",
                file.path
            )
        })
        .collect()
}

/// Source files above the ceiling.
pub fn ceilings(tree: &Tree) -> Vec<String> {
    let long = tree
        .rust("")
        .filter(|file| !file.is_test())
        .filter_map(|file| {
            let lines = without_tests(&code(&file.text)).lines().count() - test_lines(&file.text);
            let message = format!(
                "{}: {lines} lines without tests; split it below {LINES_MAX}",
                file.path
            );
            (lines > LINES_MAX).then_some(message)
        });
    long.collect()
}

/// Lines of `source` that the items under `#[cfg(test)]` take.
fn test_lines(source: &str) -> usize {
    let code = code(source);
    let kept = without_tests(&code);
    // Blanked lines are those that had code before and are empty now.
    let pairs = code.lines().zip(kept.lines());
    pairs
        .filter(|(before, after)| !before.trim().is_empty() && after.trim().is_empty())
        .count()
}

/// Files that are too large to read.
pub fn blobs(tree: &Tree) -> Vec<String> {
    let large = tree.sizes.iter().filter(|(_, bytes)| *bytes > BYTES_MAX);
    large
        .map(|(path, bytes)| {
            format!("{path}: {bytes} bytes, at most {BYTES_MAX}; keep a summary of it")
        })
        .collect()
}

/// Code and comments that say that something is missing.
pub fn unfinished(tree: &Tree) -> Vec<String> {
    let mut violations = Vec::new();
    for file in tree.rust("") {
        let code = code(&file.text);
        for (index, (code, source)) in code.lines().zip(file.text.lines()).enumerate() {
            let call = UNFINISHED_CODE.iter().find(|call| code.contains(*call));
            let comment = UNFINISHED_COMMENTS
                .iter()
                .find(|word| source.contains(*word));
            if let Some(found) = call.or(comment) {
                violations.push(format!("{}:{}: {found}", file.path, index + 1));
            }
        }
    }
    violations
}

/// Manifests that do not inherit the workspace's lints.
pub fn lints(tree: &Tree) -> Vec<String> {
    let members = tree.files.iter().filter(|file| {
        let is_member = ["crates/", "lab/", "xtask/"]
            .iter()
            .any(|folder| file.path.starts_with(folder));
        is_member && file.path.ends_with("/Cargo.toml")
    });
    let careless = members.filter(|file| !file.text.contains("[lints]\nworkspace = true"));
    careless
        .map(|file| format!("{}: does not inherit the workspace's lints", file.path))
        .collect()
}

#[test]
fn a_file_without_a_head_is_caught() {
    let tree = Tree::planted(&[
        ("a.rs", "use std::fmt;"),
        ("b.rs", "//! Says what it is.\n"),
    ]);
    assert_eq!(heads(&tree).len(), 1);
}

#[test]
fn a_file_above_the_ceiling_is_caught_and_tests_do_not_count() {
    let long = "fn f() {}\n".repeat(LINES_MAX + 1);
    let tests = format!(
        "fn f() {{}}\n#[cfg(test)]\nmod tests {{\n{}}}\n",
        "fn g() {}\n".repeat(LINES_MAX)
    );
    let files = [
        ("src/a.rs", long.as_str()),
        ("src/b.rs", &tests),
        ("x/tests/c.rs", &long),
    ];
    let violations = ceilings(&Tree::planted(&files));
    assert_eq!(violations.len(), 1, "{violations:?}");
    assert!(violations[0].starts_with("src/a.rs: 601 lines"));
}

#[test]
fn a_blob_is_caught() {
    let [fine, large] = [BYTES_MAX, BYTES_MAX + 1].map(|bytes| "x".repeat(bytes as usize));
    let tree = Tree::planted(&[("docs/a.csv", &fine), ("docs/b.json", &large)]);
    let violations = blobs(&tree);
    assert_eq!(violations.len(), 1, "{violations:?}");
    assert!(violations[0].starts_with("docs/b.json: 262145 bytes"));
}

#[test]
fn unfinished_code_is_caught() {
    let caught = |text: &str| unfinished(&Tree::planted(&[("a.rs", text)])).len();
    assert_eq!(caught("fn f() { todo!() }"), 1);
    assert_eq!(caught(&format!("// {}: later", UNFINISHED_COMMENTS[0])), 1);
    assert_eq!(caught("fn f() { g(\"todo!\") }"), 0);
}

#[test]
fn a_manifest_without_lints_is_caught() {
    let tree = Tree::planted(&[("crates/a/Cargo.toml", "[package]\nname = \"a\"\n")]);
    assert_eq!(lints(&tree).len(), 1);
}
