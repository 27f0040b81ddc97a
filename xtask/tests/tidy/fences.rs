//! Rights of some files only: unsafe code, and the standard library's locks and threads.

use crate::tree::{File, Tree, words};

/// The heading of the list of files that may use `unsafe`. Its lines read ``- `path/file.rs`:
/// why``. It stands in ARCHITECTURE.md, with paths from the root of the repository, and in the doc
/// comments of the roots of crates outside of the product, with paths from there.
const HEADING: &str = "Modules that may use unsafe";

/// The engine's one importer of the standard library's locks and threads.
const SYNC: &str = "crates/uzram/src/sync.rs";
/// Questions whose answer no schedule changes.
const HARMLESS: &[&str] = &["thread::available_parallelism", "thread::panicking"];

/// Files that use `unsafe` unlisted, and list entries that are out of date. Tests may use it: they
/// are not shipped, and clippy checks their SAFETY comments.
pub fn unsafe_modules(tree: &Tree) -> Vec<String> {
    let mut violations = Vec::new();
    let listed: Vec<String> = tree.files.iter().flat_map(listed).collect();
    for file in tree.rust("") {
        let code = tree.product_code(file);
        let first = words(&code).find(|(_, word)| *word == "unsafe");
        match (first, listed.contains(&file.path)) {
            (Some((line, _)), false) => {
                violations.push(format!(
                    "{}:{line}: unsafe in a file that is not listed",
                    file.path
                ));
            }
            (None, true) => violations.push(format!("{}: listed, and uses no unsafe", file.path)),
            _ => {}
        }
    }
    let gone = listed.iter().filter(|path| tree.get(path).is_none());
    violations.extend(gone.map(|path| format!("{path}: listed, and does not exist")));
    violations
}

/// The paths that a file lists, if a list may stand in it.
fn listed(file: &File) -> Vec<String> {
    let root = ["src/lib.rs", "src/main.rs"];
    let (folder, mark) = if file.path == "ARCHITECTURE.md" {
        ("", "")
    } else if root.iter().any(|root| file.path.ends_with(root)) {
        let (folder, _) = file.path.rsplit_once('/').unwrap_or_default();
        (folder, "//!")
    } else {
        return Vec::new();
    };
    let lines = file.text.lines();
    let texts = lines
        .filter_map(|line| line.strip_prefix(mark))
        .map(str::trim);
    texts
        .skip_while(|line| !line.starts_with('#') || line.trim_start_matches(['#', ' ']) != HEADING)
        .skip(1)
        .take_while(|line| !line.starts_with('#'))
        .filter_map(|line| line.strip_prefix("- `")?.split_once('`'))
        .map(|(path, _)| {
            format!("{folder}/{path}")
                .trim_start_matches('/')
                .to_string()
        })
        .collect()
}

/// Engine files other than sync.rs that reach for the standard library's locks or threads, which
/// the model checker cannot see.
pub fn std_sync(tree: &Tree) -> Vec<String> {
    let mut violations = Vec::new();
    for file in tree
        .rust("crates/uzram/src/")
        .filter(|file| file.path != SYNC)
    {
        for (index, line) in tree.product_code(file).lines().enumerate() {
            let paths = ["std::", "core::"]
                .into_iter()
                .flat_map(|root| line.split(root).skip(1));
            let fenced = paths.filter(|path| is_fenced(path)).count();
            let message = format!(
                "{}:{}: std's locks and threads come from sync.rs",
                file.path,
                index + 1
            );
            violations.extend((fenced > 0).then_some(message));
        }
    }
    violations
}

/// Whether what follows `std::`, one path or a group of paths, leads to a lock or a thread.
fn is_fenced(path: &str) -> bool {
    let (paths, count) = match path.strip_prefix('{') {
        Some(group) => (group, usize::MAX),
        None => (path, 1),
    };
    let end = |c: char| !(c.is_alphanumeric() || c == '_' || c == ':');
    paths.split(',').take(count).any(|path| {
        let path = path.trim().split(end).next().unwrap_or_default();
        let module = path.split("::").next().unwrap_or_default();
        ["sync", "thread"].contains(&module) && !HARMLESS.contains(&path)
    })
}

#[test]
fn unsafe_outside_of_the_list_is_caught() {
    let root = "//! An engine.\n//!\n//! # Modules that may use unsafe\n//! - `region.rs`: mmap\n//!\n//! # More\n//! - `x.rs`";
    let caught = |path: &str, text: &str| {
        let region = ("crates/uzram/src/region.rs", "fn f() { unsafe { g() } }");
        let planted = [("crates/uzram/src/lib.rs", root), region, (path, text)];
        unsafe_modules(&Tree::planted(&planted)).len()
    };
    assert_eq!(
        caught("crates/uzram/src/page.rs", "fn f() { unsafe { g() } }"),
        1
    );
    assert_eq!(
        caught("crates/uzram/examples/a.rs", "unsafe impl Send for X {}"),
        1
    );
    assert_eq!(
        caught("crates/uzram/tests/it.rs", "unsafe impl Send for X {}"),
        0
    );
    assert_eq!(
        caught(
            "crates/uzram/src/page.rs",
            "// unsafe\nfn f() { g(\"unsafe\") }"
        ),
        0
    );
    // The list of the product stands in ARCHITECTURE.md.
    let list =
        "# A\n\n## Modules that may use unsafe\n\n- `crates/a/src/b.rs`: mmap\n\n## C\n\n- `c.rs`";
    let used = ("crates/a/src/b.rs", "fn f() { unsafe { g() } }");
    let product = [("ARCHITECTURE.md", list), used];
    assert_eq!(unsafe_modules(&Tree::planted(&product)), [""; 0]);
    assert_eq!(unsafe_modules(&Tree::planted(&[used])).len(), 1);
    // Without any list nothing may; an entry whose file has none, or is gone, is stale.
    let unlisted = [(
        "crates/a/src/main.rs",
        "//! A.\nfn main() { unsafe { f() } }",
    )];
    assert_eq!(unsafe_modules(&Tree::planted(&unlisted)).len(), 1);
    assert_eq!(
        unsafe_modules(&Tree::planted(&[("crates/uzram/src/lib.rs", root)])).len(),
        1
    );
    let tame = [
        ("crates/uzram/src/lib.rs", root),
        ("crates/uzram/src/region.rs", "fn f() {}"),
    ];
    assert_eq!(unsafe_modules(&Tree::planted(&tame)).len(), 1);
}

#[test]
fn the_standard_librarys_locks_are_caught_outside_of_sync() {
    let caught = |path: &str, text: &str| std_sync(&Tree::planted(&[(path, text)])).len();
    let store = "crates/uzram/src/store/mod.rs";
    assert_eq!(caught(store, "use std::sync::Arc;"), 1);
    assert_eq!(caught(store, "fn f() { std::thread::yield_now() }"), 1);
    assert_eq!(caught(store, "use core::sync::atomic::AtomicU64;"), 1);
    assert_eq!(caught(store, "use std::{fmt, sync::Mutex};"), 1);
    assert_eq!(caught(store, "use std::{fmt, thread};"), 1);
    assert_eq!(
        caught(store, "let n = std::thread::available_parallelism();"),
        0
    );
    assert_eq!(caught(store, "use std::fmt;\nuse crate::sync::Arc;"), 0);
    assert_eq!(
        caught(store, "#[cfg(test)]\nmod tests { use std::thread; }"),
        0
    );
    assert_eq!(
        caught("crates/uzram/src/sync.rs", "pub use std::sync::Arc;"),
        0
    );
    assert_eq!(
        caught("crates/uzram-server/src/lib.rs", "use std::sync::Arc;"),
        0
    );
}
