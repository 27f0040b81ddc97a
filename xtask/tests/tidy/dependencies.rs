//! The dependencies: licences, sources and versions, as `deny.toml` wants them. cargo-deny checks
//! the same where it is installed. Advisories are not checked: they need a database.

use serde_json::Value;

use crate::tree::{Tree, cargo};

/// The start of a registry package's source in a lock file.
const REGISTRY: &str = "registry+";

/// Every package that is built for this architecture, from `cargo metadata`.
pub fn packages() -> Vec<Value> {
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let arguments = "metadata --locked --offline --format-version 1 --filter-platform";
    let metadata: Value = serde_json::from_str(&cargo(&format!("{arguments} {platform}"))).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

/// Packages whose licence cannot be met by those that `deny.toml` allows.
pub fn licences(tree: &Tree, packages: &[Value]) -> Vec<String> {
    let allowed = allowed(&tree.get("deny.toml").expect("deny.toml is there").text);
    let refused = packages.iter().filter_map(|package| {
        let name = &package["name"];
        let Some(expression) = package["license"].as_str() else {
            return Some(format!("{name}: names no licence"));
        };
        match Expression::is_met(expression, &allowed) {
            Some(true) => None,
            Some(false) => Some(format!("{name}: {expression} is not allowed by deny.toml")),
            None => Some(format!("{name}: {expression} is no licence expression")),
        }
    });
    refused.collect()
}

/// Dependencies on any version of a package that is not in this repository.
pub fn wildcards(packages: &[Value]) -> Vec<String> {
    let mut violations = Vec::new();
    for package in packages {
        let dependencies = package["dependencies"]
            .as_array()
            .expect("cargo lists them");
        let wild = dependencies
            .iter()
            .filter(|dependency| dependency["req"] == "*" && dependency["path"].is_null());
        let message = |wild: &Value| format!("{}: any {} will do", package["name"], wild["name"]);
        violations.extend(wild.map(message));
    }
    violations
}

/// Packages of the lock files from another place than the one registry, or without a checksum.
pub fn sources(tree: &Tree) -> Vec<String> {
    let locks = tree
        .files
        .iter()
        .filter(|file| file.path.ends_with("Cargo.lock"));
    let packages: Vec<(&str, &str)> = locks
        .flat_map(|file| {
            file.text
                .split("[[package]]")
                .skip(1)
                .map(|text| (&*file.path, text))
        })
        .collect();
    let of_registry = packages
        .iter()
        .filter_map(|(_, package)| value(package, "source"));
    let registry = of_registry
        .clone()
        .find(|source| source.starts_with(REGISTRY));
    let mut violations = Vec::new();
    for (path, package) in packages {
        let name = value(package, "name").unwrap_or("a package without a name");
        match value(package, "source") {
            // Of this repository: the directions of crates know them.
            None => {}
            source if source != registry => {
                violations.push(format!("{path}: {name} does not come from the registry"));
            }
            _ if value(package, "checksum").is_none() => {
                violations.push(format!("{path}: {name} has no checksum"));
            }
            _ => {}
        }
    }
    violations
}

/// The value of `key` in a package of a lock file.
fn value<'a>(package: &'a str, key: &str) -> Option<&'a str> {
    let start = format!("{key} = \"");
    let mut lines = package.lines();
    lines.find_map(|line| line.strip_prefix(&start)?.strip_suffix('"'))
}

/// The licences of the list `allow` in `deny.toml`.
fn allowed(deny: &str) -> Vec<&str> {
    let (_, list) = deny
        .split_once("\nallow = [")
        .expect("deny.toml has a list `allow`");
    let (list, _) = list.split_once(']').expect("the list ends");
    list.split('"').skip(1).step_by(2).collect()
}

/// An SPDX licence expression that is being read; `/` is what manifests used to write for `OR`.
struct Expression<'a> {
    words: std::iter::Peekable<std::vec::IntoIter<String>>,
    allowed: &'a [&'a str],
}

impl Expression<'_> {
    /// Whether the `allowed` licences meet `text`; `None` if it is no expression.
    fn is_met(text: &str, allowed: &[&str]) -> Option<bool> {
        let spaced = text
            .replace('(', " ( ")
            .replace(')', " ) ")
            .replace('/', " OR ");
        let words: Vec<String> = spaced.split_whitespace().map(str::to_owned).collect();
        let words = words.into_iter().peekable();
        let mut expression = Expression { words, allowed };
        let is_met = expression.any()?;
        expression.words.next().is_none().then_some(is_met)
    }

    fn any(&mut self) -> Option<bool> {
        let mut is_met = self.all()?;
        while self.words.next_if_eq("OR").is_some() {
            is_met |= self.all()?;
        }
        Some(is_met)
    }

    fn all(&mut self) -> Option<bool> {
        let mut is_met = self.one()?;
        while self.words.next_if_eq("AND").is_some() {
            is_met &= self.one()?;
        }
        Some(is_met)
    }

    fn one(&mut self) -> Option<bool> {
        let mut licence = self.words.next()?;
        if licence == "(" {
            let is_met = self.any()?;
            return self.words.next_if_eq(")").map(|_| is_met);
        }
        if [")", "OR", "AND", "WITH"].contains(&licence.as_str()) {
            return None;
        }
        if self.words.next_if_eq("WITH").is_some() {
            licence = format!("{licence} WITH {}", self.words.next()?);
        }
        Some(self.allowed.contains(&licence.as_str()))
    }
}

#[test]
fn licence_expressions_are_understood() {
    let is_met = |text| Expression::is_met(text, &["MIT", "ISC", "Apache-2.0"]);
    for met in [
        "MIT",
        "GPL-2.0 OR MIT",
        "GPL-2.0/MIT",
        "MIT AND ISC",
        "(GPL-2.0 OR ISC) AND MIT",
    ] {
        assert_eq!(is_met(met), Some(true), "{met}");
    }
    for refused in [
        "GPL-2.0",
        "MIT AND GPL-2.0",
        "mit",
        "Apache-2.0 WITH LLVM-exception",
    ] {
        assert_eq!(is_met(refused), Some(false), "{refused}");
    }
    assert_eq!(
        is_met("GPL-2.0 OR MIT AND GPL-2.0"),
        Some(false),
        "AND binds closer"
    );
    for nonsense in [
        "", "MIT OR", "AND", "(MIT", "MIT)", "MIT ISC", "MIT WITH", "()",
    ] {
        assert_eq!(is_met(nonsense), None, "{nonsense}");
    }
}

#[test]
fn a_licence_that_is_not_allowed_is_caught() {
    let deny = "[licenses]\nallow = [\n    \"MIT\",\n    \"ISC\",\n]\n[bans]\n";
    let tree = Tree::planted(&[("deny.toml", deny)]);
    let packages = [
        serde_json::json!({ "name": "fine", "license": "GPL-3.0 OR ISC" }),
        serde_json::json!({ "name": "copyleft", "license": "GPL-3.0 AND ISC" }),
        serde_json::json!({ "name": "silent", "license": null }),
        serde_json::json!({ "name": "odd", "license": "MIT OR" }),
    ];
    let violations = licences(&tree, &packages);
    assert_eq!(violations.len(), 3, "{violations:?}");
    assert!(
        violations[0].starts_with("\"copyleft\": GPL-3.0 AND ISC"),
        "{violations:?}"
    );
}

#[test]
fn a_wildcard_is_caught() {
    let dependency = |name, req, path: Option<&str>| serde_json::json!({ "name": name, "req": req, "path": path });
    let dependencies = [
        dependency("wild", "*", None),
        dependency("ours", "*", Some("/x/lab/ours")),
        dependency("tame", "^1", None),
    ];
    let package = serde_json::json!({ "name": "a", "dependencies": dependencies });
    assert_eq!(wildcards(&[package]), ["\"a\": any \"wild\" will do"]);
}

#[test]
fn a_package_from_elsewhere_is_caught() {
    let package = |name: &str, source: &str, checksum: &str| {
        format!("[[package]]\nname = \"{name}\"\nversion = \"1.0.0\"\n{source}{checksum}\n")
    };
    let (registry, checksum) = ("source = \"registry+a\"\n", "checksum = \"12\"\n");
    let lock = [
        package("ours", "", ""),
        package("fine", registry, checksum),
        package("other", "source = \"registry+b\"\n", checksum),
        package("git", "source = \"git+a\"\n", ""),
        package("bare", registry, ""),
    ];
    let fuzz = package("fuzzed", "source = \"registry+b\"\n", checksum);
    let files = [("Cargo.lock", &*lock.concat()), ("fuzz/Cargo.lock", &*fuzz)];
    let violations = sources(&Tree::planted(&files));
    assert_eq!(violations.len(), 4, "{violations:?}");
    assert!(
        violations[2].ends_with("bare has no checksum"),
        "{violations:?}"
    );
}
