//! Cargo, for tests that build a program of another crate.

use std::process::Command;

/// Cargo, of the toolchain that runs the test. It is not told for which crate cargo runs us: some build scripts would
/// run again, and all that needs theirs be built again.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    cargo
}
