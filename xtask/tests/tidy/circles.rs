//! Circles of files: two files of a crate that need each other, directly or through others.
//!
//! An edge goes from a file to the file that defines what it names, by `use` or in a path. Names are
//! followed through imports to where they lead, so naming something by way of a façade is no edge to the
//! façade. `mod` declarations and re-exports that the file itself does not use are no edges; tests are
//! left out. Macros, glob imports of names, and paths through types are not followed.

use std::collections::{BTreeMap, BTreeSet};

use crate::tree::{File, Tree};

/// Circles that stand: the crate's folder, and the files below its `src`. This list may only shrink.
pub const KNOWN: &[(&str, &[&str])] = &[];

/// Most imports that are followed in a row.
const IMPORTS_MAX: usize = 16;

/// A module: a file, or a part of one in braces.
#[derive(Default)]
struct Module {
    file: usize,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    imports: BTreeMap<String, Vec<String>>,
    /// Re-exported names. They count only where another name uses them.
    exported: BTreeSet<String>,
    /// The names in the module's text.
    paths: Vec<Vec<String>>,
}

/// The modules of a crate's library or program; the first is its root.
#[derive(Default)]
struct Crate {
    /// The folder's name, without what is above it.
    name: String,
    modules: Vec<Module>,
    /// Paths below `src`.
    files: Vec<String>,
}

/// For every file the files that it needs, each with a path as the evidence.
type Edges = Vec<BTreeMap<usize, String>>;

/// A circle: its crate's folder, and the files below its `src`, sorted.
type Circle = (String, Vec<String>);

/// Circles that are not in `KNOWN`, and entries of `KNOWN` that are gone.
pub fn circles(tree: &Tree, known: &[(&str, &[&str])]) -> Vec<String> {
    let known: Vec<Circle> = known
        .iter()
        .map(|(folder, files)| {
            let files = files.iter().map(|file| (*file).to_string()).collect();
            ((*folder).to_string(), files)
        })
        .collect();
    let mut found = Vec::new();
    let mut violations = Vec::new();
    for all in roots(tree).map(|root| Crate::load(tree, root)) {
        let edges = all.edges();
        for circle in all.circles(&edges) {
            let is_known = known.iter().any(|(folder, files)| {
                *folder == circle.0 && circle.1.iter().all(|file| files.contains(file))
            });
            if !is_known {
                violations.push(all.describe(&circle, &edges));
            }
            found.push(circle);
        }
    }
    let gone = known.iter().filter(|circle| !found.contains(circle));
    violations.extend(gone.map(|(folder, files)| {
        let files = files.join(", ");
        format!("{folder}: no longer a circle, take it off the list: {files}")
    }));
    violations
}

/// The root files of all libraries and programs.
fn roots(tree: &Tree) -> impl Iterator<Item = &File> {
    tree.files.iter().filter(|file| {
        let is_root = file.path.ends_with("src/lib.rs") || file.path.ends_with("src/main.rs");
        is_root && !file.path.contains("/tests/")
    })
}

impl Crate {
    fn load(tree: &Tree, root: &File) -> Crate {
        let source = &root.path[..root.path.rfind('/').unwrap_or(0)];
        let mut all = Crate {
            name: source.rsplit('/').nth(1).unwrap_or_default().to_string(),
            ..Crate::default()
        };
        all.add_file(tree, root, None, source);
        all
    }

    /// Adds a file's modules; files of its children lie in `folder`.
    fn add_file(&mut self, tree: &Tree, file: &File, parent: Option<usize>, folder: &str) -> usize {
        let below = file.path.split_once("src/").map_or("", |(_, below)| below);
        self.files.push(below.to_string());
        let module = self.add_module(self.files.len() - 1, parent);
        let code = tree.product_code(file);
        let tokens = tokens(&code);
        let mut reader = Reader {
            tree,
            file,
            tokens: &tokens,
            at: 0,
        };
        reader.module(self, module, folder);
        module
    }

    fn add_module(&mut self, file: usize, parent: Option<usize>) -> usize {
        self.modules.push(Module {
            file,
            parent,
            ..Module::default()
        });
        self.modules.len() - 1
    }

    /// The module that defines `path` for `from`; `None` if it is not of this crate, or a module
    /// itself.
    fn resolve(&self, from: usize, path: &[String], imports_left: usize) -> Option<usize> {
        let (first, mut rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => 0,
            "self" => from,
            "super" => self.modules[from].parent?,
            name => {
                if let Some(child) = self.modules[from].children.get(name) {
                    *child
                } else {
                    let import = self.modules[from].imports.get(name)?;
                    return self.follow(from, import, rest, imports_left);
                }
            }
        };
        while let Some((name, after)) = rest.split_first() {
            if name == "super" {
                at = self.modules[at].parent?;
            } else if let Some(child) = self.modules[at].children.get(name) {
                at = *child;
            } else if let Some(import) = self.modules[at].imports.get(name) {
                return self.follow(at, import, after, imports_left);
            } else {
                return Some(at);
            }
            rest = after;
        }
        None
    }

    fn follow(&self, at: usize, import: &[String], rest: &[String], left: usize) -> Option<usize> {
        let path: Vec<String> = import.iter().chain(rest).cloned().collect();
        let is_itself = path.len() == 1;
        (left > 0 && !is_itself)
            .then(|| self.resolve(at, &path, left - 1))
            .flatten()
    }

    fn edges(&self) -> Edges {
        let mut edges = vec![BTreeMap::new(); self.files.len()];
        for (from, module) in self.modules.iter().enumerate() {
            let imports = module
                .imports
                .iter()
                .filter(|(name, _)| !module.exported.contains(*name))
                .map(|(_, path)| path);
            for path in imports.chain(&module.paths) {
                if let Some(to) = self.resolve(from, path, IMPORTS_MAX) {
                    let to = self.modules[to].file;
                    let said = || path.join("::");
                    edges[module.file].entry(to).or_insert_with(said);
                }
            }
        }
        edges
    }

    /// Files that reach each other.
    fn circles(&self, edges: &Edges) -> BTreeSet<Circle> {
        let reached: Vec<BTreeSet<usize>> =
            (0..edges.len()).map(|file| reach(edges, file)).collect();
        let mut circles = BTreeSet::new();
        for (file, others) in reached.iter().enumerate() {
            let mut group: Vec<String> = others
                .iter()
                .filter(|other| reached[**other].contains(&file))
                .map(|other| self.files[*other].clone())
                .collect();
            group.sort();
            if group.len() > 1 {
                circles.insert((self.name.clone(), group));
            }
        }
        circles
    }

    /// The circle with every step in it.
    fn describe(&self, (name, files): &Circle, edges: &Edges) -> String {
        let mut text = format!("{name}: a circle of files: {}", files.join(", "));
        for (from, needed) in edges.iter().enumerate() {
            for (to, path) in needed {
                let (from, to) = (&self.files[from], &self.files[*to]);
                if from != to && files.contains(from) && files.contains(to) {
                    text.push_str(&format!("\n    {from} needs {to}: {path}"));
                }
            }
        }
        text
    }
}

/// The files that are reached from `file` in one step or more.
fn reach(edges: &Edges, file: usize) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut open = vec![file];
    while let Some(at) = open.pop() {
        open.extend(edges[at].keys().filter(|next| reached.insert(**next)));
    }
    reached
}

/// A word or a sign, with its line from 0.
struct Token<'a> {
    text: &'a str,
    line: usize,
}

/// Words, `::`, and signs one by one.
fn tokens(code: &str) -> Vec<Token<'_>> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut tokens = Vec::new();
    for (line, text) in code.lines().enumerate() {
        let mut rest = text.trim_start();
        while let Some(first) = rest.chars().next() {
            let length = if is_word(first) {
                rest.find(|c| !is_word(c)).unwrap_or(rest.len())
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            let (text, after) = rest.split_at(length);
            tokens.push(Token { text, line });
            rest = after.trim_start();
        }
    }
    tokens
}

/// Goes through the tokens of a file.
struct Reader<'a> {
    tree: &'a Tree,
    file: &'a File,
    tokens: &'a [Token<'a>],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Reads up to the end of the file or the brace that closes `module`.
    fn module(&mut self, all: &mut Crate, module: usize, folder: &str) {
        let mut depth = 0;
        while let Some(text) = self.text(0) {
            match text {
                "{" => depth += 1,
                "}" if depth == 0 => return,
                "}" => depth -= 1,
                "mod" if self.text(2) == Some(";") => self.declared(all, module, folder),
                "mod" if self.text(2) == Some("{") => {
                    let name = self.text(1).unwrap_or_default();
                    let child = all.add_module(all.modules[module].file, Some(module));
                    all.modules[module].children.insert(name.to_string(), child);
                    self.at += 3;
                    self.module(all, child, &format!("{folder}/{name}"));
                }
                // `use<…>` is the bound of a type, not an import.
                "use" if self.text(1) != Some("<") => self.import(&mut all.modules[module]),
                _ if is_name(text) => self.path(&mut all.modules[module]),
                _ => {}
            }
            self.at += 1;
        }
    }

    /// `mod name;`: its file is beside or below this one, or at `#[path]`.
    fn declared(&self, all: &mut Crate, module: usize, folder: &str) {
        let name = self.text(1).unwrap_or_default();
        let own = self.file.path.rsplit_once('/').map_or("", |(own, _)| own);
        let before = self.tokens[self.at].line.saturating_sub(4)..self.tokens[self.at].line;
        let given = self
            .file
            .text
            .lines()
            .take(before.end)
            .skip(before.start)
            .filter_map(|line| line.trim().strip_prefix("#[path = \"")?.split_once('"'))
            .last()
            .map(|(path, _)| format!("{own}/{path}"));
        let places = match given {
            Some(path) => vec![path],
            None => vec![
                format!("{folder}/{name}.rs"),
                format!("{folder}/{name}/mod.rs"),
            ],
        };
        if let Some(file) = places.iter().find_map(|path| self.tree.get(path)) {
            let below = if file.path.ends_with("/mod.rs") {
                file.path.trim_end_matches("/mod.rs")
            } else {
                file.path.trim_end_matches(".rs")
            };
            let child = all.add_file(self.tree, file, Some(module), below);
            all.modules[module].children.insert(name.to_string(), child);
        }
    }

    /// A `use`, from its keyword to before its semicolon.
    fn import(&mut self, module: &mut Module) {
        let before = self.at.checked_sub(1).map(|at| self.tokens[at].text);
        let is_export = matches!(before, Some("pub" | ")"));
        self.at += 1;
        let mut names = Vec::new();
        self.tree_of_names(&mut Vec::new(), &mut names);
        for (name, path) in names {
            if is_export {
                module.exported.insert(name.clone());
            }
            module.imports.insert(name, path);
        }
    }

    /// The names of one branch of a `use`, each with the name that it gets here.
    fn tree_of_names(&mut self, prefix: &mut Vec<String>, names: &mut Vec<(String, Vec<String>)>) {
        let depth = prefix.len();
        while let Some(text) = self.text(0) {
            match text {
                "{" => {
                    self.at += 1;
                    while self.text(0).is_some_and(|text| text != "}" && text != ";") {
                        self.tree_of_names(prefix, names);
                        self.at += usize::from(self.text(0) == Some(","));
                    }
                }
                "::" => {}
                "," | "}" | ";" => break,
                "as" => {
                    let name = self.text(1).unwrap_or_default().to_string();
                    if let Some((last, _)) = names.last_mut() {
                        *last = name;
                    }
                    self.at += 1;
                }
                name => {
                    prefix.push(name.to_string());
                    if !matches!(self.text(1), Some("::")) {
                        names.push(imported(prefix));
                    }
                }
            }
            self.at += 1;
        }
        prefix.truncate(depth);
    }

    /// A path in code, or a name that stands for an import: from its first name to its last.
    fn path(&mut self, module: &mut Module) {
        let mut path = vec![self.text(0).unwrap_or_default().to_string()];
        let before = self.at.checked_sub(1).map(|at| self.tokens[at].text);
        while self.text(1) == Some("::") && self.text(2).is_some_and(is_name) {
            path.push(self.text(2).unwrap_or_default().to_string());
            self.at += 2;
        }
        if !matches!(before, Some("::" | ".")) {
            module.paths.push(path);
        }
    }

    fn text(&self, ahead: usize) -> Option<&'a str> {
        self.tokens.get(self.at + ahead).map(|token| token.text)
    }
}

/// The name and the path that `use path` brings. A glob has a name that no code writes.
fn imported(path: &[String]) -> (String, Vec<String>) {
    let mut path = path.to_vec();
    if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
        path.pop();
    }
    let name = path.last().cloned().unwrap_or_default();
    if name == "*" {
        return (path.join("::"), path);
    }
    (name, path)
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: (&str, &str) = ("crates/a/src/lib.rs", "mod b;\nmod c;\nmod d;");

    fn caught(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = files
            .iter()
            .map(|(path, text)| (format!("crates/a/src/{path}"), *text))
            .collect();
        let files = files.iter().map(|(path, text)| (path.as_str(), *text));
        circles(
            &Tree::planted(&[ROOT].into_iter().chain(files).collect::<Vec<_>>()),
            &[],
        )
    }

    #[test]
    fn circles_are_caught_however_they_are_written() {
        let other = "use crate::b::B;\npub struct C;\nfn f() -> B { B }";
        for b in [
            "use crate::c::C;",
            "use super::c::{self, C};",
            "use crate::{c::C, x};",
            "use crate::c;\nfn f() { c::f() }",
            "use crate::c::f as g;",
            "use crate::c::*;",
            "fn f() { super::c::f() }",
            "mod inner { use super::super::c::C; }",
            "mod inner { fn f() { crate::c::f() } }",
            "fn f() -> impl Sized + use<> { crate::c::f(); }",
            "pub use crate::c::C;\nfn f() -> C { C }",
        ] {
            let found = caught(&[("b.rs", b), ("c.rs", other)]);
            assert_eq!(found.len(), 1, "{b}");
            assert!(
                found[0].starts_with("a: a circle of files: b.rs, c.rs"),
                "{found:?}"
            );
        }
    }

    #[test]
    fn longer_circles_and_those_with_a_child_are_caught() {
        let three = [
            ("b.rs", "use crate::c::C;"),
            ("c.rs", "use crate::d::D;"),
            ("d.rs", "use crate::b::B;"),
        ];
        assert_eq!(caught(&three).len(), 1);
        let child = [
            ("b/mod.rs", "mod e;\nfn f() { e::g() }"),
            ("b/e.rs", "use super::f;"),
        ];
        assert_eq!(caught(&child).len(), 1);
        let beside = [
            ("b.rs", "#[path = \"b_e.rs\"]\nmod e;\nfn f() { e::g() }"),
            ("b_e.rs", "use super::f;"),
        ];
        assert_eq!(caught(&beside).len(), 1);
    }

    #[test]
    fn what_is_no_circle_is_left_alone() {
        let other = "use crate::b::B;";
        for b in [
            "",
            "pub use crate::c::C;",
            "// use crate::c::C;",
            "#[cfg(test)]\nmod tests { use crate::c::C; }",
            "use other::c::C;",
            "fn c() { C::new() }",
            "use {a;",
        ] {
            assert_eq!(caught(&[("b.rs", b), ("c.rs", other)]), [""; 0], "{b}");
        }
        // A name that comes by way of a facade is no need of the facade.
        let facade = [
            ("b/mod.rs", "mod e;\nuse crate::c::C;\nfn f() { e::g(C) }"),
            ("b/e.rs", "use super::C;"),
            ("c.rs", ""),
        ];
        assert_eq!(caught(&facade), [""; 0]);
    }

    #[test]
    fn a_known_circle_stands_until_it_is_gone() {
        let b = ("crates/a/src/b.rs", "use crate::c::C;");
        let c = ("crates/a/src/c.rs", "use crate::b::B;");
        let both: &[(&str, &[&str])] = &[("a", &["b.rs", "c.rs"])];
        assert_eq!(circles(&Tree::planted(&[ROOT, b, c]), both), [""; 0]);
        assert_eq!(circles(&Tree::planted(&[ROOT, b]), both).len(), 1);
    }
}
