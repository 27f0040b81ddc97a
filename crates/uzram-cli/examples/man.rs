//! Writes the manual pages and the shells' completions of `uzram` below a directory:
//! `cargo run -p uzram-cli --example man -- DIR`, or `cargo xtask man`.
//!
//! Packagers run it; nothing that it writes is kept in the repository, so nothing can be out of date.

use std::error::Error;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};
use clap_complete::aot::{Bash, Fish, Generator, Zsh};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

#[path = "../src/args.rs"]
#[allow(dead_code, reason = "described here, not run")]
mod args;

fn main() -> Result<(), Box<dyn Error>> {
    let out = std::env::args_os().nth(1).map(PathBuf::from);
    let out = out.ok_or("name the directory to write to")?;
    let mut command = args::Cli::command();
    let shells = out.join("completions");
    completion(Bash, &mut command, &shells.join("bash/uzram"))?;
    completion(Zsh, &mut command, &shells.join("zsh/_uzram"))?;
    completion(Fish, &mut command, &shells.join("fish/uzram.fish"))?;
    let pages = out.join("man/man1");
    fs::create_dir_all(&pages)?;
    command.build();
    page(&command, "uzram", &pages)
}

fn completion(
    shell: impl Generator,
    command: &mut Command,
    path: &Path,
) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(path.parent().ok_or("a file has a directory")?)?;
    clap_complete::generate(shell, command, "uzram", &mut File::create(path)?);
    Ok(())
}

/// The page of `command`, and those of its sub-commands: uzram(1), uzram-serve(1), ….
fn page(command: &Command, name: &str, out: &Path) -> Result<(), Box<dyn Error>> {
    // The library wants a text that lives for ever, and this program does not live long.
    let title: &'static str = name.to_owned().leak();
    let man = Man::new(command.clone().name(title))
        .manual("uzram")
        .source(concat!("uzram ", env!("CARGO_PKG_VERSION")));
    let mut file = File::create(out.join(format!("{name}.1")))?;
    man.render_title(&mut file)?;
    man.render_name_section(&mut file)?;
    man.render_synopsis_section(&mut file)?;
    man.render_description_section(&mut file)?;
    man.render_options_section(&mut file)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut file)?;
    }
    if let Some(text) = command.get_after_long_help().or(command.get_after_help()) {
        file.write_all(notes(&text.to_string()).as_bytes())?;
    }
    let subcommands = command.get_subcommands();
    for sub in subcommands.filter(|sub| sub.get_name() != "help") {
        page(sub, &format!("{name}-{}", sub.get_name()), out)?;
    }
    Ok(())
}

/// The text below the options in `--help`, with its line breaks, as it has examples.
fn notes(text: &str) -> String {
    let mut roff = Roff::new();
    roff.control("SH", ["EXAMPLES AND NOTES"]);
    roff.control("nf", []);
    for line in text.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff.to_roff()
}
