//! Build profiles: the shipped program contains a panic.

use crate::tree::Tree;

/// Settings that make a build abort on panic. A device that panics would then take every other
/// disk of the server with it, and no test would notice: `cargo test` always unwinds.
pub fn aborting(tree: &Tree) -> Vec<String> {
    let manifests = tree.files.iter().filter(|file| {
        let builds = file.path.starts_with("xtask/src/") || file.path.starts_with(".ci/");
        file.path.ends_with(".toml") || builds
    });
    let mut violations = Vec::new();
    for file in manifests {
        for (index, line) in file.text.lines().enumerate() {
            let kept = |c: &char| !c.is_whitespace() && !['"', '\''].contains(c);
            let setting: String = line.chars().filter(kept).collect();
            if !setting.starts_with('#') && setting.contains("panic=abort") {
                let place = format!("{}:{}", file.path, index + 1);
                violations.push(format!(
                    "{place}: panics must unwind (docs/design/failure.md)"
                ));
            }
        }
    }
    violations
}

#[test]
fn a_profile_or_a_flag_that_aborts_is_caught() {
    let caught = |path: &str, text: &str| aborting(&Tree::planted(&[(path, text)])).len();
    assert_eq!(
        caught("Cargo.toml", "[profile.dist]\npanic = \"abort\"\n"),
        1
    );
    assert_eq!(caught("Cargo.toml", "[profile.x]\npanic='abort'\n"), 1);
    assert_eq!(
        caught(".cargo/config.toml", "rustflags = [\"-Cpanic=abort\"]"),
        1
    );
    assert_eq!(
        caught("xtask/src/dist.rs", "cargo.arg(\"-Cpanic=abort\");"),
        1
    );
    assert_eq!(
        caught("Cargo.toml", "[profile.dist]\npanic = \"unwind\"\n"),
        0
    );
    assert_eq!(caught("Cargo.toml", "# not panic = \"abort\"\n"), 0);
}
