//! The files of the checkout, and Rust source without its comments, literals and tests.

use std::path::{Path, PathBuf};

/// One text file.
pub struct File {
    /// Relative to the root of the checkout, with `/`.
    pub path: String,
    pub text: String,
}

impl File {
    /// Whether the file's name says that it has nothing but tests.
    pub fn is_test(&self) -> bool {
        self.path.contains("/tests/") || self.path.ends_with("tests.rs")
    }
}

/// Every text file that belongs to the repository.
pub struct Tree {
    pub files: Vec<File>,
    /// Every file, also those that are no text, with its size in bytes.
    pub sizes: Vec<(String, u64)>,
}

impl Tree {
    /// Reads the checkout without build outputs and hidden folders other than `.ci`, `.cargo` and
    /// `.github`.
    pub fn load() -> Tree {
        let mut tree = Tree {
            files: Vec::new(),
            sizes: Vec::new(),
        };
        tree.add_directory(&root(), "");
        tree
    }

    /// A tree of the given paths and texts, for tests of rules.
    pub fn planted(files: &[(&str, &str)]) -> Tree {
        let file = |(path, text): &(&str, &str)| File {
            path: (*path).into(),
            text: (*text).into(),
        };
        let size = |(path, text): &(&str, &str)| ((*path).into(), text.len() as u64);
        Tree {
            files: files.iter().map(file).collect(),
            sizes: files.iter().map(size).collect(),
        }
    }

    /// The Rust files below `prefix`.
    pub fn rust<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a File> {
        self.files
            .iter()
            .filter(move |file| file.path.starts_with(prefix) && file.path.ends_with(".rs"))
    }

    /// The product's code of a file: none of its tests, and nothing of a file that its parent
    /// declares for tests only.
    pub fn product_code(&self, file: &File) -> String {
        if file.is_test() {
            return String::new();
        }
        let (folder, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
        let parents = ["mod.rs", "lib.rs", "main.rs"].map(|parent| format!("{folder}/{parent}"));
        let mut parents = parents.iter().filter_map(|parent| self.get(parent));
        let module = name.trim_end_matches(".rs");
        if parents.all(|parent| declares(&code(&parent.text), module)) {
            without_tests(&code(&file.text))
        } else {
            String::new()
        }
    }

    /// The file at `path`.
    pub fn get(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    fn add_directory(&mut self, directory: &Path, prefix: &str) {
        let entries = std::fs::read_dir(directory).expect("the checkout is readable");
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        for name in names {
            let path = directory.join(&name);
            let relative = format!("{prefix}{name}");
            if path.is_dir() {
                if !is_foreign(&relative, &name) {
                    self.add_directory(&path, &format!("{relative}/"));
                }
            } else if relative == ".git" {
                // In a linked worktree it is a file that names a place on this machine.
            } else {
                let bytes = path.metadata().map_or(0, |metadata| metadata.len());
                self.sizes.push((relative.clone(), bytes));
                let Ok(text) = std::fs::read_to_string(&path) else {
                    continue;
                };
                self.files.push(File {
                    path: relative,
                    text,
                });
            }
        }
    }
}

/// Whether a folder is not part of the repository: hidden, or named in .gitignore.
fn is_foreign(relative: &str, name: &str) -> bool {
    let ignored = [
        "target",
        "fuzz/target",
        "fuzz/corpus",
        "fuzz/artifacts",
        "fuzz/coverage",
    ];
    let hidden = name.starts_with('.') && ![".ci", ".cargo", ".github"].contains(&name);
    hidden || ignored.contains(&relative)
}

/// The root of the checkout for which cargo runs the tests.
pub fn root() -> PathBuf {
    let xtask = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where the crate is");
    Path::new(&xtask).parent().unwrap().to_path_buf()
}

/// The output of cargo, run in the root with `arguments` that are separated by blanks.
pub fn cargo(arguments: &str) -> String {
    let mut command = uzram_testkit::cargo();
    command.args(arguments.split(' ')).current_dir(root());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo {arguments}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// `source` with comments and the insides of literals blanked out; lines keep their numbers.
pub fn code(source: &str) -> String {
    let mut rest = source;
    let mut code = String::with_capacity(source.len());
    while let Some(next) = rest.chars().next() {
        let (length, keep) = token(rest, next, code.chars().next_back());
        let (token, tail) = rest.split_at(length);
        if keep {
            code.push_str(token);
        } else {
            code.extend(token.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        }
        rest = tail;
    }
    code
}

/// Length in bytes of the first piece of `rest`, and whether it is code.
fn token(rest: &str, next: char, before: Option<char>) -> (usize, bool) {
    let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if rest.starts_with("//") {
        return (rest.find('\n').unwrap_or(rest.len()), false);
    }
    if rest.starts_with("/*") {
        return (block_comment(rest), false);
    }
    if next == '"' {
        return (quoted(rest, '"'), false);
    }
    if !in_word && let Some(length) = raw_string(rest) {
        return (length, false);
    }
    if next == '\'' {
        let mut ahead = rest.chars().skip(1);
        let (first, second) = (ahead.next(), ahead.next());
        let is_char = first == Some('\\') || second == Some('\'');
        return if is_char {
            (quoted(rest, '\''), false)
        } else {
            (1, true)
        };
    }
    (next.len_utf8(), true)
}

fn block_comment(rest: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        if !escaped && c == quote {
            return at + 1;
        }
        escaped = !escaped && c == '\\';
    }
    rest.len()
}

fn raw_string(rest: &str) -> Option<usize> {
    let start = rest.strip_prefix('b').unwrap_or(rest).strip_prefix('r')?;
    let hashes = start.len() - start.trim_start_matches('#').len();
    start[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let body = rest.len() - start.len() + hashes + 1;
    Some(
        rest[body..]
            .find(&end)
            .map_or(rest.len(), |at| body + at + end.len()),
    )
}

/// The attributes that make an item a test's, up to the part that may vary.
const TEST_ATTRIBUTES: &[&str] = &["#[cfg(test)]", "#[cfg(all(test,"];

/// `code` with every item that exists in tests only blanked out.
pub fn without_tests(code: &str) -> String {
    let mut kept = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(at) = TEST_ATTRIBUTES
        .iter()
        .filter_map(|mark| rest.find(mark))
        .min()
    {
        kept.push_str(&rest[..at]);
        let item = &rest[at..];
        let end = item_end(item);
        kept.extend(item[..end].chars().filter(|c| *c == '\n'));
        rest = &item[end..];
    }
    kept.push_str(rest);
    kept
}

/// Whether `code` declares the module `name`, outside of tests.
fn declares(code: &str, name: &str) -> bool {
    let kept = without_tests(code);
    let declaration = |line: &str| line.trim().ends_with(&format!("mod {name};"));
    kept.lines().any(declaration) || !code.lines().any(declaration)
}

/// Where an item ends: its closing brace, or the semicolon before any brace.
fn item_end(item: &str) -> usize {
    let mut depth = 0;
    for (at, c) in item.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return at + 1,
            '}' => depth -= 1,
            ';' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    item.len()
}

/// The identifiers and keywords of `code` with their line numbers from 1.
pub fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    code.lines().enumerate().flat_map(|(index, line)| {
        line.split(|c: char| !c.is_alphanumeric() && c != '_')
            .filter(|word| !word.is_empty())
            .map(move |word| (index + 1, word))
    })
}

#[test]
fn comments_and_literals_are_blanked() {
    let source =
        "let a = \"unsafe \\\" x\"; // unsafe\n/* unsafe /* x */ */ 'u' r#\"unsafe\"# 'life";
    let code = code(source);
    assert!(!code.contains("unsafe"), "{code}");
    assert!(code.starts_with("let a = ") && code.ends_with(" 'life"));
    assert_eq!(code.lines().count(), 2);
    assert_eq!(code.len(), source.len());
}

#[test]
fn test_modules_are_cut_and_what_follows_stays() {
    let code = "fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() { c() }\n}\nfn d() {}\n#[cfg(test)]\nmod e;\nfn f() {}";
    let kept = without_tests(code);
    assert!(!kept.contains("b()") && !kept.contains("mod e"), "{kept}");
    assert!(kept.contains("fn a()") && kept.contains("fn d()") && kept.contains("fn f()"));
    assert_eq!(kept.lines().count(), code.lines().count());
}

#[test]
fn a_file_that_is_declared_for_tests_only_is_no_product() {
    let planted = |declaration: &str| {
        let root = ("a/src/lib.rs", declaration);
        let tree = Tree::planted(&[root, ("a/src/laws.rs", "use std::thread;")]);
        tree.product_code(tree.get("a/src/laws.rs").unwrap())
    };
    assert_eq!(planted("#[cfg(test)]\nmod laws;\nmod b;"), "");
    assert_eq!(planted("#[cfg(all(test, not(x)))]\nmod laws;\nmod b;"), "");
    assert_eq!(
        planted("#[cfg(test)]\nmod b;\npub mod laws;"),
        "use std::thread;"
    );
}
