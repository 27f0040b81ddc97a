//! `cargo xtask man`: manual pages and completions, made from the command line's own definition.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::process::{self, Exit, Output};
use crate::workspace;

const LIMIT: Duration = Duration::from_secs(600);
/// Fewest pages. With fewer something is missing: the program alone has more commands.
const PAGES_MIN: usize = 8;
const COMPLETIONS: [&str; 3] = ["bash/uzram", "zsh/_uzram", "fish/uzram.fish"];

/// Writes `man/man1` and `completions` below `out`, checked.
///
/// # Errors
/// If they cannot be made, or are incomplete.
pub fn man(out: &Path) -> Result<(), String> {
    for old in ["man", "completions"] {
        // What a command was called before must not stay.
        let _ = fs::remove_dir_all(out.join(old));
    }
    let mut cargo = workspace::cargo();
    // Of the default members, with whose features the tests have built it.
    cargo.args(["run", "--quiet", "--example", "man", "--"]);
    let finished = process::run(cargo.arg(out), LIMIT, Output::Shown)?;
    if finished.exit != Exit::Code(0) {
        return Err(process::failure(&cargo, &finished));
    }
    let pages = check_pages(&out.join("man/man1"))?;
    for completion in COMPLETIONS {
        let path = out.join("completions").join(completion);
        let text = read(&path)?;
        if !text.contains("serve") || !text.contains("mem-limit") {
            return Err(format!("{}: does not complete uzram serve", path.display()));
        }
    }
    println!(
        "man: {pages} pages and completions for bash, zsh and fish in {}",
        out.display()
    );
    Ok(())
}

/// The number of pages, each checked for the parts that a reader looks for.
fn check_pages(dir: &Path) -> Result<usize, String> {
    let listing = fs::read_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let mut pages = 0;
    for entry in listing.flatten() {
        let text = read(&entry.path())?;
        for section in [".SH NAME", ".SH SYNOPSIS", ".SH OPTIONS"] {
            if !text.contains(section) {
                return Err(format!("{}: has no {section}", entry.path().display()));
            }
        }
        pages += 1;
    }
    match pages {
        0..PAGES_MIN => Err(format!("{}: {pages} pages only", dir.display())),
        pages => Ok(pages),
    }
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}
