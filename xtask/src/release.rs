//! `cargo xtask release --dry-run`: everything of a release except to publish it. Every member of
//! the workspace is published unless it says `publish = false`.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::members::{is_published, members, name};
use crate::process::{self, Exit, Output};
use crate::report::Report;
use crate::{builds, workspace};

/// Most keywords of a crate, and most characters of one, that a registry accepts.
const KEYWORDS_MAX: usize = 5;
const KEYWORD_CHARACTERS_MAX: usize = 20;
/// The texts of both licences, which each package carries: copies of those at the root, since links
/// do not survive every way in which a source tree is passed on.
const LICENSES: [&str; 2] = ["LICENSE-MIT", "LICENSE-APACHE"];
/// Every crate is built from its package.
const PACKAGE_LIMIT: Duration = Duration::from_secs(1800);
const DOCS_LIMIT: Duration = Duration::from_secs(600);
const LIST_LIMIT: Duration = Duration::from_secs(60);

/// Checks the metadata of every published crate, packages all of them, builds each from its
/// package, and makes its documentation. Names the checks that it cannot make.
///
/// # Errors
/// One line per fault.
pub fn dry_run() -> Result<(), String> {
    let members = members()?;
    let published: Vec<&Value> = members
        .iter()
        .filter(|member| is_published(member))
        .collect();
    let order = in_order(&published)?;
    println!("in this order: {}", order.join(" "));
    let faults: Vec<String> = published.iter().flat_map(|member| faults(member)).collect();
    if !faults.is_empty() {
        return Err(faults.join("\n"));
    }
    for member in &published {
        lists_licenses(name(member))?;
    }
    package(&members)?;
    document()?;
    let silent: Vec<&str> = published
        .iter()
        .filter(|member| member["repository"].is_null())
        .map(|member| name(member))
        .collect();
    if !silent.is_empty() {
        println!(
            "left out: the repository's address, which no crate has to name ({})",
            silent.join(" ")
        );
    }
    println!("left out: changes against the version before (semver): none is published yet");
    Ok(())
}

/// The members that `member` is built with. They must be published before it. Dependencies of its
/// tests need not be.
fn needs(member: &Value) -> impl Iterator<Item = &str> {
    let dependencies = member["dependencies"].as_array().into_iter().flatten();
    let of_build = dependencies.filter(|dependency| dependency["kind"] != "dev");
    of_build
        .filter(|dependency| dependency["path"].is_string())
        .map(name)
}

/// Names of the crates, each behind its dependencies.
fn in_order<'a>(published: &[&'a Value]) -> Result<Vec<&'a str>, String> {
    let mut order = Vec::new();
    while order.len() < published.len() {
        let is_next = |member: &&&Value| {
            !order.contains(&name(member)) && needs(member).all(|need| order.contains(&need))
        };
        let Some(next) = published.iter().find(is_next) else {
            let waiting = published.iter().map(|member| name(member));
            let waiting: Vec<&str> = waiting.filter(|name| !order.contains(name)).collect();
            let names = waiting.join(" ");
            return Err(format!(
                "{names}: need each other, or a crate that is not published"
            ));
        };
        order.push(name(next));
    }
    Ok(order)
}

/// The faults in the manifest of a published crate.
fn faults(member: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    for key in ["description", "license", "readme", "rust_version"] {
        if member[key].as_str().is_none_or(str::is_empty) {
            faults.push(format!("no {key}"));
        }
    }
    if let (Some(manifest), Some(readme)) =
        (member["manifest_path"].as_str(), member["readme"].as_str())
        && !Path::new(manifest).with_file_name(readme).is_file()
    {
        faults.push(format!("readme {readme}: no such file"));
    }
    faults.extend(
        LICENSES
            .into_iter()
            .filter_map(|file| license_fault(member, file)),
    );
    let texts = |key: &str| -> Vec<&str> {
        let all = member[key].as_array().into_iter().flatten();
        all.filter_map(Value::as_str).collect()
    };
    let keywords = texts("keywords");
    if keywords.is_empty() || keywords.len() > KEYWORDS_MAX {
        faults.push(format!(
            "{} keywords, 1 to {KEYWORDS_MAX} are right",
            keywords.len()
        ));
    }
    let long = keywords
        .iter()
        .filter(|word| word.chars().count() > KEYWORD_CHARACTERS_MAX);
    faults.extend(
        long.map(|word| format!("keyword {word}: above {KEYWORD_CHARACTERS_MAX} characters")),
    );
    if texts("categories").is_empty() {
        faults.push("no categories".to_string());
    }
    faults
        .iter()
        .map(|fault| format!("{}: {fault}", name(member)))
        .collect()
}

/// The fault of a licence's text in the folder of a crate: it must be the one at the root.
fn license_fault(member: &Value, file: &str) -> Option<String> {
    let manifest = Path::new(member["manifest_path"].as_str()?);
    let whole = std::fs::read(workspace::root().join(file)).ok()?;
    match std::fs::read(manifest.with_file_name(file)) {
        Ok(own) if own == whole => None,
        Ok(_) => Some(format!("{file}: differs from the one at the root")),
        Err(_) => Some(format!("{file}: no such file; copy the one at the root")),
    }
}

/// Checks that the package of a crate has both licences, which an `include` or `exclude` could leave out.
fn lists_licenses(package: &str) -> Result<(), String> {
    let mut cargo = workspace::cargo();
    cargo.args([
        "package",
        "--list",
        "--offline",
        "--allow-dirty",
        "-p",
        package,
    ]);
    let listed = process::succeed(&mut cargo, LIST_LIMIT)?.stdout;
    let is_missing = |file: &&str| !listed.lines().any(|line| line == *file);
    match LICENSES.iter().copied().find(is_missing) {
        None => Ok(()),
        Some(file) => Err(format!("{package}: its package lacks {file}")),
    }
}

/// Packages the published members and builds each from its package. All at once, because only then
/// each finds the others' packages (cargo 1.90 or newer).
fn package(members: &[Value]) -> Result<(), String> {
    let mut cargo = workspace::cargo();
    cargo.args([
        "package",
        "--workspace",
        "--locked",
        "--offline",
        "--allow-dirty",
    ]);
    for member in members.iter().filter(|member| !is_published(member)) {
        cargo.args(["--exclude", name(member)]);
    }
    run(cargo, PACKAGE_LIMIT)
}

/// Documentation without warnings, of all published libraries: the default members'. Those with features are
/// documented alone too.
fn document() -> Result<(), String> {
    let mut cargo = workspace::cargo();
    cargo.args(["doc", "--no-deps", "--lib"]);
    cargo.env("RUSTDOCFLAGS", "-D warnings");
    run(cargo, DOCS_LIMIT)?;
    let mut report = Report::default();
    builds::documentation(&mut report)?;
    match report.is_success() {
        true => Ok(()),
        false => Err(report.to_string()),
    }
}

fn run(mut cargo: std::process::Command, limit: Duration) -> Result<(), String> {
    println!("{}", process::line(&cargo));
    let finished = process::run(&mut cargo, limit, Output::Shown)?;
    match finished.exit {
        Exit::Code(0) => Ok(()),
        exit => Err(format!("`{}` {exit}", process::line(&cargo))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn crate_with(key: &str, value: Value) -> Value {
        let mut sound = json!({
            "name": "sound", "description": "d", "license": "MIT", "readme": "Cargo.toml",
            "rust_version": "1.89", "manifest_path": concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml"),
            "keywords": ["a"], "categories": ["memory-management"], "publish": null,
        });
        sound[key] = value;
        sound
    }

    #[test]
    fn a_manifest_that_no_registry_would_take_is_refused() {
        assert_eq!(faults(&crate_with("publish", Value::Null)), [""; 0]);
        let planted = [
            ("description", json!("")),
            ("license", Value::Null),
            ("readme", Value::Null),
            ("readme", json!("nowhere.md")),
            ("rust_version", Value::Null),
            ("keywords", json!([])),
            ("keywords", json!(["a", "b", "c", "d", "e", "f"])),
            ("keywords", json!(["a-keyword-that-is-long"])),
            ("categories", json!([])),
        ];
        for (key, value) in planted {
            let found = faults(&crate_with(key, value.clone()));
            assert_eq!(found.len(), 1, "{key} {value}: {found:?}");
        }
    }

    #[test]
    fn a_crate_without_the_licences_of_the_project_is_refused() {
        let planted = tempfile::tempdir().unwrap();
        let member = json!({ "manifest_path": planted.path().join("Cargo.toml") });
        let fault = |file: &str| license_fault(&member, file);
        assert!(fault("LICENSE-MIT").unwrap().contains("no such file"));
        std::fs::write(planted.path().join("LICENSE-MIT"), "all rights reserved").unwrap();
        assert!(fault("LICENSE-MIT").unwrap().contains("differs"));
        std::fs::copy(
            workspace::root().join("LICENSE-MIT"),
            planted.path().join("LICENSE-MIT"),
        )
        .unwrap();
        assert_eq!(fault("LICENSE-MIT"), None);
    }

    #[test]
    fn a_crate_comes_behind_what_it_needs() {
        let member = |name: &str, needs: &[(&str, Option<&str>)]| {
            let need = |(name, kind): &(&str, Option<&str>)| json!({ "name": name, "kind": kind, "path": "/x" });
            json!({ "name": name, "dependencies": needs.iter().map(need).collect::<Vec<_>>() })
        };
        let kit = ("kit", Some("dev"));
        let top = member("top", &[("base", None), ("middle", Some("build"))]);
        let middle = member("middle", &[("base", None), kit]);
        let base = member("base", &[]);
        assert_eq!(
            in_order(&[&top, &middle, &base]).unwrap(),
            ["base", "middle", "top"]
        );
        let error = in_order(&[&top, &base]).unwrap_err();
        assert!(error.starts_with("top: need"), "{error}");
    }

    #[test]
    fn the_laboratory_is_not_published() {
        let members = members().unwrap();
        let published = members.iter().filter(|member| is_published(member));
        let names: Vec<&str> = published.clone().map(name).collect();
        assert!(
            names.contains(&"uzram") && names.contains(&"uzram-cli"),
            "{names:?}"
        );
        assert!(
            !names.contains(&"xtask") && !names.contains(&"uzram-bench"),
            "{names:?}"
        );
        assert_eq!(published.flat_map(faults).collect::<Vec<_>>(), [""; 0]);
    }
}
