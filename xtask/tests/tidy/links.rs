//! The product links nothing of the laboratory, and the server no charts. The engine is built without the feature
//! that only the laboratory enables.

use crate::tree::cargo;

/// A package, and the packages that it must not be built with.
const APART: &[(&str, &[&str])] = &[
    (
        "uzram-cli",
        &[
            "uzram-bench",
            "uzram-orderings",
            "uzram-testkit",
            "uzram-variants",
            "libmimalloc-sys",
        ],
    ),
    (
        "uzram-server",
        &[
            "uzram-advise",
            "uzram-bench",
            "uzram-orderings",
            "uzram-testkit",
            "uzram-variants",
            "maud",
        ],
    ),
];

/// The crates that are shipped or published.
const PRODUCT: &[&str] = &[
    "uzram-cli",
    "uzram-server",
    "uzram-frontends",
    "uzram-media",
    "uzram-pager",
    "uzram-run",
    "uzram-advise",
];

/// The engine's feature for the laboratory, as `cargo tree` names it, and one that is there.
const LABORATORY: &str = "uzram feature \"lab\"";
const DEFAULT: &str = "uzram feature \"default\"";

/// Packages of the product that enable the laboratory's feature, tests included.
pub fn laboratory(features_of: &dyn Fn(&str) -> String) -> Vec<String> {
    let mut violations = Vec::new();
    for package in PRODUCT {
        let tree = features_of(package);
        let has = |feature: &str| tree.lines().any(|line| line.starts_with(feature));
        if !has(DEFAULT) {
            violations.push(format!("cargo tree -e features -p {package}: no engine"));
        }
        if has(LABORATORY) {
            violations.push(format!("{package} enables the feature `lab` of the engine"));
        }
    }
    violations
}

/// All features that `package` and its tests are built with: a line each.
pub fn cargo_tree_of_features(package: &str) -> String {
    let arguments = "tree --offline --edges features --prefix none --package";
    cargo(&format!("{arguments} {package}"))
}

/// The packages of a build, from `cargo tree`, that must not be in it.
pub fn unwanted(tree_of: &dyn Fn(&str) -> String) -> Vec<String> {
    let mut violations = Vec::new();
    for (package, apart) in APART {
        let tree = tree_of(package);
        let linked: Vec<&str> = tree
            .lines()
            .filter_map(|line| line.split(' ').next())
            .collect();
        if !linked.contains(package) {
            violations.push(format!("cargo tree -p {package}: does not name it"));
        }
        let found = apart.iter().filter(|name| linked.contains(name));
        violations.extend(found.map(|name| format!("{package} is built with {name}")));
    }
    violations
}

/// All packages that `package` is built with, build scripts included and tests not, one per line.
pub fn cargo_tree(package: &str) -> String {
    let arguments = "tree --offline --edges normal,build --prefix none --package";
    cargo(&format!("{arguments} {package}"))
}

#[test]
fn what_is_linked_and_must_not_be_is_caught() {
    let planted = |of: &str| match of {
        "uzram-cli" => "uzram-cli v0.1.0 (/x)\nclap v4.6.0\nlibmimalloc-sys v0.1.49\n".to_owned(),
        _ => "uzram-server v0.1.0 (/x)\nmaud-like v0.1.0\n".to_owned(),
    };
    assert_eq!(
        unwanted(&planted),
        ["uzram-cli is built with libmimalloc-sys"]
    );
    assert_eq!(unwanted(&|_| String::new()).len(), APART.len());
}

#[test]
fn a_product_with_the_laboratorys_feature_is_caught() {
    let planted = |of: &str| match of {
        "uzram-pager" => "uzram feature \"default\"\nuzram feature \"lab\" (*)\n".to_owned(),
        _ => "uzram feature \"default\"\nuzram feature \"laboured\"\n".to_owned(),
    };
    assert_eq!(
        laboratory(&planted),
        ["uzram-pager enables the feature `lab` of the engine"]
    );
    assert_eq!(laboratory(&|_| String::new()).len(), PRODUCT.len());
}
