//! Builds that users make and developers do not: each feature of a published crate alone, none of them,
//! the minimum Rust version, and the documentation of one crate.

use std::time::Duration;

use serde_json::Value;

use crate::members::{is_published, members, name};
use crate::process;
use crate::report::Report;
use crate::workspace;

/// One build, from nothing.
const BUILD_LIMIT: Duration = Duration::from_secs(600);

/// Checks every published crate that has features with none of them and with each alone.
///
/// # Errors
/// If cargo does not describe the workspace. A build that fails is counted in the report.
pub fn features(report: &mut Report) -> Result<(), String> {
    for member in members()?.iter().filter(|member| is_published(member)) {
        for features in alone(member) {
            let mut clippy = workspace::cargo();
            clippy.args(["clippy", "--no-default-features", "-p", name(member)]);
            if let Some(feature) = features {
                clippy.args(["--features", feature]);
            }
            clippy.args(["--", "-D", "warnings"]);
            report.run(clippy, BUILD_LIMIT);
        }
    }
    Ok(())
}

/// The builds of a crate: without features, then with each alone. A crate that has none has no such build.
fn alone(member: &Value) -> Vec<Option<&str>> {
    let features = member["features"].as_object();
    let names = features
        .into_iter()
        .flat_map(|features| features.keys())
        .filter(|feature| *feature != "default");
    let names: Vec<&str> = names.map(String::as_str).collect();
    match names.is_empty() {
        true => Vec::new(),
        false => [None]
            .into_iter()
            .chain(names.into_iter().map(Some))
            .collect(),
    }
}

/// Makes the documentation of each published crate that has features apart from the others, as its users and
/// docs.rs do. That of the whole workspace has all features that some member enables, which hides links to
/// what a feature leaves out.
///
/// # Errors
/// If cargo does not describe the workspace. A warning is counted as a failure in the report.
pub fn documentation(report: &mut Report) -> Result<(), String> {
    for member in members()?.iter().filter(|member| is_published(member)) {
        for flags in documented(member) {
            let mut doc = workspace::cargo();
            doc.args(["doc", "--no-deps", "-p", name(member)])
                .args(flags);
            doc.env("RUSTDOCFLAGS", "-D warnings");
            report.run(doc, BUILD_LIMIT);
        }
    }
    Ok(())
}

/// The flags of each documentation of a crate: for its default features, and for all if those are more.
fn documented(member: &Value) -> Vec<&'static [&'static str]> {
    let others = alone(member).into_iter().flatten();
    let default = member["features"]["default"].as_array();
    let is_default = |feature: &str| {
        let mut names = default.into_iter().flatten().filter_map(Value::as_str);
        names.any(|name| name == feature)
    };
    let others: Vec<bool> = others.map(is_default).collect();
    match (others.is_empty(), others.contains(&false)) {
        (true, _) => vec![],
        (false, false) => vec![&[]],
        (false, true) => vec![&[], &["--all-features"]],
    }
}

/// Checks the published crates with the oldest Rust that they promise to build with, if rustup has it.
/// Clippy's `incompatible_msrv` finds newer parts of the standard library with any toolchain.
///
/// # Errors
/// If the crates promise different versions, or none.
pub fn minimum_rust(report: &mut Report) -> Result<(), String> {
    let members = members()?;
    let published: Vec<&Value> = members
        .iter()
        .filter(|member| is_published(member))
        .collect();
    let version = common_version(&published)?;
    let mut rustc = workspace::command("rustup");
    rustc.args(["run", version, "rustc", "--version"]);
    if process::succeed(&mut rustc, BUILD_LIMIT).is_err() {
        let remedy = format!("rustup toolchain install {version}");
        report.leave_out(format!("msrv (no Rust {version}; {remedy})"), &[]);
        return Ok(());
    }
    let mut cargo = workspace::command("rustup");
    cargo.args(["run", version, "cargo", "check", "--locked"]);
    for member in &published {
        cargo.args(["-p", name(member)]);
    }
    let target = workspace::target_dir().join("msrv");
    cargo
        .env("CARGO_TARGET_DIR", target)
        .env_remove("RUSTUP_TOOLCHAIN");
    report.run(cargo, BUILD_LIMIT);
    Ok(())
}

fn common_version<'a>(published: &[&'a Value]) -> Result<&'a str, String> {
    let mut versions: Vec<&str> = published
        .iter()
        .map(|member| member["rust_version"].as_str().unwrap_or("none"))
        .collect();
    versions.sort_unstable();
    versions.dedup();
    match versions[..] {
        [version] if version != "none" => Ok(version),
        _ => Err(format!(
            "the crates' rust-version is not one: {}",
            versions.join(" ")
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_crate_is_built_without_features_and_with_each_alone() {
        let member = json!({ "features": { "default": ["tls"], "tls": [], "ublk": [] } });
        assert_eq!(alone(&member), [None, Some("tls"), Some("ublk")]);
        assert_eq!(alone(&json!({ "features": {} })), []);
    }

    #[test]
    fn a_crate_with_features_is_documented_apart() {
        let flags = |features: Value| documented(&json!({ "features": features })).len();
        assert_eq!(flags(json!({})), 0);
        assert_eq!(flags(json!({ "default": ["tls"], "tls": [] })), 1);
        assert_eq!(
            flags(json!({ "default": ["nbd"], "nbd": [], "fuse": [] })),
            2
        );
        assert_eq!(flags(json!({ "lab": [] })), 2);
    }

    #[test]
    fn crates_that_promise_different_versions_are_refused() {
        let (one, other) = (
            json!({ "rust_version": "1.89" }),
            json!({ "rust_version": "1.90" }),
        );
        assert_eq!(common_version(&[&one, &one]), Ok("1.89"));
        assert!(common_version(&[&one, &other]).is_err());
        assert!(common_version(&[&json!({})]).is_err());
    }
}
