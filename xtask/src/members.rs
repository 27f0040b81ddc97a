//! The crates of the workspace, as `cargo metadata` describes them.

use std::time::Duration;

use serde_json::Value;

use crate::process;
use crate::workspace;

const METADATA_LIMIT: Duration = Duration::from_secs(60);

/// The members of the workspace, one JSON object each.
///
/// # Errors
/// If cargo fails or names no package.
pub fn members() -> Result<Vec<Value>, String> {
    packages(&["--no-deps"])
}

/// The members, and all that they depend on, unless `arguments` say otherwise.
///
/// # Errors
/// If cargo fails or names no package.
pub fn packages(arguments: &[&str]) -> Result<Vec<Value>, String> {
    let mut cargo = workspace::cargo();
    cargo.args(["metadata", "--offline", "--format-version", "1"]);
    cargo.args(arguments);
    let said = process::succeed(&mut cargo, METADATA_LIMIT)?.stdout;
    let metadata: Value =
        serde_json::from_str(&said).map_err(|error| format!("cargo metadata: {error}"))?;
    let packages = metadata["packages"].as_array();
    packages
        .cloned()
        .ok_or_else(|| "cargo metadata names no package".to_string())
}

/// Whether the crate is part of a release: its manifest does not say `publish = false`.
pub fn is_published(member: &Value) -> bool {
    // Null is anywhere, a list is the registries that may have it.
    member["publish"]
        .as_array()
        .is_none_or(|registries| !registries.is_empty())
}

/// The crate's name.
pub fn name(member: &Value) -> &str {
    member["name"].as_str().unwrap_or("a crate without a name")
}
