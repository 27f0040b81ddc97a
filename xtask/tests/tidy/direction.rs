//! Directions of use: among the crates, and among modules inside the engine.

use std::collections::BTreeMap;

use crate::tree::{File, Tree, cargo, code, words};

/// A crate that every other may use in its tests; `links` keeps it out of the product.
const TESTKIT: &str = "uzram-testkit";
/// Our crates from the bottom up: each may use those that are listed for it, and no others of ours.
const CRATES: &[(&str, &[&str])] = &[
    ("uzram-words", &[]),
    ("uzram", &["uzram-words"]),
    ("uzram-media", &["uzram"]),
    ("uzram-frontends", &["uzram", "uzram-media"]),
    // The media are for its tests.
    ("uzram-pager", &["uzram", "uzram-media"]),
    ("uzram-run", &["uzram", "uzram-pager"]),
    ("uzram-server", &["uzram", "uzram-media", "uzram-frontends"]),
    ("uzram-advise", &["uzram"]),
    (
        "uzram-cli",
        &[
            "uzram",
            "uzram-media",
            "uzram-advise",
            "uzram-frontends",
            "uzram-run",
            "uzram-server",
        ],
    ),
    (
        "uzram-bench",
        &[
            "uzram",
            "uzram-media",
            "uzram-advise",
            "uzram-frontends",
            "uzram-pager",
            "uzram-server",
            "uzram-variants",
        ],
    ),
    ("uzram-variants", &["uzram"]),
    // It compiles files of others again.
    ("uzram-orderings", &[]),
    (TESTKIT, &[]),
    ("xtask", &[]),
];

/// The engine's ground: used by all, using each other and nothing above.
const GROUND: &[&str] = &[
    "cgroup",
    "cpu",
    "crash",
    "error",
    "file",
    "headroom",
    "memory",
    "page",
    "region",
    "stats",
    "sync",
    "system_page",
];

/// For each other module of the engine the modules that it may use besides the ground and itself.
const MODULES: &[(&str, &[&str])] = &[
    ("codec", &[]),
    ("pool", &[]),
    ("config", &["codec", "pool"]),
    ("store", &["codec", "config", "pool"]),
    ("device", &["store"]),
];

/// Words that a layer must not know, and why.
const FOREIGN_WORDS: &[(&str, &[&str], &str)] = &[
    (
        "crates/uzram/src/codec/",
        &["pageindex"],
        "a codec knows bytes, never page indexes",
    ),
    (
        "crates/uzram/src/pool/",
        &["pageindex"],
        "a pool knows bytes, never page indexes",
    ),
    (
        "crates/uzram/src/store/",
        &["sector", "sectors"],
        "the store knows no sectors",
    ),
    (
        "crates/uzram/src/",
        &["nbd", "ublk", "vhost", "fuse"],
        "the engine knows no protocol",
    ),
    (
        "crates/uzram-media/src/",
        &["nbd", "ublk", "vhost", "fuse"],
        "a device knows no protocol",
    ),
    ("crates/uzram/src/", LOGGING, NO_LOGGING),
    ("crates/uzram-media/src/", LOGGING, NO_LOGGING),
    ("crates/uzram-frontends/src/", LOGGING, NO_LOGGING),
];

/// Ways to wait for a reader of a log.
const LOGGING: &[&str] = &["log", "tracing", "println", "eprintln"];
/// Names of other things in libraries.
const BORROWED: &[&str] = &["set_log_base", "log_addr"];
const NO_LOGGING: &str = "nothing on the way of a request logs; say it in uzram-server";

/// Every workspace crate with those of our crates that it depends on in any way.
pub fn workspace_dependencies() -> BTreeMap<String, Vec<String>> {
    let metadata = cargo("metadata --no-deps --format-version=1 --offline");
    let metadata: serde_json::Value = serde_json::from_str(&metadata).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let name = |value: &serde_json::Value| value["name"].as_str().unwrap().to_string();
    let ours: Vec<String> = packages.iter().map(name).collect();
    let dependencies = |package: &serde_json::Value| -> Vec<String> {
        let all = package["dependencies"].as_array().unwrap().iter().map(name);
        all.filter(|dependency| ours.contains(dependency)).collect()
    };
    packages
        .iter()
        .map(|package| (name(package), dependencies(package)))
        .collect()
}

/// Crates that are not in the map, and dependencies that it does not allow.
pub fn crates(dependencies: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let mut violations = Vec::new();
    for (name, used) in dependencies {
        let Some((_, allowed)) = CRATES.iter().find(|(known, _)| known == name) else {
            violations.push(format!(
                "crate {name} has no place in the direction of crates"
            ));
            continue;
        };
        let allowed = |used: &&String| *used == TESTKIT || allowed.contains(&used.as_str());
        let wrong = used.iter().filter(|used| !allowed(used));
        violations.extend(wrong.map(|used| format!("{name} must not depend on {used}")));
    }
    violations
}

/// Paths inside the engine that lead upwards or sideways.
pub fn modules(tree: &Tree) -> Vec<String> {
    let exports = root_exports(tree);
    let mut violations = Vec::new();
    for file in tree.rust("crates/uzram/src/") {
        let own = top_module(file);
        if own == "lib" {
            continue; // The root names everything.
        }
        let ground = GROUND.contains(&own);
        let allowed = MODULES
            .iter()
            .find(|(name, _)| *name == own)
            .map(|(_, allowed)| *allowed);
        if !ground && allowed.is_none() {
            violations.push(format!(
                "{}: module {own} has no place in the direction",
                file.path
            ));
            continue;
        }
        let code = tree.product_code(file);
        for (line, used) in crate_paths(file, &code) {
            let module = exports.get(&used).map_or(used.as_str(), String::as_str);
            let known = GROUND.contains(&module) || MODULES.iter().any(|(name, _)| *name == module);
            let fine = module == own
                || GROUND.contains(&module)
                || allowed.is_some_and(|allowed| allowed.contains(&module));
            if known && !fine {
                violations.push(format!("{}:{line}: {own} must not use {module}", file.path));
            }
        }
    }
    violations
}

/// Uses of words that belong to another layer.
pub fn vocabulary(tree: &Tree) -> Vec<String> {
    let mut violations = Vec::new();
    for (prefix, foreign, why) in FOREIGN_WORDS {
        for file in tree.rust(prefix) {
            let code = tree.product_code(file);
            let own = words(&code).filter(|(_, word)| !BORROWED.contains(word));
            for (line, word) in own {
                let lower = word.to_lowercase();
                let parts = lower.split('_').chain([lower.as_str()]);
                if parts.into_iter().any(|part| foreign.contains(&part)) {
                    violations.push(format!("{}:{line}: `{word}`: {why}", file.path));
                }
            }
        }
    }
    violations
}

/// The module at the root of the engine that a file belongs to.
fn top_module(file: &File) -> &str {
    let below = file.path.trim_start_matches("crates/uzram/src/");
    below
        .split('/')
        .next()
        .unwrap_or_default()
        .trim_end_matches(".rs")
}

/// For each name that the engine's root re-exports, the module that it comes from.
fn root_exports(tree: &Tree) -> BTreeMap<String, String> {
    let mut exports = BTreeMap::new();
    let Some(root) = tree.get("crates/uzram/src/lib.rs") else {
        return exports;
    };
    let code = code(&root.text);
    for statement in code
        .split(';')
        .filter_map(|part| part.trim_start().split("pub use ").nth(1))
    {
        let mut names = words(statement).map(|(_, word)| word.to_string());
        if let Some(module) = names.next() {
            exports.extend(names.map(|name| (name, module.clone())));
        }
    }
    exports
}

/// The first names of all paths that start at the engine's root, with their lines.
fn crate_paths(file: &File, code: &str) -> Vec<(usize, String)> {
    let depth = file
        .path
        .trim_start_matches("crates/uzram/src/")
        .matches('/')
        .count();
    // A `mod.rs` stands one level above the files beside it.
    let depth = depth + usize::from(!file.path.ends_with("/mod.rs"));
    let upwards = "super::".repeat(depth);
    let mut found = Vec::new();
    for root in ["crate::", upwards.as_str()] {
        for (at, _) in code.match_indices(root) {
            let before = code[..at].chars().next_back();
            let continues = before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':');
            if !continues {
                let line = code[..at].matches('\n').count() + 1;
                let names = first_names(&code[at + root.len()..]);
                found.extend(names.into_iter().map(|name| (line, name)));
            }
        }
    }
    found
}

/// The first name of a path, or of each path in a group in braces.
fn first_names(path: &str) -> Vec<String> {
    let Some(group) = path.strip_prefix('{') else {
        return words(path)
            .next()
            .map(|(_, name)| name.to_string())
            .into_iter()
            .collect();
    };
    let mut depth = 0;
    let mut names = Vec::new();
    let mut start = 0;
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                names.extend(
                    words(&group[start..at])
                        .next()
                        .map(|(_, name)| name.to_string()),
                );
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    names
}

#[test]
fn a_crate_that_uses_one_above_it_is_caught() {
    let planted = |name: &str, used: &str| {
        crates(&BTreeMap::from([(
            name.to_string(),
            vec![used.to_string()],
        )]))
    };
    assert_eq!(
        planted("uzram", "uzram-server"),
        ["uzram must not depend on uzram-server"]
    );
    assert_eq!(planted("uzram-new", "uzram").len(), 1);
    assert_eq!(planted("uzram-server", "uzram"), [""; 0]);
}

#[test]
fn the_real_workspace_is_seen() {
    let dependencies = workspace_dependencies();
    assert!(dependencies["uzram-server"].contains(&"uzram".to_string()));
}

#[test]
fn a_module_that_uses_one_above_or_beside_it_is_caught() {
    let caught = |path: &str, text: &str| {
        let exports = (
            "crates/uzram/src/lib.rs",
            "pub use store::{Store, Stats};\npub use error::Error;",
        );
        modules(&Tree::planted(&[exports, (path, text)])).len()
    };
    assert_eq!(
        caught("crates/uzram/src/codec/lz4.rs", "use crate::pool::Handle;"),
        1
    );
    assert_eq!(
        caught(
            "crates/uzram/src/codec/lz4.rs",
            "use crate::{\n error::{Kind, pool},\n store::Slot,\n};"
        ),
        1
    );
    assert_eq!(
        caught(
            "crates/uzram/src/pool/mod.rs",
            "fn f() { super::codec::f() }"
        ),
        1
    );
    assert_eq!(
        caught(
            "crates/uzram/src/pool/a/b.rs",
            "use super::super::super::codec::f;"
        ),
        1
    );
    assert_eq!(
        caught("crates/uzram/src/pool/mod.rs", "use crate::Store;"),
        1
    );
    assert_eq!(
        caught("crates/uzram/src/page.rs", "use crate::store::Slot;"),
        1
    );
    assert_eq!(
        caught("crates/uzram/src/store/read.rs", "use crate::device::Bio;"),
        1
    );
    assert_eq!(caught("crates/uzram/src/misc.rs", ""), 1);
    // What is allowed: downwards, oneself, and anything in tests.
    assert_eq!(
        caught(
            "crates/uzram/src/store/read.rs",
            "use crate::{codec::Codec, pool::Pool, Error};"
        ),
        0
    );
    assert_eq!(
        caught(
            "crates/uzram/src/codec/lz4.rs",
            "use super::Codec; use crate::codec::streams;"
        ),
        0
    );
    assert_eq!(
        caught(
            "crates/uzram/src/codec/lz4.rs",
            "#[cfg(test)]\nmod tests { use crate::pool::P; }"
        ),
        0
    );
}

#[test]
fn a_word_of_another_layer_is_caught() {
    let caught = |path: &str, text: &str| vocabulary(&Tree::planted(&[(path, text)])).len();
    assert_eq!(
        caught("crates/uzram/src/codec/lz4.rs", "fn f(page: PageIndex) {}"),
        1
    );
    assert_eq!(
        caught(
            "crates/uzram/src/store/mod.rs",
            "const SECTOR_BYTES: usize = 512;"
        ),
        1
    );
    assert_eq!(
        caught("crates/uzram/src/device/mod.rs", "fn nbd_reply() {}"),
        1
    );
    assert_eq!(
        caught(
            "crates/uzram/src/device/mod.rs",
            "fn reply() {} // as nbd wants"
        ),
        0
    );
    assert_eq!(
        caught("crates/uzram/src/device/mod.rs", "let sector = 512;"),
        0
    );
}
