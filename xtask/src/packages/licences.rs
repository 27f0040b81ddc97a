//! The licences of what is linked into the program. They ask for their text to go with each copy.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::target::Target;
use crate::{members, process, workspace};

const ASK_LIMIT: Duration = Duration::from_secs(60);
/// Folders of a crate that may hold the sources of a C library, and of that library's.
const DEPTH_MAX: u32 = 2;
/// Folders of C libraries that are not built.
const NOT_BUILT: &[&str] = &["tests", "programs", "contrib", "examples", "doc", "docs"];
const HEAD: &str = "\
The program uzram is linked with these libraries, each under its licence. The texts that their authors ask to
go along follow. The standard library of Rust is under MIT or Apache-2.0. The C library is musl (MIT) or the GNU
C Library (LGPL-2.1 or later); who wants another one builds uzram with it, from its sources.
";

/// The list of libraries and the texts of their licences, each text once.
pub fn third_party(target: &Target) -> Result<Vec<u8>, String> {
    let folders = folders()?;
    let mut texts: Vec<String> = Vec::new();
    let mut list = String::from(HEAD);
    list.push('\n');
    for (package, licence) in linked(target)? {
        let Some(folder) = folders.get(&package) else {
            return Err(format!("{package}: cargo metadata does not know it"));
        };
        let numbers = licence_files(folder, 0).into_iter().filter_map(|file| {
            let text = String::from_utf8_lossy(&fs::read(file).ok()?)
                .trim()
                .to_string();
            let known = texts.iter().position(|known| *known == text);
            let index = known.unwrap_or_else(|| {
                texts.push(text);
                texts.len() - 1
            });
            Some(format!("[{}]", index + 1))
        });
        let numbers: Vec<String> = numbers.collect();
        let numbers = match numbers.is_empty() {
            true => "(its package has no text)".to_string(),
            false => numbers.join(" "),
        };
        let _ = writeln!(list, "{package}: {licence} {numbers}");
    }
    for (index, text) in texts.iter().enumerate() {
        let _ = write!(list, "\n\n---- [{}]\n\n{text}\n", index + 1);
    }
    Ok(list.into_bytes())
}

/// The crates that are linked into the program, but for ours, and their licences.
fn linked(target: &Target) -> Result<BTreeMap<String, String>, String> {
    let mut tree = workspace::cargo();
    tree.args(["tree", "--offline", "-p", "uzram-cli", "--edges", "normal"]);
    tree.args(["--prefix", "none", "--format", "{p}|{l}", "--target"]);
    let said = process::succeed(tree.arg(target.triple()), ASK_LIMIT)?.stdout;
    Ok(said.lines().filter_map(third_party_line).collect())
}

/// Name and version, and licence, of a line `NAME vVERSION (REMARK)|LICENCE (*)`. Ours have a path as the remark.
fn third_party_line(line: &str) -> Option<(String, String)> {
    let (package, licence) = line.split_once('|')?;
    let mut words = package.split(' ');
    let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
    let is_ours = words.any(|remark| remark.starts_with("(/"));
    let licence = licence.trim_end_matches(" (*)").to_string();
    (!is_ours).then(|| (format!("{name} {version}"), licence))
}

/// The sources of each crate, by name and version.
fn folders() -> Result<BTreeMap<String, PathBuf>, String> {
    let packages = members::packages(&[])?;
    let entry = |package: &serde_json::Value| {
        let manifest = Path::new(package["manifest_path"].as_str()?);
        let version = package["version"].as_str()?;
        let name = format!("{} {version}", members::name(package));
        Some((name, manifest.parent()?.to_path_buf()))
    };
    Ok(packages.iter().filter_map(entry).collect())
}

/// The files with licences in `folder` and in the C libraries below it. A second licence (COPYING) beside a first
/// one is the choice that is not made.
fn licence_files(folder: &Path, depth: u32) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    paths.sort();
    let name = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().to_uppercase()
    };
    let named = |words: &[&str]| -> Vec<PathBuf> {
        let is_it = |path: &&PathBuf| {
            path.is_file() && words.iter().any(|word| name(path).starts_with(word))
        };
        paths.iter().filter(is_it).cloned().collect()
    };
    let mut found = named(&["LICENSE", "LICENCE"]);
    if found.is_empty() {
        found = named(&["COPYING"]);
    }
    if depth < DEPTH_MAX {
        let is_built = |path: &&PathBuf| {
            path.is_dir() && !NOT_BUILT.contains(&name(path).to_lowercase().as_str())
        };
        for path in paths.iter().filter(is_built) {
            found.extend(licence_files(path, depth + 1));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_others_are_told_from_ours() {
        let line = third_party_line;
        assert_eq!(
            line("libc v0.2.1|MIT OR Apache-2.0 (*)"),
            Some(("libc 0.2.1".into(), "MIT OR Apache-2.0".into()))
        );
        assert_eq!(
            line("serde_derive v1.0.2 (proc-macro)|MIT"),
            Some(("serde_derive 1.0.2".into(), "MIT".into()))
        );
        assert_eq!(line("uzram v0.1.0 (/there/crates/uzram)|MIT"), None);
        assert_eq!(line(""), None);
    }

    #[test]
    fn crates_and_c_libraries_come_with_their_texts() {
        let text = third_party(&Target::host().unwrap()).unwrap();
        let text = String::from_utf8(text).unwrap();
        let list = text.split("\n\n").nth(1).unwrap();
        let without = list.lines().filter(|line| line.ends_with("no text)"));
        let (all, without) = (list.lines().count(), without.count());
        assert!(all > 50 && without * 20 < all, "{list}");
        assert!(!list.contains("uzram"));
        for holder in ["Yann Collet", "Meta Platforms", "Eric Biggers"] {
            assert!(text.contains(holder), "{holder}");
        }
    }
}
