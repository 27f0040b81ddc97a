//! The configuration file of zram-generator, for one machine: the disks that it asks for, and what it
//! asks for in vain.
//!
//! Keys and meanings are those of zram-generator.conf(5), version 1.2. A file that is wrong is refused
//! whole. What the generator passes over (unknown keys, other sections), and what no disk of ours has
//! (recompression, writeback), is said with its line. Which files are read, and in which order, is the
//! generator's: here it is one.

mod ini;
mod section;

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use uzram::ErrorKind;

use crate::config_file;
use crate::error::{Error, Result};
use crate::expression::Names;
use crate::nearest::shown;
use crate::options;
use crate::state::own_uid;
use ini::{Entry, Item, Wrong};
use section::Section;

pub use section::{GeneratorDisk, GeneratorUse};

/// Most disks.
const DISKS_MAX: usize = 1024;
/// Bytes of a program's output that are read.
const OUTPUT_BYTES_MAX: u64 = 4096;
const OTHERS_WRITE: u32 = 0o022;

/// A file of zram-generator as this machine understands it.
#[derive(Debug, Default)]
pub struct GeneratorConfig {
    /// The disks in the order of their first section.
    pub disks: Vec<GeneratorDisk>,
    /// Lines for people: what is left out, and why.
    pub notes: Vec<String>,
}

impl GeneratorConfig {
    /// Reads the file at `path` for a machine with `ram_bytes`. Runs the programs of its `set!` lines,
    /// if nobody else could have written them.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if it cannot be read; [`ErrorKind::InvalidInput`] with file, line, section
    /// and key.
    pub fn read(path: &Path, ram_bytes: u64) -> Result<GeneratorConfig> {
        let file = path.display();
        let text = config_file::read(path)?;
        let run = |program: &str| {
            let found = std::fs::metadata(path).map_err(|error| error.to_string())?;
            if ![0, own_uid()].contains(&found.uid()) || found.mode() & OTHERS_WRITE != 0 {
                return Err(
                    "others can write to the file, so its programs are not run; chmod go-w \
                            and chown root it"
                        .to_owned(),
                );
            }
            output_of(program)
        };
        let mut config = GeneratorConfig::parse(&text, ram_bytes, run).map_err(|wrong| {
            let text = match wrong.line {
                0 => format!("{file}: {}", wrong.why),
                line => format!("{file}:{line}: {}", wrong.why),
            };
            Error::new(ErrorKind::InvalidInput, text)
        })?;
        for note in &mut config.notes {
            note.insert_str(0, &format!("{file}"));
        }
        Ok(config)
    }

    fn parse(
        text: &str,
        ram_bytes: u64,
        mut run: impl FnMut(&str) -> Result<String, String>,
    ) -> Result<GeneratorConfig, Wrong> {
        let items = ini::read(text)?;
        is_no_toml(&items)?;
        let mut notes = Vec::new();
        let mut names = Names::new(ram_bytes);
        let mut sections: Vec<Section> = Vec::new();
        for item in items {
            match item {
                Item::Section(line, title) if !is_disk(&title) => {
                    let title = shown(&title);
                    notes.push(format!(":{line}: [{title}]: no [zramN], so it is left out"));
                }
                Item::Section(line, title) => {
                    if !sections.iter().any(|section| section.name == title) {
                        sections.push(Section::new(title, line));
                    }
                }
                Item::Entry(entry) => match &entry.section {
                    None => directive(&entry, &mut names, &mut notes, &mut run)?,
                    Some(title) => {
                        let section = sections.iter_mut().find(|s| s.name == *title);
                        if let Some(section) = section {
                            section.set(&entry, &mut notes)?;
                        }
                    }
                },
            }
        }
        if sections.len() > DISKS_MAX {
            let why = format!("{} disks; a server has {DISKS_MAX}", sections.len());
            return Err(Wrong { line: 0, why });
        }
        let mut disks = Vec::new();
        for section in sections {
            disks.extend(section.disk(&names, ram_bytes, &mut notes)?);
        }
        Ok(GeneratorConfig { disks, notes })
    }
}

/// Whether `text`, given as a server's file, is one of zram-generator: it has a section `[zramN]`.
pub(crate) fn is_meant(text: &str) -> bool {
    let items = ini::read(text).unwrap_or_default();
    titles(&items).any(is_disk)
}

fn titles(items: &[Item]) -> impl Iterator<Item = &str> {
    items.iter().filter_map(|item| match item {
        Item::Section(_, title) => Some(title.as_str()),
        Item::Entry(_) => None,
    })
}

/// Whether the generator takes a section for a disk.
fn is_disk(title: &str) -> bool {
    let number = title.strip_prefix("zram");
    number.is_some_and(|number| number.parse::<u64>().is_ok())
}

/// Refuses the file of a server, which is TOML, with the command that reads it.
fn is_no_toml(items: &[Item]) -> Result<(), Wrong> {
    const REMEDY: &str = "uzram serve --config reads such a file";
    for item in items {
        if let Item::Entry(entry) = item
            && entry.key != "options"
            && entry.section.is_some()
            && options::find(&entry.key).is_some()
        {
            let why = format!("a key of a server's file, and not of zram-generator's; {REMEDY}");
            return Err(Wrong::in_key(entry, why));
        }
    }
    if titles(items).next().is_none() || titles(items).any(is_disk) {
        return Ok(());
    }
    let why = format!("no section [zramN], as zram-generator's file has; {REMEDY}");
    Err(Wrong { line: 0, why })
}

/// `set!NAME = PROGRAM`: the program's output is an expression, and the name gets its value.
fn directive(
    entry: &Entry,
    names: &mut Names,
    notes: &mut Vec<String>,
    run: &mut impl FnMut(&str) -> Result<String, String>,
) -> Result<(), Wrong> {
    let Some(name) = entry.key.strip_prefix("set!") else {
        let (line, key) = (entry.line, shown(&entry.key));
        notes.push(format!(
            ":{line}: {key}: outside of a section only set!NAME = PROGRAM counts, so it is left out"
        ));
        return Ok(());
    };
    let text = run(&entry.value).map_err(|why| Wrong::in_key(entry, why))?;
    let value = names.evaluate(text.trim());
    names.set(name, value.map_err(|error| Wrong::in_key(entry, error))?);
    Ok(())
}

/// The output of the shell's `program`.
fn output_of(program: &str) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("/bin/sh: {error}");
    let mut child = Command::new("/bin/sh")
        .args(["-c", "--", program])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut text = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        let read = stdout.take(OUTPUT_BYTES_MAX).read_to_end(&mut text);
        read.map_err(failed)?;
    }
    child.wait().map_err(failed)?;
    String::from_utf8(text).map_err(|_| "its output is no text".to_owned())
}

#[cfg(test)]
mod tests;
